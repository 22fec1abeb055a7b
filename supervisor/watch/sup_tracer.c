/* sup_tracer.c - spans collected, sent, tried again (see sup_tracer.h).
 *
 * One batch at a time. It is sent when it is full, WAIT_MS after its first span, or when the
 * front has gone. A collector that is busy or away is tried again after 1, 2, 4 s; then the batch
 * is given up. Meanwhile further spans go into the batch as long as it has room. Tests:
 * tests/e2e/traces.py
 */
#include "sup_tracer.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_conf.h"
#include "sup_log.h"
#include "sup_otlp.h"
#include "sup_spans.h"

#define WAIT_MS 2000 /* a span waits for others */
#define POST_MS 5000 /* one attempt */
#define LAST_MS 1000 /* the same, when the server ends */
#define RETRIES 3
#define RETRY_MS 1000 /* before the first; doubles */

struct tracer {
    int front_fd, launcher_fd;
    struct sup_otlp_url url;
    struct sockaddr_storage to;
    socklen_t n_to;
    struct sup_otlp_batch batch;
    unsigned tries; /* of this batch, that failed */
    int64_t due_ms; /* when to send; 0 = nothing to send */
    struct sup_spans_told told;
    bool away; /* said in the log, until it answers again */
};

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

bool sup_tracer_wanted(const struct sup_conf *conf)
{
    return conf->otlp_endpoint[0] != '\0';
}

/* ------------------------------------------------------------------------ sending */

static void give_back(struct tracer *t)
{
    /* a front that does not read has lost count, nothing else */
    (void)!send(t->front_fd, &t->told, sizeof(t->told), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void done(struct tracer *t, bool well, int status)
{
    if (well)
        t->told.exported += t->batch.n;
    else
        t->told.failed += t->batch.n;
    if (well == t->away)
        SUP_LOG(well ? SUP_INFO : SUP_WARN, well ? "collector_back" : "collector_away",
                SUP_S("host", t->url.host), SUP_S("port", t->url.port), SUP_I("status", status),
                SUP_S("error", status < 0 ? strerror(errno) : NULL));
    t->away = !well;
    sup_otlp_clear(&t->batch);
    t->tries = 0;
    t->due_ms = 0;
    give_back(t);
}

static void post(struct tracer *t, int timeout_ms, bool last)
{
    struct sup_json body = {0};
    int status = -1;

    sup_otlp_body(&t->batch, INFERD_VERSION, &body);
    errno = ENOMEM;
    if (!body.failed)
        status = sup_otlp_post((struct sockaddr *)&t->to, t->n_to, &t->url, &body, timeout_ms);
    sup_json_deinit(&body);
    if (status >= 0 && !sup_otlp_again(status))
        done(t, status < 300, status);
    else if (last || t->tries == RETRIES)
        done(t, false, status);
    else
        t->due_ms = now_ms() + ((int64_t)RETRY_MS << t->tries++);
}

/* ---------------------------------------------------------------------- receiving */

/* false: the front has gone. */
static bool take(struct tracer *t)
{
    char text[SUP_SPAN_BYTES];
    uint64_t dropped = t->told.dropped;
    ssize_t n;

    while ((n = recv(t->front_fd, text, sizeof(text), MSG_DONTWAIT)) > 0) {
        bool fits = sup_otlp_add(&t->batch, text, (size_t)n);

        if (!fits && t->batch.n && t->tries == 0) { /* full: send it, then it has room */
            post(t, POST_MS, false);
            fits = sup_otlp_add(&t->batch, text, (size_t)n);
        }
        if (!fits)
            t->told.dropped++;
        else if (t->due_ms == 0)
            t->due_ms = now_ms() + WAIT_MS;
    }
    if (t->told.dropped != dropped)
        give_back(t);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static int time_left(const struct tracer *t)
{
    int64_t left = t->due_ms - now_ms();

    return t->due_ms == 0 ? -1 : left < 0 ? 0 : (int)left;
}

static void run(struct tracer *t)
{
    bool alive = true;

    while (alive) {
        struct pollfd p[2] = {{.fd = t->front_fd, .events = POLLIN},
                              {.fd = t->launcher_fd, .events = POLLIN}};
        char word[64];

        if (poll(p, 2, time_left(t)) < 0 && errno != EINTR)
            break;
        if (p[0].revents)
            alive = take(t);
        /* what the launcher says to all is not for us; its end is */
        if (p[1].revents && recv(t->launcher_fd, word, sizeof(word), MSG_DONTWAIT) == 0)
            alive = false;
        if (alive && t->batch.n && now_ms() >= t->due_ms)
            post(t, POST_MS, false);
    }
    if (t->batch.n)
        post(t, LAST_MS, true);
}

/* The front waits for the end of this channel, and the launcher takes the first role that ends
 * for the one that failed: so this one says that it is done and waits to be ended. */
static void stay(struct tracer *t)
{
    struct pollfd p = {.fd = t->launcher_fd, .events = POLLIN};
    char word[64];

    shutdown(t->front_fd, SHUT_WR);
    while (poll(&p, 1, -1) >= 0 || errno == EINTR)
        if (p.revents && recv(t->launcher_fd, word, sizeof(word), MSG_DONTWAIT) == 0)
            return;
}

static void work(struct tracer *t)
{
    run(t);
    stay(t);
}

/* ---------------------------------------------------------------------- the start */

static enum rc find(struct tracer *t, struct rc_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int e = getaddrinfo(t->url.host, t->url.port, &hints, &found);

    if (e != 0)
        return rc_fail_what(err, RC_NOT_FOUND, "otlp_endpoint",
                            "option 'otlp_endpoint': host '%.100s' is not found: %s", t->url.host,
                            gai_strerror(e));
    memcpy(&t->to, found->ai_addr, found->ai_addrlen);
    t->n_to = found->ai_addrlen;
    freeaddrinfo(found);
    return RC_OK;
}

int sup_tracer_main(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    struct tracer t = {.front_fd = fds->peer[SUP_ROLE_FRONT], .launcher_fd = fds->launcher};
    struct sup_walls_layer layers[SUP_TRACER_LAYERS];
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    if ((rc = sup_otlp_url_parse(conf->otlp_endpoint, &t.url, &err)) == RC_OK &&
        (rc = find(&t, &err)) == RC_OK &&
        (rc = sup_tracer_sandbox(conf->sandbox, layers, &err)) == RC_OK) {
        t.told.pid = (uint32_t)getpid();
        for (unsigned i = 0; i < SUP_TRACER_LAYERS; i++)
            t.told.held |= layers[i].holds ? 1u << i : 0;
        give_back(&t);
        work(&t);
    } else {
        SUP_LOG(SUP_ERROR, "tracer_start_failed", SUP_S("what", err.what), SUP_S("error", err.msg));
    }
    sup_otlp_deinit(&t.batch);
    close(t.front_fd);
    close(t.launcher_fd);
    return rc == RC_OK ? 0 : 1;
}
