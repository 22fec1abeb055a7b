/* be_cpu_topo.c - what this processor can do and how many threads it will bear.
 *
 * Reads cpuid, the affinity mask and the cgroup's quota (v2 cpu.max, v1
 * cpu.cfs_*). Missing files mean no quota: inside a worker's sandbox they cannot
 * be opened, so a worker passes n_threads itself. Never changes anything.
 * Tests: tests/backends/test_be_cpu_pool.c
 */
#include "be_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
/* clang 14 does not know this name in __builtin_cpu_supports */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool be_cpu_has(const char *level)
{
    if (strcmp(level, "c") == 0)
        return true;
#if defined(__x86_64__)
    if (strcmp(level, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               has_f16c();
    if (strcmp(level, "avx512") == 0)
        return be_cpu_has("avx2") && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#endif
    return false;
}

double be_cpu_quota_v2(const char *text)
{
    char *end;
    long long quota, period;

    if (strncmp(text, "max", 3) == 0)
        return -1;
    quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0)
        return -1;
    period = strtoll(end, NULL, 10);
    return period > 0 ? (double)quota / (double)period : -1;
}

double be_cpu_quota_v1(const char *quota, const char *period)
{
    long long q = strtoll(quota, NULL, 10), p = strtoll(period, NULL, 10);

    return q > 0 && p > 0 ? (double)q / (double)p : -1;
}

static bool slurp(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, buf, size - 1);
    close(fd);
    if (n < 0)
        return false;
    buf[n] = '\0';
    return true;
}

static double smaller(double a, double b)
{
    if (a < 0)
        return b;
    return b < 0 || a < b ? a : b;
}

/* A quota binds a group and all below it, so every level up to the root counts. */
static double quota_of_path(const char *root, const char *path, bool v2)
{
    char dir[PATH_MAX], file[PATH_MAX + 64], a[64], b[64];
    double best = -1;

    if (snprintf(dir, sizeof(dir), "%s%s", root, path) >= (int)sizeof(dir))
        return -1;
    for (;;) {
        if (v2) {
            snprintf(file, sizeof(file), "%s/cpu.max", dir);
            if (slurp(file, a, sizeof(a)))
                best = smaller(best, be_cpu_quota_v2(a));
        } else {
            snprintf(file, sizeof(file), "%s/cpu.cfs_quota_us", dir);
            if (slurp(file, a, sizeof(a))) {
                snprintf(file, sizeof(file), "%s/cpu.cfs_period_us", dir);
                if (slurp(file, b, sizeof(b)))
                    best = smaller(best, be_cpu_quota_v1(a, b));
            }
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < strlen(root))
            return best;
        *slash = '\0';
    }
}

static double cgroup_quota(void)
{
    char text[4096], *line, *save = NULL;
    double best = -1;

    if (!slurp("/proc/self/cgroup", text, sizeof(text)))
        return -1;
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *ctl = strchr(line, ':'), *path = ctl ? strchr(ctl + 1, ':') : NULL;

        if (!path)
            continue;
        *path++ = '\0';
        ctl++;
        if (strncmp(line, "0:", 2) == 0)
            best = smaller(best, quota_of_path("/sys/fs/cgroup", path, true));
        else if (strstr(ctl, "cpu") && !strstr(ctl, "cpuset"))
            best = smaller(best, quota_of_path("/sys/fs/cgroup/cpu", path, false));
    }
    return best;
}

unsigned be_host_threads(unsigned wanted, bool *out_spin)
{
    cpu_set_t set;
    unsigned cpus = 1, threads;
    double quota = cgroup_quota();

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cpus = (unsigned)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0)
        cpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    threads = wanted;
    if (threads == 0) {
        threads = cpus;
        if (quota > 0 && quota < threads)
            threads = quota < 1 ? 1 : (unsigned)quota;
    }
    if (threads < 1)
        threads = 1;
    if (threads > BE_CPU_MAX_THREADS)
        threads = BE_CPU_MAX_THREADS;
    *out_spin = threads <= cpus && !(quota > 0 && quota < threads);
    return threads;
}
