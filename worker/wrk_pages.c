/* wrk_pages.c - free lists, reservations and page tables.
 *
 * Always true, per class: n_free + pages held by tables == n_pages; the sum of
 * what tables hold <= n_reserved <= n_pages; a page is in one place only.
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
        if ((p->cls[c].free = malloc(((size_t)n + 1) * sizeof(int32_t))) == NULL) {
            wrk_pages_deinit(p);
            return rc_fail(err, RC_NOMEM, "free list of %u KV pages", n);
        }
        /* low numbers on top: a young cache stays small in memory */
        for (uint32_t i = 0; i < n; i++)
            p->cls[c].free[i] = (int32_t)(n - 1 - i);
    }
    return RC_OK;
}

void wrk_pages_deinit(struct wrk_pages *p)
{
    for (uint32_t c = 0; c < BE_KV_CLASSES; c++)
        free(p->cls[c].free);
    memset(p, 0, sizeof(*p));
}

uint32_t wrk_pages_need(const struct wrk_pages *p, uint32_t c, uint32_t n_tokens)
{
    uint64_t all = ((uint64_t)n_tokens + p->page_tokens - 1) / p->page_tokens, live;

    if (p->cls[c].window == 0)
        return (uint32_t)all;
    /* keys pos0 - window + 1 .. pos0 + chunk - 1, at worst from a page's last slot */
    live = ((uint64_t)p->cls[c].window + p->chunk + p->page_tokens - 3) / p->page_tokens + 1;
    return (uint32_t)(live < all ? live : all);
}

enum rc wrk_pages_check(const struct wrk_pages *p, uint32_t n_tokens, struct rc_err *err)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t need = wrk_pages_need(p, c, n_tokens);

        if (need <= p->cls[c].n_pages)
            continue;
        rc_fail_what(err, RC_LIMIT, "kv_bytes",
                     "%u tokens need %u pages of %u tokens in the KV cache, it has %u: lower "
                     "max_tokens or give the model more KV memory",
                     n_tokens, need, p->page_tokens, p->cls[c].n_pages);
        if (err != NULL) {
            err->n = need * p->cls[c].page_bytes;
            err->limit = p->cls[c].n_pages * p->cls[c].page_bytes;
        }
        return RC_LIMIT;
    }
    return RC_OK;
}

enum rc wrk_table_open(struct wrk_table *t, struct wrk_pages *p, uint32_t n_tokens,
                       struct rc_err *err)
{
    memset(t, 0, sizeof(*t));
    for (uint32_t c = 0; c < p->n_classes; c++)
        if (wrk_pages_need(p, c, n_tokens) > p->cls[c].n_pages - p->cls[c].n_reserved)
            return rc_fail(err, RC_BUSY, "the KV cache is full");
    t->n_entries = p->page_tokens > 0 ? (n_tokens + p->page_tokens - 1) / p->page_tokens : 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        size_t bytes = ((size_t)t->n_entries + 1) * sizeof(int32_t);

        if ((t->entry[c] = malloc(bytes)) == NULL) {
            while (c-- > 0)
                free(t->entry[c]);
            memset(t, 0, sizeof(*t));
            return rc_fail(err, RC_NOMEM, "page table of %u entries", t->n_entries);
        }
        memset(t->entry[c], 0xff, bytes); /* -1 */
    }
    t->n_tokens = n_tokens;
    for (uint32_t c = 0; c < p->n_classes; c++)
        p->cls[c].n_reserved += wrk_pages_need(p, c, n_tokens);
    return RC_OK;
}

static void let_go(struct wrk_table *t, struct wrk_pages *p, uint32_t c, uint32_t until)
{
    for (; t->from[c] < until && t->from[c] < t->to[c]; t->from[c]++) {
        p->cls[c].free[p->cls[c].n_free++] = t->entry[c][t->from[c]];
        t->entry[c][t->from[c]] = -1;
    }
}

void wrk_table_close(struct wrk_table *t, struct wrk_pages *p)
{
    for (uint32_t c = 0; t->n_tokens > 0 && c < p->n_classes; c++) {
        let_go(t, p, c, t->to[c]);
        p->cls[c].n_reserved -= wrk_pages_need(p, c, t->n_tokens);
        free(t->entry[c]);
    }
    memset(t, 0, sizeof(*t));
}

enum rc wrk_table_hold(struct wrk_table *t, struct wrk_pages *p, uint32_t pos0, uint32_t n,
                       struct rc_err *err)
{
    if (n == 0 || n > p->chunk || n > t->n_tokens || pos0 > t->n_tokens - n)
        return rc_fail(err, RC_INTERNAL, "pages for rows %u+%u, reserved %u tokens, chunk %u", pos0,
                       n, t->n_tokens, p->chunk);
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint32_t w = p->cls[c].window, last = (pos0 + n - 1) / p->page_tokens;

        if (w > 0 && pos0 + 1 > w)
            let_go(t, p, c, (pos0 + 1 - w) / p->page_tokens);
        while (t->to[c] <= last) {
            if (p->cls[c].n_free == 0)
                return rc_fail(err, RC_INTERNAL, "no free page of class %u below the reservation",
                               c);
            t->entry[c][t->to[c]++] = p->cls[c].free[--p->cls[c].n_free];
        }
    }
    return RC_OK;
}

uint64_t wrk_pages_used_bytes(const struct wrk_pages *p)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < p->n_classes; c++)
        sum += (uint64_t)(p->cls[c].n_pages - p->cls[c].n_free) * p->cls[c].page_bytes;
    return sum;
}
