/* Runs one kernel call tile by tile. Operands that lie in a far memory are seen through windows: the
 * box that a tile needs is copied into a slot of the near memory, or from there when it is done; with
 * `ahead` that of the next tile, while this one is computed. Every window belongs to a core, which
 * moves it and waits for its copies, so that no core has much to do besides computing.
 *
 * The table of a call is read-only and lies far away; it is copied near before the call starts, so
 * that everything it points to inside itself is an offset from its start. */
#ifndef GL_TILES_H
#define GL_TILES_H

#include "gl_port.h"

#define GL_TILE_AXES 4
#define GL_TILE_SLOTS 3
#ifndef GL_TILE_WINDOWS
#define GL_TILE_WINDOWS 16 /* operands of a call at most */
#endif

/* A box as a copy: planes x lines runs of bytes, at these distances in the far memory. */
typedef struct {
    int32_t bytes, lines, pitch, planes, plane_pitch;
} gl_box;

/* What a place along an axis adds to the start of a window and to the place of its box among the boxes,
 * in bytes; of the sizes of a tile, to theirs and to those of what finishes it. */
typedef struct {
    int32_t far, box;
} gl_hop;

/* An axis that moves a window, and the offset of the hops to its tiles. */
typedef struct {
    uint16_t axis, hops;
} gl_step;

typedef struct {
    char *far, *near[GL_TILE_SLOTS]; /* near is 0 where the operand is used in place */
    uint8_t slots, load, store, moved_by; /* moved_by: bits of the axes that change its box */
    uint16_t boxes, first_step, steps, early; /* offsets of its first box and step; early: see below */
} gl_window;

typedef struct gl_frame gl_frame;
typedef void gl_kernel(gl_core me, const gl_frame *f, int32_t step);

typedef struct {
    gl_kernel *first, *more, *finish; /* tiles that start a sum, that add to it; after the last */
    int32_t repeat; /* calls of the kernel per tile, with a barrier between */
    uint8_t axes, windows, reductions, ahead; /* axes: outermost first; reductions from this one on */
    int32_t count[GL_TILE_AXES];
    uint16_t sizes, finish_sizes, first_step, steps; /* offsets; steps from size to size, and their number */
    uint32_t idle; /* bits of the axes along which only the first tile has something to do for a rider */
} gl_tiling;

/* What the kernel of a tile gets: its operands in the order of the call, and the sizes. */
struct gl_frame {
    gl_kernel *kernel, *finish;
    const void *sizes, *finish_sizes;
    int32_t rests; /* what rides on the call */
    void *t[GL_TILE_WINDOWS];
};

/* Where a window stands, where the kernel finds it, and what it still has to write back. */
typedef struct {
    char *far, *at, *put_from, *put_to;
    const gl_box *box, *put_box;
    uint32_t slot;
} gl_window_state;

/* Two per network, in the near memory: the windows of a call that are early are at their first boxes
 * before it begins, since the call before has fetched these, together with the table. */
typedef struct {
    gl_window_state windows[GL_TILE_WINDOWS];
    gl_frame frames[2];
} gl_tiles;

/* What a core needs to move its windows; table is the copy in the near memory. */
typedef struct {
    gl_tiles *tiles;
    const gl_tiling *table;
    int32_t index[GL_TILE_AXES];
    uint32_t moved; /* bits of the axes that the last step has changed */
} gl_walk;

/* Not inline, as all that runs between two tiles has left the instruction cache by then: what is
 * short comes back soon. Functions end with the call of the next, where they can, and what is rare
 * is in one of its own: so that few registers are saved. */
static __attribute__((noinline, unused)) void gl_box_planes(char *near, char *far, const gl_box *box, uint32_t direction)
{
    int32_t plane = box->planes;
    do {
        gl_dma_copy(near, far, (uint32_t)box->bytes, (uint32_t)box->lines, (uint32_t)box->pitch, direction);
        near += box->bytes * box->lines;
        far += box->plane_pitch;
    } while (--plane > 0);
}

static __attribute__((noinline, unused)) void gl_box_copy(char *near, char *far, const gl_box *box, uint32_t direction)
{
    if (box->planes > 1)
        gl_box_planes(near, far, box, direction);
    else
        gl_dma_copy(near, far, (uint32_t)box->bytes, (uint32_t)box->lines, (uint32_t)box->pitch, direction);
}

