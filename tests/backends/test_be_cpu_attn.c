/* test_be_cpu_attn.c - KV cache and both attentions: every level against f64
 * sums over the exact cached values, and the equality contract bit for bit. */
#include "be_test.h"

/* Scores of magnitude up to ~8; all levels against f64. A score's rounding grows with the root
 * of its chain, the head: 5.01e-6 was seen with many heads of 512. */
#define ABS_TOL 4e-6
#define TOL_OF(dim) (ABS_TOL * ((dim) > 256 ? sqrt((dim) / 256.0) : 1))

struct geo {
    uint32_t heads, kv_heads, dim, page, window;
    enum be_dtype kv;
};

static const struct geo geos[] = {
    {4, 1, 256, 16, 0, BE_F16},    {4, 1, 256, 32, 40, BE_F16}, {8, 4, 64, 16, 0, BE_F16},
    {2, 2, 40, 64, 17, BE_F16},    {3, 1, 512, 16, 0, BE_F16},  {6, 2, 24, 128, 1, BE_F16},
    {4, 2, 128, 256, 100, BE_F32}, {2, 1, 20, 16, 0, BE_F16},   {4, 4, 16, 16, 5, BE_F32},
    {1, 1, 6, 16, 0, BE_F32},      {16, 1, 72, 16, 33, BE_F16}, {8, 1, 512, 32, 0, BE_F16},
    {14, 2, 56, 64, 0, BE_F32},
};

#define MAX_TOK 300
#define LONG_TOK 8210 /* past the first length whose cuts are wider */

struct cache {
    struct be_ctx *c;
    struct geo g;
    struct be_kv *kv;
    int32_t pages[MAX_TOK / 16 + 1];
    struct be_tensor *q, *k, *v, *out;
};

static void cache_init(struct cache *h, struct be_ctx *c, const struct geo *g, int32_t first_page)
{
    /* class 0 holds another layer, so offsets inside a page matter */
    const struct be_kv_layer layers[3] = {{1, 1, 8}, {0, 1, 16}, {1, g->kv_heads, g->dim}};
    struct be_kv_desc d = {.n_layers = 3,
                           .n_classes = 2,
                           .page_tokens = g->page,
                           .layers = layers,
                           .n_pages = {1, 64},
                           .dtype = g->kv};

    *h = (struct cache){.c = c, .g = *g};
    OK(be_kv_new(c, &d, &h->kv, err));
    for (int32_t i = 0; i <= MAX_TOK / 16; i++)
        h->pages[i] = (first_page + i * 7) % 64;
    h->q = tensor(c, MAX_TOK, g->heads * g->dim, NULL);
    h->out = tensor(c, MAX_TOK, g->heads * g->dim, NULL);
    h->k = tensor(c, MAX_TOK, g->kv_heads * g->dim, NULL);
    h->v = tensor(c, MAX_TOK, g->kv_heads * g->dim, NULL);
}

static void cache_deinit(struct cache *h)
{
    be_tensor_free(h->c, &h->q);
    be_tensor_free(h->c, &h->k);
    be_tensor_free(h->c, &h->v);
    be_tensor_free(h->c, &h->out);
    be_kv_free(h->c, &h->kv);
}

/* Tokens [pos0, pos0 + n) through the cache; their outputs to out. */
static void step(struct cache *h, const float *q, const float *k, const float *v, uint32_t pos0,
                 uint32_t n, float *out)
{
    size_t qw = h->g.heads * h->g.dim, kw = h->g.kv_heads * h->g.dim;
    int32_t pages[MAX_TOK / 16 + 1];
    struct be_seq s = {.row0 = 0, .n_rows = n, .pos0 = pos0, .pages = {NULL, pages}};
    struct be_kv_write_args w = {
        .kv = h->kv, .layer = 2, .k = h->k, .v = h->v, .seqs = &s, .n_seqs = 1};
    struct be_attention_args a = {.q = h->q,
                                  .out = h->out,
                                  .kv = h->kv,
                                  .layer = 2,
                                  .n_heads = h->g.heads,
                                  .scale = 0.3f,
                                  .window = h->g.window,
                                  .seqs = &s,
                                  .n_seqs = 1};

    memcpy(pages, h->pages, sizeof(pages));
    /* pages that the window has left behind are gone */
    for (uint32_t p = 0; h->g.window > 0 && (p + 1) * h->g.page + h->g.window <= pos0 + 1; p++)
        pages[p] = -1;
    OK(be_tensor_write(h->c, h->q, 0, n, q + pos0 * qw, err));
    OK(be_tensor_write(h->c, h->k, 0, n, k + pos0 * kw, err));
    OK(be_tensor_write(h->c, h->v, 0, n, v + pos0 * kw, err));
    OK(be_kv_write(h->c, &w, err));
    OK(be_attention(h->c, &a, err));
    OK(be_tensor_read(h->c, h->out, 0, n, out + pos0 * qw, err));
}

