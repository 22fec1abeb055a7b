/* wrk_gr_regex.c - regular expressions: the part of ECMAScript's that is regular.
 *
 * Read in one pass, nested at most GR_TREE_DEPTH deep, into a tree that is matched
 * without back-tracking, so no expression is exponential. Refused by name: lookaround,
 * back references, word boundaries, \p, inline flags, anchors inside. Laziness says
 * nothing about which texts match and is read over. Source: ECMA-262, 22.2.
 * Tests: tests/worker/test_wrk_gr_regex.c, tests/fuzz/fuzz_gr_regex.c
 */
#include "wrk_gr_impl.h"

#include <stdlib.h>
#include <string.h>

#define SET_RANGES 512 /* of one class */
#define LAST 0x10ffffu

struct rx {
    struct gr_build *b;
    const char *s;
    size_t n, at;
    uint32_t depth;
    bool json;
};

struct ranges {
    struct gr_range r[SET_RANGES];
    uint32_t n;
};

static uint32_t parse_alt(struct rx *x);

static uint32_t bad(struct rx *x, enum rc rc, const char *what)
{
    gr_fail(x->b, rc, "regular expression, byte %zu: %s", x->at, what);
    return 0;
}

static bool more(const struct rx *x)
{
    return x->at < x->n && x->b->rc == RC_OK;
}

static bool peek(const struct rx *x, const char *s)
{
    size_t k = strlen(s);

    return x->n - x->at >= k && memcmp(x->s + x->at, s, k) == 0;
}

static bool take(struct rx *x, const char *s)
{
    if (!peek(x, s))
        return false;
    x->at += strlen(s);
    return true;
}

/* ------------------------------------------------------------------- characters */

static void add(struct rx *x, struct ranges *r, uint32_t lo, uint32_t hi)
{
    if (r->n == SET_RANGES) {
        bad(x, RC_TOO_LARGE, "a class has more than 512 ranges");
        return;
    }
    r->r[r->n++] = (struct gr_range){lo, hi};
}

/* Sorted and merged. */
static void normalize(struct ranges *r)
{
    uint32_t m = 0;

    for (uint32_t i = 1; i < r->n; i++)
        for (uint32_t j = i; j > 0 && r->r[j].lo < r->r[j - 1].lo; j--) {
            struct gr_range t = r->r[j];

            r->r[j] = r->r[j - 1];
            r->r[j - 1] = t;
        }
    for (uint32_t i = 0; i < r->n; i++) {
        if (m > 0 && r->r[i].lo <= r->r[m - 1].hi + 1) {
            if (r->r[i].hi > r->r[m - 1].hi)
                r->r[m - 1].hi = r->r[i].hi;
        } else {
            r->r[m++] = r->r[i];
        }
    }
    r->n = m;
}

static void complement(struct rx *x, struct ranges *r)
{
    struct ranges out = {.n = 0};
    uint32_t from = 0;

    normalize(r);
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->r[i].lo > from)
            add(x, &out, from, r->r[i].lo - 1);
        from = r->r[i].hi + 1;
    }
    if (from <= LAST)
        add(x, &out, from, LAST);
    *r = out;
}

