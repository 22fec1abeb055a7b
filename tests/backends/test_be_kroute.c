/* test_be_kroute.c - the resolution order, each step absent in turn, and its counters. */
#include "be_ktest.h"

#include "be_kroute.h"

#define FIX(v)     \
    {              \
        v, v, 1, 1 \
    }
static const struct be_kentry bucket = {.name = "kx_linear_q8_0_mv",
                                        .lib = "lib",
                                        .min_arch = 75,
                                        .production = true,
                                        .desc = {.op = BE_KOP_LINEAR,
                                                 .wfmt = BE_Q8_0,
                                                 .epi = 0xff,
                                                 .rows = {1, 1, 1, 0},
                                                 .k = {32, 1 << 20, 32, 0},
                                                 .n = {1, 1 << 24, 1, 0}}};
static const struct be_kentry exact = {.name = "kx_q8_0_64",
                                       .lib = "exactlib",
                                       .min_arch = 80,
                                       .production = true,
                                       .desc = {.op = BE_KOP_LINEAR,
                                                .wfmt = BE_Q8_0,
                                                .epi = 0xff,
                                                .rows = {1, 1, 1, 0},
                                                .k = FIX(64),
                                                .n = FIX(64)}};
static const struct be_kplan_req req = {
    .op = BE_KOP_LINEAR, .wfmt = BE_Q8_0, .rows = 1, .k = 64, .n = 64, .arch = 90};

struct world {
    bool has_jit, has_library, has_hand, has_lib, has_exactlib, wrong_entry;
    uint32_t exact_arch, jit_asked;
    struct be_kart lib, exactlib;
};

static void *jit(void *user, const struct be_kdesc *d)
{
    struct world *w = user;

    w->jit_asked++;
    assert_true(d->k.fixed && d->k.max == 64 && d->n.fixed && d->n.max == 64);
    return w->has_jit ? w : NULL;
}
static const struct be_kart *art(void *user, const char *lib, uint32_t arch)
{
    struct world *w = user;
    const char *text = w->wrong_entry
                           ? ".visible .entry kx_linear_q8_0_mv_geglu(\n"
                           : ".visible .entry kx_q8_0_64(\n.visible .entry kx_linear_q8_0_mv(\n";

    assert_int_equal(arch, 90);
    w->lib = (struct be_kart){"lib", BE_KART_PTX, 75, text, strlen(text)};
    w->exactlib = (struct be_kart){"exactlib", BE_KART_PTX, w->exact_arch, text, strlen(text)};
    if (strcmp(lib, "lib") == 0)
        return w->has_lib ? &w->lib : NULL;
    assert_string_equal(lib, "exactlib");
    return w->has_exactlib ? &w->exactlib : NULL;
}
static bool library(void *user, const struct be_kplan_req *r)
{
    assert_ptr_equal(r, &req);
    return ((struct world *)user)->has_library;
}
static const char *hand(void *user, const struct be_kplan_req *r)
{
    return ((struct world *)user)->has_hand ? "kx_by_hand" : NULL;
}

struct row {
    const char *what;
    struct world w;
    bool prefer_library, no_exact, no_plan;
    enum be_kroute_kind kind;
    const char *name;
    uint64_t missing, wiring;
};

static const struct row rows[] = {
    {"all there: the compiled winner",
     {1, 1, 1, 1, 1, 0, 80, 0},
     1,
     0,
     0,
     BE_KROUTE_JIT,
     "kx_linear_q8_0_mv",
     0,
     0},
    {"no winner: library, when preferred",
     {0, 1, 1, 1, 1, 0, 80, 0},
     1,
     0,
     0,
     BE_KROUTE_LIBRARY,
     "",
     0,
     0},
    {"bundled for the shape",
     {0, 1, 1, 1, 1, 0, 80, 0},
     0,
     0,
     0,
     BE_KROUTE_EXACT,
     "kx_q8_0_64",
     0,
     0},
    {"its artifact is missing",
     {0, 1, 1, 1, 0, 0, 80, 0},
     0,
     0,
     0,
     BE_KROUTE_BUCKET,
     "kx_linear_q8_0_mv",
     1,
     0},
    {"its artifact is too old",
     {0, 1, 1, 1, 1, 0, 75, 0},
     0,
     0,
     0,
     BE_KROUTE_BUCKET,
     "kx_linear_q8_0_mv",
     1,
     0},
    {"none bundled for the shape",
     {0, 1, 1, 1, 1, 0, 80, 0},
     0,
     1,
     0,
     BE_KROUTE_BUCKET,
     "kx_linear_q8_0_mv",
     0,
     0},
    {"no artifact: library", {0, 1, 1, 0, 0, 0, 80, 0}, 0, 1, 0, BE_KROUTE_LIBRARY, "", 1, 0},
    {"wrong entry point: library", {0, 1, 1, 1, 1, 1, 80, 0}, 0, 0, 0, BE_KROUTE_LIBRARY, "", 0, 2},
    {"no library: by hand", {0, 0, 1, 0, 0, 0, 80, 0}, 0, 0, 0, BE_KROUTE_HAND, "kx_by_hand", 2, 0},
    {"nothing: the reference", {0, 0, 0, 0, 0, 0, 80, 0}, 0, 0, 0, BE_KROUTE_REFERENCE, "", 2, 0},
    {"refused by the planner: the reference",
     {1, 0, 0, 1, 1, 0, 80, 0},
     0,
     0,
     1,
     BE_KROUTE_REFERENCE,
     "",
     0,
     0},
    {"refused by the planner, not by the library",
     {1, 1, 0, 1, 1, 0, 80, 0},
     0,
     0,
     1,
     BE_KROUTE_LIBRARY,
     "",
     0,
     0},
};

