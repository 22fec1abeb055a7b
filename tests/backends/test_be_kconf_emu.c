/* Conformance of the kernel text itself: every kernel of the catalog on the emulated device
 * against its executor, as sm_80 and as sm_75, each pair of launches in two orders of blocks,
 * warps and lanes (a missing barrier shows as a second launch that differs). A reduced set of
 * shapes; all of them with INFERD_KCONF_FULL=1, one kernel with INFERD_KCONF_ONLY=name. Then
 * launches that go wrong on purpose: the runner must name them. */
#include "be_test.h"

#include "../../backends/cuda/be_cuda_drv.h"
#include "be_kargs.h"
#include "be_kart.h"
#include "be_kconf.h"
#include "emu.h"

/* Kernels in the catalog. Pinned, so that none is lost (or comes) without being meant: a report
 * says N/N of this many. */
#define N_KERNELS 184

/* ------------------------------------------------- the emulator as a device */

struct emu_dev {
    unsigned arch, launches;
    enum { RIGHT, FEWER_BLOCKS, FEWER_ROWS, MORE_ROWS } wrong;
};

static enum rc d_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    void *(*alloc)(size_t), *p; /* a page that faults behind each array, NaN in fresh ones */

    *(void **)&alloc = emu_sym("emu_mem_alloc");
    p = alloc(n);
    *out = (uint64_t)(uintptr_t)p;
    return p ? RC_OK : rc_fail(err, RC_NOMEM, "no memory");
}

static void d_free(void *user, uint64_t p)
{
    int (*mem_free)(void *);

    *(void **)&mem_free = emu_sym("emu_mem_free");
    assert_int_equal(mem_free((void *)(uintptr_t)p), 0);
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

/* A library that the build did not compile into the emulator is compiled here. */
static enum rc need_kernel(const char *name, const char *lib, unsigned arch, struct rc_err *err)
{
    const struct emu_kernel *(*find)(const char *, unsigned);
    struct be_ktext text = {0};
    enum rc rc;

    *(void **)&find = emu_sym("emu_find");
    if (find(name, arch))
        return RC_OK;
    if ((rc = be_kcuda_text(lib, NULL, &text, err)) == RC_OK)
        emu_load_text(text.p, arch);
    be_ktext_deinit(&text);
    return rc;
}

static enum rc d_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                        const void *args, size_t n, struct rc_err *err)
{
    struct emu_dev *d = user;
    _Alignas(64) uint8_t changed[1024];
    struct be_kgrid grid = *g;
    char why[400] = "";
    int (*check)(char *, size_t);
    enum rc rc;

    if (g->x == 0 || g->y == 0 || g->z == 0 || g->y > 65535 || g->z > 65535 || g->threads == 0 ||
        g->threads > 1024 || g->threads % 32 || g->shared_bytes > 227 * 1024)
        fail_msg("%s: grid %u x %u x %u of %u threads, %u shared bytes", e->name, g->x, g->y, g->z,
                 g->threads, g->shared_bytes);
    if ((rc = need_kernel(e->name, e->lib, d->arch, err)) != RC_OK)
        return rc;
    assert_true(n <= sizeof(changed));
    memcpy(changed, args, n);
    if (n == sizeof(struct kx_linear_wg)) {
        struct be_cuda_drv drv = {0};

        *(void **)&drv.tensor_map = emu_sym("cuTensorMapEncodeTiled");
        if ((rc = be_cuda_maps(&drv, (struct kx_linear_wg *)(void *)changed, err)) != RC_OK)
            return rc;
    }
    if (d->wrong == FEWER_BLOCKS && grid.x > 1)
        grid.x--;
    if (d->wrong == FEWER_ROWS || d->wrong == MORE_ROWS) {
        struct kx_softcap a; /* one row less, or one more */

        assert_int_equal(e->desc.op, BE_KOP_SOFTCAP);
        memcpy(&a, args, sizeof(a));
        a.n += d->wrong == MORE_ROWS ? 1 : (kx_u)-1;
        memcpy(changed, &a, sizeof(a));
        e->grid(e, &a, &grid);
    }
    d->launches++;
    emu_order((enum emu_order)(d->launches % 3), d->launches);
    *(void **)&check = emu_sym("emu_mem_check");
    if (emu_try(e->name, d->arch, changed, n, &grid, why, sizeof(why)) != EMU_OK ||
        check(why, sizeof(why)) != 0)
        return rc_fail(err, RC_FORMAT, "%s", why);
    return RC_OK;
}

