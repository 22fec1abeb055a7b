/* sup_fair.h - whose turn is it: a weighted fair queue between tenants.
 *
 * Each tenant has a counter of what it was given, in tokens over its weight; the one
 * with the smallest counter is next, and inside a tenant who came first. A tenant that
 * was idle begins at the smallest counter of those who wait (or, when nobody does, where
 * the last one stood), so that being away saves nothing up. The guess of a cost is put
 * right when the truth is known; until then it counts for the turn, and not for where a
 * newcomer begins, or guesses that were too high would put it behind (Sheng et al. 2024, "Fairness
 * in Serving Large Language Models", 4: virtual token counters).
 *
 * Items are the caller's memory. Pure: no clock, no I/O. One queue belongs to one model.
 * Tests: tests/supervisor/test_sup_fair.c
 */
#ifndef INFERD_SUP_FAIR_H
#define INFERD_SUP_FAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_FAIR_IDLE_MAX 256 /* tenants without an item whose counter is remembered */

struct sup_fair_flow;

/* Zeroed before the first push. */
struct sup_fair_item {
    struct sup_fair_item *prev, *next; /* of its tenant's waiting ones */
    struct sup_fair_flow *flow;        /* NULL: in no queue */
    uint64_t cost;
    double charged; /* of its tenant's counter, as a guess; 0 once settled */
    bool waiting;
};

struct sup_fair {
    struct sup_fair_flow **chain; /* by name; NULL before the first push */
    struct sup_fair_flow **heap;  /* those with waiting items, smallest counter first */
    uint32_t n_heap, cap_heap, n_flows, n_idle;
    struct sup_fair_flow *live; /* list: has items, waiting or taken */
    struct sup_fair_flow *idle_newest, *idle_oldest;
    double last;    /* where the last one stood that was taken, without guesses */
    uint64_t stamp; /* of times a tenant began to wait */
    size_t n_waiting;
};

void sup_fair_deinit(struct sup_fair *f); /* no item may be in it */
/* At the end of its tenant's line. weight >= 1; tenant at most SUP_TENANT_MAX bytes.
 * False: no memory. */
bool sup_fair_push(struct sup_fair *f, struct sup_fair_item *it, const char *tenant,
                   uint32_t weight, uint64_t cost);
/* Who is next; NULL: nobody waits. */
struct sup_fair_item *sup_fair_first(const struct sup_fair *f);
/* Takes one out of the line (usually the first) and charges its tenant. */
void sup_fair_take(struct sup_fair *f, struct sup_fair_item *it);
/* It cost so much in truth. Once, after _take. */
void sup_fair_settle(struct sup_fair *f, struct sup_fair_item *it, uint64_t cost);
/* It is over, whether it was taken or not. Accepts one that is in no queue. */
void sup_fair_leave(struct sup_fair *f, struct sup_fair_item *it);

struct sup_fair_view {
    const char *tenant;
    uint32_t weight;
    size_t n_waiting, n_taken;
    struct sup_fair_item *newest; /* of the waiting ones, or NULL */
};
/* Each tenant that has an item, in no order; NULL ends. `at` is NULL at first. */
const struct sup_fair_flow *sup_fair_next(const struct sup_fair *f, const struct sup_fair_flow *at,
                                          struct sup_fair_view *out);
/* Of a tenant; false: it has no item. */
bool sup_fair_find(const struct sup_fair *f, const char *tenant, struct sup_fair_view *out);
/* Of one item's tenant. */
void sup_fair_of(const struct sup_fair_item *it, struct sup_fair_view *out);

#endif
