/* mdl_modernbert_cfg.c - the numbers of a ModernBERT encoder from config.json, where its weights
 * are, and the memory of its passes.
 *
 * Refuses by name what the forward pass does not do. Published names appear here only, but for the
 * keys of GGUF (mdl_modernbert_gguf.c).
 * Source: transformers 5.24, models/modernbert. Tests: tests/models/test_mdl_modernbert_golden.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_modernbert.h"

#define CFG "config.json"
#define MAX_WIDTH (1u << 16)

/* ------------------------------------------------------------------- numbers */

static enum rc refusals(const json_t *c, struct rc_err *err)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias", "norm_bias"};
    const json_t *scaling = json_object_get(c, "rope_scaling");
    const char *act = NULL;
    bool on;
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(biases) / sizeof(*biases); i++) {
        if ((rc = mdl_cfg_bool(c, CFG, biases[i], false, &on, err)) != RC_OK)
            return rc;
        if (on)
            return rc_fail_what(err, RC_UNSUPPORTED, biases[i],
                                CFG ": '%s' is not supported for ModernBERT", biases[i]);
    }
    if (scaling && !json_is_null(scaling))
        return rc_fail_what(err, RC_UNSUPPORTED, "rope_scaling",
                            CFG ": 'rope_scaling' is not supported for ModernBERT");
    for (i = 0; i < 2; i++) {
        const char *key = i ? "classifier_activation" : "hidden_activation";

        if ((rc = mdl_cfg_str(c, CFG, key, &act, err)) != RC_OK)
            return rc;
        if (act && strcmp(act, "gelu") != 0)
            return rc_fail_what(err, RC_UNSUPPORTED, key,
                                CFG ": activation '%.40s' is not supported for ModernBERT (gelu)",
                                act);
    }
    return RC_OK;
}

/* {"rope_parameters": {kind: {"rope_theta"}}}, or the older word beside. */
static enum rc read_theta(const json_t *c, const char *kind, const char *older, double dflt,
                          float *out, struct rc_err *err)
{
    const json_t *r = json_object_get(json_object_get(c, "rope_parameters"), kind);
    const char *type = NULL;
    enum rc rc;

    if ((rc = mdl_cfg_pos(c, CFG, older, 1e12, dflt, out, err)) != RC_OK || !json_is_object(r))
        return rc;
    if ((rc = mdl_cfg_str(r, "rope_parameters", "rope_type", &type, err)) != RC_OK)
        return rc;
    if (type && strcmp(type, "default") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "rope_type",
                            CFG ": rope type '%.40s' is not supported for ModernBERT (default)",
                            type);
    return mdl_cfg_pos(r, "rope_parameters", "rope_theta", 1e12, *out, out, err);
}

static enum rc read_kinds(struct modernbert *b, const json_t *c, struct rc_err *err)
{
    const json_t *types = json_object_get(c, "layer_types");
    uint32_t every, l;
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, CFG, "global_attn_every_n_layers", 1, 1024, 3, &every, err)) != RC_OK)
        return rc;
    if (json_is_array(types) && json_array_size(types) != b->n_layers)
        return rc_fail_what(err, RC_FORMAT, "layer_types",
                            CFG ": 'layer_types' must list all %u layers", b->n_layers);
    for (l = 0; l < b->n_layers; l++) {
        const char *s = json_string_value(json_array_get(types, l));

        if (!json_is_array(types))
            b->layer[l].slides = l % every != 0;
        else if (s && strcmp(s, "sliding_attention") == 0)
            b->layer[l].slides = true;
        else if (!s || strcmp(s, "full_attention") != 0)
            return rc_fail_what(err, RC_FORMAT, "layer_types",
                                CFG ": layer_types[%u] is '%.40s', expected full_attention or "
                                    "sliding_attention",
                                l, s ? s : "not a string");
    }
    return RC_OK;
}

static enum rc read_numbers(struct mdl *m, struct modernbert *b, const json_t *c,
                            struct rc_err *err)
{
    uint32_t window = 0;
    const struct {
        const char *key;
        uint32_t *at, min, max;
        int64_t dflt;
    } numbers[] = {
        {"num_hidden_layers", &b->n_layers, 1, MODERNBERT_MAX_LAYERS, MDL_REQUIRED},
        {"hidden_size", &b->d_model, 1, MAX_WIDTH, MDL_REQUIRED},
        {"intermediate_size", &b->d_ff, 1, 1u << 20, MDL_REQUIRED},
        {"num_attention_heads", &b->n_heads, 1, 1024, MDL_REQUIRED},
        {"max_position_embeddings", &b->n_pos, 2, 1u << 20, 8192},
        {"local_attention", &window, 2, 1u << 24, 128},
        {"vocab_size", &m->info.vocab_size, 1, 1u << 22, MDL_REQUIRED},
    };
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, CFG, numbers[i].key, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, numbers[i].at, err)) != RC_OK)
            return rc;
    b->radius = window / 2;
    if ((rc = mdl_cfg_pos(c, CFG, "norm_eps", 1, 1e-5, &b->norm_eps, err)) != RC_OK ||
        (rc = read_theta(c, "full_attention", "global_rope_theta", 160000, &b->theta_full, err)) !=
            RC_OK ||
        (rc = read_theta(c, "sliding_attention", "local_rope_theta", 10000, &b->theta_slides,
                         err)) != RC_OK ||
        (rc = read_kinds(b, c, err)) != RC_OK)
        return rc;
    return RC_OK;
}

