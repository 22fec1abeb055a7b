/* all-MiniLM-L6-v2 with its real weights: 200 documents ranked for 24 queries as
 * sentence-transformers ranks them. Skipped where tests/models/get has not put the weights.
 * Provenance: tests/golden/minilm_retrieval.py */
#include "mdl_test.h"

#define TOL 1e-5
#define DOCS 200
#define DIM 384

static struct be_ctx *be;

static void model_dir(char *out, size_t cap)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (cache && *cache)
        snprintf(out, cap, "%s/inferd/models/all-MiniLM-L6-v2", cache);
    else
        snprintf(out, cap, "%s/.cache/inferd/models/all-MiniLM-L6-v2", home ? home : "");
}

/* All texts of a list in one call. */
static float *embed_all(struct mdl *m, const json_t *texts)
{
    uint32_t n = (uint32_t)json_array_size(texts), i;
    uint32_t *offsets = calloc(n + 1, sizeof(*offsets));
    float *out = malloc((size_t)n * DIM * sizeof(*out));
    struct mdl_ids ids = {0};
    bool cut;

    assert_true(offsets && out);
    for (i = 0; i < n; i++) {
        const json_t *t = json_array_get(texts, i);

        need_ok(mdl_embed_tokens(m, json_string_value(t), json_string_length(t), NULL, false, &cut,
                                 &ids, err));
        offsets[i + 1] = (uint32_t)ids.n;
    }
    need_ok(mdl_encode(m, n, ids.ids, offsets, out, err));
    mdl_ids_deinit(&ids);
    free(offsets);
    return out;
}

static double got[DOCS];

static int by_score(const void *a, const void *b)
{
    double x = got[*(const int *)a], y = got[*(const int *)b];

    return (x < y) - (x > y);
}

static void ranks_are_those_of_sentence_transformers(void **state)
{
    json_t *j = load_json(TEST_GOLDEN, "minilm_retrieval.json");
    const json_t *queries = json_object_get(j, "queries");
    struct mdl_opts o = small_opts(BE_F32);
    char dir[512];
    int order[DOCS];
    struct mdl *m;
    float *d, *q;
    size_t i, k, c;

    model_dir(dir, sizeof(dir));
    o.batch_tokens = 2048;
    m = open_model(dir, be, &o);
    d = embed_all(m, json_object_get(j, "documents"));
    q = embed_all(m, queries);
    for (i = 0; i < json_array_size(queries); i++) {
        const json_t *want = json_array_get(json_object_get(j, "scores"), i);

        assert_int_equal(json_array_size(want), DOCS);
        for (k = 0; k < DOCS; k++) {
            for (c = 0, got[k] = 0; c < DIM; c++)
                got[k] += (double)q[i * DIM + c] * d[k * DIM + c];
            order[k] = (int)k;
            assert_true(fabs(got[k] - json_number_value(json_array_get(want, k))) <= TOL);
        }
        qsort(order, DOCS, sizeof(*order), by_score);
        for (k = 1; k < DOCS; k++) { /* two that the reference puts a rounding apart may swap */
            double above = json_number_value(json_array_get(want, (size_t)order[k - 1]));
            double below = json_number_value(json_array_get(want, (size_t)order[k]));

            if (above < below - 1e-6)
                fail_msg("query %zu: document %d (%.7f) ranks above %d (%.7f)", i, order[k - 1],
                         above, order[k], below);
        }
    }
    assert_true(i >= 20);
    free(d);
    free(q);
    mdl_close(&m);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_are_those_of_sentence_transformers)};
    char dir[512];
    int rc;

    model_dir(dir, sizeof(dir));
    need_dir(dir);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
