/* exit code 0 if the counters of the core say what the code between start and stop did; the first
   of two rounds only brings the code into the caches */
#include "start.inc"
main:
    li   t5, 2
7:  li   t0, 0x7FF
    csrw 0xCC0, t0
    csrw 0x79F, zero
    li   a1, 0x10000100
    li   t0, 1
    csrw 0xCC1, t0
    lw   t1, 0(a1)
    addi t1, t1, 1              /* one load-use stall */
    sw   t1, 0(a1)
    beqz zero, 1f               /* taken */
1:  bnez zero, 1b               /* not taken */
    j    2f
2:  .option rvc
    c.nop
    c.nop
    .option norvc
    csrw 0xCC1, zero
    addi t5, t5, -1
    bnez t5, 7b
    li   a0, 1
    csrr t0, 0x781              /* instructions */
    li   t1, 8
    bne  t0, t1, 9f
    li   a0, 2
    csrr t0, 0x782              /* load stalls */
    li   t1, 1
    bne  t0, t1, 9f
    li   a0, 3
    csrr t0, 0x785              /* loads */
    bne  t0, t1, 9f
    li   a0, 4
    csrr t0, 0x786              /* stores */
    bne  t0, t1, 9f
    li   a0, 5
    csrr t0, 0x787              /* jumps */
    bne  t0, t1, 9f
    li   a0, 6
    csrr t0, 0x789              /* taken branches */
    bne  t0, t1, 9f
    li   t1, 2
    li   a0, 7
    csrr t0, 0x788              /* branches */
    bne  t0, t1, 9f
    li   a0, 8
    csrr t0, 0x78A              /* compressed */
    bne  t0, t1, 9f
    li   a0, 9
    nop
    csrr t2, 0x781              /* stopped: does not move */
    li   t1, 8
    bne  t2, t1, 9f
    li   a0, 0
9:  ret
