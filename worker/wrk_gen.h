/* wrk_gen.h - one Generate request, checked and tokenized.
 *
 * The front checked already; everything is checked again here, because this
 * process is the one that would suffer. Messages name the field as the API does.
 * Tests: tests/worker/test_wrk_engine_texts.c
 */
#ifndef INFERD_WRK_GEN_H
#define INFERD_WRK_GEN_H

#include "inferd.pb-c.h"
#include "mdl.h"
#include "mdl_tok.h"
#include "wrk_gr.h"
#include "wrk_parse.h"
#include "wrk_radix.h"
#include "wrk_sample.h"
#include "wrk_spec.h"
#include "wrk_stop.h"

#define WRK_CHOICES_MAX 128

struct wrk_gen {
    struct mdl_ids prompt;
    uint32_t n_prompt, max_new; /* max_new: clipped to the context */
    struct wrk_sampling sampling;
    struct wrk_stops stops;
    uint32_t n, n_top;
    bool logprobs, echo, ignore_eos, ids_wanted, stream;
    char *echo_text;             /* what echo gives back */
    struct mdl_detok echo_detok; /* where it ends: maybe inside a character */
    size_t n_echo;
    bool cached;                  /* may share and leave pages in the prompt cache, */
    uint8_t ns[WRK_NS_BYTES];     /* in this namespace */
    struct wrk_radix_owner owner; /* whose it is */
    uint32_t *echo_offset;        /* code points before each prompt token; echo + logprobs */
    struct wrk_talk talk;         /* how the answer is to be read (wrk_parse.h) */
    struct wrk_gr_held *grammar;  /* what the answer must obey, or NULL (wrk_shape.c) */
    enum wrk_spec_mode spec;      /* 0 = the engine's (wrk_ahead.c) */
    uint32_t spec_most;           /* 0 = the engine's */

    /* progress */
    uint32_t n_started, n_done, n_tokens;
    uint32_t n_cached;         /* prompt tokens that the prompt cache had */
    uint32_t n_right, n_wrong; /* drafts that were tokens of the answer, and those that were not */
    uint64_t start_us, first_us; /* 0 = not yet */
};

/* Fills *g (zeroed by the caller) from m. Errors: RC_INVALID, RC_TOO_LARGE (prompt
 * over the context: err->n tokens, err->limit), RC_UNSUPPORTED, RC_NOMEM. The
 * caller deinits in either case. */
enum rc wrk_gen_init(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl *mdl,
                     struct rc_err *err);
void wrk_gen_deinit(struct wrk_gen *g);

#endif
