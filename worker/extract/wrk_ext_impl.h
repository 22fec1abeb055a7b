/* wrk_ext_impl.h - private to Extract tasks: their inputs and windows, from request to answer.
 *
 * wrk_ext_task.c reads requests, wrk_ext_pass.c runs micro-batches of windows, wrk_ext_send.c
 * writes the answer.
 */
#ifndef INFERD_WRK_EXT_IMPL_H
#define INFERD_WRK_EXT_IMPL_H

#include "wrk_engine_impl.h"
#include "wrk_extract.h"

#define WRK_EXTRACT_TOKENS_MAX (4u << 20) /* of all windows of one task, schemas included */
#define WRK_EXTRACT_SEQS 256u             /* windows of one pass, at most */

struct wrk_ext_window {
    uint32_t item; /* of the task */
    struct wrk_view view;
    struct wrk_finds finds;
    uint64_t n_spans; /* of finds, once the window is done */
    bool done;
    bool alone; /* a pass with it failed: it is run by itself, to see whether it was this */
    struct rc_err failed; /* code OK = not: what reading its scores came to */
};

struct wrk_ext_item {
    uint32_t first, n_windows, n_left; /* its windows; not yet run */
    uint32_t n_tokens;
    bool failed;
    struct wrk_finds finds; /* of all its windows, once they are done */
};

struct wrk_extract {
    const Ipc__Extract *q;      /* of the task's frame */
    uint32_t n, n_read, n_done; /* inputs; made windows of; done or failed */
    struct wrk_schema **schema; /* [q->n_schemas] */
    struct wrk_ext_item *item;
    struct wrk_ext_window **window;
    uint32_t n_windows, cap_windows, next; /* next: first not yet run */
    uint64_t n_tokens;
    uint64_t n_spans, n_held; /* of inputs that are done; of the other inputs' windows */
    /* the input being read */
    struct wrk_words words;
    uint32_t n_cut; /* of its windows */
    bool is_split;
    struct rc_err *bad; /* failures of items: item = index */
    uint32_t n_bad, cap_bad;
};

/* --- wrk_ext_task.c */
const struct wrk_schema *wrk_ext_schema(const struct wrk_extract *x, uint32_t item);
/* A failure of one input: the task's, unless it asked for item errors. */
enum rc wrk_ext_item_failed(struct wrk_extract *x, uint32_t item, struct rc_err *why);
/* A window is done: merges an input whose last one it was. Errors: the input's; RC_TOO_LARGE when
 * all that was found for the request is more than an answer may hold. */
enum rc wrk_ext_window_done(struct wrk_extract *x, struct wrk_ext_window *w, struct rc_err *why);

/* --- wrk_ext_send.c */
enum rc wrk_ext_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err);

#endif
