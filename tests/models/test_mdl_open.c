/* Opening: bad models of every kind are refused with a clear error and nothing
 * left behind (run under asan), faults at every allocation and operation too. */
#include "mdl_test.h"

#include "fail/be_fail.h"
#include "mdl_build.h"

static struct be_ctx *be;

static enum rc try_open(const char *dir, struct be_ctx *ctx, const struct mdl_opts *o,
                        struct rc_err *e)
{
    int fd = open_root(dir);
    struct mdl *m = NULL;
    enum rc rc;

    *e = RC_ERR_INIT;
    rc = mdl_open(&m, fd, ctx, o, e);
    if (rc == RC_OK)
        mdl_close(&m);
    else
        assert_null(m);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* borrowed, still open */
    close(fd);
    return rc;
}

static void expect(const char *dir, const char *what, enum rc want, const char *says)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct be_stats before, after;
    struct mdl_info info;
    struct rc_err e;
    enum rc rc;
    int fd;

    be_ctx_stats(be, &before);
    rc = try_open(dir, be, &o, &e);
    be_ctx_stats(be, &after);
    if (rc != want || !strstr(e.msg, says))
        fail_msg("%s: %s '%s', expected %s saying '%s'", what, rc_name(rc), e.msg, rc_name(want),
                 says);
    assert_int_equal(before.weight_bytes, after.weight_bytes);
    assert_int_equal(before.kv_bytes, after.kv_bytes);
    assert_int_equal(before.workspace_bytes, after.workspace_bytes);
    fd = open_root(dir);
    rc = mdl_probe(&info, fd, &e); /* headers only, but the same verdict on headers */
    if (rc != want)
        fail_msg("%s: probing says %s '%s'", what, rc_name(rc), e.msg);
    close(fd);
}

/* --------------------------------------------------------- absurd configs */

