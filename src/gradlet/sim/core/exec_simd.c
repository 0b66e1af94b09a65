/* Xpulpv2, packed integers: two halfwords or four bytes in a register.
 * The second operand is a vector, a scalar used for every lane, or an immediate, which the
 * decoder has already spread over the lanes. */
#include "entry.h"

enum { OPERAND_VECTOR, OPERAND_SCALAR, OPERAND_IMMEDIATE };

static inline uint32_t spread(uint32_t value, int width)
{
    return width == 16 ? (value & 0xFFFF) * 0x10001u : (value & 0xFF) * 0x1010101u;
}

static inline uint32_t second_operand(const Core *core, const Insn *insn, int width)
{
    if (insn->aux == OPERAND_VECTOR)
        return core->x[insn->rs2];
    if (insn->aux == OPERAND_SCALAR)
        return spread(core->x[insn->rs2], width);
    return (uint32_t)insn->imm;
}

/* In the expression: a, b lanes as unsigned, sa, sb as signed; width and lane are at hand. */
#define LANES(name, bits_per_lane, expression)                                                    \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        enum { width = bits_per_lane };                                                           \
        uint32_t va = core->x[insn->rs1], vb = second_operand(core, insn, width), result = 0;     \
        for (int lane = 0; lane < 32; lane += width) {                                            \
            uint32_t a = (va >> lane) & ((1u << width) - 1);                                      \
            uint32_t b = (vb >> lane) & ((1u << width) - 1);                                      \
            int32_t sa = sign_extend(a, width), sb = sign_extend(b, width);                       \
            (void)a, (void)b, (void)sa, (void)sb;                                                 \
            result |= ((uint32_t)(expression) & ((1u << width) - 1)) << lane;                     \
        }                                                                                         \
        core->x[insn->rd] = result;                                                               \
    }
