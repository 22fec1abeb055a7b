/* sup_puller.c - stage, child, publish.
 *
 * The child speaks proto/fetch.proto: its walls, any number of progress, then one done. Anything
 * else ends it. Tests: tests/e2e/pull.py
 */
#include "sup_puller.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fetch.pb-c.h"
#include "ipc.h"
#include "sup_stage.h"

#define TICK_MS 200

/* ------------------------------------------------------------------- child */

/* Descriptors of the child, behind its channel. */
enum { FILES = SUP_CHILD_FIRST, LOCK };

static bool child_tell(void *user, const char *stage, const struct sup_xfer_now *now)
{
    Ipc__FetchProgress p = IPC__FETCH_PROGRESS__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    p.file = (char *)(uintptr_t)(now->file ? now->file : "");
    p.n = now->n;
    p.of = now->of;
    p.done_bytes = now->done_bytes;
    p.total_bytes = now->total_bytes;
    p.bytes_per_s = now->bytes_per_s;
    p.stage = (char *)(uintptr_t)stage;
    m.body_case = IPC__FETCH__BODY_PROGRESS;
    m.progress = &p;
    return ipc_send(SUP_CHILD_CHANNEL, &m.base, NULL, 0, NULL) == RC_OK;
}

struct errand {
    const struct sup_puller *u;
    struct sup_pull *ask;
};

static void child_main(void *user)
{
    const struct errand *e = user;
    bool file = e->ask->ref.kind == SUP_REF_FILE, unchanged = false;
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    e->ask->files_fd = FILES;
    e->ask->on_now = child_tell;
    rc = sup_child_narrow(e->u->sandbox, file ? SUP_FETCH_COPY : SUP_FETCH_PULL, FILES,
                          file ? e->ask->ref.target : NULL, &err);
    if (rc == RC_OK)
        rc = sup_pull_run(e->ask, &unchanged, &err);
    d.unchanged = unchanged;
    sup_child_say(&d, rc, &err, -1);
}

/* ------------------------------------------------------------------ parent */

static bool tell(const struct sup_puller *u, const Ipc__FetchProgress *p)
{
    struct sup_xfer_now now = {0};

    if (!u->on_now)
        return true;
    if (!p)
        return u->on_now(u->user, NULL, NULL);
    now.file = p->file;
    now.n = p->n;
    now.of = p->of;
    now.done_bytes = p->done_bytes;
    now.total_bytes = p->total_bytes;
    now.bytes_per_s = p->bytes_per_s;
    return u->on_now(u->user, p->stage, &now);
}

/* Until the child has said its last word. */
static enum rc listen_to(const struct sup_puller *u, const struct sup_child *c, bool *unchanged,
                         struct rc_err *err)
{
    struct pollfd pfd = {.fd = c->fd, .events = POLLIN};
    bool over = false;
    enum rc rc = RC_OK;

    while (rc == RC_OK && !over) {
        ProtobufCMessage *raw = NULL;
        const Ipc__Fetch *m;
        bool go_on = true;

        if (poll(&pfd, 1, TICK_MS) <= 0) {
            if (!tell(u, NULL))
                rc = rc_fail(err, RC_CANCELLED, "interrupted");
            continue;
        }
        if ((rc = ipc_recv(c->fd, &ipc__fetch__descriptor, &raw, NULL, NULL, err)) != RC_OK)
            break;
        m = (const Ipc__Fetch *)raw;
        if (m->body_case == IPC__FETCH__BODY_PROGRESS) {
            go_on = tell(u, m->progress);
        } else if (m->body_case == IPC__FETCH__BODY_DONE) {
            over = true;
            *unchanged = m->done->unchanged;
            rc = sup_child_said(m->done, err);
        } else if (m->body_case != IPC__FETCH__BODY_WALLS) {
            rc = rc_fail(err, RC_FORMAT, "the fetcher said something that is no answer");
        }
        protobuf_c_message_free_unpacked(raw, NULL);
        if (rc == RC_OK && !go_on)
            rc = rc_fail(err, RC_CANCELLED, "interrupted");
    }
    return rc;
}

enum rc sup_puller_installed(const char *models_dir, const char *dest, struct sup_receipt *out,
                             struct rc_err *err)
{
    int models = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = models >= 0 ? sup_stage_folder(models, dest) : -1;
    struct sup_receipt r = {0};
    enum rc rc;

