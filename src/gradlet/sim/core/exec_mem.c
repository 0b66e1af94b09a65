/* Loads and stores: the access to L1 inline, everything else in memory.c. */
#include "sim.h"

static inline bool is_plain_l1(const Sim *sim, uint32_t address, uint32_t size)
{
    return address - L1_BASE < (uint32_t)sim->config.l1_bytes && (address & 3) + size <= 4 &&
           !sim->watch;
}

static inline void wait_for_bank(Core *core, uint64_t wait)
{
    if (UNLIKELY(wait)) {
        add_stall(core, STALL_TCDM_CONTENTION, wait);
        core->events[EV_TCDM_CONTENTION] += wait;
    }
}

static inline void load(Core *core, const Insn *insn, uint32_t address, uint32_t size, bool sign)
{
    Sim *sim = core->sim;

    core->events[EV_LOAD]++;
    if (LIKELY(is_plain_l1(sim, address, size))) {
        uint32_t value = read_le(sim->l1 + (address - L1_BASE), size);
        wait_for_bank(core, bank_wait(sim, address, core->now));
        core->x[insn->rd] = sign ? (uint32_t)sign_extend(value, (int)size * 8) : value;
        result_ready_after(core, insn->rd, 1 + (uint64_t)(uint32_t)sim->config.load_use);
    } else {
        slow_load(core, insn, address, size, sign);
    }
}

static inline void store(Core *core, const Insn *insn, uint32_t address, uint32_t size)
{
    Sim *sim = core->sim;
    uint32_t value = core->x[insn->rs2];

    core->events[EV_STORE]++;
    if (LIKELY(is_plain_l1(sim, address, size))) {
        uint32_t offset = address - L1_BASE;
        wait_for_bank(core, bank_wait(sim, address, core->now));
        __builtin_memcpy(sim->l1 + offset, &value, size);
        if (UNLIKELY(sim->code_present[offset >> 8]))
            code_written(sim, address, size);
    } else {
        slow_store(core, insn, address, size, value);
    }
}

#define LOAD_GROUP(name, size, sign)                                                              \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        load(core, insn, core->x[insn->rs1] + (uint32_t)insn->imm, size, sign);                   \
    }                                                                                             \
    static void op_p_##name##_rr(Core *core, const Insn *insn)                                    \
    {                                                                                             \
        load(core, insn, core->x[insn->rs1] + core->x[insn->rs2], size, sign);                    \
    }                                                                                             \
    static void op_p_##name##_post(Core *core, const Insn *insn)                                  \
    {                                                                                             \
        uint32_t address = core->x[insn->rs1];                                                    \
        load(core, insn, address, size, sign);                                                    \
        core->x[insn->aux] = address + (uint32_t)insn->imm;                                       \
    }                                                                                             \
    static void op_p_##name##_rrpost(Core *core, const Insn *insn)                                \
    {                                                                                             \
        uint32_t address = core->x[insn->rs1], step = core->x[insn->rs2];                         \
        load(core, insn, address, size, sign);                                                    \
        core->x[insn->aux] = address + step;                                                      \
    }

#define STORE_GROUP(name, size)                                                                   \
    static void op_##name(Core *core, const Insn *insn)                                           \
    {                                                                                             \
        store(core, insn, core->x[insn->rs1] + (uint32_t)insn->imm, size);                        \
    }                                                                                             \
    static void op_p_##name##_rr(Core *core, const Insn *insn)                                    \
    {                                                                                             \
        store(core, insn, core->x[insn->rs1] + core->x[insn->rs3], size);                         \
    }                                                                                             \
    static void op_p_##name##_post(Core *core, const Insn *insn)                                  \
    {                                                                                             \
        uint32_t address = core->x[insn->rs1];                                                    \
        store(core, insn, address, size);                                                         \
        core->x[insn->aux] = address + (uint32_t)insn->imm;                                       \
    }                                                                                             \
    static void op_p_##name##_rrpost(Core *core, const Insn *insn)                                \
    {                                                                                             \
        uint32_t address = core->x[insn->rs1], step = core->x[insn->rs3];                         \
        store(core, insn, address, size);                                                         \
        core->x[insn->aux] = address + step;                                                      \
    }

