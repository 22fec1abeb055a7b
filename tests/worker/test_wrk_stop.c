/* test_wrk_stop.c - stop strings found at every possible cut of the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_stop.h"

struct kase {
    const char *name, *stop[4], *text;
    int cut; /* bytes of text that may be seen; -1 = no stop */
};

static const struct kase cases[] = {
    {"plain", {"END"}, "abcENDdef", 3},
    {"at the start", {"END"}, "ENDdef", 0},
    {"at the end", {"END"}, "abcEND", 3},
    {"absent", {"END"}, "abcENdENE", -1},
    {"repeats itself before it completes", {"aab"}, "aaab", 1},
    {"border of a border", {"abababc"}, "ababababc", 2},
    {"one is a prefix of another: the shorter completes first", {"abc", "ab"}, "xabc", 1},
    {"one is a suffix of another: the longer began first", {"bc", "abc"}, "xabc", 1},
    {"two candidates, the later start completes", {"abcd", "bce"}, "abce", 1},
    {"CJK", {"\xe7\xb5\x82\xe3\x82\x8f"}, "\xe5\xa7\x8b\xe7\xb5\x82\xe3\x82\x8f!", 3},
    {"CJK that shares bytes but is another character", {"\xe7\xb5\x82"}, "\xe7\xb5\x81", -1},
    {"newlines", {"\n\n"}, "a\nb\n\nc", 3},
    {"single byte", {"."}, "a.b", 1},
    {"four at once", {"wxyz", "xyz", "yz", "q"}, "..wxyz", 2},
};

/* Feeds text cut at the bits of mask; returns visible bytes or -1, and checks
 * that what was released early never has to be taken back. */
static int run(const struct kase *k, uint32_t mask)
{
    struct wrk_stops s = {0};
    struct wrk_stop_state st = {{0}};
    size_t n = strlen(k->text), from = 0, hit = 0, fed = 0;
    int out = -1, released = 0;

    for (int i = 0; i < 4 && k->stop[i] != NULL; i++)
        assert_int_equal(wrk_stops_add(&s, k->stop[i], strlen(k->stop[i]), NULL), RC_OK);
    while (from < n && hit == 0) {
        size_t to = from + 1;
        while (to < n && (mask >> (to - 1) & 1) == 0)
            to++;
        fed += wrk_stop_push(&s, &st, k->text + from, to - from, &hit);
        from = to;
        if (hit == 0)
            released = (int)(fed - wrk_stop_held(&s, &st));
    }
    if (hit > 0) {
        out = (int)(fed - hit);
        if (released > out)
            fail_msg("%s: mask %x: %d bytes were released, %d may be seen", k->name, mask, released,
                     out);
    } else if (released + (int)wrk_stop_held(&s, &st) != (int)n) {
        fail_msg("%s: bytes lost", k->name);
    }
    wrk_stops_deinit(&s);
    return out;
}

static void every_cut_gives_the_same_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t cuts = (1u << (strlen(cases[i].text) - 1));

        for (uint32_t mask = 0; mask < cuts; mask++) {
            int got = run(&cases[i], mask);
            if (got != cases[i].cut)
                fail_msg("%s: mask %x: %d, expected %d", cases[i].name, mask, got, cases[i].cut);
        }
    }
}

static void limits_are_kept(void **state)
{
    static char big[WRK_STOP_BYTES_MAX + 1];
    struct wrk_stops s = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    memset(big, 'x', sizeof(big));
    assert_int_equal(wrk_stops_add(&s, "", 0, &err), RC_INVALID);
    assert_int_equal(wrk_stops_add(&s, big, sizeof(big), &err), RC_TOO_LARGE);
    for (int i = 0; i < WRK_STOPS_MAX; i++)
        assert_int_equal(wrk_stops_add(&s, big, WRK_STOP_BYTES_MAX, &err), RC_OK);
    assert_int_equal(wrk_stops_add(&s, "a", 1, &err), RC_TOO_LARGE);
    assert_int_equal(s.longest, WRK_STOP_BYTES_MAX);
    wrk_stops_deinit(&s);
}

/* Random texts over two letters against a search that looks at every position. */
static void equals_a_plain_search(void **state)
{
    uint32_t r = 12345;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct wrk_stops s = {0};
        struct wrk_stop_state st = {{0}};
        char text[40], pat[3][8];
        size_t hit, got, best_end = SIZE_MAX, best_len = 0;

        for (size_t i = 0; i < sizeof(text); i++)
            text[i] = (char)('a' + ((r = r * 1664525u + 1013904223u) >> 30 & 1));
        for (int p = 0; p < 3; p++) {
            size_t len = 1 + (r >> (8 + p)) % 7;
            for (size_t i = 0; i < len; i++)
                pat[p][i] = (char)('a' + ((r = r * 1664525u + 1013904223u) >> 29 & 1));
            pat[p][len] = 0;
            wrk_stops_add(&s, pat[p], len, NULL);
            for (size_t at = 0; at + len <= sizeof(text); at++)
                if (memcmp(text + at, pat[p], len) == 0) {
                    if (at + len < best_end || (at + len == best_end && len > best_len)) {
                        best_end = at + len;
                        best_len = len;
                    }
                    break;
                }
        }
        got = wrk_stop_push(&s, &st, text, sizeof(text), &hit);
        if (best_end == SIZE_MAX) {
            assert_int_equal(hit, 0);
            assert_int_equal(got, sizeof(text));
        } else {
            assert_int_equal(got, best_end);
            assert_int_equal(hit, best_len);
        }
        wrk_stops_deinit(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same_answer),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(equals_a_plain_search),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
