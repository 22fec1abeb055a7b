/* sup_vault.c - the vault's loop, its table of messages, its state; sup_vault.h.
 *
 * One poll over the channels. An answer that a peer does not take at once is kept, one per
 * peer, and that peer is not read until it was taken: no queue can grow. Blocks nowhere but
 * in poll and in the files of its folder. Tests: tests/supervisor/test_sup_vault.c
 */
#include "sup_vault.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_audit.h"
#include "sup_conf.h"
#include "sup_json.h"
#include "sup_keys.h"
#include "sup_log.h"
#include "sup_master.h"
#include "sup_role.h"
#include "sup_secrets.h"
#include "sup_vault_dir.h"
#include "sup_vault_sandbox.h"

enum who { LAUNCHER, FRONT, FETCHER, N_PEERS };
static const char *const names[N_PEERS] = {"launcher", "front", "fetcher"};

struct peer {
    int fd;       /* -1 = none, or ended */
    uint8_t *out; /* packed answer that waits, wiped when it was taken */
    size_t n_out;
};

struct vault {
    const struct sup_conf *conf;
    int dir_fd;
    struct peer peer[N_PEERS];
    struct sup_keys keys;
    struct sup_secrets secrets;
    uint8_t *master; /* NULL: credentials stay sealed */
    int key_fd;      /* the master key's file, come with the message in work; -1 = none */
    uint64_t generation;
    bool audit_failed; /* the last line of the audit log */
    struct sup_walls_layer layer[SUP_VAULT_LAYERS];
};

bool sup_vault_wanted(const struct sup_conf *conf)
{
    return conf->vault_dir[0] != '\0';
}

/* ------------------------------------------------------------------ channels */

static void peer_out_free(struct peer *p)
{
    if (p->out)
        sodium_memzero(p->out, p->n_out);
    free(p->out);
    p->out = NULL;
    p->n_out = 0;
}

static void peer_end(struct vault *v, enum who w, const char *why)
{
    struct peer *p = &v->peer[w];

    if (p->fd < 0)
        return;
    if (why)
        SUP_LOG(SUP_ERROR, "vault_peer_ended", SUP_S("peer", names[w]), SUP_S("why", why));
    peer_out_free(p);
    close(p->fd);
    p->fd = -1;
}

static void peer_flush(struct vault *v, enum who w)
{
    struct peer *p = &v->peer[w];
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    if (p->fd < 0 || !p->out)
        return;
    rc = ipc_send_packed(p->fd, p->out, p->n_out, NULL, 0, &err);
    if (rc == RC_AGAIN)
        return;
    peer_out_free(p);
    if (rc != RC_OK)
        peer_end(v, w, rc == RC_CLOSED ? NULL : err.msg);
}

/* Waits for room when an answer is there already: only VaultChanged can meet one. */
static void say(struct vault *v, enum who w, const Ipc__Vault *m)
{
    struct peer *p = &v->peer[w];
    size_t n = protobuf_c_message_get_packed_size(&m->base);

    while (p->fd >= 0 && p->out) {
        struct pollfd room = {.fd = p->fd, .events = POLLOUT};

        if (poll(&room, 1, 5000) == 0) {
            peer_end(v, w, "it does not read what the vault says");
            return;
        }
        peer_flush(v, w);
    }
    if (p->fd < 0)
        return;
    if (!(p->out = malloc(n))) {
        peer_end(v, w, "no memory for an answer");
        return;
    }
    p->n_out = protobuf_c_message_pack(&m->base, p->out);
    peer_flush(v, w);
}

/* --------------------------------------------------------------------- state */

/* How many can be given out. */
static size_t n_secrets(const struct vault *v)
{
    return v->secrets.plain ? v->secrets.n : 0;
}

