/* sup_auth_ask.c - one list, two kinds of words. See sup_auth_ask.h.
 * Tests: tests/supervisor/test_sup_auth.c */
#include "sup_auth_ask.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "ipc.h"

void sup_asks_init(struct sup_asks *l)
{
    *l = (struct sup_asks){.tail = &l->first};
}

static void packed_free(struct sup_ask *q)
{
    if (q->packed)
        sodium_memzero(q->packed, q->n_packed);
    free(q->packed);
    q->packed = NULL;
    q->n_packed = 0;
}

static void end_at(struct sup_asks *l, struct sup_ask **at)
{
    struct sup_ask *q = *at;

    *at = q->next;
    if (!q->next)
        l->tail = at;
    if (q->id)
        l->n_questions--;
    else
        l->n_acts--;
    while (q->waiters) {
        struct sup_auth_waiter *w = q->waiters;

        q->waiters = w->next;
        free(w);
    }
    packed_free(q);
    free(q);
}

void sup_asks_end(struct sup_asks *l, struct sup_ask *q)
{
    struct sup_ask **at = &l->first;

    while (*at != q)
        at = &(*at)->next;
    end_at(l, at);
}

void sup_asks_deinit(struct sup_asks *l)
{
    while (l->first)
        end_at(l, &l->first);
}

static struct sup_ask *add(struct sup_asks *l, uint64_t id, Ipc__Vault *v)
{
    size_t n = protobuf_c_message_get_packed_size(&v->base);
    struct sup_ask *q = calloc(1, sizeof(*q));

    if (!q || !(q->packed = malloc(n))) {
        free(q);
        return NULL;
    }
    q->n_packed = protobuf_c_message_pack(&v->base, q->packed);
    q->id = id;
    *l->tail = q;
    l->tail = &q->next;
    if (id)
        l->n_questions++;
    else
        l->n_acts++;
    return q;
}

struct sup_ask *sup_asks_add_act(struct sup_asks *l, Ipc__Vault *v)
{
    return add(l, 0, v);
}

struct sup_ask *sup_asks_add_question(struct sup_asks *l, const uint8_t digest[SUP_AUTH_DIGEST],
                                      Ipc__Vault *v)
{
    struct sup_ask *q;

    v->check->req = ++l->last_id;
    if ((q = add(l, l->last_id, v)))
        memcpy(q->digest, digest, SUP_AUTH_DIGEST);
    return q;
}

struct sup_ask *sup_asks_about(const struct sup_asks *l, const uint8_t digest[SUP_AUTH_DIGEST])
{
    for (struct sup_ask *q = l->first; q; q = q->next)
        if (q->id && sodium_memcmp(q->digest, digest, SUP_AUTH_DIGEST) == 0)
            return q;
    return NULL;
}

struct sup_ask *sup_asks_sent(const struct sup_asks *l, uint64_t id)
{
    for (struct sup_ask *q = l->first; id && q; q = q->next)
        if (q->id == id)
            return q->n_packed ? NULL : q;
    return NULL;
}

bool sup_ask_wait(struct sup_ask *q, struct sup_req *r)
{
    struct sup_auth_waiter *w = malloc(sizeof(*w));

    if (!w)
        return false;
    *w = (struct sup_auth_waiter){q->waiters, r};
    q->waiters = w;
    return true;
}

void sup_asks_forget(struct sup_asks *l, const struct sup_req *r)
{
    for (struct sup_ask *q = l->first; q; q = q->next)
        for (struct sup_auth_waiter **at = &q->waiters; *at; at = &(*at)->next)
            if ((*at)->req == r) {
                struct sup_auth_waiter *w = *at;

                *at = w->next;
                free(w);
                return;
            }
}

void sup_asks_wipe(struct sup_asks *l)
{
    for (struct sup_ask *q = l->first; q; q = q->next)
        packed_free(q);
}

enum rc sup_asks_flush(struct sup_asks *l, int fd, struct rc_err *err)
{
    struct sup_ask **at = &l->first;

    while (*at) {
        struct sup_ask *q = *at;
        enum rc rc =
            q->n_packed ? ipc_send_packed(fd, q->packed, q->n_packed, NULL, 0, err) : RC_OK;

        if (rc != RC_OK)
            return rc;
        packed_free(q);
        if (q->id)
            at = &q->next;
        else
            end_at(l, at);
    }
    return RC_OK;
}
