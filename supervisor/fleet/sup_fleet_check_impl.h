/* sup_fleet_check_impl.h - private to the checks of what a worker says. */
#ifndef INFERD_SUP_FLEET_CHECK_IMPL_H
#define INFERD_SUP_FLEET_CHECK_IMPL_H

#include "sup_fleet_check.h"

#define SUP_DIM_MAX 65536u

static inline enum rc sup_bad(struct rc_err *err, const char *what)
{
    return rc_fail(err, RC_FORMAT, "%s", what);
}

/* "", or 64 hexadecimal digits. */
bool sup_identity_ok(const char *s);

enum rc sup_check_vectors(const struct sup_asked *a, const Ipc__Vectors *v,
                          const Ipc__Loaded *model, struct rc_err *err);
enum rc sup_check_scores(const struct sup_asked *a, const Ipc__Scores *s, const Ipc__Loaded *model,
                         struct rc_err *err);
enum rc sup_check_chunks(const struct sup_asked *a, const Ipc__Chunks *c, struct rc_err *err);
enum rc sup_check_extracted(const struct sup_asked *a, const Ipc__Extracted *x, struct rc_err *err);

#endif
