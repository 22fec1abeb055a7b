/* be_kref_tower.c - the CPU executor of the kernels of eyes and ears: the device's sums in the
 * device's order (be_ktower.h), written without regard to speed.
 *
 * run() takes the kernel's argument struct with host addresses. Tests:
 * tests/backends/test_be_ktower.c (against the CPU backend), and the device texts there and in
 * test_be_kconf_emu.c, test_be_kmetal.c
 */
#include "be_ktower.h"

#include "be_kref.h"
#include "be_kref_rows.h"
#include "kx_tower.h"

static enum rc act(const struct kx_act *a, struct rc_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)a->n * a->k; i++) {
        float y = kx_act1(a->kind, kx_act_get(a->x, a->x_t, i), a->lo, a->hi);

        y = a->add ? kx_act_get(a->add, a->add_t, i) + y : y;
        kx_act_put(a->out, a->out_t, i, y);
    }
    return RC_OK;
}

static enum rc glu(const struct kx_glu *a, struct rc_err *err)
{
    for (uint64_t r = 0; r < a->n; r++)
        for (uint32_t c = 0; c < a->k; c++) {
            float x = kx_act_get(a->x, a->x_t, r * 2 * a->k + c);
            float g = kx_act_get(a->x, a->x_t, (r * 2 + 1) * a->k + c);

            kx_act_put(a->out, a->out_t, r * a->k + c, kx_gate(x, g));
        }
    return RC_OK;
}

static enum rc affine(const struct kx_affine *a, struct rc_err *err)
{
    for (uint64_t r = 0; r < a->n; r++)
        for (uint32_t c = 0; c < a->k; c++) {
            float d = kx_act_get(a->x, a->x_t, r * a->k + c) - KX_AT(const float, a->sub)[c];

            kx_act_put(a->x, a->x_t, r * a->k + c, d * KX_AT(const float, a->mul)[c]);
        }
    return RC_OK;
}

/* Half a head, from element at on, by position pos. */
static void turn(const struct kx_rope2d *a, uint64_t at, int32_t pos)
{
    uint32_t pairs = a->head_dim / 4;

    for (uint32_t i = 0; i < pairs; i++) {
        double p = (float)pos;
        float u = kx_act_get(a->x, a->x_t, at + i), v = kx_act_get(a->x, a->x_t, at + pairs + i);
        float s, c;

        kx_sincos((float)(p * KX_AT(const double, a->freq)[i]), &s, &c);
        kx_act_put(a->x, a->x_t, at + i, kx_fma(u, c, -(v * s)));
        kx_act_put(a->x, a->x_t, at + pairs + i, kx_fma(v, c, u * s));
    }
}

static enum rc rope2d(const struct kx_rope2d *a, struct rc_err *err)
{
    if (a->head_dim % 4)
        return rc_fail(err, RC_INVALID, "rope2d: head_dim %u, expected a multiple of 4",
                       a->head_dim);
    for (uint64_t r = 0; r < a->n; r++)
        for (uint32_t h = 0; h < a->n_heads; h++) {
            uint64_t at = (r * a->n_heads + h) * a->head_dim;

            turn(a, at, KX_AT(const int32_t, a->pos_x)[r]);
            turn(a, at + a->head_dim / 2, KX_AT(const int32_t, a->pos_y)[r]);
        }
    return RC_OK;
}

/* Value (ky, kx, ch) of the window at corner (y0, x0); 0 outside. */
static float pixel(const struct kx_unfold *a, int64_t y, int64_t x, uint32_t ch)
{
    if (y < 0 || x < 0 || y >= a->height || x >= a->width)
        return 0;
    return kx_act_get(a->x, a->x_t,
                      (((uint64_t)y - a->x_line) * a->width + (uint64_t)x) * a->n_ch + ch);
}

static enum rc unfold(const struct kx_unfold *a, struct rc_err *err)
{
    uint32_t area = a->k_h * a->k_w;

