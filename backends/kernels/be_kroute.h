/* be_kroute.h - what is loaded for a plan: the resolution order.
 *
 * Order: exact run-time compiled winner, bundled for this very shape, bundled for a range
 * of shapes, library, hand-written, CPU reference. Each step that should have served and
 * could not is counted; in JIT mode exact the first step is the only one. Runs while a
 * model loads; nothing here touches a device or compiles. Source: engine.md 1.5, 1.7.
 * Tests: tests/backends/test_be_kroute.c
 */
#ifndef INFERD_BE_KROUTE_H
#define INFERD_BE_KROUTE_H

#include "be_kart.h"
#include "be_kplan.h"

struct be_kroute_env {
    void *user;
    /* The active winner's function for an exact descriptor, or NULL. NULL: no JIT. */
    void *(*jit)(void *user, const struct be_kdesc *exact);
    bool jit_only; /* mode exact: no other route */
    /* The embedded set; NULL: be_kart_entry. */
    const struct be_kart *(*art)(void *user, const char *lib, uint32_t arch);
    /* Can a library / a hand-written kernel take this request? NULL: no. */
    bool (*library)(void *user, const struct be_kplan_req *r);
    const char *(*hand)(void *user, const struct be_kplan_req *r); /* its name, or NULL */
    bool prefer_library; /* dense products that the context gives to the library first */
};
struct be_kroute {
    enum be_kroute_kind kind;
    const struct be_kentry *entry; /* of EXACT, BUCKET, and the base of JIT; else NULL */
    const struct be_kart *art;     /* PTX to load, of EXACT and BUCKET */
    void *fn;                      /* of JIT */
    const char *name;              /* entry point to look up; "" for LIBRARY and REFERENCE */
};
/* Counts missing artifacts and wiring failures into ks. RC_UNSUPPORTED: jit_only without a winner.
 * Otherwise always finds a route: the last is BE_KROUTE_REFERENCE. */
enum rc be_kroute_resolve(const struct be_kroute_env *env, const struct be_kplan_req *r,
                          const struct be_kplan *p, struct be_kroute *out, struct be_kstats *ks,
                          struct rc_err *err);

#endif
