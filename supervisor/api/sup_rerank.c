/* sup_rerank.c - documents scored against a query, in the words of four APIs.
 *
 * /ai/v1/rerank and /ai/v1/rerank_multimodal are ours; /v1/rerank and /v2/rerank take what
 * clients of Cohere and Jina send, /rerank what those of TEI send. All become one message: a
 * cross-encoder reads pairs, an embedder is asked for the likeness of its vectors. Answers:
 * sup_rerank_out.c. Tests: tests/supervisor/test_sup_api_rerank.c
 */
#include "sup_rerank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_content.h"
#include "sup_endpoints.h"
#include "sup_front.h"
#include "sup_http.h"
#include "sup_pieces.h"

#define DOCS_WANT "an array of strings or arrays of text parts"
#define TOP_MAX 2147483647
#define WEIGHTS_WANT "an object with numbers \"dense\", \"sparse\" and \"colbert\", not all 0"

/* What ours and its multimodal sister share. */
#define OUR_FIELDS(X)                                                         \
    X(OUR_QUERY, "query", ANY, true, 0, 0, 0, "a string")                     \
    X(OUR_DOCUMENTS, "documents", ANY, false, 0, 0, 0, DOCS_WANT)             \
    X(OUR_PROMPTS, "prompts", ANY, false, 0, 0, 0, DOCS_WANT)                 \
    X(OUR_TOP_N, "top_n", INT, false, 1, TOP_MAX, 0, NULL)                    \
    X(OUR_RETURN, "return_documents", BOOL, false, 0, 1, 0, NULL)             \
    X(OUR_RAW, "raw_scores", BOOL, false, 0, 1, 0, NULL)                      \
    X(OUR_LOGITS, "return_logits", BOOL, false, 0, 1, 0, NULL)                \
    X(OUR_TRUNCATE, "truncate", BOOL, false, 0, 1, 0, NULL)                   \
    X(OUR_POLICY, "error_policy", ENUM, false, 0, 0, 0, "fail_fast|per_item") \
    X(OUR_WEIGHTS, "weights", ANY, false, 0, 0, 0, WEIGHTS_WANT)              \
    X(OUR_IDENTITY, "model_identity", ANY, false, 0, 0, 0, SUP_IDENTITY_WANT)

#define RESULTS_FIELDS(X)                                                    \
    X(RES_QUERY, "query", ANY, true, 0, 0, 0, "a string")                    \
    X(RES_DOCUMENTS, "documents", ANY, true, 0, 0, 0,                        \
      "a non-empty array of strings or objects with \"text\"")               \
    X(RES_TOP_N, "top_n", INT, false, 1, TOP_MAX, 0, NULL)                   \
    X(RES_RETURN, "return_documents", BOOL, false, 0, 1, 0, NULL)            \
    X(RES_TRUNCATION, "truncation", BOOL, false, 0, 1, 1, NULL)              \
    X(RES_MAX_TOKENS, "max_tokens_per_doc", INT, false, 1, TOP_MAX, 0, NULL) \
    X(RES_RANK_FIELDS, "rank_fields", ANY, false, 0, 0, 0, "[\"text\"]")     \
    X(RES_RETURN_EMBEDDINGS, "return_embeddings", REFUSE, false, 0, 0, 0,    \
      "ask /v1/embeddings for vectors")

#define TEI_FIELDS(X)                                                         \
    X(TEI_QUERY, "query", ANY, true, 0, 0, 0, "a string")                     \
    X(TEI_TEXTS, "texts", ANY, true, 0, 0, 0, "a non-empty array of strings") \
    X(TEI_RAW, "raw_scores", BOOL, false, 0, 1, 0, NULL)                      \
    X(TEI_RETURN, "return_text", BOOL, false, 0, 1, 0, NULL)                  \
    X(TEI_TRUNCATE, "truncate", BOOL, false, 0, 1, 0, NULL)                   \
    X(TEI_DIRECTION, "truncation_direction", ENUM, false, 0, 0, 0, "Right|right")

