/* Core 0 does the copies of a table that the test writes before the start; the others wait. */
#include "gl_port.h"

typedef struct {
    void *near;
    void *far;
    uint32_t line_bytes, lines, far_pitch, direction;
    uint32_t wait_after;
    uint32_t cycles; /* spent in the call, and in the wait if there is one */
} row;

row table[256] GL_IN(L2, bss);
uint32_t rows GL_IN(L2, bss);

static void work(void)
{
    for (uint32_t i = 0; i < rows; ++i) {
        const row now = table[i];
        const uint32_t begin = gl_cycles();
        gl_dma_copy(now.near, now.far, now.line_bytes, now.lines, now.far_pitch, now.direction);
        if (now.wait_after) gl_dma_wait_all();
        table[i].cycles = gl_cycles() - begin;
    }
    gl_dma_wait_all();
}

int main(void)
{
    GL_ALONE(work());
    return 0;
}
