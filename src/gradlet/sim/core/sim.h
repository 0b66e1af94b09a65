/* Cycle-level model of a PULP-open cluster: shared types.
 *
 * Time is counted in cluster cycles.  A core executes one instruction in one cycle and then
 * sits out the stalls which that instruction caused; the accesses of an instruction reach the
 * memories in the cycle in which it executes.  Within a cycle the cores go first, in the order
 * of the run list, then the delayed events (wake-ups, DMA steps, timers). */
#ifndef GRADLET_SIM_H
#define GRADLET_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_CORES 16
#define MAX_HARTS (MAX_CORES + 1) /* the fabric controller comes last */
#define MAX_BANKS 64
#define MAX_L0_LINES 256
#define WATCH_BLOCK 64 /* bytes of the watch map that a new phase clears at once */
#define MAX_L1_LINES 2048
#define MAX_L1_CACHE_BANKS 8
#define MAX_COUNTERS 16
#define MAX_DMA_QUEUE 16
#define MAX_BURSTS 16
#define MAX_BURST_BYTES 256
#define NEVER UINT64_MAX

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Everything that a target file can set.  Only 32-bit fields: the binding fills it by name. */
typedef struct {
    int32_t cores, fpus, contention;
    int32_t l1_bytes, l1_banks, l2_bytes, l3_bytes, fill;
    int32_t l2_latency, l3_latency, cluster_periph_latency, soc_periph_latency;
    int32_t load_use, branch_taken, jump;
    int32_t mul_cycles, mulh_cycles, mul_result, div_base;
    int32_t fdiv_cycles, fdiv_small_cycles;
    int32_t icache_line_bytes, icache_private_sets, icache_private_ways, icache_private_refill;
    int32_t icache_shared_banks, icache_shared_sets, icache_shared_ways, icache_shared_refill;
    int32_t wakeup_latency, elw_overhead, blocking_read_latency;
    int32_t dma_channels, dma_counters, dma_core_queue, dma_global_queue;
    int32_t dma_reads, dma_writes, dma_burst_bytes, dma_ports;
    int32_t dma_l3_setup, dma_l3_rate;
    int32_t stdout_bytes, trace_records;
} SimConfig;

typedef enum {
    STATUS_RUNNING,
    STATUS_EXIT,     /* the program wrote the exit register */
    STATUS_FAULT,    /* see Fault */
    STATUS_LIMIT,    /* the cycle limit is reached */
    STATUS_DEADLOCK, /* every core sleeps and no event is on its way */
    STATUS_DRAIN,    /* stdout or trace buffer is full: read it, then run again */
    STATUS_BREAK     /* a core has come to a breakpoint */
} SimStatus;

typedef enum {
    FAULT_NONE,
    FAULT_ILLEGAL,
    FAULT_FETCH,
    FAULT_LOAD,
    FAULT_STORE,
    FAULT_DMA,
    FAULT_ENVIRONMENT_CALL,
    FAULT_BREAKPOINT,
    FAULT_WATCH_READ,
    FAULT_WATCH_WRITE,
    FAULT_WATCH_UNINITIALISED,
    FAULT_WATCH_RACE,
    FAULT_WATCH_DMA_READ,
    FAULT_WATCH_DMA_WRITE,
    FAULT_WATCH_DMA_UNINITIALISED,
    FAULT_WATCH_DMA_LOAD,
    FAULT_WATCH_DMA_STORE,
    FAULT_WATCH_DMA_OVERLAP
} FaultKind;

typedef struct {
    int32_t kind, core;
    uint32_t pc, address, size, opcode;
    int32_t other; /* core of the transfer that is in the way */
} Fault;

/* Where the cycles of a core go that are not one per instruction. */
typedef enum {
    STALL_LOAD_USE,
    STALL_TCDM_CONTENTION,
    STALL_FPU_CONTENTION,
    STALL_FPU_LATENCY,
    STALL_ICACHE,
    STALL_BRANCH,
    STALL_MULTICYCLE,
    STALL_MEMORY,
    STALL_MISALIGNED,
    STALL_BARRIER,
    STALL_DMA,
    STALL_EVENT,
    STALL_KINDS
} StallKind;

