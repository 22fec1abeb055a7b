/* sup_history.c - see sup_history.h. Always true: nobody else can read it.
 * Tests: tests/e2e/cli_chat.py
 */
#include "sup_history.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_file.h"

#define HISTORY_MAX_BYTES (1 << 20)
#define HISTORY_LINE_BYTES 4096

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
        sup_file_read_fd(fd, h->path, HISTORY_MAX_BYTES + 2 * HISTORY_LINE_BYTES + 2, &b, &n,
                         NULL) != RC_OK) {
        h->path[0] = '\0';
    } else {
        from = newest(b, n);
        /* older lines leave the file; under the lock, so that no other session's go */
        if (from > b && (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 ||
                         !sup_file_put(fd, from, n - (size_t)(from - b))))
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
        (void)sup_file_put(fd, b, n);
    (void)close(fd);
}
