/* sup_fetch_vault.c - one question, one answer. See sup_fetch_vault.h.
 * Tests: tests/supervisor/test_sup_fetch_vault.c */
#include "sup_fetch_vault.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_ref.h"
#include "sup_req.h"
#include "vault.pb-c.h"

void sup_fetch_vault_init(struct sup_fetch_vault *v, int fd)
{
    *v = (struct sup_fetch_vault){.fd = fd, .wait_ms = SUP_FETCH_VAULT_MS};
}

static void gone(struct sup_fetch_vault *v)
{
    close(v->fd);
    v->fd = -1;
    v->gone = true;
}

/* Its verdict about a secret, which is copied out. */
static enum rc take(const Ipc__VaultGives *g, char secret[SUP_SECRET_BYTES + 1], struct rc_err *err)
{
    enum rc rc = rc_from_wire(g->code);

    if (rc == RC_NOT_FOUND)
        return RC_OK;
    if (rc != RC_OK)
        return rc_fail(err, RC_BUSY, "the vault cannot say which secret the hub gets: %s",
                       rc_text(rc));
    if (g->secret.len == 0 || g->secret.len > SUP_SECRET_BYTES ||
        memchr(g->secret.data, '\0', g->secret.len))
        return rc_fail(err, RC_FORMAT,
                       "the vault gives a secret of %zu bytes, expected 1 to %u without a zero",
                       g->secret.len, SUP_SECRET_BYTES);
    memcpy(secret, g->secret.data, g->secret.len);
    secret[g->secret.len] = '\0';
    return RC_OK;
}

/* One word. RC_AGAIN: it was not the answer to `want`. */
static enum rc word(struct sup_fetch_vault *v, uint64_t want, char *secret, struct rc_err *err)
{
    ProtobufCMessage *raw = NULL;
    enum rc rc = ipc_recv(v->fd, &ipc__vault__descriptor, &raw, NULL, NULL, NULL);
    Ipc__VaultGives *g;

    if (rc != RC_OK) {
        if (rc != RC_AGAIN)
            gone(v);
        return RC_AGAIN;
    }
    rc = RC_AGAIN;
    if (((Ipc__Vault *)raw)->body_case == IPC__VAULT__BODY_GIVES) {
        g = ((Ipc__Vault *)raw)->gives;
        if (want && g->req == want)
            rc = take(g, secret, err);
        if (g->secret.len)
            explicit_bzero(g->secret.data, g->secret.len);
    }
    protobuf_c_message_free_unpacked(raw, NULL);
    return rc;
}

enum rc sup_fetch_vault_ask(struct sup_fetch_vault *v, const char *url,
                            char secret[SUP_SECRET_BYTES + 1], struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];
    Ipc__VaultWant want = IPC__VAULT_WANT__INIT;
    Ipc__Vault m = IPC__VAULT__INIT;
    uint64_t end = sup_req_now_ms() + v->wait_ms, now;
    enum rc rc = RC_AGAIN;

    secret[0] = '\0';
    if ((v->fd < 0 && !v->gone) || !sup_ref_origin(url, origin))
        return RC_OK;
    want.req = ++v->last_req;
    want.origin = origin;
    m.body_case = IPC__VAULT__BODY_WANT;
    m.want = &want;
    if (v->fd >= 0 && ipc_send(v->fd, &m.base, NULL, 0, NULL) == RC_OK)
        while (rc == RC_AGAIN && v->fd >= 0 && (now = sup_req_now_ms()) < end) {
            struct pollfd p = {.fd = v->fd, .events = POLLIN};

            if (poll(&p, 1, (int)(end - now)) > 0)
                rc = word(v, want.req, secret, err);
        }
    if (rc != RC_AGAIN)
        return rc;
    return rc_fail(err, RC_BUSY,
                   "the vault does not say which secret %s gets (%s): nothing was asked there; try "
                   "again",
                   origin, v->gone ? "it has gone" : "no answer in time");
}

void sup_fetch_vault_hear(struct sup_fetch_vault *v)
{
    if (v->fd >= 0)
        (void)word(v, 0, NULL, NULL);
}
