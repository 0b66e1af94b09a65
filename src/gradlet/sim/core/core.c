/* One core: fetch, wait for operands and units, execute, until another core must be asked. */
#include "sim.h"

/* Instructions that only touch the core itself may run ahead of the other cores; the quantum
 * bounds how far, so that a core in an endless loop still lets the cycle limit strike. */
#define QUANTUM 4096

void fault(Core *core, FaultKind kind, uint32_t address, uint32_t size)
{
    Sim *sim = core->sim;
    const uint8_t *at;

    if (sim->status != STATUS_RUNNING)
        return;
    at = ram(sim, core->current_pc, 2);
    stop_run(sim, STATUS_FAULT);
    sim->fault.kind = (int32_t)kind;
    sim->fault.core = core->id;
    sim->fault.pc = core->current_pc;
    sim->fault.address = address;
    sim->fault.size = size;
    sim->fault.opcode = 0;
    if (at) {
        sim->fault.opcode = read_le(at, 2);
        if ((sim->fault.opcode & 3) == 3 && ram(sim, core->current_pc, 4))
            sim->fault.opcode = read_le(at, 4);
    }
}

static Insn *insn_slot(Sim *sim, uint32_t pc)
{
    uint32_t offset = pc - L2_BASE;

    if (LIKELY(offset < (uint32_t)sim->config.l2_bytes))
        return &sim->code_l2[offset >> 1];
    offset = pc - L1_BASE;
    if (offset < (uint32_t)sim->config.l1_bytes)
        return &sim->code_l1[offset >> 1];
    return NULL;
}

/* The cores meet it one by one, each where its own time has come. */
int32_t sim_break(Sim *sim, uint32_t address, int32_t on)
{
    Insn *slot = insn_slot(sim, address);

    if (!slot)
        return -1;
    slot->exec = NULL;
    slot->flags = (uint16_t)((slot->flags & FLAG_LOOP_END) | (on ? FLAG_BREAK : 0));
    return 0;
}

uint32_t sim_take_breaks(Sim *sim)
{
    uint32_t cores = sim->cores_at_break;

    sim->cores_at_break = 0;
    return cores;
}

static bool is_alone(const Sim *sim, const Core *core, uint64_t now)
{
    return sim->first == core && !core->list_next && now <= sim->next_event;
}

/* The fetch buffer holds one line.  An instruction that starts in its last two bytes needs the
 * next line too, even a compressed one: the buffer is asked for four bytes. */
static bool refill_fetch_buffer(Core *core, uint32_t pc, bool may_share)
{
    uint32_t offset = pc - core->line;
    uint32_t line = pc & ~(FETCH_BYTES - 1);

    if (core->is_controller) { /* its cache is not modelled */
        core->line = pc - line > FETCH_BYTES - 4 ? line + FETCH_BYTES : line;
        return true;
    }
    if (offset >= FETCH_BYTES) {
        if (!icache_hit(core, line) && !icache_fetch(core, line, may_share))
            return false;
        offset = pc - line;
    }
    return offset <= FETCH_BYTES - 4 || icache_fetch(core, line + FETCH_BYTES, may_share);
}

static void wait_for_operands(Core *core, const Insn *insn)
{
    uint64_t ready = core->ready[insn->rs1], time = core->now + core->stall;

    if (core->ready[insn->rs2] > ready)
        ready = core->ready[insn->rs2];
    if (core->ready[insn->rs3] > ready)
        ready = core->ready[insn->rs3];
    if (ready > time) {
        add_stall(core, STALL_LOAD_USE, ready - time);
        core->events[EV_LOAD_STALL] += ready - time;
    }
}

/* One operation per cycle and FPU; the slot is taken before the operands are there. */
static void book_fpu(Core *core)
{
    Sim *sim = core->sim;
    uint64_t *free = &sim->fpu_free[core->id % sim->config.fpus];
    uint64_t time = core->now + core->stall;

    if (time < *free) {
        add_stall(core, STALL_FPU_CONTENTION, *free - time);
        *free += 1;
    } else {
        *free = time + 1;
    }
}

