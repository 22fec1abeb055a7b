/* ModernBERT from GGUF: the numbers of the reference from an F32 file, a reranker, Q8_0, what is
 * refused. And byte-level BPE from GGUF, RoBERTa's too: the ids of the tokenizers' own files. */
#include "mdl_test.h"
#include "mdl_xlmr.h"

#define MODERN_DIR TEST_GOLDEN "/modernbert"
#define CROSS_DIR TEST_GOLDEN "/cross-modernbert"
#define BPE_MODERN_DIR TEST_GOLDEN "/byte_bpe/modernbert"
#define BPE_ROBERTA_DIR TEST_GOLDEN "/byte_bpe/roberta"
#define TOL test_tol(1e-5, 6e-3, 1e-2)
#define TOL_QUANT 0.05 /* a unit vector of 32 values; activations are rounded to 8 bits too */
#define DIM 32

static struct be_ctx *be;

static struct mdl *open_gguf(const char *from, const char *name, const char *const *args)
{
    struct mdl_opts o = small_opts(BE_F32);
    char path[512];

    gguf_make(path, sizeof(path), from, name, args);
    return open_model(path, be, &o);
}

static void refused(const char *from, const char *name, const char *const *args, enum rc rc,
                    const char *what)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char path[512];
    int fd;

    gguf_make(path, sizeof(path), from, name, args);
    fd = open_root(path);
    assert_int_equal(mdl_open(&m, fd, be, &o, &e), rc);
    close(fd);
    assert_string_equal(e.what, what);
}

/* Field of each case; unit: vectors are divided by their length first, as GGUF means it. */
static void check(struct mdl *m, const char *from, const char *field, bool unit, double tol)
{
    json_t *j = load_json(from, "cases.json"), *c;
    float out[DIM];
    size_t i, k;

    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *want = json_object_get(c, field);
        uint32_t offsets[2] = {0, 0};
        int32_t *ids = ids_of(json_object_get(c, "ids"), &offsets[1]);
        double len = 0;

        assert_non_null(want);
        need_ok(mdl_encode(m, 1, ids, offsets, out, err));
        for (k = 0; unit && k < json_array_size(want); k++)
            len += pow(json_number_value(json_array_get(want, k)), 2);
        for (k = 0; k < mdl_encode_dim(m); k++) {
            double w = json_number_value(json_is_array(want) ? json_array_get(want, k) : want);

            w /= unit ? sqrt(len) : 1;
            if (!(fabs(out[k] - w) <= tol))
                fail_msg("%s of case %zu, value %zu: %.8f, expected %.8f", field, i, k, out[k], w);
        }
        free(ids);
    }
    assert_true(i > 0);
    json_decref(j);
}

static void vectors_agree(void **state)
{
    static const char *const mean[] = {"--tokenizer", BPE_MODERN_DIR, NULL};
    static const char *const cls[] = {"--tokenizer", BPE_MODERN_DIR, "--pooling", "cls", NULL};
    static const char *const words[] = {"--tokenizer", BERT_DIR, NULL};
    struct mdl *m = open_gguf(MODERN_DIR, "modern.gguf", mean);
    const struct mdl_info *info = mdl_info_get(m);

    assert_string_equal(info->family, "modernbert");
    assert_string_equal(info->arch, "modern-bert");
    assert_true(info->can_embed && !info->can_rerank);
    assert_int_equal(info->max_input_tokens, 64);
    assert_int_equal(info->embed_dim, DIM);
    check(m, MODERN_DIR, "mean", true, TOL);
    mdl_close(&m);
    m = open_gguf(MODERN_DIR, "modern-cls.gguf", cls);
    check(m, MODERN_DIR, "cls", true, TOL);
    mdl_close(&m);
    m = open_gguf(MODERN_DIR, "modern-words.gguf", words);
    check(m, MODERN_DIR, "mean", true, TOL);
    mdl_close(&m);
}

static void a_reranker_agrees(void **state)
{
    static const char *const plain[] = {"--tokenizer", BPE_MODERN_DIR, NULL};
    static const char *const flat[] = {"--tokenizer", BPE_MODERN_DIR, "--flat", NULL};
    struct mdl *m = open_gguf(CROSS_DIR, "modern-cross.gguf", plain);

    assert_true(mdl_info_get(m)->can_rerank && !mdl_info_get(m)->can_embed);
    check(m, CROSS_DIR, "logit", false, TOL);
    mdl_close(&m);
    m = open_gguf(CROSS_DIR, "modern-cross-flat.gguf", flat);
    check(m, CROSS_DIR, "logit", false, TOL);
    mdl_close(&m);
}