static void configs(void **s)
{
    static const struct {
        const char *from, *key, *value;
        enum rc rc;
        const char *says;
    } rows[] = {
        {GEMMA_DIR, "architectures", "[\"LlamaForCausalLM\"]", RC_UNSUPPORTED, "LlamaForCausalLM"},
        {GEMMA_DIR, "architectures", "[]", RC_OK, ""}, /* model_type names it */
        {GEMMA_DIR, "architectures", "[7]", RC_OK, ""},
        {GEMMA_DIR, "num_attention_heads", "0", RC_FORMAT, "num_attention_heads"},
        {GEMMA_DIR, "num_attention_heads", "-4", RC_FORMAT, "-4"},
        {GEMMA_DIR, "num_attention_heads", "\"4\"", RC_FORMAT, "a string"},
        {GEMMA_DIR, "num_attention_heads", "4.5", RC_FORMAT, "integer"},
        {GEMMA_DIR, "num_key_value_heads", "3", RC_FORMAT, "3 key/value heads"},
        {GEMMA_DIR, "num_hidden_layers", "2147483648", RC_FORMAT, "2147483648"},
        {GEMMA_DIR, "num_hidden_layers", "9223372036854775807", RC_FORMAT, "num_hidden_layers"},
        {GEMMA_DIR, "num_hidden_layers", "0", RC_FORMAT, "num_hidden_layers"},
        {GEMMA_DIR, "num_hidden_layers", "8", RC_FORMAT, "layer_types"},
        {GEMMA_DIR, "head_dim", "0", RC_FORMAT, "head_dim"},
        {GEMMA_DIR, "head_dim", "15", RC_FORMAT, "even"},
        {GEMMA_DIR, "head_dim", "1024", RC_FORMAT, "'head_dim' is 1024, expected 2 to 512"},
        {GEMMA_DIR, "head_dim", "32", RC_FORMAT, "self_attn"},
        {GEMMA_DIR, "hidden_size", "65", RC_FORMAT, "shape"},
        {GEMMA_DIR, "hidden_size", "4294967296", RC_FORMAT, "hidden_size"},
        {GEMMA_DIR, "intermediate_size", "113", RC_FORMAT, "mlp"},
        {GEMMA_DIR, "vocab_size", "705", RC_FORMAT, "embed_tokens"},
        {GEMMA_DIR, "vocab_size", "0", RC_FORMAT, "vocab_size"},
        {GEMMA_DIR, "sliding_window", "0", RC_FORMAT, "sliding_window"},
        {GEMMA_DIR, "max_position_embeddings", "-1", RC_FORMAT, "max_position_embeddings"},
        {GEMMA_DIR, "rms_norm_eps", "0", RC_FORMAT, "rms_norm_eps"},
        {GEMMA_DIR, "rms_norm_eps", "-1e-6", RC_FORMAT, "rms_norm_eps"},
        {GEMMA_DIR, "rms_norm_eps", "1e-300", RC_FORMAT, "rms_norm_eps"},
        {GEMMA_DIR, "rms_norm_eps", "\"NaN\"", RC_FORMAT, "rms_norm_eps"},
        {GEMMA_DIR, "query_pre_attn_scalar", "0", RC_FORMAT, "query_pre_attn_scalar"},
        {GEMMA_DIR, "rope_theta", "1e300", RC_FORMAT, "rope_theta"},
        {GEMMA_DIR, "rope_theta", "-1", RC_FORMAT, "rope_theta"},
        {GEMMA_DIR, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4}", RC_UNSUPPORTED,
         "yarn"},
        {GEMMA_DIR, "rope_scaling", "{\"rope_type\":\"linear\"}", RC_FORMAT, "factor"},
        {GEMMA_DIR, "rope_scaling", "[1]", RC_FORMAT, "rope_scaling"},
        {GEMMA_DIR, "layer_types", "[\"full_attention\"]", RC_FORMAT, "layer_types"},
        {GEMMA_DIR, "layer_types", "[1,2,3,4,5,6,7]", RC_FORMAT, "layer_types[0]"},
        {GEMMA_DIR, "hidden_activation", "\"silu\"", RC_UNSUPPORTED, "silu"},
        {GEMMA_DIR, "use_bidirectional_attention", "true", RC_UNSUPPORTED, "two-way"},
        {GEMMA_DIR, "attention_bias", "true", RC_UNSUPPORTED, "bias"},
        {GEMMA_DIR, "tie_word_embeddings", "false", RC_WEIGHT_ABSENT, "lm_head.weight"},
        {GEMMA_DIR, "final_logit_softcapping", "-3", RC_FORMAT, "final_logit_softcapping"},
        {BERT_DIR, "num_hidden_layers", "4", RC_WEIGHT_ABSENT, "encoder.layer.3"},
        {BERT_DIR, "num_hidden_layers", "4294967295", RC_FORMAT, "num_hidden_layers"},
        {BERT_DIR, "hidden_size", "0", RC_FORMAT, "hidden_size"},
        {BERT_DIR, "hidden_size", "52", RC_FORMAT, "shape"},
        {BERT_DIR, "num_attention_heads", "0", RC_FORMAT, "num_attention_heads"},
        {BERT_DIR, "max_position_embeddings", "129", RC_FORMAT, "position_embeddings"},
        {BERT_DIR, "type_vocab_size", "0", RC_FORMAT, "type_vocab_size"},
        {BERT_DIR, "layer_norm_eps", "0", RC_FORMAT, "layer_norm_eps"},
        {BERT_DIR, "architectures", "[\"T5EncoderModel\"]", RC_UNSUPPORTED, "T5EncoderModel"},
    };
    char dir[256], what[256];
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tdir_new(dir, rows[i].from);
        tdir_set(dir, "config.json", rows[i].key, rows[i].value);
        snprintf(what, sizeof(what), "%s = %s", rows[i].key, rows[i].value);
        expect(dir, what, rows[i].rc, rows[i].says);
        tdir_rm(dir);
    }
}

