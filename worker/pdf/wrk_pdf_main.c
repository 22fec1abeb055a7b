/* wrk_pdf_main.c - inferd-pdf: a PDF on stdin, its pages as PNG on stdout.
 *
 *   inferd-pdf < FILE > PAGES
 *
 * stdout: for each page, in order, its length (4 bytes, little-endian, never 0) and a PNG. Then 4
 * bytes of 0 and, when all is well, 4 more; otherwise the length of a sentence that says why not,
 * and the sentence. `inferd embed --pdf` runs it; whoever gives it a file may be a stranger.
 *
 * The document is read as bytes, then the process sandboxes itself as a worker does (strict), may
 * open fonts of this machine and nothing else, and only then looks into it. Bounded: bytes, pages,
 * pixels (wrk_pdf.h), 60 s of processor time, 1 GiB of memory; over the last two it is killed.
 * Tests: tests/pdf/test_wrk_pdf.c
 */
#include "wrk_pdf.h"

#include <errno.h>
#include <fcntl.h>
#include <fontconfig/fontconfig.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "wrk_sandbox.h"
#include "wrk_start.h"

#define FONTS "/usr/share/fonts"
#define CPU_S 60
#define MEMORY (1ull << 30)

static bool put(const void *data, size_t n)
{
    const uint8_t *p = data;

    while (n > 0) {
        ssize_t k = write(STDOUT_FILENO, p, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool put_u32(size_t v)
{
    const uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};

    return put(b, 4);
}

static int end(const struct rc_err *why)
{
    size_t n = why != NULL ? strlen(why->msg) : 0;
    bool told = put_u32(0) && put_u32(n) && put(why != NULL ? why->msg : "", n);

    return told && why == NULL ? 0 : 1;
}

/* All of stdin, a byte more than is allowed at most. */
static enum rc read_all(uint8_t **out, size_t *out_n, struct rc_err *err)
{
    size_t n = 0, cap = 1 << 20;
    uint8_t *data = malloc(cap), *p;

    while (data != NULL) {
        ssize_t k = read(STDIN_FILENO, data + n, cap - n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            free(data);
            return rc_fail(err, RC_IO, "stdin cannot be read: %s", strerror(errno));
        }
        n += (size_t)k;
        if (k == 0 || n > WRK_PDF_BYTES_MAX) {
            *out = data;
            *out_n = n;
            return RC_OK;
        }
        if (n == cap) {
            if ((p = realloc(data, cap *= 2)) == NULL)
                free(data);
            data = p;
        }
    }
    return rc_fail(err, RC_NOMEM, "a PDF of more than %zu bytes", n);
}

/* Before the sandbox: the list of fonts is read, which needs files all over; afterwards only the
 * fonts themselves. Without a font folder nothing can be opened at all, and text in fonts that the
 * document does not bring is left out, as viewers do. */
static enum rc shut(struct rc_err *err)
{
    static struct wrk_sandbox_report report;
    struct rlimit cpu = {CPU_S, CPU_S}, memory = {MEMORY, MEMORY};
    int root_fd = open(FONTS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum rc rc;

    FcInit();
    if (root_fd < 0 && (root_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
        return rc_fail(err, RC_IO, "/dev/null cannot be opened: %s", strerror(errno));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    memory.rlim_cur = memory.rlim_max = RLIM_INFINITY; /* terabytes of shadow */
#endif
    if (setrlimit(RLIMIT_CPU, &cpu) != 0 || setrlimit(RLIMIT_AS, &memory) != 0)
        return rc_fail(err, RC_IO, "limits: %s", strerror(errno));
    rc = wrk_sandbox_apply(WRK_SANDBOX_STRICT, -1, root_fd, 1, &report, err);
    return rc == RC_OK ? wrk_sandbox_seal(err) : rc;
}

static enum rc pages(const uint8_t *data, size_t n, struct rc_err *err)
{
    struct wrk_pdf *pdf = NULL;
    enum rc rc = wrk_pdf_open(&pdf, data, n, err);

    for (uint32_t i = 0; rc == RC_OK && i < wrk_pdf_n_pages(pdf); i++) {
        struct wrk_pdf_page page;
        uint8_t *png = NULL;
        size_t n_png = 0;

        if ((rc = wrk_pdf_render(pdf, i, &page, err)) == RC_OK &&
            (rc = wrk_pdf_png(&page, &png, &n_png, err)) == RC_OK &&
            (!put_u32(n_png) || !put(png, n_png)))
            rc = rc_fail(err, RC_CLOSED, "nobody takes the pages");
        free(png);
    }
    wrk_pdf_close(&pdf);
    return rc;
}

int main(int argc, char **argv)
{
    struct rc_err err = RC_ERR_INIT;
    uint8_t *data = NULL;
    size_t n = 0;
    int status;

    wrk_start_restore();
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1) {
        fprintf(stderr, "usage: %s < FILE.pdf > PAGES; see inferd help embed\n", argv[0]);
        return 2;
    }
    status =
        read_all(&data, &n, &err) == RC_OK && shut(&err) == RC_OK && pages(data, n, &err) == RC_OK
            ? end(NULL)
            : end(&err);
    free(data);
    return status;
}
