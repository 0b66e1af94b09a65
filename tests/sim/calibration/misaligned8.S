/* 8 cores, misaligned access to chosen TCDM banks and to L2 */
#define NC 8
#include "boot.inc"

REGION misaligned8.lw_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 2(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sw_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sh_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sh t0, 3(a1)
    .endr
1:
ENDREGION
REGION misaligned8.lw_next_banks
    slli t1, a0, 2
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 2(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sw_next_banks
    slli t1, a0, 2
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 1(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sw_alone_banks
    slli t1, a0, 3
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sw_lw_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a1)
    lw t3, 4(a1)
    .endr
1:
ENDREGION
REGION misaligned8.sw_sw_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a1)
    sw t3, 4(a1)
    .endr
1:
ENDREGION
REGION misaligned8.lw_use_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 3(a1)
    addi t3, t0, 1
    .endr
1:
ENDREGION
REGION misaligned8.sw_alu_same_banks
    slli t1, a0, 6
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a1)
    addi t3, t3, 1
    .endr
1:
ENDREGION
REGION misaligned8.sw_post_same_banks
    slli t1, a0, 9
    add t1, a1, t1
    addi t1, t1, 2
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    psw t0, 64, t1
    .endr
1:
ENDREGION
REGION misaligned8.lw_post_same_banks
    slli t1, a0, 9
    add t1, a1, t1
    addi t1, t1, 2
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    plw t0, 64, t1
    .endr
1:
ENDREGION
REGION misaligned8.sw_l2
    slli t1, a0, 4
    add a2, a2, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    .endr
1:
ENDREGION
REGION misaligned8.lw_l2
    slli t1, a0, 4
    add a2, a2, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 2(a2)
    .endr
1:
ENDREGION
REGION misaligned8.sw_l2_sw_l1
    slli t1, a0, 4
    add a2, a2, t1
    slli t1, a0, 2
    add a1, a1, t1
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    sw t0, 2(a1)
    .endr
1:
ENDREGION
REGION misaligned8.some_misaligned
    add t1, a1, a0
    slli t2, a0, 2
    add a1, a1, t2
    li t6, 8
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 0(t1)
    lw t3, 4(a1)
    .endr
1:
ENDREGION
