/* mdl_gemma4_cfg.c - the numbers of a Gemma 4 text model or of its drafter, from
 * config.json; and what both formats' models need besides.
 *
 * Reads any spelling (global_head_dim of hub files, or per_layer_config as transformers
 * writes it; text_config of multimodal files) into struct gemma, and refuses by name what
 * the forward pass does not do: mixtures of experts, two-way attention. Published names
 * appear here, in mdl_gemma4_gguf.c and in the table of weights only.
 * Source: gemma.md 3, 4, 10. Tests: tests/models/test_mdl_gemma4.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CFG "config.json"

/* ------------------------------------------------------------- config.json */

static enum rc unsupported(const char *key, const char *what, struct rc_err *err)
{
    return rc_fail_what(err, RC_UNSUPPORTED, key, CFG ": %s (%s) is not supported for Gemma 4",
                        what, key);
}

static enum rc hf_refusals(struct gemma *g, const json_t *c, struct rc_err *err)
{
    const json_t *two_way = json_object_get(c, "use_bidirectional_attention");
    const char *act = NULL, *s;
    bool moe, bias;
    enum rc rc;

    if ((rc = mdl_cfg_str(c, CFG, "hidden_activation", &act, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, CFG, "enable_moe_block", false, &moe, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, CFG, "attention_bias", false, &bias, err)) != RC_OK)
        return rc;
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "hidden_activation",
                            CFG ": activation '%.40s' is not supported for Gemma 4 "
                                "(gelu_pytorch_tanh)",
                            act);
    if (moe)
        return unsupported("enable_moe_block", "a mixture of experts", err);
    if (bias)
        return unsupported("attention_bias", "a bias in attention", err);
    if (!two_way || json_is_null(two_way) || json_is_false(two_way))
        return RC_OK;
    s = json_string_value(two_way);
    if (!s || strcmp(s, "vision") != 0)
        return unsupported("use_bidirectional_attention", "two-way attention", err);
    g->media_sees_all = true; /* text is causal all the same */
    return RC_OK;
}

/* "proportional": the first partial_rotary_factor * head_dim / 2 pairs turn. */
static enum rc read_rope(const json_t *both, const char *kind, double theta, struct gemma_geo *geo,
                         struct rc_err *err)
{
    const json_t *r = json_object_get(both, kind);
    const char *type = NULL;
    float part;
    enum rc rc;

    geo->factor = 1;
    if (r && !json_is_null(r) && !json_is_object(r))
        return rc_fail_what(err, RC_FORMAT, kind, CFG ": rope_parameters '%s' is not an object",
                            kind);
    if ((rc = mdl_cfg_str(r, "rope_parameters", "rope_type", &type, err)) != RC_OK ||
        (rc = mdl_cfg_pos(r, "rope_parameters", "rope_theta", 1e12, theta, &geo->theta, err)) !=
            RC_OK ||
        (rc = mdl_cfg_pos(r, "rope_parameters", "partial_rotary_factor", 1, 1, &part, err)) !=
            RC_OK)
        return rc;
    if (!type || strcmp(type, "default") == 0)
        return part == 1 ? RC_OK
                         : unsupported("partial_rotary_factor",
                                       "a partial rotation that is not 'proportional'", err);
    if (strcmp(type, "linear") == 0 && part == 1)
        return mdl_cfg_pos(r, "rope_parameters", "factor", 1e6, NAN, &geo->factor, err);
    if (strcmp(type, "proportional") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, kind,
                            CFG ": rope type '%.40s' of %s is not supported (default, linear, "
                                "proportional)",
                            type, kind);
    geo->n_pairs = (uint32_t)((double)part * geo->head_dim / 2);
    if (geo->n_pairs == 0)
        return unsupported("partial_rotary_factor", "a rotation of no pair at all", err);
    return mdl_cfg_pos(r, "rope_parameters", "factor", 1e6, 1, &geo->factor, err);
}

/* {"<layer, zero padded>": {"head_dim", "num_key_value_heads"}}, layers that differ. */
enum rc mdl_gemma4_hf_per_layer(const struct gemma *g, const json_t *c, struct gemma_heads *p,
                                struct rc_err *err)
{
    json_t *list = json_object_get(c, "per_layer_config"), *v;
    const char *key;

