/* The compiler may turn copies and fills into calls.  A build without the C library needs them
 * from here. */
#ifdef GRADLET_FREESTANDING
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);

/* `volatile` keeps the compiler from recognising the loops and calling them again. */
void *memcpy(void *to, const void *from, size_t size)
{
    volatile unsigned char *out = to;
    const unsigned char *in = from;

    for (size_t i = 0; i < size; i++)
        out[i] = in[i];
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    volatile unsigned char *out = to;
    const unsigned char *in = from;

    if (to < from)
        return memcpy(to, from, size);
    for (size_t i = size; i > 0; i--)
        out[i - 1] = in[i - 1];
    return to;
}

void *memset(void *to, int value, size_t size)
{
    volatile unsigned char *out = to;

    for (size_t i = 0; i < size; i++)
        out[i] = (unsigned char)value;
    return to;
}
#else
typedef int freestanding_not_needed; /* ISO C wants a declaration in every file */
#endif
