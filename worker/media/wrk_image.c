/* wrk_image.c - the door to the picture decoders, and the limits that all of them keep.
 *
 * Always true: no decoder has asked for memory by a header's numbers before wrk_image_room agreed.
 * Tests: tests/worker/test_wrk_media.c
 */
#include "wrk_media_impl.h"

#include <stdlib.h>

enum rc wrk_image_room(struct wrk_image *img, const char *name, uint64_t width, uint64_t height,
                       const struct wrk_image_limits *limits, struct rc_err *err)
{
    uint64_t edge = width > height ? width : height, pixels = width * height; /* both below 2^32 */

    if (width == 0 || height == 0)
        return rc_fail(err, RC_INVALID, "a %s of %llu x %llu pixels", name,
                       (unsigned long long)width, (unsigned long long)height);
    if (edge > limits->edge) {
        rc_fail(err, RC_TOO_LARGE, "a %s of %llu x %llu pixels, an edge has at most %u", name,
                (unsigned long long)width, (unsigned long long)height, limits->edge);
        return rc_bound(RC_TOO_LARGE, edge, limits->edge, err);
    }
    if (pixels > limits->pixels) {
        rc_fail(err, RC_TOO_LARGE, "a %s of %llu x %llu = %llu pixels, at most %llu", name,
                (unsigned long long)width, (unsigned long long)height, (unsigned long long)pixels,
                (unsigned long long)limits->pixels);
        return rc_bound(RC_TOO_LARGE, pixels, limits->pixels, err);
    }
    /* zeros: what an animation's first frame does not cover is black */
    if ((img->rgb = calloc((size_t)height, (size_t)width * 3)) == NULL)
        return rc_fail(err, RC_NOMEM, "%llu pixels", (unsigned long long)pixels);
    img->width = (uint32_t)width;
    img->height = (uint32_t)height;
    return RC_OK;
}

enum rc wrk_image_decode(struct wrk_image *out, enum wrk_media_kind kind, const uint8_t *data,
                         size_t n, const struct wrk_image_limits *limits, struct rc_err *err)
{
    static wrk_image_decoder *const decoders[WRK_MEDIA_KINDS] = {
        [WRK_MEDIA_JPEG] = wrk_image_jpeg,
        [WRK_MEDIA_PNG] = wrk_image_png,
        [WRK_MEDIA_WEBP] = wrk_image_webp,
        [WRK_MEDIA_GIF] = wrk_image_gif,
    };
    struct wrk_image_limits l = {.pixels = WRK_IMAGE_PIXELS_MAX, .edge = WRK_IMAGE_EDGE_MAX};
    struct wrk_image img = {0};
    enum rc rc;

    if (!wrk_media_is_image(kind))
        return rc_fail(err, RC_UNSUPPORTED, "the file is no picture");
    if (limits != NULL && limits->pixels != 0 && limits->pixels < l.pixels)
        l.pixels = limits->pixels;
    if (limits != NULL && limits->edge != 0 && limits->edge < l.edge)
        l.edge = limits->edge;
    if (limits != NULL)
        l.stop = limits->stop;
    if ((rc = decoders[kind](&img, data, n, &l, err)) == RC_OK)
        *out = img;
    else
        wrk_image_deinit(&img);
    return rc;
}

void wrk_image_deinit(struct wrk_image *img)
{
    free(img->rgb);
    *img = (struct wrk_image){0};
}
