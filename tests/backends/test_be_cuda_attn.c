/* test_be_cuda_attn.c - attention over the cache and inside packed sequences on the
 * (emulated) device against plain C: chunked, token by token, several sequences at once, windows,
 * the types of the cache. */
#include "cuda_test.h"

#define ABS_F32 3e-5
#define ABS_F16 6e-3 /* products of halves on tensor cores */
#define ABS_Q8 6e-2  /* keys and values of 8 bits against f16 */

#define PAGE 16u
#define MAX_PAGES 64

struct geo {
    uint32_t heads, kv_heads, dim, window;
    enum be_dtype kv;
    double tol;
};
static const struct geo geos[] = {
    {4, 2, 64, 0, BE_F32, ABS_F32},   {2, 1, 256, 0, BE_F16, ABS_F16},
    {2, 2, 96, 100, BE_F32, ABS_F32}, {4, 1, 128, 70, BE_F16, ABS_F16},
    {2, 1, 64, 0, BE_Q8_0, ABS_Q8},
};
#define N_GEOS (sizeof(geos) / sizeof(geos[0]))

struct cache {
    struct be_ctx *c;
    const struct geo *g;
    struct be_kv *kv;
    struct be_tensor *q, *k, *v, *out;
};

static void cache_init(struct cache *h, struct be_ctx *c, const struct geo *g, enum be_dtype kv,
                       uint32_t rows)
{
    const struct be_kv_layer layers[2] = {{1, g->kv_heads, g->dim}, {0, 1, g->dim}};
    struct be_kv_desc d = {.n_layers = 2,
                           .n_classes = 2,
                           .page_tokens = PAGE,
                           .layers = layers,
                           .n_pages = {2, MAX_PAGES},
                           .dtype = kv};

    *h = (struct cache){.c = c, .g = g};
    OK(be_kv_new(c, &d, &h->kv, err));
    h->q = tensor(c, rows, g->heads * g->dim, NULL);
    h->out = tensor(c, rows, g->heads * g->dim, NULL);
    h->k = tensor(c, rows, g->kv_heads * g->dim, NULL);
    h->v = tensor(c, rows, g->kv_heads * g->dim, NULL);
}

static void cache_deinit(struct cache *h)
{
    be_tensor_free(h->c, &h->q);
    be_tensor_free(h->c, &h->k);
    be_tensor_free(h->c, &h->v);
    be_tensor_free(h->c, &h->out);
    be_kv_free(h->c, &h->kv);
}

/* Rows of n_seqs sequences: written to the cache, then attended. */
static void step(struct cache *h, const float *q, const float *k, const float *v,
                 const struct be_seq *seqs, uint32_t n_seqs, uint32_t n, float *out)
{
    struct be_kv_write_args w = {
        .kv = h->kv, .layer = 0, .k = h->k, .v = h->v, .seqs = seqs, .n_seqs = n_seqs};
    struct be_attention_args a = {.q = h->q,
                                  .out = h->out,
                                  .kv = h->kv,
                                  .layer = 0,
                                  .n_heads = h->g->heads,
                                  .scale = 0.2f,
                                  .window = h->g->window,
                                  .seqs = seqs,
                                  .n_seqs = n_seqs};

    OK(be_tensor_write(h->c, h->q, 0, n, q, err));
    OK(be_tensor_write(h->c, h->k, 0, n, k, err));
    OK(be_tensor_write(h->c, h->v, 0, n, v, err));
    OK(be_kv_write(h->c, &w, err));
    OK(be_attention(h->c, &a, err));
    OK(be_tensor_read(h->c, h->out, 0, n, out, err));
}

/* One sequence in chunks of cut; pages behind the window are let go. */
static void sequence(struct be_ctx *c, const struct geo *g, enum be_dtype kv, uint32_t n,
                     uint32_t cut, const float *q, const float *k, const float *v, float *out)
{
    uint32_t qw = g->heads * g->dim, kw = g->kv_heads * g->dim;
    int32_t pages[MAX_PAGES];
    struct cache h;

    cache_init(&h, c, g, kv, n);
    for (int i = 0; i < MAX_PAGES; i++)
        pages[i] = (i * 7 + 3) % MAX_PAGES;
    for (uint32_t p = 0; p < n; p += cut) {
        struct be_seq s = {.n_rows = n - p < cut ? n - p : cut, .pos0 = p, .pages = {NULL, pages}};

        for (uint32_t i = 0; g->window > 0 && (i + 1) * PAGE + g->window <= p + 1; i++)
            pages[i] = -1;
        step(&h, q + (size_t)p * qw, k + (size_t)p * kw, v + (size_t)p * kw, &s, 1, s.n_rows,
             out + (size_t)p * qw);
    }
    cache_deinit(&h);
}

