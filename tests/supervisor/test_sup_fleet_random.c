/* test_sup_fleet_random.c - the fleet against a book of what must hold, at random.
 *
 * Loads, unloads, requests, cancels, kills, lies, failing loads, files that change and a clock
 * that jumps, in any order; after each step the ledger must be the sum of the claims that the
 * book expects, no busy or pinned model may have been evicted, no model may have two workers;
 * at the end of an episode everybody behaves, and then every request must have ended exactly
 * once and no slot may be stuck.
 *
 * A step's choices depend on seed and step alone. An episode runs in a process of its own; when
 * it fails, its steps are left out by halves, quarters, ... as long as it goes on failing, and
 * what is left is printed. INFERD_TEST_STEPS: steps in all (200,000); INFERD_TEST_SEED: the first
 * seed. The parts that answer the fleet are in fleet_sim.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <sys/wait.h>

#include "fleet_util.h"
#include "sup_fleet_impl.h"
/* after the fleet's own headers */
#include "fleet_sim.h"

#define EPISODE 10000u
#define SHRINKS 5000 /* of some milliseconds each */
#define LIMIT_MB 64
#define BESIDE_MB 100 /* of the host, with a device: one unmeasured load at a time */
#define PINNED 0

static struct sup_fleet *fleet;
static struct sup_metrics *metrics;
static uv_loop_t loop;
static uint64_t rnd_state, serial;
static bool loud, over;

/* ---------------------------------------------------------------------- random */

static uint64_t rnd64(void) /* splitmix64 */
{
    uint64_t z = rnd_state += 0x9E3779B97F4A7C15ull;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static unsigned rnd(unsigned n)
{
    return (unsigned)(rnd64() % n);
}

static bool once_in(unsigned n)
{
    return rnd(n) == 0;
}

static void say(const char *what, int a, int b)
{
    if (loud) {
        printf("  %6u  t=%llu ms  %s %d %d\n", sim_shared->step,
               (unsigned long long)(sim_ms - 1000000), what, a, b);
        fflush(stdout);
    }
}

/* -------------------------------------------------------------------- requests */

static void ended(struct sim_req *r)
{
    HOLDS(r->state == SIM_OPEN); /* exactly once, and never after a cancel */
    r->state = SIM_ENDED;
    r->ticket = NULL;
    sim_n_ended++;
    r->state = SIM_FREE;
}

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct sim_req *r = user;

    HOLDS(r->state == SIM_OPEN && !r->paused);
}

static void on_end(void *user, const struct rc_err *err, uint32_t retry_ms)
{
    ended(user);
}

static void submit(bool deadline)
{
    static const uint64_t keep[] = {0, 500, 30000};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    struct rc_err err = RC_ERR_INIT;
    struct sup_task t = {.req_id = "r", .frame = &f, .on_frame = on_frame, .on_end = on_end};
    ProtobufCBinaryData name = {sizeof(serial), (uint8_t *)&serial};
    int i = 0, m = (int)rnd(SIM_MODELS);

    while (i < SIM_REQS && sim_req[i].state != SIM_FREE)
        i++;
    if (i == SIM_REQS)
        return;
    serial++;
    if (once_in(2)) {
        e.data = name;
        f.body_case = IPC__FRAME__BODY_ECHO;
        f.echo = &e;
    } else {
        g.kind = 2;
        g.prompt = name;
        g.max_tokens = 80;
        g.n = 1;
        g.sampling = &s;
        g.return_token_ids = true;
        f.body_case = IPC__FRAME__BODY_GENERATE;
        f.generate = &g;
    }
    t.model = sim_model[m].id;
    t.user = &sim_req[i];
    t.keep_alive = once_in(3) ? &keep[rnd(3)] : NULL;
    t.deadline_us = deadline && once_in(8) ? (sim_ms + rnd(20000)) * 1000 : 0;
    sim_req[i] =
        (struct sim_req){.state = SIM_OPEN, .model = m, .serial = serial, .deadly = once_in(30)};
    say("submit", i, m);
    if (sup_fleet_submit(fleet, &t, &sim_req[i].ticket, &err) != RC_OK)
        sim_req[i].state = SIM_FREE;
}

/* The k-th request in work, from a random one on; -1 = none. */
static int some_open(void)
{
    int at = (int)rnd(SIM_REQS);

    for (int k = 0; k < SIM_REQS; k++)
        if (sim_req[(at + k) % SIM_REQS].state == SIM_OPEN)
            return (at + k) % SIM_REQS;
    return -1;
}

static void cancel(void)
{
    int i = some_open();

    if (i < 0)
        return;
    say("cancel", i, sim_req[i].model);
    sim_req[i].state = SIM_FREE;
    sup_ticket_cancel(&sim_req[i].ticket);
}

