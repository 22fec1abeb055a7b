/* fleet_rig.h - a launcher, a test front with the real fleet, and fake workers that misbehave on
 * command: what the programs test_sup_fleet*.c share.
 *
 * Each case forks a launcher; the case's body runs in its front, on a libuv loop
 * that is turned until what is awaited has come (bounded by a minute), and must end
 * with a drained fleet and an empty ledger. No case asserts how long a thing took,
 * only that it came and in which order.
 */
#ifndef INFERD_TEST_FLEET_RIG_H
#define INFERD_TEST_FLEET_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <signal.h>
#include <sodium.h>
#include <sys/wait.h>
#include <uv.h>

#include "fleet_util.h"
#include "ipc.h"
#include "sup_fleet.h"
#include "sup_launcher_impl.h"
#include "sup_log.h"
#include "sup_metrics.h"

static uv_loop_t loop;
static struct sup_fleet *fleet;
static struct sup_metrics *metrics;
static bool stopped;

/* ------------------------------------------------------------------- asking */

struct ask {
    struct sup_ticket *ticket;
    enum rc submitted;
    bool ended;
    int frames, deltas, last; /* body case of the last frame */
    enum rc code;             /* RC_OK or why it ended */
    char msg[512];
    uint32_t retry_ms;
    bool cancel_in_frame, pause_in_frame;
    bool has_model;
};

static inline void on_frame(void *user, const Ipc__Frame *f)
{
    struct ask *a = user;

    MUST(!a->ended);
    a->frames++;
    a->deltas += f->body_case == IPC__FRAME__BODY_DELTA;
    a->last = (int)f->body_case;
    a->has_model = sup_ticket_model(a->ticket) && sup_ticket_model(a->ticket)->vocab_size == 100;
    if (a->cancel_in_frame)
        sup_ticket_cancel(&a->ticket);
    else if (a->pause_in_frame)
        sup_ticket_pause(a->ticket, true);
}

static inline void on_end(void *user, const struct rc_err *err, uint32_t retry_ms)
{
    struct ask *a = user;

    MUST(!a->ended);
    a->ended = true;
    a->ticket = NULL;
    a->code = err ? err->code : RC_OK;
    a->retry_ms = retry_ms;
    snprintf(a->msg, sizeof(a->msg), "%s", err ? err->msg : "");
}

static const char *tenant; /* of what is submitted next */
static uint32_t weight;
static const uint64_t *keep_alive; /* of the next requests */
static bool whole;                 /* the next answers are no streams */
static bool probe;                 /* they are the server's own */

static inline void submit(struct ask *a, const char *model, Ipc__Frame *f, uint64_t deadline_us)
{
    struct sup_task t = {.model = model,
                         .tenant = tenant,
                         .weight = weight,
                         .req_id = "r",
                         .frame = f,
                         .deadline_us = deadline_us,
                         .keep_alive = keep_alive,
                         .probe = probe,
                         .on_frame = on_frame,
                         .on_end = on_end,
                         .user = a};
    struct rc_err err = RC_ERR_INIT;

    a->submitted = sup_fleet_submit(fleet, &t, &a->ticket, &err);
    MUST(!a->ended && a->frames == 0); /* callbacks never run inside submit */
    if (a->submitted != RC_OK)
        snprintf(a->msg, sizeof(a->msg), "%s", err.msg);
}

static inline void echo(struct ask *a, const char *model, const char *text)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;

    e.data.data = (uint8_t *)text;
    e.data.len = strlen(text);
    f.body_case = IPC__FRAME__BODY_ECHO;
    f.echo = &e;
    submit(a, model, &f, 0);
}

static inline void generate(struct ask *a, const char *model, const char *text, uint32_t n)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;

    g.kind = 2;
    g.prompt.data = (uint8_t *)text;
    g.prompt.len = strlen(text);
    g.max_tokens = 100000;
    g.n = n;
    g.stream = !whole;
    g.sampling = &s;
    g.return_token_ids = true;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    submit(a, model, &f, 0);
}

static inline void embed(struct ask *a, const char *model, const char *text)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Embed m = IPC__EMBED__INIT;
    Ipc__EmbedInput in = IPC__EMBED_INPUT__INIT, *list[1] = {&in};

    in.text.data = (uint8_t *)text;
    in.text.len = strlen(text);
    m.inputs = list;
    m.n_inputs = 1;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    submit(a, model, &f, 0);
}

/* ------------------------------------------------------------------ awaiting */

static inline void on_nothing(uv_timer_t *t)
{
    (void)t;
}

