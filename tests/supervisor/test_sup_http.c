/* test_sup_http.c - requests and answers over real sockets: routing, bodies,
 * keep-alive, pipelining, expectations, limits, aborts, draining. */
#include <sys/resource.h>

#include "http_harness.h"

#define H "Host: x\r\n"

/* Sends one raw text, reads the first answer. */
static struct client ask(struct rig *g, const char *raw)
{
    struct client c = c_open(g);

    c_text(g, &c, raw);
    READ_UNTIL(g, &c,
               strncmp(raw, "HEAD", 4) == 0 ? strstr(c.in, "\r\n\r\n") != NULL : answered(&c));
    return c;
}

static bool ends_with(const struct client *c, const char *tail)
{
    size_t n = strlen(tail);

    return c->n >= n && memcmp(c->in + c->n - n, tail, n) == 0;
}

static void answers(void **state)
{
    static const struct {
        const char *raw;
        int status;
        const char *has, *path, *tail, *query;
        bool close;
    } rows[] = {
        {"GET /healthz HTTP/1.1\r\n" H "\r\n", 200, "\r\n\r\nfine", "/healthz", "", "-", false},
        {"GET /healthz HTTP/1.1\r\n" H "Connection: close\r\n\r\n", 200, "Connection: close\r\n",
         "/healthz", "", "-", true},
        {"GET /healthz HTTP/1.0\r\n\r\n", 200, "Connection: close\r\n", "/healthz", "", "-", true},
        {"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200,
         "Connection: keep-alive\r\n", "/healthz", "", "-", false},
        {"\r\n\r\nGET /healthz HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "", "-", false},
        {"HEAD /healthz HTTP/1.1\r\n" H "\r\n", 200, "Content-Length: 4\r\n", "/healthz", "", "-",
         false},
        {"OPTIONS /healthz HTTP/1.1\r\n" H "\r\n", 204, "Allow: GET, HEAD, OPTIONS\r\n", NULL, NULL,
         NULL, false},
        {"OPTIONS /echo HTTP/1.1\r\n" H "\r\n", 204, "Allow: POST, OPTIONS\r\n", NULL, NULL, NULL,
         false},
        {"POST /echo HTTP/1.1\r\n" H "Origin: http://evil\r\nContent-Length: 3\r\n\r\nabc", 403,
         "{\"error\":\"ORIGIN_NOT_ALLOWED\",\"message\":\"", NULL, NULL, NULL, false},
        {"POST /echo HTTP/1.1\r\n" H "Origin: http://x\r\nContent-Length: 3\r\n\r\nabc", 403,
         "ORIGIN_NOT_ALLOWED", NULL, NULL, NULL, false}, /* the same name, but a name */
        {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:1\r\n\r\n", 200,
         "fine", "/healthz", "", "-", false},
        {"OPTIONS /echo HTTP/1.1\r\n" H "Origin: null\r\n\r\n", 403, "ORIGIN_NOT_ALLOWED", NULL,
         NULL, NULL, false}, /* a preflight */
        {"OPTIONS * HTTP/1.1\r\n" H "\r\n", 204, "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n",
         NULL, NULL, NULL, false},
        {"OPTIONS /nowhere HTTP/1.1\r\n" H "\r\n", 404, "NOT_FOUND", NULL, NULL, NULL, false},
        {"GET * HTTP/1.1\r\n" H "\r\n", 400, "INVALID_REQUEST", NULL, NULL, NULL, true},
        {"POST /healthz HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", 405,
         "Allow: GET, HEAD, OPTIONS\r\n", NULL, NULL, NULL, false},
        {"PROPFIND /healthz HTTP/1.1\r\n" H "\r\n", 405, "METHOD_NOT_ALLOWED", NULL, NULL, NULL,
         false},
        {"HEAD /echo HTTP/1.1\r\n" H "\r\n", 405, "Allow: POST, OPTIONS\r\n", NULL, NULL, NULL,
         false},
        {"GET /nowhere HTTP/1.1\r\n" H "\r\n", 404, "{\"error\":\"NOT_FOUND\",\"message\":\"", NULL,
         NULL, NULL, false},
        {"POST /nowhere HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n", 404, "NOT_FOUND",
         NULL, NULL, NULL, true},
        {"GET /healthz/ HTTP/1.1\r\n" H "\r\n", 404, "NOT_FOUND", NULL, NULL, NULL, false},
        {"GET http://x/healthz?q=1 HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "", "1", false},
        {"GET http://x HTTP/1.1\r\n" H "\r\n", 400, "INVALID_REQUEST", NULL, NULL, NULL, true},
        {"GET /%68ealthz HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "", "-", false},
        {"GET /v1%2Fmodels HTTP/1.1\r\n" H "\r\n", 404, "NOT_FOUND", NULL, NULL, NULL, false},
        {"GET /v1/models HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models", "", "-", false},
        {"GET /v1/models/ HTTP/1.1\r\n" H "\r\n", 404, "NOT_FOUND", NULL, NULL, NULL, false},
        {"GET /v1/models/a%2Fb%20c HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models/a/b c", "a/b c",
         "-", false},
        {"GET /v1/models/a/b HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models/a/b", "a/b", "-",
         false},
        {"GET /v1/models/..%2f..%2fetc HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models/../../etc",
         "../../etc", "-", false},
        {"GET /v1/models/load HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models/load", "load", "-",
         false},
        {"POST /v1/models/load HTTP/1.1\r\n" H "\r\n", 200, "fine", "/v1/models/load", "", "-",
         false},
        {"PUT /v1/models/load HTTP/1.1\r\n" H "\r\n", 405,
         "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n", NULL, NULL, NULL, false},
        {"GET /healthz?a=b&q=x%26y+z&q=2 HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "",
         "x&y z", false},
        {"GET /healthz?q HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "", "-", false},
        {"GET /healthz?&&q=&x HTTP/1.1\r\n" H "\r\n", 200, "fine", "/healthz", "", "", false},
        {"GET /healthz HTTP/1.1\r\n" H "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
         "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
         200, "fine", "/healthz", "", "-", false},
        {"GET /healthz HTTP/1.1\r\n" H "Expect: 100-continue\r\n\r\n", 200, "fine", "/healthz", "",
         "-", false},
        {"POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200, "\r\n\r\nhello", NULL,
         NULL, NULL, false},
        {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: ChunKed\r\n\r\n"
         "5;x=\"y\"\r\nhello\r\n00A\r\n 234567890\r\n0\r\nTrailer: x\r\n\r\n",
         200, "\r\n\r\nhello 234567890", NULL, NULL, NULL, false},
        {"GET /healthz HTTP/1.1\r\nhOST:x\r\nX-Request-Id: \tabc-1.2_Z \r\n\r\n", 200,
         "X-Request-Id: abc-1.2_Z\r\n", "/healthz", "", "-", false},
    };
    struct rig *g = rig_new();

    (void)state;
    rig_start(g);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client c = ask(g, rows[i].raw);

        if (status_of(&c) != rows[i].status || !strstr(c.in, rows[i].has))
            fail_msg("row %zu: expected %d with '%s', got: %s", i, rows[i].status, rows[i].has,
                     c.in);
        if (!strstr(c.in, "Server: inferd\r\n") || !strstr(c.in, "X-Request-Id: "))
            fail_msg("row %zu: a standing header is missing: %s", i, c.in);
        if (rows[i].path && strcmp(rows[i].path, g->path) != 0)
            fail_msg("row %zu: path '%s'", i, g->path);
        if (rows[i].path && strcmp(rows[i].tail, g->tail) != 0)
            fail_msg("row %zu: tail '%s'", i, g->tail);
        if (rows[i].path && strcmp(rows[i].query, g->query) != 0)
            fail_msg("row %zu: query '%s'", i, g->query);
        if (strncmp(rows[i].raw, "HEAD", 4) == 0 && !ends_with(&c, "\r\n\r\n"))
            fail_msg("row %zu: HEAD got a body", i);
        if (rows[i].close) {
            shutdown(c.fd, SHUT_WR);
            READ_UNTIL(g, &c, c.closed);
        } else { /* the connection serves another */
            c.n = 0;
            c_text(g, &c, "GET /hidden HTTP/1.1\r\n" H "\r\n");
            READ_UNTIL(g, &c, answered(&c) && ends_with(&c, "hidden"));
        }
        c_free(&c);
    }
    rig_free(g);
}

static void request_ids(void **state)
{
    static const char *const insane[] = {
        "",
        "a b",
        "a\"b",
        "{}",
        "a/b",
        "0123456789012345678901234567890123456789012345678901234567"
        "8901234"};
    struct rig *g = rig_new();
    char raw[256], last[80] = "";

    (void)state;
    rig_start(g);
    for (size_t i = 0; i < sizeof(insane) / sizeof(insane[0]); i++) {
        struct client c;

        snprintf(raw, sizeof(raw), "GET /healthz HTTP/1.1\r\n" H "X-Request-Id: %s\r\n\r\n",
                 insane[i]);
        c = ask(g, raw);
        assert_int_equal(strlen(g->id), 26);
        assert_string_not_equal(g->id, last);
        assert_non_null(strstr(c.in, g->id));
        snprintf(last, sizeof(last), "%s", g->id);
        c_free(&c);
    }
    rig_free(g);
}

static void every_split(void **state)
{
    static const char *const raws[] = {
        "GET /v1/models/a%2Fb?q=1%202 HTTP/1.1\r\n" H "X: y\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" H
        "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\n"
        "T: x\r\n\r\n",
    };
    struct rig *g = rig_new();

    (void)state;
    rig_start(g);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(raws[i]);

        for (size_t cut = 1; cut < n; cut++) {
            struct client c = c_open(g);

            c_send(g, &c, raws[i], cut);
            for (int k = 0; k < 4; k++)
                turn(g);
            c_read(&c);
            assert_int_equal(c.n, 0);
            c_send(g, &c, raws[i] + cut, n - cut);
            READ_UNTIL(g, &c, answered(&c));
            assert_int_equal(status_of(&c), 200);
            assert_true(ends_with(&c, i == 0 ? "fine" : "hello"));
            c_free(&c);
        }
    }
    rig_free(g);
}

static void pipelining(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    char raw[128];

    (void)state;
    rig_start(g);
    c = c_open(g);
    for (int i = 0; i < 50; i++) {
        snprintf(raw, sizeof(raw), "POST /echo HTTP/1.1\r\n" H "Content-Length: 7\r\n\r\n<%05d>",
                 i);
        c_text(g, &c, raw);
    }
    READ_UNTIL(g, &c, strstr(c.in, "<00049>"));
    assert_int_equal(count(c.in, "HTTP/1.1 200 OK"), 50);
    for (int i = 1; i < 50; i++) {
        char a[16], b[16];

        snprintf(a, sizeof(a), "<%05d>", i - 1);
        snprintf(b, sizeof(b), "<%05d>", i);
        assert_true(strstr(c.in, a) < strstr(c.in, b));
    }
    c_free(&c);

    /* One in work holds the others back, also those read meanwhile. */
    c = c_open(g);
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, g->n_held == 1);
    for (int i = 0; i < 20; i++)
        c_text(g, &c, "GET /hidden HTTP/1.1\r\n" H "\r\n");
    for (int i = 0; i < 50; i++)
        turn(g);
    assert_int_equal(g->n_hidden, 0);
    sup_reply(g->held[0].req, 200, "text/plain", "first", 5);
    assert_int_equal(g->n_hidden, 0); /* not inside the call */
    READ_UNTIL(g, &c, count(c.in, "\r\n\r\nhidden") == 20);
    assert_true(strstr(c.in, "first") < strstr(c.in, "hidden"));
    c_free(&c);
    rig_free(g);
}

/* What follows a request that asked for the end is not run. */
static void nothing_behind_close(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = c_open(g);
    c_text(g, &c,
           "GET /healthz HTTP/1.1\r\n" H "Connection: close\r\n\r\n"
           "GET /hidden HTTP/1.1\r\n" H "\r\n");
    READ_UNTIL(g, &c, c.closed);
    assert_false(c.reset);
    assert_int_equal(count(c.in, "HTTP/1.1 200"), 1);
    assert_int_equal(g->n_hidden, 0);
    c_free(&c);

    c = c_open(g); /* the same when the first waits and the second came meanwhile */
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    WAIT_FOR(g, g->n_held == 1);
    c_text(g, &c, "GET /hidden HTTP/1.1\r\n" H "\r\n");
    for (int i = 0; i < 10; i++)
        turn(g);
    sup_reply(g->held[0].req, 200, "text/plain", "first", 5);
    READ_UNTIL(g, &c, c.closed);
    assert_true(ends_with(&c, "first"));
    assert_int_equal(g->n_hidden, 0);
    c_free(&c);
    rig_free(g);
}

/* Far more than the read-ahead holds, behind a request that waits. */
static void read_ahead_is_bounded(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    struct linger rst = {.l_onoff = 1};
    const char *one = "GET /hidden HTTP/1.1\r\n" H "\r\n";
    size_t n_one = strlen(one), sent = 0;
    int idle = 0, want;

    (void)state;
    rig_start(g);
    c = c_open(g);
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, g->n_held == 1);
    while (idle < 100 && sent < (64u << 20)) { /* until the kernel's buffers are full */
        ssize_t k = send(c.fd, one + sent % n_one, n_one - sent % n_one, MSG_NOSIGNAL);

        idle = k > 0 ? 0 : idle + 1;
        sent += k > 0 ? (size_t)k : 0;
        turn(g);
    }
    assert_true(sent < (64u << 20)); /* the server stopped taking */
    want = (int)(sent / n_one);
    sup_reply(g->held[0].req, 200, "text/plain", "", 0);
    WAIT_FOR(g, (c_read(&c), c.n = c.n > 200 ? 0 : c.n, g->n_hidden == want));

    /* And a client that leaves while nothing is read is found by the sweep. */
    c_text(g, &c, one + sent % n_one);
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, (c_read(&c), g->n_held == 2));
    for (idle = 0, sent = 0; idle < 100;) {
        ssize_t k = send(c.fd, one + sent % n_one, n_one - sent % n_one, MSG_NOSIGNAL);

        idle = k > 0 ? 0 : idle + 1;
        sent += k > 0 ? (size_t)k : 0;
        turn(g);
    }
    setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst)); /* a FIN would queue behind */
    c_free(&c);
    WAIT_FOR(g, g->held[1].aborted == 1);
    rig_free(g);
}

