/* sup_media.h - files inside a request: base64, data: URLs, attachments, MIME types.
 *
 * A file stays opaque bytes here: whether it is the picture it claims to be is found
 * out in the worker's sandbox. Remote URLs are refused by name before anything else
 * happens. Tests: tests/supervisor/test_sup_api_frame.c (base64, MIME types),
 * tests/supervisor/test_sup_api_embed_media.c
 */
#ifndef INFERD_SUP_MEDIA_H
#define INFERD_SUP_MEDIA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sup_status.h"

struct sup_api_frame;

#define SUP_MIME_BYTES 128         /* of a MIME type, its NUL included */
#define SUP_MEDIA_MAX (100u << 20) /* bytes of one file: no server takes more (max_media_bytes) */

struct sup_media {
    const uint8_t *data; /* [n], of the JSON tree or of the frame */
    size_t n;
    char mime[SUP_MIME_BYTES]; /* what the source says of itself; "" = nothing */
};

/* Strict RFC 4648 base64 (padding, no white space, unused bits 0), decoded where it
 * stands: the result is never longer. false: *bad is where; s is spoilt. */
bool sup_base64_decode(char *s, size_t n, size_t *out_n, size_t *bad);

/* The type of s without its parameters, in lower case: "image/png". false: no type. */
bool sup_mime_plain(const char *s, size_t n, char out[SUP_MIME_BYTES]);

/* The file that the text j stands for: a data: URL, "attachment:INDEX" of frame (NULL or
 * empty: there are none), or base64 itself where url is false. A string with base64 is
 * decoded in place: j is to be read once. name is for messages.
 * Errors: INVALID_REQUEST, CONTENT_NOT_ALLOWED for remote URLs. */
bool sup_media_read(json_t *j, bool url, const char *name, const struct sup_api_frame *frame,
                    struct sup_media *out, struct sup_fail *f);

#endif
