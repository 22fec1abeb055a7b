/* sup_http_gate.h - strict framing of HTTP/1.1 requests, byte by byte.
 *
 * Stands in front of llhttp. What parsers of different makers read differently
 * (bare LF, folded lines, spaces before a colon, control bytes, odd chunk lines)
 * is how a second request is smuggled behind the first, so none of it gets
 * through, whatever version or leniency of llhttp is linked. The gate also finds
 * where a message ends: llhttp never sees a byte of the next one.
 *
 * Always true: the verdict does not depend on how the bytes are cut into reads.
 * Knows no sockets and allocates nothing. Tests: tests/supervisor/
 * test_sup_http_parse.c, tests/fuzz/fuzz_http.c
 */
#ifndef INFERD_SUP_HTTP_GATE_H
#define INFERD_SUP_HTTP_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_MAX_HEADERS 100
#define SUP_MAX_TARGET_BYTES 8192 /* request line */
#define SUP_MAX_CHUNK_EXT_BYTES 4096
#define SUP_MAX_TRAILER_BYTES 8192

/* X(id, status, code, reason of the metric, message) */
#define SUP_FAULTS(X)                                                                              \
    X(NONE, 0, "", "", "")                                                                         \
    X(LEAD, 400, "INVALID_REQUEST", "syntax", "more than two empty lines before the request line") \
    X(BARE_LF, 400, "INVALID_REQUEST", "syntax", "a line ends in LF without CR")                   \
    X(BARE_CR, 400, "INVALID_REQUEST", "syntax", "a CR is not followed by LF")                     \
    X(LINE_BYTE, 400, "INVALID_REQUEST", "syntax",                                                 \
      "the request line holds a control or non-ASCII byte; percent-encode it")                     \
    X(LINE_FORM, 400, "INVALID_REQUEST", "syntax",                                                 \
      "the request line is not METHOD SP target SP HTTP/1.x")                                      \
    X(VERSION, 505, "HTTP_VERSION_NOT_SUPPORTED", "syntax",                                        \
      "only HTTP/1.0 and HTTP/1.1 are spoken here")                                                \
    X(METHOD, 501, "NOT_IMPLEMENTED", "syntax", "the request method is not known")                 \
    X(FOLD, 400, "INVALID_REQUEST", "syntax",                                                      \
      "a header line begins with a space (folded headers are obsolete)")                           \
    X(NAME_BYTE, 400, "INVALID_REQUEST", "syntax",                                                 \
      "a header name is empty or holds a byte that is not allowed")                                \
    X(VALUE_BYTE, 400, "INVALID_REQUEST", "syntax", "a header value holds a control byte")         \
    X(TARGET_LONG, 414, "URI_TOO_LONG", "head_size", "the request line is too long")               \
    X(HEAD_LONG, 431, "HEADERS_TOO_LARGE", "head_size",                                            \
      "the request line and headers are larger than max_header_bytes")                             \
    X(HEADERS_MANY, 431, "HEADERS_TOO_LARGE", "head_size", "more than 100 headers")                \
    X(TRAILER_LONG, 431, "HEADERS_TOO_LARGE", "head_size",                                         \
      "the trailer is larger than 8192 bytes")                                                     \
    X(CHUNK_SIZE, 400, "INVALID_REQUEST", "syntax", "a chunk size is not 1 to 16 hex digits")      \
    X(CHUNK_EXT, 400, "INVALID_REQUEST", "syntax",                                                 \
      "chunk extensions are larger than 4096 bytes or hold a control byte")                        \
    X(CHUNK_END, 400, "INVALID_REQUEST", "syntax", "a chunk's data is not followed by CRLF")       \
    X(BODY_LONG, 413, "CONTENT_TOO_LARGE", "body_size",                                            \
      "the request body is larger than max_body_bytes, or those and max_media_bytes where files "  \
      "are taken")                                                                                 \
    X(HOST, 400, "INVALID_REQUEST", "syntax", "an HTTP/1.1 request needs exactly one Host header") \
    X(LENGTH_FORM, 400, "INVALID_REQUEST", "syntax",                                               \
      "Content-Length is not one decimal number below 2^63")                                       \
    X(LENGTH_TWICE, 400, "INVALID_REQUEST", "syntax", "more than one Content-Length")              \
    X(LENGTH_CODING, 400, "INVALID_REQUEST", "syntax",                                             \
      "Content-Length and Transfer-Encoding together")                                             \
    X(CODING, 400, "INVALID_REQUEST", "syntax",                                                    \
      "the only Transfer-Encoding of a request is one 'chunked', in HTTP/1.1")                     \
    X(PARSER, 400, "INVALID_REQUEST", "syntax", "the request is malformed")                        \
    X(TARGET, 400, "INVALID_REQUEST", "syntax",                                                    \
      "the request target is malformed: bad percent escape, control byte, fragment or UTF-8")      \
    X(NOMEM, 503, "MODEL_RESOURCE_BUSY", "memory", "no memory for the request, try again later")   \
    X(BODY_BUDGET, 503, "MODEL_RESOURCE_BUSY", "memory",                                           \
      "too many request bodies are in transit, try again later")                                   \
    X(EXPECT, 417, "EXPECTATION_FAILED", "expect", "the only known expectation is 100-continue")   \
    X(NO_ROUTE, 404, "NOT_FOUND", "", "no such path")                                              \
    X(NO_METHOD, 405, "METHOD_NOT_ALLOWED", "", "the path does not take this method; see Allow")   \
    X(ORIGIN, 403, "ORIGIN_NOT_ALLOWED", "origin",                                                 \
      "a web page of this Origin may not ask here; see option allowed_origins")                    \
    X(SLOW_HEAD, 408, "REQUEST_TIMEOUT", "header_timeout",                                         \
      "the request head did not arrive within header_timeout_ms")                                  \
    X(SLOW_BODY, 408, "REQUEST_TIMEOUT", "body_timeout",                                           \
      "the request body did not arrive within body_timeout_ms")                                    \
    X(OVERDUE, 504, "DEADLINE_EXCEEDED", "request_timeout",                                        \
      "the request was not answered within request_timeout_ms while it was running")               \
    X(CONNECTIONS, 503, "SERVICE_UNAVAILABLE", "connections",                                      \
      "max_connections are open, try again later")

