/* be_kroute.c - the resolution order, see be_kroute.h.
 *
 * A bundled kernel is offered only when its artifact is in the set and defines the entry
 * point: a missing file and a broken wiring are found here, with their own counters, not
 * by the driver. Tests: tests/backends/test_be_kroute.c
 */
#include "be_kroute.h"

#include <string.h>

static bool try_jit(const struct be_kroute_env *env, const struct be_kplan_req *r,
                    const struct be_kplan *p, struct be_kroute *out)
{
    struct be_kentry exact;
    void *fn;

    if (!env->jit || !p->bucket || !be_kplan_exact(p->bucket, r, &exact) ||
        !(fn = env->jit(env->user, &exact.desc)))
        return false;
    *out = (struct be_kroute){BE_KROUTE_JIT, p->bucket, NULL, fn, p->bucket->name};
    return true;
}

static bool try_bundled(const struct be_kroute_env *env, const struct be_kentry *e, uint32_t arch,
                        enum be_kroute_kind kind, struct be_kroute *out, struct be_kstats *ks)
{
    const struct be_kart *a;

    if (!e)
        return false;
    if (env->art)
        a = env->art(env->user, e->lib, arch);
    else if (!(a = be_kart_entry(e->lib, e->name, arch)))
        a = be_kart_find(e->lib, BE_KART_PTX, arch); /* there, but without this entry */
    if (!a || a->arch < e->min_arch) {
        ks->missing_artifacts++;
        return false;
    }
    if (!be_kart_has_entry(a, e->name)) {
        ks->wiring_failures++;
        return false;
    }
    *out = (struct be_kroute){kind, e, a, NULL, e->name};
    return true;
}

enum rc be_kroute_resolve(const struct be_kroute_env *env, const struct be_kplan_req *r,
                          const struct be_kplan *p, struct be_kroute *out, struct be_kstats *ks,
                          struct rc_err *err)
{
    bool library = env->library && env->library(env->user, r);
    const char *hand;
    char text[256];

    if (try_jit(env, r, p, out))
        return RC_OK;
    if (env->jit_only) {
        be_kplan_text(r, p, text, sizeof(text));
        return rc_fail_what(err, RC_UNSUPPORTED, p->name,
                            "%s: no exact run-time compiled kernel is active, and jit is 'exact'",
                            text);
    }
    if (library && env->prefer_library) {
        *out = (struct be_kroute){.kind = BE_KROUTE_LIBRARY, .name = ""};
        return RC_OK;
    }
    if (try_bundled(env, p->exact, r->arch, BE_KROUTE_EXACT, out, ks) ||
        try_bundled(env, p->bucket, r->arch, BE_KROUTE_BUCKET, out, ks))
        return RC_OK;
    if (library) {
        *out = (struct be_kroute){.kind = BE_KROUTE_LIBRARY, .name = ""};
        return RC_OK;
    }
    if (env->hand && (hand = env->hand(env->user, r))) {
        *out = (struct be_kroute){.kind = BE_KROUTE_HAND, .name = hand};
        return RC_OK;
    }
    *out = (struct be_kroute){.kind = BE_KROUTE_REFERENCE, .name = ""};
    return RC_OK;
}
