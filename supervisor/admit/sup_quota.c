/* sup_quota.c - buckets, days and the table of tenants (see sup_quota.h).
 *
 * A bucket keeps what was used and has not drained yet; what is left is the limit less
 * that, so a key with another limit of the same tenant finds the same use.
 *
 * Always true: a tenant is in one chain of the table, and in the list of idle ones
 * exactly while no request of it is in work; n_tenants <= cap; use is never below 0.
 * Tests: tests/supervisor/test_sup_quota.c
 */
#include "sup_quota.h"

#include <stdlib.h>
#include <string.h>

#include "sup_tenant_name.h"

#define CHAINS 1024 /* a power of two */
#define MINUTE_US 60e6
#define DAY_S 86400
#define ROUNDING 1e-6 /* of a request or token: sums of times are not exact */
#define LATE_MS 1000  /* where only other requests' ends can help */

struct bucket {
    double used;
    uint64_t at_us;
};

struct sup_tenant {
    struct sup_tenant *chain;
    struct sup_tenant *newer, *older; /* while idle */
    const char *label;
    uint32_t hash;
    uint64_t active;
    struct sup_limits limits; /* of the last request */
    struct bucket requests, tokens;
    uint64_t day, day_used;
    void *notes[4];
    char name[SUP_TENANT_MAX + 1];
};

struct sup_quota {
    struct sup_tenant *table[CHAINS];
    struct sup_tenant *newest, *oldest; /* idle ones */
    uint32_t cap, n_tenants, n_labels;
    char labels[SUP_TENANT_LABELS][SUP_TENANT_MAX + 1];
};

const char *sup_quota_word(enum sup_quota_why w)
{
    static const char *const words[] = {
#define X(id, word) word,
        SUP_QUOTA_WHYS(X)
#undef X
    };

    return words[w];
}

/* -------------------------------------------------------------------- buckets */

static void drain(struct bucket *b, uint64_t limit, const struct sup_clock *now)
{
    uint64_t past = now->mono_us > b->at_us ? now->mono_us - b->at_us : 0;

    b->used -= (double)past / MINUTE_US * (double)limit;
    if (b->used < 0 || limit == 0)
        b->used = 0;
    b->at_us += past;
}

static uint64_t ms_to_drain(double n, uint64_t limit)
{
    double ms = n / (double)limit * 60e3;

    return ms <= 0 ? 0 : ms < 1e15 ? (uint64_t)ms + 1 : (uint64_t)1e15;
}

static bool refuse(struct sup_quota_no *no, enum sup_quota_why why, const char *what, uint64_t ms,
                   uint64_t need, uint64_t limit)
{
    *no = (struct sup_quota_no){why, ms, need, limit, what};
    if (why != SUP_QUOTA_NEVER && no->retry_ms < 1000)
        no->retry_ms = 1000;
    return false;
}

/* Would n more fit? */
static bool fits(const struct bucket *b, uint64_t limit, uint64_t n, enum sup_quota_why why,
                 const char *what, struct sup_quota_no *no)
{
    double over = b->used + (double)n - (double)limit;

    if (limit == 0 || over <= ROUNDING)
        return true;
    return refuse(no, why, what, ms_to_drain(over, limit), n, limit);
}

static void new_day(struct sup_tenant *t, const struct sup_clock *now)
{
    uint64_t day = now->unix_s / DAY_S;

    if (day > t->day) {
        t->day = day;
        t->day_used = 0;
    }
}

static bool fits_day(const struct sup_tenant *t, uint64_t n, const struct sup_clock *now,
                     struct sup_quota_no *no)
{
    uint64_t limit = t->limits.tokens_per_day;

    if (limit == 0 || (t->day_used <= limit && n <= limit - t->day_used))
        return true;
    return refuse(no, SUP_QUOTA_DAY, "tokens_per_day", (DAY_S - now->unix_s % DAY_S) * 1000, n,
                  limit);
}

/* ---------------------------------------------------------------------- table */

struct sup_quota *sup_quota_new(uint32_t cap)
{
    struct sup_quota *q = calloc(1, sizeof(*q));

    if (q)
        q->cap = cap;
    return q;
}

void sup_quota_free(struct sup_quota **qp)
{
    struct sup_quota *q = *qp;

    *qp = NULL;
    for (size_t i = 0; q && i < CHAINS; i++)
        while (q->table[i]) {
            struct sup_tenant *t = q->table[i];

            q->table[i] = t->chain;
            free(t);
        }
    free(q);
}

