/* test_mdl_tok_golden.c - tokenizers against the recorded answers of the
 * `tokenizers` library (tests/golden/<checkpoint>/cases.json, written by
 * oracles/generate). Every string: ids, plain ids, user-content ids, pieces,
 * offsets, both decodings, and the streaming decoder.
 */
#include "mdl_tok.h"

#include <jansson.h>
#include <nettle/base64.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mdl_build.h"
#include "mdl_file.h"

static json_t *load_json(const char *dir, const char *name, char **text, size_t *n)
{
    char path[512];
    json_error_t je;
    FILE *fp;

    snprintf(path, sizeof(path), TEST_GOLDEN "/%s/%s", dir, name);
    fp = fopen(path, "rb");
    assert_non_null(fp);
    fseek(fp, 0, SEEK_END);
    *n = (size_t)ftell(fp);
    rewind(fp);
    *text = malloc(*n + 1);
    assert_int_equal(fread(*text, 1, *n, fp), *n);
    (*text)[*n] = '\0';
    fclose(fp);
    json_t *j = json_loadb(*text, *n, JSON_ALLOW_NUL, &je);
    assert_non_null(j);
    return j;
}

static struct mdl_tok *load_tok(const char *dir)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    char *text;
    size_t n;

    json_decref(load_json(dir, "tokenizer.json", &text, &n));
    if (mdl_tok_from_json(&t, text, n, &err) != RC_OK)
        fail_msg("%s: %s", dir, err.msg);
    free(text);
    return t;
}

static void check_ids(const char *what, const json_t *want, const struct mdl_ids *got)
{
    char line[2048] = "";

    for (size_t i = 0; i < got->n && strlen(line) < 2000; i++)
        snprintf(line + strlen(line), 16, " %d", got->ids[i]);
    if (json_array_size(want) != got->n)
        fail_msg("%s: %zu ids, expected %zu:%s", what, got->n, json_array_size(want), line);
    for (size_t i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, i)) != got->ids[i])
            fail_msg("%s: id %zu is %d, expected %lld:%s", what, i, got->ids[i],
                     (long long)json_integer_value(json_array_get(want, i)), line);
}

static void check_encode(const struct mdl_tok *t, const json_t *text, struct mdl_tok_flags flags,
                         const json_t *want, struct mdl_ids *v)
{
    struct rc_err err = RC_ERR_INIT;

    v->n = 0;
    assert_int_equal(
        mdl_tok_encode(t, json_string_value(text), json_string_length(text), &flags, v, &err),
        RC_OK);
    check_ids(json_string_value(text), want, v);
}

/* Whole decoding, and the streaming one where runs of bytes are text. */
static void check_decode(const struct mdl_tok *t, const json_t *ids, bool skip, const json_t *want,
                         bool stream)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_ids v = {0};
    struct mdl_detok d;
    char *got = NULL, part[MDL_PIECE_MAX + 8];
    size_t n = 0, at = 0, k;
    json_t *e;
    size_t i;

    json_array_foreach(ids, i, e)
        assert_int_equal(mdl_ids_push(&v, (int32_t)json_integer_value(e), &err), RC_OK);
    assert_int_equal(mdl_tok_decode(t, v.ids, v.n, skip, &got, &n, &err), RC_OK);
    if (n != json_string_length(want) || memcmp(got, json_string_value(want), n) != 0)
        fail_msg("decoded '%s', expected '%s'", got, json_string_value(want));
    mdl_detok_init(&d, t, skip);
    for (i = 0; stream && i <= v.n; i++) {
        k = i < v.n ? mdl_detok_push(&d, v.ids[i], part, sizeof(part))
                    : mdl_detok_flush(&d, part, sizeof(part));
        assert_true(at + k <= n);
        assert_memory_equal(part, got + at, k);
        at += k;
    }
    assert_true(!stream || at == n);
    free(got);
    mdl_ids_deinit(&v);
}

