/* EmbeddingGemma 2: what its files may say, what is refused by name, and what a probe and a small
 * workspace make of them. */
#include "mdl_test.h"

#include "be_impl.h"

#define DIM 96
#define BOS 2
#define EOS 1

static struct be_ctx *be;

static void refused(struct be_ctx *ctx, const char *dir, enum rc rc, const char *what)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    int fd = open_root(dir);
    enum rc got = mdl_open(&m, fd, ctx, &o, &e);

    close(fd);
    assert_null(m);
    if (got != rc || strstr(e.what, what) == NULL || e.msg[0] == '\0')
        fail_msg("'%s' (%s, about '%s'); expected %s about '%s'", e.msg, rc_name(got), e.what,
                 rc_name(rc), what);
}

static void configs_that_are_refused(void **state)
{
    static const struct {
        const char *file, *key, *value;
        enum rc rc;
        const char *what;
    } rows[] = {
        {"config.json", "text_config", NULL, RC_FORMAT, "text_config"},
        {"config.json", "text_config", "[]", RC_FORMAT, "text_config"},
        {"config.json", "dtype", "\"float16\"", RC_UNSUPPORTED, "dtype"},
        {"config.json", "torch_dtype", "\"float16\"", RC_UNSUPPORTED, "torch_dtype"},
        {"config.json", "quantization_config", "{\"bits\": 4}", RC_UNSUPPORTED,
         "quantization_config"},
        {"config.json", "image_token_id", "698", RC_FORMAT, "image_token_id"},
        {"config.json", "boi_token_id", "704", RC_FORMAT, "boi_token_id"},
        {"config.json", "eoa_token_index", "701", RC_FORMAT, "eoa_token_index"},
        {"config.json", "video_token_id", "700", RC_FORMAT, "video_token_id"},
        {"config.json", "audio_token_id", "\"x\"", RC_FORMAT, "audio_token_id"},
        {"config.json", "text_config.bos_token_id", "3", RC_FORMAT, "bos_token_id"},
        {"config.json", "text_config.eos_token_id", "0", RC_FORMAT, "eos_token_id"},
        {"config.json", "text_config.model_type", "\"gemma4_text\"", RC_UNSUPPORTED, "model_type"},
        {"config.json", "text_config.num_hidden_layers", "0", RC_FORMAT, "num_hidden_layers"},
        {"config.json", "text_config.num_hidden_layers", "129", RC_FORMAT, "num_hidden_layers"},
        {"config.json", "text_config.num_hidden_layers", "5", RC_FORMAT, "layer_types"},
        {"config.json", "text_config.hidden_size", NULL, RC_FORMAT, "hidden_size"},
        {"config.json", "text_config.hidden_size", "49", RC_FORMAT, "embed_tokens"},
        {"config.json", "text_config.intermediate_size", "95", RC_FORMAT, "mlp.gate_proj"},
        {"config.json", "text_config.embedding_dim", "97", RC_FORMAT, "embedding_projection"},
        {"config.json", "text_config.vocab_size", "703", RC_FORMAT, "tokenizer.json"},
        {"config.json", "text_config.vocab_size", "705", RC_FORMAT, "embed_tokens"},
        {"config.json", "text_config.num_attention_heads", "3", RC_FORMAT, "num_key_value_heads"},
        {"config.json", "text_config.head_dim", "15", RC_FORMAT, "head_dim"},
        {"config.json", "text_config.head_dim", "1024", RC_FORMAT, "head_dim"},
        {"config.json", "text_config.sliding_window", "-1", RC_FORMAT, "sliding_window"},
        {"config.json", "text_config.hidden_size_per_layer_input", "0", RC_FORMAT,
         "hidden_size_per_layer_input"},
        {"config.json", "text_config.hidden_size_per_layer_input", "15", RC_FORMAT, "ple_block"},
        {"config.json", "text_config.max_position_embeddings", "1", RC_FORMAT,
         "max_position_embeddings"},
        {"config.json", "text_config.rms_norm_eps", "-1", RC_FORMAT, "rms_norm_eps"},
        {"config.json", "text_config.hidden_activation", "\"silu\"", RC_UNSUPPORTED,
         "hidden_activation"},
        {"config.json", "text_config.attention_bias", "true", RC_UNSUPPORTED, "attention_bias"},
        {"config.json", "text_config.layer_types", "[\"full_attention\"]", RC_FORMAT,
         "layer_types"},
        {"config.json", "text_config.layer_types", "[1,2,3,4,5,6]", RC_FORMAT, "layer_types"},
        {"config.json", "text_config.per_layer_config", "{\"6\": {}}", RC_FORMAT,
         "per_layer_config"},
        {"config.json", "text_config.per_layer_config", "{\"2\": {\"head_dim\": 32}}",
         RC_UNSUPPORTED, "per_layer_config"},
        {"config.json", "text_config.per_layer_config", "[]", RC_FORMAT, "per_layer_config"},
        {"config.json", "text_config.rope_parameters", "{\"full_attention\": 3}", RC_FORMAT,
         "rope_parameters"},
        {"config.json", "text_config.rope_parameters",
         "{\"sliding_attention\": {\"rope_type\": \"yarn\"}}", RC_UNSUPPORTED, "rope_type"},
        {"config.json", "text_config.rope_parameters",
         "{\"sliding_attention\": {\"rope_theta\": 0}}", RC_FORMAT, "rope_theta"},
        {"1_Pooling/config.json", "pooling_mode_cls_token", "true", RC_UNSUPPORTED, "modules.json"},
        {"1_Pooling/config.json", "include_prompt", "false", RC_UNSUPPORTED, "include_prompt"},
        {"config_sentence_transformers.json", "similarity_fn_name", "\"dot\"", RC_UNSUPPORTED,
         "similarity_fn_name"},
        {"config_sentence_transformers.json", "default_prompt_name", "\"query\"", RC_UNSUPPORTED,
         "default_prompt_name"},
        {"config_sentence_transformers.json", "prompts", "{\"STS\": \"task: x | query: \"}",
         RC_UNSUPPORTED, "prompts"},
    };
    char dir[256], from[512], to[512];
    size_t i;

    tdir_new(dir, EG2_DIR);
    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tdir_set(dir, rows[i].file, rows[i].key, rows[i].value);
        refused(be, dir, rows[i].rc, rows[i].what);
        path_join(from, sizeof(from), EG2_DIR, rows[i].file);
        path_join(to, sizeof(to), dir, rows[i].file);
        copy_file(from, to);
    }
    tdir_rm(dir);
}

