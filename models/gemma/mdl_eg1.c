/* mdl_eg1.c - EmbeddingGemma, first version (300M): Gemma 3's text model as a two-way encoder.
 *
 *   x = table[id] * sqrt(d_model)
 *   x += post_attn_norm(o(attention(attn_norm(x))));  x += post_ffn_norm(ffn(ffn_norm(x)))
 *   vector = what the side files say of out_norm(x): the mean, two Dense steps, its length 1
 *
 * over packed sequences, no padding; a sliding layer sees |q - k| <= sliding_window / 2.
 * Always true: a sequence's vector is the same bytes alone, in a batch, or when a big batch was cut
 * into several passes; passes allocate nothing.
 * Source: gemma.md 1, 2, 9; docs/models/embeddinggemma.md. Tests: tests/models/test_mdl_eg1*.c
 */
#include <math.h>
#include <stdlib.h>

#include "mdl_gemma.h"
#include "mdl_sbert.h"

struct eg1 {
    struct gemma text; /* numbers and weights; its tensors are not used */
    struct bert_sbert st;
    struct be_tensor *x, *h, *t, *q, *k, *v, *att, *ff;
};

/* What follows the encoder. Converters leave the Dense steps out unless they are told otherwise,
 * and without them the vectors are others than the model's. */
static enum rc gguf_steps(struct mdl *m, struct eg1 *g, struct rc_err *err)
{
    enum rc rc = mdl_sbert_gguf_steps(&g->st, m, err);

    if (rc != RC_OK || g->st.listed)
        return rc;
    if ((rc = mdl_sbert_gguf_dense(&g->st, m, err)) != RC_OK)
        rc_wrap(err,
                "this GGUF file lacks the Dense steps behind the encoder; convert it with them "
                "(--sentence-transformers-dense-modules), or put modules.json and what it "
                "lists into the file's folder");
    return rc;
}

static enum rc config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct eg1 *g = calloc(1, sizeof(*g));
    enum rc rc;

    if (!g)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = g; /* freed by mdl_close */
    g->text.geo[GEMMA_FULL].factor = g->text.geo[GEMMA_SLIDING].factor = 1;
    rc = src->config ? mdl_gemma3_from_hf(m, &g->text, src, true, err)
                     : mdl_gemma3_from_gguf(m, &g->text, err);
    if (rc != RC_OK)
        return rc;
    g->text.tied = true; /* there is no head */
    if (mdl_tok_vocab(m->tok) > m->info.vocab_size)
        return rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                            "the tokenizer has %u pieces, the model only %u token vectors",
                            mdl_tok_vocab(m->tok), m->info.vocab_size);
    g->text.bos = mdl_tok_bos(m->tok);
    m->info.d_model = g->text.d_model;
    if ((rc = mdl_gemma_check(m, &g->text, err)) != RC_OK ||
        (rc = mdl_sbert_load(&g->st, src->root_fd, err)) != RC_OK ||
        (!src->config && (rc = gguf_steps(m, g, err)) != RC_OK) ||
        (rc = mdl_sbert_join(&g->st, m, src->root_fd, err)) != RC_OK)
        return rc;
    m->info.train_ctx_tokens = m->info.max_input_tokens = g->text.train_ctx;
    m->info.n_layers = g->text.n_layers;
    mdl_sbert_inform(&g->st, m);
    return RC_OK;
}

static enum rc plan(struct mdl *m, struct rc_err *err)
{
    struct eg1 *g = m->state;
    enum rc rc;

    if ((rc = mdl_gemma_plan_one(m, &g->text, "embed_tokens", "token_embd", BE_USE_EMBED,
                                 m->info.vocab_size, g->text.d_model, &g->text.embed, err)) !=
            RC_OK ||
        (rc = mdl_gemma_plan_layers(m, &g->text, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, &g->text, "norm", "output_norm", BE_USE_VECTOR, 1,
                                 g->text.d_model, &g->text.out_norm, err)) != RC_OK)
        return rc;
    return mdl_sbert_plan(&g->st, m, err);
}

static enum rc fit(struct mdl *m, struct rc_err *err)
{
    struct eg1 *g = m->state;
    const struct gemma_geo *geo = &g->text.geo[GEMMA_FULL]; /* both kinds have these heads */
    uint32_t q = g->text.n_heads * geo->head_dim, kv = geo->n_kv_heads * geo->head_dim;
    const struct {
        uint32_t cols;
        struct be_tensor **slot;
    } want[] = {{g->text.d_model, &g->x},
                {g->text.d_model, &g->h},
                {g->text.d_model, &g->t},
                {q, &g->q},
                {kv, &g->k},
                {kv, &g->v},
                {q, &g->att},
                {g->text.layer[0].d_ff, &g->ff}};
    size_t i;
    enum rc rc = mdl_passes_fit(m, err);

    for (i = 0; rc == RC_OK && i < sizeof(want) / sizeof(*want); i++)
        rc = mdl_plan_tensor(&m->plan, m->passes.max_rows, want[i].cols, want[i].slot, err);
    m->info.ctx_tokens = m->info.max_input_tokens;
    return rc == RC_OK ? mdl_sbert_fit(&g->st, m, err) : rc;
}

static void eg1_free(struct mdl *m)
{
    struct eg1 *g = m->state;

    mdl_sbert_deinit(&g->st);
    free(g);
    m->state = NULL;
}

/* ------------------------------------------------------------- forward pass */

