/* bfloat16 in memory, single precision to compute with: the upper half of a float. The same bits on every
 * machine. A struct, so that nobody computes with the bits by mistake. */
#ifndef GL_BF16_H
#define GL_BF16_H

#include "gl.h"

typedef struct {
    uint16_t bits;
} gl_bf16;

static inline float gl_bf16_load(gl_bf16 half) { return gl_from_bits((uint32_t)half.bits << 16); }

/* To the nearest, of two the even one. All that is no number has the same bits. */
static inline gl_bf16 gl_bf16_store(float value)
{
    gl_bf16 half;
#if defined(GL_XPULP) && !defined(GL_SOFT_HALF)
    uint32_t bits; /* fcvt.ah.s, in the rounding mode of the core, which nobody changes: to the nearest */
    __asm__(".insn r 0x53, 5, 0x22, %0, %1, x0" : "=r"(bits) : "r"(gl_to_bits(value)));
    half.bits = (uint16_t)bits;
#else
    const uint32_t bits = gl_to_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    half.bits = (uint16_t)(value != value ? 0x7fc0u : rounded);
#endif
    return half;
}

/* a b + c, rounded once. */
static inline gl_bf16 gl_bf16_fma(gl_bf16 a, gl_bf16 b, gl_bf16 c)
{
    return gl_bf16_store(gl_fma_to_odd(gl_bf16_load(a), gl_bf16_load(b), gl_bf16_load(c)));
}

#endif