static void pause_one(void)
{
    int i = some_open();

    if (i < 0)
        return;
    say("pause", i, !sim_req[i].paused);
    sim_req[i].paused = !sim_req[i].paused;
    sup_ticket_pause(sim_req[i].ticket, sim_req[i].paused);
}

static void on_order(void *user, const struct rc_err *err)
{
    --*(int *)user;
}
static int orders; /* explicit loads and unloads not yet answered */

static void order(void)
{
    int m = (int)rnd(SIM_MODELS);
    bool load = once_in(2);

    say(load ? "load" : "unload", m, 0);
    if ((load ? sup_fleet_load : sup_fleet_unload)(fleet, sim_model[m].id, on_order, &orders,
                                                   NULL) == RC_OK)
        orders++;
}

/* ----------------------------------------------------------------- the others */

static void files(void)
{
    struct sim_model *b = &sim_model[rnd(SIM_MODELS)];

    say("files", (int)(b - sim_model), b->exists);
    if (b->exists && once_in(3)) {
        b->exists = false;
        return;
    }
    b->exists = true;
    b->version++;
    b->bytes = (1 + rnd(40)) << 20;
    b->weights = once_in(10) ? (uint64_t)(1 + rnd(90)) << 20 : b->bytes / 2 + rnd(1 << 20);
}

static struct sim_proc *some_proc(void)
{
    int at = (int)rnd(SIM_PROCS);

    for (int k = 0; k < SIM_PROCS; k++)
        if (sim_proc[(at + k) % SIM_PROCS].used)
            return &sim_proc[(at + k) % SIM_PROCS];
    return NULL;
}

/* good: nobody misbehaves any more. */
static void load_step(struct sim_proc *p, bool good)
{
    static const enum rc codes[] = {RC_FORMAT, RC_WEIGHT_IO, RC_NOMEM, RC_WEIGHT_ABSENT};

    if (good || !once_in(6))
        sim_say_loaded(p);
    else if (once_in(2))
        sim_say_error(p, 0, codes[rnd(4)]);
    else
        sim_die(p);
}

static void task_step(struct sim_proc *p, bool good)
{
    int i = (int)rnd((unsigned)p->n_tasks);
    unsigned what = good ? 0 : rnd(40);
    struct sim_task t = p->task[i];

    if (!good && sim_req[t.req].serial == t.serial && sim_req[t.req].deadly) {
        sim_die(p);
    } else if (what > 5) {
        sim_answer(p, i, p->task[i].generate && once_in(3));
    } else if (what == 0) {
        sim_answer(p, i, false);
    } else if (what == 1) {
        sim_say_error(p, t.id, once_in(2) ? RC_INVALID : RC_BUSY);
        sim_task_del(p, i);
    } else if (what == 2) {
        sim_say_error(p, 0, RC_WEIGHT_IO); /* gives up */
    } else if (what == 3) {
        sim_say_ready(p); /* not legal now */
    } else {
        sim_die(p);
    }
}

static void proc_step(struct sim_proc *p, bool good)
{
    say("worker", p->model, (int)p->pid);
    if (!p->spawned)
        sim_spawn(p, !good && once_in(20), once_in(2));
    else if (p->dead || p->killed)
        sim_exit(p, once_in(2) ? SIGSEGV : 3 << 8);
    else if (!good && once_in(60))
        sim_die(p);
    else if (!p->ready)
        sim_say_ready(p);
    else if (!p->loaded && p->load_seen)
        load_step(p, good);
    else if (p->n_tasks > 0)
        task_step(p, good);
    else if (p->drain_seen)
        sim_exit(p, 0);
    else if (p->loaded && p->beats)
        sim_say_beat(p, once_in(2));
}

static void clock_step(unsigned ms, bool beat)
{
    say("clock", (int)ms, 0);
    for (int i = 0; beat && i < SIM_PROCS; i++)
        if (sim_proc[i].used && sim_proc[i].ready && !sim_proc[i].dead && sim_proc[i].beats)
            sim_say_beat(&sim_proc[i], true);
    while (uv_run(&loop, UV_RUN_NOWAIT), sim_ctl_pump())
        ;
    sim_ms += ms;
    sim_tick_cb(sim_tick);
}

/* Until nobody has anything to say. */
static void settle(void)
{
    bool more = true;

    while (more) {
        uv_run(&loop, UV_RUN_NOWAIT);
        more = fleet && !over && (fleet->kicked || sim_ctl_pump());
        for (int i = 0; i < SIM_PROCS; i++)
            more |= sim_proc_pump(&sim_proc[i]);
    }
}

/* ------------------------------------------------------------------ what holds */