static void tell_changed(struct vault *v, const struct rc_err *err)
{
    Ipc__Vault m = IPC__VAULT__INIT;
    Ipc__VaultChanged c = IPC__VAULT_CHANGED__INIT;
    char *layers[SUP_WALLS_MAX];
    struct sup_walls_told walls;

    c.generation = v->generation;
    c.audit_failed = v->audit_failed;
    c.n_keys = (uint32_t)v->keys.n;
    c.n_secrets = (uint32_t)n_secrets(v);
    if (err) {
        c.error.data = (uint8_t *)err->msg;
        c.error.len = strlen(err->msg);
    }
    sup_walls_tell(v->layer, SUP_VAULT_LAYERS, layers, &walls);
    c.pid = walls.pid;
    c.sandbox = (char **)walls.held;
    c.n_sandbox = walls.n_held;
    c.missing = (char **)walls.missing;
    c.n_missing = walls.n_missing;
    m.body_case = IPC__VAULT__BODY_CHANGED;
    m.changed = &c;
    say(v, FRONT, &m);
    say(v, FETCHER, &m);
}

/* The front hears when it begins to fail and when it works again. */
static void audit(struct vault *v, const char *act, const char *who, const char *fields)
{
    struct rc_err err = RC_ERR_INIT;
    bool failed =
        sup_audit_write(v->dir_fd, time(NULL), act, who, fields, SUP_AUDIT_BYTES, &err) != RC_OK;

    if (failed)
        SUP_LOG(SUP_ERROR, "audit_failed", SUP_S("act", act), SUP_S("who", who),
                SUP_S("error", err.msg));
    if (failed == v->audit_failed)
        return;
    v->audit_failed = failed;
    tell_changed(v, NULL);
}

/* Without a master key they stay sealed, and nobody is given any. */
static enum rc open_secrets(struct sup_secrets *s, const uint8_t *master, struct rc_err *err)
{
    if (master)
        return sup_secrets_open(s, master, err);
    if (s->n)
        SUP_LOG(SUP_WARN, "credentials_sealed", SUP_I("credentials", s->n),
                SUP_S("hint", "no master key: set vault_key_file"));
    return RC_OK;
}

/* All of the new state, or the old one. */
static enum rc load(struct vault *v, const uint8_t *master, bool *key_refused, struct rc_err *err)
{
    struct sup_keys keys = {0};
    struct sup_secrets secrets = {0};
    enum rc rc;

    *key_refused = false;
    if ((rc = sup_keys_load(&keys, v->dir_fd, v->conf->vault_dir, err)) == RC_OK &&
        (rc = sup_secrets_load(&secrets, v->dir_fd, v->conf->vault_dir, err)) == RC_OK &&
        (rc = open_secrets(&secrets, master, err)) == RC_CONFLICT)
        *key_refused = true;
    if (rc != RC_OK) {
        sup_keys_deinit(&keys);
        sup_secrets_deinit(&secrets);
        return rc;
    }
    sup_keys_deinit(&v->keys);
    sup_secrets_deinit(&v->secrets);
    v->keys = keys;
    v->secrets = secrets;
    return RC_OK;
}

/* The key that came with the message, when it is another one than ours; NULL = none, or it is no
 * key, which the log says: what is known goes on. */
static uint8_t *next_master(struct vault *v)
{
    struct rc_err err = RC_ERR_INIT;
    uint8_t *key = NULL;

    if (v->key_fd < 0)
        return NULL;
    if (sup_master_read_fd(&key, v->key_fd, "vault_key_file", &err) != RC_OK)
        SUP_LOG(SUP_ERROR, "master_key_refused", SUP_S("error", err.msg),
                SUP_S("goes_on_with", "the key of before"));
    else if (v->master && sodium_memcmp(key, v->master, SUP_MASTER_BYTES) == 0)
        sup_master_free(&key);
    return key;
}

/* The key file and the credentials change one after the other, so either key may be the one that
 * opens them just now; the one that does is ours from then on. */
static enum rc load_with_either(struct vault *v, struct rc_err *err)
{
    uint8_t *next = next_master(v);
    struct rc_err why = RC_ERR_INIT;
    bool refused;
    enum rc rc;

    if (!next) {
        rc = load(v, v->master, &refused, err);
    } else if ((rc = load(v, next, &refused, &why)) == RC_OK) {
        sup_master_free(&v->master);
        v->master = next;
        next = NULL;
        SUP_LOG(SUP_INFO, "master_key_taken", SUP_I("credentials", n_secrets(v)));
        audit(v, "master_key.taken", "vault", "");
    } else if (!refused || !v->master) {
        *err = why;
    } else if ((rc = load(v, v->master, &refused, err)) == RC_OK) {
        SUP_LOG(SUP_WARN, "master_key_refused", SUP_S("error", why.msg),
                SUP_S("goes_on_with", "the key of before"));
        audit(v, "master_key.refused", "vault", "");
    }
    if (refused)
        audit(v, "master_key.refused", "vault", "");
    sup_master_free(&next);
    return rc;
}

