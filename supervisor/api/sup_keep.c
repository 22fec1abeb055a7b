/* sup_keep.c - durations that people write; see the header.
 *
 * Always true: numbers are bounded before they are multiplied, and nothing but digits, one
 * dot, a sign in front and the units below is read. Tests: tests/supervisor/test_sup_keep.c */
#include "sup_keep.h"

#include <math.h>
#include <string.h>

#include "sup_fields.h"

#define WANT "seconds, or a duration like \"5m\" or \"1h30m\""
#define MOST_MS 1e15 /* beyond every limit, and exact as a double */

static const struct {
    const char *word;
    double ms;
} units[] = {
    {"ms", 1}, {"us", 1e-3}, {"ns", 1e-6}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3},
};

/* "12" or "1.5" at *p; false when there is no digit. */
static bool number(const char **p, double *out)
{
    double v = 0, part = 1;
    const char *begin = *p;
    bool dot = false;

    for (; (**p >= '0' && **p <= '9') || (**p == '.' && !dot && *p != begin); (*p)++) {
        if (**p == '.') {
            dot = true;
        } else if (dot) {
            v += (**p - '0') * (part /= 10);
        } else if (v < MOST_MS) {
            v = v * 10 + (**p - '0');
        }
    }
    *out = v;
    return *p != begin && (*p)[-1] != '.';
}

static double unit(const char **p)
{
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t n = strlen(units[i].word);

        if (strncmp(*p, units[i].word, n) == 0) {
            *p += n;
            return units[i].ms;
        }
    }
    return 0;
}

/* Milliseconds, negative ones as -1. */
static bool text_ms(const char *p, double *out)
{
    bool minus = *p == '-';
    double sum = 0, v, u;

    p += minus;
    if (strnlen(p, SUP_KEEP_TEXT_MAX + 1) > SUP_KEEP_TEXT_MAX || !number(&p, &v))
        return false;
    if (*p == '\0') {
        sum = v * 1e3; /* a bare number: seconds */
    } else {
        for (;;) {
            if ((u = unit(&p)) == 0)
                return false;
            sum += v * u;
            if (*p == '\0')
                break;
            if (!number(&p, &v))
                return false;
        }
    }
    *out = minus && sum > 0 ? -1 : sum;
    return true;
}

static bool json_ms(const json_t *j, double *out)
{
    if (json_is_string(j)) /* a NUL inside is not the end */
        return strlen(json_string_value(j)) == json_string_length(j) &&
               text_ms(json_string_value(j), out);
    if (!json_is_number(j))
        return false;
    *out = json_number_value(j) < 0 ? -1 : json_number_value(j) * 1e3;
    return isfinite(*out);
}

bool sup_keep_read(const json_t *j, const char *header, uint64_t max_s, bool *set, uint64_t *ms,
                   struct sup_fail *f)
{
    double v = 0;

    *set = false;
    if (j && !json_is_null(j)) {
        if (!json_ms(j, &v)) {
            sup_field_bad(f, "keep_alive", j, WANT);
            return false;
        }
    } else if (header) {
        if (!text_ms(header, &v)) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, "X-Keep-Alive",
                         "header 'X-Keep-Alive': got \"%.40s\", expected " WANT, header);
            return false;
        }
    } else {
        return true;
    }
    *set = true;
    *ms = v < 0 || v > (double)max_s * 1e3 ? max_s * 1000 : (uint64_t)v;
    return true;
}
