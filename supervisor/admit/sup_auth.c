/* sup_auth.c - the front's side of the vault; sup_auth.h.
 *
 * Always true: every waiting request is in exactly one question, and gets one answer unless
 * it is forgotten; a key's bytes are gone once they were handed to the channel. Change with
 * care: on_answer, which must not run a handler (sup_req_known only notes the answer).
 * Tests: tests/supervisor/test_sup_auth.c, tests/e2e/keys.py
 */
#include "sup_auth.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_auth_cache.h"
#include "sup_conf.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_walls.h"
#include "vault.pb-c.h"

#define AUDITS_MAX 256u /* acts that wait for the channel; more are only logged */

struct waiter {
    struct waiter *next;
    struct sup_req *req;
};

/* One question to the vault, or one act for its log. */
struct ask {
    struct ask *next;
    uint64_t id;
    uint8_t digest[SUP_AUTH_DIGEST];
    struct waiter *waiters;
    size_t n_packed; /* 0 once sent */
    uint8_t *packed; /* a frame with the key in it */
};

struct sup_auth {
    uv_loop_t *loop;
    uv_poll_t poll;
    int fd; /* -1 = no vault */
    int events;
    bool required, lost, stopped, known;
    uint64_t last_id;
    struct ask *asks, **tail; /* oldest first; acts are gone when sent */
    size_t n_asks, n_audits;
    struct sup_auth_cache *cache;
    struct sup_metrics *metrics;
    Ipc__Vault *last; /* its VaultChanged, NULL before the first */
    void (*on_lost)(void *user);
    void *user;
};

static void count(struct sup_auth *a, enum sup_metric m, const char *label)
{
    sup_series_add(sup_series(a->metrics, m, label, NULL), 1);
}

/* ---------------------------------------------------------------- questions */

static void packed_free(struct ask *q)
{
    if (q->packed)
        sodium_memzero(q->packed, q->n_packed);
    free(q->packed);
    q->packed = NULL;
    q->n_packed = 0;
}

static void ask_end(struct sup_auth *a, struct ask **at)
{
    struct ask *q = *at;

    *at = q->next;
    if (!q->next)
        a->tail = at;
    if (q->id)
        a->n_asks--;
    else
        a->n_audits--;
    packed_free(q);
    free(q);
}

/* Takes each waiter off its question before the verdict is told. */
static void tell(struct sup_auth *a, struct ask *q, enum sup_auth_is verdict, struct sup_grant *g)
{
    struct waiter *w;

    while ((w = q->waiters)) {
        q->waiters = w->next;
        if (verdict == SUP_AUTH_OK)
            count(a, SUP_M_AUTH_RESULTS, "ok");
        sup_req_known(w->req, verdict, verdict == SUP_AUTH_OK ? sup_grant_ref(g) : NULL);
        free(w);
    }
}

static void lost(struct sup_auth *a, const char *why)
{
    if (a->lost)
        return;
    a->lost = true;
    SUP_LOG(SUP_ERROR, "vault_lost", SUP_S("why", why));
    uv_poll_stop(&a->poll);
    for (struct ask *q = a->asks; q; q = q->next) {
        tell(a, q, SUP_AUTH_BUSY, NULL);
        packed_free(q);
    }
    if (a->on_lost)
        a->on_lost(a->user);
}

static void on_vault(uv_poll_t *p, int status, int events);

static void listen_for(struct sup_auth *a, bool writable)
{
    int events = UV_READABLE | (writable ? UV_WRITABLE : 0);

    if (a->lost || a->stopped || events == a->events)
        return;
    a->events = events;
    uv_poll_start(&a->poll, events, on_vault);
}

static void flush(struct sup_auth *a)
{
    struct rc_err err = RC_ERR_INIT;
    struct ask **at = &a->asks;

    while (*at && !a->lost) {
        struct ask *q = *at;
        enum rc rc =
            q->n_packed ? ipc_send_packed(a->fd, q->packed, q->n_packed, NULL, 0, &err) : RC_OK;

        if (rc == RC_AGAIN) {
            listen_for(a, true);
            return;
        }
        if (rc != RC_OK) {
            lost(a, err.msg);
            return;
        }
        packed_free(q);
        if (q->id)
            at = &q->next;
        else
            ask_end(a, at);
    }
    listen_for(a, false);
}

