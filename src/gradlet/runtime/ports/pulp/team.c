/* What lies between start-up and main(): the initial contents of L1, and the two functions that
 * compilers call by themselves. */
#include "gl_print.h"

extern char gl_l1_image[], gl_l1_start[], gl_l1_end[];

#define SOC_EXIT 0x1a1040a0u
#define STACK_OVERFLOW 125u /* the exit code; gl_trap has the next */
#define SPEECH 20000u /* cycles to print a line, and more */

int main(void);

static void fill_l1(void)
{
    gl_dma_copy(gl_l1_start, gl_l1_image, (uint32_t)(gl_l1_end - gl_l1_start), 1, 0, GL_DMA_IN);
    gl_dma_wait_all();
}

/* Not every loader does it. */
static void clear_variables(void)
{
    extern char gl_bss[], gl_data_end[];
    __builtin_memset(gl_bss, 0, (uintptr_t)gl_data_end - (uintptr_t)gl_bss);
}

/* Two registers: whether this core speaks for the team, and what main() returned. */
uint64_t gl_team(void);

uint64_t gl_team(void)
{
    gl_barrier();
    gl_dma_open();
    GL_ONE(fill_l1());
    if (gl_core_id() == 0) clear_variables();
    gl_barrier();
    const uint32_t result = (uint32_t)main();
    gl_check_stack();
    gl_barrier();
    return (uint64_t)result << 32 | (gl_core_id() == 0);
}

/* Behind all other code, so that what runs lies where it would without. */
__attribute__((noinline, section(".rare"))) void gl_stack_overflow(void)
{
    /* Others may be here as well: the first is done before the next begins. */
    const uint32_t begin = gl_cycles();
    while (gl_cycles() - begin < SPEECH * (uint32_t)gl_core_id()) {}
    gl_print("core ");
    gl_print_int(gl_core_id());
    gl_print(": its stack of ");
    gl_print_int((int)(uintptr_t)gl_stack);
    gl_print(" bytes has overflowed\n");
    for (;;) *gl_register(SOC_EXIT) = 0x80000000u | STACK_OVERFLOW;
}

void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes);
void *memset(void *to, int value, __SIZE_TYPE__ bytes);

typedef uint32_t __attribute__((may_alias)) word;

void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes)
{
    char *target = to;
    const char *source = from;
    if ((((uintptr_t)target | (uintptr_t)source) & 3u) == 0)
        for (; bytes >= sizeof(word); bytes -= sizeof(word), target += sizeof(word), source += sizeof(word))
            *(word *)target = *(const word *)source;
    for (; bytes > 0; --bytes) *target++ = *source++;
    return to;
}

void *memset(void *to, int value, __SIZE_TYPE__ bytes)
{
    char *target = to;
    const word pattern = 0x01010101u * (unsigned char)value;
    if (((uintptr_t)target & 3u) == 0)
        for (; bytes >= sizeof(word); bytes -= sizeof(word), target += sizeof(word)) *(word *)target = pattern;
    for (; bytes > 0; --bytes) *target++ = (char)value;
    return to;
}
