/* be_kconf.c - the conformance runner: plans the cases of a kernel, launches, compares.
 *
 * A case is one image (all buffers between guards, be_kconf_case.c): the oracle runs on
 * a copy in host memory, the kernel on a copy on the device, twice with different poison in the
 * outputs. All bytes are compared, so a write beside an output or into an input is found as well as
 * a wrong value. Tests: tests/backends/test_be_kconf.c
 */
#include "be_kconf.h"

#include <math.h>
#include <stdio.h>

#include "be_kconf_impl.h"

#define POISON_A 0xA5
#define POISON_B 0x5A
#define MAX_SHAPES 64

static const char *const input_names[] = {
#define X(name, text) text,
    KC_INPUT_MAP(X)
#undef X
};

/* ------------------------------------------------------------ tolerance */

/* Products of f16 values are exact in f32; what differs is the order (and the width of the
 * intermediate sum) in which a tensor core adds them: at most k / 2 roundings of 2^-23 relative
 * to the largest partial sum. */
static const struct {
    uint8_t op, numerics;
    struct be_kconf_tol tol;
} tols[] = {
    {BE_KOP_LINEAR,
     BE_KNUM_FAST,
     {1e-6, 1e-3,
      "tensor cores add f16 products in their own order; an f16 output rounds to 2^-11"}},
    {BE_KOP_ATTN,
     BE_KNUM_FAST,
     {1e-6, 2e-3,
      "scores from tensor cores differ in their last bits, which may move a softmax "
      "weight by one rounding to f16 (2^-11)"}},
    {BE_KOP_ATTN_PACKED, BE_KNUM_FAST, {1e-6, 2e-3, "as for paged attention"}},
};

struct be_kconf_tol be_kconf_tol_get(const struct be_kdesc *d)
{
    bool attn = d->op == BE_KOP_ATTN || d->op == BE_KOP_ATTN_PACKED;

    /* attention of any head width is computed in plain arithmetic */
    for (size_t i = 0; i < sizeof(tols) / sizeof(tols[0]); i++)
        if (tols[i].op == d->op && tols[i].numerics == d->numerics && (!attn || d->head_dim.fixed))
            return tols[i].tol;
    return (struct be_kconf_tol){0, 0, "the same bits"};
}

/* --------------------------------------------------------------- shapes */

static uint32_t pick(const struct be_kdim *d, uint32_t want)
{
    uint32_t mult = d->mult ? d->mult : 1, v;

    if (want < 1)
        want = 1;
    if (d->max == 0)
        return want;
    if (d->fixed || d->min == d->max)
        return d->min;
    v = want < d->min ? d->min : want;
    v = (v + mult - 1) / mult * mult;
    if (v > d->max)
        v = d->max / mult * mult;
    return v < d->min ? d->min : v;
}

static struct kc_shape pick_all(const struct be_kdesc *d, const struct kc_shape *w)
{
    return (struct kc_shape){.rows = pick(&d->rows, w->rows),
                             .k = pick(&d->k, w->k),
                             .n = pick(&d->n, w->n),
                             .head_dim = pick(&d->head_dim, w->head_dim),
                             .q_heads = pick(&d->q_heads, w->q_heads),
                             .kv_heads = pick(&d->kv_heads, w->kv_heads),
                             .seq = pick(&d->seq, w->seq)};
}

static uint32_t rows_of_class(uint8_t c, uint32_t want)
{
    static const uint32_t lo[] = {1, 1, 2, 9, 65}, hi[] = {UINT32_MAX, 1, 8, 64, UINT32_MAX};

    if (c > BE_KROWS_65)
        return want;
    return want < lo[c] ? lo[c] : want > hi[c] ? hi[c] : want;
}

struct plan {
    struct kc_shape s[MAX_SHAPES];
    uint32_t n;
};

static void plan_add(struct plan *p, const struct kc_builder *b, const struct be_kdesc *d,
                     struct kc_shape w, uint64_t budget)
{
    struct kc_shape s;

    w.rows = rows_of_class(d->rows_class, w.rows);
    s = pick_all(d, &w);
    if (b->work(&s) > budget && p->n > 0)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        if (memcmp(&p->s[i], &s, sizeof(s)) == 0)
            return;
    if (p->n < MAX_SHAPES)
        p->s[p->n++] = s;
}

