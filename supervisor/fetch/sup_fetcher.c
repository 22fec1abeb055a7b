/* sup_fetcher.c - the fetcher's loop: the front's words, the children's words.
 *
 * Always true: every errand the front gave and did not cancel gets exactly one FetchDone; an
 * errand's child is reaped before its row is free. A word that is none of the front's ends the
 * process (and with it the server). Tests: tests/e2e/remote_media.py, tests/e2e/pull_http.py
 */
#include "sup_fetcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_conf.h"
#include "sup_fetch_sandbox.h"
#include "sup_fetch_vault.h"
#include "sup_log.h"
#include "sup_puller.h"
#include "sup_remote.h"
#include "sup_role.h"

#define WRITE_WAIT_MS 5000
#define BACKSTOP_MS 5000 /* behind a file's own time limit */
#define URL_MAX 8192

enum kind { NONE, MEDIA, PULL };

struct errand {
    enum kind kind;
    uint64_t req;
    struct sup_child media;
    struct sup_puller_job pull;
    bool walls; /* it has said which hold */
    char name[512];
    uint64_t kill_at_ms; /* 0 = never */
};

struct waiting {
    struct waiting *next;
    uint64_t req, max_bytes;
    uint32_t timeout_ms;
    char url[];
};

struct fetcher {
    const struct sup_conf *conf;
    int front, launcher;
    struct sup_fetch_vault vault;
    struct errand e[SUP_FETCH_CHILDREN];
    struct waiting *first, **tail;
    size_t n_waiting;
    struct sup_pull *ask; /* of the pull that is being started */
    bool over, breach;
};

bool sup_fetcher_wanted(const struct sup_conf *conf)
{
    return conf->allow_pull || (conf->media_hosts && conf->media_hosts[0]);
}

/* ---------------------------------------------------------------- to the front */

static void say(struct fetcher *f, Ipc__Fetch *m, int fd)
{
    struct pollfd w = {.fd = f->front, .events = POLLOUT};
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    while ((rc = ipc_send(f->front, &m->base, fd >= 0 ? &fd : NULL, fd >= 0, &err)) == RC_AGAIN) {
        if (m->body_case == IPC__FETCH__BODY_PROGRESS) /* the next one says more */
            return;
        if (poll(&w, 1, WRITE_WAIT_MS) == 0)
            break;
    }
    if (rc != RC_OK)
        f->over = true;
}

static void say_done(struct fetcher *f, uint64_t req, Ipc__FetchDone *d, enum rc rc,
                     const struct rc_err *err, int fd)
{
    Ipc__Fetch m = IPC__FETCH__INIT;

    d->code = (uint32_t)rc;
    d->message.data = (uint8_t *)(uintptr_t)err->msg;
    d->message.len = rc == RC_OK ? 0 : strlen(err->msg);
    m.req = req;
    m.body_case = IPC__FETCH__BODY_DONE;
    m.done = d;
    say(f, &m, fd);
}

static void say_walls(struct fetcher *f, uint64_t req, const struct sup_walls_told *t)
{
    Ipc__FetchWalls w = IPC__FETCH_WALLS__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    sup_child_walls(&w, t);
    m.req = req;
    m.body_case = IPC__FETCH__BODY_WALLS;
    m.walls = &w;
    say(f, &m, -1);
}

static void say_no(struct fetcher *f, uint64_t req, enum rc rc, const struct rc_err *err)
{
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;

    say_done(f, req, &d, rc, err, -1);
}

/* ------------------------------------------------------------------- errands */

static struct errand *row(struct fetcher *f, enum kind kind, uint64_t req)
{
    for (size_t i = 0; i < SUP_FETCH_CHILDREN; i++)
        if (f->e[i].kind == kind && (kind == NONE || f->e[i].req == req))
            return &f->e[i];
    return NULL;
}

static void start_media(struct fetcher *f, struct errand *e, const struct waiting *w)
{
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = sup_remote_start(&e->media, f->conf, w->url, w->max_bytes, w->timeout_ms, &err);

    if (rc != RC_OK) {
        say_no(f, w->req, rc, &err);
        return;
    }
    e->kind = MEDIA;
    e->walls = false;
    e->req = w->req;
    e->kill_at_ms = sup_req_now_ms() + w->timeout_ms + BACKSTOP_MS;
}

static void feed(struct fetcher *f)
{
    struct errand *e;

    while (f->first && (e = row(f, NONE, 0))) {
        struct waiting *w = f->first;

        f->first = w->next;
        if (!f->first)
            f->tail = &f->first;
        f->n_waiting--;
        start_media(f, e, w);
        free(w);
    }
}

