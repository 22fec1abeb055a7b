/* sup_auth_ask.h - words to the vault that wait for its channel, and questions that wait for their
 * answer.
 *
 * Mechanism only: what is asked, and what an answer means, is sup_auth.c. A word is packed at once,
 * so that the key in it is in one place, and wiped when the channel has taken it. Questions (id not
 * 0) stay until they are ended, oldest first; acts for the audit log (id 0) are gone when they are
 * sent. A zeroed list after sup_asks_init is empty. Tests: tests/supervisor/test_sup_auth.c
 */
#ifndef INFERD_SUP_AUTH_ASK_H
#define INFERD_SUP_AUTH_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_auth_cache.h"
#include "vault.pb-c.h"

struct sup_req;

struct sup_auth_waiter {
    struct sup_auth_waiter *next;
    struct sup_req *req;
};

struct sup_ask {
    struct sup_ask *next;
    uint64_t id;
    uint8_t digest[SUP_AUTH_DIGEST]; /* of a question: of the key it is about */
    struct sup_auth_waiter *waiters;
    size_t n_packed; /* 0 once sent */
    uint8_t *packed; /* a frame with the key in it */
};

struct sup_asks {
    struct sup_ask *first, **tail;
    size_t n_questions, n_acts;
    uint64_t last_id;
};

void sup_asks_init(struct sup_asks *l);
/* Ends all; who waits is told nothing. */
void sup_asks_deinit(struct sup_asks *l);

/* An act; NULL: no memory. */
struct sup_ask *sup_asks_add_act(struct sup_asks *l, Ipc__Vault *v);
/* A question about a key; its number is put into v->check. NULL: no memory. */
struct sup_ask *sup_asks_add_question(struct sup_asks *l, const uint8_t digest[SUP_AUTH_DIGEST],
                                      Ipc__Vault *v);
/* NULL: no question about this key is open. */
struct sup_ask *sup_asks_about(const struct sup_asks *l, const uint8_t digest[SUP_AUTH_DIGEST]);
/* The question that was sent under this number; NULL: none. */
struct sup_ask *sup_asks_sent(const struct sup_asks *l, uint64_t id);
void sup_asks_end(struct sup_asks *l, struct sup_ask *q);

/* false: no memory. */
bool sup_ask_wait(struct sup_ask *q, struct sup_req *r);
/* Takes r off the question it waits in, if any. */
void sup_asks_forget(struct sup_asks *l, const struct sup_req *r);
/* Wipes what has not been sent. */
void sup_asks_wipe(struct sup_asks *l);
/* Sends what waits, in its order. RC_AGAIN: the channel is full; else as of ipc_send_packed. */
enum rc sup_asks_flush(struct sup_asks *l, int fd, struct rc_err *err);

#endif
