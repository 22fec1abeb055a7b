/* sup_link.c - errands of the front. See sup_link.h.
 *
 * Always true: an errand is in the list from the moment it was sent until it is done or
 * cancelled; one that was cancelled is remembered until its answer could have been under way.
 * Tests: tests/supervisor/test_sup_link.c
 */
#include "sup_link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch.pb-c.h"
#include "ipc.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_walls.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

struct errand {
    struct errand *next;
    uint64_t id, max_bytes; /* max_bytes 0: a pull */
    struct sup_link_cb cb;
    Ipc__Fetch *walls; /* of the child that runs it; NULL before it has said so */
};

struct sup_link {
    uv_poll_t poll;
    int fd; /* -1 = no fetcher */
    bool lost, stopped;
    uint64_t last_id;
    struct errand *errands;
    size_t n;
    Ipc__Fetch *walls; /* its own */
    struct sup_metrics *metrics;
    void (*on_lost)(void *user);
    void *user;
};

static void walls_free(Ipc__Fetch **w)
{
    if (*w)
        protobuf_c_message_free_unpacked(&(*w)->base, NULL);
    *w = NULL;
}

static void errand_free(struct errand *e)
{
    walls_free(&e->walls);
    free(e);
}

static const char *kind_of(const struct errand *e)
{
    return e->max_bytes ? "media" : "pull";
}

static void active(struct sup_link *l)
{
    if (l->metrics)
        sup_series_set(sup_series(l->metrics, SUP_M_FETCH_ACTIVE, NULL, NULL), (double)l->n);
}

static struct errand *take(struct sup_link *l, uint64_t id)
{
    for (struct errand **at = &l->errands; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            struct errand *e = *at;

            *at = e->next;
            l->n--;
            active(l);
            return e;
        }
    return NULL;
}

static void finish(struct sup_link *l, struct errand *e, struct sup_link_done *d)
{
    if (l->metrics) {
        sup_series_add(sup_series(l->metrics, SUP_M_FETCHES, kind_of(e), rc_name(d->code)), 1);
        sup_series_add(sup_series(l->metrics, SUP_M_FETCH_BYTES, kind_of(e), NULL),
                       d->code != RC_OK || d->unchanged ? 0 : (double)d->bytes);
    }
    e->cb.done(e->cb.user, d);
    errand_free(e);
}

static void lose(struct sup_link *l, const char *why)
{
    if (l->lost)
        return;
    l->lost = true;
    uv_poll_stop(&l->poll);
    SUP_LOG(SUP_ERROR, "fetcher_lost", SUP_S("why", why));
    while (l->errands) {
        struct sup_link_done d = {0};

        d.code = rc_fail(&d.err, RC_CRASHED, "the fetcher is gone");
        finish(l, take(l, l->errands->id), &d);
    }
    if (l->on_lost)
        l->on_lost(l->user);
}

