/* wrk_sample.c - penalties, filters and the draw.
 *
 * A vocabulary can be 262,144 long and a step must cost microseconds, so nothing
 * is sorted: passes over the row are plain loops that vectorise (wrk_sample_vec.c)
 * and the few candidates are found by selection. Pure functions of their inputs.
 * Change with care: the order of operations is published in docs/worker.md.
 * Tests: tests/worker/test_wrk_sample.c (against a sort-everything reference)
 */
#include "wrk_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_sample_vec.h"

/* ---------------------------------------------------------------- generator */

void wrk_rng_seed(struct wrk_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15ull);

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        r->s[i] = z ^ (z >> 31);
    }
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

double wrk_rng_unit(struct wrk_rng *r)
{
    uint64_t out = rotl(r->s[1] * 5, 7) * 9, t = r->s[1] << 17;

    r->s[2] ^= r->s[0];
    r->s[3] ^= r->s[1];
    r->s[1] ^= r->s[2];
    r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = rotl(r->s[3], 45);
    return (double)(out >> 11) * 0x1p-53;
}

/* ------------------------------------------------------------------- counts */

enum rc wrk_counts_init(struct wrk_counts *c, uint32_t max_distinct, struct rc_err *err)
{
    uint32_t cap = 16;

    while (cap < max_distinct * 2ull && cap < (1u << 30))
        cap *= 2;
    if ((c->slot = malloc(cap * sizeof(*c->slot))) == NULL)
        return rc_fail(err, RC_NOMEM, "token counts");
    memset(c->slot, 0xff, cap * sizeof(*c->slot));
    c->cap = cap;
    c->n = 0;
    return RC_OK;
}

void wrk_counts_deinit(struct wrk_counts *c)
{
    free(c->slot);
    memset(c, 0, sizeof(*c));
}

void wrk_counts_add(struct wrk_counts *c, int32_t token, bool generated)
{
    uint32_t i = ((uint32_t)token * 2654435769u) & (c->cap - 1);

    while (c->slot[i].token != -1 && c->slot[i].token != token)
        i = (i + 1) & (c->cap - 1);
    if (c->slot[i].token == -1) {
        c->slot[i].token = token;
        c->slot[i].generated = 0;
        c->n++;
    }
    if (generated)
        c->slot[i].generated++;
}

bool wrk_sampling_has_penalty(const struct wrk_sampling *s)
{
    return s->repetition_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0;
}

/* ------------------------------------------------------------------ scratch */

enum rc wrk_sampler_init(struct wrk_sampler *s, uint32_t n_vocab, struct rc_err *err)
{
    memset(s, 0, sizeof(*s));
    s->n_vocab = n_vocab;
    s->row = malloc(((size_t)n_vocab + 1) * sizeof(float));
    s->part = malloc(((size_t)n_vocab + 1) * sizeof(float));
    s->cand = malloc(((size_t)n_vocab + 1) * sizeof(uint32_t));
    if (s->row == NULL || s->part == NULL || s->cand == NULL) {
        wrk_sampler_deinit(s);
        return rc_fail(err, RC_NOMEM, "sampling scratch for %u tokens", n_vocab);
    }
    return RC_OK;
}

void wrk_sampler_deinit(struct wrk_sampler *s)
{
    free(s->row);
    free(s->part);
    free(s->cand);
    memset(s, 0, sizeof(*s));
}

/* --------------------------------------------------------------- adjustment */

static void adjust(float *row, uint32_t n_vocab, const struct wrk_sampling *p,
                   const struct wrk_counts *counts)
{
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token < n_vocab)
            row[p->bias[i].token] += p->bias[i].bias;
    for (uint32_t i = 0; counts != NULL && i < counts->cap; i++) {
        const struct wrk_count *c = &counts->slot[i];
        float *x;

        if (c->token < 0 || (uint32_t)c->token >= n_vocab)
            continue;
        x = &row[c->token];
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (c->generated > 0)
            *x -= (float)c->generated * p->frequency_penalty + p->presence_penalty;
    }
}

