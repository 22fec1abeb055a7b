/* Gemma 3: the equality contract bit for bit, spellings of configs, KV windows,
 * quantized files, limits. (Numbers against the reference: *_golden.) */
#include "mdl_contract.h"

/* Every family keeps the contract on its golden checkpoint and on a file of all types. */
static void prefill_in_chunks(void **s)
{
    char path[512];

    chunks_change_nothing(GEMMA_DIR, BE_F32);
    chunks_change_nothing(GEMMA_DIR, BE_F16);
    mixed_path(path, NULL, GEMMA_DIR, "mixed");
    chunks_change_nothing(path, BE_F16);
}

static void alone_or_in_a_batch(void **s)
{
    char path[512];

    with_neighbours(GEMMA_DIR);
    mixed_path(path, NULL, GEMMA_DIR, "mixed");
    with_neighbours(path);
}

static void one_thread_or_two(void **s)
{
    char path[512];

    threads_and_outputs(GEMMA_DIR);
    mixed_path(path, NULL, GEMMA_DIR, "mixed");
    threads_and_outputs(path);
}

static void decoding_allocates_nothing(void **s)
{
    allocates_nothing(GEMMA_DIR);
}

static void quantized_types_agree_with_their_f32_values(void **s)
{
    char path[512], plain[512];

    mixed_path(path, plain, GEMMA_DIR, "mixed");
    quantized_agrees(path, plain, 0.998);
}

/* ------------------------------------------------------------ spellings */

static float *reference_logits;
static size_t n_reference;

static void gives_the_same(const char *dir)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(dir, be, &o);
    float *x = logits_of(m, prompt, N_TOK, 8);

    same_bits(x, reference_logits, n_reference, dir);
    free(x);
    mdl_close(&m);
}

static void rename_prefix(json_t *h, const void *arg)
{
    json_t *out = json_object(), *v;
    const char *key;

    json_object_foreach(h, key, v)
    {
        char name[256];

        if (strncmp(key, "model.", 6) == 0)
            snprintf(name, sizeof(name), "%s%s", (const char *)arg, key + 6);
        else
            snprintf(name, sizeof(name), "%s", key);
        json_object_set(out, name, v);
    }
    json_object_clear(h);
    json_object_update(h, out);
    json_decref(out);
}

static void tensor_prefixes(void **s)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.", ""};
    char dir[256];
    size_t i;

    for (i = 0; i < 3; i++) {
        tdir_new(dir, GEMMA_DIR);
        tdir_header(dir, rename_prefix, prefixes[i]);
        gives_the_same(dir);
        tdir_rm(dir);
    }
}

static void nested_text_config(void **s)
{
    char dir[256], *text;
    json_t *c = load_json(GEMMA_DIR, "config.json");
    json_t *outer = json_pack("{s:[s],s:s,s:O}", "architectures", "Gemma3ForConditionalGeneration",
                              "model_type", "gemma3", "text_config", c);

    tdir_new(dir, GEMMA_DIR);
    assert_non_null(text = json_dumps(outer, 0));
    tdir_put(dir, "config.json", text);
    gives_the_same(dir);
    free(text);
    json_decref(outer);
    json_decref(c);
    tdir_rm(dir);
}

static void old_and_new_rope_spellings(void **s)
{
    char dir[256];

    tdir_new(dir, GEMMA_DIR);
    tdir_set(dir, "config.json", "rope_theta", NULL);
    tdir_set(dir, "config.json", "rope_local_base_freq", NULL);
    gives_the_same(dir); /* defaults are the released values */
    tdir_set(dir, "config.json", "layer_types", NULL);
    gives_the_same(dir); /* pattern 6 */
    tdir_set(dir, "config.json", "rope_parameters",
             "{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},"
             "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}");
    gives_the_same(dir);
    tdir_rm(dir);
}

static float *logits_with(const char *key, const char *value)
{
    char dir[256];
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;
    float *x;

    tdir_new(dir, GEMMA_DIR);
    tdir_set(dir, "config.json", key, value);
    m = open_model(dir, be, &o);
    x = logits_of(m, prompt, N_TOK, 8);
    mdl_close(&m);
    tdir_rm(dir);
    return x;
}

static void every_number_of_the_config_counts(void **s)
{
    static const char *const changes[][2] = {
        {"query_pre_attn_scalar", "16"},
        {"sliding_window", "9"},
        {"rope_theta", "900000.0"},
        {"rope_local_base_freq", "9000.0"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 8.0}"},
        {"rms_norm_eps", "0.01"},
        {"final_logit_softcapping", "30.0"},
    };
    size_t i;

    for (i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        float *x;

        x = logits_with(changes[i][0], changes[i][1]);
        if (!(furthest(x, reference_logits, n_reference) > 1e-4))
            fail_msg("'%s' changes nothing", changes[i][0]);
        free(x);
    }
}