/* f64 attention of one query over keys [lo, hi). */
static void oracle(const float *q, const float *k, const float *v, size_t ld, uint32_t dim,
                   uint32_t lo, uint32_t hi, double scale, float *out)
{
    static double s[LONG_TOK];
    double max = -INFINITY, sum = 0, acc[512] = {0};

    for (uint32_t p = lo; p < hi; p++) {
        s[p] = 0;
        for (uint32_t d = 0; d < dim; d++)
            s[p] += (double)q[d] * k[p * ld + d];
        s[p] *= scale;
        max = fmax(max, s[p]);
    }
    for (uint32_t p = lo; p < hi; p++) {
        double w = exp(s[p] - max);

        sum += w;
        for (uint32_t d = 0; d < dim; d++)
            acc[d] += w * v[p * ld + d];
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] = (float)(acc[d] / sum);
}

static void as_cached(float *x, size_t n, enum be_dtype t)
{
    for (size_t i = 0; t == BE_F16 && i < n; i++)
        x[i] = be_half_to_f32(be_f32_to_half(x[i]));
}

struct inputs {
    float *q, *k, *v, *want, *got;
    size_t qn, kn;
};

static void inputs_init(struct inputs *in, const struct geo *g, uint32_t n)
{
    in->qn = (size_t)n * g->heads * g->dim;
    in->kn = (size_t)n * g->kv_heads * g->dim;
    in->q = xcalloc(in->qn, 4);
    in->k = xcalloc(in->kn, 4);
    in->v = xcalloc(in->kn, 4);
    in->want = xcalloc(in->qn, 4);
    in->got = xcalloc(in->qn, 4);
    fill(in->q, in->qn, 4 / sqrtf((float)g->dim));
    fill(in->k, in->kn, 4);
    fill(in->v, in->kn, 2);
}

static void inputs_deinit(struct inputs *in)
{
    free(in->q);
    free(in->k);
    free(in->v);
    free(in->want);
    free(in->got);
}

static void cached_attention_matches_exact_sums(void **state)
{
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t i = 0; c && i < sizeof(geos) / sizeof(geos[0]); i++) {
            const struct geo *g = &geos[i];
            uint32_t n = l == 0 ? 80 : 270, kw = g->kv_heads * g->dim, qw = g->heads * g->dim;
            struct inputs in;
            struct cache h;

            inputs_init(&in, g, n);
            cache_init(&h, c, g, (int32_t)i);
            step(&h, in.q, in.k, in.v, 0, n - 3, in.got);
            step(&h, in.q, in.k, in.v, n - 3, 3, in.got);
            as_cached(in.k, in.kn, g->kv);
            as_cached(in.v, in.kn, g->kv);
            for (uint32_t p = 0; p < n; p++) {
                for (uint32_t hd = 0; hd < g->heads; hd++) {
                    uint32_t kvh = hd / (g->heads / g->kv_heads);
                    uint32_t lo = g->window > 0 && p >= g->window ? p - g->window + 1 : 0;

                    oracle(in.q + p * qw + hd * g->dim, in.k + kvh * g->dim, in.v + kvh * g->dim,
                           kw, g->dim, lo, p + 1, 0.3f, in.want + p * qw + hd * g->dim);
                }
            }
            assert_near(all_levels[l], in.got, in.want, in.qn, TOL_OF(g->dim), 0);
            cache_deinit(&h);
            inputs_deinit(&in);
        }
        be_ctx_free(&c);
    }
}

