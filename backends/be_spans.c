/* be_spans.c - scores of spans on the host, for backends that have no kernel of their own.
 *
 * A sum runs over blocks of columns in order, in each over eight lanes: it depends on the columns
 * alone. Tests: tests/backends/test_be_cpu_spans.c
 */
#include "be_impl.h"

#include <math.h>
#include <string.h>

#define BLOCK 256 /* columns whose sums of a and b are kept */
#define LANES 8

/* max(a + b, 0) of n columns, and zeros up to whole lanes. */
static void hinge(const float *a, const float *b, uint32_t n, float *h)
{
    uint32_t c = 0;

    for (; c < n; c++) {
        float v = a[c] + b[c];

        h[c] = v < 0 ? 0 : v; /* NaN stays */
    }
    for (; c % LANES != 0; c++)
        h[c] = 0;
}

static float dot(const float *h, const float *g, uint32_t n)
{
    float lane[LANES] = {0};
    uint32_t c = 0;

    for (; c + LANES <= n; c += LANES)
        for (uint32_t l = 0; l < LANES; l++)
            lane[l] += h[c + l] * g[c + l];
    for (uint32_t l = 0; c + l < n; l++)
        lane[l] += h[c + l] * g[c + l];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void be_spans_rows(const struct be_spans_args *s, const float *a, const float *b, const float *g,
                   uint32_t i0, uint32_t i1)
{
    size_t plane = (size_t)s->n * s->width;
    float h[BLOCK];

    for (uint32_t i = i0; i < i1; i++)
        for (uint32_t k = 0; k < s->width; k++) {
            float *out = s->out + (size_t)i * s->width + k;

            for (uint32_t q = 0; q < s->n_g; q++)
                out[q * plane] = i + k < s->n ? 0 : -INFINITY;
            for (uint32_t c = 0; i + k < s->n && c < s->n_cols; c += BLOCK) {
                uint32_t n = s->n_cols - c < BLOCK ? s->n_cols - c : BLOCK;

                hinge(a + (size_t)i * s->n_cols + c, b + (size_t)(i + k) * s->n_cols + c, n, h);
                for (uint32_t q = 0; q < s->n_g; q++)
                    out[q * plane] += dot(h, g + (size_t)q * s->n_cols + c, n);
            }
        }
}

static enum rc rows(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row, uint32_t n,
                    uint32_t n_cols, float *room, const float **out, struct rc_err *err)
{
    const float *view = be_tensor_view(ctx, t);

    *out = view != NULL ? view + (size_t)row * n_cols : room;
    return view != NULL ? RC_OK : be_tensor_read(ctx, t, row, n, room, err);
}

enum rc be_spans(struct be_ctx *ctx, const struct be_spans_args *s, struct rc_err *err)
{
    size_t words = (size_t)s->n * s->n_cols;
    const float *a, *b, *g;
    enum rc rc;

    if (s->width == 0 || s->n_cols == 0)
        return rc_fail(err, RC_INVALID, "spans: width %u, %u columns", s->width, s->n_cols);
    if (s->n == 0 || s->n_g == 0)
        return RC_OK;
    if (ctx->ops->spans)
        return ctx->ops->spans(ctx, s, err);
    if ((rc = rows(ctx, s->a, s->row, s->n, s->n_cols, s->scratch, &a, err)) != RC_OK ||
        (rc = rows(ctx, s->b, s->row, s->n, s->n_cols, s->scratch + words, &b, err)) != RC_OK ||
        (rc = rows(ctx, s->g, s->g_row, s->n_g, s->n_cols, s->scratch + 2 * words, &g, err)) !=
            RC_OK)
        return rc;
    be_spans_rows(s, a, b, g, 0, s->n);
    return RC_OK;
}