static void other_modules_are_refused(void **state)
{
    char dir[256];

    tdir_new(dir, EG2_DIR);
    tdir_put(dir, "modules.json",
             "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
             "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}]");
    refused(be, dir, RC_UNSUPPORTED, "modules.json");
    tdir_rm(dir);
}

/* preprocessor_config.json counts for the parts that processor_config.json does not describe. */
static void either_file_of_the_processor_counts(void **state)
{
    static const struct {
        const char *part, *text, *what;
    } rows[] = {
        {"image_processor", "{\"do_normalize\": true}", "do_normalize"},
        {"feature_extractor", "{\"sampling_rate\": 8000}", "sampling_rate"},
    };
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256];
    size_t i;

    for (i = 0; i < 2; i++) {
        struct mdl *m;

        tdir_new(dir, EG2_DIR);
        tdir_put(dir, "preprocessor_config.json", rows[i].text);
        m = open_model(dir, be, &o);
        mdl_close(&m);
        tdir_set(dir, "processor_config.json", rows[i].part, NULL);
        refused(be, dir, RC_UNSUPPORTED, rows[i].what);
        tdir_rm(dir);
    }
}

struct edit {
    const char *name; /* of the tensor */
    const char *dtype, *shape;
};

static void edit_tensor(json_t *header, const void *arg)
{
    const struct edit *e = arg;
    json_t *t = json_object_get(header, e->name);

    assert_non_null(t);
    if (e->dtype)
        json_object_set_new(t, "dtype", json_string(e->dtype));
    if (e->shape)
        json_object_set_new(t, "shape", json_loads(e->shape, 0, NULL));
    if (!e->dtype && !e->shape) {
        json_object_set(header, "other", t);
        json_object_del(header, e->name);
    }
}