    if (!list || json_is_null(list))
        return RC_OK;
    if (!json_is_object(list))
        return rc_fail_what(err, RC_FORMAT, "per_layer_config",
                            CFG ": 'per_layer_config' is not an object");
    json_object_foreach(list, key, v)
    {
        char *end;
        unsigned long l = strtoul(key, &end, 10);
        enum rc rc;

        if (*end || end == key || key[0] < '0' || key[0] > '9' || l >= g->n_layers ||
            !json_is_object(v))
            return rc_fail_what(err, RC_FORMAT, "per_layer_config",
                                CFG ": per_layer_config '%.20s' is no object for a layer below %u",
                                key, g->n_layers);
        if ((rc = mdl_cfg_u32(v, "per_layer_config", "head_dim", 2, GEMMA_MAX_HEAD, p[l].head_dim,
                              &p[l].head_dim, err)) != RC_OK ||
            (rc = mdl_cfg_u32(v, "per_layer_config", "num_key_value_heads", 1, 1024,
                              p[l].n_kv_heads, &p[l].n_kv_heads, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc hf_heads(struct gemma *g, const json_t *c, struct rc_err *err)
{
    struct gemma_heads p[GEMMA_MAX_LAYERS];
    uint32_t hd, n_kv, global_hd, global_kv, l;
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, CFG, "head_dim", 2, GEMMA_MAX_HEAD, MDL_REQUIRED, &hd, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "num_key_value_heads", 1, 1024, MDL_REQUIRED, &n_kv, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "global_head_dim", 2, GEMMA_MAX_HEAD, hd, &global_hd, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "num_global_key_value_heads", 1, 1024, n_kv, &global_kv, err)) !=
            RC_OK ||
        (rc = mdl_cfg_bool(c, CFG, "attention_k_eq_v", false, &g->geo[GEMMA_FULL].k_eq_v, err)) !=
            RC_OK)
        return rc;
    if (!g->geo[GEMMA_FULL].k_eq_v)
        global_kv = n_kv;
    for (l = 0; l < g->n_layers; l++)
        p[l] = g->layer[l].kind == GEMMA_FULL ? (struct gemma_heads){global_hd, global_kv}
                                              : (struct gemma_heads){hd, n_kv};
    if ((rc = mdl_gemma4_hf_per_layer(g, c, p, err)) != RC_OK)
        return rc;
    return mdl_gemma4_fold(g, p, err);
}

static enum rc hf_layers(struct gemma *g, const json_t *c, bool drafter, struct rc_err *err)
{
    uint32_t ff, shared, l;
    bool wide;
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, CFG, "intermediate_size", 1, 1u << 20, MDL_REQUIRED, &ff, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "num_kv_shared_layers", 0, g->n_layers, 0, &shared, err)) !=
            RC_OK ||
        (rc = mdl_cfg_bool(c, CFG, "use_double_wide_mlp", false, &wide, err)) != RC_OK ||
        (rc = mdl_gemma_hf_kinds(g, json_object_get(c, "layer_types"), err)) != RC_OK)
        return rc;
    if (drafter) /* every layer reads the target's, whatever the number says */
        shared = g->n_layers;
    else if (shared == g->n_layers)
        return rc_fail_what(err, RC_FORMAT, "num_kv_shared_layers",
                            CFG ": all %u layers share keys, and none has any", g->n_layers);
    g->n_own = g->n_layers - shared;
    g->layer[g->n_layers - 1].kind = GEMMA_FULL; /* as the reference corrects it */
    for (l = 0; l < g->n_layers; l++)
        g->layer[l].d_ff = wide && g->n_own > 0 && l >= g->n_own ? 2 * ff : ff;
    return RC_OK;
}

