/* Trains step after step, for an engine that stops the cores at gl_before_step and gl_after_step:
 * there it puts samples into the inputs, and reads what it wants to know. */
#include "gl_port.h"

float GL_TRAIN_STEP(void);
void gl_before_step(void);
void gl_after_step(void);

__attribute__((noinline)) void gl_before_step(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void gl_after_step(void) { __asm__ volatile("" ::: "memory"); }

int main(void)
{
    for (;;) {
        gl_before_step();
        GL_BARRIER();
        GL_TRAIN_STEP();
        gl_after_step();
    }
}
