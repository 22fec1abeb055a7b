/* kernels.c - micro-benchmark of the CPU backend (target bench-kernels; no test).
 *
 *   bench-kernels [threads] [level] [f32 gemm] [attention | eg2 | blas]
 *
 * Prints, per type and shape, the best of some runs: GB/s of weight bytes for one
 * row (decode is bound by them) and GFLOP/s for many rows. Numbers of one machine
 * say little; docs/backend-cpu.md quotes ratios. "eg2": only the operations of
 * EmbeddingGemma 2 at its real geometry (text of 512 and 8,192 tokens, a picture, a sound).
 * "blas": f32 products of GLiNER2 base and BGE-M3, each beside cblas_sgemm on one thread.
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "be.h"
#include "be_half.h"

/* One thread: its CPU time, so that a busy machine does not blur the figures. */
static clockid_t clock_used = CLOCK_PROCESS_CPUTIME_ID;

static double now(void)
{
    struct timespec t;

    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(enum rc rc, const struct rc_err *err)
{
    if (rc == RC_OK)
        return;
    fprintf(stderr, "bench-kernels: %s\n", err->msg);
    exit(1);
}

static uint32_t rnd_state = 1;

static uint32_t rnd(void)
{
    return (rnd_state = rnd_state * 1664525u + 1013904223u) >> 8;
}

static uint8_t *blocks(enum be_dtype t, uint64_t rows, uint64_t cols, size_t *out_n)
{
    uint64_t n = 0, bb = be_dtype_block_bytes(t);
    const uint16_t h = 0x1400; /* about 1e-3 */
    uint8_t *p;

    be_dtype_bytes(t, rows, cols, &n);
    p = malloc(n);
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)rnd();
    for (uint64_t i = 0; i < n; i += bb) {
        if (t == BE_F32)
            memcpy(p + i, &(float){0.001f * (float)(rnd() & 1023)}, 4);
        else
            memcpy(p + i + (t == BE_Q6_K ? 208 : 0), &h, 2);
        if (bb == 20 || bb == 24 || bb == 144 || bb == 176)
            memcpy(p + i + 2, &h, 2);
    }
    *out_n = n;
    return p;
}

static struct be_tensor *tensor(struct be_ctx *c, uint32_t rows, uint32_t cols)
{
    struct rc_err err = RC_ERR_INIT;
    struct be_tensor *t = NULL;
    float *x = malloc((size_t)rows * cols * sizeof(float));

    for (size_t i = 0; i < (size_t)rows * cols; i++)
        x[i] = (float)(int)(rnd() % 2001) * 0.001f - 1.0f;
    check(be_tensor_new(c, rows, cols, &t, &err), &err);
    check(be_tensor_write(c, t, 0, rows, x, &err), &err);
    free(x);
    return t;
}

