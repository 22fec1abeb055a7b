/* sup_embed_out.c - vectors of a worker to the answer of an embedding request.
 *
 * Row k of the worker's answer is input at[k] of the request. That it is well formed was
 * checked where it came in (sup_fleet_check.c); here it is held against the request:
 * how many, how long, of which files, errors of whom. A large answer is a million numbers: they
 * go straight into one buffer. Tests: tests/supervisor/test_sup_api_embed.c,
 * test_sup_api_embed_media.c
 */
#include "sup_embed.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- checks */

static bool tokens_ok(const struct sup_embed *e, const Ipc__TokenVectors *t)
{
    const uint32_t dim = t->n ? (uint32_t)(t->data.len / sizeof(float) / t->n) : 0;

    return t->n && dim && t->data.len == (uint64_t)t->n * dim * sizeof(float) &&
           (!e->call.token_dim || dim == e->call.token_dim);
}

/* The same of what is asked for beside dense vectors. */
static const char *fault_of_more(const struct sup_embed *e, const Ipc__Vectors *w,
                                 const bool *failed)
{
    if (w->n_sparse != (e->outputs & IPC_OUT_SPARSE ? w->n : 0) ||
        w->n_token_vectors != (e->outputs & IPC_OUT_TOKENS ? w->n : 0))
        return "other outputs than it was asked for";
    for (uint32_t row = 0; row < w->n; row++) {
        if (w->n_sparse && w->sparse[row]->n_ids != w->sparse[row]->n_weights)
            return "a sparse vector whose lists differ in length";
        if (w->n_token_vectors && !failed[row] && !tokens_ok(e, w->token_vectors[row]))
            return "token vectors of another length";
    }
    return NULL;
}

/* What is wrong with w, or NULL. failed[row]: it has an error instead of a vector. */
static const char *fault_of(const struct sup_embed *e, const Ipc__Vectors *w, bool *failed)
{
    const uint32_t want = e->dimensions ? e->dimensions : e->call.embed_dim;

    if (!sup_item_rows(w->errors, w->n_errors, e->n_sent, e->per_item, failed))
        return "errors of inputs that it was not given, or two of one";
    if ((e->outputs & IPC_OUT_DENSE) && want && w->dim != want && w->n_errors < w->n)
        return "vectors of another size";
    if (w->data.len % sizeof(float) ||
        w->data.len / sizeof(float) !=
            (e->outputs & IPC_OUT_DENSE ? (uint64_t)w->n * w->dim : UINT64_C(0)))
        return "vectors of another length";
    return fault_of_more(e, w, failed);
}

/* ------------------------------------------------------------------ writing */

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

static void write_vector(struct sup_embed *e, const uint8_t *data, uint32_t dim)
{
    struct sup_json *o = &e->out;

    if (!e->base64) {
        write_floats(o, data, dim);
        return;
    }
    sup_json_put(o, "\"", 1);
    sup_json_base64(o, data, (size_t)dim * sizeof(float));
    sup_json_put(o, "\"", 1);
}

static void write_sparse(struct sup_json *o, const Ipc__SparseVector *s)
{
    sup_json_str(o, "{\"indices\":[");
    for (size_t k = 0; k < s->n_ids; k++) {
        sup_json_str(o, k ? "," : "");
        sup_json_u64(o, s->ids[k]);
    }
    sup_json_str(o, "],\"values\":[");
    for (size_t k = 0; k < s->n_weights; k++) {
        sup_json_str(o, k ? "," : "");
        sup_json_f32(o, s->weights[k]);
    }
    sup_json_str(o, "]}");
}

static void write_tokens(struct sup_embed *e, const Ipc__TokenVectors *t)
{
    const uint32_t dim = (uint32_t)(t->data.len / sizeof(float) / t->n);

    sup_json_str(&e->out, ",\"colbert\":[");
    for (uint32_t k = 0; k < t->n; k++) {
        sup_json_str(&e->out, k ? "," : "");
        write_vector(e, t->data.data + (size_t)k * dim * sizeof(float), dim);
    }
    sup_json_str(&e->out, "]");
}

