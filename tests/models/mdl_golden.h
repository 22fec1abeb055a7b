/* mdl_golden.h - what the golden tests of decoders share: logits rows, sums, greedy runs
 * and the residual stream after each layer, against cases.json of the reference.
 * Included once per test program, after mdl_test.h. */
#ifndef INFERD_MDL_GOLDEN_H
#define INFERD_MDL_GOLDEN_H

#include "mdl_test.h"

/* Reference arithmetic is f32; what differs is the order of sums. The bound asked
 * is 2e-3; these are what a right implementation reaches, with room. */
#define TOL_F32 test_tol(2e-4, 9.4e-2, 1.5e-1)
/* compute = tf32 leaves products of such weights exact */
#define TOL_BF16 test_tol(2e-4, 2e-4, 1.5e-1)
#define TOL_F16_KV         \
    test_tol(3e-2, 1.2e-1, \
             8e-2) /* keys and values rounded to 11 bits: llama.cpp differs by 2e-2 here */
/* A family with bounds of its own defines these before it includes this file. */
#ifndef TOL_NORM
#define TOL_NORM test_tol(1e-4, 1.9e-2, 3.8e-2) /* relative, of the residual stream */
#endif
#ifndef GAP /* a greedy run may part where the reference itself is undecided */
#define GAP test_tol(2e-3, 1.9e-1, 1.2e-1)
#endif

static struct be_ctx *be;

struct golden {
    const char *path, *cases; /* model, folder of cases.json */
    enum be_dtype kv;
    double tol;
    const char *only; /* the case of this name; NULL = all */
    double gap;       /* a greedy run may part below it; 0 = GAP */
};

static inline void check_row(const json_t *row, const float *logits, double tol, double *worst,
                             const char *name)
{
    const json_t *top = json_object_get(row, "top");
    size_t i;

    assert_true(json_array_size(top) > 0);
    for (i = 0; i < json_array_size(top); i++) {
        const json_t *pair = json_array_get(top, i);
        int id = (int)json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1)), d = fabs(logits[id] - want);

        if (d > *worst)
            *worst = d;
        if (!(d <= tol))
            fail_msg("case %s, position %d, token %d: %.6f, expected %.6f (off by %.2g, allowed "
                     "%.2g)",
                     name, (int)json_integer_value(json_object_get(row, "pos")), id, logits[id],
                     want, d, tol);
    }
}

static inline void check_sums(const json_t *row, const float *logits, uint32_t v, double tol)
{
    double sum = 0, sq = 0;
    uint32_t i;

    for (i = 0; i < v; i++) {
        sum += logits[i];
        sq += (double)logits[i] * logits[i];
    }
    assert_true(fabs(sum - json_number_value(json_object_get(row, "sum"))) <= tol * v);
    assert_true(fabs(sq - json_number_value(json_object_get(row, "sumsq"))) <= tol * v * 20);
}

static inline void check_greedy(struct mdl *m, const json_t *c, const int32_t *ids, uint32_t n,
                                double allowed)
{
    const json_t *want = json_object_get(c, "greedy"), *gaps = json_object_get(c, "greedy_gap");
    uint32_t v = mdl_info_get(m)->vocab_size;
    static struct tpool pool;
    static struct tseq s;
    float *row = malloc(v * sizeof(*row));
    size_t i;

    assert_non_null(row);
    assert_true(json_array_size(want) > 0);
    assert_int_equal(json_array_size(gaps), json_array_size(want));
    tpool_init(&pool, m);
    tseq_init(&s);
    feed(m, &pool, &s, ids, n, 1, row);
    for (i = 0; i < json_array_size(want); i++) {
        int32_t got = argmax_of(row, v);

        if (got != json_integer_value(json_array_get(want, i))) {
            double gap = json_number_value(json_array_get(gaps, i));

            if (gap >= allowed)
                fail_msg("case %s: greedy step %zu is %d, expected %d (gap %.3g)",
                         json_string_value(json_object_get(c, "name")), i, got,
                         (int)json_integer_value(json_array_get(want, i)), gap);
            break;
        }
        feed(m, &pool, &s, &got, 1, 1, row);
    }
    free(row);
}

static inline void check_cases(const struct golden *g)
{
    struct mdl_opts o = small_opts(g->kv);
    struct mdl *m = open_model(g->path, be, &o);
    json_t *j = load_json(g->cases, "cases.json");
    json_t *list = json_object_get(j, "logits");
    uint32_t v = mdl_info_get(m)->vocab_size, n;
    double worst = 0;
    size_t i, r, done = 0;

    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *rows = json_object_get(c, "rows");
        int32_t *ids;
        float *all;

        if (g->only && strcmp(g->only, json_string_value(json_object_get(c, "name"))) != 0)
            continue;
        done++;
        ids = ids_of(json_object_get(c, "ids"), &n);
        assert_non_null(all = malloc((size_t)n * v * sizeof(*all)));
        feed_all(m, ids, n, 8, all);
        assert_true(json_array_size(rows) > 0);
        for (r = 0; r < json_array_size(rows); r++) {
            const json_t *row = json_array_get(rows, r);
            size_t pos = (size_t)json_integer_value(json_object_get(row, "pos"));

            assert_true(pos < n);
            check_row(row, all + pos * v, g->tol, &worst,
                      json_string_value(json_object_get(c, "name")));
            check_sums(row, all + pos * v, v, g->tol);
        }
        check_greedy(m, c, ids, n, g->gap > 0 ? g->gap : GAP);
        free(all);
        free(ids);
    }
    assert_true(done > 0);
    print_message("%s, KV %s: largest difference %.2g\n", g->path, be_dtype_name(g->kv), worst);
    json_decref(j);
    mdl_close(&m);
}

