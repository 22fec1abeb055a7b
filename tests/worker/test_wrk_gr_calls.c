/* test_wrk_gr_calls.c - grammars of tool calls, and of answers that have thoughts, calls and
 * other grammars as parts: what they take, and that what comes out of them is what the
 * parser of answers reads. In texts Q is a quote mark, E a call's end, B the begin of one,
 * T and U the begin and end of a thought.
 */
#include "worker/gr_test.h"

#include <jansson.h>

#include "worker/call_ref.h"

#define Q "\xfd"
#define E "\xfb"
#define B "\xfa"
#define T  \
    "\xf8" \
    "thought\n"
#define U "\xf9"
#define F_A "[" TOOL("f", OBJ("\"a\":{\"type\":\"integer\"}")) "]"
#define X_OBJ \
    "{\"type\":\"object\",\"required\":[\"x\"],\"properties\":{\"x\":{\"type\":\"boolean\"}}}"
#define TOOL(name, params) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":" params "}}"
#define OBJ(props) "{\"type\":\"object\",\"properties\":{" props "},\"required\":[\"a\"]}"
#define ONE(params) "1c0\n[" TOOL("f", params) "]"

static const struct gr_case cases[] = {
    {ONE("{}"), {"call:f{}" E}, {"call:f{}", "call:f{a:1}" E, "call:g{}" E, "f{}" E}},
    {ONE("null"), {"call:f{}" E}, {"call:f{ }" E}},
    {"1c0\n[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", {"call:f{}" E}, {"call:f" E}},
    {ONE(OBJ("\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}")),
     {"call:f{a:1}" E, "call:f{a:-12,b:" Q "x \"\\\n\xc3\xa9" Q "}" E, "call:f{a:0,b:" Q Q "}" E},
     {"call:f{}" E, "call:f{a: 1}" E, "call:f{\"a\":1}" E, "call:f{a:1,b:\"x\"}" E,
      "call:f{a:1,b:" Q "x}" E, "call:f{b:" Q Q ",a:1}" E, "call:f{a:1.5}" E}},
    {ONE(OBJ("\"a\":{\"enum\":[\"x\",\"y z\",1,null,{\"k l\":[true,2]},[]]}")),
     {"call:f{a:" Q "x" Q "}" E, "call:f{a:" Q "y z" Q "}" E, "call:f{a:1}" E, "call:f{a:null}" E,
      "call:f{a:{" Q "k l" Q ":[true,2]}}" E, "call:f{a:[]}" E},
     {"call:f{a:x}" E, "call:f{a:2}" E}},
    {ONE(OBJ("\"a\":{\"type\":\"string\",\"maxLength\":2}")),
     {"call:f{a:" Q "\xc3\xa9\xc3\xa9" Q "}" E, "call:f{a:" Q "\"\"" Q "}" E},
     {"call:f{a:" Q "abc" Q "}" E}},
    {ONE(OBJ("\"a\":{\"type\":\"string\",\"pattern\":\"^a\\\"+$\"}")),
     {"call:f{a:" Q "a\"\"" Q "}" E},
     {"call:f{a:" Q "a\\\"" Q "}" E, "call:f{a:" Q "a" Q "}" E}},
    {ONE(OBJ("\"a\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"maxItems\":2}")),
     {"call:f{a:[]}" E, "call:f{a:[true,false]}" E},
     {"call:f{a:[true, false]}" E, "call:f{a:[true,true,true]}" E}},
    {ONE(OBJ("\"a\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}")),
     {"call:f{a:{}}" E, "call:f{a:{" Q "k" Q ":1.5e3}}" E},
     {"call:f{a:{k:" Q Q "}}" E}},
    {ONE("{\"properties\":{\"a b\":{\"const\":1}},\"required\":[\"a b\"]}"),
     {"call:f{" Q "a b" Q ":1}" E},
     {"call:f{a b:1}" E, "call:f{}" E}},
    {ONE("{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/t\"}}}},"
         "\"type\":\"object\",\"properties\":{\"t\":{\"$ref\":\"#/$defs/t\"}}}"),
     {"call:f{}" E, "call:f{t:{a:{a:{}}}}" E},
     {"call:f{t:1}" E}},
    {"1c0\n[" TOOL("f", "{}") "," TOOL("g", "{}") "]",
     {"call:f{}" E, "call:g{}" E},
     {"call:f{}" E B "call:g{}" E, "call:h{}" E}},
    {"1c0g\n[" TOOL("f", "{}") "," TOOL("g", "{}") "]", {"call:g{}" E}, {"call:f{}" E}},
    {"*c0\n[" TOOL("f", "{}") "," TOOL("g", "{}") "]",
     {"call:f{}" E, "call:f{}" E B "call:g{}" E B "call:f{}" E},
     {"call:f{}" E "call:g{}" E, "call:f{}" E B}},
};

