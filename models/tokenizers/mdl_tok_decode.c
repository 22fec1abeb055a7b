/* mdl_tok_decode.c - ids back to text: whole, or one id at a time.
 *
 * What every id spells is worked out once at load, for two places: behind
 * another token and as the first one (WordPiece and Metaspace differ). Byte pieces are
 * joined: a run that is UTF-8 as a whole is text, else one U+FFFD per byte. The
 * streaming decoder gives each character as soon as it is complete; so a run
 * that starts well and ends badly shows its good characters, where the whole
 * decoding shows only U+FFFD. Otherwise the two agree.
 * Tests: tests/models/test_mdl_tok*.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

#define FFFD "\xEF\xBF\xBD"

/* --------------------------------------------------------------------- load */

/* Replaces from by to inside buf (cap bytes). */
static size_t replace_in(char *buf, size_t n, size_t cap, const char *from, size_t n_from,
                         const char *to, size_t n_to)
{
    char out[MDL_PIECE_MAX * 4];
    size_t o = 0, i = 0;

    while (i < n) {
        bool hit = n_from && n - i >= n_from && memcmp(buf + i, from, n_from) == 0;
        const char *s = hit ? to : buf + i;
        size_t k = hit ? n_to : 1;
        if (o + k > sizeof(out) || o + k > cap)
            break;
        memcpy(out + o, s, k);
        o += k;
        i += hit ? n_from : 1;
    }
    memcpy(buf, out, o);
    return o;
}

static size_t cleanup(char *buf, size_t n, size_t cap)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        n = replace_in(buf, n, cap, rules[i][0], strlen(rules[i][0]), rules[i][1],
                       strlen(rules[i][1]));
    return n;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The bytes that the characters of a byte-level piece stand for; a piece with any other
 * character is text. */
static size_t bytes_of(const char *s, uint32_t n, char *buf)
{
    size_t o = 0, k;
    uint32_t cp;

    for (size_t i = 0; i < n; i += k) {
        int b = (k = tok_utf8(s + i, n - i, &cp)) ? tok_char_byte(cp) : -1;
        if (b < 0) {
            memcpy(buf, s, n);
            return n;
        }
        buf[o++] = (char)b;
    }
    return o;
}

static size_t spell(const struct mdl_tok *t, uint32_t id, bool first, char *buf, size_t cap)
{
    uint32_t n;
    const char *s = tok_vocab_at(&t->vocab, id, &n);

    if (t->vocab.flags[id] & TOK_BYTE) {
        buf[0] = (char)(hex(s[3]) << 4 | hex(s[4]));
        return 1;
    }
    if (t->dec_wordpiece) {
        size_t o = 0, skip = 0;
        bool word; /* not a continuation */
        if (t->wp.n_start) {
            word = n >= t->wp.n_start && memcmp(s, t->wp.start, t->wp.n_start) == 0;
            skip = word ? t->wp.n_start : 0;
            word |= (t->vocab.flags[id] & TOK_SPECIAL) != 0;
        } else {
            word = n < t->n_dec_prefix || memcmp(s, t->dec_prefix, t->n_dec_prefix) != 0;
            skip = word || first ? 0 : t->n_dec_prefix;
        }
        if (word && !first)
            buf[o++] = ' ';
        memcpy(buf + o, s + skip, n - skip);
        o += n - skip;
        return t->dec_cleanup ? cleanup(buf, o, cap) : o;
    }
    if (t->dec_lossy)
        return bytes_of(s, n, buf);
    memcpy(buf, s, n);
    return replace_in(buf, n, cap, t->dec_from, t->n_dec_from, t->dec_to,
                      first && t->dec_metaspace ? 0 : t->n_dec_to);
}

static enum rc build(const struct mdl_tok *t, bool first, struct tok_spell *out, struct rc_err *err)
{
    char buf[MDL_PIECE_MAX + 8];
    uint32_t n_ids = t->vocab.n_ids;
    size_t cap = t->vocab.at[n_ids] + 64, n = 0, k;

    out->arena = malloc(cap);
    out->at = malloc((n_ids + 1) * sizeof(*out->at));
    if (!out->arena || !out->at)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %u spellings", n_ids);
    out->at[0] = 0;
    for (uint32_t id = 0; id < n_ids; id++) {
        k = spell(t, id, first, buf, MDL_PIECE_MAX);
        if (t->dec_lossy && k > MDL_PIECE_MAX / 3) /* each byte may become U+FFFD */
            return rc_fail(err, RC_UNSUPPORTED,
                           "tokenizer: piece %u has %zu bytes, at most %d are supported", id, k,
                           MDL_PIECE_MAX / 3);
        if (n + k > cap) {
            cap = 2 * cap + k;
            char *p = realloc(out->arena, cap);
            if (!p)
                return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %u spellings", n_ids);
            out->arena = p;
        }
        memcpy(out->arena + n, buf, k);
        n += k;
        out->at[id + 1] = (uint32_t)n;
    }
    return RC_OK;
}

