/* The few helpers that sit on the hot path. */
#ifndef GRADLET_INLINE_H
#define GRADLET_INLINE_H

#define L1_BASE 0x10000000u
#define L2_BASE 0x1C000000u
#define L3_BASE 0x80000000u
#define L1_ADDRESS_MASK 0xFFFFFu /* of a transfer: its bits above name no other memory */
#define FETCH_BYTES 16u

static inline uint32_t read_le(const uint8_t *p, uint32_t size)
{
    uint32_t value = 0;
    __builtin_memcpy(&value, p, size);
    return value;
}

/* Position of a RAM byte in the maps that cover L1, then L2, then L3. */
static inline uint32_t map_index(const Sim *sim, uint32_t address)
{
    uint32_t l1_bytes = (uint32_t)sim->config.l1_bytes, l2_bytes = (uint32_t)sim->config.l2_bytes;

    if (address - L1_BASE < l1_bytes)
        return address - L1_BASE;
    if (address - L2_BASE < l2_bytes)
        return l1_bytes + (address - L2_BASE);
    return l1_bytes + l2_bytes + (address - L3_BASE);
}

static inline uint32_t map_bytes(const SimConfig *config)
{
    return (uint32_t)config->l1_bytes + (uint32_t)config->l2_bytes + (uint32_t)config->l3_bytes;
}

/* How many blocks the watch map has; the last may be a part of one. */
static inline size_t watch_blocks(const SimConfig *config)
{
    return map_bytes(config) / WATCH_BLOCK + 1;
}

static inline bool in_l3(const Sim *sim, uint32_t address)
{
    return address - L3_BASE < (uint32_t)sim->config.l3_bytes;
}

static inline uint32_t bits(uint32_t word, int low, int count)
{
    return (word >> low) & ((1u << count) - 1u);
}

static inline int32_t sign_extend(uint32_t value, int width)
{
    return (int32_t)(value << (32 - width)) >> (32 - width);
}

static inline uint32_t rotate_right(uint32_t value, uint32_t by)
{
    by &= 31;
    return by ? value >> by | value << (32 - by) : value;
}

static inline void all_look_up(Sim *sim)
{
    for (int i = 0; i < MAX_HARTS; i++)
        sim->cores[i].attention |= ATTENTION_STOP;
}

static inline void stop_run(Sim *sim, SimStatus status)
{
    sim->status = (int32_t)status;
    all_look_up(sim);
}

static inline void pause_run(Sim *sim)
{
    sim->pause = true;
    all_look_up(sim);
}

static inline void continue_run(Sim *sim)
{
    sim->pause = false;
    for (int i = 0; i < MAX_HARTS; i++)
        sim->cores[i].attention &= (uint8_t)~ATTENTION_STOP;
}

static inline void set_observed(Core *core)
{
    bool on = core->sim->tracing || (core->pcmr & 1);
    core->attention = (uint8_t)((core->attention & ~ATTENTION_OBSERVED) |
                                (on ? ATTENTION_OBSERVED : 0));
}

static inline void add_stall(Core *core, StallKind kind, uint64_t cycles)
{
    core->stall += cycles;
    core->stalls[kind] += cycles;
}

/* The value of rd can be used `cycles` after the instruction, all its stalls so far included. */
static inline void result_ready_after(Core *core, uint32_t rd, uint64_t cycles)
{
    uint64_t when = core->now + core->stall + cycles;
    if (when > core->ready[rd]) {
        core->ready[rd] = when;
        if (when > core->ready_max)
            core->ready_max = when;
    }
}

/* The divider blocks the core; insn->aux is its latency. */
static inline void divider_latency(Core *core, const Insn *insn)
{
    result_ready_after(core, insn->rd, insn->aux);
    add_stall(core, STALL_FPU_LATENCY, insn->aux - 1u);
}

/* Every bank serves one access per cycle; accesses queue up in the order in which they come. */
static inline uint64_t bank_wait(Sim *sim, uint32_t address, uint64_t now)
{
    uint64_t *bank = &sim->bank_free[(address >> 2) & sim->bank_mask], free = *bank;

    if (!sim->config.contention)
        return 0;
    if (UNLIKELY(free > now)) {
        *bank = free + 1;
        return free - now;
    }
    *bank = now + 1;
    return 0;
}

/* The usual case of a fetch: the line of its set that was asked for last, and it is there. */
static inline bool icache_hit(Core *core, uint32_t line_address)
{
    uint32_t tag = line_address / FETCH_BYTES;
    uint32_t line = core->l0.recent[tag & (core->l0.sets - 1)];

    if (core->l0.tag[line] != tag || core->l0.line_ready[line] > core->now ||
        !core->sim->icache_on)
        return false;
    core->line = line_address;
    return true;
}

#endif
