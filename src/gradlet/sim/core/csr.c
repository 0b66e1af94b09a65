/* Control and status registers, among them the performance counters of RI5CY.
 *
 * The cores count events all the time; a PCCR register shows what was counted while it was
 * enabled (its bit in PCER, and PCMR). */
#include "sim.h"

enum {
    CSR_FFLAGS = 0x001, CSR_FRM = 0x002, CSR_FCSR = 0x003,
    CSR_HARTID_PULP = 0x014,
    CSR_MSTATUS = 0x300, CSR_MISA = 0x301, CSR_MIE = 0x304, CSR_MTVEC = 0x305,
    CSR_MSCRATCH = 0x340, CSR_MEPC = 0x341, CSR_MCAUSE = 0x342, CSR_MTVAL = 0x343,
    CSR_MIP = 0x344,
    CSR_PCCR = 0x780, CSR_PCCR_ALL = 0x79F,
    CSR_LOOP_V2 = 0x7B0, CSR_LOOP = 0x7C0,
    CSR_MCYCLE = 0xB00, CSR_MINSTRET = 0xB02, CSR_MCYCLEH = 0xB80, CSR_MINSTRETH = 0xB82,
    CSR_CYCLE = 0xC00, CSR_INSTRET = 0xC02, CSR_PRIVILEGE = 0xC10, CSR_CYCLEH = 0xC80,
    CSR_INSTRETH = 0xC82,
    CSR_PCER = 0xCC0, CSR_PCMR = 0xCC1,
    CSR_MVENDORID = 0xF11, CSR_MARCHID = 0xF12, CSR_MIMPID = 0xF13, CSR_MHARTID = 0xF14
};

#define CONTROLLER_CLUSTER 31u
#define MISA_RV32 0x40000000u

static uint64_t event_count(const Core *core, int event)
{
    if (event == EV_CYCLES)
        return core->now - core->started - core->slept;
    if (event == EV_INSTRUCTIONS)
        return core->instructions;
    return core->events[event];
}

static bool is_counting(const Core *core, int event)
{
    return (core->pcmr & 1) && (core->pcer >> event & 1);
}

static void collect_counters(Core *core)
{
    for (int i = 0; i < EV_KINDS; i++) {
        uint64_t count = event_count(core, i);
        if (is_counting(core, i) && count > core->pccr_base[i])
            core->pccr[i] += (uint32_t)(count - core->pccr_base[i]);
        core->pccr_base[i] = count;
    }
    /* The instruction that reads or switches the counters is counted only after it is over. */
    core->pccr_base[EV_INSTRUCTIONS] += 1;
    if (is_counting(core, EV_INSTRUCTIONS))
        core->pccr_base[EV_INSTRUCTIONS] -= 1;
}

static bool pulp_read(Core *core, uint32_t number, uint32_t *value)
{
    if (number == CSR_PCER) {
        *value = core->pcer;
    } else if (number == CSR_PCMR) {
        *value = core->pcmr;
    } else if (number >= CSR_PCCR && number < CSR_PCCR_ALL) {
        collect_counters(core);
        *value = core->pccr[number - CSR_PCCR];
    } else if (number == CSR_PCCR_ALL) {
        *value = 0;
    } else {
        return false;
    }
    return true;
}

static uint32_t *loop_register(Core *core, uint32_t number)
{
    uint32_t base = number >= CSR_LOOP ? CSR_LOOP : CSR_LOOP_V2, index = number - base;

    if (number < CSR_LOOP_V2 || index > 6 || index == 3)
        return NULL;
    switch (index & 3) {
    case 0: return &core->loop_start[index >> 2];
    case 1: return &core->loop_end[index >> 2];
    default: return &core->loop_count[index >> 2];
    }
}

static uint32_t hart_id(const Core *core)
{
    return core->is_controller ? CONTROLLER_CLUSTER << 5 : (uint32_t)core->id;
}

bool csr_read(Core *core, uint32_t number, uint32_t *value)
{
    const uint32_t *loop = loop_register(core, number);

    if (loop) {
        *value = *loop;
        return true;
    }
    switch (number) {
    case CSR_FFLAGS: *value = core->fflags; break;
    case CSR_FRM: *value = core->frm; break;
    case CSR_FCSR: *value = core->frm << 5 | core->fflags; break;
    case CSR_MSTATUS: *value = core->mstatus; break;
    case CSR_MISA: *value = MISA_RV32; break;
    case CSR_MTVEC: *value = core->mtvec; break;
    case CSR_MSCRATCH: *value = core->mscratch; break;
    case CSR_MEPC: *value = core->mepc; break;
    case CSR_MCAUSE: *value = core->mcause; break;
    case CSR_MCYCLE: case CSR_CYCLE: *value = (uint32_t)core->now; break;
    case CSR_MCYCLEH: case CSR_CYCLEH: *value = (uint32_t)(core->now >> 32); break;
    case CSR_MINSTRET: case CSR_INSTRET: *value = (uint32_t)core->instructions; break;
    case CSR_MINSTRETH: case CSR_INSTRETH: *value = (uint32_t)(core->instructions >> 32); break;
    case CSR_PRIVILEGE: *value = 3; break;
    case CSR_HARTID_PULP: case CSR_MHARTID: *value = hart_id(core); break;
    case CSR_MIE: case CSR_MIP: case CSR_MTVAL:
    case CSR_MVENDORID: case CSR_MARCHID: case CSR_MIMPID: *value = 0; break;
    default: return pulp_read(core, number, value);
    }
    return true;
}

static bool pulp_write(Core *core, uint32_t number, uint32_t value)
{
    if (number != CSR_PCER && number != CSR_PCMR && (number < CSR_PCCR || number > CSR_PCCR_ALL))
        return false;
    collect_counters(core);
    if (number == CSR_PCER) {
        core->pcer = value & 0x7FFFFFFF;
    } else if (number == CSR_PCMR) {
        core->pcmr = value;
        set_observed(core);
    } else if (number == CSR_PCCR_ALL) {
        for (int i = 0; i < EV_ALL; i++)
            core->pccr[i] = value;
    } else {
        core->pccr[number - CSR_PCCR] = value;
    }
    return true;
}

bool csr_write(Core *core, uint32_t number, uint32_t value)
{
    uint32_t *loop = loop_register(core, number);

    if (loop) {
        *loop = value;
        return true;
    }
    switch (number) {
    case CSR_FFLAGS: core->fflags = value & 31; break;
    case CSR_FRM: core->frm = value & 7; break;
    case CSR_FCSR: core->fflags = value & 31; core->frm = value >> 5 & 7; break;
    case CSR_MSTATUS: core->mstatus = value; break;
    case CSR_MTVEC: core->mtvec = value; break;
    case CSR_MSCRATCH: core->mscratch = value; break;
    case CSR_MEPC: core->mepc = value & ~1u; break;
    case CSR_MCAUSE: core->mcause = value; break;
    case CSR_MISA: case CSR_MIE: case CSR_MIP: case CSR_MTVAL:
    case CSR_MCYCLE: case CSR_MCYCLEH: case CSR_MINSTRET: case CSR_MINSTRETH: break;
    default: return pulp_write(core, number, value);
    }
    return true;
}
