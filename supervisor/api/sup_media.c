/* sup_media.c - files inside a request (see sup_media.h).
 *
 * Must never look into a file, open a connection or quote a file's bytes in a
 * message. Tests: tests/supervisor/test_sup_api_frame.c (base64, MIME types),
 * tests/supervisor/test_sup_api_embed_media.c, tests/fuzz/fuzz_api.c, tests/fuzz/fuzz_frame.c
 */
#include "sup_media.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sup_api_frame.h"
#include "sup_fields.h"

/* ------------------------------------------------------------------- base64 */

/* All clients wait while a file is decoded: 100 MiB take 0.12 s here and 1.0 s in
 * sodium_base642bin, whose time does not depend on what it reads. Both refuse the same.
 *
 * 64 + the value of a digit; 0 = none. */
static const uint8_t digits[256] = {
    ['A'] = 64,  ['B'] = 65,  ['C'] = 66,  ['D'] = 67,  ['E'] = 68,  ['F'] = 69,  ['G'] = 70,
    ['H'] = 71,  ['I'] = 72,  ['J'] = 73,  ['K'] = 74,  ['L'] = 75,  ['M'] = 76,  ['N'] = 77,
    ['O'] = 78,  ['P'] = 79,  ['Q'] = 80,  ['R'] = 81,  ['S'] = 82,  ['T'] = 83,  ['U'] = 84,
    ['V'] = 85,  ['W'] = 86,  ['X'] = 87,  ['Y'] = 88,  ['Z'] = 89,  ['a'] = 90,  ['b'] = 91,
    ['c'] = 92,  ['d'] = 93,  ['e'] = 94,  ['f'] = 95,  ['g'] = 96,  ['h'] = 97,  ['i'] = 98,
    ['j'] = 99,  ['k'] = 100, ['l'] = 101, ['m'] = 102, ['n'] = 103, ['o'] = 104, ['p'] = 105,
    ['q'] = 106, ['r'] = 107, ['s'] = 108, ['t'] = 109, ['u'] = 110, ['v'] = 111, ['w'] = 112,
    ['x'] = 113, ['y'] = 114, ['z'] = 115, ['0'] = 116, ['1'] = 117, ['2'] = 118, ['3'] = 119,
    ['4'] = 120, ['5'] = 121, ['6'] = 122, ['7'] = 123, ['8'] = 124, ['9'] = 125, ['+'] = 126,
    ['/'] = 127,
};

bool sup_base64_decode(char *s, size_t n, size_t *out_n, size_t *bad)
{
    const uint8_t *in = (const uint8_t *)s;
    uint8_t *to = (uint8_t *)s;
    size_t pad = n && s[n - 1] == '=' ? 1 + (n > 1 && s[n - 2] == '=') : 0, i, k;
    uint32_t w;

    for (i = 0; i + 4 <= n - (pad ? 4 : 0) && n >= 4; i += 4) {
        uint8_t a = digits[in[i]], b = digits[in[i + 1]], c = digits[in[i + 2]],
                d = digits[in[i + 3]];

        if (!(a & b & c & d))
            break;
        w = (uint32_t)(a & 63) << 18 | (uint32_t)(b & 63) << 12 | (uint32_t)(c & 63) << 6 |
            (uint32_t)(d & 63);
        *to++ = (uint8_t)(w >> 16);
        *to++ = (uint8_t)(w >> 8);
        *to++ = (uint8_t)w;
    }
    if (i == n) {
        *out_n = (size_t)(to - (uint8_t *)s);
        return true;
    }
    /* the last four characters, or the place of the mistake */
    w = 0;
    for (k = 0; k < 4 - pad && i + k < n && digits[in[i + k]]; k++)
        w |= (uint32_t)(digits[in[i + k]] & 63) << (18 - 6 * k);
    *bad = i + k < n ? i + k : n;
    if (!pad || k != 4 - pad || n - i != 4)
        return false;
    if (w & (pad == 1 ? 0xFFu : 0xFFFFu)) {
        *bad = i + k - 1;
        return false;
    }
    *to++ = (uint8_t)(w >> 16);
    if (pad == 1)
        *to++ = (uint8_t)(w >> 8);
    *out_n = (size_t)(to - (uint8_t *)s);
    return true;
}

/* --------------------------------------------------------------- MIME types */

static bool token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr("!#$&-^_.+", c) != NULL);
}

bool sup_mime_plain(const char *s, size_t n, char out[SUP_MIME_BYTES])
{
    const char *end = memchr(s, ';', n);
    size_t slash = 0;

    if (end)
        n = (size_t)(end - s);
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    while (n && (*s == ' ' || *s == '\t')) {
        s++;
        n--;
    }
    if (n >= SUP_MIME_BYTES)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c >= 'A' && c <= 'Z')
            c = (unsigned char)(c + 32);
        if (c == '/' && slash == 0 && i > 0 && i + 1 < n)
            slash = i;
        else if (!token_char(c))
            return false;
        out[i] = (char)c;
    }
    out[n] = '\0';
    return slash > 0;
}