static void expectations_and_sizes(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    char *big = calloc(1, 8 << 20);

    (void)state;
    g->conf.max_body_bytes = 1 << 20;
    g->conf.max_media_bytes = 750; /* 1000 characters */
    rig_start(g);
    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n");
    READ_UNTIL(g, &c, strstr(c.in, "\r\n\r\n"));
    assert_string_equal(c.in, "HTTP/1.1 100 Continue\r\n\r\n");
    c_text(g, &c, "hello");
    READ_UNTIL(g, &c, ends_with(&c, "\r\n\r\nhello"));
    c_free(&c);

    c = ask(g,
            "POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 1048577\r\n\r\n");
    assert_int_equal(status_of(&c), 413);
    assert_null(strstr(c.in, "100 Continue"));
    assert_non_null(strstr(c.in, "CONTENT_TOO_LARGE"));
    c_free(&c);

    c = ask(g, "POST /nowhere HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_int_equal(status_of(&c), 404);
    c_free(&c);

    /* Refused by its length alone; the client may send all of it and still read why. */
    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 8388608\r\n\r\n");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 413);
    c_send(g, &c, big, 8 << 20);
    shutdown(c.fd, SHUT_WR);
    READ_UNTIL(g, &c, c.closed);
    assert_false(c.reset);
    c_free(&c);

    /* Exactly the limit passes, in one piece and chunked. */
    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1048576\r\n\r\n");
    c_send(g, &c, big, 1 << 20);
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 200);
    assert_int_equal(g->n_body, 1 << 20);
    c_free(&c);
    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 16; i++) {
        c_text(g, &c, "10000\r\n");
        c_send(g, &c, big, 65536);
        c_text(g, &c, "\r\n");
    }
    c_text(g, &c, "1\r\n");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 413);
    c_free(&c);

    /* Where files are taken they come on top, in base64. */
    c = c_open(g);
    c_text(g, &c, "POST /files HTTP/1.1\r\n" H "Content-Length: 1049576\r\n\r\n");
    c_send(g, &c, big, (1 << 20) + 1000);
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 200);
    assert_int_equal(g->n_body, (1 << 20) + 1000);
    c_free(&c);
    c = ask(g, "POST /files HTTP/1.1\r\n" H "Content-Length: 1049577\r\n\r\n");
    assert_int_equal(status_of(&c), 413);
    c_free(&c);
    c = ask(g, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1049576\r\n\r\n");
    assert_int_equal(status_of(&c), 413);
    c_free(&c);
    c = ask(g, "POST /nowhere HTTP/1.1\r\n" H "Content-Length: 1049576\r\n\r\n");
    assert_int_equal(status_of(&c), 413);
    c_free(&c);
    free(big);
    rig_free(g);
}

