/* be_cpu_linear.c - driver of be_linear: out = epi(x W^T + b), up to three parts.
 *
 * Rows are taken in chunks; a chunk is quantized once, for all parts, into one or
 * both int8 forms. Then each thread owns a fixed range of units (BE_CPU_UNIT
 * outputs) and walks them in panels that stay in its L2 cache while all rows of
 * the chunk pass: weights are read from memory once per chunk, and once per call
 * when the rows fit one.
 *
 * Always true: an output's arithmetic is kern->lin on its own row and weight row;
 * chunks, panels and threads only choose when.
 * Tests: tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu.h"

#include "be_cpu_blas.h"

/* Half of a small L2: a panel of weights, the rest for rows and outputs. */
#define PANEL_BYTES (192u * 1024u)
/* Multiply-adds a thread should have before another is woken: about 5 us. */
#define GRAIN_MACS 65536u
#define MAX_UNITS 4u
/* So few rows that MAX_UNITS units are taken at once. */
#define FEW_ROWS (BE_CPU_ROWS / MAX_UNITS)

struct job {
    const struct be_cpu_ctx *c;
    const struct be_linear_args *a;
    struct be_cpu_act act;
    uint32_t row0; /* of the chunk */
    size_t units[3];
};

static bool q8_0_type(enum be_dtype t)
{
    return be_dtype_block(t) == 32;
}

static bool q8_k_type(enum be_dtype t)
{
    return be_dtype_block(t) == 256;
}

static uint64_t align_up(uint64_t n)
{
    return (n + BE_CPU_ALIGN - 1) / BE_CPU_ALIGN * BE_CPU_ALIGN;
}

/* Bytes per array of one chunk: codes, scales, sums of each form. */
static uint64_t act_layout(uint32_t n, uint32_t n_cols, uint64_t off[6])
{
    uint64_t r = n < BE_CPU_CHUNK ? n : BE_CPU_CHUNK, at = 0;
    const uint64_t size[6] = {
        n_cols % 32 ? 0 : r * n_cols,
        n_cols % 32 ? 0 : r * (n_cols / 32) * sizeof(float),
        n_cols % 32 ? 0 : r * (n_cols / 32) * sizeof(int32_t),
        n_cols % 256 ? 0 : r * n_cols,
        n_cols % 256 ? 0 : r * (n_cols / 256) * sizeof(float),
        n_cols % 256 ? 0 : r * (n_cols / 256) * BE_CPU_BK * sizeof(int16_t),
    };

    for (int i = 0; i < 6; i++) {
        off[i] = at;
        at += align_up(size[i]);
    }
    return at;
}

uint64_t be_cpu_act_bytes(uint32_t n_rows, uint32_t n_cols)
{
    uint64_t off[6];

    return act_layout(n_rows, n_cols, off);
}

static void act_init(struct be_cpu_act *act, uint8_t *base, const float *x, uint32_t n,
                     uint32_t n_cols)
{
    uint64_t off[6];

    act_layout(n, n_cols, off);
    *act = (struct be_cpu_act){
        .x = x,
        .n = n,
        .n_cols = n_cols,
        .q0 = (int8_t *)(base + off[0]),
        .d0 = (float *)(void *)(base + off[1]),
        .s0 = (int32_t *)(void *)(base + off[2]),
        .qk = (int8_t *)(base + off[3]),
        .dk = (float *)(void *)(base + off[4]),
        .bk = (int16_t *)(void *)(base + off[5]),
    };
}

static void quant_q8_0_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct job *j = arg;

    j->c->kern->quant_q8_0(&j->act, (uint32_t)i0, (uint32_t)i1);
}

static void quant_q8_k_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct job *j = arg;

    j->c->kern->quant_q8_k(&j->act, (uint32_t)i0, (uint32_t)i1);
}

/* Outputs [u * UNIT, ...) of rows [r0, r0 + nr) of the chunk. */
static void store(const struct job *j, uint32_t part, size_t u, unsigned nu, uint32_t r0,
                  uint32_t nr, const float *buf, const float *buf1, size_t ld)
{
    const struct be_linear_args *a = j->a;
    struct be_tensor *out = a->part[part].out;
    uint32_t col = (uint32_t)u * BE_CPU_UNIT, n = nu * BE_CPU_UNIT;
    const float *bias = a->part[part].b ? a->part[part].b->vec + col : NULL;

    if (n > out->n_cols - col)
        n = out->n_cols - col;
    for (uint32_t i = 0; i < nr; i++)
        j->c->kern->epi(a->epi, buf + i * ld, buf1 ? buf1 + i * ld : NULL, bias,
                        out->data + (size_t)(j->row0 + r0 + i) * out->n_cols + col, n);
}

typedef void lin_fn(const struct be_weight *, const struct be_cpu_act *, size_t, unsigned, uint32_t,
                    uint32_t, float *, size_t);

static lin_fn *lin_of(const struct job *j, const struct be_weight *w)
{
    return j->c->openblas && w->dtype == BE_F32 ? be_cpu_blas_lin : j->c->kern->lin;
}