/* Packed at once, so that the key is in one place only: q->packed. */
static bool pack(struct ask *q, Ipc__Vault *v)
{
    size_t n = protobuf_c_message_get_packed_size(&v->base);

    if (!(q->packed = malloc(n)))
        return false;
    q->n_packed = protobuf_c_message_pack(&v->base, q->packed);
    return true;
}

static void append(struct sup_auth *a, struct ask *q)
{
    *a->tail = q;
    a->tail = &q->next;
    if (q->id)
        a->n_asks++;
    else
        a->n_audits++;
}

static struct ask *question(struct sup_auth *a, const uint8_t digest[SUP_AUTH_DIGEST],
                            const char *key, size_t n)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;
    struct ask *q;

    for (q = a->asks; q; q = q->next)
        if (q->id && sodium_memcmp(q->digest, digest, SUP_AUTH_DIGEST) == 0)
            return q;
    if (a->n_asks >= SUP_AUTH_ASKS || !(q = calloc(1, sizeof(*q))))
        return NULL;
    q->id = ++a->last_id;
    memcpy(q->digest, digest, SUP_AUTH_DIGEST);
    c.req = q->id;
    c.token.data = (uint8_t *)key;
    c.token.len = n;
    v.body_case = IPC__VAULT__BODY_CHECK;
    v.check = &c;
    if (!pack(q, &v)) {
        free(q);
        return NULL;
    }
    append(a, q);
    return q;
}

static enum sup_auth_is ask_vault(struct sup_auth *a, struct sup_req *r,
                                  const uint8_t digest[SUP_AUTH_DIGEST], const char *key, size_t n)
{
    struct waiter *w = malloc(sizeof(*w));
    struct ask *q = w && !a->lost ? question(a, digest, key, n) : NULL;

    if (!q) {
        free(w);
        return SUP_AUTH_BUSY;
    }
    flush(a); /* before r waits: nobody is told anything inside this call */
    if (a->lost) {
        free(w);
        return SUP_AUTH_BUSY;
    }
    *w = (struct waiter){q->waiters, r};
    q->waiters = w;
    return SUP_AUTH_ASKED;
}

static enum sup_auth_is ask(void *user, struct sup_req *r, const char *key, size_t n,
                            struct sup_grant **grant)
{
    struct sup_auth *a = user;
    uint8_t digest[SUP_AUTH_DIGEST];
    struct sup_grant *g;

    if (n == 0)
        return a->required ? SUP_AUTH_NO_KEY : SUP_AUTH_OK;
    if (n > SUP_AUTH_KEY_MAX)
        return SUP_AUTH_BAD_KEY; /* none of ours is that long */
    sup_auth_digest(a->cache, key, n, digest);
    g = sup_auth_cache_get(a->cache, digest, uv_now(a->loop));
    if (g && g->expires_unix_s && (uint64_t)time(NULL) >= g->expires_unix_s)
        return SUP_AUTH_EXPIRED;
    count(a, SUP_M_AUTH_CACHE, g ? "hit" : "miss");
    if (!g)
        return ask_vault(a, r, digest, key, n);
    count(a, SUP_M_AUTH_RESULTS, "ok");
    *grant = sup_grant_ref(g);
    return SUP_AUTH_OK;
}

static void forget(void *user, struct sup_req *r)
{
    struct sup_auth *a = user;

    for (struct ask *q = a->asks; q; q = q->next)
        for (struct waiter **at = &q->waiters; *at; at = &(*at)->next)
            if ((*at)->req == r) {
                struct waiter *w = *at;

                *at = w->next;
                free(w);
                return;
            }
}

/* ------------------------------------------------------------------ answers */

/* What the vault's code means; anything else is its breach. */
static bool verdict_of(uint32_t code, enum sup_auth_is *out)
{
    switch (rc_from_wire(code)) {
    case RC_OK:
        *out = SUP_AUTH_OK;
        return true;
    case RC_NOT_FOUND:
        *out = SUP_AUTH_BAD_KEY;
        return true;
    case RC_DEADLINE:
        *out = SUP_AUTH_EXPIRED;
        return true;
    case RC_NOMEM:
        *out = SUP_AUTH_BUSY;
        return true;
    default:
        return false;
    }
}

