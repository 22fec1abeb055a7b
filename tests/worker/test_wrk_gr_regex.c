/* test_wrk_gr_regex.c - regular expressions: what they match, what is refused. */
#include "worker/gr_test.h"

static const struct gr_case cases[] = {
    {"abc", {"abc"}, {"ab", "abcd", ""}},
    {"^a|b$", {"a", "b"}, {"ab", ""}},
    {"a*", {"", "a", "aaaa"}, {"b"}},
    {"(a+)+$", {"a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, {"", "ab"}},
    {"(?:a|aa)+?b", {"ab", "aaab"}, {"b", "a"}},
    {"(x?){50}y", {"y", "xy", "xxxxxxxxxxy"}, {"x"}},
    {"a{2}b{0,2}c{3,}", {"aaccc", "aabbcccc"}, {"aacc", "aabbbccc", "accc"}},
    {"a{300,301}", {NULL}, {"aaa", ""}},
    {"(ab){100000,}", {NULL}, {"abab"}},
    {"[a-c\\d_-]+", {"a-1_", "c9"}, {"d", ""}},
    {"[^a-c]", {"d", "日", "\n"}, {"a", "", "dd"}},
    {"[\\]\\\\^]", {"]", "\\", "^"}, {"["}},
    {".", {"x", "é", "日", "😀"}, {"\n", "", "xx", "\xff"}},
    {"\\w+\\s\\S\\D\\W", {"ab cd-"}, {"ab cd1"}},
    {"\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\cA\\t\\/", {"Aé😀😀\x01\t/"}, {"A"}},
    {"(?<year>\\d{4})-(\\d\\d)", {"2024-01"}, {"24-01"}},
    {"a{,3}|x{y", {"a{,3}", "x{y"}, {"a", "aaa"}},
    {"\\d{3}-\\d{4}|none", {"555-1234", "none"}, {"555", "5551234"}},
    {"[\\u0800-\\uffff]", {"日", "\xee\x80\x80"}, {"a", "é", "😀", "\xed\xa0\x80"}},
    {"[\\u{10000}-\\u{10ffff}]", {"😀"}, {"日"}},
    {"(a|b)*a(a|b){12}", {"abbbbbbbbbbbb", "bbabbbbbbbbbbbb"}, {"bbbbbbbbbbbbbbb"}},
    {"", {""}, {"a"}},
    {"()|a", {"", "a"}, {"aa"}},
};

static void takes(void **state)
{
    (void)state;
    gr_check_cases(WRK_GR_REGEX, cases, sizeof(cases) / sizeof(cases[0]));
}

static const struct gr_refusal refusals[] = {
    {"(", RC_INVALID, "')' is missing"},
    {")", RC_INVALID, "without its '('"},
    {"[a", RC_INVALID, "']' is missing"},
    {"[b-a]", RC_INVALID, "ends before it begins"},
    {"*a", RC_INVALID, "nothing to repeat"},
    {"a**", RC_INVALID, "nothing to repeat"},
    {"a{3,2}", RC_INVALID, "at least more than at most"},
    {"a{1000000000}", RC_TOO_LARGE, "1000000"},
    {"\\", RC_INVALID, "UnexpectedEnd"},
    {"\\q", RC_INVALID, "without a meaning"},
    {"\\xg1", RC_INVALID, "hexadecimal"},
    {"\\u{110000}", RC_INVALID, "10FFFF"},
    {"\\ud800", RC_INVALID, "surrogate"},
    {"(?=a)", RC_UNSUPPORTED, "lookaround"},
    {"(?<!a)b", RC_UNSUPPORTED, "lookaround"},
    {"(?i)a", RC_UNSUPPORTED, "inline flags"},
    {"(a)\\1", RC_UNSUPPORTED, "back references"},
    {"\\bword", RC_UNSUPPORTED, "word boundaries"},
    {"\\p{L}", RC_UNSUPPORTED, "Unicode properties"},
    {"a(^b)", RC_UNSUPPORTED, "anchors"},
    {"^+", RC_INVALID, "nothing to repeat"},
    {"[^\\d\\D]", RC_INVALID, "no text satisfies it"},
    {"\xff", RC_INVALID, "UTF-8"},
};

static void refuses(void **state)
{
    (void)state;
    gr_check_refusals(WRK_GR_REGEX, refusals, sizeof(refusals) / sizeof(refusals[0]));
}

/* 60,000 parentheses; nested counts; a class of everything: words or a small program. */
static void hostile(void **state)
{
    size_t n = 120000;
    char *s = malloc(n + 1);
    static const char *const texts[] = {
        "((((a{60}){60}){60}){60}){60}",
        "(((((a?){9}){9}){9}){9}){9}",
        "(a|b|ab|ba)*(aa|bb){100}(a|b)*a(a|b){200}",
        "(.*a){30}",
        "((a*)*)*",
    };
    struct wrk_gr_prog *p = NULL;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    memset(s, '(', n);
    s[n] = '\0';
    assert_int_equal(wrk_gr_compile(&p, WRK_GR_REGEX, s, n, &err), RC_TOO_LARGE);
    assert_non_null(strstr(err.msg, "nested"));
    free(s);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (wrk_gr_compile(&p, WRK_GR_REGEX, texts[i], strlen(texts[i]), &err) != RC_OK)
            assert_int_equal(err.code, RC_TOO_LARGE);
        else
            assert_true(wrk_gr_prog_bytes(p) < 16u << 20);
        wrk_gr_prog_free(&p);
    }
}

static void walks(void **state)
{
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 1234567;
    char out[8192];
    unsigned whole = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int turn = 0; turn < 6; turn++)
            if (gr_walk(&r, WRK_GR_REGEX, cases[i].grammar, &seed, 50, out, sizeof(out),
                        turn < 2)) {
                assert_int_equal(gr_try(&r, WRK_GR_REGEX, cases[i].grammar, out), 1);
                whole++;
            }
    assert_true(whole > 60);
    gr_rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(hostile),
        cmocka_unit_test(walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
