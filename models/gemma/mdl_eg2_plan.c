/* mdl_eg2_plan.c - what an EmbeddingGemma 2 encoder holds: names and shapes of its weights,
 * sizes of its activations.
 *
 * Always true: weights are F32 or BF16, widened exactly as they are used; activations whose lives
 * do not overlap within a layer share memory, and each layer's own inputs are projected when the
 * layer wants them, never for all layers at once: at the published geometry 8,192 tokens take
 * 272 MiB.
 * Source: gemma.md 8, 10. Tests: tests/models/test_mdl_eg2_files.c
 */
#include "mdl_eg2.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ weights */

/* D d_model, F d_ff, P d_ple, Q all query heads, K all key heads, N one head; rows 0 = a vector */
static const struct {
    const char *name;
    size_t at;
    char rows, cols;
} layer_weights[] = {
#define AT(f) offsetof(struct eg2_layer, f)
    {"input_layernorm", AT(attn_norm), 0, 'D'},
    {"self_attn.q_proj", AT(q), 'Q', 'D'},
    {"self_attn.k_proj", AT(k), 'K', 'D'},
    {"self_attn.v_proj", AT(v), 'K', 'D'},
    {"self_attn.q_norm", AT(q_norm), 0, 'N'},
    {"self_attn.k_norm", AT(k_norm), 0, 'N'},
    {"self_attn.o_proj", AT(o), 'D', 'Q'},
    {"post_attention_layernorm", AT(post_attn_norm), 0, 'D'},
    {"pre_feedforward_layernorm", AT(ffn_norm), 0, 'D'},
    {"mlp.gate_proj", AT(gate), 'F', 'D'},
    {"mlp.up_proj", AT(up), 'F', 'D'},
    {"mlp.down_proj", AT(down), 'D', 'F'},
    {"post_feedforward_layernorm", AT(post_ffn_norm), 0, 'D'},
    {"ple_block.per_layer_input_gate", AT(ple_gate), 'P', 'D'},
    {"ple_block.per_layer_projection", AT(ple_proj), 'D', 'P'},
    {"ple_block.post_per_layer_input_norm", AT(ple_norm), 0, 'D'},
#undef AT
};

static uint32_t width(const struct eg2 *g, enum eg2_kind kind, char c)
{
    const struct eg2_geo *geo = &g->geo[kind];

    switch (c) {
    case 'Q':
        return g->n_heads * geo->head_dim;
    case 'K':
        return geo->n_kv_heads * geo->head_dim;
    case 'N':
        return geo->head_dim;
    case 'F':
        return g->d_ff;
    case 'P':
        return g->d_ple;
    default:
        return g->d_model;
    }
}

static enum rc check_type(const struct mdl_tensor *t, struct rc_err *err)
{
    if (t->dtype == BE_F32 || t->dtype == BE_BF16)
        return RC_OK;
    return rc_fail_what(err, RC_UNSUPPORTED, t->name,
                        "tensor '%s': type %s is not computed for EmbeddingGemma 2 (F32, or BF16 "
                        "widened to it)",
                        t->name, be_dtype_name(t->dtype));
}

static enum rc read_scalar(struct mdl *m, uint32_t l, float *out, struct rc_err *err)
{
    const uint64_t one[1] = {1};
    const struct mdl_tensor *t;
    char name[96];
    enum rc rc;

    snprintf(name, sizeof(name), EG2_PREFIX "layers.%u.layer_scalar", l);
    if ((rc = mdl_file_take(m->file, name, 1, one, &t, err)) != RC_OK ||
        (rc = check_type(t, err)) != RC_OK)
        return rc;
    be_dtype_to_f32(t->dtype, t->data, out, 1);
    m->plan.n_params++;
    return RC_OK;
}

static enum rc plan_layer(struct mdl *m, struct eg2 *g, uint32_t l, struct rc_err *err)
{
    struct eg2_layer *layer = &g->layer[l];
    char name[128];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        struct be_weight **slot = (struct be_weight **)((char *)layer + layer_weights[i].at);
        uint32_t cols = width(g, layer->kind, layer_weights[i].cols);