static void on_checked(struct sup_auth *a, const Ipc__VaultChecked *c)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_grant *g = NULL;
    struct ask **at = &a->asks;
    enum sup_auth_is is;

    while (*at && (*at)->id != c->req)
        at = &(*at)->next;
    if (!*at || (*at)->n_packed || !verdict_of(c->code, &is) || (is == SUP_AUTH_OK && !c->grant)) {
        lost(a, "an answer to nothing that was asked");
        return;
    }
    if (is == SUP_AUTH_OK && sup_grant_new(&g, c->grant, &err) != RC_OK) {
        lost(a, err.msg);
        return;
    }
    if (g)
        sup_auth_cache_put(a->cache, (*at)->digest, g, uv_now(a->loop));
    tell(a, *at, is, g);
    ask_end(a, at);
    sup_grant_unref(&g);
}

static struct sup_walls_told walls_of(const Ipc__VaultChanged *c)
{
    return (struct sup_walls_told){c->pid, c->sandbox, c->missing, c->n_sandbox, c->n_missing};
}

static void on_changed(struct sup_auth *a, const Ipc__VaultChanged *c)
{
    const struct sup_walls_told walls = walls_of(c);

    if (!sup_walls_told_ok(&walls)) {
        lost(a, "malformed names of sandbox layers");
        return;
    }
    sup_auth_cache_clear(a->cache);
    a->known = true;
    sup_series_set(sup_series(a->metrics, SUP_M_VAULT_KEYS, NULL, NULL), c->n_keys);
    sup_series_set(sup_series(a->metrics, SUP_M_VAULT_SECRETS, NULL, NULL), c->n_secrets);
    if (c->error.len || !a->last || a->last->changed->generation != c->generation)
        count(a, SUP_M_VAULT_RELOADS, c->error.len ? "failed" : "ok");
}

static const struct {
    Ipc__Vault__BodyCase message;
    void (*checked)(struct sup_auth *a, const Ipc__VaultChecked *c);
    void (*changed)(struct sup_auth *a, const Ipc__VaultChanged *c);
} vault_says[] = {
    {IPC__VAULT__BODY_CHECKED, on_checked, NULL},
    {IPC__VAULT__BODY_CHANGED, NULL, on_changed},
};

static void on_message(struct sup_auth *a, const Ipc__Vault *v)
{
    for (size_t i = 0; i < sizeof(vault_says) / sizeof(vault_says[0]); i++) {
        if (vault_says[i].message != v->body_case)
            continue;
        if (vault_says[i].checked)
            vault_says[i].checked(a, v->checked);
        else
            vault_says[i].changed(a, v->changed);
        return;
    }
    lost(a, "a message the vault may not send");
}

static void on_vault(uv_poll_t *p, int status, int events)
{
    struct sup_auth *a = p->data;
    struct rc_err err = RC_ERR_INIT;
    ProtobufCMessage *m = NULL;
    enum rc rc = RC_OK;

    (void)status;
    while (!a->lost && !a->stopped && (events & UV_READABLE)) {
        if ((rc = ipc_recv(a->fd, &ipc__vault__descriptor, &m, NULL, NULL, &err)) != RC_OK)
            break;
        on_message(a, (const Ipc__Vault *)m);
        if (((Ipc__Vault *)m)->body_case == IPC__VAULT__BODY_CHANGED && !a->lost) {
            Ipc__Vault *was = a->last;

            a->last = (Ipc__Vault *)m; /* who asks for its walls reads them there */
            m = was ? &was->base : NULL;
        }
        if (m)
            protobuf_c_message_free_unpacked(m, NULL);
    }
    if (rc != RC_OK && rc != RC_AGAIN)
        lost(a, err.msg);
    if (!a->lost && !a->stopped)
        flush(a);
}

/* --------------------------------------------------------------------- acts */

