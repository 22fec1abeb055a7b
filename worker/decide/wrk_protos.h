/* wrk_protos.h - sets of prototypes kept for the questions of one loaded model.
 *
 * A set belongs to its key (a hash over model, renderer, task, dimensions and rendered
 * categories: wrk_decide.c). Its room is reserved before it is computed; who finds the
 * reservation of another waits for it instead of computing the same again. An owner that fails
 * or is cancelled leaves the reservation to those who wait: the first of them takes it over.
 * Always true: at most WRK_PROTOS_MAX sets and WRK_PROTOS_BYTES are kept, reservations counted;
 * a set in use is never dropped. Sets that find no room among those in use are computed for
 * their one user and kept by nobody. One thread. Tests: tests/worker/test_wrk_protos.c
 */
#ifndef INFERD_WRK_PROTOS_H
#define INFERD_WRK_PROTOS_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

#define WRK_PROTOS_MAX 256u
#define WRK_PROTOS_BYTES (1u << 20)
#define WRK_PROTOS_KEY 32

enum wrk_proto_state { WRK_PROTO_VACANT, WRK_PROTO_FILLING, WRK_PROTO_READY };

struct wrk_proto {
    uint8_t key[WRK_PROTOS_KEY];
    enum wrk_proto_state state;
    const void *owner; /* who fills it, while it is filled */
    float *vec;        /* [n, dim], unit vectors once READY */
    uint32_t n, dim;
    uint32_t n_users;
    bool kept; /* in the table */
    uint64_t used;
};

struct wrk_protos {
    struct wrk_proto *set[WRK_PROTOS_MAX];
    uint32_t n;
    uint64_t bytes, clock;
    uint64_t n_hits, n_fills, n_waits;
};

/* The set of a key, held until it is put back. What is found decides its state for the caller:
 * READY; FILLING by the caller (it must fill or put it back); FILLING by somebody else.
 * Errors: RC_NOMEM. */
enum rc wrk_protos_get(struct wrk_protos *p, const uint8_t *key, uint32_t n, uint32_t dim,
                       const void *user, struct wrk_proto **out, struct rc_err *err);
/* A reservation whose owner is gone becomes the user's. False: it is not vacant. */
bool wrk_protos_take(struct wrk_proto *s, const void *user);
/* Its vectors are complete. */
void wrk_protos_filled(struct wrk_protos *p, struct wrk_proto *s);
/* Writes NULL. What the user had not filled becomes vacant for those who wait. */
void wrk_protos_put(struct wrk_protos *p, struct wrk_proto **s, const void *user);
void wrk_protos_deinit(struct wrk_protos *p);

#endif
