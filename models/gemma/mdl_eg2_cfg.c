/* mdl_eg2_cfg.c - the numbers of an EmbeddingGemma 2 encoder: config.json, the tokens that the
 * tokenizer must have, and what sentence-transformers wrote beside them.
 *
 * Everything the forward pass relies on is read and checked here; what it does not compute
 * (a backend without its operations, F16, quantized files, another pooling) is refused by name.
 * Published names appear here and in the table of weights only. Source: gemma.md 8, 10, 12. Tests:
 * tests/models/test_mdl_eg2_files.c
 */
#include "mdl_eg2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CFG "config.json"
#define TEXT_CFG "config.json text_config"

static enum rc unsupported(const char *key, const char *what, struct rc_err *err)
{
    return rc_fail_what(err, RC_UNSUPPORTED, key,
                        CFG ": %s (%s) is not supported for "
                            "EmbeddingGemma 2",
                        what, key);
}

/* ---------------------------------------------------------------- refusals */

/* F32 arithmetic on float32 or bfloat16 files, and nothing else. */
static enum rc check_type(const json_t *c, const char *key, struct rc_err *err)
{
    const char *type = NULL;
    enum rc rc = mdl_cfg_str(c, CFG, key, &type, err);

    if (rc != RC_OK || !type || strcmp(type, "float32") == 0 || strcmp(type, "bfloat16") == 0)
        return rc;
    return rc_fail_what(err, RC_UNSUPPORTED, key,
                        CFG ": %s '%.40s' is not computed for EmbeddingGemma 2 (float32, or "
                            "bfloat16 widened to it)",
                        key, type);
}

static enum rc refusals(const struct mdl *m, const json_t *config, const json_t *text,
                        struct rc_err *err)
{
    const json_t *quant = json_object_get(config, "quantization_config");
    const char *act = NULL, *type = NULL;
    bool bias;
    enum rc rc;

    if (m->be && !be_can_towers(m->be))
        return rc_fail_what(err, RC_UNSUPPORTED, "backend",
                            "backend '%s' lacks operations that EmbeddingGemma 2 needs to see and "
                            "hear; expected cpu",
                            be_ctx_backend(m->be));
    if (quant && !json_is_null(quant))
        return unsupported("quantization_config", "a quantized checkpoint", err);
    if ((rc = check_type(config, "dtype", err)) != RC_OK ||
        (rc = check_type(config, "torch_dtype", err)) != RC_OK ||
        (rc = mdl_cfg_str(text, TEXT_CFG, "model_type", &type, err)) != RC_OK ||
        (rc = mdl_cfg_str(text, TEXT_CFG, "hidden_activation", &act, err)) != RC_OK ||
        (rc = mdl_cfg_bool(text, TEXT_CFG, "attention_bias", false, &bias, err)) != RC_OK)
        return rc;
    if (type && strcmp(type, "embedding_gemma2_text") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "model_type",
                            TEXT_CFG ": model_type '%.40s', expected embedding_gemma2_text", type);
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "hidden_activation",
                            TEXT_CFG ": activation '%.40s' is not supported for EmbeddingGemma 2 "
                                     "(gelu_pytorch_tanh)",
                            act);
    return bias ? unsupported("attention_bias", "a bias in attention", err) : RC_OK;
}

/* ------------------------------------------------------------------ layers */

static enum rc read_heads(struct gemma *g, const json_t *c, struct rc_err *err)
{
    /* the global ones are only meant where layers are not listed one by one */
    bool listed = json_is_object(json_object_get(c, "per_layer_config"));
    struct gemma_heads p[EG2_MAX_LAYERS], own, full;
    uint32_t l;
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, TEXT_CFG, "head_dim", 2, GEMMA_MAX_HEAD, 256, &own.head_dim, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, TEXT_CFG, "num_key_value_heads", 1, 1024, 2, &own.n_kv_heads, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, TEXT_CFG, "global_head_dim", 2, GEMMA_MAX_HEAD, 512, &full.head_dim,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, TEXT_CFG, "num_global_key_value_heads", 1, 1024, 1, &full.n_kv_heads,
                          err)) != RC_OK)
        return rc;
    for (l = 0; l < g->n_layers; l++)
        p[l] = g->layer[l].kind == GEMMA_FULL && !listed ? full : own;
    if ((rc = mdl_gemma4_hf_per_layer(g, c, p, err)) != RC_OK)
        return rc;
    return mdl_gemma4_fold(g, p, err);
}

