/* test_kart_build.c - the artifacts that this very build carries are whole and belong to its
 * catalog. Fails until `kgen --write` was run after a change of a kernel. */
#include "be_test.h"

#include "be_kart.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(this_build_verifies)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
