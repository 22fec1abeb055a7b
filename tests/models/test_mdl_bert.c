/* BERT: the equality contract bit for bit, packing, limits, what configs and side
 * files may say. (Numbers against the reference: *_golden.) */
#include "mdl_test.h"

#define N_SEQS TBATCH

static struct be_ctx *be;

static void alone_in_a_batch_in_several_passes(void **state)
{
    static const uint32_t rows[] = {64, 65, 100, 4096};
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *one = test_ctx(1);
    float *alone, *all;
    uint32_t d, s;
    size_t i;

    tbatch_make(&b, 1100);
    for (i = 0; i < 4; i++) {
        struct mdl *m;

        o.batch_tokens = rows[i];
        m = open_model(BERT_DIR, i % 2 ? one : be, &o);
        d = mdl_info_get(m)->embed_dim;
        alone = malloc((size_t)N_SEQS * d * sizeof(*alone));
        all = malloc((size_t)N_SEQS * d * sizeof(*all));
        assert_true(alone && all);
        for (s = 0; s < N_SEQS; s++)
            tbatch_encode_one(m, &b, s, alone + (size_t)s * d);
        need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, all, err));
        assert_memory_equal(alone, all, (size_t)N_SEQS * d * sizeof(*all));
        if (i == 0) { /* the first run, kept for the ones with other threads and sizes */
            *state = alone;
        } else {
            assert_memory_equal(alone, *state, (size_t)N_SEQS * d * sizeof(*all));
            free(alone);
        }
        free(all);
        mdl_close(&m);
    }
    free(*state);
    be_ctx_free(&one);
}

static void vectors_have_length_one_and_differ(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    uint32_t d = mdl_info_get(m)->embed_dim, s, i;
    float v[2][512];

    tbatch_make(&b, 1100);
    for (s = 0; s < N_SEQS; s++) {
        double n = 0;

        tbatch_encode_one(m, &b, s, v[s % 2]);
        for (i = 0; i < d; i++)
            n += (double)v[s % 2][i] * v[s % 2][i];
        assert_true(fabs(n - 1) < 1e-6);
        assert_memory_not_equal(v[0], v[1], d * sizeof(float));
    }
    mdl_close(&m);
}

static void bad_batches_name_the_sequence(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    int32_t ids[200];
    uint32_t empty[3] = {0, 2, 2}, back[3] = {0, 5, 3}, longer[3] = {0, 2, 67}, ok[3] = {0, 2, 4};
    float out[2 * 512];
    struct rc_err e;
    size_t i;

    for (i = 0; i < 200; i++)
        ids[i] = 5;
    assert_int_equal(mdl_encode(m, 2, ids, empty, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    assert_int_equal(mdl_encode(m, 2, ids, back, out, &e), RC_INVALID);
    assert_int_equal(mdl_encode(m, 2, ids, longer, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    ids[3] = 1100;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    ids[3] = -1;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    ids[3] = 7;
    need_ok(mdl_encode(m, 2, ids, ok, out, err));
    mdl_close(&m);
}

static void info_and_dimensions(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    const struct mdl_info *i = mdl_info_get(m);
    struct mdl_batch b = {0};
    const float *logits;
    struct mdl_ids ids = {0};
    struct rc_err e;

    assert_string_equal(i->family, "bert");
    assert_true(i->can_embed && !i->can_generate && !i->has_chat_template);
    assert_int_equal(i->embed_dim, 48);
    assert_int_equal(i->max_input_tokens, 64); /* sentence_bert_config.json, not 128 positions */
    assert_int_equal(i->train_ctx_tokens, 128);
    need_ok(mdl_dims_check(m, 48, err));
    assert_int_equal(mdl_dims_check(m, 24, &e), RC_INVALID);
    assert_non_null(strstr(e.msg, "48"));
    assert_int_equal(mdl_dims_check(m, 49, &e), RC_INVALID);
    assert_int_equal(mdl_dims_check(m, 0, &e), RC_INVALID);
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_UNSUPPORTED);
    assert_int_equal(mdl_chat(m, NULL, 0, &(struct mdl_chat_opts){0}, &ids, &e), RC_UNSUPPORTED);
    assert_int_equal(mdl_kv(m)->n_classes, 0);
    mdl_close(&m);
}

/* Passes shrink to the workspace, down to one input of full length. */
static void small_workspaces(void **state)
{
    static struct tbatch b;
    struct be_opts bo = {.backend = test_backend(), .n_threads = 1};
    struct mdl_opts o = small_opts(BE_F32);
    float out[N_SEQS * 48], want[N_SEQS * 48];
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct be_ctx *tight = NULL;
    struct rc_err e = RC_ERR_INIT;
    size_t fits = 0, bytes;
    int fd;

    tbatch_make(&b, 1100);
    need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, want, err));
    mdl_close(&m);
    o.batch_tokens = 8192;
    for (bytes = 16u << 20; bytes >= 1024; bytes /= 2) {
        enum rc rc;

        o.workspace_bytes = bytes;
        fd = open_root(BERT_DIR);
        rc = mdl_open(&m, fd, be, &o, &e);
        close(fd);
        if (rc == RC_OK) {
            assert_true(fits == 0 || fits == 2 * bytes);
            fits = bytes;
            need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, out, err));
            assert_memory_equal(out, want, sizeof(want));
            mdl_close(&m);
        } else {
            assert_int_equal(rc, RC_LIMIT);
            assert_int_equal(e.limit, bytes);
            assert_true(e.n > bytes);
        }
    }
    assert_true(fits > 0 && fits < 8192 * 48 * 4);
    /* the same bound told to the backend alone */
    o.workspace_bytes = 0;
    bo.workspace_bytes = strcmp(bo.backend, "cpu") == 0 ? 4u << 20 : 128u << 20; /* own scratch */
    need_ok(be_ctx_new(&tight, &bo, err));
    m = open_model(BERT_DIR, tight, &o);
    need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, out, err));
    assert_memory_equal(out, want, sizeof(want));
    mdl_close(&m);
    be_ctx_free(&tight);
}

