/* mdl_bert_cfg.c - the numbers of an encoder of BERT's kind, from config.json or GGUF metadata,
 * and which heads its files have.
 *
 * Refuses by name what the forward pass does not do. Published names of numbers appear here only.
 * Source: encoders.md 3, 4, 11.1. Tests: tests/models/test_mdl_bert.c, test_mdl_xlmr.c,
 * test_mdl_open.c
 */
#include "mdl_bert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WIDTH (1u << 16)

static const struct {
    const char *hf, *gguf;
    size_t at;
    uint32_t min, max;
    int64_t dflt; /* of config.json; GGUF: required */
} numbers[] = {
#define AT(f) offsetof(struct bert, f)
    {"num_hidden_layers", "bert.block_count", AT(n_layers), 1, BERT_MAX_LAYERS, MDL_REQUIRED},
    {"hidden_size", "bert.embedding_length", AT(d_model), 1, MAX_WIDTH, MDL_REQUIRED},
    {"intermediate_size", "bert.feed_forward_length", AT(d_ff), 1, 1u << 20, MDL_REQUIRED},
    {"num_attention_heads", "bert.attention.head_count", AT(n_heads), 1, 1024, MDL_REQUIRED},
    {"max_position_embeddings", "bert.context_length", AT(n_pos), 2, 1u << 20, 512},
#undef AT
};

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

/* The file decides between spellings: the trunk's prefix, LayerNorm's old gamma/beta. What is
 * missing altogether is named by the plan. */
static void spelling(struct mdl *m, struct bert *b)
{
    static const char *const prefixes[] = {"", "bert.", "roberta.", "xlm_roberta."};
    char name[96];
    size_t i;

    for (i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
        snprintf(name, sizeof(name), "%sembeddings.word_embeddings.weight", prefixes[i]);
        if (mdl_file_find(m->file, name)) {
            snprintf(b->prefix, sizeof(b->prefix), "%s", prefixes[i]);
            break;
        }
    }
    snprintf(name, sizeof(name), "%sembeddings.LayerNorm.gamma", b->prefix);
    b->gamma_beta = mdl_file_find(m->file, name) != NULL;
}

/* "RobertaModel", "XLMRobertaForMaskedLM", "xlm-roberta" ... */
static bool is_roberta(const char *arch)
{
    static const char *const starts[] = {"Roberta", "XLMRoberta", "roberta", "xlm-roberta"};
    size_t i;

    for (i = 0; i < sizeof(starts) / sizeof(*starts); i++)
        if (strncmp(arch, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static enum rc from_hf(struct mdl *m, struct bert *b, const json_t *c, struct rc_err *err)
{
    uint32_t pad = 0;
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, "config.json", numbers[i].hf, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, (uint32_t *)((char *)b + numbers[i].at), err)) !=
            RC_OK)
            return rc;
    b->roberta = is_roberta(m->info.arch);
    if ((rc = mdl_cfg_u32(c, "config.json", "type_vocab_size", 1, 1024, 2, &b->n_types, err)) !=
            RC_OK ||
        (rc = mdl_cfg_pos(c, "config.json", "layer_norm_eps", 1, 1e-12, &b->norm_eps, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, "config.json", "vocab_size", 1, 1u << 22, MDL_REQUIRED,
                          &m->info.vocab_size, err)) != RC_OK ||
        (rc = mdl_cfg_gelu(c, "config.json", "hidden_act", &b->act, err)) != RC_OK ||
        (rc = refusals(c, err)) != RC_OK)
        return rc;
    spelling(m, b);
    if (!b->roberta)
        return RC_OK;
    if ((rc = mdl_cfg_u32(c, "config.json", "pad_token_id", 0, 1u << 22, 1, &pad, err)) != RC_OK)
        return rc;
    if (pad >= m->info.vocab_size || b->n_pos < pad + 3)
        return rc_fail_what(err, RC_FORMAT, "max_position_embeddings",
                            "config.json: positions begin at pad_token_id + 1 = %u, and there are "
                            "%u of them",
                            pad + 1, b->n_pos);
    b->pad = (int32_t)pad;
    return RC_OK;
}

/* Positions of RoBERTa's kind have lost their first rows, so all count from 0. The format has no
 * key for the activation: it is gelu. */
static enum rc from_gguf(struct mdl *m, struct bert *b, struct rc_err *err)
{
    size_t i;
    enum rc rc;

