/* test_wrk_radix.c - the prompt cache against a naive model, and its books.
 *
 * A page's content is simulated: each position holds a digest of its namespace and of
 * all tokens up to it. Whatever the tree restores must hold exactly what computing would
 * have written, whatever was inserted, shared, cancelled, evicted or shrunk before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_radix.h"

/* ---------------------------------------------------------- failing allocations */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FAILS_ALLOCATIONS 1
static unsigned fail_at; /* 0 = never; 1 = the next */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
static bool failing(void)
{
    return fail_at > 0 && --fail_at == 0;
}
void *malloc(size_t n)
{
    return failing() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t m)
{
    return failing() ? NULL : __libc_calloc(n, m);
}
#endif

/* ------------------------------------------------------------------------ rig */

#define PT 16u
#define CTX 640u
#define SEQS 5
#define MAX_PAGES 400u

struct seq {
    struct wrk_table t;
    int32_t tok[CTX];
    uint8_t ns[WRK_NS_BYTES];
    struct wrk_radix_owner owner;
    uint32_t n_prompt, n, pos;
    bool open;
};
struct rig {
    struct mdl_kv_geometry g;
    struct wrk_pages p;
    struct wrk_radix r;
    uint64_t content[BE_KV_CLASSES][MAX_PAGES][PT];
    struct seq s[SEQS];
};