static void broken_side_files(void **s)
{
    static const struct {
        const char *from, *file, *text; /* text NULL: file is deleted */
        enum rc rc;
        const char *says;
    } rows[] = {
        {GEMMA_DIR, "config.json", NULL, RC_FORMAT, "config.json is missing"},
        {GEMMA_DIR, "config.json", "", RC_FORMAT, "config.json"},
        {GEMMA_DIR, "config.json", "[]", RC_FORMAT, "object"},
        {GEMMA_DIR, "config.json", "{\"architectures\": [\"Gemma3ForCausalLM\"]", RC_FORMAT,
         "config.json"},
        {GEMMA_DIR, "config.json", "{}", RC_FORMAT, "architectures"},
        {GEMMA_DIR, "config.json", "{\"a\":NaN}", RC_FORMAT, "config.json"},
        {GEMMA_DIR, "generation_config.json", "{\"eos_token_id\": tru", RC_FORMAT,
         "generation_config.json"},
        {GEMMA_DIR, "tokenizer.json", NULL, RC_FORMAT, "tokenizer.json is missing"},
        {GEMMA_DIR, "tokenizer.json", "{}", RC_FORMAT, "tokenizer.json"},
        {BERT_DIR, "tokenizer.json", NULL, RC_FORMAT, "tokenizer.json is missing"},
        {BERT_DIR, "1_Pooling/config.json", NULL, RC_FORMAT, "1_Pooling/config.json"},
    };
    char dir[256], path[512];
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tdir_new(dir, rows[i].from);
        if (rows[i].text) {
            tdir_put(dir, rows[i].file, rows[i].text);
        } else {
            snprintf(path, sizeof(path), "%s/%s", dir, rows[i].file);
            assert_int_equal(unlink(path), 0);
        }
        expect(dir, rows[i].file, rows[i].rc, rows[i].says);
        tdir_rm(dir);
    }
}

/* ---------------------------------------------------------------- weights */

static void delete_tensor(json_t *h, const void *arg)
{
    assert_int_equal(json_object_del(h, arg), 0);
}

static void every_missing_weight_is_named(void **s)
{
    static const char *const dirs[] = {GEMMA_DIR, BERT_DIR};
    size_t d;

    for (d = 0; d < 2; d++) {
        char path[512], dir[256];
        struct mdl_opts o = small_opts(BE_F16);
        int fd = open_root(dirs[d]);
        struct mdl_file *f = NULL;
        size_t i, n_needed = 0;

        need_ok(mdl_file_open(&f, fd, err));
        close(fd);
        snprintf(path, sizeof(path), "%s/model.safetensors", dirs[d]);
        tdir_new(dir, dirs[d]);
        for (i = 0; i < mdl_file_n_tensors(f); i++) {
            const char *name = mdl_file_tensor(f, i)->name;
            char copy[512];
            struct rc_err e;
            enum rc rc;

            /* all of the first layer and outside of layers, a few of the others */
            if (strstr(name, "layer") && !strstr(name, ".0.") && i % 11 != 0)
                continue;
            snprintf(copy, sizeof(copy), "%s/model.safetensors", dir);
            copy_file(path, copy);
            tdir_header(dir, delete_tensor, name);
            rc = try_open(dir, be, &o, &e);
            if (strncmp(name, "pooler.", 7) == 0) {
                assert_int_equal(rc, RC_OK); /* not part of an embedding */
                continue;
            }
            if (rc != RC_WEIGHT_ABSENT || strcmp(e.what, name) != 0 || !strstr(e.msg, name))
                fail_msg("without '%s': %s '%s' (what '%s')", name, rc_name(rc), e.msg, e.what);
            n_needed++;
        }
        assert_true(n_needed > 15);
        mdl_file_close(&f);
        tdir_rm(dir);
    }
}

static void transpose(json_t *h, const void *arg)
{
    json_t *shape = json_object_get(json_object_get(h, arg), "shape");
    json_t *first = json_incref(json_array_get(shape, 0));

    json_array_remove(shape, 0);
    json_array_append_new(shape, first);
}

static void a_wrong_shape_says_both(void **s)
{
    char dir[256];

    tdir_new(dir, GEMMA_DIR);
    tdir_header(dir, transpose, "model.layers.2.mlp.gate_proj.weight");
    expect(dir, "transposed", RC_FORMAT, "model.layers.2.mlp.gate_proj.weight");
    tdir_rm(dir);
    tdir_new(dir, BERT_DIR);
    tdir_header(dir, transpose, "encoder.layer.1.intermediate.dense.weight");
    expect(dir, "transposed", RC_FORMAT, "encoder.layer.1.intermediate.dense.weight");
    tdir_rm(dir);
}

