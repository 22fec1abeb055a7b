/* test_wrk_pdf.c - pages of PDFs as pixels, bad PDFs, and the program that does it in a sandbox.
 * encrypted.pdf was made with reportlab (password "secret"). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "wrk_media.h"
#include "wrk_pdf.h"

#define EXE TEST_BUILD "/inferd-pdf"

/* A document of n pages, each of those sizes and with the same drawing; without a table of
 * contents, which readers make up. */
static char *pdf_of(const char *const *boxes, unsigned n, const char *drawing)
{
    char *s = malloc(4096 + (size_t)n * 200), *p = s;

    p += sprintf(p, "%%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
                    "2 0 obj<</Type/Pages/Kids[");
    for (unsigned i = 0; i < n; i++)
        p += sprintf(p, "%u 0 R ", 10 + i);
    p += sprintf(p, "]/Count %u>>endobj\n3 0 obj<</Length %zu>>stream\n%s\nendstream endobj\n", n,
                 strlen(drawing), drawing);
    p += sprintf(p, "4 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\n");
    for (unsigned i = 0; i < n; i++)
        p += sprintf(p,
                     "%u 0 obj<</Type/Page/Parent 2 0 R/MediaBox[%s]/Contents 3 0 R"
                     "/Resources<</Font<</F 4 0 R>>>>>>endobj\n",
                     10 + i, boxes[i % 2]);
    sprintf(p, "trailer<</Root 1 0 R>>\n%%%%EOF\n");
    return s;
}

static const char *const small[] = {"0 0 101 50", "0 0 30 30"};
/* black, the lower left 10 x 20 points */
static const char square[] = "0 g 0 0 10 20 re f";

static void pages_are_pixels(void **state)
{
    char *s = pdf_of(small, 2, square);
    struct wrk_pdf *pdf = NULL;
    struct wrk_pdf_page page;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(wrk_pdf_open(&pdf, (uint8_t *)s, strlen(s), &err), RC_OK);
    assert_int_equal(wrk_pdf_n_pages(pdf), 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t *png = NULL;
        size_t n = 0;
        struct wrk_image img = {0};

        assert_int_equal(wrk_pdf_render(pdf, i, &page, &err), RC_OK);
        assert_int_equal(page.width, i == 0 ? 202 : 60);
        assert_int_equal(page.height, i == 0 ? 100 : 60);
        assert_true(page.stride >= (size_t)page.width * 4);
        for (uint32_t y = 0; y < page.height; y++)
            for (uint32_t x = 0; x < page.width; x++) {
                bool black = x < 20 && y >= page.height - 40;
                const uint8_t *p = page.bgrx + y * page.stride + (size_t)x * 4;

                if (p[0] != (black ? 0 : 255) || p[1] != p[0] || p[2] != p[0])
                    fail_msg("page %u, %u x %u: %u %u %u", i, x, y, p[0], p[1], p[2]);
            }
        /* and the PNG of it is read by a worker as just these pixels */
        assert_int_equal(wrk_pdf_png(&page, &png, &n, &err), RC_OK);
        assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_PNG, png, n, NULL, &err), RC_OK);
        assert_int_equal(img.width, page.width);
        assert_int_equal(img.height, page.height);
        for (uint32_t k = 0; k < img.width * img.height; k++) {
            const uint8_t *p =
                page.bgrx + k / img.width * page.stride + (size_t)(k % img.width) * 4;

            assert_true(img.rgb[k * 3] == p[2] && img.rgb[k * 3 + 1] == p[1] &&
                        img.rgb[k * 3 + 2] == p[0]);
        }
        wrk_image_deinit(&img);
        free(png);
    }
    assert_int_equal(wrk_pdf_render(pdf, 2, &page, &err), RC_INVALID);
    wrk_pdf_close(&pdf);
    free(s);
}

static void large_pages_are_rendered_smaller(void **state)
{
    static const char *const boxes[] = {"0 0 4000 1000", "0 0 14400 1"};
    char *s = pdf_of(boxes, 2, square);
    struct wrk_pdf *pdf = NULL;
    struct wrk_pdf_page page;

    (void)state;
    assert_int_equal(wrk_pdf_open(&pdf, (uint8_t *)s, strlen(s), NULL), RC_OK);
    assert_int_equal(wrk_pdf_render(pdf, 0, &page, NULL), RC_OK);
    assert_int_equal(page.width, 2048);
    assert_int_equal(page.height, 512);
    assert_int_equal(wrk_pdf_render(pdf, 1, &page, NULL), RC_OK);
    assert_int_equal(page.width, 2048);
    assert_int_equal(page.height, 1);
    wrk_pdf_close(&pdf);
    free(s);
}

static char *load(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = malloc(1 << 16);

    assert_non_null(f);
    *n = fread(s, 1, 1 << 16, f);
    fclose(f);
    return s;
}

