/* Scores of spans against f64 sums written out, on every level this processor has and where a
 * backend has no kernel of its own; with any number of threads, and whatever else is asked for, the
 * same bits. */
#include "be_impl.h"
#include "be_test.h"

#define TOL 2e-6 /* relative to the sum of magnitudes */

struct spans {
    uint32_t rows, row, n, width, g_rows, g_row, n_g, n_cols;
    const float *a, *b, *g;
};

static void run(struct be_ctx *c, const struct spans *t, float *out)
{
    struct be_tensor *a = tensor(c, t->rows, t->n_cols, t->a),
                     *b = tensor(c, t->rows, t->n_cols, t->b),
                     *g = tensor(c, t->g_rows, t->n_cols, t->g);
    float *scratch = xcalloc((2 * (size_t)t->n + t->n_g) * t->n_cols, sizeof(*scratch));
    struct be_spans_args args = {.a = a,
                                 .b = b,
                                 .g = g,
                                 .n_cols = t->n_cols,
                                 .row = t->row,
                                 .n = t->n,
                                 .width = t->width,
                                 .g_row = t->g_row,
                                 .n_g = t->n_g,
                                 .out = out,
                                 .scratch = scratch};

    OK(be_spans(c, &args, err));
    be_tensor_free(c, &a);
    be_tensor_free(c, &b);
    be_tensor_free(c, &g);
    free(scratch);
}

static void check(const struct spans *t, const float *out)
{
    for (uint32_t q = 0; q < t->n_g; q++)
        for (uint32_t i = 0; i < t->n; i++)
            for (uint32_t k = 0; k < t->width; k++) {
                float got = out[((size_t)q * t->n + i) * t->width + k];
                double sum = 0, size = 0;

                if (i + k >= t->n) {
                    assert_true(isinf(got) && got < 0);
                    continue;
                }
                for (uint32_t c = 0; c < t->n_cols; c++) {
                    double v = (double)t->a[(size_t)(t->row + i) * t->n_cols + c] +
                               t->b[(size_t)(t->row + i + k) * t->n_cols + c];
                    double p = (v > 0 ? v : 0) * t->g[(size_t)(t->g_row + q) * t->n_cols + c];

                    sum += p;
                    size += fabs(p);
                }
                if (!(fabs(got - sum) <= TOL * (1 + size)))
                    fail_msg("vector %u, span %u + %u: %.7g, expected %.7g", q, i, k, got, sum);
            }
}

static void spans_agree_and_do_not_see_each_other(void **state)
{
    static const struct spans shapes[] = {
        {1, 0, 1, 1, 1, 0, 1, 1},      {5, 0, 5, 3, 2, 0, 2, 7},      {9, 2, 6, 8, 5, 1, 4, 48},
        {30, 3, 21, 12, 9, 2, 7, 513}, {12, 0, 12, 5, 70, 0, 65, 96}, {4, 1, 3, 2, 3, 0, 3, 1537},
    };

    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        struct spans t = shapes[s];
        size_t n = (size_t)t.n_g * t.n * t.width, rows = (size_t)t.rows * t.n_cols,
               vecs = (size_t)t.g_rows * t.n_cols;
        float *a = xcalloc(rows, 4), *b = xcalloc(rows, 4), *g = xcalloc(vecs, 4);
        float *out = xcalloc(n, 4), *one = xcalloc(n, 4);

        fill(a, rows, 1);
        fill(b, rows, 1);
        fill(g, vecs, 1);
        t.a = a;
        t.b = b;
        t.g = g;
        for (size_t l = 0; l < 2 * N_LEVELS; l++) {
            struct be_ctx *c = make_ctx(all_levels[l % N_LEVELS], l < N_LEVELS ? 1 : 3);
            struct spans last = t;

            if (!c)
                continue;
            run(c, &t, out);
            check(&t, out);
            last.g_row = t.g_row + t.n_g - 1; /* the last vector alone */
            last.n_g = 1;
            run(c, &last, one);
            assert_same("alone", one, out + (size_t)(t.n_g - 1) * t.n * t.width,
                        (size_t)t.n * t.width);
            be_ctx_free(&c);
        }
        free(a);
        free(b);
        free(g);
        free(out);
        free(one);
    }
}

static void a_backend_without_it_has_the_host_compute(void **state)
{
    struct spans t = {7, 1, 6, 4, 3, 1, 2, 300};
    float a[7 * 300], b[7 * 300], g[3 * 300], out[2 * 6 * 4];
    struct be_ctx *c = make_ctx("c", 1);
    struct be_ops without;

    (void)state;
    assert_non_null(c);
    fill(a, 7 * 300, 1);
    fill(b, 7 * 300, 1);
    fill(g, 3 * 300, 1);
    t.a = a;
    t.b = b;
    t.g = g;
    without = *c->ops;
    without.spans = NULL;
    c->ops = &without;
    run(c, &t, out);
    check(&t, out);
    be_ctx_free(&c);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    struct be_ctx *c = make_ctx("c", 1);
    struct be_tensor *a = tensor(c, 4, 8, NULL), *g = tensor(c, 2, 8, NULL);
    float out[64];
    struct be_spans_args
        ok = {.a = a, .b = a, .g = g, .n_cols = 8, .n = 4, .width = 2, .n_g = 2, .out = out},
        x;

    (void)state;
    OK(be_spans(c, &ok, err));
    x = ok;
    x.row = 1;
    assert_int_equal(be_spans(c, &x, NULL), RC_INVALID);
    x = ok;
    x.g_row = UINT32_MAX;
    assert_int_equal(be_spans(c, &x, NULL), RC_INVALID);
    x = ok;
    x.n_cols = 7;
    assert_int_equal(be_spans(c, &x, NULL), RC_INVALID);
    x = ok;
    x.width = 0;
    assert_int_equal(be_spans(c, &x, NULL), RC_INVALID);
    be_tensor_free(c, &a);
    be_tensor_free(c, &g);
    be_ctx_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_agree_and_do_not_see_each_other),
        cmocka_unit_test(a_backend_without_it_has_the_host_compute),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
