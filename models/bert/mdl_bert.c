/* mdl_bert.c - BERT encoders: weights, memory, forward pass, pooling.
 *
 * Embeddings (word + position + type, LayerNorm), then post-norm layers:
 *   x = LN1(x + Wo attn(x) + bo);  x = LN2(x + W2 gelu(W1 x + b1) + b2)
 * over packed sequences: no padding is ever computed. Vectors are pooled and
 * normalised as the side files say (mdl_sbert.c).
 *
 * Always true: a sequence's vector is the same bytes alone, in a batch, or when a
 * big batch was cut into several passes; passes allocate nothing.
 * Source: encoders.md 1 and 3; docs/models/bert.md. Tests:
 * tests/models/test_mdl_bert*.c
 */
#include "mdl_bert.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ weights */

/* name without ".weight"/".bias"; both exist for each; LN: may be gamma/beta */
static const struct {
    const char *name;
    size_t w, b;
    char rows, cols; /* D d_model, F d_ff; rows 0 = LayerNorm of width cols */
} layer_weights[] = {
#define AT(f) offsetof(struct bert_layer, f)
    {"attention.self.query", AT(q_w), AT(q_b), 'D', 'D'},
    {"attention.self.key", AT(k_w), AT(k_b), 'D', 'D'},
    {"attention.self.value", AT(v_w), AT(v_b), 'D', 'D'},
    {"attention.output.dense", AT(o_w), AT(o_b), 'D', 'D'},
    {"attention.output.LayerNorm", AT(ln1_w), AT(ln1_b), 0, 'D'},
    {"intermediate.dense", AT(up_w), AT(up_b), 'F', 'D'},
    {"output.dense", AT(down_w), AT(down_b), 'D', 'F'},
    {"output.LayerNorm", AT(ln2_w), AT(ln2_b), 0, 'D'},
#undef AT
};

static enum rc plan_norm(struct mdl *m, const struct bert *b, const char *stem,
                         struct be_weight **w, struct be_weight **bias, struct rc_err *err)
{
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.%s", stem, b->gamma_beta ? "gamma" : "weight");
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.%s", stem, b->gamma_beta ? "beta" : "bias");
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, bias, err);
}

static enum rc plan_layer(struct mdl *m, struct bert *b, uint32_t l, struct rc_err *err)
{
    char stem[112], name[128];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        char *at = (char *)&b->layer[l];
        struct be_weight **w = (struct be_weight **)(at + layer_weights[i].w);
        struct be_weight **bias = (struct be_weight **)(at + layer_weights[i].b);
        uint32_t rows = layer_weights[i].rows == 'F' ? b->d_ff : b->d_model;
        uint32_t cols = layer_weights[i].cols == 'F' ? b->d_ff : b->d_model;

        snprintf(stem, sizeof(stem), "%sencoder.layer.%u.%s", b->prefix, l, layer_weights[i].name);
        if (!layer_weights[i].rows) {
            rc = plan_norm(m, b, stem, w, bias, err);
        } else {
            snprintf(name, sizeof(name), "%s.weight", stem);
            rc = mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2, rows, cols, 0, w, err);
            snprintf(name, sizeof(name), "%s.bias", stem);
            if (rc == RC_OK)
                rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, rows, 0, 0, bias, err);
        }
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc plan(struct mdl *m, struct rc_err *err)
{
    struct bert *b = m->state;
    const struct {
        const char *name;
        uint32_t rows;
        struct be_weight **slot;
    } tables[] = {{"word", m->info.vocab_size, &b->word},
                  {"position", b->n_pos, &b->position},
                  {"token_type", b->n_types, &b->type}};
    char name[96];
    uint32_t l;
    size_t i;
    enum rc rc;

    for (i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%sembeddings.%s_embeddings.weight", b->prefix,
                 tables[i].name);
        if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_EMBED, 2, tables[i].rows, b->d_model, 0,
                                  tables[i].slot, err)) != RC_OK)
            return rc;
    }
    snprintf(name, sizeof(name), "%sembeddings.LayerNorm", b->prefix);
    if ((rc = plan_norm(m, b, name, &b->ln_w, &b->ln_b, err)) != RC_OK)
        return rc;
    for (l = 0; l < b->n_layers; l++)
        if ((rc = plan_layer(m, b, l, err)) != RC_OK)
            return rc;
    return RC_OK;
}

/* ------------------------------------------------------------------- memory */

