/* wrk_media.h - files of pictures and sounds, from memory to pixels and samples.
 *
 * Everything here runs inside the worker's sandbox on bytes of strangers: no file is opened, no
 * thread started, nothing is kept between calls. Limits are checked on what the header claims
 * before memory is asked for, and again on what is decoded. A file that is not whole is refused,
 * never repaired. Libraries: libjpeg-turbo, libpng, libwebp, giflib, libsndfile, libsoxr.
 * Page: docs/media.md. Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_image.c,
 * tests/fuzz/fuzz_sound.c
 */
#ifndef INFERD_WRK_MEDIA_H
#define INFERD_WRK_MEDIA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

/* 16 bytes a pixel, which is what a picture takes on its way, in 512 MiB (http-api 1.5) */
#define WRK_IMAGE_PIXELS_MAX (32u << 20)
#define WRK_IMAGE_EDGE_MAX 16384u
#define WRK_IMAGE_SCANS_MAX 32u /* of a progressive JPEG: each is a pass over all of it */
#define WRK_MEDIA_BYTES_MAX (100u << 20)
#define WRK_SOUND_CHANNELS_MAX 8
#define WRK_SOUND_RATE_MIN 1000
#define WRK_SOUND_RATE_MAX 768000

enum wrk_media_kind {
    WRK_MEDIA_UNKNOWN,
    WRK_MEDIA_JPEG,
    WRK_MEDIA_PNG,
    WRK_MEDIA_WEBP,
    WRK_MEDIA_GIF,
    WRK_MEDIA_WAV,
    WRK_MEDIA_FLAC,
    WRK_MEDIA_OGG,
    WRK_MEDIA_MP3,
    WRK_MEDIA_PDF,
    WRK_MEDIA_OTHER, /* known by its first bytes, and not decoded here */
    WRK_MEDIA_KINDS
};

/* What the first bytes say; *name (may be NULL) is a word for messages. */
enum wrk_media_kind wrk_media_sniff(const uint8_t *data, size_t n, const char **name);
bool wrk_media_is_image(enum wrk_media_kind kind);
bool wrk_media_is_sound(enum wrk_media_kind kind);

/* What a file is: the declared type (plain, lower case) and its first bytes must agree.
 * Errors: RC_INVALID empty, or they differ (names both); RC_UNSUPPORTED video, or a type that is
 * not decoded here (names it); RC_TOO_LARGE. */
enum rc wrk_media_check(const char *mime, const uint8_t *data, size_t n, enum wrk_media_kind *out,
                        struct rc_err *err);

/* Asked now and then while a file is decoded (a WebP: not): true ends that with RC_CANCELLED. ask
 * may do other work. */
struct wrk_media_stop {
    bool (*ask)(void *user);
    void *user;
};

/* [height, width, 3] bytes without gaps: what Pillow's convert("RGB") gives. Alpha is dropped,
 * profiles and orientation are not applied, of an animation the first frame is taken. */
struct wrk_image {
    uint32_t width, height;
    uint8_t *rgb; /* owned: wrk_image_deinit */
};
struct wrk_image_limits {
    uint64_t pixels;                   /* 0 = WRK_IMAGE_PIXELS_MAX; never more */
    uint32_t edge;                     /* 0 = WRK_IMAGE_EDGE_MAX; never more */
    const struct wrk_media_stop *stop; /* or NULL */
};
/* Errors: RC_INVALID broken or cut short (says what and where), RC_TOO_LARGE (err->n, err->limit),
 * RC_UNSUPPORTED a kind of coding that is not decoded, RC_NOMEM. */
enum rc wrk_image_decode(struct wrk_image *out, enum wrk_media_kind kind, const uint8_t *data,
                         size_t n, const struct wrk_image_limits *limits, struct rc_err *err);
void wrk_image_deinit(struct wrk_image *img);

/* One channel: the mean of all, at the rate asked for. */
struct wrk_sound {
    uint32_t rate;
    size_t n;
    float *pcm; /* owned: wrk_sound_deinit; finite */
};
/* rate: wanted, of `ms` at most; stop: or NULL. Errors as above; RC_TOO_LARGE in ms. */
enum rc wrk_sound_decode(struct wrk_sound *out, enum wrk_media_kind kind, const uint8_t *data,
                         size_t n, uint32_t rate, uint32_t ms, const struct wrk_media_stop *stop,
                         struct rc_err *err);
void wrk_sound_deinit(struct wrk_sound *snd);

#endif
