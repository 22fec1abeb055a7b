/* test_sup_http_smuggle.c - requests two parsers could read differently.
 *
 * Each row is sent raw to a real server, followed by a second request on the same
 * connection. A refused row must answer once, close, and never run the second.
 * Bug case B27.
 */
#include "http_harness.h"

#define SECOND "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
#define H "Host: x\r\n"
#define WITH_NUL(s) s, sizeof(s) - 1

static const struct {
    const char *what;
    int status;
    const char *raw;
    size_t n; /* 0: strlen */
} refused[] = {
    {"Content-Length and Transfer-Encoding", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     0},
    {"Transfer-Encoding and Content-Length", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
     0},
    {"Content-Length 0 and Transfer-Encoding", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     0},
    {"two different Content-Lengths", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 0},
    {"two equal Content-Lengths", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 0},
    {"a list as Content-Length", 400, "POST /echo HTTP/1.1\r\n" H "Content-Length: 3, 3\r\n\r\nabc",
     0},
    {"Content-Length with a plus", 400, "POST /echo HTTP/1.1\r\n" H "Content-Length: +3\r\n\r\nabc",
     0},
    {"negative Content-Length", 400, "POST /echo HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n", 0},
    {"hexadecimal Content-Length", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 0x3\r\n\r\nabc", 0},
    {"Content-Length with an inner space", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 1 0\r\n\r\n0123456789", 0},
    {"empty Content-Length", 400, "POST /echo HTTP/1.1\r\n" H "Content-Length:\r\n\r\nabc", 0},
    {"Content-Length past 64 bits", 400,
     "POST /echo HTTP/1.1\r\n" H "Content-Length: 99999999999999999999999\r\n\r\nabc", 0},
    {"unknown coding xchunked", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 0},
    {"chunked, gzip", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 0},
    {"gzip, chunked", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0},
    {"chunked twice in one header", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 0},
    {"two Transfer-Encodings", 400,
     "POST /echo HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
     0},
    {"chunked with a vertical tab", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: \x0b"
     "chunked\r\n\r\n0\r\n\r\n",
     0},
    {"Transfer-Encoding in HTTP/1.0", 400,
     "POST /echo HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
    {"space before the colon", 400, "POST /echo HTTP/1.1\r\n" H "Content-Length : 3\r\n\r\nabc", 0},
    {"tab before the colon", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 0},
    {"folded header", 400, "GET /healthz HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", 0},
    {"folded with a tab", 400, "GET /healthz HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n", 0},
    {"first header line begins with a space", 400, "GET /healthz HTTP/1.1\r\n " H "\r\n", 0},
    {"LF only", 400, "GET /healthz HTTP/1.1\nHost: x\n\n", 0},
    {"LF behind the request line", 400, "GET /healthz HTTP/1.1\n" H "\r\n", 0},
    {"LF behind a header", 400, "GET /healthz HTTP/1.1\r\nHost: x\n\r\n", 0},
    {"LF as the empty line", 400, "GET /healthz HTTP/1.1\r\n" H "\n", 0},
    {"CR without LF in a value", 400, "GET /healthz HTTP/1.1\r\n" H "X: a\rb\r\n\r\n", 0},
    {"CR alone as line end", 400, "GET /healthz HTTP/1.1\r\n" H "X: a\rY: b\r\n\r\n", 0},
    {"CR CR LF", 400, "GET /healthz HTTP/1.1\r\n" H "X: a\r\r\n\r\n", 0},
    {"header without a colon", 400, "GET /healthz HTTP/1.1\r\n" H "NoColon\r\n\r\n", 0},
    {"header with an empty name", 400, "GET /healthz HTTP/1.1\r\n" H ": x\r\n\r\n", 0},
    {"NUL in a value", 400, WITH_NUL("GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n")},
    {"NUL in a name", 400, WITH_NUL("GET /healthz HTTP/1.1\r\nHost: x\r\nX\0: ab\r\n\r\n")},
    {"NUL in the path", 400, WITH_NUL("GET /heal\0thz HTTP/1.1\r\nHost: x\r\n\r\n")},
    {"no Host", 400, "GET /healthz HTTP/1.1\r\n\r\n", 0},
    {"two Hosts", 400, "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 0},
    {"two spaces in the request line", 400, "GET  /healthz HTTP/1.1\r\n" H "\r\n", 0},
    {"a space in the target", 400, "GET /heal thz HTTP/1.1\r\n" H "\r\n", 0},
    {"a tab in the request line", 400, "GET\t/healthz HTTP/1.1\r\n" H "\r\n", 0},
    {"space behind the version", 400, "GET /healthz HTTP/1.1 \r\n" H "\r\n", 0},
    {"no version", 400, "GET /healthz\r\n" H "\r\n", 0},
    {"HTTP/2.0", 505, "GET /healthz HTTP/2.0\r\n" H "\r\n", 0},
    {"HTTP/0.9", 505, "GET /healthz HTTP/0.9\r\n" H "\r\n", 0},
    {"HTTP/1.10", 400, "GET /healthz HTTP/1.10\r\n" H "\r\n", 0},
    {"HTTP/2 preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
    {"lower case protocol", 400, "GET /healthz http/1.1\r\n" H "\r\n", 0},
    {"unknown method", 501, "FOO /healthz HTTP/1.1\r\n" H "\r\n", 0},
    {"CONNECT", 400, "CONNECT x:80 HTTP/1.1\r\n" H "\r\n", 0},
    {"a TLS hello", 400, "\x16\x03\x01\x02\r\n\r\n", 0},
    {"raw UTF-8 in the path", 400, "GET /h\xc3\xa9 HTTP/1.1\r\n" H "\r\n", 0},
    {"bad percent escape", 400, "GET /%zz HTTP/1.1\r\n" H "\r\n", 0},
    {"cut percent escape", 400, "GET /a%2 HTTP/1.1\r\n" H "\r\n", 0},
    {"escaped NUL in the path", 400, "GET /healthz%00 HTTP/1.1\r\n" H "\r\n", 0},
    {"escaped newline in the path", 400, "GET /v1/models/a%0ab HTTP/1.1\r\n" H "\r\n", 0},
    {"escaped bytes that are no UTF-8", 400, "GET /v1/models/%ff HTTP/1.1\r\n" H "\r\n", 0},
    {"escaped NUL in the query", 400, "GET /healthz?q=%00 HTTP/1.1\r\n" H "\r\n", 0},
    {"a fragment", 400, "GET /healthz#x HTTP/1.1\r\n" H "\r\n", 0},
    {"chunk size without digits", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n", 0},
    {"chunk size of 17 digits", 400,
     "POST /echo HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
     0},
    {"chunk size near 2^64", 413,
     "POST /echo HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n0\r\n\r\n",
     0},
    {"chunk sizes whose sum wraps", 413,
     "POST /echo HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nfffffffffffffffe\r\nabc\r\n0\r\n\r\n",
     0},
    {"chunk size with 0x", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 0},
    {"chunk size with a sign", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 0},
    {"space behind a chunk size", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", 0},
    {"LF behind a chunk size", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 0},
    {"LF behind a chunk extension", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3;a\nabc\r\n0\r\n\r\n", 0},
    {"LF behind chunk data", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n", 0},
    {"chunk data longer than its size", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 0},
    {"LF as the end of the trailer", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\n", 0},
    {"folded trailer", 400,
     "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n", 0},
    {"three empty lines in front", 400, "\r\n\r\n\r\nGET /healthz HTTP/1.1\r\n" H "\r\n", 0},
    {"unknown expectation", 417,
     "POST /echo HTTP/1.1\r\n" H "Expect: the-unexpected\r\nContent-Length: 3\r\n\r\nabc", 0},
};

static void refused_rows(void **state)
{
    struct rig *g = rig_new();

    (void)state;
    rig_start(g);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct client c = c_open(g);
        size_t n = refused[i].n ? refused[i].n : strlen(refused[i].raw);

        c_send(g, &c, refused[i].raw, n);
        c_text(g, &c, SECOND);
        READ_UNTIL(g, &c, answered(&c));
        if (status_of(&c) != refused[i].status)
            fail_msg("%s: status %d, expected %d", refused[i].what, status_of(&c),
                     refused[i].status);
        shutdown(c.fd, SHUT_WR);
        READ_UNTIL(g, &c, c.closed);
        if (c.reset || count(c.in, "X-Request-Id: ") != 1 || !strstr(c.in, "Connection: close\r\n"))
            fail_msg("%s: not one answer and a close: %s", refused[i].what, c.in);
        if (g->n_ok || g->n_hidden)
            fail_msg("%s: a handler ran", refused[i].what);
        c_free(&c);
    }
    rig_free(g);
}

static void long_things(void **state)
{
    struct rig *g = rig_new();
    char *big = malloc(1 << 20);
    static const struct {
        const char *what, *before, *after;
        size_t n;
        int status;
    } rows[] = {
        {"long path", "GET /", " HTTP/1.1\r\n" H "\r\n", 9000, 414},
        {"very long path", "GET /", " HTTP/1.1\r\n" H "\r\n", 900000, 414},
        {"long value", "GET /healthz HTTP/1.1\r\n" H "X: ", "\r\n\r\n", 40000, 431},
        {"long name", "GET /healthz HTTP/1.1\r\n" H, ": x\r\n\r\n", 40000, 431},
        {"chunk extension of 1 MB",
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3;", "\r\nabc\r\n0\r\n\r\n",
         1 << 20, 400},
        {"long trailer", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
         "\r\n\r\n", 9000, 431},
    };

    (void)state;
    memset(big, 'a', 1 << 20);
    rig_start(g);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client c = c_open(g);

        c_text(g, &c, rows[i].before);
        c_send(g, &c, big, rows[i].n);
        c_text(g, &c, rows[i].after);
        c_text(g, &c, SECOND);
        READ_UNTIL(g, &c, answered(&c));
        if (status_of(&c) != rows[i].status)
            fail_msg("%s: status %d", rows[i].what, status_of(&c));
        assert_int_equal(g->n_ok + g->n_hidden, 0);
        c_free(&c);
    }
    free(big);
    rig_free(g);
}

static void many_headers(void **state)
{
    struct rig *g = rig_new();

    (void)state;
    rig_start(g);
    for (int n = 99; n <= 100; n++) { /* and Host */
        struct client c = c_open(g);

        c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H);
        for (int i = 0; i < n; i++)
            c_text(g, &c, "A: b\r\n");
        c_text(g, &c, "\r\n");
        READ_UNTIL(g, &c, answered(&c));
        assert_int_equal(status_of(&c), n == 99 ? 200 : 431);
        c_free(&c);
    }
    rig_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_rows),
        cmocka_unit_test(long_things),
        cmocka_unit_test(many_headers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
