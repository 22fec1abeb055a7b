/* mdl_gemma_cfg.c - the numbers of a Gemma 3 text model, from any spelling.
 *
 * Reads config.json (old and new key names, text_config of multimodal files) or
 * GGUF metadata into struct gemma and refuses by name what the forward pass does
 * not do. Published names appear here and nowhere else.
 * Source: gemma.md 2 and 11.1; defaults are those of the reference's config class.
 * Tests: tests/models/test_mdl_gemma.c, test_mdl_open.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The numbers as this generation has them: one for all layers. */
struct dims {
    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, window, train_ctx;
};

/* One row per number: where it lives, and its published names. */
static const struct {
    const char *hf, *gguf;
    size_t at;
    uint32_t min, max;
    int64_t hf_default;
} numbers[] = {
#define AT(f) offsetof(struct dims, f)
    {"num_hidden_layers", "block_count", AT(n_layers), 1, GEMMA_MAX_LAYERS, 26},
    {"hidden_size", "embedding_length", AT(d_model), 1, GEMMA_MAX_WIDTH, 2304},
    {"intermediate_size", "feed_forward_length", AT(d_ff), 1, 1u << 20, 9216},
    {"num_attention_heads", "attention.head_count", AT(n_heads), 1, 1024, 8},
    {"num_key_value_heads", "attention.head_count_kv", AT(n_kv_heads), 1, 1024, 4},
    {"head_dim", "attention.key_length", AT(head_dim), 2, GEMMA_MAX_HEAD, 256},
    {"sliding_window", "attention.sliding_window", AT(window), 1, GEMMA_MAX_CTX, 4096},
    {"max_position_embeddings", "context_length", AT(train_ctx), 1, GEMMA_MAX_CTX, 131072},
#undef AT
};

static void spread(struct gemma *g, const struct dims *d)
{
    uint32_t i;

    g->n_layers = g->n_own = d->n_layers;
    g->d_model = d->d_model;
    g->n_heads = d->n_heads;
    g->window = d->window;
    g->train_ctx = d->train_ctx;
    for (i = 0; i < GEMMA_KINDS; i++) {
        g->geo[i].n_kv_heads = d->n_kv_heads;
        g->geo[i].head_dim = d->head_dim;
    }
    for (i = 0; i < d->n_layers; i++)
        g->layer[i].d_ff = d->d_ff;
}

/* ------------------------------------------------------------- config.json */

/* One kind's rope: {"rope_type" | "type", "rope_theta", "factor"}. */
static enum rc read_rope(const json_t *r, const char *where, float *theta, float *factor,
                         struct rc_err *err)
{
    const char *type = NULL;
    enum rc rc;

    if (!r || json_is_null(r))
        return RC_OK;
    if (!json_is_object(r))
        return rc_fail_what(err, RC_FORMAT, where, "config.json: '%s' is not an object", where);
    if ((rc = mdl_cfg_str(r, where, "rope_type", &type, err)) != RC_OK ||
        (!type && (rc = mdl_cfg_str(r, where, "type", &type, err)) != RC_OK) ||
        (rc = mdl_cfg_pos(r, where, "rope_theta", 1e12, *theta, theta, err)) != RC_OK)
        return rc;
    if (!type || strcmp(type, "default") == 0)
        return RC_OK;
    if (strcmp(type, "linear") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, where,
                            "config.json: %s type '%.40s' is not supported (default, linear)",
                            where, type);
    return mdl_cfg_pos(r, where, "factor", 1e6, NAN, factor, err);
}

static enum rc hf_rope(struct gemma *g, const json_t *c, struct rc_err *err)
{
    const json_t *both = json_object_get(c, "rope_parameters");
    enum rc rc;