static uint32_t seed = 20261130u, state;
static uint32_t below(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static uint64_t content_at(const struct seq *s, uint32_t pos)
{
    uint64_t h = s->ns[0];

    for (uint32_t i = 0; i <= pos; i++)
        h = (h ^ (uint64_t)(s->tok[i] + 1)) * 0x9e3779b97f4a7c15ull + 1;
    return h;
}

static struct rig *rig_new(uint32_t n0, uint32_t w0, uint32_t n1, uint32_t w1, uint32_t classes,
                           uint32_t chunk, uint64_t budget)
{
    struct rig *x = calloc(1, sizeof(*x));

    x->g.page_tokens = PT;
    x->g.n_classes = classes;
    x->g.cls[0].n_pages = n0;
    x->g.cls[0].window = w0;
    x->g.cls[0].page_bytes = 100;
    x->g.cls[1].n_pages = n1;
    x->g.cls[1].window = w1;
    x->g.cls[1].page_bytes = 1000;
    assert_int_equal(wrk_pages_init(&x->p, &x->g, CTX, chunk, NULL), RC_OK);
    assert_int_equal(wrk_radix_init(&x->r, &x->p, CTX, budget, NULL), RC_OK);
    return x;
}

static void seq_close(struct rig *x, struct seq *s)
{
    wrk_table_close(&s->t, &x->p);
    wrk_radix_trim(&x->r);
    s->open = false;
}

/* Everything idle again: nothing is held, nothing reserved, and every page is free or cached. */
static void rig_free(struct rig *x)
{
    for (uint32_t i = 0; i < SEQS; i++)
        if (x->s[i].open)
            seq_close(x, &x->s[i]);
    assert_int_equal(wrk_pages_used_bytes(&x->p), 0);
    for (uint32_t c = 0; c < x->p.n_classes; c++) {
        assert_int_equal(x->p.cls[c].n_reserved, 0);
        assert_int_equal(x->p.cls[c].n_shared, 0);
        assert_int_equal(x->p.cls[c].n_cached_held, 0);
        assert_int_equal(x->p.cls[c].n_free + x->p.cls[c].n_cached, x->p.cls[c].n_pages);
    }
    wrk_radix_set_budget(&x->r, 0);
    assert_int_equal(x->r.used_bytes, 0);
    assert_int_equal(x->r.n_used, 0);
    for (uint32_t c = 0; c < x->p.n_classes; c++)
        assert_int_equal(x->p.cls[c].n_free, x->p.cls[c].n_pages);
    wrk_radix_deinit(&x->r);
    wrk_pages_deinit(&x->p);
    free(x);
}

static struct wrk_text text_of(const struct seq *s)
{
    return (struct wrk_text){s->tok, s->tok + s->n_prompt, s->n_prompt};
}

static struct wrk_prefix match(struct rig *x, struct seq *s, uint32_t n)
{
    struct wrk_text t = text_of(s);
    struct wrk_prefix p;

    wrk_radix_match(&x->r, s->ns, &t, n, &p, NULL);
    return p;
}

static void insert(struct rig *x, struct seq *s, uint32_t n, bool checkpoint)
{
    struct wrk_text t = text_of(s);

    wrk_radix_insert(&x->r, s->ns, &s->owner, &t, n, &s->t, checkpoint);
}

/* What the rows from pos on can see is what computing would have written. */
static void check_content(const struct rig *x, const struct seq *s)
{
    for (uint32_t c = 0; c < x->p.n_classes; c++) {
        uint32_t w = x->p.cls[c].window, lo = w > 0 && s->pos + 1 > w ? s->pos + 1 - w : 0;

        for (uint32_t q = lo; q < s->pos; q++) {
            int32_t page = s->t.entry[c][q / PT];

            if (page < 0 || x->content[c][page][q % PT] != content_at(s, q))
                fail_msg("seed %u: class %u position %u of %u: %s", seed, c, q, s->pos,
                         page < 0 ? "no page" : "another sequence's content");
        }
    }
}

/* One pass of n rows. */
static void feed(struct rig *x, struct seq *s, uint32_t n)
{
    if (wrk_table_hold(&s->t, &x->p, s->pos, n, NULL) != RC_OK)
        fail_msg("seed %u: an admitted sequence starved at %u+%u", seed, s->pos, n);
    for (uint32_t c = 0; c < x->p.n_classes; c++)
        for (uint32_t q = s->pos; q < s->pos + n; q++)
            x->content[c][s->t.entry[c][q / PT]][q % PT] = content_at(s, q);
    s->pos += n;
}

static bool seq_open(struct rig *x, struct seq *s, bool use_cache)
{
    struct wrk_prefix p = {.n = 0};
    enum rc rc;

    if (use_cache)
        p = match(x, s, s->n_prompt - 1);
    rc = wrk_table_open(&s->t, &x->p, CTX, s->n, p.n > 0 ? &p : NULL, NULL);
    if (rc == RC_BUSY && p.n > 0) { /* the cache makes nobody wait */
        p.n = 0;
        rc = wrk_table_open(&s->t, &x->p, CTX, s->n, NULL, NULL);
    }
    assert_true(rc == RC_OK || rc == RC_BUSY);
    s->open = rc == RC_OK;
    s->pos = p.n * PT;
    if (s->open)
        check_content(x, s);
    return s->open;
}

static void fill(struct seq *s, uint32_t ns, uint32_t start, uint32_t n_prompt, uint32_t n)
{
    memset(s->ns, (int)ns, WRK_NS_BYTES);
    for (uint32_t i = 0; i < n; i++) /* a few beginnings, and few digits: prefixes meet */
        s->tok[i] = (int32_t)(i < 40 + start * 30 ? start : below(50) == 0);
    s->n_prompt = n_prompt;
    s->n = n;
}

static void own(struct seq *s, uint32_t owner, uint32_t percent, bool known)
{
    memset(s->owner.id, (int)(200 + owner), WRK_NS_BYTES);
    s->owner.percent = percent;
    s->owner.known = known;
}

/* A whole sequence, computed and left in the tree. */
static void serve(struct rig *x, struct seq *s, uint32_t step)
{
    assert_true(seq_open(x, s, true));
    while (s->pos < s->n) {
        uint32_t n = s->n - s->pos < step ? s->n - s->pos : step;

        feed(x, s, n);
        if (s->pos >= s->n_prompt && s->pos - n < s->n_prompt)
            insert(x, s, s->pos, true);
    }
    insert(x, s, s->pos, true);
    seq_close(x, s);
}

static void check_books(const struct rig *x)
{
    const char *why = wrk_radix_fault(&x->r);

    if (why != NULL)
        fail_msg("seed %u: %s", seed, why);
    for (uint32_t c = 0; c < x->p.n_classes; c++) {
        uint32_t held = 0, cached = 0, both = 0, shared = 0;

        for (uint32_t i = 0; i < x->p.cls[c].n_pages; i++) {
            const struct wrk_page *g = &x->p.cls[c].page[i];

            assert_true(g->holders <= g->sharers + 1);
            held += g->holders > 0 && g->node < 0;
            cached += g->node >= 0;
            both += g->node >= 0 && g->holders > 0;
            shared += g->sharers > 0;
        }
        assert_int_equal(cached, x->p.cls[c].n_cached);
        assert_int_equal(both, x->p.cls[c].n_cached_held);
        assert_int_equal(shared, x->p.cls[c].n_shared);
        /* pool = free + private + cached (locked and evictable) */
        assert_int_equal(x->p.cls[c].n_free + held + cached, x->p.cls[c].n_pages);
        assert_true(x->p.cls[c].n_reserved + shared <= x->p.cls[c].n_pages);
    }
}

/* ---------------------------------------------------------------------- tests */

static void random_round(uint32_t round)
{
    static const struct {
        uint32_t n0, w0, n1, w1, classes;
    } geo[] = {
        {130, 0, 60, 40, 2}, /* as Gemma: global, then windowed */
        {70, 33, 90, 0, 2},  {120, 0, 0, 0, 1},  {60, 50, 0, 0, 1},
        {90, 0, 110, 0, 2},  {110, 0, 45, 1, 2},
    };
    uint32_t k = round % 6, chunk = 1 + below(64);
    uint64_t budget = below(4) == 0 ? below(40000) : UINT64_MAX;
    bool owned = round % 2 == 1; /* two owners of two namespaces each, with bounds that change */
    struct rig *x;

    state = seed = 1000 + round;
    x = rig_new(geo[k].n0, geo[k].w0, geo[k].n1, geo[k].w1, geo[k].classes, chunk, budget);
    for (int step = 0; step < 400; step++) {
        struct seq *s = &x->s[below(SEQS)];
        uint32_t what = below(100);

        if (!s->open) {
            uint32_t n = 2 + below(CTX - 2);

            fill(s, below(4), below(4), 1 + below(n - 1), n);
            own(s, s->ns[0] % 2, owned ? below(3) * 20 : 0, owned);
            if (seq_open(x, s, below(5) != 0) && below(4) == 0 && s->t.to[0] == s->t.n_prefix) {
                struct wrk_prefix p = match(x, s, s->n_prompt - 1);

                if (p.n >= s->t.n_prefix && wrk_table_rebase(&s->t, &x->p, &p, NULL) == RC_OK)
                    s->pos = p.n * PT;
                check_content(x, s);
            }
        } else if (s->pos == s->n || what < 3) {
            if (what != 0) /* else: cancelled, nothing is kept */
                insert(x, s, s->pos, what != 1);
            seq_close(x, s);
        } else {
            uint32_t n = 1 + below(x->p.chunk);

            feed(x, s, n < s->n - s->pos ? n : s->n - s->pos);
            check_content(x, s);
            if (what < 20)
                insert(x, s, s->pos, what < 15);
        }
        if (what == 99)
            wrk_radix_set_budget(&x->r, below(3) == 0 ? UINT64_MAX : below(60000));
        if (x->r.budget_bytes != UINT64_MAX && x->r.used_bytes > x->r.budget_bytes) {
            /* only what is in use may stand above it, and what hangs below that */
            assert_true(wrk_pages_cached_held_bytes(&x->p) > 0);
        }
        check_books(x);
    }
    rig_free(x);
}

static void random_use_restores_what_computing_would_write(void **st)
{
    (void)st;
    for (uint32_t round = 0; round < 36; round++)
        random_round(round);
}

/* With room for everything, the longest match is what a list of all texts says. */
static void the_longest_prefix_is_found(void **st)
{
    static struct {
        int32_t tok[CTX];
        uint32_t n, ns;
    } done[24];
    struct rig *x = rig_new(MAX_PAGES, 0, 0, 0, 1, 64, UINT64_MAX);

    (void)st;
    state = seed = 7;
    for (uint32_t i = 0; i < 24; i++) {
        struct seq *s = &x->s[0];
        uint32_t n = 100 + below(200), best = 0;
        struct wrk_prefix p;

        fill(s, below(2), below(3), n - 20, n);
        for (uint32_t k = 0; k < i; k++) {
            uint32_t same = 0;

            while (done[k].ns == s->ns[0] && same < n && same < done[k].n &&
                   done[k].tok[same] == s->tok[same])
                same++;
            best = same > best ? same : best;
        }
        p = match(x, s, s->n_prompt - 1);
        if (best > s->n_prompt - 1)
            best = s->n_prompt - 1;
        assert_int_equal(p.n, best / PT);
        serve(x, s, 64);
        memcpy(done[i].tok, s->tok, sizeof(done[i].tok));
        done[i].n = n;
        done[i].ns = s->ns[0];
        check_books(x);
    }
    rig_free(x);
}

static void a_prompt_restores_all_but_its_last_page(void **st)
{
    static const uint32_t lens[] = {1, 15, 16, 17, 32, 33, 100, 303};

    (void)st;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct rig *x = rig_new(MAX_PAGES, 0, MAX_PAGES, 40, 2, 64, UINT64_MAX);
        struct seq *s = &x->s[0];

        fill(s, 1, 1, lens[i], lens[i]);
        serve(x, s, 64);
        assert_int_equal(match(x, s, lens[i] - 1).n, (lens[i] - 1) / PT); /* engine.md 3.6 */
        memset(s->ns, 2, WRK_NS_BYTES);                                   /* another tenant */
        assert_int_equal(match(x, s, lens[i] - 1).n, 0);
        rig_free(x);
    }
}

