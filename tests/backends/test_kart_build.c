/* test_kart_build.c - the artifacts that this very build carries are whole and belong to its
 * catalog. Fails until `kgen --write` was run after a change of a kernel. */
#include "be_test.h"

#include "be_kart.h"
#include "be_kroute.h"

/* What this very program carries. */
static void this_build_verifies(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    const struct be_kart *a;

    if (be_kart_verify(&err) != RC_OK)
        fail_msg("%s", err.msg);
    for (uint32_t i = 0; (a = be_kart_at(i)); i++) {
        assert_int_equal(a->data[a->n_bytes], '\0');
        assert_ptr_equal(be_kart_find(a->lib, a->kind, a->arch), a);
        if (a->kind == BE_KART_PTX) {
            const struct be_kart *next = be_kart_find(a->lib, a->kind, a->arch + 1);

            /* a later device takes it too, but for the one that is of its architecture alone */
            if (a->arch == BE_KART_ONLY_ARCH)
                assert_ptr_not_equal(next, a);
            else
                assert_ptr_equal(next, a);
            assert_true(be_kart_find(a->lib, a->kind, 74) == NULL);
        }
    }
    assert_null(be_kart_find("no_such_library", BE_KART_PTX, 90));
}

/* Every kernel of this build that a device may be asked for is in its artifact. */
static void bundled_kernels_are_reachable(void **state)
{
    for (size_t f = 0; be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);
            const struct be_kart *a = be_kart_entry(e->lib, e->name, 90);

            if (!a || a->arch < e->min_arch)
                fail_msg("kernel '%s' is in no PTX of library '%s'", e->name, e->lib);
            if (e->min_arch <= 75 && !be_kart_entry(e->lib, e->name, 75))
                fail_msg("kernel '%s' has no PTX for sm_75", e->name);
        }
    }
}

/* The request an entry is made for, at the least of each dimension. */
static struct be_kplan_req request_of(const struct be_kentry *e)
{
    const struct be_kdesc *d = &e->desc;
    struct be_kplan_req r = {.op = d->op,
                             .wfmt = d->wfmt,
                             .kv_dtype = d->kv_dtype == 0xff ? BE_F32 : d->kv_dtype,
                             .epi = d->epi == 0xff ? BE_EPI_NONE : d->epi,
                             .numerics = d->numerics,
                             .act = d->act == BE_KACT_ANY ? BE_KACT_F32 : d->act,
                             .rows = d->rows.min,
                             .k = d->k.min,
                             .n = d->n.min,
                             .head_dim = d->head_dim.min,
                             .q_heads = d->q_heads.min,
                             .kv_heads = d->kv_heads.min,
                             .split = d->phase == BE_KPHASE_SPLIT,
                             .fused_kv = d->op == BE_KOP_ROPE && d->kv_paged,
                             .arch = 90};

    if (d->op == BE_KOP_QUANT)
        r.wfmt = BE_Q8_0;
    return r;
}

/* No kernel of the catalog is out of the planner's reach on every device: names and descriptors
 * agree. One for all devices may have a better one beside it on the newest. */
static void every_kernel_can_be_planned(void **state)
{
    for (size_t f = 0; be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);
            struct be_kplan_req r = request_of(e);
            struct be_kplan p;
            bool planned = false;

            for (r.arch = 90; r.arch >= 80 && !planned; r.arch -= 10) {
                be_kplan_make(be_kfamilies, &r, &p);
                planned = p.bucket == e || p.exact == e;
            }
            if (e->production && !planned)
                fail_msg("kernel '%s' is never planned: its own shape gives '%s', %s", e->name,
                         p.name, be_kplan_why_name(p.why));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_build_verifies),
        cmocka_unit_test(bundled_kernels_are_reachable),
        cmocka_unit_test(every_kernel_can_be_planned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
