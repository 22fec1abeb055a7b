/* sup_launcher.c - the parent of all: one poll loop over signals and the front.
 *
 * Serves the front's Ctl frames by the table below and reads no other role; keeps a
 * list of the workers it made, so that a front gone mad can name only those. Blocks
 * nowhere but in poll, in the walk of the models directory, and for at most
 * SEND_WAIT_MS on a role that does not read.
 *
 * Always true: when this process ends, for whatever reason, so do all others
 * (parent-death signal); when a role ends, everything ends. Single-threaded:
 * the parent-death signal is tied to the thread that forks.
 * Tests: tests/supervisor/test_sup_launcher.c, tests/fault/
 */
#include "sup_launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_launcher_impl.h"
#include "sup_log.h"
#include "sup_master.h"
#include "sup_roles.h"
#include "sup_scan.h"
#include "sup_spawn.h"
#include "vault.pb-c.h"

#define WORKERS_SPARE 2 /* beyond max_loaded_models: the one that looks at new models */
#define SEND_WAIT_MS 5000
#define KILL_SLACK_MS 5000 /* after the drain's grace */

struct launcher {
    struct sup_conf *conf;
    const struct sup_conf_source *source; /* may be NULL */
    int sig_fd, exe_fd;
    struct sup_role_proc role[SUP_ROLE_COUNT], *front; /* one of them */
    int ended; /* the role that was the first to go; -1 = none yet */
    pid_t *worker;
    size_t n_workers, cap_workers;
    bool stopping, cut; /* asked to end; ended by force */
    int64_t kill_at_ms; /* while stopping */
    struct stat sock;   /* the front's Unix socket when the stop began; st_ino 0 = none */
};

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ----------------------------------------------------------- to the roles */

static void role_broke(struct launcher *l, struct sup_role_proc *p, const char *why)
{
    if (p->broken)
        return;
    p->broken = true;
    SUP_LOG(SUP_ERROR, "role_channel_broken",
            SUP_S("role", sup_role_name((enum sup_role_id)(p - l->role))), SUP_S("why", why));
    kill(p->pid, SIGKILL);
}

static void tell_role(struct launcher *l, struct sup_role_proc *p, const ProtobufCMessage *m,
                      const int *fds, size_t n_fds)
{
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    if (!p->pid || p->broken || p->gone)
        return;
    while ((rc = ipc_send(p->fd, m, fds, n_fds, &err)) == RC_AGAIN) {
        struct pollfd w = {.fd = p->fd, .events = POLLOUT};

        if (poll(&w, 1, SEND_WAIT_MS) == 0) {
            role_broke(l, p, "it does not read what the launcher says");
            return;
        }
    }
    if (rc != RC_OK && rc != RC_CLOSED) /* CLOSED: its exit is about to be reaped */
        role_broke(l, p, err.msg);
}

static void tell(struct launcher *l, Ipc__Ctl *c, const int *fds, size_t n_fds)
{
    tell_role(l, l->front, &c->base, fds, n_fds);
}

/* ---------------------------------------------------------- what it may ask */

static void on_scan(struct launcher *l, const Ipc__Ctl *in)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlModels list = IPC__CTL_MODELS__INIT;
    Ipc__CtlModel *m = NULL, **ptr = NULL;
    struct rc_err err = RC_ERR_INIT;
    struct sup_scan s = {0};

    if (sup_scan_run(&s, l->conf->models_dir, &err) != RC_OK)
        SUP_LOG(SUP_WARN, "models_dir_unreadable", SUP_S("error", err.msg));
    if (s.n && (!(m = calloc(s.n, sizeof(*m))) || !(ptr = calloc(s.n, sizeof(*ptr))))) {
        s.truncated = true;
        goto out;
    }
    for (size_t i = 0; i < s.n; i++) {
        ipc__ctl_model__init(&m[i]);
        m[i].id = s.model[i].id;
        m[i].is_dir = s.model[i].is_dir;
        m[i].bytes = s.model[i].bytes;
        m[i].identity.data = s.model[i].identity;
        m[i].identity.len = SUP_IDENTITY_BYTES;
        ptr[i] = &m[i];
    }
    list.models = ptr;
    list.n_models = s.n;
