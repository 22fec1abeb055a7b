/* NomicBERT: vectors of the reference from safetensors (both spellings of the config) and GGUF, the
 * equality contract, what is refused. Provenance: tests/golden/README.md */
#include "be_impl.h"
#include "mdl_test.h"

#define NOMIC_DIR TEST_GOLDEN "/nomic"
#define TOL test_tol(1e-5, 6e-3, 1e-2)
#define TOL_QUANT 0.05 /* a unit vector of 32 values; activations are rounded to 8 bits too */
#define DIM 32

static struct be_ctx *be;

/* With the tokenizer that the folder's vocabulary has room for, and a step that says which pooling.
 */
static void copy_of(char *dir, const char *pooling)
{
    char a[512], b[512];

    tdir_new(dir, NOMIC_DIR);
    path_join(a, sizeof(a), BERT_DIR, "tokenizer.json");
    path_join(b, sizeof(b), dir, "tokenizer.json");
    copy_file(a, b);
    snprintf(b, sizeof(b), "{\"pooling_mode\": \"%s\"}", pooling);
    path_join(a, sizeof(a), dir, "1_Pooling");
    assert_int_equal(mkdir(a, 0755), 0);
    tdir_put(dir, "1_Pooling/config.json", b);
    tdir_put(dir, "modules.json",
             "[{\"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},"
             "{\"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}]");
}

static struct mdl *open_at(const char *path, uint32_t batch_tokens, struct be_ctx *ctx)
{
    struct mdl_opts o = small_opts(BE_F32);

    o.batch_tokens = batch_tokens;
    return open_model(path, ctx, &o);
}

