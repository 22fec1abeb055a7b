/* test_sup_auth.c - the cache of good keys, and the questions to a vault that the test plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sys/socket.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_auth.h"
#include "sup_auth_cache.h"
#include "sup_conf.h"
#include "sup_metrics.h"
#include "vault.pb-c.h"

/* Stands for a request: what it was told. */
struct sup_req {
    int n_told;
    enum sup_auth_is is;
    struct sup_grant *grant;
};

void sup_req_known(struct sup_req *r, enum sup_auth_is verdict, struct sup_grant *grant)
{
    r->n_told++;
    r->is = verdict;
    r->grant = grant;
}

static struct sup_grant *grant(const char *tenant)
{
    Ipc__Grant from = IPC__GRANT__INIT;
    struct sup_grant *g = NULL;

    from.tenant = (char *)tenant;
    from.weight = 1;
    assert_int_equal(sup_grant_new(&g, &from, NULL), RC_OK);
    return g;
}

/* -------------------------------------------------------------------- cache */

static void the_cache_keeps_a_key_for_its_time(void **state)
{
    struct sup_auth_cache *c = NULL;
    struct sup_grant *g = grant("a");
    uint8_t d[SUP_AUTH_DIGEST], other[SUP_AUTH_DIGEST];

    (void)state;
    assert_int_equal(sup_auth_cache_new(&c, NULL), RC_OK);
    sup_auth_digest(c, "key", 3, d);
    sup_auth_digest(c, "kez", 3, other);
    assert_memory_not_equal(d, other, sizeof(d));
    assert_null(sup_auth_cache_get(c, d, 0));
    sup_auth_cache_put(c, d, g, 1000);
    assert_ptr_equal(sup_auth_cache_get(c, d, 1000 + SUP_AUTH_TTL_MS - 1), g);
    assert_null(sup_auth_cache_get(c, other, 1000));
    assert_null(sup_auth_cache_get(c, d, 1000 + SUP_AUTH_TTL_MS));
    assert_int_equal(sup_auth_cache_count(c), 0);
    sup_auth_cache_put(c, d, g, 5);
    sup_auth_cache_put(c, d, g, 6);
    assert_int_equal(sup_auth_cache_count(c), 1);
    assert_int_equal(g->refs, 2);
    sup_auth_cache_clear(c);
    assert_null(sup_auth_cache_get(c, d, 7));
    assert_int_equal(g->refs, 1);
    sup_auth_cache_free(&c);
    sup_grant_unref(&g);
}

static void digests_of_two_processes_differ(void **state)
{
    struct sup_auth_cache *a = NULL, *b = NULL;
    uint8_t da[SUP_AUTH_DIGEST], db[SUP_AUTH_DIGEST];

    (void)state;
    assert_int_equal(sup_auth_cache_new(&a, NULL), RC_OK);
    assert_int_equal(sup_auth_cache_new(&b, NULL), RC_OK);
    sup_auth_digest(a, "key", 3, da);
    sup_auth_digest(b, "key", 3, db);
    assert_memory_not_equal(da, db, sizeof(da));
    sup_auth_cache_free(&a);
    sup_auth_cache_free(&b);
}

static void the_cache_is_bounded_and_keeps_the_newest(void **state)
{
    struct sup_auth_cache *c = NULL;
    struct sup_grant *g = grant("a");
    uint8_t d[SUP_AUTH_DIGEST];
    unsigned n = SUP_AUTH_CACHE * 3;

    (void)state;
    assert_int_equal(sup_auth_cache_new(&c, NULL), RC_OK);
    for (unsigned i = 0; i < n; i++) {
        sup_auth_digest(c, &i, sizeof(i), d);
        sup_auth_cache_put(c, d, g, i);
        assert_ptr_equal(sup_auth_cache_get(c, d, i), g);
        assert_true(sup_auth_cache_count(c) <= SUP_AUTH_CACHE);
    }
    assert_true(sup_auth_cache_count(c) > SUP_AUTH_CACHE * 3 / 4);
    sup_auth_cache_free(&c);
    assert_int_equal(g->refs, 1);
    sup_grant_unref(&g);
}

