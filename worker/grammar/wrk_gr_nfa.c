/* wrk_gr_nfa.c - trees to states and edges (Thompson's construction).
 *
 * A character set becomes the byte sequences of its UTF-8; inside a JSON string what
 * must be escaped there becomes its escape. A repetition is a loop, a few copies, or -
 * counted and large - a rule of its own that is called so many times: its size never
 * depends on the count. Source: Thompson 1968; ranges of UTF-8 as RE2 splits them.
 * Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_impl.h"

#include <string.h>

static uint32_t state(struct gr_build *b)
{
    if (b->n_states >= GR_STATES_MAX)
        gr_fail(b, RC_TOO_LARGE, "it needs more than %u states", GR_STATES_MAX);
    return b->n_states++;
}

static void edge(struct gr_build *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    struct gr_nedge *e = gr_push(b, &b->nedge, sizeof(*e), GR_EDGES_MAX, "edges");

    if (e != NULL)
        *e = (struct gr_nedge){from, to, GR_NONE, 1, 1, (uint8_t)lo, (uint8_t)hi};
}

static void skip(struct gr_build *b, uint32_t from, uint32_t to)
{
    edge(b, from, to, 1, 0);
}

static void call(struct gr_build *b, uint32_t from, uint32_t to, uint32_t rule, uint32_t min,
                 uint32_t max)
{
    struct gr_nedge *e = gr_push(b, &b->nedge, sizeof(*e), GR_EDGES_MAX, "edges");

    if (e != NULL)
        *e = (struct gr_nedge){from, to, rule, min, max, 1, 0};
}

/* ----------------------------------------------------------------- characters */

/* Where a character ends, and the states before it that need any continuation bytes. */
struct tails {
    uint32_t at[4]; /* at[k]: k continuation bytes before the end; GR_NONE: not made */
};

static uint32_t tail(struct gr_build *b, struct tails *t, unsigned k)
{
    if (t->at[k] == GR_NONE) {
        uint32_t to = tail(b, t, k - 1);

        t->at[k] = state(b);
        edge(b, t->at[k], to, 0x80, 0xbf);
    }
    return t->at[k];
}

/* Code points lo..hi, of one length, differing in trailing bytes that are all free. */
static void block(struct gr_build *b, uint32_t from, struct tails *t, uint32_t lo, uint32_t hi)
{
    uint8_t l[4], h[4];
    unsigned n = gr_utf8_put(lo, l), free_bytes = 0, i;

    gr_utf8_put(hi, h);
    while (free_bytes + 1 < n && l[n - 1 - free_bytes] == 0x80 && h[n - 1 - free_bytes] == 0xbf)
        free_bytes++;
    for (i = 0; i + 1 + free_bytes < n; i++) {
        uint32_t to = state(b);

        edge(b, from, to, l[i], h[i]);
        from = to;
    }
    edge(b, from, tail(b, t, free_bytes), l[i], h[i]);
}

