/* sup_stage.c - staging folders, their lock, and the rename that publishes.
 *
 * Always true: a model's folder is replaced only when it has a receipt; no symbolic link is
 * followed on the way. Change with care: the order in sup_stage_publish.
 * Tests: tests/supervisor/test_sup_stage.c
 */
#include "sup_stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"

#define FILES "files"
#define DEPTH 8
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#define RENAME_EXCHANGE 2u
#endif

static int open_dir(int at, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    int fd;

    do
        fd = (int)syscall(SYS_openat2, at, path, &how, sizeof(how));
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    return fd;
}

static int rename2(int from, const char *a, int to, const char *b, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from, a, to, b, flags);
}

int sup_stage_folder(int models_fd, const char *dest)
{
    return open_dir(models_fd, dest);
}

static enum rc make_dir(int at, const char *name, mode_t mode, int *out, struct rc_err *err)
{
    int fd;

    if (mkdirat(at, name, mode) != 0 && errno != EEXIST)
        return rc_fail_what(err, RC_IO, name, "folder '%s' cannot be made: %s", name,
                            strerror(errno));
    if ((fd = open_dir(at, name)) < 0)
        return rc_fail_what(err, RC_IO, name, "folder '%s' cannot be opened: %s", name,
                            strerror(errno));
    *out = fd;
    return RC_OK;
}

bool sup_stage_empty(int dir_fd, int depth)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;
    bool ok = true;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (ok && (e = readdir(d))) {
        int sub;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            unlinkat(dir_fd, e->d_name, 0) == 0)
            continue;
        if ((errno != EISDIR && errno != EPERM) || depth <= 0 ||
            (sub = open_dir(dir_fd, e->d_name)) < 0) {
            ok = false;
            break;
        }
        ok = sup_stage_empty(sub, depth - 1);
        close(sub);
        ok = ok && unlinkat(dir_fd, e->d_name, AT_REMOVEDIR) == 0;
    }
    closedir(d);
    return ok;
}

/* What is at the destination must be ours to replace. */
static enum rc dest_ours(int models_fd, const char *dest, bool *there, struct rc_err *err)
{
    struct sup_receipt r = {0};
    int fd = open_dir(models_fd, dest);
    enum rc rc;

    *there = fd >= 0;
    if (fd < 0 && errno == ENOENT)
        return RC_OK;
    if (fd < 0)
        return rc_fail_what(err, RC_CONFLICT, dest, "'%s' is there and cannot be opened: %s", dest,
                            strerror(errno));
    rc = sup_receipt_load(&r, fd, err);
    close(fd);
    sup_receipt_deinit(&r);
    if (rc == RC_NOT_FOUND)
        return rc_fail_what(err, RC_CONFLICT, dest,
                            "folder '%s' is there and was not pulled (it has no receipt): move it "
                            "away, or take another models folder",
                            dest);
    return RC_OK; /* one that cannot be read is no reason to keep it */
}

static void key_of(const char *dest, char out[40])
{
    unsigned char h[crypto_hash_sha256_BYTES];

    crypto_hash_sha256(h, (const unsigned char *)dest, strlen(dest));
    sodium_bin2hex(out, 33, h, 16);
}

static enum rc open_all(struct sup_stage *s, const char *models_dir, struct rc_err *err)
{
    int top = -1, mark;
    enum rc rc;
    bool there;

    s->models_fd = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->models_fd < 0 && errno == ENOENT && mkdir(models_dir, 0755) == 0)
        s->models_fd = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->models_fd < 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "models_dir",
                            "models folder '%.300s': %s", models_dir, strerror(errno));
    if ((rc = dest_ours(s->models_fd, s->dest, &there, err)) != RC_OK ||
        (rc = make_dir(s->models_fd, SUP_STAGING_DIR, 0700, &top, err)) != RC_OK)
        return rc;
    rc = make_dir(top, s->key, 0700, &s->dir_fd, err);
    close(top);
    if (rc != RC_OK)
        return rc;
    if (flock(s->dir_fd, LOCK_EX | LOCK_NB) != 0)
        return rc_fail_what(err, RC_BUSY, s->dest,
                            "'%s' is being pulled by another process; wait for it, or end it",
                            s->dest);
    if ((rc = make_dir(s->dir_fd, FILES, 0755, &s->files_fd, err)) != RC_OK)
        return rc;
    mark =
        openat(s->files_fd, SUP_UNFINISHED_NAME, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (mark < 0)
        return rc_fail(err, RC_IO, "the staging folder cannot be written: %s", strerror(errno));
    (void)!write(mark, "{\"version\":1,\"state\":\"in_progress\"}\n", 36);
    close(mark);
    return RC_OK;
}

enum rc sup_stage_open(struct sup_stage *s, const char *models_dir, const char *dest,
                       struct rc_err *err)
{
    enum rc rc;

    memset(s, 0, sizeof(*s));
    s->models_fd = s->dir_fd = s->files_fd = -1;
    if (strlen(dest) >= sizeof(s->dest))
        return rc_fail(err, RC_TOO_LARGE, "the model's name is too long");
    snprintf(s->dest, sizeof(s->dest), "%s", dest);
    key_of(dest, s->key);
    if ((rc = open_all(s, models_dir, err)) != RC_OK)
        sup_stage_close(s, true);
    return rc;
}

