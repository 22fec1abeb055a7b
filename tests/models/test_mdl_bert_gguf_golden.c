/* BERT and XLM-RoBERTa from GGUF: the numbers of the reference from F32 files, those of the
 * dequantized file from Q8_0 and Q4_K ones, pooling by the file's key, a reranker, heads beside. */
#include "mdl_near.h"
#include "mdl_xlmr.h"

#define TOL TOL_ENCODER
/* activations are rounded to 8 bits too; a unit vector of 32 to 256 values */
#define TOL_QUANT 0.02

static struct be_ctx *be;

static struct mdl *open_gguf(const char *from, const char *name, const char *const *args)
{
    struct mdl_opts o = small_opts(BE_F32);
    char path[512];

    o.batch_tokens = 192;
    gguf_make(path, sizeof(path), from, name, args);
    return open_model(path, be, &o);
}

/* What side files cut (MiniLM: at 64 tokens) is whole here; the closing token apart. */
static void same_ids(const struct mdl_ids *got, const json_t *want)
{
    uint32_t n;
    int32_t *ids = ids_of(want, &n);

    assert_true(got->n == n || (got->n > n && n == 64));
    if (got->n > n)
        n--;
    assert_memory_equal(got->ids, ids, n * sizeof(*ids));
    free(ids);
}

static void check_vectors(struct mdl *m, const char *from, const char *field)
{
    json_t *j = load_json(from, "cases.json"), *c;
    uint32_t dim = mdl_info_get(m)->embed_dim;
    float out[64];
    size_t i;

    assert_in_range(dim, 1, 64);
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        struct mdl_ids ids = {0};
        bool cut;

        need_ok(mdl_embed_tokens(m, json_string_value(text), json_string_length(text), NULL, true,
                                 &cut, &ids, err));
        same_ids(&ids, json_object_get(c, "ids"));
        mdl_ids_deinit(&ids);
        encode_ids(m, json_object_get(c, "ids"), out);
        assert_int_equal(json_array_size(json_object_get(c, field)), dim);
        near_values(out, json_object_get(c, field), TOL, field, i);
    }
    assert_true(i > 0);
    json_decref(j);
}

static void encoders_agree(void **state)
{
    struct mdl *m = open_gguf(BGE_DIR, "bge-m3.gguf", NULL);

    assert_string_equal(mdl_info_get(m)->arch, "bert");
    assert_true(mdl_info_get(m)->can_embed && !mdl_info_get(m)->can_sparse);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 192);
    check_vectors(m, BGE_DIR, "dense");
    mdl_close(&m);
    m = open_gguf(BERT_DIR, "minilm.gguf", NULL);
    check_vectors(m, BERT_DIR, "embedding");
    mdl_close(&m);
}

static void check_logits(struct mdl *m, double tol)
{
    json_t *j = load_json(CROSS_XLMR_DIR, "cases.json"), *c;
    float out;
    size_t i;

    assert_true(mdl_info_get(m)->can_rerank && !mdl_info_get(m)->can_embed);
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *q = json_object_get(c, "query"), *d = json_object_get(c, "doc");
        struct mdl_ids ids = {0};
        bool cut;

        need_ok(mdl_pair_tokens(m, json_string_value(q), json_string_length(q),
                                json_string_value(d), json_string_length(d), true, &cut, &ids,
                                err));
        same_ids(&ids, json_object_get(c, "ids"));
        mdl_ids_deinit(&ids);
        encode_ids(m, json_object_get(c, "ids"), &out);
        assert_true(fabs(out - json_number_value(json_object_get(c, "logit"))) <= tol);
    }
    assert_true(i > 0);
    json_decref(j);
}

static void a_reranker_agrees(void **state)
{
    static const char *const plain[] = {"--tokenizer", BGE_DIR, NULL};
    static const char *const flat[] = {"--tokenizer", BGE_DIR, "--flat", NULL};
    static const char *const q8[] = {"--tokenizer", BGE_DIR, "--type", "Q8_0", NULL};
    struct mdl *m = open_gguf(CROSS_XLMR_DIR, "cross.gguf", plain);

    check_logits(m, TOL);
    mdl_close(&m);
    m = open_gguf(CROSS_XLMR_DIR, "cross-flat.gguf", flat);
    check_logits(m, TOL);
    mdl_close(&m);
    m = open_gguf(CROSS_XLMR_DIR, "cross-q8.gguf", q8);
    assert_string_equal(mdl_info_get(m)->quant, "Q8_0");
    check_logits(m, 5 * TOL_QUANT);
    mdl_close(&m);
}

