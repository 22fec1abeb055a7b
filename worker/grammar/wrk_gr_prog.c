/* wrk_gr_prog.c - from the first automaton to the program that runs.
 *
 * A rule is made deterministic (subset construction; calls of a rule are letters of
 * their own), so that thousands of alternatives share their beginnings; one that would
 * grow too much only loses its empty moves. Always true of the result: no empty moves,
 * a call always reads something. wrk_gr_check.c looks at the whole afterwards.
 * Source: Rabin & Scott 1959. Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_prog.h"

#include <stdlib.h>
#include <string.h>

#define RULE_STATES 20000u  /* a rule may grow to, or to four times what it was */
#define RULE_STEPS 1000000u /* and take so many steps, or 32 for each state it was */

struct dset {                    /* a set of states of the first automaton, of one rule */
    uint32_t first, n, id, slot; /* slot: of the hash */
    bool start;
};

struct maker {
    struct gr_build *b;
    const struct gr_nedge *edge;
    struct gr_index by_from;
    bool *nullable;            /* per rule */
    uint32_t *mark, now;       /* per state: seen by closure `now` */
    struct gr_vec set, member; /* struct dset; the states of all sets */
    uint32_t *hash, hash_mask; /* sets, by content: index + 1 */
    struct gr_vec state, out_edge, out_call;
    struct gr_vec byte, call; /* scratch: struct gr_nedge leaving a set */
    struct gr_vec tmp;        /* scratch: states of a set being made */
};

static bool is_skip(const struct maker *k, const struct gr_nedge *e)
{
    return gr_reads_nothing(e, k->nullable);
}

/* ------------------------------------------------------------------------ sets */

static void add_state(struct maker *k, uint32_t s)
{
    uint32_t *p;

    if (k->mark[s] == k->now)
        return;
    k->mark[s] = k->now;
    if ((p = gr_push(k->b, &k->tmp, sizeof(*p), GR_STATES_MAX, "states")) != NULL)
        *p = s;
}

static void begin_set(struct maker *k)
{
    k->tmp.n = 0;
    k->now++;
}

