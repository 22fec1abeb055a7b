/* EmbeddingGemma, first version: ids, token states layer by layer, means and vectors against the
 * reference; the equality contract; sizes, prompts, what is refused.
 * Provenance: tests/golden/README.md */
#include "mdl_near.h"

#define EG1_DIR TEST_GOLDEN "/embeddinggemma_v1"
#define TOL test_tol(3e-4, 2e-2, 2e-2)
#define DIM 48

static struct be_ctx *be;
static json_t *cases;

static void text_of(struct mdl *m, const json_t *c, struct mdl_ids *out)
{
    const json_t *prompt = json_object_get(c, "prompt");
    const char *p = json_is_string(prompt) ? json_string_value(prompt) : "";
    char text[2048];
    bool cut;
    int n = snprintf(text, sizeof(text), "%s%s", p, json_string_value(json_object_get(c, "text")));

    assert_true(n >= 0 && (size_t)n < sizeof(text));
    need_ok(mdl_embed_tokens(m, text, (size_t)n, NULL, false, &cut, out, err));
}

struct layers {
    const json_t *want;
    size_t item, seen;
};

static void check_layer(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n)
{
    struct layers *l = user;
    const json_t *w = json_array_get(l->want, layer);
    float *v = malloc((size_t)n * DIM * sizeof(float));
    double sum = 0, norm = json_number_value(json_object_get(w, "norm"));
    size_t i;

    assert_non_null(v);
    need_ok(be_tensor_read(be, x, 0, n, v, err));
    for (i = 0; i < (size_t)n * DIM; i++)
        sum += (double)v[i] * v[i];
    assert_true(fabs(sqrt(sum) - norm) <= TOL * norm);
    near_values(v + (size_t)(n - 1) * DIM, json_object_get(w, "last_pos_first"), 10 * TOL, "layer",
                l->item);
    l->seen++;
    free(v);
}

static void vectors_agree(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(EG1_DIR, be, &o);
    struct layers l = {0};
    json_t *c;
    float out[DIM];
    size_t i;

    m->trace = check_layer;
    m->trace_user = &l;
    json_array_foreach(json_object_get(cases, "text"), i, c)
    {
        struct mdl_ids ids = {0};
        uint32_t offsets[2] = {0, 0};
        int32_t *want = ids_of(json_object_get(c, "ids"), &offsets[1]);

        text_of(m, c, &ids);
        assert_int_equal(ids.n, offsets[1]);
        assert_memory_equal(ids.ids, want, ids.n * sizeof(*want));
        l = (struct layers){.want = json_object_get(c, "layers"), .item = i};
        need_ok(mdl_encode(m, 1, ids.ids, offsets, out, err));
        near_values(out, json_object_get(c, "embedding"), TOL, "embedding", i);
        assert_int_equal(l.seen, mdl_info_get(m)->n_layers);
        mdl_ids_deinit(&ids);
        free(want);
    }
    assert_true(i > 0);
    mdl_close(&m);
}

/* The mean alone, and both Dense steps without the last, from other side files. */
static void steps_are_done_one_by_one(void **state)
{
    static const char *const type = "\"type\": \"sentence_transformers.models.";
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256], modules[1024];
    json_t *c;
    float out[DIM];
    size_t i, k;

    for (k = 0; k < 2; k++) {
        struct mdl *m;

        tdir_new(dir, EG1_DIR);
        snprintf(
            modules, sizeof(modules),
            "[{\"path\": \"\", %sTransformer\"}, {\"path\": \"1_Pooling\", %sPooling\"}%s%s%s%s%s]",
            type, type, k ? ", {\"path\": \"2_Dense\", " : "", k ? type : "",
            k ? "Dense\"}, {\"path\": \"3_Dense\", " : "", k ? type : "", k ? "Dense\"}" : "");
        tdir_put(dir, "modules.json", modules);
        m = open_model(dir, be, &o);
        json_array_foreach(json_object_get(cases, "text"), i, c)
        {
            encode_ids(m, json_object_get(c, "ids"), out);
            near_values(out, json_object_get(c, k ? "dense_out" : "mean"), 20 * TOL,
                        k ? "dense" : "mean", i);
        }
        mdl_close(&m);
        tdir_rm(dir);
    }
}

