/* sup_file.c - see sup_file.h.
 *
 * Always true: what is read by name is a regular file of bounded size (no device, no pipe
 * that waits); what is written is whole or not there.
 * Tests: tests/e2e/cli_chat.py, cli_embed.py, decisions.py
 */
#include "sup_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sup_text.h"

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

enum rc sup_file_read_fd(int fd, const char *path, size_t max, char **out, size_t *out_n,
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
        explicit_bzero(b, n);
        free(b);
        return rc_fail(err, RC_TOO_LARGE, "'%.200s' has more than %zu bytes", path, max);
    }
    b[n] = '\0';
    *out = b;
    *out_n = n;
    return RC_OK;
}

enum rc sup_file_read(const char *name, size_t max, bool text, char **out, size_t *out_n,
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
        rc = sup_file_read_fd(fd, path, max, &b, &n, err);
    (void)close(fd);
    if (rc == RC_OK && text)
        rc = check_text(path, b, n, err);
    if (rc != RC_OK) {
        if (b)
            explicit_bzero(b, n); /* what is no text may be a secret */
        free(b);
        return rc;
    }
    *out = b;
    *out_n = n;
    return RC_OK;
}

enum rc sup_file_input(const char *path, size_t max, char **out, size_t *out_n, struct rc_err *err)
{
    return strcmp(path, "-") == 0 ? sup_file_read_fd(STDIN_FILENO, "stdin", max, out, out_n, err)
                                  : sup_file_read(path, max, true, out, out_n, err);
}

enum rc sup_file_json(const char *path, size_t max, json_t **out, struct rc_err *err)
{
    json_error_t why;
    char *text = NULL;
    size_t n = 0;
    enum rc rc = sup_file_input(path, max, &text, &n, err);

    if (rc != RC_OK)
        return rc;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (json_is_object(*out))
        return RC_OK;
    return rc_fail(err, RC_INVALID, "'%.200s': expected a JSON object: line %d, column %d: %.100s",
                   path, *out ? 1 : why.line, *out ? 1 : why.column, *out ? "" : why.text);
}

bool sup_file_put(int fd, const char *s, size_t n)
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

enum rc sup_file_write(const char *name, const char *s, size_t n, mode_t mode, struct rc_err *err)
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
    snprintf(beside, sizeof(beside), "%s.%ld.partial", path, (long)getpid());
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return rc_fail(err, RC_IO, "'%.200s': %s", beside, strerror(errno));
    ok = sup_file_put(fd, s, n) && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    if (ok && rename(beside, path) == 0)
        return RC_OK;
    rc = rc_fail(err, RC_IO, "'%.200s': %s", path, strerror(errno));
    (void)unlink(beside);
    return rc;
}