out:
    list.truncated = s.truncated;
    c.body_case = IPC__CTL__BODY_MODELS;
    c.models = &list;
    tell(l, &c, NULL, 0);
    free(m);
    free(ptr);
    sup_scan_deinit(&s);
}

static enum rc spawn(struct launcher *l, const Ipc__CtlSpawn *sp, struct sup_spawned *w,
                     struct sup_scan_model *facts, struct rc_err *err)
{
    int root_fd = -1;
    enum rc rc;

    if (l->stopping && l->cut)
        return rc_fail(err, RC_UNLOADING, "the server is shutting down");
    /* the front keeps this itself; one gone mad must not fill the machine */
    if (l->n_workers >= l->conf->max_loaded_models + WORKERS_SPARE)
        return rc_fail(err, RC_BUSY, "%zu workers are running, max_loaded_models is %llu",
                       l->n_workers, (unsigned long long)l->conf->max_loaded_models);
    if (l->n_workers == l->cap_workers) {
        size_t cap = l->cap_workers ? l->cap_workers * 2 : 16;
        pid_t *p = realloc(l->worker, cap * sizeof(*p));

        if (!p)
            return rc_fail(err, RC_NOMEM, "no memory to keep a list of workers");
        l->worker = p;
        l->cap_workers = cap;
    }
    if ((rc = sup_scan_open(&root_fd, facts, l->conf->models_dir, sp->id, err)) != RC_OK)
        return rc;
    rc = sup_spawn_worker(w, l->exe_fd, root_fd, l->conf, sp->probe, err);
    close(root_fd);
    if (rc == RC_OK)
        l->worker[l->n_workers++] = w->pid;
    return rc;
}

static void on_spawn(struct launcher *l, const Ipc__Ctl *in)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlSpawned ok = IPC__CTL_SPAWNED__INIT;
    Ipc__CtlSpawnFailed no = IPC__CTL_SPAWN_FAILED__INIT;
    struct rc_err err = RC_ERR_INIT;
    struct sup_scan_model facts = {0};
    struct sup_spawned w;
    enum rc rc = spawn(l, in->spawn, &w, &facts, &err);

    if (rc != RC_OK) {
        no.req = in->spawn->req;
        no.code = (uint32_t)rc;
        no.message.data = (uint8_t *)err.msg;
        no.message.len = strlen(err.msg);
        c.body_case = IPC__CTL__BODY_SPAWN_FAILED;
        c.spawn_failed = &no;
        tell(l, &c, NULL, 0);
        return;
    }
    ok.req = in->spawn->req;
    ok.pid = (uint32_t)w.pid;
    ok.identity.data = facts.identity;
    ok.identity.len = SUP_IDENTITY_BYTES;
    c.body_case = IPC__CTL__BODY_SPAWNED;
    c.spawned = &ok;
    tell(l, &c, (int[]){w.channel_fd, w.stderr_fd}, 2);
    close(w.channel_fd);
    close(w.stderr_fd);
}

static void on_kill(struct launcher *l, const Ipc__Ctl *in)
{
    /* A pid in the list is not reaped yet, so it cannot have been reused. */
    for (size_t i = 0; i < l->n_workers; i++)
        if ((uint32_t)l->worker[i] == in->kill->pid)
            kill(l->worker[i], SIGKILL);
}

static const struct {
    Ipc__Ctl__BodyCase message;
    void (*handler)(struct launcher *l, const Ipc__Ctl *in);
} ctl_cmds[] = {
    {IPC__CTL__BODY_SCAN, on_scan},
    {IPC__CTL__BODY_SPAWN, on_spawn},
    {IPC__CTL__BODY_KILL, on_kill},
};

