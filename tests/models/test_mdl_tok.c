/* test_mdl_tok.c - what every tokenizer promises: bounds, bad UTF-8, added
 * tokens and their flags, merges by rank, streaming, work that stays linear.
 */
#include "mdl_tok.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

#define ADDED(id, s, flags) "{\"id\":" #id ",\"content\":\"" s "\"," flags "}"
#define RAW "\"normalized\":false,\"special\":true"

/* A small BPE tokenizer; %s: added tokens behind <bos>, model options. */
static const char bpe[] = "{\"added_tokens\":[" ADDED(
    2, "<bos>",
    RAW) "%s],"
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
         "\"},\"content\":\"\xE2\x96\x81\"},"
         "\"pre_tokenizer\":null,"
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"<bos>\","
         "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<bos>"
         "\":"
         "{\"id\":\"<bos>\",\"ids\":[2],\"tokens\":[\"<bos>\"]}}},"
         "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
         "\"String\":"
         "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
         "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":%s,\"fuse_unk\":%s,"
         "\"vocab\":{\"<unk>\":0,\"<x>\":1,\"<bos>\":2,\"a\":3,\"b\":4,\"c\":5,\"ab\":6,\"bc\":7,"
         "\"abc\":8,"
         "\"\xE2\x96\x81\":9,\"\xE2\x96\x81"
         "a\":10,\"aa\":11,\"aaaa\":12,\"<\":13,\">\":14,\"o\":15,\"s\":16,"
         "\"<b\":17,\"<bo\":18,\"s>\":19%s},"
         "\"merges\":[[\"a\",\"a\"],[\"aa\",\"aa\"],\"b "
         "c\",[\"a\",\"b\"],[\"a\",\"bc\"],\"\xE2\x96\x81 a\","
         "\"< b\",\"<b o\",\"s >\",\"<bo s>\"]}}";

static struct mdl_tok *make(const char *added, const char *fallback, const char *fuse,
                            const char *more)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    static char json[1 << 16];

    int n = snprintf(json, sizeof(json), bpe, added, fallback, fuse, more);
    assert_true(n > 0 && n < (int)sizeof(json));
    if (mdl_tok_from_json(&t, json, (size_t)n, &err) != RC_OK)
        fail_msg("%s", err.msg);
    return t;
}

static struct mdl_tok *plain(void)
{
    return make("", "false", "true", "");
}

/* "3 4 5" or "3:0-1 ..." with offsets. */
static const char *ids(const struct mdl_tok *t, const char *text, struct mdl_tok_flags f)
{
    static char line[4096];
    struct rc_err err = RC_ERR_INIT;
    struct mdl_ids v = {0};

    line[0] = '\0';
    if (mdl_tok_encode(t, text, strlen(text), &f, &v, &err) != RC_OK)
        snprintf(line, sizeof(line), "%s", rc_name(err.code));
    for (size_t i = 0; i < v.n; i++) {
        size_t at = strlen(line);
        if (f.offsets)
            snprintf(line + at, sizeof(line) - at, "%s%d:%u-%u", i ? " " : "", v.ids[i],
                     v.offsets[2 * i], v.offsets[2 * i + 1]);
        else
            snprintf(line + at, sizeof(line) - at, "%s%d", i ? " " : "", v.ids[i]);
    }
    mdl_ids_deinit(&v);
    return line;
}

static const struct mdl_tok_flags none, parse = {.parse_special = true},
                                        offs = {.parse_special = true, .offsets = true};

