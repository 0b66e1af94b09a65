/* The watch maps: what cores and transfers may do with each byte of memory, and what they did. */
#include "sim.h"

/* A byte for cores: three permissions, then the core that has written it in this phase, plus 1. */
enum {
    WATCH_READ = 1, WATCH_WRITE = 2, WATCH_INITIALISED = 4, WATCH_PERMISSIONS = 7,
    WATCH_WRITER_SHIFT = 3, WATCH_ANYBODY = 31
};
enum { WATCH_KEEP = 8 }; /* in a call of sim_watch: what is initialised stays so */

/* A byte for the DMA: two permissions, what transfers do with it, then the counter of the last.
 * A transfer lasts from its command until somebody sees its counter at zero: a program that does
 * not wait is wrong, even if the data happens to be there in time. */
enum {
    DMA_MAY_READ = 1, DMA_MAY_WRITE = 2, DMA_PERMISSIONS = 3, DMA_READS = 4, DMA_WRITES = 8,
    DMA_COUNTER_SHIFT = 4
};

/* Blocks of the map that name a writer, so that a new phase need not look at all memories. */
static void note_writers(Sim *sim, uint32_t first, uint32_t size)
{
    uint32_t end = size ? (first + size - 1) / WATCH_BLOCK + 1 : 0;

    for (uint32_t block = first / WATCH_BLOCK; block < end; block++)
        if (!sim->watch_written[block]) {
            sim->watch_written[block] = 1;
            sim->watch_blocks[sim->watch_block_count++] = block;
        }
}

static uint8_t without_writer(uint8_t entry)
{
    return entry >> WATCH_WRITER_SHIFT == WATCH_ANYBODY ? entry : entry & WATCH_PERMISSIONS;
}

static FaultKind store_problem(uint8_t *entry, uint8_t transfers, uint8_t writer)
{
    uint8_t before = *entry >> WATCH_WRITER_SHIFT;

    if (transfers & (DMA_READS | DMA_WRITES))
        return FAULT_WATCH_DMA_STORE;
    if (!(*entry & WATCH_WRITE))
        return FAULT_WATCH_WRITE;
    if (before == WATCH_ANYBODY)
        writer = WATCH_ANYBODY;
    else if (before && before != writer)
        return FAULT_WATCH_RACE;
    *entry = (uint8_t)((*entry & WATCH_PERMISSIONS) | WATCH_INITIALISED |
                       writer << WATCH_WRITER_SHIFT);
    return FAULT_NONE;
}

static FaultKind load_problem(uint8_t entry, uint8_t transfers)
{
    if (transfers & DMA_WRITES)
        return FAULT_WATCH_DMA_LOAD;
    if (!(entry & WATCH_READ))
        return FAULT_WATCH_READ;
    return entry & WATCH_INITIALISED ? FAULT_NONE : FAULT_WATCH_UNINITIALISED;
}

static int32_t core_of_transfer(const Sim *sim, uint8_t transfers)
{
    return (int32_t)sim->dma.counter_channel[transfers >> DMA_COUNTER_SHIFT];
}

/* An access of a core.  Two that store to the same byte in one phase race. */
bool watch_ok(Core *core, uint32_t address, uint32_t size, bool is_store)
{
    Sim *sim = core->sim;
    uint32_t first = map_index(sim, address);

    if (is_store)
        note_writers(sim, first, size);
    for (uint32_t i = first; i < first + size; i++) {
        uint8_t transfers = sim->watch_dma[i], writer = (uint8_t)(core->id + 1);
        FaultKind problem = is_store ? store_problem(&sim->watch[i], transfers, writer)
                                     : load_problem(sim->watch[i], transfers);
        if (problem != FAULT_NONE) {
            fault(core, problem, address + i - first, size);
            sim->fault.other = core_of_transfer(sim, transfers);
            return false;
        }
    }
    return true;
}

/* ---- transfers.  Where there is no memory, the burst will say so. */

static FaultKind transfer_problem(uint8_t entry, uint8_t transfers, bool is_write)
{
    if (!(transfers & (is_write ? DMA_MAY_WRITE : DMA_MAY_READ)))
        return is_write ? FAULT_WATCH_DMA_WRITE : FAULT_WATCH_DMA_READ;
    if (transfers & DMA_WRITES || (is_write && transfers & DMA_READS))
        return FAULT_WATCH_DMA_OVERLAP;
    return is_write || entry & WATCH_INITIALISED ? FAULT_NONE : FAULT_WATCH_DMA_UNINITIALISED;
}

static bool check_span(Sim *sim, const DmaCommand *command, uint32_t address, uint32_t size,
                       bool is_write)
{
    uint32_t first = map_index(sim, address), end = ram(sim, address, size) ? first + size : first;

    for (uint32_t i = first; i < end; i++) {
        FaultKind problem = transfer_problem(sim->watch[i], sim->watch_dma[i], is_write);
        if (problem != FAULT_NONE) {
            dma_fault(sim, command, problem, address + i - first, size);
            sim->fault.other = core_of_transfer(sim, sim->watch_dma[i]);
            return false;
        }
    }
    return true;
}

static void widen(uint32_t *begin, uint32_t *end, uint32_t first, uint32_t size)
{
    if (*begin == *end)
        *begin = *end = first;
    if (first < *begin)
        *begin = first;
    if (first + size > *end)
        *end = first + size;
}