/* Divide and square root: one unit for the whole cluster, busy until the result is there. */
static void book_divider(Core *core, const Insn *insn)
{
    uint64_t *free = &core->sim->fdiv_free, time = core->now + core->stall;

    if (time < *free) {
        add_stall(core, STALL_FPU_CONTENTION, *free - time);
        *free += insn->aux;
    } else {
        *free = time + insn->aux;
    }
}

static void book_unit(Core *core, const Insn *insn)
{
    if (core->is_controller)
        return;
    if (insn->flags & FLAG_FPU)
        book_fpu(core);
    else if (insn->flags & FLAG_FDIV)
        book_divider(core, insn);
}

/* Loop 0 is the inner one and is looked at first. */
static void end_of_loop(Core *core, uint32_t pc)
{
    for (int i = 0; i < 2; i++) {
        if (core->loop_count[i] && core->loop_end[i] == pc && --core->loop_count[i]) {
            core->pc = core->loop_start[i];
            return;
        }
    }
}

static void record(Core *core, const Insn *insn, uint32_t pc)
{
    Sim *sim = core->sim;
    TraceRecord *entry = &sim->trace[sim->trace_used++];
    const uint8_t *at = ram(sim, pc, insn->size);

    entry->cycle = core->now;
    entry->core = (uint32_t)core->id;
    entry->pc = pc;
    entry->opcode = at ? read_le(at, insn->size) : 0;
    entry->name = insn->name;
    entry->rd = insn->rd;
    entry->value = insn->rd < REG_SINK ? core->x[insn->rd] : 0;
    /* the other cores may still execute one instruction each in this cycle */
    if (sim->trace_used + 2 * MAX_HARTS >= (uint32_t)sim->config.trace_records)
        pause_run(sim);
}

/* The decoded instruction at pc, or NULL: there is no memory, or the core must come back when it
 * is its turn to ask the shared cache. */
static Insn *fetch(Core *core, uint32_t pc, bool may_share)
{
    Sim *sim = core->sim;
    Insn *insn = insn_slot(sim, pc);

    if (UNLIKELY(!insn || (pc & 1))) {
        core->current_pc = pc;
        fault(core, FAULT_FETCH, pc, 2);
        return NULL;
    }
    if (UNLIKELY(pc - core->line > FETCH_BYTES - 4)) {
        if (may_share)
            sim->now = core->now;
        if (!refill_fetch_buffer(core, pc, may_share))
            return NULL;
    }
    if (UNLIKELY(!insn->exec))
        decode(core, insn, pc);
    return insn;
}

/* The same for the usual case: code in L2, decoded, in a line that the private cache has. */
static inline Insn *fetch_usual(Core *core, uint32_t pc)
{
    const Sim *sim = core->sim;
    uint32_t offset = pc - L2_BASE, line = pc & ~(FETCH_BYTES - 1);
    Insn *insn;

    if (offset >= (uint32_t)sim->config.l2_bytes || (pc & (FETCH_BYTES - 1)) > FETCH_BYTES - 4)
        return NULL;
    insn = &sim->code_l2[offset >> 1];
    if (!insn->exec || (pc & 1) || (line != core->line && !icache_hit(core, line)))
        return NULL;
    return insn;
}

/* The instruction that follows in memory, if it is decoded and already in the fetch buffer. */
static inline Insn *following(const Core *core, Insn *insn, uint32_t expected)
{
    Insn *next = insn + (insn->size >> 1);
    uint32_t pc = core->pc;

    return LIKELY(pc == expected && pc - core->line <= FETCH_BYTES - 4 && next->exec) ? next
                                                                                        : NULL;
}

/* A stretch of simple instructions within the fetch buffer, as long as no operand is late.
 * Returns the instruction after it, if that is in the buffer too. */