static enum rc read_rope(const json_t *c, const char *kind, double theta, struct gemma_geo *geo,
                         struct rc_err *err)
{
    const json_t *both = json_object_get(c, "rope_parameters");
    const json_t *r = json_object_get(both, kind);
    const char *type = NULL;
    enum rc rc;

    if ((both && !json_is_null(both) && !json_is_object(both)) ||
        (r && !json_is_null(r) && !json_is_object(r)))
        return rc_fail_what(err, RC_FORMAT, "rope_parameters",
                            TEXT_CFG ": rope_parameters '%s' is not an object", kind);
    if ((rc = mdl_cfg_str(r, "rope_parameters", "rope_type", &type, err)) != RC_OK)
        return rc;
    if (type && strcmp(type, "default") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "rope_type",
                            TEXT_CFG ": rope type '%.40s' of %s is not supported for "
                                     "EmbeddingGemma 2 (default)",
                            type, kind);
    return mdl_cfg_pos(r, "rope_parameters", "rope_theta", 1e12, theta, &geo->theta, err);
}

static enum rc read_text(struct mdl *m, struct gemma *g, const json_t *c, struct rc_err *err)
{
    uint32_t d_ff, l;
    const struct {
        const char *key;
        uint32_t *at, min, max;
        int64_t dflt;
    } numbers[] = {
        {"num_hidden_layers", &g->n_layers, 1, EG2_MAX_LAYERS, MDL_REQUIRED},
        {"hidden_size", &g->d_model, 1, EG2_MAX_WIDTH, MDL_REQUIRED},
        {"intermediate_size", &d_ff, 1, 1u << 20, MDL_REQUIRED},
        {"num_attention_heads", &g->n_heads, 1, 1024, MDL_REQUIRED},
        {"sliding_window", &g->window, 1, 1u << 24, MDL_REQUIRED},
        {"hidden_size_per_layer_input", &g->d_ple, 1, EG2_MAX_WIDTH, MDL_REQUIRED},
        {"max_position_embeddings", &g->train_ctx, 2, 1u << 24, MDL_REQUIRED},
        {"embedding_dim", &m->info.embed_dim, 1, EG2_MAX_WIDTH, MDL_REQUIRED},
        {"vocab_size", &m->info.vocab_size, 1, 1u << 22, MDL_REQUIRED},
    };
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, TEXT_CFG, numbers[i].key, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, numbers[i].at, err)) != RC_OK)
            return rc;
    g->n_own = g->n_layers;
    for (l = 0; l < g->n_layers; l++)
        g->layer[l].d_ff = d_ff;
    if ((rc = mdl_gemma_hf_layers(g, c, err)) != RC_OK)
        return rc;
    g->layer[g->n_layers - 1].kind = GEMMA_FULL; /* as the reference corrects it */
    if ((rc = read_heads(g, c, err)) != RC_OK || (rc = mdl_gemma_share(g, err)) != RC_OK ||
        (rc = read_rope(c, "full_attention", 1e6, &g->geo[GEMMA_FULL], err)) != RC_OK ||
        (rc = read_rope(c, "sliding_attention", 1e4, &g->geo[GEMMA_SLIDING], err)) != RC_OK)
        return rc;
    return mdl_cfg_pos(c, TEXT_CFG, "rms_norm_eps", 1, 1e-6, &g->norm_eps, err);
}

/* ------------------------------------------------------------------ tokens */

