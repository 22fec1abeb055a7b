/* wrk_decide_impl.h - private to Decide tasks: what one holds, and the parts of its life. */
#ifndef INFERD_WRK_DECIDE_IMPL_H
#define INFERD_WRK_DECIDE_IMPL_H

#include "wrk_decide.h"
#include "wrk_engine_impl.h"

#define WRK_NO_TEXT UINT32_MAX

struct wrk_asked {
    const Ipc__DecideQuestion *q;
    uint8_t hash[WRK_SET_HASH_BYTES];
    struct wrk_proto *set;
    uint32_t first; /* of its prototypes' texts in this round, WRK_NO_TEXT = none */
    struct wrk_accept accept;
};

struct wrk_decide {
    Ipc__Frame *frame; /* the request, owned */
    size_t frame_bytes;
    const Ipc__Decide *m;
    uint32_t n_inputs, n_questions, dim;
    const char *task_type; /* in force */
    const char *prefix_of; /* what tokenizing is told: task_type, or "" */
    struct wrk_asked *asked;
    float *state;    /* [n_inputs, n_questions, dim] unit vectors */
    bool has_states; /* the first round is over */
    uint64_t n_tokens;
    struct rc_err failed; /* code OK = not */
};

/* --- wrk_decide_check.c: shape and bounds of a request. Errors: RC_INVALID, RC_TOO_LARGE with
 * both numbers. */
enum rc wrk_decide_check(const Ipc__Decide *m, struct rc_err *why);

/* --- wrk_decide_answer.c: rules on a task that has all vectors, and sends its Decided. */
enum rc wrk_decide_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err);

#endif
