/* test_sup_cli_set.c - what a person writes behind /set, and what the request then carries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_cmd_chat_set.h"

static int row(const char *name)
{
    struct rc_err err = RC_ERR_INIT;
    int i = sup_chat_set_find(name, strlen(name), &err);

    if (i < 0)
        fail_msg("%s: %s", name, err.msg);
    return i;
}

static char *sent(const struct sup_chat_set *s)
{
    static char b[2048];
    json_t *o = json_object();
    char *text;

    assert_true(sup_chat_set_send(s, o));
    text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(b, sizeof(b), "%s", text);
    free(text);
    json_decref(o);
    return b;
}

static const char *file(const char *name, const char *text)
{
    static char path[4][512];
    static unsigned at;
    char *p = path[at++ % 4];
    FILE *f;

    snprintf(p, 512, "%s/test_sup_cli_set.%ld.%s", TEST_BUILD, (long)getpid(), name);
    f = fopen(p, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    return p;
}

static void a_value_is_sent_as_the_api_spells_it(void **state)
{
    static const struct {
        const char *name, *value, *request, *shown;
    } rows[] = {
        {"temperature", "0.25", "{\"temperature\":0.25}", "0.25"},
        {"top-k", "40", "{\"top_k\":40}", "40"},
        {"TOP_K", "4e1", "{\"top_k\":40}", "40"},
        {"seed", "9007199254740991", "{\"seed\":9007199254740991}", "9007199254740991"},
        {"n", "3", "{\"n\":3}", "3"},
        {"ignore-eos", "on", "{\"ignore_eos\":true}", "on"},
        {"ignore_eos", "false", "{\"ignore_eos\":false}", "off"},
        {"stop", "the end ", "{\"stop\":[\"the end \"]}", "[\"the end \"]"},
        {"stop", "\"\\n\\n\"", "{\"stop\":[\"\\n\\n\"]}", "[\"\\n\\n\"]"},
        {"stop", "[\"a\", \"\\u00e9\"]", "{\"stop\":[\"a\",\"\xc3\xa9\"]}", "[\"a\",\"\\u00E9\"]"},
        {"stop", "\"default\"", "{\"stop\":[\"default\"]}", "[\"default\"]"},
        {"logit_bias", "5:-100, 7:2.5", "{\"logit_bias\":{\"5\":-100.0,\"7\":2.5}}",
         "{\"5\":-100.0,\"7\":2.5}"},
        {"logit_bias", " 2147483647:1e1", "{\"logit_bias\":{\"2147483647\":10.0}}",
         "{\"2147483647\":10.0}"},
        {"regex", "[a-z]+ ", "{\"regex\":\"[a-z]+ \"}", "\"[a-z]+ \""},
        {"response_format", "json", "{\"response_format\":{\"type\":\"json_object\"}}",
         "{\"type\":\"json_object\"}"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_chat_set s = {0};
        struct rc_err err = RC_ERR_INIT;
        char text[64];
        int at = row(rows[i].name);

        assert_string_equal(sup_chat_set_text(&s, at, text), "default");
        if (sup_chat_set_put(&s, at, rows[i].value, &err) != RC_OK)
            fail_msg("%s %s: %s", rows[i].name, rows[i].value, err.msg);
        assert_string_equal(sent(&s), rows[i].request);
        assert_string_equal(sup_chat_set_text(&s, at, text), rows[i].shown);
        assert_int_equal(sup_chat_set_put(&s, at, "default", &err), RC_OK);
        assert_string_equal(sent(&s), "{}");
        sup_chat_set_deinit(&s);
    }
}

static void a_bad_value_is_refused_in_words_and_changes_nothing(void **state)
{
    static const struct {
        const char *name, *value, *why;
    } rows[] = {
        {"temperature", "2.1", "temperature: value '2.1': expected a number from 0 to 2"},
        {"temperature", "", "expected a number"},
        {"temperature", "nan", "expected a number"},
        {"temperature", "0x1", "expected a number"},
        {"temperature", "1 ", "expected a number"},
        {"top_k", "1.5", "top_k: value '1.5': expected a whole number from 0 to 1000000"},
        {"n", "0", "expected a whole number from 1 to 128"},
        {"n", "129", "expected a whole number from 1 to 128"},
        {"ignore_eos", "yes", "ignore_eos: value 'yes': expected on or off"},
        {"stop", "", "stop: value '': expected a text of 1 to 4096 bytes"},
        {"stop", "[]", "expected a text"},
        {"stop", "[\"a\", \"\"]", "expected a text"},
        {"stop", "[\"a\", 3]", "expected a text"},
        {"stop", "[END", "expected a text"},
        {"stop", "\"a\" b", "expected a text"},
        {"stop", "\xff", "expected a text"},
        {"stop", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "at most 16"},
        {"logit_bias", "", "logit_bias: value '': expected at most 1024 pairs ID:X"},
        {"logit_bias", "5", "pairs ID:X"},
        {"logit_bias", "5:", "pairs ID:X"},
        {"logit_bias", "-5:1", "pairs ID:X"},
        {"logit_bias", "5:100.5", "pairs ID:X"},
        {"logit_bias", "5:nan", "pairs ID:X"},
        {"logit_bias", "5:1;6:1", "pairs ID:X"},
        {"logit_bias", "2147483648:1", "pairs ID:X"},
        {"logit_bias", "99999999999999999999:1", "pairs ID:X"},
        {"regex", "", "regex: value '': expected a text"},
        {"regex", "\xff", "expected a text in UTF-8"},
        {"response_format", "/nonexistent/x", "response_format: '/nonexistent/x': No such file"},
        {"grammar", "/dev/null", "grammar: '/dev/null' is no regular file"},
        {"grammar", "", "grammar: name a file"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_chat_set s = {0};
        struct rc_err err = RC_ERR_INIT;
        int at = row(rows[i].name);

        s.v[at] = json_string("before");
        if (sup_chat_set_put(&s, at, rows[i].value, &err) == RC_OK)
            fail_msg("%s '%s' was taken: %s", rows[i].name, rows[i].value, sent(&s));
        if (!strstr(err.msg, rows[i].why))
            fail_msg("%s '%s': got \"%s\", expected \"%s\"", rows[i].name, rows[i].value, err.msg,
                     rows[i].why);
        assert_string_equal(json_string_value(s.v[at]), "before");
        sup_chat_set_deinit(&s);
    }
}

static void lists_have_a_greatest_length(void **state)
{
    struct sup_chat_set s = {0};
    char *b = calloc(1, 20000);
    size_t n = 0;

    for (int i = 0; i < 16; i++)
        n += (size_t)sprintf(b + n, "%c\"s%d\"", i ? ',' : '[', i);
    strcpy(b + n, "]");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_stop, b, NULL), RC_OK);
    strcpy(b + n, ",\"s\"]");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_stop, b, NULL), RC_INVALID);
    memset(b, 'x', 4096);
    b[4096] = '\0';
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_stop, b, NULL), RC_OK);
    strcpy(b + 4096, "x");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_stop, b, NULL), RC_INVALID);
    n = 0;
    for (int i = 0; i < 1024; i++)
        n += (size_t)sprintf(b + n, "%d:1 ", i);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_logit_bias, b, NULL), RC_OK);
    sprintf(b + n, "1024:1");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_logit_bias, b, NULL), RC_INVALID);
    sup_chat_set_deinit(&s);
    free(b);
}

static void files_become_what_they_hold(void **state)
{
    struct sup_chat_set s = {0};
    struct rc_err err = RC_ERR_INIT;
    const char *good = file("schema", "{\"type\": \"object\"}"), *list = file("list", "[1]"),
               *broken = file("broken", "{\n\"a\": }"), *empty = file("empty", "");
    char shown[64];

    assert_int_equal(sup_chat_set_put(&s, SUP_SET_response_format, good, &err), RC_OK);
    assert_string_equal(sent(&s), "{\"response_format\":{\"json_schema\":{\"schema\":{\"type\":"
                                  "\"object\"}},\"type\":\"json_schema\"}}");
    assert_non_null(strstr(sup_chat_set_text(&s, SUP_SET_response_format, shown), " bytes)"));
    assert_true(strlen(shown) < 64);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_response_format, list, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "JSON Schema that is an object"));
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_response_format, broken, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "line 2"));
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_response_format, "default", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_grammar, empty, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "expected a file that is not empty"));
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_grammar, file("gbnf", "root ::= \"a\"\n"), &err),
                     RC_OK);
    assert_string_equal(sent(&s), "{\"grammar\":\"root ::= \\\"a\\\"\\n\"}");
    sup_chat_set_deinit(&s);
    for (const char **p = (const char *[]){"schema", "list", "broken", "empty", "gbnf", NULL}; *p;
         p++)
        assert_int_equal(unlink(file(*p, "")), 0);
}

static void an_answer_has_one_shape_and_it_says_where_it_ends(void **state)
{
    struct sup_chat_set s = {0};
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(sup_chat_set_put(&s, SUP_SET_regex, "a+", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_regex, "b+", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_response_format, "json", &err), RC_INVALID);
    assert_string_equal(err.msg, "response_format: value 'json': expected one shape for an answer; "
                                 "'regex' is set and would have to go");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_ignore_eos, "on", &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "expected no ignore_eos beside a shape ('regex')"));
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_ignore_eos, "off", &err), RC_OK);
    assert_string_equal(sent(&s), "{\"ignore_eos\":false,\"regex\":\"b+\"}");
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_regex, "default", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_ignore_eos, "on", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_ignore_eos, "on", &err), RC_OK);
    assert_int_equal(sup_chat_set_put(&s, SUP_SET_regex, "a", &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "regex: value 'a': expected no ignore_eos beside a shape"));
    sup_chat_set_deinit(&s);
}

static void a_misspelt_name_gets_the_nearest(void **state)
{
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(sup_chat_set_find("temprature", 10, &err), -1);
    assert_string_equal(err.msg, "no setting 'temprature'; did you mean 'temperature'?");
    assert_int_equal(sup_chat_set_find("stops", 5, &err), -1);
    assert_non_null(strstr(err.msg, "'stop'"));
    assert_int_equal(sup_chat_set_find("", 0, &err), -1);
    /* only so much of a name as is told */
    assert_int_equal(sup_chat_set_find("stop=x", 4, &err), SUP_SET_stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_sent_as_the_api_spells_it),
        cmocka_unit_test(a_bad_value_is_refused_in_words_and_changes_nothing),
        cmocka_unit_test(lists_have_a_greatest_length),
        cmocka_unit_test(files_become_what_they_hold),
        cmocka_unit_test(an_answer_has_one_shape_and_it_says_where_it_ends),
        cmocka_unit_test(a_misspelt_name_gets_the_nearest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