enum { OUR_FIELDS(SUP_FIELD_ID) OUR_N };
enum { RESULTS_FIELDS(SUP_FIELD_ID) RES_N };
enum { TEI_FIELDS(SUP_FIELD_ID) TEI_N };
static const struct sup_field our_fields[OUR_N] = {OUR_FIELDS(SUP_FIELD_ROW)},
                              results_fields[RES_N] = {RESULTS_FIELDS(SUP_FIELD_ROW)},
                              tei_fields[TEI_N] = {TEI_FIELDS(SUP_FIELD_ROW)};

static void finish(struct sup_call *c);

/* ---------------------------------------------------------------- documents */

/* The text of document i, which is called name. */
static bool one_document(struct sup_rerank *r, json_t *doc, const char *name,
                         ProtobufCBinaryData *out, struct sup_fail *f)
{
    char field[64];

    if (!r->doc_key)
        return sup_content_text(&r->call, doc, name, SUP_E_MODEL_NOT_SUPPORTED, true, out, f);
    snprintf(field, sizeof(field), "%s.%s", name, r->doc_key);
    if (json_is_object(doc))
        return sup_content_text(&r->call, json_object_get(doc, r->doc_key), field,
                                SUP_E_MODEL_NOT_SUPPORTED, true, out, f);
    sup_field_bad(f, name, doc, "an object {\"id\"?, \"content\"}");
    return false;
}

/* What the front cannot count in the model's tokens it counts in words. false: no memory. */
static bool cut_document(const struct sup_rerank *r, ProtobufCBinaryData *doc)
{
    const struct sup_cutting how = {.target = r->doc_tokens, .max = 1, .separator = ""};
    struct sup_piece piece;
    uint64_t n_tokens;
    uint32_t n;
    bool cut;

    if (r->doc_tokens == 0 || r->doc_tokens > SUP_PIECE_TOKENS_MAX || doc->len <= r->doc_tokens)
        return true;
    if (!sup_pieces((const char *)doc->data, doc->len, &how, &piece, &n, &cut, &n_tokens))
        return false;
    if (cut)
        doc->len = piece.to;
    return true;
}

static bool documents(struct sup_rerank *r, json_t *list, const char *field, Ipc__Rerank *q,
                      struct sup_fail *f)
{
    const uint64_t max = r->call.front->conf->max_embed_inputs;
    size_t n = json_array_size(list);
    char name[48];

    if (!json_is_array(list) || (n == 0 && (r->form != SUP_RERANK_OURS || r->doc_key))) {
        sup_field_bad(f, field, list, "a non-empty array");
        return false;
    }
    if (n > max) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, field,
                     "field '%s': got %zu documents, expected at most %llu", field, n,
                     (unsigned long long)max);
        return false;
    }
    q->documents = sup_call_alloc(&r->call, (n + 1) * sizeof(*q->documents));
    r->at = calloc(n + 1, sizeof(*r->at));
    if (!q->documents || !r->at)
        return sup_fail_no_memory(f);
    r->n_docs = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s[%u]", field, i);
        if (one_document(r, json_array_get(list, i), name, &q->documents[r->n_sent], f)) {
            if (!cut_document(r, &q->documents[r->n_sent]))
                return sup_fail_no_memory(f);
            r->at[r->n_sent++] = i;
        } else if (!sup_item_bad(&r->errors, r->per_item, i, IPC_STAGE_PARSE, f)) {
            return false;
        }
    }
    q->n_documents = r->n_sent;
    if (r->with_texts || r->doc_key)
        r->docs = json_incref(list);
    return !r->docs || sup_call_hold(&r->call, r->call.n_body, f);
}

