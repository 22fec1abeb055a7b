/* wrk_pages.h - who holds which page of the KV cache.
 *
 * Pages are numbers per class (be.h); this file deals them out. A sequence owns the
 * pages it filled and may share, read only, pages of the prompt cache (wrk_radix.h).
 * Each sequence reserves what it may still come to own, so that who was admitted
 * never waits for a page within its reservation; pages that only the prompt cache
 * holds are taken back from it on demand and never stand in anyone's way. Pages are
 * assigned just before a pass and, in windowed classes, given back behind the
 * window. Single-threaded. Tests: tests/worker/test_wrk_pages.c
 */
#ifndef INFERD_WRK_PAGES_H
#define INFERD_WRK_PAGES_H

#include "mdl.h"

struct wrk_page {
    uint16_t holders; /* tables that hold it */
    uint16_t sharers; /* of them, those that do not own it */
    int32_t node;     /* of the prompt cache, -1 = not cached */
};

struct wrk_pages {
    uint32_t page_tokens, n_classes;
    uint32_t chunk; /* most new rows of one sequence in one pass */
    struct {
        uint32_t n_pages, window;
        uint64_t page_bytes;
        uint32_t n_free;
        uint32_t n_reserved; /* what all tables own or may come to own */
        uint32_t n_shared;   /* pages with sharers > 0 */
        uint32_t n_cached;   /* pages with a node */
        uint32_t n_cached_held;
        int32_t *free; /* a stack of n_free page numbers */
        struct wrk_page *page;
    } cls[BE_KV_CLASSES];
    /* No page of class c is free: makes the prompt cache let go of one that nobody
     * else holds. False: there is none. NULL: no prompt cache. */
    bool (*reclaim)(void *user, uint32_t c);
    void *reclaim_user;
};

/* The pages of a prefix of whole pages, as the prompt cache found it: page[c][i] for
 * i < n, -1 where a windowed class does not need it. */
struct wrk_prefix {
    uint32_t n;
    const int32_t *page[BE_KV_CLASSES];
};

/* A sequence's view: entry[c][i] is the page of positions i * page_tokens.., -1
 * where none is held; entries [from, to) are held. */
struct wrk_table {
    int32_t *entry[BE_KV_CLASSES];
    uint8_t *shared[BE_KV_CLASSES]; /* per entry: not owned */
    uint32_t cap_entries;           /* per class */
    uint32_t from[BE_KV_CLASSES], to[BE_KV_CLASSES];
    uint32_t n_tokens; /* the reservation reaches so far; 0 = closed */
    uint32_t n_prefix; /* pages it began with */
};

/* No sequence is longer than ctx_tokens. chunk is lowered where a class is too
 * small for it (at least 1). Errors: RC_NOMEM, RC_LIMIT when a windowed class
 * cannot hold one row. */
enum rc wrk_pages_init(struct wrk_pages *p, const struct mdl_kv_geometry *g, uint32_t ctx_tokens,
                       uint32_t chunk, struct rc_err *err);
void wrk_pages_deinit(struct wrk_pages *p);

/* Most pages of class c that a sequence of n_tokens owns at any time when it begins
 * with a prefix of n_prefix shared pages. */
uint32_t wrk_pages_need(const struct wrk_pages *p, uint32_t c, uint32_t n_tokens,
                        uint32_t n_prefix);
/* RC_LIMIT, with numbers, when n_tokens could not be held even alone. */
enum rc wrk_pages_check(const struct wrk_pages *p, uint32_t n_tokens, struct rc_err *err);
/* Bytes of pages held by sequences, and of those the ones that the prompt cache holds too. */
uint64_t wrk_pages_used_bytes(const struct wrk_pages *p);
uint64_t wrk_pages_cached_held_bytes(const struct wrk_pages *p);

/* --- for the prompt cache */
void wrk_page_cache(struct wrk_pages *p, uint32_t c, int32_t page, int32_t node);
/* The page is free afterwards unless a table holds it. */
void wrk_page_uncache(struct wrk_pages *p, uint32_t c, int32_t page);

/* Makes the table, with room for cap_tokens, and reserves n_tokens of them beginning
 * with prefix (NULL = none). Errors: RC_BUSY (not now; nothing was reserved), RC_NOMEM. */
enum rc wrk_table_open(struct wrk_table *t, struct wrk_pages *p, uint32_t cap_tokens,
                       uint32_t n_tokens, const struct wrk_prefix *prefix, struct rc_err *err);
/* Another prefix, for a table that owns no page yet. RC_BUSY: nothing has changed. */
enum rc wrk_table_rebase(struct wrk_table *t, struct wrk_pages *p, const struct wrk_prefix *prefix,
                         struct rc_err *err);
/* Raises the reservation to n_tokens (<= cap_tokens). RC_BUSY: nothing has changed. */
enum rc wrk_table_grow(struct wrk_table *t, struct wrk_pages *p, uint32_t n_tokens,
                       struct rc_err *err);
/* Gives everything back. Accepts a zeroed table. */
void wrk_table_close(struct wrk_table *t, struct wrk_pages *p);
/* Holds pages for n new rows at pos0.. (n <= chunk, pos0 + n <= the reservation)
 * and lets go of those no row from pos0 on can see. Allocates nothing. Errors:
 * RC_INTERNAL: the books are wrong. */
enum rc wrk_table_hold(struct wrk_table *t, struct wrk_pages *p, uint32_t pos0, uint32_t n,
                       struct rc_err *err);

#endif
