/* wrk_gr_gbnf.c - llama.cpp's grammar notation.
 *
 * name ::= alternatives, of "text", [classes], . (any character), names, ( groups ),
 * each with * + ? {n} {n,} {n,m}; # begins a comment; the rule `root` is the answer. A
 * rule goes on over a line's end inside a group and behind `|`. Words of errors
 * (NoRootRule, ...) are the upstream API's. Tests: tests/worker/test_wrk_gr_gbnf.c,
 * tests/fuzz/fuzz_gr_gbnf.c
 */
#include "wrk_gr_impl.h"

#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 63
#define CLASS_RANGES 512

struct gb {
    struct gr_build *b;
    const char *s;
    size_t n, at;
    uint32_t depth;
};

static uint32_t parse_alt(struct gb *g);

static uint32_t bad(struct gb *g, const char *word, const char *what)
{
    uint32_t line = 1;

    for (size_t i = 0; i < g->at && i < g->n; i++)
        line += g->s[i] == '\n';
    gr_fail(g->b, RC_INVALID, "%s: line %u, byte %zu: %s", word, line, g->at, what);
    return 0;
}

static char now(const struct gb *g)
{
    return g->at < g->n ? g->s[g->at] : '\0';
}

/* Blanks and comments; lines too where a rule may go on. */
static void blanks(struct gb *g, bool lines)
{
    while (g->at < g->n) {
        char c = g->s[g->at];

        if (c == '#')
            while (g->at < g->n && g->s[g->at] != '\n' && g->s[g->at] != '\r')
                g->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            g->at++;
        else
            return;
    }
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* The rule of a name, made when it is new. */
static uint32_t parse_name(struct gb *g)
{
    char name[NAME_MAX_BYTES + 1];
    size_t from = g->at, n;

    while (name_char(now(g)))
        g->at++;
    n = g->at - from;
    if (n == 0)
        return bad(g, "ExpectedRuleName", "expected the name of a rule");
    if (n > NAME_MAX_BYTES)
        return bad(g, "ExpectedRuleName", "a name of more than 63 bytes");
    memcpy(name, g->s + from, n);
    name[n] = '\0';
    for (uint32_t r = 0; r < g->b->rule.n; r++) {
        gr_step(g->b, 1);
        if (strcmp(gr_rule(g->b, r)->name, name) == 0)
            return r;
    }
    return gr_rule_new(g->b, name);
}

/* -------------------------------------------------------------------- characters */

static uint32_t hex(struct gb *g, unsigned digits)
{
    uint32_t v = gr_hex(g->s, g->n, &g->at, digits);

    if (v == GR_NONE)
        return bad(g, "InvalidEscape", "expected a hexadecimal digit");
    if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return bad(g, "InvalidEscape", "not a character");
    return v;
}

static uint32_t character(struct gb *g)
{
    static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
    const char *p;
    uint32_t c;

    if (now(g) != '\\') {
        c = gr_utf8(g->s, g->n, &g->at);
        return c != GR_NONE ? c
                            : bad(g, g->at >= g->n ? "UnexpectedEnd" : "InvalidUtf8",
                                  "expected a character");
    }
    if (++g->at >= g->n)
        return bad(g, "UnexpectedEnd", "nothing behind '\\'");
    c = (unsigned char)g->s[g->at++];
    if (c == 'x')
        return hex(g, 2);
    if (c == 'u')
        return hex(g, 4);
    if (c == 'U')
        return hex(g, 8);
    if (c == 0 || (p = strchr(from, (int)c)) == NULL)
        return bad(g, "InvalidEscape", "an escape without a meaning");
    return (unsigned char)to[p - from];
}

static uint32_t parse_text(struct gb *g)
{
    size_t from = ++g->at, n = 0;
    uint8_t *out = malloc(g->n - from + 4); /* no escape is shorter than its character */
    uint32_t node = 0;

    if (out == NULL)
        gr_fail(g->b, RC_NOMEM, "no memory for a text");
    while (g->b->rc == RC_OK && now(g) != '"') {
        uint32_t c = g->at < g->n ? character(g) : bad(g, "UnexpectedEnd", "'\"' is missing");

        if (g->b->rc == RC_OK)
            n += gr_utf8_put(c, out + n);
    }
    if (g->b->rc == RC_OK) {
        g->at++;
        node = gr_text(g->b, out, n);
    }
    free(out);
    return node;
}

static uint32_t invert(struct gb *g, struct gr_range *r, uint32_t n)
{
    struct gr_range out[CLASS_RANGES + 1];
    uint32_t m = 0, from = 0;

    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && r[j].lo < r[j - 1].lo; j--) {
            struct gr_range t = r[j];

            r[j] = r[j - 1];
            r[j - 1] = t;
        }
    for (uint32_t i = 0; i < n; i++) {
        if (r[i].lo > from)
            out[m++] = (struct gr_range){from, r[i].lo - 1};
        if (r[i].hi + 1 > from)
            from = r[i].hi + 1;
    }
    if (from <= 0x10ffff)
        out[m++] = (struct gr_range){from, 0x10ffff};
    return gr_set(g->b, out, m, false);
}

static uint32_t parse_class(struct gb *g)
{
    struct gr_range r[CLASS_RANGES];
    uint32_t n = 0;
    bool not ;

    g->at++;
    if ((not = now(g) == '^'))
        g->at++;
    while (g->b->rc == RC_OK && now(g) != ']') {
        uint32_t lo, hi;

        if (g->at >= g->n)
            return bad(g, "UnexpectedEnd", "']' is missing");
        lo = hi = character(g);
        if (now(g) == '-' && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
            g->at++;
            hi = character(g);
        }
        if (g->b->rc == RC_OK && hi < lo)
            return bad(g, "InvalidRange", "a range that ends before it begins");
        if (n == CLASS_RANGES)
            return bad(g, "TooLarge", "a class has more than 512 ranges");
        r[n++] = (struct gr_range){lo, hi};
    }
    g->at++;
    if (g->b->rc != RC_OK)
        return 0;
    return not ? invert(g, r, n) : gr_set(g->b, r, n, false);
}

