/* test_sup_http_listen.c - sockets that listen: refusals by name, stale files. */
#include <sys/stat.h>

#include "http_harness.h"

#define H "Host: x\r\n"

static enum rc try_start(struct rig *g, struct rc_err *err)
{
    enum rc rc;

    *err = RC_ERR_INIT;
    assert_int_equal(sup_http_new(&g->http, &g->loop, &g->conf, g->metrics, rig_routes, g, err),
                     RC_OK);
    rc = sup_http_start(g->http, err);
    return rc;
}

static void set(char **field, const char *value)
{
    free(*field);
    *field = strdup(value);
}

static struct client unix_open(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct client c = {.fd = socket(AF_UNIX, SOCK_STREAM, 0), .cap = 65536};

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
    c.in = calloc(1, c.cap);
    return c;
}

static void hosts(void **state)
{
    static const struct {
        const char *host;
        bool open, keys;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"127.0.0.1", false, false, RC_OK, NULL},
        {"127.0.0.2", false, false, RC_OK, NULL},
        {"localhost", false, false, RC_OK, NULL},
        {"0.0.0.0", false, false, RC_INVALID, "allow_insecure_public_bind"},
        {"::", false, false, RC_INVALID, "allow_insecure_public_bind"},
        {"192.0.2.1", false, false, RC_INVALID, "allow_insecure_public_bind"},
        {"192.0.2.1", true, false, RC_IO, "192.0.2.1"},
        {"192.0.2.1", false, true, RC_IO, "192.0.2.1"},
        {"256.1.1.1.1", false, false, RC_INVALID, "256.1.1.1.1"},
        {"", false, false, RC_INVALID, "nothing to listen on"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig *g = rig_new();
        struct rc_err err;
        enum rc rc;

        set(&g->conf.host, rows[i].host);
        g->conf.allow_insecure_public_bind = rows[i].open;
        if (rows[i].keys)
            set(&g->conf.vault_dir, "/v");
        rc = try_start(g, &err);
        if (rc != rows[i].rc || (rows[i].says && !strstr(err.msg, rows[i].says)))
            fail_msg("host '%s': %s: %s", rows[i].host, rc_name(rc), err.msg);
        if (rc == RC_OK)
            assert_true(sup_http_port(g->http) > 0);
        rig_free(g);
    }
}

static void port_taken(void **state)
{
    struct rig *a = rig_new(), *b = rig_new();
    struct rc_err err;

    (void)state;
    rig_start(a);
    b->conf.port = sup_http_port(a->http);
    assert_int_equal(try_start(b, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "127.0.0.1 port"));
    rig_free(b);
    rig_free(a);
}

static void unix_sockets(void **state)
{
    char dir[] = "/tmp/inferd-http-XXXXXX", path[64], longest[200];
    struct rig *g, *other;
    struct rc_err err;
    struct client c;
    struct stat st;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/s", dir);

    g = rig_new();
    set(&g->conf.unix_socket, path);
    rig_start(g);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    c = unix_open(path);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    READ_UNTIL(g, &c, strstr(c.in, "fine"));
    c_free(&c);

    other = rig_new(); /* alive: refused, and the first one goes on */
    set(&other->conf.unix_socket, path);
    assert_int_equal(try_start(other, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, path));
    rig_free(other);
    c = unix_open(path);
    c_text(g, &c, "POST /wait HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(g, g->n_held == 1);
    c_free(&c);
    WAIT_FOR(g, g->n_aborted == 1); /* leaving is noticed here too */
    rig_free(g);
    assert_int_equal(access(path, F_OK), -1); /* taken along */

    g = rig_new(); /* stale: a bound socket nobody listens on */
    {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        close(fd);
    }
    set(&g->conf.unix_socket, path);
    set(&g->conf.host, ""); /* Unix only */
    rig_start(g);
    assert_int_equal(sup_http_port(g->http), 0);
    c = unix_open(path);
    c_text(g, &c, "GET /healthz HTTP/1.1\r\n" H "\r\n");
    READ_UNTIL(g, &c, strstr(c.in, "fine"));
    c_free(&c);
    rig_free(g);

    f = fopen(path, "w"); /* a file of somebody's is not ours to remove */
    assert_non_null(f);
    fclose(f);
    g = rig_new();
    set(&g->conf.unix_socket, path);
    assert_int_equal(try_start(g, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "no socket"));
    rig_free(g);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);

    memset(longest, 'a', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    g = rig_new();
    set(&g->conf.unix_socket, longest);
    assert_int_equal(try_start(g, &err), RC_INVALID);
    rig_free(g);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts),
        cmocka_unit_test(port_taken),
        cmocka_unit_test(unix_sockets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
