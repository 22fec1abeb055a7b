/* test_mdl_cuda_faults.c - models on the emulated device while its driver fails: no
 * device, an old driver, every call refused once at every place, device memory that runs
 * out, errors that lose the context.
 *
 * Asked each time: an error that names what failed (never a wrong result), nothing left on the
 * device once the context is freed, and that the same load works right after. Always runs
 * on tests/cuda_emu, whatever INFERD_TEST_BACKEND says.
 */
#include "mdl_test.h"

#include <dlfcn.h>

#define EMU_LIBRARY TEST_BUILD "/tests/cuda_emu/libcuda_emu.so"
#define EMU_OLD TEST_BUILD "/tests/cuda_emu/libcuda_emu_old.so"

#define MAX_VOCAB 4096
static float want[MAX_VOCAB]; /* logits of an undisturbed run */
static const int32_t prompt[] = {2, 17, 40, 99, 5, 61, 7, 8, 23, 31, 12};
#define N_PROMPT (sizeof(prompt) / sizeof(prompt[0]))
#define N_STEPS 4 /* enough for a list to be captured and replayed */

static size_t device_bytes(void)
{
    size_t (*used)(void);
    void *lib = dlopen(EMU_LIBRARY, RTLD_NOW | RTLD_NOLOAD);

    if (!lib)
        return 0;
    *(void **)&used = dlsym(lib, "emu_mem_used");
    dlclose(lib);
    return used();
}

static void faults(const char *text)
{
    setenv("INFERD_EMU_FAIL", text ? text : "", 1);
}

/* Context, model, prefill, N_STEPS decoding passes; the last logits to out. */
static enum rc run_with(const struct be_opts *bo, const char *dir, float *out,
                        struct be_kstats *out_stats, struct rc_err *e)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *be = NULL;
    struct mdl *m = NULL;
    static struct tpool pool;
    static struct tseq s;
    enum rc rc = be_ctx_new(&be, bo, e);

    if (rc == RC_OK) {
        int fd = open_root(dir);

        rc = mdl_open(&m, fd, be, &o, e);
        close(fd);
    }
    if (rc == RC_OK) {
        assert_true(mdl_info_get(m)->vocab_size <= MAX_VOCAB);
        tpool_init(&pool, m);
        tseq_init(&s);
        rc = feed_try(m, &pool, &s, prompt, N_PROMPT, 1, out, e);
        for (int32_t i = 0; rc == RC_OK && i < N_STEPS; i++)
            rc = feed_try(m, &pool, &s, &(int32_t){30 + i}, 1, 1, out, e);
    }
    if (out_stats && be)
        be_ctx_kstats(be, out_stats);
    mdl_close(&m);
    be_ctx_free(&be);
    return rc;
}

static enum rc whole_run(const char *dir, float *out, struct rc_err *e)
{
    return run_with(&(struct be_opts){.backend = "cuda"}, dir, out, NULL, e);
}

/* A run with these faults must fail with rc and a message that has `says`; then the device is empty
 * and a run without faults gives the same bits as ever. */
static void must_fail(const char *fail, enum rc code, const char *says)
{
    static float out[MAX_VOCAB];
    struct rc_err e = RC_ERR_INIT;
    enum rc rc;

    faults(fail);
    rc = whole_run(GEMMA_DIR, out, &e);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("%s: '%s' (%s), expected %s and '%s'", fail ? fail : "", e.msg, rc_name(rc),
                 rc_name(code), says);
    faults(NULL);
    if (!fail || !strstr(fail, "sticky")) /* a lost context frees nothing: its process does */
        assert_int_equal(device_bytes(), 0);
}

static void still_well(void)
{
    static float out[MAX_VOCAB];

    need_ok(whole_run(GEMMA_DIR, out, err));
    assert_memory_equal(out, want, sizeof(want));
    assert_int_equal(device_bytes(), 0);
}

static void no_device(void **state)
{
    setenv("INFERD_EMU_DEVICES", "0", 1);
    must_fail(NULL, RC_UNSUPPORTED, "there is no device");
    unsetenv("INFERD_EMU_DEVICES");
    setenv("INFERD_EMU_ARCH", "70", 1);
    must_fail(NULL, RC_UNSUPPORTED, "sm_75 (Turing, 2018) or newer is expected");
    unsetenv("INFERD_EMU_ARCH");
    still_well();
}

