/* mdl_tok_unigram.c - the most probable pieces of a text (SentencePiece Unigram).
 *
 * Viterbi from left to right: at each character all pieces that begin there, found in one
 * walk down a trie, so work is the text times the longest piece. Sums are float64 in
 * reading order and a later way wins only when it is strictly better, as in the reference.
 * A character that is no piece costs the lowest score less 10; unknown ones in a row are
 * one token (encoders.md 2.5).
 *
 * Always true: with flags.parse_special off no special piece is ever taken, though its
 * spelling stands in the table with score 0: text cannot become a control token here.
 * Tests: tests/models/test_mdl_tok_parts.c
 */
#include "mdl_tok_impl.h"

#include <math.h>
#include <stdlib.h>

#define UNK_PENALTY 10.0
#define MANY 8 /* children: more have a table */

struct tok_step {
    double score;
    uint32_t from; /* bytes into the word; UINT32_MAX: no way here */
    int32_t id;    /* -1: unknown character */
};

/* -------------------------------------------------------------------- trie */

struct word {
    const char *s;
    uint32_t n, id;
};

static int by_spelling(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

    return d ? d : x->n < y->n ? -1 : x->n > y->n;
}

static uint32_t common(const struct word *a, const struct word *b)
{
    uint32_t i = 0;

    while (i < a->n && i < b->n && a->s[i] == b->s[i])
        i++;
    return i;
}

/* Level by level, so that the children of a node are neighbours. lo, hi: the words below
 * each node; n_words sorted and different. Returns the number of nodes that want a table. */
static uint32_t trie_fill(const struct mdl_tok *t, const struct word *w, uint32_t n_words,
                          uint32_t *lo, uint32_t *hi)
{
    struct tok_node *nodes = t->uni.nodes;
    uint32_t n = 1, level_end = 1, depth = 0, n_tables = 0;

    lo[0] = 0;
    hi[0] = n_words;
    nodes[0] = (struct tok_node){.id = -1}; /* the empty word is none */
    for (uint32_t node = 0; node < n; node++) {
        if (node == level_end) {
            level_end = n;
            depth++;
        }
        nodes[node].first = n;
        for (uint32_t i = lo[node], j; i < hi[node]; i = j) {
            if (w[i].n == depth) { /* ends at this node */
                j = i + 1;
                continue;
            }
            uint8_t c = (uint8_t)w[i].s[depth];
            for (j = i; j < hi[node] && (uint8_t)w[j].s[depth] == c; j++)
                ;
            lo[n] = i;
            hi[n] = j;
            nodes[n] = (struct tok_node){.id = -1, .byte = c};
            if (w[i].n == depth + 1) {
                nodes[n].id = (int32_t)w[i].id;
                nodes[n].score = t->uni.scores[w[i].id];
                nodes[n].special = t->vocab.flags[w[i].id] & TOK_SPECIAL;
            }
            n++;
        }
        nodes[node].n = (uint16_t)(n - nodes[node].first);
        n_tables += nodes[node].n > MANY;
    }
    return n_tables;
}

static enum rc tables_fill(struct tok_unigram *u, size_t n_nodes, uint32_t n_tables,
                           struct rc_err *err)
{
    uint32_t k = 0;

    u->tables = calloc((size_t)n_tables * 256 + 1, sizeof(*u->tables));
    if (!u->tables)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %u tables", n_tables);
    for (size_t i = 0; i < n_nodes; i++) {
        struct tok_node *nd = &u->nodes[i];
        if (nd->n <= MANY)
            continue;
        for (uint32_t c = nd->first; c < nd->first + nd->n; c++)
            u->tables[256 * (size_t)k + u->nodes[c].byte] = c;
        nd->first = k++;
        nd->table = true;
    }
    return RC_OK;
}

/* Bytes and filling of a GGUF are no pieces of text. */
static bool reachable(const struct mdl_tok *t, uint32_t id)
{
    return (t->vocab.flags[id] & (TOK_NO_JOIN | TOK_SPECIAL)) != TOK_NO_JOIN;
}

static enum rc trie_build(struct mdl_tok *t, uint32_t n_ids, struct rc_err *err)
{
    struct tok_unigram *u = &t->uni;
    struct word *w = malloc((n_ids + 1) * sizeof(*w));
    uint32_t *lo = NULL, *hi = NULL, n_words = 0;
    size_t n = 1;
    enum rc rc = RC_OK;

    for (uint32_t id = 0; w && id < n_ids; id++) {
        uint32_t len;
        const char *s = tok_vocab_at(&t->vocab, id, &len);
        /* of two pieces with one spelling the later id counts */
        if (len && reachable(t, id) && tok_vocab_find(&t->vocab, s, len) == (int32_t)id)
            w[n_words++] = (struct word){s, len, id};
    }
    if (w && n_words)
        qsort(w, n_words, sizeof(*w), by_spelling);
    for (uint32_t i = 0; w && i < n_words; i++)
        n += w[i].n - (i ? common(&w[i - 1], &w[i]) : 0);
    if (w && n < UINT32_MAX) {
        u->nodes = malloc(n * sizeof(*u->nodes));
        lo = malloc(n * sizeof(*lo));
        hi = malloc(n * sizeof(*hi));
    }
    if (u->nodes && lo && hi)
        rc = tables_fill(u, n, trie_fill(t, w, n_words, lo, hi), err);
    else
        rc = rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu nodes of %u pieces", n, n_words);
    free(w);
    free(lo);
    free(hi);
    return rc;
}

enum rc tok_unigram_init(struct mdl_tok *t, uint32_t n_ids, struct rc_err *err)
{
    struct tok_unigram *u = &t->uni;
    double min = INFINITY;

