/* Zfinx: single precision in the integer registers.  Rounding to nearest uses the arithmetic of
 * the host, which agrees bit for bit once NaNs are made canonical; other modes use fp.c. */
#include "entry.h"
#include "fp.h"

static inline bool to_nearest(const Core *core, const Insn *insn)
{
    return insn->imm == ROUND_DYNAMIC ? core->frm == 0 : insn->imm == 0;
}

#define SIGN 0x80000000u
/* The rare modes are kept out of the function that everybody runs. */
#define FLOAT_OP(name, nearest, any_mode)                                                         \
    static __attribute__((noinline)) void directed_##name(Core *core, const Insn *insn)           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2], c = core->x[insn->rs3];          \
        int mode = rounding_mode(core, insn->imm);                                                     \
        (void)b, (void)c;                                                                         \
        core->x[insn->rd] = any_mode;                                                             \
    }                                                                                             \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        float x = float_of(core->x[insn->rs1]), y = float_of(core->x[insn->rs2]);                 \
        float z = float_of(core->x[insn->rs3]);                                                   \
        (void)y, (void)z;                                                                         \
        if (LIKELY(to_nearest(core, insn)))                                                       \
            core->x[insn->rd] = result_of(nearest);                                               \
        else                                                                                      \
            directed_##name(core, insn);                                                          \
    }

FLOAT_OP(fadd_s, x + y, fp_add(FP_SINGLE, a, b, mode))
FLOAT_OP(fsub_s, x - y, fp_add(FP_SINGLE, a, b ^ SIGN, mode))
FLOAT_OP(fmul_s, x *y, fp_multiply(FP_SINGLE, a, b, mode))
FLOAT_OP(fmadd_s, fused(x, y, z), fp_multiply_add(FP_SINGLE, a, b, c, mode))
FLOAT_OP(fmsub_s, fused(x, y, -z), fp_multiply_add(FP_SINGLE, a, b, c ^ SIGN, mode))
FLOAT_OP(fnmsub_s, fused(-x, y, z), fp_multiply_add(FP_SINGLE, a ^ SIGN, b, c, mode))
FLOAT_OP(fnmadd_s, fused(-x, y, -z), fp_multiply_add(FP_SINGLE, a ^ SIGN, b, c ^ SIGN, mode))
FLOAT_OP(compute_fdiv_s, x / y, fp_divide(FP_SINGLE, a, b, mode))
FLOAT_OP(compute_fsqrt_s, __builtin_sqrtf(x), fp_sqrt(FP_SINGLE, a, mode))

static void op_fdiv_s(Core *core, const Insn *insn)
{
    op_compute_fdiv_s(core, insn);
    divider_latency(core, insn);
}

static void op_fsqrt_s(Core *core, const Insn *insn)
{
    op_compute_fsqrt_s(core, insn);
    divider_latency(core, insn);
}

#define BITS_OP(name, expression)                                                                 \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];                                  \
        float x = float_of(a), y = float_of(b);                                                   \
        (void)b, (void)x, (void)y;                                                                \
        core->x[insn->rd] = (uint32_t)(expression);                                               \
    }

BITS_OP(fsgnj_s, (a & ~SIGN) | (b & SIGN))
BITS_OP(fsgnjn_s, (a & ~SIGN) | (~b & SIGN))
BITS_OP(fsgnjx_s, a ^ (b & SIGN))
BITS_OP(fmin_s, fp_min(FP_SINGLE, a, b))
BITS_OP(fmax_s, fp_max(FP_SINGLE, a, b))
BITS_OP(fle_s, x <= y)
BITS_OP(flt_s, x < y)
BITS_OP(feq_s, x == y)
BITS_OP(fclass_s, fp_class(FP_SINGLE, a))
BITS_OP(fmv, a)
BITS_OP(fcvt_w_s, fp_to_integer(FP_SINGLE, a, INT32_MIN, INT32_MAX, rounding_mode(core, insn->imm)))
BITS_OP(fcvt_wu_s, fp_to_integer(FP_SINGLE, a, 0, UINT32_MAX, rounding_mode(core, insn->imm)))
BITS_OP(fcvt_s_w, fp_from_integer(FP_SINGLE, (int32_t)a, rounding_mode(core, insn->imm)))
BITS_OP(fcvt_s_wu, fp_from_integer(FP_SINGLE, a, rounding_mode(core, insn->imm)))

