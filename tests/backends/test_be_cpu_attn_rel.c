/* test_be_cpu_attn_rel.c - attention with disentangled positions: every level against the formula
 * of encoders.md 5.3 in f64, and the equality contract bit for bit. */
#include "be_test.h"

/* Scores of magnitude up to ~10, as in test_be_cpu_attn.c. */
#define ABS_TOL 5e-6

enum map { BUCKETS, EACH, CLAMPED, WILD };

struct shape {
    const char *name;
    uint32_t heads, dim, reach, n_rel;
    enum map map;
    bool rk, rq;
    uint32_t len[5];
};

static const struct shape shapes[] = {
    {"log buckets, both terms", 3, 64, 300, 64, BUCKETS, true, true, {301, 1, 70, 64, 9}},
    {"a bucket for each distance", 2, 32, 150, 301, EACH, true, true, {151, 128, 5, 7, 150}},
    {"queries' places only", 2, 16, 140, 64, BUCKETS, true, false, {129, 65, 2, 3, 4}},
    {"keys' places only", 2, 24, 140, 64, BUCKETS, false, true, {141, 63, 8, 1, 0}},
    {"neither: plain attention", 2, 40, 99, 1, CLAMPED, false, false, {100, 33, 0, 0, 12}},
    {"clamped at both sides", 1, 72, 250, 17, CLAMPED, true, true, {251, 66, 17, 16, 18}},
    {"any places in any order", 2, 8, 200, 29, WILD, true, true, {201, 100, 1, 1, 31}},
    {"a head of no whole vector", 3, 20, 90, 32, BUCKETS, true, true, {91, 6, 64, 1, 1}},
    {"a wide head", 1, 256, 130, 300, EACH, true, true, {131, 12, 64, 65, 1}},
    /* with a place for each distance 204 rows of a head of 256 fit; of 204 / 4 all do */
    {"tables too wide for some", 1, 256, 300, 601, EACH, true, true, {204, 301, 205, 3, 60}},
    {"one row", 4, 48, 0, 1, CLAMPED, true, true, {1, 1, 1, 0, 1}},
};
#define N_SHAPES (sizeof(shapes) / sizeof(*shapes))
#if defined(__SANITIZE_THREAD__) /* plain C over 301 positions of that width takes minutes there \
                                  */
#define TAKES_MINUTES(s) ((s)->dim == 256 && (s)->reach == 300)
#else
#define TAKES_MINUTES(s) false
#endif

/* encoders.md 5.2 with k = n_rel / 2, in f64: any map will do here. */
static int32_t place(const struct shape *s, int32_t x)
{
    int32_t k = (int32_t)s->n_rel / 2, mid = k / 2, a = x < 0 ? -x : x, b = x, d;

    if (s->map == EACH)
        return x + (int32_t)s->reach;
    if (s->map == WILD)
        return (int32_t)((uint32_t)(x * x * 7 + x + 100000) % s->n_rel);
    if (s->map == BUCKETS && a > mid) {
        b = (int32_t)ceil(log((double)a / mid) / log((s->reach - 1.0) / mid) * (mid - 1)) + mid;
        b = x < 0 ? -b : b;
    }
    d = b + k;
    return d < 0 ? 0 : d >= (int32_t)s->n_rel ? (int32_t)s->n_rel - 1 : d;
}

struct rig {
    const struct shape *s;
    uint32_t cols, n, offsets[6];
    int32_t *rel;
    float *q, *k, *v, *rk, *rq, *want, *got;
};