/* Two parts: the gate and up products of a feed-forward network (GEGLU). */
static void bench_linear(struct be_ctx *c, enum be_dtype t, uint32_t m, uint32_t k,
                         uint32_t n_parts, const uint32_t *ns, size_t n_ns)
{
    struct rc_err err = RC_ERR_INIT;
    struct be_weight_desc d = {
        .name = "w", .dtype = t, .n_rows = m, .n_cols = k, .use = BE_USE_LINEAR};
    struct be_weight *w[2] = {NULL};
    double t0;

    d.data = blocks(t, m, k, &d.n_bytes);
    t0 = now();
    for (uint32_t i = 0; i < n_parts; i++)
        check(be_weight_new(c, &d, &w[i], &err), &err);
    printf("%-5s [%u x %6u x %4u] load %5.1f ms ", be_dtype_name(t), n_parts, m, k,
           1e3 * (now() - t0));
    for (size_t i = 0; i < n_ns; i++) {
        struct be_tensor *x = tensor(c, ns[i], k), *y = tensor(c, ns[i], m);
        struct be_linear_args a = {.x = x,
                                   .n = ns[i],
                                   .n_parts = n_parts,
                                   .epi = n_parts == 2 ? BE_EPI_GEGLU : BE_EPI_NONE};
        double best = 1e9, spent = 0, work = (double)n_parts * m * k;

        for (uint32_t p = 0; p < n_parts; p++) {
            a.part[p].w = w[p];
            a.part[p].out = y;
        }
        for (int r = 0; r < 3 || (r < 200 && spent < 0.4); r++) {
            double t1 = now();

            check(be_linear(c, &a, &err), &err);
            t1 = now() - t1;
            spent += t1;
            best = t1 < best ? t1 : best;
        }
        if (ns[i] == 1)
            printf("| n 1: %5.2f GB/s ", 1e-9 * n_parts * (double)d.n_bytes / best);
        else
            printf("| n %u: %6.1f GFLOP/s ", ns[i], 2e-9 * ns[i] * work / best);
        be_tensor_free(c, &x);
        be_tensor_free(c, &y);
    }
    printf("\n");
    be_weight_free(c, &w[0]);
    be_weight_free(c, &w[1]);
    free((void *)(uintptr_t)d.data);
}

static void bench_packed(struct be_ctx *c, uint32_t seqs, uint32_t len, uint32_t heads,
                         uint32_t kv_heads, uint32_t dim, int32_t radius)
{
    struct rc_err err = RC_ERR_INIT;
    uint32_t n = seqs * len, *offsets = malloc((seqs + 1) * sizeof(*offsets));
    uint32_t far = radius < 0 ? len : (uint32_t)radius;
    struct be_tensor *q = tensor(c, n, heads * dim), *k = tensor(c, n, kv_heads * dim),
                     *v = tensor(c, n, kv_heads * dim), *o = tensor(c, n, heads * dim);
    struct be_attention_packed_args a = {.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = o,
                                         .offsets = offsets,
                                         .n_seqs = seqs,
                                         .n_heads = heads,
                                         .n_kv_heads = kv_heads,
                                         .head_dim = dim,
                                         .scale = 1 / sqrtf((float)dim),
                                         .radius = radius};
    double best = 1e9, spent = 0, pairs = 0;

    for (uint32_t i = 0; i <= seqs; i++)
        offsets[i] = i * len;
    for (uint32_t i = 0; i < len; i++) /* keys before, the row itself, keys behind */
        pairs += (i < far ? i : far) + 1.0 + (len - 1 - i < far ? len - 1 - i : far);
    for (int r = 0; r < 5 || (r < 100 && spent < 1); r++) {
        double t = now();

        check(be_attention_packed(c, &a, &err), &err);
        t = now() - t;
        spent += t;
        best = t < best ? t : best;
    }
    printf("packed attention %u x %u tokens, %u/%u heads of %u, radius %d: %.2f ms, %.1f "
           "GFLOP/s\n",
           seqs, len, heads, kv_heads, dim, radius, 1e3 * best,
           4e-9 * seqs * pairs * heads * dim / best);
    be_tensor_free(c, &q);
    be_tensor_free(c, &k);
    be_tensor_free(c, &v);
    be_tensor_free(c, &o);
    free(offsets);
}

#define LAYERS 8 /* at most; in turn, so that a long cache comes from memory as in a model */

