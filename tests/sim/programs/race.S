/* core 1 stores a word, then, after a barrier, core 0 stores it too */
#include "start.inc"
    .equ WORD, 0x10000200
main:
    mv   s2, ra
    li   s3, WORD
    li   t1, 1
    bne  a0, t1, 1f
    sw   t1, 0(s3)
1:  mv   s4, a0
    BARRIER
after_barrier:
    li   t1, 2
    bnez s4, 2f
second_store:
    sw   t1, 0(s3)
2:  lw   a0, 0(s3)
    mv   ra, s2
    ret
