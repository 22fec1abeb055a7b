/* wrk_rerank.c - Rerank tasks: documents scored against a query.
 *
 * A cross-encoder reads pairs: each document is an item with the query in front of it, and its
 * score is the sigmoid of the one logit. An embedder reads the query and the documents, each once,
 * and scores by the kinds of vectors it gives: dense (cosine), sparse (sum over common ids), late
 * (late interaction of token vectors), as their weighted mean. Both go through the micro-batches of
 * embeddings (wrk_embed_pass.c), beside everybody else's items.
 *
 * Always true: every score is finite; a document's score does not depend on the other documents.
 * Source: encoders.md 4.3, 4.4, 5.6. Tests: tests/worker/test_wrk_engine_rerank.c
 */
#include "wrk_embed_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What pairs of one task read: the query is read again with every document. */
#define PAIR_BYTES_MAX (256ull << 20)
#define LANES 16 /* sums of a dot product, so that it vectorizes; their order is fixed */

void wrk_rerank_free(struct wrk_task *t)
{
    free(t->rerank);
    t->rerank = NULL;
}

/* -------------------------------------------------------------------- opening */

/* Which kinds are computed, and what they weigh. */
static enum rc read_weights(const struct wrk_engine *e, const Ipc__Rerank *q, struct wrk_rerank *r,
                            struct rc_err *why)
{
    double sum = 0;

    r->weight[0] = 1;
    r->weight[1] = e->info->can_sparse;
    r->weight[2] = e->info->token_dim > 0;
    if (q->n_weights == 0)
        return RC_OK;
    if (r->pairs)
        return rc_fail_what(why, RC_UNSUPPORTED, "weights",
                            "this model scores pairs: it has no dense, sparse or token vectors");
    if (q->n_weights != 3)
        return rc_fail_what(why, RC_INVALID, "weights",
                            "%zu weights, expected those of dense, sparse and token vectors",
                            q->n_weights);
    for (int i = 0; i < 3; i++) {
        if (!isfinite(q->weights[i]) || q->weights[i] < 0)
            return rc_fail_what(why, RC_INVALID, "weights", "weight %d is %g, expected 0 or more",
                                i, (double)q->weights[i]);
        r->weight[i] = (double)q->weights[i];
        sum += r->weight[i];
    }
    return sum > 0 ? RC_OK : rc_fail_what(why, RC_INVALID, "weights", "all weights are 0");
}

static unsigned outputs_of(const struct wrk_rerank *r)
{
    return (r->weight[0] > 0 ? IPC_OUT_DENSE : 0) | (r->weight[1] > 0 ? IPC_OUT_SPARSE : 0) |
           (r->weight[2] > 0 ? IPC_OUT_TOKENS : 0);
}

/* The task type if the model knows it, else none: not every embedder has prompts. */
static enum rc find_type(const struct wrk_engine *e, const char *type, const char **out,
                         struct rc_err *why)
{
    struct mdl_ids ids = {0};
    bool cut = false;
    enum rc rc = mdl_embed_tokens(e->o.mdl, "a", 1, type, false, &cut, &ids, why);

    mdl_ids_deinit(&ids);
    *out = type;
    if (rc == RC_INVALID && strcmp(why->what, "task_type") == 0) {
        *out = "";
        *why = RC_ERR_INIT;
        return RC_OK;
    }
    return rc;
}

static enum rc check_sizes(const Ipc__Rerank *q, const struct wrk_rerank *r, struct rc_err *why)
{
    uint64_t bytes = q->query.len, most = PAIR_BYTES_MAX;

    if (q->n_documents == 0)
        return rc_fail_what(why, RC_INVALID, "documents", "no document to score");
    if (q->n_documents >= WRK_EMBED_ITEMS_MAX)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "documents", "%zu documents, at most %u",
                                     q->n_documents, WRK_EMBED_ITEMS_MAX - 1),
                        q->n_documents, WRK_EMBED_ITEMS_MAX - 1, why);
    bytes *= q->n_documents; /* both are lengths within one frame */
    if (r->pairs && bytes > most)
        return rc_fail_what(why, RC_TOO_LARGE, "query",
                            "a query of %zu bytes for %zu documents: together %llu bytes, at most "
                            "%llu",
                            q->query.len, q->n_documents, (unsigned long long)bytes,
                            (unsigned long long)most);
    return RC_OK;
}