static void weights_that_are_refused(void **state)
{
    static const struct {
        const char *dir;
        struct edit edit;
        enum rc rc;
    } rows[] = {
        {EG2_DIR, {"language_model.norm.weight", NULL, NULL}, RC_WEIGHT_ABSENT},
        {EG2_DIR, {"language_model.layers.5.layer_scalar", NULL, NULL}, RC_WEIGHT_ABSENT},
        {EG2_DIR,
         {"language_model.layers.0.self_attn.v_proj.weight", NULL, NULL},
         RC_WEIGHT_ABSENT},
        {EG2_DIR,
         {"language_model.ple.per_layer_model_projection.weight", NULL, "[48,96]"},
         RC_FORMAT},
        {EG2_DIR, {"language_model.embedding_projection.weight", NULL, "[48,96]"}, RC_FORMAT},
        {EG2_DIR, {"language_model.layers.2.self_attn.q_norm.weight", NULL, "[2,16]"}, RC_FORMAT},
        {EG2_BF16_DIR, {"language_model.layers.3.mlp.up_proj.weight", "F16", NULL}, RC_UNSUPPORTED},
        {EG2_BF16_DIR, {"language_model.layers.1.layer_scalar", "F16", NULL}, RC_UNSUPPORTED},
        {EG2_BF16_DIR, {"language_model.embed_tokens.weight", "F16", NULL}, RC_UNSUPPORTED},
    };
    char dir[256];
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tdir_new(dir, rows[i].dir);
        tdir_header(dir, edit_tensor, &rows[i].edit);
        refused(be, dir, rows[i].rc, rows[i].edit.name);
        tdir_rm(dir);
    }
}

/* The last layer is a global one; the per-layer list may be spelled with zeros; side files
 * may be absent: the recipe is the family's. */
