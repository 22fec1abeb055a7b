/* sup_spans.c - spans made, and handed to the tracer (see sup_spans.h).
 *
 * Encoding: OTLP 1.x as JSON (opentelemetry-proto, docs/specification "JSON Protobuf
 * Encoding"): ids in hex, 64-bit numbers as strings.
 * Tests: tests/supervisor/test_sup_spans.c
 */
#include "sup_spans.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sup_json.h"
#include "sup_metrics.h"

#define KIND_SERVER 2

struct sup_spans {
    uv_poll_t poll;
    int fd;
    unsigned percent;
    struct sup_metrics *metrics;
    struct sup_spans_told told;
    struct sup_json out; /* kept between spans */
};

/* ------------------------------------------------------------------------- JSON */

/* ,{"key":K,"value":{"stringValue":V}}; the first has no comma. */
static void put_text(struct sup_json *o, const char *key, const char *value)
{
    sup_json_fmt(
        o, "%s{\"key\":\"%s\",\"value\":{\"stringValue\":", o->p[o->n - 1] == '[' ? "" : ",", key);
    sup_json_quoted(o, value);
    sup_json_str(o, "}}");
}

static void put_number(struct sup_json *o, const char *key, uint64_t value)
{
    sup_json_fmt(o, "%s{\"key\":\"%s\",\"value\":{\"intValue\":\"%llu\"}}",
                 o->p[o->n - 1] == '[' ? "" : ",", key, (unsigned long long)value);
}

static void put_facts(struct sup_json *o, const struct sup_facts *f)
{
    const struct {
        const char *key;
        uint64_t value;
        bool has;
    } numbers[] = {
        {"gen_ai.usage.input_tokens", f->input_tokens, true},
        {"gen_ai.usage.output_tokens", f->output_tokens, f->has_output},
        {"gen_ai.usage.cache_read.input_tokens", f->cached_tokens, f->has_output},
        {"inferd.queue_us", f->queue_us, f->has_output},
        {"inferd.prefill_us", f->prefill_us, f->has_output},
        {"inferd.decode_us", f->decode_us, f->has_output},
    };

    if (!f->operation)
        return;
    put_text(o, "gen_ai.operation.name", f->operation);
    put_text(o, "gen_ai.provider.name", "inferd");
    put_text(o, "gen_ai.request.model", f->model);
    put_text(o, "gen_ai.response.model", f->model);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].has)
            put_number(o, numbers[i].key, numbers[i].value);
}

static void put_ids(struct sup_json *o, const struct sup_span *s)
{
    static const uint8_t none[8];
    char trace_id[33], id[17];

    sup_trace_hex(s->trace->trace_id, 16, trace_id);
    sup_trace_hex(s->trace->span_id, 8, id);
    sup_json_fmt(o, "{\"traceId\":\"%s\",\"spanId\":\"%s\"", trace_id, id);
    if (memcmp(s->trace->parent_id, none, 8) != 0) {
        sup_trace_hex(s->trace->parent_id, 8, id);
        sup_json_fmt(o, ",\"parentSpanId\":\"%s\"", id);
    }
    if (*s->tracestate) {
        sup_json_str(o, ",\"traceState\":");
        sup_json_quoted(o, s->tracestate);
    }
}

void sup_span_json(const struct sup_span *s, struct sup_json *o)
{
    const struct sup_facts *f = s->facts;
    char text[200];

    put_ids(o, s);
    if (f->operation)
        snprintf(text, sizeof(text), "%s %s", f->operation, f->model);
    else
        snprintf(text, sizeof(text), "%s %s", s->method, s->route);
    sup_json_str(o, ",\"name\":");
    sup_json_quoted(o, text);
    sup_json_fmt(o,
                 ",\"kind\":%d,\"startTimeUnixNano\":\"%llu\",\"endTimeUnixNano\":\"%llu\","
                 "\"attributes\":[",
                 KIND_SERVER, (unsigned long long)s->start_ns, (unsigned long long)s->end_ns);
    if (o->failed)
        return; /* put_* look at the last byte */
    put_text(o, "http.request.method", s->method);
    put_text(o, "http.route", s->route);
    put_number(o, "http.response.status_code", s->status);
    put_text(o, "inferd.request_id", s->req_id);
    put_facts(o, f);
    if (s->status >= 500) {
        snprintf(text, sizeof(text), "%u", s->status);
        put_text(o, "error.type", text);
    }
    sup_json_fmt(o, "],\"status\":{%s}}", s->status >= 500 ? "\"code\":2" : ""); /* ERROR */
}

