/* sup_otlp.h - spans to a collector: OTLP over HTTP, as JSON.
 *
 * An address, a batch that cannot grow without end, and one exchange with a time limit.
 * http only: a collector on this machine or in this cluster speaks TLS onwards, and so no
 * library that parses certificates lives in the one process of ours that calls out.
 * Blocking; for the tracer's process only. Source: OpenTelemetry protocol 1.x, OTLP/HTTP.
 * Tests: tests/supervisor/test_sup_otlp.c
 */
#ifndef INFERD_SUP_OTLP_H
#define INFERD_SUP_OTLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rc.h"
#include "sup_json.h"

#define SUP_OTLP_SPANS 512          /* in one batch */
#define SUP_OTLP_BYTES (512u << 10) /* of its spans */

struct sup_otlp_url {
    char host[256], port[6], path[256];
};

/* "http://HOST[:PORT][/PATH]"; without a path it is /v1/traces, without a port 4318.
 * RC_INVALID names what is wrong. */
enum rc sup_otlp_url_parse(const char *url, struct sup_otlp_url *out, struct rc_err *err);

struct sup_otlp_batch {
    struct sup_json spans; /* objects with commas between them */
    unsigned n;
};

/* false: it is full, the span is not in it. */
bool sup_otlp_add(struct sup_otlp_batch *b, const char *json, size_t n_bytes);
void sup_otlp_clear(struct sup_otlp_batch *b);
void sup_otlp_deinit(struct sup_otlp_batch *b);
/* The whole request body. */
void sup_otlp_body(const struct sup_otlp_batch *b, const char *version, struct sup_json *out);

/* Posts body; the answer's status, or -1 when there was none in time (errno says why). */
int sup_otlp_post(const struct sockaddr *to, socklen_t n_to, const struct sup_otlp_url *url,
                  const struct sup_json *body, int timeout_ms);
/* May the same batch be sent again? 429, 502, 503, 504 and no answer. */
bool sup_otlp_again(int status);

#endif
