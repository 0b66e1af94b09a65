/* Port: a PULP cluster. Every core runs the same program from main() on and takes its own share;
 * barriers and waiting go through the event unit, which puts a waiting core to sleep. */
#ifndef GL_PORT_H
#define GL_PORT_H

#include "gl.h"
#include "gl_dma_pulp.h"

#define GL_EVENT_UNIT 0x10204000u /* each core sees its own here */
#define GL_STDOUT 0x1a10f000u

static inline int gl_core_id(void)
{
    uint32_t id;
    __asm__("csrr %0, mhartid" : "=r"(id));
    return (int)(id & 31u);
}

static inline uint32_t gl_cycles(void)
{
    uint32_t now;
    __asm__ volatile("csrr %0, mcycle" : "=r"(now)::"memory");
    return now;
}

/* p.elw of the trigger-and-wait register of barrier 0: arrive, sleep, go on together. */
static inline void gl_barrier(void)
{
    uint32_t unused;
    __asm__ volatile(".insn i 0x03, 6, %0, 0x21c(%1)" : "=r"(unused) : "r"(GL_EVENT_UNIT) : "memory");
}

#define GL_EACH_CORE(me) for (gl_core me = {gl_core_id(), GL_CORES}, *gl_now = &me; gl_now; gl_now = 0)
#define GL_BARRIER() gl_barrier()

/* One core does it, the others wait until it is done. */
#define GL_ALONE(statement) \
    do { \
        if (gl_core_id() == 0) { \
            statement; \
        } \
        gl_barrier(); \
    } while (0)

/* One core does it, and the others do not wait. It is the last, which often has the least to do. */
#define GL_ONE(...) \
    do { \
        if (gl_core_id() == GL_CORES - 1) { \
            __VA_ARGS__; \
        } \
    } while (0)

/* The last words of each stack, which nobody may touch; start-up writes them. */
#define GL_GUARD 0x5afe57acu
#define GL_GUARD_WORDS 4
extern char gl_stack[], gl_stacks_end[]; /* gl_stack: not a place, but the bytes of each */
void gl_stack_overflow(void); /* says so, and ends the program */

#define GL_CHECK_STACK() gl_check_stack()
static inline void gl_check_stack(void)
{
    const uintptr_t bytes = (uintptr_t)gl_stack * ((uintptr_t)gl_core_id() + 1);
    const volatile uint32_t *guard = (const volatile uint32_t *)((uintptr_t)gl_stacks_end - bytes);
    uint32_t wrong = guard[0] ^ GL_GUARD;
    for (int i = 1; i < GL_GUARD_WORDS; ++i) wrong |= guard[i] ^ GL_GUARD;
    if (wrong) gl_stack_overflow();
}

/* kind: bss, data, rodata, or sizes of kernel calls. */
#define GL_IN(level, kind) __attribute__((section("." #kind "." #level)))

/* The same for the assembler. kind: data or rodata. */
#define GL_SECTION(level, kind) ".section ." #kind "." #level ",\"" GL_ACCESS_##kind "\",@progbits"
#define GL_ACCESS_data "aw"
#define GL_ACCESS_rodata "a"

static inline void gl_put(char c) { *(volatile uint8_t *)(uintptr_t)(GL_STDOUT + 8u * (uint32_t)gl_core_id()) = (uint8_t)c; }

#endif
