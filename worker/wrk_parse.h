/* wrk_parse.h - what a model says, told apart: text, what it thinks, calls of tools.
 *
 * Sits between an answer's tokens and its Deltas. Control tokens come in as marks, by id,
 * so what is spelled in ordinary tokens is always text; everything between two marks comes
 * in as bytes, cut between characters. A call is told while it is written, its arguments as
 * JSON; one that is malformed, cut off, too long or one too many is given back as the text
 * it was written in, its marks spelled out, also when parts of it were told: those are then
 * said to be void. Knows nothing of sampling, stop strings or frames. Allocates at init only.
 * Page: docs/tools.md.
 * Source: gemma.md 13.2. Tests: tests/worker/test_wrk_parse.c, fuzz: fuzz_call.c
 */
#ifndef INFERD_WRK_PARSE_H
#define INFERD_WRK_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "wrk_call.h"

struct mdl_tok;

#define WRK_MARK_MAP(X)             \
    X(CHANNEL, "<|channel>")        \
    X(CHANNEL_END, "<channel|>")    \
    X(CALL, "<|tool_call>")         \
    X(CALL_END, "<tool_call|>")     \
    X(RESPONSE, "<|tool_response>") \
    X(QUOTE, "<|\"|>")

enum wrk_mark {
#define X(id, word) WRK_MARK_##id,
    WRK_MARK_MAP(X)
#undef X
        WRK_MARKS,
    WRK_MARK_NONE = -1
};
/* Inside a held call, and in grammars of calls, a mark is this byte plus its number: bytes
 * that UTF-8 never has. */
#define WRK_MARK_BYTE 0xf8u

struct wrk_marks {
    int32_t id[WRK_MARKS]; /* -1: the model has none */
};
void wrk_marks_find(struct wrk_marks *m, const struct mdl_tok *tok, uint32_t n_vocab);
enum wrk_mark wrk_marks_of(const struct wrk_marks *m, int32_t token);
const char *wrk_mark_word(enum wrk_mark m);

#define WRK_CALL_BYTES (256u << 10) /* of one call as the model wrote it, marks spelled */
#define WRK_CALLS_MAX 64u           /* begun in one answer */

/* How an answer is to be read. Zeroed: not at all. */
struct wrk_talk {
    bool think, calls;    /* told apart; false: such marks are what they were before */
    bool one_call;        /* the answer ends behind its first call */
    enum wrk_mark within; /* the prompt ended inside a thought (CHANNEL, its head written)
                             or a call (CALL); else WRK_MARK_NONE */
    struct wrk_marks marks;
};

struct wrk_parse_out {
    void *user;
    void (*text)(void *user, const char *s, size_t n);
    void (*thought)(void *user, const char *s, size_t n);
    /* A call begins. false: there is no room for it, so it is given back as text. */
    bool (*call)(void *user, const char *name, size_t n_name);
    /* The next piece of its arguments, a JSON object; whole characters. */
    void (*args)(void *user, const char *s, size_t n);
    /* It is over. Not whole: what was told is void, and given back as text behind this. */
    void (*called)(void *user, bool whole);
};

struct wrk_parse {
    const struct wrk_talk *talk;
    struct wrk_parse_out out;
    enum { WRK_SAYS, WRK_NAMES_CHANNEL, WRK_THINKS, WRK_CALLS } state;
    char head[16]; /* of a channel, while it could be "thought\n" */
    uint32_t n_head;
    bool newline; /* a thought's last one, held: it belongs to the end mark */
    bool lost;    /* what stands behind the mark is no call: it was given back */
    bool told;    /* the call's name is told */
    bool marked;  /* the call's own mark was in the answer, not in the prompt */
    uint32_t n_calls, n_whole;
    struct wrk_call call;
    char *raw;               /* the call at work, [WRK_CALL_BYTES] */
    size_t n_raw, n_spelled; /* n_spelled: as text */
};

/* talk is borrowed. Errors: RC_NOMEM. */
enum rc wrk_parse_init(struct wrk_parse *p, const struct wrk_talk *talk,
                       const struct wrk_parse_out *out, struct rc_err *err);
void wrk_parse_deinit(struct wrk_parse *p);
static inline bool wrk_parse_on(const struct wrk_talk *t)
{
    return t != NULL && (t->think || t->calls);
}
static inline bool wrk_parse_thinks(const struct wrk_parse *p)
{
    return p->state == WRK_THINKS || p->state == WRK_NAMES_CHANNEL;
}
/* The mark a token is, for this answer; WRK_MARK_NONE: its bytes count. */
enum wrk_mark wrk_parse_mark_of(const struct wrk_parse *p, int32_t token);
void wrk_parse_mark(struct wrk_parse *p, enum wrk_mark m);
void wrk_parse_bytes(struct wrk_parse *p, const char *s, size_t n); /* whole characters */
/* The answer is over. */
void wrk_parse_end(struct wrk_parse *p);

#endif
