/* sup_retry_after.c - seconds or one of the three dates of HTTP (see sup_retry_after.h).
 *
 * Never calls timegm or gmtime: glibc may open /etc/localtime in them, which kills a process
 * whose sandbox opens no files. Tests: tests/supervisor/test_sup_retry_after.c
 */
#include "sup_retry_after.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct date {
    unsigned day, year, hour, min, s;
    char month[4];
};

static int month_of(const char *word)
{
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

    for (int i = 0; i < 12 && strlen(word) == 3; i++)
        if (memcmp(names + 3 * i, word, 3) == 0)
            return i + 1;
    return 0;
}

static bool leap(unsigned y)
{
    return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
}

static bool to_unix(const struct date *d, int64_t *out)
{
    static const unsigned char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int month = month_of(d->month);
    int64_t n = 0;

    if (!month || d->year < 1970 || d->year > 9999 || d->day < 1 || d->hour > 23 || d->min > 59 ||
        d->s > 60 || d->day > days[month - 1] + (month == 2 && leap(d->year) ? 1u : 0u))
        return false;
    for (unsigned y = 1970; y < d->year; y++)
        n += leap(y) ? 366 : 365;
    for (int m = 1; m < month; m++)
        n += days[m - 1] + (m == 2 && leap(d->year));
    *out = (n + d->day - 1) * 86400 + d->hour * 3600 + d->min * 60 + d->s;
    return true;
}

/* Two digits of a year: from 49 years ago to 50 years ahead. */
static unsigned year_of(unsigned two, int64_t now_s)
{
    unsigned now = 1970 + (unsigned)(now_s / 31556952), year = now - now % 100 + two;

    return year > now + 50 ? year - 100 : year + 50 <= now ? year + 100 : year;
}

/* Each: the place behind what it has read, 0 = another form. */
static int imf(const char *s, struct date *d)
{
    int end = 0;

    (void)sscanf(s, "%*3[A-Za-z], %2u %3[A-Za-z] %4u %2u:%2u:%2u GMT%n", &d->day, d->month,
                 &d->year, &d->hour, &d->min, &d->s, &end);
    return end;
}

static int rfc850(const char *s, struct date *d)
{
    int end = 0;

    (void)sscanf(s, "%*9[A-Za-z], %2u-%3[A-Za-z]-%2u %2u:%2u:%2u GMT%n", &d->day, d->month,
                 &d->year, &d->hour, &d->min, &d->s, &end);
    return end;
}

static int asctime_form(const char *s, struct date *d)
{
    int end = 0;

    (void)sscanf(s, "%*3[A-Za-z] %3[A-Za-z] %2u %2u:%2u:%2u %4u%n", d->month, &d->day, &d->hour,
                 &d->min, &d->s, &d->year, &end);
    return end;
}

static bool read_date(const char *s, int64_t now_s, int64_t *out)
{
    int (*const forms[])(const char *, struct date *) = {imf, rfc850, asctime_form};

    if (strlen(s) > 40 || strpbrk(s, "+"))
        return false;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct date d = {0};
        int end = forms[i](s, &d);

        if (end <= 0 || s[end])
            continue;
        if (forms[i] == rfc850)
            d.year = year_of(d.year, now_s);
        return to_unix(&d, out);
    }
    return false;
}

static uint32_t bounded(int64_t v)
{
    return v <= 0 ? 0 : v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

bool sup_retry_after(const char *value, int64_t now_s, uint32_t *out)
{
    int64_t v = 0;
    const char *p = value;

    for (; *p >= '0' && *p <= '9'; p++)
        if (v < UINT32_MAX)
            v = v * 10 + (*p - '0');
    if (p == value || *p) {
        if (!read_date(value, now_s, &v))
            return false;
        v -= now_s;
    }
    *out = bounded(v);
    return true;
}
