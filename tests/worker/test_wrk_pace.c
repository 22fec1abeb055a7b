/* test_wrk_pace.c - rows of prompts beside decoders, from measured times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "wrk_pace.h"

struct machine {
    uint64_t decode_us, row_us;
};

/* Passes of that machine until the pace has settled; the gap it leads to. */
static uint64_t settle(struct wrk_pace *p, const struct machine *m, uint32_t *rows)
{
    for (int i = 0; i < 60; i++) {
        *rows = wrk_pace_rows(p);
        wrk_pace_pass(p, m->decode_us, 2, 0);
        wrk_pace_pass(p, m->decode_us + *rows * m->row_us, 2, *rows);
    }
    return m->decode_us + wrk_pace_rows(p) * m->row_us;
}

static void the_gap_is_held_on_any_machine(void **state)
{
    static const struct machine rows[] = {{15000, 1700}, {4000, 80}, {30000, 600}, {9000, 500}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wrk_pace p = {0, 0};
        uint32_t n;
        uint64_t gap = settle(&p, &rows[i], &n);

        assert_true(gap <= WRK_PACE_GAP * rows[i].decode_us + rows[i].row_us);
        assert_true(n >= WRK_PACE_LEAST && n <= WRK_PACE_MOST);
        if (n < WRK_PACE_MOST) /* and no smaller than it must be */
            assert_true(gap + 2 * rows[i].row_us >= WRK_PACE_GAP * rows[i].decode_us);
    }
}

static void prompts_always_get_on_and_never_take_all(void **state)
{
    struct wrk_pace p = {0, 0};

    (void)state;
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_UNKNOWN);
    wrk_pace_pass(&p, 1000, 0, 100); /* prompts alone: 10 us a row */
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_UNKNOWN);
    wrk_pace_pass(&p, 1, 1, 0);
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_LEAST);
    p = (struct wrk_pace){0, 0};
    wrk_pace_pass(&p, 500, 1, 10); /* mixed, before a gap is known: tells nothing */
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_UNKNOWN);
    wrk_pace_pass(&p, 1000000, 1, 0);
    wrk_pace_pass(&p, 0, 0, 100);
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_MOST);
    wrk_pace_pass(&p, 10, 3, 7); /* a mixed pass that was faster than one without */
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_MOST);
    wrk_pace_pass(&p, 10, 0, 0);
    assert_int_equal(wrk_pace_rows(&p), WRK_PACE_MOST);
}

static void a_pass_of_prompts_alone_is_short(void **state)
{
    struct wrk_pace p = {0, 0};

    (void)state;
    assert_int_equal(wrk_pace_rows_alone(&p), WRK_PACE_ALONE_UNKNOWN);
    p.row_us = 1700; /* a small model on two cores */
    assert_in_range(wrk_pace_rows_alone(&p), 580, 596);
    p.row_us = 20000; /* a large one */
    assert_int_equal(wrk_pace_rows_alone(&p), WRK_PACE_ALONE_LEAST);
    p.row_us = 6; /* a GPU: the configured pass decides */
    assert_true(wrk_pace_rows_alone(&p) > 8192);
    p.row_us = 1e-9;
    assert_int_equal(wrk_pace_rows_alone(&p), UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gap_is_held_on_any_machine),
        cmocka_unit_test(a_pass_of_prompts_alone_is_short),
        cmocka_unit_test(prompts_always_get_on_and_never_take_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
