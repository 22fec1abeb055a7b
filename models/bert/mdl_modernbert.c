/* mdl_modernbert.c - ModernBERT encoders: the forward pass and the family's table.
 *
 *   x = LN(word[id]);  per layer: x += Wo attn(LN(x));  x += W2 (gelu(W0 LN(x)) * (W1 LN(x)))
 *   vector = what the side files say of LN(x)
 *
 * over packed sequences, no padding, no biases; q and k are rotated, every third layer sees all,
 * the others |q - k| <= local_attention / 2; the first layer's attention reads x without a norm.
 * Always true: a sequence's numbers are the same bytes alone, in a batch, or when a big batch was
 * cut into several passes; passes allocate nothing.
 * Source: transformers 5.24, models/modernbert; docs/models/modernbert.md. Tests:
 * tests/models/test_mdl_modernbert_golden.c
 */
#include "mdl_modernbert.h"

static enum rc norm(struct mdl *m, const struct modernbert *b, const struct be_tensor *x,
                    const struct be_weight *w, struct be_tensor *out, uint32_t n,
                    struct rc_err *err)
{
    const struct be_layer_norm_args a = {.x = x, .w = w, .out = out, .n = n, .eps = b->norm_eps};

    return be_layer_norm(m->be, &a, err);
}

static enum rc attention(struct mdl *m, struct modernbert *b, const struct modernbert_layer *w,
                         const struct mdl_pass *p, struct rc_err *err)
{
    const struct mdl_heads heads = {.x = w->attn_norm ? b->h : b->x,
                                    .w = {w->qkv[0], w->qkv[1], w->qkv[2]},
                                    .q = b->q,
                                    .k = b->k,
                                    .v = b->v,
                                    .out = b->att,
                                    .n_heads = b->n_heads,
                                    .head_dim = b->head_dim,
                                    .radius = w->slides ? (int32_t)b->radius : -1,
                                    .theta = w->slides ? b->theta_slides : b->theta_full,
                                    .pos = p->pos,
                                    .offsets = p->offsets,
                                    .n_seqs = p->n_seqs};
    enum rc rc;

    if ((w->attn_norm && (rc = norm(m, b, b->x, w->attn_norm, b->h, p->n_rows, err)) != RC_OK) ||
        (rc = mdl_attend(m->be, &heads, err)) != RC_OK)
        return rc;
    return mdl_dense(m->be, b->att, w->attn_out, NULL, b->x, p->n_rows, BE_EPI_ADD, err);
}

static enum rc feed_forward(struct mdl *m, struct modernbert *b, const struct modernbert_layer *w,
                            const struct mdl_pass *p, struct rc_err *err)
{
    const struct be_scale_args mul = {.x = b->ff, .y = b->gate, .n = p->n_rows, .scale = 1};
    enum rc rc;

    if ((rc = norm(m, b, b->x, w->mlp_norm, b->h, p->n_rows, err)) != RC_OK ||
        (rc = mdl_dense(m->be, b->h, w->wi[0], NULL, b->ff, p->n_rows, BE_EPI_GELU_ERF, err)) !=
            RC_OK ||
        (rc = mdl_dense(m->be, b->h, w->wi[1], NULL, b->gate, p->n_rows, BE_EPI_NONE, err)) !=
            RC_OK ||
        (rc = be_scale(m->be, &mul, err)) != RC_OK)
        return rc;
    return mdl_dense(m->be, b->ff, w->mlp_out, NULL, b->x, p->n_rows, BE_EPI_ADD, err);
}

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct modernbert *b = m->state;
    const struct be_embed_args e = {
        .table = b->word, .ids = p->ids, .n = p->n_rows, .scale = 1, .out = b->x};
    uint32_t l;
    enum rc rc;

    if ((rc = be_embed(m->be, &e, err)) != RC_OK ||
        (rc = norm(m, b, b->x, b->embed_norm, b->x, p->n_rows, err)) != RC_OK)
        return rc;
    for (l = 0; l < b->n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = attention(m, b, &b->layer[l], p, err)) != RC_OK ||
            (rc = feed_forward(m, b, &b->layer[l], p, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, b->x, p->n_rows);
    }
    if ((rc = norm(m, b, b->x, b->final_norm, b->h, p->n_rows, err)) != RC_OK)
        return rc;
    return m->info.can_rerank ? mdl_scorer_run(&b->head, m, b->h, p, out, err)
                              : mdl_sbert_vectors(&b->st, m, b->h, p, out, err);
}

static const char *const hf_archs[] = {"ModernBertModel", "ModernBertForMaskedLM",
                                       "ModernBertForSequenceClassification", "modernbert", NULL};
static const char *const gguf_archs[] = {"modern-bert", NULL};

const struct mdl_family mdl_modernbert = {
    .name = "modernbert",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "modernbert-f32-sbert-v1",
    .config = mdl_modernbert_config,
    .plan = mdl_modernbert_plan,
    .fit = mdl_modernbert_fit,
    .shrink = mdl_passes_shrink,
    .self_test = mdl_passes_self_test,
    .free = mdl_modernbert_free,
    .embed_tokens = mdl_sbert_tokens,
    .pair_tokens = mdl_sbert_pair_tokens,
    .encode = encode,
    .dims_check = mdl_sbert_dims,
};
