/* test_sup_api_responses.c - items to messages, frames to a response and its events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TALK_PATH "/v1/responses"
#include "sup_api_talk.h"

#define IN(input) "{\"model\":\"gemma\",\"input\":" input "}"
#define HI "{\"model\":\"gemma\",\"input\":\"hi\""
#define TOOL "{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"

static void assert_text(const ProtobufCBinaryData *b, const char *want)
{
    assert_int_equal(b->len, strlen(want));
    assert_memory_equal(b->data, want, b->len);
}

static void test_items_become_messages(void **state)
{
    const Ipc__Generate *q;

    (void)state;
    q = asked(HI ",\"instructions\":\"be brief\",\"max_output_tokens\":7,\"temperature\":0.5}");
    assert_int_equal(q->n_messages, 2);
    assert_string_equal(q->messages[0]->role, "system");
    assert_text(&q->messages[0]->content, "be brief");
    assert_text(&q->messages[1]->content, "hi");
    assert_int_equal(q->max_tokens, 7);
    assert_true(q->sampling->temperature == 0.5f);
    leave();
    q = asked(
        IN("[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},"
           "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
           "\"text\":\"hm\"}]},"
           "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
           "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":\"{}\"},"
           "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"1\"},"
           "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":\"2\"},"
           "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
           "\"text\":\"b\",\"annotations\":[]}]}]"));
    assert_int_equal(q->n_messages, 5);
    assert_text(&q->messages[1]->reasoning, "hm");
    assert_text(&q->messages[1]->tool_calls,
                "[{\"id\":\"c1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
                "{\"id\":\"c2\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]");
    assert_string_equal(q->messages[2]->tool_call_id, "c1");
    assert_string_equal(q->messages[3]->role, "tool");
    assert_text(&q->messages[4]->content, "b");
    leave();
    q = asked(HI ",\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},"
                 "\"reasoning\":{\"effort\":\"low\"}}");
    assert_int_equal(q->tool_choice, 2);
    assert_true(q->thinking);
    assert_text(&q->tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                           "\"type\":\"object\"}}}]");
    leave();
    q = asked(HI ",\"store\":false,\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\","
                 "\"schema\":{\"type\":\"null\"}}}}");
    assert_int_equal(q->grammar_kind, 2);
    assert_text(&q->grammar, "{\"type\":\"null\"}");
    leave();
}

static void test_refusals(void **state)
{
    static const struct {
        const char *body, *part;
    } rows[] = {
        {"{\"model\":\"gemma\"}", "field 'input': missing"},
        {IN("[]"), "field 'input': got an empty array"},
        {IN("5"), "field 'input': got 5"},
        {IN("[5]"), "input[0]"},
        {IN("[{\"type\":\"item_reference\"}]"), "input[0].type"},
        {IN("[{\"role\":\"tool\",\"content\":\"x\"}]"), "input[0].role"},
        {IN("[{\"role\":\"user\"}]"), "input[0].content"},
        {IN("[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]"),
         "input[0].content[0].type"},
        {IN("[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":1}]}]"),
         "input[0].content[0].text"},
        {IN("[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}]"),
         "input[0].call_id"},
        {IN("[{\"type\":\"function_call\",\"call_id\":\"c\",\"arguments\":\"\"}]"),
         "input[0].name"},
        {IN("[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\"}]"),
         "input[0].arguments"},
        {IN("[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]"), "input[0].output"},
        {IN("[{\"type\":\"reasoning\",\"content\":[1]}]"), "input[0].content"},
        {HI ",\"store\":true}", "field 'store'"},
        {HI ",\"previous_response_id\":\"resp_1\"}", "field 'previous_response_id'"},
        {HI ",\"background\":true}", "field 'background'"},
        {HI ",\"truncation\":\"auto\"}", "field 'truncation'"},
        {HI ",\"n\":2}", "field 'n'"},
        {HI ",\"tools\":[" TOOL "],\"tool_choice\":\"required\",\"text\":{\"format\":{\"type\":"
            "\"json_object\"}}}",
         "field 'text.format': not supported beside a 'tool_choice'"},
        {HI ",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type"},
        {HI ",\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}}",
         "tool_choice.name"},
        {HI ",\"reasoning\":{\"effort\":\"lots\"}}", "field 'reasoning.effort'"},
        {HI ",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format.type"},
        {HI ",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format.schema"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_post("/v1/responses", rows[i].body);
        if (!T.req.done || T.req.status != 400 || !strstr(fake_answer(), rows[i].part))
            fail_msg("%s: %u %s, expected %s", rows[i].body, T.req.status, fake_answer(),
                     rows[i].part);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
    T.gemma.can_call_tools = false;
    fake_req_reset();
    fake_post("/v1/responses", HI ",\"tools\":[" TOOL "]}");
    assert_int_equal(T.req.status, 400);
    assert_non_null(strstr(fake_answer(), "model 'gemma' does not support tool calling"));
}

/* A thought, a text and two calls, in pieces. */
static void play(uint32_t finish)
{
    said("h", "", "", "", false, 0);
    said("m\"", "", "", "", false, 0);
    said("", "a\n", "", "", false, 0);
    said("", "b", "f", "{\"x\":", false, 0);
    said("", "", "", "1}", true, 0);
    said("", "", "g", "{}", true, 0);
    said("", "", "", "", false, finish);
    fake_done(0, 10, 9, 4);
}

