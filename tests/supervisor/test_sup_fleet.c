/* test_sup_fleet.c - the life-cycle table with real processes: a launcher, a test
 * front with the real fleet, and fake workers that misbehave on command.
 *
 * Each case forks a launcher; the case's body runs in its front, on a libuv loop
 * that is turned until what is awaited has come (bounded by a minute), and must end
 * with a drained fleet and an empty ledger. No case asserts how long a thing took,
 * only that it came and in which order.
 */
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

static void on_frame(void *user, const Ipc__Frame *f)
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

static void on_end(void *user, const struct rc_err *err, uint32_t retry_ms)
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
static bool probe;                 /* they are the server's own */

static void submit(struct ask *a, const char *model, Ipc__Frame *f, uint64_t deadline_us)
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

static void echo(struct ask *a, const char *model, const char *text)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;

    e.data.data = (uint8_t *)text;
    e.data.len = strlen(text);
    f.body_case = IPC__FRAME__BODY_ECHO;
    f.echo = &e;
    submit(a, model, &f, 0);
}

static void generate(struct ask *a, const char *model, const char *text, uint32_t n)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;

    g.kind = 2;
    g.prompt.data = (uint8_t *)text;
    g.prompt.len = strlen(text);
    g.max_tokens = 100000;
    g.n = n;
    g.sampling = &s;
    g.return_token_ids = true;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    submit(a, model, &f, 0);
}

static void embed(struct ask *a, const char *model, const char *text)
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

static void on_nothing(uv_timer_t *t)
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

static void turn_ms(unsigned ms)
{
    uint64_t end = uv_hrtime() + ms * 1000000ull;

    UNTIL(uv_hrtime() >= end);
}

static struct sup_model_view view(const char *id)
{
    struct sup_model_view v = {0};

    if (!sup_fleet_find(fleet, id, &v))
        v.state = "unknown";
    return v;
}

static bool is(const char *id, const char *state)
{
    return strcmp(view(id).state, state) == 0;
}

static double metric(enum sup_metric m, const char *a, const char *b)
{
    return sup_series_value(sup_series(metrics, m, a, b));
}

/* Real loads, counted by the fake worker itself in the file PATH. */
static long loads(const char *name)
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
static void set_flag(void *user, const struct rc_err *err)
{
    (void)user;
    flag_set = true;
    flag_code = err ? err->code : RC_OK;
}
static void set_flag_plain(void *user)
{
    (void)user;
    flag_set = true;
}

static void fresh_list(void)
{
    turn_ms(1100); /* a scan a second at most */
    flag_set = false;
    sup_fleet_rescan(fleet, set_flag_plain, NULL);
    MUST(!flag_set);
    UNTIL(flag_set);
}

/* --------------------------------------------------------------------- cases */

static void answers_of_every_kind_arrive(void)
{
    struct ask e = {0}, g = {0}, v = {0};

    echo(&e, "m.gguf", "hello");
    generate(&g, "m", "stream=3", 2); /* also without its ending */
    embed(&v, "m.gguf", "text");
    UNTIL(e.ended && g.ended && v.ended);
    OK_ASK(e);
    OK_ASK(g);
    OK_ASK(v);
    MUST(e.last == IPC__FRAME__BODY_ECHOED && e.frames == 1 && e.has_model);
    MUST(g.last == IPC__FRAME__BODY_DONE && g.deltas == 6);
    MUST(v.last == IPC__FRAME__BODY_VECTORS);
    MUST(is("m.gguf", "ready") && view("m.gguf").loads == 1 && loads("loads") == 1);
    MUST(metric(SUP_M_TASKS, "m.gguf", "ok") == 3 &&
         metric(SUP_M_TASKS_ACTIVE, "m.gguf", NULL) == 0);
    MUST(metric(SUP_M_TOKENS, "m.gguf", "completion") == 2);
}

static void big_payloads_both_ways(void)
{
    size_t n = 3 << 20;
    char *text = malloc(n + 1);
    struct ask a[8] = {{0}};
    size_t done = 0;

    memset(text, 'x', n);
    text[n] = '\0';
    for (int i = 0; i < 8; i++)
        echo(&a[i], "m.gguf", text);
    UNTIL(a[0].ended && a[1].ended && a[2].ended && a[3].ended && a[4].ended && a[5].ended &&
          a[6].ended && a[7].ended);
    for (int i = 0; i < 8; i++)
        done += a[i].code == RC_OK;
    MUST(done == 8);
    free(text);
}

static void thirty_two_cold_requests_load_once(void)
{
    struct ask a[32] = {{0}};
    int ok = 0;

    for (int i = 0; i < 32; i++)
        echo(&a[i], "slow.gguf", "x");
    UNTIL(is("slow.gguf", "loading"));
    for (int i = 0; i < 31; i++) /* 31 leave; the last still gets its answer */
        sup_ticket_cancel(&a[i].ticket);
    UNTIL(a[31].ended);
    for (int i = 0; i < 32; i++)
        ok += a[i].ended && a[i].code == RC_OK;
    MUST(ok == 1 && a[31].code == RC_OK);
    MUST(loads("slow-loads") == 1 && view("slow.gguf").loads == 1);
    /* all leave while it loads: the load may finish; a later request is served */
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "slow.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    echo(&a[0], "slow.gguf", "x");
    UNTIL(is("slow.gguf", "loading"));
    sup_ticket_cancel(&a[0].ticket);
    sup_ticket_cancel(&a[0].ticket); /* idempotent */
    memset(&a[1], 0, sizeof(a[1]));
    UNTIL(is("slow.gguf", "ready"));
    echo(&a[1], "slow.gguf", "x");
    ENDS(a[1], RC_OK);
    MUST(loads("slow-loads") == 2);
}

