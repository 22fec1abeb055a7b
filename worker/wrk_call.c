/* wrk_call.c - Gemma 4's way to write a call, as a name and a JSON object (wrk_call.h).
 *
 * call:NAME{key:value,...} with values <|"|>text<|"|>, numbers, true, false, null, [a,b]
 * and {key:value}; keys are bare, or stand between quotes too. White space may surround
 * separators. Anything else is malformed: nothing is guessed. Strings and keys are told
 * as they come; numbers and words when they are over, since only then they are known to
 * be good; the last brace when the call is over. Depth and output are bounded.
 * Source: gemma.md 13.2. Tests: tests/worker/test_wrk_parse.c (against call_ref.h, which
 * reads a call whole), fuzz: fuzz_call.c
 */
#include "wrk_call.h"

#include <stdio.h>
#include <string.h>

#include "wrk_parse.h"

#define QUOTE ((char)(WRK_MARK_BYTE + WRK_MARK_QUOTE))

struct reader {
    struct wrk_call *c;
    const char *raw;
    size_t n;
    const struct wrk_call_out *to;
};

static bool is_mark(char ch)
{
    return (unsigned char)ch >= WRK_MARK_BYTE;
}

static bool is_blank(char ch)
{
    return ch == ' ' || ch == '\t' || ch == '\r' || ch == '\n';
}

/* What ends a bare key; U+0000 stands nowhere but in strings. */
static bool ends_key(char ch)
{
    return is_mark(ch) || memchr(":,{}[]", ch, 7) != NULL;
}

static bool ends_word(char ch)
{
    return is_mark(ch) || is_blank(ch) || memchr(",}]", ch, 4) != NULL;
}

static bool tell(struct wrk_call *c, const struct wrk_call_out *to, const char *s, size_t n)
{
    if (n > WRK_CALL_JSON - c->n_json)
        return false;
    c->n_json += n;
    if (n > 0)
        to->args(to->user, s, n);
    return true;
}

/* Bytes of text as the inside of a JSON string. */
static bool tell_text(struct wrk_call *c, const struct wrk_call_out *to, const char *s, size_t n)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        char esc[8];
        int len = 0;

        if ((unsigned char)s[i] >= 0x20 && s[i] != '"' && s[i] != '\\')
            continue;
        for (size_t k = 0; len == 0 && k + 1 < sizeof(named); k += 2)
            if (s[i] == named[k])
                len = snprintf(esc, sizeof(esc), "\\%c", named[k + 1]);
        if (len == 0)
            len = snprintf(esc, sizeof(esc), "\\u%04x", (unsigned)(unsigned char)s[i]);
        if (!tell(c, to, s + from, i - from) || !tell(c, to, esc, (size_t)len))
            return false;
        from = i + 1;
    }
    return tell(c, to, s + from, n - from);
}

/* ------------------------------------------------------------------------ names */

static bool name_char(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
           ch == '_' || ch == '.' || ch == '-';
}

bool wrk_call_name_ok(const char *s, size_t n)
{
    size_t at = 0;

    while (at < n && name_char(s[at]))
        at++;
    return at == n && n > 0 && n <= WRK_CALL_NAME;
}

/* One byte of call:NAME{ */
static bool head(struct reader *r)
{
    static const char word[] = "call:";
    const size_t n_word = sizeof(word) - 1;
    struct wrk_call *c = r->c;
    char ch = r->raw[c->at++];

    if (c->at <= n_word)
        return ch == word[c->at - 1];
    if (name_char(ch))
        return ++c->n_name <= WRK_CALL_NAME;
    if (ch != '{' || c->n_name == 0 || !r->to->begin(r->to->user, r->raw + n_word, c->n_name))
        return false;
    c->n_open = 1;
    c->state = WRK_CALL_FIRST_KEY;
    return tell(c, r->to, "{", 1);
}

/* ----------------------------------------------------------------- objects, lists */

static bool in_list(const struct wrk_call *c)
{
    uint32_t i = c->n_open - 1;

    return (c->list[i / 8] >> (i % 8) & 1) != 0;
}

static bool open_one(struct reader *r, bool list)
{
    struct wrk_call *c = r->c;
    uint32_t i = c->n_open++;

    c->list[i / 8] = (uint8_t)((c->list[i / 8] & ~(1u << (i % 8))) | (unsigned)list << (i % 8));
    c->state = list ? WRK_CALL_FIRST_ITEM : WRK_CALL_FIRST_KEY;
    return tell(c, r->to, list ? "[" : "{", 1);
}

/* The arguments' own brace is told by wrk_call_end. */
static bool close_one(struct reader *r, char ch)
{
    struct wrk_call *c = r->c;

    if (ch != (in_list(c) ? ']' : '}'))
        return false;
    c->state = --c->n_open == 0 ? WRK_CALL_DONE : WRK_CALL_NEXT;
    return c->n_open == 0 || tell(c, r->to, &ch, 1);
}

/* ------------------------------------------------------------------------ values */

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

