/* prints far more than the output buffer holds */
#include "start.inc"
main:
    li   t0, STDOUT
    li   t1, 90000
    li   t2, 'x'
1:  sb   t2, 0(t0)
    addi t1, t1, -1
    bnez t1, 1b
    li   t2, 10
    sb   t2, 0(t0)
    li   a0, 0
    ret
