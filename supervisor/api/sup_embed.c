/* sup_embed.c - POST /v1/embeddings, /ai/v1/embeddings, /ai/v1/embed.
 *
 * Input is texts, token ids and files, each with a vector of its own, or groups: texts
 * and files in order that share one. With error_policy per_item a bad input becomes an
 * entry of errors[] and its neighbours are answered; otherwise the first bad one fails
 * the request and is named. What only the model knows (its sizes, its identity, whether
 * a file is a picture) is left to the worker.
 * Tests: tests/supervisor/test_sup_api_embed.c, test_sup_api_embed_media.c
 */
#include "sup_embed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_endpoints.h"
#include "sup_http.h"

#define TASK_TYPES                                                             \
    "RETRIEVAL_DOCUMENT|RETRIEVAL_QUERY|QUESTION_ANSWERING|FACT_VERIFICATION|" \
    "CODE_RETRIEVAL_QUERY|SEMANTIC_SIMILARITY|CLASSIFICATION|CLUSTERING"
#define INPUT_WANT                                                                              \
    "a non-empty string, an array of strings and content parts, of groups, of token ids or of " \
    "arrays of token ids"

#define OUTPUTS_WANT "an array of \"dense\", \"sparse\" and \"colbert\", each at most once"

#define EMBED_FIELDS(X)                                                         \
    X(INPUT, "input", ANY, false, 0, 0, 0, INPUT_WANT)                          \
    X(INPUT_TOKENS, "input_tokens", ANY, false, 0, 0, 0,                        \
      "an array of token ids or of arrays of token ids")                        \
    X(ENCODING, "encoding_format", ENUM, false, 0, 0, 0, "float|base64")        \
    X(OUTPUTS, "outputs", ANY, false, 0, 0, 0, OUTPUTS_WANT)                    \
    X(DIMENSIONS, "dimensions", INT, false, 1, 65536, 0, NULL)                  \
    X(TASK_TYPE, "task_type", ENUM, false, 0, 0, 0, TASK_TYPES)                 \
    X(INPUT_TYPE, "input_type", ENUM, false, 0, 0, 0,                           \
      "search_query|query|search_document|document|classification|clustering")  \
    X(TRUNCATE, "truncate", BOOL, false, 0, 1, 0, NULL)                         \
    X(ERROR_POLICY, "error_policy", ENUM, false, 0, 0, 0, "fail_fast|per_item") \
    X(BACKEND, "backend", ENUM, false, 0, 0, 0, "auto|native|cpu")              \
    X(INSTRUCTION, "instruction", REFUSE, false, 0, 0, 0,                       \
      "no loaded model family takes instructions")                              \
    X(MODEL_IDENTITY, "model_identity", ANY, false, 0, 0, 0, SUP_IDENTITY_WANT)

enum {
#define X(id, name, type, req, min, max, def, words) EMB_##id,
    EMBED_FIELDS(X)
#undef X
        EMB_N
};

static const struct sup_field embed_fields[EMB_N] = {EMBED_FIELDS(SUP_FIELD_ROW)};

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

/* Is the model able to give all of e->outputs? */
static bool outputs_fit(const struct sup_embed *e, struct sup_fail *f)
{
    const char *lacks = NULL;

    if (e->outputs & IPC_OUT_SPARSE && !e->call.can_sparse)
        lacks = "no lexical weights (\"sparse\")";
    else if (e->outputs & IPC_OUT_TOKENS && !e->call.token_dim)
        lacks = "no vectors of tokens (\"colbert\")";
    if (!lacks || !e->call.known)
        return true;
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "outputs",
                 "field 'outputs': model '%.100s' gives %s", e->call.model, lacks);
    return false;
}

static bool read_outputs(struct sup_embed *e, const struct sup_val *v, struct sup_fail *f)
{
    static const char *const words[] = {"dense", "sparse", "colbert"};
    json_t *list = v[EMB_OUTPUTS].j, *j;
    size_t i, k;

    e->outputs = v[EMB_OUTPUTS].set ? 0 : IPC_OUT_DENSE;
    json_array_foreach(list, i, j)
    {
        for (k = 0; k < 3; k++)
            if (json_is_string(j) && strcmp(json_string_value(j), words[k]) == 0)
                break;
        if (k == 3 || e->outputs >> k & 1) {
            sup_field_bad(f, "outputs", j, OUTPUTS_WANT);
            return false;
        }
        e->outputs |= 1u << k;
    }
    if (!e->outputs) {
        sup_field_bad(f, "outputs", list, OUTPUTS_WANT);
        return false;
    }
    if (v[EMB_DIMENSIONS].set && !(e->outputs & IPC_OUT_DENSE)) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "dimensions",
                     "field 'dimensions': only dense vectors have it, and 'outputs' asks for none");
        return false;
    }
    return outputs_fit(e, f);
}

