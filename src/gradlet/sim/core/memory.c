/* The address map as a core sees it, and accesses that are not plain L1. */
#include "sim.h"

#define TEST_AND_SET_BASE 0x10100000u
#define CLUSTER_PERIPH_BASE 0x10200000u
#define CLUSTER_PERIPH_SIZE 0x00200000u
#define DEMUX_EVENT_UNIT 0x10204000u
#define DEMUX_DMA 0x10204400u
#define DEMUX_SIZE 0x400u
#define SOC_PERIPH_BASE 0x1A100000u
#define SOC_PERIPH_SIZE 0x00010000u

uint8_t *ram(const Sim *sim, uint32_t address, uint32_t size)
{
    uint32_t l1_bytes = (uint32_t)sim->config.l1_bytes, l2_bytes = (uint32_t)sim->config.l2_bytes;

    if (address - L1_BASE < l1_bytes && size <= l1_bytes - (address - L1_BASE))
        return sim->l1 + (address - L1_BASE);
    if (address - L2_BASE < l2_bytes && size <= l2_bytes - (address - L2_BASE))
        return sim->l2 + (address - L2_BASE);
    if (in_l3(sim, address) && size <= (uint32_t)sim->config.l3_bytes - (address - L3_BASE))
        return sim->l3 + (address - L3_BASE);
    return NULL;
}

/* Slots in blocks without code are left alone: touching them would cost memory. */
static void forget_slot(Sim *sim, uint32_t address)
{
    Insn *slot;

    if (!ram(sim, address, 1) || !sim->code_present[map_index(sim, address) >> 8])
        return;
    if (address - L1_BASE < (uint32_t)sim->config.l1_bytes)
        slot = &sim->code_l1[(address - L1_BASE) >> 1];
    else
        slot = &sim->code_l2[(address - L2_BASE) >> 1];
    slot->exec = NULL;
    slot->flags &= FLAG_LOOP_END | FLAG_BREAK;
}

/* Drop what was decoded from these bytes; a 4-byte instruction may start 2 bytes before. */
void code_written(Sim *sim, uint32_t address, uint32_t size)
{
    uint32_t first = (address & ~1u) - 2;

    for (uint32_t offset = 0; offset < size + 3; offset += 2)
        forget_slot(sim, first + offset);
}

static void ram_transfer(Core *core, uint8_t *at, uint32_t address, uint32_t size,
                         uint32_t *value, bool is_store)
{
    Sim *sim = core->sim;

    if (sim->watch && !core->is_controller && !watch_ok(core, address, size, is_store))
        return;
    if (!is_store) {
        *value = read_le(at, size);
        return;
    }
    __builtin_memcpy(at, value, size);
    if (sim->code_present[map_index(sim, address) >> 8])
        code_written(sim, address, size);
}

static bool test_and_set(Core *core, uint32_t address, uint32_t size, uint32_t *value,
                         bool is_store)
{
    uint8_t *at = ram(core->sim, address - TEST_AND_SET_BASE + L1_BASE, size);
    uint32_t ones = UINT32_MAX;

    if (!at)
        return false;
    if (is_store) {
        __builtin_memcpy(at, value, size);
    } else {
        *value = read_le(at, size);
        __builtin_memcpy(at, &ones, size);
    }
    return true;
}

static bool device_access(Core *core, const Insn *insn, uint32_t address, uint32_t size,
                          uint32_t *value, bool is_store, uint64_t *latency)
{
    const SimConfig *config = &core->sim->config;

    *latency = 0;
    if (!core->is_controller) {
        if (address - DEMUX_EVENT_UNIT < DEMUX_SIZE && size == 4)
            return event_unit_access(core, insn, address - DEMUX_EVENT_UNIT, value, is_store);
        if (address - DEMUX_DMA < DEMUX_SIZE && size == 4)
            return dma_access(core, insn, (uint32_t)core->id, address - DEMUX_DMA, value,
                              is_store);
        if (address - TEST_AND_SET_BASE < (uint32_t)config->l1_bytes)
            return test_and_set(core, address, size, value, is_store);
    }
    if (address - CLUSTER_PERIPH_BASE < CLUSTER_PERIPH_SIZE)
        *latency = (uint64_t)config->cluster_periph_latency;
    else if (address - SOC_PERIPH_BASE < SOC_PERIPH_SIZE)
        *latency = (uint64_t)config->soc_periph_latency;
    return periph_access(core, insn, address, size, value, is_store);
}

