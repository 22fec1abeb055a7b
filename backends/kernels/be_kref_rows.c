/* be_kref_rows.c - the CPU executor of the row kernels: the same sums in the same order
 * as the device (be_krows.h), written without regard to speed.
 *
 * run() takes the kernel's argument struct with host addresses. Tests:
 * tests/backends/test_be_krows.c (against f64), and the device text in the emulator
 */
#include "be_krows.h"

#include <float.h>
#include <stdlib.h>

#include "be_kref.h"
#include "be_kref_rows.h"

/* ---------------------------------------------------------------------- sums */

float be_krow_ref_lanes_sum(const float v[32])
{
    float a[32], b[32];

    memcpy(a, v, sizeof(a));
    for (unsigned m = 16; m; m /= 2) {
        for (unsigned i = 0; i < 32; i++)
            b[i] = a[i] + a[i ^ m];
        memcpy(a, b, sizeof(a));
    }
    return a[0];
}

/* Over the threads of a row's block; v[t] belongs to thread t. */
float be_krow_ref_block_sum(const float *v, uint32_t warps)
{
    float part[32] = {0};

    for (uint32_t w = 0; w < warps; w++)
        part[w] = be_krow_ref_lanes_sum(v + w * 32);
    return be_krow_ref_lanes_sum(part);
}

static float inv_rms(float sum, uint32_t k, float eps)
{
    return kx_div(1.0f, kx_sqrt(kx_div(sum, (float)k) + eps));
}

/* The thread that owns column c of a row. */
static uint32_t owner(uint32_t c, uint32_t warps)
{
    return c / 8 % (warps * 32);
}

/* ---------------------------------------------------------------------- int8 */

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= FLT_MAX))
            return false;
    return true;
}

void be_krow_ref_q8_0(const float *x, int8_t q[32], float *out_d, int32_t *out_s)
{
    float amax = 0, d, id;

    memset(q, 0, 32);
    *out_s = 0;
    if (!all_finite(x, 32)) {
        *out_d = kx_i2f_bits(0x7fc00000);
        return;
    }
    for (unsigned i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    d = amax / 127.0f;
    id = d != 0 ? 1.0f / d : 0;
    if (!(id <= FLT_MAX))
        id = 0;
    for (unsigned i = 0; i < 32; i++) {
        q[i] = (int8_t)roundf(x[i] * id);
        *out_s += q[i];
    }
    *out_d = kx_h2f(kx_f2h(d));
}

void be_krow_ref_q8_k(const float *x, int8_t q[256], float *out_d, int32_t out_s[8])
{
    float amax = 0, v = 0, is;

    memset(q, 0, 256);
    memset(out_s, 0, 8 * sizeof(*out_s));
    *out_d = 0;
    if (!all_finite(x, 256)) {
        *out_d = kx_i2f_bits(0x7fc00000);
        return;
    }
    for (unsigned i = 0; i < 256; i++) {
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            v = x[i];
        }
    }
    is = -127.0f / v;
    if (amax == 0 || !(fabsf(is) <= FLT_MAX))
        return;
    for (unsigned i = 0; i < 256; i++) {
        float r = rintf(is * x[i]);

        q[i] = (int8_t)(r > 127 ? 127 : r);
        out_s[i / 32] += q[i];
    }
    *out_d = 1 / is;
}

/* Row r of values x as int8. */
void be_krow_ref_quant(const float *x, uint32_t enc, kx_p xq, kx_p xd, kx_p xs, uint64_t r,
                       uint32_t k)
{
    int8_t *q = KX_AT(int8_t, xq) + r * k;
    int32_t *s = KX_AT(int32_t, xs) + r * (k / 32);
    float *d = KX_AT(float, xd) + r * (enc == KX_ENC_Q8_0 ? k / 32 : k / 256);

    if (enc == KX_ENC_Q8_0)
        for (uint32_t b = 0; b < k / 32; b++)
            be_krow_ref_q8_0(x + b * 32, q + b * 32, d + b, s + b);
    else
        for (uint32_t b = 0; b < k / 256; b++)
            be_krow_ref_q8_k(x + b * 256, q + b * 256, d + b, s + b * 8);
}

