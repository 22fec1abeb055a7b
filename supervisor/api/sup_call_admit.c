/* sup_call_admit.c - see sup_call_admit.h.
 *
 * Always true: what was charged for a part is settled exactly once; a refusal counts in
 * both metrics of refusals. Change freely: wording.
 * Tests: tests/supervisor/test_sup_api_admit.c, test_sup_api_refunds.c (random sequences)
 */
#include "sup_call_admit.h"

#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#include "sup_call.h"
#include "sup_conf.h"
#include "sup_front.h"
#include "sup_grant.h"
#include "sup_http.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_quota.h"

static struct sup_clock clock_now(void)
{
    struct timespec mono, real;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME_COARSE, &real);
    return (struct sup_clock){
        .mono_us = (uint64_t)mono.tv_sec * 1000000 + (uint64_t)mono.tv_nsec / 1000,
        .unix_s = (uint64_t)real.tv_sec,
    };
}

/* ------------------------------------------------------------------- refusals */

static void count_refusal(struct sup_front *front, const char *label, const char *reason)
{
    sup_series_add(sup_series(front->metrics, SUP_M_TENANT_REFUSED, label, NULL), 1);
    sup_series_add(sup_series(front->metrics, SUP_M_ADMISSION_REFUSED, reason, NULL), 1);
}

void sup_admit_refused(struct sup_call *c, const char *reason)
{
    count_refusal(c->front, sup_tenant_label(c->tenant), reason);
}

static const enum sup_code code_of[SUP_QUOTA_N] = {
    [SUP_QUOTA_CONCURRENCY] = SUP_E_RATE_LIMITED, [SUP_QUOTA_REQUESTS] = SUP_E_RATE_LIMITED,
    [SUP_QUOTA_TOKENS] = SUP_E_RATE_LIMITED,      [SUP_QUOTA_DAY] = SUP_E_QUOTA_EXCEEDED,
    [SUP_QUOTA_NEVER] = SUP_E_REQUEST_OVER_QUOTA, [SUP_QUOTA_TENANTS] = SUP_E_OVERLOADED,
};

static void say(const struct sup_quota_no *no, const char *tenant, struct sup_fail *f)
{
    unsigned long long need = no->need, limit = no->limit, s = (no->retry_ms + 999) / 1000;
    enum sup_code code = code_of[no->why];

    switch (no->why) {
    case SUP_QUOTA_CONCURRENCY:
        sup_fail_set(f, code, no->what,
                     "tenant '%s' has %llu requests in work or waiting, its limit (%s): try again "
                     "when one has ended",
                     tenant, need - 1, no->what);
        break;
    case SUP_QUOTA_NEVER:
        sup_fail_set(f, code, no->what,
                     "this request needs about %llu tokens (input and max_tokens together), the "
                     "limit of tenant '%s' is %llu (%s): make it smaller",
                     need, tenant, limit, no->what);
        f->err.code = RC_TOO_LARGE;
        f->err.n = need;
        f->err.limit = limit;
        break;
    case SUP_QUOTA_TENANTS:
        sup_fail_set(f, code, "",
                     "requests of %llu tenants are in work, the limit: try again later", limit);
        break;
    default:
        sup_fail_set(f, code, no->what,
                     "tenant '%s' has used up %s, which is %llu: try again in %llu s", tenant,
                     no->what, limit, s);
    }
    if (f->retry_ms)
        f->retry_ms = no->retry_ms < UINT32_MAX ? (uint32_t)no->retry_ms : UINT32_MAX;
}

bool sup_admit_server(struct sup_front *front, const struct sup_grant *g, struct sup_fail *f)
{
    const uint64_t max = front->conf->max_concurrent_requests;

    /* a shutdown is the fleet's to refuse: between the false readiness and the drain
     * requests are still served */
    if (!max || front->active < max)
        return true;
    sup_fail_set(f, SUP_E_OVERLOADED, "",
                 "%u requests are in work, the limit is %llu: try again later", front->active,
                 (unsigned long long)max);
    count_refusal(front, sup_quota_label(front->quota, g->tenant), "server");
    return false;
}

static struct sup_limits limits_of(const struct sup_grant *g)
{
    return (struct sup_limits){g->requests_per_minute, g->tokens_per_minute, g->concurrency,
                               g->tokens_per_day};
}

static bool tenant_may(struct sup_front *front, const struct sup_grant *g, struct sup_fail *f)
{
    const struct sup_limits l = limits_of(g);
    const struct sup_clock now = clock_now();
    struct sup_quota_no no;

    if (sup_quota_may(front->quota, g->tenant, &l, &now, &no))
        return true;
    say(&no, g->tenant, f);
    count_refusal(front, sup_quota_label(front->quota, g->tenant), sup_quota_word(no.why));
    return false;
}

