/* be_cpu_unfold.c - windows of a picture as rows (im2col); moves values, computes none.
 *
 * Sizes come from files and sounds: every product is checked before a row is written.
 * Tests: tests/backends/test_be_cpu_tower.c
 */
#include "be_cpu.h"

#include <string.h>

struct job {
    const struct be_unfold_args *a;
    uint32_t n_x; /* windows of one line */
};

/* Values of one pixel: column x (may lie outside) of line y (inside), or zeros. */
static const float *pixel(const struct be_unfold_args *a, int64_t y, int64_t x)
{
    if (y < 0 || y >= a->height || x < 0 || x >= a->width)
        return NULL;
    return a->x->data + (((uint64_t)y - a->x_line) * a->width + (uint64_t)x) * a->n_ch;
}

static void window(const struct be_unfold_args *a, uint64_t line, uint32_t i, float *out)
{
    int64_t y0 = (int64_t)(line * a->stride_h) - a->pad_h;
    int64_t x0 = (int64_t)i * a->stride_w - a->pad_w;
    size_t area = (size_t)a->k_h * a->k_w;

    for (uint32_t ky = 0; ky < a->k_h; ky++) {
        for (uint32_t kx = 0; kx < a->k_w; kx++) {
            const float *p = pixel(a, y0 + ky, x0 + kx);
            size_t at = (size_t)ky * a->k_w + kx;

            if (!a->ch_first && p)
                memcpy(out + at * a->n_ch, p, a->n_ch * sizeof(float));
            else if (!a->ch_first)
                memset(out + at * a->n_ch, 0, a->n_ch * sizeof(float));
            else
                for (uint32_t c = 0; c < a->n_ch; c++)
                    out[c * area + at] = p ? p[c] : 0;
        }
    }
}

static void unfold_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    const struct be_unfold_args *a = j->a;

    for (size_t r = i0; r < i1; r++)
        window(a, (uint64_t)a->line + r / j->n_x, (uint32_t)(r % j->n_x),
               a->out->data + (a->out_row + r) * a->out->n_cols);
}

static enum rc check_lines(const struct be_unfold_args *a, struct rc_err *err)
{
    uint64_t have = (uint64_t)a->x->cap_rows * a->x->n_cols / ((uint64_t)a->width * a->n_ch);
    int64_t lo = (int64_t)a->line * a->stride_h - a->pad_h;
    int64_t hi = ((int64_t)a->line + a->n_lines - 1) * a->stride_h - a->pad_h + a->k_h;

    lo = lo < 0 ? 0 : lo;
    hi = hi > a->height ? a->height : hi;
    if (lo < hi && (lo < a->x_line || (uint64_t)hi - a->x_line > have))
        return rc_fail(err, RC_INVALID,
                       "unfold: windows touch lines %lld..%lld, x holds %llu from line %u",
                       (long long)lo, (long long)hi - 1, (unsigned long long)have, a->x_line);
    return RC_OK;
}

enum rc be_cpu_unfold(struct be_ctx *ctx, const struct be_unfold_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.a = a};
    const uint32_t limit = 1u << 20;
    uint64_t cols, rows, n_x;
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "unfold", "x", 0, 0, err)) != RC_OK)
        return rc;
    if (a->width < 1 || a->width > limit || a->n_ch < 1 || a->n_ch > limit || a->k_h < 1 ||
        a->k_h > limit || a->k_w < 1 || a->k_w > limit || a->stride_h < 1 || a->stride_w < 1 ||
        a->stride_h > limit || a->stride_w > limit || a->pad_h > limit || a->pad_w > limit ||
        (uint64_t)a->width + 2ull * a->pad_w < a->k_w || a->n_lines < 1)
        return rc_fail(
            err, RC_INVALID,
            "unfold: windows of %u x %u, strides %u and %u, margins %u and %u, over lines "
            "of %u pixels of %u values",
            a->k_h, a->k_w, a->stride_h, a->stride_w, a->pad_h, a->pad_w, a->width, a->n_ch);
    if (a->x->n_cols != a->n_ch && a->x->n_cols != (uint64_t)a->width * a->n_ch)
        return rc_fail(err, RC_INVALID, "unfold: x has %u columns, a pixel %u and a line %u pixels",
                       a->x->n_cols, a->n_ch, a->width);
    cols = (uint64_t)a->k_h * a->k_w; /* at most 2^40, so that the next product fits */
    cols *= a->n_ch;
    n_x = ((uint64_t)a->width + 2ull * a->pad_w - a->k_w) / a->stride_w + 1;
    rows = n_x * a->n_lines;
    if (cols > UINT32_MAX || rows > UINT32_MAX - a->out_row)
        return rc_fail(err, RC_INVALID, "unfold: %llu windows of %llu values",
                       (unsigned long long)rows, (unsigned long long)cols);
    if ((rc = be_cpu_check(a->out, "unfold", "out", a->out_row + (uint32_t)rows, (uint32_t)cols,
                           err)) != RC_OK ||
        (rc = check_lines(a, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "unfold: out is x");
    job.n_x = (uint32_t)n_x;
    be_cpu_pool_run(c->pool, (size_t)rows, be_cpu_grain_rows(cols), unfold_range, &job);
    return RC_OK;
}
