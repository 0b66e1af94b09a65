/* The DMA of the cluster (MCHAN).  A command travels: port of the core, queue of the core,
 * global queue of its direction, bursts.  Four steps, each an event of its own that runs at most
 * once per cycle: move a command to a global queue, issue a read burst to L2, prepare a write
 * burst, and move words between the bursts and L1, two ports per direction.
 * Structure and timing as in GVSoC's model of MCHAN v7; bursts of L3 take a way round, dma_l3.c. */
#include "sim.h"

enum { EVENT_DMA = 1 << 8, EVENT_DMA_IRQ = 1 << 9, EVENT_DMA_EXTERNAL = 1 << 22 };

static void queue_push(DmaQueue *queue, DmaCommand *command)
{
    command->next = NULL;
    if (queue->first)
        queue->last->next = command;
    else
        queue->first = command;
    queue->last = command;
    queue->count++;
}

static DmaCommand *queue_pop(DmaQueue *queue)
{
    DmaCommand *command = queue->first;

    if (command) {
        queue->first = command->next;
        queue->count--;
    }
    return command;
}

static DmaCommand *queue_pop_direction(DmaQueue *queue, bool to_l2)
{
    DmaCommand *before = NULL, *command = queue->first;

    while (command && command->to_l2 != to_l2) {
        before = command;
        command = command->next;
    }
    if (!command)
        return NULL;
    if (before)
        before->next = command->next;
    else
        queue->first = command->next;
    if (queue->last == command)
        queue->last = before;
    queue->count--;
    return command;
}

static void schedule_transfer(Sim *sim)
{
    const Dma *dma = &sim->dma;
    uint64_t soonest = dma->port_free[0];

    for (int i = 1; i < sim->config.dma_ports; i++)
        if (dma->port_free[i] < soonest)
            soonest = dma->port_free[i];
    schedule(sim, &sim->dma.transfer, soonest > sim->now ? soonest - sim->now : 1);
}

void dma_schedule(Sim *sim)
{
    Dma *dma = &sim->dma;
    const SimConfig *config = &sim->config;

    if ((dma->waiting_reads && dma->reads.count < config->dma_global_queue) ||
        (dma->waiting_writes && dma->writes.count < config->dma_global_queue))
        schedule(sim, &dma->move, 1);
    if (dma->current_read ? dma->reads_in_flight < config->dma_reads : dma->reads.count > 0)
        schedule(sim, &dma->issue_read, 1);
    if (dma->current_write
            ? dma->writes_in_flight < config->dma_writes && !dma->collecting
            : dma->writes.count > 0)
        schedule(sim, &dma->issue_write, 1);
    if ((dma->arrived_first || dma->collecting) && !dma->transfer.queued)
        schedule_transfer(sim);
}

/* ---- from the queue of a core to the global queue of a direction */

void dma_enqueue(Sim *sim, DmaCommand *command)
{
    queue_push(&sim->dma.channel[command->channel].queue, command);
    if (command->to_l2)
        sim->dma.waiting_writes++;
    else
        sim->dma.waiting_reads++;
    dma_schedule(sim);
}

static uint32_t dma_channels(const Sim *sim)
{
    int32_t needed = sim->config.cores + 1;
    return (uint32_t)(sim->config.dma_channels > needed ? sim->config.dma_channels : needed);
}

/* The channels take turns; the turn goes on by one, whichever channel had a command. */
static void move_one(Sim *sim, bool to_l2)
{
    Dma *dma = &sim->dma;
    uint32_t channels = dma_channels(sim);

    for (uint32_t i = 0; i < channels; i++) {
        uint32_t number = (dma->next_channel + i) % channels;
        DmaCommand *command = queue_pop_direction(&dma->channel[number].queue, to_l2);
        if (!command)
            continue;
        if (to_l2)
            dma->waiting_writes--;
        else
            dma->waiting_reads--;
        dma_unblock(sim, number);
        queue_push(to_l2 ? &dma->writes : &dma->reads, command);
        dma->next_channel = (dma->next_channel + 1) % channels;
        return;
    }
}

static void move(Sim *sim, int32_t unused)
{
    Dma *dma = &sim->dma;

    (void)unused;
    if (dma->waiting_reads && dma->reads.count < sim->config.dma_global_queue)
        move_one(sim, false);
    else if (dma->waiting_writes && dma->writes.count < sim->config.dma_global_queue)
        move_one(sim, true);
    dma_schedule(sim);
}

