/* test_be_kcat.c - the catalog of this build is sound, and each way it could not be is
 * named. */
#include "be_ktest.h"

static void this_build_is_sound(void **state)
{
    struct rc_err err = RC_ERR_INIT;

    if (be_kcat_check(be_kfamilies, &err) != RC_OK)
        fail_msg("%s", err.msg);
    for (size_t f = 0; be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);
            struct be_kentry copy = *e;

            assert_ptr_equal(be_kcat_find(e->name), e);
            assert_ptr_equal(be_kcat_family(&copy), be_kfamilies[f]);
        }
    }
    assert_null(be_kcat_find("kx_no_such_kernel"));
    assert_null(be_kcat_family(&(struct be_kentry){.name = "kx_no_such_kernel"}));
}

/* Every kernel of this build makes a tree that the verifier accepts. */
static void every_kernel_verifies(void **state)
{
    for (size_t f = 0; be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);
            struct rc_err err = RC_ERR_INIT;
            struct be_kir k = {0};

            if (be_kfamilies[f]->build(e, &k, &err) != RC_OK ||
                be_kir_verify(&k,
                              e->min_arch == 90   ? &be_ktarget_sm90
                              : e->min_arch == 80 ? &be_ktarget_sm80
                                                  : &be_ktarget_sm75,
                              &err) != RC_OK)
                fail_msg("%s: %s", e->name, err.msg);
            assert_string_equal(k.name, e->name);
            assert_memory_equal(&k.desc, &e->desc, sizeof(e->desc));
        }
    }
}

static struct be_kentry broken[2];

static uint32_t broken_count(void)
{
    return 2;
}
static const struct be_kentry *broken_at(uint32_t i)
{
    return &broken[i];
}

static void each_fault_is_named(void **state)
{
    struct be_kfamily fam = kt_alpha;
    const struct be_kfamily *const list[] = {&fam, NULL}, *const both[] = {&fam, &kt_alpha, NULL};
    struct rc_err err = RC_ERR_INIT;

    fam.count = broken_count;
    fam.at = broken_at;
#define EXPECT(families, text)                                        \
    do {                                                              \
        assert_int_equal(be_kcat_check(families, &err), RC_INTERNAL); \
        if (!strstr(err.msg, text))                                   \
            fail_msg("'%s', expected '%s'", err.msg, text);           \
        broken[0] = kt_alpha_entries[0];                              \
        broken[1] = kt_alpha_entries[1];                              \
    } while (0)
    broken[0] = broken[1] = kt_alpha_entries[0];
    EXPECT(list, "two kernels are named 'kx_alpha_one'");
    assert_int_equal(be_kcat_check(list, &err), RC_OK);
    broken[1].name = "alpha_two";
    EXPECT(list, "name 'alpha_two', expected kx_");
    broken[1].name = NULL;
    EXPECT(list, "entry 1: name ''");
    broken[1].lib = "../x";
    EXPECT(list, "library '../x'");
    broken[1].args_bytes = 12;
    EXPECT(list, "12 bytes of arguments");
    broken[1].min_arch = 70;
    EXPECT(list, "min_arch 70");
    broken[1].grid = NULL;
    EXPECT(list, "has no launch geometry");
    broken[1].desc = broken[0].desc;
    broken[1].min_arch = broken[0].min_arch;
    EXPECT(list, "kernels 'kx_alpha_one' and 'kx_alpha_two' both serve some shape");
    broken[0].name = "kx_x";
    broken[1].name = "kx_y";
    EXPECT(both, "library 'alpha' belongs to families 'alpha' and 'alpha'");
}

/* Of two for one shape the planner takes the one for the newer device. */
static void a_newer_device_may_have_its_own(void **state)
{
    struct be_kfamily fam = kt_alpha;
    const struct be_kfamily *const list[] = {&fam, NULL};
    struct rc_err err = RC_ERR_INIT;

    fam.count = broken_count;
    fam.at = broken_at;
    broken[0] = kt_alpha_entries[0];
    broken[1] = kt_alpha_entries[1];
    broken[1].desc = broken[0].desc;
    broken[0].min_arch = 80;
    broken[1].min_arch = 90;
    if (be_kcat_check(list, &err) != RC_OK)
        fail_msg("%s", err.msg);
}

/* A kernel for one shape may stand inside the range of another; a candidate may too. */
static void exact_and_candidate_may_overlap(void **state)
{
    struct be_kfamily fam = kt_alpha;
    const struct be_kfamily *const list[] = {&fam, NULL};

    fam.count = broken_count;
    fam.at = broken_at;
    broken[0] = kt_alpha_entries[0];
    broken[1] = kt_alpha_entries[1];
    broken[1].desc = broken[0].desc;
    broken[1].desc.k = (struct be_kdim){64, 64, 1, 1};
    assert_int_equal(be_kcat_check(list, NULL), RC_OK);
    broken[1].desc = broken[0].desc;
    broken[1].production = false;
    assert_int_equal(be_kcat_check(list, NULL), RC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_build_is_sound),
        cmocka_unit_test(every_kernel_verifies),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(a_newer_device_may_have_its_own),
        cmocka_unit_test(exact_and_candidate_may_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
