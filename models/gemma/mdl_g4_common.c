/* mdl_g4_common.c - what eyes and ears share: names and checks of their weights, clipped
 * linears, norms. Knows no tower. Tests: tests/models/test_mdl_g4_towers.c */
#include "mdl_g4_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------- plan */

static void name_it(struct g4_names *p, const char *tail, const char *fmt, va_list ap)
{
    char rest[128];

    vsnprintf(rest, sizeof(rest), fmt, ap);
    snprintf(p->name, sizeof(p->name), "%s%s%s", p->prefix, rest, tail);
}

enum rc g4_vector(struct g4_names *p, uint64_t n, struct be_weight **slot, struct rc_err *err,
                  const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    name_it(p, "", fmt, ap);
    va_end(ap);
    return mdl_plan_weight(p->plan, p->name, BE_USE_VECTOR, 1, n, 0, 0, slot, err);
}

enum rc g4_matrix(struct g4_names *p, uint64_t rows, uint64_t cols, struct be_weight **slot,
                  struct rc_err *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    name_it(p, "", fmt, ap);
    va_end(ap);
    return mdl_plan_weight(p->plan, p->name, BE_USE_LINEAR, 2, rows, cols, 0, slot, err);
}

/* A stored bound: shape [], one number, infinite perhaps. Read when weights will be. */
static enum rc bound(struct g4_names *p, const char *stem, const char *tail, float *out,
                     struct rc_err *err)
{
    const struct mdl_tensor *t;
    char name[256];

    snprintf(name, sizeof(name), "%s.%s", stem, tail);
    if (!(t = mdl_file_find(p->plan->file, name)))
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name, "tensor '%s' is missing", name);
    if (t->n_dims > 1 || (t->n_dims == 1 && t->dims[0] != 1) || be_dtype_block(t->dtype) != 1)
        return rc_fail_what(err, RC_FORMAT, name,
                            "tensor '%s': %u dims of type %s, expected one float number", name,
                            t->n_dims, be_dtype_name(t->dtype));
    if (p->plan->be)
        be_dtype_to_f32(t->dtype, t->data, out, 1);
    return RC_OK;
}

static enum rc bounds(struct g4_names *p, const char *stem, const char *side, float *lo, float *hi,
                      struct rc_err *err)
{
    char tail[32];
    enum rc rc;

    snprintf(tail, sizeof(tail), "%s_min", side);
    if ((rc = bound(p, stem, tail, lo, err)) != RC_OK)
        return rc;
    snprintf(tail, sizeof(tail), "%s_max", side);
    if ((rc = bound(p, stem, tail, hi, err)) != RC_OK)
        return rc;
    if (!(*lo <= *hi)) /* NaN too */
        return rc_fail_what(err, RC_FORMAT, stem, "'%s': %s is clamped to %g..%g", stem, side,
                            (double)*lo, (double)*hi);
    return RC_OK;
}

enum rc g4_clipped(struct g4_names *p, uint64_t rows, uint64_t cols, bool clipped,
                   struct g4_linear *out, struct rc_err *err, const char *fmt, ...)
{
    char stem[sizeof(p->name)];
    va_list ap;
    enum rc rc;

    va_start(ap, fmt);
    name_it(p, "", fmt, ap);
    va_end(ap);
    memcpy(stem, p->name, sizeof(stem));
    if ((rc = g4_matrix(p, rows, cols, &out->w, err, "%s.linear.weight",
                        stem + strlen(p->prefix))) != RC_OK)
        return rc;
    out->in_lo = out->out_lo = -INFINITY;
    out->in_hi = out->out_hi = INFINITY;
    if (clipped && ((rc = bounds(p, stem, "input", &out->in_lo, &out->in_hi, err)) != RC_OK ||
                    (rc = bounds(p, stem, "output", &out->out_lo, &out->out_hi, err)) != RC_OK))
        return rc;
    return RC_OK;
}

/* ---------------------------------------------------------------------- pass */

static bool clamps(float lo, float hi)
{
    return lo > -INFINITY || hi < INFINITY;
}

static enum rc clamp(struct be_ctx *be, const struct be_tensor *x, struct be_tensor *out,
                     uint32_t n, float lo, float hi, struct rc_err *err)
{
    struct be_act_args a = {.x = x, .out = out, .n = n, .kind = BE_ACT_CLAMP, .lo = lo, .hi = hi};

    return be_act(be, &a, err);
}

