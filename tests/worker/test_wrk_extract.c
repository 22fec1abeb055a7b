/* test_wrk_extract.c - extraction by schema, the parts that need no model: words, lower case,
 * schemas, validators, windows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_extract.h"

/* ----------------------------------------------------------------------- words */

static void expect_words(const char *text, size_t n, const char *joined)
{
    struct wrk_words w = {0};
    struct rc_err err = RC_ERR_INIT;
    char got[1024] = "";
    size_t k = 0;

    assert_int_equal(wrk_words_split(text, n, NULL, &w, &err), RC_OK);
    for (size_t i = 0; i < w.n; i++)
        k += (size_t)snprintf(got + k, sizeof(got) - k, "%s%.*s", i ? "|" : "",
                              (int)(w.w[i].to - w.w[i].at), text + w.w[i].at);
    assert_string_equal(got, joined);
    wrk_words_deinit(&w);
}

static void words_are_those_of_the_expression(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", ""},
        {" \t\n", ""},
        {"a-b_c--d -e", "a-b_c|-|-|d|-|e"},
        {"a_-_b", "a_-_b"},
        {"HTTPS://x y", "HTTPS://x|y"},
        {"http:// x", "http|:|/|/|x"},
        {"httpx://a", "httpx|:|/|/|a"},
        {"http\xC5\xBF://a.b.", "http\xC5\xBF://a.b."}, /* the long s is an s, ignoring case */
        {"www.a www. WWW.\xC3\xA9", "www.a|www|.|WWW.\xC3\xA9"},
        {"a.b@c.de a@b.c a@b.cd-e", "a.b@c.de|a|@b|.|c|a@b.cd|-|e"},
        {"x@y.com.", "x@y.com|."},
        {"x@y.z.ab.c", "x@y.z.ab|.|c"},
        {"%+@a.bc", "%+@a.bc"},
        {"@name @ @-", "@name|@|@|-"},
        {"a@@b.cd", "a|@|@b|.|cd"},
        {"\xE2\x84\xAA@\xC4\xB1.\xC5\xBF\xC4\xB0", "\xE2\x84\xAA@\xC4\xB1.\xC5\xBF\xC4\xB0"},
        {"e\xCC\x81t", "e|\xCC\x81|t"}, /* a mark is no \w */
        {"\xE2\x85\xA3\xC2\xBD \xF0\x9F\x98\x80!", "\xE2\x85\xA3\xC2\xBD|\xF0\x9F\x98\x80|!"},
        {"a\xC2\xA0"
         "b\xC2\x85"
         "c\x1C"
         "d",
         "a|b|c|d"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect_words(cases[i].text, strlen(cases[i].text), cases[i].words);
    expect_words("a\0b", 3, "a||b"); /* NUL is a character like another */
}

static void offsets_are_code_points_and_bytes(void **state)
{
    static const char text[] = " \xC3\xA9t\xC3\xA9 \xF0\x9F\x98\x80x";
    struct wrk_words w = {0};

    (void)state;
    assert_int_equal(wrk_words_split(text, sizeof(text) - 1, NULL, &w, NULL), RC_OK);
    assert_int_equal(w.n, 3);
    assert_int_equal(w.w[0].start, 1);
    assert_int_equal(w.w[0].end, 4);
    assert_int_equal(w.w[1].start, 5);
    assert_int_equal(w.w[1].end, 6);
    assert_int_equal(w.w[1].at, 7);
    assert_int_equal(w.w[2].to, sizeof(text) - 1);
    assert_int_equal(w.n_points, 7);
    wrk_words_deinit(&w);
}

/* Python's re looks at a run of address characters again for each of them. */
static void a_long_run_of_anything_takes_linear_time(void **state)
{
    static const char *const units[] = {".", "a", "a@", "a.", "@", "-", "a@b.c", "http", "%"};
    size_t n = 1 << 18;
    char *text = malloc(n);

    (void)state;
    assert_non_null(text);
    for (size_t u = 0; u < sizeof(units) / sizeof(*units); u++) {
        struct wrk_words w = {0};
        size_t k = strlen(units[u]), total = 0;

        for (size_t i = 0; i < n; i++)
            text[i] = units[u][i % k];
        assert_int_equal(wrk_words_split(text, n, NULL, &w, NULL), RC_OK);
        for (size_t i = 0; i < w.n; i++)
            total += w.w[i].to - w.w[i].at;
        assert_int_equal(total, n);
        wrk_words_deinit(&w);
    }
    free(text);
}

static void bad_utf8_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *text;
        size_t n, at;
    } bad[] = {
        {"ab\xFF", 3, 2}, {"\xED\xA0\x80", 3, 0}, {"a\xC3", 2, 1}, {"\xF4\x90\x80\x80", 4, 0}};
    struct wrk_words w = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct rc_err err = RC_ERR_INIT;

        assert_int_equal(wrk_words_split(bad[i].text, bad[i].n, NULL, &w, &err), RC_INVALID);
        assert_int_equal(err.n, bad[i].at);
    }
    wrk_words_deinit(&w);
}

