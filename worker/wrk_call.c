/* wrk_call.c - Gemma 4's way to write a call, as a name and a JSON object.
 *
 * call:NAME{key:value,...} with values <|"|>text<|"|>, numbers, true, false, null, [a,b]
 * and {key:value}; keys are bare, or stand between quotes too. White space may surround
 * separators. Quotes come as the byte WRK_MARK_BYTE + QUOTE (wrk_parse.h). Anything else
 * is malformed: nothing is guessed. Recursion and output are bounded.
 * Source: gemma.md 13.2. Tests: tests/worker/test_wrk_parse.c, fuzz: fuzz_call.c
 */
#include "wrk_parse.h"

#include <stdio.h>
#include <string.h>

#define QUOTE ((char)(WRK_MARK_BYTE + WRK_MARK_QUOTE))

struct reader {
    const char *s;
    size_t n, at, n_out;
    void (*put)(void *user, const char *s, size_t n);
    void *user;
    bool bad;
};

static bool is_mark(char c)
{
    return (unsigned char)c >= WRK_MARK_BYTE;
}

static void put(struct reader *r, const char *s, size_t n)
{
    if (r->n_out + n > WRK_CALL_JSON)
        r->bad = true;
    if (r->bad)
        return;
    r->n_out += n;
    if (r->put != NULL && n > 0)
        r->put(r->user, s, n);
}

static void blanks(struct reader *r)
{
    while (r->at < r->n && strchr(" \t\r\n", r->s[r->at]) != NULL && r->s[r->at] != '\0')
        r->at++;
}

/* The next byte behind blanks; 0 at the end. */
static char peek(struct reader *r)
{
    blanks(r);
    return r->at < r->n ? r->s[r->at] : '\0';
}

static bool take(struct reader *r, char c)
{
    if (peek(r) != c || r->at >= r->n)
        return false;
    r->at++;
    return true;
}

/* Bytes of text as the inside of a JSON string. */
static void put_text(struct reader *r, const char *s, size_t n)
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
        put(r, s + from, i - from);
        put(r, esc, (size_t)len);
        from = i + 1;
    }
    put(r, s + from, n - from);
}

static void string(struct reader *r)
{
    size_t from = ++r->at;

    while (r->at < r->n && !is_mark(r->s[r->at]))
        r->at++;
    if (r->at == r->n || r->s[r->at] != QUOTE) {
        r->bad = true;
        return;
    }
    put(r, "\"", 1);
    put_text(r, r->s + from, r->at++ - from);
    put(r, "\"", 1);
}

static void key(struct reader *r)
{
    size_t from, end;

    if (peek(r) == QUOTE) {
        string(r);
        return;
    }
    for (from = r->at; r->at < r->n && strchr(":,{}[]", r->s[r->at]) == NULL; r->at++)
        if (is_mark(r->s[r->at]))
            r->bad = true;
    for (end = r->at; end > from && strchr(" \t\r\n", r->s[end - 1]) != NULL; end--)
        ;
    if (end == from)
        r->bad = true;
    put(r, "\"", 1);
    put_text(r, r->s + from, end - from);
    put(r, "\"", 1);
}

static size_t digits(const char *s, size_t n, size_t at)
{
    size_t from = at;

    while (at < n && s[at] >= '0' && s[at] <= '9')
        at++;
    return at - from;
}

/* JSON's numbers, no others. */
static bool is_number(const char *s, size_t n)
{
    size_t at = n > 0 && s[0] == '-', k = digits(s, n, at);

    if (k == 0 || (k > 1 && s[at] == '0'))
        return false;
    at += k;
    if (at < n && s[at] == '.') {
        if ((k = digits(s, n, at + 1)) == 0)
            return false;
        at += 1 + k;
    }
    if (at < n && (s[at] == 'e' || s[at] == 'E')) {
        at += 1 + (at + 1 < n && (s[at + 1] == '+' || s[at + 1] == '-'));
        if ((k = digits(s, n, at)) == 0)
            return false;
        at += k;
    }
    return at == n;
}

static void word(struct reader *r)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t from = r->at, n;
    bool known = false;

    while (r->at < r->n && strchr(",}] \t\r\n", r->s[r->at]) == NULL && !is_mark(r->s[r->at]))
        r->at++;
    n = r->at - from;
    for (size_t i = 0; i < 3; i++)
        known = known || (n == strlen(words[i]) && memcmp(r->s + from, words[i], n) == 0);
    if (!known && !is_number(r->s + from, n))
        r->bad = true;
    put(r, r->s + from, n);
}

static void pairs(struct reader *r, char close, unsigned depth);

static void value(struct reader *r, unsigned depth)
{
    char c = peek(r);

    if (depth >= WRK_CALL_DEPTH || c == '\0') {
        r->bad = true;
    } else if (c == QUOTE) {
        string(r);
    } else if (c == '{') {
        r->at++;
        pairs(r, '}', depth + 1);
    } else if (c == '[') {
        r->at++;
        put(r, "[", 1);
        for (bool more = !take(r, ']'); more && !r->bad;) {
            value(r, depth + 1);
            more = take(r, ',');
            if (!more && !take(r, ']'))
                r->bad = true;
            put(r, ",", more);
        }
        put(r, "]", 1);
    } else {
        word(r);
    }
}

/* The inside of an object up to `close`, or to the end where close is 0. */
static void pairs(struct reader *r, char close, unsigned depth)
{
    bool more = close != '\0' ? !take(r, close) : (blanks(r), r->at < r->n);

    put(r, "{", 1);
    while (more && !r->bad) {
        key(r);
        if (!take(r, ':'))
            r->bad = true;
        put(r, ":", 1);
        value(r, depth);
        more = take(r, ',');
        if (!more && (close != '\0' ? !take(r, close) : (blanks(r), r->at < r->n)))
            r->bad = true;
        put(r, ",", more);
    }
    put(r, "}", 1);
}

size_t wrk_call_json(const char *body, size_t n, void (*to)(void *user, const char *s, size_t n),
                     void *user)
{
    struct reader r = {.s = body, .n = n, .put = to, .user = user};

    pairs(&r, '\0', 1);
    return r.bad ? 0 : r.n_out;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

bool wrk_call_name_ok(const char *s, size_t n)
{
    size_t at = 0;

    while (at < n && name_char(s[at]))
        at++;
    return at == n && n > 0 && n <= WRK_CALL_NAME;
}

bool wrk_call_split(const char *raw, size_t n, size_t *name_at, size_t *n_name, size_t *body_at,
                    size_t *n_body)
{
    static const char head[] = "call:";
    size_t at = sizeof(head) - 1;

    while (n > 0 && strchr(" \t\r\n", raw[n - 1]) != NULL && raw[n - 1] != '\0')
        n--;
    if (n <= at || memcmp(raw, head, at) != 0)
        return false;
    while (at < n && name_char(raw[at]))
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
