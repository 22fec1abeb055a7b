/* sup_http_out.c - bytes of answers, on their way to the kernel.
 *
 * A connection's answers of one loop turn are laid end to end in one buffer and
 * written with one call at the turn's end (sooner above SUP_OUT_SOON_BYTES). What
 * the socket does not take at once is handed to libuv as one write; meanwhile new
 * bytes collect in a fresh buffer. A quiet connection holds no buffer.
 * Tests: tests/supervisor/test_sup_http.c, test_sup_http_stream.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_http_priv.h"

struct sup_wr {
    uv_write_t req;
    struct sup_conn *conn;
    char *buf;
};

size_t sup_out_pending(const struct sup_conn *c)
{
    return c->n_out + (c->wr ? uv_stream_get_write_queue_size(&c->u.stream) : 0);
}

void sup_out_free(struct sup_conn *c)
{
    free(c->out);
    c->out = NULL;
    c->n_out = c->cap_out = 0;
}

bool sup_out_add(struct sup_conn *c, const void *data, size_t n)
{
    if (n > SIZE_MAX / 4 - c->n_out)
        goto cut;
    if (c->n_out + n > c->cap_out) {
        size_t cap = c->cap_out ? c->cap_out : 512;
        char *q;

        while (cap < c->n_out + n)
            cap *= 2;
        q = realloc(c->out, cap);
        if (!q)
            goto cut;
        c->out = q;
        c->cap_out = cap;
    }
    if (n)
        memcpy(c->out + c->n_out, data, n);
    c->n_out += n;
    return true;
cut:
    c->cut = true; /* half an answer is worse than none */
    return false;
}

static void on_written(uv_write_t *req, int status)
{
    struct sup_wr *wr = req->data;
    struct sup_conn *c = wr->conn;

    c->wr = NULL;
    free(wr->buf);
    free(wr);
    if (c->phase == SUP_P_CLOSED)
        return;
    if (status < 0)
        c->cut = true;
    c->quiet_ms = uv_now(c->h->loop);
    sup_conn_dirty(c);
}

bool sup_out_write(struct sup_conn *c)
{
    uv_buf_t b = uv_buf_init(c->out, (unsigned)c->n_out);
    struct sup_wr *wr;
    int k;

    if (c->wr || c->n_out == 0)
        return true;
    if (c->n_out > UINT32_MAX)
        return false;
    k = uv_try_write(&c->u.stream, &b, 1);
    if (k < 0 && k != UV_EAGAIN)
        return false;
    c->quiet_ms = uv_now(c->h->loop);
    if (k >= 0 && (size_t)k == c->n_out) {
        sup_out_free(c);
        return true;
    }
    wr = malloc(sizeof(*wr));
    if (!wr)
        return false;
    if (k < 0)
        k = 0;
    *wr = (struct sup_wr){.conn = c, .buf = c->out};
    wr->req.data = wr;
    b = uv_buf_init(c->out + k, (unsigned)(c->n_out - (size_t)k));
    if (uv_write(&wr->req, &c->u.stream, &b, 1, on_written) != 0) {
        free(wr);
        return false;
    }
    c->wr = wr;
    c->out = NULL;
    c->n_out = c->cap_out = 0;
    c->last_queue = uv_stream_get_write_queue_size(&c->u.stream);
    return true;
}

/* ---------------------------------------------------------------- the head */

static const char *reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *text;
    } rows[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].status == status)
            return rows[i].text;
    }
    return "Status"; /* the phrase carries no meaning: RFC 9112 4 */
}

static void add(struct sup_conn *c, const char *s)
{
    sup_out_add(c, s, strlen(s));
}

static void add_line(struct sup_conn *c, const char *name, const char *value)
{
    add(c, name);
    add(c, value);
    sup_out_add(c, "\r\n", 2);
}

/* Decimal digits of v, NUL-ended, in buf; returns where they begin. */
static const char *dec(uint64_t v, char buf[24])
{
    char *p = buf + 23;

    *p = '\0';
    do {
        *--p = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    return p;
}

const char *sup_date(struct sup_http *h)
{
    struct timespec ts;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME_COARSE, &ts);
    if ((uint64_t)ts.tv_sec != h->date_s) {
        h->date_s = (uint64_t)ts.tv_sec;
        gmtime_r(&ts.tv_sec, &tm);
        strftime(h->date, sizeof(h->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    }
    return h->date;
}

void sup_out_head(struct sup_conn *c, const struct sup_req *r, const char *id, unsigned status,
                  const char *content_type, uint64_t n_body, bool chunked, const char *extra)
{
    bool keep = r && r->head.keep_alive && !c->close_after && !c->h->draining;
    char num[24], trace[SUP_TRACE_BYTES];

    if (n_body == UINT64_MAX && !chunked)
        keep = false; /* the end of the connection is the end of the body */
    if (!keep)
        c->close_after = true;
    add(c, "HTTP/1.1 ");
    add(c, dec(status, num));
    add_line(c, " ", reason(status));
    add_line(c, "Server: inferd\r\nDate: ", sup_date(c->h));
    if (content_type && *content_type)
        add_line(c, "Content-Type: ", content_type);
    if (chunked)
        add(c, "Transfer-Encoding: chunked\r\n");
    else if (n_body != UINT64_MAX && status != 204 && status != 304)
        add_line(c, "Content-Length: ", dec(n_body, num));
    add_line(c, "X-Request-Id: ", id);
    if (r && sup_trace_is(&r->trace)) {
        sup_trace_print(&r->trace, trace);
        add_line(c, "traceresponse: ", trace);
    }
    if (!keep)
        add(c, "Connection: close\r\n");
    else if (r->head.http10)
        add(c, "Connection: keep-alive\r\n");
    if (extra)
        add(c, extra);
    if (r && r->n_extra)
        sup_out_add(c, r->extra, r->n_extra);
    add(c, "\r\n");
}

/* ------------------------------------------------------------- request ids */

static uint64_t rng_next(struct sup_http *h)
{
    uint64_t z = h->rng += 0x9e3779b97f4a7c15u; /* splitmix64, Steele et al. 2014 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 48 bits of time, 80 of noise, in Crockford's base 32: sorts by time. */
void sup_id_new(struct sup_http *h, char out[SUP_ID_BYTES])
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    struct timespec ts;
    uint64_t ms, a = rng_next(h), b = rng_next(h);

    clock_gettime(CLOCK_REALTIME_COARSE, &ts);
    ms = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
    for (int i = 9; i >= 0; i--, ms >>= 5)
        out[i] = digits[ms & 31];
    for (int i = 10; i < 18; i++, a >>= 5)
        out[i] = digits[a & 31];
    for (int i = 18; i < 26; i++, b >>= 5)
        out[i] = digits[b & 31];
    out[26] = '\0';
}

uint64_t sup_noise(struct sup_http *h)
{
    return rng_next(h);
}

void sup_span_id_new(struct sup_http *h, uint8_t out[8])
{
    uint64_t v = rng_next(h) | 1;

    memcpy(out, &v, sizeof(v));
}
