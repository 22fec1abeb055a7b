/* mdl_deberta_cfg.c - the numbers of a DeBERTa encoder from its config.
 *
 * Refuses by name what the forward pass does not do. Published names appear here and in the
 * tensor table of mdl_deberta_plan.c only. Source: encoders.md 5.
 * Tests: tests/models/test_mdl_deberta.c
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_deberta_impl.h"

#define MAX_WIDTH (1u << 16)
#define MAX_PLACES (1u << 15)

static const struct {
    const char *hf;
    size_t at;
    uint32_t min, max;
    int64_t dflt;
} numbers[] = {
#define AT(f) offsetof(struct mdl_deberta, f)
    {"num_hidden_layers", AT(n_layers), 1, DEB_MAX_LAYERS, MDL_REQUIRED},
    {"hidden_size", AT(d_model), 1, MAX_WIDTH, MDL_REQUIRED},
    {"intermediate_size", AT(d_ff), 1, 1u << 20, MDL_REQUIRED},
    {"num_attention_heads", AT(n_heads), 1, 1024, MDL_REQUIRED},
    {"max_position_embeddings", AT(n_pos), 2, MAX_PLACES / 2, 512},
    {"type_vocab_size", AT(n_types), 0, 1024, 0},
    {"conv_kernel_size", AT(n_taps), 0, DEB_MAX_CONV, 0},
#undef AT
};

/* One word of pos_att_type. */
static enum rc add_term(struct mdl_deberta *e, const char *word, size_t n, const char *file,
                        struct rc_err *err)
{
    if (n == 3 && strncmp(word, "c2p", 3) == 0)
        e->c2p = true;
    else if (n == 3 && strncmp(word, "p2c", 3) == 0)
        e->p2c = true;
    else
        return rc_fail_what(err, RC_UNSUPPORTED, "pos_att_type",
                            "%s: pos_att_type '%.*s' is not supported (c2p, p2c)", file,
                            n < 40 ? (int)n : 40, word);
    return RC_OK;
}

/* "p2c|c2p" or ["p2c", "c2p"]. */
static enum rc read_terms(struct mdl_deberta *e, const json_t *c, const char *file,
                          struct rc_err *err)
{
    const json_t *v = json_object_get(c, "pos_att_type");
    enum rc rc = RC_OK;

    if (!v || json_is_null(v))
        return RC_OK;
    if (json_is_string(v)) {
        const char *s = json_string_value(v);

        while (rc == RC_OK && *s) {
            size_t n;

            s += strspn(s, " |");
            if ((n = strcspn(s, " |")) > 0)
                rc = add_term(e, s, n, file, err);
            s += n;
        }
        return rc;
    }
    for (size_t i = 0; rc == RC_OK && i < json_array_size(v); i++) {
        const json_t *w = json_array_get(v, i);

        rc = json_is_string(w)
                 ? add_term(e, json_string_value(w), json_string_length(w), file, err)
                 : rc_fail_what(err, RC_FORMAT, "pos_att_type",
                                "%s: pos_att_type holds something else than words", file);
    }
    if (!json_is_array(v))
        rc = rc_fail_what(err, RC_FORMAT, "pos_att_type",
                          "%s: 'pos_att_type' is neither a string nor a list", file);
    return rc;
}

/* -1 and 0 of a file mean "none". */
static enum rc read_optional(const json_t *c, const char *file, const char *key, uint32_t max,
                             uint32_t *out, struct rc_err *err)
{
    const json_t *v = json_object_get(c, key);

    *out = 0;
    if (json_is_integer(v) && json_integer_value(v) < 1)
        return RC_OK;
    return mdl_cfg_u32(c, file, key, 1, max, 0, out, err);
}

static enum rc read_positions(struct mdl_deberta *e, const json_t *c, const char *file,
                              struct rc_err *err)
{
    const char *norm = NULL;
    bool biased;
    enum rc rc;

    if ((rc = mdl_cfg_bool(c, file, "position_biased_input", true, &biased, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, file, "relative_attention", false, &e->relative, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, file, "share_att_key", false, &e->share_att_key, err)) != RC_OK ||
        (rc = mdl_cfg_str(c, file, "norm_rel_ebd", &norm, err)) != RC_OK ||
        (rc = read_terms(e, c, file, err)) != RC_OK ||
        (rc = read_optional(c, file, "position_buckets", MAX_PLACES / 2, &e->n_buckets, err)) !=
            RC_OK ||
        (rc = read_optional(c, file, "max_relative_positions", MAX_PLACES / 2, &e->max_rel, err)) !=
            RC_OK)
        return rc;
    e->info.bounded = biased;
    if (e->max_rel == 0)
        e->max_rel = e->n_pos;
    if (norm && strcmp(norm, "layer_norm") != 0 && strcmp(norm, "none") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "norm_rel_ebd",
                            "%s: norm_rel_ebd '%.40s' is not supported (layer_norm, none)", file,
                            norm);
    e->norm_rel = norm && strcmp(norm, "layer_norm") == 0;
    if (e->relative && e->n_buckets > 0 &&
        (e->n_buckets < 4 || e->n_buckets % 2 != 0 || e->max_rel - 1 <= e->n_buckets / 2))
        return rc_fail_what(err, RC_FORMAT, "position_buckets",
                            "%s: %u position_buckets for %u relative positions, expected an even "
                            "number from 4 whose half is below %u",
                            file, e->n_buckets, e->max_rel, e->max_rel - 1);
    e->n_rel = 2 * (e->n_buckets > 0 ? e->n_buckets : e->max_rel);
    return RC_OK;
}

