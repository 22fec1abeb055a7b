/* wrk_sandbox_landlock.c - files: read below the model root, nothing else.
 *
 * Raw system calls and our own copies of the kernel's structures, so that a
 * binary built on old headers uses what a new kernel offers. Rights the kernel
 * does not know are left out by ABI; the report says which ABI was found.
 * With a single file as root no rule is added: the open descriptor is all the
 * worker has. Rights are tied to directories, not to our descriptors, so
 * descriptors that are open already keep working.
 * Source: Documentation/userspace-api/landlock.rst (ABI 1 to 7).
 * Tests: tests/worker/test_wrk_sandbox.c
 */
#include "wrk_sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

#define CREATE_VERSION 1u /* flag of create_ruleset: return the ABI */
#define RULE_PATH_BENEATH 1
#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_REMOVE_FILE (1ull << 5)
#define FS_MAKE_REG (1ull << 8)
#define FS_ABI1 ((1ull << 13) - 1) /* execute .. make_sym */
#define FS_REFER (1ull << 13)      /* ABI 2 */
#define FS_TRUNCATE (1ull << 14)   /* ABI 3 */
#define FS_IOCTL_DEV (1ull << 15)  /* ABI 5 */
#define NET_ALL 3ull               /* ABI 4: bind and connect TCP */
#define SCOPE_ALL 3ull             /* ABI 6: abstract Unix sockets, signals */

struct ruleset_attr {
    uint64_t fs, net, scoped;
};
struct path_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

/* One more place, with those of `rights` that the ruleset handles. */
static bool grant(int ruleset, uint64_t handled, const char *path, uint64_t rights)
{
    struct path_attr rule = {.allowed = rights & handled};
    struct stat st;
    bool ok;

    if ((rule.parent_fd = open(path, O_PATH | O_CLOEXEC)) < 0)
        return true;                                             /* not on this machine */
    if (fstat(rule.parent_fd, &st) == 0 && !S_ISDIR(st.st_mode)) /* a file has no other rights */
        rule.allowed &= FS_READ_FILE | FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV;
    ok = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0) == 0;
    close(rule.parent_fd);
    return ok;
}

static bool grant_device(int ruleset, uint64_t handled, const struct wrk_sandbox_device *d)
{
    const uint64_t read = FS_READ_FILE | FS_READ_DIR, write = read | FS_WRITE_FILE;
    bool ok = true;

    for (const char *const *p = d->read_only; ok && p && *p; p++)
        ok = grant(ruleset, handled, *p, read);
    for (const char *const *p = d->nodes; ok && p && *p; p++)
        ok = grant(ruleset, handled, *p, write | FS_TRUNCATE | FS_IOCTL_DEV);
    if (ok && d->rw_dir)
        ok = grant(ruleset, handled, d->rw_dir, write | FS_MAKE_REG | FS_REMOVE_FILE | FS_TRUNCATE);
    return ok;
}

bool wrk_sbx_landlock(const struct wrk_sbx *s, char *detail)
{
    struct ruleset_attr attr = {.fs = FS_ABI1};
    struct path_attr root = {.allowed = FS_READ_FILE | FS_READ_DIR, .parent_fd = s->root_fd};
    size_t attr_bytes = sizeof(attr.fs);
    const char *step = "landlock_create_ruleset";
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_VERSION);
    int fd = -1;

    if (abi < 1) {
        snprintf(detail, WRK_DETAIL_MAX,
                 "%s: %s; needs Linux 5.13 with landlock among the security modules (lsm=)", step,
                 strerror(errno));
        return false;
    }
    if (abi >= 2)
        attr.fs |= FS_REFER;
    if (abi >= 3)
        attr.fs |= FS_TRUNCATE;
    if (abi >= 4) {
        attr.net = NET_ALL;
        attr_bytes = 2 * sizeof(uint64_t);
    }
    if (abi >= 5)
        attr.fs |= FS_IOCTL_DEV;
    if (abi >= 6) {
        attr.scoped = SCOPE_ALL;
        attr_bytes = 3 * sizeof(uint64_t);
    }
    if ((fd = (int)syscall(SYS_landlock_create_ruleset, &attr, attr_bytes, 0)) < 0)
        goto no;
    step = "landlock_add_rule";
    if (s->root_is_dir && syscall(SYS_landlock_add_rule, fd, RULE_PATH_BENEATH, &root, 0) != 0)
        goto no;
    if (s->device && !grant_device(fd, attr.fs, s->device))
        goto no;
    step = "landlock_restrict_self";
    if (syscall(SYS_landlock_restrict_self, fd, 0) != 0)
        goto no;
    close(fd);
    snprintf(detail, WRK_DETAIL_MAX, "ABI %ld: %s%s%s%s", abi,
             s->root_is_dir ? "read below the model directory"
             : s->device    ? "no model file can be opened"
                            : "no file can be opened",
             !s->device          ? ""
             : s->device->rw_dir ? ", the driver's files and nodes, the kernel cache"
                                 : ", the driver's files and nodes",
             abi >= 4 ? ", no TCP" : "", abi >= 6 ? ", no abstract sockets, no signals out" : "");
    return true;
no:
    snprintf(detail, WRK_DETAIL_MAX, "%s: %s (ABI %ld)", step, strerror(errno), abi);
    if (fd >= 0)
        close(fd);
    return false;
}
