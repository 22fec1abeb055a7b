/* test_sup_api_admit.c - quotas of tenants as a client sees them: refusals, times to come
 * back, headers, what is charged and given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "sup_api_fake.h"
#include "sup_call_admit.h"

#define PATH "/v1/completions"
#define BODY "{\"model\":\"gemma\",\"prompt\":\"12345678\",\"max_tokens\":10}" /* 12 tokens */

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

static void assert_has(const char *part)
{
    if (!strstr(fake_answer(), part)) {
        print_error("answer: %s\nlacks:  %s\n", fake_answer(), part);
        fail();
    }
}

static void assert_header(const char *name, const char *value)
{
    const char *got = fake_out_header(name);

    if (value == NULL ? got != NULL : got == NULL || strcmp(got, value) != 0)
        fail_msg("header %s: got %s, expected %s", name, got ? got : "none",
                 value ? value : "none");
}

static void leave(void)
{
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
}

static void post(const char *body)
{
    fake_req_reset();
    fake_post(PATH, body);
}

static uint64_t tokens_left(void)
{
    const struct sup_clock now = {.mono_us = 0, .unix_s = 0}; /* nothing drains meanwhile */
    struct sup_quota_left r, t;

    sup_quota_show(T.front.quota, T.grant->tenant, &now, &r, &t);
    return t.left;
}

static double metric(enum sup_metric m, const char *a, const char *b)
{
    return sup_series_value(sup_series(T.front.metrics, m, a, b));
}

static void test_without_limits_nothing_is_said(void **state)
{
    post(BODY);
    fake_delta(0, 0, "x", 2);
    fake_done(0, 3, 1, 0);
    assert_int_equal(T.req.status, 200);
    assert_header("x-ratelimit-limit-requests", NULL);
    assert_header("x-ratelimit-limit-tokens", NULL);
    assert_true(metric(SUP_M_TENANT_REQUESTS, "default", NULL) == 1);
    assert_true(metric(SUP_M_TENANT_TOKENS, "default", "prompt") == 3);
    assert_true(metric(SUP_M_TENANT_TOKENS, "default", "answer") == 1);
    assert_true(metric(SUP_M_TENANTS, NULL, NULL) == 1);
}

static void test_requests_a_minute(void **state)
{
    T.grant->requests_per_minute = 2;
    post(BODY);
    fake_delta(0, 0, "x", 2);
    fake_done(0, 3, 1, 0);
    assert_header("x-ratelimit-limit-requests", "2");
    assert_header("x-ratelimit-remaining-requests", "1");
    assert_header("x-ratelimit-reset-requests", "30s");
    assert_header("x-ratelimit-limit-tokens", NULL);
    post("{"); /* a bad one counts too */
    assert_int_equal(T.req.status, 400);
    assert_header("x-ratelimit-remaining-requests", "0");
    post("this is never parsed");
    assert_int_equal(T.req.status, 429);
    assert_has("\"type\":\"rate_limit_error\",\"param\":\"requests_per_minute\",\"code\":"
               "\"RATE_LIMITED\",\"retryable\":true,\"reason\":\"inference_admission\","
               "\"retry_after_ms\":");
    assert_has("tenant 'default' has used up requests_per_minute, which is 2: try again in 30 s");
    assert_header("Retry-After", "30");
    assert_header("x-ratelimit-reset-requests", "1m0s");
    assert_header("x-should-retry", NULL);
    assert_true(metric(SUP_M_TENANT_REFUSED, "default", NULL) == 1);
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "requests", NULL) == 1);
    assert_int_equal(T.front.active, 0);
}

static void test_concurrency(void **state)
{
    T.grant->concurrency = 1;
    post(BODY);
    leave();
    post(BODY); /* who left holds nothing */
    void (*fn)(void *) = T.req.abort_fn;
    void *user = T.req.abort_user;

    fake_req_reset();
    fake_post(PATH, "this is never parsed");
    assert_int_equal(T.req.status, 429);
    assert_has("\"param\":\"concurrency\",\"code\":\"RATE_LIMITED\"");
    assert_header("Retry-After", "1");
    fn(user);
    assert_int_equal(T.front.active, 0);
}

