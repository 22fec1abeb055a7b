/* EmbeddingGemma 2: what its files may say, the limits of an input, the words of groups and
 * tasks, and the equality contract bit for bit. (Numbers against the reference: *_golden.) */
#include "mdl_test.h"

#define EG2_DIR TEST_GOLDEN "/embeddinggemma2"
#define EG2_BF16_DIR TEST_GOLDEN "/embeddinggemma2-bf16"
#define DIM 96
#define BOS 2
#define EOS 1

static struct be_ctx *be;

static struct mdl *open_eg2(uint32_t batch_tokens)
{
    struct mdl_opts o = small_opts(BE_F32);

    o.batch_tokens = batch_tokens;
    return open_model(EG2_DIR, be, &o);
}

/* ------------------------------------------------------------------- files */

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

/* A field of config.json ("text_config.x": of the object in it) set to a JSON value, or gone. */
static void set_config(const char *dir, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    json_t *all, *j, *v;
    char *text;

    if (!dot) {
        tdir_set(dir, "config.json", key, value);
        return;
    }
    all = load_json(dir, "config.json");
    assert_non_null(j = json_object_get(all, "text_config"));
    if (value) {
        assert_non_null(v = json_loads(value, JSON_DECODE_ANY, NULL));
        json_object_set_new(j, dot + 1, v);
    } else {
        json_object_del(j, dot + 1);
    }
    assert_non_null(text = json_dumps(j, 0));
    tdir_set(dir, "config.json", "text_config", text);
    free(text);
    json_decref(all);
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
        {"config.json", "text_config.num_attention_heads", "3", RC_FORMAT, "head_dim"},
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
        if (strcmp(rows[i].file, "config.json") == 0)
            set_config(dir, rows[i].key, rows[i].value);
        else
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
    struct mdl *m = open_eg2(64);
    struct mdl_opts o = small_opts(BE_F32);
    float want[DIM], got[DIM];
    char dir[256], path[512];

    need_ok(mdl_encode(m, 1, ids, offsets, want, err));
    mdl_close(&m);
    tdir_new(dir, EG2_DIR);
    set_config(dir, "text_config.per_layer_config",
               "{\"02\": {\"head_dim\": 32, \"num_key_value_heads\": 1}, \"05\": {\"head_dim\": "
               "32, \"num_key_value_heads\": 1}}");
    set_config(dir, "text_config.rope_parameters", "null");
    set_config(dir, "text_config.layer_types",
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
    set_config(dir, "text_config.per_layer_config",
               NULL); /* the family's own: 512 wide, one head */
    refused(be, dir, RC_FORMAT, "layers.2.self_attn.q_proj");
    tdir_rm(dir);
}

static void other_backends_and_formats_are_refused(void **state)
{
    struct be_opts o = {.backend = "fail"};
    struct be_ctx *other = NULL;
    char dir[256], path[512];
    FILE *f;

    need_ok(be_ctx_new(&other, &o, err));
    assert_string_equal(be_ctx_backend(other), "fail");
    refused(other, EG2_DIR, RC_UNSUPPORTED, "backend");
    be_ctx_free(&other);
    assert_string_equal(be_ctx_backend(be), "cpu");

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

/* ------------------------------------------------------------------- inputs */

static enum rc tokens(struct mdl *m, const char *text, const char *task, struct mdl_ids *out,
                      struct rc_err *e)
{
    bool cut = true;

    out->n = 0;
    return mdl_embed_tokens(m, text, strlen(text), task, false, &cut, out, e);
}

static bool same(const struct mdl_ids *a, const struct mdl_ids *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof(*a->ids)) == 0;
}

static void eight_tasks_and_no_other(void **state)
{
    static const char *const bad[] = {"retrieval_query", "SEARCH", "query", "Document", "task"};
    static const char *const prompts[][2] = {
        {"RETRIEVAL_QUERY", "task: search result | query: "},
        {"QUESTION_ANSWERING", "task: question answering | query: "},
        {"FACT_VERIFICATION", "task: fact checking | query: "},
        {"CODE_RETRIEVAL_QUERY", "task: code retrieval | query: "},
        {"SEMANTIC_SIMILARITY", "task: sentence similarity | query: "},
        {"CLASSIFICATION", "task: classification | query: "},
        {"CLUSTERING", "task: clustering | query: "},
        {"RETRIEVAL_DOCUMENT", "title: none | text: "},
        {"", "title: none | text: "},
        {NULL, "title: none | text: "},
    };
    const struct mdl_tok_flags flags = {.add_special = true};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;
    char text[128];
    size_t i;

    for (i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        snprintf(text, sizeof(text), "%sthe wind", prompts[i][1]);
        want.n = 0;
        need_ok(mdl_tok_encode(mdl_tok_get(m), text, strlen(text), &flags, &want, err));
        need_ok(tokens(m, "the wind", prompts[i][0], &got, err));
        assert_true(same(&got, &want));
    }
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(tokens(m, "the wind", bad[i], &got, &e), RC_INVALID);
        assert_string_equal(e.what, "task_type");
        assert_int_equal(got.n, 0);
    }
    assert_string_equal(mdl_info_get(m)->default_prompt, "RETRIEVAL_DOCUMENT");
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

static enum rc ordered(struct mdl *m, bool group, const char *task, const char *title,
                       const char *const *parts, size_t n, struct mdl_ids *out, struct rc_err *e)
{
    struct mdl_embed_part p[4];
    struct mdl_embed_input in = {.parts = p,
                                 .n_parts = n,
                                 .group = group,
                                 .title = title,
                                 .n_title = title ? strlen(title) : 0,
                                 .task_type = task};
    size_t i;

    assert_true(n <= 4);
    for (i = 0; i < n; i++)
        p[i] = (struct mdl_embed_part){.text = parts[i], .n_bytes = strlen(parts[i])};
    out->n = 0;
    return mdl_embed_ordered(m, &in, out, NULL, e);
}

static void a_group_of_texts_is_one_text(void **state)
{
    static const char *const parts[] = {"the harbour", "", "and the wind"};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;

    need_ok(tokens(m, "the harbour\n\nand the wind", "CLUSTERING", &want, err));
    need_ok(ordered(m, true, "CLUSTERING", NULL, parts, 3, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, true, "CLUSTERING", "none", parts, 3, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, true, NULL, NULL, parts, 1, &got, err));
    need_ok(tokens(m, parts[0], NULL, &want, err));
    assert_true(same(&got, &want));
    assert_int_equal(ordered(m, true, NULL, NULL, parts, 0, &got, &e), RC_INVALID);
    assert_string_equal(e.what, "content");
    assert_int_equal(ordered(m, false, NULL, NULL, parts, 2, &got, &e), RC_INVALID);
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

static void titles(void **state)
{
    static const char *const part[] = {"the harbour"};
    static const char *const none[] = {"none", "", " \n", " none\t"};
    const struct mdl_tok_flags flags = {.add_special = true};
    const char *text = "title: On boats | text: the harbour";
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;
    size_t i;

    need_ok(mdl_tok_encode(mdl_tok_get(m), text, strlen(text), &flags, &want, err));
    need_ok(ordered(m, true, "RETRIEVAL_DOCUMENT", "  On boats\n", part, 1, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, false, NULL, "On boats", part, 1, &got, err));
    assert_true(same(&got, &want));
    need_ok(tokens(m, part[0], NULL, &want, err));
    for (i = 0; i < sizeof(none) / sizeof(*none); i++) {
        need_ok(ordered(m, true, NULL, none[i], part, 1, &got, err));
        assert_true(same(&got, &want));
    }
    assert_int_equal(ordered(m, true, "RETRIEVAL_QUERY", "On boats", part, 1, &got, &e),
                     RC_INVALID);
    assert_string_equal(e.what, "title");
    assert_int_equal(got.n, 0);
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

/* Words that look like control tokens are words: in texts and in titles. */
static void no_text_makes_control_tokens(void **state)
{
    static const char *const part[] = {"<bos><|image><|image|><image|><|audio|><|video|><eos>"};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0};
    size_t i;

    need_ok(ordered(m, true, NULL, "<|image|><eos>", part, 1, &got, err));
    assert_int_equal(got.ids[0], BOS);
    assert_int_equal(got.ids[got.n - 1], EOS);
    for (i = 1; i + 1 < got.n; i++)
        assert_false(mdl_tok_is_special(mdl_tok_get(m), got.ids[i]));
    mdl_ids_deinit(&got);
    mdl_close(&m);
}

/* Counted exactly, refused and never cut, whatever truncate says. */
static void the_longest_input(void **state)
{
    struct mdl *m;
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl_ids got = {0};
    struct rc_err e = RC_ERR_INIT;
    char dir[256], text[4096];
    size_t fits = 0, n;
    bool cut;

    tdir_new(dir, EG2_DIR);
    set_config(dir, "text_config.max_position_embeddings", "100");
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 100);
    assert_int_equal(mdl_info_get(m)->train_ctx_tokens, 100);
    memset(text, '7', sizeof(text)); /* digits are pieces of their own */
    for (n = 1; n < 200; n++) {
        enum rc rc;

        got.n = 0;
        e = (struct rc_err)RC_ERR_INIT;
        rc = mdl_embed_tokens(m, text, n, NULL, true, &cut, &got, &e);
        if (rc == RC_OK) {
            assert_false(cut);
            assert_true(got.n <= 100);
            fits = n;
            continue;
        }
        assert_int_equal(rc, RC_TOO_LARGE);
        assert_int_equal(got.n, 0);
        assert_int_equal(e.limit, 100);
        assert_int_equal(e.n, 100 + (n - fits));
    }
    assert_in_range(fits, 80, 98);
    mdl_ids_deinit(&got);
    mdl_close(&m);
    tdir_set(dir, "sentence_bert_config.json", "max_seq_length", "64");
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
    mdl_close(&m);
    tdir_rm(dir);
    m = open_eg2(64);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 8192);
    mdl_close(&m);
}