static void takes(void **state)
{
    (void)state;
    gr_check_cases(WRK_GR_TALK, cases, sizeof(cases) / sizeof(cases[0]));
}

/* A thought first, calls or a text behind it. */
static const struct gr_case talks[] = {
    /* a call that must be, thought about or not */
    {"1t0\n" F_A,
     {B "call:f{a:1}" E, T "hm \"}\n\xe6\x97\xa5" U B "call:f{a:1}" E, T U B "call:f{a:-3}" E},
     {"call:f{a:1}" E, T "hm", T "hm" U, T "hm" U "call:f{a:1}" E, T "hm" B "call:f{a:1}" E,
      T "a" U T "b" U B "call:f{a:1}" E, T "a" U "\n" B "call:f{a:1}" E, "x" B "call:f{a:1}" E,
      T "a" U B "call:f{a:x}" E, B "call:f{a:1}" E "x"}},
    {"*i0\n" F_A,
     {"hm" U B "call:f{a:1}" E, U B "call:f{a:1}" E B "call:f{a:2}" E},
     {B "call:f{a:1}" E, T "hm" U B "call:f{a:1}" E, "hm" U}},
    /* a text of a shape, thought about or not */
    {"-t2\n\n" X_OBJ,
     {"{\"x\":true}", T "{\"x\":" U "{\"x\":false}", T U "{ \"x\": true }"},
     {T "a" U, T "a" U "b", "{\"x\":1}", T "a{\"x\":true}", B "call:f{}" E, ""}},
    {"-t1\n\n", {"{}", T "a" U "{\"k\":[1]}"}, {T "a" U "[]", T U}},
    {"-i1\n\n", {U "{}", "a" U "{}"}, {"{}", T U "{}"}},
    {"-t3\n\nroot ::= call\ncall ::= \"yes\" | \"no\"",
     {"yes", T "?" U "no"},
     {T U, "maybe", T "?" U "maybe"}},
    {"-t4\n\n[a-c]+", {"abc", T "d" U "a"}, {"d", T "a" U, T "a" U "d"}},
    /* calls or a text of a shape */
    {"*n2\n" F_A "\n" X_OBJ,
     {"{\"x\":true}", B "call:f{a:1}" E, B "call:f{a:1}" E B "call:f{a:2}" E},
     {"{\"x\":true}" B "call:f{a:1}" E, B "call:f{a:1}" E "{\"x\":true}", "call:f{a:1}" E,
      T "a" U "{\"x\":true}", "{\"x\":1}", B "call:f{x:true}" E, ""}},
    {"1t2\n" F_A "\n" X_OBJ,
     {"{\"x\":true}", B "call:f{a:1}" E, T "a" U "{\"x\":true}", T "a" U B "call:f{a:1}" E},
     {B "call:f{a:1}" E B "call:f{a:2}" E, T "a" U}},
    /* names of one part mean nothing in another */
    {"1n3\n" F_A "\nroot ::= value\nvalue ::= \"v\" call\ncall ::= \"c\"",
     {"vc", B "call:f{a:1}" E},
     {"v1", "vcall:f{a:1}" E}},
    /* strings are JSON's in one and raw in the other */
    {"1n2\n[" TOOL(
         "f",
         OBJ("\"a\":{\"type\":\"string\",\"pattern\":\"^\\\"+$\"}")) "]\n"
                                                                     "{\"type\":\"string\","
                                                                     "\"pattern\":\"^\\\"+$\"}",
     {"\"\\\"\"", B "call:f{a:" Q "\"\"" Q "}" E},
     {"\"\"\"", B "call:f{a:" Q "\\\"" Q "}" E}},
};

static void takes_parts(void **state)
{
    (void)state;
    gr_check_cases(WRK_GR_TALK, talks, sizeof(talks) / sizeof(talks[0]));
}

