/* L3 as the DMA sees it: a bus that takes one burst after the other, of both directions.  Bursts
 * that continue the one before stream on at the rate of the bus; else, and after a pause, the bus is
 * set up anew.  Our own assumption: the device that the rest is modelled after has no such memory. */
#include "sim.h"

static bool continues(const Sim *sim, const DmaBurst *burst)
{
    const L3Bus *bus = &sim->dma.l3;

    return sim->now <= bus->free && burst->l2 == bus->next &&
           burst->command->to_l2 == bus->was_store;
}

void l3_send(Sim *sim, DmaBurst *burst)
{
    L3Bus *bus = &sim->dma.l3;
    uint64_t rate = (uint64_t)sim->config.dma_l3_rate, cycles = (burst->size + rate - 1) / rate;

    if (!continues(sim, burst))
        cycles += (uint64_t)sim->config.dma_l3_setup;
    bus->free = (bus->free > sim->now ? bus->free : sim->now) + (cycles ? cycles : 1);
    bus->next = burst->l2 + burst->size;
    bus->was_store = burst->command->to_l2;
    burst->ready = bus->free;
    burst->next = NULL;
    if (bus->first)
        bus->last->next = burst;
    else
        bus->first = burst;
    bus->last = burst;
    schedule(sim, &bus->done, bus->first->ready - sim->now);
}

static void burst_done(Sim *sim, int32_t unused)
{
    L3Bus *bus = &sim->dma.l3;
    DmaBurst *burst = bus->first;

    (void)unused;
    bus->first = burst->next;
    if (bus->first)
        schedule(sim, &bus->done, bus->first->ready - sim->now);
    if (!burst->command->to_l2)
        dma_arrive(sim, burst);
    else if (!dma_deliver(sim, burst))
        return;
    dma_schedule(sim);
}

void l3_init(Sim *sim)
{
    sim->dma.l3.done.run = burst_done;
}