static void poison(const char *dir, const char *tensor, float value)
{
    char path[512], *text;
    json_t *h;
    uint64_t n;
    FILE *f;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_non_null(f = fopen(path, "r+b"));
    assert_int_equal(fread(&n, 8, 1, f), 1);
    assert_non_null(text = malloc(n));
    assert_int_equal(fread(text, 1, n, f), n);
    assert_non_null(h = json_loadb(text, n, 0, NULL));
    fseek(f,
          (long)(8 + n +
                 (uint64_t)json_integer_value(json_array_get(
                     json_object_get(json_object_get(h, tensor), "data_offsets"), 0))),
          SEEK_SET);
    assert_int_equal(fwrite(&value, sizeof(value), 1, f), 1);
    fclose(f);
    json_decref(h);
    free(text);
}

static void values_that_are_not_finite(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct rc_err e;
    char dir[256];

    tdir_new(dir, GEMMA_DIR);
    poison(dir, "model.layers.3.mlp.up_proj.weight", NAN);
    assert_int_equal(try_open(dir, be, &o, &e), RC_FORMAT);
    assert_non_null(strstr(e.msg, "model.layers.3.mlp.up_proj.weight"));
    tdir_rm(dir);
    /* finite each, but not what they compute: the self-test's catch */
    tdir_new(dir, GEMMA_DIR);
    poison(dir, "model.norm.weight", 3e38f);
    poison(dir, "model.embed_tokens.weight", 3e38f);
    assert_int_equal(try_open(dir, be, &o, &e), RC_FORMAT);
    assert_non_null(strstr(e.msg, "self-test"));
    tdir_rm(dir);
}

static void truncated_files(void **s)
{
    static const char *const dirs[] = {GEMMA_DIR, BERT_DIR};
    struct mdl_opts o = small_opts(BE_F16);
    char dir[256], path[512], gguf[512];
    struct rc_err e;
    struct stat st;
    size_t d;
    int k;

    for (d = 0; d < 2; d++) {
        tdir_new(dir, dirs[d]);
        snprintf(path, sizeof(path), "%s/model.safetensors", dir);
        assert_int_equal(stat(path, &st), 0);
        for (k = 0; k < 8; k++) {
            assert_int_equal(truncate(path, st.st_size * (7 - k) / 8 + (k == 7 ? 3 : 0)), 0);
            assert_int_not_equal(try_open(dir, be, &o, &e), RC_OK);
            assert_true(e.msg[0] != '\0');
        }
        tdir_rm(dir);
    }
    gguf_make(gguf, sizeof(gguf), GEMMA_DIR, "f32.gguf", NULL);
    snprintf(path, sizeof(path), "%s/gguf-cut-%d", TEST_BUILD, (int)getpid());
    copy_file(gguf, path);
    assert_int_equal(stat(path, &st), 0);
    for (k = 0; k < 16; k++) {
        assert_int_equal(truncate(path, st.st_size * (15 - k) / 16), 0);
        assert_int_not_equal(try_open(path, be, &o, &e), RC_OK);
        assert_true(e.msg[0] != '\0');
    }
    unlink(path);
}

static void gguf_without_a_weight(void **s)
{
    const char *args[] = {"--drop", "blk.4.ffn_down.weight", NULL};
    struct mdl_opts o = small_opts(BE_F16);
    struct rc_err e;
    char path[512];

    gguf_make(path, sizeof(path), GEMMA_DIR, "dropped.gguf", args);
    assert_int_equal(try_open(path, be, &o, &e), RC_WEIGHT_ABSENT);
    assert_string_equal(e.what, "blk.4.ffn_down.weight");
}

