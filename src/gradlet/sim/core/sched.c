/* Who runs when: the run list of the cores, the queue of delayed events, the main loop.
 *
 * The order of the cores within a cycle decides who gets a bank, an FPU or a cache line first.
 * A core that starts or wakes up goes to the head of the list; a core that goes to sleep leaves
 * the list when its turn comes in the following cycle, unless it was woken up before.  (Same
 * discipline as the clock engine of GVSoC, the reference for the timing.) */
#include "sim.h"

void schedule(Sim *sim, Event *event, uint64_t delay)
{
    uint64_t cycle = sim->now + delay;
    Event **link = &sim->events;

    if (event->queued)
        return;
    while (*link && (*link)->cycle <= cycle)
        link = &(*link)->next;
    event->cycle = cycle;
    event->next = *link;
    event->queued = true;
    *link = event;
    sim->next_event = sim->events->cycle;
}

void unschedule(Sim *sim, Event *event)
{
    Event **link = &sim->events;

    if (!event->queued)
        return;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    event->queued = false;
    sim->next_event = sim->events ? sim->events->cycle : NEVER;
}

static void run_due_events(Sim *sim)
{
    while (sim->events && sim->events->cycle <= sim->now) {
        Event *event = sim->events;
        sim->events = event->next;
        sim->next_event = sim->events ? sim->events->cycle : NEVER;
        event->queued = false;
        event->run(sim, event->argument);
    }
}

static void visit_at(Core *core, uint64_t cycle)
{
    core->next = cycle;
    if (cycle < core->sim->soonest)
        core->sim->soonest = cycle;
}

static void link_first(Core *core)
{
    Sim *sim = core->sim;

    core->list_prev = NULL;
    core->list_next = sim->first;
    if (sim->first)
        sim->first->list_prev = core;
    sim->first = core;
    core->linked = true;
}

static void unlink_core(Core *core)
{
    if (core->list_prev)
        core->list_prev->list_next = core->list_next;
    else
        core->sim->first = core->list_next;
    if (core->list_next)
        core->list_next->list_prev = core->list_prev;
    core->linked = false;
}

void start_core(Core *core)
{
    if (core->state != CORE_OFF)
        return;
    core->state = CORE_RUNNING;
    core->attention &= (uint8_t)~ATTENTION_ASLEEP;
    core->pc = core->boot_address;
    core->started = core->sim->now;
    core->stall = 0;
    core->line = 1; /* no aligned line starts there */
    core->fetched = NULL;
    if (!core->linked)
        link_first(core);
    visit_at(core, core->sim->now + 1);
}

void stop_core(Core *core)
{
    if (core->state == CORE_OFF)
        return;
    core->state = CORE_OFF;
    core->attention |= ATTENTION_ASLEEP;
    visit_at(core, core->sim->now + 1);
}

/* The instruction that calls this has not ended: the core goes on in resume_core. */
void wait_core(Core *core, WaitKind kind, const Insn *insn)
{
    core->state = CORE_WAITING;
    core->attention |= ATTENTION_ASLEEP;
    core->wait.kind = kind;
    core->wait.rd = (insn->flags & FLAG_LOAD) ? insn->rd : REG_SINK;
    core->wait.is_elw = (insn->flags & FLAG_ELW) != 0;
    core->wait.since = core->now;
}

static void account_wait(Core *core, uint32_t value)
{
    uint64_t cycles = core->sim->now > core->wait.since ? core->sim->now - core->wait.since : 0;
    bool for_dma = core->wait.kind == WAIT_DMA_COUNTER || core->wait.kind == WAIT_DMA_QUEUE ||
                   (core->wait.kind == WAIT_EVENT && (value & 0x300u));

    core->slept += cycles;
    core->events[EV_ELW] += core->wait.is_elw ? cycles : 0;
    core->stalls[core->wait.kind == WAIT_BARRIER ? STALL_BARRIER
                 : for_dma                       ? STALL_DMA
                                                 : STALL_EVENT] += cycles;
}

void resume_core(Core *core, uint32_t value)
{
    Sim *sim = core->sim;

    if (core->state != CORE_WAITING)
        return;
    account_wait(core, value);
    core->state = CORE_RUNNING;
    core->attention &= (uint8_t)~ATTENTION_ASLEEP;
    core->x[core->wait.rd] = value;
    core->x[0] = 0;
    core->now = sim->now;
    if (core->wait.rd != REG_SINK && !core->wait.is_elw) {
        uint64_t latency = core->wait.kind == WAIT_EVENT || core->wait.kind == WAIT_BARRIER
                               ? (uint64_t)sim->config.blocking_read_latency : 0;
        result_ready_after(core, core->wait.rd, latency + 1 + (uint64_t)sim->config.load_use);
        add_stall(core, STALL_MEMORY, latency);
    }
    if (core->linked) { /* its turn to leave the list has not come */
        visit_at(core, core->next + core->stall);
    } else {
        link_first(core);
        visit_at(core, sim->now + 1 + core->stall);
    }
    core->stall = 0;
}

static void visit_cores(Sim *sim)
{
    Core *core = sim->first;

    sim->soonest = NEVER;
    while (core) {
        Core *following = core->list_next;
        if (core->next == sim->now) {
            if (core->state != CORE_RUNNING) {
                unlink_core(core);
                core = following;
                continue;
            }
            core_visit(core);
        }
        if (core->next < sim->soonest)
            sim->soonest = core->next;
        core = following;
    }
}

/* A pass may end early, with some cores of this cycle not yet visited, only when the run is
 * over; a full output buffer stops the run between two cycles. */
static int32_t run_cycles(Sim *sim, uint64_t max_cycles)
{
    sim->limit = max_cycles;
    if (sim->status == STATUS_LIMIT) {
        sim->status = STATUS_RUNNING;
        continue_run(sim);
    }
    while (sim->status == STATUS_RUNNING) {
        uint64_t next;
        visit_cores(sim);
        if (sim->status != STATUS_RUNNING)
            break;
        if (sim->next_event <= sim->now)
            run_due_events(sim);
        next = sim->soonest < sim->next_event ? sim->soonest : sim->next_event;
        if (sim->status != STATUS_RUNNING)
            break;
        if (next == NEVER) {
            stop_run(sim, STATUS_DEADLOCK);
        } else if (next > max_cycles) {
            sim->now = max_cycles;
            stop_run(sim, STATUS_LIMIT);
        } else {
            sim->now = next;
            if (sim->pause) {
                continue_run(sim);
                return sim->cores_at_break ? STATUS_BREAK : STATUS_DRAIN;
            }
        }
    }
    return sim->status;
}

#if defined(__x86_64__)
/* The host arithmetic must round to nearest and keep subnormals, whatever the process has set. */
int32_t sim_run(Sim *sim, uint64_t max_cycles)
{
    uint32_t saved = __builtin_ia32_stmxcsr();
    int32_t status;

    __builtin_ia32_ldmxcsr(0x1F80);
    status = run_cycles(sim, max_cycles);
    __builtin_ia32_ldmxcsr(saved);
    return status;
}
#else
int32_t sim_run(Sim *sim, uint64_t max_cycles)
{
    return run_cycles(sim, max_cycles);
}
#endif