/* Turns the loop until cond holds; a minute at most. */
#define UNTIL(cond)                                                               \
    do {                                                                          \
        uint64_t end_ = uv_hrtime() + 60000000000ull;                             \
        uv_timer_t wake_;                                                         \
        uv_timer_init(&loop, &wake_);                                             \
        uv_timer_start(&wake_, on_nothing, 20, 20);                               \
        while (!(cond)) {                                                         \
            if (uv_hrtime() > end_) {                                             \
                fprintf(stderr, "%s:%d: never: %s\n", __FILE__, __LINE__, #cond); \
                _exit(98);                                                        \
            }                                                                     \
            uv_run(&loop, UV_RUN_ONCE);                                           \
        }                                                                         \
        uv_close((uv_handle_t *)&wake_, NULL);                                    \
        uv_run(&loop, UV_RUN_NOWAIT);                                             \
    } while (0)

static inline void turn_ms(unsigned ms)
{
    uint64_t end = uv_hrtime() + ms * 1000000ull;

    UNTIL(uv_hrtime() >= end);
}

static inline struct sup_model_view view(const char *id)
{
    struct sup_model_view v = {0};

    if (!sup_fleet_find(fleet, id, &v))
        v.state = "unknown";
    return v;
}

static inline bool is(const char *id, const char *state)
{
    return strcmp(view(id).state, state) == 0;
}

static inline double metric(enum sup_metric m, const char *a, const char *b)
{
    return sup_series_value(sup_series(metrics, m, a, b));
}

/* Real loads, counted by the fake worker itself in the file PATH. */
static inline long loads(const char *name)
{
    struct stat st;

    return stat(tmp_path("%s", name), &st) == 0 ? (long)st.st_size : 0;
}

#define OK_ASK(a) MUST((a).ended && (a).code == RC_OK)
#define ENDS(a, rc_)                                                            \
    do {                                                                        \
        UNTIL((a).ended);                                                       \
        if ((a).code != (rc_))                                                  \
            fprintf(stderr, "ended with %s: %s\n", rc_name((a).code), (a).msg); \
        MUST((a).code == (rc_));                                                \
    } while (0)

static bool flag_set;
static enum rc flag_code;
static inline void set_flag(void *user, const struct rc_err *err)
{
    (void)user;
    flag_set = true;
    flag_code = err ? err->code : RC_OK;
}
static inline void set_flag_plain(void *user)
{
    (void)user;
    flag_set = true;
}

static inline void fresh_list(void)
{
    turn_ms(1100); /* a scan a second at most */
    flag_set = false;
    sup_fleet_rescan(fleet, set_flag_plain, NULL);
    MUST(!flag_set);
    UNTIL(flag_set);
}

/* ------------------------------------------------------------------ the frame */

static void (*body)(void);

static inline void on_stop(void *user)
{
    (void)user;
    stopped = true;
}

static inline void drained(void *user)
{
    *(bool *)user = true;
}

static inline int front(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    int ctl_fd = fds->launcher;
    struct rc_err err = RC_ERR_INIT;
    bool gone = false;

    MUST(uv_loop_init(&loop) == 0);
    metrics = sup_metrics_new();
    MUST(sup_fleet_new(&fleet, &loop, ctl_fd, conf, metrics, on_stop, NULL, &err) == RC_OK);
    if (!conf->preload || !conf->preload[0]) /* else the case looks at what is not ready yet */
        UNTIL(sup_fleet_started(fleet));
    body();
    if (!stopped) {
        /* what every case must leave behind: nothing */
        kill(getppid(), SIGTERM);
        UNTIL(stopped);
        sup_fleet_drain(fleet, drained, &gone);
        UNTIL(gone);
    }
    MUST(metric(SUP_M_LEDGER_BYTES, "weights", "host") == 0);
    MUST(metric(SUP_M_LEDGER_BYTES, "kv", "host") == 0);
    MUST(metric(SUP_M_LEDGER_BYTES, "workspace", "host") == 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    sup_fleet_free(&fleet);
    sup_metrics_free(&metrics);
    MUST(uv_loop_close(&loop) == 0);
    return 0;
}

static const struct sup_role front_only[] = {{front, SUP_ROLE_FRONT, 0, NULL}};

static inline void run_case(void (*fn)(void), void (*change)(struct sup_conf *))
{
    static struct sup_conf conf;
    char text[700];
    int status;
    pid_t pid;

    tmp_make();
    snprintf(text, sizeof(text), "count=%s", tmp_path("loads"));
    tmp_write("m.gguf", text);
    snprintf(text, sizeof(text), "load-ms=300 count=%s", tmp_path("slow-loads"));
    tmp_write("slow.gguf", text);
    snprintf(text, sizeof(text), "load-fail=12 count=%s", tmp_path("aw-loads"));
    tmp_write("absent-weight.gguf", text);
    tmp_write("third.gguf", "load-ok");
    conf = test_conf();
    if (change)
        change(&conf);
    body = fn;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        alarm(280);
        _exit(sup_launcher_run(&conf, NULL, front_only, 1));
    }
    MUST(waitpid(pid, &status, 0) == pid);
    tmp_remove();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static inline void no_change(struct sup_conf *c)
{
    (void)c;
}

/* The program of a list CASES(X) of X(case, what it changes in the configuration). */
#define FLEET_CASE(fn, change)      \
    static void case_##fn(void **s) \
    {                               \
        (void)s;                    \
        run_case(fn, change);       \
    }
#define FLEET_ROW(fn, change) cmocka_unit_test(case_##fn),
#define FLEET_MAIN(CASES)                                                \
    CASES(FLEET_CASE)                                                    \
    int main(int argc, char **argv)                                      \
    {                                                                    \
        const struct CMUnitTest tests[] = {CASES(FLEET_ROW)};            \
                                                                         \
        if (sodium_init() < 0)                                           \
            return 1;                                                    \
        sup_log_init(getenv("INFERD_TEST_LOG") ? SUP_DEBUG : SUP_ERROR); \
        if (argc > 1)                                                    \
            cmocka_set_test_filter(argv[1]);                             \
        return cmocka_run_group_tests(tests, NULL, NULL);                \
    }

#endif