static void linear_factor_old_equals_new(void **s)
{
    float *a = logits_with("rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 8.0}");
    float *b = logits_with("rope_scaling", "{\"type\": \"linear\", \"factor\": 8}");
    float *c = logits_with("rope_parameters",
                           "{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,"
                           "\"rope_theta\":1000000.0},\"sliding_attention\":{\"rope_theta\":"
                           "10000.0}}");

    same_bits(b, a, n_reference, "rope_scaling with 'type'");
    same_bits(c, a, n_reference, "rope_parameters");
    free(a);
    free(b);
    free(c);
}

static void softcap_is_applied_after_the_head(void **s)
{
    float *x = logits_with("final_logit_softcapping", "5.0");
    size_t i;

    for (i = 0; i < n_reference; i++)
        if (!(fabs(x[i] - 5 * tanh(reference_logits[i] / 5.0)) < 1e-5))
            fail_msg("value %zu: %.7g from %.7g", i, x[i], reference_logits[i]);
    free(x);
}

/* An untied head in a shard of its own: the embedding table times two, which f32
 * doubles exactly. */
static void untied_head(bool multimodal)
{
    const char *where = multimodal ? "language_model.lm_head.weight" : "lm_head.weight";
    char dir[256], path[512], other[512], head[256];
    struct mdl_opts o = small_opts(BE_F32);
    size_t v = 704, d = 64, i;
    json_t *map = json_object(), *index, *h, *val;
    float *table, *x;
    uint64_t n, n_head, off;
    const char *key;
    struct mdl *m;
    char *text;
    FILE *f;

    tdir_new(dir, GEMMA_DIR);
    tdir_set(dir, "config.json", "tie_word_embeddings", multimodal ? NULL : "false");
    if (multimodal) { /* the flag stands beside text_config */
        json_t *c = load_json(dir, "config.json");
        json_t *outer =
            json_pack("{s:[s],s:b,s:o}", "architectures", "Gemma3ForConditionalGeneration",
                      "tie_word_embeddings", 0, "text_config", c);

        assert_non_null(text = json_dumps(outer, 0));
        tdir_put(dir, "config.json", text);
        free(text);
        json_decref(outer);
        tdir_header(dir, rename_prefix, "language_model.model.");
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    snprintf(other, sizeof(other), "%s/model-00001-of-00002.safetensors", dir);
    assert_int_equal(rename(path, other), 0);
    assert_non_null(f = fopen(other, "rb"));
    assert_int_equal(fread(&n, 8, 1, f), 1);
    assert_non_null(text = malloc(n));
    assert_int_equal(fread(text, 1, n, f), n);
    assert_non_null(h = json_loadb(text, n, 0, NULL));
    free(text);
    json_object_foreach(h, key, val)
    {
        if (strcmp(key, "__metadata__") != 0)
            json_object_set_new(map, key, json_string("model-00001-of-00002.safetensors"));
    }
    json_object_set_new(map, where, json_string("model-00002-of-00002.safetensors"));
    off = (uint64_t)json_integer_value(json_array_get(
        json_object_get(json_object_get(h, multimodal ? "language_model.model.embed_tokens.weight"
                                                      : "model.embed_tokens.weight"),
                        "data_offsets"),
        0));
    assert_non_null(table = malloc(v * d * sizeof(*table)));
    fseek(f, (long)(8 + n + off), SEEK_SET);
    assert_int_equal(fread(table, sizeof(*table), v * d, f), v * d);
    fclose(f);
    for (i = 0; i < v * d; i++)
        table[i] *= 2;
    snprintf(path, sizeof(path), "%s/model-00002-of-00002.safetensors", dir);
    snprintf(head, sizeof(head),
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]}}", where, v,
             d, v * d * 4);
    n_head = (strlen(head) + 7) & ~(uint64_t)7;
    assert_non_null(f = fopen(path, "wb"));
    fwrite(&n_head, 8, 1, f);
    fprintf(f, "%-*s", (int)n_head, head);
    fwrite(table, sizeof(*table), v * d, f);
    fclose(f);
    index = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 1, "weight_map", map);
    text = json_dumps(index, 0);
    tdir_put(dir, "model.safetensors.index.json", text);

    m = open_model(dir, be, &o);
    x = logits_of(m, prompt, N_TOK, 8);
    for (i = 0; i < n_reference; i++)
        assert_true(x[i] == 2 * reference_logits[i]);
    mdl_close(&m);
    free(x);
    free(text);
    free(table);
    json_decref(index);
    json_decref(h);
    tdir_rm(dir);
}

