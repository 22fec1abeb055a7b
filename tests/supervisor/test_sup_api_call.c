/* test_sup_api_call.c - what every model endpoint shares. */
#include "sup_api_test.h"

#define OK_BODY "{\"model\":\"gemma\",\"prompt\":\"a\"}"

static void leave(void)
{
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
}

static void test_admission(void **state)
{
    T.conf.max_concurrent_requests = 2;
    T.front.active = 2;
    fake_post("/ai/v1/completions", "this is never parsed");
    assert_int_equal(T.req.status, 503);
    assert_has("{\"error\":\"MODEL_RESOURCE_BUSY\"");
    assert_has("\"retryable\":true,\"reason\":\"inference_admission\",\"retry_after_ms\":1000}");
    assert_string_equal(fake_out_header("Retry-After"), "1");
    assert_int_equal(T.front.active, 2);
    T.front.active = 1;
    fake_req_reset();
    fake_post("/ai/v1/completions", OK_BODY);
    assert_int_equal(T.front.active, 2);
    leave();
    assert_int_equal(T.front.active, 1);
    T.conf.max_concurrent_requests = 0; /* no limit */
    T.front.active = 100000;
    fake_req_reset();
    fake_post("/ai/v1/completions", OK_BODY);
    assert_false(T.req.done);
    leave();
    T.front.active = 0;
}

/* The front says it drains before the fleet does: that time is for probes to notice. */
static void test_draining_front_still_serves(void **state)
{
    T.front.draining = true;
    fake_post("/v1/completions", OK_BODY);
    assert_false(T.req.done);
    assert_int_equal(T.fleet.n_tickets, 1);
}

static void test_every_refusal_gives_its_place_back(void **state)
{
    fake_post("/v1/completions", "{");
    assert_int_equal(T.req.status, 400);
    assert_int_equal(T.front.active, 0);
    fake_req_reset();
    fake_send_bytes("POST", "/ai/v1/completions", "", 0);
    assert_int_equal(T.req.status, 400);
    assert_has("{\"error\":\"missing_body\"");
    assert_int_equal(T.front.active, 0);
}

static void test_multipart(void **state)
{
    fake_header("content-type", "Multipart/form-data; boundary=x");
    fake_post("/v1/completions", OK_BODY);
    assert_int_equal(T.req.status, 415);
    assert_has("UNSUPPORTED_MEDIA_TYPE");
    fake_req_reset();
    fake_header("content-type", "text/plain"); /* nothing else is enforced */
    fake_post("/v1/completions", OK_BODY);
    assert_false(T.req.done);
}

static uint64_t deadline_of(const char *header, const char *body)
{
    unsigned before = T.fleet.n_tickets;
    uint64_t us;

    fake_req_reset();
    if (header)
        fake_header("x-request-timeout-ms", header);
    fake_post("/v1/completions", body);
    if (T.fleet.n_tickets == before)
        return UINT64_MAX;
    us = fake_ticket(before)->task.deadline_us;
    leave();
    return us ? us - 5000000 : 0;
}

static void test_deadline(void **state)
{
    static const char *const bad[] = {"0", "-1", "", "abc", "1.5", "99999999999999999999999", " 1"};

    assert_int_equal(deadline_of(NULL, OK_BODY), 60000000);
    assert_int_equal(deadline_of("5", OK_BODY), 5000);
    assert_int_equal(deadline_of("70000", OK_BODY), 60000000); /* lower only */
    assert_int_equal(deadline_of("9", "{\"model\":\"gemma\",\"prompt\":\"a\",\"timeout_ms\":7}"),
                     7000);
    assert_int_equal(deadline_of("6", "{\"model\":\"gemma\",\"prompt\":\"a\",\"timeout_ms\":7}"),
                     6000);
    T.conf.request_timeout_ms = 0;
    assert_int_equal(deadline_of(NULL, OK_BODY), 0);
    assert_int_equal(deadline_of("8", OK_BODY), 8000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(deadline_of(bad[i], OK_BODY) == UINT64_MAX);
        assert_int_equal(T.req.status, 400);
        assert_has("X-Request-Timeout-Ms");
    }
}

