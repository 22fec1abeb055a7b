/* test_sup_http_auth.c - a request's key: found, asked about before the body, judged, wiped.
 * Whoever knows the keys is played by the test. */
#include "http_harness.h"

#include "sup_grant.h"
#include "sup_http_priv.h"

#define H "Host: x\r\n"

static struct {
    struct sup_req *asked; /* of the last ASKED */
    char key[300];         /* as it came */
    int n_asked, n_forgotten, n_refused;
    bool later;           /* answer ASKED */
    enum sup_auth_is now; /* else this */
    bool admin;
    uint32_t endpoints;
    int n_early;
    bool full; /* no large body is wanted */
} k;

static struct sup_grant *grant(void)
{
    Ipc__Grant from = IPC__GRANT__INIT;
    struct sup_grant *g = NULL;

    from.tenant = "acme";
    from.key_id = "k1";
    from.weight = 2;
    from.admin = k.admin;
    from.endpoints = k.endpoints;
    assert_int_equal(sup_grant_new(&g, &from, NULL), RC_OK);
    return g;
}

static enum sup_auth_is ask(void *user, struct sup_req *r, const char *key, size_t n,
                            struct sup_grant **out)
{
    (void)user;
    k.n_asked++;
    snprintf(k.key, sizeof(k.key), "%.*s", (int)n, n ? key : "");
    k.asked = r;
    if (k.later)
        return SUP_AUTH_ASKED;
    if (k.now == SUP_AUTH_OK)
        *out = grant();
    return k.now;
}

static void forget(void *user, struct sup_req *r)
{
    (void)user;
    assert_ptr_equal(r, k.asked);
    k.n_forgotten++;
}

static void refuse(struct sup_req *r, void *user, enum sup_auth_is why)
{
    char text[32];

    (void)user;
    k.n_refused++;
    snprintf(text, sizeof(text), "why=%d", (int)why);
    sup_reply(r,
              why == SUP_AUTH_SCOPE  ? 403
              : why == SUP_AUTH_BUSY ? 503
                                     : 401,
              "text/plain", text, strlen(text));
}

static bool early(struct sup_req *r, void *user)
{
    (void)user;
    k.n_early++;
    if (k.full)
        sup_reply(r, 429, "text/plain", sup_req_grant(r)->tenant, 4);
    return !k.full;
}

/* Says who asked, and whether the key can still be seen. */
static void h_who(struct sup_req *r, void *user)
{
    const struct sup_grant *g = sup_req_grant(r);
    const char *a = sup_req_header(r, "authorization"), *x = sup_req_header(r, "x-api-key");
    char text[200];
    size_t n;

    (void)user;
    sup_req_body(r, &n);
    snprintf(text, sizeof(text), "who=%s:%s:%u seen=%s%s body=%zu", g->tenant, g->key_id, g->weight,
             a ? a : "", x ? x : "", n);
    sup_reply(r, 200, "text/plain", text, strlen(text));
}

static const struct sup_route routes[] = {
    {"GET", "/open", h_who, "open", .open = true},
    {"GET", "/who", h_who, "who"},
    {"POST", "/who", h_who, "who"},
    {"POST", "/embed", h_who, "embed", .scope = SUP_SCOPE_EMBED},
    {"POST", "/load", h_who, "load", .admin = true},
    {0},
};

static struct rig *rig_with_keys(bool keys)
{
    const struct sup_http_keys hooks = {ask, forget, refuse, NULL};
    struct rig *g = rig_new();

    memset(&k, 0, sizeof(k));
    assert_int_equal(sup_http_new(&g->http, &g->loop, &g->conf, g->metrics, routes, g, NULL),
                     RC_OK);
    if (keys)
        sup_http_keys(g->http, &hooks);
    sup_http_early(g->http, early);
    assert_int_equal(sup_http_start(g->http, NULL), RC_OK);
    return g;
}

static struct client talk(struct rig *g, const char *text)
{
    struct client c = c_open(g);

    c_text(g, &c, text);
    READ_UNTIL(g, &c, answered(&c));
    return c;
}

