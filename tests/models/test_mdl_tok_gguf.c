/* test_mdl_tok_gguf.c - tokenizers from GGUF metadata: joins by score ("llama")
 * and by merges ("gemma4", "gpt2"), piece types, options, and files that are refused. */
#include "mdl_file.h"
#include "mdl_tok.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

#define SP "\xE2\x96\x81"

static const struct {
    const char *s;
    float score;
    uint32_t type;
} pieces[] = {
    {"<pad>", 0, 3},   {"<eos>", 0, 3}, {"<bos>", 0, 3}, {"<unk>", 0, 2}, {"<tag>", 0, 4},
    {"a", -50, 1},     {"b", -51, 1},   {"c", -52, 1},   {SP, -53, 1},    {"ab", -1, 1},
    {"bc", -1, 1},     {"abc", -9, 1},  {SP "a", -2, 1}, {"\n", -60, 1},  {"\n\n", -8, 1},
    {"\n\n\n", -7, 1}, {"<", -61, 1},   {">", -62, 1},   {"o", -63, 1},   {"s", -64, 1},
    {"<b", -3, 1},     {"os", -3, 1},   {"os>", -3, 1},  {"cc", -5, 1},
};
enum { N = sizeof(pieces) / sizeof(pieces[0]) };

struct opts {
    const char *model;
    int prefix, bos, eos; /* -1: key absent */
    uint32_t bos_id;
    const char *merges; /* split at '|' */
    size_t n_scores, n_types;
    uint32_t type_of_a;
    int no_bytes;
    const char *pre; /* NULL: key absent */
};

static const struct opts llama = {"llama", 0, 1, 0, 2, NULL, N, N, 1, 0};
static const struct opts gemma4 = {
    "gemma4", 0, 1, 0, 2, "a b|b c|ab c|" SP " a|\n \n|< b|o s|os >|<b os>", N, N, 1, 0};

/* pieces <0xXX> mean nothing here */
static const struct opts gpt2 = {"gpt2", -1, -1, -1, 2, "a b|b c|ab c", N, N, 1, 0, "roberta-bpe"};

static enum rc make(const struct opts *o, struct mdl_tok **t, struct rc_err *err)
{
    size_t n_bytes = o->no_bytes ? 0 : 256, n_keys = 5, n_merges = 0;
    struct mdl_file *f = NULL;
    struct out out = {0};
    char s[64];

    n_keys += (o->pre != NULL) + (o->prefix >= 0) + (o->bos >= 0) + (o->eos >= 0) +
              (o->merges != NULL) + 1;
    gguf_head(&out, 3, 0, n_keys);
    kv_str(&out, "tokenizer.ggml.model", o->model);
    if (o->pre)
        kv_str(&out, "tokenizer.ggml.pre", o->pre);
    kv_arr(&out, "tokenizer.ggml.tokens", 8, N + n_bytes);
    for (size_t i = 0; i < N; i++)
        put_str(&out, pieces[i].s);
    for (size_t i = 0; i < n_bytes; i++) {
        snprintf(s, sizeof(s), "<0x%02X>", (unsigned)i);
        put_str(&out, s);
    }
    kv_arr(&out, "tokenizer.ggml.scores", 6, o->n_scores + n_bytes);
    for (size_t i = 0; i < o->n_scores + n_bytes; i++) {
        float v = i < N ? pieces[i].score : -1000;
        put(&out, &v, 4);
    }
    kv_arr(&out, "tokenizer.ggml.token_type", 5, o->n_types + n_bytes);
    for (size_t i = 0; i < o->n_types + n_bytes; i++)
        put32(&out, i == 5 ? o->type_of_a : i < N ? pieces[i].type : 6);
    if (o->prefix >= 0)
        kv_bool(&out, "tokenizer.ggml.add_space_prefix", o->prefix);
    if (o->bos >= 0)
        kv_bool(&out, "tokenizer.ggml.add_bos_token", o->bos);
    if (o->eos >= 0)
        kv_bool(&out, "tokenizer.ggml.add_eos_token", o->eos);
    kv_u32(&out, "tokenizer.ggml.bos_token_id", o->bos_id);
    kv_u32(&out, "tokenizer.ggml.eos_token_id", 1);
    if (o->merges) {
        for (const char *p = o->merges; *p; p += strcspn(p, "|") + (p[strcspn(p, "|")] == '|'))
            n_merges++;
        kv_arr(&out, "tokenizer.ggml.merges", 8, n_merges);
        for (const char *p = o->merges; *p; p += strcspn(p, "|") + (p[strcspn(p, "|")] == '|')) {
            snprintf(s, sizeof(s), "%.*s", (int)strcspn(p, "|"), p);
            put_str(&out, s);
        }
    }
    assert_int_equal(mdl_gguf_parse(&f, out.p, out.n, err), RC_OK);
    *t = NULL;
    enum rc rc = mdl_tok_from_gguf(t, f, err);
    mdl_file_close(&f); /* the tokenizer keeps nothing of the file */
    memset(out.p, 0xEE, out.n);
    free(out.p);
    return rc;
}