static void test_deadline_passed(void **state)
{
    fake_post("/v1/completions", OK_BODY);
    fake_fail(0, RC_DEADLINE, "deadline passed in the queue", 0);
    assert_int_equal(T.req.status, 504);
    assert_string_equal(fake_out_header("x-should-retry"), "false");
    assert_has("DEADLINE_EXCEEDED");
}

static void test_new_model_is_found_without_a_restart(void **state)
{
    T.fleet.hidden = T.fleet.models[0];
    T.fleet.hidden.id = "new";
    fake_post("/v1/completions", "{\"model\":\"new\",\"prompt\":\"a\"}");
    assert_int_equal(T.fleet.n_rescans, 1);
    assert_string_equal(fake_ticket(0)->model, "new");
}

static void test_unknown_model_waits_for_one_look(void **state)
{
    T.fleet.hold_rescan = true;
    fake_post("/v1/completions", "{\"model\":\"nope\",\"prompt\":\"a\"}");
    assert_false(T.req.done);
    fake_rescan_end(&T.fleet);
    assert_int_equal(T.req.status, 404);
    assert_has("\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":"
               "\"MODEL_NOT_FOUND\"");
    assert_null(fake_out_header("x-should-retry"));
}

static void test_client_leaves_while_the_disk_is_read(void **state)
{
    T.fleet.hold_rescan = true;
    fake_post("/v1/completions", "{\"model\":\"nope\",\"prompt\":\"a\"}");
    leave();
    fake_rescan_end(&T.fleet);
    assert_int_equal(T.front.active, 0);
}

/* Outside paths: one answer whether something is there or not, and no look at the disk. */
static void test_names_that_point_outside(void **state)
{
    static const char *const names[] = {
        "../../etc/passwd", "a/../../b", "/etc/passwd", "a//b",
        "sha256:../../x",   ".",         "../gemma",    "gemma/../gemma"};
    char body[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        fake_req_reset();
        snprintf(body, sizeof(body), "{\"model\":\"%s\",\"prompt\":\"a\"}", names[i]);
        fake_post("/v1/completions", body);
        assert_int_equal(T.req.status, 404);
        assert_has("MODEL_NOT_FOUND");
    }
    assert_int_equal(T.fleet.n_rescans, 0);
    fake_req_reset();
    fake_post("/v1/completions", "{\"model\":\"gem\\u0000ma\",\"prompt\":\"a\"}");
    assert_int_equal(T.req.status, 400);
}

static void test_load_failure_is_not_the_clients_fault(void **state)
{
    T.fleet.models[0].state = "failed";
    fake_post("/v1/completions", OK_BODY);
    fake_fail(0, RC_UNSUPPORTED, "quantization type IQ1_S", 0);
    assert_int_equal(T.req.status, 500);
    assert_has("MODEL_LOAD_FAILED");
    assert_string_equal(fake_out_header("x-should-retry"), "false");
}

static void test_shutting_down_fleet(void **state)
{
    T.fleet.refuse = RC_UNLOADING;
    fake_post("/v1/completions", OK_BODY);
    assert_int_equal(T.req.status, 503);
    assert_string_equal(fake_out_header("Retry-After"), "1");
}

/* A stream of one request must not hold on to what the prompt cost. */
static void test_start_memory_is_given_back(void **state)
{
    fake_post("/v1/chat/completions",
              "{\"model\":\"gemma\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":[{"
              "\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}");
    assert_null(((struct sup_part *)fake_ticket(0)->task.user)->call->body);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_admission),
        T_(test_draining_front_still_serves),
        T_(test_every_refusal_gives_its_place_back),
        T_(test_multipart),
        T_(test_deadline),
        T_(test_deadline_passed),
        T_(test_new_model_is_found_without_a_restart),
        T_(test_unknown_model_waits_for_one_look),
        T_(test_client_leaves_while_the_disk_is_read),
        T_(test_names_that_point_outside),
        T_(test_load_failure_is_not_the_clients_fault),
        T_(test_shutting_down_fleet),
        T_(test_start_memory_is_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
