/* test_sup_trace.c - traceparent and tracestate as the W3C recommendation has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sup_trace.h"

#define GOOD "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

static void test_a_good_parent_is_read_and_written(void **state)
{
    struct sup_trace t = {.span_id = {0, 1, 2, 3, 0xab, 5, 6, 0xff}};
    char text[SUP_TRACE_BYTES];

    assert_false(sup_trace_is(&t));
    assert_true(sup_trace_parse(GOOD, &t));
    assert_true(sup_trace_is(&t));
    assert_int_equal(t.flags, SUP_TRACE_SAMPLED);
    assert_int_equal(t.trace_id[0], 0x4b);
    assert_int_equal(t.parent_id[7], 0xb7);
    sup_trace_print(&t, text);
    assert_string_equal(text, "00-4bf92f3577b34da6a3ce929d0e0e4736-00010203ab0506ff-01");
    assert_true(sup_trace_parse(text, &t));
    assert_memory_equal(t.parent_id, t.span_id, 8);
}

static void test_malformed_parents_change_nothing(void **state)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", /* version 00 has no more */
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    };
    struct sup_trace t, before;

    memset(&before, 0x5a, sizeof(before));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        t = before;
        if (sup_trace_parse(bad[i], &t))
            fail_msg("'%s' was read", bad[i]);
        assert_memory_equal(&t, &before, sizeof(t));
    }
}

static void test_later_versions_are_read_as_far_as_known(void **state)
{
    struct sup_trace t = {0};

    assert_true(
        sup_trace_parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-what-next", &t));
    assert_int_equal(t.flags, 1); /* unknown bits are dropped */
    assert_true(sup_trace_parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", &t));
    assert_int_equal(t.flags, 0);
}

static void test_tracestate(void **state)
{
    static const struct {
        const char *text;
        bool ok;
    } rows[] = {
        {"rojo=00f067aa0ba902b7", true},
        {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true},
        {" a=1 ,\tb=2 ", true},
        {"a=1,,b=2", true},
        {"tenant@vendor_1-x*y/z=hello world!", true},
        {"1a=x", true},
        {"", false},
        {",", false},
        {"a", false},
        {"=1", false},
        {"a=", false},
        {"A=1", false},
        {"_a=1", false},
        {"a=1=2", false},
        {"a=1,a=2", false},
        {"a=\x01", false},
        {"a=\xc3\xa4", false},
        {"a b=1", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_trace_state_ok(rows[i].text) != rows[i].ok)
            fail_msg("'%s' should be %s", rows[i].text, rows[i].ok ? "kept" : "dropped");
}

static void test_tracestate_is_bounded(void **state)
{
    char text[SUP_TRACE_STATE + 8] = "";
    size_t n = 0;

    for (int i = 0; i < SUP_TRACE_MEMBERS; i++)
        n += (size_t)sprintf(text + n, "%sk%d=1", i ? "," : "", i);
    assert_true(sup_trace_state_ok(text));
    sprintf(text + n, ",k%d=1", SUP_TRACE_MEMBERS);
    assert_false(sup_trace_state_ok(text));

    memset(text, 'v', sizeof(text));
    memcpy(text, "a=", 2);
    text[2 + 256] = '\0';
    assert_true(sup_trace_state_ok(text));
    text[2 + 256] = 'v';
    text[2 + 257] = '\0';
    assert_false(sup_trace_state_ok(text));

    memset(text, ' ', sizeof(text)); /* as long as is kept, and one more */
    memcpy(text, "a=b,", 4);
    text[SUP_TRACE_STATE] = '\0';
    assert_true(sup_trace_state_ok(text));
    text[SUP_TRACE_STATE] = ' ';
    text[SUP_TRACE_STATE + 1] = '\0';
    assert_false(sup_trace_state_ok(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_parent_is_read_and_written),
        cmocka_unit_test(test_malformed_parents_change_nothing),
        cmocka_unit_test(test_later_versions_are_read_as_far_as_known),
        cmocka_unit_test(test_tracestate),
        cmocka_unit_test(test_tracestate_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
