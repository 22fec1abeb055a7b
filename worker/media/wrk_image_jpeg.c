/* wrk_image_jpeg.c - JPEG through libjpeg-turbo: islow DCT and fancy upsampling, its defaults.
 *
 * The library ends a call by longjmp: everything that lives across it hangs from struct job, and
 * there is one setjmp. Its warnings about lost data are errors here. CMYK and YCCK are taken as
 * Adobe writes them, inverted, as Pillow does (JpegImagePlugin.py: "assume adobe conventions").
 *
 * Traps: a progressive file of a few bytes may ask for thousands of passes over all its pixels
 * (on_progress counts, and asks whether to stop); the library keeps their coefficients whole, so
 * its memory has a limit of its own. Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_image.c
 */
#include "wrk_media_impl.h"

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h wants FILE */
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* coefficients: 2 bytes a pixel and component, of four components at most, and rows in work */
#define WORK_BYTES (320L << 20)

struct job {
    struct jpeg_error_mgr err; /* first: cinfo->err points here */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct cinfo;
    jmp_buf back;
    bool too_many_scans, stopped;
    const struct wrk_media_stop *stop;
    char why[JMSG_LENGTH_MAX];
    struct wrk_image *out;
    uint8_t *row; /* CMYK */
};

static void on_error(j_common_ptr cinfo)
{
    struct job *j = (struct job *)cinfo->err;

    cinfo->err->format_message(cinfo, j->why);
    longjmp(j->back, 1);
}

/* Level -1: the data are damaged. Some damage leaves the picture as it was made. */
static void on_message(j_common_ptr cinfo, int level)
{
    int code = cinfo->err->msg_code;

    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR &&
        code != JWRN_ADOBE_XFORM && code != JWRN_BOGUS_PROGRESSION)
        on_error(cinfo);
}

static void on_progress(j_common_ptr cinfo)
{
    struct job *j = (struct job *)cinfo->err;

    j->too_many_scans = j->cinfo.input_scan_number > (int)WRK_IMAGE_SCANS_MAX;
    j->stopped = wrk_media_stopped(j->stop);
    if (j->too_many_scans || j->stopped)
        longjmp(j->back, 1);
}

/* Pillow's cmyk2rgb (Convert.c) on inverted values. */
static void from_cmyk(const uint8_t *in, uint8_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, in += 4, out += 3) {
        int nk = in[3];

        for (int c = 0; c < 3; c++) {
            unsigned tmp = (unsigned)(255 - in[c]) * (unsigned)nk + 128;
            int v = nk - (int)(((tmp >> 8) + tmp) >> 8);

            out[c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

static enum rc decode(struct job *j, const uint8_t *data, size_t n,
                      const struct wrk_image_limits *limits, struct rc_err *err)
{
    struct jpeg_decompress_struct *c = &j->cinfo;
    enum rc rc;

    jpeg_create_decompress(c);
    c->mem->max_memory_to_use = WORK_BYTES;
    c->progress = &j->progress;
    j->progress.progress_monitor = on_progress;
    jpeg_mem_src(c, data, (unsigned long)n);
    jpeg_read_header(c, TRUE);
    if ((rc = wrk_image_room(j->out, "JPEG", c->image_width, c->image_height, limits, err)) !=
        RC_OK)
        return rc;
    if (c->num_components == 4) {
        c->out_color_space = JCS_CMYK;
        if ((j->row = malloc((size_t)c->image_width * 4)) == NULL)
            return rc_fail(err, RC_NOMEM, "a row of %u pixels", c->image_width);
    } else {
        c->out_color_space = JCS_RGB; /* of grey too */
    }
    c->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(c);
    while (c->output_scanline < c->output_height) {
        uint8_t *to = j->out->rgb + (size_t)c->output_scanline * j->out->width * 3;
        JSAMPROW row = j->row != NULL ? j->row : to;

        if (jpeg_read_scanlines(c, &row, 1) == 1 && j->row != NULL)
            from_cmyk(j->row, to, j->out->width);
    }
    jpeg_finish_decompress(c);
    return RC_OK;
}

enum rc wrk_image_jpeg(struct wrk_image *out, const uint8_t *data, size_t n,
                       const struct wrk_image_limits *limits, struct rc_err *err)
{
    struct job *j = calloc(1, sizeof(*j));
    enum rc rc;

    if (j == NULL)
        return rc_fail(err, RC_NOMEM, "JPEG decoder");
    j->out = out;
    j->stop = limits->stop;
    j->cinfo.err = jpeg_std_error(&j->err);
    j->err.error_exit = on_error;
    j->err.emit_message = on_message;
    if (setjmp(j->back) == 0) {
        rc = decode(j, data, n, limits, err);
    } else if (j->too_many_scans) {
        rc = rc_bound(
            rc_fail(err, RC_TOO_LARGE, "a JPEG of more than %u scans", WRK_IMAGE_SCANS_MAX),
            WRK_IMAGE_SCANS_MAX + 1, WRK_IMAGE_SCANS_MAX, err);
    } else if (j->stopped) {
        rc = wrk_media_stop_error(err);
    } else {
        rc = rc_fail(err, RC_INVALID, "broken JPEG: %s", j->why);
    }
    jpeg_destroy_decompress(&j->cinfo);
    free(j->row);
    free(j);
    return rc;
}
