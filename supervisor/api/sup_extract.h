/* sup_extract.h - between the files of extraction.
 *
 * sup_extract.c has the fields and the order of things, sup_extract_schema.c turns a schema into
 * the worker's message and a plan, sup_extract_out.c a worker's findings into an answer by
 * that plan. Page: docs/extract.md. Tests: tests/supervisor/test_sup_api_extract.c
 */
#ifndef INFERD_SUP_EXTRACT_H
#define INFERD_SUP_EXTRACT_H

#include "sup_call.h"
#include "sup_items.h"

#define SUP_EXTRACT_NAMES 8192u /* labels, fields, choices and types of one schema */

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
    char identity[64 + 1], had_identity[64 + 1];
    uint64_t n_tokens;
    struct sup_item_errors errors;
    struct sup_json out;
};

/* A checked schema: *msg of the call's memory, texts borrowed from the tree; its plan is appended
 * to plans. strict: unknown keys are errors. prefix ends with a dot. */
bool sup_extract_schema(struct sup_call *c, json_t *obj, const char *prefix, bool strict,
                        Ipc__ExtractSchema *msg, json_t *plans, struct sup_fail *f);
/* A part's findings into the entries of its inputs. false: *f. */
bool sup_extract_found(struct sup_extract *e, struct sup_extract_part *part,
                       const Ipc__Extracted *w, struct sup_fail *f);
/* The answer into e->out. */
void sup_extract_answer(struct sup_extract *e);

#endif
