/* be_kjit.c - run-time compilation: from a wanted shape to an active kernel, or to the
 * reason why not.
 *
 * One kernel after the other goes down the ladder of states: render, compile (or take the
 * image from the cache), load, check, time against the bundled kernel. Knows keys, records
 * and policy; reaches device and compiler through struct be_kjit_dev only. A cache that
 * cannot be used costs time, never a load.
 *
 * Always true: a kernel is ACTIVE only after its check passed on this very device and
 * driver with this very text, now or in a stored record; after be_kjit_seal nothing
 * compiles. One thread. Change with care: what goes into a key. Source: engine.md 1.5, 1.7.
 * Tests: tests/backends/test_be_kjit.c
 */
#include "be_kjit.h"

#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "be_kart.h"

#define KEY_SCHEMA "inferd kernel jit 1"
#define POLICY "5 pairs after 2 warm-ups, median and worst >= 1.02"
#define POLICY_VERSION 1u
#define SOURCE_MAX (16u << 20)
#define IMAGE_MAX (64u << 20)
#define LOG_MAX (64u << 10)
#define BUDGET_MS 300000u
#define WARM_UPS 2
#define REPEATS 5
#define SPEEDUP_MIN 1.02
#define TRIALS_MAX 2 /* processes that may die during a kernel's trial */
#define WANTS_MAX 4096u
#define REASON_MAX 200
/* half operands, f32 sums: engine.md 1.5 */
#define FAST_ABS 0.002

struct want {
    struct be_kentry base, exact;
    enum be_kjit_state state;
    void *fn;
    double speedup, worst, abs_err, rel_err;
    bool measured, from_cache;
    char reason[REASON_MAX];
};

struct be_kjit {
    struct be_kjit_opts o;
    struct be_kjit_dev dev;
    struct be_kcache *cache; /* NULL: none, or unusable */
    char cache_fault[REASON_MAX];
    struct want *want;
    uint32_t n, cap;
    bool sealed;
    uint64_t compiles, failures, hot_compiles;
    uint64_t start_ms, spent_ms; /* of the run in progress; of those before */
};

bool be_kjit_mode_parse(const char *s, enum be_kjit_mode *out)
{
    static const char *const words[] = {"off", "guarded", "exact", "profile"};

    *out = BE_KJIT_OFF;
    for (unsigned i = 0; s && i < 4; i++)
        if (strcmp(s, words[i]) == 0) {
            *out = (enum be_kjit_mode)i;
            return true;
        }
    return s == NULL || *s == '\0';
}

