/* sup_api_frame.c - framed attachments (see sup_api_frame.h).
 *
 * Reads foreign bytes: each length is held against what is left of the body before
 * it is used, reserved words must be 0 and the last file must end with the body.
 * Knows nothing of what the JSON or the files mean.
 * Change with care: the order of the checks. Tests:
 * tests/supervisor/test_sup_api_frame.c, tests/fuzz/fuzz_frame.c
 */
#include "sup_api_frame.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 24, ROW_BYTES = 16 };

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static bool wrong(struct sup_fail *f, enum sup_code code, const char *what, uint64_t got,
                  const char *want, uint64_t limit)
{
    sup_fail_set(f, code, "", "framed body: %s is %llu, expected %s %llu", what,
                 (unsigned long long)got, want, (unsigned long long)limit);
    return false;
}

static bool read_head(struct sup_api_frame *fr, const uint8_t *p, size_t n, struct sup_fail *f)
{
    uint64_t n_meta;
    uint32_t n_att;

    if (n < HEAD_BYTES)
        return wrong(f, SUP_E_INVALID_REQUEST, "its length", n, "at least", HEAD_BYTES);
    if (memcmp(p, "AFATT001", 8) != 0) {
        sup_fail_set(
            f, SUP_E_INVALID_REQUEST, "",
            "framed body: its first 8 bytes are not \"AFATT001\", as Content-Type " SUP_FRAME_TYPE
            " has them");
        return false;
    }
    n_meta = get64(p + 8);
    n_att = get32(p + 16);
    if (get32(p + 20) != 0)
        return wrong(f, SUP_E_INVALID_REQUEST, "the reserved word", get32(p + 20), "the value", 0);
    if (n_meta > SUP_FRAME_META_MAX)
        return wrong(f, SUP_E_CONTENT_TOO_LARGE, "the length of the metadata", n_meta, "at most",
                     SUP_FRAME_META_MAX);
    if (n_att > SUP_FRAME_ATTACHMENTS_MAX)
        return wrong(f, SUP_E_CONTENT_TOO_LARGE, "the number of attachments", n_att, "at most",
                     SUP_FRAME_ATTACHMENTS_MAX);
    n -= HEAD_BYTES;
    if (n / ROW_BYTES < n_att || n - (size_t)n_att * ROW_BYTES < n_meta)
        return wrong(f, SUP_E_INVALID_REQUEST, "what is behind the first 24 bytes", n, "at least",
                     (uint64_t)n_att * ROW_BYTES + n_meta);
    fr->n_att = n_att;
    fr->n_meta = (size_t)n_meta;
    fr->meta = (const char *)p + HEAD_BYTES + (size_t)n_att * ROW_BYTES;
    return true;
}

/* The i-th attachment from row, at *at of which *left bytes are there. */
static bool read_one(struct sup_attachment *a, uint32_t i, const uint8_t *row, const uint8_t **at,
                     size_t *left, struct sup_fail *f)
{
    uint32_t n_mime = get32(row);
    uint64_t n_data = get64(row + 8);

    if (get32(row + 4) != 0 || n_mime == 0 || n_mime > SUP_FRAME_MIME_MAX) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "",
                     "framed body: attachment %u has %u bytes of MIME type and the reserved word "
                     "%u, expected 1 to %u and 0",
                     i, n_mime, get32(row + 4), SUP_FRAME_MIME_MAX);
        return false;
    }
    if (n_mime > *left || n_data > *left - n_mime) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "",
                     "framed body: attachment %u is %u + %llu bytes, %zu are left", i, n_mime,
                     (unsigned long long)n_data, *left);
        return false;
    }
    a->mime = (const char *)*at;
    a->n_mime = n_mime;
    a->data = *at + n_mime;
    a->n_bytes = (size_t)n_data;
    *at += n_mime + a->n_bytes;
    *left -= n_mime + a->n_bytes;
    return true;
}

bool sup_api_frame_read(struct sup_api_frame *out, const void *body, size_t n, struct sup_fail *f)
{
    struct sup_api_frame fr = {0};
    const uint8_t *p = body, *at;
    size_t left;

    if (!read_head(&fr, p, n, f))
        return false;
    at = (const uint8_t *)fr.meta + fr.n_meta;
    left = n - (size_t)(at - p);
    if (fr.n_att && !(fr.att = calloc(fr.n_att, sizeof(*fr.att))))
        return sup_fail_no_memory(f);
    for (uint32_t i = 0; i < fr.n_att; i++)
        if (!read_one(&fr.att[i], i, p + HEAD_BYTES + (size_t)i * ROW_BYTES, &at, &left, f)) {
            free(fr.att);
            return false;
        }
    if (left) {
        free(fr.att);
        return wrong(f, SUP_E_INVALID_REQUEST, "the number of bytes behind the last attachment",
                     left, "the value", 0);
    }
    *out = fr;
    return true;
}

bool sup_api_frame_own(struct sup_api_frame *fr)
{
    const struct sup_attachment *last;
    const char *from;
    size_t n;
    char *copy;

    if (fr->n_att == 0 || fr->own)
        return true;
    last = &fr->att[fr->n_att - 1];
    from = fr->att[0].mime;
    n = (size_t)((const char *)last->data + last->n_bytes - from);
    if (!(copy = malloc(n)))
        return false;
    memcpy(copy, from, n);
    for (uint32_t i = 0; i < fr->n_att; i++) {
        struct sup_attachment *a = &fr->att[i];

        a->data = (const uint8_t *)copy + ((const char *)a->data - from);
        a->mime = copy + (a->mime - from);
    }
    fr->own = copy;
    fr->meta = NULL;
    fr->n_meta = 0;
    return true;
}

void sup_api_frame_deinit(struct sup_api_frame *fr)
{
    free(fr->att);
    free(fr->own);
    memset(fr, 0, sizeof(*fr));
}