enum rc g4_apply_all(struct be_ctx *be, struct be_tensor *x, const struct g4_linear *const *l,
                     struct be_tensor *const *out, uint32_t n_linears, struct be_tensor *room,
                     uint32_t n, struct rc_err *err)
{
    struct be_linear_args a = {.x = x, .n = n, .epi = BE_EPI_NONE};
    enum rc rc;

    for (uint32_t i = 0; i < n_linears; i++) {
        a.part[a.n_parts].w = l[i]->w;
        a.part[a.n_parts++].out = out[i];
        if (i + 1 < n_linears && l[i]->in_lo == l[i + 1]->in_lo && l[i]->in_hi == l[i + 1]->in_hi)
            continue;
        a.x = x;
        if (clamps(l[i]->in_lo, l[i]->in_hi)) {
            if ((rc = clamp(be, x, room, n, l[i]->in_lo, l[i]->in_hi, err)) != RC_OK)
                return rc;
            a.x = room;
        }
        if ((rc = be_linear(be, &a, err)) != RC_OK)
            return rc;
        a.n_parts = 0;
    }
    for (uint32_t i = 0; i < n_linears; i++)
        if (clamps(l[i]->out_lo, l[i]->out_hi) &&
            (rc = clamp(be, out[i], out[i], n, l[i]->out_lo, l[i]->out_hi, err)) != RC_OK)
            return rc;
    return RC_OK;
}

enum rc g4_apply(struct be_ctx *be, struct be_tensor *x, const struct g4_linear *l,
                 struct be_tensor *room, struct be_tensor *out, uint32_t n, struct rc_err *err)
{
    return g4_apply_all(be, x, &l, &out, 1, room, n, err);
}

enum rc g4_act(struct be_ctx *be, struct be_tensor *x, enum be_act_kind kind, uint32_t n,
               struct rc_err *err)
{
    struct be_act_args a = {.x = x, .out = x, .n = n, .kind = kind};

    return be_act(be, &a, err);
}

void g4_show(const struct mdl_g4_trace *t, const char *name, const struct be_tensor *x, uint32_t n)
{
    if (t->fn)
        t->fn(t->user, name, x, n);
}

void g4_show_layer(const struct mdl_g4_trace *t, uint32_t layer, const struct be_tensor *x,
                   uint32_t n)
{
    char name[32];

    snprintf(name, sizeof(name), "layer%u", layer);
    g4_show(t, name, x, n);
}

/* -------------------------------------------------------------------- config */

enum rc g4_cfg_is(const json_t *obj, const char *what, const char *key, double want,
                  struct rc_err *err)
{
    const json_t *v = obj ? json_object_get(obj, key) : NULL;

    if (!v || json_is_null(v))
        return RC_OK;
    if (json_is_boolean(v)
            ? json_is_true(v) == (want != 0)
            : json_is_number(v) && fabs(json_number_value(v) - want) <= 1e-9 * fabs(want))
        return RC_OK;
    return rc_fail_what(err, RC_UNSUPPORTED, key,
                        "%s: '%s' is not %g, and nothing else is computed", what, key, want);
}

enum rc g4_cfg_word(const json_t *obj, const char *what, const char *key, const char *want,
                    struct rc_err *err)
{
    const char *s;
    enum rc rc = mdl_cfg_str(obj, what, key, &s, err);

    if (rc != RC_OK || !s || strcmp(s, want) == 0)
        return rc;
    return rc_fail_what(err, RC_UNSUPPORTED, key, "%s: '%s' is '%.40s', only '%s' is computed",
                        what, key, s, want);
}

enum rc g4_media_new(struct mdl_media **out, uint32_t n_rows, uint32_t n_cols, struct rc_err *err)
{
    struct mdl_media *m = calloc(1, sizeof(*m));

    if (m && !(m->x = malloc((size_t)n_rows * n_cols * sizeof(float)))) {
        free(m);
        m = NULL;
    }
    if (!m)
        return rc_fail(err, RC_NOMEM, "no memory for %u rows of %u values", n_rows, n_cols);
    m->n_rows = n_rows;
    m->n_cols = n_cols;
    *out = m;
    return RC_OK;
}
