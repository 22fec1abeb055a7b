/* mdl_nomic_cfg.c - the numbers of a NomicBERT encoder from config.json or GGUF metadata, where its
 * weights are, and the memory of its passes.
 *
 * Refuses by name what the forward pass does not do. config.json has two spellings: that of the
 * published checkpoints (n_embd ...) and that of transformers (hidden_size ...); names of tensors
 * are the same under both. Published names appear here only.
 * Source: transformers 5.24, models/nomic_bert; gguf 0.19 (NOMIC_BERT). Tests:
 * tests/models/test_mdl_nomic_golden.c
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_nomic.h"

#define CFG "config.json"
#define KEY(x) "nomic-bert." x
#define MAX_WIDTH (1u << 16)

/* ------------------------------------------------------------------- numbers */

static const struct {
    const char *older, *newer, *gguf;
    size_t at;
    uint32_t min, max;
} numbers[] = {
#define AT(f) offsetof(struct nomic, f)
    {"n_layer", "num_hidden_layers", KEY("block_count"), AT(n_layers), 1, NOMIC_MAX_LAYERS},
    {"n_embd", "hidden_size", KEY("embedding_length"), AT(d_model), 1, MAX_WIDTH},
    {"n_inner", "intermediate_size", KEY("feed_forward_length"), AT(d_ff), 1, 1u << 20},
    {"n_head", "num_attention_heads", KEY("attention.head_count"), AT(n_heads), 1, 1024},
    {"n_positions", "max_position_embeddings", KEY("context_length"), AT(n_pos), 2, 1u << 20},
#undef AT
};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static uint32_t *slot(struct nomic *b, size_t i)
{
    return (uint32_t *)(void *)((char *)b + numbers[i].at);
}

/* Words that change the arithmetic, and the one value that is computed. */
static enum rc refusals(const json_t *c, struct rc_err *err)
{
    static const char *const off[] = {"qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
                                      "prenorm",       "causal",       "parallel_block",
                                      "use_rms_norm",  "is_decoder",   "rotary_emb_interleaved"};
    static const char *const none[] = {"rotary_scaling_factor", "rotary_emb_scale_base",
                                       "rope_scaling"};
    static const char *const acts[][2] = {{"activation_function", "swiglu"},
                                          {"hidden_act", "silu"}};
    const json_t *fraction = json_object_get(c, "rotary_emb_fraction");
    const char *act = NULL;
    bool on;
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(off) / sizeof(*off); i++) {
        if ((rc = mdl_cfg_bool(c, CFG, off[i], false, &on, err)) != RC_OK)
            return rc;
        if (on)
            return rc_fail_what(err, RC_UNSUPPORTED, off[i],
                                CFG ": '%s' is not supported for NomicBERT", off[i]);
    }
    for (i = 0; i < sizeof(none) / sizeof(*none); i++)
        if (json_object_get(c, none[i]) && !json_is_null(json_object_get(c, none[i])))
            return rc_fail_what(err, RC_UNSUPPORTED, none[i],
                                CFG ": '%s' is not supported for NomicBERT", none[i]);
    for (i = 0; i < 2; i++) {
        if ((rc = mdl_cfg_str(c, CFG, acts[i][0], &act, err)) != RC_OK)
            return rc;
        if (act && strcmp(act, acts[i][1]) != 0)
            return rc_fail_what(err, RC_UNSUPPORTED, acts[i][0],
                                CFG ": activation '%.40s' is not supported for NomicBERT (%s)", act,
                                acts[i][1]);
    }
    if (fraction && json_number_value(fraction) != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, "rotary_emb_fraction",
                            CFG ": only heads that are rotated as a whole are supported");
    return RC_OK;
}

static enum rc read_theta(struct nomic *b, const json_t *c, struct rc_err *err)
{
    const json_t *r = json_object_get(c, "rope_parameters");
    const char *type = NULL;
    enum rc rc;

    if ((rc = mdl_cfg_pos(c, CFG, "rotary_emb_base", 1e12, 1000, &b->theta, err)) != RC_OK ||
        !json_is_object(r))
        return rc;
    if ((rc = mdl_cfg_str(r, "rope_parameters", "rope_type", &type, err)) != RC_OK)
        return rc;
    if (type && strcmp(type, "default") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "rope_type",
                            CFG ": rope type '%.40s' is not supported for NomicBERT (default)",
                            type);
    return mdl_cfg_pos(r, "rope_parameters", "rope_theta", 1e12, b->theta, &b->theta, err);
}

static enum rc from_hf(struct mdl *m, struct nomic *b, const json_t *c, struct rc_err *err)
{
    bool older = json_object_get(c, "n_embd") != NULL;
    uint32_t head_dim = 0;
    enum rc rc;

