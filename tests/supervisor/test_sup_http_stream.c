/* test_sup_http_stream.c - streams: framing, coalescing, back-pressure, memory. */
#include <sys/resource.h>

#include "http_harness.h"
#include "sup_http_priv.h"

#define H "Host: x\r\n"
#define SSE "GET /sse HTTP/1.1\r\n" H "\r\n"

static double metric(struct rig *g, enum sup_metric id, const char *l1, const char *l2)
{
    return sup_series_value(sup_series(g->metrics, id, l1, l2));
}

static struct client open_stream(struct rig *g, bool slow, const char *raw)
{
    struct client c = slow ? c_open_slow(g) : c_open(g);
    int n = g->n_held;

    c_text(g, &c, raw);
    WAIT_FOR(g, g->n_held == n + 1);
    return c;
}

static void framing(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = open_stream(g, false, SSE);
    READ_UNTIL(g, &c, strstr(c.in, "\r\n\r\n")); /* the head does not wait for data */
    assert_non_null(strstr(c.in, "Transfer-Encoding: chunked\r\n"));
    assert_null(strstr(c.in, "Content-Length"));
    assert_null(strstr(c.in, "\r\nInjected:")); /* a header value cannot begin a line */
    assert_non_null(strstr(c.in, "X-Two: a  Injected: b\r\n"));
    c.n = 0;
    assert_true(sup_stream_write(g->held[0].req, "data: 1\n\n", 9));
    assert_true(sup_stream_write(g->held[0].req, "", 0)); /* would end a chunked body */
    assert_true(sup_stream_write(g->held[0].req, "data: 2\n\n", 9));
    c_read(&c);
    assert_int_equal(c.n, 0); /* leaves at the turn's end, in one write */
    sup_stream_end(g->held[0].req);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H "\r\n"); /* the connection goes on */
    READ_UNTIL(g, &c, strstr(c.in, "fine"));
    assert_ptr_equal(strstr(c.in, "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\nHTTP/1.1 200"),
                     c.in);
    c_free(&c);

    c = open_stream(g, false, "GET /sse HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    sup_stream_write(g->held[1].req, "data: 1\n\n", 9);
    sup_stream_end(g->held[1].req);
    READ_UNTIL(g, &c, c.closed);
    assert_non_null(strstr(c.in, "Connection: close\r\n"));
    assert_null(strstr(c.in, "chunked"));
    assert_non_null(strstr(c.in, "\r\n\r\ndata: 1\n\n"));
    c_free(&c);

    c = open_stream(g, false, "HEAD /sse HTTP/1.1\r\n" H "\r\n");
    sup_stream_write(g->held[2].req, "data: 1\n\n", 9);
    sup_stream_end(g->held[2].req);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    READ_UNTIL(g, &c, strstr(c.in, "fine"));
    assert_non_null(strstr(c.in, "\r\n\r\nHTTP/1.1 200"));
    assert_null(strstr(c.in, "data:"));
    c_free(&c);
    rig_free(g);
}

/* Writes of one turn leave in one packet: the client's first read has them all. */
static void one_write_per_turn(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = open_stream(g, false, SSE);
    READ_UNTIL(g, &c, strstr(c.in, "\r\n\r\n"));
    c.n = 0;
    for (int i = 0; i < 100; i++)
        sup_stream_write(g->held[0].req, "data: token\n\n", 13);
    turn(g);
    READ_UNTIL(g, &c, c.n > 0);
    assert_int_equal(count(c.in, "data: token"), 100);
    c_free(&c);
    WAIT_FOR(g, g->n_aborted == 1);
    rig_free(g);
}

/* A client that reads nothing is paused, then drained when it reads again; a
 * neighbour never notices. */
