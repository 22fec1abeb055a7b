/* mdl_tok_regex.c - the splitting expressions of published byte-level tokenizers.
 *
 * Files carry a regular expression, but only a handful are in use. Each is known here by
 * its exact text and matched by hand, in linear time; any other is refused by name. A
 * match begins at a given place; the order of tries is that of the alternatives.
 * Source: encoders.md 2.4. Tests: tests/models/test_mdl_tok_parts.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

#define LETTERS " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "'s|'t|'re|'ve|'m|'ll|'d"
#define TIKTOKEN(n)                                           \
    "(?i:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" n \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *text;
    enum tok_regex regex;
} known[] = {
    {ENDINGS "|" LETTERS, TOK_RE_GPT2},
    {TIKTOKEN("{1,3}"), TOK_RE_NUMBERS3},
    {TIKTOKEN(""), TOK_RE_NUMBERS1},
    {"<\\|startoftext\\|>|<\\|endoftext\\|>|" ENDINGS "|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+",
     TOK_RE_CLIP},
    {ENDINGS "|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", TOK_RE_CLIP_BARE},
};

bool tok_regex_known(const char *text, enum tok_regex *out)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].text, text) == 0) {
            *out = known[i].regex;
            return true;
        }
    return false;
}

enum class { LETTER, NUMBER, SPACE, OTHER };

static enum class class_of(uint32_t cp) {
    if (cp < 0x80) return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') ? LETTER
    : cp >= '0' && cp <= '9'                                                   ? NUMBER
    : cp == ' ' || (cp >= 9 && cp <= 13)                                       ? SPACE
                                                                               : OTHER;
    return tok_is_space(cp)    ? SPACE
           : tok_is_letter(cp) ? LETTER
           : tok_is_number(cp) ? NUMBER
                               : OTHER;
}

struct text {
    const char *s;
    size_t n; /* end */
    struct tok_run *r;
};

/* Class of the character at i and its length; OTHER and 0 at the end. */
static enum class at(const struct text *t, size_t i, size_t *len) {
    uint32_t cp;

    *len = 0;
    if (i >= t->n || !(*len = tok_utf8(t->s + i, t->n - i, &cp))) return OTHER;
    return class_of(cp);
}

/* End of the stretch of class c at i, of at most max characters. */
static size_t stretch(const struct text *t, size_t i, enum class c, size_t max)
{
    size_t len;

    for (; max && at(t, i, &len) == c && len && !tok_stopped(t->r); max--)
        i += len;
    return i;
}

static bool is_letter_of(const struct text *t, size_t *i, char c, bool fold)
{
    unsigned char x = *i < t->n ? (unsigned char)t->s[*i] : 0;

    if (x == (unsigned char)c || (fold && x == (unsigned char)(c - 32))) {
        ++*i;
        return true;
    }
    /* U+017F folds to s */
    if (fold && c == 's' && t->n - *i >= 2 && x == 0xC5 && (unsigned char)t->s[*i + 1] == 0xBF) {
        *i += 2;
        return true;
    }
    return false;
}

/* 's 't 're 've 'm 'll 'd. */
static size_t ending(const struct text *t, size_t i, bool fold)
{
    static const char *const list[] = {"s", "t", "re", "ve", "m", "ll", "d"};

    if (t->s[i] != '\'')
        return i;
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        size_t j = i + 1;
        const char *p = list[k];
        while (*p && j < t->n && is_letter_of(t, &j, *p, fold))
            p++;
        if (!*p)
            return j;
    }
    return i;
}

/* White space: all of it at the end of the text or when it is one character, else all
 * but the last. */
static size_t blanks(const struct text *t, size_t i)
{
    size_t end = stretch(t, i, SPACE, SIZE_MAX), last = end;

    if (end == t->n || end == i)
        return end;
    do
        last--;
    while (last > i && ((unsigned char)t->s[last] & 0xC0) == 0x80);
    return last > i ? last : end;
}

/* Up to the last line end in the white space at i; i when there is none. */
static size_t lines(const struct text *t, size_t i)
{
    size_t end = stretch(t, i, SPACE, SIZE_MAX);

    while (end > i && t->s[end - 1] != '\n' && t->s[end - 1] != '\r')
        end--;
    return end;
}

static size_t gpt2(const struct text *t, size_t i)
{
    size_t end = ending(t, i, false), len, from;
    enum class c;

    if (end > i)
        return end;
    from = i + (t->s[i] == ' ');
    c = at(t, from, &len);
    if (len && c != SPACE)
        return stretch(t, from, c, SIZE_MAX);
    return blanks(t, i);
}

static size_t tiktoken(const struct text *t, size_t i, size_t max_digits)
{
    size_t end = ending(t, i, true), len, next;
    enum class c = at(t, i, &len);

    if (end > i)
        return end;
    if (c == LETTER)
        return stretch(t, i, LETTER, SIZE_MAX);
    if (c != NUMBER && t->s[i] != '\r' && t->s[i] != '\n' && at(t, i + len, &next) == LETTER)
        return stretch(t, i + len, LETTER, SIZE_MAX);
    if (c == NUMBER)
        return stretch(t, i, NUMBER, max_digits);
    end = i + (t->s[i] == ' ');
    if (at(t, end, &len) == OTHER && len) {
        end = stretch(t, end, OTHER, SIZE_MAX);
        while (end < t->n && (t->s[end] == '\r' || t->s[end] == '\n') && !tok_stopped(t->r))
            end++;
        return end;
    }
    end = lines(t, i);
    return end > i ? end : blanks(t, i);
}

static size_t clip(const struct text *t, size_t i, bool specials)
{
    static const char *const special[] = {"<|startoftext|>", "<|endoftext|>"};
    size_t end, len;
    enum class c;

    for (size_t k = 0; specials && k < 2; k++) {
        len = strlen(special[k]);
        if (t->n - i >= len && memcmp(t->s + i, special[k], len) == 0)
            return i + len;
    }
    if ((end = ending(t, i, false)) > i)
        return end;
    c = at(t, i, &len);
    return c == SPACE ? i : stretch(t, i, c, c == NUMBER ? 1 : SIZE_MAX);
}

size_t tok_regex_match(enum tok_regex regex, const char *s, size_t i, size_t n, struct tok_run *r)
{
    const struct text t = {s, n, r};

    switch (regex) {
    case TOK_RE_GPT2:
        return gpt2(&t, i);
    case TOK_RE_NUMBERS3:
        return tiktoken(&t, i, 3);
    case TOK_RE_NUMBERS1:
        return tiktoken(&t, i, 1);
    case TOK_RE_CLIP:
    case TOK_RE_CLIP_BARE:
        return clip(&t, i, regex == TOK_RE_CLIP);
    }
    return i;
}
