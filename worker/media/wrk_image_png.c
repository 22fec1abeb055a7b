/* wrk_image_png.c - PNG through libpng, every depth and colour type to 8-bit RGB.
 *
 * As Pillow converts: depths below 8 are scaled, of 16 bits the upper 8 are taken, but 16-bit grey
 * without alpha is cut at 255 (its mode "I;16"); transparency and gamma change nothing. Chunks
 * that would not change a pixel are not even parsed: compressed text and profiles are where bombs
 * hide. The library ends a call by longjmp, as in wrk_image_jpeg.c.
 * Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_image.c
 */
#include "wrk_media_impl.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    png_structp png;
    png_infop info;
    struct wrk_reader in;
    struct wrk_image *out;
    uint8_t *wide; /* 16-bit grey */
    png_bytep *rows;
    const struct wrk_media_stop *stop;
    bool stopped;
    char why[128];
};

static void on_error(png_structp png, png_const_charp why)
{
    struct job *j = png_get_error_ptr(png);

    snprintf(j->why, sizeof(j->why), "%s", why);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp why)
{
    (void)png;
    (void)why;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct wrk_reader *r = png_get_io_ptr(png);

    if (n > r->n - r->at)
        png_error(png, "the file is cut short");
    memcpy(to, r->data + r->at, n);
    r->at += n;
}

/* After each row of each pass. */
static void on_row(png_structp png, png_uint_32 row, int pass)
{
    struct job *j = png_get_error_ptr(png);

    (void)row;
    (void)pass;
    if ((j->stopped = wrk_media_stopped(j->stop)))
        longjmp(png_jmpbuf(png), 1);
}

static void transform(struct job *j, int depth, int color)
{
    if (color == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(j->png);
    if (color == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(j->png);
    if (depth == 16)
        png_set_strip_16(j->png);
    if ((color & PNG_COLOR_MASK_COLOR) == 0)
        png_set_gray_to_rgb(j->png);
    png_set_strip_alpha(j->png);
}

static enum rc decode(struct job *j, const struct wrk_image_limits *limits, struct rc_err *err)
{
    png_uint_32 w, h;
    int depth, color;
    size_t row;
    bool wide;
    enum rc rc;

    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(j->png, 0x7fffffff, 0x7fffffff); /* ours come with better words */
    png_set_read_fn(j->png, &j->in, on_read);
    png_set_read_status_fn(j->png, on_row);
    png_read_info(j->png, j->info);
    png_get_IHDR(j->png, j->info, &w, &h, &depth, &color, NULL, NULL, NULL);
    if ((rc = wrk_image_room(j->out, "PNG", w, h, limits, err)) != RC_OK)
        return rc;
    wide = depth == 16 && color == PNG_COLOR_TYPE_GRAY;
    if (!wide)
        transform(j, depth, color);
    png_set_interlace_handling(j->png);
    png_read_update_info(j->png, j->info);
    row = wide ? (size_t)w * 2 : (size_t)w * 3;
    if (png_get_rowbytes(j->png, j->info) != row)
        return rc_fail(err, RC_INTERNAL, "a PNG row of %zu bytes, expected %zu",
                       png_get_rowbytes(j->png, j->info), row);
    if (wide)
        j->wide = malloc(row * h);
    j->rows = calloc(h, sizeof(*j->rows));
    if (j->rows == NULL || (wide && j->wide == NULL))
        return rc_fail(err, RC_NOMEM, "PNG of %u x %u pixels", w, h);
    for (png_uint_32 y = 0; y < h; y++)
        j->rows[y] = (wide ? j->wide : j->out->rgb) + y * row;
    png_read_image(j->png, j->rows);
    png_read_end(j->png, NULL);
    for (size_t i = 0; wide && i < (size_t)w * h; i++)
        memset(j->out->rgb + i * 3, j->wide[i * 2] != 0 ? 255 : j->wide[i * 2 + 1], 3);
    return RC_OK;
}

enum rc wrk_image_png(struct wrk_image *out, const uint8_t *data, size_t n,
                      const struct wrk_image_limits *limits, struct rc_err *err)
{
    struct job *j = calloc(1, sizeof(*j));
    enum rc rc = RC_NOMEM;

    if (j == NULL)
        return rc_fail(err, RC_NOMEM, "PNG decoder");
    j->in = (struct wrk_reader){data, n, 0};
    j->out = out;
    j->stop = limits->stop;
    j->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, j, on_error, on_warning);
    if (j->png != NULL)
        j->info = png_create_info_struct(j->png);
    if (j->info == NULL)
        rc_fail(err, RC_NOMEM, "PNG decoder");
    else if (setjmp(png_jmpbuf(j->png)) == 0)
        rc = decode(j, limits, err);
    else if (j->stopped)
        rc = wrk_media_stop_error(err);
    else
        rc = rc_fail(err, RC_INVALID, "broken PNG: %s", j->why);
    png_destroy_read_struct(&j->png, &j->info, NULL);
    free(j->rows);
    free(j->wide);
    free(j);
    return rc;
}