/* ---------------------------------------------------------------- questions */

static struct rig {
    uv_loop_t loop;
    struct sup_metrics *metrics;
    struct sup_auth *auth;
    struct sup_http_keys keys;
    int vault; /* the vault's end */
    int n_lost;
} g;

static void on_lost(void *user)
{
    (void)user;
    g.n_lost++;
}

static int start(void **state)
{
    struct sup_conf conf = {.require_auth = (char *)"auto", .vault_dir = (char *)"/somewhere"};
    struct rc_err err = RC_ERR_INIT;
    int pair[2];

    (void)state;
    memset(&g, 0, sizeof(g));
    uv_loop_init(&g.loop);
    g.metrics = sup_metrics_new();
    assert_int_equal(ipc_pair(pair, NULL), RC_OK);
    g.vault = pair[1];
    assert_int_equal(sup_auth_new(&g.auth, &g.loop, pair[0], &conf, g.metrics, on_lost, NULL, &err),
                     RC_OK);
    g.keys = sup_auth_keys(g.auth);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    sup_auth_stop(g.auth);
    uv_run(&g.loop, UV_RUN_DEFAULT);
    sup_auth_free(&g.auth);
    close(g.vault);
    sup_metrics_free(&g.metrics);
    return uv_loop_close(&g.loop);
}

static enum sup_auth_is ask(struct sup_req *r, const char *key)
{
    enum sup_auth_is is = g.keys.ask(g.keys.user, r, key, strlen(key), &r->grant);

    r->is = is;
    return is;
}

/* The next question that reached the vault: its number, and the key. */
static uint64_t vault_hears(char *key)
{
    ProtobufCMessage *m = NULL;
    const Ipc__Vault *v;
    uint64_t req;

    if (ipc_recv(g.vault, &ipc__vault__descriptor, &m, NULL, NULL, NULL) != RC_OK)
        return 0;
    v = (const Ipc__Vault *)m;
    assert_int_equal(v->body_case, IPC__VAULT__BODY_CHECK);
    memcpy(key, v->check->token.data, v->check->token.len);
    key[v->check->token.len] = '\0';
    req = v->check->req;
    protobuf_c_message_free_unpacked(m, NULL);
    return req;
}

static void vault_says(const Ipc__Vault *v)
{
    assert_int_equal(ipc_send(g.vault, &v->base, NULL, 0, NULL), RC_OK);
    uv_run(&g.loop, UV_RUN_NOWAIT);
}

static void vault_answers(uint64_t req, enum rc code, uint64_t expires)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultChecked c = IPC__VAULT_CHECKED__INIT;
    Ipc__Grant from = IPC__GRANT__INIT;

    from.tenant = "acme";
    from.key_id = "k1";
    from.weight = 1;
    from.expires_unix_s = expires;
    c.req = req;
    c.code = (uint32_t)code;
    c.grant = code == RC_OK ? &from : NULL;
    v.body_case = IPC__VAULT__BODY_CHECKED;
    v.checked = &c;
    vault_says(&v);
}

static void vault_changed(void)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultChanged c = IPC__VAULT_CHANGED__INIT;

    c.n_keys = 3;
    c.pid = 7;
    v.body_case = IPC__VAULT__BODY_CHANGED;
    v.changed = &c;
    vault_says(&v);
}

