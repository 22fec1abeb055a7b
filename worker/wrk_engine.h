/* wrk_engine.h - the tasks of one loaded model and the steps that serve them.
 *
 * A continuous batcher: every step decodes one token of each running sequence and
 * gives the rest of the batch to prompts; embeddings run as bounded micro-batches
 * between steps; tokenizing is bounded per step. Tasks come and go between steps.
 * Each task ends with exactly one of Done, Vectors, Scores, Decided, Tokens, Text,
 * Chunks or Error.
 * One thread. Page: docs/worker.md. Tests: tests/worker/test_wrk_engine.c
 */
#ifndef INFERD_WRK_ENGINE_H
#define INFERD_WRK_ENGINE_H

#include "mdl.h"
#include "wrk_chan.h"

struct wrk_engine;

struct wrk_engine_opts {
    struct mdl *mdl;           /* borrowed */
    struct be_ctx *be;         /* borrowed; NULL in tests: no backend statistics */
    struct wrk_chan *chan;     /* borrowed */
    uint32_t max_seqs;         /* as given to mdl_open */
    uint32_t batch_tokens;     /* as given to mdl_open */
    uint32_t max_queue;        /* tasks held, running and waiting */
    uint64_t cache_bytes;      /* of KV pages the prompt cache may keep; 0 = none */
    uint32_t cache_min_tokens; /* prompts below this are neither looked up nor kept */
    uint32_t spec_most;        /* drafts of a sequence in a pass, at most WRK_SPEC_MOST; 0 = none.
                                  The model was opened with max_out = wrk_spec_rows(max_seqs) */
    struct mdl *drafter; /* borrowed, opened beside mdl; NULL: what was said before is looked up */
    bool has_root; /* root_fd is the model's folder (borrowed): calibrations may be read there */
    int root_fd;
    /* For measurements: all but the last rows of a prompt are made up and not computed, so that
     * answers behind a long one cost no prefill. Those answers mean nothing (wrk_fill.c). */
    bool fill_prompts;
    /* Reads what waits on the channel, called inside wrk_engine_step while a long
     * text is tokenized, so that cancels are heard; it may submit and cancel. Errors
     * end the worker, RC_AGAIN is none. NULL: nobody listens. */
    enum rc (*listen)(void *user, struct rc_err *err);
    void *listen_user;
};

#define WRK_QUEUE_BYTES (256ull << 20) /* of requests not yet tokenized */
#define WRK_EMBED_BUSY 256u            /* embedding rows of a step while others decode */

enum rc wrk_engine_new(struct wrk_engine **out, const struct wrk_engine_opts *o,
                       struct rc_err *err);
void wrk_engine_free(struct wrk_engine **e);

/* Takes a Generate, Embed, Rerank, Decide, Tokenize, Detokenize or Chunk frame, and its ownership in
 * every case. A full queue is answered on the channel (RC_BUSY). Errors: RC_STATE (task
 * 0, or a number in use: the front broke the protocol), those of the channel. */
enum rc wrk_engine_submit(struct wrk_engine *e, Ipc__Frame *f, struct rc_err *err);
/* Ends the task with RC_CANCELLED; unknown tasks are ignored (it may just have
 * ended). */
enum rc wrk_engine_cancel(struct wrk_engine *e, uint64_t task, struct rc_err *err);

/* The prompt cache's budget from now on. */
void wrk_engine_cache_budget(struct wrk_engine *e, uint64_t bytes);

/* Of the workspace beside the backend's: prototypes of decisions, rows of a pass that the model
 * gives for every token. */
uint64_t wrk_engine_bytes(const struct wrk_engine *e);
bool wrk_engine_busy(const struct wrk_engine *e);
/* One bounded step. Errors end the worker: those of the channel; RC_WEIGHT_IO (the
 * tasks were told). A task's own failure is answered and is no error here. */
enum rc wrk_engine_step(struct wrk_engine *e, struct rc_err *err);
/* Sends Stats if the last are older than min_us. */
enum rc wrk_engine_stats(struct wrk_engine *e, uint64_t min_us, struct rc_err *err);

uint64_t wrk_now_us(void); /* CLOCK_MONOTONIC */

#endif
