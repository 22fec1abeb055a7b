/* wrk_pass.h - one pass of an encoder over items of all waiting tasks: who is in it, how it ends.
 *
 * What a kind of task makes of it is a struct wrk_pass_kind (wrk_embed_pass.c, wrk_ext_pass.c).
 * Page: docs/worker.md. Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c,
 * test_wrk_engine_extract.c
 */
#ifndef INFERD_WRK_PASS_H
#define INFERD_WRK_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

struct wrk_engine;
struct wrk_task;

struct wrk_pick {
    struct wrk_task *task; /* NULL: ended since it was chosen */
    void *item;            /* of that task: an input, or a window of one */
};

struct wrk_pass {
    struct wrk_pick *pick; /* [cap] */
    uint32_t cap, n, n_rows;
    uint32_t turn;      /* which task is asked first */
    uint32_t n_running; /* picks, while the model runs */
    uint64_t look_us;   /* when to hear the channel next */
    enum rc fatal;      /* of the channel, heard between layers */
    struct rc_err err;
};

struct wrk_pass_kind {
    const char *doing; /* as a client reads it whose time was over */
    /* Has the task items of this kind? */
    bool (*has)(const struct wrk_task *t);
    /* Adds items of the task to the pass with wrk_pass_add, as long as they fit. */
    void (*choose)(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows);
    /* Has the model compute all picks. Errors: the pass's. */
    enum rc (*run)(struct wrk_engine *e, struct rc_err *why);
    /* The item will be chosen again; alone: by itself. */
    void (*put_back)(struct wrk_pick *p, bool alone);
    /* What the pass gave to its i-th pick, or with why->code its failure. Errors: the task's. */
    enum rc (*give)(struct wrk_engine *e, uint32_t i, struct rc_err *why);
};

enum rc wrk_pass_init(struct wrk_engine *e, uint32_t cap, struct rc_err *err);
void wrk_pass_deinit(struct wrk_engine *e);
/* May the task have items in a pass now? One whose next file is just being decoded has its turn
 * later: it may end then. */
bool wrk_pass_waits(const struct wrk_engine *e, const struct wrk_task *t,
                    const struct wrk_pass_kind *k);
/* Does an item of so many rows fit beside those that were added? The first always does. */
bool wrk_pass_fits(const struct wrk_pass *p, uint32_t n_rows, uint32_t max_rows);
void wrk_pass_add(struct wrk_pass *p, struct wrk_task *t, void *item, uint32_t n_rows);
/* Asked between layers (user: the engine): shall the pass end? Hears the channel now and then. */
bool wrk_pass_look(void *user);
/* One pass, if anybody waits; e->pass.n says how many items it took. Errors: the channel's. */
enum rc wrk_pass_step(struct wrk_engine *e, const struct wrk_pass_kind *k, uint32_t max_rows,
                      struct rc_err *err);

#endif
