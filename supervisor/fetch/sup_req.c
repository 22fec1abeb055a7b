/* sup_req.c - hops, rules and answers of one GET.
 *
 * Change with care: the order in sup_req_start (rules before curl hears the URL), and that the
 * secret is set anew for every hop. Tests: tests/e2e/pull.py
 */
#include "sup_req.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "sup_addr.h"
#include "sup_retry_after.h"

#define CONNECT_MS 30000L
#define SILENCE_S 30L

uint64_t sup_req_now_ms(void)
{
    struct timespec ts = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* --------------------------------------------------------------- callbacks */

static curl_socket_t on_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct sup_req *r = user;
    bool any = r->n_hops == 0 ? r->rules->private_first : r->rules->private_ok;

    (void)purpose;
    if (r->rules->private_may)
        any = r->rules->private_may(r->rules->user, r->origin);
    else if (/* back at the origin that was named first: as good as it was then */
             !any && r->rules->private_first && strcmp(r->origin, r->rules->secret_origin) == 0)
        any = true;
    if (!any && !sup_addr_public(&a->addr, a->addrlen)) {
        r->vetoed = true;
        sup_addr_text(&a->addr, a->addrlen, r->vetoed_addr);
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static bool digits(const char **s, uint64_t *out)
{
    uint64_t v = 0;

    if (!isdigit((unsigned char)**s))
        return false;
    for (; isdigit((unsigned char)**s); (*s)++) {
        unsigned d = (unsigned)(**s - '0');

        if (v > (UINT64_MAX - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

/* "bytes 0-9/100"; a total that is not told is no answer to a question about a part. */
static void read_range(struct sup_req *r, const char *s)
{
    uint64_t from, last, total;

    if (strncasecmp(s, "bytes ", 6) != 0)
        return;
    s += 6;
    if (!digits(&s, &from) || *s++ != '-' || !digits(&s, &last) || *s++ != '/' ||
        !digits(&s, &total) || *s || last < from || last >= total)
        return;
    r->has_range = true;
    r->range_from = from;
    r->range_total = total;
}

static void answer_clear(struct sup_req *r)
{
    r->status = 0;
    r->has_length = r->has_range = false;
    r->length = r->range_from = r->range_total = 0;
    r->etag[0] = r->type[0] = r->blurb[0] = '\0';
    r->n_blurb = 0;
    r->retry_after_s = 0;
}

static void header(struct sup_req *r, const char *name, const char *value)
{
    const char *s = value;
    uint64_t v;

    if (strcasecmp(name, "content-length") == 0 && digits(&s, &v) && !*s) {
        r->has_length = true;
        r->length = v;
    } else if (strcasecmp(name, "content-range") == 0) {
        read_range(r, value);
    } else if (strcasecmp(name, "etag") == 0) {
        if (strlen(value) < sizeof(r->etag))
            snprintf(r->etag, sizeof(r->etag), "%s", value);
    } else if (strcasecmp(name, "content-type") == 0) {
        snprintf(r->type, sizeof(r->type), "%.*s", (int)strcspn(value, "; "), value);
    } else if (strcasecmp(name, "retry-after") == 0) {
        (void)sup_retry_after(value, (int64_t)time(NULL), &r->retry_after_s);
    }
}

static size_t on_header(char *b, size_t one, size_t n, void *user)
{
    struct sup_req *r = user;
    char line[1024];
    char *value;
    size_t len = n;

    while (len && isspace((unsigned char)b[len - 1]))
        len--;
    if (len >= sizeof(line) || memchr(b, '\0', len))
        return n; /* longer than any that is read here */
    memcpy(line, b, len);
    line[len] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0) {
        answer_clear(r);
    } else if ((value = strchr(line, ':'))) {
        *value++ = '\0';
        header(r, line, value + strspn(value, " \t"));
    }
    return n;
}

static size_t on_body(char *b, size_t one, size_t n, void *user)
{
    struct sup_req *r = user;
    size_t take;

    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->status);
    if (r->status >= 200 && r->status < 300) {
        r->sink_said_no = !r->sink(r, b, n);
        return r->sink_said_no ? 0 : n;
    }
    take = sizeof(r->blurb) - 1 - r->n_blurb;
    if (take > n)
        take = n;
    for (size_t i = 0; i < take; i++)
        r->blurb[r->n_blurb + i] = b[i] < 0x20 || b[i] > 0x7E ? ' ' : b[i];
    r->n_blurb += take;
    r->blurb[r->n_blurb] = '\0';
    return r->n_blurb < sizeof(r->blurb) - 1 ? n : 0; /* enough to tell */
}

/* ------------------------------------------------------------------- start */

enum rc sup_req_init(struct sup_req *r, const struct sup_req_rules *rules, const char *url,
                     struct rc_err *err)
{
    memset(r, 0, sizeof(*r));
    r->rules = rules;
    if (strlen(url) >= sizeof(r->url))
        return rc_fail_what(err, RC_TOO_LARGE, "url", "a URL has more than %zu bytes",
                            sizeof(r->url) - 1);
    snprintf(r->url, sizeof(r->url), "%s", url);
    if (!(r->easy = curl_easy_init()))
        return rc_fail(err, RC_NOMEM, "out of memory");
    r->begun_ms = sup_req_now_ms();
    return RC_OK;
}

static enum rc hop_allowed(struct sup_req *r, struct rc_err *err)
{
    char before[SUP_ORIGIN_MAX];

    memcpy(before, r->origin, sizeof(before));
    if (!sup_ref_origin(r->url, r->origin))
        return rc_fail_what(err, RC_CONFLICT, "url",
                            "'%.200s' is no http(s) URL, or has a user name in it", r->url);
    if (!sup_ref_origin_safe(r->origin))
        return rc_fail_what(err, RC_CONFLICT, "url",
                            "%s is asked over https only: http is for this machine itself",
                            r->origin);
    if (strncmp(before, "https:", 6) == 0 && strncmp(r->origin, "http:", 5) == 0)
        return rc_fail_what(err, RC_CONFLICT, "url",
                            "%.200s sends us from https to http: that is not followed", before);
    if (r->rules->may && !r->rules->may(r->rules->user, r->origin))
        return rc_fail_what(err, RC_CONFLICT, "url", "%.200s is not among the hosts allowed",
                            r->origin);
    return RC_OK;
}

static void headers_free(struct sup_req *r)
{
    for (struct curl_slist *h = r->headers; h; h = h->next)
        explicit_bzero(h->data, strlen(h->data)); /* one may hold the secret */
    curl_slist_free_all(r->headers);
    r->headers = NULL;
}

static bool add_header(struct sup_req *r, const char *name, const char *value)
{
    char line[SUP_REQ_HEADER_MAX];
    struct curl_slist *more = NULL;

    if (snprintf(line, sizeof(line), "%s: %s", name, value) < (int)sizeof(line))
        more = curl_slist_append(r->headers, line);
    explicit_bzero(line, sizeof(line));
    if (!more)
        return false;
    r->headers = more;
    return true;
}

static bool headers(struct sup_req *r)
{
    bool ok;

    headers_free(r);
    ok = add_header(r, "Accept-Encoding", "identity");
    if (ok && r->accept)
        ok = add_header(r, "Accept", r->accept);
    if (ok && r->to && r->if_range[0])
        ok = add_header(r, "If-Range", r->if_range);
    if (ok && r->rules->secret && strcmp(r->origin, r->rules->secret_origin) == 0)
        ok = add_header(r, "Authorization", r->rules->secret);
    return ok;
}

enum rc sup_req_start(struct sup_req *r, CURLM *multi, struct rc_err *err)
{
    CURLcode bad = CURLE_OK;
    char range[64];
    uint64_t gone = sup_req_now_ms() - r->begun_ms;
    enum rc rc = hop_allowed(r, err);

    if (rc != RC_OK)
        return rc;
    if (r->rules->timeout_ms && gone >= r->rules->timeout_ms)
        return rc_fail(err, RC_DEADLINE, "%s took longer than %" PRIu64 " ms", r->origin,
                       r->rules->timeout_ms);
    curl_easy_reset(r->easy);
    answer_clear(r);
    r->vetoed = r->sink_said_no = false;
    r->why[0] = '\0';
    if (!headers(r))
        return rc_fail(err, RC_NOMEM, "no memory for a request, or a header over %u bytes",
                       SUP_REQ_HEADER_MAX - 1);
    snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, r->from, r->to ? r->to - 1 : 0);
#define SET(o, v) bad = bad ? bad : curl_easy_setopt(r->easy, o, v)
    SET(CURLOPT_URL, r->url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HTTPHEADER, r->headers);
    SET(CURLOPT_USERAGENT, "inferd/" INFERD_VERSION);
    SET(CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    if (r->rules->timeout_ms)
        SET(CURLOPT_TIMEOUT_MS, (long)(r->rules->timeout_ms - gone));
    if (r->to)
        SET(CURLOPT_RANGE, range);
    SET(CURLOPT_OPENSOCKETFUNCTION, on_socket);
    SET(CURLOPT_OPENSOCKETDATA, r);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, r);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, r);
    SET(CURLOPT_ERRORBUFFER, r->why);
    SET(CURLOPT_PRIVATE, r);
    if (!r->rules->private_first)
        SET(CURLOPT_PROXY, ""); /* a proxy would be the one who connects */
#undef SET
    if (bad || curl_multi_add_handle(multi, r->easy) != CURLM_OK)
        return rc_fail(err, RC_INTERNAL, "a request cannot be made: %s", curl_easy_strerror(bad));
    return RC_OK;
}

/* ------------------------------------------------------------------ finish */

static enum sup_req_end redirect(struct sup_req *r, struct rc_err *err)
{
    char *to = NULL;

    curl_easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to || strlen(to) >= sizeof(r->url)) {
        rc_fail(err, RC_CONFLICT, "%s sends us on (status %ld) to %s", r->origin, r->status,
                to ? "a URL that is too long" : "nowhere");
        return SUP_REQ_FAIL;
    }
    if (r->n_hops >= r->rules->hops) {
        rc_fail(err, RC_CONFLICT, "%s sends us on once more, after %u redirects", r->origin,
                r->n_hops);
        return SUP_REQ_FAIL;
    }
    r->n_hops++;
    snprintf(r->url, sizeof(r->url), "%s", to);
    return SUP_REQ_REDIRECT;
}

static enum sup_req_end refused(struct sup_req *r, struct rc_err *err)
{
    bool again = r->status == 429 || r->status >= 500 || r->status == 408;
    enum rc rc = r->status == 404 || r->status == 410   ? RC_NOT_FOUND
                 : r->status == 401 || r->status == 403 ? RC_STATE
                 : r->status == 429                     ? RC_BUSY
                                                        : RC_IO;

    rc_fail(err, rc, "%s answered with status %ld%s%.256s", r->origin, r->status,
            r->blurb[0] ? ": " : "", r->blurb);
    if (!again)
        return SUP_REQ_FAIL;
    if (r->retry_after_s > SUP_RETRY_AFTER_MAX_S) {
        rc_wrap(err, "it asks to come back in %u s, which is not waited for", r->retry_after_s);
        return SUP_REQ_FAIL;
    }
    r->retry_ms = r->retry_after_s * 1000;
    return SUP_REQ_RETRY;
}

static enum sup_req_end broken(struct sup_req *r, CURLcode code, struct rc_err *err)
{
    static const CURLcode lasting[] = {
        CURLE_UNSUPPORTED_PROTOCOL,     CURLE_URL_MALFORMAT,      CURLE_SSL_CACERT_BADFILE,
        CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CERTPROBLEM,    CURLE_OUT_OF_MEMORY,
        CURLE_BAD_FUNCTION_ARGUMENT,    CURLE_WEIRD_SERVER_REPLY,
    };

    if (r->sink_said_no) {
        rc_fail(err, RC_CANCELLED, "the answer of %s was not taken", r->origin);
        return SUP_REQ_FAIL;
    }
    if (r->vetoed) {
        rc_fail_what(err, RC_CONFLICT, "url",
                     "%s is at %s, which is no address of the public internet", r->origin,
                     r->vetoed_addr);
        return SUP_REQ_FAIL;
    }
    if (r->rules->timeout_ms && sup_req_now_ms() - r->begun_ms >= r->rules->timeout_ms) {
        rc_fail(err, RC_DEADLINE, "%s took longer than %" PRIu64 " ms", r->origin,
                r->rules->timeout_ms);
        return SUP_REQ_FAIL;
    }
    rc_fail(err, RC_IO, "talking to %s: %s", r->origin,
            r->why[0] ? r->why : curl_easy_strerror(code));
    r->retry_ms = 0;
    for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++)
        if (code == lasting[i])
            return SUP_REQ_FAIL;
    return SUP_REQ_RETRY;
}