static void where_the_key_stands(void **state)
{
    static const struct {
        const char *headers, *key;
    } rows[] = {
        {"Authorization: Bearer inf_a_b\r\n", "inf_a_b"},
        {"authorization: bearer   inf_a_b\r\n", "inf_a_b"},
        {"X-API-Key: inf_a_b\r\n", "inf_a_b"},
        {"X-API-Key: one\r\nAuthorization: Bearer two\r\n", "one"},
        {"Authorization: Bearer \r\nX-API-Key: two\r\n", "two"}, /* the key of the first is empty */
        {"Authorization: BEARER\r\n", ""},
        {"Authorization: Bearerx\r\n", "Bearerx"},
        {"Authorization: Basic dTpw\r\n", "Basic dTpw"},
        {"Authorization: Bearer\tx\r\n", "Bearer\tx"},
        {"Authorization:\r\n", ""},
        {"Proxy-Authorization: Bearer x\r\n", ""},
    };
    struct rig *g = rig_with_keys(true);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[300];
        struct client c;

        snprintf(text, sizeof(text), "GET /who HTTP/1.1\r\n" H "%s\r\n", rows[i].headers);
        c = talk(g, text);
        assert_string_equal(k.key, rows[i].key);
        assert_non_null(strstr(c.in, "who=acme:k1:2 seen= body=0"));
        c_free(&c);
    }
    rig_free(g);
}

static void where_nobody_needs_a_key_all_are_anonymous(void **state)
{
    struct rig *g = rig_with_keys(false);
    struct client c = talk(g, "POST /load HTTP/1.1\r\n" H "Authorization: Bearer any\r\n"
                              "Content-Length: 2\r\n\r\nab");

    (void)state;
    assert_non_null(strstr(c.in, "who=default::1 seen= body=2"));
    c_free(&c);
    rig_free(g);
}

static void a_probe_is_answered_without_a_question(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;

    (void)state;
    k.now = SUP_AUTH_BAD_KEY;
    c = talk(g, "GET /open HTTP/1.1\r\n" H "X-Api-Key: secret\r\n\r\n");
    assert_int_equal(status_of(&c), 200);
    assert_non_null(strstr(c.in, "who=default::1 seen= "));
    c_free(&c);
    c = talk(g, "GET /nowhere HTTP/1.1\r\n" H "\r\n");
    assert_int_equal(status_of(&c), 404);
    assert_int_equal(k.n_asked, 0);
    c_free(&c);
    rig_free(g);
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *request;
        enum sup_auth_is now, why;
        bool admin;
        uint32_t endpoints;
        int status;
        const char *header; /* in the answer */
    } rows[] = {
        {"GET /who HTTP/1.1\r\n" H "\r\n", SUP_AUTH_NO_KEY, SUP_AUTH_NO_KEY, false, 0, 401,
         "WWW-Authenticate: Bearer realm=\"inferd\"\r\n"},
        {"GET /who HTTP/1.1\r\n" H "\r\n", SUP_AUTH_BAD_KEY, SUP_AUTH_BAD_KEY, false, 0, 401,
         "error=\"invalid_token\""},
        {"GET /who HTTP/1.1\r\n" H "\r\n", SUP_AUTH_EXPIRED, SUP_AUTH_EXPIRED, false, 0, 401,
         "error=\"invalid_token\""},
        {"GET /who HTTP/1.1\r\n" H "\r\n", SUP_AUTH_BUSY, SUP_AUTH_BUSY, false, 0, 503, ""},
        {"POST /load HTTP/1.1\r\n" H "\r\n", SUP_AUTH_OK, SUP_AUTH_SCOPE, false, 0, 403, ""},
        {"POST /load HTTP/1.1\r\n" H "\r\n", SUP_AUTH_OK, SUP_AUTH_OK, true, 0, 200, ""},
        {"POST /embed HTTP/1.1\r\n" H "\r\n", SUP_AUTH_OK, SUP_AUTH_SCOPE, true, SUP_SCOPE_GENERATE,
         403, ""},
        {"POST /embed HTTP/1.1\r\n" H "\r\n", SUP_AUTH_OK, SUP_AUTH_OK, false, SUP_SCOPE_EMBED, 200,
         ""},
    };
    struct rig *g = rig_with_keys(true);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char why[32];
        struct client c;

        k.now = rows[i].now;
        k.admin = rows[i].admin;
        k.endpoints = rows[i].endpoints;
        c = talk(g, rows[i].request);
        assert_int_equal(status_of(&c), rows[i].status);
        assert_non_null(strstr(c.in, rows[i].header));
        snprintf(why, sizeof(why), "why=%d", (int)rows[i].why);
        assert_true(rows[i].status == 200 || strstr(c.in, why));
        /* without a body the connection goes on */
        k.now = SUP_AUTH_OK;
        c.n = 0;
        c_text(g, &c, "GET /who HTTP/1.1\r\n" H "\r\n");
        READ_UNTIL(g, &c, answered(&c));
        assert_int_equal(status_of(&c), 200);
        c_free(&c);
    }
    rig_free(g);
}