/* Starts to write back what has been computed in the slot that a window has left. */
static inline void gl_window_store(gl_window_state *state)
{
    const gl_box *box = state->put_box;
    if (!box) return;
    state->put_box = 0;
    gl_box_copy(state->put_from, state->put_to, box, GL_DMA_OUT);
}

/* The sum of the hops to the tile at hand. */
static inline gl_hop gl_hops(const gl_walk *walk, const char *table, uint32_t first, uint32_t count)
{
    gl_hop sum = {0, 0};
    const gl_step *step = (const gl_step *)(table + first);
    for (const gl_step *end = step + count; step < end; ++step) {
        const gl_hop *hop = (const gl_hop *)(table + step->hops) + walk->index[step->axis];
        sum.far += hop->far;
        sum.box += hop->box;
    }
    return sum;
}

/* The new box goes to the slot of the old one, when that is out of it. */
static __attribute__((noinline, unused)) void gl_window_replace(gl_window_state *state, int load)
{
    gl_window_store(state);
    gl_dma_wait_all();
    if (load) gl_box_copy(state->at, state->far, state->box, GL_DMA_IN);
}

/* Moves one window to the tile at hand, and says where the kernel finds it. If its box is another than
 * before, the old one is to be written back, and the new one is fetched into the next slot. */
static __attribute__((noinline, unused)) void gl_window_move(
    const gl_walk *walk, const gl_window *window, gl_window_state *state, void **place)
{
    const char *table = (const char *)walk->table;
    const gl_hop hop = gl_hops(walk, table, window->first_step, window->steps);
    char *far = window->far + hop.far;
    if (!window->near[0]) {
        *place = state->at = far;
        return;
    }
    const gl_box *box = (const gl_box *)(table + window->boxes + hop.box), *old = state->box;
    char *old_far = state->far;
    if (old_far == far && old == box) {
        *place = state->at;
        return;
    }
    state->far = far;
    state->box = box;
    uint32_t slot = 0;
    if (old) {
        if (window->store) {
            state->put_from = state->at;
            state->put_to = old_far;
            state->put_box = old;
        }
        slot = state->slot + 1;
        if (slot == window->slots) slot = 0;
    }
    char *near = window->near[slot];
    state->slot = slot;
    *place = state->at = near;
    if (state->put_box && !walk->table->ahead)
        gl_window_replace(state, window->load);
    else if (window->load)
        gl_box_copy(near, far, box, GL_DMA_IN);
}

/* The kernel and the sizes of the tile at hand. */
static __attribute__((noinline, unused)) void gl_frame_choose(const gl_walk *walk, gl_frame *frame)
{
    const gl_tiling *table = walk->table;
    const char *start = (const char *)table;
    const gl_hop hop = gl_hops(walk, start, table->first_step, table->steps);
    int32_t added = 0, last = 1;
    for (int axis = table->reductions; axis < table->axes; ++axis) {
        added |= walk->index[axis];
        last &= walk->index[axis] == table->count[axis] - 1;
    }
    int32_t rests = 0;
    const int32_t *index = walk->index;
    for (uint32_t idle = table->idle; idle; idle >>= 1, ++index)
        if (idle & 1) rests |= *index;
    frame->rests = rests;
    frame->kernel = added ? table->more : table->first;
    frame->finish = last ? table->finish : 0;
    frame->sizes = start + table->sizes + hop.far;
    frame->finish_sizes = start + table->finish_sizes + hop.box;
}

/* The number of the first window of a core; the last cores, which often have the least to do, come
 * first. The core behind them, if there is one, fills in the rest of the frame. */
static inline int gl_first_window(gl_core me) { return me.count - 1 - me.id; }

/* One window goes on to the next tile. */
static __attribute__((noinline, unused)) void gl_window_turn(const gl_walk *walk, int w, gl_frame *frame)
{
    const gl_window *window = (const gl_window *)(walk->table + 1) + w;
    gl_window_state *state = &walk->tiles->windows[w];
    if (window->moved_by & walk->moved)
        gl_window_move(walk, window, state, &frame->t[w]);
    else
        frame->t[w] = state->at;
}

/* On to the next tile. */
static inline void gl_walk_on(gl_walk *walk)
{
    walk->moved = 0;
    for (int axis = walk->table->axes - 1; axis >= 0; --axis) {
        walk->moved |= 1u << axis;
        if (++walk->index[axis] < walk->table->count[axis]) break;
        walk->index[axis] = 0;
    }
}

