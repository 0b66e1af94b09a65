/* What lies between start-up and main(), and the two functions that compilers call by themselves. */
#include "gl_print.h"

#define SOC_EXIT 0x1a1040a0u
#define STACK_OVERFLOW 125u /* the exit code; gl_trap has the next */

int main(void);
int gl_start(void);

int gl_start(void)
{
    extern char gl_bss[], gl_data_end[];
    for (char *at = gl_bss; at < gl_data_end; ++at) *at = 0; /* not every loader does it */
    const int result = main();
    gl_check_stack();
    return result;
}

void gl_stack_overflow(void)
{
    gl_print("the stack has overflowed\n");
    for (;;) *(volatile uint32_t *)(uintptr_t)SOC_EXIT = 0x80000000u | STACK_OVERFLOW;
}

void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes);
void *memset(void *to, int value, __SIZE_TYPE__ bytes);

void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes)
{
    for (__SIZE_TYPE__ i = 0; i < bytes; ++i) ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int value, __SIZE_TYPE__ bytes)
{
    for (__SIZE_TYPE__ i = 0; i < bytes; ++i) ((char *)to)[i] = (char)value;
    return to;
}
