/* Xpulpv2, the scalar part of the ALU: min/max, bit manipulation, clip, normalised mul and mac.
 * Encodings and corner cases as in the ISA description of GVSoC (isa_pulpv2.py) and the manual
 * of CV32E40P. */
#include "entry.h"

#define OP(name, expression)                                                                      \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2], c = core->x[insn->rs3];          \
        int32_t sa = (int32_t)a, sb = (int32_t)b;                                                 \
        (void)b, (void)c, (void)sa, (void)sb;                                                     \
        core->x[insn->rd] = (uint32_t)(expression);                                               \
    }

static uint32_t clip(int32_t value, int32_t low, int32_t high)
{
    return (uint32_t)(value > high ? high : value < low ? low : value);
}

static uint32_t leading_sign_bits(uint32_t a)
{
    uint32_t folded = (int32_t)a < 0 ? ~a : a;
    return a == 0 ? 0 : folded == 0 ? 31 : (uint32_t)__builtin_clz(folded) - 1;
}

static uint32_t field_mask(uint32_t width, uint32_t shift)
{
    return (uint32_t)(((1ull << width) - 1) << shift);
}

static uint32_t extract_signed(uint32_t a, uint32_t width, uint32_t shift)
{
    if (shift + width > 32)
        width = 32 - shift;
    return (uint32_t)sign_extend(a >> shift, (int)width);
}

static uint32_t insert(uint32_t from, uint32_t into, uint32_t mask, uint32_t shift)
{
    return (into & ~mask) | ((from << shift) & mask);
}

OP(p_abs, sa < 0 ? 0u - a : a)
OP(p_avgu, (a + b) >> 1)
OP(p_slet, sa <= sb)
OP(p_sletu, a <= b)
OP(p_min, sa < sb ? a : b)
OP(p_minu, a < b ? a : b)
OP(p_max, sa > sb ? a : b)
OP(p_maxu, a > b ? a : b)
OP(p_ror, rotate_right(a, b))
OP(p_ff1, a ? (uint32_t)__builtin_ctz(a) : 32)
OP(p_fl1, a ? 31 - (uint32_t)__builtin_clz(a) : 32)
OP(p_clb, leading_sign_bits(a))
OP(p_cnt, __builtin_popcount(a))
OP(p_exths, sign_extend(a, 16))
OP(p_exthz, a & 0xFFFF)
OP(p_extbs, sign_extend(a, 8))
OP(p_extbz, a & 0xFF)
OP(p_clipi, clip(sa, -(int32_t)(1u << insn->imm), (int32_t)((1u << insn->imm) - 1)))
OP(p_clipui, clip(sa, 0, (int32_t)((1u << insn->imm) - 1)))
OP(p_clip, clip(sa, (int32_t)(~b), sb))
OP(p_clipu, clip(sa, 0, sb < 0 ? 0 : sb))
OP(p_mac, c + a * b)
OP(p_msu, c - a * b)

/* Width and position come from the instruction or from a register: bits 9..5 and 4..0. */
static uint32_t field_of(const Core *core, const Insn *insn)
{
    return insn->aux ? (uint32_t)insn->imm : core->x[insn->rs2];
}
#define WIDTH (((field_of(core, insn) >> 5) & 31) + 1)
#define SHIFT (field_of(core, insn) & 31)
#define MASK field_mask(WIDTH, SHIFT)

OP(p_extract, extract_signed(a, WIDTH, SHIFT))
OP(p_extractu, (a & MASK) >> SHIFT)
OP(p_insert, insert(a, c, MASK, SHIFT))
OP(p_bclr, a & ~MASK)
OP(p_bset, a | MASK)

/* ---- results shifted right by N, optionally rounded; aux: 1 unsigned, 2 upper halves */

static uint32_t shift_right(uint32_t value, uint32_t by, bool is_unsigned)
{
    return is_unsigned ? value >> by : (uint32_t)((int32_t)value >> by);
}

static uint32_t normalise(const Insn *insn, uint32_t value, uint32_t by, bool round)
{
    if (round && by)
        value += 1u << (by - 1);
    return shift_right(value, by & 31, insn->aux & 1);
}

static uint32_t half_product(const Core *core, const Insn *insn)
{
    uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2];

    if (insn->aux & 2) {
        a >>= 16;
        b >>= 16;
    }
    if (insn->aux & 1)
        return (a & 0xFFFF) * (b & 0xFFFF);
    return (uint32_t)(sign_extend(a, 16) * sign_extend(b, 16));
}

