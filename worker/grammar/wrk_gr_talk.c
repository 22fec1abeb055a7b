/* wrk_gr_talk.c - answers of several parts: a thought, then calls of tools or a text.
 *
 * The thought is free, and stands between its marks; behind it comes what another grammar
 * takes (a schema, GBNF, an expression), or calls of tools, or either of them. Marks are
 * bytes that UTF-8 never has, so a place never belongs to two parts.
 * Text: '-', '1' or '*' (no calls, one, any number); where the answer begins: 'n' at its
 * text or call, 't' there or at a thought, 'i' inside a thought, 'c' behind the mark of
 * a call; the kind of the text's grammar, '0' for none; a function's name, or nothing
 * (any of them); a line's end; the tools' JSON, in one line; a line's end; the grammar.
 * Source: gemma.md 13.2. Tests: tests/worker/test_wrk_gr_calls.c, fuzz: fuzz_gr_calls.c
 */
#include <string.h>

#include "wrk_gr_impl.h"
#include "wrk_parse.h"

struct talk {
    char calls, begins;
    enum wrk_gr_kind kind;
    char only[WRK_CALL_NAME + 1];
    const char *tools, *text;
    size_t n_tools, n_text;
};

static bool read_head(struct talk *t, const char *s, size_t n)
{
    const char *line = memchr(s, '\n', n), *end;
    size_t n_head = line != NULL ? (size_t)(line - s) : 0;

    memset(t, 0, sizeof(*t));
    if (n_head < 3 || n_head - 3 > WRK_CALL_NAME || memchr("-1*", s[0], 3) == NULL ||
        memchr("ntic", s[1], 4) == NULL || s[2] < '0' || s[2] > '0' + WRK_GR_REGEX)
        return false;
    t->calls = s[0];
    t->begins = s[1];
    t->kind = (enum wrk_gr_kind)(s[2] - '0');
    memcpy(t->only, s + 3, n_head - 3);
    t->tools = line + 1;
    n -= n_head + 1;
    end = memchr(t->tools, '\n', n);
    t->n_tools = end != NULL ? (size_t)(end - t->tools) : n;
    t->text = t->tools + t->n_tools + (end != NULL);
    t->n_text = n - t->n_tools - (end != NULL);
    /* behind a call's mark comes a call and nothing else */
    return (t->calls != '-' || t->kind != WRK_GR_NONE) &&
           (t->begins != 'c' || (t->calls != '-' && t->kind == WRK_GR_NONE));
}

/* What a thought holds, and the mark that ends it. */
static uint32_t thought(struct gr_build *b)
{
    uint32_t any = gr_set(b, &(struct gr_range){1, 0x10ffff}, 1, false);

    return GR_SEQ_OF(b, gr_rep(b, any, 0, GR_INF), gr_mark(b, WRK_MARK_CHANNEL_END));
}

static uint32_t parts(struct gr_build *b, const struct talk *t)
{
    uint32_t kids[2], n = 0, text, node;

    if (t->kind != WRK_GR_NONE) {
        text = b->rule.n; /* its root; its names must not meet those of the tools' rules */
        gr_read(b, t->kind, t->text, t->n_text);
        kids[n++] = b->rc == RC_OK ? gr_call(b, text) : 0;
    }
    if (t->calls != '-' && b->rc == RC_OK) {
        b->field = gr_field(WRK_GR_TALK);
        node = gr_calls(b, t->tools, t->n_tools, t->only, t->calls == '1');
        kids[n++] = t->begins == 'c' ? node : GR_SEQ_OF(b, gr_mark(b, WRK_MARK_CALL), node);
    }
    if (b->rc != RC_OK)
        return 0;
    node = gr_alt(b, kids, n);
    if (t->begins == 'i')
        return GR_SEQ_OF(b, thought(b), node);
    if (t->begins != 't')
        return node;
    return GR_SEQ_OF(
        b,
        gr_opt(b, GR_SEQ_OF(b, gr_mark(b, WRK_MARK_CHANNEL), gr_str(b, "thought\n"), thought(b))),
        node);
}

void gr_read_talk(struct gr_build *b, const char *text, size_t n)
{
    uint32_t root = gr_rule_new(b, "the answer"), node = 0;
    struct talk t;

    if (!read_head(&t, text, n))
        gr_fail(b, RC_INVALID, "an answer of several parts has no head");
    else if (t.n_tools > WRK_GR_TEXT_MAX || t.n_text > WRK_GR_TEXT_MAX)
        gr_fail(b, RC_TOO_LARGE, "it has %zu bytes, at most %u",
                t.n_tools > t.n_text ? t.n_tools : t.n_text, WRK_GR_TEXT_MAX);
    else
        node = parts(b, &t);
    if (b->rc == RC_OK)
        gr_rule(b, root)->node = node;
}
