/* misaligned access to L2, and what follows it */
#define NC 1
#include "boot.inc"

REGION misaligned_l2.lw
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 2(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.lw_use
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 1(a2)
    addi t3, t0, 1
    .endr
1:
ENDREGION
REGION misaligned_l2.lh_cross
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    lh t0, 3(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.lhu_in_word
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    lhu t0, 1(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_off1
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 1(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_off3
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 3(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sh_cross
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sh t0, 3(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sh_in_word
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sh t0, 1(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_then_lw
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    lw t3, 4(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_then_sw
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    sw t3, 8(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_then_alu
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    addi t3, t3, 1
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_then_l1
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    lw t3, 0(a1)
    .endr
1:
ENDREGION
REGION misaligned_l2.lw_then_sw
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    lw t0, 2(a2)
    sw t0, 6(a2)
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_then_fp
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    sw t0, 2(a2)
    fadd.s t3, t4, t5
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_post
    addi t1, a2, 2
    li t2, 4
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    psw t0, 4, t1
    .endr
1:
ENDREGION
REGION misaligned_l2.sh_post
    addi t1, a2, 3
    li t2, 4
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    psh t0, 4, t1
    .endr
1:
ENDREGION
REGION misaligned_l2.lw_post
    addi t1, a2, 2
    li t2, 4
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    plw t0, 4, t1
    .endr
1:
ENDREGION
REGION misaligned_l2.lh_post
    addi t1, a2, 3
    li t2, 4
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    plh t0, 4, t1
    .endr
1:
ENDREGION
REGION misaligned_l2.sw_post_reg
    addi t1, a2, 2
    li t2, 4
    li t6, 4
    lpsetup 0, t6, 1f
    .rept 4
    pswr t0, t2, t1
    .endr
1:
ENDREGION
