/* sup_fields.h - a request body against a table of fields.
 *
 * One table per endpoint says name, type, range and default; sup_fields_read
 * turns a JSON object into one struct sup_val per row or into a message that
 * names field, value and expectation. Explicit null is the same as absent;
 * fields without a row are ignored. Also here: reading a body as JSON safely
 * (sup_body.c: bounded depth, bounded memory, position of the mistake).
 * Tests: tests/supervisor/test_sup_api_fields.c, tests/fuzz/fuzz_api.c
 */
#ifndef INFERD_SUP_FIELDS_H
#define INFERD_SUP_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sup_status.h"

#define SUP_BODY_DEPTH 32         /* nesting of a request body */
#define SUP_BODY_TREE (64u << 20) /* bytes its tree may take in memory; 1.3 million ids */
#define SUP_NAME_MAX 512          /* bytes of a model name */

enum sup_ftype {
    SUP_FT_STR, /* text; min..max bytes; NUL refused */
    SUP_FT_INT, /* integer in min..max; 3.0 counts as 3 */
    SUP_FT_NUM, /* number in min..max */
    SUP_FT_BOOL,
    SUP_FT_ENUM, /* one of words ("a|b|c") */
    SUP_FT_OBJECT,
    SUP_FT_ANY,    /* looked at by the endpoint itself */
    SUP_FT_REFUSE, /* a real feature that we do not have: anything but null or false */
};

/* def: shown in the documents; applied for INT, NUM and BOOL (BOOL: 0 or 1). */
struct sup_field {
    const char *name;
    enum sup_ftype type;
    bool required;
    double min, max, def;
    const char *words; /* ENUM: the words; REFUSE, ANY, OBJECT: what to say we expect */
};

/* A table in the form X(id, name, type, required, min, max, default, words), row by row. */
#define SUP_FIELD_ROW(id, name, type, req, min, max, def, words) \
    {(name), SUP_FT_##type, (req), (min), (max), (def), (words)},
#define SUP_FIELD_ID(id, name, type, req, min, max, def, words) id,

struct sup_val {
    bool set; /* present and not null */
    bool b;
    int64_t i;
    double f;
    const char *s; /* STR, ENUM: NUL-ended, borrowed from the tree */
    size_t n_bytes;
    json_t *j; /* the value itself, borrowed; NULL when not set */
};

/* Parses a body that must be one JSON object. NULL: *f says why. Caller decrefs. */
json_t *sup_body_parse(const char *body, size_t n_bytes, struct sup_fail *f);

/* vals has n_fields entries, all filled. false: *f says why. prefix ("" or
 * "stream_options.") goes in front of names in messages. */
bool sup_fields_read(const struct sup_field *fields, size_t n_fields, json_t *obj,
                     const char *prefix, struct sup_val *vals, struct sup_fail *f);

/* Keys that have no row make the object wrong. also: a key that is allowed beside the rows, or
 * NULL; prefix in front of names. */
bool sup_fields_known(const struct sup_field *rows, size_t n_rows, const char *also, json_t *obj,
                      const char *prefix, struct sup_fail *f);

/* "field 'x': got V, expected E" as INVALID_REQUEST. */
void sup_field_bad(struct sup_fail *f, const char *field, const json_t *got, const char *expected);

/* The field model_identity (of type ANY) into *out, borrowed; *out stays when it is not set. */
#define SUP_IDENTITY_WANT "64 lowercase hexadecimal digits"
bool sup_identity_read(const struct sup_val *v, char **out, struct sup_fail *f);

/* A list of token ids: integers from 0 to vocab_size - 1 (0 = unknown: 2^31 - 1).
 * field names it in messages. NULL and *f on error; caller frees. n >= 1. */
uint32_t *sup_ids_read(json_t *array, const char *field, uint32_t vocab_size, size_t *n_ids,
                       struct sup_fail *f);

/* A model name that could exist: 1..512 bytes, relative, no empty, "." or ".."
 * parts, no control characters. */
bool sup_model_name_ok(const char *name, size_t n_bytes);

#endif