static void a_key_is_asked_once_and_then_known(void **state)
{
    struct sup_req a = {0}, b = {0}, c = {0}, none = {0};
    char key[300];
    uint64_t req;

    (void)state;
    assert_int_equal(ask(&none, ""), SUP_AUTH_NO_KEY);
    assert_int_equal(ask(&a, "inf_1"), SUP_AUTH_ASKED);
    assert_int_equal(ask(&b, "inf_1"), SUP_AUTH_ASKED);
    req = vault_hears(key);
    assert_string_equal(key, "inf_1");
    fcntl(g.vault, F_SETFL, O_NONBLOCK);
    assert_int_equal(vault_hears(key), 0); /* the second one waits with the first */
    vault_answers(req, RC_OK, 0);
    assert_true(a.n_told == 1 && b.n_told == 1 && a.is == SUP_AUTH_OK && b.is == SUP_AUTH_OK);
    assert_string_equal(b.grant->tenant, "acme");
    assert_int_equal(ask(&c, "inf_1"), SUP_AUTH_OK);
    assert_ptr_equal(c.grant, a.grant);
    vault_changed();
    sup_grant_unref(&c.grant);
    assert_int_equal(ask(&c, "inf_1"), SUP_AUTH_ASKED);
    g.keys.forget(g.keys.user, &c);
    sup_grant_unref(&a.grant);
    sup_grant_unref(&b.grant);
}

static void what_the_vault_may_say_of_a_key(void **state)
{
    static const struct {
        enum rc code;
        enum sup_auth_is is;
    } rows[] = {{RC_NOT_FOUND, SUP_AUTH_BAD_KEY},
                {RC_DEADLINE, SUP_AUTH_EXPIRED},
                {RC_NOMEM, SUP_AUTH_BUSY}};
    char key[300];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct sup_req r = {0};

        assert_int_equal(ask(&r, "guess"), SUP_AUTH_ASKED); /* a no is not remembered */
        vault_answers(vault_hears(key), rows[i].code, 0);
        assert_int_equal(r.n_told, 1);
        assert_int_equal(r.is, rows[i].is);
        assert_null(r.grant);
    }
    assert_int_equal(g.n_lost, 0);
}

static void a_known_key_expires_in_time(void **state)
{
    struct sup_req r = {0};
    char key[300];

    (void)state;
    assert_int_equal(ask(&r, "k"), SUP_AUTH_ASKED);
    vault_answers(vault_hears(key), RC_OK, (uint64_t)time(NULL) + 1);
    assert_int_equal(r.is, SUP_AUTH_OK);
    sup_grant_unref(&r.grant);
    sleep(2);
    assert_int_equal(ask(&r, "k"), SUP_AUTH_EXPIRED);
}

static void a_key_too_long_is_no_key(void **state)
{
    char text[SUP_AUTH_KEY_MAX + 2];
    struct sup_req r = {0};

    (void)state;
    memset(text, 'k', sizeof(text));
    text[SUP_AUTH_KEY_MAX + 1] = '\0';
    assert_int_equal(ask(&r, text), SUP_AUTH_BAD_KEY);
    text[SUP_AUTH_KEY_MAX] = '\0';
    assert_int_equal(ask(&r, text), SUP_AUTH_ASKED);
    g.keys.forget(g.keys.user, &r);
}

static void a_request_that_left_is_told_nothing(void **state)
{
    struct sup_req a = {0}, b = {0};
    char key[300];

    (void)state;
    ask(&a, "k");
    ask(&b, "k");
    g.keys.forget(g.keys.user, &a);
    vault_answers(vault_hears(key), RC_NOT_FOUND, 0);
    assert_int_equal(a.n_told, 0);
    assert_int_equal(b.n_told, 1);
}