/* Event counters behind the PCCR registers, numbered as the hardware numbers them. */
enum {
    EV_CYCLES, EV_INSTRUCTIONS, EV_LOAD_STALL, EV_JUMP_STALL, EV_IMISS, EV_LOAD, EV_STORE,
    EV_JUMP, EV_BRANCH, EV_TAKEN, EV_COMPRESSED, EV_ELW, EV_EXT_LOAD, EV_EXT_STORE,
    EV_EXT_LOAD_CYCLES, EV_EXT_STORE_CYCLES, EV_TCDM_CONTENTION, EV_KINDS,
    EV_ALL = 31
};

typedef struct Core Core;
typedef struct Sim Sim;
typedef struct Insn Insn;
typedef void (*ExecFn)(Core *core, const Insn *insn);

/* An instruction, decoded once.  rs1..rs3 are the registers it waits for (0 = none); rd is
 * REG_SINK where the program writes x0.  Branch targets and the like are absolute in imm. */
struct Insn {
    ExecFn exec;
    const char *name;
    int32_t imm;
    uint8_t rd, rs1, rs2, rs3;
    uint8_t size;
    uint8_t rd_is_bfloat; /* of the two 16-bit formats, bfloat16 */
    uint16_t flags, aux;
};

enum {
    FLAG_SHARED = 1,   /* touches state that other cores or the DMA can see */
    FLAG_FPU = 2,      /* books a slot of a shared FPU */
    FLAG_LOOP_END = 4, /* may be the last instruction of a hardware loop */
    FLAG_LOAD = 8,
    FLAG_STORE = 16,
    FLAG_ELW = 32,
    FLAG_FDIV = 64, /* books the divider of the cluster */
    FLAG_SIMPLE = 128, /* one cycle, from registers to a register, nothing else */
    FLAG_BREAK = 256   /* the run pauses before it */
};

#define REG_SINK 32

typedef struct {
    uint64_t refill_done;
    uint64_t *line_ready;
    uint32_t *tag;
    uint32_t sets, ways;
    uint16_t *recent; /* per set, the line that was hit last */
    uint8_t lfsr;
} Cache;

typedef enum { CORE_OFF, CORE_RUNNING, CORE_WAITING } CoreState;

enum {
    ATTENTION_OBSERVED = 1, /* traced, or its counters are on */
    ATTENTION_ASLEEP = 2,
    ATTENTION_SECOND_HALF = 4,
    ATTENTION_STOP = 8 /* the run is over or pauses */
};

/* What a waiting core gets when it goes on. */
typedef enum { WAIT_EVENT, WAIT_BARRIER, WAIT_DMA_COUNTER, WAIT_DMA_QUEUE, WAIT_FOREVER } WaitKind;

struct Core {
    uint32_t x[REG_SINK + 1];
    uint32_t pc, current_pc;
    uint64_t now;   /* cycle in which the current instruction executes */
    uint64_t stall; /* cycles it has cost beyond the first, so far */
    uint64_t ready[REG_SINK + 1];
    uint64_t ready_max;
    uint32_t line; /* start of the 16 bytes in the fetch buffer */
    Insn *fetched; /* already, but its turn to execute had not come */
    uint32_t loop_start[2], loop_end[2], loop_count[2];
    uint32_t frm, fflags;
    Sim *sim;

    uint64_t next; /* cycle of the next visit by the scheduler */
    Core *list_next, *list_prev;
    bool linked;
    CoreState state;
    int32_t id;
    bool is_controller, break_passed;
    uint8_t attention; /* why the run loop must look up after the instruction */

    struct {
        uint32_t address, value;
        uint8_t size, first_size, rd;
        bool active, is_store, sign;
    } second_half; /* of an access that crosses a word boundary */

    struct {
        WaitKind kind;
        uint8_t rd;
        bool is_elw;
        uint32_t value;
        uint64_t since;
    } wait;