/* ------------------------------------------------------------------------ items */

static uint32_t parse_item(struct gb *g)
{
    static const struct gr_range all[] = {{0, 0x10ffff}};
    char c = now(g);
    uint32_t node;

    if (c == '"')
        return parse_text(g);
    if (c == '[')
        return parse_class(g);
    if (c == '.') {
        g->at++;
        return gr_set(g->b, all, 1, false);
    }
    if (name_char(c)) {
        node = parse_name(g);
        return g->b->rc == RC_OK ? gr_call(g->b, node) : 0;
    }
    if (c != '(')
        return bad(g, g->at >= g->n ? "UnexpectedEnd" : "UnexpectedCharacter",
                   "expected a text, a class, a group or the name of a rule");
    g->at++;
    if (++g->depth > GR_TREE_DEPTH) {
        gr_fail(g->b, RC_TOO_LARGE, "byte %zu: groups are nested more than %d deep", g->at,
                GR_TREE_DEPTH);
        return 0;
    }
    node = parse_alt(g);
    g->depth--;
    if (g->b->rc == RC_OK && now(g) != ')')
        return bad(g, "UnexpectedEnd", "')' is missing");
    g->at++;
    return node;
}

static uint32_t counted(struct gb *g, uint32_t node)
{
    uint32_t min, max;

    g->at++;
    blanks(g, false);
    if ((min = gr_decimal(g->s, g->n, &g->at)) == GR_NONE)
        return bad(g, "ExpectedNumber", "expected a number behind '{'");
    max = min;
    blanks(g, false);
    if (now(g) == ',') {
        g->at++;
        blanks(g, false);
        if ((max = gr_decimal(g->s, g->n, &g->at)) == GR_NONE)
            max = GR_INF;
        blanks(g, false);
    }
    if (now(g) != '}')
        return bad(g, "UnexpectedEnd", "'}' is missing");
    g->at++;
    if (max < min)
        return bad(g, "InvalidRange", "a repetition of at least more than at most");
    if (min > GR_COUNT_MAX)
        return bad(g, "TooLarge", "a repetition of at least more than 1000000");
    return gr_rep(g->b, node, min, max);
}

static uint32_t parse_repeated(struct gb *g)
{
    uint32_t node = parse_item(g), signs = 0;

    for (; g->b->rc == RC_OK; signs++) {
        blanks(g, g->depth > 0);
        if (now(g) == '*' || now(g) == '+' || now(g) == '?') {
            char c = g->s[g->at++];

            node = gr_rep(g->b, node, c == '+', c == '?' ? 1 : GR_INF);
        } else if (now(g) == '{') {
            node = counted(g, node);
        } else {
            break;
        }
        if (signs == 8)
            return bad(g, "TooLarge", "more than eight repetitions of one item");
    }
    return node;
}

static bool ends_here(struct gb *g)
{
    blanks(g, g->depth > 0);
    return g->at >= g->n || now(g) == '|' || now(g) == ')' || now(g) == '\n' || now(g) == '\r';
}

static void keep(struct gb *g, struct gr_vec *v, uint32_t node)
{
    uint32_t *p = gr_push(g->b, v, sizeof(*p), GR_NODES_MAX, "tree nodes");

    if (p != NULL)
        *p = node;
}

static uint32_t parse_seq(struct gb *g)
{
    struct gr_vec v = {0};
    uint32_t node;

    while (g->b->rc == RC_OK && !ends_here(g))
        keep(g, &v, parse_repeated(g));
    node = g->b->rc == RC_OK ? gr_seq(g->b, v.p, v.n) : 0;
    free(v.p);
    return node;
}

static uint32_t parse_alt(struct gb *g)
{
    struct gr_vec v = {0};
    uint32_t node;

    for (;;) {
        keep(g, &v, parse_seq(g));
        if (g->b->rc != RC_OK || now(g) != '|')
            break;
        g->at++;
        blanks(g, true);
    }
    node = g->b->rc == RC_OK ? gr_alt(g->b, v.p, v.n) : 0;
    free(v.p);
    return node;
}

void gr_read_gbnf(struct gr_build *b, const char *text, size_t n)
{
    struct gb g = {.b = b, .s = text, .n = n};
    uint32_t root = gr_rule_new(b, "root"), r;

    for (blanks(&g, true); g.at < n && b->rc == RC_OK; blanks(&g, true)) {
        uint32_t node;

        r = parse_name(&g);
        blanks(&g, false);
        if (b->rc == RC_OK && (n - g.at < 3 || memcmp(text + g.at, "::=", 3) != 0)) {
            bad(&g, "ExpectedAssignment", "expected '::=' behind the name of a rule");
            return;
        }
        g.at += 3;
        blanks(&g, true);
        node = parse_alt(&g);
        if (b->rc == RC_OK && now(&g) == ')')
            bad(&g, "UnexpectedCharacter", "')' without its '('");
        if (b->rc != RC_OK)
            return;
        if (gr_rule(b, r)->node != GR_NONE)
            bad(&g, "DuplicateRule", gr_rule(b, r)->name);
        gr_rule(b, r)->node = node;
    }
    if (b->rc == RC_OK && gr_rule(b, root)->node == GR_NONE)
        gr_fail(b, RC_INVALID, "NoRootRule: the rule 'root' is missing");
}
