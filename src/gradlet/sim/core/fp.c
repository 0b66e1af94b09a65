#include "fp.h"

static uint64_t double_bits(double value)
{
    uint64_t out;
    __builtin_memcpy(&out, &value, 8);
    return out;
}

static double double_from(uint64_t pattern)
{
    double out;
    __builtin_memcpy(&out, &pattern, 8);
    return out;
}

static double power_of_two(int exponent)
{
    return double_from((uint64_t)(exponent + 1023) << 52);
}

static bool is_finite(double value)
{
    return (double_bits(value) >> 52 & 0x7FF) != 0x7FF;
}

double fp_value(FpFormat format, uint32_t pattern)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1;
    int exponent = (int)(pattern >> format.fraction_bits & ((1u << format.exponent_bits) - 1));
    uint32_t fraction = pattern & ((1u << format.fraction_bits) - 1);
    double sign = pattern & fp_sign_bit(format) ? -1.0 : 1.0;

    if (exponent == (1 << format.exponent_bits) - 1)
        return fraction ? double_from(0x7FF8000000000000ull)
                        : sign * double_from(0x7FF0000000000000ull);
    if (exponent == 0)
        return sign * fraction * power_of_two(1 - bias - format.fraction_bits);
    return sign * (double)(fraction + (1u << format.fraction_bits)) *
           power_of_two(exponent - bias - format.fraction_bits);
}

static bool rounds_up(int mode, bool negative, bool odd, uint64_t rest, uint64_t half)
{
    switch (mode) {
    case ROUND_NEAREST_EVEN: return rest > half || (rest == half && odd);
    case ROUND_NEAREST_AWAY: return rest >= half && rest;
    case ROUND_DOWN: return negative && rest;
    case ROUND_UP: return !negative && rest;
    default: return false;
    }
}

static uint32_t overflow(FpFormat format, int mode, bool negative)
{
    bool to_infinity = mode == ROUND_NEAREST_EVEN || mode == ROUND_NEAREST_AWAY ||
                       (mode == ROUND_UP && !negative) || (mode == ROUND_DOWN && negative);

    return fp_infinity(format) - !to_infinity;
}

uint32_t fp_round(FpFormat format, double value, int mode)
{
    uint64_t pattern = double_bits(value);
    int exponent = (int)(pattern >> 52 & 0x7FF) - 1023;
    uint64_t significand = (pattern & 0xFFFFFFFFFFFFFull) | 1ull << 52, rest, half;
    bool negative = pattern >> 63;
    uint32_t sign = negative ? fp_sign_bit(format) : 0, result;
    int bias = (1 << (format.exponent_bits - 1)) - 1;
    int shift = 52 - format.fraction_bits;
    bool subnormal = exponent < 1 - bias;

    if (value != value)
        return fp_nan(format);
    if (exponent == 1024)
        return sign | fp_infinity(format);
    if (value == 0)
        return sign;
    if (subnormal)
        shift += 1 - bias - exponent;
    if (shift > 62)
        shift = 62; /* nothing but a trace of the value is left */
    half = 1ull << (shift - 1);
    rest = significand & ((1ull << shift) - 1);
    significand >>= shift;
    if (rounds_up(mode, negative, significand & 1, rest, half))
        significand++;
    if (exponent > bias)
        return sign | overflow(format, mode, negative);
    /* A carry out of the significand walks into the exponent, as it should. */
    result = (uint32_t)significand;
    if (!subnormal)
        result += (uint32_t)(exponent + bias - 1) << format.fraction_bits;
    if (result >= fp_infinity(format))
        result = overflow(format, mode, negative);
    return sign | result;
}

/* The sum truncated, with the last bit set if anything was cut off (Boldo and Melquiond). */
double fp_sum_to_odd(double a, double b)
{
    double sum = a + b, from_b = sum - a;
    double error = (a - (sum - from_b)) + (b - from_b);
    uint64_t pattern = double_bits(sum);

    if (!is_finite(sum) || error == 0 || (pattern & 1))
        return sum;
    return double_from((error > 0) == (sum > 0) ? pattern + 1 : pattern - 1);
}

static uint32_t round_sum(FpFormat format, double a, double b, int mode)
{
    double sum = fp_sum_to_odd(a, b);

    /* Opposite terms that cancel give +0, except when rounding down. */
    if (sum == 0 && mode == ROUND_DOWN && double_bits(a) >> 63 != double_bits(b) >> 63)
        return fp_sign_bit(format);
    return fp_round(format, sum, mode);
}

uint32_t fp_add(FpFormat format, uint32_t a, uint32_t b, int mode)
{
    return round_sum(format, fp_value(format, a), fp_value(format, b), mode);
}

