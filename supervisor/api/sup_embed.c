/* sup_embed.c - POST /v1/embeddings, /ai/v1/embeddings, /ai/v1/embed.
 *
 * Input is text or token ids, one or many. With error_policy per_item a bad input
 * becomes an entry of errors[] and its neighbours are answered; otherwise the
 * first bad one fails the request and is named. Row k of the worker's answer is
 * input at[k] of the request. A large answer is a million numbers: they go straight
 * into one buffer. Tests: tests/supervisor/test_sup_api_embed.c
 */
#include "sup_endpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_front.h"
#include "sup_gen.h"

#define TASK_TYPES                                                             \
    "RETRIEVAL_DOCUMENT|RETRIEVAL_QUERY|QUESTION_ANSWERING|FACT_VERIFICATION|" \
    "CODE_RETRIEVAL_QUERY|SEMANTIC_SIMILARITY|CLASSIFICATION|CLUSTERING"
#define INPUT_WANT "a non-empty string, an array of strings, of token ids or of arrays of token ids"

#define EMBED_FIELDS(X)                                                         \
    X(INPUT, "input", ANY, false, 0, 0, 0, INPUT_WANT)                          \
    X(INPUT_TOKENS, "input_tokens", ANY, false, 0, 0, 0,                        \
      "an array of token ids or of arrays of token ids")                        \
    X(ENCODING, "encoding_format", ENUM, false, 0, 0, 0, "float|base64")        \
    X(DIMENSIONS, "dimensions", INT, false, 1, 65536, 0, NULL)                  \
    X(TASK_TYPE, "task_type", ENUM, false, 0, 0, 0, TASK_TYPES)                 \
    X(INPUT_TYPE, "input_type", ENUM, false, 0, 0, 0,                           \
      "search_query|query|search_document|document|classification|clustering")  \
    X(TRUNCATE, "truncate", BOOL, false, 0, 1, 0, NULL)                         \
    X(ERROR_POLICY, "error_policy", ENUM, false, 0, 0, 0, "fail_fast|per_item") \
    X(BACKEND, "backend", ENUM, false, 0, 0, 0, "auto|native|cpu")              \
    X(INSTRUCTION, "instruction", REFUSE, false, 0, 0, 0,                       \
      "no loaded model family takes instructions")                              \
    X(MODEL_IDENTITY, "model_identity", REFUSE, false, 0, 0, 0,                 \
      "models have no identity hash yet, so it cannot be checked")

enum {
#define X(id, name, type, req, min, max, def, words) EMB_##id,
    EMBED_FIELDS(X)
#undef X
        EMB_N
};

static const struct sup_field embed_fields[EMB_N] = {EMBED_FIELDS(SUP_FIELD_ROW)};

struct embed {
    struct sup_call call;
    bool base64, per_item;
    uint32_t n_inputs, n_sent;
    uint32_t *at;           /* [n_sent] index in the request */
    struct sup_json out;    /* the answer */
    struct sup_json errors; /* entries of errors[], without brackets */
    uint32_t n_errors;
};

/* --------------------------------------------------------------------- request */

static bool text_input(json_t *t, const char *name, Ipc__EmbedInput *in, struct sup_fail *f)
{
    if (!json_is_string(t) || json_string_length(t) == 0) {
        sup_field_bad(f, name, t, "a non-empty string");
        return false;
    }
    in->text.data = (uint8_t *)(uintptr_t)json_string_value(t);
    in->text.len = json_string_length(t);
    return true;
}

static bool part_input(json_t *o, const char *name, Ipc__EmbedInput *in, struct sup_fail *f)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    char field[80];

    if (json_object_get(o, "content")) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, name,
                     "field '%s': groups are not supported by this model, expected text", name);
        return false;
    }
    if (!type || strcmp(type, "text") != 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': content part of type \"%.40s\" is not supported by this model, "
                     "expected \"text\"",
                     name, type ? type : "");
        return false;
    }
    snprintf(field, sizeof(field), "%s.text", name);
    return text_input(json_object_get(o, "text"), field, in, f);
}