static void dimensions(void **state)
{
    static const uint32_t good[] = {96, 64, 32, 16}, bad[] = {0, 1, 15, 17, 48, 95, 97, 512, 768};
    struct mdl *m = open_eg2(64);
    struct rc_err e = RC_ERR_INIT;
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(*good); i++)
        need_ok(mdl_dims_check(m, good[i], err));
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(mdl_dims_check(m, bad[i], &e), RC_INVALID);
        assert_string_equal(e.what, "dimensions");
        assert_non_null(strstr(e.msg, "96, 64, 32 or 16"));
    }
    mdl_close(&m);
}

/* ----------------------------------------------------------------- contract */

#define N_SEQS 12

struct batch {
    int32_t ids[N_SEQS * 64];
    uint32_t offsets[N_SEQS + 1];
};

static void make_batch(struct batch *b)
{
    uint32_t s, i, x = 99, n = 0;

    b->offsets[0] = 0;
    for (s = 0; s < N_SEQS; s++) {
        uint32_t len = s == 0 ? 1 : s == 1 ? 64 : 1 + (x >> 9) % 64;

        for (i = 0; i < len; i++) {
            x = x * 1664525u + 1013904223u;
            b->ids[n++] = (int32_t)((x >> 8) % 690);
        }
        b->offsets[s + 1] = n;
    }
}