    uint64_t instructions, started, slept;
    uint64_t stalls[STALL_KINDS];
    uint64_t events[EV_KINDS];
    uint32_t pcer, pcmr;
    uint32_t pccr[EV_ALL];
    uint64_t pccr_base[EV_KINDS];
    uint32_t mtvec, mepc, mcause, mscratch, mstatus;
    uint32_t boot_address;
    Cache l0;
};

typedef void (*EventFn)(Sim *sim, int32_t argument);

typedef struct Event Event;
struct Event {
    uint64_t cycle;
    EventFn run;
    Event *next;
    int32_t argument;
    bool queued;
};

#include "devices.h"

typedef struct {
    uint64_t cycle;
    uint32_t core, pc, opcode, value;
    const char *name;
    uint32_t rd, unused;
} TraceRecord;

struct Sim {
    /* what every instruction looks at */
    uint64_t now, limit;
    uint64_t soonest; /* earliest visit that the current pass has found */
    uint64_t next_event;
    Core *first; /* run list, in the order of execution within a cycle */
    Event *events;
    Insn *code_l1, *code_l2;
    uint8_t *l1, *l2, *l3; /* l3 is last in the maps, too; no code runs there */
    uint8_t *code_present; /* one byte per 256 bytes of L1, L2, L3 */
    uint8_t *watch;        /* of cores: one byte per byte of L1, L2, L3; NULL when off */
    uint8_t *watch_dma;    /* the same of transfers */
    int32_t status;
    uint32_t bank_mask;
    bool pause; /* an output buffer is full, or a breakpoint is reached */
    bool tracing, fpu_shared, icache_on;
    SimConfig config;
    uint64_t bank_free[MAX_BANKS];
    uint64_t fpu_free[MAX_CORES], fdiv_free;
    Core cores[MAX_HARTS];

    Cache l1_cache[MAX_L1_CACHE_BANKS];
    uint64_t l0_ready[MAX_HARTS][MAX_L0_LINES];
    uint32_t l0_tag[MAX_HARTS][MAX_L0_LINES];
    uint16_t l0_recent[MAX_HARTS][MAX_L0_LINES];
    uint64_t l1_ready[MAX_L1_CACHE_BANKS][MAX_L1_LINES];
    uint32_t l1_tag[MAX_L1_CACHE_BANKS][MAX_L1_LINES];
    uint16_t l1_recent[MAX_L1_CACHE_BANKS][MAX_L1_LINES];
    EventUnit event_unit;
    Dma dma;
    Timer timer;
    Event timer_event[2];
    uint8_t *watch_store, *watch_dma_store;
    uint8_t *watch_written; /* of each block of the watch map: whether it names a writer */
    uint32_t *watch_blocks; /* the blocks that do, in the order of their first store */
    uint32_t watch_block_count;

    uint32_t exit_code, cores_at_break;
    Fault fault;
    char *stdout_data;
    uint32_t stdout_used, trace_used;
    TraceRecord *trace;
};

#include "inline.h"

/* ---- interface of the library; everything else is hidden */
#pragma GCC visibility push(default)
size_t sim_bytes(const SimConfig *config);
Sim *sim_create(void *memory, const SimConfig *config);
void sim_destroy(Sim *sim);
int32_t sim_load_elf(Sim *sim, const uint8_t *data, size_t size);
int32_t sim_run(Sim *sim, uint64_t max_cycles);
uint64_t sim_cycles(const Sim *sim);
uint32_t sim_exit_code(const Sim *sim);
void sim_fault(const Sim *sim, Fault *out);
size_t sim_take_stdout(Sim *sim, char *out, size_t size);
size_t sim_take_trace(Sim *sim, TraceRecord *out, size_t count);
void sim_set_trace(Sim *sim, int32_t on);
void sim_core_counters(const Sim *sim, int32_t core, uint64_t *out);
void sim_dma_counters(const Sim *sim, uint64_t *out);
int32_t sim_read(const Sim *sim, uint32_t address, uint8_t *out, uint32_t size);
int32_t sim_write(Sim *sim, uint32_t address, const uint8_t *in, uint32_t size);
int32_t sim_watch(Sim *sim, uint32_t address, uint32_t size, int32_t permissions, int32_t owner);
int32_t sim_watch_dma(Sim *sim, uint32_t address, uint32_t size, int32_t permissions);
void sim_watch_new_phase(Sim *sim);
int32_t sim_break(Sim *sim, uint32_t address, int32_t on);
uint32_t sim_take_breaks(Sim *sim);
uint64_t sim_barriers(const Sim *sim);
uint32_t sim_core_pc(const Sim *sim, int32_t core);
#pragma GCC visibility pop

