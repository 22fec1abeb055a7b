/* test_sup_api_refunds.c - what a tenant was charged is put right exactly once, whatever happens.
 *
 * Random requests of one to three tasks begin, are taken by a worker, are given back to the queue
 * by one that died, answer, fail, run late, are refused by the queue, lose their client; several
 * at a time, while the bucket drains. After every step what the server says is left, what the day
 * has counted and the metrics equal a model of a few integers. The clock is the test's own.
 * INFERD_TEST_STEPS, INFERD_TEST_SEED; a failure names seed and step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "sup_api_fake.h"
#include "sup_call_admit.h"

#define LIVE 6
#define PARTS 3
#define LIMIT 60000u /* tokens a minute: one a millisecond, so that sums are whole numbers */
#define PROMPT 5u    /* tokens of the prompt below */
#define FLEET_TICKETS 120u

static uint64_t clock_ms;

/* Before libc's: drains and days are the test's. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
    (void)id;
    ts->tv_sec = (time_t)(86400 + clock_ms / 1000);
    ts->tv_nsec = (long)(clock_ms % 1000) * 1000000;
    return 0;
}

struct model_part {
    bool live, started, settled;
    unsigned ticket, n_deltas;
    uint64_t charged;
};

struct model_req {
    struct sup_req req;
    char body[256];
    bool live, stream;
    unsigned n;
    struct model_part part[PARTS];
};

static struct {
    struct model_req r[LIVE];
    uint64_t used, day, prompt, answer, requests; /* what the server must think */
    uint64_t rng, seed;
    unsigned step;
} M;

static unsigned dice(unsigned n)
{
    M.rng ^= M.rng << 13;
    M.rng ^= M.rng >> 7;
    M.rng ^= M.rng << 17;
    return (unsigned)((M.rng >> 11) % n);
}

/* -------------------------------------------------------------------- the model */

static void settle(struct model_part *p, uint64_t prompt, uint64_t answer)
{
    uint64_t used = prompt + answer;

    if (p->settled)
        return;
    p->settled = true;
    M.used = M.used + used > p->charged ? M.used + used - p->charged : 0;
    M.day = M.day + used - p->charged;
    M.prompt += prompt;
    M.answer += answer;
}

/* Its answer will not be complete. */
static void cut(struct model_part *p, bool started)
{
    if (p->live)
        settle(p, started || p->n_deltas ? PROMPT : 0, p->n_deltas);
    p->live = false;
}

static void cut_all(struct model_req *r)
{
    for (unsigned i = 0; i < r->n; i++)
        cut(&r->part[i], r->part[i].started);
    r->live = false;
}

static void compare(const char *did)
{
    const struct sup_limits real = {.tokens_per_minute = LIMIT, .tokens_per_day = 1u << 30};
    const struct sup_clock now = {(86400 * 1000 + clock_ms) * 1000, 86400 + clock_ms / 1000};
    struct sup_limits day = real;
    struct sup_quota_left requests, tokens;
    struct sup_quota_no no;
    uint64_t left = M.used < LIMIT ? LIMIT - M.used : 0;
    unsigned live = 0;
    bool day_ok = true;
    double prompt, answer;

    sup_quota_show(T.front.quota, "default", &now, &requests, &tokens);
    for (unsigned i = 0; i < LIVE; i++)
        live += M.r[i].live;
    /* the day's sum is told by nobody: it is what is refused at it and not one token above;
     * asked only where the minute allows a token */
    if (M.requests && M.used < LIMIT) {
        day.tokens_per_day = M.day + 1;
        day_ok = sup_quota_may(T.front.quota, "default", &day, &now, &no);
        day.tokens_per_day = M.day;
        if (M.day)
            day_ok = day_ok && !sup_quota_may(T.front.quota, "default", &day, &now, &no);
        (void)sup_quota_may(T.front.quota, "default", &real, &now, &no);
    }
    prompt =
        sup_series_value(sup_series(T.front.metrics, SUP_M_TENANT_TOKENS, "default", "prompt"));
    answer =
        sup_series_value(sup_series(T.front.metrics, SUP_M_TENANT_TOKENS, "default", "answer"));
    if ((M.requests && (tokens.left != left || !day_ok)) || T.front.active != live ||
        prompt != (double)M.prompt || answer != (double)M.answer)
        fail_msg("seed %llu, step %u, after %s: %llu tokens left, expected %llu; the day is %s "
                 "%llu; %u requests at work, expected %u; prompt %g of %llu, answer %g of %llu",
                 (unsigned long long)M.seed, M.step, did, (unsigned long long)tokens.left,
                 (unsigned long long)left, day_ok ? "at" : "not at", (unsigned long long)M.day,
                 T.front.active, live, prompt, (unsigned long long)M.prompt, answer,
                 (unsigned long long)M.answer);
}

/* ------------------------------------------------------------------------ steps */

