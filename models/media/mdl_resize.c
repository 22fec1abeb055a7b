/* mdl_resize.c - bicubic resizing, byte for byte as Pillow does it.
 *
 * Two passes in fixed point with 22 bits behind the point, each rounded to bytes; that rounding in
 * between is why the order matters: across first, but down first for a picture that is more than
 * 100 times as high as wide and gets lower (Pillow's own rule up to 12; 13 weighs anew). Rows are
 * made only when the pass down asks for them and kept in a ring as tall as its filter, so that
 * memory does not grow with the picture's height. Knows no model. Tests:
 * tests/models/test_mdl_media.c, fuzz_media_prep.c
 */
#include "mdl_resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22
#define SUPPORT 2.0 /* of the filter at scale 1 */

/* What one output row or column reads: inputs first .. first + n - 1. */
struct span {
    uint32_t first, n;
};

/* One axis. taps NULL: the size stays and values are copied. */
struct axis {
    uint32_t n_in, n_out, most; /* most inputs of one span */
    struct span *span;          /* [n_out] */
    int32_t *taps;              /* [n_out, most] */
};

static double bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void make_taps(struct axis *x, uint32_t i, double *w)
{
    double scale = (double)x->n_in / x->n_out, f = scale < 1 ? 1 : scale, sum = 0;
    double center = (i + 0.5) * scale, support = SUPPORT * f, lo = center - support + 0.5,
           hi = center + support + 0.5;
    uint32_t first = lo > 0 ? (uint32_t)lo : 0;
    uint32_t end = hi < x->n_in ? (uint32_t)hi : x->n_in;
    int32_t *taps = x->taps + (size_t)i * x->most;

    x->span[i] = (struct span){.first = first, .n = end - first};
    for (uint32_t k = 0; k < end - first; k++) {
        w[k] = bicubic((k + first - center + 0.5) * (1 / f));
        sum += w[k];
    }
    for (uint32_t k = 0; k < end - first; k++) {
        double v = sum != 0 ? w[k] / sum : w[k];

        taps[k] = (int32_t)(v * (1 << BITS) + (v < 0 ? -0.5 : 0.5));
    }
}

static void axis_deinit(struct axis *x)
{
    free(x->span);
    free(x->taps);
}

static enum rc axis_init(struct axis *x, uint32_t n_in, uint32_t n_out, struct rc_err *err)
{
    double scale = (double)n_in / n_out, *w = NULL;

    *x = (struct axis){.n_in = n_in, .n_out = n_out, .most = 1};
    if (n_in != n_out) /* sides are at most 2^20: no product below overflows 64 bits */
        x->most = (uint32_t)ceil(SUPPORT * (scale < 1 ? 1 : scale)) * 2 + 1;
    x->span = malloc(n_out * sizeof(*x->span));
    if (n_in != n_out) {
        x->taps = calloc((size_t)n_out * x->most, sizeof(*x->taps));
        w = malloc(x->most * sizeof(*w));
    }
    if (!x->span || (n_in != n_out && (!x->taps || !w))) {
        free(w);
        return rc_fail(err, RC_NOMEM, "resize: no memory for %u filters of %u values", n_out,
                       x->most);
    }
    for (uint32_t i = 0; i < n_out; i++) {
        if (w)
            make_taps(x, i, w);
        else
            x->span[i] = (struct span){.first = i, .n = 1};
    }
    free(w);
    return RC_OK;
}

