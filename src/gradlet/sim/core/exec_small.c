/* Scalar binary16 and bfloat16 (encodings of the Xf16 and Xf16alt extensions of PULP).  A result
 * is sign-extended to the register, as Zfinx asks of narrow formats. */
#include "entry.h"
#include "fp.h"

enum { MODE_OF_BFLOAT = 5 };

#define MODE rounding_mode(core, insn->imm)
#define SIGN 0x8000u

/* In the expressions: a, b, c are the low halves of the sources, f is the format. */
#define OPERANDS                                                                                  \
    uint32_t a = core->x[insn->rs1] & 0xFFFF, b = core->x[insn->rs2] & 0xFFFF;                    \
    uint32_t c = core->x[insn->rs3] & 0xFFFF;                                                     \
    FpFormat f = format_of(insn);                                                                 \
    (void)a, (void)b, (void)c, (void)f;
#define SMALL_OP(name, expression)                                                                \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        OPERANDS                                                                                  \
        core->x[insn->rd] = (uint32_t)sign_extend(expression, 16);                                \
    }
#define WIDE_OP(name, expression)                                                                 \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        OPERANDS                                                                                  \
        core->x[insn->rd] = (uint32_t)(expression);                                               \
    }

SMALL_OP(fadd_h, fp_add(f, a, b, MODE))
SMALL_OP(fsub_h, fp_add(f, a, b ^ SIGN, MODE))
SMALL_OP(fmul_h, fp_multiply(f, a, b, MODE))
SMALL_OP(fmadd_h, fp_multiply_add(f, a, b, c, MODE))
SMALL_OP(fmsub_h, fp_multiply_add(f, a, b, c ^ SIGN, MODE))
SMALL_OP(fnmsub_h, fp_multiply_add(f, a ^ SIGN, b, c, MODE))
SMALL_OP(fnmadd_h, fp_multiply_add(f, a ^ SIGN, b, c ^ SIGN, MODE))
SMALL_OP(fsgnj_h, (a & ~SIGN) | (b & SIGN))
SMALL_OP(fsgnjn_h, (a & ~SIGN) | (~b & SIGN))
SMALL_OP(fsgnjx_h, a ^ (b & SIGN))
SMALL_OP(fmin_h, fp_min(f, a, b))
SMALL_OP(fmax_h, fp_max(f, a, b))
SMALL_OP(fmv_h, a)
SMALL_OP(fcvt_h_w, fp_from_integer(f, (int32_t)core->x[insn->rs1], MODE))
SMALL_OP(fcvt_h_wu, fp_from_integer(f, core->x[insn->rs1], MODE))
SMALL_OP(fcvt_h_s, fp_round(f, fp_value(FP_SINGLE, core->x[insn->rs1]), MODE))
SMALL_OP(fcvt_h_ah, fp_round(FP_HALF, fp_value(FP_BFLOAT, a), MODE))
SMALL_OP(fcvt_ah_h, fp_round(FP_BFLOAT, fp_value(FP_HALF, a), MODE))
WIDE_OP(fle_h, fp_value(f, a) <= fp_value(f, b))
WIDE_OP(flt_h, fp_value(f, a) < fp_value(f, b))
WIDE_OP(feq_h, fp_value(f, a) == fp_value(f, b))
WIDE_OP(fclass_h, fp_class(f, a))
WIDE_OP(fcvt_w_h, fp_to_integer(f, a, INT32_MIN, INT32_MAX, MODE))
WIDE_OP(fcvt_wu_h, fp_to_integer(f, a, 0, UINT32_MAX, MODE))
WIDE_OP(fcvt_s_h, fp_round(FP_SINGLE, fp_value(f, a), ROUND_NEAREST_EVEN))
WIDE_OP(fmulex_s_h, fp_round(FP_SINGLE, fp_value(f, a) * fp_value(f, b), MODE))

static void op_fdiv_h(Core *core, const Insn *insn)
{
    OPERANDS
    core->x[insn->rd] = (uint32_t)sign_extend(fp_divide(f, a, b, MODE), 16);
    divider_latency(core, insn);
}

static void op_fsqrt_h(Core *core, const Insn *insn)
{
    OPERANDS
    core->x[insn->rd] = (uint32_t)sign_extend(fp_sqrt(f, a, MODE), 16);
    divider_latency(core, insn);
}

/* The product of two small numbers is exact in single precision: one rounding, of the sum. */
static void op_fmacex_s_h(Core *core, const Insn *insn)
{
    OPERANDS
    uint32_t x = fp_round(FP_SINGLE, fp_value(f, a), ROUND_NEAREST_EVEN);
    uint32_t y = fp_round(FP_SINGLE, fp_value(f, b), ROUND_NEAREST_EVEN);

    core->x[insn->rd] = fp_multiply_add(FP_SINGLE, x, y, core->x[insn->rs3], MODE);
}

