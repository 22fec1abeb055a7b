/* wrk_gr_json.c - the grammar of JSON itself, as we write it.
 *
 * A part of RFC 8259 that every reader takes: one space, or a line's end and up to 32
 * blanks, where white space may stand (behind `{ [ , :` and before `} ]`); numbers of at
 * most 16 + 16 digits and a two-digit exponent; escapes, but no U+0000 and no half of a
 * surrogate pair. Tests: tests/worker/test_wrk_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t chars(struct sc *c, const char *of)
{
    struct gr_range r[32];
    uint32_t n = 0;

    for (; *of != '\0' && n < 32; of++, n++)
        r[n] = (struct gr_range){(unsigned char)*of, (unsigned char)*of};
    return gr_set(c->b, r, n, false);
}

static uint32_t range(struct sc *c, uint32_t lo, uint32_t hi)
{
    return gr_set(c->b, &(struct gr_range){lo, hi}, 1, false);
}

uint32_t sc_digits(struct sc *c, uint32_t min, uint32_t max)
{
    return gr_rep(c->b, range(c, '0', '9'), min, max);
}

uint32_t sc_space(struct sc *c)
{
    if (c->calls)
        return gr_empty(c->b);
    if (c->space == GR_NONE) {
        uint32_t r = c->space = gr_rule_new(c->b, "white space");
        uint32_t node =
            GR_ALT_OF(c->b, gr_str(c->b, " "),
                      GR_SEQ_OF(c->b, gr_str(c->b, "\n"), gr_rep(c->b, chars(c, " \t"), 0, 32)));

        if (c->b->rc == RC_OK)
            gr_rule(c->b, r)->node = node;
    }
    return gr_opt(c->b, gr_call(c->b, c->space));
}

uint32_t sc_char(struct sc *c)
{
    static const struct gr_range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}},
                                 not_d[] = {{'1', '9'},
                                            {'A', 'C'},
                                            {'E', 'F'},
                                            {'a', 'c'},
                                            {'e', 'f'}},
                                 not_0[] = {{'1', '9'}, {'A', 'F'}, {'a', 'f'}},
                                 high[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}},
                                 low[] = {{'C', 'F'}, {'c', 'f'}},
                                 plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    struct gr_build *b = c->b;
    uint32_t h, h2, u;

    if (c->chr == GR_NONE && c->calls)
        c->chr = sc_raw_char(c);
    if (c->chr != GR_NONE)
        return c->chr;
    h = gr_set(b, hex, 3, false);
    h2 = GR_SEQ_OF(b, h, h);
    u = GR_ALT_OF(b, GR_SEQ_OF(b, gr_set(b, not_d, 5, false), h, h2),
                  GR_SEQ_OF(b, gr_str(b, "0"), gr_set(b, not_0, 3, false), h2),
                  GR_SEQ_OF(b, gr_str(b, "00"), gr_set(b, not_0, 3, false), h),
                  GR_SEQ_OF(b, gr_str(b, "000"), gr_set(b, not_0, 3, false)),
                  GR_SEQ_OF(b, chars(c, "dD"), range(c, '0', '7'), h2),
                  GR_SEQ_OF(b, chars(c, "dD"), gr_set(b, high, 3, false), h2, gr_str(b, "\\u"),
                            chars(c, "dD"), gr_set(b, low, 2, false), h2));
    return c->chr = GR_ALT_OF(
               b, gr_set(b, plain, 3, false),
               GR_SEQ_OF(b, gr_str(b, "\\"),
                         GR_ALT_OF(b, chars(c, "\"\\/bfnrt"), GR_SEQ_OF(b, gr_str(b, "u"), u))));
}

/* A call of rule *r, which is made from node the first time. */
static uint32_t call_made(struct sc *c, uint32_t *r, const char *name,
                          uint32_t (*make)(struct sc *))
{
    if (*r == GR_NONE) {
        uint32_t node, rule = *r = gr_rule_new(c->b, name);

        node = make(c);
        if (c->b->rc == RC_OK)
            gr_rule(c->b, rule)->node = node;
    }
    return gr_call(c->b, *r);
}

static uint32_t make_string(struct sc *c)
{
    uint32_t quote = sc_quote(c);

    return GR_SEQ_OF(c->b, quote, gr_rep(c->b, sc_char(c), 0, GR_INF), quote);
}

uint32_t sc_string(struct sc *c)
{
    return call_made(c, &c->string, "string", make_string);
}