static void a_refused_body_stays_unread(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;

    (void)state;
    k.now = SUP_AUTH_BAD_KEY;
    c = c_open(g);
    c_text(g, &c, "POST /who HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 401); /* and no 100 before it */
    c_text(g, &c, "helloGET /who HTTP/1.1\r\n" H "\r\n");
    shutdown(c.fd, SHUT_WR);
    READ_UNTIL(g, &c, c.closed);
    assert_int_equal(count(c.in, "HTTP/1.1 "), 1); /* what came behind is no request */
    assert_false(c.reset);
    assert_int_equal(g->http->env.body_used, 0);
    c_free(&c);
    rig_free(g);
}

/* Who has no room says so before a large body comes, and is asked of nothing else. */
static void a_large_body_may_be_refused_by_its_head(void **state)
{
    static const struct {
        const char *head;
        bool full, asked;
        int status; /* 0: the body is awaited */
    } rows[] = {
        {"POST /who HTTP/1.1\r\n" H "Content-Length: 65537\r\n\r\n", true, true, 429},
        {"POST /who HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n", true, true, 429},
        {"POST /who HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", true, true,
         429},
        {"POST /who HTTP/1.1\r\n" H "Content-Length: 65537\r\n\r\n", false, true, 0},
        {"POST /who HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", true, false, 200},
        {"GET /open HTTP/1.1\r\n" H "Content-Length: 65537\r\n\r\n", true, false, 0},
    };
    struct rig *g = rig_with_keys(true);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client c = c_open(g);

        k.now = SUP_AUTH_OK;
        k.full = rows[i].full;
        k.n_early = 0;
        c_text(g, &c, rows[i].head);
        if (rows[i].status) {
            READ_UNTIL(g, &c, answered(&c));
            assert_int_equal(status_of(&c), rows[i].status);
        } else {
            for (int t = 0; t < 20; t++)
                turn(g);
            c_read(&c);
            assert_int_equal(c.n, 0);
        }
        assert_int_equal(k.n_early, rows[i].asked);
        if (rows[i].status == 429) { /* what comes behind it is no request */
            assert_non_null(strstr(c.in, "acme"));
            c_text(g, &c, "GET /who HTTP/1.1\r\n" H "\r\n");
            shutdown(c.fd, SHUT_WR);
            READ_UNTIL(g, &c, c.closed);
            assert_int_equal(count(c.in, "HTTP/1.1 "), 1);
            assert_false(c.reset);
        }
        c_free(&c);
    }
    rig_free(g);
}

/* The same where the sender is known later; a body that is wanted is read whole. */
static void a_large_body_waits_for_its_sender(void **state)
{
    struct rig *g = rig_with_keys(true);
    static char body[70001];
    struct client c;

    (void)state;
    memset(body, 'x', 70000);
    for (int full = 0; full < 2; full++) {
        k.later = true;
        k.n_asked = k.n_early = 0;
        k.full = full;
        c = c_open(g);
        c_text(g, &c, "POST /who HTTP/1.1\r\n" H "Content-Length: 70000\r\n\r\n");
        WAIT_FOR(g, k.n_asked == 1);
        assert_int_equal(k.n_early, 0);
        sup_req_known(k.asked, SUP_AUTH_OK, grant());
        WAIT_FOR(g, k.n_early == 1);
        if (!full)
            c_send(g, &c, body, 70000);
        READ_UNTIL(g, &c, answered(&c));
        assert_int_equal(status_of(&c), full ? 429 : 200);
        assert_true(full || strstr(c.in, "body=70000"));
        c_free(&c);
    }
    rig_free(g);
}

