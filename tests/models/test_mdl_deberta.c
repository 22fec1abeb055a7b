/* DeBERTa: the equality contract bit for bit, as a cross-encoder and as an embedder, what configs
 * may say, faults while it is opened. (Numbers against the reference: *_golden.) */
#include "mdl_test.h"

#define RERANKER_DIR TEST_GOLDEN "/reranker"
#define VOCAB 984

static struct be_ctx *be;

static void alone_in_a_batch_in_several_passes(void **state)
{
    static const uint32_t rows[] = {64, 100, 4096};
    static struct tbatch b;
    struct be_ctx *one = test_ctx(1);
    float first[TBATCH], alone[TBATCH], all[TBATCH];

    tbatch_make(&b, VOCAB);
    for (size_t i = 0; i < 3; i++) {
        struct mdl_opts o = small_opts(BE_F32);
        struct mdl *m;

        o.batch_tokens = rows[i];
        m = open_model(RERANKER_DIR, i % 2 ? one : be, &o);
        for (uint32_t s = 0; s < TBATCH; s++)
            tbatch_encode_one(m, &b, s, &alone[s]);
        need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, all, err));
        assert_memory_equal(alone, all, sizeof(all));
        if (i == 0)
            memcpy(first, all, sizeof(all));
        assert_memory_equal(first, all, sizeof(all));
        mdl_close(&m);
    }
    be_ctx_free(&one);
}

static void passes_allocate_nothing(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *own = test_ctx(2);
    struct mdl *m = open_model(RERANKER_DIR, own, &o);
    float out[TBATCH];
    struct be_stats st;

    tbatch_make(&b, VOCAB);
    be_ctx_seal(own);
    need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, out, err));
    be_ctx_stats(own, &st);
    assert_int_equal(st.hot_allocs, 0);
    mdl_close(&m);
    be_ctx_free(&own);
}

/* The trunk of the same file is an embedder once its config says so. */
static void an_embedder_with_side_files(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    const struct mdl_info *i;
    struct mdl_ids ids = {0};
    char dir[256];
    float mean[48], unit[48];
    double n = 0, dot = 0;
    struct rc_err e;
    struct mdl *m;
    bool cut;

    tbatch_make(&b, VOCAB);
    tdir_new(dir, RERANKER_DIR);
    tdir_set(dir, "config.json", "architectures", "[\"DebertaV2Model\"]");
    m = open_model(dir, be, &o);
    i = mdl_info_get(m);
    assert_true(i->can_embed && !i->can_rerank);
    assert_int_equal(i->embed_dim, 48);
    assert_int_equal(i->max_input_tokens, 512); /* the tokenizer's, beyond 64 positions */
    assert_int_equal(strlen(i->identity), 64);
    need_ok(mdl_dims_check(m, 48, err));
    assert_int_equal(mdl_dims_check(m, 24, &e), RC_INVALID);
    assert_int_equal(mdl_pair_tokens(m, "a", 1, "b", 1, false, &cut, &ids, &e), RC_UNSUPPORTED);
    tbatch_encode_one(m, &b, 3, mean);
    mdl_close(&m);
    tdir_put(dir, "modules.json",
             "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
             "{\"path\":\"\",\"type\":\"sentence_transformers.models.Pooling\"},"
             "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}]");
    tdir_set(dir, "config.json", "pooling_mode_mean_tokens", "true");
    tdir_put(dir, "sentence_bert_config.json", "{\"max_seq_length\": 40}");
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 40);
    need_ok(mdl_embed_tokens(m, "Hello world", 11, NULL, false, &cut, &ids, err));
    assert_true(ids.n > 2 && ids.ids[0] == 1 && ids.ids[ids.n - 1] == 2);
    mdl_ids_deinit(&ids);
    tbatch_encode_one(m, &b, 3, unit);
    for (size_t k = 0; k < 48; k++) {
        n += (double)mean[k] * mean[k];
        dot += (double)mean[k] * unit[k];
    }
    assert_true(n > 0 && fabs(dot / sqrt(n) - 1) < 1e-6);
    mdl_close(&m);
    tdir_rm(dir);
}

static enum rc try_open(const char *dir, struct be_ctx *ctx, struct rc_err *e)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = NULL;
    int fd = open_root(dir);
    enum rc rc = mdl_open(&m, fd, ctx, &o, e);

    close(fd);
    mdl_close(&m);
    return rc;
}

