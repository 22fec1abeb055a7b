/* mdl_gemma4_gguf.c - the numbers of a Gemma 4 text model or of its drafter, from GGUF
 * metadata.
 *
 * Reads every key llama.cpp writes for "gemma4" and "gemma4-assistant"; what may be one
 * number or an array with one for each layer is read as either. Refuses by name what the
 * forward pass does not do. rope_freqs.weight is read here: it is a number in disguise.
 * Source: gemma.md 11.3, 11.4. Tests: tests/models/test_mdl_gemma4.c, test_mdl_gemma4_draft.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* All layers of a kind alike, or a refusal. */
enum rc mdl_gemma4_fold(struct gemma *g, const struct gemma_heads *p, struct rc_err *err)
{
    bool seen[GEMMA_KINDS] = {false, false};
    uint32_t l;

    for (l = 0; l < g->n_layers; l++) {
        struct gemma_geo *geo = &g->geo[g->layer[l].kind];

        if (!seen[g->layer[l].kind]) {
            geo->head_dim = p[l].head_dim;
            geo->n_kv_heads = p[l].n_kv_heads;
            seen[g->layer[l].kind] = true;
        } else if (geo->head_dim != p[l].head_dim || geo->n_kv_heads != p[l].n_kv_heads) {
            return rc_fail_what(err, RC_UNSUPPORTED, "per_layer_config",
                                "layer %u has %u key/value heads of %u, others of its kind have "
                                "%u of %u",
                                l, p[l].n_kv_heads, p[l].head_dim, geo->n_kv_heads, geo->head_dim);
        }
    }
    for (l = 0; l < GEMMA_KINDS; l++) /* a kind without layers: any sound numbers */
        if (!seen[l]) {
            g->geo[l].head_dim = 2;
            g->geo[l].n_kv_heads = 1;
        }
    return RC_OK;
}

/* One number for all layers, or an array with one for each. */
static enum rc gguf_layers(const struct mdl *m, const struct gemma *g, const char *key,
                           uint32_t min, uint32_t max, int64_t dflt, uint32_t *out,
                           struct rc_err *err)
{
    size_t n, l;
    uint64_t v;
    uint32_t one = 0;
    enum rc rc;

    if (!mdl_gguf_arr(m->file, key, &n)) {
        if ((rc = mdl_gguf_cfg_u32(m->file, key, min, max, dflt, &one, err)) != RC_OK)
            return rc;
        for (l = 0; l < g->n_layers; l++)
            out[l] = one;
        return RC_OK;
    }
    if (n != g->n_layers)
        return rc_fail_what(err, RC_FORMAT, key, "GGUF metadata: '%s' has %zu numbers, expected %u",
                            key, n, g->n_layers);
    for (l = 0; l < n; l++) {
        if (!mdl_gguf_arr_u64(m->file, key, l, &v) || v < min || v > max)
            return rc_fail_what(err, RC_FORMAT, key,
                                "GGUF metadata: '%s': number %zu, expected %u to %u", key, l, min,
                                max);
        out[l] = (uint32_t)v;
    }
    return RC_OK;
}

static const char *key_of(const struct gemma *g, const char *name, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s.%s", g->gguf, name);
    return buf;
}

/* rope_freqs.weight divides the frequencies of global layers: ones, then numbers so large
 * that the rest stands still. Other divisors would be another rotation. */
static enum rc gguf_pairs(const struct mdl *m, struct gemma *g, struct rc_err *err)
{
    static const char name[] = "rope_freqs.weight";
    const uint64_t dims[1] = {g->geo[GEMMA_FULL].head_dim / 2};
    const struct mdl_tensor *t;
    float f[GEMMA_MAX_HEAD / 2];
    uint32_t i, n = 0;
    enum rc rc;

    if (!g->geo[GEMMA_FULL].used)
        return RC_OK;
    if ((rc = mdl_file_take(m->file, name, 1, dims, &t, err)) != RC_OK)
        return rc;
    if (t->dtype != BE_F32)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "tensor '%s': type %s, expected F32", name,
                            be_dtype_name(t->dtype));
    be_dtype_to_f32(t->dtype, t->data, f, (size_t)dims[0]);
    while (n < dims[0] && f[n] == 1)
        n++;
    for (i = n; i < dims[0]; i++)
        if (!(f[i] >= 1e20f))
            return rc_fail_what(err, RC_UNSUPPORTED, name,
                                "tensor '%s': value %u is %g; expected ones, then numbers of "
                                "1e20 and more",
                                name, i, (double)f[i]);
    if (n == 0)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "tensor '%s': no pair turns at all", name);
    g->geo[GEMMA_FULL].n_pairs = n;
    return RC_OK;
}

