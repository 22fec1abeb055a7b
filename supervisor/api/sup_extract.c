/* sup_extract.c - POST /ai/v1/extract: entities, relations, classes and records of texts.
 *
 * All is checked before anything is worked on; with error_policy per_item a bad text is an entry
 * of errors[] (a bad schema or option never is). Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_content.h"
#include "sup_endpoints.h"
#include "sup_front.h"

#define THRESHOLD 0.3
#define INPUTS_WANT "a non-empty array of {\"content\", \"id\"?}"
#define ID_MAX_BYTES 1024

#define FIELDS(X)                                                           \
    X(F_INPUTS, "inputs", ANY, true, 0, 0, 0, INPUTS_WANT)                  \
    X(F_SCHEMA, "schema", ANY, false, 0, 0, 0, "an object")                 \
    X(F_OPTIONS, "options", OBJECT, false, 0, 0, 0, NULL)                   \
    X(F_VERSION, "schema_version", INT, false, 1, 2, 1, NULL)               \
    X(F_POLICY, "error_policy", ENUM, false, 0, 0, 0, "fail_fast|per_item") \
    X(F_IDENTITY, "model_identity", ANY, false, 0, 0, 0, SUP_IDENTITY_WANT)

#define OPTION_FIELDS(X)                                              \
    X(O_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)            \
    X(O_FLAT, "flat_ner", BOOL, false, 0, 1, 1, NULL)                 \
    X(O_CONFIDENCE, "include_confidence", BOOL, false, 0, 1, 0, NULL) \
    X(O_SPANS, "include_spans", BOOL, false, 0, 1, 0, NULL)           \
    X(O_OFFSETS, "offsets", ENUM, false, 0, 0, 0, "codepoints|bytes") \
    X(O_READER, "reader", REFUSE, false, 0, 0, 0, "pictures are not read, send their text")

#define INPUT_FIELDS(X)                                                   \
    X(I_CONTENT, "content", ANY, true, 0, 0, 0, "a string or text parts") \
    X(I_ID, "id", STR, false, 0, ID_MAX_BYTES, 0, NULL)                   \
    X(I_TOKENS, "tokens", ANY, false, 0, 0, 0, NULL)                      \
    X(I_METADATA, "metadata", OBJECT, false, 0, 0, 0, NULL)               \
    X(I_SCHEMA, "schema", ANY, false, 0, 0, 0, "an object")               \
    X(I_OPTIONS, "options", OBJECT, false, 0, 0, 0, NULL)

enum { FIELDS(SUP_FIELD_ID) F_N };
enum { OPTION_FIELDS(SUP_FIELD_ID) O_N };
enum { INPUT_FIELDS(SUP_FIELD_ID) I_N };
static const struct sup_field fields[F_N] = {FIELDS(SUP_FIELD_ROW)},
                              of_options[O_N] = {OPTION_FIELDS(SUP_FIELD_ROW)},
                              of_input[I_N] = {INPUT_FIELDS(SUP_FIELD_ROW)};

/* ------------------------------------------------------------------ options */

/* What is set replaces what is in *o. */
static bool read_options(struct sup_extract_reading *r, json_t *obj, const char *prefix,
                         struct sup_extract_opts *o)
{
    struct sup_val v[O_N];

    if ((r->strict && !sup_fields_known(of_options, O_N, NULL, obj, prefix, r->f)) ||
        !sup_fields_read(of_options, O_N, obj, prefix, v, r->f))
        return false;
    if (v[O_THRESHOLD].set)
        o->threshold = (float)v[O_THRESHOLD].f;
    if (v[O_FLAT].set)
        o->flat = v[O_FLAT].b;
    if (v[O_CONFIDENCE].set)
        o->confidence = v[O_CONFIDENCE].b;
    if (v[O_SPANS].set)
        o->spans = v[O_SPANS].b;
    if (v[O_OFFSETS].set)
        o->bytes = v[O_OFFSETS].s[0] == 'b';
    return true;
}

/* ------------------------------------------------------------------- inputs */

static bool add_schema(struct sup_extract_reading *r, json_t *obj, const char *name, uint32_t *idx)
{
    Ipc__ExtractSchema *msg;

    if (r->n_schemas == IPC_EXTRACT_SCHEMAS) {
        sup_fail_set(r->f, SUP_E_CONTENT_TOO_LARGE, name,
                     "field '%s': more than %u schemas in one request, expected fewer: send inputs "
                     "of different schemas in several requests",
                     name, IPC_EXTRACT_SCHEMAS);
        return false;
    }
    if (!(msg = sup_call_alloc(&r->e->call, sizeof(*msg))))
        return sup_fail_no_memory(r->f);
    *idx = (uint32_t)r->n_schemas;
    r->schemas[r->n_schemas++] = msg;
    return sup_extract_schema(&r->e->call, obj, name, r->words, r->strict, msg, r->e->plans, r->f);
}

