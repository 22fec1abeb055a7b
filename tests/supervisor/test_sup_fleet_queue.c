/* test_sup_fleet_queue.c - tasks with real processes: errors, cancels, slow readers, deadlines,
 * whose turn it is, and the end of the queue. */
#include "fleet_rig.h"

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

/* --------------------------------------------------------- the configurations */

static void small_queue(struct sup_conf *c)
{
    c->max_queue = 4;
}

#define CASES(X)                                             \
    X(errors_of_a_task_are_passed_on, no_change)             \
    X(a_cancel_reaches_the_worker, no_change)                \
    X(a_paused_reader_gets_everything_later, no_change)      \
    X(deadlines_end_tasks_wherever_they_are, no_change)      \
    X(the_queue_has_an_end, small_queue)                     \
    X(a_flood_does_not_hold_up_others, no_change)            \
    X(a_full_lane_leaves_the_others_free, no_change)         \
    X(a_full_queue_makes_room_for_who_has_less, small_queue) \
    X(who_is_late_in_the_queue_never_starts, no_change)      \
    X(a_thousand_waiting_tasks_are_cheap, no_change)         \
    X(a_drain_ends_waiters_and_workers, no_change)

FLEET_MAIN(CASES)
