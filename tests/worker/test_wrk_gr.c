/* test_wrk_gr.c - programs, runs, masks and the store that keeps them. */
#include "worker/gr_test.h"

static struct wrk_gr_held *hold(struct gr_rig *r, enum wrk_gr_kind kind, const char *grammar)
{
    struct wrk_gr_held *h = NULL;
    struct rc_err err = RC_ERR_INIT;

    if (wrk_gr_hold(r->s, &h, kind, grammar, strlen(grammar), &err) != RC_OK)
        fail_msg("%s: %s", grammar, err.msg);
    return h;
}

/* Masks equal trials near every bound: counts, alternatives, ends. */
static void masks_near_bounds(void **state)
{
    static const struct {
        enum wrk_gr_kind kind;
        const char *grammar;
    } rows[] = {
        {WRK_GR_SCHEMA, "{\"type\":\"string\",\"minLength\":10,\"maxLength\":14}"},
        {WRK_GR_SCHEMA, "{\"type\":\"string\",\"maxLength\":3}"},
        {WRK_GR_SCHEMA,
         "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"const\":\"abcdef\"}]}"},
        {WRK_GR_SCHEMA, "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"type\":\"string\","
                        "\"pattern\":\"^a+$\"}]}"},
        {WRK_GR_SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,12]},\"minItems\":12,"
                        "\"maxItems\":14}"},
        {WRK_GR_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"ab\":{"
         "\"type\":\"string\",\"maxLength\":3}},\"required\":[\"ab\"]},\"minItems\":"
         "4,\"maxItems\":4}"},
        {WRK_GR_REGEX, "a{20,30}b"},
        {WRK_GR_REGEX, "(ab){5,7}"},
        {WRK_GR_REGEX, "(a?){40}"},
        {WRK_GR_REGEX, ".*"},
        {WRK_GR_REGEX, ".{3,9}!"},
        {WRK_GR_REGEX, "(a|ab|abc|abcd)*e"},
        {WRK_GR_REGEX, "[日本é]{2}"},
        {WRK_GR_GBNF, "root ::= \"[\" root* \"]\" | \"aaaa\""},
        {WRK_GR_JSON, ""},
    };
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 4242;
    char out[8192];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int turn = 0; turn < 3; turn++)
            gr_walk(&r, rows[i].kind, rows[i].grammar, &seed, 40, out, sizeof(out), true);
    assert_int_equal(wrk_gr_stats_get(r.s).masks_cut, 0);
    gr_rig_free(&r);
}

