/* sup_ledger.h - bytes promised to workers, never more than the limit.
 *
 * A claim is reserved whole or not at all, and released exactly as it was
 * reserved. Pure arithmetic: no clocks, no I/O but sup_memory_limit.
 * Tests: tests/supervisor/test_sup_fleet_policy.c
 */
#ifndef INFERD_SUP_LEDGER_H
#define INFERD_SUP_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

struct sup_claim {
    uint64_t weights, kv, workspace; /* bytes */
};

struct sup_ledger {
    uint64_t limit;
    struct sup_claim used;
};

/* Sum of a claim's parts; UINT64_MAX when it overflows. */
uint64_t sup_claim_bytes(const struct sup_claim *c);
uint64_t sup_ledger_used(const struct sup_ledger *l);
/* RC_OK; RC_BUSY: would fit when others are gone; RC_LIMIT: never fits. */
enum rc sup_ledger_ask(const struct sup_ledger *l, const struct sup_claim *c);
/* As ask, and takes it on RC_OK. */
enum rc sup_ledger_reserve(struct sup_ledger *l, const struct sup_claim *c);
/* Gives back *c and zeroes it: a second release releases nothing. False (and the
 * ledger is clamped at zero) when more comes back than was taken: our defect. */
bool sup_ledger_release(struct sup_ledger *l, struct sup_claim *c);
/* Replaces *held by now. Errors as ask, then nothing has changed. */
enum rc sup_ledger_change(struct sup_ledger *l, struct sup_claim *held,
                          const struct sup_claim *now);

/* 80 % of the smaller of the machine's memory and the cgroup's limits. Reads
 * /proc and /sys: before the sandbox. */
uint64_t sup_memory_limit(void);

#endif