static void untied_head_in_a_second_shard(void **s)
{
    untied_head(false);
    untied_head(true);
}

/* --------------------------------------------------------- what it says */

static void end_tokens(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    char dir[256], path[512];
    const int32_t *eos;
    struct mdl *m;
    size_t n;

    m = open_model(GEMMA_DIR, be, &o);
    eos = mdl_eos(m, &n);
    assert_int_equal(n, 2);
    assert_int_equal(eos[0], 1);
    assert_int_equal(eos[1], 23); /* <end_of_turn> of this vocabulary */
    mdl_close(&m);
    tdir_new(dir, GEMMA_DIR); /* no generation config: config.json, then spellings */
    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    unlink(path);
    tdir_set(dir, "config.json", "eos_token_id", "[50, 999999, -4]");
    m = open_model(dir, be, &o);
    eos = mdl_eos(m, &n);
    assert_int_equal(n, 3);
    assert_int_equal(eos[0], 50);
    assert_int_equal(eos[1], 23);
    assert_int_equal(eos[2], 1);
    mdl_close(&m);
    tdir_rm(dir);
    gguf_make(path, sizeof(path), GEMMA_DIR, "f32.gguf", NULL);
    m = open_model(path, be, &o);
    eos = mdl_eos(m, &n);
    assert_int_equal(n, 2);
    mdl_close(&m);
}

static void info_and_geometry(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    const struct mdl_kv_geometry *g;
    const struct mdl_info *i;
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = open_model(GEMMA_DIR, be, &o);
    uint64_t need;
    int fd;

    i = mdl_info_get(m);
    g = mdl_kv(m);
    assert_string_equal(i->family, "gemma3");
    assert_string_equal(i->arch, "Gemma3ForCausalLM");
    assert_string_equal(i->quant, "F32");
    assert_true(i->can_generate && !i->can_embed && i->has_chat_template);
    assert_int_equal(i->ctx_tokens, 2048);
    assert_int_equal(i->vocab_size, 704);
    assert_int_equal(i->n_layers, 7);
    assert_true(i->weight_bytes >= 4 * i->n_params); /* resident, F32 file */
    assert_true(i->kv_bytes > 0 && i->workspace_bytes > 0);
    assert_true(i->kv_bytes <= o.kv_bytes + 4096); /* the pages; the table of layers besides */
    assert_int_equal(g->n_classes, 2);
    assert_int_equal(g->cls[0].window, 0);
    assert_int_equal(g->cls[1].window, 8);
    assert_true(g->cls[1].page_bytes == 6 * g->cls[0].page_bytes);
    mdl_close(&m);
    o.ctx_tokens = 100;
    m = open_model(GEMMA_DIR, be, &o);
    assert_int_equal(mdl_info_get(m)->ctx_tokens, 100);
    need = mdl_info_get(m)->kv_ctx_bytes;
    assert_int_equal(need, mdl_kv_need_bytes(mdl_kv(m), 100));
    mdl_close(&m);
    o.kv_bytes = need; /* exactly one such sequence */
    m = open_model(GEMMA_DIR, be, &o);
    assert_int_equal(mdl_info_get(m)->ctx_tokens, 100);
    mdl_close(&m);
    o.kv_bytes = need - 1; /* a context that was asked for is refused, not lowered */
    fd = open_root(GEMMA_DIR);
    assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_LIMIT);
    close(fd);
    assert_string_equal(e.what, "kv_bytes");
    assert_int_equal(e.n, need);
    assert_int_equal(e.limit, need - 1);
    o.ctx_tokens = 0;
    o.kv_bytes = 64 * 1024;
    m = open_model(GEMMA_DIR, be, &o); /* lowered to what fits */
    assert_true(mdl_info_get(m)->ctx_tokens >= 64 && mdl_info_get(m)->ctx_tokens < 2048);
    mdl_close(&m);
}

