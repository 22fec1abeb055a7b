/* test_be_cuda_mem.c - memory and faults of the cuda backend on the emulated driver: out
 * of memory at every allocation, limits, the seal, a lost device, devices that cannot serve. */
#include "cuda_model.h"

static void fail_at(const char *symbol, unsigned nth, int code, const char *more)
{
    char text[128];

    snprintf(text, sizeof(text), "%s:%u:%d%s", symbol, nth, code, more);
    setenv("INFERD_EMU_FAIL", text, 1);
}

static enum rc try_all(struct rc_err *err)
{
    const struct be_opts o = {.backend = "cuda"};
    const int32_t ids[2] = {1, 2};
    struct be_ctx *c = NULL;
    struct tm m = {0};
    enum rc rc = be_ctx_new(&c, &o, err);

    if (rc != RC_OK)
        return rc;
    if ((rc = tm_init(&m, c, err)) == RC_OK && (rc = tm_step(&m, 0, 1, 2, 0, ids, err)) == RC_OK)
        rc = be_sync(c, err);
    tm_deinit(&m);
    be_ctx_free(&c);
    return rc;
}

/* The kth call fails, for every k that there is: an error with its numbers, nothing is
 * left behind, and the next try works. */
static void out_of_memory_everywhere(void **state)
{
    static const char *const symbols[] = {"cuMemAlloc_v2", "cuMemHostAlloc"};

    for (size_t i = 0; i < 2; i++) {
        unsigned k;

        for (k = 1; k < 200; k++) {
            struct rc_err why = RC_ERR_INIT;
            enum rc rc;

            fail_at(symbols[i], k, 2, "");
            rc = try_all(&why);
            if (rc == RC_OK)
                break;
            assert_int_equal(rc, RC_NOMEM);
            assert_non_null(strstr(why.msg, "bytes"));
        }
        assert_in_range(k, 2, 199);
        unsetenv("INFERD_EMU_FAIL");
        OK(try_all(err));
    }
}