static void alone_in_a_batch_in_several_passes(void **state)
{
    static struct tbatch b;
    static float all[TBATCH * DIM], alone[TBATCH * DIM], first[TBATCH * DIM];
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *one = test_ctx(1);
    char dir[256];
    uint32_t s, i;

    tdir_new(dir, EG1_DIR);
    tdir_set(dir, "sentence_bert_config.json", "max_seq_length", "64");
    tbatch_make(&b, 704);
    for (i = 0; i < 2; i++) {
        struct mdl *m;

        o.batch_tokens = i ? 4096 : 64;
        m = open_model(dir, i ? one : be, &o);
        assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
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

static void info_prompts_and_sizes(void **state)
{
    static const char *const tasks[][2] = {{"RETRIEVAL_QUERY", "SearchQuery"},
                                           {"SEMANTIC_SIMILARITY", "SentenceSimilarity"},
                                           {"CODE_RETRIEVAL_QUERY", "CodeRetrieval"},
                                           {"CLASSIFICATION", "Classification"},
                                           {"CLUSTERING", "Clustering"}};
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(EG1_DIR, be, &o);
    struct rc_err e = RC_ERR_INIT;
    struct mdl_ids ids = {0};
    json_t *c;
    size_t i, k, seen = 0;
    bool cut;

    assert_string_equal(mdl_info_get(m)->family, "embeddinggemma");
    assert_int_equal(mdl_info_get(m)->embed_dim, DIM);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 2048);
    assert_int_equal(strlen(mdl_info_get(m)->identity), 64);
    for (i = 8; i <= 48; i++)
        assert_int_equal(mdl_dims_check(m, (uint32_t)i, &e),
                         i == 8 || i == 16 || i == 32 || i == 48 ? RC_OK : RC_INVALID);
    json_array_foreach(json_object_get(cases, "text"), i, c) for (k = 0; k < 5; k++)
    {
        const char *text = json_string_value(json_object_get(c, "text"));
        uint32_t n;
        int32_t *want;

        if (strcmp(json_string_value(json_object_get(c, "name")), tasks[k][1]) != 0)
            continue;
        want = ids_of(json_object_get(c, "ids"), &n);
        ids.n = 0;
        need_ok(mdl_embed_tokens(m, text, strlen(text), tasks[k][0], false, &cut, &ids, err));
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, want, n * sizeof(*want));
        free(want);
        seen++;
    }
    assert_int_equal(seen, 5);
    assert_int_equal(mdl_embed_tokens(m, "a", 1, "NO_SUCH_TASK", false, &cut, &ids, &e),
                     RC_INVALID);
    mdl_ids_deinit(&ids);
    mdl_close(&m);
}

static void refused(const char *file, const char *key, const char *value, enum rc want,
                    const char *says)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char dir[256], path[512];
    enum rc rc;
    int fd;

    tdir_new(dir, EG1_DIR);
    path_join(path, sizeof(path), dir, file);
    if (key)
        tdir_set(dir, file, key, value);
    else
        assert_int_equal(unlink(path), 0);
    fd = open_root(dir);
    rc = mdl_open(&m, fd, be, &o, &e);
    close(fd);
    tdir_rm(dir);
    if (rc != want || !strstr(e.msg, says))
        fail_msg("%s %s: %s '%s', expected %s saying '%s'", file, key ? key : "", rc_name(rc),
                 e.msg, rc_name(want), says);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    refused("config.json", "use_bidirectional_attention", "false", RC_UNSUPPORTED,
            "use_bidirectional_attention");
    refused("config.json", "hidden_activation", "\"silu\"", RC_UNSUPPORTED, "silu");
    refused("2_Dense/config.json", "in_features", "47", RC_FORMAT, "in_features 47");
    refused("2_Dense/config.json", "out_features", "191", RC_FORMAT, "191");
    refused("2_Dense/config.json", "bias", "true", RC_WEIGHT_ABSENT, "2_Dense.linear.bias");
    refused("3_Dense/config.json", "activation_function", "\"torch.nn.modules.activation.ReLU\"",
            RC_UNSUPPORTED, "ReLU");
    refused("3_Dense/model.safetensors", NULL, NULL, RC_WEIGHT_ABSENT, "3_Dense");
    refused("3_Dense/config.json", NULL, NULL, RC_FORMAT, "3_Dense/config.json");
}

