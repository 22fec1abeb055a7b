/* test_sup_vault.c - a real vault process behind real walls: what each peer may say to it, what
 * it answers, and what it can no longer do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "fleet_util.h"
#include "ipc.h"
#include "sup_keys.h"
#include "sup_role.h"
#include "sup_secrets.h"
#include "sup_vault.h"
#include "sup_vault_dir.h"
#include "sup_vault_sandbox.h"
#include "vault.pb-c.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int launcher, front, fetcher; /* our ends */
static pid_t vault;
static char key[SUP_KEY_TEXT];

static void write_keys(uint64_t expires)
{
    struct sup_keys all = {0};
    struct sup_key k = {
        .tenant = strdup("acme"), .name = strdup(""), .weight = 5, .expires_s = expires};
    struct sup_json o = {0};
    int fd;

    assert_int_equal(sup_keys_add(&all, &k, key, NULL), RC_OK);
    sup_keys_print(&all, &o);
    assert_int_equal(sup_vault_dir_open(&fd, tmp_dir, false, NULL), RC_OK);
    assert_int_equal(sup_vault_dir_replace(fd, SUP_VAULT_KEYS, o.p, o.n, NULL), RC_OK);
    close(fd);
    sup_json_deinit(&o);
    sup_keys_deinit(&all);
}

#define SECRET "Bearer of one machine"

/* The folder's credentials, and the master key beside it. */
static void write_secrets(const char *master)
{
    struct sup_secrets s = {0};
    struct sup_json o = {0};
    int fd;

    assert_int_equal(sup_secrets_set(&s, "https://hub:443", SECRET, strlen(SECRET), 1,
                                     (const uint8_t *)master, NULL),
                     RC_OK);
    sup_secrets_print(&s, &o);
    assert_int_equal(sup_vault_dir_open(&fd, tmp_dir, false, NULL), RC_OK);
    assert_int_equal(sup_vault_dir_replace(fd, SUP_VAULT_SECRETS, o.p, o.n, NULL), RC_OK);
    close(fd);
    sup_json_deinit(&o);
    sup_secrets_deinit(&s);
}

#define MASTER "0123456789abcdef0123456789abcdef"

static int setup(void **state)
{
    struct sup_conf conf = test_conf();
    struct sup_role_fds fds;
    int a[2], b[2], c[2];

    (void)state;
    tmp_make();
    MUST(chmod(tmp_dir, 0700) == 0);
    write_keys(0);
    write_secrets(MASTER);
    tmp_write("master", MASTER);
    MUST(chmod(tmp_path("master"), 0400) == 0);
    conf.vault_key_file = strdup(tmp_path("master"));
    MUST(ipc_pair(a, NULL) == RC_OK && ipc_pair(b, NULL) == RC_OK && ipc_pair(c, NULL) == RC_OK);
    launcher = a[0], front = b[0], fetcher = c[0];
    conf.vault_dir = tmp_dir;
    conf.sandbox = (char *)"strict";
    fflush(NULL);
    if ((vault = fork()) == 0) {
        alarm(60);
        for (int i = 0; i < SUP_ROLE_COUNT; i++)
            fds.peer[i] = -1;
        fds.launcher = a[1];
        fds.peer[SUP_ROLE_FRONT] = b[1];
        fds.peer[SUP_ROLE_FETCHER] = c[1];
        close(a[0]), close(b[0]), close(c[0]);
        _exit(sup_vault_main(&conf, &fds));
    }
    close(a[1]), close(b[1]), close(c[1]);
    free(conf.vault_key_file);
    return 0;
}

static int end(void)
{
    int status;

    close(launcher);
    MUST(waitpid(vault, &status, 0) == vault);
    vault = 0;
    return status;
}

static int teardown(void **state)
{
    (void)state;
    if (vault)
        assert_int_equal(end(), 0); /* and no wall was touched */
    close(front), close(fetcher);
    tmp_remove();
    return 0;
}

