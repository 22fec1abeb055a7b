/* sup_log.c - one event, one JSON line, one write(2) on stderr.
 *
 * Must work inside every sandbox of the supervisor: it opens nothing, allocates
 * nothing and needs only poll, write and clock_gettime. Time is turned into a date
 * here because glibc's gmtime_r reads /etc/localtime on its first call.
 *
 * Always true: a line is at most LINE_MAX_BYTES (= PIPE_BUF, so lines of several
 * processes on one pipe never mix), valid UTF-8, valid JSON and free of control
 * characters; the caller is never held up by a full stderr.
 * Tests: tests/supervisor/test_sup_log.c
 */
#include "sup_log.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_text.h"

#define LINE_MAX_BYTES 4096
#define VALUE_MAX_BYTES 2048 /* of one string, before escaping */
#define TAIL ",\"cut\":true}\n"

/* Programs keep only this much global state: the level is set once, the counter
 * is what a line that could not be written leaves behind. */
static enum sup_level least_level = SUP_INFO;
static atomic_uint_fast64_t n_dropped;

static const char *const level_words[] = {"debug", "info", "warn", "error"};

struct line {
    char b[LINE_MAX_BYTES];
    size_t n;
    bool full;
};

static void put(struct line *l, const char *s, size_t n)
{
    if (l->full || n > sizeof(l->b) - sizeof(TAIL) - l->n) {
        l->full = true;
        return;
    }
    memcpy(l->b + l->n, s, n);
    l->n += n;
}

static void put_string(struct line *l, const char *s)
{
    size_t n = strnlen(s, VALUE_MAX_BYTES + 1), i = 0;
    bool cut = n > VALUE_MAX_BYTES;

    if (cut)
        n = VALUE_MAX_BYTES;
    put(l, "\"", 1);
    while (i < n) {
        char out[8];
        uint32_t cp;
        size_t m;

        if (cut && sup_text_is_partial(s + i, n - i))
            break; /* a character split by our own cut is not an error */
        i += sup_text_next(s + i, n - i, &cp, NULL);
        if (cp == '"' || cp == '\\') {
            out[0] = '\\';
            out[1] = (char)cp;
            m = 2;
        } else if (cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) {
            m = (size_t)snprintf(out, sizeof(out), "\\u%04x", (unsigned)cp);
        } else {
            m = sup_text_put(cp, out);
        }
        put(l, out, m);
    }
    if (cut)
        put(l, "...", 3);
    put(l, "\"", 1);
}

static void put_kv(struct line *l, const struct sup_kv *kv)
{
    char num[40];
    size_t before = l->n;

    put(l, ",", 1);
    put_string(l, kv->key);
    put(l, ":", 1);
    switch (kv->kind) {
    case SUP_KV_S:
        if (kv->s)
            put_string(l, kv->s);
        else
            put(l, "null", 4);
        break;
    case SUP_KV_I:
        put(l, num, (size_t)snprintf(num, sizeof(num), "%lld", (long long)kv->i));
        break;
    case SUP_KV_F:
        if (isfinite(kv->f))
            put(l, num, (size_t)snprintf(num, sizeof(num), "%.9g", kv->f));
        else
            put(l, "null", 4);
        break;
    case SUP_KV_B:
        put(l, kv->b ? "true" : "false", kv->b ? 4 : 5);
        break;
    }
    if (l->full)
        l->n = before; /* a pair is written whole or not at all */
}

/* Civil date from days since 1970 in the proleptic Gregorian calendar: shift the
 * year to begin in March so that the leap day is its last. */
static void put_time(struct line *l)
{
    struct timespec ts = {0};
    char out[64];

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    long long days = ts.tv_sec / 86400, sec = ts.tv_sec % 86400;
    if (sec < 0) {
        sec += 86400;
        days--;
    }
    long long z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    long long doe = z - era * 146097;
    long long yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    long long doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    long long day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    long long year = yoe + era * 400 + (month <= 2);

    int n =
        snprintf(out, sizeof(out), "{\"ts\":\"%04lld-%02lld-%02lldT%02lld:%02lld:%02lld.%03ldZ\"",
                 year, month, day, sec / 3600, sec / 60 % 60, sec % 60, ts.tv_nsec / 1000000);
    put(l, out, (size_t)n);
}

void sup_log_init(enum sup_level least)
{
    least_level = least;
}

uint64_t sup_log_dropped(void)
{
    return atomic_load_explicit(&n_dropped, memory_order_relaxed);
}

enum sup_level sup_level_parse(const char *word)
{
    for (size_t i = 0; word && i < sizeof(level_words) / sizeof(level_words[0]); i++)
        if (strcmp(word, level_words[i]) == 0)
            return (enum sup_level)i;
    return SUP_INFO;
}

/* O_NONBLOCK would change stderr for everyone who shares the terminal, so room
 * is asked for first. A pipe or socket that polls writable takes PIPE_BUF bytes
 * without waiting. */
static bool emit(const char *s, size_t n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t w;

    if (poll(&p, 1, 0) != 1 || p.revents != POLLOUT)
        return false;
    do
        w = write(STDERR_FILENO, s, n);
    while (w < 0 && errno == EINTR);
    return w == (ssize_t)n;
}

void sup_log_kv(enum sup_level level, const char *event, const struct sup_kv *kv, size_t n)
{
    struct line l = {.n = 0};
    int saved = errno;

    if (level < least_level || level > SUP_ERROR)
        return;
    put_time(&l);
    put_kv(&l, &(struct sup_kv)SUP_S("level", level_words[level]));
    put_kv(&l, &(struct sup_kv)SUP_S("event", event));
    for (size_t i = 0; i < n && !l.full; i++)
        put_kv(&l, &kv[i]);
    const char *tail = l.full ? TAIL : "}\n";
    memcpy(l.b + l.n, tail, strlen(tail));
    l.n += strlen(tail);
    if (!emit(l.b, l.n))
        atomic_fetch_add_explicit(&n_dropped, 1, memory_order_relaxed);
    errno = saved;
}