static enum rc quant(const struct kx_quant *a, float *row, struct rc_err *err)
{
    for (uint32_t r = 0; r < a->n; r++) {
        for (uint32_t c = 0; c < a->k; c++)
            row[c] = kx_act_get(a->x, a->x_t, (uint64_t)r * a->k + c);
        be_krow_ref_quant(row, a->enc, a->xq, a->xd, a->xs, r, a->k);
    }
    return RC_OK;
}

/* --------------------------------------------------------------------- norms */

/* 1 / sqrt(mean of squares + eps) of a row. */
static float row_rms(const float *row, uint32_t k, float eps)
{
    uint32_t warps = be_krow_warps(k);
    float sum[1024] = {0};

    for (uint32_t c = 0; c < k; c++)
        sum[owner(c, warps)] = kx_fma(row[c], row[c], sum[owner(c, warps)]);
    return inv_rms(be_krow_ref_block_sum(sum, warps), k, eps);
}

/* What a tensor of type t holds of v. */
static float as_held(float v, uint32_t t)
{
    return t == KX_F16 ? kx_h2f(kx_f2h(v)) : v;
}

static enum rc rms_norm(const struct kx_norm *a, float *row, struct rc_err *err)
{
    uint32_t k = a->k;

    if (a->w2 && k > KX_NORM_TWICE)
        return rc_fail(err, RC_INVALID, "kx_rms_norm: two norms of %u columns, at most %u", k,
                       KX_NORM_TWICE);
    for (uint32_t r = 0; r < a->n; r++) {
        uint64_t at = (uint64_t)r * k;
        float f;

        for (uint32_t c = 0; c < k; c++)
            row[c] = kx_act_get(a->x, a->x_t, at + c);
        f = row_rms(row, k, a->eps);
        for (uint32_t c = 0; c < k; c++) {
            row[c] = row[c] * f;
            row[c] = row[c] * KX_AT(const float, a->w)[c];
            if (a->add)
                row[c] = kx_act_get(a->add, a->add_t, at + c) + row[c];
            if (a->scale != 0)
                row[c] = as_held(row[c], a->out_t) * a->scale;
        }
        for (uint32_t c = 0; c < k; c++) {
            if (a->out)
                kx_act_put(a->out, a->out_t, at + c, row[c]);
            row[c] = as_held(row[c], a->out_t);
        }
        if (a->w2)
            f = row_rms(row, k, a->eps2);
        for (uint32_t c = 0; a->w2 && c < k; c++) {
            row[c] = row[c] * f;
            row[c] = row[c] * KX_AT(const float, a->w2)[c];
            if (a->out2)
                kx_act_put(a->out2, a->out2_t, at + c, row[c]);
            row[c] = as_held(row[c], a->out2_t);
        }
        if (a->xq)
            be_krow_ref_quant(row, a->enc, a->xq, a->xd, a->xs, r, k);
    }
    return RC_OK;
}

static enum rc layer_norm(const struct kx_norm *a, float *row, struct rc_err *err)
{
    uint32_t k = a->k, warps = be_krow_warps(k);

    for (uint32_t r = 0; r < a->n; r++) {
        float sum[1024] = {0}, dev[1024] = {0}, mean, f;
        uint64_t at = (uint64_t)r * k;

        for (uint32_t c = 0; c < k; c++) {
            row[c] = kx_act_get(a->x, a->x_t, at + c);
            if (a->add)
                row[c] = row[c] + kx_act_get(a->add, a->add_t, at + c);
            sum[owner(c, warps)] += row[c];
        }
        mean = kx_div(be_krow_ref_block_sum(sum, warps), (float)k);
        for (uint32_t c = 0; c < k; c++) {
            float t = row[c] - mean;

            dev[owner(c, warps)] = kx_fma(t, t, dev[owner(c, warps)]);
        }
        f = inv_rms(be_krow_ref_block_sum(dev, warps), k, a->eps);
        for (uint32_t c = 0; c < k; c++) {
            float y = (row[c] - mean) * f;

            y = y * KX_AT(const float, a->w)[c];
            y = y + (a->b ? KX_AT(const float, a->b)[c] : 0.0f);
            kx_act_put(a->out, a->out_t, at + c, y);
        }
    }
    return RC_OK;
}

/* ---------------------------------------------------------------------- rope */