/* ---------------------------------------------------------------- selection
 * "Better" is a larger value, or the same value and a lower id. */

static bool better(float av, uint32_t ai, float bv, uint32_t bi)
{
    return av > bv || (av == bv && ai < bi);
}

/* Puts the heap's worst at its root again after it changed. */
static void sift(uint32_t *id, float *v, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t l = 2 * at + 1, r = l + 1, worst = at;
        uint32_t ti;
        float tv;

        if (l < n && better(v[worst], id[worst], v[l], id[l]))
            worst = l;
        if (r < n && better(v[worst], id[worst], v[r], id[r]))
            worst = r;
        if (worst == at)
            return;
        ti = id[at], tv = v[at];
        id[at] = id[worst], v[at] = v[worst];
        id[worst] = ti, v[worst] = tv;
        at = worst;
    }
}

/* The k best of x[n] into id and v as a heap, worst first. Most blocks of a row
 * hold nothing better than the worst kept value and cost one comparison. */
static void top_heap(const float *x, uint32_t n, uint32_t k, uint32_t *id, float *v)
{
    uint32_t i = 0;

    for (; i < k; i++)
        id[i] = i, v[i] = x[i];
    for (uint32_t j = k / 2; j-- > 0;)
        sift(id, v, k, j);
    while (i < n) {
        uint32_t end = i + 64 < n ? i + 64 : n;

        if (wrk_vec_max(x + i, end - i) > v[0])
            for (uint32_t j = i; j < end; j++)
                if (x[j] > v[0]) { /* equal: the lower id is in already */
                    id[0] = j, v[0] = x[j];
                    sift(id, v, k, 0);
                }
        i = end;
    }
}

/* Ascending, in place: qsort would allocate. */
static void sort_ids(uint32_t *id, uint32_t n)
{
    for (uint32_t start = n / 2, end = n; end > 1;) {
        uint32_t at, child, t;

        if (start > 0) {
            start--;
        } else {
            t = id[--end], id[end] = id[0], id[0] = t;
        }
        for (at = start; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && id[child + 1] > id[child])
                child++;
            if (id[at] >= id[child])
                break;
            t = id[at], id[at] = id[child], id[child] = t;
        }
    }
}

/* Partitions [lo, hi) of id/v so that better ones come first; returns where the
 * pivot ended. Median of three keeps sorted input from being the worst case. */
static uint32_t split(uint32_t *id, float *v, uint32_t lo, uint32_t hi)
{
    uint32_t mid = lo + (hi - lo) / 2, last = hi - 1, at = lo, piv;
    float tv;
    uint32_t ti;

#define LESS(a, b) better(v[a], id[a], v[b], id[b])
#define SWAP(a, b) (ti = id[a], tv = v[a], id[a] = id[b], v[a] = v[b], id[b] = ti, v[b] = tv)
    if (LESS(lo, mid) == LESS(mid, last))
        piv = mid;
    else if (LESS(lo, mid) == LESS(last, lo))
        piv = lo;
    else
        piv = last;
    SWAP(piv, last);
    for (uint32_t i = lo; i < last; i++)
        if (LESS(i, last)) {
            SWAP(i, at);
            at++;
        }
    SWAP(at, last);
#undef LESS
#undef SWAP
    return at;
}

/* Number of best entries whose weight together reaches `mass` (at least 1): they
 * are moved to the front of id/v. An entry's weight is w[id], without w its v.
 * Weighted quickselect. */
static uint32_t nucleus(uint32_t *id, float *v, const float *w, uint32_t n, double mass)
{
    uint32_t lo = 0, hi = n;

    while (hi - lo > 1) {
        uint32_t at = split(id, v, lo, hi);
        double left = 0;

        for (uint32_t i = lo; i < at; i++)
            left += w != NULL ? w[id[i]] : v[i];
        if (left >= mass) { /* the boundary is left of the pivot */
            if (at == lo)
                break;
            hi = at;
            continue;
        }
        left += w != NULL ? w[id[at]] : v[at];
        if (left >= mass)
            return at + 1;
        mass -= left;
        lo = at + 1;
    }
    return lo < n ? lo + 1 : n;
}

