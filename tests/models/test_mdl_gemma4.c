/* Gemma 4: the equality contract bit for bit, spellings of configs, what is refused and by
 * which name, KV geometry, quantized files, injected vectors. (Numbers against the
 * reference: *_golden.) */
#include "mdl_contract.h"

#define G4 TEST_GOLDEN "/gemma4_text"
#define G4_NATIVE TEST_GOLDEN "/gemma4_text-bf16" /* per_layer_config instead of global_* */
#define G4_MM TEST_GOLDEN "/gemma4_mm"

static float *reference_logits;
static size_t n_reference;

/* ------------------------------------------------------ equality contract */

static void prefill_in_chunks(void **s)
{
    char path[512];

    chunks_change_nothing(G4, BE_F32);
    chunks_change_nothing(G4, BE_F16);
    mixed_path(path, NULL, G4, "g4-mixed");
    chunks_change_nothing(path, BE_F16);
}

static void alone_or_in_a_batch(void **s)
{
    char path[512];

    with_neighbours(G4);
    mixed_path(path, NULL, G4, "g4-mixed");
    with_neighbours(path);
}

static void one_thread_or_two(void **s)
{
    char path[512];

    threads_and_outputs(G4);
    mixed_path(path, NULL, G4, "g4-mixed");
    threads_and_outputs(path);
}

static void decoding_allocates_nothing(void **s)
{
    allocates_nothing(G4);
}

/* Rows behind the accepted ones are simply written again: what a verification of drafts
 * that was not believed leaves behind changes nothing. */
static void rejected_rows_leave_nothing(void **s)
{
    struct mdl_opts o = wide_opts(BE_F16);
    struct mdl *m = open_model(G4, be, &o);
    uint32_t v = mdl_info_get(m)->vocab_size;
    float *plain = logits_of(m, prompt, 60, 60), *got = malloc(v * sizeof(*got));
    int32_t wrong[4] = {30, 31, 32, 33};
    static struct tpool pool;
    static struct tseq seq;
    uint32_t at;

    assert_non_null(got);
    tpool_init(&pool, m);
    tseq_init(&seq);
    feed(m, &pool, &seq, prompt, 28, 0, NULL);
    for (at = 28; at < 60; at++) { /* over the edge of a page, and of the window */
        feed(m, &pool, &seq, wrong, 4, 4, NULL);
        seq.n = at;
        feed(m, &pool, &seq, prompt + at, 1, 1, got);
        same_bits(got, plain + (size_t)at * v, v, "after rejected rows");
    }
    free(got);
    free(plain);
    mdl_close(&m);
}

/* ------------------------------------------------------------ quantized */

static void quantized_types_agree_with_their_f32_values(void **s)
{
    const char *args[] = {"--type", "Q4_0", NULL};
    char path[512], plain[512];
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m;

    mixed_path(path, plain, G4, "g4-mixed");
    quantized_agrees(path, plain, 0.998);
    gguf_make(path, sizeof(path), G4, "g4-q4.gguf", args);
    m = open_model(path, be, &o);
    assert_string_equal(mdl_info_get(m)->quant, "Q4_0");
    mdl_close(&m);
}

/* ------------------------------------------------------------ spellings */

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
        tdir_new(dir, G4);
        tdir_header(dir, rename_prefix, prefixes[i]);
        gives_the_same(dir);
        tdir_rm(dir);
    }
}

static void nested_text_config(void **s)
{
    char dir[256], *text;
    json_t *c = load_json(G4, "config.json");
    json_t *outer = json_pack("{s:[s],s:s,s:O}", "architectures", "Gemma4ForConditionalGeneration",
                              "model_type", "gemma4", "text_config", c);

    tdir_new(dir, G4);
    assert_non_null(text = json_dumps(outer, 0));
    tdir_put(dir, "config.json", text);
    gives_the_same(dir);
    free(text);
    json_decref(outer);
    json_decref(c);
    tdir_rm(dir);
}

