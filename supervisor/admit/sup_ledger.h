/* sup_ledger.h - bytes promised to workers, per tier of memory, never more than its limit.
 *
 * Tiers: the host's memory, and that of the one device a server may use. A claim names bytes
 * in each; it is reserved whole or not at all, and released exactly as it was reserved. Pure
 * arithmetic: no clocks, no I/O but sup_memory_limit.
 * Tests: tests/supervisor/test_sup_fleet_policy.c, test_sup_fleet_random.c
 */
#ifndef INFERD_SUP_LEDGER_H
#define INFERD_SUP_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

enum sup_tier { SUP_TIER_HOST, SUP_TIER_DEVICE, SUP_TIERS };
const char *sup_tier_name(enum sup_tier t); /* "host" "device" */

struct sup_bytes {
    uint64_t weights, kv, workspace;
};

struct sup_claim {
    struct sup_bytes tier[SUP_TIERS];
};

struct sup_ledger {
    uint64_t limit[SUP_TIERS]; /* UINT64_MAX = not known yet */
    struct sup_claim used;
};

/* Sum of a claim's parts in a tier; UINT64_MAX when it overflows. */
uint64_t sup_claim_bytes(const struct sup_claim *c, enum sup_tier t);
bool sup_claim_is_zero(const struct sup_claim *c);
uint64_t sup_ledger_used(const struct sup_ledger *l, enum sup_tier t);
/* RC_OK; RC_BUSY: would fit when others are gone; RC_LIMIT: never fits. *tight (may be NULL):
 * the tier that says no. */
enum rc sup_ledger_ask(const struct sup_ledger *l, const struct sup_claim *c, enum sup_tier *tight);
/* As ask, and takes it on RC_OK. */
enum rc sup_ledger_reserve(struct sup_ledger *l, const struct sup_claim *c);
/* Gives back *c and zeroes it: a second release releases nothing. False (and the
 * ledger is clamped at zero) when more comes back than was taken: our defect. */
bool sup_ledger_release(struct sup_ledger *l, struct sup_claim *c);
/* Replaces *held by now. Errors as ask, then nothing has changed. */
enum rc sup_ledger_change(struct sup_ledger *l, struct sup_claim *held, const struct sup_claim *now,
                          enum sup_tier *tight);
/* A limit that becomes known while claims stand: never below what is used. */
void sup_ledger_limit(struct sup_ledger *l, enum sup_tier t, uint64_t bytes);

/* 80 % of the smaller of the machine's memory and the cgroup's limits. Reads
 * /proc and /sys: before the sandbox. */
uint64_t sup_memory_limit(void);

#endif