static void on_ctl(struct launcher *l)
{
    ProtobufCMessage *m = NULL;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = ipc_recv(l->front->fd, &ipc__ctl__descriptor, &m, NULL, NULL, &err);
    const Ipc__Ctl *c = (const Ipc__Ctl *)m;

    if (rc == RC_AGAIN)
        return;
    if (rc != RC_OK) {
        if (rc != RC_CLOSED)
            role_broke(l, l->front, err.msg);
        close(l->front->fd);
        l->front->fd = -1;
        l->front->broken = true;
        return;
    }
    for (size_t i = 0; i < sizeof(ctl_cmds) / sizeof(ctl_cmds[0]); i++)
        if (ctl_cmds[i].message == c->body_case) {
            ctl_cmds[i].handler(l, c);
            protobuf_c_message_free_unpacked(m, NULL);
            return;
        }
    protobuf_c_message_free_unpacked(m, NULL);
    role_broke(l, l->front, "a message the front may not send");
}

/* ------------------------------------------------------------------ signals */

static void kill_workers(struct launcher *l)
{
    for (size_t i = 0; i < l->n_workers; i++)
        kill(l->worker[i], SIGKILL);
}

static void cut_all(struct launcher *l, const char *why)
{
    if (l->cut)
        return;
    l->cut = true;
    SUP_LOG(SUP_WARN, "shutdown_forced", SUP_S("why", why));
    kill_workers(l);
    if (!l->front->gone)
        kill(l->front->pid, SIGKILL);
}

static void tell_conf(struct launcher *l, char *json, char *refused)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlConf conf = IPC__CTL_CONF__INIT;

    conf.json.data = (uint8_t *)json;
    conf.json.len = json ? strlen(json) : 0;
    conf.refused.data = (uint8_t *)refused;
    conf.refused.len = refused ? strlen(refused) : 0;
    c.body_case = IPC__CTL__BODY_CONF;
    c.conf = &conf;
    tell(l, &c, NULL, 0);
}

/* The configuration as at the start, from the file as it is now. It is judged here, as a whole, and
 * holds here first: the front is told values that are right. */
static void reload_conf(struct launcher *l)
{
    struct sup_conf fresh = {0};
    struct sup_conf_changes what;
    struct rc_err err = RC_ERR_INIT;
    char *json = NULL, kept[1024], refused[sizeof(err.msg)];
    enum rc rc = l->source->read(l->source->user, &fresh, &err);

    if (rc == RC_OK && (rc = sup_conf_take(l->conf, &fresh, &what, &err)) == RC_OK &&
        !(json = sup_conf_live_json(l->conf))) {
        rc = rc_fail(&err, RC_NOMEM, "no memory for the new configuration");
        (void)sup_conf_take(l->conf, &fresh, &what, NULL); /* fresh has the old values: back */
    }
    sup_conf_deinit(&fresh);
    if (rc != RC_OK) {
        SUP_LOG(SUP_ERROR, "conf_refused", SUP_S("what", err.what), SUP_S("error", err.msg));
        snprintf(refused, sizeof(refused), "%s", err.msg[0] ? err.msg : rc_text(rc));
        tell_conf(l, NULL, refused);
        return;
    }
    if (what.n_kept > 0) {
        sup_conf_names(what.kept, what.n_kept, kept, sizeof(kept));
        SUP_LOG(SUP_WARN, "conf_needs_restart", SUP_S("options", kept));
    }
    sup_log_init(sup_level_parse(l->conf->log_level));
    tell_conf(l, json, NULL);
    free(json);
}

/* The vault can open nothing outside its folder any more; the key's bytes are never read here. */
static void tell_vault(struct launcher *l)
{
    Ipc__Vault v = IPC__VAULT__INIT;
    Ipc__VaultReload reload = IPC__VAULT_RELOAD__INIT;
    struct rc_err err = RC_ERR_INIT;
    char path[PATH_MAX];
    int fd = -1;

    if (sup_master_open(&fd, path, sizeof(path), l->conf->vault_key_file,
                        getenv("CREDENTIALS_DIRECTORY"), &err) != RC_OK)
        SUP_LOG(SUP_ERROR, "master_key_refused", SUP_S("error", err.msg),
                SUP_S("goes_on_with", "the key of before"));
    v.body_case = IPC__VAULT__BODY_RELOAD;
    v.reload = &reload;
    tell_role(l, &l->role[SUP_ROLE_VAULT], &v.base, &fd, fd >= 0);
    if (fd >= 0)
        close(fd);
}

