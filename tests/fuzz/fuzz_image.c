/* fuzz_image.c - any bytes as a picture, decoded as what their first bytes say; small limits, so
 * that a search does not spend its time on large ones.
 * room: wrk */
#include "wrk_media.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct wrk_image_limits limits = {.pixels = 1u << 18, .edge = 4096};
    struct wrk_image img = {0};
    struct rc_err err = RC_ERR_INIT;
    unsigned sum = 0;

    if (wrk_image_decode(&img, wrk_media_sniff(data, size, NULL), data, size, &limits, &err) !=
        RC_OK) {
        if (img.rgb != NULL || err.msg[0] == 0)
            abort();
        return 0;
    }
    if ((uint64_t)img.width * img.height > limits.pixels)
        abort();
    for (size_t i = 0; i < (size_t)img.width * img.height * 3; i++)
        sum += img.rgb[i];
    wrk_image_deinit(&img);
    return sum == 1 ? -1 : 0; /* the pixels are looked at */
}
