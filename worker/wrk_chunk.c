/* wrk_chunk.c - places where a text may be cut, and the pieces between them.
 *
 * First pass, over the tokens: the places between two of them where no character is shared (a
 * character of several byte tokens is never cut). Second pass, over the characters: white space
 * goes to the piece before it, and each place learns whether a separator or a sentence ends there.
 * Third pass: each piece takes as many tokens as it may and ends at the last separator among them,
 * else the last sentence, else anywhere. Ends and beginnings only move forward, so all is linear.
 *
 * Sentences end nearly as in Unicode's UAX #29: a terminator, closing marks, white space; a full
 * stop before a lower-case letter or another mark ends none, and abbreviations are not known.
 * Full-width terminators need no white space, all others do ("a?b=1" is no end). A line break is
 * no end (texts are wrapped), an empty line is.
 * Tests: tests/worker/test_wrk_chunk.c
 */
#include "wrk_chunk.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#define LOOK_EVERY (1u << 16) /* characters, tokens or pieces between two looks at ask->stop */

#define AT_SEP 1u
#define AT_SENTENCE 2u

struct place {
    uint32_t pos;    /* code points before it */
    uint32_t tokens; /* tokens before it */
    uint8_t kinds;   /* AT_ */
};

static bool stopped(const struct wrk_chunk_ask *ask, size_t i)
{
    return ask->stop != NULL && i % LOOK_EVERY == 0 && ask->stop->ask(ask->stop->user);
}

/* -------------------------------------------------------------------- places */

static bool white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* *n places: the first is the text's beginning. out has room for n_tokens. False: stopped. */
static bool find_places(struct place *out, uint32_t *n, const uint32_t *offsets, size_t n_tokens,
                        const struct wrk_chunk_ask *ask)
{
    uint32_t k = 0, end = 0;

    for (size_t i = 0; i < n_tokens; i++) {
        uint32_t from = offsets[2 * i], to = offsets[2 * i + 1];

        if (stopped(ask, i))
            return false;
        if (i == 0)
            out[k++] = (struct place){0};
        else if (from >= end && from > out[k - 1].pos)
            out[k++] = (struct place){.pos = from, .tokens = (uint32_t)i};
        end = to > end ? to : end;
    }
    *n = k;
    return true;
}

/* ----------------------------------------------------------------- sentences */

/* Sentence_Break = STerm (Unicode 15, UAX #29). */
static const uint32_t terminators[][2] = {
    {0x21, 0x21},       {0x3f, 0x3f},       {0x589, 0x589},     {0x61d, 0x61f},
    {0x6d4, 0x6d4},     {0x700, 0x702},     {0x7f9, 0x7f9},     {0x837, 0x837},
    {0x839, 0x839},     {0x83d, 0x83e},     {0x964, 0x965},     {0x104a, 0x104b},
    {0x1362, 0x1362},   {0x1367, 0x1368},   {0x166e, 0x166e},   {0x1735, 0x1736},
    {0x17d4, 0x17d5},   {0x1803, 0x1803},   {0x1809, 0x1809},   {0x1944, 0x1945},
    {0x1aa8, 0x1aab},   {0x1b5a, 0x1b5b},   {0x1b5e, 0x1b5f},   {0x1b7d, 0x1b7e},
    {0x1c3b, 0x1c3c},   {0x1c7e, 0x1c7f},   {0x203c, 0x203d},   {0x2047, 0x2049},
    {0x2e2e, 0x2e2e},   {0x2e3c, 0x2e3c},   {0x2e53, 0x2e54},   {0x3002, 0x3002},
    {0xa4ff, 0xa4ff},   {0xa60e, 0xa60f},   {0xa6f3, 0xa6f3},   {0xa6f7, 0xa6f7},
    {0xa876, 0xa877},   {0xa8ce, 0xa8cf},   {0xa92f, 0xa92f},   {0xa9c8, 0xa9c9},
    {0xaa5d, 0xaa5f},   {0xaaf0, 0xaaf1},   {0xabeb, 0xabeb},   {0xfe56, 0xfe57},
    {0xff01, 0xff01},   {0xff1f, 0xff1f},   {0xff61, 0xff61},   {0x10a56, 0x10a57},
    {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x11047, 0x11048}, {0x110be, 0x110c1},
    {0x11141, 0x11143}, {0x111c5, 0x111c6}, {0x111cd, 0x111cd}, {0x111de, 0x111df},
    {0x11238, 0x11239}, {0x1123b, 0x1123c}, {0x112a9, 0x112a9}, {0x1144b, 0x1144c},
    {0x115c2, 0x115c3}, {0x115c9, 0x115d7}, {0x11641, 0x11642}, {0x1173c, 0x1173e},
    {0x11944, 0x11944}, {0x11946, 0x11946}, {0x11a42, 0x11a43}, {0x11a9b, 0x11a9c},
    {0x11c41, 0x11c42}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f44}, {0x16a6e, 0x16a6f},
    {0x16af5, 0x16af5}, {0x16b37, 0x16b38}, {0x16b44, 0x16b44}, {0x16e98, 0x16e98},
    {0x1bc9f, 0x1bc9f}, {0x1da88, 0x1da88},
};
/* Sentence_Break = SContinue: no sentence begins with one. */
static const uint32_t continues[][2] = {
    {0x2c, 0x2d},     {0x3a, 0x3b},     {0x55d, 0x55d},   {0x60c, 0x60d},   {0x7f8, 0x7f8},
    {0x1802, 0x1802}, {0x1808, 0x1808}, {0x2013, 0x2014}, {0x3001, 0x3001}, {0xfe10, 0xfe11},
    {0xfe13, 0xfe13}, {0xfe31, 0xfe32}, {0xfe50, 0xfe51}, {0xfe55, 0xfe55}, {0xfe58, 0xfe58},
    {0xfe63, 0xfe63}, {0xff0c, 0xff0d}, {0xff1a, 0xff1a}, {0xff64, 0xff64},
};