static void pause_and_drain(void **state)
{
    struct rig *g = rig_new();
    struct client slow, quick;
    char block[4096];
    int n = 0;
    size_t got = 0;

    (void)state;
    g->conf.stream_buffer_bytes = 65536;
    rig_start(g);
    memset(block, 'x', sizeof(block));
    slow = open_stream(g, true, SSE);
    quick = open_stream(g, false, SSE);
    while (sup_stream_write(g->held[0].req, block, sizeof(block))) {
        assert_true(++n < 10000);
        turn(g);
    }
    assert_true(metric(g, SUP_M_HTTP_STREAMS_PAUSED, NULL, NULL) == 1);
    for (int i = 0; i < 50; i++) {
        assert_true(sup_stream_write(g->held[1].req, "data: q\n\n", 9));
        turn(g);
    }
    READ_UNTIL(g, &quick, count(quick.in, "data: q") == 50);
    assert_int_equal(g->held[0].drained, 0);
    while (!g->held[0].drained) { /* reads until the server asks for more */
        slow.n = 0;
        c_read(&slow);
        got += slow.n;
        turn(g);
        assert_true(got < (64u << 20));
    }
    assert_int_equal(g->held[0].drained, 1);
    assert_int_equal(g->held[1].drained, 0);
    assert_true(sup_stream_write(g->held[0].req, "end", 3));
    sup_stream_end(g->held[0].req);
    sup_stream_end(g->held[1].req);
    READ_UNTIL(g, &quick, strstr(quick.in, "0\r\n\r\n"));
    assert_int_equal(g->n_aborted, 0);
    c_free(&slow);
    c_free(&quick);
    rig_free(g);
}

/* A producer that goes on after `false` is bounded: four times the mark, then cut. */
static void too_slow_is_cut(void **state)
{
    struct rig *g = rig_new();
    struct client slow, quick;
    char block[4096];
    int n = 0;

    (void)state;
    g->conf.stream_buffer_bytes = 65536;
    rig_start(g);
    memset(block, 'x', sizeof(block));
    slow = open_stream(g, true, SSE);
    quick = open_stream(g, false, SSE);
    while (!g->held[0].aborted) {
        sup_stream_write(g->held[0].req, block, sizeof(block));
        assert_int_equal(g->held[0].aborted, 0); /* never inside the call */
        turn(g);
        assert_true(++n < 20000);
    }
    assert_true(metric(g, SUP_M_HTTP_REFUSED, "slow_reader", NULL) == 1);
    assert_true(sup_stream_write(g->held[1].req, "data: q\n\n", 9));
    sup_stream_end(g->held[1].req);
    READ_UNTIL(g, &quick, strstr(quick.in, "data: q\n\n\r\n0\r\n\r\n"));
    c_free(&slow);
    c_free(&quick);
    rig_free(g);
}

static void write_timeout(void **state)
{
    struct rig *g = rig_new();
    struct client slow;
    char block[4096];

    (void)state;
    g->conf.stream_buffer_bytes = 65536;
    g->conf.write_timeout_ms = 200;
    rig_start(g);
    memset(block, 'x', sizeof(block));
    slow = open_stream(g, true, SSE);
    for (int n = 0; sup_stream_write(g->held[0].req, block, sizeof(block)); n++) {
        assert_true(n < 10000);
        turn(g);
    }
    WAIT_FOR(g, g->held[0].aborted == 1);
    assert_true(metric(g, SUP_M_HTTP_REFUSED, "write_timeout", NULL) == 1);
    c_free(&slow);
    rig_free(g);
}

/* A quiet stream outlives every limit but the total one. */
static void quiet_stream_lives(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = open_stream(g, false, SSE);
    READ_UNTIL(g, &c, strstr(c.in, "\r\n\r\n"));
    sup_conn_sweep(g->http->conns, uv_now(&g->loop) + g->conf.request_timeout_ms);
    turn(g);
    c_read(&c);
    assert_false(c.closed);
    sup_conn_sweep(g->http->conns,
                   uv_now(&g->loop) + g->conf.request_timeout_ms + SUP_OVERDUE_GRACE_MS + 1000);
    WAIT_FOR(g, g->n_aborted == 1);
    READ_UNTIL(g, &c, c.closed);
    assert_null(strstr(c.in, "0\r\n\r\n")); /* cut, and seen to be cut */
    c_free(&c);
    rig_free(g);
}

/* A handler that forgets its request: 504, and it hears of the abort. */
static void forgotten_request(void **state)
{
    struct rig *g = rig_new();
    struct client c;

    (void)state;
    rig_start(g);
    c = open_stream(g, false, "POST /wait HTTP/1.1\r\n" H "\r\n");
    sup_conn_sweep(g->http->conns,
                   uv_now(&g->loop) + g->conf.request_timeout_ms + SUP_OVERDUE_GRACE_MS + 1000);
    assert_int_equal(g->n_aborted, 1);
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 504);
    assert_non_null(strstr(c.in, "DEADLINE_EXCEEDED"));
    c_free(&c);
    rig_free(g);
}

