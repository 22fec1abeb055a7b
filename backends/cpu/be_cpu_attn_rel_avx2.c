/* be_cpu_attn_rel_avx2.c - what disentangled positions add to attention's scores, with AVX2.
 *
 * be_cpu_attn_seq_avx2.c walks an item in tiles of 64 keys; after q . k it calls here, and
 *   score += scale * (q_i . rk[d])   then   score += scale * (k_j . rq[d]),   d = rel[i - j]
 * Neighbouring distances have neighbouring or equal places d, so a few rows against a tile need
 * few of them: those products are made once, as a matrix product (each one fma chain over the
 * head), and then read along the diagonals. No n x n memory.
 *
 * Tables: places are renumbered to columns, one for each run of equal rel, in strips of 8
 * columns [strip][head_dim][8]: tq by rising i - j, tk by falling i - j. by_row[i - j] and
 * by_key[j - i] are columns of them.
 * Always true: a score depends on its own query, key and places alone; whether 8 columns were
 * read in a row or gathered changes nothing. Tests: tests/backends/test_be_cpu_attn_rel.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <string.h>

#include "be_cpu_attn_avx2.h"
#include "be_cpu_ref.h"

#define MARGIN 16  /* entries of a map beyond the longest sequence, on both sides */
#define P_COLS 96u /* columns that GROUP rows meet in a tile: 69, with the strips' ends */
#define T_COLS(n) ((n) + 32u)

static uint32_t up8(uint32_t n)
{
    return (n + 7) & ~7u;
}

/* ----------------------------------------------------------------------- layout */

/* Columns of places by distance; at the margins the last one again, for lanes nobody looks at. */
static void lay_maps(struct be_cpu_rel *r)
{
    const int32_t *rel = r->rel + r->reach;
    int32_t n = (int32_t)r->longest, col = 0, last = (int32_t)r->n_cols - 1;

    for (int32_t x = -(n - 1) - MARGIN; x < n + MARGIN; x++) {
        if (x > -(n - 1) && x < n)
            col += rel[x] != rel[x - 1];
        r->by_row[x] = col;
        r->by_key[-x] = last - col;
    }
}

/* Strips of the head's places: column c of table (from its end, if back) is a row of src. */
static void lay_table(const struct be_cpu_attn *a, const float *src, bool back, float *table)
{
    const struct be_cpu_rel *r = a->rel;
    const int32_t *rel = r->rel + r->reach;
    uint32_t dim = a->head_dim, strips = up8(r->n_cols) / 8;
    int32_t x = back ? (int32_t)r->longest - 1 : 1 - (int32_t)r->longest, step = back ? -1 : 1;
    int32_t end = -x + step;

    for (uint32_t s = 0; s < strips; s++) {
        const float *row[8];

        for (uint32_t i = 0; i < 8; i++) {
            row[i] = src + (size_t)rel[x] * r->ld + (size_t)a->head0 * dim;
            /* on to the next run; past the last one it is repeated */
            while (x + step != end && rel[x + step] == rel[x])
                x += step;
            if (x + step != end)
                x += step;
        }
        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 v[8];

            for (uint32_t i = 0; i < 8; i++)
                v[i] = _mm256_loadu_ps(row[i] + d);
            transpose8(v);
            for (uint32_t i = 0; i < 8; i++)
                _mm256_storeu_ps(table + ((size_t)s * dim + d + i) * 8, v[i]);
        }
    }
    memset(table + (size_t)strips * dim * 8, 0, (size_t)dim * 8 * sizeof(float));
}

static void lay_head(const struct be_cpu_attn *a, float *scratch)
{
    struct be_cpu_rel *r = a->rel;
    uint32_t dim = a->head_dim, map = 2 * r->longest + 2 * MARGIN, rows = up8(r->rows);
    size_t table = (size_t)dim * (up8(r->n_cols) + 16);

    if (r->head == a->head0)
        return;
    if (r->head == UINT32_MAX) {
        int32_t *maps = (int32_t *)(void *)(scratch + BE_CPU_SCRATCH / sizeof(float)) - 2 * map;

        r->by_row = maps + r->longest - 1 + MARGIN;
        r->by_key = maps + map + r->longest - 1 + MARGIN;
        r->tk = (float *)(void *)maps - table;
        r->tq = r->tk - table;
        r->p = r->tq - (size_t)GROUP * P_COLS;
        r->t = r->p - (size_t)BE_CPU_KEYS * T_COLS(rows);
        lay_maps(r);
    }
    if (r->rk)
        lay_table(a, r->rk, true, r->tk);
    if (r->rq)
        lay_table(a, r->rq, false, r->tq);
    r->head = a->head0;
}

/* --------------------------------------------------------------------- products */