/* A file of blocks against the F32 file of the values that its blocks mean. */
static void blocks_are_multiplied_as_they_are(void **state)
{
    const int32_t ids[9] = {2, 10, 200, 30, 44, 515, 16, 7, 3};
    const uint32_t offsets[2] = {0, 9};
    char plain[512];
    const char *args[] = {"--synthetic", "--type", "Q4_K", "--dequant", plain, NULL};
    float got[256], want[256];
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;
    double worst = 0;
    size_t k;

    snprintf(plain, sizeof(plain), "%s/gguf-bert-q4k-f32.gguf", test_dir());
    m = open_gguf(BERT_DIR, "bert-q4k.gguf", args);
    assert_string_equal(mdl_info_get(m)->quant, "Q4_K");
    need_ok(mdl_encode(m, 1, ids, offsets, got, err));
    mdl_close(&m);
    m = open_model(plain, be, &o);
    need_ok(mdl_encode(m, 1, ids, offsets, want, err));
    mdl_close(&m);
    for (k = 0; k < 256; k++)
        worst = fmax(worst, fabs((double)got[k] - want[k]));
    if (!(worst > 0 && worst <= TOL_QUANT))
        fail_msg("%g from the dequantized file, at most %g expected", worst, TOL_QUANT);
}

/* The format carries the encoder alone; BGE-M3's heads may lie in the folder. */
static void heads_may_lie_beside(void **state)
{
    static const char *const copies[] = {"sparse_linear.pt", "colbert_linear.pt"};
    const int32_t ids[4] = {0, 40, 50, 2};
    const uint32_t offsets[2] = {0, 4};
    float a[2][48], w[2][4], v[2][4 * 48];
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256], from[512], to[512];
    struct mdl *m;
    size_t i;

    snprintf(dir, sizeof(dir), "%s/mdl-test-XXXXXX", TEST_BUILD);
    assert_non_null(mkdtemp(dir));
    gguf_make(from, sizeof(from), BGE_DIR, "bge-m3.gguf", NULL);
    path_join(to, sizeof(to), dir, "bge-m3.gguf");
    copy_file(from, to);
    for (i = 0; i < 2; i++) {
        path_join(from, sizeof(from), BGE_DIR, copies[i]);
        path_join(to, sizeof(to), dir, copies[i]);
        copy_file(from, to);
    }
    m = open_model(dir, be, &o);
    need_ok(mdl_encode_tokens(m, 1, ids, offsets, a[0], w[0], v[0], err));
    mdl_close(&m);
    m = open_model(BGE_DIR, be, &o);
    need_ok(mdl_encode_tokens(m, 1, ids, offsets, a[1], w[1], v[1], err));
    mdl_close(&m);
    assert_memory_equal(a[0], a[1], sizeof(a[0]));
    assert_memory_equal(w[0], w[1], sizeof(w[0]));
    assert_memory_equal(v[0], v[1], sizeof(v[0]));
    tdir_rm(dir);
}

static void what_is_missing_is_named(void **state)
{
    static const char *const drops[] = {"cls.weight", "cls.output.weight", "token_types.weight",
                                        "blk.1.attn_q.weight"};
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = NULL;
    char path[512], name[64];
    size_t i;

    for (i = 0; i < sizeof(drops) / sizeof(*drops); i++) {
        const char *args[] = {"--tokenizer", BGE_DIR, "--drop", drops[i], NULL};
        struct rc_err e = RC_ERR_INIT;
        int fd;

        snprintf(name, sizeof(name), "cross-drop%zu.gguf", i);
        gguf_make(path, sizeof(path), CROSS_XLMR_DIR, name, args);
        fd = open_root(path);
        assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_WEIGHT_ABSENT);
        assert_non_null(strstr(e.msg, drops[i]));
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoders_agree),
        cmocka_unit_test(a_reranker_agrees),
        cmocka_unit_test(blocks_are_multiplied_as_they_are),
        cmocka_unit_test(heads_may_lie_beside),
        cmocka_unit_test(what_is_missing_is_named),
    };
    int rc;

    need_dir(BGE_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