#define VARY(field, ...)                                             \
    do {                                                             \
        const uint32_t v_[] = {__VA_ARGS__};                         \
        for (size_t i_ = 0; i_ < sizeof(v_) / sizeof(v_[0]); i_++) { \
            struct kc_shape w_ = *base;                              \
            w_.field = v_[i_];                                       \
            plan_add(p, b, d, w_, budget);                           \
        }                                                            \
    } while (0)

/* One dimension leaves the base at a time; the base comes first. */
static void plan_shapes(struct plan *p, const struct kc_builder *b, const struct be_kentry *e,
                        bool quick)
{
    const struct be_kdesc *d = &e->desc;
    const struct kc_shape *base = &b->base;
    uint32_t rt = e->sched.rows_tile, ct = e->sched.cols_tile, kt = e->sched.key_tile;
    uint64_t budget = quick ? 400000 : 12000000;

    p->n = 0;
    plan_add(p, b, d, *base, budget);
    plan_add(p, b, d, (struct kc_shape){1, 1, 1, 1, 1, 1, 1}, budget);
    if (quick) {
        VARY(rows, rt + 1, 2 * rt + 1);
        VARY(n, ct + 1, 3);
        VARY(k, 2 * base->k + 1);
        VARY(seq, kt + 1, KX_SPLIT + 1);
        return;
    }
    VARY(rows, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 66, 100, 129, rt - (rt > 1), rt,
         rt + 1, 2 * rt, 2 * rt + 1);
    VARY(n, 2, 3, 7, 8, 31, 33, 64, 65, 127, 129, 257, 1000, ct - (ct > 1), ct, ct + 1, 2 * ct + 1,
         3 * ct);
    VARY(k, 2, 3, 8, 31, 33, 64, 96, 255, 257, 320, 512, 640, 769, 1024, 1152, 2048, 2049, 2560);
    VARY(head_dim, 16, 32, 64, 96, 128, 256, 512);
    VARY(q_heads, 2, 4, 8, 16);
    VARY(kv_heads, 2, 4, 8);
    VARY(seq, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 700, 1025,
         kt - (kt > 1), kt, kt + 1);
}

/* ----------------------------------------------------------- comparison */

struct runner {
    const struct be_kconf_opts *o;
    const struct be_kfamily *const *families;
    const struct be_kfamily *fam;
    struct be_kir ir;
    struct be_kconf_row *row;
    struct be_kconf_tol tol;
    uint8_t *ref, *got, *got2; /* images; grown as needed */
    size_t cap;
    uint64_t dev;
    size_t dev_cap;
};

static bool as_float(const struct kc_buf *b, const uint8_t *p, size_t i, double *out)
{
    if (b->elem == KC_F32) {
        float f;

        memcpy(&f, p + 4 * i, 4);
        *out = f;
        return true;
    }
    if (b->elem == KC_F16) {
        uint16_t h;

        memcpy(&h, p + 2 * i, 2);
        *out = be_half_to_f32(h);
        return true;
    }
    return false;
}

/* Index of the first element of got that is not within tol of ref, or n. */
static size_t first_wrong(struct runner *r, const struct kc_buf *b, const uint8_t *ref,
                          const uint8_t *got)
{
    size_t es = kc_elem_bytes(b->elem), n = b->n / es, bad = n;
    double top = 0, x, y;

    for (size_t i = 0; i < n; i++)
        if (as_float(b, ref, i, &y) && isfinite(y) && fabs(y) > top)
            top = fabs(y);
    for (size_t i = 0; i < n; i++) {
        double d;

        if (memcmp(ref + i * es, got + i * es, es) == 0)
            continue;
        if (!as_float(b, ref, i, &y) || !as_float(b, got, i, &x)) {
            bad = bad < n ? bad : i;
            continue;
        }
        if (isnan(x) && isnan(y))
            continue;
        d = fabs(x - y);
        if (isfinite(d)) {
            r->row->max_abs = fmax(r->row->max_abs, d);
            if (top > 0)
                r->row->max_rel = fmax(r->row->max_rel, d / top);
        }
        if (r->tol.abs == 0 && r->tol.rel == 0) /* -0 is not 0 here */
            bad = bad < n ? bad : i;
        else if (!(d <= r->tol.abs + r->tol.rel * top))
            bad = bad < n ? bad : i;
    }
    return bad;
}

