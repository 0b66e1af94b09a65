/* Start-up of a PULP cluster program. The fabric controller comes here first: it starts the cores
 * of the cluster and sleeps. Each of them gets a stack and enters gl_team(). */
    .equ SOC_EXIT, 0x1a1040a0
    .equ CONTROLLER_ICACHE, 0x1a108800
    .equ CLUSTER_CONTROL, 0x10200000    /* +0x08 fetch, +0x20 clock, +0x40.. boot addresses */
    .equ CLUSTER_ICACHE, 0x10201400
    .equ EVENT_UNIT, 0x10204000         /* +0x08 sets mask bits, +0x200 barrier 0 */
    .equ EVENTS, 0x70000                /* barrier, mutex, dispatch */
    .equ GUARD, 0x5afe57ac              /* as in gl_port_pulp.h */

    .section .text.start, "ax"
    .globl _start
_start:
    la   t0, gl_trap
    csrw mtvec, t0
    csrr a0, mhartid
    srli t0, a0, 5
    beqz t0, team_core

    li   t0, CONTROLLER_ICACHE
    li   t1, 1
    sw   t1, 0(t0)
    li   t0, CLUSTER_ICACHE
    li   t1, -1
    sw   t1, 0(t0)
    li   t0, CLUSTER_CONTROL
    la   t1, _start
    addi t2, t0, 4 * GL_CORES
1:  sw   t1, 0x40(t0)
    addi t0, t0, 4
    bne  t0, t2, 1b
    li   t0, CLUSTER_CONTROL
    li   t1, 1
    sw   t1, 0x20(t0)
    li   t1, (1 << GL_CORES) - 1
    sw   t1, 0x08(t0)
2:  wfi
    j    2b

team_core:
    andi a0, a0, 31
    la   t1, gl_stacks_end
    la   t2, gl_stack
    addi t0, a0, 1
    mul  t0, t0, t2
    sub  t0, t1, t0
    add  sp, t0, t2
    li   t1, GUARD
    sw   t1, 0(t0)
    sw   t1, 4(t0)
    sw   t1, 8(t0)
    sw   t1, 12(t0)
    li   t0, EVENT_UNIT
    li   t1, EVENTS
    sw   t1, 0x08(t0)
    li   t1, (1 << GL_CORES) - 1
    sw   t1, 0x200(t0)                  /* who must arrive */
    sw   t1, 0x20c(t0)                  /* who is woken */
    call gl_team
    bnez a0, 3f                         /* nonzero: this core reports the result, in a1 */
    j    2b
3:  li   t0, 0x80000000
    or   a1, a1, t0
    li   t0, SOC_EXIT
    sw   a1, 0(t0)
    j    2b

    .balign 256                         /* mtvec needs it */
    .globl gl_trap
gl_trap:
    li   t0, SOC_EXIT
    li   t1, 0x80000000 | 126
    sw   t1, 0(t0)
    j    2b