/* \d \w \s and their opposites; false: it is none of them. */
static bool class_escape(struct rx *x, struct ranges *r, char c)
{
    static const struct gr_range digit[] = {{'0', '9'}},
                                 word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                 space[] = {{9, 13},          {32, 32},         {0xa0, 0xa0},
                                            {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                            {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                            {0xfeff, 0xfeff}};
    const struct gr_range *from = (c | 32) == 'd' ? digit : (c | 32) == 'w' ? word : space;
    uint32_t n = (c | 32) == 'd' ? 1 : (c | 32) == 'w' ? 4 : 10;
    struct ranges mine = {.n = 0};

    if (c == '\0' || strchr("dDwWsS", c) == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++)
        add(x, &mine, from[i].lo, from[i].hi);
    if (c < 'a')
        complement(x, &mine);
    for (uint32_t i = 0; i < mine.n; i++)
        add(x, r, mine.r[i].lo, mine.r[i].hi);
    return true;
}

static uint32_t hex(struct rx *x, unsigned digits)
{
    uint32_t v = gr_hex(x->s, x->n, &x->at, digits);

    return v != GR_NONE ? v : bad(x, RC_INVALID, "expected a hexadecimal digit");
}

static uint32_t braced(struct rx *x)
{
    uint32_t v = 0;

    if (peek(x, "}"))
        bad(x, RC_INVALID, "expected a hexadecimal digit");
    while (more(x) && !take(x, "}")) {
        v = v * 16 + hex(x, 1);
        if (v > LAST)
            return bad(x, RC_INVALID, "a code point over 10FFFF");
        if (x->at == x->n)
            return bad(x, RC_INVALID, "UnexpectedEnd: '}' is missing");
    }
    return v;
}

static uint32_t unicode(struct rx *x)
{
    uint32_t c = take(x, "{") ? braced(x) : hex(x, 4);

    if (c >= 0xd800 && c < 0xdc00 && take(x, "\\u")) { /* the two halves of a pair */
        uint32_t low = hex(x, 4);

        if (low < 0xdc00 || low > 0xdfff)
            return bad(x, RC_INVALID, "half of a surrogate pair");
        return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c >= 0xd800 && c < 0xe000)
        return bad(x, RC_INVALID, "half of a surrogate pair");
    return c;
}

/* Behind a backslash: one character. */
static uint32_t escape(struct rx *x, bool in_class)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    char c = x->s[x->at++];
    const char *p = strchr(from, c);

    if (c == 'b' && in_class)
        return 8;
    if (c != '\0' && p != NULL) {
        if (c == '0' && more(x) && x->s[x->at] >= '0' && x->s[x->at] <= '9')
            return bad(x, RC_UNSUPPORTED, "octal escapes are not supported");
        return (unsigned char)to[p - from];
    }
    if (c == 'x')
        return hex(x, 2);
    if (c == 'u')
        return unicode(x);
    if (c == 'c') {
        char l = more(x) ? (char)(x->s[x->at++] | 32) : '\0';

        return l >= 'a' && l <= 'z' ? (uint32_t)(l - 'a' + 1)
                                    : bad(x, RC_INVALID, "expected a letter behind \\c");
    }
    if (c == 'b' || c == 'B')
        return bad(x, RC_UNSUPPORTED, "word boundaries (\\b) are not supported");
    if (c == 'p' || c == 'P')
        return bad(x, RC_UNSUPPORTED, "Unicode properties (\\p) are not supported");
    if (c == 'k' || (c >= '1' && c <= '9'))
        return bad(x, RC_UNSUPPORTED, "back references are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return bad(x, RC_INVALID, "an escape without a meaning");
    x->at--;
    return gr_utf8(x->s, x->n, &x->at);
}

static uint32_t plain(struct rx *x)
{
    uint32_t c = gr_utf8(x->s, x->n, &x->at);

    return c != GR_NONE ? c : bad(x, RC_INVALID, "not valid UTF-8");
}

/* One end of a range in a class; *whole: it was \d or the like and is in r already. */
static uint32_t class_atom(struct rx *x, struct ranges *r, bool *whole)
{
    *whole = false;
    if (!take(x, "\\"))
        return plain(x);
    if (!more(x))
        return bad(x, RC_INVALID, "UnexpectedEnd: nothing behind '\\'");
    if (class_escape(x, r, x->s[x->at])) {
        x->at++;
        *whole = true;
        return 0;
    }
    return escape(x, true);
}

static uint32_t parse_class(struct rx *x)
{
    struct ranges r = {.n = 0};
    bool not = take(x, "^"), whole, whole_hi;

    while (more(x) && !take(x, "]")) {
        uint32_t lo = class_atom(x, &r, &whole), hi = lo;

        if (peek(x, "-") && x->at + 1 < x->n && x->s[x->at + 1] != ']') {
            x->at++;
            hi = class_atom(x, &r, &whole_hi);
            if (whole || whole_hi)
                return bad(x, RC_INVALID, "a class is no end of a range");
            if (hi < lo)
                return bad(x, RC_INVALID, "a range that ends before it begins");
        }
        if (!whole)
            add(x, &r, lo, hi);
        if (x->at == x->n)
            return bad(x, RC_INVALID, "UnexpectedEnd: ']' is missing");
    }
    if (x->n == 0 || x->s[x->at - 1] != ']')
        return bad(x, RC_INVALID, "UnexpectedEnd: ']' is missing");
    normalize(&r);
    if (not )
        complement(x, &r);
    return gr_set(x->b, r.r, r.n, x->json);
}

static uint32_t any(struct rx *x, bool newlines)
{
    static const struct gr_range all[] = {{0, LAST}},
                                 line[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202a, LAST}};

    return newlines ? gr_set(x->b, all, 1, x->json) : gr_set(x->b, line, 4, x->json);
}

static uint32_t one(struct rx *x, uint32_t c)
{
    return gr_set(x->b, &(struct gr_range){c, c}, 1, x->json);
}

/* ---------------------------------------------------------------------- groups */

static uint32_t parse_group(struct rx *x)
{
    uint32_t node;

    if (take(x, "?")) {
        if (take(x, "<") && !peek(x, "=") && !peek(x, "!")) {
            while (more(x) && !peek(x, ">"))
                x->at++;
            if (!take(x, ">"))
                return bad(x, RC_INVALID, "UnexpectedEnd: '>' is missing");
        } else if (!take(x, ":")) {
            return bad(x, RC_UNSUPPORTED, "lookaround and inline flags are not supported");
        }
    }
    if (++x->depth > GR_TREE_DEPTH)
        return bad(x, RC_TOO_LARGE, "groups are nested more than 96 deep");
    node = parse_alt(x);
    x->depth--;
    if (x->b->rc == RC_OK && !take(x, ")"))
        return bad(x, RC_INVALID, "UnexpectedEnd: ')' is missing");
    return node;
}

static uint32_t parse_atom(struct rx *x)
{
    struct ranges r = {.n = 0};
    uint32_t c;

    if (take(x, "("))
        return parse_group(x);
    if (take(x, "["))
        return parse_class(x);
    if (take(x, "."))
        return any(x, false);
    if (peek(x, "^") || peek(x, "$"))
        return bad(x, RC_UNSUPPORTED,
                   "anchors are supported at the two ends of the expression only");
    if (peek(x, "*") || peek(x, "+") || peek(x, "?"))
        return bad(x, RC_INVALID, "nothing to repeat");
    if (!take(x, "\\"))
        return (c = plain(x), x->b->rc != RC_OK) ? 0 : one(x, c);
    if (!more(x))
        return bad(x, RC_INVALID, "UnexpectedEnd: nothing behind '\\'");
    if (class_escape(x, &r, x->s[x->at])) {
        x->at++;
        return gr_set(x->b, r.r, r.n, x->json);
    }
    c = escape(x, false);
    return x->b->rc != RC_OK ? 0 : one(x, c);
}

/* {n} {n,} {n,m}; anything else is a brace as it stands, as in ECMAScript's annex B. */
static bool braces(struct rx *x, uint32_t *min, uint32_t *max)
{
    size_t from = x->at;

    if (take(x, "{") && (*min = gr_decimal(x->s, x->n, &x->at)) != GR_NONE) {
        *max = *min;
        if (take(x, ",") && (*max = gr_decimal(x->s, x->n, &x->at)) == GR_NONE)
            *max = GR_INF;
        if (take(x, "}"))
            return true;
    }
    x->at = from;
    return false;
}

static uint32_t parse_repeat(struct rx *x)
{
    uint32_t node = parse_atom(x), min, max;

    if (!more(x))
        return node;
    if (take(x, "*"))
        min = 0, max = GR_INF;
    else if (take(x, "+"))
        min = 1, max = GR_INF;
    else if (take(x, "?"))
        min = 0, max = 1;
    else if (!braces(x, &min, &max))
        return node;
    if (min > max)
        return bad(x, RC_INVALID, "a repetition of at least more than at most");
    if (min > GR_COUNT_MAX)
        return bad(x, RC_TOO_LARGE, "a repetition of at least more than 1000000");
    take(x, "?"); /* lazy */
    if (peek(x, "*") || peek(x, "+") || peek(x, "?"))
        return bad(x, RC_INVALID, "nothing to repeat");
    return gr_rep(x->b, node, min, max);
}

/* Kids are gathered in pairs: a long sequence is no deep tree. */
struct kids {
    struct gr_vec v;
};

static void keep(struct rx *x, struct kids *k, uint32_t node)
{
    uint32_t *p = gr_push(x->b, &k->v, sizeof(*p), GR_NODES_MAX, "tree nodes");

    if (p != NULL)
        *p = node;
}

static uint32_t parse_seq(struct rx *x, bool top, bool search)
{
    struct kids k = {{0}};
    uint32_t node;
    bool open = search && !(top && take(x, "^"));

    if (!search && top)
        take(x, "^");
    if (open)
        keep(x, &k, gr_rep(x->b, any(x, true), 0, GR_INF));
    open = search;
    while (more(x) && !peek(x, "|") && !peek(x, ")")) {
        if (top && peek(x, "$") && (x->at + 1 == x->n || x->s[x->at + 1] == '|')) {
            x->at++;
            open = false;
            break;
        }
        keep(x, &k, parse_repeat(x));
    }
    if (open)
        keep(x, &k, gr_rep(x->b, any(x, true), 0, GR_INF));
    node = x->b->rc == RC_OK ? gr_seq(x->b, k.v.p, k.v.n) : 0;
    free(k.v.p);
    return node;
}

static uint32_t parse_list(struct rx *x, bool top, bool search)
{
    struct kids k = {{0}};
    uint32_t node;

    do {
        keep(x, &k, parse_seq(x, top, search));
    } while (x->b->rc == RC_OK && take(x, "|"));
    node = x->b->rc == RC_OK ? gr_alt(x->b, k.v.p, k.v.n) : 0;
    free(k.v.p);
    return node;
}

static uint32_t parse_alt(struct rx *x)
{
    return parse_list(x, false, false);
}

uint32_t gr_regex(struct gr_build *b, const char *text, size_t n, bool search)
{
    struct rx x = {.b = b, .s = text, .n = n, .json = search};
    uint32_t node = parse_list(&x, true, search);

    if (b->rc == RC_OK && x.at < n)
        return bad(&x, RC_INVALID, "')' without its '('");
    return node;
}

void gr_read_regex(struct gr_build *b, const char *text, size_t n)
{
    uint32_t root = gr_rule_new(b, "the expression"), node = gr_regex(b, text, n, false);

    if (b->rc == RC_OK)
        gr_rule(b, root)->node = node;
}
