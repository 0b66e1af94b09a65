/* Runs one kernel call tile by tile. Operands that lie in a backing memory are seen through views: the
 * region that a tile needs is copied into a stage of L1, or from there when it is done; with
 * double buffering that of the next tile, while this one is computed. Every view belongs to a core, which
 * moves it and waits for its copies, so that no core has much to do besides computing.
 *
 * The table of a call is read-only and lies in a backing memory; it is copied to L1 before the call starts, so
 * that everything it points to inside itself is an offset from its start. */
#ifndef GL_TILES_H
#define GL_TILES_H

#include "gl_port.h"

#define GL_TILE_AXES 4
#define GL_TILE_STAGES 3
#ifndef GL_TILE_VIEWS
#define GL_TILE_VIEWS 16 /* operands of a call at most */
#endif

/* A region as a copy: planes x lines runs of bytes, at these distances in the backing memory. */
typedef struct {
    int32_t bytes, lines, pitch, planes, plane_pitch;
} gl_region;

/* What a place along an axis adds to the start of a view and to the place of its region among the regions,
 * in bytes; of the sizes of a tile, to theirs and to those of what finishes it. */
typedef struct {
    int32_t backing, region;
} gl_offset;

/* An axis that moves a view, and where the offsets of its tiles are. */
typedef struct {
    uint16_t axis, offsets;
} gl_step;

typedef struct {
    char *backing, *l1[GL_TILE_STAGES]; /* l1 is 0 where the operand is used in place */
    uint8_t stages, load, store, moved_by; /* moved_by: bits of the axes that change its region */
    uint16_t regions, first_step, steps, prefetched; /* offsets of its first region and step; prefetched: see below */
} gl_tile_view;

typedef struct gl_frame gl_frame;
typedef void gl_kernel(gl_core me, const gl_frame *f, int32_t step);

typedef struct {
    gl_kernel *first, *later, *last; /* tiles that start a sum, that add to it; after the last */
    int32_t repeat; /* calls of the kernel per tile, with a barrier between */
    uint8_t axes, views, reductions, double_buffered; /* axes: outermost first; reductions from this one on */
    int32_t count[GL_TILE_AXES];
    uint16_t sizes, last_sizes, first_step, steps; /* offsets; steps from size to size, and their number */
    uint32_t first_only; /* bits of the axes along which only the first tile runs what is fused beside, or makes what is kept */
    uint32_t skip; /* what those behind the first are told: the step that they begin with, or 1 */
    uint32_t releases; /* the next regions come in behind the first call of the kernel, which alone reads some of them */
} gl_tiling;

/* What the kernel of a tile gets: its operands in the order of the call, and the sizes. */
struct gl_frame {
    gl_kernel *kernel, *last;
    const void *sizes, *last_sizes;
    int32_t skips; /* what is fused beside, or kept from the tile before */
    void *t[GL_TILE_VIEWS];
};

/* Where a view stands, where the kernel finds it, and what it still has to write back. */
typedef struct {
    char *backing, *at, *put_from, *put_to;
    const gl_region *region, *put_region;
    uint32_t stage;
} gl_view_state;

/* Two per network, in L1: the views of a call that are prefetched are at their first regions
 * before it begins, since the call before has fetched these, together with the table. */
typedef struct {
    gl_view_state views[GL_TILE_VIEWS];
    gl_frame frames[2];
} gl_tiles;

/* What a core needs to move its views; table is the copy in L1. */
typedef struct {
    gl_tiles *tiles;
    const gl_tiling *table;
    int32_t index[GL_TILE_AXES];
    uint32_t moved; /* bits of the axes that the last step has changed */
} gl_walk;

/* Not inline, as all that runs between two tiles has left the instruction cache by then: what is
 * short comes back soon. Functions end with the call of the next, where they can, and what is rare
 * is in one of its own: so that few registers are saved. */
static __attribute__((noinline, unused)) void gl_region_planes(char *l1, char *backing, const gl_region *region, uint32_t direction)
{
    int32_t plane = region->planes;
    do {
        gl_dma_copy(l1, backing, (uint32_t)region->bytes, (uint32_t)region->lines, (uint32_t)region->pitch, direction);
        l1 += region->bytes * region->lines;
        backing += region->plane_pitch;
    } while (--plane > 0);
}