/* r rows of x against two strips. */
INLINE void two_strips(unsigned r, const float *x, size_t ldx, const float *k, uint32_t dim,
                       float *out, size_t ld)
{
    const float *k1 = k + (size_t)dim * 8;
    __m256 acc[GROUP][2];

    UNROLL
    for (unsigned i = 0; i < r; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    UNROLL_4
    for (uint32_t d = 0; d < dim; d++) {
        __m256 a = _mm256_loadu_ps(k + d * 8), b = _mm256_loadu_ps(k1 + d * 8);

        UNROLL
        for (unsigned i = 0; i < r; i++) {
            __m256 v = SET8(x[i * ldx + d]);

            acc[i][0] = _mm256_fmadd_ps(v, a, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(v, b, acc[i][1]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < r; i++) {
        _mm256_storeu_ps(out + i * ld, acc[i][0]);
        _mm256_storeu_ps(out + i * ld + 8, acc[i][1]);
    }
}

/* out[i][c - c0 of its strip] for columns c0 .. c1; gives the column of out's first. */
static int32_t products(unsigned r, const float *x, size_t ldx, const float *table, uint32_t dim,
                        int32_t c0, int32_t c1, float *out, size_t ld)
{
    uint32_t first = (uint32_t)c0 / 8, last = (uint32_t)c1 / 8;

    for (uint32_t s = first; s <= last; s += 2) {
        const float *k = table + (size_t)s * dim * 8;
        float *o = out + (size_t)(s - first) * 8;

#define CALL(c) two_strips(c, x, ldx, k, dim, o, ld)
        BY_COUNT(r)
#undef CALL
    }
    return (int32_t)first * 8;
}

/* Values of 8 columns, col[0] .. col[7] with steps of 0 or 1. */
INLINE __m256 pick(const float *row, const int32_t *col, int32_t base)
{
    __m256i at;

    if (col[7] - col[0] == 7)
        return _mm256_loadu_ps(row + (col[0] - base));
    at = _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)(const void *)col),
                          _mm256_set1_epi32(base));
    return _mm256_i32gather_ps(row, at, 4);
}

INLINE void add_scaled(float *s, __m256 v, __m256 scale)
{
    _mm256_storeu_ps(s, _mm256_fmadd_ps(v, scale, _mm256_loadu_ps(s)));
}

/* Queries meet the places of keys: n keys from t0 on. */
static void add_by_query(const struct be_cpu_attn *a, uint32_t t0, uint32_t n, float *s)
{
    const struct be_cpu_rel *r = a->rel;
    const float *q = a->q + (size_t)a->row0 * a->ld + (size_t)a->head0 * a->head_dim;
    __m256 scale = SET8(a->scale);
    uint32_t groups = (a->n_rows + GROUP - 1) / GROUP, i = 0;

    for (uint32_t left = groups; left > 0; left--) {
        uint32_t m = (a->n_rows - i + left - 1) / left; /* even shares */
        int32_t y = (int32_t)t0 - (int32_t)(a->pos0 + i);
        int32_t base =
            products(m, q + i * a->ld, a->ld, r->tk, a->head_dim, r->by_key[y - (int32_t)(m - 1)],
                     r->by_key[y + (int32_t)(n - 1)], r->p, P_COLS);

        for (uint32_t k = 0; k < m; k++, y--)
            for (uint32_t j = 0; j < n; j += 8)
                add_scaled(s + (size_t)(i + k) * BE_CPU_KEYS + j,
                           pick(r->p + (size_t)k * P_COLS, r->by_key + y + (int32_t)j, base),
                           scale);
        i += m;
    }
}

/* Keys meet the places of queries: products of a key lie along the queries, so blocks of 8 x 8
 * are turned. */
static void add_by_key(const struct be_cpu_attn *a, uint32_t t0, uint32_t n, float *s)
{
    const struct be_cpu_rel *r = a->rel;
    const float *k = a->k + t0 * a->ld_kv + (size_t)a->kv_head * a->head_dim;
    size_t ld = T_COLS(up8(a->n_rows));
    uint32_t full = t0 + n < a->n_keys ? n : a->n_keys - t0;
    uint32_t groups = (full + GROUP - 1) / GROUP, at = 0;
    int32_t base[BE_CPU_KEYS] = {0};
    __m256 scale = SET8(a->scale);

    for (uint32_t left = groups; left > 0; left--) {
        uint32_t m = (full - at + left - 1) / left;
        int32_t x = (int32_t)a->pos0 - (int32_t)(t0 + at);
        int32_t b = products(m, k + at * a->ld_kv, a->ld_kv, r->tq, a->head_dim,
                             r->by_row[x - (int32_t)(m - 1)],
                             r->by_row[x + (int32_t)up8(a->n_rows) - 1], r->t + at * ld, ld);

        for (uint32_t i = 0; i < m; i++)
            base[at + i] = b;
        at += m;
    }
    for (uint32_t i = 0; i < a->n_rows; i += 8) {
        uint32_t rows = a->n_rows - i < 8 ? a->n_rows - i : 8;

        for (uint32_t j = 0; j < n; j += 8) {
            const int32_t *col = r->by_row + (int32_t)(a->pos0 + i) - (int32_t)(t0 + j);
            __m256 v[8];

            for (uint32_t l = 0; l < 8; l++)
                v[l] = j + l < full ? pick(r->t + (j + l) * ld, col - l, base[j + l])
                                    : _mm256_setzero_ps();
            transpose8(v);
            for (uint32_t l = 0; l < rows; l++)
                add_scaled(s + (size_t)(i + l) * BE_CPU_KEYS + j, v[l], scale);
        }
    }
}

void be_cpu_attn_rel_tile_avx2(const struct be_cpu_attn *a, uint32_t t0, uint32_t n, float *s)
{
    if (a->rel->rk)
        add_by_query(a, t0, up8(n), s);
    if (a->rel->rq)
        add_by_key(a, t0, up8(n), s);
}

void be_cpu_attn_rel_avx2(const struct be_cpu_attn *a, void *scratch)
{
    if (a->head_dim % 8 != 0 || a->n_keys > a->rel->longest) {
        a->rel->head = UINT32_MAX; /* plain C writes where the tables lay */
        be_cpu_ref_attn_rel(a, scratch);
        return;
    }
    lay_head(a, scratch);
    be_cpu_attn_seq_avx2(a, scratch);
}

_Static_assert(GROUP + BE_CPU_KEYS - 1 + 7 + 16 <= P_COLS, "products of a group fit their rows");

#endif
