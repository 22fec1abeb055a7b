/* sup_status.h - what a client is told when something fails.
 *
 * Two tables: every error code of the API (HTTP status, OpenAI type, whether it
 * may be tried again), and enum rc -> code. Nothing else in the supervisor maps
 * a failure to HTTP. Tests: tests/supervisor/test_sup_api_status.c
 */
#ifndef INFERD_SUP_STATUS_H
#define INFERD_SUP_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

struct sup_json;

/* X(id, word on the wire, HTTP status, OpenAI type, reason, default retry ms).
 * A row with a retry time is retryable; reason "" = none. */
#define SUP_CODES(X)                                                                              \
    X(INVALID_REQUEST, "INVALID_REQUEST", 400, "invalid_request_error", "", 0)                    \
    X(MISSING_BODY, "missing_body", 400, "invalid_request_error", "", 0)                          \
    X(INVALID_MODEL, "INVALID_MODEL", 400, "invalid_request_error", "", 0)                        \
    X(UNSUPPORTED_FEATURE, "UNSUPPORTED_FEATURE", 400, "invalid_request_error", "", 0)            \
    X(MODEL_NOT_SUPPORTED, "MODEL_NOT_SUPPORTED", 400, "invalid_request_error", "", 0)            \
    X(UNAUTHENTICATED, "UNAUTHENTICATED", 401, "authentication_error", "", 0)                     \
    X(FORBIDDEN, "FORBIDDEN", 403, "permission_error", "", 0)                                     \
    X(MODEL_NOT_FOUND, "MODEL_NOT_FOUND", 404, "invalid_request_error", "", 0)                    \
    X(CONTENT_NOT_ALLOWED, "CONTENT_NOT_ALLOWED", 403, "invalid_request_error", "", 0)            \
    X(CONFLICT, "CONFLICT", 409, "conflict_error", "", 0)                                         \
    X(MODEL_IDENTITY_MISMATCH, "MODEL_IDENTITY_MISMATCH", 409, "conflict_error", "", 0)           \
    X(CONTENT_TOO_LARGE, "CONTENT_TOO_LARGE", 413, "invalid_request_error", "", 0)                \
    X(UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", 415, "invalid_request_error", "", 0)      \
    X(REQUEST_OVER_QUOTA, "REQUEST_OVER_QUOTA", 413, "invalid_request_error", "", 0)              \
    X(RATE_LIMITED, "RATE_LIMITED", 429, "rate_limit_error", "inference_admission", 1000)         \
    X(QUOTA_EXCEEDED, "QUOTA_EXCEEDED", 429, "rate_limit_error", "inference_admission", 1000)     \
    X(MODEL_LOAD_FAILED, "MODEL_LOAD_FAILED", 500, "server_error", "", 0)                         \
    X(INVALID_MODEL_CONFIG, "INVALID_MODEL_CONFIG", 500, "server_error", "", 0)                   \
    X(MODEL_WEIGHTS_MISSING, "MODEL_WEIGHTS_MISSING", 500, "server_error", "", 0)                 \
    X(INFERENCE_FAILED, "INFERENCE_FAILED", 500, "server_error", "", 0)                           \
    X(REQUEST_POISONED, "REQUEST_POISONED", 500, "server_error", "", 0)                           \
    X(WORKER_CRASHED, "WORKER_CRASHED", 500, "server_error", "", 0)                               \
    X(UPSTREAM_FAILURE, "UPSTREAM_FAILURE", 502, "server_error", "", 0)                           \
    X(SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE", 503, "overloaded_error", "inference_admission", \
      1000)                                                                                       \
    X(MODEL_RESOURCE_BUSY, "MODEL_RESOURCE_BUSY", 503, "overloaded_error", "inference_capacity",  \
      1000)                                                                                       \
    X(OVERLOADED, "MODEL_RESOURCE_BUSY", 503, "overloaded_error", "inference_admission", 1000)    \
    X(MODEL_UNAVAILABLE, "MODEL_UNAVAILABLE", 503, "server_error", "inference_capacity", 1000)    \
    X(DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", 504, "timeout_error", "", 0)                        \
    X(MODEL_RESOURCE_LIMIT, "MODEL_RESOURCE_LIMIT", 507, "server_error", "", 0)

enum sup_code {
#define X(id, word, http, type, reason, retry) SUP_E_##id,
    SUP_CODES(X)
#undef X
        SUP_E_COUNT
};

/* How a failure is written, by the route that was asked. */
enum sup_shape {
    SUP_SHAPE_FLAT,   /* {"error":"CODE","message":...} */
    SUP_SHAPE_OPENAI, /* {"error":{...}} */
    SUP_SHAPE_TEI,    /* {"error":MESSAGE,"error_type":...} */
};

/* One failure on its way to a client. err: message, field (what), n, limit, item. */
struct sup_fail {
    enum sup_code code;
    uint32_t retry_ms; /* 0 = do not try again */
    struct rc_err err;
};

const char *sup_code_word(enum sup_code c);
unsigned sup_code_http(enum sup_code c);

/* Fills *f from one of our own checks; err is filled by format. field may be "". */
void sup_fail_set(struct sup_fail *f, enum sup_code c, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* No memory for the request: it may be tried again. Returns false, for the caller to return. */
bool sup_fail_no_memory(struct sup_fail *f);
/* From a worker's or the fleet's error. retry_ms as on_end got it: 0 = do not.
 * loading: the model was never loaded, so that a bad file is the model's fault and
 * not the request's. */
void sup_fail_rc(struct sup_fail *f, const struct rc_err *err, uint32_t retry_ms, bool loading);
/* Of a call that refused at once (submit), or of one input of many: what may be tried
 * again is told so with the table's time. */
void sup_fail_refused(struct sup_fail *f, const struct rc_err *err);

/* HTTP status: the table's, but 503 where the failure may be tried again. */
unsigned sup_fail_http(const struct sup_fail *f);
/* The members "n_tokens" and "limit", behind others, where too many tokens are the failure. */
void sup_fail_tokens(const struct sup_fail *f, struct sup_json *out);
/* The JSON body. */
void sup_fail_json(const struct sup_fail *f, enum sup_shape shape, struct sup_json *out);

#endif