static uint64_t counted(int m, const char *reason)
{
    return (uint64_t)sup_series_value(
        sup_series(metrics, SUP_M_MODEL_UNLOADS, sim_model[m].id, reason));
}

static void check(void)
{
    enum sup_tier main = sim_device ? SUP_TIER_DEVICE : SUP_TIER_HOST;
    enum sup_tier other = sim_device ? SUP_TIER_HOST : SUP_TIER_DEVICE;
    uint64_t sum = sim_sum(), beside = sim_sum_beside();

    HOLDS(sup_ledger_used(&fleet->ledger, main) == sum && sum <= sim_limit);
    HOLDS(sup_ledger_used(&fleet->ledger, other) == beside && beside <= sim_limit_beside);
    for (int m = 0; m < SIM_MODELS; m++) {
        uint64_t evicted = counted(m, "evicted"), idled = counted(m, "idle");

        HOLDS(m != PINNED || evicted + idled == 0);
        if (evicted + idled != sim_model[m].evicted + sim_model[m].idled)
            HOLDS(sim_open_of(m) == 0); /* never while somebody wants it */
        sim_n_evicted += evicted - sim_model[m].evicted;
        sim_model[m].evicted = evicted;
        sim_model[m].idled = idled;
    }
    for (size_t i = 0; i < fleet->n_slots; i++) {
        const struct slot *s = fleet->slot[i];
        bool has = s->state != SUP_SLOT_ABSENT && s->state != SUP_SLOT_COOLING &&
                   s->state != SUP_SLOT_FAILED;

        HOLDS((s->w != NULL) == has);
        /* who waits is in the queue for a worker, or has one */
        HOLDS(s->w || !lnk_empty(&s->demand) ||
              (s->n_suspects + s->n_waiting == 0 && lnk_empty(&s->loaders)));
    }
}

static void step(uint64_t seed, uint32_t n)
{
    unsigned what;
    struct sim_proc *p;

    rnd_state = seed * 0x2545F4914F6CDD1Dull + n * 0x9E3779B97F4A7C15ull;
    rnd64();
    what = rnd(100);
    if (what < 22)
        submit(true);
    else if (what < 26)
        cancel();
    else if (what < 28)
        pause_one();
    else if (what < 30)
        order();
    else if (what < 31 && once_in(2))
        files();
    else if (what < 48)
        clock_step(once_in(50) ? 20000 : 1 + rnd(400), !once_in(10));
    else if ((p = some_proc()))
        proc_step(p, false);
    settle();
    check();
}

/* Everybody behaves from now on: whatever waits must come to an end. */
static void quiet(void)
{
    int left = 1;

    for (int i = 0; i < SIM_REQS; i++)
        if (sim_req[i].state == SIM_OPEN && sim_req[i].paused) {
            sim_req[i].paused = false;
            sup_ticket_pause(sim_req[i].ticket, false);
        }
    for (int turn = 0; turn < 2000 && left > 0; turn++) {
        for (int i = 0; i < SIM_PROCS; i++)
            if (sim_proc[i].used &&
                (!sim_proc[i].loaded || sim_proc[i].n_tasks || sim_proc[i].drain_seen ||
                 sim_proc[i].dead || sim_proc[i].killed || sim_proc[i].probe))
                proc_step(&sim_proc[i], true);
        settle();
        clock_step(100, true);
        settle();
        check();
        left = orders;
        for (int m = 0; m < SIM_MODELS; m++)
            left += sim_open_of(m);
    }
    HOLDS(left == 0); /* nobody waits for ever */
}

static void on_drained(void *user)
{
    over = true;
}

static void drain(void)
{
    sup_fleet_drain(fleet, on_drained, NULL);
    for (int turn = 0; turn < 2000 && !over; turn++) {
        settle();
        for (int i = 0; i < SIM_PROCS && !over; i++)
            if (sim_proc[i].used)
                proc_step(&sim_proc[i], true);
        settle();
        if (!over)
            clock_step(100, true);
    }
    HOLDS(over && sim_sum() == 0 && sup_claim_is_zero(&fleet->ledger.used));
    sup_fleet_free(&fleet);
    sup_metrics_free(&metrics);
    uv_run(&loop, UV_RUN_NOWAIT);
    HOLDS(uv_loop_close(&loop) == 0);
}

/* -------------------------------------------------------------------- episodes */

