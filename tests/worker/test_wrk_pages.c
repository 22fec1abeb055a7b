/* test_wrk_pages.c - the books of the KV cache under random use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_pages.h"

#define SEED 99u
static uint32_t rnd = SEED;
static uint32_t below(uint32_t n)
{
    rnd = rnd * 1664525u + 1013904223u;
    return (rnd >> 8) % n;
}

static struct mdl_kv_geometry geo(uint32_t page, uint32_t n0, uint32_t w0, uint32_t n1)
{
    struct mdl_kv_geometry g = {.page_tokens = page, .n_classes = 2};

    g.cls[0].n_pages = n0;
    g.cls[0].window = w0;
    g.cls[0].page_bytes = 100;
    g.cls[1].n_pages = n1;
    g.cls[1].page_bytes = 1000;
    return g;
}

struct user {
    struct wrk_table t;
    uint32_t total, pos;
    bool open;
};

static void check_books(const struct wrk_pages *p, const struct user *u, size_t n)
{
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint8_t seen[4096] = {0};
        uint32_t held = 0, reserved = 0;

        for (uint32_t i = 0; i < p->cls[c].n_free; i++) {
            assert_in_range(p->cls[c].free[i], 0, p->cls[c].n_pages - 1);
            assert_int_equal(seen[p->cls[c].free[i]]++, 0);
        }
        for (size_t k = 0; k < n; k++) {
            uint32_t mine = 0;
            if (!u[k].open)
                continue;
            reserved += wrk_pages_need(p, c, u[k].total, 0);
            for (uint32_t i = 0; i < u[k].t.cap_entries; i++) {
                int32_t e = u[k].t.entry[c][i];
                if (e < 0)
                    continue;
                assert_true(i >= u[k].t.from[c] && i < u[k].t.to[c]);
                assert_int_equal(seen[e]++, 0); /* one owner */
                mine++;
            }
            assert_true(mine <= wrk_pages_need(p, c, u[k].total, 0));
            held += mine;
        }
        assert_int_equal(held + p->cls[c].n_free, p->cls[c].n_pages);
        assert_int_equal(reserved, p->cls[c].n_reserved);
        assert_true(reserved <= p->cls[c].n_pages);
    }
}

static void random_use_keeps_the_books(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        uint32_t page = 16u << below(3), window = 1 + below(200);
        struct mdl_kv_geometry g = geo(page, 40 + below(60), window, 30 + below(100));
        struct wrk_pages p;
        struct user u[6];
        uint32_t ctx = page * 30;

        memset(u, 0, sizeof(u));
        assert_int_equal(wrk_pages_init(&p, &g, ctx, 1 + below(128), NULL), RC_OK);
        for (int step = 0; step < 600; step++) {
            struct user *x = &u[below(6)];

            if (!x->open) {
                uint32_t total = 1 + below(ctx);
                enum rc rc = wrk_table_open(&x->t, &p, total, total, NULL, NULL);
                assert_true(rc == RC_OK || rc == RC_BUSY);
                if (rc == RC_OK)
                    *x = (struct user){.t = x->t, .total = total, .open = true};
            } else if (x->pos == x->total || below(40) == 0) {
                wrk_table_close(&x->t, &p);
                x->open = false;
            } else {
                uint32_t n = 1 + below(p.chunk);
                if (n > x->total - x->pos)
                    n = x->total - x->pos;
                if (wrk_table_hold(&x->t, &p, x->pos, n, NULL) != RC_OK)
                    fail_msg("admitted sequence starved, seed %u round %d step %d", SEED, round,
                             step);
                for (uint32_t c = 0; c < 2; c++) { /* every key a row can see has a page */
                    uint32_t w = g.cls[c].window;
                    uint32_t lo = w > 0 && x->pos + 1 > w ? x->pos + 1 - w : 0;
                    for (uint32_t q = lo; q < x->pos + n; q++)
                        assert_true(x->t.entry[c][q / page] >= 0);
                }
                x->pos += n;
            }
            check_books(&p, u, 6);
        }
        for (int k = 0; k < 6; k++)
            wrk_table_close(&u[k].t, &p);
        assert_int_equal(wrk_pages_used_bytes(&p), 0);
        wrk_pages_deinit(&p);
    }
}

static void what_can_never_fit_is_refused_with_numbers(void **state)
{
    struct mdl_kv_geometry g = geo(16, 10, 64, 4);
    struct wrk_pages p;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(wrk_pages_init(&p, &g, 1000, 16, NULL), RC_OK);
    assert_int_equal(wrk_pages_check(&p, 64, &err), RC_OK);
    assert_int_equal(wrk_pages_check(&p, 65, &err), RC_LIMIT);
    assert_int_equal(err.n, 5000);
    assert_int_equal(err.limit, 4000);
    wrk_pages_deinit(&p);
}

static void a_small_windowed_class_lowers_the_chunk(void **state)
{
    struct mdl_kv_geometry g = geo(16, 6, 64, 100);
    struct wrk_pages p;
    struct wrk_table t;

    (void)state;
    assert_int_equal(wrk_pages_init(&p, &g, 1600, 512, NULL), RC_OK);
    assert_int_equal(p.chunk, 5 * 16 + 2 - 64);
    assert_int_equal(wrk_table_open(&t, &p, 1600, 1600, NULL, NULL), RC_OK);
    for (uint32_t pos = 0; pos < 1600;) {
        uint32_t n = p.chunk < 1600 - pos ? p.chunk : 1600 - pos;
        assert_int_equal(wrk_table_hold(&t, &p, pos, n, NULL), RC_OK);
        pos += n;
    }
    assert_int_equal(wrk_table_hold(&t, &p, 1600, 1, NULL), RC_INTERNAL);
    wrk_table_close(&t, &p);
    wrk_pages_deinit(&p);
    g.cls[0].n_pages = 4; /* 64 positions: cannot hold 63 old keys and a new row anywhere */
    assert_int_equal(wrk_pages_init(&p, &g, 1600, 512, NULL), RC_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_keeps_the_books),
        cmocka_unit_test(what_can_never_fit_is_refused_with_numbers),
        cmocka_unit_test(a_small_windowed_class_lowers_the_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