OP(p_mul_n, normalise(insn, half_product(core, insn), IMM, false))
OP(p_mul_rn, normalise(insn, half_product(core, insn), IMM, true))
OP(p_mac_n, normalise(insn, c + half_product(core, insn), IMM, false))
OP(p_mac_rn, normalise(insn, c + half_product(core, insn), IMM, true))
OP(p_add_ni, normalise(insn, a + b, IMM, false))
OP(p_add_rni, normalise(insn, a + b, IMM, true))
OP(p_sub_ni, normalise(insn, a - b, IMM, false))
OP(p_sub_rni, normalise(insn, a - b, IMM, true))
OP(p_add_n, normalise(insn, c + a, b & 31, false))
OP(p_add_rn, normalise(insn, c + a, b & 31, true))
OP(p_sub_n, normalise(insn, c - a, b & 31, false))
OP(p_sub_rn, normalise(insn, c - a, b & 31, true))

static uint8_t rd_as_source(uint32_t word)
{
    return (uint8_t)bits(word, 7, 5);
}

static bool decode_clip(Insn *out, uint32_t word)
{
    static const Entry table[8] = {[1] = E(p_clipi), [2] = E(p_clipui),
                                   [5] = E(p_clip), [6] = E(p_clipu)};
    uint32_t funct3 = bits(word, 12, 3), width = bits(word, 20, 5);

    if (funct3 < 4) {
        out->rs2 = 0;
        out->imm = width ? (int32_t)width - 1 : 0;
    }
    return use(out, &table[funct3]);
}

static bool decode_field(Insn *out, uint32_t word, bool immediate)
{
    static const Entry table[8] = {E(p_extract), E(p_extractu), E(p_insert), E(p_bclr),
                                   E(p_bset)};
    uint32_t funct3 = bits(word, 12, 3);

    out->aux = immediate;
    if (immediate) {
        out->imm = (int32_t)(bits(word, 25, 5) << 5 | bits(word, 20, 5));
        out->rs2 = 0;
    }
    if (funct3 == 2)
        out->rs3 = rd_as_source(word);
    return use(out, &table[funct3]);
}

static bool decode_normalised(Insn *out, uint32_t word)
{
    static const Entry immediate[8] = {E(p_mul_n), E(p_mac_n), E(p_add_ni), E(p_sub_ni),
                                       E(p_mul_rn), E(p_mac_rn), E(p_add_rni), E(p_sub_rni)};
    static const Entry by_register[8] = {[2] = E(p_add_n), [3] = E(p_sub_n),
                                         [6] = E(p_add_rn), [7] = E(p_sub_rn)};
    uint32_t funct3 = bits(word, 12, 3), top = bits(word, 30, 2);

    out->imm = (int32_t)bits(word, 25, 5);
    if ((funct3 & 3) < 2) {
        out->aux = (uint16_t)(((top & 2) ? 0 : 1) | ((top & 1) ? 2 : 0));
        if (funct3 & 1)
            out->rs3 = rd_as_source(word);
        return use(out, &immediate[funct3]);
    }
    out->aux = (uint16_t)(top >> 1);
    if (!(top & 1))
        return use(out, &immediate[funct3]);
    out->rs3 = rd_as_source(word);
    return bits(word, 25, 5) == 0 && use(out, &by_register[funct3]);
}

bool decode_xpulp(Insn *out, uint32_t word)
{
    static const Entry compare[8] = {E(p_abs), E(p_avgu), E(p_slet), E(p_sletu),
                                     E(p_min), E(p_minu), E(p_max), E(p_maxu)};
    static const Entry count[8] = {E(p_ff1), E(p_fl1), E(p_clb), E(p_cnt),
                                   E(p_exths), E(p_exthz), E(p_extbs), E(p_extbz)};
    static const Entry mac[8] = {E(p_mac), E(p_msu)};
    static const Entry ror = E(p_ror);
    uint32_t funct3 = bits(word, 12, 3), funct7 = bits(word, 25, 7);

    if (bits(word, 0, 7) == 0x5b)
        return decode_normalised(out, word);
    if ((funct7 & 0x60) == 0x60)
        return decode_field(out, word, true);
    switch (funct7) {
    case 0x02: return (funct3 || !out->rs2) && use(out, &compare[funct3]);
    case 0x04: return funct3 == 5 && use(out, &ror);
    case 0x08: return !out->rs2 && use(out, &count[funct3]);
    case 0x0a: return decode_clip(out, word);
    case 0x21: out->rs3 = rd_as_source(word); return use(out, &mac[funct3]);
    case 0x40: return decode_field(out, word, false);
    default: return false;
    }
}
