/* device_kernels.c - micro-benchmark of the generated CUDA kernels (target bench-device-kernels; no
 * test).
 *
 *   bench-device-kernels [part of a name] ...
 *
 * Times each kernel alone on shapes that models have: the median of some graph replays of several
 * launches, which take turns among copies of their weights so that the cache does not hold them.
 * Prints microseconds, GB/s of the bytes that must move and TFLOP/s. Contents are random bytes: no
 * result is checked here, `inferd-worker verify-kernels` does that. Needs a GPU; exit code 77
 * without one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../backends/cuda/be_cuda_drv.h"
#include "be_kargs.h"
#include "be_kart.h"

#define LAUNCHES 16
#define REPLAYS 9
#define ARENA (3ull << 30)

static struct be_cuda_drv *d;
static cu_stream stream;
static cu_ptr arena;
static uint64_t used;
static uint32_t arch;

static void must(int code, const char *what)
{
    const char *text = "?";

    if (code == 0)
        return;
    d->error_text(code, &text);
    fprintf(stderr, "%s: %d %s\n", what, code, text);
    exit(1);
}

static cu_ptr take(uint64_t n)
{
    cu_ptr p = arena + used;

    used += (n + 255) & ~255ull;
    if (used > ARENA) {
        fprintf(stderr, "a case needs more than %llu bytes\n", ARENA);
        exit(1);
    }
    return p;
}

static cu_ptr take_u32(const uint32_t *v, uint32_t n)
{
    cu_ptr p = take(n * 4ull);

    must(d->h2d(p, v, n * 4ull, stream), "upload");
    must(d->stream_sync(stream), "upload");
    return p;
}

static cu_fn load(const struct be_kentry *e, uint32_t shared)
{
    static struct {
        const struct be_kart *art;
        cu_mod mod;
    } libs[64];
    static int n_libs;
    const struct be_kart *art = be_kart_entry(e->lib, e->name, arch);
    cu_mod mod = NULL;
    cu_fn fn;

    if (!art)
        return NULL;
    for (int i = 0; i < n_libs; i++)
        if (libs[i].art == art)
            mod = libs[i].mod;
    if (!mod) {
        must(d->mod_load(&mod, art->data, 0, NULL, NULL), e->lib);
        libs[n_libs].art = art;
        libs[n_libs++].mod = mod;
    }
    must(d->mod_fn(&fn, mod, e->name), e->name);
    if (shared > 0)
        must(d->fn_set(fn, 8, (int)shared), "shared memory");
    return fn;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* variants: args[i % n] at launch i */
static void run(const char *name, const char *shape, const void *args, size_t args_bytes,
                uint32_t n, double bytes, double flops)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct be_kgrid g;
    cu_graph graph;
    cu_exec exec;
    cu_event a, b;
    float ms[REPLAYS];
    cu_fn fn;
    double us;

    if (!e) {
        printf("%-34s %-28s not in the catalog\n", name, shape);
        return;
    }
    e->grid(e, args, &g);
    if (!(fn = load(e, g.shared_bytes))) {
        printf("%-34s %-28s no artifact for sm_%u\n", name, shape, arch);
        return;
    }
    must(d->stream_begin(stream, 2), "capture");
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        const char *at = (const char *)args + i % n * args_bytes;
        void *params[] = {(void *)(uintptr_t)at};

        must(d->launch(fn, g.x, g.y, g.z, g.threads, 1, 1, g.shared_bytes, stream, params, NULL),
             name);
    }
    must(d->stream_end(stream, &graph), "capture");
    must(d->graph_inst(&exec, graph, 0), "graph");
    must(d->event_new(&a, 0), "event");
    must(d->event_new(&b, 0), "event");
    for (int i = 0; i < REPLAYS + 2; i++) {
        must(d->event_record(a, stream), "event");
        must(d->graph_launch(exec, stream), name);
        must(d->event_record(b, stream), "event");
        must(d->event_sync(b), name);
        must(d->event_ms(&ms[i < 2 ? 0 : i - 2], a, b), "event");
    }
    qsort(ms, REPLAYS, sizeof(*ms), by_value);
    us = ms[REPLAYS / 2] * 1e3 / LAUNCHES;
    printf("%-34s %-28s %9.2f us %8.0f GB/s %8.2f TFLOP/s  grid %u,%u,%u x %u, %u B\n", name, shape,
           us, bytes / us * 1e-3, flops / us * 1e-6, g.x, g.y, g.z, g.threads, g.shared_bytes);
    fflush(stdout);
    d->exec_free(exec);
    d->graph_free(graph);
    d->event_free(a);
    d->event_free(b);
}

