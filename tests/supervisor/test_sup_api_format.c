/* test_sup_api_format.c - response_format, grammar and regex: fields to Generate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_api_fake.h"

#define HI "{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define FORMAT HI ",\"response_format\":"
#define SCHEMA FORMAT "{\"type\":\"json_schema\",\"json_schema\":"

static int setup(void **state)
{
    fake_setup();
    return 0;
}

static int teardown(void **state)
{
    fake_teardown();
    return 0;
}

static void reaches_the_worker(void **state)
{
    static const struct {
        const char *body;
        uint32_t kind;
        const char *text;
    } rows[] = {
        {HI "}", 0, ""},
        {FORMAT "{\"type\":\"text\"}}", 0, ""},
        {FORMAT "null,\"grammar\":null,\"regex\":null}", 0, ""},
        {FORMAT "{\"type\":\"json_object\"}}", 1, ""},
        {HI ",\"grammar\":\"json\"}", 1, ""},
        {SCHEMA "{\"name\":\"n\",\"strict\":true,\"schema\":{\"type\": \"object\", \"properties\": "
                "{\"z\": {}, \"a\": {\"enum\": [1.5, \"\xc3\xa9\"]}}}}}}",
         2, "{\"type\":\"object\",\"properties\":{\"z\":{},\"a\":{\"enum\":[1.5,\"\xc3\xa9\"]}}}"},
        {HI ",\"grammar\":\"root ::= \\\"a\\\"\"}", 3, "root ::= \"a\""},
        {HI ",\"regex\":\"[a-z]+\"}", 4, "[a-z]+"},
        {FORMAT "{\"type\":\"json_object\"},\"grammar\":\"root ::= [0-9]\"}", 3, "root ::= [0-9]"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const Ipc__Generate *q;

        fake_req_reset();
        fake_post("/v1/chat/completions", rows[i].body);
        assert_int_equal(T.fleet.n_tickets, i + 1);
        q = fake_ticket((unsigned)i)->frame->generate;
        assert_int_equal(q->grammar_kind, rows[i].kind);
        assert_int_equal(q->grammar.len, strlen(rows[i].text));
        if (q->grammar.len > 0)
            assert_memory_equal(q->grammar.data, rows[i].text, q->grammar.len);
        T.req.abort_fn(T.req.abort_user);
        T.req.done = true;
    }
}

static void completions_have_them_too(void **state)
{
    const Ipc__Generate *q;

    fake_post(
        "/v1/completions",
        "{\"model\":\"gemma\",\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}");
    q = fake_ticket(0)->frame->generate;
    assert_int_equal(q->grammar_kind, 1);
}

static void refuses_by_name(void **state)
{
    static const struct {
        const char *body, *part;
    } rows[] = {
        {FORMAT "{}}", "field 'response_format.type'"},
        {FORMAT "{\"type\":\"xml\"}}", "one of text, json_object, json_schema"},
        {FORMAT "{\"type\":\"json_schema\"}}", "field 'response_format.json_schema'"},
        {SCHEMA "{}}}", "field 'response_format.json_schema.schema': missing"},
        {SCHEMA "{\"schema\":true}}}", "response_format.json_schema.schema"},
        {SCHEMA "{\"schema\":{},\"strict\":1}}}", "response_format.json_schema.strict"},
        {SCHEMA "{\"schema\":{},\"name\":\"\"}}}", "response_format.json_schema.name"},
        {HI ",\"grammar\":\"\"}", "field 'grammar'"},
        {HI ",\"grammar\":5}", "field 'grammar'"},
        {HI ",\"regex\":\"\"}", "field 'regex'"},
        {HI ",\"regex\":\"a\",\"grammar\":\"json\"}", "only one of the two"},
        {HI ",\"regex\":\"a\",\"ignore_eos\":true}", "field 'ignore_eos'"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_post("/ai/v1/chat/completions", rows[i].body);
        assert_true(T.req.done);
        assert_int_equal(T.req.status, 400);
        if (!strstr(fake_answer(), "{\"error\":\"INVALID_REQUEST\"") ||
            !strstr(fake_answer(), rows[i].part))
            fail_msg("%s: %s", rows[i].body, fake_answer());
    }
    assert_int_equal(T.fleet.n_tickets, 0);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(reaches_the_worker),
        T_(completions_have_them_too),
        T_(refuses_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
