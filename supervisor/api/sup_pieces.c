/* sup_pieces.c - where the built-in chunkers cut (see sup_pieces.h).
 *
 * Tokens are read one after the other and only those of the piece at work are remembered, so a
 * text costs no memory by its length. The last place where a piece may end is kept as it is
 * passed: if that one is too near to the piece's beginning, all before it are too.
 * Tests: tests/supervisor/test_sup_pieces.c
 */
#include "sup_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "sup_text.h"

#define WORD_MAX 100u /* characters; the tokenizers of BERT give up there */

enum kind { SPACE, WORD, DIGIT, MARK, ALONE };

struct token {
    size_t from, to;
    uint32_t start, end;
};

struct reader {
    const char *s;
    size_t n, at;
    uint32_t n_chars; /* before at */
    const struct sup_cutting *how;
    size_t separator_end; /* of the next separator; SIZE_MAX = there is none */
    bool behind_sentence; /* the tokens read so far end one */
    uint32_t last_mark;   /* their last character that is no closing mark */
};

static bool in(uint32_t cp, uint32_t first, uint32_t last)
{
    return cp >= first && cp <= last;
}

static bool is_space(uint32_t cp)
{
    return cp == ' ' || in(cp, 9, 13) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           in(cp, 0x2000, 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static bool is_chinese(uint32_t cp)
{
    return in(cp, 0x4E00, 0x9FFF) || in(cp, 0x3400, 0x4DBF) || in(cp, 0x20000, 0x2CEAF) ||
           in(cp, 0xF900, 0xFAFF) || in(cp, 0x2F800, 0x2FA1F);
}

static bool is_mark(uint32_t cp)
{
    if (cp < 0x80)
        return in(cp, 33, 47) || in(cp, 58, 64) || in(cp, 91, 96) || in(cp, 123, 126);
    return cp == 0xA1 || cp == 0xA7 || cp == 0xAB || cp == 0xB6 || cp == 0xB7 || cp == 0xBB ||
           cp == 0xBF || in(cp, 0x2010, 0x2027) || in(cp, 0x2030, 0x205E) ||
           in(cp, 0x3001, 0x3003) || in(cp, 0x3008, 0x3011) || in(cp, 0x3014, 0x301F) ||
           in(cp, 0xFF01, 0xFF0F) || in(cp, 0xFF1A, 0xFF20) || in(cp, 0xFF3B, 0xFF40) ||
           in(cp, 0xFF5B, 0xFF65);
}

static enum kind kind_of(uint32_t cp, bool runs)
{
    if (is_space(cp))
        return SPACE;
    if (is_mark(cp))
        return MARK;
    if (is_chinese(cp))
        return ALONE;
    return runs && in(cp, '0', '9') ? DIGIT : WORD;
}

/* ---------------------------------------------------------------- sentences */

static bool ends_sentence(uint32_t cp)
{
    return cp == '.' || cp == '!' || cp == '?' || cp == 0x2026 || cp == 0x3002 || cp == 0xFF01 ||
           cp == 0xFF1F || cp == 0xFF0E;
}

static bool needs_no_space(uint32_t cp)
{
    return cp == 0x3002 || cp == 0xFF01 || cp == 0xFF1F;
}

static bool closes(uint32_t cp)
{
    return cp == ')' || cp == ']' || cp == '}' || cp == '"' || cp == '\'' || cp == 0x201D ||
           cp == 0x2019 || cp == 0xBB || cp == 0x300D || cp == 0x300F || cp == 0xFF09;
}

/* -------------------------------------------------------------------- tokens */

static uint32_t peek(const struct reader *r, size_t *len)
{
    uint32_t cp = 0xFFFD;
    bool ok = false;

    *len = sup_text_next(r->s + r->at, r->n - r->at, &cp, &ok);
    return cp;
}

static void step(struct reader *r, uint32_t cp, size_t len)
{
    if (!closes(cp))
        r->last_mark = cp;
    r->at += len;
    r->n_chars++;
}

/* White space; true when there was some. */
static bool skip_space(struct reader *r)
{
    size_t from = r->at, len;
    uint32_t cp;

    while (r->at < r->n && is_space(cp = peek(r, &len))) {
        r->at += len;
        r->n_chars++;
    }
    return r->at > from;
}

static bool next_token(struct reader *r, struct token *t)
{
    enum kind first;
    size_t len;
    uint32_t cp, chars = 1;
    bool spaced = skip_space(r);

    r->behind_sentence = ends_sentence(r->last_mark) && (spaced || needs_no_space(r->last_mark));
    if (r->at == r->n)
        return false;
    t->from = r->at;
    t->start = r->n_chars;
    cp = peek(r, &len);
    /* "(ok." and then a quote: what closes still belongs to the sentence */
    r->behind_sentence = r->behind_sentence && (spaced || !closes(cp));
    first = kind_of(cp, r->how->runs);
    step(r, cp, len);
    while (r->at < r->n && chars < WORD_MAX && first != ALONE && (first != MARK || r->how->runs) &&
           kind_of(cp = peek(r, &len), r->how->runs) == first) {
        step(r, cp, len);
        chars++;
    }
    t->to = r->at;
    t->end = r->n_chars;
    return true;
}

static void find_separator(struct reader *r, size_t from)
{
    size_t n = strlen(r->how->separator);
    const char *at =
        n && from < r->n ? memmem(r->s + from, r->n - from, r->how->separator, n) : NULL;

    r->separator_end = at ? (size_t)(at - r->s) + n : SIZE_MAX;
}

/* Has a separator ended since this was asked last, at or before `from`? */
static bool passed_separator(struct reader *r, size_t from)
{
    bool any = false;

    while (r->separator_end <= from) {
        any = true;
        find_separator(r, r->separator_end);
    }
    return any;
}

/* -------------------------------------------------------------------- pieces */

struct window {
    struct token *ring;   /* [how->target] */
    uint64_t first, next; /* of the piece; tokens first to next - 1 are in the ring */
    uint64_t behind_separator, behind_sentence; /* token that such an end is before; 0 = none */
};

static struct token *token_at(const struct window *w, const struct sup_cutting *how, uint64_t i)
{
    return &w->ring[i % how->target];
}

/* One past the last token of a full piece; always more than overlap behind its first. */
static uint64_t end_of(const struct window *w, const struct sup_cutting *how)
{
    const uint64_t least = w->first + how->overlap + 1;

    if (w->behind_separator >= least)
        return w->behind_separator;
    return how->sentences && w->behind_sentence >= least ? w->behind_sentence : w->next;
}

static void emit(const struct window *w, const struct sup_cutting *how, uint64_t end,
                 struct sup_piece *out)
{
    const struct token *a = token_at(w, how, w->first), *z = token_at(w, how, end - 1);

    *out = (struct sup_piece){a->from, z->to, a->start, z->end, (uint32_t)(end - w->first)};
}

static void note_ends(struct reader *r, struct window *w, const struct token *t)
{
    if (passed_separator(r, t->from))
        w->behind_separator = w->next;
    if (r->behind_sentence)
        w->behind_sentence = w->next;
}

bool sup_pieces(const char *text, size_t n_bytes, const struct sup_cutting *how,
                struct sup_piece *out, uint32_t *n, bool *cut, uint64_t *n_tokens)
{
    struct reader r = {.s = text, .n = n_bytes, .how = how};
    struct window w = {.ring = malloc(how->target * sizeof(*w.ring))};
    struct token t;
    bool more;

    if (!w.ring)
        return false;
    *n = 0;
    find_separator(&r, 0);
    for (more = next_token(&r, &t); more; more = next_token(&r, &t)) {
        note_ends(&r, &w, &t);
        if (w.next - w.first == how->target) {
            uint64_t end = end_of(&w, how);

            if (*n == how->max)
                break;
            emit(&w, how, end, &out[(*n)++]);
            w.first = end - how->overlap;
        }
        *token_at(&w, how, w.next) = t;
        w.next++;
    }
    if (!more && w.next > w.first && *n < how->max) {
        emit(&w, how, w.next, &out[(*n)++]);
        w.first = w.next;
    }
    *cut = more || w.next > w.first;
    *n_tokens = w.next;
    free(w.ring);
    return true;
}
