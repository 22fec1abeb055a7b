/* be_cpu_attn_avx2.c - attention of one item over the cache with AVX2: tiles of 64 keys,
 * online softmax (Milakov & Gimelshein 2018; tiles as in Dao et al. 2022). Items of plain
 * rows are be_cpu_attn_seq_avx2.c's.
 *
 * A query vector's arithmetic, whatever shares its item:
 *   scores   one fma chain over d = 0, 1, ... per key (keys are the lanes)
 *   softmax  per tile, over the whole tile with masked lanes at 0, fixed tree
 *   values   one fma chain over the tile's visible keys in order, per d
 *   cuts     between two cuts (be_cpu_attn_cut) sums start anew; they are merged in
 *            order by their maxima, here or, where threads share them, afterwards
 * Tiles begin at multiples of 64 from position 0. Keys nobody may see are never
 * multiplied, not even by 0: their slots can hold anything.
 *
 * Few vectors read the cache in place; many first widen the tile to f32 in scratch
 * (same values). head_dim that is no multiple of 8 goes to plain C.
 * Tests: tests/backends/test_be_cpu_attn.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <string.h>

#include "be_cpu_attn_avx2.h"
#include "be_cpu_ref.h"

#define IN_PLACE 12u /* vectors of an item that reads the cache in place, at most */

struct state {
    const struct be_cpu_attn *a;
    unsigned n; /* vectors */
    const float *q[BE_CPU_VECS];
    uint32_t lo[BE_CPU_VECS], hi[BE_CPU_VECS];
    uint32_t t0, t1, end;                    /* the tile: [t0, t1), of keys before end */
    uint32_t b[BE_CPU_VECS], e[BE_CPU_VECS]; /* visible keys in it, relative to t0 */
    float m[BE_CPU_VECS], l[BE_CPU_VECS];
    float *kt;  /* [64 / STRIP][head_dim][STRIP] */
    float *v;   /* [head_dim / COLS][64][COLS], the last block may be half empty */
    float *s;   /* [n][64] scores, then weights */
    float *acc; /* [n][head_dim] */
    /* what earlier cuts summed up to; total_m is -inf where there was none */
    uint32_t cut[BE_CPU_VECS];
    float total_m[BE_CPU_VECS], total_l[BE_CPU_VECS];
    float *total; /* [n][head_dim] */
};

INLINE __m256 widen(bool half, const void *p, size_t idx)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + idx)));
    return _mm256_loadu_ps((const float *)p + idx);
}

/* --------------------------------------------------------------------- kernels */

/* Bytes that a later kernel will read, fetched piece by piece beside this one's work: values
 * are read down a page's tokens, some columns at a time, and pages lie anywhere, which no
 * hardware prefetcher follows (5.4 GB/s of a cache in memory without: docs/backend-cpu.md). */
struct ahead {
    const char *p;
    size_t step; /* per inner step; 0 where nothing is wanted */
};

INLINE void fetch(struct ahead f, size_t i)
{
    _mm_prefetch(f.p + i * f.step, _MM_HINT_T0);
}

