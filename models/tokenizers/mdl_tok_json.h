/* mdl_tok_json.h - what the parts of the tokenizer.json loader share. Private to
 * mdl_tok_json*.c. */
#ifndef INFERD_MDL_TOK_JSON_H
#define INFERD_MDL_TOK_JSON_H

#include "mdl_tok_impl.h"

#include <jansson.h>

/* A component as the file has it, and who loads it. */
struct tok_comp {
    const char *type;
    enum rc (*load)(struct mdl_tok *t, const json_t *j, struct rc_err *err);
};

const char *tok_json_type(const json_t *j); /* "(none)" when it has none */
enum rc tok_json_refuse(struct rc_err *err, const char *part, const char *name, const char *why);
/* A string of at most TOK_MAX_STR bytes into a fixed buffer. */
bool tok_json_fixed(const json_t *j, char *out, uint32_t *n);
bool tok_json_flag(const json_t *o, const char *key, bool otherwise);

/* Normalizers, pre-tokenizers and decoders into t; before the vocabulary. */
enum rc tok_json_steps(struct mdl_tok *t, const json_t *root, struct rc_err *err);
/* Templates of one text and of two; behind the vocabulary. p may be NULL. */
enum rc tok_json_post(struct mdl_tok *t, const json_t *p, struct rc_err *err);

#endif
