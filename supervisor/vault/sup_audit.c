/* sup_audit.c - appends one line; sup_audit.h. Tests: tests/supervisor/test_sup_vault_dir.c */
#include "sup_audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sup_json.h"
#include "sup_vault_dir.h"

static enum rc io(struct rc_err *err, const char *step)
{
    return rc_fail_what(err, RC_IO, SUP_VAULT_AUDIT, "audit log: %s: %s", step, strerror(errno));
}

/* Two writers may both find it full; the second then renames a young file away, which
 * costs old lines and never a new one. */
static enum rc turn_over(int dir_fd, int *fd, size_t n_line, size_t max, struct rc_err *err)
{
    struct stat st;

    if (fstat(*fd, &st) != 0)
        return io(err, "fstat");
    if ((uint64_t)st.st_size + n_line <= max)
        return RC_OK;
    if (renameat(dir_fd, SUP_VAULT_AUDIT, dir_fd, SUP_VAULT_AUDIT_OLD) != 0)
        return io(err, "renaming the full file");
    close(*fd);
    *fd = openat(dir_fd, SUP_VAULT_AUDIT, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                 0600);
    return *fd < 0 ? io(err, "opening a new file") : RC_OK;
}

static void make_line(struct sup_json *o, time_t now, const char *act, const char *who,
                      const char *fields)
{
    char stamp[32];
    struct tm tm;

    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    sup_json_fmt(o, "{\"time\":\"%s\",\"act\":", stamp);
    sup_json_quoted(o, act);
    sup_json_str(o, ",\"who\":");
    sup_json_quoted(o, who);
    if (o->n + strlen(fields) + 2 <= SUP_AUDIT_LINE)
        sup_json_str(o, fields);
    else
        sup_json_str(o, ",\"fields\":\"too long\"");
    sup_json_str(o, "}\n");
}

enum rc sup_audit_write(int dir_fd, time_t now, const char *act, const char *who,
                        const char *fields, size_t max_bytes, struct rc_err *err)
{
    struct sup_json o = {.limit = 2 * SUP_AUDIT_LINE};
    int fd = openat(dir_fd, SUP_VAULT_AUDIT, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                    0600);
    struct stat before;
    enum rc rc;

    if (fd < 0)
        return io(err, "opening");
    make_line(&o, now, act, who, fields);
    rc = o.failed ? rc_fail(err, RC_NOMEM, "no memory for a line of the audit log")
                  : sup_vault_file_check(fd, SUP_VAULT_AUDIT, err);
    if (rc == RC_OK)
        rc = turn_over(dir_fd, &fd, o.n, max_bytes, err);
    if (rc == RC_OK && fstat(fd, &before) != 0)
        rc = io(err, "fstat");
    if (rc == RC_OK) {
        ssize_t n = write(fd, o.p, o.n);

        if (n != (ssize_t)o.n) {
            if (n >= 0)
                errno = ENOSPC;
            rc = io(err, "writing");
            if (n > 0 && ftruncate(fd, before.st_size) != 0)
                rc_wrap(err, "half a line is left");
        } else if (fsync(fd) != 0) {
            rc = io(err, "syncing");
        }
    }
    if (fd >= 0)
        close(fd);
    sup_json_deinit(&o);
    return rc;
}