static const char *at(json_t *j, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(j, "output"), i), key));
}

static void check_output(json_t *j, const char *status)
{
    json_t *out = json_object_get(j, "output"),
           *msg = json_array_get(json_object_get(json_array_get(out, 1), "content"), 0),
           *usage = json_object_get(j, "usage");

    assert_string_equal(json_string_value(json_object_get(j, "object")), "response");
    assert_string_equal(json_string_value(json_object_get(j, "status")), status);
    assert_int_equal(json_array_size(out), 4);
    assert_string_equal(at(j, 0, "type"), "reasoning");
    assert_string_equal(at(j, 1, "type"), "message");
    assert_string_equal(json_string_value(json_object_get(msg, "text")), "a\nb");
    assert_string_equal(at(j, 2, "arguments"), "{\"x\":1}");
    assert_string_equal(at(j, 3, "name"), "g");
    assert_string_not_equal(at(j, 2, "call_id"), at(j, 3, "call_id"));
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 19);
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(usage, "output_tokens_details"), "reasoning_tokens")),
                     2);
}

static void test_a_whole_response(void **state)
{
    json_t *j;

    (void)state;
    for (uint32_t finish = 2; finish <= 3; finish++) {
        teardown(NULL);
        setup(NULL);
        asked(HI ",\"tools\":[" TOOL "],\"metadata\":{\"k\":\"v\"}}");
        play(finish);
        assert_int_equal(T.req.status, 200);
        assert_non_null(j = json_loads(fake_answer(), JSON_REJECT_DUPLICATES, NULL));
        check_output(j, finish == 2 ? "incomplete" : "completed");
        assert_non_null(strstr(fake_answer(), "\"tools\":[" TOOL "]"));
        assert_non_null(strstr(fake_answer(), "\"metadata\":{\"k\":\"v\"}"));
        json_decref(j);
    }
}

/* Events in order, each numbered, deltas that join to what `done` says. */
static void test_a_stream(void **state)
{
    static const char *const want[] = {
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    };
    char joined[256] = "", *text, *save = NULL;
    size_t n = 0;

    (void)state;
    asked(HI ",\"stream\":true,\"tools\":[" TOOL "]}");
    assert_false(T.req.streaming); /* a refusal would still be a plain error */
    play(3);
    assert_true(T.req.done);
    text = strdup(fake_answer());
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *j, *delta, *done;

        if (strncmp(line, "event: ", 7) == 0) {
            assert_true(n < sizeof(want) / sizeof(want[0]));
            assert_string_equal(line + 7, want[n]);
            continue;
        }
        assert_memory_equal(line, "data: ", 6);
        assert_non_null(j = json_loads(line + 6, JSON_REJECT_DUPLICATES, NULL));
        assert_string_equal(json_string_value(json_object_get(j, "type")), want[n]);
        assert_int_equal(json_integer_value(json_object_get(j, "sequence_number")), n);
        delta = json_object_get(j, "delta");
        done = strstr(want[n], "text.done")        ? json_object_get(j, "text")
               : strstr(want[n], "arguments.done") ? json_object_get(j, "arguments")
                                                   : NULL;
        if (delta)
            strcat(joined, json_string_value(delta));
        if (done) {
            assert_string_equal(json_string_value(done), joined);
            joined[0] = '\0';
        }
        if (strcmp(want[n], "response.completed") == 0)
            check_output(json_object_get(j, "response"), "completed");
        json_decref(j);
        n++;
    }
    assert_int_equal(n, sizeof(want) / sizeof(want[0]));
    free(text);
}

/* An item whose call is none stays, incomplete; its text is a message behind it. */
static void test_a_void_call_in_a_stream(void **state)
{
    json_t *j;
    char *last;

    (void)state;
    asked(HI ",\"stream\":true,\"tools\":[" TOOL "]}");
    said("", "", "f", "{\"x\":", false, 0);
    said_void("<|tool_call>call:f{x:,");
    said("", "}", "", "", false, 0);
    said("", "", "", "", false, 1);
    fake_done(0, 10, 9, 0);
    assert_non_null(strstr(fake_answer(), "\"type\":\"response.function_call_arguments.done\""));
    assert_non_null(last = strstr(fake_answer(), "data: {\"type\":\"response.completed\""));
    assert_non_null(j = json_loads(last + 6, JSON_DISABLE_EOF_CHECK, NULL));
    last = json_dumps(json_object_get(json_object_get(j, "response"), "output"), JSON_COMPACT);
    assert_non_null(strstr(last, "\"type\":\"function_call\",\"status\":\"incomplete\""));
    assert_non_null(strstr(last, "\"arguments\":\"{\\\"x\\\":\""));
    assert_non_null(strstr(last, "\"text\":\"<|tool_call>call:f{x:,}\""));
    free(last);
    json_decref(j);
}

static void test_an_answer_without_a_word(void **state)
{
    json_t *j;

    (void)state;
    asked(HI "}");
    said("", "", "", "", false, 1);
    fake_done(0, 3, 1, 0);
    assert_non_null(j = json_loads(fake_answer(), 0, NULL));
    assert_string_equal(at(j, 0, "type"), "message");
    assert_string_equal(json_string_value(json_object_get(j, "status")), "completed");
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_items_become_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_whole_response, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_void_call_in_a_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_answer_without_a_word, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
