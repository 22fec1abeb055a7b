/* mdl_deberta_run.c - a pass of the DeBERTa encoder.
 *
 * Embeddings (word, and position and type where the model has them; LayerNorm), then layers as
 * BERT's with disentangled attention:
 *   score[i][j] = (q_i . k_j + q_i . rk[d] + k_j . rq[d]) / sqrt(head_dim * f),  d = rel[i - j]
 * Source: encoders.md 5; He et al. 2021. Tests: tests/models/test_mdl_deberta.c
 */
#include "mdl_deberta_impl.h"

static enum rc embed(struct mdl_deberta *e, struct be_ctx *be, const struct mdl_pass *p,
                     const int32_t *types, struct rc_err *err)
{
    struct be_tensor *to = e->words ? e->words : e->x;
    struct be_embed_args a = {
        .table = e->word, .ids = p->ids, .n = p->n_rows, .scale = 1, .out = to};
    struct be_layer_norm_args ln = {
        .x = e->x, .w = e->ln_w, .b = e->ln_b, .out = e->x, .n = p->n_rows, .eps = e->norm_eps};
    enum rc rc = be_embed(be, &a, err);

    a.accumulate = true;
    a.table = e->position;
    a.ids = p->pos;
    if (rc == RC_OK && e->position)
        rc = be_embed(be, &a, err);
    a.table = e->type;
    a.ids = types ? types : e->zeros;
    if (rc == RC_OK && e->type)
        rc = be_embed(be, &a, err);
    if (rc == RC_OK && e->words)
        rc = mdl_dense(be, e->words, e->proj_w, NULL, e->x, p->n_rows, BE_EPI_NONE, err);
    return rc != RC_OK ? rc : be_layer_norm(be, &ln, err);
}

static enum rc attend(struct mdl_deberta *e, struct be_ctx *be, const struct deb_layer *w,
                      const struct mdl_pass *p, struct rc_err *err)
{
    struct be_attention_rel_args rel = {.q = e->q,
                                        .k = e->k,
                                        .v = e->v,
                                        .rk = w->rk,
                                        .rq = w->rq,
                                        .out = e->att,
                                        .rel = e->rel,
                                        .reach = e->longest - 1,
                                        .n_rel = e->n_rel,
                                        .offsets = p->offsets,
                                        .n_seqs = p->n_seqs,
                                        .n_heads = e->n_heads,
                                        .head_dim = e->head_dim,
                                        .scale = e->scale};
    struct be_attention_packed_args plain = {.q = e->q,
                                             .k = e->k,
                                             .v = e->v,
                                             .out = e->att,
                                             .offsets = p->offsets,
                                             .n_seqs = p->n_seqs,
                                             .n_heads = e->n_heads,
                                             .n_kv_heads = e->n_heads,
                                             .head_dim = e->head_dim,
                                             .scale = e->scale,
                                             .radius = -1};

    return e->relative ? be_attention_rel(be, &rel, err) : be_attention_packed(be, &plain, err);
}

static enum rc layer(struct mdl_deberta *e, struct be_ctx *be, const struct deb_layer *w,
                     const struct mdl_pass *p, struct rc_err *err)
{
    uint32_t n = p->n_rows;
    struct be_linear_args qkv = {.x = e->x,
                                 .n = n,
                                 .n_parts = 3,
                                 .epi = BE_EPI_NONE,
                                 .part = {{.w = w->q_w, .b = w->q_b, .out = e->q},
                                          {.w = w->k_w, .b = w->k_b, .out = e->k},
                                          {.w = w->v_w, .b = w->v_b, .out = e->v}}};
    struct be_layer_norm_args ln = {.x = e->t,
                                    .add = e->x,
                                    .w = w->ln1_w,
                                    .b = w->ln1_b,
                                    .out = e->x,
                                    .n = n,
                                    .eps = e->norm_eps};
    enum rc rc;

    if ((rc = be_linear(be, &qkv, err)) != RC_OK || (rc = attend(e, be, w, p, err)) != RC_OK ||
        (rc = mdl_dense(be, e->att, w->o_w, w->o_b, e->t, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_layer_norm(be, &ln, err)) != RC_OK)
        return rc;
    ln.w = w->ln2_w;
    ln.b = w->ln2_b;
    if ((rc = mdl_dense(be, e->x, w->up_w, w->up_b, e->ff, n, e->act, err)) != RC_OK ||
        (rc = mdl_dense(be, e->ff, w->down_w, w->down_b, e->t, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return be_layer_norm(be, &ln, err);
}

static enum rc add_conv(struct mdl_deberta *e, struct be_ctx *be, const struct mdl_pass *p,
                        struct rc_err *err)
{
    struct be_layer_norm_args ln = {.x = e->conv_rows,
                                    .add = e->x,
                                    .w = e->conv_ln_w,
                                    .b = e->conv_ln_b,
                                    .out = e->x,
                                    .n = p->n_rows,
                                    .eps = e->norm_eps};

    return be_layer_norm(be, &ln, err);
}

enum rc mdl_deberta_run(struct mdl_deberta *e, const struct mdl *m, const struct mdl_pass *p,
                        const int32_t *types, const struct be_tensor **out, struct rc_err *err)
{
    struct be_ctx *be = m->be;
    enum rc rc;

    if (!e->placed && (rc = deb_place_layers(e, be, err)) != RC_OK)
        return rc;
    e->placed = true;
    if ((rc = embed(e, be, p, types, err)) != RC_OK ||
        (e->n_taps > 0 && (rc = deb_conv(e, be, p, err)) != RC_OK))
        return rc;
    for (uint32_t l = 0; l < e->n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = layer(e, be, &e->layer[l], p, err)) != RC_OK ||
            (l == 0 && e->n_taps > 0 && (rc = add_conv(e, be, p, err)) != RC_OK))
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, e->x, p->n_rows);
    }
    *out = e->x;
    return RC_OK;
}
