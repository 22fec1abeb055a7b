/* test_sup_cli_edit.c - keys in, a line out; no terminal is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_edit.h"

/* Feeds keys; returns the last answer (2 = go on). */
static int type(struct sup_edit *e, const char *keys)
{
    int got = 2;

    for (; *keys && got == 2; keys++)
        got = sup_edit_key(e, (unsigned char)*keys);
    return got;
}

#define UP "\x1b[A"
#define DOWN "\x1b[B"
#define RIGHT "\x1b[C"
#define LEFT "\x1b[D"

static void keys_edit_the_line(void **state)
{
    static const struct {
        const char *why, *keys, *line;
        int cursor; /* -1 = at the end */
    } rows[] = {
        {"plain", "abc", "abc", -1},
        {"backspace", "abc\x7f\x08", "a", -1},
        {"backspace at the start",
         "\x7f\x7f"
         "a",
         "a", -1},
        {"a character of two bytes goes at once", "a\xc3\xa9\x7f", "a", -1},
        {"left and insert", "ac" LEFT "b", "abc", 2},
        {"left over an emoji", "\xf0\x9f\x98\x80" LEFT "x", "x\xf0\x9f\x98\x80", 1},
        {"right stops at the end", "a" RIGHT RIGHT "b", "ab", -1},
        {"left stops at the start", "a" LEFT LEFT LEFT "b", "ba", 1},
        {"home and end",
         "b\x01"
         "a\x05"
         "c",
         "abc", -1},
        {"Home and End keys",
         "b\x1b[H"
         "a\x1b[F"
         "c\x1bOH"
         "0\x1bOF"
         "d",
         "0abcd", -1},
        {"delete key", "abc\x01\x1b[3~", "bc", 0},
        {"delete at the end", "abc\x1b[3~", "abc", -1},
        {"kill to the end", "abc" LEFT LEFT "\x0b", "a", -1},
        {"kill to the start", "abc" LEFT "\x15", "c", 0},
        {"kill a word", "one two  \x17", "one ", -1},
        {"tab is blanks", "a\tb", "a    b", -1},
        {"unknown sequences vanish", "a\x1b[15~\x1b[1;5Cb\x1bzc", "abc", -1},
        {"control characters do not enter",
         "a\x1c\x1d\x1e"
         "b",
         "ab", -1},
        {"pasted newlines stay", "\x1b[200~a\nb\rc\td\x03\x1b[201~e", "a\nb\nc\tde", -1},
        {"Ctrl-D in a line deletes", "abc\x01\x04", "bc", 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_edit *e = sup_edit_new();
        size_t cur;

        assert_non_null(e);
        sup_edit_reset(e);
        if (type(e, rows[i].keys) != 2)
            fail_msg("%s: ended", rows[i].why);
        if (strcmp(sup_edit_text(e, &cur), rows[i].line) != 0)
            fail_msg("%s: got '%s'", rows[i].why, sup_edit_text(e, NULL));
        size_t want = rows[i].cursor < 0 ? strlen(rows[i].line) : (size_t)rows[i].cursor;
        if (cur != want)
            fail_msg("%s: cursor at %zu, expected %zu", rows[i].why, cur, want);
        sup_edit_free(&e);
        assert_null(e);
    }
}

static void how_a_line_ends(void **state)
{
    struct sup_edit *e = sup_edit_new();

    assert_non_null(e);
    sup_edit_reset(e);
    assert_int_equal(type(e, "abc\r"), 1);
    sup_edit_reset(e);
    assert_int_equal(type(e, "abc\x03"), -1);
    sup_edit_reset(e);
    assert_int_equal(type(e, "\x04"), 0);
    sup_edit_free(&e);
}

static void history_goes_up_and_down_and_keeps_the_draft(void **state)
{
    struct sup_edit *e = sup_edit_new();

    assert_non_null(e);
    for (const char *const *p = (const char *const[]){"one", "two", "two", NULL}; *p; p++) {
        sup_edit_reset(e);
        type(e, *p);
        sup_edit_remember(e);
    }
    sup_edit_reset(e);
    type(e, "draft" UP);
    assert_string_equal(sup_edit_text(e, NULL), "two");
    type(e, UP); /* equal neighbours are kept once */
    assert_string_equal(sup_edit_text(e, NULL), "one");
    type(e, UP);
    assert_string_equal(sup_edit_text(e, NULL), "one");
    type(e, DOWN DOWN);
    assert_string_equal(sup_edit_text(e, NULL), "draft");
    type(e, DOWN);
    assert_string_equal(sup_edit_text(e, NULL), "draft");
    for (int i = 0; i < SUP_EDIT_HISTORY * 2; i++) {
        char b[16];

        snprintf(b, sizeof(b), "%d", i);
        sup_edit_reset(e);
        type(e, b);
        sup_edit_remember(e);
    }
    sup_edit_reset(e);
    for (int i = 0; i < SUP_EDIT_HISTORY * 3; i++)
        type(e, UP);
    assert_string_equal(sup_edit_text(e, NULL), "200"); /* the oldest went */
    sup_edit_free(&e);
}

static void any_bytes_are_survived(void **state)
{
    struct sup_edit *e = sup_edit_new();
    unsigned seed = 7;
    size_t cur;

    assert_non_null(e);
    sup_edit_reset(e);
    for (int i = 0; i < 200000; i++) {
        seed = seed * 1103515245u + 12345u;
        if (sup_edit_key(e, (unsigned char)(seed >> 16)) != 2) {
            sup_edit_remember(e);
            sup_edit_reset(e);
        }
        const char *s = sup_edit_text(e, &cur);
        assert_true(cur <= strlen(s));
    }
    sup_edit_free(&e);
}

static void a_line_has_a_limit(void **state)
{
    struct sup_edit *e = sup_edit_new();
    int got = 2;
    size_t n = 0;

    assert_non_null(e);
    sup_edit_reset(e);
    while (got == 2 && n < SUP_EDIT_MAX_BYTES + 10) {
        got = sup_edit_key(e, 'x');
        n++;
    }
    assert_int_equal(got, -2);
    assert_int_equal(n, SUP_EDIT_MAX_BYTES + 1);
    sup_edit_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_edit_the_line),
        cmocka_unit_test(how_a_line_ends),
        cmocka_unit_test(history_goes_up_and_down_and_keeps_the_draft),
        cmocka_unit_test(any_bytes_are_survived),
        cmocka_unit_test(a_line_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