static void test_tokens_a_minute_charge_and_truth(void **state)
{
    T.grant->tokens_per_minute = 100;
    post(BODY);
    assert_int_equal(tokens_left(), 88);
    fake_delta(0, 0, "x", 2);
    fake_done(0, 4, 1, 0);
    assert_int_equal(tokens_left(), 95);
    assert_header("x-ratelimit-limit-tokens", "100");
    assert_header("x-ratelimit-remaining-tokens", "95");
    assert_header("x-ratelimit-reset-tokens", "3s");
    post("{\"model\":\"gemma\",\"prompt\":\"a\",\"max_tokens\":99}"); /* 100: fits, not now */
    assert_int_equal(T.req.status, 429);
    assert_has("tokens_per_minute");
    assert_header("Retry-After", "3");
    assert_int_equal(tokens_left(), 95);
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "tokens", NULL) == 1);
    post("{\"model\":\"gemma\",\"prompt\":\"a\",\"max_tokens\":100}"); /* 101: never */
    assert_int_equal(T.req.status, 413);
    assert_has("\"code\":\"REQUEST_OVER_QUOTA\",\"retryable\":false,\"n_tokens\":101,"
               "\"limit\":100}");
    assert_header("Retry-After", NULL);
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "never", NULL) == 1);
}

/* As the HTTP server asks before it receives a large body: nothing is counted. */
static void test_early(void **state)
{
    T.grant->requests_per_minute = 1;
    for (int i = 0; i < 3; i++) {
        fake_req_reset();
        T.req.path = PATH;
        assert_true(sup_admit_early(&T.req, &T.front));
        assert_false(T.req.done);
    }
    post("{");
    for (int i = 0; i < 2; i++) {
        fake_req_reset();
        T.req.path = PATH;
        assert_false(sup_admit_early(&T.req, &T.front));
        assert_int_equal(T.req.status, 429);
        assert_header("Retry-After", "60");
        assert_header("x-ratelimit-remaining-requests", "0");
    }
    T.conf.max_concurrent_requests = T.front.active = 1;
    fake_req_reset();
    T.req.path = PATH;
    assert_false(sup_admit_early(&T.req, &T.front));
    assert_int_equal(T.req.status, 503);
    T.front.active = 0;
}

/* Before the body is looked at: a debt must drain first. */
static void test_a_debt_refuses_by_the_head_alone(void **state)
{
    T.grant->tokens_per_minute = 100;
    post(BODY);
    fake_delta(0, 0, "x", 2);
    fake_done(0, 190, 20, 0);
    assert_int_equal(tokens_left(), 0);
    post("this is never parsed");
    assert_int_equal(T.req.status, 429);
    assert_header("Retry-After", "67"); /* 110 over and one more, at 100 a minute */
}

static void test_what_is_given_back(void **state)
{
    T.grant->tokens_per_minute = 100;
    post(BODY);
    leave(); /* no worker had it */
    assert_int_equal(tokens_left(), 100);
    post(BODY);
    fake_ticket(1)->started = true;
    leave(); /* its prompt was read, perhaps */
    assert_int_equal(tokens_left(), 98);
    post("{\"model\":\"gemma\",\"prompt\":\"12345678\",\"max_tokens\":10,\"stream\":true}");
    fake_ticket(2)->started = true;
    fake_delta(2, 0, "x", 0);
    fake_delta(2, 0, "y", 0);
    leave(); /* and two tokens of the answer */
    assert_int_equal(tokens_left(), 94);
    post(BODY);
    fake_fail(3, RC_DEADLINE, "in the queue", 0);
    assert_int_equal(T.req.status, 504);
    assert_int_equal(tokens_left(), 94);
    post(BODY);
    fake_ticket(4)->started = true;
    fake_fail(4, RC_DEADLINE, "in the worker", 0); /* its prompt was read, perhaps */
    assert_int_equal(T.req.status, 504);
    assert_int_equal(tokens_left(), 92);
    T.fleet.refuse = RC_BUSY;
    T.fleet.again_ms = 7300; /* as the queue's own speed says */
    post(BODY);
    assert_int_equal(T.req.status, 503);
    assert_header("Retry-After", "8");
    assert_non_null(strstr(fake_answer(), "\"retry_after_ms\":7300"));
    assert_int_equal(tokens_left(), 92);
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "queue", NULL) == 1);
}