/* One head at element at; cs, sn: the row's table, NULL = norm only. */
static void rope_head(const struct kx_rope *a, uint64_t at, const float *cs, const float *sn)
{
    uint32_t half = a->head_dim / 2;
    float x[KX_ROPE_HEAD], sum[32] = {0}, f;

    for (uint32_t i = 0; i < a->head_dim; i++)
        x[i] = kx_act_get(a->x, a->x_t, at + i);
    if (a->w) {
        for (uint32_t i = 0; i < half; i++) {
            sum[i % 32] = kx_fma(x[i], x[i], sum[i % 32]);
            sum[i % 32] = kx_fma(x[half + i], x[half + i], sum[i % 32]);
        }
        f = inv_rms(be_krow_ref_lanes_sum(sum), a->head_dim, a->eps);
        for (uint32_t i = 0; i < a->head_dim; i++)
            x[i] = x[i] * f * KX_AT(const float, a->w)[i];
    }
    for (uint32_t i = 0; cs && i < half; i++) {
        float u = x[i], v = x[half + i];

        x[i] = kx_fma(u, cs[i], -(v * sn[i]));
        x[half + i] = kx_fma(v, cs[i], u * sn[i]);
    }
    for (uint32_t i = 0; i < a->head_dim; i++)
        kx_act_put(a->x, a->x_t, at + i, x[i]);
}

static enum rc rope(const struct kx_rope *a, float *row, struct rc_err *err)
{
    float cs[KX_ROPE_HEAD / 2], sn[KX_ROPE_HEAD / 2];

    if (a->head_dim > KX_ROPE_HEAD || a->head_dim % 2)
        return rc_fail(err, RC_INVALID, "rope: head_dim %u, expected an even number up to %u",
                       a->head_dim, KX_ROPE_HEAD);
    for (uint32_t r = 0; r < a->n; r++) {
        for (uint32_t i = 0; a->freq && i < a->head_dim / 2; i++) {
            double p = (float)KX_AT(const int32_t, a->pos)[r];

            kx_sincos((float)(p * KX_AT(const double, a->freq)[i]), &sn[i], &cs[i]);
        }
        for (uint32_t h = 0; h < a->n_heads; h++)
            rope_head(a, ((uint64_t)r * a->n_heads + h) * a->head_dim, a->freq ? cs : NULL, sn);
    }
    return RC_OK;
}

/* ------------------------------------------------------------------- kv write */

/* One head of one row to its slot. */
static void kv_line(const struct kx_kv *kv, kx_p base, int32_t page, uint32_t slot, uint32_t h,
                    const float *x)
{
    uint8_t *p = KX_AT(uint8_t, base) + (uint64_t)(uint32_t)page * kv->page_stride;
    uint64_t line = (uint64_t)h * kv->page_tokens + slot, at = line * kv->head_dim;

    if (kv->dtype != BE_Q8_0) {
        for (uint32_t d = 0; d < kv->head_dim; d++)
            kx_act_put((kx_p)(uintptr_t)p, kv->dtype == BE_F16 ? KX_F16 : KX_F32, at + d, x[d]);
        return;
    }
    for (uint32_t b = 0; b < kv->head_dim / 32; b++) {
        int8_t q[32];
        float d;
        int32_t s;
        uint16_t h16;

        be_krow_ref_q8_0(x + b * 32, q, &d, &s);
        memcpy(p + at + b * 32, q, 32);
        h16 = kx_f2h(d);
        memcpy(p + kv->scales_at + (at / 32 + b) * 2, &h16, 2);
    }
}

static enum rc kv_write(const struct kx_kv_write *a, float *row, struct rc_err *err)
{
    const struct kx_kv *kv = &a->kv;
    uint32_t hd = kv->head_dim, width = hd * kv->n_kv_heads;

    if (kv->dtype == BE_Q8_0 && hd % 32)
        return rc_fail(err, RC_INVALID, "kv_write: q8_0 heads of %u, expected a multiple of 32",
                       hd);
    for (uint32_t r = 0; r < a->n; r++) {
        const struct kx_seq *s =
            &KX_AT(const struct kx_seq, a->seqs)[KX_AT(const uint32_t, a->row_seq)[r]];
        uint32_t p = s->pos0 + (r - s->row0);
        int32_t page = KX_AT(const int32_t, a->pages)[s->page0 + p / kv->page_tokens];

        for (unsigned vs = 0; page >= 0 && vs < 2; vs++) {
            for (uint32_t c = 0; c < width; c++)
                row[c] = kx_act_get(vs ? a->v : a->k, a->x_t, (uint64_t)r * width + c);
            for (uint32_t h = 0; h < kv->n_kv_heads; h++)
                kv_line(kv, vs ? kv->v : kv->k, page, p % kv->page_tokens, h, row + h * hd);
        }
    }
    return RC_OK;
}