/* What an input has of its own; with_schema: the request has one for all. */
static bool own_rules(struct sup_extract_reading *r, const struct sup_val *v, const char *name,
                      bool with_schema, struct sup_extract_input *in)
{
    char prefix[64];

    if (!r->strict && (v[I_SCHEMA].set || v[I_OPTIONS].set)) {
        snprintf(prefix, sizeof(prefix), "%s.%s", name, v[I_SCHEMA].set ? "schema" : "options");
        sup_fail_set(r->f, SUP_E_INVALID_REQUEST, prefix,
                     "field '%s': inputs have rules of their own with schema_version 2", prefix);
        return false;
    }
    snprintf(prefix, sizeof(prefix), "%s.options.", name);
    if (v[I_OPTIONS].set && !read_options(r, v[I_OPTIONS].j, prefix, &in->opts))
        return false;
    snprintf(prefix, sizeof(prefix), "%s.schema", name);
    if (v[I_SCHEMA].set)
        return add_schema(r, v[I_SCHEMA].j, prefix, &in->schema);
    if (with_schema)
        return true;
    sup_fail_set(r->f, SUP_E_INVALID_REQUEST, prefix,
                 "field '%s': missing, and the request has no 'schema' for all", prefix);
    return false;
}

static bool refuse_tokens(struct sup_extract_reading *r, const struct sup_val *v, const char *name)
{
    if (!v->set || (json_is_array(v->j) && json_array_size(v->j) == 0))
        return true;
    sup_fail_set(r->f, SUP_E_UNSUPPORTED_FEATURE, name,
                 "field '%s.tokens': models here read no words with boxes, send 'content' alone",
                 name);
    return false;
}

/* true also for a bad text that is an entry of errors[]. */
static bool one_text(struct sup_extract_reading *r, uint32_t i, json_t *content, const char *name)
{
    if (sup_content_text(&r->e->call, content, name, SUP_E_INVALID_REQUEST, true, &r->texts[i],
                         r->f)) {
        r->e->n_sent++;
        return true;
    }
    r->part_of[i] = UINT32_MAX;
    return sup_item_bad(&r->e->errors, r->e->per_item, i, IPC_STAGE_PARSE, r->f);
}

static bool one_input(struct sup_extract_reading *r, uint32_t i, json_t *j, bool with_schema)
{
    struct sup_extract_input *in = &r->e->inputs[i];
    struct sup_val v[I_N];
    char name[32], prefix[48];

    snprintf(name, sizeof(name), "inputs[%u]", i);
    snprintf(prefix, sizeof(prefix), "%s.", name);
    if (!json_is_object(j)) {
        sup_field_bad(r->f, name, j, "an object {\"content\", \"id\"?}");
        return false;
    }
    if ((r->strict && !sup_fields_known(of_input, I_N, NULL, j, prefix, r->f)) ||
        !sup_fields_read(of_input, I_N, j, prefix, v, r->f) ||
        !refuse_tokens(r, &v[I_TOKENS], name) || !own_rules(r, v, name, with_schema, in) ||
        !sup_extract_part_find(r, &in->opts, &r->part_of[i]))
        return false;
    if (v[I_ID].set)
        in->id = json_incref(v[I_ID].j);
    snprintf(prefix, sizeof(prefix), "%s.content", name);
    return one_text(r, i, v[I_CONTENT].j, prefix);
}

static bool count_inputs(struct sup_extract_reading *r, json_t *list, const char *name,
                         const char *want)
{
    const uint64_t said = r->e->call.front->conf->max_embed_inputs,
                   max = said < IPC_EXTRACT_INPUTS ? said : IPC_EXTRACT_INPUTS;
    size_t n = json_array_size(list);

    if (n == 0) {
        sup_field_bad(r->f, name, list, want);
        return false;
    }
    if (n > max) {
        sup_fail_set(r->f, SUP_E_CONTENT_TOO_LARGE, name,
                     "field '%s': got %zu inputs, expected at most %llu", name, n,
                     (unsigned long long)max);
        return false;
    }
    r->e->n_inputs = (uint32_t)n;
    r->e->inputs = calloc(n, sizeof(*r->e->inputs));
    r->e->plans = json_array();
    r->schemas = sup_call_alloc(&r->e->call, (n + 1) * sizeof(*r->schemas));
    r->texts = sup_call_alloc(&r->e->call, n * sizeof(*r->texts));
    r->part_of = sup_call_alloc(&r->e->call, n * sizeof(*r->part_of));
    return (r->e->inputs && r->e->plans && r->schemas && r->texts && r->part_of) ||
           sup_fail_no_memory(r->f);
}