/* Rows of 32 make one block; those of 48 stay floats. */
static void blocks_are_near(void **state)
{
    static const char *const q8[] = {"--tokenizer", BPE_MODERN_DIR, "--type", "Q8_0", NULL};
    struct mdl *m = open_gguf(MODERN_DIR, "modern-q8.gguf", q8);

    check(m, MODERN_DIR, "mean", true, TOL_QUANT);
    mdl_close(&m);
}

static void what_is_missing_is_named(void **state)
{
    static const struct {
        const char *file, *drop;
    } rows[] = {{"modern-no-norm.gguf", "output_norm.weight"},
                {"modern-no-qkv.gguf", "blk.1.attn_qkv.weight"},
                {"modern-no-embd.gguf", "token_embd.weight"}};
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const char *const args[] = {"--tokenizer", BPE_MODERN_DIR, "--drop", rows[i].drop, NULL};

        refused(MODERN_DIR, rows[i].file, args, RC_WEIGHT_ABSENT, rows[i].drop);
    }
}

/* ------------------------------------------------------------------- tokenizers */

static void same(const char *what, const struct mdl_ids *got, const json_t *want, const char *text)
{
    uint32_t n;
    int32_t *ids = ids_of(want, &n);

    if (got->n != n || memcmp(got->ids, ids, n * sizeof(*ids)) != 0)
        fail_msg("%s of '%s': %zu ids, expected other %u", what, text, got->n, n);
    free(ids);
}

static void check_ids(const struct mdl_tok *t, const char *from)
{
    const struct mdl_tok_flags framed = {.add_special = true, .parse_special = true},
                               bare = {.parse_special = true};
    json_t *j = load_json(from, "cases.json"), *c;
    struct mdl_ids ids = {0};
    size_t i;

    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *v = json_object_get(c, "text");
        const char *text = json_string_value(v);
        size_t n = json_string_length(v);

        ids.n = 0;
        need_ok(mdl_tok_encode(t, text, n, &framed, &ids, err));
        same("framed", &ids, json_object_get(c, "ids"), text);
        ids.n = 0;
        need_ok(mdl_tok_encode(t, text, n, &bare, &ids, err));
        same("bare", &ids, json_object_get(c, "tokens_only"), text);
    }
    assert_true(i > 10);
    mdl_ids_deinit(&ids);
    json_decref(j);
}

/* Pairs, as the model of a reranker asks for them. */
static void check_pairs(const struct mdl *m, const char *from)
{
    json_t *j = load_json(from, "cases.json"), *c;
    size_t i;

    json_array_foreach(json_object_get(j, "pairs"), i, c)
    {
        const json_t *a = json_object_get(c, "a"), *b = json_object_get(c, "b");
        struct mdl_ids ids = {0};
        bool cut;

        need_ok(mdl_pair_tokens(m, json_string_value(a), json_string_length(a),
                                json_string_value(b), json_string_length(b), true, &cut, &ids,
                                err));
        same("pair", &ids, json_object_get(c, "ids"), json_string_value(a));
        mdl_ids_deinit(&ids);
    }
    assert_true(i > 0);
    json_decref(j);
}

static void ids_are_those_of_the_own_files(void **state)
{
    static const char *const modern[] = {"--tokenizer", BPE_MODERN_DIR, NULL};
    static const char *const roberta[] = {"--tokenizer", BPE_ROBERTA_DIR, NULL};
    struct mdl *m = open_gguf(CROSS_DIR, "modern-cross.gguf", modern);

    check_ids(mdl_tok_get(m), BPE_MODERN_DIR);
    check_pairs(m, BPE_MODERN_DIR);
    mdl_close(&m);
    m = open_gguf(CROSS_XLMR_DIR, "roberta-cross.gguf", roberta);
    assert_string_equal(mdl_info_get(m)->arch, "bert");
    check_ids(mdl_tok_get(m), BPE_ROBERTA_DIR);
    check_pairs(m, BPE_ROBERTA_DIR);
    mdl_close(&m);
}

/* Other ways to split words are named, not guessed. */
static void other_splits_are_refused(void **state)
{
    static const char *const other[] = {"--tokenizer", BPE_MODERN_DIR, "--pre", "qwen2", NULL};

    refused(MODERN_DIR, "modern-qwen2.gguf", other, RC_UNSUPPORTED, "tokenizer.ggml.pre");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree),
        cmocka_unit_test(a_reranker_agrees),
        cmocka_unit_test(blocks_are_near),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(ids_are_those_of_the_own_files),
        cmocka_unit_test(other_splits_are_refused),
    };
    int rc;

    need_dir(MODERN_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
