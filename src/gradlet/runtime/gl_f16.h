/* Half precision in memory, single precision to compute with: the same bits on every machine, with or
 * without instructions for it. A struct, so that nobody computes with the bits by mistake. */
#ifndef GL_F16_H
#define GL_F16_H

#include "gl.h"

typedef struct {
    uint16_t bits;
} gl_f16;

static inline float gl_f16_load(gl_f16 half)
{
    const uint32_t sign = (uint32_t)(half.bits & 0x8000u) << 16, rest = (uint32_t)(half.bits & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) return gl_from_bits(sign | 0x7f800000u | rest); /* infinite, or no number */
    /* the exponent counts from another number: one exact product, subnormal halves included */
    return gl_from_bits(sign | gl_to_bits(gl_from_bits(rest) * gl_from_bits(0x77800000u)));
}

/* To the nearest, of two the even one. All that is no number has the same bits. */
static inline gl_f16 gl_f16_store(float value)
{
    const uint32_t bits = gl_to_bits(value), rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest >= 0x47800000u) /* 65536 and beyond */
        half = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (rest < 0x38800000u) /* subnormal: the sum with 1/2 is rounded where a half ends */
        half = gl_to_bits(gl_from_bits(rest) + 0.5f) - 0x3f000000u;
    else
        half = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    const gl_f16 result = {(uint16_t)((rest > 0x7f800000u ? 0u : bits >> 16 & 0x8000u) | half)};
    return result;
}

#endif
