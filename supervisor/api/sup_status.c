/* sup_status.c - failures to HTTP, in two tables (see sup_status.h).
 *
 * Knows nothing of sockets. Always true: every enum rc has a row; a code that
 * may be tried again is answered with 503 or 429 and a time, one that may not never is.
 * Change freely: wording. Change with care: words and statuses are the public API
 * (docs/api.md, docs/openapi.yaml). Tests: tests/supervisor/test_sup_api_status.c
 */
#include "sup_status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sup_json.h"

struct code_row {
    const char *word;
    unsigned http;
    const char *type;
    const char *reason;
    uint32_t retry_ms;
};

static const struct code_row codes[SUP_E_COUNT] = {
#define X(id, w, h, t, r, ms) [SUP_E_##id] = {(w), (h), (t), (r), (ms)},
    SUP_CODES(X)
#undef X
};

/* at_load: the same status, met while the model was being loaded. */
static const struct rc_row {
    enum rc rc;
    enum sup_code code, at_load;
} rcs[] = {
    {RC_OK, SUP_E_INFERENCE_FAILED, SUP_E_INFERENCE_FAILED}, /* an error without a reason */
    {RC_INVALID, SUP_E_INVALID_REQUEST, SUP_E_MODEL_LOAD_FAILED},
    {RC_FORMAT, SUP_E_MODEL_LOAD_FAILED, SUP_E_MODEL_LOAD_FAILED},
    {RC_UNSUPPORTED, SUP_E_UNSUPPORTED_FEATURE, SUP_E_MODEL_LOAD_FAILED},
    {RC_NOMEM, SUP_E_MODEL_RESOURCE_BUSY, SUP_E_MODEL_RESOURCE_BUSY},
    {RC_IO, SUP_E_INFERENCE_FAILED, SUP_E_MODEL_LOAD_FAILED},
    {RC_NOT_FOUND, SUP_E_MODEL_NOT_FOUND, SUP_E_MODEL_NOT_FOUND},
    {RC_TOO_LARGE, SUP_E_CONTENT_TOO_LARGE, SUP_E_MODEL_LOAD_FAILED},
    {RC_LIMIT, SUP_E_MODEL_RESOURCE_LIMIT, SUP_E_MODEL_RESOURCE_LIMIT},
    {RC_BUSY, SUP_E_MODEL_RESOURCE_BUSY, SUP_E_MODEL_RESOURCE_BUSY},
    {RC_CANCELLED, SUP_E_SERVICE_UNAVAILABLE, SUP_E_SERVICE_UNAVAILABLE},
    {RC_DEADLINE, SUP_E_DEADLINE_EXCEEDED, SUP_E_DEADLINE_EXCEEDED},
    {RC_WEIGHT_ABSENT, SUP_E_MODEL_WEIGHTS_MISSING, SUP_E_MODEL_WEIGHTS_MISSING},
    {RC_WEIGHT_IO, SUP_E_MODEL_UNAVAILABLE, SUP_E_MODEL_UNAVAILABLE},
    {RC_UNLOADING, SUP_E_SERVICE_UNAVAILABLE, SUP_E_SERVICE_UNAVAILABLE},
    {RC_STATE, SUP_E_CONFLICT, SUP_E_CONFLICT},
    {RC_CRASHED, SUP_E_WORKER_CRASHED, SUP_E_MODEL_LOAD_FAILED},
    {RC_POISONED, SUP_E_REQUEST_POISONED, SUP_E_REQUEST_POISONED},
    {RC_INTERNAL, SUP_E_INFERENCE_FAILED, SUP_E_MODEL_LOAD_FAILED},
    {RC_CONFLICT, SUP_E_CONFLICT, SUP_E_CONFLICT},
    {RC_CLOSED, SUP_E_WORKER_CRASHED, SUP_E_MODEL_LOAD_FAILED},
    {RC_AGAIN, SUP_E_MODEL_RESOURCE_BUSY, SUP_E_MODEL_RESOURCE_BUSY},
};

const char *sup_code_word(enum sup_code c)
{
    return codes[c].word;
}

unsigned sup_code_http(enum sup_code c)
{
    return codes[c].http;
}

static enum sup_code code_of(enum rc rc, bool loading)
{
    for (size_t i = 0; i < sizeof(rcs) / sizeof(rcs[0]); i++)
        if (rcs[i].rc == rc)
            return loading ? rcs[i].at_load : rcs[i].code;
    return SUP_E_INFERENCE_FAILED;
}

