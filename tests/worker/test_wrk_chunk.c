/* test_wrk_chunk.c - a text cut into pieces: where, how long, and what holds for any text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_chunk.h"

#define MOST 4096
static uint32_t offs[2 * MOST];

/* Words and marks as tokens, as a WordPiece tokenizer gives them; other letters one by one. */
static size_t words(const char *s)
{
    uint32_t pos = 0, from = 0;
    size_t n = 0;
    bool in = false;

    for (;; s++) {
        bool letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');

        if (((unsigned char)*s & 0xc0) == 0x80) /* inside a character */
            continue;
        if (in && !letter) {
            offs[2 * n] = from;
            offs[2 * n++ + 1] = pos;
        }
        if (letter && !in)
            from = pos;
        in = letter;
        if (*s == 0)
            return n;
        if (!letter && (unsigned char)*s > ' ') {
            offs[2 * n] = pos;
            offs[2 * n++ + 1] = pos + 1;
        }
        pos++;
    }
}

/* The pieces joined by bars. */
static const char *pieces_of(const char *text, const struct wrk_chunk_ask *a)
{
    static char out[2048];
    struct wrk_chunks c = {0};
    size_t at = 0, n = words(text);

    assert_int_equal(wrk_chunk(&c, text, strlen(text), offs, n, a, NULL), RC_OK);
    for (uint32_t i = 0; i < c.n; i++) {
        uint32_t pos = 0;

        if (i > 0)
            out[at++] = '|';
        for (const char *s = text; *s != 0; s++) {
            pos += s > text && ((unsigned char)*s & 0xc0) != 0x80;
            if (pos >= c.piece[i].start && pos < c.piece[i].end)
                out[at++] = *s;
        }
    }
    if (c.cut)
        out[at++] = '+';
    out[at] = 0;
    free(c.piece);
    return out;
}

static void pieces_end_where_they_can(void **state)
{
    static const struct {
        const char *name, *text, *want;
        uint32_t target, overlap;
        const char *sep;
        bool sentences;
        uint32_t most;
    } cases[] = {
        {"between tokens", "a b c d e", "a b |c d |e", 2, 0, "", false, 99},
        {"the first has the blanks before it", "  a b  c ", "  a b  |c ", 2, 0, "", false, 99},
        {"overlap", "a b c d e", "a b c |c d e", 3, 1, "", false, 99},
        {"no more overlap than fits", "a b c d e", "a b c |b c d |c d e", 3, 2, "", false, 99},
        {"behind a separator", "a b\n\nc d e f", "a b\n\n|c d e |f", 3, 0, "\n\n", false, 99},
        {"behind the last one", "a\n\nb\n\nc\n\nd e", "a\n\nb\n\nc\n\n|d e", 3, 0, "\n\n", false,
         99},
        {"a separator that is a token", "a - b - c d", "a - |b - |c d", 3, 0, "-", false, 99},
        {"not inside a word", "aXb c d", "aXb c |d", 2, 0, "X", false, 99},
        {"three breaks hold it twice", "a\n\n\nb c", "a\n\n\n|b c", 2, 0, "\n\n", false, 99},
        {"behind a sentence", "One two. Three four five.", "One two. |Three four five.", 6, 0, "",
         true, 99},
        {"separators go first", "A b.\n\nC d. E f g", "A b.\n\n|C d. E f g", 8, 0, "\n\n", true,
         99},
        {"no sentence before a small letter", "See e.g. this one here", "See e.g. this |one here",
         6, 0, "", true, 99},
        {"nor in a number", "It is 3.14 or so", "It is 3.14 |or so", 6, 0, "", true, 99},
        {"closing marks are the sentence's", "\"Go.\" He went off", "\"Go.\" |He went off", 6, 0,
         "", true, 99},
        {"an opening mark is the next one's", "He went. (It was late) so",
         "He went. |(It was late) |so", 5, 0, "", true, 99},
        {"not in an address", "at a?b and more", "at a?b |and more", 4, 0, "", true, 99},
        {"full width", "はい。いいえ。", "はい。|いいえ。", 4, 0, "", true, 99},
        {"full width, closed", "「はい。」いいえ", "「はい。」|いいえ", 6, 0, "", true, 99},
        {"Devanagari", "हाँ। नहीं। ठीक है", "हाँ। |नहीं। |ठीक है", 6, 0, "", true, 99},
        {"an empty line", "Title\n\nText and more", "Title\n\n|Text and more", 3, 0, "", true, 99},
        {"a line break is none", "one\ntwo three", "one\ntwo |three", 2, 0, "", true, 99},
        {"no more than asked", "a b c d e", "a b |c d +", 2, 0, "", false, 2},
        {"one piece", "a b", "a b", 100, 50, "\n\n", true, 1},
        {"nothing", "", "", 2, 0, "", true, 9},
        {"only blanks", " \n ", "", 2, 0, "", true, 9},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wrk_chunk_ask a = {.target = cases[i].target,
                                  .overlap = cases[i].overlap,
                                  .most = cases[i].most,
                                  .sep = cases[i].sep,
                                  .n_sep = strlen(cases[i].sep),
                                  .sentences = cases[i].sentences};
        const char *got;

        if (strcmp(got = pieces_of(cases[i].text, &a), cases[i].want) != 0)
            fail_msg("%s: '%s', expected '%s'", cases[i].name, got, cases[i].want);
    }
}