/* A windowed class keeps windows at checkpoints only: a match ends at one. */
static void a_prefix_without_its_window_is_not_restored(void **st)
{
    struct rig *x = rig_new(MAX_PAGES, 0, MAX_PAGES, 40, 2, 32, UINT64_MAX);
    struct seq *s = &x->s[0];
    struct wrk_text t;
    struct wrk_prefix p;
    uint32_t lost = 0;

    (void)st;
    fill(s, 1, 2, 320, 320);
    assert_true(seq_open(x, s, true));
    while (s->pos < 320) {
        feed(x, s, 32);
        if (s->pos == 160)
            insert(x, s, 160, true);
    }
    insert(x, s, 320, true);
    seq_close(x, s);
    t = text_of(s);
    wrk_radix_match(&x->r, s->ns, &t, 320, &p, &lost);
    assert_int_equal(p.n, 20);
    assert_int_equal(lost, 0);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(p.page[0][i] >= 0);
        assert_true((p.page[1][i] >= 0) == (i >= (320 + 1 - 40) / PT));
    }
    wrk_radix_match(&x->r, s->ns, &t, 270, &p, &lost); /* between two checkpoints */
    assert_int_equal(p.n, 10);
    assert_int_equal(lost, 6 * PT);
    rig_free(x);
}

