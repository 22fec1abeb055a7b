/* be_kconf_one.c - one conformance case: oracle and two launches, every byte compared.
 *
 * A case is one image (all buffers between guards, be_kconf_case.c): the oracle runs on
 * a copy in host memory, the kernel on a copy on the device, twice with different poison in the
 * outputs. All bytes are compared, so a write beside an output or into an input is found as well as
 * a wrong value. Tests: tests/backends/test_be_kconf.c
 */
#include <math.h>
#include <stdio.h>

#include "be_kconf_impl.h"

#define POISON_A 0xA5
#define POISON_B 0x5A

static const char *const input_names[] = {
#define X(name, text) text,
    KC_INPUT_MAP(X)
#undef X
};
/* ----------------------------------------------------------- comparison */

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
static size_t first_wrong(struct kc_runner *r, const struct kc_buf *b, const uint8_t *ref,
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

static enum rc check_values(struct kc_runner *r, const struct kc_case *c, struct rc_err *err)
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

static enum rc grow(struct kc_runner *r, size_t n, struct rc_err *err)
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

static enum rc oracle(struct kc_runner *r, const struct kc_case *c, size_t n, struct rc_err *err)
{
    _Alignas(16) uint8_t args[KC_ARGS_BYTES];

    kc_image(c, r->ref, n, POISON_A);
    kc_args(c, (uint64_t)(uintptr_t)r->ref, args);
    return r->fam->run(&r->ir, args, err);
}

static enum rc device(struct kc_runner *r, const struct kc_case *c, size_t n, uint8_t poison,
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

enum rc kc_one_case(struct kc_runner *r, struct kc_case *c, struct rc_err *err)
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
enum rc kc_reach(struct kc_runner *r, struct kc_case *c, struct rc_err *err)
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
        if ((rc = kc_one_case(r, c, err)) != RC_OK)
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