/* The next message on a channel; NULL: it was closed. */
static Ipc__Vault *hear(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ProtobufCMessage *m = NULL;
    enum rc rc;

    MUST(poll(&p, 1, 30000) == 1);
    rc = ipc_recv(fd, &ipc__vault__descriptor, &m, NULL, NULL, NULL);
    if (rc == RC_CLOSED)
        return NULL;
    assert_int_equal(rc, RC_OK);
    return (Ipc__Vault *)m;
}

static void forget(Ipc__Vault *m)
{
    protobuf_c_message_free_unpacked(&m->base, NULL);
}

static void say(int fd, Ipc__Vault__BodyCase what, void *body)
{
    Ipc__Vault m = IPC__VAULT__INIT;

    m.body_case = what;
    m.check = body; /* the oneof's members share their place */
    assert_int_equal(ipc_send(fd, &m.base, NULL, 0, NULL), RC_OK);
}

static void check(const char *text)
{
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;

    c.req = 9;
    c.token.data = (uint8_t *)text;
    c.token.len = strlen(text);
    say(front, IPC__VAULT__BODY_CHECK, &c);
}

/* The first word of a vault to those who keep what it said. */
static void changed(int fd, unsigned keys, bool failed)
{
    Ipc__Vault *m = hear(fd);

    assert_non_null(m);
    assert_int_equal(m->body_case, IPC__VAULT__BODY_CHANGED);
    assert_int_equal(m->changed->n_keys, keys);
    assert_int_equal(m->changed->error.len > 0, failed);
    assert_true(m->changed->n_sandbox >= 5);
    assert_int_equal(m->changed->n_sandbox + m->changed->n_missing, SUP_VAULT_LAYERS);
    assert_int_equal(m->changed->pid, vault);
    forget(m);
}

static uint32_t answer(char *tenant)
{
    Ipc__Vault *m = hear(front);
    uint32_t code;

    assert_non_null(m);
    assert_int_equal(m->body_case, IPC__VAULT__BODY_CHECKED);
    assert_int_equal(m->checked->req, 9);
    code = m->checked->code;
    assert_int_equal(code == RC_OK, m->checked->grant != NULL);
    if (m->checked->grant)
        strcpy(tenant, m->checked->grant->tenant);
    forget(m);
    return code;
}

static void it_knows_its_keys(void **state)
{
    char tenant[80] = "";

    (void)state;
    changed(front, 1, false);
    changed(fetcher, 1, false);
    check(key);
    assert_int_equal(answer(tenant), RC_OK);
    assert_string_equal(tenant, "acme");
    check("inf_nobody");
    assert_int_equal(answer(tenant), RC_NOT_FOUND);
    check("");
    assert_int_equal(answer(tenant), RC_NOT_FOUND);
}

static void a_reload_brings_new_keys_and_a_bad_file_none(void **state)
{
    Ipc__VaultReload reload = IPC__VAULT_RELOAD__INIT;
    char old[SUP_KEY_TEXT], tenant[80];

    (void)state;
    changed(front, 1, false);
    memcpy(old, key, sizeof(old));
    write_keys(1); /* another one, expired long ago */
    say(launcher, IPC__VAULT__BODY_RELOAD, &reload);
    changed(front, 1, false);
    check(old);
    assert_int_equal(answer(tenant), RC_NOT_FOUND);
    check(key);
    assert_int_equal(answer(tenant), RC_DEADLINE);
    tmp_write(SUP_VAULT_KEYS, "{\"version\":1}");
    say(launcher, IPC__VAULT__BODY_RELOAD, &reload);
    changed(front, 1, true);
    check(key);
    assert_int_equal(answer(tenant), RC_DEADLINE);
    unlink(tmp_path(SUP_VAULT_KEYS));
    say(launcher, IPC__VAULT__BODY_RELOAD, &reload);
    changed(front, 0, false);
}

