/* Start-up of one core. What the simulator starts first is the controller of its cluster, which a
 * microcontroller has not: it wakes the core and sleeps for ever. The core gets its stack and enters
 * gl_start(). */
    .equ GUARD, 0x5afe57ac              /* as in gl_port_rv32mcu.h */
    .equ SOC_EXIT, 0x1a1040a0
    .equ CLUSTER_CONTROL, 0x10200000    /* +0x08 fetch, +0x40 boot address of the core */
    .equ CLUSTER_ICACHE, 0x10201400

    .section .text.start, "ax"
    .globl _start
_start:
    la   t0, gl_trap
    csrw mtvec, t0
    csrr a0, mhartid
    beqz a0, core

    li   t0, CLUSTER_ICACHE
    li   t1, 1
    sw   t1, 0(t0)
    li   t0, CLUSTER_CONTROL
    la   t1, _start
    sw   t1, 0x40(t0)
    li   t1, 1
    sw   t1, 0x08(t0)
1:  wfi
    j    1b

core:
    la   t0, gl_stack_guard
    li   t1, GUARD
    sw   t1, 0(t0)
    sw   t1, 4(t0)
    sw   t1, 8(t0)
    sw   t1, 12(t0)
    la   t1, gl_stack
    add  sp, t0, t1
    call gl_start
2:  li   t0, 0x80000000
    or   a0, a0, t0
    li   t0, SOC_EXIT
    sw   a0, 0(t0)
    j    1b

    .balign 256                         /* mtvec needs it */
    .globl gl_trap
gl_trap:
    li   a0, 126
    j    2b
