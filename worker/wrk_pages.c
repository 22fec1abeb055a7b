/* wrk_pages.c - free lists, reservations and page tables.
 *
 * Always true, per class: every page is free, or held by tables, or cached, or both;
 * a page has at most one owner among its holders; what a table owns never exceeds its
 * need; n_reserved + n_shared <= n_pages. From the last follows that whoever draws
 * within its reservation finds a free page or one that only the prompt cache holds: of
 * n_pages, those neither free nor reclaimable are owned (counted in n_reserved) or
 * shared. A page owned by one and shared by another counts twice, for its owner may
 * let it go and draw anew while the other keeps it.
 * Must never fail a sequence that was admitted. Tests: tests/worker/test_wrk_pages.c
 */
#include "wrk_pages.h"

#include <stdlib.h>
#include <string.h>

enum rc wrk_pages_init(struct wrk_pages *p, const struct mdl_kv_geometry *g, uint32_t ctx_tokens,
                       uint32_t chunk, struct rc_err *err)
{
    memset(p, 0, sizeof(*p));
    p->page_tokens = g->page_tokens;
    p->n_classes = g->n_classes;
    p->chunk = chunk > 0 ? chunk : 1;
    if (g->n_classes > BE_KV_CLASSES || (g->n_classes > 0 && g->page_tokens == 0))
        return rc_fail(err, RC_INTERNAL, "KV geometry: %u classes, pages of %u tokens",
                       g->n_classes, g->page_tokens);
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t n = g->cls[c].n_pages, w = g->cls[c].window;

        p->cls[c].n_pages = p->cls[c].n_free = n;
        p->cls[c].window = w;
        p->cls[c].page_bytes = g->cls[c].page_bytes;
        if (w > 0 && n < ((uint64_t)ctx_tokens + p->page_tokens - 1) / p->page_tokens) {
            /* need() <= n  <=>  chunk <= (n - 1) * page_tokens + 2 - w */
            uint64_t room = n > 0 ? (uint64_t)(n - 1) * p->page_tokens + 2 : 0;

            if (room < (uint64_t)w + 1)
                return rc_fail(err, RC_LIMIT,
                               "KV class %u: %u pages of %u tokens cannot hold a window of %u", c,
                               n, p->page_tokens, w);
            if (p->chunk > room - w)
                p->chunk = (uint32_t)(room - w);
        }
        p->cls[c].free = malloc(((size_t)n + 1) * sizeof(int32_t));
        p->cls[c].page = calloc((size_t)n + 1, sizeof(struct wrk_page));
        if (p->cls[c].free == NULL || p->cls[c].page == NULL) {
            wrk_pages_deinit(p);
            return rc_fail(err, RC_NOMEM, "books of %u KV pages", n);
        }
        /* low numbers on top: a young cache stays small in memory */
        for (uint32_t i = 0; i < n; i++) {
            p->cls[c].free[i] = (int32_t)(n - 1 - i);
            p->cls[c].page[i].node = -1;
        }
    }
    return RC_OK;
}

void wrk_pages_deinit(struct wrk_pages *p)
{
    for (uint32_t c = 0; c < BE_KV_CLASSES; c++) {
        free(p->cls[c].free);
        free(p->cls[c].page);
    }
    memset(p, 0, sizeof(*p));
}

uint32_t wrk_pages_need(const struct wrk_pages *p, uint32_t c, uint32_t n_tokens, uint32_t n_prefix)
{
    uint64_t all = ((uint64_t)n_tokens + p->page_tokens - 1) / p->page_tokens, live;

    all = all > n_prefix ? all - n_prefix : 0;
    if (p->cls[c].window == 0)
        return (uint32_t)all;
    /* keys pos0 - window + 1 .. pos0 + chunk - 1, at worst from a page's last slot */
    live = ((uint64_t)p->cls[c].window + p->chunk + p->page_tokens - 3) / p->page_tokens + 1;
    return (uint32_t)(live < all ? live : all);
}

enum rc wrk_pages_check(const struct wrk_pages *p, uint32_t n_tokens, struct rc_err *err)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t need = wrk_pages_need(p, c, n_tokens, 0);

        if (need <= p->cls[c].n_pages)
            continue;
        rc_fail_what(err, RC_LIMIT, "kv_bytes",
                     "%u tokens need %u pages of %u tokens in the KV cache, it has %u: lower "
                     "max_tokens or give the model more KV memory",
                     n_tokens, need, p->page_tokens, p->cls[c].n_pages);
        return rc_bound(RC_LIMIT, need * p->cls[c].page_bytes,
                        p->cls[c].n_pages * p->cls[c].page_bytes, err);
    }
    return RC_OK;
}

