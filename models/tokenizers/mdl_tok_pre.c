/* mdl_tok_pre.c - pre-tokenizers: a piece of text into smaller ones, then the model.
 *
 * Steps run one inside the other: each piece goes through all later steps and the model
 * before the next is looked for, so nothing is kept but the pieces under way, and a bound
 * on tokens stops the work early. A step that rewrites its piece has a buffer of its own.
 * Source: encoders.md 2.4. Tests: tests/models/test_mdl_tok_parts.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

static enum rc run_step(struct tok_run *r, unsigned k, size_t from, size_t to);

static enum rc run_model(struct tok_run *r, size_t from, size_t to)
{
    switch (r->t->model) {
    case TOK_WORDPIECE:
        return tok_wordpiece_word(r, from, to);
    case TOK_UNIGRAM:
        return tok_unigram_word(r, from, to);
    case TOK_BPE:
    case TOK_SCORES:
        return tok_bpe_word(r, from, to);
    }
    return rc_fail(r->err, RC_INTERNAL, "unknown model");
}

static enum rc run_newlines(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    const char *s = r->cur->s;
    enum rc rc = RC_OK;

    for (size_t i = from, j; i < to && rc == RC_OK; i = j) {
        bool nl = s[i] == '\n';
        for (j = i; j < to && (s[j] == '\n') == nl; j++)
            ;
        int32_t id = nl ? tok_vocab_find(&r->t->vocab, s + i, j - i) : -1;
        rc = id >= 0 ? tok_emit(r, id, i, j) : run_step(r, k + 1, i, j);
    }
    return rc;
}

/* ------------------------------------------------------- patterns and what becomes of them */

/* Pieces on their way out of a splitting step. */
struct split {
    struct tok_run *r;
    unsigned k;
    const struct tok_pre *p;
    size_t from, to; /* held, for it may still grow */
    bool any, match;
};

static enum rc flush(struct split *s)
{
    bool any = s->any;

    s->any = false;
    return any ? run_step(s->r, s->k + 1, s->from, s->to) : RC_OK;
}

/* [from, to) is a match of the pattern, or lies between two. */
static enum rc item(struct split *s, size_t from, size_t to, bool match)
{
    bool join = false;
    enum rc rc;

    match ^= s->p->invert;
    switch (s->p->behavior) {
    case TOK_ISOLATED:
        break;
    case TOK_REMOVED:
        if (match)
            return RC_OK;
        break;
    case TOK_CONTIGUOUS:
        join = s->any && match == s->match;
        break;
    case TOK_PREV:
        join = s->any && match && !s->match;
        break;
    case TOK_NEXT:
        join = s->any && !match && s->match;
        break;
    }
    if (!join) {
        if ((rc = flush(s)) != RC_OK)
            return rc;
        s->from = from;
    }
    s->to = to;
    s->match = match;
    s->any = true;
    return RC_OK;
}

static bool in_class(const struct tok_pre *p, uint32_t cp)
{
    return p->kind == TOK_PRE_PUNCT ? tok_is_bert_punct(cp) : tok_is_space(cp);
}

/* The next match at or behind i; *start = to when there is none. */
static void next_match(const struct tok_pre *p, struct tok_run *r, size_t i, size_t to,
                       size_t *start, size_t *end)
{
    const char *s = r->cur->s, *hit;
    uint32_t cp;
    size_t k;

    *start = *end = to;
    if (p->kind == TOK_PRE_LITERAL) {
        if ((hit = tok_find(s + i, to - i, p->pat, p->n_pat))) {
            *start = (size_t)(hit - s);
            *end = *start + p->n_pat;
        }
        return;
    }
    for (; i < to && !tok_stopped(r); i += k) {
        if (!(k = tok_utf8(s + i, to - i, &cp)))
            return;
        if (p->kind == TOK_PRE_REGEX) {
            size_t stop = tok_regex_match(p->regex, s, i, to, r);
            if (stop == i)
                continue;
            *start = i;
            *end = stop;
            return;
        }
        if (p->kind == TOK_PRE_WORDS ? tok_is_space(cp) : !in_class(p, cp))
            continue;
        *start = i;
        *end = i + k;
        if (p->kind != TOK_PRE_WORDS)
            return;
        /* a stretch of word characters, or of neither */
        bool word = tok_is_word(cp);
        for (i += k; i < to && (k = tok_utf8(s + i, to - i, &cp)) && !tok_is_space(cp) &&
                     tok_is_word(cp) == word && !tok_stopped(r);
             i += k)
            *end = i + k;
        return;
    }
}

static enum rc run_split(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    struct split s = {.r = r, .k = k, .p = &r->t->pres[k]};
    size_t start, end;
    enum rc rc = RC_OK;

    while (from < to && rc == RC_OK) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        next_match(s.p, r, from, to, &start, &end);
        if (r->stopped)
            return tok_stop_error(r);
        if (start > from)
            rc = item(&s, from, start, false);
        if (end > start && rc == RC_OK)
            rc = item(&s, start, end, true);
        from = end;
    }
    return rc == RC_OK ? flush(&s) : rc;
}

/* --------------------------------------------------------------- metaspace */

