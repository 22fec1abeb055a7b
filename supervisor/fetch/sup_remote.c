/* sup_remote.c - the errand of a media child. See sup_remote.h.
 *
 * Always true: nothing is sent but a GET without credentials; nothing of the answer is read here
 * but its status, type, length and bytes. Tests: tests/supervisor/test_sup_remote.c,
 * tests/e2e/remote_media.py
 */
#include "sup_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sup_conf.h"
#include "sup_req.h"

static const char *const types[] = {"image/", "audio/", "video/"};

/* host of "scheme://host:port" */
static size_t host_of(const char *origin, const char **host)
{
    const char *s = strstr(origin, "://"), *colon = strrchr(origin, ':');

    *host = s ? s + 3 : origin;
    return colon && colon > *host ? (size_t)(colon - *host) : strlen(*host);
}

bool sup_remote_listed(char *const *list, const char *origin, bool stars)
{
    const char *host;
    size_t n = host_of(origin, &host);

    for (; list && *list; list++) {
        const char *row = *list;
        size_t m = strlen(row);

        if (stars && strcmp(row, "*") == 0)
            return true;
        if (stars && strncmp(row, "*.", 2) == 0) {
            if (n > m - 1 && strncasecmp(host + n - (m - 1), row + 1, m - 1) == 0)
                return true;
        } else if (n == m && strncasecmp(host, row, n) == 0) {
            return true;
        }
    }
    return false;
}

enum rc sup_remote_allowed(const struct sup_conf *conf, const char *url, struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];

    if (!sup_ref_origin(url, origin))
        return rc_fail(err, RC_CONFLICT,
                       "the URL is no plain http(s) URL, or has a user name in it");
    if (!sup_ref_origin_safe(origin))
        return rc_fail(err, RC_CONFLICT, "%s is asked over https only", origin);
    if (!sup_remote_listed(conf->media_hosts, origin, true))
        return rc_fail(err, RC_CONFLICT, "%s is not among the hosts that media_hosts allows",
                       origin);
    return RC_OK;
}

/* ------------------------------------------------------------------- child */

struct errand {
    const struct sup_conf *conf;
    const char *url;
    uint64_t max_bytes;
    uint32_t timeout_ms;
    /* in the child */
    int fd;
    uint64_t n;
    enum rc rc;
    struct rc_err err;
};

static bool may(void *user, const char *origin)
{
    const struct errand *e = user;

    return sup_remote_listed(e->conf->media_hosts, origin, true);
}

static bool private_may(void *user, const char *origin)
{
    const struct errand *e = user;

    return sup_remote_listed(e->conf->media_private_hosts, origin, false);
}

static bool type_ok(const char *type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strncasecmp(type, types[i], strlen(types[i])) == 0)
            return true;
    return false;
}

static bool sink(struct sup_req *r, const char *b, size_t n)
{
    struct errand *e = r->user;

    if (e->n == 0 && !type_ok(r->type))
        e->rc = rc_fail(&e->err, RC_CONFLICT,
                        "%s gives a file of type \"%.60s\", expected image/*, audio/* or video/*",
                        r->origin, r->type);
    else if ((r->has_length && r->length > e->max_bytes) || n > e->max_bytes - e->n)
        e->rc = rc_fail(&e->err, RC_TOO_LARGE, "%s gives more than %" PRIu64 " bytes", r->origin,
                        e->max_bytes);
    while (e->rc == RC_OK && n) {
        ssize_t w = write(e->fd, b, n);

        if (w <= 0) {
            e->rc = rc_fail(&e->err, RC_NOMEM, "no memory for the file: %s", strerror(errno));
            break;
        }
        b += w;
        n -= (size_t)w;
        e->n += (uint64_t)w;
    }
    return e->rc == RC_OK;
}

/* One request with its redirects. */
static enum rc get(struct errand *e, struct sup_req *r, CURLM *multi, struct rc_err *err)
{
    enum sup_req_end end = SUP_REQ_REDIRECT;
    enum rc rc = RC_OK;

    while (rc == RC_OK && end == SUP_REQ_REDIRECT)
        if ((rc = sup_req_start(r, multi, err)) == RC_OK)
            end = sup_req_finish(r, multi, sup_req_drive(multi), err);
    if (e->rc != RC_OK) {
        *err = e->err;
        return e->rc;
    }
    if (rc != RC_OK || end == SUP_REQ_DONE)
        return rc;
    return err->code;
}

static enum rc fetch(struct errand *e, Ipc__FetchDone *d, char type[128], struct rc_err *err)
{
    struct sup_req_rules rules = {.hops = SUP_REMOTE_HOPS,
                                  .timeout_ms = e->timeout_ms,
                                  .may = may,
                                  .private_may = private_may,
                                  .user = e};
    struct sup_req *r = calloc(1, sizeof(*r));
    CURLM *multi = curl_multi_init();
    enum rc rc;

    if (!r || !multi || (e->fd = memfd_create("media", MFD_CLOEXEC | MFD_ALLOW_SEALING)) < 0)
        return rc_fail(err, RC_NOMEM, "no memory for the file");
    if ((rc = sup_req_init(r, &rules, e->url, err)) != RC_OK)
        return rc;
    r->sink = sink;
    r->user = e;
    rc = get(e, r, multi, err);
    if (rc == RC_OK && e->n == 0)
        rc = rc_fail(err, RC_IO, "%s gives an empty file", r->origin);
    if (rc == RC_OK &&
        fcntl(e->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
        rc = rc_fail(err, RC_INTERNAL, "a file cannot be sealed: %s", strerror(errno));
    d->bytes = e->n;
    d->status = (uint32_t)r->status;
    snprintf(type, 128, "%.127s", r->type);
    d->type = type;
    return rc; /* the process ends: nothing needs to be put back */
}

static void child_main(void *user)
{
    struct errand *e = user;
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;
    struct rc_err err = RC_ERR_INIT;
    char type[128] = "";
    enum rc rc = sup_child_narrow(e->conf->sandbox, SUP_FETCH_MEDIA, -1, NULL, &err);

    if (rc == RC_OK)
        rc = fetch(e, &d, type, &err);
    sup_child_say(&d, rc, &err, rc == RC_OK ? e->fd : -1);
}

enum rc sup_remote_start(struct sup_child *c, const struct sup_conf *conf, const char *url,
                         uint64_t max_bytes, uint32_t timeout_ms, struct rc_err *err)
{
    struct errand e = {
        .conf = conf, .url = url, .max_bytes = max_bytes, .timeout_ms = timeout_ms, .fd = -1};
    enum rc rc = sup_remote_allowed(conf, url, err);

    return rc == RC_OK ? sup_child_start(c, child_main, &e, NULL, 0, err) : rc;
}