/* All bodies together may take 16 of the largest. */
static void body_budget(void **state)
{
    struct rig *g = rig_new();
    struct client c[20];
    int n_refused = 0;

    (void)state;
    g->conf.max_body_bytes = 1024;
    g->conf.max_media_bytes = 0;
    rig_start(g);
    for (int i = 0; i < 20; i++) {
        c[i] = c_open(g);
        c_text(g, &c[i], "POST /echo HTTP/1.1\r\n" H "Content-Length: 1024\r\n\r\na");
        for (int k = 0; k < 5; k++)
            turn(g);
    }
    for (int i = 0; i < 20; i++) {
        c_read(&c[i]);
        n_refused += status_of(&c[i]) == 503;
        if (c[i].n) {
            assert_non_null(strstr(c[i].in, "Retry-After: 1\r\n"));
            assert_non_null(strstr(c[i].in, "{\"error\":\"MODEL_RESOURCE_BUSY\","));
            assert_non_null(strstr(c[i].in, ",\"retryable\":true,\"reason\":\"inference_capacity\","
                                            "\"retry_after_ms\":1000}"));
        }
    }
    assert_int_equal(n_refused, 4);
    for (int i = 0; i < 20; i++)
        c_free(&c[i]);
    WAIT_FOR(g, sup_series_value(sup_series(g->metrics, SUP_M_HTTP_CONNS, NULL, NULL)) == 0);
    c[0] = ask(g, "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc");
    assert_int_equal(status_of(&c[0]), 200);
    c_free(&c[0]);
    rig_free(g);
}