static void a_crash_before_the_first_byte_is_hidden(void)
{
    struct ask a = {0};
    char text[600];

    snprintf(text, sizeof(text), "crash @%s", tmp_path("once"));
    echo(&a, "m.gguf", text);
    ENDS(a, RC_OK);
    MUST(a.frames == 1 && view("m.gguf").deaths == 1 && view("m.gguf").loads == 2);
    MUST(metric(SUP_M_TASK_RETRIES, "m.gguf", NULL) == 1);
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "signal") == 1);
    /* leaving with an exit status is no better */
    snprintf(text, sizeof(text), "exit @%s", tmp_path("once2"));
    memset(&a, 0, sizeof(a));
    echo(&a, "m.gguf", text);
    ENDS(a, RC_OK);
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "exit") == 1);
}

static void a_crash_in_the_middle_is_told(void)
{
    struct ask a = {0}, b = {0};

    generate(&a, "m.gguf", "crash-mid", 1);
    ENDS(a, RC_CRASHED);
    MUST(a.deltas == 2 && a.retry_ms > 0);
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
}

static void twice_present_alone_is_poisoned(void)
{
    struct ask a = {0}, b = {0};

    echo(&a, "m.gguf", "crash");
    ENDS(a, RC_POISONED);
    MUST(a.retry_ms == 0 && view("m.gguf").deaths == 2);
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
}

static void only_the_guilty_of_a_batch_is_convicted(void)
{
    struct ask a[8] = {{0}}, warm = {0};

    echo(&warm, "m.gguf", "x");
    ENDS(warm, RC_OK);
    for (int i = 0; i < 8; i++)
        echo(&a[i], "m.gguf", i == 4 ? "crash" : "ms=50");
    for (int i = 0; i < 8; i++)
        ENDS(a[i], i == 4 ? RC_POISONED : RC_OK);
    MUST(view("m.gguf").deaths == 2);
}

static void a_suspect_is_tried_beside_no_stranger(void)
{
    /* a stream that began keeps its worker; the suspects' trial waits its turn, and a
     * newcomer waits for the suspects */
    struct ask warm = {0}, bad = {0}, good = {0}, late = {0};

    echo(&warm, "m.gguf", "x");
    ENDS(warm, RC_OK);
    generate(&good, "m.gguf", "stream=5", 1);
    echo(&bad, "m.gguf", "crash");
    UNTIL(is("m.gguf", "cooling"));
    echo(&late, "m.gguf", "x");
    ENDS(bad, RC_POISONED);
    ENDS(late, RC_OK);
    UNTIL(good.ended);
    /* good: its first frame had left before the death (CRASHED) or had not (retried) */
    MUST(good.code == RC_OK || good.code == RC_CRASHED);
}

static void a_failed_load_is_remembered_until_the_files_change(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    echo(&a, "absent-weight.gguf", "x");
    echo(&b, "absent-weight.gguf", "x");
    ENDS(a, RC_WEIGHT_ABSENT);
    ENDS(b, RC_WEIGHT_ABSENT);
    MUST(a.retry_ms == 0 && is("absent-weight.gguf", "failed"));
    MUST(strcmp(view("absent-weight.gguf").last_error, "the load was told to fail") == 0);
    MUST(loads("aw-loads") == 1);
    turn_ms(1200); /* past the scan gap: the files are looked at again */
    echo(&c, "absent-weight.gguf", "x");
    ENDS(c, RC_WEIGHT_ABSENT);
    MUST(loads("aw-loads") == 1); /* no crash loop: not even a process */
    tmp_write("absent-weight.gguf", "load-ok");
    turn_ms(1200);
    echo(&d, "absent-weight.gguf", "x");
    ENDS(d, RC_OK);
    MUST(view("absent-weight.gguf").last_error[0] == '\0');
}

static void an_explicit_load_tries_a_failed_model_again(void)
{
    struct ask a = {0};

    echo(&a, "absent-weight.gguf", "x");
    ENDS(a, RC_WEIGHT_ABSENT);
    flag_set = false;
    MUST(sup_fleet_load(fleet, "absent-weight.gguf", set_flag, NULL, NULL) == RC_OK);
    MUST(!flag_set);
    UNTIL(flag_set);
    MUST(flag_code == RC_WEIGHT_ABSENT && loads("aw-loads") == 2);
}

static void a_passing_failure_is_tried_again_after_its_time(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    tmp_write("io.gguf", "load-fail=13"); /* WEIGHT_IO */
    fresh_list();
    echo(&a, "io.gguf", "x");
    ENDS(a, RC_WEIGHT_IO);
    MUST(a.retry_ms == 1000 && is("io.gguf", "failed"));
    echo(&b, "io.gguf", "x"); /* at once: the same answer, no process */
    ENDS(b, RC_WEIGHT_IO);
    MUST(b.retry_ms > 0 && b.retry_ms <= 1000);
    tmp_write("io.gguf", "load-ok");
    turn_ms(1200);
    echo(&c, "io.gguf", "x");
    ENDS(c, RC_OK);
}

