/* wrk_ext_words.c - words of a text, by a scanner that agrees with a regular expression.
 *
 * The expression (wrk_extract.h) backtracks in one place alone, the address: its run of letters has
 * to be followed by @, its domain to end in a dot and two letters. Both runs are remembered, so
 * that a megabyte of dots is looked at twice and not a million times. Always true: words are in
 * order and do not overlap; what lies between two of them is space. Tests:
 * tests/worker/test_wrk_extract.c, fuzz: tests/fuzz/fuzz_extract.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define ASK_EVERY 4096 /* words, between two questions to the stop */

/* What the scanner knows of a character. */
enum {
    SPACE = 1,
    WORD = 2,    /* \w */
    LETTER = 4,  /* [a-z], any case */
    LOCAL = 8,   /* [a-z0-9._%+-] */
    DOMAIN = 16, /* [a-z0-9.-] */
    NAME = 32,   /* [a-z0-9_] */
};

bool wrk_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return false;
    }
}

static unsigned ascii_class(uint32_t c)
{
    unsigned k = wrk_is_space(c) ? SPACE : 0;

    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        k |= WORD | LETTER | LOCAL | DOMAIN | NAME;
    else if (c >= '0' && c <= '9')
        k |= WORD | LOCAL | DOMAIN | NAME;
    else if (c == '_')
        k |= WORD | LOCAL | NAME;
    else if (c == '.' || c == '-')
        k |= LOCAL | DOMAIN;
    else if (c == '%' || c == '+')
        k |= LOCAL;
    return k;
}

static unsigned class_of(uint32_t c)
{
    if (c < 0x80)
        return ascii_class(c);
    /* i with and without its dot, the long s, the sign of Kelvin: ignoring case, letters a to z */
    if (c == 0x130 || c == 0x131 || c == 0x17F || c == 0x212A)
        return WORD | LETTER | LOCAL | DOMAIN | NAME;
    return wrk_is_space(c) ? SPACE : is_word(c) ? WORD : 0;
}

struct scan {
    const uint8_t *s;
    size_t n;
    /* of the address: the run of LOCAL looked at last, and where an address that begins in it ends
     * (0 = none does) */
    size_t local_from, local_to, address_to;
};

/* The character at i < n; the text was checked. */
static size_t at(const struct scan *z, size_t i, uint32_t *cp)
{
    utf8proc_int32_t c = 0;
    utf8proc_ssize_t k;

    if (z->s[i] < 0x80) {
        *cp = z->s[i];
        return 1;
    }
    k = utf8proc_iterate(z->s + i, (utf8proc_ssize_t)(z->n - i), &c);
    *cp = (uint32_t)c;
    return k > 0 ? (size_t)k : 1;
}

/* The end of the run of characters of a class that begins at i. */
static size_t run(const struct scan *z, size_t i, unsigned k)
{
    uint32_t c;

    while (i < z->n) {
        size_t len = at(z, i, &c);

        if (!(class_of(c) & k))
            break;
        i += len;
    }
    return i;
}

/* Does the text go on with these letters, in any case? The end, or 0. */
static size_t begins(const struct scan *z, size_t i, const char *word)
{
    for (; *word; word++) {
        if (i < z->n && (z->s[i] | 0x20) == *word && z->s[i] >= 'A') {
            i++;
        } else if (*word == 's' && z->n - i >= 2 && z->s[i] == 0xC5 && z->s[i + 1] == 0xBF) {
            i += 2; /* the long s */
        } else if (i < z->n && z->s[i] == (uint8_t)*word) {
            i++;
        } else {
            return 0;
        }
    }
    return i;
}

/* The end of [^\s]+ at i, or 0 when there is none of it. */
static size_t to_space(const struct scan *z, size_t i)
{
    size_t from = i;
    uint32_t c;

    while (i < z->n) {
        size_t len = at(z, i, &c);

        if (wrk_is_space(c))
            break;
        i += len;
    }
    return i > from ? i : 0;
}

static size_t url(const struct scan *z, size_t i)
{
    size_t http = begins(z, i, "http"), s = http ? begins(z, http, "s") : 0;
    size_t rest = s ? begins(z, s, "://") : http ? begins(z, http, "://") : begins(z, i, "www.");

    return rest ? to_space(z, rest) : 0;
}

/* The end of [a-z0-9.-]+\.[a-z]{2,} at i, or 0: behind the last dot of the run, not its first
 * character, that two letters follow. */
static size_t domain(const struct scan *z, size_t i)
{
    size_t end = run(z, i, DOMAIN), p;

    for (p = end; p-- > i + 1;) {
        size_t q;
        uint32_t c;

        if (z->s[p] != '.')
            continue;
        q = run(z, p + 1, LETTER);
        if (q == p + 1)
            continue;
        if (p + 1 + at(z, p + 1, &c) < q)
            return q;
    }
    return 0;
}