static void merges_go_by_rank_then_place(void **state)
{
    struct mdl_tok *t = plain();

    assert_string_equal(ids(t, "", none), "");
    assert_string_equal(ids(t, "abc", none), "8"); /* b+c goes first, then a+bc */
    assert_string_equal(ids(t, "abab", none), "6 6");
    assert_string_equal(ids(t, "aaa", none), "11 3");
    assert_string_equal(ids(t, "aaaaa", none), "12 3");
    assert_string_equal(ids(t, "aaaaaaa", none), "12 11 3");
    assert_string_equal(ids(t, "a a", none), "3 10");
    assert_string_equal(ids(t, "a aabc", none), "3 9 11 7"); /* a+a goes before all */
    assert_string_equal(ids(t, "abc", (struct mdl_tok_flags){.add_special = true}), "2 8");
    assert_string_equal(ids(t, "a abc", offs), "3:0-1 9:1-2 8:2-5");
    mdl_tok_free(&t);
    assert_null(t);
}

static void unknown_characters_fuse_or_fall_to_bytes(void **state)
{
    struct mdl_tok *t = plain();
    assert_string_equal(ids(t, "aZZZa", offs), "3:0-1 0:1-4 3:4-5");
    assert_string_equal(ids(t, "ZZ", offs), "0:0-2");
    mdl_tok_free(&t);

    t = make("", "false", "false", "");
    assert_string_equal(ids(t, "aZ\xC3\xA9", offs), "3:0-1 0:1-2 0:2-3");
    mdl_tok_free(&t);

    t = make("", "true", "true", ",\"<0xC3>\":20,\"<0xA9>\":21");
    assert_string_equal(ids(t, "a\xC3\xA9Z", offs), "3:0-1 20:1-2 21:1-2 0:2-3");
    assert_string_equal(ids(t, "<0xC3>", none), "13 0 14"); /* its spelling is only text */
    mdl_tok_free(&t);
}

static void text_never_becomes_a_control_token(void **state)
{
    struct mdl_tok *t = plain();

    assert_string_equal(ids(t, "a<bos>a", parse), "3 2 3");
    /* the file's last merge would make <bos> out of text */
    assert_string_equal(ids(t, "a<bos>a", none), "3 18 19 3");
    mdl_tok_free(&t);
}

