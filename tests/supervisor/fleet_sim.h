/* fleet_sim.h - a launcher and workers that live inside the test, and a book of what they
 * saw. Included by test_sup_fleet_random.c, not a test.
 *
 * The real fleet talks over real socketpairs to code below that answers when it is told to;
 * the clock is the test's (uv_now, uv_hrtime and uv_timer_start are replaced at link time).
 * The book knows nothing of the fleet's structures: it is written down from the frames that
 * arrive, and says what must hold. */
#ifndef FLEET_SIM_H
#define FLEET_SIM_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "ipc.h"
#include "sup_fleet.h"

#define SIM_MODELS 6
#define SIM_PROCS 64
#define SIM_REQS 64
#define SIM_TASKS 64
#define SIM_IDX (1u << 16) /* of task numbers: the lower 24 bits */
#define SIM_LOAD_MS 60000u
#define SIM_KV (1ull << 20)
#define SIM_WORK (16ull << 20)
#define SIM_BESIDE (64ull << 20)         /* of the host, before a load on a device is measured, */
#define SIM_BESIDE_MEASURED (1ull << 20) /* and after */

/* -------------------------------------------------------------------- failing */

struct sim_shared { /* with the parent, which shrinks what failed */
    uint32_t step;
    uint64_t n_ended, n_spawned, n_evicted; /* of all episodes */
    char why[256];
};
static struct sim_shared *sim_shared;

#define HOLDS(x)                                                                                \
    do {                                                                                        \
        if (!(x)) {                                                                             \
            snprintf(sim_shared->why, sizeof(sim_shared->why), "%s:%d: %s", __FILE__, __LINE__, \
                     #x);                                                                       \
            _exit(99);                                                                          \
        }                                                                                       \
    } while (0)

/* ---------------------------------------------------------------------- clock */

static uint64_t sim_ms = 1000000;
static uv_timer_t *sim_tick;
static uv_timer_cb sim_tick_cb;

uint64_t __wrap_uv_now(const uv_loop_t *loop);
uint64_t __wrap_uv_hrtime(void);
int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat);

uint64_t __wrap_uv_now(const uv_loop_t *loop)
{
    return sim_ms;
}
uint64_t __wrap_uv_hrtime(void)
{
    return sim_ms * 1000000;
}
int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat)
{
    sim_tick = t; /* the fleet has one */
    sim_tick_cb = cb;
    return 0;
}

/* ------------------------------------------------------------------------ book */

struct sim_model {
    char id[16];
    bool exists;             /* on disk */
    uint64_t bytes, weights; /* of the files; what a load will measure */
    uint8_t version;         /* of the files */
    bool listed;             /* the fleet was told of it last time */
    uint64_t listed_bytes;
    uint8_t listed_version;
    bool known, measured; /* the fleet has facts, of a look or of a load */
    uint8_t known_version;
    uint64_t known_weights;
    uint64_t evicted, idled; /* counters seen */
};

struct sim_task {
    uint64_t id, serial;
    int req;
    bool generate;
};

struct sim_proc {
    bool used, spawned, ready, load_seen, loaded, drain_seen, killed, dead;
    bool beats, probe;
    int model;
    uint64_t ctl_req, born_ms;
    uint32_t pid;
    int fd, err_fd;
    uint8_t version;
    uint64_t claim;  /* bytes the ledger must hold for it, where the models are; */
    uint64_t beside; /* and of the host, when that is a device */
    struct sim_task task[SIM_TASKS];
    int n_tasks;
};

enum sim_req_state { SIM_FREE, SIM_OPEN, SIM_ENDED };
struct sim_req {
    enum sim_req_state state;
    struct sup_ticket *ticket;
    int model, runs;
    uint64_t serial, id; /* id: its task's number, once a worker has seen it */
    bool paused;
    bool deadly; /* kills whoever works on it */
};

static struct sim_model sim_model[SIM_MODELS];
static struct sim_proc sim_proc[SIM_PROCS];
static struct sim_req sim_req[SIM_REQS];
static uint32_t sim_gen[SIM_IDX]; /* last generation of each index */
static bool sim_device;           /* models lie on a device */
static uint64_t sim_limit, sim_limit_beside, sim_ctl_req, sim_n_ended, sim_n_spawned, sim_n_evicted;
static uint32_t sim_pid;
static int sim_ctl = -1;
static bool sim_list_wanted;

static inline uint64_t sim_sum(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < SIM_PROCS; i++)
        if (sim_proc[i].used)
            sum += sim_proc[i].claim;
    return sum;
}

static inline uint64_t sim_sum_beside(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < SIM_PROCS; i++)
        if (sim_proc[i].used)
            sum += sim_proc[i].beside;
    return sum;
}