/* More rows than are needed: as many as half of the workspace holds, and the same numbers. */
static void wished_rows_fit_the_workspace(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    float out[N_SEQS * 48], want[N_SEQS * 48];
    uint32_t needed, last = 8192;
    uint64_t per_row, bytes;
    struct mdl *m = open_model(BERT_DIR, be, &o);

    tbatch_make(&b, 1100);
    need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, want, err));
    needed = mdl_encode_rows(m);
    per_row = mdl_info_get(m)->token_work_bytes;
    assert_in_range(needed, 64, 1024);
    mdl_close(&m);
    o.encode_rows = 8192;
    m = open_model(BERT_DIR, be, &o); /* no bound was told */
    assert_int_equal(mdl_encode_rows(m), 8192);
    mdl_close(&m);
    for (bytes = 20000 * per_row; bytes > needed * per_row + 1024; bytes /= 2) {
        uint32_t rows;

        o.workspace_bytes = bytes;
        m = open_model(BERT_DIR, be, &o);
        rows = mdl_encode_rows(m);
        assert_in_range(rows, needed, last);
        assert_true(rows == needed || rows * per_row <= bytes / 2);
        assert_true(rows == 8192 || rows * per_row * 2 + 1024 >= bytes / 2);
        assert_int_equal(mdl_info_get(m)->max_input_tokens, mdl_info_get(m)->full_input_tokens);
        need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, out, err));
        assert_memory_equal(out, want, sizeof(want));
        mdl_close(&m);
        last = rows;
    }
    assert_int_equal(last, needed);
    o.workspace_bytes = needed * per_row * 3 / 4; /* not even those: as without a wish */
    m = open_model(BERT_DIR, be, &o);
    assert_in_range(mdl_encode_rows(m), mdl_info_get(m)->max_input_tokens, needed - 1);
    mdl_close(&m);
}

static void passes_allocate_nothing(void **state)
{
    static struct tbatch b;
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *own = test_ctx(2);
    struct mdl *m = open_model(BERT_DIR, own, &o);
    float out[N_SEQS * 48];
    struct be_stats st;

    tbatch_make(&b, 1100);
    be_ctx_seal(own);
    need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, out, err));
    be_ctx_stats(own, &st);
    assert_int_equal(st.hot_allocs, 0);
    mdl_close(&m);
    be_ctx_free(&own);
}

/* --------------------------------------------------- configs, side files */

static void refused(const char *file, const char *key, const char *value, enum rc want,
                    const char *says)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    enum rc rc;
    int fd;

    tdir_new(dir, BERT_DIR);
    if (key)
        tdir_set(dir, file, key, value);
    else
        tdir_put(dir, file, value);
    fd = open_root(dir);
    rc = mdl_open(&m, fd, be, &o, &e);
    close(fd);
    tdir_rm(dir);
    if (rc != want || !strstr(e.msg, says))
        fail_msg("%s %s=%s: %s '%s', expected %s saying '%s'", file, key ? key : "", value,
                 rc_name(rc), e.msg, rc_name(want), says);
}

