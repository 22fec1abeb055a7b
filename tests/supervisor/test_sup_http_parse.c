/* test_sup_http_parse.c - the parser layer without sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ipc.h"
#include "sup_http_priv.h"

static struct sup_hp_env env_of(size_t head, uint64_t body)
{
    return (struct sup_hp_env){
        .max_header_bytes = head, .max_body_bytes = body, .body_limit = 2 * body};
}

/* Feeds everything in pieces of `piece` bytes; returns the last event. */
static enum sup_hp_event feed(struct sup_hp *p, const char *raw, size_t n, size_t piece,
                              struct sup_head *head)
{
    enum sup_hp_event e = SUP_HP_MORE;
    size_t at = 0, used;

    while (at < n || e == SUP_HP_HEAD) {
        size_t k = piece < n - at ? piece : n - at;

        e = sup_hp_feed(p, raw + at, k, &used);
        assert_true(used <= k);
        at += used;
        if (e == SUP_HP_HEAD) {
            sup_head_free(head);
            sup_hp_head_take(p, head);
        }
        if (e == SUP_HP_DONE || e == SUP_HP_BAD)
            break;
    }
    return e;
}

static void header_texts(void **state)
{
    static const char raw[] = "POST /p?x=1 HTTP/1.1\r\n"
                              "HOST:a\r\n"
                              "Empty:\r\n"
                              "Blank: \t \r\n"
                              "Padded: \t a b \t\r\n"
                              "Twice: 1\r\n"
                              "tWICE: 2\r\n"
                              "High: \xc3\xa9\xff\r\n"
                              "Connection: keep-alive, upgrade, close, x\r\n"
                              "Proxy-Connection: y\r\n"
                              "Upgrade: z\r\n"
                              "Content-Length:   0003 \r\n"
                              "\r\nabc";
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"host", "a"},
        {"empty", ""},
        {"blank", ""},
        {"padded", "a b"},
        {"twice", "1"},
        {"high", "\xc3\xa9\xff"},
        {"upgrade", "z"},
        {"absent", NULL},
        {"connection", "keep-alive, upgrade, close, x"},
        {"content-length", "0003"},
        {"proxy-connection", "y"},
    };

    (void)state;
    for (size_t piece = 1; piece <= sizeof(raw); piece++) {
        struct sup_hp_env env = env_of(4096, 1024);
        struct sup_hp p;
        struct sup_head head = {0};
        struct sup_body body;

        sup_hp_init(&p, &env);
        assert_true(sup_hp_fresh(&p));
        assert_int_equal(feed(&p, raw, sizeof(raw) - 1, piece, &head), SUP_HP_DONE);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            const char *v = sup_head_get(&head, rows[i].name);

            if (rows[i].value ? !v || strcmp(v, rows[i].value) != 0 : v != NULL)
                fail_msg("header '%s' is '%s'", rows[i].name, v ? v : "(absent)");
        }
        assert_int_equal(head.n_pairs, 11);
        assert_int_equal(head.method, HTTP_POST);
        assert_string_equal(head.buf + head.target, "/p?x=1");
        assert_false(head.keep_alive);
        sup_hp_body_take(&p, &body);
        assert_int_equal(body.n, 3);
        assert_memory_equal(body.data, "abc", 3);
        assert_int_equal(env.body_used, body.cap);
        sup_body_free(&body, &env);
        assert_int_equal(env.body_used, 0);
        sup_head_free(&head);
        sup_hp_reset(&p);
        assert_true(sup_hp_fresh(&p));
        sup_hp_deinit(&p);
    }
}

/* The verdict at a limit does not depend on how the bytes came. */
static void head_limit(void **state)
{
    (void)state;
    for (size_t n_head = 1023; n_head <= 1025; n_head++) {
        for (size_t piece = 1; piece <= 1100; piece += 13) {
            struct sup_hp_env env = env_of(1024, 1024);
            struct sup_head head = {0};
            struct sup_hp p;
            char raw[1100];
            size_t n = (size_t)sprintf(raw, "\r\nGET / HTTP/1.1\r\nHost: x\r\nX: ");
            enum sup_hp_event e;

            while (n - 2 < n_head - 4) /* the empty line in front does not count */
                raw[n++] = 'a';
            memcpy(raw + n, "\r\n\r\n", 4);
            n += 4;
            sup_hp_init(&p, &env);
            e = feed(&p, raw, n, piece, &head);
            if (n_head <= 1024) {
                assert_int_equal(e, SUP_HP_DONE);
            } else {
                assert_int_equal(e, SUP_HP_BAD);
                assert_int_equal(sup_hp_fault(&p), SUP_F_HEAD_LONG);
            }
            sup_head_free(&head);
            sup_hp_deinit(&p);
        }
    }
}

static void bodies_are_budgeted(void **state)
{
    struct sup_hp_env env = env_of(1024, 4096);
    struct sup_hp p[3];
    struct sup_head head = {0};
    char raw[4200];
    int n = sprintf(raw, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4096\r\n\r\n");

    (void)state;
    memset(raw + n, 'b', 4000);
    for (int i = 0; i < 3; i++) {
        sup_hp_init(&p[i], &env);
        assert_int_equal(feed(&p[i], raw, (size_t)n + 4000, 500, &head),
                         i < 2 ? SUP_HP_MORE : SUP_HP_BAD);
    }
    assert_int_equal(sup_hp_fault(&p[2]), SUP_F_BODY_BUDGET);
    assert_true(env.body_used <= env.body_limit);
    for (int i = 0; i < 3; i++)
        sup_hp_deinit(&p[i]);
    assert_int_equal(env.body_used, 0);
    sup_head_free(&head);
}

/* After a refusal nothing more is read, whatever comes. */
static void refusal_sticks(void **state)
{
    struct sup_hp_env env = env_of(1024, 4096);
    struct sup_hp p;
    size_t used = 1;

    (void)state;
    sup_hp_init(&p, &env);
    assert_int_equal(sup_hp_feed(&p, "GET / HTTP/1.1\n", 15, &used), SUP_HP_BAD);
    assert_int_equal(sup_hp_fault(&p), SUP_F_BARE_LF);
    assert_int_equal(sup_hp_feed(&p, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, &used), SUP_HP_BAD);
    assert_int_equal(used, 0);
    sup_hp_deinit(&p);
}

static void utf8(void **state)
{
    static const struct {
        const char *s;
        bool ok;
    } rows[] = {
        {"", true},
        {"abc", true},
        {"\xc3\xa9", true},
        {"\xe2\x82\xac", true},
        {"\xf0\x9f\x98\x80", true},
        {"\xf4\x8f\xbf\xbf", true},
        {"\xc3", false},     /* cut */
        {"\xa9", false},     /* continuation alone */
        {"\xc0\xaf", false}, /* overlong slash */
        {"\xe0\x80\xaf", false},
        {"\xf0\x80\x80\xaf", false},
        {"\xed\xa0\x80", false},     /* surrogate */
        {"\xf4\x90\x80\x80", false}, /* above U+10FFFF */
        {"\xff", false},
        {"a\xe2\x82", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ipc_utf8_valid(rows[i].s, strlen(rows[i].s)) != rows[i].ok)
            fail_msg("row %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_texts),
        cmocka_unit_test(head_limit),
        cmocka_unit_test(bodies_are_budgeted),
        cmocka_unit_test(refusal_sticks),
        cmocka_unit_test(utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
