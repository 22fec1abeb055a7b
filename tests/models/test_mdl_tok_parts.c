/* test_mdl_tok_parts.c - each normalizer, pre-tokenizer, model option, template and decoder
 * against the reference (tests/golden/tok_components.json, written by the script beside
 * it): ids, places, pairs, both decodings, streaming. Then what no reference says: special
 * pieces in a text, bounds, giving up, and long texts of one character.
 */
#include "mdl_tok.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *golden;

static int load_golden(void **state)
{
    json_error_t je;

    golden = json_load_file(TEST_GOLDEN "/tok_components.json", JSON_ALLOW_NUL, &je);
    return golden ? 0 : -1;
}

static int free_golden(void **state)
{
    json_decref(golden);
    return 0;
}

static struct mdl_tok *make(const json_t *file, const char *name)
{
    char *s = json_dumps(file, 0);
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;

    if (mdl_tok_from_json(&t, s, strlen(s), &err) != RC_OK)
        fail_msg("%s: %s", name, err.msg);
    free(s);
    return t;
}

static struct mdl_tok *named(const char *name)
{
    const json_t *e;
    size_t i;

    json_array_foreach(golden, i,
                       e) if (strcmp(json_string_value(json_object_get(e, "name")), name) ==
                              0) return make(json_object_get(e, "file"), name);
    fail_msg("no file %s", name);
    return NULL;
}

static void check_tokens(const char *name, const char *text, const json_t *want,
                         const struct mdl_ids *v)
{
    size_t n = json_array_size(want);

    for (size_t i = 0; i < n || i < v->n; i++) {
        const json_t *w = json_array_get(want, i);
        long long id = json_integer_value(json_array_get(w, 0));
        long long from = json_integer_value(json_array_get(w, 1));
        long long to = json_integer_value(json_array_get(w, 2));
        if (i >= n || i >= v->n || id != v->ids[i] || from != v->offsets[2 * i] ||
            to != v->offsets[2 * i + 1])
            fail_msg("%s '%s': token %zu of %zu is %d at %u to %u, expected %lld at %lld to %lld "
                     "(of %zu)",
                     name, text, i, v->n, i < v->n ? v->ids[i] : -1,
                     i < v->n ? v->offsets[2 * i] : 0, i < v->n ? v->offsets[2 * i + 1] : 0, id,
                     from, to, n);
    }
}

static void check_decode(const char *name, const struct mdl_tok *t, const struct mdl_ids *v,
                         bool skip, const json_t *want)
{
    char *got = NULL, part[MDL_PIECE_MAX + 8];
    struct mdl_detok d;
    size_t n = 0, at = 0, k;

    assert_int_equal(mdl_tok_decode(t, v->ids, v->n, skip, &got, &n, NULL), RC_OK);
    if (n != json_string_length(want) || memcmp(got, json_string_value(want), n) != 0)
        fail_msg("%s: decoded '%.*s', expected '%s'", name, (int)n, got, json_string_value(want));
    mdl_detok_init(&d, t, skip);
    for (size_t i = 0; i <= v->n; i++) {
        k = i < v->n ? mdl_detok_push(&d, v->ids[i], part, sizeof(part))
                     : mdl_detok_flush(&d, part, sizeof(part));
        assert_true(at + k <= n);
        assert_memory_equal(part, got + at, k);
        at += k;
    }
    assert_int_equal(at, n);
    free(got);
}

static void every_component_agrees_with_the_reference(void **state)
{
    const struct mdl_tok_flags f = {.add_special = true, .parse_special = true, .offsets = true};
    struct rc_err err = RC_ERR_INIT;
    const json_t *file, *e;
    size_t k, i, n_rows = 0;

    json_array_foreach(golden, k, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        struct mdl_tok *t = make(json_object_get(file, "file"), name);
        json_array_foreach(json_object_get(file, "rows"), i, e)
        {
            const json_t *s = json_object_get(e, "text");
            struct mdl_ids v = {0};
            if (mdl_tok_encode(t, json_string_value(s), json_string_length(s), &f, &v, &err) !=
                RC_OK)
                fail_msg("%s: %s", name, err.msg);
            check_tokens(name, json_string_value(s), json_object_get(e, "tokens"), &v);
            check_decode(name, t, &v, false, json_object_get(e, "whole"));
            check_decode(name, t, &v, true, json_object_get(e, "shown"));
            mdl_ids_deinit(&v);
            n_rows++;
        }
        json_array_foreach(json_object_get(file, "pairs"), i, e)
        {
            const json_t *a = json_object_get(e, "a"), *b = json_object_get(e, "b");
            struct mdl_tok_flags g = f;
            struct mdl_ids v = {0};
            bool cut = false;
            g.max_tokens = (size_t)json_integer_value(json_object_get(e, "max"));
            assert_int_equal(mdl_tok_encode_pair(t, json_string_value(a), json_string_length(a),
                                                 json_string_value(b), json_string_length(b), &g,
                                                 true, &cut, &v, &err),
                             RC_OK);
            check_tokens(name, json_string_value(a), json_object_get(e, "tokens"), &v);
            assert_true(!cut || v.n == g.max_tokens);
            mdl_ids_deinit(&v);
            n_rows++;
        }
        mdl_tok_free(&t);
    }
    assert_true(n_rows > 200);
}

