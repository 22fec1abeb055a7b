/* sup_extract.h - between the files of extraction.
 *
 * sup_extract.c has the fields and the order of things, sup_extract_parts.c the tasks that go out,
 * sup_extract_schema.c turns a schema into the worker's message and a plan, sup_extract_out.c a
 * worker's findings into an answer by that plan. Page: docs/extract.md. Tests: tests/supervisor/test_sup_api_extract.c
 */
#ifndef INFERD_SUP_EXTRACT_H
#define INFERD_SUP_EXTRACT_H

#include "sup_call.h"
#include "sup_items.h"

/* How findings are told: as /ai/v1/extract, or in the words of older routes. */
enum sup_extract_form { SUP_EXTRACT_ALL, SUP_EXTRACT_RECOGNIZE, SUP_EXTRACT_CLASSIFY };

struct sup_extract_opts {
    float threshold;
    bool flat, bytes;       /* of the worker's task */
    bool confidence, spans; /* of records in the answer */
};

struct sup_extract_input {
    json_t *id; /* held; NULL = none */
    struct sup_extract_opts opts;
    uint32_t schema;
    struct sup_json out; /* its entry of data[]; empty: it failed */
};

/* Inputs of the same options are one task. */
struct sup_extract_part {
    uint32_t *at; /* [n] index in the request */
    uint32_t n;
    bool answered;
};

struct sup_extract {
    struct sup_call call;
    /* [{"entities": [NAME], "relations": [{"i", "type", "source"?, "target"?}], "classes":
     * [{"name", "labels": [NAME]}], "records": [{"name", "fields": [{"name", "list"}]}]}]; held */
    json_t *plans;
    struct sup_extract_input *inputs; /* [n_inputs] */
    uint32_t n_inputs, n_sent;
    struct sup_extract_part *parts; /* [call.n_parts] */
    uint32_t n_parts;
    bool per_item;
    enum sup_extract_form form;
    char identity[64 + 1], had_identity[64 + 1];
    uint64_t n_tokens;
    struct sup_item_errors errors;
    struct sup_json out;
};

/* What an older route calls the parts of a schema, for messages; "" = a part that it makes itself.
 */
struct sup_extract_words {
    const char *whole, *entities, *relations, *classes;
};

/* A checked schema: *msg of the call's memory, texts borrowed from the tree; its plan is appended
 * to plans. name: the schema's, for messages; words: of its parts, NULL = its own keys. strict:
 * unknown keys are errors. */
bool sup_extract_schema(struct sup_call *c, json_t *obj, const char *name,
                        const struct sup_extract_words *words, bool strict, Ipc__ExtractSchema *msg,
                        json_t *plans, struct sup_fail *f);
/* Texts with one schema for all: what an older route's request comes down to. obj is borrowed. */
bool sup_extract_texts(struct sup_extract *e, json_t *texts, json_t *obj,
                       const struct sup_extract_words *words, const struct sup_extract_opts *opts,
                       struct sup_fail *f);
void sup_extract_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr);
void sup_extract_finish(struct sup_call *c);
void sup_extract_deinit(struct sup_call *c);
/* A part's findings into the entries of its inputs. false: *f. */
bool sup_extract_found(struct sup_extract *e, struct sup_extract_part *part,
                       const Ipc__Extracted *w, struct sup_fail *f);
/* The answer into e->out. */
void sup_extract_answer(struct sup_extract *e);

#endif
