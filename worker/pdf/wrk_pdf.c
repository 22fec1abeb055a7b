/* wrk_pdf.c - see wrk_pdf.h.
 *
 * Poppler repairs what it can, as viewers do: a page that draws is a page. Its complaints about
 * such documents go to stderr, where nobody listens.
 *
 * Traps: sizes of pages are doubles from the file, NaN and 1e30 included; a document may claim
 * millions of pages that are one object. Tests: tests/pdf/test_wrk_pdf.c
 */
#include "wrk_pdf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cairo.h>
#include <poppler.h>

struct wrk_pdf {
    PopplerDocument *doc;
    GBytes *bytes;
    uint32_t n_pages;
    cairo_surface_t *surface;
};

static enum rc refused(GError *why, struct rc_err *err)
{
    enum rc rc;

    if (why != NULL && why->domain == POPPLER_ERROR && why->code == POPPLER_ERROR_ENCRYPTED)
        rc = rc_fail(err, RC_UNSUPPORTED, "the PDF is encrypted: remove its password first");
    else
        rc = rc_fail(err, RC_INVALID, "broken PDF: %s",
                     why != NULL ? why->message : "it cannot be read");
    g_clear_error(&why);
    return rc;
}

enum rc wrk_pdf_open(struct wrk_pdf **out, const uint8_t *data, size_t n, struct rc_err *err)
{
    struct wrk_pdf *p;
    GError *why = NULL;
    int pages;

    if (n < 5 || memcmp(data, "%PDF-", 5) != 0)
        return rc_fail(err, RC_INVALID, "the file is no PDF: it does not begin with %%PDF-");
    if (n > WRK_PDF_BYTES_MAX) {
        rc_fail(err, RC_TOO_LARGE, "a PDF of %zu bytes, at most %u", n, WRK_PDF_BYTES_MAX);
        return rc_bound(RC_TOO_LARGE, n, WRK_PDF_BYTES_MAX, err);
    }
    if ((p = calloc(1, sizeof(*p))) == NULL)
        return rc_fail(err, RC_NOMEM, "PDF");
    p->bytes = g_bytes_new_static(data, n);
    if ((p->doc = poppler_document_new_from_bytes(p->bytes, NULL, &why)) == NULL) {
        wrk_pdf_close(&p);
        return refused(why, err);
    }
    pages = poppler_document_get_n_pages(p->doc);
    if (pages < 1 || pages > (int)WRK_PDF_PAGES_MAX) {
        wrk_pdf_close(&p);
        if (pages < 1)
            return rc_fail(err, RC_INVALID, "broken PDF: no page in it");
        rc_fail(err, RC_TOO_LARGE, "a PDF of %d pages, at most %u", pages, WRK_PDF_PAGES_MAX);
        return rc_bound(RC_TOO_LARGE, (uint64_t)pages, WRK_PDF_PAGES_MAX, err);
    }
    p->n_pages = (uint32_t)pages;
    *out = p;
    return RC_OK;
}

void wrk_pdf_close(struct wrk_pdf **pp)
{
    struct wrk_pdf *p = *pp;

    if (p == NULL)
        return;
    if (p->surface != NULL)
        cairo_surface_destroy(p->surface);
    if (p->doc != NULL)
        g_object_unref(p->doc);
    g_bytes_unref(p->bytes);
    free(p);
    *pp = NULL;
}

uint32_t wrk_pdf_n_pages(const struct wrk_pdf *p)
{
    return p->n_pages;
}

/* Pixels of an edge, and by what the page is scaled. */
static enum rc sizes(double w, double h, int *px, int *py, double *scale, struct rc_err *err)
{
    double longest = w > h ? w : h;

    if (!isfinite(w) || !isfinite(h) || w <= 0 || h <= 0)
        return rc_fail(err, RC_INVALID, "broken PDF: a page of %g x %g points", w, h);
    *scale =
        longest * WRK_PDF_SCALE > WRK_PDF_EDGE_MAX ? WRK_PDF_EDGE_MAX / longest : WRK_PDF_SCALE;
    *px = (int)ceil(w * *scale);
    *py = (int)ceil(h * *scale);
    *px = *px < 1 ? 1 : *px;
    *py = *py < 1 ? 1 : *py;
    return RC_OK;
}

static enum rc draw(struct wrk_pdf *p, PopplerPage *page, struct rc_err *err)
{
    double w = 0, h = 0, scale = 1;
    cairo_status_t status;
    cairo_t *c;
    int px = 1, py = 1;
    enum rc rc;

    poppler_page_get_size(page, &w, &h);
    if ((rc = sizes(w, h, &px, &py, &scale, err)) != RC_OK)
        return rc;
    p->surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, px, py);
    c = cairo_create(p->surface);
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_paint(c);
    cairo_scale(c, scale, scale);
    poppler_page_render(page, c);
    status = cairo_status(c);
    cairo_destroy(c);
    cairo_surface_flush(p->surface);
    if (status == CAIRO_STATUS_NO_MEMORY)
        return rc_fail(err, RC_NOMEM, "a page of %d x %d pixels", px, py);
    if (status != CAIRO_STATUS_SUCCESS)
        return rc_fail(err, RC_INVALID, "the page cannot be drawn: %s",
                       cairo_status_to_string(status));
    return RC_OK;
}

enum rc wrk_pdf_render(struct wrk_pdf *p, uint32_t i, struct wrk_pdf_page *out, struct rc_err *err)
{
    PopplerPage *page = i < p->n_pages ? poppler_document_get_page(p->doc, (int)i) : NULL;
    enum rc rc;

    if (p->surface != NULL)
        cairo_surface_destroy(p->surface);
    p->surface = NULL;
    if (page == NULL)
        return rc_fail(err, RC_INVALID, "broken PDF: page %u of %u cannot be read", i + 1,
                       p->n_pages);
    rc = draw(p, page, err);
    g_object_unref(page);
    if (rc != RC_OK) {
        rc_wrap(err, "page %u", i + 1);
        return rc;
    }
    *out = (struct wrk_pdf_page){
        .width = (uint32_t)cairo_image_surface_get_width(p->surface),
        .height = (uint32_t)cairo_image_surface_get_height(p->surface),
        .stride = (size_t)cairo_image_surface_get_stride(p->surface),
        .bgrx = cairo_image_surface_get_data(p->surface),
        .surface = p->surface,
    };
    return RC_OK;
}

struct growing {
    uint8_t *data;
    size_t n, cap;
};

static cairo_status_t append(void *user, const unsigned char *data, unsigned n)
{
    struct growing *g = user;

    if (n > g->cap - g->n) {
        size_t cap = (g->cap + n) * 2;
        uint8_t *p = realloc(g->data, cap);

        if (p == NULL)
            return CAIRO_STATUS_NO_MEMORY;
        g->data = p;
        g->cap = cap;
    }
    memcpy(g->data + g->n, data, n);
    g->n += n;
    return CAIRO_STATUS_SUCCESS;
}

enum rc wrk_pdf_png(const struct wrk_pdf_page *page, uint8_t **out, size_t *out_n,
                    struct rc_err *err)
{
    struct growing g = {0};

    if (cairo_surface_write_to_png_stream(page->surface, append, &g) != CAIRO_STATUS_SUCCESS) {
        free(g.data);
        return rc_fail(err, RC_NOMEM, "a page of %u x %u pixels as PNG", page->width, page->height);
    }
    *out = g.data;
    *out_n = g.n;
    return RC_OK;
}
