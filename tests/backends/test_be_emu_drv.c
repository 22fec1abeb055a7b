/* test_be_emu_drv.c - the emulated driver: late work, graphs, modules, memory, faults on demand.
 *
 * What the tests of the cuda backend rely on to fail when the backend is wrong.
 */
#include "be_test.h"
#include "emu.h"

#include <errno.h>

#include "../../backends/cuda/be_cuda_drv.h"

struct args {
    uint64_t in, out;
    uint32_t n, mode;
};
struct dev {
    struct be_cuda_drv *d;
    cu_ctx ctx;
    cu_stream s;
    cu_mod mod;
    cu_fn misc, copy;
};

#define PTX_HEAD(arch) ".version 7.0\n.target sm_" arch "\n.address_size 64\n"
#define PTX_ENTRY(name, bytes, threads)                                        \
    ".visible .entry " name "(\n\t.param .align 8 .b8 " name "_param_0[" bytes \
    "]\n)\n.maxntid " threads ", 1, 1\n{\n\tret;\n}\n"
#define PTX_MISC PTX_ENTRY("kx_emu_misc", "24", "32")

static void env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static struct be_cuda_drv *driver(void)
{
    struct be_cuda_drv *d = NULL;
    struct rc_err err = RC_ERR_INIT;

    emu_sym("emu_launch"); /* skips when not built */
    setenv("INFERD_CUDA_LIBRARY", EMU_LIBRARY, 1);
    if (be_cuda_drv_open(&d, &err) != RC_OK)
        fail_msg("%s", err.msg);
    return d;
}

static struct dev dev_open(void)
{
    struct dev v = {.d = driver()};

    assert_int_equal(v.d->primary_retain(&v.ctx, 0), 0);
    assert_int_equal(v.d->ctx_set(v.ctx), 0);
    assert_int_equal(v.d->stream_new(&v.s, 1), 0);
    assert_int_equal(v.d->mod_load(&v.mod,
                                   PTX_HEAD("75") PTX_MISC PTX_ENTRY("kx_emu_copy", "24", "64"), 0,
                                   NULL, NULL),
                     0);
    assert_int_equal(v.d->mod_fn(&v.misc, v.mod, "kx_emu_misc"), 0);
    assert_int_equal(v.d->mod_fn(&v.copy, v.mod, "kx_emu_copy"), 0);
    return v;
}

static void dev_close(struct dev *v)
{
    assert_int_equal(v->d->mod_unload(v->mod), 0);
    assert_int_equal(v->d->stream_free(v->s), 0);
    assert_int_equal(v->d->primary_release(0), 0);
}

static cu_ptr alloc(struct dev *v, size_t n)
{
    cu_ptr p = 0;

    assert_int_equal(v->d->mem_alloc(&p, n), 0);
    assert_int_equal(p % 256, 0);
    return p;
}

static int launch(struct dev *v, cu_ptr in, cu_ptr out, uint32_t n, uint32_t mode)
{
    struct args a = {in, out, n, mode};
    void *params[] = {&a};
    int code = v->d->launch(v->misc, 1, 1, 1, 32, 1, 1, 0, v->s, params, NULL);

    memset(&a, 0xEE, sizeof(a)); /* arguments were taken by value */
    return code;
}

static void work_is_done_late(void **state)
{
    struct dev v = dev_open();
    cu_ptr in = alloc(&v, 128), out = alloc(&v, 128);
    uint32_t *pin = NULL, here[32], got[32];

    assert_int_equal(v.d->host_alloc((void **)&pin, 128, 0), 0);
    for (uint32_t i = 0; i < 32; i++)
        here[i] = pin[i] = i + 1;
    /* pageable memory is read at once, pinned memory when the stream gets there */
    assert_int_equal(v.d->h2d(in, here, 128, v.s), 0);
    here[5] = 99;
    assert_int_equal(launch(&v, in, out, 0, 0), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0); /* into pageable memory: waits */
    assert_int_equal(got[0], 6);
    assert_int_equal(v.d->h2d(in, pin, 128, v.s), 0);
    assert_int_equal(launch(&v, in, out, 0, 0), 0);
    pin[5] = 77; /* too early: the copy has not run */
    assert_int_equal(v.d->d2h(pin, out, 128, v.s), 0);
    assert_int_equal(pin[0], 1);
    assert_int_equal(v.d->stream_sync(v.s), 0);
    assert_int_equal(pin[0], 77);
    assert_int_equal(v.d->memset8(in, 3, 128, v.s), 0);
    assert_int_equal(v.d->d2d(out, in, 64, v.s), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[15], 0x03030303);
    assert_int_equal(got[16], 77);
    assert_int_equal(v.d->host_free(pin), 0);
    assert_int_equal(v.d->mem_free(in), 0);
    assert_int_equal(v.d->mem_free(out), 0);
    dev_close(&v);
}

