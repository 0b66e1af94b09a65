/* Units in situations that no other program meets; run like the calibration programs. */
#define NC 1
#include "boot.inc"

.macro DIVIDE op, divisor
    REGION \op\()_by_\divisor
    li t1, 1000
    li t2, \divisor
    .rept 4
    \op t3, t1, t2
    .endr
    ENDREGION
.endm

    DIVIDE div, 0
    DIVIDE rem, 0
    DIVIDE divu, 0
    DIVIDE remu, 0
    DIVIDE divu, 1

/* The result of a load that the next instruction replaces and does not read. */
    REGION pack_over_load
    .rept 8
    lw t1, 0(a1)
    pvpackh t1, t2, t3
    .endr
    ENDREGION
    REGION pack_of_load
    .rept 8
    lw t1, 0(a1)
    pvpackh t2, t1, t3
    .endr
    ENDREGION
