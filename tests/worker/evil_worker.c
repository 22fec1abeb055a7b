/* evil_worker.c - a worker that turned: sandboxed like the real one, then tries.
 *
 *   evil-worker ATTEMPT ROOT SKIP
 *
 * ATTEMPT is a row of attempts[]; ROOT the model directory or file; SKIP a mask of
 * layers to leave out (wrk_sandbox_impl.h), 0 for the real sandbox; bit 31 gives it a
 * device, /dev/zero, and bit 30 a kernel cache too, EVIL_CACHE. Prints
 * nothing: exit status 0 = the attempt succeeded, 100 + errno = it failed with
 * errno (capped), 1 = the set-up failed; or a signal ended it.
 * Expected outcomes: docs/sandbox.md and test_wrk_sandbox.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wrk_media.h"
#include "wrk_sandbox_impl.h"
#include "wrk_start.h"

static int root_fd = -1;
/* read before the environment is wiped */
static char netns[64], sock_name[64];

static int result(bool ok)
{
    int e = errno;

    return ok ? 0 : 100 + (e < 120 ? e : 120);
}

static int open_outside(void)
{
    return result(open("/etc/passwd", O_RDONLY) >= 0);
}
static int open_dotdot(void)
{
    return result(openat(root_fd, "../../etc/passwd", O_RDONLY) >= 0 ||
                  openat(root_fd, "..", O_RDONLY) >= 0);
}
static int open2_outside(void)
{
    struct open_how how = {.flags = O_RDONLY};

    return result(syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", &how, sizeof(how)) >= 0);
}
static int open_inside(void)
{
    return result(openat(root_fd, "inside.txt", O_RDONLY) >= 0);
}
static int write_model(void)
{
    return result(openat(root_fd, "inside.txt", O_WRONLY) >= 0);
}
static int create_in_model(void)
{
    return result(openat(root_fd, "new.txt", O_CREAT | O_WRONLY, 0600) >= 0);
}
static int create2_in_model(void)
{
    struct open_how how = {.flags = O_CREAT | O_RDWR, .mode = 0600};

    return result(syscall(SYS_openat2, root_fd, "new2.txt", &how, sizeof(how)) >= 0);
}
static int unlink_in_model(void)
{
    return result(unlinkat(root_fd, "inside.txt", 0) == 0);
}
static int inet_socket(void)
{
    return result(socket(AF_INET, SOCK_STREAM, 0) >= 0);
}
static int tcp_connect(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(9)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return 1;
    connect(fd, (struct sockaddr *)&a, sizeof(a));
    return result(false);
}
static int abstract_socket(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(sock_name);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memcpy(a.sun_path + 1, sock_name, n);
    return result(fd >= 0 &&
                  connect(fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0);
}
static int exec_sh(void)
{
    execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
    return result(false);
}
static int fork_once(void)
{
    pid_t p = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

    if (p == 0)
        _exit(0);
    return result(p > 0);
}
static int fork_bomb(void)
{
    for (int i = 0; i < 8; i++) /* eight are proof enough if nothing stops it */
        if (fork_once() != 0)
            return result(false);
    return 0;
}
static int vfork_once(void)
{
    pid_t p = vfork();

    if (p == 0)
        _exit(0);
    return result(p > 0);
}
static int ptrace_parent(void)
{
    return result(ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0);
}
static int kill_parent(void)
{
    return result(kill(getppid(), 0) == 0);
}
static int pin_parent(void)
{
    cpu_set_t all;

    memset(&all, 0xff, sizeof(all));
    return result(sched_setaffinity(getppid(), sizeof(all), &all) == 0);
}
static int map_exec(void)
{
    return result(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
                  MAP_FAILED);
}
static int protect_exec(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return result(mprotect(p, 4096, PROT_READ | PROT_EXEC) == 0);
}
static int self_mem(void)
{
    return result(open("/proc/self/mem", O_RDONLY) >= 0);
}
static int set_uid(void)
{
    return result(setuid(getuid() == 0 ? 12345 : getuid()) == 0);
}
static int make_dumpable(void)
{
    return result(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}
static int is_dumpable(void)
{
    errno = EPERM;
    return result(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1);
}
static int has_secret_env(void)
{
    errno = ENOENT;
    return result(getenv("EVIL_SECRET") != NULL);
}
static int has_stray_fd(void)
{
    return result(fcntl(77, F_GETFD) >= 0);
}
static int can_dump_core(void)
{
    struct rlimit r = {1, 1};

    errno = EPERM;
    getrlimit(RLIMIT_CORE, &r);
    return result(r.rlim_max > 0);
}
static int has_caps(void)
{
    uint32_t h[2] = {0x20080522, 0}, d[6] = {0};

    errno = EPERM;
    syscall(SYS_capget, h, d);
    return result(d[0] != 0 || d[1] != 0 || d[3] != 0 || d[4] != 0);
}
static int gains_privs(void)
{
    errno = EPERM;
    return result(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
}
static int outlives_parent(void)
{
    int sig = 0;

    errno = EPERM;
    prctl(PR_GET_PDEATHSIG, &sig, 0, 0, 0);
    return result(sig != SIGKILL);
}
static int shares_network(void)
{
    char mine[64] = "";

    errno = EPERM;
    if (readlink("/proc/self/ns/net", mine, sizeof(mine) - 1) <= 0)
        return result(false);
    return result(strcmp(mine, netns) == 0);
}
static void *idle_thread(void *arg)
{
    return arg;
}
/* It says when it runs: what a thread calls while it starts is for no filter to see. Then it
 * waits as a pool's thread does, which every filter lets it. */
static sem_t thread_runs, thread_ends;
static void *sleeping_thread(void *arg)
{
    sem_post(&thread_runs);
    for (;;)
        sem_wait(&thread_ends);
    return arg;
}
static bool start_a_thread(void)
{
    if (sem_init(&thread_runs, 0, 0) != 0 || sem_init(&thread_ends, 0, 0) != 0 ||
        pthread_create(&(pthread_t){0}, NULL, sleeping_thread, NULL) != 0)
        return false;
    while (sem_wait(&thread_runs) != 0) /* a signal */
        ;
    return true;
}
static int early_thread(void)
{
    return 0; /* getting here is the attempt: strict refuses to start */
}
static int new_thread(void)
{
    pthread_t t;

    errno = pthread_create(&t, NULL, idle_thread, NULL);
    if (errno != 0)
        return result(false);
    pthread_join(t, NULL);
    return 0;
}
static int new_thread_after_seal(void)
{
    if (wrk_sandbox_seal(NULL) != RC_OK)
        return 1;
    return new_thread();
}
static int new_user_ns(void)
{
    return result(unshare(CLONE_NEWUSER) == 0);
}
static int uses_io_uring(void)
{
    char params[256] = {0};

    return result(syscall(SYS_io_uring_setup, 4, params) >= 0);
}
static int memfd_exec(void)
{
    int fd = memfd_create("x", 0);

    return result(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED);
}
static int big_memfd(void)
{
    int fd = memfd_create("x", 0);

    signal(SIGXFSZ, SIG_IGN);
    return result(fd >= 0 && ftruncate(fd, 300 << 20) == 0);
}
/* What a worker must still be able to do: the sandbox is no proof if it kills all. */
static int honest_work(void)
{
    int fd = memfd_create("x", MFD_ALLOW_SEALING);
    void *p = malloc(64 << 20);
    char c = 0;

    if (fd < 0 || p == NULL || ftruncate(fd, 1 << 20) != 0 || new_thread() != 0)
        return 1;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 || pread(fd, &c, 1, 0) != 1)
        return 1;
    free(p);
    return 0;
}

/* Files of every coding, read before the sandbox and decoded in it, behind the seal. */
static const char *const media[] = {
    "progressive.jpg", "cmyk.jpg", "adam7_pal.png", "lossy_alpha.webp", "moving.webp", "plain.gif",
    "f32.wav",         "ulaw.wav", "stereo.flac",   "vorbis.ogg",       "opus.ogg",    "stereo.mp3",
};
static struct {
    uint8_t data[1 << 15];
    size_t n;
} media_file[sizeof(media) / sizeof(media[0])];

static void read_media(const char *dir)
{
    for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++) {
        char path[512];
        ssize_t n;
        int fd;

        snprintf(path, sizeof(path), "%s/%s", dir, media[i]);
        if ((fd = open(path, O_RDONLY)) < 0)
            continue;
        n = read(fd, media_file[i].data, sizeof(media_file[i].data));
        media_file[i].n = n > 0 ? (size_t)n : 0;
        close(fd);
    }
}

static int decodes_media(void)
{
    if (wrk_sandbox_seal(NULL) != RC_OK)
        return 1;
    for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++) {
        const uint8_t *d = media_file[i].data;
        enum wrk_media_kind kind = wrk_media_sniff(d, media_file[i].n, NULL);
        struct wrk_image img = {0};
        struct wrk_sound snd = {0};
        enum rc rc =
            wrk_media_is_sound(kind)
                ? wrk_sound_decode(&snd, kind, d, media_file[i].n, 16000, 30000, NULL, NULL)
                : wrk_image_decode(&img, kind, d, media_file[i].n, NULL, NULL);

        wrk_image_deinit(&img);
        wrk_sound_deinit(&snd);
        if (rc != RC_OK)
            return 10 + (int)i;
    }
    return 0;
}

/* -------------------------------------------------------------- with a device */

static char cache[128];
static bool opened, thread_ran;

static void *quick_thread(void *arg)
{
    thread_ran = true;
    return arg;
}
/* As a driver does: starts threads and maps code, before the filter. */
static void open_device(void *user)
{
    pthread_t t;

    (void)user;
    opened =
        mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED &&
        pthread_create(&t, NULL, quick_thread, NULL) == 0 && pthread_join(t, NULL) == 0;
}
static int was_opened(void)
{
    return opened && thread_ran ? 0 : 1;
}
static int uses_device(void)
{
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    char buf[64];

    if (fd < 0)
        return result(false);
    errno = 0;
    return result(ioctl(fd, 0x5401 /* TCGETS */, buf) == 0);
}
static int other_device(void)
{
    return result(open("/dev/full", O_RDWR | O_CLOEXEC) >= 0);
}
static int keeps_kernels(void)
{
    int dir_fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;

    fd = dir_fd < 0 ? -1 : openat(dir_fd, "t", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return result(fd >= 0 && write(fd, "x", 1) == 1 && fsync(fd) == 0 &&
                  renameat(dir_fd, "t", dir_fd, "k") == 0 && fsync(dir_fd) == 0 &&
                  unlinkat(dir_fd, "k", 0) == 0);
}
static int folder_in_cache(void)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/d", cache);
    return result(mkdir(path, 0700) == 0);
}
static int excl_in_model(void)
{
    return result(openat(root_fd, "fresh.txt", O_WRONLY | O_CREAT | O_EXCL, 0600) >= 0);
}
static int new_thread_after_device_seal(void)
{
    pthread_t t;

    if (wrk_sandbox_seal_device(NULL) != RC_OK)
        return 1;
    errno = pthread_create(&t, NULL, quick_thread, NULL);
    return result(errno == 0);
}

static const struct {
    const char *name;
    int (*run)(void);
} attempts[] = {
#define A(f)  \
    {         \
#f, f \
    }
    A(open_outside),     A(open_dotdot),     A(open2_outside),
    A(open_inside),      A(write_model),     A(create_in_model),
    A(create2_in_model), A(unlink_in_model), A(inet_socket),
    A(tcp_connect),      A(abstract_socket), A(exec_sh),
    A(fork_bomb),        A(vfork_once),      A(ptrace_parent),
    A(kill_parent),      A(pin_parent),      A(map_exec),
    A(protect_exec),     A(memfd_exec),      A(self_mem),
    A(set_uid),          A(make_dumpable),   A(is_dumpable),
    A(has_secret_env),   A(has_stray_fd),    A(can_dump_core),
    A(has_caps),         A(gains_privs),     A(outlives_parent),
    A(shares_network),   A(new_thread),      A(new_thread_after_seal),
    A(new_user_ns),      A(uses_io_uring),   A(big_memfd),
    A(honest_work),      A(early_thread),    A(was_opened),
    A(uses_device),      A(other_device),    A(keeps_kernels),
    A(folder_in_cache),  A(excl_in_model),   A(new_thread_after_device_seal),
    A(decodes_media),
};

int main(int argc, char **argv)
{
    static const char *const nodes[] = {"/dev/zero", NULL};
    static const char *const none[] = {"/not/on/this/machine", NULL};
    static struct wrk_sandbox_report report;
    struct wrk_sandbox_device device = {.read_only = none, .nodes = nodes, .open = open_device};
    struct rc_err err = RC_ERR_INIT;
    uint32_t skip;

    wrk_start_restore();
    if (argc != 4)
        return 1;
    skip = (uint32_t)strtoul(argv[3], NULL, 0);
    snprintf(sock_name, sizeof(sock_name), "%s", getenv("EVIL_SOCK") ? getenv("EVIL_SOCK") : "");
    snprintf(cache, sizeof(cache), "%s", getenv("EVIL_CACHE") ? getenv("EVIL_CACHE") : "");
    if (getenv("EVIL_MEDIA"))
        read_media(getenv("EVIL_MEDIA"));
    if (skip & (1u << 30))
        device.rw_dir = cache;
    if (readlink("/proc/self/ns/net", netns, sizeof(netns) - 1) < 0)
        netns[0] = 0;
    if (strcmp(argv[1], "early_thread") == 0 && !start_a_thread())
        return 1;
    root_fd = open(argv[2], O_RDONLY);
    if (wrk_sandbox_apply_but(skip, WRK_SANDBOX_STRICT, -1, root_fd, 2,
                              skip & (1u << 31) ? &device : NULL, &report, &err) != RC_OK) {
        if (write(2, err.msg, strlen(err.msg)) < 0) {
            /* nothing to do */
        }
        return 1;
    }
    for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++)
        if (strcmp(argv[1], attempts[i].name) == 0)
            _exit(attempts[i].run());
    return 1;
}
