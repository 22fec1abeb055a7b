/* test_be_cuda_lt.c - the library route against a stand-in for cuBLASLt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../backends/cuda/be_cuda_lt.h"
#include "be_half.h"

#define FAKE TEST_BUILD "/tests/libfake_cublaslt.so"

static struct be_cuda_lt *open_fake(const char *mode)
{
    struct be_cuda_lt *lt = NULL;
    struct rc_err err = {0};

    setenv("INFERD_CUBLASLT_LIBRARY", FAKE, 1);
    if (mode)
        setenv("FAKE_CUBLASLT", mode, 1);
    else
        unsetenv("FAKE_CUBLASLT");
    assert_int_equal(be_cuda_lt_open(&lt, &err), RC_OK);
    return lt;
}

static void a_missing_library_names_itself(void **state)
{
    struct be_cuda_lt *lt = NULL;
    struct rc_err err = {0};

    setenv("INFERD_CUBLASLT_LIBRARY", "/nowhere/libcublasLt.so", 1);
    assert_int_equal(be_cuda_lt_open(&lt, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nowhere/libcublasLt.so"));
    assert_null(lt);
}

static void a_library_without_the_symbols_is_refused_by_name(void **state)
{
    struct be_cuda_lt *lt = NULL;
    struct rc_err err = {0};

    setenv("INFERD_CUBLASLT_LIBRARY", "libm.so.6", 1);
    assert_int_equal(be_cuda_lt_open(&lt, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "cublasLtCreate"));
}

static void a_plan_is_made_once_and_keeps_the_contract(void **state)
{
    struct be_cuda_lt *lt = open_fake(NULL);
    const struct be_cuda_lt_plan *a, *b, *c;

    assert_int_equal(be_cuda_lt_plan_get(lt, 64, 32, 100, true, false, &a, NULL), RC_OK);
    assert_int_equal(be_cuda_lt_plan_get(lt, 64, 32, 100, true, false, &b, NULL), RC_OK);
    assert_int_equal(be_cuda_lt_plan_get(lt, 64, 32, 100, false, false, &c, NULL), RC_OK);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    be_cuda_lt_close(&lt);
    assert_null(lt);
}

static void no_plan_without_an_algorithm_for_all_rows(void **state)
{
    struct be_cuda_lt *lt = open_fake("none");
    const struct be_cuda_lt_plan *p = NULL;
    struct rc_err err = {0};

    assert_int_equal(be_cuda_lt_plan_get(lt, 64, 32, 100, false, false, &p, &err), RC_UNSUPPORTED);
    assert_null(p);
    be_cuda_lt_close(&lt);
}

static void shapes_it_cannot_align_are_refused(void **state)
{
    struct be_cuda_lt *lt = open_fake(NULL);
    const struct be_cuda_lt_plan *p = NULL;

    assert_int_equal(be_cuda_lt_plan_get(lt, 63, 32, 1, false, false, &p, NULL), RC_UNSUPPORTED);
    assert_int_equal(be_cuda_lt_plan_get(lt, 64, 0, 1, false, false, &p, NULL), RC_UNSUPPORTED);
    for (uint32_t i = 1; i <= 64; i++)
        assert_int_equal(be_cuda_lt_plan_get(lt, 8 * i, 8, 1, false, false, &p, NULL), RC_OK);
    assert_int_equal(be_cuda_lt_plan_get(lt, 8 * 65, 8, 1, false, false, &p, NULL), RC_LIMIT);
    be_cuda_lt_close(&lt);
}

enum { K = 24, N_OUT = 16, ROWS = 5 };

static void products_bias_and_addition_are_right(void **state)
{
    struct be_cuda_lt *lt = open_fake(NULL);
    const struct be_cuda_lt_plan *p;
    uint16_t x[ROWS * K], w[N_OUT * K], bias[N_OUT], out[ROWS * N_OUT];

    for (int i = 0; i < ROWS * K; i++)
        x[i] = be_f32_to_half((float)(i % 7 - 3) / 4);
    for (int i = 0; i < N_OUT * K; i++)
        w[i] = be_f32_to_half((float)(i % 5 - 2) / 8);
    for (int i = 0; i < N_OUT; i++)
        bias[i] = be_f32_to_half((float)i / 16);
    for (int i = 0; i < ROWS * N_OUT; i++)
        out[i] = be_f32_to_half(2);
    assert_int_equal(be_cuda_lt_plan_get(lt, K, N_OUT, 8, true, true, &p, NULL), RC_OK);
    assert_int_equal(be_cuda_lt_run(lt, p, ROWS, (cu_ptr)(uintptr_t)x, (cu_ptr)(uintptr_t)w,
                                    (cu_ptr)(uintptr_t)bias, (cu_ptr)(uintptr_t)out, 0, NULL, NULL),
                     RC_OK);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < N_OUT; c++) {
            float want = 2 + (float)c / 16;

            for (int k = 0; k < K; k++)
                want += (float)((r * K + k) % 7 - 3) / 4 * ((float)((c * K + k) % 5 - 2) / 8);
            assert_float_equal(be_half_to_f32(out[r * N_OUT + c]), want, 2e-3);
        }
    assert_int_equal(be_cuda_lt_run(lt, p, 9, 0, 0, 1, 0, 0, NULL, NULL), RC_INVALID);
    assert_int_equal(be_cuda_lt_run(lt, p, 1, 0, 0, 0, 0, 0, NULL, NULL), RC_INVALID);
    be_cuda_lt_close(&lt);
}

static void a_failing_product_is_an_error(void **state)
{
    struct be_cuda_lt *lt = open_fake("fail");
    const struct be_cuda_lt_plan *p;
    struct rc_err err = {0};

    assert_int_equal(be_cuda_lt_plan_get(lt, 8, 8, 8, false, false, &p, NULL), RC_OK);
    assert_int_equal(be_cuda_lt_run(lt, p, 1, 0, 0, 0, 0, 0, NULL, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "status 14"));
    be_cuda_lt_close(&lt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_library_names_itself),
        cmocka_unit_test(a_library_without_the_symbols_is_refused_by_name),
        cmocka_unit_test(a_plan_is_made_once_and_keeps_the_contract),
        cmocka_unit_test(no_plan_without_an_algorithm_for_all_rows),
        cmocka_unit_test(shapes_it_cannot_align_are_refused),
        cmocka_unit_test(products_bias_and_addition_are_right),
        cmocka_unit_test(a_failing_product_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