static void encode_and_decode(const char *dir)
{
    struct mdl_tok *t = load_tok(dir);
    struct mdl_ids v = {0};
    char *text;
    size_t n, i, k, n_piece;
    json_t *root = load_json(dir, "cases.json", &text, &n), *e;
    json_t *tok = json_object_get(root, "tokenizer");

    assert_true(json_array_size(json_object_get(tok, "encode")) >= 30);
    json_array_foreach(json_object_get(tok, "encode"), i, e)
    {
        const json_t *s = json_object_get(e, "text");
        const json_t *plain = json_object_get(e, "ids_plain");
        check_encode(t, s, (struct mdl_tok_flags){.parse_special = true, .add_special = true},
                     json_object_get(e, "ids"), &v);
        check_encode(t, s, (struct mdl_tok_flags){0}, json_object_get(e, "ids_no_special_parse"),
                     &v);
        check_encode(t, s, (struct mdl_tok_flags){.parse_special = true}, plain, &v);
        for (k = 0; k < v.n; k++) {
            const json_t *want = json_array_get(json_object_get(e, "tokens"), k);
            const char *p = mdl_tok_piece(t, v.ids[k], &n_piece);
            assert_int_equal(n_piece, json_string_length(want));
            assert_memory_equal(p, json_string_value(want), n_piece);
        }
        check_decode(t, plain, false, json_object_get(e, "decode"), true);
        check_decode(t, plain, true, json_object_get(e, "decode_skip"), true);
    }
    assert_true(json_array_size(json_object_get(tok, "decode")) >= 7);
    json_array_foreach(json_object_get(tok, "decode"), i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        /* a random run of byte pieces may begin well and end badly */
        bool stream = strncmp(name, "random", 6) != 0;
        check_decode(t, json_object_get(e, "ids"), false, json_object_get(e, "decode"), stream);
        check_decode(t, json_object_get(e, "ids"), true, json_object_get(e, "decode_skip"), stream);
    }
    mdl_ids_deinit(&v);
    json_decref(root);
    free(text);
    mdl_tok_free(&t);
}

static void gemma_encode_and_decode(void **state)
{
    encode_and_decode("gemma3_text");
}

static void eg2_encode_and_decode(void **state)
{
    encode_and_decode("embeddinggemma2");
}

