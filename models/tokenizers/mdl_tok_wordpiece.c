/* mdl_tok_wordpiece.c - greedy longest prefixes of one word.
 *
 * Continuations carry a prefix ("##"), or first pieces do (GGUF). A word of too many characters, or
 * one that cannot be covered, is one unknown token as a whole (encoders.md 2.5). Work per word is
 * at most its length times the longest piece. Tests: tests/models/test_mdl_tok*.c
 */
#include "mdl_tok_impl.h"

/* Longest piece at s; 0 when none. */
static size_t longest_piece(const struct mdl_tok *t, const char *s, size_t n, bool inside,
                            int32_t *id)
{
    char buf[TOK_MAX_STR + MDL_PIECE_MAX];
    size_t skip = inside ? t->wp.n_prefix : t->wp.n_start, max = t->vocab.longest;

    if (max <= skip)
        return 0;
    if (n > max - skip)
        n = max - skip;
    memcpy(buf, inside ? t->wp.prefix : t->wp.start, skip);
    memcpy(buf + skip, s, n);
    for (; n > 0; n--) {
        if (((unsigned char)s[n] & 0xC0) == 0x80)
            continue; /* inside a character */
        *id = tok_vocab_find(&t->vocab, buf, skip + n);
        if (*id >= 0)
            return n;
    }
    return 0;
}

enum rc tok_wordpiece_word(struct tok_run *r, size_t from, size_t to)
{
    const struct mdl_tok *t = r->t;
    const char *s = r->cur->s; /* a NUL stands behind the text */
    size_t keep = r->out->n, k;
    int32_t id;
    enum rc rc = RC_OK;

    if (tok_count_chars(s + from, to - from) > t->wp.max_chars)
        return tok_emit(r, t->wp.unk, from, to);
    for (size_t at = from; at < to; at += k) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        k = longest_piece(t, s + at, to - at, at > from, &id);
        if (k == 0) {
            r->out->n = keep;
            r->over = false;
            return tok_emit(r, t->wp.unk, from, to);
        }
        /* over the bound, but a word that fails later is one token after all */
        if (rc == RC_OK && (rc = tok_emit(r, id, at, at + k)) != RC_OK && rc != RC_TOO_LARGE)
            return rc;
    }
    return rc;
}
