/* test_sup_launcher.c - the scan's rules, and a real launcher with a test front
 * and fake workers: births, deaths, and who takes whom along. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sodium.h>

#include "fleet_util.h"
#include "ipc.h"
#include "sup_launcher_impl.h"
#include "sup_log.h"
#include "sup_scan.h"
#include "vault.pb-c.h"

static int setup(void **s)
{
    (void)s;
    tmp_make();
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    tmp_remove();
    return 0;
}

/* -------------------------------------------------------------------- scan */

static void ids_are_plain_paths(void **s)
{
    static const struct {
        const char *id;
        bool ok;
    } rows[] = {
        {"a", true},         {"a/b.gguf", true}, {"a b/ü", true},  {"", false},
        {"/a", false},       {"a/", false},      {"a//b", false},  {"..", false},
        {"a/../b", false},   {".", false},       {"a/./b", false}, {".hidden", false},
        {"a/.git/b", false}, {"a\nb", false},    {"a\x7f", false}, {"a\xff", false},
        {"a/..b/c", false},  {"a..b", true},     {"a/b..", true},
    };
    char big[SUP_ID_MAX + 2];

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_id_valid(rows[i].id) != rows[i].ok)
            fail_msg("'%s' judged wrongly", rows[i].id);
    memset(big, 'a', sizeof(big));
    big[SUP_ID_MAX] = '\0';
    assert_true(sup_id_valid(big));
    big[SUP_ID_MAX] = 'a';
    big[SUP_ID_MAX + 1] = '\0';
    assert_false(sup_id_valid(big));
}

static void make_tree(void)
{
    tmp_write("one.gguf", "x");
    tmp_write("mmproj-one.gguf", "x");
    tmp_write(".hidden.gguf", "x");
    tmp_write("note.txt", "x");
    tmp_write("bad\xff.gguf", "x");
    tmp_mkdir("bert");
    tmp_write("bert/config.json", "{}");
    tmp_write("bert/model.safetensors", "12345");
    tmp_mkdir("bert/1_Pooling");
    tmp_write("bert/1_Pooling/config.json", "{}");
    tmp_mkdir("drafted");
    tmp_write("drafted/config.json", "{}");
    tmp_write("drafted/model.safetensors", "123");
    tmp_mkdir("drafted/assistant"); /* a drafter is part of its model */
    tmp_write("drafted/assistant/config.json", "{}");
    tmp_write("drafted/assistant/model.safetensors", "1234");
    tmp_mkdir("noweights");
    tmp_write("noweights/config.json", "{}");
    tmp_mkdir("torch"); /* read where there are no other weights, and not counted beside them */
    tmp_write("torch/config.json", "{}");
    tmp_write("torch/pytorch_model.bin", "123456");
    tmp_write("drafted/pytorch_model.bin", "123456");
    tmp_mkdir("org");
    tmp_mkdir("org/assistant"); /* elsewhere a name like any other */
    tmp_write("org/assistant/config.json", "{}");
    tmp_write("org/assistant/model.safetensors", "12");
    tmp_mkdir("org/sharded");
    tmp_write("org/sharded/config.json", "{}");
    tmp_write("org/sharded/model.safetensors.index.json", "{}");
    tmp_write("org/two.gguf", "123");
    tmp_mkdir("org/arriving"); /* a download into it has not ended */
    tmp_write("org/arriving/.antfly-download-in-progress", "{}");
    tmp_write("org/arriving/three.gguf", "123");
    /* a folder named like a file, links in and out, a FIFO */
    tmp_mkdir("dir.gguf");
    MUST(symlink("org/two.gguf", tmp_path("inside.gguf")) == 0);
    MUST(symlink("/etc/passwd", tmp_path("outside.gguf")) == 0);
    MUST(symlink("/etc", tmp_path("etc")) == 0);
    MUST(symlink("org", tmp_path("loop")) == 0); /* no model: what is in it has one name */
    MUST(symlink("../org/sharded", tmp_path("org/latest")) == 0);
    MUST(symlink("..", tmp_path("org/up")) == 0);
    MUST(symlink("/etc", tmp_path("org/out")) == 0);
    MUST(symlink(tmp_path("bert"), tmp_path("absolute")) == 0); /* leads out, wherever it ends */
    MUST(mkfifo(tmp_path("fifo.gguf"), 0600) == 0);
    /* deeper than is looked at */
    char deep[200] = "d";
    tmp_mkdir(deep);
    for (int i = 0; i < SUP_SCAN_DEPTH + 1; i++) {
        strcat(deep, "/d");
        tmp_mkdir(deep);
    }
    strcat(deep, "/deep.gguf");
    tmp_write(deep, "x");
}