/* ---------------------------------------------------------- what may be said */

static void on_reload(struct vault *v, enum who w, const Ipc__Vault *in)
{
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = load_with_either(v, &err);

    (void)w, (void)in;
    if (rc == RC_OK) {
        v->generation++;
        SUP_LOG(SUP_INFO, "vault_reloaded", SUP_I("keys", v->keys.n),
                SUP_I("credentials", n_secrets(v)), SUP_I("generation", v->generation));
    } else {
        SUP_LOG(SUP_ERROR, "vault_reload_failed", SUP_S("error", err.msg),
                SUP_S("goes_on_with", "what was read before"));
    }
    audit(v, rc == RC_OK ? "vault.reload" : "vault.reload_failed", "signal", "");
    tell_changed(v, rc == RC_OK ? NULL : &err);
}

static void on_check(struct vault *v, enum who w, const Ipc__Vault *in)
{
    Ipc__Vault m = IPC__VAULT__INIT;
    Ipc__VaultChecked c = IPC__VAULT_CHECKED__INIT;
    Ipc__Grant g;
    const struct sup_key *k = NULL;
    uint64_t until = 0;
    enum rc rc = sup_keys_check(&v->keys, in->check->token.data, in->check->token.len,
                                (uint64_t)time(NULL), &k, &until);

    c.req = in->check->req;
    c.code = (uint32_t)rc;
    if (rc == RC_OK) {
        sup_key_grant(k, until, &g);
        c.grant = &g;
    }
    m.body_case = IPC__VAULT__BODY_CHECKED;
    m.checked = &c;
    say(v, w, &m);
    if (in->check->token.len)
        sodium_memzero(in->check->token.data, in->check->token.len);
}

/* One origin, exactly as it was set: a fetcher gone mad learns nothing by trying others'. */
static void on_want(struct vault *v, enum who w, const Ipc__Vault *in)
{
    Ipc__Vault m = IPC__VAULT__INIT;
    Ipc__VaultGives g = IPC__VAULT_GIVES__INIT;
    size_t n = 0;
    const uint8_t *secret = sup_secrets_get(&v->secrets, in->want->origin, &n);

    g.req = in->want->req;
    g.code = secret ? RC_OK : RC_NOT_FOUND;
    g.secret.data = (uint8_t *)secret;
    g.secret.len = n;
    m.body_case = IPC__VAULT__BODY_GIVES;
    m.gives = &g;
    say(v, w, &m);
}

/* The front's words are quoted, so that it can forge no line of another act. */
static void on_audit(struct vault *v, enum who w, const Ipc__Vault *in)
{
    const ProtobufCBinaryData *f = &in->audit->fields;
    struct sup_json o = {.limit = 4 * SUP_AUDIT_LINE};

    (void)w;
    sup_json_str(&o, ",\"fields\":\"");
    sup_json_text(&o, f->data, f->len);
    sup_json_put(&o, "\"", 2); /* with its NUL */
    audit(v, in->audit->act, in->audit->who, o.failed ? ",\"fields\":\"too long\"" : o.p);
    sup_json_deinit(&o);
}

static const struct {
    enum who who;
    Ipc__Vault__BodyCase message;
    void (*handler)(struct vault *v, enum who w, const Ipc__Vault *in);
} cmds[] = {
    {LAUNCHER, IPC__VAULT__BODY_RELOAD, on_reload},
    {FRONT, IPC__VAULT__BODY_CHECK, on_check},
    {FRONT, IPC__VAULT__BODY_AUDIT, on_audit},
    {FETCHER, IPC__VAULT__BODY_WANT, on_want},
};

/* A descriptor is the launcher's to send, one with a message. */
static bool take_fds(struct vault *v, enum who w, const int *fds, size_t n)
{
    bool right = n == 0 || (n == 1 && w == LAUNCHER);

    for (size_t i = 0; i < n && !right; i++)
        close(fds[i]);
    v->key_fd = right && n ? fds[0] : -1;
    return right;
}

