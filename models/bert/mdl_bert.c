/* mdl_bert.c - encoders of BERT's kind: forward pass, and the family's table.
 *
 * Embeddings (word + position + type, LayerNorm), then post-norm layers:
 *   x = LN1(x + Wo attn(x) + bo);  x = LN2(x + W2 gelu(W1 x + b1) + b2)
 * over packed sequences: no padding is ever computed. Vectors are pooled and
 * normalised as the side files say (mdl_sbert_run.c); other heads: mdl_scorer.c, mdl_bert_heads.c.
 *
 * Always true: a sequence's vector is the same bytes alone, in a batch, or when a
 * big batch was cut into several passes; passes allocate nothing.
 * Source: encoders.md 1, 3, 4; docs/models/bert.md. Tests:
 * tests/models/test_mdl_bert*.c, test_mdl_xlmr*.c
 */
#include "mdl_bert.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- forward pass */

/* RoBERTa's positions follow the ids: a row of the pad id stays at its number, others count on. */
static const int32_t *positions(struct bert *b, const struct mdl_pass *p)
{
    uint32_t s, r;
    int32_t n;

    if (b->pad < 0)
        return p->pos;
    for (s = 0; s < p->n_seqs; s++)
        for (r = p->offsets[s], n = b->pad; r < p->offsets[s + 1]; r++)
            b->pos[r] = p->ids[r] == b->pad ? b->pad : ++n;
    return b->pos;
}

static enum rc embed(struct mdl *m, struct bert *b, const struct mdl_pass *p, struct rc_err *err)
{
    struct be_embed_args e = {
        .table = b->word, .ids = p->ids, .n = p->n_rows, .scale = 1, .out = b->x};
    struct be_layer_norm_args ln = {
        .x = b->x, .w = b->ln_w, .b = b->ln_b, .out = b->x, .n = p->n_rows, .eps = b->norm_eps};
    enum rc rc;

    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    e.accumulate = true;
    e.table = b->type; /* the reference adds types before positions */
    if (b->sep >= 0)
        mdl_sbert_types(p, b->sep, b->types);
    e.ids = b->types; /* zeros but of pairs */
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    e.table = b->position;
    e.ids = positions(b, p);
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    return be_layer_norm(m->be, &ln, err);
}

static enum rc layer(struct mdl *m, struct bert *b, const struct bert_layer *w,
                     const struct mdl_pass *p, struct rc_err *err)
{
    uint32_t n = p->n_rows;
    const struct mdl_heads heads = {.x = b->x,
                                    .w = {w->qkv_w[0], w->qkv_w[1], w->qkv_w[2]},
                                    .b = {w->qkv_b[0], w->qkv_b[1], w->qkv_b[2]},
                                    .q = b->q,
                                    .k = b->k,
                                    .v = b->v,
                                    .out = b->att,
                                    .n_heads = b->n_heads,
                                    .head_dim = b->head_dim,
                                    .radius = -1,
                                    .offsets = p->offsets,
                                    .n_seqs = p->n_seqs};
    struct be_layer_norm_args ln = {
        .x = b->t, .add = b->x, .out = b->x, .n = n, .eps = b->norm_eps};
    enum rc rc;

    ln.w = w->ln1_w;
    ln.b = w->ln1_b;
    if ((rc = mdl_attend(m->be, &heads, err)) != RC_OK ||
        (rc = mdl_dense(m->be, b->att, w->o_w, w->o_b, b->t, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_layer_norm(m->be, &ln, err)) != RC_OK)
        return rc;
    ln.w = w->ln2_w;
    ln.b = w->ln2_b;
    if ((rc = mdl_dense(m->be, b->x, w->up_w, w->up_b, b->ff, n, b->act, err)) != RC_OK ||
        (rc = mdl_dense(m->be, b->ff, w->down_w, w->down_b, b->t, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return be_layer_norm(m->be, &ln, err);
}

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct bert *b = m->state;
    uint32_t l;
    enum rc rc = embed(m, b, p, err);

    for (l = 0; rc == RC_OK && l < b->n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = layer(m, b, &b->layer[l], p, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, b->x, p->n_rows);
    }
    if (rc != RC_OK)
        return rc;
    if (m->info.can_rerank)
        return mdl_scorer_run(&b->head, m, b->x, p, out, err);
    if ((rc = mdl_sbert_vectors(&b->st, m, b->x, p, out, err)) != RC_OK)
        return rc;
    return mdl_bert_tokens(m, b, p, err);
}

static const char *const hf_archs[] = {"BertModel",
                                       "BertForMaskedLM",
                                       "BertForPreTraining",
                                       "BertForSequenceClassification",
                                       "bert",
                                       "RobertaModel",
                                       "RobertaForMaskedLM",
                                       "RobertaForSequenceClassification",
                                       "roberta",
                                       "XLMRobertaModel",
                                       "XLMRobertaForMaskedLM",
                                       "XLMRobertaForSequenceClassification",
                                       "xlm-roberta",
                                       NULL};
static const char *const gguf_archs[] = {"bert", NULL};

const struct mdl_family mdl_bert = {
    .name = "bert",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "bert-f32-sbert-v1",
    .config = mdl_bert_config,
    .plan = mdl_bert_plan,
    .fit = mdl_bert_fit,
    .shrink = mdl_passes_shrink,
    .self_test = mdl_passes_self_test,
    .free = mdl_bert_free,
    .embed_tokens = mdl_sbert_tokens,
    .pair_tokens = mdl_sbert_pair_tokens,
    .encode = encode,
    .dims_check = mdl_sbert_dims,
};