static void bench_cached(struct be_ctx *c, uint32_t n, uint32_t past, uint32_t heads,
                         uint32_t kv_heads, uint32_t dim)
{
    struct rc_err err = RC_ERR_INIT;
    uint64_t bytes = 4ull * (n + past) * kv_heads * dim;
    uint32_t layers = past < 8192 ? 1 : LAYERS;
    struct be_kv_layer layer[LAYERS];
    struct be_kv_desc d = {.n_layers = layers,
                           .n_classes = 1,
                           .page_tokens = 32,
                           .layers = layer,
                           .n_pages = {(n + past) / 32 + 1},
                           .dtype = BE_F16};
    struct be_kv *kv = NULL;
    int32_t *pages = malloc(d.n_pages[0] * sizeof(*pages));
    struct be_seq s = {.n_rows = n, .pos0 = past, .pages = {pages}};
    struct be_tensor *q = tensor(c, n, heads * dim), *o = tensor(c, n, heads * dim);
    struct be_tensor *k = tensor(c, n, kv_heads * dim), *fk = tensor(c, 64, kv_heads * dim);
    struct be_kv_write_args w = {.k = k, .v = k, .seqs = &s, .n_seqs = 1};
    struct be_attention_args a = {
        .q = q, .out = o, .n_heads = heads, .scale = 0.06f, .seqs = &s, .n_seqs = 1};
    double best = 1e9, bw = 1e9;

    for (uint32_t i = 0; i < d.n_pages[0]; i++)
        pages[i] = (int32_t)i;
    for (uint32_t i = 0; i < layers; i++)
        layer[i] = (struct be_kv_layer){0, kv_heads, dim};
    check(be_kv_new(c, &d, &kv, &err), &err);
    w.kv = kv;
    a.kv = kv;
    for (uint32_t p = 0; p < past; p += 64) { /* a filled page is not the kernel's page of zeros */
        struct be_seq f = {.n_rows = past - p < 64 ? past - p : 64, .pos0 = p, .pages = {pages}};
        struct be_kv_write_args fill = {.kv = kv, .k = fk, .v = fk, .seqs = &f, .n_seqs = 1};

        for (fill.layer = 0; fill.layer < layers; fill.layer++)
            check(be_kv_write(c, &fill, &err), &err);
    }
    for (uint32_t r = 0; r < 3 * LAYERS; r++) {
        double t = now();

        w.layer = a.layer = r % layers;

        check(be_kv_write(c, &w, &err), &err);
        bw = now() - t < bw ? now() - t : bw;
        t = now();
        check(be_attention(c, &a, &err), &err);
        best = now() - t < best ? now() - t : best;
    }
    printf("cached attention %u new, %u past, %u/%u heads of %u: %.1f us (kv_write %.1f us), %.1f "
           "GFLOP/s, %.1f GB/s\n",
           n, past, heads, kv_heads, dim, 1e6 * best, 1e6 * bw,
           4e-9 * n * (past + 0.5 * n) * heads * dim / best, 1e-9 * (double)bytes / best);
    be_kv_free(c, &kv);
    be_tensor_free(c, &q);
    be_tensor_free(c, &k);
    be_tensor_free(c, &fk);
    be_tensor_free(c, &o);
    free(pages);
}

static void bench_join(struct be_ctx *c)
{
    struct rc_err err = RC_ERR_INIT;
    struct be_tensor *x = tensor(c, 64, 1024);
    float one[1024];
    struct be_weight_desc d = {.name = "one",
                               .dtype = BE_F32,
                               .n_rows = 1,
                               .n_cols = 1024,
                               .data = one,
                               .n_bytes = sizeof(one),
                               .use = BE_USE_VECTOR};
    struct be_weight *w = NULL;

    for (int i = 0; i < 1024; i++)
        one[i] = 1;
    check(be_weight_new(c, &d, &w, &err), &err);
    for (uint32_t n = 1; n <= 64; n *= 8) {
        struct be_rms_norm_args a = {.x = x, .w = w, .out = x, .n = n, .eps = 1e-6f};
        double t = now();

        for (int i = 0; i < 2000; i++)
            check(be_rms_norm(c, &a, &err), &err);
        printf("rms_norm %u x 1024: %.2f us\n", n, 1e6 * (now() - t) / 2000);
    }
    be_weight_free(c, &w);
    be_tensor_free(c, &x);
}

/* ------------------------------------------------- EmbeddingGemma 2's geometry */