    if ((rc = mdl_cfg_pos(c, "config.json", "rope_theta", 1e12, 1e6, &g->geo[GEMMA_FULL].theta,
                          err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, "config.json", "rope_local_base_freq", 1e12, 1e4,
                          &g->geo[GEMMA_SLIDING].theta, err)) != RC_OK ||
        (rc = read_rope(json_object_get(c, "rope_scaling"), "rope_scaling",
                        &g->geo[GEMMA_FULL].theta, &g->geo[GEMMA_FULL].factor, err)) != RC_OK)
        return rc;
    if (!json_is_object(both))
        return RC_OK;
    if (!json_object_get(both, "full_attention") && !json_object_get(both, "sliding_attention"))
        return read_rope(both, "rope_parameters", &g->geo[GEMMA_FULL].theta,
                         &g->geo[GEMMA_FULL].factor, err);
    if ((rc = read_rope(json_object_get(both, "full_attention"), "rope_parameters.full_attention",
                        &g->geo[GEMMA_FULL].theta, &g->geo[GEMMA_FULL].factor, err)) != RC_OK)
        return rc;
    return read_rope(json_object_get(both, "sliding_attention"),
                     "rope_parameters.sliding_attention", &g->geo[GEMMA_SLIDING].theta,
                     &g->geo[GEMMA_SLIDING].factor, err);
}

static void layers_by_pattern(struct gemma *g, uint32_t pattern)
{
    uint32_t l;

    for (l = 0; l < g->n_layers; l++)
        g->layer[l].kind = (l + 1) % pattern == 0 ? GEMMA_FULL : GEMMA_SLIDING;
}

enum rc mdl_gemma_hf_kinds(struct gemma *g, const json_t *types, struct rc_err *err)
{
    uint32_t l;

    if (!json_is_array(types) || json_array_size(types) != g->n_layers)
        return rc_fail_what(err, RC_FORMAT, "layer_types",
                            "config.json: 'layer_types' must list all %u layers", g->n_layers);
    for (l = 0; l < g->n_layers; l++) {
        const char *s = json_string_value(json_array_get(types, l));

        if (s && strcmp(s, "full_attention") == 0)
            g->layer[l].kind = GEMMA_FULL;
        else if (s && strcmp(s, "sliding_attention") == 0)
            g->layer[l].kind = GEMMA_SLIDING;
        else
            return rc_fail_what(err, RC_FORMAT, "layer_types",
                                "config.json: layer_types[%u] is '%.40s', expected "
                                "full_attention or sliding_attention",
                                l, s ? s : "not a string");
    }
    return RC_OK;
}

enum rc mdl_gemma_hf_layers(struct gemma *g, const json_t *c, struct rc_err *err)
{
    const json_t *types = json_object_get(c, "layer_types");
    uint32_t pattern;
    enum rc rc;

    if (!types || json_is_null(types)) {
        const char *key = json_object_get(c, "sliding_window_pattern") ? "sliding_window_pattern"
                                                                       : "_sliding_window_pattern";

        if ((rc = mdl_cfg_u32(c, "config.json", key, 1, 1024, GEMMA_PATTERN, &pattern, err)) ==
            RC_OK)
            layers_by_pattern(g, pattern);
        return rc;
    }
    return mdl_gemma_hf_kinds(g, types, err);
}

/* What changes the arithmetic and is not done here is refused, not ignored. */
static enum rc hf_refusals(const json_t *c, bool two_way, struct rc_err *err)
{
    const char *act = NULL;
    bool b;
    enum rc rc;

    if ((rc = mdl_cfg_str(c, "config.json", "hidden_activation", &act, err)) != RC_OK ||
        (!act && (rc = mdl_cfg_str(c, "config.json", "hidden_act", &act, err)) != RC_OK))
        return rc;
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "hidden_activation",
                            "config.json: activation '%.40s' is not supported for Gemma 3 "
                            "(gelu_pytorch_tanh)",
                            act);
    if ((rc = mdl_cfg_bool(c, "config.json", "use_bidirectional_attention", false, &b, err)) !=
        RC_OK)
        return rc;
    if (b != two_way)
        return rc_fail_what(err, RC_UNSUPPORTED, "use_bidirectional_attention",
                            two_way ? "config.json: a Gemma3TextModel without two-way attention "
                                      "(use_bidirectional_attention) is no EmbeddingGemma"
                                    : "config.json: two-way attention (EmbeddingGemma) is not "
                                      "supported for this class");
    if ((rc = mdl_cfg_bool(c, "config.json", "attention_bias", false, &b, err)) != RC_OK)
        return rc;
    if (b)
        return rc_fail_what(err, RC_UNSUPPORTED, "attention_bias",
                            "config.json: attention biases are not supported for Gemma 3");
    return RC_OK;
}

