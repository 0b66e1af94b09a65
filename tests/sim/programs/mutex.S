/* every core adds 1 to a shared word 50 times: MODE 0 under a mutex, 1 under test-and-set */
#include "start.inc"
#ifndef MODE
#define MODE 0
#endif
    .equ WORD, 0x10000100
    .equ LOCK, 0x10100200
main:
    li   t0, WORD
    sw   zero, 0(t0)
    sw   zero, 0x100(t0)           /* the lock, at its other address */
    BARRIER
    li   t0, WORD
    li   t1, 50
    li   t2, EU + 0xC0
    li   t4, LOCK
1:
#if MODE == 0
    pelw t3, 0, t2
#else
2:  lw   t3, 0(t4)
    bnez t3, 2b
#endif
    lw   t3, 0(t0)
    nop
    nop
    addi t3, t3, 1
    sw   t3, 0(t0)
#if MODE == 0
    sw   zero, 0(t2)
#else
    sw   zero, 0(t4)
#endif
    addi t1, t1, -1
    bnez t1, 1b
    mv   s2, ra
    BARRIER
    mv   ra, s2
    li   t0, WORD
    lw   a0, 0(t0)
    ret
