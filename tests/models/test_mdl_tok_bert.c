/* test_mdl_tok_bert.c - BERT's normalizer and pre-tokenizer, character by
 * character, and WordPiece's decoding. Expected values were taken from
 * tokenizers 0.23.3.
 */
#include "mdl_tok.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

/* Every word is one unknown token, so offsets show what the words are. */
static struct mdl_tok *make(const char *options)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    char json[2048];

    snprintf(
        json, sizeof(json),
        "{\"normalizer\":{\"type\":\"BertNormalizer\"%s},\"pre_tokenizer\":{\"type\":"
        "\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":"
        "true},"
        "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":"
        "\"##\",\"max_input_chars_per_word\":5,\"vocab\":{\"[UNK]\":0,\"e\":1,\"##e\":2,\"i\":3,"
        "\"\xC3\xA9\":4,\"E\":5,\"##\xCC\x87\":6,\"\xE5\xA4\xA9\":7,\"a\":8,\"##b\":9,\".\":10,\"n'"
        "t\":11,"
        "\"'\":12,\"\xCF\x83\":13,\"ab\":14}}}",
        options);
    if (mdl_tok_from_json(&t, json, strlen(json), &err) != RC_OK)
        fail_msg("%s", err.msg);
    return t;
}

static void check(const struct mdl_tok *t, const char *text, const char *want)
{
    const struct mdl_tok_flags f = {.offsets = true};
    struct rc_err err = RC_ERR_INIT;
    struct mdl_ids v = {0};
    char line[512] = "";

    if (mdl_tok_encode(t, text, strlen(text), &f, &v, &err) != RC_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < v.n; i++)
        snprintf(line + strlen(line), 64, "%s%d:%u-%u", i ? " " : "", v.ids[i], v.offsets[2 * i],
                 v.offsets[2 * i + 1]);
    if (strcmp(line, want) != 0)
        fail_msg("'%s': %s, expected %s", text, line, want);
    mdl_ids_deinit(&v);
}

static void lower_case_and_accents(void **state)
{
    struct mdl_tok *t = make("");

    check(t, "\xC3\x89", "1:0-1");  /* composed: E with acute */
    check(t, "E\xCC\x81", "1:0-1"); /* decomposed: the mark has no token */
    check(t, "\xC4\xB0", "3:0-1");  /* I with dot: accent goes first */
    check(t, "\xCE\xA3", "13:0-1"); /* capital sigma, never the final form */
    check(t,
          "e\xCC\x81\xCC\xA7"
          "e",
          "1:0-1 2:3-4");              /* marks between */
    check(t, "\xED\x95\x9C", "0:0-1"); /* Hangul falls into letters of one place */
    mdl_tok_free(&t);

    t = make(",\"strip_accents\":false");
    check(t, "\xC3\x89", "4:0-1");
    check(t, "\xC4\xB0", "3:0-1 6:0-1"); /* lower case of two characters, one place */
    mdl_tok_free(&t);

    t = make(",\"lowercase\":false"); /* strip_accents follows it */
    check(t, "\xC3\x89", "0:0-1");
    check(t, "E", "5:0-1");
    mdl_tok_free(&t);
}

static void words_and_what_is_dropped(void **state)
{
    struct mdl_tok *t = make("");

    check(t,
          "e \t\n\xC2\xA0\xE3\x80\x80"
          "e",
          "1:0-1 1:6-7"); /* every kind of blank */
    check(t,
          "e\xE2\x80\x8B"
          "e",
          "1:0-1 2:2-3"); /* zero width space vanishes */
    check(t,
          "e\x01\x7F\xEF\xBF\xBD"
          "e",
          "1:0-1 2:4-5");           /* controls, U+FFFD */
    check(t, "e\xCD\xB8", "0:0-2"); /* unassigned stays */
    check(t, "e.e", "1:0-1 10:1-2 1:2-3");
    check(t, "e$", "1:0-1 0:1-2");                       /* ASCII symbols split too */
    check(t, "e\xE2\x82\xAC", "0:0-2");                  /* the euro sign is no punctuation */
    check(t, "e\xE2\x80\xA6", "1:0-1 0:1-2");            /* the ellipsis is */
    check(t, "\xE5\xA4\xA9\xE5\xA4\xA9", "7:0-1 7:1-2"); /* each CJK character alone */
    check(t,
          "\xF0\xAB\xA0\xA0"
          "e",
          "0:0-2"); /* U+2B820: not in the list, in fact */
    check(t,
          "\xF0\xAB\xA4\xA0"
          "e",
          "0:0-1 1:1-2"); /* U+2B920 is */
    mdl_tok_free(&t);

    t = make(",\"handle_chinese_chars\":false");
    check(t, "\xE5\xA4\xA9\xE5\xA4\xA9", "0:0-2");
    mdl_tok_free(&t);
    t = make(",\"clean_text\":false");
    check(t, "e\x01", "0:0-2");
    mdl_tok_free(&t);
}

