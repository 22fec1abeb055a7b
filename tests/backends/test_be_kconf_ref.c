/* Every executor of the catalog as its own device: the cases of the conformance runner can
 * be built for every kernel, and the oracle writes all of its outputs and nothing else, changes no
 * input, repeats itself and keeps rows apart. */
#include "be_test.h"

#include "be_kconf.h"

static enum rc d_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);

    *out = (uint64_t)(uintptr_t)p;
    return p ? RC_OK : rc_fail(err, RC_NOMEM, "no memory");
}

static void d_free(void *user, uint64_t p)
{
    free((void *)(uintptr_t)p);
}

static enum rc d_upload(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err)
{
    memcpy((void *)(uintptr_t)dst, src, n);
    return RC_OK;
}

static enum rc d_download(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err)
{
    memcpy(dst, (const void *)(uintptr_t)src, n);
    return RC_OK;
}

static enum rc d_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                        const void *args, size_t n, struct rc_err *err)
{
    struct be_kir *ir = calloc(1, sizeof(*ir));
    const struct be_kfamily *f = be_kcat_family(e);
    enum rc rc;

    assert_non_null(ir);
    assert_non_null(f);
    if (g->x == 0 || g->y == 0 || g->z == 0 || g->y > 65535 || g->z > 65535 || g->threads == 0 ||
        g->threads > 1024 || g->threads % 32 || g->shared_bytes > 227 * 1024)
        fail_msg("%s: grid %u x %u x %u of %u threads, %u shared bytes", e->name, g->x, g->y, g->z,
                 g->threads, g->shared_bytes);
    if ((rc = f->build(e, ir, err)) == RC_OK)
        rc = f->run(ir, args, err);
    free(ir);
    return rc;
}

static const struct be_kconf_dev dev = {.name = "the executors",
                                        .arch = 90,
                                        .alloc = d_alloc,
                                        .free = d_free,
                                        .upload = d_upload,
                                        .download = d_download,
                                        .launch = d_launch};

static void say(void *user, const char *text)
{
    print_message("%s\n", text);
}

static void executors_are_sound(void **s)
{
    struct be_kconf_opts o = {.dev = &dev, .level = BE_KCONF_QUICK, .line = say};
    struct be_kconf_report r;
    char sum[128];
    uint32_t bad = 0, n = 0;

    if (getenv("INFERD_KCONF_FULL"))
        o.level = BE_KCONF_FULL;
    o.only = getenv("INFERD_KCONF_ONLY");
    OK(be_kconf_run(&o, &r, err));
    be_kconf_summary(&r, sum, sizeof(sum));
    print_message("%s\n", sum);
    for (uint32_t i = 0; i < r.n_kernels; i++)
        if (r.rows[i].n_failed || r.rows[i].n_cases == 0)
            bad++;
    for (size_t f = 0; be_kfamilies[f]; f++)
        n += be_kfamilies[f]->count();
    if (!o.only)
        assert_int_equal(r.n_kernels, n);
    assert_int_equal(bad, 0);
    be_kconf_report_deinit(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executors_are_sound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