#define BOTH(name, expression)                                                                    \
    LANES(name##_h, 16, expression)                                                               \
    LANES(name##_b, 8, expression)

BOTH(pv_add, a + b)
BOTH(pv_sub, a - b)
BOTH(pv_avg, sign_extend(a + b, width) >> 1)
BOTH(pv_avgu, ((a + b) & ((1u << width) - 1)) >> 1)
BOTH(pv_min, sa < sb ? a : b)
BOTH(pv_minu, a < b ? a : b)
BOTH(pv_max, sa > sb ? a : b)
BOTH(pv_maxu, a > b ? a : b)
BOTH(pv_srl, a >> (b & (width - 1)))
BOTH(pv_sra, sa >> (b & (width - 1)))
BOTH(pv_sll, a << (b & (width - 1)))
BOTH(pv_or, a | b)
BOTH(pv_xor, a ^ b)
BOTH(pv_and, a & b)
BOTH(pv_abs, sa < 0 ? 0u - a : a)
BOTH(pv_cmpeq, a == b ? ~0u : 0)
BOTH(pv_cmpne, a != b ? ~0u : 0)
BOTH(pv_cmpgt, sa > sb ? ~0u : 0)
BOTH(pv_cmpge, sa >= sb ? ~0u : 0)
BOTH(pv_cmplt, sa < sb ? ~0u : 0)
BOTH(pv_cmple, sa <= sb ? ~0u : 0)
BOTH(pv_cmpgtu, a > b ? ~0u : 0)
BOTH(pv_cmpgeu, a >= b ? ~0u : 0)
BOTH(pv_cmpltu, a < b ? ~0u : 0)
BOTH(pv_cmpleu, a <= b ? ~0u : 0)

#define DOT(name, bits_per_lane, start, product)                                                  \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        enum { width = bits_per_lane };                                                           \
        uint32_t va = core->x[insn->rs1], vb = second_operand(core, insn, width), sum = start;    \
        for (int lane = 0; lane < 32; lane += width) {                                            \
            uint32_t a = (va >> lane) & ((1u << width) - 1);                                      \
            uint32_t b = (vb >> lane) & ((1u << width) - 1);                                      \
            uint32_t sa = (uint32_t)sign_extend(a, width), sb = (uint32_t)sign_extend(b, width);  \
            (void)a, (void)b, (void)sa, (void)sb;                                                 \
            sum += product;                                                                       \
        }                                                                                         \
        core->x[insn->rd] = sum;                                                                  \
    }
#define DOT_GROUP(name, product)                                                                  \
    DOT(pv_dot##name##_h, 16, 0, product)                                                         \
    DOT(pv_dot##name##_b, 8, 0, product)                                                          \
    DOT(pv_sdot##name##_h, 16, core->x[insn->rs3], product)                                       \
    DOT(pv_sdot##name##_b, 8, core->x[insn->rs3], product)

DOT_GROUP(up, a *b)
DOT_GROUP(usp, a *sb)
DOT_GROUP(sp, sa *sb)

/* ---- moving lanes around */

#define MOVE(name, expression)                                                                    \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        uint32_t a = core->x[insn->rs1], b = core->x[insn->rs2], c = core->x[insn->rs3];          \
        (void)a, (void)b, (void)c;                                                                \
        core->x[insn->rd] = (uint32_t)(expression);                                               \
    }

static uint32_t half_of(uint32_t value, uint32_t which)
{
    return (value >> (16 * (which & 1))) & 0xFFFF;
}

static uint32_t byte_of(uint32_t value, uint32_t which)
{
    return (value >> (8 * (which & 3))) & 0xFF;
}

static uint32_t shuffle_bytes(uint32_t a, uint32_t selector, uint32_t otherwise, bool two)
{
    uint32_t result = 0;

    for (int lane = 0; lane < 32; lane += 8) {
        uint32_t choice = selector >> lane;
        result |= byte_of(!two || (choice & 4) ? a : otherwise, choice) << lane;
    }
    return result;
}

static uint32_t shuffle_halves(uint32_t a, uint32_t selector, uint32_t otherwise, bool two)
{
    uint32_t high = selector >> 16, low = selector;

    return half_of(!two || (high & 2) ? a : otherwise, high) << 16 |
           half_of(!two || (low & 2) ? a : otherwise, low);
}

static uint32_t shuffle_bytes_immediate(uint32_t a, uint32_t top, uint32_t imm)
{
    return byte_of(a, top) << 24 | byte_of(a, imm >> 4) << 16 | byte_of(a, imm >> 2) << 8 |
           byte_of(a, imm);
}

static uint32_t replace(uint32_t into, uint32_t value, int shift, uint32_t mask)
{
    return (into & ~(mask << shift)) | (value & mask) << shift;
}

MOVE(pv_shuffle_h, shuffle_halves(a, b, 0, false))
MOVE(pv_shuffle_b, shuffle_bytes(a, b, 0, false))
MOVE(pv_shuffle_sci_h, half_of(a, IMM >> 1) << 16 | half_of(a, IMM))
MOVE(pv_shufflei_sci_b, shuffle_bytes_immediate(a, insn->aux, IMM))
MOVE(pv_shuffle2_h, shuffle_halves(a, b, c, true))
MOVE(pv_shuffle2_b, shuffle_bytes(a, b, c, true))
MOVE(pv_pack_h, a << 16 | (b & 0xFFFF))
MOVE(pv_packhi_b, (a & 0xFF) << 24 | (b & 0xFF) << 16 | (c & 0xFFFF))
MOVE(pv_packlo_b, (a & 0xFF) << 8 | (b & 0xFF) | (c & 0xFFFF0000u))
MOVE(pv_extract_h, sign_extend(half_of(a, IMM), 16))
MOVE(pv_extract_b, sign_extend(byte_of(a, IMM), 8))
MOVE(pv_extractu_h, half_of(a, IMM))
MOVE(pv_extractu_b, byte_of(a, IMM))
MOVE(pv_insert_h, replace(c, a, 16 * (insn->imm & 1), 0xFFFF))
MOVE(pv_insert_b, replace(c, a, 8 * (insn->imm & 3), 0xFF))

#define PAIR(name) {E(name##_h), E(name##_b)}

/* Indexed by the upper six bits of the instruction. */
static const Entry arithmetic[64][2] = {
    [0x00] = PAIR(pv_add), [0x02] = PAIR(pv_sub), [0x04] = PAIR(pv_avg),
    [0x06] = PAIR(pv_avgu), [0x08] = PAIR(pv_min), [0x0a] = PAIR(pv_minu),
    [0x0c] = PAIR(pv_max), [0x0e] = PAIR(pv_maxu), [0x10] = PAIR(pv_srl),
    [0x12] = PAIR(pv_sra), [0x14] = PAIR(pv_sll), [0x16] = PAIR(pv_or),
    [0x18] = PAIR(pv_xor), [0x1a] = PAIR(pv_and), [0x20] = PAIR(pv_dotup),
    [0x22] = PAIR(pv_dotusp), [0x26] = PAIR(pv_dotsp), [0x28] = PAIR(pv_sdotup),
    [0x2a] = PAIR(pv_sdotusp), [0x2e] = PAIR(pv_sdotsp), [0x01] = PAIR(pv_cmpeq),
    [0x03] = PAIR(pv_cmpne), [0x05] = PAIR(pv_cmpgt), [0x07] = PAIR(pv_cmpge),
    [0x09] = PAIR(pv_cmplt), [0x0b] = PAIR(pv_cmple), [0x0d] = PAIR(pv_cmpgtu),
    [0x0f] = PAIR(pv_cmpgeu), [0x11] = PAIR(pv_cmpltu), [0x13] = PAIR(pv_cmpleu)};

static bool immediate_is_unsigned(uint32_t op)
{
    switch (op) {
    case 0x06: case 0x0a: case 0x0e: case 0x10: case 0x14: case 0x20: case 0x28:
    case 0x0d: case 0x0f: case 0x11: case 0x13: return true;
    default: return false;
    }
}

static bool decode_move(Insn *out, uint32_t word)
{
    static const Entry by_register[64][2] = {[0x30] = PAIR(pv_shuffle), [0x32] = PAIR(pv_shuffle2),
                                             [0x34] = {E(pv_pack_h)},
                                             [0x36] = {{0}, E(pv_packhi_b)},
                                             [0x38] = {{0}, E(pv_packlo_b)},
                                             [0x1c] = PAIR(pv_abs)};
    static const Entry by_immediate[64][2] = {
        [0x30] = {E(pv_shuffle_sci_h), E(pv_shufflei_sci_b)}, [0x3a] = {{0}, E(pv_shufflei_sci_b)},
        [0x3c] = {{0}, E(pv_shufflei_sci_b)}, [0x3e] = {{0}, E(pv_shufflei_sci_b)},
        [0x1e] = PAIR(pv_extract), [0x24] = PAIR(pv_extractu), [0x2c] = PAIR(pv_insert)};
    uint32_t op = bits(word, 26, 6), funct3 = bits(word, 12, 3), byte = funct3 & 1;

    if (funct3 < 2) {
        if ((op == 0x34 || op == 0x1c) && bits(word, 25, 1))
            return false;
        if (op == 0x1c)
            out->rs2 = 0;
        else if (op != 0x30 && op != 0x34)
            out->rs3 = (uint8_t)bits(word, 7, 5);
        return use(out, &by_register[op][byte]);
    }
    if (funct3 < 6)
        return false;
    out->rs2 = 0;
    out->imm = (int32_t)(bits(word, 20, 5) << 1 | bits(word, 25, 1));
    out->aux = (uint16_t)(op == 0x30 ? 0 : (op - 0x38) >> 1);
    if (op == 0x2c)
        out->rs3 = (uint8_t)bits(word, 7, 5);
    return use(out, &by_immediate[op][byte]);
}

bool decode_simd(Insn *out, uint32_t word)
{
    uint32_t op = bits(word, 26, 6), funct3 = bits(word, 12, 3), byte = funct3 & 1;
    uint32_t imm = bits(word, 20, 5) << 1 | bits(word, 25, 1);

    if (!arithmetic[op][byte].exec)
        return decode_move(out, word);
    if (op >= 0x28 && op <= 0x2e)
        out->rs3 = (uint8_t)bits(word, 7, 5);
    if (funct3 == 2 || funct3 == 3)
        return false;
    out->aux = funct3 < 2 ? OPERAND_VECTOR : funct3 < 6 ? OPERAND_SCALAR : OPERAND_IMMEDIATE;
    if (out->aux == OPERAND_IMMEDIATE) {
        if (!immediate_is_unsigned(op))
            imm = (uint32_t)sign_extend(imm, 6);
        out->imm = (int32_t)spread(imm, byte ? 8 : 16);
        out->rs2 = 0;
    }
    return use(out, &arithmetic[op][byte]);
}
