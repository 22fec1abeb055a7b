/* sup_cmd_embed_pdf.c - see sup_cmd_embed_pdf.h. The form of what inferd-pdf writes is told in
 * worker/pdf/wrk_pdf_main.c; it is not believed here: lengths have bounds.
 * Tests: tests/e2e/cli_embed.py, tests/pdf/test_wrk_pdf.c */
#include "sup_cmd_embed_pdf.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_local.h"

#define PROGRAM "inferd-pdf"
#define PAGE_MAX_BYTES (32u << 20) /* 2048 x 2048 pixels and what PNG adds */
#define WORDS_MAX_BYTES 1024u

static enum rc find(char *out, size_t cap, struct rc_err *err)
{
    enum rc rc = sup_beside_path(out, cap, PROGRAM, err);

    if (rc != RC_OK)
        return rc;
    if (access(out, X_OK) != 0)
        return rc_fail(err, RC_NOT_FOUND,
                       "'%.300s' cannot be executed (%s): it reads PDF files, and is built where "
                       "poppler-glib, cairo and fontconfig are installed",
                       out, strerror(errno));
    return RC_OK;
}

static enum rc open_file(int *fd, const char *path, struct rc_err *err)
{
    struct stat st;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return rc_fail(err, RC_NOT_FOUND, "'%.200s': %s", path, strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode))
        return RC_OK;
    close(*fd);
    return rc_fail(err, RC_INVALID, "'%.200s' is no plain file", path);
}

/* Between fork and exec: only async-signal-safe calls. */
static void become(const char *program, int in, int out, pid_t parent)
{
    char *const argv[] = {(char *)(uintptr_t)PROGRAM, NULL}, *const env[] = {NULL};
    int null_fd = open("/dev/null", O_WRONLY); /* poppler complains about much that it can read */

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent && null_fd >= 0 && dup2(in, 0) == 0 && dup2(out, 1) == 1 &&
        dup2(null_fd, 2) == 2)
        execve(program, argv, env);
    _exit(127);
}

enum rc sup_pdf_open(struct sup_pdf *pdf, const char *path, struct rc_err *err)
{
    pid_t parent = getpid(), pid = -1;
    char program[4096];
    int in = -1, fds[2];
    enum rc rc;

    if ((rc = find(program, sizeof(program), err)) != RC_OK ||
        (rc = open_file(&in, path, err)) != RC_OK)
        return rc;
    if (pipe2(fds, O_CLOEXEC) == 0) {
        if ((pid = fork()) == 0)
            become(program, in, fds[1], parent);
        close(fds[1]);
        if (pid < 0)
            close(fds[0]);
    }
    if (pid < 0)
        rc = rc_fail(err, RC_IO, PROGRAM " cannot be started: %s", strerror(errno));
    else
        *pdf = (struct sup_pdf){pid, fds[0], path};
    close(in);
    return rc;
}

/* What it ended of, where it did not say so itself. */
static enum rc died(struct sup_pdf *pdf, struct rc_err *err)
{
    int status = 0;

    if (waitpid(pdf->pid, &status, 0) == pdf->pid)
        pdf->pid = 0;
    if (sup_cli_interrupted(false)) /* Ctrl-C went to both */
        return rc_fail(err, RC_CANCELLED, "interrupted");
    if (WIFSIGNALED(status))
        return rc_fail(err, RC_CRASHED,
                       "'%.200s': " PROGRAM " was killed by signal %d (%s): the document takes too "
                       "long, or is broken",
                       pdf->path, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return rc_fail(err, RC_CRASHED, "'%.200s': " PROGRAM " ended with status %d", pdf->path,
                   WEXITSTATUS(status));
}

static enum rc get(struct sup_pdf *pdf, void *to, size_t n, struct rc_err *err)
{
    char *p = to;

    while (n > 0) {
        ssize_t k = read(pdf->fd, p, n);

        if (k < 0 && errno == EINTR && !sup_cli_interrupted(false))
            continue;
        if (k < 0 && errno == EINTR)
            return rc_fail(err, RC_CANCELLED, "interrupted");
        if (k <= 0)
            return died(pdf, err);
        p += k;
        n -= (size_t)k;
    }
    return RC_OK;
}

static enum rc get_length(struct sup_pdf *pdf, uint32_t *out, uint32_t most, struct rc_err *err)
{
    uint8_t b[4];
    enum rc rc = get(pdf, b, sizeof(b), err);

    if (rc != RC_OK)
        return rc;
    *out = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (*out > most)
        return rc_fail(err, RC_FORMAT, "'%.200s': " PROGRAM " tells of %u bytes, at most %u",
                       pdf->path, *out, most);
    return RC_OK;
}

static enum rc last_word(struct sup_pdf *pdf, struct rc_err *err)
{
    char words[WORDS_MAX_BYTES + 1];
    uint32_t n = 0;
    enum rc rc;

    if ((rc = get_length(pdf, &n, WORDS_MAX_BYTES, err)) != RC_OK ||
        (rc = get(pdf, words, n, err)) != RC_OK || n == 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) /* shown on a terminal */
        if ((unsigned char)words[i] < ' ' || (unsigned char)words[i] > '~')
            words[i] = '?';
    return rc_fail(err, RC_FORMAT, "'%.200s': %.*s", pdf->path, (int)n, words);
}

enum rc sup_pdf_next(struct sup_pdf *pdf, char **png, size_t *n, struct rc_err *err)
{
    uint32_t len = 0;
    enum rc rc = get_length(pdf, &len, PAGE_MAX_BYTES, err);

    *png = NULL;
    if (rc != RC_OK)
        return rc;
    if (len == 0)
        return last_word(pdf, err);
    if ((*png = malloc(len)) == NULL)
        return rc_fail(err, RC_NOMEM, "a page of %u bytes", len);
    if ((rc = get(pdf, *png, len, err)) != RC_OK) {
        free(*png);
        *png = NULL;
    }
    *n = len;
    return rc;
}

void sup_pdf_close(struct sup_pdf *pdf)
{
    if (pdf->path == NULL)
        return;
    close(pdf->fd);
    if (pdf->pid > 0) {
        (void)kill(pdf->pid, SIGKILL);
        (void)waitpid(pdf->pid, NULL, 0);
    }
    memset(pdf, 0, sizeof(*pdf));
}