static void inputs(const struct geo *g, uint32_t n, float **q, float **k, float **v, float **a,
                   float **b)
{
    size_t qn = (size_t)n * g->heads * g->dim, kn = (size_t)n * g->kv_heads * g->dim;

    *q = xcalloc(qn, 4);
    *k = xcalloc(kn, 4);
    *v = xcalloc(kn, 4);
    *a = xcalloc(qn, 4);
    *b = xcalloc(qn, 4);
    fill(*q, qn, 6 / sqrtf((float)g->dim));
    fill(*k, kn, 4);
    fill(*v, kn, 2);
}

static void matches_and_chunks_agree(void **state)
{
    static const uint32_t cuts[] = {300, 8, 113};

    for (size_t i = 0; i < N_GEOS; i++) {
        const struct geo *g = &geos[i];
        struct be_ctx *cpu = make_ctx("c", 1), *gpu = cuda_ctx(true, true, NULL);
        uint32_t n = 300;
        size_t qn = (size_t)n * g->heads * g->dim;
        float *q, *k, *v, *want, *first = xcalloc(qn, 4), *got;

        inputs(g, n, &q, &k, &v, &want, &got);
        sequence(cpu, g, g->kv == BE_Q8_0 ? BE_F16 : g->kv, n, n, q, k, v, want);
        for (size_t j = 0; j < 3; j++) {
            sequence(gpu, g, g->kv, n, cuts[j], q, k, v, j ? got : first);
            if (j == 0)
                assert_near("whole", first, want, qn, g->tol, 0);
            else
                assert_same("chunks", got, first, qn);
        }
        free(q);
        free(k);
        free(v);
        free(want);
        free(first);
        free(got);
        be_ctx_free(&cpu);
        be_ctx_free(&gpu);
    }
}

/* A long chunk, single tokens and a draft of 3 in one call, against each alone; rows out
 * of order and with a gap that nobody may touch. */
static void neighbours(void **state)
{
    const struct geo g = {4, 2, 64, 0, BE_F16, ABS_F16};
    enum { QW = 256, KW = 128, N = 40, S = 4 };
    const uint32_t len[S] = {1, 20, 3, 1}, row[S] = {3, 8, 0, 30};
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    float *q, *k, *v, *all, *one;
    int32_t pages[S][4];
    struct be_seq s[S];
    struct cache h;

    inputs(&g, N, &q, &k, &v, &all, &one);
    for (int pass = 0; pass < 2; pass++) {
        cache_init(&h, c, &g, g.kv, N);
        for (int i = 0; i < S; i++) {
            for (int j = 0; j < 4; j++)
                pages[i][j] = i * 4 + j;
            s[i] = (struct be_seq){.row0 = row[i], .n_rows = len[i], .pages = {NULL, pages[i]}};
        }
        for (uint32_t i = 0; i < (pass ? S : 1); i++)
            step(&h, q, k, v, s + i, pass ? 1 : S, N, pass ? one : all);
        cache_deinit(&h);
    }
    for (int i = 0; i < S; i++)
        assert_same("alone", one + row[i] * QW, all + row[i] * QW, len[i] * QW);
    for (int i = 0; i < QW; i++)
        assert_true(all[5 * QW + i] == 0 && one[35 * QW + i] == 0);
    free(q);
    free(k);
    free(v);
    free(all);
    free(one);
    be_ctx_free(&c);
}

/* Many sequences of different lengths decode together: splits are shared. */
static void decode_many(void **state)
{
    const struct geo g = {4, 1, 64, 0, BE_F32, ABS_F32};
    enum { QW = 256, KW = 64, S = 6 };
    static const uint32_t len[S] = {1, 257, 30, 600, 256, 512};
    struct be_ctx *c = cuda_ctx(true, true, NULL), *cpu = make_ctx("c", 1);
    float *q, *k, *v, *want, *got, *dump = xcalloc(600 * QW, 4);
    int32_t pages[S][MAX_PAGES];
    int32_t next = 0;
    struct be_kv_layer layer = {0, 1, 64};

    inputs(&g, 700, &q, &k, &v, &want, &got);
    for (int i = 0; i < S; i++)
        for (uint32_t j = 0; j * PAGE < len[i] + 1; j++)
            pages[i][j] = next++;
    for (int dev = 0; dev < 2; dev++) {
        struct be_ctx *x = dev ? c : cpu;
        struct be_kv_desc d = {.n_layers = 1,
                               .n_classes = 1,
                               .page_tokens = PAGE,
                               .layers = &layer,
                               .n_pages = {(uint32_t)next},
                               .dtype = BE_F32};
        struct cache h = {.c = x, .g = &g};
        struct be_seq s[S];

        OK(be_kv_new(x, &d, &h.kv, err));
        h.q = tensor(x, 600, QW, NULL);
        h.out = tensor(x, 600, QW, NULL);
        h.k = tensor(x, 600, KW, NULL);
        h.v = tensor(x, 600, KW, NULL);
        for (uint32_t i = 0; i < S; i++) {
            struct be_seq one = {.n_rows = len[i], .pages = {pages[i]}};

            step(&h, q + i, k + i, v + i, &one, 1, len[i], dump);
            s[i] = (struct be_seq){.row0 = i, .n_rows = 1, .pos0 = len[i], .pages = {pages[i]}};
        }
        step(&h, q, k, v, s, S, S, dev ? got : want);
        if (dev)
            for (uint32_t i = 0; i < S; i++) {
                float alone[QW];

                s[i].row0 = 0;
                step(&h, q + i * QW, k + i * KW, v + i * KW, &s[i], 1, 1, alone);
                assert_same("alone", alone, got + i * QW, QW);
            }
        cache_deinit(&h);
    }
    assert_near("decode", got, want, S * QW, ABS_F32, 0);
    free(q);
    free(k);
    free(v);
    free(want);
    free(got);
    free(dump);
    be_ctx_free(&c);
    be_ctx_free(&cpu);
}