static void the_scan_lists_what_is_a_model_and_nothing_else(void **s)
{
    static const struct {
        const char *id;
        bool is_dir;
        uint64_t bytes;
    } want[] = {{"bert", true, 5},        {"drafted", true, 7},       {"inside.gguf", false, 3},
                {"one.gguf", false, 1},   {"org/assistant", true, 2}, {"org/latest", true, 0},
                {"org/sharded", true, 0}, {"org/two.gguf", false, 3}, {"torch", true, 6}};
    struct sup_scan sc = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)s;
    make_tree();
    assert_int_equal(sup_scan_run(&sc, tmp_dir, &err), RC_OK);
    assert_true(sc.truncated); /* the deep one */
    for (size_t i = 0; i < sc.n; i++)
        print_message("%s\n", sc.model[i].id);
    assert_int_equal(sc.n, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < sc.n; i++) {
        struct sup_scan_model facts = {0};
        int fd = -1;

        assert_string_equal(sc.model[i].id, want[i].id);
        assert_int_equal(sc.model[i].is_dir, want[i].is_dir);
        assert_int_equal(sc.model[i].bytes, want[i].bytes);
        assert_int_equal(sup_scan_open(&fd, &facts, tmp_dir, want[i].id, &err), RC_OK);
        assert_memory_equal(facts.identity, sc.model[i].identity, SUP_IDENTITY_BYTES);
        assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        close(fd);
    }
    sup_scan_deinit(&sc);
    assert_int_equal(sup_scan_run(&sc, "/nowhere/at/all", &err), RC_NOT_FOUND);
    assert_string_equal(err.what, "models_dir");
}

static void what_is_no_model_is_not_opened(void **s)
{
    static const char *const ids[] = {
        "outside.gguf", "absolute",    "org/out",  "org/up",           "etc",
        "etc/passwd",   "noweights",   "note.txt", "mmproj-one.gguf",  "fifo.gguf",
        "dir.gguf",     "absent",      "org",      "loop/../one.gguf", "../x.gguf",
        "/etc/passwd",  ".hidden.gguf"};
    struct sup_scan_model facts;
    struct rc_err err = RC_ERR_INIT;

    (void)s;
    make_tree();
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int fd = -1;
        enum rc rc = sup_scan_open(&fd, &facts, tmp_dir, ids[i], &err);

        if (rc != RC_NOT_FOUND && rc != RC_INVALID)
            fail_msg("%s: %s", ids[i], rc_name(rc));
        assert_int_equal(fd, -1);
    }
}