uint32_t fp_multiply(FpFormat format, uint32_t a, uint32_t b, int mode)
{
    return fp_round(format, fp_value(format, a) * fp_value(format, b), mode);
}

uint32_t fp_multiply_add(FpFormat format, uint32_t a, uint32_t b, uint32_t c, int mode)
{
    return round_sum(format, fp_value(format, a) * fp_value(format, b), fp_value(format, c),
                     mode);
}

/* The 24 leading bits of a finite nonzero number, and the exponent of the last of them. */
static uint64_t leading_bits(double value, int *exponent)
{
    uint64_t pattern = double_bits(value);

    *exponent = (int)(pattern >> 52 & 0x7FF) - 1023 - 23;
    return (pattern & 0xFFFFFFFFFFFFFull) >> 29 | 1ull << 23;
}

uint32_t fp_divide(FpFormat format, uint32_t a, uint32_t b, int mode)
{
    double x = fp_value(format, a), y = fp_value(format, b), quotient;
    uint64_t dividend, divisor, whole;
    int ex, ey;

    if (!is_finite(x) || !is_finite(y) || x == 0 || y == 0)
        return fp_round(format, x / y, mode); /* exact: zero, infinity or NaN */
    dividend = leading_bits(x, &ex) << 38;
    divisor = leading_bits(y, &ey);
    whole = dividend / divisor | (dividend % divisor != 0);
    quotient = (double)whole * power_of_two(ex - ey - 38);
    return fp_round(format, (x < 0) != (y < 0) ? -quotient : quotient, mode);
}

uint32_t fp_sqrt(FpFormat format, uint32_t a, int mode)
{
    double x = fp_value(format, a);
    uint64_t radicand, root = 0;
    int exponent;

    if (x < 0 || !is_finite(x) || x == 0)
        return x < 0 ? fp_nan(format) : fp_round(format, x, mode);
    radicand = leading_bits(x, &exponent) << 36;
    exponent -= 36;
    if (exponent & 1) {
        radicand >>= 1; /* the last 36 bits are zero: nothing is lost */
        exponent++;
    }
    for (uint64_t bit = 1ull << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= radicand)
            root |= bit;
    root |= root * root != radicand;
    return fp_round(format, (double)root * power_of_two(exponent / 2), mode);
}

static uint32_t choose(FpFormat format, uint32_t a, uint32_t b, bool want_max)
{
    double x = fp_value(format, a), y = fp_value(format, b);
    bool a_is_less = x < y || (x == y && (a & fp_sign_bit(format)));

    if (fp_is_nan(format, a))
        return fp_is_nan(format, b) ? fp_nan(format) : b;
    if (fp_is_nan(format, b))
        return a;
    return a_is_less != want_max ? a : b;
}

uint32_t fp_min(FpFormat format, uint32_t a, uint32_t b)
{
    return choose(format, a, b, false);
}

uint32_t fp_max(FpFormat format, uint32_t a, uint32_t b)
{
    return choose(format, a, b, true);
}

uint32_t fp_class(FpFormat format, uint32_t a)
{
    uint32_t magnitude = a & (fp_sign_bit(format) - 1);
    bool negative = a & fp_sign_bit(format);

    if (fp_is_nan(format, a))
        return a & 1u << (format.fraction_bits - 1) ? 1 << 9 : 1 << 8;
    if (magnitude == fp_infinity(format))
        return negative ? 1 << 0 : 1 << 7;
    if (magnitude >= 1u << format.fraction_bits)
        return negative ? 1 << 1 : 1 << 6;
    if (magnitude)
        return negative ? 1 << 2 : 1 << 5;
    return negative ? 1 << 3 : 1 << 4;
}

/* Saturates; a NaN counts as the largest number. */
int64_t fp_to_integer(FpFormat format, uint32_t a, int64_t low, int64_t high, int mode)
{
    double x = fp_value(format, a), magnitude = x < 0 ? -x : x;
    uint64_t whole, rest, half = 1ull << 31;
    int64_t result;

    if (x != x || x >= 8589934592.0)
        return high;
    if (x <= -8589934592.0)
        return low;
    whole = (uint64_t)magnitude;
    rest = (uint64_t)((magnitude - (double)whole) * 4294967296.0);
    if (rest == 0 && magnitude != (double)whole)
        rest = 1;
    result = (int64_t)(whole + rounds_up(mode, x < 0, whole & 1, rest, half));
    if (x < 0)
        result = -result;
    return result < low ? low : result > high ? high : result;
}

uint32_t fp_from_integer(FpFormat format, int64_t value, int mode)
{
    return fp_round(format, (double)value, mode);
}