static void check(const struct opts *o, const char *text, struct mdl_tok_flags flags,
                  const char *want)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t;
    struct mdl_ids v = {0};
    char line[512] = "";

    if (make(o, &t, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mdl_tok_encode(t, text, strlen(text), &flags, &v, &err), RC_OK);
    for (size_t i = 0; i < v.n; i++)
        snprintf(line + strlen(line), 16, i ? " %d" : "%d", v.ids[i]);
    if (strcmp(line, want) != 0)
        fail_msg("%s '%s': %s, expected %s", o->model, text, line, want);
    mdl_ids_deinit(&v);
    mdl_tok_free(&t);
}

static const struct mdl_tok_flags none, parse = {.parse_special = true},
                                        special = {.add_special = true};

static void joins_by_score(void **state)
{
    check(&llama, "abc", none, "11"); /* ab and bc tie: left first; then abc */
    check(&llama, "bcab", none, "10 9");
    check(&llama, "bcc", none, "10 7"); /* bc (-1) before cc (-5) */
    check(&llama, "a a", none, "5 12");
    check(&llama, "\n\n\n\n", none, "15 13"); /* the longer run has the better score once there */
    check(&llama, "a\xC3\xA9", none, "5 219 193"); /* bytes: 24 + value */
    check(&llama, "abc", special, "2 11");
    struct opts o = llama;
    o.eos = 1;
    check(&o, "abc", special, "2 11 1");
    o.bos = 0;
    check(&o, "abc", special, "11 1");
    o.bos = o.eos = -1; /* absent: bos yes, eos no */
    check(&o, "abc", special, "2 11");
}

static void joins_by_merges(void **state)
{
    check(&gemma4, "abc", none, "11");
    check(&gemma4, "bcc", none, "10 7");       /* no merge makes cc */
    check(&gemma4, "\n\n\n", none, "15");      /* a stretch of newlines is looked up whole */
    check(&gemma4, "\n\n\n\n", none, "14 14"); /* else merged: no merge makes three */
    check(&gemma4, "a\n\nb", none, "5 14 6");
    check(&gemma4, "a a", special, "2 5 12");
    check(&gemma4, "\xC3\xA9", none, "219 193");
}

static void control_and_user_pieces(void **state)
{
    const struct opts *both[] = {&llama, &gemma4};

    for (int i = 0; i < 2; i++) {
        check(both[i], "a<bos>b", parse, "5 2 6");
        check(both[i], "a<tag>b", parse, "5 4 6");
        check(both[i], "a<tag>b", none, "5 4 6"); /* user defined: always a piece */
        /* <b + os> would spell <bos>: text must not become it */
        check(both[i], "a<bos>b", none, "5 20 22 6");
    }
    check(&llama, "<0x41>", none, "16 72 144 76 73 17"); /* bytes of 0 x 4 1: text stays text */
}

