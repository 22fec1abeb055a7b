/* mdl_tok_charsmap.c - SentencePiece's precompiled character map.
 *
 * Bytes of a file: the length of a double array, its units, then the replacements, each
 * ended by NUL. A unit leads to the next by xor, so every place is checked against the
 * array before it is read. Applied as the `tokenizers` library does it, not as
 * SentencePiece: by grapheme clusters, and by the *shortest* beginning that has a rule
 * (encoders.md 2.3).
 * Tests: tests/models/test_mdl_tok_parts.c, fuzz: tests/fuzz/fuzz_tok_charsmap.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

#include <stdlib.h>

#define CLUSTER_MAX 6 /* shorter clusters, in bytes, are looked up as a whole */

struct tok_charsmap {
    uint32_t *units, n_units;
    char *text; /* NUL-terminated */
    uint32_t n_text;
};

void tok_charsmap_free(struct tok_charsmap **mp)
{
    struct tok_charsmap *m = *mp;

    *mp = NULL;
    if (!m)
        return;
    free(m->units);
    free(m->text);
    free(m);
}

enum rc tok_charsmap_new(struct tok_charsmap **out, const uint8_t *bytes, size_t n,
                         struct rc_err *err)
{
    uint32_t size = n >= 4 ? (uint32_t)mdl_le(bytes, 4) : 0, cp;
    struct tok_charsmap *m;
    size_t k;

    if (n < 8 || n > UINT32_MAX / 2 || size < 4 || size % 4 || size > n - 4)
        return rc_fail(err, RC_FORMAT,
                       "tokenizer: a character map of %zu bytes whose array has %u, expected a "
                       "multiple of 4 that fits",
                       n, size);
    bytes += 4;
    n -= 4 + (size_t)size;
    for (size_t i = 0; i < n; i += k)
        if (!(k = tok_utf8((const char *)bytes + size + i, n - i, &cp)))
            return rc_fail(err, RC_FORMAT,
                           "tokenizer: replacements of a character map: no UTF-8 at byte %zu", i);
    if (!(m = calloc(1, sizeof(*m))) || !(m->units = malloc(size)) || !(m->text = malloc(n + 1))) {
        tok_charsmap_free(&m);
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for a character map of %zu bytes", n);
    }
    m->n_units = size / 4;
    for (uint32_t i = 0; i < m->n_units; i++)
        m->units[i] = (uint32_t)mdl_le(bytes + 4 * (size_t)i, 4);
    m->n_text = (uint32_t)n;
    if (n)
        memcpy(m->text, bytes + size, n);
    m->text[n] = '\0';
    *out = m;
    return RC_OK;
}

static uint32_t offset_of(uint32_t unit)
{
    return unit >> 10 << ((unit & 512) >> 6);
}

const char *tok_charsmap_find(const struct tok_charsmap *m, const char *s, size_t n, size_t *out_n)
{
    uint32_t at = offset_of(m->units[0]), unit;

    for (size_t i = 0; i < n && s[i]; i++) {
        uint8_t c = (uint8_t)s[i];
        at ^= c;
        if (at >= m->n_units || ((unit = m->units[at]) & (1u << 31 | 0xFF)) != c)
            return NULL;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1))
            continue;
        uint32_t value = at < m->n_units ? m->units[at] & ~(1u << 31) : UINT32_MAX;
        /* the start of a character, and the NUL behind the text at the latest */
        if (value > m->n_text || ((uint8_t)m->text[value] & 0xC0) == 0x80)
            return NULL;
        *out_n = strlen(m->text + value);
        return m->text + value;
    }
    return NULL;
}

/* The reference says of a replacement only how many characters it adds or takes away, and
 * of one without characters it says that to the one before it: so the last is held. */
struct held {
    struct tok_shift to;
    uint32_t cp;
    ptrdiff_t change;
    bool any;
};

static enum rc hold(struct held *h, uint32_t cp, ptrdiff_t change)
{
    enum rc rc = h->any ? tok_shift_put(&h->to, h->cp, h->change) : RC_OK;

    h->cp = cp;
    h->change = change;
    h->any = true;
    return rc;
}

static enum rc replace(struct held *h, size_t n_old, const char *s, size_t n)
{
    ptrdiff_t count = 0;
    enum rc rc = RC_OK;
    uint32_t cp = 0;

    for (size_t i = 0, k; i < n && rc == RC_OK; i += k, count++) {
        k = tok_utf8(s + i, n - i, &cp); /* checked when it was loaded */
        rc = hold(h, cp, count >= (ptrdiff_t)n_old);
    }
    if (count < (ptrdiff_t)n_old)
        h->change += count - (ptrdiff_t)n_old; /* lost when nothing came before */
    return rc;
}

/* End of the cluster at i; *n_chars of it. */
static size_t cluster_end(const char *s, size_t n, size_t i, struct tok_cluster *c, size_t *n_chars,
                          struct tok_run *r)
{
    uint32_t cp = 0, next = 0;
    size_t k = tok_utf8(s + i, n - i, &cp);

    *n_chars = 1;
    for (i += k; i < n && !(r && tok_stopped(r)); i += k, cp = next, ++*n_chars) {
        k = tok_utf8(s + i, n - i, &next);
        if (tok_cluster_ends(c, cp, next))
            break;
    }
    return i;
}

enum rc tok_norm_precompiled(const struct tok_norm *k, const struct tok_text *in,
                             struct tok_text *out, bool with_src, struct tok_run *r,
                             struct rc_err *err)
{
    struct held h = {.to = {.in = in, .out = out, .with_src = with_src, .err = err}};
    size_t end, n_chars, len, n_new;
    struct tok_cluster cluster = {0};
    enum rc rc = RC_OK;
    const char *new;
    uint32_t cp;

    for (size_t i = 0; i < in->n && rc == RC_OK;) {
        end = cluster_end(in->s, in->n, i, &cluster, &n_chars, r);
        if (end - i < CLUSTER_MAX &&
            (new = tok_charsmap_find(k->map, in->s + i, end - i, &n_new))) {
            rc = replace(&h, n_chars, new, n_new);
            i = end;
        }
        for (; i < end && rc == RC_OK; i += len) {
            if (r && tok_stopped(r))
                return tok_stop_error(r);
            if (!(len = tok_utf8(in->s + i, in->n - i, &cp)))
                return rc_fail(err, RC_INTERNAL, "text is not UTF-8 inside the normalizer");
            new = tok_charsmap_find(k->map, in->s + i, len, &n_new);
            rc = new ? replace(&h, 1, new, n_new) : hold(&h, cp, 0);
        }
        if (r && tok_stopped(r))
            return tok_stop_error(r);
    }
    return rc == RC_OK && h.any ? hold(&h, 0, 0) : rc;
}
