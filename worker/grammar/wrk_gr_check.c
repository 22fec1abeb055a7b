/* wrk_gr_check.c - a program looked at as a whole.
 *
 * need: the frames it takes to end a rule from a state; a run goes only where that many
 * are left, so no answer is ever caught in a place that nesting limits make endless.
 * Source: Knuth 1977, "A generalization of Dijkstra's algorithm" (need is a minimum over
 * ways of a maximum over calls). Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_prog.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------- need of frames, least bytes */

/* What is looked for: the frames, or the bytes, that it takes to end a rule. */
enum what { FRAMES, BYTES };

struct later {
    uint32_t state, next;
};
struct search {
    struct wrk_gr_prog *p;
    struct gr_build *b;
    enum what what;
    struct gr_index in, into, sites; /* edges and calls by where they lead; calls by rule */
    uint32_t *edge_from, *call_from, *rule_of; /* per state: the rule it starts */
    uint32_t *value;                           /* per state, GR_NONE: not reached */
    uint32_t head[GR_LEAST_MAX + 1], most;
    struct gr_vec later;
};

static void put(struct search *w, uint64_t value, uint32_t state)
{
    struct later *l;

    if (value > w->most || w->value[state] != GR_NONE ||
        (l = gr_push(w->b, &w->later, sizeof(*l), 8 * GR_EDGES_MAX, "moves")) == NULL)
        return;
    *l = (struct later){state, w->head[value]};
    w->head[value] = w->later.n - 1;
}

/* Before a call of a rule that takes of_rule and goes on at a place that takes behind. */
static uint64_t through(const struct search *w, const struct gr_call *c, uint64_t of_rule,
                        uint64_t behind)
{
    if (w->what == BYTES)
        return of_rule * c->min + behind;
    of_rule += !c->tail;
    return of_rule > behind ? of_rule : behind;
}

static void reached(struct search *w, uint32_t s, uint32_t v)
{
    struct wrk_gr_prog *p = w->p;
    uint32_t r = w->rule_of[s];

    w->value[s] = v;
    for (uint32_t i = w->in.at[s]; i < w->in.at[s + 1]; i++)
        put(w, v + (w->what == BYTES), w->edge_from[w->in.item[i]]);
    for (uint32_t i = w->into.at[s]; i < w->into.at[s + 1]; i++) {
        const struct gr_call *c = &p->call[w->into.item[i]];
        uint32_t of_rule = w->value[p->rule[c->rule].start];

        if (of_rule != GR_NONE)
            put(w, through(w, c, of_rule, v), w->call_from[w->into.item[i]]);
    }
    for (uint32_t i = r != GR_NONE ? w->sites.at[r] : 0; r != GR_NONE && i < w->sites.at[r + 1];
         i++) {
        const struct gr_call *c = &p->call[w->sites.item[i]];

        if (w->value[c->to] != GR_NONE)
            put(w, through(w, c, v, w->value[c->to]), w->call_from[w->sites.item[i]]);
    }
}

static bool search_init(struct search *w)
{
    struct wrk_gr_prog *p = w->p;
    uint32_t most = p->n_edges > p->n_calls ? p->n_edges : p->n_calls,
             *key = malloc((most + 1) * sizeof(*key));
    bool ok = false;

    w->edge_from = malloc((p->n_edges + 1) * sizeof(uint32_t));
    w->call_from = malloc((p->n_calls + 1) * sizeof(uint32_t));
    w->rule_of = malloc((p->n_states + 1) * sizeof(uint32_t));
    w->value = malloc((p->n_states + 1) * sizeof(uint32_t));
    if (key == NULL || !w->edge_from || !w->call_from || !w->rule_of || !w->value)
        goto out;
    memset(w->rule_of, 0xff, (p->n_states + 1) * sizeof(uint32_t));
    for (uint32_t r = 0; r < p->n_rules; r++)
        w->rule_of[p->rule[r].start] = r;
    for (uint32_t s = 0; s < p->n_states; s++) {
        for (uint32_t i = 0; i < p->state[s].n_edges; i++)
            w->edge_from[p->state[s].edge0 + i] = s;
        for (uint32_t i = 0; i < p->state[s].n_calls; i++)
            w->call_from[p->state[s].call0 + i] = s;
    }
    for (uint32_t i = 0; i < p->n_edges; i++)
        key[i] = p->edge[i].to;
    ok = gr_index(&w->in, p->n_states, key, p->n_edges);
    for (uint32_t i = 0; i < p->n_calls; i++)
        key[i] = p->call[i].to;
    ok = ok && gr_index(&w->into, p->n_states, key, p->n_calls);
    for (uint32_t i = 0; i < p->n_calls; i++)
        key[i] = p->call[i].rule;
    ok = ok && gr_index(&w->sites, p->n_rules, key, p->n_calls);
out:
    free(key);
    return ok;
}