static bool in_ranges(const uint32_t (*r)[2], size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (c > r[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= r[lo][0];
}
#define IN(ranges, c) in_ranges(ranges, sizeof(ranges) / sizeof(ranges[0]), c)

static bool full_stop(uint32_t c)
{
    return c == '.' || c == 0x2024 || c == 0x2026 || c == 0xfe52 || c == 0xff0e;
}

/* Terminators of scripts that write no space behind them. */
static bool full_width(uint32_t c)
{
    return c == 0x3002 || c == 0xff01 || c == 0xff1f || c == 0xff61;
}

static bool closes(uint32_t c)
{
    utf8proc_category_t k;

    if (c < 0x80)
        return c == '"' || c == '\'' || c == ')' || c == ']' || c == '}';
    k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_PE || k == UTF8PROC_CATEGORY_PF || k == UTF8PROC_CATEGORY_PI;
}

static bool lower(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
}

/* What was read of a possible end. */
struct ends {
    enum { NONE, STOP, TERMINATOR, WIDE } seen;
    bool space;       /* and white space behind it */
    uint32_t n_lines; /* line breaks in the white space before this character */
};

/* Takes the next character; true: a sentence may begin with it. */
static bool sentence_begins(struct ends *e, uint32_t c)
{
    bool begins = false;

    if (white(c)) {
        e->space = true;
        e->n_lines += c == '\n' ? 1 : c == 0x2029 ? 2 : 0;
        return false;
    }
    if (e->n_lines >= 2)
        begins = true;
    else if (e->seen == WIDE && !closes(c) && !full_stop(c) && !IN(terminators, c))
        begins = !IN(continues, c);
    else if (e->space && (e->seen == TERMINATOR || e->seen == STOP))
        begins = !IN(continues, c) && !IN(terminators, c) && !full_stop(c) &&
                 !(e->seen == STOP && lower(c));
    if (IN(terminators, c) || full_stop(c))
        e->seen = full_width(c) ? WIDE : full_stop(c) && e->seen != TERMINATOR ? STOP : TERMINATOR;
    else if (!closes(c) || e->space)
        e->seen = NONE;
    e->space = false;
    e->n_lines = 0;
    return begins;
}

/* ---------------------------------------------------------------- characters */

/* Ends of the separator, found byte by byte (Knuth, Morris, Pratt 1977). */
struct finder {
    const char *sep;
    size_t n, at;
    uint16_t fail[WRK_CHUNK_SEP_MAX + 1];
};

static void finder_init(struct finder *f, const char *sep, size_t n)
{
    *f = (struct finder){.sep = sep, .n = n};
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && sep[i] != sep[k])
            k = f->fail[k];
        k += sep[i] == sep[k];
        f->fail[i + 1] = (uint16_t)k;
    }
}

static bool finder_take(struct finder *f, char c)
{
    while (f->at > 0 && (f->at == f->n || f->sep[f->at] != c))
        f->at = f->fail[f->at];
    if (f->n > 0 && f->sep[f->at] == c)
        f->at++;
    return f->n > 0 && f->at == f->n;
}

static uint32_t char_at(const char *s, size_t n, size_t *len)
{
    utf8proc_int32_t c = 0xfffd;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);

    *len = k > 0 ? (size_t)k : 1; /* the tokenizer refused what is no UTF-8 */
    return k > 0 ? (uint32_t)c : 0xfffd;
}

/* Gives places their final positions and kinds; *n_chars: the text's length in code points. False:
 * stopped. */