static void a_space_in_front(void **state)
{
    struct opts o = llama;
    struct mdl_tok *t;
    char *s = NULL;
    size_t n;

    o.prefix = 1;
    check(&o, "ab", none, "8 9"); /* a+b (-1) goes before space+a (-2) */
    check(&o, "a", none, "12");
    check(&o, "", none, "");
    check(&o, "a<bos>a", parse, "12 2 12"); /* behind a token again */
    o.prefix = -1;                          /* absent: yes for "llama" */
    check(&o, "a", none, "12");
    assert_int_equal(make(&o, &t, NULL), RC_OK);
    const int32_t ids[2] = {12, 12};
    assert_int_equal(mdl_tok_decode(t, ids, 2, false, &s, &n, NULL), RC_OK);
    assert_string_equal(s, "a a"); /* the one in front goes away again */
    free(s);
    mdl_tok_free(&t);
    o = gemma4;
    o.prefix = -1;
    check(&o, "a", none, "5");
}

static void files_that_are_refused(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t;
    struct opts o = llama;

    o.model = "rwkv";
    assert_int_equal(make(&o, &t, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "'rwkv'"));
    o.model = "bert"; /* <unk> is not BERT's, and no key names it */
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "no [UNK]"));
    o = llama;
    o.n_scores = N - 1;
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "scores has 279 entries, expected 280"));
    o = llama;
    o.n_types = N + 1;
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "token_type"));
    o = llama;
    o.type_of_a = 7;
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "token 5"));
    o = llama;
    o.bos_id = 100000;
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "bos_token_id is 100000"));
    o = gemma4;
    o.merges = NULL;
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "merges"));
    o.merges = "a b|a c";
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "merge 1"));
    o.merges = "ab";
    assert_int_equal(make(&o, &t, &err), RC_FORMAT);
    assert_null(t);
}

/* Bytes join by merges, within the words of GPT-2's expression; framed unless the file says no. */
static void byte_level_pieces(void **state)
{
    const struct mdl_tok_flags framed = {.add_special = true}, bare = {0};
    struct opts o = gpt2;

    check(&o, "abc", bare, "11");
    check(&o, "abcab", bare, "11 9");
    check(&o, "cab", bare, "7 9");
    check(&o, "ab", framed, "2 9 1");
    o.pre = "modern-bert";
    check(&o, "ab", framed, "2 9 1");
    o.bos = o.eos = 0;
    check(&o, "ab", framed, "9");
}

static void byte_level_files_that_are_refused(void **state)
{
    static const struct {
        const char *pre, *merges;
        enum rc rc;
        const char *says;
    } rows[] = {
        {NULL, "a b", RC_UNSUPPORTED, "'gpt2' split as ''"},
        {"qwen2", "a b", RC_UNSUPPORTED, "'qwen2'"},
        {"roberta-bp", "a b", RC_UNSUPPORTED, "'roberta-bp'"},
        {"roberta-bpe", NULL, RC_FORMAT, "merges is absent"},
        {"modern-bert", "a b|a c", RC_FORMAT, "merge 1"},
    };
    struct mdl_tok *t = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct opts o = gpt2;

        o.pre = rows[i].pre;
        o.merges = rows[i].merges;
        if (make(&o, &t, &err) != rows[i].rc || !strstr(err.msg, rows[i].says))
            fail_msg("row %zu: %s", i, err.msg);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_by_score),
        cmocka_unit_test(joins_by_merges),
        cmocka_unit_test(control_and_user_pieces),
        cmocka_unit_test(a_space_in_front),
        cmocka_unit_test(files_that_are_refused),
        cmocka_unit_test(byte_level_pieces),
        cmocka_unit_test(byte_level_files_that_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
