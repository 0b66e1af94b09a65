/* Binary floating point of any small format, in any rounding mode.
 *
 * Every operand is exact in a double.  Sums and products are formed in double rounded to odd,
 * from which one more rounding to the target format is always the correct one. */
#ifndef GRADLET_FP_H
#define GRADLET_FP_H

#include "sim.h"

typedef struct {
    int exponent_bits, fraction_bits;
} FpFormat;

enum { ROUND_NEAREST_EVEN, ROUND_TO_ZERO, ROUND_DOWN, ROUND_UP, ROUND_NEAREST_AWAY,
       ROUND_DYNAMIC = 7 };

static const FpFormat FP_SINGLE = {8, 23}, FP_HALF = {5, 10}, FP_BFLOAT = {8, 7};

double fp_value(FpFormat format, uint32_t bits);
uint32_t fp_round(FpFormat format, double value, int mode);
uint32_t fp_add(FpFormat format, uint32_t a, uint32_t b, int mode);
uint32_t fp_multiply_add(FpFormat format, uint32_t a, uint32_t b, uint32_t c, int mode);
uint32_t fp_multiply(FpFormat format, uint32_t a, uint32_t b, int mode);
uint32_t fp_divide(FpFormat format, uint32_t a, uint32_t b, int mode);
uint32_t fp_sqrt(FpFormat format, uint32_t a, int mode);
uint32_t fp_min(FpFormat format, uint32_t a, uint32_t b);
uint32_t fp_max(FpFormat format, uint32_t a, uint32_t b);
uint32_t fp_class(FpFormat format, uint32_t a);
int64_t fp_to_integer(FpFormat format, uint32_t a, int64_t low, int64_t high, int mode);
uint32_t fp_from_integer(FpFormat format, int64_t value, int mode);

/* Of the two formats of 16 bits, the one of this instruction. */
static inline FpFormat format_of(const Insn *insn)
{
    return insn->rd_is_bfloat ? FP_BFLOAT : FP_HALF;
}

/* Faults on the modes that do not exist, which a program can only select dynamically. */
static inline int rounding_mode(Core *core, int32_t field)
{
    uint32_t mode = field == ROUND_DYNAMIC ? core->frm : (uint32_t)field;

    if (mode > ROUND_NEAREST_AWAY)
        fault(core, FAULT_ILLEGAL, core->current_pc, 0);
    return (int)mode;
}

static inline uint32_t fp_sign_bit(FpFormat format)
{
    return 1u << (format.exponent_bits + format.fraction_bits);
}

static inline uint32_t fp_infinity(FpFormat format)
{
    return ((1u << format.exponent_bits) - 1) << format.fraction_bits;
}

static inline uint32_t fp_nan(FpFormat format)
{
    return fp_infinity(format) | 1u << (format.fraction_bits - 1);
}

static inline bool fp_is_nan(FpFormat format, uint32_t bits)
{
    return (bits & (fp_sign_bit(format) - 1)) > fp_infinity(format);
}

static inline float float_of(uint32_t bits)
{
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

/* A result of the host's arithmetic, with the one NaN that RISC-V produces. */
static inline uint32_t result_of(float value)
{
    return LIKELY(value == value) ? bits_of(value) : 0x7FC00000u;
}

double fp_sum_to_odd(double a, double b);

/* a * b + c of single-precision numbers, rounded once. */
static inline float fused(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return (float)fp_sum_to_odd((double)a * (double)b, (double)c);
#endif
}

#endif