/* ---- between the files */
void schedule(Sim *sim, Event *event, uint64_t delay);
void unschedule(Sim *sim, Event *event);
void start_core(Core *core);
void stop_core(Core *core);
void wait_core(Core *core, WaitKind kind, const Insn *insn);
void resume_core(Core *core, uint32_t value);
void fault(Core *core, FaultKind kind, uint32_t address, uint32_t size);
void core_visit(Core *core);
void decode(Core *core, Insn *out, uint32_t pc);
bool decode_xpulp(Insn *out, uint32_t word);
bool decode_simd(Insn *out, uint32_t word);
bool decode_fp(Sim *sim, Insn *out, uint32_t word);
bool decode_small(const Sim *sim, Insn *out, uint32_t word);
bool decode_vfp(const Sim *sim, Insn *out, uint32_t word);
void mark_fpu(const Sim *sim, Insn *out, int32_t divider_cycles);
bool decode_memory(Insn *out, uint32_t word);
bool decode_op_imm(Insn *out, uint32_t word);
bool decode_op(const Sim *sim, Insn *out, uint32_t word);
bool decode_branch(Insn *out, uint32_t word, uint32_t pc);
bool decode_upper(Insn *out, uint32_t word, uint32_t pc);
bool decode_system(Insn *out, uint32_t word);
bool decode_loop(Insn *out, uint32_t word, uint32_t pc);
bool decode_fence(Insn *out, uint32_t word);
uint32_t expand_compressed(uint16_t word);
bool icache_fetch(Core *core, uint32_t line, bool may_share);
void icache_reset(Sim *sim);
void icache_flush(Sim *sim);
uint8_t *ram(const Sim *sim, uint32_t address, uint32_t size);
void code_written(Sim *sim, uint32_t address, uint32_t size);
bool watch_ok(Core *core, uint32_t address, uint32_t size, bool is_store);
bool watch_transfer(Sim *sim, const DmaCommand *command);
void watch_transfers_seen(Sim *sim, uint32_t counters);
void slow_load(Core *core, const Insn *insn, uint32_t address, uint32_t size, bool sign);
void slow_store(Core *core, const Insn *insn, uint32_t address, uint32_t size, uint32_t value);
void finish_second_half(Core *core);
bool periph_access(Core *core, const Insn *insn, uint32_t address, uint32_t size,
                   uint32_t *value, bool is_store);
bool event_unit_access(Core *core, const Insn *insn, uint32_t offset, uint32_t *value,
                       bool is_store);
bool event_unit_global(Sim *sim, uint32_t offset, uint32_t *value, bool is_store);
void event_unit_raise(Sim *sim, uint32_t events, uint32_t cores);
void event_unit_init(Sim *sim);
bool dma_access(Core *core, const Insn *insn, uint32_t channel, uint32_t offset, uint32_t *value,
                bool is_store);
void dma_init(Sim *sim);
void dma_enqueue(Sim *sim, DmaCommand *command);
void dma_unblock(Sim *sim, uint32_t number);
void dma_fault(Sim *sim, const DmaCommand *command, FaultKind kind, uint32_t address,
               uint32_t size);
void dma_arrive(Sim *sim, DmaBurst *burst);
bool dma_deliver(Sim *sim, DmaBurst *burst);
void dma_schedule(Sim *sim);
void l3_send(Sim *sim, DmaBurst *burst);
void l3_init(Sim *sim);
bool timer_access(Sim *sim, uint32_t offset, uint32_t *value, bool is_store);
void timer_init(Sim *sim);
bool csr_read(Core *core, uint32_t number, uint32_t *value);
bool csr_write(Core *core, uint32_t number, uint32_t value);

#endif