static void gemma_bf16_has_the_same_tokenizer(void **state)
{
    struct mdl_tok *a = load_tok("gemma3_text"), *b = load_tok("gemma3_text-bf16");
    size_t n, m;

    assert_int_equal(mdl_tok_vocab(a), mdl_tok_vocab(b));
    for (int32_t id = 0; id < (int32_t)mdl_tok_vocab(a); id++) {
        const char *x = mdl_tok_piece(a, id, &n), *y = mdl_tok_piece(b, id, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
    }
    assert_int_equal(mdl_tok_bos(a), 2);
    assert_int_equal(mdl_tok_eos(a), 1);
    mdl_tok_free(&a);
    mdl_tok_free(&b);
}

static void check_offsets(const char *what, const json_t *want, const struct mdl_ids *v)
{
    for (size_t k = 0; k < v->n; k++) {
        const json_t *off = json_array_get(want, k);
        if (v->offsets[2 * k] != json_integer_value(json_array_get(off, 0)) ||
            v->offsets[2 * k + 1] != json_integer_value(json_array_get(off, 1)))
            fail_msg("%s: token %zu is at %u to %u, expected %lld to %lld", what, k,
                     v->offsets[2 * k], v->offsets[2 * k + 1],
                     (long long)json_integer_value(json_array_get(off, 0)),
                     (long long)json_integer_value(json_array_get(off, 1)));
    }
}

/* Lists `tokenization` and `pairs` of an encoder's cases. */
static void check_cases(struct mdl_tok *t, const char *dir, bool special, size_t n_texts,
                        size_t n_pairs, bool pieces)
{
    struct mdl_tok_flags f = {.parse_special = true, .add_special = special, .offsets = true};
    struct mdl_ids v = {0};
    struct rc_err err = RC_ERR_INIT;
    char *text;
    size_t n, i, k, n_piece;
    json_t *root = load_json(dir, "cases.json", &text, &n), *e;
    bool cut;

    assert_true(json_array_size(json_object_get(root, "tokenization")) >= n_texts);
    json_array_foreach(json_object_get(root, "tokenization"), i, e)
    {
        check_encode(t, json_object_get(e, "text"), f, json_object_get(e, "ids"), &v);
        check_offsets(dir, json_object_get(e, "offsets"), &v);
        for (k = 0; pieces && k < v.n; k++) {
            const json_t *want = json_array_get(json_object_get(e, "tokens"), k);
            const char *p = mdl_tok_piece(t, v.ids[k], &n_piece);
            if (mdl_tok_is_special(t, v.ids[k]))
                continue; /* of an unknown piece the reference shows the text */
            assert_int_equal(n_piece, json_string_length(want));
            assert_memory_equal(p, json_string_value(want), n_piece);
        }
    }
    assert_true(json_array_size(json_object_get(root, "pairs")) >= n_pairs);
    json_array_foreach(json_object_get(root, "pairs"), i, e)
    {
        const json_t *a = json_object_get(e, "a"), *b = json_object_get(e, "b");
        v.n = 0;
        assert_int_equal(mdl_tok_encode_pair(t, json_string_value(a), json_string_length(a),
                                             json_string_value(b), json_string_length(b), &f, false,
                                             &cut, &v, &err),
                         RC_OK);
        check_ids(json_string_value(a), json_object_get(e, "ids"), &v);
        check_offsets(dir, json_object_get(e, "offsets"), &v);
        assert_false(cut);
    }
    json_array_foreach(json_object_get(root, "truncated"), i, e)
    {
        const json_t *a = json_object_get(e, "query"), *b = json_object_get(e, "doc");
        f.max_tokens = (size_t)json_integer_value(json_object_get(e, "max_length"));
        v.n = 0;
        assert_int_equal(mdl_tok_encode_pair(t, json_string_value(a), json_string_length(a),
                                             json_string_value(b), json_string_length(b), &f, true,
                                             &cut, &v, &err),
                         RC_OK);
        check_ids(json_string_value(a), json_object_get(e, "ids"), &v);
        assert_true(cut);
        v.n = 0;
        assert_int_equal(mdl_tok_encode_pair(t, json_string_value(a), json_string_length(a),
                                             json_string_value(b), json_string_length(b), &f, false,
                                             &cut, &v, &err),
                         RC_TOO_LARGE);
        assert_int_equal(v.n, 0);
        assert_true(err.n > f.max_tokens && err.limit == f.max_tokens);
    }
    mdl_ids_deinit(&v);
    json_decref(root);
    free(text);
    mdl_tok_free(&t);
}

static void encode_with_offsets(const char *dir, bool special, size_t n_texts, size_t n_pairs)
{
    check_cases(load_tok(dir), dir, special, n_texts, n_pairs, true);
}

/* ------------------------------------------------- the same tokenizers out of GGUF metadata */

struct gguf_pieces {
    const char *s[4096];
    double score[4096];
    uint32_t type[4096];
    size_t n;
};

static void read_pieces(const json_t *root, struct gguf_pieces *g)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *e;
    const char *s;
    json_t *id;
    size_t i;

    memset(g, 0, sizeof(*g));
    json_object_foreach((json_t *)vocab, s, id) g->s[json_integer_value(id)] = s;
    json_array_foreach(vocab, i, e)
    {
        g->s[i] = json_string_value(json_array_get(e, 0));
        g->score[i] = json_number_value(json_array_get(e, 1));
    }
    g->n = json_object_size(vocab) + json_array_size(vocab);
    for (i = 0; i < g->n; i++)
        g->type[i] = 1;
    json_array_foreach(json_object_get(root, "added_tokens"), i, e)
    {
        s = json_string_value(json_object_get(e, "content"));
        size_t at = (size_t)json_integer_value(json_object_get(e, "id"));
        g->s[at] = s;
        g->type[at] = strcmp(s, "<unk>") == 0 ? 2 : 3;
        g->n = at >= g->n ? at + 1 : g->n;
    }
    assert_true(g->n < 4000);
    g->s[g->n] = "[PAD1]"; /* filling, as converters write it */
    g->score[g->n] = -10000;
    g->type[g->n++] = 5;
}

/* "bert": ##x is written x, other pieces with U+2581 in front, [x] as it is. */
static void put_piece(struct out *out, const char *s, bool bert)
{
    char buf[256];
    size_t n = strlen(s);

    if (bert && strncmp(s, "##", 2) == 0)
        s += 2;
    else if (bert && !(s[0] == '[' && s[n - 1] == ']' && n > 1)) {
        snprintf(buf, sizeof(buf), "\xE2\x96\x81%s", s);
        s = buf;
    }
    put_str(out, s);
}

static struct mdl_tok *gguf_tok(const char *dir, const char *model)
{
    static struct gguf_pieces g;
    const bool bert = strcmp(model, "bert") == 0;
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f = NULL;
    struct mdl_tok *t = NULL;
    struct out out = {0};
    char *text;
    size_t n, n_map = 0;
    static uint8_t map[1 << 19];
    json_t *root = load_json(dir, "tokenizer.json", &text, &n);
    const json_t *b64 =
        json_object_get(json_object_get(root, "normalizer"), "precompiled_charsmap");

