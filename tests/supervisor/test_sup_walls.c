/* test_sup_walls.c - all that each role's sandbox asks of the kernel, compared with walls.txt.
 *
 * The calls that narrow a process are caught by the linker (--wrap): they are written down in
 * their order and nothing is applied. A seccomp filter is run, instruction by instruction, for
 * every system call there is and for the arguments that rules look at, so that what is compared is
 * what the filter decides and not how libseccomp wrote it. The kernel's Landlock is played in each
 * version. A wanted change: INFERD_WALLS_OUT=FILE writes what walls.txt should be; read its
 * difference. That the walls hold is tested where they are real: test_sup_front, test_sup_vault,
 * test_sup_fetch_sandbox.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "sup_fetch_sandbox.h"
#include "sup_front_sandbox.h"
#include "sup_tracer.h"
#include "sup_vault_sandbox.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define DIR_FD 900
#define CALLS 1024
#define INSNS 4096

/* ------------------------------------------------- a kernel that writes down */

static struct {
    FILE *out;
    int abi;         /* of Landlock; 0 = the kernel has none */
    bool no_seccomp; /* the filter is refused */
    bool absent;     /* no path is there */
    bool quiet;      /* only Landlock is written down */
    char path[1024][64];
} K;

#define NOTE(...)                        \
    do {                                 \
        if (!K.quiet)                    \
            fprintf(K.out, __VA_ARGS__); \
    } while (0)

int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int __wrap_setrlimit(int what, const struct rlimit *l);
int __wrap_unshare(int flags);
int __wrap_open(const char *path, int flags, ...);
int __real_open(const char *path, int flags, ...);
long __wrap_syscall(long nr, ...);
long __real_syscall(long nr, ...);
int __wrap_seccomp_load(const scmp_filter_ctx ctx);

int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
    NOTE("prctl %s %lu\n",
         option == PR_SET_DUMPABLE       ? "dumpable"
         : option == PR_SET_NO_NEW_PRIVS ? "no_new_privs"
                                         : "?",
         a);
    return 0;
}

int __wrap_setrlimit(int what, const struct rlimit *l)
{
    NOTE("setrlimit %s %llu %llu\n",
         what == RLIMIT_CORE     ? "core"
         : what == RLIMIT_NOFILE ? "nofile"
         : what == RLIMIT_NPROC  ? "nproc"
                                 : "?",
         (unsigned long long)l->rlim_cur, (unsigned long long)l->rlim_max);
    return 0;
}

int __wrap_unshare(int flags)
{
    NOTE("unshare %#x\n", (unsigned)flags);
    return 0;
}