static enum rc read_conv(struct mdl_deberta *e, const json_t *c, const char *file,
                         struct rc_err *err)
{
    const char *act = NULL;
    uint32_t groups;
    enum rc rc;

    if (e->n_taps == 0)
        return RC_OK;
    if ((rc = mdl_cfg_u32(c, file, "conv_groups", 1, MAX_WIDTH, 1, &groups, err)) != RC_OK ||
        (rc = mdl_cfg_str(c, file, "conv_act", &act, err)) != RC_OK)
        return rc;
    if (groups != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, "conv_groups",
                            "%s: %u conv_groups are not supported (1)", file, groups);
    if (e->n_taps % 2 == 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "conv_kernel_size",
                            "%s: conv_kernel_size %u is not supported (odd)", file, e->n_taps);
    if (!act || strcmp(act, "tanh") == 0) {
        e->conv_tanh = true;
        e->conv_act = BE_EPI_NONE;
        return RC_OK;
    }
    return mdl_cfg_gelu(c, file, "conv_act", &e->conv_act, err);
}

static enum rc read_all(struct mdl_deberta *e, const json_t *c, const char *file,
                        struct rc_err *err)
{
    uint32_t head = 0, terms;
    enum rc rc;

    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_cfg_u32(c, file, numbers[i].hf, numbers[i].min, numbers[i].max,
                              numbers[i].dflt, (uint32_t *)((char *)e + numbers[i].at), err)) !=
            RC_OK)
            return rc;
    if ((rc = mdl_cfg_u32(c, file, "embedding_size", 1, MAX_WIDTH, e->d_model, &e->d_embed, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, file, "vocab_size", 1, 1u << 22, MDL_REQUIRED, &e->info.vocab_size,
                          err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, file, "layer_norm_eps", 1, 1e-7, &e->norm_eps, err)) != RC_OK ||
        (rc = mdl_cfg_gelu(c, file, "hidden_act", &e->act, err)) != RC_OK ||
        (rc = read_positions(e, c, file, err)) != RC_OK ||
        (rc = read_conv(e, c, file, err)) != RC_OK)
        return rc;
    if (e->d_model % e->n_heads != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "%s: hidden_size %u is not a multiple of %u heads", file, e->d_model,
                            e->n_heads);
    e->head_dim = e->d_model / e->n_heads;
    if ((rc = mdl_cfg_u32(c, file, "attention_head_size", 1, MAX_WIDTH, e->head_dim, &head, err)) !=
        RC_OK)
        return rc;
    if (head != e->head_dim)
        return rc_fail_what(err, RC_UNSUPPORTED, "attention_head_size",
                            "%s: attention_head_size %u is not supported (hidden_size / heads, %u)",
                            file, head, e->head_dim);
    /* the reference counts terms even where relative attention is off */
    terms = 1u + e->c2p + e->p2c;
    e->scale = (float)(1 / sqrt((double)e->head_dim * terms));
    e->relative = e->relative && (e->c2p || e->p2c);
    e->info.d_model = e->d_model;
    e->info.n_layers = e->n_layers;
    e->info.n_pos = e->n_pos;
    e->info.n_types = e->n_types;
    return RC_OK;
}

enum rc mdl_deberta_config(struct mdl_deberta **out, const json_t *config, const char *file,
                           struct rc_err *err)
{
    struct mdl_deberta *e = calloc(1, sizeof(*e));
    enum rc rc;

    if (!e)
        return rc_fail(err, RC_NOMEM, "no memory for an encoder");
    if ((rc = read_all(e, config, file, err)) == RC_OK) {
        *out = e;
        e = NULL;
    }
    mdl_deberta_free(&e);
    return rc;
}

const struct mdl_deberta_info *mdl_deberta_info(const struct mdl_deberta *e)
{
    return &e->info;
}

void mdl_deberta_free(struct mdl_deberta **ep)
{
    struct mdl_deberta *e = *ep;

    if (!e)
        return;
    free(e->rel);
    free(e->zeros);
    free(e->counts);
    free(e->at);
    free(e);
    *ep = NULL;
}