static void both_spellings_of_head_widths(void **s)
{
    char dir[256], *text;
    json_t *native = load_json(G4_NATIVE, "config.json");

    tdir_new(dir, G4);
    assert_non_null(json_object_get(native, "per_layer_config"));
    assert_null(json_object_get(native, "global_head_dim"));
    assert_non_null(text = json_dumps(native, 0));
    tdir_put(dir, "config.json", text);
    gives_the_same(dir);
    free(text);
    json_decref(native);
    tdir_rm(dir);
}

/* Weights of sharing layers may be in the file; the last layer is global whatever its
 * config says. */
static void what_the_reference_ignores(void **s)
{
    char dir[256];

    tdir_new(dir, G4);
    tdir_set(dir, "config.json", "layer_types",
             "[\"sliding_attention\",\"sliding_attention\",\"full_attention\","
             "\"sliding_attention\",\"full_attention\",\"sliding_attention\","
             "\"sliding_attention\",\"sliding_attention\"]");
    tdir_set(dir, "config.json", "use_bidirectional_attention", "\"vision\"");
    gives_the_same(dir);
    tdir_rm(dir);
}

/* The global layers' v_proj becomes a copy of their k_proj. */
static void copy_k_over_v(const char *dir)
{
    static const int full[] = {2, 4};
    static const char *const words[] = {"k_proj", "v_proj"};
    char path[512], name[96], *head, *data;
    uint64_t n, at[2], size = 0;
    json_t *h;
    FILE *f;
    size_t i, k;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_non_null(f = fopen(path, "r+b"));
    assert_int_equal(fread(&n, 8, 1, f), 1);
    assert_non_null(head = malloc(n));
    assert_int_equal(fread(head, 1, n, f), n);
    assert_non_null(h = json_loadb(head, n, 0, NULL));
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 2; k++) {
            const json_t *o;

            snprintf(name, sizeof(name), "model.layers.%d.self_attn.%s.weight", full[i], words[k]);
            o = json_object_get(json_object_get(h, name), "data_offsets");
            at[k] = (uint64_t)json_integer_value(json_array_get(o, 0));
            size = (uint64_t)json_integer_value(json_array_get(o, 1)) - at[k];
            assert_true(size > 0);
        }
        assert_non_null(data = malloc(size));
        assert_int_equal(fseek(f, (long)(8 + n + at[0]), SEEK_SET), 0);
        assert_int_equal(fread(data, 1, size, f), size);
        assert_int_equal(fseek(f, (long)(8 + n + at[1]), SEEK_SET), 0);
        assert_int_equal(fwrite(data, 1, size, f), size);
        free(data);
    }
    fclose(f);
    free(head);
    json_decref(h);
}

static void drop_v(json_t *h, const void *arg)
{
    json_object_del(h, "model.layers.2.self_attn.v_proj.weight");
    json_object_del(h, "model.layers.4.self_attn.v_proj.weight");
}

static float *logits_of_dir(const char *dir, size_t *n)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(dir, be, &o);
    float *x = logits_of(m, prompt, N_TOK, 8);

    *n = (size_t)N_TOK * mdl_info_get(m)->vocab_size;
    mdl_close(&m);
    return x;
}

/* attention_k_eq_v: values are the raw keys. The same model spelled with a v_proj that is
 * the k_proj gives the same bits; the sliding layers keep theirs. */
static void values_may_be_keys(void **s)
{
    char dir[256], path[512];
    float *a, *b;
    size_t n;

    tdir_new(dir, G4);
    copy_k_over_v(dir);
    a = logits_of_dir(dir, &n);
    assert_true(furthest(a, reference_logits, n) > 1e-3);
    tdir_rm(dir);
    tdir_new(dir, G4);
    tdir_set(dir, "config.json", "attention_k_eq_v", "true");
    tdir_set(dir, "config.json", "num_global_key_value_heads", "2");
    tdir_header(dir, drop_v, NULL);
    b = logits_of_dir(dir, &n);
    same_bits(b, a, n, "k_eq_v");
    free(b);
    gguf_make(path, sizeof(path), dir, "g4-k-eq-v.gguf", NULL);
    b = logits_of_dir(path, &n);
    assert_true(furthest(a, b, n) < 1e-4);
    free(a);
    free(b);
    tdir_rm(dir);
}

