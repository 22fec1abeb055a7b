/* sup_local.c - see sup_local.h. Forks and execs our own two programs and nothing
 * else. Always true: a child that was started is reaped, or dies with us (parent-
 * death signal). Tests: tests/supervisor/test_sup_cli_local.c */
#include "sup_local.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_client.h"

#define OUT_MAX_BYTES (4u << 20)
#define START_MS 60000
#define INT_GRACE_MS 20000 /* a worker's step */

static uint64_t now_ms(void)
{
    struct timespec ts = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void nap(unsigned ms)
{
    (void)poll(NULL, 0, (int)ms); /* ends early on a signal */
}

static bool self_path(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);

    if (n <= 0 || (size_t)n >= cap - 1)
        return false;
    out[n] = '\0';
    return true;
}

enum rc sup_beside_path(char *out, size_t cap, const char *program, struct rc_err *err)
{
    char *name;

    if (!self_path(out, cap) || !(name = strrchr(out, '/')) ||
        (size_t)(++name - out) + strlen(program) >= cap)
        return rc_fail(err, RC_IO, "cannot tell where this program lies: %s", strerror(errno));
    memcpy(name, program, strlen(program) + 1);
    return RC_OK;
}

enum rc sup_worker_path(char *out, size_t cap, const char *configured, struct rc_err *err)
{
    enum rc rc;

    if (configured && *configured)
        snprintf(out, cap, "%s", configured);
    else if ((rc = sup_beside_path(out, cap, "inferd-worker", err)) != RC_OK)
        return rc;
    if (access(out, X_OK) != 0)
        return rc_fail_what(
            err, RC_NOT_FOUND, "worker",
            "'%.300s' cannot be executed (%s): it belongs beside inferd, or name it "
            "with --worker",
            out, strerror(errno));
    return RC_OK;
}

/* Between fork and exec: only async-signal-safe calls. */
static void child_dies_with(pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
}

/* The end of the private server's log, as one line for a message. */
static void log_end(const char *dir, char *out, size_t cap)
{
    char path[96];
    ssize_t n = 0;
    int fd;

    snprintf(path, sizeof(path), "%s/log", dir);
    out[0] = '\0';
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size > 0 && lseek(fd, size > (off_t)cap - 1 ? size - ((off_t)cap - 1) : 0, SEEK_SET) >= 0)
        n = read(fd, out, cap - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    for (ssize_t i = 0; i < n; i++)
        if (out[i] == '\n')
            out[i] = ' ';
}

static pid_t spawn_server(const struct sup_local *l, const char *self, const char *models_dir)
{
    char log[96], sock[160];
    pid_t parent = getpid(), pid;

    snprintf(log, sizeof(log), "%s/log", l->dir);
    snprintf(sock, sizeof(sock), "--unix-socket=%s", l->server + 5);
    const char *argv[] = {"inferd",       "serve",   "--models-dir",       models_dir,
                          sock,           "--host=", "--drain-grace-ms=0", "--require-auth=off",
                          "--vault-dir=", NULL};
    pid = fork();
    if (pid != 0)
        return pid;
    int null_fd = open("/dev/null", O_RDWR);
    int log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (null_fd < 0 || log_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 ||
        dup2(log_fd, 2) < 0)
        _exit(127);
    (void)setpgid(0, 0); /* Ctrl-C is for the conversation */
    (void)signal(SIGINT, SIG_DFL);
    child_dies_with(parent);
    execv(self, (char *const *)argv);
    _exit(127);
}

static enum rc wait_ready(struct sup_local *l, struct rc_err *err)
{
    struct sup_client *c = NULL;
    uint64_t end = now_ms() + START_MS;
    char why[400];
    enum rc rc = sup_client_new(&c, l->server, err);

    while (rc == RC_OK) {
        int status;

        if (sup_client_probe(c, "/readyz", NULL))
            break;
        if (sup_cli_interrupted(false)) {
            rc = rc_fail(err, RC_CANCELLED, "interrupted");
        } else if (waitpid(l->pid, &status, WNOHANG) == l->pid) {
            l->pid = 0;
            log_end(l->dir, why, sizeof(why));
            rc = rc_fail(err, RC_IO, "the private server ended at once: %s", why);
        } else if (now_ms() > end) {
            log_end(l->dir, why, sizeof(why));
            rc = rc_fail(err, RC_DEADLINE, "the private server is not ready after %d s: %s",
                         START_MS / 1000, why);
        } else {
            nap(20);
        }
    }
    sup_client_free(&c);
    return rc;
}