/* All at once, token by token, odd chunks, 1 to 3 threads: same bits. */
static void chunking_never_changes_a_row(void **state)
{
    static const uint32_t cuts[] = {1, 7, 64, 150};

    for (size_t l = 0; l < N_LEVELS; l++) {
        for (size_t i = 0; i < sizeof(geos) / sizeof(geos[0]); i++) {
            uint32_t n = l == 0 ? 50 : 200;
            struct inputs in;

            inputs_init(&in, &geos[i], n);
            for (unsigned threads = 1; threads <= 3; threads++) {
                struct be_ctx *c = make_ctx(all_levels[l], threads);
                struct cache h;

                if (!c)
                    break;
                for (size_t k = 0; k < 4; k++) {
                    float *out = k == 0 && threads == 1 ? in.want : in.got;

                    cache_init(&h, c, &geos[i], (int32_t)k * 5);
                    for (uint32_t p = 0; p < n; p += cuts[k])
                        step(&h, in.q, in.k, in.v, p, n - p < cuts[k] ? n - p : cuts[k], out);
                    assert_same(all_levels[l], out, in.want, in.qn);
                    cache_deinit(&h);
                }
                be_ctx_free(&c);
            }
            inputs_deinit(&in);
        }
    }
}

/* Three sequences in one call against each alone; NaN in pages nobody owns. */
static void neighbours_never_change_a_row(void **state)
{
    const struct geo g = {4, 2, 64, 16, 0, BE_F16};
    const uint32_t len[3] = {5, 40, 1};
    enum { QW = 256, KW = 128, N = 46 };

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);
        struct inputs in;
        struct cache h;
        struct be_seq s[3];
        int32_t pages[3][3] = {{9, -1, -1}, {1, 2, 3}, {5, -1, -1}};
        float poison[16 * KW];
        uint32_t row = 0;

        if (!c)
            break;
        inputs_init(&in, &g, N);
        cache_init(&h, c, &g, 0);
        /* every slot of the pages used later holds NaN first */
        for (int i = 0; i < 16 * KW; i++)
            poison[i] = NAN;
        for (int32_t p = 0; p < 10; p++) {
            struct be_seq all = {.row0 = 0, .n_rows = 16, .pos0 = 0, .pages = {NULL, &p}};
            struct be_kv_write_args w = {
                .kv = h.kv, .layer = 2, .k = h.k, .v = h.v, .seqs = &all, .n_seqs = 1};

            OK(be_tensor_write(c, h.k, 0, 16, poison, err));
            OK(be_tensor_write(c, h.v, 0, 16, poison, err));
            OK(be_kv_write(c, &w, err));
        }
        for (int i = 0; i < 3; i++) {
            s[i] = (struct be_seq){.row0 = row, .n_rows = len[i], .pages = {NULL, pages[i]}};
            row += len[i];
        }
        OK(be_tensor_write(c, h.q, 0, N, in.q, err));
        OK(be_tensor_write(c, h.k, 0, N, in.k, err));
        OK(be_tensor_write(c, h.v, 0, N, in.v, err));
        for (int pass = 0; pass < 2; pass++) { /* together, then one by one */
            for (uint32_t i = 0; i < (pass ? 3u : 1u); i++) {
                struct be_kv_write_args w = {.kv = h.kv,
                                             .layer = 2,
                                             .k = h.k,
                                             .v = h.v,
                                             .seqs = s + i,
                                             .n_seqs = pass ? 1 : 3};
                struct be_attention_args a = {.q = h.q,
                                              .out = h.out,
                                              .kv = h.kv,
                                              .layer = 2,
                                              .n_heads = 4,
                                              .scale = 0.125f,
                                              .seqs = s + i,
                                              .n_seqs = pass ? 1 : 3};

                OK(be_kv_write(c, &w, err));
                OK(be_attention(c, &a, err));
            }
            OK(be_tensor_read(c, h.out, 0, N, pass ? in.got : in.want, err));
        }
        assert_same("alone", in.got, in.want, N * QW);
        for (size_t i = 0; i < N * QW; i++)
            assert_true(isfinite(in.want[i]));
        cache_deinit(&h);
        inputs_deinit(&in);
        be_ctx_free(&c);
    }
}

/* Rows [first, first + n) of a long sequence, and the row of a short one behind them,
 * over a cache that holds all keys. */
