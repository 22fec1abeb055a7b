/* test_wrk_gr_gbnf.c - grammars in llama.cpp's notation. */
#include "worker/gr_test.h"

static const struct gr_case cases[] = {
    {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yesno"}},
    {"# a comment\nroot ::= item (\",\" item)* # and another\nitem ::= [a-z]+ [0-9]?\n",
     {"a", "ab1,c", "x,y,z9"},
     {"", "1", "a,", "a1b"}},
    {"root ::= (\n  \"a\"\n  | \"b\" )+\n", {"a", "ab", "bbb"}, {"", "c"}},
    {"root ::= \"a\" |\n  \"b\"\n", {"a", "b"}, {"ab"}},
    {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
     {"1", "1+2", "(1+(2+3))+4"},
     {"(1", "1+", ")"}},
    {"root ::= list\nlist ::= \"x\" | \"x,\" list",
     {"x", "x,x", "x,x,x,x,x,x,x,x,x,x,x,x"},
     {"x,", ""}},
    {"root ::= \"\\\"\\\\\\n\\t\\x41\\u00e9\\U0001F600\"", {"\"\\\n\tAé😀"}, {"A"}},
    {"root ::= [^\\n\\]] . [\\x00-\\x7f]{2,3}", {"a\nbc", "é😀bcd"}, {"]abc", "\nabc", "abc"}},
    {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,1}", {"aab", "aabbbc"}, {"ab", "aac", "aabcc"}},
    {"root ::= opt opt end?\nopt ::= \"x\"?\nend ::= \"!\"", {"", "x", "xx!", "!"}, {"xxx", "!!"}},
    {"root ::= a-b_1\na-b_1 ::= \"q\"", {"q"}, {""}},
    {"root ::= \"\"", {""}, {"a"}},
    {"root ::= loop | \"ok\"\nloop ::= \"a\" loop", {"ok"}, {"a", "aa"}},
};

static void takes(void **state)
{
    (void)state;
    gr_check_cases(WRK_GR_GBNF, cases, sizeof(cases) / sizeof(cases[0]));
}

static const struct gr_refusal refusals[] = {
    {"", RC_INVALID, "NoRootRule"},
    {"a ::= \"x\"", RC_INVALID, "NoRootRule"},
    {"root ::= b", RC_INVALID, "rule 'b' is used and not defined"},
    {"root ::= \"a", RC_INVALID, "UnexpectedEnd"},
    {"root ::= (\"a\"", RC_INVALID, "UnexpectedEnd"},
    {"root ::= \"a\")", RC_INVALID, "UnexpectedCharacter"},
    {"root \"a\"", RC_INVALID, "ExpectedAssignment"},
    {"root ::= \"a\"\n::= \"b\"", RC_INVALID, "ExpectedRuleName: line 2"},
    {"root ::= \"a\"\nroot ::= \"b\"", RC_INVALID, "DuplicateRule"},
    {"root ::= [b-a]", RC_INVALID, "InvalidRange"},
    {"root ::= \"\\q\"", RC_INVALID, "InvalidEscape"},
    {"root ::= \"\\ud800\"", RC_INVALID, "InvalidEscape"},
    {"root ::= \"a\"{2,1}", RC_INVALID, "InvalidRange"},
    {"root ::= \"a\"{x}", RC_INVALID, "ExpectedNumber"},
    {"root ::= \"a\"{9999999999}", RC_INVALID, "TooLarge"},
    {"root ::= root \"a\" | \"b\"", RC_INVALID, "rule 'root' begins with itself"},
    {"root ::= a\na ::= b?  c\nb ::= \"x\"\nc ::= a \"y\"", RC_INVALID, "begins with itself"},
    {"root ::= \"a\" root", RC_INVALID, "no text satisfies it"},
    {"root ::= a+++++++++++ \na ::= \"x\"", RC_INVALID, "TooLarge"},
};

static void refuses(void **state)
{
    (void)state;
    gr_check_refusals(WRK_GR_GBNF, refusals, sizeof(refusals) / sizeof(refusals[0]));
}

/* Nesting has a limit, and before it only what still can be closed is allowed. */
static void nesting_ends_well(void **state)
{
    static const char grammar[] = "root ::= \"(\" root \")\" | \"[\" pair \"]\" | \"x\"\n"
                                  "pair ::= root \",\" root";
    struct gr_rig r = gr_rig_new();
    struct wrk_gr_held *h = NULL;
    struct wrk_gr_run run;
    struct wrk_gr_mask m;
    unsigned open = 0;

    (void)state;
    assert_int_equal(wrk_gr_hold(r.s, &h, WRK_GR_GBNF, grammar, strlen(grammar), NULL), RC_OK);
    assert_int_equal(wrk_gr_run_init(&run, r.s, h, NULL), RC_OK);
    while (wrk_gr_run_accept(&run, GR_BYTE('('), NULL) == RC_OK)
        open++;
    assert_true(open > 100 && open <= 256);
    for (;;) {
        assert_int_equal(wrk_gr_run_mask(&run, &m, NULL), RC_OK);
        if (wrk_gr_run_must_end(&run))
            break;
        for (int32_t t = 3; t < (int32_t)GR_VOCAB; t++) /* always the last that is allowed */
            if (gr_allowed(&m, t) && t != GR_BYTE('(') && t != GR_BYTE('[') &&
                wrk_gr_run_accept(&run, t, NULL) == RC_OK)
                break;
    }
    assert_int_equal(m.n, 1); /* the end */
    wrk_gr_run_deinit(&run);
    wrk_gr_release(r.s, &h);
    gr_rig_free(&r);
}

static void walks(void **state)
{
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 99;
    char out[8192];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int turn = 0; turn < 6; turn++)
            if (gr_walk(&r, WRK_GR_GBNF, cases[i].grammar, &seed, 50, out, sizeof(out), turn < 2))
                assert_int_equal(gr_try(&r, WRK_GR_GBNF, cases[i].grammar, out), 1);
    gr_rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(nesting_ends_well),
        cmocka_unit_test(walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
