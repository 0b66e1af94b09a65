/* Port: one ordinary processor (host, or a single-core MCU). The team's cores run one after the
 * other inside each kernel call, which is all that a barrier has to guarantee. */
#ifndef GL_PORT_H
#define GL_PORT_H

#include "gl.h"

#define GL_EACH_CORE(me) for (gl_core me = {0, GL_CORES}; me.id < me.count; ++me.id)
#define GL_BARRIER() ((void)0)
#define GL_ALONE(statement) \
    do { \
        statement; \
    } while (0)
#define GL_ONE(...) \
    do { \
        __VA_ARGS__; \
    } while (0)
#define GL_IN(level, kind) /* one memory: wherever the linker likes */

#define GL_DMA_IN 1u  /* far memory to near */
#define GL_DMA_OUT 0u /* near memory to far */

/* Copies lines that lie one behind the other in near memory and `far_pitch` bytes from start to
 * start in far memory: at once, so that there is nothing to wait for. */
static inline void gl_dma_copy(
    void *near, const void *far, uint32_t line_bytes, uint32_t lines, uint32_t far_pitch, uint32_t direction)
{
    char *close = near, *distant = (char *)(uintptr_t)far;
    for (; lines > 0; --lines, close += line_bytes, distant += far_pitch)
        for (uint32_t i = 0; i < line_bytes; ++i) {
            if (direction == GL_DMA_IN)
                close[i] = distant[i];
            else
                distant[i] = close[i];
        }
}

static inline void gl_dma_wait_all(void) {}

/* No counter: the differences are 0. */
static inline uint32_t gl_cycles(void) { return 0; }

#endif