static void identity_follows_the_files(void **s)
{
    struct sup_scan_model a, b;
    int fd;

    (void)s;
    make_tree();
#define LOOK(m)                                                             \
    assert_int_equal(sup_scan_open(&fd, &m, tmp_dir, "bert", NULL), RC_OK); \
    close(fd)
    LOOK(a);
    LOOK(b);
    assert_memory_equal(a.identity, b.identity, SUP_IDENTITY_BYTES);
    tmp_write("bert/model.safetensors", "54321"); /* same size, other time */
    LOOK(b);
    assert_memory_not_equal(a.identity, b.identity, SUP_IDENTITY_BYTES);
    LOOK(a);
    tmp_write("bert/1_Pooling/config.json", "{ }");
    LOOK(b);
    assert_memory_not_equal(a.identity, b.identity, SUP_IDENTITY_BYTES);
    LOOK(a);
    MUST(rename(tmp_path("bert/model.safetensors"), tmp_path("bert/x.away")) == 0);
    assert_int_equal(sup_scan_open(&fd, &b, tmp_dir, "bert", NULL), RC_NOT_FOUND);
    MUST(rename(tmp_path("bert/x.away"), tmp_path("bert/model.safetensors")) == 0);
    LOOK(b);
    assert_memory_equal(a.identity, b.identity, SUP_IDENTITY_BYTES);
}

/* ------------------------------------------------------------ a test front */

static int ctl;

static void ctl_send(Ipc__Ctl *c)
{
    MUST(ipc_send(ctl, &c->base, NULL, 0, NULL) == RC_OK);
}

static Ipc__Ctl *ctl_wait(Ipc__Ctl__BodyCase want, int fds[2])
{
    for (;;) {
        struct pollfd p = {.fd = ctl, .events = POLLIN};
        ProtobufCMessage *m = NULL;
        int got[IPC_FDS_MAX];
        size_t n = 0;
        enum rc rc;

        MUST(poll(&p, 1, 30000) == 1);
        rc = ipc_recv(ctl, &ipc__ctl__descriptor, &m, got, &n, NULL);
        MUST(rc == RC_OK);
        if (((Ipc__Ctl *)m)->body_case != want) {
            protobuf_c_message_free_unpacked(m, NULL);
            continue;
        }
        MUST(n == (fds ? 2u : 0u));
        if (fds)
            memcpy(fds, got, sizeof(int) * 2);
        return (Ipc__Ctl *)m;
    }
}

static void ask_spawn(uint64_t req, const char *id)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlSpawn sp = IPC__CTL_SPAWN__INIT;

    sp.req = req;
    sp.id = (char *)id;
    c.body_case = IPC__CTL__BODY_SPAWN;
    c.spawn = &sp;
    ctl_send(&c);
}

static uint32_t spawn_ok(const char *id, int fds[2])
{
    Ipc__Ctl *r;
    uint32_t pid;

    ask_spawn(7, id);
    r = ctl_wait(IPC__CTL__BODY_SPAWNED, fds);
    MUST(r->spawned->req == 7 && r->spawned->identity.len == 32);
    pid = r->spawned->pid;
    protobuf_c_message_free_unpacked(&r->base, NULL);
    /* its first word is Ready: exec has happened */
    ProtobufCMessage *m = NULL;
    MUST(ipc_recv(fds[0], &ipc__frame__descriptor, &m, NULL, NULL, NULL) == RC_OK);
    MUST(((Ipc__Frame *)m)->body_case == IPC__FRAME__BODY_READY);
    MUST(((Ipc__Frame *)m)->ready->pid == pid);
    protobuf_c_message_free_unpacked(m, NULL);
    return pid;
}

/* Tells the test process a pid: it waits for it as subreaper. */
static void leave_note(const char *name, uint32_t pid)
{
    char text[32];

    snprintf(text, sizeof(text), "%u", pid);
    FILE *f = fopen(tmp_path("%s.part", name), "w");
    MUST(f && fputs(text, f) >= 0 && fclose(f) == 0);
    MUST(rename(tmp_path("%s.part", name), tmp_path("%s", name)) == 0);
}

static long read_note(const char *name)
{
    long v = 0;

    for (int i = 0; i < 3000; i++) {
        FILE *f = fopen(tmp_path("%s", name), "r");

        if (f) {
            if (fscanf(f, "%ld", &v) != 1)
                v = 0;
            fclose(f);
            return v;
        }
        usleep(10000);
    }
    return 0;
}

