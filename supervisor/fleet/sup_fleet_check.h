/* sup_fleet_check.h - is what a worker says legal, now, in this shape?
 *
 * A worker may be taken over by a hostile model file or prompt: every frame is
 * judged here before anyone acts on it. Pure functions; a failure's message is for
 * the log. Tests: tests/supervisor/test_sup_fleet_check.c
 */
#ifndef INFERD_SUP_FLEET_CHECK_H
#define INFERD_SUP_FLEET_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "inferd.pb-c.h"
#include "ipc.h"
#include "rc.h"

/* States of a worker process, as bits. */
enum sup_worker_state {
    SUP_W_SPAWNING = 1, /* asked of the launcher, no channel yet */
    SUP_W_STARTING = 2, /* has a channel, no Ready yet */
    SUP_W_LOADING = 4,
    SUP_W_RUNNING = 8,
    SUP_W_DRAINING = 16,
    SUP_W_DYING = 32, /* killed or closed; nothing it says counts */
};

/* Frame against the table of states, and the contents of frames about the worker
 * itself (Ready, Progress, Loaded, Stats, Log). Errors: RC_STATE, RC_FORMAT. */
enum rc sup_check_frame(const Ipc__Frame *f, enum sup_worker_state state, struct rc_err *err);

/* What a task asked, to judge its answers by. */
struct sup_asked {
    Ipc__Frame__BodyCase kind;
    uint32_t n;          /* choices, inputs, documents, or most pieces */
    uint64_t max_tokens; /* per choice, Generate; of a piece, Chunk */
    uint32_t top_logprobs;
    size_t n_bytes;     /* Echo: length of the data; Chunk: code points of the text */
    uint64_t *finished; /* bit per choice, (n + 63) / 64 words; updated */
    uint64_t n_tokens;  /* seen so far, over all choices; updated */
    uint64_t n_deltas;
    bool logprobs, echo, tools, stream, cached; /* cached: may use the prompt cache */
    uint64_t n_prompt;                          /* tokens of the prompt, at most */
    uint64_t answer_bytes; /* packed bytes of the deltas seen so far; updated */
    /* Decide; n = inputs */
    uint32_t n_questions, dimensions;
    uint8_t n_choices[IPC_DECIDE_QUESTIONS];
    bool multi[IPC_DECIDE_QUESTIONS];
    unsigned outputs; /* Embed */
    /* Extract: the request without its texts, packed; and how many units (code points or bytes,
     * as it asked) each text has */
    uint8_t *shape;
    size_t n_shape;
    uint32_t *n_units;
};

/* All but `finished`, which the caller allocates (zeroed) for a Generate. False: no memory. */
bool sup_asked_from(struct sup_asked *a, const Ipc__Frame *request);
void sup_asked_deinit(struct sup_asked *a);
/* The same request from its beginning: what was seen of an answer is forgotten. */
void sup_asked_again(struct sup_asked *a);

/* An answer (Delta, Done, Vectors, Scores, ..., Error of a task). *out_last:
 * it ends the task. Errors: RC_STATE wrong kind, RC_FORMAT. */
enum rc sup_check_answer(struct sup_asked *a, const Ipc__Frame *f, const Ipc__Loaded *model,
                         bool *out_last, struct rc_err *err);

#endif