/* Norm of each head, then rotation. */
static enum rc heads(struct mdl *m, const struct eg1 *g, const struct gemma_layer *w,
                     const struct mdl_pass *p, struct be_tensor *x, uint32_t n_heads,
                     const struct be_weight *norm, struct rc_err *err)
{
    const struct gemma_geo *geo = &g->text.geo[w->kind];
    const struct be_rope_args a = {.x = x,
                                   .pos = p->pos,
                                   .n = p->n_rows,
                                   .n_heads = n_heads,
                                   .head_dim = geo->head_dim,
                                   .theta = geo->theta,
                                   .factor = geo->factor,
                                   .norm_w = norm,
                                   .norm_eps = g->text.norm_eps};

    return be_rope(m->be, &a, err);
}

static enum rc attention(struct mdl *m, struct eg1 *g, const struct gemma_layer *w,
                         const struct mdl_pass *p, struct rc_err *err)
{
    const struct gemma_geo *geo = &g->text.geo[w->kind];
    struct be_linear_args qkv = {.x = g->h, .n = p->n_rows, .n_parts = 3, .epi = BE_EPI_NONE};
    const struct be_attention_packed_args a = {
        .q = g->q,
        .k = g->k,
        .v = g->v,
        .out = g->att,
        .offsets = p->offsets,
        .n_seqs = p->n_seqs,
        .n_heads = g->text.n_heads,
        .n_kv_heads = geo->n_kv_heads,
        .head_dim = geo->head_dim,
        .scale = g->text.score_scale,
        .radius = w->kind == GEMMA_SLIDING ? (int32_t)(g->text.window / 2) : -1};
    float eps = g->text.norm_eps;
    enum rc rc;

    qkv.part[0].w = w->q;
    qkv.part[0].out = g->q;
    qkv.part[1].w = w->k;
    qkv.part[1].out = g->k;
    qkv.part[2].w = w->v;
    qkv.part[2].out = g->v;
    if ((rc = mdl_rms_norm(m->be, g->x, w->attn_norm, NULL, g->h, p->n_rows, eps, err)) != RC_OK ||
        (rc = be_linear(m->be, &qkv, err)) != RC_OK ||
        (rc = heads(m, g, w, p, g->q, g->text.n_heads, w->q_norm, err)) != RC_OK ||
        (rc = heads(m, g, w, p, g->k, geo->n_kv_heads, w->k_norm, err)) != RC_OK ||
        (rc = be_attention_packed(m->be, &a, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->att, w->o, NULL, g->t, p->n_rows, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(m->be, g->t, w->post_attn_norm, g->x, g->x, p->n_rows, eps, err);
}

static enum rc feed_forward(struct mdl *m, struct eg1 *g, const struct gemma_layer *w,
                            const struct mdl_pass *p, struct rc_err *err)
{
    struct be_linear_args glu = {.x = g->h, .n = p->n_rows, .n_parts = 2, .epi = BE_EPI_GEGLU};
    float eps = g->text.norm_eps;
    enum rc rc;

    glu.part[0].w = w->gate;
    glu.part[0].out = g->ff;
    glu.part[1].w = w->up;
    if ((rc = mdl_rms_norm(m->be, g->x, w->ffn_norm, NULL, g->h, p->n_rows, eps, err)) != RC_OK ||
        (rc = be_linear(m->be, &glu, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->ff, w->down, NULL, g->t, p->n_rows, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(m->be, g->t, w->post_ffn_norm, g->x, g->x, p->n_rows, eps, err);
}

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct eg1 *g = m->state;
    const struct be_embed_args e = {.table = g->text.embed,
                                    .ids = p->ids,
                                    .n = p->n_rows,
                                    .scale = (float)sqrt((double)g->text.d_model),
                                    .out = g->x};
    uint32_t l;
    enum rc rc = be_embed(m->be, &e, err);

    for (l = 0; rc == RC_OK && l < g->text.n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = attention(m, g, &g->text.layer[l], p, err)) != RC_OK ||
            (rc = feed_forward(m, g, &g->text.layer[l], p, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, g->x, p->n_rows);
    }
    if (rc != RC_OK || (rc = mdl_rms_norm(m->be, g->x, g->text.out_norm, NULL, g->h, p->n_rows,
                                          g->text.norm_eps, err)) != RC_OK)
        return rc;
    return mdl_sbert_vectors(&g->st, m, g->h, p, out, err);
}

static enum rc embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                            const char *task_type, bool truncate, bool *truncated,
                            struct mdl_ids *out, struct rc_err *err)
{
    const struct eg1 *g = m->state;

    return mdl_sbert_tokens(&g->st, m, text, n_bytes, task_type, truncate, truncated, out, err);
}

/* The shortest input: the first token and what closes it. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    const struct eg1 *g = m->state;
    const int32_t ids[2] = {g->text.bos, (int32_t)m->info.vocab_size - 1};
    const uint32_t offsets[2] = {0, 2};
    float *out = calloc(m->info.embed_dim, sizeof(float));
    uint32_t i;
    enum rc rc;

    if (!out)
        return rc_fail(err, RC_NOMEM, "no memory for a vector");
    rc = mdl_encode(m, 1, ids, offsets, out, err);
    for (i = 0; rc == RC_OK && i < m->info.embed_dim; i++)
        if (!isfinite(out[i]))
            rc = rc_fail(err, RC_FORMAT, "the model's first vector is not finite (value %u)", i);
    free(out);
    return rc;
}

static const char *const hf_archs[] = {"Gemma3TextModel", NULL};
static const char *const gguf_archs[] = {"gemma-embedding", NULL};

const struct mdl_family mdl_eg1 = {
    .name = "embeddinggemma",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "embeddinggemma-f32-sbert-v1",
    .config = config,
    .plan = plan,
    .fit = fit,
    .shrink = mdl_passes_shrink,
    .self_test = self_test,
    .free = eg1_free,
    .embed_tokens = embed_tokens,
    .encode = encode,
    .dims_check = mdl_gemma_dims_check,
};