static void mark_span(Sim *sim, const DmaCommand *command, uint32_t address, uint32_t size,
                      bool is_write, bool is_near)
{
    DmaExtent *extent = &sim->dma.extent[command->counter];
    uint32_t first = map_index(sim, address);

    if (!ram(sim, address, size))
        return;
    for (uint32_t i = first; i < first + size; i++) {
        uint8_t now = sim->watch_dma[i] & (DMA_PERMISSIONS | DMA_READS | DMA_WRITES);
        sim->watch_dma[i] = (uint8_t)(now | (is_write ? DMA_WRITES : DMA_READS) |
                                      command->counter << DMA_COUNTER_SHIFT);
        if (is_write)
            sim->watch[i] = (uint8_t)(without_writer(sim->watch[i]) | WATCH_INITIALISED);
    }
    if (is_near)
        widen(&extent->near_begin, &extent->near_end, first, size);
    else
        widen(&extent->far_begin, &extent->far_end, first, size);
}

/* A complete command: first everything is checked, then marked.  False after a fault. */
bool watch_transfer(Sim *sim, const DmaCommand *command)
{
    uint32_t near = L1_BASE + (command->l1 & L1_ADDRESS_MASK), bytes = command->left_to_finish;
    uint32_t line = command->is_2d ? command->line_bytes : bytes;

    if (!bytes)
        return true;
    if (!check_span(sim, command, near, bytes, !command->to_l2))
        return false;
    for (uint32_t at = 0, far = command->l2; at < bytes; at += line, far += command->stride)
        if (!check_span(sim, command, far, line < bytes - at ? line : bytes - at, command->to_l2))
            return false;
    mark_span(sim, command, near, bytes, !command->to_l2, true);
    for (uint32_t at = 0, far = command->l2; at < bytes; at += line, far += command->stride)
        mark_span(sim, command, far, line < bytes - at ? line : bytes - at, command->to_l2, false);
    return true;
}

static void release(Sim *sim, uint32_t counter, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        if (sim->watch_dma[i] & (DMA_READS | DMA_WRITES) &&
            sim->watch_dma[i] >> DMA_COUNTER_SHIFT == counter)
            sim->watch_dma[i] &= DMA_PERMISSIONS;
}

/* Somebody knows now that the transfers of these counters are done. */
void watch_transfers_seen(Sim *sim, uint32_t counters)
{
    for (uint32_t i = 0; sim->watch && i < (uint32_t)sim->config.dma_counters; i++) {
        DmaExtent *extent = &sim->dma.extent[i];
        if (!(counters >> i & 1) || sim->dma.pending_bytes[i] != 0)
            continue;
        release(sim, i, extent->near_begin, extent->near_end);
        release(sim, i, extent->far_begin, extent->far_end);
        *extent = (DmaExtent){0};
    }
}

/* ---- the interface.  The first call makes everything else accessible and initialised. */

static void begin_watching(Sim *sim)
{
    uint32_t total = map_bytes(&sim->config);

    if (sim->watch)
        return;
    sim->watch = sim->watch_store;
    sim->watch_dma = sim->watch_dma_store;
    __builtin_memset(sim->watch, WATCH_READ | WATCH_WRITE | WATCH_INITIALISED, total);
    __builtin_memset(sim->watch_dma, DMA_PERMISSIONS, total);
    __builtin_memset(sim->dma.extent, 0, sizeof sim->dma.extent);
    __builtin_memset(sim->watch_written, 0, watch_blocks(&sim->config));
    sim->watch_block_count = 0;
}

/* An owner counts as a core that has stored there in this phase; -1 is nobody. 30 is anybody: all
 * may store there, phases or not. */
int32_t sim_watch(Sim *sim, uint32_t address, uint32_t size, int32_t permissions, int32_t owner)
{
    uint8_t keep = permissions & WATCH_KEEP ? WATCH_INITIALISED : 0;
    uint8_t *map;

    if (!ram(sim, address, size))
        return -1;
    begin_watching(sim);
    if (owner >= 0)
        note_writers(sim, map_index(sim, address), size);
    map = sim->watch + map_index(sim, address);
    for (uint32_t i = 0; i < size; i++)
        map[i] = (uint8_t)((permissions & WATCH_PERMISSIONS) | (map[i] & keep) |
                           (owner + 1) << WATCH_WRITER_SHIFT);
    return 0;
}

int32_t sim_watch_dma(Sim *sim, uint32_t address, uint32_t size, int32_t permissions)
{
    uint8_t *map;

    if (!ram(sim, address, size))
        return -1;
    begin_watching(sim);
    map = sim->watch_dma + map_index(sim, address);
    for (uint32_t i = 0; i < size; i++)
        map[i] = (uint8_t)((map[i] & ~DMA_PERMISSIONS) | (permissions & DMA_PERMISSIONS));
    return 0;
}

/* From now on other cores may store where one has stored: there was a barrier between. */
void sim_watch_new_phase(Sim *sim)
{
    uint32_t total = map_bytes(&sim->config);

    for (uint32_t n = 0; sim->watch && n < sim->watch_block_count; n++) {
        uint32_t first = sim->watch_blocks[n] * WATCH_BLOCK;
        uint32_t end = first + WATCH_BLOCK < total ? first + WATCH_BLOCK : total;
        for (uint32_t i = first; i < end; i++)
            sim->watch[i] = without_writer(sim->watch[i]);
        sim->watch_written[sim->watch_blocks[n]] = 0;
    }
    sim->watch_block_count = 0;
}