static void the_longest_unused_goes_first(void **st)
{
    struct rig *x = rig_new(MAX_PAGES, 0, 0, 0, 1, 64, UINT64_MAX);

    (void)st;
    for (uint32_t i = 0; i < 4; i++) {
        fill(&x->s[i], i, 1, 64, 64);
        serve(x, &x->s[i], 64);
    }
    assert_int_equal(match(x, &x->s[0], 64).n, 4); /* now the newest */
    wrk_radix_set_budget(&x->r, 3 * 4 * 100);
    assert_int_equal(x->r.used_bytes, 3 * 4 * 100);
    assert_int_equal(match(x, &x->s[1], 64).n, 0);
    assert_int_equal(match(x, &x->s[0], 64).n, 4);
    wrk_radix_set_budget(&x->r, 2 * 4 * 100 + 150);
    assert_int_equal(match(x, &x->s[2], 64).n, 1); /* leaves first: a shorter prefix is left */
    assert_int_equal(match(x, &x->s[3], 64).n, 4);
    assert_int_equal(x->r.stats.evicted[WRK_EVICT_BUDGET], 7);
    rig_free(x);
}

static void pages_in_use_survive_and_nobody_waits_for_the_cache(void **st)
{
    struct rig *x = rig_new(40, 0, 0, 0, 1, 64, UINT64_MAX);
    struct seq *a = &x->s[0], *b = &x->s[1];

    (void)st;
    fill(a, 1, 1, 320, 320);
    serve(x, a, 64); /* 20 of 40 pages are cached */
    assert_true(seq_open(x, a, true));
    assert_int_equal(a->pos, 304);
    wrk_radix_set_budget(&x->r, 0);
    assert_true(x->r.used_bytes >= 1900); /* in use */
    check_content(x, a);
    wrk_radix_set_budget(&x->r, UINT64_MAX);
    fill(b, 2, 2, 320, 320); /* all that is left: the rest of the cache must go */
    assert_true(seq_open(x, b, true));
    while (b->pos < 320)
        feed(x, b, 64);
    feed(x, a, 16);
    check_content(x, a);
    check_content(x, b);
    check_books(x);
    seq_close(x, a);
    insert(x, b, 320, true);
    seq_close(x, b);
    fill(a, 3, 3, 600, 640); /* the whole pool */
    assert_true(seq_open(x, a, true));
    while (a->pos < 640)
        feed(x, a, 64);
    assert_int_equal(x->r.n_used, 0);
    assert_int_equal(x->r.stats.evicted[WRK_EVICT_SPACE], 39);
    rig_free(x);
}