static enum rc gguf_heads(const struct mdl *m, struct gemma *g, struct rc_err *err)
{
    struct gemma_heads p[GEMMA_MAX_LAYERS];
    uint32_t heads[GEMMA_MAX_LAYERS], n_kv[GEMMA_MAX_LAYERS], hd[2], value[2], rot[2], l;
    static const char *const words[3][2] = {
        {"attention.key_length", "attention.key_length_swa"},
        {"attention.value_length", "attention.value_length_swa"},
        {"rope.dimension_count", "rope.dimension_count_swa"}};
    char key[3][80];
    enum rc rc;

    for (l = 0; l < 2; l++) {
        if ((rc = mdl_gguf_cfg_u32(m->file, key_of(g, words[0][l], key[0], sizeof(key[0])), 2,
                                   GEMMA_MAX_HEAD, l ? hd[0] : MDL_REQUIRED, &hd[l], err)) !=
                RC_OK ||
            (rc = mdl_gguf_cfg_u32(m->file, key_of(g, words[1][l], key[1], sizeof(key[1])), 2,
                                   GEMMA_MAX_HEAD, hd[l], &value[l], err)) != RC_OK ||
            (rc = mdl_gguf_cfg_u32(m->file, key_of(g, words[2][l], key[2], sizeof(key[2])), 2,
                                   GEMMA_MAX_HEAD, hd[l], &rot[l], err)) != RC_OK)
            return rc;
        if (value[l] != hd[l] || rot[l] != hd[l])
            return rc_fail_what(err, RC_UNSUPPORTED, key[0],
                                "GGUF metadata: key_length %u, value_length %u and "
                                "rope.dimension_count %u differ",
                                hd[l], value[l], rot[l]);
    }
    if ((rc = gguf_layers(m, g, key_of(g, "attention.head_count", key[0], sizeof(key[0])), 1, 1024,
                          MDL_REQUIRED, heads, err)) != RC_OK ||
        (rc = gguf_layers(m, g, key_of(g, "attention.head_count_kv", key[1], sizeof(key[1])), 1,
                          1024, MDL_REQUIRED, n_kv, err)) != RC_OK)
        return rc;
    g->n_heads = heads[0];
    for (l = 0; l < g->n_layers; l++) {
        if (heads[l] != heads[0])
            return rc_fail_what(err, RC_UNSUPPORTED, key[0],
                                "GGUF metadata: layer %u has %u query heads, layer 0 has %u", l,
                                heads[l], heads[0]);
        p[l] = (struct gemma_heads){hd[g->layer[l].kind == GEMMA_SLIDING], n_kv[l]};
    }
    return mdl_gemma4_fold(g, p, err);
}

static enum rc gguf_layer_list(const struct mdl *m, struct gemma *g, bool drafter,
                               struct rc_err *err)
{
    uint32_t slides[GEMMA_MAX_LAYERS], ff[GEMMA_MAX_LAYERS], shared, l;
    char key[80];
    size_t n;
    enum rc rc;

    key_of(g, "attention.sliding_window_pattern", key, sizeof(key));
    if (!mdl_gguf_arr(m->file, key, &n))
        return rc_fail_what(err, RC_FORMAT, key,
                            "GGUF metadata: '%s' is missing or no array of a value for each layer",
                            key);
    if ((rc = gguf_layers(m, g, key, 0, 1, MDL_REQUIRED, slides, err)) != RC_OK ||
        (rc = gguf_layers(m, g, key_of(g, "feed_forward_length", key, sizeof(key)), 1, 1u << 20,
                          MDL_REQUIRED, ff, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_u32(m->file, key_of(g, "attention.shared_kv_layers", key, sizeof(key)),
                               0, g->n_layers, 0, &shared, err)) != RC_OK)
        return rc;
    if (drafter)
        shared = g->n_layers;
    else if (shared == g->n_layers)
        return rc_fail_what(err, RC_FORMAT, key,
                            "GGUF metadata: all %u layers share keys, and none has any",
                            g->n_layers);
    g->n_own = g->n_layers - shared;
    for (l = 0; l < g->n_layers; l++) {
        g->layer[l].kind = slides[l] ? GEMMA_SLIDING : GEMMA_FULL;
        g->layer[l].d_ff = ff[l];
    }
    return RC_OK;
}

/* A file without attn_v in its global layers has v = k there. */
static enum rc gguf_k_eq_v(const struct mdl *m, struct gemma *g, struct rc_err *err)
{
    char name[64];
    uint32_t l, with = 0, without = 0;

