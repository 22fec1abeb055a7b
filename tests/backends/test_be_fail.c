/* test_be_fail.c - the fault-injecting backend does what its plan says, no more. */
#include "be_test.h"

#include "fail/be_fail.h"

static struct be_ctx *fail_ctx(void)
{
    struct be_opts o = {.backend = "fail", .n_threads = 1};
    struct be_ctx *c = NULL;

    OK(be_ctx_new(&c, &o, err));
    return c;
}

static void it_is_not_listed(void **state)
{
    for (size_t i = 0; be_names()[i]; i++)
        assert_string_not_equal(be_names()[i], "fail");
    assert_string_equal(be_names()[0], "cpu");
}

static void without_a_plan_it_computes(void **state)
{
    struct be_ctx *c = fail_ctx();
    const float v[4] = {1, 2, 3, 4};
    struct be_tensor *t = tensor(c, 1, 4, v);
    int32_t id = -1;
    struct be_argmax_args a = {.x = t, .n = 1, .out_ids = &id};
    uint64_t ops, allocs;

    OK(be_argmax(c, &a, err));
    assert_int_equal(id, 3);
    assert_same("view", be_tensor_view(c, t), v, 4);
    be_fail_counts(c, &ops, &allocs);
    assert_int_equal(ops, 2); /* write, argmax */
    assert_int_equal(allocs, 1);
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void operations_fail_where_told(void **state)
{
    struct be_ctx *c = fail_ctx();
    const float v[4] = {1, 2, 3, 4};
    struct be_tensor *t = tensor(c, 1, 4, v);
    int32_t id = -1;
    struct be_argmax_args a = {.x = t, .n = 1, .out_ids = &id};
    struct be_fail_plan plan = {.op_at = 2, .n_op_fails = 2, .op_rc = RC_NOMEM};

    be_fail_set(c, &plan);
    OK(be_argmax(c, &a, err));
    id = -1;
    FAILS(RC_NOMEM, be_argmax(c, &a, err));
    assert_int_equal(id, -1); /* nothing half done */
    FAILS(RC_NOMEM, be_sync(c, err));
    OK(be_argmax(c, &a, err));
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void scores_of_spans_fail_where_told(void **state)
{
    struct be_ctx *c = fail_ctx();
    const float v[4] = {1, -2, 3, 4};
    struct be_tensor *a = tensor(c, 2, 2, v), *b = tensor(c, 2, 2, v), *g = tensor(c, 1, 2, v);
    float out[2] = {-9, -9}, scratch[10];
    struct be_spans_args s = {.a = a,
                              .b = b,
                              .g = g,
                              .n_cols = 2,
                              .n = 2,
                              .width = 1,
                              .n_g = 1,
                              .out = out,
                              .scratch = scratch};
    struct be_fail_plan plan = {.op_at = 1};
    uint64_t ops, allocs;

    be_fail_set(c, &plan);
    FAILS(RC_INTERNAL, be_spans(c, &s, err));
    assert_true(out[0] == -9 && out[1] == -9);
    OK(be_spans(c, &s, err));
    assert_true(out[0] == 2 && out[1] == 6 - 16);
    be_fail_counts(c, &ops, &allocs);
    assert_int_equal(ops, 2);
    be_tensor_free(c, &a);
    be_tensor_free(c, &b);
    be_tensor_free(c, &g);
    be_ctx_free(&c);
}

static void allocations_and_types_fail_where_told(void **state)
{
    struct be_ctx *c = fail_ctx();
    struct be_tensor *t = NULL;
    struct be_weight *w = NULL;
    float v[4] = {0};
    struct be_weight_desc d = {.name = "w",
                               .dtype = BE_F32,
                               .n_rows = 1,
                               .n_cols = 4,
                               .data = v,
                               .n_bytes = 16,
                               .use = BE_USE_VECTOR};
    struct be_fail_plan plan = {
        .alloc_at = 2, .refuse = true, .refuse_dtype = BE_F16, .refuse_use = BE_USE_LINEAR};

    be_fail_set(c, &plan);
    OK(be_weight_new(c, &d, &w, err));
    FAILS(RC_NOMEM, be_tensor_new(c, 1, 1, &t, err));
    assert_null(t);
    OK(be_tensor_new(c, 1, 1, &t, err));
    assert_false(be_supports(c, BE_F16, BE_USE_LINEAR | BE_USE_EMBED));
    assert_true(be_supports(c, BE_F16, BE_USE_EMBED));
    assert_true(be_supports(c, BE_F32, BE_USE_LINEAR));
    be_weight_free(c, &w);
    d.dtype = BE_F16;
    d.use = BE_USE_LINEAR;
    d.n_bytes = 8;
    FAILS(RC_UNSUPPORTED, be_weight_new(c, &d, &w, err));
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void it_draws_tokens_and_gives_some_rows_back(void **state)
{
    struct be_ctx *c = fail_ctx();
    const float v[3][4] = {{1, 2, 3, 3}, {0, NAN, 1, 2}, {0, 0, 0, -100}};
    struct be_tensor *t = tensor(c, 3, 4, &v[0][0]);
    struct be_sample_row rows[3] = {{.top_p = 1}, {.top_p = 1}, {.temperature = 1, .top_p = 1}};
    int32_t id[3] = {-9, -9, -9};
    struct be_sample_args a = {.x = t, .n = 3, .rows = rows, .out_ids = id};
    static const struct {
        struct be_sample_row row;
        int32_t want;
    } third[] = {
        {{.temperature = 1, .top_p = 1, .u = 0}, 0},
        {{.temperature = 1, .top_p = 1, .u = 0.34f}, 1},
        {{.temperature = 1, .top_p = 1, .u = 0.99f}, 2},
        {{.temperature = 1, .top_p = 1, .u = 0.99f, .top_k = 2}, 1},
        {{.temperature = 1, .top_p = 0.3f, .u = 0.99f}, 0},
        {{.temperature = 1, .top_p = 1, .min_p = 0.5f, .u = 0.99f}, 2},
    };
    struct be_fail_plan plan = {.kstats = {.fused = 7}};
    struct be_kstats k;

    assert_true(be_can_sample(c));
    for (size_t i = 0; i < sizeof(third) / sizeof(third[0]); i++) {
        rows[2] = third[i].row;
        OK(be_sample(c, &a, err));
        assert_int_equal(id[0], 2); /* greedy; the lower of two equal ones */
        assert_int_equal(id[1], -1);
        assert_int_equal(id[2], third[i].want);
    }
    be_fail_set(c, &plan);
    be_ctx_kstats(c, &k);
    assert_int_equal(k.fused, 7);
    plan.op_at = 1;
    be_fail_set(c, &plan);
    FAILS(RC_INTERNAL, be_sample(c, &a, err));
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void the_processor_does_not_draw(void **state)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1};
    struct be_ctx *c = NULL;
    struct be_kstats k = {.fused = 1};
    struct be_sample_args a = {0};

    OK(be_ctx_new(&c, &o, err));
    assert_false(be_can_sample(c));
    FAILS(RC_UNSUPPORTED, be_sample(c, &a, err));
    be_ctx_kstats(c, &k);
    assert_int_equal(k.fused, 0);
    be_ctx_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_not_listed),
        cmocka_unit_test(without_a_plan_it_computes),
        cmocka_unit_test(operations_fail_where_told),
        cmocka_unit_test(scores_of_spans_fail_where_told),
        cmocka_unit_test(allocations_and_types_fail_where_told),
        cmocka_unit_test(it_draws_tokens_and_gives_some_rows_back),
        cmocka_unit_test(the_processor_does_not_draw),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
