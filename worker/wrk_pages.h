/* wrk_pages.h - who holds which page of the KV cache.
 *
 * Pages are numbers per class (be.h); this file deals them out. A sequence
 * reserves its worst case when it is admitted, so a running sequence can always
 * finish: nothing that was admitted ever waits for pages. Pages are assigned just
 * before a pass and, in windowed classes, given back behind the window.
 * Single-threaded. Tests: tests/worker/test_wrk_pages.c
 */
#ifndef INFERD_WRK_PAGES_H
#define INFERD_WRK_PAGES_H

#include "mdl.h"

struct wrk_pages {
    uint32_t page_tokens, n_classes;
    uint32_t chunk; /* most new rows of one sequence in one pass */
    struct {
        uint32_t n_pages, window;
        uint64_t page_bytes;
        uint32_t n_free, n_reserved;
        int32_t *free; /* a stack of n_free page numbers */
    } cls[BE_KV_CLASSES];
};

/* A sequence's view: entry[c][i] is the page of positions i * page_tokens.., -1
 * where none is held; entries [from, to) are held. */
struct wrk_table {
    int32_t *entry[BE_KV_CLASSES];
    uint32_t n_entries; /* per class */
    uint32_t from[BE_KV_CLASSES], to[BE_KV_CLASSES];
    uint32_t n_tokens; /* the reservation */
};

/* No sequence is longer than ctx_tokens. chunk is lowered where a class is too
 * small for it (at least 1). Errors: RC_NOMEM, RC_LIMIT when a windowed class
 * cannot hold one row. */
enum rc wrk_pages_init(struct wrk_pages *p, const struct mdl_kv_geometry *g, uint32_t ctx_tokens,
                       uint32_t chunk, struct rc_err *err);
void wrk_pages_deinit(struct wrk_pages *p);

/* Most pages of class c that a sequence of n_tokens holds at any time. */
uint32_t wrk_pages_need(const struct wrk_pages *p, uint32_t c, uint32_t n_tokens);
/* RC_LIMIT, with numbers, when n_tokens could not be held even alone. */
enum rc wrk_pages_check(const struct wrk_pages *p, uint32_t n_tokens, struct rc_err *err);

/* Reserves the worst case of n_tokens and makes the table. Errors: RC_BUSY (not
 * now; nothing was reserved), RC_NOMEM. */
enum rc wrk_table_open(struct wrk_table *t, struct wrk_pages *p, uint32_t n_tokens,
                       struct rc_err *err);
/* Gives everything back. Accepts a zeroed table. */
void wrk_table_close(struct wrk_table *t, struct wrk_pages *p);
/* Holds pages for n new rows at pos0.. (n <= chunk, pos0 + n <= the reservation)
 * and lets go of those no row from pos0 on can see. Allocates nothing. Errors:
 * RC_INTERNAL: the books are wrong. */
enum rc wrk_table_hold(struct wrk_table *t, struct wrk_pages *p, uint32_t pos0, uint32_t n,
                       struct rc_err *err);
/* Bytes of pages held by all sequences. */
uint64_t wrk_pages_used_bytes(const struct wrk_pages *p);

#endif
