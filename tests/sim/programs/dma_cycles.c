/* Prints the cycles of copies, one after the other and several under way, and a sum of what came. */
#include "gl_print.h"

#define WORDS 8192
uint32_t near_data[WORDS] GL_IN(L1, bss);
uint32_t far_data[4 * WORDS] GL_IN(L2, bss);

static const uint16_t shapes[][3] = {
    /* bytes of a line, lines, pitch */
    {4, 1, 4}, {100, 1, 100}, {1024, 1, 1024}, {16384, 1, 16384}, {4, 100, 8},
    {60, 40, 64}, {512, 8, 1024}, {64, 1, 64}, {0, 1, 64}, {300, 50, 400},
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static uint32_t start(uint32_t i, uint32_t direction, uint32_t place)
{
    const uint32_t begin = gl_cycles();
    gl_dma_copy(near_data + place, far_data + place, shapes[i][0], shapes[i][1], shapes[i][2], direction);
    return gl_cycles() - begin;
}

static void report(const char *what, uint32_t i, uint32_t cycles)
{
    uint32_t sum = 0;
    for (uint32_t k = 0; k < WORDS; ++k) sum = sum * 31u + near_data[k] + far_data[k];
    gl_print(what);
    gl_print_unsigned(i);
    gl_print(": ");
    gl_print_unsigned(cycles);
    gl_print(" cycles, sum ");
    gl_print_hex(sum);
    gl_put('\n');
}

static void work(void)
{
    for (uint32_t k = 0; k < WORDS; ++k) near_data[k] = k;
    for (uint32_t k = 0; k < 4 * WORDS; ++k) far_data[k] = k * 2654435761u;
    for (uint32_t round = 0; round < 2; ++round)
        for (uint32_t i = 0; i < SHAPES; ++i) {
            const uint32_t begin = gl_cycles();
            start(i, round ? GL_DMA_OUT : GL_DMA_IN, 0);
            gl_dma_wait_all();
            report(round ? "out " : "in ", i, gl_cycles() - begin);
        }
    const uint32_t begin = gl_cycles();
    for (uint32_t i = 0; i < 24; ++i) start(4 + i % 4, i % 3 ? GL_DMA_IN : GL_DMA_OUT, i * 300);
    const uint32_t started = gl_cycles() - begin;
    gl_dma_wait_all();
    const uint32_t done = gl_cycles() - begin;
    report("24 started ", 0, started);
    report("24 done ", 0, done);
    gl_print("0 tensors checked\n");
}

int main(void)
{
    GL_ALONE(work());
    return 0;
}
