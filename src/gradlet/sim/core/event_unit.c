/* The event unit: event buffers, barriers, mutexes, the dispatch FIFO.  A core that waits
 * leaves the run list and comes back when its wake-up event has run.
 * Register map and behaviour as in GVSoC's model of the PULP event unit. */
#include "sim.h"

enum { EVENT_BARRIER = 1 << 16, EVENT_MUTEX = 1 << 17, EVENT_DISPATCH = 1 << 18 };

static void wake_up(Sim *sim, int32_t id)
{
    sim->event_unit.core[id].asleep = false;
    resume_core(&sim->cores[id], sim->cores[id].wait.value);
}

static void begin_wake_up(Sim *sim, int32_t id)
{
    CoreEvents *unit = &sim->event_unit.core[id];

    unit->asleep = false;
    if (sim->cores[id].wait.kind == WAIT_EVENT && !sim->cores[id].wait.value)
        sim->cores[id].wait.value = unit->status & unit->mask;
    unit->status &= ~unit->clear_on_wake;
    unit->clear_on_wake = 0;
    schedule(sim, &unit->wakeup, (uint64_t)sim->config.wakeup_latency);
}

static void check_core(Sim *sim, int32_t id)
{
    CoreEvents *unit = &sim->event_unit.core[id];

    if (unit->asleep && (unit->status & unit->mask))
        begin_wake_up(sim, id);
}

void event_unit_raise(Sim *sim, uint32_t events, uint32_t cores)
{
    for (int32_t i = 0; i < sim->config.cores; i++) {
        if (cores >> i & 1) {
            sim->event_unit.core[i].status |= events;
            check_core(sim, i);
        }
    }
}

/* Even if its event is there already, the core sleeps for the time of a wake-up. */
static void wait_for_event(Core *core, const Insn *insn, WaitKind kind)
{
    CoreEvents *unit = &core->sim->event_unit.core[core->id];

    wait_core(core, kind, insn);
    core->wait.value = 0;
    unit->asleep = true;
    check_core(core->sim, core->id);
}

static bool core_access(Sim *sim, Core *core, const Insn *insn, int32_t id, uint32_t offset,
                        uint32_t *value, bool is_store)
{
    CoreEvents *unit = &sim->event_unit.core[id];

    if (is_store) {
        switch (offset) {
        case 0x00: unit->mask = *value; break;
        case 0x04: unit->mask &= ~*value; break;
        case 0x08: unit->mask |= *value; break;
        case 0x0C: unit->irq_mask = *value; break;
        case 0x10: unit->irq_mask &= ~*value; break;
        case 0x14: unit->irq_mask |= *value; break;
        case 0x28: unit->status &= ~*value; break;
        default: return false;
        }
        check_core(sim, id);
        return true;
    }
    switch (offset) {
    case 0x00: *value = unit->mask; return true;
    case 0x0C: *value = unit->irq_mask; return true;
    case 0x18: *value = !unit->asleep; return true;
    case 0x1C: *value = unit->status; return true;
    case 0x20: *value = unit->status & unit->mask; return true;
    case 0x24: *value = unit->status & unit->irq_mask; return true;
    case 0x38:
    case 0x3C:
        if (!core)
            return false;
        unit->clear_on_wake = offset == 0x3C ? unit->mask : 0;
        wait_for_event(core, insn, WAIT_EVENT);
        return true;
    default: return false;
    }
}

static void check_barrier(Sim *sim, Barrier *barrier)
{
    if (barrier->status != barrier->trigger_mask)
        return;
    barrier->status = 0;
    sim->event_unit.released++;
    /* A target mask of zero means everybody, as for the software events. */
    event_unit_raise(sim, EVENT_BARRIER, barrier->target_mask ? barrier->target_mask : ~0u);
}

static bool barrier_access(Core *core, const Insn *insn, uint32_t offset, uint32_t *value,
                           bool is_store)
{
    Sim *sim = core->sim;
    Barrier *barrier = &sim->event_unit.barrier[offset >> 5 & (BARRIERS - 1)];
    CoreEvents *unit = &sim->event_unit.core[core->id];
    uint32_t me = 1u << core->id;

    switch (offset & 31) {
    case 0x00:
        if (!is_store)
            *value = barrier->trigger_mask;
        else
            barrier->trigger_mask = *value;
        break;
    case 0x04:
        if (!is_store)
            *value = barrier->status;
        else
            barrier->status = *value;
        break;
    case 0x0C:
        if (!is_store)
            *value = barrier->target_mask;
        else
            barrier->target_mask = *value;
        break;
    case 0x10:
        if (!is_store)
            return false;
        barrier->status |= *value;
        break;
    case 0x14: barrier->status |= me; break;
    case 0x18:
    case 0x1C:
        barrier->status |= me;
        unit->clear_on_wake = (offset & 31) == 0x1C ? unit->mask : 0;
        check_barrier(sim, barrier);
        wait_for_event(core, insn, WAIT_BARRIER);
        return true;
    default: return false;
    }
    if (is_store || (offset & 31) == 0x14)
        check_barrier(sim, barrier);
    return true;
}

