/* mdl_tok_json_steps.c - normalizers, pre-tokenizers and decoders of a tokenizer.json.
 *
 * One loader per "type", in three tables; a Sequence is taken apart. What is in no
 * table, or asks for an option that is not run, is refused by name.
 * Tests: tests/models/test_mdl_tok_json.c, fuzz: tests/fuzz/fuzz_tok_json.c
 */
#include "mdl_tok_json.h"

#include <nettle/base64.h>
#include <stdlib.h>

#define MAX_DEPTH 4 /* nesting of Sequence components */

/* ---------------------------------------------------------------- normalizer */

/* The patterns of published files that are not literal. */
static const struct {
    const char *regex;
    enum tok_pattern pattern;
} regexes[] = {
    {" {2,}", TOK_PAT_SPACES2},
    {"\\s{2,}|[\\n\\r\\t]", TOK_PAT_BLANKS2},
    {"\\s+", TOK_PAT_BLANKS},
};

static enum rc norm_replace(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_norm *k = &t->norms[t->n_norms];
    const json_t *p = json_object_get(j, "pattern"), *s = json_object_get(p, "String");
    const char *regex = json_string_value(json_object_get(p, "Regex"));

    k->kind = TOK_NORM_REPLACE;
    if (!tok_json_fixed(json_object_get(j, "content"), k->to, &k->n_to))
        return tok_json_refuse(err, "normalizer", "Replace", "a content of at most 64 bytes");
    for (size_t i = 0; regex && i < sizeof(regexes) / sizeof(regexes[0]); i++)
        if (strcmp(regex, regexes[i].regex) == 0)
            k->pattern = regexes[i].pattern;
    if (regex && k->pattern == TOK_PAT_LITERAL)
        return tok_json_refuse(err, "normalizer Replace pattern", regex, "");
    if (!regex && (!tok_json_fixed(s, k->from, &k->n_from) || k->n_from == 0))
        return tok_json_refuse(err, "normalizer", "Replace",
                               "only literal patterns of 1 to 64 bytes, or known expressions");
    t->n_norms++;
    return RC_OK;
}

static enum rc norm_strip(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_norm *k = &t->norms[t->n_norms++];

    k->kind = TOK_NORM_STRIP;
    k->left = tok_json_flag(j, "strip_left", true);
    k->right = tok_json_flag(j, "strip_right", true);
    return RC_OK;
}

static enum rc norm_unicode(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_norm *k = &t->norms[t->n_norms++];
    const char *form = tok_json_type(j); /* NFC NFD NFKC NFKD */

    k->kind = TOK_NORM_UNICODE;
    k->compat = form[2] == 'K';
    k->compose = form[strlen(form) - 1] == 'C';
    return RC_OK;
}

static enum rc norm_lower(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->norms[t->n_norms++].kind = TOK_NORM_LOWER;
    return RC_OK;
}

static enum rc norm_accents(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->norms[t->n_norms++].kind = TOK_NORM_ACCENTS;
    return RC_OK;
}

static enum rc norm_prepend(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_norm *k = &t->norms[t->n_norms++];

    k->kind = TOK_NORM_PREPEND;
    if (!tok_json_fixed(json_object_get(j, "prepend"), k->to, &k->n_to))
        return tok_json_refuse(err, "normalizer", "Prepend", "a text of at most 64 bytes");
    return RC_OK;
}

static enum rc norm_precompiled(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    const json_t *map = json_object_get(j, "precompiled_charsmap");
    const char *s = json_string_value(map);
    struct tok_norm *k = &t->norms[t->n_norms++];
    struct base64_decode_ctx b64;
    size_t len = s ? json_string_length(map) : 0, n = BASE64_DECODE_LENGTH(len);
    enum rc rc = RC_FORMAT;
    uint8_t *bytes;

    k->kind = TOK_NORM_PRECOMPILED;
    if (!s || !(bytes = malloc(n + 1)))
        return rc_fail(err, s ? RC_NOMEM : RC_FORMAT,
                       "tokenizer.json: normalizer Precompiled: %s for its character map",
                       s ? "no memory" : "no string");
    base64_decode_init(&b64);
    if (base64_decode_update(&b64, &n, bytes, len, s) && base64_decode_final(&b64))
        rc = tok_charsmap_new(&k->map, bytes, n, err);
    else
        rc_fail(err, rc, "tokenizer.json: normalizer Precompiled: the map is not base64");
    free(bytes);
    return rc;
}

static enum rc norm_bert(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_norm *k = &t->norms[t->n_norms++];

    k->kind = TOK_NORM_BERT;
    k->clean = tok_json_flag(j, "clean_text", true);
    k->chinese = tok_json_flag(j, "handle_chinese_chars", true);
    k->lowercase = tok_json_flag(j, "lowercase", true);
    k->strip_accents = tok_json_flag(j, "strip_accents", k->lowercase);
    return RC_OK;
}

/* ------------------------------------------------------------- pre-tokenizer */

