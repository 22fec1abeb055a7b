/* sup_puller.c - fork, listen, publish.
 *
 * Change with care: code between fork and sandbox; what the child keeps open. The child speaks
 * proto/fetch.proto: any number of progress, then one done. Anything else ends it.
 * Tests: tests/e2e/pull.py
 */
#include "sup_puller.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fetch.pb-c.h"
#include "ipc.h"
#include "sup_fetch_sandbox.h"
#include "sup_stage.h"

#define TICK_MS 200

/* ------------------------------------------------------------------- child */

enum { CHANNEL = 3, FILES, LOCK, FIRST_FREE };

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
    return ipc_send(CHANNEL, &m.base, NULL, 0, NULL) == RC_OK;
}

static void child_done(enum rc rc, const struct rc_err *err, bool unchanged)
{
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    d.code = (uint32_t)rc;
    d.message.data = (uint8_t *)(uintptr_t)err->msg;
    d.message.len = strlen(err->msg);
    d.unchanged = unchanged;
    m.body_case = IPC__FETCH__BODY_DONE;
    m.done = &d;
    (void)ipc_send(CHANNEL, &m.base, NULL, 0, NULL);
}

/* Descriptors 0 to 2 are nothing, 3 to 5 ours, and no other is open. */
static bool child_fds(int channel, const struct sup_stage *s)
{
    const int from[] = {channel, s->files_fd, s->dir_fd};
    int high[3], null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0)
        return false;
    for (int i = 0; i < 3; i++)
        if ((high[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 64)) < 0)
            return false;
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0 || dup2(high[i], CHANNEL + i) < 0)
            return false;
    return syscall(SYS_close_range, (unsigned)FIRST_FREE, ~0u, 0u) == 0;
}

static void child_main(const struct sup_puller *u, struct sup_pull *ask, int channel,
                       const struct sup_stage *s)
{
    bool file = ask->ref.kind == SUP_REF_FILE, unchanged = false;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN); /* the parent decides what Ctrl-C means */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (!child_fds(channel, s))
        _exit(1);
    ask->files_fd = FILES;
    ask->on_now = child_tell;
    (void)unsetenv("HF_TOKEN");
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        rc = rc_fail(&err, RC_INTERNAL, "libcurl cannot start");
    else
        rc = sup_fetch_sandbox(u->sandbox, FILES, file ? ask->ref.target : NULL, !file, NULL, &err);
    if (rc == RC_OK)
        rc = sup_pull_run(ask, &unchanged, &err);
    child_done(rc, &err, unchanged);
    _exit(0);
}

/* ------------------------------------------------------------------ parent */

static enum rc done(const Ipc__FetchDone *d, bool *unchanged, struct rc_err *err)
{
    size_t n = d->message.len < sizeof(err->msg) ? d->message.len : sizeof(err->msg) - 1;
    enum rc rc = rc_from_wire(d->code);

    *unchanged = d->unchanged;
    if (rc == RC_OK)
        return RC_OK;
    if (!ipc_utf8_valid(d->message.data, n))
        n = 0;
    return rc_fail(err, rc, "%.*s", (int)n, n ? (const char *)d->message.data : "");
}

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

/* Until the child has said its last word. *over: it has. */
static enum rc listen_to(const struct sup_puller *u, int channel, bool *unchanged, bool *over,
                         struct rc_err *err)
{
    struct pollfd pfd = {.fd = channel, .events = POLLIN};
    ProtobufCMessage *raw = NULL;
    enum rc rc = RC_OK;

    while (rc == RC_OK && !*over) {
        const Ipc__Fetch *m;
        bool go_on = true;

        if (poll(&pfd, 1, TICK_MS) <= 0) {
            if (!tell(u, NULL))
                rc = rc_fail(err, RC_CANCELLED, "interrupted");
            continue;
        }
        if ((rc = ipc_recv(channel, &ipc__fetch__descriptor, &raw, NULL, NULL, err)) != RC_OK)
            break;
        m = (const Ipc__Fetch *)raw;
        if (m->body_case == IPC__FETCH__BODY_PROGRESS) {
            go_on = tell(u, m->progress);
        } else if (m->body_case == IPC__FETCH__BODY_DONE) {
            *over = true;
            rc = done(m->done, unchanged, err);
        } else {
            rc = rc_fail(err, RC_FORMAT, "the fetcher said something that is no answer");
        }
        protobuf_c_message_free_unpacked(raw, NULL);
        if (rc == RC_OK && !go_on)
            rc = rc_fail(err, RC_CANCELLED, "interrupted");
    }
    return rc;
}

static enum rc work(const struct sup_puller *u, struct sup_pull *ask, const struct sup_stage *s,
                    bool *unchanged, struct rc_err *err)
{
    bool over = false;
    int fds[2], status = 0;
    enum rc rc = ipc_pair(fds, err);
    pid_t pid;

    if (rc != RC_OK)
        return rc;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        close(fds[0]);
        child_main(u, ask, fds[1], s);
    }
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return rc_fail(err, RC_IO, "the fetcher cannot be started: %s", strerror(errno));
    }
    rc = listen_to(u, fds[0], unchanged, &over, err);
    close(fds[0]);
    if (!over && rc != RC_CLOSED)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (rc == RC_CLOSED)
        rc = rc_fail(err, RC_CRASHED,
                     "the process that fetches died (%s %d); what has arrived is kept, the same "
                     "command goes on",
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
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

enum rc sup_puller_run(const struct sup_puller *u, struct sup_pull *ask, struct sup_pulled *out,
                       struct rc_err *err)
{
    struct sup_receipt have = {0};
    bool whole, unchanged = false;
    struct sup_stage s;
    enum rc rc;

    ask->have_commit[0] = '\0';
    whole = sup_puller_installed(u->models_dir, ask->ref.dest, &have, NULL) == RC_OK &&
            fits(&have, ask);
    if (u->offline) {
        if ((rc = offline(ask, &have, whole, err)) == RC_OK)
            *out = (struct sup_pulled){.unchanged = true, .receipt = have};
        else
            sup_receipt_deinit(&have);
        return rc;
    }
    if (whole && !u->again && strlen(have.commit) < sizeof(ask->have_commit))
        snprintf(ask->have_commit, sizeof(ask->have_commit), "%s", have.commit);
    if ((rc = sup_stage_open(&s, u->models_dir, ask->ref.dest, err)) != RC_OK) {
        sup_receipt_deinit(&have);
        return rc;
    }
    rc = work(u, ask, &s, &unchanged, err);
    if (rc == RC_OK && unchanged && whole) {
        *out = (struct sup_pulled){.unchanged = true, .receipt = have};
        memset(&have, 0, sizeof(have));
    } else if (rc == RC_OK) {
        *out = (struct sup_pulled){0};
        rc = sup_stage_publish(&s, &out->receipt, err);
    }
    sup_stage_close(&s, rc != RC_OK);
    sup_receipt_deinit(&have);
    return rc;
}
