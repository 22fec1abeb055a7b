/* wrk_gr_tree.c - trees of a grammar: growing tables, nodes and their costs.
 *
 * Everything a reader makes lives in five tables of struct gr_build, bounded each.
 * Change with care: cost decides what is copied and what becomes a rule (wrk_gr_nfa.c).
 * Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gr_fail(struct gr_build *b, enum rc rc, const char *fmt, ...)
{
    char text[400], where[200] = "";
    va_list ap;

    if (b->rc != RC_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (b->locate != NULL)
        b->locate(b->user, where, sizeof(where));
    b->rc = rc_fail_what(b->err, rc, b->field, "field '%s': %s%s%s", b->field, where,
                         where[0] != '\0' ? ": " : "", text);
}

bool gr_step(struct gr_build *b, uint64_t n)
{
    b->steps += n;
    if (b->steps > GR_STEPS_MAX)
        gr_fail(b, RC_TOO_LARGE, "compiling it takes more than %u steps", GR_STEPS_MAX);
    return b->rc == RC_OK;
}

void *gr_push(struct gr_build *b, struct gr_vec *v, size_t elem, uint32_t limit, const char *what)
{
    if (b->rc != RC_OK)
        return NULL;
    if (v->n == limit) {
        gr_fail(b, RC_TOO_LARGE, "it needs more than %u %s", limit, what);
        return NULL;
    }
    if (v->n == v->cap) {
        uint32_t cap = v->cap < 64 ? 64 : v->cap * 2;
        void *p = realloc(v->p, cap * elem);

        if (p == NULL) {
            gr_fail(b, RC_NOMEM, "no memory for %u %s", cap, what);
            return NULL;
        }
        v->p = p;
        v->cap = cap;
    }
    return (char *)v->p + elem * v->n++;
}

void gr_build_deinit(struct gr_build *b)
{
    free(b->node.p);
    free(b->kid.p);
    free(b->range.p);
    free(b->text.p);
    free(b->rule.p);
    free(b->nedge.p);
    memset(b, 0, sizeof(*b));
}

static uint32_t add_up(uint32_t a, uint32_t b)
{
    return a > (1u << 30) || b > (1u << 30) ? 1u << 30 : a + b;
}

static uint32_t node_new(struct gr_build *b, struct gr_node n)
{
    struct gr_node *p = gr_push(b, &b->node, sizeof(*p), GR_NODES_MAX, "tree nodes");

    if (p == NULL)
        return 0;
    *p = n;
    return b->node.n - 1;
}

uint32_t gr_empty(struct gr_build *b)
{
    return node_new(b, (struct gr_node){.op = GR_EMPTY});
}

uint32_t gr_never(struct gr_build *b)
{
    return gr_set(b, NULL, 0, false);
}

uint32_t gr_set(struct gr_build *b, const struct gr_range *r, uint32_t n, bool json)
{
    struct gr_node node = {
        .op = GR_SET, .json = json && !b->raw, .a = b->range.n, .n = n, .cost = 2};

    for (uint32_t i = 0; i < n; i++) {
        struct gr_range *p = gr_push(b, &b->range, sizeof(*p), GR_NODES_MAX, "character ranges");

        if (p == NULL)
            return 0;
        *p = r[i];
        if (b->raw && p->lo == 0 && p->hi > 0)
            p->lo = 1; /* many readers of JSON refuse U+0000 */
        node.cost += r[i].hi < 128 && !json ? 0 : 4;
    }
    return node_new(b, node);
}

uint32_t gr_text(struct gr_build *b, const void *bytes, size_t n)
{
    struct gr_node node = {.op = GR_TEXT, .a = b->text.n, .n = (uint32_t)n, .cost = (uint32_t)n};

    for (size_t i = 0; i < n; i++) {
        uint8_t *p = gr_push(b, &b->text, 1, 4 * WRK_GR_TEXT_MAX, "bytes of literal text");

        if (p == NULL)
            return 0;
        *p = ((const uint8_t *)bytes)[i];
    }
    return node_new(b, node);
}

uint32_t gr_str(struct gr_build *b, const char *s)
{
    return gr_text(b, s, strlen(s));
}

static uint32_t list(struct gr_build *b, enum gr_op op, const uint32_t *kids, uint32_t n)
{
    struct gr_node node = {.op = (uint8_t)op, .a = b->kid.n, .n = n, .cost = 1};

    if (n == 1)
        return kids[0];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *p = gr_push(b, &b->kid, sizeof(*p), GR_NODES_MAX, "tree nodes");

        if (p == NULL)
            return 0;
        *p = kids[i];
        node.cost = add_up(node.cost, gr_node(b, kids[i])->cost + 1);
    }
    return node_new(b, node);
}

uint32_t gr_seq(struct gr_build *b, const uint32_t *kids, uint32_t n)
{
    return n == 0 ? gr_empty(b) : list(b, GR_SEQ, kids, n);
}

uint32_t gr_alt(struct gr_build *b, const uint32_t *kids, uint32_t n)
{
    return n == 0 ? gr_never(b) : list(b, GR_ALT, kids, n);
}

static uint32_t count_kids(const uint32_t *kids)
{
    uint32_t n = 0;

    while (kids[n] != GR_NONE)
        n++;
    return n;
}

uint32_t gr_seq_of(struct gr_build *b, const uint32_t *kids)
{
    return gr_seq(b, kids, count_kids(kids));
}

uint32_t gr_alt_of(struct gr_build *b, const uint32_t *kids)
{
    return gr_alt(b, kids, count_kids(kids));
}

uint32_t gr_rep(struct gr_build *b, uint32_t kid, uint32_t min, uint32_t max)
{
    uint32_t cost;

    if (max == 0)
        return gr_empty(b);
    if (min == 1 && max == 1)
        return kid;
    if (b->rc != RC_OK)
        return 0;
    cost = gr_node(b, kid)->cost;
    if (!gr_copied(cost, min, max))
        cost = 0; /* a call */
    else if (max != GR_INF || min > 1)
        cost *= max == GR_INF ? min : max;
    return node_new(
        b, (struct gr_node){.op = GR_REP, .a = kid, .min = min, .max = max, .cost = cost + 2});
}

uint32_t gr_call(struct gr_build *b, uint32_t rule)
{
    return node_new(b, (struct gr_node){.op = GR_CALL, .a = rule, .cost = 1});
}

uint32_t gr_opt(struct gr_build *b, uint32_t kid)
{
    return gr_rep(b, kid, 0, 1);
}

uint32_t gr_members(struct gr_build *b, const uint32_t *kids, uint32_t n)
{
    struct gr_node node = {.op = GR_MEMBERS, .a = b->kid.n, .n = n, .cost = 16};

    for (uint32_t i = 0; i < n; i++) {
        uint32_t *p = gr_push(b, &b->kid, sizeof(*p), GR_NODES_MAX, "tree nodes");

        if (p == NULL)
            return 0;
        *p = kids[i];
        if (i >= 3 && i % 2 == 1)
            node.cost = add_up(node.cost, add_up(gr_node(b, kids[i])->cost, 4) * 2);
    }
    return node_new(b, node);
}

uint32_t gr_rule_new(struct gr_build *b, const char *name)
{
    struct gr_src *r = gr_push(b, &b->rule, sizeof(*r), GR_RULES_MAX, "rules");

    if (r == NULL)
        return 0;
    r->node = GR_NONE;
    snprintf(r->name, sizeof(r->name), "%s", name);
    return b->rule.n - 1;
}