static uint8_t clip(int64_t sum)
{
    sum >>= BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* One input row, resized across to RGB. */
static void across(const struct axis *x, const uint8_t *in, uint32_t n_channels, uint8_t *out)
{
    for (uint32_t i = 0; i < x->n_out; i++, out += 3) {
        const uint8_t *p = in + (size_t)x->span[i].first * n_channels;
        const int32_t *t = x->taps ? x->taps + (size_t)i * x->most : NULL;
        int64_t r = 1 << (BITS - 1), g = r, b = r;

        if (!t) {
            memcpy(out, p, 3);
            continue;
        }
        for (uint32_t k = 0; k < x->span[i].n; k++, p += n_channels) {
            r += (int64_t)p[0] * t[k];
            g += (int64_t)p[1] * t[k];
            b += (int64_t)p[2] * t[k];
        }
        out[0] = clip(r);
        out[1] = clip(g);
        out[2] = clip(b);
    }
}

/* Output row i from rows of the ring; n bytes. sums [n]. */
static void down(const struct axis *y, uint32_t i, const uint8_t *ring, size_t n, int32_t *sums,
                 uint8_t *out)
{
    const struct span *s = &y->span[i];
    const int32_t *t = y->taps ? y->taps + (size_t)i * y->most : NULL;

    if (!t) {
        memcpy(out, ring + (size_t)(s->first % y->most) * n, n);
        return;
    }
    /* a filter's values sum to 1 and their sizes to less than 2: 2^31 is never reached */
    for (size_t c = 0; c < n; c++)
        sums[c] = 1 << (BITS - 1);
    for (uint32_t k = 0; k < s->n; k++) {
        const uint8_t *row = ring + (size_t)((s->first + k) % y->most) * n;
        int32_t w = t[k];

        for (size_t c = 0; c < n; c++)
            sums[c] += row[c] * w;
    }
    for (size_t c = 0; c < n; c++)
        out[c] = clip(sums[c]);
}

static enum rc check(const struct mdl_image *img, uint32_t out_w, uint32_t out_h,
                     struct rc_err *err)
{
    const uint32_t sides[4] = {img->width, img->height, out_w, out_h};

    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MDL_RESIZE_MAX_SIDE)
            return rc_fail(err, RC_INVALID,
                           "resize: a picture of %u x %u to %u x %u; sides are 1 to %u", img->width,
                           img->height, out_w, out_h, MDL_RESIZE_MAX_SIDE);
    if ((img->n_channels != 3 && img->n_channels != 4) ||
        img->stride < (size_t)img->width * img->n_channels)
        return rc_fail(err, RC_INVALID,
                       "resize: %u channels with rows of %zu bytes for %u pixels; expected 3 or 4 "
                       "channels in rows that hold them",
                       img->n_channels, img->stride, img->width);
    return RC_OK;
}

enum rc mdl_resize_bicubic(const struct mdl_image *img, uint32_t out_w, uint32_t out_h,
                           uint8_t *out, struct rc_err *err)
{
    struct axis x = {0}, y = {0}, same = {0};
    bool down_first;
    uint8_t *ring = NULL, *row = NULL;
    int32_t *sums = NULL;
    uint32_t next = 0; /* the first input row that is not in the ring yet */
    size_t n;          /* bytes of a row of the ring */
    enum rc rc;

    if ((rc = check(img, out_w, out_h, err)) != RC_OK)
        return rc;
    down_first = img->height > (uint64_t)img->width * 100 && out_h < img->height;
    n = (size_t)(down_first ? img->width : out_w) * 3;
    if ((rc = axis_init(&x, img->width, out_w, err)) != RC_OK ||
        (rc = axis_init(&y, img->height, out_h, err)) != RC_OK ||
        (rc = axis_init(&same, img->width, img->width, err)) != RC_OK)
        goto out;
    ring = malloc(n * y.most);
    row = malloc(n);
    sums = malloc(n * sizeof(*sums));
    if (!ring || !row || !sums) {
        rc = rc_fail(err, RC_NOMEM, "resize: no memory for %u rows of %zu bytes", y.most, n);
        goto out;
    }
    for (uint32_t i = 0; i < out_h; i++) {
        const struct span *s = &y.span[i];
        uint8_t *to = out + (size_t)i * out_w * 3;

        for (next = next < s->first ? s->first : next; next < s->first + s->n; next++)
            across(down_first ? &same : &x, img->pixels + next * img->stride, img->n_channels,
                   ring + (size_t)(next % y.most) * n);
        down(&y, i, ring, n, sums, down_first ? row : to);
        if (down_first)
            across(&x, row, 3, to);
    }
out:
    free(ring);
    free(row);
    free(sums);
    axis_deinit(&x);
    axis_deinit(&y);
    axis_deinit(&same);
    return rc;
}