static void split(struct gr_build *b, uint32_t from, struct tails *t, uint32_t lo, uint32_t hi)
{
    static const uint32_t last_of[] = {0x7f, 0x7ff, 0xd7ff, 0xffff};

    if (lo > hi)
        return;
    for (unsigned i = 0; i < 4; i++) /* one length at a time, no surrogates */
        if (lo <= last_of[i] && hi > last_of[i]) {
            split(b, from, t, lo, last_of[i]);
            split(b, from, t, last_of[i] + 1, hi);
            return;
        }
    if (lo >= 0xd800 && lo < 0xe000)
        lo = 0xe000;
    if (lo > hi)
        return;
    if (hi < 0x80) {
        edge(b, from, t->at[0], lo, hi);
        return;
    }
    for (unsigned i = 1; i < 4; i++) {
        uint32_t m = (1u << (6 * i)) - 1;

        if ((lo & ~m) == (hi & ~m))
            continue;
        if ((lo & m) != 0) {
            split(b, from, t, lo, lo | m);
            split(b, from, t, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            split(b, from, t, lo, (hi & ~m) - 1);
            split(b, from, t, hi & ~m, hi);
            return;
        }
    }
    block(b, from, t, lo, hi);
}

/* One character below 32, a quote or a backslash as it stands in a JSON string. */
static void escaped(struct gr_build *b, uint32_t back, uint32_t to, uint32_t c)
{
    static const char short_form[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    static const char hex[] = "0123456789abcdef";
    uint32_t at = back, next;

    for (size_t i = 0; i + 1 < sizeof(short_form); i += 2)
        if ((unsigned char)short_form[i] == c) {
            edge(b, back, to, (uint8_t)short_form[i + 1], (uint8_t)short_form[i + 1]);
            return;
        }
    for (const char *p = "u00"; *p != '\0'; p++) {
        next = state(b);
        edge(b, at, next, (uint8_t)*p, (uint8_t)*p);
        at = next;
    }
    next = state(b);
    edge(b, at, next, (uint8_t)hex[c >> 4], (uint8_t)hex[c >> 4]);
    edge(b, next, to, (uint8_t)hex[c & 15], (uint8_t)hex[c & 15]);
}

static void json_range(struct gr_build *b, uint32_t from, struct tails *t, uint32_t *back,
                       uint32_t lo, uint32_t hi)
{
    static const struct gr_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};

    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        split(b, from, t, lo > plain[i].lo ? lo : plain[i].lo, hi < plain[i].hi ? hi : plain[i].hi);
    /* U+0000 is left out: many readers of JSON refuse it in a string */
    for (uint32_t c = lo > 1 ? lo : 1; c <= hi && c <= 0x5c; c++) {
        if (c >= 0x20 && c != 0x22 && c != 0x5c)
            continue;
        if (*back == GR_NONE) {
            *back = state(b);
            edge(b, from, *back, '\\', '\\');
        }
        escaped(b, *back, t->at[0], c);
    }
}

static uint32_t emit_set(struct gr_build *b, const struct gr_node *n, uint32_t from)
{
    const struct gr_range *r = n->n > 0 ? (const struct gr_range *)b->range.p + n->a : NULL;
    struct tails t = {{state(b), GR_NONE, GR_NONE, GR_NONE}};
    uint32_t back = GR_NONE;

    for (uint32_t i = 0; i < n->n && b->rc == RC_OK; i++) {
        if (n->json)
            json_range(b, from, &t, &back, r[i].lo, r[i].hi);
        else
            split(b, from, &t, r[i].lo, r[i].hi);
    }
    return t.at[0];
}

/* ----------------------------------------------------------------------- trees */

static uint32_t emit(struct gr_build *b, uint32_t i, uint32_t from);

static uint32_t emit_alt(struct gr_build *b, struct gr_node n, uint32_t from)
{
    uint32_t to = state(b);

    for (uint32_t k = 0; k < n.n && b->rc == RC_OK; k++) {
        uint32_t start = state(b);

        skip(b, from, start);
        skip(b, emit(b, ((uint32_t *)b->kid.p)[n.a + k], start), to);
    }
    return to;
}

/* At least once, or never, or any number of times. */
static uint32_t emit_loop(struct gr_build *b, uint32_t kid, uint32_t from, bool may_skip)
{
    uint32_t start = state(b), end;

    skip(b, from, start);
    end = emit(b, kid, start);
    skip(b, end, start);
    return may_skip ? start : end;
}

static uint32_t emit_copies(struct gr_build *b, struct gr_node n, uint32_t from)
{
    uint32_t at = from, end;

    for (uint32_t i = 0; i + (n.max == GR_INF) < n.min && b->rc == RC_OK; i++)
        at = emit(b, n.a, at);
    if (n.max == GR_INF)
        return emit_loop(b, n.a, at, n.min == 0);
    if (n.max == n.min)
        return at;
    end = state(b);
    for (uint32_t i = n.min; i < n.max && b->rc == RC_OK; i++) {
        skip(b, at, end);
        at = emit(b, n.a, at);
    }
    skip(b, at, end);
    return end;
}

static uint32_t emit_rep(struct gr_build *b, struct gr_node n, uint32_t from)
{
    uint32_t rule, to;

    if (gr_copied(gr_node(b, n.a)->cost, n.min, n.max))
        return emit_copies(b, n, from);
    rule = gr_rule_new(b, "a repetition");
    if (b->rc != RC_OK)
        return from;
    gr_rule(b, rule)->node = n.a;
    to = state(b);
    call(b, from, to, rule, n.min, n.max);
    return to;
}

/* Two rows of places: before member i with none written yet, and with some. */
static uint32_t emit_members(struct gr_build *b, struct gr_node n, uint32_t from)
{
    uint32_t none = from, some = GR_NONE, end = state(b);
#define KID(i) (((uint32_t *)b->kid.p)[n.a + (i)])

    for (uint32_t i = 3; i + 1 < n.n && b->rc == RC_OK; i += 2) {
        uint32_t next = state(b), how = KID(i + 1);

        if (some != GR_NONE)
            skip(b, emit(b, KID(i), emit(b, KID(0), some)), next);
        if (none != GR_NONE)
            skip(b, emit(b, KID(i), none), next);
        if (how == GR_MANY)
            skip(b, emit(b, KID(i), emit(b, KID(0), next)), next);
        if (how == GR_REQUIRED)
            none = GR_NONE;
        else if (some != GR_NONE)
            skip(b, some, next);
        some = next;
    }
    if (some != GR_NONE)
        skip(b, emit(b, KID(1), some), end);
    if (none != GR_NONE)
        skip(b, emit(b, KID(2), none), end);
#undef KID
    return end;
}

static uint32_t emit_text(struct gr_build *b, struct gr_node n, uint32_t from)
{
    for (uint32_t i = 0; i < n.n && b->rc == RC_OK; i++) {
        uint8_t c = ((uint8_t *)b->text.p)[n.a + i];
        uint32_t to = state(b);

        edge(b, from, to, c, c);
        from = to;
    }
    return from;
}

/* From state from; where it ends. Tables may move: nodes are copied. */
static uint32_t emit(struct gr_build *b, uint32_t i, uint32_t from)
{
    struct gr_node n;
    uint32_t to;

    if (!gr_step(b, 1))
        return from;
    n = *gr_node(b, i);
    switch ((enum gr_op)n.op) {
    case GR_EMPTY:
        return from;
    case GR_SET:
        return emit_set(b, &n, from);
    case GR_TEXT:
        return emit_text(b, n, from);
    case GR_SEQ:
        for (uint32_t k = 0; k < n.n && b->rc == RC_OK; k++)
            from = emit(b, ((uint32_t *)b->kid.p)[n.a + k], from);
        return from;
    case GR_ALT:
        return emit_alt(b, n, from);
    case GR_REP:
        return emit_rep(b, n, from);
    case GR_CALL:
        to = state(b);
        call(b, from, to, n.a, 1, 1);
        return to;
    case GR_MEMBERS:
        return emit_members(b, n, from);
    }
    return from;
}

void gr_emit(struct gr_build *b)
{
    for (uint32_t r = 0; r < b->rule.n && b->rc == RC_OK; r++) { /* repetitions add rules */
        uint32_t first = b->n_states, start = state(b), end;

        if (gr_rule(b, r)->node == GR_NONE) {
            gr_fail(b, RC_INVALID, "rule '%s' is used and not defined", gr_rule(b, r)->name);
            return;
        }
        end = emit(b, gr_rule(b, r)->node, start);
        gr_rule(b, r)->first = first;
        gr_rule(b, r)->start = start;
        gr_rule(b, r)->accept = state(b);
        skip(b, end, gr_rule(b, r)->accept);
    }
}