/* GGUF metadata overwritten in place (same length), key by key. */
static void gguf_metadata(void **s)
{
    static const struct {
        const char *key;
        uint32_t value;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"gemma3.block_count", 0, RC_FORMAT, "gemma3.block_count"},
        {"gemma3.block_count", 0x80000000u, RC_FORMAT, "2147483648"},
        {"gemma3.attention.head_count", 0, RC_FORMAT, "head_count"},
        {"gemma3.attention.head_count_kv", 3, RC_FORMAT, "3 key/value heads"},
        {"gemma3.attention.key_length", 18, RC_UNSUPPORTED, "value_length"},
        {"gemma3.attention.layer_norm_rms_epsilon", 0x7FC00000u, RC_FORMAT, "rms_epsilon"},
        {"gemma3.attention.layer_norm_rms_epsilon", 0xBF800000u, RC_FORMAT, "rms_epsilon"},
        {"gemma3.embedding_length", 0xFFFFFFFFu, RC_FORMAT, "embedding_length"},
        {"gemma3.rope.freq_base", 0, RC_FORMAT, "freq_base"},
    };
    char gguf[512], path[512], key[128];
    struct mdl_opts o = small_opts(BE_F16);
    size_t i, n;
    char *data;
    FILE *f;

    gguf_make(gguf, sizeof(gguf), GEMMA_DIR, "f32.gguf", NULL);
    assert_non_null(f = fopen(gguf, "rb"));
    assert_non_null(data = malloc(8u << 20));
    n = fread(data, 1, 8u << 20, f);
    fclose(f);
    snprintf(path, sizeof(path), "%s/gguf-meta-%d", TEST_BUILD, (int)getpid());
    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        size_t len = strlen(rows[i].key);
        struct rc_err e;
        uint32_t old;
        char *at;
        enum rc rc;

        /* the string's length in front makes it the whole key */
        memcpy(key, &(uint64_t){len}, 8);
        memcpy(key + 8, rows[i].key, len);
        assert_non_null(at = memmem(data, n, key, 8 + len));
        at += 8 + len + 4;
        memcpy(&old, at, 4);
        memcpy(at, &rows[i].value, 4);
        assert_non_null(f = fopen(path, "wb"));
        assert_int_equal(fwrite(data, 1, n, f), n);
        fclose(f);
        memcpy(at, &old, 4);
        rc = try_open(path, be, &o, &e);
        if (rc != rows[i].rc || !strstr(e.msg, rows[i].says))
            fail_msg("%s = %#x: %s '%s'", rows[i].key, rows[i].value, rc_name(rc), e.msg);
    }
    unlink(path);
    free(data);
}

static void unknown_gguf_architecture(void **s)
{
    char gguf[512], path[512], *data, *at;
    struct mdl_opts o = small_opts(BE_F16);
    struct rc_err e;
    size_t n;
    FILE *f;

    gguf_make(gguf, sizeof(gguf), GEMMA_DIR, "f32.gguf", NULL);
    assert_non_null(f = fopen(gguf, "rb"));
    assert_non_null(data = malloc(8u << 20));
    n = fread(data, 1, 8u << 20, f);
    fclose(f);
    assert_non_null(at = memmem(data, n, "gemma3", 6)); /* the first is the architecture */
    memcpy(at, "llama9", 6);
    snprintf(path, sizeof(path), "%s/gguf-arch-%d", TEST_BUILD, (int)getpid());
    assert_non_null(f = fopen(path, "wb"));
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    assert_int_equal(try_open(path, be, &o, &e), RC_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "llama9"));
    unlink(path);
    free(data);
}

/* --------------------------------------------------------------- budgets */

static void budgets_that_cannot_fit(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct rc_err e;

    o.kv_bytes = 100;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_LIMIT);
    assert_int_equal(e.limit, 100);
    assert_true(e.n > 100);
    o = small_opts(BE_F16);
    o.kv_bytes = 0;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_LIMIT);
    o = small_opts(BE_F16);
    o.weight_bytes = 1000000;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_LIMIT);
    assert_true(e.n > 1000000 && e.limit == 1000000);
    o.weight_bytes = e.n; /* exactly what it said is needed */
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_OK);
    o = small_opts(BE_F16);
    o.workspace_bytes = 1000;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_LIMIT);
    o.workspace_bytes = e.n;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_OK);
    o = small_opts(BE_F16);
    o.batch_tokens = UINT32_MAX;
    assert_int_not_equal(try_open(GEMMA_DIR, be, &o, &e), RC_OK);
    o = small_opts(BE_F16);
    o.batch_tokens = 0;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_INVALID);
    o = small_opts(BE_F16);
    o.max_seqs = 0;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_INVALID);
    o = small_opts(BE_Q4_0);
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_INVALID);
    o = small_opts(BE_Q8_0); /* a cache of a device, not of the processor */
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_UNSUPPORTED);
}

struct seen {
    uint64_t last, total;
    unsigned n_weights, n_tests;
};

static void on_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct seen *s = user;

    if (strcmp(stage, "weights") == 0) {
        assert_true(done > s->last && done <= total);
        s->last = done;
        s->total = total;
        s->n_weights++;
    } else {
        assert_string_equal(stage, "self-test");
        assert_int_equal(s->last, s->total); /* after all weights */
        s->n_tests++;
    }
}

