/* How the decode tables name an instruction and what executes it. */
#ifndef GRADLET_ENTRY_H
#define GRADLET_ENTRY_H

#include "sim.h"

typedef struct {
    ExecFn exec;
    const char *name;
} Entry;
#define E(name) {op_##name, #name}
#define IMM ((uint32_t)insn->imm)

static inline bool use(Insn *out, const Entry *entry)
{
    out->exec = entry->exec;
    out->name = entry->name;
    return entry->exec != NULL;
}

#endif
