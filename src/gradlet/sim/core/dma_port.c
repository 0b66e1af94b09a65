/* The side of the DMA that the cores see: transfer counters and the command queues. */
#include "sim.h"

enum {
    COMMAND_LENGTH = 0x1FFFF, COMMAND_TO_L1 = 1 << 17, COMMAND_2D = 1 << 19,
    COMMAND_EVENT = 1 << 20, COMMAND_IRQ = 1 << 21, COMMAND_BROADCAST = 1 << 22
};

static uint32_t take_counter(Dma *dma, uint32_t channel)
{
    uint32_t counter = (uint32_t)__builtin_ctz(dma->free_counters);

    dma->free_counters &= dma->free_counters - 1;
    dma->channel[dma->counter_channel[counter]].own &= ~(1u << counter);
    dma->channel[channel].own |= 1u << counter;
    dma->channel[channel].counter = counter;
    dma->counter_channel[counter] = channel;
    return counter;
}

static void free_counters(Sim *sim, uint32_t mask)
{
    Dma *dma = &sim->dma;

    watch_transfers_seen(sim, mask);
    dma->free_counters |= mask & ((1u << sim->config.dma_counters) - 1);
    if (dma->counter_waiter_count && dma->free_counters) {
        int32_t first = dma->counter_waiters[0];
        dma->counter_waiter_count--;
        for (int32_t i = 0; i < dma->counter_waiter_count; i++)
            dma->counter_waiters[i] = dma->counter_waiters[i + 1];
        resume_core(&sim->cores[first], take_counter(dma, (uint32_t)first));
    }
}

static uint32_t counter_status(const Sim *sim)
{
    const Dma *dma = &sim->dma;
    uint32_t all = (1u << sim->config.dma_counters) - 1, status = (~dma->free_counters & all) << 16;

    for (int i = 0; i < sim->config.dma_counters; i++)
        status |= (uint32_t)(dma->pending_bytes[i] != 0) << i;
    return status;
}

/* The time in which a core waits ends when nothing is under way, even if it looks later. */
static void end_of_waiting(Sim *sim)
{
    Dma *dma = &sim->dma;
    uint64_t end = dma->started == dma->finished ? dma->busy_until : sim->now;

    if (end > dma->waited_since)
        dma->waited += end - dma->waited_since;
}

/* A core waits from the first look that finds transfers of its own under way to the first that
 * does not; the time of several cores counts once. */
static uint32_t look_at_status(Sim *sim, uint32_t number)
{
    Dma *dma = &sim->dma;
    uint32_t status = counter_status(sim);
    bool under_way = (status & dma->channel[number].own) != 0;

    if (under_way && !dma->channel[number].polling && dma->polling++ == 0)
        dma->waited_since = sim->now;
    else if (!under_way && dma->channel[number].polling && --dma->polling == 0)
        end_of_waiting(sim);
    dma->channel[number].polling = under_way;
    watch_transfers_seen(sim, ~status);
    return status;
}

static void unpack(DmaCommand *command, const DmaChannel *channel)
{
    uint32_t word = command->word[0];

    command->to_l2 = !(word & COMMAND_TO_L1);
    command->is_2d = word & COMMAND_2D;
    command->raise_event = word & COMMAND_EVENT;
    command->raise_irq = word & COMMAND_IRQ;
    command->broadcast = word & COMMAND_BROADCAST;
    command->counter = channel->counter;
    command->left_to_request = command->left_to_finish = word & COMMAND_LENGTH;
}

/* The command is complete. */
static void begin_transfer(Sim *sim, DmaCommand *command)
{
    Dma *dma = &sim->dma;

    command->pc = sim->cores[command->channel].current_pc;
    if (command->is_2d && command->left_to_finish && !command->line_bytes) {
        dma_fault(sim, command, FAULT_DMA, command->l2, 0);
        return;
    }
    if (sim->watch && !watch_transfer(sim, command))
        return;
    if (dma->started++ == dma->finished)
        dma->busy_since = sim->now;
    dma->pending_bytes[command->counter] += command->left_to_finish;
    dma_enqueue(sim, command);
}

/* One more word of the command; the last one puts it into the queue of the core. */
static void accept_word(Sim *sim, uint32_t number, uint32_t value)
{
    Dma *dma = &sim->dma;
    DmaChannel *channel = &dma->channel[number];
    DmaCommand *command = channel->current;

    if (!command) {
        command = dma->free_commands;
        dma->free_commands = command->next;
        channel->current = command;
        command->channel = number;
        command->words = 0;
    }
    command->word[command->words++] = value;
    if (command->words == 1)
        unpack(command, channel);
    if (command->words < (command->is_2d ? 5u : 3u))
        return;
    command->l1 = command->word[1];
    command->l2 = command->line_start = command->word[2];
    command->line_bytes = command->left_in_line = command->word[3];
    command->stride = command->word[4];
    channel->current = NULL;
    begin_transfer(sim, command);
}

static void push_word(Core *core, const Insn *insn, uint32_t number, uint32_t value)
{
    DmaChannel *channel = &core->sim->dma.channel[number];

    if (channel->queue.count == core->sim->config.dma_core_queue) {
        channel->blocked = true;
        channel->blocked_word = value;
        wait_core(core, WAIT_DMA_QUEUE, insn);
        return;
    }
    accept_word(core->sim, number, value);
}

/* A command has left the queue of the core: a word that waited can go in. */
void dma_unblock(Sim *sim, uint32_t number)
{
    DmaChannel *channel = &sim->dma.channel[number];

    if (!channel->blocked)
        return;
    channel->blocked = false;
    accept_word(sim, number, channel->blocked_word);
    resume_core(&sim->cores[number], 0);
}

static void allocate(Core *core, const Insn *insn, uint32_t number, uint32_t *value)
{
    Dma *dma = &core->sim->dma;

    if (dma->free_counters) {
        *value = take_counter(dma, number);
    } else {
        dma->counter_waiters[dma->counter_waiter_count++] = core->id;
        wait_core(core, WAIT_DMA_COUNTER, insn);
    }
}

bool dma_access(Core *core, const Insn *insn, uint32_t channel, uint32_t offset, uint32_t *value,
                bool is_store)
{
    if (offset == 0 && is_store) {
        push_word(core, insn, channel, *value);
        return true;
    }
    if (offset == 0) {
        allocate(core, insn, channel, value);
        return true;
    }
    if (offset == 4 && is_store) {
        free_counters(core->sim, *value);
        return true;
    }
    if (offset == 4)
        *value = look_at_status(core->sim, channel);
    return offset == 4;
}

/* out: cycles with a transfer under way, those of them in which a core waited, commands, bytes into
 * L1 and out of it, and what of these bytes came from L3 and went there. */
void sim_dma_counters(const Sim *sim, uint64_t *out)
{
    const Dma *dma = &sim->dma;

    out[0] = dma->busy + (dma->started != dma->finished ? sim->now - dma->busy_since : 0);
    out[1] = dma->waited;
    out[2] = dma->started;
    out[3] = dma->bytes[0];
    out[4] = dma->bytes[1];
    out[5] = dma->l3_bytes[0];
    out[6] = dma->l3_bytes[1];
}