/* The k best of x[n], k < n, any k: quickselect over all. */
static void top_select(const float *x, uint32_t n, uint32_t k, uint32_t *id, float *v)
{
    uint32_t lo = 0, hi = n;

    for (uint32_t i = 0; i < n; i++)
        id[i] = i, v[i] = x[i];
    while (hi - lo > 1) {
        uint32_t at = split(id, v, lo, hi);

        if (at == k || at + 1 == k)
            return;
        if (at > k)
            hi = at;
        else
            lo = at + 1;
    }
}

/* ------------------------------------------------------------------ the draw */

/* The top_k of row (logits), of those the nucleus, by ascending id; weights in part. */
static uint32_t keep_top_k(struct wrk_sampler *s, float max, const struct wrk_sampling *p)
{
    uint32_t n = p->top_k;
    double sum = 0;

    if (n <= 8192)
        top_heap(s->row, s->n_row, n, s->cand, s->part);
    else
        top_select(s->row, s->n_row, n, s->cand, s->part);
    if (p->top_p < 1) {
        for (uint32_t i = 0; i < n; i++) {
            s->part[i] = wrk_vec_exp1((s->part[i] - max) / p->temperature);
            sum += (double)s->part[i];
        }
        n = nucleus(s->cand, s->part, NULL, n, (double)p->top_p * sum);
    }
    sort_ids(s->cand, n);
    for (uint32_t i = 0; i < n; i++)
        s->part[i] = wrk_vec_exp1((s->row[s->cand[i]] - max) / p->temperature);
    return n;
}

/* The nucleus of all tokens (row holds weights, the best is 1): steps down in weight
 * until what lies above holds the mass asked for, selects in there, and lists by
 * ascending id. */
static uint32_t keep_top_p(struct wrk_sampler *s, double total, const struct wrk_sampling *p)
{
    double mass = (double)p->top_p * total;
    float least = 0x1p-2f, v = 0;
    uint32_t n, m = 0, last = 0;

    while (least >= 0x1p-126f && wrk_vec_sum_from(s->row, s->n_row, least) < mass)
        least *= 0x1p-2f;
    n = wrk_vec_from(s->row, s->n_row, least, s->cand);
    for (uint32_t i = 0; i < n; i++)
        s->part[i] = s->row[s->cand[i]];
    n = nucleus(s->cand, s->part, NULL, n, mass);
    for (uint32_t i = 0; i < n; i++) /* the worst that is kept */
        if (i == 0 || better(v, last, s->part[i], s->cand[i])) {
            v = s->part[i];
            last = s->cand[i];
        }
    n = wrk_vec_from(s->row, s->n_row, v, s->cand);
    for (uint32_t i = 0; i < n; i++) /* of equal weights the lower ids are kept */
        if (s->row[s->cand[i]] > v || s->cand[i] <= last)
            s->cand[m++] = s->cand[i];
    return m;
}

/* Draws from the n candidates (ascending ids) with weights in part. */
static int32_t draw_few(struct wrk_sampler *s, uint32_t n, const struct wrk_sampling *p,
                        struct wrk_rng *rng)
{
    double sum = 0, u, run = 0;
    float least = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        if (s->part[i] > least)
            least = s->part[i];
    least *= p->min_p;
    for (uint32_t i = 0; i < n; i++) {
        if (s->part[i] < least)
            s->part[i] = 0;
        sum += (double)s->part[i];
    }
    u = wrk_rng_unit(rng) * sum;
    for (uint32_t i = 0; i < n; i++) {
        if (s->part[i] <= 0)
            continue;
        last = i;
        run += (double)s->part[i];
        if (u < run)
            break;
    }
    return (int32_t)s->cand[last];
}