static enum rc fit(struct mdl *m, struct rc_err *err)
{
    struct bert *b = m->state;
    uint32_t rows, seqs;
    size_t i;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    rows = m->passes.max_rows;
    seqs = m->passes.max_seqs;
    free(b->zeros);
    free(b->host_pooled);
    b->zeros = calloc(rows, sizeof(*b->zeros));
    b->host_pooled = calloc((size_t)seqs * b->d_model, sizeof(float));
    if (!b->zeros || !b->host_pooled)
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    {
        const struct {
            uint32_t rows, cols;
            struct be_tensor **slot;
        } want[] = {
            {rows, b->d_model, &b->x}, {rows, b->d_model, &b->t},      {rows, b->d_model, &b->q},
            {rows, b->d_model, &b->k}, {rows, b->d_model, &b->v},      {rows, b->d_model, &b->att},
            {rows, b->d_ff, &b->ff},   {seqs, b->d_model, &b->pooled},
        };

        for (i = 0; i < sizeof(want) / sizeof(*want); i++)
            if ((rc = mdl_plan_tensor(&m->plan, want[i].rows, want[i].cols, want[i].slot, err)) !=
                RC_OK)
                return rc;
    }
    m->info.ctx_tokens = m->info.max_input_tokens;
    return RC_OK;
}

static void bert_free(struct mdl *m)
{
    struct bert *b = m->state;

    mdl_sbert_deinit(&b->st);
    free(b->zeros);
    free(b->host_pooled);
    free(b);
    m->state = NULL;
}

/* ------------------------------------------------------------- forward pass */

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
    e.ids = b->zeros;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    e.table = b->position;
    e.ids = p->pos;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    return be_layer_norm(m->be, &ln, err);
}

static enum rc layer(struct mdl *m, struct bert *b, const struct bert_layer *w,
                     const struct mdl_pass *p, struct rc_err *err)
{
    uint32_t n = p->n_rows;
    struct be_linear_args qkv = {.x = b->x, .n = n, .n_parts = 3, .epi = BE_EPI_NONE};
    struct be_attention_packed_args att = {.q = b->q,
                                           .k = b->k,
                                           .v = b->v,
                                           .out = b->att,
                                           .offsets = p->offsets,
                                           .n_seqs = p->n_seqs,
                                           .n_heads = b->n_heads,
                                           .n_kv_heads = b->n_heads,
                                           .head_dim = b->head_dim,
                                           .scale = (float)(1 / sqrt((double)b->head_dim)),
                                           .radius = -1};
    struct be_layer_norm_args ln = {
        .x = b->t, .add = b->x, .out = b->x, .n = n, .eps = b->norm_eps};
    enum rc rc;

    qkv.part[0].w = w->q_w;
    qkv.part[0].b = w->q_b;
    qkv.part[0].out = b->q;
    qkv.part[1].w = w->k_w;
    qkv.part[1].b = w->k_b;
    qkv.part[1].out = b->k;
    qkv.part[2].w = w->v_w;
    qkv.part[2].b = w->v_b;
    qkv.part[2].out = b->v;
    ln.w = w->ln1_w;
    ln.b = w->ln1_b;
    if ((rc = be_linear(m->be, &qkv, err)) != RC_OK ||
        (rc = be_attention_packed(m->be, &att, err)) != RC_OK ||
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

static enum rc pool(struct mdl *m, struct bert *b, const struct mdl_pass *p, float *out,
                    struct rc_err *err)
{
    struct be_pool_args a = {
        .x = b->x, .offsets = p->offsets, .n_seqs = p->n_seqs, .out = b->pooled};
    size_t dim = m->info.embed_dim, d = b->d_model;
    uint32_t i, s;
    enum rc rc;

    for (i = 0; i < b->st.n_pools; i++) {
        a.kind = b->st.pools[i];
        if ((rc = be_pool(m->be, &a, err)) != RC_OK ||
            (rc = be_tensor_read(m->be, b->pooled, 0, p->n_seqs, b->host_pooled, err)) != RC_OK)
            return rc;
        for (s = 0; s < p->n_seqs; s++)
            memcpy(out + s * dim + i * d, b->host_pooled + s * d, d * sizeof(float));
    }
    for (s = 0; b->st.normalize && s < p->n_seqs; s++)
        mdl_normalize(out + s * dim, (uint32_t)dim);
    return RC_OK;
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
    return rc != RC_OK ? rc : pool(m, b, p, out, err);
}

static enum rc dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err)
{
    if (dims == m->info.embed_dim)
        return RC_OK;
    return rc_fail_what(err, RC_INVALID, "dimensions",
                        "dimensions %u: this model was not trained for shorter vectors, it only "
                        "gives %u",
                        dims, m->info.embed_dim);
}

/* Two tokens, as short as a text can be. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    const int32_t ids[2] = {0, (int32_t)m->info.vocab_size - 1};
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

static const char *const hf_archs[] = {"BertModel", "BertForMaskedLM", "BertForPreTraining", "bert",
                                       NULL};
static const char *const gguf_archs[] = {NULL};

const struct mdl_family mdl_bert = {
    .name = "bert",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "bert-f32-sbert-v1",
    .config = mdl_bert_config,
    .plan = plan,
    .fit = fit,
    .shrink = mdl_passes_shrink,
    .self_test = self_test,
    .free = bert_free,
    .embed_tokens = mdl_bert_embed_tokens,
    .encode = encode,
    .dims_check = dims_check,
};