static void the_budget_is_never_exceeded_by_inserting(void **st)
{
    struct rig *x = rig_new(200, 0, 100, 40, 2, 64, 12345);

    (void)st;
    for (uint32_t i = 0; i < 12; i++) {
        fill(&x->s[0], i, i % 4, 300, 400);
        serve(x, &x->s[0], 50);
        assert_true(x->r.used_bytes <= 12345);
        check_books(x);
    }
    assert_true(x->r.stats.denied_pages + x->r.stats.evicted[WRK_EVICT_BUDGET] > 0);
    rig_free(x);
}

static void a_failed_allocation_leaves_nothing_behind(void **st)
{
    (void)st;
#ifdef FAILS_ALLOCATIONS
    struct mdl_kv_geometry g = {.page_tokens = PT, .n_classes = 2};
    struct wrk_pages p;
    struct wrk_radix r;
    unsigned k;

    g.cls[0].n_pages = g.cls[1].n_pages = 50;
    g.cls[1].window = 40;
    assert_int_equal(wrk_pages_init(&p, &g, CTX, 64, NULL), RC_OK);
    for (k = 1; k < 100; k++) {
        enum rc rc;

        fail_at = k;
        rc = wrk_radix_init(&r, &p, CTX, 1000, NULL);
        if (fail_at > 0)
            break;
        assert_int_equal(rc, RC_NOMEM);
        assert_null(p.reclaim);
    }
    fail_at = 0;
    assert_in_range(k, 5, 20);
    for (k = 1; k < 100; k++) {
        struct wrk_table t;

        fail_at = k;
        if (wrk_table_open(&t, &p, CTX, 100, NULL, NULL) == RC_OK) {
            fail_at = 0;
            wrk_table_close(&t, &p);
            break;
        }
        assert_int_equal(p.cls[0].n_reserved + p.cls[1].n_reserved, 0);
    }
    assert_int_equal(k, 5); /* two arrays for each class */
    wrk_radix_deinit(&r);
    wrk_pages_deinit(&p);
#else
    skip(); /* the sanitizer owns malloc */
#endif
}

/* One sequence of `pages` pages that no other begins like. */
static void keep_own(struct rig *x, uint32_t ns, uint32_t owner, uint32_t percent, uint32_t first,
                     uint32_t pages)
{
    struct seq *s = &x->s[0];

    fill(s, ns, 0, pages * PT - 1, pages * PT);
    for (uint32_t i = 0; i < pages * PT; i++)
        s->tok[i] = (int32_t)first;
    own(s, owner, percent, true);
    serve(x, s, 64);
}

