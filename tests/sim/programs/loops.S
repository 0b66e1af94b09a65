/* hardware loops: nested, of one instruction, with counts 0 and 1, ended by a load */
#include "start.inc"
main:
    li   a0, 0
    li   t6, 10
    li   t5, 7
    lpsetup 1, t5, 2f
    lpsetup 0, t6, 1f
    addi a0, a0, 1
1:  addi a0, a0, 1
2:                              /* 7 * (10 + 1) = 77 */
    lpsetupi 0, 5, 3f
    addi a0, a0, 1              /* + 5 */
3:  li   t6, 1
    lpsetup 0, t6, 4f
    nop
    addi a0, a0, 1              /* + 1 */
4:  lpcounti 0, 0
    lpstarti 0, 5f
    lpendi 0, 6f
5:  nop
    addi a0, a0, 1              /* + 1: a count of 0 does not loop */
6:  li   a1, 0x10000100
    sw   a0, 0(a1)
    li   t6, 3
    lpsetup 0, t6, 7f
    addi a0, a0, 1              /* + 3 */
    lw   t0, 0(a1)
7:  csrr t1, 0x7B2              /* the count is used up */
    beqz t1, 8f
    li   a0, 0
8:  ret