static void long_rows(struct be_ctx *c, struct be_kv *kv, const struct geo *g, const float *q,
                      int32_t *pages, uint32_t first, uint32_t n, uint32_t n_seqs, float *out)
{
    uint32_t qw = g->heads * g->dim;
    const struct be_seq seqs[2] = {
        {.row0 = 0, .n_rows = n, .pos0 = first, .pages = {pages}},
        {.row0 = n, .n_rows = 1, .pos0 = 3, .pages = {pages}},
    };
    struct be_tensor *tq = tensor(c, n + 1, qw, NULL), *to = tensor(c, n + 1, qw, NULL);
    struct be_attention_args a = {.q = tq,
                                  .out = to,
                                  .kv = kv,
                                  .n_heads = g->heads,
                                  .scale = 0.3f,
                                  .window = g->window,
                                  .seqs = seqs,
                                  .n_seqs = n_seqs};

    OK(be_tensor_write(c, tq, 0, n, q + (size_t)first * qw, err));
    OK(be_tensor_write(c, tq, n, 1, q + 3 * qw, err));
    OK(be_attention(c, &a, err));
    OK(be_tensor_read(c, to, 0, n, out, err));
    if (n_seqs == 2)
        OK(be_tensor_read(c, to, n, 1, out + (size_t)n * qw, err));
    be_tensor_free(c, &tq);
    be_tensor_free(c, &to);
}

/* Rows beyond the first cuts: as one block that walks all keys, one by one and few at once
 * with the keys shared by 1 to 5 threads, beside a short neighbour: same bits, and near f64. */
static void split_keys_never_change_a_row(void **state)
{
    enum { REF = 60, MAX_ROWS = 6 }; /* REF rows of one head are more than an item holds */
    static const struct {
        struct geo g;
        uint32_t n;
    } cases[] = {
        {{8, 1, 64, 64, 0, BE_F16}, 560}, /* the first cut row among them */
        {{8, 1, 40, 32, 0, BE_F16}, 1300}, {{4, 2, 32, 16, 900, BE_F16}, 1700},
        {{1, 1, 16, 16, 0, BE_F32}, 1100}, {{2, 1, 8, 256, 0, BE_F16}, LONG_TOK},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct geo *g = &cases[i].g;
        uint32_t n = cases[i].n, first = n - REF, qw = g->heads * g->dim, kw = g->kv_heads * g->dim;
        uint32_t n_pages = n / g->page + 1;
        int32_t *pages = xcalloc(n_pages, sizeof(*pages));
        float *want = xcalloc((size_t)REF * qw, 4), *exact = xcalloc((size_t)REF * qw, 4);
        float *got = xcalloc((size_t)(REF + 1) * qw, 4), *by_short = xcalloc(qw, 4);
        struct be_kv_layer layer = {0, g->kv_heads, g->dim};
        struct be_kv_desc d = {.n_layers = 1,
                               .n_classes = 1,
                               .page_tokens = g->page,
                               .layers = &layer,
                               .n_pages = {n_pages},
                               .dtype = g->kv};
        struct inputs in;

        inputs_init(&in, g, n);
        for (uint32_t p = 0; p < n_pages; p++)
            pages[p] = (int32_t)(n_pages - 1 - p);
        for (size_t l = 1; l < N_LEVELS; l++) {
            for (unsigned threads = 1; threads <= 5; threads += 1 + threads / 3) {
                struct be_ctx *c = make_ctx(all_levels[l], threads);
                const struct be_seq all = {.n_rows = n, .pages = {pages}};
                struct be_kv_write_args w = {.seqs = &all, .n_seqs = 1};
                struct be_kv *kv = NULL;

                if (!c)
                    break;
                w.k = tensor(c, n, kw, in.k);
                w.v = tensor(c, n, kw, in.v);
                OK(be_kv_new(c, &d, &kv, err));
                w.kv = kv;
                OK(be_kv_write(c, &w, err));
                if (threads == 1) {
                    long_rows(c, kv, g, in.q, pages, first, REF, 1, want);
                    long_rows(c, kv, g, in.q, pages, 3, 1, 1, by_short);
                }
                for (uint32_t step = 1; step <= MAX_ROWS; step += 2) {
                    for (uint32_t r = 0; r + step <= REF; r += step) {
                        long_rows(c, kv, g, in.q, pages, first + r, step, 2, got);
                        assert_same("split keys", got, want + (size_t)r * qw, (size_t)step * qw);
                        assert_same("neighbour", got + (size_t)step * qw, by_short, qw);
                    }
                }
                be_tensor_free(c, (struct be_tensor **)&w.k);
                be_tensor_free(c, (struct be_tensor **)&w.v);
                be_kv_free(c, &kv);
                be_ctx_free(&c);
            }
        }
        as_cached(in.k, in.kn, g->kv);
        as_cached(in.v, in.kn, g->kv);
        for (uint32_t r = 0; r < REF; r += 29) {
            uint32_t pos = first + r, lo = g->window > 0 ? pos - g->window + 1 : 0;

            for (uint32_t h = 0; h < g->heads; h++) {
                uint32_t at = h / (g->heads / g->kv_heads) * g->dim;

                oracle(in.q + (size_t)pos * qw + h * g->dim, in.k + at, in.v + at, kw, g->dim, lo,
                       pos + 1, 0.3f, exact + h * g->dim);
            }
            assert_near("cut sums", want + (size_t)r * qw, exact, qw, ABS_TOL, 0);
        }
        free(pages);
        free(want);
        free(exact);
        free(got);
        free(by_short);
        inputs_deinit(&in);
    }
}