static bool from_table(Insn *out, const Entry *table, uint32_t index, uint32_t size)
{
    return index < size && use(out, &table[index]);
}

static bool decode_between_formats(Insn *out, uint32_t word)
{
    static const Entry to_half = E(fcvt_h_s), half_from_bfloat = E(fcvt_h_ah),
                       bfloat_from_half = E(fcvt_ah_h), to_single = E(fcvt_s_h);
    uint32_t source = bits(word, 20, 5);

    out->rs2 = 0;
    if (bits(word, 25, 7) == 0x20) {
        out->rd_is_bfloat = source == 6;
        return bits(word, 12, 3) == 0 && (source == 2 || source == 6) && use(out, &to_single);
    }
    if (source == 0)
        return use(out, &to_half);
    if (source == 6)
        return use(out, &half_from_bfloat);
    return source == 2 && out->rd_is_bfloat && use(out, &bfloat_from_half);
}

/* Where funct3 selects an operation, bfloat16 has bit 2 set. */
static bool decode_selected(Insn *out, uint32_t word)
{
    static const Entry sign[3] = {E(fsgnj_h), E(fsgnjn_h), E(fsgnjx_h)};
    static const Entry extreme[2] = {E(fmin_h), E(fmax_h)};
    static const Entry compare[3] = {E(fle_h), E(flt_h), E(feq_h)};
    static const Entry out_of[2] = {E(fmv_h), E(fclass_h)};
    static const Entry into = E(fmv_h);
    uint32_t funct3 = bits(word, 12, 3);

    out->rd_is_bfloat = funct3 >> 2 & 1;
    switch (bits(word, 25, 7)) {
    case 0x12: return from_table(out, sign, funct3 & 3, 3);
    case 0x16: return from_table(out, extreme, funct3 & 3, 2);
    case 0x52: return from_table(out, compare, funct3 & 3, 3);
    case 0x72: return !out->rs2 && from_table(out, out_of, funct3 & 3, 2);
    case 0x7a: return !out->rs2 && (funct3 & 3) == 0 && use(out, &into);
    default: return false;
    }
}

static bool decode_rounded(Insn *out, uint32_t word)
{
    static const Entry add = E(fadd_h), sub = E(fsub_h), mul = E(fmul_h), div = E(fdiv_h),
                       sqrt = E(fsqrt_h), mulex = E(fmulex_s_h), macex = E(fmacex_s_h);
    static const Entry to_integer[2] = {E(fcvt_w_h), E(fcvt_wu_h)};
    static const Entry from_integer[2] = {E(fcvt_h_w), E(fcvt_h_wu)};
    uint32_t which = out->rs2;

    switch (bits(word, 25, 7)) {
    case 0x02: return use(out, &add);
    case 0x06: return use(out, &sub);
    case 0x0a: return use(out, &mul);
    case 0x0e: return use(out, &div);
    case 0x2e: return !which && use(out, &sqrt);
    case 0x26: return use(out, &mulex);
    case 0x2a: out->rs3 = (uint8_t)bits(word, 7, 5); return use(out, &macex);
    case 0x62: out->rs2 = 0; return from_table(out, to_integer, which, 2);
    case 0x6a: out->rs2 = 0; return from_table(out, from_integer, which, 2);
    case 0x20: case 0x22: return decode_between_formats(out, word);
    default: return false;
    }
}

bool decode_small(const Sim *sim, Insn *out, uint32_t word)
{
    static const Entry fused[4] = {E(fmadd_h), E(fmsub_h), E(fnmsub_h), E(fnmadd_h)};
    uint32_t funct3 = bits(word, 12, 3), funct7 = bits(word, 25, 7);
    bool is_fused = bits(word, 0, 7) != 0x53;
    bool divides = !is_fused && (funct7 == 0x0e || funct7 == 0x2e);

    mark_fpu(sim, out, divides ? sim->config.fdiv_small_cycles : 0);
    out->imm = (int32_t)funct3;
    out->rd_is_bfloat = funct3 == MODE_OF_BFLOAT;
    if (!is_fused && decode_selected(out, word))
        return true;
    out->rd_is_bfloat = funct3 == MODE_OF_BFLOAT;
    if (funct3 == MODE_OF_BFLOAT)
        out->imm = ROUND_DYNAMIC;
    else if (funct3 == 6)
        return false;
    if (is_fused) {
        out->rs3 = (uint8_t)bits(word, 27, 5);
        return use(out, &fused[bits(word, 2, 2)]);
    }
    return decode_rounded(out, word);
}