enum rc mdl_gemma_hf_prefix(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    static const char *const prefixes[] = {"model.", "language_model.model.",
                                           "model.language_model.", ""};
    char name[96];
    size_t i;

    for (i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", prefixes[i]);
        if (mdl_file_find(m->file, name)) {
            snprintf(g->prefix, sizeof(g->prefix), "%s", prefixes[i]);
            return RC_OK;
        }
    }
    return rc_fail_what(err, RC_WEIGHT_ABSENT, "model.embed_tokens.weight",
                        "tensor 'model.embed_tokens.weight' is missing");
}

static void eos_from(struct mdl *m, const json_t *v)
{
    size_t i;

    if (json_is_integer(v))
        mdl_eos_add(m, json_integer_value(v));
    for (i = 0; json_is_array(v) && i < json_array_size(v); i++)
        if (json_is_integer(json_array_get(v, i)))
            mdl_eos_add(m, json_integer_value(json_array_get(v, i)));
}

enum rc mdl_gemma_hf_eos(struct mdl *m, const struct mdl_src *src, const json_t *text,
                         struct rc_err *err)
{
    json_t *gen = NULL;
    enum rc rc = mdl_cfg_load(src->root_fd, "generation_config.json", false, &gen, err);

    if (rc != RC_OK)
        return rc;
    eos_from(m, gen ? json_object_get(gen, "eos_token_id") : NULL);
    eos_from(m, json_object_get(src->config, "eos_token_id"));
    eos_from(m, json_object_get(text, "eos_token_id"));
    json_decref(gen);
    return RC_OK;
}

enum rc mdl_gemma_hf_vocab(struct mdl *m, struct gemma *g, const json_t *c, struct rc_err *err)
{
    char name[96];
    const struct mdl_tensor *t;

    snprintf(name, sizeof(name), "%sembed_tokens.weight", g->prefix);
    t = mdl_file_find(m->file, name);
    /* a config without the number means the table as it is */
    return mdl_cfg_u32(c, "config.json", "vocab_size", 1, 1u << 22,
                       t && t->dims[0] <= 1u << 22 ? (int64_t)t->dims[0] : MDL_REQUIRED,
                       &m->info.vocab_size, err);
}

enum rc mdl_gemma_hf_tied(const struct mdl_src *src, const json_t *c, struct gemma *g,
                          struct rc_err *err)
{
    enum rc rc;

    /* a multimodal config may say it beside text_config only */
    if ((rc = mdl_cfg_bool(src->config, "config.json", "tie_word_embeddings", true, &g->tied,
                           err)) != RC_OK)
        return rc;
    return mdl_cfg_bool(c, "config.json", "tie_word_embeddings", g->tied, &g->tied, err);
}

enum rc mdl_gemma3_from_hf(struct mdl *m, struct gemma *g, const struct mdl_src *src, bool two_way,
                           struct rc_err *err)
{
    const json_t *c = json_object_get(src->config, "text_config");
    struct dims d;
    float qpas;
    size_t i;
    enum rc rc;

