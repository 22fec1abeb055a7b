/* test_sup_api_fields.c - bodies and the validator, over every endpoint's table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_api_fake.h"

/* ---------------------------------------------------------------- every table */

static void one(const struct sup_field *d, const char *value, bool good)
{
    struct sup_val v;
    struct sup_fail f;
    char body[256];
    json_t *obj;
    bool ok;

    snprintf(body, sizeof(body), "{\"%s\":%s}", d->name, value);
    obj = sup_body_parse(body, strlen(body), &f);
    assert_non_null(obj);
    ok = sup_fields_read(d, 1, obj, "", &v, &f);
    if (ok != good)
        fail_msg("%s: %s was %s", d->name, value, ok ? "taken" : f.err.msg);
    if (!ok) {
        assert_string_equal(f.err.what, d->name);
        assert_non_null(strstr(f.err.msg, d->name));
        assert_int_equal(sup_code_http(f.code), 400);
    }
    json_decref(obj);
}

static void number_rows(const struct sup_field *d)
{
    char value[64];

    one(d, "true", false);
    one(d, "\"1\"", false);
    one(d, "[1]", false);
    one(d, "{}", false);
    snprintf(value, sizeof(value), d->max > 1e18 ? "9223372036854775807" : "%.10g", d->max);
    one(d, value, true);
    snprintf(value, sizeof(value), d->min < -1e18 ? "-9223372036854775808" : "%.10g", d->min);
    one(d, value, true);
    snprintf(value, sizeof(value), d->max > 1e18 ? "9223372036854775808" : "%.10g", d->max + 1);
    one(d, value, false);
    snprintf(value, sizeof(value), d->min < -1e18 ? "-9223372036854775809" : "%.10g", d->min - 1);
    one(d, value, false);
    one(d, "1e308", false);
    one(d, "-1e308", false);
    if (d->type == SUP_FT_INT) {
        one(d, "1.5", false);
        one(d, "1.0", true);
    }
}

static void field_rows(const struct sup_field *d)
{
    char value[64];

    switch (d->type) {
    case SUP_FT_INT:
    case SUP_FT_NUM:
        number_rows(d);
        break;
    case SUP_FT_BOOL:
        one(d, "true", true);
        one(d, "false", true);
        one(d, "1", false);
        one(d, "\"true\"", false);
        break;
    case SUP_FT_ENUM:
        snprintf(value, sizeof(value), "\"%.*s\"", (int)strcspn(d->words, "|"), d->words);
        one(d, value, true);
        one(d, "\"\"", false);
        one(d, "\"|\"", false);
        one(d, "\"nonsense\"", false);
        one(d, "5", false);
        break;
    case SUP_FT_OBJECT:
        one(d, "{}", true);
        one(d, "[]", false);
        one(d, "\"x\"", false);
        break;
    case SUP_FT_REFUSE:
        one(d, "\"x\"", false);
        one(d, "{}", false);
        one(d, "false", true);
        break;
    case SUP_FT_STR:
        one(d, "\"x\"", true);
        one(d, "\"x\\u0000\"", false);
        one(d, "5", false);
        break;
    case SUP_FT_ANY:
        one(d, "{\"x\":[1]}", true);
        break;
    }
    one(d, "null", !d->required);
}

static void test_every_field_of_every_table(void **state)
{
    static const struct sup_call_ops *const all[] = {
        &sup_chat_ops,       &sup_completions_ops, &sup_embed_ops, &sup_tokenize_ops,
        &sup_detokenize_ops, &sup_load_ops,        &sup_unload_ops};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_true(all[i]->n_fields <= SUP_FIELDS_MAX);
        for (size_t k = 0; k < all[i]->n_fields; k++, n++)
            field_rows(&all[i]->fields[k]);
    }
    assert_true(n > 60);
}

static void test_defaults_and_prefix(void **state)
{
    static const struct sup_field d[] = {
        {"a", SUP_FT_INT, false, 0, 9, 3, NULL},
        {"b", SUP_FT_BOOL, false, 0, 1, 1, NULL},
        {"c", SUP_FT_NUM, false, 0, 9, 2.5, NULL},
        {"d", SUP_FT_ENUM, true, 0, 0, 0, "x|yy"},
    };
    struct sup_val v[4];
    struct sup_fail f;
    json_t *obj = json_pack("{s:s}", "d", "yy");

    assert_true(sup_fields_read(d, 4, obj, "p.", v, &f));
    assert_true(v[0].i == 3 && v[1].b && v[2].f == 2.5 && !v[0].set && v[3].set);
    assert_string_equal(v[3].s, "yy");
    json_object_set_new(obj, "a", json_integer(10));
    assert_false(sup_fields_read(d, 4, obj, "p.", v, &f));
    assert_string_equal(f.err.msg, "field 'p.a': got 10, expected an integer from 0 to 9");
    json_decref(obj);
}

/* --------------------------------------------------------------------- bodies */