static void a_worker_that_dies_loading_backs_off_and_then_refuses(void)
{
    struct ask a = {0}, b = {0}, other = {0};

    tmp_write("crash.gguf", "load-crash");
    fresh_list();
    echo(&a, "crash.gguf", "x");
    ENDS(a, RC_BUSY);
    MUST(a.retry_ms > 2000 && is("crash.gguf", "cooling"));
    MUST(view("crash.gguf").deaths == 6 && view("crash.gguf").retry_in_ms > 0);
    echo(&b, "crash.gguf", "x"); /* while cooling: at once */
    ENDS(b, RC_BUSY);
    MUST(b.retry_ms > 0);
    echo(&other, "m.gguf", "x"); /* other models are untouched */
    ENDS(other, RC_OK);
    /* an order does not wait for the back-off */
    tmp_write("crash.gguf", "load-ok");
    flag_set = false;
    MUST(sup_fleet_load(fleet, "crash.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(flag_code == RC_OK && is("crash.gguf", "ready"));
}

static void weights_that_vanish_are_retryable_and_come_back(void)
{
    static const char *const how[] = {"sigbus", "worker-error=13"};

    for (int i = 0; i < 2; i++) {
        struct ask a = {0}, b = {0};
        char text[600];

        snprintf(text, sizeof(text), "%s @%s", how[i], tmp_path("gone%d", i));
        echo(&a, "m.gguf", text);
        ENDS(a, RC_WEIGHT_IO);
        MUST(a.retry_ms > 0);
        echo(&b, "m.gguf", "x");
        ENDS(b, RC_OK);
    }
}

static void a_hang_is_noticed_and_survived(void)
{
    struct ask a = {0};
    char text[600];

    snprintf(text, sizeof(text), "hang @%s", tmp_path("hung"));
    echo(&a, "m.gguf", text);
    ENDS(a, RC_OK); /* retried in silence on the next worker */
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "hang") == 1);
}

/* silence_timeout_ms 600, hang_timeout_s 1; the fake beats every 200 ms. */
static void a_long_pass_is_neither_silent_nor_stuck(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};
    char text[600];
    uint64_t began;

    tmp_write("m.gguf", "beats");
    tmp_write("slow.gguf", "beats load-hang");
    fresh_list();
    echo(&a, "m.gguf", "pass=2500"); /* longer than both */
    ENDS(a, RC_OK);
    MUST(view("m.gguf").deaths == 0);
    snprintf(text, sizeof(text), "stuck @%s", tmp_path("once"));
    echo(&b, "m.gguf", text);
    ENDS(b, RC_OK); /* by the next worker */
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "hang") == 1);
    snprintf(text, sizeof(text), "hang @%s", tmp_path("once2"));
    began = uv_hrtime();
    echo(&c, "m.gguf", text);
    ENDS(c, RC_OK);
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "hang") == 2);
    MUST(uv_hrtime() - began > 600000000ull);
    turn_ms(1500); /* idle and silent is no death */
    MUST(view("m.gguf").deaths == 2);
    echo(&d, "slow.gguf", "x"); /* a load that stands still is found as soon */
    UNTIL(metric(SUP_M_WORKER_DEATHS, "slow.gguf", "hang") >= 1);
    sup_ticket_cancel(&d.ticket);
}

static void a_load_that_takes_too_long_is_ended(void)
{
    struct ask a = {0}, b = {0};

    tmp_write("stuck.gguf", "load-hang");
    tmp_write("mute.gguf", "no-ready");
    fresh_list();
    echo(&a, "stuck.gguf", "x");
    echo(&b, "mute.gguf", "x");
    ENDS(a, RC_DEADLINE);
    ENDS(b, RC_DEADLINE);
    MUST(a.retry_ms > 0 && is("stuck.gguf", "failed"));
    MUST(metric(SUP_M_MODEL_LOADS, "stuck.gguf", "timeout") == 1);
}

static void a_lying_worker_is_ended(void)
{
    static const struct {
        char kind;
        const char *what;
    } rows[] = {
        {'e', "garbage"},     {'e', "unknown-frame"}, {'e', "wrong-kind"}, {'v', "short-vectors"},
        {'v', "nan-vectors"}, {'g', "bad-utf8"},      {'g', "bad-index"},  {'g', "bad-token"},
    };
    double deaths = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ask a = {0};
        char text[600];

        snprintf(text, sizeof(text), "%s @%s", rows[i].what, tmp_path("lie%zu", i));
        tmp_write(i % 2 ? "liar.gguf" : "liar2.gguf", "load-ok");
        if (rows[i].kind == 'e')
            echo(&a, "m.gguf", text);
        else if (rows[i].kind == 'v')
            embed(&a, "m.gguf", text);
        else
            generate(&a, "m.gguf", text, 1);
        UNTIL(a.ended);
        fprintf(stderr, "%s: %s\n", rows[i].what, rc_name(a.code));
        /* nothing of the lie reached the caller: it was retried */
        if (a.code == RC_OK) {
            MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "protocol") == ++deaths);
        } else { /* the back-off had grown too long to wait */
            MUST(a.code == RC_CRASHED && a.frames == 0);
            MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "protocol") == ++deaths);
            flag_set = false;
            MUST(sup_fleet_load(fleet, "m.gguf", set_flag, NULL, NULL) == RC_OK);
            UNTIL(flag_set);
        }
    }
    /* an answer to a task that never was is dropped, not punished */
    struct ask a = {0};
    echo(&a, "m.gguf", "foreign-task");
    ENDS(a, RC_OK);
    MUST(metric(SUP_M_WORKER_DEATHS, "m.gguf", "protocol") == deaths);
}

static void a_worker_that_lies_about_itself_is_refused(void)
{
    struct ask a = {0}, b = {0};

    tmp_write("old.gguf", "bad-version");
    tmp_write("liar.gguf", "bad-loaded");
    fresh_list();
    echo(&a, "old.gguf", "x");
    ENDS(a, RC_UNSUPPORTED);
    MUST(strstr(a.msg, "protocol"));
    echo(&b, "liar.gguf", "x");
    ENDS(b, RC_BUSY);
    MUST(metric(SUP_M_WORKER_DEATHS, "liar.gguf", "protocol") > 0);
}

