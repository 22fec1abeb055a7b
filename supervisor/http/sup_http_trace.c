/* sup_http_trace.c - the trace a request belongs to: headers in, one header out, a span.
 *
 * A request with one well-formed traceparent gets a span id of its own, named to the
 * caller in the answer's traceresponse header and to people in the access log. What is
 * malformed, or given twice, is as if it were absent. Tests: tests/supervisor/test_sup_http.c
 */
#include <string.h>
#include <time.h>

#include "sup_http_priv.h"

/* The only header of that name, or NULL: two could name two traces. */
static const char *only(const struct sup_head *h, const char *lower_name)
{
    const char *value = NULL;

    for (uint32_t i = 0; i < h->n_pairs; i++) {
        if (strcmp(h->buf + h->pairs[i].name, lower_name) != 0)
            continue;
        if (value)
            return NULL;
        value = h->buf + h->pairs[i].value;
    }
    return value;
}

void sup_req_trace_read(struct sup_http *h, struct sup_req *r)
{
    const char *parent = only(&r->head, "traceparent");

    if (!parent || !sup_trace_parse(parent, &r->trace)) {
        if (r->head.method != HTTP_POST || !sup_spans_begins(h->spans, sup_noise(h)))
            return; /* probes and lists would be most of all spans */
        sup_span_id_new(h, r->trace.trace_id);
        sup_span_id_new(h, r->trace.trace_id + 8);
        r->trace.flags = SUP_TRACE_SAMPLED;
    }
    sup_span_id_new(h, r->trace.span_id);
}

struct sup_facts *sup_req_facts(struct sup_req *r)
{
    return &r->facts;
}

void sup_http_spans(struct sup_http *h, struct sup_spans *spans)
{
    h->spans = spans;
}

void sup_req_trace_end(struct sup_http *h, const struct sup_req *r, const char *route,
                       unsigned status, uint64_t us)
{
    struct timespec now;
    struct sup_span span = {.trace = &r->trace,
                            .tracestate = sup_req_tracestate(r),
                            .method = sup_req_method(r),
                            .route = route,
                            .req_id = r->id,
                            .status = status,
                            .facts = &r->facts};

    if (!h->spans || !sup_trace_is(&r->trace))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    span.end_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    span.start_ns = span.end_ns - us * 1000;
    sup_spans_add(h->spans, &span);
}

const struct sup_trace *sup_req_trace(const struct sup_req *r)
{
    return sup_trace_is(&r->trace) ? &r->trace : NULL;
}

const char *sup_req_tracestate(const struct sup_req *r)
{
    const char *state = sup_trace_is(&r->trace) ? only(&r->head, "tracestate") : NULL;

    return state && sup_trace_state_ok(state) ? state : "";
}