/* Draws from all of row (weights); block sums make the walk short. */
static int32_t draw_all(const float *w, uint32_t n, float least, struct wrk_rng *rng)
{
    double sum = 0, u, run = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i += WRK_VEC_BLOCK)
        sum += wrk_vec_sum_from(w + i, n - i < WRK_VEC_BLOCK ? n - i : WRK_VEC_BLOCK, least);
    u = wrk_rng_unit(rng) * sum;
    for (uint32_t i = 0; i < n; i += WRK_VEC_BLOCK) {
        uint32_t m = n - i < WRK_VEC_BLOCK ? n - i : WRK_VEC_BLOCK;
        double b = wrk_vec_sum_from(w + i, m, least);

        if (b > 0)
            last = i;
        if (u >= run + b) {
            run += b;
            continue;
        }
        for (uint32_t j = i; j < i + m; j++) {
            if (w[j] < least || w[j] <= 0)
                continue;
            last = j;
            run += w[j];
            if (u < run)
                return (int32_t)j;
        }
        return (int32_t)last;
    }
    for (uint32_t j = n; j-- > last;)
        if (w[j] >= least && w[j] > 0)
            return (int32_t)j;
    return (int32_t)last;
}

/* Of the n candidates (weights in part) those min_p leaves, and of these the ones whose
 * surprise -ln p is nearest the expected one until they hold typical_p of the mass; a draw
 * from them. Source: Meister et al. 2022, 3; last as in transformers, whose
 * TypicalLogitsWarper keeps all that are as far as the last one: here ties have an end. */
static int32_t draw_typical(struct wrk_sampler *s, uint32_t n, const struct wrk_sampling *p,
                            struct wrk_rng *rng)
{
    double sum = 0, dot = 0, expected;
    float least = 0;
    uint32_t m = 0, kept;

    for (uint32_t i = 0; i < n; i++)
        if (s->part[i] > least)
            least = s->part[i];
    least *= p->min_p;
    memset(s->row, 0, s->n_row * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        double w = s->part[i];

        if (s->part[i] < least || s->part[i] <= 0)
            continue;
        s->row[s->cand[i]] = s->part[i];
        s->part[m] = (float)log(w);
        s->cand[m++] = s->cand[i];
        sum += w;
        dot += w * log(w);
    }
    expected = dot / sum; /* both surprises less ln sum */
    for (uint32_t i = 0; i < m; i++)
        s->part[i] = (float)-fabs((double)s->part[i] - expected);
    kept = nucleus(s->cand, s->part, s->row, m, (double)p->typical_p * sum);
    for (uint32_t i = kept; i < m; i++)
        s->row[s->cand[i]] = 0;
    return draw_all(s->row, s->n_row, 0, rng);
}

static enum rc not_finite(struct rc_err *err)
{
    return rc_fail(err, RC_INTERNAL, "the model computed logits that are not finite numbers");
}

/* The place of the choice in row[n_row], which is s->row unless the choice is greedy. */
static uint32_t choose(struct wrk_sampler *s, const float *row, const struct wrk_sampling *p,
                       struct wrk_rng *rng)
{
    float max = wrk_vec_max(row, s->n_row);
    double total;
    uint32_t n;

    if (p->temperature == 0 || p->top_k == 1)
        return wrk_vec_find(row, s->n_row, max);
    if (p->top_k > 0 && p->top_k < s->n_row) {
        n = keep_top_k(s, max, p);
        return (uint32_t)(p->typical_p < 1 ? draw_typical(s, n, p, rng) : draw_few(s, n, p, rng));
    }
    wrk_vec_softmax(s->row, s->n_row, max, p->temperature, &total);
    if (p->top_p >= 1 && p->typical_p >= 1) /* the best weight is 1 */
        return (uint32_t)draw_all(s->row, s->n_row, p->min_p, rng);
    n = p->top_p < 1 ? keep_top_p(s, total, p) : wrk_vec_from(s->row, s->n_row, 0, s->cand);
    for (uint32_t i = 0; i < n; i++)
        s->part[i] = s->row[s->cand[i]];
    return (uint32_t)(p->typical_p < 1 ? draw_typical(s, n, p, rng) : draw_few(s, n, p, rng));
}

