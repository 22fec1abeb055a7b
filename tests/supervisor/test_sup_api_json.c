/* test_sup_api_json.c - escaping, numbers and base64 of the answer buffer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sup_json.h"

static void assert_out(struct sup_json *o, const char *want, size_t n)
{
    assert_false(o->failed);
    assert_int_equal(o->n, n);
    if (n)
        assert_memory_equal(o->p, want, n);
    sup_json_reset(o);
}

static void test_escape(void **state)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } rows[] = {
        {"", 0, ""},
        {"plain", 5, "plain"},
        {"a\"b\\c", 5, "a\\\"b\\\\c"},
        {"\n\r\t\b\0", 5, "\\n\\r\\t\\u0008\\u0000"},
        {"\x7f\x1f", 2, "\\u007f\\u001f"},
        {"\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80", 9, "\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80"},
        {"\xff"
         "a",
         2,
         "\xef\xbf\xbd"
         "a"},                                                       /* never valid */
        {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"x\xe4\xb8", 3, "x\xef\xbf\xbd\xef\xbf\xbd"}, /* cut at the end */
    };
    struct sup_json o = {0};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sup_json_text(&o, rows[i].in, rows[i].n);
        assert_out(&o, rows[i].out, strlen(rows[i].out));
    }
    sup_json_quoted(&o, NULL);
    assert_out(&o, "null", 4);
    sup_json_deinit(&o);
}

static void check_float(struct sup_json *o, float v)
{
    char text[32];

    sup_json_reset(o);
    sup_json_f32(o, v);
    assert_true(o->n < sizeof(text));
    memcpy(text, o->p, o->n);
    text[o->n] = '\0';
    /* as a C client reads it, and as one that has only doubles does */
    if (strtof(text, NULL) != v || (float)strtod(text, NULL) != v)
        fail_msg("%.9g was written as %s", (double)v, text);
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!json_is_real(j) && !json_is_integer(j))
        fail_msg("%s is no JSON number", text);
    json_decref(j);
}

static void test_floats_read_back_equal(void **state)
{
    static const float edge[] = {0.0f,         -0.0f,      1.0f,       -1.0f,       0.1f,
                                 1e-5f,        9.9999e-6f, 999999.94f, 1e6f,        0.5f,
                                 123.456f,     3.4e38f,    1e-45f,     16777216.0f, 0.99999994f,
                                 -0.06250001f, 99999.99f,  100000.0f};
    struct sup_json o = {0};
    uint32_t x = 12345;

    for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++)
        check_float(&o, edge[i]);
    for (int i = 0; i < 60000; i++) {
        float v;

        x = x * 1664525u + 1013904223u;
        memcpy(&v, &x, sizeof(v));
        if (isfinite(v))
            check_float(&o, v);
        check_float(&o, ((float)(x >> 8) / 8388608.0f - 1.0f) * 0.2f);
    }
    /* every binade, both ends and between */
    for (uint32_t e = 0; e < 255; e++)
        for (uint32_t m = 0; m < 300; m++) {
            uint32_t bits = e << 23 | (m < 50 ? m : m < 100 ? 0x7FFFFF - (m - 50) : m * 27961);
            float v;

            memcpy(&v, &bits, sizeof(v));
            check_float(&o, v);
        }
    sup_json_reset(&o);
    sup_json_f32(&o, NAN);
    assert_out(&o, "null", 4);
    sup_json_f32(&o, 0.25f);
    assert_out(&o, "0.25", 4);
    sup_json_f32(&o, 0.1f);
    assert_out(&o, "0.1", 3);
    sup_json_f32(&o, -12.0f);
    assert_out(&o, "-12.0", 5);
    sup_json_deinit(&o);
}

static void test_doubles_read_back_equal(void **state)
{
    static const struct {
        double v;
        const char *want;
    } rows[] = {{0, "0.0"},
                {-1, "-1.0"},
                {0.1, "0.1"},
                {1e-6, "1e-06"},
                {0.1 + 0.2, "0.30000000000000004"},
                {NAN, "null"},
                {-INFINITY, "null"}};
    struct sup_json o = {0};
    uint64_t bits = 88172645463325252u;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sup_json_f64(&o, rows[i].v);
        assert_out(&o, rows[i].want, strlen(rows[i].want));
        sup_json_reset(&o);
    }
    for (int i = 0; i < 20000; i++) {
        double v, back;
        char s[40];

        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&v, &bits, sizeof(v));
        if (!isfinite(v))
            continue;
        sup_json_f64(&o, v);
        snprintf(s, sizeof(s), "%.*s", (int)o.n, o.p);
        back = strtod(s, NULL);
        assert_memory_equal(&back, &v, sizeof(v));
        sup_json_reset(&o);
    }
    sup_json_deinit(&o);
}

static void test_base64(void **state)
{
    static const char *const rows[][2] = {
        {"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
        {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfd\xfc", "//79/A=="}};
    struct sup_json o = {0};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sup_json_base64(&o, rows[i][0], strlen(rows[i][0]));
        assert_out(&o, rows[i][1], strlen(rows[i][1]));
    }
    sup_json_deinit(&o);
}

static void test_limit(void **state)
{
    struct sup_json o = {.limit = 10};

    sup_json_str(&o, "0123456789");
    assert_false(o.failed);
    sup_json_str(&o, "x");
    assert_true(o.failed);
    assert_int_equal(o.n, 10);
    sup_json_str(&o, "");
    sup_json_u64(&o, 7);
    assert_true(o.failed);
    assert_int_equal(o.n, 10);
    sup_json_reset(&o);
    sup_json_u64(&o, UINT64_MAX % 10000000000u);
    assert_false(o.failed);
    sup_json_base64(&o, "abc", 3);
    assert_true(o.failed);
    sup_json_deinit(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_floats_read_back_equal),
        cmocka_unit_test(test_doubles_read_back_equal),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