static void test_bad_bodies(void **state)
{
    static const struct {
        const char *body, *part;
    } rows[] = {
        {"{", "not valid JSON: line 1, column 1"},
        {"{\"a\":1,\n\"b\":}", "line 2, column 5"},
        {"{\"a\":1,\"a\":2}", "duplicate object key"},
        {"{\"a\":1} x", "not valid JSON"},
        {"[1]", "expected a JSON object"},
        {"\"x\"", "expected a JSON object"},
        {"5", "expected a JSON object"},
        {"null", "expected a JSON object"},
        {"{\"a\":NaN}", "not valid JSON"},
        {"{\"a\":Infinity}", "not valid JSON"},
        {"{\"a\":\"\xff\"}", "not valid JSON"},
        {"{\"a\":\"\xed\xa0\x80\"}", "not valid JSON"},
        {"{\"a\":\"\\ud800\"}", "not valid JSON"},
        {"{'a':1}", "not valid JSON"},
        {"{\"a\":1e999}", "field 'a': the number at line 1"},
        {"{\"a\\u0000b\":1}", "not valid JSON"},
        {"   ", "not valid JSON"},
    };
    struct sup_fail f;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *j = sup_body_parse(rows[i].body, strlen(rows[i].body), &f);

        if (j || !strstr(f.err.msg, rows[i].part))
            fail_msg("%s: %s", rows[i].body, j ? "taken" : f.err.msg);
        assert_int_equal(f.code, SUP_E_INVALID_REQUEST);
    }
    assert_null(sup_body_parse("", 0, &f));
    assert_string_equal(sup_code_word(f.code), "missing_body");
    assert_null(sup_body_parse("{}\0{}", 5, &f));
}

static char *repeat(const char *before, const char *what, size_t n, const char *after)
{
    size_t len = strlen(what);
    char *s = malloc(strlen(before) + n * len + strlen(after) + 1), *to = s;

    assert_non_null(s);
    to = stpcpy(to, before);
    for (size_t i = 0; i < n; i++)
        to = stpcpy(to, what);
    stpcpy(to, after);
    return s;
}

static void test_depth_and_size_are_bounded(void **state)
{
    struct sup_fail f;
    char *deep = repeat("{\"a\":", "[", 100000, ""),
         *wide = repeat("{\"a\":[", "[],", 2000000, "1]}");
    char *fits = repeat("{\"a\":[", "1,", 500000, "1]}"),
         *text = repeat("{\"a\":\"", "[{,:\\\"", 900000, "\"}");
    json_t *j;

    assert_null(sup_body_parse(deep, strlen(deep), &f));
    assert_non_null(strstr(f.err.msg, "nested deeper than 32 levels"));
    assert_null(sup_body_parse(wide, strlen(wide), &f));
    assert_int_equal(f.code, SUP_E_CONTENT_TOO_LARGE);
    assert_non_null(j = sup_body_parse(fits, strlen(fits), &f));
    json_decref(j);
    assert_non_null(
        j = sup_body_parse(text, strlen(text), &f)); /* inside a string nothing counts */
    json_decref(j);
    free(deep);
    free(wide);
    free(fits);
    free(text);
}

static void test_big_integer_names_its_field(void **state)
{
    static const struct sup_field d[] = {{"seed", SUP_FT_INT, false, -9.3e18, 9.3e18, 0, NULL}};
    static const char body[] = "{\"other\":1,\"seed\":18446744073709551616}";
    struct sup_val v;
    struct sup_fail f;
    json_t *j = sup_body_parse(body, strlen(body), &f);

    assert_non_null(j);
    assert_false(sup_fields_read(d, 1, j, "", &v, &f));
    assert_non_null(strstr(f.err.msg, "field 'seed': got 1.84467e+19, expected an integer"));
    json_decref(j);
}

/* ---------------------------------------------------------------------- names */

static void test_model_names(void **state)
{
    static const char *const good[] = {"a", "org/name", "a.gguf", "a..b", "...", "a b", "\xc3\xa4"};
    static const char *const bad[] = {"",
                                      "/a",
                                      "a/",
                                      "a//b",
                                      "..",
                                      ".",
                                      "../x",
                                      "a/..",
                                      "a/../b",
                                      "a/./b",
                                      "a\\b",
                                      "a\nb",
                                      "../../etc/passwd",
                                      "sha256:../../x",
                                      "./a",
                                      "a\x7f"};
    char *longest = repeat("", "x", 512, ""), *longer = repeat("", "x", 513, "");

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!sup_model_name_ok(good[i], strlen(good[i])))
            fail_msg("%s was refused", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (sup_model_name_ok(bad[i], strlen(bad[i])))
            fail_msg("%s was taken", bad[i]);
    assert_false(sup_model_name_ok("a\0b", 3));
    assert_true(sup_model_name_ok(longest, 512));
    assert_false(sup_model_name_ok(longer, 513));
    free(longest);
    free(longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_of_every_table),
        cmocka_unit_test(test_defaults_and_prefix),
        cmocka_unit_test(test_bad_bodies),
        cmocka_unit_test(test_depth_and_size_are_bounded),
        cmocka_unit_test(test_big_integer_names_its_field),
        cmocka_unit_test(test_model_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