static float *packed(struct be_ctx *c, const struct geo *g, const float *q, const float *k,
                     const float *v, const uint32_t *off, uint32_t n_seqs, int32_t radius)
{
    uint32_t n = off[n_seqs], qw = g->heads * g->dim, kw = g->kv_heads * g->dim;
    struct be_tensor *tq = tensor(c, n, qw, q), *tk = tensor(c, n, kw, k),
                     *tv = tensor(c, n, kw, v), *to = tensor(c, n, qw, NULL);
    struct be_attention_packed_args a = {.q = tq,
                                         .k = tk,
                                         .v = tv,
                                         .out = to,
                                         .offsets = off,
                                         .n_seqs = n_seqs,
                                         .n_heads = g->heads,
                                         .n_kv_heads = g->kv_heads,
                                         .head_dim = g->dim,
                                         .scale = 0.2f,
                                         .radius = radius};
    float *out;

    OK(be_attention_packed(c, &a, err));
    out = read_all(c, to, n, qw);
    be_tensor_free(c, &tq);
    be_tensor_free(c, &tk);
    be_tensor_free(c, &tv);
    be_tensor_free(c, &to);
    return out;
}

static void packed_sequences(void **state)
{
    static const uint32_t off[] = {0, 1, 70, 70, 100}, alone[] = {0, 69};
    static const struct geo gs[] = {{4, 2, 64, 0, BE_F32, 0}, {2, 2, 32, 0, BE_F32, 0}};
    static const int32_t radius[] = {-1, 0, 9};

    for (size_t i = 0; i < 2; i++)
        for (size_t r = 0; r < 3; r++) {
            const struct geo *g = &gs[i];
            struct be_ctx *cpu = make_ctx("c", 1), *gpu = cuda_ctx(true, true, NULL);
            uint32_t qw = g->heads * g->dim, kw = g->kv_heads * g->dim;
            float *q, *k, *v, *a, *b, *want, *got, *one;

            inputs(g, 100, &q, &k, &v, &a, &b);
            want = packed(cpu, g, q, k, v, off, 4, radius[r]);
            got = packed(gpu, g, q, k, v, off, 4, radius[r]);
            assert_near("packed", got, want, 100 * qw, ABS_F32, 0);
            one = packed(gpu, g, q + qw, k + kw, v + kw, alone, 1, radius[r]);
            assert_same("alone", one, got + qw, 69 * qw);
            free(q);
            free(k);
            free(v);
            free(a);
            free(b);
            free(want);
            free(got);
            free(one);
            be_ctx_free(&cpu);
            be_ctx_free(&gpu);
        }
}

#define REACH 72u
#define N_REL 30u

static enum rc relative(struct be_ctx *c, const struct geo *g, float *const x[5],
                        const uint32_t *off, uint32_t n_seqs, const int32_t *rel, float **out,
                        struct rc_err *why)
{
    uint32_t n = off[n_seqs], w = g->heads * g->dim;
    struct be_tensor *t[6];
    struct be_attention_rel_args a = {.rel = rel,
                                      .reach = REACH,
                                      .n_rel = N_REL,
                                      .offsets = off,
                                      .n_seqs = n_seqs,
                                      .n_heads = g->heads,
                                      .head_dim = g->dim,
                                      .scale = 0.2f};
    enum rc rc;

