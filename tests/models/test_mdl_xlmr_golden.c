/* XLM-RoBERTa as BGE-M3 against what transformers and FlagEmbedding computed: token states, dense
 * vectors, lexical maps, ColBERT vectors, and the scores of pairs made of them; cross-encoders: ids
 * of pairs and logits. Provenance: tests/golden/README.md */
#include "mdl_near.h"
#include "mdl_xlmr.h"

#define TOL TOL_ENCODER

static struct be_ctx *be;
static json_t *cases;
static struct mdl *bge;

/* What one pass gives for the ids of a case. */
struct got {
    int32_t *ids;
    uint32_t n, dim;
    float *dense, *weights, *vectors;
    struct mdl_lexical *map;
    size_t n_map;
};

static void got_of(struct mdl *m, const json_t *ids, struct got *g)
{
    uint32_t offsets[2] = {0, 0};

    g->ids = ids_of(ids, &g->n);
    g->dim = mdl_info_get(m)->token_dim;
    offsets[1] = g->n;
    g->dense = malloc(mdl_info_get(m)->embed_dim * sizeof(float));
    g->weights = malloc(g->n * sizeof(float));
    g->vectors = malloc((size_t)g->n * g->dim * sizeof(float));
    g->map = malloc(g->n * sizeof(*g->map));
    assert_true(g->dense && g->weights && g->vectors && g->map);
    need_ok(mdl_encode_tokens(m, 1, g->ids, offsets, g->dense, g->weights, g->vectors, err));
    g->n_map = mdl_sparse_map(m, g->ids, g->weights, g->n, g->map);
}

static void got_free(struct got *g)
{
    free(g->ids);
    free(g->dense);
    free(g->weights);
    free(g->vectors);
    free(g->map);
}

static void check_map(const struct got *g, const json_t *want, size_t item)
{
    size_t i;
    char key[16];

    assert_int_equal(g->n_map, json_object_size(want));
    for (i = 0; i < g->n_map; i++) {
        const json_t *w;

        snprintf(key, sizeof(key), "%d", g->map[i].id);
        if (!(w = json_object_get(want, key)))
            fail_msg("case %zu: id %s is not in the reference's map", item, key);
        assert_true(fabs(g->map[i].weight - json_number_value(w)) <= TOL);
        assert_true(i == 0 || g->map[i - 1].id < g->map[i].id);
    }
}

static void check_case(struct mdl *m, const json_t *c, size_t item)
{
    const json_t *sum = json_object_get(c, "colbert");
    uint32_t first, n;
    struct got g;

    got_of(m, json_object_get(c, "ids"), &g);
    near_values(g.dense, json_object_get(c, "dense"), TOL, "dense", item);
    near_values(g.weights, json_object_get(c, "token_weights"), TOL, "token_weights", item);
    check_map(&g, json_object_get(c, "sparse"), item);
    n = mdl_vector_rows(g.n, &first);
    assert_int_equal(n, json_integer_value(json_array_get(json_object_get(sum, "shape"), 0)));
    assert_int_equal(g.dim, json_integer_value(json_array_get(json_object_get(sum, "shape"), 1)));
    near_summary(g.vectors + (size_t)first * g.dim, (size_t)n * g.dim, sum, TOL, "colbert", item);
    got_free(&g);
}

static void every_output_of_one_pass_agrees(void **s)
{
    json_t *list = json_object_get(cases, "cases");
    size_t i;

    assert_true(json_array_size(list) > 0);
    for (i = 0; i < json_array_size(list); i++)
        check_case(bge, json_array_get(list, i), i);
}

/* ------------------------------------------------------------------- pairs */

/* "<s> a </s> </s> b </s>" of the file as the ids of a and of b alone; false: not in the file. */
static bool ids_of_pair(const json_t *a, const json_t *b, json_t **out_a, json_t **out_b)
{
    const json_t *ids = NULL;
    json_t *p;
    size_t i, n;

    json_array_foreach(json_object_get(cases, "pairs"), i,
                       p) if (json_equal(json_object_get(p, "a"), a) &&
                              json_equal(json_object_get(p, "b"), b)) ids =
        json_object_get(p, "ids");
    if (!ids)
        return false;
    n = json_array_size(ids);
    *out_a = json_array();
    *out_b = json_pack("[i]", 0);
    for (i = 0; i < n; i++) {
        json_array_append(*out_a, json_array_get(ids, i));
        if (json_integer_value(json_array_get(ids, i)) == 2)
            break;
    }
    for (i += 2; i < n; i++)
        json_array_append(*out_b, json_array_get(ids, i));
    return true;
}

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static double lexical_score(const struct got *q, const struct got *d)
{
    double sum = 0;
    size_t i, k = 0;

    for (i = 0; i < q->n_map; i++) {
        while (k < d->n_map && d->map[k].id < q->map[i].id)
            k++;
        if (k < d->n_map && d->map[k].id == q->map[i].id)
            sum += (double)q->map[i].weight * d->map[k].weight;
    }
    return sum;
}

static double vector_score(const struct got *q, const struct got *d)
{
    uint32_t q0, d0, nq = mdl_vector_rows(q->n, &q0), nd = mdl_vector_rows(d->n, &d0), i, k;
    double sum = 0;

    for (i = q0; i < q0 + nq; i++) {
        double best = -INFINITY;

        for (k = d0; k < d0 + nd; k++)
            best = fmax(best, dot(q->vectors + (size_t)i * q->dim, d->vectors + (size_t)k * d->dim,
                                  q->dim));
        sum += best;
    }
    return sum / nq;
}

