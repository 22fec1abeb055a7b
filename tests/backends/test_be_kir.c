/* test_be_kir.c - the verifier: a sound kernel passes, each rule broken once is named;
 * and the growing text. */
#include "be_test.h"

#include <stdlib.h>

#include "be_kargs.h"
#include "be_kir.h"

/* A product with a staged weight: GRID, LOOP K { load, load shared, barrier, dp4a, barrier },
 * reduce, bias, store. */
enum { GRID, LOOP, ACT, BLOCK, BAR, DOT, BAR2, RED, BIAS, STORE, N };

static struct be_kir sound(void)
{
    static const struct be_knode nodes[N] = {
        [GRID] = {.kind = BE_KN_GRID, .imm = BE_KU_ELEM},
        [LOOP] = {.kind = BE_KN_LOOP, .depth = 1, .imm = BE_KA_K, .imm2 = 32},
        [ACT] = {.kind = BE_KN_LOAD_ACT, .depth = 2, .dst = 1, .imm = BE_KACT_Q8_0},
        [BLOCK] =
            {.kind = BE_KN_LOAD_BLOCK, .depth = 2, .dst = 2, .flags = BE_KF_SHARED, .imm = BE_Q4_0},
        [BAR] = {.kind = BE_KN_BARRIER, .depth = 2},
        [DOT] = {.kind = BE_KN_DP4A, .depth = 2, .dst = 3, .a = 1, .b = 2},
        [BAR2] = {.kind = BE_KN_BARRIER, .depth = 2},
        [RED] = {.kind = BE_KN_REDUCE,
                 .depth = 1,
                 .dst = 4,
                 .a = 3,
                 .imm = BE_KR_SLICES,
                 .imm2 = BE_KA_K},
        [BIAS] = {.kind = BE_KN_BIAS, .depth = 1, .dst = 5, .a = 4},
        [STORE] = {.kind = BE_KN_STORE, .depth = 1, .a = 5, .imm = BE_KACT_F32},
    };
    struct be_kir k = {
        .name = "kx_linear_q4_0_mv",
        .desc = {.op = BE_KOP_LINEAR,
                 .wfmt = BE_Q4_0,
                 .k = {32, 1 << 20, 32, 0},
                 .n = {1, 1 << 24, 1, 0},
                 .rows = {1, 1, 1, 0}},
        .sched =
            {.threads = 128, .slices = KX_SLICES, .stages = 1, .regs = 64, .shared_bytes = 4096},
    };

    for (unsigned i = 0; i < N; i++)
        be_kir_add(&k, nodes[i]);
    return k;
}

static void drop(struct be_kir *k, unsigned i)
{
    memmove(&k->node[i], &k->node[i + 1], (k->n_nodes - i - 1) * sizeof(k->node[0]));
    k->n_nodes--;
}

static void insert(struct be_kir *k, unsigned i, struct be_knode n)
{
    memmove(&k->node[i + 1], &k->node[i], (k->n_nodes - i) * sizeof(k->node[0]));
    k->node[i] = n;
    k->n_nodes++;
}

/* clang-format off */
#define BREAK(fn, ...)              \
    static void fn(struct be_kir *k) \
    {                                \
        __VA_ARGS__;                        \
    }
BREAK(nothing, (void)k)
BREAK(no_barrier, drop(k, BAR))
BREAK(no_second_barrier, drop(k, BAR2))
BREAK(barrier_first, drop(k, BAR2);
      insert(k, ACT, (struct be_knode){.kind = BE_KN_BARRIER, .depth = 2}))
