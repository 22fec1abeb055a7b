/* sup_talk.h - a conversation that fits its model's context.
 *
 * Holds messages in order: an optional system text, then user and assistant in
 * turns. Knows what each cost in tokens (told by the server's usage, estimated
 * before that) and drops the oldest turn when the next answer would not fit.
 * Pure but for memory. Tests: tests/supervisor/test_sup_cli_talk.c
 */
#ifndef INFERD_SUP_TALK_H
#define INFERD_SUP_TALK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_TALK_MAX_BYTES (8u << 20) /* of all texts: half of the default max_body_bytes */
#define SUP_TALK_MAX_MESSAGES 20000   /* of a saved conversation */

struct sup_talk_msg {
    char *text;
    bool user; /* else the assistant */
    uint64_t n_tok;
};

struct sup_talk {
    char *system; /* or NULL */
    uint64_t system_tok;
    struct sup_talk_msg *msg;
    size_t n, cap, n_bytes;
};

void sup_talk_deinit(struct sup_talk *t);
/* Forgets the turns, keeps the system text. */
void sup_talk_clear(struct sup_talk *t);
/* NULL or "" removes it. False: out of memory. */
bool sup_talk_set_system(struct sup_talk *t, const char *text);
bool sup_talk_add(struct sup_talk *t, bool user, const char *text);
/* Takes the newest message back. */
void sup_talk_pop(struct sup_talk *t);
/* Corrects the costs after an answer was added: prompt = tokens of all before it. */
void sup_talk_settle(struct sup_talk *t, uint64_t prompt_tokens, uint64_t completion_tokens);
uint64_t sup_talk_tokens(const struct sup_talk *t);
/* Drops the oldest question with its answer; false when only the newest is left. */
bool sup_talk_drop_oldest(struct sup_talk *t);
/* Drops turns until everything and max_tokens more fit ctx_tokens (0 = unknown).
 * Returns how many turns went. */
unsigned sup_talk_fit(struct sup_talk *t, uint64_t ctx_tokens, uint64_t max_tokens);
/* The "messages" array; NULL when out of memory. */
json_t *sup_talk_json(const struct sup_talk *t);
/* A conversation from the text of a saved one: {"inferd_chat": 1, "messages": [...]},
 * other members are passed over. *t is replaced on success, untouched otherwise.
 * Errors: RC_FORMAT names the place and what is expected there; RC_TOO_LARGE;
 * RC_NOMEM. Fuzzed by tests/fuzz/fuzz_talk.c. */
enum rc sup_talk_parse(struct sup_talk *t, const char *s, size_t n, struct rc_err *err);
/* The text that sup_talk_parse reads; model is written for people. NULL when out of
 * memory; caller frees. */
char *sup_talk_text(const struct sup_talk *t, const char *model);

#endif