static void say(void *user, const char *text)
{
    print_message("%s\n", text);
}

static void conform(struct emu_dev *d, const char *only, bool print, struct be_kconf_report *out)
{
    const struct be_kconf_dev dev = {.user = d,
                                     .name = "the emulated device",
                                     .arch = d->arch,
                                     .alloc = d_alloc,
                                     .free = d_free,
                                     .upload = d_upload,
                                     .download = d_download,
                                     .launch = d_launch};
    struct be_kconf_opts o = {.dev = &dev, .level = BE_KCONF_QUICK, .only = only};

    if (getenv("INFERD_KCONF_FULL"))
        o.level = BE_KCONF_FULL;
    if (print)
        o.line = say;
    OK(be_kconf_run(&o, out, err));
}

/* only: part of their names; NULL = all. */
static void every_kernel(unsigned arch, const char *only)
{
    struct emu_dev d = {.arch = arch};
    struct be_kconf_report r;
    char sum[128];
    uint32_t bad = 0;

    if (getenv("INFERD_KCONF_ONLY"))
        only = getenv("INFERD_KCONF_ONLY");
    conform(&d, only, true, &r);
    be_kconf_summary(&r, sum, sizeof(sum));
    print_message("sm_%u: %s\n", arch, sum);
    for (uint32_t i = 0; i < r.n_kernels; i++) {
        const struct be_kconf_row *w = &r.rows[i];

        if (w->n_failed || (!w->skipped && w->n_cases == 0))
            bad++;
    }
    if (!only)
        assert_int_equal(r.n_kernels, N_KERNELS);
    assert_int_equal(bad, 0);
    be_kconf_report_deinit(&r);
}

static void every_kernel_on_sm80(void **s)
{
    every_kernel(80, NULL);
}

/* Only instructions of tensor cores differ there: the others have been run above. */
static void products_of_matrices_on_sm75(void **s)
{
    every_kernel(75, getenv("INFERD_KCONF_FULL") ? NULL : "_mm");
}

static void products_of_warpgroups_on_sm90(void **s)
{
    every_kernel(90, getenv("INFERD_KCONF_FULL") ? NULL : "_wg");
}

/* ---------------------------------------------------------- broken launches */

/* The first entry of an operation, or NULL. */
static const struct be_kentry *entry_of(uint8_t op)
{
    for (size_t f = 0; be_kfamilies[f]; f++)
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++)
            if (be_kfamilies[f]->at(i)->desc.op == op)
                return be_kfamilies[f]->at(i);
    return NULL;
}

static void must_fail(int wrong, uint8_t op, const char *says)
{
    const struct be_kentry *e = entry_of(op);
    struct emu_dev d = {.arch = 80, .wrong = wrong};
    struct be_kconf_report r;

    if (!e) {
        print_message("no kernel of operation %u yet\n", op);
        skip();
    }
    conform(&d, e->name, false, &r);
    if (r.rows[0].n_failed == 0 || !strstr(r.rows[0].why, says))
        fail_msg("%s: %u of %u cases failed: '%s', expected '%s'", e->name, r.rows[0].n_failed,
                 r.rows[0].n_cases, r.rows[0].why, says);
    be_kconf_report_deinit(&r);
}

static void a_missing_block_is_caught(void **s)
{
    must_fail(FEWER_BLOCKS, BE_KOP_GATHER, "never written");
}

static void a_missing_row_is_caught(void **s)
{
    must_fail(FEWER_ROWS, BE_KOP_SOFTCAP, "expected");
}

static void a_row_too_many_is_caught(void **s)
{
    must_fail(MORE_ROWS, BE_KOP_SOFTCAP,
              "illegal address"); /* the emulated device is first to see it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_on_sm80),
        cmocka_unit_test(products_of_matrices_on_sm75),
        cmocka_unit_test(products_of_warpgroups_on_sm90),
        cmocka_unit_test(a_missing_block_is_caught),
        cmocka_unit_test(a_missing_row_is_caught),
        cmocka_unit_test(a_row_too_many_is_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