static void time_limits(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    g->conf.header_timeout_ms = g->conf.body_timeout_ms = 100;
    g->conf.idle_timeout_ms = 1000;
    rig_start(g);
    c = c_open(g);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\nHos");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 408);
    assert_non_null(strstr(c.in, "header_timeout_ms"));
    c_free(&c);

    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhe");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 408);
    assert_non_null(strstr(c.in, "body_timeout_ms"));
    c_free(&c);

    c = c_open(g); /* says nothing at all */
    READ_UNTIL(g, &c, c.closed);
    assert_int_equal(c.n, 0);
    c_free(&c);

    c = ask(g, "GET /healthz HTTP/1.1\r\n" H "\r\n"); /* quiet after an answer */
    READ_UNTIL(g, &c, c.closed);
    assert_int_equal(count(c.in, "HTTP/1.1"), 1);
    c_free(&c);

    c = c_open(g); /* drips: each byte in time, the whole not */
    for (int i = 0; i < 2000 && !c.closed && !answered(&c); i++) {
        c_text(g, &c, i == 0 ? "GET /healthz HTTP/1.1\r\nX: " : "a");
        uv_sleep(1);
        turn(g);
        c_read(&c);
    }
    assert_int_equal(status_of(&c), 408);
    c_free(&c);
    assert_int_equal(g->n_ok, 1);
    rig_free(g);
}