static bool wanted(int argc, char **argv, const char *name)
{
    if (argc < 2)
        return true;
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]))
            return true;
    return false;
}

static const char *product_shape(char out[64], uint32_t rows, uint32_t k, uint32_t n_out,
                                 uint32_t parts)
{
    snprintf(out, 64, "%ux%u -> %u%s", rows, k, n_out,
             parts == 1   ? ""
             : parts == 2 ? " x2"
                          : " x3");
    return out;
}

static void linear(int argc, char **argv, const char *name, enum be_dtype t, uint32_t rows,
                   uint32_t k, uint32_t n_out, uint32_t parts, uint32_t epi, uint32_t act)
{
    struct kx_linear a[LAUNCHES];
    struct be_klayout l;
    char shape[64];
    uint64_t w_bytes = 0, copies;

    if (!wanted(argc, argv, name) || !be_klayout_get(t, k, &l))
        return;
    used = 0;
    for (uint32_t p = 0; p < l.n_planes; p++)
        w_bytes += (uint64_t)l.row_bytes[p] * n_out;
    w_bytes *= parts;
    copies = w_bytes > (300u << 20) ? 1 : (300u << 20) / w_bytes + 1;
    if (copies > LAUNCHES)
        copies = LAUNCHES;
    memset(a, 0, sizeof(a));
    for (uint64_t c = 0; c < copies; c++) {
        struct kx_linear *x = &a[c];

        if (c == 0) {
            x->x = take((uint64_t)rows * k * 4);
            x->xq = take((uint64_t)rows * k);
            x->xd = take((uint64_t)rows * (k / 32) * 4);
            x->xs = take((uint64_t)rows * (k / 32) * 4);
            for (uint32_t p = 0; p < 3; p++)
                x->out[p] = take((uint64_t)rows * n_out * 4);
        } else {
            *x = a[0];
        }
        for (uint32_t p = 0; p < parts; p++)
            for (uint32_t i = 0; i < l.n_planes; i++)
                x->w[p][i] = take((uint64_t)l.row_bytes[i] * n_out);
        for (uint32_t p = 0; p < parts; p++)
            x->n_out[p] = n_out;
        x->n = rows;
        x->k = k;
        x->n_parts = parts;
        x->epi = epi;
        x->x_t = x->out_t = act;
    }
    if (strstr(name, "_wg")) {
        struct kx_linear_wg wg[LAUNCHES];

        memset(wg, 0, sizeof(wg));
        for (uint64_t c = 0; c < copies; c++) {
            wg[c].a = a[c];
            if (be_cuda_maps(d, &wg[c], NULL) != RC_OK) {
                fprintf(stderr, "%s: no maps from this driver\n", name);
                exit(1);
            }
        }
        run(name, product_shape(shape, rows, k, n_out, parts), wg, sizeof(*wg), (uint32_t)copies,
            (double)w_bytes + (double)rows * (k + (double)n_out * parts * 4),
            2.0 * rows * k * n_out * parts);
        return;
    }
    run(name, product_shape(shape, rows, k, n_out, parts), a, sizeof(*a), (uint32_t)copies,
        (double)w_bytes + (double)rows * (k + (double)n_out * parts * 4),
        2.0 * rows * k * n_out * parts);
}

