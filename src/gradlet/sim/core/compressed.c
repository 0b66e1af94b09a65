/* RV32C: a 16-bit instruction as the 32-bit one that it stands for (0 = there is none). */
#include "sim.h"

static uint32_t r_type(uint32_t f7, uint32_t rs2, uint32_t rs1, uint32_t f3, uint32_t rd,
                       uint32_t opcode)
{
    return f7 << 25 | rs2 << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode;
}

static uint32_t i_type(uint32_t imm, uint32_t rs1, uint32_t f3, uint32_t rd, uint32_t opcode)
{
    return (imm & 0xFFF) << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode;
}

static uint32_t s_type(uint32_t imm, uint32_t rs2, uint32_t rs1, uint32_t f3)
{
    return bits(imm, 5, 7) << 25 | rs2 << 20 | rs1 << 15 | f3 << 12 | bits(imm, 0, 5) << 7 | 0x23;
}

static uint32_t b_type(uint32_t imm, uint32_t rs1, uint32_t f3)
{
    return bits(imm, 12, 1) << 31 | bits(imm, 5, 6) << 25 | rs1 << 15 | f3 << 12 |
           bits(imm, 1, 4) << 8 | bits(imm, 11, 1) << 7 | 0x63;
}

static uint32_t j_type(uint32_t imm, uint32_t rd)
{
    return bits(imm, 20, 1) << 31 | bits(imm, 1, 10) << 21 | bits(imm, 11, 1) << 20 |
           bits(imm, 12, 8) << 12 | rd << 7 | 0x6f;
}

static uint32_t imm6(uint32_t w)
{
    return (uint32_t)sign_extend(bits(w, 12, 1) << 5 | bits(w, 2, 5), 6);
}

static uint32_t jump_offset(uint32_t w)
{
    return (uint32_t)sign_extend(bits(w, 12, 1) << 11 | bits(w, 11, 1) << 4 | bits(w, 9, 2) << 8 |
                                     bits(w, 8, 1) << 10 | bits(w, 7, 1) << 6 |
                                     bits(w, 6, 1) << 7 | bits(w, 3, 3) << 1 | bits(w, 2, 1) << 5,
                                 12);
}

static uint32_t branch_offset(uint32_t w)
{
    return (uint32_t)sign_extend(bits(w, 12, 1) << 8 | bits(w, 10, 2) << 3 | bits(w, 5, 2) << 6 |
                                     bits(w, 3, 2) << 1 | bits(w, 2, 1) << 5,
                                 9);
}

static uint32_t quadrant0(uint32_t w)
{
    uint32_t rd = 8 + bits(w, 2, 3), rs1 = 8 + bits(w, 7, 3);
    uint32_t word_offset = bits(w, 10, 3) << 3 | bits(w, 6, 1) << 2 | bits(w, 5, 1) << 6;
    uint32_t sp_offset = bits(w, 11, 2) << 4 | bits(w, 7, 4) << 6 | bits(w, 6, 1) << 2 |
                         bits(w, 5, 1) << 3;

    switch (bits(w, 13, 3)) {
    case 0: return sp_offset ? i_type(sp_offset, 2, 0, rd, 0x13) : 0;
    case 2: return i_type(word_offset, rs1, 2, rd, 0x03);
    case 6: return s_type(word_offset, rd, rs1, 2);
    default: return 0;
    }
}

static uint32_t register_arithmetic(uint32_t w)
{
    static const uint32_t funct3[4] = {0, 4, 6, 7};
    uint32_t rd = 8 + bits(w, 7, 3), rs2 = 8 + bits(w, 2, 3), which = bits(w, 5, 2);

    switch (bits(w, 10, 2)) {
    case 0: return bits(w, 12, 1) ? 0 : i_type(bits(w, 2, 5), rd, 5, rd, 0x13);
    case 1: return bits(w, 12, 1) ? 0 : i_type(0x400 | bits(w, 2, 5), rd, 5, rd, 0x13);
    case 2: return i_type(imm6(w), rd, 7, rd, 0x13);
    default:
        if (bits(w, 12, 1))
            return 0;
        return r_type(which == 0 ? 0x20 : 0, rs2, rd, funct3[which], rd, 0x33);
    }
}

static uint32_t quadrant1(uint32_t w)
{
    uint32_t rd = bits(w, 7, 5), short_rd = 8 + bits(w, 7, 3);
    uint32_t sp_step = (uint32_t)sign_extend(bits(w, 12, 1) << 9 | bits(w, 6, 1) << 4 |
                                                 bits(w, 5, 1) << 6 | bits(w, 3, 2) << 7 |
                                                 bits(w, 2, 1) << 5,
                                             10);

    switch (bits(w, 13, 3)) {
    case 0: return i_type(imm6(w), rd, 0, rd, 0x13);
    case 1: return j_type(jump_offset(w), 1);
    case 2: return i_type(imm6(w), 0, 0, rd, 0x13);
    case 3:
        if (rd == 2)
            return sp_step ? i_type(sp_step, 2, 0, 2, 0x13) : 0;
        return imm6(w) ? (imm6(w) << 12) | rd << 7 | 0x37 : 0;
    case 4: return register_arithmetic(w);
    case 5: return j_type(jump_offset(w), 0);
    case 6: return b_type(branch_offset(w), short_rd, 0);
    default: return b_type(branch_offset(w), short_rd, 1);
    }
}

static uint32_t quadrant2(uint32_t w)
{
    uint32_t rd = bits(w, 7, 5), rs2 = bits(w, 2, 5);
    uint32_t load_offset = bits(w, 12, 1) << 5 | bits(w, 4, 3) << 2 | bits(w, 2, 2) << 6;
    uint32_t store_offset = bits(w, 9, 4) << 2 | bits(w, 7, 2) << 6;

    switch (bits(w, 13, 3)) {
    case 0: return bits(w, 12, 1) ? 0 : i_type(rs2, rd, 1, rd, 0x13);
    case 2: return rd ? i_type(load_offset, 2, 2, rd, 0x03) : 0;
    case 4:
        if (!bits(w, 12, 1))
            return rs2 ? r_type(0, rs2, 0, 0, rd, 0x33) : rd ? i_type(0, rd, 0, 0, 0x67) : 0;
        if (rs2)
            return r_type(0, rs2, rd, 0, rd, 0x33);
        return rd ? i_type(0, rd, 0, 1, 0x67) : 0x00100073;
    case 6: return s_type(store_offset, rs2, 2, 2);
    default: return 0;
    }
}

uint32_t expand_compressed(uint16_t word)
{
    switch (word & 3) {
    case 0: return quadrant0(word);
    case 1: return quadrant1(word);
    default: return quadrant2(word);
    }
}