static inline Insn *run_simple(Core *core, Insn *insn, uint64_t *now, uint64_t end)
{
    uint32_t pc = core->pc, last = core->line + FETCH_BYTES - 4;
    uint64_t start = *now, stop = end - start < FETCH_BYTES ? end : start + FETCH_BYTES, time;

    for (time = start; insn->flags == FLAG_SIMPLE && pc <= last && time < stop; time++) {
        core->current_pc = pc;
        insn->exec(core, insn);
        pc += insn->size;
        insn += insn->size >> 1;
    }
    core->pc = pc;
    core->instructions += time - start;
    *now = time;
    return pc <= last && insn->exec ? insn : NULL;
}

/* The rare things that may have to be done after an instruction.  True: leave the run loop. */
static bool look_up(Core *core, const Insn *insn, uint32_t pc)
{
    if (insn->flags & FLAG_LOOP_END)
        end_of_loop(core, pc);
    if (core->attention & ATTENTION_OBSERVED) {
        core->events[EV_COMPRESSED] += insn->size == 2;
        if (core->sim->tracing)
            record(core, insn, pc);
    }
    return core->attention & ~ATTENTION_OBSERVED;
}

/* Pauses before the instruction once, then lets it pass. */
static bool pauses_here(Core *core)
{
    core->break_passed = !core->break_passed;
    if (core->break_passed) {
        core->sim->cores_at_break |= 1u << core->id;
        pause_run(core->sim);
    }
    return core->break_passed;
}

/* Whether it is the turn of an instruction that others can see; then it takes its unit. */
static inline bool enter_shared(Core *core, const Insn *insn, bool may_share)
{
    Sim *sim = core->sim;

    if (!may_share && !is_alone(sim, core, core->now))
        return false;
    sim->now = core->now;
    if (UNLIKELY(insn->flags & (FLAG_FPU | FLAG_FDIV | FLAG_BREAK))) {
        if ((insn->flags & FLAG_BREAK) && pauses_here(core))
            return false;
        book_unit(core, insn);
    }
    return true;
}

/* Runs until the core needs something that is shared and other cores may be due before it. */
static void run(Core *core)
{
    Sim *sim = core->sim;
    uint64_t now = sim->now;
    uint64_t end = now + QUANTUM <= sim->limit ? now + QUANTUM : sim->limit + 1;
    bool may_share = true, done = false;
    Insn *insn = core->fetched && core->fetched->exec ? core->fetched : NULL;

    core->fetched = NULL;
    while (LIKELY(!done && now < end)) {
        uint32_t pc = core->pc, flags;

        core->now = now;
        if (!insn)
            insn = fetch_usual(core, pc);
        if (UNLIKELY(!insn)) {
            insn = fetch(core, pc, may_share || is_alone(sim, core, now));
            if (UNLIKELY(!insn))
                break;
        }
        flags = insn->flags;
        if (flags == FLAG_SIMPLE && core->ready_max <= now && !core->stall && !core->attention) {
            insn = run_simple(core, insn, &now, end);
            may_share = false;
            done = core->attention;
            continue;
        }
        if ((flags & FLAG_SHARED) && !enter_shared(core, insn, may_share)) {
            core->fetched = insn;
            break;
        }
        may_share = false;
        if (core->ready_max > now + core->stall)
            wait_for_operands(core, insn);
        core->current_pc = pc;
        core->pc = pc + insn->size;
        insn->exec(core, insn);
        core->instructions++;
        if (UNLIKELY((flags & FLAG_LOOP_END) | core->attention)) {
            done = look_up(core, insn, pc);
            if (core->attention & ATTENTION_ASLEEP) {
                core->next = now + 1; /* to leave the run list; its stall waits with it */
                return;
            }
        }
        now += 1 + core->stall;
        core->stall = 0;
        insn = following(core, insn, pc + insn->size);
    }
    core->next = now;
}

void core_visit(Core *core)
{
    core->now = core->sim->now;
    if (core->second_half.active) {
        finish_second_half(core);
        core->next = core->sim->now + 1 + core->stall;
        core->stall = 0;
    } else {
        run(core);
    }
}