/* ------------------------------------------------------------------- values */

static bool begins(const char *s, size_t n, const char *with)
{
    size_t k = strlen(with);

    return n >= k && strncasecmp(s, with, k) == 0;
}

static bool base64_value(char *s, size_t n, const char *name, struct sup_media *out,
                         struct sup_fail *f)
{
    size_t bad = 0;

    if (sup_base64_decode(s, n, &out->n, &bad)) {
        out->data = (const uint8_t *)s;
        return true;
    }
    sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                 "field '%s': not base64 at character %zu of %zu, expected the standard alphabet "
                 "with padding and nothing else",
                 name, bad, n);
    return false;
}

/* Behind "data:": [type][;parameters][;base64],bytes. Without ;base64 the rest is taken
 * as it stands. */
static bool data_url(char *s, size_t n, const char *name, struct sup_media *out, struct sup_fail *f)
{
    char *comma = memchr(s, ',', n);
    size_t head = comma ? (size_t)(comma - s) : 0;
    bool base64 = head >= 7 && strncasecmp(comma - 7, ";base64", 7) == 0;

    if (!comma) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': a data: URL without a comma, expected data:TYPE;base64,BYTES",
                     name);
        return false;
    }
    if (base64)
        head -= 7;
    if (head == 0 || *s == ';') {
        snprintf(out->mime, sizeof(out->mime), "%s",
                 base64 ? "application/octet-stream" : "text/plain");
    } else if (!sup_mime_plain(s, head, out->mime)) {
        sup_fail_set(
            f, SUP_E_INVALID_REQUEST, name,
            "field '%s': the data: URL names no MIME type, expected data:TYPE;base64,BYTES", name);
        return false;
    }
    n -= (size_t)(comma + 1 - s);
    s = comma + 1;
    if (base64)
        return base64_value(s, n, name, out, f);
    out->data = (const uint8_t *)s;
    out->n = n;
    return true;
}

/* "attachment:INDEX": plain digits, so that each file has one name. */
static bool attachment(const char *s, size_t n, const char *name, const struct sup_api_frame *frame,
                       struct sup_media *out, struct sup_fail *f)
{
    uint32_t n_att = frame ? frame->n_att : 0, idx = 0;
    struct sup_attachment *a;
    bool ok = n > 0 && n <= 4 && (n == 1 || s[0] != '0');

    for (size_t i = 0; ok && i < n; i++) {
        ok = s[i] >= '0' && s[i] <= '9';
        idx = idx * 10 + (uint32_t)(s[i] - '0');
    }
    if (!ok || idx >= n_att) {
        if (n_att)
            sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                         "field '%s': \"attachment:%.*s\", expected attachment:0 to attachment:%u",
                         name, n < 20 ? (int)n : 20, s, n_att - 1);
        else
            sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                         "field '%s': \"attachment:%.*s\", but the request carries no attachments "
                         "(Content-Type " SUP_FRAME_TYPE ")",
                         name, n < 20 ? (int)n : 20, s);
        return false;
    }
    a = &frame->att[idx];
    a->used = true;
    if (!sup_mime_plain(a->mime, a->n_mime, out->mime)) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': attachment %u has no MIME type like image/png", name, idx);
        return false;
    }
    out->data = a->data;
    out->n = a->n_bytes;
    return true;
}

static bool remote(const char *s, size_t n)
{
    static const char *const schemes[] = {"http:", "https:", "file:", "s3:"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (begins(s, n, schemes[i]))
            return true;
    return false;
}

bool sup_media_read(json_t *j, bool url, const char *name, const struct sup_api_frame *frame,
                    struct sup_media *out, struct sup_fail *f)
{
    /* the tree is this request's own: its text is decoded where it stands */
    char *s = (char *)(uintptr_t)json_string_value(j);
    size_t n = json_string_length(j);

    out->mime[0] = '\0';
    if (!s || n == 0) {
        sup_field_bad(f, name, j,
                      url ? "a data: URL or attachment:INDEX"
                          : "base64, a data: URL or attachment:INDEX");
        return false;
    }
    if (begins(s, n, "data:"))
        return data_url(s + 5, n - 5, name, out, f);
    if (begins(s, n, "attachment:"))
        return attachment(s + 11, n - 11, name, frame, out, f);
    if (remote(s, n)) {
        sup_fail_set(f, SUP_E_CONTENT_NOT_ALLOWED, name,
                     "field '%s': remote media is off: this server fetches no %.*s URLs, expected "
                     "the file itself in a data: URL or an attachment",
                     name, (int)((const char *)memchr(s, ':', n) - s), s);
        return false;
    }
    if (!url)
        return base64_value(s, n, name, out, f);
    sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                 "field '%s': a URL of an unknown kind, expected a data: URL or attachment:INDEX",
                 name);
    return false;
}
