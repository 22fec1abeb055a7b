/* test_be_cuda_cmd.c - the list of commands on the (emulated) device: fusions and graphs
 * change no bit, a step waits once and allocates nothing, full lists go on, graphs are kept and
 * dropped, tokens are drawn. */
#include "cuda_model.h"

#define TOKENS 70

struct result {
    float logits[TM_SEQS * TM_V];
    int32_t ids[TM_SEQS];
    struct be_kstats ks, first;
    struct be_stats st;
};

/* A prompt of 7 for two sequences, then tokens one by one, arg-max each. */
static void decode(struct result *r, bool fuse, bool graphs)
{
    struct be_ctx *c = cuda_ctx(fuse, graphs, NULL);
    int32_t ids[14];
    struct tm m;

    OK(tm_init(&m, c, err));
    for (int i = 0; i < 14; i++)
        ids[i] = (i * 37) % TM_V;
    OK(tm_step(&m, 0, 2, 7, 0, ids, err));
    OK(be_sync(c, err));
    be_ctx_seal(c);
    for (uint32_t p = 7; p < 7 + TOKENS; p++) {
        struct be_argmax_args a = {.x = m.logits, .n = 2, .out_ids = r->ids};

        OK(tm_step(&m, 0, 2, 1, p, ids, err));
        OK(be_argmax(c, &a, err));
        memcpy(ids, r->ids, 2 * sizeof(int32_t));
        if (p == 7)
            r->first = kstats_of(c);
    }
    r->ks = kstats_of(c);
    r->st = stats_of(c);
    OK(be_tensor_read(c, m.logits, 0, 2, r->logits, err));
    tm_deinit(&m);
    be_ctx_free(&c);
}

static void fusions_and_graphs_change_nothing(void **state)
{
    struct result *r = xcalloc(4, sizeof(*r));

    for (int i = 0; i < 4; i++) {
        decode(&r[i], i & 1, i & 2);
        assert_same("logits", r[i].logits, r[0].logits, 2 * TM_V);
        assert_memory_equal(r[i].ids, r[0].ids, 2 * sizeof(int32_t));
        assert_int_equal(r[i].st.hot_allocs, 0);
        assert_int_equal(r[i].ks.hot_compiles, 0);
        assert_int_equal(r[i].ks.missing_artifacts + r[i].ks.wiring_failures, 0);
        assert_int_equal(r[i].ks.decode_fallbacks + r[i].ks.slow_fallbacks, 0);
        /* one wait a step */
        assert_int_equal(r[i].ks.syncs - r[i].first.syncs, TOKENS - 1);
        assert_true((r[i].ks.fused > 0) == (i & 1));
        if (i & 2) { /* pages double twice, attention's splits do not */
            assert_in_range(r[i].ks.graph_captures, 1, 4);
            assert_in_range(r[i].ks.graph_replays, TOKENS - 12, TOKENS);
            assert_int_equal(r[i].ks.graph_captures + r[i].ks.graph_replays + r[i].ks.stream_steps,
                             r[i].first.stream_steps + TOKENS - 1);
        } else {
            assert_int_equal(r[i].ks.graph_captures + r[i].ks.graph_replays, 0);
        }
        for (int k = 0; k < BE_KROUTE_COUNT; k++)
            assert_true((r[i].ks.dispatch[k] > 0) == (k == BE_KROUTE_BUCKET));
    }
    free(r);
}