static void added_tokens_and_their_flags(void **state)
{
#define F(n, l, r, w)                                                                           \
    "\"normalized\":" n ",\"lstrip\":" l ",\"rstrip\":" r ",\"single_word\":" w ",\"special\":" \
    "false"
    static const struct {
        const char *name, *added, *text, *want;
    } rows[] = {
        {"leftmost goes before longer",
         "," ADDED(20, "bb", F("false", "false", "false", "false")) "," ADDED(
             21, "bcc", F("false", "false", "false", "false")),
         "bbcc", "20:0-2 5:2-3 5:3-4"},
        {"longest at one place",
         "," ADDED(20, "bb", F("false", "false", "false", "false")) "," ADDED(
             21, "bbc", F("false", "false", "false", "false")),
         "bbcbb", "21:0-3 20:3-5"},
        {"a longer one that fails half way",
         "," ADDED(20, "bb", F("false", "false", "false", "false")) "," ADDED(
             21, "bbcc", F("false", "false", "false", "false")),
         "bbca", "20:0-2 5:2-3 3:3-4"},
        {"lstrip takes blanks on the left",
         "," ADDED(20, "<x>", F("false", "true", "false", "false")), "a \t<x> a",
         "3:0-1 20:1-6 10:6-8"},
        {"rstrip takes blanks on the right",
         "," ADDED(20, "<x>", F("false", "false", "true", "false")), "a <x> \n a",
         "3:0-1 9:1-2 20:2-8 3:8-9"},
        {"lstrip stops at the token before",
         "," ADDED(20, "<x>", F("false", "true", "true", "false")), "<x>  <x>", "20:0-5 20:5-8"},
        {"single_word inside a word", "," ADDED(20, "bb", F("false", "false", "false", "true")),
         "abba bb", "6:0-2 4:2-3 3:3-4 9:4-5 20:5-7"},
        {"single_word beside a letter of another script",
         "," ADDED(20, "bb", F("false", "false", "false", "true")),
         "\xC3\xA9"
         "bb",
         "0:0-1 4:1-2 4:2-3"},
        {"normalized tokens are found behind the normalizer",
         "," ADDED(20, "c c", F("true", "false", "false", "false")),
         "a c c\xE2\x96\x81"
         "c",
         "3:0-1 9:1-2 20:2-5 9:5-6 5:6-7"},
        {"not normalized: only the raw text counts",
         "," ADDED(20, "c c", F("false", "false", "false", "false")),
         "c c c\xE2\x96\x81"
         "c",
         "20:0-3 9:3-4 5:4-5 9:5-6 5:6-7"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char more[128] = ",\"z20\":22"; /* keeps ids dense */
        struct rc_err err = RC_ERR_INIT;
        struct mdl_tok *t = NULL;
        static char json[1 << 16];
        /* added tokens need their own ids: 20 and 21 are free in the vocabulary */
        snprintf(json, sizeof(json), bpe, rows[i].added, "false", "true", more);
        if (strstr(rows[i].added, "\"<x>\"")) { /* id 1 is spelled so already */
            char *p = strstr(json, "\"<x>\":1,");
            assert_non_null(p);
            memcpy(p, "\"<y>\":1,", 8);
        }
        enum rc rc = mdl_tok_from_json(&t, json, strlen(json), &err);
        if (rc != RC_OK)
            fail_msg("%s: %s", rows[i].name, err.msg);
        const char *got = ids(t, rows[i].text, offs);
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("%s: %s, expected %s", rows[i].name, got, rows[i].want);
        mdl_tok_free(&t);
    }
}

static void bad_utf8_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *text;
        size_t n, at;
    } rows[] = {
        {"ab\xFF", 3, 2},           {"a\xC3", 2, 1},          {"\x80", 1, 0},
        {"a\xC0\xAF", 3, 1},        {"\xE0\x80\xAF", 3, 0},   {"a\xED\xA0\x80", 4, 1},
        {"\xF4\x90\x80\x80", 4, 0}, {"ab\xF0\x9F\x8C", 5, 2}, {"\xF8\x88\x80\x80\x80", 5, 0},
    };
    struct mdl_tok *t = plain();
    struct mdl_ids v = {0};

    assert_int_equal(mdl_ids_push(&v, 7, NULL), RC_OK);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        assert_int_equal(mdl_tok_encode(t, rows[i].text, rows[i].n, &none, &v, &err), RC_INVALID);
        assert_int_equal(err.n, rows[i].at);
        assert_int_equal(v.n, 1);
    }
    assert_int_equal(mdl_tok_encode(t, "a\0b", 3, &none, &v, NULL), RC_OK); /* a NUL is text */
    assert_int_equal(v.n, 4);
    assert_int_equal(v.ids[0], 7);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

static void the_bound_stops_early_and_leaves_nothing(void **state)
{
    struct mdl_tok *t = make("", "true", "true", "");
    struct mdl_tok_flags f = {.add_special = true, .max_tokens = 4};
    struct rc_err err = RC_ERR_INIT;
    struct mdl_ids v = {0};
    size_t n = 4u << 20;
    char *big = malloc(n);

    assert_int_equal(mdl_tok_encode(t, "acc", 3, &f, &v, &err), RC_OK);
    assert_int_equal(v.n, 4);
    assert_int_equal(mdl_tok_encode(t, "accc", 4, &f, &v, &err), RC_TOO_LARGE);
    assert_int_equal(err.limit, 4);
    assert_int_equal(err.n, 5);
    assert_int_equal(v.n, 4); /* what was there stays */
    memset(big, 'a', n);
    f.max_tokens = 1000;
    assert_int_equal(mdl_tok_encode(t, big, n, &f, &v, &err), RC_TOO_LARGE);
    assert_true(err.n > 1000 && err.limit == 1000);
    free(big);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

/* Cutting between strangers must not change a result: the same text merged in
 * one piece (a vocabulary where everything may stand beside everything). */
static void cutting_is_exact(void **state)
{
    static const char letters[] = "abcaab ab";
    char text[41];
    uint32_t seed = 1;
    /* "abc a" etc. make every pair a neighbour somewhere, so nothing is cut */
    static const char all[] = ",\"aacab\xE2\x96\x81\xE2\x96\x81"
                              "bb\xE2\x96\x81"
                              "cc\xE2\x96\x81"
                              "abacbca\xE2\x96\x81"
                              "a\":20";
    struct mdl_tok *t = plain(), *u = make("", "false", "true", all);

    for (int round = 0; round < 3000; round++) {
        char want[2048];
        int n = 1 + (int)(seed >> 8) % 40;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            text[i] = letters[(seed >> 16) % (sizeof(letters) - 1)];
        }
        text[n] = '\0';
        snprintf(want, sizeof(want), "%s", ids(u, text, offs));
        assert_string_equal(ids(t, text, offs), want);
    }
    mdl_tok_free(&t);
    mdl_tok_free(&u);
}

