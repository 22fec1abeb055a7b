/* sup_trace.c - W3C Trace Context, read and written (see sup_trace.h).
 *
 * Every byte comes from a client; nothing is read behind a NUL. Section numbers are those
 * of the W3C recommendation "Trace Context" (level 2).
 * Tests: tests/supervisor/test_sup_trace.c, tests/fuzz/fuzz_trace.c
 */
#include "sup_trace.h"

#include <string.h>

#define PARENT_BYTES 55 /* of version 00 */
#define KEY_MAX 256
#define VALUE_MAX 256

/* Lower case only (3.2): upper case would make two spellings of one id. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_read(const char *s, uint8_t *out, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        int hi = hex_digit(s[2 * i]), lo = hi < 0 ? -1 : hex_digit(s[2 * i + 1]);

        if (lo < 0)
            return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

static bool is_zero(const uint8_t *p, size_t n)
{
    while (n > 0 && p[n - 1] == 0)
        n--;
    return n == 0;
}

bool sup_trace_is(const struct sup_trace *t)
{
    return !is_zero(t->trace_id, sizeof(t->trace_id));
}

bool sup_trace_parse(const char *value, struct sup_trace *out)
{
    size_t n = strnlen(value, PARENT_BYTES + 1);
    uint8_t version, flags;
    struct sup_trace t = *out;

    if (n < PARENT_BYTES || value[2] != '-' || value[35] != '-' || value[52] != '-')
        return false;
    if (!hex_read(value, &version, 1) || version == 0xff)
        return false;
    /* a later version may have more fields behind another dash (3.2.4) */
    if (n > PARENT_BYTES && (version == 0 || value[PARENT_BYTES] != '-'))
        return false;
    if (!hex_read(value + 3, t.trace_id, sizeof(t.trace_id)) ||
        !hex_read(value + 36, t.parent_id, sizeof(t.parent_id)) || !hex_read(value + 53, &flags, 1))
        return false;
    if (is_zero(t.trace_id, sizeof(t.trace_id)) || is_zero(t.parent_id, sizeof(t.parent_id)))
        return false;
    t.flags = flags & SUP_TRACE_SAMPLED; /* other bits mean nothing yet (3.2.3.1) */
    *out = t;
    return true;
}

void sup_trace_hex(const uint8_t *id, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[id[i] >> 4];
        out[2 * i + 1] = digits[id[i] & 15];
    }
    out[2 * n] = '\0';
}

void sup_trace_print(const struct sup_trace *t, char out[SUP_TRACE_BYTES])
{
    memcpy(out, "00-", 3);
    sup_trace_hex(t->trace_id, sizeof(t->trace_id), out + 3);
    out[35] = '-';
    sup_trace_hex(t->span_id, sizeof(t->span_id), out + 36);
    out[52] = '-';
    sup_trace_hex(&t->flags, 1, out + 53);
}

/* ------------------------------------------------------------------ tracestate */

static bool is_key(const char *s, size_t n)
{
    if (n == 0 || n > KEY_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool first = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');

        if (!first && (i == 0 || !memchr("_-*/@", c, 5)))
            return false;
    }
    return true;
}

/* Printable letters but for the two that separate, and no space at the end (3.3.2.2.2). */
static bool is_value(const char *s, size_t n)
{
    if (n == 0 || n > VALUE_MAX || s[n - 1] == ' ')
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] > 0x7e || s[i] == ',' || s[i] == '=')
            return false;
    return true;
}

struct key {
    const char *s;
    size_t n;
};

static bool is_new(const struct key *keys, unsigned n, struct key k)
{
    for (unsigned i = 0; i < n; i++)
        if (keys[i].n == k.n && memcmp(keys[i].s, k.s, k.n) == 0)
            return false;
    return true;
}

bool sup_trace_state_ok(const char *value)
{
    size_t left = strnlen(value, SUP_TRACE_STATE + 1);
    struct key keys[SUP_TRACE_MEMBERS];
    unsigned n_keys = 0;
    const char *at = value;

    if (left == 0 || left > SUP_TRACE_STATE)
        return false;
    while (left > 0) {
        const char *comma = memchr(at, ',', left);
        size_t n = comma ? (size_t)(comma - at) : left, used = n + (comma ? 1 : 0);
        const char *s = at, *eq;

        at += used;
        left -= used;
        while (n > 0 && (*s == ' ' || *s == '\t')) {
            s++;
            n--;
        }
        while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
            n--;
        if (n == 0)
            continue; /* empty entries are allowed (3.3.1.1) */
        eq = memchr(s, '=', n);
        if (!eq || n_keys == SUP_TRACE_MEMBERS)
            return false;
        keys[n_keys] = (struct key){s, (size_t)(eq - s)};
        if (!is_key(s, keys[n_keys].n) || !is_value(eq + 1, n - keys[n_keys].n - 1) ||
            !is_new(keys, n_keys, keys[n_keys]))
            return false;
        n_keys++;
    }
    return n_keys > 0;
}