static void eg2_rows(struct be_ctx *c, uint32_t n)
{
    struct rc_err err = RC_ERR_INIT;
    int32_t *pos = malloc(n * sizeof(*pos));
    float one[512];
    struct be_weight_desc d = {.name = "one",
                               .dtype = BE_F32,
                               .n_rows = 1,
                               .n_cols = 512,
                               .data = one,
                               .n_bytes = sizeof(one),
                               .use = BE_USE_VECTOR};
    struct be_weight *w = NULL;
    struct be_tensor *x = tensor(c, n, 512), *y = tensor(c, n, 512), *q = tensor(c, n, 2048);
    struct be_rms_norm_args a = {.x = x, .out = y, .add = y, .n = n, .eps = 1e-6f};
    struct be_rope_args rope = {.x = q,
                                .pos = pos,
                                .n = n,
                                .n_heads = 4,
                                .head_dim = 512,
                                .theta = 1e6f,
                                .factor = 1,
                                .norm_eps = 1e-6f};
    struct be_scale_args s = {.x = x, .y = y, .n = n, .scale = 1};
    double best[3] = {1e9, 1e9, 1e9};

    for (int i = 0; i < 512; i++)
        one[i] = 1;
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    check(be_weight_new(c, &d, &w, &err), &err);
    a.w = rope.norm_w = w;
    for (int r = 0; r < 20; r++) {
        double t[4] = {now()};

        check(be_rms_norm(c, &a, &err), &err);
        t[1] = now();
        check(be_rope(c, &rope, &err), &err);
        t[2] = now();
        check(be_scale(c, &s, &err), &err);
        t[3] = now();
        for (int i = 0; i < 3; i++)
            best[i] = t[i + 1] - t[i] < best[i] ? t[i + 1] - t[i] : best[i];
    }
    printf("rows %u: rms_norm + add of 512 %.3f ms, norm + rope of 4 x 512 %.3f ms, gate of 512 "
           "%.3f ms\n",
           n, 1e3 * best[0], 1e3 * best[1], 1e3 * best[2]);
    be_weight_free(c, &w);
    be_tensor_free(c, &x);
    be_tensor_free(c, &y);
    be_tensor_free(c, &q);
    free(pos);
}

static void bench_eg2(struct be_ctx *c)
{
    static const uint32_t text[] = {512, 8192}, picture[] = {2520}, sound[] = {750};

    bench_linear(c, BE_F32, 1024, 512, 1, text, 2);
    bench_linear(c, BE_F32, 512, 512, 1, text, 2);
    bench_linear(c, BE_F32, 512, 1024, 1, text, 2);
    bench_linear(c, BE_F32, 2048, 512, 2, text, 2);
    bench_linear(c, BE_F32, 512, 2048, 1, text, 2);
    for (size_t i = 0; i < 2; i++) {
        bench_packed(c, 1, text[i], 4, 2, 256, 512);
        bench_packed(c, 1, text[i], 4, 1, 512, -1);
        eg2_rows(c, text[i]);
    }
    bench_linear(c, BE_F32, 768, 768, 1, picture, 1);
    bench_linear(c, BE_F32, 3072, 768, 2, picture, 1);
    bench_linear(c, BE_F32, 768, 3072, 1, picture, 1);
    bench_packed(c, 1, picture[0], 12, 12, 64, -1);
    bench_linear(c, BE_F32, 4096, 1024, 1, sound, 1);
    bench_linear(c, BE_F32, 1024, 4096, 1, sound, 1);
}

/* --------------------------------------------------------- beside OpenBLAS, f32 */

/* n rows of k columns into m outputs, by a library whose answers no model may use (be_cpu_blas.c).
 */