/* ------------------------------------------------------------ what is ours to say */

static void a_special_piece_in_a_text_stays_text(void **state)
{
    static const char *const files[] = {"Viterbi", "ByteLevel", "ignore_merges", "CLIP"};
    static const char text[] = "<s> a</s>b";

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct mdl_tok *t = named(files[i]);
        struct mdl_tok_flags f = {.offsets = true};
        struct mdl_ids v = {0};
        assert_int_equal(mdl_tok_encode(t, text, strlen(text), &f, &v, NULL), RC_OK);
        assert_true(v.n > 3);
        for (size_t k = 0; k < v.n; k++) /* 2: characters that are no piece */
            assert_true(v.ids[k] == 2 || !mdl_tok_is_special(t, v.ids[k]));
        mdl_ids_deinit(&v);
        mdl_tok_free(&t);
    }
}

static void pairs_that_are_refused(void **state)
{
    struct mdl_tok *t = named("two texts"), *none = named("Viterbi");
    struct mdl_tok_flags f = {.max_tokens = 2};
    struct rc_err err = RC_ERR_INIT;
    struct mdl_ids v = {0};
    bool cut;

    assert_int_equal(mdl_ids_push(&v, 7, NULL), RC_OK); /* what was there stays */
    assert_int_equal(mdl_tok_encode_pair(none, "a", 1, "b", 1, &f, true, &cut, &v, &err),
                     RC_UNSUPPORTED);
    /* the template alone is more */
    assert_int_equal(mdl_tok_encode_pair(t, "a", 1, "b", 1, &f, true, &cut, &v, &err),
                     RC_TOO_LARGE);
    f.max_tokens = 8;
    assert_int_equal(
        mdl_tok_encode_pair(t, "a a a a a a a a a", 17, "b", 1, &f, false, &cut, &v, &err),
        RC_TOO_LARGE);
    assert_true(err.n > 8 && err.limit == 8);
    assert_int_equal(mdl_tok_encode_pair(t, "a a", 3, "b b b b", 7, &f, false, &cut, &v, &err),
                     RC_TOO_LARGE);
    assert_int_equal(err.n, 11);
    assert_int_equal(mdl_tok_encode_pair(t, "a \xFF", 3, "b", 1, &f, true, &cut, &v, &err),
                     RC_INVALID);
    assert_int_equal(err.n, 2);
    assert_int_equal(v.n, 1);
    assert_int_equal(mdl_tok_encode_pair(t, "a a", 3, "a a", 3, &f, false, &cut, &v, &err), RC_OK);
    assert_false(cut);
    assert_int_equal(v.n, 8);
    assert_int_equal(v.ids[0], 7);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
    mdl_tok_free(&none);
}

struct asked {
    size_t n, stop_at;
};

static bool ask(void *user)
{
    struct asked *a = user;

    return ++a->n == a->stop_at;
}

static size_t steps_of(const struct mdl_tok *t, const char *s, size_t n)
{
    struct asked a = {0};
    const struct mdl_tok_stop stop = {ask, &a};
    const struct mdl_tok_flags f = {.stop = &stop, .parse_special = true};
    struct mdl_ids v = {0};

    assert_int_equal(mdl_tok_encode(t, s, n, &f, &v, NULL), RC_OK);
    mdl_ids_deinit(&v);
    return a.n;
}