static bool decode_table(Insn *out, const Entry *table, uint32_t index, uint32_t size)
{
    return index < size && use(out, &table[index]);
}

static bool decode_conversion(Insn *out, uint32_t word)
{
    static const Entry to_integer[2] = {E(fcvt_w_s), E(fcvt_wu_s)};
    static const Entry from_integer[2] = {E(fcvt_s_w), E(fcvt_s_wu)};
    uint32_t which = bits(word, 20, 5);

    out->rs2 = 0;
    return decode_table(out, bits(word, 25, 7) == 0x60 ? to_integer : from_integer, which, 2);
}

static bool decode_move(Insn *out, uint32_t word)
{
    static const Entry class = E(fclass_s), move = E(fmv);
    uint32_t funct3 = bits(word, 12, 3);

    if (out->rs2)
        return false;
    if (funct3 == 1 && bits(word, 25, 7) == 0x70)
        return use(out, &class);
    out->flags = 0; /* a plain move needs no FPU */
    return funct3 == 0 && use(out, &move);
}

static bool decode_single(Insn *out, uint32_t word)
{
    static const Entry add = E(fadd_s), sub = E(fsub_s), mul = E(fmul_s), div = E(fdiv_s),
                       sqrt = E(fsqrt_s);
    static const Entry sign[3] = {E(fsgnj_s), E(fsgnjn_s), E(fsgnjx_s)};
    static const Entry extreme[2] = {E(fmin_s), E(fmax_s)};
    static const Entry compare[3] = {E(fle_s), E(flt_s), E(feq_s)};
    uint32_t funct3 = bits(word, 12, 3), funct7 = bits(word, 25, 7);
    bool mode_exists = funct3 <= ROUND_NEAREST_AWAY || funct3 == ROUND_DYNAMIC;

    out->imm = (int32_t)funct3;
    switch (funct7) {
    case 0x00: return mode_exists && use(out, &add);
    case 0x04: return mode_exists && use(out, &sub);
    case 0x08: return mode_exists && use(out, &mul);
    case 0x0c: return mode_exists && use(out, &div);
    case 0x2c: return mode_exists && !out->rs2 && use(out, &sqrt);
    case 0x10: return decode_table(out, sign, funct3, 3);
    case 0x14: return decode_table(out, extreme, funct3, 2);
    case 0x50: return decode_table(out, compare, funct3, 3);
    case 0x60: case 0x68: return mode_exists && decode_conversion(out, word);
    case 0x70: case 0x78: return decode_move(out, word);
    default: return false;
    }
}

static bool decode_fused(Insn *out, uint32_t word)
{
    static const Entry table[4] = {E(fmadd_s), E(fmsub_s), E(fnmsub_s), E(fnmadd_s)};
    uint32_t funct3 = bits(word, 12, 3);

    out->rs3 = (uint8_t)bits(word, 27, 5);
    out->imm = (int32_t)funct3;
    if (funct3 > ROUND_NEAREST_AWAY && funct3 != ROUND_DYNAMIC)
        return false;
    return use(out, &table[bits(word, 2, 2)]);
}

void mark_fpu(const Sim *sim, Insn *out, int32_t divider_cycles)
{
    if (divider_cycles) {
        out->flags |= FLAG_FDIV | FLAG_SHARED;
        out->aux = (uint16_t)divider_cycles;
    } else if (sim->fpu_shared) {
        out->flags |= FLAG_FPU | FLAG_SHARED;
    }
}

bool decode_fp(Sim *sim, Insn *out, uint32_t word)
{
    uint32_t format = bits(word, 25, 2), funct7 = bits(word, 25, 7);
    bool is_fused = bits(word, 0, 7) != 0x53;
    bool divides = !is_fused && (funct7 == 0x0c || funct7 == 0x2c);

    if (!is_fused && (funct7 == 0x20 || format == 2))
        return decode_small(sim, out, word);
    if (format == 2)
        return decode_small(sim, out, word);
    if (format != 0)
        return false;
    mark_fpu(sim, out, divides ? sim->config.fdiv_cycles : 0);
    return is_fused ? decode_fused(out, word) : decode_single(out, word);
}
