/* mdl_kv.c: what a budget buys. */
#include "mdl_test.h"

#define PT 32u

static void pages_of_one_sequence(void **s)
{
    static const struct {
        const char *what;
        uint32_t window, chunk;
        uint64_t n, pages;
    } rows[] = {
        {"a global class keeps every position", 0, 64, 1000, 32},
        {"one token needs one page", 0, 1, 1, 1},
        {"a window of one token and steps of one: a single page", 1, 1, 1000, 1},
        {"two live positions may straddle pages", 2, 1, 1000, 2},
        {"a short sequence needs no more than it has", 512, 512, 40, 2},
        {"window 512, chunk 512: 1023 positions, unaligned", 512, 512, 32768, 33},
        {"window 8, chunk 128", 8, 128, 2048, 6},
    };
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        uint64_t got = mdl_kv_seq_pages(PT, rows[i].window, rows[i].chunk, rows[i].n);

        if (got != rows[i].pages)
            fail_msg("%s: %llu pages, expected %llu", rows[i].what, (unsigned long long)got,
                     (unsigned long long)rows[i].pages);
    }
}

/* The formula against brute force: live positions of every pass, counted in pages. */
static void page_counts_are_never_too_small(void **s)
{
    static const uint32_t windows[] = {1, 2, 7, 31, 32, 33, 64, 100}, chunks[] = {1, 3, 32, 45};
    size_t w, c;

    for (w = 0; w < 8; w++)
        for (c = 0; c < 4; c++) {
            uint64_t most = 0, n = 700, p = 0, k;

            /* prefixes of any length may be fed first: start passes everywhere */
            for (p = 0; p < n; p++) {
                uint64_t first = p + 1 > windows[w] ? p + 1 - windows[w] : 0, last;

                for (k = 1; k <= chunks[c] && p + k <= n; k++) {
                    last = p + k - 1;
                    if (last / PT - first / PT + 1 > most)
                        most = last / PT - first / PT + 1;
                }
            }
            assert_int_equal(mdl_kv_seq_pages(PT, windows[w], chunks[c], n), most);
        }
}

static uint64_t total(const struct mdl_kv_geometry *g)
{
    uint64_t sum = 0;
    uint32_t c;

    for (c = 0; c < g->n_classes; c++)
        sum += (uint64_t)g->cls[c].n_pages * g->cls[c].page_bytes;
    return sum;
}

static void budgets(void **s)
{
    const struct mdl_kv_class two[2] = {{0, 3000}, {512, 15000}};
    const struct mdl_kv_class global[1] = {{0, 4096}}, sliding[1] = {{64, 4096}};
    static const uint64_t sizes[] = {60000, 500000, 4000000, 64000000, 1ull << 40};
    size_t i;

    for (i = 0; i < 5; i++) {
        struct mdl_kv_geometry g;
        uint32_t ctx = 0, c;

        need_ok(mdl_kv_fit(&g, &ctx, PT, two, 2, sizes[i], 32768, 512, 4, err));
        assert_true(total(&g) <= sizes[i]);
        assert_true(ctx >= 64 && ctx <= 32768);
        for (c = 0; c < 2; c++)
            assert_true(g.cls[c].n_pages >= mdl_kv_seq_pages(PT, two[c].window, 512, ctx));
        if (ctx < 32768) /* a longer context would not have fitted */
            assert_true(mdl_kv_seq_pages(PT, 0, 512, ctx + PT) * 3000 +
                            mdl_kv_seq_pages(PT, 512, 512, ctx + PT) * 15000 >
                        sizes[i]);
        need_ok(mdl_kv_fit(&g, &ctx, PT, global, 1, sizes[i], 300, 16, 1, err));
        assert_true(total(&g) <= sizes[i]);
        need_ok(mdl_kv_fit(&g, &ctx, PT, sliding, 1, sizes[i], 300, 16, 1, err));
        assert_int_equal(ctx, 300);
        assert_true(total(&g) <= sizes[i]);
    }
}

static void too_small_a_budget_says_both_numbers(void **s)
{
    const struct mdl_kv_class one[1] = {{0, 1000}};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_kv_geometry g;
    uint32_t ctx;

    assert_int_equal(mdl_kv_fit(&g, &ctx, PT, one, 1, 1999, 4096, 16, 1, &e), RC_LIMIT);
    assert_int_equal(e.n, 2000);
    assert_int_equal(e.limit, 1999);
    assert_non_null(strstr(e.msg, "2000"));
    assert_non_null(strstr(e.msg, "1999"));
    need_ok(mdl_kv_fit(&g, &ctx, PT, one, 1, 2000, 4096, 16, 1, err));
    assert_int_equal(ctx, 64);
    /* a model whose own context is shorter than 64 needs only that */
    need_ok(mdl_kv_fit(&g, &ctx, PT, one, 1, 1000, 20, 16, 1, err));
    assert_int_equal(ctx, 20);
}

/* Gemma 4 E2B, f16: 3 own global layers of 2,048 bytes a token, 12 sliding ones of 1,024
 * (engine.md 3.3); layers that share another's keys cost nothing. */
static void the_estimate_of_e2b_is_exact(void **s)
{
    const struct mdl_kv_class e2b[2] = {{0, 3 * 2048 * PT}, {512, 12 * 1024 * PT}};
    const uint64_t need = 131072ull * 3 * 2048 + 33ull * 12 * 1024 * PT; /* 33: window + chunk */
    struct mdl_kv_geometry g;
    uint32_t ctx = 0;

    need_ok(mdl_kv_fit(&g, &ctx, PT, e2b, 2, need, 131072, 512, 1, err));
    assert_int_equal(ctx, 131072);
    assert_int_equal(mdl_kv_need_bytes(&g, 131072), need);
    assert_int_equal(total(&g), need);
    assert_true(need < 787ull << 20); /* and not the 9 GiB of all layers at the widest row */
    assert_int_equal(mdl_kv_need_bytes(&g, 1), (3 * 2048 + 12 * 1024) * PT);
    assert_int_equal(mdl_kv_need_bytes(&g, 0), 0);
    need_ok(mdl_kv_fit(&g, &ctx, PT, e2b, 2, need - 1, 131072, 512, 1, err));
    assert_int_equal(ctx, 131072 - PT); /* one page less */
    g.cls[0].page_bytes = UINT64_MAX / 2;
    assert_true(mdl_kv_need_bytes(&g, 131072) == UINT64_MAX);
}

static void absurd_sizes_do_not_overflow(void **s)
{
    const struct mdl_kv_class one[1] = {{0, UINT64_MAX / 2}};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_kv_geometry g;
    uint32_t ctx;

    assert_int_equal(mdl_kv_fit(&g, &ctx, PT, one, 1, UINT64_MAX - 1, 1u << 24, 1u << 20, 1024, &e),
                     RC_OK);
    assert_true(total(&g) <= UINT64_MAX - 1);
    assert_int_equal(mdl_kv_fit(&g, &ctx, PT, one, 1, 1u << 30, 1u << 24, 1u << 20, 1024, &e),
                     RC_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_one_sequence),
        cmocka_unit_test(page_counts_are_never_too_small),
        cmocka_unit_test(budgets),
        cmocka_unit_test(too_small_a_budget_says_both_numbers),
        cmocka_unit_test(the_estimate_of_e2b_is_exact),
        cmocka_unit_test(absurd_sizes_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
