/* Making a simulator in memory that the caller provides, and reading results out of it. */
#include "sim.h"

#define ALIGN 64u

/* Under the address sanitizer the parts of the memory lie apart, with poison between them. */
#if defined(__SANITIZE_ADDRESS__)
#define GAP 4096u
void __asan_poison_memory_region(void const volatile *at, size_t size);
void __asan_unpoison_memory_region(void const volatile *at, size_t size);
#else
#define GAP 0u
static void __asan_poison_memory_region(void const volatile *at, size_t size)
{
    (void)at, (void)size;
}
static void __asan_unpoison_memory_region(void const volatile *at, size_t size)
{
    (void)at, (void)size;
}
#endif

static size_t rounded(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN + GAP;
}

/* Instructions are decoded from these, of which the maps have more. */
static size_t code_bytes(const SimConfig *config)
{
    return (size_t)config->l1_bytes + (size_t)config->l2_bytes;
}

static bool is_power_of_two(int32_t value)
{
    return value > 0 && (value & (value - 1)) == 0;
}

static bool between(int32_t value, int32_t low, int32_t high)
{
    return low <= value && value <= high;
}

static bool caches_fit(const SimConfig *config)
{
    return config->icache_line_bytes == (int32_t)FETCH_BYTES &&
           is_power_of_two(config->icache_private_sets) &&
           is_power_of_two(config->icache_private_ways) &&
           is_power_of_two(config->icache_shared_banks) &&
           is_power_of_two(config->icache_shared_sets) &&
           is_power_of_two(config->icache_shared_ways) &&
           between(config->icache_private_ways, 1, 64) &&
           between(config->icache_shared_ways, 1, 64) &&
           between(config->icache_private_sets, 1, MAX_L0_LINES / config->icache_private_ways) &&
           between(config->icache_shared_sets, 1, MAX_L1_LINES / config->icache_shared_ways) &&
           config->icache_shared_banks <= MAX_L1_CACHE_BANKS;
}

static bool latencies_fit(const SimConfig *config)
{
    const int32_t values[] = {
        config->l2_latency, config->l3_latency, config->dma_l3_setup,
        config->cluster_periph_latency, config->soc_periph_latency,
        config->load_use, config->branch_taken, config->jump, config->mul_result,
        config->icache_private_refill, config->icache_shared_refill, config->wakeup_latency,
        config->elw_overhead, config->blocking_read_latency};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (!between(values[i], 0, 100000))
            return false;
    return between(config->mul_cycles, 1, 1000) && between(config->mulh_cycles, 1, 1000) &&
           between(config->div_base, 2, 1000) && between(config->fdiv_cycles, 1, 1000) &&
           between(config->fdiv_small_cycles, 1, 1000);
}

static bool config_fits(const SimConfig *config)
{
    return between(config->cores, 1, MAX_CORES) && between(config->fpus, 1, MAX_CORES) &&
           between(config->l1_bytes, 256, 0x100000) && config->l1_bytes % 256 == 0 &&
           between(config->l2_bytes, 0x1000, 0x4000000) && config->l2_bytes % 256 == 0 &&
           between(config->l3_bytes, 0, 0x4000000) && config->l3_bytes % 256 == 0 &&
           between(config->fill, 0, 255) &&
           is_power_of_two(config->l1_banks) && config->l1_banks <= MAX_BANKS &&
           between(config->dma_channels, 1, MAX_HARTS) &&
           between(config->dma_counters, 1, MAX_COUNTERS) &&
           between(config->dma_core_queue, 1, MAX_DMA_QUEUE) &&
           between(config->dma_global_queue, 1, MAX_DMA_QUEUE) &&
           between(config->dma_reads, 1, MAX_BURSTS) &&
           between(config->dma_writes, 1, MAX_BURSTS) &&
           between(config->dma_burst_bytes, 4, MAX_BURST_BYTES) &&
           between(config->dma_l3_rate, 1, MAX_BURST_BYTES) &&
           between(config->dma_ports, 2, 4) && config->dma_ports % 2 == 0 &&
           between(config->stdout_bytes, 1024, 1 << 26) &&
           between(config->trace_records, 64, 1 << 22) && caches_fit(config) &&
           latencies_fit(config);
}

/* Zero if the configuration is out of range. */
size_t sim_bytes(const SimConfig *config)
{
    if (!config_fits(config))
        return 0;
    return rounded(sizeof(Sim)) + rounded(map_bytes(config)) +
           rounded((code_bytes(config) / 2 + 2) * sizeof(Insn)) +
           rounded(map_bytes(config) / 256 + 1) + 2 * rounded(map_bytes(config)) +
           rounded(watch_blocks(config)) + rounded(watch_blocks(config) * sizeof(uint32_t)) +
           rounded((size_t)config->stdout_bytes) +
           rounded((size_t)config->trace_records * sizeof(TraceRecord));
}

