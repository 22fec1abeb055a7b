/* be_kconf.c - the conformance runner: the cases of each kernel, counted and reported.
 *
 * Every shape of its plan, every variant of its builder, every kind of input on two
 * shapes. Tests: tests/backends/test_be_kconf.c
 */
#include "be_kconf.h"

#include <stdio.h>

#include "be_kconf_impl.h"
#include "be_kplan.h"

/* ------------------------------------------------------------- an entry */

static uint64_t seed_of(const struct be_kentry *e, uint64_t seed, uint32_t i)
{
    uint64_t h = 1469598103934665603ull ^ seed * 0x9E3779B97F4A7C15ull;

    for (const char *p = e->name; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211ull;
    return h ^ (uint64_t)i << 32;
}

/* Builds and runs one case; the row takes note. Only a lost device or no memory is an error. */
static enum rc run_case(struct kc_runner *r, const struct kc_builder *b, const struct be_kentry *e,
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
    rc = kc_one_case(r, c, &why);
    if (rc == RC_OK && reachable && c->reach_rows)
        rc = kc_reach(r, c, &why);
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

static enum rc run_entry(struct kc_runner *r, const struct be_kentry *e, struct rc_err *err)
{
    const struct kc_builder *b = kc_builder_get(e->desc.op, e->args_bytes);
    bool quick = r->o->level == BE_KCONF_QUICK;
    uint32_t nv, k = 0;
    struct kc_plan p;
    enum rc rc = RC_OK;

    r->tol = be_kconf_tol_get(&e->desc);
    if (!b)
        return rc_fail(err, RC_INTERNAL,
                       "%s: no conformance cases for operation %u with %u bytes of arguments",
                       e->name, e->desc.op, e->args_bytes);
    if (!be_kplan_runs_on(e, r->o->dev->arch)) {
        r->row->skipped = true;
        snprintf(r->row->why, sizeof(r->row->why), "needs sm_%u, the device is sm_%u", e->min_arch,
                 r->o->dev->arch);
        return RC_OK;
    }
    if ((rc = r->fam->build(e, &r->ir, err)) != RC_OK)
        return rc;
    kc_plan_shapes(&p, b, e, quick);
    nv = b->variants(e);
    for (uint32_t i = 0; i < p.n && rc == RC_OK && !r->row->skipped; i++) /* every shape */
        rc = run_case(r, b, e, &p.s[i], KC_RANDOM, i % nv,
                      i == 0 || (!quick && i < 8 && b->work(&p.s[i]) < 1000000), err);
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

static void runner_deinit(struct kc_runner *r)
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
    struct kc_runner r = {.o = o, .families = o->families ? o->families : be_kfamilies};
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
    struct kc_runner r = {.o = &o, .families = be_kfamilies, .fam = be_kcat_family(e), .row = &row};
    struct kc_plan p = {.n = 0};
    uint64_t work;
    uint32_t nv, n = 0;
    enum rc rc;

    if (!b || !r.fam)
        return rc_fail(err, RC_NOT_FOUND, "%s: not in the catalog", e->name);
    r.tol = be_kconf_tol_get(&e->desc);
    if ((rc = r.fam->build(e, &r.ir, err)) != RC_OK)
        return rc;
    kc_plan_add(&p, b, &e->desc, b->base, UINT64_MAX);
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
               {kc_attn_builders, kc_n_attn_builders},
               {kc_tower_builders, kc_n_tower_builders}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (uint32_t k = 0; k < all[i].n; k++)
            if (all[i].b[k].op == op && all[i].b[k].args_bytes == args_bytes)
                return &all[i].b[k];
    return NULL;
}
