/* mdl_gemma4_chat.h - private to Gemma 4's chat format: its control tokens, and the stretch
 * of text between two of them. */
#ifndef INFERD_MDL_GEMMA4_CHAT_H
#define INFERD_MDL_GEMMA4_CHAT_H

#include "mdl_gemma.h"

#define G4_TOKEN_MAP(X)                 \
    X(TURN, "<|turn>")                  \
    X(TURN_END, "<turn|>")              \
    X(THINK, "<|think|>")               \
    X(CHANNEL, "<|channel>")            \
    X(CHANNEL_END, "<channel|>")        \
    X(TOOL, "<|tool>")                  \
    X(TOOL_END, "<tool|>")              \
    X(CALL, "<|tool_call>")             \
    X(CALL_END, "<tool_call|>")         \
    X(RESPONSE, "<|tool_response>")     \
    X(RESPONSE_END, "<tool_response|>") \
    X(QUOTE, "<|\"|>")

enum g4_tok {
#define X(id, word) G4_##id,
    G4_TOKEN_MAP(X)
#undef X
        G4_TOKENS
};
const char *g4_word(enum g4_tok t);

/* What the last thing of a model's turn is. */
enum g4_tail { G4_TAIL_CLOSED, G4_TAIL_TEXT, G4_TAIL_CALL, G4_TAIL_ANSWER };

struct g4_chat {
    struct gemma_chat_out o;
    const struct mdl_chat_msg *msgs;
    size_t n_msgs, after_user; /* messages; index behind the last user's */
    size_t item;               /* the message at work, once started */
    bool started;
    const struct mdl_chat_opts *opts;
    enum g4_tail tail;
    enum rc rc;
    char *buf; /* text since the last control token */
    size_t n, cap;
    char where[124]; /* the place in the request that is written, for messages; its begin */
    size_t n_where;
};

/* The first failure sticks in c->rc; what comes after it does nothing. */
void g4_text(struct g4_chat *c, const char *s, size_t n);
void g4_str(struct g4_chat *c, const char *s);
void g4_token(struct g4_chat *c, enum g4_tok t);
void g4_fail(struct g4_chat *c, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* RC_INVALID */
/* The same, of the place in c->where. */
#define g4_fail_here(c, fmt, ...) \
    g4_fail((c), (c)->where, "%s: " fmt, (c)->where __VA_OPT__(, ) __VA_ARGS__)
/* The place becomes its member `key` (.key, or key itself at the top) or, where key is NULL,
 * its element i. What does not fit becomes "...". Returns what g4_leave takes. */
size_t g4_enter(struct g4_chat *c, const char *key, size_t i);
void g4_leave(struct g4_chat *c, size_t was);

/* mdl_gemma4_tool.c */
void g4_quoted(struct g4_chat *c, const char *s, size_t n); /* <|"|>text<|"|> */
/* The calls of the message that c->where is in: an array of {"id", "function": {"name",
 * "arguments"}}, checked; arguments an object, or the JSON text of one, which is parsed. NULL on
 * failure; caller json_decrefs. */
json_t *g4_calls_parse(struct g4_chat *c, const char *text, size_t n);
void g4_call(struct g4_chat *c, const json_t *call, size_t i); /* the i-th of its message */
/* Declarations: an array of {"type": "function", "function": {"name", ...}} as JSON text. */
void g4_tools(struct g4_chat *c, const char *text, size_t n);

#endif
