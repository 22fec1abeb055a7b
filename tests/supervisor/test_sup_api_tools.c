/* test_sup_api_tools.c - tools and thinking: fields to a Generate, frames to tool_calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TALK_PATH "/v1/chat/completions"
#include "sup_api_talk.h"
#include "sup_tools.h"

#define F(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define HI "{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TALK(more) \
    "{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}," more "]}"

static void assert_has(const char *part)
{
    if (!strstr(fake_answer(), part)) {
        print_error("answer: %s\nlacks:  %s\n", fake_answer(), part);
        fail();
    }
}

static void test_what_the_worker_is_asked(void **state)
{
    const Ipc__Generate *q;

    (void)state;
    q = asked(HI ",\"tools\":[" F("f") "," F("g") "]}");
    assert_int_equal(q->tool_choice, 0);
    assert_false(q->one_call);
    assert_int_equal(q->tools.len, strlen("[" F("f") "," F("g") "]"));
    assert_memory_equal(q->tools.data, "[" F("f") "," F("g") "]", q->tools.len);
    leave();
    q = asked(
        HI ",\"tools\":[" F("f") "],\"tool_choice\":\"required\",\"parallel_tool_calls\":false}");
    assert_int_equal(q->tool_choice, 1);
    assert_true(q->one_call);
    leave();
    q = asked(HI ",\"tools\":[" F("f") "," F("g") "],\"tool_choice\":" F("g") "}");
    assert_int_equal(q->tool_choice, 2);
    assert_string_equal(q->tool_name, "g");
    leave();
    q = asked(HI ",\"tools\":[" F("f") "],\"tool_choice\":\"none\",\"grammar\":\"json\"}");
    assert_int_equal(q->tools.len, 0);
    assert_int_equal(q->tool_choice, 0);
    leave();
    q = asked(HI
              ",\"tools\":[" F("f") "],\"reasoning_effort\":\"low\",\"response_format\":{\"type\":"
                                    "\"json_object\"}}");
    assert_true(q->thinking && q->grammar_kind == 1 && q->tools.len > 0);
    leave();
    q = asked(HI
              ",\"tools\":[" F("f") "],\"reasoning_effort\":\"low\",\"tool_choice\":\"required\"}");
    assert_true(q->thinking && q->tool_choice == 1);
    leave();
    assert_true(asked(HI ",\"reasoning_effort\":\"low\"}")->thinking);
    leave();
    assert_false(asked(HI ",\"reasoning_effort\":\"minimal\"}")->thinking);
    leave();
    assert_false(asked(HI ",\"reasoning_effort\":\"high\",\"chat_template_kwargs\":"
                          "{\"enable_thinking\":false}}")
                     ->thinking);
    leave();
    q = asked(
        TALK("{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\",\"tool_calls\":"
             "[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
             "\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":"
             "[{\"type\":\"text\",\"text\":\"42\"}]}"));
    assert_int_equal(q->n_messages, 3);
    assert_memory_equal(q->messages[1]->reasoning.data, "hm", 2);
    assert_non_null(strstr((char *)q->messages[1]->tool_calls.data, "\"arguments\":\"{}\""));
    assert_string_equal(q->messages[2]->role, "tool");
    assert_string_equal(q->messages[2]->tool_call_id, "c1");
    assert_memory_equal(q->messages[2]->content.data, "42", 2);
    leave();
}

/* n times c, to be freed. */
static char *times(char c, size_t n)
{
    char *s = malloc(n + 1);

    assert_non_null(s);
    memset(s, c, n);
    s[n] = '\0';
    return s;
}

/* status: 0 = submitted */
static void expect(const char *what, const char *body, unsigned status, const char *part)
{
    unsigned n = T.fleet.n_tickets;

    fake_req_reset();
    fake_post(TALK_PATH, body);
    if ((T.fleet.n_tickets == n + 1) != (status == 0) || (status && T.req.status != status))
        fail_msg("%s: %u %.300s", what, T.req.status, fake_answer());
    if (status)
        assert_has(part);
    else
        leave();
}

