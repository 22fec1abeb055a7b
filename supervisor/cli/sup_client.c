/* sup_client.c - see sup_client.h. Knows HTTP and error bodies; knows nothing of
 * what the endpoints mean. libcurl's multi interface is used because it returns to
 * us between events: that is where Ctrl-C and progress are looked at.
 * Tests: tests/supervisor/test_sup_cli_client.c */
#include "sup_client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_cli.h"

#define ANSWER_MAX_BYTES (512u << 20)
#define ERROR_MAX_BYTES (64u << 10)
#define CONNECT_MS 5000L
#define TICK_MS 100

struct sup_client {
    char *server;    /* as given, for messages */
    char *base;      /* what URLs begin with */
    char *unix_path; /* or NULL */
    CURL *easy;
    CURLM *multi;
    struct curl_slist *headers;     /* of a POST */
    struct curl_slist *get_headers; /* or NULL */
    void (*tick)(void *);
    void *tick_user;
};

/* Where the bytes of one answer go. */
struct sink {
    CURL *easy;
    char *b;
    size_t n, cap, limit;
    bool too_large, stopped;
    bool (*on_bytes)(void *user, const char *s, size_t n);
    void *user;
};

static size_t receive(char *s, size_t one, size_t n, void *user)
{
    struct sink *k = user;
    long status = 0;

    n *= one;
    curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
    if (k->on_bytes && status == 200) {
        k->stopped = !k->on_bytes(k->user, s, n);
        return k->stopped ? 0 : n;
    }
    size_t limit = status == 200 ? k->limit : ERROR_MAX_BYTES;
    if (n > limit - (k->n < limit ? k->n : limit)) {
        k->too_large = true;
        return 0;
    }
    if (k->n + n + 1 > k->cap) {
        size_t cap = k->cap ? k->cap * 2 : 4096;
        char *grown;

        while (cap < k->n + n + 1)
            cap *= 2;
        if (!(grown = realloc(k->b, cap)))
            return 0;
        k->b = grown;
        k->cap = cap;
    }
    memcpy(k->b + k->n, s, n);
    k->n += n;
    return n;
}

static bool plain_host(const char *s)
{
    size_t n = strlen(s);

    /* user:password@, a path, a query or a control character has no business here */
    return n > 0 && n < 256 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]%") == n;
}

