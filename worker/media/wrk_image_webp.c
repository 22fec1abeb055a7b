/* wrk_image_webp.c - WebP through libwebp, lossy and lossless; of an animation the first frame.
 *
 * A frame smaller than its canvas stands on black, as Pillow shows it. The decoder is told to
 * start no thread. Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_image.c
 */
#include "wrk_media_impl.h"

#include <webp/decode.h>
#include <webp/demux.h>

static enum rc frame(struct wrk_image *out, const WebPIterator *f, struct rc_err *err)
{
    WebPDecoderConfig c;
    VP8StatusCode s;

    if (f->x_offset < 0 || f->y_offset < 0 || f->width <= 0 || f->height <= 0 ||
        (uint64_t)f->x_offset + (uint64_t)f->width > out->width ||
        (uint64_t)f->y_offset + (uint64_t)f->height > out->height)
        return rc_fail(err, RC_INVALID, "broken WebP: a frame of %d x %d at %d, %d in %u x %u",
                       f->width, f->height, f->x_offset, f->y_offset, out->width, out->height);
    if (!WebPInitDecoderConfig(&c))
        return rc_fail(err, RC_INTERNAL, "libwebp is of another version than its headers");
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.stride = (int)(out->width * 3);
    c.output.u.RGBA.rgba = out->rgb + ((size_t)f->y_offset * out->width + (size_t)f->x_offset) * 3;
    /* the last row of the frame ends before the canvas's does */
    c.output.u.RGBA.size = (size_t)(f->height - 1) * out->width * 3 + (size_t)f->width * 3;
    if ((s = WebPGetFeatures(f->fragment.bytes, f->fragment.size, &c.input)) == VP8_STATUS_OK) {
        if (c.input.width != f->width || c.input.height != f->height)
            return rc_fail(err, RC_INVALID, "broken WebP: a frame of %d x %d holds %d x %d",
                           f->width, f->height, c.input.width, c.input.height);
        s = WebPDecode(f->fragment.bytes, f->fragment.size, &c);
    }
    WebPFreeDecBuffer(&c.output);
    if (s == VP8_STATUS_OUT_OF_MEMORY)
        return rc_fail(err, RC_NOMEM, "WebP decoder");
    if (s != VP8_STATUS_OK)
        return rc_fail(err, RC_INVALID, "broken WebP: %s",
                       s == VP8_STATUS_NOT_ENOUGH_DATA ? "the file is cut short"
                       : s == VP8_STATUS_UNSUPPORTED_FEATURE
                           ? "a feature that the decoder does not know"
                           : "the picture's data are damaged");
    return RC_OK;
}

enum rc wrk_image_webp(struct wrk_image *out, const uint8_t *data, size_t n,
                       const struct wrk_image_limits *limits, struct rc_err *err)
{
    const WebPData d = {data, n};
    WebPDemuxState state;
    WebPDemuxer *x = WebPDemuxPartial(&d, &state);
    WebPIterator it;
    enum rc rc = RC_INVALID;

    if (x == NULL || state < WEBP_DEMUX_PARSED_HEADER) {
        WebPDemuxDelete(x);
        return rc_fail(err, RC_INVALID, "broken WebP: no header that can be read");
    }
    rc = wrk_image_room(out, "WebP", WebPDemuxGetI(x, WEBP_FF_CANVAS_WIDTH),
                        WebPDemuxGetI(x, WEBP_FF_CANVAS_HEIGHT), limits, err);
    if (rc == RC_OK && state != WEBP_DEMUX_DONE)
        rc = rc_fail(err, RC_INVALID, "broken WebP: the file is cut short");
    if (rc == RC_OK && !WebPDemuxGetFrame(x, 1, &it))
        rc = rc_fail(err, RC_INVALID, "broken WebP: no picture in it");
    else if (rc == RC_OK) {
        rc = frame(out, &it, err);
        WebPDemuxReleaseIterator(&it);
    }
    WebPDemuxDelete(x);
    return rc;
}
