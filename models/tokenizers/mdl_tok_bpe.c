/* mdl_tok_bpe.c - merges: by rank (tokenizer.json, GGUF "gemma4") or by score
 * of the joined piece (GGUF "llama").
 *
 * A stretch is cut between two characters that stand next to each other in no
 * piece of the vocabulary: no merge can ever cross there, so each part is merged
 * alone and the result is the same. Inside a part: linked symbols and a heap of
 * candidates ordered by (rank or score, place), n log n at worst. A candidate is
 * stale, and dropped, when its two symbols are not what they were.
 *
 * Always true: a piece flagged TOK_NO_JOIN (control, byte) is never produced by
 * a merge, whatever the file says: text cannot become a control token here.
 * Source: gemma.md 12, encoders.md 2.5. Tests: tests/models/test_mdl_tok*.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

#define NONE UINT32_MAX
#define PAIR_BITS 22

struct tok_sym {
    uint32_t start, len; /* bytes of the stretch; len 0 = joined away */
    int32_t id;          /* -1: one character that is no piece (TOK_SCORES) */
    uint32_t prev, next;
};

struct tok_cand {
    uint64_t key; /* rank or inverted score, then place: smallest first */
    uint32_t len; /* of both symbols together */
    int32_t id;   /* of the joined piece */
};

/* --------------------------------------------------------------------- load */

static uint32_t pair_slot(const struct tok_bpe *b, uint32_t x, uint32_t y)
{
    uint32_t i = (uint32_t)mdl_mix(((uint64_t)x << 32 | y) ^ b->seed.a, b->seed.b) & b->mask;

    while (b->merges[i].id != NONE && (b->merges[i].a != x || b->merges[i].b != y))
        i = (i + 1) & b->mask;
    return i;
}

static uint32_t pair_bit(uint32_t x, uint32_t y)
{
    return (uint32_t)(((uint64_t)x << 21 ^ y) * 0x9E3779B97F4A7C15ull >> (64 - PAIR_BITS));
}

static bool pair_seen(const struct tok_bpe *b, uint32_t x, uint32_t y)
{
    uint32_t k = pair_bit(x, y);

    return b->pairs[k / 64] >> (k % 64) & 1;
}

enum rc tok_bpe_merges_init(struct tok_bpe *b, size_t n, struct rc_err *err)
{
    size_t cap = 16;

    while (cap < 2 * n)
        cap *= 2;
    b->merges = malloc(cap * sizeof(*b->merges));
    if (!b->merges)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu merges", n);
    memset(b->merges, 0xFF, cap * sizeof(*b->merges));
    b->mask = (uint32_t)(cap - 1);
    b->seed = mdl_hash_seed();
    return RC_OK;
}

enum rc tok_bpe_merge_add(struct mdl_tok *t, const char *l, size_t nl, const char *r, size_t nr,
                          uint32_t rank, const char *file, struct rc_err *err)
{
    const struct tok_vocab *v = &t->vocab;
    int32_t a = l ? tok_vocab_find(v, l, nl) : -1, b = r ? tok_vocab_find(v, r, nr) : -1, id = -1;
    char buf[2 * MDL_PIECE_MAX];

    if (a >= 0 && b >= 0) { /* neither is longer than a piece may be */
        memcpy(buf, l, nl);
        memcpy(buf + nl, r, nr);
        id = tok_vocab_find(v, buf, nl + nr);
    }
    if (id < 0)
        return rc_fail(err, RC_FORMAT, "%s: merge %u does not join two pieces into a third", file,
                       rank);
    if (!(v->flags[id] & TOK_NO_JOIN))
        t->bpe.merges[pair_slot(&t->bpe, (uint32_t)a, (uint32_t)b)] =
            (struct tok_merge){(uint32_t)a, (uint32_t)b, rank, (uint32_t)id};
    return RC_OK;
}

void tok_bpe_deinit(struct tok_bpe *b)
{
    free(b->merges);
    free(b->scores);
    free(b->bmp);
    free(b->pairs);
    *b = (struct tok_bpe){0};
}

/* Bytes, one-character pieces, neighbours. After the vocabulary is built. */
enum rc tok_bpe_init(struct mdl_tok *t, struct rc_err *err)
{
    const struct tok_vocab *v = &t->vocab;
    struct tok_bpe *b = &t->bpe;