    for (size_t i = 0; i < N_NUMBERS; i++)
        if ((rc = mdl_cfg_u32(c, CFG, older ? numbers[i].older : numbers[i].newer, numbers[i].min,
                              numbers[i].max, MDL_REQUIRED, slot(b, i), err)) != RC_OK)
            return rc;
    if ((rc = refusals(c, err)) != RC_OK || (rc = read_theta(b, c, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "type_vocab_size", 1, 1024, 2, &b->n_types, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "head_dim", 0, MAX_WIDTH, 0, &head_dim, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "vocab_size", 1, 1u << 22, MDL_REQUIRED, &m->info.vocab_size,
                          err)) != RC_OK)
        return rc;
    if (head_dim > 0 && (uint64_t)head_dim * b->n_heads != b->d_model)
        return rc_fail_what(err, RC_UNSUPPORTED, "head_dim",
                            CFG ": %u heads of %u are not as wide as a row (%u)", b->n_heads,
                            head_dim, b->d_model);
    return mdl_cfg_pos(c, CFG, older ? "layer_norm_epsilon" : "layer_norm_eps", 1, 1e-12,
                       &b->norm_eps, err);
}

/* The format has no key for the activation: it is silu. */
static enum rc from_gguf(struct mdl *m, struct nomic *b, struct rc_err *err)
{
    const char *type;
    size_t n;
    enum rc rc;

    b->gguf = true;
    for (size_t i = 0; i < N_NUMBERS; i++)
        if ((rc = mdl_gguf_cfg_u32(m->file, numbers[i].gguf, numbers[i].min, numbers[i].max,
                                   MDL_REQUIRED, slot(b, i), err)) != RC_OK)
            return rc;
    if (mdl_gguf_str(m->file, KEY("rope.scaling.type"), &type, &n) &&
        (n != 4 || memcmp(type, "none", 4) != 0))
        return rc_fail_what(err, RC_UNSUPPORTED, KEY("rope.scaling.type"),
                            "GGUF metadata: rope scaling '%.*s' is not supported for NomicBERT "
                            "(none)",
                            (int)(n > 40 ? 40 : n), type);
    if (mdl_file_find(m->file, "blk.0.attn_qkv.bias") ||
        mdl_file_find(m->file, "blk.0.ffn_up.bias"))
        return rc_fail_what(err, RC_UNSUPPORTED, "bias",
                            "GGUF: biases of products are not supported for NomicBERT");
    if ((rc = mdl_gguf_cfg_pos(m->file, KEY("attention.layer_norm_epsilon"), 1, NAN, &b->norm_eps,
                               err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, KEY("rope.freq_base"), 1e12, NAN, &b->theta, err)) !=
            RC_OK ||
        (rc = mdl_sbert_gguf_refuse_causal(m, err)) != RC_OK ||
        (rc = mdl_sbert_gguf_rows(m, "token_types.weight", 1024, &b->n_types, err)) != RC_OK)
        return rc;
    return mdl_sbert_gguf_rows(m, "token_embd.weight", 1u << 22, &m->info.vocab_size, err);
}

static enum rc as_embedder(struct mdl *m, struct nomic *b, int root_fd, struct rc_err *err)
{
    enum sbert_gguf_pool kind = SBERT_POOL_MEAN;
    enum rc rc = b->gguf ? mdl_sbert_gguf_pooling(m, &kind, err) : RC_OK;

    if (rc != RC_OK)
        return rc;
    if (kind == SBERT_POOL_RANK)
        return rc_fail_what(err, RC_UNSUPPORTED, KEY("pooling_type"),
                            "GGUF metadata: NomicBERT as a cross-encoder (pooling_type 4) is not "
                            "supported");
    if ((rc = mdl_sbert_load(&b->st, root_fd, err)) != RC_OK ||
        (b->gguf && (rc = mdl_sbert_gguf_steps(&b->st, m, err)) != RC_OK) ||
        (rc = mdl_sbert_join(&b->st, m, root_fd, err)) != RC_OK)
        return rc;
    mdl_sbert_inform(&b->st, m);
    return RC_OK;
}

enum rc mdl_nomic_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct nomic *b = calloc(1, sizeof(*b));
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = b; /* freed by mdl_close */
    if (m->be && !be_can_towers(m->be))
        return rc_fail_what(err, RC_UNSUPPORTED, "backend",
                            "backend '%s' has no silu, which NomicBERT needs; expected cpu",
                            be_ctx_backend(m->be));
    rc = src->config ? from_hf(m, b, src->config, err) : from_gguf(m, b, err);
    if (rc != RC_OK)
        return rc;
    if (b->d_model % (2 * b->n_heads) != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "a width of %u does not make %u heads of an even width", b->d_model,
                            b->n_heads);
    b->head_dim = b->d_model / b->n_heads;
    if (mdl_tok_vocab(m->tok) > m->info.vocab_size)
        return rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                            "the tokenizer has %u pieces, the model only %u word vectors",
                            mdl_tok_vocab(m->tok), m->info.vocab_size);
    m->info.train_ctx_tokens = m->info.max_input_tokens = b->n_pos;
    m->info.n_layers = b->n_layers;
    m->info.d_model = b->d_model;
    return as_embedder(m, b, src->root_fd, err);
}

/* ------------------------------------------------------------------- weights */