static void every_number_of_the_config_counts(void **s)
{
    static const char *const changes[][2] = {
        {"sliding_window", "9"},
        {"rms_norm_eps", "0.01"},
        {"final_logit_softcapping", "30.0"},
        {"rope_parameters", "{\"sliding_attention\":{\"rope_theta\":9000.0},\"full_attention\":"
                            "{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25}}"},
        {"rope_parameters", "{\"full_attention\":{\"rope_type\":\"proportional\","
                            "\"partial_rotary_factor\":0.5}}"},
        {"rope_parameters", "{\"full_attention\":{\"rope_type\":\"proportional\","
                            "\"partial_rotary_factor\":0.25,\"factor\":2.0}}"},
        {"rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}"},
    };
    size_t i, n;

    for (i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        char dir[256];
        float *x;

        tdir_new(dir, G4);
        tdir_set(dir, "config.json", changes[i][0], changes[i][1]);
        x = logits_of_dir(dir, &n);
        if (!(furthest(x, reference_logits, n_reference) > 1e-4))
            fail_msg("'%s' %zu changes nothing", changes[i][0], i);
        free(x);
        tdir_rm(dir);
    }
}

/* ------------------------------------------------------------- refusals */

static void refuses_by_name(void **s)
{
    static const struct {
        const char *key, *value;
        enum rc rc;
        const char *what;
    } rows[] = {
        {"enable_moe_block", "true", RC_UNSUPPORTED, "enable_moe_block"},
        {"use_bidirectional_attention", "\"all\"", RC_UNSUPPORTED, "use_bidirectional_attention"},
        {"attention_bias", "true", RC_UNSUPPORTED, "attention_bias"},
        {"hidden_activation", "\"silu\"", RC_UNSUPPORTED, "hidden_activation"},
        {"num_kv_shared_layers", "8", RC_FORMAT, "num_kv_shared_layers"},
        {"num_kv_shared_layers", "7", RC_FORMAT, "num_kv_shared_layers"}, /* no global one left */
        {"num_kv_shared_layers", "9", RC_FORMAT, "num_kv_shared_layers"},
        {"layer_types", "[\"full_attention\"]", RC_FORMAT, "layer_types"},
        {"head_dim", "15", RC_FORMAT, "head_dim"},
        {"head_dim", "1024", RC_FORMAT, "head_dim"},
        {"hidden_size", "null", RC_FORMAT, "hidden_size"},
        {"vocab_size_per_layer_input", "700", RC_UNSUPPORTED, "vocab_size_per_layer_input"},
        {"hidden_size_per_layer_input", "7", RC_UNSUPPORTED, "hidden_size_per_layer_input"},
        {"hidden_size_per_layer_input", "16", RC_FORMAT,
         "model.layers.0.per_layer_input_gate.weight"},
        {"per_layer_config", "{\"2\":{\"head_dim\":16}}", RC_UNSUPPORTED, "per_layer_config"},
        {"per_layer_config", "{\"8\":{\"head_dim\":16}}", RC_FORMAT, "per_layer_config"},
        {"per_layer_config", "{\"x\":{}}", RC_FORMAT, "per_layer_config"},
        {"use_double_wide_mlp", "false", RC_FORMAT, "model.layers.5.mlp.gate_proj.weight"},
        {"rope_parameters", "null", RC_FORMAT, "rope_parameters"},
        {"rope_parameters", "{\"rope_type\":\"default\"}", RC_FORMAT, "rope_parameters"},
        {"rope_parameters", "{\"full_attention\":{\"rope_type\":\"yarn\"}}", RC_UNSUPPORTED,
         "full_attention"},
        {"rope_parameters",
         "{\"full_attention\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}",
         RC_UNSUPPORTED, "partial_rotary_factor"},
    };
    struct mdl_opts o = small_opts(BE_F32);
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct rc_err e = RC_ERR_INIT;
        struct mdl *m = NULL;
        char dir[256];
        enum rc rc;
        int fd;

        tdir_new(dir, G4);
        tdir_set(dir, "config.json", rows[i].key, rows[i].value);
        fd = open_root(dir);
        rc = mdl_open(&m, fd, be, &o, &e);
        close(fd);
        if (rc != rows[i].rc || strcmp(e.what, rows[i].what) != 0)
            fail_msg("%s = %s: %s about '%s', expected %s about '%s' (%s)", rows[i].key,
                     rows[i].value, rc_name(rc), e.what, rc_name(rows[i].rc), rows[i].what, e.msg);
        tdir_rm(dir);
    }
}

