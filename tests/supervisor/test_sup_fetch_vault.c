/* test_sup_fetch_vault.c - what the fetcher makes of the vault's words, and of its silence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_fetch_vault.h"
#include "sup_req.h"
#include "vault.pb-c.h"

#define SILENCE_MS 300

/* What the vault says to the question it got. */
struct says {
    const char *says;
    uint32_t code;
    size_t n;    /* bytes of the secret */
    bool zero;   /* one of them is a NUL */
    bool before; /* other words go before the answer */
    bool silent, leaves;
    enum rc want;
    bool given;
};

struct talk {
    int fd;
    const struct says *s;
    char origin[SUP_ORIGIN_MAX];
    const char *secret;
};

static void say(int fd, uint64_t req, uint32_t code, const char *secret, size_t n)
{
    Ipc__Vault m = IPC__VAULT__INIT;
    Ipc__VaultGives g = IPC__VAULT_GIVES__INIT;

    g.req = req;
    g.code = code;
    g.secret.data = (uint8_t *)(uintptr_t)secret;
    g.secret.len = n;
    m.body_case = IPC__VAULT__BODY_GIVES;
    m.gives = &g;
    if (ipc_send(fd, &m.base, NULL, 0, NULL) != RC_OK)
        abort();
}

static void *vault(void *user)
{
    struct talk *t = user;
    const struct says *s = t->s;
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    Ipc__Vault changed = IPC__VAULT__INIT;
    Ipc__VaultChanged c = IPC__VAULT_CHANGED__INIT;
    ProtobufCMessage *raw = NULL;
    uint64_t req;

    if (poll(&p, 1, 30000) != 1 ||
        ipc_recv(t->fd, &ipc__vault__descriptor, &raw, NULL, NULL, NULL) != RC_OK ||
        ((Ipc__Vault *)raw)->body_case != IPC__VAULT__BODY_WANT)
        abort();
    snprintf(t->origin, sizeof(t->origin), "%s", ((Ipc__Vault *)raw)->want->origin);
    req = ((Ipc__Vault *)raw)->want->req;
    protobuf_c_message_free_unpacked(raw, NULL);
    if (s->before) {
        changed.body_case = IPC__VAULT__BODY_CHANGED;
        changed.changed = &c;
        if (ipc_send(t->fd, &changed.base, NULL, 0, NULL) != RC_OK)
            abort();
        say(t->fd, req + 7, RC_OK, "another question's", 18);
    }
    if (s->leaves)
        close(t->fd);
    else if (!s->silent)
        say(t->fd, req, s->code, t->secret, s->n);
    return NULL;
}

static void answers(void **state)
{
    static const struct says rows[] = {
        {.says = "none is kept", .code = RC_NOT_FOUND, .want = RC_OK},
        {.says = "a short one", .n = 1, .want = RC_OK, .given = true},
        {.says = "the longest", .n = SUP_SECRET_BYTES, .want = RC_OK, .given = true},
        {.says = "behind other words", .n = 100, .before = true, .want = RC_OK, .given = true},
        {.says = "one byte too long", .n = SUP_SECRET_BYTES + 1, .want = RC_FORMAT},
        {.says = "an empty one", .n = 0, .want = RC_FORMAT},
        {.says = "a zero in it", .n = 100, .zero = true, .want = RC_FORMAT},
        {.says = "it has no memory", .code = RC_NOMEM, .want = RC_BUSY},
        {.says = "a code that is none", .code = 999, .want = RC_BUSY},
        {.says = "it is silent", .silent = true, .want = RC_BUSY},
        {.says = "it answers others only", .silent = true, .before = true, .want = RC_BUSY},
        {.says = "it leaves", .leaves = true, .want = RC_BUSY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char sent[SUP_SECRET_BYTES + 2], got[SUP_SECRET_BYTES + 1] = "what was there";
        struct rc_err err = RC_ERR_INIT;
        struct sup_fetch_vault v;
        struct talk t = {.s = &rows[i], .secret = sent};
        pthread_t thread;
        int pair[2];
        enum rc rc;

        memset(sent, 'x', sizeof(sent));
        if (rows[i].zero)
            sent[50] = '\0';
        assert_int_equal(ipc_pair(pair, NULL), RC_OK);
        t.fd = pair[1];
        sup_fetch_vault_init(&v, pair[0]);
        v.wait_ms = rows[i].silent ? SILENCE_MS : 30000;
        assert_int_equal(pthread_create(&thread, NULL, vault, &t), 0);
        rc = sup_fetch_vault_ask(&v, "https://Hub.example/api?x", got, &err);
        pthread_join(thread, NULL);
        if (rc != rows[i].want)
            fail_msg("%s: %s (%s)", rows[i].says, rc_name(rc), err.msg);
        assert_string_equal(t.origin, "https://hub.example:443");
        assert_int_equal(strlen(got), rows[i].given ? rows[i].n : 0);
        assert_memory_equal(got, sent, strlen(got));
        assert_true(rc == RC_OK || err.msg[0]);
        assert_null(strstr(err.msg, "xxxx")); /* no secret in a message */
        if (rows[i].leaves) {                 /* and it stays an error, not "there is none" */
            assert_int_equal(v.fd, -1);
            assert_int_equal(sup_fetch_vault_ask(&v, "https://hub.example", got, &err), RC_BUSY);
            assert_non_null(strstr(err.msg, "it has gone"));
        } else {
            close(pair[0]);
            close(pair[1]);
        }
    }
}

static void without_a_vault_there_is_none(void **state)
{
    char got[SUP_SECRET_BYTES + 1] = "x";
    struct rc_err err = RC_ERR_INIT;
    struct sup_fetch_vault v;

    (void)state;
    sup_fetch_vault_init(&v, -1);
    assert_int_equal(v.wait_ms, SUP_FETCH_VAULT_MS);
    assert_int_equal(sup_fetch_vault_ask(&v, "https://hub.example", got, &err), RC_OK);
    assert_string_equal(got, "");
    sup_fetch_vault_hear(&v); /* nothing to hear */
}

/* An answer that comes too late is nobody's. */
static void a_late_answer_is_forgotten(void **state)
{
    static const struct says silent = {.silent = true}, good = {.n = 5};
    char got[SUP_SECRET_BYTES + 1];
    struct rc_err err = RC_ERR_INIT;
    struct sup_fetch_vault v;
    struct talk t = {.s = &silent, .secret = "right"};
    pthread_t thread;
    uint64_t begun;
    int pair[2];

    (void)state;
    assert_int_equal(ipc_pair(pair, NULL), RC_OK);
    t.fd = pair[1];
    sup_fetch_vault_init(&v, pair[0]);
    v.wait_ms = SILENCE_MS;
    begun = sup_req_now_ms();
    assert_int_equal(pthread_create(&thread, NULL, vault, &t), 0);
    assert_int_equal(sup_fetch_vault_ask(&v, "https://hub.example", got, &err), RC_BUSY);
    assert_true(sup_req_now_ms() - begun >= SILENCE_MS); /* it was waited for */
    pthread_join(thread, NULL);
    say(pair[1], 1, RC_OK, "late!", 5);
    sup_fetch_vault_hear(&v);
    say(pair[1], 1, RC_OK, "again", 5);
    t.s = &good;
    v.wait_ms = 30000;
    assert_int_equal(pthread_create(&thread, NULL, vault, &t), 0);
    assert_int_equal(sup_fetch_vault_ask(&v, "https://hub.example", got, &err), RC_OK);
    pthread_join(thread, NULL);
    assert_string_equal(got, "right");
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(without_a_vault_there_is_none),
        cmocka_unit_test(a_late_answer_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