static void *carve(uint8_t **memory, size_t size)
{
    uint8_t *at = *memory;

    *memory += rounded(size);
    __asan_poison_memory_region(*memory - GAP, GAP);
    return at;
}

static void init_cores(Sim *sim)
{
    for (int32_t i = 0; i < MAX_HARTS; i++) {
        Core *core = &sim->cores[i];
        core->sim = sim;
        core->id = i;
        core->is_controller = i == sim->config.cores;
        core->pcer = 3;
        core->line = 1;
        core->mtvec = 0;
        __builtin_memset(&core->x[1], sim->config.fill, (REG_SINK - 1) * sizeof core->x[0]);
    }
}

/* `memory`: sim_bytes() zeroed bytes, aligned to 64. */
Sim *sim_create(void *memory, const SimConfig *config)
{
    uint8_t *at = memory;
    Sim *sim;

    __asan_unpoison_memory_region(memory, sim_bytes(config));
    sim = carve(&at, sizeof(Sim));
    sim->config = *config;
    sim->l1 = carve(&at, map_bytes(config));
    sim->l2 = sim->l1 + config->l1_bytes;
    sim->l3 = sim->l2 + config->l2_bytes;
    if (config->fill)
        __builtin_memset(sim->l1, config->fill, map_bytes(config));
    sim->code_l1 = carve(&at, (code_bytes(config) / 2 + 2) * sizeof(Insn));
    sim->code_l2 = sim->code_l1 + config->l1_bytes / 2;
    sim->code_present = carve(&at, map_bytes(config) / 256 + 1);
    sim->watch_store = carve(&at, map_bytes(config));
    sim->watch_dma_store = carve(&at, map_bytes(config));
    sim->watch_written = carve(&at, watch_blocks(config));
    sim->watch_blocks = carve(&at, watch_blocks(config) * sizeof(uint32_t));
    sim->stdout_data = carve(&at, (size_t)config->stdout_bytes);
    sim->trace = carve(&at, (size_t)config->trace_records * sizeof(TraceRecord));
    sim->bank_mask = (uint32_t)config->l1_banks - 1;
    sim->fpu_shared = config->fpus < config->cores;
    sim->next_event = NEVER;
    init_cores(sim);
    icache_reset(sim);
    event_unit_init(sim);
    dma_init(sim);
    timer_init(sim);
    return sim;
}

/* After this the caller may use the memory for something else. */
void sim_destroy(Sim *sim)
{
    __asan_unpoison_memory_region(sim, sim_bytes(&sim->config));
}

uint64_t sim_cycles(const Sim *sim)
{
    return sim->now;
}

uint64_t sim_barriers(const Sim *sim)
{
    return sim->event_unit.released;
}

uint32_t sim_exit_code(const Sim *sim)
{
    return sim->exit_code;
}

void sim_fault(const Sim *sim, Fault *out)
{
    *out = sim->fault;
}

uint32_t sim_core_pc(const Sim *sim, int32_t core)
{
    return sim->cores[core].pc;
}

void sim_set_trace(Sim *sim, int32_t on)
{
    sim->tracing = on != 0;
    for (int i = 0; i < MAX_HARTS; i++)
        set_observed(&sim->cores[i]);
}

size_t sim_take_stdout(Sim *sim, char *out, size_t size)
{
    size_t count = sim->stdout_used < size ? sim->stdout_used : size;

    __builtin_memcpy(out, sim->stdout_data, count);
    sim->stdout_used -= (uint32_t)count;
    __builtin_memmove(sim->stdout_data, sim->stdout_data + count, sim->stdout_used);
    return count;
}

size_t sim_take_trace(Sim *sim, TraceRecord *out, size_t count)
{
    if (count > sim->trace_used)
        count = sim->trace_used;
    __builtin_memcpy(out, sim->trace, count * sizeof(TraceRecord));
    sim->trace_used -= (uint32_t)count;
    __builtin_memmove(sim->trace, sim->trace + count, sim->trace_used * sizeof(TraceRecord));
    return count;
}

/* out: instructions, cycles not asleep, cycles since start, then one figure per StallKind. */
void sim_core_counters(const Sim *sim, int32_t number, uint64_t *out)
{
    const Core *core = &sim->cores[number];
    bool started = core->state != CORE_OFF || core->instructions;
    bool waiting = core->state == CORE_WAITING && sim->now > core->wait.since;
    uint64_t asleep = core->slept + (waiting ? sim->now - core->wait.since : 0);
    uint64_t total = started && sim->now > core->started ? sim->now - core->started : 0;

    out[0] = core->instructions;
    out[1] = total > asleep ? total - asleep : 0;
    out[2] = total;
    for (int i = 0; i < STALL_KINDS; i++)
        out[3 + i] = core->stalls[i];
    if (waiting)
        out[3 + (core->wait.kind == WAIT_BARRIER ? STALL_BARRIER : STALL_EVENT)] +=
            sim->now - core->wait.since;
}