static void a_gguf_without_its_rotation_is_refused(void **s)
{
    const char *args[] = {"--drop", "rope_freqs.weight", NULL};
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    char path[512];
    int fd;

    gguf_make(path, sizeof(path), G4, "g4-no-freqs.gguf", args);
    fd = open_root(path);
    assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_WEIGHT_ABSENT);
    assert_string_equal(e.what, "rope_freqs.weight");
    close(fd);
}

/* --------------------------------------------------------- what it says */

static void end_tokens(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    static const char *const words[] = {"<eos>", "<turn|>", "<|tool_response>"};
    char path[512];
    const char *const dirs[] = {G4, path};
    size_t i, k, n, w;

    gguf_make(path, sizeof(path), G4, "g4-f32.gguf", NULL);
    for (i = 0; i < 2; i++) {
        struct mdl *m = open_model(dirs[i], be, &o);
        const int32_t *eos = mdl_eos(m, &n);

        assert_int_equal(n, 3);
        for (w = 0; w < 3; w++) {
            int32_t id = mdl_tok_find(mdl_tok_get(m), words[w], strlen(words[w]));

            for (k = 0; k < n && eos[k] != id; k++)
                ;
            if (k == n)
                fail_msg("%s does not end an answer of %s", words[w], dirs[i]);
        }
        mdl_close(&m);
    }
}

/* Layers 5..7 read others' keys: 2 global layers of 2 x 32 and 3 sliding ones of 2 x 16 own a
 * cache. The estimate of engine.md 3.4, to the byte. */
static void only_own_layers_have_a_cache(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(G4, be, &o);
    const struct mdl_kv_geometry *g = mdl_kv(m);
    uint64_t want = 0;
    uint32_t c;

    assert_string_equal(mdl_info_get(m)->family, "gemma4");
    assert_int_equal(mdl_info_get(m)->ctx_tokens, 2048);
    assert_int_equal(g->n_classes, 2);
    assert_int_equal(g->page_tokens, 32);
    assert_int_equal(g->cls[0].window, 0);
    assert_int_equal(g->cls[1].window, 8);
    assert_int_equal(g->cls[0].page_bytes, 2 * 32 * (2 * 2 * 32) * 2);
    assert_int_equal(g->cls[1].page_bytes, 3 * 32 * (2 * 2 * 16) * 2);
    for (c = 0; c < 2; c++)
        want += g->cls[c].n_pages * g->cls[c].page_bytes;
    assert_true(mdl_info_get(m)->kv_bytes >= want && mdl_info_get(m)->kv_bytes <= want + 4096);
    /* a pass of 128 rows and 7 keys before it, from a page's last slot: 6 pages */
    assert_int_equal(mdl_kv_seq_pages(32, g->cls[1].window, 128, 2048), 6);
    mdl_close(&m);
    o.drafted = true;
    m = open_model(G4, be, &o);
    assert_int_equal(mdl_kv(m)->cls[1].window, 10);
    mdl_close(&m);
}

/* All 8 layers read: 3 global ones all positions, 5 sliding ones their window. */
static void a_token_reads_what_it_may_see(void **s)
{
    static const uint32_t at[] = {0, 6, 7, 8, 1000};
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(G4, be, &o);

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        uint64_t n = at[i] + 1ull, near = n < 8 ? n : 8;

        assert_int_equal(mdl_kv_read_bytes(m, at[i]),
                         3 * n * (2 * 2 * 32) * 2 + 5 * near * (2 * 2 * 16) * 2);
    }
    mdl_close(&m);
    m = open_model(BERT_DIR, be, &o);
    assert_int_equal(mdl_kv_read_bytes(m, 5), 0);
    assert_int_equal(mdl_kv_fill(m, NULL, 0, 0, NULL), RC_UNSUPPORTED);
    mdl_close(&m);
}