/* The client resets; the handler writes before the loop has noticed. */
static void write_after_reset(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    struct linger rst = {.l_onoff = 1};
    char block[1000] = "x";

    (void)state;
    rig_start(g);
    c = open_stream(g, false, SSE);
    READ_UNTIL(g, &c, strstr(c.in, "\r\n\r\n"));
    setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
    c_free(&c);
    for (int i = 0; i < 200; i++) /* above 64 KiB it is written inside the call */
        sup_stream_write(g->held[0].req, block, sizeof(block));
    assert_int_equal(g->held[0].aborted, 0);
    WAIT_FOR(g, g->held[0].aborted == 1);
    rig_free(g);
}

/* A big answer leaves whole and in order through a small window. */
static void big_reply(void **state)
{
    struct rig *g = rig_new();
    struct client c;
    size_t n = 5 << 20;
    char *big = malloc(n);
    const char *body;

    (void)state;
    for (size_t i = 0; i < n; i++)
        big[i] = (char)('a' + i % 23);
    rig_start(g);
    c = open_stream(g, true, "POST /wait HTTP/1.1\r\n" H "\r\n");
    sup_reply(g->held[0].req, 200, "text/plain", big, n);
    READ_UNTIL(g, &c, answered(&c));
    body = strstr(c.in, "\r\n\r\n") + 4;
    assert_int_equal(c.n - (size_t)(body - c.in), n);
    assert_memory_equal(body, big, n);
    c_free(&c);
    free(big);
    rig_free(g);
}

static size_t rss_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long all, res = 0;

    if (f) {
        if (fscanf(f, "%lu %lu", &all, &res) != 2)
            res = 0;
        fclose(f);
    }
    return res * (size_t)sysconf(_SC_PAGESIZE);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COSTS_COUNT 0 /* a sanitizer's own memory drowns ours */
#else
#define COSTS_COUNT 1
#endif

static void idle_costs_little(void **state)
{
    struct rig *g = rig_new();
    struct rlimit lim;
    int n = 1000;
    struct client *c = calloc((size_t)n, sizeof(*c));
    size_t before, idle, streams;

    (void)state;
    getrlimit(RLIMIT_NOFILE, &lim);
    lim.rlim_cur = lim.rlim_max < 4096 ? lim.rlim_max : 4096;
    setrlimit(RLIMIT_NOFILE, &lim);
    if (lim.rlim_cur < 2100) {
        free(c);
        rig_free(g);
        skip();
    }
    rig_start(g);
    for (int i = 0; i < n; i++) { /* the clients' own memory first */
        c[i].fd = -1;
        c[i].cap = 65536;
        c[i].in = NULL;
    }
    before = rss_bytes();
    for (int i = 0; i < n; i++) {
        c[i] = c_open(g);
        c_text(g, &c[i], "GET /healthz HTTP/1.1\r\n" H "\r\n");
        READ_UNTIL(g, &c[i], answered(&c[i]));
        free(c[i].in);
        c[i].in = NULL;
    }
    idle = rss_bytes() - before;
    for (int i = 0; i < n; i++) {
        int held = g->n_held;

        c_text(g, &c[i],
               "GET /sse HTTP/1.1\r\n" H
               "User-Agent: OpenAI/Python 1.0\r\nAccept: application/json\r\n"
               "Authorization: Bearer 0123456789\r\nX-Stainless-Lang: python\r\n\r\n");
        WAIT_FOR(g, g->n_held == held + 1);
        sup_stream_write(g->held[held].req, "data: {\"choices\":[]}\n\n", 22);
    }
    for (int i = 0; i < 3; i++)
        turn(g);
    streams = rss_bytes() - before;
    print_message("resident bytes: idle keep-alive connection %zu, idle stream %zu\n",
                  idle / (size_t)n, streams / (size_t)n);
    if (COSTS_COUNT) {
        assert_true(idle / (size_t)n < 8192);
        assert_true(streams / (size_t)n < 8192);
    }
    for (int i = 0; i < n; i++)
        c_free(&c[i]);
    WAIT_FOR(g, g->n_aborted == n);
    free(c);
    rig_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_costs_little), /* first: the heap is untouched */
        cmocka_unit_test(framing),           cmocka_unit_test(one_write_per_turn),
        cmocka_unit_test(pause_and_drain),   cmocka_unit_test(too_slow_is_cut),
        cmocka_unit_test(write_timeout),     cmocka_unit_test(quiet_stream_lives),
        cmocka_unit_test(forgotten_request), cmocka_unit_test(write_after_reset),
        cmocka_unit_test(big_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