static void search(struct search *w, enum what what)
{
    struct wrk_gr_prog *p = w->p;

    w->what = what;
    w->most = what == FRAMES ? GR_DEPTH : GR_LEAST_MAX;
    w->later.n = 0;
    memset(w->head, 0xff, sizeof(w->head));
    memset(w->value, 0xff, (p->n_states + 1) * sizeof(uint32_t));
    for (uint32_t s = 0; s < p->n_states && w->b->rc == RC_OK; s++)
        if (p->state[s].final)
            put(w, 0, s);
    for (uint32_t v = 0; v <= w->most && w->b->rc == RC_OK; v++)
        while (w->head[v] != GR_NONE && gr_step(w->b, 1)) {
            struct later l = ((struct later *)w->later.p)[w->head[v]];

            w->head[v] = l.next;
            if (w->value[l.state] == GR_NONE)
                reached(w, l.state, v);
        }
}

static void find_needs(struct gr_build *b, struct wrk_gr_prog *p)
{
    struct search w = {.p = p, .b = b};

    if (!search_init(&w))
        gr_fail(b, RC_NOMEM, "no memory for %u states", p->n_states);
    if (b->rc == RC_OK)
        search(&w, FRAMES);
    for (uint32_t s = 0; s < p->n_states && b->rc == RC_OK; s++)
        p->state[s].need = w.value[s];
    if (b->rc == RC_OK)
        search(&w, BYTES);
    for (uint32_t r = 0; r < p->n_rules && b->rc == RC_OK; r++) {
        uint32_t least = w.value[p->rule[r].start];

        p->rule[r].least = least == GR_NONE ? GR_LEAST_MAX : least;
    }
    gr_index_deinit(&w.in);
    gr_index_deinit(&w.into);
    gr_index_deinit(&w.sites);
    free(w.edge_from);
    free(w.call_from);
    free(w.rule_of);
    free(w.value);
    free(w.later.p);
}

/* -------------------------------------------------------------- left recursion */

/* A rule whose start calls itself, through others or not, reads nothing for ever. */
static void check_left(struct gr_build *b, const struct wrk_gr_prog *p)
{
    struct visit {
        uint32_t rule, next;
    } *path = malloc((p->n_rules + 1) * sizeof(*path));
    uint8_t *colour = calloc(p->n_rules + 1, 1); /* 0 new, 1 on the path, 2 done */

    if (path == NULL || colour == NULL)
        gr_fail(b, RC_NOMEM, "no memory for %u rules", p->n_rules);
    for (uint32_t r = 0; r < p->n_rules && b->rc == RC_OK; r++) {
        uint32_t n = 0;

        if (colour[r] != 0)
            continue;
        colour[r] = 1;
        path[n++] = (struct visit){r, 0};
        while (n > 0 && b->rc == RC_OK) {
            struct visit *v = &path[n - 1];
            const struct gr_state *s = &p->state[p->rule[v->rule].start];
            uint32_t to;

            if (v->next == s->n_calls) {
                colour[v->rule] = 2;
                n--;
                continue;
            }
            to = p->call[s->call0 + v->next++].rule;
            if (colour[to] == 1)
                gr_fail(b, RC_INVALID, "rule '%s' begins with itself: it would never read anything",
                        gr_rule(b, to)->name);
            if (colour[to] == 0) {
                colour[to] = 1;
                path[n++] = (struct visit){to, 0};
            }
        }
    }
    free(path);
    free(colour);
}

/* ----------------------------------------------------------------------- plain */

/* Where all bytes lo..hi lead from s, GR_NONE: not to one state. */
static uint32_t lead(const struct wrk_gr_prog *p, uint32_t s, uint32_t lo, uint32_t hi)
{
    const struct gr_state *st = &p->state[s];
    uint32_t to = GR_NONE;

    for (uint32_t i = 0; i < st->n_edges && lo <= hi; i++) {
        const struct gr_edge *e = &p->edge[st->edge0 + i];

        if (e->lo > lo || e->hi < lo || (to != GR_NONE && e->to != to))
            continue;
        to = e->to;
        lo = e->hi + 1u;
    }
    return lo > hi ? to : GR_NONE;
}

