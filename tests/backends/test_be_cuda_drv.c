/* test_be_cuda_drv.c - opening the driver and NVRTC where they are missing, too old or
 * something else; errors by name. No device is needed. */
#include "be_test.h"

#include "../../backends/cuda/be_cuda_drv.h"

static void no_library(void **state)
{
    struct be_cuda_drv *d = NULL;
    struct rc_err err = RC_ERR_INIT;

    setenv("INFERD_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    assert_int_equal(be_cuda_drv_open(&d, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/libcuda.so.1"));
    assert_non_null(strstr(err.msg, "NVIDIA driver"));
    assert_null(d);
}

static void no_symbol(void **state)
{
    struct be_cuda_drv *d = NULL;
    struct rc_err err = RC_ERR_INIT;

    setenv("INFERD_CUDA_LIBRARY", "libm.so.6", 1);
    assert_int_equal(be_cuda_drv_open(&d, &err), RC_UNSUPPORTED);
    assert_string_equal(err.what, "cuInit");
    assert_non_null(strstr(err.msg, "too old"));
}

static void backend_says_so(void **state)
{
    struct be_opts o = {.backend = "cuda"};
    struct be_ctx *c = NULL;
    struct rc_err why = RC_ERR_INIT;

    setenv("INFERD_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_NOT_FOUND);
    assert_non_null(strstr(why.msg, "no CUDA driver"));
    assert_null(c);
    o.compute = "f8";
    FAILS(RC_INVALID, be_ctx_new(&c, &o, err));
}

static void no_compiler(void **state)
{
    struct be_cuda_nvrtc *n = NULL;
    struct rc_err err = RC_ERR_INIT;

    setenv("INFERD_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so.12", 1);
    assert_int_equal(be_cuda_nvrtc_open(&n, &err), RC_NOT_FOUND);
    assert_string_equal(err.what, "nvrtc");
    setenv("INFERD_NVRTC_LIBRARY", "libm.so.6", 1);
    assert_int_equal(be_cuda_nvrtc_open(&n, &err), RC_UNSUPPORTED);
    assert_string_equal(err.what, "nvrtcVersion");
}

static int name_of(int code, const char **out)
{
    *out = code == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
           : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                         : NULL;
    return *out ? 0 : 1;
}

static void codes(void **state)
{
    const struct be_cuda_drv d = {.error_name = name_of, .error_text = name_of};
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(be_cuda_check(&d, 0, "nothing", &err), RC_OK);
    assert_int_equal(be_cuda_check(&d, 2, "allocating", &err), RC_NOMEM);
    assert_non_null(strstr(err.msg, "allocating: CUDA_ERROR_OUT_OF_MEMORY (2)"));
    assert_int_equal(be_cuda_check(&d, 700, "running", &err), RC_INTERNAL);
    assert_int_equal(be_cuda_check(&d, 218, "loading", &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "unknown error (218)"));
    assert_false(be_cuda_sticky(0) || be_cuda_sticky(1) || be_cuda_sticky(2) ||
                 be_cuda_sticky(701));
    assert_true(be_cuda_sticky(700) && be_cuda_sticky(719) && be_cuda_sticky(214));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_library),      cmocka_unit_test(no_symbol),
        cmocka_unit_test(backend_says_so), cmocka_unit_test(no_compiler),
        cmocka_unit_test(codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
