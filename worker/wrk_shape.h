/* wrk_shape.h - the grammars of a model's answers: between engine and grammar room.
 *
 * Gives the room the model's vocabulary (made when the first grammar comes: some
 * milliseconds a thousand tokens, once) and reads the fields of a Generate.
 * Page: docs/structured-output.md. Tests: tests/worker/test_wrk_engine_draw.c
 */
#ifndef INFERD_WRK_SHAPE_H
#define INFERD_WRK_SHAPE_H

#include "inferd.pb-c.h"
#include "mdl.h"
#include "wrk_gen.h"
#include "wrk_gr.h"

struct wrk_shapes {
    struct wrk_gr_store *store; /* NULL until a grammar comes */
    struct wrk_gr_vocab *vocab;
    const struct mdl_tok *tok;
    struct wrk_marks marks; /* of a model that calls tools or thinks; else none */
};
void wrk_shapes_deinit(struct wrk_shapes *s); /* after its runs and grammars */

/* g->grammar from m, for g as wrk_gen_init made it; stays NULL when m has none. A call that
 * must be made is a grammar too; so are, around one, the thought that may come first and
 * calls in its place. Errors: those of wrk_gr_hold; RC_INVALID: ignore_eos beside it. */
enum rc wrk_shape_take(struct wrk_shapes *s, struct wrk_gen *g, const Ipc__Generate *m,
                       const struct mdl *mdl, struct rc_err *err);
void wrk_shape_drop(struct wrk_shapes *s, struct wrk_gen *g);

/* Grammars that were compiled or refused so far. */
uint64_t wrk_shapes_compiled(const struct wrk_shapes *s);
/* NULL when no grammar has come yet. out keeps the numbers. */
Ipc__GrammarStats *wrk_shapes_stats(const struct wrk_shapes *s, Ipc__GrammarStats *out);

#endif
