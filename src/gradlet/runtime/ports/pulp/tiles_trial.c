/* Runs one tiled call after the other, for a machine that stops the cores at gl_trial_wait: there it
 * puts the table of the next one in place. */
#include "gl_tiles.h"

typedef struct {
    const gl_tiling *table;
    void *near; /* where its copy goes */
    uint32_t bytes;
    int32_t count;
} trial;

trial gl_trial GL_IN(L1, bss);

static gl_tiles tiles GL_IN(L1, control);

void gl_trial_wait(void);
void gl_trial_go(void);
void gl_trial_end(void);

__attribute__((noinline)) void gl_trial_wait(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void gl_trial_go(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void gl_trial_end(void) { __asm__ volatile("" ::: "memory"); }

int main(void)
{
    for (;;) {
        gl_trial_wait();
        GL_BARRIER();
        gl_trial_go();
        gl_tiles_run(&tiles, gl_trial.near, gl_trial.table, gl_trial.bytes, gl_trial.count, 0, 0, 0);
        gl_trial_end();
    }
}
