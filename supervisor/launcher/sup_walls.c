/* sup_walls.c - how each wall is raised. See sup_walls.h.
 *
 * Raw system calls and our own copies of Landlock's structures, so that a binary built on old
 * headers uses what a new kernel offers. Source: Documentation/userspace-api/landlock.rst (ABI 1 to
 * 6). Tests: tests/supervisor/test_sup_walls.c, and of the roles test_sup_front.c,
 * test_sup_vault.c, test_sup_fetch_sandbox.c
 */
#include "sup_walls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sup_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

/* ------------------------------------------------------------------- steps */

void sup_walls_say_off(const struct sup_walls_role *role, const char *mode)
{
    const struct sup_kv why = SUP_S("why", "sandbox=off");

    if (strcmp(mode, "off") == 0)
        sup_log_kv(SUP_WARN, role->off, &why, 1);
}

static void say(const char *event, const char *layer, const char *why)
{
    const struct sup_kv kv[] = {SUP_S("layer", layer), SUP_S("error", why)};

    sup_log_kv(SUP_WARN, event, kv, SUP_WALLS_COUNT(kv));
}

enum rc sup_walls_raise(const struct sup_walls_role *role, const char *mode,
                        const struct sup_walls_step *steps, size_t n, struct sup_walls_layer *out,
                        struct rc_err *err)
{
    bool off = strcmp(mode, "off") == 0, strict = strcmp(mode, "strict") == 0;
    enum rc rc = RC_OK;

    for (size_t i = 0; i < n; i++) {
        const struct sup_walls_step *s = &steps[i];
        bool wanted = rc == RC_OK && (!off || (s->bits & SUP_WALLS_ALWAYS));
        int e = wanted ? s->raise(s->how) : 0;

        if (out)
            out[i] = (struct sup_walls_layer){s->name, wanted && e == 0};
        if (e == 0 || (s->bits & SUP_WALLS_OPTIONAL))
            continue;
        if (strict)
            rc = rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                              "the %s's layer '%s' cannot be had here: %s (sandbox permissive goes "
                              "on without it)",
                              role->word, s->name, strerror(e));
        else
            say(role->missing, s->name, strerror(e));
    }
    return rc;
}

void sup_walls_tell(const struct sup_walls_layer *layers, size_t n, char *names[SUP_WALLS_MAX],
                    struct sup_walls_told *out)
{
    size_t held = 0, missing = 0;

    n = n < SUP_WALLS_MAX ? n : SUP_WALLS_MAX;
    for (size_t i = 0; i < n; i++)
        held += layers[i].holds;
    *out = (struct sup_walls_told){(uint32_t)getpid(), names, names + held, held, n - held};
    held = 0;
    for (size_t i = 0; i < n; i++)
        if (layers[i].holds)
            names[held++] = (char *)(uintptr_t)layers[i].name;
        else
            names[out->n_held + missing++] = (char *)(uintptr_t)layers[i].name;
}

static bool words_ok(char *const *word, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(word[i]);

        if (len == 0 || len > 40 ||
            strspn(word[i], "abcdefghijklmnopqrstuvwxyz0123456789_-") != len)
            return false;
    }
    return true;
}

bool sup_walls_told_ok(const struct sup_walls_told *t)
{
    return t->pid && t->n_held <= SUP_WALLS_MAX && t->n_missing <= SUP_WALLS_MAX - t->n_held &&
           words_ok(t->held, t->n_held) && words_ok(t->missing, t->n_missing);
}

int sup_walls_not_dumpable(const void *how)
{
    (void)how;
    return SANITIZED || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 ? 0 : errno;
}

int sup_walls_no_new_privs(const void *how)
{
    (void)how;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : errno;
}

int sup_walls_no_capabilities(const void *how)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    (void)how;
    return syscall(SYS_capset, &head, none) == 0 ? 0 : errno;
}

int sup_walls_no_network(const void *how)
{
    (void)how;
    return unshare(CLONE_NEWNET) == 0 ? 0 : errno;
}

int sup_walls_rlimits(const void *how)
{
    const struct sup_walls_limits *l = how;
    const struct rlimit none = {0, 0};
    struct rlimit files = {l->files, l->files};

    if (setrlimit(RLIMIT_CORE, &none) != 0 || (l->files && setrlimit(RLIMIT_NOFILE, &files) != 0) ||
        (l->no_processes && !SANITIZED && setrlimit(RLIMIT_NPROC, &none) != 0))
        return errno;
    return 0;
}

/* ---------------------------------------------------------------- landlock */

#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_REMOVE_DIR (1ull << 4)
#define FS_REMOVE_FILE (1ull << 5)
#define FS_MAKE_DIR (1ull << 7)
#define FS_MAKE_REG (1ull << 8)
#define FS_ABI1 ((1ull << 13) - 1)
#define FS_REFER (1ull << 13)     /* ABI 2 */
#define FS_TRUNCATE (1ull << 14)  /* ABI 3 */
#define FS_IOCTL_DEV (1ull << 15) /* ABI 5 */
#define NET_BIND 1ull             /* ABI 4 */
#define NET_CONNECT 2ull
#define SCOPE_ALL 3ull /* ABI 6: abstract sockets, signals */

