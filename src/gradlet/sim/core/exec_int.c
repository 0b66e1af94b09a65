/* RV32IM: integer arithmetic, branches and jumps. */
#include "entry.h"

#define OP(name, expression)                                                                      \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];                                  \
        (void)a, (void)b;                                                                         \
        core->x[insn->rd] = (expression);                                                         \
    }

OP(constant, IMM)
OP(addi, a + IMM)
OP(slti, (int32_t)a < insn->imm)
OP(sltiu, a < IMM)
OP(xori, a ^ IMM)
OP(ori, a | IMM)
OP(andi, a & IMM)
OP(slli, a << IMM)
OP(srli, a >> IMM)
OP(srai, (uint32_t)((int32_t)a >> IMM))
OP(add, a + b)
OP(sub, a - b)
OP(sll, a << (b & 31))
OP(slt, (int32_t)a < (int32_t)b)
OP(sltu, a < b)
OP(xor, a ^ b)
OP(srl, a >> (b & 31))
OP(sra, (uint32_t)((int32_t)a >> (b & 31)))
OP(or, a | b)
OP(and, a & b)

static void take_branch(Core *core, const Insn *insn)
{
    core->pc = (uint32_t)insn->imm;
    core->events[EV_TAKEN]++;
    add_stall(core, STALL_BRANCH, (uint64_t)core->sim->config.branch_taken);
}

#define BRANCH(name, condition)                                                                   \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];                                  \
        int32_t i = (int32_t)(int16_t)insn->aux;                                                  \
        (void)b, (void)i;                                                                         \
        core->events[EV_BRANCH]++;                                                                \
        if (condition)                                                                            \
            take_branch(core, insn);                                                              \
    }

BRANCH(beq, a == b)
BRANCH(bne, a != b)
BRANCH(p_beqimm, (int32_t)a == i)
BRANCH(p_bneimm, (int32_t)a != i)
BRANCH(blt, (int32_t)a < (int32_t)b)
BRANCH(bge, (int32_t)a >= (int32_t)b)
BRANCH(bltu, a < b)
BRANCH(bgeu, a >= b)

static void jump_to(Core *core, uint32_t target)
{
    core->pc = target;
    core->events[EV_JUMP]++;
    add_stall(core, STALL_BRANCH, (uint64_t)core->sim->config.jump);
}

static void op_jal(Core *core, const Insn *insn)
{
    core->x[insn->rd] = core->pc;
    jump_to(core, IMM);
}

static void op_jalr(Core *core, const Insn *insn)
{
    uint32_t target = (core->x[insn->rs1] + IMM) & ~1u;

    core->x[insn->rd] = core->pc;
    jump_to(core, target);
}

static void multicycle(Core *core, const Insn *insn, int32_t cycles)
{
    const SimConfig *config = &core->sim->config;

    result_ready_after(core, insn->rd, (uint64_t)cycles + (uint64_t)config->mul_result);
    add_stall(core, STALL_MULTICYCLE, (uint64_t)cycles - 1);
}

#define MUL_OP(name, cycles, expression)                                                          \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];                                  \
        core->x[insn->rd] = (uint32_t)(expression);                                               \
        multicycle(core, insn, core->sim->config.cycles);                                         \
    }

MUL_OP(mul, mul_cycles, a *b)
MUL_OP(mulh, mulh_cycles, (uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 32)
MUL_OP(mulhsu, mulh_cycles, (uint64_t)((int64_t)(int32_t)a * (int64_t)(uint64_t)b) >> 32)
MUL_OP(mulhu, mulh_cycles, (uint64_t)a *b >> 32)

/* The divider shifts the divisor up first: a long divisor is quick. */
static void divider_time(Core *core, uint32_t divisor, bool is_signed)
{
    int32_t cycles = core->sim->config.div_base;

    if (divisor == 0 && is_signed)
        return;
    if (is_signed && (int32_t)divisor < 0)
        cycles += __builtin_clz(-divisor) - 1;
    else
        cycles += __builtin_clz(divisor | 1); /* an unsigned 0 takes as long as a 1 */
    add_stall(core, STALL_MULTICYCLE, (uint64_t)cycles - 1);
}

static void op_div(Core *core, const Insn *insn)
{
    int32_t a = (int32_t)core->x[insn->rs1], b = (int32_t)core->x[insn->rs2];

    core->x[insn->rd] = b == 0                         ? UINT32_MAX
                        : a == INT32_MIN && b == -1 ? (uint32_t)a
                                                       : (uint32_t)(a / b);
    divider_time(core, (uint32_t)b, true);
}

static void op_divu(Core *core, const Insn *insn)
{
    uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];

    core->x[insn->rd] = b ? a / b : UINT32_MAX;
    divider_time(core, b, false);
}