/* Any other call of the driver that fails, once, at its first and second time. */
static void every_call_may_fail(void **state)
{
    static const char *const symbols[] = {
        "cuDeviceGetCount",     "cuDeviceGet",          "cuDeviceGetName",
        "cuDeviceGetAttribute", "cuCtxSetCurrent",      "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",       "cuEventCreate",        "cuModuleLoadDataEx",
        "cuModuleGetFunction",  "cuMemcpyHtoDAsync_v2", "cuMemsetD8Async",
        "cuLaunchKernel",       "cuStreamSynchronize",  "cuEventRecord",
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
        for (unsigned k = 1; k <= 2; k++) {
            struct rc_err why = RC_ERR_INIT;
            enum rc rc;

            fail_at(symbols[i], k, 1, "");
            rc = try_all(&why);
            unsetenv("INFERD_EMU_FAIL");
            if (rc == RC_OK) /* it is called once only */
                continue;
            assert_int_equal(rc, RC_INTERNAL);
            assert_true(strlen(why.msg) > 0);
        }
    OK(try_all(err));
}

static void limits(void **state)
{
    struct be_opts o = {.backend = "cuda", .workspace_bytes = 16 << 20};
    struct rc_err why = RC_ERR_INIT;
    struct be_ctx *c = NULL;
    struct be_tensor *t = NULL, *small = NULL;
    struct be_stats s;

    OK(be_ctx_new(&c, &o, err));
    assert_int_equal(be_tensor_new(c, 1024, 4096, &t, &why), RC_NOMEM);
    assert_string_equal(why.what, "workspace");
    assert_int_equal(why.limit, 16 << 20);
    assert_null(t);
    OK(be_tensor_new(c, 4, 8, &small, err));
    FAILS(RC_INVALID, be_tensor_new(c, 0, 8, &t, err));
    FAILS(RC_INVALID, be_tensor_new(c, UINT32_MAX, UINT32_MAX, &t, err));
    s = stats_of(c);
    assert_true(s.workspace_bytes <= 16 << 20 && s.device_bytes >= s.workspace_bytes);
    be_tensor_free(c, &small);
    be_ctx_free(&c);
    /* the device itself is too small */
    setenv("INFERD_EMU_MEM", "67108864", 1);
    o.workspace_bytes = 0;
    OK(be_ctx_new(&c, &o, err));
    assert_int_equal(be_tensor_new(c, 4096, 16384, &t, &why), RC_NOMEM);
    assert_non_null(strstr(why.msg, "of 67108864 are free"));
    be_ctx_free(&c);
    unsetenv("INFERD_EMU_MEM");
}

static void the_seal(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    uint8_t w[34 * 4] = {0};
    struct be_weight_desc d = {.name = "late",
                               .dtype = BE_Q8_0,
                               .n_rows = 4,
                               .n_cols = 32,
                               .data = w,
                               .n_bytes = sizeof(w),
                               .use = BE_USE_LINEAR};
    struct be_weight *late = NULL;
    struct be_tensor *t = NULL;
    struct be_stats s;

    be_ctx_seal(c);
    assert_int_equal(stats_of(c).hot_allocs, 0);
    OK(be_tensor_new(c, 4096, 2048, &t, err));
    s = stats_of(c);
    assert_true(s.hot_allocs > 0);
    FAILS(RC_INTERNAL, be_weight_new(c, &d, &late, err)); /* its kernels are not loaded */
    assert_int_equal(kstats_of(c).hot_compiles, 1);
    be_tensor_free(c, &t);
    be_ctx_free(&c);
}

static void memory_is_counted(void **state)
{
    struct be_ctx *c = cuda_ctx(true, true, NULL);
    struct be_stats before = stats_of(c), s;
    struct tm m;

    OK(tm_init(&m, c, err));
    be_ctx_seal(c);
    s = stats_of(c);
    assert_true(s.weight_bytes > before.weight_bytes && s.kv_bytes > 0);
    assert_true(s.device_bytes >= s.weight_bytes + s.kv_bytes + s.workspace_bytes);
    assert_non_null(strstr(s.device, "sm_"));
    tm_deinit(&m);
    s = stats_of(c);
    assert_int_equal(s.weight_bytes, 0);
    assert_int_equal(s.kv_bytes, 0);
    be_ctx_free(&c);
}

/* An illegal address in the middle of a step: this call fails, so does every later one, in
 * words that say why; a new context (of a new process) works. */
static void a_lost_device(void **state)
{
    static const int codes[] = {700, 719, 214};
    const int32_t ids[2] = {1, 2};

    for (size_t i = 0; i < 3; i++) {
        struct be_ctx *c = cuda_ctx(true, true, NULL);
        struct rc_err why = RC_ERR_INIT;
        struct be_tensor *t = NULL;
        float x[TM_V];
        struct tm m;

        OK(tm_init(&m, c, err));
        OK(tm_step(&m, 0, 1, 2, 0, ids, err));
        OK(be_sync(c, err));
        fail_at("cuLaunchKernel", 9, codes[i], ":sticky");
        OK(tm_step(&m, 0, 1, 2, 2, ids, err)); /* nothing runs yet */
        assert_int_equal(be_tensor_read(c, m.logits, 0, 1, x, &why), RC_INTERNAL);
        assert_non_null(strstr(why.msg, "launching a kernel"));
        assert_int_equal(tm_step(&m, 0, 1, 1, 4, ids, &why), RC_INTERNAL);
        assert_non_null(strstr(why.msg, "the device context is lost: "));
        assert_int_equal(be_sync(c, &why), RC_INTERNAL);
        assert_int_equal(be_tensor_new(c, 1, 8, &t, &why), RC_INTERNAL);
        assert_non_null(strstr(why.msg, "the device context is lost: "));
        tm_deinit(&m);
        be_ctx_free(&c);
        unsetenv("INFERD_EMU_FAIL");
        OK(try_all(err));
    }
}

static void devices(void **state)
{
    struct be_opts o = {.backend = "cuda", .device = 3};
    struct rc_err why = RC_ERR_INIT;
    struct be_ctx *c = NULL;

    assert_int_equal(be_ctx_new(&c, &o, &why), RC_NOT_FOUND);
    assert_string_equal(why.what, "device");
    o.device = 0;
    setenv("INFERD_EMU_DEVICES", "0", 1);
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_UNSUPPORTED);
    unsetenv("INFERD_EMU_DEVICES");
    setenv("INFERD_EMU_ARCH", "70", 1);
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_UNSUPPORTED);
    assert_non_null(strstr(why.msg, "sm_75"));
    setenv("INFERD_EMU_ARCH", "75", 1); /* Turing: other kernels, the same calls */
    OK(try_all(err));
    o.compute = "tf32"; /* which Turing has not */
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_UNSUPPORTED);
    assert_string_equal(why.what, "compute");
    assert_non_null(strstr(why.msg, "needs sm_80"));
    assert_non_null(strstr(why.msg, "sm_75"));
    unsetenv("INFERD_EMU_ARCH");
    o.compute = "f8";
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_INVALID);
    o.compute = NULL;
    o.jit = "always";
    assert_int_equal(be_ctx_new(&c, &o, &why), RC_INVALID);
    assert_null(c);
}

static int need(void **state)
{
    cuda_need();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_memory_everywhere),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(limits),
        cmocka_unit_test(the_seal),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(a_lost_device),
        cmocka_unit_test(devices),
    };

    return cmocka_run_group_tests(tests, need, NULL);
}