        snprintf(name, sizeof(name), EG2_PREFIX "layers.%u.%s.weight", l, layer_weights[i].name);
        rc = layer_weights[i].rows
                 ? mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2,
                                   width(g, layer->kind, layer_weights[i].rows), cols, 0, slot, err)
                 : mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, cols, 0, 0, slot, err);
        if (rc != RC_OK)
            return rc;
    }
    return read_scalar(m, l, &layer->scalar, err);
}

enum rc mdl_eg2_plan(struct mdl *m, struct rc_err *err)
{
    struct eg2 *g = m->state;
    uint32_t l;
    size_t i;
    enum rc rc;

    if ((rc = mdl_plan_weight(&m->plan, EG2_PREFIX "embed_tokens.weight", BE_USE_EMBED, 2,
                              m->info.vocab_size, g->d_model, 0, &g->embed, err)) != RC_OK)
        return rc;
    for (l = 0; l < g->n_layers; l++)
        if ((rc = plan_layer(m, g, l, err)) != RC_OK)
            return rc;
    if ((rc = mdl_plan_weight(&m->plan, EG2_PREFIX "norm.weight", BE_USE_VECTOR, 1, g->d_model, 0,
                              0, &g->out_norm, err)) != RC_OK ||
        (rc = mdl_plan_split(&m->plan, EG2_PREFIX "ple.per_layer_model_projection.weight",
                             BE_USE_LINEAR, (uint64_t)g->n_layers * g->d_ple, g->d_model,
                             g->n_layers, g->ple_ctx, err)) != RC_OK ||
        (rc = mdl_plan_weight(&m->plan, EG2_PREFIX "ple.per_layer_projection_norm.weight",
                              BE_USE_VECTOR, 1, g->d_ple, 0, 0, &g->ple_norm, err)) != RC_OK ||
        (rc = mdl_plan_weight(&m->plan, EG2_PREFIX "embedding_projection.weight", BE_USE_LINEAR, 2,
                              m->info.embed_dim, g->d_model, 0, &g->project, err)) != RC_OK)
        return rc;
    if (g->eyes && (rc = mdl_g4_vision_plan(g->eyes, &m->plan, "vision_tower.", "embed_vision.",
                                            err)) != RC_OK)
        return rc;
    if (g->ears &&
        (rc = mdl_g4_audio_plan(g->ears, &m->plan, "audio_tower.", "embed_audio.", err)) != RC_OK)
        return rc;
    for (i = 0; i < m->plan.n_w; i++)
        if ((rc = check_type(m->plan.w[i].t, err)) != RC_OK)
            return rc;
    return RC_OK;
}

/* ------------------------------------------------------------------- memory */

/* Steps of a layer: 1 norm, q, k, v and their rotation; 2 attention; 3 its output; 4 norm and
 * gated product; 5 the way back; 6 the layer's own input. A tensor is alive in the steps of its
 * mask, from the one that writes it to the last that reads it. */
#define STEP(n) (1u << (n))

struct life {
    uint32_t cols; /* 0: no layer of this kind */
    unsigned steps;
};

static void lives(const struct eg2 *g, struct life *out)
{
    uint32_t k;

    out[EG2_H] = (struct life){g->d_model, STEP(1) | STEP(4)};
    out[EG2_T] = (struct life){g->d_model, STEP(3) | STEP(5) | STEP(6)};
    out[EG2_FF] = (struct life){g->d_ff, STEP(4) | STEP(5)};
    out[EG2_GATE] = out[EG2_PLE] = (struct life){g->d_ple, STEP(6)};
    for (k = 0; k < EG2_KINDS; k++) {
        uint32_t q = g->geo[k].used ? width(g, k, 'Q') : 0;
        uint32_t kv = g->geo[k].used ? width(g, k, 'K') : 0;

        out[EG2_Q + k] = (struct life){q, STEP(1) | STEP(2)};
        out[EG2_K + k] = out[EG2_V + k] = (struct life){kv, STEP(1) | STEP(2)};
        out[EG2_ATT + k] = (struct life){q, STEP(2) | STEP(3)};
    }
}