/* In chunks, alone, beside others: a token's logits have the same bits. */
static void chunks_and_neighbours(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    int32_t ids[TM_SEQS * 16];
    float *whole, *part;
    struct tm m;

    for (int i = 0; i < TM_SEQS * 16; i++)
        ids[i] = (i % 16 * 31) % TM_V;
    OK(tm_init(&m, c, err));
    OK(tm_step(&m, 0, TM_SEQS, 16, 0, ids, err)); /* four times the same text */
    whole = read_all(c, m.logits, TM_SEQS * 16, TM_V);
    for (int s = 1; s < TM_SEQS; s++)
        assert_same("neighbour", whole + s * 16 * TM_V, whole, 16 * TM_V);
    for (uint32_t p = 0; p < 16; p += 4) {
        OK(tm_step(&m, 2, 1, 4, p, ids + p, err));
        part = read_all(c, m.logits, 4, TM_V);
        assert_same("chunk", part, whole + p * TM_V, 4 * TM_V);
        free(part);
    }
    free(whole);
    tm_deinit(&m);
    be_ctx_free(&c);
}

/* Lists longer than a list may be, and more host arrays than staging holds. */
static void full_lists_go_on(void **state)
{
    enum { ROWS = 2000, TIMES = 3000 };
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    float *table = xcalloc(5 * 8, 4), *out;
    int32_t *ids = xcalloc(ROWS, 4);
    struct be_tensor *t = tensor(c, ROWS, 8, NULL);
    struct be_weight *w;
    struct be_embed_args e = {.ids = ids, .n = ROWS, .scale = 1, .accumulate = true, .out = t};

    for (int i = 0; i < 5 * 8; i++)
        table[i] = (float)(i / 8); /* row r holds r */
    e.table = w = weight(c, BE_F32, 5, 8, table, BE_USE_EMBED);
    for (int k = 0; k < TIMES; k++) {
        e.n = k % 2 ? 1 : 40; /* many short lists, some long arrays */
        if (k % 100 == 0)
            e.n = ROWS;
        for (uint32_t i = 0; i < e.n; i++)
            ids[i] = (int32_t)((i + (uint32_t)k) % 5);
        OK(be_embed(c, &e, err));
        memset(ids, 0xff, ROWS * 4); /* the arrays were read before the call returned */
    }
    out = read_all(c, t, ROWS, 8);
    for (int i = 0; i < ROWS; i++) {
        float want = 0;

        for (int k = 0; k < TIMES; k++)
            if (k % 100 == 0 || i < (k % 2 ? 1 : 40))
                want += (float)((i + k) % 5);
        assert_true(out[i * 8] == want && out[i * 8 + 7] == want);
    }
    assert_true(kstats_of(c).stream_steps > 1); /* it did not fit one list */
    be_tensor_free(c, &t);
    be_weight_free(c, &w);
    be_ctx_free(&c);
    free(table);
    free(ids);
    free(out);
}