static void acts_of_the_front_are_noted_and_cannot_forge(void **state)
{
    Ipc__VaultAudit a = IPC__VAULT_AUDIT__INIT;
    char tenant[80], *b = NULL;
    size_t n;
    int fd;

    (void)state;
    changed(front, 1, false);
    a.act = (char *)"model.load";
    a.who = (char *)"k1";
    a.fields.data = (uint8_t *)"{}\"}\n{\"act\":\"forged\"";
    a.fields.len = strlen((char *)a.fields.data);
    say(front, IPC__VAULT__BODY_AUDIT, &a);
    check(key); /* behind it */
    assert_int_equal(answer(tenant), RC_OK);
    assert_int_equal(sup_vault_dir_open(&fd, tmp_dir, false, NULL), RC_OK);
    assert_int_equal(sup_vault_dir_read(fd, SUP_VAULT_AUDIT, 10000, &b, &n, NULL), RC_OK);
    close(fd);
    assert_non_null(strstr(b, "\"act\":\"model.load\",\"who\":\"k1\""));
    assert_ptr_equal(strchr(b, '\n'), b + n - 1); /* one line */
    free(b);
}

static void want(const char *origin, const char *secret)
{
    Ipc__VaultWant w = IPC__VAULT_WANT__INIT;
    Ipc__Vault *m;

    w.req = 4;
    w.origin = (char *)origin;
    say(fetcher, IPC__VAULT__BODY_WANT, &w);
    m = hear(fetcher);
    assert_non_null(m);
    assert_int_equal(m->body_case, IPC__VAULT__BODY_GIVES);
    assert_int_equal(m->gives->req, 4);
    assert_int_equal(m->gives->code, secret ? RC_OK : RC_NOT_FOUND);
    assert_int_equal(m->gives->secret.len, secret ? strlen(secret) : 0);
    if (secret)
        assert_memory_equal(m->gives->secret.data, secret, strlen(secret));
    forget(m);
}

static void a_secret_is_for_its_origin_alone(void **state)
{
    Ipc__VaultReload reload = IPC__VAULT_RELOAD__INIT;

    (void)state;
    changed(front, 1, false);
    changed(fetcher, 1, false);
    want("https://hub:443", SECRET);
    want("https://hub:8443", NULL);
    want("http://hub:443", NULL);
    want("https://hub", NULL);
    want("", NULL);
    write_secrets("another key of thirty-two bytes!"); /* does not open: the old one goes on */
    say(launcher, IPC__VAULT__BODY_RELOAD, &reload);
    changed(front, 1, true);
    changed(fetcher, 1, true);
    want("https://hub:443", SECRET);
}

/* SIGHUP as the launcher passes it on, with the file of the master key. */
static void reload_with(const char *key_text)
{
    Ipc__VaultReload r = IPC__VAULT_RELOAD__INIT;
    Ipc__Vault m = IPC__VAULT__INIT;
    int fd;

    unlink(tmp_path("next"));
    tmp_write("next", key_text);
    MUST(chmod(tmp_path("next"), 0400) == 0);
    MUST((fd = open(tmp_path("next"), O_RDONLY | O_CLOEXEC)) >= 0);
    m.body_case = IPC__VAULT__BODY_RELOAD;
    m.reload = &r;
    assert_int_equal(ipc_send(launcher, &m.base, &fd, 1, NULL), RC_OK);
    close(fd);
}

#define OTHER "another key of thirty-two bytes!"
#define THIRD "the third key of thirty-two byte"