static bool read_inputs(struct sup_extract_reading *r, const struct sup_val *v)
{
    struct sup_extract_opts all = {.threshold = (float)THRESHOLD, .flat = true, .bytes = r->strict};
    json_t *list = v[F_INPUTS].j;
    bool shared = v[F_SCHEMA].set;
    uint32_t zero;

    if (!count_inputs(r, list, "inputs", INPUTS_WANT))
        return false;
    if (!shared && !r->strict) {
        sup_fail_set(r->f, SUP_E_INVALID_REQUEST, "schema",
                     "field 'schema': missing, expected an object");
        return false;
    }
    if ((shared && !add_schema(r, v[F_SCHEMA].j, "schema", &zero)) ||
        (v[F_OPTIONS].set && !read_options(r, v[F_OPTIONS].j, "options.", &all)))
        return false;
    for (uint32_t i = 0; i < r->e->n_inputs; i++) {
        r->e->inputs[i].opts = all;
        if (!one_input(r, i, json_array_get(list, i), shared)) {
            r->f->err.item = (int32_t)i;
            r->f->err.stage = IPC_STAGE_PARSE;
            return false;
        }
    }
    return true;
}

/* -------------------------------------------------------------------- whole */

bool sup_extract_texts(struct sup_extract *e, json_t *texts, json_t *obj,
                       const struct sup_extract_words *words, const struct sup_extract_opts *opts,
                       struct sup_fail *f)
{
    struct sup_extract_reading r = {.e = e, .f = f, .words = words};
    uint32_t zero;
    char one[32];

    if (!count_inputs(&r, texts, "texts", "a non-empty array of strings") ||
        !add_schema(&r, obj, words->whole, &zero))
        return false;
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        e->inputs[i].opts = *opts;
        snprintf(one, sizeof(one), "texts[%u]", i);
        if (!sup_extract_part_find(&r, opts, &r.part_of[i]) ||
            !one_text(&r, i, json_array_get(texts, i), one)) {
            f->err.item = (int32_t)i;
            f->err.stage = IPC_STAGE_PARSE;
            return false;
        }
    }
    return sup_extract_submit(&r, NULL);
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_extract *e = (struct sup_extract *)c;
    struct sup_extract_reading r = {.e = e, .f = f, .strict = v[F_VERSION].i == 2};
    char *identity = NULL;

    e->per_item = v[F_POLICY].set && strcmp(v[F_POLICY].s, "per_item") == 0;
    if (!sup_identity_read(&v[F_IDENTITY], &identity, f) || !read_inputs(&r, v))
        return false;
    snprintf(e->identity, sizeof(e->identity), "%s", identity ? identity : "");
    return sup_extract_submit(&r, identity);
}

void sup_extract_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_extract *e = (struct sup_extract *)c;
    struct sup_fail f;

    if (fr->body_case == IPC__FRAME__BODY_EXTRACTED &&
        !sup_extract_found(e, &e->parts[part], fr->extracted, &f))
        sup_call_fail(c, &f);
}

void sup_extract_finish(struct sup_call *c)
{
    struct sup_extract *e = (struct sup_extract *)c;

    sup_extract_answer(e);
    sup_call_reply(c, &e->out);
}

void sup_extract_deinit(struct sup_call *c)
{
    struct sup_extract *e = (struct sup_extract *)c;

    for (uint32_t i = 0; e->inputs && i < e->n_inputs; i++) {
        json_decref(e->inputs[i].id);
        sup_json_deinit(&e->inputs[i].out);
    }
    for (uint32_t p = 0; e->parts && p < e->n_parts; p++)
        free(e->parts[p].at);
    free(e->inputs);
    free(e->parts);
    json_decref(e->plans);
    sup_json_deinit(&e->errors.out);
    sup_json_deinit(&e->out);
}

const struct sup_call_ops sup_extract_ops = {
    .size = sizeof(struct sup_extract),
    .need = SUP_NEED_EXTRACT,
    .fields = fields,
    .n_fields = F_N,
    .start = start,
    .frame = sup_extract_frame,
    .finish = sup_extract_finish,
    .deinit = sup_extract_deinit,
};