static void linears(int argc, char **argv)
{
    static const struct {
        const char *word;
        enum be_dtype t;
    } fmts[] = {{"q4_0", BE_Q4_0}, {"q8_0", BE_Q8_0}, {"q4_k", BE_Q4_K}, {"q6_k", BE_Q6_K},
                {"q5_0", BE_Q5_0}, {"q5_k", BE_Q5_K}, {"f16", BE_F16},   {"f32", BE_F32}};
    char name[64];

    for (size_t i = 0; i < sizeof(fmts) / sizeof(*fmts); i++) {
        enum be_dtype t = fmts[i].t;

#define N(suffix) (snprintf(name, sizeof(name), "kx_linear_%s_%s", fmts[i].word, suffix), name)
        linear(argc, argv, N("mv"), t, 1, 2560, 2560, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("mv_geglu"), t, 1, 2560, 10240, 2, KX_EPI_GEGLU, KX_F32);
        linear(argc, argv, N("mv"), t, 1, 10240, 2560, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("mv"), t, 1, 2560, 262144, 1, KX_EPI_NONE, KX_F32);
        if (t == BE_Q8_0 || t == BE_Q5_0 || t == BE_Q4_0) {
            linear(argc, argv, N("mv"), t, 1, 640, 1024, 1, KX_EPI_NONE, KX_F32);
            linear(argc, argv, N("mv"), t, 1, 640, 262144, 1, KX_EPI_NONE, KX_F32);
        }
        linear(argc, argv, N("ext"), t, 4, 2560, 10240, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("ext"), t, 8, 2560, 10240, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("mm"), t, 16, 2560, 10240, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("big"), t, 2048, 2560, 2560, 1, KX_EPI_NONE, KX_F32);
        linear(argc, argv, N("big_geglu"), t, 2048, 2560, 10240, 2, KX_EPI_GEGLU, KX_F32);
        linear(argc, argv, N("big"), t, 2048, 10240, 2560, 1, KX_EPI_NONE, KX_F32);
        if (t == BE_F16) {
            linear(argc, argv, N("fast_mm"), t, 8192, 1024, 1024, 3, KX_EPI_NONE, KX_F16);
            linear(argc, argv, N("fast_mm"), t, 8192, 1024, 4096, 1, KX_EPI_GELU_ERF, KX_F16);
            linear(argc, argv, N("fast_mm"), t, 8192, 4096, 1024, 1, KX_EPI_NONE, KX_F16);
            linear(argc, argv, N("fast_wg"), t, 8192, 1024, 1024, 3, KX_EPI_NONE, KX_F16);
            linear(argc, argv, N("fast_wg"), t, 8192, 1024, 1024, 1, KX_EPI_NONE, KX_F16);
            linear(argc, argv, N("fast_wg"), t, 8192, 1024, 4096, 1, KX_EPI_GELU_ERF, KX_F16);
            linear(argc, argv, N("fast_wg"), t, 8192, 4096, 1024, 1, KX_EPI_NONE, KX_F16);
            linear(argc, argv, N("fast_few"), t, 32, 1024, 4096, 1, KX_EPI_GELU_ERF, KX_F16);
            linear(argc, argv, N("fast_few"), t, 32, 4096, 1024, 1, KX_EPI_NONE, KX_F16);
        }
        if (t == BE_F32) {
            for (uint32_t rows = 430; rows <= 6880; rows *= 16) {
                linear(argc, argv, N("big"), t, rows, 768, 768, 3, KX_EPI_NONE, KX_F32);
                linear(argc, argv, N("big"), t, rows, 3072, 768, 1, KX_EPI_NONE, KX_F32);
                linear(argc, argv, N("tf32_mm"), t, rows, 768, 768, 3, KX_EPI_NONE, KX_F32);
                linear(argc, argv, N("tf32_mm"), t, rows, 3072, 768, 1, KX_EPI_NONE, KX_F32);
            }
            linear(argc, argv, N("mm"), t, 430, 768, 768, 3, KX_EPI_NONE, KX_F32);
            linear(argc, argv, N("mm"), t, 430, 3072, 768, 1, KX_EPI_NONE, KX_F32);
            linear(argc, argv, N("tf32_few"), t, 430, 768, 768, 3, KX_EPI_NONE, KX_F32);
            linear(argc, argv, N("tf32_few"), t, 430, 3072, 768, 1, KX_EPI_NONE, KX_F32);
        }
#undef N
    }
}