enum rc wrk_sample(struct wrk_sampler *s, const float *logits, const struct wrk_sampling *p,
                   const struct wrk_counts *counts, struct wrk_rng *rng, int32_t *out,
                   struct rc_err *err)
{
    const float *row = logits;

    if (!wrk_vec_finite(logits, s->n_vocab))
        return not_finite(err);
    s->n_row = s->n_vocab;
    if (p->n_bias > 0 || counts != NULL || p->temperature > 0) {
        memcpy(s->row, logits, s->n_vocab * sizeof(float));
        adjust(s->row, s->n_vocab, p, counts);
        row = s->row;
    }
    *out = (int32_t)choose(s, row, p, rng);
    return RC_OK;
}

/* Few are allowed: only their logits are looked at, in the order of their ids. */
static int32_t choose_listed(struct wrk_sampler *s, const float *logits,
                             const struct wrk_sampling *p, const struct wrk_gr_mask *mask,
                             bool adjusted, struct wrk_rng *rng)
{
    const float *from = adjusted ? s->row : logits;

    /* in place: entry i is written from a place at or behind i */
    for (uint32_t i = 0; i < mask->n; i++)
        s->row[i] = from[mask->ids[i]];
    s->n_row = mask->n;
    return (int32_t)mask->ids[choose(s, s->row, p, rng)];
}

enum rc wrk_sample_allowed(struct wrk_sampler *s, const float *logits, const struct wrk_sampling *p,
                           const struct wrk_counts *counts, const struct wrk_gr_mask *mask,
                           struct wrk_rng *rng, int32_t *out, struct rc_err *err)
{
    bool adjusted = p->n_bias > 0 || counts != NULL;

    if (mask == NULL)
        return wrk_sample(s, logits, p, counts, rng, out, err);
    if (!wrk_vec_finite(logits, s->n_vocab))
        return not_finite(err);
    if (adjusted || mask->ids == NULL)
        memcpy(s->row, logits, s->n_vocab * sizeof(float));
    if (adjusted)
        adjust(s->row, s->n_vocab, p, counts);
    if (mask->ids != NULL) {
        *out = choose_listed(s, logits, p, mask, adjusted, rng);
        return RC_OK;
    }
    wrk_vec_mask(s->row, s->n_vocab, mask->bits);
    s->n_row = s->n_vocab;
    *out = (int32_t)choose(s, s->row, p, rng);
    return RC_OK;
}

/* -------------------------------------------------------- log-probabilities */

enum rc wrk_logprobs(const struct wrk_sampler *s, const float *logits, int32_t token,
                     uint32_t n_top, float *out_logprob, struct wrk_top *out_top,
                     struct rc_err *err)
{
    uint32_t id[WRK_TOP_MAX];
    float v[WRK_TOP_MAX], max;
    double lse;

    if (!wrk_vec_finite(logits, s->n_vocab))
        return not_finite(err);
    if (n_top > s->n_vocab)
        n_top = s->n_vocab;
    max = wrk_vec_max(logits, s->n_vocab);
    lse = (double)max + log(wrk_vec_sum_exp(logits, s->n_vocab, max));
    *out_logprob = (float)((double)logits[token] - lse);
    if (n_top == 0)
        return RC_OK;
    top_heap(logits, s->n_vocab, n_top, id, v);
    for (uint32_t n = n_top; n > 0; n--) { /* the root is the worst: fill from behind */
        out_top[n - 1].token = (int32_t)id[0];
        out_top[n - 1].logprob = (float)((double)v[0] - lse);
        id[0] = id[n - 1];
        v[0] = v[n - 1];
        sift(id, v, n - 1, 0);
    }
    return RC_OK;
}
