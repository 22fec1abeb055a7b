/* be_cpu_attn_seq_avx2.c - attention inside a packed sequence, one item, with AVX2.
 *
 * An item is many query vectors, so it is two matrix products per tile of 64 keys with an
 * online softmax between them. Keys are turned, values, queries and sums laid out so that the
 * inner kernels read memory in a row: a tile is laid out once and serves all vectors.
 *
 * A query vector's arithmetic, whatever shares its item (be_cpu_attn_avx2.c's, without cuts):
 *   scores   one fma chain over d = 0, 1, ... per key (keys are the lanes)
 *   softmax  per tile, over the whole tile with masked lanes at 0, fixed tree
 *   values   sums so far times a factor, then one fma chain over the tile's visible keys in
 *            order, per d
 * Tiles begin at multiples of 64 from the sequence's first row. Keys a vector may not see are
 * never multiplied into its sums, not even by 0: they may hold anything.
 * Tests: tests/backends/test_be_cpu_attn.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <string.h>

#include "be_cpu_attn_avx2.h"

#define GROUPS (BE_CPU_SEQ_VECS / GROUP + 1)
/* Elements of a strip of keys that stay in L1 while all vectors pass: 16 KiB. */
#define DEPTH 256u

struct state {
    const struct be_cpu_attn *a;
    unsigned n, n_groups; /* vectors; group g is vectors at[g] .. at[g + 1] - 1 */
    unsigned at[GROUPS + 1];
    uint32_t t0, end; /* the first key of the tile; the first that nobody sees */
    uint32_t lo[BE_CPU_SEQ_VECS], hi[BE_CPU_SEQ_VECS];
    uint32_t b[BE_CPU_SEQ_VECS], e[BE_CPU_SEQ_VECS]; /* visible keys in it, relative to t0 */
    float m[BE_CPU_SEQ_VECS], l[BE_CPU_SEQ_VECS];
    float f[BE_CPU_SEQ_VECS]; /* what sums of earlier tiles are multiplied by */
    float *kt;                /* [64 / STRIP][head_dim][STRIP] */
    float *v;                 /* [head_dim / COLS][64][COLS], the last block may be half zeros */
    float *s;                 /* [n][64] scores, then weights */
    float *q;                 /* [n_groups][head_dim][vectors of the group] */
    float *acc;               /* [head_dim / COLS][n][COLS] */
};

/* --------------------------------------------------------------------- kernels */

/* STRIP scores of r vectors over elements [0, n) of the head, rows of s 64 apart. first: from
 * zero, else on from s; last: times scale. */
