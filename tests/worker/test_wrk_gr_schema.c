/* test_wrk_gr_schema.c - JSON Schema: which texts a schema takes, what is refused. */
#include "worker/gr_test.h"

#include <jansson.h>
#include <time.h>

static const struct gr_case cases[] = {
    {"{}",
     {"1", "\"a\"", "null", "true", "[]", "{}", "[1, {\"a\":[]}]", "-0.5e+3"},
     {"", " 1", "01", "nul", "[1,]", "{\"a\"}", "1 "}},
    {"true", {"{}"}, {"{"}},
    {"{\"type\":\"object\"}",
     {"{}", "{\"a\":1}", "{ \"a\": 1, \"b\":[2]\n }", "{\n\t\"x\": \"\"}"},
     {"[]", "{,}", "{\"a\":1,}", "{\"a\" :1}", "1"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "True"}},
    {"{\"type\":[\"string\",\"null\"]}", {"null", "\"x\""}, {"1", "{}"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"\\u00e9\\ud83d\\ude00\\n\\/\"", "\"日本\""},
     {"\"\\u0000\"", "\"\\ud83d\"", "\"\\x\"", "\"\n\"", "\"a", "\"\xff\"", "\"\xed\xa0\x80\""}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"日本語\"", "\"\\n\\u00e9\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\":\"string\",\"minLength\":200,\"maxLength\":1000000000}", {NULL}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\\d$\"}",
     {"\"a1\"", "\"abc9\""},
     {"\"1\"", "\"a1x\"", "\"A1\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\\\"\\\\n\"}",
     {"\"ab\\\"\\nc\"", "\"b\\\"\\n\""},
     {"\"b\"", "\"b\\\"n\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.5+02:00\""},
     {"\"2024-01-01\"", "\"2024-01-01T24:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"0.0.0.0\"", "\"255.249.10.99\""},
     {"\"256.1.1.1\"", "\"01.1.1.1\"", "\"1.1.1\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::\"", "\"1::2\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"1:2\"", "\":::\"", "\"1:2:3:4:5:6:7:8:9\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}",
     {"\"a.b@example.org\""},
     {"\"a\"", "\"@b.c\"", "\"a@b\""}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345678"},
     {"-0", "1.0", "01", "1e3", "1234567890123456789"}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
     {"-12", "-1", "0", "9", "10", "99", "100", "105"},
     {"-13", "106", "-100", "1000", "110"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":11}",
     {"10"},
     {"9", "11", "1", "100"}},
    {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
     {"9007199254740991", "-9007199254740991", "0"},
     {"9007199254740992", "-9007199254740992"}},
    {"{\"type\":\"integer\",\"minimum\":1.5}", {"2", "100"}, {"1", "0", "-2"}},
    {"{\"type\":\"integer\",\"maximum\":-5}", {"-5", "-6", "-10", "-99"}, {"-4", "0", "5"}},
    {"{\"type\":\"number\"}", {"0", "-0.5", "1e10", "3.25E-2"}, {".5", "1.", "+1", "1e100"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "0.000001", "1.0", "0.0"},
     {"1.1", "-0.1", "2", "1.01", "-1"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}",
     {"1", "0.5", "0.001", "10.25"},
     {"0", "0.0", "-1", "0.000"}},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":2.5}",
     {"-1.25", "-1.20", "-1", "0", "2", "2.49", "2.4999", "-0.75", "1.00"},
     {"2.5", "2.50", "-1.26", "-1.251", "3", "2.6"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-3,\"maximum\":-1}",
     {"-1", "-2.999", "-2", "-1.5"},
     {"-3", "-3.0", "-0.9", "0", "1"}},
    /* bounds, values and merges beyond what a double tells apart */
    {"{\"type\":\"integer\",\"minimum\":9007199254740992,\"allOf\":[{\"minimum\":9007199254740993}]"
     "}",
     {"9007199254740993", "9007199254740994"},
     {"9007199254740992"}},
    {"{\"type\":\"integer\",\"maximum\":9007199254740993,\"allOf\":[{\"maximum\":9007199254740992}]"
     "}",
     {"9007199254740992", "0"},
     {"9007199254740993"}},
    {"{\"enum\":[9007199254740992,9007199254740993,9007199254740994],\"minimum\":9007199254740993}",
     {"9007199254740993", "9007199254740994"},
     {"9007199254740992"}},
    {"{\"enum\":[9007199254740992,9007199254740993],\"exclusiveMaximum\":9007199254740993}",
     {"9007199254740992"},
     {"9007199254740993"}},
    {"{\"enum\":[1,2.5,[1]],\"allOf\":[{\"enum\":[1.0,[1.0],2.5]}]}", {"1", "2.5", "[1]"}, {"2"}},
    {"{\"type\":\"integer\",\"enum\":[3.0,3.5,1e300]}", {"3", "1e+300"}, {"3.5"}},
    {"{\"const\":{\"a\":[1,\"x\"]}}", {"{\"a\":[1,\"x\"]}"}, {"{}"}},
    {"{\"enum\":[\"red\",\"reed\",1,null,0.1]}",
     {"\"red\"", "\"reed\"", "1", "null", "0.1"},
     {"\"re\"", "2", "0.10000000000000001"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     ",\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"a\":1,\"b\":\"\"}", "{\"b\":\"x\",\"c\":null}", "{\"b\":\"\"}",
      "{ \"a\": 2, \"b\": \"\", \"c\": null }"},
     {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",\"d\":1}", "{\"a\":\"x\",\"b\":\"\"}",
      "{\"b\":\"\",}"}},
    {"{\"properties\":{\"a\":{},\"ab\":{}},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"a\":\"x\"}", "{\"b\":1}", "{\"a\":null,\"abc\":2,\"\":3}", "{\"ac\":1}",
      "{\"ab\":[],\"a \":1}"},
     {"{\"b\":\"x\"}", "{\"x\":1,\"a\":\"y\"}", "{\"\\u0061\":1}", "{\"a\":1,\"a\":2}",
      "{\"a\":1,\"ab\":2,\"ab\":3}"}},
    {"{\"type\":\"object\",\"required\":[\"z\"],\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"z\":1}"},
     {"{}", "{\"z\":\"\"}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1, 2,3]", "[ 1 ]"},
     {"[]", "[1,2,3,4]", "[1 ,2]", "[\"a\"]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":0}",
     {"[]", "[ ]"},
     {"[1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":"
     "{\"type\":\"null\"}}",
     {"[1,\"a\"]", "[1,\"a\",null,null]"},
     {"[1]", "[1,\"a\",1]", "[\"a\"]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false}",
     {"[1]"},
     {"[1,2]", "[]"}},
    {"{\"type\":\"array\",\"minItems\":2}", {"[1,\"a\"]"}, {"[1]", "[]"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"a\""}, {"null"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"integer\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
     {"{}"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"x\"},\"v\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\",\"v\"]},{\"type\":\"object\",\"properties\":{\"k\":{"
     "\"const\":\"y\"}},\"required\":[\"k\"]}]}",
     {"{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\"}"},
     {"{\"k\":\"x\"}", "{\"k\":\"z\"}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},"
     "\"required\":[\"a\"]},{\"properties\":{\"a\":{\"maximum\":4,\"type\":\"number\"},\"b\":{}}}]"
     "}",
     {"{\"a\":3}", "{\"a\":4,\"b\":[]}"},
     {"{\"a\":5}", "{}", "{\"a\":3.5}"}},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":"
     "{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/n\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "null", "{\"v\":1,\"next\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
    {"{\"type\":\"object\",\"properties\":{\"self\":{\"$ref\":\"#\",\"description\":\"again\"}}}",
     {"{}", "{\"self\":{\"self\":{}}}"},
     {"{\"self\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a/b\":{\"$ref\":\"#/$defs/x~1y\"}},\"$defs\":{\"x/"
     "y\":{\"type\":\"null\"}},\"required\":[\"a/b\"]}",
     {"{\"a/b\":null}"},
     {"{\"a/b\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"q\\\"\\n\":{\"type\":\"null\"}},\"required\":["
     "\"q\\\"\\n\"]}",
     {"{\"q\\\"\\n\":null}"},
     {"{}"}},
    {"{\"minLength\":2,\"title\":\"no type: strings\",\"x-mine\":1}", {"\"ab\""}, {"\"a\"", "1"}},
};

static void takes(void **state)
{
    (void)state;
    gr_check_cases(WRK_GR_SCHEMA, cases, sizeof(cases) / sizeof(cases[0]));
}

static const struct gr_refusal refusals[] = {
    {"{", RC_INVALID, "InvalidSchema"},
    {"3", RC_INVALID, "expected an object or true or false"},
    {"false", RC_INVALID, "no text satisfies it"},
    {"{\"type\":\"int\"}", RC_INVALID, "type 'int'"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"minLenght\":1}}}", RC_UNSUPPORTED,
     "schema at #/properties/a: keyword 'minLenght' is not known"},
    {"{\"not\":{}}", RC_UNSUPPORTED, "keyword 'not' is not supported"},
    {"{\"type\":\"array\",\"uniqueItems\":true}", RC_UNSUPPORTED, "uniqueItems"},
    {"{\"type\":\"array\",\"items\":[{}]}", RC_UNSUPPORTED, "prefixItems"},
    {"{\"type\":\"array\",\"minItems\":1000000000}", RC_TOO_LARGE, "'minItems' is 1000000000"},
    {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", RC_INVALID, "'minItems' is 3"},
    {"{\"type\":\"string\",\"minLength\":-1}", RC_INVALID, "minLength"},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}", RC_INVALID, "'minLength' is 2"},
    {"{\"type\":\"string\",\"minLength\":2,\"pattern\":\"a\"}", RC_UNSUPPORTED, "together"},
    {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", RC_UNSUPPORTED, "lookaround"},
    {"{\"type\":\"string\",\"format\":\"iri\"}", RC_UNSUPPORTED, "format 'iri'"},
    {"{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", RC_INVALID, "between the bounds"},
    {"{\"type\":\"integer\",\"multipleOf\":5}", RC_UNSUPPORTED, "multipleOf"},
    {"{\"type\":\"number\",\"minimum\":0.12345678}", RC_UNSUPPORTED, "6 decimals"},
    {"{\"enum\":[]}", RC_INVALID, "'enum' must be"},
    {"{\"enum\":[9007199254740993,1e20],\"minimum\":1}", RC_UNSUPPORTED, "1e+20 is compared"},
    {"{\"enum\":[9007199254740993],\"maximum\":9007199254740993.0}", RC_UNSUPPORTED, "beyond 2^53"},
    {"{\"type\":\"integer\",\"maximum\":9007199254740995.0}", RC_UNSUPPORTED,
     "a bound of 9007199254740996"},
    {"{\"allOf\":[{\"properties\":false},{\"properties\":{\"b\":{}}}]}", RC_INVALID,
     "'properties' must be an object"},
    {"{\"enum\":[1],\"minimum\":\"0\"}", RC_INVALID, "a bound must be a number"},
    {"{\"type\":\"integer\",\"minimum\":\"0\",\"allOf\":[{\"minimum\":1}]}", RC_INVALID,
     "a bound must be a number"},
    {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", RC_UNSUPPORTED, "alternative 0 of 'oneOf'"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"const\":1e17}]}", RC_UNSUPPORTED, "'oneOf'"},
    {"{\"type\":\"integer\",\"enum\":[\"a\"]}", RC_INVALID, "no value of 'enum'"},
    {"{\"enum\":[\"a\"],\"pattern\":\"b\"}", RC_UNSUPPORTED, "beside 'enum'"},
    {"{\"$ref\":\"#\"}", RC_INVALID, "begins with itself"},
    {"{\"$ref\":\"#/$defs/x\"}", RC_INVALID, "leads nowhere"},
    {"{\"$ref\":\"http://x/y\"}", RC_UNSUPPORTED, "inside the schema"},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", RC_INVALID, "begins with itself"},
    {"{\"allOf\":[{\"$ref\":\"#\"}]}", RC_UNSUPPORTED, "without end"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     RC_INVALID, "never ends"},
    {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", RC_UNSUPPORTED,
     "both have 'pattern'"},
    {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
     "\"b\":{}}}]}",
     RC_UNSUPPORTED, "additionalProperties"},
    {"{\"allOf\":[{\"prefixItems\":[{}]},{\"items\":{\"type\":\"null\"}}]}", RC_UNSUPPORTED,
     "both have 'items'"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", RC_UNSUPPORTED, "oneOf"},
    {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", RC_INVALID,
     "property 'a' is required"},
    {"{\"type\":\"object\",\"minProperties\":2}", RC_UNSUPPORTED, "minProperties"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":1}", RC_UNSUPPORTED,
     "maxProperties"},
};

static void refuses(void **state)
{
    (void)state;
    gr_check_refusals(WRK_GR_SCHEMA, refusals, sizeof(refusals) / sizeof(refusals[0]));
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Texts that cost other compilers a stack, a heap or minutes. */
static void hostile(void **state)
{
    size_t cap = 1u << 20, at;
    char *s = malloc(cap + 64);
    struct wrk_gr_prog *p = NULL;
    struct rc_err err;
    double from;

    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        at = 0;
        if (kind == 0) /* depth */
            while (at + 20 < cap)
                at += (size_t)sprintf(s + at, "{\"items\":");
        if (kind == 1) { /* a large enum is one trie */
            at = (size_t)sprintf(s, "{\"enum\":[");
            for (int i = 0; i < 20000; i++)
                at += (size_t)sprintf(s + at, "%s\"v%d\"", i > 0 ? "," : "", i);
            at += (size_t)sprintf(s + at, "]}");
        }
        if (kind == 2) { /* too large */
            at = (size_t)sprintf(s, "{\"enum\":[");
            for (int i = 0; i < 50000; i++)
                at += (size_t)sprintf(s + at, "%s\"%d-value\"", i > 0 ? "," : "", i * 7919);
            at += (size_t)sprintf(s + at, "]}");
        }
        if (kind == 3) { /* 400 properties that may be left out */
            at = (size_t)sprintf(s, "{\"properties\":{");
            for (int i = 0; i < 400; i++)
                at += (size_t)sprintf(s + at, "%s\"p%d\":{}", i > 0 ? "," : "", i);
            at += (size_t)sprintf(s + at, "}}");
        }
        if (kind == 4) { /* references that double */
            at = (size_t)sprintf(s, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
            for (int i = 0; i < 40; i++)
                at += (size_t)sprintf(s + at,
                                      "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":"
                                      "\"#/$defs/d%d\"}]},",
                                      i, i + 1, i + 1);
            at += (size_t)sprintf(s + at, "\"d40\":{\"type\":\"null\"}}}");
        }
        if (kind == 5) { /* parts of one list, which may not become levels */
            at = (size_t)sprintf(s, "{\"allOf\":[{\"items\":{}}");
            for (int i = 0; i < 87000; i++)
                at += (size_t)sprintf(s + at, ",{\"items\":%d}", i % 10);
            at += (size_t)sprintf(s + at, "]}");
        }
        if (kind == 6) { /* values to be compared with each other */
            at = (size_t)sprintf(s, "{\"allOf\":[");
            for (int k = 0; k < 2; k++) {
                at += (size_t)sprintf(s + at, "%s{\"enum\":[0", k > 0 ? "," : "");
                for (int i = 0; i < 60000; i++)
                    at += (size_t)sprintf(s + at, ",%d", 2 * i + k);
                at += (size_t)sprintf(s + at, "]}");
            }
            at += (size_t)sprintf(s + at, "]}");
        }
        if (kind == 7) { /* one property, in many parts */
            at = (size_t)sprintf(s, "{\"allOf\":[{}");
            for (int i = 0; i < 24000; i++)
                at += (size_t)sprintf(s + at, ",{\"properties\":{\"a\":{\"maxLength\":%d}}}", i);
            at += (size_t)sprintf(s + at, "]}");
        }
        err = (struct rc_err)RC_ERR_INIT;
        from = seconds();
        if (wrk_gr_compile(&p, WRK_GR_SCHEMA, s, at, &err) == RC_OK) {
            assert_true(kind == 1 || kind == 3);
            assert_true(wrk_gr_prog_bytes(p) < 32u << 20);
            wrk_gr_prog_free(&p);
        } else {
            assert_true(kind != 1);
            assert_true(err.code == RC_TOO_LARGE || err.code == RC_UNSUPPORTED);
        }
        print_message("hostile schema %d: %.0f ms %s\n", kind, (seconds() - from) * 1e3, err.msg);
    }
    free(s);
}

/* Random answers are JSON that jansson reads, whatever the walk; masks equal trials. */
static void walks(void **state)
{
    struct gr_rig r = gr_rig_new();
    uint64_t seed = 88172645463325252ull;
    unsigned whole = 0, cut = 0;
    char out[8192];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int turn = 0; turn < 12; turn++) {
            json_error_t why;
            json_t *v;

            if (!gr_walk(&r, WRK_GR_SCHEMA, cases[i].grammar, &seed, 60, out, sizeof(out),
                         turn == 0)) {
                cut++;
                continue;
            }
            whole++;
            v = json_loads(out, JSON_DECODE_ANY, &why);
            if (v == NULL)
                fail_msg("%s made '%s': %s", cases[i].grammar, out, why.text);
            json_decref(v);
            assert_int_equal(gr_try(&r, WRK_GR_SCHEMA, cases[i].grammar, out), 1);
        }
    print_message("%u whole, %u cut\n", whole, cut);
    assert_true(whole > cut);
    gr_rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(hostile),
        cmocka_unit_test(walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
