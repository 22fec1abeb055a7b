/* mdl_scorer.c - the head of a cross-encoder.
 *
 * Always true: a sequence's logit depends on its own rows alone; passes allocate nothing.
 * Source: encoders.md 3, 4.4, 5. Tests: tests/models/test_mdl_xlmr*.c, test_mdl_deberta*.c,
 * test_mdl_modernbert_golden.c
 */
#include "mdl_scorer.h"

enum rc mdl_scorer_config(struct mdl *m, const char *name, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, name);

    if (t && t->n_dims == 2 && t->dims[0] != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, "num_labels",
                            "tensor '%s': a classifier of %llu labels; cross-encoders of one logit "
                            "are served",
                            name, (unsigned long long)t->dims[0]);
    m->info.can_rerank = true;
    return RC_OK;
}

enum rc mdl_scorer_fit(struct mdl_scorer *s, struct mdl *m, struct rc_err *err)
{
    uint32_t seqs = m->passes.max_seqs, d = m->info.d_model;
    enum rc rc;

    if ((rc = mdl_plan_tensor(&m->plan, seqs, d, &s->pooled, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, seqs, d, &s->hidden, err)) != RC_OK)
        return rc;
    return mdl_plan_tensor(&m->plan, seqs, 1, &s->logit, err);
}

enum rc mdl_scorer_run(const struct mdl_scorer *s, struct mdl *m, const struct be_tensor *x,
                       const struct mdl_pass *p, float *out, struct rc_err *err)
{
    const struct be_pool_args pool = {
        .x = x, .offsets = p->offsets, .n_seqs = p->n_seqs, .kind = s->pool, .out = s->pooled};
    const struct be_softcap_args tanh_1 = {.x = s->hidden, .n = p->n_seqs, .cap = 1};
    const struct be_layer_norm_args norm = {
        .x = s->hidden, .w = s->norm_w, .out = s->hidden, .n = p->n_seqs, .eps = s->norm_eps};
    enum rc rc;

    if ((rc = be_pool(m->be, &pool, err)) != RC_OK ||
        (rc = mdl_dense(m->be, s->pooled, s->dense_w, s->dense_b, s->hidden, p->n_seqs, s->epi,
                        err)) != RC_OK ||
        (s->tanh && (rc = be_softcap(m->be, &tanh_1, err)) != RC_OK) ||
        (s->norm_w && (rc = be_layer_norm(m->be, &norm, err)) != RC_OK) ||
        (rc = mdl_dense(m->be, s->hidden, s->logit_w, s->logit_b, s->logit, p->n_seqs, BE_EPI_NONE,
                        err)) != RC_OK)
        return rc;
    return be_tensor_read(m->be, s->logit, 0, p->n_seqs, out, err);
}