/* ------------------------------------------------------ layer by layer */

struct stream {
    const json_t *layers;
    uint32_t d, n_layers, n_tok; /* of the prompt */
    uint32_t seen, whole;        /* layers looked at, and with all rows */
    struct be_ctx *be;
};

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static inline void near_by(double got, const json_t *want, const char *what, uint32_t layer,
                           double tol)
{
    double w = json_number_value(want);

    assert_true(json_is_number(want));
    if (!(fabs(got - w) <= tol * (1 + fabs(w))))
        fail_msg("layer %u: %s is %.7g, expected %.7g", layer, what, got, w);
}

static inline void near(double got, const json_t *want, const char *what, uint32_t layer)
{
    near_by(got, want, what, layer, TOL_NORM);
}

static inline void on_layer(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n)
{
    struct stream *s = user;
    const json_t *l = json_array_get(s->layers, layer), *first;
    float *buf = malloc((size_t)n * s->d * sizeof(*buf));
    size_t i;

    assert_non_null(buf);
    need_ok(be_tensor_read(s->be, x, 0, n, buf, err));
    if (n == s->n_tok) { /* upper layers are carried on for wanted rows only */
        s->whole++;
        near(norm_of(buf, (size_t)n * s->d), json_object_get(l, "norm"), "norm", layer);
        near(norm_of(buf, s->d), json_object_get(l, "norm_first_pos"), "norm at the start", layer);
    }
    near(norm_of(buf + (size_t)(n - 1) * s->d, s->d), json_object_get(l, "norm_last_pos"),
         "norm at the end", layer);
    first = json_object_get(l, "last_pos_first");
    assert_true(json_array_size(first) > 0);
    for (i = 0; i < json_array_size(first); i++)
        near(buf[(size_t)(n - 1) * s->d + i], json_array_get(first, i), "a value", layer);
    s->seen++;
    free(buf);
}

/* n_whole: layers that all rows of a prompt go through when only the last row's logits are
 * wanted (all_rows: when every row's are). */
static inline void check_layers(const char *path, const char *cases, uint32_t n_whole,
                                bool all_rows)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;
    json_t *j = load_json(cases, "cases.json"), *list = json_object_get(j, "logits");
    static struct tpool pool;
    static struct tseq s;
    size_t i, done = 0;

    o.max_seqs = o.batch_tokens;
    m = open_model(path, be, &o);
    tpool_init(&pool, m);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        struct stream st = {.layers = json_object_get(c, "layers"),
                            .d = mdl_info_get(m)->d_model,
                            .n_layers = mdl_info_get(m)->n_layers,
                            .be = be};
        uint32_t n;
        int32_t *ids;

        if (!st.layers)
            continue;
        done++;
        ids = ids_of(json_object_get(c, "ids"), &n);
        st.n_tok = n;
        assert_int_equal(json_array_size(st.layers), st.n_layers);
        m->trace = on_layer;
        m->trace_user = &st;
        tseq_init(&s);
        feed(m, &pool, &s, ids, n, all_rows ? n : 1, NULL);
        tseq_free(&pool, &s);
        assert_int_equal(st.seen, st.n_layers);
        assert_int_equal(st.whole, n > 1 ? n_whole : st.n_layers);
        free(ids);
    }
    assert_true(done > 0);
    json_decref(j);
    mdl_close(&m);
}

/* The tokenizer of the file at path against the reference's cases. */
static inline void check_tokens(const char *path, const char *cases)
{
    struct mdl_opts o = small_opts(BE_F32);
    json_t *j = load_json(cases, "cases.json");
    json_t *list = json_object_get(json_object_get(j, "tokenizer"), "encode");
    struct mdl *m;
    size_t i, k;

    m = open_model(path, be, &o);
    assert_true(json_array_size(list) > 0);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");
        struct mdl_tok_flags f = {.add_special = true, .parse_special = true};
        struct mdl_ids got = {0};
        uint32_t n;
        int32_t *want = ids_of(json_object_get(c, "ids"), &n);

        need_ok(mdl_tok_encode(mdl_tok_get(m), json_string_value(text), json_string_length(text),
                               &f, &got, err));
        for (k = 0; k < n && k < got.n && got.ids[k] == want[k]; k++)
            ;
        if (k < n || got.n != n)
            fail_msg("case %s: %zu tokens, expected %u; first difference at %zu",
                     json_string_value(json_object_get(c, "name")), got.n, n, k);
        mdl_ids_deinit(&got);
        free(want);
    }
    json_decref(j);
    mdl_close(&m);
}

#endif