/* Everything reachable without reading. */
static void close_set(struct maker *k)
{
    for (uint32_t i = 0; i < k->tmp.n && gr_step(k->b, 1); i++) {
        uint32_t s = ((uint32_t *)k->tmp.p)[i];

        for (uint32_t j = k->by_from.at[s]; j < k->by_from.at[s + 1]; j++)
            if (is_skip(k, &k->edge[k->by_from.item[j]]))
                add_state(k, k->edge[k->by_from.item[j]].to);
    }
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Only what leads somewhere counts: two sets that differ in passages are one. */
static void settle(struct maker *k, uint32_t accept)
{
    uint32_t *p = k->tmp.p, n = 0;

    for (uint32_t i = 0; i < k->tmp.n; i++) {
        bool real = p[i] == accept;

        for (uint32_t j = k->by_from.at[p[i]]; j < k->by_from.at[p[i] + 1] && !real; j++) {
            const struct gr_nedge *e = &k->edge[k->by_from.item[j]];

            real = e->rule != GR_NONE || e->lo <= e->hi;
        }
        if (real)
            p[n++] = p[i];
    }
    k->tmp.n = n;
    qsort(p, n, sizeof(*p), by_number);
}

static uint32_t hash_words(const uint32_t *p, uint32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15ull ^ n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static struct dset *dset(const struct maker *k, uint32_t i)
{
    return (struct dset *)k->set.p + i;
}

static void rehash(struct maker *k)
{
    uint32_t mask = k->hash_mask * 2 + 1, *h = calloc(mask + 1u, sizeof(*h));

    if (h == NULL) {
        gr_fail(k->b, RC_NOMEM, "no memory for %u sets of states", mask);
        return;
    }
    for (uint32_t i = 0; i < k->set.n; i++) {
        struct dset *d = dset(k, i);
        uint32_t at = hash_words((uint32_t *)k->member.p + d->first, d->n) & mask;

        while (h[at] != 0)
            at = (at + 1) & mask;
        h[at] = i + 1;
        d->slot = at;
    }
    free(k->hash);
    k->hash = h;
    k->hash_mask = mask;
}

/* The compiled state of the set in tmp. */
static uint32_t intern(struct maker *k, bool start)
{
    const uint32_t *p = k->tmp.p;
    uint32_t n = k->tmp.n, at;
    struct dset *d;
    struct gr_state *s;

    if (k->b->rc != RC_OK)
        return 0;
    if (k->set.n * 2 > k->hash_mask)
        rehash(k);
    for (at = hash_words(p, n) & k->hash_mask; k->hash[at] != 0; at = (at + 1) & k->hash_mask) {
        d = dset(k, k->hash[at] - 1);
        if (d->n == n && !d->start && !start &&
            memcmp((uint32_t *)k->member.p + d->first, p, n * sizeof(*p)) == 0)
            return d->id;
    }
    s = gr_push(k->b, &k->state, sizeof(*s), GR_STATES_MAX, "states");
    d = gr_push(k->b, &k->set, sizeof(*d), GR_STATES_MAX, "states");
    if (s == NULL || d == NULL)
        return 0;
    *s = (struct gr_state){.need = GR_NONE};
    *d = (struct dset){
        .first = k->member.n, .n = n, .id = k->state.n - 1, .slot = at, .start = start};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *m = gr_push(k->b, &k->member, sizeof(*m), 8u << 20, "members of sets");

        if (m == NULL)
            return 0;
        *m = p[i];
    }
    k->hash[at] = k->set.n;
    gr_step(k->b, n);
    return k->state.n - 1;
}

/* ------------------------------------------------------------- what leaves a set */

static int by_low(const void *a, const void *b)
{
    const struct gr_nedge *x = a, *y = b;

    if (x->lo != y->lo)
        return x->lo < y->lo ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static int by_call(const void *a, const void *b)
{
    const struct gr_nedge *x = a, *y = b;

    if (x->rule != y->rule)
        return x->rule < y->rule ? -1 : 1;
    if (x->min != y->min)
        return x->min < y->min ? -1 : 1;
    if (x->max != y->max)
        return x->max < y->max ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

/* Byte edges and calls of states p[n]; true: one of them is accept. */
static bool gather(struct maker *k, const uint32_t *p, uint32_t n, uint32_t accept)
{
    bool final = false;

    k->byte.n = k->call.n = 0;
    for (uint32_t i = 0; i < n && gr_step(k->b, 1); i++) {
        uint32_t s = p[i];

        final = final || s == accept;
        for (uint32_t j = k->by_from.at[s]; j < k->by_from.at[s + 1]; j++) {
            const struct gr_nedge *e = &k->edge[k->by_from.item[j]];
            struct gr_vec *v = e->rule != GR_NONE ? &k->call : &k->byte;
            struct gr_nedge *out;

            if ((e->rule == GR_NONE && e->lo > e->hi) || !gr_step(k->b, 1) ||
                (out = gr_push(k->b, v, sizeof(*out), GR_EDGES_MAX, "edges")) == NULL)
                continue;
            *out = *e;
            if (e->rule != GR_NONE && (e->min == 0 || k->nullable[e->rule]))
                out->min = 1; /* none at all is an empty move beside it */
        }
    }
    if (k->byte.n > 0)
        qsort(k->byte.p, k->byte.n, sizeof(struct gr_nedge), by_low);
    if (k->call.n > 0)
        qsort(k->call.p, k->call.n, sizeof(struct gr_nedge), by_call);
    return final;
}

static void put_edge(struct maker *k, uint32_t lo, uint32_t hi, uint32_t to, uint32_t first)
{
    struct gr_edge *e;

    if (k->out_edge.n > first) {
        e = (struct gr_edge *)k->out_edge.p + k->out_edge.n - 1;
        if (e->to == to && e->hi + 1u == lo) {
            e->hi = (uint8_t)hi;
            return;
        }
    }
    if ((e = gr_push(k->b, &k->out_edge, sizeof(*e), GR_EDGES_MAX, "edges")) != NULL)
        *e = (struct gr_edge){to, (uint8_t)lo, (uint8_t)hi};
}

static void put_call(struct maker *k, const struct gr_nedge *e, uint32_t to)
{
    struct gr_call *c = gr_push(k->b, &k->out_call, sizeof(*c), GR_EDGES_MAX, "calls");

    if (c != NULL)
        *c = (struct gr_call){.rule = e->rule, .to = to, .min = e->min, .max = e->max};
}

/* The gathered byte edges, cut where any begins or ends: one edge for each piece. */
static void cut_bytes(struct maker *k, uint32_t accept)
{
    const struct gr_nedge *e = k->byte.p;
    uint32_t n = k->byte.n, from = 0, next = 0, first = k->out_edge.n;
    struct gr_vec live = {0}; /* edges that reach `from` */

    while ((next < n || live.n > 0) && k->b->rc == RC_OK) {
        uint32_t hi = 255, m = 0, *l;

        if (live.n == 0)
            from = e[next].lo;
        for (; next < n && e[next].lo == from; next++)
            if ((l = gr_push(k->b, &live, sizeof(*l), GR_EDGES_MAX, "edges")) != NULL)
                *l = next;
        if (next < n)
            hi = e[next].lo - 1u;
        l = live.p;
        for (uint32_t i = 0; i < live.n; i++)
            if (e[l[i]].hi < hi)
                hi = e[l[i]].hi;
        begin_set(k);
        for (uint32_t i = 0; i < live.n && gr_step(k->b, 1); i++)
            add_state(k, e[l[i]].to);
        close_set(k);
        settle(k, accept);
        put_edge(k, from, hi, intern(k, false), first);
        for (uint32_t i = 0; i < live.n; i++)
            if (e[l[i]].hi > hi)
                l[m++] = l[i];
        live.n = m;
        from = hi + 1;
    }
    free(live.p);
}

static void merge_calls(struct maker *k, uint32_t accept)
{
    const struct gr_nedge *e = k->call.p;

    for (uint32_t i = 0, j; i < k->call.n && k->b->rc == RC_OK; i = j) {
        begin_set(k);
        for (j = i; j < k->call.n && e[j].rule == e[i].rule && e[j].min == e[i].min &&
                    e[j].max == e[i].max;
             j++)
            add_state(k, e[j].to);
        close_set(k);
        settle(k, accept);
        put_call(k, &e[i], intern(k, false));
    }
}

/* ----------------------------------------------------------------------- a rule */

struct mark { /* where a rule's output began */
    uint32_t state, edge, call;
};

static void sets_forget(struct maker *k)
{
    for (uint32_t i = 0; i < k->set.n; i++) /* not the whole hash: there may be many small rules */
        k->hash[dset(k, i)->slot] = 0;
    k->set.n = k->member.n = 0;
}

static void open_state(struct maker *k, uint32_t id, bool final)
{
    struct gr_state *s = (struct gr_state *)k->state.p + id;

    s->edge0 = k->out_edge.n;
    s->call0 = k->out_call.n;
    s->final = final;
}

static void shut_state(struct maker *k, uint32_t id)
{
    struct gr_state *s = (struct gr_state *)k->state.p + id;

    s->n_edges = k->out_edge.n - s->edge0;
    s->n_calls = k->out_call.n - s->call0;
}

/* false: it would grow too much, or b->rc. */
static bool determinise(struct maker *k, const struct gr_src *r, uint32_t limit, uint64_t steps)
{
    uint32_t base = k->state.n;
    uint64_t last = k->b->steps + steps;

    sets_forget(k);
    begin_set(k);
    add_state(k, r->start);
    close_set(k);
    settle(k, r->accept);
    intern(k, true);
    for (uint32_t i = 0; i < k->set.n && k->b->rc == RC_OK; i++) {
        struct dset d = *dset(k, i);
        bool final = gather(k, (uint32_t *)k->member.p + d.first, d.n, r->accept);

        if (k->state.n - base > limit || k->b->steps > last || k->out_edge.n > GR_EDGES_MAX / 2)
            return false;
        open_state(k, d.id, final && !d.start);
        cut_bytes(k, r->accept);
        merge_calls(k, r->accept);
        if (k->b->rc == RC_OK)
            shut_state(k, d.id);
    }
    return k->b->rc == RC_OK;
}

/* Without empty moves only: state first + i of the rule is compiled state base + i. */
static void flatten(struct maker *k, const struct gr_src *r)
{
    uint32_t base = k->state.n, n = r->accept + 1 - r->first;

    for (uint32_t i = 0; i < n; i++) {
        struct gr_state *s = gr_push(k->b, &k->state, sizeof(*s), GR_STATES_MAX, "states");

        if (s != NULL)
            *s = (struct gr_state){.need = GR_NONE};
    }
    for (uint32_t i = 0; i < n && k->b->rc == RC_OK; i++) {
        const struct gr_nedge *e;
        bool final;

        begin_set(k);
        add_state(k, r->first + i);
        close_set(k);
        final = gather(k, k->tmp.p, k->tmp.n, r->accept);
        if (k->byte.n > GR_FAN || k->call.n > GR_FAN)
            gr_fail(k->b, RC_TOO_LARGE, "a place of it goes on in more than %u ways", GR_FAN);
        open_state(k, base + i, final && r->first + i != r->start);
        e = k->byte.p;
        for (uint32_t j = 0; j < k->byte.n; j++)
            put_edge(k, e[j].lo, e[j].hi, base + e[j].to - r->first, GR_NONE);
        e = k->call.p;
        for (uint32_t j = 0; j < k->call.n; j++)
            put_call(k, &e[j], base + e[j].to - r->first);
        shut_state(k, base + i);
    }
}

static uint32_t make_rule(struct maker *k, const struct gr_src *r)
{
    struct mark at = {k->state.n, k->out_edge.n, k->out_call.n};
    uint32_t limit = 4 * (r->accept + 1 - r->first), steps = 8 * limit;

    if (determinise(k, r, limit > RULE_STATES ? limit : RULE_STATES,
                    steps > RULE_STEPS ? steps : RULE_STEPS))
        return at.state; /* its start was the first */
    k->state.n = at.state;
    k->out_edge.n = at.edge;
    k->out_call.n = at.call;
    if (k->b->rc == RC_OK)
        flatten(k, r);
    return at.state + r->start - r->first;
}

/* Some room at once: sets may be empty, and their address is taken. */
static bool vec_room(struct gr_vec *v, size_t elem)
{
    v->cap = 64;
    return (v->p = malloc(v->cap * elem)) != NULL;
}

static bool maker_init(struct maker *k, struct gr_build *b)
{
    memset(k, 0, sizeof(*k));
    k->b = b;
    k->edge = b->nedge.p;
    k->hash_mask = 1023;
    k->nullable = calloc(b->rule.n + 1, 1);
    k->mark = calloc(b->n_states + 1, sizeof(*k->mark));
    k->hash = calloc(k->hash_mask + 1, sizeof(*k->hash));
    return k->nullable != NULL && k->mark != NULL && k->hash != NULL &&
           vec_room(&k->member, sizeof(uint32_t)) && vec_room(&k->tmp, sizeof(uint32_t));
}

/* Edges by the state they leave. */
static void index_edges(struct maker *k)
{
    uint32_t n = k->b->nedge.n, *key = calloc(n + 1, sizeof(*key));

    for (uint32_t i = 0; key != NULL && i < n; i++)
        key[i] = k->edge[i].from;
    if (key == NULL || !gr_index(&k->by_from, k->b->n_states, key, n))
        gr_fail(k->b, RC_NOMEM, "no memory for %u edges", n);
    free(key);
}

static void maker_deinit(struct maker *k)
{
    gr_index_deinit(&k->by_from);
    free(k->nullable);
    free(k->mark);
    free(k->hash);
    free(k->set.p);
    free(k->member.p);
    free(k->byte.p);
    free(k->call.p);
    free(k->tmp.p);
    free(k->state.p);
    free(k->out_edge.p);
    free(k->out_call.p);
}

static void *keep(struct gr_vec *v, size_t elem, uint32_t *n)
{
    void *p = realloc(v->p, (v->n + 1) * elem), *out = p != NULL ? p : v->p;

    *n = v->n;
    v->p = NULL;
    return out;
}

void gr_prog_make(struct gr_build *b, struct wrk_gr_prog *p)
{
    struct maker k;

    if (!maker_init(&k, b) || (p->rule = calloc(b->rule.n + 1, sizeof(*p->rule))) == NULL)
        gr_fail(b, RC_NOMEM, "no memory for %u states", b->n_states);
    if (b->rc == RC_OK)
        index_edges(&k);
    if (b->rc == RC_OK)
        gr_find_nullable(b, k.nullable);
    for (uint32_t r = 0; r < b->rule.n && b->rc == RC_OK; r++) {
        p->rule[r].start = make_rule(&k, gr_rule(b, r));
        p->rule[r].nullable = k.nullable[r];
    }
    if (b->rc == RC_OK) {
        p->n_rules = b->rule.n;
        p->state = keep(&k.state, sizeof(*p->state), &p->n_states);
        p->edge = keep(&k.out_edge, sizeof(*p->edge), &p->n_edges);
        p->call = keep(&k.out_call, sizeof(*p->call), &p->n_calls);
        gr_check(b, p);
    }
    maker_deinit(&k);
}
