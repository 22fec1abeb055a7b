/* wrk_start.c - what happens before the sandbox, and before main().
 *
 * Holds the only mutable file-scope state of the worker: the affinity mask it
 * was started with. Must never read anything that a peer or a model wrote.
 * Change with care: early_hook runs before libc's own constructors, so it makes
 * raw system calls only. Tests: tests/worker/test_wrk_sandbox.c
 */
#include "wrk_start.h"

#include <dirent.h>
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