static bool is_word(const char *s, size_t n)
{
    return (n == 4 && (memcmp(s, "true", 4) == 0 || memcmp(s, "null", 4) == 0)) ||
           (n == 5 && memcmp(s, "false", 5) == 0) || is_number(s, n);
}

static bool word(struct reader *r)
{
    struct wrk_call *c = r->c;
    const char *s = r->raw + c->from;

    while (c->at < r->n && !ends_word(r->raw[c->at]))
        c->at++;
    if (c->at == r->n)
        return true;
    c->state = WRK_CALL_NEXT;
    return is_word(s, c->at - c->from) && tell(c, r->to, s, c->at - c->from);
}

/* A value begins at this byte. */
static bool value(struct reader *r, char ch)
{
    struct wrk_call *c = r->c;

    if (c->n_open >= WRK_CALL_DEPTH)
        return false;
    if (ch == QUOTE || ch == '{' || ch == '[')
        c->at++;
    if (ch == QUOTE) {
        c->state = WRK_CALL_IN_STRING;
        return tell(c, r->to, "\"", 1);
    }
    if (ch == '{' || ch == '[')
        return open_one(r, ch == '[');
    c->from = c->at;
    c->state = WRK_CALL_IN_WORD;
    return true;
}

/* Inside quotes, up to the second; then comes `next`. */
static bool text(struct reader *r, enum wrk_call_state next)
{
    struct wrk_call *c = r->c;
    size_t from = c->at;

    while (c->at < r->n && !is_mark(r->raw[c->at]))
        c->at++;
    if (!tell_text(c, r->to, r->raw + from, c->at - from))
        return false;
    if (c->at == r->n)
        return true;
    c->state = next;
    return r->raw[c->at++] == QUOTE && tell(c, r->to, "\"", 1);
}

/* -------------------------------------------------------------------------- keys */

static bool key(struct reader *r, char ch)
{
    struct wrk_call *c = r->c;

    c->blanks = false;
    c->state = ch == QUOTE ? WRK_CALL_IN_QUOTED_KEY : WRK_CALL_IN_KEY;
    c->at += ch == QUOTE;
    return (ch == QUOTE || !ends_key(ch)) && tell(c, r->to, "\"", 1);
}

/* A bare key up to its colon, without the blanks before that. */
static bool bare(struct reader *r)
{
    struct wrk_call *c = r->c;
    size_t from = c->blanks ? c->from : c->at, end = from; /* end: of what is no blank */

    for (; c->at < r->n && !ends_key(r->raw[c->at]); c->at++)
        if (!is_blank(r->raw[c->at]))
            end = c->at + 1;
    if (!tell_text(c, r->to, r->raw + from, end - from))
        return false;
    c->blanks = end < c->at;
    c->from = end;
    if (c->at == r->n)
        return true;
    c->state = WRK_CALL_VALUE;
    return r->raw[c->at++] == ':' && tell(c, r->to, "\":", 2);
}

/* --------------------------------------------------------------------- the whole */

/* The next byte that is no blank, where blanks mean nothing. */
static bool between(struct reader *r)
{
    struct wrk_call *c = r->c;
    char ch = r->raw[c->at];

    if (is_blank(ch)) {
        c->at++;
        return true;
    }
    switch (c->state) {
    case WRK_CALL_FIRST_KEY:
    case WRK_CALL_FIRST_ITEM:
        if (ch == (c->state == WRK_CALL_FIRST_KEY ? '}' : ']')) {
            c->at++;
            return close_one(r, ch);
        }
        return c->state == WRK_CALL_FIRST_KEY ? key(r, ch) : value(r, ch);
    case WRK_CALL_KEY:
        return key(r, ch);
    case WRK_CALL_COLON:
        c->at++;
        c->state = WRK_CALL_VALUE;
        return ch == ':' && tell(c, r->to, ":", 1);
    case WRK_CALL_VALUE:
        return value(r, ch);
    case WRK_CALL_NEXT:
        c->at++;
        if (ch != ',')
            return close_one(r, ch);
        c->state = in_list(c) ? WRK_CALL_VALUE : WRK_CALL_KEY;
        return tell(c, r->to, ",", 1);
    default: /* DONE: nothing but blanks follows */
        return false;
    }
}

bool wrk_call_read(struct wrk_call *c, const char *raw, size_t n, const struct wrk_call_out *to)
{
    struct reader r = {c, raw, n, to};
    bool ok = true;

    while (ok && c->at < n) {
        switch (c->state) {
        case WRK_CALL_HEAD:
            ok = head(&r);
            break;
        case WRK_CALL_IN_KEY:
            ok = bare(&r);
            break;
        case WRK_CALL_IN_QUOTED_KEY:
            ok = text(&r, WRK_CALL_COLON);
            break;
        case WRK_CALL_IN_STRING:
            ok = text(&r, WRK_CALL_NEXT);
            break;
        case WRK_CALL_IN_WORD:
            ok = word(&r);
            break;
        default:
            ok = between(&r);
        }
    }
    return ok;
}

bool wrk_call_end(struct wrk_call *c, const struct wrk_call_out *to)
{
    return c->state == WRK_CALL_DONE && tell(c, to, "}", 1);
}
