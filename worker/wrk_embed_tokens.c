/* wrk_embed_tokens.c - what a pass gives of every token: lexical weights and vectors.
 *
 * Kept per item until the answer is sent. Token vectors are the largest thing that a task holds:
 * they are counted before anything is computed, per answer and over all tasks that have begun.
 * A document's vectors are not kept at all when only their interaction with a query is asked for.
 * Which rows and weights count is the model's to say. Tests: tests/worker/test_wrk_engine_rerank.c
 */
#include "wrk_embed_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum rc wrk_outputs_check(const struct wrk_engine *e, unsigned outputs, const char *field,
                          struct rc_err *why)
{
    if ((outputs & ~(IPC_OUT_DENSE | IPC_OUT_SPARSE | IPC_OUT_TOKENS)) != 0)
        return rc_fail_what(why, RC_INVALID, field, "%s %u, expected a sum of 1, 2 and 4", field,
                            outputs);
    if ((outputs & IPC_OUT_SPARSE) != 0 && !e->info->can_sparse)
        return rc_fail_what(why, RC_UNSUPPORTED, field,
                            "this model has no head for sparse (lexical) weights");
    if ((outputs & IPC_OUT_TOKENS) != 0 && e->info->token_dim == 0)
        return rc_fail_what(why, RC_UNSUPPORTED, field,
                            "this model has no head for a vector of each token");
    return RC_OK;
}

/* Are vectors of this item kept? Of a Rerank task only the query's. */
static bool keeps_rows(const struct wrk_task *t, const struct wrk_item *it)
{
    const struct wrk_embed *m = t->embed;

    return (m->outputs & IPC_OUT_TOKENS) != 0 && (t->rerank == NULL || it->idx == m->first);
}

enum rc wrk_tokens_count(const struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                         struct rc_err *why)
{
    struct wrk_embed *m = t->embed;
    uint64_t bytes = m->token_bytes + (uint64_t)it->n * e->info->token_dim * sizeof(float);

    if (!keeps_rows(t, it))
        return RC_OK;
    if (bytes > WRK_TOKEN_VECTORS_BYTES)
        return rc_bound(rc_fail_what(why, RC_LIMIT, "token_vectors",
                                     "token vectors of one answer take %" PRIu64
                                     " bytes, at most %llu: ask for fewer inputs at a time",
                                     bytes, WRK_TOKEN_VECTORS_BYTES),
                        bytes, WRK_TOKEN_VECTORS_BYTES, why);
    m->token_bytes = bytes;
    return RC_OK;
}

bool wrk_tokens_begin(struct wrk_engine *e, struct wrk_embed *m)
{
    if (m->begun || m->token_bytes == 0)
        return true;
    if (e->token_bytes > 0 && e->token_bytes + m->token_bytes > WRK_TOKEN_HELD_BYTES)
        return false;
    e->token_bytes += m->token_bytes;
    m->begun = true;
    return true;
}

void wrk_item_drop_tokens(struct wrk_item *it)
{
    free(it->sparse.ids);
    free(it->sparse.weights);
    free(it->rows.v);
    it->sparse = (struct wrk_sparse){0};
    it->rows = (struct wrk_rows){0};
}

/* ------------------------------------------------------------- lexical weights */

static enum rc take_sparse(const struct wrk_engine *e, const int32_t *ids, const float *w,
                           uint32_t n, struct wrk_sparse *out, struct rc_err *why)
{
    struct mdl_lexical *map;

    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(w[i]))
            return rc_fail(why, RC_INTERNAL, "the model computed a weight that is not finite");
    map = malloc(n * sizeof(*map));
    out->ids = malloc(n * sizeof(*out->ids));
    out->weights = malloc(n * sizeof(*out->weights));
    if (map == NULL || out->ids == NULL || out->weights == NULL) {
        free(map);
        return rc_fail(why, RC_NOMEM, "lexical weights of %u tokens", n);
    }
    out->n = (uint32_t)mdl_sparse_map(e->o.mdl, ids, w, n, map);
    for (uint32_t i = 0; i < out->n; i++) {
        out->ids[i] = (uint32_t)map[i].id;
        out->weights[i] = map[i].weight;
    }
    free(map);
    return RC_OK;
}

/* --------------------------------------------------------------- token vectors */

static enum rc check_rows(const float *v, size_t n, struct rc_err *why)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return rc_fail(why, RC_INTERNAL, "the model computed a vector that is not finite");
    return RC_OK;
}

static enum rc take_rows(struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                         uint32_t row0, bool (*stop)(void *user), struct rc_err *why)
{
    uint32_t dim = e->info->token_dim, first = 0, n = mdl_vector_rows(it->n, &first);
    const struct wrk_rows rows = {n, e->embed_vectors + (size_t)(row0 + first) * dim};
    enum rc rc = check_rows(rows.v, (size_t)n * dim, why);

    if (rc != RC_OK)
        return rc;
    if (!keeps_rows(t, it))
        return wrk_late(&t->embed->item[t->embed->first].rows, &rows, dim, stop, e, &it->late, why);
    if ((it->rows.v = malloc((size_t)n * dim * sizeof(float) + 1)) == NULL)
        return rc_fail(why, RC_NOMEM, "vectors of %u tokens", n);
    memcpy(it->rows.v, rows.v, (size_t)n * dim * sizeof(float));
    it->rows.n = n;
    return RC_OK;
}

enum rc wrk_tokens_take(struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                        uint32_t row0, bool (*stop)(void *user), struct rc_err *why)
{
    enum rc rc = RC_OK;

    wrk_item_drop_tokens(it); /* of a pass that ended early */
    if ((t->embed->outputs & IPC_OUT_SPARSE) != 0)
        rc = take_sparse(e, e->embed_ids + row0, e->embed_weights + row0, it->n, &it->sparse, why);
    if (rc == RC_OK && (t->embed->outputs & IPC_OUT_TOKENS) != 0)
        rc = take_rows(e, t, it, row0, stop, why);
    return rc;
}
