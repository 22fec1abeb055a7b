/* sup_fair.c - counters, a heap of those who wait, a bounded memory of those who do not.
 *
 * Always true: a flow is in the heap exactly while it has waiting items, in the list of
 * live ones while it has any, else in the list of idle ones; n_idle <= SUP_FAIR_IDLE_MAX;
 * `last` never falls. Change with care: order - a tenant that just began goes before one
 * that stands at the same counter, or it would wait behind a whole window of others.
 * Tests: tests/supervisor/test_sup_fair.c
 */
#include "sup_fair.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sup_tenant_name.h"

#define CHAINS 256 /* a power of two */
#define NOWHERE UINT32_MAX

struct sup_fair_flow {
    struct sup_fair_flow *chain;
    struct sup_fair_flow *newer, *older; /* of the live or the idle list */
    struct sup_fair_item *first, *end;   /* waiting */
    double counter, guessed;             /* guessed: of counter, what is not known yet */
    uint64_t since;                      /* stamp of the moment it began to wait */
    uint32_t hash, weight, heap_at;
    size_t n_waiting, n_taken, n_guessed;
    char tenant[SUP_TENANT_MAX + 1];
};

/* ----------------------------------------------------------------------- heap */

static bool before(const struct sup_fair_flow *a, const struct sup_fair_flow *b)
{
    return a->counter < b->counter || (a->counter <= b->counter && a->since > b->since);
}

static void heap_put(struct sup_fair *f, uint32_t i, struct sup_fair_flow *w)
{
    f->heap[i] = w;
    w->heap_at = i;
}