enum rc tok_spell_build(struct mdl_tok *t, struct rc_err *err)
{
    enum rc rc;
    uint32_t n;

    for (uint32_t id = 0; t->dec_bytes && id < t->vocab.n_ids; id++) {
        const char *s = tok_vocab_at(&t->vocab, id, &n);
        if (n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' && hex(s[3]) >= 0 && hex(s[4]) >= 0)
            t->vocab.flags[id] |= TOK_BYTE;
    }
    if ((rc = build(t, false, &t->text, err)) != RC_OK)
        return rc;
    return t->dec_first ? build(t, true, &t->first, err) : RC_OK;
}

/* ------------------------------------------------------------------- access */

uint32_t mdl_tok_vocab(const struct mdl_tok *t)
{
    return t->vocab.n_ids;
}

static bool used(const struct mdl_tok *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab.n_ids && (t->vocab.flags[id] & TOK_USED);
}

const char *mdl_tok_piece(const struct mdl_tok *t, int32_t id, size_t *n_bytes)
{
    uint32_t n = 0;
    const char *s = used(t, id) ? tok_vocab_at(&t->vocab, (uint32_t)id, &n) : NULL;

    *n_bytes = n;
    return s;
}

static const char *spelled(const struct mdl_tok *t, int32_t id, bool first, size_t *n)
{
    const struct tok_spell *p = first && t->dec_first ? &t->first : &t->text;

    *n = p->at[id + 1] - p->at[id];
    return p->arena + p->at[id];
}

const char *mdl_tok_bytes(const struct mdl_tok *t, int32_t id, bool skip_special, size_t *n_bytes)
{
    *n_bytes = 0;
    if (!used(t, id) || (skip_special && (t->vocab.flags[id] & TOK_SPECIAL)))
        return "";
    return spelled(t, id, false, n_bytes);
}

bool mdl_tok_is_special(const struct mdl_tok *t, int32_t id)
{
    return used(t, id) && (t->vocab.flags[id] & TOK_SPECIAL);
}

int32_t mdl_tok_find(const struct mdl_tok *t, const char *piece, size_t n_bytes)
{
    return tok_vocab_find(&t->vocab, piece, n_bytes);
}

int32_t mdl_tok_bos(const struct mdl_tok *t)
{
    return t->bos;
}

int32_t mdl_tok_eos(const struct mdl_tok *t)
{
    return t->eos;
}

/* -------------------------------------------------------------------- whole */

struct sink {
    char *s;
    size_t n, cap;
};

static bool sink_put(struct sink *k, const char *s, size_t n)
{
    if (!k->s || n > k->cap - k->n) {
        size_t cap = 2 * k->cap + n + 64;
        char *p = realloc(k->s, cap);
        if (!p)
            return false;
        k->s = p;
        k->cap = cap;
    }
    memcpy(k->s + k->n, s, n);
    k->n += n;
    return true;
}

static bool may_grow(const unsigned char *h, uint32_t n);

/* One more byte of UTF-8 behind held ones; out has room for 16. What cannot become a
 * character is one U+FFFD for each longest beginning of one, as everywhere. */
static size_t lossy_byte(unsigned char *held, uint32_t *n_held, unsigned char b, char *out)
{
    size_t at = 0;
    uint32_t cp;

    if (*n_held) {
        held[(*n_held)++] = b;
        if (tok_utf8((const char *)held, *n_held, &cp) == *n_held) {
            memcpy(out, held, *n_held);
            at = *n_held;
            *n_held = 0;
            return at;
        }
        if (may_grow(held, *n_held))
            return 0;
        memcpy(out, FFFD, 3);
        at = 3;
        *n_held = 0;
    }
    if (b < 0x80) {
        out[at] = (char)b;
        return at + 1;
    }
    held[0] = b;
    if (may_grow(held, 1)) {
        *n_held = 1;
        return at;
    }
    memcpy(out + at, FFFD, 3);
    return at + 3;
}

static bool sink_lossy(struct sink *k, const char *s, size_t n, unsigned char *held,
                       uint32_t *n_held)
{
    char out[16];
    bool ok = true;

    for (size_t i = 0; i < n && ok; i++)
        ok = sink_put(k, out, lossy_byte(held, n_held, (unsigned char)s[i], out));
    return ok;
}

/* Bytes of s from `from` on are a run of byte pieces: text or U+FFFD each. */
static bool close_run(struct sink *k, size_t from)
{
    size_t n = k->n - from;
    uint32_t cp;
    size_t len;

    for (size_t i = from; i < k->n; i += len)
        if (!(len = tok_utf8(k->s + i, k->n - i, &cp))) {
            k->n = from;
            for (size_t j = 0; j < n; j++)
                if (!sink_put(k, FFFD, 3))
                    return false;
            return true;
        }
    return true;
}

enum rc mdl_tok_decode(const struct mdl_tok *t, const int32_t *ids, size_t n, bool skip_special,
                       char **out, size_t *n_bytes, struct rc_err *err)
{
    struct sink k = {0};
    bool first = true, in_run = false, ok = true;
    size_t run = 0, len;
    unsigned char held[8];
    uint32_t n_held = 0;

    for (size_t i = 0; i < n && ok; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->vocab.n_ids) {
            free(k.s);
            return rc_fail(err, RC_INVALID, "token id %d at place %zu, the vocabulary has %u",
                           ids[i], i, t->vocab.n_ids);
        }
        uint8_t flags = t->vocab.flags[ids[i]];
        if (!(flags & TOK_USED) || (skip_special && (flags & TOK_SPECIAL)))
            continue;
        if ((flags & TOK_BYTE) && !in_run)
            run = k.n;
        if (!(flags & TOK_BYTE) && in_run)
            ok = close_run(&k, run);
        in_run = flags & TOK_BYTE;
        const char *s = spelled(t, ids[i], first, &len);
        if (first && t->space_prefix && len && s[0] == ' ') {
            s++;
            len--;
        }
        if (t->dec_lossy)
            ok = sink_lossy(&k, s, len, held, &n_held);
        else
            ok = ok && sink_put(&k, s, len);
        first = false;
    }
    if (n_held && ok)
        ok = sink_put(&k, FFFD, 3);
    if (in_run && ok)
        ok = close_run(&k, run);
    if (!ok || !sink_put(&k, "", 1)) {
        free(k.s);
        return rc_fail(err, RC_NOMEM, "no memory to decode %zu tokens", n);
    }
    *out = k.s;
    *n_bytes = k.n - 1;
    return RC_OK;
}

