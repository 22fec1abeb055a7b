/* wrk_media_impl.h - for those who write a decoder: one call each, and what they share. */
#ifndef INFERD_WRK_MEDIA_IMPL_H
#define INFERD_WRK_MEDIA_IMPL_H

#include "wrk_media.h"

/* Bytes of the file, and how far they were read. */
struct wrk_reader {
    const uint8_t *data;
    size_t n, at;
};

static inline bool wrk_media_stopped(const struct wrk_media_stop *s)
{
    return s != NULL && s->ask(s->user);
}
static inline enum rc wrk_media_stop_error(struct rc_err *err)
{
    return rc_fail(err, RC_CANCELLED, "stopped");
}

/* Checks the sides that a header claims and makes room. RC_INVALID an empty side. */
enum rc wrk_image_room(struct wrk_image *img, const char *name, uint64_t width, uint64_t height,
                       const struct wrk_image_limits *limits, struct rc_err *err);

typedef enum rc wrk_image_decoder(struct wrk_image *out, const uint8_t *data, size_t n,
                                  const struct wrk_image_limits *limits, struct rc_err *err);
/* Each fills out, which was empty; on failure the caller frees it. limits has no zeros. */
wrk_image_decoder wrk_image_jpeg, wrk_image_png, wrk_image_webp, wrk_image_gif;

/* Is the container whole, as far as its own lengths tell? RC_INVALID says what is missing. */
enum rc wrk_sound_whole(enum wrk_media_kind kind, const uint8_t *data, size_t n,
                        struct rc_err *err);

#endif
