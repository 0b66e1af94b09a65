/* Instruction caches: a private one per core, behind them a shared one in banks.
 *
 * A fetch is answered at once, with a latency: a miss adds the time of the refill, which starts
 * when the refill before it ends; a hit on a line that is still on its way waits for it. */
#include "sim.h"

#define NO_TAG UINT32_MAX

static void cache_reset(Cache *cache, int32_t sets, int32_t ways)
{
    cache->sets = (uint32_t)sets;
    cache->ways = (uint32_t)ways;
    cache->refill_done = 0;
    cache->lfsr = 0;
    for (uint32_t i = 0; i < cache->sets * cache->ways; i++) {
        cache->tag[i] = NO_TAG;
        cache->line_ready[i] = 0;
        cache->recent[i / cache->ways] = (uint16_t)(i / cache->ways * cache->ways);
    }
}

static void cache_flush(Cache *cache)
{
    for (uint32_t i = 0; i < cache->sets * cache->ways; i++)
        cache->tag[i] = NO_TAG;
}

static int cache_find(const Cache *cache, uint32_t tag)
{
    uint32_t first = (tag & (cache->sets - 1)) * cache->ways;

    for (uint32_t way = 0; way < cache->ways; way++)
        if (cache->tag[first + way] == tag)
            return (int)(first + way);
    return -1;
}

static uint32_t cache_victim(Cache *cache, uint32_t tag)
{
    uint8_t r = cache->lfsr;
    uint8_t feedback = (uint8_t)(1 ^ (r >> 7) ^ (r >> 3) ^ (r >> 2) ^ (r >> 1)) & 1;

    cache->lfsr = (uint8_t)(r << 1 | feedback);
    return (tag & (cache->sets - 1)) * cache->ways + ((cache->lfsr >> 1) & (cache->ways - 1));
}

static uint64_t hit_latency(const Cache *cache, int line, uint64_t now)
{
    return cache->line_ready[line] > now ? cache->line_ready[line] - now : 0;
}

static uint64_t cache_refill(Cache *cache, uint32_t tag, uint64_t now, uint64_t behind)
{
    uint32_t line = cache_victim(cache, tag);
    uint64_t latency = behind + (cache->refill_done > now ? cache->refill_done - now : 0);

    cache->tag[line] = tag;
    cache->refill_done = now + latency;
    cache->line_ready[line] = now + latency;
    return latency;
}

static uint64_t shared_fetch(Sim *sim, uint32_t line_address)
{
    const SimConfig *config = &sim->config;
    uint32_t number = line_address / FETCH_BYTES, banks = (uint32_t)config->icache_shared_banks;
    Cache *bank = &sim->l1_cache[number & (banks - 1)];
    uint32_t tag = number / banks;
    int line = cache_find(bank, tag);

    if (line >= 0)
        return hit_latency(bank, line, sim->now);
    return cache_refill(bank, tag, sim->now,
                        (uint64_t)config->l2_latency + (uint64_t)config->icache_shared_refill);
}

/* Brings a line into the fetch buffer.  Only a miss in the private cache concerns others: it
 * returns false, and nothing has happened, if `may_share` does not allow it. */
bool icache_fetch(Core *core, uint32_t line_address, bool may_share)
{
    Sim *sim = core->sim;
    uint32_t tag = line_address / FETCH_BYTES;
    uint64_t latency;
    int line = cache_find(&core->l0, tag);

    if (LIKELY(sim->icache_on && line >= 0)) {
        core->l0.recent[tag & (core->l0.sets - 1)] = (uint16_t)line;
        latency = hit_latency(&core->l0, line, core->now);
    } else if (!may_share) {
        return false;
    } else if (!sim->icache_on) {
        latency = (uint64_t)sim->config.l2_latency;
    } else {
        latency = shared_fetch(sim, line_address) + (uint64_t)sim->config.icache_private_refill;
        latency = cache_refill(&core->l0, tag, core->now, latency);
    }
    core->line = line_address;
    core->events[EV_IMISS] += latency;
    add_stall(core, STALL_ICACHE, latency);
    return true;
}

void icache_reset(Sim *sim)
{
    const SimConfig *config = &sim->config;

    for (int i = 0; i < MAX_HARTS; i++) {
        sim->cores[i].l0.line_ready = sim->l0_ready[i];
        sim->cores[i].l0.tag = sim->l0_tag[i];
        sim->cores[i].l0.recent = sim->l0_recent[i];
        cache_reset(&sim->cores[i].l0, config->icache_private_sets, config->icache_private_ways);
    }
    for (int i = 0; i < config->icache_shared_banks; i++) {
        sim->l1_cache[i].line_ready = sim->l1_ready[i];
        sim->l1_cache[i].tag = sim->l1_tag[i];
        sim->l1_cache[i].recent = sim->l1_recent[i];
        cache_reset(&sim->l1_cache[i], config->icache_shared_sets, config->icache_shared_ways);
    }
    sim->icache_on = false;
}

void icache_flush(Sim *sim)
{
    for (int i = 0; i < sim->config.cores; i++) {
        cache_flush(&sim->cores[i].l0);
        sim->cores[i].line = 1;
    }
    for (int i = 0; i < sim->config.icache_shared_banks; i++)
        cache_flush(&sim->l1_cache[i]);
}
