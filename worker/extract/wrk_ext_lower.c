/* wrk_ext_lower.c - lower case as Python's str.lower makes it.
 *
 * Character by character, but for two: U+0130 becomes i and a dot above, and a capital sigma that
 * ends a word becomes the final one. Source: Unicode 15, 3.13 and SpecialCasing.txt.
 * Tests: tests/worker/test_wrk_extract.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <utf8proc.h>

#define SIGMA 0x3A3u

/* Word_Break MidLetter, MidNumLet, Single_Quote. */
static bool is_mid(uint32_t c)
{
    static const uint32_t mid[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,
                                   0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                   0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};

    for (size_t i = 0; i < sizeof(mid) / sizeof(*mid); i++)
        if (c == mid[i])
            return true;
    return false;
}

static bool is_ignorable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return is_mid(c);
    }
}

/* Of those that are not ignorable. */
static bool is_cased(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return true;
    default:
        /* Other_Lowercase and Other_Uppercase */
        return c == 0xAA || c == 0xBA || (c >= 0x2160 && c <= 0x217F) ||
               (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

static utf8proc_ssize_t next(const uint8_t *s, size_t n, uint32_t *c)
{
    utf8proc_int32_t v = 0;
    utf8proc_ssize_t k = utf8proc_iterate(s, (utf8proc_ssize_t)n, &v);

    *c = (uint32_t)v;
    return k > 0 ? k : 1;
}

/* Is the sigma at [i, i + 2) behind a cased letter and before none? */
static bool is_final(const uint8_t *s, size_t n, size_t i)
{
    size_t p = i;
    uint32_t c = 0;
    bool any = false;

    while (p > 0) {
        size_t end = p--;

        while (p > 0 && (s[p] & 0xC0) == 0x80)
            p--;
        next(s + p, end - p, &c);
        if (!is_ignorable(c)) {
            any = true;
            break;
        }
    }
    if (!any || !is_cased(c))
        return false;
    for (p = i + 2; p < n;) {
        p += (size_t)next(s + p, n - p, &c);
        if (!is_ignorable(c))
            return !is_cased(c);
    }
    return true;
}

enum rc wrk_lower(const char *str, size_t n, char **out, size_t *cap, size_t *n_out,
                  struct rc_err *err)
{
    const uint8_t *s = (const uint8_t *)str;
    uint8_t *to;
    size_t i = 0, k = 0;

    /* no lower case takes more than three bytes for two, or one */
    if (n > SIZE_MAX / 4 || 3 * n + 4 > *cap) {
        char *p = n > SIZE_MAX / 4 ? NULL : realloc(*out, 3 * n + 4);

        if (p == NULL)
            return rc_fail(err, RC_NOMEM, "no memory for a text of %zu bytes", n);
        *out = p;
        *cap = 3 * n + 4;
    }
    to = (uint8_t *)*out;
    while (i < n) {
        uint32_t c;
        size_t len;

        if (s[i] < 0x80) {
            to[k++] = s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i];
            i++;
            continue;
        }
        len = (size_t)next(s + i, n - i, &c);
        if (c == 0x130) {
            to[k++] = 'i';
            to[k++] = 0xCC;
            to[k++] = 0x87;
        } else {
            utf8proc_int32_t low = c == SIGMA ? is_final(s, n, i) ? 0x3C2 : 0x3C3
                                              : utf8proc_tolower((utf8proc_int32_t)c);

            k += (size_t)utf8proc_encode_char(low, to + k);
        }
        i += len;
    }
    *n_out = k;
    return RC_OK;
}
