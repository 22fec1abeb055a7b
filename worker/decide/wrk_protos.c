/* wrk_protos.c - the table of prototype sets: found, reserved, filled, evicted (wrk_protos.h).
 *
 * A table of at most 256 pointers, searched in order: a decision costs passes of a model.
 * Change with care: n_users and owner, on which single flight rests.
 * Tests: tests/worker/test_wrk_protos.c
 */
#include "wrk_protos.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bytes_of(uint32_t n, uint32_t dim)
{
    return sizeof(struct wrk_proto) + (uint64_t)n * dim * sizeof(float);
}

static void set_free(struct wrk_proto *s)
{
    free(s->vec);
    free(s);
}

static void drop_at(struct wrk_protos *p, uint32_t i)
{
    p->bytes -= bytes_of(p->set[i]->n, p->set[i]->dim);
    set_free(p->set[i]);
    p->set[i] = p->set[--p->n];
}

/* Evicts what nobody uses, longest unused first. False: those in use leave no room. */
static bool make_room(struct wrk_protos *p, uint64_t bytes)
{
    if (bytes > WRK_PROTOS_BYTES)
        return false;
    while (p->n == WRK_PROTOS_MAX || p->bytes + bytes > WRK_PROTOS_BYTES) {
        uint32_t oldest = p->n;

        for (uint32_t i = 0; i < p->n; i++)
            if (p->set[i]->n_users == 0 &&
                (oldest == p->n || p->set[i]->used < p->set[oldest]->used))
                oldest = i;
        if (oldest == p->n)
            return false;
        drop_at(p, oldest);
    }
    return true;
}

static enum rc add(struct wrk_protos *p, const uint8_t *key, uint32_t n, uint32_t dim,
                   const void *user, struct wrk_proto **out, struct rc_err *err)
{
    struct wrk_proto *s = calloc(1, sizeof(*s));

    if (s != NULL)
        s->vec = calloc((size_t)n * dim, sizeof(float));
    if (s == NULL || s->vec == NULL) {
        free(s);
        return rc_fail(err, RC_NOMEM, "prototypes of %u choices", n);
    }
    memcpy(s->key, key, sizeof(s->key));
    s->n = n;
    s->dim = dim;
    s->state = WRK_PROTO_FILLING;
    s->owner = user;
    if ((s->kept = make_room(p, bytes_of(n, dim)))) {
        p->set[p->n++] = s;
        p->bytes += bytes_of(n, dim);
    }
    *out = s;
    return RC_OK;
}

enum rc wrk_protos_get(struct wrk_protos *p, const uint8_t *key, uint32_t n, uint32_t dim,
                       const void *user, struct wrk_proto **out, struct rc_err *err)
{
    struct wrk_proto *s = NULL;
    enum rc rc;

    for (uint32_t i = 0; i < p->n && s == NULL; i++)
        if (memcmp(p->set[i]->key, key, sizeof(p->set[i]->key)) == 0)
            s = p->set[i];
    if (s == NULL) {
        if ((rc = add(p, key, n, dim, user, &s, err)) != RC_OK)
            return rc;
    } else if (s->state == WRK_PROTO_READY) {
        p->n_hits++;
    } else if (!wrk_protos_take(s, user) && s->owner != user) {
        p->n_waits++;
    }
    s->used = ++p->clock;
    s->n_users++;
    *out = s;
    return RC_OK;
}

bool wrk_protos_take(struct wrk_proto *s, const void *user)
{
    if (s->state != WRK_PROTO_VACANT)
        return false;
    s->state = WRK_PROTO_FILLING;
    s->owner = user;
    return true;
}

void wrk_protos_filled(struct wrk_protos *p, struct wrk_proto *s)
{
    s->state = WRK_PROTO_READY;
    s->owner = NULL;
    p->n_fills++;
}

void wrk_protos_put(struct wrk_protos *p, struct wrk_proto **ps, const void *user)
{
    struct wrk_proto *s = *ps;

    if (s == NULL)
        return;
    *ps = NULL;
    s->n_users--;
    /* a user may hold one set twice: it is vacant when the last of its holds goes, or now, which
     * is the same, for its task ends */
    if (s->state == WRK_PROTO_FILLING && s->owner == user) {
        s->state = WRK_PROTO_VACANT;
        s->owner = NULL;
    }
    if (s->n_users > 0)
        return;
    if (!s->kept) {
        set_free(s);
        return;
    }
    for (uint32_t i = 0; s->state != WRK_PROTO_READY && i < p->n; i++)
        if (p->set[i] == s) {
            drop_at(p, i);
            return;
        }
}

void wrk_protos_deinit(struct wrk_protos *p)
{
    while (p->n > 0)
        drop_at(p, p->n - 1);
}
