/* sup_fleet_ctl.c - talks with the launcher: asks for lists, births and kills.
 *
 * Knows the order of Ctl frames, nothing of why. When the launcher is gone the
 * front is about to be killed (parent-death signal); the loop is stopped so that
 * it ends by itself where that signal does not exist (tests).
 * Tests: tests/supervisor/test_sup_fleet.c */
#include "sup_fleet_impl.h"

#include <unistd.h>

static void ctl_lost(struct sup_fleet *f, const char *why)
{
    if (f->ctl_dead)
        return;
    f->ctl_dead = true;
    SUP_LOG(SUP_ERROR, "launcher_lost", SUP_S("why", why));
    uv_poll_stop(&f->ctl_poll);
    if (f->on_stop)
        f->on_stop(f->user);
}

static struct worker *by_req(struct sup_fleet *f, uint64_t req)
{
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);

        if (w->req == req && w->state == SUP_W_SPAWNING)
            return w;
    }
    return NULL;
}

/* The channel of a worker could not be received: this process holds too many descriptors. */
static void no_room(struct sup_fleet *f, struct worker *w, uint32_t pid)
{
    ctl_kill(f, pid);
    rc_fail(&w->err, RC_NOMEM, "no descriptors are left for the channel of a worker");
    w->cause = "spawn";
    worker_exited(w, 0);
}

static void on_spawned(struct sup_fleet *f, const Ipc__CtlSpawned *s, const int *fds, size_t n_fds)
{
    struct worker *w = by_req(f, s->req);

    if (!w || n_fds != 2 || s->identity.len != SUP_IDENTITY_BYTES) {
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
        if (!w)
            ctl_kill(f, s->pid);
        else if (n_fds == 0)
            no_room(f, w, s->pid);
        else
            ctl_lost(f, "a malformed answer to a spawn");
        return;
    }
    worker_spawned(w, s->pid, s->identity.data, fds[0], fds[1]);
}

static void on_spawn_failed(struct sup_fleet *f, const Ipc__CtlSpawnFailed *s)
{
    struct worker *w = by_req(f, s->req);
    Ipc__Error e = IPC__ERROR__INIT;

    if (!w)
        return;
    e.code = s->code;
    e.message = s->message;
    e.item = -1;
    ipc_error_to(&w->err, &e);
    w->cause = "spawn";
    worker_exited(w, 0);
}

static void on_exited(struct sup_fleet *f, const Ipc__CtlExited *e)
{
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);

        if (w->pid == e->pid && !w->exited && w->state != SUP_W_SPAWNING) {
            worker_exited(w, e->status);
            return;
        }
    }
}

void sup_fleet_on_conf(struct sup_fleet *f,
                       void (*fn)(void *user, const char *json, size_t n, const char *refused))
{
    f->on_conf = fn;
}

static void on_conf(struct sup_fleet *f, const Ipc__CtlConf *c)
{
    char why[512];

    if (!f->on_conf)
        return;
    snprintf(why, sizeof(why), "%.*s", (int)(c->refused.len < sizeof(why) ? c->refused.len : 511),
             (const char *)c->refused.data);
    if (c->refused.len > 0)
        f->on_conf(f->user, NULL, 0, why);
    else
        f->on_conf(f->user, (const char *)c->json.data, c->json.len, NULL);
}

static void on_ctl(uv_poll_t *p, int status, int events);

static void ctl_listen(struct sup_fleet *f)
{
    int events = UV_READABLE | (f->ctl_out ? UV_WRITABLE : 0);

    if (!f->ctl_dead && events != f->ctl_events) {
        f->ctl_events = events;
        uv_poll_start(&f->ctl_poll, events, on_ctl);
    }
}

static void ctl_flush(struct sup_fleet *f)
{
    struct rc_err err = RC_ERR_INIT;

    while (f->ctl_out) {
        struct out *o = f->ctl_out;
        enum rc rc = ipc_send_packed(f->ctl_fd, o->bytes, o->n, NULL, 0, &err);

        if (rc == RC_AGAIN)
            break;
        if (rc != RC_OK) {
            ctl_lost(f, err.msg);
            return;
        }
        if (!(f->ctl_out = o->next))
            f->ctl_out_tail = &f->ctl_out;
        free(o);
    }
    ctl_listen(f);
}

