/* sup_cpu.c - see sup_cpu.h. Reads small files, bounded; a file that is not there
 * is a limit that is not there. Tests: tests/e2e/cli_doctor.py */
#include "sup_cpu.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool slurp(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t r;

    if (fd < 0)
        return false;
    while (n < cap - 1 && (r = read(fd, out + n, cap - 1 - n)) > 0)
        n += (size_t)r;
    close(fd);
    out[n] = '\0';
    return n > 0;
}

void sup_cpu_features(char *out, size_t cap)
{
    static const char *const wanted[] = {"avx2",     "fma",      "f16c",       "avx512f",
                                         "avx512bw", "avx512vl", "avx512dq",   "avx512_vnni",
                                         "avx_vnni", "amx_int8", "avx512_bf16"};
    char text[16384], *flags, *end;
    size_t n;

#if defined(__x86_64__)
    n = (size_t)snprintf(out, cap, "x86-64:");
#elif defined(__aarch64__)
    n = (size_t)snprintf(out, cap, "aarch64:");
#else
    n = (size_t)snprintf(out, cap, "other:");
#endif
    if (!slurp("/proc/cpuinfo", text, sizeof(text)) || !(flags = strstr(text, "\nflags"))) {
        snprintf(out + n, cap - n, " features unknown");
        return;
    }
    if ((end = strchr(flags + 1, '\n')))
        *end = '\0';
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && n < cap; i++) {
        size_t len = strlen(wanted[i]);

        for (const char *p = flags; (p = strstr(p, wanted[i])); p += len)
            if (p[-1] == ' ' && (p[len] == ' ' || !p[len])) {
                n += (size_t)snprintf(out + n, cap - n, " %s", wanted[i]);
                break;
            }
    }
}

unsigned sup_cpu_affinity(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* Calls read with each folder from our cgroup up to the root (version 2). */
static bool walk(bool (*read_one)(const char *dir, void *out), void *out)
{
    char text[4096], dir[4200], *path, *slash;
    bool any = false;

    if (!slurp("/proc/self/cgroup", text, sizeof(text)))
        return false;
    path = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!path)
        path = "0::/";
    path = strstr(path, "0::") + 3;
    snprintf(dir, sizeof(dir), "/sys/fs/cgroup%.*s", (int)strcspn(path, "\n"), path);
    for (;;) {
        any = read_one(dir, out) || any;
        if (strcmp(dir, "/sys/fs/cgroup") == 0 || !(slash = strrchr(dir, '/')) ||
            strlen(dir) <= strlen("/sys/fs/cgroup"))
            return any;
        *slash = '\0';
    }
}

static bool cpu_one(const char *dir, void *out)
{
    char path[4300], text[64];
    double *least = out, quota, period;

    snprintf(path, sizeof(path), "%s/cpu.max", dir);
    if (!slurp(path, text, sizeof(text)) || sscanf(text, "%lf %lf", &quota, &period) != 2 ||
        period <= 0 || quota <= 0)
        return false;
    if (quota / period < *least)
        *least = quota / period;
    return true;
}

bool sup_cgroup_cpu(double *quota)
{
    char q[64], p[64];

    *quota = 1e9;
    if (walk(cpu_one, quota))
        return true;
    if (slurp("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", q, sizeof(q)) &&
        slurp("/sys/fs/cgroup/cpu/cpu.cfs_period_us", p, sizeof(p)) && atof(q) > 0 && atof(p) > 0) {
        *quota = atof(q) / atof(p);
        return true;
    }
    return false;
}

static bool memory_one(const char *dir, void *out)
{
    char path[4300], text[64];
    uint64_t *least = out, v;

    snprintf(path, sizeof(path), "%s/memory.max", dir);
    if (!slurp(path, text, sizeof(text)) || sscanf(text, "%" SCNu64, &v) != 1)
        return false;
    if (v < *least)
        *least = v;
    return true;
}

bool sup_cgroup_memory(uint64_t *bytes)
{
    char text[64];

    *bytes = UINT64_MAX;
    if (walk(memory_one, bytes))
        return true;
    if (!slurp("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof(text)))
        return false;
    *bytes = strtoull(text, NULL, 10);
    /* version 1 says "none" as a number near 2^63 */
    return *bytes > 0 && *bytes < (1ull << 62);
}

uint64_t sup_memory_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}