uint32_t sup_quota_tenants(const struct sup_quota *q)
{
    return q->n_tenants;
}

static void idle_out(struct sup_quota *q, struct sup_tenant *t)
{
    *(t->newer ? &t->newer->older : &q->newest) = t->older;
    *(t->older ? &t->older->newer : &q->oldest) = t->newer;
    t->newer = t->older = NULL;
}

static void idle_in(struct sup_quota *q, struct sup_tenant *t)
{
    t->newer = NULL;
    t->older = q->newest;
    *(q->newest ? &q->newest->newer : &q->oldest) = t;
    q->newest = t;
}

static void forget(struct sup_quota *q, struct sup_tenant *t)
{
    struct sup_tenant **at = &q->table[t->hash % CHAINS];

    idle_out(q, t);
    while (*at != t)
        at = &(*at)->chain;
    *at = t->chain;
    q->n_tenants--;
    free(t);
}

/* Names are given out once and for all: a tenant that comes back finds its own. */
static const char *label_of(struct sup_quota *q, const char *name)
{
    for (uint32_t i = 0; i < q->n_labels; i++)
        if (strcmp(q->labels[i], name) == 0)
            return q->labels[i];
    if (q->n_labels == SUP_TENANT_LABELS || !sup_tenant_copy(q->labels[q->n_labels], name))
        return "other";
    return q->labels[q->n_labels++];
}

static struct sup_tenant *find(const struct sup_quota *q, const char *name, uint32_t h)
{
    struct sup_tenant *t = q->table[h % CHAINS];

    while (t && (t->hash != h || strcmp(t->name, name) != 0))
        t = t->chain;
    return t;
}

static struct sup_tenant *find_or_make(struct sup_quota *q, const char *name)
{
    uint32_t h = sup_tenant_hash(name);
    struct sup_tenant *t = find(q, name, h);
    char kept[sizeof(t->name)];

    if (t || !sup_tenant_copy(kept, name))
        return t;
    if (q->n_tenants >= q->cap && q->oldest)
        forget(q, q->oldest);
    if (q->n_tenants >= q->cap || !(t = calloc(1, sizeof(*t))))
        return NULL;
    memcpy(t->name, kept, sizeof(kept));
    t->hash = h;
    t->label = label_of(q, name);
    t->chain = q->table[h % CHAINS];
    q->table[h % CHAINS] = t;
    q->n_tenants++;
    idle_in(q, t);
    return t;
}

const char *sup_tenant_label(const struct sup_tenant *t)
{
    return t->label;
}

void **sup_tenant_notes(struct sup_tenant *t)
{
    return t->notes;
}

const char *sup_quota_label(struct sup_quota *q, const char *tenant)
{
    const struct sup_tenant *t = find(q, tenant, sup_tenant_hash(tenant));

    return t ? t->label : label_of(q, tenant);
}

/* ------------------------------------------------------------------- requests */

static void turn_to(struct sup_tenant *t, const struct sup_clock *now)
{
    drain(&t->requests, t->limits.requests_per_minute, now);
    drain(&t->tokens, t->limits.tokens_per_minute, now);
    new_day(t, now);
}

static bool may_enter(const struct sup_tenant *t, const struct sup_clock *now,
                      struct sup_quota_no *no)
{
    const struct sup_limits *l = &t->limits;

    if (l->concurrency && t->active >= l->concurrency)
        return refuse(no, SUP_QUOTA_CONCURRENCY, "concurrency", LATE_MS, t->active + 1,
                      l->concurrency);
    return fits(&t->requests, l->requests_per_minute, 1, SUP_QUOTA_REQUESTS, "requests_per_minute",
                no) &&
           fits(&t->tokens, l->tokens_per_minute, 1, SUP_QUOTA_TOKENS, "tokens_per_minute", no) &&
           fits_day(t, 1, now, no);
}