enum sup_req_end sup_req_finish(struct sup_req *r, CURLM *multi, CURLcode code, struct rc_err *err)
{
    bool told;

    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->status);
    curl_multi_remove_handle(multi, r->easy);
    /* of an answer that is no 2xx only the beginning is read: cutting it is our doing */
    told = r->status >= 300 && (code == CURLE_OK || code == CURLE_WRITE_ERROR);
    if (code != CURLE_OK && !told)
        return broken(r, code, err);
    if (r->status >= 200 && r->status < 300)
        return SUP_REQ_DONE;
    if (r->status == 301 || r->status == 302 || r->status == 303 || r->status == 307 ||
        r->status == 308)
        return redirect(r, err);
    return refused(r, err);
}

void sup_req_deinit(struct sup_req *r, CURLM *multi)
{
    if (r->easy) {
        curl_multi_remove_handle(multi, r->easy);
        curl_easy_cleanup(r->easy);
    }
    headers_free(r);
    memset(r, 0, sizeof(*r));
}

/* -------------------------------------------------------------------- text */

struct text {
    char *b;
    size_t n, max;
    bool over;
};

static bool text_sink(struct sup_req *r, const char *b, size_t n)
{
    struct text *t = r->user;
    char *grown;

    if (n > t->max - t->n) {
        t->over = true;
        return false;
    }
    if (!(grown = realloc(t->b, t->n + n + 1)))
        return false;
    t->b = grown;
    memcpy(t->b + t->n, b, n);
    t->n += n;
    t->b[t->n] = '\0';
    return true;
}

