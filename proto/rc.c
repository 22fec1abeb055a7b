/* rc.c - the table of status codes and how an error message is built.
 * Knows nothing of logging or exits. Tests: tests/proto/test_rc.c */
#include "rc.h"

#include <stdio.h>
#include <string.h>

const char *rc_name(enum rc code)
{
    switch (code) {
#define X(name, value, text)                                                   \
    case RC_##name:                                                            \
        return #name;
        RC_MAP(X)
#undef X
    }
    return "UNKNOWN";
}

const char *rc_text(enum rc code)
{
    switch (code) {
#define X(name, value, text)                                                   \
    case RC_##name:                                                            \
        return text;
        RC_MAP(X)
#undef X
    }
    return "unknown status";
}

enum rc rc_from_wire(uint32_t value)
{
    switch (value) {
#define X(name, value, text)                                                   \
    case value:                                                                \
        return RC_##name;
        RC_MAP(X)
#undef X
    }
    return RC_INTERNAL;
}

/* A cut in the middle of a multi-byte character would make the message invalid
 * UTF-8, which jansson then refuses to print: drop the incomplete tail. */
static void trim_utf8(char *s, size_t len)
{
    size_t i = len, need;

    while (i > 0 && ((unsigned char)s[i - 1] & 0xC0) == 0x80)
        i--;
    if (i == 0)
        return;
    unsigned char lead = (unsigned char)s[i - 1];
    need = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (i - 1 + need > len)
        s[i - 1] = '\0';
}

static void fill(struct rc_err *err, enum rc code, const char *fmt, va_list ap)
{
    int n;

    *err = RC_ERR_INIT;
    err->code = code;
    n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    if (n >= (int)sizeof(err->msg))
        trim_utf8(err->msg, sizeof(err->msg) - 1);
}

enum rc rc_fail(struct rc_err *err, enum rc code, const char *fmt, ...)
{
    va_list ap;

    if (err) {
        va_start(ap, fmt);
        fill(err, code, fmt, ap);
        va_end(ap);
    }
    return code;
}

enum rc rc_fail_what(struct rc_err *err, enum rc code, const char *what,
                     const char *fmt, ...)
{
    va_list ap;

    if (err) {
        va_start(ap, fmt);
        fill(err, code, fmt, ap);
        va_end(ap);
        if (snprintf(err->what, sizeof(err->what), "%s", what ? what : "") >=
            (int)sizeof(err->what))
            trim_utf8(err->what, sizeof(err->what) - 1);
    }
    return code;
}

enum rc rc_bound(enum rc code, uint64_t n, uint64_t limit, struct rc_err *err)
{
    if (err) {
        err->n = n;
        err->limit = limit;
    }
    return code;
}

void rc_wrap(struct rc_err *err, const char *fmt, ...)
{
    char prefix[sizeof(err->msg)], old[sizeof(err->msg)];
    va_list ap;

    if (!err)
        return;
    memcpy(old, err->msg, sizeof(old));
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    if (snprintf(err->msg, sizeof(err->msg), "%s: %s", prefix, old) >=
        (int)sizeof(err->msg))
        trim_utf8(err->msg, sizeof(err->msg) - 1);
}