static void progress_is_told(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct seen seen = {0};
    struct rc_err e;

    o.progress = on_progress;
    o.progress_user = &seen;
    assert_int_equal(try_open(GEMMA_DIR, be, &o, &e), RC_OK);
    assert_int_equal(seen.n_weights, 7 * 13 + 2);
    assert_int_equal(seen.n_tests, 2);
}

static void probing_equals_opening(void **s)
{
    static const char *const dirs[] = {GEMMA_DIR, BERT_DIR};
    struct mdl_opts o = small_opts(BE_F16);
    size_t d;

    for (d = 0; d < 2; d++) {
        int fd = open_root(dirs[d]);
        struct mdl *m = open_model(dirs[d], be, &o);
        const struct mdl_info *i = mdl_info_get(m);
        struct mdl_info p;

        need_ok(mdl_probe(&p, fd, err));
        assert_string_equal(p.family, i->family);
        assert_string_equal(p.arch, i->arch);
        assert_string_equal(p.quant, i->quant);
        assert_int_equal(p.n_params, i->n_params);
        assert_int_equal(p.vocab_size, i->vocab_size);
        assert_int_equal(p.embed_dim, i->embed_dim);
        assert_int_equal(p.train_ctx_tokens, i->train_ctx_tokens);
        assert_int_equal(p.can_embed, i->can_embed);
        assert_int_equal(p.can_generate, i->can_generate);
        assert_int_equal(p.kv_bytes, 0);
        assert_int_equal(p.workspace_bytes, 0);
        assert_true(p.weight_bytes > 0);
        close(fd);
        mdl_close(&m);
    }
}

/* -------------------------------------------------------- injected faults */

static struct be_ctx *fail_ctx(void)
{
    struct be_opts o = {.backend = "fail", .n_threads = 1};
    struct be_ctx *ctx = NULL;

    need_ok(be_ctx_new(&ctx, &o, err));
    return ctx;
}

/* Every k-th allocation and operation of opening. */
static void faults_while_opening(void **s)
{
    static const char *const dirs[] = {GEMMA_DIR, BERT_DIR};
    struct mdl_opts o = small_opts(BE_F16);
    struct be_ctx *f = fail_ctx();
    size_t d;

    o.batch_tokens = 16;
    for (d = 0; d < 2; d++) {
        struct be_fail_plan none = {0};
        struct be_stats clean, st;
        uint64_t ops, allocs, k;
        struct rc_err e;

        be_fail_set(f, &none);
        assert_int_equal(try_open(dirs[d], f, &o, &e), RC_OK);
        be_fail_counts(f, &ops, &allocs);
        be_ctx_stats(f, &clean); /* the context keeps scratch from its first model on */
        assert_true(ops > 10 && allocs > 10);
        for (k = 1; k <= allocs; k++) {
            be_fail_set(f, &(struct be_fail_plan){.alloc_at = k});
            assert_int_equal(try_open(dirs[d], f, &o, &e), RC_NOMEM);
            assert_non_null(strstr(e.msg, "injected"));
            be_ctx_stats(f, &st);
            assert_int_equal(st.weight_bytes, clean.weight_bytes);
            assert_int_equal(st.kv_bytes, clean.kv_bytes);
            assert_int_equal(st.workspace_bytes, clean.workspace_bytes);
        }
        for (k = 1; k <= ops; k++) {
            be_fail_set(f, &(struct be_fail_plan){.op_at = k, .op_rc = RC_INTERNAL});
            assert_int_equal(try_open(dirs[d], f, &o, &e), RC_INTERNAL);
            assert_non_null(strstr(e.msg, "self-test"));
        }
        be_fail_set(f, &none);
        assert_int_equal(try_open(dirs[d], f, &o, &e), RC_OK);
    }
    be_ctx_free(&f);
}