uint64_t wrk_pages_used_bytes(const struct wrk_pages *p)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t idle = p->cls[c].n_cached - p->cls[c].n_cached_held;

        sum += (uint64_t)(p->cls[c].n_pages - p->cls[c].n_free - idle) * p->cls[c].page_bytes;
    }
    return sum;
}

uint64_t wrk_pages_cached_held_bytes(const struct wrk_pages *p)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < p->n_classes; c++)
        sum += (uint64_t)p->cls[c].n_cached_held * p->cls[c].page_bytes;
    return sum;
}

/* -------------------------------------------------------------- single pages */

static void page_free(struct wrk_pages *p, uint32_t c, int32_t page)
{
    p->cls[c].free[p->cls[c].n_free++] = page;
}

void wrk_page_cache(struct wrk_pages *p, uint32_t c, int32_t page, int32_t node)
{
    struct wrk_page *g = &p->cls[c].page[page];

    g->node = node;
    p->cls[c].n_cached++;
    p->cls[c].n_cached_held += g->holders > 0;
}

void wrk_page_uncache(struct wrk_pages *p, uint32_t c, int32_t page)
{
    struct wrk_page *g = &p->cls[c].page[page];

    g->node = -1;
    p->cls[c].n_cached--;
    p->cls[c].n_cached_held -= g->holders > 0;
    if (g->holders == 0)
        page_free(p, c, page);
}

static void page_hold(struct wrk_pages *p, uint32_t c, int32_t page, bool share)
{
    struct wrk_page *g = &p->cls[c].page[page];

    if (g->holders++ == 0 && g->node >= 0)
        p->cls[c].n_cached_held++;
    if (share && g->sharers++ == 0)
        p->cls[c].n_shared++;
}

static void page_drop(struct wrk_pages *p, uint32_t c, int32_t page, bool share)
{
    struct wrk_page *g = &p->cls[c].page[page];

    if (share && --g->sharers == 0)
        p->cls[c].n_shared--;
    if (--g->holders > 0)
        return;
    if (g->node >= 0)
        p->cls[c].n_cached_held--;
    else
        page_free(p, c, page);
}

/* ------------------------------------------------------------------ reserving */

/* The prefix's pages that nobody shares yet. */
static uint32_t newly_shared(const struct wrk_pages *p, uint32_t c, const struct wrk_prefix *x)
{
    uint32_t n = 0;

    for (uint32_t i = 0; x != NULL && i < x->n; i++)
        n += x->page[c][i] >= 0 && p->cls[c].page[x->page[c][i]].sharers == 0;
    return n;
}

static bool fits(const struct wrk_pages *p, uint32_t n_tokens, const struct wrk_prefix *x)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint64_t sum = (uint64_t)p->cls[c].n_reserved + p->cls[c].n_shared;

        sum += wrk_pages_need(p, c, n_tokens, x != NULL ? x->n : 0);
        sum += newly_shared(p, c, x);
        if (sum > p->cls[c].n_pages)
            return false;
    }
    return true;
}

static void attach(struct wrk_table *t, struct wrk_pages *p, uint32_t n_tokens,
                   const struct wrk_prefix *x)
{
    t->n_tokens = n_tokens;
    t->n_prefix = x != NULL ? x->n : 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t i = 0;

        p->cls[c].n_reserved += wrk_pages_need(p, c, n_tokens, t->n_prefix);
        while (i < t->n_prefix && x->page[c][i] < 0)
            i++;
        t->from[c] = i;
        for (; i < t->n_prefix; i++) {
            t->entry[c][i] = x->page[c][i];
            t->shared[c][i] = 1;
            page_hold(p, c, t->entry[c][i], true);
        }
        t->to[c] = t->n_prefix;
    }
}

static void let_go(struct wrk_table *t, struct wrk_pages *p, uint32_t c, uint32_t until)
{
    for (; t->from[c] < until && t->from[c] < t->to[c]; t->from[c]++) {
        uint32_t i = t->from[c];

        page_drop(p, c, t->entry[c][i], t->shared[c][i]);
        t->entry[c][i] = -1;
        t->shared[c][i] = 0;
    }
}

static void detach(struct wrk_table *t, struct wrk_pages *p)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        let_go(t, p, c, t->to[c]);
        p->cls[c].n_reserved -= wrk_pages_need(p, c, t->n_tokens, t->n_prefix);
    }
}

static enum rc busy(struct rc_err *err)
{
    return rc_fail(err, RC_BUSY, "the KV cache is full");
}

