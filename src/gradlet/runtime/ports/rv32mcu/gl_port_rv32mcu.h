/* Port: a microcontroller with one RV32 core and one memory. There is nobody to wait for, and the
 * core itself copies what others would leave to a DMA. */
#ifndef GL_PORT_H
#define GL_PORT_H

#define GL_STDOUT 0x1a10f000u

#include "gl.h"
#include "gl_dma_host.h"

#define GL_EACH_CORE(me) for (gl_core me = {0, GL_CORES}; me.id < me.count; ++me.id)
#define GL_BARRIER() ((void)0)
#define GL_ALONE(...) GL_ONE(__VA_ARGS__)
#define GL_ONE(...) \
    do { \
        __VA_ARGS__; \
    } while (0)

static inline uint32_t gl_cycles(void)
{
    uint32_t cycles;
    __asm__ volatile("csrr %0, mcycle" : "=r"(cycles)::"memory");
    return cycles;
}

/* The last words of the stack, which nobody may touch; start-up writes them. */
#define GL_GUARD 0x5afe57acu
extern const volatile uint32_t gl_stack_guard[4];
void gl_stack_overflow(void); /* says so, and ends the program */

#define GL_CHECK_STACK() gl_check_stack()
static inline void gl_check_stack(void)
{
    for (int i = 0; i < 4; ++i)
        if (gl_stack_guard[i] != GL_GUARD) gl_stack_overflow();
}

/* Data of the plan lie apart from variables of the program; the one memory needs no name. kind: bss,
 * data, rodata, or sizes of kernel calls. */
#define GL_IN(level, kind) __attribute__((section("." #kind ".plan")))

/* The same for the assembler. kind: data or rodata. */
#define GL_SECTION(level, kind) GL_SECTION_##kind
#define GL_SECTION_data ".section .data.plan,\"aw\",@progbits"
#define GL_SECTION_rodata ".section .rodata.plan,\"a\",@progbits"

static inline void gl_put(char c) { *(volatile uint8_t *)(uintptr_t)GL_STDOUT = (uint8_t)c; }

#endif
