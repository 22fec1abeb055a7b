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
    struct gemma text;
    struct bert_sbert st;
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
    if ((rc = mdl_cfg_vocab(m, m->info.vocab_size, err)) != RC_OK)
        return rc;
    g->text.bos = mdl_tok_bos(m->tok);
    m->info.d_model = g->text.d_model;
    if ((rc = mdl_gemma_check(m, &g->text, err)) != RC_OK ||
        (rc = mdl_gemma_share(&g->text, err)) != RC_OK ||
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
    enum rc rc = mdl_passes_fit(m, err);

    if (rc == RC_OK)
        rc = mdl_gemma_fit_layers(m, &g->text, m->passes.max_rows, err);
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

static enum rc layers(struct mdl *m, struct gemma *t, const struct mdl_pass *p, struct rc_err *err)
{
    const struct gemma_rows r = {.x = t->x, .n = p->n_rows, .pos = p->pos};
    enum rc rc = RC_OK;

    for (uint32_t l = 0; l < t->n_layers; l++) {
        if ((rc = mdl_encode_stopped(m, err)) != RC_OK ||
            (rc = mdl_gemma_project(m, t, l, &r, true, err)) != RC_OK ||
            (rc = mdl_gemma_attend_packed(m, t, l, t->window / 2, p, err)) != RC_OK ||
            (rc = mdl_gemma_finish(m, t, l, &r, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, t->x, p->n_rows);
    }
    return rc;
}

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct eg1 *g = m->state;
    struct gemma *t = &g->text;
    const struct be_embed_args e = {.table = t->embed,
                                    .ids = p->ids,
                                    .n = p->n_rows,
                                    .scale = (float)sqrt((double)t->d_model),
                                    .out = t->x};
    enum rc rc;

    if ((rc = be_embed(m->be, &e, err)) != RC_OK || (rc = layers(m, t, p, err)) != RC_OK ||
        (rc = mdl_rms_norm(m->be, t->x, t->out_norm, NULL, t->h, p->n_rows, t->norm_eps, err)) !=
            RC_OK)
        return rc;
    return mdl_sbert_vectors(&g->st, m, t->h, p, out, err);
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
    .self_test = mdl_passes_self_test,
    .free = eg1_free,
    .embed_tokens = mdl_sbert_tokens,
    .encode = encode,
    .dims_check = mdl_gemma_dims_check,
};