static bool is_file(const char *path)
{
    static const char *const ends[] = {".conf",     ".cache",     "/hosts",
                                       "/services", "/localtime", "/null"};

    for (size_t i = 0; i < COUNT(ends); i++)
        if (strlen(path) > strlen(ends[i]) &&
            strcmp(path + strlen(path) - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* The same files on every machine: a path's kind is told by its name. */
int __wrap_open(const char *path, int flags, ...)
{
    int fd;

    if (!(flags & O_PATH))
        return __real_open(path, flags, 0600);
    if (K.absent) {
        errno = ENOENT;
        return -1;
    }
    fd = __real_open(is_file(path) ? "/dev/null" : "/", O_PATH | O_CLOEXEC);
    if (fd >= 0 && fd < (int)COUNT(K.path))
        snprintf(K.path[fd], sizeof(K.path[fd]), "%s", path);
    return fd;
}

static long landlock(long nr, const long a[5])
{
    const uint64_t *attr = (const uint64_t *)(uintptr_t)a[0];
    struct {
        uint64_t allowed;
        int32_t fd;
    } __attribute__((packed)) rule;

    if (nr == SYS_landlock_create_ruleset && !attr) {
        if (K.abi == 0)
            errno = ENOSYS;
        return K.abi ? K.abi : -1;
    }
    if (nr == SYS_landlock_create_ruleset) {
        fprintf(K.out, "landlock abi %d handles", K.abi);
        for (long i = 0; i < a[1] / 8; i++)
            fprintf(K.out, " %#llx", (unsigned long long)attr[i]);
        fprintf(K.out, "\n");
        return __real_open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (nr == SYS_landlock_add_rule) {
        memcpy(&rule, (const void *)(uintptr_t)a[2], sizeof(rule));
        fprintf(K.out, "landlock %s %#llx\n", rule.fd == DIR_FD ? "<the folder>" : K.path[rule.fd],
                (unsigned long long)rule.allowed);
    } else {
        NOTE("landlock restrict_self\n");
    }
    return 0;
}

long __wrap_syscall(long nr, ...)
{
    long a[5];
    va_list ap;

    va_start(ap, nr);
    for (size_t i = 0; i < COUNT(a); i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if (nr == SYS_landlock_create_ruleset || nr == SYS_landlock_add_rule ||
        nr == SYS_landlock_restrict_self)
        return landlock(nr, a);
    if (nr == SYS_capset) {
        const uint32_t *set = (const uint32_t *)(uintptr_t)a[1];

        NOTE("capset");
        for (int i = 0; i < 6; i++)
            NOTE(" %#x", set[i]);
        NOTE("\n");
        return 0;
    }
    return __real_syscall(nr, a[0], a[1], a[2], a[3], a[4]);
}

/* -------------------------------------------------------- a filter, as it runs */

static uint32_t run(const struct sock_filter *p, size_t n, const struct seccomp_data *d)
{
    uint32_t acc = 0, x = 0, mem[16] = {0}, v;

    for (size_t pc = 0; pc < n; pc++) {
        const struct sock_filter *i = &p[pc];
        uint32_t k = BPF_SRC(i->code) == BPF_X ? x : i->k;

        switch (BPF_CLASS(i->code)) {
        case BPF_LD:
            if (BPF_MODE(i->code) == BPF_ABS) {
                assert_true(i->k + 4 <= sizeof(*d));
                memcpy(&acc, (const char *)d + i->k, 4);
            } else {
                acc = BPF_MODE(i->code) == BPF_MEM ? mem[i->k & 15] : i->k;
            }
            break;
        case BPF_LDX:
            x = BPF_MODE(i->code) == BPF_MEM ? mem[i->k & 15] : i->k;
            break;
        case BPF_ST:
            mem[i->k & 15] = acc;
            break;
        case BPF_ALU:
            assert_true(BPF_OP(i->code) == BPF_AND || BPF_OP(i->code) == BPF_OR);
            acc = BPF_OP(i->code) == BPF_AND ? acc & k : acc | k;
            break;
        case BPF_JMP:
            v = BPF_OP(i->code) == BPF_JEQ   ? acc == k
                : BPF_OP(i->code) == BPF_JGT ? acc > k
                : BPF_OP(i->code) == BPF_JGE ? acc >= k
                                             : (acc & k) != 0;
            pc += BPF_OP(i->code) == BPF_JA ? i->k : v ? i->jt : i->jf;
            break;
        case BPF_RET:
            return BPF_RVAL(i->code) == BPF_A ? acc : i->k;
        default:
            fail_msg("a filter has an instruction of class %u", BPF_CLASS(i->code));
        }
    }
    fail_msg("a filter has no end");
    return 0;
}

static const char *verdict(uint32_t v, char out[32])
{
    switch (v & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_ALLOW:
        return "allow";
    case SECCOMP_RET_KILL_PROCESS:
        return "kill_process";
    case SECCOMP_RET_KILL_THREAD:
        return "kill_thread";
    case SECCOMP_RET_ERRNO:
        snprintf(out, 32, "errno_%u", v & SECCOMP_RET_DATA);
        return out;
    default:
        snprintf(out, 32, "%#x", v);
        return out;
    }
}

#define ONES UINT64_MAX
/* What rules look at: this argument has this value, the others are 0. */
static const struct probe {
    int call, arg;
    uint64_t value;
    const char *says;
} probes[] = {
    {SCMP_SYS(socket), 0, AF_UNIX, "unix"},
    {SCMP_SYS(socket), 0, AF_INET, "inet"},
    {SCMP_SYS(socket), 0, AF_INET6, "inet6"},
    {SCMP_SYS(socket), 0, AF_INET | 1ull << 32, "inet with a high bit"},
    {SCMP_SYS(socket), 0, AF_NETLINK, "netlink"},
    {SCMP_SYS(socket), 0, AF_PACKET, "packet"},
    {SCMP_SYS(socket), 0, AF_VSOCK, "vsock"},
    {SCMP_SYS(socketpair), 0, AF_UNIX, "unix"},
    {SCMP_SYS(socketpair), 0, AF_INET, "inet"},
    {SCMP_SYS(ioctl), 1, FIONBIO, "FIONBIO"},
    {SCMP_SYS(ioctl), 1, FIONREAD, "FIONREAD"},
    {SCMP_SYS(ioctl), 1, TCGETS, "TCGETS"},
    {SCMP_SYS(ioctl), 1, TIOCSTI, "TIOCSTI"},
    {SCMP_SYS(ioctl), 1, TIOCLINUX, "TIOCLINUX"},
    {SCMP_SYS(mmap), 2, PROT_READ | PROT_WRITE, "rw"},
    {SCMP_SYS(mmap), 2, PROT_READ | PROT_EXEC, "rx"},
    {SCMP_SYS(mmap), 2, PROT_EXEC | 1ull << 32, "x with a high bit"},
    {SCMP_SYS(mprotect), 2, PROT_READ | PROT_WRITE, "rw"},
    {SCMP_SYS(mprotect), 2, PROT_READ | PROT_EXEC, "rx"},
    {SCMP_SYS(clone), 0, SIGCHLD, "process"},
    {SCMP_SYS(clone), 0, CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, "thread"},
    {SCMP_SYS(clone), 0, CLONE_NEWUSER, "user namespace"},
    {SCMP_SYS(prctl), 0, PR_GET_SECCOMP, "GET_SECCOMP"},
    {SCMP_SYS(prctl), 0, PR_GET_NO_NEW_PRIVS, "GET_NO_NEW_PRIVS"},
    {SCMP_SYS(prctl), 0, PR_GET_DUMPABLE, "GET_DUMPABLE"},
    {SCMP_SYS(prctl), 0, PR_SET_DUMPABLE, "SET_DUMPABLE"},
    {SCMP_SYS(prctl), 0, PR_SET_SECCOMP, "SET_SECCOMP"},
    {SCMP_SYS(tgkill), 0, 1, "another process"},
    {SCMP_SYS(tgkill), 0, 0 /* getpid() */, "itself"},
};

static uint32_t ask(const struct sock_filter *p, size_t n, uint32_t arch, int nr,
                    const uint64_t args[6])
{
    struct seccomp_data d = {.nr = nr, .arch = arch};

    memcpy(d.args, args, sizeof(d.args));
    return run(p, n, &d);
}

static void tell(const struct sock_filter *p, size_t n)
{
    static const uint64_t zeros[6], ones[6] = {ONES, ONES, ONES, ONES, ONES, ONES};
    const uint32_t arch = seccomp_arch_native();
    const uint32_t other = arch == SCMP_ARCH_X86_64 ? SCMP_ARCH_AARCH64 : SCMP_ARCH_X86_64;
    uint32_t otherwise = ask(p, n, arch, CALLS + 1, zeros);
    char b[32];

    fprintf(K.out, "otherwise %s\n", verdict(otherwise, b));
    fprintf(K.out, "another architecture %s\n", verdict(ask(p, n, other, 0, zeros), b));
    if (arch == SCMP_ARCH_X86_64)
        fprintf(K.out, "x32 %s\n", verdict(ask(p, n, arch, 0x40000000, zeros), b));
    for (int nr = 0; nr < CALLS; nr++) {
        uint32_t v = ask(p, n, arch, nr, zeros);
        char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, nr);
        bool by_args = v != ask(p, n, arch, nr, ones);

        for (size_t i = 0; i < COUNT(probes); i++)
            by_args |= probes[i].call == nr;
        if (by_args || v != otherwise)
            fprintf(K.out, "call %s %s\n", name ? name : "?",
                    by_args ? "by arguments" : verdict(v, b));
        free(name);
    }
    for (size_t i = 0; i < COUNT(probes); i++) {
        uint64_t args[6] = {0};
        char *name;

        if (probes[i].call < 0)
            continue; /* not of this architecture */
        args[probes[i].arg] =
            strcmp(probes[i].says, "itself") == 0 ? (uint64_t)getpid() : probes[i].value;
        name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, probes[i].call);
        fprintf(K.out, "call %s (%s) %s\n", name, probes[i].says,
                verdict(ask(p, n, arch, probes[i].call, args), b));
        free(name);
    }
}

int __wrap_seccomp_load(const scmp_filter_ctx ctx)
{
    static struct sock_filter p[INSNS];
    int fd = memfd_create("filter", MFD_CLOEXEC);
    ssize_t n;

    NOTE("seccomp\n");
    if (K.no_seccomp) {
        close(fd);
        return -EINVAL;
    }
    assert_int_equal(seccomp_export_bpf(ctx, fd), 0);
    n = pread(fd, p, sizeof(p), 0);
    close(fd);
    assert_true(n > 0 && (size_t)n < sizeof(p));
    if (!K.quiet)
        tell(p, (size_t)n / sizeof(p[0]));
    return 0;
}

/* ------------------------------------------------------------------------ roles */

static enum rc front(const char *mode)
{
    enum rc rc = sup_front_limits(mode, 1, NULL);

    return rc == RC_OK ? sup_front_sandbox(mode, NULL) : rc;
}
static enum rc tracer(const char *mode)
{
    return sup_tracer_sandbox(mode, NULL, NULL);
}
static enum rc vault(const char *mode)
{
    struct sup_walls_layer layer[SUP_VAULT_LAYERS];

    return sup_vault_sandbox(mode, DIR_FD, layer, NULL);
}
static enum rc keeper(const char *mode)
{
    return sup_fetch_sandbox_keeper(mode, DIR_FD, NULL, NULL);
}
static enum rc keeper_no_folder(const char *mode)
{
    return sup_fetch_sandbox_keeper(mode, -1, NULL, NULL);
}
static enum rc media_child(const char *mode)
{
    return sup_fetch_sandbox(mode, SUP_FETCH_MEDIA, DIR_FD, NULL, NULL, NULL);
}
static enum rc pull_child(const char *mode)
{
    return sup_fetch_sandbox(mode, SUP_FETCH_PULL, DIR_FD, NULL, NULL, NULL);
}
static enum rc file_child(const char *mode)
{
    return sup_fetch_sandbox(mode, SUP_FETCH_COPY, DIR_FD, "/the/source", NULL, NULL);
}

static const struct {
    const char *name;
    enum rc (*narrow)(const char *mode);
} roles[] = {
    {"front", front},
    {"tracer", tracer},
    {"vault", vault},
    {"fetcher", keeper},
    {"fetcher without a folder", keeper_no_folder},
    {"fetcher's child for a file of a request", media_child},
    {"fetcher's child for a pull", pull_child},
    {"fetcher's child for a pull from here", file_child},
};

static const struct {
    const char *says, *mode;
    int abi;
    bool no_seccomp, absent, quiet;
} ways[] = {
    {"strict", "strict", 7, false, false, false},
    {"off", "off", 7, false, false, false},
    {"strict, no Landlock", "strict", 0, false, false, true},
    {"permissive, no Landlock", "permissive", 0, false, false, true},
    {"strict, no seccomp", "strict", 7, true, false, true},
    {"permissive, no seccomp", "permissive", 7, true, false, true},
    {"strict, none of the paths is there", "strict", 7, false, true, true},
    {"strict, Landlock 1", "strict", 1, false, false, true},
    {"strict, Landlock 2", "strict", 2, false, false, true},
    {"strict, Landlock 3", "strict", 3, false, false, true},
    {"strict, Landlock 4", "strict", 4, false, false, true},
    {"strict, Landlock 5", "strict", 5, false, false, true},
    {"strict, Landlock 6", "strict", 6, false, false, true},
};

/* Of calls that this architecture does not have there are no lines. */
static bool of_another_architecture(const char *line)
{
    char name[64];

    return sscanf(line, "call %63s", name) == 1 && seccomp_syscall_resolve_name(name) < 0;
}

static void the_walls_are_as_written_down(void **state)
{
    char *got = NULL, line[256], want[256];
    const char *to = getenv("INFERD_WALLS_OUT");
    size_t n_got = 0, at = 0;
    int none;
    FILE *f;

    (void)state;
    if (SANITIZED)
        skip(); /* another, shorter list of rules */
    none = __real_open("/", O_PATH | O_CLOEXEC);
    assert_int_equal(dup2(none, DIR_FD), DIR_FD);
    close(none);
    assert_non_null(K.out = open_memstream(&got, &n_got));
    for (size_t r = 0; r < COUNT(roles); r++)
        for (size_t w = 0; w < COUNT(ways); w++) {
            enum rc rc;

            K.abi = ways[w].abi;
            K.no_seccomp = ways[w].no_seccomp;
            K.absent = ways[w].absent;
            K.quiet = ways[w].quiet;
            fprintf(K.out, "\n== %s: %s\n", roles[r].name, ways[w].says);
            rc = roles[r].narrow(ways[w].mode);
            fprintf(K.out, "= %s\n", rc_name(rc));
        }
    fclose(K.out);
    close(DIR_FD);
    if (to) {
        assert_non_null(f = fopen(to, "w"));
        assert_int_equal(fwrite(got, 1, n_got, f), n_got);
        fclose(f);
    }
    assert_non_null(f = fopen(TEST_SOURCE "/tests/supervisor/walls.txt", "r"));
    while (fgets(want, sizeof(want), f)) {
        size_t n;

        if (of_another_architecture(want) ||
            (strncmp(want, "x32", 3) == 0 && seccomp_arch_native() != SCMP_ARCH_X86_64))
            continue;
        n = strcspn(got + at, "\n") + 1;
        snprintf(line, sizeof(line), "%.*s", at < n_got ? (int)n : 0, got + at);
        if (strcmp(line, want) != 0)
            fail_msg("got '%s', walls.txt has '%s', behind:\n%.*s", line, want,
                     (int)(at < 600 ? at : 600), got + (at < 600 ? 0 : at - 600));
        at += n;
    }
    fclose(f);
    assert_int_equal(at, n_got); /* nothing more than written down */
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_walls_are_as_written_down)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
