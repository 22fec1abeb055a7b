/* sup_rerank_out.c - scores of a worker to the answer of a rerank request.
 *
 * Score k of the worker's answer is document at[k] of the request; that it is well formed was
 * checked where it came in (sup_fleet_check.c) and is held against the request here.
 * Tests: tests/supervisor/test_sup_api_rerank.c
 */
#include "sup_rerank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_http.h"

#define SEARCH_UNIT 100u /* documents that Cohere bills as one */

/* One document in the order of the answer. */
struct place {
    uint32_t row; /* of the worker's answer */
    float score;
};

/* ------------------------------------------------------------------- checks */

static bool list_ok(size_t n, size_t want)
{
    return n == 0 || n == want;
}

static bool finite_all(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* What is wrong with w, or NULL. failed[row]: it has an error instead of a score. */
static const char *fault_of(const struct sup_rerank *r, const Ipc__Scores *w, bool *failed)
{
    const size_t n = r->n_sent;

    if (w->n_scores != n || !list_ok(w->n_logits, n) || !list_ok(w->n_dense, n) ||
        !list_ok(w->n_sparse, n) || !list_ok(w->n_late, n) || !list_ok(w->n_n_tokens, n) ||
        !list_ok(w->n_truncated, n))
        return "another number of scores than it was given documents";
    if (!finite_all(w->scores, n) || !finite_all(w->logits, w->n_logits) ||
        !finite_all(w->dense, w->n_dense) || !finite_all(w->sparse, w->n_sparse) ||
        !finite_all(w->late, w->n_late))
        return "a score that is no number";
    if (!sup_item_rows(w->errors, w->n_errors, r->n_sent, r->per_item, failed))
        return "errors of documents that it was not given, or two of one";
    return NULL;
}

/* ------------------------------------------------------------------ writing */

static int best_first(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->row > y->row) - (x->row < y->row);
}

static json_t *doc_text(const struct sup_rerank *r, uint32_t i)
{
    json_t *doc = json_array_get(r->docs, i);

    if (r->doc_key)
        doc = json_object_get(doc, r->doc_key);
    return json_is_object(doc) ? json_object_get(doc, "text") : doc;
}

/* A document as a JSON string: several parts with the newlines that the model saw. */
static void put_text(struct sup_rerank *r, uint32_t i)
{
    json_t *doc = doc_text(r, i), *part;
    size_t n = json_is_array(doc) ? json_array_size(doc) : 1;

    sup_json_str(&r->out, "\"");
    for (size_t k = 0; k < n; k++) {
        part = json_is_array(doc) ? json_array_get(doc, k) : doc;
        part = json_is_object(part) ? json_object_get(part, "text") : part;
        sup_json_str(&r->out, k ? "\\n" : "");
        sup_json_text(&r->out, json_string_value(part), json_string_length(part));
    }
    sup_json_str(&r->out, "\"");
}

static void put_document(struct sup_rerank *r, uint32_t i)
{
    sup_json_str(&r->out, ",\"document\":{\"text\":");
    put_text(r, i);
    sup_json_str(&r->out, "}");
}

static void put_kind(struct sup_json *o, const char *name, const float *x, size_t n, uint32_t row,
                     bool *first)
{
    if (n == 0)
        return;
    sup_json_str(o, *first ? ",\"scores\":{\"" : ",\"");
    *first = false;
    sup_json_str(o, name);
    sup_json_str(o, "\":");
    sup_json_f32(o, x[row]);
}

static void put_ours(struct sup_rerank *r, const Ipc__Scores *w, const struct place *p)
{
    struct sup_json *o = &r->out;
    uint32_t i = r->at[p->row];
    json_t *id = r->doc_key ? json_object_get(json_array_get(r->docs, i), "id") : NULL;
    bool first = true;

    sup_json_fmt(o, "{\"object\":\"rerank.score\",\"index\":%u,\"score\":", i);
    sup_json_f32(o, p->score);
    if (json_is_string(id)) {
        sup_json_str(o, ",\"id\":");
        sup_json_quoted(o, json_string_value(id));
    }
    if (r->logits && w->n_logits) {
        sup_json_str(o, ",\"logit\":");
        sup_json_f32(o, w->logits[p->row]);
    }
    put_kind(o, "dense", w->dense, w->n_dense, p->row, &first);
    put_kind(o, "sparse", w->sparse, w->n_sparse, p->row, &first);
    put_kind(o, "colbert", w->late, w->n_late, p->row, &first);
    sup_json_str(o, first ? "" : "}");
    if (w->n_truncated && w->truncated[p->row])
        sup_json_str(o, ",\"truncated\":true");
    if (r->with_texts)
        put_document(r, i);
    sup_json_str(o, "}");
}

static void put_one(struct sup_rerank *r, const Ipc__Scores *w, const struct place *p)
{
    struct sup_json *o = &r->out;

    if (r->form == SUP_RERANK_OURS) {
        put_ours(r, w, p);
        return;
    }
    sup_json_fmt(o, "{\"index\":%u,\"%s\":", r->at[p->row],
                 r->form == SUP_RERANK_TEI ? "score" : "relevance_score");
    sup_json_f32(o, p->score);
    if (r->with_texts && r->form == SUP_RERANK_TEI) {
        sup_json_str(o, ",\"text\":");
        put_text(r, r->at[p->row]);
    } else if (r->with_texts) {
        put_document(r, r->at[p->row]);
    }
    sup_json_str(o, "}");
}

