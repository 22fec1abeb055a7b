/* sup_cmd_embed_item.c - texts and files of `inferd embed` as parts of a request.
 *
 * A file's type is told by its first bytes, never by its name; whether it is whole is
 * the server's to find out. Tests: tests/e2e/cli_embed.py
 */
#include "sup_cmd_embed.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_file.h"
#include "sup_common.h"
#include "sup_json.h"
#include "sup_media.h"

/* The first bytes, and those at 8 where more are needed. */
static const struct magic {
    const char *mime, *first, *at8;
} magics[] = {
    {"image/png", "\x89PNG\r\n\x1a\n", ""},
    {"image/jpeg", "\xff\xd8\xff", ""},
    {"image/gif", "GIF8", ""},
    {"image/webp", "RIFF", "WEBP"},
    {"audio/wav", "RIFF", "WAVE"},
    {"audio/flac", "fLaC", ""},
    {"audio/ogg", "OggS", ""},
    {"audio/mpeg", "ID3", ""},
};

static bool begins(const char *s, size_t n, size_t at, const char *with)
{
    size_t k = strlen(with);

    return n >= at && n - at >= k && memcmp(s + at, with, k) == 0;
}

static const char *mime_of(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
        if (begins(s, n, 0, magics[i].first) && begins(s, n, 8, magics[i].at8))
            return magics[i].mime;
    /* a frame of layer III, of any version */
    return n >= 2 && (uint8_t)s[0] == 0xff && (s[1] & 0xe6) == 0xe2 ? "audio/mpeg" : "";
}

static enum rc no_memory(struct sup_embed_item *it, struct rc_err *err)
{
    sup_embed_item_deinit(it);
    return rc_fail(err, RC_NOMEM, "out of memory");
}

enum rc sup_embed_item_text(struct sup_embed_item *it, const char *text, bool object,
                            struct rc_err *err)
{
    memset(it, 0, sizeof(*it));
    it->kind = "text";
    if (!(it->label = sup_valid_dup(text, strlen(text))))
        return no_memory(it, err);
    it->part = object ? json_pack("{s:s, s:s}", "type", "text", "text", it->label)
                      : json_string(it->label);
    return it->part ? RC_OK : no_memory(it, err);
}

static enum rc file_part(struct sup_embed_item *it, const char *path, const char *mime,
                         const char *bytes, size_t n, struct rc_err *err)
{
    struct sup_json base64 = {0};

    it->n_bytes = n;
    it->label = sup_valid_dup(path, strlen(path));
    sup_json_base64(&base64, bytes, n);
    if (it->label && !base64.failed)
        it->part = json_pack("{s:s, s:s, s:s%}", "type", "media", "mime_type", mime, "data",
                             base64.p, base64.n);
    sup_json_deinit(&base64);
    return it->part ? RC_OK : no_memory(it, err);
}

enum rc sup_embed_item_file(struct sup_embed_item *it, const char *kind, const char *path,
                            struct rc_err *err)
{
    const char *mime;
    char *bytes = NULL;
    size_t n = 0;
    enum rc rc;

    memset(it, 0, sizeof(*it));
    if ((rc = sup_file_read(path, SUP_MEDIA_MAX, false, &bytes, &n, err)) != RC_OK)
        return rc;
    mime = mime_of(bytes, n);
    if (strncmp(mime, kind, strlen(kind)) != 0) {
        free(bytes);
        return rc_fail(err, RC_FORMAT, "'%.200s' is %s, expected %s", path,
                       *mime ? mime : "no known picture or sound",
                       strcmp(kind, "image") == 0 ? "a PNG, JPEG, GIF or WebP picture"
                                                  : "a WAV, FLAC, Ogg or MP3 sound");
    }
    it->kind = kind;
    rc = file_part(it, path, mime, bytes, n, err);
    free(bytes);
    return rc;
}

enum rc sup_embed_item_page(struct sup_embed_item *it, const char *path, unsigned page,
                            const char *png, size_t n, struct rc_err *err)
{
    memset(it, 0, sizeof(*it));
    it->kind = "pdf";
    it->page = page;
    return file_part(it, path, "image/png", png, n, err);
}

void sup_embed_item_deinit(struct sup_embed_item *it)
{
    free(it->label);
    json_decref(it->part);
    memset(it, 0, sizeof(*it));
}