/* Made-up keys reach every layer that has a cache: what decodes behind them differs from what
 * decodes behind an unwritten cache, is finite, and is the same each time. */
static void a_cache_is_filled_without_computing(void **s)
{
    const uint32_t n = 40;
    const int32_t id = 17, pos = (int32_t)n, row = 0;
    float *got[3] = {NULL, NULL, NULL};
    size_t vocab = 0;

    for (int i = 0; i < 3; i++) {
        struct mdl_opts o = small_opts(BE_F32);
        struct mdl *m = open_model(G4, be, &o);
        struct tpool p;
        struct tseq seq;
        struct be_seq at = {.n_rows = n};
        struct mdl_batch b = {.n_rows = 1,
                              .n_seqs = 1,
                              .n_out = 1,
                              .ids = &id,
                              .pos = &pos,
                              .seqs = &at,
                              .out_rows = &row};
        const float *logits;

        tpool_init(&p, m);
        tseq_init(&seq);
        tseq_extend(&p, &seq, n + 1);
        for (uint32_t c = 0; c < mdl_kv(m)->n_classes; c++)
            at.pages[c] = seq.pages[c];
        if (i > 0)
            need_ok(mdl_kv_fill(m, &at, 1, n, err));
        assert_int_equal(mdl_kv_fill(m, &at, 1, m->geo.chunk + 1, NULL), RC_LIMIT);
        at.pos0 = n;
        at.n_rows = 1;
        need_ok(mdl_decode(m, &b, &logits, err));
        vocab = mdl_info_get(m)->vocab_size;
        got[i] = malloc(vocab * sizeof(float));
        memcpy(got[i], logits, vocab * sizeof(float));
        for (size_t j = 0; i > 0 && j < vocab; j++)
            assert_true(isfinite(got[i][j]));
        tseq_free(&p, &seq);
        mdl_close(&m);
    }
    assert_memory_not_equal(got[0], got[1], vocab * sizeof(float));
    assert_memory_equal(got[1], got[2], vocab * sizeof(float));
    for (int i = 0; i < 3; i++)
        free(got[i]);
}

/* The table of per-layer embeddings stays in the file. */
static void the_table_stays_in_the_file(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(G4, be, &o);
    uint64_t table = 704 * 8 * 8 * sizeof(float);

    assert_true(m->plan.weight_bytes + table <= mdl_file_bytes(m->file));
    o.weight_bytes = m->plan.weight_bytes;
    mdl_close(&m);
    m = open_model(G4, be, &o); /* a budget without the table is enough */
    mdl_close(&m);
}

static void towers_are_left_aside_with_a_note(void **s)
{
    struct mdl_opts o = small_opts(BE_F16);
    struct mdl *m = open_model(G4_MM, be, &o);

    assert_string_equal(mdl_info_get(m)->note, "text only: the vision tower and the audio tower of "
                                               "this checkpoint are not read");
    mdl_close(&m);
    m = open_model(G4, be, &o);
    assert_string_equal(mdl_info_get(m)->note, "");
    mdl_close(&m);
}

/* ----------------------------------------------------- injected vectors */

static enum rc pass(struct mdl *m, const int32_t *ids, uint32_t n, const struct mdl_soft *soft,
                    uint32_t n_soft, float *out, struct rc_err *err)
{
    static int32_t page[64], pos[32], rows[32];
    struct be_seq q = {.n_rows = n, .pages = {page, page}};
    struct mdl_batch b = {.n_rows = n,
                          .n_seqs = 1,
                          .n_out = n,
                          .ids = ids,
                          .pos = pos,
                          .seqs = &q,
                          .out_rows = rows,
                          .n_soft = n_soft,
                          .soft = soft};
    const float *logits = NULL;
    enum rc rc;
    uint32_t i;

    for (i = 0; i < n; i++)
        pos[i] = rows[i] = (int32_t)i;
    if ((rc = mdl_decode(m, &b, &logits, err)) == RC_OK)
        memcpy(out, logits, (size_t)n * mdl_info_get(m)->vocab_size * sizeof(float));
    return rc;
}

/* A vector injected over a placeholder is what the layers see, and its per-layer
 * embedding is that of <pad>: with <pad>'s own vector the pass is that of <pad>. */