    b->bmp = malloc(0x10000 * sizeof(*b->bmp));
    b->pairs = calloc((1u << PAIR_BITS) / 64, sizeof(*b->pairs));
    if (!b->bmp || !b->pairs)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for character tables");
    memset(b->bmp, 0xFF, 0x10000 * sizeof(*b->bmp));
    b->all_bytes = tok_vocab_bytes(v, v->n_ids, b->byte_id);
    for (uint32_t id = 0; id < v->n_ids; id++) {
        uint32_t n, cp, last = 0;
        const char *s = tok_vocab_at(v, id, &n);
        for (size_t i = 0, k; i < n; i += k, last = cp) {
            if (!(k = tok_utf8(s + i, n - i, &cp)))
                break; /* not text: no text can ever reach it */
            if (i > 0) {
                uint32_t bit = pair_bit(last, cp);
                b->pairs[bit / 64] |= 1ull << (bit % 64);
            }
            if (i == 0 && k == n && cp < 0x10000)
                b->bmp[cp] = tok_vocab_find(v, s, n);
        }
    }
    /* a merge of byte pieces spells "<0x..>": its text says nothing about the
     * characters it covers, so such a vocabulary is never cut */
    b->cut = true;
    for (uint32_t i = 0; b->merges && i <= b->mask; i++)
        if (b->merges[i].id != NONE &&
            ((v->flags[b->merges[i].a] | v->flags[b->merges[i].b]) & TOK_BYTE))
            b->cut = false;
    return RC_OK;
}

/* ------------------------------------------------------------------- encode */

static enum rc sym_add(struct tok_run *r, size_t start, size_t len, int32_t id)
{
    if (r->n_syms == r->cap_syms) {
        size_t cap = r->cap_syms ? 2 * r->cap_syms : 256;
        void *p = realloc(r->syms, cap * sizeof(*r->syms));
        if (!p)
            return rc_fail(r->err, RC_NOMEM, "no memory to tokenize %zu characters", cap);
        r->syms = p;
        r->cap_syms = cap;
    }
    r->syms[r->n_syms++] = (struct tok_sym){(uint32_t)start, (uint32_t)len, id, NONE, NONE};
    return RC_OK;
}

static void sift_down(struct tok_cand *h, size_t n, size_t i)
{
    struct tok_cand x = h[i];

    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1].key < h[c].key)
            c++;
        if (x.key <= h[c].key)
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

static struct tok_cand heap_pop(struct tok_run *r)
{
    struct tok_cand top = r->heap[0];

    r->heap[0] = r->heap[--r->n_heap];
    if (r->n_heap)
        sift_down(r->heap, r->n_heap, 0);
    return top;
}

static enum rc heap_push(struct tok_run *r, struct tok_cand c)
{
    size_t i = r->n_heap;

    if (r->n_heap == r->cap_heap) {
        size_t cap = r->cap_heap ? 2 * r->cap_heap : 256;
        void *p = realloc(r->heap, cap * sizeof(*r->heap));
        if (!p)
            return rc_fail(r->err, RC_NOMEM, "no memory to tokenize %zu characters", cap);
        r->heap = p;
        r->cap_heap = cap;
    }
    r->n_heap++;
    for (; i > 0 && c.key < r->heap[(i - 1) / 2].key; i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
    return RC_OK;
}

/* A higher score must give a smaller number; equal scores an equal one. */
static uint32_t score_key(float score)
{
    uint32_t u;

    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&u, &score, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u; /* ascending */
    return ~u;
}

/* Can symbols x and its follower be joined? */
static bool candidate(const struct tok_run *r, uint32_t x, struct tok_cand *c)
{
    const struct mdl_tok *t = r->t;
    const struct tok_sym *l = &r->syms[x], *q;
    uint32_t order;

    if (l->next == NONE)
        return false;
    q = &r->syms[l->next];
    c->len = l->len + q->len;
    if (t->model == TOK_SCORES) {
        if (c->len > t->vocab.longest)
            return false;
        c->id = tok_vocab_find(&t->vocab, r->cur->s + l->start, c->len);
        if (c->id < 0 || (t->vocab.flags[c->id] & TOK_NO_JOIN))
            return false;
        order = score_key(t->bpe.scores[c->id]);
    } else {
        const struct tok_merge *m =
            &t->bpe.merges[pair_slot(&t->bpe, (uint32_t)l->id, (uint32_t)q->id)];
        if (m->id == NONE)
            return false;
        c->id = (int32_t)m->id;
        order = m->rank;
    }
    c->key = (uint64_t)order << 32 | x;
    return true;
}

static enum rc emit_syms(struct tok_run *r)
{
    const struct mdl_tok *t = r->t;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i != NONE && rc == RC_OK; i = r->syms[i].next) {
        const struct tok_sym *s = &r->syms[i];
        if (tok_stopped(r))
            return tok_stop_error(r);
        if (s->id >= 0) {
            rc = tok_emit(r, s->id, s->start, s->start + s->len);
            continue;
        }
        for (uint32_t k = 0; k < s->len && rc == RC_OK; k++) {
            int32_t id = t->bpe.byte_id[(uint8_t)r->cur->s[s->start + k]];
            if (id < 0)
                id = t->bpe.unk;
            if (id >= 0)
                rc = tok_emit(r, id, s->start + k, s->start + k + 1);
        }
    }
    return rc;
}

/* Merges and emits the collected symbols. */
static enum rc flush_part(struct tok_run *r)
{
    struct tok_sym *s = r->syms;
    struct tok_cand c;
    enum rc rc = RC_OK;