static void errors_of_a_task_are_passed_on(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    echo(&a, "m.gguf", "error=7");
    ENDS(a, RC_TOO_LARGE);
    MUST(strcmp(a.msg, "told to fail") == 0 && a.retry_ms == 0);
    echo(&b, "m.gguf", "error=9");
    ENDS(b, RC_BUSY);
    MUST(b.retry_ms > 0 && view("m.gguf").deaths == 0);
    echo(&c, "m.gguf", "error=4"); /* memory is short now */
    ENDS(c, RC_NOMEM);
    MUST(c.retry_ms > 0);
}

static void a_cancel_reaches_the_worker(void)
{
    struct ask a = {0}, b = {0};

    generate(&a, "m.gguf", "forever", 1);
    UNTIL(a.deltas > 3);
    sup_ticket_cancel(&a.ticket);
    int seen = a.deltas;
    MUST(a.ticket == NULL);
    UNTIL(is("m.gguf", "ready"));
    /* the next drain would not end if the worker still streamed */
    MUST(sup_fleet_unload(fleet, "m.gguf", set_flag, NULL, NULL) == RC_OK);
    flag_set = false;
    UNTIL(flag_set);
    MUST(a.deltas == seen && !a.ended);
    MUST(metric(SUP_M_TASKS, "m.gguf", "cancelled") == 1);
    b.cancel_in_frame = true; /* a reader that leaves from inside its callback */
    generate(&b, "m.gguf", "forever", 1);
    UNTIL(b.deltas == 1);
    turn_ms(50);
    MUST(b.deltas == 1 && !b.ended && b.ticket == NULL);
}

static void a_paused_reader_gets_everything_later(void)
{
    struct ask a = {.pause_in_frame = true}, b = {0};

    generate(&a, "m.gguf", "stream=20", 1);
    UNTIL(a.deltas == 1);
    echo(&b, "m.gguf", "x"); /* nobody else is held up */
    ENDS(b, RC_OK);
    UNTIL(is("m.gguf", "ready")); /* the worker has long finished */
    MUST(a.deltas == 1 && !a.ended);
    a.pause_in_frame = false;
    sup_ticket_pause(a.ticket, false);
    MUST(a.deltas == 1);
    ENDS(a, RC_OK);
    MUST(a.deltas == 20 && a.last == IPC__FRAME__BODY_DONE);
    /* cancelled while it still holds answers */
    struct ask c = {.pause_in_frame = true};
    generate(&c, "m.gguf", "stream=20", 1);
    UNTIL(c.deltas == 1 && is("m.gguf", "ready"));
    sup_ticket_cancel(&c.ticket);
    /* a crash behind kept answers: they come first, then the error */
    struct ask d = {.pause_in_frame = true};
    generate(&d, "m.gguf", "crash-mid", 1);
    UNTIL(is("m.gguf", "cooling"));
    MUST(d.deltas == 1 && !d.ended);
    d.pause_in_frame = false;
    sup_ticket_pause(d.ticket, false);
    ENDS(d, RC_CRASHED);
    MUST(d.deltas == 2);
}

static void deadlines_end_tasks_wherever_they_are(void)
{
    struct ask a = {0}, b = {0};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;

    f.body_case = IPC__FRAME__BODY_ECHO;
    f.echo = &e;
    submit(&a, "slow.gguf", &f, uv_hrtime() / 1000 + 50000); /* the load takes longer */
    e.data.data = (uint8_t *)"ms=60000";
    e.data.len = 8;
    submit(&b, "m.gguf", &f, uv_hrtime() / 1000 + 300000);
    ENDS(a, RC_DEADLINE);
    MUST(strstr(a.msg, "waited for the model to be loaded"));
    ENDS(b, RC_DEADLINE);
    MUST(strstr(b.msg, "with the worker"));
    UNTIL(is("m.gguf", "ready") && is("slow.gguf", "ready"));
    MUST(metric(SUP_M_TASKS, "m.gguf", "deadline") == 1);
}

static void the_queue_has_an_end(void)
{
    struct ask a[5] = {{0}};

    for (int i = 0; i < 5; i++)
        echo(&a[i], "m.gguf", "ms=50");
    MUST(a[3].submitted == RC_OK && a[4].submitted == RC_BUSY && a[4].ticket == NULL);
    for (int i = 0; i < 4; i++)
        ENDS(a[i], RC_OK);
    memset(&a[4], 0, sizeof(a[4]));
    echo(&a[4], "m.gguf", "x");
    ENDS(a[4], RC_OK);
}

static int n_ended(const struct ask *a, int n)
{
    int ended = 0;

    for (int i = 0; i < n; i++)
        ended += a[i].ended;
    return ended;
}

/* 60 tasks of one tenant are there, and those of two others that come later are not behind
 * them: they wait for what is in the worker and take turns by weight. */
static void a_flood_does_not_hold_up_others(void)
{
    struct ask a[60] = {{0}}, b[4] = {{0}}, c = {0};

    tenant = "a";
    for (int i = 0; i < 60; i++)
        generate(&a[i], "m.gguf", "ms=20", 1);
    UNTIL(n_ended(a, 60) >= 6);
    tenant = "b";
    weight = 4;
    for (int i = 0; i < 4; i++)
        generate(&b[i], "m.gguf", "ms=20", 1);
    tenant = "c";
    weight = 1;
    generate(&c, "m.gguf", "ms=20", 1);
    UNTIL(n_ended(b, 4) == 4 && c.ended);
    MUST(n_ended(a, 60) < 40);
    UNTIL(n_ended(a, 60) == 60);
    for (int i = 0; i < 60; i++)
        OK_ASK(a[i]);
    MUST(metric(SUP_M_TASKS, "m.gguf", "ok") == 65);
    MUST(metric(SUP_M_LOAD_WAITERS, "m.gguf", NULL) == 0);
}

