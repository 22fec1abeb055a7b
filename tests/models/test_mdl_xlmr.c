/* XLM-RoBERTa: one pass and several, which heads a folder has, positions, maps, what is refused.
 * (Numbers against the reference: *_golden.) */
#include "mdl_test.h"
#include "mdl_xlmr.h"

#define DIM 48
#define VOCAB 984

static struct be_ctx *be;

static struct mdl *open_bge(const char *dir, uint32_t batch_tokens, struct be_ctx *ctx)
{
    struct mdl_opts o = small_opts(BE_F32);

    o.batch_tokens = batch_tokens;
    return open_model(dir, ctx, &o);
}

struct outs {
    float dense[TBATCH * DIM], weights[TBATCH * 64], vectors[TBATCH * 64 * DIM];
};

static void alone_in_a_batch_in_several_passes(void **state)
{
    static const uint32_t rows[] = {192, 4096};
    static struct tbatch b;
    static struct outs all, alone, dense_only;
    struct be_ctx *one = test_ctx(1);
    char dir[256];
    uint32_t s, first;
    size_t i;

    tdir_new(dir, BGE_DIR);
    tbatch_make(&b, VOCAB);
    for (i = 0; i < 2; i++) {
        struct mdl *m = open_bge(dir, rows[i], i % 2 ? one : be);

        need_ok(mdl_encode_tokens(m, TBATCH, b.ids, b.offsets, all.dense, all.weights, all.vectors,
                                  err));
        for (s = 0; s < TBATCH; s++) {
            uint32_t offsets[2] = {0, b.offsets[s + 1] - b.offsets[s]};

            first = b.offsets[s];
            need_ok(mdl_encode_tokens(m, 1, b.ids + first, offsets, alone.dense + s * DIM,
                                      alone.weights + first, alone.vectors + first * DIM, err));
        }
        need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, dense_only.dense, err));
        assert_memory_equal(all.dense, alone.dense, sizeof(all.dense));
        assert_memory_equal(all.dense, dense_only.dense, sizeof(all.dense));
        assert_memory_equal(all.weights, alone.weights, b.offsets[TBATCH] * sizeof(float));
        assert_memory_equal(all.vectors, alone.vectors, b.offsets[TBATCH] * DIM * sizeof(float));
        mdl_close(&m);
    }
    tdir_rm(dir);
    be_ctx_free(&one);
}

static void drop(const char *dir, const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

/* safetensors first, else torch's form; each head by itself; none of either is no error. */
static void heads_are_those_that_have_files(void **state)
{
    const uint32_t offsets[2] = {0, 4};
    const int32_t ids[4] = {0, 40, 50, 2};
    float dense[DIM], w[2][4], v[2][4 * DIM];
    struct rc_err e = RC_ERR_INIT;
    char dir[256];
    struct mdl *m;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, be);
    assert_true(mdl_info_get(m)->can_sparse);
    assert_int_equal(mdl_info_get(m)->token_dim, DIM);
    need_ok(mdl_encode_tokens(m, 1, ids, offsets, dense, w[0], v[0], err));
    mdl_close(&m);
    drop(dir, "sparse_linear.safetensors");
    drop(dir, "colbert_linear.safetensors");
    m = open_bge(dir, 192, be);
    need_ok(mdl_encode_tokens(m, 1, ids, offsets, dense, w[1], v[1], err));
    assert_memory_equal(w[0], w[1], sizeof(w[0]));
    assert_memory_equal(v[0], v[1], sizeof(v[0]));
    mdl_close(&m);
    drop(dir, "sparse_linear.pt");
    m = open_bge(dir, 192, be);
    assert_false(mdl_info_get(m)->can_sparse);
    assert_int_equal(mdl_encode_tokens(m, 1, ids, offsets, dense, w[0], NULL, &e), RC_UNSUPPORTED);
    need_ok(mdl_encode_tokens(m, 1, ids, offsets, dense, NULL, v[1], err));
    assert_memory_equal(v[0], v[1], sizeof(v[0]));
    mdl_close(&m);
    drop(dir, "colbert_linear.pt");
    m = open_bge(dir, 192, be);
    assert_int_equal(mdl_info_get(m)->token_dim, 0);
    assert_int_equal(mdl_encode_tokens(m, 1, ids, offsets, dense, NULL, v[0], &e), RC_UNSUPPORTED);
    need_ok(mdl_encode(m, 1, ids, offsets, dense, err));
    mdl_close(&m);
    tdir_rm(dir);
}

