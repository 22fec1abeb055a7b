/* be_kref_sample.c - the CPU executor of the two launches of sampling: the candidates,
 * sums and answers of the device, -1 included.
 *
 * What is drawn is defined by worker/wrk_sample.c: of a temperature's weights the top_k
 * largest (of equals the lower ids), of those the fewest whose mass reaches top_p, of those what is
 * not below min_p times the best; then the first, in order of ids, where the running sum
 * exceeds u times the whole. The device sees a row in pieces and of each piece a list of
 * its best, so it answers -1 where a list may have been too short. Sums: weights of a piece in f32
 * as be_krows.h says, everything else in f64 by doubling steps (scan).
 * Tests: tests/backends/test_be_krows_sample.c
 */
#include "be_kref_rows.h"

#include <float.h>
#include <stdlib.h>

#include "be_kref.h"

struct scratch {
    struct kx_best *s; /* [4096] */
    double *sum;       /* [1024] */
    float *w;          /* [1024] */
};

enum kind { LARGEST, TOP_K, TOP_P, ALL, HOST };

static enum kind kind_of(const struct kx_sample_row *r, uint32_t k)
{
    if (r->inv_temperature == 0.0f || r->top_k == 1)
        return LARGEST;
    if (r->top_k > 0 && r->top_k < k)
        return r->top_k <= KX_SAMPLE_TOP ? TOP_K : HOST;
    return r->top_p < 1.0f ? TOP_P : ALL;
}

static const struct kx_best none = {-INFINITY, INT32_MAX};

static bool before(struct kx_best a, struct kx_best b)
{
    return a.v > b.v || (a.v == b.v && a.i < b.i);
}

static int by_value(const void *a, const void *b)
{
    const struct kx_best *x = a, *y = b;

    return before(*x, *y) ? -1 : before(*y, *x) ? 1 : 0;
}

static int by_index(const void *a, const void *b)
{
    const struct kx_best *x = a, *y = b;

    return x->i < y->i ? -1 : x->i > y->i;
}

static float weight(float v, float max, float it)
{
    float d = v - max;

    return d == 0.0f ? 1.0f : kx_exp(d * it);
}

/* Running sums in the device's order. */
static void scan(double *a, uint32_t n)
{
    for (uint32_t d = 1; d < n; d *= 2)
        for (uint32_t t = n; t-- > d;)
            a[t] = a[t] + a[t - d];
}

/* First of n weights whose running sum exceeds u; n + the last that is not 0 when there is
 * none; -1 when all are 0. w: the weights; a: the same, then their running sums. */
static int32_t draw(double *a, const float *w, uint32_t n, double u, bool share)
{
    scan(a, n);
    if (share)
        u = u * a[n - 1];
    for (uint32_t i = 0; i < n; i++)
        if (w[i] > 0 && u < a[i])
            return (int32_t)i;
    for (uint32_t i = n; i-- > 0;)
        if (w[i] > 0)
            return (int32_t)(n + i);
    return -1;
}

static struct kx_piece *pieces_of(const struct kx_sample *a, uint32_t r)
{
    return KX_AT(struct kx_piece, a->scratch + r * a->scratch_row);
}

static struct kx_best *list_of(const struct kx_sample *a, uint32_t r, uint32_t piece)
{
    struct kx_best *l = (struct kx_best *)(void *)(pieces_of(a, r) + KX_SAMPLE_PIECES(a->k));

    return l + (uint64_t)piece * KX_SAMPLE_LIST(a->k);
}

static float logit(const struct kx_sample *a, uint32_t r, uint32_t c)
{
    return kx_act_get(a->x, a->x_t, (uint64_t)r * a->k + c);
}

