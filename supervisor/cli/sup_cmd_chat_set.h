/* sup_cmd_chat_set.h - the settings of a conversation: what /set and the flags change.
 *
 * One table says name, flag, kind, range and help; a setting is kept as the JSON value
 * that the request will carry, so that what is shown is what is sent. Knows files (a
 * grammar, a schema) and no terminal. Tests: tests/supervisor/test_sup_cli_set.c
 */
#ifndef INFERD_SUP_CMD_CHAT_SET_H
#define INFERD_SUP_CMD_CHAT_SET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

/* X(JSON name, flag, kind, word for the value, min, max, help) */
#define SUP_CHAT_SETTINGS(X)                                                                       \
    X(temperature, "temperature", REAL, "X", 0, 2, "0 = always the likeliest token (default 0.7)") \
    X(top_p, "top-p", REAL, "X", 0, 1, "keep the likeliest tokens up to this sum; 0 or 1 = off")   \
    X(top_k, "top-k", NUM, "N", 0, 1000000, "keep this many likeliest tokens; 0 = off")            \
    X(min_p, "min-p", REAL, "X", 0, 1, "drop tokens below this share of the likeliest; 0 = off")   \
    X(typical_p, "typical-p", REAL, "X", 0, 1,                                                     \
      "keep the most typical tokens up to this sum; 0 or 1 = off")                                 \
    X(repetition_penalty, "repetition-penalty", REAL, "X", 0.01, 100,                              \
      "above 1 makes repeats rarer")                                                               \
    X(frequency_penalty, "frequency-penalty", REAL, "X", -2, 2,                                    \
      "above 0: less of what came often")                                                          \
    X(presence_penalty, "presence-penalty", REAL, "X", -2, 2, "above 0: less of what came at all") \
    X(seed, "seed", NUM, "N", 0, 9007199254740991, "the same seed gives the same answer")          \
    X(max_tokens, "max-tokens", NUM, "N", 1, 1048576, "longest answer (default 512)")              \
    X(stop, "stop", LIST, "TEXT", 1, 4096,                                                         \
      "the answer ends before this text; several: [\"A\", \"\\n\\n\"]")                            \
    X(logit_bias, "logit-bias", BIAS, "ID:X", -100, 100, "added to tokens' logits: 5:-100, 7:2.5") \
    X(ignore_eos, "ignore-eos", FLAG, NULL, 0, 1, "go on until max_tokens")                        \
    X(n, "n", NUM, "N", 1, 128, "so many answers to choose from; the talk goes on with the first") \
    X(response_format, "response-format", FORMAT, "json|FILE", 0, 0,                               \
      "the answer is JSON, or obeys the JSON Schema in this file")                                 \
    X(grammar, "grammar", FILE, "FILE", 0, 0, "the answer obeys the GBNF grammar in this file")    \
    X(regex, "regex", TEXT, "EXPR", 0, 0, "the answer obeys this regular expression")

enum sup_chat_setting {
#define X(f, flag, kind, arg, min, max, help) SUP_SET_##f,
    SUP_CHAT_SETTINGS(X)
#undef X
        SUP_SET_COUNT
};

enum sup_chat_kind {
    SUP_KIND_REAL,
    SUP_KIND_NUM,
    SUP_KIND_FLAG,
    SUP_KIND_LIST,
    SUP_KIND_BIAS,
    SUP_KIND_FORMAT,
    SUP_KIND_FILE,
    SUP_KIND_TEXT,
};

struct sup_chat_row {
    const char *name;
    enum sup_chat_kind kind;
    double min, max;
    const char *help;
};
extern const struct sup_chat_row sup_chat_rows[SUP_SET_COUNT];

struct sup_chat_set {
    json_t *v[SUP_SET_COUNT]; /* NULL = the default */
};

void sup_chat_set_deinit(struct sup_chat_set *s);
/* The setting of that name ('-' or '_' in it), or -1; err then names the nearest. */
int sup_chat_set_find(const char *name, size_t n, struct rc_err *err);
/* value as a person writes it; "default" resets. *s is untouched on error:
 * RC_INVALID names setting, value and what is expected; of files also the errors of
 * sup_file_read. */
enum rc sup_chat_set_put(struct sup_chat_set *s, int i, const char *value, struct rc_err *err);
/* The value for people, at most 63 bytes of ASCII; returns out. */
const char *sup_chat_set_text(const struct sup_chat_set *s, int i, char out[64]);
uint64_t sup_chat_set_num(const struct sup_chat_set *s, int i, uint64_t fallback);
/* Adds every setting that is no default to a request. False: out of memory. */
bool sup_chat_set_send(const struct sup_chat_set *s, json_t *body);

#endif
