/* wrk_embed_send.c - the last frame of an Embed task: its vectors and what failed.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c
 */
#include "wrk_embed_impl.h"

#include <stdlib.h>

struct lists {
    uint32_t *n_tokens, *n_media;
    protobuf_c_boolean *cut;
    Ipc__ItemError *errs, **ptr;
    Ipc__Error *why;
};

static bool make(struct lists *l, const struct wrk_embed *m)
{
    l->n_tokens = calloc(m->n, sizeof(*l->n_tokens));
    l->n_media = calloc(m->n, sizeof(*l->n_media));
    l->cut = calloc(m->n, sizeof(*l->cut));
    l->errs = calloc(m->n_bad + 1, sizeof(*l->errs));
    l->ptr = calloc(m->n_bad + 1, sizeof(Ipc__ItemError *));
    l->why = calloc(m->n_bad + 1, sizeof(*l->why));
    return l->n_tokens && l->n_media && l->cut && l->errs && l->ptr && l->why;
}

static void fill(struct lists *l, const struct wrk_embed *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        l->n_tokens[i] = m->item[i].n - m->item[i].n_media_rows;
        l->n_media[i] = m->item[i].n_media_rows;
        l->cut[i] = m->item[i].truncated;
    }
    for (uint32_t i = 0; i < m->n_bad; i++) {
        ipc_error_from(&l->why[i], &m->bad[i].err);
        ipc__item_error__init(&l->errs[i]);
        l->errs[i].index = (uint32_t)m->bad[i].err.item;
        l->errs[i].error = &l->why[i];
        l->errs[i].stage = (char *)m->bad[i].stage;
        l->ptr[i] = &l->errs[i];
    }
}

enum rc wrk_embed_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    const struct wrk_embed *m = t->embed;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Vectors v = IPC__VECTORS__INIT;
    struct lists l = {0};
    enum rc rc = RC_NOMEM;

    if (!make(&l, m)) {
        rc_fail(err, RC_NOMEM, "vectors");
        goto out;
    }
    fill(&l, m);
    v.n = m->n;
    v.dim = m->dim;
    v.data.data = (uint8_t *)m->out;
    v.data.len = (size_t)m->n * m->dim * sizeof(float);
    v.n_n_tokens = m->n;
    v.n_tokens = l.n_tokens;
    v.n_truncated = m->n;
    v.truncated = l.cut;
    v.n_errors = m->n_bad;
    v.errors = l.ptr;
    v.model_identity = (char *)e->info->identity;
    if (m->n_media_order > 0) {
        v.n_n_media_tokens = m->n;
        v.n_media_tokens = l.n_media;
    }
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_VECTORS;
    f.vectors = &v;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    free(l.n_tokens);
    free(l.n_media);
    free(l.cut);
    free(l.errs);
    free(l.ptr);
    free(l.why);
    return rc;
}