/* The file beside a done: sealed, of the size it says, within what was asked. */
static bool map_file(struct sup_link_done *d, const struct errand *e, uint64_t says, int fd)
{
    struct stat st;
    void *p;

    if (fd < 0 || (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS || fstat(fd, &st) != 0 ||
        st.st_size <= 0 || (uint64_t)st.st_size != says || says > e->max_bytes)
        return false;
    p = mmap(NULL, (size_t)says, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        d->code = rc_fail(&d->err, RC_NOMEM, "no memory for a remote file");
        return true;
    }
    d->data = p;
    d->n_data = (size_t)says;
    return true;
}

void sup_link_unmap(void *data, size_t n)
{
    if (data)
        munmap(data, n);
}

static void on_done(struct sup_link *l, uint64_t id, const Ipc__FetchDone *in, int fd)
{
    struct sup_link_done d = {.code = rc_from_wire(in->code), .bytes = in->bytes};
    struct errand *e = take(l, id);
    size_t n = in->message.len < sizeof(d.err.msg) ? in->message.len : sizeof(d.err.msg) - 1;

    if (!e) /* cancelled while it was under way */
        return;
    d.type = ipc_utf8_valid(in->type, strlen(in->type)) ? in->type : "";
    d.name = ipc_utf8_valid(in->name, strlen(in->name)) ? in->name : "";
    d.unchanged = in->unchanged;
    if (d.code != RC_OK)
        rc_fail(&d.err, d.code, "%.*s", ipc_utf8_valid(in->message.data, n) ? (int)n : 0,
                n ? (const char *)in->message.data : "");
    else if (e->max_bytes && !map_file(&d, e, in->bytes, fd)) {
        d.code = rc_fail(&d.err, RC_CRASHED, "the fetcher is gone");
        finish(l, e, &d);
        lose(l, "a file that is not what it says");
        return;
    }
    finish(l, e, &d);
}

static void on_progress(struct sup_link *l, uint64_t id, const Ipc__FetchProgress *in)
{
    struct sup_link_progress p = {.file = in->file,
                                  .stage = in->stage,
                                  .n = in->n,
                                  .of = in->of,
                                  .done_bytes = in->done_bytes,
                                  .total_bytes = in->total_bytes,
                                  .bytes_per_s = in->bytes_per_s};

    for (struct errand *e = l->errands; e; e = e->next)
        if (e->id == id) {
            if (e->cb.progress && ipc_utf8_valid(in->file, strlen(in->file)) &&
                ipc_utf8_valid(in->stage, strlen(in->stage)))
                e->cb.progress(e->cb.user, &p);
            return;
        }
}

static struct sup_walls_told told_of(const Ipc__FetchWalls *w)
{
    return (struct sup_walls_told){w->pid, w->held, w->missing, w->n_held, w->n_missing};
}

/* true: the message is kept. */
static bool on_walls(struct sup_link *l, Ipc__Fetch *m)
{
    const struct sup_walls_told t = told_of(m->walls);
    struct errand *e = l->errands;
    Ipc__Fetch **at = &l->walls;

    if (!sup_walls_told_ok(&t)) {
        lose(l, "malformed names of sandbox layers");
        return false;
    }
    while (m->req && e && e->id != m->req)
        e = e->next;
    if (m->req && !e)
        return false; /* cancelled while it was under way */
    if (m->req)
        at = &e->walls;
    if (*at) {
        lose(l, "the walls of one process are told twice");
        return false;
    }
    *at = m;
    return true;
}

void sup_link_each_process(const struct sup_link *l,
                           void (*each)(void *user, const char *errand,
                                        const struct sup_walls_told *walls),
                           void *user)
{
    struct sup_walls_told t = {0};

    if (!l || l->fd < 0)
        return;
    if (l->walls)
        t = told_of(l->walls->walls);
    each(user, NULL, &t);
    for (const struct errand *e = l->errands; e; e = e->next)
        if (e->walls) {
            t = told_of(e->walls->walls);
            each(user, kind_of(e), &t);
        }
}

static bool one(struct sup_link *l)
{
    int fds[IPC_FDS_MAX];
    struct rc_err err = RC_ERR_INIT;
    ProtobufCMessage *raw = NULL;
    size_t n_fds = 0;
    enum rc rc = ipc_recv(l->fd, &ipc__fetch__descriptor, &raw, fds, &n_fds, &err);
    Ipc__Fetch *m = (Ipc__Fetch *)raw;

    if (rc == RC_AGAIN)
        return false;
    if (rc != RC_OK)
        lose(l, rc == RC_CLOSED ? "its channel ended" : err.msg);
    else if (m->req > l->last_id || (!m->req && m->body_case != IPC__FETCH__BODY_WALLS))
        lose(l, "an answer to nothing that was asked");
    else if (m->body_case == IPC__FETCH__BODY_WALLS)
        raw = on_walls(l, m) ? NULL : raw;
    else if (m->body_case == IPC__FETCH__BODY_DONE)
        on_done(l, m->req, m->done, n_fds ? fds[0] : -1);
    else if (m->body_case == IPC__FETCH__BODY_PROGRESS)
        on_progress(l, m->req, m->progress);
    else
        lose(l, "a word the fetcher may not say");
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    if (raw)
        protobuf_c_message_free_unpacked(raw, NULL);
    return !l->lost && !l->stopped;
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct sup_link *l = p->data;

    for (int i = 0; i < 64 && one(l); i++)
        ;
}

/* --------------------------------------------------------------------- asks */

static enum rc ask(struct sup_link *l, Ipc__Fetch *m, uint64_t max_bytes,
                   const struct sup_link_cb *cb, uint64_t *id, struct rc_err *err)
{
    struct errand *e;
    enum rc rc;

    if (!l || l->fd < 0 || l->lost || l->stopped)
        return rc_fail(err, RC_UNSUPPORTED, "there is no fetcher");
    if (l->n >= SUP_LINK_ERRANDS)
        return rc_fail(err, RC_BUSY, "%d files are being fetched", SUP_LINK_ERRANDS);
    if (!(e = calloc(1, sizeof(*e))))
        return rc_fail(err, RC_NOMEM, "out of memory");
    m->req = ++l->last_id;
    if ((rc = ipc_send(l->fd, &m->base, NULL, 0, err)) != RC_OK) {
        free(e);
        return rc == RC_AGAIN ? rc_fail(err, RC_BUSY, "the fetcher has too much to do") : rc;
    }
    *e = (struct errand){.next = l->errands, .id = m->req, .max_bytes = max_bytes, .cb = *cb};
    l->errands = e;
    l->n++;
    active(l);
    *id = e->id;
    return RC_OK;
}

enum rc sup_link_media(struct sup_link *l, const char *url, uint64_t max_bytes, uint32_t timeout_ms,
                       const struct sup_link_cb *cb, uint64_t *id, struct rc_err *err)
{
    Ipc__FetchMedia f = IPC__FETCH_MEDIA__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    f.url = (char *)(uintptr_t)url;
    f.max_bytes = max_bytes;
    f.timeout_ms = timeout_ms;
    m.body_case = IPC__FETCH__BODY_MEDIA;
    m.media = &f;
    return ask(l, &m, max_bytes, cb, id, err);
}

enum rc sup_link_pull(struct sup_link *l, const char *reference, bool again,
                      const struct sup_link_cb *cb, uint64_t *id, struct rc_err *err)
{
    Ipc__FetchPull f = IPC__FETCH_PULL__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    f.reference = (char *)(uintptr_t)reference;
    f.again = again;
    m.body_case = IPC__FETCH__BODY_PULL;
    m.pull = &f;
    return ask(l, &m, 0, cb, id, err);
}

void sup_link_cancel(struct sup_link *l, uint64_t id)
{
    Ipc__FetchCancel c = IPC__FETCH_CANCEL__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;
    struct errand *e = l ? take(l, id) : NULL;

    if (!e)
        return;
    if (l->metrics)
        sup_series_add(sup_series(l->metrics, SUP_M_FETCHES, kind_of(e), rc_name(RC_CANCELLED)), 1);
    errand_free(e);
    m.req = id;
    m.body_case = IPC__FETCH__BODY_CANCEL;
    m.cancel = &c;
    /* when the channel is full the errand goes on to its own limits, and its answer is dropped */
    (void)ipc_send(l->fd, &m.base, NULL, 0, NULL);
}

/* --------------------------------------------------------------------- life */

enum rc sup_link_new(struct sup_link **out, uv_loop_t *loop, int fd, struct sup_metrics *metrics,
                     void (*on_lost)(void *user), void *user, struct rc_err *err)
{
    struct sup_link *l = calloc(1, sizeof(*l));

    if (!l)
        return rc_fail(err, RC_NOMEM, "out of memory");
    l->fd = fd;
    l->metrics = metrics;
    l->on_lost = on_lost;
    l->user = user;
    if (fd >= 0) {
        if (uv_poll_init(loop, &l->poll, fd) != 0) {
            free(l);
            return rc_fail(err, RC_IO, "the fetcher's channel cannot be watched");
        }
        l->poll.data = l;
        uv_poll_start(&l->poll, UV_READABLE, on_readable);
    }
    *out = l;
    return RC_OK;
}

void sup_link_stop(struct sup_link *l)
{
    if (!l || l->stopped)
        return;
    l->stopped = true;
    if (l->fd >= 0)
        uv_close((uv_handle_t *)&l->poll, NULL);
}

void sup_link_free(struct sup_link **lp)
{
    struct sup_link *l = *lp;

    *lp = NULL;
    if (!l)
        return;
    while (l->errands)
        errand_free(take(l, l->errands->id));
    walls_free(&l->walls);
    if (l->fd >= 0)
        close(l->fd);
    free(l);
}
