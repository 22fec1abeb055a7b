/* sup_quota.h - how much each tenant may ask: requests and tokens a minute, requests at
 * once, tokens a day.
 *
 * The two per-minute limits are buckets that hold a minute's worth and drain all the
 * time; a charge may be put right later, also beyond what the bucket holds, and then
 * has to drain first. Days are of UTC. All of it is in memory; what is used of a day can be
 * taken out and put back (sup_quota_file.h), a minute cannot.
 * At most `cap` tenants are remembered; the longest idle one makes room.
 * Pure: the caller says what time it is. Knows no HTTP. Page: docs/admission.md.
 * Tests: tests/supervisor/test_sup_quota.c
 */
#ifndef INFERD_SUP_QUOTA_H
#define INFERD_SUP_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#define SUP_TENANTS_MAX 4096
#define SUP_TENANT_LABELS 200 /* tenants with metrics of their own; others share one */

/* 0 = no limit. */
struct sup_limits {
    uint64_t requests_per_minute, tokens_per_minute, concurrency, tokens_per_day;
};

struct sup_clock {
    uint64_t mono_us; /* never goes back */
    uint64_t unix_s;
};

/* X(id, word in metrics) */
#define SUP_QUOTA_WHYS(X)         \
    X(OK, "ok")                   \
    X(CONCURRENCY, "concurrency") \
    X(REQUESTS, "requests")       \
    X(TOKENS, "tokens")           \
    X(DAY, "day")                 \
    X(NEVER, "never")             \
    X(TENANTS, "tenants")

enum sup_quota_why {
#define X(id, word) SUP_QUOTA_##id,
    SUP_QUOTA_WHYS(X)
#undef X
        SUP_QUOTA_N
};
const char *sup_quota_word(enum sup_quota_why w);

/* A refusal. NEVER: need is more than a whole minute or day allows; TENANTS: as many are
 * at work as can be remembered. */
struct sup_quota_no {
    enum sup_quota_why why;
    uint64_t retry_ms; /* until the same would be allowed, at least 1000; 0 = never */
    uint64_t need, limit;
    const char *what; /* the limit's name */
};

struct sup_quota;
struct sup_tenant;

struct sup_quota *sup_quota_new(uint32_t cap); /* NULL: no memory */
void sup_quota_free(struct sup_quota **q);
uint32_t sup_quota_tenants(const struct sup_quota *q);

/* A request of that tenant begins: counted against concurrency and requests a minute, and
 * refused at once where tokens are used up already. *out lives until sup_quota_leave.
 * False: *no, and nothing was counted. */
bool sup_quota_enter(struct sup_quota *q, const char *tenant, const struct sup_limits *limits,
                     const struct sup_clock *now, struct sup_tenant **out, struct sup_quota_no *no);
/* The same question; nothing is counted, and no tenant made. */
bool sup_quota_may(struct sup_quota *q, const char *tenant, const struct sup_limits *limits,
                   const struct sup_clock *now, struct sup_quota_no *no);
void sup_quota_leave(struct sup_quota *q, struct sup_tenant **t);

/* Takes n tokens. already: what this request has taken before and would give back if it
 * were refused now. False: *no, and nothing was taken. */
bool sup_quota_charge(struct sup_tenant *t, uint64_t n, uint64_t already,
                      const struct sup_clock *now, struct sup_quota_no *no);
/* n tokens were taken at taken_unix_s, `used` were used. Of a day that is over nothing is
 * put right. */
void sup_quota_settle(struct sup_tenant *t, uint64_t n, uint64_t taken_unix_s, uint64_t used,
                      const struct sup_clock *now);

/* Each tenant that has used something of that day (Unix time / 86400). */
void sup_quota_days(const struct sup_quota *q, uint64_t day,
                    void (*fn)(void *user, const char *tenant, uint64_t used), void *user);
/* The other way, before the first request. False: no name of a tenant, or no more can be kept. */
bool sup_quota_restore(struct sup_quota *q, const char *tenant, uint64_t day, uint64_t used);

struct sup_quota_left {
    uint64_t limit, left;
    uint64_t reset_ms; /* until it is as if nothing had been asked */
};
/* For answers; limit 0 = none, or the tenant was never heard of. */
void sup_quota_show(struct sup_quota *q, const char *tenant, const struct sup_clock *now,
                    struct sup_quota_left *requests, struct sup_quota_left *tokens);
/* Its name, or "other": for metrics. */
const char *sup_tenant_label(const struct sup_tenant *t);
const char *sup_quota_label(struct sup_quota *q, const char *tenant);
/* Four words of the caller's, zeroed at first; they live as long as the tenant is known. */
void **sup_tenant_notes(struct sup_tenant *t);

#endif
