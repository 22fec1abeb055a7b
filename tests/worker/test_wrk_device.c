/* test_wrk_device.c - the words of a device, what they become, and a sandbox whose device
 * cannot be opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "wrk_device.h"
#include "wrk_kstats.h"

static void words_fill_the_options(void **state)
{
    static const char *const words[] = {
        "--backend=cuda",         "--device=3",
        "--compute=f16",          "--jit=exact",
        "--jit-cache-dir=/a b",   "--jit-cache-bytes=99",
        "--workspace-bytes=1024", "--cuda-library=/l/x.so",
        "--nvrtc-library=y",
    };
    struct wrk_device d = {0};
    struct be_opts o = {.workspace_bytes = 7};

    (void)state;
    assert_true(wrk_device_is_cpu(&d));
    wrk_device_opts(&d, &o);
    assert_string_equal(o.backend, "cpu");
    assert_int_equal(o.workspace_bytes, 7);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!wrk_device_word(&d, words[i]))
            fail_msg("'%s' is refused", words[i]);
    assert_false(wrk_device_is_cpu(&d));
    wrk_device_opts(&d, &o);
    assert_string_equal(o.backend, "cuda");
    assert_int_equal(o.device, 3);
    assert_string_equal(o.compute, "f16");
    assert_string_equal(o.jit, "exact");
    assert_string_equal(o.jit_cache_dir, "/a b");
    assert_int_equal(o.jit_cache_bytes, 99);
    assert_int_equal(o.workspace_bytes, 1024);
    assert_string_equal(d.cuda_library, "/l/x.so");
    assert_string_equal(d.nvrtc_library, "y");
}

static void other_words_are_refused(void **state)
{
    static const char *const words[] = {
        "--backend=metal",
        "--backend=",
        "--backend",
        "--device=-1",
        "--device=64",
        "--device=1x",
        "--compute=f64",
        "--jit=on",
        "--compute=fp32",
        "--library=auto",
        "--jit-cache-dir=",
        "backend=cuda",
        "--backends=cpu",
        "--threads=2",
        "--jit-cache-bytes=99999999999999999999",
        "--a-name-that-is-far-longer-than-any-word-here=1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct wrk_device d = {0}, none = {0};

        if (wrk_device_word(&d, words[i]) || memcmp(&d, &none, sizeof(d)) != 0)
            fail_msg("'%s' is taken", words[i]);
    }
}

static void libraries_named_by_a_person_outlive_the_environment(void **state)
{
    struct wrk_device d = {.nvrtc_library = "mine"};

    (void)state;
    setenv("INFERD_CUDA_LIBRARY", "/x/libcuda.so", 1);
    setenv("INFERD_NVRTC_LIBRARY", "theirs", 1);
    wrk_device_env(&d);
    clearenv();
    assert_string_equal(d.cuda_library, "/x/libcuda.so");
    assert_string_equal(d.nvrtc_library, "mine"); /* a word is stronger */
    wrk_device_export(&d);
    assert_string_equal(getenv("INFERD_CUDA_LIBRARY"), "/x/libcuda.so");
    assert_string_equal(getenv("INFERD_NVRTC_LIBRARY"), "mine");
    free((char *)(uintptr_t)d.cuda_library);
}

/* In a child: the sandbox cannot be left. 0 = as expected. */
static int enter_without_driver(enum wrk_sandbox_mode mode)
{
    const struct wrk_device d = {.backend = "cuda", .cuda_library = "/not/there/libcuda.so.1"};
    const struct wrk_enter in = {mode, -1, -1, 1, true};
    struct rc_err why = RC_ERR_INIT, err = RC_ERR_INIT;
    struct wrk_sandbox_report r;
    struct be_ctx *be = NULL;

    if (wrk_device_enter(&d, &in, &r, &be, &why, &err) != RC_OK)
        return mode == WRK_SANDBOX_STRICT ? 77 : 1; /* a machine where strict cannot hold */
    if (be != NULL || why.code != RC_UNSUPPORTED || !strstr(why.msg, "/not/there/libcuda.so.1"))
        return 2;
    if (mode == WRK_SANDBOX_STRICT) /* and the sandbox stands all the same */
        return strcmp(r.layer[r.n - 1].name, "seccomp") == 0 && r.layer[r.n - 1].holds ? 0 : 3;
    return 0;
}

static void a_driver_that_is_missing_is_told_and_the_sandbox_stands(void **state)
{
    static const enum wrk_sandbox_mode modes[] = {WRK_SANDBOX_STRICT, WRK_SANDBOX_OFF};

    (void)state;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0)
            _exit(enter_without_driver(modes[i]));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) != 77)
            assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* The message's lists have no names: their order is the protocol (proto/inferd.proto). */
static void the_order_of_routes_and_formats_is_the_protocols(void **state)
{
    static const char *const routes[] = {"jit", "exact", "bucket", "library", "hand", "reference"};
    static const char *const formats[] = {"F32",  "F16",  "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                          "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16"};
    static const enum be_dtype types[] = {
#define X(name, id, n, b) BE_##name,
        BE_DTYPE_MAP(X)
#undef X
    };

    (void)state;
    assert_int_equal(BE_KROUTE_COUNT, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(be_kroute_name((enum be_kroute_kind)i), routes[i]);
    assert_int_equal(sizeof(types) / sizeof(types[0]), 11);
    for (int i = 0; i < 11; i++)
        assert_string_equal(be_dtype_name(types[i]), formats[i]);
}

static void counters_have_one_spelling(void **state)
{
    struct be_kstats k = {.fused = 5, .hot_compiles = 6};
    json_t *o;

    (void)state;
    k.dispatch[BE_KROUTE_BUCKET] = 343;
    k.by_format[7] = 12;
    assert_non_null(o = wrk_kstats_json(&k));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "dispatch"), "bucket")),
                     343);
    assert_int_equal(json_object_size(json_object_get(o, "dispatch")), 6);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "by_format"), "Q4_K")),
                     12);
    assert_int_equal(json_object_size(json_object_get(o, "by_format")), 1);
    assert_int_equal(json_integer_value(json_object_get(o, "fused")), 5);
    assert_int_equal(json_integer_value(json_object_get(o, "hot_compiles")), 6);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_fill_the_options),
        cmocka_unit_test(other_words_are_refused),
        cmocka_unit_test(libraries_named_by_a_person_outlive_the_environment),
        cmocka_unit_test(a_driver_that_is_missing_is_told_and_the_sandbox_stands),
        cmocka_unit_test(the_order_of_routes_and_formats_is_the_protocols),
        cmocka_unit_test(counters_have_one_spelling),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