static void refuses(void **state)
{
    static const struct gr_refusal refusals[] = {
        {"", RC_INVALID, "no head"},
        {"2c0\n[]", RC_INVALID, "no head"},
        {"-n0\n", RC_INVALID, "no head"},            /* no part at all */
        {"-c2\n\n{}", RC_INVALID, "no head"},        /* behind a call's mark, and no calls */
        {"1c2\n" F_A "\n{}", RC_INVALID, "no head"}, /* there a text cannot stand */
        {"1x0\n" F_A, RC_INVALID, "no head"},
        {"1t5\n" F_A, RC_INVALID, "no head"},
        {"1t0", RC_INVALID, "no head"},
        {"-t2\n\n{\"not\":{}}", RC_UNSUPPORTED, "keyword 'not'"},
        {"-t3\n\nx ::= \"a\"", RC_INVALID, "NoRootRule"},
        {"1c0\n{", RC_INVALID, "InvalidSchema"},
        {"1c0\n[]", RC_INVALID, "none of the tools"},
        {"1c0h\n[" TOOL("f", "{}") "]", RC_INVALID, "none of the tools is called 'h'"},
        {"1c0\n[{\"function\":{}}]", RC_INVALID, "tools[0] has no name"},
        {ONE("{\"type\":\"string\"}"), RC_INVALID, "must have type 'object'"},
        {ONE("5"), RC_INVALID, "must have type 'object'"},
        {ONE(OBJ("\"a\":{\"not\":{}}")), RC_UNSUPPORTED,
         "#/tools/0/function/parameters/properties/a: keyword 'not'"},
    };

    (void)state;
    gr_check_refusals(WRK_GR_TALK, refusals, sizeof(refusals) / sizeof(refusals[0]));
}

static void a_refusal_names_the_field(void **state)
{
    static const struct {
        const char *text, *field;
    } rows[] = {
        {"1t2\n" F_A "\n{\"not\":{}}", "response_format.json_schema.schema"},
        {"1t3\n" F_A "\n(", "grammar"},
        {"1t4\n" F_A "\n(", "regex"},
        {"1t2\n[" TOOL("f", "{\"type\":\"array\"}") "]\n" X_OBJ, "tools"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct wrk_gr_prog *p = NULL;

        assert_int_not_equal(
            wrk_gr_compile(&p, WRK_GR_TALK, rows[i].text, strlen(rows[i].text), &err), RC_OK);
        assert_string_equal(err.what, rows[i].field);
    }
}

static void on_json(void *user, const char *s, size_t n)
{
    strncat(user, s, n);
}

/* Other grammars never take a mark. */
static void marks_are_of_calls_alone(void **state)
{
    struct gr_rig r = gr_rig_new();

    (void)state;
    for (const char *m = E B Q; *m != '\0'; m++) {
        const char text[2] = {*m, '\0'};
        char in[4] = {'"', *m, '"', '\0'};

        assert_int_equal(gr_try(&r, WRK_GR_REGEX, ".*", text), -1);
        assert_int_equal(gr_try(&r, WRK_GR_REGEX, "[^a]", text), -1);
        assert_int_equal(gr_try(&r, WRK_GR_GBNF, "root ::= [^a]*", text), -1);
        assert_int_equal(gr_try(&r, WRK_GR_SCHEMA, "{\"type\":\"string\"}", in), -1);
    }
    assert_int_equal(
        gr_try(&r, WRK_GR_TALK, ONE(OBJ("\"a\":{\"type\":\"string\"}")), "call:f{a:" Q "x" E), -1);
    gr_rig_free(&r);
}

static void what_is_written_is_read(void **state)
{
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 424242;
    char out[8192], json[65536];
    unsigned whole = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int turn = 0; turn < 8; turn++) {
            char *end;

            if (!gr_walk(&r, WRK_GR_TALK, cases[i].grammar, &seed, 200, out, sizeof(out), turn < 2))
                continue;
            whole++;
            for (char *at = out; *at != '\0'; at = end + 1 + (end[1] == B[0])) {
                size_t name = 0, n_name = 0, body = 0, n_body = 0;
                json_t *j;

                assert_non_null(end = strchr(at, E[0]));
                assert_true(call_ref_split(at, (size_t)(end - at), &name, &n_name, &body, &n_body));
                json[0] = '\0';
                if (call_ref_json(at + body, n_body, on_json, json) == 0)
                    fail_msg("not read: %s", at);
                assert_non_null(j = json_loads(json, 0, NULL));
                assert_true(json_is_object(j));
                json_decref(j);
            }
        }
    assert_true(whole > 40);
    gr_rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),
        cmocka_unit_test(takes_parts),
        cmocka_unit_test(a_refusal_names_the_field),
        cmocka_unit_test(refuses),
        cmocka_unit_test(marks_are_of_calls_alone),
        cmocka_unit_test(what_is_written_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