static void passes_over_the_limits_are_refused(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(GEMMA_DIR, be, &o);
    int32_t ids[200] = {0}, pos[200] = {0}, rows[200] = {0}, page[64] = {0};
    struct be_seq q = {.n_rows = 1, .pages = {page, page}};
    struct mdl_batch ok = {
        .n_rows = 1, .n_seqs = 1, .n_out = 1, .ids = ids, .pos = pos, .seqs = &q, .out_rows = rows};
    static const float soft[4096];
    const float *logits = NULL;
    struct mdl_batch b;
    struct rc_err e;

    need_ok(mdl_decode(m, &ok, &logits, err));
    b = ok, b.n_rows = 129;
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_INVALID);
    b = ok, b.n_soft = 1, b.soft = &(struct mdl_soft){.row = 0, .x = soft};
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_UNSUPPORTED); /* pictures see themselves */
    b = ok, b.n_rows = 0;
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_INVALID);
    b = ok, b.n_out = 9;
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_INVALID);
    b = ok, rows[0] = 1;
    assert_int_equal(mdl_decode(m, &b, &logits, &e), RC_INVALID);
    rows[0] = 0, ids[0] = 704;
    assert_int_equal(mdl_decode(m, &ok, &logits, &e), RC_INVALID);
    ids[0] = -1;
    assert_int_equal(mdl_decode(m, &ok, &logits, &e), RC_INVALID);
    ids[0] = 0, pos[0] = 2048;
    assert_int_equal(mdl_decode(m, &ok, &logits, &e), RC_INVALID);
    pos[0] = 0;
    need_ok(mdl_decode(m, &ok, &logits, err)); /* and it still works */
    assert_int_equal(mdl_dims_check(m, 64, &e), RC_UNSUPPORTED);
    mdl_close(&m);
}

/* On a backend that draws, a pass may leave its logits where they are. */
static void logits_may_stay_on_the_device(void **s)
{
    const struct be_opts bo = {.backend = "fail", .n_threads = 1};
    struct mdl_opts o = small_opts(BE_F32);
    int32_t page[64] = {0}, ids[4] = {2, 30, 31, 32}, pos[4] = {0, 1, 2, 3}, rows[2] = {1, 3},
            id[2];
    struct be_seq q = {.n_rows = 4, .pages = {page, page}};
    const struct mdl_batch b = {
        .n_rows = 4, .n_seqs = 1, .n_out = 2, .ids = ids, .pos = pos, .seqs = &q, .out_rows = rows};
    const struct be_sample_row greedy[2] = {{.top_p = 1}, {.top_p = 1}};
    const float *logits = NULL, *row = NULL;
    struct be_ctx *dev = NULL;
    struct rc_err e;
    struct mdl *m, *plain;
    uint32_t vocab;

    if (be_can_sample(be)) /* run on a device: nothing plain to compare with */
        skip();
    plain = open_model(GEMMA_DIR, be, &o);
    vocab = mdl_info_get(plain)->vocab_size;
    need_ok(be_ctx_new(&dev, &bo, err));
    m = open_model(GEMMA_DIR, dev, &o);
    assert_false(mdl_can_sample(plain));
    assert_int_equal(mdl_sample(plain, greedy, 2, id, &e), RC_UNSUPPORTED);
    need_ok(mdl_decode(plain, &b, &logits, err));
    assert_true(mdl_can_sample(m));
    need_ok(mdl_decode(m, &b, NULL, err));
    assert_int_equal(mdl_sample(m, greedy, 1, id, &e), RC_INVALID);
    need_ok(mdl_sample(m, greedy, 2, id, err));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(id[i], argmax_of(logits + i * vocab, vocab));
        need_ok(mdl_logits(m, i, &row, err));
        same_bits(row, logits + i * vocab, vocab, "a row read back");
    }
    assert_int_equal(mdl_logits(m, 2, &row, &e), RC_INVALID);
    pos[0] = 2048; /* after a pass that failed there is nothing to read */
    assert_int_equal(mdl_decode(m, &b, NULL, &e), RC_INVALID);
    assert_int_equal(mdl_logits(m, 0, &row, &e), RC_INVALID);
    mdl_close(&m);
    mdl_close(&plain);
    be_ctx_free(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_in_chunks),
        cmocka_unit_test(alone_or_in_a_batch),
        cmocka_unit_test(one_thread_or_two),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(quantized_types_agree_with_their_f32_values),
        cmocka_unit_test(tensor_prefixes),
        cmocka_unit_test(nested_text_config),
        cmocka_unit_test(old_and_new_rope_spellings),
        cmocka_unit_test(every_number_of_the_config_counts),
        cmocka_unit_test(linear_factor_old_equals_new),
        cmocka_unit_test(softcap_is_applied_after_the_head),
        cmocka_unit_test(untied_head_in_a_second_shard),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(info_and_geometry),
        cmocka_unit_test(passes_over_the_limits_are_refused),
        cmocka_unit_test(logits_may_stay_on_the_device),
    };
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;
    int rc;

    need_dir(GEMMA_DIR);
    make_prompt();
    be = test_ctx(2);
    m = open_model(GEMMA_DIR, be, &o);
    reference_logits = logits_of(m, prompt, N_TOK, 8);
    n_reference = (size_t)N_TOK * mdl_info_get(m)->vocab_size;
    mdl_close(&m);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(reference_logits);
    be_ctx_free(&be);
    return rc;
}