static enum rc pre_bert(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->pres[t->n_pres++].kind = TOK_PRE_BERT;
    return RC_OK;
}

static enum rc behavior(const json_t *j, const char *part, const char *otherwise,
                        enum tok_behavior *out, struct rc_err *err)
{
    static const char *const names[] = {
        [TOK_ISOLATED] = "Isolated",     [TOK_REMOVED] = "Removed",
        [TOK_CONTIGUOUS] = "Contiguous", [TOK_PREV] = "MergedWithPrevious",
        [TOK_NEXT] = "MergedWithNext",
    };
    const char *how = json_string_value(json_object_get(j, "behavior"));

    if (!how)
        how = otherwise;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(how, names[i]) == 0) {
            *out = (enum tok_behavior)i;
            return RC_OK;
        }
    return tok_json_refuse(err, part, how, "");
}

static enum rc pre_split(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_pre *k = &t->pres[t->n_pres];
    const json_t *p = json_object_get(j, "pattern"), *s = json_object_get(p, "String");
    const char *regex = json_string_value(json_object_get(p, "Regex"));

    k->kind = regex ? TOK_PRE_REGEX : TOK_PRE_LITERAL;
    if (regex && !tok_regex_known(regex, &k->regex))
        return tok_json_refuse(err, "pre_tokenizer Split pattern", regex, "");
    if (!regex && (!tok_json_fixed(s, k->pat, &k->n_pat) || k->n_pat == 0))
        return tok_json_refuse(err, "pre_tokenizer", "Split",
                               "only literal patterns of 1 to 64 bytes, or known expressions");
    k->invert = tok_json_flag(j, "invert", false);
    t->n_pres++;
    return behavior(j, "pre_tokenizer Split behavior", "(none)", &k->behavior, err);
}

static enum rc pre_byte_level(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_pre *k = &t->pres[t->n_pres++];

    k->kind = TOK_PRE_BYTES;
    k->prepend = tok_json_flag(j, "add_prefix_space", true) ? TOK_ALWAYS : TOK_NEVER;
    k->split = tok_json_flag(j, "use_regex", true);
    k->regex = TOK_RE_GPT2;
    return RC_OK;
}

static enum rc pre_whitespace_split(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->pres[t->n_pres++] = (struct tok_pre){.kind = TOK_PRE_SPACES, .behavior = TOK_REMOVED};
    return RC_OK;
}

static enum rc pre_whitespace(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->pres[t->n_pres++] =
        (struct tok_pre){.kind = TOK_PRE_WORDS, .behavior = TOK_REMOVED, .invert = true};
    return RC_OK;
}

static enum rc pre_punctuation(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_pre *k = &t->pres[t->n_pres++];

    k->kind = TOK_PRE_PUNCT;
    return behavior(j, "pre_tokenizer Punctuation behavior", "Isolated", &k->behavior, err);
}

/* always, first or never; files older than the key say add_prefix_space. */
static enum rc prepend_scheme(const json_t *j, const char *part, enum tok_prepend *out,
                              struct rc_err *err)
{
    const char *s = json_string_value(json_object_get(j, "prepend_scheme"));

    if (!s)
        s = tok_json_flag(j, "add_prefix_space", true) ? "always" : "never";
    if (strcmp(s, "always") == 0)
        *out = TOK_ALWAYS;
    else if (strcmp(s, "first") == 0)
        *out = TOK_FIRST;
    else if (strcmp(s, "never") == 0)
        *out = TOK_NEVER;
    else
        return tok_json_refuse(err, part, s, "");
    return RC_OK;
}

/* One character, as the file says. */
static bool one_char(const json_t *j, char *out, uint32_t *n)
{
    uint32_t cp;

    return tok_json_fixed(j, out, n) && *n > 0 && tok_utf8(out, *n, &cp) == *n;
}

static enum rc pre_metaspace(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    struct tok_pre *k = &t->pres[t->n_pres++];

    k->kind = TOK_PRE_METASPACE;
    k->split = tok_json_flag(j, "split", true);
    if (!one_char(json_object_get(j, "replacement"), k->pat, &k->n_pat))
        return tok_json_refuse(err, "pre_tokenizer", "Metaspace", "a replacement of one character");
    enum rc rc = prepend_scheme(j, "pre_tokenizer Metaspace prepend_scheme", &k->prepend, err);
    t->need_src |= k->prepend == TOK_FIRST;
    return rc;
}

/* ------------------------------------------------------------------- decoder */

static enum rc dec_replace(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    const json_t *s = json_object_get(json_object_get(j, "pattern"), "String");

    if (t->n_dec_from || t->dec_bytes || !tok_json_fixed(s, t->dec_from, &t->n_dec_from) ||
        !t->n_dec_from || !tok_json_fixed(json_object_get(j, "content"), t->dec_to, &t->n_dec_to))
        return tok_json_refuse(err, "decoder", "Replace",
                               "one literal Replace, before ByteFallback");
    return RC_OK;
}