    for (uint32_t id = 0; id < n_ids; id++)
        if (reachable(t, id) && u->scores[id] < min)
            min = u->scores[id];
    u->n_pieces = n_ids;
    u->unk_score = min - UNK_PENALTY;
    tok_vocab_bytes(&t->vocab, n_ids, u->byte_id);
    return trie_build(t, n_ids, err);
}

void tok_unigram_deinit(struct tok_unigram *u)
{
    free(u->scores);
    free(u->nodes);
    free(u->tables);
    *u = (struct tok_unigram){0};
}

/* The child of node by byte c, 0 none. */
static inline uint32_t child(const struct tok_unigram *u, uint32_t node, uint8_t c)
{
    const struct tok_node *nd = &u->nodes[node];

    if (nd->table)
        return u->tables[256 * (size_t)nd->first + c];
    for (uint32_t i = nd->first; i < nd->first + nd->n; i++)
        if (u->nodes[i].byte == c)
            return i;
    return 0;
}

/* ------------------------------------------------------------------- encode */

static enum rc path_reserve(struct tok_run *r, size_t n)
{
    size_t cap = r->cap_path ? r->cap_path : 256;

    if (n <= r->cap_path)
        return RC_OK;
    while (cap < n)
        cap *= 2;
    void *p = realloc(r->path, cap * sizeof(*r->path));
    if (!p)
        return rc_fail(r->err, RC_NOMEM, "no memory to tokenize %zu bytes", n);
    r->path = p;
    r->cap_path = cap;
    return RC_OK;
}

static void offer(struct tok_step *to, double score, size_t from, int32_t id)
{
    if (to->from == UINT32_MAX || score > to->score)
        *to = (struct tok_step){score, (uint32_t)from, id};
}

/* Best way to each place of s. */
static enum rc forward(struct tok_run *r, const char *s, size_t n)
{
    const struct tok_unigram *u = &r->t->uni;
    const bool special = r->flags->parse_special;
    struct tok_step *p = r->path;
    uint32_t cp;

    for (size_t i = 0; i <= n; i++)
        p[i].from = UINT32_MAX;
    p[0] = (struct tok_step){0, UINT32_MAX, -1};
    for (size_t i = 0, k; i < n; i += k) {
        bool single = false;
        uint32_t node = 0;
        if (!(k = tok_utf8(s + i, n - i, &cp)))
            return rc_fail(r->err, RC_INTERNAL, "text is not UTF-8 behind the normalizer");
        for (size_t j = i; j < n && (node = child(u, node, (uint8_t)s[j])); j++) {
            const struct tok_node *nd = &u->nodes[node];
            if (tok_stopped(r))
                return tok_stop_error(r);
            if (nd->id < 0 || (nd->special && !special))
                continue;
            offer(&p[j + 1], nd->score + p[i].score, i, nd->id == u->unk ? -1 : nd->id);
            single |= j + 1 - i == k;
        }
        if (!single)
            offer(&p[i + k], u->unk_score + p[i].score, i, -1);
        if (tok_stopped(r))
            return tok_stop_error(r);
    }
    return RC_OK;
}

/* [from, to) of the word are unknown characters in a row. */
static enum rc emit_unknown(struct tok_run *r, size_t from, size_t to)
{
    const struct tok_unigram *u = &r->t->uni;
    const char *s = r->cur->s;
    /* in the reference the row as a whole may be a piece */
    int32_t id = tok_vocab_find(&r->t->vocab, s + from, to - from);
    bool bytes = u->byte_fallback;
    enum rc rc = RC_OK;

    if (id >= 0 && !(r->t->vocab.flags[id] & TOK_SPECIAL) && (uint32_t)id < u->n_pieces)
        return tok_emit(r, id, from, to);
    for (size_t i = from; i < to && bytes; i++)
        bytes = u->byte_id[(uint8_t)s[i]] >= 0;
    if (!bytes) {
        if (u->unk < 0)
            return rc_fail(r->err, RC_INVALID,
                           "the text has a character that is no piece, and the vocabulary no "
                           "unknown token");
        return tok_emit(r, u->unk, from, to);
    }
    for (size_t i = from; i < to && rc == RC_OK; i++)
        rc = tok_stopped(r) ? tok_stop_error(r) : tok_emit(r, u->byte_id[(uint8_t)s[i]], from, to);
    return rc;
}

enum rc tok_unigram_word(struct tok_run *r, size_t from, size_t to)
{
    size_t n = to - from, at, next;
    struct tok_step *p;
    enum rc rc;

    if ((rc = path_reserve(r, n + 1)) != RC_OK || (rc = forward(r, r->cur->s + from, n)) != RC_OK)
        return rc;
    p = r->path;
    /* turn the links around: p[i].from becomes the place behind the token at i, and its id
     * the token's */
    uint32_t behind = (uint32_t)n;
    int32_t id = p[n].id;
    for (at = p[n].from; behind > 0;) {
        uint32_t before = p[at].from;
        int32_t id_before = p[at].id;
        p[at].from = behind;
        p[at].id = id;
        behind = (uint32_t)at;
        id = id_before;
        at = before;
        if (tok_stopped(r))
            return tok_stop_error(r);
    }
    for (at = 0; at < n && rc == RC_OK; at = next) {
        next = p[at].from;
        if (tok_stopped(r))
            return tok_stop_error(r);
        if (p[at].id >= 0) {
            rc = tok_emit(r, p[at].id, from + at, from + next);
            continue;
        }
        while (next < n && p[next].id < 0)
            next = p[next].from;
        rc = emit_unknown(r, from + at, from + next);
    }
    return rc;
}
