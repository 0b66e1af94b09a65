/* MODE selects a mistake, made by core LAST */
#include "start.inc"
#define LAST (NC-1)
main:
    li   t0, LAST
    bne  a0, t0, 9f
    li   a3, DMA
#if MODE == 1
culprit:
    .4byte 0xFFFFFFFF
#elif MODE == 2
    li   t0, 0x20000000
culprit:
    lw   t1, 8(t0)
#elif MODE == 3
    li   t0, 0x1C190000
culprit:
    sw   t1, 0(t0)
#elif MODE == 4
    li   t0, 0x30000000
culprit:
    jr   t0
#elif MODE == 5
culprit:
    ebreak
#elif MODE == 6
culprit:
    ecall
#elif MODE == 7                 /* DMA from nowhere */
    li   a4, DMA_IN+64
    li   t0, 0x10000100
    li   t1, 0x30000000
culprit:
    DMA_PUSH s4, a3, a4, t0, t1
    DMA_WAIT s4, a3, t0, t1, t2
#elif MODE == 8                 /* DMA lines without bytes */
    li   a4, DMA_IN|DMA_2D|64
    li   t0, 0x10000100
    li   t1, 0x1C100000
    li   t2, 0
    li   t3, 64
culprit:
    DMA_PUSH2D s4, a3, a4, t0, t1, t2, t3
#elif MODE == 9                 /* runs for ever */
culprit:
    j    culprit
#elif MODE == 10                /* sleeps for ever, as then do the others at the barrier */
    li   t0, EU
    li   t1, -1
    sw   t1, 4(t0)
culprit:
    pelw t1, 0x3C, t0
#elif MODE == 11                /* a halfword from the event unit */
    li   t0, EU
culprit:
    lh   t1, 0(t0)
#elif MODE == 12                /* a CSR that does not exist */
culprit:
    csrr t0, 0x5C0
#elif MODE == 13                /* misaligned across the end of L1 */
    li   t0, 0x1000FFFE
culprit:
    lw   t1, 0(t0)
#endif
9:  li   a0, 0
    ret
