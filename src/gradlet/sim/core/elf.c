/* Loading an ELF file.  Everything in it is checked against its size: it may be damaged. */
#include "sim.h"

typedef struct {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version, entry, phoff, shoff, flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
} ElfHeader;

typedef struct {
    uint32_t type, offset, vaddr, paddr, filesz, memsz, flags, align;
} ElfSegment;

enum { ELF_OK, ELF_NOT_ELF, ELF_NOT_RISCV32, ELF_TRUNCATED, ELF_OUTSIDE_MEMORY };
enum { ELF_CLASS_32 = 1, ELF_LITTLE_ENDIAN = 1, ELF_RISCV = 243, ELF_LOAD = 1 };

static int32_t load_segment(Sim *sim, const uint8_t *data, size_t size, const ElfSegment *segment)
{
    uint8_t *at;

    if (segment->memsz == 0)
        return ELF_OK;
    if (segment->filesz > segment->memsz || segment->offset > size ||
        segment->filesz > size - segment->offset)
        return ELF_TRUNCATED;
    at = ram(sim, segment->paddr, segment->memsz); /* start-up code moves what runs elsewhere */
    if (!at)
        return ELF_OUTSIDE_MEMORY;
    __builtin_memcpy(at, data + segment->offset, segment->filesz);
    __builtin_memset(at + segment->filesz, 0, segment->memsz - segment->filesz);
    return ELF_OK;
}

int32_t sim_load_elf(Sim *sim, const uint8_t *data, size_t size)
{
    ElfHeader header;

    if (size < sizeof header)
        return ELF_TRUNCATED;
    __builtin_memcpy(&header, data, sizeof header);
    if (header.ident[0] != 0x7f || header.ident[1] != 'E' || header.ident[2] != 'L' ||
        header.ident[3] != 'F')
        return ELF_NOT_ELF;
    if (header.ident[4] != ELF_CLASS_32 || header.ident[5] != ELF_LITTLE_ENDIAN ||
        header.machine != ELF_RISCV)
        return ELF_NOT_RISCV32;
    for (uint32_t i = 0; i < header.phnum; i++) {
        uint64_t offset = (uint64_t)header.phoff + (uint64_t)i * header.phentsize;
        ElfSegment segment;
        int32_t error;
        if (header.phentsize < sizeof segment || offset + sizeof segment > size)
            return ELF_TRUNCATED;
        __builtin_memcpy(&segment, data + offset, sizeof segment);
        error = segment.type == ELF_LOAD ? load_segment(sim, data, size, &segment) : ELF_OK;
        if (error)
            return error;
    }
    sim->cores[sim->config.cores].boot_address = header.entry;
    start_core(&sim->cores[sim->config.cores]);
    return ELF_OK;
}
