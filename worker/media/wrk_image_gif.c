/* wrk_image_gif.c - the first frame of a GIF through giflib, on its logical screen.
 *
 * As Pillow shows it: the screen grows with a frame that leaves it; what the frame does not cover
 * has the transparent colour, else colour 0; without a palette indices are greys; a colour beyond
 * the palette is black. Later frames are never read (DGifSlurp would decode all of them).
 * Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_image.c
 */
#include "wrk_media_impl.h"

#include <gif_lib.h>
#include <stdlib.h>
#include <string.h>

static int on_read(GifFileType *g, GifByteType *to, int n)
{
    struct wrk_reader *r = g->UserData;
    size_t k = n < 0 ? 0 : (size_t)n;

    if (k > r->n - r->at)
        k = r->n - r->at;
    memcpy(to, r->data + r->at, k);
    r->at += k;
    return (int)k;
}

static enum rc broken(const GifFileType *g, struct rc_err *err)
{
    const char *why = GifErrorString(g->Error);

    return rc_fail(err, RC_INVALID, "broken GIF: %s", why != NULL ? why : "its data are damaged");
}

/* Up to the first frame; *transparent is its colour that is none, -1 without one. */
static enum rc find_frame(GifFileType *g, int *transparent, struct rc_err *err)
{
    GifRecordType type;

    for (;;) {
        GifByteType *block = NULL;
        int code = 0;

        if (DGifGetRecordType(g, &type) != GIF_OK)
            return broken(g, err);
        if (type == TERMINATE_RECORD_TYPE)
            return rc_fail(err, RC_INVALID, "broken GIF: no picture in it");
        if (type == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(g) == GIF_OK ? RC_OK : broken(g, err);
        if (type != EXTENSION_RECORD_TYPE)
            return rc_fail(err, RC_INVALID, "broken GIF: a record of no known kind");
        if (DGifGetExtension(g, &code, &block) != GIF_OK)
            return broken(g, err);
        if (code == GRAPHICS_EXT_FUNC_CODE && block != NULL && block[0] >= 4)
            *transparent = (block[1] & 1) != 0 ? block[4] : -1;
        while (block != NULL)
            if (DGifGetExtensionNext(g, &block) != GIF_OK)
                return broken(g, err);
    }
}

static void palette(const GifFileType *g, uint8_t rgb[256][3])
{
    const ColorMapObject *m = g->Image.ColorMap != NULL ? g->Image.ColorMap : g->SColorMap;

    for (int i = 0; i < 256; i++) {
        if (m == NULL)
            memset(rgb[i], i, 3);
        else if (i < m->ColorCount)
            memcpy(rgb[i], (uint8_t[]){m->Colors[i].Red, m->Colors[i].Green, m->Colors[i].Blue}, 3);
        else
            memset(rgb[i], 0, 3);
    }
}

static enum rc rows(GifFileType *g, struct wrk_image *out, uint8_t rgb[256][3],
                    const struct wrk_media_stop *stop, struct rc_err *err)
{
    static const uint8_t first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    uint32_t w = (uint32_t)g->Image.Width, h = (uint32_t)g->Image.Height;
    GifPixelType *line = malloc(w);
    enum rc rc = RC_OK;

    if (line == NULL)
        return rc_fail(err, RC_NOMEM, "a row of %u pixels", w);
    for (int pass = 0; pass < (g->Image.Interlace ? 4 : 1) && rc == RC_OK; pass++) {
        uint32_t y = g->Image.Interlace ? first[pass] : 0;

        for (; y < h && rc == RC_OK; y += g->Image.Interlace ? step[pass] : 1) {
            uint8_t *to =
                out->rgb +
                (((uint32_t)g->Image.Top + (size_t)y) * out->width + (uint32_t)g->Image.Left) * 3;

            if (wrk_media_stopped(stop))
                rc = wrk_media_stop_error(err);
            else if (DGifGetLine(g, line, (int)w) != GIF_OK)
                rc = broken(g, err);
            for (uint32_t x = 0; x < w && rc == RC_OK; x++)
                memcpy(to + (size_t)x * 3, rgb[line[x]], 3);
        }
    }
    free(line);
    return rc;
}

static enum rc decode(GifFileType *g, struct wrk_image *out, const struct wrk_image_limits *limits,
                      struct rc_err *err)
{
    uint8_t rgb[256][3];
    int transparent = -1;
    uint64_t w = (uint64_t)g->SWidth, h = (uint64_t)g->SHeight, right, bottom;
    enum rc rc;

    if ((rc = find_frame(g, &transparent, err)) != RC_OK)
        return rc;
    if (g->Image.Left < 0 || g->Image.Top < 0 || g->Image.Width <= 0 || g->Image.Height <= 0)
        return rc_fail(err, RC_INVALID, "broken GIF: a frame of %d x %d pixels", g->Image.Width,
                       g->Image.Height);
    right = (uint64_t)g->Image.Left + (uint64_t)g->Image.Width;
    bottom = (uint64_t)g->Image.Top + (uint64_t)g->Image.Height;
    if ((rc = wrk_image_room(out, "GIF", right > w ? right : w, bottom > h ? bottom : h, limits,
                             err)) != RC_OK)
        return rc;
    palette(g, rgb);
    for (size_t i = 0; i < (size_t)out->width * out->height; i++)
        memcpy(out->rgb + i * 3, rgb[transparent >= 0 ? transparent : 0], 3);
    return rows(g, out, rgb, limits->stop, err);
}

enum rc wrk_image_gif(struct wrk_image *out, const uint8_t *data, size_t n,
                      const struct wrk_image_limits *limits, struct rc_err *err)
{
    struct wrk_reader in = {data, n, 0};
    int code = 0;
    GifFileType *g = DGifOpen(&in, on_read, &code);
    enum rc rc;

    if (g == NULL) {
        const char *why = GifErrorString(code);

        return rc_fail(err, RC_INVALID, "broken GIF: %s", why != NULL ? why : "no header");
    }
    rc = decode(g, out, limits, err);
    DGifCloseFile(g, &code);
    return rc;
}
