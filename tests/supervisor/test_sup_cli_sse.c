/* test_sup_cli_sse.c - events come out the same however the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_sse.h"

struct log {
    char text[4096];
    size_t n, stop_after;
};

static bool on_event(void *user, const char *event, const char *data, size_t n)
{
    struct log *l = user;

    assert_int_equal(strlen(data), n);
    l->n += (size_t)snprintf(l->text + l->n, sizeof(l->text) - l->n, "<%s:%s>", event, data);
    return l->stop_after == 0 || --l->stop_after > 0;
}

static const struct {
    const char *why, *in, *out;
} rows[] = {
    {"one event", "data: a\n\n", "<message:a>"},
    {"no blank behind the colon", "data:a\n\n", "<message:a>"},
    {"only one blank is taken", "data:  a\n\n", "<message: a>"},
    {"two lines of data", "data: a\ndata: b\n\n", "<message:a\nb>"},
    {"an empty line of data", "data\ndata\n\n", "<message:\n>"},
    {"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", "<message:a><message:b>"},
    {"CR", "data: a\r\rdata: b\r\r", "<message:a><message:b>"},
    {"mixed ends", "data: a\r\n\ndata: b\n\r\n", "<message:a><message:b>"},
    {"named event", "event: error\ndata: {}\n\n", "<error:{}>"},
    {"the name lasts for one event", "event: x\ndata: a\n\ndata: b\n\n", "<x:a><message:b>"},
    {"heartbeats", ": ping\n\ndata: a\n\n: ping\n\n", "<message:a>"},
    {"id, retry and others", "id: 1\nretry: 5\nfoo: bar\ndata: a\n\n", "<message:a>"},
    {"an event without data is none", "event: x\n\ndata: a\n\n", "<message:a>"},
    {"an end without a blank line is no event", "data: a\n\ndata: b\n", "<message:a>"},
    {"UTF-8", "data: \xf0\x9f\x98\x80\n\n", "<message:\xf0\x9f\x98\x80>"},
    {"colons in data", "data: {\"a\":1}\n\n", "<message:{\"a\":1}>"},
    {"a field with data in its name", "database: x\ndata: a\n\n", "<message:a>"},
};

static void events_survive_any_cut(void **state)
{
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        size_t n = strlen(rows[r].in);

        for (size_t a = 0; a <= n; a++)
            for (size_t b = a; b <= n; b++) {
                struct log l = {.n = 0};
                struct sup_sse s;

                sup_sse_init(&s, on_event, &l);
                assert_true(sup_sse_feed(&s, rows[r].in, a));
                assert_true(sup_sse_feed(&s, rows[r].in + a, b - a));
                assert_true(sup_sse_feed(&s, rows[r].in + b, n - b));
                sup_sse_deinit(&s);
                if (strcmp(l.text, rows[r].out) != 0)
                    fail_msg("%s, cut at %zu and %zu: got %s", rows[r].why, a, b, l.text);
            }
    }
}

static void byte_by_byte(void **state)
{
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct log l = {.n = 0};
        struct sup_sse s;

        sup_sse_init(&s, on_event, &l);
        for (size_t i = 0; i < strlen(rows[r].in); i++)
            assert_true(sup_sse_feed(&s, rows[r].in + i, 1));
        sup_sse_deinit(&s);
        assert_string_equal(l.text, rows[r].out);
    }
}

static void the_callback_can_stop(void **state)
{
    struct log l = {.stop_after = 1};
    struct sup_sse s;

    sup_sse_init(&s, on_event, &l);
    assert_false(sup_sse_feed(&s, "data: a\n\ndata: b\n\n", 18));
    assert_false(sup_sse_feed(&s, "data: c\n\n", 9));
    assert_string_equal(l.text, "<message:a>");
    sup_sse_deinit(&s);
}

static void an_endless_event_is_refused(void **state)
{
    struct log l = {.n = 0};
    struct sup_sse s;
    char *big = malloc(1 << 20);
    bool go = true;
    int i;

    assert_non_null(big);
    memset(big, 'x', 1 << 20);
    sup_sse_init(&s, on_event, &l);
    for (i = 0; i < 100 && go; i++)
        go = sup_sse_feed(&s, big, 1 << 20);
    assert_false(go);
    assert_true(i <= 5);
    sup_sse_deinit(&s);
    /* the same in many short lines of one event */
    sup_sse_init(&s, on_event, &l);
    for (i = 0, go = true; i < 10000 && go; i++)
        go = sup_sse_feed(&s, "data: ", 6) && sup_sse_feed(&s, big, 1000) &&
             sup_sse_feed(&s, "\n", 1);
    assert_false(go);
    sup_sse_deinit(&s);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_survive_any_cut),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(the_callback_can_stop),
        cmocka_unit_test(an_endless_event_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