/* ids of an input live in the call's memory until the frame is packed. */
static bool ids_input(struct embed *e, json_t *list, const char *name, Ipc__EmbedInput *in,
                      struct sup_fail *f)
{
    size_t n;
    uint32_t *ids = sup_ids_read(list, name, e->call.vocab_size, &n, f), *mine;

    if (!ids)
        return false;
    mine = sup_call_alloc(&e->call, n * sizeof(*ids));
    if (mine)
        memcpy(mine, ids, n * sizeof(*ids));
    free(ids);
    if (!mine)
        return sup_fail_no_memory(f);
    in->is_tokens = true;
    in->tokens = mine;
    in->n_tokens = n;
    return true;
}

static bool one_input(struct embed *e, json_t *j, bool tokens_only, const char *name,
                      Ipc__EmbedInput *in, struct sup_fail *f)
{
    ipc__embed_input__init(in);
    if (json_is_array(j))
        return ids_input(e, j, name, in, f);
    if (tokens_only) {
        sup_field_bad(f, name, j, "an array of token ids");
        return false;
    }
    if (json_is_object(j))
        return part_input(j, name, in, f);
    return text_input(j, name, in, f);
}

static void item_error(struct embed *e, uint32_t idx, const struct sup_fail *f, const char *stage)
{
    struct sup_json *o = &e->errors;

    sup_json_fmt(o, "%s{\"index\":%u,\"code\":", e->n_errors++ ? "," : "", idx);
    sup_json_quoted(o, sup_code_word(f->code));
    sup_json_str(o, ",\"message\":");
    sup_json_quoted(o, f->err.msg);
    sup_json_fmt(o, ",\"stage\":\"%s\",\"retryable\":%s,\"status\":%u", stage,
                 f->retry_ms ? "true" : "false", sup_fail_http(f));
    if (f->retry_ms)
        sup_json_fmt(o, ",\"retry_after_ms\":%u", f->retry_ms);
    if (f->err.limit)
        sup_json_fmt(o, ",\"n_tokens\":%llu,\"limit\":%llu", (unsigned long long)f->err.n,
                     (unsigned long long)f->err.limit);
    sup_json_str(o, "}");
}

/* Every input that is in order into q; the others fail the request or are noted. */
static bool read_inputs(struct embed *e, json_t *input, bool tokens_only, Ipc__Embed *q,
                        struct sup_fail *f)
{
    const char *field = tokens_only ? "input_tokens" : "input";
    bool one = !json_is_array(input) || json_is_number(json_array_get(input, 0));
    Ipc__EmbedInput *rows;
    char name[48];

    rows = sup_call_alloc(&e->call, e->n_inputs * sizeof(*rows));
    q->inputs = sup_call_alloc(&e->call, e->n_inputs * sizeof(*q->inputs));
    e->at = calloc(e->n_inputs, sizeof(*e->at));
    if (!rows || !q->inputs || !e->at)
        return sup_fail_no_memory(f);
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        json_t *j = one ? input : json_array_get(input, i);

        snprintf(name, sizeof(name), one ? "%s" : "%s[%u]", field, i);
        if (one_input(e, j, tokens_only, name, &rows[i], f)) {
            q->inputs[e->n_sent] = &rows[i];
            e->at[e->n_sent++] = i;
        } else if (e->per_item && f->code != SUP_E_MODEL_RESOURCE_BUSY) {
            item_error(e, i, f, "parse");
        } else {
            f->err.item = (int32_t)i;
            return false;
        }
    }
    q->n_inputs = e->n_sent;
    return true;
}

static bool count_inputs(struct embed *e, json_t *input, const char *field, struct sup_fail *f)
{
    const uint64_t max = e->call.front->conf->max_embed_inputs;
    size_t n = json_array_size(input);

    if (!json_is_array(input) || (n && json_is_number(json_array_get(input, 0)))) {
        e->n_inputs = 1;
        return true;
    }
    if (n == 0) {
        sup_field_bad(f, field, input, INPUT_WANT);
        return false;
    }
    if (n > max) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, field,
                     "field '%s': got %zu inputs, expected at most %llu", field, n,
                     (unsigned long long)max);
        return false;
    }
    e->n_inputs = (uint32_t)n;
    return true;
}