static bool stop_at_once(void *user)
{
    ++*(int *)user;
    return true;
}

static void a_long_text_is_stopped(void **state)
{
    int asked = 0;
    struct mdl_tok_stop stop = {stop_at_once, &asked};
    struct wrk_words w = {0};
    char text[20000];

    (void)state;
    memset(text, '.', sizeof(text));
    assert_int_equal(wrk_words_split(text, sizeof(text), &stop, &w, NULL), RC_CANCELLED);
    assert_int_equal(asked, 1);
    wrk_words_deinit(&w);
}

static void lower_case_is_pythons(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"AbC-1", "abc-1"},
        {"\xC4\xB0stanbul", "i\xCC\x87stanbul"},                  /* U+0130 */
        {"\xCE\xA3\xCE\x91\xCE\xA3", "\xCF\x83\xCE\xB1\xCF\x82"}, /* sigma: first, last */
        {"\xCE\x91\xCE\xA3\xCE\x91", "\xCE\xB1\xCF\x83\xCE\xB1"}, /* within */
        {"A\xCE\xA3.", "a\xCF\x82."},                             /* . is ignored behind it */
        {"A\xCE\xA3.B", "a\xCF\x83.b"},
        {"A'\xCE\xA3", "a'\xCF\x82"},
        {"1\xCE\xA3", "1\xCF\x83"},
        {"\xE2\x85\xA3\xCE\xA3", "\xE2\x85\xB3\xCF\x82"}, /* a Roman number has case */
        {"\xE1\xBA\x9E", "\xC3\x9F"},
        {"\xC8\xBA", "\xE2\xB1\xA5"}, /* grows */
    };
    char *out = NULL;
    size_t cap = 0, n;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(wrk_lower(cases[i].from, strlen(cases[i].from), &out, &cap, &n, NULL),
                         RC_OK);
        assert_int_equal(n, strlen(cases[i].to));
        assert_memory_equal(out, cases[i].to, n);
    }
    free(out);
}

/* -------------------------------------------------------------------- patterns */

static ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

