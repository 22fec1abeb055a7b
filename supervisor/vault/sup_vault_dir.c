/* sup_vault_dir.c - the vault's folder; sup_vault_dir.h.
 *
 * All calls are relative to a descriptor of the folder and follow no link at the end, so
 * what was checked is what is used. Tests: tests/supervisor/test_sup_vault_dir.c
 */
#include "sup_vault_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME "lock"
#define LOCK_WAIT_MS 10000
#define LOCK_STEP_MS 50

static enum rc check_owner(const struct stat *st, const char *what, const char *name,
                           const char *mode, struct rc_err *err)
{
    if (st->st_uid != geteuid())
        return rc_fail_what(err, RC_CONFLICT, name,
                            "%s '%.200s' belongs to user %u, expected user %u, who runs this", what,
                            name, (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & 077)
        return rc_fail_what(err, RC_CONFLICT, name,
                            "%s '%.200s' is open to others (mode %04o): chmod %s '%.200s'", what,
                            name, (unsigned)(st->st_mode & 07777), mode, name);
    return RC_OK;
}

enum rc sup_vault_dir_open(int *out_fd, const char *path, bool make, struct rc_err *err)
{
    struct stat st;
    enum rc rc;
    int fd;

    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return rc_fail_what(err, RC_IO, path, "making folder '%.200s': %s", path, strerror(errno));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, path,
                            "folder '%.200s': %s%s", path, strerror(errno),
                            errno == ENOENT ? " ('inferd keys create' makes it)" : "");
    if (fstat(fd, &st) != 0)
        rc = rc_fail_what(err, RC_IO, path, "folder '%.200s': %s", path, strerror(errno));
    else
        rc = check_owner(&st, "folder", path, "700", err);
    if (rc != RC_OK) {
        close(fd);
        return rc;
    }
    *out_fd = fd;
    return RC_OK;
}

enum rc sup_vault_dir_lock(int *lock_fd, int dir_fd, struct rc_err *err)
{
    int fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return rc_fail(err, RC_IO, "the lock of the folder of keys: %s", strerror(errno));
    for (int ms = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ms += LOCK_STEP_MS) {
        if (errno != EWOULDBLOCK || ms >= LOCK_WAIT_MS) {
            int e = errno;

            close(fd);
            return rc_fail(err, e == EWOULDBLOCK ? RC_BUSY : RC_IO,
                           e == EWOULDBLOCK
                               ? "another command has changed the folder of keys for 10 seconds "
                                 "now: try again when it is done (%s)"
                               : "the lock of the folder of keys: %s",
                           strerror(e));
        }
        usleep(LOCK_STEP_MS * 1000);
    }
    *lock_fd = fd;
    return RC_OK;
}

enum rc sup_vault_file_check(int fd, const char *name, struct rc_err *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return rc_fail_what(err, RC_IO, name, "'%s': %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return rc_fail_what(err, RC_INVALID, name, "'%s' is no regular file", name);
    return check_owner(&st, "file", name, "600", err);
}

static enum rc read_all(int fd, const char *name, size_t n, char **out, struct rc_err *err)
{
    char *b = malloc(n + 1);
    size_t got = 0;

    if (!b)
        return rc_fail(err, RC_NOMEM, "no memory for %zu bytes of '%s'", n, name);
    while (got < n) {
        ssize_t r = read(fd, b + got, n - got);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0) { /* it is replaced, never changed: so this is no race */
            sodium_memzero(b, got);
            free(b);
            return rc_fail_what(err, RC_IO, name, "reading '%s': %s", name,
                                r ? strerror(errno) : "it is shorter than its size");
        }
        got += (size_t)r;
    }
    b[n] = '\0';
    *out = b;
    return RC_OK;
}

enum rc sup_vault_dir_read(int dir_fd, const char *name, size_t max, char **out, size_t *out_n,
                           struct rc_err *err)
{
    /* O_NONBLOCK: a pipe in its place must not hold us before it is looked at */
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    enum rc rc;

    if (fd < 0 && errno == ENOENT) {
        *out = NULL;
        *out_n = 0;
        return RC_OK;
    }
    if (fd < 0)
        return rc_fail_what(err, RC_IO, name, "'%s': %s", name, strerror(errno));
    if ((rc = sup_vault_file_check(fd, name, err)) == RC_OK) {
        if (fstat(fd, &st) != 0)
            rc = rc_fail_what(err, RC_IO, name, "'%s': %s", name, strerror(errno));
        else if ((uint64_t)st.st_size > max)
            rc = rc_fail_what(err, RC_TOO_LARGE, name, "'%s' has %lld bytes, at most %zu are read",
                              name, (long long)st.st_size, max);
        else if ((rc = read_all(fd, name, (size_t)st.st_size, out, err)) == RC_OK)
            *out_n = (size_t)st.st_size;
    }
    close(fd);
    return rc;
}

static bool put_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t r = write(fd, p, n);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

enum rc sup_vault_dir_replace(int dir_fd, const char *name, const void *bytes, size_t n,
                              struct rc_err *err)
{
    char temp[64];
    int fd;
    enum rc rc = RC_OK;

    snprintf(temp, sizeof(temp), "%s.new", name);
    /* what a crash left; nobody else writes here while the lock is held */
    if (unlinkat(dir_fd, temp, 0) != 0 && errno != ENOENT)
        return rc_fail_what(err, RC_IO, name, "removing '%s': %s", temp, strerror(errno));
    fd = openat(dir_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return rc_fail_what(err, RC_IO, name, "writing '%s': %s", temp, strerror(errno));
    if (!put_all(fd, bytes, n) || fsync(fd) != 0)
        rc = rc_fail_what(err, RC_IO, name, "writing '%s': %s; nothing was changed", temp,
                          strerror(errno));
    if (close(fd) != 0 && rc == RC_OK)
        rc = rc_fail_what(err, RC_IO, name, "writing '%s': %s; nothing was changed", temp,
                          strerror(errno));
    if (rc == RC_OK && renameat(dir_fd, temp, dir_fd, name) != 0)
        rc = rc_fail_what(err, RC_IO, name, "replacing '%s': %s; nothing was changed", name,
                          strerror(errno));
    if (rc == RC_OK && fsync(dir_fd) != 0)
        rc =
            rc_fail_what(err, RC_IO, name, "syncing the folder of '%s': %s", name, strerror(errno));
    if (rc != RC_OK)
        unlinkat(dir_fd, temp, 0);
    return rc;
}
