/* Gradlet runtime: what every kernel may use. Header only; no libc, no globals.
 *
 * A kernel is called by every core of the team and takes its own share of the work by core id. It
 * never waits for another core: barriers stand between kernels. On one processor the port calls it
 * once per virtual core, so that the result has the same bits as on a real team. */
#ifndef GL_H
#define GL_H

#include <stdint.h>

#ifndef GL_CORES
#define GL_CORES 1
#endif

/* For code that runs once per call: on a device, fetching it costs more than running it. */
#if defined(__clang__) && defined(GL_DEVICE)
#define GL_COMPACT __attribute__((minsize))
#else
#define GL_COMPACT
#endif
#define GL_INLINE GL_COMPACT static inline __attribute__((always_inline))

#ifdef GL_XPULP
/* Kernels in assembler are single strings, longer than a compiler of 1999 had to take. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* Calls assembler that saves nothing but sp, so that its caller saves once what many calls would. The
 * label tells stack_use that it calls nothing itself. */
static inline void gl_call(uintptr_t function, void *argument)
{
    register void *a0 __asm__("a0") = argument;
    register uintptr_t a1 __asm__("a1") = function;
    __asm__ volatile("gl_call_site%=: jalr %1"
                     : "+r"(a0), "+r"(a1)::"memory", "ra", "gp", "tp", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "a2",
                       "a3", "a4", "a5", "a6", "a7", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10",
                       "s11");
}
#endif

typedef struct {
    int id;
    int count;
} gl_core;

typedef struct {
    int begin;
    int end;
} gl_range;

static inline int gl_min(int a, int b) { return a < b ? a : b; }
static inline int gl_max(int a, int b) { return a > b ? a : b; }

/* The part of 0..n-1 that belongs to this core: equal blocks, the last ones shorter or empty. */
GL_INLINE gl_range gl_share(gl_core me, int n)
{
    const int block = me.count == 8 ? (n + 7) >> 3 : (n + me.count - 1) / me.count; /* a division is dear */
    const gl_range share = {gl_min(me.id * block, n), gl_min((me.id + 1) * block, n)};
    return share;
}

/* Smallest integer >= a / b for b > 0 and any sign of a. */
static inline int gl_ceil_div(int a, int b) { return a >= 0 ? (a + b - 1) / b : -((-a) / b); }

/* Which taps of a window touch input `at` (padding included), and the outputs they belong to: tap
 * first, first + step, ... before end; output o, o - o_step, ... in the same order. */
typedef struct {
    int first, end, step, o, o_step;
} gl_taps;

static inline gl_taps gl_taps_of(int at, int kernel, int dilation, int stride, int out)
{
    gl_taps taps = {0, 0, 1, 0, 1};
    if (stride == 1 && dilation == 1) { /* the usual case, without a division */
        taps.first = gl_max(0, at - out + 1);
        taps.end = gl_min(kernel, at + 1);
        taps.o = at - taps.first;
        return taps;
    }
    for (int k = 0, count = 0; k < kernel && at - k * dilation >= 0; ++k) {
        const int down = at - k * dilation, o = down / stride;
        if (o * stride != down || o >= out) continue;
        if (count == 0) {
            taps.first = k;
            taps.o = o;
        } else if (count == 1) {
            taps.step = k - taps.first;
            taps.o_step = taps.o - o;
        }
        taps.end = k + 1;
        ++count;
    }
    return taps;
}

/* a*b + c with one rounding, on every machine. */
static inline float gl_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