bool sup_quota_enter(struct sup_quota *q, const char *tenant, const struct sup_limits *limits,
                     const struct sup_clock *now, struct sup_tenant **out, struct sup_quota_no *no)
{
    struct sup_tenant *t = find_or_make(q, tenant);

    if (!t)
        return refuse(no, SUP_QUOTA_TENANTS, "tenants", LATE_MS, (uint64_t)q->cap + 1, q->cap);
    turn_to(t, now);
    t->limits = *limits;
    if (!may_enter(t, now, no)) {
        if (t->active == 0) { /* it was heard of just now */
            idle_out(q, t);
            idle_in(q, t);
        }
        return false;
    }
    if (t->active++ == 0)
        idle_out(q, t);
    if (limits->requests_per_minute)
        t->requests.used += 1;
    *out = t;
    return true;
}

bool sup_quota_may(struct sup_quota *q, const char *tenant, const struct sup_limits *limits,
                   const struct sup_clock *now, struct sup_quota_no *no)
{
    struct sup_tenant *t = find(q, tenant, sup_tenant_hash(tenant));

    if (!t)
        return true;
    turn_to(t, now);
    t->limits = *limits;
    return may_enter(t, now, no);
}

void sup_quota_leave(struct sup_quota *q, struct sup_tenant **tp)
{
    struct sup_tenant *t = *tp;

    *tp = NULL;
    if (t && --t->active == 0)
        idle_in(q, t);
}

bool sup_quota_charge(struct sup_tenant *t, uint64_t n, uint64_t already,
                      const struct sup_clock *now, struct sup_quota_no *no)
{
    const struct sup_limits *l = &t->limits;
    uint64_t all = n > UINT64_MAX - already ? UINT64_MAX : n + already;

    turn_to(t, now);
    if (l->tokens_per_minute && all > l->tokens_per_minute)
        return refuse(no, SUP_QUOTA_NEVER, "tokens_per_minute", 0, all, l->tokens_per_minute);
    if (l->tokens_per_day && all > l->tokens_per_day)
        return refuse(no, SUP_QUOTA_NEVER, "tokens_per_day", 0, all, l->tokens_per_day);
    if (!fits(&t->tokens, l->tokens_per_minute, n, SUP_QUOTA_TOKENS, "tokens_per_minute", no) ||
        !fits_day(t, n, now, no))
        return false;
    if (l->tokens_per_minute)
        t->tokens.used += (double)n;
    t->day_used = t->day_used > UINT64_MAX - n ? UINT64_MAX : t->day_used + n;
    return true;
}

void sup_quota_settle(struct sup_tenant *t, uint64_t n, uint64_t taken_unix_s, uint64_t used,
                      const struct sup_clock *now)
{
    turn_to(t, now);
    if (t->limits.tokens_per_minute) {
        t->tokens.used += (double)used - (double)n;
        if (t->tokens.used < 0)
            t->tokens.used = 0;
    }
    if (taken_unix_s / DAY_S < t->day)
        return;
    t->day_used = t->day_used > n ? t->day_used - n : 0;
    t->day_used = t->day_used > UINT64_MAX - used ? UINT64_MAX : t->day_used + used;
}

void sup_quota_days(const struct sup_quota *q, uint64_t day,
                    void (*fn)(void *user, const char *tenant, uint64_t used), void *user)
{
    for (size_t i = 0; i < CHAINS; i++)
        for (const struct sup_tenant *t = q->table[i]; t; t = t->chain)
            if (t->day == day && t->day_used > 0)
                fn(user, t->name, t->day_used);
}

bool sup_quota_restore(struct sup_quota *q, const char *tenant, uint64_t day, uint64_t used)
{
    struct sup_tenant *t = find_or_make(q, tenant);

    if (!t)
        return false;
    t->day = day;
    t->day_used = used;
    return true;
}

static void show(const struct bucket *b, uint64_t limit, struct sup_quota_left *out)
{
    double left = (double)limit - b->used + ROUNDING;

    *out = (struct sup_quota_left){.limit = limit};
    if (limit == 0)
        return;
    out->left = left > 0 ? (uint64_t)left : 0;
    out->reset_ms = ms_to_drain(b->used - ROUNDING, limit);
}

void sup_quota_show(struct sup_quota *q, const char *tenant, const struct sup_clock *now,
                    struct sup_quota_left *requests, struct sup_quota_left *tokens)
{
    struct sup_tenant *t = find(q, tenant, sup_tenant_hash(tenant));

    *requests = *tokens = (struct sup_quota_left){0};
    if (!t)
        return;
    turn_to(t, now);
    show(&t->requests, t->limits.requests_per_minute, requests);
    show(&t->tokens, t->limits.tokens_per_minute, tokens);
}
