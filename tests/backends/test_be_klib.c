/* test_be_klib.c - the text of a library: its parts in order, deterministic, guarded by
 * architecture; and the libraries of a catalog. */
#include "be_ktest.h"

static char *text(const char *lib, const struct be_kentry *only, bool metal)
{
    struct rc_err err = RC_ERR_INIT;
    struct be_ktext t = {0};

    if (be_klib_text(kt_families, lib, only, metal, &t, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(strlen(t.p), t.n);
    return t.p;
}

static void in_order(const char *p, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *q = strstr(p, parts[i]);

        if (!q)
            fail_msg("part %zu '%s' is not behind the one before it", i, parts[i]);
        p = q + 1;
    }
}

static void parts_stand_in_order(void **state)
{
    static const char *const cuda[] = {"alpha.cu - generated",
                                       "struct kx_linear {",
                                       "#ifndef KX_EMU\n",
                                       "#define KX_DEV",
                                       "#endif\n",
                                       "KX_DEV float kx_exp",
                                       "kt_cap(float x",
                                       "/* kx_alpha_one: ",
                                       "#ifndef KX_SM80_ONLY\n",
                                       "KX_KERNEL(kx_alpha_one",
                                       "#endif\n",
                                       "/* kx_alpha_two: ",
                                       "#if KX_ARCH >= 800\n",
                                       "KX_KERNEL(kx_alpha_two",
                                       "#endif\n"};
    static const char *const metal[] = {"alpha.metal - generated",  "#include <metal_stdlib>",
                                        "#define kx_p ulong",       "struct kx_linear {",
                                        "KX_DEV float kx_exp",      "kt_cap(float x",
                                        "kernel void kx_alpha_one", "kernel void kx_alpha_two"};
    char *p = text("alpha", NULL, false), *again = text("alpha", NULL, false);

    in_order(p, cuda, sizeof(cuda) / sizeof(cuda[0]));
    assert_null(strstr(p, "\n#include"));
    assert_null(strstr(p, "kx_alpha_three"));
    assert_string_equal(p, again);
    free(p);
    free(again);
    p = text("alpha", NULL, true);
    in_order(p, metal, sizeof(metal) / sizeof(metal[0]));
    assert_null(strstr(p, "KX_ARCH >= 800"));
    free(p);
}

/* One kernel for run-time compilation: no other kernel, no guard (the target is known). */
static void only_one_kernel(void **state)
{
    struct be_kentry e = kt_alpha_entries[1];
    char *p, *head;

    e.desc.k = (struct be_kdim){640, 640, 1, 1};
    p = text(e.lib, &e, false);
    assert_non_null(strstr(p, "KX_KERNEL(kx_alpha_two"));
    assert_null(strstr(p, "KX_KERNEL(kx_alpha_one"));
    head = strstr(p, "/* kx_alpha_two: ");
    assert_non_null(head);
    assert_null(strstr(head, "KX_ARCH"));
    assert_null(strstr(p, "KX_SM80_ONLY"));
    free(p);
}

static void libraries_are_sorted_and_say_their_targets(void **state)
{
    struct be_klib *l = NULL;
    size_t n = 0;

    assert_int_equal(be_klib_list(kt_families, &l, &n, NULL), RC_OK);
    assert_int_equal(n, 3);
    assert_string_equal(l[0].name, "alpha");
    assert_true(l[0].sm75 && l[0].sm80 && l[0].family == &kt_alpha);
    assert_string_equal(l[1].name, "alpha2");
    assert_true(l[1].sm75 && !l[1].sm80);
    assert_string_equal(l[2].name, "beta");
    assert_true(!l[2].sm75 && l[2].sm80);
    free(l);
}

static enum rc no_text(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "node 2 SOFTCAP is unknown to this renderer");
}
static enum rc bad_build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    kt_build(e, out, err);
    out->node[2].a = 9;
    return RC_OK;
}

static void faults_are_passed_on_by_name(void **state)
{
    struct be_kfamily fam = kt_alpha;
    const struct be_kfamily *const list[] = {&fam, NULL};
    struct rc_err err = RC_ERR_INIT;
    struct be_ktext t = {0};

    assert_int_equal(be_klib_text(list, "gamma", NULL, false, &t, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "library 'gamma'"));
    fam.cuda = no_text;
    assert_int_equal(be_klib_text(list, "alpha", NULL, false, &t, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "library 'alpha': kernel 'kx_alpha_one': node 2"));
    fam.build = bad_build;
    assert_int_equal(be_klib_text(list, "alpha", NULL, true, &t, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "reads value 9"));
    be_ktext_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_stand_in_order),
        cmocka_unit_test(only_one_kernel),
        cmocka_unit_test(libraries_are_sorted_and_say_their_targets),
        cmocka_unit_test(faults_are_passed_on_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
