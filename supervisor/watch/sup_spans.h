/* sup_spans.h - finished requests as OpenTelemetry spans, handed to the tracer.
 *
 * The front may open no connection, so a process of its own (sup_tracer.h) sends spans to the
 * collector. Here a span becomes one JSON object of OTLP and one datagram to that process.
 * The socket's buffer is the queue: what it does not take is dropped and counted, a
 * request never waits. Names of attributes: OpenTelemetry semantic conventions (HTTP 1.23;
 * GenAI, in development). Never in a span: prompts, answers, header values, keys.
 * One thread (the loop's). Tests: tests/supervisor/test_sup_spans.c, tests/e2e/traces.py
 */
#ifndef INFERD_SUP_SPANS_H
#define INFERD_SUP_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "sup_trace.h"

#define SUP_SPANS_LAST_MS 1500
#define SUP_SPAN_BYTES 8192 /* of one span's JSON; longer ones are dropped */

struct sup_json;
struct sup_metrics;
struct sup_spans;

/* What an endpoint knows of its request; zeroed = nothing. */
struct sup_facts {
    const char *operation; /* "chat", "text_completion", "embeddings": gen_ai.operation.name */
    char model[128];
    uint64_t input_tokens, output_tokens, cached_tokens;
    uint64_t queue_us, prefill_us, decode_us;
    bool has_output;
};

struct sup_span {
    const struct sup_trace *trace;
    const char *tracestate; /* "" = none */
    const char *method, *route, *req_id;
    unsigned status;
    uint64_t start_ns, end_ns; /* since 1970 */
    const struct sup_facts *facts;
};

/* What the tracer tells of its work since it started, and of itself. */
struct sup_spans_told {
    uint64_t exported, dropped, failed;
    uint32_t pid;
    uint32_t held; /* bit i: layer i of sup_tracer_layers (sup_tracer.h) holds */
};

/* fd: this end of the tracer's channel, owned; -1: none, then *out is NULL and RC_OK.
 * percent: of the requests that come without a trace, how many begin one. */
struct sup_spans *sup_spans_new(uv_loop_t *loop, int fd, unsigned percent,
                                struct sup_metrics *metrics);
void sup_spans_percent(struct sup_spans *s, unsigned percent); /* from now on; accepts NULL */
/* No more spans come: the tracer sends what it has. Returns when it has, or after
 * SUP_SPANS_LAST_MS: the launcher ends it with the front. Accepts NULL. */
void sup_spans_flush(struct sup_spans *s);
/* Closes the channel; the loop has to turn once more. */
void sup_spans_free(struct sup_spans **s);
/* Does a request without a trace begin one? noise: random bits. Accepts NULL: no. */
bool sup_spans_begins(const struct sup_spans *s, uint64_t noise);
/* Hands the span on, if its trace is sampled. Accepts NULL. */
void sup_spans_add(struct sup_spans *s, const struct sup_span *span);
/* What the tracer has told last; false: there is none. Zeroed before its first word. */
bool sup_spans_told(const struct sup_spans *s, struct sup_spans_told *out);
/* The OTLP JSON object of a span. */
void sup_span_json(const struct sup_span *span, struct sup_json *o);

#endif