/* Everything read: the query, the documents, then the task goes. */
static bool submit(struct sup_rerank *r, json_t *query, json_t *docs, const char *field,
                   Ipc__Rerank *q, struct sup_fail *f)
{
    Ipc__Frame frame = IPC__FRAME__INIT;

    if (!sup_content_text(&r->call, query, "query", SUP_E_MODEL_NOT_SUPPORTED, true, &q->query,
                          f) ||
        !documents(r, docs, field, q, f))
        return false;
    if (r->logits && r->call.known && !r->call.can_rerank) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "return_logits",
                     "field 'return_logits': model '%.100s' compares vectors, which has no logits",
                     r->call.model);
        return false;
    }
    if (r->n_sent == 0) {
        finish(&r->call);
        return true;
    }
    q->per_item = r->per_item;
    q->deadline_us = r->call.deadline_us;
    snprintf(r->identity, sizeof(r->identity), "%s", q->model_identity);
    frame.body_case = IPC__FRAME__BODY_RERANK;
    frame.rerank = q;
    return sup_call_parts(&r->call, 1, f) && sup_call_submit(&r->call, 0, &frame, f);
}

/* --------------------------------------------------------------------- ours */

static bool weight(json_t *obj, const char *key, bool can, const struct sup_rerank *r, float *out,
                   struct sup_fail *f)
{
    json_t *j = json_object_get(obj, key);
    char field[40];
    double v = json_number_value(j);

    snprintf(field, sizeof(field), "weights.%s", key);
    if (j && !json_is_null(j) && !(json_is_number(j) && v >= 0 && v <= 1e6)) {
        sup_field_bad(f, field, j, "a number from 0 to 1000000");
        return false;
    }
    *out = (float)v;
    if (*out <= 0 || !r->call.known || can)
        return true;
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, field, "field '%s': model '%.100s' gives no such %s",
                 field, r->call.model, strcmp(key, "sparse") == 0 ? "weights" : "vectors");
    return false;
}

static bool weights(struct sup_rerank *r, const struct sup_val *v, Ipc__Rerank *q,
                    struct sup_fail *f)
{
    static const char *const keys[] = {"dense", "sparse", "colbert"};
    const bool can[] = {true, r->call.can_sparse, r->call.token_dim > 0};
    size_t known = 0;
    bool ok = true;
    float sum = 0;

    if (!v->set)
        return true;
    if (r->call.known && r->call.can_rerank) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "weights",
                     "field 'weights': model '%.100s' reads pairs and has one score; weights are "
                     "for models of vectors",
                     r->call.model);
        return false;
    }
    if (!(q->weights = sup_call_alloc(&r->call, 3 * sizeof(*q->weights))))
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < 3 && ok; i++) {
        known += json_object_get(v->j, keys[i]) != NULL;
        ok = weight(v->j, keys[i], can[i], r, &q->weights[i], f);
        sum += q->weights[i];
    }
    if (ok && (known != json_object_size(v->j) || sum <= 0)) {
        sup_field_bad(f, "weights", v->j, WEIGHTS_WANT);
        return false;
    }
    q->n_weights = 3;
    return ok;
}

static bool start_ours(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_rerank *r = (struct sup_rerank *)c;
    Ipc__Rerank q = IPC__RERANK__INIT;
    bool old = v[OUR_PROMPTS].set;

    if (v[OUR_DOCUMENTS].set == old) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "documents",
                     old ? "fields 'documents' and 'prompts': got both, expected exactly one"
                         : "field 'documents': missing, expected " DOCS_WANT);
        return false;
    }
    r->per_item = v[OUR_POLICY].set && strcmp(v[OUR_POLICY].s, "per_item") == 0;
    r->top_n = (uint32_t)v[OUR_TOP_N].i;
    r->with_texts = v[OUR_RETURN].b;
    r->raw = v[OUR_RAW].b;
    r->logits = v[OUR_LOGITS].b;
    r->numeric = sup_numeric_wanted(sup_req_header(c->req, "accept")) && !r->per_item &&
                 !r->with_texts && !r->logits && !r->top_n;
    q.truncate = v[OUR_TRUNCATE].b;
    return sup_identity_read(&v[OUR_IDENTITY], &q.model_identity, f) &&
           weights(r, &v[OUR_WEIGHTS], &q, f) &&
           submit(r, v[OUR_QUERY].j, v[old ? OUR_PROMPTS : OUR_DOCUMENTS].j,
                  old ? "prompts" : "documents", &q, f);
}

static bool start_multimodal(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    ((struct sup_rerank *)c)->doc_key = "content";
    return start_ours(c, v, f);
}

