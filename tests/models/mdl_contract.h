/* mdl_contract.h - the equality contract, bit for bit, for any decoder: chunks of a prompt,
 * neighbours in a pass, rows asked for, threads. Included once per test program, which
 * sets be and calls make_prompt. */
#ifndef INFERD_MDL_CONTRACT_H
#define INFERD_MDL_CONTRACT_H

#include "mdl_test.h"

#define N_TOK 100

static struct be_ctx *be;
static int32_t prompt[N_TOK];

static void make_prompt(void)
{
    uint32_t i, x = 12345;

    prompt[0] = 2;
    for (i = 1; i < N_TOK; i++) {
        x = x * 1664525u + 1013904223u;
        prompt[i] = (int32_t)(24 + (x >> 8) % 600);
    }
}

static float *logits_of(struct mdl *m, const int32_t *ids, uint32_t n, uint32_t chunk)
{
    float *out = malloc((size_t)n * mdl_info_get(m)->vocab_size * sizeof(*out));
    struct mdl_opts o = m->opts;

    assert_non_null(out);
    assert_true(o.max_seqs >= 1);
    feed_all(m, ids, n, chunk < o.max_seqs ? chunk : o.max_seqs, out);
    return out;
}

/* max_seqs is the number of output rows: as many as the longest chunk needs here */
static struct mdl_opts wide_opts(enum be_dtype kv)
{
    struct mdl_opts o = small_opts(kv);

    o.max_seqs = N_TOK;
    return o;
}

static void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: value %zu is %.9g, expected the same bits as %.9g", what, i, a[i], b[i]);
}

static double furthest(const float *a, const float *b, size_t n)
{
    double worst = 0;
    size_t i;

    for (i = 0; i < n; i++)
        if (fabs((double)a[i] - b[i]) > worst)
            worst = fabs((double)a[i] - b[i]);
    return worst;
}

/* ------------------------------------------------------ equality contract */

static void mixed_path(char *path, char *plain, const char *dir, const char *name)
{
    char out2[512], file[64];
    const char *args[] = {"--synthetic", "--type", "mixed", "--dequant", out2, NULL};

    snprintf(out2, sizeof(out2), "%s/gguf-%s-f32.gguf", test_dir(), name);
    snprintf(file, sizeof(file), "%s.gguf", name);
    gguf_make(path, 512, dir, file, args);
    if (plain)
        snprintf(plain, 512, "%s", out2);
}

static void chunks_change_nothing(const char *path, enum be_dtype kv)
{
    static const uint32_t chunks[] = {1, 3, 7, 64};
    struct mdl_opts o = wide_opts(kv);
    struct mdl *m = open_model(path, be, &o);
    size_t n = (size_t)N_TOK * mdl_info_get(m)->vocab_size, i;
    float *whole = logits_of(m, prompt, N_TOK, N_TOK);

    for (i = 0; i < 4; i++) {
        float *cut = logits_of(m, prompt, N_TOK, chunks[i]);

        same_bits(cut, whole, n, "prefill in chunks");
        free(cut);
    }
    free(whole);
    mdl_close(&m);
}

