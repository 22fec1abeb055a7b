/* mdl_tok_bert.c - BERT's normalizer and pre-tokenizer.
 *
 * Control characters go, white space becomes spaces, Chinese characters get spaces around them;
 * then, where accents are stripped, NFD (mdl_tok_unicode.c) and non-spacing marks go; lower case
 * comes last. Classes of characters are mdl_tok_chars.c's.
 * Source: encoders.md 2.3, 2.4. Tests: tests/models/test_mdl_tok_bert.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Control characters, white space, spaces around Chinese characters. */
static enum rc clean(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                     bool with_src, struct tok_run *r, struct rc_err *err)
{
    enum rc rc;
    uint32_t cp, from = 0, to = 0;
    char buf[6] = " ";

    for (size_t i = 0, len = 0; i < in->n; i += len) {
        size_t n;
        bool pad;

        if ((rc = tok_text_char(in, i, r, &cp, &len, err)) != RC_OK)
            return rc;
        if (with_src) {
            from = in->src[2 * i];
            to = in->src[2 * i + 1];
        }
        if (k->clean && tok_is_control(cp))
            continue;
        if (k->clean && tok_is_space(cp))
            cp = ' ';
        pad = k->chinese && is_chinese(cp);
        n = tok_utf8_put(buf + 1, cp);
        buf[1 + n] = ' ';
        rc = tok_text_push(out, with_src, buf + !pad, n + 2 * pad, from, to, err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* Without accents, in lower case. */
static enum rc fold(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                    bool with_src, struct tok_run *r, struct rc_err *err)
{
    enum rc rc = RC_OK;
    uint32_t cp;

    for (size_t i = 0, len = 0; i < in->n && rc == RC_OK; i += len) {
        if ((rc = tok_text_char(in, i, r, &cp, &len, err)) != RC_OK)
            return rc;
        if (k->strip_accents && tok_is_accent(cp))
            continue;
        rc = k->lowercase ? tok_text_lower(in, i, cp, out, with_src, err)
                          : tok_text_copy(out, with_src, in, i, i + len, err);
    }
    return rc;
}

enum rc tok_norm_bert(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                      bool with_src, struct tok_run *r, struct rc_err *err)
{
    static const struct tok_norm nfd = {.kind = TOK_NORM_UNICODE};
    struct tok_text own[2] = {{0}}, *t = r ? r->apart : own;
    enum rc rc;

    t[0].n = t[1].n = 0;
    rc = clean(k, in, &t[0], with_src, r, err);
    if (rc == RC_OK && k->strip_accents)
        rc = tok_norm_unicode(&nfd, &t[0], &t[1], with_src, r, err);
    if (rc == RC_OK)
        rc = fold(k, &t[k->strip_accents], out, with_src, r, err);
    tok_text_deinit(&own[0]);
    tok_text_deinit(&own[1]);
    return rc;
}

bool tok_pre_bert(const char *s, size_t n, size_t *at, size_t *end)
{
    uint32_t cp;
    size_t i = *at, k;

    while (i < n && (k = tok_utf8(s + i, n - i, &cp)) && tok_is_space(cp))
        i += k;
    if (i >= n)
        return false;
    *at = i;
    while (i < n && (k = tok_utf8(s + i, n - i, &cp)) && !tok_is_space(cp)) {
        if (tok_is_bert_punct(cp)) {
            if (i == *at)
                i += k;
            break;
        }
        i += k;
    }
    *end = i;
    return i > *at;
}