/* Many prompts in one request: each is charged, all are given back when one is refused, and
 * what never fits together is told so. */
static void test_many_parts(void **state)
{
    T.grant->tokens_per_minute = 30;
    post("{\"model\":\"gemma\",\"prompt\":[\"12345678\",\"12345678\"],\"max_tokens\":10}");
    assert_int_equal(tokens_left(), 6);
    leave();
    assert_int_equal(tokens_left(), 30);
    post("{\"model\":\"gemma\",\"prompt\":[\"1\",\"1\",\"1\"],\"max_tokens\":10}"); /* 33 */
    assert_int_equal(T.req.status, 413);
    assert_has("\"n_tokens\":33,\"limit\":30");
    assert_int_equal(tokens_left(), 30);
}

static void test_tokens_a_day(void **state)
{
    long s;

    T.grant->tokens_per_day = 20;
    post(BODY);
    fake_delta(0, 0, "x", 2);
    fake_done(0, 10, 10, 0);
    post("this is never parsed");
    assert_int_equal(T.req.status, 429);
    assert_has("\"code\":\"QUOTA_EXCEEDED\",\"retryable\":true");
    assert_non_null(fake_out_header("Retry-After"));
    s = atol(fake_out_header("Retry-After"));
    assert_true(s >= 1 && s <= 86400);
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "day", NULL) == 1);
}

static void test_shares_reach_the_fleet_and_the_cache(void **state)
{
    uint8_t ns[2][SUP_CACHE_NS_BYTES], of[2][SUP_CACHE_NS_BYTES];

    T.conf.prompt_cache = true;
    for (int i = 0; i < 2; i++) {
        strcpy(T.grant->tenant, i ? "other" : "one");
        T.grant->weight = 7;
        T.grant->cache_percent = 30;
        post(BODY);
        assert_string_equal(fake_ticket((unsigned)i)->task.tenant, T.grant->tenant);
        assert_int_equal(fake_ticket((unsigned)i)->task.weight, 7);
        assert_int_equal(fake_ticket((unsigned)i)->frame->generate->cache_ns.len, sizeof(ns[0]));
        memcpy(ns[i], fake_ticket((unsigned)i)->frame->generate->cache_ns.data, sizeof(ns[0]));
        assert_int_equal(fake_ticket((unsigned)i)->frame->generate->cache_tenant.len,
                         sizeof(of[0]));
        memcpy(of[i], fake_ticket((unsigned)i)->frame->generate->cache_tenant.data, sizeof(of[0]));
        assert_int_equal(fake_ticket((unsigned)i)->frame->generate->cache_percent, 30);
        leave();
    }
    assert_memory_not_equal(ns[0], ns[1], sizeof(ns[0]));
    assert_memory_not_equal(of[0], of[1], sizeof(of[0]));
    assert_memory_not_equal(of[0], ns[0], sizeof(of[0]));
    /* a key of the client's divides what the tenant has, and its bound is for all of it */
    post("{\"model\":\"gemma\",\"prompt\":\"a\",\"prompt_cache_key\":\"k\"}");
    assert_memory_not_equal(ns[1], fake_ticket(2)->frame->generate->cache_ns.data, sizeof(ns[1]));
    assert_memory_equal(of[1], fake_ticket(2)->frame->generate->cache_tenant.data, sizeof(of[1]));
}

