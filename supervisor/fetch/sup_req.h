/* sup_req.h - one HTTP GET, with its redirects, under our rules and not curl's.
 *
 * curl follows nothing by itself: each hop is checked here. https stays https; http is for this
 * machine itself; the secret goes to the one origin it is for; what a redirect names is connected
 * only if its address is public, unless private_ok. The address that is checked is the one the
 * socket is connected to, so a second answer of DNS cannot slip in between.
 *
 * A request is started on a multi handle, and finished when curl says that it is done; the owner
 * of the multi handle runs the loop. Tests: tests/e2e/pull.py
 */
#ifndef INFERD_SUP_REQ_H
#define INFERD_SUP_REQ_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_ref.h"

#define SUP_REQ_HOPS 10
#define SUP_REQ_URL_MAX 8192
#define SUP_REQ_BLURB 257
#define SUP_REQ_HEADER_MAX (SUP_SECRET_BYTES + 64) /* with its name and a NUL */
#define SUP_RETRY_AFTER_MAX_S 300 /* who asks for a longer wait is not waited for */

struct sup_req_rules {
    const char *secret; /* a header value, like "Bearer x", of SUP_SECRET_BYTES at most; or NULL */
    char secret_origin[SUP_ORIGIN_MAX];
    bool private_ok;     /* redirects may lead into the own network */
    bool private_first;  /* the first URL may, because a person named it */
    unsigned hops;       /* redirects followed, at most SUP_REQ_HOPS */
    uint64_t timeout_ms; /* of all hops together; 0 = only silence ends it */
    /* may this origin be asked at all? NULL = any */
    bool (*may)(void *user, const char *origin);
    /* may it be at an address that is not public? Instead of the two flags above when set */
    bool (*private_may)(void *user, const char *origin);
    void *user;
};

enum sup_req_end {
    SUP_REQ_DONE,     /* a 2xx answer, and the sink took all of it */
    SUP_REQ_REDIRECT, /* start it again */
    SUP_REQ_RETRY,    /* worth another try, not before retry_ms */
    SUP_REQ_FAIL,
};

struct sup_req {
    const struct sup_req_rules *rules;
    CURL *easy;
    struct curl_slist *headers;
    char url[SUP_REQ_URL_MAX];
    char origin[SUP_ORIGIN_MAX];
    unsigned n_hops;
    uint64_t begun_ms;
    /* asked for: bytes from to to-1; to 0 = all */
    uint64_t from, to;
    char if_range[256];
    const char *accept; /* NULL = anything */
    /* the answer, whole when the sink is first called and at the end */
    long status;
    bool has_length, has_range;
    uint64_t length, range_from, range_total;
    char etag[256], type[128];
    uint32_t retry_after_s;
    uint32_t retry_ms;
    char blurb[SUP_REQ_BLURB]; /* the beginning of an answer that is no 2xx */
    size_t n_blurb;
    /* bytes of a 2xx answer; false ends the request (then with SUP_REQ_FAIL and RC_CANCELLED) */
    bool (*sink)(struct sup_req *r, const char *b, size_t n);
    void *user;
    bool sink_said_no, vetoed;
    char vetoed_addr[64];
    char why[CURL_ERROR_SIZE];
};

/* url is copied. Frees nothing on failure that sup_req_deinit would not. */
enum rc sup_req_init(struct sup_req *r, const struct sup_req_rules *rules, const char *url,
                     struct rc_err *err);
/* Adds it to the multi handle. Errors: RC_INVALID, RC_CONFLICT a rule forbids this hop. */
enum rc sup_req_start(struct sup_req *r, CURLM *multi, struct rc_err *err);
/* After curl is done with it, however it ended: takes it out of the multi handle and says what
 * came of it. err is filled on RETRY (why) and FAIL: RC_IO the network, RC_CONFLICT a rule,
 * RC_NOT_FOUND 404, RC_STATE 401 and 403, RC_BUSY 429, RC_DEADLINE, RC_CANCELLED by the sink. */
enum sup_req_end sup_req_finish(struct sup_req *r, CURLM *multi, CURLcode code, struct rc_err *err);
/* Takes it out of the multi handle when it still runs. A zeroed one is fine. */
void sup_req_deinit(struct sup_req *r, CURLM *multi);

uint64_t sup_req_now_ms(void);
/* Runs the loop until the one request on it is done. */
CURLcode sup_req_drive(CURLM *multi);

/* A small document into memory, with retries; caller frees. Runs the multi handle until it is
 * there. Errors as of _finish, RC_TOO_LARGE. */
enum rc sup_req_text(const struct sup_req_rules *rules, CURLM *multi, const char *url,
                     const char *accept, size_t max, unsigned retries, char **out, size_t *out_n,
                     struct rc_err *err);

#endif