static void packed_attention(struct be_ctx *c, const struct geo *g, const struct inputs *in,
                             const uint32_t *offsets, uint32_t n_seqs, int32_t radius, float *out)
{
    uint32_t n = offsets[n_seqs];
    struct be_tensor *q = tensor(c, n, g->heads * g->dim, in->q);
    struct be_tensor *k = tensor(c, n, g->kv_heads * g->dim, in->k);
    struct be_tensor *v = tensor(c, n, g->kv_heads * g->dim, in->v);
    struct be_tensor *o = tensor(c, n, g->heads * g->dim, NULL);
    struct be_attention_packed_args a = {.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = o,
                                         .offsets = offsets,
                                         .n_seqs = n_seqs,
                                         .n_heads = g->heads,
                                         .n_kv_heads = g->kv_heads,
                                         .head_dim = g->dim,
                                         .scale = 0.25f,
                                         .radius = radius};

    OK(be_attention_packed(c, &a, err));
    OK(be_tensor_read(c, o, 0, n, out, err));
    be_tensor_free(c, &q);
    be_tensor_free(c, &k);
    be_tensor_free(c, &v);
    be_tensor_free(c, &o);
}

static void packed_attention_matches_exact_sums(void **state)
{
    static const uint32_t offsets[] = {0, 1, 129, 129, 196, 210};
    static const int32_t radii[] = {-1, 0, 3, 60, 64, INT32_MAX};

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2), *c1 = make_ctx(all_levels[l], 1);

        for (size_t i = 0; c && i < sizeof(geos) / sizeof(geos[0]); i++) {
            const struct geo *g = &geos[i];
            uint32_t kw = g->kv_heads * g->dim, qw = g->heads * g->dim;
            struct inputs in;

            inputs_init(&in, g, 210);
            for (size_t r = 0; r < sizeof(radii) / sizeof(radii[0]); r++) {
                int64_t rad = radii[r] < 0 ? INT32_MAX : radii[r];

                if (l == 0 && (r > 3 || i > 3))
                    continue;
                packed_attention(c, g, &in, offsets, 5, radii[r], in.got);
                for (uint32_t s = 0; s < 5; s++) {
                    for (uint32_t p = offsets[s]; p < offsets[s + 1]; p++) {
                        int64_t lo = (int64_t)p - rad, hi = (int64_t)p + rad + 1;

                        if (lo < offsets[s])
                            lo = offsets[s];
                        if (hi > offsets[s + 1])
                            hi = offsets[s + 1];
                        for (uint32_t hd = 0; hd < g->heads; hd++) {
                            uint32_t kvh = hd / (g->heads / g->kv_heads);

                            oracle(in.q + p * qw + hd * g->dim, in.k + kvh * g->dim,
                                   in.v + kvh * g->dim, kw, g->dim, (uint32_t)lo, (uint32_t)hi,
                                   0.25, in.want + p * qw + hd * g->dim);
                        }
                    }
                }
                assert_near(all_levels[l], in.got, in.want, in.qn, ABS_TOL, 0);
                /* the second sequence alone, on one thread */
                {
                    const uint32_t one[] = {0, 128};
                    struct inputs sub = in;

                    sub.q += qw;
                    sub.k += kw;
                    sub.v += kw;
                    packed_attention(c1, g, &sub, one, 1, radii[r], in.want);
                    assert_same("sequence alone", in.want, in.got + qw, 128 * qw);
                }
            }
            inputs_deinit(&in);
        }
        be_ctx_free(&c);
        be_ctx_free(&c1);
    }
}

