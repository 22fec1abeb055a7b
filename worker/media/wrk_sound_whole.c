/* wrk_sound_whole.c - is a sound file as long as its container says?
 *
 * libsndfile plays what is left of a file that was cut; we refuse it. WAV: the length of its data
 * chunk; Ogg: the last page is whole and marked as the last. FLAC says how many samples it has
 * and is checked while decoding; MP3 has no end.
 * Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_sound.c
 */
#include "wrk_media_impl.h"

#include <string.h>

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static enum rc wav(const uint8_t *d, size_t n, struct rc_err *err)
{
    size_t at = 12;

    while (n >= at && n - at >= 8) {
        uint32_t len = le32(d + at + 4);

        if (memcmp(d + at, "data", 4) == 0) {
            if (len == 0xffffffffu) /* written to a pipe: up to the end of the file */
                return RC_OK;
            if (len > n - at - 8)
                return rc_fail(err, RC_INVALID,
                               "the WAV file is cut short: its header says %u bytes of samples, "
                               "%zu are there",
                               len, n - at - 8);
            return RC_OK;
        }
        if (len > n - at - 8)
            break;
        at += 8 + (size_t)len + (len & 1);
    }
    return rc_fail(err, RC_INVALID, "broken WAV: no chunk 'data' in %zu bytes", n);
}

/* Pages: "OggS", version, flags, 20 bytes, number of segments, their lengths. */
static enum rc ogg(const uint8_t *d, size_t n, struct rc_err *err)
{
    size_t at = 0;
    bool last = false;

    while (n - at >= 27 && memcmp(d + at, "OggS", 4) == 0) {
        size_t n_segs = d[at + 26], len = 27 + n_segs;

        if (n - at < len)
            break;
        for (size_t i = 0; i < n_segs; i++)
            len += d[at + 27 + i];
        if (n - at < len)
            break;
        last = (d[at + 5] & 4) != 0;
        at += len;
        if (last)
            return RC_OK;
    }
    return rc_fail(err, RC_INVALID, "the Ogg file is cut short or damaged at byte %zu of %zu", at,
                   n);
}

enum rc wrk_sound_whole(enum wrk_media_kind kind, const uint8_t *data, size_t n, struct rc_err *err)
{
    return kind == WRK_MEDIA_WAV   ? wav(data, n, err)
           : kind == WRK_MEDIA_OGG ? ogg(data, n, err)
                                   : RC_OK;
}