static __attribute__((noinline, unused)) void gl_region_copy(char *l1, char *backing, const gl_region *region, uint32_t direction)
{
    if (region->planes > 1)
        gl_region_planes(l1, backing, region, direction);
    else
        gl_dma_copy(l1, backing, (uint32_t)region->bytes, (uint32_t)region->lines, (uint32_t)region->pitch, direction);
}

/* Starts to write back what has been computed in the stage that a view has left. */
static inline void gl_view_store(gl_view_state *state)
{
    const gl_region *region = state->put_region;
    if (!region) return;
    state->put_region = 0;
    gl_region_copy(state->put_from, state->put_to, region, GL_DMA_OUT);
}

/* The sum of the offsets to the tile at hand. */
static inline gl_offset gl_offset_of(const gl_walk *walk, const char *table, uint32_t first, uint32_t count)
{
    gl_offset sum = {0, 0};
    const gl_step *step = (const gl_step *)(table + first);
    for (const gl_step *end = step + count; step < end; ++step) {
        const gl_offset *offset = (const gl_offset *)(table + step->offsets) + walk->index[step->axis];
        sum.backing += offset->backing;
        sum.region += offset->region;
    }
    return sum;
}

/* The new region goes to the stage of the old one, when that is out of it. */
static __attribute__((noinline, unused)) void gl_view_replace(gl_view_state *state, int load)
{
    gl_view_store(state);
    gl_dma_wait_all();
    if (load) gl_region_copy(state->at, state->backing, state->region, GL_DMA_IN);
}

/* Moves one view to the tile at hand, and says where the kernel finds it. If its region is another than
 * before, the old one is to be written back, and the new one is fetched into the next stage. */
static __attribute__((noinline, unused)) void gl_view_move(
    const gl_walk *walk, const gl_tile_view *view, gl_view_state *state, void **place)
{
    const char *table = (const char *)walk->table;
    const gl_offset offset = gl_offset_of(walk, table, view->first_step, view->steps);
    char *backing = view->backing + offset.backing;
    if (!view->l1[0]) {
        *place = state->at = backing;
        return;
    }
    const gl_region *region = (const gl_region *)(table + view->regions + offset.region), *old = state->region;
    char *old_backing = state->backing;
    if (old_backing == backing && old == region) {
        *place = state->at;
        return;
    }
    state->backing = backing;
    state->region = region;
    uint32_t stage = 0;
    if (old) {
        if (view->store) {
            state->put_from = state->at;
            state->put_to = old_backing;
            state->put_region = old;
        }
        stage = state->stage + 1;
        if (stage == view->stages) stage = 0;
    }
    char *l1 = view->l1[stage];
    state->stage = stage;
    *place = state->at = l1;
    if (state->put_region && !walk->table->double_buffered)
        gl_view_replace(state, view->load);
    else if (view->load)
        gl_region_copy(l1, backing, region, GL_DMA_IN);
}

/* The kernel and the sizes of the tile at hand. */
static __attribute__((noinline, unused)) void gl_frame_choose(const gl_walk *walk, gl_frame *frame)
{
    const gl_tiling *table = walk->table;
    const char *start = (const char *)table;
    const gl_offset offset = gl_offset_of(walk, start, table->first_step, table->steps);
    int32_t added = 0, complete = 1;
    for (int axis = table->reductions; axis < table->axes; ++axis) {
        added |= walk->index[axis];
        complete &= walk->index[axis] == table->count[axis] - 1;
    }
    int32_t skips = 0;
    const int32_t *index = walk->index;
    for (uint32_t first_only = table->first_only; first_only; first_only >>= 1, ++index)
        if (first_only & 1) skips |= *index;
    frame->skips = skips ? (int32_t)table->skip : 0;
    frame->kernel = added ? table->later : table->first;
    frame->last = complete ? table->last : 0;
    frame->sizes = start + table->sizes + offset.backing;
    frame->last_sizes = start + table->last_sizes + offset.region;
}

/* The number of the first view of a core; the last cores, which often have the least to do, come
 * first. The core behind them, if there is one, fills in the rest of the frame. */
static inline int gl_first_view(gl_core me) { return me.count - 1 - me.id; }