static void validators_accept_as_pythons_do(void **state)
{
    static const struct {
        const char *regex, *text;
        bool search, exclude, sensitive, accepts;
    } cases[] = {
        {"\\d+", "12", .accepts = true},
        {"\\d+", "a12"},
        {"\\d+", "a12", .search = true, .accepts = true},
        {"a|ab", "ab", .accepts = true}, /* the whole text, by another branch if need be */
        {"[a-z]+", "ABC", .accepts = true},
        {"[a-z]+", "ABC", .sensitive = true},
        {"\\w+", "\xC3\xA9\xE5\x8C\x97", .accepts = true},
        {"test", "a test", .search = true, .exclude = true},
        {"test", "a word", .search = true, .exclude = true, .accepts = true},
        {"(?P<y>\\d{4})-(?P=y)", "2024-2024", .accepts = true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        Ipc__ExtractPattern q = IPC__EXTRACT_PATTERN__INIT, *list = &q;
        struct wrk_patterns *p = NULL;
        bool accepts;

        q.regex = bytes(cases[i].regex);
        q.search = cases[i].search;
        q.exclude = cases[i].exclude;
        q.case_sensitive = cases[i].sensitive;
        assert_int_equal(wrk_patterns_new(&p, &list, 1, NULL), RC_OK);
        assert_int_equal(
            wrk_patterns_accept(p, cases[i].text, strlen(cases[i].text), NULL, &accepts, NULL),
            RC_OK);
        if (accepts != cases[i].accepts)
            fail_msg("/%s/ on '%s': %d", cases[i].regex, cases[i].text, accepts);
        wrk_patterns_free(&p);
    }
}

static void a_hostile_pattern_is_bounded(void **state)
{
    Ipc__ExtractPattern q = IPC__EXTRACT_PATTERN__INIT, *list = &q;
    struct wrk_patterns *p = NULL;
    struct rc_err err = RC_ERR_INIT;
    bool accepts;

    (void)state;
    q.regex = bytes("(a|a)+[bd]");
    assert_int_equal(wrk_patterns_new(&p, &list, 1, &err), RC_OK);
    assert_int_equal(
        wrk_patterns_accept(p, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 37, NULL, &accepts, &err),
        RC_TOO_LARGE);
    assert_string_equal(err.what, "validators");
    wrk_patterns_free(&p);
    q.regex = bytes("(unclosed");
    assert_int_equal(wrk_patterns_new(&p, &list, 1, &err), RC_INVALID);
    assert_null(p);
    q.regex = bytes("\\C");
    assert_int_equal(wrk_patterns_new(&p, &list, 1, &err), RC_INVALID);
}

static bool at_the_last(void *user)
{
    return --*(uint32_t *)user == 0;
}

static void a_cancel_is_heard_between_patterns(void **state)
{
    Ipc__ExtractPattern q[3], *list[3];
    struct wrk_patterns *p = NULL;
    uint32_t left = 0;
    const struct mdl_tok_stop stop = {at_the_last, &left};
    bool accepts;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ipc__extract_pattern__init(&q[i]);
        q[i].regex = bytes("a+");
        list[i] = &q[i];
    }
    assert_int_equal(wrk_patterns_new(&p, list, 3, NULL), RC_OK);
    assert_int_equal(wrk_patterns_accept(p, "aa", 2, &stop, &accepts, NULL), RC_OK);
    assert_true(accepts);
    assert_int_equal(left, (uint32_t)-3);
    for (uint32_t k = 1; k <= 3; k++) {
        left = k;
        assert_int_equal(wrk_patterns_accept(p, "aa", 2, &stop, &accepts, NULL), RC_CANCELLED);
        assert_int_equal(left, 0);
    }
    wrk_patterns_free(&p);
}

/* ---------------------------------------------------------------------- schemas */

struct asked {
    Ipc__ExtractSchema s;
    Ipc__ExtractField label[3], *labels[3];
    Ipc__ExtractRecord record, *records;
    Ipc__ExtractRelation relation[2], *relations[2];
    Ipc__ExtractClasses task, *tasks;
};

static struct asked *ask_all(void)
{
    static const char *const names[] = {"person", "company", "city"};
    struct asked *a = calloc(1, sizeof(*a));

    assert_non_null(a);
    ipc__extract_schema__init(&a->s);
    for (int i = 0; i < 3; i++) {
        ipc__extract_field__init(&a->label[i]);
        a->label[i].name = bytes(names[i]);
        a->labels[i] = &a->label[i];
    }
    for (int i = 0; i < 2; i++) {
        ipc__extract_relation__init(&a->relation[i]);
        a->relation[i].name = bytes(i ? "owns" : "works for");
        a->relations[i] = &a->relation[i];
    }
    ipc__extract_record__init(&a->record);
    a->record.name = bytes("product");
    a->record.fields = a->labels;
    a->record.n_fields = 3;
    a->records = &a->record;
    ipc__extract_classes__init(&a->task);
    a->task.name = bytes("mood");
    a->task.labels = a->labels;
    a->task.n_labels = 3;
    a->tasks = &a->task;
    a->s.records = &a->records;
    a->s.entities = a->labels;
    a->s.relations = a->relations;
    a->s.classes = &a->tasks;
    a->s.n_records = a->s.n_classes = 1;
    a->s.n_entities = 3;
    a->s.n_relations = 2;
    return a;
}