static enum rc say(const struct kc_case *c, struct rc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static enum rc say(const struct kc_case *c, struct rc_err *err, const char *fmt, ...)
{
    const struct kc_shape *s = &c->s;
    char msg[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    return rc_fail(err, RC_FORMAT,
                   "%s: rows %u k %u n %u head_dim %u heads %u/%u seq %u, %s, %s: %s", c->e->name,
                   s->rows, s->k, s->n, s->head_dim, s->q_heads, s->kv_heads, s->seq,
                   input_names[c->input], c->what[0] ? c->what : "plain", msg);
}

static const char *show(const struct kc_buf *b, const uint8_t *p, size_t i, char out[48])
{
    size_t es = kc_elem_bytes(b->elem);
    double v;
    uint32_t u = 0;

    memcpy(&u, p + i * es, es);
    if (as_float(b, p, i, &v))
        snprintf(out, 48, "%.9g (%0*x)", v, (int)(2 * es), u);
    else
        snprintf(out, 48, "%d (%0*x)", (int32_t)u, (int)(2 * es), u);
    return out;
}

static bool all_bytes(const uint8_t *p, size_t n, uint8_t v)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != v)
            return false;
    return true;
}

/* Guards and gaps: every byte of the image outside the buffers. */
static enum rc check_guards(const struct kc_case *c, const uint8_t *before, const uint8_t *after,
                            size_t n, const char *who, struct rc_err *err)
{
    size_t at = 0;

    for (uint32_t i = 0; i <= c->n_bufs; i++) {
        size_t end = i < c->n_bufs ? c->buf[i].at : n;

        for (; at < end; at++)
            if (before[at] != after[at]) {
                uint32_t near_buf =
                    i > 0 && (i == c->n_bufs || end - at > KC_GUARD / 2) ? i - 1 : i;
                const struct kc_buf *b = &c->buf[near_buf];

                return say(c, err, "%s wrote byte %lld of buffer %u, which has %zu", who,
                           (long long)at - (long long)b->at, near_buf, b->n);
            }
        if (i < c->n_bufs)
            at = c->buf[i].at + c->buf[i].n;
    }
    return RC_OK;
}

static enum rc check_inputs(const struct kc_case *c, const uint8_t *img, const char *who,
                            struct rc_err *err)
{
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        const struct kc_buf *b = &c->buf[i];

        if (b->role == KC_IN && memcmp(b->init, img + b->at, b->n) != 0)
            return say(c, err, "%s changed input buffer %u", who, i);
    }
    return RC_OK;
}

static enum rc check_values(struct runner *r, const struct kc_case *c, struct rc_err *err)
{
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        const struct kc_buf *b = &c->buf[i];
        size_t es = kc_elem_bytes(b->elem), n = b->n / es, bad;
        const uint8_t *ref = r->ref + b->at, *got = r->got + b->at, *two = r->got2 + b->at;
        char x[48], y[48];

        if (b->role == KC_IN || b->role == KC_SCRATCH)
            continue;
        for (size_t k = 0; k < n; k++) {
            if (b->role == KC_OUT && all_bytes(got + k * es, es, POISON_A) &&
                all_bytes(two + k * es, es, POISON_B))
                return say(c, err, "element %zu of output %u is never written", k, i);
            if (memcmp(got + k * es, two + k * es, es) != 0)
                return say(c, err, "element %zu of output %u is %s, then %s in a second launch", k,
                           i, show(b, got, k, x), show(b, two, k, y));
        }
        bad = first_wrong(r, b, ref, got);
        if (bad < n)
            return say(c, err, "element %zu of output %u is %s, expected %s", bad, i,
                       show(b, got, bad, x), show(b, ref, bad, y));
    }
    return RC_OK;
}

/* ---------------------------------------------------------------- launch */

static enum rc grow(struct runner *r, size_t n, struct rc_err *err)
{
    const struct be_kconf_dev *d = r->o->dev;
    enum rc rc;