/* One view goes on to the next tile. */
static __attribute__((noinline, unused)) void gl_view_turn(const gl_walk *walk, int w, gl_frame *frame)
{
    const gl_tile_view *view = (const gl_tile_view *)(walk->table + 1) + w;
    gl_view_state *state = &walk->tiles->views[w];
    if (view->moved_by & walk->moved)
        gl_view_move(walk, view, state, &frame->t[w]);
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

/* This core's part of writing back what is still in L1. */
static inline void gl_tiles_end(const gl_walk *walk, gl_core me)
{
    const gl_tile_view *views = (const gl_tile_view *)(walk->table + 1);
    for (int w = gl_first_view(me); w < walk->table->views; w += me.count) {
        const gl_view_state *state = &walk->tiles->views[w];
        if (views[w].store) gl_region_copy(state->at, state->backing, state->region, GL_DMA_OUT);
    }
    gl_dma_wait_all();
}

/* The step that a kernel is told which keeps something from tile to tile. */
#define GL_STEP(frame, step) ((step) == 0 && (frame)->skips > 1 ? (frame)->skips : (step))

static __attribute__((noinline, unused)) void gl_tiles_step(const gl_frame *frame, int32_t step)
{
    GL_EACH_CORE(me) { frame->kernel(me, frame, step); }
}

/* From some step on. */
static inline void gl_tiles_compute(const gl_frame *frame, int32_t step, int32_t repeat)
{
    for (; step < repeat; ++step) {
        if (step > 0) GL_BARRIER();
        gl_tiles_step(frame, step);
    }
    if (!frame->last) return;
    GL_BARRIER();
    GL_EACH_CORE(me) { frame->last(me, frame, 0); }
}

static inline void gl_view_reset(gl_view_state *state) { state->region = state->put_region = 0; }

/* This core's views of the next call that are prefetched go to their first regions. */
static __attribute__((noinline, unused)) void gl_tiles_prefetch(const gl_walk *next, gl_core me)
{
    const gl_tile_view *views = (const gl_tile_view *)(next->table + 1);
    for (int w = gl_first_view(me); w < next->table->views; w += me.count) {
        gl_view_reset(&next->tiles->views[w]);
        void *place;
        if (views[w].prefetched) gl_view_move(next, &views[w], &next->tiles->views[w], &place);
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
        const int count = walk->table->views;
        int w = gl_first_view(me);
        for (; w < count; w += me.count) {
            gl_view_store(&walk->tiles->views[w]);
            if (frame) gl_view_turn(walk, w, frame);
        }
        if (w == count && frame) gl_frame_choose(walk, frame);
        if (next && !frame) gl_tiles_prefetch(next, me);
    }
}

/* All views at their first regions. Without a table it is in L1 already. */
static inline void gl_tiles_begin(const gl_walk *walk, const gl_tiling *table, uint32_t bytes)
{
    if (table) {
        gl_table_fetch(walk, table, bytes);
        GL_ONE(gl_dma_wait_all());
        GL_BARRIER();
        GL_EACH_CORE(me)
        {
            for (int w = gl_first_view(me); w < walk->table->views; w += me.count)
                gl_view_reset(&walk->tiles->views[w]);
        }
    }
    gl_tiles_prepare(walk, 0, &walk->tiles->frames[0]);
}

/* Every core of the team calls this; l1 has room for the table, count is the number of tiles. table
 * is 0 if the call before has fetched it. next is the table of the call behind, which is fetched here
 * together with the views that are prefetched, or 0; its place is `other` bytes from this one's. */
static __attribute__((noinline, unused)) void gl_tiles_run(
    gl_tiles *tiles, void *l1, const gl_tiling *table, uint32_t bytes, int32_t count, const gl_tiling *next,
    uint32_t next_bytes, int32_t other)
{
    gl_walk walk = {tiles, l1, {0}, ~0u};
    const gl_walk behind = {other > 0 ? tiles + 1 : tiles - 1, (void *)((char *)l1 + other), {0}, ~0u};
    gl_tiles_begin(&walk, table, bytes);
    if (next && count == 1) gl_table_fetch(&behind, next, next_bytes);
    gl_dma_wait_all();
    GL_BARRIER();
    if (next && count > 1) gl_table_fetch(&behind, next, next_bytes);
    const int32_t repeat = walk.table->repeat, double_buffered = walk.table->double_buffered;
    const int32_t releases = (int32_t)walk.table->releases;
    gl_frame *frame = &tiles->frames[0], *following = &tiles->frames[1];
    for (;;) {
        const int more = --count > 0;
        gl_walk_on(&walk);
        if (releases) {
            gl_tiles_step(frame, 0);
            GL_BARRIER();
        }
        if (double_buffered) gl_tiles_prepare(&walk, next ? &behind : 0, more ? following : 0);
        gl_tiles_compute(frame, releases, repeat);
        if (!double_buffered) {
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