/* Three sequences share passes: prefill of unequal chunks beside single steps. */
static void with_neighbours(const char *path)
{
    static const uint32_t steps[][3] = {
        {5, 20, 1}, {1, 20, 1}, {30, 1, 1}, {1, 1, 17}, {13, 8, 30}};
    struct mdl_opts o = wide_opts(BE_F16);
    struct mdl *m = open_model(path, be, &o);
    uint32_t v = mdl_info_get(m)->vocab_size, s, k, i, done[3] = {0, 0, 0};
    static struct tpool pool;
    static struct tseq seq[3];
    float *alone[3];

    tpool_init(&pool, m);
    for (s = 0; s < 3; s++) {
        tseq_init(&seq[s]);
        alone[s] = logits_of(m, prompt + s, 50, 50);
    }
    for (k = 0; k < sizeof(steps) / sizeof(*steps); k++) {
        int32_t ids[128], pos[128], rows[128];
        struct be_seq q[3];
        struct mdl_batch b = {.n_seqs = 3, .ids = ids, .pos = pos, .seqs = q, .out_rows = rows};
        const float *logits = NULL;

        memset(q, 0, sizeof(q));
        for (s = 0; s < 3; s++) {
            q[s] = (struct be_seq){.row0 = b.n_rows, .n_rows = steps[k][s], .pos0 = done[s]};
            tseq_extend(&pool, &seq[s], steps[k][s]);
            for (i = 0; i < BE_KV_CLASSES; i++)
                q[s].pages[i] = seq[s].pages[i];
            for (i = 0; i < steps[k][s]; i++, b.n_rows++) {
                ids[b.n_rows] = prompt[s + done[s] + i];
                pos[b.n_rows] = (int32_t)(done[s] + i);
                rows[b.n_rows] = (int32_t)b.n_rows;
            }
        }
        b.n_out = b.n_rows;
        need_ok(mdl_decode(m, &b, &logits, err));
        for (s = 0; s < 3; s++) {
            same_bits(logits + (size_t)q[s].row0 * v, alone[s] + (size_t)done[s] * v,
                      (size_t)steps[k][s] * v, "beside other sequences");
        }
        /* the same pass again, asked for each sequence's last rows only, last one first */
        for (s = 0, b.n_out = 0; s < 3; s++)
            for (i = 0; i < 2 && i < steps[k][s]; i++)
                rows[b.n_out++] =
                    (int32_t)(q[2 - s].row0 + q[2 - s].n_rows - (q[2 - s].n_rows < 2 ? 1 : 2 - i));
        need_ok(mdl_decode(m, &b, &logits, err));
        for (i = 0; i < b.n_out; i++) {
            for (s = 0; (uint32_t)rows[i] >= q[s].row0 + q[s].n_rows; s++)
                ;
            same_bits(logits + (size_t)i * v,
                      alone[s] + (size_t)(done[s] + (uint32_t)rows[i] - q[s].row0) * v, v,
                      "last rows of a pass");
        }
        for (s = 0; s < 3; s++) {
            done[s] += steps[k][s];
            seq[s].n = done[s];
        }
    }
    for (s = 0; s < 3; s++)
        free(alone[s]);
    mdl_close(&m);
}

static void threads_and_outputs(const char *path)
{
    struct be_ctx *one = test_ctx(1);
    struct mdl_opts o = wide_opts(BE_F16);
    struct mdl *a = open_model(path, be, &o), *b = open_model(path, one, &o);
    uint32_t v = mdl_info_get(a)->vocab_size;
    float *x = logits_of(a, prompt, N_TOK, N_TOK), *y = logits_of(b, prompt, N_TOK, N_TOK);
    float *row = malloc(v * sizeof(*row));
    static struct tpool pool;
    static struct tseq seq;

    assert_non_null(row);
    same_bits(x, y, (size_t)N_TOK * v, "one thread against two");
    /* a prefill that wants no logits at all, then one row */
    tpool_init(&pool, a);
    tseq_init(&seq);
    feed(a, &pool, &seq, prompt, N_TOK - 1, 0, NULL);
    feed(a, &pool, &seq, prompt + N_TOK - 1, 1, 1, row);
    same_bits(row, x + (size_t)(N_TOK - 1) * v, v, "after a prefill without outputs");
    free(row);
    free(x);
    free(y);
    mdl_close(&a);
    mdl_close(&b);
    be_ctx_free(&one);
}

static void allocates_nothing(const char *path)
{
    struct be_ctx *own = test_ctx(2);
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(path, own, &o);
    struct be_stats st;
    float *x;

    be_ctx_seal(own);
    x = logits_of(m, prompt, N_TOK, 8);
    be_ctx_stats(own, &st);
    assert_int_equal(st.hot_allocs, 0);
    assert_true(st.ops > 0);
    free(x);
    mdl_close(&m);
    be_ctx_free(&own);
}

/* ----------------------------------------------------------- quantized */

/* Matrices of eleven types in one file against the same values in F32: what is
 * left is the int8 rounding of activations. */
static void quantized_agrees(const char *path, const char *plain, double cosine)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *q, *f;
    uint32_t v, r;
    float *a, *b;

    q = open_model(path, be, &o);
    f = open_model(plain, be, &o);
    v = mdl_info_get(q)->vocab_size;
    a = logits_of(q, prompt, N_TOK, 8);
    b = logits_of(f, prompt, N_TOK, 8);
    for (r = 0; r < N_TOK; r++) {
        double ab = 0, aa = 0, bb = 0;
        uint32_t i;

        for (i = 0; i < v; i++) {
            double x = a[(size_t)r * v + i], y = b[(size_t)r * v + i];

            ab += x * y;
            aa += x * x;
            bb += y * y;
        }
        if (!(ab / sqrt(aa * bb) > cosine))
            fail_msg("row %u: cosine %.5f between quantized and F32 logits", r, ab / sqrt(aa * bb));
    }
    assert_true(furthest(a, b, (size_t)N_TOK * v) > 0); /* it did take the int8 path */
    free(a);
    free(b);
    mdl_close(&q);
    mdl_close(&f);
}

#endif
