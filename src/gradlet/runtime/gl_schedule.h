/* Learning rates by step, for NAME_set_learning_rate(). Pure functions, steps count from 0; a
 * warm-up goes around any of them:
 *
 *     net_set_learning_rate(gl_rate_warmup(gl_rate_cosine(0.1f, 0.0f, step, 1000), step, 50)); */
#ifndef GL_SCHEDULE_H
#define GL_SCHEDULE_H

#include "gl.h"

static inline float gl_rate_constant(float rate, int step)
{
    (void)step;
    return rate;
}

/* rate, then times `factor` after every `every` steps. */
static inline float gl_rate_steps(float rate, float factor, int step, int every)
{
    for (int i = step / every; i > 0 && rate != 0.0f; --i) rate *= factor;
    return rate;
}

/* cos(pi x) for x in [0, 1], as the sine of the distance to the middle. */
static inline float gl_cos_pi(float x)
{
    const float t = 0.5f - x, z = t * t;
    float p = -0.00737043094f; /* Taylor: -pi^11/11!, pi^9/9!, ... */
    p = gl_fma(p, z, 0.0821458866f);
    p = gl_fma(p, z, -0.599264529f);
    p = gl_fma(p, z, 2.55016404f);
    p = gl_fma(p, z, -5.16771278f);
    p = gl_fma(p, z, 3.14159265f);
    return p * t;
}

/* From `rate` at step 0 down to `low` at step `total`, along half a cosine; `low` from there on. */
static inline float gl_rate_cosine(float rate, float low, int step, int total)
{
    if (step >= total) return low;
    return gl_fma(0.5f * (rate - low), 1.0f + gl_cos_pi((float)step / (float)total), low);
}

/* The first `steps` steps get 1/steps, 2/steps, ... of the rate. */
static inline float gl_rate_warmup(float rate, int step, int steps)
{
    return step + 1 < steps ? rate * ((float)(step + 1) / (float)steps) : rate;
}

#endif
