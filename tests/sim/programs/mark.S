/* every core writes and reads where the test lets it, or does not */
#include "start.inc"
    .equ WORD, 0x10000200
main:
    li   t0, WORD
    slli t1, a0, 2
    add  t0, t0, t1
touch:
    sw   a0, 0(t0)
    lw   t2, 0(t0)
    li   a0, 0
    ret