/* ---------------------------------------------------------------- streaming */

#define BROKEN 0xFF /* in held[7]: this run of bytes is known to be no text */

void mdl_detok_init(struct mdl_detok *d, const struct mdl_tok *t, bool skip_special)
{
    *d = (struct mdl_detok){.tok = t, .skip_special = skip_special};
}

static size_t put(char *out, size_t cap, size_t at, const char *s, size_t n)
{
    if (n > cap - at)
        return at;
    memcpy(out + at, s, n);
    return at + n;
}

/* Could held be the start of a character? */
static bool may_grow(const unsigned char *h, uint32_t n)
{
    static const unsigned char fill[2][4] = {{0, 0x80, 0x80, 0x80}, {0, 0xBF, 0xBF, 0xBF}};
    unsigned char c[4];
    uint32_t cp, want = h[0] >= 0xF0 ? 4 : h[0] >= 0xE0 ? 3 : 2;

    if (h[0] < 0xC2 || h[0] > 0xF4 || n >= want)
        return false;
    for (int k = 0; k < 2; k++) { /* smallest and largest completion */
        memcpy(c, h, n);
        memcpy(c + n, fill[k] + n, 4 - n);
        if (tok_utf8((const char *)c, want, &cp))
            return true;
    }
    return false;
}

static size_t push_byte(struct mdl_detok *d, unsigned char b, char *out, size_t cap)
{
    size_t at = 0, len;
    uint32_t cp;

    if (d->held[7] == BROKEN)
        return put(out, cap, 0, FFFD, 3);
    d->held[d->n_held++] = b;
    len = tok_utf8((const char *)d->held, d->n_held, &cp);
    if (len) {
        at = put(out, cap, 0, (const char *)d->held, len);
        d->n_held = 0;
    } else if (!may_grow(d->held, d->n_held)) {
        for (; d->n_held; d->n_held--)
            at = put(out, cap, at, FFFD, 3);
        d->held[7] = BROKEN;
    }
    return at;
}

size_t mdl_detok_flush(struct mdl_detok *d, char *out, size_t cap)
{
    size_t at = 0;

    if (d->tok->dec_lossy && d->n_held) /* the beginning of one character */
        d->n_held = 1;
    for (; d->n_held; d->n_held--)
        at = put(out, cap, at, FFFD, 3);
    d->held[7] = 0;
    return at;
}

size_t mdl_detok_push(struct mdl_detok *d, int32_t id, char *out, size_t cap)
{
    const struct mdl_tok *t = d->tok;
    size_t at, len;

    if (!used(t, id) || (d->skip_special && (t->vocab.flags[id] & TOK_SPECIAL)))
        return 0;
    const char *s = spelled(t, id, !d->started, &len);
    bool strip = !d->started && t->space_prefix && len && s[0] == ' ';
    d->started = true;
    if (t->dec_lossy) {
        char buf[16];
        for (size_t i = at = 0; i < len; i++)
            at = put(out, cap, at, buf, lossy_byte(d->held, &d->n_held, (unsigned char)s[i], buf));
        return at;
    }
    if (t->vocab.flags[id] & TOK_BYTE)
        return push_byte(d, (unsigned char)s[0], out, cap);
    at = mdl_detok_flush(d, out, cap);
    return put(out, cap, at, s + strip, len - strip);
}
