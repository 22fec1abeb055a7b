/* mdl_g4_vision.c - the eyes of the Gemma 4 generation (gemma4_vision).
 *
 * A picture is brought to a grid of patches whose number its soft tokens bound, the patches pass
 * through two-way transformer layers with a rotation by column and row, and every k x k block of
 * them is averaged to one soft token and projected to the text's width. No padding is computed.
 *
 * Always true: a picture's vectors depend on it alone; passes allocate nothing.
 * Source: gemma.md 5. Tests: tests/models/test_mdl_g4_towers.c
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_g4_impl.h"
#include "mdl_resize.h"

#define MAX_TOKENS 1120 /* of one picture */
#define CHUNK 64        /* patches brought to the device at a time */

struct layer {
    struct be_weight *norm_in, *norm_attn, *norm_pre, *norm_ff, *q_norm, *k_norm;
    struct g4_linear q, k, v, o, gate, up, down;
};

struct mdl_g4_vision {
    uint32_t d_text, d_model, d_ff, n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t patch, pool, n_pos, max_tokens, max_patches, d_patch;
    float eps, theta;
    bool clipped, standardize;
    struct layer *layer; /* [n_layers] */
    struct be_weight *patch_w, *pos, *std_bias, *std_scale, *proj;
    struct mdl_ones ones, head_ones;
    struct be_tensor *px, *x, *t, *q, *k, *v, *att, *gate, *up, *room, *pooled, *soft;
    int32_t *col, *row, *ids; /* [max_patches] */
    uint32_t *offsets;        /* [max_tokens + 1] */
    float *chunk;             /* [CHUNK, d_patch] */
    struct mdl_g4_trace trace;
};

/* -------------------------------------------------------------------- config */

static enum rc read_numbers(struct mdl_g4_vision *v, const json_t *c, struct rc_err *err)
{
    const char *what = "vision_config";
    const json_t *rope = json_object_get(c, "rope_parameters");
    enum rc rc;

    if ((rc = mdl_cfg_u32(c, what, "hidden_size", 1, G4_MAX_WIDTH, MDL_REQUIRED, &v->d_model,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "intermediate_size", 1, G4_MAX_WIDTH, MDL_REQUIRED, &v->d_ff,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "num_hidden_layers", 1, G4_MAX_LAYERS, MDL_REQUIRED,
                          &v->n_layers, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "num_attention_heads", 1, 1024, MDL_REQUIRED, &v->n_heads,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "num_key_value_heads", 1, 1024, v->n_heads, &v->n_kv_heads,
                          err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "head_dim", 1, G4_MAX_HEAD, v->d_model / v->n_heads,
                          &v->head_dim, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "patch_size", 1, 64, 16, &v->patch, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "pooling_kernel_size", 1, 16, 3, &v->pool, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, what, "position_embedding_size", 1, 1u << 20, 10240, &v->n_pos,
                          err)) != RC_OK ||
        (rc = mdl_cfg_pos(c, what, "rms_norm_eps", 1, 1e-6, &v->eps, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, what, "use_clipped_linears", false, &v->clipped, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, what, "standardize", false, &v->standardize, err)) != RC_OK ||
        (rc = g4_cfg_is(c, what, "attention_bias", 0, err)) != RC_OK ||
        (rc = g4_cfg_word(c, what, "hidden_activation", "gelu_pytorch_tanh", err)) != RC_OK)
        return rc;
    /* rope_type may say "default"; by column and row is what is meant */
    if ((rc = mdl_cfg_pos(rope, "vision_config: rope_parameters", "rope_theta", 1e9, 100, &v->theta,
                          err)) != RC_OK)
        return rc;
    if (v->head_dim < 4 || v->head_dim > G4_MAX_HEAD || v->head_dim % 4 != 0)
        return rc_fail_what(err, RC_FORMAT, "head_dim",
                            "%s: 'head_dim' is %u, expected a multiple of 4 up to %d", what,
                            v->head_dim, G4_MAX_HEAD);
    if (v->n_heads % v->n_kv_heads != 0)
        return rc_fail_what(err, RC_FORMAT, "num_key_value_heads",
                            "%s: %u heads cannot share %u key/value heads evenly", what, v->n_heads,
                            v->n_kv_heads);
    return RC_OK;
}