static bool check_dimensions(struct sup_embed *e, const struct sup_val *v, struct sup_fail *f)
{
    char want[64];

    e->dimensions = (uint32_t)v[EMB_DIMENSIONS].i;
    if (!v[EMB_DIMENSIONS].set || !e->call.embed_dim || v[EMB_DIMENSIONS].i <= e->call.embed_dim)
        return true;
    snprintf(want, sizeof(want), "an integer from 1 to %u (the model's size)", e->call.embed_dim);
    sup_field_bad(f, "dimensions", v[EMB_DIMENSIONS].j, want);
    return false;
}

static void finish(struct sup_call *c);

static bool inputs(struct sup_embed *e, const struct sup_val *v, Ipc__Embed *q, struct sup_fail *f)
{
    bool ids = v[EMB_INPUT_TOKENS].set;

    if (v[EMB_INPUT].set == ids) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "input",
                     ids ? "fields 'input' and 'input_tokens': got both, expected exactly one"
                         : "field 'input': missing, expected " INPUT_WANT);
        return false;
    }
    if (ids && !json_is_array(v[EMB_INPUT_TOKENS].j)) {
        sup_field_bad(f, "input_tokens", v[EMB_INPUT_TOKENS].j,
                      embed_fields[EMB_INPUT_TOKENS].words);
        return false;
    }
    return task_type(v, &e->task, f) && check_dimensions(e, v, f) && read_outputs(e, v, f) &&
           sup_identity_read(&v[EMB_MODEL_IDENTITY], &q->model_identity, f) &&
           sup_embed_inputs(e, v[ids ? EMB_INPUT_TOKENS : EMB_INPUT].j, ids, q, f);
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_embed *e = (struct sup_embed *)c;
    Ipc__Frame frame = IPC__FRAME__INIT;
    Ipc__Embed q = IPC__EMBED__INIT;

    e->base64 = v[EMB_ENCODING].set && strcmp(v[EMB_ENCODING].s, "base64") == 0;
    e->per_item = v[EMB_ERROR_POLICY].set && strcmp(v[EMB_ERROR_POLICY].s, "per_item") == 0;
    e->numeric = sup_numeric_wanted(sup_req_header(c->req, "accept"));
    if (!inputs(e, v, &q, f))
        return false;
    snprintf(e->identity, sizeof(e->identity), "%s", q.model_identity);
    if (e->n_sent == 0) {
        finish(c); /* per_item, and none was in order */
        return true;
    }
    if (e->outputs != IPC_OUT_DENSE && (e->groups || e->has_media)) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "outputs",
                     "field 'outputs': groups, pictures and sounds have dense vectors only");
        return false;
    }
    q.outputs = e->outputs == IPC_OUT_DENSE ? 0 : e->outputs;
    q.dimensions = e->dimensions;
    q.task_type = (char *)(uintptr_t)e->task;
    q.truncate = v[EMB_TRUNCATE].b;
    q.per_item = e->per_item;
    q.deadline_us = c->deadline_us;
    frame.body_case = IPC__FRAME__BODY_EMBED;
    frame.embed = &q;
    return sup_call_hold(c, e->media_bytes, f) && sup_call_parts(c, 1, f) &&
           sup_call_submit(c, 0, &frame, f);
}

static void frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_embed *e = (struct sup_embed *)c;
    struct sup_fail f;

    if (fr->body_case == IPC__FRAME__BODY_VECTORS && !sup_embed_answer(e, fr->vectors, &f))
        sup_call_fail(c, &f);
}

static void finish(struct sup_call *c)
{
    struct sup_embed *e = (struct sup_embed *)c;

    if (e->n_sent == 0)
        sup_embed_answer_none(e);
    if (e->numeric && !e->out.failed)
        sup_call_reply_raw(c, SUP_NUMERIC_TYPE, e->out.p, e->out.n);
    else
        sup_call_reply(c, &e->out);
}

static void deinit(struct sup_call *c)
{
    struct sup_embed *e = (struct sup_embed *)c;

    free(e->at);
    sup_json_deinit(&e->out);
    sup_json_deinit(&e->errors.out);
}

const struct sup_call_ops sup_embed_ops = {
    .size = sizeof(struct sup_embed),
    .need = SUP_NEED_EMBED,
    .frames = true,
    .fields = embed_fields,
    .n_fields = EMB_N,
    .start = start,
    .frame = frame,
    .finish = finish,
    .deinit = deinit,
};