/* Requests that wait for the fleet; a paused one may only wait for its reader. */
static inline int sim_open_of(int model)
{
    int n = 0;

    for (int i = 0; i < SIM_REQS; i++)
        n += sim_req[i].state == SIM_OPEN && !sim_req[i].paused && sim_req[i].model == model;
    return n;
}

/* ------------------------------------------------------------------- launcher */

static inline void sim_ctl_send(const Ipc__Ctl *c, const int *fds, size_t n)
{
    HOLDS(ipc_send(sim_ctl, &c->base, fds, n, NULL) == RC_OK);
}

static inline void sim_list(void)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlModels l = IPC__CTL_MODELS__INIT;
    Ipc__CtlModel m[SIM_MODELS], *ptr[SIM_MODELS];
    uint8_t identity[SIM_MODELS][32] = {{0}};

    for (int i = 0; i < SIM_MODELS; i++) {
        struct sim_model *b = &sim_model[i];

        b->listed = b->exists;
        if (!b->exists)
            continue;
        b->listed_bytes = b->bytes;
        b->listed_version = b->version;
        identity[i][0] = b->version;
        ipc__ctl_model__init(&m[i]);
        m[i].id = b->id;
        m[i].bytes = b->bytes;
        m[i].identity.data = identity[i];
        m[i].identity.len = 32;
        ptr[l.n_models++] = &m[i];
    }
    l.models = ptr;
    c.body_case = IPC__CTL__BODY_MODELS;
    c.models = &l;
    sim_ctl_send(&c, NULL, 0);
}

static inline bool sim_is_measured(const struct sim_model *b)
{
    return b->known && b->known_version == b->listed_version && b->measured;
}

/* What the fleet should reserve for a load, from what it was told so far. */
static inline uint64_t sim_estimate(const struct sim_model *b)
{
    if (b->known && b->known_version == b->listed_version)
        return b->known_weights + (b->measured ? 2000 : SIM_KV + SIM_WORK);
    return b->listed_bytes + SIM_KV + SIM_WORK;
}

static inline void sim_on_spawn(const Ipc__CtlSpawn *s)
{
    int i = 0, m = 0;
    struct sim_proc *p;

    while (i < SIM_PROCS && sim_proc[i].used)
        i++;
    HOLDS(i < SIM_PROCS);
    while (m < SIM_MODELS && strcmp(sim_model[m].id, s->id) != 0)
        m++;
    HOLDS(m < SIM_MODELS);
    HOLDS(s->req > sim_ctl_req); /* numbers of births are never used again */
    sim_ctl_req = s->req;
    p = &sim_proc[i];
    *p = (struct sim_proc){
        .used = true, .probe = s->probe, .model = m, .ctl_req = s->req, .born_ms = sim_ms};
    p->fd = p->err_fd = -1;
    p->claim = s->probe ? 0 : sim_estimate(&sim_model[m]);
    if (sim_device && !s->probe)
        p->beside = sim_is_measured(&sim_model[m]) ? SIM_BESIDE_MEASURED : SIM_BESIDE;
    sim_n_spawned += !s->probe;
    /* one worker at a time for each model, but for one that was given up */
    for (int k = 0; k < SIM_PROCS; k++)
        HOLDS(k == i || s->probe || !sim_proc[k].used || sim_proc[k].probe ||
              sim_proc[k].model != m || sim_proc[k].killed ||
              (!sim_proc[k].spawned && sim_ms - sim_proc[k].born_ms >= SIM_LOAD_MS));
}

static inline void sim_on_kill(uint32_t pid)
{
    for (int i = 0; i < SIM_PROCS; i++)
        if (sim_proc[i].used && sim_proc[i].spawned && sim_proc[i].pid == pid)
            sim_proc[i].killed = true;
}

/* Reads what the fleet asks of the launcher; true when there was something. */
static inline bool sim_ctl_one(void)
{
    ProtobufCMessage *msg = NULL;
    const Ipc__Ctl *c;

    if (ipc_recv(sim_ctl, &ipc__ctl__descriptor, &msg, NULL, NULL, NULL) != RC_OK)
        return false;
    c = (const Ipc__Ctl *)msg;
    if (c->body_case == IPC__CTL__BODY_SCAN)
        sim_list_wanted = true; /* once what was decided by the list before is known */
    else if (c->body_case == IPC__CTL__BODY_SPAWN)
        sim_on_spawn(c->spawn);
    else if (c->body_case == IPC__CTL__BODY_KILL)
        sim_on_kill(c->kill->pid);
    protobuf_c_message_free_unpacked(msg, NULL);
    return true;
}

