/* sleep until the timer's event, twice; returns 0 if each took about as long as it should */
#include "start.inc"
    .equ TIMER, 0x10200400
main:
    li   t0, EU
    li   t1, 0x400
    sw   t1, 8(t0)              /* listen to event 10 */
    li   t2, TIMER
    li   t1, 1000
    sw   t1, 0x10(t2)           /* compare */
    csrr s2, mcycle
    li   t1, 0x17               /* enable, reset, event, start again from 0 */
    sw   t1, 0(t2)
    pelw t1, 0x3C, t0
    csrr s3, mcycle
    pelw t1, 0x3C, t0
    csrr s4, mcycle
    lw   s5, 8(t2)
    sub  s3, s3, s2
    sub  s4, s4, s2
    li   a0, 1
    addi s3, s3, -1000
    li   t1, 80                 /* the code is not in the caches yet */
    bgtu s3, t1, 9f
    li   a0, 2
    addi s4, s4, -2000
    bgtu s4, t1, 9f
    li   a0, 3
    bgtu s5, t1, 9f
    li   a0, 0
9:  ret