static void near(const json_t *c, const char *key, double got)
{
    double want = json_number_value(json_object_get(c, key));

    if (!(fabs(got - want) <= 10 * TOL)) /* products of weights up to 10 */
        fail_msg("%s: %.8f, expected %.8f", key, got, want);
}

static void scores_of_pairs_agree(void **s)
{
    json_t *c;
    size_t i, seen = 0;

    json_array_foreach(json_object_get(cases, "pair_scores"), i, c)
    {
        json_t *qi, *di;
        struct got q, d;

        if (!ids_of_pair(json_object_get(c, "query"), json_object_get(c, "passage"), &qi, &di))
            continue; /* the file has ids of some pairs only */
        got_of(bge, qi, &q);
        got_of(bge, di, &d);
        json_decref(qi);
        json_decref(di);
        near(c, "dense", dot(q.dense, d.dense, mdl_info_get(bge)->embed_dim));
        near(c, "sparse", lexical_score(&q, &d));
        near(c, "colbert", vector_score(&q, &d));
        got_free(&q);
        got_free(&d);
        seen++;
    }
    assert_true(seen > 2);
}

/* ------------------------------------------------------------- token states */

static void hidden_states_agree(void **s)
{
    struct last l;
    json_t *list = json_object_get(cases, "cases");
    size_t i;

    trace_last(bge, be, &l);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        struct got g;

        got_of(bge, json_object_get(c, "ids"), &g);
        near_summary(l.x, l.n, json_object_get(c, "hidden"), TOL, "hidden", i);
        got_free(&g);
    }
    bge->trace = NULL;
    free(l.x);
}

/* ----------------------------------------------------------- cross-encoders */

static void pair_of(struct mdl *m, const json_t *c, struct mdl_ids *out, bool *cut)
{
    const json_t *q = json_object_get(c, "query"), *d = json_object_get(c, "doc");

    need_ok(mdl_pair_tokens(m, json_string_value(q), json_string_length(q), json_string_value(d),
                            json_string_length(d), true, cut, out, err));
}

/* Ids as the reference has them, longest first cut; logits alone and all in one call. */
static void logits_agree(const char *from)
{
    struct mdl_opts o = small_opts(BE_F32);
    json_t *j = load_json(from, "cases.json"), *list = json_object_get(j, "cases");
    uint32_t offsets[33] = {0}, n = (uint32_t)json_array_size(list), i, n_want;
    float alone[32], all[32];
    struct mdl_ids ids = {0};
    struct mdl *m;
    char dir[256];
    bool cut, any = false;

    assert_in_range(n, 4, 32);
    cross_copy(dir, from);
    m = open_model(dir, be, &o);
    for (i = 0; i < n; i++) {
        const json_t *c = json_array_get(list, i);
        int32_t *want = ids_of(json_object_get(c, "ids"), &n_want);
        uint32_t one[2] = {0, n_want};

        pair_of(m, c, &ids, &cut);
        any |= cut;
        offsets[i + 1] = (uint32_t)ids.n;
        assert_int_equal(offsets[i + 1] - offsets[i], n_want);
        assert_memory_equal(ids.ids + offsets[i], want, n_want * sizeof(*want));
        need_ok(mdl_encode(m, 1, want, one, &alone[i], err));
        if (!(fabs(alone[i] - json_number_value(json_object_get(c, "logit"))) <= TOL))
            fail_msg("logit of pair %u: %.8f, expected %.8f", i, alone[i],
                     json_number_value(json_object_get(c, "logit")));
        free(want);
    }
    assert_true(any);
    need_ok(mdl_encode(m, n, ids.ids, offsets, all, err));
    assert_memory_equal(alone, all, n * sizeof(float));
    mdl_ids_deinit(&ids);
    mdl_close(&m);
    tdir_rm(dir);
    json_decref(j);
}

static void cross_encoders_agree(void **s)
{
    logits_agree(CROSS_BERT_DIR);
    logits_agree(CROSS_XLMR_DIR);
}

/* Ids of the file's texts by its own tokenizer. */
static void ids_agree(void **s)
{
    json_t *c;
    size_t i;

    json_array_foreach(json_object_get(cases, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        struct mdl_ids ids = {0};
        uint32_t n;
        int32_t *want = ids_of(json_object_get(c, "ids"), &n);
        bool cut;

        need_ok(mdl_embed_tokens(bge, json_string_value(text), json_string_length(text), NULL, true,
                                 &cut, &ids, err));
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, want, n * sizeof(*want));
        mdl_ids_deinit(&ids);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_output_of_one_pass_agrees),
        cmocka_unit_test(scores_of_pairs_agree),
        cmocka_unit_test(hidden_states_agree),
        cmocka_unit_test(ids_agree),
        cmocka_unit_test(cross_encoders_agree),
    };
    struct mdl_opts o = small_opts(BE_F32);
    int rc;

    need_dir(BGE_DIR);
    be = test_ctx(2);
    cases = load_json(BGE_DIR, "cases.json");
    bge = open_model(BGE_DIR, be, &o);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    mdl_close(&bge);
    json_decref(cases);
    be_ctx_free(&be);
    return rc;
}
