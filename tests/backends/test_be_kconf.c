/* The conformance runner against kernels that are wrong on purpose: each fault must be
 * caught and named. The device is host memory, its kernels are C functions, so nothing
 * else can be at fault. */
#include "be_test.h"

#include "be_kargs.h"
#include "be_kconf.h"

/* ------------------------------------------ a family of three kernels */

enum fault {
    NONE,
    LAST_COLUMN,   /* the last element is not written */
    PAST_END,      /* one element too many */
    BEFORE_START,  /* and one in front */
    SECOND_LAUNCH, /* differs from launch to launch */
    INPUT,         /* writes into its input */
    ONE_BIT,       /* the last bit of one element */
    SIGN_OF_ZERO,  /* +0 where -0 is right */
    NAN_AS_ZERO,   /* NaN lost */
    OLD_OUTPUT,    /* adds what the output held before */
    WRONG_ROW,     /* rows swapped */
    NOT_LAUNCHED,  /* nothing happens */
};
static enum fault fault, oracle_fault;
static unsigned launches;

static void grid(const struct be_kentry *e, const void *args, struct be_kgrid *g)
{
    *g = (struct be_kgrid){.x = 1, .y = 1, .z = 1, .threads = 32};
}

static const struct be_kentry entries[] = {
    {.name = "kx_fake_convert",
     .lib = "fake",
     .desc = {.op = BE_KOP_CONVERT, .act = BE_KACT_F32, .k = {1, 4096, 1, 0}},
     .sched = {.threads = 32, .rows_tile = 4, .cols_tile = 32},
     .args_bytes = sizeof(struct kx_convert),
     .min_arch = 75,
     .production = true,
     .grid = grid},
    {.name = "kx_fake_gather",
     .lib = "fake",
     .desc = {.op = BE_KOP_GATHER, .act = BE_KACT_ANY, .k = {4, 4096, 4, 0}},
     .sched = {.threads = 32},
     .args_bytes = sizeof(struct kx_gather),
     .min_arch = 75,
     .production = true,
     .grid = grid},
    {.name = "kx_fake_softcap80",
     .lib = "fake",
     .desc = {.op = BE_KOP_SOFTCAP, .act = BE_KACT_F32, .k = {1, 512, 1, 0}},
     .sched = {.threads = 32},
     .args_bytes = sizeof(struct kx_softcap),
     .min_arch = 80,
     .production = true,
     .grid = grid},
};
#define N_ENTRIES 3

static uint32_t count(void)
{
    return N_ENTRIES;
}

static const struct be_kentry *at(uint32_t i)
{
    return &entries[i];
}

static enum rc build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    *out = (struct be_kir){.desc = e->desc, .sched = e->sched};
    snprintf(out->name, sizeof(out->name), "%s", e->name);
    return RC_OK;
}

static void *host(kx_p p)
{
    return (void *)(uintptr_t)p;
}

static void convert(const struct kx_convert *a, enum fault f)
{
    const float *x = host(a->src);
    uint16_t *y = host(a->dst);
    size_t n = a->n - (f == LAST_COLUMN);

    for (size_t i = 0; i < n; i++) {
        uint16_t h = be_f32_to_half(x[i]);

        if (f == SIGN_OF_ZERO && h == 0x8000)
            h = 0;
        if (f == NAN_AS_ZERO && isnan(x[i]))
            h = 0;
        if (f == OLD_OUTPUT)
            h = (uint16_t)(h + (y[i] == 0xA5A5));
        y[i] = h;
    }
    if (f == ONE_BIT)
        y[n / 2] ^= 1;
    if (f == PAST_END)
        y[n] = 0;
    if (f == BEFORE_START)
        y[-1] = 0;
    if (f == SECOND_LAUNCH)
        y[0] = (uint16_t)(y[0] + launches % 2);
    if (f == INPUT)
        ((float *)host(a->src))[0] = 42;
    if (f == WRONG_ROW && n > 1)
        y[n - 1] = y[0];
}