static void test_both_sides_of_each_limit(void **state)
{
    const size_t cap = SUP_TOOLS_BYTES + 4096,
                 fixed = strlen("[{\"type\":\"function\",\"function\":"
                                "{\"name\":\"f\",\"description\":\"\"}}]");
    char *body = malloc(cap), *x;

    (void)state;
    assert_non_null(body);
    for (unsigned n = SUP_TOOLS_MAX; n <= SUP_TOOLS_MAX + 1; n++) {
        size_t at = (size_t)snprintf(body, cap, HI ",\"tools\":[");

        for (unsigned i = 0; i < n; i++)
            at += (size_t)snprintf(body + at, cap - at, "%s" F("f%u"), i ? "," : "", i);
        snprintf(body + at, cap - at, "]}");
        expect("tools", body, n > SUP_TOOLS_MAX ? 400 : 0, "at most 128 tools");
    }
    for (unsigned n = SUP_TOOL_NAME; n <= SUP_TOOL_NAME + 1; n++) {
        x = times('f', n);
        snprintf(body, cap, HI ",\"tools\":[" F("%s") "]}", x);
        expect("name", body, n > SUP_TOOL_NAME ? 400 : 0, "1 to 64 letters");
        free(x);
    }
    for (unsigned n = SUP_CALL_ID; n <= SUP_CALL_ID + 1; n++) {
        x = times('c', n);
        snprintf(
            body, cap,
            TALK("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\","
                 "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
                 "\"tool_call_id\":\"%s\",\"content\":\"1\"}"),
            x, x);
        expect("id", body, n > SUP_CALL_ID ? 400 : 0, "1 to 256 bytes");
        free(x);
    }
    for (size_t n = SUP_TOOLS_BYTES; n <= SUP_TOOLS_BYTES + 1; n++) {
        x = times('d', n - fixed);
        snprintf(body, cap,
                 HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                    "\"description\":\"%s\"}}]}",
                 x);
        expect("bytes", body, n > SUP_TOOLS_BYTES ? 400 : 0, "1048576");
        free(x);
    }
    free(body);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *body, *code, *part;
    } rows[] = {
        {HI ",\"tools\":5}", "INVALID_REQUEST", "field 'tools': got 5"},
        {HI ",\"tools\":[5]}", "INVALID_REQUEST", "tools[0].type"},
        {HI ",\"tools\":[{\"type\":\"code\"}]}", "INVALID_REQUEST", "got \\\"code\\\""},
        {HI ",\"tools\":[{\"type\":\"function\"}]}", "INVALID_REQUEST", "tools[0].function.name"},
        {HI ",\"tools\":[" F("f") "," F("a b") "]}", "INVALID_REQUEST", "tools[1].function.name"},
        {HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
         "INVALID_REQUEST", "tools[0].function.parameters"},
        {HI ",\"tool_choice\":\"auto\"}", "INVALID_REQUEST", "'tools' beside it"},
        {HI ",\"tools\":[" F("f") "],\"tool_choice\":\"maybe\"}", "INVALID_REQUEST", "tool_choice"},
        {HI ",\"tools\":[" F("f") "],\"tool_choice\":" F("g") "}", "INVALID_REQUEST",
         "tool_choice.function.name"},
        {HI ",\"tools\":[" F("f") "],\"parallel_tool_calls\":1}", "INVALID_REQUEST",
         "parallel_tool_calls"},
        {HI ",\"tools\":[" F("f") "],\"tool_choice\":\"required\",\"regex\":\"a\"}",
         "UNSUPPORTED_FEATURE", "field 'regex': not supported beside a 'tool_choice'"},
        {HI ",\"tools\":[" F("f") "],\"tool_choice\":" F("f") ",\"response_format\":{\"type\":"
                                                              "\"json_object\"}}",
         "UNSUPPORTED_FEATURE", "field 'response_format'"},
        {HI ",\"functions\":[{}]}", "UNSUPPORTED_FEATURE", "use 'tools'"},
        {TALK("{\"role\":\"tool\",\"content\":\"x\"}"), "INVALID_REQUEST",
         "messages[1].tool_call_id"},
        {TALK("{\"role\":\"function\",\"content\":\"x\"}"), "INVALID_REQUEST", "messages[1].role"},
        {TALK("{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[1]}"), "INVALID_REQUEST",
         "of an assistant's message"},
        {TALK("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"\"}]}"), "INVALID_REQUEST",
         "messages[1].tool_calls[0].id"},
        {TALK("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
              "\"arguments\":5}}]}"),
         "INVALID_REQUEST", "messages[1].tool_calls[0].function.arguments"},
        {TALK("{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":5}"),
         "INVALID_REQUEST", "messages[1].reasoning_content"},
    };
    char word[64];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_post("/ai/v1/chat/completions", rows[i].body);
        if (!T.req.done || T.req.status != 400)
            fail_msg("%s: %u %s", rows[i].body, T.req.status, fake_answer());
        snprintf(word, sizeof(word), "{\"error\":\"%s\"", rows[i].code);
        assert_has(word);
        assert_has(rows[i].part);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
}

