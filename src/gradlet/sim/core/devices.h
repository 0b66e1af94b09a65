/* State of the devices of the cluster: event unit, DMA, timer. */
#ifndef GRADLET_DEVICES_H
#define GRADLET_DEVICES_H

#define MUTEXES 4
#define BARRIERS 16
#define DISPATCH_DEPTH 8

typedef struct {
    uint32_t status, mask, irq_mask, clear_on_wake;
    bool asleep;
    Event wakeup;
} CoreEvents;

typedef struct {
    uint32_t trigger_mask, target_mask, status;
} Barrier;

typedef struct {
    bool locked;
    uint32_t waiting;
} Mutex;

typedef struct {
    uint32_t value, pending, team, waiting;
} DispatchEntry;

typedef struct {
    CoreEvents core[MAX_CORES];
    Barrier barrier[BARRIERS];
    uint64_t released; /* barriers at which all had arrived */
    Mutex mutex[MUTEXES];
    DispatchEntry dispatch[DISPATCH_DEPTH];
    uint32_t dispatch_head, dispatch_team, dispatch_tail[MAX_CORES];
} EventUnit;

/* One transfer as it travels from the port of a core through the queues. */
typedef struct DmaCommand DmaCommand;
struct DmaCommand {
    uint32_t word[5];
    uint32_t words;
    bool to_l2, is_2d, raise_event, raise_irq, broadcast;
    uint32_t counter, channel;
    uint32_t pc; /* of the store that completed it */
    uint32_t l1, l2, line_start, line_bytes, stride;
    uint32_t left_to_request, left_in_line, left_to_finish;
    DmaCommand *next;
};

typedef struct {
    DmaCommand *first, *last;
    int32_t count;
} DmaQueue;

/* At most one burst long piece of a command, on its way between L2 or L3 and L1. */
typedef struct DmaBurst DmaBurst;
struct DmaBurst {
    DmaCommand *command;
    uint32_t l1, l2, size, done;
    uint8_t data[MAX_BURST_BYTES];
    uint64_t ready; /* when L3 is done with it */
    DmaBurst *next;
};

typedef struct {
    DmaCommand *current; /* still receiving words */
    DmaQueue queue;
    uint32_t counter, own; /* the one for its commands, and a mask of those that it took last */
    bool blocked;
    uint32_t blocked_word;
    bool polling; /* it has seen a transfer of its own under way, and not yet that it is done */
} DmaChannel;

/* What the transfers of a counter touch that nobody knows to be done: ranges of the watch map. */
typedef struct {
    uint32_t near_begin, near_end, far_begin, far_end;
} DmaExtent;

/* The bus of L3, which takes one burst after the other. */
typedef struct {
    DmaBurst *first, *last;
    uint64_t free;
    uint32_t next; /* address behind the last burst */
    bool was_store;
    Event done;
} L3Bus;

#define DMA_COMMANDS ((MAX_HARTS) * (MAX_DMA_QUEUE + 1) + 2 * MAX_DMA_QUEUE + 2 * MAX_BURSTS + 8)

typedef struct {
    DmaChannel channel[MAX_HARTS];
    DmaCommand commands[DMA_COMMANDS];
    DmaBurst read_bursts[MAX_BURSTS], write_bursts[MAX_BURSTS];
    DmaCommand *free_commands;
    DmaBurst *free_reads, *free_writes;
    DmaQueue reads, writes;
    DmaCommand *current_read, *current_write;
    DmaBurst *arrived_first, *arrived_last; /* read from L2, not yet all in L1 */
    DmaBurst *collecting;                   /* being read from L1 */
    int32_t reads_in_flight, writes_in_flight;
    int32_t waiting_reads, waiting_writes;  /* commands in the queues of the cores */
    uint32_t next_channel;
    uint32_t free_counters;
    int64_t pending_bytes[MAX_COUNTERS];
    uint32_t counter_channel[MAX_COUNTERS]; /* that took it last */
    DmaExtent extent[MAX_COUNTERS];
    L3Bus l3;
    uint64_t started, finished; /* commands */
    uint64_t busy, busy_since, busy_until, waited, waited_since; /* cycles */
    uint32_t polling; /* channels */
    uint64_t bytes[2], l3_bytes[2]; /* moved into L1, out of L1 */
    uint64_t port_free[4];
    int32_t counter_waiters[MAX_HARTS], counter_waiter_count;
    Event move, issue_read, issue_write, transfer;
} Dma;

typedef struct {
    uint32_t config[2], compare[2], base[2];
    uint64_t since[2];
} Timer;

#endif