    if (fd < 0)
        rc = rc_fail_what(err, RC_NOT_FOUND, dest, "'%s' is not below '%.300s'", dest, models_dir);
    else if ((rc = sup_receipt_load(&r, fd, err)) == RC_OK)
        rc = sup_receipt_unfinished(fd) ? rc_fail(err, RC_CONFLICT, "'%s' is not whole", dest)
                                        : sup_receipt_check(&r, fd, false, err);
    if (fd >= 0)
        close(fd);
    if (models >= 0)
        close(models);
    if (rc == RC_OK)
        *out = r;
    else
        sup_receipt_deinit(&r);
    return rc;
}

/* Is what is installed what is asked for, as far as one can tell without asking the source? */
static bool fits(const struct sup_receipt *r, const struct sup_pull *ask)
{
    const struct sup_ref *f = &ask->ref;

    return r->version == 2 && strcmp(r->owner, f->owner) == 0 && strcmp(r->name, f->name) == 0 &&
           strcmp(r->variant, f->variant) == 0 &&
           strcmp(r->from, f->kind == SUP_REF_HUB ? ask->hub : f->text) == 0;
}

static enum rc offline(const struct sup_pull *ask, struct sup_receipt *have, bool whole,
                       struct rc_err *err)
{
    const char *rev = ask->ref.revision;

    if (whole && (ask->ref.kind != SUP_REF_HUB || strcmp(rev, have->revision) == 0 ||
                  strcmp(rev, have->commit) == 0))
        return RC_OK;
    return rc_fail(err, RC_NOT_FOUND,
                   "offline: '%s' is not here as a whole; without --offline it would be fetched",
                   ask->ref.text);
}

enum rc sup_puller_begin(struct sup_puller_job *j, const struct sup_puller *u, struct sup_pull *ask,
                         struct rc_err *err)
{
    struct errand e = {u, ask};
    int fds[2];
    enum rc rc;

    memset(j, 0, sizeof(*j));
    ask->have_commit[0] = '\0';
    j->whole = sup_puller_installed(u->models_dir, ask->ref.dest, &j->have, NULL) == RC_OK &&
               fits(&j->have, ask);
    if (j->whole && !u->again && strlen(j->have.commit) < sizeof(ask->have_commit))
        snprintf(ask->have_commit, sizeof(ask->have_commit), "%s", j->have.commit);
    if ((rc = sup_stage_open(&j->stage, u->models_dir, ask->ref.dest, err)) == RC_OK) {
        fds[0] = j->stage.files_fd;
        fds[1] = j->stage.dir_fd; /* its lock outlives a parent that is killed */
        if ((rc = sup_child_start(&j->child, child_main, &e, fds, 2, err)) != RC_OK)
            sup_stage_close(&j->stage, true);
    }
    if (rc != RC_OK)
        sup_receipt_deinit(&j->have);
    return rc;
}

enum rc sup_puller_end(struct sup_puller_job *j, enum rc rc, bool unchanged, struct sup_pulled *out,
                       struct rc_err *err)
{
    int status = sup_child_end(&j->child);

    if (rc == RC_CLOSED)
        rc = rc_fail(err, RC_CRASHED,
                     "the process that fetches died (%s %d); what has arrived is kept, the same "
                     "pull goes on",
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    if (rc == RC_OK && unchanged && j->whole) {
        *out = (struct sup_pulled){.unchanged = true, .receipt = j->have};
        memset(&j->have, 0, sizeof(j->have));
    } else if (rc == RC_OK) {
        *out = (struct sup_pulled){0};
        rc = sup_stage_publish(&j->stage, &out->receipt, err);
    }
    sup_stage_close(&j->stage, rc != RC_OK);
    sup_receipt_deinit(&j->have);
    return rc;
}

enum rc sup_puller_run(const struct sup_puller *u, struct sup_pull *ask, struct sup_pulled *out,
                       struct rc_err *err)
{
    struct sup_receipt have = {0};
    struct sup_puller_job j;
    bool whole, unchanged = false;
    enum rc rc;

    if (u->offline) {
        whole = sup_puller_installed(u->models_dir, ask->ref.dest, &have, NULL) == RC_OK &&
                fits(&have, ask);
        if ((rc = offline(ask, &have, whole, err)) == RC_OK)
            *out = (struct sup_pulled){.unchanged = true, .receipt = have};
        else
            sup_receipt_deinit(&have);
        return rc;
    }
    if ((rc = sup_puller_begin(&j, u, ask, err)) != RC_OK)
        return rc;
    rc = listen_to(u, &j.child, &unchanged, err);
    return sup_puller_end(&j, rc, unchanged, out, err);
}