/* Every operation of a pass; the model still works afterwards, with the same bits. */
static void faults_while_running(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct be_ctx *f = fail_ctx();
    struct mdl *g = open_model(GEMMA_DIR, f, &o), *b = open_model(BERT_DIR, f, &o);
    int32_t ids[3] = {2, 40, 50}, pos[3] = {0, 1, 2}, row = 2, page = 1;
    uint32_t offsets[3] = {0, 2, 3};
    struct be_seq q = {.n_rows = 3, .pages = {&page, &page}};
    struct mdl_batch batch = {
        .n_rows = 3, .n_seqs = 1, .n_out = 1, .ids = ids, .pos = pos, .seqs = &q, .out_rows = &row};
    const float *logits = NULL;
    float want[704], vec[2 * 48], vec2[2 * 48];
    uint64_t n_dec, n_enc, allocs, k;
    struct rc_err e;

    be_fail_set(f, &(struct be_fail_plan){0});
    need_ok(mdl_decode(g, &batch, &logits, err));
    memcpy(want, logits, sizeof(want));
    be_fail_counts(f, &n_dec, &allocs);
    be_fail_set(f, &(struct be_fail_plan){0});
    need_ok(mdl_encode(b, 2, ids, offsets, vec, err));
    be_fail_counts(f, &n_enc, &allocs);
    assert_int_equal(allocs, 0);
    for (k = 1; k <= n_dec; k++) {
        be_fail_set(f, &(struct be_fail_plan){.op_at = k, .op_rc = RC_NOMEM});
        assert_int_equal(mdl_decode(g, &batch, &logits, &e), RC_NOMEM);
    }
    for (k = 1; k <= n_enc; k++) {
        be_fail_set(f, &(struct be_fail_plan){.op_at = k, .op_rc = RC_INTERNAL});
        assert_int_equal(mdl_encode(b, 2, ids, offsets, vec2, &e), RC_INTERNAL);
    }
    be_fail_set(f, &(struct be_fail_plan){0});
    need_ok(mdl_decode(g, &batch, &logits, err));
    assert_memory_equal(logits, want, sizeof(want));
    need_ok(mdl_encode(b, 2, ids, offsets, vec2, err));
    assert_memory_equal(vec, vec2, sizeof(vec));
    mdl_close(&g);
    mdl_close(&b);
    be_ctx_free(&f);
}

static void a_type_the_backend_lacks_is_refused_before_building(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct be_ctx *f = fail_ctx();
    uint64_t ops, allocs;
    struct rc_err e;

    be_fail_set(f, &(struct be_fail_plan){
                       .refuse = true, .refuse_dtype = BE_F32, .refuse_use = BE_USE_LINEAR});
    assert_int_equal(try_open(GEMMA_DIR, f, &o, &e), RC_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "F32"));
    be_fail_counts(f, &ops, &allocs);
    assert_int_equal(allocs, 0);
    be_ctx_free(&f);
}

