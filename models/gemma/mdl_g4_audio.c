/* mdl_g4_audio.c - the ears of the Gemma 4 generation (gemma4_audio).
 *
 * A sound's log-mel frames pass two convolutions that make one row of four frames, then layers of
 * half feed-forward, attention over the last dozen rows, a convolution along time, and half
 * feed-forward again; a row is a soft token once projected to the text's width. Only real frames
 * are computed, and convolutions take a slice of lines at a time: memory is bounded by the slice.
 *
 * Always true: a sound's vectors depend on it alone; passes allocate nothing.
 * Source: gemma.md 6. Tests: tests/models/test_mdl_g4_towers.c
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_g4_impl.h"
#include "mdl_mel.h"

#define HOP 160u
#define FRAME 320u
#define N_FFT 512u
#define N_MELS 128u
#define SLICE 32u /* lines of the second convolution at a time */

struct half_ff {
    struct be_weight *pre, *post; /* post times residual_weight */
    struct g4_linear up, down;
};

struct layer {
    struct half_ff ff[2];
    struct be_weight *norm_attn, *norm_post, *norm_out, *rel, *q_scale;
    struct g4_linear q, k, v, post;
    struct be_weight *conv_pre, *conv_w, *conv_norm;
    struct g4_linear start, end;
};

struct mdl_g4_audio {
    uint32_t d_text, d_model, n_layers, n_heads, head_dim, ch[2], taps, n_keys, d_out;
    uint32_t width[2]; /* frequencies left after each convolution */
    uint32_t max_frames, max_tokens;
    float eps, cap, residual;
    bool clipped;
    struct layer *layer; /* [n_layers] */
    struct be_weight *conv[2], *conv_norm[2], *in, *out_w, *out_b, *proj;
    struct mdl_ones ones;
    struct be_tensor *mel, *win[2], *map[2], *flat, *x, *t, *q, *k, *v, *att, *room, *wide, *ff;
    struct be_tensor *places, *rel, *out, *soft;
    struct mdl_g4_trace trace;
    float *place; /* [n_keys, d_model]: what stands for the distances */
};

/* -------------------------------------------------------------------- config */

static enum rc read_channels(struct mdl_g4_audio *a, const json_t *c, struct rc_err *err)
{
    const json_t *ch = json_object_get(c, "subsampling_conv_channels");

    a->ch[0] = 128;
    a->ch[1] = 32;
    if (!ch || json_is_null(ch))
        return RC_OK;
    for (size_t i = 0; i < 2; i++) {
        json_int_t v = json_integer_value(json_array_get(ch, i)); /* 0 when it is none */

        if (json_array_size(ch) != 2 || v < 1 || v > 4096)
            return rc_fail_what(err, RC_FORMAT, "subsampling_conv_channels",
                                "audio_config: 'subsampling_conv_channels' is not two numbers of 1 "
                                "to 4096");
        a->ch[i] = (uint32_t)v;
    }
    return RC_OK;
}

static enum rc read_numbers(struct mdl_g4_audio *a, const json_t *c, struct rc_err *err)
{
    const char *what = "audio_config";
    uint32_t left, chunk;
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, what, "hidden_size", 4, G4_MAX_WIDTH / 4, MDL_REQUIRED, &a->d_model,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "num_hidden_layers", 1, G4_MAX_LAYERS, MDL_REQUIRED,
                          &a->n_layers, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "num_attention_heads", 1, 1024, MDL_REQUIRED, &a->n_heads,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "conv_kernel_size", 1, 64, 5, &a->taps, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "attention_chunk_size", 1, 1u << 16, 12, &chunk, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(c, what, "attention_context_left", 2, 65, 13, &left, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "output_proj_dims", 1, G4_MAX_WIDTH, 1536, &a->d_out, err)) !=
            RC_OK ||
        (rc = mdl_cfg_pos(c, what, "attention_logit_cap", 1e6, 50, &a->cap, err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, what, "residual_weight", 100, 0.5, &a->residual, err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, what, "rms_norm_eps", 1, 1e-6, &a->eps, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, what, "use_clipped_linears", true, &a->clipped, err)) != RC_OK ||
        (rc = g4_cfg_is(c, what, "attention_context_right", 0, err)) != RC_OK ||
        (rc = g4_cfg_word(c, what, "hidden_act", "silu", err)) != RC_OK ||
        (rc = read_channels(a, c, err)) != RC_OK)
        return rc;
    a->n_keys = left - 1; /* the bound is strict; how the reference cuts blocks changes nothing */
    a->head_dim = a->d_model / a->n_heads;
    if (a->d_model % a->n_heads != 0 || a->head_dim > G4_MAX_HEAD || a->d_model % 2 != 0)
        return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                            "%s: a width of %u in %u heads; expected an even one in heads of up to "
                            "%d",
                            what, a->d_model, a->n_heads, G4_MAX_HEAD);
    a->width[0] = (N_MELS - 1) / 2 + 1;
    a->width[1] = (a->width[0] - 1) / 2 + 1;
    return RC_OK;
}