/* 16 scores of r vectors: key element d of lane j at k[d * step + j]. dim steps ahead. */
INLINE void scores(bool half, unsigned r, const float *const *q, const void *k, size_t step,
                   uint32_t dim, float scale, float *s, struct ahead f)
{
    __m256 acc[GROUP][2];

    UNROLL
    for (unsigned i = 0; i < r; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < dim; d++) {
        __m256 k0 = widen(half, k, d * step), k1 = widen(half, k, d * step + 8);

        fetch(f, d);
        UNROLL
        for (unsigned i = 0; i < r; i++) {
            __m256 x = SET8(q[i][d]);

            acc[i][0] = _mm256_fmadd_ps(x, k0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, k1, acc[i][1]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < r; i++) {
        _mm256_storeu_ps(s + i * BE_CPU_KEYS, _mm256_mul_ps(acc[i][0], SET8(scale)));
        _mm256_storeu_ps(s + i * BE_CPU_KEYS + 8, _mm256_mul_ps(acc[i][1], SET8(scale)));
    }
}

/* acc[i] += sum over n keys of s[i][key] * v[key], in order: COLS columns, rows of acc dim
 * apart. n steps ahead. */
INLINE void values(bool half, unsigned r, const float *s, const void *v, size_t step, uint32_t n,
                   uint32_t dim, float *acc, struct ahead f)
{
    __m256 o[GROUP][2];

    UNROLL
    for (unsigned i = 0; i < r; i++) {
        o[i][0] = _mm256_loadu_ps(acc + i * dim);
        o[i][1] = _mm256_loadu_ps(acc + i * dim + 8);
    }
    for (uint32_t k = 0; k < n; k++) {
        __m256 v0 = widen(half, v, k * step), v1 = widen(half, v, k * step + 8);

        fetch(f, k);
        UNROLL
        for (unsigned i = 0; i < r; i++) {
            __m256 w = SET8(s[i * BE_CPU_KEYS + k]);

            o[i][0] = _mm256_fmadd_ps(w, v0, o[i][0]);
            o[i][1] = _mm256_fmadd_ps(w, v1, o[i][1]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < r; i++) {
        _mm256_storeu_ps(acc + i * dim, o[i][0]);
        _mm256_storeu_ps(acc + i * dim + 8, o[i][1]);
    }
}

/* The same for the last 8 columns of an odd multiple of 8. */
static void values8(bool half, unsigned r, const float *s, const void *v, size_t step, uint32_t n,
                    uint32_t dim, float *acc)
{
    for (unsigned i = 0; i < r; i++) {
        __m256 o = _mm256_loadu_ps(acc + i * dim);

        for (uint32_t k = 0; k < n; k++)
            o = _mm256_fmadd_ps(SET8(s[i * BE_CPU_KEYS + k]), widen(half, v, k * step), o);
        _mm256_storeu_ps(acc + i * dim, o);
    }
}

static void scores_any(bool half, unsigned r, const float *const *q, const void *k, size_t step,
                       uint32_t dim, float scale, float *s, struct ahead f)
{
#define CALL(c)                                           \
    (half ? scores(true, c, q, k, step, dim, scale, s, f) \
          : scores(false, c, q, k, step, dim, scale, s, f))
    BY_COUNT(r)
#undef CALL
}

static void values_any(bool half, unsigned r, const float *s, const void *v, size_t step,
                       uint32_t n, uint32_t dim, float *acc, struct ahead f)
{
#define CALL(c)                                         \
    (half ? values(true, c, s, v, step, n, dim, acc, f) \
          : values(false, c, s, v, step, n, dim, acc, f))
    BY_COUNT(r)
#undef CALL
}

/* -------------------------------------------------------- where tiles come from */

static void page_at(const struct state *t, uint32_t pos, const uint8_t **k, const uint8_t **v)
{
    be_cpu_kv_at(t->a, pos, k, v);
}

static float *value_at(const struct state *t, uint32_t key, uint32_t d)
{
    return t->v + (size_t)(d / COLS * BE_CPU_KEYS + key) * COLS + d % COLS;
}

/* Keys [b, e) of the tile (relative) from the cache, widened. */
static void load_cache(struct state *t, uint32_t b, uint32_t e)
{
    uint32_t dim = t->a->head_dim;
    bool half = t->a->kv->dtype == BE_F16;
    size_t step = t->a->kv->page_tokens;

    for (uint32_t k8 = b & ~7u; k8 < e; k8 += 8) {
        float *dst = t->kt + (k8 / STRIP) * dim * STRIP + k8 % STRIP;
        const uint8_t *k, *v;

        page_at(t, t->t0 + k8, &k, &v);
        for (uint32_t d = 0; d < dim; d++)
            _mm256_storeu_ps(dst + d * STRIP, widen(half, k, d * step));
    }
    for (uint32_t i = b; i < e; i++) {
        const uint8_t *k, *v;

        page_at(t, t->t0 + i, &k, &v);
        for (uint32_t d = 0; d < dim; d += 8)
            _mm256_storeu_ps(value_at(t, i, d), widen(half, v, d));
    }
}

/* ------------------------------------------------------------------------ tiles */

/* How many of n vectors go together: 8 as 4 and 4, not 6 and 2. */
static unsigned group_of(unsigned n)
{
    unsigned groups = (n + GROUP - 1) / GROUP;

    return (n + groups - 1) / groups;
}

/* Where to fetch keys from pos on: a page holds them by element, so its bytes are dealt out
 * by tokens, as many to each; who fetches for all tokens of a page fetches all of it. */
static const uint8_t *keys_run(const struct state *t, uint32_t pos)
{
    const struct be_kv *kv = t->a->kv;
    uint32_t in_page = pos & (kv->page_tokens - 1);
    const uint8_t *k, *v;

    page_at(t, pos - in_page, &k, &v);
    return k + (size_t)in_page * t->a->head_dim * kv->elem;
}

/* The share of vectors [i, i + r) in fetching bytes at p, STRIP elements for each step of
 * all n vectors' kernels. */
static struct ahead share(const struct state *t, const uint8_t *p, size_t steps, unsigned i,
                          unsigned r, unsigned n)
{
    size_t unit = STRIP * t->a->kv->elem;

    return (struct ahead){(const char *)p + steps * unit * i / n, (unit * r + n - 1) / n};
}

/* Beside the scores of STRIP keys at k of the tile. In place: their values, which come next.
 * Else: the next tile, first half of the vectors its keys, second half its values. */
static struct ahead scores_ahead(const struct state *t, bool in_place, uint32_t k, unsigned i,
                                 unsigned r)
{
    uint32_t pos = t->t0 + k + (in_place ? 0 : BE_CPU_KEYS), dim = t->a->head_dim;
    const uint8_t *kp, *vp;

    if (pos >= t->end)
        return (struct ahead){(const char *)t->s, 0};
    page_at(t, pos, &kp, &vp);
    if (in_place)
        return share(t, vp, dim, i, r, t->n);
    if (2 * i < t->n)
        return share(t, keys_run(t, pos), dim, 2 * i, 2 * r, t->n);
    return share(t, vp, dim, 2 * i - t->n, 2 * r, t->n);
}

static void tile_scores(struct state *t, bool in_place, uint32_t b, uint32_t e)
{
    const struct be_cpu_attn *a = t->a;
    uint32_t dim = a->head_dim;

    for (uint32_t k = b & ~(STRIP - 1); k < e; k += STRIP) {
        const uint8_t *kp = NULL, *vp;

        if (in_place)
            page_at(t, t->t0 + k, &kp, &vp);
        for (unsigned i = 0, r; i < t->n; i += r) {
            struct ahead f;

            r = group_of(t->n - i);
            f = scores_ahead(t, in_place, k, i, r);
            if (in_place)
                scores_any(a->kv->dtype == BE_F16, r, t->q + i, kp, a->kv->page_tokens, dim,
                           a->scale, t->s + i * BE_CPU_KEYS + k, f);
            else
                scores_any(false, r, t->q + i, t->kt + k * dim, STRIP, dim, a->scale,
                           t->s + i * BE_CPU_KEYS + k, f);
        }
    }
}

/* n keys from b on, values at v (element d of key k at v[d / COLS * block + k * step]) for
 * vectors [i0, i1), which all see them. next: to be fetched, or NULL. */
static void add_run(struct state *t, bool half, unsigned i0, unsigned i1, uint32_t b, uint32_t n,
                    const uint8_t *v, size_t elem, size_t block, size_t step, const uint8_t *next)
{
    struct ahead f[IN_PLACE]; /* of each group; an item that fetches here has few vectors */
    const struct ahead none = {(const char *)t->s, 0};
    uint32_t dim = t->a->head_dim;
    unsigned groups = 0;

    for (unsigned i = i0, r; next && i < i1; i += r) { /* it divides: not for every block */
        r = group_of(i1 - i);
        f[groups++] = share(t, next, (size_t)n * (dim / COLS), i, r, t->n);
    }
    for (uint32_t d = 0; d < dim; d += COLS, v += block * elem)
        for (unsigned i = i0, r, at = 0; i < i1; i += r, at++) {
            const float *s = t->s + i * BE_CPU_KEYS + b;
            float *acc = t->acc + i * dim + d;

            r = group_of(i1 - i);
            if (dim - d < COLS) {
                values8(half, r, s, v, step, n, dim, acc);
                continue;
            }
            values_any(half, r, s, v, step, n, dim, acc, at < groups ? f[at] : none);
            if (at < groups)
                f[at].p += n * f[at].step;
        }
}

/* Visible keys [b, e) of vectors [i0, i1). In place: page by page, and the next tile's keys
 * are fetched. */
static void add_values(struct state *t, bool in_place, unsigned i0, unsigned i1)
{
    const struct be_cpu_attn *a = t->a;
    uint32_t b = t->b[i0], e = t->e[i0];

    if (!in_place)
        add_run(t, false, i0, i1, b, e - b, (const uint8_t *)value_at(t, b, 0), sizeof(float),
                COLS * BE_CPU_KEYS, COLS, NULL);
    while (in_place && b < e) {
        uint32_t n = a->kv->page_tokens - ((t->t0 + b) & (a->kv->page_tokens - 1));
        uint32_t pos = t->t0 + b + BE_CPU_KEYS;
        const uint8_t *k, *v;

        if (n > e - b)
            n = e - b;
        page_at(t, t->t0 + b, &k, &v);
        add_run(t, a->kv->dtype == BE_F16, i0, i1, b, n, v, a->kv->elem, COLS, a->head_dim,
                pos < t->end ? keys_run(t, pos) : NULL);
        b += n;
    }
}

static void run_tile(struct state *t, bool in_place)
{
    uint32_t dim = t->a->head_dim, b = BE_CPU_KEYS, e = 0;

    for (unsigned i = 0; i < t->n; i++) {
        uint32_t lo = t->lo[i] > t->t0 ? t->lo[i] : t->t0, hi = t->hi[i] < t->t1 ? t->hi[i] : t->t1;

        t->b[i] = t->e[i] = 0;
        if (lo >= hi)
            continue;
        t->b[i] = lo - t->t0;
        t->e[i] = hi - t->t0;
        b = t->b[i] < b ? t->b[i] : b;
        e = t->e[i] > e ? t->e[i] : e;
    }
    if (b >= e)
        return;
    if (!in_place)
        load_cache(t, b, e);
    tile_scores(t, in_place, b, e);
    for (unsigned i = 0; i < t->n; i++) {
        float f, *acc = t->acc + i * dim;

        if (t->b[i] == t->e[i])
            continue;
        f = softmax_tile(t->s + i * BE_CPU_KEYS, t->b[i], t->e[i], &t->m[i], &t->l[i]);
        if (f != 1)
            for (uint32_t d = 0; d < dim; d += 8)
                _mm256_storeu_ps(acc + d, _mm256_mul_ps(_mm256_loadu_ps(acc + d), SET8(f)));
    }
    for (unsigned i = 0, r; i < t->n; i += r) {
        for (r = 1; i + r < t->n && t->b[i + r] == t->b[i] && t->e[i + r] == t->e[i];)
            r++;
        if (t->b[i] < t->e[i])
            add_values(t, in_place, i, i + r);
    }
}

/* ------------------------------------------------------------------------- cuts */

/* Adds the sums (m, l, acc) of a cut to what earlier ones gave. One function for both
 * ways of computing them: the bits must be the same. */
static __attribute__((noinline)) void merge(float *total_m, float *total_l, float *total, float m,
                                            float l, const float *acc, uint32_t dim)
{
    float max = *total_m > m ? *total_m : m, lanes[8];
    __m256 f0, f1;

    if (m == -INFINITY) /* it saw nothing */
        return;
    if (*total_m == -INFINITY) {
        *total_m = m;
        *total_l = l;
        memcpy(total, acc, dim * sizeof(float));
        return;
    }
    f0 = exp8(SET8(*total_m - max));
    f1 = exp8(SET8(m - max));
    _mm256_storeu_ps(lanes, _mm256_fmadd_ps(SET8(l), f1, _mm256_mul_ps(SET8(*total_l), f0)));
    for (uint32_t d = 0; d < dim; d += 8)
        _mm256_storeu_ps(total + d, _mm256_fmadd_ps(_mm256_loadu_ps(acc + d), f1,
                                                    _mm256_mul_ps(_mm256_loadu_ps(total + d), f0)));
    *total_m = max;
    *total_l = lanes[0];
}

static void write_out(float *out, const float *total, float l, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 8)
        _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(total + d), SET8(l)));
}

static void flush(struct state *t, unsigned i)
{
    uint32_t dim = t->a->head_dim;

    merge(&t->total_m[i], &t->total_l[i], t->total + i * dim, t->m[i], t->l[i], t->acc + i * dim,
          dim);
    t->m[i] = -INFINITY;
    t->l[i] = 0;
    memset(t->acc + i * dim, 0, dim * sizeof(float));
}

static void put_part(const struct state *t, unsigned i)
{
    uint32_t dim = t->a->head_dim;
    float *p = t->a->part + i * t->a->ld_part;

    memcpy(p, t->acc + i * dim, dim * sizeof(float));
    p[dim] = t->m[i];
    p[dim + 1] = t->l[i];
}

void be_cpu_attn_merge_avx2(const struct be_cpu_attn *a, uint32_t n, void *scratch)
{
    uint32_t dim = a->head_dim;
    float *total = scratch;

    for (unsigned i = 0; i < a->n_rows * a->n_heads; i++) {
        const float *p = a->part + i * a->ld_part;
        float m = -INFINITY, l = 0;

        for (uint32_t k = 0; k < n; k++, p += BE_CPU_PART_COLS(dim))
            merge(&m, &l, total, p[dim], p[dim + 1], p, dim);
        write_out(a->out + vec_at(a, i), total, l, dim);
    }
}

/* The vectors of an item, and the keys that any of them sees. */
static void vecs_init(struct state *t, uint32_t *out_lo, uint32_t *out_hi)
{
    const struct be_cpu_attn *a = t->a;
    uint32_t lo = UINT32_MAX, hi = 0;

    for (unsigned i = 0; i < t->n; i++) {
        t->q[i] = a->q + vec_at(a, i);
        be_cpu_attn_range(a, a->pos0 + i / a->n_heads, &t->lo[i], &t->hi[i]);
        t->cut[i] = be_cpu_attn_cut(a, t->lo[i], t->hi[i]);
        if (a->part) {
            t->lo[i] = t->lo[i] > a->key0 ? t->lo[i] : a->key0;
            t->hi[i] = t->hi[i] < a->key1 ? t->hi[i] : a->key1;
        }
        if (t->lo[i] < t->hi[i]) {
            lo = t->lo[i] < lo ? t->lo[i] : lo;
            hi = t->hi[i] > hi ? t->hi[i] : hi;
        }
        t->m[i] = t->total_m[i] = -INFINITY;
        t->l[i] = t->total_l[i] = 0;
    }
    memset(t->acc, 0, (size_t)t->n * a->head_dim * sizeof(float));
    *out_lo = lo;
    *out_hi = hi;
}

void be_cpu_attn_avx2(const struct be_cpu_attn *a, void *scratch)
{
    uint32_t dim = a->head_dim, lo, hi;
    struct state t = {.a = a, .n = a->n_rows * a->n_heads};
    bool in_place = t.n <= IN_PLACE;

    if (dim % 8 != 0 || dim > BE_CPU_MAX_HEAD) {
        be_cpu_ref_attn(a, scratch);
        return;
    }
    if (!a->kv) {
        be_cpu_attn_seq_avx2(a, scratch);
        return;
    }
    t.kt = scratch;
    t.v = t.kt + (size_t)dim * BE_CPU_KEYS;
    t.s = t.v + (size_t)(dim + COLS - 1) / COLS * COLS * BE_CPU_KEYS;
    t.acc = t.s + (size_t)BE_CPU_VECS * BE_CPU_KEYS;
    t.total = t.acc + (size_t)BE_CPU_VECS * dim;
    vecs_init(&t, &lo, &hi);
    t.end = hi;
    for (t.t0 = lo - lo % BE_CPU_KEYS; t.t0 < hi; t.t0 += BE_CPU_KEYS) {
        for (unsigned i = 0; i < t.n; i++)
            if (t.t0 % t.cut[i] == 0 && t.m[i] != -INFINITY)
                flush(&t, i);
        t.t1 = hi - t.t0 < BE_CPU_KEYS ? hi : t.t0 + BE_CPU_KEYS;
        run_tile(&t, in_place);
    }
    for (unsigned i = 0; i < t.n; i++) {
        if (a->part) {
            put_part(&t, i);
        } else {
            flush(&t, i);
            write_out(a->out + vec_at(a, i), t.total + i * dim, t.total_l[i], dim);
        }
    }
}

_Static_assert((2ull * BE_CPU_MAX_HEAD * BE_CPU_KEYS + BE_CPU_VECS * BE_CPU_KEYS +
                2ull * BE_CPU_VECS * BE_CPU_MAX_HEAD) *
                       sizeof(float) <=
                   BE_CPU_SCRATCH,
               "an item's tiles fit the scratch of a thread");
_Static_assert(BE_CPU_SPLIT % BE_CPU_KEYS == 0, "a cut is where a tile begins");

#endif
