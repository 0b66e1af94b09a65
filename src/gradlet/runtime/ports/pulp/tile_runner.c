/* Runs one tiled call after the other, for a machine that stops the cores at gl_runner_wait: there it
 * puts the table of the next one in place. */
#include "gl_tiles.h"

typedef struct {
    const gl_tiling *table;
    void *l1; /* where its copy goes */
    uint32_t bytes;
    int32_t count;
} runner;

runner gl_runner GL_IN(L1, bss);

static gl_tiles tiles GL_IN(L1, control);

void gl_runner_wait(void);
void gl_runner_go(void);
void gl_runner_end(void);

__attribute__((noinline)) void gl_runner_wait(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void gl_runner_go(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void gl_runner_end(void) { __asm__ volatile("" ::: "memory"); }

int main(void)
{
    for (;;) {
        gl_runner_wait();
        GL_BARRIER();
        gl_runner_go();
        gl_tiles_run(&tiles, gl_runner.l1, gl_runner.table, gl_runner.bytes, gl_runner.count, 0, 0, 0);
        gl_runner_end();
    }
}