    if (r->n_syms == 0)
        return RC_OK;
    for (size_t i = 0; i < r->n_syms; i++) {
        s[i].prev = i ? (uint32_t)i - 1 : NONE;
        s[i].next = i + 1 < r->n_syms ? (uint32_t)i + 1 : NONE;
    }
    r->n_heap = 0;
    for (uint32_t i = 0; i + 1 < r->n_syms; i++) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        if (candidate(r, i, &c) && (rc = heap_push(r, c)) != RC_OK)
            return rc;
    }
    while (r->n_heap) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        c = heap_pop(r);
        uint32_t x = (uint32_t)c.key, y;
        struct tok_cand now;
        if (s[x].len == 0 || !candidate(r, x, &now) || now.id != c.id || now.len != c.len ||
            now.key != c.key)
            continue; /* stale */
        y = s[x].next;
        s[x].len += s[y].len;
        s[x].id = c.id;
        s[x].next = s[y].next;
        s[y].len = 0;
        if (s[x].next != NONE)
            s[s[x].next].prev = x;
        if (candidate(r, x, &c) && (rc = heap_push(r, c)) != RC_OK)
            return rc;
        if (s[x].prev != NONE && candidate(r, s[x].prev, &c) && (rc = heap_push(r, c)) != RC_OK)
            return rc;
    }
    rc = emit_syms(r);
    r->n_syms = 0;
    return rc;
}

static int32_t char_id(const struct mdl_tok *t, uint32_t cp, const char *s, size_t n, bool last)
{
    char buf[4 + TOK_MAX_STR];

    if (last && t->bpe.n_suffix) {
        memcpy(buf, s, n);
        memcpy(buf + n, t->bpe.suffix, t->bpe.n_suffix);
        return tok_vocab_find(&t->vocab, buf, n + t->bpe.n_suffix);
    }
    return cp < 0x10000 ? t->bpe.bmp[cp] : tok_vocab_find(&t->vocab, s, n);
}

static bool bytes_known(const struct tok_bpe *b, const char *s, size_t n)
{
    if (b->all_bytes)
        return true;
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] < 0)
            return false;
    return true;
}

/* More tokens than allowed, whatever the merges do? Only when no token can be
 * longer than the longest piece. */
static bool hopeless(const struct tok_run *r, size_t n)
{
    const struct mdl_tok *t = r->t;
    size_t max = r->flags->max_tokens;

    if (!max || r->keep || !t->vocab.longest ||
        (t->bpe.unk >= 0 && t->bpe.fuse_unk && !t->bpe.all_bytes) ||
        (t->bpe.unk < 0 && !t->bpe.all_bytes))
        return false;
    return n / t->vocab.longest > max;
}

enum rc tok_bpe_word(struct tok_run *r, size_t from, size_t to)
{
    const struct mdl_tok *t = r->t;
    const struct tok_bpe *b = &t->bpe;
    const char *s = r->cur->s;
    size_t unk_len = 0, at = from, k;
    uint32_t cp, last = 0;
    int32_t id;
    enum rc rc;

    if (hopeless(r, to - from))
        return tok_over(r, (to - from) / t->vocab.longest);
    if (b->ignore_merges && (id = tok_vocab_find(&t->vocab, s + from, to - from)) >= 0 &&
        (r->flags->parse_special || !(t->vocab.flags[id] & TOK_SPECIAL)))
        return tok_emit(r, id, from, to);
    r->n_syms = 0;
    for (size_t i = from; i < to; i += k, last = cp) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        if (!(k = tok_utf8(s + i, to - i, &cp)))
            return rc_fail(r->err, RC_INTERNAL, "text is not UTF-8 behind the normalizer");
        id = char_id(t, cp, s + i, k, i + k == to);
        if (r->n_syms && b->cut && !unk_len && (id >= 0 || t->model == TOK_SCORES) &&
            !pair_seen(b, last, cp) && (rc = flush_part(r)) != RC_OK)
            return rc;
        if (id < 0 && t->model != TOK_SCORES) {
            if (b->byte_fallback && bytes_known(b, s + i, k)) {
                for (size_t j = 0; j < k; j++, at++)
                    if ((rc = sym_add(r, at, 1, b->byte_id[(uint8_t)s[i + j]])) != RC_OK)
                        return rc;
                continue;
            }
            if (b->unk < 0)
                continue; /* the reference drops it */
            if (unk_len && !b->fuse_unk) {
                if ((rc = sym_add(r, at, unk_len, b->unk)) != RC_OK)
                    return rc;
                at += unk_len;
                unk_len = 0;
            }
            unk_len += k;
            continue;
        }
        if (unk_len) {
            if ((rc = sym_add(r, at, unk_len, b->unk)) != RC_OK)
                return rc;
            at += unk_len;
            unk_len = 0;
        }
        if ((rc = sym_add(r, at, k, id)) != RC_OK)
            return rc;
        at += k;
    }
    if (unk_len && (rc = sym_add(r, at, unk_len, b->unk)) != RC_OK)
        return rc;
    return flush_part(r);
}