/* Tokens of pairs as they were read; vectors' query counts for each document, as pairs' does. */
static uint64_t tokens_of(const struct sup_rerank *r, const Ipc__Scores *w)
{
    uint64_t n = 0;

    for (size_t i = 0; w && i < w->n_n_tokens; i++)
        n += w->n_tokens[i] + (w->n_logits ? 0 : w->query_tokens);
    return n;
}

static void put_head(struct sup_rerank *r)
{
    if (r->form == SUP_RERANK_TEI) {
        sup_json_str(&r->out, "[");
    } else if (r->form == SUP_RERANK_OURS) {
        sup_json_str(&r->out, "{\"object\":\"list\",\"data\":[");
    } else {
        sup_json_str(&r->out, "{\"id\":");
        sup_json_quoted(&r->out, sup_req_id(r->call.req));
        sup_json_str(&r->out, ",\"object\":\"list\",\"results\":[");
    }
}

static void put_tail(struct sup_rerank *r, const Ipc__Scores *w)
{
    char meta[100];
    const struct sup_items_end end = {
        .model = r->call.model,
        .identity = w ? w->model_identity : "",
        .n_tokens = tokens_of(r, w),
        .completion = true,
        .meta = r->form == SUP_RERANK_RESULTS ? meta : NULL,
        .errors = r->per_item ? &r->errors : NULL,
        .n_inputs = r->n_docs,
    };

    sup_call_facts(&r->call, "rerank", tokens_of(r, w));
    if (r->form == SUP_RERANK_TEI) {
        sup_json_str(&r->out, "]");
        return;
    }
    if (r->form == SUP_RERANK_RESULTS)
        snprintf(meta, sizeof(meta),
                 "{\"api_version\":{\"version\":\"%c\"},\"billed_units\":{\"search_units\":%u}}",
                 sup_req_path(r->call.req)[2], (r->n_docs + SEARCH_UNIT - 1) / SEARCH_UNIT);
    sup_items_end(&r->out, &end);
}

static void write_json(struct sup_rerank *r, const Ipc__Scores *w, struct place *p, uint32_t n)
{
    put_head(r);
    for (uint32_t k = 0; k < n; k++) {
        sup_json_str(&r->out, k ? "," : "");
        put_one(r, w, &p[k]);
    }
    put_tail(r, w);
}

static void write_numeric(struct sup_rerank *r, const struct place *p, uint32_t n)
{
    sup_numeric_head(&r->out, 2, n, 1);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t bits;
        uint8_t le[4];

        memcpy(&bits, &p[k].score, sizeof(bits));
        for (int b = 0; b < 4; b++)
            le[b] = (uint8_t)(bits >> (8 * b));
        sup_json_put(&r->out, le, sizeof(le));
    }
}

/* The documents that have a score, in the order of the answer; returns how many. */
static uint32_t places(const struct sup_rerank *r, const Ipc__Scores *w, const bool *failed,
                       struct place *p)
{
    const float *from = r->raw && w->n_logits ? w->logits : w->scores;
    uint32_t n = 0;

    for (uint32_t row = 0; row < r->n_sent; row++)
        if (!failed[row])
            p[n++] = (struct place){row, from[row]};
    if (r->form != SUP_RERANK_OURS || r->top_n)
        qsort(p, n, sizeof(*p), best_first);
    return r->top_n && r->top_n < n ? r->top_n : n;
}

static bool write_scores(struct sup_rerank *r, const Ipc__Scores *w, bool *failed, struct place *p,
                         struct sup_fail *f)
{
    const char *fault = fault_of(r, w, failed);
    uint32_t n;

    if (fault) {
        sup_fail_set(f, SUP_E_INFERENCE_FAILED, "", "the worker answered %s", fault);
        return false;
    }
    if (!sup_pin_kept(r->identity, w->model_identity, f))
        return false;
    n = places(r, w, failed, p);
    r->numeric = r->numeric && n <= (SUP_NUMERIC_MAX - SUP_NUMERIC_HEAD) / sizeof(float);
    if (r->numeric) {
        write_numeric(r, p, n);
        return true;
    }
    sup_item_notes(&r->errors, w->errors, w->n_errors, r->at);
    write_json(r, w, p, n);
    return true;
}

bool sup_rerank_answer(struct sup_rerank *r, const Ipc__Scores *w, struct sup_fail *f)
{
    struct place *p;
    bool *failed, ok;

    if (!w) {
        if (r->numeric)
            write_numeric(r, NULL, 0);
        else
            write_json(r, NULL, NULL, 0);
        return true;
    }
    failed = calloc(r->n_sent, sizeof(*failed));
    p = calloc(r->n_sent, sizeof(*p));
    if (!failed || !p)
        ok = sup_fail_no_memory(f);
    else if (r->out.n)
        ok = true; /* answered already */
    else
        ok = write_scores(r, w, failed, p, f);
    free(failed);
    free(p);
    return ok;
}