static bool leads(const struct wrk_gr_prog *p, uint32_t s, uint32_t lo, uint32_t hi, uint32_t to)
{
    return s != GR_NONE && lead(p, s, lo, hi) == to;
}

static bool all_to(const struct wrk_gr_prog *p, uint32_t s, uint32_t to)
{
    if (!leads(p, s, 0x23, 0x5b, to) || !leads(p, s, 0x5d, 0x7f, to))
        return false;
    for (uint32_t c = 0xc2; c <= 0xdf; c++)
        if (!leads(p, lead(p, s, c, c), 0x80, 0xbf, to))
            return false;
    for (uint32_t c = 0xe0; c <= 0xef; c++) {
        uint32_t a = lead(p, s, c, c);

        for (uint32_t d = c == 0xe0 ? 0xa0 : 0x80; d <= (c == 0xed ? 0x9f : 0xbf); d++) {
            uint32_t m = a != GR_NONE ? lead(p, a, d, d) : GR_NONE;
            bool lines = c == 0xe2 && d == 0x80; /* U+2028 and U+2029 are not plain */

            if (!leads(p, m, 0x80, lines ? 0xa7 : 0xbf, to) ||
                (lines && !leads(p, m, 0xaa, 0xbf, to)))
                return false;
        }
    }
    for (uint32_t c = 0xf0; c <= 0xf4; c++) {
        uint32_t a = lead(p, s, c, c);

        for (uint32_t d = c == 0xf0 ? 0x90 : 0x80; d <= (c == 0xf4 ? 0x8f : 0xbf); d++) {
            uint32_t m = a != GR_NONE ? lead(p, a, d, d) : GR_NONE;
            uint32_t last = m != GR_NONE ? lead(p, m, 0x80, 0xbf) : GR_NONE;

            if (last == GR_NONE || !leads(p, last, 0x80, 0xbf, to))
                return false;
        }
    }
    return true;
}

static bool plain_byte(uint32_t c)
{
    return c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || (c >= 0xc2 && c <= 0xf4));
}

static bool is_end(const struct wrk_gr_prog *p, uint32_t s)
{
    return p->state[s].final && p->state[s].n_edges == 0 && p->state[s].n_calls == 0;
}

/* The state that every plain character leads to from s, GR_NONE: there is not one, or
 * neither a loop nor an end comes of it. */
static uint32_t plain_target(struct gr_build *b, const struct wrk_gr_prog *p, uint32_t s)
{
    uint32_t to = lead(p, s, 0x20, 0x21);

    /* not worth the look, or too much of it */
    if (to == GR_NONE || (to != s && !is_end(p, to) && lead(p, to, 0x20, 0x21) != to) ||
        !gr_step(b, 64))
        return GR_NONE;

    /* the same need: where a run may stand at s it may stand there */
    return p->state[to].need != GR_NONE && p->state[to].need == p->state[s].need && all_to(p, s, to)
               ? to
               : GR_NONE;
}

static void find_plain(struct gr_build *b, struct wrk_gr_prog *p)
{
    for (uint32_t s = 0; s < p->n_states; s++) {
        struct gr_state *st = &p->state[s];
        uint32_t to = plain_target(b, p, s);

        for (uint32_t i = 0; i < st->n_edges && !st->plain_out; i++)
            for (uint32_t c = p->edge[st->edge0 + i].lo; c <= p->edge[st->edge0 + i].hi; c++)
                st->plain_out = st->plain_out || plain_byte(c);
        if (to == GR_NONE)
            continue;
        if (to == s || plain_target(b, p, to) == to) /* a loop, or the way into one */
            st->plain = GR_PLAIN_LOOP;
        else if (is_end(p, to))
            st->plain = GR_PLAIN_ONE;
    }
}

void gr_check(struct gr_build *b, struct wrk_gr_prog *p)
{
    const struct gr_prule *root = &p->rule[0];

    for (uint32_t i = 0; i < p->n_calls; i++) {
        const struct gr_state *to = &p->state[p->call[i].to];

        p->call[i].tail = to->final && to->n_edges == 0 && to->n_calls == 0 &&
                          p->call[i].min == 1 && p->call[i].max == 1;
    }
    check_left(b, p);
    if (b->rc == RC_OK)
        find_needs(b, p);
    if (b->rc == RC_OK && p->state[root->start].need == GR_NONE && !root->nullable)
        gr_fail(b, RC_INVALID,
                "no text satisfies it: every way contradicts itself, never ends, or nests deeper "
                "than %u rules",
                GR_DEPTH);
    if (b->rc == RC_OK)
        find_plain(b, p);
}