/* Of the older names: the encoder inside a model with a head. */
static const char *prefix(const struct mdl *m, const struct nomic *b)
{
    static const char *const prefixes[] = {"bert.", "nomic_bert."};
    char name[96];

    for (size_t i = 0; !b->gguf && i < 2; i++) {
        snprintf(name, sizeof(name), "%sembeddings.word_embeddings.weight", prefixes[i]);
        if (mdl_file_find(m->file, name))
            return prefixes[i];
    }
    return "";
}

static enum rc plan_norm(struct mdl *m, const struct nomic *b, const char *stem,
                         struct be_weight **w, struct be_weight **bias, struct rc_err *err)
{
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.weight", stem);
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.bias", stem);
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, b->d_model, 0, 0, bias, err);
}

static enum rc plan_layer(struct mdl *m, struct nomic *b, uint32_t l, struct rc_err *err)
{
    struct nomic_layer *w = &b->layer[l];
    uint32_t d = b->d_model, ff = b->d_ff;
    const struct {
        const char *hf, *gguf;
        struct be_weight **at;
        uint32_t rows, cols;
    } mats[] = {{"attn.out_proj", "attn_output", &w->out, d, d},
                {"mlp.fc11", "ffn_up", &w->up, ff, d},
                {"mlp.fc12", "ffn_gate", &w->gate, ff, d},
                {"mlp.fc2", "ffn_down", &w->down, d, ff}};
    char stem[64], name[128];
    enum rc rc;

    snprintf(stem, sizeof(stem), "%s%s.%u.", prefix(m, b), b->gguf ? "blk" : "encoder.layers", l);
    snprintf(name, sizeof(name), "%s%s.weight", stem, b->gguf ? "attn_qkv" : "attn.Wqkv");
    if ((rc = mdl_plan_split(&m->plan, name, BE_USE_LINEAR, 3 * (uint64_t)d, d, 3, w->qkv, err)) !=
        RC_OK)
        return rc;
    for (size_t i = 0; i < sizeof(mats) / sizeof(*mats); i++) {
        snprintf(name, sizeof(name), "%s%s.weight", stem, b->gguf ? mats[i].gguf : mats[i].hf);
        if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2, mats[i].rows, mats[i].cols, 0,
                                  mats[i].at, err)) != RC_OK)
            return rc;
    }
    snprintf(name, sizeof(name), "%s%s", stem, b->gguf ? "attn_output_norm" : "norm1");
    if ((rc = plan_norm(m, b, name, &w->ln1_w, &w->ln1_b, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s%s", stem, b->gguf ? "layer_output_norm" : "norm2");
    return plan_norm(m, b, name, &w->ln2_w, &w->ln2_b, err);
}

enum rc mdl_nomic_plan(struct mdl *m, struct rc_err *err)
{
    struct nomic *b = m->state;
    const struct {
        const char *hf, *gguf;
        struct be_weight **at;
        uint32_t rows;
    } tables[] = {
        {"embeddings.word_embeddings", "token_embd", &b->word, m->info.vocab_size},
        {"embeddings.token_type_embeddings", "token_types", &b->type, b->n_types},
    };
    const char *in = prefix(m, b);
    char name[96];
    enum rc rc;

    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s%s.weight", in, b->gguf ? tables[i].gguf : tables[i].hf);
        if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_EMBED, 2, tables[i].rows, b->d_model, 0,
                                  tables[i].at, err)) != RC_OK)
            return rc;
    }
    snprintf(name, sizeof(name), "%s%s", in, b->gguf ? "token_embd_norm" : "emb_ln");
    if ((rc = plan_norm(m, b, name, &b->ln_w, &b->ln_b, err)) != RC_OK)
        return rc;
    for (uint32_t l = 0; l < b->n_layers; l++)
        if ((rc = plan_layer(m, b, l, err)) != RC_OK)
            return rc;
    return mdl_sbert_plan(&b->st, m, err);
}

/* -------------------------------------------------------------------- memory */

enum rc mdl_nomic_fit(struct mdl *m, struct rc_err *err)
{
    struct nomic *b = m->state;
    enum rc rc = mdl_passes_fit(m, err);
    uint32_t rows = m->passes.max_rows, d = b->d_model;
    const struct {
        uint32_t cols;
        struct be_tensor **slot;
    } want[] = {{d, &b->x}, {d, &b->t},   {d, &b->q},        {d, &b->k},
                {d, &b->v}, {d, &b->att}, {b->d_ff, &b->ff}, {b->d_ff, &b->gate}};

    free(b->zeros);
    b->zeros = calloc(rows ? rows : 1, sizeof(*b->zeros));
    if (rc == RC_OK && !b->zeros)
        rc = rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    for (size_t i = 0; rc == RC_OK && i < sizeof(want) / sizeof(*want); i++)
        rc = mdl_plan_tensor(&m->plan, rows, want[i].cols, want[i].slot, err);
    m->info.ctx_tokens = m->info.max_input_tokens;
    return rc == RC_OK ? mdl_sbert_fit(&b->st, m, err) : rc;
}

void mdl_nomic_free(struct mdl *m)
{
    struct nomic *b = m->state;

    mdl_sbert_deinit(&b->st);
    free(b->zeros);
    free(b);
    m->state = NULL;
}
