/* sup_ledger.c - the sums behind admission of workers.
 *
 * Always true, in each tier: used.weights + used.kv + used.workspace <= limit.
 * Tests: tests/supervisor/test_sup_fleet_policy.c, test_sup_fleet_random.c */
#include "sup_ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sup_tier_name(enum sup_tier t)
{
    static const char *const words[SUP_TIERS] = {"host", "device"};

    return (unsigned)t < SUP_TIERS ? words[t] : "unknown";
}

uint64_t sup_claim_bytes(const struct sup_claim *c, enum sup_tier t)
{
    const struct sup_bytes *b = &c->tier[t];
    uint64_t sum;

    if (__builtin_add_overflow(b->weights, b->kv, &sum) ||
        __builtin_add_overflow(sum, b->workspace, &sum))
        return UINT64_MAX;
    return sum;
}

bool sup_claim_is_zero(const struct sup_claim *c)
{
    for (int t = 0; t < SUP_TIERS; t++)
        if (sup_claim_bytes(c, (enum sup_tier)t) != 0)
            return false;
    return true;
}

uint64_t sup_ledger_used(const struct sup_ledger *l, enum sup_tier t)
{
    return sup_claim_bytes(&l->used, t);
}

enum rc sup_ledger_ask(const struct sup_ledger *l, const struct sup_claim *c, enum sup_tier *tight)
{
    enum rc worst = RC_OK;

    for (int i = 0; i < SUP_TIERS && worst != RC_LIMIT; i++) {
        enum sup_tier t = (enum sup_tier)i;
        uint64_t want = sup_claim_bytes(c, t);
        /* UINT64_MAX is also what a sum that overflows gives: nobody may have that */
        enum rc rc = want > l->limit[t] || want == UINT64_MAX     ? RC_LIMIT
                     : want > l->limit[t] - sup_ledger_used(l, t) ? RC_BUSY
                                                                  : RC_OK;

        if (rc == RC_OK || (rc == RC_BUSY && worst == RC_BUSY))
            continue;
        worst = rc;
        if (tight)
            *tight = t;
    }
    return worst;
}

enum rc sup_ledger_reserve(struct sup_ledger *l, const struct sup_claim *c)
{
    enum rc rc = sup_ledger_ask(l, c, NULL);

    for (int t = 0; t < SUP_TIERS && rc == RC_OK; t++) {
        l->used.tier[t].weights += c->tier[t].weights;
        l->used.tier[t].kv += c->tier[t].kv;
        l->used.tier[t].workspace += c->tier[t].workspace;
    }
    return rc;
}

static bool take(uint64_t *from, uint64_t n)
{
    bool ok = n <= *from;

    *from -= ok ? n : *from;
    return ok;
}

bool sup_ledger_release(struct sup_ledger *l, struct sup_claim *c)
{
    bool ok = true;

    for (int t = 0; t < SUP_TIERS; t++) {
        ok &= take(&l->used.tier[t].weights, c->tier[t].weights);
        ok &= take(&l->used.tier[t].kv, c->tier[t].kv);
        ok &= take(&l->used.tier[t].workspace, c->tier[t].workspace);
    }
    *c = (struct sup_claim){0};
    return ok;
}

enum rc sup_ledger_change(struct sup_ledger *l, struct sup_claim *held, const struct sup_claim *now,
                          enum sup_tier *tight)
{
    struct sup_ledger without = *l;
    struct sup_claim copy = *held;
    enum rc rc;

    sup_ledger_release(&without, &copy);
    if ((rc = sup_ledger_ask(&without, now, tight)) != RC_OK)
        return rc;
    sup_ledger_reserve(&without, now);
    *l = without;
    *held = *now;
    return RC_OK;
}

void sup_ledger_limit(struct sup_ledger *l, enum sup_tier t, uint64_t bytes)
{
    uint64_t used = sup_ledger_used(l, t);

    l->limit[t] = bytes > used ? bytes : used;
}

/* ------------------------------------------------------------------ machine */

static uint64_t read_u64(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long long v = 0;

    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%llu", &v) != 1) /* "max" */
        v = UINT64_MAX;
    fclose(f);
    return v;
}

static uint64_t mem_total(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    char line[128];

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib ? kib * 1024 : 2ull << 30;
}

/* The limits of this process's cgroup v2 and of all above it. */
static uint64_t cgroup_limit(void)
{
    char line[1024], path[1400], *rel = NULL;
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            rel = line + 3;
            break;
        }
    if (f)
        fclose(f);
    while (rel) {
        uint64_t v;
        char *slash;

        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", strcmp(rel, "/") ? rel : "");
        v = read_u64(path);
        least = v < least ? v : least;
        if (!(slash = strrchr(rel, '/')) || rel[0] == '\0')
            break;
        *slash = '\0';
    }
    return least;
}

uint64_t sup_memory_limit(void)
{
    uint64_t total = mem_total(), cg = cgroup_limit();

    return (cg < total ? cg : total) / 10 * 8;
}
