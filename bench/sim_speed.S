/* fp32 matrix product C = A * B, 64 x 64 x 64 in L1, 4 x 4 blocks, REPEAT times on NC cores.
   Core c takes the block rows c, c + NC, ...; a barrier ends every product. */
#ifndef NC
#define NC 8
#endif
#ifndef REPEAT
#define REPEAT 100
#endif
    .option norelax
    .option norvc
    .equ MATRIX_A, 0x10000100
    .equ MATRIX_B, MATRIX_A + 64*64*4
    .equ MATRIX_C, MATRIX_B + 64*64*4

.macro plw rd, imm, rs1
    .insn i 0x0b, 2, \rd, \imm(\rs1)
.endm
.macro psw rs2, imm, rs1
    .insn s 0x2b, 2, \rs2, \imm(\rs1)
.endm

    .section .text.start,"ax"
    .globl _start
_start:
    csrr t0, mhartid
    srli t1, t0, 5
    beqz t1, core_start
    li   t0, 0x10201400
    li   t1, -1
    sw   t1, 0(t0)              /* instruction caches on */
    li   t0, 0x10200000
    la   t1, _start
    li   t2, NC
    addi t3, t0, 0x40
1:  sw   t1, 0(t3)
    addi t3, t3, 4
    addi t2, t2, -1
    bnez t2, 1b
    li   t1, (1<<NC)-1
    sw   t1, 8(t0)              /* cores start */
2:  wfi
    j    2b

core_start:
    mv   s0, t0
    li   t0, 0x10204000
    li   t1, 0x10000
    sw   t1, 8(t0)              /* listen to the barrier event */
    li   t1, (1<<NC)-1
    sw   t1, 0x200(t0)
    sw   t1, 0x20C(t0)
    li   tp, REPEAT
product:
    mv   gp, s0                 /* block row */
block_row:
    slli t0, gp, 10             /* 4 rows of 256 bytes */
    li   ra, MATRIX_A
    add  ra, ra, t0
    li   s11, MATRIX_C
    add  s11, s11, t0
    li   s10, MATRIX_B
    li   sp, 16                 /* block columns */
block:
    mv   s9, ra
    csrrw x0, mscratch, s0
    .irp r, t0,t1,t2,t3,t4,t5,t6,a0,a1,a2,a3,a4,a5,a6,a7,s0
    li   \r, 0
    .endr
    li   s1, 64
    .4byte 0x407b | (9<<15) | (((inner_end - . - 4)/2)<<20)
    plw  s1, 256, s9
    plw  s2, 256, s9
    plw  s3, 256, s9
    plw  s4, -764, s9
    plw  s5, 4, s10
    plw  s6, 4, s10
    plw  s7, 4, s10
    plw  s8, 244, s10
    fmadd.s t0, s1, s5, t0
    fmadd.s t4, s2, s5, t4
    fmadd.s a1, s3, s5, a1
    fmadd.s a5, s4, s5, a5
    fmadd.s t1, s1, s6, t1
    fmadd.s t5, s2, s6, t5
    fmadd.s a2, s3, s6, a2
    fmadd.s a6, s4, s6, a6
    fmadd.s t2, s1, s7, t2
    fmadd.s t6, s2, s7, t6
    fmadd.s a3, s3, s7, a3
    fmadd.s a7, s4, s7, a7
    fmadd.s t3, s1, s8, t3
    fmadd.s a0, s2, s8, a0
    fmadd.s a4, s3, s8, a4
    fmadd.s s0, s4, s8, s0
inner_end:
    sw   t0, 0(s11)
    sw   t1, 4(s11)
    sw   t2, 8(s11)
    sw   t3, 12(s11)
    sw   t4, 256(s11)
    sw   t5, 260(s11)
    sw   t6, 264(s11)
    sw   a0, 268(s11)
    sw   a1, 512(s11)
    sw   a2, 516(s11)
    sw   a3, 520(s11)
    sw   a4, 524(s11)
    sw   a5, 768(s11)
    sw   a6, 772(s11)
    sw   a7, 776(s11)
    sw   s0, 780(s11)
    csrr s0, mscratch
    addi s11, s11, 16
    li   t0, -64*256 + 16
    add  s10, s10, t0
    addi sp, sp, -1
    bnez sp, block
    addi gp, gp, NC
    li   t0, 16
    bltu gp, t0, block_row
    li   t0, 0x10204200
    .insn i 0x03, 6, t1, 0x1C(t0)
    addi tp, tp, -1
    bnez tp, product
    bnez s0, 3f
    li   t0, 0x1A1040A0
    li   t1, 0x80000000
    sw   t1, 0(t0)
3:  li   t0, 0x10204000
    li   t1, -1
    sw   t1, 4(t0)
    .insn i 0x03, 6, t1, 0x3C(t0)
    j    3b
