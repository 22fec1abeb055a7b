/* call_ref.h - a call of a tool read whole, by recursion: what the reader of pieces
 * (wrk_call.c) is held against. Written apart from it, and simple where that one is
 * careful: it has all bytes before it begins.
 */
#ifndef TEST_WORKER_CALL_REF_H
#define TEST_WORKER_CALL_REF_H

#include <stdio.h>
#include <string.h>

#include "wrk_parse.h"

#define CALL_REF_QUOTE ((char)(WRK_MARK_BYTE + WRK_MARK_QUOTE))

struct ref_reader {
    const char *s;
    size_t n, at, n_out;
    void (*put)(void *user, const char *s, size_t n);
    void *user;
    bool bad;
};

static bool ref_is_mark(char c)
{
    return (unsigned char)c >= WRK_MARK_BYTE;
}

static void ref_put(struct ref_reader *r, const char *s, size_t n)
{
    if (r->n_out + n > WRK_CALL_JSON)
        r->bad = true;
    if (r->bad)
        return;
    r->n_out += n;
    if (r->put != NULL && n > 0)
        r->put(r->user, s, n);
}

static void ref_blanks(struct ref_reader *r)
{
    while (r->at < r->n && strchr(" \t\r\n", r->s[r->at]) != NULL && r->s[r->at] != '\0')
        r->at++;
}

/* The next byte behind blanks; 0 at the end. */
static char ref_peek(struct ref_reader *r)
{
    ref_blanks(r);
    return r->at < r->n ? r->s[r->at] : '\0';
}

static bool ref_take(struct ref_reader *r, char c)
{
    if (ref_peek(r) != c || r->at >= r->n)
        return false;
    r->at++;
    return true;
}

/* Bytes of text as the inside of a JSON string. */
static void ref_put_text(struct ref_reader *r, const char *s, size_t n)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        char esc[8];
        int len = 0;

        for (size_t k = 0; len == 0 && k + 1 < sizeof(named); k += 2)
            if (s[i] == named[k])
                len = snprintf(esc, sizeof(esc), "\\%c", named[k + 1]);
        if (len == 0 && (unsigned char)s[i] < 0x20)
            len = snprintf(esc, sizeof(esc), "\\u%04x", (unsigned)(unsigned char)s[i]);
        if (len == 0)
            continue;
        ref_put(r, s + from, i - from);
        ref_put(r, esc, (size_t)len);
        from = i + 1;
    }
    ref_put(r, s + from, n - from);
}

static void ref_string(struct ref_reader *r)
{
    size_t from = ++r->at;

    while (r->at < r->n && !ref_is_mark(r->s[r->at]))
        r->at++;
    if (r->at == r->n || r->s[r->at] != CALL_REF_QUOTE) {
        r->bad = true;
        return;
    }
    ref_put(r, "\"", 1);
    ref_put_text(r, r->s + from, r->at++ - from);
    ref_put(r, "\"", 1);
}

static void ref_key(struct ref_reader *r)
{
    size_t from, end;

    if (ref_peek(r) == CALL_REF_QUOTE) {
        ref_string(r);
        return;
    }
    for (from = r->at; r->at < r->n && strchr(":,{}[]", r->s[r->at]) == NULL; r->at++)
        if (ref_is_mark(r->s[r->at]))
            r->bad = true;
    for (end = r->at; end > from && strchr(" \t\r\n", r->s[end - 1]) != NULL; end--)
        ;
    if (end == from)
        r->bad = true;
    ref_put(r, "\"", 1);
    ref_put_text(r, r->s + from, end - from);
    ref_put(r, "\"", 1);
}

static size_t ref_digits(const char *s, size_t n, size_t at)
{
    size_t from = at;

    while (at < n && s[at] >= '0' && s[at] <= '9')
        at++;
    return at - from;
}

