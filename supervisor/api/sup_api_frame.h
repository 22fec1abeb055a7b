/* sup_api_frame.h - framed attachments: JSON and files in one request body.
 *
 * Content-Type application/vnd.antfly.attachments.v1, all numbers little-endian:
 *
 *   "AFATT001"  u64 metadata bytes  u32 attachments  u32 0
 *   per attachment: u32 MIME bytes  u32 0  u64 data bytes
 *   metadata (the JSON request)
 *   per attachment: MIME, data
 *
 * The JSON names a file by the text "attachment:INDEX" where a data value or a URL
 * stands. Nothing is copied: all pointers are into the body that was read.
 * Tests: tests/supervisor/test_sup_api_frame.c, tests/fuzz/fuzz_frame.c
 */
#ifndef INFERD_SUP_API_FRAME_H
#define INFERD_SUP_API_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sup_status.h"

#define SUP_FRAME_TYPE "application/vnd.antfly.attachments.v1"
#define SUP_FRAME_META_MAX (16u << 20) /* bytes of JSON */
#define SUP_FRAME_ATTACHMENTS_MAX 1024u
#define SUP_FRAME_MIME_MAX 1024u

struct sup_attachment {
    const char *mime; /* [n_mime], as it came */
    size_t n_mime;
    const uint8_t *data; /* [n_bytes] */
    size_t n_bytes;
    bool used; /* by the request; the reader of media sets it */
};

struct sup_api_frame {
    const char *meta; /* [n_meta], not NUL-ended */
    size_t n_meta;
    struct sup_attachment *att; /* NULL when there is none */
    uint32_t n_att;
    void *own; /* the bytes, after _own */
};

/* Reads the n bytes of a body; *out borrows them. false: *f, and *out is untouched. */
bool sup_api_frame_read(struct sup_api_frame *out, const void *body, size_t n, struct sup_fail *f);
/* The body is about to go: copies the attachments (not the metadata). false: no memory. */
bool sup_api_frame_own(struct sup_api_frame *fr);
void sup_api_frame_deinit(struct sup_api_frame *fr);

#endif
