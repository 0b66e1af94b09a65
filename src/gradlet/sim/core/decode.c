/* From the bytes in memory to an Insn: which file knows the instruction. */
#include "entry.h"

static void op_illegal(Core *core, const Insn *insn)
{
    (void)insn;
    fault(core, FAULT_ILLEGAL, core->current_pc, 0);
}

static bool decode_word(Sim *sim, Insn *out, uint32_t word, uint32_t pc)
{
    switch (bits(word, 0, 7)) {
    case 0x03: case 0x0b: case 0x23: case 0x2b: return decode_memory(out, word);
    case 0x0f: return decode_fence(out, word);
    case 0x13: return decode_op_imm(out, word);
    case 0x17: case 0x37: case 0x67: case 0x6f: return decode_upper(out, word, pc);
    case 0x33: return decode_op(sim, out, word);
    case 0x43: case 0x47: case 0x4b: case 0x4f: case 0x53: return decode_fp(sim, out, word);
    case 0x57: return decode_simd(out, word);
    case 0x5b: return decode_xpulp(out, word);
    case 0x63: return decode_branch(out, word, pc);
    case 0x73: return decode_system(out, word);
    case 0x7b: return decode_loop(out, word, pc);
    default: return false;
    }
}

/* Reads at most the bytes that memory has: the last halfword of L2 can hold an instruction. */
static uint32_t instruction_word(Sim *sim, uint32_t pc, uint8_t *size)
{
    const uint8_t *at = ram(sim, pc, 2);
    uint32_t word = at ? read_le(at, 2) : 0;

    *size = 2;
    if ((word & 3) != 3)
        return expand_compressed((uint16_t)word);
    *size = 4;
    at = ram(sim, pc, 4);
    return at ? read_le(at, 4) : 0;
}

/* Whether nothing but a register changes, in one cycle: true of all arithmetic without a unit
 * that must be booked (which has set a flag) and without the multiplier or divider. */
static bool is_simple(uint32_t word, uint32_t flags)
{
    if (flags)
        return false;
    switch (bits(word, 0, 7)) {
    case 0x13: case 0x17: case 0x37: case 0x57: case 0x5b: return true;
    case 0x43: case 0x47: case 0x4b: case 0x4f: case 0x53: return true;
    case 0x33: return bits(word, 25, 7) != 1;
    default: return false;
    }
}

static void mark_present(Sim *sim, uint32_t pc)
{
    uint32_t l1_bytes = (uint32_t)sim->config.l1_bytes;
    uint32_t index = pc - L1_BASE < l1_bytes ? pc - L1_BASE : l1_bytes + (pc - L2_BASE);

    sim->code_present[index >> 8] = 1;
    sim->code_present[(index + 2) >> 8] = 1;
}

void decode(Core *core, Insn *out, uint32_t pc)
{
    static const Entry illegal = E(illegal);
    Sim *sim = core->sim;
    uint16_t kept = out->flags & (FLAG_LOOP_END | FLAG_BREAK);
    uint32_t word = instruction_word(sim, pc, &out->size);
    uint32_t rd = bits(word, 7, 5);

    out->rd = (uint8_t)(rd ? rd : REG_SINK);
    out->rs1 = (uint8_t)bits(word, 15, 5);
    out->rs2 = (uint8_t)bits(word, 20, 5);
    out->rs3 = 0;
    out->aux = 0;
    out->rd_is_bfloat = 0;
    out->flags = 0;
    out->imm = 0;
    if (!decode_word(sim, out, word, pc)) {
        out->rd = REG_SINK;
        out->rs1 = out->rs2 = out->rs3 = 0;
        out->flags = 0;
        use(out, &illegal);
    } else if (!(kept & FLAG_BREAK) && is_simple(word, out->flags)) {
        out->flags = FLAG_SIMPLE;
    }
    if (kept & FLAG_BREAK)
        out->flags |= FLAG_SHARED; /* to come by when no core is ahead of its time */
    out->flags |= kept;
    mark_present(sim, pc);
}
