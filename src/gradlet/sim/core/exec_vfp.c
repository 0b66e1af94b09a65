/* Packed binary16 and bfloat16, two lanes per register (Xfvec, Xfaux of PULP).
 * With `.r` the first lane of rs2 serves both lanes. */
#include "entry.h"
#include "fp.h"

static uint32_t second(const Core *core, const Insn *insn)
{
    uint32_t value = core->x[insn->rs2];
    return insn->imm ? (value & 0xFFFF) * 0x10001u : value;
}

#define MODE rounding_mode(core, ROUND_DYNAMIC)
#define SIGN 0x8000u

/* In the expression: lanes a, b of the sources, c of the destination; f is the format. */
#define LANES(name, expression)                                                                   \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t va = core->x[insn->rs1], vb = second(core, insn), vc = core->x[insn->rs3];       \
        uint32_t result = 0;                                                                      \
        FpFormat f = format_of(insn);                                                             \
        for (int lane = 0; lane < 32; lane += 16) {                                               \
            uint32_t a = va >> lane & 0xFFFF, b = vb >> lane & 0xFFFF, c = vc >> lane & 0xFFFF;   \
            (void)b, (void)c, (void)f;                                                            \
            result |= ((uint32_t)(expression) & 0xFFFF) << lane;                                  \
        }                                                                                         \
        core->x[insn->rd] = result;                                                               \
    }

LANES(vfadd, fp_add(f, a, b, MODE))
LANES(vfsub, fp_add(f, a, b ^ SIGN, MODE))
LANES(vfmul, fp_multiply(f, a, b, MODE))
LANES(compute_vfdiv, fp_divide(f, a, b, MODE))
LANES(compute_vfsqrt, fp_sqrt(f, a, MODE))
LANES(vfmin, fp_min(f, a, b))
LANES(vfmax, fp_max(f, a, b))
LANES(vfmac, fp_multiply_add(f, a, b, c, MODE))
LANES(vfmre, fp_multiply_add(f, a, b, c ^ SIGN, MODE))
LANES(vfsgnj, (a & ~SIGN) | (b & SIGN))
LANES(vfsgnjn, (a & ~SIGN) | (~b & SIGN))
LANES(vfsgnjx, a ^ (b & SIGN))
LANES(vfeq, fp_value(f, a) == fp_value(f, b))
LANES(vfne, fp_value(f, a) != fp_value(f, b))
LANES(vflt, fp_value(f, a) < fp_value(f, b))
LANES(vfge, fp_value(f, a) >= fp_value(f, b))
LANES(vfle, fp_value(f, a) <= fp_value(f, b))
LANES(vfgt, fp_value(f, a) > fp_value(f, b))
LANES(vfavg, fp_round(f, 0.5 * fp_sum_to_odd(fp_value(f, a), fp_value(f, b)), MODE))
LANES(vfmv, a)
LANES(vfcvt_x, fp_to_integer(f, a, INT16_MIN, INT16_MAX, MODE))
LANES(vfcvt_xu, fp_to_integer(f, a, 0, UINT16_MAX, MODE))
LANES(vfcvt_from_x, fp_from_integer(f, (int16_t)a, MODE))
LANES(vfcvt_from_xu, fp_from_integer(f, a, MODE))
LANES(vfcvt_h_ah, fp_round(FP_HALF, fp_value(FP_BFLOAT, a), MODE))
LANES(vfcvt_ah_h, fp_round(FP_BFLOAT, fp_value(FP_HALF, a), MODE))

static void op_vfdiv(Core *core, const Insn *insn)
{
    op_compute_vfdiv(core, insn);
    divider_latency(core, insn);
}

static void op_vfsqrt(Core *core, const Insn *insn)
{
    op_compute_vfsqrt(core, insn);
    divider_latency(core, insn);
}

/* ---- two lanes into one number: single precision, rounded to nearest after each step */

static inline float single_of(FpFormat format, uint32_t pattern)
{
    uint32_t exponent = pattern & 0x7C00;

    if (format.exponent_bits == 8)
        return float_of(pattern << 16);
    if (LIKELY(exponent != 0 && exponent != 0x7C00))
        return float_of(((pattern & 0x8000) << 16) | (((pattern & 0x7FFF) << 13) + (112u << 23)));
    return (float)fp_value(format, pattern);
}

/* lane1 * lane1 + lane0 * lane0, then plus or minus the accumulator's term. */
static float dot(const Core *core, const Insn *insn)
{
    uint32_t va = core->x[insn->rs1], vb = second(core, insn);
    FpFormat f = format_of(insn);
    float low = single_of(f, va & 0xFFFF) * single_of(f, vb & 0xFFFF);

    return fused(single_of(f, va >> 16), single_of(f, vb >> 16), low);
}

static void op_vfdotpex(Core *core, const Insn *insn)
{
    core->x[insn->rd] = result_of(float_of(core->x[insn->rs3]) + dot(core, insn));
}

static void op_vfndotpex(Core *core, const Insn *insn)
{
    core->x[insn->rd] = result_of(float_of(core->x[insn->rs3]) - dot(core, insn));
}

