/* wrk_gr_json.h - private: JSON Schema to trees, what its four files share. */
#ifndef INFERD_WRK_GR_JSON_H
#define INFERD_WRK_GR_JSON_H

#include <jansson.h>

#include "wrk_gr_impl.h"

#define SC_DEPTH 64u       /* schemas inside schemas */
#define SC_PROPERTIES 400u /* of one object */
#define SC_ENUM 65536u     /* values */
#define SC_KEY_BYTES 256u  /* of a property's name where others are allowed too */

struct sc_path { /* lives on the C stack */
    const struct sc_path *up;
    const char *key; /* NULL: idx */
    size_t idx;
};

struct sc {
    struct gr_build *b;
    json_t *root;
    json_t *made; /* an array that owns schemas made by merging */
    const struct sc_path *path;
    uint32_t depth;
    struct sc_memo {
        const json_t *schema;
        uint32_t rule;
    } * memo; /* open addressing; schema NULL: free */
    uint32_t n_memo, memo_cap;
    /* trees and rules of JSON itself, GR_NONE until wanted */
    uint32_t chr, space, string, number, value, object, array;
    bool calls; /* not JSON: the arguments of a call (wrk_gr_calls.c) */
};
#define SC_INIT(build)                                                                        \
    {                                                                                         \
        .b = (build), .chr = GR_NONE, .space = GR_NONE, .string = GR_NONE, .number = GR_NONE, \
        .value = GR_NONE, .object = GR_NONE, .array = GR_NONE                                 \
    }

/* "schema at #/properties/a": the place looked at, its end if it is long. user: struct sc. */
void sc_locate(const void *user, char *out, size_t cap);
/* jansson bounds neither nesting: 64 schemas are at most some 200 levels. */
bool sc_too_deep(const char *text, size_t n);
void sc_fail(struct sc *c, enum rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The tree of a schema that stands at key (or number idx) of the one looked at. */
uint32_t sc_schema(struct sc *c, json_t *schema, const char *key, size_t idx);

/* ---- JSON itself (wrk_gr_json.c) */
uint32_t sc_space(struct sc *c);  /* optional */
uint32_t sc_char(struct sc *c);   /* of a string */
uint32_t sc_string(struct sc *c); /* calls of rules */
uint32_t sc_number_any(struct sc *c);
uint32_t sc_integer_any(struct sc *c);
uint32_t sc_value(struct sc *c);
uint32_t sc_object_any(struct sc *c);
uint32_t sc_array_any(struct sc *c);
uint32_t sc_comma(struct sc *c);
/* `{`, members as of gr_members from kids[3] on, `}`. kids[0..2] are filled here. */
uint32_t sc_braces(struct sc *c, uint32_t *kids, uint32_t n);
/* `[`, items (GR_NONE: none), `]`; may_be_empty: with none too. */
uint32_t sc_brackets(struct sc *c, uint32_t items, bool may_be_empty);
/* A value spelt out. */
uint32_t sc_literal(struct sc *c, const json_t *v);
uint32_t sc_digits(struct sc *c, uint32_t min, uint32_t max);

/* ---- the same in calls (wrk_gr_calls.c) */
uint32_t sc_quote(struct sc *c); /* what stands around a string, in JSON too */
uint32_t sc_raw_char(struct sc *c);
uint32_t sc_raw_key(struct sc *c, const char *key);
uint32_t sc_raw_literal(struct sc *c, const json_t *v);

/* ---- types (wrk_gr_number.c, wrk_gr_object.c, wrk_gr_string.c) */
uint32_t sc_integer(struct sc *c, json_t *schema);
uint32_t sc_number(struct sc *c, json_t *schema);
uint32_t sc_object(struct sc *c, json_t *schema);
uint32_t sc_array(struct sc *c, json_t *schema);
uint32_t sc_text(struct sc *c, json_t *schema);
/* A keyword that counts: its value, or def when absent. least: it is a lower bound. */
uint32_t sc_count(struct sc *c, json_t *schema, const char *key, uint32_t def, bool least);

/* ---- several schemas at once (wrk_gr_merge.c) */
/* A schema that holds where both hold, without $ref and allOf; NULL and c->b->rc. */
json_t *sc_merge(struct sc *c, json_t *a, json_t *b);
/* Where "#..." leads, NULL and c->b->rc. */
json_t *sc_resolve(struct sc *c, const char *ref);
/* Can nothing that is made for a satisfy b? false: cannot tell. */
bool sc_apart(struct sc *c, json_t *a, json_t *b, unsigned depth);
/* *out: -1, 0, 1: a below, at, above b, exactly. false and c->b->rc: it cannot be told. */
bool sc_compare(struct sc *c, const json_t *a, const json_t *b, int *out);
/* Does v satisfy the schema's plain keywords? Fails by name where it cannot tell. */
bool sc_holds(struct sc *c, json_t *schema, json_t *v);

enum sc_type {
    SC_OBJECT = 1,
    SC_ARRAY = 2,
    SC_STRING = 4,
    SC_NUMBER = 8,
    SC_INTEGER = 16,
    SC_BOOLEAN = 32,
    SC_NULL = 64,
    SC_ALL = SC_OBJECT | SC_ARRAY | SC_STRING | SC_NUMBER | SC_BOOLEAN | SC_NULL,
};
/* What `type` allows, or, without it, what the other keywords speak of. */
unsigned sc_types(struct sc *c, json_t *schema);
enum sc_kind { SC_K_NOTE, SC_K_ANY, SC_K_TYPED, SC_K_REFUSED };
struct sc_word {
    const char *name;
    enum sc_kind kind;
    unsigned types; /* SC_K_TYPED: what it speaks of */
};
/* NULL: no keyword of JSON Schema. */
const struct sc_word *sc_word(const char *name);

#endif