enum rc mdl_gemma4_from_hf(struct gemma *g, const json_t *c, bool drafter, struct rc_err *err)
{
    const struct {
        const char *key;
        uint32_t *at, min, max;
        int64_t dflt;
    } numbers[] = {
        {"num_hidden_layers", &g->n_layers, 1, GEMMA_MAX_LAYERS, MDL_REQUIRED},
        {"hidden_size", &g->d_model, 1, GEMMA_MAX_WIDTH, MDL_REQUIRED},
        {"num_attention_heads", &g->n_heads, 1, 1024, MDL_REQUIRED},
        {"sliding_window", &g->window, 1, GEMMA_MAX_CTX, MDL_REQUIRED},
        {"max_position_embeddings", &g->train_ctx, 1, GEMMA_MAX_CTX, 131072},
        {"hidden_size_per_layer_input", &g->d_ple, 0, GEMMA_MAX_HEAD, 0},
    };
    const json_t *rope = json_object_get(c, "rope_parameters");
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, CFG, numbers[i].key, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, numbers[i].at, err)) != RC_OK)
            return rc;
    /* the last layer is a full one; without its entry it would turn all pairs at a wrong pace */
    if (!json_is_object(json_object_get(rope, "full_attention")))
        return rc_fail_what(err, RC_FORMAT, "rope_parameters",
                            CFG ": 'rope_parameters' has no object 'full_attention'");
    if ((rc = hf_refusals(g, c, err)) != RC_OK || (rc = hf_layers(g, c, drafter, err)) != RC_OK ||
        (rc = hf_heads(g, c, err)) != RC_OK ||
        (rc = read_rope(rope, "full_attention", 1e6, &g->geo[GEMMA_FULL], err)) != RC_OK ||
        (rc = read_rope(rope, "sliding_attention", 1e4, &g->geo[GEMMA_SLIDING], err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, CFG, "rms_norm_eps", 1, 1e-6, &g->norm_eps, err)) != RC_OK)
        return rc;
    return mdl_cfg_pos(c, CFG, "final_logit_softcapping", 1e6, 0, &g->softcap, err);
}

static const json_t *text_of(const json_t *config)
{
    const json_t *c = json_object_get(config, "text_config");

    return json_is_object(c) ? c : config;
}

/* Which towers lie beside the text model; they are not read. */
static void note_towers(struct mdl *m)
{
    bool vision = false, audio = false;
    size_t i, n = mdl_file_n_tensors(m->file);

    for (i = 0; i < n; i++) {
        const char *name = mdl_file_tensor(m->file, i)->name;

        vision = vision || strstr(name, "vision_tower.") != NULL;
        audio = audio || strstr(name, "audio_tower.") != NULL;
    }
    if (vision || audio)
        snprintf(m->info.note, sizeof(m->info.note),
                 "text only: the %s%s%s of this checkpoint %s "
                 "not read",
                 vision ? "vision tower" : "", vision && audio ? " and the " : "",
                 audio ? "audio tower" : "", vision && audio ? "are" : "is");
}

static enum rc hf_model(struct mdl *m, struct gemma *g, const struct mdl_src *src,
                        struct rc_err *err)
{
    const json_t *c = text_of(src->config);
    enum rc rc;

    if ((rc = mdl_gemma4_from_hf(g, c, false, err)) != RC_OK ||
        (rc = mdl_gemma_hf_prefix(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_hf_vocab(m, g, c, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, CFG, "vocab_size_per_layer_input", 0, 1u << 22, m->info.vocab_size,
                          &g->ple_vocab, err)) != RC_OK ||
        (rc = mdl_gemma_hf_tied(src, c, g, err)) != RC_OK)
        return rc;
    note_towers(m);
    return mdl_gemma_hf_eos(m, src, c, err);
}

/* -------------------------------------------------------------------- GGUF */

static enum rc gguf_model(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, "per_layer_token_embd.weight");
    enum rc rc;

    snprintf(g->gguf, sizeof(g->gguf), "gemma4");
    if ((rc = mdl_gemma4_from_gguf(m, g, false, err)) != RC_OK ||
        (rc = mdl_gemma_gguf_vocab(m, err)) != RC_OK)
        return rc;
    g->ple_vocab =
        t && t->n_dims == 2 && t->dims[0] <= 1u << 22 ? (uint32_t)t->dims[0] : m->info.vocab_size;
    g->tied = mdl_file_find(m->file, "output.weight") == NULL;
    /* no key says it: models without per-layer embeddings have the mask "vision" (gemma.md 3.6) */
    g->media_sees_all = g->d_ple == 0;
    mdl_gemma_gguf_eos(m);
    return RC_OK;
}