static enum rc metaspace_text(struct tok_run *r, const struct tok_pre *p, struct tok_text *out,
                              size_t from, size_t to)
{
    const struct tok_text *in = r->cur;
    const char *s = in->s;
    /* the place in the input of a piece is that of its first character */
    bool prepend = p->prepend == TOK_ALWAYS || (p->prepend == TOK_FIRST && in->src[2 * from] == 0);
    enum rc rc = RC_OK;

    out->n = 0;
    if (s[from] == ' ' || (to - from >= p->n_pat && memcmp(s + from, p->pat, p->n_pat) == 0))
        prepend = false;
    if (prepend)
        rc = tok_text_push(out, r->src, p->pat, p->n_pat, r->src ? in->src[2 * from] : 0,
                           r->src ? in->src[2 * from + 1] : 0, r->err);
    while (from < to && rc == RC_OK) {
        const char *sp = memchr(s + from, ' ', to - from);
        size_t stop = sp ? (size_t)(sp - s) : to;
        if (tok_stopped(r))
            return tok_stop_error(r);
        rc = tok_text_copy(out, r->src, in, from, stop, r->err);
        if (sp && rc == RC_OK)
            rc = tok_text_push(out, r->src, p->pat, p->n_pat, r->src ? in->src[2 * stop] : 0,
                               r->src ? in->src[2 * stop + 1] : 0, r->err);
        from = stop + 1;
    }
    return rc;
}

static enum rc run_metaspace(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    const struct tok_pre *p = &r->t->pres[k];
    const struct tok_text *keep = r->cur;
    struct tok_text *out = &r->pre[2 * k];
    enum rc rc = metaspace_text(r, p, out, from, to);

    r->cur = out;
    for (size_t i = 0, j; i < out->n && rc == RC_OK; i = j) {
        const char *hit = NULL;
        /* the first character of a piece may be the sign itself */
        size_t skip =
            out->n - i >= p->n_pat && memcmp(out->s + i, p->pat, p->n_pat) == 0 ? p->n_pat : 0;
        if (p->split)
            hit = tok_find(out->s + i + skip, out->n - i - skip, p->pat, p->n_pat);
        j = hit ? (size_t)(hit - out->s) : out->n;
        rc = tok_stopped(r) ? tok_stop_error(r) : run_step(r, k + 1, i, j);
    }
    r->cur = keep;
    return rc;
}

/* --------------------------------------------------------------- byte level */

/* [from, to) as one character a byte; each has the place of the whole character. */
static enum rc bytes_text(struct tok_run *r, struct tok_text *out, size_t from, size_t to)
{
    const struct tok_text *in = r->cur;
    enum rc rc = RC_OK;
    char buf[4];

    out->n = 0;
    for (size_t i = from; i < to && rc == RC_OK; i++) {
        if (tok_stopped(r))
            return tok_stop_error(r);
        rc = tok_text_push(out, r->src, buf, tok_byte_char(buf, (uint8_t)in->s[i]),
                           r->src ? in->src[2 * i] : 0, r->src ? in->src[2 * i + 1] : 0, r->err);
    }
    return rc;
}

static enum rc run_bytes(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    const struct tok_pre *p = &r->t->pres[k];
    const struct tok_text *keep = r->cur, *text = keep;
    struct tok_text *spaced = &r->pre[2 * k], *bytes = &r->pre[2 * k + 1];
    enum rc rc = RC_OK;

    if (p->prepend == TOK_ALWAYS && keep->s[from] != ' ') {
        spaced->n = 0;
        if ((rc = tok_text_push(spaced, r->src, " ", 1, r->src ? keep->src[2 * from] : 0,
                                r->src ? keep->src[2 * from + 1] : 0, r->err)) != RC_OK ||
            (rc = tok_text_copy(spaced, r->src, keep, from, to, r->err)) != RC_OK)
            return rc;
        text = spaced;
        from = 0;
        to = spaced->n;
    }
    for (size_t end; from < to && rc == RC_OK; from = end) {
        end = p->split ? tok_regex_match(p->regex, text->s, from, to, r) : to;
        r->cur = text;
        if (tok_stopped(r))
            rc = tok_stop_error(r);
        else if ((rc = bytes_text(r, bytes, from, end)) == RC_OK) {
            r->cur = bytes;
            rc = run_step(r, k + 1, 0, bytes->n);
        }
    }
    r->cur = keep;
    return rc;
}

/* -------------------------------------------------------------------- steps */

static enum rc run_bert(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    size_t at = from, end = 0;
    enum rc rc = RC_OK;

    while (rc == RC_OK && tok_pre_bert(r->cur->s, to, &at, &end)) {
        rc = run_step(r, k + 1, at, end);
        at = end;
    }
    return rc;
}

static enum rc run_step(struct tok_run *r, unsigned k, size_t from, size_t to)
{
    if (from >= to)
        return RC_OK;
    if (k == r->t->n_pres)
        return run_model(r, from, to);
    switch (r->t->pres[k].kind) {
    case TOK_PRE_NEWLINES:
        return run_newlines(r, k, from, to);
    case TOK_PRE_BERT:
        return run_bert(r, k, from, to);
    case TOK_PRE_METASPACE:
        return run_metaspace(r, k, from, to);
    case TOK_PRE_BYTES:
        return run_bytes(r, k, from, to);
    case TOK_PRE_LITERAL:
    case TOK_PRE_SPACES:
    case TOK_PRE_WORDS:
    case TOK_PRE_PUNCT:
    case TOK_PRE_REGEX:
        return run_split(r, k, from, to);
    }
    return rc_fail(r->err, RC_INTERNAL, "unknown pre-tokenizer");
}

enum rc tok_pre_run(struct tok_run *r, size_t from, size_t to)
{
    return run_step(r, 0, from, to);
}