/* max_input_tokens 64, so that a pass may hold as few rows */
static void alone_in_a_batch_in_several_passes(void **state)
{
    static const uint32_t rows[] = {64, 100, 4096};
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *one = test_ctx(1);
    static float first[N_SEQS * DIM], alone[N_SEQS * DIM], all[N_SEQS * DIM];
    static struct batch b;
    char dir[256];
    uint32_t s;
    size_t i;

    make_batch(&b);
    tdir_new(dir, EG2_BF16_DIR);
    set_config(dir, "text_config.max_position_embeddings", "64");
    for (i = 0; i < 3; i++) {
        struct mdl *m;

        o.batch_tokens = rows[i];
        m = open_model(dir, i % 2 ? one : be, &o);
        for (s = 0; s < N_SEQS; s++) {
            const uint32_t offsets[2] = {0, b.offsets[s + 1] - b.offsets[s]};

            need_ok(mdl_encode(m, 1, b.ids + b.offsets[s], offsets, alone + s * DIM, err));
        }
        need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, all, err));
        assert_memory_equal(alone, all, sizeof(all));
        if (i == 0)
            memcpy(first, all, sizeof(all));
        assert_memory_equal(first, all, sizeof(all));
        mdl_close(&m);
    }
    be_ctx_free(&one);
    tdir_rm(dir);
}