    for (l = 0; l < g->n_own; l++) {
        if (g->layer[l].kind != GEMMA_FULL)
            continue;
        snprintf(name, sizeof(name), "blk.%u.attn_v.weight", l);
        if (mdl_file_find(m->file, name))
            with++;
        else
            without++;
    }
    if (with && without)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name,
                            "%u global layers have attn_v and %u have not", with, without);
    g->geo[GEMMA_FULL].k_eq_v = without > 0;
    return RC_OK;
}

static enum rc gguf_numbers(const struct mdl *m, struct gemma *g, struct rc_err *err)
{
    const struct {
        const char *key;
        uint32_t *at, min, max;
        int64_t dflt;
    } numbers[] = {
        {"block_count", &g->n_layers, 1, GEMMA_MAX_LAYERS, MDL_REQUIRED},
        {"embedding_length", &g->d_model, 1, GEMMA_MAX_WIDTH, MDL_REQUIRED},
        {"attention.sliding_window", &g->window, 1, GEMMA_MAX_CTX, MDL_REQUIRED},
        {"context_length", &g->train_ctx, 1, GEMMA_MAX_CTX, MDL_REQUIRED},
        {"embedding_length_per_layer_input", &g->d_ple, 0, GEMMA_MAX_HEAD, 0},
    };
    uint32_t experts;
    char key[80];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_gguf_cfg_u32(m->file, key_of(g, numbers[i].key, key, sizeof(key)),
                                   numbers[i].min, numbers[i].max, numbers[i].dflt, numbers[i].at,
                                   err)) != RC_OK)
            return rc;
    if ((rc = mdl_gguf_cfg_u32(m->file, key_of(g, "expert_count", key, sizeof(key)), 0, UINT32_MAX,
                               0, &experts, err)) != RC_OK)
        return rc;
    if (experts > 0)
        return rc_fail_what(err, RC_UNSUPPORTED, key,
                            "GGUF metadata: a mixture of %u experts (%s) is not supported", experts,
                            key);
    return RC_OK;
}

enum rc mdl_gemma4_from_gguf(struct mdl *m, struct gemma *g, bool drafter, struct rc_err *err)
{
    struct gemma_geo *full = &g->geo[GEMMA_FULL], *slide = &g->geo[GEMMA_SLIDING];
    const char *type;
    char key[80];
    size_t n;
    enum rc rc;

    if ((rc = gguf_numbers(m, g, err)) != RC_OK ||
        (rc = gguf_layer_list(m, g, drafter, err)) != RC_OK ||
        (rc = gguf_heads(m, g, err)) != RC_OK || (rc = gguf_k_eq_v(m, g, err)) != RC_OK)
        return rc;
    full->factor = slide->factor = 1;
    for (n = 0; n < g->n_layers; n++)
        g->geo[g->layer[n].kind].used = true;
    if ((rc = mdl_gguf_cfg_pos(m->file, key_of(g, "rope.freq_base", key, sizeof(key)), 1e12, 1e6,
                               &full->theta, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, key_of(g, "rope.freq_base_swa", key, sizeof(key)), 1e12,
                               1e4, &slide->theta, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file,
                               key_of(g, "attention.layer_norm_rms_epsilon", key, sizeof(key)), 1,
                               NAN, &g->norm_eps, err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, key_of(g, "final_logit_softcapping", key, sizeof(key)), 1e6,
                               0, &g->softcap, err)) != RC_OK ||
        (rc = gguf_pairs(m, g, err)) != RC_OK)
        return rc;
    if (mdl_gguf_str(m->file, key_of(g, "rope.scaling.type", key, sizeof(key)), &type, &n) &&
        !(n == 4 && memcmp(type, "none", 4) == 0))
        return rc_fail_what(err, RC_UNSUPPORTED, key,
                            "GGUF metadata: rope scaling '%.*s' is not supported (none)",
                            (int)(n > 40 ? 40 : n), type);
    return RC_OK;
}