/* Work on texts is not shut out by sequences that fill the worker. */
static void a_full_lane_leaves_the_others_free(void)
{
    struct ask a[20] = {{0}}, e = {0}, v = {0};

    for (int i = 0; i < 20; i++)
        generate(&a[i], "m.gguf", "forever", 1);
    echo(&e, "m.gguf", "x");
    embed(&v, "m.gguf", "x");
    ENDS(e, RC_OK);
    ENDS(v, RC_OK);
    MUST(metric(SUP_M_LOAD_WAITERS, "m.gguf", NULL) == 15); /* 4 sequences and one ahead are sent */
    for (int i = 0; i < 20; i++)
        sup_ticket_cancel(&a[i].ticket); /* each makes room for the next */
    UNTIL(is("m.gguf", "ready"));
    MUST(metric(SUP_M_LOAD_WAITERS, "m.gguf", NULL) == 0);
}

/* max_queue is 4: one tenant alone may have it all; then another has a right to half. */
static void a_full_queue_makes_room_for_who_has_less(void)
{
    struct ask a[5] = {{0}}, b[3] = {{0}};

    tenant = "a";
    for (int i = 0; i < 4; i++)
        echo(&a[i], "slow.gguf", "x"); /* wait for the load */
    echo(&a[4], "slow.gguf", "x");
    MUST(a[3].submitted == RC_OK && a[4].submitted == RC_BUSY && strstr(a[4].msg, "max_queue"));
    tenant = "b";
    probe = true; /* pushes nobody out */
    echo(&b[0], "slow.gguf", "x");
    MUST(b[0].submitted == RC_BUSY && !a[3].ended);
    probe = false;
    echo(&b[0], "slow.gguf", "x");
    echo(&b[1], "slow.gguf", "x");
    echo(&b[2], "slow.gguf", "x"); /* beyond its half */
    MUST(b[0].submitted == RC_OK && b[1].submitted == RC_OK && b[2].submitted == RC_BUSY);
    ENDS(a[3], RC_BUSY); /* the newest of who had most */
    ENDS(a[2], RC_BUSY);
    MUST(a[3].retry_ms == 1000 && strstr(a[3].msg, "max_queue") && a[3].frames == 0);
    ENDS(a[0], RC_OK);
    ENDS(a[1], RC_OK);
    ENDS(b[0], RC_OK);
    ENDS(b[1], RC_OK);
    MUST(metric(SUP_M_TASKS, "slow.gguf", "refused") == 5);
}

/* Nothing of it reaches the worker: the file it would make there is not made. */
static void who_is_late_in_the_queue_never_starts(void)
{
    struct ask a[5] = {{0}}, b = {0}, c = {0};
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling sampling = IPC__SAMPLING__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;
    char text[300];

    for (int i = 0; i < 5; i++)
        generate(&a[i], "m.gguf", "forever", 1);
    UNTIL(a[0].deltas > 0);
    snprintf(text, sizeof(text), "crash @%s", tmp_path("started"));
    g.kind = 2;
    g.prompt.data = (uint8_t *)text;
    g.prompt.len = strlen(text);
    g.max_tokens = g.n = 1;
    g.sampling = &sampling;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    submit(&b, "m.gguf", &f, uv_hrtime() / 1000 + 50000);
    submit(&c, "m.gguf", &f, uv_hrtime() / 1000 - 1); /* its time was over when it came */
    ENDS(b, RC_DEADLINE);
    ENDS(c, RC_DEADLINE);
    MUST(strstr(b.msg, "queued") && strstr(c.msg, "queued"));
    for (int i = 0; i < 5; i++)
        sup_ticket_cancel(&a[i].ticket);
    UNTIL(is("m.gguf", "ready"));
    MUST(loads("started") == 0 && access(tmp_path("started"), F_OK) != 0);
    MUST(view("m.gguf").deaths == 0);
}

static void unknown_models_and_new_ones(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    echo(&a, "../../etc/passwd", "x");
    MUST(a.submitted == RC_NOT_FOUND);
    turn_ms(1100);
    echo(&b, "nobody.gguf", "x"); /* looked for, then refused */
    MUST(b.submitted == RC_OK);
    ENDS(b, RC_NOT_FOUND);
    MUST(is("nobody.gguf", "unknown"));
    echo(&c, "nobody.gguf", "x");
    MUST(c.submitted == RC_NOT_FOUND); /* within the second: known to be absent */
    tmp_write("new.gguf", "load-ok");
    turn_ms(1100);
    echo(&d, "new.gguf", "x");
    ENDS(d, RC_OK);
}

static void changed_files_are_loaded_anew(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    generate(&b, "m.gguf", "stream=400", 1); /* runs while the files change */
    UNTIL(b.deltas > 0);
    tmp_write("m.gguf", "weights=2000");
    fresh_list();
    MUST(is("m.gguf", "draining"));
    echo(&c, "m.gguf", "x"); /* waits for the new one; the old is not resurrected */
    UNTIL(c.ended);
    MUST(b.ended && b.code == RC_OK && b.deltas == 400); /* the old generation finished */
    OK_ASK(c);
    MUST(view("m.gguf").loads == 2 && view("m.gguf").info->weight_bytes == 2000);
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "changed") == 1);
}

