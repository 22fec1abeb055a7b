/* test_mdl_tok_json.c - tokenizer.json files that are refused, by name. */
#include "mdl_tok.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

static const char sound[] =
    "{\"truncation\":{\"max_length\":1},\"padding\":{\"strategy\":{\"Fixed\":8}},"
    "\"added_tokens\":[{\"id\":0,\"content\":\"[UNK]\",\"special\":true,\"normalized\":false},"
    "{\"id\":1,\"content\":\"[CLS]\",\"special\":true,\"normalized\":false},"
    "{\"id\":2,\"content\":\"[SEP]\",\"special\":true,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"BertNormalizer\"}]},"
    "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]},"
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
    "\"model\":{\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
    "\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"a\":3,\"##b\":4,\"b\":5,\".\":6,\"'\":7,\"##"
    "s\":8,"
    "\"s\":9,\"n\":10}}}";

static void a_wordpiece_file_loads(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    struct mdl_ids v = {0};
    const struct mdl_tok_flags f = {.add_special = true};
    char *s = NULL;
    size_t n;

    if (mdl_tok_from_json(&t, sound, sizeof(sound) - 1, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mdl_tok_encode(t, "AbB. x", 6, &f, &v, &err), RC_OK);
    const int32_t want[] = {1, 3, 4, 4, 6, 0, 2}; /* no truncation, no padding */
    assert_int_equal(v.n, 7);
    assert_memory_equal(v.ids, want, sizeof(want));
    assert_int_equal(mdl_tok_decode(t, v.ids, v.n, true, &s, &n, &err), RC_OK);
    assert_string_equal(s, "abb.");
    free(s);
    assert_int_equal(mdl_tok_bos(t), 1);
    assert_int_equal(mdl_tok_eos(t), 2);
    assert_true(mdl_tok_is_special(t, 0));
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

/* "s", "##s", "##s" and then no "##a": three pieces that come to one unknown token. */
static void a_bound_counts_what_a_word_comes_to(void **state)
{
    struct mdl_tok_flags f = {.add_special = true, .max_tokens = 3};
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    struct mdl_ids v = {0};

    assert_int_equal(mdl_tok_from_json(&t, sound, sizeof(sound) - 1, &err), RC_OK);
    assert_int_equal(mdl_tok_encode(t, "sssa", 4, &f, &v, &err), RC_OK);
    assert_true(v.n == 3 && v.ids[1] == 0);
    v.n = 0;
    assert_int_equal(mdl_tok_encode(t, "sss", 3, &f, &v, &err), RC_TOO_LARGE);
    assert_int_equal(err.n, 4);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

/* Sets the value at a path of keys and indices ("model/vocab/a") in the sound
 * file to a JSON text, or removes it ("-"). */
static char *changed(const char *path, const char *value)
{
    json_t *root = json_loads(sound, 0, NULL), *at = root;
    json_t *new = strcmp(value, "-") ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char key[64];

    for (;;) {
        size_t n = strcspn(path, "/");
        snprintf(key, sizeof(key), "%.*s", (int)n, path);
        path += n + (path[n] != '\0');
        if (*path == '\0')
            break;
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        assert_non_null(at);
    }
    if (!new)
        json_object_del(at, key);
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), new);
    else
        json_object_set_new(at, key, new);
    char *s = json_dumps(root, 0);
    json_decref(root);
    return s;
}

static void what_is_not_run_is_refused_by_name(void **state)
{
    static const struct {
        const char *path, *value;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"model/type", "\"Unigram\"", RC_FORMAT, "vocab is not a list"},
        {"model/type", "\"WordLevel\"", RC_UNSUPPORTED, "model 'WordLevel'"},
        {"normalizer", "{\"type\":\"Nmt\"}", RC_UNSUPPORTED, "normalizer 'Nmt'"},
        {"normalizer/normalizers/0", "{\"type\":\"Precompiled\"}", RC_FORMAT, "no string"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA!\"}", RC_FORMAT,
         "not base64"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAAAAA=\"}",
         RC_FORMAT, "array has 8"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/\"}",
         RC_FORMAT, "no UTF-8 at byte 0"},
        {"normalizer", "{\"type\":\"Prepend\"}", RC_UNSUPPORTED, "'Prepend'"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"b\"}",
         RC_UNSUPPORTED, "Replace pattern 'a+'"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"}",
         RC_UNSUPPORTED, "1 to 64 bytes"},
        {"normalizer",
         "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":[{"
         "\"type\":"
         "\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
         "\"Sequence\","
         "\"normalizers\":[]}]}]}]}]}",
         RC_FORMAT, "nested too deeply"},
        {"pre_tokenizer", "{\"type\":\"Digits\"}", RC_UNSUPPORTED, "pre_tokenizer 'Digits'"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a|b\"},\"behavior\":\"Isolated\"}",
         RC_UNSUPPORTED, "Split pattern 'a|b'"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Alone\"}",
         RC_UNSUPPORTED, "'Alone'"},
        {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Gone\"}", RC_UNSUPPORTED,
         "'Gone'"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", RC_UNSUPPORTED,
         "one character"},
        {"pre_tokenizer",
         "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}",
         RC_UNSUPPORTED, "'last'"},
        {"post_processor", "{\"type\":\"RobertaProcessing\"}", RC_FORMAT, "unknown token"},
        {"post_processor", "{\"type\":\"Nothing\"}", RC_UNSUPPORTED, "'Nothing'"},
        /* 2^32 + 2 is no id, though its lower half is one */
        {"post_processor",
         "{\"type\":\"BertProcessing\",\"cls\":[\"[CLS]\",4294967298],\"sep\":[\"[SEP]\",3]}",
         RC_FORMAT, "an unknown token"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", RC_FORMAT,
         "does not stand in 'single'"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
         "\"Sequence\":{}}]}",
         RC_FORMAT, "part 0 has no ids"},
        {"post_processor/cls/1", "99", RC_FORMAT, "unknown token"},
        {"decoder", "{\"type\":\"Metaspace\"}", RC_UNSUPPORTED, "decoder 'Metaspace'"},
        {"model", "-", RC_FORMAT, "no 'model'"},
        {"model/vocab", "[]", RC_FORMAT, "vocab is no list of pieces"},
        {"model/vocab", "7", RC_FORMAT, "vocab is not an object"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[[\"[UNK]\",0],[\"[CLS]\",0],[\"[SEP]\"]]}",
         RC_FORMAT, "score of piece 2"},
        {"model",
         "{\"type\":\"Unigram\",\"unk_id\":3,\"vocab\":[[\"[UNK]\",0],[\"[CLS]\",0],[\"[SEP]\",0]]"
         "}",
         RC_FORMAT, "unk_id is 3"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[[1,0]]}", RC_FORMAT, "entry 0 is no piece"},
        {"model/vocab/a", "-1", RC_FORMAT, "id -1"},
        {"model/vocab/a", "4194304", RC_FORMAT, "id 4194304"},
        {"model/vocab/a", "5", RC_FORMAT, "two pieces"},
        {"model/vocab/a", "\"3\"", RC_FORMAT, "without a whole id"},
        {"model/unk_token", "\"<nope>\"", RC_FORMAT, "unk_token"},
        {"model/max_input_chars_per_word", "0", RC_FORMAT, "1 to 10000"},
        {"added_tokens/0/id", "\"x\"", RC_FORMAT, "added token 0"},
        {"added_tokens/0/id", "20", RC_FORMAT, "another id elsewhere"},
        {"added_tokens/0/content", "\"zz\"", RC_FORMAT, "two pieces"},
        {"model",
         "{\"type\":\"BPE\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2},\"merges\":[\"a b\"]}",
         RC_FORMAT, "merge 0"},
        {"model",
         "{\"type\":\"BPE\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2},\"merges\":[[\"[CLS]\"]"
         "]}",
         RC_FORMAT, "merge 0"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{},\"merges\":{}}", RC_FORMAT, "merges"},
        {"model", "{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}", RC_UNSUPPORTED,
         "dropout"},
        {"model",
         "{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"byte_fallback\":true,\"vocab\":{},"
         "\"merges\":[]}",
         RC_UNSUPPORTED, "beside end_of_word_suffix"},
        {"model",
         "{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",\"vocab\":{},\"merges\":[]}",
         RC_UNSUPPORTED, "continuing_subword_prefix"},
        {"post_processor", "{\"type\":\"Sequence\"}", RC_FORMAT, "without 'processors'"},
        {"post_processor",
         "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"BertProcessing\",\"cls\":[\"a\",1],"
         "\"sep\":"
         "[\"b\",2]},{\"type\":\"BertProcessing\",\"cls\":[\"a\",1],\"sep\":[\"b\",2]}]}",
         RC_UNSUPPORTED, "behind a template"},
        {"post_processor",
         "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"ByteLevel\"}]"
         "}",
         RC_UNSUPPORTED, "trimmed twice"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_tok *t = NULL;
        char *json = changed(rows[i].path, rows[i].value);
        enum rc rc = mdl_tok_from_json(&t, json, strlen(json), &err);
        if (rc != rows[i].rc || !strstr(err.msg, rows[i].says))
            fail_msg("%s = %s: %s '%s', expected %s '%s'", rows[i].path, rows[i].value, rc_name(rc),
                     err.msg, rc_name(rows[i].rc), rows[i].says);
        assert_null(t);
        free(json);
    }
}

static void text_that_is_no_json(void **state)
{
    static const char *const texts[] = {"", "{", "[]", "7", "{\"model\":", "\xFF"};
    struct mdl_tok *t = NULL;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(mdl_tok_from_json(&t, texts[i], strlen(texts[i]), NULL), RC_FORMAT);
    for (size_t n = 0; n < sizeof(sound) - 1; n += 7)
        assert_int_equal(mdl_tok_from_json(&t, sound, n, NULL), RC_FORMAT);
    assert_null(t);
}

static void a_piece_that_is_too_long(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    char json[4096], piece[1100];

    memset(piece, 'x', sizeof(piece));
    for (int over = 0; over < 2; over++) {
        int n = snprintf(json, sizeof(json),
                         "{\"model\":{\"unk_token\":\"u\",\"continuing_subword_prefix\":\"\","
                         "\"vocab\":{\"u\":0,\"%.*s\":1}}}",
                         MDL_PIECE_MAX - 8 + over, piece);
        enum rc rc = mdl_tok_from_json(&t, json, (size_t)n, &err);
        assert_int_equal(rc, over ? RC_UNSUPPORTED : RC_OK);
        mdl_tok_free(&t);
    }
    assert_non_null(strstr(err.msg, "1017 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wordpiece_file_loads),
        cmocka_unit_test(a_bound_counts_what_a_word_comes_to),
        cmocka_unit_test(what_is_not_run_is_refused_by_name),
        cmocka_unit_test(text_that_is_no_json),
        cmocka_unit_test(a_piece_that_is_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
