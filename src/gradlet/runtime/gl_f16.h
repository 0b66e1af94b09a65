/* Half precision in memory, single precision to compute with: the same bits on every machine, with or
 * without instructions for it. A struct, so that nobody computes with the bits by mistake. */
#ifndef GL_F16_H
#define GL_F16_H

#include "gl.h"

typedef struct {
    uint16_t bits;
} gl_f16;

/* The type of a machine that converts by itself. What is no number is left to us: machines differ. */
#if defined(GL_SOFT_HALF)
#elif defined(__F16C__) && defined(__FLT16_MANT_DIG__)
__extension__ typedef _Float16 gl_half;
#define GL_HALF
#elif defined(__ARM_FP16_FORMAT_IEEE) && defined(__ARM_FP) && (__ARM_FP & 2)
__extension__ typedef __fp16 gl_half;
#define GL_HALF
#endif

static inline float gl_f16_load(gl_f16 half)
{
#if defined(GL_XPULP) && !defined(GL_SOFT_HALF)
    uint32_t bits; /* fcvt.s.h */
    __asm__(".insn r 0x53, 0, 0x20, %0, %1, x2" : "=r"(bits) : "r"((uint32_t)half.bits));
    return gl_from_bits(bits);
#elif defined(GL_HALF)
    gl_half number;
    __builtin_memcpy(&number, &half, sizeof number);
    const float value = (float)number;
    return value != value ? gl_nan() : value;
#else
    const uint32_t sign = (uint32_t)(half.bits & 0x8000u) << 16, rest = (uint32_t)(half.bits & 0x7fffu) << 13;
    if (rest > 0x0f800000u) return gl_nan();
    if (rest == 0x0f800000u) return gl_from_bits(sign | 0x7f800000u); /* infinite */
    /* the exponent counts from another number: one exact product, subnormal halves included */
    return gl_from_bits(sign | gl_to_bits(gl_from_bits(rest) * gl_from_bits(0x77800000u)));
#endif
}

/* To the nearest, of two the even one. All that is no number has the same bits. */
static inline gl_f16 gl_f16_store(float value)
{
    gl_f16 result;
#if defined(GL_XPULP) && !defined(GL_SOFT_HALF)
    uint32_t half; /* fcvt.h.s, to the nearest whatever the rounding mode is */
    __asm__(".insn r 0x53, 0, 0x22, %0, %1, x0" : "=r"(half) : "r"(gl_to_bits(value)));
    result.bits = (uint16_t)half;
#elif defined(GL_HALF)
    const gl_half number = (gl_half)value;
    __builtin_memcpy(&result, &number, sizeof result);
    if (value != value) result.bits = 0x7e00u;
#else
    const uint32_t bits = gl_to_bits(value), rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest >= 0x47800000u) /* 65536 and beyond */
        half = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (rest < 0x38800000u) /* subnormal: the sum with 1/2 is rounded where a half ends */
        half = gl_to_bits(gl_from_bits(rest) + 0.5f) - 0x3f000000u;
    else
        half = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    result.bits = (uint16_t)((rest > 0x7f800000u ? 0u : bits >> 16 & 0x8000u) | half);
#endif
    return result;
}

/* a b + c, rounded once. */
static inline gl_f16 gl_f16_fma(gl_f16 a, gl_f16 b, gl_f16 c)
{
    return gl_f16_store(gl_fma_to_odd(gl_f16_load(a), gl_f16_load(b), gl_f16_load(c)));
}

#endif
