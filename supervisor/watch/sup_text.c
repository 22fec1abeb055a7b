/* sup_text.c - decoder of untrusted UTF-8. No allocation, no state.
 * Never reads past n. Tests: tests/supervisor/test_sup_log.c */
#include "sup_text.h"

/* Length announced by a lead byte and the smallest value that length may carry;
 * 0 for bytes that cannot lead. */
static unsigned lead_len(unsigned char c, uint32_t *min)
{
    if (c < 0x80) {
        *min = 0;
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        *min = 0x80;
        return 2;
    }
    if (c >= 0xE0 && c <= 0xEF) {
        *min = 0x800;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        *min = 0x10000;
        return 4;
    }
    return 0;
}

size_t sup_text_next(const char *s, size_t n, uint32_t *cp, bool *ok)
{
    const unsigned char *u = (const unsigned char *)s;
    uint32_t min, v;
    unsigned len = lead_len(u[0], &min);

    if (ok)
        *ok = false;
    *cp = SUP_TEXT_BAD;
    if (len == 0 || len > n)
        return 1;
    v = len == 1 ? u[0] : u[0] & (0x7Fu >> len);
    for (unsigned i = 1; i < len; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 1;
        v = v << 6 | (u[i] & 0x3F);
    }
    if (v < min || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
        return 1;
    *cp = v;
    if (ok)
        *ok = true;
    return len;
}

size_t sup_text_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool sup_text_is_partial(const char *s, size_t n)
{
    uint32_t min;
    unsigned len = n ? lead_len((unsigned char)s[0], &min) : 0;

    if (len == 0 || n >= len)
        return false;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80)
            return false;
    return true;
}