/* Key and credentials are replaced one after the other: at no step is a secret lost. */
static void a_new_master_key_is_taken_while_it_runs(void **state)
{
    static const struct {
        const char *sealed, *key; /* NULL: as before */
        bool failed;
    } step[] = {
        {NULL, MASTER, false},      /* nothing has changed */
        {NULL, OTHER, false},       /* the key came first: that of before goes on */
        {OTHER, MASTER, true},      /* both keys of the disk are wrong for each other */
        {NULL, OTHER, false},       /* now they go together */
        {NULL, OTHER, false},       /* and stay */
        {NULL, "too short", false}, /* no key */
        {THIRD, THIRD, false},      /* both at once */
        {NULL, NULL, false},        /* a reload without a key file */
        {MASTER, OTHER, true},      /* neither opens it: what was opened goes on */
        {THIRD, OTHER, false},
    };

    (void)state;
    changed(front, 1, false);
    changed(fetcher, 1, false);
    for (size_t i = 0; i < sizeof(step) / sizeof(step[0]); i++) {
        Ipc__VaultReload r = IPC__VAULT_RELOAD__INIT;

        if (step[i].sealed)
            write_secrets(step[i].sealed);
        if (step[i].key)
            reload_with(step[i].key);
        else
            say(launcher, IPC__VAULT__BODY_RELOAD, &r);
        changed(front, 1, step[i].failed);
        changed(fetcher, 1, step[i].failed);
        want("https://hub:443", SECRET);
    }
}

static void only_the_launcher_sends_descriptors(void **state)
{
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;
    Ipc__Vault m = IPC__VAULT__INIT;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)state;
    changed(front, 1, false);
    changed(fetcher, 1, false);
    m.body_case = IPC__VAULT__BODY_CHECK;
    m.check = &c;
    assert_int_equal(ipc_send(front, &m.base, &fd, 1, NULL), RC_OK);
    close(fd);
    assert_null(hear(front));
    want("https://hub:443", SECRET); /* the others go on */
}

/* Each row: who says what it may not. Its channel ends; the others go on. */
static void who_may_say_what(void **state)
{
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;
    Ipc__VaultReload r = IPC__VAULT_RELOAD__INIT;
    Ipc__VaultChanged ch = IPC__VAULT_CHANGED__INIT;
    char tenant[80];

    (void)state;
    changed(front, 1, false);
    changed(fetcher, 1, false);
    switch ((int)(intptr_t)*state) {
    case 5: { /* the front asks for a secret */
        Ipc__VaultWant w = IPC__VAULT_WANT__INIT;

        w.origin = (char *)"https://hub:443";
        say(front, IPC__VAULT__BODY_WANT, &w);
        assert_null(hear(front));
        break;
    }
    case 0: /* the fetcher asks about a key */
        say(fetcher, IPC__VAULT__BODY_CHECK, &c);
        assert_null(hear(fetcher));
        check(key);
        assert_int_equal(answer(tenant), RC_OK);
        break;
    case 1: /* the front asks for a reload */
        say(front, IPC__VAULT__BODY_RELOAD, &r);
        assert_null(hear(front));
        break;
    case 2: /* the front speaks as the vault */
        say(front, IPC__VAULT__BODY_CHANGED, &ch);
        assert_null(hear(front));
        break;
    case 3: /* no message at all */
        MUST(send(front, "junk", 4, 0) == 4);
        assert_null(hear(front));
        break;
    case 4: /* the launcher says something else: the end */
        say(launcher, IPC__VAULT__BODY_CHECK, &c);
        assert_int_equal(end(), 0);
        assert_null(hear(front));
        break;
    }
}

/* A front that asks and does not listen is not read any more: nothing piles up. */
static void a_front_that_does_not_listen_is_not_read(void **state)
{
    char tenant[80];
    unsigned sent = 0;
    Ipc__Vault m = IPC__VAULT__INIT;
    Ipc__VaultCheck c = IPC__VAULT_CHECK__INIT;

    (void)state;
    changed(front, 1, false);
    fcntl(front, F_SETFL, O_NONBLOCK);
    c.req = 9;
    c.token.data = (uint8_t *)key;
    c.token.len = strlen(key);
    m.body_case = IPC__VAULT__BODY_CHECK;
    m.check = &c;
    for (int quiet = 0; quiet < 20;) {
        if (ipc_send(front, &m.base, NULL, 0, NULL) == RC_OK) {
            sent++;
            quiet = 0;
        } else {
            quiet++;
            usleep(10000);
        }
        assert_true(sent < 100000);
    }
    for (unsigned i = 0; i < sent; i++)
        assert_int_equal(answer(tenant), RC_OK);
}

