/* every core leaves its mark; core 0 adds them up */
#include "start.inc"
    .equ MARKS, 0x10000100
main:
    slli t0, a0, 2
    li   t1, MARKS
    add  t0, t0, t1
    addi t2, a0, 1
    sw   t2, 0(t0)
    mv   s2, ra
    BARRIER
    mv   ra, s2
    li   t3, NC
    li   a0, 0
1:  lw   t2, 0(t1)
    add  a0, a0, t2
    addi t1, t1, 4
    addi t3, t3, -1
    bnez t3, 1b
    ret