static void end_media(struct fetcher *f, struct errand *e, enum rc rc, const Ipc__FetchDone *got,
                      struct rc_err *err, int fd)
{
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;

    (void)sup_child_end(&e->media);
    if (rc == RC_CLOSED)
        rc = rc_fail(err, RC_CRASHED, "the process that fetched it died");
    if (got && rc == RC_OK) {
        d.type = got->type;
        d.bytes = got->bytes;
        if (fd < 0 || !ipc_utf8_valid(got->type, strlen(got->type)))
            rc = rc_fail(err, RC_FORMAT, "the process that fetched it gave no file");
    }
    if (got)
        d.status = got->status;
    e->kind = NONE;
    say_done(f, e->req, &d, rc, err, rc == RC_OK ? fd : -1);
}

static void end_pull(struct fetcher *f, struct errand *e, enum rc rc, bool unchanged,
                     struct rc_err *err)
{
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;
    struct sup_pulled got = {0};

    rc = sup_puller_end(&e->pull, rc, unchanged, &got, err);
    for (size_t i = 0; rc == RC_OK && i < got.receipt.n_files; i++)
        d.bytes += got.receipt.file[i].size;
    d.unchanged = got.unchanged;
    d.name = e->name;
    d.type = rc == RC_OK && got.receipt.commit ? got.receipt.commit : (char *)(uintptr_t) "";
    e->kind = NONE;
    SUP_LOG(rc == RC_OK ? SUP_INFO : SUP_WARN, "pull_ended", SUP_S("model", e->name),
            SUP_S("result", rc_name(rc)), SUP_I("bytes", d.bytes), SUP_B("unchanged", d.unchanged),
            SUP_S("error", rc == RC_OK ? NULL : err->msg));
    say_done(f, e->req, &d, rc, err, -1);
    sup_receipt_deinit(&got.receipt);
}

static void end_any(struct fetcher *f, struct errand *e, enum rc rc, const Ipc__FetchDone *d,
                    struct rc_err *err, int fd)
{
    if (e->kind == MEDIA)
        end_media(f, e, rc, d, err, fd);
    else
        end_pull(f, e, rc, d && d->unchanged, err);
}

/* Its first word, passed on with the number that we know it by. */
static bool on_walls(struct fetcher *f, struct errand *e, const Ipc__FetchWalls *w)
{
    const struct sup_walls_told told = {
        (uint32_t)(e->kind == MEDIA ? e->media.pid : e->pull.child.pid), w->held, w->missing,
        w->n_held, w->n_missing};

    if (e->walls || !sup_walls_told_ok(&told))
        return false;
    e->walls = true;
    say_walls(f, e->req, &told);
    return true;
}

/* A child's word. */
static void on_child(struct fetcher *f, struct errand *e)
{
    int fds[IPC_FDS_MAX], from = e->kind == MEDIA ? e->media.fd : e->pull.child.fd;
    struct rc_err err = RC_ERR_INIT;
    ProtobufCMessage *raw = NULL;
    size_t n_fds = 0;
    enum rc rc = ipc_recv(from, &ipc__fetch__descriptor, &raw, fds, &n_fds, &err);
    Ipc__Fetch *m = (Ipc__Fetch *)raw;

    if (rc != RC_OK) {
        end_any(f, e, rc, NULL, &err, -1);
    } else if (m->body_case == IPC__FETCH__BODY_DONE) {
        rc = sup_child_said(m->done, &err);
        end_any(f, e, rc, m->done, &err, n_fds ? fds[0] : -1);
    } else if (m->body_case == IPC__FETCH__BODY_PROGRESS && e->kind == PULL) {
        m->req = e->req;
        say(f, m, -1);
    } else if (m->body_case != IPC__FETCH__BODY_WALLS || !on_walls(f, e, m->walls)) {
        rc_fail(&err, RC_FORMAT, "the process that fetches said something that is no answer");
        end_any(f, e, RC_FORMAT, NULL, &err, -1);
    }
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    if (raw)
        protobuf_c_message_free_unpacked(raw, NULL);
}

static void too_late(struct fetcher *f)
{
    uint64_t now = sup_req_now_ms();

    for (size_t i = 0; i < SUP_FETCH_CHILDREN; i++) {
        struct errand *e = &f->e[i];
        struct rc_err err = RC_ERR_INIT;

        if (e->kind != NONE && e->kill_at_ms && now >= e->kill_at_ms) {
            rc_fail(&err, RC_DEADLINE, "the process that fetches did not end in time");
            end_any(f, e, RC_DEADLINE, NULL, &err, -1);
        }
    }
}

/* ------------------------------------------------------- words of the front */