static enum rc read_processor(const json_t *p, struct rc_err *err)
{
    static const struct {
        const char *key;
        double want;
    } fixed[] = {
        {"feature_size", N_MELS},
        {"sampling_rate", MDL_G4_SOUND_RATE},
        {"frame_length", FRAME},
        {"hop_length", HOP},
        {"fft_length", N_FFT},
        {"min_frequency", 0},
        {"max_frequency", 8000},
        {"preemphasis", 0},
        {"dither", 0},
        {"input_scale_factor", 1},
        {"mel_floor", 0.001},
    };
    static const char *const none[] = {"per_bin_mean", "per_bin_stddev"};
    const char *what = "processor_config.json: feature_extractor";
    const json_t *in = p ? json_object_get(p, "feature_extractor") : NULL, *v;
    enum rc rc;

    if (json_is_object(in))
        p = in;
    for (size_t i = 0; i < sizeof(fixed) / sizeof(*fixed); i++)
        if ((rc = g4_cfg_is(p, what, fixed[i].key, fixed[i].want, err)) != RC_OK)
            return rc;
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
        if ((v = p ? json_object_get(p, none[i]) : NULL) && !json_is_null(v))
            return rc_fail_what(err, RC_UNSUPPORTED, none[i],
                                "%s: '%s' is given, which is not "
                                "computed",
                                what, none[i]);
    return RC_OK;
}

/* Rows of sines and cosines of the distances 0 .. n_keys - 1. */
static void make_places(struct mdl_g4_audio *a)
{
    uint32_t n = a->d_model / 2;

    for (uint32_t d = 0; d < a->n_keys; d++)
        for (uint32_t i = 0; i < n; i++) {
            double g = exp(-(double)i * log(10000) / (n - 1));

            a->place[(size_t)d * a->d_model + i] = (float)sin(d * g);
            a->place[(size_t)d * a->d_model + n + i] = (float)cos(d * g);
        }
}

static uint32_t real_frames(uint64_t n_samples)
{
    return n_samples < HOP + 1 ? 0 : (uint32_t)((n_samples - HOP - 1) / HOP) + 1;
}

enum rc mdl_g4_audio_config(struct mdl_g4_audio **out, const json_t *config,
                            const json_t *processor, uint32_t d_text, struct rc_err *err)
{
    struct mdl_g4_audio *a;
    enum rc rc;

    if (!json_is_object(config))
        return rc_fail_what(err, RC_FORMAT, "audio_config", "'audio_config' is not an object");
    if (!(a = calloc(1, sizeof(*a))))
        return rc_fail(err, RC_NOMEM, "no memory for an audio tower");
    a->d_text = d_text;
    if ((rc = read_numbers(a, config, err)) != RC_OK ||
        (rc = read_processor(processor, err)) != RC_OK)
        goto out;
    a->max_frames = real_frames((uint64_t)MDL_G4_SOUND_RATE * MDL_G4_SOUND_MS / 1000);
    a->max_tokens = (a->max_frames + 3) / 4;
    a->layer = calloc(a->n_layers, sizeof(*a->layer));
    a->place = calloc((size_t)a->n_keys * a->d_model, sizeof(*a->place));
    if (!a->layer || !a->place) {
        rc = rc_fail(err, RC_NOMEM, "no memory for %u layers of an audio tower", a->n_layers);
        goto out;
    }
    make_places(a);
    *out = a;
    a = NULL;
out:
    mdl_g4_audio_free(&a, NULL);
    return rc;
}