bool sup_admit_early(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    const struct sup_grant *g = sup_req_grant(req);
    struct sup_fail f;

    if (sup_admit_server(front, g, &f) && tenant_may(front, g, &f))
        return true;
    sup_admit_refuse(front, req, &f);
    return false;
}

void sup_admit_refuse(struct sup_front *front, struct sup_req *req, const struct sup_fail *f)
{
    sup_admit_headers(front, sup_req_grant(req), req);
    sup_reply_fail(req, sup_req_shape(req), f);
}

/* Series of a tenant, looked up once: finding one by its labels is what a request would feel. */
enum note { NOTE_REQUESTS, NOTE_PROMPT, NOTE_ANSWER, NOTE_TENANTS };

static struct sup_series *series_of(struct sup_front *front, struct sup_tenant *t, enum note n)
{
    static const struct {
        enum sup_metric id;
        const char *kind;
    } rows[] = {
        [NOTE_REQUESTS] = {SUP_M_TENANT_REQUESTS, NULL},
        [NOTE_PROMPT] = {SUP_M_TENANT_TOKENS, "prompt"},
        [NOTE_ANSWER] = {SUP_M_TENANT_TOKENS, "answer"},
        [NOTE_TENANTS] = {SUP_M_TENANTS, NULL},
    };
    void **at = &sup_tenant_notes(t)[n];

    if (!*at)
        *at = sup_series(front->metrics, rows[n].id, sup_tenant_label(t), rows[n].kind);
    return *at;
}

bool sup_admit_begin(struct sup_front *front, const struct sup_grant *g, struct sup_tenant **out,
                     struct sup_fail *f)
{
    const struct sup_limits l = limits_of(g);
    const struct sup_clock now = clock_now();
    struct sup_quota_no no;

    if (!sup_quota_enter(front->quota, g->tenant, &l, &now, out, &no)) {
        say(&no, g->tenant, f);
        count_refusal(front, sup_quota_label(front->quota, g->tenant), sup_quota_word(no.why));
        return false;
    }
    sup_series_add(series_of(front, *out, NOTE_REQUESTS), 1);
    sup_series_set(series_of(front, *out, NOTE_TENANTS), sup_quota_tenants(front->quota));
    return true;
}

void sup_admit_over(struct sup_front *front, struct sup_tenant **t)
{
    if (*t)
        sup_quota_leave(front->quota, t);
}

/* -------------------------------------------------------------------- headers */

/* "90ms", "12s", "6m0s": rounded up. */
static void duration(uint64_t ms, char *out, size_t cap)
{
    unsigned long long s = (ms + 999) / 1000;

    if (ms < 1000)
        snprintf(out, cap, "%llums", (unsigned long long)ms);
    else if (s < 60)
        snprintf(out, cap, "%llus", s);
    else
        snprintf(out, cap, "%llum%llus", s / 60, s % 60);
}

static void headers_of(struct sup_req *req, const char *what, const struct sup_quota_left *l)
{
    char name[48], value[48];

    if (l->limit == 0)
        return;
    snprintf(name, sizeof(name), "x-ratelimit-limit-%s", what);
    snprintf(value, sizeof(value), "%llu", (unsigned long long)l->limit);
    sup_req_set_header(req, name, value);
    snprintf(name, sizeof(name), "x-ratelimit-remaining-%s", what);
    snprintf(value, sizeof(value), "%llu", (unsigned long long)l->left);
    sup_req_set_header(req, name, value);
    snprintf(name, sizeof(name), "x-ratelimit-reset-%s", what);
    duration(l->reset_ms, value, sizeof(value));
    sup_req_set_header(req, name, value);
}

void sup_admit_headers(struct sup_front *front, const struct sup_grant *g, struct sup_req *req)
{
    const struct sup_clock now = clock_now();
    struct sup_quota_left requests, tokens;

    if (!g->requests_per_minute && !g->tokens_per_minute)
        return;
    sup_quota_show(front->quota, g->tenant, &now, &requests, &tokens);
    headers_of(req, "requests", &requests);
    headers_of(req, "tokens", &tokens);
}

/* -------------------------------------------------------------------- charges */

bool sup_admit_charge(struct sup_part *p, const Ipc__Frame *task, struct sup_fail *f)
{
    struct sup_call *c = p->call;
    const struct sup_clock now = clock_now();
    struct sup_cost price = sup_cost_asked(task);
    struct sup_quota_no no;

    if (!sup_quota_charge(c->tenant, sup_cost_all(&price), c->charged, &now, &no)) {
        say(&no, c->grant->tenant, f);
        sup_admit_refused(c, sup_quota_word(no.why));
        return false;
    }
    if (c->req)
        snprintf(c->id, sizeof(c->id), "%s", sup_req_id(c->req));
    p->price = price;
    p->charged = sup_cost_all(&price);
    p->charged_unix_s = now.unix_s;
    c->charged += p->charged;
    return true;
}

