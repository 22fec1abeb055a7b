/* wrk_sound_whole.c - is a sound file as long as its container says?
 *
 * libsndfile plays what is left of a file that was cut; we refuse it. WAV: the length of its data
 * chunk; Ogg: every page has its checksum, and the last is marked as the last. FLAC says how many
 * samples it has and is checked while decoding; MP3 has no end.
 *
 * Trap: libsndfile 1.2.0 loses memory for each Vorbis file whose second or third header is bad
 * (found by fuzz_sound: 5,784 bytes). So libvorbis reads the three headers here first.
 * Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_sound.c
 */
#include "wrk_media_impl.h"

#include <ogg/ogg.h>
#include <string.h>
#include <vorbis/codec.h>

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

/* The first three packets of a stream. */
static bool vorbis_headers_are_good(const uint8_t *d, size_t n)
{
    vorbis_comment comment;
    ogg_stream_state stream;
    ogg_sync_state sync;
    vorbis_info info;
    ogg_packet packet;
    ogg_page page;
    int n_good = 0;
    bool bad = false, opened = false;
    char *to;

    ogg_sync_init(&sync);
    vorbis_info_init(&info);
    vorbis_comment_init(&comment);
    if ((to = ogg_sync_buffer(&sync, (long)n)) != NULL) {
        memcpy(to, d, n);
        ogg_sync_wrote(&sync, (long)n);
    }
    while (to != NULL && !bad && n_good < 3 && ogg_sync_pageout(&sync, &page) == 1) {
        if (!opened) {
            ogg_stream_init(&stream, ogg_page_serialno(&page));
            opened = true;
        }
        bad = ogg_stream_pagein(&stream, &page) != 0;
        while (!bad && n_good < 3 && ogg_stream_packetout(&stream, &packet) != 0) {
            bad = vorbis_synthesis_headerin(&info, &comment, &packet) != 0;
            n_good += !bad;
        }
    }
    if (opened)
        ogg_stream_clear(&stream);
    vorbis_comment_clear(&comment);
    vorbis_info_clear(&info);
    ogg_sync_clear(&sync);
    return n_good == 3;
}

/* Pages: "OggS", version, flags, 16 bytes, checksum, number of segments, their lengths. */
static enum rc ogg(const uint8_t *d, size_t n, struct rc_err *err)
{
    size_t at = 0, first = 0;
    bool last = false;

    while (!last && n - at >= 27 && memcmp(d + at, "OggS", 4) == 0) {
        size_t n_segs = d[at + 26], body = 0;
        unsigned char head[27 + 255];
        ogg_page page;

        if (n - at < 27 + n_segs)
            break;
        for (size_t i = 0; i < n_segs; i++)
            body += d[at + 27 + i];
        if (n - at - 27 - n_segs < body)
            break;
        memcpy(head, d + at, 27 + n_segs);
        page = (ogg_page){head, (long)(27 + n_segs), (unsigned char *)d + at + 27 + n_segs,
                          (long)body};
        ogg_page_checksum_set(&page); /* into the copy */
        if (memcmp(head + 22, d + at + 22, 4) != 0)
            break;
        first = first == 0 ? 27 + n_segs : first;
        last = (d[at + 5] & 4) != 0;
        at += 27 + n_segs + body;
    }
    if (!last)
        return rc_fail(err, RC_INVALID, "the Ogg file is cut short or damaged at byte %zu of %zu",
                       at, n);
    if (n - first >= 7 && memcmp(d + first, "\1vorbis", 7) == 0 && !vorbis_headers_are_good(d, at))
        return rc_fail(err, RC_INVALID, "broken Ogg: the headers of the Vorbis stream are damaged");
    return RC_OK;
}

enum rc wrk_sound_whole(enum wrk_media_kind kind, const uint8_t *data, size_t n, struct rc_err *err)
{
    return kind == WRK_MEDIA_WAV   ? wav(data, n, err)
           : kind == WRK_MEDIA_OGG ? ogg(data, n, err)
                                   : RC_OK;
}
