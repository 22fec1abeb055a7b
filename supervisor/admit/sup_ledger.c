/* sup_ledger.c - the sums behind admission of workers.
 *
 * Always true: used.weights + used.kv + used.workspace <= limit.
 * Tests: tests/supervisor/test_sup_fleet_policy.c */
#include "sup_ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sup_claim_bytes(const struct sup_claim *c)
{
    uint64_t sum;

    if (__builtin_add_overflow(c->weights, c->kv, &sum) ||
        __builtin_add_overflow(sum, c->workspace, &sum))
        return UINT64_MAX;
    return sum;
}

uint64_t sup_ledger_used(const struct sup_ledger *l)
{
    return sup_claim_bytes(&l->used);
}

enum rc sup_ledger_ask(const struct sup_ledger *l, const struct sup_claim *c)
{
    uint64_t want = sup_claim_bytes(c);

    if (want > l->limit)
        return RC_LIMIT;
    return want > l->limit - sup_ledger_used(l) ? RC_BUSY : RC_OK;
}

enum rc sup_ledger_reserve(struct sup_ledger *l, const struct sup_claim *c)
{
    enum rc rc = sup_ledger_ask(l, c);

    if (rc == RC_OK) {
        l->used.weights += c->weights;
        l->used.kv += c->kv;
        l->used.workspace += c->workspace;
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
    bool ok = take(&l->used.weights, c->weights);

    ok &= take(&l->used.kv, c->kv);
    ok &= take(&l->used.workspace, c->workspace);
    *c = (struct sup_claim){0};
    return ok;
}

enum rc sup_ledger_change(struct sup_ledger *l, struct sup_claim *held, const struct sup_claim *now)
{
    struct sup_ledger without = *l;
    struct sup_claim copy = *held;
    enum rc rc;

    sup_ledger_release(&without, &copy);
    if ((rc = sup_ledger_reserve(&without, now)) != RC_OK)
        return rc;
    *l = without;
    *held = *now;
    return RC_OK;
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
