/* test_mdl_safetensors.c - safetensors headers that lie, and how tensors of
 * them are taken. */
#include "mdl_file.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

static enum rc parse(const char *json, size_t n_data, struct mdl_file **f, struct out *o,
                     struct rc_err *err)
{
    *f = NULL;
    *o = (struct out){0};
    safetensors(o, json, n_data);
    return mdl_safetensors_parse(f, o->p, o->n, err);
}

static void lies_are_named(void **state)
{
    static const struct {
        const char *name, *json;
        size_t n_data;
        const char *says;
    } lies[] = {
        {"no JSON", "{\"a\":", 0, "not a JSON object"},
        {"a list", "[1,2]", 0, "not a JSON object"},
        {"a NUL in a name", "{\"a\\u0000b\":{}}", 0, "not a JSON object"},
        {"the same name twice",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         4, "not a JSON object"},
        {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "needs dtype"},
        {"an entry that is a number", "{\"a\":7}", 4, "needs dtype"},
        {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "two whole numbers"},
        {"a negative offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}",
         4, "two whole numbers"},
        {"offsets the wrong way round",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "[4,0] outside"},
        {"past the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
         "outside the 4 bytes"},
        {"a shape that is too small",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "do not fill"},
        {"a size that overflows",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
         "do not fill"},
        {"a product that overflows",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4]}}", 4,
         "too large"},
        {"a negative dimension",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
        {"half a dimension", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}",
         4, "dimension 0"},
        {"two tensors on the same bytes",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]}}",
         8, "overlap"},
        {"a skipped tensor under another",
         "{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]}}",
         8, "overlap"},
        {"an empty name", "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "1 to 512"},
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_file *f;
        struct out o;
        enum rc rc = parse(lies[i].json, lies[i].n_data, &f, &o, &err);
        if (rc != RC_FORMAT || !strstr(err.msg, lies[i].says))
            fail_msg("%s: %s '%s', expected FORMAT '%s'", lies[i].name, rc_name(rc), err.msg,
                     lies[i].says);
        assert_null(f);
        free(o.p);
    }
}

static void header_lengths_that_lie(void **state)
{
    static const uint64_t lengths[] = {0, 1, 9, 1u << 20, 101u << 20, UINT64_MAX, UINT64_MAX - 7};
    struct mdl_file *f = NULL;
    struct rc_err err;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct out o = {0};
        put64(&o, lengths[i]);
        put(&o, "{}      ", 8);
        assert_int_equal(mdl_safetensors_parse(&f, o.p, o.n, &err), RC_FORMAT);
        free(o.p);
    }
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(mdl_safetensors_parse(&f, "\2\0\0\0\0\0\0\0", n, &err), RC_FORMAT);
        assert_non_null(strstr(err.msg, "not safetensors"));
    }
    assert_null(f);
}

static void cut_anywhere_it_is_refused(void **state)
{
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    struct mdl_file *f;
    struct out o;

    assert_int_equal(parse(json, 8, &f, &o, NULL), RC_OK);
    mdl_file_close(&f);
    for (size_t n = 0; n < o.n; n++) {
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, o.p, n);
        assert_int_equal(mdl_safetensors_parse(&f, exact, n, NULL), RC_FORMAT);
        free(exact);
    }
    free(o.p);
}

static void what_can_be_taken(void **state)
{
    static const char json[] = "{\"f\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                               "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[24,32]},"
                               "\"q\":{\"dtype\":\"F4_X\",\"shape\":[1],\"data_offsets\":[32,33]},"
                               "\"odd\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[33,35]},"
                               "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[36,40]},"
                               "\"z\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[7,7]}}"
                               "    ";
    struct rc_err err = RC_ERR_INIT;
    const struct mdl_tensor *t = NULL;
    const uint64_t d23[2] = {2, 3}, d32[2] = {3, 2}, d1[1] = {1};
    struct mdl_file *f;
    struct out o;

    /* the length of the header decides the alignment: make it a multiple of 8 */
    char padded[1024];
    int n = snprintf(padded, sizeof(padded), "%-*s", (int)((sizeof(json) + 6) / 8 * 8), json);
    assert_int_equal(n % 8, 0);
    if (parse(padded, 40, &f, &o, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mdl_file_n_tensors(f), 4);
    assert_int_equal(mdl_file_take(f, "f", 2, d23, &t, &err), RC_OK);
    assert_int_equal(t->n_bytes, 24);
    assert_int_equal(mdl_file_take(f, "s", 0, NULL, &t, &err), RC_OK);
    assert_int_equal(mdl_file_take(f, "f", 2, d32, &t, &err), RC_FORMAT);
    assert_string_equal(err.msg, "tensor 'f': shape [2,3], expected [3,2]");
    assert_int_equal(mdl_file_take(f, "f", 1, d1, &t, &err), RC_FORMAT);
    assert_int_equal(mdl_file_take(f, "nope", 1, d1, &t, &err), RC_WEIGHT_ABSENT);
    assert_string_equal(err.what, "nope");
    assert_int_equal(mdl_file_take(f, "i", 1, d1, &t, &err), RC_UNSUPPORTED);
    assert_string_equal(err.msg, "tensor 'i' has dtype I64, not supported");
    assert_int_equal(mdl_file_take(f, "q", 1, d1, &t, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "F4_X"));
    assert_int_equal(mdl_file_take(f, "odd", 1, d1, &t, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "multiple of 2"));
    mdl_file_close(&f);
    free(o.p);
}

/* Lists of token ids: no weights, but asked for by name, count and range. */
static void integers_are_counted_and_bounded(void **state)
{
    static const char json[] = "{\"a\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
                               "\"b\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[24,32]},"
                               "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[32,36]},"
                               "\"d\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[36,40]}}";
    const int64_t a[3] = {2, 0, 7};
    const int32_t b[2] = {-1, 5};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_file *f;
    struct out o;
    int32_t got[3];

    assert_int_equal(parse(json, 40, &f, &o, &e), RC_OK);
    memcpy(o.p + o.n - 40, a, sizeof(a));
    memcpy(o.p + o.n - 16, b, sizeof(b));
    assert_int_equal(mdl_file_ints(f, "a", 3, 8, got, &e), RC_OK);
    assert_true(got[0] == 2 && got[1] == 0 && got[2] == 7);
    assert_int_equal(mdl_file_ints(f, "a", 3, 7, got, &e), RC_FORMAT);
    assert_non_null(strstr(e.msg, "integer 2 is 7"));
    assert_int_equal(mdl_file_ints(f, "a", 2, 8, got, &e), RC_FORMAT);
    assert_int_equal(mdl_file_ints(f, "b", 2, 8, got, &e), RC_FORMAT); /* negative */
    assert_int_equal(mdl_file_ints(f, "c", 1, 8, got, &e), RC_WEIGHT_ABSENT);
    assert_int_equal(mdl_file_ints(f, "d", 4, 8, got, &e), RC_WEIGHT_ABSENT);
    assert_int_equal(mdl_file_ints(f, "none", 1, 8, got, &e), RC_WEIGHT_ABSENT);
    mdl_file_close(&f);
    free(o.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_counted_and_bounded),
        cmocka_unit_test(lies_are_named),
        cmocka_unit_test(header_lengths_that_lie),
        cmocka_unit_test(cut_anywhere_it_is_refused),
        cmocka_unit_test(what_can_be_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