/* A file of heads takes part in the identity. */
static void heads_are_part_of_the_identity(void **state)
{
    char dir[256], with[65];
    struct mdl *m;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, be);
    snprintf(with, sizeof(with), "%s", mdl_info_get(m)->identity);
    assert_int_equal(strlen(with), 64);
    mdl_close(&m);
    drop(dir, "sparse_linear.safetensors");
    m = open_bge(dir, 192, be);
    assert_string_not_equal(mdl_info_get(m)->identity, with);
    mdl_close(&m);
    tdir_rm(dir);
}

static void info_and_limits(void **state)
{
    struct rc_err e = RC_ERR_INIT;
    const struct mdl_info *i;
    struct mdl_ids ids = {0};
    char dir[256];
    struct mdl *m;
    bool cut = false;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, be);
    i = mdl_info_get(m);
    assert_string_equal(i->family, "bert");
    assert_string_equal(i->arch, "XLMRobertaModel");
    assert_true(i->can_embed && !i->can_rerank && !i->can_generate);
    assert_int_equal(i->train_ctx_tokens, 192); /* 194 positions, of which two are no token's */
    assert_int_equal(i->max_input_tokens, 192);
    assert_int_equal(mdl_dims_check(m, 24, &e), RC_INVALID);
    need_ok(mdl_embed_tokens(m, "Hello world", 11, NULL, false, &cut, &ids, err));
    assert_int_equal(ids.n, 9);
    assert_int_equal(ids.ids[0], 0);
    assert_int_equal(ids.ids[8], 2);
    mdl_ids_deinit(&ids);
    mdl_close(&m);
    tdir_set(dir, "config.json", "pad_token_id", "100");
    m = open_bge(dir, 192, be);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 93);
    mdl_close(&m);
    tdir_rm(dir);
}

static void rename_trunk(json_t *header, const void *arg)
{
    const char *name, *prefix = arg;
    json_t *v, *out = json_object();
    char longer[160];

    json_object_foreach(header, name, v)
    {
        snprintf(longer, sizeof(longer), "%s%s", strcmp(name, "__metadata__") ? prefix : "", name);
        json_object_set(out, longer, v);
    }
    json_object_clear(header);
    json_object_update(header, out);
    json_decref(out);
}

static void prefixes_and_words_of_the_architecture(void **state)
{
    static const char *const rows[][2] = {{"roberta.", "[\"XLMRobertaForMaskedLM\"]"},
                                          {"roberta.", "[\"RobertaForMaskedLM\"]"},
                                          {"", "[\"RobertaModel\"]"},
                                          {"xlm_roberta.", "[\"XLMRobertaModel\"]"}};
    const uint32_t offsets[2] = {0, 5};
    const int32_t ids[5] = {0, 40, 1, 50, 2};
    float want[DIM], got[DIM];
    char dir[256];
    struct mdl *m;
    size_t i;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, be);
    need_ok(mdl_encode(m, 1, ids, offsets, want, err));
    mdl_close(&m);
    tdir_rm(dir);
    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tdir_new(dir, BGE_DIR);
        tdir_header(dir, rename_trunk, rows[i][0]);
        tdir_set(dir, "config.json", "architectures", rows[i][1]);
        m = open_bge(dir, 192, be);
        need_ok(mdl_encode(m, 1, ids, offsets, got, err));
        assert_memory_equal(got, want, sizeof(want));
        mdl_close(&m);
        tdir_rm(dir);
    }
}

static void maps_keep_the_largest_weight_of_an_id(void **state)
{
    static const int32_t ids[] = {0, 700, 5, 3, 5, 1, 4, 700, 5, 6, 2};
    static const float weights[] = {9, .5f, .25f, 9, .75f, 9, 0, .125f, .5f, -1, 9};
    struct mdl_lexical out[11];
    uint32_t first;
    char dir[256];
    struct mdl *m;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, be);
    assert_int_equal(mdl_sparse_map(m, ids, weights, 11, out), 2);
    assert_int_equal(out[0].id, 5);
    assert_true(out[0].weight == .75f);
    assert_int_equal(out[1].id, 700);
    assert_true(out[1].weight == .5f);
    assert_int_equal(mdl_sparse_map(m, ids, weights, 0, out), 0);
    assert_int_equal(mdl_sparse_map(m, ids, weights, 1, out), 0);
    mdl_close(&m);
    tdir_rm(dir);
    assert_int_equal(mdl_vector_rows(7, &first), 6);
    assert_int_equal(first, 1);
    assert_int_equal(mdl_vector_rows(1, &first), 0);
    assert_int_equal(mdl_vector_rows(0, &first), 0);
}