static void streaming_holds_incomplete_characters(void **state)
{
    struct mdl_tok *t =
        make("", "true", "true",
             ",\"<0xC3>\":20,\"<0xA9>\":21,\"<0xF0>\":22,\"<0x9F>\":23,\"<0x41>\":24");
    static const struct {
        int32_t ids[6];
        size_t n;
        const char *steps[7]; /* after each id, and after the flush */
    } rows[] = {
        {{3, 20, 21, 4}, 4, {"a", "", "\xC3\xA9", "b", ""}},
        {{20, 3},
         2,
         {"",
          "\xEF\xBF\xBD"
          "a",
          ""}},
        {{22, 23}, 2, {"", "", "\xEF\xBF\xBD\xEF\xBF\xBD"}},
        {{23, 24, 3},
         3,
         {"\xEF\xBF\xBD", "\xEF\xBF\xBD", "a", ""}}, /* a bad run is bad to its end */
        {{22, 20, 24, 10}, 4, {"", "\xEF\xBF\xBD\xEF\xBF\xBD", "\xEF\xBF\xBD", " a", ""}},
        {{24, 2, 9}, 3, {"A", "<bos>", " ", ""}},
    };

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct mdl_detok d;
        char part[MDL_PIECE_MAX + 8], all[256] = "", *whole = NULL;
        size_t n;
        mdl_detok_init(&d, t, false);
        for (size_t i = 0; i <= rows[r].n; i++) {
            n = i < rows[r].n ? mdl_detok_push(&d, rows[r].ids[i], part, sizeof(part))
                              : mdl_detok_flush(&d, part, sizeof(part));
            part[n] = '\0';
            assert_string_equal(part, rows[r].steps[i]);
            strcat(all, part);
        }
        assert_int_equal(mdl_tok_decode(t, rows[r].ids, rows[r].n, false, &whole, &n, NULL), RC_OK);
        assert_string_equal(whole, all);
        free(whole);
    }
    mdl_tok_free(&t);
}

