/* sup_cmd_chat.h - shared by the files of `inferd chat`, for nobody else. */
#ifndef INFERD_SUP_CMD_CHAT_H
#define INFERD_SUP_CMD_CHAT_H

#include "sup_cmd_chat_file.h"
#include "sup_common.h"
#include "sup_talk.h"

/* What /set and the flags change: X(JSON name, whole number, min, max, help) */
#define SUP_CHAT_SETTINGS(X)                                                               \
    X(temperature, false, 0, 2, "0 = always the likeliest token (default 0.7)")            \
    X(top_p, false, 0, 1, "keep the likeliest tokens up to this sum; 0 or 1 = off")        \
    X(top_k, true, 0, 1000000, "keep this many likeliest tokens; 0 = off")                 \
    X(min_p, false, 0, 1, "drop tokens below this share of the likeliest; 0 = off")        \
    X(typical_p, false, 0, 1, "keep the most typical tokens up to this sum; 0 or 1 = off") \
    X(repetition_penalty, false, 0.01, 100, "above 1 makes repeats rarer")                 \
    X(frequency_penalty, false, -2, 2, "above 0: less of what came often")                 \
    X(presence_penalty, false, -2, 2, "above 0: less of what came at all")                 \
    X(seed, true, 0, 9007199254740991, "the same seed gives the same answer")              \
    X(max_tokens, true, 1, 1048576, "longest answer (default 512)")

enum sup_chat_setting {
#define X(f, whole, min, max, help) SUP_SET_##f,
    SUP_CHAT_SETTINGS(X)
#undef X
        SUP_SET_COUNT
};

struct sup_chat_row {
    const char *name;
    bool whole;
    double min, max;
    const char *help;
};
extern const struct sup_chat_row sup_chat_rows[SUP_SET_COUNT];

struct sup_turn {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    double first_s, total_s, rate; /* rate: tokens/s behind the first */
    char finish[24];
};

struct sup_chat {
    const struct sup_args *args;
    struct sup_client *client;
    struct sup_talk talk;
    char *model;
    uint64_t ctx_tokens; /* 0 = not known yet */
    struct {
        bool set;
        double value;
    } set[SUP_SET_COUNT];
    bool tty, quiet, json, warm; /* warm: the model has answered before */
    bool quit;
    char *file;                 /* a text that goes in front of the next question, or NULL */
    char *again, *again_answer; /* of /retry: the question to ask, the answer it had */
    struct sup_turn last;
    uint64_t n_turns, sum_prompt, sum_completion;
};

/* Asks the newest question of c->talk and prints the answer as it comes. On return
 * the conversation is in order again, whatever happened. RC_OK also when Ctrl-C
 * stopped the answer (*stopped). */
enum rc sup_chat_ask(struct sup_chat *c, bool *stopped, struct rc_err *err);
/* Attaches a text file to the next question; false with a message on stderr. */
bool sup_chat_attach(struct sup_chat *c, const char *path);
/* A line that begins with '/'. Prints to stderr. False: it could not be done. */
bool sup_chat_slash(struct sup_chat *c, const char *line);
/* Name ('-' or '_') and value of a setting; false with a message on stderr. */
bool sup_chat_set(struct sup_chat *c, const char *name, const char *value);
void sup_chat_stats_line(const struct sup_turn *t, char *out, size_t cap);

#endif