static void passes_allocate_nothing(void **state)
{
    static struct tbatch b;
    static struct outs out;
    struct be_ctx *own = test_ctx(2);
    struct be_stats st;
    char dir[256];
    struct mdl *m;

    tdir_new(dir, BGE_DIR);
    m = open_bge(dir, 192, own);
    tbatch_make(&b, VOCAB);
    be_ctx_seal(own);
    need_ok(
        mdl_encode_tokens(m, TBATCH, b.ids, b.offsets, out.dense, out.weights, out.vectors, err));
    be_ctx_stats(own, &st);
    assert_int_equal(st.hot_allocs, 0);
    mdl_close(&m);
    tdir_rm(dir);
    be_ctx_free(&own);
}

/* --------------------------------------------------------------- refusals */

static void refused(const char *file, const char *key, const char *value, enum rc want,
                    const char *says)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char dir[256];
    enum rc rc;
    int fd;

    tdir_new(dir, BGE_DIR);
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

static enum rc try_cross(const char *from, const char *key, const char *value, struct mdl **m,
                         struct rc_err *e)
{
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256];
    enum rc rc;
    int fd;

    cross_copy(dir, from);
    tdir_set(dir, "config.json", key, value);
    fd = open_root(dir);
    rc = mdl_open(m, fd, be, &o, e);
    close(fd);
    tdir_rm(dir);
    return rc;
}

static void two_logits(json_t *header, const void *arg)
{
    json_t *t = json_object_get(header, arg);

    /* [1, 32] becomes [2, 16]: as many numbers */
    json_object_set_new(t, "shape", json_pack("[ii]", 2, 16));
}

static void cross_encoders_score_and_do_not_embed(void **state)
{
    static const char *const rows[][3] = {
        {CROSS_BERT_DIR, "[\"BertForSequenceClassification\"]", "classifier.weight"},
        {CROSS_XLMR_DIR, "[\"RobertaForSequenceClassification\"]", "classifier.out_proj.weight"}};
    struct mdl_ids ids = {0};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256], doc[2000];
    struct mdl *m = NULL;
    bool cut = false;
    size_t i;
    int fd;

    memset(doc, 'w', sizeof(doc));
    for (i = 0; i < sizeof(doc); i += 2)
        doc[i] = ' ';
    for (i = 0; i < 2; i++) {
        need_ok(try_cross(rows[i][0], "architectures", rows[i][1], &m, err));
        assert_true(mdl_info_get(m)->can_rerank && !mdl_info_get(m)->can_embed);
        assert_int_equal(mdl_encode_dim(m), 1);
        assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
        assert_string_equal(mdl_info_get(m)->identity, "");
        assert_int_equal(mdl_embed_tokens(m, "a", 1, NULL, false, &cut, &ids, &e), RC_UNSUPPORTED);
        assert_int_equal(mdl_dims_check(m, 1, &e), RC_UNSUPPORTED);
        assert_int_equal(mdl_pair_tokens(m, "a", 1, doc, sizeof(doc), false, &cut, &ids, &e),
                         RC_TOO_LARGE);
        assert_int_equal(e.limit, 64);
        assert_true(e.n > 64);
        assert_int_equal(ids.n, 0);
        need_ok(mdl_pair_tokens(m, "a", 1, doc, sizeof(doc), true, &cut, &ids, err));
        assert_true(cut);
        assert_int_equal(ids.n, 64);
        ids.n = 0;
        mdl_close(&m);
        cross_copy(dir, rows[i][0]);
        tdir_header(dir, two_logits, rows[i][2]);
        fd = open_root(dir);
        assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_UNSUPPORTED);
        assert_non_null(strstr(e.msg, "2 labels"));
        close(fd);
        tdir_rm(dir);
    }
    assert_int_equal(try_cross(CROSS_BERT_DIR, "architectures",
                               "[\"RobertaForSequenceClassification\"]", &m, &e),
                     RC_WEIGHT_ABSENT);
    mdl_ids_deinit(&ids);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    refused("config.json", "pad_token_id", "192", RC_FORMAT, "193");
    refused("config.json", "pad_token_id", "2000", RC_FORMAT, "2001");
    refused("config.json", "architectures", "[\"XLMRobertaForTokenClassification\"]",
            RC_UNSUPPORTED, "XLMRobertaForTokenClassification");
    refused("config.json", "position_embedding_type", "\"relative_key\"", RC_UNSUPPORTED,
            "relative_key");
    refused("sparse_linear.safetensors", NULL, "nonsense", RC_FORMAT, "sparse_linear.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(heads_are_those_that_have_files),
        cmocka_unit_test(heads_are_part_of_the_identity),
        cmocka_unit_test(info_and_limits),
        cmocka_unit_test(prefixes_and_words_of_the_architecture),
        cmocka_unit_test(maps_keep_the_largest_weight_of_an_id),
        cmocka_unit_test(passes_allocate_nothing),
        cmocka_unit_test(cross_encoders_score_and_do_not_embed),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
    };
    int rc;

    need_dir(BGE_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