/* In place, as big as before: what is mapped is no longer what was checked and hashed. */
static void a_file_that_is_written_to_is_noticed(void **s)
{
    const struct timespec past[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    struct mdl_opts o = small_opts(BE_F16);
    char dir[256], path[512], byte = 0;
    struct rc_err e;
    struct mdl *m;
    int fd;

    tdir_new(dir, GEMMA_DIR);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(utimensat(AT_FDCWD, path, past, 0), 0); /* whatever the clock's grain is */
    m = open_model(dir, be, &o);
    need_ok(mdl_guard(m, err));
    assert_true((fd = open(path, O_RDWR | O_CLOEXEC)) >= 0);
    assert_int_equal(pread(fd, &byte, 1, 5000), 1);
    need_ok(mdl_guard(m, err));
    assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
    close(fd);
    assert_int_equal(mdl_guard(m, &e), RC_WEIGHT_IO);
    assert_non_null(strstr(e.msg, "written to"));
    mdl_close(&m);
    tdir_rm(dir);
}

static void a_file_that_shrinks_is_noticed(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    char dir[256], path[512];
    struct rc_err e;
    struct mdl *m;

    tdir_new(dir, GEMMA_DIR);
    m = open_model(dir, be, &o);
    need_ok(mdl_guard(m, err));
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(mdl_guard(m, &e), RC_WEIGHT_IO);
    assert_non_null(strstr(e.msg, "shrunk"));
    mdl_close(&m);
    tdir_rm(dir);
}

/* Columns of a matrix of blocks: what is planned is what is taken, to the byte. */
static void columns_of_blocks_are_counted_exactly(void **s)
{
    static const struct {
        uint32_t col0, n_cols;
        enum rc rc;
    } rows[] = {{0, 64, RC_OK},           {0, 32, RC_OK},           {32, 32, RC_OK},
                {96, 64, RC_UNSUPPORTED}, {16, 32, RC_UNSUPPORTED}, {0, 48, RC_UNSUPPORTED},
                {0, 0, RC_UNSUPPORTED},   {128, 32, RC_UNSUPPORTED}};
    enum { ROWS = 5, COLS = 128, BLOCK = 34 }; /* Q8_0 */
    uint8_t data[ROWS * COLS / 32 * BLOCK];
    const struct mdl_tensor *t;
    struct mdl_file *f = NULL;
    struct out o = {0};

    gguf_head(&o, 3, 1, 1);
    kv_str(&o, "general.architecture", "gemma3");
    tensor_info(&o, "w", 2, COLS, ROWS, 8, 0);
    pad(&o, 32);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i % BLOCK == 1 ? 0x3C : i % BLOCK == 0 ? 0 : i * 7); /* scale 1 */
    put(&o, data, sizeof(data));
    need_ok(mdl_gguf_parse(&f, o.p, o.n, err));
    t = mdl_file_find(f, "w");
    assert_int_equal(t->n_bytes, sizeof(data));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int probe = 0; probe < 2; probe++) {
            struct mdl_plan p = {.file = f, .be = probe ? NULL : be};
            struct mdl_opts opts = {0};
            struct be_weight *slot = NULL;
            struct rc_err e = RC_ERR_INIT;
            size_t row = rows[i].n_cols / 32 * BLOCK;
            uint64_t kept;

            assert_int_equal(mdl_plan_columns(&p, "w", BE_USE_LINEAR, ROWS, COLS, rows[i].col0,
                                              rows[i].n_cols, &slot, &e),
                             rows[i].rc);
            if (rows[i].rc != RC_OK)
                assert_non_null(strstr(e.msg, "no whole blocks of Q8_0 (32)"));
            if (rows[i].rc == RC_OK) {
                assert_int_equal(p.weight_bytes, ROWS * row);
                assert_int_equal(p.n_params, ROWS * rows[i].n_cols);
            }
            if (rows[i].rc == RC_OK && !probe) {
                struct be_stats before, after;

                be_ctx_stats(be, &before);
                need_ok(mdl_plan_build_weights(&p, &opts, err));
                be_ctx_stats(be, &after);
                kept = after.weight_bytes - before.weight_bytes; /* its own layout */
                assert_int_equal(p.resident_bytes, kept + ROWS * row);
                for (size_t r = 0; r < ROWS; r++)
                    assert_memory_equal((uint8_t *)p.w[0].owned + r * row,
                                        data + r * (COLS / 32 * BLOCK) + rows[i].col0 / 32 * BLOCK,
                                        row);
            }
            mdl_plan_free(&p);
        }
    mdl_file_close(&f);
    free(o.p);
}

/* A context keeps the scratch of the largest model it has held; after this, what a
 * failed opening leaves behind can be compared exactly. */
static void warm(const char *dir)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct rc_err e;

    if (try_open(dir, be, &o, &e) != RC_OK) {
        fprintf(stderr, "%s: %s\n", dir, e.msg);
        exit(1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(broken_side_files),
        cmocka_unit_test(columns_of_blocks_are_counted_exactly),
        cmocka_unit_test(every_missing_weight_is_named),
        cmocka_unit_test(a_wrong_shape_says_both),
        cmocka_unit_test(values_that_are_not_finite),
        cmocka_unit_test(truncated_files),
        cmocka_unit_test(gguf_without_a_weight),
        cmocka_unit_test(gguf_metadata),
        cmocka_unit_test(unknown_gguf_architecture),
        cmocka_unit_test(budgets_that_cannot_fit),
        cmocka_unit_test(progress_is_told),
        cmocka_unit_test(probing_equals_opening),
        cmocka_unit_test(faults_while_opening),
        cmocka_unit_test(faults_while_running),
        cmocka_unit_test(a_type_the_backend_lacks_is_refused_before_building),
        cmocka_unit_test(a_file_that_shrinks_is_noticed),
        cmocka_unit_test(a_file_that_is_written_to_is_noticed),
    };
    int rc;

    need_dir(GEMMA_DIR);
    need_dir(BERT_DIR);
    be = test_ctx(1);
    warm(GEMMA_DIR);
    warm(BERT_DIR);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