static void begin(uint64_t seed)
{
    static char *pin[] = {(char *)"m0", NULL};
    static struct sup_conf conf;
    int pair[2];

    conf = test_conf();
    sim_device = seed % 3 == 0;
    conf.backend = sim_device ? (char *)"cuda" : (char *)"cpu";
    conf.memory_mb = sim_device ? BESIDE_MB : LIMIT_MB;
    conf.device_memory_mb = LIMIT_MB;
    sim_limit_beside = (uint64_t)BESIDE_MB << 20;
    conf.max_loaded_models = 3;
    conf.max_queue = 12;
    conf.keep_alive_s = 8;
    conf.hang_timeout_s = 20;
    conf.silence_timeout_ms = 4000;
    conf.load_timeout_s = SIM_LOAD_MS / 1000;
    conf.pin = pin;
    sim_limit = (uint64_t)LIMIT_MB << 20;
    for (int m = 0; m < SIM_MODELS; m++) {
        struct sim_model *b = &sim_model[m];

        snprintf(b->id, sizeof(b->id), "m%d", m);
        b->exists = true;
        b->version = 1;
        b->bytes = (uint64_t)(1 + 5 * m) << 20;
        b->weights = b->bytes;
    }
    sup_log_init((enum sup_level)(SUP_ERROR + 1));
    HOLDS(uv_loop_init(&loop) == 0 && ipc_pair(pair, NULL) == RC_OK);
    HOLDS(fcntl(pair[1], F_SETFL, O_NONBLOCK) == 0);
    sim_ctl = pair[1];
    metrics = sup_metrics_new();
    HOLDS(sup_fleet_new(&fleet, &loop, pair[0], &conf, metrics, NULL, NULL, NULL) == RC_OK);
    settle();
}

static void run(uint64_t seed, uint32_t n, const bool *skip)
{
    begin(seed);
    for (uint32_t i = 0; i < n; i++) {
        sim_shared->step = i;
        if (!skip || !skip[i])
            step(seed, i);
    }
    sim_shared->step = n;
    quiet();
    drain();
    sim_shared->n_ended += sim_n_ended;
    sim_shared->n_spawned += sim_n_spawned;
    sim_shared->n_evicted += sim_n_evicted;
    if (!skip) /* it was no empty exercise */
        HOLDS(n < 2000 || (sim_n_ended > n / 20 && sim_n_spawned > n / 200 && sim_n_evicted > 0));
}

/* True when it holds. */
static bool episode(uint64_t seed, uint32_t n, const bool *skip, bool aloud)
{
    int status;
    pid_t pid;

    fflush(NULL);
    sim_shared->why[0] = '\0';
    if ((pid = fork()) == 0) {
        loud = aloud;
        alarm(600);
        run(seed, n, skip);
        exit(0); /* a sanitizer looks for leaks here */
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return false;
    if (WIFSIGNALED(status) && !sim_shared->why[0])
        snprintf(sim_shared->why, sizeof(sim_shared->why), "signal %d", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void shrink(uint64_t seed, uint32_t n)
{
    bool *skip = calloc(n + 1, sizeof(*skip));
    uint32_t left = 0;
    int tries = 0;

    for (uint32_t size = n / 2; size > 0 && tries < SHRINKS; size /= 2)
        for (uint32_t at = 0; at < n && tries < SHRINKS; at += size, tries++) {
            uint32_t end = at + size < n ? at + size : n;

            if (memchr(skip + at, false, end - at) == NULL)
                continue;
            memset(skip + at, true, end - at);
            if (episode(seed, n, skip, false))
                memset(skip + at, false, end - at); /* these are needed */
        }
    for (uint32_t i = 0; i < n; i++)
        left += !skip[i];
    printf("seed %llu: %u of %u steps are enough:\n", (unsigned long long)seed, left, n);
    episode(seed, n, skip, true);
    printf("  -> %s\n", sim_shared->why);
    free(skip);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);

    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

static void whatever_happens_the_rules_hold(void **state)
{
    uint64_t steps = number("INFERD_TEST_STEPS", 200000), seed = number("INFERD_TEST_SEED", 1);

    (void)state;
    for (; steps > 0; seed++) {
        uint32_t n = 100 + (uint32_t)(seed * 2654435761u % EPISODE); /* some end early */

        n = steps < n ? (uint32_t)steps : n;
        steps -= n;
        if (episode(seed, n, NULL, false))
            continue;
        printf("seed %llu fails at step %u: %s\n", (unsigned long long)seed, sim_shared->step,
               sim_shared->why);
        shrink(seed, sim_shared->step < n ? sim_shared->step + 1 : n);
        fail_msg("INFERD_TEST_SEED=%llu", (unsigned long long)seed);
    }
    printf("%llu requests ended, %llu workers, %llu evictions\n",
           (unsigned long long)sim_shared->n_ended, (unsigned long long)sim_shared->n_spawned,
           (unsigned long long)sim_shared->n_evicted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whatever_happens_the_rules_hold)};

    sim_shared =
        mmap(NULL, sizeof(*sim_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sim_shared == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