/* A place has one mask, whoever comes, and counts far from their bounds are one place. */
static void masks_are_shared(void **state)
{
    struct gr_rig r = gr_rig_new();
    struct wrk_gr_held *h = hold(&r, WRK_GR_SCHEMA, "{\"type\":\"string\",\"maxLength\":100000}"),
                       *again =
                           hold(&r, WRK_GR_SCHEMA, "{\"type\":\"string\",\"maxLength\":100000}");
    struct wrk_gr_run a, b = {0};
    struct wrk_gr_stats st;
    struct wrk_gr_mask m, n;

    (void)state;
    assert_ptr_equal(h, again);
    assert_int_equal(wrk_gr_run_init(&a, r.s, h, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_accept(&a, GR_BYTE('"'), NULL), RC_OK);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(wrk_gr_run_prepare(&a, NULL), RC_OK);
        assert_int_equal(wrk_gr_run_accept(&a, GR_BYTE('x'), NULL), RC_OK);
    }
    st = wrk_gr_stats_get(r.s);
    assert_int_equal(st.compiled, 1);
    assert_int_equal(st.prog_hits, 1);
    assert_int_equal(st.mask_misses, 2); /* the first place, and all behind it */
    assert_int_equal(st.mask_hits, 498);
    assert_int_equal(wrk_gr_run_copy(&b, &a, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_mask(&a, &m, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_mask(&b, &n, NULL), RC_OK);
    assert_ptr_equal(m.bits, n.bits);
    /* a copy goes its own way */
    assert_int_equal(wrk_gr_run_accept(&b, GR_BYTE('"'), NULL), RC_OK);
    assert_true(wrk_gr_run_must_end(&b));
    assert_false(wrk_gr_run_may_end(&a));
    wrk_gr_run_deinit(&a);
    wrk_gr_run_deinit(&b);
    wrk_gr_release(r.s, &h);
    wrk_gr_release(r.s, &again);
    gr_rig_free(&r);
}

/* Programs and masks past their bytes make room, and come back the same. */
static void the_store_is_bounded(void **state)
{
    struct gr_rig r = gr_rig_new();
    char grammar[64], first[8192], second[8192];
    uint64_t seed;

    (void)state;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 1200; i++) {
            char *out = turn == 0 ? first : second;

            /* the program of 5,000 copies takes some 200 KB */
            snprintf(grammar, sizeof(grammar), "(a|b%d[c-z]){2}(d{4}e?){9}x{%d}", i, 900 + i);
            seed = 7;
            gr_walk(&r, WRK_GR_REGEX, grammar, &seed, 6, i == 0 ? out : (char[8192]){0}, 8192,
                    false);
        }
    assert_string_equal(first, second);
    assert_true(wrk_gr_stats_get(r.s).bytes <
                WRK_GR_PROGS_BYTES + WRK_GR_MASKS_BYTES + wrk_gr_vocab_bytes(r.v));
    gr_rig_free(&r);
}

/* Sets that outgrow the machine lose choices, the last ones first, and never allow what
 * is forbidden; the answer can always go on. */
static void what_does_not_fit_is_left_out(void **state)
{
    static const char *const rows[] = {"(a|b)*a(a|b){600}c",
                                       "((a|b)*a(a|b){300}|(b|a)*b(b|a){299})+",
                                       "((a|aa|b|ab)(a|b|ba)?){5,3000}c"};
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 11, before;
    unsigned n_cut = 0;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct wrk_gr_held *h = hold(&r, WRK_GR_REGEX, rows[i]);
        struct wrk_gr_run run;
        struct wrk_gr_mask m;

        assert_int_equal(wrk_gr_run_init(&run, r.s, h, NULL), RC_OK);
        for (int step = 0; step < 900; step++) {
            int32_t pick = gr_random(&seed) % 2 != 0 ? GR_BYTE('a') : GR_BYTE('b');

            before = wrk_gr_stats_get(r.s).masks_cut;
            assert_int_equal(wrk_gr_run_mask(&run, &m, NULL), RC_OK);
            n_cut += m.cut;
            if (wrk_gr_stats_get(r.s).masks_cut > before) /* else it is one that was kept */
                assert_true(m.cut);
            for (int32_t t = 1; t < (int32_t)GR_VOCAB; t++) {
                size_t n;
                const char *s = gr_bytes(NULL, t, &n);

                if (gr_allowed(&m, t))
                    assert_true(n > 0 && strspn(s, "abc") >= n);
            }
            if (!gr_allowed(&m, pick))
                pick = pick == GR_BYTE('a') ? GR_BYTE('b') : GR_BYTE('a');
            if (!gr_allowed(&m, pick))
                break;
            assert_int_equal(wrk_gr_run_accept(&run, pick, NULL), RC_OK);
        }
        assert_true(m.n > 0);
        wrk_gr_run_deinit(&run);
        wrk_gr_release(r.s, &h);
    }
    assert_true(n_cut > 0 && n_cut >= wrk_gr_stats_get(r.s).masks_cut);
    gr_rig_free(&r);
}

/* The ways of a run to say no. */
static void refusals_of_a_run(void **state)
{
    static const int32_t eos[] = {GR_EOS};
    struct gr_rig r = gr_rig_new();
    struct wrk_gr_held *h = hold(&r, WRK_GR_REGEX, "ab");
    struct rc_err err = RC_ERR_INIT;
    struct wrk_gr_vocab *few = NULL;
    struct wrk_gr_store *s = NULL;
    struct wrk_gr_run run;
    struct wrk_gr_mask m;

    (void)state;
    assert_int_equal(wrk_gr_run_init(&run, r.s, h, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_accept(&run, GR_BYTE('x'), &err), RC_INVALID);
    assert_int_equal(wrk_gr_run_accept(&run, 1, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "adds no text"));
    assert_int_equal(wrk_gr_run_accept(&run, (int32_t)GR_VOCAB, &err), RC_INVALID);
    assert_int_equal(wrk_gr_run_accept(&run, GR_BYTE('a'), &err), RC_OK); /* it did not move */
    wrk_gr_run_deinit(&run);
    wrk_gr_release(r.s, &h);
    gr_rig_free(&r);

    /* a vocabulary without the byte that must come */
    assert_int_equal(wrk_gr_store_new(&s, NULL), RC_OK);
    assert_int_equal(wrk_gr_vocab_new(&few, 3 + 'b', gr_bytes, NULL, eos, 1, NULL), RC_OK);
    assert_int_equal(wrk_gr_store_vocab(s, few, NULL), RC_OK);
    assert_int_equal(wrk_gr_hold(s, &h, WRK_GR_REGEX, "ab", 2, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_init(&run, s, h, NULL), RC_OK);
    assert_int_equal(wrk_gr_run_accept(&run, GR_BYTE('a'), NULL), RC_OK);
    assert_int_equal(wrk_gr_run_mask(&run, &m, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "no token of this model"));
    wrk_gr_run_deinit(&run);
    wrk_gr_release(s, &h);
    wrk_gr_store_free(&s);
    wrk_gr_vocab_free(&few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_near_bounds),    cmocka_unit_test(masks_are_shared),
        cmocka_unit_test(the_store_is_bounded), cmocka_unit_test(what_does_not_fit_is_left_out),
        cmocka_unit_test(refusals_of_a_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