static enum rc rope_kv(const struct kx_rope_kv *a, float *row, struct rc_err *err)
{
    enum rc rc;

    if ((rc = rope(&a->q, row, err)) != RC_OK || (rc = rope(&a->k, row, err)) != RC_OK ||
        (a->v.x && (rc = rope(&a->v, row, err)) != RC_OK))
        return rc;
    return kv_write(&a->w, row, err);
}

/* -------------------------------------------------- gather, convert, mul, pool */

static enum rc gather(const struct kx_gather *a, float *row, struct rc_err *err)
{
    for (uint32_t r = 0; r < a->n; r++) {
        uint64_t from = (uint64_t)(uint32_t)KX_AT(const int32_t, a->rows)[r] * a->k;

        for (uint32_t c = 0; c < a->k; c++)
            kx_act_put(a->out, a->t, (uint64_t)r * a->k + c, kx_act_get(a->x, a->t, from + c));
    }
    return RC_OK;
}

static enum rc convert(const struct kx_convert *a, float *row, struct rc_err *err)
{
    for (uint64_t i = 0; i < a->n; i++)
        kx_act_put(a->dst, a->to_t, i, kx_act_get(a->src, a->from_t, i));
    return RC_OK;
}

static enum rc mul(const struct kx_mul *a, float *row, struct rc_err *err)
{
    for (uint64_t i = 0; i < a->n; i++)
        kx_act_put(a->out, a->out_t, i, kx_act_get(a->x, a->x_t, i) * kx_act_get(a->y, a->y_t, i));
    return RC_OK;
}

/* Column c of rows r0 .. r1 - 1. */
static float pool_column(const struct kx_pool *a, uint32_t r0, uint32_t r1, uint32_t c)
{
    uint64_t n = r1 - r0;
    float s[KX_SLICES], first = kx_act_get(a->x, a->x_t, (uint64_t)r0 * a->k + c), y;

    if (a->kind == BE_POOL_CLS)
        return first;
    if (a->kind == BE_POOL_LAST)
        return kx_act_get(a->x, a->x_t, (uint64_t)(r1 - 1) * a->k + c);
    for (unsigned i = 0; i < KX_SLICES; i++)
        s[i] = a->kind == BE_POOL_MAX ? -INFINITY : 0;
    for (uint32_t r = r0; r < r1; r++) {
        float v = kx_act_get(a->x, a->x_t, (uint64_t)r * a->k + c);
        float *o = &s[(r - r0) % KX_SLICES];

        if (a->kind == BE_POOL_MAX)
            *o = v > *o ? v : *o;
        else
            *o = kx_fma(a->kind == BE_POOL_WEIGHTED ? (float)(r - r0 + 1) : 1.0f, v, *o);
    }
    if (a->kind == BE_POOL_MAX) {
        y = s[0];
        for (unsigned i = 1; i < KX_SLICES; i++)
            y = s[i] > y ? s[i] : y;
        return first == first ? y : first;
    }
    y = kx_fold(s);
    if (a->kind == BE_POOL_MEAN)
        return kx_div(y, (float)n);
    if (a->kind == BE_POOL_MEAN_SQRT)
        return kx_div(y, kx_sqrt((float)n));
    return kx_div(y, (float)(n * (n + 1) / 2));
}

static enum rc pool(const struct kx_pool *a, float *row, struct rc_err *err)
{
    const uint32_t *off = KX_AT(const uint32_t, a->off);

    for (uint32_t s = 0; s < a->n_seqs; s++)
        for (uint32_t c = 0; c < a->k; c++)
            kx_act_put(a->out, a->out_t, (uint64_t)s * a->k + c,
                       pool_column(a, off[s], off[s + 1], c));
    return RC_OK;
}

/* --------------------------------------------------------------------- arg-max */

static struct kx_best better(struct kx_best a, float v, int32_t i)
{
    return v > a.v || (v == a.v && i < a.i) ? (struct kx_best){v, i} : a;
}