/* This core's part of writing back what is still near. */
static inline void gl_tiles_end(const gl_walk *walk, gl_core me)
{
    const gl_window *windows = (const gl_window *)(walk->table + 1);
    for (int w = gl_first_window(me); w < walk->table->windows; w += me.count) {
        const gl_window_state *state = &walk->tiles->windows[w];
        if (windows[w].store) gl_box_copy(state->at, state->far, state->box, GL_DMA_OUT);
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

static inline void gl_window_reset(gl_window_state *state) { state->box = state->put_box = 0; }

/* This core's windows of the next call that are early go to their first boxes. */
static __attribute__((noinline, unused)) void gl_tiles_fetch_early(const gl_walk *next, gl_core me)
{
    const gl_window *windows = (const gl_window *)(next->table + 1);
    for (int w = gl_first_window(me); w < next->table->windows; w += me.count) {
        gl_window_reset(&next->tiles->windows[w]);
        void *place;
        if (windows[w].early) gl_window_move(next, &windows[w], &next->tiles->windows[w], &place);
    }
}

/* Starts to copy a table to where a walk finds it. */
static inline void gl_table_fetch(const gl_walk *walk, const gl_tiling *table, uint32_t bytes)
{
    GL_ONE(gl_dma_copy((char *)(uintptr_t)walk->table, table, bytes, 1, 0, GL_DMA_IN));
}

/* What is to be done besides computing: what the tile before has made is written back, and the next
 * tile of `walk` is prepared or, if there is none, the call behind it. */
static inline void gl_tiles_prepare(const gl_walk *walk, const gl_walk *next, gl_frame *frame)
{
    GL_EACH_CORE(me)
    {
        const int count = walk->table->windows;
        int w = gl_first_window(me);
        for (; w < count; w += me.count) {
            gl_window_store(&walk->tiles->windows[w]);
            if (frame) gl_window_turn(walk, w, frame);
        }
        if (w == count && frame) gl_frame_choose(walk, frame);
        if (next && !frame) gl_tiles_fetch_early(next, me);
    }
}

/* All windows at their first boxes. Without a table it is near already. */
static inline void gl_tiles_begin(const gl_walk *walk, const gl_tiling *table, uint32_t bytes)
{
    if (table) {
        gl_table_fetch(walk, table, bytes);
        GL_ONE(gl_dma_wait_all());
        GL_BARRIER();
        GL_EACH_CORE(me)
        {
            for (int w = gl_first_window(me); w < walk->table->windows; w += me.count)
                gl_window_reset(&walk->tiles->windows[w]);
        }
    }
    gl_tiles_prepare(walk, 0, &walk->tiles->frames[0]);
}

/* Every core of the team calls this; near has room for the table, count is the number of tiles. table
 * is 0 if the call before has fetched it. next is the table of the call behind, which is fetched here
 * together with the windows that are early, or 0; its place is `other` bytes from this one's. */
static __attribute__((noinline, unused)) void gl_tiles_run(
    gl_tiles *tiles, void *near, const gl_tiling *table, uint32_t bytes, int32_t count, const gl_tiling *next,
    uint32_t next_bytes, int32_t other)
{
    gl_walk walk = {tiles, near, {0}, ~0u};
    const gl_walk behind = {other > 0 ? tiles + 1 : tiles - 1, (void *)((char *)near + other), {0}, ~0u};
    gl_tiles_begin(&walk, table, bytes);
    if (next && count == 1) gl_table_fetch(&behind, next, next_bytes);
    gl_dma_wait_all();
    GL_BARRIER();
    if (next && count > 1) gl_table_fetch(&behind, next, next_bytes);
    const int32_t repeat = walk.table->repeat, ahead = walk.table->ahead;
    gl_frame *frame = &tiles->frames[0], *following = &tiles->frames[1];
    for (;;) {
        const int more = --count > 0;
        gl_walk_on(&walk);
        if (ahead) gl_tiles_prepare(&walk, next ? &behind : 0, more ? following : 0);
        gl_tiles_compute(frame, repeat);
        if (!ahead) {
            GL_BARRIER();
            gl_tiles_prepare(&walk, next ? &behind : 0, more ? following : 0);
        }
        if (!more) break;
        gl_dma_wait_all();
        GL_BARRIER();
        gl_frame *done = frame;
        frame = following;
        following = done;
    }
    GL_BARRIER();
    GL_EACH_CORE(me) { gl_tiles_end(&walk, me); }
    GL_BARRIER();
}

#endif