/* More questions than the channel holds: none is lost, and beyond the limit it says so. */
static void many_questions_wait_their_turn(void **state)
{
    static struct sup_req r[SUP_AUTH_ASKS + 1];
    char text[40], key[300];

    (void)state;
    memset(r, 0, sizeof(r));
    for (unsigned i = 0; i <= SUP_AUTH_ASKS; i++) {
        snprintf(text, sizeof(text), "key-%u", i);
        assert_int_equal(ask(&r[i], text), i < SUP_AUTH_ASKS ? SUP_AUTH_ASKED : SUP_AUTH_BUSY);
    }
    fcntl(g.vault, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < SUP_AUTH_ASKS; i++) {
        uint64_t req = vault_hears(key);

        if (!req) {
            uv_run(&g.loop, UV_RUN_NOWAIT);
            req = vault_hears(key);
        }
        snprintf(text, sizeof(text), "key-%u", i);
        assert_string_equal(key, text);
        vault_answers(req, RC_NOT_FOUND, 0);
        assert_int_equal(r[i].n_told, 1);
    }
    assert_int_equal(g.n_lost, 0);
}

static void a_vault_that_speaks_out_of_turn_is_lost(void **state)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultReload reload = IPC__VAULT_RELOAD__INIT;
    struct sup_req r = {0};

    (void)state;
    assert_false(sup_auth_ready(g.auth));
    vault_changed();
    assert_true(sup_auth_ready(g.auth));
    ask(&r, "k");
    v.body_case = IPC__VAULT__BODY_RELOAD;
    v.reload = &reload;
    vault_says(&v);
    assert_int_equal(g.n_lost, 1);
    assert_int_equal(r.is, SUP_AUTH_BUSY);
    assert_int_equal(ask(&r, "k2"), SUP_AUTH_BUSY);
    assert_false(sup_auth_ready(g.auth));
}

static void an_answer_to_nothing_is_a_breach(void **state)
{
    (void)state;
    vault_answers(77, RC_OK, 0);
    assert_int_equal(g.n_lost, 1);
}

static void a_yes_with_a_malformed_grant_is_a_breach(void **state)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultChecked c = IPC__VAULT_CHECKED__INIT;
    struct sup_req r = {0};
    char key[300];

    (void)state;
    ask(&r, "k");
    c.req = vault_hears(key);
    v.body_case = IPC__VAULT__BODY_CHECKED;
    v.checked = &c;
    vault_says(&v); /* code OK, no grant */
    assert_int_equal(g.n_lost, 1);
    assert_int_equal(r.is, SUP_AUTH_BUSY);
}

static void the_end_of_the_vault_is_heard(void **state)
{
    (void)state;
    shutdown(g.vault, SHUT_RDWR);
    uv_run(&g.loop, UV_RUN_NOWAIT);
    assert_int_equal(g.n_lost, 1);
}

static void keys_asked_for_without_a_vault_are_an_error(void **state)
{
    struct sup_conf conf = {.require_auth = (char *)"auto", .vault_dir = (char *)"/x"};
    struct sup_auth *a = NULL;

    (void)state;
    assert_int_equal(sup_auth_new(&a, &g.loop, -1, &conf, g.metrics, NULL, NULL, NULL),
                     RC_INTERNAL);
    conf.vault_dir = (char *)"";
    assert_int_equal(sup_auth_new(&a, &g.loop, -1, &conf, g.metrics, NULL, NULL, NULL), RC_OK);
    assert_null(sup_auth_keys(a).ask);
    assert_true(sup_auth_ready(a));
    sup_auth_free(&a);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_keeps_a_key_for_its_time),
        cmocka_unit_test(digests_of_two_processes_differ),
        cmocka_unit_test(the_cache_is_bounded_and_keeps_the_newest),
        T(a_key_is_asked_once_and_then_known),
        T(what_the_vault_may_say_of_a_key),
        T(a_known_key_expires_in_time),
        T(a_key_too_long_is_no_key),
        T(a_request_that_left_is_told_nothing),
        T(many_questions_wait_their_turn),
        T(a_vault_that_speaks_out_of_turn_is_lost),
        T(an_answer_to_nothing_is_a_breach),
        T(a_yes_with_a_malformed_grant_is_a_breach),
        T(the_end_of_the_vault_is_heard),
        T(keys_asked_for_without_a_vault_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