static void gather(const struct kx_gather *a)
{
    size_t es = a->t == KX_F16 ? 2 : 4, bytes = a->k * es;
    const int32_t *rows = host(a->rows);

    for (uint32_t i = 0; i < a->n; i++)
        memcpy((uint8_t *)host(a->out) + i * bytes, (uint8_t *)host(a->x) + rows[i] * bytes, bytes);
}

static enum rc run_with(uint8_t op, const void *args, enum fault f)
{
    if (f == NOT_LAUNCHED)
        return RC_OK;
    if (op == BE_KOP_CONVERT)
        convert(args, f);
    else if (op == BE_KOP_GATHER)
        gather(args);
    else {
        const struct kx_softcap *a = args;
        float *x = host(a->x);

        for (size_t i = 0; i < (size_t)a->n * a->k; i++)
            x[i] = a->cap * tanhf(x[i] / a->cap);
    }
    return RC_OK;
}

static enum rc run(const struct be_kir *k, const void *args, struct rc_err *err)
{
    return run_with(k->desc.op, args, oracle_fault);
}

static const struct be_kfamily fake = {
    .name = "fake", .count = count, .at = at, .build = build, .run = run};
static const struct be_kfamily *const families[] = {&fake, NULL};

/* ------------------------------------------------- host memory as a device */

static unsigned live;

static enum rc d_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    *out = (uint64_t)(uintptr_t)aligned_alloc(256, (n + 255) / 256 * 256);
    live++;
    return *out ? RC_OK : rc_fail(err, RC_NOMEM, "no memory");
}

static void d_free(void *user, uint64_t p)
{
    free(host(p));
    live--;
}

static enum rc d_upload(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err)
{
    memcpy(host(dst), src, n);
    return RC_OK;
}

static enum rc d_download(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err)
{
    memcpy(dst, host(src), n);
    return RC_OK;
}

static enum rc d_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                        const void *args, size_t n, struct rc_err *err)
{
    assert_int_equal(n, e->args_bytes);
    launches++;
    return run_with(e->desc.op, args, fault);
}

static struct be_kconf_dev dev = {.name = "host memory",
                                  .arch = 80,
                                  .alloc = d_alloc,
                                  .free = d_free,
                                  .upload = d_upload,
                                  .download = d_download,
                                  .launch = d_launch};

static void conform(enum fault f, enum fault oracle, struct be_kconf_report *out)
{
    struct be_kconf_opts o = {.dev = &dev, .level = BE_KCONF_FULL, .families = families};

    fault = f;
    oracle_fault = oracle;
    OK(be_kconf_run(&o, out, err));
    fault = oracle_fault = NONE;
    assert_int_equal(live, 0);
}

/* ----------------------------------------------------------------- tests */

static void right_kernels_pass(void **s)
{
    struct be_kconf_report r;
    char sum[128], want[128], *md;

    conform(NONE, NONE, &r);
    assert_int_equal(r.n_kernels, N_ENTRIES);
    for (uint32_t i = 0; i < r.n_kernels; i++) {
        if (r.rows[i].n_failed)
            fail_msg("%s", r.rows[i].why);
        assert_true(r.rows[i].n_cases >= 20);
        assert_true(r.rows[i].max_abs == 0);
    }
    be_kconf_summary(&r, sum, sizeof(sum));
    snprintf(want, sizeof(want), "3/3 kernels, %llu/%llu cases", (unsigned long long)r.n_cases,
             (unsigned long long)r.n_cases);
    assert_string_equal(sum, want);
    md = be_kconf_markdown(&r);
    assert_non_null(md);
    assert_non_null(strstr(md, "host memory"));
    assert_non_null(strstr(md, "`kx_fake_gather`"));
    free(md);
    be_kconf_report_deinit(&r);
}

