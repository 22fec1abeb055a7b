/* wrk_extract.h - extraction by schema: words, prompts, and what a model's scores mean.
 *
 * A schema becomes prompts, a text becomes words; a model (mdl_extract) scores every span of a few
 * words for every field of every prompt; reading turns scores into entities, relations, classes and
 * records. A text of more words than a window holds is read in windows that overlap, and what they
 * say is merged. Here are the parts that know no task and no channel; wrk_ext_task.c puts them
 * together. The rules are those of the reference (encoders.md 6); page: docs/models/gliner2.md.
 * Tests: tests/worker/test_wrk_extract.c, test_wrk_extract_golden.c; fuzz: fuzz_extract.c
 */
#ifndef INFERD_WRK_EXTRACT_H
#define INFERD_WRK_EXTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc.h"
#include "mdl.h"
#include "rc.h"

/* ----------------------------------------------------------------------- words */

struct wrk_word {
    uint32_t start, end; /* of the text, code points, half open */
    uint32_t at, to;     /* the same in bytes */
};
struct wrk_words {
    struct wrk_word *w;
    size_t n, cap;
    uint32_t n_points; /* of the whole text */
};
/* The words of a text, left to right: URLs, addresses, @names, runs of word characters joined by -
 * and _, and every other character that is no space, by itself. As Python's re finds them with
 *   https?://[^\s]+|www\.[^\s]+ | [a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,} | @[a-z0-9_]+
 *   | \w+(?:[-_]\w+)* | \S
 * ignoring case; in time that grows with the text, not faster. Errors: RC_INVALID not UTF-8 (err->n
 * the byte), RC_CANCELLED as the tokenizer's, RC_NOMEM. out: zeroed, or used before. */
enum rc wrk_words_split(const char *text, size_t n_bytes, const struct mdl_tok_stop *stop,
                        struct wrk_words *out, struct rc_err *err);
void wrk_words_deinit(struct wrk_words *w);

/* Python's str.lower of a piece of valid UTF-8, to *out (grown; *cap bytes of room), *n_out bytes.
 * RC_NOMEM. */
enum rc wrk_lower(const char *s, size_t n, char **out, size_t *cap, size_t *n_out,
                  struct rc_err *err);
bool wrk_is_space(uint32_t cp); /* Python's str.isspace */
/* Without the spaces around it. */
void wrk_strip(const char **s, size_t *n);

/* -------------------------------------------------------------------- patterns */

/* The validators of a field, compiled. */
struct wrk_patterns;
enum rc wrk_patterns_new(struct wrk_patterns **out, Ipc__ExtractPattern *const *p, size_t n,
                         struct rc_err *err);
void wrk_patterns_free(struct wrk_patterns **p);
/* Do all accept the text? NULL: yes. RC_TOO_LARGE: a pattern took more steps or memory than one may
 * (what is said of it then is neither yes nor no). stop, or NULL, is asked before each of them:
 * RC_CANCELLED. */
enum rc wrk_patterns_accept(struct wrk_patterns *p, const char *s, size_t n,
                            const struct mdl_tok_stop *stop, bool *accepts, struct rc_err *err);

/* ---------------------------------------------------------------------- schema */

/* Bounds, names, duplicates, thresholds. Errors: RC_INVALID and RC_TOO_LARGE name the field of the
 * schema and what is wrong with it. */
enum rc wrk_schema_check(const Ipc__ExtractSchema *s, struct rc_err *err);

/* A schema as a model takes it: ids of its prompts, where their marks are, its choice words. */
enum wrk_prompt_kind { WRK_RECORDS, WRK_ENTITIES, WRK_RELATIONS, WRK_CLASSES };
struct wrk_prompt {
    enum wrk_prompt_kind kind;
    uint32_t of; /* of a record, a relation, a task: which of the schema */
};
struct wrk_choice {
    uint32_t prompt, field; /* of the schema's prompts */
    uint32_t idx;           /* in the field's choices */
    uint32_t word;          /* whose score is its own */
};
struct wrk_schema {
    const Ipc__ExtractSchema *s; /* borrowed */
    uint32_t n_prompts, n_marks;
    struct wrk_prompt *prompt;
    struct mdl_extract_prompt *ask; /* [n_prompts] */
    uint32_t *marks;                /* [n_marks], rows of ids */
    struct mdl_ids ids;             /* prompts, [SEP_TEXT], choice words */
    uint32_t n_prefix;              /* choice words */
    uint32_t *prefix;               /* [n_prefix + 1], rows of ids */
    struct wrk_choice *choice;      /* of a field together, in its order */
    uint32_t n_choices;
    struct wrk_patterns **patterns; /* [n_fields of all records], NULL = none */
};
/* Items one by one, as the reference tokenizes them; max_ids: RC_TOO_LARGE, err->n and err->limit,
 * beyond. The schema was checked. */
enum rc wrk_schema_new(struct wrk_schema **out, const Ipc__ExtractSchema *s,
                       const struct mdl_tok *tok, const struct mdl_tok_stop *stop, size_t max_ids,
                       struct rc_err *err);
void wrk_schema_free(struct wrk_schema **s);

/* --------------------------------------------------------------------- windows */

#define WRK_WINDOW_WORDS 384u
#define WRK_WINDOW_OVERLAP 64u