void sup_stage_close(struct sup_stage *s, bool keep)
{
    int top;

    if (!keep && s->dir_fd >= 0 && sup_stage_empty(s->dir_fd, DEPTH) &&
        (top = open_dir(s->models_fd, SUP_STAGING_DIR)) >= 0) {
        (void)unlinkat(top, s->key, AT_REMOVEDIR);
        close(top);
        (void)unlinkat(s->models_fd, SUP_STAGING_DIR, AT_REMOVEDIR); /* when it was the last */
    }
    if (s->files_fd >= 0)
        close(s->files_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    if (s->models_fd >= 0)
        close(s->models_fd);
    s->models_fd = s->dir_fd = s->files_fd = -1;
}

/* ----------------------------------------------------------------- publish */

/* Calibrations are a person's work; a new version of the model must not take them away. */
static void keep_calibrations(int old_fd, int new_fd)
{
    int from = open_dir(old_fd, IPC_CALIBRATIONS_DIR), to = -1;
    DIR *d = NULL;
    struct dirent *e;

    if (from < 0)
        return;
    (void)mkdirat(new_fd, IPC_CALIBRATIONS_DIR, 0755);
    to = open_dir(new_fd, IPC_CALIBRATIONS_DIR);
    if (to >= 0 && (d = fdopendir(from)))
        while ((e = readdir(d)))
            if (e->d_name[0] != '.')
                (void)rename2(from, e->d_name, to, e->d_name, RENAME_NOREPLACE);
    if (d)
        closedir(d);
    else
        close(from);
    if (to >= 0)
        close(to);
}

/* The folder above the model's: owner of owner/name. */
static enum rc parent(const struct sup_stage *s, int *out, const char **base, struct rc_err *err)
{
    char path[sizeof(s->dest)];
    char *slash;

    snprintf(path, sizeof(path), "%s", s->dest);
    slash = strrchr(path, '/');
    *base = slash ? s->dest + (slash - path) + 1 : s->dest;
    if (!slash) {
        *out = dup(s->models_fd);
        return *out >= 0 ? RC_OK : rc_fail(err, RC_IO, "%s", strerror(errno));
    }
    *slash = '\0';
    return make_dir(s->models_fd, path, 0755, out, err);
}

static enum rc swap(struct sup_stage *s, int at, const char *base, bool there, struct rc_err *err)
{
    int old;

    /* without the flag: a folder replaces an empty one at most */
    if (rename2(s->dir_fd, FILES, at, base, there ? RENAME_EXCHANGE : 0) != 0)
        return rc_fail_what(err, RC_IO, s->dest, "'%s' cannot get its name: %s%s", s->dest,
                            strerror(errno),
                            there && errno == EINVAL
                                ? " (its file system cannot exchange two folders: remove the old "
                                  "model first, the same pull then goes on)"
                                : "");
    (void)fsync(at);
    if (there && (old = open_dir(s->dir_fd, FILES)) >= 0) {
        keep_calibrations(old, s->files_fd);
        close(old);
    }
    return RC_OK;
}

enum rc sup_stage_publish(struct sup_stage *s, struct sup_receipt *out, struct rc_err *err)
{
    struct sup_receipt r = {0};
    const char *base;
    int at = -1;
    bool there;
    enum rc rc;

    if ((rc = sup_receipt_load(&r, s->files_fd, err)) != RC_OK ||
        (rc = sup_receipt_check(&r, s->files_fd, true, err)) != RC_OK ||
        (rc = dest_ours(s->models_fd, s->dest, &there, err)) != RC_OK ||
        (rc = parent(s, &at, &base, err)) != RC_OK)
        goto out;
    if (unlinkat(s->files_fd, SUP_UNFINISHED_NAME, 0) != 0 || fsync(s->files_fd) != 0)
        rc = rc_fail(err, RC_IO, "the staging folder cannot be written: %s", strerror(errno));
    else
        rc = swap(s, at, base, there, err);
out:
    if (at >= 0)
        close(at);
    if (rc == RC_OK)
        *out = r;
    else
        sup_receipt_deinit(&r);
    return rc;
}

/* ------------------------------------------------------------------ remove */

enum rc sup_stage_remove(const char *models_dir, const char *dest, struct rc_err *err)
{
    struct sup_stage s = {0};
    char owner[sizeof(s.dest)], *slash;
    bool there;
    enum rc rc = sup_stage_open(&s, models_dir, dest, err);

    if (rc != RC_OK)
        return rc;
    rc = dest_ours(s.models_fd, dest, &there, err);
    if (rc == RC_OK && !there)
        rc = rc_fail_what(err, RC_NOT_FOUND, dest, "there is no model '%s' below '%.200s'", dest,
                          models_dir);
    else if (rc == RC_OK && rename2(s.models_fd, dest, s.dir_fd, "removed", 0) != 0)
        rc = rc_fail_what(err, RC_IO, dest, "'%s' cannot be removed: %s", dest, strerror(errno));
    snprintf(owner, sizeof(owner), "%s", dest);
    if (rc == RC_OK && (slash = strrchr(owner, '/'))) {
        *slash = '\0';
        (void)unlinkat(s.models_fd, owner, AT_REMOVEDIR); /* only when it is empty */
    }
    sup_stage_close(&s, false);
    return rc;
}
