/* test_sup_pieces.c - texts cut by words: counts, ends, overlaps, bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sup_pieces.h"

#define PIECES 64

static struct sup_piece got[PIECES];
static bool was_cut;
static uint64_t n_tokens;

/* The pieces as "a|b|c". */
static const char *cut(const char *text, struct sup_cutting how)
{
    static char out[1024];
    uint32_t n;
    char *to = out;

    if (!how.separator)
        how.separator = "";
    if (!how.max)
        how.max = PIECES;
    assert_true(sup_pieces(text, strlen(text), &how, got, &n, &was_cut, &n_tokens));
    for (uint32_t i = 0; i < n; i++)
        to +=
            sprintf(to, "%s%.*s", i ? "|" : "", (int)(got[i].to - got[i].from), text + got[i].from);
    *to = '\0';
    return out;
}

static uint64_t count(const char *text, bool runs)
{
    cut(text, (struct sup_cutting){.target = 1000, .runs = runs});
    return n_tokens;
}

static void test_what_counts_as_a_token(void **state)
{
    static const struct {
        const char *text;
        unsigned bert, runs;
    } rows[] = {
        {"", 0, 0},
        {" \t\n\xc2\xa0\xe3\x80\x80", 0, 0},
        {"one two  three", 3, 3},
        {"don't stop...", 7, 5},
        {"abc123 45", 2, 3},
        {"\xe4\xb8\xad\xe6\x96\x87 ok", 3, 3}, /* two Chinese characters */
        {"na\xc3\xafve \xc2\xabword\xc2\xbb", 4, 4},
        {"a\xe3\x80\x82", 2, 2},
    };
    char word[260];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(count(rows[i].text, false), rows[i].bert);
        assert_int_equal(count(rows[i].text, true), rows[i].runs);
    }
    memset(word, 'x', 250);
    word[250] = '\0';
    assert_int_equal(count(word, false), 3);
}

static void test_where_pieces_end(void **state)
{
    assert_string_equal(cut("a b c d e", (struct sup_cutting){.target = 2}), "a b|c d|e");
    assert_string_equal(cut("a b c d e", (struct sup_cutting){.target = 5}), "a b c d e");
    assert_string_equal(cut("a b c d e", (struct sup_cutting){.target = 3, .overlap = 1}),
                        "a b c|c d e");
    assert_string_equal(cut("a b c d e", (struct sup_cutting){.target = 3, .overlap = 2}),
                        "a b c|b c d|c d e");
    assert_string_equal(
        cut(" a b\n\nc d e ", (struct sup_cutting){.target = 3, .separator = "\n\n"}), "a b|c d e");
    /* an end inside the overlap would be no step forward */
    assert_string_equal(
        cut("a\n\nb c d", (struct sup_cutting){.target = 3, .overlap = 1, .separator = "\n\n"}),
        "a\n\nb c|c d");
    /* the last of several, also where it is made of tokens */
    assert_string_equal(cut("a -- b -- c d", (struct sup_cutting){.target = 7, .separator = "--"}),
                        "a -- b --|c d");
    assert_string_equal(cut("A b. C d e.", (struct sup_cutting){.target = 5, .sentences = true}),
                        "A b.|C d e.");
    assert_string_equal(cut("It is 3.14 or \"so.\" Yes no x y",
                            (struct sup_cutting){.target = 11, .sentences = true}),
                        "It is 3.14 or \"so.\"|Yes no x y");
    assert_string_equal(cut("\xe4\xb8\xad\xe3\x80\x82\xe6\x96\x87\xe6\x96\x87\xe6\x96\x87",
                            (struct sup_cutting){.target = 4, .sentences = true}),
                        "\xe4\xb8\xad\xe3\x80\x82|\xe6\x96\x87\xe6\x96\x87\xe6\x96\x87");
    /* a separator goes before a sentence */
    assert_string_equal(
        cut("a\n\nb. c d",
            (struct sup_cutting){.target = 4, .separator = "\n\n", .sentences = true}),
        "a|b. c d");
}

static void test_places_are_code_points(void **state)
{
    cut(" \xc3\xa9\xc3\xa9 b \xf0\x9f\x98\x80 c", (struct sup_cutting){.target = 2});
    assert_true(got[0].start == 1 && got[0].end == 5 && got[0].n_tokens == 2);
    assert_true(got[1].start == 6 && got[1].end == 9);
    assert_true(got[1].from == 8 && got[1].to == 14);
}

static void test_there_are_at_most_so_many(void **state)
{
    assert_string_equal(cut("a b c d", (struct sup_cutting){.target = 2, .max = 1}), "a b");
    assert_true(was_cut);
    assert_string_equal(cut("a b c d", (struct sup_cutting){.target = 2, .max = 2}), "a b|c d");
    assert_false(was_cut);
    assert_string_equal(cut("a b", (struct sup_cutting){.target = 2, .max = 1}), "a b");
    assert_false(was_cut);
}

/* Every piece is of the text, no longer than asked, and shares just the overlap. */
static void test_any_text_is_covered(void **state)
{
    static const char alphabet[] = "ab .\n-\"";
    char text[400];
    uint32_t seed = 7;

    for (int round = 0; round < 300; round++) {
        struct sup_cutting how = {.separator = round % 2 ? "\n\n" : "-", .max = PIECES};
        size_t last = 0;
        uint32_t n;

        for (size_t i = 0; i < sizeof(text); i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = alphabet[(seed >> 24) % 7];
        }
        how.target = 8 + (uint32_t)round % 40;
        how.overlap = (uint32_t)round % how.target / 2;
        how.sentences = round % 3 == 0;
        assert_true(sup_pieces(text, sizeof(text), &how, got, &n, &was_cut, &n_tokens));
        for (uint32_t i = 0; i < n; i++) {
            assert_true(got[i].n_tokens >= 1 && got[i].n_tokens <= how.target);
            assert_true(got[i].from < got[i].to && got[i].to <= sizeof(text));
            assert_true(got[i].to > last); /* something new */
            for (size_t b = last; i > 0 && how.overlap == 0 && b < got[i].from; b++)
                assert_true(text[b] == ' ' || text[b] == '\n'); /* nothing is lost between */
            if (how.overlap)
                assert_true(i == 0 || got[i].from < last);
            last = got[i].to;
        }
        for (size_t b = last; !was_cut && b < sizeof(text); b++)
            assert_true(text[b] == ' ' || text[b] == '\n');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_counts_as_a_token),
        cmocka_unit_test(test_where_pieces_end),
        cmocka_unit_test(test_places_are_code_points),
        cmocka_unit_test(test_there_are_at_most_so_many),
        cmocka_unit_test(test_any_text_is_covered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