static const struct {
    const char *key, *piece;
    bool in_text; /* the number stands in text_config */
    bool optional;
    int64_t dflt;
} tokens[EG2_TOKENS] = {
    [EG2_BOS] = {"bos_token_id", "<bos>", true, false, 2},
    [EG2_EOS] = {"eos_token_id", "<eos>", true, false, 1},
    [EG2_IMAGE_BEGIN] = {"boi_token_id", "<|image>", false, false, 255999},
    [EG2_IMAGE] = {"image_token_id", "<|image|>", false, false, 258880},
    [EG2_IMAGE_END] = {"eoi_token_id", "<image|>", false, false, 258882},
    [EG2_SOUND_BEGIN] = {"boa_token_id", "<|audio>", false, false, 256000},
    [EG2_SOUND] = {"audio_token_id", "<|audio|>", false, false, 258881},
    [EG2_SOUND_END] = {"eoa_token_index", "<audio|>", false, false, 258883},
    /* the reference's processor adds it where a tokenizer has none */
    [EG2_VIDEO] = {"video_token_id", "<|video|>", false, true, 258884},
};

/* The number in the config is that of the tokenizer's piece, and the piece is one that a user's
 * text cannot spell (special: not matched when parse_special is off). */
static enum rc read_tokens(struct mdl *m, struct eg2 *g, const json_t *config, const json_t *text,
                           struct rc_err *err)
{
    uint32_t id;
    size_t i;
    enum rc rc;

    for (i = 0; i < EG2_TOKENS; i++) {
        const char *key = tokens[i].key, *piece = tokens[i].piece;

        if ((rc = mdl_cfg_u32(tokens[i].in_text ? text : config, CFG, key, 0,
                              m->info.vocab_size - 1, tokens[i].dflt, &id, err)) != RC_OK)
            return rc;
        g->tok[i] = mdl_tok_find(m->tok, piece, strlen(piece));
        if (g->tok[i] < 0 && tokens[i].optional)
            continue;
        if (g->tok[i] != (int32_t)id)
            return rc_fail_what(err, RC_FORMAT, key,
                                CFG ": '%s' is %u, the tokenizer has '%s' at %d", key, id, piece,
                                g->tok[i]);
        if (!mdl_tok_is_special(m->tok, g->tok[i]))
            return rc_fail_what(err, RC_FORMAT, key,
                                "tokenizer.json: '%s' (%d) is not a special token", piece,
                                g->tok[i]);
    }
    return RC_OK;
}

/* The tokenizer puts <bos> in front and <eos> behind, as we do around media. */
static enum rc check_template(const struct mdl *m, const struct eg2 *g, struct rc_err *err)
{
    const struct mdl_tok_flags flags = {.add_special = true};
    struct mdl_ids ids = {0};
    enum rc rc = mdl_tok_encode(m->tok, "", 0, &flags, &ids, err);

    if (rc == RC_OK &&
        (ids.n != 2 || ids.ids[0] != g->tok[EG2_BOS] || ids.ids[1] != g->tok[EG2_EOS]))
        rc = rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                          "tokenizer.json: an empty text has %zu tokens, expected <bos> and <eos> "
                          "from its post-processor",
                          ids.n);
    mdl_ids_deinit(&ids);
    return rc;
}

/* -------------------------------------------------------------- side files */

static enum rc read_side_files(struct eg2 *g, int root_fd, struct rc_err *err)
{
    const char *file = "config_sentence_transformers.json", *fn = NULL;
    json_t *j = NULL;
    enum rc rc = mdl_sbert_load(&g->st, root_fd, err);

    if (rc != RC_OK)
        return rc;
    if (g->st.listed && (g->st.n_pools != 1 || g->st.pools[0] != BE_POOL_MEAN ||
                         g->st.n_dense != 0 || !g->st.normalize))
        return rc_fail_what(err, RC_UNSUPPORTED, "modules.json",
                            "modules.json: EmbeddingGemma 2 is computed as the mean of its tokens, "
                            "normalised; these steps say otherwise");
    if ((rc = mdl_eg2_check_prompts(&g->st, err)) != RC_OK ||
        (rc = mdl_cfg_load(root_fd, file, false, &j, err)) != RC_OK)
        return rc;
    if (j && (rc = mdl_cfg_str(j, file, "similarity_fn_name", &fn, err)) == RC_OK && fn &&
        strcmp(fn, "cosine") != 0)
        rc = rc_fail_what(err, RC_UNSUPPORTED, "similarity_fn_name",
                          "%s: similarity '%.40s' is not supported (cosine)", file, fn);
    json_decref(j);
    return rc;
}

