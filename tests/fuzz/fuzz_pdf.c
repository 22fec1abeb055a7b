/* fuzz_pdf.c - any bytes as a PDF: its first pages are drawn and written as PNG.
 * room: pdf */
#include "wrk_pdf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wrk_pdf *pdf = NULL;
    struct wrk_pdf_page page;
    struct rc_err err = RC_ERR_INIT;

    if (wrk_pdf_open(&pdf, data, size, &err) != RC_OK) {
        if (pdf != NULL || err.msg[0] == 0)
            abort();
        return 0;
    }
    for (uint32_t i = 0; i < wrk_pdf_n_pages(pdf) && i < 2; i++) {
        uint8_t *png = NULL;
        size_t n = 0;

        if (wrk_pdf_render(pdf, i, &page, NULL) != RC_OK)
            continue;
        if (page.width > 2048 || page.height > 2048 || page.stride < (size_t)page.width * 4)
            abort();
        if (wrk_pdf_png(&page, &png, &n, NULL) == RC_OK && n == 0)
            abort();
        free(png);
    }
    wrk_pdf_close(&pdf);
    return 0;
}