static void op_rem(Core *core, const Insn *insn)
{
    int32_t a = (int32_t)core->x[insn->rs1], b = (int32_t)core->x[insn->rs2];

    core->x[insn->rd] = b == 0 ? (uint32_t)a : b == -1 ? 0 : (uint32_t)(a % b);
    divider_time(core, (uint32_t)b, true);
}

static void op_remu(Core *core, const Insn *insn)
{
    uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];

    core->x[insn->rd] = b ? a % b : a;
    divider_time(core, b, false);
}

bool decode_op_imm(Insn *out, uint32_t word)
{
    static const Entry table[8] = {E(addi), E(slli), E(slti), E(sltiu),
                                   E(xori), E(srli), E(ori), E(andi)};
    static const Entry srai = E(srai);
    uint32_t funct3 = bits(word, 12, 3), funct7 = bits(word, 25, 7);

    out->rs2 = 0;
    out->imm = (int32_t)word >> 20;
    if (funct3 == 1 || funct3 == 5) {
        out->imm = (int32_t)bits(word, 20, 5);
        if (funct3 == 5 && funct7 == 0x20)
            return use(out, &srai);
        if (funct7 != 0)
            return false;
    }
    return use(out, &table[funct3]);
}

bool decode_op(const Sim *sim, Insn *out, uint32_t word)
{
    static const Entry base[8] = {E(add), E(sll), E(slt), E(sltu), E(xor), E(srl), E(or), E(and)};
    static const Entry alternative[8] = {[0] = E(sub), [5] = E(sra)};
    static const Entry multiply[8] = {E(mul), E(mulh), E(mulhsu), E(mulhu),
                                      E(div), E(divu), E(rem), E(remu)};
    uint32_t funct3 = bits(word, 12, 3), funct7 = bits(word, 25, 7);

    switch (funct7) {
    case 0x00: return use(out, &base[funct3]);
    case 0x20: return use(out, &alternative[funct3]);
    case 0x01: return use(out, &multiply[funct3]);
    default: return decode_xpulp(out, word) || decode_vfp(sim, out, word);
    }
}

bool decode_branch(Insn *out, uint32_t word, uint32_t pc)
{
    static const Entry table[8] = {E(beq), E(bne), E(p_beqimm), E(p_bneimm),
                                   E(blt), E(bge), E(bltu), E(bgeu)};
    uint32_t funct3 = bits(word, 12, 3);
    uint32_t offset = bits(word, 31, 1) << 12 | bits(word, 7, 1) << 11 | bits(word, 25, 6) << 5 |
                      bits(word, 8, 4) << 1;

    out->rd = REG_SINK;
    out->imm = (int32_t)(pc + (uint32_t)sign_extend(offset, 13));
    if (funct3 == 2 || funct3 == 3) {
        out->aux = (uint16_t)sign_extend(bits(word, 20, 5), 5);
        out->rs2 = 0;
    }
    return use(out, &table[funct3]);
}

bool decode_upper(Insn *out, uint32_t word, uint32_t pc)
{
    static const Entry constant = E(constant), jal = E(jal), jalr = E(jalr);
    uint32_t offset = bits(word, 31, 1) << 20 | bits(word, 12, 8) << 12 | bits(word, 20, 1) << 11 |
                      bits(word, 21, 10) << 1;

    out->rs2 = 0;
    switch (bits(word, 0, 7)) {
    case 0x67:
        out->imm = (int32_t)word >> 20;
        return bits(word, 12, 3) == 0 && use(out, &jalr);
    case 0x6f:
        out->rs1 = 0;
        out->imm = (int32_t)(pc + (uint32_t)sign_extend(offset, 21));
        return use(out, &jal);
    default:
        out->rs1 = 0;
        out->imm = (int32_t)((word & 0xFFFFF000u) + (bits(word, 0, 7) == 0x17 ? pc : 0));
        use(out, &constant);
        out->name = bits(word, 0, 7) == 0x17 ? "auipc" : "lui";
        return true;
    }
}