/* What the processor does to pictures, as far as it must be what is done here. */
static enum rc read_processor(struct mdl_g4_vision *v, const json_t *p, struct rc_err *err)
{
    const json_t *in = p ? json_object_get(p, "image_processor") : NULL;
    const char *what = "processor_config.json: image_processor";
    enum rc rc;

    if (json_is_object(in))
        p = in;
    if ((rc = mdl_cfg_u32(p, what, "max_soft_tokens", 1, MAX_TOKENS, 280, &v->max_tokens, err)) !=
            RC_OK ||
        (rc = g4_cfg_is(p, what, "patch_size", v->patch, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "pooling_kernel_size", v->pool, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "do_resize", 1, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "do_rescale", 1, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "rescale_factor", 1 / 255.0, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "resample", 3, err)) != RC_OK ||
        (rc = g4_cfg_is(p, what, "do_normalize", 0, err)) != RC_OK)
        return rc;
    return RC_OK;
}

enum rc mdl_g4_vision_config(struct mdl_g4_vision **out, const json_t *config,
                             const json_t *processor, uint32_t d_text, struct rc_err *err)
{
    struct mdl_g4_vision *v;
    enum rc rc;

    if (!json_is_object(config))
        return rc_fail_what(err, RC_FORMAT, "vision_config", "'vision_config' is not an object");
    if (!(v = calloc(1, sizeof(*v))))
        return rc_fail(err, RC_NOMEM, "no memory for a vision tower");
    v->d_text = d_text;
    if ((rc = read_numbers(v, config, err)) != RC_OK ||
        (rc = read_processor(v, processor, err)) != RC_OK)
        goto out;
    v->max_patches = v->max_tokens * v->pool * v->pool;
    v->d_patch = 3 * v->patch * v->patch;
    v->layer = calloc(v->n_layers, sizeof(*v->layer));
    v->col = calloc(v->max_patches, sizeof(*v->col));
    v->row = calloc(v->max_patches, sizeof(*v->row));
    v->ids = calloc(v->max_patches, sizeof(*v->ids));
    v->offsets = calloc((size_t)v->max_tokens + 1, sizeof(*v->offsets));
    v->chunk = calloc((size_t)CHUNK * v->d_patch, sizeof(*v->chunk));
    if (!v->layer || !v->col || !v->row || !v->ids || !v->offsets || !v->chunk) {
        rc = rc_fail(err, RC_NOMEM, "no memory for pictures of %u patches", v->max_patches);
        goto out;
    }
    *out = v;
    v = NULL;
out:
    mdl_g4_vision_free(&v, NULL);
    return rc;
}

void mdl_g4_vision_free(struct mdl_g4_vision **vision, struct be_ctx *be)
{
    struct mdl_g4_vision *v = *vision;

    if (!v)
        return;
    mdl_ones_deinit(&v->ones, be);
    mdl_ones_deinit(&v->head_ones, be);
    free(v->layer);
    free(v->col);
    free(v->row);
    free(v->ids);
    free(v->offsets);
    free(v->chunk);
    free(v);
    *vision = NULL;
}

uint32_t mdl_g4_vision_max_tokens(const struct mdl_g4_vision *v)
{
    return v->max_tokens;
}

void mdl_g4_vision_trace(struct mdl_g4_vision *v, const struct mdl_g4_trace *t)
{
    v->trace = *t;
}

/* ---------------------------------------------------------------------- plan */

static enum rc plan_layer(struct mdl_g4_vision *v, struct g4_names *p, uint32_t i,
                          struct rc_err *err)
{
    struct layer *l = &v->layer[i];
    uint32_t q = v->n_heads * v->head_dim, kv = v->n_kv_heads * v->head_dim;
    const struct {
        const char *name;
        uint32_t n;
        struct be_weight **slot;
    } norms[] = {
        {"input_layernorm", v->d_model, &l->norm_in},
        {"post_attention_layernorm", v->d_model, &l->norm_attn},
        {"pre_feedforward_layernorm", v->d_model, &l->norm_pre},
        {"post_feedforward_layernorm", v->d_model, &l->norm_ff},
        {"self_attn.q_norm", v->head_dim, &l->q_norm},
        {"self_attn.k_norm", v->head_dim, &l->k_norm},
    };
    const struct {
        const char *name;
        uint32_t rows, cols;
        struct g4_linear *slot;
    } linears[] = {
        {"self_attn.q_proj", q, v->d_model, &l->q},
        {"self_attn.k_proj", kv, v->d_model, &l->k},
        {"self_attn.v_proj", kv, v->d_model, &l->v},
        {"self_attn.o_proj", v->d_model, q, &l->o},
        {"mlp.gate_proj", v->d_ff, v->d_model, &l->gate},
        {"mlp.up_proj", v->d_ff, v->d_model, &l->up},
        {"mlp.down_proj", v->d_model, v->d_ff, &l->down},
    };
    enum rc rc;