static void requests_out_of_range_name_their_field(void **state)
{
    static const char sep[WRK_CHUNK_SEP_MAX + 1];
    static const struct {
        const char *what;
        struct wrk_chunk_ask a;
    } cases[] = {
        {"target_tokens", {0, 0, 1, "", 0, false}},
        {"overlap_tokens", {5, 5, 1, "", 0, false}},
        {"max_chunks", {5, 0, 0, "", 0, false}},
        {"separator", {5, 0, 1, sep, sizeof(sep), false}},
    };
    /* one character of three byte tokens, which the second piece would begin with */
    const uint32_t byte_tokens[] = {0, 1, 1, 2, 1, 2, 1, 2, 2, 3};
    struct wrk_chunk_ask a = {.target = 2, .most = 9, .sep = ""};
    struct wrk_chunks c = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(wrk_chunk(&c, "a", 1, offs, words("a"), &cases[i].a, &err), RC_INVALID);
        assert_string_equal(err.what, cases[i].what);
    }
    assert_int_equal(wrk_chunk(&c, "a\xe2\x82\xac z", 5, byte_tokens, 5, &a, &err), RC_INVALID);
    assert_string_equal(err.what, "target_tokens");
    assert_int_equal(err.n, 3);
    assert_int_equal(err.limit, 2);
    a.target = 3;
    assert_int_equal(wrk_chunk(&c, "a\xe2\x82\xac z", 5, byte_tokens, 5, &a, &err), RC_OK);
    assert_int_equal(c.n, 3);
    assert_int_equal(c.piece[1].n_tokens, 3);
    free(c.piece);
}

/* ------------------------------------------------------------------ properties */

static uint32_t seed;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* Any text, any tokens: gaps between them, several of one character, some empty. */
static size_t make(char *text, size_t *n_bytes, uint32_t *n_chars)
{
    static const char *const bits[] = {"a",
                                       "B",
                                       "z",
                                       " ",
                                       "\n\n",
                                       ". ",
                                       "\xc3\xa9",
                                       "\xe3\x80\x82",
                                       "!",
                                       "(",
                                       "\"",
                                       "\n",
                                       "\xf0\x9f\x99\x82"};
    uint32_t want = 1 + rnd(200), pos = 0;
    size_t n = 0;

    *n_bytes = 0;
    *n_chars = 0;
    for (uint32_t i = 0; i < want; i++) {
        const char *b = bits[rnd(13)];

        for (const char *s = b; *s != 0; s++)
            *n_chars += ((unsigned char)*s & 0xc0) != 0x80;
        memcpy(text + *n_bytes, b, strlen(b));
        *n_bytes += strlen(b);
    }
    while (pos < *n_chars) {
        uint32_t len = rnd(4), again = rnd(9) == 0 ? 1 + rnd(2) : 0;

        len = pos + len > *n_chars ? *n_chars - pos : len;
        for (uint32_t k = 0; k <= again; k++) {
            offs[2 * n] = pos;
            offs[2 * n++ + 1] = pos + len;
        }
        pos += len + (rnd(3) == 0 ? 1 : 0);
        if (len == 0)
            pos++;
    }
    return n;
}

static void any_text_is_covered_by_pieces_no_longer_than_asked(void **state)
{
    static char text[4096];
    uint32_t n_pieces = 0, n_refused = 0;

    (void)state;
    seed = 7;
    for (int round = 0; round < 3000; round++) {
        struct wrk_chunk_ask a = {.target = 1 + rnd(30), .most = 1 + rnd(400), .sentences = rnd(2)};
        struct wrk_chunks c = {0};
        struct rc_err err = RC_ERR_INIT;
        size_t n_bytes, n = make(text, &n_bytes, &(uint32_t){0});
        uint32_t n_chars = 0, sum = 0;
        enum rc rc;

        for (size_t i = 0; i < n_bytes; i++)
            n_chars += ((unsigned char)text[i] & 0xc0) != 0x80;
        a.overlap = rnd(a.target);
        a.sep = rnd(2) ? "\n\n" : ".";
        a.n_sep = rnd(3) ? strlen(a.sep) : 0;
        rc = wrk_chunk(&c, text, n_bytes, offs, n, &a, &err);
        if (rc != RC_OK) { /* only characters of many tokens */
            assert_int_equal(rc, RC_INVALID);
            assert_true(err.n > err.limit && err.limit == a.target);
            n_refused++;
            continue;
        }
        assert_true(c.n <= a.most && (c.n > 0) == (n > 0));
        for (uint32_t i = 0; i < c.n; i++) {
            const struct wrk_chunk_piece *p = &c.piece[i], *q = i > 0 ? p - 1 : NULL;

            assert_true(p->start < p->end && p->end <= n_chars);
            assert_true(p->n_tokens <= a.target);
            if (q != NULL) {
                assert_true(p->start > q->start && p->end > q->end && p->start <= q->end);
                if (a.overlap == 0)
                    assert_int_equal(p->start, q->end);
            }
            sum += p->n_tokens;
        }
        if (n > 0) {
            assert_int_equal(c.piece[0].start, 0);
            assert_true(c.cut || c.piece[c.n - 1].end == n_chars);
            if (a.overlap == 0 && !c.cut)
                assert_int_equal(sum, n); /* each token in one piece */
        }
        n_pieces += c.n;
        free(c.piece);
    }
    assert_true(n_pieces > 20000 && n_refused > 0 && n_refused < 1500);
}