static inline bool sim_ctl_pump(void)
{
    bool any = false;

    while (sim_ctl_one())
        any = true;
    if (sim_list_wanted) {
        sim_list_wanted = false;
        sim_list();
        any = true;
    }
    return any;
}

/* The birth that was asked for, or its failure. */
static inline void sim_spawn(struct sim_proc *p, bool fails, bool beats)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlSpawned s = IPC__CTL_SPAWNED__INIT;
    Ipc__CtlSpawnFailed f = IPC__CTL_SPAWN_FAILED__INIT;
    uint8_t identity[32] = {sim_model[p->model].version};
    int pair[2], err[2], fds[2];

    if (fails || !sim_model[p->model].exists) {
        f.req = p->ctl_req;
        f.code = fails ? RC_IO : RC_NOT_FOUND;
        c.body_case = IPC__CTL__BODY_SPAWN_FAILED;
        c.spawn_failed = &f;
        sim_ctl_send(&c, NULL, 0);
        p->used = false;
        return;
    }
    HOLDS(ipc_pair(pair, NULL) == RC_OK && pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0);
    HOLDS(fcntl(pair[1], F_SETFL, O_NONBLOCK) == 0);
    p->spawned = true;
    p->beats = beats;
    p->pid = ++sim_pid;
    p->fd = pair[1];
    p->err_fd = err[1];
    p->version = sim_model[p->model].version;
    s.req = p->ctl_req;
    s.pid = p->pid;
    s.identity.data = identity;
    s.identity.len = 32;
    c.body_case = IPC__CTL__BODY_SPAWNED;
    c.spawned = &s;
    fds[0] = pair[0];
    fds[1] = err[0];
    sim_ctl_send(&c, fds, 2);
    close(pair[0]);
    close(err[0]);
}

/* The process is gone; the launcher says so later (sim_exit). */
static inline void sim_die(struct sim_proc *p)
{
    if (p->dead)
        return;
    p->dead = true;
    close(p->fd);
    close(p->err_fd);
}

static inline void sim_exit(struct sim_proc *p, int status)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlExited e = IPC__CTL_EXITED__INIT;

    sim_die(p);
    e.pid = p->pid;
    e.status = p->killed ? SIGKILL : status;
    c.body_case = IPC__CTL__BODY_EXITED;
    c.exited = &e;
    sim_ctl_send(&c, NULL, 0);
    p->used = false;
}

/* -------------------------------------------------------------------- workers */

static inline void sim_task_del(struct sim_proc *p, int i)
{
    p->task[i] = p->task[--p->n_tasks];
}

static inline void sim_on_task(struct sim_proc *p, const Ipc__Frame *f)
{
    bool generate = f->body_case == IPC__FRAME__BODY_GENERATE;
    const ProtobufCBinaryData *b = generate ? &f->generate->prompt : &f->echo->data;
    uint32_t idx = (uint32_t)(f->task & 0xFFFFFF), gen = (uint32_t)(f->task >> 24);
    uint64_t serial = 0;
    int r = 0;

    HOLDS(p->loaded && !p->drain_seen && b->len == sizeof(serial) && p->n_tasks < SIM_TASKS);
    memcpy(&serial, b->data, sizeof(serial));
    while (r < SIM_REQS && !(sim_req[r].state == SIM_OPEN && sim_req[r].serial == serial))
        r++;
    HOLDS(r < SIM_REQS); /* what was cancelled or has ended is not sent any more */
    HOLDS(sim_req[r].model == p->model && idx < SIM_IDX);
    if (sim_req[r].id == 0) {
        HOLDS(gen > sim_gen[idx]); /* a number is never used again */
        sim_gen[idx] = gen;
        sim_req[r].id = f->task;
    }
    HOLDS(sim_req[r].id == f->task);
    HOLDS(++sim_req[r].runs <= 3);
    for (int i = 0; i < SIM_PROCS; i++) /* it runs in one place at a time */
        for (int t = 0; sim_proc[i].used && !sim_proc[i].dead && t < sim_proc[i].n_tasks; t++)
            HOLDS(sim_proc[i].killed || sim_proc[i].task[t].id != f->task);
    p->task[p->n_tasks++] = (struct sim_task){f->task, serial, r, generate};
}

static inline void sim_on_frame(struct sim_proc *p, const Ipc__Frame *f)
{
    switch (f->body_case) {
    case IPC__FRAME__BODY_HELLO:
    case IPC__FRAME__BODY_CACHE_BUDGET:
        break;
    case IPC__FRAME__BODY_LOAD:
        HOLDS(!p->load_seen && f->load->probe_only == p->probe);
        p->load_seen = true;
        break;
    case IPC__FRAME__BODY_CANCEL:
        for (int i = 0; i < p->n_tasks; i++)
            if (p->task[i].id == f->task) {
                sim_task_del(p, i);
                break;
            }
        break;
    case IPC__FRAME__BODY_DRAIN:
        HOLDS(p->loaded && p->n_tasks == 0); /* nobody's work is thrown away */
        p->drain_seen = true;
        break;
    default:
        HOLDS(f->body_case == IPC__FRAME__BODY_ECHO || f->body_case == IPC__FRAME__BODY_GENERATE);
        sim_on_task(p, f);
    }
}