static void files_renamed_away_and_back(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    MUST(rename(tmp_path("m.gguf"), tmp_path("m.away")) == 0);
    fresh_list();
    UNTIL(!view("m.gguf").pid);
    turn_ms(1100);
    echo(&b, "m.gguf", "x");
    MUST(b.submitted == RC_OK);
    ENDS(b, RC_WEIGHT_IO);
    MUST(b.retry_ms > 0);
    MUST(rename(tmp_path("m.away"), tmp_path("m.gguf")) == 0);
    turn_ms(1100);
    echo(&c, "m.gguf", "x");
    ENDS(c, RC_OK);
    /* away before anybody looked: the start finds nothing, and comes back by itself
     * although the files are the very same ones as before */
    struct ask d = {0}, e = {0};
    fresh_list();
    MUST(rename(tmp_path("third.gguf"), tmp_path("third.away")) == 0);
    echo(&d, "third.gguf", "x");
    ENDS(d, RC_WEIGHT_IO);
    MUST(d.retry_ms > 0);
    MUST(rename(tmp_path("third.away"), tmp_path("third.gguf")) == 0);
    turn_ms(1200);
    echo(&e, "third.gguf", "x");
    ENDS(e, RC_OK);
}

static void load_and_unload_on_request(void)
{
    struct ask a = {0}, b = {0};
    struct rc_err err = RC_ERR_INIT;

    MUST(sup_fleet_load(fleet, "nope", set_flag, NULL, &err) == RC_NOT_FOUND);
    MUST(sup_fleet_unload(fleet, "nope", set_flag, NULL, &err) == RC_NOT_FOUND);
    for (int again = 0; again < 2; again++) { /* loading a loaded one is no work */
        flag_set = false;
        MUST(sup_fleet_load(fleet, "m", set_flag, NULL, NULL) == RC_OK);
        MUST(!flag_set);
        UNTIL(flag_set);
        MUST(flag_code == RC_OK && is("m.gguf", "ready") && view("m.gguf").loads == 1);
    }
    generate(&a, "m.gguf", "stream=50", 1);
    UNTIL(a.deltas > 0);
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "m.gguf", set_flag, NULL, NULL) == RC_OK);
    MUST(is("m.gguf", "draining"));
    echo(&b, "m.gguf", "x"); /* a newcomer waits for the reload */
    UNTIL(flag_set);
    MUST(flag_code == RC_OK && a.ended && a.code == RC_OK && a.deltas == 50);
    ENDS(b, RC_OK);
    MUST(view("m.gguf").loads == 2 && view("m.gguf").deaths == 0);
    /* in the middle of a load: the waiters are told, and may come back */
    struct ask c = {0};
    echo(&c, "slow.gguf", "x");
    UNTIL(is("slow.gguf", "loading"));
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "slow.gguf", set_flag, NULL, NULL) == RC_OK);
    ENDS(c, RC_UNLOADING);
    MUST(c.retry_ms > 0);
    UNTIL(flag_set && is("slow.gguf", "absent"));
    /* nothing loaded: done at once */
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "slow.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(flag_code == RC_OK);
}

static void a_worker_that_ignores_drain_is_ended(void)
{
    struct ask a = {0};

    tmp_write("deaf.gguf", "ignore-drain");
    fresh_list();
    echo(&a, "deaf.gguf", "x");
    ENDS(a, RC_OK);
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "deaf.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(is("deaf.gguf", "absent") && view("deaf.gguf").deaths == 0);
}

