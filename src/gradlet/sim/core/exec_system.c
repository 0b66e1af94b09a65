/* CSR instructions, fences, waiting, and the two hardware loops. */
#include "entry.h"

static void op_fence(Core *core, const Insn *insn)
{
    if (insn->imm) /* fence.i */
        core->line = 1;
}

static void op_wfi(Core *core, const Insn *insn)
{
    wait_core(core, WAIT_FOREVER, insn);
}

static void op_mret(Core *core, const Insn *insn)
{
    (void)insn;
    core->pc = core->mepc;
    add_stall(core, STALL_BRANCH, 4);
}

static void op_environment(Core *core, const Insn *insn)
{
    fault(core, insn->imm ? FAULT_BREAKPOINT : FAULT_ENVIRONMENT_CALL, core->current_pc, 0);
}

static void op_csr(Core *core, const Insn *insn)
{
    uint32_t operand = (insn->aux & 4) ? insn->rs3 : core->x[insn->rs1];
    bool writes = (insn->aux & 3) == 1 || (insn->aux & 8);
    uint32_t old = 0;

    if (!csr_read(core, IMM, &old)) {
        fault(core, FAULT_ILLEGAL, IMM, 0);
        return;
    }
    if (writes) {
        uint32_t value = (insn->aux & 3) == 1   ? operand
                         : (insn->aux & 3) == 2 ? old | operand
                                                : old & ~operand;
        if (!csr_write(core, IMM, value)) {
            fault(core, FAULT_ILLEGAL, IMM, 0);
            return;
        }
    }
    core->x[insn->rd] = old;
}

/* The flag stays on the slot; end_of_loop compares with the registers of the core. */
static void mark_loop_end(Sim *sim, uint32_t pc)
{
    if (pc - L2_BASE < (uint32_t)sim->config.l2_bytes)
        sim->code_l2[(pc - L2_BASE) >> 1].flags |= FLAG_LOOP_END;
    else if (pc - L1_BASE < (uint32_t)sim->config.l1_bytes)
        sim->code_l1[(pc - L1_BASE) >> 1].flags |= FLAG_LOOP_END;
}

static void set_loop_end(Core *core, const Insn *insn)
{
    core->loop_end[insn->aux & 1] = IMM;
    mark_loop_end(core->sim, IMM);
}

static void op_lp_starti(Core *core, const Insn *insn)
{
    core->loop_start[insn->aux & 1] = IMM;
}

static void op_lp_endi(Core *core, const Insn *insn)
{
    set_loop_end(core, insn);
}

static void op_lp_count(Core *core, const Insn *insn)
{
    core->loop_count[insn->aux & 1] = core->x[insn->rs1];
}

static void op_lp_counti(Core *core, const Insn *insn)
{
    core->loop_count[insn->aux & 1] = IMM;
}

static void op_lp_setup(Core *core, const Insn *insn)
{
    core->loop_start[insn->aux & 1] = core->pc;
    core->loop_count[insn->aux & 1] = core->x[insn->rs1];
    set_loop_end(core, insn);
}

static void op_lp_setupi(Core *core, const Insn *insn)
{
    core->loop_start[insn->aux & 1] = core->pc;
    core->loop_count[insn->aux & 1] = insn->aux >> 4;
    set_loop_end(core, insn);
}

bool decode_system(Insn *out, uint32_t word)
{
    static const Entry csr = E(csr), wfi = E(wfi), mret = E(mret), environment = E(environment);
    uint32_t funct3 = bits(word, 12, 3), field = bits(word, 15, 5);

    out->rs2 = 0;
    if (funct3 & 3) {
        out->imm = (int32_t)bits(word, 20, 12);
        out->aux = (uint16_t)(funct3 | (field ? 8 : 0));
        if (funct3 & 4) {
            out->rs1 = 0;
            out->rs3 = (uint8_t)field;
        }
        return use(out, &csr);
    }
    out->rd = REG_SINK;
    out->rs1 = 0;
    out->imm = word == 0x00100073;
    switch (word) {
    case 0x00000073:
    case 0x00100073: return use(out, &environment);
    case 0x10500073: return use(out, &wfi);
    case 0x30200073: return use(out, &mret);
    default: return false;
    }
}

bool decode_loop(Insn *out, uint32_t word, uint32_t pc)
{
    static const Entry table[8] = {E(lp_starti), E(lp_endi), E(lp_count), E(lp_counti),
                                   E(lp_setup), E(lp_setupi)};
    uint32_t funct3 = bits(word, 12, 3), imm12 = bits(word, 20, 12), field = bits(word, 15, 5);

    if (bits(word, 8, 4))
        return false;
    out->rd = REG_SINK;
    out->rs2 = 0;
    out->aux = (uint16_t)bits(word, 7, 1);
    out->imm = (int32_t)(pc + imm12 * 2);
    if (funct3 != 2 && funct3 != 4)
        out->rs1 = 0;
    if (funct3 == 3)
        out->imm = (int32_t)imm12;
    if (funct3 == 5) {
        out->aux |= (uint16_t)(imm12 << 4);
        out->imm = (int32_t)(pc + field * 2);
    }
    return use(out, &table[funct3]);
}

bool decode_fence(Insn *out, uint32_t word)
{
    static const Entry fence = E(fence);

    out->rd = REG_SINK;
    out->rs1 = out->rs2 = 0;
    out->imm = (int32_t)bits(word, 12, 3);
    return out->imm < 2 && use(out, &fence);
}
