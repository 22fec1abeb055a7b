/* sup_json.c - a growing byte buffer that speaks JSON (see sup_json.h).
 *
 * Knows nothing of requests. Always true: n <= cap <= limit; after `failed` the
 * content is not to be sent. Change with care: sup_json_f32, whose digits must read
 * back as the same float. Tests: tests/supervisor/test_sup_api_json.c
 */
#include "sup_json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_text.h"

void sup_json_deinit(struct sup_json *o)
{
    free(o->p);
    memset(o, 0, sizeof(*o));
}

void sup_json_reset(struct sup_json *o)
{
    o->n = 0;
    o->failed = false;
}

/* Room for `more` bytes, or NULL and failed. */
static char *room(struct sup_json *o, size_t more)
{
    size_t limit = o->limit ? o->limit : SUP_JSON_MAX;
    size_t cap;
    char *p;

    if (o->failed)
        return NULL;
    if (more <= o->cap - o->n)
        return o->p + o->n;
    if (more > limit || o->n > limit - more) {
        o->failed = true;
        return NULL;
    }
    cap = o->cap ? o->cap : limit < 256 ? limit : 256;
    while (cap < o->n + more)
        cap = cap > limit / 2 ? limit : cap * 2;
    p = realloc(o->p, cap);
    if (!p) {
        o->failed = true;
        return NULL;
    }
    o->p = p;
    o->cap = cap;
    return o->p + o->n;
}

void sup_json_put(struct sup_json *o, const void *bytes, size_t n_bytes)
{
    char *to;

    if (n_bytes == 0 || !(to = room(o, n_bytes)))
        return;
    memcpy(to, bytes, n_bytes);
    o->n += n_bytes;
}

void sup_json_str(struct sup_json *o, const char *s)
{
    sup_json_put(o, s, strlen(s));
}

void sup_json_fmt(struct sup_json *o, const char *fmt, ...)
{
    char tmp[1024];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(tmp, sizeof(tmp), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(tmp)) {
        o->failed = true; /* only for short fixed forms: anything longer is our mistake */
        return;
    }
    sup_json_put(o, tmp, (size_t)n);
}

size_t sup_utf8_len(const unsigned char *s, size_t n)
{
    uint32_t cp;
    bool ok = false;
    size_t len = n ? sup_text_next((const char *)s, n, &cp, &ok) : 0;

    return ok ? len : 0;
}

static void escape_one(struct sup_json *o, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};

    switch (c) {
    case '"':
        sup_json_put(o, "\\\"", 2);
        break;
    case '\\':
        sup_json_put(o, "\\\\", 2);
        break;
    case '\n':
        sup_json_put(o, "\\n", 2);
        break;
    case '\r':
        sup_json_put(o, "\\r", 2);
        break;
    case '\t':
        sup_json_put(o, "\\t", 2);
        break;
    default:
        sup_json_put(o, u, 6);
    }
}

void sup_json_text(struct sup_json *o, const void *text, size_t n)
{
    const unsigned char *s = text;
    size_t from = 0, i = 0, len;

    while (i < n) {
        unsigned char c = s[i];

        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\' && c != 0x7F) {
            i++;
            continue;
        }
        if (c >= 0x80 && (len = sup_utf8_len(s + i, n - i)) != 0) {
            i += len;
            continue;
        }
        sup_json_put(o, s + from, i - from);
        if (c >= 0x80)
            sup_json_put(o, "\xEF\xBF\xBD", 3);
        else
            escape_one(o, c);
        from = ++i;
    }
    if (n > from) /* nothing may be given as NULL */
        sup_json_put(o, s + from, n - from);
}

void sup_json_quoted(struct sup_json *o, const char *s)
{
    if (!s) {
        sup_json_put(o, "null", 4);
        return;
    }
    sup_json_put(o, "\"", 1);
    sup_json_text(o, s, strlen(s));
    sup_json_put(o, "\"", 1);
}

