/* mdl_nomic.c - NomicBERT encoders: the forward pass and the family's table.
 *
 *   x = LN(word[id] + type[0]);  per layer: x = LN1(x + Wo attn(x));
 *   x = LN2(x + W2 (silu(G x) * (U x)));   vector = what the side files say of x
 *
 * over packed sequences, no padding; BERT with rotation instead of position vectors, a gate in the
 * feed-forward and no biases but the norms'.
 * Always true: a sequence's numbers are the same bytes alone, in a batch, or when a big batch was
 * cut into several passes; passes allocate nothing.
 * Source: transformers 5.24, models/nomic_bert; docs/models/nomic-bert.md. Tests:
 * tests/models/test_mdl_nomic_golden.c
 */
#include "mdl_nomic.h"

static enum rc embed(struct mdl *m, struct nomic *b, const struct mdl_pass *p, struct rc_err *err)
{
    struct be_embed_args e = {
        .table = b->word, .ids = p->ids, .n = p->n_rows, .scale = 1, .out = b->x};
    const struct be_layer_norm_args ln = {
        .x = b->x, .w = b->ln_w, .b = b->ln_b, .out = b->x, .n = p->n_rows, .eps = b->norm_eps};
    enum rc rc;

    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    e.accumulate = true;
    e.table = b->type;
    e.ids = b->zeros;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    return be_layer_norm(m->be, &ln, err);
}

/* x = LN(x + t) */
static enum rc add_norm(struct mdl *m, const struct nomic *b, const struct be_weight *w,
                        const struct be_weight *bias, uint32_t n, struct rc_err *err)
{
    const struct be_layer_norm_args a = {
        .x = b->t, .add = b->x, .w = w, .b = bias, .out = b->x, .n = n, .eps = b->norm_eps};

    return be_layer_norm(m->be, &a, err);
}

static enum rc attention(struct mdl *m, struct nomic *b, const struct nomic_layer *w,
                         const struct mdl_pass *p, struct rc_err *err)
{
    const struct mdl_heads heads = {.x = b->x,
                                    .w = {w->qkv[0], w->qkv[1], w->qkv[2]},
                                    .q = b->q,
                                    .k = b->k,
                                    .v = b->v,
                                    .out = b->att,
                                    .n_heads = b->n_heads,
                                    .head_dim = b->head_dim,
                                    .radius = -1,
                                    .theta = b->theta,
                                    .pos = p->pos,
                                    .offsets = p->offsets,
                                    .n_seqs = p->n_seqs};
    enum rc rc;

    if ((rc = mdl_attend(m->be, &heads, err)) != RC_OK ||
        (rc = mdl_dense(m->be, b->att, w->out, NULL, b->t, p->n_rows, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return add_norm(m, b, w->ln1_w, w->ln1_b, p->n_rows, err);
}

static enum rc feed_forward(struct mdl *m, struct nomic *b, const struct nomic_layer *w,
                            const struct mdl_pass *p, struct rc_err *err)
{
    const struct be_act_args silu = {
        .x = b->gate, .out = b->gate, .n = p->n_rows, .kind = BE_ACT_SILU};
    const struct be_scale_args mul = {.x = b->ff, .y = b->gate, .n = p->n_rows, .scale = 1};
    struct be_linear_args in = {.x = b->x, .n = p->n_rows, .n_parts = 2, .epi = BE_EPI_NONE};
    enum rc rc;

    in.part[0].w = w->up;
    in.part[0].out = b->ff;
    in.part[1].w = w->gate;
    in.part[1].out = b->gate;
    if ((rc = be_linear(m->be, &in, err)) != RC_OK || (rc = be_act(m->be, &silu, err)) != RC_OK ||
        (rc = be_scale(m->be, &mul, err)) != RC_OK ||
        (rc = mdl_dense(m->be, b->ff, w->down, NULL, b->t, p->n_rows, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return add_norm(m, b, w->ln2_w, w->ln2_b, p->n_rows, err);
}

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct nomic *b = m->state;
    enum rc rc = embed(m, b, p, err);

    for (uint32_t l = 0; rc == RC_OK && l < b->n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = attention(m, b, &b->layer[l], p, err)) != RC_OK ||
            (rc = feed_forward(m, b, &b->layer[l], p, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, b->x, p->n_rows);
    }
    return rc == RC_OK ? mdl_sbert_vectors(&b->st, m, b->x, p, out, err) : rc;
}

static const char *const hf_archs[] = {"NomicBertModel", "NomicBertForMaskedLM",
                                       "NomicBertForPreTraining", "nomic_bert", NULL};
static const char *const gguf_archs[] = {"nomic-bert", NULL};

const struct mdl_family mdl_nomic = {
    .name = "nomic-bert",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "nomic-bert-f32-sbert-v1",
    .config = mdl_nomic_config,
    .plan = mdl_nomic_plan,
    .fit = mdl_nomic_fit,
    .shrink = mdl_passes_shrink,
    .self_test = mdl_passes_self_test,
    .free = mdl_nomic_free,
    .embed_tokens = mdl_sbert_tokens,
    .encode = encode,
    .dims_check = mdl_sbert_dims,
};