BREAK(two_stages, drop(k, BAR2); k->sched.stages = 2)
BREAK(no_shared_bytes, k->sched.shared_bytes = 0)
BREAK(bad_flag, k->node[ACT].flags = 2)
BREAK(flag_without_value, k->node[BAR].flags = BE_KF_SHARED)
BREAK(bad_name, strcpy(k->name, "linear"))
BREAK(bad_letter, k->name[5] = '-')
BREAK(endless_name, memset(k->name, 'k', sizeof(k->name)))
BREAK(odd_threads, k->sched.threads = 100)
BREAK(no_threads, k->sched.threads = 0)
BREAK(many_threads, k->sched.threads = 2048)
BREAK(much_shared, k->sched.shared_bytes = 200 << 10)
BREAK(many_regs, k->sched.regs = 256)
BREAK(big_block, k->sched.regs = 128; k->sched.threads = 1024)
BREAK(no_nodes, k->n_nodes = 0)
BREAK(many_nodes, for (int i = 0; i < 60; i++) be_kir_add(k, k->node[BIAS]))
BREAK(dim_without_max, k->desc.k.max = 0)
BREAK(dim_backwards, k->desc.n.min = k->desc.n.max + 1)
BREAK(dim_fixed_range, k->desc.n.fixed = 1)
BREAK(dim_odd_minimum, k->desc.k.min = 33)
BREAK(unknown_kind, k->node[BIAS].kind = BE_KN_COUNT)
BREAK(no_root, k->node[GRID].kind = BE_KN_BARRIER)
BREAK(second_root, k->node[BAR] = k->node[GRID]; k->node[BAR].depth = 2)
BREAK(deep_root, k->node[GRID].depth = 1)
BREAK(outside, k->node[STORE].depth = 0)
BREAK(deep_step, k->node[STORE].depth = 3)
BREAK(leaf_with_child, k->node[STORE].depth = 2)
BREAK(bad_unit, k->node[GRID].imm = 9)
BREAK(no_axis, k->node[LOOP].imm = 0)
BREAK(undeclared_axis, k->node[LOOP].imm = BE_KA_TILE)
BREAK(no_step, k->node[LOOP].imm2 = 0)
BREAK(empty_loop,
      insert(k, STORE,
             (struct be_knode){.kind = BE_KN_LOOP, .depth = 1, .imm = BE_KA_PART, .imm2 = 1}))
BREAK(nested_axis,
      k->node[BAR2] = (struct be_knode){.kind = BE_KN_LOOP, .depth = 2, .imm = BE_KA_K, .imm2 = 1};
      k->node[RED].depth = 3)
BREAK(no_dst, k->node[ACT].dst = 0)
BREAK(dst_of_store, k->node[STORE].dst = 6)
BREAK(no_a, k->node[BIAS].a = 0)
BREAK(no_b, k->node[DOT].b = 0)
BREAK(read_early, k->node[DOT].a = 4)
BREAK(read_early_b, k->node[DOT].b = 9)
BREAK(unknown_format, k->node[BLOCK].imm = 4)
BREAK(other_format, k->node[BLOCK].imm = BE_Q8_0)
BREAK(bad_reduction, k->node[RED].imm = 17)
BREAK(no_slices, k->sched.slices = 4)
BREAK(undeclared_reduction, k->node[RED].imm2 = BE_KA_SPLIT)
BREAK(bad_mma, k->node[DOT].kind = BE_KN_MMA; k->node[DOT].imm = 12)
BREAK(inexact_mma, k->node[DOT].kind = BE_KN_MMA; k->node[DOT].imm = BE_KM_F16_16816)
BREAK(tf32_mma, k->node[DOT].kind = BE_KN_MMA; k->node[DOT].imm = BE_KM_TF32_1688;
      k->desc.numerics = BE_KNUM_FAST)
BREAK(exact_mma, k->node[DOT].kind = BE_KN_MMA; k->node[DOT].imm = BE_KM_S8_16832)
BREAK(bad_function, k->node[BIAS].kind = BE_KN_ACT; k->node[BIAS].imm = 77)
BREAK(bad_encoding, k->node[BIAS].kind = BE_KN_QUANT_ACT; k->node[BIAS].imm = 2)
BREAK(bad_element, k->node[STORE].imm = 50)
BREAK(bad_plane, k->node[STORE].imm2 = 8)
BREAK(stores_nothing, drop(k, STORE))
BREAK(stores_twice, insert(k, STORE, k->node[STORE]))
BREAK(skips_a_plane, k->node[STORE].imm2 = 1)
BREAK(second_split, k->node[STORE].kind = BE_KN_SPLIT_STORE; insert(k, STORE, k->node[STORE]))
BREAK(stores_a_part, k->node[BAR2] = k->node[STORE]; k->node[BAR2].depth = 2; k->node[BAR2].a = 3;
      drop(k, STORE); insert(k, BAR2, (struct be_knode){.kind = BE_KN_BARRIER, .depth = 2}))

