/* The DMA of a PULP cluster: copies between L1 and backing memory, which a core starts and waits for. */
#ifndef GL_DMA_H
#define GL_DMA_H

#include <stdint.h>

#define GL_DMA 0x10204400u /* each core sees its own port here */

static inline volatile uint32_t *gl_register(uint32_t address) { return (volatile uint32_t *)(uintptr_t)address; }

/* Whether it lies in L1. */
static inline int gl_is_in_l1(const void *place) { return (uintptr_t)place >> 24 == 0x10; }

#define GL_DMA_IN (1u << 17)     /* backing memory to L1 */
#define GL_DMA_OUT 0u            /* L1 to backing memory */
#define GL_DMA_LINEAR (1u << 18) /* addresses count up */
#define GL_DMA_2D (1u << 19)     /* of the side of backing memory */
#define GL_DMA_MOST 0x1fffcu     /* bytes of one command, a multiple of a word */
#define GL_DMA_PITCH 0xffffu     /* of the lines of one command, at most */

/* A core does this once, before its first copy: all its commands count on the counter that it gets
 * here, so that none has to be asked for later. The bit of that counter in the status is kept in
 * mscratch, which nothing else needs: there are no interrupts. Start-up does it. */
static inline void gl_dma_open(void)
{
    const uint32_t counter = *gl_register(GL_DMA);
    __asm__ volatile("csrw mscratch, %0" ::"r"(1u << counter));
}

static inline void gl_dma_1d(void *l1, const void *backing, uint32_t bytes, uint32_t direction)
{
    volatile uint32_t *queue = gl_register(GL_DMA);
    *queue = bytes | direction | GL_DMA_LINEAR;
    *queue = (uint32_t)(uintptr_t)l1;
    *queue = (uint32_t)(uintptr_t)backing;
}

static inline void gl_dma_2d(
    void *l1, const void *backing, uint32_t line_bytes, uint32_t lines, uint32_t pitch, uint32_t direction)
{
    volatile uint32_t *queue = gl_register(GL_DMA);
    gl_dma_1d(l1, backing, line_bytes * lines, direction | GL_DMA_2D);
    *queue = line_bytes;
    *queue = pitch;
}

/* What one command cannot do: as many lines as it takes, or parts of a line. */
static inline __attribute__((noinline)) void gl_dma_commands(
    char *l1, const char *backing, uint32_t line_bytes, uint32_t lines, uint32_t pitch, uint32_t direction)
{
    if (pitch == line_bytes) {
        line_bytes *= lines;
        lines = 1;
    }
    if (lines > 1 && pitch <= GL_DMA_PITCH) {
        const uint32_t most = GL_DMA_MOST / line_bytes;
        for (; lines > most; lines -= most, l1 += most * line_bytes, backing += most * pitch)
            gl_dma_2d(l1, backing, line_bytes, most, pitch, direction);
        gl_dma_2d(l1, backing, line_bytes, lines, pitch, direction);
        return;
    }
    for (; lines > 0; --lines, l1 += line_bytes, backing += pitch)
        for (uint32_t done = 0; done < line_bytes; done += GL_DMA_MOST) {
            const uint32_t left = line_bytes - done;
            gl_dma_1d(l1 + done, backing + done, left < GL_DMA_MOST ? left : GL_DMA_MOST, direction);
        }
}

/* Starts a copy of `lines` lines, which lie one behind the other in L1 and `pitch` bytes from
 * start to start in backing memory; direction is GL_DMA_IN or GL_DMA_OUT. Copies that are under way
 * have no order among each other. A core whose queue is full waits until there is room. */
static inline void gl_dma_copy(
    void *l1, const void *backing, uint32_t line_bytes, uint32_t lines, uint32_t pitch, uint32_t direction)
{
    const uint32_t bytes = line_bytes * lines;
    __asm__ volatile("" ::: "memory"); /* what was stored so far is to be copied */
    if (bytes - 1 >= GL_DMA_MOST || pitch > GL_DMA_PITCH) {
        if (bytes > 0) gl_dma_commands(l1, backing, line_bytes, lines, pitch, direction);
        return;
    }
    const uint32_t single = lines == 1;
    gl_dma_1d(l1, backing, bytes, single ? direction : direction | GL_DMA_2D);
    if (single) return;
    volatile uint32_t *queue = gl_register(GL_DMA);
    *queue = line_bytes;
    *queue = pitch;
}

/* Returns when no copy of this core is under way any more. Polling disturbs nobody, as no memory
 * bank is asked, and is back sooner than a core that has to wake up. */
static inline void gl_dma_wait_all(void)
{
    volatile uint32_t *status = gl_register(GL_DMA + 4);
    uint32_t own;
    __asm__ volatile("csrr %0, mscratch" : "=r"(own));
    while (*status & own) {}
    __asm__ volatile("" ::: "memory");
}

#endif