/* A key outside a row's window is never multiplied, not even by 0; rows that see it show it.
 * EmbeddingGemma 2's heads, more rows than an item holds, 1 to 3 threads: same bits. */
static void keys_outside_the_window_may_hold_anything(void **state)
{
    static const struct geo shapes[] = {
        {4, 2, 256, 16, 0, BE_F32}, {4, 1, 512, 16, 0, BE_F32}, {12, 12, 64, 16, 0, BE_F32}};
    enum { N = 150, BAD = 61, RADIUS = 20 };
    static const uint32_t offsets[] = {0, N};

    for (size_t l = 1; l < N_LEVELS; l++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            const struct geo *g = &shapes[i];
            uint32_t qw = g->heads * g->dim, kw = g->kv_heads * g->dim;
            struct inputs in;

            inputs_init(&in, g, N);
            for (unsigned threads = 1; threads <= 3; threads++) {
                struct be_ctx *c = make_ctx(all_levels[l], threads);
                float *out = threads == 1 ? in.want : in.got;

                if (!c)
                    break;
                packed_attention(c, g, &in, offsets, 1, RADIUS, out);
                assert_same("threads", out, in.want, in.qn);
                if (threads == 3) {
                    for (uint32_t d = 0; d < kw; d++)
                        in.k[BAD * kw + d] = in.v[BAD * kw + d] = NAN;
                    packed_attention(c, g, &in, offsets, 1, RADIUS, in.got);
                    assert_same("before", in.got, in.want, (size_t)(BAD - RADIUS) * qw);
                    assert_same("behind", in.got + (size_t)(BAD + RADIUS + 1) * qw,
                                in.want + (size_t)(BAD + RADIUS + 1) * qw,
                                (size_t)(N - BAD - RADIUS - 1) * qw);
                    for (size_t d = (size_t)(BAD - RADIUS) * qw;
                         d < (size_t)(BAD + RADIUS + 1) * qw; d++)
                        assert_true(isnan(in.got[d]));
                }
                be_ctx_free(&c);
            }
            inputs_deinit(&in);
        }
    }
}

/* Scores far apart: no overflow, the largest wins. */
static void extreme_scores_are_survived(void **state)
{
    const struct geo g = {1, 1, 16, 16, 0, BE_F32};
    static const uint32_t offsets[] = {0, 100};

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 1);
        struct inputs in;

        if (!c)
            break;
        inputs_init(&in, &g, 100);
        for (int i = 0; i < 100 * 16; i++) {
            in.q[i] = 100;
            in.k[i] = i / 16 == 77 ? 1000.0f : -1000.0f;
        }
        packed_attention(c, &g, &in, offsets, 1, -1, in.got);
        for (int p = 0; p < 100; p++)
            assert_same("winner takes all", in.got + p * 16, in.v + 77 * 16, 16);
        inputs_deinit(&in);
        be_ctx_free(&c);
    }
}