static void piece(const struct kx_sample *a, uint32_t r, uint32_t p, struct kx_best *s)
{
    const struct kx_sample_row *set = &KX_AT(const struct kx_sample_row, a->rows)[r];
    uint32_t span = KX_SAMPLE_SPAN(a->k), lo = p * span, m = a->k - lo < span ? a->k - lo : span;
    enum kind kind = kind_of(set, a->k);
    struct kx_best best = none;
    float w[512] = {0};
    bool bad = false;

    for (uint32_t i = 0; i < span; i++) {
        s[i] = i < m ? (struct kx_best){logit(a, r, lo + i), (int32_t)(lo + i)} : none;
        bad = bad || (i < m && !(fabsf(s[i].v) <= FLT_MAX));
        best = before(s[i], best) ? s[i] : best;
    }
    for (uint32_t i = 0; (kind == TOP_P || kind == ALL) && i < m; i++)
        w[i % 512] += weight(s[i].v, best.v, set->inv_temperature);
    pieces_of(a, r)[p] =
        (struct kx_piece){best.v, best.i, bad ? 0 : be_krow_ref_block_sum(w, 16), bad};
    if (bad || (kind != TOP_K && kind != TOP_P))
        return;
    qsort(s, span, sizeof(*s), by_value);
    memcpy(list_of(a, r, p), s, KX_SAMPLE_LIST(a->k) * sizeof(*s));
}

/* From all of the row: the piece, then the column. */
static int32_t draw_all(const struct kx_sample *a, uint32_t r, const struct kx_sample_row *set,
                        float max, struct scratch *t)
{
    uint32_t n_pieces = KX_SAMPLE_PIECES(a->k), span = KX_SAMPLE_SPAN(a->k);
    float it = set->inv_temperature;
    int32_t p, best = -1;
    double u;

    for (uint32_t q = 0; q < n_pieces; q++) {
        struct kx_piece *h = &pieces_of(a, r)[q];
        float lane[32] = {0};

        for (uint32_t c = q * span; set->min_p > 0 && c < (q + 1) * span && c < a->k; c++) {
            float w = weight(logit(a, r, c), max, it);

            lane[c % 32] += w < set->min_p ? 0.0f : w;
        }
        t->sum[q] = set->min_p > 0 ? be_krow_ref_lanes_sum(lane) : h->sum * weight(h->max, max, it);
        t->w[q] = (float)t->sum[q];
    }
    if ((p = draw(t->sum, t->w, n_pieces, (double)set->u, true)) < 0)
        return -1;
    p = p < (int32_t)n_pieces ? p : p - (int32_t)n_pieces;
    u = (double)set->u * t->sum[n_pieces - 1] - (p > 0 ? t->sum[p - 1] : 0);
    for (uint32_t c0 = (uint32_t)p * span; c0 < ((uint32_t)p + 1) * span && c0 < a->k; c0 += 1024) {
        uint32_t n = a->k - c0 < 1024 ? a->k - c0 : 1024;
        int32_t j;

        for (uint32_t i = 0; i < n; i++) {
            float w = weight(logit(a, r, c0 + i), max, it);

            t->w[i] = w < set->min_p ? 0.0f : w;
            t->sum[i] = (double)t->w[i];
        }
        j = draw(t->sum, t->w, n, u, false);
        if (j >= 0 && j < (int32_t)n)
            return (int32_t)c0 + j;
        if (j >= 0)
            best = (int32_t)c0 + j - (int32_t)n;
        u = u - t->sum[n - 1];
    }
    return best;
}

/* The best n of the row, best first, into t->s; returns how many are certain, -1 when too many
 * would have to be looked at. */
static int32_t top(const struct kx_sample *a, uint32_t r, uint32_t n, struct scratch *t)
{
    uint32_t n_pieces = KX_SAMPLE_PIECES(a->k), list = KX_SAMPLE_LIST(a->k), p2 = 1, each, at = n;
    struct kx_best deep = none, last;

    while (p2 < n_pieces)
        p2 *= 2;
    each = 2048 / p2 < list ? 2048 / p2 : list;
    for (uint32_t i = 0; i < n_pieces * each; i++)
        t->s[i] = list_of(a, r, i / each)[i % each];
    qsort(t->s, n_pieces * each, sizeof(*t->s), by_value);
    last = t->s[n - 1];
    for (uint32_t p = 0; p < n_pieces; p++) {
        const struct kx_best *l = list_of(a, r, p);
        uint32_t i = each;

        for (; i < list && !before(last, l[i]); i++, at++)
            if (at < 4096)
                t->s[at] = l[i];
        if (i == list && a->k - p * KX_SAMPLE_SPAN(a->k) > list && KX_SAMPLE_SPAN(a->k) > list &&
            before(l[list - 1], deep))
            deep = l[list - 1];
    }
    if (at > 4096)
        return -1;
    qsort(t->s, at, sizeof(*t->s), by_value);
    for (uint32_t i = 0; i < n; i++)
        if (before(deep, t->s[i]))
            return (int32_t)i;
    return (int32_t)n;
}