/* ---- the end of a transfer */

static void signal_channel(Sim *sim, const DmaCommand *command, uint32_t channel)
{
    if (channel >= (uint32_t)sim->config.cores) {
        event_unit_raise(sim, EVENT_DMA_EXTERNAL, ~0u);
        return;
    }
    if (command->raise_irq)
        event_unit_raise(sim, EVENT_DMA_IRQ, 1u << channel);
    if (command->raise_event)
        event_unit_raise(sim, EVENT_DMA, 1u << channel);
}

static void account_bytes(Sim *sim, DmaCommand *command, uint32_t bytes)
{
    Dma *dma = &sim->dma;

    dma->bytes[command->to_l2] += bytes;
    if (in_l3(sim, command->word[2]))
        dma->l3_bytes[command->to_l2] += bytes;
    dma->pending_bytes[command->counter] -= bytes;
    if (dma->pending_bytes[command->counter] == 0) {
        if (command->broadcast) {
            for (int32_t i = 0; i <= sim->config.cores; i++)
                signal_channel(sim, command, (uint32_t)i);
        } else {
            signal_channel(sim, command, command->channel);
        }
    }
    command->left_to_finish -= bytes;
    if (command->left_to_finish == 0) {
        command->next = dma->free_commands;
        dma->free_commands = command;
        if (++dma->finished == dma->started) {
            dma->busy += sim->now - dma->busy_since;
            dma->busy_until = sim->now;
        }
    }
}

/* ---- bursts */

/* The core has gone on since; the fault is where it gave the command. */
void dma_fault(Sim *sim, const DmaCommand *command, FaultKind kind, uint32_t address,
               uint32_t size)
{
    uint32_t last = (uint32_t)sim->config.cores;

    if (sim->status != STATUS_RUNNING)
        return;
    fault(&sim->cores[command->channel < last ? command->channel : last], kind, address, size);
    sim->fault.pc = command->pc;
}

/* Far side of a burst.  False after a fault. */
static bool burst_far(Sim *sim, DmaBurst *burst, bool is_store)
{
    uint8_t *at = ram(sim, burst->l2, burst->size);

    if (!at) {
        dma_fault(sim, burst->command, FAULT_DMA, burst->l2, burst->size);
        return false;
    }
    if (is_store) {
        __builtin_memcpy(at, burst->data, burst->size);
        code_written(sim, burst->l2, burst->size);
    } else {
        __builtin_memcpy(burst->data, at, burst->size);
    }
    return true;
}

/* Cuts the next piece off a command: never longer than a burst, never across a 2-D line. */
static void cut_burst(const Sim *sim, DmaCommand *command, DmaBurst *burst)
{
    uint32_t size = command->is_2d && command->left_in_line < command->left_to_request
                        ? command->left_in_line : command->left_to_request;

    if (size > (uint32_t)sim->config.dma_burst_bytes)
        size = (uint32_t)sim->config.dma_burst_bytes;
    burst->command = command;
    burst->l1 = command->l1;
    burst->l2 = command->l2;
    burst->size = size;
    burst->done = 0;
    command->l1 += size;
    command->l2 += size;
    command->left_to_request -= size;
    if (command->is_2d) {
        command->left_in_line -= size;
        if (command->left_in_line == 0) {
            command->left_in_line = command->line_bytes;
            command->line_start += command->stride;
            command->l2 = command->line_start;
        }
    }
}

void dma_arrive(Sim *sim, DmaBurst *burst)
{
    Dma *dma = &sim->dma;

    burst->next = NULL;
    if (dma->arrived_first)
        dma->arrived_last->next = burst;
    else
        dma->arrived_first = burst;
    dma->arrived_last = burst;
}

static void issue_read(Sim *sim, int32_t unused)
{
    Dma *dma = &sim->dma;

    (void)unused;
    if (!dma->current_read)
        dma->current_read = queue_pop(&dma->reads);
    if (dma->current_read && dma->reads_in_flight < sim->config.dma_reads) {
        DmaBurst *burst = dma->free_reads;
        dma->free_reads = burst->next;
        dma->reads_in_flight++;
        cut_burst(sim, dma->current_read, burst);
        if (dma->current_read->left_to_request == 0)
            dma->current_read = NULL;
        if (!burst_far(sim, burst, false))
            return;
        if (in_l3(sim, burst->l2))
            l3_send(sim, burst);
        else
            dma_arrive(sim, burst);
    }
    dma_schedule(sim);
}