static void settle(struct sup_part *p, const struct sup_cost *used)
{
    struct sup_call *c = p->call;
    const struct sup_clock now = clock_now();

    if (!p->charged)
        return;
    sup_quota_settle(c->tenant, p->charged, p->charged_unix_s, sup_cost_all(used), &now);
    p->charged = 0;
    c->used.prompt += used->prompt;
    c->used.answer += used->answer;
    c->used.cached += used->cached;
    c->n_settled++;
    sup_series_add(series_of(c->front, c->tenant, NOTE_PROMPT), (double)used->prompt);
    sup_series_add(series_of(c->front, c->tenant, NOTE_ANSWER), (double)used->answer);
}

void sup_admit_frame(struct sup_part *p, const Ipc__Frame *answer)
{
    struct sup_cost told;

    if (answer->body_case == IPC__FRAME__BODY_DELTA)
        p->n_deltas++;
    else if (sup_cost_told(answer, &told))
        settle(p, &told);
}

void sup_admit_end(struct sup_part *p, bool ok, bool started)
{
    struct sup_cost used = {0};

    if (ok) { /* an answer that says nothing of tokens: the guess stands */
        used.prompt = p->price.prompt;
    } else if (p->n_deltas > 0 || started) {
        used.prompt = p->price.prompt;
        used.answer = p->n_deltas; /* at least a token each */
    }
    settle(p, &used);
}

void sup_admit_record(const struct sup_call *c)
{
    if (c->n_settled == 0 || sup_cost_all(&c->used) == 0 || !c->front->conf->usage_log)
        return;
    SUP_LOG(SUP_INFO, "usage", SUP_S("id", c->id), SUP_S("tenant", c->grant->tenant),
            SUP_S("key_id", c->grant->key_id[0] ? c->grant->key_id : NULL),
            SUP_S("model", c->model_id), SUP_I("prompt_tokens", c->used.prompt),
            SUP_I("cached_tokens", c->used.cached), SUP_I("answer_tokens", c->used.answer));
}

/* ------------------------------------------------------------------ deadlines */

/* "X-Request-Timeout": seconds, at most three places behind the point count. */
static bool read_timeout_s(struct sup_call *c, uint64_t *ms, struct sup_fail *f)
{
    const char *h = sup_req_header(c->req, "x-request-timeout"), *p = h;
    uint64_t whole = 0, part = 0, place = 100;

    *ms = 0;
    if (!h)
        return true;
    for (; *p >= '0' && *p <= '9' && whole <= SUP_TIMEOUT_MAX_MS; p++)
        whole = whole * 10 + (uint64_t)(*p - '0');
    if (p > h && *p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++, place /= 10)
            part += (uint64_t)(*p - '0') * place;
    if (p > h && !*p && p[-1] != '.' && whole <= SUP_TIMEOUT_MAX_MS / 1000)
        *ms = whole * 1000 + part;
    if (*ms >= 1 && *ms <= SUP_TIMEOUT_MAX_MS)
        return true;
    sup_fail_set(f, SUP_E_INVALID_REQUEST, "X-Request-Timeout",
                 "header 'X-Request-Timeout': got \"%.40s\", expected seconds from 0.001 to %d, "
                 "like 2.5",
                 h, SUP_TIMEOUT_MAX_MS / 1000);
    return false;
}

bool sup_admit_deadline(struct sup_call *c, uint64_t asked_ms, struct sup_fail *f)
{
    const char *h = sup_req_header(c->req, "x-request-timeout-ms");
    uint64_t ms = c->front->conf->request_timeout_ms, head_ms = 0, head_s_ms;

    if (!read_timeout_s(c, &head_s_ms, f))
        return false;
    if (h) {
        for (const char *p = h; *p && head_ms <= SUP_TIMEOUT_MAX_MS; p++)
            head_ms =
                *p >= '0' && *p <= '9' ? head_ms * 10 + (uint64_t)(*p - '0') : UINT64_MAX / 16;
        if (head_ms == 0 || head_ms > SUP_TIMEOUT_MAX_MS) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, "X-Request-Timeout-Ms",
                         "header 'X-Request-Timeout-Ms': got \"%.40s\", expected an integer from 1 "
                         "to %d",
                         h, SUP_TIMEOUT_MAX_MS);
            return false;
        }
    }
    if (head_ms && (!ms || head_ms < ms))
        ms = head_ms;
    if (head_s_ms && (!ms || head_s_ms < ms))
        ms = head_s_ms;
    if (asked_ms && (!ms || asked_ms < ms))
        ms = asked_ms;
    if (ms)
        c->deadline_us = sup_req_start_us(c->req) + ms * 1000;
    return true;
}
