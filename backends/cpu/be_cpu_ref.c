/* be_cpu_ref.c - every kernel in plain C: complete, never clever, the oracle of
 * the faster levels, and level "c" for processors without one.
 *
 * Long sums are in f64. Quantized products follow the contract that all levels
 * share bit for bit: integer sums per block, then one fma per block and term in
 * block order (be_cpu_refq.c). Tests: tests/backends/test_be_cpu_*.c
 */
#include "be_cpu_ref.h"

#include <math.h>
#include <string.h>

#include "be_cpu_pack.h"
#include "be_half.h"

static size_t pack_bytes(enum be_dtype t, uint64_t n_rows, uint64_t n_cols)
{
    return 0;
}

static void pack(const struct be_weight *w, size_t u0, size_t u1)
{
}

float be_cpu_ref_value(enum be_dtype t, const uint8_t *row, size_t i)
{
    float f;

    switch (t) {
    case BE_F16:
        return be_load_half(row + 2 * i);
    case BE_BF16:
        return be_bf16_to_f32(be_load_u16(row + 2 * i));
    default:
        memcpy(&f, row + 4 * i, sizeof(f));
        return f;
    }
}

static float dot_f32(const struct be_weight *w, const uint8_t *row, const float *x)
{
    double sum = 0;

    for (size_t k = 0; k < w->n_cols; k++)
        sum += (double)x[k] * be_cpu_ref_value(w->dtype, row, k);
    return (float)sum;
}

static void lin(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    for (uint32_t i = 0; i < nr; i++) {
        for (unsigned j = 0; j < nu * BE_CPU_UNIT; j++) {
            size_t row = u0 * BE_CPU_UNIT + j;
            const uint8_t *raw = w->raw + row * w->row_bytes;
            float *o = &out[i * ld + j];

            if (row >= w->n_rows)
                *o = 0;
            else if (be_dtype_block(w->dtype) == 1)
                *o = dot_f32(w, raw, a->x + (size_t)(r0 + i) * a->n_cols);
            else
                *o = be_cpu_ref_dot(w->dtype, raw, a, r0 + i);
        }
    }
}

static float gelu_erf(float z)
{
    return (float)(0.5 * z * (1 + erf(z / sqrt(2.0))));
}

float be_cpu_ref_gelu_tanh(float z)
{
    double x = z;

    return (float)(0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))));
}

static void epi(enum be_epi epi, const float *acc, const float *acc1, const float *bias, float *out,
                uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float z = bias ? acc[i] + bias[i] : acc[i];

        switch (epi) {
        case BE_EPI_NONE:
            out[i] = z;
            break;
        case BE_EPI_GELU_ERF:
            out[i] = gelu_erf(z);
            break;
        case BE_EPI_GELU_TANH:
            out[i] = be_cpu_ref_gelu_tanh(z);
            break;
        case BE_EPI_ADD:
            out[i] += z;
            break;
        case BE_EPI_GEGLU:
            out[i] = be_cpu_ref_gelu_tanh(z) * acc1[i];
            break;
        }
    }
}

void be_cpu_ref_embed(const struct be_embed_args *a, uint32_t r0, uint32_t r1)
{
    const struct be_weight *t = a->table;
    uint32_t block = be_dtype_block(t->dtype), step = block > 1 ? block : 256;
    float v[256];

    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *src = t->raw + (size_t)a->ids[r] * t->row_bytes;
        float *out = a->out->data + (size_t)r * t->n_cols;

        for (size_t c = 0; c < t->n_cols; c += step) {
            uint32_t n = t->n_cols - c < step ? (uint32_t)(t->n_cols - c) : step;

            if (t->packed) /* a tied table: the file's pages are let go */
                be_cpu_unpack(t, (uint64_t)a->ids[r], c, n, v);
            else
                be_dtype_to_f32(t->dtype, src + c / block * be_dtype_block_bytes(t->dtype), v, n);
            for (uint32_t i = 0; i < n; i++)
                out[c + i] = a->accumulate ? out[c + i] + a->scale * v[i] : a->scale * v[i];
        }
    }
}

static float rms_factor(const float *x, uint32_t n, float eps)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return (float)(1 / sqrt(sum / n + eps));
}

static void rms_norm(const struct be_rms_norm_args *a, uint32_t r0, uint32_t r1)
{
    uint32_t n = a->x->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * n;
        const float *add = a->add ? a->add->data + (size_t)r * n : NULL;
        float *out = a->out->data + (size_t)r * n, f = rms_factor(x, n, a->eps);

        for (uint32_t i = 0; i < n; i++) {
            float y = x[i] * f * a->w->vec[i];

            out[i] = add ? add[i] + y : y;
        }
    }
}