static void each_fault_is_caught_and_named(void **s)
{
    static const struct {
        enum fault f;
        const char *says;
    } rows[] = {
        {LAST_COLUMN, "never written"},
        {PAST_END, "wrote byte"},
        {BEFORE_START, "wrote byte -2 of buffer 1"},
        {SECOND_LAUNCH, "second launch"},
        {INPUT, "changed input buffer 0"},
        {ONE_BIT, "expected"},
        {SIGN_OF_ZERO, "is 0 (0000), expected -0 (8000)"},
        {NAN_AS_ZERO, "expected"},
        {OLD_OUTPUT, "second launch"},
        {WRONG_ROW, "expected"},
        {NOT_LAUNCHED, "never written"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_kconf_report r;

        conform(rows[i].f, NONE, &r);
        if (r.rows[0].n_failed == 0)
            fail_msg("fault %d was not caught", (int)rows[i].f);
        if (!strstr(r.rows[0].why, rows[i].says))
            fail_msg("fault %d: '%s', expected '%s'", (int)rows[i].f, r.rows[0].why, rows[i].says);
        assert_int_equal(r.n_passed + r.n_failed, N_ENTRIES);
        assert_true(r.n_cases_passed < r.n_cases);
        be_kconf_report_deinit(&r);
    }
}

/* Kernel and oracle agree, and both are wrong. */
static void an_oracle_in_error_is_caught_too(void **s)
{
    static const struct {
        enum fault f;
        const char *says;
    } rows[] = {
        {LAST_COLUMN, "never written"},
        {PAST_END, "the oracle wrote byte"},
        {INPUT, "the oracle changed input"},
        {WRONG_ROW, "also changes output row"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_kconf_report r;

        conform(rows[i].f, rows[i].f, &r);
        if (r.rows[0].n_failed == 0 || !strstr(r.rows[0].why, rows[i].says))
            fail_msg("fault %d in both: '%s', expected '%s'", (int)rows[i].f, r.rows[0].why,
                     rows[i].says);
        be_kconf_report_deinit(&r);
    }
}

static void a_kernel_for_newer_devices_is_skipped_and_counted(void **s)
{
    struct be_kconf_report r;
    char sum[128];

    dev.arch = 75;
    conform(NONE, NONE, &r);
    dev.arch = 80;
    assert_int_equal(r.n_skipped, 1);
    assert_int_equal(r.n_passed, N_ENTRIES - 1);
    assert_true(r.rows[2].skipped);
    be_kconf_summary(&r, sum, sizeof(sum));
    assert_non_null(strstr(sum, "2/3 kernels"));
    assert_non_null(strstr(sum, "1 skipped"));
    be_kconf_report_deinit(&r);
}

static enum rc lost(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                    const void *args, size_t n, struct rc_err *err)
{
    return rc_fail(err, RC_INTERNAL, "an illegal memory access was encountered");
}

static void a_lost_device_ends_the_run(void **s)
{
    struct be_kconf_dev bad = dev;
    struct be_kconf_opts o = {.dev = &bad, .families = families};
    struct be_kconf_report r;

    bad.launch = lost;
    FAILS(RC_INTERNAL, be_kconf_run(&o, &r, err));
    assert_int_equal(live, 0);
}

static void one_kernel_can_be_chosen(void **s)
{
    struct be_kconf_opts o = {
        .dev = &dev, .level = BE_KCONF_QUICK, .only = "gather", .families = families};
    struct be_kconf_report r;

    OK(be_kconf_run(&o, &r, err));
    assert_int_equal(r.n_kernels, 1);
    assert_int_equal(r.n_passed, 1);
    be_kconf_report_deinit(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_pass),
        cmocka_unit_test(each_fault_is_caught_and_named),
        cmocka_unit_test(an_oracle_in_error_is_caught_too),
        cmocka_unit_test(a_kernel_for_newer_devices_is_skipped_and_counted),
        cmocka_unit_test(a_lost_device_ends_the_run),
        cmocka_unit_test(one_kernel_can_be_chosen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
