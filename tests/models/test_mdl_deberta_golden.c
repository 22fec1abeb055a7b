/* DeBERTa against what transformers computed: ids of pairs, token states, logits, order of a
 * ranking, places of distances, and the settings of other published checkpoints.
 * Provenance: tests/golden/README.md */
#include "mdl_deberta_impl.h"
#include "mdl_near.h"

#define RERANKER_DIR TEST_GOLDEN "/reranker"
#define TOL TOL_ENCODER
/* of this reranker, twice what the reference moves: tf32 1.1e-2, f16 1.3e-2 */
#define TOL_LOGIT test_tol(1e-5, 2.2e-2, 2.6e-2)

static struct be_ctx *be;
static json_t *cases;

/* The pair's ids through the model's own tokenizer, cut to max_length where that is shorter. */
static float score(struct mdl *m, const json_t *c)
{
    const json_t *q = json_object_get(c, "query"), *d = json_object_get(c, "doc");
    struct mdl_ids ids = {0};
    uint32_t n, offsets[2] = {0, 0};
    int32_t *want = ids_of(json_object_get(c, "ids"), &n);
    float logit = NAN;
    bool cut = false;

    need_ok(mdl_pair_tokens(m, json_string_value(q), json_string_length(q), json_string_value(d),
                            json_string_length(d), true, &cut, &ids, err));
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof(*want));
    offsets[1] = n;
    need_ok(mdl_encode(m, 1, ids.ids, offsets, &logit, err));
    mdl_ids_deinit(&ids);
    free(want);
    return logit;
}

static void logits_agree(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(RERANKER_DIR, be, &o);
    const json_t *list = json_object_get(cases, "cases");

    assert_true(mdl_info_get(m)->can_rerank && !mdl_info_get(m)->can_embed);
    assert_int_equal(mdl_encode_dim(m), 1);
    assert_true(json_array_size(list) > 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);

        near_number(score(m, c), json_object_get(c, "logit"), TOL_LOGIT, "logit", i);
    }
    mdl_close(&m);
}

static void longest_first_is_cut(void **state)
{
    const json_t *list = json_object_get(cases, "truncated");
    struct mdl_opts o = small_opts(BE_F32);
    char dir[256], text[16];

    tdir_new(dir, RERANKER_DIR);
    assert_true(json_array_size(list) > 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        struct mdl *m;

        snprintf(text, sizeof(text), "%lld",
                 (long long)json_integer_value(json_object_get(c, "max_length")));
        tdir_set(dir, "tokenizer_config.json", "model_max_length", text);
        m = open_model(dir, be, &o);
        near_number(score(m, c), json_object_get(c, "logit"), TOL_LOGIT, "truncated", i);
        mdl_close(&m);
    }
    tdir_rm(dir);
}

static void ranking_agrees(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(RERANKER_DIR, be, &o);
    const json_t *r = json_object_get(cases, "ranking"), *order = json_object_get(r, "order");
    const json_t *list = json_object_get(cases, "cases");
    float logits[32];
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(list) && n < 32; i++) {
        const json_t *c = json_array_get(list, i);

        if (json_equal(json_object_get(c, "query"), json_object_get(r, "query")))
            logits[n++] = score(m, c);
    }
    assert_int_equal(n, json_array_size(order));
    for (size_t i = 1; i < n; i++) {
        size_t a = (size_t)json_integer_value(json_array_get(order, i - 1));
        size_t b = (size_t)json_integer_value(json_array_get(order, i));

        assert_true(a < n && b < n && logits[a] >= logits[b]);
    }
    mdl_close(&m);
}

static void token_states_agree(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(RERANKER_DIR, be, &o);
    struct last l;
    const json_t *list = json_object_get(cases, "cases");
    size_t n_seen = 0;

    trace_last(m, be, &l);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *h = json_object_get(c, "hidden");

        if (!h)
            continue;
        score(m, c);
        near_summary(l.x, l.n, h, TOL, "state", i);
        n_seen++;
    }
    assert_true(n_seen > 0);
    free(l.x);
    mdl_close(&m);
}

