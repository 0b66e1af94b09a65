/* every misaligned access, against bytes read one by one: returns the number of mistakes */
#include "start.inc"
#ifndef BASE
#define BASE 0x10000100
#endif
.macro EXPECT from, bytes      /* a2 = the bytes at \from, put together */
    li   a2, 0
    .rept \bytes
    slli a2, a2, 8
    .endr
    .set i, \bytes
    .rept \bytes
    .set i, i - 1
    slli a2, a2, 8
    lbu  a4, i + \from(a1)
    or   a2, a2, a4
    .endr
.endm
main:
    li   a1, BASE
    li   a0, 0
    li   t0, 0x83C2E1F0
    li   t1, 0x7694B5D4
    sw   t0, 0(a1)
    sw   t1, 4(a1)
    .set o, 0
    .rept 4
    EXPECT o, 4
    lw   a3, o(a1)
    beq  a2, a3, 1f
    addi a0, a0, 1
1:  EXPECT o, 2
    lhu  a3, o(a1)
    beq  a2, a3, 1f
    addi a0, a0, 1
1:  slli a2, a2, 16
    srai a2, a2, 16
    lh   a3, o(a1)
    beq  a2, a3, 1f
    addi a0, a0, 1
1:  li   t2, 0x9ABCDEF0 + o
    sw   t2, o(a1)
    EXPECT o, 4
    beq  a2, t2, 1f
    addi a0, a0, 1
1:  sh   t0, o(a1)
    EXPECT o, 2
    li   t3, 0xE1F0
    beq  a2, t3, 1f
    addi a0, a0, 1
1:
    .set o, o + 1
    .endr
    ret