static void graphs_replay(void **state)
{
    struct dev v = dev_open();
    cu_ptr in = alloc(&v, 128), out = alloc(&v, 128);
    uint32_t *pin = NULL, got[32] = {0};
    cu_graph g = NULL;
    cu_exec e = NULL;

    assert_int_equal(v.d->host_alloc((void **)&pin, 128, 0), 0);
    assert_int_equal(v.d->memset8(out, 0, 128, v.s), 0);
    assert_int_equal(v.d->stream_sync(v.s), 0);
    assert_int_equal(v.d->stream_begin(v.s, 2), 0);
    assert_int_equal(v.d->h2d(in, pin, 128, v.s), 0);
    assert_int_equal(launch(&v, in, out, 0, 0), 0);
    assert_int_equal(v.d->stream_sync(v.s), 900);
    assert_int_equal(v.d->h2d(in, got, 128, v.s), 901); /* pageable: it may be gone at replay */
    assert_int_equal(v.d->stream_end(v.s, &g), 0);
    assert_int_equal(v.d->graph_inst(&e, g, 0), 0);
    assert_int_equal(v.d->graph_free(g), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[3], 0); /* recorded, not run */
    for (uint32_t k = 1; k <= 3; k++) {
        for (uint32_t i = 0; i < 32; i++)
            pin[i] = k * 100 + i;
        assert_int_equal(v.d->graph_launch(e, v.s), 0);
        assert_int_equal(v.d->stream_sync(v.s), 0);
        assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
        assert_int_equal(got[3], k * 100 + 5);
    }
    assert_int_equal(v.d->exec_free(e), 0);
    assert_int_equal(v.d->host_free(pin), 0);
    assert_int_equal(v.d->mem_free(in), 0);
    assert_int_equal(v.d->mem_free(out), 0);
    dev_close(&v);
}

static void events(void **state)
{
    struct dev v = dev_open();
    cu_ptr p = alloc(&v, 128);
    cu_event a = NULL, b = NULL;
    float ms = -1;

    assert_int_equal(v.d->event_new(&a, 0), 0);
    assert_int_equal(v.d->event_new(&b, 0), 0);
    assert_int_equal(v.d->event_ms(&ms, a, b), 400);
    assert_int_equal(v.d->event_record(a, v.s), 0);
    assert_int_equal(v.d->memset8(p, 1, 128, v.s), 0);
    assert_int_equal(launch(&v, p, p, 0, 0), 0);
    assert_int_equal(v.d->event_record(b, v.s), 0);
    assert_int_equal(v.d->event_ms(&ms, a, b), 600);
    assert_int_equal(v.d->event_sync(b), 0);
    assert_int_equal(v.d->event_ms(&ms, a, b), 0);
    assert_true(ms > 0);
    assert_int_equal(v.d->event_free(a), 0);
    assert_int_equal(v.d->event_free(b), 0);
    assert_int_equal(v.d->mem_free(p), 0);
    dev_close(&v);
}

static void modules(void **state)
{
    static const struct {
        const char *ptx;
        int code;
        const char *log;
    } rows[] = {
        {PTX_HEAD("75") PTX_MISC, 0, ""},
        {PTX_HEAD("80") PTX_MISC, 0, ""},
        {PTX_HEAD("90") PTX_MISC, 209, "PTX for sm_90, this device is sm_80"},
        {PTX_HEAD("75") PTX_ENTRY("kx_emu_nobody", "24", "32"), 218, "'kx_emu_nobody' for sm_75"},
        {PTX_HEAD("75") PTX_ENTRY("kx_emu_misc", "32", "32"), 218,
         "32 bytes of arguments in PTX, 24 in the text"},
        {PTX_HEAD("75") PTX_ENTRY("kx_emu_misc", "24", "64"), 218, "64 threads in PTX, 32"},
        {PTX_HEAD("75") ".shared .align 4 .b8 _ZZ11kx_emu_miscE5count[50000];\n" PTX_MISC, 218,
         "50000 bytes of static shared memory"},
        {"hello", 218, "not PTX"},
        {"\177ELF....", 209, "machine code"},
    };
    struct dev v = dev_open();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char log[256] = "";
        int opts[] = {5, 6};
        void *vals[] = {log, (void *)(uintptr_t)sizeof(log)};
        cu_mod m = NULL;
        int code = v.d->mod_load(&m, rows[i].ptx, 2, opts, vals);

        if (code != rows[i].code || !strstr(log, rows[i].log))
            fail_msg("row %zu: %d '%s', expected %d '%s'", i, code, log, rows[i].code, rows[i].log);
        if (code == 0)
            assert_int_equal(v.d->mod_unload(m), 0);
    }
    dev_close(&v);
}