static void what_is_not_done_is_refused_by_name(void **state)
{
    static const struct {
        const char *key, *value;
        enum rc want;
        const char *says;
    } rows[] = {
        {"hidden_act", "\"relu\"", RC_UNSUPPORTED, "relu"},
        {"pooler_hidden_act", "\"mish\"", RC_UNSUPPORTED, "mish"},
        {"pos_att_type", "\"p2p|c2p\"", RC_UNSUPPORTED, "p2p"},
        {"pos_att_type", "[\"c2p\", 3]", RC_FORMAT, "pos_att_type"},
        {"pos_att_type", "3", RC_FORMAT, "pos_att_type"},
        {"norm_rel_ebd", "\"batch_norm\"", RC_UNSUPPORTED, "batch_norm"},
        {"attention_head_size", "16", RC_UNSUPPORTED, "16"},
        {"num_attention_heads", "5", RC_FORMAT, "5 heads"},
        {"position_buckets", "7", RC_FORMAT, "7 position_buckets"},
        {"position_buckets", "130", RC_FORMAT, "130 position_buckets"},
        {"position_buckets", "16", RC_FORMAT, "rel_embeddings"}, /* not the file's shape */
        {"conv_kernel_size", "4", RC_UNSUPPORTED, "conv_kernel_size 4"},
        {"conv_kernel_size", "3", RC_WEIGHT_ABSENT, "encoder.conv.conv.weight"},
        {"share_att_key", "false", RC_WEIGHT_ABSENT, "pos_key_proj"},
        {"position_biased_input", "true", RC_WEIGHT_ABSENT, "position_embeddings"},
        {"vocab_size", "900", RC_FORMAT, "900"},
        {"layer_norm_eps", "-1", RC_FORMAT, "layer_norm_eps"},
        {"architectures", "[\"DebertaV2ForTokenClassification\"]", RC_UNSUPPORTED,
         "DebertaV2ForTokenClassification"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct rc_err e = RC_ERR_INIT;
        char dir[256];
        enum rc rc;

        tdir_new(dir, RERANKER_DIR);
        tdir_set(dir, "config.json", rows[i].key, rows[i].value);
        rc = try_open(dir, be, &e);
        tdir_rm(dir);
        /* on a device the convolution itself is refused */
        if (strcmp(test_backend(), "cpu") != 0 && rc == RC_UNSUPPORTED &&
            rows[i].want == RC_WEIGHT_ABSENT && strstr(rows[i].says, "conv") &&
            strstr(e.msg, "convolution"))
            continue;
        if (rc != rows[i].want || !strstr(e.msg, rows[i].says))
            fail_msg("%s=%s: %s '%s', expected %s saying '%s'", rows[i].key, rows[i].value,
                     rc_name(rc), e.msg, rc_name(rows[i].want), rows[i].says);
    }
}

static void the_longest_input(void **state)
{
    static const struct {
        const char *said;
        uint32_t want;
        const char *note;
    } rows[] = {
        {"48", 48, ""},
        {"1000000000000000019884624838656", 64, ""},
        {NULL, 64, ""},
        {"300", 300, ""},
        {"-1", 64, ""},
        {"4096", 4096, ""},
        {"8192", 4096, "inputs of 4096 tokens are taken, the files allow 8192"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct mdl_opts o = small_opts(BE_F32);
        char dir[256], text[128];
        struct mdl *m;

        tdir_new(dir, RERANKER_DIR);
        snprintf(text, sizeof(text), "{\"model_max_length\": %s}", rows[i].said);
        tdir_put(dir, "tokenizer_config.json", rows[i].said ? text : "{}");
        m = open_model(dir, be, &o);
        assert_int_equal(mdl_info_get(m)->max_input_tokens, rows[i].want);
        assert_int_equal(mdl_info_get(m)->train_ctx_tokens, 64);
        assert_string_equal(mdl_info_get(m)->note, rows[i].note);
        mdl_close(&m);
        tdir_rm(dir);
    }
}

static bool stop_now(void *user)
{
    return *(bool *)user;
}

static void a_stopped_pass_leaves_the_model_usable(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(RERANKER_DIR, be, &o);
    float want[TBATCH], got[TBATCH];
    struct rc_err e;
    bool stop = true;

    tbatch_make(&b, VOCAB);
    need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, want, err));
    mdl_set_encode_stop(m, stop_now, &stop);
    assert_int_equal(mdl_encode(m, TBATCH, b.ids, b.offsets, got, &e), RC_CANCELLED);
    stop = false;
    need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, got, err));
    assert_memory_equal(want, got, sizeof(want));
    mdl_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(passes_allocate_nothing),
        cmocka_unit_test(an_embedder_with_side_files),
        cmocka_unit_test(what_is_not_done_is_refused_by_name),
        cmocka_unit_test(the_longest_input),
        cmocka_unit_test(a_stopped_pass_leaves_the_model_usable),
    };
    int rc;

    need_dir(RERANKER_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
