/* The inner loops of disturbed runs (interpreter.py, tolerance.py): one pass over each tensor where
 * numpy takes twenty. Both make the same bits; a test holds that. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

static uint32_t bits_of(float value)
{
    union { float value; uint32_t bits; } both = { value };
    return both.bits;
}

/* A number in [-1, 1) by a value and a seed: equal values are rounded alike. */
static double drawn(uint32_t bits, uint64_t seed)
{
    uint64_t mixed = bits + seed;
    mixed ^= mixed >> 30;
    mixed *= 0xBF58476D1CE4E5B9u;
    mixed ^= mixed >> 27;
    mixed *= 0x94D049BB133111EBu;
    return (double)(mixed >> 11) * 0x1p-52 - 1.0;
}

/* out[count] = given[count], rounded to float32 where anything is, plus a draw within the spread. */
EXPORT void disturb(double *out, const double *given, const float *spread, size_t count,
                    double amplitude, uint64_t seed)
{
    for (size_t i = 0; i < count; ++i) {
        const float single = (float)given[i];
        const uint32_t bits = bits_of(single);
        const double size = amplitude * (double)spread[i];
        const int finite = (bits & 0x7F800000u) != 0x7F800000u;
        const int known = size > 0.0 && finite && amplitude >= 1.0;
        out[i] = (known ? (double)single : given[i]) + drawn(bits, seed) * size;
    }
}

/* How far disturbed[count] is from exact[count]: the largest so far, and the sum of squares. An infinite
 * deviation counts as the largest number. Returns how many are no number and should be one: these add
 * nothing. There may be no squares. */
EXPORT size_t scatter(double *largest, double *squares, const double *disturbed, const double *exact,
                      size_t count)
{
    size_t lost = 0;
    for (size_t i = 0; i < count; ++i) {
        double deviation = disturbed[i] - exact[i];
        deviation = deviation < 0.0 ? -deviation : deviation;
        lost += disturbed[i] != disturbed[i] && exact[i] - exact[i] == 0.0;
        deviation = deviation != deviation ? 0.0 : deviation;
        deviation = deviation > 0x1.fffffffffffffp+1023 ? 0x1.fffffffffffffp+1023 : deviation;
        largest[i] = deviation > largest[i] ? deviation : largest[i];
        if (squares) squares[i] += deviation * deviation;
    }
    return lost;
}
