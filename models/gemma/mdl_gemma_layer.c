/* mdl_gemma_layer.c - one layer of a Gemma model, in the pieces the forward passes need.
 *
 *   x += post_attn_norm(o(attention(attn_norm(x))));  x += post_ffn_norm(ffn(ffn_norm(x)))
 *   Gemma 4:  x += ple_norm(ple_proj(gelu(ple_gate(x)) * ple[layer]));  x *= layer_scalar
 *
 * Keys and values, query, attention and the rest are apart, because a layer may have no
 * keys of its own and because most rows of a prompt need only their keys. Encoders
 * (EmbeddingGemma) have no cache: their rows see each other, inside packed sequences.
 * Straight-line calls on rows; allocates nothing and knows no device.
 * Source: gemma.md 2 and 3. Tests: tests/models/test_mdl_gemma*_golden.c
 */
#include "mdl_gemma.h"

#include <math.h>

static struct be_rope_args turn(const struct gemma *g, const struct gemma_layer *w,
                                const struct gemma_rows *r, struct be_tensor *x, uint32_t n_heads,
                                const struct be_weight *norm)
{
    const struct gemma_geo *geo = &g->geo[w->kind];

    return (struct be_rope_args){.x = x,
                                 .pos = r->pos,
                                 .n = r->n,
                                 .n_heads = n_heads,
                                 .head_dim = geo->head_dim,
                                 .theta = geo->theta,
                                 .factor = geo->factor,
                                 .n_pairs = geo->n_pairs,
                                 .norm_w = norm,
                                 .norm_eps = g->norm_eps};
}

static enum rc normed(struct mdl *m, struct gemma *g, const struct be_weight *w,
                      const struct gemma_rows *r, struct rc_err *err)
{
    return mdl_rms_norm(m->be, r->x, w, NULL, g->h, r->n, g->norm_eps, err);
}

/* The value heads: k as projected where there is no v_proj, and the norm without weight. */
static enum rc values(struct mdl *m, struct gemma *g, struct gemma_layer *w,
                      const struct gemma_rows *r, struct rc_err *err)
{
    const struct gemma_geo *geo = &g->geo[w->kind];
    struct be_rope_args norm = turn(g, w, r, g->v[geo->buf], geo->n_kv_heads, geo->ones.w);
    struct be_gather_args copy = {.x = g->k[geo->buf], .n = r->n, .out = g->v[geo->buf]};
    enum rc rc;

    if (geo->k_eq_v) {
        copy.rows = mdl_gemma_row_no(g, r->n);
        if ((rc = be_gather(m->be, &copy, err)) != RC_OK)
            return rc;
    }
    norm.theta = 0;
    norm.n_pairs = 0;
    return g->v_norm ? be_rope(m->be, &norm, err) : RC_OK;
}

enum rc mdl_gemma_project(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                          bool with_query, struct rc_err *err)
{
    struct gemma_layer *w = &g->layer[l];
    const struct gemma_geo *geo = &g->geo[w->kind];
    struct be_linear_args qkv = {.x = g->h, .n = r->n, .epi = BE_EPI_NONE};
    struct be_rope_args q = turn(g, w, r, g->q[geo->buf], g->n_heads, w->q_norm);
    struct be_rope_args k = turn(g, w, r, g->k[geo->buf], geo->n_kv_heads, w->k_norm);
    enum rc rc;

    qkv.part[0].w = w->k;
    qkv.part[0].out = g->k[geo->buf];
    qkv.n_parts = 1;
    if (!geo->k_eq_v) {
        qkv.part[1].w = w->v;
        qkv.part[1].out = g->v[geo->buf];
        qkv.n_parts = 2;
    }
    if (with_query) {
        qkv.part[qkv.n_parts].w = w->q;
        qkv.part[qkv.n_parts++].out = g->q[geo->buf];
    }
    if ((rc = normed(m, g, w->attn_norm, r, err)) != RC_OK ||
        (rc = be_linear(m->be, &qkv, err)) != RC_OK || (rc = values(m, g, w, r, err)) != RC_OK ||
        (with_query && (rc = be_rope(m->be, &q, err)) != RC_OK))
        return rc;
    return be_rope(m->be, &k, err);
}

enum rc mdl_gemma_keys(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                       bool with_query, struct rc_err *err)
{
    const struct gemma_layer *w = &g->layer[l];
    uint32_t buf = g->geo[w->kind].buf;
    struct be_kv_write_args kv = {.kv = m->kv,
                                  .layer = w->kv,
                                  .k = g->k[buf],
                                  .v = g->v[buf],
                                  .seqs = r->seqs,
                                  .n_seqs = r->n_seqs};
    enum rc rc = mdl_gemma_project(m, g, l, r, with_query, err);

    return rc == RC_OK ? be_kv_write(m->be, &kv, err) : rc;
}

/* Queries alone: the keys are there, or are another layer's. */
enum rc mdl_gemma_query(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                        struct rc_err *err)
{
    struct gemma_layer *w = &g->layer[l];
    struct be_tensor *q = g->q[g->geo[w->kind].buf];
    struct be_rope_args rope = turn(g, w, r, q, g->n_heads, w->q_norm);
    enum rc rc;