/* JSON's numbers, no others. */
static bool ref_is_number(const char *s, size_t n)
{
    size_t at = n > 0 && s[0] == '-', k = ref_digits(s, n, at);

    if (k == 0 || (k > 1 && s[at] == '0'))
        return false;
    at += k;
    if (at < n && s[at] == '.') {
        if ((k = ref_digits(s, n, at + 1)) == 0)
            return false;
        at += 1 + k;
    }
    if (at < n && (s[at] == 'e' || s[at] == 'E')) {
        at += 1 + (at + 1 < n && (s[at + 1] == '+' || s[at + 1] == '-'));
        if ((k = ref_digits(s, n, at)) == 0)
            return false;
        at += k;
    }
    return at == n;
}

static void ref_word(struct ref_reader *r)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t from = r->at, n;
    bool known = false;

    while (r->at < r->n && strchr(",}] \t\r\n", r->s[r->at]) == NULL && !ref_is_mark(r->s[r->at]))
        r->at++;
    n = r->at - from;
    for (size_t i = 0; i < 3; i++)
        known = known || (n == strlen(words[i]) && memcmp(r->s + from, words[i], n) == 0);
    if (!known && !ref_is_number(r->s + from, n))
        r->bad = true;
    ref_put(r, r->s + from, n);
}

static void ref_pairs(struct ref_reader *r, char close, unsigned depth);

static void ref_value(struct ref_reader *r, unsigned depth)
{
    char c = ref_peek(r);

    if (depth >= WRK_CALL_DEPTH || c == '\0') {
        r->bad = true;
    } else if (c == CALL_REF_QUOTE) {
        ref_string(r);
    } else if (c == '{') {
        r->at++;
        ref_pairs(r, '}', depth + 1);
    } else if (c == '[') {
        r->at++;
        ref_put(r, "[", 1);
        for (bool more = !ref_take(r, ']'); more && !r->bad;) {
            ref_value(r, depth + 1);
            more = ref_take(r, ',');
            if (!more && !ref_take(r, ']'))
                r->bad = true;
            ref_put(r, ",", more);
        }
        ref_put(r, "]", 1);
    } else {
        ref_word(r);
    }
}

/* The inside of an object up to `close`, or to the end where close is 0. */
static void ref_pairs(struct ref_reader *r, char close, unsigned depth)
{
    bool more = close != '\0' ? !ref_take(r, close) : (ref_blanks(r), r->at < r->n);

    ref_put(r, "{", 1);
    while (more && !r->bad) {
        ref_key(r);
        if (!ref_take(r, ':'))
            r->bad = true;
        ref_put(r, ":", 1);
        ref_value(r, depth);
        more = ref_take(r, ',');
        if (!more && (close != '\0' ? !ref_take(r, close) : (ref_blanks(r), r->at < r->n)))
            r->bad = true;
        ref_put(r, ",", more);
    }
    ref_put(r, "}", 1);
}

/* A valid body as the text of a JSON object; to may be NULL. Returns its bytes, 0: malformed. */
static size_t call_ref_json(const char *body, size_t n,
                            void (*to)(void *user, const char *s, size_t n), void *user)
{
    struct ref_reader r = {.s = body, .n = n, .put = to, .user = user};

    ref_pairs(&r, '\0', 1);
    return r.bad ? 0 : r.n_out;
}

/* Where a held call (without its marks) has its name and body; false: malformed. */
static bool call_ref_split(const char *raw, size_t n, size_t *name_at, size_t *n_name,
                           size_t *body_at, size_t *n_body)
{
    static const char head[] = "call:";
    size_t at = sizeof(head) - 1;

    while (n > 0 && strchr(" \t\r\n", raw[n - 1]) != NULL && raw[n - 1] != '\0')
        n--;
    if (n <= at || memcmp(raw, head, at) != 0)
        return false;
    while (at < n && wrk_call_name_ok(raw + at, 1))
        at++;
    *name_at = sizeof(head) - 1;
    *n_name = at - *name_at;
    if (!wrk_call_name_ok(raw + *name_at, *n_name) || at + 1 >= n || raw[at] != '{' ||
        raw[n - 1] != '}')
        return false;
    *body_at = at + 1;
    *n_body = n - 1 - *body_at;
    return true;
}

#endif