    if (a->n_x == 0 || a->k != area * a->n_ch)
        return rc_fail(err, RC_INVALID, "unfold: %u values of %u x %u x %u, %u windows a line",
                       a->k, a->k_h, a->k_w, a->n_ch, a->n_x);
    for (uint32_t r = 0; r < a->n; r++) {
        int64_t y0 = ((int64_t)a->line + r / a->n_x) * a->stride_h - a->pad_h;
        int64_t x0 = (int64_t)(r % a->n_x) * a->stride_w - a->pad_w;

        for (uint32_t p = 0; p < area; p++)
            for (uint32_t ch = 0; ch < a->n_ch; ch++)
                kx_act_put(a->out, a->out_t,
                           (uint64_t)r * a->k + (a->ch_first ? ch * area + p : p * a->n_ch + ch),
                           pixel(a, y0 + p / a->k_w, x0 + p % a->k_w, ch));
    }
    return RC_OK;
}

static enum rc conv1d(const struct kx_conv1d *a, struct rc_err *err)
{
    for (uint64_t t = 0; t < a->n; t++)
        for (uint32_t c = 0; c < a->k; c++) {
            float s = 0;

            for (uint64_t j = 0; j < a->taps; j++)
                if (t + j + 1 >= a->taps)
                    s = kx_fma(KX_AT(const float, a->w)[(uint64_t)c * a->taps + j],
                               kx_act_get(a->x, a->x_t, (t + j + 1 - a->taps) * a->k + c), s);
            kx_act_put(a->out, a->out_t, t * a->k + c, s);
        }
    return RC_OK;
}

/* u . (the head at element at of p), u having its columns over 32 lanes. */
static float dot(const float *u, uint32_t n, kx_p p, kx_u t, uint64_t at)
{
    float lane[32] = {0};

    for (uint32_t i = 0; i < n; i++)
        lane[i % 32] = kx_fma(u[i], kx_act_get(p, t, at + i), lane[i % 32]);
    return be_krow_ref_lanes_sum(lane);
}

/* Head h of row t. */
static void local(const struct kx_attn_local *a, uint64_t t, uint32_t h)
{
    uint64_t wide = (uint64_t)a->n_heads * a->head_dim, at = (uint64_t)h * a->head_dim;
    uint32_t n = t + 1 < a->n_keys ? (uint32_t)t + 1 : a->n_keys;
    float u[KX_ROPE_HEAD], w[KX_LOCAL_KEYS], most = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < a->head_dim; i++)
        u[i] = kx_act_get(a->q, a->x_t, t * wide + at + i) * KX_AT(const float, a->q_scale)[i];
    for (uint32_t d = 0; d < n; d++) {
        float by_key = dot(u, a->head_dim, a->k, a->x_t, (t - d) * wide + at);
        float by_place = dot(u, a->head_dim, a->rel, a->rel_t, d * wide + at);

        w[d] = kx_local_score(by_key, by_place, a->k_scale, a->cap);
        most = kx_max(most, w[d]);
    }
    for (uint32_t d = 0; d < n; d++) {
        w[d] = kx_exp(w[d] - most);
        sum = sum + w[d];
    }
    for (uint32_t i = 0; i < a->head_dim; i++) {
        float o = 0;

        for (uint32_t d = 0; d < n; d++)
            o = kx_fma(w[d], kx_act_get(a->v, a->x_t, (t - d) * wide + at + i), o);
        kx_act_put(a->out, a->out_t, t * wide + at + i, kx_div(o, sum));
    }
}

static enum rc attn_local(const struct kx_attn_local *a, struct rc_err *err)
{
    if (a->head_dim > KX_ROPE_HEAD || a->n_keys < 1 || a->n_keys > KX_LOCAL_KEYS)
        return rc_fail(err, RC_INVALID,
                       "attn_local: heads of %u, %u keys; expected up to %u, and 1 to %u",
                       a->head_dim, a->n_keys, KX_ROPE_HEAD, KX_LOCAL_KEYS);
    for (uint64_t t = 0; t < a->n; t++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            local(a, t, h);
    return RC_OK;
}

enum rc be_ktower_run(const struct be_kir *k, const void *args, struct rc_err *err)
{
    switch (be_ktower_of(k->name)) {
#define X(id, name, op, type) \
    case BE_KTOWER_##id:      \
        return name(args, err);
        BE_KTOWER_MAP(X)
#undef X
    case BE_KTOWER_COUNT:
        break;
    }
    return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family tower", k->name);
}