static void bad_documents_are_refused(void **state)
{
    char *many = pdf_of(small, 513, square), *good = pdf_of(small, 2, square);
    size_t n = 0;
    char *locked = load(TEST_SOURCE "/tests/pdf/encrypted.pdf", &n);
    const struct {
        const char *data;
        size_t n;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"", 0, RC_INVALID, "no PDF"},
        {"%PD", 3, RC_INVALID, "no PDF"},
        {"\x89PNG\r\n\x1a\n", 8, RC_INVALID, "no PDF"},
        {"%PDF-1.7\nnothing", 16, RC_INVALID, "broken PDF"},
        {good, 60, RC_INVALID, "broken PDF"},
        {many, strlen(many), RC_TOO_LARGE, "513 pages, at most 512"},
        {locked, n, RC_UNSUPPORTED, "encrypted"},
        {"%PDF-", WRK_PDF_BYTES_MAX + 1, RC_TOO_LARGE, "104857601 bytes"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wrk_pdf *pdf = NULL;
        struct rc_err err = RC_ERR_INIT;

        if (wrk_pdf_open(&pdf, (const uint8_t *)rows[i].data, rows[i].n, &err) != rows[i].rc ||
            strstr(err.msg, rows[i].says) == NULL)
            fail_msg("row %zu: %s", i, err.msg);
        assert_null(pdf);
    }
    free(many);
    free(good);
    free(locked);
}

/* Starts the program on a document; *out_fd: what it writes. */
static pid_t start(const char *in, size_t n_in, int *out_fd)
{
    int a[2], b[2];
    pid_t pid;

    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    if ((pid = fork()) == 0) {
        dup2(a[0], 0);
        dup2(b[1], 1);
        close(a[1]);
        close(b[0]);
        execl(EXE, EXE, (char *)NULL);
        _exit(127);
    }
    close(a[0]);
    close(b[1]);
    assert_int_equal(write(a[1], in, n_in), n_in);
    close(a[1]);
    *out_fd = b[0];
    return pid;
}

/* Runs the program: what it wrote, at most cap bytes. */
static size_t program(const char *in, size_t n_in, uint8_t *out, size_t cap, int *status)
{
    size_t n = 0;
    ssize_t k;
    int fd = -1;
    pid_t pid = start(in, n_in, &fd);

    while (n < cap && (k = read(fd, out + n, cap - n)) > 0)
        n += (size_t)k;
    close(fd);
    waitpid(pid, status, 0);
    return n;
}

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void the_program_writes_pages_and_a_last_word(void **state)
{
    /* text in a font that is not inside: looked for among those of this machine, in the sandbox */
    char *s = pdf_of(small, 2, "BT /F 12 Tf 2 20 Td (words) Tj ET");
    static uint8_t out[1 << 16];
    int status = 0;
    size_t n = program(s, strlen(s), out, sizeof(out), &status), at = 0;

    (void)state;
    assert_int_equal(status, 0);
    for (int page = 0; page < 2; page++) {
        uint32_t len = u32(out + at);
        struct wrk_image img = {0};

        assert_true(len > 8 && len < n - at - 4);
        assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_PNG, out + at + 4, len, NULL, NULL),
                         RC_OK);
        wrk_image_deinit(&img);
        at += 4 + len;
    }
    assert_int_equal(n - at, 8);
    assert_int_equal(u32(out + at), 0);
    assert_int_equal(u32(out + at + 4), 0);

    n = program("%PDF-1.7\nnothing", 16, out, sizeof(out) - 1, &status);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    out[n] = 0;
    assert_int_equal(u32(out), 0);
    assert_int_equal(u32(out + 4), n - 8);
    assert_non_null(strstr((char *)out + 8, "broken PDF"));
    free(s);
}

/* Its limits, read from outside while it waits with more pages than the pipe holds. That the kernel
 * keeps them is the kernel's. */
static void the_program_has_a_minute_and_a_gigabyte(void **state)
{
    char *s = pdf_of(small, 512, square);
    struct rlimit cpu = {0}, memory = {0};
    uint8_t first;
    int fd = -1, status = 0;
    pid_t pid = start(s, strlen(s), &fd);

    (void)state;
    assert_int_equal(read(fd, &first, 1), 1); /* it is past its sandbox */
    assert_int_equal(prlimit(pid, RLIMIT_CPU, NULL, &cpu), 0);
    assert_int_equal(prlimit(pid, RLIMIT_AS, NULL, &memory), 0);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0); /* and they were those of its life */
    close(fd);
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1); /* nobody takes the pages */
    assert_int_equal(cpu.rlim_cur, 60);
    assert_int_equal(cpu.rlim_max, 60);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* terabytes of shadow */
    assert_int_equal(memory.rlim_cur, 1 << 30);
    assert_int_equal(memory.rlim_max, 1 << 30);
#endif
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_pixels),
        cmocka_unit_test(large_pages_are_rendered_smaller),
        cmocka_unit_test(bad_documents_are_refused),
        cmocka_unit_test(the_program_writes_pages_and_a_last_word),
        cmocka_unit_test(the_program_has_a_minute_and_a_gigabyte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
