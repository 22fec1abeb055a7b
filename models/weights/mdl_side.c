/* mdl_side.c - files below a model's root, opened so that no name leads out.
 *
 * openat2 with RESOLVE_BENEATH does it in the kernel; where that call does not
 * exist (ENOSYS) a walk with O_NOFOLLOW per component is stricter: no symlinks
 * at all. Only regular files are handed out. Never writes.
 * Tests: tests/models/test_mdl_side.c
 */
#include "mdl_file_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

static int open_walk(int root_fd, const char *name)
{
    char part[NAME_MAX + 1];
    const char *s = name;
    int dir = root_fd, fd = -1;
    struct stat st;

    for (;;) {
        const char *slash = strchrnul(s, '/');
        size_t n = (size_t)(slash - s);
        int flags = OPEN_FLAGS | O_NOFOLLOW | (*slash ? O_DIRECTORY : 0);

        if (n == 0 || n >= sizeof(part) || (n == 2 && memcmp(s, "..", 2) == 0)) {
            errno = EXDEV;
            fd = -1;
        } else {
            memcpy(part, s, n);
            part[n] = '\0';
            fd = openat(dir, part, flags);
            /* a link in the middle is no directory: say link, not "absent" */
            if (fd < 0 && errno == ENOTDIR)
                errno = fstatat(dir, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)
                            ? ELOOP
                            : ENOTDIR;
        }
        int saved = errno;
        if (dir != root_fd)
            close(dir);
        errno = saved;
        if (fd < 0 || !*slash)
            return fd;
        dir = fd;
        s = slash + 1;
    }
}

static int open_beneath(int root_fd, const char *name)
{
    struct open_how how = {.flags = OPEN_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd;

    do {
        fd = (int)syscall(SYS_openat2, root_fd, name, &how, sizeof(how));
    } while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    if (fd < 0 && errno == ENOSYS)
        fd = open_walk(root_fd, name);
    return fd;
}

enum rc mdl_side_open(int root_fd, const char *name, int *out_fd, uint64_t *out_size,
                      struct rc_err *err)
{
    struct stat st;
    int fd;

    /* asked first: the sandbox of a single-file root forbids opening at all */
    if (fstat(root_fd, &st) == 0 && !S_ISDIR(st.st_mode))
        return rc_fail_what(err, RC_NOT_FOUND, name,
                            "file '%s' is not there: the model is a single file", name);
    fd = open_beneath(root_fd, name);
    if (fd < 0) {
        switch (errno) {
        case ENOENT:
        case ENOTDIR:
            return rc_fail_what(err, RC_NOT_FOUND, name, "file '%s' is not there", name);
        case EXDEV:
        case ELOOP:
            return rc_fail_what(err, RC_IO, name,
                                "file '%s' leads out of the model directory (symbolic link or "
                                "'..'); copy the file in instead",
                                name);
        default:
            return rc_fail_what(err, RC_IO, name, "file '%s': %s", name, strerror(errno));
        }
    }
    if (fstat(fd, &st) < 0) {
        int saved = errno;
        close(fd);
        return rc_fail_what(err, RC_IO, name, "file '%s': %s", name, strerror(saved));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return rc_fail_what(err, RC_IO, name, "'%s' is not a regular file", name);
    }
    *out_fd = fd;
    *out_size = (uint64_t)st.st_size;
    return RC_OK;
}

enum rc mdl_side_read(int root_fd, const char *name, size_t max_bytes, char **out, size_t *n_bytes,
                      struct rc_err *err)
{
    uint64_t size = 0;
    char *buf = NULL;
    size_t got = 0;
    int fd = -1;
    enum rc rc;

    if ((rc = mdl_side_open(root_fd, name, &fd, &size, err)) != RC_OK)
        goto out;
    if (size > max_bytes) {
        rc = rc_bound(rc_fail_what(err, RC_TOO_LARGE, name,
                                   "file '%s': %llu bytes, at most %zu allowed", name,
                                   (unsigned long long)size, max_bytes),
                      size, max_bytes, err);
        goto out;
    }
    buf = malloc((size_t)size + 1);
    if (!buf) {
        rc = rc_fail_what(err, RC_NOMEM, name, "file '%s': no memory for %llu bytes", name,
                          (unsigned long long)size);
        goto out;
    }
    while (got < size) {
        ssize_t r = read(fd, buf + got, (size_t)size - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            rc = rc_fail_what(err, RC_IO, name, "file '%s': %s", name, strerror(errno));
            goto out;
        }
        if (r == 0) /* shrank under us: what is there is what there is */
            break;
        got += (size_t)r;
    }
    buf[got] = '\0';
    *out = buf;
    buf = NULL;
    *n_bytes = got;
out:
    free(buf);
    if (fd >= 0)
        close(fd);
    return rc;
}
