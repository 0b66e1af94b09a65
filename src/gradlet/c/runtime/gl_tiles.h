/* Runs one kernel call tile by tile. Operands that lie in a far memory are seen through windows: the
 * box that a tile needs is copied into a slot of the near memory, or from there when it is done.
 * One core starts the copies; with `ahead` those of the next tile, while all compute this one.
 *
 * The table of a call is read-only and lies far away; it is copied near before the call starts, so
 * that everything it points to inside itself is an offset from its start. */
#ifndef GL_TILES_H
#define GL_TILES_H

#include "gl_port.h"

#define GL_TILE_AXES 4
#ifndef GL_TILE_WINDOWS
#define GL_TILE_WINDOWS 16 /* operands of a call at most */
#endif

/* A box as a copy: planes x lines runs of bytes, at these distances in the far memory. */
typedef struct {
    int32_t bytes, lines, pitch, planes, plane_pitch;
} gl_box;

/* How tile `index` of an axis moves a window: its start is index * delta - back bytes further on, but
 * within 0..most, and its box `radix` places further per kind. */
typedef struct {
    int32_t axis, kinds, radix, delta, back, most; /* kinds: offset of those of the axis, a byte each */
} gl_step;

typedef struct {
    char *far, *near; /* near is 0 where the operand is used in place */
    int32_t slot_bytes;
    uint8_t slots, load, store, steps; /* of the table's steps it has the next `steps` */
    int32_t boxes; /* number of its first */
} gl_window;

typedef struct gl_frame gl_frame;
typedef void gl_kernel(gl_core me, const gl_frame *f, int32_t step);

typedef struct {
    gl_kernel *first, *more, *finish; /* tiles that start a sum, that add to it; after the last */
    int32_t repeat; /* calls of the kernel per tile, with a barrier between */
    uint8_t axes, windows, reductions, ahead; /* axes: outermost first; reductions from this one on */
    int32_t count[GL_TILE_AXES], radix[GL_TILE_AXES];
    int32_t kinds, steps, boxes, sizes, size_pitch, finish_sizes, finish_pitch; /* offsets, and their distances */
} gl_tiling;

/* What the kernel of a tile gets: its operands in the order of the call, and the sizes. */
struct gl_frame {
    gl_kernel *kernel, *finish;
    const void *sizes, *finish_sizes;
    void *t[GL_TILE_WINDOWS];
};

/* Where a window stands, and what it still has to write back. */
typedef struct {
    char *far, *put_from, *put_to;
    const gl_box *box, *put_box;
    int32_t slot;
} gl_window_state;

/* One per network, in the near memory; table is where the table of the running call is put. */
typedef struct {
    gl_tiling *table;
    gl_window_state windows[GL_TILE_WINDOWS];
    gl_frame frames[2];
    int32_t index[GL_TILE_AXES];
} gl_tiles;

static inline void gl_box_copy(char *near, char *far, const gl_box *box, uint32_t direction)
{
    for (int32_t plane = 0; plane < box->planes; ++plane) {
        gl_dma_copy(near, far, (uint32_t)box->bytes, (uint32_t)box->lines, (uint32_t)box->pitch, direction);
        near += box->bytes * box->lines;
        far += box->plane_pitch;
    }
}

/* Starts to write back what has been computed. */
static inline void gl_tiles_store(gl_tiles *tiles)
{
    const int count = tiles->table->windows;
    for (int w = 0; w < count; ++w) {
        gl_window_state *state = &tiles->windows[w];
        if (!state->put_box) continue;
        gl_box_copy(state->put_from, state->put_to, state->put_box, GL_DMA_OUT);
        state->put_box = 0;
    }
}

static inline void gl_tiles_store_one(gl_window_state *state)
{
    gl_box_copy(state->put_from, state->put_to, state->put_box, GL_DMA_OUT);
    gl_dma_wait_all();
    state->put_box = 0;
}

/* Moves one window to the tile at hand. If its box is another than before, the old one is to be
 * written back, and the new one is fetched into the next slot. Returns where the kernel finds it. */
static inline char *gl_window_move(const gl_tiles *tiles, const gl_window *window, const gl_step *steps,
                                   gl_window_state *state)
{
    const gl_tiling *table = tiles->table;
    int32_t offset = 0, kind = window->boxes;
    for (int i = 0; i < window->steps; ++i) {
        const int32_t index = tiles->index[steps[i].axis];
        offset += gl_min(gl_max(0, index * steps[i].delta - steps[i].back), steps[i].most);
        kind += ((const uint8_t *)table)[steps[i].kinds + index] * steps[i].radix;
    }
    char *far = window->far + offset;
    if (!window->near) return far;
    const gl_box *box = (const gl_box *)((const char *)table + table->boxes) + kind;
    if (state->far != far || state->box != box) {
        if (window->store && state->box) {
            state->put_from = window->near + state->slot * window->slot_bytes;
            state->put_to = state->far;
            state->put_box = state->box;
            if (!table->ahead) gl_tiles_store_one(state); /* the slot is the same */
        }
        if (state->box && ++state->slot == window->slots) state->slot = 0;
        state->far = far;
        state->box = box;
        if (window->load) gl_box_copy(window->near + state->slot * window->slot_bytes, far, box, GL_DMA_IN);
    }
    return window->near + state->slot * window->slot_bytes;
}