static void vectors_take_the_place_of_tokens(void **s)
{
    static const int32_t with_pad[6] = {2, 30, 0, 0, 40, 41}, holder[6] = {2, 30, 699, 700, 40, 41};
    struct mdl_opts o = wide_opts(BE_F32);
    struct mdl *m = open_model(G4, be, &o);
    uint32_t d = mdl_info_get(m)->d_model, v = mdl_info_get(m)->vocab_size, i;
    const struct mdl_tensor *t = mdl_file_find(m->file, "model.embed_tokens.weight");
    float *x = malloc(d * sizeof(*x)), *a = malloc(6 * v * sizeof(*a)),
          *b = malloc(6 * v * sizeof(*b));
    struct mdl_soft soft[2] = {{.row = 2, .x = x}, {.row = 3, .x = x}};
    struct rc_err e = RC_ERR_INIT;

    assert_true(x && a && b && t);
    for (i = 0; i < d; i++)
        x[i] = ((const float *)t->data)[i] * (float)sqrt((double)d);
    need_ok(pass(m, with_pad, 6, NULL, 0, a, err));
    need_ok(pass(m, holder, 6, soft, 2, b, err));
    same_bits(b, a, 6 * (size_t)v, "injected vectors");
    x[0] += 1;
    need_ok(pass(m, holder, 6, soft, 2, b, err));
    assert_true(furthest(a, b, 6 * (size_t)v) > 1e-3);
    same_bits(b, a, 2 * (size_t)v, "rows before them");
    soft[1].row = 6;
    assert_int_equal(pass(m, holder, 6, soft, 2, b, &e), RC_INVALID);
    soft[1].row = 3;
    x[d - 1] = (float)NAN;
    assert_int_equal(pass(m, holder, 6, soft, 2, b, &e), RC_INVALID);
    mdl_close(&m);
    free(x);
    free(a);
    free(b);
}

static void pictures_that_see_themselves_are_refused(void **s)
{
    static const int32_t ids[2] = {2, 30};
    struct mdl_opts o = wide_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    float x[64] = {0}, *out;
    struct mdl_soft soft = {.row = 1, .x = x};
    struct mdl *m;
    char dir[256];

    tdir_new(dir, G4);
    tdir_set(dir, "config.json", "use_bidirectional_attention", "\"vision\"");
    m = open_model(dir, be, &o);
    assert_non_null(out = malloc(2 * mdl_info_get(m)->vocab_size * sizeof(*out)));
    assert_int_equal(pass(m, ids, 2, &soft, 1, out, &e), RC_UNSUPPORTED);
    assert_string_equal(e.what, "use_bidirectional_attention");
    need_ok(pass(m, ids, 2, NULL, 0, out, err));
    free(out);
    mdl_close(&m);
    tdir_rm(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_in_chunks),
        cmocka_unit_test(alone_or_in_a_batch),
        cmocka_unit_test(one_thread_or_two),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(rejected_rows_leave_nothing),
        cmocka_unit_test(quantized_types_agree_with_their_f32_values),
        cmocka_unit_test(tensor_prefixes),
        cmocka_unit_test(nested_text_config),
        cmocka_unit_test(both_spellings_of_head_widths),
        cmocka_unit_test(what_the_reference_ignores),
        cmocka_unit_test(values_may_be_keys),
        cmocka_unit_test(every_number_of_the_config_counts),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(a_gguf_without_its_rotation_is_refused),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(only_own_layers_have_a_cache),
        cmocka_unit_test(a_token_reads_what_it_may_see),
        cmocka_unit_test(a_cache_is_filled_without_computing),
        cmocka_unit_test(the_table_stays_in_the_file),
        cmocka_unit_test(towers_are_left_aside_with_a_note),
        cmocka_unit_test(vectors_take_the_place_of_tokens),
        cmocka_unit_test(pictures_that_see_themselves_are_refused),
    };
    int rc;

    need_dir(G4);
    make_prompt();
    be = test_ctx(2);
    reference_logits = logits_of_dir(G4, &n_reference);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(reference_logits);
    be_ctx_free(&be);
    return rc;
}