/* A layer is of one kind: what only layers of one kind have may share with the other's. */
static bool same_layer(size_t a, size_t b)
{
    return a < EG2_Q || b < EG2_Q || (a - EG2_Q) % EG2_KINDS == (b - EG2_Q) % EG2_KINDS;
}

/* Gives every role a buffer of its width whose other users are dead when it lives. */
static enum rc share(struct mdl *m, struct eg2 *g, struct rc_err *err)
{
    struct life want[EG2_ROLES];
    uint32_t n_bufs = 0, b;
    size_t i, k;
    enum rc rc;

    lives(g, want);
    for (i = 0; i < EG2_ROLES; i++) {
        if (want[i].cols == 0)
            continue;
        for (b = 0; b < n_bufs; b++) {
            for (k = 0; k < i; k++)
                if (want[k].cols && g->buf_of[k] == b &&
                    (want[k].cols != want[i].cols ||
                     (same_layer(k, i) && (want[k].steps & want[i].steps) != 0)))
                    break;
            if (k == i)
                break;
        }
        g->buf_of[i] = b;
        if (b < n_bufs)
            continue;
        n_bufs++;
        if ((rc = mdl_plan_tensor(&m->plan, m->passes.max_rows, want[i].cols, &g->buf[b], err)) !=
            RC_OK)
            return rc;
    }
    return RC_OK;
}

/* A pass of a tower is one medium; what it gives waits here for its place in the text. */
static enum rc fit_towers(struct mdl *m, struct eg2 *g, struct rc_err *err)
{
    uint32_t most = 0, n;
    enum rc rc;

    if (g->eyes) {
        if ((rc = mdl_g4_vision_fit(g->eyes, &m->plan, err)) != RC_OK)
            return rc;
        most = mdl_g4_vision_max_tokens(g->eyes);
    }
    if (g->ears) {
        if ((rc = mdl_g4_audio_fit(g->ears, &m->plan, err)) != RC_OK)
            return rc;
        n = mdl_g4_audio_max_tokens(g->ears);
        most = n > most ? n : most;
    }
    free(g->soft);
    g->soft = NULL;
    if (most > 0 && !(g->soft = calloc((size_t)most * g->d_model, sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u soft tokens", most);
    return RC_OK;
}

enum rc mdl_eg2_fit(struct mdl *m, struct rc_err *err)
{
    struct eg2 *g = m->state;
    uint32_t rows, seqs, i;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    rows = m->passes.max_rows;
    seqs = m->passes.max_seqs;
    free(g->ids);
    if (!(g->ids = calloc(rows, sizeof(*g->ids))))
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    if ((rc = mdl_plan_tensor(&m->plan, rows, g->d_model, &g->x, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, rows, g->d_model, &g->x0, err)) != RC_OK ||
        (rc = share(m, g, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, seqs, g->d_model, &g->pooled, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, seqs, m->info.embed_dim, &g->out, err)) != RC_OK ||
        (rc = fit_towers(m, g, err)) != RC_OK)
        return rc;
    m->info.ctx_tokens = m->info.max_input_tokens;
    for (i = 0; rc == RC_OK && i < EG2_KINDS; i++)
        if (g->geo[i].used)
            rc = mdl_ones_init(&g->geo[i].ones, m->be, g->geo[i].head_dim, err);
    return rc;
}

void mdl_eg2_free(struct mdl *m)
{
    struct eg2 *g = m->state;
    uint32_t i;

    for (i = 0; i < EG2_KINDS; i++)
        mdl_ones_deinit(&g->geo[i].ones, m->be);
    mdl_g4_vision_free(&g->eyes, m->be);
    mdl_g4_audio_free(&g->ears, m->be);
    mdl_sbert_deinit(&g->st);
    free(g->ids);
    free(g->soft);
    free(g);
    m->state = NULL;
}