static void begin(struct model_req *r)
{
    static const char *const prompts[PARTS] = {
        "\"12345678901234567890\"", "[\"12345678901234567890\",\"12345678901234567890\"]",
        "[\"12345678901234567890\",\"12345678901234567890\","
        "\"12345678901234567890\"]"};
    unsigned n = 1 + dice(PARTS), max = dice(8) ? 1 + dice(3000) : 30000 + dice(40000),
             refused_at = dice(6) ? PARTS : dice(n), fits;
    uint64_t price = PROMPT + max, first = T.fleet.n_tickets;

    memset(r, 0, sizeof(*r));
    r->n = n;
    r->stream = dice(2);
    snprintf(r->body, sizeof(r->body), "{\"model\":\"gemma\",\"prompt\":%s,\"max_tokens\":%u%s}",
             prompts[n - 1], max, r->stream ? ",\"stream\":true" : "");
    r->req.method = "POST";
    r->req.path = "/v1/completions";
    r->req.body = r->body;
    r->req.n_body = strlen(r->body);
    T.fleet.refuse = refused_at < n ? RC_BUSY : RC_OK;
    T.fleet.refuse_at = T.fleet.n_tickets + refused_at;
    if (M.used < LIMIT)
        M.requests++; /* else by the head alone: never heard of */
    fake_route("POST", r->req.path)(&r->req, &T.front);
    for (fits = 0; fits < n && fits < refused_at; fits++)
        if (M.used + price * (fits + 1) > LIMIT)
            break;
    if (fits < n) {
        /* what was let in of it before is given back: no worker had it */
        assert_true(r->req.done);
        assert_true(r->req.status == 429 || r->req.status == 413 || r->req.status == 503);
        return;
    }
    assert_false(r->req.done);
    r->live = true;
    for (unsigned i = 0; i < n; i++) {
        r->part[i] =
            (struct model_part){.live = true, .ticket = (unsigned)first + i, .charged = price};
        M.used += price;
        M.day += price;
    }
}

static void end_of(struct model_req *r)
{
    bool any = false;

    for (unsigned i = 0; i < r->n; i++)
        any = any || r->part[i].live;
    if (!any)
        r->live = false;
    if (!r->live)
        assert_true(r->req.done);
}

static const char *act(struct model_req *r)
{
    static const enum rc why[] = {RC_DEADLINE, RC_CRASHED, RC_INTERNAL, RC_BUSY, RC_POISONED};
    struct model_part *p = &r->part[dice(r->n)];
    struct sup_ticket *t = p->live ? fake_ticket(p->ticket) : NULL;
    unsigned prompt = 1 + dice(40), answer = dice(4000);

    switch (dice(12)) {
    case 0: /* the client leaves */
        cut_all(r);
        r->req.abort_fn(r->req.abort_user);
        r->req.done = true;
        return "a client that left";
    case 1:
    case 2:
    case 3:
        if (!t)
            return "nothing";
        p->started = t->started = true;
        return "a start";
    case 4: /* its worker died before it said a word: once more, on another one */
        if (!t || p->n_deltas)
            return "nothing";
        p->started = t->started = false;
        return "a worker's death";
    case 5:
    case 6:
    case 7:
        if (!p->started || !t)
            return "nothing";
        p->n_deltas++;
        fake_delta(p->ticket, 0, "x", 0);
        return "a piece of an answer";
    case 8:
        if (!t)
            return "nothing";
        p->started = t->started = false; /* it is over: what counts is what was sent */
        cut(p, false);
        cut_all(r);
        fake_fail(p->ticket, why[dice(sizeof(why) / sizeof(why[0]))], "as the dice say", 0);
        assert_true(r->req.done);
        return "a failure";
    default:
        if (!t || !p->started)
            return "nothing";
        settle(p, prompt, answer);
        p->live = false;
        p->n_deltas++;
        fake_delta(p->ticket, 0, "", 2);
        fake_done(p->ticket, prompt, answer, 0);
        end_of(r);
        return "an answer";
    }
}

/* -------------------------------------------------------------------------- runs */

static void quiet(void)
{
    for (unsigned i = 0; i < LIVE; i++)
        if (M.r[i].live) {
            cut_all(&M.r[i]);
            M.r[i].req.abort_fn(M.r[i].req.abort_user);
            M.r[i].req.done = true;
        }
    compare("the end of all");
    for (unsigned i = 0; i < LIVE; i++)
        sup_json_deinit(&M.r[i].req.answer);
    for (unsigned i = 0; i < T.fleet.n_tickets; i++)
        assert_true(T.fleet.tickets[i].dead);
    T.fleet.n_tickets = 0;
}

static void step(void)
{
    struct model_req *r = &M.r[dice(LIVE)];
    const char *did;

    if (dice(3) == 0) {
        unsigned ms = dice(200);

        clock_ms += ms;
        M.used = M.used > ms ? M.used - ms : 0;
        compare("a while");
    }
    if (r->live) {
        did = act(r);
    } else {
        sup_json_deinit(&r->req.answer);
        begin(r);
        did = "a request";
    }
    compare(did);
    if (T.fleet.n_tickets >= FLEET_TICKETS)
        quiet();
}

static void test_refunds_are_exact(void **state)
{
    const char *steps = getenv("INFERD_TEST_STEPS"), *seed = getenv("INFERD_TEST_SEED");
    unsigned long n = steps ? strtoul(steps, NULL, 10) : 60000;

    (void)state;
    M.seed = M.rng = seed ? strtoull(seed, NULL, 10) : 20261201;
    fake_setup();
    T.conf.request_timeout_ms = 0;
    T.grant->tokens_per_minute = LIMIT;
    T.grant->tokens_per_day = 1u << 30;
    for (M.step = 0; M.step < n; M.step++) {
        if (M.day > (1u << 29)) /* never the reason of a refusal here */
            break;
        step();
    }
    quiet();
    assert_true(M.step == n || M.day > (1u << 29));
    assert_true(M.answer > 0 && M.prompt > 0);
    fake_teardown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refunds_are_exact)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