static void target_chooses_the_text(void **state)
{
    struct dev v = dev_open();
    cu_ptr out = alloc(&v, 128);
    uint32_t got[32];
    cu_mod m = NULL;

    assert_int_equal(launch(&v, out, out, 0, 11), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[0], 750);
    assert_int_equal(v.d->mod_load(&m, PTX_HEAD("80") PTX_MISC, 0, NULL, NULL), 0);
    assert_int_equal(v.d->mod_fn(&v.misc, m, "kx_emu_misc"), 0);
    assert_int_equal(launch(&v, out, out, 0, 11), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[0], 800);
    assert_int_equal(v.d->mod_fn(&v.misc, m, "kx_emu_other"), 500);
    assert_int_equal(v.d->mod_unload(m), 0);
    assert_int_equal(v.d->mem_free(out), 0);
    dev_close(&v);
}

static void wrong_use(void **state)
{
    struct dev v = dev_open();
    cu_ptr p = alloc(&v, 1000);
    struct args a = {p, p, 0, 0};
    void *params[] = {&a};
    uint8_t bytes[2000] = {0};
    cu_exec e = NULL;

    assert_int_equal(v.d->h2d(p, bytes, 1001, v.s), 1);
    assert_int_equal(v.d->h2d(p + 999, bytes, 2, v.s), 1);
    assert_int_equal(v.d->h2d(p + 999, bytes, 1, v.s), 0);
    assert_int_equal(v.d->d2h(bytes, p - 1, 2, v.s), 1);
    assert_int_equal(v.d->d2d(p, p + 500, 501, v.s), 1);
    assert_int_equal(v.d->memset8((cu_ptr)(uintptr_t)bytes, 0, 1, v.s), 1);
    assert_int_equal(v.d->mem_free(p + 256), 1);
    assert_int_equal(v.d->launch(v.misc, 1, 1, 1, 64, 1, 1, 0, v.s, params, NULL), 701);
    assert_int_equal(v.d->launch(v.misc, 1, 1, 1, 16, 1, 1, 0, v.s, params, NULL), 1);
    assert_int_equal(v.d->launch(v.misc, 1, 1, 1, 16, 2, 1, 0, v.s, params, NULL), 1);
    assert_int_equal(v.d->launch(v.misc, 0, 1, 1, 32, 1, 1, 0, v.s, params, NULL), 1);
    assert_int_equal(v.d->launch(v.misc, 1, 65536, 1, 32, 1, 1, 0, v.s, params, NULL), 1);
    /* more than 48 KiB must be asked for, and there is a limit */
    assert_int_equal(v.d->launch(v.copy, 1, 1, 1, 64, 1, 1, 50000, v.s, params, NULL), 1);
    assert_int_equal(v.d->fn_set(v.copy, 8, 200000), 1);
    assert_int_equal(v.d->fn_set(v.copy, 8, 50000), 0);
    a.in = a.out = alloc(&v, 4096);
    assert_int_equal(v.d->memset8(a.in, 0, 4096, v.s), 0);
    assert_int_equal(v.d->launch(v.copy, 1, 1, 1, 64, 1, 1, 50000, v.s, params, NULL), 0);
    assert_int_equal(v.d->stream_sync(v.s), 0);
    assert_int_equal(v.d->graph_launch(e, v.s), 1);
    assert_int_equal(v.d->ctx_set(NULL), 0);
    assert_int_equal(v.d->stream_sync(v.s), 201);
    assert_int_equal(v.d->ctx_set(v.ctx), 0);
    assert_int_equal(v.d->mem_free(a.in), 0);
    assert_int_equal(v.d->mem_free(p), 0);
    dev_close(&v);
}