/* 40 different lists, three times each: all are captured, 32 are kept. */
static void graphs_are_evicted(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    struct be_tensor *t = tensor(c, 64, 8, NULL);
    struct be_kstats k;

    for (uint32_t n = 1; n <= 40; n++)
        for (int i = 0; i < 3; i++) {
            struct be_softcap_args s = {.x = t, .n = n, .cap = 1};

            for (int j = 0; j < 4; j++)
                OK(be_softcap(c, &s, err));
            OK(be_sync(c, err));
        }
    k = kstats_of(c);
    assert_int_equal(k.graph_captures, 40);
    assert_int_equal(k.graph_evictions, 8);
    assert_int_equal(k.graph_replays, 40);
    assert_int_equal(k.stream_steps, 40);
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

/* Of a long list a first part is launched while the rest is written: two graphs a pass, one wait.
 */
static void a_first_part_goes_ahead(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    float x[8] = {3, -3, 100, 0, 1, 2, 3, 4}, want[8], got[8];
    struct be_tensor *t = tensor(c, 1, 8, NULL);
    struct be_softcap_args s = {.x = t, .n = 1, .cap = 5};
    struct be_kstats before, k;

    for (int pass = 0; pass < 4; pass++) {
        OK(be_tensor_write(c, t, 0, 1, x, err));
        if (pass == 1)
            be_ctx_seal(c);
        before = kstats_of(c);
        for (int j = 0; j < 130; j++)
            OK(be_softcap(c, &s, err));
        OK(be_sync(c, err));
        k = kstats_of(c);
        OK(be_tensor_read(c, t, 0, 1, pass ? got : want, err));
        if (pass)
            assert_same("in parts", got, want, 8);
        assert_int_equal(k.stream_steps - before.stream_steps, pass == 0 ? 1 : pass == 1 ? 2 : 0);
        assert_int_equal(k.graph_captures - before.graph_captures, pass == 2 ? 2 : 0);
        assert_int_equal(k.graph_replays - before.graph_replays, pass == 3 ? 2 : 0);
        assert_int_equal(k.syncs - before.syncs, 1);
    }
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

/* A driver that cannot capture: kernel by kernel, same results. */
static void no_capture(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    float x[8] = {3, -3, 100, 0, 1, 2, 3, 4}, one[8], two[8];
    struct be_tensor *t = tensor(c, 1, 8, x);
    struct be_softcap_args s = {.x = t, .n = 1, .cap = 5};

    setenv("INFERD_EMU_FAIL", "cuStreamBeginCapture_v2:1+:801", 1);
    for (int i = 0; i < 4; i++) {
        OK(be_tensor_write(c, t, 0, 1, x, err));
        for (int j = 0; j < 5; j++)
            OK(be_softcap(c, &s, err));
        OK(be_tensor_read(c, t, 0, 1, i ? two : one, err));
        assert_same("again", i ? two : one, one, 8);
    }
    unsetenv("INFERD_EMU_FAIL");
    assert_int_equal(kstats_of(c).graph_captures, 0);
    assert_int_equal(kstats_of(c).stream_steps, 4);
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void draws(void **state)
{
    enum { N = 6, K = 700 };
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    float *x = xcalloc(N * K, 4);
    struct be_sample_row rows[N];
    struct be_tensor *t;
    int32_t ids[N], best[N];
    struct be_sample_args a = {.n = N, .rows = rows, .out_ids = ids};
    struct be_argmax_args am = {.n = N, .out_ids = best};

    assert_true(be_can_sample(c));
    fill(x, N * K, 4);
    x[5 * K + 9] = NAN; /* the host reports it */
    t = tensor(c, N, K, x);
    a.x = am.x = t;
    OK(be_argmax(c, &am, err));
    for (int i = 0; i < N; i++)
        rows[i] = (struct be_sample_row){.temperature = i == 0 ? 0 : 1, .top_p = 1, .top_k = 1};
    OK(be_sample(c, &a, err)); /* greedy, or of one: the largest */
    assert_memory_equal(ids, best, (N - 1) * sizeof(int32_t));
    assert_int_equal(ids[5], -1);
    for (int draw = 0; draw < 20; draw++) {
        double u = (draw + 0.5) / 20;

        for (int i = 0; i < N; i++)
            rows[i] =
                (struct be_sample_row){.temperature = 1.5f, .top_p = 1, .top_k = 4, .u = (float)u};
        OK(be_sample(c, &a, err));
        for (int i = 0; i < N - 1; i++) { /* one of the four largest */
            int larger = 0;

            assert_in_range(ids[i], 0, K - 1);
            for (int j = 0; j < K; j++)
                larger += x[i * K + j] > x[i * K + ids[i]];
            assert_true(larger < 4);
        }
    }
    rows[2].temperature = -1;
    FAILS(RC_INVALID, be_sample(c, &a, err));
    be_tensor_free(c, &t);
    be_ctx_free(&c);
    free(x);
}

static int need(void **state)
{
    cuda_need();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusions_and_graphs_change_nothing),
        cmocka_unit_test(chunks_and_neighbours),
        cmocka_unit_test(full_lists_go_on),
        cmocka_unit_test(graphs_are_evicted),
        cmocka_unit_test(a_first_part_goes_ahead),
        cmocka_unit_test(no_capture),
        cmocka_unit_test(draws),
    };

    return cmocka_run_group_tests(tests, need, NULL);
}