    if (n > r->cap) {
        uint8_t **p[] = {&r->ref, &r->got, &r->got2};

        r->cap = 0;
        for (size_t i = 0; i < 3; i++) {
            free(*p[i]);
            /* the oracle loads vectors: as aligned as a device's memory */
            if (!(*p[i] = aligned_alloc(256, (n + 255) / 256 * 256)))
                return rc_fail(err, RC_NOMEM, "conformance: %zu bytes for a case", n);
        }
        r->cap = n;
    }
    if (n > r->dev_cap) {
        if (r->dev)
            d->free(d->user, r->dev);
        r->dev = 0;
        r->dev_cap = 0;
        if ((rc = d->alloc(d->user, n, &r->dev, err)) != RC_OK)
            return rc;
        r->dev_cap = n;
    }
    return RC_OK;
}

static enum rc oracle(struct runner *r, const struct kc_case *c, size_t n, struct rc_err *err)
{
    _Alignas(16) uint8_t args[KC_ARGS_BYTES];

    kc_image(c, r->ref, n, POISON_A);
    kc_args(c, (uint64_t)(uintptr_t)r->ref, args);
    return r->fam->run(&r->ir, args, err);
}

static enum rc device(struct runner *r, const struct kc_case *c, size_t n, uint8_t poison,
                      uint8_t *img, struct rc_err *err)
{
    const struct be_kconf_dev *d = r->o->dev;
    _Alignas(16) uint8_t args[KC_ARGS_BYTES];
    struct be_kgrid g = {0};
    enum rc rc;

    kc_image(c, img, n, poison);
    if ((rc = d->upload(d->user, r->dev, img, n, err)) != RC_OK)
        return rc;
    kc_args(c, r->dev, args);
    c->e->grid(c->e, args, &g);
    if ((rc = d->launch(d->user, c->e, &g, args, c->e->args_bytes, err)) != RC_OK)
        return rc;
    memset(img, 0, n); /* what is compared must come from the device */
    return d->download(d->user, img, r->dev, n, err);
}

static enum rc one_case(struct runner *r, struct kc_case *c, struct rc_err *err)
{
    uint8_t *before;
    size_t n;
    enum rc rc;

    if (c->nomem)
        return rc_fail(err, RC_NOMEM, "conformance: no memory for a case of %s", c->e->name);
    if (c->overflow)
        return rc_fail(err, RC_INTERNAL, "conformance: a case of %s has too many buffers",
                       c->e->name);
    if (c->cannot)
        return say(c, err, "%s", c->cannot);
    n = kc_layout(c);
    if ((rc = grow(r, n, err)) != RC_OK || (rc = oracle(r, c, n, err)) != RC_OK ||
        (rc = device(r, c, n, POISON_A, r->got, err)) != RC_OK ||
        (rc = device(r, c, n, POISON_B, r->got2, err)) != RC_OK)
        return rc;
    if (!(before = malloc(n)))
        return rc_fail(err, RC_NOMEM, "conformance: %zu bytes for a case", n);
    kc_image(c, before, n, POISON_A);
    if ((rc = check_guards(c, before, r->ref, n, "the oracle", err)) == RC_OK &&
        (rc = check_inputs(c, r->ref, "the oracle", err)) == RC_OK &&
        (rc = check_guards(c, before, r->got, n, "the kernel", err)) == RC_OK &&
        (rc = check_inputs(c, r->got, "the kernel", err)) == RC_OK)
        rc = check_values(r, c, err);
    free(before);
    return rc;
}

/* ---------------------------------------------------------- reachability */

static void flip(struct kc_case *c, size_t i)
{
    struct kc_buf *b = &c->buf[c->reach_buf];
    uint8_t *p = b->init + i * kc_elem_bytes(b->elem);
    float f = -37.5f;
    uint16_t h = be_f32_to_half(f);

    if (b->elem == KC_F32) {
        memcpy(p, &f, 4);
    } else if (b->elem == KC_F16) {
        memcpy(p, &h, 2);
    } else {
        int8_t was = (int8_t)*p;

        *p = was == 93 ? 21 : 93;
        if (c->reach_sums)
            ((int32_t *)(void *)c->buf[c->reach_sums].init)[i / 32] += (int8_t)*p - was;
    }
}