static void refused(struct asked *a, enum rc rc, const char *what, const char *says)
{
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(wrk_schema_check(&a->s, &err), rc);
    assert_string_equal(err.what, what);
    if (strstr(err.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, says);
    free(a);
}

static void schemas_are_refused_by_name(void **state)
{
    static char longest[IPC_EXTRACT_NAME_BYTES + 2];
    struct asked *a = ask_all();

    (void)state;
    assert_int_equal(wrk_schema_check(&a->s, NULL), RC_OK);
    a->label[2].name = bytes("person");
    refused(a, RC_INVALID, "structures", "field 'person' is given twice");
    a = ask_all();
    a->s.n_records = 0;
    a->label[2].name = bytes("person");
    refused(a, RC_INVALID, "entities", "label 'person' is given twice");
    a = ask_all();
    a->relation[1].name = bytes("works for");
    refused(a, RC_INVALID, "relations", "relation 'works for' is given twice");
    a = ask_all();
    a->relation[1].name = bytes("  ");
    refused(a, RC_INVALID, "relations", "empty");
    a = ask_all();
    a->relation[0].has_threshold = true;
    a->relation[0].threshold = 1.5f;
    refused(a, RC_INVALID, "relations", "threshold 1.5");
    a = ask_all();
    a->task.activation = 3;
    refused(a, RC_INVALID, "classifications", "activation 3");
    a = ask_all();
    a->task.n_labels = 0;
    refused(a, RC_INVALID, "classifications", "'mood' has no labels");
    a = ask_all();
    a->record.n_fields = 0;
    refused(a, RC_INVALID, "structures", "'product' has no fields");
    a = ask_all();
    memset(longest, 'x', sizeof(longest) - 1);
    a->task.name = bytes(longest);
    refused(a, RC_TOO_LARGE, "classifications", "513 bytes, at most 512");
    a = ask_all();
    a->task.name = bytes("\xFF");
    refused(a, RC_INVALID, "classifications", "not UTF-8");
    a = ask_all();
    a->s.n_records = a->s.n_entities = a->s.n_relations = a->s.n_classes = 0;
    refused(a, RC_INVALID, "schema", "asks for nothing");
}

static void eight_thousand_labels_are_the_most(void **state)
{
    size_t n = IPC_EXTRACT_LABELS + 1;
    Ipc__ExtractField *f = calloc(n, sizeof(*f)), **list = calloc(n, sizeof(*list));
    char(*name)[12] = calloc(n, sizeof(*name));
    Ipc__ExtractSchema s = IPC__EXTRACT_SCHEMA__INIT;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_true(f != NULL && list != NULL && name != NULL);
    for (size_t i = 0; i < n; i++) {
        snprintf(name[i], sizeof(name[i]), "label %zu", i);
        ipc__extract_field__init(&f[i]);
        f[i].name = bytes(name[i]);
        list[i] = &f[i];
    }
    s.entities = list;
    s.n_entities = n;
    assert_int_equal(wrk_schema_check(&s, &err), RC_TOO_LARGE);
    assert_int_equal(err.n, n);
    assert_int_equal(err.limit, IPC_EXTRACT_LABELS);
    s.n_entities = n - 1;
    assert_int_equal(wrk_schema_check(&s, &err), RC_OK);
    free(f);
    free(list);
    free(name);
}

/* ---------------------------------------------------------------------- windows */

static void windows_overlap_and_reach_the_end(void **state)
{
    const struct wrk_window_size z = {WRK_WINDOW_WORDS, WRK_WINDOW_OVERLAP}, small = {12, 4};
    static const struct {
        uint32_t words, windows;
    } cases[] = {{0, 1}, {1, 1}, {384, 1}, {385, 2}, {704, 2}, {705, 3}, {1024, 3}, {1025, 4}};
    uint32_t first, n;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint32_t k = wrk_windows(cases[i].words, &z);

        assert_int_equal(k, cases[i].windows);
        wrk_window(cases[i].words, &z, k - 1, &first, &n);
        assert_int_equal(first + n, cases[i].words);
    }
    assert_int_equal(wrk_windows(42, &small), 5);
    wrk_window(42, &small, 1, &first, &n);
    assert_int_equal(first, 8);
    assert_int_equal(n, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_those_of_the_expression),
        cmocka_unit_test(offsets_are_code_points_and_bytes),
        cmocka_unit_test(a_long_run_of_anything_takes_linear_time),
        cmocka_unit_test(bad_utf8_is_refused_with_its_place),
        cmocka_unit_test(a_long_text_is_stopped),
        cmocka_unit_test(lower_case_is_pythons),
        cmocka_unit_test(validators_accept_as_pythons_do),
        cmocka_unit_test(a_hostile_pattern_is_bounded),
        cmocka_unit_test(a_cancel_is_heard_between_patterns),
        cmocka_unit_test(schemas_are_refused_by_name),
        cmocka_unit_test(eight_thousand_labels_are_the_most),
        cmocka_unit_test(windows_overlap_and_reach_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
