/* mdl_bert_plan.c - where the weights of an encoder of BERT's kind are in its files, and the
 * memory of its passes.
 *
 * Names of tensors appear here and nowhere else: Hugging Face's with their prefix, GGUF's, and
 * those of BGE-M3's heads, which lie in files of their own (mdl_bert_cfg.c lets them join).
 * Always true: every weight is planned with its shape before any is built.
 * Source: encoders.md 3, 4 and 11.1. Tests: tests/models/test_mdl_bert*.c, test_mdl_xlmr*.c
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_bert.h"

/* names without ".weight"/".bias"; both exist for each; LN: HF's may be gamma/beta */
static const struct {
    const char *hf, *gguf;
    size_t w, b;
    char rows, cols; /* D d_model, F d_ff; rows 0 = LayerNorm of width cols */
} layer_weights[] = {
#define AT(f) offsetof(struct bert_layer, f)
    {"attention.self.query", "attn_q", AT(qkv_w[0]), AT(qkv_b[0]), 'D', 'D'},
    {"attention.self.key", "attn_k", AT(qkv_w[1]), AT(qkv_b[1]), 'D', 'D'},
    {"attention.self.value", "attn_v", AT(qkv_w[2]), AT(qkv_b[2]), 'D', 'D'},
    {"attention.output.dense", "attn_output", AT(o_w), AT(o_b), 'D', 'D'},
    {"attention.output.LayerNorm", "attn_output_norm", AT(ln1_w), AT(ln1_b), 0, 'D'},
    {"intermediate.dense", "ffn_up", AT(up_w), AT(up_b), 'F', 'D'},
    {"output.dense", "ffn_down", AT(down_w), AT(down_b), 'D', 'F'},
    {"output.LayerNorm", "layer_output_norm", AT(ln2_w), AT(ln2_b), 0, 'D'},
#undef AT
};

/* A matrix; of one row it may be a vector in the file (GGUF tools drop a last dimension of 1). */
static enum rc plan_matrix(struct mdl *m, const char *name, unsigned use, uint32_t rows,
                           uint32_t cols, struct be_weight **slot, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, name);
    const uint64_t n = cols;

    return t && rows == 1 && t->n_dims == 1
               ? mdl_plan_shaped(&m->plan, name, use, 1, &n, 1, cols, slot, err)
               : mdl_plan_weight(&m->plan, name, use, 2, rows, cols, 0, slot, err);
}

static enum rc plan_dense(struct mdl *m, const char *stem, uint32_t rows, uint32_t cols,
                          struct be_weight **w, struct be_weight **bias, struct rc_err *err)
{
    char name[160];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.weight", stem);
    if ((rc = plan_matrix(m, name, BE_USE_LINEAR, rows, cols, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.bias", stem);
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, rows, 0, 0, bias, err);
}

static enum rc plan_norm(struct mdl *m, const struct bert *b, const char *stem,
                         struct be_weight **w, struct be_weight **bias, struct rc_err *err)
{
    char name[160];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.%s", stem, b->gamma_beta ? "gamma" : "weight");
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.%s", stem, b->gamma_beta ? "beta" : "bias");
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, bias, err);
}

static enum rc plan_layer(struct mdl *m, struct bert *b, uint32_t l, struct rc_err *err)
{
    char stem[112];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        char *at = (char *)&b->layer[l];
        struct be_weight **w = (struct be_weight **)(at + layer_weights[i].w);
        struct be_weight **bias = (struct be_weight **)(at + layer_weights[i].b);
        uint32_t rows = layer_weights[i].rows == 'F' ? b->d_ff : b->d_model;
        uint32_t cols = layer_weights[i].cols == 'F' ? b->d_ff : b->d_model;

