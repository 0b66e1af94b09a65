/* code that is changed while it runs: by a store, then by the DMA */
#include "start.inc"
main:
    mv   s2, ra
    jal  ra, patched
    mv   s3, a0                 /* 1 */
    la   t0, patched
    la   t1, second
    lw   t2, 0(t1)
    sw   t2, 0(t0)
    fence.i
    jal  ra, patched
    add  s3, s3, a0             /* + 20 */
    li   a3, DMA
    li   t1, 0x10000100
    la   t2, third
    lw   t2, 0(t2)
    sw   t2, 0(t1)
    li   a4, DMA_OUT+4
    la   t0, patched
    DMA_PUSH s4, a3, a4, t1, t0
    DMA_WAIT s4, a3, t0, t1, t2
    fence.i
    jal  ra, patched
    add  a0, s3, a0             /* + 300 */
    mv   ra, s2
    ret
    .balign 16
patched:
    li   a0, 1
    ret
second:
    li   a0, 20
third:
    li   a0, 300