static inline bool sim_proc_pump(struct sim_proc *p)
{
    ProtobufCMessage *m = NULL;

    if (!p->used || !p->spawned || p->dead ||
        ipc_recv(p->fd, &ipc__frame__descriptor, &m, NULL, NULL, NULL) != RC_OK)
        return false;
    sim_on_frame(p, (const Ipc__Frame *)m);
    protobuf_c_message_free_unpacked(m, NULL);
    return true;
}

static inline void sim_send(struct sim_proc *p, uint64_t task, Ipc__Frame *f,
                            Ipc__Frame__BodyCase body)
{
    enum rc rc;

    f->task = task;
    f->body_case = body;
    rc = ipc_send(p->fd, &f->base, NULL, 0, NULL);
    HOLDS(rc == RC_OK || rc == RC_CLOSED || rc == RC_AGAIN);
}

static inline void sim_say_ready(struct sim_proc *p)
{
    Ipc__Ready r = IPC__READY__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;

    r.version = IPC_VERSION;
    r.pid = p->pid;
    r.beat_ms = p->beats ? 1000 : 0;
    f.ready = &r;
    p->ready = true;
    sim_send(p, 0, &f, IPC__FRAME__BODY_READY);
}

/* The book is changed as the fleet must: what was measured replaces the estimate, if there
 * is room for it. */
static inline void sim_say_loaded(struct sim_proc *p)
{
    struct sim_model *b = &sim_model[p->model];
    Ipc__Loaded l = IPC__LOADED__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;
    uint64_t measured = b->weights + 2000;

    l.family = l.arch = l.backend = l.kernels = l.quant = (char *)"sim";
    l.can_generate = true;
    l.ctx_tokens = l.vocab_size = 100;
    l.weight_bytes = b->weights;
    if (!p->probe)
        l.kv_bytes = l.workspace_bytes = 1000;
    l.probe_only = p->probe;
    f.loaded = &l;
    p->loaded = true;
    if (sim_device && !p->probe) {
        l.device_bytes = measured;
        l.host_bytes = SIM_BESIDE_MEASURED; /* less than was reserved: it always fits */
    }
    if (!p->killed && (p->probe || sim_sum() - p->claim + measured <= sim_limit)) {
        b->known = true;
        b->measured = !p->probe;
        b->known_version = p->version;
        b->known_weights = b->weights;
        if (!p->probe)
            p->claim = measured;
        if (!p->probe && sim_device)
            p->beside = SIM_BESIDE_MEASURED;
    }
    sim_send(p, 0, &f, IPC__FRAME__BODY_LOADED);
}

static inline void sim_say_error(struct sim_proc *p, uint64_t task, enum rc code)
{
    Ipc__Error e = IPC__ERROR__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;

    e.code = (uint32_t)code;
    e.item = -1;
    f.error = &e;
    sim_send(p, task, &f, IPC__FRAME__BODY_ERROR);
}

static inline void sim_say_beat(struct sim_proc *p, bool moved)
{
    static uint64_t count;
    Ipc__Beat b = IPC__BEAT__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;

    b.moved = moved ? ++count : 1;
    f.beat = &b;
    sim_send(p, 0, &f, IPC__FRAME__BODY_BEAT);
}

/* Answers task i: a piece of it, or all that is left. */
static inline void sim_answer(struct sim_proc *p, int i, bool piece)
{
    struct sim_task t = p->task[i];
    uint32_t token = 7;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;
    Ipc__Done done = IPC__DONE__INIT;

    if (!t.generate) {
        e.data.data = (uint8_t *)&t.serial;
        e.data.len = sizeof(t.serial);
        f.echoed = &e;
        sim_send(p, t.id, &f, IPC__FRAME__BODY_ECHOED);
    } else {
        d.text.data = (uint8_t *)"ab ";
        d.text.len = 3;
        d.tokens = &token;
        d.n_tokens = 1;
        d.finish = piece ? 0 : 1;
        f.delta = &d;
        sim_send(p, t.id, &f, IPC__FRAME__BODY_DELTA);
        if (piece)
            return;
        done.prompt_tokens = 3;
        done.completion_tokens = 2;
        f.done = &done;
        sim_send(p, t.id, &f, IPC__FRAME__BODY_DONE);
    }
    sim_task_del(p, i);
}

#endif
