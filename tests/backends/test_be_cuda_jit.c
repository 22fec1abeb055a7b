/* test_be_cuda_jit.c - run-time compilation through the backend: without a compiler the
 * bundled kernels serve, mode exact refuses the load; with one (INFERD_NVRTC_LIBRARY names it)
 * kernels are compiled, checked on the device and timed, and change no bit. */
#include "cuda_test.h"

/* A product of three rows, before and after the seal. */
static enum rc product(const char *mode, float out[2][3 * 64], struct be_kstats *ks,
                       struct rc_err *err)
{
    const struct be_opts o = {.backend = "cuda", .jit = mode};
    struct be_ctx *c = cuda_ctx_opts(&o);
    size_t n;
    uint8_t *blocks;
    float x[3 * 256];
    struct be_tensor *tx, *ty;
    struct be_weight *w;
    struct be_linear_args a = {.n = 3, .n_parts = 1};
    enum rc rc = RC_OK;

    test_seed = 5;
    blocks = random_blocks(BE_Q4_0, 64, 256, &n);
    fill(x, 3 * 256, 2);
    a.x = tx = tensor(c, 3, 256, x);
    a.part[0].out = ty = tensor(c, 3, 64, NULL);
    a.part[0].w = w = weight(c, BE_Q4_0, 64, 256, blocks, BE_USE_LINEAR);
    for (int i = 0; i < 2 && rc == RC_OK; i++) {
        if ((rc = be_linear(c, &a, err)) == RC_OK)
            rc = be_tensor_read(c, ty, 0, 3, out[i], err);
        if (rc == RC_OK && i == 0)
            be_ctx_seal(c);
    }
    *ks = kstats_of(c);
    be_tensor_free(c, &tx);
    be_tensor_free(c, &ty);
    be_weight_free(c, &w);
    be_ctx_free(&c);
    free(blocks);
    return rc;
}

static void without_a_compiler(void **state)
{
    static float off[2][3 * 64], on[2][3 * 64];
    const char *kept = getenv("INFERD_NVRTC_LIBRARY");
    struct rc_err why = RC_ERR_INIT;
    struct be_kstats ks;
    char *copy = kept ? strdup(kept) : NULL;

    setenv("INFERD_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so.12", 1);
    assert_int_equal(product("off", off, &ks, &why), RC_OK);
    assert_int_equal(product("guarded", on, &ks, &why), RC_OK);
    assert_same("guarded", on[0], off[0], 3 * 64);
    assert_same("sealed", on[1], off[0], 3 * 64);
    assert_int_equal(ks.jit_compiles + ks.jit_active + ks.hot_compiles, 0);
    assert_int_equal(ks.dispatch[BE_KROUTE_JIT], 0);
    assert_int_equal(product("exact", on, &ks, &why), RC_UNSUPPORTED);
    assert_non_null(strstr(why.msg, "no compiler"));
    if (copy)
        setenv("INFERD_NVRTC_LIBRARY", copy, 1);
    else
        unsetenv("INFERD_NVRTC_LIBRARY");
    free(copy);
}

static void with_a_compiler(void **state)
{
    static float off[2][3 * 64], on[2][3 * 64];
    struct rc_err why = RC_ERR_INIT;
    struct be_kstats ks;

    if (!getenv("INFERD_NVRTC_LIBRARY")) {
        print_message("[ note     ] INFERD_NVRTC_LIBRARY names no compiler\n");
        skip();
    }
    assert_int_equal(product("off", off, &ks, &why), RC_OK);
    assert_int_equal(product("profile", on, &ks, &why), RC_OK);
    assert_same("profile", on[1], off[0], 3 * 64);
    assert_true(ks.jit_compiles > 0);
    assert_int_equal(ks.dispatch[BE_KROUTE_JIT], 0); /* never activated */
    assert_int_equal(product("guarded", on, &ks, &why), RC_OK);
    assert_same("before", on[0], off[0], 3 * 64);
    assert_same("after", on[1], off[0], 3 * 64);
    assert_int_equal(ks.hot_compiles, 0);
}

static int need(void **state)
{
    cuda_need();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_compiler),
        cmocka_unit_test(with_a_compiler),
    };

    return cmocka_run_group_tests(tests, need, NULL);
}