        if (b->gguf)
            snprintf(stem, sizeof(stem), "blk.%u.%s", l, layer_weights[i].gguf);
        else
            snprintf(stem, sizeof(stem), "%sencoder.layer.%u.%s", b->prefix, l,
                     layer_weights[i].hf);
        rc = layer_weights[i].rows ? plan_dense(m, stem, rows, cols, w, bias, err)
                                   : plan_norm(m, b, stem, w, bias, err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* dense, tanh, then one number: BERT's pooler and classifier, RoBERTa's classifier of two layers.
 */
static enum rc plan_score(struct mdl *m, struct bert *b, struct rc_err *err)
{
    char dense[48];
    enum rc rc;

    if (b->gguf)
        snprintf(dense, sizeof(dense), "cls");
    else if (b->roberta)
        snprintf(dense, sizeof(dense), "classifier.dense");
    else
        snprintf(dense, sizeof(dense), "%spooler.dense", b->prefix);
    if ((rc = plan_dense(m, dense, b->d_model, b->d_model, &b->head.dense_w, &b->head.dense_b,
                         err)) != RC_OK)
        return rc;
    return plan_dense(m,
                      b->gguf      ? "cls.output"
                      : b->roberta ? "classifier.out_proj"
                                   : "classifier",
                      1, b->d_model, &b->head.logit_w, &b->head.logit_b, err);
}

enum rc mdl_bert_plan(struct mdl *m, struct rc_err *err)
{
    struct bert *b = m->state;
    const struct {
        const char *hf, *gguf;
        uint32_t rows;
        struct be_weight **slot;
    } tables[] = {{"word", "token_embd", m->info.vocab_size, &b->word},
                  {"position", "position_embd", b->n_pos, &b->position},
                  {"token_type", "token_types", b->n_types, &b->type}};
    char name[96];
    uint32_t l;
    size_t i;
    enum rc rc;

    for (i = 0; i < 3; i++) {
        if (b->gguf)
            snprintf(name, sizeof(name), "%s.weight", tables[i].gguf);
        else
            snprintf(name, sizeof(name), "%sembeddings.%s_embeddings.weight", b->prefix,
                     tables[i].hf);
        if ((rc = plan_matrix(m, name, BE_USE_EMBED, tables[i].rows, b->d_model, tables[i].slot,
                              err)) != RC_OK)
            return rc;
    }
    if (b->gguf)
        snprintf(name, sizeof(name), "token_embd_norm");
    else
        snprintf(name, sizeof(name), "%sembeddings.LayerNorm", b->prefix);
    if ((rc = plan_norm(m, b, name, &b->ln_w, &b->ln_b, err)) != RC_OK)
        return rc;
    for (l = 0; l < b->n_layers; l++)
        if ((rc = plan_layer(m, b, l, err)) != RC_OK)
            return rc;
    rc = m->info.can_rerank ? plan_score(m, b, err) : mdl_sbert_plan(&b->st, m, err);
    if (rc == RC_OK && m->info.can_sparse)
        rc = plan_dense(m, "sparse_linear", 1, b->d_model, &b->lex_w, &b->lex_b, err);
    if (rc == RC_OK && m->info.token_dim > 0)
        rc = plan_dense(m, "colbert_linear", m->info.token_dim, b->d_model, &b->vec_w, &b->vec_b,
                        err);
    return rc;
}

/* ------------------------------------------------------------------- memory */

enum rc mdl_bert_fit(struct mdl *m, struct rc_err *err)
{
    struct bert *b = m->state;
    uint32_t rows;
    size_t i;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    rows = m->passes.max_rows;
    free(b->types);
    free(b->pos);
    b->types = calloc(rows, sizeof(*b->types));
    b->pos = calloc(rows, sizeof(*b->pos));
    if (!b->types || !b->pos)
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    {
        const struct {
            uint32_t rows, cols;
            struct be_tensor **slot;
        } want[] = {
            {rows, b->d_model, &b->x},
            {rows, b->d_model, &b->t},
            {rows, b->d_model, &b->q},
            {rows, b->d_model, &b->k},
            {rows, b->d_model, &b->v},
            {rows, b->d_model, &b->att},
            {rows, b->d_ff, &b->ff},
            {m->info.can_sparse ? rows : 0, 1, &b->lex},
            /* where they are as wide as the model, q serves: its layer is done */
            {m->info.token_dim != b->d_model && m->info.token_dim > 0 ? rows : 0, m->info.token_dim,
             &b->own_vec},
        };

        for (i = 0; i < sizeof(want) / sizeof(*want); i++)
            if (want[i].rows > 0 && (rc = mdl_plan_tensor(&m->plan, want[i].rows, want[i].cols,
                                                          want[i].slot, err)) != RC_OK)
                return rc;
    }
    m->info.ctx_tokens = m->info.max_input_tokens;
    return m->info.can_embed ? mdl_sbert_fit(&b->st, m, err) : mdl_scorer_fit(&b->head, m, err);
}

void mdl_bert_free(struct mdl *m)
{
    struct bert *b = m->state;

    mdl_sbert_deinit(&b->st);
    free(b->types);
    free(b->pos);
    free(b);
    m->state = NULL;
}