/* ------------------------------------------------------------------------ GGUF */

static enum rc open_gguf(const char *path, struct mdl **out, struct rc_err *e)
{
    struct mdl_opts o = small_opts(BE_F32);
    int fd = open_root(path);
    enum rc rc = mdl_open(out, fd, be, &o, e);

    close(fd);
    return rc;
}

static void check_gguf(struct mdl *m)
{
    json_t *c;
    float out[DIM];
    size_t i;

    json_array_foreach(json_object_get(cases, "text"), i, c)
    {
        struct mdl_ids ids = {0};
        uint32_t offsets[2] = {0, 0};
        int32_t *want = ids_of(json_object_get(c, "ids"), &offsets[1]);

        text_of(m, c, &ids);
        assert_int_equal(ids.n, offsets[1]);
        assert_memory_equal(ids.ids, want, ids.n * sizeof(*want));
        need_ok(mdl_encode(m, 1, ids.ids, offsets, out, err));
        near_values(out, json_object_get(c, "embedding"), TOL, "embedding", i);
        mdl_ids_deinit(&ids);
        free(want);
    }
    assert_true(i > 0);
}

static void gguf_with_its_dense_steps_agrees(void **state)
{
    struct mdl *m = NULL;
    char path[512];

    gguf_make(path, sizeof(path), EG1_DIR, "eg1.gguf", NULL);
    need_ok(open_gguf(path, &m, err));
    assert_string_equal(mdl_info_get(m)->family, "embeddinggemma");
    assert_string_equal(mdl_info_get(m)->arch, "gemma-embedding");
    assert_int_equal(mdl_info_get(m)->embed_dim, DIM);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 2048);
    check_gguf(m);
    mdl_close(&m);
}

/* Vectors without the steps would be others than the model's: refused, unless side files lie beside
 * the file. */
static void gguf_without_them_needs_side_files(void **state)
{
    static const char *const none[] = {"--drop", "dense", NULL};
    static const char *const one[] = {"--drop", "dense_3.weight", NULL};
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char path[512], dir[256], to[512];

    gguf_make(path, sizeof(path), EG1_DIR, "eg1-one.gguf", one);
    assert_int_equal(open_gguf(path, &m, &e), RC_WEIGHT_ABSENT);
    assert_string_equal(e.what, "dense_3.weight");
    gguf_make(path, sizeof(path), EG1_DIR, "eg1-none.gguf", none);
    assert_int_equal(open_gguf(path, &m, &e), RC_WEIGHT_ABSENT);
    assert_string_equal(e.what, "dense_2.weight");
    assert_non_null(strstr(e.msg, "Dense steps"));
    tdir_new(dir, EG1_DIR);
    path_join(to, sizeof(to), dir, "model.safetensors");
    assert_int_equal(unlink(to), 0);
    path_join(to, sizeof(to), dir, "model.gguf");
    copy_file(path, to);
    need_ok(open_gguf(dir, &m, err));
    assert_string_equal(mdl_info_get(m)->arch, "gemma-embedding");
    check_gguf(m);
    mdl_close(&m);
    tdir_rm(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree),
        cmocka_unit_test(steps_are_done_one_by_one),
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(info_prompts_and_sizes),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(gguf_with_its_dense_steps_agrees),
        cmocka_unit_test(gguf_without_them_needs_side_files),
    };
    int rc;

    need_dir(EG1_DIR);
    be = test_ctx(2);
    cases = load_json(EG1_DIR, "cases.json");
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(cases);
    be_ctx_free(&be);
    return rc;
}