static bool mutex_access(Core *core, const Insn *insn, uint32_t offset, uint32_t *value,
                         bool is_store)
{
    Sim *sim = core->sim;
    Mutex *mutex = &sim->event_unit.mutex[offset >> 2 & (MUTEXES - 1)];

    if (!is_store && !mutex->locked) {
        mutex->locked = true;
        *value = 0;
    } else if (!is_store) {
        mutex->waiting |= 1u << core->id;
        sim->event_unit.core[core->id].clear_on_wake = EVENT_MUTEX;
        wait_for_event(core, insn, WAIT_EVENT);
    } else if (mutex->waiting) { /* the lock goes to the first core that waits */
        int next = __builtin_ctz(mutex->waiting);
        mutex->waiting &= mutex->waiting - 1;
        sim->cores[next].wait.value = *value;
        event_unit_raise(sim, EVENT_MUTEX, 1u << next);
    } else {
        mutex->locked = false;
    }
    return true;
}

static void advance_tail(EventUnit *unit, int32_t id)
{
    unit->dispatch_tail[id] = (unit->dispatch_tail[id] + 1) % DISPATCH_DEPTH;
}

static void dispatch_push(Sim *sim, uint32_t value)
{
    EventUnit *unit = &sim->event_unit;
    DispatchEntry *entry = &unit->dispatch[unit->dispatch_head];

    unit->dispatch_head = (unit->dispatch_head + 1) % DISPATCH_DEPTH;
    entry->value = value;
    entry->team = unit->dispatch_team;
    entry->pending = ~0u;
    for (int32_t id = 0; id < sim->config.cores; id++) {
        uint32_t me = 1u << id;
        if (!(entry->waiting & me))
            continue;
        entry->waiting &= ~me;
        entry->pending &= ~me;
        advance_tail(unit, id);
        if (entry->team & me) {
            sim->cores[id].wait.value = value;
            event_unit_raise(sim, EVENT_DISPATCH, me);
        } else { /* not of the team: go on waiting, for the next entry */
            unit->dispatch[unit->dispatch_tail[id]].waiting |= me;
        }
    }
}

static bool dispatch_access(Core *core, const Insn *insn, uint32_t offset, uint32_t *value,
                            bool is_store)
{
    EventUnit *unit = &core->sim->event_unit;
    uint32_t me = 1u << core->id;
    DispatchEntry *entry = &unit->dispatch[unit->dispatch_tail[core->id]];

    if (offset == 4 && is_store) {
        unit->dispatch_team = *value;
        return true;
    }
    if (offset != 0)
        return false;
    if (is_store) {
        dispatch_push(core->sim, *value);
        return true;
    }
    for (int i = 0; i < DISPATCH_DEPTH && (entry->pending & me) && !(entry->team & me); i++) {
        entry->pending &= ~me;
        advance_tail(unit, core->id);
        entry = &unit->dispatch[unit->dispatch_tail[core->id]];
    }
    if (entry->pending & me) {
        entry->pending &= ~me;
        *value = entry->value;
        advance_tail(unit, core->id);
    } else {
        entry->waiting |= me;
        unit->core[core->id].clear_on_wake = EVENT_DISPATCH;
        wait_for_event(core, insn, WAIT_EVENT);
    }
    return true;
}

static bool software_event(Sim *sim, uint32_t offset, uint32_t *value, bool is_store)
{
    if (!is_store || offset >= 0x40)
        return false;
    event_unit_raise(sim, 1u << (offset >> 2), *value ? *value : ~0u);
    return true;
}

/* The view of a core: 0x10204000. */
bool event_unit_access(Core *core, const Insn *insn, uint32_t offset, uint32_t *value,
                       bool is_store)
{
    if (offset < 0x40)
        return core_access(core->sim, core, insn, core->id, offset, value, is_store);
    if (offset >= 0x200)
        return barrier_access(core, insn, offset - 0x200, value, is_store);
    if (offset >= 0x100)
        return software_event(core->sim, offset - 0x100, value, is_store);
    if (offset >= 0xC0)
        return mutex_access(core, insn, offset - 0xC0, value, is_store);
    if (offset >= 0x80)
        return dispatch_access(core, insn, offset - 0x80, value, is_store);
    return false;
}

/* The view from outside, without waiting: 0x10200800. */
bool event_unit_global(Sim *sim, uint32_t offset, uint32_t *value, bool is_store)
{
    if (offset < 0x400 && (int32_t)(offset >> 6) < sim->config.cores)
        return core_access(sim, NULL, NULL, (int32_t)(offset >> 6), offset & 0x3F, value,
                           is_store);
    if (offset >= 0x600 && offset < 0x700)
        return software_event(sim, offset - 0x600, value, is_store);
    return false;
}

void event_unit_init(Sim *sim)
{
    for (int32_t i = 0; i < MAX_CORES; i++) {
        sim->event_unit.core[i].wakeup.run = wake_up;
        sim->event_unit.core[i].wakeup.argument = i;
    }
}