/* One server-wide limit, before anything of a tenant is counted. */
static void test_the_server_comes_first(void **state)
{
    T.grant->requests_per_minute = 1;
    T.conf.max_concurrent_requests = 1;
    T.front.active = 1;
    post("this is never parsed");
    assert_int_equal(T.req.status, 503);
    assert_header("Retry-After", "1");
    assert_true(metric(SUP_M_ADMISSION_REFUSED, "server", NULL) == 1);
    T.front.active = 0;
    post(BODY);
    assert_false(T.req.done);
    leave();
}

static uint64_t deadline_of(const char *header, const char *ms)
{
    unsigned before = T.fleet.n_tickets;
    uint64_t us;

    fake_req_reset();
    fake_header("x-request-timeout", header);
    if (ms)
        fake_header("x-request-timeout-ms", ms);
    fake_post(PATH, BODY);
    if (T.fleet.n_tickets == before)
        return UINT64_MAX;
    us = fake_ticket(before)->task.deadline_us;
    leave();
    return us - 5000000;
}

static void test_request_timeout_in_seconds(void **state)
{
    static const char *const bad[] = {"0",
                                      "",
                                      "-1",
                                      "1s",
                                      "1.",
                                      ".5",
                                      "1e3",
                                      "0.0",
                                      " 1",
                                      "1.5.5",
                                      "0.0009",
                                      "86400.001",
                                      "NaN",
                                      "inf",
                                      "0x1",
                                      "86401",
                                      "99999999999999999999999"};

    assert_int_equal(deadline_of("2.5", NULL), 2500000);
    assert_int_equal(deadline_of("0.001", NULL), 1000);
    assert_int_equal(deadline_of("3", NULL), 3000000);
    assert_int_equal(deadline_of("2.5019", NULL), 2501000); /* thousandths count */
    assert_int_equal(deadline_of("100", NULL), 60000000);   /* lower only */
    assert_int_equal(deadline_of("2", "1500"), 1500000);
    assert_int_equal(deadline_of("1", "1500"), 1000000);
    T.conf.request_timeout_ms = 0;
    assert_true(deadline_of("86400", NULL) == 86400000000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(deadline_of(bad[i], NULL) == UINT64_MAX);
        assert_int_equal(T.req.status, 400);
        assert_has("X-Request-Timeout");
    }
}

/* Every code of the API: one that may be tried again carries Retry-After, retry_after_ms and
 * a reason, one that may not carries none of them. */
static void test_retryable_means_a_time_and_the_other_way_round(void **state)
{
    const struct {
        enum sup_code code;
        bool retry;
    } rows[] = {
#define X(id, word, http, type, reason, ms) {SUP_E_##id, (ms) > 0},
        SUP_CODES(X)
#undef X
    };
    struct sup_fail f;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned http;

        fake_req_reset();
        T.req.path = PATH;
        sup_fail_set(&f, rows[i].code, "", "why");
        http = sup_fail_http(&f);
        sup_reply_fail(&T.req, SUP_SHAPE_OPENAI, &f);
        assert_has(rows[i].retry ? "\"retryable\":true" : "\"retryable\":false");
        assert_int_equal(fake_out_header("Retry-After") != NULL, rows[i].retry);
        assert_int_equal(strstr(fake_answer(), "retry_after_ms") != NULL, rows[i].retry);
        assert_int_equal(strstr(fake_answer(), "\"reason\":\"inference_") != NULL, rows[i].retry);
        if (rows[i].retry) {
            assert_true(http == 503 || http == 429);
            assert_true(atoi(fake_out_header("Retry-After")) >= 1);
        } else {
            assert_true(http != 503 && http != 429);
        }
    }
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_without_limits_nothing_is_said),
        T_(test_requests_a_minute),
        T_(test_concurrency),
        T_(test_tokens_a_minute_charge_and_truth),
        T_(test_early),
        T_(test_a_debt_refuses_by_the_head_alone),
        T_(test_what_is_given_back),
        T_(test_many_parts),
        T_(test_tokens_a_day),
        T_(test_shares_reach_the_fleet_and_the_cache),
        T_(test_the_server_comes_first),
        T_(test_request_timeout_in_seconds),
        T_(test_retryable_means_a_time_and_the_other_way_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
