/* wrk_embed_send.c - the last frame of an Embed task: its vectors and what failed.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c, test_wrk_engine_rerank.c
 */
#include "wrk_embed_impl.h"

#include <stdlib.h>

enum rc wrk_item_lists_init(struct wrk_item_lists *l, const struct wrk_embed *m, uint32_t n,
                            struct rc_err *err)
{
    l->n_tokens = calloc(n, sizeof(*l->n_tokens));
    l->n_media = calloc(n, sizeof(*l->n_media));
    l->cut = calloc(n, sizeof(*l->cut));
    l->errs = calloc(m->n_bad + 1, sizeof(*l->errs));
    l->errors = calloc(m->n_bad + 1, sizeof(Ipc__ItemError *));
    l->why = calloc(m->n_bad + 1, sizeof(*l->why));
    if (!l->n_tokens || !l->n_media || !l->cut || !l->errs || !l->errors || !l->why)
        return rc_fail(err, RC_NOMEM, "an answer about %u inputs", n);
    for (uint32_t i = 0; i < n; i++) {
        l->n_tokens[i] = m->item[i].n - m->item[i].n_media_rows;
        l->n_media[i] = m->item[i].n_media_rows;
        l->cut[i] = m->item[i].truncated;
    }
    l->n_errors = m->n_bad;
    for (uint32_t i = 0; i < m->n_bad; i++) {
        ipc_error_from(&l->why[i], &m->bad[i]);
        ipc__item_error__init(&l->errs[i]);
        l->errs[i].index = (uint32_t)m->bad[i].item;
        l->errs[i].error = &l->why[i];
        l->errors[i] = &l->errs[i];
    }
    return RC_OK;
}

void wrk_item_lists_deinit(struct wrk_item_lists *l)
{
    free(l->n_tokens);
    free(l->n_media);
    free(l->cut);
    free(l->errs);
    free(l->errors);
    free(l->why);
}

/* Sparse maps and token vectors of the items; borrowed from them. */
struct outputs {
    Ipc__SparseVector *sparse, **sparse_ptr;
    Ipc__TokenVectors *rows, **rows_ptr;
};

static bool outputs_init(struct outputs *o, const struct wrk_engine *e, const struct wrk_embed *m)
{
    o->sparse = calloc(m->n, sizeof(*o->sparse));
    o->sparse_ptr = calloc(m->n, sizeof(Ipc__SparseVector *));
    o->rows = calloc(m->n, sizeof(*o->rows));
    o->rows_ptr = calloc(m->n, sizeof(Ipc__TokenVectors *));
    if (!o->sparse || !o->sparse_ptr || !o->rows || !o->rows_ptr)
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct wrk_item *it = &m->item[i];

        ipc__sparse_vector__init(&o->sparse[i]);
        o->sparse[i].n_ids = o->sparse[i].n_weights = it->sparse.n;
        o->sparse[i].ids = it->sparse.ids;
        o->sparse[i].weights = it->sparse.weights;
        o->sparse_ptr[i] = &o->sparse[i];
        ipc__token_vectors__init(&o->rows[i]);
        o->rows[i].n = it->rows.n;
        o->rows[i].data.data = (uint8_t *)it->rows.v;
        o->rows[i].data.len = (size_t)it->rows.n * e->info->token_dim * sizeof(float);
        o->rows_ptr[i] = &o->rows[i];
    }
    return true;
}

static void outputs_deinit(struct outputs *o)
{
    free(o->sparse);
    free(o->sparse_ptr);
    free(o->rows);
    free(o->rows_ptr);
}

enum rc wrk_embed_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    const struct wrk_embed *m = t->embed;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Vectors v = IPC__VECTORS__INIT;
    struct wrk_item_lists l = {0};
    struct outputs o = {0};
    enum rc rc;

    if ((rc = wrk_item_lists_init(&l, m, m->n, err)) != RC_OK)
        goto out;
    if (!outputs_init(&o, e, m)) {
        rc = rc_fail(err, RC_NOMEM, "vectors of %u inputs", m->n);
        goto out;
    }
    v.n = m->n;
    v.dim = m->dim;
    v.data.data = (uint8_t *)m->out;
    v.data.len = (size_t)m->n * m->dim * sizeof(float);
    v.n_n_tokens = m->n;
    v.n_tokens = l.n_tokens;
    v.n_truncated = m->n;
    v.truncated = l.cut;
    v.n_errors = l.n_errors;
    v.errors = l.errors;
    v.model_identity = (char *)e->info->identity;
    v.n_sparse = (m->outputs & IPC_OUT_SPARSE) != 0 ? m->n : 0;
    v.sparse = o.sparse_ptr;
    v.n_token_vectors = (m->outputs & IPC_OUT_TOKENS) != 0 ? m->n : 0;
    v.token_vectors = o.rows_ptr;
    if (m->n_media_order > 0) {
        v.n_n_media_tokens = m->n;
        v.n_media_tokens = l.n_media;
    }
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_VECTORS;
    f.vectors = &v;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    wrk_item_lists_deinit(&l);
    outputs_deinit(&o);
    return rc;
}