static void bad_pages_and_shapes_are_refused(void **state)
{
    const struct geo g = {4, 2, 64, 16, 0, BE_F16};
    struct be_ctx *c = make_ctx("auto", 1);
    struct cache h;
    int32_t bad[2] = {1, 64};
    struct be_seq s = {.row0 = 0, .n_rows = 17, .pages = {NULL, bad}};
    struct be_kv_write_args w;
    struct be_attention_args a;
    struct be_kv_layer layer = {0, 1, 64};
    struct be_kv_desc d = {.n_layers = 1,
                           .n_classes = 1,
                           .page_tokens = 24,
                           .layers = &layer,
                           .n_pages = {4},
                           .dtype = BE_F16};
    struct be_kv *none = NULL;

    cache_init(&h, c, &g, 0);
    w = (struct be_kv_write_args){
        .kv = h.kv, .layer = 2, .k = h.k, .v = h.v, .seqs = &s, .n_seqs = 1};
    a = (struct be_attention_args){.q = h.q,
                                   .out = h.out,
                                   .kv = h.kv,
                                   .layer = 2,
                                   .n_heads = 4,
                                   .scale = 1,
                                   .seqs = &s,
                                   .n_seqs = 1};
    FAILS(RC_INVALID, be_kv_write(c, &w, err));
    FAILS(RC_INVALID, be_attention(c, &a, err));
    bad[1] = -1;
    FAILS(RC_INVALID, be_kv_write(c, &w, err));
    bad[1] = 63;
    OK(be_kv_write(c, &w, err));
    OK(be_attention(c, &a, err));
    a.n_heads = 3;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    a.n_heads = 4;
    a.layer = 3;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    a.layer = 2;
    a.out = h.q;
    FAILS(RC_INVALID, be_attention(c, &a, err));
    s.n_rows = MAX_TOK + 1;
    FAILS(RC_INVALID, be_kv_write(c, &w, err));
    s.n_rows = 1;
    s.pos0 = UINT32_MAX;
    FAILS(RC_INVALID, be_kv_write(c, &w, err));
    FAILS(RC_INVALID, be_kv_new(c, &d, &none, err));
    d.page_tokens = 16;
    d.dtype = BE_Q8_0;
    FAILS(RC_UNSUPPORTED, be_kv_new(c, &d, &none, err));
    d.dtype = BE_F16;
    layer.cls = 1;
    FAILS(RC_INVALID, be_kv_new(c, &d, &none, err));
    layer = (struct be_kv_layer){0, UINT32_MAX, UINT32_MAX};
    FAILS(RC_INVALID, be_kv_new(c, &d, &none, err));
    layer = (struct be_kv_layer){0, 1, 64};
    d.n_pages[0] = INT32_MAX; /* petabytes */
    FAILS(RC_NOMEM, be_kv_new(c, &d, &none, err));
    assert_null(none);
    assert_int_equal(be_kv_page_bytes(&d, 0), 64 * 16 * 2 * 2);
    assert_int_equal(be_kv_page_bytes(&d, 1), 0);
    cache_deinit(&h);
    be_ctx_free(&c);
}

/* A head is summed in a thread's scratch: one that does not fit must not be tried. */
static void a_head_wider_than_the_scratch_is_refused(void **state)
{
    static const uint32_t offsets[] = {0, 1};
    const uint32_t fits = 131072;

    for (uint32_t dim = fits; dim <= 2 * fits; dim *= 2) {
        struct be_ctx *c = make_ctx("auto", 1);
        float *v = xcalloc(dim, sizeof(*v));
        struct be_tensor *q = tensor(c, 1, dim, v), *k = tensor(c, 1, dim, v),
                         *out = tensor(c, 1, dim, NULL);
        struct be_attention_packed_args a = {.q = q,
                                             .k = k,
                                             .v = k,
                                             .out = out,
                                             .offsets = offsets,
                                             .n_seqs = 1,
                                             .n_heads = 1,
                                             .n_kv_heads = 1,
                                             .head_dim = dim,
                                             .scale = 1,
                                             .radius = -1};

        if (dim == fits)
            OK(be_attention_packed(c, &a, err));
        else
            FAILS(RC_INVALID, be_attention_packed(c, &a, err));
        be_tensor_free(c, &q);
        be_tensor_free(c, &k);
        be_tensor_free(c, &out);
        free(v);
        be_ctx_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_attention_matches_exact_sums),
        cmocka_unit_test(chunking_never_changes_a_row),
        cmocka_unit_test(neighbours_never_change_a_row),
        cmocka_unit_test(split_keys_never_change_a_row),
        cmocka_unit_test(packed_attention_matches_exact_sums),
        cmocka_unit_test(keys_outside_the_window_may_hold_anything),
        cmocka_unit_test(extreme_scores_are_survived),
        cmocka_unit_test(bad_pages_and_shapes_are_refused),
        cmocka_unit_test(a_head_wider_than_the_scratch_is_refused),
    };

#ifdef __SANITIZE_THREAD__ /* what threads share; sums are the plain build's: here they take \
                              minutes */
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(split_keys_never_change_a_row),
        cmocka_unit_test(keys_outside_the_window_may_hold_anything),
    };

    (void)tests;
    return cmocka_run_group_tests(shared, NULL, NULL);
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
