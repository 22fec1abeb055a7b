/* What an embedder's identity depends on, and what not. */
#include <sodium.h>

#include "mdl_test.h"

static struct be_ctx *be;

static void identity_of(const char *dir, const struct mdl_opts *o, char out[65])
{
    struct mdl *m = open_model(dir, be, o);

    snprintf(out, 65, "%s", mdl_info_get(m)->identity);
    mdl_close(&m);
}

static void add(crypto_hash_sha256_state *s, const void *p, size_t n)
{
    uint64_t len = n; /* little-endian here as in the contract */

    crypto_hash_sha256_update(s, (const uint8_t *)&len, 8);
    crypto_hash_sha256_update(s, p, n);
}

static void add_file(crypto_hash_sha256_state *s, const char *dir, const char *name)
{
    uint64_t none = UINT64_MAX;
    char path[512], *p;
    FILE *f;
    long n;

    add(s, name, strlen(name));
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!(f = fopen(path, "rb"))) {
        crypto_hash_sha256_update(s, (const uint8_t *)&none, 8);
        return;
    }
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    assert_non_null(p = malloc((size_t)n));
    assert_int_equal(fread(p, 1, (size_t)n, f), n);
    fclose(f);
    add(s, p, (size_t)n);
    free(p);
}

/* The contract, spelled out a second time. */
static void it_is_the_hash_of_the_documented_files(void **state)
{
    static const char *const names[] = {"config.json",
                                        "model.safetensors.index.json",
                                        "model.safetensors",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "processor_config.json",
                                        "preprocessor_config.json",
                                        "sentence_bert_config.json",
                                        "config_sentence_transformers.json",
                                        "modules.json",
                                        "1_Pooling/config.json"};
    static const struct {
        const char *dir, *recipe;
    } models[] = {{BERT_DIR, "bert-f32-sbert-v1"}, {EG2_DIR, "embeddinggemma2-f32-mean-v1"}};
    struct mdl_opts o = small_opts(BE_F32);

    for (size_t k = 0; k < 2; k++) {
        crypto_hash_sha256_state s;
        uint8_t digest[32];
        char want[65], got[65];

        crypto_hash_sha256_init(&s);
        add(&s, models[k].recipe, strlen(models[k].recipe));
        for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
            add_file(&s, models[k].dir, names[i]);
        crypto_hash_sha256_final(&s, digest);
        sodium_bin2hex(want, sizeof(want), digest, sizeof(digest));
        identity_of(models[k].dir, &o, got);
        assert_string_equal(got, want);
    }
}

static void budgets_and_passes_do_not_matter(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    char a[65], b[65];

    identity_of(BERT_DIR, &o, a);
    o.batch_tokens = 300;
    o.max_seqs = 2;
    identity_of(BERT_DIR, &o, b);
    assert_int_equal(strlen(a), 64);
    assert_string_equal(a, b);
}

/* A byte in any of the files, or a file more or less, is another model. */
static void every_file_matters(void **state)
{
    static const char *const files[] = {"config.json", "tokenizer_config.json",
                                        "config_sentence_transformers.json",
                                        "1_Pooling/config.json", "processor_config.json"};
    struct mdl_opts o = small_opts(BE_F32);
    char seen[7][65], dir[256], path[512];

    identity_of(EG2_DIR, &o, seen[0]);
    for (size_t i = 0; i < 6; i++) {
        FILE *f;

        tdir_new(dir, EG2_DIR);
        if (i < 5) {
            snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
            assert_non_null(f = fopen(path, "a"));
            fputc('\n', f); /* means nothing to JSON */
            fclose(f);
        } else {
            tdir_put(dir, "special_tokens_map.json", "");
        }
        identity_of(dir, &o, seen[i + 1]);
        for (size_t k = 0; k <= i; k++)
            assert_string_not_equal(seen[i + 1], seen[k]);
        tdir_rm(dir);
    }
}

static void one_weight_matters(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    char a[65], b[65], dir[256], path[512];
    unsigned char last;
    FILE *f;

    identity_of(BERT_DIR, &o, a);
    tdir_new(dir, BERT_DIR);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_non_null(f = fopen(path, "r+b"));
    fseek(f, -4, SEEK_END); /* the lowest bits of the last number */
    last = (unsigned char)fgetc(f);
    fseek(f, -4, SEEK_END);
    fputc(last ^ 1, f);
    fclose(f);
    identity_of(dir, &o, b);
    assert_string_not_equal(a, b);
    tdir_rm(dir);
}

/* Wherever modules.json says that pooling is described. */
static void pooling_elsewhere_matters(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    char a[65], b[65], dir[256], path[512];

    tdir_new(dir, BERT_DIR);
    snprintf(path, sizeof(path), "%s/pool", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    tdir_put(dir, "modules.json",
             "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
             "{\"path\":\"pool\",\"type\":\"sentence_transformers.models.Pooling\"}]");
    tdir_put(dir, "pool/config.json", "{\"pooling_mode\": \"mean\"}");
    identity_of(dir, &o, a);
    tdir_put(dir, "pool/config.json", "{\"pooling_mode\": \"cls\"}");
    identity_of(dir, &o, b);
    assert_string_not_equal(a, b);
    tdir_rm(dir);
}

/* Nobody waits for it where it is not asked: probing, and models that make no vectors. */
static void only_loaded_embedders_have_one(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl_info info;
    char got[65];
    int fd = open_root(BERT_DIR);

    need_ok(mdl_probe(&info, fd, err));
    close(fd);
    assert_string_equal(info.identity, "");
    identity_of(GEMMA_DIR, &o, got);
    assert_string_equal(got, "");
}

struct seen {
    uint64_t done, total;
    unsigned calls;
};

static void on_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct seen *s = user;

    if (strcmp(stage, "identity") != 0)
        return;
    assert_true(done > s->done && done <= total);
    s->done = done;
    s->total = total;
    s->calls++;
}

static void progress_is_told(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct seen s = {0};
    char got[65];

    o.progress = on_progress;
    o.progress_user = &s;
    identity_of(BERT_DIR, &o, got);
    assert_true(s.calls > 0);
    assert_int_equal(s.done, s.total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_hash_of_the_documented_files),
        cmocka_unit_test(budgets_and_passes_do_not_matter),
        cmocka_unit_test(every_file_matters),
        cmocka_unit_test(one_weight_matters),
        cmocka_unit_test(pooling_elsewhere_matters),
        cmocka_unit_test(only_loaded_embedders_have_one),
        cmocka_unit_test(progress_is_told),
    };
    int rc;

    need_dir(BERT_DIR);
    need_dir(EG2_DIR);
    be = test_ctx(1);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