static void on_media(struct fetcher *f, const Ipc__Fetch *m)
{
    struct rc_err err = RC_ERR_INIT;
    size_t n = strlen(m->media->url);
    struct waiting *w = NULL;

    if (f->n_waiting >= SUP_FETCH_WAITING || n > URL_MAX || !(w = malloc(sizeof(*w) + n + 1))) {
        rc_fail(&err, n > URL_MAX ? RC_CONFLICT : RC_BUSY,
                n > URL_MAX ? "the URL is too long" : "too many files are being fetched");
        say_no(f, m->req, err.code, &err);
        return;
    }
    *w = (struct waiting){
        .req = m->req, .max_bytes = m->media->max_bytes, .timeout_ms = m->media->timeout_ms};
    if (w->max_bytes > f->conf->media_fetch_bytes)
        w->max_bytes = f->conf->media_fetch_bytes;
    if (!w->timeout_ms || w->timeout_ms > f->conf->media_fetch_timeout_ms)
        w->timeout_ms = (uint32_t)f->conf->media_fetch_timeout_ms;
    memcpy(w->url, m->media->url, n + 1);
    *f->tail = w;
    f->tail = &w->next;
    f->n_waiting++;
}

static enum rc start_pull(struct fetcher *f, struct errand *e, const Ipc__FetchPull *p,
                          struct rc_err *err)
{
    struct sup_puller u = {
        .models_dir = f->conf->models_dir, .sandbox = f->conf->sandbox, .again = p->again};
    struct sup_pull *ask = f->ask;
    enum rc rc;

    if (!f->conf->allow_pull)
        return rc_fail(err, RC_CONFLICT, "allow_pull is off");
    if ((rc = sup_ref_parse(&ask->ref, p->reference, NULL, NULL, err)) != RC_OK)
        return rc;
    if (ask->ref.kind == SUP_REF_FILE)
        return rc_fail_what(err, RC_INVALID, "model",
                            "file: is for 'inferd pull' on the server's own machine");
    if ((rc = sup_pull_hub(ask->hub, f->conf->hub_endpoint, err)) != RC_OK)
        return rc;
    ask->max_artifact_bytes = f->conf->pull_file_bytes;
    ask->max_model_bytes = f->conf->pull_model_bytes;
    ask->retries = 5;
    ask->public_only = ask->ref.kind == SUP_REF_URL; /* the hub was chosen by the operator */
    ask->served = true;
    ask->secret[0] = '\0';
    if (ask->ref.kind == SUP_REF_HUB) /* a single file's server gets none */
        rc = sup_fetch_vault_ask(&f->vault, ask->hub, ask->secret, err);
    if (rc == RC_OK)
        rc = sup_puller_begin(&e->pull, &u, ask, err);
    explicit_bzero(ask->secret, sizeof(ask->secret));
    if (rc == RC_OK)
        snprintf(e->name, sizeof(e->name), "%s", ask->ref.dest);
    return rc;
}

static void on_pull(struct fetcher *f, const Ipc__Fetch *m)
{
    struct rc_err err = RC_ERR_INIT;
    struct errand *e = row(f, NONE, 0);
    size_t n = 0;
    enum rc rc;

    for (size_t i = 0; i < SUP_FETCH_CHILDREN; i++)
        n += f->e[i].kind == PULL;
    if (!e || n >= SUP_FETCH_PULLS)
        rc = rc_fail(&err, RC_BUSY, "%zu models are being pulled, at most %d at a time", n,
                     SUP_FETCH_PULLS);
    else
        rc = start_pull(f, e, m->pull, &err);
    if (rc != RC_OK) {
        SUP_LOG(SUP_WARN, "pull_refused", SUP_S("result", rc_name(rc)), SUP_S("error", err.msg));
        say_no(f, m->req, rc, &err);
        return;
    }
    e->kind = PULL;
    e->walls = false;
    e->req = m->req;
    e->kill_at_ms = 0;
    SUP_LOG(SUP_INFO, "pull_started", SUP_S("model", e->name));
}

/* Nobody waits for it any more: no FetchDone. */
static void on_cancel(struct fetcher *f, const Ipc__Fetch *m)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_pulled got = {0};
    struct errand *e;

    for (struct waiting **at = &f->first; *at; at = &(*at)->next)
        if ((*at)->req == m->req) {
            struct waiting *w = *at;

            *at = w->next;
            if (!w->next)
                f->tail = at;
            f->n_waiting--;
            free(w);
            return;
        }
    if ((e = row(f, MEDIA, m->req))) {
        (void)sup_child_end(&e->media);
        e->kind = NONE;
    } else if ((e = row(f, PULL, m->req))) {
        (void)sup_puller_end(&e->pull, rc_fail(&err, RC_CANCELLED, "cancelled"), false, &got, &err);
        e->kind = NONE;
        SUP_LOG(SUP_INFO, "pull_ended", SUP_S("model", e->name), SUP_S("result", "CANCELLED"));
    }
}