static int front_births(const struct sup_conf *conf, int fd)
{
    int fds[2], n = 0;
    uint32_t pid;
    char path[64], buf[512];
    Ipc__Ctl c = IPC__CTL__INIT, *r;
    Ipc__CtlScan scan = IPC__CTL_SCAN__INIT;
    Ipc__CtlKill k = IPC__CTL_KILL__INIT;
    struct dirent *e;
    ssize_t len;
    DIR *d;

    ctl = fd;
    fcntl(fd, F_SETFL, 0);
    c.body_case = IPC__CTL__BODY_SCAN;
    c.scan = &scan;
    ctl_send(&c);
    r = ctl_wait(IPC__CTL__BODY_MODELS, NULL);
    MUST(r->models->n_models == 1 && !strcmp(r->models->models[0]->id, "m.gguf"));
    protobuf_c_message_free_unpacked(&r->base, NULL);

    pid = spawn_ok("m.gguf", fds);
    /* an empty environment, these words, and five descriptors */
    snprintf(path, sizeof(path), "/proc/%u/environ", pid);
    int pf = open(path, O_RDONLY);
    MUST(pf >= 0 && read(pf, buf, sizeof(buf)) == 0);
    close(pf);
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    MUST((pf = open(path, O_RDONLY)) >= 0 && (len = read(pf, buf, sizeof(buf))) > 0);
    close(pf);
    static const char words[] = "inferd-worker\0--serve\0--sandbox=off\0--threads=3";
    MUST((size_t)len == sizeof(words) && memcmp(buf, words, sizeof(words)) == 0);
    snprintf(path, sizeof(path), "/proc/%u/fd", pid);
    MUST((d = opendir(path)));
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            MUST(atoi(e->d_name) <= 4);
            n++;
        }
    closedir(d);
    MUST(n == 5);
    /* the stderr pipe speaks */
    struct pollfd p = {.fd = fds[1], .events = POLLIN};
    MUST(poll(&p, 1, 10000) == 1 && read(fds[1], buf, sizeof(buf)) > 0);
    MUST(strncmp(buf, "line 0 of", 9) == 0);
    /* pids that are not workers are not killed: the launcher, this process */
    c.body_case = IPC__CTL__BODY_KILL;
    c.kill = &k;
    k.pid = (uint32_t)getpid();
    ctl_send(&c);
    k.pid = (uint32_t)getppid();
    ctl_send(&c);
    k.pid = pid;
    ctl_send(&c);
    r = ctl_wait(IPC__CTL__BODY_EXITED, NULL);
    MUST(r->exited->pid == pid && WIFSIGNALED(r->exited->status) &&
         WTERMSIG(r->exited->status) == SIGKILL);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    /* what cannot be started is said, with a code */
    static const struct {
        const char *id;
        enum rc rc;
    } rows[] = {{"../x", RC_INVALID}, {"nope", RC_NOT_FOUND}, {"out.gguf", RC_NOT_FOUND}};
    for (size_t i = 0; i < 3; i++) {
        ask_spawn(20 + i, rows[i].id);
        r = ctl_wait(IPC__CTL__BODY_SPAWN_FAILED, NULL);
        MUST(r->spawn_failed->req == 20 + i && r->spawn_failed->code == (uint32_t)rows[i].rc);
        MUST(r->spawn_failed->message.len > 0);
        protobuf_c_message_free_unpacked(&r->base, NULL);
    }
    /* a second worker stays: SIGTERM to the launcher gives us CtlStop */
    pid = spawn_ok("m.gguf", fds);
    leave_note("worker", pid);
    r = ctl_wait(IPC__CTL__BODY_STOP, NULL);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    return 0;
}

static int front_waits(const struct sup_conf *conf, int fd)
{
    int fds[2];

    ctl = fd;
    fcntl(fd, F_SETFL, 0);
    leave_note("front", (uint32_t)getpid());
    leave_note("worker", spawn_ok("m.gguf", fds));
    for (;;) /* deaf to CtlStop */
        pause();
    return 1;
}