static int32_t draw_few(const struct kx_sample *a, uint32_t r, const struct kx_sample_row *set,
                        enum kind kind, float max, double total, struct scratch *t)
{
    uint32_t most = a->k < KX_SAMPLE_TOP ? a->k : KX_SAMPLE_TOP,
             want = kind == TOP_K ? set->top_k : most;
    int32_t sure = top(a, r, want, t), at;
    uint32_t n = (uint32_t)sure, i = 0;
    float it = set->inv_temperature, least;

    if (sure < 1 || (kind == TOP_K && n < want))
        return -1;
    if (set->top_p < 1.0f) {
        for (i = 0; i < n; i++)
            t->sum[i] = (double)weight(t->s[i].v, max, it);
        scan(t->sum, n);
        if (kind == TOP_K)
            total = t->sum[n - 1];
        for (i = 0; i < n && !(t->sum[i] >= (double)set->top_p * total); i++)
            ;
        if (i == n && kind == TOP_P && n < a->k)
            return -1;
        n = i == n ? n : i + 1;
    }
    least = set->min_p * weight(t->s[0].v, max, it);
    qsort(t->s, n, sizeof(*t->s), by_index);
    for (i = 0; i < n; i++) {
        t->w[i] = weight(t->s[i].v, max, it);
        t->w[i] = t->w[i] < least ? 0.0f : t->w[i];
        t->sum[i] = (double)t->w[i];
    }
    at = draw(t->sum, t->w, n, (double)set->u, true);
    return at < 0 ? -1 : t->s[at < (int32_t)n ? at : at - (int32_t)n].i;
}

static int32_t answer(const struct kx_sample *a, uint32_t r, struct scratch *t)
{
    const struct kx_sample_row *set = &KX_AT(const struct kx_sample_row, a->rows)[r];
    uint32_t n_pieces = KX_SAMPLE_PIECES(a->k);
    enum kind kind = kind_of(set, a->k);
    struct kx_best best = none;
    double total = 0;

    if (a->k > KX_SAMPLE_COLS || kind == HOST)
        return -1;
    for (uint32_t p = 0; p < n_pieces; p++) {
        const struct kx_piece *h = &pieces_of(a, r)[p];

        if (h->bad)
            return -1;
        if (before((struct kx_best){h->max, h->arg}, best))
            best = (struct kx_best){h->max, h->arg};
    }
    if (kind == LARGEST)
        return best.i;
    if (kind == ALL)
        return draw_all(a, r, set, best.v, t);
    if (kind == TOP_P) {
        for (uint32_t p = 0; p < n_pieces; p++) {
            const struct kx_piece *h = &pieces_of(a, r)[p];

            t->sum[p] = (double)(h->sum * weight(h->max, best.v, set->inv_temperature));
        }
        scan(t->sum, n_pieces);
        total = t->sum[n_pieces - 1];
    }
    return draw_few(a, r, set, kind, best.v, total, t);
}

enum rc be_krow_ref_sample(const struct kx_sample *a, bool first, struct rc_err *err)
{
    struct scratch t = {malloc(4096 * sizeof(*t.s)), malloc(1024 * sizeof(*t.sum)),
                        malloc(1024 * sizeof(*t.w))};
    enum rc rc = RC_OK;

    if (!t.s || !t.sum || !t.w)
        rc = rc_fail(err, RC_NOMEM, "sample: no memory for candidates");
    else if (a->k <= KX_SAMPLE_COLS && a->scratch_row < KX_SAMPLE_SCRATCH(a->k))
        rc = rc_fail(err, RC_INVALID, "sample: %llu bytes of scratch a row, expected %u",
                     (unsigned long long)a->scratch_row, KX_SAMPLE_SCRATCH(a->k));
    for (uint32_t r = 0; rc == RC_OK && r < a->n; r++) {
        if (!first)
            KX_AT(int32_t, a->out)[r] = answer(a, r, &t);
        for (uint32_t p = 0; first && a->k <= KX_SAMPLE_COLS && p < KX_SAMPLE_PIECES(a->k); p++)
            piece(a, r, p, t.s);
    }
    free(t.s);
    free(t.sum);
    free(t.w);
    return rc;
}
