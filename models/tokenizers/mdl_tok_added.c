/* mdl_tok_added.c - finds added tokens in a text.
 *
 * Leftmost place, longest token; then the flags: single_word asks for non-word
 * neighbours, lstrip and rstrip take whitespace along (encoders.md 2.1). Work is
 * at most text length times the longest added token.
 * Tests: tests/models/test_mdl_tok.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

enum rc tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t id, unsigned flags,
                     struct rc_err *err)
{
    uint32_t *link, node = 0;

    if (n == 0)
        return RC_OK;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        link = i == 0 ? &t->first[c] : &t->nodes[node].child;
        while (*link && t->nodes[*link].byte != c)
            link = &t->nodes[*link].sibling;
        if (*link) {
            node = *link;
            continue;
        }
        if (t->n + 2 > t->cap) {
            size_t at = i == 0 ? 0 : (size_t)((char *)link - (char *)t->nodes);
            uint32_t cap = t->cap ? 2 * t->cap : 256;
            void *p = realloc(t->nodes, cap * sizeof(*t->nodes));
            if (!p)
                return rc_fail(err, RC_NOMEM, "tokenizer: no memory for added tokens");
            t->nodes = p;
            t->cap = cap;
            if (i > 0)
                link = (uint32_t *)((char *)t->nodes + at);
            if (t->n == 0)
                t->n = 1; /* index 0 means none */
        }
        node = t->n++;
        t->nodes[node] = (struct tok_trie_node){.id = -1, .byte = c};
        *link = node;
    }
    t->nodes[node].id = id;
    t->nodes[node].flags = (uint8_t)flags;
    t->any = true;
    t->strips |= (flags & (TOK_LSTRIP | TOK_RSTRIP)) != 0;
    return RC_OK;
}

void tok_trie_deinit(struct tok_trie *t)
{
    free(t->nodes);
    *t = (struct tok_trie){0};
}

static uint32_t longest(const struct tok_trie *t, const char *s, size_t n, size_t *len)
{
    uint32_t node = t->first[(uint8_t)s[0]], best = 0;

    for (size_t i = 1; node; i++) {
        if (t->nodes[node].id >= 0) {
            best = node;
            *len = i;
        }
        if (i == n)
            break;
        node = t->nodes[node].child;
        while (node && t->nodes[node].byte != (uint8_t)s[i])
            node = t->nodes[node].sibling;
    }
    return best;
}

static size_t char_before(const char *s, size_t at, uint32_t *cp)
{
    size_t i = at;

    do
        i--;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80);
    return tok_utf8(s + i, at - i, cp);
}

static bool word_neighbour(const char *s, size_t n, size_t start, size_t end)
{
    uint32_t cp;

    return (start > 0 && char_before(s, start, &cp) && tok_is_word(cp)) ||
           (end < n && tok_utf8(s + end, n - end, &cp) && tok_is_word(cp));
}

struct tok_match tok_trie_next(const struct tok_trie *t, const struct tok_vocab *v, const char *s,
                               size_t n, size_t from, size_t *scan, bool special, struct tok_run *r)
{
    struct tok_match m = {n, n, -1};
    uint32_t cp, node;
    size_t len = 0, k;

    if (!t->any)
        return m;
    for (size_t i = *scan; i < n; i++) {
        if (tok_stopped(r))
            return m;
        if (!t->first[(uint8_t)s[i]] || !(node = longest(t, s + i, n - i, &len)))
            continue;
        const struct tok_trie_node *nd = &t->nodes[node];
        *scan = i + len;
        if (((v->flags[nd->id] & TOK_SPECIAL) && !special) ||
            ((nd->flags & TOK_SINGLE_WORD) && word_neighbour(s, n, i, i + len))) {
            i = *scan - 1; /* matches do not overlap, refused ones neither */
            continue;
        }
        m = (struct tok_match){i, i + len, nd->id};
        if (nd->flags & TOK_LSTRIP)
            while (m.start > from && (k = char_before(s, m.start, &cp)) && tok_is_space(cp))
                m.start -= k;
        if (nd->flags & TOK_RSTRIP)
            while (m.end < n && (k = tok_utf8(s + m.end, n - m.end, &cp)) && tok_is_space(cp))
                m.end += k;
        if (m.start < from)
            m.start = from;
        if (m.end < m.start)
            m.end = m.start;
        return m;
    }
    return m;
}