static void words_that_cannot_be_covered(void **state)
{
    struct mdl_tok *t = make("");

    check(t, "eeeee", "1:0-1 2:1-2 2:2-3 2:3-4 2:4-5");
    check(t, "eeeeee", "0:0-6"); /* over max_input_chars_per_word */
    check(t, "eex", "0:0-3");    /* all of it, not only the rest */
    check(t, "abb", "14:0-2 9:2-3");
    mdl_tok_free(&t);
}

/* Blocks of a long text must not show: same result as word by word. */
static void long_texts_in_blocks(void **state)
{
    const struct mdl_tok_flags f = {.offsets = true};
    struct mdl_tok *t = make("");
    struct mdl_ids v = {0};
    size_t n = 0;
    static char text[40000];

    while (n + 16 < sizeof(text)) { /* words of 1 to 7 letters, one accent in each */
        size_t len = 1 + n % 7;
        for (size_t i = 0; i < len; i++)
            text[n++] = 'e';
        text[n++] = '\xCC';
        text[n++] = '\x81';
        text[n++] = ' ';
    }
    assert_int_equal(mdl_tok_encode(t, text, n, &f, &v, NULL), RC_OK);
    size_t k = 0, cp = 0;
    for (size_t i = 0; i < n;) {
        size_t len = strspn(text + i, "e");
        for (size_t j = 0; j < (len > 5 ? 1 : len); j++, k++) {
            assert_int_equal(v.ids[k], len > 5 ? 0 : j ? 2 : 1);
            assert_int_equal(v.offsets[2 * k], cp + j);
            assert_int_equal(v.offsets[2 * k + 1], len > 5 ? cp + len : cp + j + 1);
        }
        i += len + 3;
        cp += len + 2;
    }
    assert_int_equal(k, v.n);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

static void decoding_spaces_and_clean_up(void **state)
{
    struct mdl_tok *t = make("");
    static const struct {
        int32_t ids[4];
        size_t n;
        const char *want;
    } rows[] = {
        {{8, 9, 10}, 3, "ab."},   {{9, 8}, 2, "##b a"},     {{8, 11}, 2, "an't"},
        {{8, 12, 8}, 3, "a ' a"}, {{10, 10, 8}, 3, ".. a"}, {{0, 8}, 2, "[UNK] a"},
    };
    struct mdl_detok d;
    char *s = NULL, part[MDL_PIECE_MAX + 8];
    size_t n;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char all[64] = "";
        assert_int_equal(mdl_tok_decode(t, rows[i].ids, rows[i].n, false, &s, &n, NULL), RC_OK);
        assert_string_equal(s, rows[i].want);
        free(s);
        mdl_detok_init(&d, t, false);
        for (size_t k = 0; k < rows[i].n; k++) {
            n = mdl_detok_push(&d, rows[i].ids[k], part, sizeof(part));
            strncat(all, part, n);
        }
        assert_string_equal(all, rows[i].want);
    }
    mdl_tok_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lower_case_and_accents),       cmocka_unit_test(words_and_what_is_dropped),
        cmocka_unit_test(words_that_cannot_be_covered), cmocka_unit_test(long_texts_in_blocks),
        cmocka_unit_test(decoding_spaces_and_clean_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