    for (size_t k = 0; k < sizeof(norms) / sizeof(*norms); k++)
        if ((rc = g4_vector(p, norms[k].n, norms[k].slot, err, "encoder.layers.%u.%s.weight", i,
                            norms[k].name)) != RC_OK)
            return rc;
    for (size_t k = 0; k < sizeof(linears) / sizeof(*linears); k++)
        if ((rc = g4_clipped(p, linears[k].rows, linears[k].cols, v->clipped, linears[k].slot, err,
                             "encoder.layers.%u.%s", i, linears[k].name)) != RC_OK)
            return rc;
    return RC_OK;
}

enum rc mdl_g4_vision_plan(struct mdl_g4_vision *v, struct mdl_plan *plan, const char *tower,
                           const char *embed, struct rc_err *err)
{
    struct g4_names p = {.plan = plan, .prefix = tower}, e = {.plan = plan, .prefix = embed};
    const uint64_t table[3] = {2, v->n_pos, v->d_model};
    char name[224];
    enum rc rc;

    if (plan->be && !be_can_towers(plan->be))
        return rc_fail_what(err, RC_UNSUPPORTED, "backend",
                            "this backend has no operations for towers that see");
    snprintf(name, sizeof(name), "%spatch_embedder.position_embedding_table", tower);
    if ((rc = g4_matrix(&p, v->d_model, v->d_patch, &v->patch_w, err,
                        "patch_embedder.input_proj.weight")) != RC_OK ||
        (rc = mdl_plan_shaped(plan, name, BE_USE_EMBED, 3, table, 2ull * v->n_pos, v->d_model,
                              &v->pos, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < v->n_layers; i++)
        if ((rc = plan_layer(v, &p, i, err)) != RC_OK)
            return rc;
    if (v->standardize &&
        ((rc = g4_vector(&p, v->d_model, &v->std_bias, err, "std_bias")) != RC_OK ||
         (rc = g4_vector(&p, v->d_model, &v->std_scale, err, "std_scale")) != RC_OK))
        return rc;
    return g4_matrix(&e, v->d_text, v->d_model, &v->proj, err, "embedding_projection.weight");
}

enum rc mdl_g4_vision_fit(struct mdl_g4_vision *v, struct mdl_plan *plan, struct rc_err *err)
{
    uint32_t n = v->max_patches, q = v->n_heads * v->head_dim, kv = v->n_kv_heads * v->head_dim;
    const struct {
        uint32_t rows, cols;
        struct be_tensor **slot;
    } want[] = {
        {n, v->d_patch, &v->px},
        {n, v->d_model, &v->x},
        {n, v->d_model, &v->t},
        {n, q, &v->q},
        {n, kv, &v->k},
        {n, kv, &v->v},
        {n, q, &v->att},
        {n, v->d_ff, &v->gate},
        {v->max_tokens, v->d_model, &v->pooled},
        {v->max_tokens, v->d_text, &v->soft},
        /* clamped inputs, and a gate that cannot be part of the product */
        {v->clipped ? n : 0, v->d_model, &v->room},
        {v->clipped ? n : 0, v->d_ff, &v->up},
    };
    enum rc rc;

    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        if (want[i].rows > 0 &&
            (rc = mdl_plan_tensor(plan, want[i].rows, want[i].cols, want[i].slot, err)) != RC_OK)
            return rc;
    if ((rc = mdl_ones_init(&v->ones, plan->be, v->d_model, err)) != RC_OK)
        return rc;
    return mdl_ones_init(&v->head_ones, plan->be, v->head_dim, err);
}

/* --------------------------------------------------------------------- media */

/* Sides of the picture once resized. Source: gemma.md 5.1. */
static enum rc target_size(const struct mdl_g4_vision *v, uint32_t w, uint32_t h, uint32_t *out_w,
                           uint32_t *out_h, struct rc_err *err)
{
    double unit = (double)v->pool * v->patch, area = (double)v->max_patches * v->patch * v->patch;
    double f = sqrt(area / ((double)h * w));
    double th = floor(f * h / unit) * unit, tw = floor(f * w / unit) * unit;

    if (th == 0 && tw == 0)
        return rc_fail(err, RC_INVALID, "a picture of %u x %u pixels gives no patch", w, h);
    if (th == 0) {
        th = unit;
        tw = fmin(floor((double)(w / h)) * unit, v->max_tokens * unit);
    } else if (tw == 0) {
        tw = unit;
        th = fmin(floor((double)(h / w)) * unit, v->max_tokens * unit);
    }
    if (!(th * tw <= area) || !(th >= unit) || !(tw >= unit))
        return rc_fail(
            err, RC_INVALID,
            "a picture of %u x %u pixels becomes %.0f x %.0f, expected at most %.0f pixels", w, h,
            tw, th, area);
    *out_w = (uint32_t)tw;
    *out_h = (uint32_t)th;
    return RC_OK;
}

/* Patches in the order of rows; inside of one (row, column, channel). */
static void cut(const struct mdl_g4_vision *v, const uint8_t *rgb, struct mdl_media *m)
{
    size_t line = (size_t)m->grid_w * v->patch * 3, span = (size_t)v->patch * 3;
    float *out = m->x;

    for (uint32_t gy = 0; gy < m->grid_h; gy++)
        for (uint32_t gx = 0; gx < m->grid_w; gx++)
            for (uint32_t y = 0; y < v->patch; y++) {
                const uint8_t *in = rgb + ((size_t)gy * v->patch + y) * line + gx * span;

                for (size_t i = 0; i < span; i++)
                    *out++ = (float)(in[i] * 0.00392156862745098);
            }
}

enum rc mdl_g4_vision_media(const struct mdl_g4_vision *v, const struct mdl_image *img,
                            struct mdl_media **out, struct rc_err *err)
{
    struct mdl_media *m = NULL;
    uint8_t *rgb = NULL;
    uint32_t w = 0, h = 0;
    enum rc rc;

    if (img->width < 1 || img->height < 1 || img->width > MDL_RESIZE_MAX_SIDE ||
        img->height > MDL_RESIZE_MAX_SIDE)
        return rc_fail(err, RC_INVALID, "a picture of %u x %u pixels; sides are 1 to %u",
                       img->width, img->height, MDL_RESIZE_MAX_SIDE);
    if ((rc = target_size(v, img->width, img->height, &w, &h, err)) != RC_OK)
        return rc;
    if (w / v->patch > v->n_pos || h / v->patch > v->n_pos)
        return rc_fail(err, RC_INVALID,
                       "a picture of %u x %u pixels becomes %u x %u patches, the model knows %u "
                       "places in a row",
                       img->width, img->height, w / v->patch, h / v->patch, v->n_pos);
    if (!(rgb = malloc((size_t)w * h * 3)))
        return rc_fail(err, RC_NOMEM, "no memory for a picture of %u x %u pixels", w, h);
    if ((rc = mdl_resize_bicubic(img, w, h, rgb, err)) != RC_OK ||
        (rc = g4_media_new(&m, (w / v->patch) * (h / v->patch), v->d_patch, err)) != RC_OK)
        goto out;
    m->grid_w = w / v->patch;
    m->grid_h = h / v->patch;
    m->n_tokens = m->n_rows / (v->pool * v->pool);
    cut(v, rgb, m);
    *out = m;
out:
    free(rgb);
    return rc;
}

/* ---------------------------------------------------------------------- pass */

static enum rc check_media(const struct mdl_g4_vision *v, const struct mdl_media *m,
                           struct rc_err *err)
{
    if (m->is_sound || m->n_cols != v->d_patch || m->n_rows == 0 || m->n_rows > v->max_patches ||
        (uint64_t)m->grid_w * m->grid_h != m->n_rows || m->grid_w % v->pool != 0 ||
        m->grid_h % v->pool != 0 || m->grid_w > v->n_pos || m->grid_h > v->n_pos ||
        m->n_tokens != m->n_rows / (v->pool * v->pool))
        return rc_fail(err, RC_INVALID,
                       "media of %u x %u (%u x %u values) are no picture for this tower", m->grid_w,
                       m->grid_h, m->n_rows, m->n_cols);
    return RC_OK;
}

/* x = W (2 v - 1) + E[0][column] + E[1][row] */
static enum rc embed(struct mdl_g4_vision *v, struct be_ctx *be, const struct mdl_media *m,
                     struct rc_err *err)
{
    struct be_embed_args e = {.table = v->pos,
                              .ids = v->col,
                              .n = m->n_rows,
                              .scale = 1,
                              .accumulate = true,
                              .out = v->x};
    enum rc rc;

    for (uint32_t r = 0; r < m->n_rows; r += CHUNK) {
        uint32_t n = m->n_rows - r < CHUNK ? m->n_rows - r : CHUNK;
        const float *in = m->x + (size_t)r * m->n_cols;

        for (size_t i = 0; i < (size_t)n * m->n_cols; i++)
            v->chunk[i] = 2 * in[i] - 1;
        if ((rc = be_tensor_write(be, v->px, r, n, v->chunk, err)) != RC_OK)
            return rc;
    }
    for (uint32_t r = 0; r < m->n_rows; r++) {
        v->col[r] = (int32_t)(r % m->grid_w);
        v->row[r] = (int32_t)(r / m->grid_w);
        v->ids[r] = v->row[r] + (int32_t)v->n_pos;
    }
    if ((rc = mdl_dense(be, v->px, v->patch_w, NULL, v->x, m->n_rows, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_embed(be, &e, err)) != RC_OK)
        return rc;
    e.ids = v->ids;
    return be_embed(be, &e, err);
}

/* Norm of each head (theta 0), then the rotation. */
static enum rc turn(const struct mdl_g4_vision *v, struct be_ctx *be, struct be_tensor *x,
                    uint32_t n_heads, const struct be_weight *norm, bool rotated, uint32_t n,
                    struct rc_err *err)
{
    struct be_rope_args r = {.x = x,
                             .pos = v->col,
                             .n = n,
                             .n_heads = n_heads,
                             .head_dim = v->head_dim,
                             .factor = 1,
                             .norm_w = norm,
                             .norm_eps = v->eps};
    struct be_rope2d_args t = {.x = x,
                               .pos_x = v->col,
                               .pos_y = v->row,
                               .n = n,
                               .n_heads = n_heads,
                               .head_dim = v->head_dim,
                               .theta = v->theta};
    enum rc rc = be_rope(be, &r, err);

    return rc != RC_OK || !rotated ? rc : be_rope2d(be, &t, err);
}

static enum rc attend(struct mdl_g4_vision *v, struct be_ctx *be, const struct layer *l, uint32_t n,
                      struct rc_err *err)
{
    const struct g4_linear *const qkv[3] = {&l->q, &l->k, &l->v};
    struct be_tensor *const out[3] = {v->q, v->k, v->v};
    const uint32_t offsets[2] = {0, n};
    struct be_attention_packed_args a = {.q = v->q,
                                         .k = v->k,
                                         .v = v->v,
                                         .out = v->att,
                                         .offsets = offsets,
                                         .n_seqs = 1,
                                         .n_heads = v->n_heads,
                                         .n_kv_heads = v->n_kv_heads,
                                         .head_dim = v->head_dim,
                                         .scale = 1,
                                         .radius = -1};
    enum rc rc;

    if ((rc = mdl_rms_norm(be, v->x, l->norm_in, NULL, v->t, n, v->eps, err)) != RC_OK ||
        (rc = g4_apply_all(be, v->t, qkv, out, 3, v->room, n, err)) != RC_OK ||
        (rc = turn(v, be, v->q, v->n_heads, l->q_norm, true, n, err)) != RC_OK ||
        (rc = turn(v, be, v->k, v->n_kv_heads, l->k_norm, true, n, err)) != RC_OK ||
        (rc = turn(v, be, v->v, v->n_kv_heads, v->head_ones.w, false, n, err)) != RC_OK ||
        (rc = be_attention_packed(be, &a, err)) != RC_OK ||
        (rc = g4_apply(be, v->att, &l->o, v->att, v->t, n, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(be, v->t, l->norm_attn, v->x, v->x, n, v->eps, err);
}

/* gate = gelu(gate(t)) * up(t) */
static enum rc gated(struct mdl_g4_vision *v, struct be_ctx *be, const struct layer *l, uint32_t n,
                     struct rc_err *err)
{
    const struct g4_linear *const two[2] = {&l->gate, &l->up};
    struct be_tensor *const out[2] = {v->gate, v->up};
    struct be_linear_args a = {.x = v->t, .n = n, .n_parts = 2, .epi = BE_EPI_GEGLU};
    struct be_scale_args s = {.x = v->gate, .y = v->up, .n = n, .scale = 1};
    enum rc rc;

    if (!v->clipped) {
        a.part[0].w = l->gate.w;
        a.part[0].out = v->gate;
        a.part[1].w = l->up.w;
        return be_linear(be, &a, err);
    }
    if ((rc = g4_apply_all(be, v->t, two, out, 2, v->room, n, err)) != RC_OK ||
        (rc = g4_act(be, v->gate, BE_ACT_GELU_TANH, n, err)) != RC_OK)
        return rc;
    return be_scale(be, &s, err);
}

static enum rc one_layer(struct mdl_g4_vision *v, struct be_ctx *be, const struct layer *l,
                         uint32_t n, struct rc_err *err)
{
    enum rc rc;

    if ((rc = attend(v, be, l, n, err)) != RC_OK ||
        (rc = mdl_rms_norm(be, v->x, l->norm_pre, NULL, v->t, n, v->eps, err)) != RC_OK ||
        (rc = gated(v, be, l, n, err)) != RC_OK ||
        (rc = g4_apply(be, v->gate, &l->down, v->gate, v->t, n, err)) != RC_OK)
        return rc;
    return mdl_rms_norm(be, v->t, l->norm_ff, v->x, v->x, n, v->eps, err);
}

/* Mean of every k x k block times sqrt(d_model); standardized; projected. */
static enum rc finish(struct mdl_g4_vision *v, struct be_ctx *be, const struct mdl_media *m,
                      struct rc_err *err)
{
    uint32_t k = v->pool, n = 0, cells = m->n_tokens;
    struct be_gather_args g = {.x = v->x, .rows = v->ids, .n = m->n_rows, .out = v->t};
    struct be_pool_args p = {
        .x = v->t, .offsets = v->offsets, .n_seqs = cells, .kind = BE_POOL_MEAN, .out = v->pooled};
    struct be_scale_args s = {.x = v->pooled, .n = cells, .scale = (float)sqrt(v->d_model)};
    struct be_affine_args a = {.x = v->pooled, .sub = v->std_bias, .mul = v->std_scale, .n = cells};
    enum rc rc;

    for (uint32_t c = 0; c < cells; c++) {
        uint32_t x0 = c % (m->grid_w / k) * k, y0 = c / (m->grid_w / k) * k;

        v->offsets[c] = n;
        for (uint32_t i = 0; i < k * k; i++)
            v->ids[n++] = (int32_t)((y0 + i / k) * m->grid_w + x0 + i % k);
    }
    v->offsets[cells] = n;
    if ((rc = be_gather(be, &g, err)) != RC_OK || (rc = be_pool(be, &p, err)) != RC_OK ||
        (rc = be_scale(be, &s, err)) != RC_OK)
        return rc;
    g4_show(&v->trace, "pooled_scaled", v->pooled, cells);
    if (v->standardize && (rc = be_affine(be, &a, err)) != RC_OK)
        return rc;
    g4_show(&v->trace, "out", v->pooled, cells);
    if ((rc = mdl_rms_norm(be, v->pooled, v->ones.w, NULL, v->pooled, cells, 1e-6f, err)) != RC_OK)
        return rc;
    return mdl_dense(be, v->pooled, v->proj, NULL, v->soft, cells, BE_EPI_NONE, err);
}

enum rc mdl_g4_vision_pass(struct mdl_g4_vision *v, struct be_ctx *be,
                           const struct mdl_media *media, float *soft, bool (*stop)(void *user),
                           void *user, struct rc_err *err)
{
    enum rc rc;

    if ((rc = check_media(v, media, err)) != RC_OK || (rc = embed(v, be, media, err)) != RC_OK)
        return rc;
    g4_show(&v->trace, "patch_embedder", v->x, media->n_rows);
    for (uint32_t i = 0; i < v->n_layers; i++) {
        if (stop && stop(user))
            return rc_fail(err, RC_CANCELLED, "stopped before layer %u of a picture", i);
        if ((rc = one_layer(v, be, &v->layer[i], media->n_rows, err)) != RC_OK)
            return rc;
        g4_show_layer(&v->trace, i, v->x, media->n_rows);
    }
    if ((rc = finish(v, be, media, err)) != RC_OK)
        return rc;
    g4_show(&v->trace, "projected", v->soft, media->n_tokens);
    return be_tensor_read(be, v->soft, 0, media->n_tokens, soft, err);
}