static void too_many_connections(void **state)
{
    struct rig *g = rig_new();
    struct client c[6];

    (void)state;
    g->conf.max_connections = 4;
    rig_start(g);
    for (int i = 0; i < 6; i++) {
        c[i] = c_open(g);
        c_text(g, &c[i], "GET /healthz HTTP/1.1\r\n" H "\r\n");
        READ_UNTIL(g, &c[i], answered(&c[i]));
        assert_int_equal(status_of(&c[i]), i < 4 ? 200 : 503);
    }
    assert_non_null(strstr(c[5].in, "max_connections"));
    assert_non_null(strstr(c[5].in, ",\"retryable\":true,\"reason\":\"inference_admission\","));
    for (int i = 0; i < 6; i++)
        c_free(&c[i]);
    WAIT_FOR(g, sup_series_value(sup_series(g->metrics, SUP_M_HTTP_CONNS, NULL, NULL)) == 0);
    c[0] = ask(g, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    assert_int_equal(status_of(&c[0]), 200);
    c_free(&c[0]);
    rig_free(g);
}

/* No descriptor left: those who are connected are served, the others wait. */
static void out_of_descriptors(void **state)
{
    struct rig *g = rig_new();
    struct client first, late[8];
    struct rlimit old, low;
    int next;

    (void)state;
    g->conf.header_timeout_ms = 4000;
    rig_start(g);
    first = ask(g, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    for (int i = 0; i < 8; i++) {
        late[i] = c_open(g);
        c_text(g, &late[i], "GET /healthz HTTP/1.1\r\n" H "\r\n");
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    next = dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int i = 0; i < 10; i++) {
        turn(g); /* ends, and does not spin */
        first.n = 0;
        c_text(g, &first, "GET /healthz HTTP/1.1\r\n" H "\r\n");
        READ_UNTIL(g, &first, answered(&first));
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_true(sup_series_value(sup_series(g->metrics, SUP_M_HTTP_REFUSED, "accept", NULL)) >= 1);
    for (int i = 0; i < 8; i++) {
        READ_UNTIL(g, &late[i], answered(&late[i]));
        c_free(&late[i]);
    }
    c_free(&first);
    rig_free(g);
}

static void client_leaves(void **state)
{
    struct rig *g = rig_new();
    struct client c[3];
    struct linger rst = {.l_onoff = 1};

    (void)state;
    rig_start(g);
    for (int i = 0; i < 3; i++) {
        c[i] = c_open(g);
        c_text(g, &c[i],
               i == 2 ? "GET /husk HTTP/1.1\r\n" H "\r\n"
                      : "POST /wait HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc");
        WAIT_FOR(g, g->n_held == i + 1);
    }
    setsockopt(c[1].fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
    for (int i = 0; i < 3; i++)
        c_free(&c[i]); /* FIN, RST, FIN */
    WAIT_FOR(g, g->n_aborted == 2);
    WAIT_FOR(g, sup_series_value(sup_series(g->metrics, SUP_M_HTTP_CONNS, NULL, NULL)) == 0);
    assert_int_equal(g->held[0].aborted, 1);
    assert_int_equal(g->held[1].aborted, 1);
    /* The third handler did not ask; its request is valid until answered. */
    assert_string_equal(sup_req_path(g->held[2].req), "/husk");
    sup_reply(g->held[2].req, 200, "text/plain", "late", 4);
    assert_true(sup_series_value(sup_series(g->metrics, SUP_M_HTTP_REQUESTS, "wait", "499")) == 2);
    rig_free(g);
}

/* A whole request and an end of input in one go: a handler that answers at once
 * is heard. */
static void half_close_after_request(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = c_open(g);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H "\r\nGET /healthz HTTP/1.1\r\n" H "\r\n");
    shutdown(c.fd, SHUT_WR);
    READ_UNTIL(g, &c, c.closed);
    assert_int_equal(count(c.in, "HTTP/1.1 200 OK"), 2);
    c_free(&c);
    c = c_open(g);
    c_text(g, &c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\nhalf");
    shutdown(c.fd, SHUT_WR);
    READ_UNTIL(g, &c, c.closed);
    assert_int_equal(c.n, 0);
    c_free(&c);
    rig_free(g);
}

static void on_done(void *user)
{
    ((struct rig *)user)->n_done++;
}

static void draining(void **state)
{
    struct rig *g = rig_new();
    struct client idle, busy, late = {0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    (void)state;
    rig_start(g);
    idle = ask(g, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    busy = c_open(g);
    c_text(g, &busy, "GET /sse HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, g->n_held == 1);
    sup_http_drain(g->http, on_done, g);
    READ_UNTIL(g, &idle, idle.closed);
    c_free(&idle);
    a.sin_port = htons((uint16_t)sup_http_port(g->http));
    late.fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(late.fd, (struct sockaddr *)&a, sizeof(a)), -1);
    close(late.fd);
    assert_int_equal(g->n_done, 0);
    assert_true(sup_stream_write(g->held[0].req, "still here", 10));
    READ_UNTIL(g, &busy, strstr(busy.in, "still here"));
    sup_stream_end(g->held[0].req);
    READ_UNTIL(g, &busy, busy.closed);
    assert_true(ends_with(&busy, "0\r\n\r\n"));
    WAIT_FOR(g, g->n_done == 1);
    c_free(&busy);
    rig_free(g);

    g = rig_new(); /* nobody there */
    rig_start(g);
    sup_http_drain(g->http, on_done, g);
    WAIT_FOR(g, g->n_done == 1);
    rig_free(g);
}

static void stop_cuts_all(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = c_open(g);
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, g->n_held == 1);
    sup_http_stop(g->http);
    assert_int_equal(g->n_aborted, 1);
    READ_UNTIL(g, &c, c.closed);
    c_free(&c);
    rig_free(g);
}

/* A socket that never reads an answer may not run request after request. */
static void answers_unread(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    const char *one = "GET /healthz HTTP/1.1\r\n" H "\r\n";
    size_t n_one = strlen(one), sent = 0;
    int idle = 0;

    (void)state;
    g->conf.write_timeout_ms = 300;
    rig_start(g);
    c = c_open_slow(g);
    while (idle < 100 && sent < (64u << 20)) {
        ssize_t k = send(c.fd, one + sent % n_one, n_one - sent % n_one, MSG_NOSIGNAL);

        idle = k > 0 ? 0 : idle + 1;
        sent += k > 0 ? (size_t)k : 0;
        turn(g);
    }
    assert_true(sent < (64u << 20));
    WAIT_FOR(g, sup_series_value(
                    sup_series(g->metrics, SUP_M_HTTP_REFUSED, "write_timeout", NULL)) == 1);
    c_free(&c);
    rig_free(g);
}

/* A span of its own, told to the caller; what is malformed or given twice is as if absent. */
static void trace_context(void **state)
{
#define PARENT "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    static const char *const none[] = {"", "traceparent: 00-abc\r\n",
                                       "traceparent: " PARENT "\r\ntraceparent: " PARENT "\r\n",
                                       "tracestate: a=1\r\n"};
    struct rig *g = rig_new();
    char raw[512], first[17] = "";
    struct client c;

    rig_start(g);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        c = c_open(g);
        snprintf(raw, sizeof(raw), "GET /healthz HTTP/1.1\r\nHost: x\r\n%s\r\n", none[i]);
        c_text(g, &c, raw);
        READ_UNTIL(g, &c, answered(&c));
        assert_int_equal(status_of(&c), 200);
        assert_null(strstr(c.in, "traceresponse"));
        c_free(&c);
    }
    for (int i = 0; i < 2; i++) {
        const char *at;

        c = c_open(g);
        c_text(g, &c,
               "GET /healthz HTTP/1.1\r\nHost: x\r\ntraceparent: " PARENT
               "\r\ntracestate: a=1\r\n\r\n");
        READ_UNTIL(g, &c, answered(&c));
        at = strstr(c.in, "\r\ntraceresponse: 00-4bf92f3577b34da6a3ce929d0e0e4736-");
        assert_non_null(at);
        at = strchr(at, ':') + 2 + 36;
        assert_memory_equal(at + 16, "-01\r\n", 5);
        assert_memory_not_equal(at, "00f067aa0ba902b7", 16); /* not the caller's span */
        assert_memory_not_equal(at, first, 16);              /* nor that of another request */
        memcpy(first, at, 16);
        c_free(&c);
    }
    rig_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(request_ids),
        cmocka_unit_test(every_split),
        cmocka_unit_test(pipelining),
        cmocka_unit_test(nothing_behind_close),
        cmocka_unit_test(read_ahead_is_bounded),
        cmocka_unit_test(expectations_and_sizes),
        cmocka_unit_test(body_budget),
        cmocka_unit_test(time_limits),
        cmocka_unit_test(too_many_connections),
        cmocka_unit_test(out_of_descriptors),
        cmocka_unit_test(client_leaves),
        cmocka_unit_test(half_close_after_request),
        cmocka_unit_test(draining),
        cmocka_unit_test(stop_cuts_all),
        cmocka_unit_test(trace_context),
        cmocka_unit_test(answers_unread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