/* -------------------------------------------------------------- eyes and ears */

/* Files of before processor_config.json have a part's settings in preprocessor_config.json. */
static const json_t *settings(const json_t *processor, const json_t *older, const char *part)
{
    return !older || json_is_object(json_object_get(processor, part)) ? processor : older;
}

static enum rc read_towers(struct mdl *m, struct eg2 *g, const struct mdl_src *src,
                           struct rc_err *err)
{
    const json_t *vision = json_object_get(src->config, "vision_config");
    const json_t *audio = json_object_get(src->config, "audio_config");
    json_t *processor = NULL, *older = NULL;
    enum rc rc;

    if ((rc = mdl_cfg_load(src->root_fd, "processor_config.json", false, &processor, err)) !=
            RC_OK ||
        (rc = mdl_cfg_load(src->root_fd, "preprocessor_config.json", false, &older, err)) != RC_OK)
        goto out;
    if (vision && !json_is_null(vision)) {
        if ((rc = mdl_g4_vision_config(&g->eyes, vision,
                                       settings(processor, older, "image_processor"),
                                       g->text.d_model, err)) != RC_OK)
            goto out;
        m->info.can_embed_image = true;
        m->info.image_pixels = EG2_MAX_PIXELS;
    }
    if (audio && !json_is_null(audio)) {
        if ((rc = mdl_g4_audio_config(&g->ears, audio,
                                      settings(processor, older, "feature_extractor"),
                                      g->text.d_model, err)) != RC_OK)
            goto out;
        m->info.can_embed_sound = true;
        m->info.sound_rate = MDL_G4_SOUND_RATE;
        m->info.sound_ms = MDL_G4_SOUND_MS;
    }
out:
    json_decref(processor);
    json_decref(older);
    return rc;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum rc mdl_eg2_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    const json_t *text = json_object_get(src->config, "text_config");
    struct eg2 *g = calloc(1, sizeof(*g));
    enum rc rc;

    if (!g)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = g; /* freed by mdl_close */
    snprintf(g->text.prefix, sizeof(g->text.prefix), EG2_PREFIX);
    g->text.ple_prefix = "ple_block.";
    g->text.scalars = g->text.v_norm = true;
    g->text.score_scale = 1;
    g->text.geo[GEMMA_FULL].factor = g->text.geo[GEMMA_SLIDING].factor = 1;
    if (!json_is_object(text))
        return rc_fail_what(err, RC_FORMAT, "text_config",
                            CFG ": 'text_config' is missing or not an object");
    if ((rc = refusals(m, src->config, text, err)) != RC_OK ||
        (rc = read_text(m, &g->text, text, err)) != RC_OK)
        return rc;
    if ((rc = mdl_cfg_vocab(m, m->info.vocab_size, err)) != RC_OK)
        return rc;
    if ((rc = read_tokens(m, g, src->config, text, err)) != RC_OK)
        return rc;
    g->text.bos = g->tok[EG2_BOS];
    if ((rc = mdl_gemma_check(m, &g->text, err)) != RC_OK ||
        (rc = check_template(m, g, err)) != RC_OK ||
        (rc = read_side_files(g, src->root_fd, err)) != RC_OK ||
        (rc = read_towers(m, g, src, err)) != RC_OK)
        return rc;
    m->info.can_embed = true;
    m->info.can_embed_groups = true;
    m->info.never_cuts = true;
    m->info.train_ctx_tokens = g->text.train_ctx;
    m->info.max_input_tokens = least(EG2_MAX_TOKENS, g->text.train_ctx);
    if (g->st.max_seq)
        m->info.max_input_tokens = least(m->info.max_input_tokens, g->st.max_seq);
    m->info.n_layers = g->text.n_layers;
    m->info.d_model = g->text.d_model;
    snprintf(m->info.default_prompt, sizeof(m->info.default_prompt), "RETRIEVAL_DOCUMENT");
    return RC_OK;
}