    b->gguf = true;
    b->act = BE_EPI_GELU_ERF;
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_gguf_cfg_u32(m->file, numbers[i].gguf, numbers[i].min, numbers[i].max,
                                   MDL_REQUIRED, (uint32_t *)((char *)b + numbers[i].at), err)) !=
            RC_OK)
            return rc;
    if ((rc = mdl_sbert_gguf_refuse_causal(m, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, "bert.attention.layer_norm_epsilon", 1, NAN, &b->norm_eps,
                               err)) != RC_OK ||
        (rc = mdl_sbert_gguf_rows(m, "token_embd.weight", 1u << 22, &m->info.vocab_size, err)) !=
            RC_OK)
        return rc;
    return mdl_sbert_gguf_rows(m, "token_types.weight", 1024, &b->n_types, err);
}

/* BGE-M3's heads, where their files are there: in safetensors or as torch wrote them. */
static enum rc find_heads(struct mdl *m, int root_fd, struct rc_err *err)
{
    static const struct {
        const char *file, *prefix;
    } files[] = {{"sparse_linear.safetensors", "sparse_linear."},
                 {"sparse_linear.pt", "sparse_linear."},
                 {"colbert_linear.safetensors", "colbert_linear."},
                 {"colbert_linear.pt", "colbert_linear."}};
    const struct mdl_tensor *t;
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(files) / sizeof(*files); i++) {
        rc = mdl_file_beside(m->file, root_fd, files[i].file, files[i].prefix, err);
        if (rc == RC_OK && i % 2 == 0)
            i++; /* the same in the other form is not read */
        else if (rc != RC_OK && rc != RC_NOT_FOUND)
            return rc;
    }
    m->info.can_sparse = mdl_file_find(m->file, "sparse_linear.weight") != NULL;
    if (!(t = mdl_file_find(m->file, "colbert_linear.weight")))
        return RC_OK;
    if (t->n_dims != 2 || t->dims[0] == 0 || t->dims[0] > MAX_WIDTH)
        return rc_fail_what(err, RC_FORMAT, t->name,
                            "tensor '%s': expected a matrix of 1 to %u rows", t->name, MAX_WIDTH);
    m->info.token_dim = (uint32_t)t->dims[0];
    return RC_OK;
}

static enum rc as_embedder(struct mdl *m, struct bert *b, const struct mdl_src *src,
                           struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_sbert_load(&b->st, src->root_fd, err)) != RC_OK ||
        (b->gguf && (rc = mdl_sbert_gguf_steps(&b->st, m, err)) != RC_OK) ||
        (rc = mdl_sbert_join(&b->st, m, src->root_fd, err)) != RC_OK ||
        (rc = find_heads(m, src->root_fd, err)) != RC_OK)
        return rc;
    mdl_sbert_inform(&b->st, m);
    return RC_OK;
}

/* Pairs in, one logit out: the files decide how many there are. */
static enum rc as_scorer(struct mdl *m, struct bert *b, struct rc_err *err)
{
    const char *name = b->gguf      ? "cls.output.weight"
                       : b->roberta ? "classifier.out_proj.weight"
                                    : "classifier.weight";
    enum rc rc = mdl_scorer_config(m, name, err);

    if (rc != RC_OK)
        return rc;
    b->head.pool = BE_POOL_CLS;
    b->head.tanh = true;
    if (b->roberta || b->n_types < 2)
        return RC_OK;
    return mdl_sbert_sep(m, &b->sep, err);
}

static enum rc scores(const struct mdl *m, const struct bert *b, bool *out, struct rc_err *err)
{
    enum sbert_gguf_pool kind = SBERT_POOL_NONE;
    enum rc rc = b->gguf ? mdl_sbert_gguf_pooling(m, &kind, err) : RC_OK;

    *out = b->gguf ? kind == SBERT_POOL_RANK
                   : strstr(m->info.arch, "ForSequenceClassification") != NULL;
    return rc;
}

enum rc mdl_bert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct bert *b = calloc(1, sizeof(*b));
    bool scorer = false;
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = b; /* freed by mdl_close */
    b->pad = b->sep = -1;
    rc = src->config ? from_hf(m, b, src->config, err) : from_gguf(m, b, err);
    if (rc != RC_OK)
        return rc;
    if (b->d_model % b->n_heads != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "a width of %u is not a multiple of %u heads", b->d_model, b->n_heads);
    if ((rc = mdl_cfg_vocab(m, m->info.vocab_size, err)) != RC_OK)
        return rc;
    b->head_dim = b->d_model / b->n_heads;
    m->info.train_ctx_tokens = b->n_pos - (uint32_t)(b->pad + 1);
    m->info.max_input_tokens = m->info.train_ctx_tokens;
    m->info.n_layers = b->n_layers;
    m->info.d_model = b->d_model;
    if ((rc = scores(m, b, &scorer, err)) != RC_OK)
        return rc;
    return scorer ? as_scorer(m, b, err) : as_embedder(m, b, src, err);
}