/* Requests are few (a scan a second, a spawn per model, a kill per worker), which
 * bounds the queue. */
static void ctl_send(struct sup_fleet *f, const Ipc__Ctl *c)
{
    size_t n = ipc__ctl__get_packed_size(c);
    struct out *o;

    if (f->ctl_dead)
        return;
    if (!(o = malloc(sizeof(*o) + n))) {
        ctl_lost(f, "out of memory");
        return;
    }
    o->next = NULL;
    o->n = n;
    ipc__ctl__pack(c, o->bytes);
    *f->ctl_out_tail = o;
    f->ctl_out_tail = &o->next;
    ctl_flush(f);
}

static void on_ctl(uv_poll_t *p, int status, int events)
{
    struct sup_fleet *f = p->data;

    if (events & UV_WRITABLE)
        ctl_flush(f);
    for (int i = 0; i < 64 && !f->ctl_dead; i++) {
        ProtobufCMessage *m = NULL;
        int fds[IPC_FDS_MAX];
        size_t n_fds = 0;
        struct rc_err err = RC_ERR_INIT;
        enum rc rc = ipc_recv(f->ctl_fd, &ipc__ctl__descriptor, &m, fds, &n_fds, &err);
        const Ipc__Ctl *c = (const Ipc__Ctl *)m;

        if (rc == RC_AGAIN)
            return;
        if (rc != RC_OK) {
            ctl_lost(f, err.msg);
            return;
        }
        if (c->body_case != IPC__CTL__BODY_SPAWNED)
            for (size_t k = 0; k < n_fds; k++)
                close(fds[k]);
        switch (c->body_case) {
        case IPC__CTL__BODY_MODELS:
            fleet_models(f, c->models);
            break;
        case IPC__CTL__BODY_SPAWNED:
            on_spawned(f, c->spawned, fds, n_fds);
            break;
        case IPC__CTL__BODY_SPAWN_FAILED:
            on_spawn_failed(f, c->spawn_failed);
            break;
        case IPC__CTL__BODY_EXITED:
            on_exited(f, c->exited);
            break;
        case IPC__CTL__BODY_CONF:
            on_conf(f, c->conf);
            break;
        case IPC__CTL__BODY_STOP:
            if (f->on_stop)
                f->on_stop(f->user);
            break;
        default:
            ctl_lost(f, "a message the launcher may not send");
        }
        protobuf_c_message_free_unpacked(m, NULL);
    }
}

void ctl_scan(struct sup_fleet *f)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlScan s = IPC__CTL_SCAN__INIT;

    c.body_case = IPC__CTL__BODY_SCAN;
    c.scan = &s;
    ctl_send(f, &c);
}

void ctl_spawn(struct sup_fleet *f, uint64_t req, const char *id, bool probe)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlSpawn s = IPC__CTL_SPAWN__INIT;

    s.req = req;
    s.id = (char *)id;
    s.probe = probe;
    c.body_case = IPC__CTL__BODY_SPAWN;
    c.spawn = &s;
    ctl_send(f, &c);
}

void ctl_kill(struct sup_fleet *f, uint32_t pid)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlKill k = IPC__CTL_KILL__INIT;

    k.pid = pid;
    c.body_case = IPC__CTL__BODY_KILL;
    c.kill = &k;
    ctl_send(f, &c);
}

enum rc ctl_open(struct sup_fleet *f, int ctl_fd, struct rc_err *err)
{
    int r;

    f->ctl_fd = ctl_fd;
    f->ctl_out_tail = &f->ctl_out;
    if ((r = uv_poll_init(f->loop, &f->ctl_poll, ctl_fd)) != 0) /* makes it non-blocking */
        return rc_fail(err, RC_IO, "the launcher's channel: %s", uv_strerror(r));
    f->ctl_poll.data = f;
    f->n_handles++;
    ctl_listen(f);
    return RC_OK;
}

void ctl_close(struct sup_fleet *f)
{
    while (f->ctl_out) {
        struct out *o = f->ctl_out;

        f->ctl_out = o->next;
        free(o);
    }
}
