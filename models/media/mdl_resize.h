/* mdl_resize.h - private to models: a picture of another size, by the numbers of Pillow. */
#ifndef INFERD_MDL_RESIZE_H
#define INFERD_MDL_RESIZE_H

#include "mdl.h"

#define MDL_RESIZE_MAX_SIDE (1u << 20)

/* Bicubic (a = -0.5) with antialias: the bytes that Pillow's Image.resize(BICUBIC) gives for the
 * picture as RGB (alpha dropped). A side that stays is copied. out [out_h, out_w, 3].
 * Errors: RC_INVALID sides outside 1..MDL_RESIZE_MAX_SIDE, a stride or channels that cannot be;
 * RC_NOMEM. Memory: about 4 rows of out for every input row that falls on one of its rows, and
 * 16 bytes for every column and row of the picture; freed before it returns.
 * Source: Pillow 12.3, libImaging/Resample.c; Keys 1981. */
enum rc mdl_resize_bicubic(const struct mdl_image *img, uint32_t out_w, uint32_t out_h,
                           uint8_t *out, struct rc_err *err);

#endif