/* ------------------------------------------------------------------ the channel */

static void count(struct sup_spans *s, const char *result, uint64_t n)
{
    if (n)
        sup_series_add(sup_series(s->metrics, SUP_M_SPANS, result, NULL), (double)n);
}

static void on_told(uv_poll_t *p, int status, int events)
{
    struct sup_spans *s = p->data;
    struct sup_spans_told now;
    ssize_t n;

    (void)events;
    while (status >= 0 && (n = recv(s->fd, &now, sizeof(now), MSG_DONTWAIT)) == sizeof(now)) {
        count(s, "exported", now.exported - s->told.exported);
        count(s, "dropped", now.dropped - s->told.dropped);
        count(s, "failed", now.failed - s->told.failed);
        s->told = now;
    }
    if (status < 0 || n == 0)
        uv_poll_stop(p); /* the tracer has gone: the launcher ends all of us */
}

struct sup_spans *sup_spans_new(uv_loop_t *loop, int fd, unsigned percent,
                                struct sup_metrics *metrics)
{
    struct sup_spans *s = fd >= 0 ? calloc(1, sizeof(*s)) : NULL;

    if (!s)
        return NULL;
    if (uv_poll_init(loop, &s->poll, fd) != 0) {
        free(s);
        return NULL; /* no spans: the tracer sees nobody and waits */
    }
    s->fd = fd;
    s->percent = percent;
    s->metrics = metrics;
    s->out.limit = SUP_SPAN_BYTES;
    s->poll.data = s;
    uv_poll_start(&s->poll, UV_READABLE, on_told);
    uv_unref((uv_handle_t *)&s->poll);
    return s;
}

bool sup_spans_told(const struct sup_spans *s, struct sup_spans_told *out)
{
    if (s)
        *out = s->told;
    return s != NULL;
}

void sup_spans_flush(struct sup_spans *s)
{
    uint64_t end = uv_hrtime() / 1000000 + SUP_SPANS_LAST_MS, now;
    struct sup_spans_told told;

    if (!s || shutdown(s->fd, SHUT_WR) != 0)
        return;
    while ((now = uv_hrtime() / 1000000) < end) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};

        if (poll(&p, 1, (int)(end - now)) > 0 &&
            recv(s->fd, &told, sizeof(told), MSG_DONTWAIT) == 0)
            return;
    }
}

static void on_closed(uv_handle_t *h)
{
    struct sup_spans *s = h->data;

    close(s->fd);
    sup_json_deinit(&s->out);
    free(s);
}

void sup_spans_free(struct sup_spans **sp)
{
    if (*sp)
        uv_close((uv_handle_t *)&(*sp)->poll, on_closed);
    *sp = NULL;
}

void sup_spans_percent(struct sup_spans *s, unsigned percent)
{
    if (s)
        s->percent = percent;
}

bool sup_spans_begins(const struct sup_spans *s, uint64_t noise)
{
    return s && noise % 100 < s->percent;
}

void sup_spans_add(struct sup_spans *s, const struct sup_span *span)
{
    if (!s || !(span->trace->flags & SUP_TRACE_SAMPLED))
        return;
    sup_json_reset(&s->out);
    sup_span_json(span, &s->out);
    if (s->out.failed ||
        send(s->fd, s->out.p, s->out.n, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)s->out.n)
        count(s, "dropped", 1);
}