/* What lies in files that may change while the server runs: each reader is told. */
static void on_reload_signal(struct launcher *l)
{
    bool vault = l->role[SUP_ROLE_VAULT].pid != 0;

    SUP_LOG(SUP_INFO, "reload_asked", SUP_B("vault", vault));
    if (vault)
        tell_vault(l);
    if (l->source && l->source->read)
        reload_conf(l);
}

static void on_stop_signal(struct launcher *l, int sig)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlStop stop = IPC__CTL_STOP__INIT;

    if (l->stopping) {
        cut_all(l, "second signal");
        return;
    }
    l->stopping = true;
    if (!l->conf->unix_socket || lstat(l->conf->unix_socket, &l->sock) != 0 ||
        !S_ISSOCK(l->sock.st_mode))
        l->sock.st_ino = 0;
    l->kill_at_ms = now_ms() + (int64_t)l->conf->drain_grace_ms + KILL_SLACK_MS;
    SUP_LOG(SUP_INFO, "shutdown", SUP_I("signal", sig), SUP_I("grace_ms", l->conf->drain_grace_ms));
    c.body_case = IPC__CTL__BODY_STOP;
    c.stop = &stop;
    tell(l, &c, NULL, 0);
}

static void on_dead(struct launcher *l, pid_t pid, int status)
{
    Ipc__Ctl c = IPC__CTL__INIT;
    Ipc__CtlExited e = IPC__CTL_EXITED__INIT;

    for (int i = 0; i < SUP_ROLE_COUNT; i++)
        if (l->role[i].pid == pid) {
            l->role[i].gone = true;
            l->role[i].status = status;
            /* the others end well when they see the front's end, and may be reaped before it */
            if (l->ended < 0 && !(l->stopping && &l->role[i] != l->front && WIFEXITED(status) &&
                                  WEXITSTATUS(status) == 0))
                l->ended = i;
            return;
        }
    for (size_t i = 0; i < l->n_workers; i++)
        if (l->worker[i] == pid) {
            l->worker[i] = l->worker[--l->n_workers];
            break;
        }
    e.pid = (uint32_t)pid;
    e.status = status;
    c.body_case = IPC__CTL__BODY_EXITED;
    c.exited = &e;
    tell(l, &c, NULL, 0);
}

static void reap(struct launcher *l)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        on_dead(l, pid, status);
}

static void on_signals(struct launcher *l)
{
    struct signalfd_siginfo si;

    while (read(l->sig_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
        if (si.ssi_signo == SIGCHLD)
            reap(l);
        else if (si.ssi_signo == SIGHUP && si.ssi_code != SI_KERNEL)
            on_reload_signal(l); /* from the kernel: the terminal is gone, which is an end */
        else
            on_stop_signal(l, (int)si.ssi_signo);
    }
}

/* --------------------------------------------------------------------- life */

static void harden(const struct sup_conf *conf)
{
    const struct rlimit none = {0, 0};

    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_CORE, &none);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        SUP_LOG(SUP_WARN, "no_new_privs_failed", SUP_S("error", strerror(errno)));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they ptrace themselves */
    if (strcmp(conf->sandbox, "off") != 0)
        prctl(PR_SET_DUMPABLE, 0);
#endif
}