static void layer_norm(const struct be_layer_norm_args *a, uint32_t r0, uint32_t r1)
{
    uint32_t n = a->x->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * n;
        const float *add = a->add ? a->add->data + (size_t)r * n : NULL;
        float *out = a->out->data + (size_t)r * n;
        double mean = 0, var = 0, f;

        for (uint32_t i = 0; i < n; i++) {
            out[i] = add ? x[i] + add[i] : x[i];
            mean += out[i];
        }
        mean /= n;
        for (uint32_t i = 0; i < n; i++)
            var += (out[i] - mean) * (out[i] - mean);
        f = 1 / sqrt(var / n + a->eps);
        for (uint32_t i = 0; i < n; i++) {
            float y = (float)((out[i] - mean) * f) * a->w->vec[i];

            out[i] = a->b ? y + a->b->vec[i] : y;
        }
    }
}

static void rope_head(const struct be_cpu_rope *a, float *x, float pos)
{
    uint32_t half = a->head_dim / 2;

    if (a->norm_w) {
        float f = rms_factor(x, a->head_dim, a->norm_eps);

        for (uint32_t i = 0; i < a->head_dim; i++)
            x[i] = x[i] * f * a->norm_w[i];
    }
    for (uint32_t i = 0; a->freq && i < half; i++) {
        float angle = pos * a->freq[i], c = cosf(angle), s = sinf(angle);
        float u = x[i], v = x[i + half];

        x[i] = u * c - v * s;
        x[i + half] = v * c + u * s;
    }
}

static void rope(const struct be_cpu_rope *a, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            rope_head(a, a->x + ((size_t)r * a->n_heads + h) * a->ld_head,
                      a->freq ? (float)a->pos[r] : 0);
}

static void softcap(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

static int32_t argmax(const float *x, uint32_t n)
{
    int32_t best = -1;

    for (uint32_t i = 0; i < n; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = (int32_t)i;
    return best < 0 ? 0 : best;
}

static float kv_value(enum be_dtype t, const uint8_t *p, size_t i)
{
    return be_cpu_ref_value(t, p, i);
}

static void key_value_at(const struct be_cpu_attn *a, uint32_t p, const uint8_t **k,
                         const uint8_t **v, size_t *step)
{
    size_t off = p * a->ld_kv + (size_t)a->kv_head * a->head_dim;

    if (a->kv) {
        be_cpu_kv_at(a, p, k, v);
        *step = a->kv->page_tokens;
        return;
    }
    *k = (const uint8_t *)(a->k + off);
    *v = (const uint8_t *)(a->v + off);
    *step = 1;
}

static double score(const struct be_cpu_attn *a, const float *q, uint32_t p)
{
    enum be_dtype t = a->kv ? a->kv->dtype : BE_F32;
    const uint8_t *k, *v;
    size_t step;
    double s = 0;

    key_value_at(a, p, &k, &v, &step);
    for (uint32_t d = 0; d < a->head_dim; d++)
        s += (double)q[d] * kv_value(t, k, d * step);
    return s * a->scale;
}

/* One query vector in two passes: largest score, then weights and values. */
static void attn_vec(const struct be_cpu_attn *a, uint32_t pos, const float *q, float *out,
                     double *acc)
{
    enum be_dtype t = a->kv ? a->kv->dtype : BE_F32;
    double max = -INFINITY, sum = 0;
    uint32_t lo, hi;

    be_cpu_attn_range(a, pos, &lo, &hi);
    for (uint32_t p = lo; p < hi; p++) {
        double s = score(a, q, p);

        max = s > max || isnan(s) ? s : max;
    }
    memset(acc, 0, a->head_dim * sizeof(*acc));
    for (uint32_t p = lo; p < hi; p++) {
        double w = exp(score(a, q, p) - max);
        const uint8_t *k, *v;
        size_t step;

        key_value_at(a, p, &k, &v, &step);
        sum += w;
        for (uint32_t d = 0; d < a->head_dim; d++)
            acc[d] += w * kv_value(t, v, d);
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        out[d] = (float)(acc[d] / sum);
}

void be_cpu_ref_attn(const struct be_cpu_attn *a, void *scratch)
{
    for (uint32_t r = 0; r < a->n_rows; r++) {
        for (uint32_t h = 0; h < a->n_heads; h++) {
            size_t at = (size_t)(a->row0 + r) * a->ld + (size_t)(a->head0 + h) * a->head_dim;

            attn_vec(a, a->pos0 + r, a->q + at, a->out + at, scratch);
        }
    }
}

const struct be_cpu_kern be_cpu_kern_c = {
    .name = "c",
    .pack_bytes = pack_bytes,
    .pack = pack,
    .quant_q8_0 = be_cpu_ref_quant_q8_0,
    .quant_q8_k = be_cpu_ref_quant_q8_k,
    .lin = lin,
    .lin_units = 1,
    .epi = epi,
    .embed = be_cpu_ref_embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rope = rope,
    .softcap = softcap,
    .argmax = argmax,
    .act = be_cpu_ref_act,
    .glu = be_cpu_ref_glu,
    .attn_local = be_cpu_ref_attn_local,
    .spans = be_spans_rows,
    .attn = be_cpu_ref_attn,
    .attn_rel = be_cpu_ref_attn_rel,
};