enum rc wrk_rerank_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Rerank *q = t->frame->rerank;
    struct wrk_embed_ask ask = {.dim = e->encode_dim,
                                .outputs = IPC_OUT_DENSE,
                                .first = WRK_NO_ITEM,
                                .per_item = q->per_item,
                                .truncate = q->truncate,
                                .task_type = ""};
    struct wrk_rerank *r;
    enum rc rc;

    if (e->encode_dim == 0)
        return rc_fail_what(why, RC_UNSUPPORTED, "model",
                            "this model scores no documents: it is neither a cross-encoder nor an "
                            "embedder");
    if ((t->rerank = r = calloc(1, sizeof(*r))) == NULL)
        return rc_fail(why, RC_NOMEM, "a rerank task");
    r->pairs = e->info->can_rerank;
    if ((rc = wrk_identity_check(e, q->model_identity, why)) != RC_OK ||
        (rc = check_sizes(q, r, why)) != RC_OK || (rc = read_weights(e, q, r, why)) != RC_OK)
        return rc;
    r->n_docs = ask.n = (uint32_t)q->n_documents;
    if (!r->pairs) {
        ask.first = ask.n++;
        ask.outputs = outputs_of(r);
        if ((rc = wrk_outputs_check(e, ask.outputs, "weights", why)) != RC_OK ||
            (rc = find_type(e, "RETRIEVAL_QUERY", &r->query_type, why)) != RC_OK ||
            (rc = find_type(e, "RETRIEVAL_DOCUMENT", &r->doc_type, why)) != RC_OK)
            return rc;
    }
    return wrk_embed_open(t, &ask, why);
}

/* --------------------------------------------------------------------- reading */

static const ProtobufCBinaryData *text_of(const struct wrk_task *t, uint32_t idx)
{
    const Ipc__Rerank *q = t->frame->rerank;

    return idx < t->rerank->n_docs ? &q->documents[idx] : &q->query;
}

static const char *chars(const ProtobufCBinaryData *d)
{
    return d->data != NULL ? (const char *)d->data : "";
}

size_t wrk_rerank_item_bytes(const struct wrk_task *t, uint32_t idx)
{
    return text_of(t, idx)->len + (t->rerank->pairs ? t->frame->rerank->query.len : 0);
}

enum rc wrk_rerank_tokens(struct wrk_engine *e, struct wrk_task *t, uint32_t idx, bool *truncated,
                          struct rc_err *why)
{
    const Ipc__Rerank *q = t->frame->rerank;
    const ProtobufCBinaryData *d = text_of(t, idx);
    const struct wrk_rerank *r = t->rerank;

    if (r->pairs)
        return mdl_pair_tokens(e->o.mdl, chars(&q->query), q->query.len, chars(d), d->len,
                               q->truncate, truncated, &t->embed->ids, why);
    return mdl_embed_tokens(e->o.mdl, chars(d), d->len,
                            idx < r->n_docs ? r->doc_type : r->query_type, q->truncate, truncated,
                            &t->embed->ids, why);
}

void wrk_rerank_explain(const struct wrk_task *t, struct rc_err *why)
{
    bool is_query;

    if (t->rerank == NULL || why->item < 0)
        return;
    is_query = (uint32_t)why->item >= t->rerank->n_docs;
    if (is_query)
        rc_wrap(why, "query");
    else
        rc_wrap(why, "document %d", why->item);
    why->item = is_query ? -1 : why->item;
    if (why->code != RC_LIMIT) /* those name the limit */
        snprintf(why->what, sizeof(why->what), "%s", is_query ? "query" : "documents");
}

/* --------------------------------------------------------------------- scoring */

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum[LANES] = {0}, all = 0;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            sum[k] += a[i + k] * b[i + k];
    for (uint32_t k = 0; i + k < n; k++)
        sum[k] += a[i + k] * b[i + k];
    for (uint32_t k = 0; k < LANES; k++)
        all += sum[k];
    return all;
}

enum rc wrk_late(const struct wrk_rows *q, const struct wrk_rows *d, uint32_t dim,
                 bool (*stop)(void *user), void *user, float *out, struct rc_err *why)
{
    double sum = 0;

    for (uint32_t i = 0; i < q->n && d->n > 0; i++) {
        float best = -INFINITY;

        if (stop(user))
            return rc_fail(why, RC_CANCELLED, "stopped");
        for (uint32_t k = 0; k < d->n; k++) {
            float v = dot(q->v + (size_t)i * dim, d->v + (size_t)k * dim, dim);

            best = v > best ? v : best;
        }
        sum += (double)best;
    }
    *out = q->n > 0 ? (float)(sum / q->n) : 0;
    return RC_OK;
}