static bool read_text(struct place *p, uint32_t n_places, const char *text, size_t n_bytes,
                      const struct wrk_chunk_ask *ask, uint32_t *n_chars)
{
    uint32_t pos = 0, at = 0, sep_end = 0, word_end = 0;
    bool settled = true; /* place 0 is the beginning, whatever stands there */
    struct ends ends = {0};
    struct finder f;

    finder_init(&f, ask->sep, ask->n_sep);
    for (size_t i = 0, len; i < n_bytes; i += len, pos++) {
        uint32_t c = char_at(text + i, n_bytes - i, &len);
        bool begins = ask->sentences && sentence_begins(&ends, c), found = false;

        if (stopped(ask, pos))
            return false;
        while (at + 1 < n_places && p[at + 1].pos <= pos) {
            at++;
            settled = false;
        }
        if (!white(c)) {
            if (!settled) {
                p[at].pos = pos;
                p[at].kinds = (uint8_t)((sep_end > 0 && sep_end >= word_end ? AT_SEP : 0) |
                                        (begins ? AT_SENTENCE : 0));
                settled = true;
            }
            word_end = pos + 1;
        }
        for (size_t k = 0; k < len; k++)
            found = finder_take(&f, text[i + k]);
        if (found)
            sep_end = pos + 1;
    }
    *n_chars = pos;
    return true;
}

/* -------------------------------------------------------------------- pieces */

static enum rc cut(struct wrk_chunks *out, const struct place *p, uint32_t n_places,
                   uint32_t n_tokens, uint32_t n_chars, const struct wrk_chunk_ask *ask,
                   struct rc_err *err)
{
    /* places; the text's end is place n_places */
    uint32_t from = 0, done = 0, reach = 0, sep = 0, sentence = 0, cap = 0;
#define TOKENS(i) ((i) == n_places ? n_tokens : p[i].tokens)

    while (done < n_places && out->n < ask->most) {
        uint32_t end, after = TOKENS(done + 1);

        if (stopped(ask, out->n))
            return rc_fail(err, RC_CANCELLED, "stopped at piece %u", out->n);
        while (from < done && after - p[from].tokens > ask->target)
            from++; /* less overlap, so that something new fits */
        if (after - p[from].tokens > ask->target)
            return rc_bound(rc_fail_what(err, RC_INVALID, "target_tokens",
                                         "target_tokens %u: the character at %u takes %u tokens",
                                         ask->target, p[from].pos, after - p[from].tokens),
                            after - p[from].tokens, ask->target, err);
        while (reach < n_places && TOKENS(reach + 1) - p[from].tokens <= ask->target) {
            reach++;
            if (reach < n_places && (p[reach].kinds & AT_SEP) != 0)
                sep = reach;
            if (reach < n_places && (p[reach].kinds & AT_SENTENCE) != 0)
                sentence = reach;
        }
        end = reach == n_places ? reach : sep > done ? sep : sentence > done ? sentence : reach;
        if (out->n == cap) {
            struct wrk_chunk_piece *more;

            cap = cap == 0 ? 64 : cap * 2;
            if ((more = realloc(out->piece, cap * sizeof(*more))) == NULL)
                return rc_fail(err, RC_NOMEM, "%u pieces", cap);
            out->piece = more;
        }
        out->piece[out->n++] = (struct wrk_chunk_piece){
            p[from].pos, end == n_places ? n_chars : p[end].pos, TOKENS(end) - p[from].tokens};
        for (from++; from < end && TOKENS(end) - p[from].tokens > ask->overlap; from++)
            ;
        done = end;
    }
    out->cut = done < n_places;
    return RC_OK;
#undef TOKENS
}

static enum rc check(const struct wrk_chunk_ask *a, struct rc_err *err)
{
    if (a->target == 0)
        return rc_fail_what(err, RC_INVALID, "target_tokens",
                            "target_tokens 0, expected 1 or more");
    if (a->overlap >= a->target)
        return rc_fail_what(err, RC_INVALID, "overlap_tokens",
                            "overlap_tokens %u, expected less than target_tokens %u", a->overlap,
                            a->target);
    if (a->most == 0)
        return rc_fail_what(err, RC_INVALID, "max_chunks", "max_chunks 0, expected 1 or more");
    if (a->n_sep > WRK_CHUNK_SEP_MAX)
        return rc_fail_what(err, RC_INVALID, "separator", "a separator of %zu bytes, at most %u",
                            a->n_sep, WRK_CHUNK_SEP_MAX);
    return RC_OK;
}

enum rc wrk_chunk(struct wrk_chunks *out, const char *text, size_t n_bytes, const uint32_t *offsets,
                  size_t n_tokens, const struct wrk_chunk_ask *ask, struct rc_err *err)
{
    struct wrk_chunks made = {0};
    struct place *p = NULL;
    uint32_t n_places = 0, n_chars = 0;
    enum rc rc;

    if ((rc = check(ask, err)) != RC_OK)
        return rc;
    if (n_tokens == 0) {
        *out = made;
        return RC_OK;
    }
    if ((p = malloc(n_tokens * sizeof(*p))) == NULL)
        return rc_fail(err, RC_NOMEM, "places between %zu tokens", n_tokens);
    if (find_places(p, &n_places, offsets, n_tokens, ask) &&
        read_text(p, n_places, text, n_bytes, ask, &n_chars))
        rc = cut(&made, p, n_places, (uint32_t)n_tokens, n_chars, ask, err);
    else
        rc = rc_fail(err, RC_CANCELLED, "stopped while %zu bytes were cut", n_bytes);
    free(p);
    if (rc == RC_OK)
        *out = made;
    else
        free(made.piece);
    return rc;
}