static inline float gl_from_bits(uint32_t bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

/* The same bits everywhere; what arithmetic makes of NaN differs between machines. */
static inline float gl_nan(void) { return gl_from_bits(0x7fc00000u); }

static inline uint32_t gl_to_bits(float value)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(x): x = n*ln2 + r, Taylor series of degree 7 in r, then 2^n in two exact steps.
 * Below -103.97 the result is 0, above 88.73 it is infinite; NaN stays NaN. */
static inline float gl_exp(float x)
{
    if (x != x) return x;
    if (x > 88.7228394f) return gl_from_bits(0x7f800000u);
    if (x < -103.972084f) return 0.0f;
    const int n = (int)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    float r = gl_fma((float)n, -0.693359375f, x);
    r = gl_fma((float)n, 2.12194440e-4f, r);
    float p = 1.98412698e-4f;
    p = gl_fma(p, r, 1.38888889e-3f);
    p = gl_fma(p, r, 8.33333333e-3f);
    p = gl_fma(p, r, 4.16666667e-2f);
    p = gl_fma(p, r, 1.66666667e-1f);
    p = gl_fma(p, r, 0.5f);
    p = gl_fma(p, r, 1.0f);
    p = gl_fma(p, r, 1.0f);
    const int half = n / 2;
    const float low = gl_from_bits((uint32_t)(half + 127) << 23);
    const float high = gl_from_bits((uint32_t)(n - half + 127) << 23);
    return p * low * high;
}

/* log(x) for x > 0: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), then the series of atanh.
 * log(0) is -infinity, a negative x or NaN gives NaN, infinity stays. */
static inline float gl_log(float x)
{
    if (!(x > 0.0f)) return gl_from_bits(x == 0.0f ? 0xff800000u : 0x7fc00000u);
    uint32_t bits = gl_to_bits(x);
    if (bits == 0x7f800000u) return x;
    int e = 0;
    if (bits < 0x00800000u) { /* subnormal: make it normal first */
        bits = gl_to_bits(x * 8388608.0f);
        e = -23;
    }
    e += (int)(bits >> 23) - 127;
    float m = gl_from_bits((bits & 0x007fffffu) | 0x3f800000u);
    if (m > 1.41421356f) {
        m *= 0.5f;
        e += 1;
    }
    const float f = m - 1.0f;
    const float s = f / (2.0f + f);
    const float z = s * s;
    float p = 0.111111111f;
    p = gl_fma(p, z, 0.142857143f);
    p = gl_fma(p, z, 0.2f);
    p = gl_fma(p, z, 0.333333333f);
    const float tail = gl_fma(s + s, p * z, (float)e * -2.12194440e-4f);
    return gl_fma((float)e, 0.693359375f, (s + s) + tail);
}

/* exp(x) - 1 without cancellation: the series of e^r - 1, then 2^n * (that + 1) - 1. */
static inline float gl_expm1(float x)
{
    if (!(x <= 80.0f)) return gl_exp(x); /* NaN, or so large that the 1 does not matter */
    if (x < -17.4f) return -1.0f;
    const int n = (int)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    float r = gl_fma((float)n, -0.693359375f, x);
    r = gl_fma((float)n, 2.12194440e-4f, r);
    float p = 1.98412698e-4f;
    p = gl_fma(p, r, 1.38888889e-3f);
    p = gl_fma(p, r, 8.33333333e-3f);
    p = gl_fma(p, r, 4.16666667e-2f);
    p = gl_fma(p, r, 1.66666667e-1f);
    p = gl_fma(p, r, 0.5f);
    p = gl_fma(p, r * r, r);
    const float scale = gl_from_bits((uint32_t)(n + 127) << 23);
    return n == 0 ? p : gl_fma(scale, p, scale - 1.0f);
}

/* log(1 + u) for u >= 0 without losing a small u. */
static inline float gl_log1p(float u)
{
    if (!(u < 0.41421356f)) return gl_log(1.0f + u);
    const float s = u / (2.0f + u);
    const float z = s * s;
    float p = 0.111111111f;
    p = gl_fma(p, z, 0.142857143f);
    p = gl_fma(p, z, 0.2f);
    p = gl_fma(p, z, 0.333333333f);
    return gl_fma(s + s, p * z, s + s);
}

static inline float gl_abs(float x) { return gl_from_bits(gl_to_bits(x) & 0x7fffffffu); }

/* The whole number next to x, the even one of two; beyond 2^23 there are no others. */
static inline float gl_round(float x)
{
    const float a = gl_abs(x);
    const float y = a < 8388608.0f ? (a + 8388608.0f) - 8388608.0f : a;
    return gl_from_bits(gl_to_bits(y) | (gl_to_bits(x) & 0x80000000u));
}

/* x without its fraction. */
static inline float gl_trunc(float x)
{
    const float y = gl_abs(x) < 8388608.0f ? (float)(int)x : x;
    return gl_from_bits(gl_to_bits(y) | (gl_to_bits(x) & 0x80000000u));
}

static inline float gl_floor(float x)
{
    const float y = gl_trunc(x);
    return y > x ? y - 1.0f : y;
}

static inline float gl_ceil(float x) { return -gl_floor(-x); }

/* The square root, rounded correctly on every machine; an instruction, where errno is not asked for. */
static inline float gl_sqrt(float x) { return __builtin_sqrtf(x); }

/* 1 / (1 + exp(-x)) */
static inline float gl_sigmoid(float x)
{
    const float e = gl_exp(-gl_abs(x));
    const float s = 1.0f / (1.0f + e);
    return x < 0.0f ? e * s : s;
}

static inline float gl_tanh(float x)
{
    const float a = gl_abs(x);
    const float t = gl_expm1(a + a);
    const float y = a > 9.1f ? 1.0f : t / (t + 2.0f);
    return x < 0.0f ? -y : y;
}

/* exp(-x*x / 2), with what the square loses put back. */
static inline float gl_exp_half_square(float x)
{
    const float square = x * x;
    if (!(square < 1e4f)) return square != square ? square : 0.0f;
    const float lost = gl_fma(x, x, -square);
    const float e = gl_exp(-0.5f * square);
    return gl_fma(-0.5f * lost, e, e);
}

/* exp(x*x) * erfc(x) for x >= 0: t * P(t) with t = 1 / (1 + 0.4 x). */
static inline float gl_erfcx(float x)
{
    const float t = 1.0f / gl_fma(0.4f, x, 1.0f);
    float p = -0.0200335961f;
    p = gl_fma(p, t, 0.0874783531f);
    p = gl_fma(p, t, -0.101983840f);
    p = gl_fma(p, t, -0.0557112461f);
    p = gl_fma(p, t, 0.130444050f);
    p = gl_fma(p, t, -0.0235819453f);
    p = gl_fma(p, t, 0.162488189f);
    p = gl_fma(p, t, 0.160180090f);
    p = gl_fma(p, t, 0.209543296f);
    p = gl_fma(p, t, 0.225493384f);
    p = gl_fma(p, t, 0.225683262f);
    return p * t;
}

static inline float gl_erf(float x)
{
    const float a = gl_abs(x);
    if (a < 1.0f) {
        const float z = x * x;
        float p = -9.64151553e-6f;
        p = gl_fma(p, z, 1.12569477e-4f);
        p = gl_fma(p, z, -8.48282882e-4f);
        p = gl_fma(p, z, 5.22094543e-3f);
        p = gl_fma(p, z, -2.68654000e-2f);
        p = gl_fma(p, z, 1.12837820e-1f);
        p = gl_fma(p, z, -3.76126384e-1f);
        p = gl_fma(p, z, 1.12837917f);
        return p * x;
    }
    const float y = a < 4.0f ? 1.0f - gl_exp(-a * a) * gl_erfcx(a) : (a != a ? a : 1.0f);
    return x < 0.0f ? -y : y;
}

/* The normal distribution function (1 + erf(x / sqrt 2)) / 2, also far out on the left. */
static inline float gl_normal(float x)
{
    const float a = gl_abs(x);
    const float tail = 0.5f * gl_exp_half_square(a) * gl_erfcx(a * 0.707106781f);
    return x < 0.0f ? tail : 1.0f - tail;
}

/* x as r + quarter * pi/2 with |r| <= pi/4, for any finite x. 2/pi is written out to 224 bits; of these,
 * 96 decide: the bits above only count whole turns, the bits below are too small to be seen. */
static inline float gl_quarter(float x, int *quarter)
{
    static const uint32_t digits[8] = {0u,          0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                       0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    const uint32_t bits = gl_to_bits(x) & 0x7fffffffu;
    *quarter = 0;
    if (bits <= 0x3f490fdau) return x; /* up to pi/4 */
    /* x = mantissa * 2^(at - 32): digits from bit `at` on, the first two of which count quarters */
    const uint32_t at = (bits >> 23) - 120u, word = at >> 5, shift = at & 31u;
    const uint64_t mantissa = (bits & 0x007fffffu) | 0x00800000u;
    uint32_t window[3];
    for (int i = 0; i < 3; ++i) {
        const uint32_t low = shift ? digits[word + (uint32_t)i + 1u] >> (32u - shift) : 0u;
        window[i] = (digits[word + (uint32_t)i] << shift) | low;
    }
    uint64_t product = (mantissa * window[2] >> 32) + mantissa * window[1];
    product += (uint64_t)((uint32_t)mantissa * window[0]) << 32;
    const uint32_t high = (uint32_t)(product >> 32);
    const uint32_t whole = (high + 0x20000000u) >> 30; /* the nearest quarter; 4 of them are none */
    const float rest = (float)(int32_t)(high - (whole << 30)) * 1.46291807927e-9f;
    const float r = gl_fma((float)(uint32_t)product, 3.40612158001e-19f, rest);
    *quarter = (int)(x < 0.0f ? 4u - (whole & 3u) : whole) & 3;
    return x < 0.0f ? -r : r;
}

/* Taylor series of both on -pi/4 .. pi/4. */
static inline float gl_sin_near(float r)
{
    const float z = r * r;
    float p = 2.75573192e-6f;
    p = gl_fma(p, z, -1.98412698e-4f);
    p = gl_fma(p, z, 8.33333333e-3f);
    p = gl_fma(p, z, -1.66666667e-1f);
    return gl_fma(p * z, r, r);
}

static inline float gl_cos_near(float r)
{
    const float z = r * r;
    float p = -2.75573192e-7f;
    p = gl_fma(p, z, 2.48015873e-5f);
    p = gl_fma(p, z, -1.38888889e-3f);
    p = gl_fma(p, z, 4.16666667e-2f);
    p = gl_fma(p, z, -0.5f);
    return gl_fma(p, z, 1.0f);
}

static inline float gl_turned(float x, int ahead)
{
    if (!(gl_abs(x) <= 3.40282347e38f)) return gl_nan();
    int quarter;
    const float r = gl_quarter(x, &quarter);
    const int place = (quarter + ahead) & 3;
    const float y = place & 1 ? gl_cos_near(r) : gl_sin_near(r);
    return place & 2 ? -y : y;
}

/* sin(x) and cos(x), as good far out as near 0; NaN of what is infinite. */
static inline float gl_sin(float x) { return gl_turned(x, 0); }
static inline float gl_cos(float x) { return gl_turned(x, 1); }

/* The angle of a slope: by its inverse beyond 1, around pi/4 beyond tan(pi/8). */
static inline float gl_atan(float x)
{
    const float a = gl_abs(x), inner = a > 1.0f ? 1.0f / a : a;
    const float turn = inner > 0.414213562f ? 0.785398163f : 0.0f;
    const float t = inner > 0.414213562f ? (inner - 1.0f) / (inner + 1.0f) : inner;
    const float z = t * t;
    float p = 0.0588235294f;
    p = gl_fma(p, z, -0.0666666667f);
    p = gl_fma(p, z, 0.0769230769f);
    p = gl_fma(p, z, -0.0909090909f);
    p = gl_fma(p, z, 0.111111111f);
    p = gl_fma(p, z, -0.142857143f);
    p = gl_fma(p, z, 0.2f);
    p = gl_fma(p, z, -0.333333333f);
    const float near = turn + gl_fma(p * z, t, t);
    const float y = a > 1.0f ? 1.57079633f - near : near;
    return x < 0.0f ? -y : y;
}

/* x^n by squaring; a negative n is the reciprocal. */
static inline float gl_power(float x, int n)
{
    float result = 1.0f;
    for (int rest = n < 0 ? -n : n; rest > 0; rest >>= 1) {
        if (rest & 1) result *= x;
        x *= x;
    }
    return n < 0 ? 1.0f / result : result;
}

/* 0 for what is negative; a NaN stays. */
static inline float gl_relu(float x) { return x <= 0.0f ? 0.0f : x; }

/* a b + c of numbers of 16 bits, whose products are exact in double precision; the last bit is 1 where
 * something was lost, so that rounding to a shorter number comes out as if there had been one alone. */
static inline float gl_fma_to_odd(float a, float b, float c)
{
    union {
        double number;
        uint64_t bits;
    } sum = {(double)a * b + c};
    if (sum.number - sum.number != 0.0) return (float)sum.number; /* infinite, or no number */
    const double product = (double)a * b, back = sum.number - product;
    const double lost = (product - (sum.number - back)) + (c - back);
    if (lost != 0.0 && (sum.bits & 1) == 0) sum.bits += (lost > 0.0) == (sum.number > 0.0) ? 1 : (uint64_t)-1;
    const float near = (float)sum.number;
    if ((double)near == sum.number) return near;
    const uint32_t bits = gl_to_bits(near), beyond = gl_abs(near) > (sum.number < 0.0 ? -sum.number : sum.number);
    return gl_from_bits((bits - beyond) | 1u);
}

/* w - lr * (g + decay * w): one SGD step of one weight, the same wherever it is fused. */
static inline float gl_sgd_step(float w, float g, const float *hyper)
{
    return gl_fma(-hyper[0], gl_fma(hyper[1], w, g), w);
}

/* The same with momentum; the moment is replaced. hyper = rate, decay, momentum, Nesterov or not. */
static inline float gl_momentum_step(float w, float g, float *moment, const float *hyper)
{
    const float slope = gl_fma(hyper[1], w, g);
    *moment = gl_fma(hyper[2], *moment, slope);
    return gl_fma(-hyper[0], hyper[3] != 0.0f ? gl_fma(hyper[2], *moment, slope) : *moment, w);
}

#endif
