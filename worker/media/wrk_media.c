/* wrk_media.c - what a file is: its declared type and its first bytes, which must agree.
 *
 * Change freely: the tables. A row of `types` with kind UNKNOWN would accept anything: none may.
 * Tests: tests/worker/test_wrk_media.c
 */
#include "wrk_media.h"

#include <string.h>

static const struct {
    const char *mime;
    enum wrk_media_kind kind;
} types[] = {
    {"image/jpeg", WRK_MEDIA_JPEG},     {"image/jpg", WRK_MEDIA_JPEG},
    {"image/pjpeg", WRK_MEDIA_JPEG},    {"image/png", WRK_MEDIA_PNG},
    {"image/apng", WRK_MEDIA_PNG},      {"image/x-png", WRK_MEDIA_PNG},
    {"image/webp", WRK_MEDIA_WEBP},     {"image/gif", WRK_MEDIA_GIF},
    {"audio/wav", WRK_MEDIA_WAV},       {"audio/x-wav", WRK_MEDIA_WAV},
    {"audio/wave", WRK_MEDIA_WAV},      {"audio/vnd.wave", WRK_MEDIA_WAV},
    {"audio/flac", WRK_MEDIA_FLAC},     {"audio/x-flac", WRK_MEDIA_FLAC},
    {"audio/ogg", WRK_MEDIA_OGG},       {"audio/vorbis", WRK_MEDIA_OGG},
    {"audio/opus", WRK_MEDIA_OGG},      {"application/ogg", WRK_MEDIA_OGG},
    {"audio/mpeg", WRK_MEDIA_MP3},      {"audio/mp3", WRK_MEDIA_MP3},
    {"audio/x-mp3", WRK_MEDIA_MP3},     {"audio/mpeg3", WRK_MEDIA_MP3},
    {"application/pdf", WRK_MEDIA_PDF},
};

static const struct {
    const char *magic;
    uint8_t n_magic, at;
    const char *second; /* at byte 8, after a RIFF's length */
    enum wrk_media_kind kind;
    const char *name;
} magics[] = {
    {"\xff\xd8\xff", 3, 0, NULL, WRK_MEDIA_JPEG, "JPEG"},
    {"\x89PNG\r\n\x1a\n", 8, 0, NULL, WRK_MEDIA_PNG, "PNG"},
    {"RIFF", 4, 0, "WEBP", WRK_MEDIA_WEBP, "WebP"},
    {"RIFF", 4, 0, "WAVE", WRK_MEDIA_WAV, "WAV"},
    {"RIFF", 4, 0, "AVI ", WRK_MEDIA_OTHER, "AVI video"},
    {"GIF87a", 6, 0, NULL, WRK_MEDIA_GIF, "GIF"},
    {"GIF89a", 6, 0, NULL, WRK_MEDIA_GIF, "GIF"},
    {"fLaC", 4, 0, NULL, WRK_MEDIA_FLAC, "FLAC"},
    {"OggS", 4, 0, NULL, WRK_MEDIA_OGG, "Ogg"},
    {"ID3", 3, 0, NULL, WRK_MEDIA_MP3, "MP3"},
    {"%PDF-", 5, 0, NULL, WRK_MEDIA_PDF, "PDF"},
    {"ftyp", 4, 4, NULL, WRK_MEDIA_OTHER, "MP4, HEIF or AVIF"},
    {"\x1a\x45\xdf\xa3", 4, 0, NULL, WRK_MEDIA_OTHER, "Matroska or WebM"},
    {"BM", 2, 0, NULL, WRK_MEDIA_OTHER, "BMP"},
    {"II*\0", 4, 0, NULL, WRK_MEDIA_OTHER, "TIFF"},
    {"MM\0*", 4, 0, NULL, WRK_MEDIA_OTHER, "TIFF"},
    {"FORM", 4, 0, NULL, WRK_MEDIA_OTHER, "AIFF"},
    {"<svg", 4, 0, NULL, WRK_MEDIA_OTHER, "SVG"},
};

/* An MPEG audio frame of layer III: sync, a version, a rate of bits and of samples that exist. */
static bool is_mp3_frame(const uint8_t *d, size_t n)
{
    return n >= 4 && d[0] == 0xff && (d[1] & 0xe0) == 0xe0 && (d[1] & 0x18) != 0x08 &&
           (d[1] & 0x06) == 0x02 && (d[2] & 0xf0) != 0xf0 && (d[2] & 0x0c) != 0x0c;
}

enum wrk_media_kind wrk_media_sniff(const uint8_t *data, size_t n, const char **name)
{
    const char *none;

    if (name == NULL)
        name = &none;
    for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
        size_t end = (size_t)magics[i].at + magics[i].n_magic;

        if (n < end || memcmp(data + magics[i].at, magics[i].magic, magics[i].n_magic) != 0)
            continue;
        if (magics[i].second != NULL && (n < 12 || memcmp(data + 8, magics[i].second, 4) != 0))
            continue;
        *name = magics[i].name;
        return magics[i].kind;
    }
    *name = is_mp3_frame(data, n) ? "MP3" : "unknown";
    return is_mp3_frame(data, n) ? WRK_MEDIA_MP3 : WRK_MEDIA_UNKNOWN;
}

bool wrk_media_is_image(enum wrk_media_kind k)
{
    return k >= WRK_MEDIA_JPEG && k <= WRK_MEDIA_GIF;
}

bool wrk_media_is_sound(enum wrk_media_kind k)
{
    return k >= WRK_MEDIA_WAV && k <= WRK_MEDIA_MP3;
}

enum rc wrk_media_check(const char *mime, const uint8_t *data, size_t n, enum wrk_media_kind *out,
                        struct rc_err *err)
{
    enum wrk_media_kind declared = WRK_MEDIA_UNKNOWN, kind;
    const char *name;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].mime, mime) == 0)
            declared = types[i].kind;
    if (strncmp(mime, "video/", 6) == 0)
        return rc_fail(err, RC_UNSUPPORTED, "video (%.64s) is not taken: pictures and sounds are",
                       mime);
    if (declared == WRK_MEDIA_UNKNOWN)
        return rc_fail(err, RC_UNSUPPORTED,
                       "type '%.64s' is not taken; image/jpeg, image/png, image/webp, image/gif, "
                       "audio/wav, audio/flac, audio/ogg, audio/mpeg are",
                       mime);
    if (n == 0)
        return rc_fail(err, RC_INVALID, "the file (%s) is empty", mime);
    if (n > WRK_MEDIA_BYTES_MAX)
        return rc_bound(
            rc_fail(err, RC_TOO_LARGE, "a file of %zu bytes, at most %u", n, WRK_MEDIA_BYTES_MAX),
            n, WRK_MEDIA_BYTES_MAX, err);
    kind = wrk_media_sniff(data, n, &name);
    if (kind != declared)
        return rc_fail(err, RC_INVALID,
                       "the file is declared as %s, and its first bytes are those of %s%s", mime,
                       kind == WRK_MEDIA_UNKNOWN ? "no type known here" : "type ",
                       kind == WRK_MEDIA_UNKNOWN ? "" : name);
    *out = kind;
    return RC_OK;
}
