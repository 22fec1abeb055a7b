/* sup_body.c - a request body to a tree of jansson values, fast enough for the loop.
 *
 * All clients wait while one body is read, and jansson's own reader takes 30 ns for
 * each byte of a text: this one finds the end of a string first, and copies it whole.
 * The language is RFC 8259 as jansson reads it, without duplicate keys and without
 * NUL in keys; an integer over 64 bits is read as a real. Must never trust the body:
 * depth and the memory of the tree are bounded while it is built; messages name a
 * place, never contents. Tests: tests/supervisor/test_sup_api_body.c,
 * tests/fuzz/fuzz_api.c
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc.h"
#include "sup_fields.h"

#define NUMBER_SHORT 100 /* characters; longer ones are copied to the heap */

/* What values cost in memory, about. */
enum { COST_OBJECT = 320, COST_ARRAY = 144, COST_VALUE = 48, COST_MEMBER = 96 };

enum fault { NONE, SYNTAX, BIG_NUMBER, NO_MEMORY, DEEP, WIDE };

struct reader {
    const uint8_t *s;
    size_t n, i;
    size_t cost;
    unsigned depth;
    enum fault fault;
    const char *why; /* SYNTAX */
};

static json_t *fail(struct reader *r, enum fault fault, const char *why)
{
    if (!r->fault) {
        r->fault = fault;
        r->why = why;
    }
    return NULL;
}

static json_t *made(struct reader *r, json_t *j)
{
    return j ? j : fail(r, NO_MEMORY, NULL);
}

static bool pay(struct reader *r, size_t cost)
{
    r->cost += cost;
    if (r->cost <= SUP_BODY_TREE)
        return true;
    fail(r, WIDE, NULL);
    return false;
}

/* The next byte that is no white space, not taken; 0 at the end. */
static uint8_t peek(struct reader *r)
{
    while (r->i < r->n &&
           (r->s[r->i] == ' ' || r->s[r->i] == '\n' || r->s[r->i] == '\r' || r->s[r->i] == '\t'))
        r->i++;
    return r->i < r->n ? r->s[r->i] : 0;
}

/* ------------------------------------------------------------------ strings */