static void an_answer_that_comes_later(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;

    (void)state;
    k.later = true;
    c = c_open(g);
    /* body and next request are there already, and wait */
    c_text(g, &c,
           "POST /who HTTP/1.1\r\n" H "X-Api-Key: one\r\nContent-Length: 5\r\n\r\nhello"
           "GET /who HTTP/1.1\r\n" H "X-Api-Key: two\r\n\r\n");
    WAIT_FOR(g, k.n_asked == 1);
    for (int i = 0; i < 20; i++)
        turn(g);
    c_read(&c);
    assert_int_equal(c.n, 0);
    sup_req_known(k.asked, SUP_AUTH_OK, grant());
    WAIT_FOR(g, k.n_asked == 2);
    assert_string_equal(k.key, "two");
    sup_req_known(k.asked, SUP_AUTH_BAD_KEY, NULL);
    READ_UNTIL(g, &c, count(c.in, "HTTP/1.1 ") == 2 && strstr(c.in, "why="));
    assert_non_null(strstr(c.in, "who=acme:k1:2 seen= body=5"));
    /* and the connection goes on */
    k.later = false;
    c.n = 0;
    c_text(g, &c, "GET /who HTTP/1.1\r\n" H "\r\n");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 200);
    c_free(&c);
    rig_free(g);
}

static void a_client_that_leaves_is_forgotten(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;

    (void)state;
    k.later = true;
    c = c_open(g);
    c_text(g, &c, "GET /who HTTP/1.1\r\n" H "X-Api-Key: one\r\n\r\n");
    WAIT_FOR(g, k.n_asked == 1);
    c_free(&c);
    WAIT_FOR(g, k.n_forgotten == 1);
    WAIT_FOR(g, g->http->n_conns == 0);
    rig_free(g);
}

static void a_server_that_stops_forgets_too(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;

    (void)state;
    k.later = true;
    c = c_open(g);
    c_text(g, &c, "GET /who HTTP/1.1\r\n" H "X-Api-Key: one\r\n\r\n");
    WAIT_FOR(g, k.n_asked == 1);
    rig_free(g);
    assert_int_equal(k.n_forgotten, 1);
    c_free(&c);
}

static void an_answer_that_never_comes(void **state)
{
    struct rig *g = rig_with_keys(true);
    struct client c;
    uint64_t begin = now_ms();

    (void)state;
    k.later = true;
    c = c_open(g);
    c_text(g, &c, "GET /who HTTP/1.1\r\n" H "X-Api-Key: one\r\n\r\n");
    READ_UNTIL(g, &c, answered(&c));
    assert_int_equal(status_of(&c), 503);
    assert_true(now_ms() - begin >= SUP_AUTH_WAIT_MS - 100);
    assert_int_equal(k.n_forgotten, 1);
    c_free(&c);
    rig_free(g);
}

/* The loop's read buffer is what a debugger would look at first. */
static void no_key_stays_in_the_read_buffer(void **state)
{
    static const char key[] = "inf_canary_0123456789abcdef";
    struct rig *g = rig_with_keys(true);
    char text[300];
    struct client c;

    (void)state;
    snprintf(text, sizeof(text), "GET /who HTTP/1.1\r\n" H "Authorization: Bearer %s\r\n\r\n", key);
    c = c_open(g);
    c_send(g, &c, text, 60); /* in two pieces: the head's block grows */
    for (int i = 0; i < 5; i++)
        turn(g);
    c_text(g, &c, text + 60);
    READ_UNTIL(g, &c, answered(&c));
    assert_string_equal(k.key, key);
    assert_null(memmem(g->http->rbuf, sizeof(g->http->rbuf), "canary", 6));
    c_free(&c);
    rig_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_the_key_stands),
        cmocka_unit_test(where_nobody_needs_a_key_all_are_anonymous),
        cmocka_unit_test(a_probe_is_answered_without_a_question),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_refused_body_stays_unread),
        cmocka_unit_test(a_large_body_may_be_refused_by_its_head),
        cmocka_unit_test(a_large_body_waits_for_its_sender),
        cmocka_unit_test(an_answer_that_comes_later),
        cmocka_unit_test(a_client_that_leaves_is_forgotten),
        cmocka_unit_test(a_server_that_stops_forgets_too),
        cmocka_unit_test(an_answer_that_never_comes),
        cmocka_unit_test(no_key_stays_in_the_read_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