static int front_dies(const struct sup_conf *conf, int fd)
{
    int fds[2];

    ctl = fd;
    fcntl(fd, F_SETFL, 0);
    leave_note("worker", spawn_ok("m.gguf", fds));
    abort();
}

static int front_refuses(const struct sup_conf *conf, int fd)
{
    return 3;
}

static int front_lies(const struct sup_conf *conf, int fd)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlModels m = IPC__CTL_MODELS__INIT;

    ctl = fd;
    c.body_case = IPC__CTL__BODY_MODELS; /* the launcher's word, not ours */
    c.models = &m;
    ctl_send(&c);
    for (;;)
        pause();
    return 1;
}

static int front_greedy(const struct sup_conf *conf, int fd)
{
    int fds[2];
    Ipc__Ctl *r;

    ctl = fd;
    fcntl(fd, F_SETFL, 0);
    for (uint64_t i = 0; i < conf->max_loaded_models + 2; i++)
        spawn_ok("m.gguf", fds);
    ask_spawn(99, "m.gguf");
    r = ctl_wait(IPC__CTL__BODY_SPAWN_FAILED, NULL);
    MUST(r->spawn_failed->req == 99 && r->spawn_failed->code == RC_BUSY);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    leave_note("worker", 1);
    r = ctl_wait(IPC__CTL__BODY_STOP, NULL);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    return 0;
}

static void bind_socket(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
    MUST(fd >= 0 && bind(fd, (struct sockaddr *)&un, sizeof(un)) == 0);
    close(fd);
}

/* Binds; once the stop has begun the next server takes the path, when asked to. */
static int front_hands_over(const struct sup_conf *conf, int fd)
{
    Ipc__Ctl *r;

    ctl = fd;
    fcntl(fd, F_SETFL, 0);
    bind_socket(conf->unix_socket);
    leave_note("worker", 1);
    r = ctl_wait(IPC__CTL__BODY_STOP, NULL);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    if (access(tmp_path("next"), F_OK) == 0) {
        unlink(conf->unix_socket);
        bind_socket(conf->unix_socket);
    }
    return 0;
}

static int (*test_front)(const struct sup_conf *, int);

static int front_role(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    return test_front(conf, fds->launcher);
}

static const struct sup_role front_only[] = {{front_role, SUP_ROLE_FRONT, 0, NULL}};

static pid_t launch(int (*front)(const struct sup_conf *, int))
{
    static struct sup_conf conf;
    static char sock[108];
    pid_t pid;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    conf = test_conf();
    conf.threads = 3;
    snprintf(sock, sizeof(sock), "%s", tmp_path("socket"));
    conf.unix_socket = sock;
    test_front = front;
    tmp_write("m.gguf", "stderr=1");
    MUST(symlink("/etc/passwd", tmp_path("out.gguf")) == 0);
    fflush(NULL);
    if ((pid = fork()) == 0) {
        alarm(100);
        _exit(sup_launcher_run(&conf, NULL, front_only, 1));
    }
    return pid;
}

/* Waits for pid alone, at most 30 s. */
static int ended(pid_t pid)
{
    int status = -1;

    for (int i = 0; i < 3000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        usleep(10000);
    }
    return -1;
}

/* A grandchild is gone when it is ours to reap, or was reaped by the launcher. */
static bool gone(pid_t pid)
{
    for (int i = 0; i < 3000; i++) {
        waitpid(pid, NULL, WNOHANG);
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return true;
        usleep(10000);
    }
    return false;
}

static void workers_are_born_as_listed_and_a_term_ends_all(void **s)
{
    pid_t l = launch(front_births);
    long worker = read_note("worker");

    (void)s;
    assert_true(worker > 0);
    kill(l, SIGTERM);
    int status = ended(l);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(gone((pid_t)worker));
}