void sup_json_u64(struct sup_json *o, uint64_t v)
{
    char tmp[20];
    size_t i = sizeof(tmp);

    do {
        tmp[--i] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    sup_json_put(o, tmp + i, sizeof(tmp) - i);
}

static void f32_slow(struct sup_json *o, float v)
{
    char tmp[32];

    if (!isfinite(v)) {
        sup_json_put(o, "null", 4);
        return;
    }
    sup_json_put(o, tmp, (size_t)snprintf(tmp, sizeof(tmp), "%.9g", (double)v));
}

/* Powers of ten from 10^0; exact in a double. */
static const double tens[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6, 1e7,
                              1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};

/* The last dec decimal digits of x, up to `end`; returns where they begin. */
static char *write_digits(char *end, uint32_t x, unsigned dec)
{
    static const char two[] = "00010203040506070809101112131415161718192021222324"
                              "25262728293031323334353637383940414243444546474849"
                              "50515253545556575859606162636465666768697071727374"
                              "75767778798081828384858687888990919293949596979899";

    for (; dec >= 2; dec -= 2, x /= 100)
        memcpy(end -= 2, two + 2 * (x % 100), 2);
    if (dec)
        *--end = (char)('0' + x % 10);
    return end;
}

/* 2^e of a small e, without a call. */
static double two_to(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

/* x with as few digits as lie within half of t. */
static uint32_t shorter(uint32_t x, double t, double half, unsigned *dec)
{
    double scale = 10;

    for (uint32_t y = (x + 5) / 10; *dec > 1 && fabs(y * scale - t) < half; y = (x + 5) / 10) {
        x = y;
        scale *= 10;
        --*dec;
    }
    return x;
}

/* An embedding answer has up to a million of these while all clients wait, and printf
 * needs 300 ns for one: a value between 1e-5 and 1e6 is scaled to an integer of 9
 * digits instead, which reads back equal; the product is off by at most 2^-53 of
 * itself. Where three digits or more are not needed ("0.1") they are taken away, as
 * long as what is left lies nearer to the value than half the way to the next float;
 * looking for one or two costs more than they do. */
void sup_json_f32(struct sup_json *o, float v)
{
    /* by binary exponent, from 2^-17: the least count of decimals, 3 or more, that
     * makes 9 digits of the smallest such value */
    static const uint8_t decs[] = {14, 13, 13, 13, 12, 12, 12, 12, 11, 11, 11, 10, 10,
                                   10, 9,  9,  9,  8,  8,  8,  8,  7,  7,  7,  6,  6,
                                   6,  5,  5,  5,  5,  4,  4,  4,  3,  3,  3};
    double a = fabs((double)v), t, half;
    char tmp[32], *end = tmp + sizeof(tmp), *p;
    unsigned dec; /* digits behind the point */
    uint32_t x, whole = 0, bits;
    int e;

    if (v == 0.0f) {
        sup_json_put(o, signbit(v) ? "-0.0" : "0.0", signbit(v) ? 4 : 3);
        return;
    }
    if (!(a >= 1e-5 && a < 1e6)) {
        f32_slow(o, v);
        return;
    }
    memcpy(&bits, &v, sizeof(bits));
    e = (int)(bits >> 23 & 255) - 127;
    dec = decs[e + 17];
    if (dec > 3 && a * tens[dec - 1] >= 1e8)
        dec--;
    t = a * tens[dec];
    /* half a step; below a power of two floats lie twice as near */
    half = two_to(bits & 0x7FFFFF ? e - 24 : e - 25) * tens[dec] * 0.999;
    x = (uint32_t)(t + 0.5);
    if (fabs((x + 500) / 1000 * 1e3 - t) < half)
        x = shorter(x, t, half, &dec);
    if (a >= 1) {
        uint32_t unit = (uint32_t)tens[dec];

        whole = x / unit;
        x %= unit;
    }
    p = write_digits(end, x, dec);
    *--p = '.';
    do {
        *--p = (char)('0' + whole % 10);
        whole /= 10;
    } while (whole);
    if (v < 0)
        *--p = '-';
    sup_json_put(o, p, (size_t)(end - p));
}

void sup_json_f64(struct sup_json *o, double v)
{
    char s[32];

    if (!isfinite(v)) {
        sup_json_str(o, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    sup_json_str(o, s);
}

void sup_json_base64(struct sup_json *o, const void *bytes, size_t n)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = bytes;
    char *to;
    size_t i;

    if (n > SUP_JSON_MAX) {
        o->failed = true;
        return;
    }
    if (n == 0 || !(to = room(o, (n + 2) / 3 * 4)))
        return;
    o->n += (n + 2) / 3 * 4;
    for (i = 0; i + 2 < n; i += 3) {
        uint32_t w = (uint32_t)s[i] << 16 | (uint32_t)s[i + 1] << 8 | s[i + 2];

        *to++ = abc[w >> 18];
        *to++ = abc[w >> 12 & 63];
        *to++ = abc[w >> 6 & 63];
        *to++ = abc[w & 63];
    }
    if (i < n) {
        uint32_t w = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0);

        *to++ = abc[w >> 18];
        *to++ = abc[w >> 12 & 63];
        *to++ = i + 1 < n ? abc[w >> 6 & 63] : '=';
        *to++ = '=';
    }
}