const char *be_kjit_state_name(enum be_kjit_state s)
{
    static const char *const words[] = {"missing",  "queued", "compiling", "validating", "tuning",
                                        "eligible", "active", "rejected",  "quarantined"};

    return (unsigned)s < sizeof(words) / sizeof(words[0]) ? words[s] : "unknown";
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* ---------------------------------------------------------------------- keys
 * SHA-256 over fields, each after its length: no two lists of fields hash alike. */

static void field(crypto_hash_sha256_state *h, const void *p, size_t n)
{
    uint8_t len[8];

    for (size_t i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n >> (8 * i));
    crypto_hash_sha256_update(h, len, sizeof(len));
    crypto_hash_sha256_update(h, p, n);
}

static void field_s(crypto_hash_sha256_state *h, const char *s)
{
    field(h, s, strlen(s));
}

static void field_u(crypto_hash_sha256_state *h, uint64_t v)
{
    uint8_t b[8];

    for (size_t i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    field(h, b, sizeof(b));
}

static void field_entry(crypto_hash_sha256_state *h, const struct be_kentry *e)
{
    const struct be_ksched *s = &e->sched;
    uint8_t buf[BE_KDESC_MAX_BYTES];

    field_s(h, e->name);
    field_s(h, e->lib);
    field(h, buf, be_kdesc_bytes(&e->desc, buf));
    field_u(h, e->args_bytes);
    field_u(h, e->min_arch);
    field_u(h, s->threads);
    field_u(h, s->rows_tile);
    field_u(h, s->cols_tile);
    field_u(h, s->key_tile);
    field_u(h, s->stages);
    field_u(h, s->slices);
    field_u(h, s->regs);
    field_u(h, s->shared_bytes);
}

struct keys {
    uint8_t compile[32];    /* the image: no device, no policy */
    uint8_t qualify[32];    /* the record: also policy, device, baseline */
    uint8_t quarantine[32]; /* the image on this device and driver */
};

struct job {
    struct want *w;
    struct be_ktext src;
    char arch_opt[48];
    const char *opts[2];
    struct keys k;
    uint8_t *image;
    size_t image_n;
    bool lost; /* the device is */
};

static void make_keys(const struct be_kjit *j, struct job *b, const struct be_ktext *base_src)
{
    crypto_hash_sha256_state h;

    crypto_hash_sha256_init(&h);
    field_s(&h, KEY_SCHEMA);
    field_u(&h, BE_KGEN_VERSION);
    field_u(&h, BE_KCUDA_VERSION);
    field_s(&h, "cuda");
    field_entry(&h, &b->w->exact);
    field_s(&h, j->dev.compiler_id);
    for (size_t i = 0; i < sizeof(b->opts) / sizeof(b->opts[0]); i++)
        field_s(&h, b->opts[i]);
    field(&h, b->src.p, b->src.n);
    crypto_hash_sha256_final(&h, b->k.compile);

    crypto_hash_sha256_init(&h);
    field_s(&h, KEY_SCHEMA " qualification");
    field(&h, b->k.compile, 32);
    field_u(&h, POLICY_VERSION);
    field_s(&h, POLICY);
    field_s(&h, j->dev.device_id);
    field_entry(&h, &b->w->base);
    field(&h, base_src->p, base_src->n);
    crypto_hash_sha256_final(&h, b->k.qualify);

    crypto_hash_sha256_init(&h);
    field_s(&h, KEY_SCHEMA " quarantine");
    field(&h, b->k.compile, 32);
    field_s(&h, j->dev.device_id);
    crypto_hash_sha256_final(&h, b->k.quarantine);
}

/* -------------------------------------------------------------------- record
 * 56 bytes, little endian: magic 8, u32 version, u32 candidate, u32 repeats, u8 correct
 * @20, f64 speed-up @24, f64 worst @32, f64 largest abs error @40, f64 rel @48. */

#define RECORD_BYTES 56u
static const uint8_t record_magic[8] = {'I', 'N', 'F', 'K', 'Q', 'U', 'A', 'L'};

static void put_u32(uint8_t *p, uint32_t v)
{
    for (size_t i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_f64(uint8_t *p, double v)
{
    uint64_t u;

    memcpy(&u, &v, sizeof(u));
    put_u32(p, (uint32_t)u);
    put_u32(p + 4, (uint32_t)(u >> 32));
}

static double get_f64(const uint8_t *p)
{
    uint64_t u = (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
    double v;

    memcpy(&v, &u, sizeof(v));
    return v;
}

static void record_write(uint8_t r[RECORD_BYTES], const struct want *w)
{
    memset(r, 0, RECORD_BYTES);
    memcpy(r, record_magic, 8);
    put_u32(r + 8, 1);
    put_u32(r + 12, 0);
    put_u32(r + 16, REPEATS);
    r[20] = 1;
    put_f64(r + 24, w->speedup);
    put_f64(r + 32, w->worst);
    put_f64(r + 40, w->abs_err);
    put_f64(r + 48, w->rel_err);
}

static bool record_read(const uint8_t *r, size_t n, struct want *w)
{
    if (n != RECORD_BYTES || memcmp(r, record_magic, 8) != 0 || get_u32(r + 8) != 1 ||
        get_u32(r + 16) != REPEATS || r[20] != 1)
        return false;
    w->speedup = get_f64(r + 24);
    w->worst = get_f64(r + 32);
    w->abs_err = get_f64(r + 40);
    w->rel_err = get_f64(r + 48);
    return isfinite(w->speedup) && isfinite(w->worst) && w->worst <= w->speedup &&
           isfinite(w->abs_err) && isfinite(w->rel_err);
}

/* --------------------------------------------------------------- small steps */

static void settle(struct want *w, enum be_kjit_state s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void settle(struct want *w, enum be_kjit_state s, const char *fmt, ...)
{
    va_list ap;

    w->state = s;
    va_start(ap, fmt);
    vsnprintf(w->reason, sizeof(w->reason), fmt, ap);
    va_end(ap);
    for (char *p = w->reason; *p; p++) /* one line in the report */
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

static void cache_put(struct be_kjit *j, const uint8_t key[32], enum be_kcache_kind kind,
                      const void *p, size_t n)
{
    struct rc_err e = RC_ERR_INIT;

    if (j->cache && be_kcache_put(j->cache, key, kind, p, n, &e) != RC_OK)
        snprintf(j->cache_fault, sizeof(j->cache_fault), "%.*s", REASON_MAX - 1, e.msg);
}

static bool cache_get(struct be_kjit *j, const uint8_t key[32], enum be_kcache_kind kind,
                      uint8_t **p, size_t *n)
{
    return j->cache && be_kcache_get(j->cache, key, kind, p, n, NULL) == RC_OK;
}

static void quarantine(struct be_kjit *j, struct job *b, const char *why)
{
    char text[REASON_MAX + 2];
    int n;

    settle(b->w, BE_KJ_QUARANTINED, "%s", why);
    n = snprintf(text, sizeof(text), "=%s", b->w->reason);
    cache_put(j, b->k.quarantine, BE_KC_QUARANTINE, text, (size_t)n);
}

/* What a quarantine entry says: "=reason" is final; a digit counts the trials that began
 * and did not end, because the process died in them. True: do not touch this kernel. */
static bool quarantined(struct be_kjit *j, struct job *b, unsigned *out_trials)
{
    uint8_t *p = NULL;
    size_t n = 0;
    bool yes = false;

    *out_trials = 0;
    if (!cache_get(j, b->k.quarantine, BE_KC_QUARANTINE, &p, &n))
        return false;
    if (n > 0 && p[0] == '=') {
        settle(b->w, BE_KJ_QUARANTINED, "%.*s", (int)(n - 1 < REASON_MAX ? n - 1 : REASON_MAX),
               (const char *)p + 1);
        yes = true;
    } else if (n == 1 && p[0] >= '1' && p[0] <= '9') {
        *out_trials = (unsigned)(p[0] - '0');
        if ((yes = *out_trials >= TRIALS_MAX))
            settle(b->w, BE_KJ_QUARANTINED, "the process died in %u trials of it", *out_trials);
    }
    free(p);
    return yes;
}

static void trial_begin(struct be_kjit *j, struct job *b, unsigned before)
{
    char c = (char)('1' + before);

    cache_put(j, b->k.quarantine, BE_KC_QUARANTINE, &c, 1);
}

static void trial_end(struct be_kjit *j, struct job *b)
{
    if (j->cache && b->w->state != BE_KJ_QUARANTINED)
        be_kcache_del(j->cache, b->k.quarantine, BE_KC_QUARANTINE);
}

/* ------------------------------------------------------------------ the ladder
 * Each step: true = go on; false = the want is settled (or, b->lost, the device is). */

static bool render(struct be_kjit *j, struct job *b)
{
    struct be_ktext base = {0};
    struct rc_err e = RC_ERR_INIT;
    const struct be_kentry *both[2] = {&b->w->exact, &b->w->base};
    struct be_ktext *texts[2] = {&b->src, &base};
    bool ok = true;

    for (int i = 0; ok && i < 2; i++) {
        enum rc rc = j->dev.render ? j->dev.render(j->dev.user, both[i], texts[i], &e)
                                   : be_kcuda_text(both[i]->lib, both[i], texts[i], &e);

        if (rc != RC_OK || texts[i]->failed || !texts[i]->p) {
            settle(b->w, BE_KJ_REJECTED, "no text: %s", rc != RC_OK ? e.msg : "out of memory");
            ok = false;
        } else if (texts[i]->n > SOURCE_MAX) {
            settle(b->w, BE_KJ_REJECTED, "text of %zu bytes, at most %u", texts[i]->n, SOURCE_MAX);
            ok = false;
        }
    }
    if (ok) {
        snprintf(b->arch_opt, sizeof(b->arch_opt), "--gpu-architecture=sm_%u", j->dev.arch);
        b->opts[0] = b->arch_opt;
        b->opts[1] = "--fmad=false"; /* sums are spelt as the contract wants them */
        make_keys(j, b, &base);
    }
    be_ktext_deinit(&base);
    return ok;
}

/* A stored verdict on this device: a loser is settled at once, a winner needs its image. */
static bool known(struct be_kjit *j, struct job *b)
{
    uint8_t *p = NULL;
    size_t n = 0;
    bool ok = cache_get(j, b->k.qualify, BE_KC_QUALIFIED, &p, &n) && record_read(p, n, b->w);

    free(p);
    b->w->measured = b->w->from_cache = ok;
    if (ok && !(b->w->worst >= SPEEDUP_MIN))
        settle(b->w, BE_KJ_REJECTED, "not faster: x%.3f, worst x%.3f (stored)", b->w->speedup,
               b->w->worst);
    return ok;
}

static enum be_kcache_kind image_kind(const uint8_t *p, size_t n)
{
    return n >= 4 && memcmp(p, "\177ELF", 4) == 0 ? BE_KC_CUBIN : BE_KC_PTX;
}

static bool compile(struct be_kjit *j, struct job *b)
{
    struct rc_err e = RC_ERR_INIT;
    char *log;
    enum rc rc;

    b->w->state = BE_KJ_COMPILING;
    if (cache_get(j, b->k.compile, BE_KC_CUBIN, &b->image, &b->image_n) ||
        cache_get(j, b->k.compile, BE_KC_PTX, &b->image, &b->image_n))
        return true;
    if (!(log = calloc(1, LOG_MAX))) {
        settle(b->w, BE_KJ_REJECTED, "out of memory");
        return false;
    }
    j->compiles++;
    rc = j->dev.compile(j->dev.user, b->src.p, b->src.n, b->opts, 2, &b->image, &b->image_n, log,
                        LOG_MAX, &e);
    log[LOG_MAX - 1] = '\0';
    if (rc == RC_OK && b->image_n > IMAGE_MAX) {
        settle(b->w, BE_KJ_REJECTED, "image of %zu bytes, at most %u", b->image_n, IMAGE_MAX);
    } else if (rc == RC_NOMEM) {
        settle(b->w, BE_KJ_REJECTED, "%s", e.msg);
    } else if (rc != RC_OK) {
        char why[REASON_MAX];

        snprintf(why, sizeof(why), "does not compile: %.*s%s%.*s", 85, e.msg, *log ? ": " : "", 85,
                 log);
        quarantine(j, b, why);
    } else {
        cache_put(j, b->k.compile, image_kind(b->image, b->image_n), b->image, b->image_n);
    }
    if (b->w->state != BE_KJ_COMPILING)
        j->failures++;
    free(log);
    return b->w->state == BE_KJ_COMPILING;
}

/* What a device call's failure means for the kernel under trial. */
static bool failed(struct be_kjit *j, struct job *b, enum rc rc, const char *doing,
                   const struct rc_err *e)
{
    char why[REASON_MAX];

    snprintf(why, sizeof(why), "%s: %.*s", doing, REASON_MAX - 40, e->msg);
    if (rc == RC_NOMEM || rc == RC_LIMIT) {
        settle(b->w, BE_KJ_REJECTED, "%s", why);
        return false;
    }
    quarantine(j, b, why);
    b->lost = rc == RC_INTERNAL;
    return false;
}

/* Exact arithmetic has one result. Products of half or tf32 operands on tensor cores, and
 * attention, whose scores are such products, have a tolerance. */
static double tolerance(const struct be_kdesc *d)
{
    bool attn = d->op == BE_KOP_ATTN || d->op == BE_KOP_ATTN_PACKED || d->op == BE_KOP_ATTN_REL;

    return attn || d->numerics != BE_KNUM_EXACT ? FAST_ABS : 0;
}

static bool validate(struct be_kjit *j, struct job *b)
{
    struct want *w = b->w;
    struct rc_err e = RC_ERR_INIT;
    double tol = tolerance(&w->exact.desc);
    enum rc rc;

    w->state = BE_KJ_VALIDATING;
    if ((rc = j->dev.load(j->dev.user, b->image, b->image_n, w->exact.name, &w->fn, &e)) != RC_OK)
        return failed(j, b, rc, "loading", &e);
    if (w->measured) /* checked on this device before, same text, same image */
        return true;
    if ((rc = j->dev.check(j->dev.user, &w->exact, w->fn, &w->abs_err, &w->rel_err, &e)) != RC_OK)
        return failed(j, b, rc, "check", &e);
    if (w->abs_err <= tol) /* false for NaN */
        return true;
    snprintf(e.msg, sizeof(e.msg), "wrong: largest error %g, expected at most %g", w->abs_err, tol);
    quarantine(j, b, e.msg);
    return false;
}

static bool over_budget(const struct be_kjit *j)
{
    return j->spent_ms + (now_ms() - j->start_ms) >= (j->o.budget_ms ? j->o.budget_ms : BUDGET_MS);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* One bundled and one new launch; which goes first alternates, so that a clock that rises
 * or falls favours neither. */
static bool pair(struct be_kjit *j, struct job *b, int i, double *out)
{
    struct want *w = b->w;
    struct rc_err e = RC_ERR_INIT;
    double t[2] = {0, 0}; /* bundled, new */

    for (int k = 0; k < 2; k++) {
        int which = (i + k) & 1;
        enum rc rc = j->dev.time(j->dev.user, which ? &w->exact : &w->base, which ? w->fn : NULL,
                                 &t[which], &e);

        if (rc != RC_OK)
            return failed(j, b, rc, which ? "timing" : "timing the bundled kernel", &e);
    }
    *out = t[0] / t[1];
    return true;
}

static bool tune(struct be_kjit *j, struct job *b)
{
    struct want *w = b->w;
    double s[REPEATS], warm;
    uint8_t rec[RECORD_BYTES];

    w->state = BE_KJ_TUNING;
    if (w->measured)
        return true;
    for (int i = 0; i < WARM_UPS + REPEATS; i++) {
        if (over_budget(j)) {
            settle(w, BE_KJ_QUEUED, "out of budget while measured");
            return false;
        }
        if (!pair(j, b, i, i < WARM_UPS ? &warm : &s[i - WARM_UPS]))
            return false;
    }
    for (int i = 0; i < REPEATS; i++)
        if (!isfinite(s[i]) || s[i] <= 0) {
            settle(w, BE_KJ_REJECTED, "the times measured are not numbers");
            return false;
        }
    qsort(s, REPEATS, sizeof(s[0]), by_value);
    w->speedup = s[REPEATS / 2];
    w->worst = s[0];
    w->measured = true;
    record_write(rec, w);
    cache_put(j, b->k.qualify, BE_KC_QUALIFIED, rec, sizeof(rec));
    if (w->worst >= SPEEDUP_MIN) /* so is the median */
        return true;
    settle(w, BE_KJ_REJECTED, "not faster: x%.3f, worst x%.3f", w->speedup, w->worst);
    return false;
}

static void drop(struct be_kjit *j, struct want *w)
{
    if (w->fn)
        j->dev.unload(j->dev.user, w->fn);
    w->fn = NULL;
}

static void qualify(struct be_kjit *j, struct job *b)
{
    struct want *w = b->w;
    unsigned trials;

    if (!render(j, b) || quarantined(j, b, &trials))
        return;
    if (known(j, b) && w->state == BE_KJ_REJECTED)
        return;
    trial_begin(j, b, trials);
    if (compile(j, b) && validate(j, b) && tune(j, b)) {
        settle(w, BE_KJ_ELIGIBLE, "%s", "");
        if (j->o.mode != BE_KJIT_PROFILE)
            w->state = BE_KJ_ACTIVE;
    }
    trial_end(j, b);
    if (w->state != BE_KJ_ACTIVE && !b->lost)
        drop(j, w);
}

/* --------------------------------------------------------------------- public */

enum rc be_kjit_new(struct be_kjit **out, const struct be_kjit_opts *o,
                    const struct be_kjit_dev *dev, struct rc_err *err)
{
    struct be_kjit *j = calloc(1, sizeof(*j));
    struct rc_err e = RC_ERR_INIT;

    if (!j)
        return rc_fail(err, RC_NOMEM, "run-time compilation: no memory");
    j->o = *o;
    if (dev)
        j->dev = *dev;
    if (o->mode != BE_KJIT_OFF && o->cache_dir && *o->cache_dir &&
        be_kcache_open(&j->cache, o->cache_dir, o->cache_bytes, &e) != RC_OK)
        snprintf(j->cache_fault, sizeof(j->cache_fault), "%.*s", REASON_MAX - 1, e.msg);
    j->o.cache_dir = NULL; /* the caller's */
    *out = j;
    return RC_OK;
}

void be_kjit_free(struct be_kjit **jp)
{
    struct be_kjit *j = jp ? *jp : NULL;

    if (!j)
        return;
    for (uint32_t i = 0; i < j->n; i++)
        drop(j, &j->want[i]);
    be_kcache_close(&j->cache);
    free(j->want);
    free(j);
    *jp = NULL;
}

static struct want *find(const struct be_kjit *j, const struct be_kdesc *d)
{
    uint8_t a[BE_KDESC_MAX_BYTES], b[BE_KDESC_MAX_BYTES];
    size_t n = be_kdesc_bytes(d, a);

    for (uint32_t i = 0; j && i < j->n; i++)
        if (j->want[i].exact.desc.op == d->op && be_kdesc_bytes(&j->want[i].exact.desc, b) == n &&
            memcmp(a, b, n) == 0)
            return &j->want[i];
    return NULL;
}

enum rc be_kjit_want(struct be_kjit *j, const struct be_kentry *base, const struct be_kentry *exact,
                     struct rc_err *err)
{
    if (j->o.mode == BE_KJIT_OFF || find(j, &exact->desc))
        return RC_OK;
    if (j->sealed)
        return rc_fail_what(err, RC_STATE, exact->name,
                            "kernel '%s' is wanted after the load: nothing is compiled any more",
                            exact->name);
    if (j->n == WANTS_MAX)
        return rc_fail(err, RC_TOO_LARGE, "run-time compilation: more than %u kernels", WANTS_MAX);
    if (j->n == j->cap) {
        uint32_t cap = j->cap ? j->cap * 2 : 16;
        struct want *p = realloc(j->want, cap * sizeof(*p));

        if (!p)
            return rc_fail(err, RC_NOMEM, "run-time compilation: no memory");
        j->want = p;
        j->cap = cap;
    }
    j->want[j->n++] = (struct want){.base = *base, .exact = *exact, .state = BE_KJ_QUEUED};
    return RC_OK;
}

static enum rc one(struct be_kjit *j, struct want *w, struct rc_err *err)
{
    struct job b = {.w = w};

    if (!j->dev.compiler_id)
        settle(w, BE_KJ_REJECTED, "there is no compiler here (NVRTC)");
    else
        qualify(j, &b);
    be_ktext_deinit(&b.src);
    free(b.image);
    return b.lost ? rc_fail_what(err, RC_INTERNAL, w->exact.name,
                                 "the device was lost while kernel '%s' was tried: %s",
                                 w->exact.name, w->reason)
                  : RC_OK;
}

/* What is queued, one by one. */
static enum rc run_queue(struct be_kjit *j, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; rc == RC_OK && i < j->n; i++) {
        if (j->want[i].state != BE_KJ_QUEUED)
            continue;
        if (over_budget(j))
            settle(&j->want[i], BE_KJ_QUEUED, "out of budget");
        else
            rc = one(j, &j->want[i], err);
    }
    return rc;
}

enum rc be_kjit_run(struct be_kjit *j, struct rc_err *err)
{
    enum rc rc;

    if (j->o.mode == BE_KJIT_OFF)
        return RC_OK;
    if (j->sealed) {
        j->hot_compiles++;
        return rc_fail(err, RC_STATE, "kernels are compiled while a model loads, never later");
    }
    j->start_ms = now_ms();
    rc = run_queue(j, err);
    j->spent_ms += now_ms() - j->start_ms; /* one budget for all runs of a load */
    if (rc != RC_OK)
        return rc;
    for (uint32_t i = 0; j->o.mode == BE_KJIT_EXACT && i < j->n; i++)
        if (j->want[i].state != BE_KJ_ACTIVE)
            return rc_fail_what(err, RC_UNSUPPORTED, j->want[i].exact.name,
                                "jit is 'exact' and kernel '%s' is %s: %s", j->want[i].exact.name,
                                be_kjit_state_name(j->want[i].state), j->want[i].reason);
    return RC_OK;
}

void be_kjit_seal(struct be_kjit *j)
{
    j->sealed = true;
}

void *be_kjit_get(const struct be_kjit *j, const struct be_kdesc *exact)
{
    const struct want *w = find(j, exact);

    return w && w->state == BE_KJ_ACTIVE ? w->fn : NULL;
}

enum be_kjit_state be_kjit_state_get(const struct be_kjit *j, const struct be_kdesc *exact)
{
    const struct want *w = find(j, exact);

    return w ? w->state : BE_KJ_MISSING;
}

void be_kjit_stats(const struct be_kjit *j, struct be_kstats *io)
{
    struct be_kcache_stats c = {0};

    if (j->cache)
        be_kcache_stats(j->cache, &c);
    io->jit_compiles = j->compiles;
    io->jit_failures = j->failures;
    io->jit_hits = c.hits;
    io->jit_misses = c.misses;
    io->jit_corrupt = c.corruptions;
    io->jit_stores = c.stores;
    io->jit_evictions = c.evictions;
    io->jit_quarantined = io->jit_active = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        io->jit_quarantined += j->want[i].state == BE_KJ_QUARANTINED;
        io->jit_active += j->want[i].state == BE_KJ_ACTIVE;
    }
    io->hot_compiles = j->hot_compiles;
}

char *be_kjit_report(const struct be_kjit *j)
{
    struct be_ktext t = {0};

    if (*j->cache_fault)
        be_ktext_add(&t, "cache: %s\n", j->cache_fault);
    for (uint32_t i = 0; i < j->n; i++) {
        const struct want *w = &j->want[i];

        be_ktext_add(&t, "%s: %s", w->exact.name, be_kjit_state_name(w->state));
        if (w->measured)
            be_ktext_add(&t, ", x%.3f (worst x%.3f), errors %g abs %g rel%s", w->speedup, w->worst,
                         w->abs_err, w->rel_err, w->from_cache ? ", stored" : "");
        be_ktext_add(&t, "%s%s\n", *w->reason ? ": " : "", w->reason);
    }
    be_ktext_add(&t, "%s", ""); /* an empty report is a text too */
    if (t.failed || !t.p) {
        be_ktext_deinit(&t);
        return NULL;
    }
    return t.p;
}