LOAD_GROUP(lb, 1, true)
LOAD_GROUP(lh, 2, true)
LOAD_GROUP(lw, 4, false)
LOAD_GROUP(lbu, 1, false)
LOAD_GROUP(lhu, 2, false)
STORE_GROUP(sb, 1)
STORE_GROUP(sh, 2)
STORE_GROUP(sw, 4)

/* The time that the instruction always takes passes after the core has slept, if it sleeps. */
static void op_p_elw(Core *core, const Insn *insn)
{
    add_stall(core, STALL_EVENT, (uint64_t)core->sim->config.elw_overhead);
    load(core, insn, core->x[insn->rs1] + (uint32_t)insn->imm, 4, false);
}

typedef struct {
    ExecFn plain, rr, post, rrpost;
    const char *name;
} AccessGroup;

#define GROUP(name) {op_##name, op_p_##name##_rr, op_p_##name##_post, op_p_##name##_rrpost, #name}

static const AccessGroup load_group[8] = {GROUP(lb), GROUP(lh), GROUP(lw), {0},
                                          GROUP(lbu), GROUP(lhu), {0}, {0}};
static const AccessGroup store_group[3] = {GROUP(sb), GROUP(sh), GROUP(sw)};

/* Width and sign of a register-register load are in funct7 instead of funct3. */
static const AccessGroup *rr_load_group(uint32_t funct7)
{
    switch (funct7) {
    case 0x00: return &load_group[0];
    case 0x08: return &load_group[1];
    case 0x10: return &load_group[2];
    case 0x20: return &load_group[4];
    case 0x28: return &load_group[5];
    default: return NULL;
    }
}

static bool decode_load(Insn *out, uint32_t word, bool post)
{
    uint32_t funct3 = bits(word, 12, 3);
    const AccessGroup *group = &load_group[funct3];

    out->flags |= FLAG_SHARED | FLAG_LOAD;
    out->imm = (int32_t)word >> 20;
    out->aux = post && out->rs1 ? out->rs1 : post ? REG_SINK : 0;
    if (funct3 == 7) {
        group = rr_load_group(bits(word, 25, 7));
        if (!group)
            return false;
        out->exec = post ? group->rrpost : group->rr;
    } else {
        out->rs2 = 0;
        out->exec = post ? group->post : group->plain;
    }
    out->name = group->name;
    if (funct3 == 6 && !post) {
        out->exec = op_p_elw;
        out->name = "p.elw";
        out->flags |= FLAG_ELW;
    }
    return out->exec != NULL;
}

static bool decode_store(Insn *out, uint32_t word, bool post)
{
    uint32_t funct3 = bits(word, 12, 3);

    out->flags |= FLAG_SHARED | FLAG_STORE;
    out->imm = ((int32_t)word >> 25) * 32 + (int32_t)bits(word, 7, 5);
    out->aux = post && out->rs1 ? out->rs1 : post ? REG_SINK : 0;
    out->rd = REG_SINK;
    if (funct3 < 3) {
        out->exec = post ? store_group[funct3].post : store_group[funct3].plain;
        out->name = store_group[funct3].name;
        return true;
    }
    if (funct3 >= 4 && funct3 < 7 && bits(word, 25, 7) == 0) {
        out->rs3 = (uint8_t)bits(word, 7, 5);
        out->exec = post ? store_group[funct3 - 4].rrpost : store_group[funct3 - 4].rr;
        out->name = store_group[funct3 - 4].name;
        return true;
    }
    return false;
}

bool decode_memory(Insn *out, uint32_t word)
{
    switch (bits(word, 0, 7)) {
    case 0x03: return decode_load(out, word, false);
    case 0x0b: return decode_load(out, word, true);
    case 0x23: return decode_store(out, word, false);
    case 0x2b: return decode_store(out, word, true);
    default: return false;
    }
}