/* clang-format on */

static const struct {
    const char *what;
    void (*change)(struct be_kir *);
    const char *msg; /* NULL: still sound */
} rules[] = {
    {"sound", nothing, NULL},
    {"a barrier at the loop's head serves the next step", barrier_first, NULL},
    {"stages have buffers of their own", two_stages, NULL},
    {"integer tensor products are exact", exact_mma, NULL},
    {"shared read without barrier", no_barrier, "node 4 DP4A: reads shared value 2 of node 3"},
    {"shared overwrite without barrier", no_second_barrier,
     "node 3 LOAD_BLOCK: overwrites shared value 2"},
    {"shared without bytes", no_shared_bytes, "the schedule has no shared bytes"},
    {"unknown flag", bad_flag, "node 2 LOAD_ACT: flags 2"},
    {"flag on nothing", flag_without_value, "node 4 BARRIER: flags 1"},
    {"name", bad_name, "kernel name 'linear'"},
    {"letter", bad_letter, "expected a-z 0-9 _"},
    {"name without end", endless_name, "kernel name 'kkk"},
    {"threads", odd_threads, "100 threads, expected a multiple of 32"},
    {"no threads", no_threads, "0 threads"},
    {"too many threads", many_threads, "2048 threads"},
    {"shared bytes", much_shared, "204800 shared bytes, sm_75 has 49152"},
    {"registers", many_regs, "256 registers a thread"},
    {"registers of a block", big_block, "1024 threads of 128 registers"},
    {"empty", no_nodes, "has no nodes"},
    {"overflow", many_nodes, "has too many nodes"},
    {"dimension without maximum", dim_without_max, "dimension k has no maximum"},
    {"dimension backwards", dim_backwards, "dimension n is"},
    {"fixed dimension with a range", dim_fixed_range, "but fixed"},
    {"minimum off its multiple", dim_odd_minimum, "dimension k from 33, no multiple of 32"},
    {"unknown node", unknown_kind, "node 8 unknown: kind"},
    {"no root", no_root, "the first node must be GRID"},
    {"second root", second_root, "node 4 GRID: a second root"},
    {"deep root", deep_root, "depth 1 of the root"},
    {"outside the root", outside, "node 9 STORE: outside the root"},
    {"depth jumps", deep_step, "node 9 STORE: depth 3 after depth 1"},
    {"leaf with a child", leaf_with_child, "child of BIAS, which takes none"},
    {"unit", bad_unit, "node 0 GRID: unit 9"},
    {"axis", no_axis, "node 1 LOOP: axis 0"},
    {"axis that is no dimension", undeclared_axis, "axis TILE is no dimension"},
    {"step", no_step, "step 0 over axis K"},
    {"empty loop", empty_loop, "node 9 LOOP: without children"},
    {"axis twice", nested_axis, "axis K is already looped over by node 1"},
    {"no destination", no_dst, "node 2 LOAD_ACT: writes no value"},
    {"destination of a store", dst_of_store, "cannot write value 6"},
    {"no operand", no_a, "node 8 BIAS: lacks its first operand"},
    {"no second operand", no_b, "node 5 DP4A: lacks its second operand"},
    {"read before written", read_early, "reads value 4, which nothing before it writes"},
    {"second read before written", read_early_b, "reads value 9"},
    {"format", unknown_format, "format 4 is none of ours"},
    {"format of another descriptor", other_format, "format Q8_0, the descriptor says Q4_0"},
    {"reduction", bad_reduction, "reduction 17"},
    {"slices", no_slices, "over slices, with 4 in the schedule, expected 8"},
    {"reduction without loop", undeclared_reduction, "over axis SPLIT, which no loop"},
    {"tensor shape", bad_mma, "node 5 MMA: shape 12"},
    {"half products in an exact kernel", inexact_mma, "half products in a kernel"},
    {"tf32 products in another kernel", tf32_mma, "tf32 products in a kernel"},
    {"function", bad_function, "function 77"},
    {"encoding", bad_encoding, "encoding 2"},
    {"element type", bad_element, "element type 50"},
    {"plane", bad_plane, "output plane 8"},
    {"no output", stores_nothing, "stores nothing"},
    {"output twice", stores_twice, "stores output plane 0 a second time"},
    {"output missing", skips_a_plane, "never stores output plane 0"},
    {"split twice", second_split, "stores the split a second time"},
    {"partial sum", stores_a_part, "stores value 3 before loop node 1 has summed it"},
};

