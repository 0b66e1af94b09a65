/* Calls one kernel after the other, for a machine that stops the cores at gl_runner_wait: there it
 * says which function comes next, and with what. The arguments are in their registers before the
 * clock runs, as a network has them among its constants. */
#include "gl_port.h"

#define ARGUMENTS 16
#define MOST_CORES 16

typedef struct {
    uint32_t function, arguments[ARGUMENTS], cycles[MOST_CORES];
} runner;

runner gl_runner GL_IN(L1, bss);

void gl_runner_wait(void);

__attribute__((noinline)) void gl_runner_wait(void) { __asm__ volatile("" ::: "memory"); }

/* Cycles from one barrier, through function(id, cores, arguments...), to past the next. */
__attribute__((naked, noinline, used)) static uint32_t timed_call(int id, int cores, const runner *job)
{
    __asm__ volatile(
        "addi sp, sp, -64\n"
        "sw ra, 60(sp)\n sw s0, 56(sp)\n sw s1, 52(sp)\n sw s2, 48(sp)\n"
        "mv t0, a2\n"
        "lw s0, 0(t0)\n"
        "lw a2, 4(t0)\n lw a3, 8(t0)\n lw a4, 12(t0)\n"
        "lw a5, 16(t0)\n lw a6, 20(t0)\n lw a7, 24(t0)\n"
        "lw t1, 28(t0)\n sw t1, 0(sp)\n lw t1, 32(t0)\n sw t1, 4(sp)\n"
        "lw t1, 36(t0)\n sw t1, 8(sp)\n lw t1, 40(t0)\n sw t1, 12(sp)\n"
        "lw t1, 44(t0)\n sw t1, 16(sp)\n lw t1, 48(t0)\n sw t1, 20(sp)\n"
        "lw t1, 52(t0)\n sw t1, 24(sp)\n lw t1, 56(t0)\n sw t1, 28(sp)\n"
        "lw t1, 60(t0)\n sw t1, 32(sp)\n lw t1, 64(t0)\n sw t1, 36(sp)\n"
        "li s1, 0x1020421c\n"
        ".balign 16\n"
        ".insn i 0x03, 6, t0, 0(s1)\n"
        ".globl gl_runner_go\n gl_runner_go:\n"
        "csrr s2, mcycle\n"
        "jalr s0\n"
        ".insn i 0x03, 6, t0, 0(s1)\n"
        ".globl gl_runner_end\n gl_runner_end:\n"
        "csrr a0, mcycle\n"
        "sub a0, a0, s2\n"
        "lw ra, 60(sp)\n lw s0, 56(sp)\n lw s1, 52(sp)\n lw s2, 48(sp)\n"
        "addi sp, sp, 64\n"
        "ret\n");
}

int main(void)
{
    const int id = gl_core_id();
    for (;;) {
        gl_runner_wait();
        gl_barrier();
        gl_runner.cycles[id] = timed_call(id, GL_CORES, &gl_runner);
    }
}