/* Four times as much of one character: four times the work, not sixteen. And a megabyte. */
static void long_texts_of_one_character(void **state)
{
    static const char *const chars[] = {"a", " ", "\n", "!", "\xCC\x81", "\xE4\xB8\x96", "A"};
    const size_t cap = 1 << 20;
    char *s = malloc(cap);
    const json_t *file;
    size_t k;

    assert_non_null(s);
    json_array_foreach(golden, k, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        struct mdl_tok *t = make(json_object_get(file, "file"), name);
        const char *c = chars[k % (sizeof(chars) / sizeof(chars[0]))];
        size_t len = strlen(c), n = cap / 64 / len * len;
        for (size_t i = 0; i < 4 * n; i++)
            s[i] = c[i % len];
        size_t less = steps_of(t, s, n), more = steps_of(t, s, 4 * n);
        if (less < n / len / 1024 || more > 5 * less)
            fail_msg("%s: %zu thousand steps for %zu bytes, %zu for four times as many", name, less,
                     n, more);
        mdl_tok_free(&t);
    }
    struct mdl_tok *t = named("words of white space, then signs");
    memset(s, 'a', cap);
    assert_true(steps_of(t, s, cap) < 16 * 1024);
    mdl_tok_free(&t);
    free(s);
}

static void giving_up_in_every_phase(void **state)
{
    static const char unit[] = "ab \xC3\x81\xCC\x81 c!\r\n\x01 12345 \xE4\xB8\x96 A\xCC\x81";
    const size_t len = sizeof(unit) - 1, n = 500 * len;
    char *s = malloc(n);
    const json_t *file;
    size_t k;

    assert_non_null(s);
    for (size_t i = 0; i < n; i++)
        s[i] = unit[i % len];
    json_array_foreach(golden, k, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        struct mdl_tok *t = make(json_object_get(file, "file"), name);
        struct asked a = {0};
        const struct mdl_tok_stop stop = {ask, &a};
        const struct mdl_tok_flags f = {.stop = &stop, .offsets = true};
        struct mdl_ids v = {0};
        assert_int_equal(mdl_tok_encode(t, s, n, &f, &v, NULL), RC_OK);
        size_t all = a.n;
        assert_true(all > 10);
        for (size_t at = 1; at <= all; at += all / 6 + 1) {
            a = (struct asked){.stop_at = at};
            v.n = 0;
            if (mdl_tok_encode(t, s, n, &f, &v, NULL) != RC_CANCELLED)
                fail_msg("%s: not given up at question %zu of %zu", name, at, all);
            assert_int_equal(v.n, 0);
            if (a.n != at)
                fail_msg("%s: %zu questions behind the answer", name, a.n - at);
        }
        mdl_ids_deinit(&v);
        mdl_tok_free(&t);
    }
    free(s);
}

static void a_bound_ends_the_work_early(void **state)
{
    static const char *const files[] = {"words of white space, then signs", "ByteLevel", "CLIP"};
    char *s = malloc(60000);
    struct rc_err err = RC_ERR_INIT;

    assert_non_null(s);
    for (size_t i = 0; i < 60000; i++)
        s[i] = "ab "[i % 3];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct mdl_tok *t = named(files[i]);
        struct asked a = {0};
        const struct mdl_tok_stop stop = {ask, &a};
        const struct mdl_tok_flags f = {.stop = &stop, .max_tokens = 100};
        struct mdl_ids v = {0};
        size_t all = steps_of(t, s, 60000);
        assert_int_equal(mdl_tok_encode(t, s, 60000, &f, &v, &err), RC_TOO_LARGE);
        assert_int_equal(err.n, 101);
        assert_int_equal(err.limit, 100);
        assert_true(v.n == 0 && a.n < all / 2 + 1);
        mdl_ids_deinit(&v);
        mdl_tok_free(&t);
    }
    free(s);
}

/* Of a long text no more is looked at than fits beside the other one. */
static void a_long_text_of_a_pair_is_not_read_to_its_end(void **state)
{
    struct mdl_tok *t = named("two texts");
    char *s = malloc(60000);
    struct asked a = {0};
    const struct mdl_tok_stop stop = {ask, &a};
    struct mdl_tok_flags f = {.stop = &stop, .max_tokens = 104};
    struct mdl_ids v = {0};
    size_t all;
    bool cut;

    assert_non_null(s);
    for (size_t i = 0; i < 60000; i++)
        s[i] = "ab "[i % 3];
    all = steps_of(t, s, 60000);
    assert_int_equal(mdl_tok_encode_pair(t, "a a", 3, s, 60000, &f, true, &cut, &v, NULL), RC_OK);
    assert_true(cut && v.n == 104 && a.n < all / 2 + 1);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_component_agrees_with_the_reference),
        cmocka_unit_test(a_special_piece_in_a_text_stays_text),
        cmocka_unit_test(pairs_that_are_refused),
        cmocka_unit_test(long_texts_of_one_character),
        cmocka_unit_test(giving_up_in_every_phase),
        cmocka_unit_test(a_bound_ends_the_work_early),
        cmocka_unit_test(a_long_text_of_a_pair_is_not_read_to_its_end),
    };

    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