static void std_fds(void)
{
    /* A missing standard descriptor would be taken by a socket, and printed into. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            _exit(1);
}

static enum rc start(struct launcher *l, const struct sup_role *roles, size_t n_roles,
                     struct rc_err *err)
{
    sigset_t set, old;
    enum rc rc;

    if (sodium_init() < 0)
        return rc_fail(err, RC_INTERNAL, "libsodium cannot start");
    if ((rc = sup_spawn_find(&l->exe_fd, l->conf, err)) != RC_OK)
        return rc;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &old);
    if ((rc = sup_roles_start(l->role, roles, n_roles, l->conf, l->exe_fd, &old, err)) != RC_OK)
        return rc;
    l->sig_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->sig_fd < 0)
        return rc_fail(err, RC_IO, "signalfd: %s", strerror(errno));
    return RC_OK;
}

static int poll_timeout(const struct launcher *l)
{
    int64_t left;

    if (!l->stopping || l->cut)
        return -1;
    left = l->kill_at_ms - now_ms();
    return left <= 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

/* The front bound it, but may no longer delete files. During the drain the next server
 * may have taken the path over: only the one that stood there before is removed. */
static void remove_socket(const char *path, const struct stat *was)
{
    struct stat st;

    if (was->st_ino && lstat(path, &st) == 0 && st.st_dev == was->st_dev &&
        st.st_ino == was->st_ino && st.st_ctim.tv_sec == was->st_ctim.tv_sec &&
        st.st_ctim.tv_nsec == was->st_ctim.tv_nsec)
        unlink(path);
}

static void end_roles(struct launcher *l)
{
    for (int i = 0; i < SUP_ROLE_COUNT; i++) {
        struct sup_role_proc *p = &l->role[i];

        if (!p->pid || p->gone)
            continue;
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &p->status, 0);
    }
}

static int finish(struct launcher *l)
{
    const struct sup_role_proc *first = l->ended < 0 ? l->front : &l->role[l->ended];
    bool clean = first == l->front && WIFEXITED(first->status) && WEXITSTATUS(first->status) == 0;
    int status = 1;

    kill_workers(l);
    end_roles(l);
    while (l->n_workers > 0 && waitpid(-1, NULL, 0) > 0)
        l->n_workers--;
    if (l->stopping && clean && !l->cut) {
        remove_socket(l->conf->unix_socket, &l->sock);
        SUP_LOG(SUP_INFO, "stopped", SUP_B("clean", true));
        return 0;
    }
    /* One that refused to start (a busy port, a bad file of keys) said why itself. */
    if (WIFEXITED(first->status) && WEXITSTATUS(first->status) != 0)
        status = WEXITSTATUS(first->status);
    SUP_LOG(SUP_ERROR, "role_ended",
            SUP_S("role", sup_role_name((enum sup_role_id)(first - l->role))),
            SUP_I("exit", WIFEXITED(first->status) ? WEXITSTATUS(first->status) : -1),
            SUP_I("signal", WIFSIGNALED(first->status) ? WTERMSIG(first->status) : 0),
            SUP_B("asked", l->stopping));
    return status;
}

int sup_launcher_run(struct sup_conf *conf, const struct sup_conf_source *source,
                     const struct sup_role *roles, size_t n_roles)
{
    struct launcher l = {.conf = conf, .source = source, .sig_fd = -1, .exe_fd = -1, .ended = -1};
    struct rc_err err = RC_ERR_INIT;
    int status;

    l.front = &l.role[SUP_ROLE_FRONT];
    std_fds();
    harden(conf);
    if (start(&l, roles, n_roles, &err) != RC_OK) {
        SUP_LOG(SUP_ERROR, "start_failed", SUP_S("error", err.msg));
        return 1; /* roles that were forked die with this process */
    }
    while (l.ended < 0) {
        struct pollfd p[2] = {{.fd = l.sig_fd, .events = POLLIN},
                              {.fd = l.front->fd, .events = POLLIN}};

        if (poll(p, 2, poll_timeout(&l)) < 0 && errno != EINTR)
            break;
        if (p[0].revents)
            on_signals(&l);
        if (p[1].revents && l.front->fd >= 0 && l.ended < 0)
            on_ctl(&l);
        if (l.stopping && !l.cut && now_ms() >= l.kill_at_ms)
            cut_all(&l, "the drain took too long");
    }
    status = finish(&l);
    for (int i = 0; i < SUP_ROLE_COUNT; i++)
        if (l.role[i].fd >= 0)
            close(l.role[i].fd);
    close(l.sig_fd);
    close(l.exe_fd);
    free(l.worker);
    return status;
}
