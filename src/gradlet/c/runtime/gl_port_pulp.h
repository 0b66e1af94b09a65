/* Port: a PULP cluster. Every core runs the same program from main() on and takes its own share;
 * barriers and waiting go through the event unit, which puts a waiting core to sleep. */
#ifndef GL_PORT_H
#define GL_PORT_H

#include "gl.h"

#define GL_EVENT_UNIT 0x10204000u /* each core sees its own here, and its own DMA port behind it */
#define GL_DMA 0x10204400u
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

/* kind: bss, data, rodata, or sizes of kernel calls. */
#define GL_IN(level, kind) __attribute__((section("." #kind "." #level)))

#define GL_DMA_TO_L1 (1u << 17)
#define GL_DMA_LINEAR (1u << 18) /* addresses count up */
#define GL_DMA_MOST 0x1fffcu    /* bytes of one transfer, a multiple of a word */

static inline volatile uint32_t *gl_register(uint32_t address) { return (volatile uint32_t *)(uintptr_t)address; }

/* Starts a copy between L1 and L2 and returns its number; direction is 0 or GL_DMA_TO_L1. */
static inline uint32_t gl_dma_start(void *l1, const void *l2, uint32_t bytes, uint32_t direction)
{
    volatile uint32_t *queue = gl_register(GL_DMA);
    const uint32_t number = *queue;
    __asm__ volatile("" ::: "memory"); /* what was stored so far is to be copied */
    *queue = bytes | direction | GL_DMA_LINEAR;
    *queue = (uint32_t)(uintptr_t)l1;
    *queue = (uint32_t)(uintptr_t)l2;
    return number;
}

static inline void gl_dma_wait(uint32_t number)
{
    volatile uint32_t *status = gl_register(GL_DMA + 4);
    while (*status >> number & 1u) {}
    *status = 1u << number; /* free for others */
    __asm__ volatile("" ::: "memory");
}

static inline void gl_put(char c) { *(volatile uint8_t *)(uintptr_t)(GL_STDOUT + 8u * (uint32_t)gl_core_id()) = (uint8_t)c; }

#endif