void mdl_g4_audio_free(struct mdl_g4_audio **audio, struct be_ctx *be)
{
    struct mdl_g4_audio *a = *audio;

    if (!a)
        return;
    mdl_ones_deinit(&a->ones, be);
    free(a->layer);
    free(a->place);
    free(a);
    *audio = NULL;
}

uint32_t mdl_g4_audio_max_tokens(const struct mdl_g4_audio *a)
{
    return a->max_tokens;
}

void mdl_g4_audio_trace(struct mdl_g4_audio *a, const struct mdl_g4_trace *t)
{
    a->trace = *t;
}

/* ---------------------------------------------------------------------- plan */

static float times(float v, float by)
{
    return v * by;
}

/* softplus, as the reference takes it, times what scales queries */
static float q_scale(float v, float by)
{
    double z = v;

    return (float)((z > 20 ? z : log1p(exp(z))) * by);
}

static enum rc plan_ff(struct mdl_g4_audio *a, struct g4_names *p, uint32_t i, uint32_t k,
                       struct rc_err *err)
{
    struct half_ff *f = &a->layer[i].ff[k];
    char name[224];
    enum rc rc;

    snprintf(name, sizeof(name), "%slayers.%u.feed_forward%u.post_layer_norm.weight", p->prefix, i,
             k + 1);
    if ((rc = g4_vector(p, a->d_model, &f->pre, err,
                        "layers.%u.feed_forward%u.pre_layer_norm.weight", i, k + 1)) != RC_OK ||
        (rc = mdl_plan_mapped(p->plan, name, a->d_model, times, a->residual, &f->post, err)) !=
            RC_OK ||
        (rc = g4_clipped(p, 4ull * a->d_model, a->d_model, a->clipped, &f->up, err,
                         "layers.%u.feed_forward%u.ffw_layer_1", i, k + 1)) != RC_OK)
        return rc;
    return g4_clipped(p, a->d_model, 4ull * a->d_model, a->clipped, &f->down, err,
                      "layers.%u.feed_forward%u.ffw_layer_2", i, k + 1);
}

static enum rc plan_layer(struct mdl_g4_audio *a, struct g4_names *p, uint32_t i,
                          struct rc_err *err)
{
    struct layer *l = &a->layer[i];
    uint64_t taps[3] = {a->d_model, 1, a->taps};
    const struct {
        const char *name;
        struct be_weight **slot;
    } norms[] = {
        {"norm_pre_attn", &l->norm_attn},     {"norm_post_attn", &l->norm_post},
        {"norm_out", &l->norm_out},           {"lconv1d.pre_layer_norm", &l->conv_pre},
        {"lconv1d.conv_norm", &l->conv_norm},
    };
    const struct {
        const char *name;
        uint32_t rows;
        struct g4_linear *slot;
    } linears[] = {
        {"self_attn.q_proj", 1, &l->q},         {"self_attn.k_proj", 1, &l->k},
        {"self_attn.v_proj", 1, &l->v},         {"self_attn.post", 1, &l->post},
        {"lconv1d.linear_start", 2, &l->start}, {"lconv1d.linear_end", 1, &l->end},
    };
    char name[224];
    enum rc rc;

