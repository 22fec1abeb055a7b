/* test_rc.c - the status table and the making of messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ipc.h"
#include "rc.h"

static void names_and_values_agree(void **s)
{
    (void)s;
#define X(name, value, text)                             \
    assert_string_equal(rc_name((enum rc)value), #name); \
    assert_string_equal(rc_text(RC_##name), text);       \
    assert_int_equal(rc_from_wire(value), RC_##name);
    RC_MAP(X)
#undef X
    assert_int_equal(rc_from_wire(9999), RC_INTERNAL);
    assert_string_equal(rc_name((enum rc)9999), "UNKNOWN");
    assert_non_null(rc_text((enum rc)9999));
}

static void fail_fills_and_returns(void **s)
{
    struct rc_err e = {.n = 7, .limit = 8, .item = 3, .stage = "old", .what = "old"};

    (void)s;
    assert_int_equal(rc_fail(&e, RC_BUSY, "x %d", 5), RC_BUSY);
    assert_int_equal(e.code, RC_BUSY);
    assert_string_equal(e.msg, "x 5");
    assert_string_equal(e.what, "");
    assert_int_equal(e.item, -1);
    assert_true(e.n == 0 && e.limit == 0 && e.stage == NULL);
    assert_int_equal(rc_fail(NULL, RC_IO, "unused"), RC_IO);
    assert_int_equal(rc_fail_what(&e, RC_INVALID, "top_p", "no"), RC_INVALID);
    assert_string_equal(e.what, "top_p");
    assert_int_equal(rc_bound(rc_fail(&e, RC_LIMIT, "9 of 8"), 9, 8, &e), RC_LIMIT);
    assert_true(e.code == RC_LIMIT && e.n == 9 && e.limit == 8);
    assert_int_equal(rc_bound(RC_TOO_LARGE, 2, 1, NULL), RC_TOO_LARGE);
    assert_int_equal(rc_fail_what(&e, RC_INVALID, "top_p", "no"), RC_INVALID);
    rc_wrap(&e, "field %s", "a");
    assert_string_equal(e.msg, "field a: no");
    rc_wrap(NULL, "nothing happens");
}

static void long_messages_are_cut_at_a_character(void **s)
{
    struct rc_err e = RC_ERR_INIT;
    char big[2000];

    (void)s;
    for (int shift = 0; shift < 4; shift++) {
        memset(big, 'a', 4);
        for (int i = 0; i < 400; i++)
            memcpy(big + shift + i * 4, "\xF0\x9F\x98\x80", 4);
        big[shift + 1600] = '\0';
        rc_fail(&e, RC_IO, "%s", big);
        assert_true(strlen(e.msg) > 500 && strlen(e.msg) < sizeof(e.msg));
        assert_true(ipc_utf8_valid(e.msg, strlen(e.msg)));
        rc_wrap(&e, "why");
        assert_true(ipc_utf8_valid(e.msg, strlen(e.msg)));
        rc_fail_what(&e, RC_IO, big, "m");
        assert_true(ipc_utf8_valid(e.what, strlen(e.what)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_values_agree),
        cmocka_unit_test(fail_fills_and_returns),
        cmocka_unit_test(long_messages_are_cut_at_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