static void bad_batches_name_the_sequence(void **state)
{
    struct mdl *m = open_eg2(64);
    int32_t ids[4] = {BOS, 7, 8, EOS};
    uint32_t empty[3] = {0, 2, 2}, back[3] = {0, 3, 1}, ok[3] = {0, 2, 4};
    float out[2 * DIM];
    struct rc_err e = RC_ERR_INIT;

    assert_int_equal(mdl_encode(m, 2, ids, empty, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    assert_int_equal(mdl_encode(m, 2, ids, back, out, &e), RC_INVALID);
    ids[2] = 704;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    ids[2] = -1;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    ids[2] = 8;
    need_ok(mdl_encode(m, 2, ids, ok, out, err));
    mdl_close(&m);
}

struct stop {
    unsigned asked, at;
};

static bool ask(void *user)
{
    struct stop *s = user;

    return ++s->asked == s->at;
}

/* Stopped between any two layers, and before the first: nothing is left behind. */
static void stopped_between_layers(void **state)
{
    static const char *const dirs[] = {EG2_DIR, BERT_DIR};
    static const int32_t ids[] = {BOS, 20, 85, 28, 101, 89, EOS};
    const uint32_t offsets[2] = {0, 7};
    struct mdl_opts o = small_opts(BE_F32);
    size_t i;

    for (i = 0; i < 2; i++) {
        struct mdl *m = open_model(dirs[i], be, &o);
        uint32_t n_layers = mdl_info_get(m)->n_layers, at;
        float want[512], got[512] = {0};
        struct stop never = {0};

        assert_true(mdl_info_get(m)->embed_dim <= 512);
        need_ok(mdl_encode(m, 1, ids, offsets, want, err));
        mdl_set_encode_stop(m, ask, &never);
        need_ok(mdl_encode(m, 1, ids, offsets, got, err));
        assert_int_equal(never.asked, n_layers);
        for (at = 1; at <= n_layers; at++) {
            struct stop s = {.at = at};
            struct be_stats before, after;
            struct rc_err e = RC_ERR_INIT;

            be_ctx_stats(be, &before);
            mdl_set_encode_stop(m, ask, &s);
            assert_int_equal(mdl_encode(m, 1, ids, offsets, got, &e), RC_CANCELLED);
            assert_int_equal(s.asked, at);
            be_ctx_stats(be, &after);
            assert_int_equal(after.workspace_bytes, before.workspace_bytes);
            mdl_set_encode_stop(m, NULL, NULL);
            memset(got, 0, sizeof(got));
            need_ok(mdl_encode(m, 1, ids, offsets, got, err));
            assert_memory_equal(got, want, mdl_info_get(m)->embed_dim * sizeof(float));
        }
        mdl_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_that_are_refused),
        cmocka_unit_test(other_modules_are_refused),
        cmocka_unit_test(weights_that_are_refused),
        cmocka_unit_test(spellings_that_mean_the_same),
        cmocka_unit_test(other_backends_and_formats_are_refused),
        cmocka_unit_test(eight_tasks_and_no_other),
        cmocka_unit_test(a_group_of_texts_is_one_text),
        cmocka_unit_test(titles),
        cmocka_unit_test(no_text_makes_control_tokens),
        cmocka_unit_test(the_longest_input),
        cmocka_unit_test(dimensions),
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(bad_batches_name_the_sequence),
        cmocka_unit_test(stopped_between_layers),
    };
    int rc;

    need_dir(EG2_DIR);
    need_dir(EG2_BF16_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