static void a_killed_launcher_takes_all_along(void **s)
{
    pid_t l = launch(front_waits);
    long front = read_note("front"), worker = read_note("worker");

    (void)s;
    assert_true(front > 0 && worker > 0);
    kill(l, SIGKILL);
    assert_true(WIFSIGNALED(ended(l)));
    assert_true(gone((pid_t)worker));
    assert_true(gone((pid_t)front));
}

static void a_second_signal_cuts_at_once(void **s)
{
    pid_t l = launch(front_waits);
    long front = read_note("front"), worker = read_note("worker");
    int status;

    (void)s;
    kill(l, SIGTERM);
    usleep(100000); /* two pending SIGTERMs would count as one */
    kill(l, SIGINT);
    status = ended(l);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_true(gone((pid_t)worker) && gone((pid_t)front));
}

static void a_crashed_front_ends_the_server_with_an_error(void **s)
{
    pid_t l = launch(front_dies);
    long worker = read_note("worker");
    int status = ended(l);

    (void)s;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_true(worker > 0 && gone((pid_t)worker));
}

static void a_front_that_cannot_start_gives_its_status(void **s)
{
    int status = ended(launch(front_refuses));

    (void)s;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static void a_front_that_speaks_out_of_turn_is_ended(void **s)
{
    int status = ended(launch(front_lies));

    (void)s;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

static void a_greedy_front_gets_no_more_workers_than_configured(void **s)
{
    pid_t l = launch(front_greedy);
    int status;

    (void)s;
    assert_int_equal(read_note("worker"), 1);
    kill(l, SIGTERM);
    status = ended(l);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void only_its_own_socket_is_removed(void **s)
{
    for (int next = 0; next < 2; next++) {
        pid_t l;

        unlink(tmp_path("worker"));
        unlink(tmp_path("out.gguf"));
        if (next)
            tmp_write("next", "");
        l = launch(front_hands_over);
        assert_int_equal(read_note("worker"), 1);
        assert_int_equal(access(tmp_path("socket"), F_OK), 0);
        kill(l, SIGTERM);
        assert_true(WIFEXITED(ended(l)));
        assert_int_equal(access(tmp_path("socket"), F_OK), next ? 0 : -1);
    }
    (void)s;
}

/* ------------------------------------------------------- more than one role */

/* Stands for the vault: answers each message of the front with how many reloads it saw,
 * and dies of a word. */
static int vault_counts(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    unsigned reloads = 0;

    (void)conf;
    for (;;) {
        struct pollfd p[2] = {{.fd = fds->launcher, .events = POLLIN},
                              {.fd = fds->peer[SUP_ROLE_FRONT], .events = POLLIN}};
        ProtobufCMessage *m = NULL;
        char text[8];
        ssize_t n;

        MUST(poll(p, 2, 30000) > 0);
        if (p[0].revents) {
            MUST(ipc_recv(fds->launcher, &ipc__vault__descriptor, &m, NULL, NULL, NULL) == RC_OK);
            MUST(((Ipc__Vault *)m)->body_case == IPC__VAULT__BODY_RELOAD);
            protobuf_c_message_free_unpacked(m, NULL);
            reloads++;
        }
        if (!p[1].revents)
            continue;
        MUST((n = recv(p[1].fd, text, sizeof(text), 0)) >= 0);
        if (n == 0)
            return 0; /* the front is gone: the end */
        if (text[0] == 'x')
            return 7;
        MUST(send(p[1].fd, (char[]){(char)('0' + reloads)}, 1, 0) == 1);
    }
}

/* Asks the vault until it saw a reload, notes its pid, then waits for the end. */
static int front_asks(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    char got[2] = "0";
    struct pollfd p = {.fd = fds->peer[SUP_ROLE_VAULT], .events = POLLIN};
    ProtobufCMessage *m = NULL;

    (void)conf;
    MUST(fds->peer[SUP_ROLE_FRONT] == -1);
    leave_note("up", 1);
    for (int i = 0; got[0] == '0' && i < 3000; i++) {
        MUST(send(p.fd, "?", 1, 0) == 1 && poll(&p, 1, 30000) == 1 && recv(p.fd, got, 1, 0) == 1);
        usleep(10000);
    }
    leave_note("reloads", got[0] - '0');
    if (access(tmp_path("die"), F_OK) == 0)
        MUST(send(p.fd, "x", 1, 0) == 1);
    p.fd = fds->launcher;
    MUST(poll(&p, 1, 30000) == 1);
    MUST(ipc_recv(p.fd, &ipc__ctl__descriptor, &m, NULL, NULL, NULL) == RC_OK);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static bool not_wanted(const struct sup_conf *conf)
{
    (void)conf;
    return false;
}

static int front_alone(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    (void)conf;
    return fds->peer[SUP_ROLE_VAULT] == -1 ? 5 : 6;
}

static pid_t launch_roles(const struct sup_role *roles)
{
    pid_t pid;

    fflush(NULL);
    if ((pid = fork()) == 0) {
        struct sup_conf conf = test_conf();

        alarm(100);
        _exit(sup_launcher_run(&conf, NULL, roles, 2));
    }
    return pid;
}

static const struct sup_role two_roles[] = {
    {vault_counts, SUP_ROLE_VAULT, SUP_ROLE_BIT(FRONT), NULL},
    {front_asks, SUP_ROLE_FRONT, 0, NULL},
};

static void a_hangup_signal_reaches_the_vault_and_a_term_ends_both(void **s)
{
    pid_t l = launch_roles(two_roles);
    int status;

    (void)s;
    assert_int_equal(read_note("up"), 1);
    kill(l, SIGHUP);
    assert_int_equal(read_note("reloads"), 1);
    kill(l, SIGTERM);
    status = ended(l);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_vault_that_ends_takes_the_server_along(void **s)
{
    pid_t l;
    int status;

    (void)s;
    leave_note("die", 1);
    l = launch_roles(two_roles);
    assert_int_equal(read_note("up"), 1);
    kill(l, SIGHUP);
    status = ended(l);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void a_role_that_is_not_wanted_is_not_there(void **s)
{
    static const struct sup_role roles[] = {
        {vault_counts, SUP_ROLE_VAULT, SUP_ROLE_BIT(FRONT), not_wanted},
        {front_alone, SUP_ROLE_FRONT, 0, NULL},
    };
    int status = ended(launch_roles(roles));

    (void)s;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static void a_missing_worker_program_is_an_error_with_its_path(void **s)
{
    struct sup_conf c = test_conf();
    pid_t pid;

    (void)s;
    c.worker = (char *)"/nowhere/inferd-worker";
    test_front = front_refuses;
    fflush(NULL);
    if ((pid = fork()) == 0)
        _exit(sup_launcher_run(&c, NULL, front_only, 1));
    int status = ended(pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(ids_are_plain_paths),
        T(the_scan_lists_what_is_a_model_and_nothing_else),
        T(what_is_no_model_is_not_opened),
        T(identity_follows_the_files),
        T(workers_are_born_as_listed_and_a_term_ends_all),
        T(a_killed_launcher_takes_all_along),
        T(a_second_signal_cuts_at_once),
        T(a_crashed_front_ends_the_server_with_an_error),
        T(a_front_that_cannot_start_gives_its_status),
        T(a_front_that_speaks_out_of_turn_is_ended),
        T(a_greedy_front_gets_no_more_workers_than_configured),
        T(only_its_own_socket_is_removed),
        T(a_hangup_signal_reaches_the_vault_and_a_term_ends_both),
        T(a_vault_that_ends_takes_the_server_along),
        T(a_role_that_is_not_wanted_is_not_there),
        T(a_missing_worker_program_is_an_error_with_its_path),
    };
    if (sodium_init() < 0)
        return 1;
    sup_log_init(SUP_INFO);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
