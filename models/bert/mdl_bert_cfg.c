/* mdl_bert_cfg.c - the numbers of a BERT encoder from config.json.
 *
 * Refuses by name what the forward pass does not do. Published names appear here
 * and in the tensor table of mdl_bert.c only. Source: encoders.md 3.
 * Tests: tests/models/test_mdl_bert.c, test_mdl_open.c
 */
#include "mdl_bert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WIDTH (1u << 16)

static const struct {
    const char *hf;
    size_t at;
    uint32_t min, max;
    int64_t dflt;
} numbers[] = {
#define AT(f) offsetof(struct bert, f)
    {"num_hidden_layers", AT(n_layers), 1, BERT_MAX_LAYERS, MDL_REQUIRED},
    {"hidden_size", AT(d_model), 1, MAX_WIDTH, MDL_REQUIRED},
    {"intermediate_size", AT(d_ff), 1, 1u << 20, MDL_REQUIRED},
    {"num_attention_heads", AT(n_heads), 1, 1024, MDL_REQUIRED},
    {"max_position_embeddings", AT(n_pos), 2, 1u << 20, 512},
    {"type_vocab_size", AT(n_types), 1, 1024, 2},
#undef AT
};

static const struct {
    const char *name;
    enum be_epi epi;
} activations[] = {
    {"gelu", BE_EPI_GELU_ERF},
    {"gelu_python", BE_EPI_GELU_ERF},
    {"gelu_new", BE_EPI_GELU_TANH},
    {"gelu_fast", BE_EPI_GELU_TANH},
    {"gelu_pytorch_tanh", BE_EPI_GELU_TANH},
};

static enum rc read_act(struct bert *b, const json_t *c, struct rc_err *err)
{
    const char *act = NULL;
    size_t i;
    enum rc rc = mdl_cfg_str(c, "config.json", "hidden_act", &act, err);

    if (rc != RC_OK)
        return rc;
    for (i = 0; i < sizeof(activations) / sizeof(*activations); i++)
        if (strcmp(act ? act : "gelu", activations[i].name) == 0) {
            b->act = activations[i].epi;
            return RC_OK;
        }
    return rc_fail_what(err, RC_UNSUPPORTED, "hidden_act",
                        "config.json: activation '%.40s' is not supported for BERT (gelu, "
                        "gelu_new, gelu_pytorch_tanh)",
                        act);
}

static enum rc refusals(const json_t *c, struct rc_err *err)
{
    const char *pos = NULL;
    bool decoder;
    enum rc rc;

    if ((rc = mdl_cfg_str(c, "config.json", "position_embedding_type", &pos, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, "config.json", "is_decoder", false, &decoder, err)) != RC_OK)
        return rc;
    if (pos && strcmp(pos, "absolute") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "position_embedding_type",
                            "config.json: positions of type '%.40s' are not supported for BERT "
                            "(absolute)",
                            pos);
    if (decoder)
        return rc_fail_what(err, RC_UNSUPPORTED, "is_decoder",
                            "config.json: BERT as a decoder is not supported");
    return RC_OK;
}

/* The file decides between spellings: with or without "bert.", LayerNorm's old
 * gamma/beta. What is missing altogether is named by the plan. */
static void spelling(struct mdl *m, struct bert *b)
{
    char name[96];

    if (!mdl_file_find(m->file, "embeddings.word_embeddings.weight") &&
        mdl_file_find(m->file, "bert.embeddings.word_embeddings.weight"))
        snprintf(b->prefix, sizeof(b->prefix), "bert.");
    snprintf(name, sizeof(name), "%sembeddings.LayerNorm.gamma", b->prefix);
    b->gamma_beta = mdl_file_find(m->file, name) != NULL;
}

enum rc mdl_bert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct bert *b = calloc(1, sizeof(*b));
    const json_t *c = src->config;
    size_t i;
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = b; /* freed by mdl_close */
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, "config.json", numbers[i].hf, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, (uint32_t *)((char *)b + numbers[i].at), err)) !=
            RC_OK)
            return rc;
    if ((rc = mdl_cfg_pos(c, "config.json", "layer_norm_eps", 1, 1e-12, &b->norm_eps, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, "config.json", "vocab_size", 1, 1u << 22, MDL_REQUIRED,
                          &m->info.vocab_size, err)) != RC_OK ||
        (rc = read_act(b, c, err)) != RC_OK || (rc = refusals(c, err)) != RC_OK ||
        (rc = mdl_sbert_load(&b->st, src->root_fd, err)) != RC_OK)
        return rc;
    if (b->d_model % b->n_heads != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "config.json: hidden_size %u is not a multiple of %u heads", b->d_model,
                            b->n_heads);
    if (mdl_tok_vocab(m->tok) > m->info.vocab_size)
        return rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                            "the tokenizer has %u pieces, the model only %u word vectors",
                            mdl_tok_vocab(m->tok), m->info.vocab_size);
    b->head_dim = b->d_model / b->n_heads;
    spelling(m, b);
    m->info.can_embed = true;
    m->info.train_ctx_tokens = b->n_pos;
    m->info.max_input_tokens = b->st.max_seq && b->st.max_seq < b->n_pos ? b->st.max_seq : b->n_pos;
    m->info.embed_dim = b->d_model * b->st.n_pools;
    m->info.n_layers = b->n_layers;
    m->info.d_model = b->d_model;
    if (b->st.default_prompt >= 0)
        snprintf(m->info.default_prompt, sizeof(m->info.default_prompt), "%s",
                 b->st.prompts[b->st.default_prompt].name);
    return RC_OK;
}
