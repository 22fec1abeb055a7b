/* sup_cmd_chat_file.c - see sup_cmd_chat_file.h.
 *
 * Always true: what is read is a regular file of bounded size (no device, no pipe
 * that waits); what is written is whole or not there; nobody else can read it.
 * Tests: tests/e2e/cli_chat.py
 */
#include "sup_cmd_chat_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_text.h"

#define HISTORY_MAX_BYTES (1 << 20)
#define HISTORY_LINE_BYTES 4096

static enum rc expand(char *out, size_t cap, const char *path, struct rc_err *err)
{
    const char *home = strncmp(path, "~/", 2) == 0 ? getenv("HOME") : NULL;
    int n = home ? snprintf(out, cap, "%s%s", home, path + 1) : snprintf(out, cap, "%s", path);

    if (!*path)
        return rc_fail(err, RC_INVALID, "name a file");
    return n > 0 && (size_t)n < cap ? RC_OK
                                    : rc_fail(err, RC_TOO_LARGE, "the file's name is too long");
}

static enum rc check_text(const char *path, const char *s, size_t n, struct rc_err *err)
{
    uint32_t cp;
    bool ok = true;

    for (size_t i = 0, k; i < n; i += k) {
        k = sup_text_next(s + i, n - i, &cp, &ok);
        if (!ok || cp == 0)
            return rc_fail(err, RC_FORMAT, "'%.200s' is no text: byte %zu is no UTF-8%s", path, i,
                           ok ? " that a prompt may hold (zero)" : "");
    }
    return RC_OK;
}

static enum rc read_all(int fd, const char *path, size_t max, char **out, size_t *out_n,
                        struct rc_err *err)
{
    char *b = malloc(max + 2);
    size_t n = 0;
    ssize_t got = 1;

    if (!b)
        return rc_fail(err, RC_NOMEM, "out of memory");
    while (n <= max && got != 0) {
        got = read(fd, b + n, max + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(b);
            return rc_fail(err, RC_IO, "'%.200s': %s", path, strerror(errno));
        }
        n += (size_t)got;
    }
    if (n > max) { /* it grew meanwhile */
        free(b);
        return rc_fail(err, RC_TOO_LARGE, "'%.200s' has more than %zu bytes", path, max);
    }
    b[n] = '\0';
    *out = b;
    *out_n = n;
    return RC_OK;
}

enum rc sup_chat_file_read(const char *name, size_t max, bool text, char **out, size_t *out_n,
                           struct rc_err *err)
{
    char path[4096], *b = NULL;
    struct stat st;
    size_t n = 0;
    enum rc rc = expand(path, sizeof(path), name, err);
    int fd;

    if (rc != RC_OK)
        return rc;
    /* O_NONBLOCK: a pipe without a writer must not hang us before fstat has seen it */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return rc_fail(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "'%.200s': %s", path,
                       strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        rc = rc_fail(err, RC_INVALID, "'%.200s' is no regular file", path);
    else if (st.st_size > (off_t)max)
        rc = rc_fail(err, RC_TOO_LARGE, "'%.200s' has %lld bytes, at most %zu", path,
                     (long long)st.st_size, max);
    else
        rc = read_all(fd, path, max, &b, &n, err);
    (void)close(fd);
    if (rc == RC_OK && text)
        rc = check_text(path, b, n, err);
    if (rc != RC_OK) {
        free(b);
        return rc;
    }
    *out = b;
    *out_n = n;
    return RC_OK;
}

static bool write_all(int fd, const char *s, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, s, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return false;
        s += put;
        n -= (size_t)put;
    }
    return true;
}

enum rc sup_chat_file_write(const char *name, const char *s, size_t n, struct rc_err *err)
{
    char path[4096], beside[4200];
    struct stat st;
    enum rc rc = expand(path, sizeof(path), name, err);
    bool ok;
    int fd;

    if (rc != RC_OK)
        return rc;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return rc_fail(err, RC_INVALID, "'%.200s' is no regular file", path);
    snprintf(beside, sizeof(beside), "%s.%ld.new", path, (long)getpid());
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return rc_fail(err, RC_IO, "'%.200s': %s", beside, strerror(errno));
    ok = write_all(fd, s, n) && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    if (ok && rename(beside, path) == 0)
        return RC_OK;
    rc = rc_fail(err, RC_IO, "'%.200s': %s", path, strerror(errno));
    (void)unlink(beside);
    return rc;
}

/* ------------------------------------------------------------------- history */

/* Makes every folder of path but the last part, for us alone. */
static void make_parents(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
}

/* "a\nb" with the newline written out back to itself, in place. */
static void unescape(char *s)
{
    char *to = s;

    for (; *s; s++) {
        if (*s == '\\' && (s[1] == 'n' || s[1] == '\\')) {
            s++;
            *to++ = *s == 'n' ? '\n' : '\\';
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* The last SUP_EDIT_HISTORY lines of b. */
static char *newest(char *b, size_t n)
{
    unsigned lines = 0;

    for (char *at = b + n; at > b; at--)
        if (at[-1] == '\n' && ++lines > SUP_EDIT_HISTORY)
            return at;
    return b;
}

static int history_fd(const char *path, int flags)
{
    struct stat st;
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);

    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
                    fchmod(fd, 0600) != 0)) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

void sup_history_open(struct sup_history *h, struct sup_edit *e, char *const *envp)
{
    const char *state = sup_env(envp, "XDG_STATE_HOME"), *home = sup_env(envp, "HOME");
    char *b = NULL, *from, *save = NULL;
    size_t n = 0;
    int fd, len;

    h->path[0] = '\0';
    if (state && state[0] == '/')
        len = snprintf(h->path, sizeof(h->path), "%s/inferd/history", state);
    else if (home && home[0] == '/')
        len = snprintf(h->path, sizeof(h->path), "%s/.local/state/inferd/history", home);
    else
        return;
    if (len < 0 || (size_t)len >= sizeof(h->path)) {
        h->path[0] = '\0';
        return;
    }
    make_parents(h->path);
    fd = history_fd(h->path, O_RDWR | O_CREAT);
    if (fd < 0 || flock(fd, LOCK_EX) != 0 ||
        read_all(fd, h->path, HISTORY_MAX_BYTES + 2 * HISTORY_LINE_BYTES + 2, &b, &n, NULL) !=
            RC_OK) {
        h->path[0] = '\0';
    } else {
        from = newest(b, n);
        /* older lines leave the file; under the lock, so that no other session's go */
        if (from > b && (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 ||
                         !write_all(fd, from, n - (size_t)(from - b))))
            h->path[0] = '\0';
        for (char *s = strtok_r(from, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
            unescape(s);
            sup_edit_recall(e, s);
        }
    }
    free(b);
    if (fd >= 0)
        (void)close(fd);
}

void sup_history_add(const struct sup_history *h, const char *line)
{
    char b[2 * HISTORY_LINE_BYTES + 1];
    struct stat st;
    size_t n = 0;
    int fd;

    if (!h->path[0] || !*line || strlen(line) > HISTORY_LINE_BYTES)
        return;
    for (; *line; line++) {
        if (*line == '\n' || *line == '\\')
            b[n++] = '\\';
        b[n++] = *line == '\n' ? 'n' : *line;
    }
    b[n++] = '\n';
    fd = history_fd(h->path, O_WRONLY | O_APPEND);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX) == 0 && fstat(fd, &st) == 0 && st.st_size < HISTORY_MAX_BYTES)
        (void)write_all(fd, b, n);
    (void)close(fd);
}