/* How much of a text a window holds. */
struct wrk_window_size {
    uint32_t words, overlap;
};
/* Windows that a text of n words is read in, and the i-th of them: its first word and how many. */
uint32_t wrk_windows(uint32_t n_words, const struct wrk_window_size *z);
void wrk_window(uint32_t n_words, const struct wrk_window_size *z, uint32_t i, uint32_t *first,
                uint32_t *n);

/* A text as one call of a model takes it: with a dot behind it when it ends in none of .!? */
struct wrk_view {
    char *text; /* owned */
    size_t n_bytes;
    bool dotted;
    uint32_t at0, point0; /* where it begins in the document, in bytes and in code points */
    struct wrk_words w;   /* offsets from its own start; the dot may be the last word */
    struct mdl_ids ids;   /* of the words */
    uint32_t *row;        /* [w.n + 1], rows of ids */
};
/* The view of n_bytes of a document, a whole text (max_words 0) or a window of it, cut behind
 * max_words words; text is read for the call only. Errors: those of splitting and of the tokenizer;
 * RC_TOO_LARGE over max_ids tokens, with both numbers. */
enum rc wrk_view_init(struct wrk_view *v, const char *text, size_t n_bytes, uint32_t max_words,
                      const struct mdl_tok *tok, const struct mdl_tok_stop *stop, size_t max_ids,
                      struct rc_err *err);
void wrk_view_deinit(struct wrk_view *v);

/* --------------------------------------------------------------------- reading */

struct wrk_span {
    float score;
    bool placed;         /* false: a choice */
    bool dotted;         /* ends with the dot that was put behind the text */
    uint32_t choice;     /* not placed: index in the field's choices */
    uint32_t start, end; /* code points, of the view or, merged, of the document; end may be one
                            beyond it: the dot */
    uint32_t at, to;     /* the same in bytes */
};
struct wrk_entity {
    uint32_t label;
    struct wrk_span span;
};
struct wrk_relation { /* ids come first in all of these (wrk_finds_merge) */
    uint32_t relation;
    struct wrk_span head, tail;
};
struct wrk_value { /* of a field; one with no spans has none of these */
    uint32_t field;
    struct wrk_span span;
};
struct wrk_record {
    uint32_t record, from, n; /* value[from .. from + n) */
};
struct wrk_class {
    uint32_t task, label;
    float score;
};
/* Growing lists; zeroed is empty. What was found in a window, or in all of them. */
struct wrk_finds {
    struct wrk_entity *entity;
    struct wrk_relation *relation;
    struct wrk_record *record;
    struct wrk_value *value;
    struct wrk_class *cls;
    size_t n_entities, n_relations, n_records, n_values, n_classes;
    size_t cap_entities, cap_relations, cap_records, cap_values, cap_classes;
};
void wrk_finds_deinit(struct wrk_finds *f);

#define WRK_FINDS_MAX (1u << 18) /* of each list, in one text: RC_TOO_LARGE beyond */

/* Adds one; RC_TOO_LARGE, RC_NOMEM. */
enum rc wrk_finds_entity(struct wrk_finds *f, const struct wrk_entity *x, struct rc_err *err);
enum rc wrk_finds_relation(struct wrk_finds *f, const struct wrk_relation *x, struct rc_err *err);
enum rc wrk_finds_record(struct wrk_finds *f, const struct wrk_record *x, struct rc_err *err);
enum rc wrk_finds_value(struct wrk_finds *f, const struct wrk_value *x, struct rc_err *err);
enum rc wrk_finds_class(struct wrk_finds *f, const struct wrk_class *x, struct rc_err *err);

/* Reads what mdl_extract says of one view. Zeroed but for the first five. */
struct wrk_reader {
    const struct wrk_schema *schema;
    const struct wrk_view *view;
    float threshold; /* where a label or field names none */
    struct wrk_finds *out;
    const struct mdl_tok_stop *stop; /* asked between validators, RC_CANCELLED; or NULL */
    /* its own */
    struct wrk_cell *cell; /* of one field, those above its threshold */
    size_t n, cap;
    uint8_t *taken; /* [words of the view] */
    bool any;       /* the record in the making has a value */
    uint32_t from;  /* ... and its values begin here */
    bool has_head;
    struct wrk_span head;
};
void wrk_reader_deinit(struct wrk_reader *r);
enum rc wrk_read_classes(struct wrk_reader *r, uint32_t prompt, const float *logits,
                         struct rc_err *err);
/* logits [words of prefix and view, width]; instances and fields in order. */
enum rc wrk_read_field(struct wrk_reader *r, uint32_t prompt, uint32_t instance, uint32_t field,
                       const float *logits, uint32_t width, struct rc_err *err);

/* Of n entities those that overlap no better one, where they stood; *out_n: how many. RC_NOMEM. */
enum rc wrk_entities_thin(struct wrk_entity *e, size_t n, size_t *out_n, struct rc_err *err);

/* What n windows of a document found, as one: offsets of the document, things of a label, relation
 * and record together. flat: entities of different
 * labels do not overlap either, the better one stays. in[] may be spent. */
enum rc wrk_finds_merge(struct wrk_finds *out, struct wrk_finds *in, const struct wrk_view *views,
                        uint32_t n, const struct wrk_schema *s, const char *text, size_t n_bytes,
                        bool flat, struct rc_err *err);

#endif
