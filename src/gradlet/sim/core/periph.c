/* Cluster control, instruction-cache control, timer, and the SoC registers that programs need:
 * stdout and exit. */
#include "sim.h"

#define CLUSTER_CONTROL 0x10200000u
#define CLUSTER_TIMER 0x10200400u
#define CLUSTER_EVENT_UNIT 0x10200800u
#define CLUSTER_ICACHE 0x10201400u
#define CLUSTER_DMA 0x10201800u
#define SOC_CONTROL 0x1A104000u
#define SOC_EXIT (SOC_CONTROL + 0xA0)
#define CONTROLLER_ICACHE 0x1A108800u
#define SOC_STDOUT 0x1A10F000u

static void enable_cores(Sim *sim, uint32_t mask)
{
    for (int32_t i = 0; i < sim->config.cores; i++) {
        if (mask >> i & 1)
            start_core(&sim->cores[i]);
        else
            stop_core(&sim->cores[i]);
    }
}

static uint32_t enabled_cores(const Sim *sim)
{
    uint32_t mask = 0;

    for (int32_t i = 0; i < sim->config.cores; i++)
        mask |= (uint32_t)(sim->cores[i].state != CORE_OFF) << i;
    return mask;
}

static bool cluster_control(Sim *sim, uint32_t offset, uint32_t *value, bool is_store)
{
    uint32_t core = (offset - 0x40) >> 2;

    if (offset >= 0x40 && offset < 0x80) {
        if (core >= MAX_CORES)
            return false;
        if (is_store)
            sim->cores[core].boot_address = *value;
        else
            *value = sim->cores[core].boot_address;
        return true;
    }
    if (offset == 0x08) {
        if (is_store)
            enable_cores(sim, *value);
        else
            *value = enabled_cores(sim);
        return true;
    }
    if (!is_store)
        *value = 0;
    return offset <= 0x38;
}

static bool icache_control(Sim *sim, uint32_t offset, uint32_t value, bool is_store)
{
    if (is_store && offset == 0)
        sim->icache_on = value != 0;
    else if (is_store && (offset == 4 || offset == 8))
        icache_flush(sim);
    return offset < 0x100;
}

static void put_char(Sim *sim, uint32_t value)
{
    sim->stdout_data[sim->stdout_used++] = (char)value;
    if (sim->stdout_used + 2 * MAX_HARTS >= (uint32_t)sim->config.stdout_bytes)
        pause_run(sim);
}

static void program_exit(Sim *sim, uint32_t value)
{
    sim->exit_code = value & 0x7FFFFFFF;
    stop_run(sim, STATUS_EXIT);
}

static bool soc_access(Sim *sim, uint32_t address, uint32_t *value, bool is_store)
{
    if (!is_store)
        *value = 0;
    if (address == SOC_EXIT) {
        if (is_store && *value >> 31)
            program_exit(sim, *value);
        return true;
    }
    if (address - SOC_STDOUT < 0x1000u) {
        if (is_store)
            put_char(sim, *value);
        return true;
    }
    return address - CONTROLLER_ICACHE < 0x400u || address - SOC_CONTROL < 0x1000u;
}

bool periph_access(Core *core, const Insn *insn, uint32_t address, uint32_t size,
                   uint32_t *value, bool is_store)
{
    Sim *sim = core->sim;

    if (address - 0x1A100000u < 0x10000u)
        return soc_access(sim, address, value, is_store);
    if (size != 4)
        return false;
    if (address - CLUSTER_CONTROL < 0x400u)
        return cluster_control(sim, address - CLUSTER_CONTROL, value, is_store);
    if (address - CLUSTER_TIMER < 0x400u)
        return timer_access(sim, address - CLUSTER_TIMER, value, is_store);
    if (address - CLUSTER_EVENT_UNIT < 0x800u)
        return event_unit_global(sim, address - CLUSTER_EVENT_UNIT, value, is_store);
    if (address - CLUSTER_ICACHE < 0x400u)
        return icache_control(sim, address - CLUSTER_ICACHE, *value, is_store);
    if (address - CLUSTER_DMA < 0x400u)
        return dma_access(core, insn, (uint32_t)sim->config.cores, address - CLUSTER_DMA, value,
                          is_store);
    return false;
}

/* ---- timer: two 32-bit counters, or one of 64 bits; events 10 and 11 to all cores */

enum {
    TIMER_ENABLE = 1, TIMER_RESET = 2, TIMER_IRQ = 4, TIMER_CLEAR = 16, TIMER_ONE_SHOT = 32,
    TIMER_CASCADE = 1u << 31
};
#define EVENT_TIMER 10

static uint32_t timer_value(const Sim *sim, int which)
{
    const Timer *timer = &sim->timer;
    uint64_t elapsed;

    if (which == 1 && (timer->config[0] & TIMER_CASCADE)) {
        elapsed = timer->config[0] & TIMER_ENABLE ? sim->now - timer->since[0] : 0;
        return timer->base[1] + (uint32_t)((timer->base[0] + elapsed) >> 32);
    }
    elapsed = timer->config[which] & TIMER_ENABLE ? sim->now - timer->since[which] : 0;
    return timer->base[which] + (uint32_t)elapsed;
}

static void timer_arm(Sim *sim, int which)
{
    const Timer *timer = &sim->timer;

    unschedule(sim, &sim->timer_event[which]);
    if ((timer->config[which] & TIMER_ENABLE) && (timer->config[which] & TIMER_IRQ)) {
        uint32_t left = timer->compare[which] - timer_value(sim, which);
        schedule(sim, &sim->timer_event[which], left ? left : 1);
    }
}

static void timer_set(Sim *sim, int which, uint32_t value)
{
    sim->timer.base[which] = value;
    sim->timer.since[which] = sim->now;
    timer_arm(sim, which);
}

static void timer_configure(Sim *sim, int which, uint32_t value)
{
    uint32_t count = value & TIMER_RESET ? 0 : timer_value(sim, which);

    sim->timer.config[which] = value & ~(uint32_t)TIMER_RESET;
    timer_set(sim, which, count);
}

static void timer_expire(Sim *sim, int32_t which)
{
    uint32_t config = sim->timer.config[which];

    event_unit_raise(sim, 1u << (EVENT_TIMER + which), ~0u);
    if (config & TIMER_ONE_SHOT)
        sim->timer.config[which] &= ~(uint32_t)TIMER_ENABLE;
    if (config & TIMER_CLEAR)
        timer_set(sim, which, 0);
}

bool timer_access(Sim *sim, uint32_t offset, uint32_t *value, bool is_store)
{
    int which = offset >> 2 & 1;

    if (!is_store) {
        switch (offset & ~4u) {
        case 0x00: *value = sim->timer.config[which]; return true;
        case 0x08: *value = timer_value(sim, which); return true;
        case 0x10: *value = sim->timer.compare[which]; return true;
        default: return false;
        }
    }
    switch (offset & ~4u) {
    case 0x00: timer_configure(sim, which, *value); return true;
    case 0x08: timer_set(sim, which, *value); return true;
    case 0x10: sim->timer.compare[which] = *value; timer_arm(sim, which); return true;
    case 0x18: timer_configure(sim, which, sim->timer.config[which] | TIMER_ENABLE); return true;
    case 0x20: timer_set(sim, which, 0); return true;
    default: return false;
    }
}

void timer_init(Sim *sim)
{
    for (int32_t i = 0; i < 2; i++) {
        sim->timer_event[i].run = timer_expire;
        sim->timer_event[i].argument = i;
    }
}