/* 0, or no more than n digits that do not begin with 0. */
static uint32_t whole(struct sc *c, uint32_t n)
{
    return GR_ALT_OF(c->b, gr_str(c->b, "0"),
                     GR_SEQ_OF(c->b, range(c, '1', '9'), sc_digits(c, 0, n - 1)));
}

static uint32_t make_number(struct sc *c)
{
    struct gr_build *b = c->b;

    return GR_SEQ_OF(
        b, gr_opt(b, gr_str(b, "-")), whole(c, 16),
        gr_opt(b, GR_SEQ_OF(b, gr_str(b, "."), sc_digits(c, 1, 16))),
        gr_opt(b, GR_SEQ_OF(b, chars(c, "eE"), gr_opt(b, chars(c, "+-")), sc_digits(c, 1, 2))));
}

uint32_t sc_number_any(struct sc *c)
{
    return call_made(c, &c->number, "number", make_number);
}

uint32_t sc_integer_any(struct sc *c)
{
    struct gr_build *b = c->b;

    return GR_ALT_OF(
        b, gr_str(b, "0"),
        GR_SEQ_OF(b, gr_opt(b, gr_str(b, "-")), range(c, '1', '9'), sc_digits(c, 0, 17)));
}

uint32_t sc_comma(struct sc *c)
{
    return GR_SEQ_OF(c->b, gr_str(c->b, ","), sc_space(c));
}

uint32_t sc_braces(struct sc *c, uint32_t *kids, uint32_t n)
{
    struct gr_build *b = c->b;

    kids[0] = sc_comma(c);
    kids[1] = GR_SEQ_OF(b, sc_space(c), gr_str(b, "}"));
    kids[2] = gr_str(b, "}");
    return GR_SEQ_OF(b, gr_str(b, "{"), sc_space(c), gr_members(b, kids, n));
}

uint32_t sc_brackets(struct sc *c, uint32_t items, bool may_be_empty)
{
    struct gr_build *b = c->b;
    uint32_t end = gr_str(b, "]"), inside = end;

    if (items != GR_NONE) {
        inside = GR_SEQ_OF(b, items, sc_space(c), end);
        if (may_be_empty)
            inside = GR_ALT_OF(b, inside, end);
    }
    return GR_SEQ_OF(b, gr_str(b, "["), sc_space(c), inside);
}

static uint32_t make_object(struct sc *c)
{
    struct gr_build *b = c->b;
    uint32_t kids[5];

    kids[3] = GR_SEQ_OF(b, sc_string(c), gr_str(b, ":"), sc_space(c), sc_value(c));
    kids[4] = GR_MANY;
    return sc_braces(c, kids, 5);
}

uint32_t sc_object_any(struct sc *c)
{
    return call_made(c, &c->object, "object", make_object);
}

static uint32_t make_array(struct sc *c)
{
    struct gr_build *b = c->b;
    uint32_t rest = GR_SEQ_OF(b, sc_comma(c), sc_value(c));

    return sc_brackets(c, GR_SEQ_OF(b, sc_value(c), gr_rep(b, rest, 0, GR_INF)), true);
}

uint32_t sc_array_any(struct sc *c)
{
    return call_made(c, &c->array, "array", make_array);
}

static uint32_t make_value(struct sc *c)
{
    struct gr_build *b = c->b;

    return GR_ALT_OF(b, sc_string(c), sc_number_any(c), sc_object_any(c), sc_array_any(c),
                     gr_str(b, "true"), gr_str(b, "false"), gr_str(b, "null"));
}

uint32_t sc_value(struct sc *c)
{
    return call_made(c, &c->value, "value", make_value);
}

uint32_t sc_literal(struct sc *c, const json_t *v)
{
    char number[40], *text = NULL;
    uint32_t node;

    if (c->calls && (json_is_string(v) || json_is_array(v) || json_is_object(v)))
        return sc_raw_literal(c, v);
    if (json_is_real(v)) { /* as short as it can be read back */
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(number, sizeof(number), "%.*g", digits, json_real_value(v));
            if (strtod(number, NULL) == json_real_value(v))
                break;
        }
        return gr_str(c->b, number);
    }
    if ((text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY)) == NULL) {
        gr_fail(c->b, RC_NOMEM, "no memory for a value");
        return 0;
    }
    node = gr_str(c->b, text);
    free(text);
    return node;
}
