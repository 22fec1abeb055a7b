/* wrk_gr_prog.h - what the files that finish a program share. */
#ifndef INFERD_WRK_GR_PROG_H
#define INFERD_WRK_GR_PROG_H

#include "wrk_gr_impl.h"

/* Items by key: those of key k are item[at[k] .. at[k + 1]), in their order. */
struct gr_index {
    uint32_t *at, *item;
};
/* key[i] < n_keys, or GR_NONE: item i is left out. false: no memory. */
bool gr_index(struct gr_index *x, uint32_t n_keys, const uint32_t *key, uint32_t n);
void gr_index_deinit(struct gr_index *x);

/* An edge that may be taken without reading. */
bool gr_reads_nothing(const struct gr_nedge *e, const bool *nullable);
/* Which rules may read nothing: nullable[r] for each, all false before. */
void gr_find_nullable(struct gr_build *b, bool *nullable);

/* Fills need, tail and plain; refuses what begins with itself or never ends. */
void gr_check(struct gr_build *b, struct wrk_gr_prog *p);

#endif