enum sup_fault {
#define X(id, status, code, reason, msg) SUP_F_##id,
    SUP_FAULTS(X)
#undef X
        SUP_FAULT_COUNT
};

struct sup_fault_row {
    unsigned status;
    const char *code, *reason, *msg;
};
extern const struct sup_fault_row sup_fault_rows[SUP_FAULT_COUNT];

enum sup_gate_st {
    SUP_G_LEAD, /* before the request line */
    SUP_G_LEAD_LF,
    SUP_G_LINE,
    SUP_G_LINE_LF,
    SUP_G_BOL, /* first byte of a header or trailer line */
    SUP_G_NAME,
    SUP_G_VALUE,
    SUP_G_VALUE_LF,
    SUP_G_END_LF,
    SUP_G_HEAD_END, /* head whole; the body's framing is not chosen yet */
    SUP_G_LENGTH,   /* `left` bytes of body to come */
    SUP_G_SIZE,
    SUP_G_EXT,
    SUP_G_SIZE_LF,
    SUP_G_DATA,
    SUP_G_DATA_CR,
    SUP_G_DATA_LF,
    SUP_G_DONE,
};

struct sup_gate {
    uint8_t st;    /* enum sup_gate_st */
    uint8_t fault; /* enum sup_fault */
    uint8_t n_digits, n_lead;
    bool trailer;
    uint16_t n_lines; /* header lines so far */
    uint32_t n_line;  /* bytes of the request line */
    uint32_t n_ext, n_trailer;
    uint64_t left;   /* bytes left of the body (LENGTH) or of a chunk (DATA) */
    uint64_t n_body; /* of a chunked body, announced so far */
};

/* Scans head bytes. Returns how many were looked at: all n, or up to and with the
 * last byte of the head (st HEAD_END), or up to the offending one (fault set).
 * *skip: how many of them, at the front, are empty lines to drop. */
size_t sup_gate_head(struct sup_gate *g, const char *p, size_t n, size_t *skip);
/* Chooses the body's framing after HEAD_END. */
void sup_gate_body(struct sup_gate *g, bool chunked, uint64_t length);
/* Scans body bytes; returns how many belong to this message (st DONE at its end). */
size_t sup_gate_scan(struct sup_gate *g, const char *p, size_t n, uint64_t max_body_bytes);

/* RFC 9110 5.6.2 */
bool sup_is_tchar(unsigned char c);

#endif