static void blas(uint32_t m, uint32_t k, uint32_t n)
{
    size_t n_x = (size_t)n * k, n_w = (size_t)m * k;
    float *x = malloc(n_x * sizeof(float)), *w = malloc(n_w * sizeof(float));
    float *y = malloc((size_t)n * m * sizeof(float));
    double best = 1e9, spent = 0;

    for (size_t i = 0; i < n_x; i++)
        x[i] = (float)(int)(rnd() % 2001) * 0.001f - 1.0f;
    for (size_t i = 0; i < n_w; i++)
        w[i] = 0.001f * (float)(rnd() & 1023);
    for (int r = 0; r < 3 || (r < 200 && spent < 0.4); r++) {
        double t = now();

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, (blasint)m, (blasint)k, 1,
                    x, (blasint)k, w, (blasint)k, 0, y, (blasint)m);
        t = now() - t;
        spent += t;
        best = t < best ? t : best;
    }
    printf("   cblas_sgemm of the same, one thread: n %u: %6.1f GFLOP/s\n", n,
           2e-9 * (double)n * m * k / best);
    free(x);
    free(w);
    free(y);
}

static void bench_blas(struct be_ctx *c)
{
    static const uint32_t shapes[][2] = {{768, 768},   {3072, 768},  {768, 3072},
                                         {1024, 1024}, {4096, 1024}, {1024, 4096}};
    static const uint32_t rows[] = {32, 215, 1088};

    openblas_set_num_threads(1);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        bench_linear(c, BE_F32, shapes[i][0], shapes[i][1], 1, rows, 3);
        for (size_t j = 0; j < 3; j++)
            blas(shapes[i][0], shapes[i][1], rows[j]);
    }
}

int main(int argc, char **argv)
{
    static const enum be_dtype types[] = {
#define X(name, id, n, b) BE_##name,
        BE_DTYPE_MAP(X)
#undef X
    };
    struct be_opts o = {.backend = "cpu",
                        .n_threads = argc > 1 ? (unsigned)atoi(argv[1]) : 0,
                        .cpu_level = argc > 2 ? argv[2] : "auto",
                        .f32_gemm = argc > 3 ? argv[3] : "auto"};
    struct rc_err err = RC_ERR_INIT;
    struct be_stats st;
    struct be_ctx *c = NULL;
    const uint32_t head[] = {1}, mm[] = {1, 4, 8, 512}, enc[] = {1, 32, 1024};

    check(be_ctx_new(&c, &o, &err), &err);
    be_ctx_stats(c, &st);
    if (st.n_threads > 1)
        clock_used = CLOCK_MONOTONIC;
    printf("kernels %s, f32 gemm %s, %u threads\n", st.kernels, st.f32_gemm, st.n_threads);
    if (argc > 4 && strcmp(argv[4], "eg2") == 0) {
        bench_eg2(c);
        be_ctx_free(&c);
        return 0;
    }
    if (argc > 4 && strcmp(argv[4], "blas") == 0) {
        bench_blas(c);
        be_ctx_free(&c);
        return 0;
    }
    if (argc < 5) { /* "attention": nothing else */
        bench_linear(c, BE_Q8_0, 262144, 640, 1, head, 1);
        for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
            bench_linear(c, types[i], 8192, 2048, 1, mm, 4);
        bench_linear(c, BE_F32, 1536, 384, 1, enc, 3);
        bench_linear(c, BE_F32, 384, 1536, 1, enc, 3);
        bench_linear(c, BE_F32, 384, 384, 1, enc, 3);
    }
    bench_packed(c, 32, 128, 12, 12, 32, -1);
    bench_cached(c, 1, 500, 4, 1, 256);
    bench_cached(c, 1, 4000, 4, 1, 256);
    for (uint32_t past = 512; past <= 32768; past *= 4) {
        bench_cached(c, 1, past, 4, 1, 256); /* Gemma 3 270M */
        bench_cached(c, 1, past, 8, 1, 512); /* Gemma 4 E2B, global */
    }
    bench_cached(c, 512, 0, 4, 1, 256);
    bench_cached(c, 512, 8192, 4, 1, 256);
    bench_join(c);
    be_ctx_free(&c);
    return 0;
}
