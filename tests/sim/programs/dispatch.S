/* core 0 hands a value to the team of the odd cores and core 0 stays out; the others then sleep
   until a software event */
#include "start.inc"
    .equ MARKS, 0x10000100
main:
    li   t0, EU
    li   t1, 1
    sw   t1, 8(t0)              /* listen to software event 0 */
    beqz a0, master
    andi t1, a0, 1
    beqz t1, even
    pelw t2, 0x80, t0           /* from the dispatch FIFO */
    j    mark
even:
    pelw t2, 0x3C, t0           /* any event */
mark:
    slli t3, a0, 2
    li   t4, MARKS
    add  t3, t3, t4
    sw   t2, 0(t3)
    ret
master:
    li   t2, 500
1:  addi t2, t2, -1
    bnez t2, 1b
    li   t1, 0xAA
    sw   t1, 0x84(t0)           /* team */
    li   t1, 0x1234
    sw   t1, 0x80(t0)
    li   t2, 100
1:  addi t2, t2, -1
    bnez t2, 1b
    li   t1, 0x54
    sw   t1, 0x100(t0)          /* software event 0 to cores 2, 4, 6 */
    li   a0, 0
    ret