CURLcode sup_req_drive(CURLM *multi)
{
    CURLcode code = CURLE_OK;
    int running = 1, left;

    while (running) {
        CURLMsg *m;

        if (curl_multi_perform(multi, &running) != CURLM_OK)
            return CURLE_FAILED_INIT;
        while ((m = curl_multi_info_read(multi, &left)))
            if (m->msg == CURLMSG_DONE)
                code = m->data.result;
        if (running)
            (void)curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
    return code;
}

static void wait_ms(uint64_t ms)
{
    struct timespec ts = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};

    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

enum rc sup_req_text(const struct sup_req_rules *rules, CURLM *multi, const char *url,
                     const char *accept, size_t max, unsigned retries, char **out, size_t *out_n,
                     struct rc_err *err)
{
    struct text t = {.max = max};
    struct sup_req *r = calloc(1, sizeof(*r));
    enum sup_req_end end = SUP_REQ_FAIL;
    enum rc rc = RC_OK;

    if (!r)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (unsigned try = 0; rc == RC_OK; try++) {
        t.n = 0;
        if ((rc = sup_req_init(r, rules, url, err)) != RC_OK)
            break;
        r->accept = accept;
        r->sink = text_sink;
        r->user = &t;
        do
            if ((rc = sup_req_start(r, multi, err)) == RC_OK)
                end = sup_req_finish(r, multi, sup_req_drive(multi), err);
        while (rc == RC_OK && end == SUP_REQ_REDIRECT);
        if (rc == RC_OK && end == SUP_REQ_RETRY && try < retries)
            wait_ms(r->retry_ms ? r->retry_ms : 500ull << (try < 6 ? try : 6));
        else
            break;
        sup_req_deinit(r, multi);
    }
    if (rc == RC_OK && end != SUP_REQ_DONE)
        rc = t.over
                 ? rc_fail(err, RC_TOO_LARGE, "%s answers with more than %zu bytes", r->origin, max)
             : err ? err->code
                   : RC_IO;
    sup_req_deinit(r, multi);
    free(r);
    if (rc == RC_OK && !t.b && !(t.b = calloc(1, 1)))
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    if (rc != RC_OK) {
        free(t.b);
        return rc;
    }
    *out = t.b;
    *out_n = t.n;
    return RC_OK;
}