/* Overlaps are as long as asked wherever tokens are single characters. */
static void overlaps_are_as_asked(void **state)
{
    char text[301];

    (void)state;
    memset(text, 'x', 300);
    text[300] = 0;
    for (size_t i = 0; i < 300; i++) {
        offs[2 * i] = (uint32_t)i;
        offs[2 * i + 1] = (uint32_t)i + 1;
    }
    for (uint32_t target = 1; target < 40; target++)
        for (uint32_t overlap = 0; overlap < target; overlap++) {
            struct wrk_chunk_ask a = {
                .target = target, .overlap = overlap, .most = 1000, .sep = ""};
            struct wrk_chunks c = {0};

            assert_int_equal(wrk_chunk(&c, text, 300, offs, 300, &a, NULL), RC_OK);
            for (uint32_t i = 1; i < c.n; i++)
                assert_int_equal(c.piece[i - 1].end - c.piece[i].start, overlap);
            for (uint32_t i = 0; i + 1 < c.n; i++)
                assert_int_equal(c.piece[i].n_tokens, target);
            free(c.piece);
        }
}

/* The worst text for anything that looks back: one sentence end, then none for long, with an
 * overlap that moves a token at a time. Quadratic work would take minutes. */
static void a_long_text_is_linear(void **state)
{
    enum { N = 2000000 };
    char *text = malloc(N);
    uint32_t *o = malloc(2 * N * sizeof(*o));
    struct wrk_chunk_ask a = {.target = N / 2,
                              .overlap = N / 2 - 1,
                              .most = N,
                              .sep = "aab",
                              .n_sep = 3,
                              .sentences = true};
    struct wrk_chunks c = {0};

    (void)state;
    memset(text, 'a', N);
    for (uint32_t i = 0; i < N; i++) {
        o[2 * i] = i;
        o[2 * i + 1] = i + 1;
    }
    assert_int_equal(wrk_chunk(&c, text, N, o, N, &a, NULL), RC_OK);
    assert_int_equal(c.n, N / 2 + 1);
    assert_int_equal(c.piece[c.n - 1].end, N);
    free(c.piece);
    free(o);
    free(text);
}

static bool at_the_last(void *user)
{
    return --*(uint32_t *)user == 0;
}

/* Asked all the way: while places are found, while the text is read, while it is cut. */
static void cutting_can_be_stopped_anywhere(void **state)
{
    enum { N = 300000 };
    char *text = malloc(N);
    uint32_t *o = malloc(2 * N * sizeof(*o)), left = 0, n_asked;
    const struct mdl_tok_stop stop = {at_the_last, &left};
    struct wrk_chunk_ask a = {.target = 1, .most = N, .stop = &stop};
    struct wrk_chunks c = {0};

    (void)state;
    memset(text, 'a', N);
    for (uint32_t i = 0; i < N; i++) {
        o[2 * i] = i;
        o[2 * i + 1] = i + 1;
    }
    assert_int_equal(wrk_chunk(&c, text, N, o, N, &a, NULL), RC_OK);
    n_asked = 0u - left;
    assert_in_range(n_asked, 12, 100);
    free(c.piece);
    for (uint32_t k = 1; k <= n_asked; k++) {
        struct rc_err err = RC_ERR_INIT;

        left = k;
        c = (struct wrk_chunks){.n = 77};
        assert_int_equal(wrk_chunk(&c, text, N, o, N, &a, &err), RC_CANCELLED);
        assert_int_equal(left, 0); /* and at once */
        assert_int_equal(c.n, 77);
    }
    free(o);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_end_where_they_can),
        cmocka_unit_test(requests_out_of_range_name_their_field),
        cmocka_unit_test(any_text_is_covered_by_pieces_no_longer_than_asked),
        cmocka_unit_test(overlaps_are_as_asked),
        cmocka_unit_test(a_long_text_is_linear),
        cmocka_unit_test(cutting_can_be_stopped_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