/* ------------------------------------------------------------ Cohere and Jina */

static bool start_results(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_rerank *r = (struct sup_rerank *)c;
    Ipc__Rerank q = IPC__RERANK__INIT;
    json_t *fields = v[RES_RANK_FIELDS].j;
    const char *only = json_string_value(json_array_get(fields, 0));

    r->form = SUP_RERANK_RESULTS;
    if (fields && (json_array_size(fields) != 1 || !only || strcmp(only, "text") != 0)) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "rank_fields",
                     "field 'rank_fields': only [\"text\"] is ranked by");
        return false;
    }
    r->top_n = (uint32_t)v[RES_TOP_N].i;
    r->with_texts = v[RES_RETURN].b;
    /* these services cut what is too long, where the others refuse it */
    q.truncate = v[RES_TRUNCATION].b;
    r->doc_tokens = (uint32_t)v[RES_MAX_TOKENS].i;
    return submit(r, v[RES_QUERY].j, v[RES_DOCUMENTS].j, "documents", &q, f);
}

/* ---------------------------------------------------------------------- TEI */

/* A server of TEI has one model, and its clients name none. */
static const char *tei_model(struct sup_call *c, json_t *body, struct sup_fail *f)
{
    json_t *j = json_object_get(body, "model");
    const char *query = sup_req_query(c->req, "model"), *header = sup_req_header(c->req, "x-model");

    if (json_string_length(j) > 0 && json_string_length(j) <= SUP_NAME_MAX)
        return json_string_value(j);
    if (j && !json_is_null(j)) {
        sup_field_bad(f, "model", j, "a model's id");
        return NULL;
    }
    if (query && *query)
        return query;
    return header && *header ? header : sup_call_only_model(c, f);
}

static bool start_tei(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_rerank *r = (struct sup_rerank *)c;
    Ipc__Rerank q = IPC__RERANK__INIT;

    r->form = SUP_RERANK_TEI;
    r->raw = v[TEI_RAW].b;
    r->with_texts = v[TEI_RETURN].b;
    q.truncate = v[TEI_TRUNCATE].b;
    return submit(r, v[TEI_QUERY].j, v[TEI_TEXTS].j, "texts", &q, f);
}

/* -------------------------------------------------------------------- all */

static void frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_fail f;

    if (fr->body_case == IPC__FRAME__BODY_SCORES &&
        !sup_rerank_answer((struct sup_rerank *)c, fr->scores, &f))
        sup_call_fail(c, &f);
}

static void finish(struct sup_call *c)
{
    struct sup_rerank *r = (struct sup_rerank *)c;
    struct sup_fail f;

    if (r->n_sent == 0 && !sup_rerank_answer(r, NULL, &f))
        sup_call_fail(c, &f);
    else if (r->numeric && !r->out.failed)
        sup_call_reply_raw(c, SUP_NUMERIC_TYPE, r->out.p, r->out.n);
    else
        sup_call_reply(c, &r->out);
}

static void deinit(struct sup_call *c)
{
    struct sup_rerank *r = (struct sup_rerank *)c;

    free(r->at);
    json_decref(r->docs);
    sup_json_deinit(&r->out);
    sup_json_deinit(&r->errors.out);
}

#define OPS(fields_, n_fields_, start_, model_of_)                                           \
    {                                                                                        \
        .size = sizeof(struct sup_rerank), .need = SUP_NEED_RERANK, .model_of = (model_of_), \
        .fields = (fields_), .n_fields = (n_fields_), .start = (start_), .frame = frame,     \
        .finish = finish, .deinit = deinit,                                                  \
    }

const struct sup_call_ops sup_rerank_ops = OPS(our_fields, OUR_N, start_ours, NULL),
                          sup_rerank_multimodal_ops =
                              OPS(our_fields, OUR_N, start_multimodal, NULL),
                          sup_rerank_results_ops = OPS(results_fields, RES_N, start_results, NULL),
                          sup_rerank_tei_ops = OPS(tei_fields, TEI_N, start_tei, tei_model);