    if (!json_is_object(c))
        c = src->config;
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, "config.json", numbers[i].hf, numbers[i].min, numbers[i].max,
                              numbers[i].hf_default, (uint32_t *)((char *)&d + numbers[i].at),
                              err)) != RC_OK)
            return rc;
    spread(g, &d);
    if ((rc = mdl_cfg_pos(c, "config.json", "rms_norm_eps", 1, 1e-6, &g->norm_eps, err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, "config.json", "query_pre_attn_scalar", 1e6, 256, &qpas, err)) !=
            RC_OK ||
        (rc = mdl_cfg_pos(c, "config.json", "final_logit_softcapping", 1e6, 0, &g->softcap, err)) !=
            RC_OK ||
        (rc = hf_refusals(c, two_way, err)) != RC_OK ||
        (rc = mdl_gemma_hf_layers(g, c, err)) != RC_OK || (rc = hf_rope(g, c, err)) != RC_OK ||
        (rc = mdl_gemma_hf_prefix(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_hf_vocab(m, g, c, err)) != RC_OK)
        return rc;
    g->score_scale = (float)(1 / sqrt((double)qpas));
    g->norm_add = 1;
    if ((rc = mdl_gemma_hf_tied(src, c, g, err)) != RC_OK)
        return rc;
    return mdl_gemma_hf_eos(m, src, c, err);
}

/* -------------------------------------------------------------------- GGUF */

/* A key of this generation: its architecture word and name. */
static const char *key(const struct mdl *m, const char *name, char buf[96])
{
    snprintf(buf, 96, "%.40s.%.50s", m->info.arch, name);
    return buf;
}

static enum rc gguf_rope(const struct mdl *m, struct gemma *g, struct rc_err *err)
{
    const struct mdl_file *f = m->file;
    const char *type;
    char buf[96];
    size_t n;
    enum rc rc;

    if ((rc = mdl_gguf_cfg_pos(f, key(m, "rope.freq_base", buf), 1e12, 1e6,
                               &g->geo[GEMMA_FULL].theta, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(f, key(m, "rope.freq_base_swa", buf), 1e12, 1e4,
                               &g->geo[GEMMA_SLIDING].theta, err)) != RC_OK)
        return rc;
    if (!mdl_gguf_str(f, key(m, "rope.scaling.type", buf), &type, &n) ||
        (n == 4 && memcmp(type, "none", 4) == 0))
        return RC_OK;
    if (n != 6 || memcmp(type, "linear", 6) != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, buf,
                            "GGUF metadata: rope scaling '%.*s' is not supported (none, linear)",
                            (int)(n > 40 ? 40 : n), type);
    return mdl_gguf_cfg_pos(f, key(m, "rope.scaling.factor", buf), 1e6, NAN,
                            &g->geo[GEMMA_FULL].factor, err);
}

enum rc mdl_gemma_gguf_vocab(struct mdl *m, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, "token_embd.weight");

    if (!t)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, "token_embd.weight",
                            "tensor 'token_embd.weight' is missing");
    if (t->n_dims != 2 || t->dims[0] == 0 || t->dims[0] > 1u << 22)
        return rc_fail_what(err, RC_FORMAT, "token_embd.weight",
                            "tensor 'token_embd.weight': expected at most 4194304 rows of one "
                            "vector each");
    m->info.vocab_size = (uint32_t)t->dims[0];
    return RC_OK;
}

void mdl_gemma_gguf_eos(struct mdl *m)
{
    uint64_t id;

    if (mdl_gguf_u64(m->file, "tokenizer.ggml.eos_token_id", &id) && id <= INT32_MAX)
        mdl_eos_add(m, (int64_t)id);
    if (mdl_gguf_u64(m->file, "tokenizer.ggml.eot_token_id", &id) && id <= INT32_MAX)
        mdl_eos_add(m, (int64_t)id);
}

