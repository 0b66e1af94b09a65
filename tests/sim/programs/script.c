/* Every core goes through a table that the test writes before the start and does its own rows. */
#include "gl_port.h"

enum { COPY, WAIT, LOAD, STORE, BARRIER, STATUS, FREE };

typedef struct {
    uint32_t what, core;
    void *near; /* of LOAD and STORE, any place */
    void *far;
    uint32_t line_bytes, lines, far_pitch, direction;
    uint32_t cycles;
} row;

row table[64] GL_IN(L2, bss);
uint32_t rows GL_IN(L2, bss);

static void act(const row *now)
{
    volatile uint32_t *place = now->near;
    if (now->what == COPY)
        gl_dma_copy(now->near, now->far, now->line_bytes, now->lines, now->far_pitch, now->direction);
    else if (now->what == WAIT)
        gl_dma_wait_all();
    else if (now->what == LOAD)
        (void)*place;
    else if (now->what == STORE)
        *place = 1;
    else if (now->what == STATUS)
        (void)*gl_register(GL_DMA + 4);
    else
        *gl_register(GL_DMA + 4) = ~0u;
}

int main(void)
{
    for (uint32_t i = 0; i < rows; ++i) {
        const row now = table[i];
        if (now.what == BARRIER) gl_barrier();
        if (now.what == BARRIER || now.core != (uint32_t)gl_core_id()) continue;
        const uint32_t begin = gl_cycles();
        act(&now);
        table[i].cycles = gl_cycles() - begin;
    }
    return 0;
}
