/* wrk_start.c - what happens before the sandbox, and before main().
 *
 * Holds the only mutable file-scope state of the worker: the affinity mask it
 * was started with. Must never read anything that a peer or a model wrote.
 * Change with care: early_hook runs before libc's own constructors, so it makes
 * raw system calls only. Tests: tests/worker/test_wrk_sandbox.c
 */
#include "wrk_start.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
/* The leak check at exit makes a process and traces it: not inside a sandbox. Unit
 * tests do not link this file and keep it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

#define MASK_WORDS 128 /* 8192 processors */
static unsigned long saved_mask[MASK_WORDS];
static long saved_bytes; /* 0: nothing to restore */

#if defined(__clang__)
#define BARE __attribute__((no_sanitize("address", "undefined", "thread")))
#else
#define BARE                                                                       \
    __attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread, \
                   optimize("no-tree-loop-distribute-patterns")))
#endif

BARE static void early_hook(int argc, char **argv, char **envp)
{
    /* a stack buffer would go through the stack protector, not yet set up */
    static unsigned long one[MASK_WORDS];
    long n = syscall(SYS_sched_getaffinity, 0, sizeof(saved_mask), saved_mask);

    (void)argc;
    (void)argv;
    (void)envp;
    if (n <= 0)
        return;
    for (long i = 0; i < n / (long)sizeof(one[0]); i++) {
        if (saved_mask[i] == 0)
            continue;
        one[i] = saved_mask[i] & (~saved_mask[i] + 1); /* its lowest processor */
        break;
    }
    if (syscall(SYS_sched_setaffinity, 0, n, one) == 0)
        saved_bytes = n;
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **,
                                                                            char **) = early_hook;

void wrk_start_restore(void)
{
    if (saved_bytes > 0)
        syscall(SYS_sched_setaffinity, 0, saved_bytes, saved_mask);
    saved_bytes = 0;
}

unsigned wrk_start_count_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *e;
    unsigned n = 0;

    if (d == NULL)
        return 0;
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.')
            n++;
    closedir(d);
    return n;
}

/* First line of a small file; false when it cannot be read. */
static bool read_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    bool ok;

    if (f == NULL)
        return false;
    ok = fgets(buf, (int)cap, f) != NULL;
    fclose(f);
    return ok;
}

/* Processors of quota/period, rounded up; 0 = no limit there. */
static unsigned quota_v2(const char *dir)
{
    char path[512], line[64];
    long long quota, period;

    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", dir);
    if (!read_line(path, line, sizeof(line)) || sscanf(line, "%lld %lld", &quota, &period) != 2 ||
        quota <= 0 || period <= 0)
        return 0;
    return (unsigned)((quota + period - 1) / period);
}

static unsigned quota_v1(void)
{
    char line[64];
    long long quota = 0, period = 0;

    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof(line)))
        quota = atoll(line);
    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof(line)))
        period = atoll(line);
    return quota > 0 && period > 0 ? (unsigned)((quota + period - 1) / period) : 0;
}

/* The tightest quota of our cgroup and its parents. */
static unsigned cgroup_cpus(void)
{
    char dir[256] = "", line[320];
    unsigned best = 0, q;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0 && strlen(line + 3) < sizeof(dir))
            strcpy(dir, line + 3);
    }
    if (f != NULL)
        fclose(f);
    for (;;) {
        char *slash;
        if ((q = quota_v2(dir)) != 0 && (best == 0 || q < best))
            best = q;
        if ((slash = strrchr(dir, '/')) == NULL)
            break;
        *slash = '\0';
    }
    if ((q = quota_v1()) != 0 && (best == 0 || q < best))
        best = q;
    return best;
}

unsigned wrk_start_cpus(void)
{
    unsigned long mask[MASK_WORDS] = {0};
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);
    unsigned n = 0, q = cgroup_cpus();

    for (long i = 0; i < bytes / (long)sizeof(mask[0]); i++)
        n += (unsigned)__builtin_popcountl(mask[i]);
    if (n == 0)
        n = 1;
    return q != 0 && q < n ? q : n;
}