/* Sparse vectors alone stand where dense ones would. */
static void write_row(struct sup_embed *e, const Ipc__Vectors *w, uint32_t row, bool first)
{
    struct sup_json *o = &e->out;

    sup_json_fmt(o, "%s{\"object\":\"embedding\",\"index\":%u", first ? "" : ",", e->at[row]);
    if (e->outputs & IPC_OUT_DENSE) {
        sup_json_str(o, ",\"embedding\":");
        write_vector(e, w->data.data + (size_t)row * w->dim * sizeof(float), w->dim);
    }
    if (e->outputs & IPC_OUT_SPARSE) {
        sup_json_str(o, e->outputs == IPC_OUT_SPARSE ? ",\"embedding\":" : ",\"sparse\":");
        write_sparse(o, w->sparse[row]);
    }
    if (e->outputs & IPC_OUT_TOKENS)
        write_tokens(e, w->token_vectors[row]);
    if (row < w->n_truncated && w->truncated[row])
        sup_json_str(o, ",\"truncated\":true");
    sup_json_str(o, "}");
}

static void head(struct sup_embed *e)
{
    sup_json_str(&e->out, "{\"object\":\"list\",\"data\":[");
}

static void tail(struct sup_embed *e, uint64_t n_tokens, uint64_t n_media, const char *identity)
{
    const struct sup_items_end end = {
        .model = e->call.model,
        .identity = identity,
        .n_tokens = n_tokens,
        .n_media = e->has_media ? &n_media : NULL,
        .errors = e->per_item ? &e->errors : NULL,
        .n_inputs = e->n_inputs,
    };

    sup_call_facts(&e->call, "embeddings", n_tokens);
    sup_items_end(&e->out, &end);
}

static void write_json(struct sup_embed *e, const Ipc__Vectors *w, const bool *failed)
{
    uint64_t n_tokens = 0, n_media = 0;
    bool first = true;

    head(e);
    for (uint32_t row = 0; row < w->n; row++) {
        if (failed[row])
            continue;
        write_row(e, w, row, first);
        first = false;
        n_tokens += row < w->n_n_tokens ? w->n_tokens[row] : 0;
        n_media += row < w->n_n_media_tokens ? w->n_media_tokens[row] : 0;
    }
    tail(e, n_tokens, n_media, w->model_identity);
}

bool sup_embed_answer(struct sup_embed *e, const Ipc__Vectors *w, struct sup_fail *f)
{
    bool *failed, ok = false;
    const char *fault;

    if (e->out.n || w->n != e->n_sent) {
        sup_fail_set(f, SUP_E_INFERENCE_FAILED, "", "the worker answered %u vectors for %u inputs",
                     w->n, e->n_sent);
        return false;
    }
    if (!(failed = calloc(e->n_sent, sizeof(*failed))))
        return sup_fail_no_memory(f);
    if ((fault = fault_of(e, w, failed)) != NULL)
        sup_fail_set(f, SUP_E_INFERENCE_FAILED, "", "the worker answered %s", fault);
    else
        ok = sup_pin_kept(e->identity, w->model_identity, f);
    e->numeric =
        ok && e->numeric && !e->per_item && w->data.len <= SUP_NUMERIC_MAX - SUP_NUMERIC_HEAD;
    if (e->numeric) {
        sup_numeric_head(&e->out, 1, w->n, w->dim);
        sup_json_put(&e->out, w->data.data, w->data.len);
    } else if (ok) {
        sup_item_notes(&e->errors, w->errors, w->n_errors, e->at);
        write_json(e, w, failed);
    }
    free(failed);
    return ok;
}

void sup_embed_answer_none(struct sup_embed *e)
{
    e->numeric = false;
    head(e);
    tail(e, 0, 0, "");
}
