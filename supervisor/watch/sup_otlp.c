/* sup_otlp.c - addresses and batches of OTLP, and one HTTP exchange (see sup_otlp.h).
 *
 * Of an answer only its status line is read: nothing in its body changes what is done.
 * Tests: tests/supervisor/test_sup_otlp.c
 */
#include "sup_otlp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 1024
#define STATUS_BYTES 12 /* "HTTP/1.1 200" */

/* -------------------------------------------------------------------- addresses */

static enum rc bad_url(struct rc_err *err, const char *url, const char *why)
{
    return rc_fail_what(err, RC_INVALID, "otlp_endpoint",
                        "option 'otlp_endpoint': '%.100s' %s; expected http://HOST[:PORT][/PATH]",
                        url, why);
}

/* Letters that neither end a request line nor need escapes. */
static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 0x20 || s[i] >= 0x7f || s[i] == '?' || s[i] == '#' || s[i] == '@')
            return false;
    return true;
}

static enum rc read_port(const char *s, size_t n, const char *url, struct sup_otlp_url *out,
                         struct rc_err *err)
{
    unsigned port = 0;

    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || n > 5)
            return bad_url(err, url, "has no port of 1 to 65535");
        port = port * 10 + (unsigned)(s[i] - '0');
    }
    if (port == 0 || port > 65535)
        return bad_url(err, url, "has no port of 1 to 65535");
    snprintf(out->port, sizeof(out->port), "%u", port);
    return RC_OK;
}

enum rc sup_otlp_url_parse(const char *url, struct sup_otlp_url *out, struct rc_err *err)
{
    const char *s = url + 7, *slash, *end, *colon;
    struct sup_otlp_url u = {.port = "4318", .path = "/v1/traces"};
    size_t n, n_port = 0;
    enum rc rc;

    if (strncmp(url, "https:", 6) == 0)
        return bad_url(err, url,
                       "asks for TLS, which is the task of a collector beside the server");
    if (strncmp(url, "http://", 7) != 0 || !is_plain(url, strlen(url)))
        return bad_url(err, url, "is no such address");
    slash = strchr(s, '/');
    end = slash ? slash : s + strlen(s);
    if (*s == '[') { /* IPv6 */
        const char *close = memchr(s, ']', (size_t)(end - s));

        if (!close)
            return bad_url(err, url, "has no ']'");
        colon = close + 1;
        n = (size_t)(close - ++s);
        if (colon < end && *colon != ':')
            return bad_url(err, url, "has something behind its ']'");
    } else {
        colon = memchr(s, ':', (size_t)(end - s));
        colon = colon ? colon : end;
        n = (size_t)(colon - s);
    }
    if (n == 0 || n >= sizeof(u.host) || (slash && strlen(slash) >= sizeof(u.path)))
        return bad_url(err, url, "has no host, or a too long one");
    memcpy(u.host, s, n);
    n_port = colon < end ? (size_t)(end - colon - 1) : 0;
    if (colon < end && (rc = read_port(colon + 1, n_port, url, &u, err)) != RC_OK)
        return rc;
    if (slash && slash[1])
        memcpy(u.path, slash, strlen(slash) + 1);
    *out = u;
    return RC_OK;
}

/* ---------------------------------------------------------------------- batches */

bool sup_otlp_add(struct sup_otlp_batch *b, const char *json, size_t n_bytes)
{
    size_t before = b->spans.n;

    b->spans.limit = SUP_OTLP_BYTES;
    if (b->n == SUP_OTLP_SPANS || n_bytes == 0 || n_bytes + 1 > SUP_OTLP_BYTES - b->spans.n)
        return false;
    if (b->n)
        sup_json_str(&b->spans, ",");
    sup_json_put(&b->spans, json, n_bytes);
    if (b->spans.failed) { /* no memory: as it was */
        b->spans.failed = false;
        b->spans.n = before;
        return false;
    }
    b->n++;
    return true;
}

void sup_otlp_clear(struct sup_otlp_batch *b)
{
    sup_json_reset(&b->spans);
    b->n = 0;
}

void sup_otlp_deinit(struct sup_otlp_batch *b)
{
    sup_json_deinit(&b->spans);
    b->n = 0;
}

void sup_otlp_body(const struct sup_otlp_batch *b, const char *version, struct sup_json *out)
{
    sup_json_str(out,
                 "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\","
                 "\"value\":{\"stringValue\":\"inferd\"}},{\"key\":\"service.version\","
                 "\"value\":{\"stringValue\":");
    sup_json_quoted(out, version);
    sup_json_str(out, "}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"inferd\"},\"spans\":[");
    sup_json_put(out, b->spans.p, b->spans.n);
    sup_json_str(out, "]}]}]}");
}

/* ----------------------------------------------------------------- the exchange */

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static bool ready(int fd, short events, int64_t end)
{
    struct pollfd p = {.fd = fd, .events = events};
    int64_t left = end - now_ms();
    int n = left > 0 ? poll(&p, 1, (int)left) : 0;

    if (n == 0)
        errno = ETIMEDOUT;
    return n == 1;
}

static bool send_all(int fd, const char *p, size_t n, int64_t end)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (k < 0 && !ready(fd, POLLOUT, end))
            return false;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    return true;
}

static int read_status(int fd, int64_t end)
{
    char text[STATUS_BYTES + 1];
    size_t n = 0;

    while (n < STATUS_BYTES) {
        ssize_t k = recv(fd, text + n, STATUS_BYTES - n, 0);

        if (k == 0)
            errno = ECONNRESET;
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (k < 0 && !ready(fd, POLLIN, end))
            return -1;
        n += k > 0 ? (size_t)k : 0;
    }
    text[n] = '\0';
    errno = EPROTO;
    if (strncmp(text, "HTTP/1.", 7) != 0 || text[8] != ' ')
        return -1;
    for (int i = 9; i < 12; i++)
        if (text[i] < '0' || text[i] > '9')
            return -1;
    return atoi(text + 9);
}

static int exchange(int fd, const struct sockaddr *to, socklen_t n_to,
                    const struct sup_otlp_url *url, const struct sup_json *body, int64_t end)
{
    bool v6 = strchr(url->host, ':') != NULL;
    char head[HEAD_BYTES];
    int n, e = 0;
    socklen_t n_e = sizeof(e);

    if (connect(fd, to, n_to) != 0) {
        if (errno != EINPROGRESS || !ready(fd, POLLOUT, end) ||
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n_e) != 0)
            return -1;
        errno = e;
        if (e != 0)
            return -1;
    }
    n = snprintf(head, sizeof(head),
                 "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: inferd\r\n"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                 "Connection: close\r\n\r\n",
                 url->path, v6 ? "[" : "", url->host, v6 ? "]" : "", url->port, body->n);
    if (n < 0 || (size_t)n >= sizeof(head) || !send_all(fd, head, (size_t)n, end) ||
        !send_all(fd, body->p, body->n, end))
        return -1;
    return read_status(fd, end);
}

int sup_otlp_post(const struct sockaddr *to, socklen_t n_to, const struct sup_otlp_url *url,
                  const struct sup_json *body, int timeout_ms)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), status, e;

    if (fd < 0)
        return -1;
    status = exchange(fd, to, n_to, url, body, now_ms() + timeout_ms);
    e = errno;
    close(fd);
    errno = e;
    return status;
}

bool sup_otlp_again(int status)
{
    return status < 0 || status == 429 || status == 502 || status == 503 || status == 504;
}