static void old_driver(void **state)
{
    setenv("INFERD_CUDA_LIBRARY", EMU_OLD, 1);
    must_fail(NULL, RC_UNSUPPORTED, "has no cuGraphInstantiateWithFlags: it is too old");
    setenv("INFERD_CUDA_LIBRARY", EMU_LIBRARY, 1);
    must_fail("cuModuleLoadDataEx:1:222", RC_UNSUPPORTED, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
    must_fail("cuModuleLoadDataEx:3:218", RC_UNSUPPORTED, "CUDA_ERROR_INVALID_PTX");
    must_fail("cuModuleGetFunction:2:500", RC_INTERNAL, "CUDA_ERROR_NOT_FOUND");
    still_well();
}

static void small_device(void **state)
{
    setenv("INFERD_EMU_MEM", "20000000", 1);
    must_fail(NULL, RC_NOMEM, "bytes on the device");
    unsetenv("INFERD_EMU_MEM");
    still_well();
}

/* Refuses the k-th call of a function for every k, until the run gets by without that call. */
static uint32_t each_call(const char *symbol, int code, enum rc expect)
{
    static float out[MAX_VOCAB];
    char fail[96];
    uint32_t k, n_failed = 0;

    for (k = 1; k < 400; k++) {
        struct rc_err e = RC_ERR_INIT;
        enum rc rc;

        snprintf(fail, sizeof(fail), "%s:%u:%d", symbol, k, code);
        faults(fail);
        rc = whole_run(GEMMA_DIR, out, &e);
        faults(NULL);
        if (device_bytes() != 0)
            fail_msg("%s: %zu bytes left on the device", fail, device_bytes());
        if (rc == RC_OK) { /* there was no k-th call, or it is one that may fail */
            assert_memory_equal(out, want, sizeof(want));
            break;
        }
        n_failed++;
        if (rc != expect)
            fail_msg("%s: %s (%s), expected %s", fail, e.msg, rc_name(rc), rc_name(expect));
        if (strlen(e.msg) < 20)
            fail_msg("%s: '%s' says too little", fail, e.msg);
    }
    print_message("%s: %u calls refused\n", symbol, n_failed);
    return n_failed;
}

static void device_memory_runs_out_anywhere(void **state)
{
    assert_true(each_call("cuMemAlloc_v2", 2, RC_NOMEM) > 3);
    assert_true(each_call("cuMemHostAlloc", 2, RC_NOMEM) > 1);
    still_well();
}

static void objects_are_refused_anywhere(void **state)
{
    each_call("cuStreamCreate", 2, RC_NOMEM);
    each_call("cuEventCreate", 2, RC_NOMEM);
    each_call("cuModuleLoadDataEx", 2, RC_NOMEM);
    each_call("cuDevicePrimaryCtxRetain", 2, RC_NOMEM);
    still_well();
}

/* The context is lost at one of the first, middle and last calls. */
static void context_is_lost(void **state)
{
    static const char *const rows[] = {
        "cuLaunchKernel:1:719:sticky",       "cuLaunchKernel:40:700:sticky",
        "cuGraphLaunch:1:719:sticky",        "cuStreamSynchronize:1:719:sticky",
        "cuStreamSynchronize:4:700:sticky",  "cuMemcpyHtoDAsync_v2:3:700:sticky",
        "cuMemcpyDtoHAsync_v2:2:716:sticky", "cuEventRecord:1:719:sticky",
        "cuMemsetD8Async:1:719:sticky",      "cuCtxSetCurrent:9:999:sticky",
        "cuMemAlloc_v2:3:214:sticky",
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        must_fail(rows[i], RC_INTERNAL, "CUDA_ERROR_");
    still_well();
}

/* A lost context stays lost, and says why, until it is freed. */
static void every_call_after_it_says_so(void **state)
{
    struct be_opts bo = {.backend = "cuda"};
    struct mdl_opts o = small_opts(BE_F32);
    static struct tpool pool;
    static struct tseq s;
    static float out[MAX_VOCAB];
    struct be_ctx *be = NULL;
    struct mdl *m;
    struct rc_err e = RC_ERR_INIT;

    need_ok(be_ctx_new(&be, &bo, err));
    m = open_model(GEMMA_DIR, be, &o);
    tpool_init(&pool, m);
    tseq_init(&s);
    feed(m, &pool, &s, prompt, N_PROMPT, 1, out);
    faults("cuStreamSynchronize:1:719:sticky");
    assert_int_equal(feed_try(m, &pool, &s, prompt, 1, 1, out, &e), RC_INTERNAL);
    assert_non_null(strstr(e.msg, "CUDA_ERROR_LAUNCH_FAILED"));
    for (int i = 0; i < 3; i++) {
        e = (struct rc_err)RC_ERR_INIT;
        assert_int_equal(feed_try(m, &pool, &s, prompt, 1, 1, out, &e), RC_INTERNAL);
        assert_non_null(strstr(e.msg, "the device context is lost"));
    }
    mdl_close(&m);
    be_ctx_free(&be);
    faults(NULL);
    still_well();
}

/* Without graphs the same kernels are launched one by one, with the same bits. */
static void graphs_are_not_needed(void **state)
{
    static const char *const rows[] = {"cuStreamBeginCapture_v2:1+:801",
                                       "cuStreamEndCapture:1+:801",
                                       "cuGraphInstantiateWithFlags:1+:801"};
    static float out[MAX_VOCAB];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        faults(rows[i]);
        need_ok(whole_run(GEMMA_DIR, out, err));
        assert_memory_equal(out, want, sizeof(want));
    }
    faults(NULL);
    setenv("INFERD_CUDA_GRAPHS", "0", 1);
    still_well();
    setenv("INFERD_CUDA_FUSE", "0", 1);
    still_well();
    unsetenv("INFERD_CUDA_GRAPHS");
    still_well();
    unsetenv("INFERD_CUDA_FUSE");
}

/* The host never looks at device memory, and waits before it reuses what it staged: with all
 * device memory shut but while kernels and copies run, and with work done at once, the same bits.
 */
static void late_or_at_once_open_or_shut(void **state)
{
    setenv("INFERD_EMU_PROTECT", "1", 1);
    still_well();
    unsetenv("INFERD_EMU_PROTECT");
    setenv("INFERD_EMU_SYNC", "1", 1);
    still_well();
    unsetenv("INFERD_EMU_SYNC");
    setenv("INFERD_EMU_ARCH", "75", 1);
    still_well();
    unsetenv("INFERD_EMU_ARCH");
}

/* Compiled while the model loads by the emulated NVRTC: the same bits; from the cache the next
 * time; without a compiler that works, the bundled kernels, or no load in mode exact. */
static void compiled_kernels_give_the_same_bits(void **state)
{
    static float out[MAX_VOCAB];
    char dir[] = TEST_BUILD "/jit-XXXXXX", cmd[600];
    struct be_opts bo = {.backend = "cuda", .jit = "guarded", .jit_cache_dir = dir};
    struct be_kstats k = {0};
    struct rc_err e = RC_ERR_INIT;

    assert_non_null(mkdtemp(dir));
    setenv("INFERD_NVRTC_LIBRARY", EMU_LIBRARY, 1);
    need_ok(run_with(&bo, GEMMA_DIR, out, &k, err));
    assert_memory_equal(out, want, sizeof(want));
    print_message("%llu compiled, %llu in use\n", (unsigned long long)k.jit_compiles,
                  (unsigned long long)k.jit_active);
    assert_true(k.jit_compiles > 0);
    assert_true(k.jit_active > 0);
    assert_int_equal(k.jit_failures, 0);
    assert_int_equal(k.jit_quarantined, 0);
    assert_int_equal(k.hot_compiles, 0);
    need_ok(run_with(&bo, GEMMA_DIR, out, &k, err));
    assert_memory_equal(out, want, sizeof(want));
    assert_int_equal(k.jit_compiles, 0);
    assert_true(k.jit_hits > 0);
    assert_true(k.jit_active > 0);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    assert_int_equal(system(cmd), 0);
    bo.jit_cache_dir = NULL;
    faults("nvrtcCompileProgram:1+:6");
    need_ok(run_with(&bo, GEMMA_DIR, out, &k, err));
    assert_memory_equal(out, want, sizeof(want));
    assert_true(k.jit_failures > 0);
    assert_int_equal(k.jit_active, 0);
    bo.jit = "exact";
    assert_int_equal(run_with(&bo, GEMMA_DIR, out, &k, &e), RC_UNSUPPORTED);
    assert_true(strlen(e.msg) > 20);
    faults(NULL);
    still_well();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_device),
        cmocka_unit_test(old_driver),
        cmocka_unit_test(small_device),
        cmocka_unit_test(device_memory_runs_out_anywhere),
        cmocka_unit_test(objects_are_refused_anywhere),
        cmocka_unit_test(context_is_lost),
        cmocka_unit_test(every_call_after_it_says_so),
        cmocka_unit_test(graphs_are_not_needed),
        cmocka_unit_test(late_or_at_once_open_or_shut),
        cmocka_unit_test(compiled_kernels_give_the_same_bits),
    };
    struct rc_err e = RC_ERR_INIT;

    need_dir(GEMMA_DIR);
    need_dir(EMU_LIBRARY);
    setenv("INFERD_CUDA_LIBRARY", EMU_LIBRARY, 1);
    setenv("INFERD_EMU_LOG", "0", 1);
    if (whole_run(GEMMA_DIR, want, &e) != RC_OK) {
        fprintf(stderr, "the undisturbed run: %s\n", e.msg);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