/* one sequence, all pages in order */
static void attention(int argc, char **argv, const char *name, uint32_t rows, uint32_t pos0,
                      uint32_t hd, uint32_t heads, uint32_t kv_heads, uint32_t kv, uint32_t window)
{
    const struct be_kentry *e = be_kcat_find(name);
    uint32_t end = pos0 + rows, n_pages = (end + 63) / 64, seq[4] = {0, rows, pos0, 0}, *v;
    uint64_t row_bytes = kv == 0   ? hd * 4ull
                         : kv == 1 ? hd * 2ull
                                   : hd,
             plane = 64ull * kv_heads * row_bytes;
    uint32_t vis = window && window < end ? window : end;
    struct kx_attn a = {0};
    char shape[64];

    if (!e || !wanted(argc, argv, name))
        return;
    used = 0;
    a.kv.page_tokens = 64;
    a.kv.n_kv_heads = kv_heads;
    a.kv.head_dim = hd;
    a.kv.dtype = kv;
    a.kv.scales_at = (kx_u)plane;
    a.kv.page_stride = plane + (kv == 8 ? 64ull * kv_heads * hd / 32 * 2 : 0);
    a.kv.k = take(a.kv.page_stride * n_pages);
    a.kv.v = take(a.kv.page_stride * n_pages);
    a.q = take(rows * (uint64_t)heads * hd * 4);
    a.out = take(rows * (uint64_t)heads * hd * 4);
    v = calloc(n_pages + rows * 4 + 16, 4);
    for (uint32_t i = 0; i < n_pages; i++)
        v[i] = i;
    a.pages = take_u32(v, n_pages);
    a.seqs = take_u32(seq, 4);
    for (uint32_t r = 0; r < rows; r += e->sched.rows_tile) {
        uint32_t *t = v + 4 * a.n_tiles++;

        t[0] = 0;
        t[1] = r;
        t[2] = rows - r < e->sched.rows_tile ? rows - r : e->sched.rows_tile;
        t[3] = 0;
    }
    a.tiles = take_u32(v, 4 * a.n_tiles);
    free(v);
    a.n_rows = rows;
    a.n_heads = heads;
    a.n_splits = (end + KX_SPLIT - 1) / KX_SPLIT;
    a.window = window;
    a.scale = 0.06f;
    a.part_m = take(rows * (uint64_t)heads * a.n_splits * 4);
    a.part_l = take(rows * (uint64_t)heads * a.n_splits * 4);
    a.part_a = take(rows * (uint64_t)heads * a.n_splits * hd * 4);
    snprintf(shape, sizeof(shape), "%u rows at %u, %u/%u heads", rows, pos0, heads, kv_heads);
    run(name, shape, &a, sizeof(a), 1, 2.0 * (double)vis * kv_heads * (double)row_bytes,
        4.0 * rows * heads * hd * (rows == 1 ? vis : (vis + 1) / 2.0));
    run("kx_attn_merge", shape, &a, sizeof(a), 1, 4.0 * rows * heads * a.n_splits * hd, 0);
}

/* Of random rows, which are not finite everywhere; with relative positions where the name says so.
 */