static void memory(void **state)
{
    struct dev v = dev_open();
    size_t free_bytes = 0, total = 0;
    cu_ptr p, q = 0;
    uint32_t got[250];
    int fd[2];

    env("INFERD_EMU_MEM", "100000");
    p = alloc(&v, 1000);
    assert_int_equal(v.d->mem_info(&free_bytes, &total), 0);
    assert_int_equal(total, 100000);
    assert_int_equal(free_bytes, 99000);
    assert_int_equal(v.d->mem_alloc(&q, 99001), 2);
    assert_int_equal(v.d->mem_alloc(&q, 0), 1);
    assert_int_equal(v.d->mem_alloc(&q, 99000), 0);
    assert_int_equal(v.d->mem_free(q), 0);
    assert_int_equal(v.d->d2h(got, p, 1000, v.s), 0); /* fresh memory is NaN */
    assert_true(isnan(be_bits_to_f32(got[17])));
    assert_int_equal(pipe(fd), 0);
    env("INFERD_EMU_PROTECT", "1"); /* the host may not look; kernels and copies may */
    assert_int_equal(v.d->memset8(p, 7, 1000, v.s), 0);
    assert_int_equal(v.d->stream_sync(v.s), 0);
    assert_int_equal(write(fd[1], (const void *)(uintptr_t)p, 4), -1);
    assert_int_equal(errno, EFAULT);
    assert_int_equal(launch(&v, p, p, 0, 0), 0);
    assert_int_equal(v.d->d2h(got, p, 1000, v.s), 0);
    assert_int_equal(got[31], 0x07070707);
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(v.d->mem_free(p), 0);
    env("INFERD_EMU_PROTECT", NULL);
    env("INFERD_EMU_MEM", NULL);
    dev_close(&v);
}

/* Faults of kernels come with the next wait and stay. */
static void kernel_faults(void **state)
{
    static const struct {
        uint32_t n, mode, bytes;
        int code;
    } rows[] = {
        {64, 8, 128, 700}, /* reads address 64 */
        {0, 7, 128, 716},  /* misaligned vector */
        {0, 0, 120, 700},  /* writes 8 bytes beyond its allocation */
        {0, 4, 128, 719},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct dev v = dev_open();
        cu_ptr in = alloc(&v, 256), out = alloc(&v, rows[i].bytes), p = 0;

        assert_int_equal(v.d->memset8(in, 0, 256, v.s), 0);
        assert_int_equal(v.d->stream_sync(v.s), 0);
        assert_int_equal(launch(&v, in, out, rows[i].n, rows[i].mode), 0);
        assert_int_equal(v.d->stream_sync(v.s), rows[i].code);
        assert_int_equal(v.d->mem_alloc(&p, 16), rows[i].code);
        assert_int_equal(v.d->ctx_set(v.ctx), rows[i].code);
        env("INFERD_EMU_FAIL", i % 2 ? "none:1:1" : "no:1:1"); /* a new process */
    }
    env("INFERD_EMU_FAIL", NULL);
}

static void faults_on_demand(void **state)
{
    struct dev v;
    cu_ptr p = 0;
    int n = 0, version = 0;

    env("INFERD_EMU_FAIL",
        "cuMemAlloc_v2:2:2,cuStreamSynchronize:2+:719,cuMemsetD8Async:1:700:sticky");
    v = dev_open();
    assert_int_equal(v.d->mem_alloc(&p, 64), 0);
    assert_int_equal(v.d->mem_alloc(&p, 64), 2);
    assert_int_equal(v.d->mem_alloc(&p, 64), 0);
    assert_int_equal(v.d->stream_sync(v.s), 0);
    assert_int_equal(v.d->stream_sync(v.s), 719);
    assert_int_equal(v.d->stream_sync(v.s), 719);
    assert_int_equal(v.d->memset8(p, 0, 64, v.s), 700);
    assert_int_equal(v.d->mem_alloc(&p, 64), 700);
    env("INFERD_EMU_FAIL", NULL);
    assert_int_equal(v.d->primary_retain(&v.ctx, 0), 0);
    assert_int_equal(v.d->primary_release(0), 0);
    env("INFERD_EMU_DEVICES", "0");
    assert_int_equal(v.d->init(0), 100);
    assert_int_equal(v.d->device_count(&n), 0);
    assert_int_equal(n, 0);
    env("INFERD_EMU_DEVICES", NULL);
    env("INFERD_EMU_DRIVER", "10020");
    assert_int_equal(v.d->driver_version(&version), 0);
    assert_int_equal(version, 10020);
    env("INFERD_EMU_DRIVER", NULL);
}