    for (int i = 0; i < 6; i++)
        t[i] = tensor(c, i == 3 || i == 4 ? N_REL : n, w, i < 5 ? x[i] : NULL);
    a.q = t[0];
    a.k = t[1];
    a.v = t[2];
    a.rk = t[3];
    a.rq = t[4];
    a.out = t[5];
    rc = be_attention_rel(c, &a, why);
    *out = rc == RC_OK ? read_all(c, t[5], n, w) : NULL;
    for (int i = 0; i < 6; i++)
        be_tensor_free(c, &t[i]);
    return rc;
}

/* Disentangled attention: as the CPU has it, alone as together; a table or a sequence that does not
 * fit is refused. */
static void relative_positions(void **state)
{
    static const uint32_t off[] = {0, 1, 70, 70, 100}, alone[] = {0, 69}, longer[] = {0, 74};
    static const struct geo gs[] = {{2, 2, 64, 0, BE_F32, 0}, {3, 3, 24, 0, BE_F32, 0}};
    int32_t rel[2 * REACH + 1];

    for (uint32_t i = 0; i <= 2 * REACH; i++)
        rel[i] = (int32_t)(i / 5);
    for (size_t i = 0; i < 2; i++) {
        const struct geo *g = &gs[i];
        struct be_ctx *cpu = make_ctx("c", 1), *gpu = cuda_ctx(true, true, NULL);
        uint32_t w = g->heads * g->dim;
        float *x[5], *at[5], *want, *got, *one;
        struct rc_err e = RC_ERR_INIT;

        inputs(g, 100, &x[0], &x[1], &x[2], &x[3], &x[4]);
        fill(x[3], (size_t)N_REL * w, 1);
        fill(x[4], (size_t)N_REL * w, 0.5f);
        for (int k = 0; k < 5; k++)
            at[k] = k < 3 ? x[k] + w : x[k];
        OK(relative(cpu, g, x, off, 4, rel, &want, err));
        OK(relative(gpu, g, x, off, 4, rel, &got, err));
        assert_near("relative", got, want, 100 * w, ABS_F32, 0);
        OK(relative(gpu, g, at, alone, 1, rel, &one, err));
        assert_same("alone", one, got + w, 69 * w);
        free(want);
        free(got);
        free(one);
        assert_int_equal(relative(gpu, g, x, longer, 1, rel, &one, &e), RC_INVALID);
        assert_non_null(strstr(e.msg, "74 rows"));
        rel[3] = N_REL;
        assert_int_equal(relative(gpu, g, x, off, 4, rel, &one, &e), RC_INVALID);
        assert_non_null(strstr(e.msg, "vector 30 of 30"));
        rel[3] = 0;
        for (int k = 0; k < 5; k++)
            free(x[k]);
        be_ctx_free(&cpu);
        be_ctx_free(&gpu);
    }
}

static void refused(void **state)
{
    const struct geo g = {2, 1, 64, 0, BE_F16, 0};
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    int32_t pages[2] = {MAX_PAGES, -1};
    struct be_seq s = {.n_rows = 2, .pages = {NULL, pages}};
    struct be_kv_write_args w;
    struct be_attention_args a;
    struct be_kv_layer layer = {0, 1, 64};
    struct be_kv_desc d = {.n_layers = 1,
                           .n_classes = 1,
                           .page_tokens = 24,
                           .layers = &layer,
                           .n_pages = {1},
                           .dtype = BE_F16};
    struct be_kv *none = NULL;
    struct cache h;

    cache_init(&h, c, &g, g.kv, 4);
    w = (struct be_kv_write_args){.kv = h.kv, .k = h.k, .v = h.v, .seqs = &s, .n_seqs = 1};
    a = (struct be_attention_args){
        .q = h.q, .out = h.out, .kv = h.kv, .n_heads = 2, .scale = 1, .seqs = &s, .n_seqs = 1};
    FAILS(RC_INVALID, be_kv_write(c, &w, err)); /* page out of range */
    pages[0] = -1;
    FAILS(RC_INVALID, be_kv_write(c, &w, err)); /* let go */
    FAILS(RC_INVALID, be_attention(c, &a, err));
    s.pages[1] = NULL;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    s.n_rows = 5;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    a.n_heads = 3;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    FAILS(RC_INVALID, be_kv_new(c, &d, &none, err));
    d.page_tokens = 16;
    d.dtype = BE_Q4_0;
    FAILS(RC_UNSUPPORTED, be_kv_new(c, &d, &none, err));
    d.dtype = BE_F16;
    layer.head_dim = 63;
    FAILS(RC_UNSUPPORTED, be_kv_new(c, &d, &none, err));
    cache_deinit(&h);
    be_ctx_free(&c);
}

static int need(void **state)
{
    cuda_need();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_and_chunks_agree),
        cmocka_unit_test(neighbours),
        cmocka_unit_test(decode_many),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(relative_positions),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, need, NULL);
}