/* unit: vectors are divided by their length first, as GGUF means it. */
static void check(struct mdl *m, const char *field, bool unit, double tol)
{
    json_t *j = load_json(NOMIC_DIR, "cases.json"), *c;
    float out[DIM];
    size_t i, k;

    assert_int_equal(mdl_encode_dim(m), DIM);
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *want = json_object_get(c, field);
        uint32_t offsets[2] = {0, 0};
        int32_t *ids = ids_of(json_object_get(c, "ids"), &offsets[1]);
        double len = 0;

        need_ok(mdl_encode(m, 1, ids, offsets, out, err));
        for (k = 0; unit && k < DIM; k++)
            len += pow(json_number_value(json_array_get(want, k)), 2);
        for (k = 0; k < DIM; k++) {
            double w = json_number_value(json_array_get(want, k)) / (unit ? sqrt(len) : 1);

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
    static const char *const pools[] = {"mean", "cls"};
    char dir[256], a[512], b[512];

    for (size_t i = 0; i < 2; i++) {
        struct mdl *m;

        copy_of(dir, pools[i]);
        m = open_at(dir, 64, be);
        assert_string_equal(mdl_info_get(m)->family, "nomic-bert");
        assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
        check(m, pools[i], false, TOL);
        mdl_close(&m);
        /* the other spelling of the same numbers */
        path_join(a, sizeof(a), dir, "config_native.json");
        path_join(b, sizeof(b), dir, "config.json");
        copy_file(a, b);
        m = open_at(dir, 64, be);
        check(m, pools[i], false, TOL);
        mdl_close(&m);
        tdir_rm(dir);
    }
}

static struct mdl *open_gguf(const char *name, const char *const *args)
{
    char path[512];

    gguf_make(path, sizeof(path), NOMIC_DIR, name, args);
    return open_at(path, 64, be);
}

static void gguf_agrees(void **state)
{
    static const char *const mean[] = {"--tokenizer", BERT_DIR, NULL};
    static const char *const cls[] = {"--tokenizer", BERT_DIR, "--pooling", "cls", NULL};
    static const char *const q8[] = {"--tokenizer", BERT_DIR, "--type", "Q8_0", NULL};
    struct mdl *m = open_gguf("nomic.gguf", mean);

    assert_string_equal(mdl_info_get(m)->arch, "nomic-bert");
    check(m, "mean", true, TOL);
    mdl_close(&m);
    m = open_gguf("nomic-cls.gguf", cls);
    check(m, "cls", true, TOL);
    mdl_close(&m);
    m = open_gguf("nomic-q8.gguf", q8);
    check(m, "mean", true, TOL_QUANT);
    mdl_close(&m);
}

static void alone_in_a_batch_in_several_passes(void **state)
{
    static struct tbatch b;
    static float all[TBATCH * DIM], alone[TBATCH * DIM], first[TBATCH * DIM];
    struct be_ctx *one = test_ctx(1);
    char dir[256];

    copy_of(dir, "mean");
    tbatch_make(&b, 1100);
    for (uint32_t i = 0; i < 2; i++) {
        struct mdl *m = open_at(dir, i ? 4096 : 64, i ? one : be);

        need_ok(mdl_encode(m, TBATCH, b.ids, b.offsets, all, err));
        for (uint32_t s = 0; s < TBATCH; s++)
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

static void refused(const char *path, struct be_ctx *ctx, enum rc rc, const char *what)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    int fd = open_root(path);

    if (mdl_open(&m, fd, ctx, &o, &e) != rc || strcmp(e.what, what) != 0)
        fail_msg("'%s' (%s), expected %s of '%s'", e.msg, e.what, rc_name(rc), what);
    close(fd);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    static const struct {
        const char *key, *value;
        enum rc rc;
        const char *what;
    } rows[] = {
        {"qkv_proj_bias", "true", RC_UNSUPPORTED, "qkv_proj_bias"},
        {"mlp_fc1_bias", "true", RC_UNSUPPORTED, "mlp_fc1_bias"},
        {"prenorm", "true", RC_UNSUPPORTED, "prenorm"},
        {"causal", "true", RC_UNSUPPORTED, "causal"},
        {"use_rms_norm", "true", RC_UNSUPPORTED, "use_rms_norm"},
        {"rotary_emb_interleaved", "true", RC_UNSUPPORTED, "rotary_emb_interleaved"},
        {"rotary_scaling_factor", "2", RC_UNSUPPORTED, "rotary_scaling_factor"},
        {"rotary_emb_fraction", "0.5", RC_UNSUPPORTED, "rotary_emb_fraction"},
        {"activation_function", "\"gelu\"", RC_UNSUPPORTED, "activation_function"},
        {"n_head", "5", RC_FORMAT, "num_attention_heads"},
        {"n_layer", "4", RC_WEIGHT_ABSENT, "encoder.layers.3.attn.Wqkv.weight"},
        {"n_layer", "0", RC_FORMAT, "n_layer"},
        {"vocab_size", "100", RC_FORMAT, "tokenizer.json"},
        {"architectures", "[\"NomicBertForSequenceClassification\"]", RC_UNSUPPORTED,
         "architecture"},
    };
    char dir[256];

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        copy_of(dir, "mean");
        tdir_set(dir, "config.json", rows[i].key, rows[i].value);
        refused(dir, be, rows[i].rc, rows[i].what);
        tdir_rm(dir);
    }
}

static void gguf_that_lacks_something_is_refused(void **state)
{
    static const char *const names[] = {"token_embd_norm.bias", "blk.2.ffn_gate.weight",
                                        "token_types.weight"};
    char path[512], file[64];

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *const args[] = {"--tokenizer", BERT_DIR, "--drop", names[i], NULL};

        snprintf(file, sizeof(file), "nomic-no-%zu.gguf", i);
        gguf_make(path, sizeof(path), NOMIC_DIR, file, args);
        refused(path, be, RC_WEIGHT_ABSENT, names[i]);
    }
}

/* A backend without silu says so when the model is opened. */
static void a_backend_may_lack_an_operation(void **state)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1};
    struct be_ops bare = be_cpu_ops;
    struct be_ctx *other = NULL;
    char dir[256];

    need_ok(be_ctx_new(&other, &o, err));
    bare.attention_local = NULL;
    other->ops = &bare;
    copy_of(dir, "mean");
    refused(dir, other, RC_UNSUPPORTED, "backend");
    tdir_rm(dir);
    be_ctx_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree),
        cmocka_unit_test(gguf_agrees),
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(gguf_that_lacks_something_is_refused),
        cmocka_unit_test(a_backend_may_lack_an_operation),
    };
    int rc;

    need_dir(NOMIC_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