/* All rows of the chunk against units [u0, u1) of one part (both, for GEGLU). */
static void run_part(const struct job *j, uint32_t part, size_t u0, size_t u1)
{
    float buf[BE_CPU_ROWS * MAX_UNITS * BE_CPU_UNIT], buf1[BE_CPU_ROWS * MAX_UNITS * BE_CPU_UNIT];
    const struct be_weight *w = j->a->part[part].w, *w1 = NULL;
    size_t bytes = w->unit_bytes, panel;
    /* int8 rows: one tile stays in L1 while the panel passes from L2 */
    bool plain = be_dtype_block(w->dtype) == 1;
    uint32_t rows = plain ? BE_CPU_ROWS : BE_CPU_TILE;
    unsigned step = j->act.n <= FEW_ROWS ? MAX_UNITS : plain ? j->c->kern->lin_units : 1;

    if (j->a->epi == BE_EPI_GEGLU) {
        w1 = j->a->part[1].w;
        bytes += w1->unit_bytes;
    }
    panel = PANEL_BYTES / bytes / step * step;
    if (panel < MAX_UNITS)
        panel = step > 1 ? step : MAX_UNITS;
    for (size_t p0 = u0; p0 < u1; p0 += panel) {
        size_t p1 = p0 + panel < u1 ? p0 + panel : u1;

        for (uint32_t r = 0; r < j->act.n; r += rows) {
            uint32_t nr = j->act.n - r < rows ? j->act.n - r : rows;
            /* few rows: several units at a time keep enough sums in flight */
            unsigned max = nr <= FEW_ROWS ? MAX_UNITS : step;

            for (size_t u = p0; u < p1; u += max) {
                unsigned nu = p1 - u < max ? (unsigned)(p1 - u) : max;
                size_t ld = (size_t)nu * BE_CPU_UNIT;

                lin_of(j, w)(w, &j->act, u, nu, r, nr, buf, ld);
                if (w1)
                    lin_of(j, w1)(w1, &j->act, u, nu, r, nr, buf1, ld);
                store(j, part, u, nu, r, nr, buf, w1 ? buf1 : NULL, ld);
            }
        }
    }
}

/* The units of all parts, end to end, cut in one range per thread. */
static void units_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    uint32_t n_parts = j->a->epi == BE_EPI_GEGLU ? 1 : j->a->n_parts;
    size_t first = 0;

    for (uint32_t p = 0; p < n_parts; p++) {
        size_t lo = i0 > first ? i0 - first : 0, hi = i1 > first ? i1 - first : 0;

        if (hi > j->units[p])
            hi = j->units[p];
        if (lo < hi)
            run_part(j, p, lo, hi);
        first += j->units[p];
    }
}

static enum rc check(const struct be_linear_args *a, struct rc_err *err)
{
    enum rc rc;

    if (a->n_parts < 1 || a->n_parts > 3 || (unsigned)a->epi > BE_EPI_GEGLU ||
        (a->epi == BE_EPI_GEGLU && a->n_parts != 2))
        return rc_fail(err, RC_INVALID, "linear: %u parts with epilogue %d", a->n_parts,
                       (int)a->epi);
    if ((rc = be_cpu_check(a->x, "linear", "x", a->n, 0, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const struct be_weight *w = a->part[i].w;

        if (!w || !(w->use & BE_USE_LINEAR))
            return rc_fail(err, RC_INVALID, "linear: part %u has no matrix loaded for linear", i);
        if (w->n_cols != a->x->n_cols)
            return rc_fail_what(err, RC_INVALID, w->name,
                                "linear: '%s' is [%llu,%llu] but x has %u columns", w->name,
                                (unsigned long long)w->n_rows, (unsigned long long)w->n_cols,
                                a->x->n_cols);
        if (a->part[i].b &&
            (rc = be_cpu_check_vec(a->part[i].b, "linear", "bias", w->n_rows, err)) != RC_OK)
            return rc;
        if (a->epi == BE_EPI_GEGLU && (w->n_rows != a->part[0].w->n_rows || a->part[i].b))
            return rc_fail_what(err, RC_INVALID, w->name,
                                "linear: gated parts must have equal rows and no bias");
        if (a->epi == BE_EPI_GEGLU && i > 0)
            continue;
        if ((rc = be_cpu_check(a->part[i].out, "linear", "out", a->n, (uint32_t)w->n_rows, err)) !=
            RC_OK)
            return rc;
        if (a->part[i].out == a->x)
            return rc_fail(err, RC_INVALID, "linear: out is x");
    }
    return RC_OK;
}

enum rc be_cpu_linear(struct be_ctx *ctx, const struct be_linear_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.c = c, .a = a};
    bool q0 = false, qk = false;
    size_t units = 0, unit_macs;
    enum rc rc;

    c->ops++;
    if ((rc = check(a, err)) != RC_OK)
        return rc;
    if (be_cpu_act_bytes(a->n, a->x->n_cols) > c->act_bytes)
        return rc_fail(err, RC_INTERNAL, "linear: scratch for quantized rows is too small");
    for (uint32_t i = 0; i < a->n_parts; i++) {
        q0 |= q8_0_type(a->part[i].w->dtype);
        qk |= q8_k_type(a->part[i].w->dtype);
        job.units[i] = (size_t)(a->part[i].w->n_rows + BE_CPU_UNIT - 1) / BE_CPU_UNIT;
        if (i == 0 || a->epi != BE_EPI_GEGLU)
            units += job.units[i];
    }
    for (job.row0 = 0; job.row0 < a->n; job.row0 += BE_CPU_CHUNK) {
        uint32_t n = a->n - job.row0 < BE_CPU_CHUNK ? a->n - job.row0 : BE_CPU_CHUNK;
        size_t grain = GRAIN_MACS / 16 / a->x->n_cols + 1;

        act_init(&job.act, c->act, a->x->data + (size_t)job.row0 * a->x->n_cols, n, a->x->n_cols);
        if (q0)
            be_cpu_pool_run(c->pool, n, grain, quant_q8_0_range, &job);
        if (qk)
            be_cpu_pool_run(c->pool, n, grain, quant_q8_k_range, &job);
        unit_macs = (size_t)n * a->x->n_cols * BE_CPU_UNIT;
        be_cpu_pool_run(c->pool, units, GRAIN_MACS / unit_macs + 1, units_range, &job);
    }
    return RC_OK;
}
