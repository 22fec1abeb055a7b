/* wrk_gr_text.c - characters and numbers in the texts of grammars, for all their readers.
 *
 * Each reads at s[*at], of n bytes, and moves *at only over what it took. Bytes come from
 * outside: nothing is read behind n. Tests: tests/worker/test_wrk_gr_gbnf.c, test_wrk_gr_regex.c
 */
#include "wrk_gr_impl.h"

uint32_t gr_utf8(const char *s, size_t n, size_t *at)
{
    const unsigned char *p = (const unsigned char *)s + *at;
    size_t left = n - *at, len;
    uint32_t c;

    if (left == 0)
        return GR_NONE;
    if (p[0] < 0x80) {
        (*at)++;
        return p[0];
    }
    len = p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    if (len == 0 || p[0] >= 0xf5 || len > left)
        return GR_NONE;
    c = p[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return GR_NONE;
        c = c << 6 | (p[i] & 0x3f);
    }
    if ((len == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
        (len == 4 && (c < 0x10000 || c > 0x10ffff)))
        return GR_NONE;
    *at += len;
    return c;
}

unsigned gr_utf8_put(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (c & 63));
    return 4;
}

uint32_t gr_utf8_count(const char *s, size_t n)
{
    uint32_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)s[i] & 0xc0) != 0x80;
    return k;
}

uint32_t gr_hex(const char *s, size_t n, size_t *at, unsigned digits)
{
    uint32_t v = 0;
    size_t i = *at;

    for (; digits > 0; digits--, i++) {
        char c = i < n ? s[i] : '\0';

        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            return GR_NONE;
    }
    *at = i;
    return v;
}

uint32_t gr_decimal(const char *s, size_t n, size_t *at)
{
    uint64_t v = 0;
    size_t from = *at;

    for (; *at < n && s[*at] >= '0' && s[*at] <= '9'; ++*at)
        v = v < 100000000u ? v * 10 + (uint64_t)(s[*at] - '0') : 1000000000u;
    return *at > from ? (uint32_t)v : GR_NONE;
}
