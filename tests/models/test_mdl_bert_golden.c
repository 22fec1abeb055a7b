/* BERT (MiniLM geometry) against what transformers and sentence-transformers
 * computed: token states, mean and first-token vectors, ids, cosines.
 * Provenance: tests/golden/README.md */
#include "mdl_near.h"

#define TOL TOL_ENCODER

static struct be_ctx *be;
static json_t *cases;

static void embed(struct mdl *m, const char *text, size_t n, float *out)
{
    struct mdl_ids ids = {0};
    uint32_t offsets[2] = {0, 0};
    bool cut = true;

    need_ok(mdl_embed_tokens(m, text, n, NULL, true, &cut, &ids, err));
    offsets[1] = (uint32_t)ids.n;
    need_ok(mdl_encode(m, 1, ids.ids, offsets, out, err));
    mdl_ids_deinit(&ids);
}

static void vectors_agree(struct mdl *m, const char *field)
{
    json_t *list = json_object_get(cases, "cases");
    float *out = malloc(mdl_info_get(m)->embed_dim * sizeof(float));
    size_t i;

    assert_non_null(out);
    assert_true(json_array_size(list) > 0);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");

        embed(m, json_string_value(text), json_string_length(text), out);
        near_values(out, json_object_get(c, field), TOL, field, i);
    }
    free(out);
}

static void ids_agree(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    json_t *list = json_object_get(cases, "cases");
    size_t i;

    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");
        struct mdl_ids ids = {0};
        uint32_t n;
        int32_t *want = ids_of(json_object_get(c, "ids"), &n);
        bool cut;

        need_ok(mdl_embed_tokens(m, json_string_value(text), json_string_length(text), NULL, true,
                                 &cut, &ids, err));
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, want, n * sizeof(*want));
        mdl_ids_deinit(&ids);
        free(want);
    }
    mdl_close(&m);
}

static void embeddings_agree(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);

    assert_int_equal(mdl_info_get(m)->max_input_tokens,
                     json_integer_value(json_object_get(cases, "max_seq_length")));
    vectors_agree(m, "embedding");
    mdl_close(&m);
}

/* The same weights under other side files: first token, not normalised, both. */
static void with_pooling(const char *pooling, bool normalize, const char *field)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;

    tdir_new(dir, BERT_DIR);
    tdir_put(dir, "1_Pooling/config.json", pooling);
    if (!normalize)
        tdir_put(dir, "modules.json",
                 "[{\"idx\":0,\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
                 "{\"idx\":1,\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models."
                 "Pooling\"}]");
    m = open_model(dir, be, &o);
    vectors_agree(m, field);
    mdl_close(&m);
    tdir_rm(dir);
}

static void mean_without_normalising(void **s)
{
    with_pooling("{\"pooling_mode_mean_tokens\": true}", false, "mean");
    with_pooling("{\"embedding_dimension\": 48, \"pooling_mode\": \"mean\"}", false, "mean");
    with_pooling("{\"pooling_mode\": \"cls\", \"pooling_mode_mean_tokens\": true}", false, "cls");
}

static void first_token(void **s)
{
    with_pooling("{\"pooling_mode_cls_token\": true}", false, "cls");
}

static void first_token_normalised(void **s)
{
    with_pooling("{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": false}", true,
                 "cls_embedding");
}

static void two_poolings_are_joined_first_token_first(void **s)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    json_t *list = json_object_get(cases, "cases");
    struct mdl *m;
    float out[512];
    uint32_t d;
    size_t i;

    tdir_new(dir, BERT_DIR);
    tdir_put(dir, "1_Pooling/config.json",
             "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": true}");
    tdir_put(dir, "modules.json",
             "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
             "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}]");
    m = open_model(dir, be, &o);
    d = mdl_info_get(m)->d_model;
    assert_int_equal(mdl_info_get(m)->embed_dim, 2 * d);
    assert_true(2 * d <= 512);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");

        embed(m, json_string_value(text), json_string_length(text), out);
        near_values(out, json_object_get(c, "cls"), TOL, "cls", i);
        near_values(out + d, json_object_get(c, "mean"), TOL, "mean", i);
    }
    mdl_close(&m);
    tdir_rm(dir);
}

/* ------------------------------------------------------- token states */

static void hidden_states_agree(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct last l;
    json_t *list = json_object_get(cases, "cases");
    float out[512];
    size_t i;

    trace_last(m, be, &l);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");

        embed(m, json_string_value(text), json_string_length(text), out);
        near_summary(l.x, l.n, json_object_get(c, "hidden"), TOL, "hidden", i);
    }
    free(l.x);
    mdl_close(&m);
}

static void old_tensor_names_edit(json_t *h, const void *arg)
{
    const char *key;
    json_t *v, *out = json_object();
    void *tmp;

    json_object_foreach_safe(h, tmp, key, v)
    {
        char name[256], *p;

        snprintf(name, sizeof(name), "%s%s", strcmp(key, "__metadata__") ? "bert." : "", key);
        if ((p = strstr(name, "LayerNorm.weight")))
            strcpy(p, "LayerNorm.gamma");
        if ((p = strstr(name, "LayerNorm.bias")))
            strcpy(p, "LayerNorm.beta");
        json_object_set(out, name, v);
    }
    json_object_clear(h);
    json_object_update(h, out);
    json_decref(out);
}

static void old_tensor_names_and_prefix_are_read(void **s)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;

    tdir_new(dir, BERT_DIR);
    tdir_header(dir, old_tensor_names_edit, NULL);
    m = open_model(dir, be, &o);
    vectors_agree(m, "embedding");
    mdl_close(&m);
    tdir_rm(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_agree),
        cmocka_unit_test(hidden_states_agree),
        cmocka_unit_test(embeddings_agree),
        cmocka_unit_test(mean_without_normalising),
        cmocka_unit_test(first_token),
        cmocka_unit_test(first_token_normalised),
        cmocka_unit_test(two_poolings_are_joined_first_token_first),
        cmocka_unit_test(old_tensor_names_and_prefix_are_read),
    };
    int rc;

    need_dir(BERT_DIR);
    cases = load_json(BERT_DIR, "cases.json");
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    json_decref(cases);
    return rc;
}
