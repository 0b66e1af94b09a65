/* Initial values, constants and empty space in each memory. */
#include "gl_port.h"

uint32_t near_values[3] GL_IN(L1, data) = {1, 2, 3};
uint32_t far_values[3] GL_IN(L2, data) = {10, 20, 30};
uint32_t farther_values[3] GL_IN(L3, data) = {100, 200, 300};
const uint32_t farther_constants[2] GL_IN(L3, rodata) = {1000, 2000};
uint32_t farther_space[1024] GL_IN(L3, bss);

static void work(void)
{
    for (int i = 0; i < 3; ++i) farther_space[i] = near_values[i] + far_values[i] + farther_values[i];
    for (int i = 0; i < 2; ++i) farther_space[1022 + i] = farther_constants[i];
}

int main(void)
{
    GL_ALONE(work());
    return (int)farther_space[GL_CORES - 1]; /* every core sees it */
}
