/* sup_trace.h - W3C Trace Context: whose request this is part of.
 *
 * Reads the headers traceparent and tracestate (https://www.w3.org/TR/trace-context-2/) and
 * writes the same form. What is malformed is ignored, as the standard asks: a trace that
 * breaks must never break a request. No allocation; the caller holds the tracestate text.
 * Tests: tests/supervisor/test_sup_trace.c, tests/fuzz/fuzz_trace.c
 */
#ifndef INFERD_SUP_TRACE_H
#define INFERD_SUP_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_TRACE_BYTES 56   /* a traceparent and its NUL */
#define SUP_TRACE_STATE 512  /* bytes of tracestate that are kept; the standard asks for as many */
#define SUP_TRACE_MEMBERS 32 /* and entries, the standard's limit */
#define SUP_TRACE_SAMPLED 1  /* of flags */

struct sup_trace {
    uint8_t trace_id[16]; /* all zero: not part of a trace */
    uint8_t parent_id[8]; /* of the caller's span; zero: none */
    uint8_t span_id[8];   /* of this request */
    uint8_t flags;
};

/* The value of a traceparent header into trace_id, parent_id and flags; span_id is left.
 * false: malformed, *out untouched. Versions above 00 are read as 00, as far as it goes. */
bool sup_trace_parse(const char *value, struct sup_trace *out);
/* "00-<trace id>-<span id>-<flags>", the form in which others refer to this request. */
void sup_trace_print(const struct sup_trace *t, char out[SUP_TRACE_BYTES]);
/* Lower case hex digits of n bytes, NUL-ended; out has room for 2 n + 1. */
void sup_trace_hex(const uint8_t *id, size_t n, char *out);
/* Is it part of a trace? */
bool sup_trace_is(const struct sup_trace *t);
/* Is value a well-formed tracestate that may be kept: at most SUP_TRACE_STATE bytes and
 * SUP_TRACE_MEMBERS entries, keys and values of the standard's letters, no key twice? */
bool sup_trace_state_ok(const char *value);

#endif
