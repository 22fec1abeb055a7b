/* wrk_pdf.h - pages of a PDF as pixels, through libpoppler-glib and cairo.
 *
 * Linked only into inferd-pdf, a process of its own for each document and never a worker: a
 * worker that serves many requests does not carry that much code for a few of them, and poppler's
 * license (GPL) stays beside ours. Memory in, pixels out; no file is opened but fonts of this
 * machine, for text whose font the document does not bring.
 * Page: docs/media.md. Tests: tests/pdf/test_wrk_pdf.c, tests/fuzz/fuzz_pdf.c
 */
#ifndef INFERD_WRK_PDF_H
#define INFERD_WRK_PDF_H

#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define WRK_PDF_BYTES_MAX (100u << 20)
#define WRK_PDF_PAGES_MAX 512u
#define WRK_PDF_SCALE 2.0       /* pixels a point: 144 a inch */
#define WRK_PDF_EDGE_MAX 2048.0 /* a larger page is rendered smaller */

struct wrk_pdf;

/* data is borrowed until close. Errors: RC_INVALID broken, RC_UNSUPPORTED encrypted,
 * RC_TOO_LARGE bytes or pages (err->n, err->limit). */
enum rc wrk_pdf_open(struct wrk_pdf **out, const uint8_t *data, size_t n, struct rc_err *err);
void wrk_pdf_close(struct wrk_pdf **pdf);
uint32_t wrk_pdf_n_pages(const struct wrk_pdf *pdf);

/* A page on white. Borrowed until the next page or close: rows of 4 bytes a pixel, blue green red
 * unused, with padding behind them. */
struct wrk_pdf_page {
    uint32_t width, height;
    size_t stride;
    const uint8_t *bgrx;
    void *surface; /* cairo's, for wrk_pdf_png */
};
/* Errors: RC_INVALID a page that cannot be read, RC_NOMEM. page from 0. */
enum rc wrk_pdf_render(struct wrk_pdf *pdf, uint32_t page, struct wrk_pdf_page *out,
                       struct rc_err *err);
/* The page as a PNG without alpha, lossless. *out is freed by the caller. */
enum rc wrk_pdf_png(const struct wrk_pdf_page *page, uint8_t **out, size_t *out_n,
                    struct rc_err *err);

#endif
