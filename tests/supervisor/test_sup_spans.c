/* test_sup_spans.c - a request becomes one OTLP span, and a full channel loses it and counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>

#include "sup_json.h"
#include "sup_metrics.h"
#include "sup_spans.h"

static struct sup_trace trace(void)
{
    struct sup_trace t = {.span_id = {1, 2, 3, 4, 5, 6, 7, 8}};

    assert_true(sup_trace_parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", &t));
    return t;
}

static json_t *made(const struct sup_span *s)
{
    struct sup_json o = {0};
    json_error_t e;
    json_t *j;

    sup_span_json(s, &o);
    assert_false(o.failed);
    j = json_loadb(o.p, o.n, JSON_REJECT_DUPLICATES, &e);
    if (!j)
        fail_msg("%s in %.*s", e.text, (int)o.n, o.p);
    sup_json_deinit(&o);
    return j;
}

static const char *text(json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));

    return s ? s : "(none)";
}

/* Value of an attribute as text, or "(none)". */
static const char *attr(json_t *span, const char *key)
{
    json_t *list = json_object_get(span, "attributes"), *one;
    size_t i;

    json_array_foreach(list, i, one) if (strcmp(text(one, "key"), key) == 0)
    {
        json_t *v = json_object_get(one, "value");

        return json_object_get(v, "intValue") ? text(v, "intValue") : text(v, "stringValue");
    }
    return "(none)";
}

static void test_a_generation(void **state)
{
    struct sup_trace t = trace();
    struct sup_facts f = {.operation = "chat",
                          .model = "gemma \"3\"",
                          .input_tokens = 12,
                          .output_tokens = 34,
                          .cached_tokens = 5,
                          .queue_us = 6,
                          .prefill_us = 7,
                          .decode_us = 8,
                          .has_output = true};
    struct sup_span s = {.trace = &t,
                         .tracestate = "a=1",
                         .method = "POST",
                         .route = "/v1/chat/completions",
                         .req_id = "01ABC",
                         .status = 200,
                         .start_ns = 1700000000000000001,
                         .end_ns = 1700000000500000002,
                         .facts = &f};
    json_t *j = made(&s);

    assert_string_equal(text(j, "traceId"), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_string_equal(text(j, "spanId"), "0102030405060708");
    assert_string_equal(text(j, "parentSpanId"), "00f067aa0ba902b7");
    assert_string_equal(text(j, "traceState"), "a=1");
    assert_string_equal(text(j, "name"), "chat gemma \"3\"");
    assert_int_equal(json_integer_value(json_object_get(j, "kind")), 2);
    assert_string_equal(text(j, "startTimeUnixNano"), "1700000000000000001");
    assert_string_equal(text(j, "endTimeUnixNano"), "1700000000500000002");
    assert_string_equal(attr(j, "http.request.method"), "POST");
    assert_string_equal(attr(j, "http.route"), "/v1/chat/completions");
    assert_string_equal(attr(j, "http.response.status_code"), "200");
    assert_string_equal(attr(j, "gen_ai.operation.name"), "chat");
    assert_string_equal(attr(j, "gen_ai.provider.name"), "inferd");
    assert_string_equal(attr(j, "gen_ai.request.model"), "gemma \"3\"");
    assert_string_equal(attr(j, "gen_ai.usage.input_tokens"), "12");
    assert_string_equal(attr(j, "gen_ai.usage.output_tokens"), "34");
    assert_string_equal(attr(j, "gen_ai.usage.cache_read.input_tokens"), "5");
    assert_string_equal(attr(j, "inferd.queue_us"), "6");
    assert_string_equal(attr(j, "inferd.prefill_us"), "7");
    assert_string_equal(attr(j, "inferd.decode_us"), "8");
    assert_string_equal(attr(j, "inferd.request_id"), "01ABC");
    assert_string_equal(attr(j, "error.type"), "(none)");
    assert_int_equal(json_object_size(json_object_get(j, "status")), 0);
    json_decref(j);
}

static void test_a_failure_without_a_parent(void **state)
{
    struct sup_trace t = trace();
    struct sup_facts f = {0};
    struct sup_span s = {.trace = &t,
                         .tracestate = "",
                         .method = "POST",
                         .route = "/v1/embeddings",
                         .req_id = "x",
                         .status = 503,
                         .facts = &f};
    json_t *j;

    memset(t.parent_id, 0, sizeof(t.parent_id));
    j = made(&s);
    assert_null(json_object_get(j, "parentSpanId"));
    assert_null(json_object_get(j, "traceState"));
    assert_string_equal(text(j, "name"), "POST /v1/embeddings");
    assert_string_equal(attr(j, "error.type"), "503");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "status"), "code")), 2);
    assert_string_equal(attr(j, "gen_ai.operation.name"), "(none)");
    json_decref(j);

    s.status = 404; /* the client's fault is no error of a server's span */
    j = made(&s);
    assert_string_equal(attr(j, "error.type"), "(none)");
    json_decref(j);

    f = (struct sup_facts){.operation = "embeddings", .model = "m", .input_tokens = 3};
    j = made(&s);
    assert_string_equal(attr(j, "gen_ai.usage.input_tokens"), "3");
    assert_string_equal(attr(j, "gen_ai.usage.output_tokens"), "(none)");
    json_decref(j);
}