static size_t address(struct scan *z, size_t i)
{
    if (i < z->local_from || i >= z->local_to) {
        z->local_from = i;
        z->local_to = run(z, i, LOCAL);
        z->address_to = 0;
        if (z->local_to > i && z->local_to < z->n && z->s[z->local_to] == '@')
            z->address_to = domain(z, z->local_to + 1);
    }
    return i < z->local_to ? z->address_to : 0;
}

static size_t plain(const struct scan *z, size_t i)
{
    size_t to = run(z, i, WORD);

    while (to > i && to + 1 < z->n && (z->s[to] == '-' || z->s[to] == '_')) {
        size_t next = run(z, to + 1, WORD);

        if (next == to + 1)
            break;
        to = next;
    }
    return to;
}

/* The end of the word that begins at i, where there is no space. */
static size_t word(struct scan *z, size_t i)
{
    uint32_t c;
    size_t to, len = at(z, i, &c);

    if ((c == 'h' || c == 'H' || c == 'w' || c == 'W') && (to = url(z, i)))
        return to;
    if ((class_of(c) & LOCAL) && (to = address(z, i)))
        return to;
    if (c == '@' && (to = run(z, i + 1, NAME)) > i + 1)
        return to;
    to = plain(z, i);
    return to > i ? to : i + len;
}

static enum rc push(struct wrk_words *o, const struct wrk_word *w, struct rc_err *err)
{
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 64;
        struct wrk_word *p = realloc(o->w, cap * sizeof(*p));

        if (p == NULL)
            return rc_fail(err, RC_NOMEM, "no memory for %zu words", cap);
        o->w = p;
        o->cap = cap;
    }
    o->w[o->n++] = *w;
    return RC_OK;
}

/* UTF-8, and short enough that offsets fit; the first bad byte otherwise. */
static enum rc check(const uint8_t *s, size_t n, struct rc_err *err)
{
    size_t i = 0;

    if (n > UINT32_MAX - 16)
        return rc_bound(rc_fail(err, RC_TOO_LARGE, "a text of %zu bytes", n), n, UINT32_MAX - 16,
                        err);
    while (i < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            s[i] < 0x80 ? 1 : utf8proc_iterate(s + i, (utf8proc_ssize_t)(n - i), &c);

        if (k <= 0)
            return rc_bound(
                rc_fail_what(err, RC_INVALID, "input", "the text is not UTF-8 at byte %zu", i), i,
                0, err);
        i += (size_t)k;
    }
    return RC_OK;
}

static uint32_t points(const uint8_t *s, size_t n)
{
    uint32_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += (s[i] & 0xC0) != 0x80;
    return k;
}

enum rc wrk_words_split(const char *text, size_t n_bytes, const struct mdl_tok_stop *stop,
                        struct wrk_words *out, struct rc_err *err)
{
    struct scan z = {.s = (const uint8_t *)text, .n = n_bytes};
    uint32_t point = 0;
    size_t i = 0, asked = 0;
    enum rc rc;

    out->n = 0;
    if ((rc = check(z.s, n_bytes, err)) != RC_OK)
        return rc;
    while (i < n_bytes) {
        struct wrk_word w = {.start = point, .at = (uint32_t)i};
        uint32_t c;
        size_t len = at(&z, i, &c);

        if (wrk_is_space(c)) {
            i += len;
            point++;
            continue;
        }
        if (stop != NULL && ++asked % ASK_EVERY == 0 && stop->ask(stop->user))
            return rc_fail(err, RC_CANCELLED, "stopped");
        w.to = (uint32_t)word(&z, i);
        point += points(z.s + i, w.to - i);
        w.end = point;
        i = w.to;
        if ((rc = push(out, &w, err)) != RC_OK)
            return rc;
    }
    out->n_points = point;
    return RC_OK;
}

void wrk_words_deinit(struct wrk_words *w)
{
    free(w->w);
    *w = (struct wrk_words){0};
}

void wrk_strip(const char **s, size_t *n)
{
    utf8proc_int32_t c;

    while (*n > 0) {
        utf8proc_ssize_t k = utf8proc_iterate((const uint8_t *)*s, (utf8proc_ssize_t)*n, &c);

        if (k <= 0 || !wrk_is_space((uint32_t)c))
            break;
        *s += k;
        *n -= (size_t)k;
    }
    while (*n > 0) {
        size_t from = *n - 1;

        while (from > 0 && ((uint8_t)(*s)[from] & 0xC0) == 0x80)
            from--;
        if (utf8proc_iterate((const uint8_t *)*s + from, (utf8proc_ssize_t)(*n - from), &c) <= 0 ||
            !wrk_is_space((uint32_t)c))
            break;
        *n = from;
    }
}
