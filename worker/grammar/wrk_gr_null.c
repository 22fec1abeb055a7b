/* wrk_gr_null.c - which rules may read nothing, and edges found by where they are.
 *
 * Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_prog.h"

#include <stdlib.h>
#include <string.h>

bool gr_index(struct gr_index *x, uint32_t n_keys, const uint32_t *key, uint32_t n)
{
    uint32_t *fill;

    x->at = calloc(n_keys + 2, sizeof(*x->at));
    x->item = malloc((n + 1) * sizeof(*x->item));
    fill = malloc((n_keys + 1) * sizeof(*fill));
    if (x->at == NULL || x->item == NULL || fill == NULL) {
        free(fill);
        return false;
    }
    for (uint32_t i = 0; i < n; i++)
        if (key[i] != GR_NONE)
            x->at[key[i] + 1]++;
    for (uint32_t k = 0; k < n_keys; k++)
        x->at[k + 1] += x->at[k];
    memcpy(fill, x->at, n_keys * sizeof(*fill));
    for (uint32_t i = 0; i < n; i++)
        if (key[i] != GR_NONE)
            x->item[fill[key[i]]++] = i;
    free(fill);
    return true;
}

void gr_index_deinit(struct gr_index *x)
{
    free(x->at);
    free(x->item);
    memset(x, 0, sizeof(*x));
}

bool gr_reads_nothing(const struct gr_nedge *e, const bool *nullable)
{
    if (e->rule == GR_NONE)
        return e->lo > e->hi;
    return e->min == 0 || nullable[e->rule];
}

struct backwards {
    struct gr_build *b;
    const struct gr_nedge *edge;
    bool *nullable;
    struct gr_index by_to, by_rule;
    uint32_t *todo, n_todo, *rule_of;
    bool *ends;
};

static void may_end(struct backwards *w, uint32_t s)
{
    if (w->ends[s])
        return;
    w->ends[s] = true;
    w->todo[w->n_todo++] = s;
}

/* Backwards from every rule's end over what reads nothing. */
static void spread(struct backwards *w)
{
    struct gr_build *b = w->b;

    for (uint32_t r = 0; r < b->rule.n; r++) {
        w->rule_of[gr_rule(b, r)->start] = r;
        may_end(w, gr_rule(b, r)->accept);
    }
    while (w->n_todo > 0) {
        uint32_t s = w->todo[--w->n_todo], r = w->rule_of[s];

        for (uint32_t i = w->by_to.at[s]; i < w->by_to.at[s + 1]; i++)
            if (gr_reads_nothing(&w->edge[w->by_to.item[i]], w->nullable))
                may_end(w, w->edge[w->by_to.item[i]].from);
        if (r == GR_NONE)
            continue;
        w->nullable[r] = true;
        for (uint32_t i = w->by_rule.at[r]; i < w->by_rule.at[r + 1]; i++)
            if (w->ends[w->edge[w->by_rule.item[i]].to])
                may_end(w, w->edge[w->by_rule.item[i]].from);
    }
}

static bool backwards_init(struct backwards *w, uint32_t *key)
{
    uint32_t n = w->b->nedge.n, n_states = w->b->n_states;

    w->todo = malloc((n_states + 1) * sizeof(uint32_t));
    w->rule_of = malloc((n_states + 1) * sizeof(uint32_t));
    w->ends = calloc(n_states + 1, 1);
    if (key == NULL || w->todo == NULL || w->rule_of == NULL || w->ends == NULL)
        return false;
    memset(w->rule_of, 0xff, (n_states + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++)
        key[i] = w->edge[i].to;
    if (!gr_index(&w->by_to, n_states, key, n))
        return false;
    for (uint32_t i = 0; i < n; i++)
        key[i] = w->edge[i].rule;
    return gr_index(&w->by_rule, w->b->rule.n, key, n);
}

void gr_find_nullable(struct gr_build *b, bool *nullable)
{
    struct backwards w = {.b = b, .edge = b->nedge.p, .nullable = nullable};
    uint32_t *key = calloc(b->nedge.n + 1, sizeof(*key));

    if (backwards_init(&w, key))
        spread(&w);
    else
        gr_fail(b, RC_NOMEM, "no memory for %u edges", b->nedge.n);
    gr_index_deinit(&w.by_to);
    gr_index_deinit(&w.by_rule);
    free(w.todo);
    free(w.rule_of);
    free(w.ends);
    free(key);
}