static void drop_fds(struct vault *v)
{
    if (v->key_fd >= 0)
        close(v->key_fd);
    v->key_fd = -1;
}

static void obey(struct vault *v, enum who w, const Ipc__Vault *in)
{
    for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++)
        if (cmds[i].who == w && cmds[i].message == in->body_case) {
            cmds[i].handler(v, w, in);
            return;
        }
    peer_end(v, w, "a message it may not send");
}

static void on_readable(struct vault *v, enum who w)
{
    struct rc_err err = RC_ERR_INIT;
    ProtobufCMessage *m = NULL;
    int fds[IPC_FDS_MAX];
    size_t n_fds = 0;
    enum rc rc = ipc_recv(v->peer[w].fd, &ipc__vault__descriptor, &m, fds, &n_fds, &err);

    if (rc == RC_AGAIN)
        return;
    if (rc != RC_OK) {
        peer_end(v, w, rc == RC_CLOSED ? NULL : err.msg);
        return;
    }
    if (take_fds(v, w, fds, n_fds))
        obey(v, w, (const Ipc__Vault *)m);
    else
        peer_end(v, w, "a descriptor it may not send");
    drop_fds(v);
    protobuf_c_message_free_unpacked(m, NULL);
}

/* --------------------------------------------------------------------- life */

static enum rc start(struct vault *v, struct rc_err *err)
{
    enum rc rc;

    signal(SIGPIPE, SIG_IGN);
    if (sodium_init() < 0)
        return rc_fail(err, RC_INTERNAL, "libsodium cannot start");
    json_object_seed(0); /* jansson would open /dev/urandom at its first object */
    /* before the walls: it lies outside the folder */
    if ((rc = sup_master_read(&v->master, v->conf->vault_key_file, getenv("CREDENTIALS_DIRECTORY"),
                              err)) != RC_OK ||
        (rc = sup_vault_dir_open(&v->dir_fd, v->conf->vault_dir, false, err)) != RC_OK ||
        (rc = sup_vault_sandbox(v->conf->sandbox, v->dir_fd, v->layer, err)) != RC_OK ||
        (rc = load_with_either(v, err)) != RC_OK)
        return rc;
    v->generation = 1;
    SUP_LOG(SUP_INFO, "vault_ready", SUP_S("vault_dir", v->conf->vault_dir),
            SUP_I("keys", v->keys.n), SUP_I("credentials", n_secrets(v)));
    tell_changed(v, NULL);
    return RC_OK;
}

static void run(struct vault *v)
{
    while (v->peer[LAUNCHER].fd >= 0) {
        struct pollfd p[N_PEERS];

        for (int i = 0; i < N_PEERS; i++)
            p[i] =
                (struct pollfd){.fd = v->peer[i].fd, .events = v->peer[i].out ? POLLOUT : POLLIN};
        if (poll(p, N_PEERS, -1) < 0 && errno != EINTR)
            return;
        for (int i = 0; i < N_PEERS; i++) {
            if (!p[i].revents || v->peer[i].fd < 0)
                continue;
            if (v->peer[i].out)
                peer_flush(v, (enum who)i);
            else
                on_readable(v, (enum who)i);
        }
    }
}

int sup_vault_main(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    struct vault v = {.conf = conf, .dir_fd = -1, .key_fd = -1};
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    v.peer[LAUNCHER].fd = fds->launcher;
    v.peer[FRONT].fd = fds->peer[SUP_ROLE_FRONT];
    v.peer[FETCHER].fd = fds->peer[SUP_ROLE_FETCHER];
    if ((rc = start(&v, &err)) == RC_OK)
        run(&v);
    else
        SUP_LOG(SUP_ERROR, "vault_start_failed", SUP_S("what", err.what), SUP_S("error", err.msg));
    for (int i = 0; i < N_PEERS; i++)
        peer_end(&v, (enum who)i, NULL);
    sup_keys_deinit(&v.keys);
    sup_secrets_deinit(&v.secrets);
    sup_master_free(&v.master);
    if (v.dir_fd >= 0)
        close(v.dir_fd);
    return rc == RC_OK ? 0 : 1;
}
