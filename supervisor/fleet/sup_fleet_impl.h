/* sup_fleet_impl.h - what the fleet's files share. Private to supervisor/fleet/.
 *
 *   sup_fleet.c        the public door: models, views, load, unload, rescan, drain
 *   sup_fleet_slot.c   life of one model's slot: demand, start, ready, fail, cool
 *   sup_fleet_room.c   memory and places: estimates, eviction, the ledger's checks
 *   sup_fleet_worker.c one worker process: channel, frames in and out, stderr
 *   sup_fleet_task.c   tickets: submit, send, deliver, end, cancel, pause
 *   sup_fleet_queue.c  who waits, who is sent next, who must make room
 *   sup_fleet_ctl.c    the launcher's channel
 *   sup_fleet_policy.c, sup_fleet_check.c   pure decisions, pure checks
 *
 * Callbacks of users run in three places only: an answer's arrival, the deferred
 * turn (fleet_kick), and rescan's end - never inside a call that a user made.
 */
#ifndef INFERD_SUP_FLEET_IMPL_H
#define INFERD_SUP_FLEET_IMPL_H

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "ipc.h"
#include "sup_conf.h"
#include "sup_fair.h"
#include "sup_fleet.h"
#include "sup_fleet_check.h"
#include "sup_fleet_policy.h"
#include "sup_ledger.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_scan.h"

#define FLEET_SLOTS_MAX (SUP_SCAN_MODELS * 2)
#define FLEET_TASKS_MAX (1u << 20)
#define FLEET_TICK_FAST_MS 100
#define FLEET_TICK_SLOW_MS 1000
#define FLEET_SCAN_GAP_MS 1000    /* least time between two scans */
#define FLEET_SCAN_EVERY_MS 10000 /* unasked */
#define FLEET_ROOM_WAIT_MS 10000  /* waiting for memory that busy workers hold */
#define FLEET_EXIT_WAIT_MS 5000   /* a drained worker gets to exit */
#define FLEET_CLOSED_WAIT_MS 1000 /* a worker that closed its channel */
#define FLEET_PROBE_MAX_MS 60000
#define FLEET_LOOK_MS 5000  /* probes hold back readiness this long at most */
#define FLEET_GONE_MS 60000 /* a vanished model is "not readable", then unknown */

/* ------------------------------------------------- lists, links inside nodes */

struct lnk {
    struct lnk *prev, *next;
};

static inline void lnk_init(struct lnk *l)
{
    l->prev = l->next = l;
}
static inline bool lnk_empty(const struct lnk *l)
{
    return l->next == l;
}
static inline void lnk_push(struct lnk *head, struct lnk *n) /* at the end */
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
static inline void lnk_del(struct lnk *n) /* leaves n alone and empty */
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    lnk_init(n);
}
#define LNK_OF(ptr, type, field) ((type *)((char *)(ptr)-offsetof(type, field)))