enum rc sup_local_start(struct sup_local *l, const char *models_dir, struct rc_err *err)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    char self[4096];
    struct stat st;
    enum rc rc;

    memset(l, 0, sizeof(*l));
    if (stat(models_dir, &st) != 0)
        return rc_fail_what(err, RC_NOT_FOUND, "models-dir", "models folder '%.200s': %s",
                            models_dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return rc_fail_what(err, RC_INVALID, "models-dir", "models folder '%.200s': is no folder",
                            models_dir);
    if (!self_path(self, sizeof(self)))
        return rc_fail(err, RC_IO, "cannot tell where this program lies: %s", strerror(errno));
    /* the socket's path must stay short, so an odd base is passed over */
    if (!base || base[0] != '/' || strlen(base) > 40 || access(base, W_OK) != 0)
        base = "/tmp";
    snprintf(l->dir, sizeof(l->dir), "%s/inferd-XXXXXX", base);
    if (!mkdtemp(l->dir)) {
        rc = rc_fail(err, RC_IO, "cannot make a folder in '%s': %s", base, strerror(errno));
        l->dir[0] = '\0';
        return rc;
    }
    snprintf(l->server, sizeof(l->server), "unix:%s/socket", l->dir);
    l->pid = spawn_server(l, self, models_dir);
    if (l->pid < 0)
        rc = rc_fail(err, RC_IO, "cannot start a private server: %s", strerror(errno));
    else
        rc = wait_ready(l, err);
    if (rc != RC_OK)
        sup_local_stop(l);
    return rc;
}

static void remove_in(const char *dir, const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
}

void sup_local_stop(struct sup_local *l)
{
    uint64_t end = now_ms() + 10000;

    if (l->pid > 0) {
        (void)kill(l->pid, SIGTERM);
        while (waitpid(l->pid, NULL, WNOHANG) == 0) {
            if (now_ms() > end)
                (void)kill(l->pid, SIGKILL);
            nap(5);
        }
    }
    if (l->dir[0]) {
        remove_in(l->dir, "log");
        remove_in(l->dir, "socket");
        (void)rmdir(l->dir);
    }
    memset(l, 0, sizeof(*l));
}

/* --------------------------------------------------------------- inferd-worker */

static pid_t spawn_worker(const char *path, char *const *argv, int out_fd)
{
    char *const no_env[] = {NULL};
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0)
        _exit(127);
    for (int fd = 3; fd < 256; fd++)
        (void)close(fd); /* a worker accepts only listed descriptors */
    child_dies_with(parent);
    execve(path, argv, no_env);
    _exit(127);
}

/* Reads until end of file, a limit or the deadline; Ctrl-C is passed on to pid, and then there
 * is a little time left. */
static enum rc collect(int fd, pid_t pid, uint64_t end, char **out, struct rc_err *err)
{
    char *b = malloc(OUT_MAX_BYTES + 1);
    bool told = false;
    size_t n = 0;
    enum rc rc = b ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");

    while (rc == RC_OK) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t t = now_ms();
        ssize_t r = 0;

        if (sup_cli_interrupted(true)) {
            if (told) /* who insists */
                t = end;
            else if (end > t + INT_GRACE_MS)
                end = t + INT_GRACE_MS;
            told = true;
            (void)kill(pid, SIGINT);
        }
        if (t >= end) {
            rc = told ? rc_fail(err, RC_CANCELLED, "interrupted")
                      : rc_fail(err, RC_DEADLINE, "inferd-worker did not end in time");
            break;
        }
        if (poll(&p, 1, 100) <= 0)
            continue;
        r = read(fd, b + n, OUT_MAX_BYTES - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        n += (size_t)r;
        if (n == OUT_MAX_BYTES)
            rc = rc_fail(err, RC_TOO_LARGE, "inferd-worker printed more than %u bytes",
                         OUT_MAX_BYTES);
    }
    if (rc != RC_OK) {
        free(b);
        return rc;
    }
    b[n] = '\0';
    *out = b;
    return told ? rc_fail(err, RC_CANCELLED, "interrupted") : RC_OK;
}

enum rc sup_worker_run(const char *path, char *const *argv, unsigned timeout_s, char **out,
                       int *status, struct rc_err *err)
{
    int fds[2];
    pid_t pid;
    enum rc rc;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return rc_fail(err, RC_IO, "pipe: %s", strerror(errno));
    pid = spawn_worker(path, argv, fds[1]);
    close(fds[1]);
    if (pid < 0) {
        rc = rc_fail(err, RC_IO, "cannot start '%.200s': %s", path, strerror(errno));
        close(fds[0]);
        return rc;
    }
    rc = collect(fds[0], pid, now_ms() + (uint64_t)timeout_s * 1000, out, err);
    close(fds[0]);
    if (rc != RC_OK)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        ;
    return rc;
}