static int hex4(const uint8_t *p)
{
    int v = 0;

    for (int k = 0; k < 4; k++) {
        uint8_t c = p[k], d;

        if (c >= '0' && c <= '9')
            d = (uint8_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            d = (uint8_t)((c | 32) - 'a' + 10);
        else
            return -1;
        v = v << 4 | d;
    }
    return v;
}

static size_t put_utf8(uint8_t *to, uint32_t cp)
{
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

    if (n == 1) {
        to[0] = (uint8_t)cp;
        return 1;
    }
    for (size_t k = n; --k > 0; cp >>= 6)
        to[k] = (uint8_t)(0x80 | (cp & 0x3F));
    to[0] = (uint8_t)((0xF00u >> n & 0xF0) | cp);
    return n;
}

/* Behind a backslash; the character to to[0..4), its length or 0. */
static size_t escape(struct reader *r, size_t end, uint8_t *to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint8_t c = r->s[r->i++];
    const char *at = c ? strchr(names, c) : NULL;
    int a, b;

    if (at) {
        to[0] = (uint8_t)values[at - names];
        return 1;
    }
    if (c != 'u' || end - r->i < 4 || (a = hex4(r->s + r->i)) < 0) {
        fail(r, SYNTAX, "invalid escape");
        return 0;
    }
    r->i += 4;
    if (a < 0xD800 || a > 0xDFFF)
        return put_utf8(to, (uint32_t)a);
    if (a > 0xDBFF || end - r->i < 6 || r->s[r->i] != '\\' || r->s[r->i + 1] != 'u' ||
        (b = hex4(r->s + r->i + 2)) < 0xDC00 || b > 0xDFFF) {
        fail(r, SYNTAX, "half of a surrogate pair");
        return 0;
    }
    r->i += 6;
    return put_utf8(to, 0x10000u + ((uint32_t)(a - 0xD800) << 10) + (uint32_t)(b - 0xDC00));
}

/* s[i .. end) holds escapes; decoded it is never longer. */
static uint8_t *decode(struct reader *r, size_t end, size_t *out_n)
{
    uint8_t *text = malloc(end - r->i + 4), *to = text;

    if (!text) {
        fail(r, NO_MEMORY, NULL);
        return NULL;
    }
    while (r->i < end) {
        const uint8_t *from = r->s + r->i, *back = memchr(from, '\\', end - r->i);
        size_t plain = (size_t)((back ? back : r->s + end) - from), n;

        memcpy(to, from, plain);
        to += plain;
        r->i += plain;
        if (!back)
            break;
        r->i++;
        if ((n = escape(r, end, to)) == 0) {
            free(text);
            return NULL;
        }
        to += n;
    }
    *out_n = (size_t)(to - text);
    return text;
}

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Is one of these eight bytes a quote, a backslash or a control character? Never misses
 * one; may be wrong about the byte behind one. A file in base64 is a string of a hundred
 * million bytes. */
static bool eight_special(const uint8_t *p)
{
    uint64_t w, quote, back;

    memcpy(&w, p, sizeof(w));
    quote = w ^ EACH('"');
    back = w ^ EACH('\\');
    return (((quote - EACH(1)) & ~quote) | ((back - EACH(1)) & ~back) | ((w - EACH(0x20)) & ~w)) &
           EACH(0x80);
}

/* At a quote. *text is of the body, or *own when there were escapes (to be freed). */
static bool string(struct reader *r, const char **text, size_t *n, uint8_t **own)
{
    size_t from = ++r->i, i = from;
    bool escaped = false;

    *own = NULL;
    for (; i < r->n && r->s[i] != '"'; i++) {
        while (r->n - i > 8 && !eight_special(r->s + i))
            i += 8;
        if (r->s[i] == '"')
            break;
        if (r->s[i] == '\\') {
            escaped = true;
            if (++i == r->n)
                break;
        }
        if (r->s[i] < 0x20) {
            r->i = i;
            fail(r, SYNTAX, "a control character in a string");
            return false;
        }
    }
    if (i >= r->n) {
        r->i = r->n;
        fail(r, SYNTAX, "a string does not end");
        return false;
    }
    if (!ipc_utf8_valid(r->s + from, i - from)) {
        fail(r, SYNTAX, "a string is not UTF-8");
        return false;
    }
    *text = (const char *)r->s + from;
    *n = i - from;
    if (escaped && !(*own = decode(r, i, n)))
        return false;
    if (*own)
        *text = (const char *)*own;
    r->i = i + 1;
    return true;
}

/* ------------------------------------------------------------------ numbers */

static size_t digits(struct reader *r)
{
    size_t from = r->i;

    while (r->i < r->n && r->s[r->i] >= '0' && r->s[r->i] <= '9')
        r->i++;
    return r->i - from;
}

static json_t *real(struct reader *r, size_t from)
{
    char small[NUMBER_SHORT + 1], *text = small;
    size_t n = r->i - from;
    double v;

    if (n > NUMBER_SHORT && !(text = malloc(n + 1)))
        return fail(r, NO_MEMORY, NULL);
    memcpy(text, r->s + from, n);
    text[n] = '\0';
    v = strtod(text, NULL);
    if (text != small)
        free(text);
    return isfinite(v) ? made(r, json_real(v)) : fail(r, BIG_NUMBER, NULL);
}

static json_t *number(struct reader *r)
{
    size_t from = r->i, first, n;
    bool minus = r->s[r->i] == '-', whole = true;
    int64_t v = 0;

    r->i += minus;
    first = r->i;
    n = digits(r);
    if (n == 0 || (n > 1 && r->s[first] == '0'))
        return fail(r, SYNTAX, "invalid number");
    if (r->i < r->n && r->s[r->i] == '.') {
        whole = false;
        r->i++;
        if (digits(r) == 0)
            return fail(r, SYNTAX, "a number has no digit behind its point");
    }
    if (r->i < r->n && (r->s[r->i] | 32) == 'e') {
        whole = false;
        r->i++;
        r->i += r->i < r->n && (r->s[r->i] == '+' || r->s[r->i] == '-');
        if (digits(r) == 0)
            return fail(r, SYNTAX, "a number has no digit in its exponent");
    }
    for (size_t k = 0; whole && k < n; k++) {
        int d = r->s[first + k] - '0';

        whole = !__builtin_mul_overflow(v, 10, &v) &&
                !(minus ? __builtin_sub_overflow(v, d, &v) : __builtin_add_overflow(v, d, &v));
    }
    return whole ? made(r, json_integer(v)) : real(r, from);
}

/* ------------------------------------------------------------------- values */

static json_t *value(struct reader *r);

static bool down(struct reader *r, size_t cost)
{
    r->i++;
    if (++r->depth > SUP_BODY_DEPTH) {
        fail(r, DEEP, NULL);
        return false;
    }
    return pay(r, cost);
}

/* Behind a member: true when another one follows, false at the end or on a fault. */
static bool more(struct reader *r, uint8_t end)
{
    uint8_t c = peek(r);

    if (c != ',' && c != end) {
        fail(r, SYNTAX, end == ']' ? "expected ',' or ']'" : "expected ',' or '}'");
        return false;
    }
    r->i++;
    r->depth -= c == end;
    return c == ',';
}

static bool array_into(struct reader *r, json_t *list)
{
    if (peek(r) == ']') {
        r->i++;
        r->depth--;
        return true;
    }
    do {
        json_t *j = pay(r, COST_VALUE) ? value(r) : NULL;

        if (!j)
            return false;
        if (json_array_append_new(list, j) != 0) {
            fail(r, NO_MEMORY, NULL);
            return false;
        }
    } while (more(r, ']'));
    return !r->fault;
}

static bool member(struct reader *r, json_t *obj, const char *key, size_t n)
{
    json_t *j;

    if (memchr(key, 0, n))
        return fail(r, SYNTAX, "NUL in an object key");
    if (json_object_getn(obj, key, n))
        return fail(r, SYNTAX, "duplicate object key");
    if (peek(r) != ':')
        return fail(r, SYNTAX, "expected ':'");
    r->i++;
    if (!pay(r, COST_MEMBER + n) || !(j = value(r)))
        return false;
    if (json_object_setn_new_nocheck(obj, key, n, j) != 0)
        return fail(r, NO_MEMORY, NULL);
    return true;
}

static bool object_into(struct reader *r, json_t *obj)
{
    if (peek(r) == '}') {
        r->i++;
        r->depth--;
        return true;
    }
    do {
        const char *key;
        uint8_t *own;
        size_t n;
        bool ok;

        if (peek(r) != '"')
            return fail(r, SYNTAX, "expected a key in double quotes");
        if (!string(r, &key, &n, &own))
            return false;
        ok = member(r, obj, key, n);
        free(own);
        if (!ok)
            return false;
    } while (more(r, '}'));
    return !r->fault;
}

static json_t *container(struct reader *r, bool is_array)
{
    json_t *j;

    if (!down(r, is_array ? COST_ARRAY : COST_OBJECT) ||
        !(j = made(r, is_array ? json_array() : json_object())))
        return NULL;
    if (is_array ? array_into(r, j) : object_into(r, j))
        return j;
    json_decref(j);
    return NULL;
}

static json_t *word(struct reader *r)
{
    static const struct {
        const char *word;
        json_t *(*make)(void);
    } words[] = {{"true", json_true}, {"false", json_false}, {"null", json_null}};

    for (size_t k = 0; k < 3; k++) {
        size_t n = strlen(words[k].word);

        if (r->n - r->i >= n && memcmp(r->s + r->i, words[k].word, n) == 0) {
            r->i += n;
            return words[k].make();
        }
    }
    return fail(r, SYNTAX, r->i < r->n ? "expected a value" : "it ends too early");
}

static json_t *value(struct reader *r)
{
    uint8_t c = peek(r);
    const char *text;
    uint8_t *own;
    json_t *j;
    size_t n;

    if (c == '{' || c == '[')
        return container(r, c == '[');
    if (c == '-' || (c >= '0' && c <= '9'))
        return number(r);
    if (c != '"')
        return word(r);
    if (!string(r, &text, &n, &own))
        return NULL;
    j = made(r, json_stringn_nocheck(text, n));
    free(own);
    return j;
}

/* ----------------------------------------------------------------- messages */

/* The name of the field whose number could not be read: the last "name": before
 * the place where the reader stopped. "" when there is none. */
static void field_before(const uint8_t *s, size_t pos, char *out, size_t cap)
{
    size_t end, start;

    out[0] = '\0';
    while (pos > 0 && s[pos - 1] != ':')
        pos--;
    while (pos > 0 && s[pos - 1] != '"')
        pos--;
    if (pos < 2)
        return;
    end = pos - 1;
    for (start = end; start > 0 && s[start - 1] != '"'; start--)
        ;
    if (end - start >= cap)
        return;
    for (size_t i = start; i < end; i++)
        if (s[i] < 0x20 || s[i] >= 0x7F)
            return;
    memcpy(out, s + start, end - start);
    out[end - start] = '\0';
}

/* Lines from 1; columns in characters, from 1. */
static void place(const struct reader *r, size_t *line, size_t *column)
{
    size_t end = r->i < r->n ? r->i + 1 : r->n;

    *line = 1;
    *column = 0;
    for (size_t i = 0; i < end; i++) {
        *column += (r->s[i] & 0xC0) != 0x80;
        if (r->s[i] == '\n' && i + 1 < end) {
            ++*line;
            *column = 0;
        }
    }
}

static void explain(const struct reader *r, struct sup_fail *f)
{
    size_t line, column;
    char field[64];

    place(r, &line, &column);
    switch (r->fault) {
    case BIG_NUMBER:
        field_before(r->s, r->i, field, sizeof(field));
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': the number at line %zu, column %zu is too large", field, line,
                     column);
        return;
    case NO_MEMORY:
        sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the request body");
        return;
    case DEEP:
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "",
                     "request body: nested deeper than %d levels at line %zu", SUP_BODY_DEPTH,
                     line);
        return;
    case WIDE:
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "",
                     "request body: too many values (its tree would take more than the limit of "
                     "%u MiB)",
                     SUP_BODY_TREE >> 20);
        return;
    default:
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "",
                     "request body is not valid JSON: line %zu, column %zu: %s", line, column,
                     r->why ? r->why : "it ends too early");
    }
}

json_t *sup_body_parse(const char *body, size_t n, struct sup_fail *f)
{
    struct reader r = {.s = (const uint8_t *)body, .n = n};
    json_t *root;

    if (n == 0) {
        sup_fail_set(f, SUP_E_MISSING_BODY, "", "request body is empty, expected a JSON object");
        return NULL;
    }
    root = value(&r);
    if (root && (peek(&r) != 0 || r.i < r.n)) {
        fail(&r, SYNTAX, "more behind the end of the value");
        json_decref(root);
        root = NULL;
    }
    if (!root) {
        explain(&r, f);
        return NULL;
    }
    if (!json_is_object(root)) {
        sup_field_bad(f, "", root, "a JSON object");
        json_decref(root);
        return NULL;
    }
    return root;
}