/* The deprecated input_type says the same as task_type in older words. */
static bool task_type(const struct sup_val *v, const char **out, struct sup_fail *f)
{
    static const char *const map[][2] = {
        {"search_query", "RETRIEVAL_QUERY"},       {"query", "RETRIEVAL_QUERY"},
        {"search_document", "RETRIEVAL_DOCUMENT"}, {"document", "RETRIEVAL_DOCUMENT"},
        {"classification", "CLASSIFICATION"},      {"clustering", "CLUSTERING"}};
    const char *old = NULL;

    for (size_t i = 0; v[EMB_INPUT_TYPE].set && i < sizeof(map) / sizeof(map[0]); i++)
        if (strcmp(v[EMB_INPUT_TYPE].s, map[i][0]) == 0)
            old = map[i][1];
    *out = v[EMB_TASK_TYPE].set ? v[EMB_TASK_TYPE].s : old ? old : "";
    if (!old || strcmp(*out, old) == 0)
        return true;
    sup_fail_set(f, SUP_E_INVALID_REQUEST, "input_type",
                 "field 'input_type': \"%s\" contradicts 'task_type' \"%s\"", v[EMB_INPUT_TYPE].s,
                 *out);
    return false;
}

static bool check_dimensions(struct embed *e, const struct sup_val *v, struct sup_fail *f)
{
    char want[64];

    if (!v[EMB_DIMENSIONS].set || !e->call.embed_dim || v[EMB_DIMENSIONS].i <= e->call.embed_dim)
        return true;
    snprintf(want, sizeof(want), "an integer from 1 to %u (the model's size)", e->call.embed_dim);
    sup_field_bad(f, "dimensions", v[EMB_DIMENSIONS].j, want);
    return false;
}

static void finish(struct sup_call *c);

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct embed *e = (struct embed *)c;
    bool ids = v[EMB_INPUT_TOKENS].set;
    json_t *input = ids ? v[EMB_INPUT_TOKENS].j : v[EMB_INPUT].j;
    Ipc__Frame frame = IPC__FRAME__INIT;
    Ipc__Embed q = IPC__EMBED__INIT;
    const char *task;

    e->base64 = v[EMB_ENCODING].set && strcmp(v[EMB_ENCODING].s, "base64") == 0;
    e->per_item = v[EMB_ERROR_POLICY].set && strcmp(v[EMB_ERROR_POLICY].s, "per_item") == 0;
    if (v[EMB_INPUT].set == ids) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "input",
                     ids ? "fields 'input' and 'input_tokens': got both, expected exactly one"
                         : "field 'input': missing, expected " INPUT_WANT);
        return false;
    }
    if (ids && !json_is_array(input)) {
        sup_field_bad(f, "input_tokens", input, embed_fields[EMB_INPUT_TOKENS].words);
        return false;
    }
    if (!task_type(v, &task, f) || !check_dimensions(e, v, f) ||
        !count_inputs(e, input, ids ? "input_tokens" : "input", f) ||
        !read_inputs(e, input, ids, &q, f))
        return false;
    if (e->n_sent == 0) {
        finish(c); /* per_item, and none was in order */
        return true;
    }
    q.dimensions = (uint32_t)v[EMB_DIMENSIONS].i;
    q.task_type = (char *)(uintptr_t)task;
    q.truncate = v[EMB_TRUNCATE].b;
    q.per_item = e->per_item;
    q.deadline_us = c->deadline_us;
    frame.body_case = IPC__FRAME__BODY_EMBED;
    frame.embed = &q;
    return sup_call_parts(c, 1, f) && sup_call_submit(c, 0, &frame, f);
}

/* ---------------------------------------------------------------------- answer */

static void write_floats(struct sup_json *o, const uint8_t *data, uint32_t dim)
{
    float v;

    for (uint32_t k = 0; k < dim; k++) {
        memcpy(&v, data + (size_t)k * sizeof(v), sizeof(v));
        sup_json_put(o, k ? "," : "[", 1);
        sup_json_f32(o, v);
    }
    sup_json_put(o, "]", 1);
}