struct ruleset_attr {
    uint64_t fs, net, scoped;
};
struct path_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

/* What a kernel of this version can fence. */
static uint64_t fs_of(long abi)
{
    return FS_ABI1 | (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) |
           (abi >= 5 ? FS_IOCTL_DEV : 0);
}

static uint64_t rights_of(unsigned may)
{
    static const struct {
        unsigned bit;
        uint64_t fs;
    } rows[] = {
        {SUP_WALLS_READ, FS_READ_FILE | FS_READ_DIR},
        {SUP_WALLS_CHANGE,
         FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_REMOVE_FILE | FS_MAKE_REG | FS_TRUNCATE},
        {SUP_WALLS_FOLDERS, FS_MAKE_DIR},
        {SUP_WALLS_MOVE, FS_REMOVE_DIR | FS_REFER},
        {SUP_WALLS_DEVICE, FS_READ_FILE | FS_WRITE_FILE},
    };
    uint64_t fs = 0;

    for (size_t i = 0; i < SUP_WALLS_COUNT(rows); i++)
        if (may & rows[i].bit)
            fs |= rows[i].fs;
    return fs;
}

static int grant(int ruleset, const struct sup_walls_path *p, uint64_t known)
{
    struct path_attr rule = {.allowed = rights_of(p->may) & known, .parent_fd = p->fd};
    struct stat st;
    int e = 0;

    if (p->path)
        rule.parent_fd = open(p->path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0)
        return p->must ? errno : 0;
    if (fstat(rule.parent_fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rule.allowed &= FS_READ_FILE | FS_WRITE_FILE | FS_TRUNCATE;
    if (syscall(SYS_landlock_add_rule, ruleset, 1 /* a path and what is below */, &rule, 0) != 0)
        e = errno;
    if (p->path)
        close(rule.parent_fd);
    return e;
}

int sup_walls_landlock(const void *how)
{
    const struct sup_walls_files *f = how;
    struct ruleset_attr attr = {.net = NET_BIND | (f->connects ? 0 : NET_CONNECT),
                                .scoped = SCOPE_ALL};
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1u /* asks for the version */);
    size_t n_attr = sizeof(uint64_t) * (abi >= 6 ? 3 : abi >= 4 ? 2 : 1);
    int fd, e = 0;

    if (abi < 1)
        return abi < 0 ? errno : ENOSYS;
    attr.fs = fs_of(abi);
    if ((fd = (int)syscall(SYS_landlock_create_ruleset, &attr, n_attr, 0)) < 0)
        return errno;
    for (size_t i = 0; e == 0 && i < f->n; i++)
        e = grant(fd, &f->path[i], attr.fs);
    if (e == 0 && syscall(SYS_landlock_restrict_self, fd, 0) != 0)
        e = errno;
    close(fd);
    return e;
}

/* ----------------------------------------------------------------- seccomp */

static int add_calls(scmp_filter_ctx ctx, const struct sup_walls_calls *c)
{
    for (size_t i = 0; i < c->n; i++) {
        int r = seccomp_rule_add(ctx, c->verdict, c->call[i], 0);

        /* a call this architecture does not have needs no rule, nor one that is judged so anyway */
        if (r != 0 && r != -EDOM && r != -EACCES)
            return r;
    }
    return 0;
}

static int add_arg(scmp_filter_ctx ctx, const struct sup_walls_arg *a)
{
    struct scmp_arg_cmp cmp = {a->arg, SCMP_CMP_EQ, a->value, 0};

    if (a->mask != SUP_WALLS_EQ)
        cmp = (struct scmp_arg_cmp){a->arg, SCMP_CMP_MASKED_EQ, a->mask, a->value};
    return seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, a->call, 1, &cmp);
}

/* Beside the role's rows. */
static int add_common(scmp_filter_ctx ctx)
{
    const struct sup_walls_arg rows[] = {
        {SCMP_SYS(mmap), 2, PROT_EXEC, 0},
        {SCMP_SYS(mprotect), 2, PROT_EXEC, 0},
        {SCMP_SYS(tgkill), 0, SUP_WALLS_EQ, (uint64_t)getpid()},
    };
    int r = 0;

    for (size_t i = 0; r == 0 && i < SUP_WALLS_COUNT(rows); i++)
        r = add_arg(ctx, &rows[i]);
    return r;
}

int sup_walls_seccomp(const void *how)
{
    const struct sup_walls_filter *f = how;
    const uint32_t otherwise = SANITIZED ? SCMP_ACT_ALLOW : f->otherwise;
    const bool all = otherwise == SCMP_ACT_ALLOW; /* what is allowed needs no rows then */
    scmp_filter_ctx ctx = seccomp_init(otherwise);
    int r = ctx ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < f->n_calls; i++)
        if (!all || f->calls[i].verdict == SCMP_ACT_KILL_PROCESS)
            r = add_calls(ctx, &f->calls[i]);
    for (size_t i = 0; r == 0 && !all && i < f->n_args; i++)
        r = add_arg(ctx, &f->args[i]);
    if (r == 0 && !all)
        r = add_common(ctx);
    if (r == 0)
        r = seccomp_load(ctx);
    if (ctx)
        seccomp_release(ctx);
    return -r;
}
