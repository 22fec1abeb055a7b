/* wrk_gr_store.h - private: programs and masks as they are kept.
 *
 * wrk_gr_store.c owns both; wrk_gr_run.c only holds and asks.
 */
#ifndef INFERD_WRK_GR_STORE_H
#define INFERD_WRK_GR_STORE_H

#include "wrk_gr_impl.h"

#define MASK_SLOTS 16384u /* chains of masks */
#define PROG_SLOTS 1024u

struct link {
    struct link *prev, *next;
};

struct wrk_gr_entry { /* a mask */
    struct link lru;  /* first */
    struct wrk_gr_entry *chain;
    struct wrk_gr_held *of;
    uint64_t hash;
    uint32_t refs, n_key, n;
    bool list, cut;
    size_t bytes;
    uint32_t *key;
    uint64_t data[];
};

struct wrk_gr_held { /* a program */
    struct link lru;
    struct wrk_gr_held *chain;
    struct wrk_gr_prog *prog;
    enum wrk_gr_kind kind;
    uint64_t hash;
    uint32_t refs, n_masks;
    size_t n_text, bytes;
    char *text;
    uint32_t *start, n_start; /* where every run begins, flat */
};

struct wrk_gr_store {
    const struct wrk_gr_vocab *vocab;
    struct gr_mach mach;
    struct link masks, progs; /* rings: oldest first */
    struct wrk_gr_entry *mask_slot[MASK_SLOTS];
    struct wrk_gr_held *prog_slot[PROG_SLOTS];
    size_t mask_bytes, prog_bytes;
    uint64_t *bits;
    uint32_t words[GR_SAVE_MAX];
    struct wrk_gr_stats stats;
};

/* The mask of the place in s->words (n_key of them) under h, found or computed. */
enum rc gr_mask_get(struct wrk_gr_store *s, struct wrk_gr_held *h, uint32_t n_key,
                    struct wrk_gr_entry **out, struct rc_err *err);
/* Gives up what is over the limit and nobody uses. */
void gr_masks_trim(struct wrk_gr_store *s);

#endif