/* Source compiled as NVRTC would, its image loaded and run; kernels compiled in keep their names.
 */
static void nvrtc_images_run(void **state)
{
    static const char src[] = "struct kx_emu_test { kx_p in, out; kx_u n, mode; };\n"
                              "KX_KERNEL(kx_emu_misc, 32, 1, struct kx_emu_test, a)\n"
                              "{\n"
                              "    ((kx_u *)a.out)[kx_tid()] = 1000 + a.n + kx_tid();\n"
                              "}\n";
    struct dev v = dev_open();
    struct be_cuda_nvrtc *n = NULL;
    struct rc_err err = RC_ERR_INIT;
    uint8_t *image = NULL;
    size_t len = 0;
    char log[2048] = "";
    uint32_t got[32];
    cu_ptr out = alloc(&v, 128);
    cu_fn bundled = v.misc;
    cu_mod m = NULL;

    setenv("INFERD_NVRTC_LIBRARY", EMU_LIBRARY, 1);
    if (be_cuda_nvrtc_open(&n, &err) != RC_OK ||
        be_cuda_nvrtc_compile(n, src, "compute_80", &image, &len, log, sizeof(log), &err) != RC_OK)
        fail_msg("%s %s", err.msg, log);
    assert_int_equal(v.d->mod_load(&m, image, 0, NULL, NULL), 0);
    assert_int_equal(v.d->mod_fn(&v.misc, m, "kx_emu_misc"), 0);
    assert_int_equal(launch(&v, out, out, 7, 0), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[3], 1010);
    v.misc = bundled;
    assert_int_equal(launch(&v, out, out, 0, 11), 0);
    assert_int_equal(v.d->d2h(got, out, 128, v.s), 0);
    assert_int_equal(got[3], 750);
    free(image);
    image = NULL;
    assert_int_equal(be_cuda_nvrtc_compile(n, "KX_KERNEL(broken", "compute_75", &image, &len, log,
                                           sizeof(log), &err),
                     RC_FORMAT);
    assert_non_null(strstr(log, "error"));
    assert_null(image);
    assert_int_equal(v.d->mod_unload(m), 0);
    assert_int_equal(v.d->mem_free(out), 0);
    dev_close(&v);
}

static void an_old_driver_lacks_a_symbol(void **state)
{
    struct be_cuda_drv *d = NULL;
    struct rc_err err = RC_ERR_INIT;

    setenv("INFERD_CUDA_LIBRARY", TEST_BUILD "/tests/cuda_emu/libcuda_emu_old.so", 1);
    assert_int_equal(be_cuda_drv_open(&d, &err), RC_UNSUPPORTED);
    assert_string_equal(err.what, "cuGraphInstantiateWithFlags");
    assert_non_null(strstr(err.msg, "too old"));
}

static void device_facts(void **state)
{
    struct dev v = dev_open();
    char name[64];
    int x = 0;

    env("INFERD_EMU_ARCH", "75");
    assert_int_equal(v.d->device_name(name, sizeof(name), 0), 0);
    assert_string_equal(name, "Emulated sm_75");
    assert_int_equal(v.d->device_attr(&x, 97, 0), 0);
    assert_int_equal(x, 65536);
    env("INFERD_EMU_ARCH", NULL);
    assert_int_equal(v.d->device_attr(&x, 75, 0), 0);
    assert_int_equal(x, 8);
    assert_int_equal(v.d->device_attr(&x, 12345, 0), 1);
    assert_int_equal(v.d->device_get(&x, 1), 101);
    dev_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_done_late),
        cmocka_unit_test(graphs_replay),
        cmocka_unit_test(events),
        cmocka_unit_test(modules),
        cmocka_unit_test(target_chooses_the_text),
        cmocka_unit_test(wrong_use),
        cmocka_unit_test(memory),
        cmocka_unit_test(kernel_faults),
        cmocka_unit_test(faults_on_demand),
        cmocka_unit_test(device_facts),
        cmocka_unit_test(nvrtc_images_run),
        cmocka_unit_test(an_old_driver_lacks_a_symbol),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
