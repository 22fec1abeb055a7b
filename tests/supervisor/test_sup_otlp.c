/* test_sup_otlp.c - addresses, batches with a limit, and one exchange with a collector. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>

#include "sup_otlp.h"

static void test_addresses(void **state)
{
    static const struct {
        const char *url, *host, *port, *path; /* host NULL: refused */
    } rows[] = {
        {"http://127.0.0.1", "127.0.0.1", "4318", "/v1/traces"},
        {"http://collector:9999/", "collector", "9999", "/v1/traces"},
        {"http://collector/otlp/v1/traces", "collector", "4318", "/otlp/v1/traces"},
        {"http://[::1]:4318", "::1", "4318", "/v1/traces"},
        {"http://[::1]/x", "::1", "4318", "/x"},
        {"", NULL, NULL, NULL},
        {"collector:4318", NULL, NULL, NULL},
        {"https://collector", NULL, NULL, NULL},
        {"http://", NULL, NULL, NULL},
        {"http://:4318", NULL, NULL, NULL},
        {"http://a:0", NULL, NULL, NULL},
        {"http://a:65536", NULL, NULL, NULL},
        {"http://a:", NULL, NULL, NULL},
        {"http://a:4x", NULL, NULL, NULL},
        {"http://a:0000000004318", NULL, NULL, NULL},
        {"http://[::1", NULL, NULL, NULL},
        {"http://[::1]x", NULL, NULL, NULL},
        {"http://user@host", NULL, NULL, NULL},
        {"http://a/x y", NULL, NULL, NULL},
        {"http://a/\r\nX: y", NULL, NULL, NULL},
    };
    char longer[600] = "http://a/";
    struct sup_otlp_url u;
    struct rc_err err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum rc rc = sup_otlp_url_parse(rows[i].url, &u, &err);

        if ((rc == RC_OK) != (rows[i].host != NULL))
            fail_msg("'%s': %s", rows[i].url, rc_name(rc));
        if (rc != RC_OK) {
            assert_int_equal(rc, RC_INVALID);
            assert_string_equal(err.what, "otlp_endpoint");
            continue;
        }
        assert_string_equal(u.host, rows[i].host);
        assert_string_equal(u.port, rows[i].port);
        assert_string_equal(u.path, rows[i].path);
    }
    memset(longer + 9, 'x', 300);
    assert_int_equal(sup_otlp_url_parse(longer, &u, &err), RC_INVALID);
    memset(longer + 7, 'h', 300);
    assert_int_equal(sup_otlp_url_parse(longer, &u, &err), RC_INVALID);
}

static void test_a_batch_has_a_limit(void **state)
{
    static char big[SUP_OTLP_BYTES];
    struct sup_otlp_batch b = {0};
    struct sup_json body = {0};
    json_error_t e;
    json_t *all, *j;

    for (int i = 0; i < SUP_OTLP_SPANS; i++)
        assert_true(sup_otlp_add(&b, "{\"a\":1}", 7));
    assert_false(sup_otlp_add(&b, "{\"a\":1}", 7));
    sup_otlp_body(&b, "1 \"2\"", &body);
    all = json_loadb(body.p, body.n, 0, &e);
    if (!all)
        fail_msg("%s", e.text);
    j = json_array_get(json_object_get(all, "resourceSpans"), 0);
    j = json_array_get(json_object_get(j, "scopeSpans"), 0);
    assert_int_equal(json_array_size(json_object_get(j, "spans")), SUP_OTLP_SPANS);
    json_decref(all);
    sup_json_deinit(&body);

    sup_otlp_clear(&b);
    assert_int_equal(b.n, 0);
    memset(big, '1', sizeof(big));
    assert_false(sup_otlp_add(&b, big, sizeof(big)));
    assert_false(sup_otlp_add(&b, big, 0));
    assert_true(sup_otlp_add(&b, big, sizeof(big) - 10));
    assert_false(sup_otlp_add(&b, "{\"aaaaaaa\":1}", 13));
    assert_true(sup_otlp_add(&b, "{\"a\":1}", 7));
    assert_int_equal(b.n, 2);
    sup_otlp_deinit(&b);
}

/* A collector that says one thing. */
struct collector {
    int fd;
    const char *says; /* NULL: nothing, and waits */
    char got[4096];
    size_t n;
};

static void *collect(void *user)
{
    struct collector *c = user;
    int fd = accept(c->fd, NULL, NULL);
    ssize_t k;

    while (c->n < sizeof(c->got) - 1 &&
           (k = recv(fd, c->got + c->n, sizeof(c->got) - 1 - c->n, 0)) > 0) {
        c->n += (size_t)k;
        if (c->says && strstr(c->got, "}]}]}]}")) {
            send(fd, c->says, strlen(c->says), MSG_NOSIGNAL);
            break;
        }
    }
    close(fd);
    return NULL;
}

static int ask(struct collector *c, int timeout_ms)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sup_otlp_url u = {.host = "127.0.0.1", .port = "1", .path = "/v1/traces"};
    socklen_t n_a = sizeof(a);
    struct sup_json body = {0};
    struct sup_otlp_batch b = {0};
    pthread_t thread;
    int status;

    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(c->fd, (struct sockaddr *)&a, n_a), 0);
    assert_int_equal(getsockname(c->fd, (struct sockaddr *)&a, &n_a), 0);
    assert_int_equal(listen(c->fd, 1), 0);
    assert_true(sup_otlp_add(&b, "{\"a\":1}", 7));
    sup_otlp_body(&b, "1", &body);
    assert_int_equal(pthread_create(&thread, NULL, collect, c), 0);
    status = sup_otlp_post((struct sockaddr *)&a, n_a, &u, &body, timeout_ms);
    pthread_join(thread, NULL);
    close(c->fd);
    sup_json_deinit(&body);
    sup_otlp_deinit(&b);
    return status;
}

static void test_an_exchange(void **state)
{
    static const struct {
        const char *says;
        int status;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200},
        {"HTTP/1.0 503 x\r\n\r\n", 503},
        {"HTTP/1.1 20", -1}, /* and then nothing more */
        {"HTTP/2.0 200 OK\r\n", -1},
        {"SSH-2.0-OpenSSH_9\r\n", -1},
        {"HTTP/1.1 2x0 OK\r\n", -1},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct collector c = {.says = rows[i].says};

        assert_int_equal(ask(&c, 10000), rows[i].status);
        assert_non_null(strstr(c.got, "POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"));
        assert_non_null(strstr(c.got, "\r\nContent-Type: application/json\r\nContent-Length: "));
        assert_non_null(strstr(c.got, "\"spans\":[{\"a\":1}]"));
    }
}

static void test_a_silent_collector(void **state)
{
    struct collector c = {0};

    assert_int_equal(ask(&c, 50), -1);
}

static void test_what_is_sent_again(void **state)
{
    assert_true(sup_otlp_again(-1) && sup_otlp_again(429) && sup_otlp_again(503));
    assert_false(sup_otlp_again(200) || sup_otlp_again(400) || sup_otlp_again(500));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),          cmocka_unit_test(test_a_batch_has_a_limit),
        cmocka_unit_test(test_an_exchange),        cmocka_unit_test(test_a_silent_collector),
        cmocka_unit_test(test_what_is_sent_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