static enum rc argmax_part(const struct kx_argmax *a, float *row, struct rc_err *err)
{
    if (a->parts == 0)
        return rc_fail(err, RC_INVALID, "argmax: 0 parts, expected 1 or more");
    for (uint32_t r = 0; r < a->n; r++) {
        struct kx_best *part = KX_AT(struct kx_best, a->part) + (uint64_t)r * a->parts;
        uint32_t span = be_krow_argmax_span(a->k, a->parts);

        for (uint32_t p = 0; p < a->parts; p++)
            part[p] = (struct kx_best){-INFINITY, INT32_MAX};
        for (uint32_t c = 0; c < a->k; c++)
            part[c / span] = better(part[c / span],
                                    kx_act_get(a->x, a->x_t, (uint64_t)r * a->k + c), (int32_t)c);
    }
    return RC_OK;
}

static enum rc argmax(const struct kx_argmax *a, float *row, struct rc_err *err)
{
    for (uint32_t r = 0; r < a->n; r++) {
        struct kx_best b = {-INFINITY, INT32_MAX};

        for (uint32_t p = 0; p < a->parts; p++) {
            struct kx_best o = KX_AT(const struct kx_best, a->part)[(uint64_t)r * a->parts + p];

            b = better(b, o.v, o.i);
        }
        KX_AT(int32_t, a->out)[r] = b.i == INT32_MAX ? 0 : b.i;
    }
    return RC_OK;
}

/* ------------------------------------------------------------ softcap, sampling */

static enum rc softcap(const struct kx_softcap *a, float *row, struct rc_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)a->n * a->k; i++)
        kx_act_put(a->x, a->t, i, a->cap * kx_tanh(kx_div(kx_act_get(a->x, a->t, i), a->cap)));
    return RC_OK;
}

static enum rc scale(const struct kx_scale *a, float *row, struct rc_err *err)
{
    for (uint64_t r = 0; r < a->n; r++)
        for (uint32_t c = 0; c < a->k; c++) {
            float y = a->y ? kx_act_get(a->y, a->y_t, r * a->y_k + a->y_col + c) : 1.0f;

            y = a->scale * y;
            kx_act_put(a->x, a->x_t, r * a->k + c, kx_act_get(a->x, a->x_t, r * a->k + c) * y);
        }
    return RC_OK;
}

static enum rc sample_part(const struct kx_sample *a, float *row, struct rc_err *err)
{
    return be_krow_ref_sample(a, true, err);
}

static enum rc sample(const struct kx_sample *a, float *row, struct rc_err *err)
{
    return be_krow_ref_sample(a, false, err);
}

/* ------------------------------------------------------------------------ run */

/* Columns of a row, for one row of scratch. */
static uint64_t columns(enum be_krow id, const void *args)
{
    const struct kx_rope_kv *rk = args;
    const struct kx_kv_write *w = id == BE_KROW_ROPE_KV ? &rk->w : args;

    switch (id) {
    case BE_KROW_QUANT:
        return ((const struct kx_quant *)args)->k;
    case BE_KROW_RMS_NORM:
    case BE_KROW_LAYER_NORM:
        return ((const struct kx_norm *)args)->k;
    case BE_KROW_KV_WRITE:
    case BE_KROW_ROPE_KV:
        return (uint64_t)w->kv.n_kv_heads * w->kv.head_dim;
    default:
        return 0;
    }
}

enum rc be_krow_run(const struct be_kir *k, const void *args, struct rc_err *err)
{
    enum be_krow id = be_krow_of(k->name);
    uint64_t n;
    float *row;
    enum rc rc = RC_INTERNAL;

    if (id == BE_KROW_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family rows", k->name);
    n = columns(id, args);
    if (n > 1u << 24)
        return rc_fail(err, RC_INVALID, "'%s': rows of %llu columns, expected at most 2^24",
                       k->name, (unsigned long long)n);
    if ((row = malloc((n + 1) * sizeof(*row))) == NULL)
        return rc_fail(err, RC_NOMEM, "'%s': a row of %llu columns", k->name,
                       (unsigned long long)n);
    switch (id) {
#define X(id_, name, lib, op, type, threads) \
    case BE_KROW_##id_:                      \
        rc = name(args, row, err);           \
        break;
        BE_KROW_MAP(X)
#undef X
    case BE_KROW_EMBED:
        rc = be_krow_ref_embed(k, args, err);
        break;
    case BE_KROW_COUNT:
        break;
    }
    free(row);
    return rc;
}