static void write_row(struct embed *e, const Ipc__Vectors *w, uint32_t row, bool first)
{
    const uint8_t *data = w->data.data + (size_t)row * w->dim * sizeof(float);
    struct sup_json *o = &e->out;

    sup_json_fmt(o, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", first ? "" : ",",
                 e->at[row]);
    if (e->base64) {
        sup_json_put(o, "\"", 1);
        sup_json_base64(o, data, (size_t)w->dim * sizeof(float));
        sup_json_put(o, "\"", 1);
    } else {
        write_floats(o, data, w->dim);
    }
    if (row < w->n_truncated && w->truncated[row])
        sup_json_str(o, ",\"truncated\":true");
    sup_json_str(o, "}");
}

static void head(struct embed *e)
{
    sup_json_str(&e->out, "{\"object\":\"list\",\"data\":[");
}

static void tail(struct embed *e, uint64_t n_tokens)
{
    struct sup_json *o = &e->out;

    sup_json_str(o, "],\"model\":");
    sup_json_quoted(o, e->call.model);
    sup_json_fmt(o, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}",
                 (unsigned long long)n_tokens, (unsigned long long)n_tokens);
    if (e->per_item) {
        sup_json_str(o, ",\"errors\":[");
        if (e->errors.failed)
            o->failed = true;
        sup_json_put(o, e->errors.p, e->errors.n);
        sup_json_fmt(o, "],\"summary\":{\"total\":%u,\"succeeded\":%u,\"failed\":%u}", e->n_inputs,
                     e->n_inputs - e->n_errors, e->n_errors);
    }
    sup_json_str(o, "}");
}

static void note_errors(struct embed *e, const Ipc__Vectors *w, bool *bad)
{
    for (size_t k = 0; k < w->n_errors; k++) {
        uint32_t row = w->errors[k]->index;
        struct rc_err err = RC_ERR_INIT;
        const Ipc__Error *src = w->errors[k]->error;
        struct sup_fail f;

        if (row >= e->n_sent || bad[row] || !src)
            continue;
        bad[row] = true;
        rc_fail_what(&err, rc_from_wire(src->code), src->what, "%.*s",
                     src->message.len < 400 ? (int)src->message.len : 400,
                     src->message.len ? (const char *)src->message.data : "");
        err.n = src->n;
        err.limit = src->limit;
        sup_fail_rc(&f, &err, 0, false);
        item_error(e, e->at[row], &f, "text_inference");
    }
}

static void frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct embed *e = (struct embed *)c;
    const Ipc__Vectors *w;
    uint64_t n_tokens = 0;
    struct sup_fail f;
    bool first = true, *bad;

    if (fr->body_case != IPC__FRAME__BODY_VECTORS)
        return;
    w = fr->vectors;
    bad = calloc(e->n_sent, sizeof(*bad));
    if (!bad || w->n != e->n_sent || w->data.len / sizeof(float) != (uint64_t)w->n * w->dim) {
        free(bad);
        sup_fail_set(&f, SUP_E_INFERENCE_FAILED, "", "the worker answered %u vectors for %u inputs",
                     w->n, e->n_sent);
        sup_call_fail(c, &f);
        return;
    }
    head(e);
    note_errors(e, w, bad);
    for (uint32_t row = 0; row < w->n; row++) {
        if (bad[row])
            continue;
        write_row(e, w, row, first);
        first = false;
        if (row < w->n_n_tokens)
            n_tokens += w->n_tokens[row];
    }
    free(bad);
    tail(e, n_tokens);
}

static void finish(struct sup_call *c)
{
    struct embed *e = (struct embed *)c;

    if (e->n_sent == 0) {
        head(e);
        tail(e, 0);
    }
    sup_call_reply(c, &e->out);
}

static void deinit(struct sup_call *c)
{
    struct embed *e = (struct embed *)c;

    free(e->at);
    sup_json_deinit(&e->out);
    sup_json_deinit(&e->errors);
}

const struct sup_call_ops sup_embed_ops = {
    .size = sizeof(struct embed),
    .need = SUP_NEED_EMBED,
    .fields = embed_fields,
    .n_fields = EMB_N,
    .start = start,
    .frame = frame,
    .finish = finish,
    .deinit = deinit,
};
