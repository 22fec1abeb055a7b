/* be_kref_linear.c - the linear family run on the CPU from its IR: the oracle of its kernels.
 *
 * Walks the tree once per output element. Arithmetic is that of docs/kernels.md to the
 * bit: exact integers per block, one fma (two with a minimum) into slice b % 8, the fold of
 * be_kargs.h. Slow on purpose: what it does can be read off. Half and tf32 products of tensor
 * cores are summed here in ascending columns by fma in f32, which differs in the last bits.
 * Tests: tests/backends/test_be_klinear.c
 */
#include "be_klinear.h"

#include <stdlib.h>

#include "be_kref.h"
#include "be_kref_rows.h"

#define N_VALUES 16

struct block {
    int q[256];     /* codes, zero point taken off where there is one */
    int sc[16];     /* 256-value types: scale of each 16 columns */
    int mn[8];      /* and the minimum of each 32 */
    float d, m;     /* scale and minimum */
    float f[8];     /* float types: a chunk */
    const void *xq; /* as activation: the block's place */
};
struct value {
    struct block b;
    float slice[KX_SLICES], f;
};
struct walk {
    const struct be_kir *k;
    const struct kx_linear *a;
    const struct be_klin_fmt *f;
    struct be_klayout lay;
    uint32_t row, part, col, step; /* step: block number of the enclosing loop */
    struct value v[N_VALUES];
};

static uint32_t block_cols(const struct be_klin_fmt *f)
{
    return f->cls == BE_KLC_FLOAT ? KX_CHUNK : f->cls == BE_KLC_32 ? 32 : 256;
}

static const uint8_t *plane(const struct walk *w, uint32_t part, uint32_t i)
{
    return KX_AT(const uint8_t, w->a->w[part][i]) + (size_t)w->col * w->lay.row_bytes[i];
}

/* Codes of one sub-block: nibbles or bytes, and the high bits. */
static void codes(const struct be_klin_fmt *f, const uint8_t *q, const uint8_t *bits, int *out)
{
    for (unsigned v = 0; v < 32; v++) {
        uint32_t word = 0;

        if (f->code_bytes == 32) {
            out[v] = (int8_t)q[v];
            continue;
        }
        out[v] = v < 16 ? q[v] & 15 : q[v - 16] >> 4;
        if (f->bits_bytes == 4) {
            memcpy(&word, bits, 4);
            out[v] |= (int)(word >> (8 * (v % 4) + v / 4) & 1) << 4;
        } else if (f->bits_bytes == 8) {
            memcpy(&word, bits + 4 * (v / 16), 4);
            out[v] |= (int)(word >> (8 * (v % 4) + 2 * (v % 16 / 4)) & 3) << 4;
        }
        out[v] -= (int)f->zero;
    }
}

static void load_float(const struct walk *w, const uint8_t *p, struct block *b)
{
    for (uint32_t i = 0; i < KX_CHUNK; i++) {
        uint32_t c = w->step * KX_CHUNK + i;

        if (c >= w->a->k) /* columns past the end count as zeros */
            b->f[i] = 0;
        else if (w->f->dtype == BE_F32)
            memcpy(&b->f[i], p + 4 * (size_t)c, 4);
        else if (w->f->dtype == BE_F16)
            b->f[i] = kx_h2f(be_load_u16(p + 2 * (size_t)c));
        else
            b->f[i] = kx_bf2f(be_load_u16(p + 2 * (size_t)c));
    }
}

static void load_block(const struct walk *w, uint32_t part, struct block *b)
{
    const struct be_klin_fmt *f = w->f;
    const uint8_t *p = plane(w, part, 0), *d, *bits = NULL;
    uint32_t n_sub = f->cls == BE_KLC_256 ? 8 : 1, sub = w->step * n_sub;

    if (f->cls == BE_KLC_FLOAT) {
        load_float(w, p, b);
        return;
    }
    if (f->bits_bytes)
        bits = plane(w, part, f->cls == BE_KLC_256 ? 3 : 2) + (size_t)sub * f->bits_bytes;
    for (uint32_t j = 0; j < n_sub; j++)
        codes(f, p + (size_t)(sub + j) * f->code_bytes, bits ? bits + j * f->bits_bytes : NULL,
              b->q + 32 * j);
    d = plane(w, part, 1) + (size_t)w->step * (f->min ? 4 : 2);
    b->d = kx_h2f(be_load_u16(d));
    b->m = f->min ? kx_h2f(be_load_u16(d + 2)) : 0;
    if (f->cls == BE_KLC_256) {
        const uint8_t *s = plane(w, part, 2) + (size_t)w->step * 16;

        for (unsigned j = 0; j < 16; j++)
            b->sc[j] = f->min ? s[j / 2 * 2] : (int8_t)s[j];
        for (unsigned j = 0; j < 8; j++)
            b->mn[j] = f->min ? s[2 * j + 1] : 0;
    }
}