/* ---------------------------------------------------------------- what it does */

static enum rc as_scorer(struct mdl *m, struct modernbert *b, const json_t *c, struct rc_err *err)
{
    const char *pool = NULL;
    enum rc rc;

    if ((rc = mdl_scorer_config(m, "classifier.weight", err)) != RC_OK ||
        (rc = mdl_cfg_str(c, CFG, "classifier_pooling", &pool, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, CFG, "classifier_bias", false, &b->score_bias, err)) != RC_OK)
        return rc;
    if (pool && strcmp(pool, "cls") != 0 && strcmp(pool, "mean") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "classifier_pooling",
                            CFG ": classifier_pooling '%.40s' is not supported (cls, mean)", pool);
    b->head.pool = pool && strcmp(pool, "mean") == 0 ? BE_POOL_MEAN : BE_POOL_CLS;
    b->head.epi = BE_EPI_GELU_ERF;
    b->head.norm_eps = b->norm_eps;
    return RC_OK;
}

static enum rc as_gguf_scorer(struct mdl *m, struct modernbert *b, struct rc_err *err)
{
    b->head.pool = BE_POOL_MEAN;
    b->head.epi = BE_EPI_GELU_ERF;
    b->head.norm_eps = b->norm_eps;
    b->score_bias = mdl_file_find(m->file, "cls.bias") != NULL;
    return mdl_scorer_config(m, "cls.output.weight", err);
}

static enum rc as_embedder(struct mdl *m, struct modernbert *b, int root_fd, struct rc_err *err)
{
    enum rc rc = mdl_sbert_load(&b->st, root_fd, err);

    if (rc != RC_OK || (b->gguf && (rc = mdl_sbert_gguf_steps(&b->st, m, err)) != RC_OK) ||
        (rc = mdl_sbert_join(&b->st, m, root_fd, err)) != RC_OK)
        return rc;
    mdl_sbert_inform(&b->st, m);
    return RC_OK;
}

static enum rc from_hf(struct mdl *m, struct modernbert *b, const json_t *c, struct rc_err *err)
{
    enum rc rc = refusals(c, err);

    if (mdl_file_find(m->file, "model.embeddings.tok_embeddings.weight"))
        snprintf(b->prefix, sizeof(b->prefix), "model.");
    return rc == RC_OK ? read_numbers(m, b, c, err) : rc;
}

static enum rc as_what(struct mdl *m, struct modernbert *b, const struct mdl_src *src,
                       struct rc_err *err)
{
    enum sbert_gguf_pool kind = SBERT_POOL_NONE;
    enum rc rc = b->gguf ? mdl_sbert_gguf_pooling(m, &kind, err) : RC_OK;

    if (rc != RC_OK)
        return rc;
    if (kind == SBERT_POOL_RANK)
        return as_gguf_scorer(m, b, err);
    return !b->gguf && strstr(m->info.arch, "ForSequenceClassification")
               ? as_scorer(m, b, src->config, err)
               : as_embedder(m, b, src->root_fd, err);
}

enum rc mdl_modernbert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct modernbert *b = calloc(1, sizeof(*b));
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = b; /* freed by mdl_close */
    rc = src->config ? from_hf(m, b, src->config, err) : mdl_modernbert_from_gguf(m, b, err);
    if (rc != RC_OK)
        return rc;
    if (b->d_model % (2 * b->n_heads) != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "a width of %u does not make %u heads of an even width", b->d_model,
                            b->n_heads);
    b->head_dim = b->d_model / b->n_heads;
    if ((rc = mdl_cfg_vocab(m, m->info.vocab_size, err)) != RC_OK)
        return rc;
    m->info.train_ctx_tokens = m->info.max_input_tokens = b->n_pos;
    m->info.n_layers = b->n_layers;
    m->info.d_model = b->d_model;
    return as_what(m, b, src, err);
}

/* ------------------------------------------------------------------- weights */

static enum rc plan_vector(struct mdl *m, const char *name, uint32_t n, struct be_weight **slot,
                           struct rc_err *err)
{
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, n, 0, 0, slot, err);
}

static enum rc plan_layer(struct mdl *m, struct modernbert *b, uint32_t l, struct rc_err *err)
{
    struct modernbert_layer *w = &b->layer[l];
    uint32_t d = b->d_model, ff = b->d_ff;
    char stem[48], name[96];
    enum rc rc;

