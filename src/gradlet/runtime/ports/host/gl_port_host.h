/* Port: one ordinary processor (host, or a single-core MCU). The team's cores run one after the
 * other inside each kernel call, which is all that a barrier has to guarantee. */
#ifndef GL_PORT_H
#define GL_PORT_H

#include "gl.h"
#include "gl_dma_host.h"

#define GL_EACH_CORE(me) for (gl_core me = {0, GL_CORES}; me.id < me.count; ++me.id)
#define GL_BARRIER() ((void)0)
#define GL_CHECK_STACK() ((void)0) /* the system does */
#define GL_ALONE(statement) \
    do { \
        statement; \
    } while (0)
#define GL_ONE(...) \
    do { \
        __VA_ARGS__; \
    } while (0)
#define GL_IN(level, kind) /* one memory: wherever the linker likes */

/* The same for the assembler. kind: data or rodata. */
#define GL_SECTION(level, kind) GL_SECTION_##kind
#define GL_SECTION_data ".data"
#if defined(__ELF__)
#define GL_SECTION_rodata ".section .rodata"
#elif defined(__APPLE__)
#define GL_SECTION_rodata ".const"
#else
#define GL_SECTION_rodata ".section .rdata,\"dr\""
#endif

/* No counter: the differences are 0. */
static inline uint32_t gl_cycles(void) { return 0; }

#endif
