/* sup_cmd_chat.h - shared by the files of `inferd chat`, for nobody else. */
#ifndef INFERD_SUP_CMD_CHAT_H
#define INFERD_SUP_CMD_CHAT_H

#include "sup_cmd_chat_set.h"
#include "sup_common.h"
#include "sup_talk.h"

struct sup_turn {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    double first_s, total_s, rate; /* rate: tokens/s behind the first */
    char finish[24];
};

/* Texts that go in front of the next question. */
struct sup_chat_files {
    char *text; /* or NULL */
    uint64_t n_tok;
};

struct sup_chat {
    const struct sup_args *args;
    struct sup_client *client;
    struct sup_talk talk;
    char *model;
    uint64_t ctx_tokens; /* 0 = not known yet */
    struct sup_chat_set set;
    bool tty, quiet, json, warm; /* warm: the model has answered before */
    bool quit;
    struct sup_chat_files files;
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
/* The longest answer that a request asks for. */
uint64_t sup_chat_max_tokens(const struct sup_chat *c);
void sup_chat_stats_line(const struct sup_turn *t, char *out, size_t cap);

#endif