    snprintf(stem, sizeof(stem), "%s%s.%u.", b->prefix, b->gguf ? "blk" : "layers", l);
#define NAME(hf_, gguf_) \
    (snprintf(name, sizeof(name), "%s%s.weight", stem, b->gguf ? gguf_ : hf_), name)
    if ((l > 0 &&
         (rc = plan_vector(m, NAME("attn_norm", "attn_norm"), d, &w->attn_norm, err)) != RC_OK) ||
        (rc = mdl_plan_split(&m->plan, NAME("attn.Wqkv", "attn_qkv"), BE_USE_LINEAR,
                             3 * (uint64_t)d, d, 3, w->qkv, err)) != RC_OK ||
        (rc = mdl_plan_weight(&m->plan, NAME("attn.Wo", "attn_output"), BE_USE_LINEAR, 2, d, d, 0,
                              &w->attn_out, err)) != RC_OK ||
        (rc = plan_vector(m, NAME("mlp_norm", "ffn_norm"), d, &w->mlp_norm, err)) != RC_OK ||
        (rc = mdl_plan_split(&m->plan, NAME("mlp.Wi", "ffn_up"), BE_USE_LINEAR, 2 * (uint64_t)ff, d,
                             2, w->wi, err)) != RC_OK)
        return rc;
    return mdl_plan_weight(&m->plan, NAME("mlp.Wo", "ffn_down"), BE_USE_LINEAR, 2, d, ff, 0,
                           &w->mlp_out, err);
#undef NAME
}

/* GGUF tools may drop a dimension of 1. */
static enum rc plan_logit(struct mdl *m, struct modernbert *b, const char *name, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, name);
    const uint64_t d = b->d_model;

    return b->gguf && t && t->n_dims == 1
               ? mdl_plan_shaped(&m->plan, name, BE_USE_LINEAR, 1, &d, 1, d, &b->head.logit_w, err)
               : mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2, 1, d, 0, &b->head.logit_w, err);
}

static enum rc plan_score(struct mdl *m, struct modernbert *b, struct rc_err *err)
{
    uint32_t d = b->d_model;
    bool gguf = b->gguf;
    enum rc rc;

    if ((rc = mdl_plan_weight(&m->plan, gguf ? "cls.weight" : "head.dense.weight", BE_USE_LINEAR, 2,
                              d, d, 0, &b->head.dense_w, err)) != RC_OK ||
        (b->score_bias && (rc = plan_vector(m, gguf ? "cls.bias" : "head.dense.bias", d,
                                            &b->head.dense_b, err)) != RC_OK) ||
        (rc = plan_vector(m, gguf ? "cls.norm.weight" : "head.norm.weight", d, &b->head.norm_w,
                          err)) != RC_OK ||
        (rc = plan_logit(m, b, gguf ? "cls.output.weight" : "classifier.weight", err)) != RC_OK)
        return rc;
    return plan_vector(m, gguf ? "cls.output.bias" : "classifier.bias", 1, &b->head.logit_b, err);
}

enum rc mdl_modernbert_plan(struct mdl *m, struct rc_err *err)
{
    struct modernbert *b = m->state;
    char name[96];
    uint32_t l;
    enum rc rc;

#define NAME(hf_, gguf_) \
    (snprintf(name, sizeof(name), "%s%s.weight", b->prefix, b->gguf ? gguf_ : hf_), name)
    if ((rc = mdl_plan_weight(&m->plan, NAME("embeddings.tok_embeddings", "token_embd"),
                              BE_USE_EMBED, 2, m->info.vocab_size, b->d_model, 0, &b->word, err)) !=
            RC_OK ||
        (rc = plan_vector(m, NAME("embeddings.norm", "token_embd_norm"), b->d_model, &b->embed_norm,
                          err)) != RC_OK)
        return rc;
    for (l = 0; l < b->n_layers; l++)
        if ((rc = plan_layer(m, b, l, err)) != RC_OK)
            return rc;
    if ((rc = plan_vector(m, NAME("final_norm", "output_norm"), b->d_model, &b->final_norm, err)) !=
        RC_OK)
        return rc;
#undef NAME
    return m->info.can_rerank ? plan_score(m, b, err) : mdl_sbert_plan(&b->st, m, err);
}

/* -------------------------------------------------------------------- memory */

enum rc mdl_modernbert_fit(struct mdl *m, struct rc_err *err)
{
    struct modernbert *b = m->state;
    enum rc rc = mdl_passes_fit(m, err);
    uint32_t rows = m->passes.max_rows;
    const struct {
        uint32_t cols;
        struct be_tensor **slot;
    } want[] = {
        {b->d_model, &b->x}, {b->d_model, &b->h},   {b->d_model, &b->q}, {b->d_model, &b->k},
        {b->d_model, &b->v}, {b->d_model, &b->att}, {b->d_ff, &b->ff},   {b->d_ff, &b->gate},
    };
    size_t i;

    for (i = 0; rc == RC_OK && i < sizeof(want) / sizeof(*want); i++)
        rc = mdl_plan_tensor(&m->plan, rows, want[i].cols, want[i].slot, err);
    m->info.ctx_tokens = m->info.max_input_tokens;
    if (rc != RC_OK)
        return rc;
    return m->info.can_embed ? mdl_sbert_fit(&b->st, m, err) : mdl_scorer_fit(&b->head, m, err);
}

void mdl_modernbert_free(struct mdl *m)
{
    struct modernbert *b = m->state;

    mdl_sbert_deinit(&b->st);
    free(b);
    m->state = NULL;
}