static const struct {
    Ipc__Fetch__BodyCase message;
    void (*handler)(struct fetcher *f, const Ipc__Fetch *m);
} front_says[] = {
    {IPC__FETCH__BODY_MEDIA, on_media},
    {IPC__FETCH__BODY_PULL, on_pull},
    {IPC__FETCH__BODY_CANCEL, on_cancel},
};

static void on_front(struct fetcher *f)
{
    ProtobufCMessage *raw = NULL;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = ipc_recv(f->front, &ipc__fetch__descriptor, &raw, NULL, NULL, &err);
    const Ipc__Fetch *m = (const Ipc__Fetch *)raw;

    if (rc == RC_AGAIN)
        return;
    if (rc != RC_OK) {
        f->over = true;
        f->breach = rc != RC_CLOSED;
        return;
    }
    f->breach = true;
    for (size_t i = 0; i < sizeof(front_says) / sizeof(front_says[0]); i++)
        if (front_says[i].message == m->body_case) {
            f->breach = false;
            front_says[i].handler(f, m);
        }
    f->over = f->over || f->breach;
    protobuf_c_message_free_unpacked(raw, NULL);
}

/* --------------------------------------------------------------------- life */

static void turn(struct fetcher *f)
{
    struct pollfd p[3 + SUP_FETCH_CHILDREN] = {{.fd = f->launcher, .events = POLLIN},
                                               {.fd = f->front, .events = POLLIN},
                                               {.fd = f->vault.fd, .events = POLLIN}};
    const enum kind none = NONE;

    for (size_t i = 0; i < SUP_FETCH_CHILDREN; i++) {
        const struct errand *e = &f->e[i];

        p[3 + i] = (struct pollfd){.events = POLLIN,
                                   .fd = e->kind == none    ? -1
                                         : e->kind == MEDIA ? e->media.fd
                                                            : e->pull.child.fd};
    }
    if (poll(p, 3 + SUP_FETCH_CHILDREN, 500) < 0 && errno != EINTR) {
        f->over = true;
        return;
    }
    if (p[0].revents) /* it says nothing here: this is its end */
        f->over = true;
    for (size_t i = 0; i < SUP_FETCH_CHILDREN; i++) /* before new rows come to be */
        if (p[3 + i].revents && f->e[i].kind != none)
            on_child(f, &f->e[i]);
    if (p[2].revents)
        sup_fetch_vault_hear(&f->vault);
    if (p[1].revents)
        on_front(f);
    too_late(f);
    feed(f);
}

static enum rc narrow(struct fetcher *f, struct rc_err *err)
{
    const struct sup_conf *conf = f->conf;
    struct sup_walls_layer layers[SUP_FETCH_LAYERS];
    char *names[SUP_WALLS_MAX];
    struct sup_walls_told told;
    int models = -1;
    enum rc rc;

    if (conf->allow_pull) {
        (void)mkdir(conf->models_dir, 0755);
        if ((models = open(conf->models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            return rc_fail_what(err, RC_IO, "models_dir",
                                "models_dir '%s' cannot be opened, and allow_pull is on: %s",
                                conf->models_dir, strerror(errno));
    }
    rc = sup_fetch_sandbox_keeper(conf->sandbox, models, layers, err);
    if (models >= 0)
        close(models);
    if (rc == RC_OK) {
        sup_walls_tell(layers, SUP_FETCH_LAYERS, names, &told);
        say_walls(f, 0, &told);
    }
    return rc;
}

int sup_fetcher_main(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    static struct fetcher f; /* one per process */
    struct rc_err err = RC_ERR_INIT;

    f.conf = conf;
    f.front = fds->peer[SUP_ROLE_FRONT];
    sup_fetch_vault_init(&f.vault, fds->peer[SUP_ROLE_VAULT]);
    f.launcher = fds->launcher;
    f.tail = &f.first;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    if (narrow(&f, &err) != RC_OK) {
        SUP_LOG(SUP_ERROR, "fetcher_start_failed", SUP_S("what", err.what),
                SUP_S("error", err.msg));
        return 1;
    }
    if (!(f.ask = calloc(1, sizeof(*f.ask))))
        return 1;
    while (!f.over)
        turn(&f);
    /* children die with their parent; what pulls have fetched stays for the next one */
    if (f.breach)
        SUP_LOG(SUP_ERROR, "fetcher_breach", SUP_S("why", "a word that is none of the front's"));
    return f.breach ? 1 : 0;
}
