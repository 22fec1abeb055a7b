/* sup_fleet_check_impl.h - private to the checks of what a worker says. */
#ifndef INFERD_SUP_FLEET_CHECK_IMPL_H
#define INFERD_SUP_FLEET_CHECK_IMPL_H

#include "sup_fleet_check.h"

#define SUP_DIM_MAX 65536u
#define SUP_W_NAME_BYTES 128 /* of a name that a worker says */

static inline enum rc sup_bad(struct rc_err *err, const char *what)
{
    return rc_fail(err, RC_FORMAT, "%s", what);
}

/* "", or 64 hexadecimal digits. */
bool sup_identity_ok(const char *s);

static inline bool sup_tokens_ok(const uint32_t *t, size_t n, uint32_t vocab)
{
    for (size_t i = 0; i < n; i++)
        if (t[i] >= vocab)
            return false;
    return true;
}

/* --- sup_fleet_check_gen.c */
enum rc sup_check_delta(struct sup_asked *a, const Ipc__Delta *d, const Ipc__Loaded *model,
                        struct rc_err *err);
enum rc sup_check_done(const struct sup_asked *a, const Ipc__Done *d, const Ipc__Loaded *model,
                       struct rc_err *err);

/* --- sup_fleet_check_texts.c */
enum rc sup_check_decided(const struct sup_asked *a, const Ipc__Decided *d,
                          const Ipc__Loaded *model, struct rc_err *err);
enum rc sup_check_vectors(const struct sup_asked *a, const Ipc__Vectors *v,
                          const Ipc__Loaded *model, struct rc_err *err);
enum rc sup_check_scores(const struct sup_asked *a, const Ipc__Scores *s, const Ipc__Loaded *model,
                         struct rc_err *err);
enum rc sup_check_chunks(const struct sup_asked *a, const Ipc__Chunks *c, struct rc_err *err);
enum rc sup_check_extracted(const struct sup_asked *a, const Ipc__Extracted *x, struct rc_err *err);

#endif