static void packed(int argc, char **argv, const char *name, uint32_t seqs, uint32_t len,
                   uint32_t hd, uint32_t heads, uint32_t act)
{
    const struct be_kentry *e = be_kcat_find(name);
    uint32_t rows = seqs * len, *v;
    struct kx_attn_packed a = {0};
    char shape[64];

    if (!e || !wanted(argc, argv, name))
        return;
    used = 0;
    v = calloc(seqs + 1 + 4 * (rows / e->sched.rows_tile + seqs + 1), 4);
    for (uint32_t s = 0; s <= seqs; s++)
        v[s] = s * len;
    a.off = take_u32(v, seqs + 1);
    for (uint32_t s = 0; s < seqs; s++)
        for (uint32_t r = 0; r < len; r += e->sched.rows_tile) {
            uint32_t *t = v + 4 * a.n_tiles++;

            t[0] = s;
            t[1] = s * len + r;
            t[2] = len - r < e->sched.rows_tile ? len - r : e->sched.rows_tile;
            t[3] = 0;
        }
    a.tiles = take_u32(v, 4 * a.n_tiles);
    free(v);
    a.q = take(rows * (uint64_t)heads * hd * 4);
    a.k = take(rows * (uint64_t)heads * hd * 4);
    a.v = take(rows * (uint64_t)heads * hd * 4);
    a.out = take(rows * (uint64_t)heads * hd * 4);
    a.n_seqs = seqs;
    a.n_heads = a.n_kv_heads = heads;
    a.head_dim = hd;
    a.x_t = act;
    a.q_stride = a.kv_stride = heads * hd;
    a.scale = 0.125f;
    a.radius = -1;
    snprintf(shape, sizeof(shape), "%u x %u, %u heads", seqs, len, heads);
    if (strstr(name, "_rel_")) {
        struct kx_attn_rel r = {.p = a, .reach = len, .rel_stride = heads * hd};
        uint32_t *rel = malloc((2 * len + 1) * sizeof(*rel));

        for (uint32_t i = 0; i <= 2 * len; i++)
            rel[i] = i / 2;
        r.rk = take((len + 1) * (uint64_t)heads * hd * 4);
        r.rq = take((len + 1) * (uint64_t)heads * hd * 4);
        r.rel = take_u32(rel, 2 * len + 1);
        free(rel);
        run(name, shape, &r, sizeof(r), 1, (act == KX_F16 ? 2.0 : 4.0) * 4 * rows * heads * hd,
            8.0 * rows * len * heads * hd);
        return;
    }
    run(name, shape, &a, sizeof(a), 1, (act == KX_F16 ? 2.0 : 4.0) * 4 * rows * heads * hd,
        4.0 * rows * len * heads * hd);
}

static void rows_ops(int argc, char **argv)
{
    static const uint32_t ns[] = {1, 2048, 8192};
    char shape[64];

    for (size_t i = 0; i < 3; i++) {
        uint32_t n = ns[i], k = i == 2 ? 1024 : 2560, t = i == 2 ? KX_F16 : KX_F32;
        double el = (double)n * k * (t == KX_F16 ? 2 : 4);
        struct kx_norm m = {.n = n, .k = k, .x_t = t, .add_t = t, .out_t = t, .eps = 1e-6f};
        struct kx_quant q = {.n = n, .k = k, .x_t = t, .enc = KX_ENC_Q8_0};

        used = 0;
        m.x = q.x = take((uint64_t)n * k * 4);
        m.add = take((uint64_t)n * k * 4);
        m.out = take((uint64_t)n * k * 4);
        m.w = take(k * 4);
        m.b = take(k * 4);
        q.xq = take((uint64_t)n * k);
        q.xd = take((uint64_t)n * k);
        q.xs = take((uint64_t)n * k);
        snprintf(shape, sizeof(shape), "%u x %u %s", n, k, t == KX_F16 ? "f16" : "f32");
        if (wanted(argc, argv, "kx_layer_norm"))
            run("kx_layer_norm", shape, &m, sizeof(m), 1, 3 * el, 0);
        m.b = 0;
        if (wanted(argc, argv, "kx_rms_norm"))
            run("kx_rms_norm", shape, &m, sizeof(m), 1, 3 * el, 0);
        if (wanted(argc, argv, "kx_quant"))
            run("kx_quant", shape, &q, sizeof(q), 1, 1.5 * el, 0);
    }
    used = 0;
    {
        struct kx_argmax a = {.n = 1, .k = 262144, .parts = 64};

        a.x = take(262144 * 4);
        a.out = take(64);
        a.part = take(1 << 20);
        if (wanted(argc, argv, "kx_argmax")) {
            run("kx_argmax_part", "1 x 262144", &a, sizeof(a), 1, 262144 * 4.0, 0);
            run("kx_argmax", "1 x 262144", &a, sizeof(a), 1, 0, 0);
        }
    }
}