static void rig_init(struct rig *r, const struct shape *s, uint32_t shorter)
{
    size_t n;

    *r = (struct rig){.s = s, .cols = s->heads * s->dim};
    for (uint32_t i = 0; i < 5; i++)
        r->offsets[i + 1] = r->offsets[i] + (s->len[i] + shorter - 1) / shorter;
    r->n = r->offsets[5];
    n = (size_t)r->n * r->cols;
    r->rel = xcalloc(2 * s->reach + 1, sizeof(*r->rel));
    for (uint32_t i = 0; i <= 2 * s->reach; i++)
        r->rel[i] = place(s, (int32_t)i - (int32_t)s->reach);
    r->q = xcalloc(n, 4);
    r->k = xcalloc(n, 4);
    r->v = xcalloc(n, 4);
    r->want = xcalloc(n, 4);
    r->got = xcalloc(n, 4);
    r->rk = xcalloc((size_t)s->n_rel * r->cols, 4);
    r->rq = xcalloc((size_t)s->n_rel * r->cols, 4);
    fill(r->q, n, 4 / sqrtf((float)s->dim));
    fill(r->k, n, 3);
    fill(r->v, n, 2);
    fill(r->rk, (size_t)s->n_rel * r->cols, 3);
    fill(r->rq, (size_t)s->n_rel * r->cols, 4 / sqrtf((float)s->dim));
}

static void rig_deinit(struct rig *r)
{
    free(r->rel);
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->rk);
    free(r->rq);
    free(r->want);
    free(r->got);
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* Head h of row i of the sequence in rows [b, e). */
static void formula(struct rig *r, uint32_t b, uint32_t e, uint32_t i, uint32_t h)
{
    const struct shape *s = r->s;
    size_t at = h * s->dim, qi = (size_t)i * r->cols + at;
    double w[512], max = -INFINITY, sum = 0;

    for (uint32_t j = b; j < e; j++) {
        size_t kj = (size_t)j * r->cols + at;
        size_t d = (size_t)r->rel[i + s->reach - j] * r->cols + at;
        double x = dot(r->q + qi, r->k + kj, s->dim);

        if (s->rk)
            x += dot(r->q + qi, r->rk + d, s->dim);
        if (s->rq)
            x += dot(r->k + kj, r->rq + d, s->dim);
        w[j - b] = x * 0.3f;
        max = fmax(max, w[j - b]);
    }
    for (uint32_t j = b; j < e; j++)
        sum += w[j - b] = exp(w[j - b] - max);
    for (uint32_t d = 0; d < s->dim; d++) {
        double o = 0;

        for (uint32_t j = b; j < e; j++)
            o += w[j - b] * r->v[(size_t)j * r->cols + at + d];
        r->want[qi + d] = (float)(o / sum);
    }
}

static void formulas(struct rig *r)
{
    for (uint32_t s = 0; s < 5; s++)
        for (uint32_t i = r->offsets[s]; i < r->offsets[s + 1]; i++)
            for (uint32_t h = 0; h < r->s->heads; h++)
                formula(r, r->offsets[s], r->offsets[s + 1], i, h);
}

/* Sequences offsets[0 .. n_seqs], whose first row is `first` of the rig, to out. */
static void attend(struct be_ctx *c, const struct rig *r, uint32_t first, const uint32_t *offsets,
                   uint32_t n_seqs, float *out)
{
    const struct shape *s = r->s;
    uint32_t n = offsets[n_seqs];
    size_t at = (size_t)first * r->cols;
    struct be_tensor *q = tensor(c, n + 1, r->cols, NULL), *k = tensor(c, n + 1, r->cols, NULL);
    struct be_tensor *v = tensor(c, n + 1, r->cols, NULL), *o = tensor(c, n + 1, r->cols, NULL);
    struct be_tensor *rk = tensor(c, s->n_rel, r->cols, r->rk);
    struct be_tensor *rq = tensor(c, s->n_rel, r->cols, r->rq);
    struct be_attention_rel_args a = {.q = q,
                                      .k = k,
                                      .v = v,
                                      .rk = s->rk ? rk : NULL,
                                      .rq = s->rq ? rq : NULL,
                                      .out = o,
                                      .rel = r->rel,
                                      .reach = s->reach,
                                      .n_rel = s->n_rel,
                                      .offsets = offsets,
                                      .n_seqs = n_seqs,
                                      .n_heads = s->heads,
                                      .head_dim = s->dim,
                                      .scale = 0.3f};

    OK(be_tensor_write(c, q, 0, n, r->q + at, err));
    OK(be_tensor_write(c, k, 0, n, r->k + at, err));
    OK(be_tensor_write(c, v, 0, n, r->v + at, err));
    OK(be_attention_rel(c, &a, err));
    OK(be_tensor_read(c, o, 0, n, out, err));
    be_tensor_free(c, &q);
    be_tensor_free(c, &k);
    be_tensor_free(c, &v);
    be_tensor_free(c, &o);
    be_tensor_free(c, &rk);
    be_tensor_free(c, &rq);
}