static uint32_t kept(struct rig *x, uint32_t ns, uint32_t first, uint32_t pages)
{
    struct seq *s = &x->s[0];

    fill(s, ns, 0, pages * PT, pages * PT);
    for (uint32_t i = 0; i < pages * PT; i++)
        s->tok[i] = (int32_t)first;
    return match(x, s, pages * PT).n;
}

static uint64_t bytes_of(const struct rig *x, uint32_t owner)
{
    for (uint32_t g = 0; g < WRK_RADIX_OWNERS; g++)
        if (x->r.group[g].n_nodes > 0 && x->r.group[g].owner.id[0] == 200 + owner)
            return x->r.group[g].bytes;
    return 0;
}

/* A quarter of 40 pages: whatever it asks, over all its namespaces, and others lose nothing. */
static void an_owner_keeps_no_more_than_its_part(void **st)
{
    struct rig *x = rig_new(80, 0, 0, 0, 1, 64, 40 * 100);

    (void)st;
    keep_own(x, 9, 1, 0, 500, 20);
    for (uint32_t i = 0; i < 12; i++) {
        keep_own(x, i % 3, 0, 25, 100 + i, 4);
        assert_true(bytes_of(x, 0) <= 1000);
        check_books(x);
    }
    assert_int_equal(bytes_of(x, 0), 1000);
    assert_int_equal(bytes_of(x, 1), 2000);
    assert_int_equal(kept(x, 9, 500, 20), 20);
    assert_int_equal(kept(x, 11 % 3, 111, 4), 4); /* its newest are whole, */
    assert_int_equal(kept(x, 10 % 3, 110, 4), 4);
    assert_int_equal(kept(x, 9 % 3, 109, 4), 2); /* and what is left goes to the one before */
    assert_int_equal(kept(x, 8 % 3, 108, 4), 0);
    keep_own(x, 0, 0, 10, 300, 12); /* its bound falls: at once, and a beginning fits */
    assert_true(bytes_of(x, 0) <= 400);
    assert_int_equal(kept(x, 0, 300, 12), 4);
    keep_own(x, 0, 0, 1, 301, 2); /* less than a page: nothing */
    assert_int_equal(kept(x, 0, 301, 2), 0);
    keep_own(x, 0, 0, 100, 302, 20);
    assert_int_equal(bytes_of(x, 0), 2000);
    check_books(x);
    rig_free(x);
}

/* Owners beyond the table's end: without a bound they are kept like anyone, with one not. */
static void more_owners_than_are_told_apart(void **st)
{
    struct rig *x = rig_new(MAX_PAGES, 0, 0, 0, 1, 64, UINT64_MAX);

    (void)st;
    for (uint32_t i = 0; i < WRK_RADIX_OWNERS + 2; i++) {
        struct seq *s = &x->s[0];

        fill(s, 0, 0, PT, PT + 1);
        memcpy(s->ns, &i, sizeof(i));
        own(s, 0, i == WRK_RADIX_OWNERS ? 50 : 0, true);
        memcpy(s->owner.id, &i, sizeof(i));
        serve(x, s, 64);
        assert_int_equal(match(x, s, PT).n, i != WRK_RADIX_OWNERS);
    }
    check_books(x);
    rig_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_restores_what_computing_would_write),
        cmocka_unit_test(the_longest_prefix_is_found),
        cmocka_unit_test(a_prompt_restores_all_but_its_last_page),
        cmocka_unit_test(a_prefix_without_its_window_is_not_restored),
        cmocka_unit_test(the_longest_unused_goes_first),
        cmocka_unit_test(pages_in_use_survive_and_nobody_waits_for_the_cache),
        cmocka_unit_test(the_budget_is_never_exceeded_by_inserting),
        cmocka_unit_test(an_owner_keeps_no_more_than_its_part),
        cmocka_unit_test(more_owners_than_are_told_apart),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