    if ((rc = normed(m, g, w->attn_norm, r, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->h, w->q, NULL, q, r->n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return be_rope(m->be, &rope, err);
}

enum rc mdl_gemma_attend(struct mdl *m, struct gemma *g, uint32_t l, struct be_kv *kv,
                         uint32_t window, const struct gemma_rows *r, struct rc_err *err)
{
    const struct gemma_layer *w = &g->layer[l];
    struct be_attention_args a = {.q = g->q[g->geo[w->kind].buf],
                                  .out = g->att[g->geo[w->kind].buf],
                                  .kv = kv,
                                  .layer = w->kv,
                                  .n_heads = g->n_heads,
                                  .scale = g->score_scale,
                                  .window = w->kind == GEMMA_SLIDING ? window : 0,
                                  .seqs = r->seqs,
                                  .n_seqs = r->n_seqs};

    return be_attention(m->be, &a, err);
}

enum rc mdl_gemma_attend_packed(struct mdl *m, struct gemma *g, uint32_t l, uint32_t radius,
                                const struct mdl_pass *p, struct rc_err *err)
{
    const struct gemma_layer *w = &g->layer[l];
    const struct gemma_geo *geo = &g->geo[w->kind];
    const struct be_attention_packed_args a = {.q = g->q[geo->buf],
                                               .k = g->k[geo->buf],
                                               .v = g->v[geo->buf],
                                               .out = g->att[geo->buf],
                                               .offsets = p->offsets,
                                               .n_seqs = p->n_seqs,
                                               .n_heads = g->n_heads,
                                               .n_kv_heads = geo->n_kv_heads,
                                               .head_dim = geo->head_dim,
                                               .scale = g->score_scale,
                                               .radius =
                                                   w->kind == GEMMA_SLIDING ? (int32_t)radius : -1};

    return be_attention_packed(m->be, &a, err);
}

/* The layer's own piece of the per-layer embeddings, gated. 2^-0.5 belongs to them. */
static enum rc add_ple(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                       struct rc_err *err)
{
    const struct gemma_layer *w = &g->layer[l];
    struct be_scale_args mul = {
        .x = g->gate, .y = r->ple, .y_col = l * g->d_ple, .n = r->n, .scale = 0x1.6a09e6p-1f};
    enum rc rc;

    if ((rc = mdl_dense(m->be, r->x, w->ple_gate, NULL, g->gate, r->n, BE_EPI_GELU_TANH, err)) !=
            RC_OK ||
        (rc = be_scale(m->be, &mul, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->gate, w->ple_proj, NULL, g->t, r->n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(m->be, g->t, w->ple_norm, r->x, r->x, r->n, g->norm_eps, err);
}

enum rc mdl_gemma_feed(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                       struct rc_err *err)
{
    struct gemma_layer *w = &g->layer[l];
    struct be_linear_args glu = {.x = g->h, .n = r->n, .n_parts = 2, .epi = BE_EPI_GEGLU};
    enum rc rc;

    if ((rc = mdl_dense(m->be, g->att[g->geo[w->kind].buf], w->o, NULL, g->t, r->n, BE_EPI_NONE,
                        err)) != RC_OK ||
        (rc = mdl_rms_norm(m->be, g->t, w->post_attn_norm, r->x, r->x, r->n, g->norm_eps, err)) !=
            RC_OK)
        return rc;
    glu.part[0].w = w->gate;
    glu.part[0].out = g->ff[w->ff];
    glu.part[1].w = w->up;
    if ((rc = normed(m, g, w->ffn_norm, r, err)) != RC_OK ||
        (rc = be_linear(m->be, &glu, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->ff[w->ff], w->down, NULL, g->t, r->n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(m->be, g->t, w->post_ffn_norm, r->x, r->x, r->n, g->norm_eps, err);
}

enum rc mdl_gemma_finish(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                         struct rc_err *err)
{
    const struct gemma_layer *w = &g->layer[l];
    struct be_scale_args scale = {.x = r->x, .n = r->n, .scale = w->scalar};
    enum rc rc;

    if ((rc = mdl_gemma_feed(m, g, l, r, err)) != RC_OK ||
        (g->d_ple > 0 && (rc = add_ple(m, g, l, r, err)) != RC_OK))
        return rc;
    return w->scalar != 1 ? be_scale(m->be, &scale, err) : RC_OK;
}

/* Per-layer embeddings of n rows, all layers at once, without their factor 2^-0.5:
 *   norm(model_proj(x0) * d_model^-0.5) + sqrt(d_ple) * table[id]
 * The first factor is taken by the norm's eps, which is all that sees it. */
enum rc mdl_gemma_ple(struct mdl *m, struct gemma *g, const int32_t *ids, uint32_t n,
                      struct rc_err *err)
{
    struct be_rope_args norm = {.x = g->ple,
                                .pos = mdl_gemma_row_no(g, n),
                                .n = n,
                                .n_heads = g->n_layers,
                                .head_dim = g->d_ple,
                                .norm_w = g->ple_model_norm,
                                .norm_eps = g->norm_eps * (float)g->d_model};
    struct be_embed_args tok = {.table = g->ple_table,
                                .ids = ids,
                                .n = n,
                                .scale = (float)sqrt((double)g->d_ple),
                                .accumulate = true,
                                .out = g->ple};
    enum rc rc;

    if ((rc = mdl_dense(m->be, g->x, g->ple_model, NULL, g->ple, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_rope(m->be, &norm, err)) != RC_OK)
        return rc;
    return be_embed(m->be, &tok, err);
}