/* The activation block of this step: codes, scale, sums; or a chunk of floats. */
static void load_act(const struct walk *w, struct block *b)
{
    const struct kx_linear *a = w->a;
    uint32_t bc = block_cols(w->f);

    if (w->f->cls == BE_KLC_FLOAT) {
        for (uint32_t i = 0; i < KX_CHUNK; i++) {
            uint32_t c = w->step * KX_CHUNK + i;

            b->f[i] = c < a->k ? kx_act_get(a->x, a->x_t, (uint64_t)w->row * a->k + c) : 0;
        }
        return;
    }
    b->xq = KX_AT(const int8_t, a->xq) + (size_t)w->row * a->k + (size_t)w->step * bc;
    for (uint32_t i = 0; i < bc; i++)
        b->q[i] = ((const int8_t *)b->xq)[i];
    b->d = KX_AT(const float, a->xd)[(size_t)w->row * (a->k / bc) + w->step];
    for (uint32_t j = 0; j < bc / 32; j++)
        b->mn[j] =
            KX_AT(const int32_t, a->xs)[(size_t)w->row * (a->k / 32) + w->step * (bc / 32) + j];
}

static float step_int(const struct be_klin_fmt *f, const struct block *w, const struct block *x,
                      float acc)
{
    int sum = 0, min = 0;

    if (f->cls == BE_KLC_32) {
        for (unsigned i = 0; i < 32; i++)
            sum += w->q[i] * x->q[i];
        acc = kx_fma(w->d * x->d, kx_i2f(sum), acc);
        return f->min ? kx_fma(w->m * x->d, kx_i2f(x->mn[0]), acc) : acc;
    }
    for (unsigned j = 0; j < 16; j++) {
        int part = 0;

        for (unsigned i = 0; i < 16; i++)
            part += w->q[16 * j + i] * x->q[16 * j + i];
        sum += w->sc[j] * part;
    }
    acc = kx_fma(w->d * x->d, kx_i2f(sum), acc);
    if (!f->min)
        return acc;
    for (unsigned j = 0; j < 8; j++)
        min += w->mn[j] * x->mn[j];
    return kx_fma(-(w->m * x->d), kx_i2f(min), acc);
}

static void multiply(struct walk *w, const struct be_knode *n)
{
    const struct block *wb = &w->v[n->a].b, *xb = &w->v[n->b].b;
    /* tensor cores sum halves and tf32 in one order, without slices */
    float *acc = &w->v[n->dst].slice[w->k->sched.slices == KX_SLICES ? w->step % KX_SLICES : 0];

    if (w->f->cls != BE_KLC_FLOAT) {
        *acc = step_int(w->f, wb, xb, *acc);
        return;
    }
    for (unsigned i = 0; i < KX_CHUNK; i++)
        *acc = n->kind == BE_KN_MMA && n->imm == BE_KM_TF32_1688
                   ? kx_fma(kx_tf32(wb->f[i]), kx_tf32(xb->f[i]), *acc)
                   : kx_fma(wb->f[i], xb->f[i], *acc);
}

static float function(uint32_t epi, float v)
{
    return epi == KX_EPI_GELU_ERF ? kx_gelu_erf(v) : epi == KX_EPI_GELU_TANH ? kx_gelu_tanh(v) : v;
}

static enum rc node(struct walk *w, const struct be_knode *n, struct rc_err *err)
{
    const struct kx_linear *a = w->a;
    uint32_t part = w->part + n->imm2;
    uint64_t at = (uint64_t)w->row * a->n_out[w->part] + w->col;
    struct value *d = &w->v[n->dst];

    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        load_act(w, &d->b);
        return RC_OK;
    case BE_KN_LOAD_BLOCK:
        load_block(w, part, &d->b);
        return RC_OK;
    case BE_KN_FMA:
    case BE_KN_DP4A:
    case BE_KN_MMA:
        multiply(w, n);
        return RC_OK;
    case BE_KN_BARRIER:
        return RC_OK;
    case BE_KN_REDUCE:
        d->f = kx_fold(w->v[n->a].slice);
        return RC_OK;
    case BE_KN_BIAS:
        d->f = w->v[n->a].f;
        if (a->b[part])
            d->f = d->f + KX_AT(const float, a->b[part])[w->col];
        return RC_OK;
    case BE_KN_ACT:
        d->f = function(n->imm == 0xff ? a->epi : n->imm, w->v[n->a].f);
        return RC_OK;
    case BE_KN_MUL:
        d->f = w->v[n->a].f * w->v[n->b].f;
        return RC_OK;
    case BE_KN_ADD_RES:
        d->f = w->v[n->a].f;
        if (a->epi == KX_EPI_ADD)
            d->f = kx_act_get(a->out[w->part], a->out_t, at) + d->f;
        return RC_OK;
    case BE_KN_STORE:
        kx_act_put(a->out[w->part], a->out_t, at, w->v[n->a].f);
        if (a->mul)
            kx_act_put(a->out[w->part], a->out_t, at,
                       kx_act_get(a->out[w->part], a->out_t, at) *
                           (a->mul_scale * kx_act_get(a->mul, a->mul_t, w->col)));
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "kernel '%s': the linear executor knows no %s", w->k->name,
                       be_knode_name(n->kind));
    }
}