/* -------------------------------------------------------------------- both */

static enum rc check_ple(const struct mdl *m, const struct gemma *g, struct rc_err *err)
{
    if (g->d_ple == 0)
        return RC_OK;
    if (g->d_ple % 2 != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "hidden_size_per_layer_input",
                            "per-layer embeddings of width %u: expected an even number", g->d_ple);
    if (g->ple_vocab < m->info.vocab_size)
        return rc_fail_what(err, RC_UNSUPPORTED, "vocab_size_per_layer_input",
                            "per-layer embeddings for %u tokens of %u", g->ple_vocab,
                            m->info.vocab_size);
    return RC_OK;
}

/* The larger models' template begins an answer with an empty thought when thinking is off.
 * The checkpoint's own template says so; without one, the size does. */
static enum rc read_template(struct mdl *m, struct gemma *g, int root_fd, struct rc_err *err)
{
    static const char mark[] = "<|channel>thought\\n<channel|>";
    json_t *cfg = NULL;
    char *text = NULL;
    const char *s = NULL;
    size_t n = 0;
    enum rc rc = RC_OK;

    if (mdl_file_format(m->file) == MDL_GGUF) {
        mdl_gguf_str(m->file, "tokenizer.chat_template", &s, &n);
    } else {
        rc = mdl_side_read(root_fd, "chat_template.jinja", MDL_MAX_CONFIG_BYTES, &text, &n, err);
        s = text;
        if (rc == RC_NOT_FOUND &&
            (rc = mdl_cfg_load(root_fd, "tokenizer_config.json", false, &cfg, err)) == RC_OK) {
            const json_t *t = json_object_get(cfg, "chat_template");

            s = json_string_value(t);
            n = json_string_length(t);
        }
    }
    if (rc == RC_OK)
        g->empty_thought = s ? memmem(s, n, mark, sizeof(mark) - 1) != NULL : g->d_ple == 0;
    free(text);
    json_decref(cfg);
    return rc;
}

enum rc mdl_gemma4_new(struct mdl *m, struct gemma **out, struct rc_err *err)
{
    struct gemma *g = calloc(1, sizeof(*g));

    if (!g)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = g; /* freed by mdl_close */
    g->score_scale = 1;
    g->v_norm = g->scalars = true;
    *out = g;
    return RC_OK;
}

enum rc mdl_gemma4_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    static const char *const ends[] = {"<turn|>", "<eos>", "<|tool_response>"};
    struct gemma *g = NULL;
    size_t i;
    enum rc rc;

    if ((rc = mdl_gemma4_new(m, &g, err)) != RC_OK ||
        (rc = src->config ? hf_model(m, g, src, err) : gguf_model(m, g, err)) != RC_OK)
        return rc;
    g->bos = mdl_tok_bos(m->tok);
    g->pad = mdl_tok_find(m->tok, "<pad>", 5);
    if (g->pad < 0 || g->pad >= (int32_t)m->info.vocab_size)
        g->pad = 0;
    if ((rc = mdl_gemma_check(m, g, err)) != RC_OK || (rc = check_ple(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_share(g, err)) != RC_OK ||
        (rc = read_template(m, g, src->root_fd, err)) != RC_OK)
        return rc;
    mdl_gemma4_chat_init(m, g);
    for (i = 0; i < sizeof(ends) / sizeof(*ends); i++)
        mdl_eos_add(m, mdl_tok_find(m->tok, ends[i], strlen(ends[i])));
    g->embed_scale = (float)sqrt((double)g->d_model);
    m->info.can_generate = true;
    m->info.train_ctx_tokens = g->train_ctx;
    m->info.n_layers = g->n_layers;
    m->info.d_model = g->d_model;
    return RC_OK;
}