/* INFERD_API_KEY, which a server may ask for. NULL: none, or none that could be a header. */
static char *key_header(void)
{
    const char *key = getenv(SUP_KEY_ENV);
    char *line = NULL;

    if (!key || !*key)
        return NULL;
    for (const char *p = key; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return NULL;
    return asprintf(&line, "Authorization: Bearer %s", key) > 0 ? line : NULL;
}

enum rc sup_client_new(struct sup_client **out, const char *server, struct rc_err *err)
{
    struct sup_client *c = NULL;
    size_t n = strlen(server);
    bool is_unix = strncmp(server, "unix:", 5) == 0;
    const char *host = strstr(server, "://");
    char *key = NULL;

    if (is_unix && (n == 5 || n - 5 > 107))
        return rc_fail_what(err, RC_INVALID, "server",
                            "server '%.120s': expected unix: and a path of 1 to 107 bytes", server);
    if (!is_unix && ((strncmp(server, "http://", 7) != 0 && strncmp(server, "https://", 8) != 0) ||
                     !plain_host(host[3] && server[n - 1] == '/' ? "" : host + 3))) {
        char copy[300];

        /* one slash at the end is how browsers write it */
        if (host && n < sizeof(copy) && n > 8 && server[n - 1] == '/' && server[n - 2] != '/') {
            snprintf(copy, sizeof(copy), "%.*s", (int)n - 1, server);
            return sup_client_new(out, copy, err);
        }
        return rc_fail_what(err, RC_INVALID, "server",
                            "server '%.120s': expected http://HOST:PORT, https://HOST:PORT or "
                            "unix:PATH",
                            server);
    }
    if (!(c = calloc(1, sizeof(*c))))
        goto nomem;
    c->server = strdup(server);
    c->base = strdup(is_unix ? "http://localhost" : server);
    c->unix_path = is_unix ? strdup(server + 5) : NULL;
    c->easy = curl_easy_init();
    c->multi = curl_multi_init();
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (c->headers)
        /* without this line curl waits a second for "100 Continue" on large bodies */
        curl_slist_append(c->headers, "Expect:");
    key = key_header();
    if (c->headers && key) {
        curl_slist_append(c->headers, key);
        c->get_headers = curl_slist_append(NULL, key);
    }
    free(key);
    if (!c->server || !c->base || (is_unix && !c->unix_path) || !c->easy || !c->multi ||
        !c->headers)
        goto nomem;
    *out = c;
    return RC_OK;
nomem:
    sup_client_free(&c);
    return rc_fail(err, RC_NOMEM, "out of memory");
}

void sup_client_free(struct sup_client **c)
{
    if (!*c)
        return;
    curl_easy_cleanup((*c)->easy);
    curl_multi_cleanup((*c)->multi);
    curl_slist_free_all((*c)->headers);
    curl_slist_free_all((*c)->get_headers);
    free((*c)->server);
    free((*c)->base);
    free((*c)->unix_path);
    free(*c);
    *c = NULL;
}

const char *sup_client_server(const struct sup_client *c)
{
    return c->server;
}

void sup_client_on_tick(struct sup_client *c, void (*fn)(void *user), void *user)
{
    c->tick = fn;
    c->tick_user = user;
}

static CURLcode prepare(struct sup_client *c, const char *url, const char *body,
                        uint32_t timeout_ms, struct sink *k)
{
    CURL *e = c->easy;
    CURLcode bad = CURLE_OK;

    curl_easy_reset(e);
#define SET(o, v) bad = bad ? bad : curl_easy_setopt(e, o, v)
    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    SET(CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    SET(CURLOPT_USERAGENT, "inferd/" INFERD_VERSION);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_WRITEFUNCTION, receive);
    SET(CURLOPT_WRITEDATA, k);
    if (c->unix_path)
        SET(CURLOPT_UNIX_SOCKET_PATH, c->unix_path);
    SET(CURLOPT_HTTPHEADER, body ? c->headers : c->get_headers);
    if (body) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        SET(CURLOPT_POSTFIELDS, body);
    }
#undef SET
    return bad;
}

/* Runs the prepared call; RC_CANCELLED on Ctrl-C. */
static enum rc drive(struct sup_client *c, CURLcode *result)
{
    int running = 1, left;
    enum rc rc = RC_OK;
    CURLMsg *m;