static void idle_models_are_unloaded(void)
{
    struct ask a = {0}, b = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    UNTIL(is("m.gguf", "absent"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 1);
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
}

static void the_longest_idle_makes_room(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    echo(&a, "m.gguf", "x"); /* max_loaded_models is 2 */
    ENDS(a, RC_OK);
    turn_ms(20);
    echo(&b, "slow.gguf", "x");
    ENDS(b, RC_OK);
    echo(&c, "third.gguf", "x");
    ENDS(c, RC_OK);
    MUST(is("m.gguf", "absent") && is("slow.gguf", "ready") && is("third.gguf", "ready"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "evicted") == 1);
    /* both are busy: the newcomer waits until one is not */
    struct ask s1 = {0}, s2 = {0};
    generate(&s1, "slow.gguf", "stream=200", 1);
    generate(&s2, "third.gguf", "forever", 1);
    UNTIL(s1.deltas && s2.deltas);
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
    MUST(s1.ended && s1.code == RC_OK && is("slow.gguf", "absent"));
    sup_ticket_cancel(&s2.ticket);
}

static void a_request_says_how_long_its_model_stays(void)
{
    static const uint64_t none = 0, minute = 60000;
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    keep_alive = &none; /* keep_alive_s is 0: for ever */
    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    UNTIL(is("m.gguf", "absent"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 1);
    echo(&b, "m.gguf", "ms=300"); /* the later word counts */
    keep_alive = &minute;
    echo(&c, "m.gguf", "x");
    ENDS(b, RC_OK);
    ENDS(c, RC_OK);
    turn_ms(1300);
    MUST(is("m.gguf", "ready"));
    keep_alive = &none;
    probe = true; /* says nothing of that */
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
    probe = false;
    turn_ms(300);
    MUST(is("m.gguf", "ready"));
    keep_alive = NULL;
}

static void the_pinned_stay(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    MUST(is("m.gguf", "ready")); /* loaded at start; keep_alive_s is 1, two may be loaded */
    echo(&a, "slow.gguf", "x");
    ENDS(a, RC_OK);
    echo(&b, "third.gguf", "x");
    ENDS(b, RC_OK);
    UNTIL(is("third.gguf", "absent") && is("slow.gguf", "absent"));
    MUST(is("m.gguf", "ready") && view("m.gguf").loads == 1);
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 0 &&
         metric(SUP_M_MODEL_UNLOADS, "m.gguf", "evicted") == 0);
    /* what fits only without the pinned is refused at once, and not for ever */
    tmp_write("third.gguf", "weights=1070000000");
    tmp_write("m.gguf", "weights=30000000");
    fresh_list();
    UNTIL(is("m.gguf", "absent"));
    UNTIL(view("third.gguf").info && view("third.gguf").info->weight_bytes == 1070000000);
    flag_set = false;
    MUST(sup_fleet_load(fleet, "m", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    echo(&c, "third.gguf", "x");
    ENDS(c, RC_LIMIT);
    MUST(strstr(c.msg, "(pin)") && is("third.gguf", "absent"));
}

/* Two clients that ask for one model each, as fast as answers come; one may be loaded. */
static void two_that_take_turns_do_not_load_at_each_request(void)
{
    struct ask a = {0}, b = {0};
    uint64_t end = uv_hrtime() + 4000000000ull;
    long n_a = 0, n_b = 0;

    while (uv_hrtime() < end) {
        if (!a.ticket) {
            n_a += a.ended && a.code == RC_OK;
            memset(&a, 0, sizeof(a));
            echo(&a, "m.gguf", "ms=5");
        }
        if (!b.ticket) {
            n_b += b.ended && b.code == RC_OK;
            memset(&b, 0, sizeof(b));
            echo(&b, "third.gguf", "ms=5");
        }
        UNTIL(!a.ticket || !b.ticket);
    }
    UNTIL(a.ended && b.ended);
    MUST(n_a >= 20 && n_b >= 20); /* both are served, many at a time */
    MUST(view("m.gguf").loads + view("third.gguf").loads <= 7);
    MUST(view("m.gguf").loads >= 2 || view("third.gguf").loads >= 2);
}

static void memory_is_shared_out_by_the_ledger(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    /* 40 MiB: before a model is known it is taken for its file + 1 + 16 MiB */
    tmp_write("huge.gguf", "probe-fail=3");
    MUST(truncate(tmp_path("huge.gguf"), 50 << 20) == 0);
    tmp_write("liar.gguf", "weights=100000000 probe-fail=3");
    fresh_list();
    echo(&a, "huge.gguf", "x");
    ENDS(a, RC_LIMIT);
    MUST(a.retry_ms == 0 && strstr(a.msg, "memory_mb"));
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
    MUST(metric(SUP_M_LEDGER_BYTES, "weights", "host") == 1000); /* measured, not estimated */
    echo(&c, "liar.gguf", "x");                                  /* takes more than there is */
    ENDS(c, RC_LIMIT);
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
}

static void probes_tell_what_a_model_is(void)
{
    tmp_write("odd.gguf", "probe-fail=3");
    fresh_list();
    UNTIL(view("m.gguf").info && view("odd.gguf").last_error[0]);
    MUST(is("m.gguf", "absent") && view("m.gguf").loads == 0 && loads("loads") == 0);
    MUST(strcmp(view("m.gguf").info->family, "fake") == 0);
    MUST(!view("odd.gguf").info && is("odd.gguf", "absent"));
    MUST(strcmp(view("odd.gguf").last_error, "the probe was told to fail") == 0);
}

static void preloads_hold_back_readiness(void)
{
    const char *why = NULL;

    MUST(!sup_fleet_ready(fleet, &why) && why);
    UNTIL(sup_fleet_started(fleet));
    MUST(sup_fleet_ready(fleet, NULL));
    MUST(is("slow.gguf", "ready") && is("absent-weight.gguf", "failed"));
}

static int n_seen;
static char last_id[64];
static void see(void *user, const struct sup_model_view *v)
{
    (void)user;
    MUST(n_seen == 0 || strcmp(last_id, v->id) < 0);
    snprintf(last_id, sizeof(last_id), "%s", v->id);
    n_seen++;
}

static void models_are_listed_in_order(void)
{
    n_seen = 0;
    sup_fleet_each(fleet, see, NULL);
    MUST(n_seen == 4);
    MUST(is("m", "absent") && is("dir/none", "unknown"));
}

static void stderr_of_a_worker_is_not_a_way_to_flood_the_log(void)
{
    struct ask a = {0};

    tmp_write("loud.gguf", "stderr=3000");
    fresh_list();
    echo(&a, "loud.gguf", "x");
    ENDS(a, RC_OK); /* the pipe being full holds nobody up */
}

static void a_thousand_waiting_tasks_are_cheap(void)
{
    struct ask *a = calloc(1000, sizeof(*a));
    long before = 0, after = 0, x;
    FILE *f;
    int ok = 0;

    MUST((f = fopen("/proc/self/statm", "r")) && fscanf(f, "%ld %ld", &x, &before) == 2);
    fclose(f);
    for (int i = 0; i < 1000; i++)
        generate(&a[i], "m.gguf", "forever", 1);
    UNTIL(a[0].deltas > 0);
    MUST((f = fopen("/proc/self/statm", "r")) && fscanf(f, "%ld %ld", &x, &after) == 2);
    fclose(f);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    MUST((after - before) * sysconf(_SC_PAGESIZE) < 8 << 20);
#endif
    for (int i = 0; i < 1000; i++)
        sup_ticket_cancel(&a[i].ticket);
    UNTIL(is("m.gguf", "ready"));
    for (int i = 0; i < 1000; i++)
        ok += !a[i].ended;
    MUST(ok == 1000);
    free(a);
}

static void a_drain_ends_waiters_and_workers(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    generate(&a, "m.gguf", "stream=50", 1);
    UNTIL(a.deltas > 0);
    echo(&b, "slow.gguf", "x");
    UNTIL(is("slow.gguf", "loading"));
    kill(getppid(), SIGTERM);
    UNTIL(stopped);
    sup_fleet_drain(fleet, set_flag_plain, NULL);
    flag_set = false;
    echo(&c, "m.gguf", "x");
    MUST(c.submitted == RC_UNLOADING);
    UNTIL(b.ended);
    MUST(b.code == RC_UNLOADING);
    UNTIL(flag_set);
    MUST(a.ended && a.code == RC_OK && a.deltas == 50); /* streams finish first */
}

/* ------------------------------------------------------------------ the frame */

static void (*body)(void);

static void on_stop(void *user)
{
    (void)user;
    stopped = true;
}

static void drained(void *user)
{
    *(bool *)user = true;
}

static int front(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    int ctl_fd = fds->launcher;
    struct rc_err err = RC_ERR_INIT;
    bool gone = false;

    MUST(uv_loop_init(&loop) == 0);
    metrics = sup_metrics_new();
    MUST(sup_fleet_new(&fleet, &loop, ctl_fd, conf, metrics, on_stop, NULL, &err) == RC_OK);
    if (body != preloads_hold_back_readiness)
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

static void run_case(void (*fn)(void), void (*change)(struct sup_conf *))
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
        _exit(sup_launcher_run(&conf, front_only, 1));
    }
    MUST(waitpid(pid, &status, 0) == pid);
    tmp_remove();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void no_change(struct sup_conf *c)
{
    (void)c;
}
static void short_hang(struct sup_conf *c)
{
    c->hang_timeout_s = 1;
}
static void short_silence(struct sup_conf *c)
{
    c->silence_timeout_ms = 600;
    c->hang_timeout_s = 1;
}
static void short_load(struct sup_conf *c)
{
    c->load_timeout_s = 1;
}
static void small_queue(struct sup_conf *c)
{
    c->max_queue = 4;
}
static void two_models(struct sup_conf *c)
{
    c->max_loaded_models = 2;
}
static void little_memory(struct sup_conf *c)
{
    c->memory_mb = 40;
}
static void short_idle(struct sup_conf *c)
{
    c->keep_alive_s = 1;
}
static void one_model(struct sup_conf *c)
{
    c->max_loaded_models = 1;
}
static void one_pinned(struct sup_conf *c)
{
    static char *list[] = {(char *)"m", NULL};

    c->pin = list;
    c->max_loaded_models = 2;
    c->keep_alive_s = 1;
    c->memory_mb = 1040;
}
static void with_preload(struct sup_conf *c)
{
    static char *list[] = {(char *)"slow.gguf", (char *)"absent-weight", (char *)"nobody", NULL};

    c->preload = list;
}

#define CASES(X)                                                        \
    X(answers_of_every_kind_arrive, no_change)                          \
    X(big_payloads_both_ways, no_change)                                \
    X(thirty_two_cold_requests_load_once, no_change)                    \
    X(a_crash_before_the_first_byte_is_hidden, no_change)               \
    X(a_crash_in_the_middle_is_told, no_change)                         \
    X(twice_present_alone_is_poisoned, no_change)                       \
    X(only_the_guilty_of_a_batch_is_convicted, no_change)               \
    X(a_suspect_is_tried_beside_no_stranger, no_change)                 \
    X(a_failed_load_is_remembered_until_the_files_change, no_change)    \
    X(an_explicit_load_tries_a_failed_model_again, no_change)           \
    X(a_passing_failure_is_tried_again_after_its_time, no_change)       \
    X(a_worker_that_dies_loading_backs_off_and_then_refuses, no_change) \
    X(weights_that_vanish_are_retryable_and_come_back, no_change)       \
    X(a_hang_is_noticed_and_survived, short_hang)                       \
    X(a_long_pass_is_neither_silent_nor_stuck, short_silence)           \
    X(a_load_that_takes_too_long_is_ended, short_load)                  \
    X(a_lying_worker_is_ended, no_change)                               \
    X(a_worker_that_lies_about_itself_is_refused, no_change)            \
    X(errors_of_a_task_are_passed_on, no_change)                        \
    X(a_cancel_reaches_the_worker, no_change)                           \
    X(a_paused_reader_gets_everything_later, no_change)                 \
    X(deadlines_end_tasks_wherever_they_are, no_change)                 \
    X(the_queue_has_an_end, small_queue)                                \
    X(a_flood_does_not_hold_up_others, no_change)                       \
    X(a_full_lane_leaves_the_others_free, no_change)                    \
    X(a_full_queue_makes_room_for_who_has_less, small_queue)            \
    X(who_is_late_in_the_queue_never_starts, no_change)                 \
    X(unknown_models_and_new_ones, no_change)                           \
    X(changed_files_are_loaded_anew, no_change)                         \
    X(files_renamed_away_and_back, no_change)                           \
    X(load_and_unload_on_request, no_change)                            \
    X(a_worker_that_ignores_drain_is_ended, no_change)                  \
    X(idle_models_are_unloaded, short_idle)                             \
    X(the_longest_idle_makes_room, two_models)                          \
    X(a_request_says_how_long_its_model_stays, no_change)               \
    X(the_pinned_stay, one_pinned)                                      \
    X(two_that_take_turns_do_not_load_at_each_request, one_model)       \
    X(memory_is_shared_out_by_the_ledger, little_memory)                \
    X(probes_tell_what_a_model_is, no_change)                           \
    X(preloads_hold_back_readiness, with_preload)                       \
    X(models_are_listed_in_order, no_change)                            \
    X(stderr_of_a_worker_is_not_a_way_to_flood_the_log, no_change)      \
    X(a_thousand_waiting_tasks_are_cheap, no_change)                    \
    X(a_drain_ends_waiters_and_workers, no_change)

#define X(fn, change)               \
    static void case_##fn(void **s) \
    {                               \
        (void)s;                    \
        run_case(fn, change);       \
    }
CASES(X)
#undef X

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define X(fn, change) cmocka_unit_test(case_##fn),
        CASES(X)
#undef X
    };

    if (sodium_init() < 0)
        return 1;
    sup_log_init(getenv("INFERD_TEST_LOG") ? SUP_DEBUG : SUP_ERROR);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
