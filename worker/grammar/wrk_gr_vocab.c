/* wrk_gr_vocab.c - the texts of all tokens as a trie, and masks from it.
 *
 * The trie is an array in depth-first order, so that a walk is a loop and a byte that
 * leads nowhere skips its subtree. Plain tokens - whole characters of a JSON string that
 * need no escape, most of a vocabulary - also have masks by their number of characters:
 * inside a string only the others are walked. Always true: tokens of one byte are always
 * looked at; the work of a walk is bounded, and since it begins with an empty machine the
 * result is the same everywhere. Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_impl.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 1024u   /* bytes of a token that is looked at; longer ones are never allowed */
#define WORK_MAX 2000000u /* nodes and places looked at for one mask: some 10 ms */

/* ------------------------------------------------------------------------ trie */

struct word {
    const char *s;
    uint32_t n;
    int32_t token;
};

static int by_text(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

    if (c != 0)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static uint32_t shared(const struct word *a, const struct word *b)
{
    uint32_t k = 0;

    while (k < a->n && k < b->n && a->s[k] == b->s[k])
        k++;
    return k;
}

/* Words in order. Two of the same text are siblings. */
static bool trie_build(struct gr_trie *t, const struct word *w, uint32_t n)
{
    uint32_t open[DEPTH_MAX + 1], depth = 0;
    size_t total = 0;

    for (uint32_t i = 0; i < n; i++)
        total += w[i].n - (i > 0 ? shared(&w[i - 1], &w[i]) : 0) + 1;
    if (total > INT32_MAX || (t->node = malloc((total + 1) * sizeof(*t->node))) == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = i > 0 ? shared(&w[i - 1], &w[i]) : 0;
        bool twin = i > 0 && from == w[i].n;

        for (from -= twin; depth > from; depth--)
            t->node[open[depth]].next = t->n;
        while (depth < w[i].n) {
            open[++depth] = t->n;
            t->node[t->n++] = (struct gr_tnode){
                .token = -1, .depth = (uint16_t)depth, .byte = (uint8_t)w[i].s[depth - 1]};
        }
        t->node[open[depth]].token = w[i].token;
        if (depth > t->most_depth)
            t->most_depth = depth;
    }
    for (; depth > 0; depth--)
        t->node[open[depth]].next = t->n;
    return true;
}

/* ---------------------------------------------------------------------- plain */

/* Characters of a token that is plain, 0: it is not. */
static uint32_t plain_chars(const char *s, uint32_t n)
{
    uint32_t chars = 0;
    size_t at = 0;

    while (at < n) {
        uint32_t c = gr_utf8(s, n, &at);

        /* the dot of an expression does not match U+2028 and U+2029 */
        if (c == GR_NONE || c < 0x20 || c == '"' || c == '\\' || (c | 1) == 0x2029 ||
            ++chars > GR_PLAIN_MAX)
            return 0;
    }
    return chars;
}

static bool plain_masks(struct wrk_gr_vocab *v, const uint8_t *chars)
{
    for (uint32_t k = 0; k <= v->most_plain; k++) {
        if ((v->plain[k] = calloc(v->n_words, sizeof(uint64_t))) == NULL)
            return false;
        v->bytes += v->n_words * sizeof(uint64_t);
        for (uint32_t t = 0; t < v->n_vocab; t++)
            if (chars[t] > 0 && chars[t] <= k)
                v->plain[k][t / 64] |= 1ull << (t % 64);
    }
    return true;
}

/* ------------------------------------------------------------------- lifetime */

static bool is_eos(const struct wrk_gr_vocab *v, int32_t id)
{
    for (size_t i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id)
            return true;
    return false;
}

static bool read_texts(struct wrk_gr_vocab *v, const char *(*bytes)(void *, int32_t, size_t *),
                       void *user)
{
    size_t cap = (size_t)v->n_vocab * 8 + 64, n = 0, k;

    v->text_at = malloc((v->n_vocab + 1) * sizeof(*v->text_at));
    v->text = malloc(cap);
    for (uint32_t t = 0; t < v->n_vocab && v->text != NULL && v->text_at != NULL; t++) {
        const char *s = bytes(user, (int32_t)t, &k);

        v->text_at[t] = (uint32_t)n;
        if (s == NULL || k > DEPTH_MAX || is_eos(v, (int32_t)t))
            continue;
        if (n + k > cap) {
            char *p = realloc(v->text, cap = (n + k) * 2);

            if (p == NULL)
                return false;
            v->text = p;
        }
        memcpy(v->text + n, s, k);
        n += k;
    }
    if (v->text == NULL || v->text_at == NULL || n > UINT32_MAX / 2)
        return false;
    v->text_at[v->n_vocab] = (uint32_t)n;
    v->bytes += cap + v->n_vocab * sizeof(*v->text_at);
    return true;
}

static bool build(struct wrk_gr_vocab *v)
{
    struct word *w = malloc((v->n_vocab + 1) * sizeof(*w));
    uint8_t *chars = calloc(v->n_vocab + 1, 1);
    uint32_t n = 0, n_odd = 0;
    bool ok = w != NULL && chars != NULL;

    for (uint32_t t = 0; ok && t < v->n_vocab; t++) {
        uint32_t len = v->text_at[t + 1] - v->text_at[t], begun;

        if (len == 0)
            continue;
        w[n++] = (struct word){v->text + v->text_at[t], len, (int32_t)t};
        chars[t] = (uint8_t)plain_chars(v->text + v->text_at[t], len);
        if (chars[t] > v->most_plain)
            v->most_plain = chars[t];
        if (len > v->longest)
            v->longest = len;
        begun = 1 + gr_utf8_count(w[n - 1].s, len); /* 1: it may begin inside of one */
        if (begun > v->most_chars)
            v->most_chars = begun;
    }
    if (ok && n > 0)
        qsort(w, n, sizeof(*w), by_text);
    ok = ok && trie_build(&v->all, w, n);
    for (uint32_t i = 0; ok && i < n; i++)
        if (chars[w[i].token] == 0)
            w[n_odd++] = w[i];
    ok = ok && trie_build(&v->odd, w, n_odd) && plain_masks(v, chars);
    v->bytes += ((size_t)v->all.n + v->odd.n) * sizeof(struct gr_tnode);
    free(w);
    free(chars);
    return ok;
}

enum rc wrk_gr_vocab_new(struct wrk_gr_vocab **out, uint32_t n_vocab,
                         const char *(*bytes)(void *, int32_t, size_t *), void *user,
                         const int32_t *eos, size_t n_eos, struct rc_err *err)
{
    struct wrk_gr_vocab *v = calloc(1, sizeof(*v));

    if (v == NULL || (v->eos = calloc(n_eos + 1, sizeof(*v->eos))) == NULL) {
        free(v);
        return rc_fail(err, RC_NOMEM, "vocabulary of %u tokens for grammars", n_vocab);
    }
    v->n_vocab = n_vocab;
    v->n_words = (n_vocab + 63) / 64;
    for (size_t i = 0; i < n_eos; i++)
        if (eos[i] >= 0 && (uint32_t)eos[i] < n_vocab)
            v->eos[v->n_eos++] = eos[i];
    if (!read_texts(v, bytes, user) || !build(v)) {
        wrk_gr_vocab_free(&v);
        return rc_fail(err, RC_NOMEM, "vocabulary of %u tokens for grammars", n_vocab);
    }
    *out = v;
    return RC_OK;
}

void wrk_gr_vocab_free(struct wrk_gr_vocab **pv)
{
    struct wrk_gr_vocab *v = *pv;

    if (v == NULL)
        return;
    for (uint32_t k = 0; k <= GR_PLAIN_MAX; k++)
        free(v->plain[k]);
    free(v->all.node);
    free(v->odd.node);
    free(v->eos);
    free(v->text);
    free(v->text_at);
    free(v);
    *pv = NULL;
}

size_t wrk_gr_vocab_bytes(const struct wrk_gr_vocab *v)
{
    return v->bytes;
}

/* ----------------------------------------------------------------------- walk */

static void allow(uint64_t *bits, int32_t token)
{
    bits[(uint32_t)token / 64] |= 1ull << ((uint32_t)token % 64);
}

static void walk(struct gr_mach *m, uint32_t set, const struct gr_trie *t, uint64_t *bits)
{
    uint32_t at[DEPTH_MAX + 1];

    at[0] = set;
    for (uint32_t i = 0; i < t->n;) {
        const struct gr_tnode *n = &t->node[i];
        uint32_t to;

        if (n->depth > 1 && ++m->work > WORK_MAX) {
            m->cut = true;
            i = n->next;
            continue;
        }
        to = gr_mach_move(m, at[n->depth - 1], n->byte);
        if (to == GR_DEAD) {
            i = n->next;
            continue;
        }
        at[n->depth] = to;
        if (n->token >= 0)
            allow(bits, n->token);
        i++;
    }
}

/* How many plain characters can follow in a row, whatever they are; 0: not known. */
static uint32_t plain_room(const struct gr_mach *m, struct gr_config c)
{
    const struct gr_state *s = &m->prog->state[c.state];
    const struct gr_frame *f = &m->frame[c.frame];
    const struct gr_call *call;

    if (s->plain == GR_PLAIN_LOOP)
        return GR_INF;
    if (s->plain != GR_PLAIN_ONE || c.frame == 0)
        return 0;
    call = &m->prog->call[f->call];
    if (m->prog->rule[call->rule].start != c.state)
        return 0;
    return call->max == GR_INF ? GR_INF : call->max - f->count;
}

void gr_mask_compute(struct gr_mach *m, uint32_t set, const struct wrk_gr_vocab *v, uint64_t *bits)
{
    struct gr_set_at s = m->set[set];
    uint32_t room = 0, outs = 0;

    for (uint32_t k = 0; k < s.n; k++) {
        uint32_t r = plain_room(m, m->cfg[s.first + k]);

        room = r > room ? r : room;
        outs += m->prog->state[m->cfg[s.first + k].state].plain_out;
    }
    /* where another stack also reads plain characters, one that counts them is not all */
    if (room >= v->most_plain || (room > 0 && outs == 1)) {
        memcpy(bits, v->plain[room < v->most_plain ? room : v->most_plain],
               v->n_words * sizeof(*bits));
        walk(m, set, &v->odd, bits);
    } else {
        walk(m, set, &v->all, bits);
    }
    for (size_t i = 0; i < v->n_eos && s.may_end; i++)
        allow(bits, v->eos[i]);
}