static void what_is_not_done_is_refused_by_name(void **state)
{
    refused("config.json", "hidden_act", "\"relu\"", RC_UNSUPPORTED, "relu");
    refused("config.json", "position_embedding_type", "\"relative_key\"", RC_UNSUPPORTED,
            "relative_key");
    refused("config.json", "is_decoder", "true", RC_UNSUPPORTED, "decoder");
    refused("config.json", "architectures", "[\"BertForTokenClassification\"]", RC_UNSUPPORTED,
            "BertForTokenClassification");
    refused("config.json", "architectures", "[\"BertForSequenceClassification\"]", RC_WEIGHT_ABSENT,
            "classifier.weight");
    refused("config.json", "num_attention_heads", "5", RC_FORMAT, "5 heads");
    refused("config.json", "layer_norm_eps", "-1", RC_FORMAT, "layer_norm_eps");
    refused("config.json", "vocab_size", "1000", RC_FORMAT, "1000");
    refused("modules.json", NULL,
            "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
            "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"},"
            "{\"path\":\"2_WordWeights\",\"type\":\"sentence_transformers.models.WordWeights\"}]",
            RC_UNSUPPORTED, "WordWeights");
    refused("modules.json", NULL, "{}", RC_FORMAT, "modules.json");
    refused("modules.json", NULL, "[]", RC_UNSUPPORTED, "Pooling");
    refused("1_Pooling/config.json", NULL, "{\"pooling_mode_mean_tokens\": false}", RC_FORMAT,
            "pooling");
    refused("1_Pooling/config.json", NULL, "{\"pooling_mode\": \"spread\"}", RC_UNSUPPORTED,
            "'spread'");
    refused("1_Pooling/config.json", NULL, "{\"pooling_mode_mean_tokens\": 7}", RC_FORMAT,
            "pooling_mode_mean_tokens");
    refused("sentence_bert_config.json", "max_seq_length", "0", RC_FORMAT, "max_seq_length");
    refused("config_sentence_transformers.json", "default_prompt_name", "\"nope\"", RC_FORMAT,
            "nope");
    refused("config_sentence_transformers.json", "prompts", "{\"a\": 3}", RC_FORMAT, "'a'");
}

static void plain_folders_give_the_mean_unnormalised(void **state)
{
    char dir[256], path[512];
    struct mdl_opts o = small_opts(BE_F32);
    const uint32_t offsets[2] = {0, 5};
    const int32_t ids[5] = {2, 10, 20, 30, 3};
    float a[48], b[48];
    double n = 0;
    struct mdl *m;
    size_t i;

    m = open_model(BERT_DIR, be, &o);
    need_ok(mdl_encode(m, 1, ids, offsets, a, err));
    mdl_close(&m);
    tdir_new(dir, BERT_DIR);
    snprintf(path, sizeof(path), "%s/modules.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/sentence_bert_config.json", dir);
    unlink(path);
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 128);
    need_ok(mdl_encode(m, 1, ids, offsets, b, err));
    for (i = 0; i < 48; i++)
        n += (double)b[i] * b[i];
    assert_true(fabs(sqrt(n) - 1) > 0.1);
    for (i = 0; i < 48; i++)
        assert_true(fabs(a[i] - b[i] / sqrt(n)) < 1e-6);
    mdl_close(&m);
    tdir_rm(dir);
}

static void tanh_form_of_gelu_differs_a_little(void **state)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    const uint32_t offsets[2] = {0, 5};
    const int32_t ids[5] = {2, 10, 20, 30, 3};
    float a[48], b[48];
    double worst = 0;
    struct mdl *m;
    size_t i;

    m = open_model(BERT_DIR, be, &o);
    need_ok(mdl_encode(m, 1, ids, offsets, a, err));
    mdl_close(&m);
    tdir_new(dir, BERT_DIR);
    tdir_set(dir, "config.json", "hidden_act", "\"gelu_new\"");
    m = open_model(dir, be, &o);
    need_ok(mdl_encode(m, 1, ids, offsets, b, err));
    mdl_close(&m);
    tdir_rm(dir);
    for (i = 0; i < 48; i++)
        if (fabs((double)a[i] - b[i]) > worst)
            worst = fabs((double)a[i] - b[i]);
    assert_true(worst > 1e-7 && worst < 1e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(vectors_have_length_one_and_differ),
        cmocka_unit_test(bad_batches_name_the_sequence),
        cmocka_unit_test(info_and_dimensions),
        cmocka_unit_test(small_workspaces),
        cmocka_unit_test(wished_rows_fit_the_workspace),
        cmocka_unit_test(passes_allocate_nothing),
        cmocka_unit_test(what_is_not_done_is_refused_by_name),
        cmocka_unit_test(plain_folders_give_the_mean_unnormalised),
        cmocka_unit_test(tanh_form_of_gelu_differs_a_little),
    };
    int rc;

    need_dir(BERT_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
