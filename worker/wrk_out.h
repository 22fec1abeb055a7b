/* wrk_out.h - the text of one choice on its way to the front.
 *
 * Tokens go in; whole UTF-8 characters, stop strings removed, come out as Delta
 * frames. Text that could begin a stop string is held until decided; a token's
 * log-probability travels no earlier than its text. Streaming sends what is
 * decided after each step; otherwise text is gathered into large pieces. Where the model
 * thinks and calls tools (talk), wrk_parse.h tells these apart; stop strings, and offsets of
 * log-probabilities, are of the text alone. Streaming sends a call while it is written;
 * one that turns out to be none is said to be void, and its text follows. Otherwise only
 * calls that are whole are sent.
 * All memory is made by wrk_out_init: pushing and sending allocate nothing.
 * Tests: tests/worker/test_wrk_engine.c (text_ends_as_it_should)
 */
#ifndef INFERD_WRK_OUT_H
#define INFERD_WRK_OUT_H

#include "mdl.h"
#include "wrk_chan.h"
#include "wrk_parse.h"
#include "wrk_sample.h"
#include "wrk_stop.h"

#define WRK_DELTA_PROBS 32                          /* most TokenProbs of one Delta */
#define WRK_OUT_GATHER (32u << 10)                  /* bytes gathered when not streaming */
#define WRK_OUT_CALLS (WRK_CALL_JSON + (64u << 10)) /* bytes of calls between two sends */
#define WRK_OUT_CALL_PIECE (32u << 10)              /* most of a call's arguments in one Delta */

/* Room to build one Delta; shared by all choices of a worker. */
struct wrk_delta {
    Ipc__TokenProb prob[WRK_DELTA_PROBS], *prob_ptr[WRK_DELTA_PROBS];
    Ipc__TopProb top[WRK_DELTA_PROBS * WRK_TOP_MAX], *top_ptr[WRK_DELTA_PROBS * WRK_TOP_MAX];
};

struct wrk_prob {
    int32_t token;
    bool has_logprob;
    float logprob;
    uint32_t offset;     /* code points before the token */
    uint64_t start, end; /* bytes of text before and after it */
};

struct wrk_out {
    const struct mdl_tok *tok;
    const struct wrk_stops *stops;
    uint64_t task;
    uint32_t index, n_top;
    bool stream, logprobs, ids_wanted;
    const struct wrk_talk *talk; /* NULL: all is text */

    struct mdl_detok detok;
    struct wrk_stop_state stop;
    bool stopped; /* a stop string completed */
    char *text;
    size_t n_text, n_held, cap_text; /* the last n_held bytes are undecided */
    uint64_t n_sent;                 /* bytes sent before text[0] */
    uint32_t n_points;               /* code points so far, echo included */
    struct wrk_prob *prob;
    struct wrk_top *top; /* n_top per prob */
    uint32_t n_prob, cap_prob;
    uint32_t *ids;
    uint32_t n_ids, cap_ids;

    struct wrk_parse parse; /* with talk, and what it told since the last send: */
    char *think;
    size_t n_think, cap_think;
    char *calls;                 /* [WRK_OUT_CALLS]: name and arguments of each */
    size_t n_calls_bytes, n_fed; /* n_fed: bytes of text in all */
    uint32_t n_calls, n_think_tokens;
    uint32_t n_begun; /* calls so far that the front hears of */
    bool text_behind; /* the text stands behind the calls: it gives one back */
    struct wrk_out_call {
        uint32_t index, n_name, n_args; /* n_name 0: it goes on */
        bool ended, broken;
    } call[WRK_CALLS_MAX];
};

/* o's fields tok .. ids_wanted are set by the caller; stops is borrowed. */
enum rc wrk_out_init(struct wrk_out *o, uint32_t max_tokens, struct rc_err *err);
void wrk_out_deinit(struct wrk_out *o);

/* One generated token, with its log-probability (top: n_top entries) if wanted.
 * end_token: ends the answer, has no text. Sets o->stopped. */
void wrk_out_push(struct wrk_out *o, int32_t token, bool end_token, float logprob,
                  const struct wrk_top *top);
/* Sends what is due after a step. finish: 0 going on, 1 stop (told as 3
 * when tools were called), 2 length. */
enum rc wrk_out_send(struct wrk_out *o, struct wrk_delta *scratch, struct wrk_chan *c,
                     uint32_t finish, struct rc_err *err);

/* Echo: the prompt's text first, with what was pushed so far, then - with
 * logprobs - its tokens in order, some per call; has_logprob is false for the
 * first. At most WRK_DELTA_PROBS may wait for a send. */
enum rc wrk_out_echo(struct wrk_out *o, struct wrk_delta *scratch, struct wrk_chan *c,
                     const char *text, size_t n_bytes, struct rc_err *err);
void wrk_out_push_prompt(struct wrk_out *o, int32_t token, bool has_logprob, float logprob,
                         const struct wrk_top *top, uint32_t offset);
enum rc wrk_out_send_prompt(struct wrk_out *o, struct wrk_delta *scratch, struct wrk_chan *c,
                            struct rc_err *err);

/* Code points of valid UTF-8. */
uint32_t wrk_out_points(const char *s, size_t n_bytes);

#endif