static void issue_write(Sim *sim, int32_t unused)
{
    Dma *dma = &sim->dma;

    (void)unused;
    if (!dma->current_write)
        dma->current_write = queue_pop(&dma->writes);
    if (dma->current_write && dma->writes_in_flight < sim->config.dma_writes &&
        !dma->collecting) {
        DmaBurst *burst = dma->free_writes;
        dma->free_writes = burst->next;
        dma->writes_in_flight++;
        cut_burst(sim, dma->current_write, burst);
        if (dma->current_write->left_to_request == 0)
            dma->current_write = NULL;
        dma->collecting = burst;
    }
    dma_schedule(sim);
}

/* Moves up to one word between a burst and L1; false after a fault. */
static bool move_word(Sim *sim, DmaBurst *burst, int port, bool into_l1, uint32_t *moved)
{
    uint32_t address = L1_BASE + ((burst->l1 + burst->done) & L1_ADDRESS_MASK);
    uint32_t size = 4 - (address & 3), left = burst->size - burst->done;
    uint8_t *at;

    if (size > left)
        size = left;
    at = ram(sim, address, size);
    if (!at) {
        dma_fault(sim, burst->command, FAULT_DMA, address, size);
        return false;
    }
    sim->dma.port_free[port] = sim->now + bank_wait(sim, address, sim->now) + 1;
    if (into_l1) {
        __builtin_memcpy(at, burst->data + burst->done, size);
        if (sim->code_present[(address - L1_BASE) >> 8])
            code_written(sim, address, size);
    } else {
        __builtin_memcpy(burst->data + burst->done, at, size);
    }
    burst->done += size;
    *moved = size;
    return true;
}

static bool word_into_l1(Sim *sim, int port)
{
    Dma *dma = &sim->dma;
    DmaBurst *burst = dma->arrived_first;
    uint32_t moved;

    if (!burst)
        return true;
    if (!move_word(sim, burst, port, true, &moved))
        return false;
    account_bytes(sim, burst->command, moved);
    if (burst->done == burst->size) {
        dma->arrived_first = burst->next;
        burst->next = dma->free_reads;
        dma->free_reads = burst;
        dma->reads_in_flight--;
    }
    return true;
}

/* A burst that has been read from L1 altogether.  False after a fault. */
bool dma_deliver(Sim *sim, DmaBurst *burst)
{
    Dma *dma = &sim->dma;

    if (!burst_far(sim, burst, true))
        return false;
    burst->next = dma->free_writes;
    dma->free_writes = burst;
    dma->writes_in_flight--;
    account_bytes(sim, burst->command, burst->size);
    return true;
}

static bool word_out_of_l1(Sim *sim, int port)
{
    Dma *dma = &sim->dma;
    DmaBurst *burst = dma->collecting;
    uint32_t moved;

    if (!burst)
        return true;
    if (!move_word(sim, burst, port, false, &moved))
        return false;
    if (burst->done == burst->size) {
        dma->collecting = NULL;
        if (!in_l3(sim, burst->l2))
            return dma_deliver(sim, burst);
        l3_send(sim, burst);
    }
    return true;
}

static void transfer(Sim *sim, int32_t unused)
{
    (void)unused;
    for (int port = 0; port < sim->config.dma_ports; port++) {
        bool inward = port < sim->config.dma_ports / 2;
        if (sim->dma.port_free[port] > sim->now)
            continue;
        if (!(inward ? word_into_l1(sim, port) : word_out_of_l1(sim, port)))
            return;
    }
    dma_schedule(sim);
}

void dma_init(Sim *sim)
{
    Dma *dma = &sim->dma;

    dma->free_counters = (1u << sim->config.dma_counters) - 1;
    dma->move.run = move;
    dma->issue_read.run = issue_read;
    dma->issue_write.run = issue_write;
    dma->transfer.run = transfer;
    l3_init(sim);
    for (int i = 0; i < DMA_COMMANDS; i++) {
        dma->commands[i].next = dma->free_commands;
        dma->free_commands = &dma->commands[i];
    }
    for (int i = 0; i < MAX_BURSTS; i++) {
        dma->read_bursts[i].next = dma->free_reads;
        dma->free_reads = &dma->read_bursts[i];
        dma->write_bursts[i].next = dma->free_writes;
        dma->free_writes = &dma->write_bursts[i];
    }
}