static void spellings_that_mean_the_same(void **state)
{
    static const int32_t ids[] = {BOS, 620, 485, 328, 301, 389, EOS};
    const uint32_t offsets[2] = {0, 7};
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(EG2_DIR, be, &o);
    float want[DIM], got[DIM];
    char dir[256], path[512];

    need_ok(mdl_encode(m, 1, ids, offsets, want, err));
    mdl_close(&m);
    tdir_new(dir, EG2_DIR);
    tdir_set(dir, "config.json", "text_config.per_layer_config",
             "{\"02\": {\"head_dim\": 32, \"num_key_value_heads\": 1}, \"05\": {\"head_dim\": "
             "32, \"num_key_value_heads\": 1}}");
    tdir_set(dir, "config.json", "text_config.rope_parameters", "null");
    tdir_set(dir, "config.json", "text_config.layer_types",
             "[\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
             "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"]");
    snprintf(path, sizeof(path), "%s/modules.json", dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/config_sentence_transformers.json", dir);
    assert_int_equal(unlink(path), 0);
    m = open_model(dir, be, &o);
    need_ok(mdl_encode(m, 1, ids, offsets, got, err));
    assert_memory_equal(got, want, sizeof(want));
    mdl_close(&m);
    tdir_set(dir, "config.json", "text_config.per_layer_config",
             NULL); /* the family's own: 512 wide, one head */
    refused(be, dir, RC_FORMAT, "layers.2.self_attn.q_proj");
    tdir_rm(dir);
}

static void other_backends_and_formats_are_refused(void **state)
{
    struct be_ops bare = be_cpu_ops;
    struct be_opts o = {.backend = "cpu"};
    struct be_ctx *other = NULL;
    char dir[256], path[512];
    FILE *f;

    /* one that has no operations of eyes and ears, as cuda has none */
    need_ok(be_ctx_new(&other, &o, err));
    bare.attention_local = NULL;
    other->ops = &bare;
    refused(other, EG2_DIR, RC_UNSUPPORTED, "backend");
    be_ctx_free(&other);

    /* a GGUF header with the architecture word and nothing else */
    tdir_new(dir, BERT_DIR);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/model.gguf", dir);
    assert_non_null(f = fopen(path, "wb"));
    fwrite("GGUF\3\0\0\0"
           "\0\0\0\0\0\0\0\0"
           "\1\0\0\0\0\0\0\0"
           "\24\0\0\0\0\0\0\0general.architecture"
           "\10\0\0\0"
           "\20\0\0\0\0\0\0\0"
           "gemma-embedding2",
           1, 8 + 8 + 8 + 8 + 20 + 4 + 8 + 16, f);
    fclose(f);
    refused(be, dir, RC_UNSUPPORTED, "architecture");
    tdir_rm(dir);
}

/* What the headers tell, without a backend; budgets decide the rest. */
static void probing_tells_what_it_is(void **state)
{
    struct mdl_info info;
    int fd = open_root(EG2_DIR);

    need_ok(mdl_probe(&info, fd, err));
    close(fd);
    assert_string_equal(info.family, "embeddinggemma2");
    assert_string_equal(info.arch, "EmbeddingGemma2Model");
    assert_string_equal(info.quant, "F32");
    assert_true(info.can_embed && info.can_embed_groups && info.can_embed_image &&
                info.can_embed_sound && !info.can_generate);
    assert_int_equal(info.embed_dim, DIM);
    assert_int_equal(info.max_input_tokens, 8192);
    assert_int_equal(info.n_params,
                     318962); /* all that the file holds but the bounds of clipping */
}

/* Passes become smaller until they fit, down to one input of full length; then it is refused. */
static void a_small_workspace(void **state)
{
    static const int32_t ids[] = {BOS, 620, 485, 328, 301, 389, EOS};
    const uint32_t offsets[2] = {0, 7};
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    float want[DIM], got[DIM];
    uint64_t least;
    struct mdl *m;
    char dir[256];
    int fd;

    tdir_new(dir, EG2_DIR);
    tdir_set(dir, "config.json", "text_config.max_position_embeddings", "64");
    o.batch_tokens = 64;
    m = open_model(dir, be, &o);
    least = mdl_info_get(m)->workspace_bytes;
    need_ok(mdl_encode(m, 1, ids, offsets, want, err));
    mdl_close(&m);
    o.batch_tokens = 8192;
    m = open_model(dir, be, &o);
    assert_true(mdl_info_get(m)->workspace_bytes > 2 * least);
    mdl_close(&m);
    o.workspace_bytes = least + least / 4;
    m = open_model(dir, be, &o);
    assert_true(mdl_info_get(m)->workspace_bytes <= o.workspace_bytes);
    assert_in_range(mdl_encode_max_seqs(m), 32, 1024);
    need_ok(mdl_encode(m, 1, ids, offsets, got, err));
    assert_memory_equal(got, want, sizeof(want));
    mdl_close(&m);
    o.workspace_bytes = least / 2;
    fd = open_root(dir);
    assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_LIMIT);
    close(fd);
    assert_true(e.n > o.workspace_bytes && e.limit == o.workspace_bytes);
    tdir_rm(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_that_are_refused),
        cmocka_unit_test(other_modules_are_refused),
        cmocka_unit_test(either_file_of_the_processor_counts),
        cmocka_unit_test(weights_that_are_refused),
        cmocka_unit_test(spellings_that_mean_the_same),
        cmocka_unit_test(other_backends_and_formats_are_refused),
        cmocka_unit_test(probing_tells_what_it_is),
        cmocka_unit_test(a_small_workspace),
    };
    int rc;

    need_dir(EG2_DIR);
    need_dir(EG2_BF16_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