static void each_rule_is_named(void **state)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct be_kir k = sound();
        enum rc rc;

        rules[i].change(&k);
        rc = be_kir_verify(&k, &be_ktarget_sm75, &err);
        if (!rules[i].msg && rc != RC_OK)
            fail_msg("%s: refused: %s", rules[i].what, err.msg);
        if (rules[i].msg && (rc != RC_INTERNAL || !strstr(err.msg, rules[i].msg)))
            fail_msg("%s: rc %d '%s', expected '%s'", rules[i].what, rc, err.msg, rules[i].msg);
        assert_int_equal(be_kir_verify(&k, &be_ktarget_sm75, NULL), rc);
    }
}

static void targets_differ_in_shared_memory(void **state)
{
    struct be_kir k = sound();

    k.sched.shared_bytes = 64 << 10;
    assert_int_equal(be_kir_verify(&k, &be_ktarget_sm80, NULL), RC_OK);
    assert_int_equal(be_kir_verify(&k, &be_ktarget_sm75, NULL), RC_INTERNAL);
    k.sched.shared_bytes = 40 << 10;
    assert_int_equal(be_kir_verify(&k, &be_ktarget_sm75, NULL), RC_OK);
    assert_int_equal(be_kir_verify(&k, &be_ktarget_metal3, NULL), RC_INTERNAL);
}

static void every_kind_has_a_name(void **state)
{
    for (unsigned i = 1; i < BE_KN_COUNT; i++)
        assert_string_not_equal(be_knode_name(i), "unknown");
    assert_string_equal(be_knode_name(0), "unknown");
    assert_string_equal(be_knode_name(BE_KN_COUNT), "unknown");
}

static void text_grows(void **state)
{
    struct be_ktext t = {0};
    size_t want = 0;

    for (int i = 0; i < 5000; i++) {
        be_ktext_add(&t, "line %d\n", i);
        want += (size_t)snprintf(NULL, 0, "line %d\n", i);
    }
    assert_false(t.failed);
    assert_int_equal(t.n, want);
    assert_int_equal(strlen(t.p), want);
    be_ktext_deinit(&t);
    be_ktext_deinit(&t);
    assert_null(t.p);
}

/* A text past every bound fails once and for good, and keeps what it had. */
static void text_fails_for_good(void **state)
{
    struct be_ktext t = {0};
    char *big = malloc((33u << 20) + 1);

    assert_non_null(big);
    memset(big, 'x', 33u << 20);
    big[33u << 20] = '\0';
    be_ktext_add(&t, "%s", big);
    assert_false(t.failed);
    be_ktext_add(&t, "%s", big);
    assert_true(t.failed);
    be_ktext_add(&t, "y");
    assert_int_equal(t.n, 33u << 20);
    free(big);
    be_ktext_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_is_named),    cmocka_unit_test(targets_differ_in_shared_memory),
        cmocka_unit_test(every_kind_has_a_name), cmocka_unit_test(text_grows),
        cmocka_unit_test(text_fails_for_good),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
