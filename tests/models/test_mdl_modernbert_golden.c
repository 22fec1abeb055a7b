/* ModernBERT: vectors and logits of the reference, the equality contract, older spellings of the
 * config, what is refused. Provenance: tests/golden/README.md */
#include "mdl_near.h"

#define MODERN_DIR TEST_GOLDEN "/modernbert"
#define CROSS_DIR TEST_GOLDEN "/cross-modernbert"
#define DIM 32

static struct be_ctx *be;

/* With the tokenizer that the folder's vocabulary has room for, and a step that says which pooling.
 */
static void copy_of(char *dir, const char *from, const char *pooling)
{
    char a[512], b[512];

    tdir_new(dir, from);
    path_join(a, sizeof(a), BERT_DIR, "tokenizer.json");
    path_join(b, sizeof(b), dir, "tokenizer.json");
    copy_file(a, b);
    if (!pooling)
        return;
    snprintf(b, sizeof(b), "{\"pooling_mode\": \"%s\"}", pooling);
    path_join(a, sizeof(a), dir, "1_Pooling");
    assert_int_equal(mkdir(a, 0755), 0);
    tdir_put(dir, "1_Pooling/config.json", b);
    tdir_put(dir, "modules.json",
             "[{\"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},"
             "{\"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}]");
}

static struct mdl *open_copy(const char *dir, uint32_t batch_tokens, struct be_ctx *ctx)
{
    struct mdl_opts o = small_opts(BE_F32);

    o.batch_tokens = batch_tokens;
    return open_model(dir, ctx, &o);
}

static void check(struct mdl *m, const char *from, const char *field)
{
    json_t *j = load_json(from, "cases.json"), *c;
    float out[DIM];
    size_t i;

    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        encode_ids(m, json_object_get(c, "ids"), out);
        near_values(out, json_object_get(c, field), TOL_ENCODER, field, i);
    }
    assert_true(i > 0);
    json_decref(j);
}

static void vectors_agree(void **state)
{
    static const char *const pools[] = {"mean", "cls"};
    char dir[256];
    size_t i;

    for (i = 0; i < 2; i++) {
        struct mdl *m;

        copy_of(dir, MODERN_DIR, pools[i]);
        m = open_copy(dir, 64, be);
        assert_string_equal(mdl_info_get(m)->family, "modernbert");
        assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
        check(m, MODERN_DIR, pools[i]);
        mdl_close(&m);
        tdir_rm(dir);
    }
}

static void logits_agree(void **state)
{
    char dir[256];
    struct mdl *m;

    copy_of(dir, CROSS_DIR, NULL);
    m = open_copy(dir, 64, be);
    assert_true(mdl_info_get(m)->can_rerank && !mdl_info_get(m)->can_embed);
    check(m, CROSS_DIR, "logit");
    mdl_close(&m);
    tdir_rm(dir);
}

/* As files on the hub say it: no list of layers, no rope_parameters. */
static void older_words_mean_the_same(void **state)
{
    char dir[256];
    struct mdl *m;

    copy_of(dir, MODERN_DIR, "mean");
    tdir_set(dir, "config.json", "layer_types", NULL);
    tdir_set(dir, "config.json", "rope_parameters", NULL);
    tdir_set(dir, "config.json", "global_attn_every_n_layers", "3");
    tdir_set(dir, "config.json", "global_rope_theta", "160000.0");
    tdir_set(dir, "config.json", "local_rope_theta", "10000.0");
    m = open_copy(dir, 64, be);
    check(m, MODERN_DIR, "mean");
    mdl_close(&m);
    tdir_rm(dir);
}

static void alone_in_a_batch_in_several_passes(void **state)
{
    static struct tbatch b;
    static float all[TBATCH * DIM], alone[TBATCH * DIM], first[TBATCH * DIM];
    struct be_ctx *one = test_ctx(1);
    char dir[256];
    uint32_t s, i;

    copy_of(dir, MODERN_DIR, "mean");
    tbatch_make(&b, 1100);
    for (i = 0; i < 2; i++) {
        struct mdl *m = open_copy(dir, i ? 4096 : 64, i ? one : be);

        need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, all, err));
        for (s = 0; s < TBATCH; s++)
            tbatch_encode_one(m, &b, s, alone + s * DIM);
        assert_memory_equal(all, alone, sizeof(all));
        if (i)
            assert_memory_equal(all, first, sizeof(all));
        memcpy(first, all, sizeof(first));
        mdl_close(&m);
    }
    tdir_rm(dir);
    be_ctx_free(&one);
}

static void refused(const char *from, const char *key, const char *value, enum rc want,
                    const char *says)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char dir[256];
    enum rc rc;
    int fd;

    copy_of(dir, from, NULL);
    tdir_set(dir, "config.json", key, value);
    fd = open_root(dir);
    rc = mdl_open(&m, fd, be, &o, &e);
    close(fd);
    tdir_rm(dir);
    if (rc != want || !strstr(e.msg, says))
        fail_msg("%s = %s: %s '%s', expected %s saying '%s'", key, value, rc_name(rc), e.msg,
                 rc_name(want), says);
}

static void what_is_not_done_is_refused_by_name(void **state)
{
    refused(MODERN_DIR, "mlp_bias", "true", RC_UNSUPPORTED, "mlp_bias");
    refused(MODERN_DIR, "attention_bias", "true", RC_UNSUPPORTED, "attention_bias");
    refused(MODERN_DIR, "norm_bias", "true", RC_UNSUPPORTED, "norm_bias");
    refused(MODERN_DIR, "hidden_activation", "\"silu\"", RC_UNSUPPORTED, "silu");
    refused(MODERN_DIR, "rope_scaling", "{\"factor\": 2}", RC_UNSUPPORTED, "rope_scaling");
    refused(MODERN_DIR, "rope_parameters.full_attention", "{\"rope_type\": \"yarn\"}",
            RC_UNSUPPORTED, "yarn");
    refused(MODERN_DIR, "layer_types", "[\"full_attention\"]", RC_FORMAT, "all 4 layers");
    refused(MODERN_DIR, "num_attention_heads", "5", RC_FORMAT, "5 heads");
    refused(MODERN_DIR, "architectures", "[\"ModernBertForTokenClassification\"]", RC_UNSUPPORTED,
            "ModernBertForTokenClassification");
    refused(CROSS_DIR, "classifier_pooling", "\"last\"", RC_UNSUPPORTED, "last");
    refused(CROSS_DIR, "classifier_bias", "true", RC_WEIGHT_ABSENT, "head.dense.bias");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree),
        cmocka_unit_test(logits_agree),
        cmocka_unit_test(older_words_mean_the_same),
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(what_is_not_done_is_refused_by_name),
    };
    int rc;

    need_dir(MODERN_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
