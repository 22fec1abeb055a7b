/* mdl_eg2_plan.c - what an EmbeddingGemma 2 encoder holds: weights beside its layers (those are
 * Gemma 4's, mdl_gemma_plan.c), sizes of its activations.
 *
 * Always true: weights are F32 or BF16, widened exactly as they are used; activations whose lives
 * do not overlap within a layer share memory, and each layer's own inputs are projected when the
 * layer wants them, never for all layers at once: at the published geometry 8,192 tokens take
 * 272 MiB.
 * Source: gemma.md 8, 10. Tests: tests/models/test_mdl_eg2_files.c
 */
#include "mdl_eg2.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ weights */

static enum rc check_type(const struct mdl_tensor *t, struct rc_err *err)
{
    if (t->dtype == BE_F32 || t->dtype == BE_BF16)
        return RC_OK;
    return rc_fail_what(err, RC_UNSUPPORTED, t->name,
                        "tensor '%s': type %s is not computed for EmbeddingGemma 2 (F32, or BF16 "
                        "widened to it)",
                        t->name, be_dtype_name(t->dtype));
}

/* Of all that is taken from the file; scalars are read at once and stand in no plan. */
static enum rc check_types(const struct mdl *m, const struct gemma *t, struct rc_err *err)
{
    char name[96];
    uint32_t l;
    size_t i;
    enum rc rc;

    for (i = 0; i < m->plan.n_w; i++)
        if ((rc = check_type(m->plan.w[i].t, err)) != RC_OK)
            return rc;
    for (l = 0; l < t->n_layers; l++) {
        snprintf(name, sizeof(name), "%slayers.%u.layer_scalar", t->prefix, l);
        if ((rc = check_type(mdl_file_find(m->file, name), err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

enum rc mdl_eg2_plan(struct mdl *m, struct rc_err *err)
{
    struct eg2 *g = m->state;
    struct gemma *t = &g->text;
    enum rc rc;

    if ((rc = mdl_gemma_plan_one(m, t, "embed_tokens", NULL, BE_USE_EMBED, m->info.vocab_size,
                                 t->d_model, &t->embed, err)) != RC_OK ||
        (rc = mdl_gemma_plan_layers(m, t, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, t, "norm", NULL, BE_USE_VECTOR, 1, t->d_model, &t->out_norm,
                                 err)) != RC_OK ||
        (rc = mdl_plan_split(&m->plan, EG2_PREFIX "ple.per_layer_model_projection.weight",
                             BE_USE_LINEAR, (uint64_t)t->n_layers * t->d_ple, t->d_model,
                             t->n_layers, g->ple_ctx, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, t, "ple.per_layer_projection_norm", NULL, BE_USE_VECTOR, 1,
                                 t->d_ple, &t->ple_model_norm, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, t, "embedding_projection", NULL, BE_USE_LINEAR,
                                 m->info.embed_dim, t->d_model, &g->project, err)) != RC_OK)
        return rc;
    if (g->eyes && (rc = mdl_g4_vision_plan(g->eyes, &m->plan, "vision_tower.", "embed_vision.",
                                            err)) != RC_OK)
        return rc;
    if (g->ears &&
        (rc = mdl_g4_audio_plan(g->ears, &m->plan, "audio_tower.", "embed_audio.", err)) != RC_OK)
        return rc;
    return check_types(m, t, err);
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

static void lives(const struct gemma *t, struct life *out)
{
    uint32_t k;

    out[EG2_H] = (struct life){t->d_model, STEP(1) | STEP(4)};
    out[EG2_T] = (struct life){t->d_model, STEP(3) | STEP(5) | STEP(6)};
    out[EG2_FF] = (struct life){t->layer[0].d_ff, STEP(4) | STEP(5)};
    out[EG2_GATE] = out[EG2_PLE] = (struct life){t->d_ple, STEP(6)};
    for (k = 0; k < GEMMA_KINDS; k++) {
        const struct gemma_geo *geo = &t->geo[k];
        uint32_t q = geo->used ? t->n_heads * geo->head_dim : 0;
        uint32_t kv = geo->used ? geo->n_kv_heads * geo->head_dim : 0;

        out[EG2_Q + k] = (struct life){q, STEP(1) | STEP(2)};
        out[EG2_K + k] = out[EG2_V + k] = (struct life){kv, STEP(1) | STEP(2)};
        out[EG2_ATT + k] = (struct life){q, STEP(2) | STEP(3)};
    }
}

/* A layer is of one kind: what only layers of one kind have may share with the other's. */
static bool same_layer(size_t a, size_t b)
{
    return a < EG2_Q || b < EG2_Q || (a - EG2_Q) % GEMMA_KINDS == (b - EG2_Q) % GEMMA_KINDS;
}

/* Gives every role a buffer of its width whose other users are dead when it lives. */
static enum rc share(struct mdl *m, struct eg2 *g, struct rc_err *err)
{
    struct life want[EG2_ROLES];
    uint32_t n_bufs = 0, b;
    size_t i, k;
    enum rc rc;

    lives(&g->text, want);
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
    if (most > 0 && !(g->soft = calloc((size_t)most * g->text.d_model, sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u soft tokens", most);
    return RC_OK;
}

enum rc mdl_eg2_fit(struct mdl *m, struct rc_err *err)
{
    struct eg2 *g = m->state;
    uint32_t rows, seqs;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    rows = m->passes.max_rows;
    seqs = m->passes.max_seqs;
    free(g->ids);
    if (!(g->ids = calloc(rows, sizeof(*g->ids))))
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    if ((rc = mdl_plan_tensor(&m->plan, rows, g->text.d_model, &g->text.x, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, rows, g->text.d_model, &g->x0, err)) != RC_OK ||
        (rc = share(m, g, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, seqs, g->text.d_model, &g->pooled, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, seqs, m->info.embed_dim, &g->out, err)) != RC_OK ||
        (rc = fit_towers(m, g, err)) != RC_OK)
        return rc;
    m->info.ctx_tokens = m->info.max_input_tokens;
    return mdl_gemma_fit_ones(m, &g->text, err);
}

void mdl_eg2_free(struct mdl *m)
{
    struct eg2 *g = m->state;
    uint32_t i;

    for (i = 0; i < GEMMA_KINDS; i++)
        mdl_ones_deinit(&g->text.geo[i].ones, m->be);
    mdl_g4_vision_free(&g->eyes, m->be);
    mdl_g4_audio_free(&g->ears, m->be);
    mdl_sbert_deinit(&g->st);
    free(g->ids);
    free(g->soft);
    free(g);
    m->state = NULL;
}