static void op_vfdotp(Core *core, const Insn *insn)
{
    uint32_t va = core->x[insn->rs1], vb = second(core, insn);
    FpFormat f = format_of(insn);
    uint32_t high = fp_multiply(f, va >> 16, vb >> 16, ROUND_NEAREST_EVEN);
    uint32_t sum = fp_multiply_add(f, va & 0xFFFF, vb & 0xFFFF, high, ROUND_NEAREST_EVEN);

    core->x[insn->rd] = (uint32_t)sign_extend(sum, 16);
}

static void op_vfcpka(Core *core, const Insn *insn)
{
    FpFormat f = format_of(insn);
    uint32_t low = fp_round(f, fp_value(FP_SINGLE, core->x[insn->rs1]), MODE);
    uint32_t high = fp_round(f, fp_value(FP_SINGLE, core->x[insn->rs2]), MODE);

    core->x[insn->rd] = high << 16 | low;
}

/* One byte per lane: sign, not sign, quiet NaN, signalling NaN, zero, subnormal, normal, inf. */
static void op_vfclass(Core *core, const Insn *insn)
{
    static const uint8_t block[10] = {0x81, 0x82, 0x84, 0x88, 0x48, 0x44, 0x42, 0x41, 0x10, 0x20};
    uint32_t result = 0;

    for (int lane = 0; lane < 2; lane++) {
        uint32_t a = core->x[insn->rs1] >> (16 * lane) & 0xFFFF;
        uint32_t class = (uint32_t)__builtin_ctz(fp_class(format_of(insn), a));
        uint32_t byte = class < 8 ? block[class] : block[class] | (a & SIGN ? 0x80u : 0x40u);
        result |= byte << (8 * lane);
    }
    core->x[insn->rd] = result;
}

static bool decode_misc(Insn *out, uint32_t word)
{
    static const Entry move = E(vfmv), class = E(vfclass), to_signed = E(vfcvt_x),
                       to_unsigned = E(vfcvt_xu), from_signed = E(vfcvt_from_x),
                       from_unsigned = E(vfcvt_from_xu), to_half = E(vfcvt_h_ah),
                       to_bfloat = E(vfcvt_ah_h);
    bool variant = bits(word, 14, 1);
    uint32_t which = out->rs2;

    out->rs2 = 0;
    out->imm = 0;
    switch (which) {
    case 0: return use(out, &move);
    case 1: return !variant && use(out, &class);
    case 2: return use(out, variant ? &to_unsigned : &to_signed);
    case 3: return use(out, variant ? &from_unsigned : &from_signed);
    case 5: return !variant && !out->rd_is_bfloat && use(out, &to_half);
    case 6: return !variant && out->rd_is_bfloat && use(out, &to_bfloat);
    default: return false;
    }
}

/* vfdotpex.s.h has the format code of single precision, vfdotpex.s.ah that of bfloat16. */
static bool decode_extended_dot(Insn *out, uint32_t word)
{
    static const Entry dotpex = E(vfdotpex), ndotpex = E(vfndotpex);
    uint32_t format = bits(word, 12, 2);

    out->rs3 = (uint8_t)bits(word, 7, 5);
    out->rd_is_bfloat = format == 1;
    if (bits(word, 25, 7) == 0x4b)
        return format < 2 && use(out, &dotpex);
    return format == 0 && use(out, &ndotpex);
}

static bool decode_lanes(const Sim *sim, Insn *out, uint32_t word)
{
    static const Entry table[32] = {
        [0x01] = E(vfadd), [0x02] = E(vfsub), [0x03] = E(vfmul), [0x04] = E(vfdiv),
        [0x05] = E(vfmin), [0x06] = E(vfmax), [0x07] = E(vfsqrt), [0x08] = E(vfmac),
        [0x09] = E(vfmre), [0x0a] = E(vfdotp), [0x0d] = E(vfsgnj), [0x0e] = E(vfsgnjn),
        [0x0f] = E(vfsgnjx), [0x10] = E(vfeq), [0x11] = E(vfne), [0x12] = E(vflt),
        [0x13] = E(vfge), [0x14] = E(vfle), [0x15] = E(vfgt), [0x16] = E(vfavg),
        [0x18] = E(vfcpka)};
    uint32_t op = bits(word, 25, 7) - 0x40;
    bool repeats = bits(word, 14, 1);

    if ((op == 0x07 && (out->rs2 || repeats)) || (op == 0x18 && repeats))
        return false;
    if (op == 0x04 || op == 0x07) {
        out->flags = 0;
        mark_fpu(sim, out, sim->config.fdiv_cycles);
    }
    if (op == 0x08 || op == 0x09)
        out->rs3 = (uint8_t)bits(word, 7, 5);
    return use(out, &table[op & 31]);
}

bool decode_vfp(const Sim *sim, Insn *out, uint32_t word)
{
    uint32_t funct7 = bits(word, 25, 7), format = bits(word, 12, 2);

    if (funct7 <= 0x40 || funct7 >= 0x60)
        return false;
    mark_fpu(sim, out, 0);
    out->imm = (int32_t)bits(word, 14, 1);
    if (funct7 == 0x4b || funct7 == 0x5d)
        return decode_extended_dot(out, word);
    if (format != 1 && format != 2)
        return false;
    out->rd_is_bfloat = format == 1;
    return funct7 == 0x4c ? decode_misc(out, word) : decode_lanes(sim, out, word);
}