static void heap_up(struct sup_fair *f, struct sup_fair_flow *w)
{
    uint32_t i = w->heap_at;

    for (; i > 0 && before(w, f->heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap_put(f, i, f->heap[(i - 1) / 2]);
    heap_put(f, i, w);
}

static void heap_down(struct sup_fair *f, struct sup_fair_flow *w)
{
    uint32_t i = w->heap_at;

    for (;;) {
        uint32_t k = 2 * i + 1;

        if (k + 1 < f->n_heap && before(f->heap[k + 1], f->heap[k]))
            k++;
        if (k >= f->n_heap || !before(f->heap[k], w))
            break;
        heap_put(f, i, f->heap[k]);
        i = k;
    }
    heap_put(f, i, w);
}

static void heap_moved(struct sup_fair *f, struct sup_fair_flow *w)
{
    if (w->heap_at == NOWHERE)
        return;
    heap_up(f, w);
    heap_down(f, w);
}

static void heap_out(struct sup_fair *f, struct sup_fair_flow *w)
{
    struct sup_fair_flow *last = f->heap[--f->n_heap];
    uint32_t at = w->heap_at;

    w->heap_at = NOWHERE;
    if (last == w)
        return;
    heap_put(f, at, last);
    heap_moved(f, last);
}

/* Room for every flow, so that nothing can fail later. */
static bool heap_room(struct sup_fair *f)
{
    uint32_t cap = f->cap_heap ? f->cap_heap * 2 : 16;
    struct sup_fair_flow **p;

    if (f->n_flows < f->cap_heap)
        return true;
    if (!(p = realloc(f->heap, cap * sizeof(*p))))
        return false;
    f->heap = p;
    f->cap_heap = cap;
    return true;
}

/* ---------------------------------------------------------------------- flows */

static void live_in(struct sup_fair *f, struct sup_fair_flow *w)
{
    w->newer = NULL;
    w->older = f->live;
    if (f->live)
        f->live->newer = w;
    f->live = w;
}

static void live_out(struct sup_fair *f, struct sup_fair_flow *w)
{
    *(w->newer ? &w->newer->older : &f->live) = w->older;
    if (w->older)
        w->older->newer = w->newer;
}

static void idle_in(struct sup_fair *f, struct sup_fair_flow *w)
{
    w->newer = NULL;
    w->older = f->idle_newest;
    *(f->idle_newest ? &f->idle_newest->newer : &f->idle_oldest) = w;
    f->idle_newest = w;
    f->n_idle++;
}

static void idle_out(struct sup_fair *f, struct sup_fair_flow *w)
{
    *(w->newer ? &w->newer->older : &f->idle_newest) = w->older;
    *(w->older ? &w->older->newer : &f->idle_oldest) = w->newer;
    f->n_idle--;
}

/* Forgets an idle one: should it come back, it begins where a stranger would. */
static void forget(struct sup_fair *f, struct sup_fair_flow *w)
{
    struct sup_fair_flow **at = &f->chain[w->hash % CHAINS];

    idle_out(f, w);
    while (*at != w)
        at = &(*at)->chain;
    *at = w->chain;
    f->n_flows--;
    free(w);
}

void sup_fair_deinit(struct sup_fair *f)
{
    assert(!f->live);
    while (f->idle_oldest)
        forget(f, f->idle_oldest);
    free(f->chain);
    free(f->heap);
    memset(f, 0, sizeof(*f));
}

static struct sup_fair_flow *find(const struct sup_fair *f, const char *tenant, uint32_t hash)
{
    struct sup_fair_flow *w = f->chain ? f->chain[hash % CHAINS] : NULL;

    while (w && (w->hash != hash || strcmp(w->tenant, tenant) != 0))
        w = w->chain;
    return w;
}

static struct sup_fair_flow *flow_new(struct sup_fair *f, const char *tenant, uint32_t hash)
{
    struct sup_fair_flow *w;

    if (!heap_room(f) || !(w = calloc(1, sizeof(*w))))
        return NULL;
    if (!sup_tenant_copy(w->tenant, tenant)) {
        free(w);
        return NULL;
    }
    w->hash = hash;
    w->heap_at = NOWHERE;
    w->chain = f->chain[hash % CHAINS];
    f->chain[hash % CHAINS] = w;
    f->n_flows++;
    live_in(f, w);
    return w;
}

static struct sup_fair_flow *flow_of(struct sup_fair *f, const char *tenant)
{
    uint32_t hash = sup_tenant_hash(tenant);
    struct sup_fair_flow *w;

    if (!f->chain && !(f->chain = calloc(CHAINS, sizeof(struct sup_fair_flow *))))
        return NULL;
    if (!(w = find(f, tenant, hash)))
        return flow_new(f, tenant, hash);
    if (w->n_waiting + w->n_taken == 0) {
        idle_out(f, w);
        live_in(f, w);
    }
    return w;
}

/* ---------------------------------------------------------------------- items */

static double share(const struct sup_fair_flow *w, uint64_t cost)
{
    return (double)cost / (double)w->weight;
}

static double known(const struct sup_fair_flow *w)
{
    return w->counter - w->guessed;
}

/* It begins to wait: what it did not ask for meanwhile is not saved up. */
static void begin(struct sup_fair *f, struct sup_fair_flow *w)
{
    double least = f->n_heap > 0 ? known(f->heap[0]) : f->last;

    if (w->counter < least)
        w->counter = least;
    w->since = ++f->stamp;
    w->heap_at = f->n_heap++;
    heap_up(f, w);
}

bool sup_fair_push(struct sup_fair *f, struct sup_fair_item *it, const char *tenant,
                   uint32_t weight, uint64_t cost)
{
    struct sup_fair_flow *w = flow_of(f, tenant);

    if (!w)
        return false;
    w->weight = weight;
    *it = (struct sup_fair_item){
        .prev = w->end, .flow = w, .cost = cost > 0 ? cost : 1, .waiting = true};
    *(w->end ? &w->end->next : &w->first) = it;
    w->end = it;
    f->n_waiting++;
    if (w->n_waiting++ == 0)
        begin(f, w);
    return true;
}

struct sup_fair_item *sup_fair_first(const struct sup_fair *f)
{
    return f->n_heap > 0 ? f->heap[0]->first : NULL;
}

static void line_out(struct sup_fair *f, struct sup_fair_item *it)
{
    struct sup_fair_flow *w = it->flow;

    *(it->prev ? &it->prev->next : &w->first) = it->next;
    *(it->next ? &it->next->prev : &w->end) = it->prev;
    it->prev = it->next = NULL;
    it->waiting = false;
    f->n_waiting--;
    if (--w->n_waiting == 0)
        heap_out(f, w);
}

void sup_fair_take(struct sup_fair *f, struct sup_fair_item *it)
{
    struct sup_fair_flow *w = it->flow;

    if (known(w) > f->last)
        f->last = known(w);
    it->charged = share(w, it->cost);
    w->counter += it->charged;
    w->guessed += it->charged;
    w->n_guessed++;
    w->n_taken++;
    line_out(f, it);
    heap_moved(f, w);
}

/* What it was charged is no guess any more. */
static void known_now(struct sup_fair_flow *w, struct sup_fair_item *it)
{
    if (it->charged <= 0)
        return;
    w->guessed = --w->n_guessed > 0 ? w->guessed - it->charged : 0;
    it->charged = 0;
}

void sup_fair_settle(struct sup_fair *f, struct sup_fair_item *it, uint64_t cost)
{
    struct sup_fair_flow *w = it->flow;

    if (!w || it->waiting || it->charged <= 0)
        return;
    w->counter += share(w, cost) - it->charged;
    known_now(w, it);
    heap_moved(f, w);
}

void sup_fair_leave(struct sup_fair *f, struct sup_fair_item *it)
{
    struct sup_fair_flow *w = it->flow;

    if (!w)
        return;
    if (it->waiting)
        line_out(f, it);
    else {
        known_now(w, it);
        w->n_taken--;
    }
    it->flow = NULL;
    if (w->n_waiting + w->n_taken > 0)
        return;
    live_out(f, w);
    idle_in(f, w);
    if (f->n_idle > SUP_FAIR_IDLE_MAX)
        forget(f, f->idle_oldest);
}

/* ---------------------------------------------------------------------- views */

static void view(const struct sup_fair_flow *w, struct sup_fair_view *out)
{
    *out = (struct sup_fair_view){.tenant = w->tenant,
                                  .weight = w->weight,
                                  .n_waiting = w->n_waiting,
                                  .n_taken = w->n_taken,
                                  .newest = w->end};
}

const struct sup_fair_flow *sup_fair_next(const struct sup_fair *f, const struct sup_fair_flow *at,
                                          struct sup_fair_view *out)
{
    at = at ? at->older : f->live;
    if (at)
        view(at, out);
    return at;
}

bool sup_fair_find(const struct sup_fair *f, const char *tenant, struct sup_fair_view *out)
{
    const struct sup_fair_flow *w = find(f, tenant, sup_tenant_hash(tenant));

    if (!w || w->n_waiting + w->n_taken == 0)
        return false;
    view(w, out);
    return true;
}

void sup_fair_of(const struct sup_fair_item *it, struct sup_fair_view *out)
{
    view(it->flow, out);
}
