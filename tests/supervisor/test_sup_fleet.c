/* test_sup_fleet.c - the life-cycle table with real processes: loads, crashes, failures, hangs and
 * lies of workers, and what the tasks beside them see. */
#include "fleet_rig.h"

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

/* Its reader has seen nothing of it: the death is hidden, and the answer is not mixed with what had
 * come. */
static void a_whole_answer_survives_a_crash_in_its_middle(void)
{
    struct ask a = {0}, b = {0};
    char text[600];

    whole = true;
    snprintf(text, sizeof(text), "crash-mid @%s", tmp_path("once"));
    generate(&a, "m.gguf", text, 1);
    ENDS(a, RC_OK);
    MUST(a.deltas == 3 && a.last == IPC__FRAME__BODY_DONE && view("m.gguf").deaths == 1);
    MUST(metric(SUP_M_TASK_RETRIES, "m.gguf", NULL) == 1);
    generate(&b, "m.gguf", "crash-mid", 1); /* each time: convicted, as before the first byte */
    ENDS(b, RC_POISONED);
    MUST(b.frames == 0);
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

/* --------------------------------------------------------- the configurations */

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

#define CASES(X)                                                        \
    X(answers_of_every_kind_arrive, no_change)                          \
    X(big_payloads_both_ways, no_change)                                \
    X(thirty_two_cold_requests_load_once, no_change)                    \
    X(a_crash_before_the_first_byte_is_hidden, no_change)               \
    X(a_crash_in_the_middle_is_told, no_change)                         \
    X(a_whole_answer_survives_a_crash_in_its_middle, no_change)         \
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
    X(a_worker_that_lies_about_itself_is_refused, no_change)

FLEET_MAIN(CASES)
