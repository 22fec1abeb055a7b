/* sup_auth.c - the front's side of the vault; sup_auth.h.
 *
 * Always true: every waiting request is in exactly one question, and gets one answer unless
 * it is forgotten; a key's bytes are gone once they were handed to the channel. Change with
 * care: on_answer, which must not run a handler (sup_req_known only notes the answer).
 * Tests: tests/supervisor/test_sup_auth.c, tests/e2e/keys.py
 */
#include "sup_auth.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_auth_ask.h"
#include "sup_auth_cache.h"
#include "sup_conf.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_walls.h"
#include "vault.pb-c.h"

#define AUDITS_MAX 256u /* acts that wait for the channel; more are only logged */

struct sup_auth {
    uv_loop_t *loop;
    uv_poll_t poll;
    int fd; /* -1 = no vault */
    int events;
    bool required, lost, stopped, known;
    struct sup_asks asks;
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

/* Takes each waiter off its question before the verdict is told. */
static void tell(struct sup_auth *a, struct sup_ask *q, enum sup_auth_is verdict,
                 struct sup_grant *g)
{
    struct sup_auth_waiter *w;

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
    sup_asks_wipe(&a->asks);
    for (struct sup_ask *q = a->asks.first; q; q = q->next)
        tell(a, q, SUP_AUTH_BUSY, NULL);
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
    enum rc rc;

    if (a->lost)
        return;
    rc = sup_asks_flush(&a->asks, a->fd, &err);
    if (rc == RC_OK || rc == RC_AGAIN)
        listen_for(a, rc == RC_AGAIN);
    else
        lost(a, err.msg);
}

static struct sup_ask *question(struct sup_auth *a, const uint8_t digest[SUP_AUTH_DIGEST],
                                const char *key, size_t n)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;
    struct sup_ask *q = sup_asks_about(&a->asks, digest);

    if (q || a->asks.n_questions >= SUP_AUTH_ASKS)
        return q;
    c.token.data = (uint8_t *)key;
    c.token.len = n;
    v.body_case = IPC__VAULT__BODY_CHECK;
    v.check = &c;
    return sup_asks_add_question(&a->asks, digest, &v);
}

static enum sup_auth_is ask_vault(struct sup_auth *a, struct sup_req *r,
                                  const uint8_t digest[SUP_AUTH_DIGEST], const char *key, size_t n)
{
    struct sup_ask *q = a->lost ? NULL : question(a, digest, key, n);

    if (!q)
        return SUP_AUTH_BUSY;
    flush(a); /* before r waits: nobody is told anything inside this call */
    return !a->lost && sup_ask_wait(q, r) ? SUP_AUTH_ASKED : SUP_AUTH_BUSY;
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

    sup_asks_forget(&a->asks, r);
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
    struct sup_ask *q = sup_asks_sent(&a->asks, c->req);
    enum sup_auth_is is;

    if (!q || !verdict_of(c->code, &is) || (is == SUP_AUTH_OK && !c->grant)) {
        lost(a, "an answer to nothing that was asked");
        return;
    }
    if (is == SUP_AUTH_OK && sup_grant_new(&g, c->grant, &err) != RC_OK) {
        lost(a, err.msg);
        return;
    }
    if (g)
        sup_auth_cache_put(a->cache, q->digest, g, uv_now(a->loop));
    tell(a, q, is, g);
    sup_asks_end(&a->asks, q);
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

    SUP_LOG(SUP_INFO, "admin_act", SUP_S("act", act), SUP_S("who", who), SUP_S("fields", fields));
    if (!a || a->fd < 0 || a->lost || a->stopped)
        return;
    m.act = (char *)act;
    m.who = (char *)who;
    m.fields.data = (uint8_t *)fields;
    m.fields.len = strlen(fields);
    v.body_case = IPC__VAULT__BODY_AUDIT;
    v.audit = &m;
    if (a->asks.n_acts >= AUDITS_MAX || !sup_asks_add_act(&a->asks, &v)) {
        SUP_LOG(SUP_WARN, "audit_lost", SUP_S("act", act), SUP_S("who", who));
        return;
    }
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
    sup_asks_init(&a->asks);
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
    sup_asks_deinit(&a->asks); /* who waited is gone already */
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