void sup_auth_audit(struct sup_auth *a, const char *act, const char *who, const char *fields)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultAudit m = IPC__VAULT_AUDIT__INIT;
    struct ask *q;

    SUP_LOG(SUP_INFO, "admin_act", SUP_S("act", act), SUP_S("who", who), SUP_S("fields", fields));
    if (!a || a->fd < 0 || a->lost || a->stopped)
        return;
    m.act = (char *)act;
    m.who = (char *)who;
    m.fields.data = (uint8_t *)fields;
    m.fields.len = strlen(fields);
    v.body_case = IPC__VAULT__BODY_AUDIT;
    v.audit = &m;
    q = a->n_audits < AUDITS_MAX ? calloc(1, sizeof(*q)) : NULL;
    if (!q || !pack(q, &v)) {
        free(q);
        SUP_LOG(SUP_WARN, "audit_lost", SUP_S("act", act), SUP_S("who", who));
        return;
    }
    append(a, q);
    flush(a);
}

/* --------------------------------------------------------------------- life */

enum rc sup_auth_new(struct sup_auth **out, uv_loop_t *loop, int vault_fd,
                     const struct sup_conf *conf, struct sup_metrics *metrics,
                     void (*on_lost)(void *user), void *user, struct rc_err *err)
{
    struct sup_auth *a = calloc(1, sizeof(*a));
    enum rc rc;
    int r;

    if (!a)
        return rc_fail(err, RC_NOMEM, "no memory to know keys");
    if (vault_fd < 0 && sup_conf_auth_required(conf)) {
        free(a);
        return rc_fail_what(err, RC_INTERNAL, "vault", "keys are asked for, but there is no vault");
    }
    *a = (struct sup_auth){.loop = loop,
                           .fd = vault_fd,
                           .metrics = metrics,
                           .on_lost = on_lost,
                           .user = user,
                           .required = sup_conf_auth_required(conf)};
    a->tail = &a->asks;
    if ((rc = sup_auth_cache_new(&a->cache, err)) != RC_OK) {
        free(a);
        return rc;
    }
    if (vault_fd >= 0) {
        if ((r = uv_poll_init(loop, &a->poll, vault_fd)) != 0) {
            sup_auth_cache_free(&a->cache);
            free(a);
            return rc_fail(err, RC_IO, "the vault's channel: %s", uv_strerror(r));
        }
        a->poll.data = a;
        listen_for(a, false);
    }
    *out = a;
    return RC_OK;
}

void sup_auth_stop(struct sup_auth *a)
{
    if (!a || a->stopped)
        return;
    a->stopped = true;
    if (a->fd >= 0)
        uv_close((uv_handle_t *)&a->poll, NULL);
}

void sup_auth_free(struct sup_auth **ap)
{
    struct sup_auth *a = *ap;

    if (!a)
        return;
    while (a->asks) {
        while (a->asks->waiters) { /* their connections are gone already */
            struct waiter *w = a->asks->waiters;

            a->asks->waiters = w->next;
            free(w);
        }
        ask_end(a, &a->asks);
    }
    if (a->last)
        protobuf_c_message_free_unpacked(&a->last->base, NULL);
    sup_auth_cache_free(&a->cache);
    if (a->fd >= 0)
        close(a->fd);
    free(a);
    *ap = NULL;
}

struct sup_http_keys sup_auth_keys(struct sup_auth *a)
{
    struct sup_http_keys k = {.user = a};

    if (a->fd >= 0) {
        k.ask = ask;
        k.forget = forget;
    }
    return k;
}

bool sup_auth_ready(const struct sup_auth *a)
{
    return !a || a->fd < 0 || (a->known && !a->lost);
}

bool sup_auth_vault_walls(const struct sup_auth *a, struct sup_walls_told *out)
{
    if (!a || a->fd < 0)
        return false;
    *out = a->last ? walls_of(a->last->changed) : (struct sup_walls_told){0};
    return true;
}

size_t sup_auth_keys_loaded(const struct sup_auth *a)
{
    return a && a->last ? a->last->changed->n_keys : 0;
}

bool sup_auth_audit_ok(const struct sup_auth *a)
{
    return !a || !a->last || !a->last->changed->audit_failed;
}