/* One access that stays within a word.  Returns false if it failed or if the core now waits. */
static bool access_word(Core *core, const Insn *insn, uint32_t address, uint32_t size,
                        uint32_t *value, bool is_store, uint64_t *latency)
{
    Sim *sim = core->sim;
    uint8_t *at = ram(sim, address, size);

    *latency = 0;
    if (at) {
        bool in_l1 = address - L1_BASE < (uint32_t)sim->config.l1_bytes;
        if (in_l1 && !core->is_controller)
            *latency = bank_wait(sim, address, core->now);
        else if (!core->is_controller)
            *latency = (uint64_t)(in_l3(sim, address) ? sim->config.l3_latency
                                                      : sim->config.l2_latency);
        ram_transfer(core, at, address, size, value, is_store);
        if (in_l1 && *latency)
            core->events[EV_TCDM_CONTENTION] += *latency;
        else if (!in_l1)
            core->events[is_store ? EV_EXT_STORE : EV_EXT_LOAD]++;
        return sim->status == STATUS_RUNNING;
    }
    if (!device_access(core, insn, address, size, value, is_store, latency)) {
        fault(core, is_store ? FAULT_STORE : FAULT_LOAD, address, size);
        return false;
    }
    return core->state == CORE_RUNNING && sim->status == STATUS_RUNNING;
}

static void account_latency(Core *core, uint32_t address, uint64_t latency, bool is_store)
{
    bool in_l1 = address - L1_BASE < (uint32_t)core->sim->config.l1_bytes;

    add_stall(core, in_l1 ? STALL_TCDM_CONTENTION : STALL_MEMORY, latency);
    if (!in_l1)
        core->events[is_store ? EV_EXT_STORE_CYCLES : EV_EXT_LOAD_CYCLES] += latency;
}

/* The part in the first word goes out now, the rest when the core is visited next. */
static bool split_access(Core *core, const Insn *insn, uint32_t address, uint32_t size,
                         uint32_t value, bool is_store, bool sign)
{
    uint32_t first_size = 4 - (address & 3), first = value;
    uint64_t latency;

    if (!ram(core->sim, address, size)) {
        fault(core, is_store ? FAULT_STORE : FAULT_LOAD, address, size);
        return false;
    }
    if (!access_word(core, insn, address, first_size, &first, is_store, &latency))
        return false;
    account_latency(core, address, latency, is_store);
    core->stalls[STALL_MISALIGNED]++;
    core->second_half.active = true;
    core->attention |= ATTENTION_SECOND_HALF;
    core->second_half.is_store = is_store;
    core->second_half.sign = sign;
    core->second_half.address = address + first_size;
    core->second_half.size = (uint8_t)(size - first_size);
    core->second_half.first_size = (uint8_t)first_size;
    core->second_half.rd = insn->rd;
    core->second_half.value = is_store ? value >> (8 * first_size) : first;
    return true;
}

void finish_second_half(Core *core)
{
    static const Insn no_insn = {0};
    uint32_t address = core->second_half.address, value = core->second_half.value;
    uint32_t first_size = core->second_half.first_size, size = core->second_half.size;
    bool is_store = core->second_half.is_store;
    uint64_t latency;

    core->second_half.active = false;
    core->attention &= (uint8_t)~ATTENTION_SECOND_HALF;
    if (!access_word(core, &no_insn, address, size, &value, is_store, &latency))
        return;
    if (!is_store) {
        int width = (int)(first_size + size) * 8;
        value = core->second_half.value | value << (8 * first_size);
        core->x[core->second_half.rd] =
            core->second_half.sign ? (uint32_t)sign_extend(value, width) : value;
        result_ready_after(core, core->second_half.rd,
                           latency + 1 + (uint64_t)core->sim->config.load_use);
        account_latency(core, address, latency, false);
    }
    core->events[EV_LOAD]++; /* GVSoC counts a store's second half as a load, and does not wait */
}

void slow_load(Core *core, const Insn *insn, uint32_t address, uint32_t size, bool sign)
{
    uint32_t value = 0;
    uint64_t latency;

    if ((address & 3) + size > 4) {
        split_access(core, insn, address, size, 0, false, sign);
        return;
    }
    if (!access_word(core, insn, address, size, &value, false, &latency))
        return;
    core->x[insn->rd] = sign ? (uint32_t)sign_extend(value, (int)size * 8) : value;
    result_ready_after(core, insn->rd, latency + 1 + (uint64_t)core->sim->config.load_use);
    account_latency(core, address, latency, false);
}

void slow_store(Core *core, const Insn *insn, uint32_t address, uint32_t size, uint32_t value)
{
    uint64_t latency;

    if ((address & 3) + size > 4) {
        split_access(core, insn, address, size, value, true, false);
        return;
    }
    if (access_word(core, insn, address, size, &value, true, &latency))
        account_latency(core, address, latency, true);
}

int32_t sim_read(const Sim *sim, uint32_t address, uint8_t *out, uint32_t size)
{
    const uint8_t *at = ram(sim, address, size);

    if (!at)
        return -1;
    __builtin_memcpy(out, at, size);
    return 0;
}

int32_t sim_write(Sim *sim, uint32_t address, const uint8_t *in, uint32_t size)
{
    uint8_t *at = ram(sim, address, size);

    if (!at)
        return -1;
    __builtin_memcpy(at, in, size);
    code_written(sim, address, size);
    return 0;
}