/* --------------------------------------------------------------------- tables */

enum rc wrk_table_open(struct wrk_table *t, struct wrk_pages *p, uint32_t cap_tokens,
                       uint32_t n_tokens, const struct wrk_prefix *prefix, struct rc_err *err)
{
    memset(t, 0, sizeof(*t));
    if (!fits(p, n_tokens, prefix))
        return busy(err);
    t->cap_entries = p->page_tokens > 0 ? (cap_tokens + p->page_tokens - 1) / p->page_tokens : 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        size_t n = (size_t)t->cap_entries + 1;

        t->entry[c] = malloc(n * sizeof(int32_t));
        t->shared[c] = calloc(n, 1);
        if (t->entry[c] == NULL || t->shared[c] == NULL) {
            rc_fail(err, RC_NOMEM, "page table of %u entries", t->cap_entries);
            wrk_table_close(t, p);
            return RC_NOMEM;
        }
        memset(t->entry[c], 0xff, n * sizeof(int32_t)); /* -1 */
    }
    attach(t, p, n_tokens, prefix);
    return RC_OK;
}

enum rc wrk_table_rebase(struct wrk_table *t, struct wrk_pages *p, const struct wrk_prefix *x,
                         struct rc_err *err)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        /* the old prefix's pages are counted until they are gone: too careful by a window */
        uint64_t sum = (uint64_t)p->cls[c].n_reserved + p->cls[c].n_shared;

        sum -= wrk_pages_need(p, c, t->n_tokens, t->n_prefix);
        sum += wrk_pages_need(p, c, t->n_tokens, x->n) + newly_shared(p, c, x);
        if (t->to[c] != t->n_prefix)
            return rc_fail(err, RC_INTERNAL, "a new prefix for a table that owns pages");
        if (sum > p->cls[c].n_pages)
            return busy(err);
    }
    detach(t, p); /* nothing cached becomes free by this */
    attach(t, p, t->n_tokens, x);
    return RC_OK;
}

enum rc wrk_table_grow(struct wrk_table *t, struct wrk_pages *p, uint32_t n_tokens,
                       struct rc_err *err)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint64_t sum = (uint64_t)p->cls[c].n_reserved + p->cls[c].n_shared;

        sum += wrk_pages_need(p, c, n_tokens, t->n_prefix);
        sum -= wrk_pages_need(p, c, t->n_tokens, t->n_prefix);
        if (sum > p->cls[c].n_pages)
            return busy(err);
    }
    for (uint32_t c = 0; c < p->n_classes; c++) {
        p->cls[c].n_reserved += wrk_pages_need(p, c, n_tokens, t->n_prefix);
        p->cls[c].n_reserved -= wrk_pages_need(p, c, t->n_tokens, t->n_prefix);
    }
    t->n_tokens = n_tokens;
    return RC_OK;
}

void wrk_table_close(struct wrk_table *t, struct wrk_pages *p)
{
    if (t->n_tokens > 0)
        detach(t, p);
    for (uint32_t c = 0; c < BE_KV_CLASSES; c++) {
        free(t->entry[c]);
        free(t->shared[c]);
    }
    memset(t, 0, sizeof(*t));
}

static bool page_take(struct wrk_pages *p, uint32_t c, int32_t *page)
{
    if (p->cls[c].n_free == 0 && (p->reclaim == NULL || !p->reclaim(p->reclaim_user, c)))
        return false;
    *page = p->cls[c].free[--p->cls[c].n_free];
    return true;
}

enum rc wrk_table_hold(struct wrk_table *t, struct wrk_pages *p, uint32_t pos0, uint32_t n,
                       struct rc_err *err)
{
    if (n == 0 || n > p->chunk || n > t->n_tokens || pos0 > t->n_tokens - n ||
        pos0 / p->page_tokens < t->n_prefix)
        return rc_fail(err, RC_INTERNAL, "pages for rows %u+%u, reserved %u tokens, chunk %u", pos0,
                       n, t->n_tokens, p->chunk);
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t w = p->cls[c].window, last = (pos0 + n - 1) / p->page_tokens;

        if (w > 0 && pos0 + 1 > w)
            let_go(t, p, c, (pos0 + 1 - w) / p->page_tokens);
        while (t->to[c] <= last) {
            int32_t page;

            if (!page_take(p, c, &page))
                return rc_fail(err, RC_INTERNAL, "no free page of class %u below the reservation",
                               c);
            page_hold(p, c, page, false);
            t->entry[c][t->to[c]++] = page;
        }
    }
    return RC_OK;
}