static void buckets_agree(void **state)
{
    static const struct {
        const char *name;
        uint32_t k, max_rel;
    } tables[] = {{"8_64", 8, 64}, {"256_512", 256, 512}};
    const json_t *all = json_object_get(cases, "buckets");

    for (size_t t = 0; t < 2; t++) {
        struct mdl_deberta *e = calloc(1, sizeof(*e));
        char negative[32];
        const json_t *up = json_object_get(all, tables[t].name), *down;
        uint32_t n = (uint32_t)json_array_size(up);
        int32_t *rel = malloc((2 * (size_t)n - 1) * sizeof(*rel)), k = (int32_t)tables[t].k;

        snprintf(negative, sizeof(negative), "%s_negative", tables[t].name);
        down = json_object_get(all, negative);
        assert_true(e && rel && n > 64 && json_array_size(down) == n);
        e->n_buckets = tables[t].k;
        e->max_rel = tables[t].max_rel;
        e->n_rel = 2 * tables[t].k;
        deb_places(e, n, rel);
        for (uint32_t i = 0; i < n; i++) {
            int32_t a = (int32_t)json_integer_value(json_array_get(up, i)) + k;
            int32_t b = (int32_t)json_integer_value(json_array_get(down, i)) + k;

            assert_int_equal(rel[n - 1 + i], a >= 2 * k ? 2 * k - 1 : a);
            assert_int_equal(rel[n - 1 - i], b < 0 ? 0 : b);
        }
        free(rel);
        free(e);
    }
}

/* Positions and types in the input, a narrower table, no buckets, projections of their own; a
 * convolution, one term; no relative positions. */
static void other_settings_agree(void **state)
{
    static const char *const names[] = {"deberta-abs", "deberta-conv", "deberta-plain"};
    uint32_t n_conv = 0;

    for (size_t v = 0; v < sizeof(names) / sizeof(*names); v++) {
        struct mdl_opts o = small_opts(BE_F32);
        char dir[256], from[256], to[512];
        int32_t ids[256];
        uint32_t offsets[8] = {0}, dim;
        float out[8 * 64];
        json_t *list, *config;
        struct mdl *m;
        bool conv;

        snprintf(from, sizeof(from), "%s/%s", TEST_GOLDEN, names[v]);
        list = load_json(from, "cases.json");
        tdir_new(dir, from);
        path_join(to, sizeof(to), dir, "tokenizer.json");
        copy_file(RERANKER_DIR "/tokenizer.json", to);
        o.batch_tokens = 4096; /* one pass: neighbours side by side */
        config = load_json(from, "config.json");
        conv = json_integer_value(json_object_get(config, "conv_kernel_size")) > 0;
        json_decref(config);
        n_conv += conv;
        if (strcmp(test_backend(), "cpu") != 0 && conv) {
            struct rc_err e = RC_ERR_INIT;
            int fd = open_root(dir);

            assert_int_equal(mdl_open(&m, fd, be, &o, &e), RC_UNSUPPORTED); /* no device has it */
            assert_non_null(strstr(e.msg, "convolution"));
            close(fd);
            json_decref(list);
            tdir_rm(dir);
            continue;
        }
        m = open_model(dir, be, &o);
        dim = mdl_encode_dim(m);
        assert_true(dim <= 64 && json_array_size(list) == 4);
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t n;
            int32_t *one = ids_of(json_object_get(json_array_get(list, s), "ids"), &n);

            assert_true(offsets[s] + n <= 256);
            memcpy(ids + offsets[s], one, n * sizeof(*one));
            offsets[s + 1] = offsets[s] + n;
            free(one);
        }
        need_ok(mdl_encode(m, 4, ids, offsets, out, err));
        for (uint32_t s = 0; s < 4; s++) {
            const json_t *want = json_object_get(json_array_get(list, s), "out");

            assert_int_equal(json_array_size(want), dim);
            for (uint32_t i = 0; i < dim; i++)
                near_number(out[s * dim + i], json_array_get(want, i), TOL, names[v], s);
        }
        mdl_close(&m);
        json_decref(list);
        tdir_rm(dir);
    }
    assert_int_equal(n_conv, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree),   cmocka_unit_test(longest_first_is_cut),
        cmocka_unit_test(ranking_agrees), cmocka_unit_test(token_states_agree),
        cmocka_unit_test(buckets_agree),  cmocka_unit_test(other_settings_agree),
    };
    int rc;

    need_dir(RERANKER_DIR);
    cases = load_json(RERANKER_DIR, "cases.json");
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    json_decref(cases);
    return rc;
}
