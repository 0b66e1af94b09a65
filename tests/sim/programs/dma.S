/* core 0: six transfers in flight, one- and two-dimensional, both ways; MODE 1 waits by polling.
   Each of them has a register for its counter, so the queues must drain meanwhile. */
#include "start.inc"
#ifndef MODE
#define MODE 0
#endif
    .equ IN1, 0x1C100000
    .equ IN2, 0x1C110000
    .equ OUT1, 0x1C120000
    .equ OUT2, 0x1C130000
    .equ L1A, 0x10008000
    .equ L1B, 0x10001000
    .equ L1C, 0x10002003
    .equ L1OUT, 0x10004000
.macro WAIT tid
#if MODE
    DMA_POLL \tid, a3, t0, t1
#else
    DMA_WAIT \tid, a3, t0, t1, t2
#endif
.endm
main:
    bnez a0, 9f
    li   a3, DMA
    li   a4, DMA_IN+12000
    li   t0, L1A
    li   t1, IN1
    DMA_PUSH s2, a3, a4, t0, t1
    li   a4, DMA_IN|DMA_2D|(96*5)     /* five lines of 96 bytes, 200 apart */
    li   t0, L1B
    li   t1, IN2
    li   t2, 96
    li   t3, 200
    DMA_PUSH2D s3, a3, a4, t0, t1, t2, t3
    li   a4, DMA_IN+77                /* odd length, odd address */
    li   t0, L1C
    li   t1, IN1+1
    DMA_PUSH s4, a3, a4, t0, t1
    li   a4, DMA_OUT+600
    li   t0, L1OUT
    li   t1, OUT1
    DMA_PUSH s5, a3, a4, t0, t1
    li   a4, DMA_OUT|DMA_2D|(30*4)    /* four lines of 30 bytes, 64 apart */
    li   t0, L1OUT+2
    li   t1, OUT2
    li   t2, 30
    li   t3, 64
    DMA_PUSH2D s6, a3, a4, t0, t1, t2, t3
    li   a4, DMA_IN                   /* no bytes at all */
    li   t0, L1A
    li   t1, IN1
    DMA_PUSH s7, a3, a4, t0, t1
    WAIT s2
    WAIT s3
    WAIT s4
    WAIT s5
    WAIT s6
    WAIT s7
9:  li   a0, 0
    ret