int main(int argc, char **argv)
{
    struct rc_err err = {0};
    cu_ctx ctx;
    int major = 0, minor = 0, dev;
    uint32_t *noise = malloc(64u << 20), x = 12345;
    char name[128] = "";

    if (be_cuda_drv_open(&d, &err) != RC_OK) {
        printf("skip: %s\n", err.msg);
        return 77;
    }
    must(d->device_get(&dev, 0), "device");
    must(d->device_name(name, sizeof(name), dev), "device");
    must(d->device_attr(&major, 75, dev), "device");
    must(d->device_attr(&minor, 76, dev), "device");
    arch = (uint32_t)(major * 10 + minor);
    must(d->primary_retain(&ctx, dev), "context");
    must(d->ctx_set(ctx), "context");
    must(d->stream_new(&stream, 1), "stream");
    must(d->mem_alloc(&arena, ARENA), "memory");
    if (!noise)
        return 1;
    for (size_t i = 0; i < (64u << 18);
         i++) { /* bytes whose halfs and floats are small and finite */
        x = x * 1664525u + 1013904223u;
        noise[i] = (x >> 8 & 0x0fff0fffu) | 0x20002000u;
    }
    for (uint64_t at = 0; at < ARENA; at += 64u << 20)
        must(d->h2d(arena + at, noise, 64u << 20, stream), "noise");
    must(d->stream_sync(stream), "noise");
    free(noise);
    printf("%s, sm_%u\n", name, arch);
    linears(argc, argv);
    attention(argc, argv, "kx_attn_d256_f16_pass", 2048, 0, 256, 8, 4, 1, 0);
    attention(argc, argv, "kx_attn_d256_f16_pass", 2048, 0, 256, 8, 4, 1, 1024);
    attention(argc, argv, "kx_attn_d256_f16_split", 1, 511, 256, 8, 4, 1, 0);
    attention(argc, argv, "kx_attn_d256_f16_split", 1, 2047, 256, 8, 4, 1, 0);
    attention(argc, argv, "kx_attn_d256_f16_split", 1, 32767, 256, 8, 4, 1, 0);
    attention(argc, argv, "kx_attn_d256_q8_0_split", 1, 32767, 256, 8, 4, 8, 0);
    attention(argc, argv, "kx_attn_d256_f16_split", 1, 511, 256, 4, 1, 1, 0);
    attention(argc, argv, "kx_attn_d128_f16_pass", 2048, 0, 128, 32, 8, 1, 0);
    attention(argc, argv, "kx_attn_d256_f32_pass", 512, 0, 256, 8, 4, 0, 0);
    packed(argc, argv, "kx_attn_packed_d64_f16", 16, 512, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_f16", 1, 8192, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_f16", 1, 32, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_wg_f16", 16, 512, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_wg_f16", 1, 8192, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_wg_f16", 1, 32, 64, 16, KX_F16);
    packed(argc, argv, "kx_attn_packed_d64_f32", 16, 512, 64, 16, KX_F32);
    packed(argc, argv, "kx_attn_rel_d64_f16", 16, 430, 64, 12, KX_F16);
    packed(argc, argv, "kx_attn_rel_d64_tf32_f32", 16, 430, 64, 12, KX_F32);
    packed(argc, argv, "kx_attn_rel_d64_f32", 16, 430, 64, 12, KX_F32);
    rows_ops(argc, argv);
    return 0;
}