/* Our own mistakes: fatal where someone looks, logged where someone is served. */
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLEET_DEFECT_ABORTS 1
#else
#define FLEET_DEFECT_ABORTS 0
#endif
#define FLEET_MUST(x)                                                                       \
    do {                                                                                    \
        if (!(x)) {                                                                         \
            SUP_LOG(SUP_ERROR, "fleet_defect", SUP_S("broken", #x), SUP_S("in", __func__)); \
            if (FLEET_DEFECT_ABORTS)                                                        \
                abort();                                                                    \
        }                                                                                   \
    } while (0)

/* ------------------------------------------------------------------ objects */

struct held { /* an answer kept for a paused reader */
    struct held *next;
    Ipc__Frame *frame;
    bool last;
};

enum ticket_state { TICKET_WAITING, TICKET_SENT, TICKET_ENDED };

/* What a task waits for in a worker. */
enum fleet_lane { LANE_SEQ, LANE_PASS, LANE_TEXT, FLEET_LANES };

struct sup_ticket {
    struct lnk lnk;  /* slot's waiting or suspects, worker's sent */
    struct lnk turn; /* fleet's turns: something is to be delivered */
    struct sup_fleet *f;
    struct slot *slot;
    struct worker *w; /* while SENT */
    enum ticket_state state;
    uint64_t id;     /* generation << 24 | index into the fleet's table */
    uint8_t *packed; /* until it is delivered; NULL after */
    size_t n_packed;
    void (*on_frame)(void *user, const Ipc__Frame *f);
    void (*on_end)(void *user, const struct rc_err *err, uint32_t retry_after_ms);
    void *user;
    uint64_t deadline_us, born_us;
    struct sup_asked asked;
    unsigned deaths;
    bool answered;  /* a frame of its answer has come */
    bool delivered; /* and its reader may have it: now, or when it reads again */
    bool paused, in_callback, cancelled, was_sent;
    bool counted;              /* in slot->n_tasks */
    struct sup_fair_item fair; /* while counted: in slot->lane[lane] */
    enum fleet_lane lane;
    uint64_t units, units_sent; /* of the lane's window: asked, and as they were counted */
    struct held *held, **held_tail;
    struct rc_err *end_err; /* while ENDED: NULL is success */
    uint32_t retry_after_ms;
    char req_id[SUP_TASK_ID_BYTES];
};

struct out { /* a control frame that did not fit the socket */
    struct out *next;
    size_t n;
    uint8_t bytes[];
};

/* Last told counts of kernels (sup_fleet_kernels.c). */
#define FLEET_ROUTES 6
#define FLEET_FORMATS 11
#define FLEET_COUNTERS 20
struct worker_kernels {
    uint64_t route[FLEET_ROUTES], format[FLEET_FORMATS], counter[FLEET_COUNTERS];
};

#define FLEET_CACHE_COUNTERS 11 /* sup_fleet_cache.c */

struct worker {
    struct lnk all;
    struct sup_fleet *f;
    struct slot *slot; /* NULL: a probe, or nobody's any more */
    struct slot *probing;
    enum sup_worker_state state;
    uint64_t req;
    uint32_t pid;
    int fd, err_fd;
    uv_poll_t poll, err_poll;
    int n_handles;
    int poll_events;
    bool closed, exited, killed, drain_sent;
    int status;
    const char *cause; /* why it dies, when we decided: "hang" "protocol" "asked" ... */
    struct rc_err err; /* what it said about itself, code OK = nothing */
    struct lnk sent;
    size_t n_sent;
    struct sup_window out_window[FLEET_LANES]; /* of those sent */
    uint64_t n_answered;                       /* tasks that it ended itself, well or badly */
    struct sup_ticket *trial;
    struct out *out, **out_tail;
    size_t n_out;
    uint64_t born_ms, ready_ms, heard_ms, load_ms, drain_ms, closed_ms;
    uint64_t moved_ms, moved; /* when its work was last seen to go on, and what it counted */
    bool beats;               /* it said it sends Beat */
    struct sup_claim claim;
    uint8_t identity[SUP_IDENTITY_BYTES];
    Ipc__Loaded *loaded;
    struct sup_layer_view *layers; /* [n_layers], names and details in the same block */
    size_t n_layers;
    Ipc__Stats last_stats;
    Ipc__GrammarStats last_grammar;
    struct worker_kernels last_kernels;
    uint64_t last_cache[FLEET_CACHE_COUNTERS];
    uint64_t cache_bytes;  /* budget of its prompt cache */
    uint64_t cache_demand; /* prompt tokens of answers lately, of requests that may use it */
    char line[1024];
    size_t n_line;
    double line_tokens;
    uint64_t line_ms, lines_lost;
};

struct done_cb { /* a promised call of load, unload or rescan */
    struct lnk lnk;
    void (*with_err)(void *user, const struct rc_err *err);
    void (*plain)(void *user);
    void *user;
    struct rc_err err; /* code OK = NULL is passed */
};

struct slot {
    char *id;
    const char *label; /* in metrics: the id once it was seen on disk, or "unknown" */
    bool is_dir, listed;
    uint64_t bytes, gone_ms;
    uint8_t identity[SUP_IDENTITY_BYTES];
    enum sup_slot_state state;
    struct worker *w;
    struct lnk waiting, suspects; /* waiting: in order of arrival; who is next the lanes say */
    size_t n_suspects, n_waiting;
    struct sup_fair lane[FLEET_LANES];
    uint32_t n_tasks;              /* tickets that have not ended */
    struct sup_pace pace;          /* of their ends */
    uint32_t refs;                 /* tickets that live */
    struct lnk demand;             /* in the fleet's queue while it wants a worker */
    uint64_t blocked_ms;           /* since when it waits for room, 0 = it does not */
    struct lnk loaders, unloaders; /* done_cb */
    bool pinned;                   /* option pin: neither evicted nor unloaded when idle */
    uint64_t keep_ms;              /* keep_alive of its last request; UINT64_MAX = none named */
    bool check_files;              /* a failed load waits for a fresh look */
    /* death and failure */
    unsigned streak, failures;
    uint64_t until_ms; /* of COOLING, of FAILED when not permanent */
    bool permanent;
    uint8_t fail_identity[SUP_IDENTITY_BYTES];
    struct rc_err last_err; /* code OK = none */
    /* facts */
    Ipc__Loaded *info;
    uint8_t info_identity[SUP_IDENTITY_BYTES];
    bool probed; /* info or failure known for probe_identity */
    uint8_t probe_identity[SUP_IDENTITY_BYTES];
    struct rc_err probe_err;
    uint64_t loads, deaths, used_ms, load_done, load_total;
    double loaded_unix_s;
    struct sup_series *m_active, *m_ok, *m_waiters, *m_ttft, *m_prompt, *m_completion, *m_embed;
};

struct sup_fleet {
    uv_loop_t *loop;
    const struct sup_conf *conf;
    struct sup_metrics *metrics;
    void (*on_stop)(void *user);
    void (*on_conf)(void *user, const char *json, size_t n, const char *refused);
    void *user;
    int n_handles; /* ours, to be closed before free */
    /* launcher */
    int ctl_fd;
    uv_poll_t ctl_poll;
    bool ctl_dead;
    struct out *ctl_out, **ctl_out_tail;
    int ctl_events;
    uint64_t next_req;
    /* models */
    struct slot **slot; /* sorted by id */
    size_t n_slots, cap_slots;
    struct lnk demand;
    bool scanned, scanning;
    bool stale;                      /* the list is known to be older than the disk */
    uint64_t scan_ms, first_scan_ms; /* when the last and the first list came */
    bool looked;                     /* every model of some list was probed */
    bool scan_wanted;
    struct lnk scanners; /* done_cb for the next list */
    size_t preloads;     /* not ended yet */
    /* workers */
    struct lnk workers;
    struct worker *probe;
    struct sup_ledger ledger;
    uint64_t cache_ms; /* when the prompt caches' budget was dealt last */
    size_t by_state[SUP_SLOT_N];
    struct sup_series *m_state[SUP_SLOT_N];
    /* tasks */
    struct sup_ticket **table; /* by index */
    uint32_t *free_idx;
    uint32_t *gen;
    uint32_t n_table, n_free;
    uint32_t n_tasks;
    struct lnk turns, done;
    /* turns */
    uv_idle_t kick;
    uv_timer_t tick;
    uint64_t tick_ms; /* the last tick */
    bool kicked, tick_fast, pump_wanted;
    bool refusing, draining, freed;
    void (*drain_done)(void *);
    void *drain_user;
};

static inline uint64_t fleet_now_ms(const struct sup_fleet *f)
{
    return uv_now(f->loop);
}

/* ------------------------------------------------------------- sup_fleet.c */
void fleet_kick(struct sup_fleet *f);       /* deferred calls come next turn */
void fleet_pump_later(struct sup_fleet *f); /* and slots that want a worker are looked at */
void fleet_tick_fast(struct sup_fleet *f);
struct slot *fleet_slot(const struct sup_fleet *f, const char *id);
void fleet_models(struct sup_fleet *f, const Ipc__CtlModels *m);
void fleet_scan(struct sup_fleet *f); /* now or when the gap allows */
void fleet_promise(struct sup_fleet *f, struct lnk *list, const struct rc_err *err);
void fleet_probe_next(struct sup_fleet *f);
void fleet_drain_step(struct sup_fleet *f);
void fleet_pump(struct sup_fleet *f);

/* -------------------------------------------------------- sup_fleet_slot.c */
struct slot *slot_new(struct sup_fleet *f, const char *id);
void slot_free(struct slot *s);
void slot_metrics(struct sup_fleet *f, struct slot *s, const char *label);
void slot_want(struct sup_fleet *f, struct slot *s);
void slot_unwant(struct slot *s);
void slot_set(struct sup_fleet *f, struct slot *s, enum sup_slot_state to, const char *reason);
bool slot_start(struct sup_fleet *f, struct slot *s); /* false: must wait for room */
void slot_drain(struct sup_fleet *f, struct slot *s, const char *reason);
void slot_fail(struct sup_fleet *f, struct slot *s, const struct rc_err *err, const char *result);
void slot_on_ready(struct worker *w);
void slot_on_loaded(struct worker *w, const Ipc__Loaded *l);
void slot_on_death(struct sup_fleet *f, struct slot *s, struct worker *w);
void slot_busy(struct sup_fleet *f, struct slot *s); /* READY <-> BUSY by n_sent */
void slot_end_waiting(struct sup_fleet *f, struct slot *s, const struct rc_err *err,
                      uint32_t retry_after_ms);
void slot_tick(struct sup_fleet *f, struct slot *s);
void slot_info_set(struct slot *s, const Ipc__Loaded *l, const uint8_t *identity);
void slot_files_changed(struct sup_fleet *f, struct slot *s);

/* -------------------------------------------------------- sup_fleet_room.c */
enum room { ROOM_NOW, ROOM_SOON, ROOM_NONE, ROOM_PINNED }; /* PINNED: never, beside the pinned */
enum room fleet_make_room(struct sup_fleet *f, const struct sup_claim *need);
struct sup_claim fleet_estimate(const struct sup_fleet *f, const struct slot *s);
struct sup_claim fleet_measured(const struct sup_fleet *f, const Ipc__Loaded *l);
bool fleet_on_device(const struct sup_fleet *f);
uint64_t fleet_limit(const struct sup_fleet *f); /* of the tier that holds the models */
void fleet_device_told(struct sup_fleet *f, uint64_t total_bytes);
void fleet_ledger_show(struct sup_fleet *f); /* after every change: checks, and tells metrics */

/* ------------------------------------------------------ sup_fleet_worker.c */
struct worker *worker_new(struct sup_fleet *f, struct slot *s, bool probe);
void worker_spawned(struct worker *w, uint32_t pid, const uint8_t *identity, int fd, int err_fd);
void worker_kill(struct worker *w, const char *cause);
void worker_exited(struct worker *w, int status);
void worker_drain(struct worker *w); /* Drain is sent when its tasks are done */
void worker_drain_step(struct worker *w);
enum rc worker_send_task(struct worker *w, const struct sup_ticket *t);
void worker_send_cancel(struct worker *w, uint64_t task);
void worker_want_write(struct worker *w);
void worker_breach(struct worker *w, const struct rc_err *err);
bool worker_writable(const struct worker *w);
void worker_watch(struct worker *w); /* the watchdog's clocks start now */
/* Why it must be taken for dead though nothing says so, or NULL. */
const char *worker_stands(const struct worker *w, uint64_t now);
void worker_send_cache_budget(struct worker *w, uint64_t bytes);
void worker_use_none(struct worker *w); /* its gauges go to 0: it is gone */
/* Adds to metrics what a worker told of its kernels since last time. */
void worker_kernels(struct worker *w, const char *model, const Ipc__KernelStats *k);
/* A worker's running total, as the rise of a counter; label NULL: the metric has one. */
void worker_rise(struct sup_metrics *m, enum sup_metric id, const char *model, const char *label,
                 uint64_t now, uint64_t *last);
/* The end of a process: claim back, handles closed, memory freed later. */
void worker_bury(struct worker *w);

/* ------------------------------------------------------- sup_fleet_cache.c */
/* Adds to metrics what a worker told of its prompt cache; its gauges go to 0. */
void worker_cache(struct worker *w, const char *model, const Ipc__Stats *s);
void worker_cache_none(struct worker *w);
uint64_t fleet_cache_first(const struct sup_fleet *f); /* budget of a worker about to load */
void fleet_cache_deal(struct sup_fleet *f);            /* now */
void fleet_cache_tick(struct sup_fleet *f);

/* ----------------------------------------------------- sup_fleet_grammar.c */
/* Adds to metrics what a worker told of its grammars; their memory goes to 0. */
void worker_grammars(struct worker *w, const char *model, const Ipc__GrammarStats *s);
void worker_grammars_none(struct worker *w, const char *model);
/* --- sup_fleet_media.c: of a model that takes files. */
void worker_passes(struct worker *w, const char *model, const Ipc__Stats *s); /* of an encoder */
void worker_media(struct worker *w, const char *model, const Ipc__Stats *s);
void worker_media_none(struct worker *w, const char *model);

/* ------------------------------------------------------ sup_fleet_decide.c */
/* Counts the answers of a checked Decided. */
void sup_fleet_decided(struct sup_metrics *m, const char *model, const Ipc__Decided *d);
/* Adds to metrics what a worker told of its prototypes; their memory goes to 0. */
void worker_protos(struct worker *w, const char *model, const Ipc__Stats *s);
void worker_protos_none(struct worker *w, const char *model);

/* ------------------------------------------------------- sup_fleet_queue.c */
bool queue_push(struct slot *s, struct sup_ticket *t, const struct sup_task *task);
struct sup_ticket *queue_next(struct worker *w); /* that may be sent now, or NULL */
void queue_sent(struct worker *w, struct sup_ticket *t);
void queue_back(struct worker *w, struct sup_ticket *t); /* it is no longer in the worker */
void queue_told(struct sup_ticket *t, const Ipc__Frame *f);
void queue_leave(struct sup_ticket *t);
void queue_deinit(struct slot *s);
/* The queue is full and this tenant has less than its share: the newest that waits of the one
 * with most of it is refused. False: nobody is. */
bool queue_make_room(struct sup_fleet *f, struct slot *s, const char *tenant, uint32_t weight);

/* -------------------------------------------------------- sup_fleet_task.c */
void ticket_pump(struct slot *s); /* sends what may be sent */
void ticket_answer(struct worker *w, const Ipc__Frame *f, Ipc__Frame **own);
void ticket_end(struct sup_ticket *t, const struct rc_err *err, uint32_t retry_after_ms);
void ticket_deaths(struct sup_fleet *f, struct slot *s, struct worker *w,
                   const struct rc_err *weight_err, uint32_t retry_after_ms);
void ticket_turns(struct sup_fleet *f);
void ticket_expire(struct sup_fleet *f, struct slot *s);
void tickets_end_all(struct sup_fleet *f);

/* --------------------------------------------------------- sup_fleet_ctl.c */
enum rc ctl_open(struct sup_fleet *f, int ctl_fd, struct rc_err *err);
void ctl_close(struct sup_fleet *f);
void ctl_scan(struct sup_fleet *f);
void ctl_spawn(struct sup_fleet *f, uint64_t req, const char *id, bool probe);
void ctl_kill(struct sup_fleet *f, uint32_t pid);

#endif
