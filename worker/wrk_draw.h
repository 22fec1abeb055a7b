/* wrk_draw.h - the tokens of a pass that a device draws itself.
 *
 * A request is drawn on the device when it asks for nothing but greedy or temperature,
 * top_k, top_p and min_p, and has no grammar or is greedy: then its logits never leave it. That is
 * decided per request, by its own settings alone, so an answer does not depend on who shares the
 * pass; a row the device gives back is drawn by the host from the same state of the request's
 * generator. The largest of all logits is the largest of those a grammar allows if it allows it;
 * where it does not, the host looks at the row. With a backend that cannot draw nothing here does
 * anything. Tests: tests/worker/test_wrk_engine_draw.c
 */
#ifndef INFERD_WRK_DRAW_H
#define INFERD_WRK_DRAW_H

#include "mdl.h"
#include "wrk_gen.h"

struct wrk_draws {
    bool can;                  /* the backend draws */
    bool any;                  /* in this pass */
    struct be_sample_row *row; /* of each wanted row */
    bool *on;
    int32_t *id;
    struct wrk_rng *before, *after; /* the generators around each draw: some rows are not taken */
    uint64_t n_drawn;
};
/* cap: wanted rows of a pass. Errors: RC_NOMEM. */
enum rc wrk_draws_init(struct wrk_draws *d, const struct mdl *mdl, uint32_t cap,
                       struct rc_err *err);
void wrk_draws_deinit(struct wrk_draws *d);

void wrk_draws_begin(struct wrk_draws *d);
/* Row k of the pass is not to be drawn, or is the next token of a request: rows of one
 * request in the order of its tokens, taken in that order or not at all. */
void wrk_draws_skip(struct wrk_draws *d, uint32_t k);
void wrk_draws_add(struct wrk_draws *d, uint32_t k, const struct wrk_gen *g, struct wrk_rng *rng);
/* After mdl_decode with logits NULL. */
enum rc wrk_draws_run(struct wrk_draws *d, struct mdl *mdl, uint32_t n, struct rc_err *err);
/* The token of row k, and *rng behind its draw; false: the host draws it, and *rng is what it
 * was before. mask: what the request's grammar allows, or NULL. */
bool wrk_draws_take(struct wrk_draws *d, uint32_t k, const struct wrk_gr_mask *mask,
                    struct wrk_rng *rng, int32_t *out);

#endif
