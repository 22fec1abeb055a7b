/* sup_fleet.h - models on disk, the workers that hold them, tasks on their way.
 *
 * Finds or starts the worker of a model (single flight), keeps the ledger,
 * evicts idle workers, carries task frames, retries once what died before its
 * first byte, detects poison, backs off from crash loops, drains. States of a
 * slot: absent, starting, loading, ready, busy, draining, cooling, failed.
 * Policy lives in sup_fleet_policy.c, mechanism (channels, timers) elsewhere.
 * Everything a worker sends is checked here (state table, lengths, UTF-8,
 * finite floats, ids below the vocabulary) before a callback sees it; a breach
 * kills that worker. Runs in the front; processes are made by the launcher over
 * the control channel. One thread (the loop's).
 * Tests: tests/supervisor/test_sup_fleet*.c, tests/fault/.
 */
#ifndef INFERD_SUP_FLEET_H
#define INFERD_SUP_FLEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "inferd.pb-c.h"
#include "rc.h"

struct sup_conf;
struct sup_fleet;
struct sup_metrics;
struct sup_ticket;

/* ctl_fd: this front's end of the launcher's control channel (owned). */
enum rc sup_fleet_new(struct sup_fleet **out, uv_loop_t *loop, int ctl_fd,
                      const struct sup_conf *conf, struct sup_metrics *metrics,
                      void (*on_stop)(void *user), void *user, struct rc_err *err);
/* A new configuration from the launcher: the live options as JSON, or why it was refused (json
 * NULL). Called in a turn of its own. */
void sup_fleet_on_conf(struct sup_fleet *f,
                       void (*fn)(void *user, const char *json, size_t n, const char *refused));
/* Ends every task with an error, in the next turn, and refuses new ones: the last
 * word before connections are cut. */
void sup_fleet_end_tasks(struct sup_fleet *f);
/* Drains every worker, then calls done. */
void sup_fleet_drain(struct sup_fleet *f, void (*done)(void *), void *user);
void sup_fleet_free(struct sup_fleet **f);

/* ------------------------------------------------------------------- tasks */

#define SUP_TASK_ID_BYTES 65 /* of a request's id, NUL included: as long as HTTP takes one */

struct sup_task {
    const char *model;    /* id below the models directory */
    const char *req_id;   /* for logs; copied */
    Ipc__Frame *frame;    /* body only; task number is ours. Packed before
                             submit returns, so borrowed for the call */
    uint64_t deadline_us; /* CLOCK_MONOTONIC, 0 = none */
    const char *tenant;   /* whose turn it is when several wait; copied. NULL = "default" */
    uint32_t weight;      /* of that tenant; 0 = 1 */
    /* ms the model stays loaded when idle, from this task on until a next one says otherwise;
     * NULL = keep_alive_s. Borrowed for the call */
    const uint64_t *keep_alive;
    bool probe; /* not a client's: keep_alive of the last one holds, a full queue is full */
    /* Each answer frame (Delta, Done, Vectors, Tokens, Text, Echo); checked. The
     * frame is borrowed for the call. The last one (all but Delta) is followed by
     * on_end(NULL). */
    void (*on_frame)(void *user, const Ipc__Frame *f);
    /* Exactly once unless cancelled: NULL = success; else why, and whether and
     * when to retry (retry_after_ms 0 = do not). Not called after _cancel. The ticket may
     * be asked whether it had started until this returns, and never after. */
    void (*on_end)(void *user, const struct rc_err *err, uint32_t retry_after_ms);
    void *user;
};

/* Queues the task; callbacks never run inside this call. *out is dead after
 * on_end or sup_ticket_cancel. Errors (nothing queued): RC_NOT_FOUND no such
 * model, RC_BUSY queue full (what "max_queue"), RC_UNLOADING shutting down, RC_NOMEM, RC_TOO_LARGE.
 */
enum rc sup_fleet_submit(struct sup_fleet *f, const struct sup_task *t, struct sup_ticket **out,
                         struct rc_err *err);
/* When a request that was refused for max_queue should come again, ms: by then half of what is in
 * the model's queue has ended, if it goes on as it did. */
uint32_t sup_fleet_again_ms(struct sup_fleet *f, const char *model);
/* The client left: the worker hears of it at once. Idempotent; accepts NULL. */
void sup_ticket_cancel(struct sup_ticket **t);
/* A slow client pauses its own stream only: while paused, deltas are kept (bounded
 * by the answer's own max_tokens) instead of being delivered. */
void sup_ticket_pause(struct sup_ticket *t, bool paused);
/* It was sent to a worker, so it may have used something. */
bool sup_ticket_started(const struct sup_ticket *t);
/* Facts of the loaded model, NULL before the load has ended. Borrowed until the
 * next loop turn. */
const Ipc__Loaded *sup_ticket_model(const struct sup_ticket *t);

/* ------------------------------------------------------------------ models */

struct sup_model_view {
    const char *id;
    const char *state;       /* "absent" "starting" "loading" "ready" "busy"
                                "draining" "cooling" "failed" */
    const Ipc__Loaded *info; /* from a probe or a load; NULL = not known yet */
    uint64_t bytes;          /* on disk */
    uint32_t active_tasks;
    const char *last_error; /* "" when none */
    uint64_t retry_in_ms;   /* cooling / failed */
    uint32_t pid;           /* 0 when none */
    uint64_t loads, deaths;
    uint64_t load_done, load_total; /* progress while loading, bytes */
    double loaded_unix_s;           /* 0 when not loaded */
};
/* Calls fn for each known model, sorted by id (fn must not submit). */
void sup_fleet_each(struct sup_fleet *f, void (*fn)(void *user, const struct sup_model_view *v),
                    void *user);
/* One process of a model, and what it said about its own walls. */
struct sup_layer_view {
    const char *name, *detail;
    bool holds;
};
struct sup_worker_view {
    const char *model;
    uint32_t pid;
    const struct sup_layer_view *layers; /* [n]; 0 until it is ready */
    size_t n;
};
/* Calls fn for each process that has a model or looks at one. */
void sup_fleet_each_worker(struct sup_fleet *f,
                           void (*fn)(void *user, const struct sup_worker_view *v), void *user);
/* NULL name matching: exact id, or id without its .gguf ending. */
bool sup_fleet_find(struct sup_fleet *f, const char *id, struct sup_model_view *out);
/* Looks at the disk again (rate-limited to once a second) and probes what is new;
 * done is called when the list is fresh. */
void sup_fleet_rescan(struct sup_fleet *f, void (*done)(void *user), void *user);
/* The disk has just changed: the next look is not put off. */
void sup_fleet_stale(struct sup_fleet *f);
/* Explicit load / unload; done once: NULL or why not. */
enum rc sup_fleet_load(struct sup_fleet *f, const char *id,
                       void (*done)(void *user, const struct rc_err *err), void *user,
                       struct rc_err *err);
enum rc sup_fleet_unload(struct sup_fleet *f, const char *id,
                         void (*done)(void *user, const struct rc_err *err), void *user,
                         struct rc_err *err);
/* First scan finished and its models probed (or 5 s passed), preloads ended (loaded
 * or failed), launcher alive. */
bool sup_fleet_started(const struct sup_fleet *f);
/* started, not draining, and no stall (watchdog); *why set when false. */
bool sup_fleet_ready(const struct sup_fleet *f, const char **why);

#endif