/* Does row `row` of any output differ between a and b (same: must it not)? Rows of an output are
 * equal parts of it. */
static bool row_differs(const struct kc_case *c, const uint8_t *a, const uint8_t *b, uint32_t row)
{
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        size_t bytes = c->buf[i].n / c->reach_rows, at = c->buf[i].at + bytes * row;

        if (c->buf[i].role != KC_IN && c->buf[i].role != KC_SCRATCH &&
            memcmp(a + at, b + at, bytes) != 0)
            return true;
    }
    return false;
}

/* A changed element of row r changes outputs of that row, and of no other, on the device as by the
 * oracle. c has just passed: r->got holds its results. */
static enum rc reach(struct runner *r, struct kc_case *c, struct rc_err *err)
{
    struct kc_buf *b = &c->buf[c->reach_buf];
    uint32_t cols[] = {0, 1, c->reach_cols / 2, c->reach_cols - 1, kc_below(c, c->reach_cols)};
    size_t n = kc_layout(c), es = kc_elem_bytes(b->elem);
    struct kc_buf *sums = c->reach_sums ? &c->buf[c->reach_sums] : NULL;
    uint8_t *base = malloc(n), *keep = malloc(b->n), *keep_sums = malloc(sums ? sums->n : 1);
    enum rc rc = RC_OK;

    if (!base || !keep || !keep_sums) {
        rc = rc_fail(err, RC_NOMEM, "conformance: %zu bytes for a case", n);
        goto out;
    }
    memcpy(base, r->got, n);
    memcpy(keep, b->init, b->n);
    if (sums)
        memcpy(keep_sums, sums->init, sums->n);
    for (size_t k = 0; k < sizeof(cols) / sizeof(cols[0]); k++) {
        uint32_t row = k == 0 ? 0 : k == 1 ? c->reach_rows - 1 : kc_below(c, c->reach_rows);
        uint32_t col = cols[k] < c->reach_cols ? cols[k] : 0;

        memcpy(b->init, keep, b->n);
        if (sums)
            memcpy(sums->init, keep_sums, sums->n);
        flip(c, (size_t)row * c->reach_cols + col);
        if (memcmp(b->init + (size_t)row * c->reach_cols * es,
                   keep + (size_t)row * c->reach_cols * es, c->reach_cols * es) == 0)
            continue;
        if ((rc = one_case(r, c, err)) != RC_OK)
            goto out;
        for (uint32_t i = 0; i < c->reach_rows; i++) {
            bool differs = row_differs(c, base, r->got, i);

            if (differs == (i == row))
                continue;
            rc = say(c, err, "input (%u, %u) %s output row %u", row, col,
                     differs ? "also changes" : "does not change", i);
            goto out;
        }
    }
out:
    free(base);
    free(keep);
    free(keep_sums);
    return rc;
}

/* ------------------------------------------------------------- an entry */