static void order(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct world w = rows[i].w;
        struct be_kroute_env env = {.user = &w,
                                    .jit = jit,
                                    .art = art,
                                    .library = library,
                                    .hand = hand,
                                    .prefer_library = rows[i].prefer_library};
        struct be_kplan p = {.name = "kx_linear_q8_0_mv",
                             .bucket = &bucket,
                             .exact = rows[i].no_exact ? NULL : &exact};
        struct rc_err err = RC_ERR_INIT;
        struct be_kstats ks = {0};
        struct be_kroute r;

        if (rows[i].no_plan)
            p = (struct be_kplan){.why = BE_KPLAN_WRONG_STORAGE};
        assert_int_equal(be_kroute_resolve(&env, &req, &p, &r, &ks, &err), RC_OK);
        if (r.kind != rows[i].kind || strcmp(r.name, rows[i].name) != 0 ||
            ks.missing_artifacts != rows[i].missing || ks.wiring_failures != rows[i].wiring)
            fail_msg("%s: %s '%s', %llu missing, %llu wiring", rows[i].what, be_kroute_name(r.kind),
                     r.name, (unsigned long long)ks.missing_artifacts,
                     (unsigned long long)ks.wiring_failures);
        assert_int_equal(r.fn != NULL, r.kind == BE_KROUTE_JIT);
        assert_int_equal(r.art != NULL, r.kind == BE_KROUTE_EXACT || r.kind == BE_KROUTE_BUCKET);
        assert_int_equal(w.jit_asked, rows[i].no_plan ? 0 : 1);
    }
}

/* Mode exact: the winner or nothing. */
static void only_the_winner(void **state)
{
    struct world w = {.has_library = true, .has_hand = true, .has_lib = true};
    struct be_kroute_env env = {.user = &w,
                                .jit = jit,
                                .art = art,
                                .library = library,
                                .hand = hand,
                                .jit_only = true,
                                .prefer_library = true};
    struct be_kplan p = {.name = "kx_linear_q8_0_mv", .bucket = &bucket};
    struct rc_err err = RC_ERR_INIT;
    struct be_kstats ks = {0};
    struct be_kroute r = {.name = "untouched"};

    assert_int_equal(be_kroute_resolve(&env, &req, &p, &r, &ks, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "kx_linear_q8_0_mv: no exact run-time compiled kernel"));
    assert_string_equal(r.name, "untouched");
    w.has_jit = true;
    assert_int_equal(be_kroute_resolve(&env, &req, &p, &r, &ks, &err), RC_OK);
    assert_int_equal(r.kind, BE_KROUTE_JIT);
}

static void entry_points_are_whole_words(void **state)
{
    static const char ptx[] =
        "// .entry kx_a_note\n.visible .entry kx_a_b(\n.entry kx_c (\n.entry kx_d\n(";
    struct be_kart a = {"x", BE_KART_PTX, 75, ptx, sizeof(ptx) - 1};

    assert_true(be_kart_has_entry(&a, "kx_a_b"));
    assert_true(be_kart_has_entry(&a, "kx_c"));
    assert_true(be_kart_has_entry(&a, "kx_d"));
    assert_false(be_kart_has_entry(&a, "kx_a"));
    assert_false(be_kart_has_entry(&a, "x_a_b"));
    assert_false(be_kart_has_entry(&a, "kx_a_b_c"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),
        cmocka_unit_test(only_the_winner),
        cmocka_unit_test(entry_points_are_whole_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