enum rc mdl_gemma3_from_gguf(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    const struct mdl_file *f = m->file;
    struct dims d;
    uint32_t value_length, pattern;
    char buf[96];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_gguf_cfg_u32(f, key(m, numbers[i].gguf, buf), numbers[i].min, numbers[i].max,
                                   MDL_REQUIRED, (uint32_t *)((char *)&d + numbers[i].at), err)) !=
            RC_OK)
            return rc;
    spread(g, &d);
    if ((rc = mdl_gguf_cfg_u32(f, key(m, "attention.value_length", buf), 1, GEMMA_MAX_WIDTH,
                               d.head_dim, &value_length, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_u32(f, key(m, "attention.sliding_window_pattern", buf), 1, 1024,
                               GEMMA_PATTERN, &pattern, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(f, key(m, "attention.layer_norm_rms_epsilon", buf), 1, NAN,
                               &g->norm_eps, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(f, key(m, "final_logit_softcapping", buf), 1e6, 0, &g->softcap,
                               err)) != RC_OK ||
        (rc = gguf_rope(m, g, err)) != RC_OK || (rc = mdl_gemma_gguf_vocab(m, err)) != RC_OK)
        return rc;
    if (value_length != d.head_dim)
        return rc_fail_what(err, RC_UNSUPPORTED, key(m, "attention.value_length", buf),
                            "GGUF metadata: value_length %u differs from key_length %u",
                            value_length, d.head_dim);
    layers_by_pattern(g, pattern);
    /* The format has no key for the score scale: 62 layers is the 27B model, whose
     * scale is (d_model / n_heads)^-0.5; the others use the head width. */
    g->score_scale =
        (float)(1 / sqrt(g->n_layers == 62 ? (double)g->d_model / g->n_heads : (double)d.head_dim));
    g->norm_add = 0;
    g->tied = mdl_file_find(f, "output.weight") == NULL;
    mdl_gemma_gguf_eos(m);
    return RC_OK;
}

/* -------------------------------------------------------------------- both */

static int32_t spelled(const struct mdl *m, const char *s)
{
    return mdl_tok_find(m->tok, s, strlen(s));
}

enum rc mdl_gemma_check(struct mdl *m, const struct gemma *g, struct rc_err *err)
{
    uint32_t i;

    for (i = 0; i < GEMMA_KINDS; i++) {
        if (g->n_heads % g->geo[i].n_kv_heads != 0)
            return rc_fail_what(err, RC_FORMAT, "num_key_value_heads",
                                "%u query heads do not divide into %u key/value heads", g->n_heads,
                                g->geo[i].n_kv_heads);
        if (g->geo[i].head_dim % 2 != 0)
            return rc_fail_what(err, RC_FORMAT, "head_dim",
                                "head_dim is %u, expected an even number", g->geo[i].head_dim);
    }
    if (g->bos < 0 || g->bos >= (int32_t)m->info.vocab_size)
        return rc_fail_what(err, RC_FORMAT, "bos", "the tokenizer has no beginning-of-text token");
    return RC_OK;
}

enum rc mdl_gemma_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct gemma *g = calloc(1, sizeof(*g));
    enum rc rc;

    if (!g)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = g;             /* freed by mdl_close */
    g->media_sees_all = true; /* tokens of a picture, gemma.md 2 */
    g->geo[GEMMA_FULL].factor = g->geo[GEMMA_SLIDING].factor = 1;
    rc = src->config ? mdl_gemma3_from_hf(m, g, src, false, err) : mdl_gemma3_from_gguf(m, g, err);
    if (rc != RC_OK)
        return rc;
    g->bos = mdl_tok_bos(m->tok);
    g->turn_start = spelled(m, "<start_of_turn>");
    g->turn_end = spelled(m, "<end_of_turn>");
    if ((rc = mdl_gemma_check(m, g, err)) != RC_OK || (rc = mdl_gemma_share(g, err)) != RC_OK)
        return rc;
    mdl_eos_add(m, g->turn_end);
    mdl_eos_add(m, spelled(m, "<eos>"));
    g->embed_scale = (float)sqrt((double)g->d_model);
    m->info.can_generate = true;
    m->info.has_chat_template = g->turn_start >= 0 && g->turn_end >= 0 &&
                                g->turn_start < (int32_t)m->info.vocab_size &&
                                g->turn_end < (int32_t)m->info.vocab_size;
    m->info.train_ctx_tokens = g->train_ctx;
    m->info.n_layers = g->n_layers;
    m->info.d_model = g->d_model;
    return RC_OK;
}