/* Prepares the frame of the tile at hand. */
static inline void gl_tiles_fetch(gl_tiles *tiles, gl_frame *frame)
{
    const gl_tiling *table = tiles->table;
    const gl_window *windows = (const gl_window *)(table + 1);
    const gl_step *steps = (const gl_step *)((const char *)table + table->steps);
    for (int w = 0; w < table->windows; ++w) {
        frame->t[w] = gl_window_move(tiles, &windows[w], steps, &tiles->windows[w]);
        steps += windows[w].steps;
    }
    const uint8_t *kinds = (const uint8_t *)table + table->kinds;
    int32_t kind = 0, added = 0, last = 1;
    for (int axis = 0; axis < table->axes; ++axis) {
        const int32_t index = tiles->index[axis];
        kind += kinds[index] * table->radix[axis];
        kinds += table->count[axis];
        if (axis < table->reductions) continue;
        added |= index;
        last &= index == table->count[axis] - 1;
    }
    frame->kernel = added ? table->more : table->first;
    frame->finish = last ? table->finish : 0;
    frame->sizes = (const char *)table + table->sizes + kind * table->size_pitch;
    frame->finish_sizes = (const char *)table + table->finish_sizes + kind * table->finish_pitch;
}

/* On to the next tile. */
static inline void gl_tiles_advance(gl_tiles *tiles, gl_frame *frame)
{
    const gl_tiling *table = tiles->table;
    for (int axis = table->axes - 1; axis >= 0; --axis) {
        if (++tiles->index[axis] < table->count[axis]) break;
        tiles->index[axis] = 0;
    }
    gl_tiles_fetch(tiles, frame);
}

static inline void gl_tiles_begin(gl_tiles *tiles, void *near, const gl_tiling *table, uint32_t bytes)
{
    tiles->table = near;
    gl_dma_copy(near, (char *)(uintptr_t)table, bytes, 1, 0, GL_DMA_IN);
    gl_dma_wait_all();
    for (int axis = 0; axis < GL_TILE_AXES; ++axis) tiles->index[axis] = 0;
    for (int w = 0; w < tiles->table->windows; ++w) {
        tiles->windows[w].box = tiles->windows[w].put_box = 0;
        tiles->windows[w].slot = 0;
    }
    gl_tiles_fetch(tiles, &tiles->frames[0]);
    gl_dma_wait_all();
}

/* All boxes that are still near are to be written back. */
static inline void gl_tiles_end(gl_tiles *tiles)
{
    const gl_window *windows = (const gl_window *)(tiles->table + 1);
    for (int w = 0; w < tiles->table->windows; ++w) {
        gl_window_state *state = &tiles->windows[w];
        if (!windows[w].store || !windows[w].near) continue;
        gl_box_copy(windows[w].near + state->slot * windows[w].slot_bytes, state->far, state->box, GL_DMA_OUT);
    }
    gl_dma_wait_all();
}

static inline void gl_tiles_compute(const gl_frame *frame, int32_t repeat)
{
    for (int32_t step = 0; step < repeat; ++step) {
        if (step > 0) GL_BARRIER();
        GL_EACH_CORE(me) { frame->kernel(me, frame, step); }
    }
    if (!frame->finish) return;
    GL_BARRIER();
    GL_EACH_CORE(me) { frame->finish(me, frame, 0); }
}

/* Every core of the team calls this; near has room for the table, count is the number of tiles. */
static __attribute__((noinline)) void gl_tiles_run(gl_tiles *tiles, void *near, const gl_tiling *table, uint32_t bytes, int32_t count)
{
    GL_ONE(gl_tiles_begin(tiles, near, table, bytes));
    GL_BARRIER();
    const int32_t repeat = tiles->table->repeat, ahead = tiles->table->ahead;
    for (int32_t tile = 0; tile < count; ++tile) {
        gl_frame *following = &tiles->frames[(tile + 1) & 1];
        const int more = tile + 1 < count;
        if (ahead) GL_ONE(gl_tiles_store(tiles); if (more) gl_tiles_advance(tiles, following));
        gl_tiles_compute(&tiles->frames[tile & 1], repeat);
        if (!more) break;
        if (!ahead) {
            GL_BARRIER();
            GL_ONE(gl_tiles_advance(tiles, following));
        }
        GL_ONE(gl_dma_wait_all());
        GL_BARRIER();
    }
    GL_BARRIER();
    GL_ONE(gl_tiles_end(tiles));
    GL_BARRIER();
}

#endif