INLINE void scores(unsigned r, const float *q, const float *k, uint32_t n, bool first, bool last,
                   float scale, float *s)
{
    __m256 acc[GROUP][2];

    UNROLL
    for (unsigned i = 0; i < r; i++) {
        acc[i][0] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(s + i * BE_CPU_KEYS);
        acc[i][1] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(s + i * BE_CPU_KEYS + 8);
    }
    for (uint32_t d = 0; d < n; d++) {
        __m256 k0 = _mm256_loadu_ps(k + d * STRIP), k1 = _mm256_loadu_ps(k + d * STRIP + 8);

        UNROLL
        for (unsigned i = 0; i < r; i++) {
            __m256 x = SET8(q[d * r + i]);

            acc[i][0] = _mm256_fmadd_ps(x, k0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, k1, acc[i][1]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < r; i++)
        UNROLL
    for (unsigned j = 0; j < 2; j++)
        _mm256_storeu_ps(s + i * BE_CPU_KEYS + 8 * j,
                         last ? _mm256_mul_ps(acc[i][j], SET8(scale)) : acc[i][j]);
}

/* acc[i] = acc[i] * f[i] + the sum over n keys of s[i][key] * v[key], in order: COLS columns.
 * f NULL: 1. */
INLINE void values(unsigned r, const float *s, const float *v, uint32_t n, const float *f,
                   float *acc)
{
    __m256 o[GROUP][2];

    UNROLL
    for (unsigned i = 0; i < r; i++) {
        o[i][0] = _mm256_loadu_ps(acc + i * COLS);
        o[i][1] = _mm256_loadu_ps(acc + i * COLS + 8);
        if (f) {
            o[i][0] = _mm256_mul_ps(o[i][0], SET8(f[i]));
            o[i][1] = _mm256_mul_ps(o[i][1], SET8(f[i]));
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        __m256 v0 = _mm256_loadu_ps(v + k * COLS), v1 = _mm256_loadu_ps(v + k * COLS + 8);

        UNROLL
        for (unsigned i = 0; i < r; i++) {
            __m256 w = SET8(s[i * BE_CPU_KEYS + k]);

            o[i][0] = _mm256_fmadd_ps(w, v0, o[i][0]);
            o[i][1] = _mm256_fmadd_ps(w, v1, o[i][1]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < r; i++) {
        _mm256_storeu_ps(acc + i * COLS, o[i][0]);
        _mm256_storeu_ps(acc + i * COLS + 8, o[i][1]);
    }
}

static void scores_any(unsigned r, const float *q, const float *k, uint32_t n, bool first,
                       bool last, float scale, float *s)
{
#define CALL(c) scores(c, q, k, n, first, last, scale, s)
    BY_COUNT(r)
#undef CALL
}

static void values_any(unsigned r, const float *s, const float *v, uint32_t n, const float *f,
                       float *acc)
{
#define CALL(c) values(c, s, v, n, f, acc)
    BY_COUNT(r)
#undef CALL
}

/* --------------------------------------------------------------------- layouts */

/* Keys [b, e) of the tile turned, their values copied. */
static void load_tile(struct state *t, uint32_t b, uint32_t e)
{
    const struct be_cpu_attn *a = t->a;
    uint32_t dim = a->head_dim;
    size_t head = (size_t)a->kv_head * dim;

    for (uint32_t k8 = b & ~7u; k8 < e; k8 += 8) {
        float *dst = t->kt + (k8 / STRIP) * dim * STRIP + k8 % STRIP;

        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 r[8];

            for (uint32_t i = 0; i < 8; i++) {
                /* past the sequence's end a key is repeated: its lane is masked */
                uint32_t p = t->t0 + k8 + i < a->n_keys ? t->t0 + k8 + i : a->n_keys - 1;

                r[i] = _mm256_loadu_ps(a->k + p * a->ld_kv + head + d);
            }
            transpose8(r);
            for (uint32_t i = 0; i < 8; i++)
                _mm256_storeu_ps(dst + (d + i) * STRIP, r[i]);
        }
    }
    for (uint32_t i = b; i < e; i++) {
        const float *src = a->v + (t->t0 + i) * a->ld_kv + head;

        for (uint32_t d = 0; d < dim; d += 8)
            _mm256_storeu_ps(t->v + (size_t)(d / COLS * BE_CPU_KEYS + i) * COLS + d % COLS,
                             _mm256_loadu_ps(src + d));
    }
}

/* A store of 8 lanes reaches into what follows, which is written later: the next element, the
 * next group, and in the end a margin of 8. */
static void load_queries(struct state *t)
{
    uint32_t dim = t->a->head_dim;

    for (unsigned g = 0; g < t->n_groups; g++) {
        unsigned n = t->at[g + 1] - t->at[g];
        float *dst = t->q + (size_t)t->at[g] * dim;
        const float *src[8];

        for (unsigned i = 0; i < 8; i++)
            src[i] = t->a->q + vec_at(t->a, t->at[g] + (i < n ? i : 0));
        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 r[8];

            for (unsigned i = 0; i < 8; i++)
                r[i] = _mm256_loadu_ps(src[i] + d);
            transpose8(r);
            for (unsigned i = 0; i < 8; i++)
                _mm256_storeu_ps(dst + (d + i) * n, r[i]);
        }
    }
}

/* ------------------------------------------------------------------------ tiles */

/* Smallest b and largest e of a group; nobody sees anything: *b >= *e. */
static void group_range(const struct state *t, unsigned g, uint32_t *b, uint32_t *e)
{
    *b = BE_CPU_KEYS;
    *e = 0;
    for (unsigned i = t->at[g]; i < t->at[g + 1]; i++) {
        if (t->b[i] >= t->e[i])
            continue;
        *b = t->b[i] < *b ? t->b[i] : *b;
        *e = t->e[i] > *e ? t->e[i] : *e;
    }
}

/* Rows of keys and values lie apart, which no hardware prefetcher follows: the next tile's are
 * asked for bit by bit while this one's scores are computed. */
struct ahead {
    const struct be_cpu_attn *a;
    uint32_t row, end, col; /* next piece: row of the sequence, element of the head */
};

static void fetch(struct ahead *f, uint32_t lines)
{
    size_t head = (size_t)f->a->kv_head * f->a->head_dim;

    for (; lines > 0 && f->row < f->end; lines--) {
        size_t at = f->row * f->a->ld_kv + head + f->col;

        _mm_prefetch((const char *)(f->a->k + at), _MM_HINT_T1);
        _mm_prefetch((const char *)(f->a->v + at), _MM_HINT_T1);
        f->col += 16;
        if (f->col >= f->a->head_dim) {
            f->col = 0;
            f->row++;
        }
    }
}

static void tile_scores(struct state *t, const uint32_t *gb, const uint32_t *ge, uint32_t b,
                        uint32_t e)
{
    uint32_t dim = t->a->head_dim, next = t->t0 + BE_CPU_KEYS;
    struct ahead f = {.a = t->a, .row = next, .end = next + BE_CPU_KEYS};
    uint32_t calls = (BE_CPU_KEYS / STRIP) * ((dim + DEPTH - 1) / DEPTH) * t->n_groups;
    uint32_t lines = BE_CPU_KEYS * ((dim + 15) / 16) / calls + 1;

    if (f.end > t->end)
        f.end = t->end;
    for (uint32_t k = b & ~(STRIP - 1); k < e; k += STRIP) {
        for (uint32_t d = 0; d < dim; d += DEPTH) {
            uint32_t n = dim - d < DEPTH ? dim - d : DEPTH;

            for (unsigned g = 0; g < t->n_groups; g++) {
                unsigned i = t->at[g], r = t->at[g + 1] - i;

                fetch(&f, lines);
                if (gb[g] < k + STRIP && ge[g] > k)
                    scores_any(r, t->q + (size_t)i * dim + d * r, t->kt + (k * dim + d * STRIP), n,
                               d == 0, d + n == dim, t->a->scale, t->s + i * BE_CPU_KEYS + k);
            }
        }
    }
}

/* A group whose vectors see different keys: what all see together, the rest one by one. */
static void values_apart(struct state *t, unsigned g, const float *v, float *acc)
{
    unsigned i0 = t->at[g], r = t->at[g + 1] - i0;
    uint32_t b = 0, e = BE_CPU_KEYS;
    const float *s = t->s + i0 * BE_CPU_KEYS;

    for (unsigned i = i0; i < i0 + r; i++) {
        b = t->b[i] > b ? t->b[i] : b;
        e = t->e[i] < e ? t->e[i] : e;
    }
    for (unsigned i = 0; i < r; i++) {
        uint32_t bi = t->b[i0 + i], ei = t->e[i0 + i], to = b < e ? b : ei;

        if (bi < ei)
            values_any(1, s + i * BE_CPU_KEYS + bi, v + bi * COLS, to - bi, t->f + i0 + i,
                       acc + i * COLS);
    }
    if (b >= e)
        return;
    values_any(r, s + b, v + b * COLS, e - b, NULL, acc);
    for (unsigned i = 0; i < r; i++)
        values_any(1, s + i * BE_CPU_KEYS + e, v + e * COLS, t->e[i0 + i] - e, NULL,
                   acc + i * COLS);
}

static void tile_values(struct state *t, const uint32_t *gb, const uint32_t *ge, const bool *apart)
{
    uint32_t blocks = (t->a->head_dim + COLS - 1) / COLS;

    for (uint32_t c = 0; c < blocks; c++) {
        const float *v = t->v + (size_t)c * BE_CPU_KEYS * COLS;
        float *acc = t->acc + (size_t)c * t->n * COLS;

        for (unsigned g = 0; g < t->n_groups; g++) {
            unsigned i = t->at[g], r = t->at[g + 1] - i;

            if (gb[g] >= ge[g])
                continue;
            if (apart[g])
                values_apart(t, g, v, acc + i * COLS);
            else
                values_any(r, t->s + i * BE_CPU_KEYS + gb[g], v + gb[g] * COLS, ge[g] - gb[g],
                           t->f + i, acc + i * COLS);
        }
    }
}

static void run_tile(struct state *t)
{
    uint32_t gb[GROUPS], ge[GROUPS], b = BE_CPU_KEYS, e = 0;
    bool apart[GROUPS];

    for (unsigned i = 0; i < t->n; i++) {
        uint32_t end = t->t0 + BE_CPU_KEYS;

        t->b[i] = t->lo[i] > t->t0 ? t->lo[i] - t->t0 : 0;
        t->e[i] = t->hi[i] < end ? t->hi[i] < t->t0 ? 0 : t->hi[i] - t->t0 : BE_CPU_KEYS;
        if (t->b[i] >= t->e[i])
            t->b[i] = t->e[i] = 0;
    }
    for (unsigned g = 0; g < t->n_groups; g++) {
        group_range(t, g, &gb[g], &ge[g]);
        apart[g] = false;
        for (unsigned i = t->at[g]; i < t->at[g + 1]; i++)
            apart[g] |= t->b[i] != gb[g] || t->e[i] != ge[g];
        if (gb[g] < ge[g]) {
            b = gb[g] < b ? gb[g] : b;
            e = ge[g] > e ? ge[g] : e;
        }
    }
    if (b >= e)
        return;
    load_tile(t, b, e);
    tile_scores(t, gb, ge, b, e);
    if (t->a->rel)
        be_cpu_attn_rel_tile_avx2(t->a, t->t0, e, t->s);
    for (unsigned i = 0; i < t->n; i++)
        if (t->b[i] < t->e[i])
            t->f[i] = softmax_tile(t->s + i * BE_CPU_KEYS, t->b[i], t->e[i], &t->m[i], &t->l[i]);
    tile_values(t, gb, ge, apart);
}

/* Vectors in groups of even size: 8 as 4 and 4, not 6 and 2. */
static void groups_init(struct state *t)
{
    unsigned i = 0;

    t->n_groups = (t->n + GROUP - 1) / GROUP;
    for (unsigned g = 0; g < t->n_groups; g++) {
        t->at[g] = i;
        i += (t->n - i + t->n_groups - g - 1) / (t->n_groups - g);
    }
    t->at[t->n_groups] = i;
}

void be_cpu_attn_seq_avx2(const struct be_cpu_attn *a, void *scratch)
{
    uint32_t dim = a->head_dim, wide = (dim + COLS - 1) / COLS * COLS, lo = UINT32_MAX, hi = 0;
    struct state t = {.a = a, .n = a->n_rows * a->n_heads};

    t.kt = scratch;
    t.v = t.kt + (size_t)dim * BE_CPU_KEYS;
    t.s = t.v + (size_t)wide * BE_CPU_KEYS;
    t.acc = t.s + (size_t)t.n * BE_CPU_KEYS;
    t.q = t.acc + (size_t)t.n * wide;
    groups_init(&t);
    load_queries(&t);
    memset(t.acc, 0, (size_t)t.n * wide * sizeof(float));
    if (wide > dim)
        memset(t.v + (size_t)(dim / COLS) * BE_CPU_KEYS * COLS, 0,
               BE_CPU_KEYS * COLS * sizeof(float));
    for (unsigned i = 0; i < t.n; i++) {
        be_cpu_attn_range(a, a->pos0 + i / a->n_heads, &t.lo[i], &t.hi[i]);
        lo = t.lo[i] < lo ? t.lo[i] : lo;
        hi = t.hi[i] > hi ? t.hi[i] : hi;
        t.m[i] = -INFINITY;
        t.l[i] = 0;
    }
    t.end = hi;
    for (t.t0 = lo - lo % BE_CPU_KEYS; t.t0 < hi; t.t0 += BE_CPU_KEYS)
        run_tile(&t);
    for (unsigned i = 0; i < t.n; i++) {
        float *out = a->out + vec_at(a, i);

        for (uint32_t d = 0; d < dim; d += 8)
            _mm256_storeu_ps(
                out + d, _mm256_div_ps(_mm256_loadu_ps(t.acc + (size_t)(d / COLS * t.n + i) * COLS +
                                                       d % COLS),
                                       SET8(t.l[i])));
    }
}

_Static_assert((2ull * BE_CPU_MAX_HEAD * BE_CPU_KEYS + BE_CPU_SEQ_VECS * BE_CPU_KEYS +
                2ull * BE_CPU_SEQ_VALUES + 8) *
                       sizeof(float) <=
                   BE_CPU_SCRATCH,
               "an item's tiles fit the scratch of a thread");

#endif