    read_pieces(root, &g);
    gguf_head(&out, 3, 0, bert ? 6 : 11);
    kv_str(&out, "tokenizer.ggml.model", model);
    kv_arr(&out, "tokenizer.ggml.tokens", 8, g.n);
    for (size_t i = 0; i < g.n; i++)
        put_piece(&out, g.s[i], bert);
    kv_arr(&out, "tokenizer.ggml.token_type", 5, g.n);
    for (size_t i = 0; i < g.n; i++)
        put32(&out, g.type[i]);
    if (bert) {
        kv_u32(&out, "tokenizer.ggml.cls_token_id", 2);
        kv_u32(&out, "tokenizer.ggml.seperator_token_id", 3);
        kv_u32(&out, "tokenizer.ggml.unknown_token_id", 1);
    } else {
        struct base64_decode_ctx ctx;
        base64_decode_init(&ctx);
        n_map = sizeof(map);
        assert_true(BASE64_DECODE_LENGTH(json_string_length(b64)) <= sizeof(map));
        assert_int_equal(base64_decode_update(&ctx, &n_map, map, json_string_length(b64),
                                              json_string_value(b64)),
                         1);
        kv_arr(&out, "tokenizer.ggml.scores", 6, g.n);
        for (size_t i = 0; i < g.n; i++) {
            float x = (float)g.score[i];
            put(&out, &x, 4);
        }
        kv_arr(&out, "tokenizer.ggml.precompiled_charsmap", 0, n_map);
        put(&out, map, n_map);
        kv_u32(&out, "tokenizer.ggml.bos_token_id", 0);
        kv_u32(&out, "tokenizer.ggml.eos_token_id", 2);
        kv_u32(&out, "tokenizer.ggml.unknown_token_id", 3);
        kv_u32(&out, "tokenizer.ggml.mask_token_id", 983);
        kv_bool(&out, "tokenizer.ggml.add_bos_token", 1);
        kv_bool(&out, "tokenizer.ggml.add_eos_token", 1);
    }
    if (mdl_gguf_parse(&f, out.p, out.n, &err) != RC_OK || mdl_tok_from_gguf(&t, f, &err) != RC_OK)
        fail_msg("%s as GGUF: %s", dir, err.msg);
    mdl_file_close(&f);
    free(out.p);
    json_decref(root);
    free(text);
    return t;
}

static void gguf_bert_is_the_same(void **state)
{
    struct mdl_tok *a = load_tok("minilm"), *b = gguf_tok("minilm", "bert");
    const int32_t ids[] = {2, 1002, 636, 12, 780, 390, 3};
    char *x, *y;
    size_t n, m;

    for (int skip = 0; skip < 2; skip++) {
        assert_int_equal(mdl_tok_decode(a, ids, 7, skip, &x, &n, NULL), RC_OK);
        assert_int_equal(mdl_tok_decode(b, ids, 7, skip, &y, &m, NULL), RC_OK);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
    }
    mdl_tok_free(&a);
    check_cases(b, "minilm", true, 30, 7, false);
}

static void gguf_t5_is_the_same(void **state)
{
    check_cases(gguf_tok("bge-m3", "t5"), "bge-m3", true, 30, 7, true);
}

static void minilm_encode_with_offsets(void **state)
{
    encode_with_offsets("minilm", true, 30, 7);
}

static void bge_m3_encode_with_offsets(void **state)
{
    encode_with_offsets("bge-m3", true, 30, 7);
}

static void reranker_encode_with_offsets(void **state)
{
    encode_with_offsets("reranker", true, 30, 7);
}

static void gliner2_encode_with_offsets(void **state)
{
    encode_with_offsets("gliner2", false, 30, 0);
}

static void clip_encode_with_offsets(void **state)
{
    encode_with_offsets("clip", true, 30, 0);
}

static void clap_encode_with_offsets(void **state)
{
    encode_with_offsets("clap-fused", true, 30, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_encode_and_decode),
        cmocka_unit_test(eg2_encode_and_decode),
        cmocka_unit_test(gemma_bf16_has_the_same_tokenizer),
        cmocka_unit_test(minilm_encode_with_offsets),
        cmocka_unit_test(gguf_bert_is_the_same),
        cmocka_unit_test(gguf_t5_is_the_same),
        cmocka_unit_test(bge_m3_encode_with_offsets),
        cmocka_unit_test(reranker_encode_with_offsets),
        cmocka_unit_test(gliner2_encode_with_offsets),
        cmocka_unit_test(clip_encode_with_offsets),
        cmocka_unit_test(clap_encode_with_offsets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