static void every_level_computes_the_formula(void **state)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (size_t l = 0; l < N_LEVELS; l++) {
            struct be_ctx *c = make_ctx(all_levels[l], 2);
            struct rig r;

            if (!c)
                break;
            if (l > 0 && TAKES_MINUTES(&shapes[i])) {
                be_ctx_free(&c);
                continue;
            }
            rig_init(&r, &shapes[i], l == 0 ? 3 : 1); /* plain C takes its time */
            formulas(&r);
            attend(c, &r, 0, r.offsets, 5, r.got);
            assert_near(shapes[i].name, r.got, r.want, (size_t)r.n * r.cols, ABS_TOL, 0);
            rig_deinit(&r);
            be_ctx_free(&c);
        }
    }
}

/* All sequences at once on 1 to 3 threads, and each by itself: same bits. */
static void neighbours_and_threads_never_change_a_row(void **state)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (size_t l = 0; l < N_LEVELS; l++) {
            struct rig r;

            if (l > 0 && TAKES_MINUTES(&shapes[i]))
                continue;
            rig_init(&r, &shapes[i], l == 0 ? 4 : 1);
            for (unsigned threads = 1; threads <= 3; threads++) {
                struct be_ctx *c = make_ctx(all_levels[l], threads);

                if (!c)
                    break;
                attend(c, &r, 0, r.offsets, 5, threads == 1 ? r.want : r.got);
                if (threads > 1)
                    assert_same(shapes[i].name, r.got, r.want, (size_t)r.n * r.cols);
                for (uint32_t s = 0; s < 5; s++) {
                    uint32_t alone[2] = {0, r.offsets[s + 1] - r.offsets[s]};

                    attend(c, &r, r.offsets[s], alone, 1, r.got);
                    assert_same(shapes[i].name, r.got, r.want + (size_t)r.offsets[s] * r.cols,
                                (size_t)alone[1] * r.cols);
                }
                be_ctx_free(&c);
            }
            rig_deinit(&r);
        }
    }
}

static void misuse_is_refused(void **state)
{
    struct be_ctx *c = make_ctx("c", 1);
    struct be_tensor *q = tensor(c, 8, 16, NULL), *o = tensor(c, 8, 16, NULL);
    struct be_tensor *k = tensor(c, 8, 16, NULL), *narrow = tensor(c, 8, 8, NULL);
    int32_t rel[15] = {0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 7, 7};
    uint32_t offsets[3] = {0, 5, 8};
    const struct be_attention_rel_args good = {.q = q,
                                               .k = k,
                                               .v = k,
                                               .rk = k,
                                               .rq = q,
                                               .out = o,
                                               .rel = rel,
                                               .reach = 4,
                                               .n_rel = 8,
                                               .offsets = offsets,
                                               .n_seqs = 2,
                                               .n_heads = 2,
                                               .head_dim = 8,
                                               .scale = 1};
    struct be_attention_rel_args a = good;

    OK(be_attention_rel(c, &a, err));
    a.reach = 3; /* 5 rows */
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a = good;
    a.n_rel = 9; /* of 8 rows */
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a = good;
    rel[3] = 8;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    rel[3] = -1;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    rel[3] = 3;
    a.out = k;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a = good;
    a.rk = narrow;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a = good;
    a.n_heads = 0;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a.n_heads = 1;
    a.head_dim = 16;
    OK(be_attention_rel(c, &a, err));
    a.head_dim = 1024;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a = good;
    offsets[1] = 9;
    FAILS(RC_INVALID, be_attention_rel(c, &a, err));
    a.n_seqs = 0;
    OK(be_attention_rel(c, &a, err));
    be_tensor_free(c, &q);
    be_tensor_free(c, &o);
    be_tensor_free(c, &k);
    be_tensor_free(c, &narrow);
    be_ctx_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_computes_the_formula),
        cmocka_unit_test(neighbours_and_threads_never_change_a_row),
        cmocka_unit_test(misuse_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