/* Of vectors that a model does not bring to length 1 too. */
static double cosine(const float *a, const float *b, uint32_t n)
{
    double ab = 0, aa = 0, bb = 0;

    for (uint32_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / (sqrt(aa) * sqrt(bb)) : 0;
}

static double common(const struct wrk_sparse *a, const struct wrk_sparse *b)
{
    double sum = 0;

    for (uint32_t i = 0, k = 0; i < a->n && k < b->n;) {
        if (a->ids[i] == b->ids[k])
            sum += (double)a->weights[i++] * (double)b->weights[k++];
        else if (a->ids[i] < b->ids[k])
            i++;
        else
            k++;
    }
    return sum;
}

/* One number for each document. */
struct scores {
    float *all, *kind[3]; /* kinds that were not computed are NULL; pairs: kind[0] is the logit */
};

static bool scores_init(struct scores *s, const struct wrk_rerank *r)
{
    bool ok = (s->all = calloc(r->n_docs, sizeof(float))) != NULL;

    for (int k = 0; k < 3; k++)
        if (r->pairs ? k == 0 : r->weight[k] > 0)
            ok = (s->kind[k] = calloc(r->n_docs, sizeof(float))) != NULL && ok;
    return ok;
}

static void scores_deinit(struct scores *s)
{
    free(s->all);
    for (int k = 0; k < 3; k++)
        free(s->kind[k]);
}

static void score(const struct wrk_rerank *r, const struct wrk_embed *m, uint32_t idx,
                  struct scores *out)
{
    const struct wrk_item *d = &m->item[idx], *q;
    double v[3] = {0}, sum = 0, weight = 0;

    if (r->pairs) {
        out->kind[0][idx] = m->out[idx];
        out->all[idx] = (float)(1 / (1 + exp(-(double)m->out[idx])));
        return;
    }
    q = &m->item[m->first];
    if (out->kind[0] != NULL)
        v[0] = cosine(m->out + (size_t)q->idx * m->dim, m->out + (size_t)idx * m->dim, m->dim);
    if (out->kind[1] != NULL)
        v[1] = common(&q->sparse, &d->sparse);
    if (out->kind[2] != NULL)
        v[2] = (double)d->late;
    for (int k = 0; k < 3; k++) {
        if (out->kind[k] == NULL)
            continue;
        out->kind[k][idx] = (float)v[k];
        sum += r->weight[k] * v[k];
        weight += r->weight[k];
    }
    out->all[idx] = (float)(sum / weight);
}

/* ------------------------------------------------------------------- the answer */

static void list(size_t *n, float **to, float *from, uint32_t n_docs)
{
    *n = from != NULL ? n_docs : 0;
    *to = from;
}

enum rc wrk_rerank_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    const struct wrk_rerank *r = t->rerank;
    const struct wrk_embed *m = t->embed;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Scores a = IPC__SCORES__INIT;
    struct wrk_item_lists l = {0};
    struct scores s = {0};
    bool *bad = calloc(m->n, sizeof(*bad));
    enum rc rc = RC_NOMEM;

    if (bad == NULL || !scores_init(&s, r)) {
        rc_fail(err, RC_NOMEM, "scores of %u documents", r->n_docs);
        goto out;
    }
    if ((rc = wrk_item_lists_init(&l, m, r->n_docs, err)) != RC_OK)
        goto out;
    for (uint32_t i = 0; i < m->n_bad; i++)
        bad[m->bad[i].item] = true;
    for (uint32_t i = 0; i < r->n_docs; i++)
        if (!bad[i])
            score(r, m, i, &s);
    list(&a.n_scores, &a.scores, s.all, r->n_docs);
    if (r->pairs) {
        list(&a.n_logits, &a.logits, s.kind[0], r->n_docs);
    } else {
        list(&a.n_dense, &a.dense, s.kind[0], r->n_docs);
        list(&a.n_sparse, &a.sparse, s.kind[1], r->n_docs);
        list(&a.n_late, &a.late, s.kind[2], r->n_docs);
        a.query_tokens = m->item[m->first].n;
    }
    a.n_n_tokens = a.n_truncated = r->n_docs;
    a.n_tokens = l.n_tokens;
    a.truncated = l.cut;
    a.n_errors = l.n_errors;
    a.errors = l.errors;
    a.model_identity = (char *)e->info->identity;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_SCORES;
    f.scores = &a;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    wrk_item_lists_deinit(&l);
    scores_deinit(&s);
    free(bad);
    return rc;
}