static json_t *message(void)
{
    json_t *j = json_loads(fake_answer(), 0, NULL);

    assert_non_null(j);
    return j;
}

static void test_a_whole_answer(void **state)
{
    json_t *j, *m, *calls;

    (void)state;
    asked(HI ",\"tools\":[" F("f") "]}");
    said("h\"m", "", "", "", false, 0);
    said("", "", "f", "{\"a\":", false, 0);
    said("", "", "", "\"x\"}", true, 0);
    said("", "", "g", "{}", true, 0);
    said("", "", "", "", false, 3);
    fake_done(0, 10, 9, 0);
    j = message();
    m = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "message");
    calls = json_object_get(m, "tool_calls");
    assert_true(json_is_null(json_object_get(m, "content")));
    assert_string_equal(json_string_value(json_object_get(m, "reasoning_content")), "h\"m");
    assert_int_equal(json_array_size(calls), 2);
    assert_string_equal(json_string_value(json_object_get(
                            json_object_get(json_array_get(calls, 0), "function"), "arguments")),
                        "{\"a\":\"x\"}");
    assert_string_not_equal(json_string_value(json_object_get(json_array_get(calls, 0), "id")),
                            json_string_value(json_object_get(json_array_get(calls, 1), "id")));
    assert_has("\"finish_reason\":\"tool_calls\"");
    json_decref(j);
}

/* Pieces that a worker gone wrong might send never break the JSON. */
static void test_broken_calls_stay_json(void **state)
{
    (void)state;
    asked(HI ",\"tools\":[" F("f") "]}");
    said("", "", "", "lost", false, 0);
    said("", "", "f", "{", false, 0);
    said("", "", "g", "", false, 0);
    said("", "", "", "", false, 1);
    fake_done(0, 10, 9, 0);
    json_decref(message());
    assert_has("\"name\":\"g\"");
    assert_null(strstr(fake_answer(), "lost"));
}

static void assert_in_order(const char *const *want)
{
    const char *p = fake_answer();

    for (; *want; want++) {
        if (!(p = strstr(p, *want)))
            fail_msg("%s\nlacks, in this order: %s", fake_answer(), *want);
        p += strlen(*want);
    }
}

static void test_a_stream(void **state)
{
    (void)state;
    asked(HI ",\"stream\":true,\"tools\":[" F("f") "]}");
    said("hm", "", "", "", false, 0);
    said("", "", "f", "{\"a\":", false, 0);
    said("", "", "", "1}", true, 0);
    said("", "", "g", "{}", true, 0);
    said("", "", "", "", false, 3);
    fake_done(0, 10, 9, 0);
    assert_in_order((const char *const[]){
        "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
        "\"delta\":{\"reasoning_content\":\"hm\"}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_",
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":"
        "\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"call_",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]}",
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"", "data: [DONE]", NULL});
}

/* What was sent of a call that is none stays, without its end; its text is content. */
static void test_a_void_call_in_a_stream(void **state)
{
    (void)state;
    asked(HI ",\"stream\":true,\"tools\":[" F("f") "]}");
    said("", "", "f", "{\"a\":", false, 0);
    said_void("<|tool_call>call:f{a:x");
    said("", "}", "", "", false, 0);
    said("", "", "g", "{}", true, 0);
    said("", "", "", "", false, 3);
    fake_done(0, 10, 9, 0);
    assert_in_order((const char *const[]){
        "\"name\":\"f\",\"arguments\":\"\"",
        "{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\"}}",
        "\"delta\":{\"content\":\"<|tool_call>call:f{a:x\"}", "\"delta\":{\"content\":\"}\"}",
        "{\"index\":1,\"id\":\"call_", "{\"index\":1,\"function\":{\"arguments\":\"{}\"}}",
        "\"finish_reason\":\"tool_calls\"", NULL});
}

/* Told whole there is nothing of it, though a worker gone wrong had sent it in pieces. */
static void test_a_void_call_in_a_whole_answer(void **state)
{
    json_t *j, *m;

    (void)state;
    asked(HI ",\"tools\":[" F("f") "]}");
    said("", "", "f", "{}", true, 0);
    said("", "", "g", "{\"a\":", false, 0);
    said_void("text");
    said("", "", "", "", false, 3);
    fake_done(0, 10, 9, 0);
    j = message();
    m = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "message");
    assert_int_equal(json_array_size(json_object_get(m, "tool_calls")), 1);
    assert_string_equal(json_string_value(json_object_get(m, "content")), "text");
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_the_worker_is_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_both_sides_of_each_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_whole_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_calls_stay_json, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_void_call_in_a_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_void_call_in_a_whole_answer, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