/* -------------------------------------------------------------------- walls */

static int try_read_outside(void)
{
    return openat(AT_FDCWD, "/etc/passwd", O_RDONLY) < 0 && errno == EACCES ? 10 : 0;
}
static int try_make_outside(void)
{
    return openat(AT_FDCWD, "/tmp/inferd-vault-test", O_WRONLY | O_CREAT, 0600) < 0 ? 10 : 0;
}
static int try_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? 10 : 0;
}
static int try_exec(void)
{
    char *argv[] = {(char *)"true", NULL}, *envp[] = {NULL};

    execve("/bin/true", argv, envp);
    return 10;
}
static int try_code(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
               ? 10
               : 0;
}
static int try_own_files(void)
{
    int fd, d = -1;

    if (sup_vault_dir_replace(3, "x", "y", 1, NULL) != RC_OK)
        return 1;
    if ((fd = openat(3, "x", O_RDONLY)) < 0)
        return 2;
    close(fd);
    (void)d;
    return 0;
}

static void what_it_can_no_longer_do(void **state)
{
    static const struct {
        const char *what;
        int (*fn)(void);
        int want; /* exit status; -1: killed by the filter */
        bool needs_filter;
    } rows[] = {
        {"its own files", try_own_files, 0, false},  {"another file", try_read_outside, 10, false},
        {"a new file", try_make_outside, 10, false}, {"a socket", try_socket, -1, false},
        {"another program", try_exec, -1, false},    {"code", try_code, -1, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int status;
        pid_t pid;

        if (SANITIZED && rows[i].needs_filter)
            continue;
        fflush(NULL);
        if ((pid = fork()) == 0) {
            struct sup_walls_layer layer[SUP_VAULT_LAYERS];
            int fd;

            if (sup_vault_dir_open(&fd, tmp_dir, false, NULL) != RC_OK || dup2(fd, 3) < 0)
                _exit(99);
            if (sup_vault_sandbox("strict", 3, layer, NULL) != RC_OK)
                _exit(98);
            _exit(rows[i].fn());
        }
        MUST(waitpid(pid, &status, 0) == pid);
        if (rows[i].want < 0 ? !WIFSIGNALED(status)
                             : !WIFEXITED(status) || WEXITSTATUS(status) != rows[i].want)
            fail_msg("%s: status 0x%x", rows[i].what, (unsigned)status);
    }
}

static void a_start_that_fails_says_so_with_its_status(void **state)
{
    (void)state;
    changed(front, 1, false);
    assert_int_equal(end(), 0);
    MUST(chmod(tmp_path(SUP_VAULT_KEYS), 0644) == 0);
    struct sup_conf conf = test_conf();
    struct sup_role_fds fds = {.launcher = -1};
    int status;
    pid_t pid;

    for (int i = 0; i < SUP_ROLE_COUNT; i++)
        fds.peer[i] = -1;
    conf.vault_dir = tmp_dir;
    fflush(NULL);
    if ((pid = fork()) == 0)
        _exit(sup_vault_main(&conf, &fds));
    MUST(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define W(n)                                                                             \
    {                                                                                    \
        "who_may_say_what_" #n, who_may_say_what, setup, teardown, (void *)(intptr_t)(n) \
    }
    const struct CMUnitTest tests[] = {
        T(it_knows_its_keys),
        T(a_reload_brings_new_keys_and_a_bad_file_none),
        T(a_new_master_key_is_taken_while_it_runs),
        T(only_the_launcher_sends_descriptors),
        T(a_secret_is_for_its_origin_alone),
        T(acts_of_the_front_are_noted_and_cannot_forge),
        W(0),
        W(1),
        W(2),
        W(3),
        W(4),
        W(5),
        T(a_front_that_does_not_listen_is_not_read),
        T(what_it_can_no_longer_do),
        T(a_start_that_fails_says_so_with_its_status),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