static uint32_t end_of(const struct be_kir *k, uint32_t i)
{
    uint32_t j = i + 1;

    while (j < k->n_nodes && k->node[j].depth > k->node[i].depth)
        j++;
    return j;
}

static enum rc element(struct walk *w, struct rc_err *err)
{
    const struct be_kir *k = w->k;
    uint32_t bc = block_cols(w->f), n_steps = (w->a->k + bc - 1) / bc;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < N_VALUES; i++)
        memset(w->v[i].slice, 0, sizeof(w->v[i].slice));
    for (uint32_t i = 1; i < k->n_nodes && rc == RC_OK; i++) {
        uint32_t end = end_of(k, i);

        if (k->node[i].kind != BE_KN_LOOP) {
            rc = node(w, &k->node[i], err);
            continue;
        }
        for (w->step = 0; w->step < n_steps && rc == RC_OK; w->step++)
            for (uint32_t j = i + 1; j < end && rc == RC_OK; j++)
                rc = node(w, &k->node[j], err);
        i = end - 1;
    }
    return rc;
}

static enum rc check(const struct walk *w, bool geglu, struct rc_err *err)
{
    const struct kx_linear *a = w->a;

    if (a->n_parts < 1 || a->n_parts > 3 || (geglu && a->n_parts != 2))
        return rc_fail(err, RC_INVALID, "kernel '%s': %u parts", w->k->name, a->n_parts);
    if (geglu != (a->epi == KX_EPI_GEGLU))
        return rc_fail(err, RC_INVALID, "kernel '%s': epilogue %u", w->k->name, a->epi);
    if (a->mul && (a->n != 1 || a->n_parts != 1))
        return rc_fail(err, RC_INVALID, "kernel '%s': mul with %u rows and %u parts", w->k->name,
                       a->n, a->n_parts);
    for (uint32_t i = 0; i < w->k->n_nodes; i++)
        if (w->k->node[i].dst >= N_VALUES)
            return rc_fail(err, RC_INTERNAL, "kernel '%s': value %u, the executor has %u",
                           w->k->name, w->k->node[i].dst, N_VALUES);
    return RC_OK;
}

/* The int8 form of the one row of x, where the caller gives none; *mem is the caller's. */
static enum rc own_codes(struct kx_linear *a, const struct be_klin_fmt *f, void **mem,
                         struct rc_err *err)
{
    float *row;

    if (f->cls == BE_KLC_FLOAT || a->xq)
        return RC_OK;
    if (a->n != 1)
        return rc_fail(err, RC_INVALID, "%u rows of x without their int8 form", a->n);
    if (!(row = *mem = malloc((size_t)a->k * 4 * sizeof(*row))))
        return rc_fail(err, RC_NOMEM, "linear: no memory for a row of %u", a->k);
    for (uint32_t c = 0; c < a->k; c++)
        row[c] = kx_act_get(a->x, a->x_t, c);
    a->xd = (kx_p)(uintptr_t)(row + a->k);
    a->xs = (kx_p)(uintptr_t)(row + 2 * (size_t)a->k);
    a->xq = (kx_p)(uintptr_t)(row + 3 * (size_t)a->k);
    be_krow_ref_quant(row, f->cls == BE_KLC_256 ? KX_ENC_Q8_K : KX_ENC_Q8_0, a->xq, a->xd, a->xs, 0,
                      a->k);
    return RC_OK;
}

enum rc be_klin_run(const struct be_kir *k, const void *args, struct rc_err *err)
{
    struct kx_linear own;
    struct be_klin_plan p;
    struct walk *w = NULL;
    void *codes = NULL;
    enum rc rc;

    if ((rc = be_klin_plan_get(k, &p, err)) != RC_OK)
        return rc;
    if (p.kind == BE_KLK_REPACK)
        return be_klin_repack(p.f, args, err);
    if (!(w = calloc(1, sizeof(*w))))
        return rc_fail(err, RC_NOMEM, "kernel '%s': out of memory", k->name);
    w->k = k;
    memcpy(&own, args, sizeof(own));
    w->a = &own;
    w->f = p.f;
    if (!be_klayout_get(p.f->dtype, w->a->k, &w->lay))
        rc = rc_fail(err, RC_INVALID, "kernel '%s': no layout for %u columns", k->name, w->a->k);
    else
        rc = check(w, p.geglu, err);
    if (rc == RC_OK)
        rc = own_codes(&own, p.f, &codes, err);
    for (w->part = 0; rc == RC_OK && w->part < (p.geglu ? 1 : w->a->n_parts); w->part++)
        for (w->col = 0; rc == RC_OK && w->col < w->a->n_out[w->part]; w->col++)
            for (w->row = 0; rc == RC_OK && w->row < w->a->n; w->row++)
                rc = element(w, err);
    free(codes);
    free(w);
    return rc;
}
