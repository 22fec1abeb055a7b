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
            assert_ptr_equal(be_kart_find(a->lib, a->kind, a->arch + 1), a);
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
            const struct be_kart *a = be_kart_find(e->lib, BE_KART_PTX, 90);

            if (!a || !be_kroute_has_entry(a, e->name))
                fail_msg("kernel '%s': %s", e->name, a ? "not in its PTX" : "no PTX");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_build_verifies),
        cmocka_unit_test(bundled_kernels_are_reachable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
