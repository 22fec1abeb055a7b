/* be_kcat.c - the catalog: the list of families, look-up by name, and the check that
 * no two kernels claim one shape.
 *
 * A new family joins by one line in be_kfamilies below, landed together with its struct
 * be_kfamily (a static library cannot find it otherwise). The order is the order of the
 * manifest and of conformance reports. Tests: tests/backends/test_be_kcat.c
 */
#include "be_kir.h"

#include <string.h>

const struct be_kfamily *const be_kfamilies[] = {
    /* be_kfam_linear.c: products of weights, repacking */
    &be_kfam_linear,

    /* be_kfam_attn.c: paged, merged and packed attention */
    &be_kfam_attn,

    /* be_kfam_rows.c: everything that works on single rows */
    &be_kfam_rows,

    /* be_kfam_tower.c: what eyes and ears need beside the above */
    &be_kfam_tower,

    NULL,
};

const struct be_kentry *be_kcat_find(const char *name)
{
    for (size_t f = 0; be_kfamilies[f]; f++)
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++)
            if (strcmp(be_kfamilies[f]->at(i)->name, name) == 0)
                return be_kfamilies[f]->at(i);
    return NULL;
}

/* By name, so that a copy with fixed dimensions (run-time compilation) finds it too. */
const struct be_kfamily *be_kcat_family(const struct be_kentry *e)
{
    for (size_t f = 0; be_kfamilies[f]; f++)
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++)
            if (strcmp(be_kfamilies[f]->at(i)->name, e->name) == 0)
                return be_kfamilies[f];
    return NULL;
}

/* Entry points and libraries become identifiers and file names. */
static bool is_word(const char *s, size_t max)
{
    size_t n = 0;

    for (; s && s[n]; n++)
        if (!((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= '0' && s[n] <= '9') || s[n] == '_'))
            return false;
    return n > 0 && n <= max;
}

static enum rc check_entry(const struct be_kfamily *f, uint32_t i, struct rc_err *err)
{
    const struct be_kentry *e = f->at(i);

    if (!e)
        return rc_fail(err, RC_INTERNAL, "family '%s' has no entry %u of %u", f->name, i,
                       f->count());
    if (!is_word(e->name, 63) || strncmp(e->name, "kx_", 3) != 0)
        return rc_fail(err, RC_INTERNAL,
                       "family '%s' entry %u: name '%s', expected kx_ and at most 60 of a-z 0-9 _",
                       f->name, i, e->name ? e->name : "");
    if (!is_word(e->lib, 48))
        return rc_fail(err, RC_INTERNAL, "kernel '%s': library '%s', expected 1 to 48 of a-z 0-9 _",
                       e->name, e->lib ? e->lib : "");
    if (e->args_bytes == 0 || e->args_bytes > 4096 || e->args_bytes % 8)
        return rc_fail(err, RC_INTERNAL,
                       "kernel '%s': %u bytes of arguments, expected a multiple of 8 up to 4096",
                       e->name, e->args_bytes);
    if (e->min_arch != 75 && e->min_arch != 80 && e->min_arch != 90)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': min_arch %u, expected 75, 80 or 90", e->name,
                       e->min_arch);
    if (!e->grid)
        return rc_fail(err, RC_INTERNAL, "kernel '%s' has no launch geometry", e->name);
    return RC_OK;
}

/* The dimensions compiled in. A kernel for one shape may stand beside one for a range
 * around it: the first is picked (be_kroute.h). */
static unsigned fixed_dims(const struct be_kdesc *d)
{
    const struct be_kdim *m[] = {&d->rows,    &d->k,        &d->n,  &d->head_dim,
                                 &d->q_heads, &d->kv_heads, &d->seq};
    unsigned bits = 0;

    for (unsigned i = 0; i < sizeof(m) / sizeof(m[0]); i++)
        bits |= m[i]->fixed ? 1u << i : 0;
    return bits;
}

static enum rc check_pair(const struct be_kfamily *fa, const struct be_kentry *a,
                          const struct be_kfamily *fb, const struct be_kentry *b,
                          struct rc_err *err)
{
    if (strcmp(a->name, b->name) == 0)
        return rc_fail(err, RC_INTERNAL, "two kernels are named '%s'", a->name);
    if (fa != fb && strcmp(a->lib, b->lib) == 0)
        return rc_fail(err, RC_INTERNAL, "library '%s' belongs to families '%s' and '%s'", a->lib,
                       fa->name, fb->name);
    /* of two for the same shape the planner takes the one for the newer device */
    if (a->production && b->production && a->min_arch == b->min_arch &&
        fixed_dims(&a->desc) == fixed_dims(&b->desc) && be_kdesc_overlaps(&a->desc, &b->desc))
        return rc_fail(err, RC_INTERNAL, "kernels '%s' and '%s' both serve some shape", a->name,
                       b->name);
    return RC_OK;
}

enum rc be_kcat_check(const struct be_kfamily *const *families, struct rc_err *err)
{
    enum rc rc;

    for (size_t f = 0; families[f]; f++)
        for (uint32_t i = 0; i < families[f]->count(); i++)
            if ((rc = check_entry(families[f], i, err)) != RC_OK)
                return rc;
    for (size_t f = 0; families[f]; f++)
        for (uint32_t i = 0; i < families[f]->count(); i++)
            for (size_t g = f; families[g]; g++)
                for (uint32_t j = g == f ? i + 1 : 0; j < families[g]->count(); j++)
                    if ((rc = check_pair(families[f], families[f]->at(i), families[g],
                                         families[g]->at(j), err)) != RC_OK)
                        return rc;
    return RC_OK;
}