void sup_fail_set(struct sup_fail *f, enum sup_code c, const char *field, const char *fmt, ...)
{
    char msg[sizeof(f->err.msg)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    f->code = c;
    f->retry_ms = codes[c].retry_ms;
    rc_fail_what(&f->err, RC_INVALID, field, "%s", msg);
}

bool sup_fail_no_memory(struct sup_fail *f)
{
    sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the request");
    return false;
}

void sup_fail_rc(struct sup_fail *f, const struct rc_err *err, uint32_t retry_ms, bool loading)
{
    f->code = code_of(err->code, loading);
    if (err->code == RC_CONFLICT && strcmp(err->what, "model_identity") == 0)
        f->code = SUP_E_MODEL_IDENTITY_MISMATCH;
    /* numbers of a model that make no sense are no matter of resources (engine.md 4.3, EB-10) */
    if (err->code == RC_FORMAT && loading && strstr(err->msg, "config.json: '") != NULL)
        f->code = SUP_E_INVALID_MODEL_CONFIG;
    /* the queue of a model is a matter of admission, not of memory: another reason */
    if (err->code == RC_BUSY && strcmp(err->what, "max_queue") == 0)
        f->code = SUP_E_OVERLOADED;
    f->retry_ms = codes[f->code].http < 500 ? 0 : retry_ms;
    f->err = *err;
    if (!f->err.msg[0])
        snprintf(f->err.msg, sizeof(f->err.msg), "%s", rc_text(err->code));
}

void sup_fail_refused(struct sup_fail *f, const struct rc_err *err)
{
    sup_fail_rc(f, err, 0, false);
    /* the fleet's queue is a matter of admission, not of memory: the same word, another reason */
    if (err->code == RC_BUSY)
        f->code = SUP_E_OVERLOADED;
    f->retry_ms = codes[f->code].retry_ms;
}

/* An input that a worker will never have room for, whatever else it does. */
static bool input_limit(const struct sup_fail *f)
{
    return f->err.code == RC_LIMIT &&
           (strcmp(f->err.what, "workspace_mb") == 0 || strcmp(f->err.what, "token_vectors") == 0);
}

unsigned sup_fail_http(const struct sup_fail *f)
{
    unsigned http = codes[f->code].http;

    if (input_limit(f) && f->code == SUP_E_MODEL_RESOURCE_LIMIT)
        return 413;
    return f->retry_ms && http >= 500 && http != 504 ? 503 : http;
}

static void member(struct sup_json *o, const char *name, const char *value)
{
    sup_json_fmt(o, ",\"%s\":", name);
    sup_json_quoted(o, value);
}

void sup_fail_tokens(const struct sup_fail *f, struct sup_json *o)
{
    /* other limits count bytes or requests; their message has the numbers */
    if (f->err.limit && f->err.code == RC_TOO_LARGE)
        sup_json_fmt(o, ",\"n_tokens\":%llu,\"limit\":%llu", (unsigned long long)f->err.n,
                     (unsigned long long)f->err.limit);
    if (input_limit(f))
        sup_json_fmt(o, ",\"limit_name\":\"%s\",\"needed_bytes\":%llu,\"allowed_bytes\":%llu",
                     f->err.what, (unsigned long long)f->err.n, (unsigned long long)f->err.limit);
}

/* The facts that both forms carry. */
static void extras(const struct sup_fail *f, struct sup_json *o)
{
    const char *reason = codes[f->code].reason;

    sup_json_fmt(o, ",\"retryable\":%s", f->retry_ms ? "true" : "false");
    if (f->retry_ms) {
        member(o, "reason", reason[0] ? reason : "inference_capacity");
        sup_json_fmt(o, ",\"retry_after_ms\":%u", f->retry_ms);
    }
    sup_fail_tokens(f, o);
    if (f->err.item >= 0)
        sup_json_fmt(o, ",\"input_index\":%d", (int)f->err.item);
    if (f->err.stage)
        member(o, "stage", f->err.stage);
}

/* One of the words that clients of that shape know. */
static const char *tei_type(const struct sup_fail *f)
{
    unsigned http = sup_fail_http(f);

    return http == 503 || http == 429 ? "Overloaded" : http < 500 ? "Validation" : "Backend";
}

void sup_fail_json(const struct sup_fail *f, enum sup_shape shape, struct sup_json *o)
{
    const char *field = f->err.what[0] ? f->err.what : NULL;

    if (shape == SUP_SHAPE_TEI) {
        sup_json_str(o, "{\"error\":");
        sup_json_quoted(o, f->err.msg);
        member(o, "error_type", tei_type(f));
        member(o, "code", codes[f->code].word);
        extras(f, o);
        sup_json_str(o, "}");
        return;
    }
    if (shape == SUP_SHAPE_OPENAI) {
        sup_json_str(o, "{\"error\":{\"message\":");
        sup_json_quoted(o, f->err.msg);
        member(o, "type", codes[f->code].type);
        member(o, "param", field);
        member(o, "code", codes[f->code].word);
        extras(f, o);
        sup_json_str(o, "}}");
        return;
    }
    sup_json_str(o, "{\"error\":");
    sup_json_quoted(o, codes[f->code].word);
    member(o, "message", f->err.msg);
    if (field)
        member(o, "param", field);
    extras(f, o);
    sup_json_str(o, "}");
}