static void on_other(uv_timer_t *t)
{
}

static double spans(struct sup_metrics *m, const char *result)
{
    return sup_series_value(sup_series(m, SUP_M_SPANS, result, NULL));
}

static void test_the_channel(void **state)
{
    struct sup_trace t = trace();
    struct sup_facts f = {0};
    struct sup_span s = {.trace = &t,
                         .tracestate = "",
                         .method = "POST",
                         .route = "/x",
                         .req_id = "x",
                         .status = 200,
                         .facts = &f};
    struct sup_spans_told told = {.exported = 5, .dropped = 2, .failed = 1, .pid = 9, .held = 5};
    struct sup_spans_told last;
    struct sup_metrics *m = sup_metrics_new();
    struct sup_spans *spans_to;
    char got[SUP_SPAN_BYTES];
    uv_timer_t other;
    uv_loop_t loop;
    int fds[2], n = 0;

    assert_null(sup_spans_new(NULL, -1, 100, m));
    sup_spans_add(NULL, &s);
    assert_false(sup_spans_begins(NULL, 0));

    uv_loop_init(&loop);
    uv_timer_init(&loop, &other); /* the channel alone keeps no loop alive */
    uv_timer_start(&other, on_other, 1000000, 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
    spans_to = sup_spans_new(&loop, fds[0], 25, m);
    assert_non_null(spans_to);
    assert_true(sup_spans_begins(spans_to, 24));
    assert_false(sup_spans_begins(spans_to, 25));

    t.flags = 0; /* the caller does not want it */
    sup_spans_add(spans_to, &s);
    assert_true(recv(fds[1], got, sizeof(got), 0) < 0);
    t.flags = SUP_TRACE_SAMPLED;
    sup_spans_add(spans_to, &s);
    assert_true(recv(fds[1], got, sizeof(got), 0) > 100);
    assert_int_equal(got[0], '{');

    while (spans(m, "dropped") == 0 && n++ < 100000) /* nobody reads */
        sup_spans_add(spans_to, &s);
    assert_true(n > 10 && n < 100000);
    while (recv(fds[1], got, sizeof(got), 0) > 0)
        ;

    f.operation = "chat"; /* longer than a datagram may be */
    s.tracestate = memset(got, 'a', sizeof(got));
    got[sizeof(got) - 1] = '\0';
    sup_spans_add(spans_to, &s);
    assert_true(spans(m, "dropped") == 2);

    assert_false(sup_spans_told(NULL, &last));
    assert_true(sup_spans_told(spans_to, &last));
    assert_int_equal(last.pid, 0); /* nothing was told yet */
    assert_int_equal(send(fds[1], &told, sizeof(told), 0), sizeof(told));
    told.exported = 9;
    assert_int_equal(send(fds[1], &told, sizeof(told), 0), sizeof(told));
    uv_run(&loop, UV_RUN_NOWAIT);
    assert_true(spans(m, "exported") == 9);
    assert_true(sup_spans_told(spans_to, &last));
    assert_true(last.pid == 9 && last.held == 5 && last.exported == 9);
    assert_true(spans(m, "dropped") == 4);
    assert_true(spans(m, "failed") == 1);

    assert_int_equal(shutdown(fds[1], SHUT_WR), 0); /* it has sent all it had */
    sup_spans_flush(spans_to);
    assert_int_equal(recv(fds[1], got, sizeof(got), 0), 0); /* and was told of the end */
    sup_spans_flush(NULL);
    close(fds[1]); /* the tracer has gone */
    uv_run(&loop, UV_RUN_NOWAIT);
    s.tracestate = "";
    sup_spans_add(spans_to, &s);
    assert_true(spans(m, "dropped") == 5);
    uv_close((uv_handle_t *)&other, NULL);
    sup_spans_free(&spans_to);
    assert_null(spans_to);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    sup_metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_generation),
        cmocka_unit_test(test_a_failure_without_a_parent),
        cmocka_unit_test(test_the_channel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
