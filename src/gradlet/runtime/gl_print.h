/* Printing without libc: text, whole numbers, floats. The port has gl_put, or stdio does it. Nothing here
 * is worth a copy of it wherever it is called: programs are smaller, and compile in a quarter of the time. */
#ifndef GL_PRINT_H
#define GL_PRINT_H

#include "gl_port.h"

#ifndef GL_DEVICE
#include <stdio.h>
static inline void gl_put(char c) { putchar(c); }
#endif

static __attribute__((noinline, unused)) void gl_print(const char *text)
{
    while (*text) gl_put(*text++);
}

static __attribute__((noinline, unused)) void gl_print_unsigned(uint32_t value)
{
    char digits[10];
    int count = 0;
    do digits[count++] = (char)('0' + value % 10u);
    while ((value /= 10u) > 0);
    while (count > 0) gl_put(digits[--count]);
}

static __attribute__((noinline, unused)) void gl_print_int(int value)
{
    if (value < 0) gl_put('-');
    gl_print_unsigned(value < 0 ? 0u - (uint32_t)value : (uint32_t)value);
}

static __attribute__((noinline, unused)) void gl_print_hex(uint32_t value)
{
    gl_print("0x");
    for (int shift = 28; shift >= 0; shift -= 4) gl_put("0123456789abcdef"[value >> shift & 15u]);
}

/* d.dddddd and an exponent where it is not 0. The last digit may be off by one: for people. */
static __attribute__((noinline, unused)) void gl_print_float(float x)
{
    int exponent = 0;
    if (gl_to_bits(x) >> 31) gl_put('-');
    x = gl_abs(x);
    if (!(x <= 3.40282347e38f)) {
        gl_print(x == x ? "inf" : "nan");
        return;
    }
    for (; x >= 10.0f; ++exponent) x /= 10.0f;
    for (; x > 0.0f && x < 1.0f; --exponent) x *= 10.0f;
    uint32_t digits = (uint32_t)(x * 1e6f + 0.5f);
    if (digits >= 10000000u) {
        digits /= 10u;
        ++exponent;
    }
    gl_print_unsigned(digits / 1000000u);
    gl_put('.');
    for (uint32_t unit = 100000u; unit > 0; unit /= 10u) gl_put((char)('0' + digits / unit % 10u));
    if (exponent == 0) return;
    gl_put('e');
    gl_print_int(exponent);
}

#endif
