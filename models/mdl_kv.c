/* mdl_kv.c - how many KV pages a budget buys, and the context that leaves.
 *
 * A windowed class needs few pages per sequence however long it grows (the worker
 * gives back what lies behind the window); a global class needs one page per
 * page_tokens of context. The budget is dealt so that one sequence of the wanted
 * context always fits, and the rest in the proportion that short sequences use.
 * Knows no family and no device; pure arithmetic.
 * Always true: sum of n_pages * page_bytes <= kv_bytes; a sequence of *out_ctx
 * tokens, fed in passes of at most `chunk`, never runs out of pages when alone.
 * Tests: tests/models/test_mdl_kv.c
 */
#include "mdl_impl.h"

#include <inttypes.h>
#include <string.h>

#define MIN_CTX 64
#define MAX_PAGES INT32_MAX /* page ids are int32 */

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

uint64_t mdl_kv_seq_pages(uint32_t page_tokens, uint32_t window, uint32_t chunk, uint64_t n)
{
    uint64_t all = ceil_div(n, page_tokens), live;

    if (window == 0)
        return all;
    /* While a pass of `chunk` tokens runs, the keys from window - 1 before its
     * first token to its last are live; at worst they start on a page's last slot. */
    live = (uint64_t)window - 1 + chunk;
    live = (live + page_tokens - 2) / page_tokens + 1;
    return live < all ? live : all;
}

/* Bytes one sequence of n tokens needs at its peak. */
static bool seq_bytes(const struct mdl_kv_class *cls, uint32_t n_classes, uint32_t page_tokens,
                      uint32_t chunk, uint64_t n, uint64_t *out)
{
    uint64_t sum = 0, b;
    uint32_t c;

    for (c = 0; c < n_classes; c++) {
        uint64_t pages = mdl_kv_seq_pages(page_tokens, cls[c].window, chunk, n);

        if (__builtin_mul_overflow(pages, cls[c].page_bytes, &b) ||
            __builtin_add_overflow(sum, b, &sum))
            return false;
    }
    *out = sum;
    return true;
}

uint64_t mdl_kv_need_bytes(const struct mdl_kv_geometry *g, uint64_t n)
{
    struct mdl_kv_class cls[BE_KV_CLASSES];
    uint64_t bytes;

    for (uint32_t c = 0; c < g->n_classes; c++)
        cls[c] = (struct mdl_kv_class){g->cls[c].window, g->cls[c].page_bytes};
    return seq_bytes(cls, g->n_classes, g->page_tokens, g->chunk, n, &bytes) ? bytes : UINT64_MAX;
}

/* Pages per class when the busiest class has x; false on overflow. */
static bool deal(const struct mdl_kv_class *cls, uint32_t n_classes, uint32_t page_tokens,
                 uint32_t chunk, uint32_t ctx, uint32_t max_seqs, uint64_t x, uint64_t *pages,
                 uint64_t *out_bytes)
{
    uint64_t sum = 0, b;
    uint32_t c;

    for (c = 0; c < n_classes; c++) {
        uint64_t need = mdl_kv_seq_pages(page_tokens, cls[c].window, chunk, ctx);
        /* twice what all running sequences can hold, or one page for four of a global class
         * (a window for some 2,000 tokens at least): the rest keeps windows of cached prefixes */
        uint64_t most = cls[c].window ? need * max_seqs * 2 : UINT64_MAX;

        if (most < x / 4)
            most = x / 4;
        pages[c] = x < most ? x : most;
        if (pages[c] < need)
            pages[c] = need;
        if (__builtin_mul_overflow(pages[c], cls[c].page_bytes, &b) ||
            __builtin_add_overflow(sum, b, &sum))
            return false;
    }
    *out_bytes = sum;
    return true;
}

/* Largest context of at most `want` tokens whose pages fit; 0 when none does. */
static uint32_t fit_ctx(const struct mdl_kv_class *cls, uint32_t n_classes, uint32_t page_tokens,
                        uint64_t kv_bytes, uint32_t want, uint32_t chunk)
{
    uint64_t lo = 0, hi = want, bytes;

    while (lo < hi) {
        uint64_t mid = hi - (hi - lo) / 2;

        if (seq_bytes(cls, n_classes, page_tokens, chunk, mid, &bytes) && bytes <= kv_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return (uint32_t)lo;
}

enum rc mdl_kv_fit(struct mdl_kv_geometry *out, uint32_t *out_ctx, uint32_t page_tokens,
                   const struct mdl_kv_class *cls, uint32_t n_classes, uint64_t kv_bytes,
                   uint32_t want_ctx, uint32_t chunk, uint32_t max_seqs, struct rc_err *err)
{
    uint32_t ctx = fit_ctx(cls, n_classes, page_tokens, kv_bytes, want_ctx, chunk);
    uint32_t least = want_ctx < MIN_CTX ? want_ctx : MIN_CTX, c;
    uint64_t pages[BE_KV_CLASSES] = {0}, bytes, lo = 0, hi = MAX_PAGES;

    if (ctx < least) {
        if (!seq_bytes(cls, n_classes, page_tokens, chunk, least, &bytes))
            bytes = UINT64_MAX;
        return rc_bound(rc_fail_what(err, RC_LIMIT, "kv_bytes",
                                     "KV cache: %u tokens need %" PRIu64 " bytes, %" PRIu64
                                     " are allowed",
                                     least, bytes, kv_bytes),
                        bytes, kv_bytes, err);
    }
    while (lo < hi) { /* largest x whose deal fits; x = 0 is one sequence, which does */
        uint64_t mid = hi - (hi - lo) / 2;

        if (deal(cls, n_classes, page_tokens, chunk, ctx, max_seqs, mid, pages, &bytes) &&
            bytes <= kv_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    deal(cls, n_classes, page_tokens, chunk, ctx, max_seqs, lo, pages, &bytes);
    memset(out, 0, sizeof(*out));
    out->page_tokens = page_tokens;
    out->n_classes = n_classes;
    out->chunk = chunk;
    for (c = 0; c < n_classes; c++) {
        out->cls[c].n_pages = (uint32_t)(pages[c] > MAX_PAGES ? MAX_PAGES : pages[c]);
        out->cls[c].window = cls[c].window;
        out->cls[c].page_bytes = cls[c].page_bytes;
    }
    *out_ctx = ctx;
    return RC_OK;
}