static void ids_outside_the_vocabulary(void **state)
{
    struct mdl_tok *t = make("", "false", "true", ",\"far\":30");
    struct rc_err err = RC_ERR_INIT;
    const int32_t bad[3] = {3, 31, -1}, hole[2] = {25, 3};
    struct mdl_detok d;
    char *s = NULL, part[MDL_PIECE_MAX + 8];
    size_t n;

    assert_int_equal(mdl_tok_vocab(t), 31);
    assert_int_equal(mdl_tok_decode(t, bad, 2, false, &s, &n, &err), RC_INVALID);
    assert_int_equal(mdl_tok_decode(t, bad + 2, 1, false, &s, &n, &err), RC_INVALID);
    assert_null(s);
    assert_null(mdl_tok_piece(t, 25, &n));
    assert_null(mdl_tok_piece(t, -1, &n));
    assert_null(mdl_tok_piece(t, 31, &n));
    assert_string_equal(mdl_tok_bytes(t, 99, false, &n), "");
    assert_false(mdl_tok_is_special(t, 99));
    assert_int_equal(mdl_tok_decode(t, hole, 2, false, &s, &n, &err), RC_OK);
    assert_string_equal(s, "a");
    free(s);
    mdl_detok_init(&d, t, false);
    assert_int_equal(mdl_detok_push(&d, 99, part, sizeof(part)), 0);
    assert_int_equal(mdl_detok_push(&d, 30, part, sizeof(part)), 3);
    assert_int_equal(mdl_detok_push(&d, 30, part, 2), 0); /* no room: nothing, never a part */
    assert_int_equal(mdl_tok_find(t, "far", 3), 30);
    assert_int_equal(mdl_tok_find(t, "fa", 2), -1);
    assert_int_equal(mdl_tok_bos(t), 2);
    assert_int_equal(mdl_tok_eos(t), -1);
    mdl_tok_free(&t);
}

struct asked {
    unsigned n, stop_at; /* 0 = never */
};
static bool ask(void *user)
{
    struct asked *a = user;

    return ++a->n == a->stop_at;
}

/* Whatever takes long asks: one long word, many, unknown characters, added tokens
 * that nearly match. */
static void a_long_text_can_be_stopped(void **state)
{
    enum { N = 1 << 16 };
    static const char *const units[] = {"a", "ab c", "\xC3\xA9", "<", "<x>", " "};
    struct mdl_tok *t = make("," ADDED(1, "<x>", RAW), "false", "true", "");
    struct rc_err err = RC_ERR_INIT;
    char *text = malloc(N + 8);

    assert_non_null(text);
    for (size_t u = 0; u < sizeof(units) / sizeof(*units); u++) {
        struct asked a = {0, 0};
        struct mdl_tok_stop stop = {ask, &a};
        struct mdl_tok_flags f = {.parse_special = true, .stop = &stop, .offsets = u % 2 == 0};
        struct mdl_tok_flags plain_flags = f;
        struct mdl_ids v = {0}, w = {0};
        size_t n = 0, len = strlen(units[u]);

        for (; n < N; n += len)
            memcpy(text + n, units[u], len);
        plain_flags.stop = NULL;
        assert_int_equal(mdl_tok_encode(t, text, n, &plain_flags, &w, &err), RC_OK);
        assert_int_equal(mdl_tok_encode(t, text, n, &f, &v, &err), RC_OK);
        assert_int_equal(v.n, w.n);
        assert_memory_equal(v.ids, w.ids, v.n * sizeof(*v.ids));
        if (a.n < N / 4096)
            fail_msg("'%s': asked only %u times", units[u], a.n);
        for (unsigned at = 1, all = a.n; at <= all; at += all / 15 + 1) {
            v.n = 5;
            a = (struct asked){0, at};
            assert_int_equal(mdl_tok_encode(t, text, n, &f, &v, &err), RC_CANCELLED);
            assert_int_equal(a.n, at);
            assert_int_equal(v.n, 5);
        }
        mdl_ids_deinit(&v);
        mdl_ids_deinit(&w);
    }
    free(text);
    mdl_tok_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_text_can_be_stopped),
        cmocka_unit_test(merges_go_by_rank_then_place),
        cmocka_unit_test(unknown_characters_fuse_or_fall_to_bytes),
        cmocka_unit_test(text_never_becomes_a_control_token),
        cmocka_unit_test(added_tokens_and_their_flags),
        cmocka_unit_test(bad_utf8_is_refused_with_its_place),
        cmocka_unit_test(the_bound_stops_early_and_leaves_nothing),
        cmocka_unit_test(cutting_is_exact),
        cmocka_unit_test(streaming_holds_incomplete_characters),
        cmocka_unit_test(ids_outside_the_vocabulary),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