    *result = CURLE_OK;
    if (curl_multi_add_handle(c->multi, c->easy) != CURLM_OK)
        return RC_NOMEM;
    while (running && rc == RC_OK) {
        if (curl_multi_perform(c->multi, &running) != CURLM_OK)
            rc = RC_INTERNAL;
        if (running && rc == RC_OK)
            (void)curl_multi_poll(c->multi, NULL, 0, TICK_MS, NULL);
        if (c->tick)
            c->tick(c->tick_user);
        if (running && sup_cli_interrupted(false))
            rc = RC_CANCELLED;
    }
    while ((m = curl_multi_info_read(c->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            *result = m->data.result;
    curl_multi_remove_handle(c->multi, c->easy);
    return rc;
}

static enum rc explain(const struct sup_client *c, CURLcode code, const struct sink *k,
                       struct rc_err *err)
{
    if (k->too_large)
        return rc_fail(err, RC_TOO_LARGE, "the answer of %s is larger than this client takes",
                       c->server);
    switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
        return rc_fail(err, RC_CLOSED,
                       "no server answers at %s (%s). Start one with: inferd serve --models-dir "
                       "DIR, or name another with --server",
                       c->server, curl_easy_strerror(code));
    case CURLE_OPERATION_TIMEDOUT:
        return rc_fail(err, RC_DEADLINE, "%s did not answer in time", c->server);
    case CURLE_OUT_OF_MEMORY:
        return rc_fail(err, RC_NOMEM, "out of memory");
    default:
        return rc_fail(err, RC_IO, "talking to %s: %s", c->server, curl_easy_strerror(code));
    }
}

static void copy_text(char *to, size_t cap, const json_t *v)
{
    if (json_is_string(v))
        snprintf(to, cap, "%s", json_string_value(v));
}

bool sup_client_error_body(const json_t *body, struct rc_err *err)
{
    const json_t *e = json_object_get(body, "error"), *from = body;

    if (json_is_object(e)) { /* {"error": {"message", "code", ...}} */
        from = e;
        copy_text(err->what, sizeof(err->what), json_object_get(e, "code"));
    } else if (json_is_string(e)) { /* {"error": "CODE", "message"} */
        copy_text(err->what, sizeof(err->what), e);
    } else {
        return false;
    }
    copy_text(err->msg, sizeof(err->msg), json_object_get(from, "message"));
    if (!err->msg[0])
        snprintf(err->msg, sizeof(err->msg), "%s", err->what[0] ? err->what : "unknown error");
    err->n = (uint64_t)json_integer_value(json_object_get(from, "n_tokens"));
    err->limit = (uint64_t)json_integer_value(json_object_get(from, "limit"));
    return true;
}

static enum rc http_error(const struct sup_client *c, long status, const struct sink *k,
                          struct rc_err *err)
{
    json_t *body = k->n ? json_loadb(k->b, k->n, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    enum rc code = status == 404                    ? RC_NOT_FOUND
                   : status == 503 || status == 429 ? RC_BUSY
                   : status >= 400 && status < 500  ? RC_INVALID
                                                    : RC_INTERNAL;
    struct rc_err e = RC_ERR_INIT;

    if (!body || !sup_client_error_body(body, &e))
        snprintf(e.msg, sizeof(e.msg), "%.200s answered with HTTP status %ld", c->server, status);
    e.code = code;
    json_decref(body);
    if (err)
        *err = e;
    return code;
}

static enum rc transfer(struct sup_client *c, const char *path, const char *body,
                        uint32_t timeout_ms, struct sink *k, struct rc_err *err)
{
    char url[2048];
    CURLcode code;
    long status = 0;
    enum rc rc;

    if (snprintf(url, sizeof(url), "%s%s", c->base, path) >= (int)sizeof(url))
        return rc_fail(err, RC_TOO_LARGE, "the model's name is too long for a URL");
    k->easy = c->easy;
    k->limit = ANSWER_MAX_BYTES;
    if ((code = prepare(c, url, body, timeout_ms, k)) != CURLE_OK)
        return explain(c, code, k, err);
    rc = drive(c, &code);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (rc == RC_CANCELLED)
        return rc_fail(err, rc, "interrupted");
    if (rc != RC_OK)
        return rc_fail(err, rc, "cannot start the HTTP call");
    if (k->stopped && status == 200)
        return RC_OK;
    if (code != CURLE_OK && !(status >= 400 && code == CURLE_WRITE_ERROR))
        return explain(c, code, k, err);
    if (status != 200)
        return http_error(c, status, k, err);
    return RC_OK;
}

enum rc sup_client_call(struct sup_client *c, const char *path, const json_t *body,
                        uint32_t timeout_ms, json_t **out, struct rc_err *err)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    struct sink k = {0};
    json_error_t je;
    json_t *got = NULL;
    enum rc rc;

    if (body && !text)
        return rc_fail(err, RC_NOMEM, "out of memory");
    rc = transfer(c, path, text, timeout_ms, &k, err);
    if (rc == RC_OK && out) {
        got = json_loadb(k.b ? k.b : "", k.n, 0, &je);
        if (!got)
            rc = rc_fail(err, RC_FORMAT,
                         "the answer of %s to %s is no JSON (%s): is that an inferd "
                         "server?",
                         c->server, path, je.text);
        else
            *out = got;
    }
    free(k.b);
    free(text);
    return rc;
}

enum rc sup_client_stream(struct sup_client *c, const char *path, const json_t *body,
                          bool (*on_bytes)(void *user, const char *s, size_t n), void *user,
                          struct rc_err *err)
{
    char *text = json_dumps(body, JSON_COMPACT);
    struct sink k = {.on_bytes = on_bytes, .user = user};
    enum rc rc;

    if (!text)
        return rc_fail(err, RC_NOMEM, "out of memory");
    rc = transfer(c, path, text, 0, &k, err);
    free(k.b);
    free(text);
    return rc;
}

bool sup_client_probe(struct sup_client *c, const char *path, unsigned *status)
{
    struct sink k = {0};
    struct rc_err err = RC_ERR_INIT;
    long s = 0;

    (void)transfer(c, path, NULL, 2000, &k, &err);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &s);
    free(k.b);
    if (status)
        *status = (unsigned)s;
    return s == 200;
}