    for (size_t k = 0; k < sizeof(norms) / sizeof(*norms); k++)
        if ((rc = g4_vector(p, a->d_model, norms[k].slot, err, "layers.%u.%s.weight", i,
                            norms[k].name)) != RC_OK)
            return rc;
    for (size_t k = 0; k < sizeof(linears) / sizeof(*linears); k++)
        if ((rc = g4_clipped(p, (uint64_t)linears[k].rows * a->d_model, a->d_model, a->clipped,
                             linears[k].slot, err, "layers.%u.%s", i, linears[k].name)) != RC_OK)
            return rc;
    snprintf(name, sizeof(name), "%slayers.%u.self_attn.per_dim_scale", p->prefix, i);
    if ((rc = g4_matrix(p, a->d_model, a->d_model, &l->rel, err,
                        "layers.%u.self_attn.relative_k_proj.weight", i)) != RC_OK ||
        (rc = mdl_plan_mapped(p->plan, name, a->head_dim, q_scale,
                              (float)(1 / sqrt(a->head_dim) / log(2)), &l->q_scale, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%slayers.%u.lconv1d.depthwise_conv1d.weight", p->prefix, i);
    if ((rc = mdl_plan_shaped(p->plan, name, BE_USE_VECTOR, 3, taps, 1,
                              (uint64_t)a->d_model * a->taps, &l->conv_w, err)) != RC_OK ||
        (rc = plan_ff(a, p, i, 0, err)) != RC_OK)
        return rc;
    return plan_ff(a, p, i, 1, err);
}

enum rc mdl_g4_audio_plan(struct mdl_g4_audio *a, struct mdl_plan *plan, const char *tower,
                          const char *embed, struct rc_err *err)
{
    struct g4_names p = {.plan = plan, .prefix = tower}, e = {.plan = plan, .prefix = embed};
    char name[224];
    enum rc rc;

    if (plan->be && !be_can_towers(plan->be))
        return rc_fail_what(err, RC_UNSUPPORTED, "backend",
                            "this backend has no operations for towers that hear");
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t dims[4] = {a->ch[i], i ? a->ch[0] : 1, 3, 3};

        snprintf(name, sizeof(name), "%ssubsample_conv_projection.layer%u.conv.weight", tower, i);
        if ((rc = mdl_plan_shaped(plan, name, BE_USE_LINEAR, 4, dims, dims[0], dims[1] * 9,
                                  &a->conv[i], err)) != RC_OK ||
            (rc = g4_vector(&p, a->ch[i], &a->conv_norm[i], err,
                            "subsample_conv_projection.layer%u.norm.weight", i)) != RC_OK)
            return rc;
    }
    if ((rc = g4_matrix(&p, a->d_model, (uint64_t)a->width[1] * a->ch[1], &a->in, err,
                        "subsample_conv_projection.input_proj_linear.weight")) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n_layers; i++)
        if ((rc = plan_layer(a, &p, i, err)) != RC_OK)
            return rc;
    if ((rc = g4_matrix(&p, a->d_out, a->d_model, &a->out_w, err, "output_proj.weight")) != RC_OK ||
        (rc = g4_vector(&p, a->d_out, &a->out_b, err, "output_proj.bias")) != RC_OK)
        return rc;
    return g4_matrix(&e, a->d_text, a->d_out, &a->proj, err, "embedding_projection.weight");
}

enum rc mdl_g4_audio_fit(struct mdl_g4_audio *a, struct mdl_plan *plan, struct rc_err *err)
{
    uint32_t n = a->max_tokens, d = a->d_model;
    uint32_t lines = 2 * SLICE + 1; /* of the first map, for a slice of the second */
    const struct {
        uint32_t rows, cols;
        struct be_tensor **slot;
    } want[] = {
        {a->max_frames, N_MELS, &a->mel},
        {lines * a->width[0], 9, &a->win[0]},
        {lines * a->width[0], a->ch[0], &a->map[0]},
        {SLICE * a->width[1], a->ch[0] * 9, &a->win[1]},
        {SLICE * a->width[1], a->ch[1], &a->map[1]},
        {n, a->width[1] * a->ch[1], &a->flat},
        {n, d, &a->x},
        {n, d, &a->t},
        {n, d, &a->q},
        {n, d, &a->k},
        {n, d, &a->v},
        {n, d, &a->att},
        {n, 2 * d, &a->wide},
        {n, 4 * d, &a->ff},
        {a->n_keys, d, &a->places},
        {a->n_keys, d, &a->rel},
        {n, a->d_out, &a->out},
        {n, a->d_text, &a->soft},
        {a->clipped ? n : 0, d, &a->room}, /* clamped inputs */
    };
    enum rc rc;

    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        if (want[i].rows > 0 &&
            (rc = mdl_plan_tensor(plan, want[i].rows, want[i].cols, want[i].slot, err)) != RC_OK)
            return rc;
    return mdl_ones_init(&a->ones, plan->be, a->d_out, err);
}

/* --------------------------------------------------------------------- media */

enum rc mdl_g4_audio_media(const struct mdl_g4_audio *a, const struct mdl_sound *snd,
                           struct mdl_media **out, struct rc_err *err)
{
    const struct mdl_mel_desc d = {.rate = MDL_G4_SOUND_RATE,
                                   .frame = FRAME,
                                   .n_fft = N_FFT,
                                   .n_mels = N_MELS,
                                   .min_hz = 0,
                                   .max_hz = 8000,
                                   .floor = 0.001};
    const uint64_t most = (uint64_t)MDL_G4_SOUND_RATE * MDL_G4_SOUND_MS / 1000;
    float first[FRAME] = {0};
    struct mdl_media *m = NULL;
    struct mdl_mel *mel = NULL;
    uint32_t n;
    enum rc rc;

    if (snd->rate != MDL_G4_SOUND_RATE)
        return rc_fail(err, RC_INVALID, "a sound of %u samples a second, expected %u", snd->rate,
                       MDL_G4_SOUND_RATE);
    if (snd->n > most)
        return rc_bound(rc_fail(err, RC_TOO_LARGE, "a sound of %.1f seconds, expected at most %u",
                                (double)snd->n / MDL_G4_SOUND_RATE, MDL_G4_SOUND_MS / 1000),
                        snd->n / (MDL_G4_SOUND_RATE / 1000) + 1, MDL_G4_SOUND_MS, err);
    if ((n = real_frames(snd->n)) == 0)
        return rc_fail(err, RC_INVALID, "a sound of %zu samples, expected at least %u", snd->n,
                       HOP + 1);
    if ((rc = mdl_mel_new(&mel, &d, err)) != RC_OK ||
        (rc = g4_media_new(&m, n, N_MELS, err)) != RC_OK)
        goto out;
    m->is_sound = true;
    m->n_tokens = (n + 3) / 4;
    /* HOP zeros stand before the first sample; a real frame never reaches past the last one */
    memcpy(first + HOP, snd->pcm, (FRAME - HOP) * sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        mdl_mel_frame(mel, i == 0 ? first : snd->pcm + (size_t)(i - 1) * HOP,
                      m->x + (size_t)i * N_MELS);
    *out = m;
out:
    mdl_mel_free(&mel);
    return rc;
}

/* ---------------------------------------------------------------------- pass */

/* map[which] = relu(layer_norm(conv(x))) of lines [line, line + n) */
static enum rc convolve(struct mdl_g4_audio *a, struct be_ctx *be, uint32_t which,
                        const struct be_tensor *x, uint32_t height, uint32_t x_line, uint32_t line,
                        uint32_t n, struct rc_err *err)
{
    uint32_t rows = n * a->width[which];
    struct be_unfold_args u = {.x = x,
                               .out = a->win[which],
                               .width = which ? a->width[0] : N_MELS,
                               .height = height,
                               .n_ch = which ? a->ch[0] : 1,
                               .x_line = x_line,
                               .k_h = 3,
                               .k_w = 3,
                               .stride_h = 2,
                               .stride_w = 2,
                               .pad_h = 1,
                               .pad_w = 1,
                               .ch_first = true,
                               .line = line,
                               .n_lines = n};
    struct be_layer_norm_args ln = {.x = a->map[which],
                                    .w = a->conv_norm[which],
                                    .out = a->map[which],
                                    .n = rows,
                                    .eps = a->eps};
    enum rc rc;

    if ((rc = be_unfold(be, &u, err)) != RC_OK ||
        (rc = mdl_dense(be, a->win[which], a->conv[which], NULL, a->map[which], rows, BE_EPI_NONE,
                        err)) != RC_OK ||
        (rc = be_layer_norm(be, &ln, err)) != RC_OK)
        return rc;
    return g4_act(be, a->map[which], BE_ACT_RELU, rows, err);
}

/* Frames to rows of the layers. What is not real lies outside of the picture, hence is 0. */
static enum rc subsample(struct mdl_g4_audio *a, struct be_ctx *be, const struct mdl_media *m,
                         struct rc_err *err)
{
    uint32_t h1 = (m->n_rows + 1) / 2, h2 = m->n_tokens;
    enum rc rc = be_tensor_write(be, a->mel, 0, m->n_rows, m->x, err);

    for (uint32_t line = 0; rc == RC_OK && line < h2; line += SLICE) {
        uint32_t n = h2 - line < SLICE ? h2 - line : SLICE;
        uint32_t lo = line > 0 ? 2 * line - 1 : 0;
        uint32_t hi = 2 * (line + n) < h1 ? 2 * (line + n) : h1;
        struct be_unfold_args flat = {.x = a->map[1],
                                      .out = a->flat,
                                      .width = a->width[1],
                                      .height = n,
                                      .n_ch = a->ch[1],
                                      .k_h = 1,
                                      .k_w = a->width[1],
                                      .stride_h = 1,
                                      .stride_w = 1,
                                      .n_lines = n,
                                      .out_row = line};

        if ((rc = convolve(a, be, 0, a->mel, m->n_rows, 0, lo, hi - lo, err)) != RC_OK ||
            (rc = convolve(a, be, 1, a->map[0], h1, lo, line, n, err)) != RC_OK)
            return rc;
        rc = be_unfold(be, &flat, err);
    }
    return rc != RC_OK ? rc : mdl_dense(be, a->flat, a->in, NULL, a->x, h2, BE_EPI_NONE, err);
}

/* x += residual * norm(W2 silu(W1 norm(x))) */
static enum rc half(struct mdl_g4_audio *a, struct be_ctx *be, const struct half_ff *f, uint32_t n,
                    struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_rms_norm(be, a->x, f->pre, NULL, a->t, n, a->eps, err)) != RC_OK ||
        (rc = g4_apply(be, a->t, &f->up, a->t, a->ff, n, err)) != RC_OK ||
        (rc = g4_act(be, a->ff, BE_ACT_SILU, n, err)) != RC_OK ||
        (rc = g4_apply(be, a->ff, &f->down, a->ff, a->t, n, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(be, a->t, f->post, a->x, a->x, n, a->eps, err);
}

static enum rc attend(struct mdl_g4_audio *a, struct be_ctx *be, const struct layer *l, uint32_t n,
                      struct rc_err *err)
{
    const struct g4_linear *const qkv[3] = {&l->q, &l->k, &l->v};
    struct be_tensor *const out[3] = {a->q, a->k, a->v};
    struct be_attention_local_args at = {.q = a->q,
                                         .k = a->k,
                                         .v = a->v,
                                         .rel = a->rel,
                                         .out = a->att,
                                         .q_scale = l->q_scale,
                                         .n = n,
                                         .n_heads = a->n_heads,
                                         .head_dim = a->head_dim,
                                         .n_keys = a->n_keys,
                                         .k_scale = (float)(log(1 + M_E) / log(2)),
                                         .cap = a->cap};
    enum rc rc;

    if ((rc = mdl_rms_norm(be, a->x, l->norm_attn, NULL, a->t, n, a->eps, err)) != RC_OK ||
        (rc = g4_apply_all(be, a->t, qkv, out, 3, a->room, n, err)) != RC_OK ||
        (rc = mdl_dense(be, a->places, l->rel, NULL, a->rel, a->n_keys, BE_EPI_NONE, err)) !=
            RC_OK ||
        (rc = be_attention_local(be, &at, err)) != RC_OK ||
        (rc = g4_apply(be, a->att, &l->post, a->att, a->t, n, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(be, a->t, l->norm_post, a->x, a->x, n, a->eps, err);
}

/* The convolution along time. */
static enum rc along(struct mdl_g4_audio *a, struct be_ctx *be, const struct layer *l, uint32_t n,
                     struct rc_err *err)
{
    struct be_glu_args glu = {.x = a->wide, .out = a->q, .n = n};
    struct be_conv1d_args conv = {.x = a->q, .out = a->k, .w = l->conv_w, .n = n, .k = a->taps};
    struct be_act_args add = {.x = a->q,
                              .add = a->x,
                              .out = a->x,
                              .n = n,
                              .kind = BE_ACT_CLAMP,
                              .lo = -INFINITY,
                              .hi = INFINITY};
    enum rc rc;

    if ((rc = mdl_rms_norm(be, a->x, l->conv_pre, NULL, a->t, n, a->eps, err)) != RC_OK ||
        (rc = g4_apply(be, a->t, &l->start, a->t, a->wide, n, err)) != RC_OK ||
        (rc = be_glu(be, &glu, err)) != RC_OK || (rc = be_conv1d(be, &conv, err)) != RC_OK ||
        (rc = mdl_rms_norm(be, a->k, l->conv_norm, NULL, a->t, n, a->eps, err)) != RC_OK ||
        (rc = g4_act(be, a->t, BE_ACT_SILU, n, err)) != RC_OK ||
        (rc = g4_apply(be, a->t, &l->end, a->t, a->q, n, err)) != RC_OK)
        return rc;
    return be_act(be, &add, err);
}

static enum rc one_layer(struct mdl_g4_audio *a, struct be_ctx *be, const struct layer *l,
                         uint32_t n, struct rc_err *err)
{
    enum rc rc;

    if ((rc = half(a, be, &l->ff[0], n, err)) != RC_OK ||
        (rc = attend(a, be, l, n, err)) != RC_OK || (rc = along(a, be, l, n, err)) != RC_OK ||
        (rc = half(a, be, &l->ff[1], n, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(be, a->x, l->norm_out, NULL, a->x, n, a->eps, err);
}

enum rc mdl_g4_audio_pass(struct mdl_g4_audio *a, struct be_ctx *be, const struct mdl_media *media,
                          float *soft, bool (*stop)(void *user), void *user, struct rc_err *err)
{
    uint32_t n = media->n_tokens;
    enum rc rc;

    if (!media->is_sound || media->n_cols != N_MELS || media->n_rows == 0 ||
        media->n_rows > a->max_frames || n != (media->n_rows + 3) / 4)
        return rc_fail(err, RC_INVALID, "media of %u x %u values are no sound for this tower",
                       media->n_rows, media->n_cols);
    if ((rc = be_tensor_write(be, a->places, 0, a->n_keys, a->place, err)) != RC_OK ||
        (rc = subsample(a, be, media, err)) != RC_OK)
        return rc;
    g4_show(&a->trace, "subsampled", a->x, n);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        if (stop && stop(user))
            return rc_fail(err, RC_CANCELLED, "stopped before layer %u of a sound", i);
        if ((rc = one_layer(a, be, &a->layer[i], n, err)) != RC_OK)
            return rc;
        g4_show_layer(&a->trace, i, a->x, n);
    }
    if ((rc = mdl_dense(be, a->x, a->out_w, a->out_b, a->out, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    g4_show(&a->trace, "out", a->out, n);
    if ((rc = mdl_rms_norm(be, a->out, a->ones.w, NULL, a->out, n, 1e-6f, err)) != RC_OK ||
        (rc = mdl_dense(be, a->out, a->proj, NULL, a->soft, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    g4_show(&a->trace, "projected", a->soft, n);
    return be_tensor_read(be, a->soft, 0, n, soft, err);
}