static enum rc dec_bytes(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->dec_bytes = true;
    return RC_OK;
}

static enum rc dec_fuse(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    return RC_OK; /* pieces are always joined without anything between */
}

static enum rc dec_byte_level(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    if (t->n_dec_from || t->dec_bytes || t->dec_wordpiece)
        return tok_json_refuse(err, "decoder", "ByteLevel", "no other step before it");
    t->dec_lossy = true;
    return RC_OK;
}

static enum rc dec_metaspace(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    enum tok_prepend scheme;
    enum rc rc;

    if (t->n_dec_from || t->dec_bytes ||
        !one_char(json_object_get(j, "replacement"), t->dec_from, &t->n_dec_from))
        return tok_json_refuse(err, "decoder", "Metaspace",
                               "a replacement of one character, and no other step before it");
    if ((rc = prepend_scheme(j, "decoder Metaspace prepend_scheme", &scheme, err)) != RC_OK)
        return rc;
    t->dec_to[0] = ' ';
    t->n_dec_to = 1;
    t->dec_first = t->dec_metaspace = scheme != TOK_NEVER;
    return RC_OK;
}

static enum rc dec_wordpiece(struct mdl_tok *t, const json_t *j, struct rc_err *err)
{
    t->dec_wordpiece = t->dec_first = true;
    t->dec_cleanup = tok_json_flag(j, "cleanup", true);
    if (!tok_json_fixed(json_object_get(j, "prefix"), t->dec_prefix, &t->n_dec_prefix))
        return tok_json_refuse(err, "decoder", "WordPiece",
                               "a prefix of at most 64 bytes is needed");
    return RC_OK;
}

/* -------------------------------------------------------------------- tables */

static const struct tok_comp norms[] = {{"Replace", norm_replace},
                                        {"BertNormalizer", norm_bert},
                                        {"Precompiled", norm_precompiled},
                                        {"Strip", norm_strip},
                                        {"NFC", norm_unicode},
                                        {"NFD", norm_unicode},
                                        {"NFKC", norm_unicode},
                                        {"NFKD", norm_unicode},
                                        {"Lowercase", norm_lower},
                                        {"StripAccents", norm_accents},
                                        {"Prepend", norm_prepend},
                                        {0}};
static const struct tok_comp pres[] = {{"BertPreTokenizer", pre_bert},
                                       {"Split", pre_split},
                                       {"WhitespaceSplit", pre_whitespace_split},
                                       {"Whitespace", pre_whitespace},
                                       {"Punctuation", pre_punctuation},
                                       {"Metaspace", pre_metaspace},
                                       {"ByteLevel", pre_byte_level},
                                       {0}};
static const struct tok_comp decs[] = {{"Replace", dec_replace},
                                       {"ByteFallback", dec_bytes},
                                       {"Fuse", dec_fuse},
                                       {"WordPiece", dec_wordpiece},
                                       {"Metaspace", dec_metaspace},
                                       {"ByteLevel", dec_byte_level},
                                       {0}};

/* One component, or a Sequence of them under key `list`. */
static enum rc load_comps(struct mdl_tok *t, const json_t *j, const char *part, const char *list,
                          const struct tok_comp *table, unsigned depth, struct rc_err *err)
{
    const json_t *e;
    size_t i;
    enum rc rc;

    if (!j || json_is_null(j))
        return RC_OK;
    if (strcmp(tok_json_type(j), "Sequence") == 0) {
        const json_t *steps = json_object_get(j, list);
        if (!json_is_array(steps) || depth == MAX_DEPTH)
            return rc_fail_what(err, RC_FORMAT, part,
                                "tokenizer.json: %s: a Sequence without '%s', "
                                "or nested too deeply",
                                part, list);
        json_array_foreach(steps, i, e) if ((rc = load_comps(t, e, part, list, table, depth + 1,
                                                             err)) != RC_OK) return rc;
        return RC_OK;
    }
    if (t->n_norms >= TOK_MAX_STEPS || t->n_pres >= TOK_MAX_STEPS)
        return tok_json_refuse(err, part, "Sequence", "more than 7 steps");
    for (; table->type; table++)
        if (strcmp(table->type, tok_json_type(j)) == 0)
            return table->load(t, j, err);
    return tok_json_refuse(err, part, tok_json_type(j), "");
}

enum rc tok_json_steps(struct mdl_tok *t, const json_t *root, struct rc_err *err)
{
    enum rc rc;

    if ((rc = load_comps(t, json_object_get(root, "normalizer"), "normalizer", "normalizers", norms,
                         0, err)) != RC_OK ||
        (rc = load_comps(t, json_object_get(root, "pre_tokenizer"), "pre_tokenizer",
                         "pretokenizers", pres, 0, err)) != RC_OK)
        return rc;
    return load_comps(t, json_object_get(root, "decoder"), "decoder", "decoders", decs, 0, err);
}
