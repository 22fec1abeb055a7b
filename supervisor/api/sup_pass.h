/* sup_pass.h - which models have shown a forward pass, for /readyz?model=ID.
 *
 * A worker that has loaded a model has not yet computed with it. A model counts as ready
 * when its present worker has answered out of a forward pass: one that a client asked for,
 * or, when there was none, a small one that the probe itself starts. A probe never waits:
 * it is answered from what is known and starts what is missing, one pass at a time a model.
 * A probe loads nothing and, once the pass is made, keeps no idle model from being unloaded.
 * One thread (the loop's). Tests: tests/supervisor/test_sup_pass.c
 */
#ifndef INFERD_SUP_PASS_H
#define INFERD_SUP_PASS_H

#include <stdbool.h>

#include "inferd.pb-c.h"
#include "rc.h"

#define SUP_PASS_MODELS 1024    /* remembered; the longest unasked is forgotten */
#define SUP_PASS_RETRY_MS 5000  /* between a failed pass and the next attempt */
#define SUP_PASS_LIMIT_MS 60000 /* of one pass that a probe has started */

struct sup_front;
struct sup_model_view;
struct sup_pass;

/* Zeroed memory is a valid, empty list. */
struct sup_passes {
    struct sup_pass *first;
    unsigned n;
};

/* A worker has answered a client's task with this frame. */
void sup_pass_note(struct sup_front *front, const char *model_id, const Ipc__Frame *fr);
/* A client's task has failed. */
void sup_pass_failed(struct sup_front *front, const char *model_id, const struct rc_err *err);
/* Has v's worker shown a pass? false: *why says why not (borrowed until the next call). */
bool sup_pass_ready(struct sup_front *front, const struct sup_model_view *v, const char **why);
/* Before the fleet is freed: cancels what runs. */
void sup_passes_deinit(struct sup_passes *p);

#endif
