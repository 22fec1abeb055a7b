/* test_sup_keep.c - every form of keep_alive, good and bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "sup_keep.h"
#include "sup_status.h"

#define MAX_S 3600u
#define MOST (MAX_S * 1000ull)
#define BAD UINT64_MAX

static void values_of_the_field(void **state)
{
    static const struct {
        const char *json;
        uint64_t ms;
    } rows[] = {
        {"0", 0},
        {"300", 300000},
        {"1.5", 1500},
        {"-1", MOST},
        {"-0.5", MOST},
        {"3601", MOST},
        {"1e300", MOST},
        {"\"0\"", 0},
        {"\"0s\"", 0},
        {"\"-0\"", 0},
        {"\"300\"", 300000},
        {"\"5m\"", 300000},
        {"\"1h\"", MOST},
        {"\"0.5h\"", 1800000},
        {"\"1m30s\"", 90000},
        {"\"1m0.5s\"", 60500},
        {"\"500ms\"", 500},
        {"\"2000us\"", 2},
        {"\"5000000ns\"", 5},
        {"\"-1\"", MOST},
        {"\"-5m\"", MOST},
        {"\"99999999999999999999999999999999h\"", MOST},
        {"\"\"", BAD},
        {"\"-\"", BAD},
        {"\"m\"", BAD},
        {"\"5x\"", BAD},
        {"\"5 m\"", BAD},
        {"\"5m \"", BAD},
        {"\"5m3\"", BAD},
        {"\"5.m\"", BAD},
        {"\".5m\"", BAD},
        {"\"1.2.3s\"", BAD},
        {"\"--1\"", BAD},
        {"\"0x10\"", BAD},
        {"\"inf\"", BAD},
        {"\"5m\\u0000\"", BAD},
        {"true", BAD},
        {"[5]", BAD},
        {"{}", BAD},
        {"\"00000000000000000000000000000000000000000000000000000000000000000\"", BAD},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *j = json_loads(rows[i].json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        struct sup_fail f;
        uint64_t ms = BAD;
        bool set = false, ok;

        assert_non_null(j);
        ok = sup_keep_read(j, "7", MAX_S, &set, &ms, &f);
        if (ok != (rows[i].ms != BAD) || set != ok || (ok && ms != rows[i].ms))
            fail_msg("%s: %d %llu", rows[i].json, ok, (unsigned long long)ms);
        if (!ok)
            assert_int_equal(f.code, SUP_E_INVALID_REQUEST);
        json_decref(j);
    }
}

static void the_header_speaks_where_the_field_does_not(void **state)
{
    struct sup_fail f;
    uint64_t ms = 1;
    bool set;

    (void)state;
    assert_true(sup_keep_read(NULL, NULL, MAX_S, &set, &ms, &f));
    assert_false(set);
    assert_true(sup_keep_read(json_null(), NULL, MAX_S, &set, &ms, &f));
    assert_false(set);
    assert_true(sup_keep_read(json_null(), "5m", MAX_S, &set, &ms, &f));
    assert_true(set && ms == 300000);
    assert_true(sup_keep_read(NULL, "5m", 0, &set, &ms, &f)); /* nothing may be asked for */
    assert_true(set && ms == 0);
    assert_false(sup_keep_read(NULL, "soon", MAX_S, &set, &ms, &f));
    assert_non_null(strstr(f.err.msg, "X-Keep-Alive"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_the_field),
        cmocka_unit_test(the_header_speaks_where_the_field_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