static uint64_t seed_of(const struct be_kentry *e, uint64_t seed, uint32_t i)
{
    uint64_t h = 1469598103934665603ull ^ seed * 0x9E3779B97F4A7C15ull;

    for (const char *p = e->name; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211ull;
    return h ^ (uint64_t)i << 32;
}

/* Builds and runs one case; the row takes note. Only a lost device or no memory is an error. */
static enum rc run_case(struct runner *r, const struct kc_builder *b, const struct be_kentry *e,
                        const struct kc_shape *s, enum kc_input input, uint32_t variant,
                        bool reachable, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    struct kc_case *c = calloc(1, sizeof(*c));
    enum rc rc;

    if (!c)
        return rc_fail(err, RC_NOMEM, "conformance: no memory for a case");
    *c = (struct kc_case){.e = e,
                          .fam = r->fam,
                          .families = r->families,
                          .s = *s,
                          .input = input,
                          .variant = variant,
                          .rng = seed_of(e, r->o->seed, r->row->n_cases)};
    b->build(c);
    rc = one_case(r, c, &why);
    if (rc == RC_OK && reachable && c->reach_rows)
        rc = reach(r, c, &why);
    kc_deinit(c);
    free(c);
    if (rc == RC_NOMEM || rc == RC_INTERNAL) {
        if (err)
            *err = why;
        return rc;
    }
    if (rc == RC_UNSUPPORTED) {
        r->row->skipped = true;
        snprintf(r->row->why, sizeof(r->row->why), "%s", why.msg);
        return RC_OK;
    }
    r->row->n_cases++;
    if (rc != RC_OK && r->row->n_failed++ == 0)
        snprintf(r->row->why, sizeof(r->row->why), "%s", why.msg);
    return RC_OK;
}

static enum rc run_entry(struct runner *r, const struct be_kentry *e, struct rc_err *err)
{
    const struct kc_builder *b = kc_builder_get(e->desc.op, e->args_bytes);
    bool quick = r->o->level == BE_KCONF_QUICK;
    uint32_t nv, k = 0;
    struct plan p;
    enum rc rc = RC_OK;

    r->tol = be_kconf_tol_get(&e->desc);
    if (!b)
        return rc_fail(err, RC_INTERNAL,
                       "%s: no conformance cases for operation %u with %u bytes of arguments",
                       e->name, e->desc.op, e->args_bytes);
    if (e->min_arch > r->o->dev->arch) {
        r->row->skipped = true;
        snprintf(r->row->why, sizeof(r->row->why), "needs sm_%u, the device is sm_%u", e->min_arch,
                 r->o->dev->arch);
        return RC_OK;
    }
    if ((rc = r->fam->build(e, &r->ir, err)) != RC_OK)
        return rc;
    plan_shapes(&p, b, e, quick);
    nv = b->variants(e);
    for (uint32_t i = 0; i < p.n && rc == RC_OK && !r->row->skipped; i++) /* every shape */
        rc = run_case(r, b, e, &p.s[i], KC_RANDOM, i % nv, i == 0 || (!quick && i < 4), err);
    /* every variant; quick: seven of them */
    for (uint32_t v = 1; v < nv && rc == RC_OK && !r->row->skipped; v += quick ? (nv + 6) / 7 : 1)
        rc = run_case(r, b, e, &p.s[0], KC_RANDOM, v, !quick, err);
    for (uint32_t i = 1; i < KC_INPUT_COUNT; i++) /* every kind of input, on two shapes */
        for (uint32_t s = 0; s < 2 && rc == RC_OK && !r->row->skipped; s++)
            if (b->inputs >> i & 1 && (s == 0 || !quick))
                rc = run_case(r, b, e, &p.s[s ? p.n - 1 : 0], (enum kc_input)i, k++ % nv, false,
                              err);
    return rc;
}

static void runner_deinit(struct runner *r)
{
    const struct be_kconf_dev *d = r->o->dev;

    if (r->dev)
        d->free(d->user, r->dev);
    free(r->ref);
    free(r->got);
    free(r->got2);
}

static bool wanted(const struct be_kconf_opts *o, const struct be_kentry *e)
{
    return !o->only || strstr(e->name, o->only) || strstr(e->lib, o->only);
}

static void say_row(const struct be_kconf_opts *o, const struct be_kconf_row *w)
{
    char line[640];

    if (!o->line)
        return;
    if (w->skipped)
        snprintf(line, sizeof(line), "skip %-34s %s", w->entry->name, w->why);
    else if (w->n_failed)
        snprintf(line, sizeof(line), "FAIL %-34s %u of %u cases: %s", w->entry->name, w->n_failed,
                 w->n_cases, w->why);
    else
        snprintf(line, sizeof(line), "ok   %-34s %4u cases, abs %.3g rel %.3g", w->entry->name,
                 w->n_cases, w->max_abs, w->max_rel);
    o->line(o->user, line);
}

enum rc be_kconf_run(const struct be_kconf_opts *o, struct be_kconf_report *out, struct rc_err *err)
{
    struct be_kconf_report rep = {0};
    struct runner r = {.o = o, .families = o->families ? o->families : be_kfamilies};
    enum rc rc = RC_OK;
    uint32_t total = 0;

    for (uint32_t f = 0; r.families[f]; f++)
        total += r.families[f]->count();
    if (!(rep.rows = calloc(total ? total : 1, sizeof(*rep.rows))))
        return rc_fail(err, RC_NOMEM, "conformance: no memory for %u kernels", total);
    snprintf(rep.device, sizeof(rep.device), "%s", o->dev->name);
    for (uint32_t f = 0; r.families[f] && rc == RC_OK; f++)
        for (uint32_t i = 0; i < r.families[f]->count() && rc == RC_OK; i++) {
            const struct be_kentry *e = r.families[f]->at(i);

            if (!wanted(o, e))
                continue;
            r.fam = r.families[f];
            r.row = &rep.rows[rep.n_kernels++];
            r.row->entry = e;
            if ((rc = run_entry(&r, e, err)) != RC_OK)
                break;
            rep.n_cases += r.row->n_cases;
            rep.n_cases_passed += r.row->n_cases - r.row->n_failed;
            if (r.row->skipped)
                rep.n_skipped++;
            else if (r.row->n_failed || r.row->n_cases == 0)
                rep.n_failed++;
            else
                rep.n_passed++;
            say_row(o, r.row);
        }
    runner_deinit(&r);
    if (rc != RC_OK) {
        rc_wrap(err, "conformance");
        be_kconf_report_deinit(&rep);
        return rc;
    }
    *out = rep;
    return RC_OK;
}

void be_kconf_report_deinit(struct be_kconf_report *r)
{
    free(r->rows);
    *r = (struct be_kconf_report){0};
}

enum rc be_kconf_check(const struct be_kentry *e, const struct be_kconf_dev *dev, double *out_abs,
                       double *out_rel, struct rc_err *err)
{
    static const enum kc_input inputs[] = {KC_RANDOM, KC_ZERO, KC_SATURATED, KC_EXTREME};
    const struct be_kconf_opts o = {.dev = dev, .level = BE_KCONF_QUICK, .seed = 1};
    const struct kc_builder *b = kc_builder_get(e->desc.op, e->args_bytes);
    struct be_kconf_row row = {.entry = e};
    struct runner r = {.o = &o, .families = be_kfamilies, .fam = be_kcat_family(e), .row = &row};
    struct plan p = {.n = 0};
    uint64_t work;
    uint32_t nv, n = 0;
    enum rc rc;

    if (!b || !r.fam)
        return rc_fail(err, RC_NOT_FOUND, "%s: not in the catalog", e->name);
    r.tol = be_kconf_tol_get(&e->desc);
    if ((rc = r.fam->build(e, &r.ir, err)) != RC_OK)
        return rc;
    plan_add(&p, b, &e->desc, b->base, UINT64_MAX);
    work = b->work(&p.s[0]);
    nv = b->variants(e);
    /* a large exact shape (an output head) costs seconds per oracle run: fewer cases */
    for (uint32_t v = 0; v < nv && rc == RC_OK && row.n_failed == 0; v++, n++)
        if (v == 0 || work * n < 400000000)
            rc = run_case(&r, b, e, &p.s[0], KC_RANDOM, v, false, err);
    for (size_t i = 1; i < 4 && rc == RC_OK && row.n_failed == 0; i++, n++)
        if (b->inputs >> inputs[i] & 1 && work * n < 400000000)
            rc = run_case(&r, b, e, &p.s[0], inputs[i], 0, false, err);
    runner_deinit(&r);
    if (rc != RC_OK)
        return rc;
    if (row.skipped)
        return rc_fail(err, RC_UNSUPPORTED, "%s", row.why);
    if (row.n_failed)
        return rc_fail(err, RC_FORMAT, "%s", row.why);
    *out_abs = row.max_abs;
    *out_rel = row.max_rel;
    return RC_OK;
}

const struct kc_builder *kc_builder_get(uint8_t op, uint32_t args_bytes)
{
    const struct {
        const struct kc_builder *b;
        uint32_t n;
    } all[] = {{kc_rows_builders, kc_n_rows_builders},
               {kc_linear_builders, kc_n_linear_builders},
               {kc_attn_builders, kc_n_attn_builders}};

    for (size_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < all[i].n; k++)
            if (all[i].b[k].op == op && all[i].b[k].args_bytes == args_bytes)
                return &all[i].b[k];
    return NULL;
}
