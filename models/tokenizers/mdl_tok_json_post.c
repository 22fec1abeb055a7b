/* mdl_tok_json_post.c - what a tokenizer.json puts around one text and around two.
 *
 * All post-processors come down to tokens before, between and behind the texts.
 * Token types are not kept: an encoder that has them finds the second text behind
 * the first separator. Source: encoders.md 2.6. Tests: tests/models/test_mdl_tok_json.c
 */
#include "mdl_tok_json.h"

static enum rc part_add(const struct mdl_tok *t, struct tok_part *p, const json_t *id,
                        struct rc_err *err)
{
    json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;

    if (v < 0 || v >= (json_int_t)t->vocab.n_ids || p->n >= TOK_MAX_TEMPLATE)
        return rc_fail(err, RC_FORMAT,
                       "tokenizer.json: post_processor: an unknown token, or more than %d of them",
                       TOK_MAX_TEMPLATE);
    p->ids[p->n++] = (int32_t)v;
    return RC_OK;
}

/* List `key`: the texts in the order of `want`, each once, tokens into parts around them.
 * *whole false: the texts come otherwise. */
static enum rc load_list(const struct mdl_tok *t, const json_t *p, const char *key,
                         const char *want, struct tok_part *parts, bool *whole, struct rc_err *err)
{
    const json_t *specials = json_object_get(p, "special_tokens"), *e, *x;
    size_t i, k, seen = 0, n = strlen(want);
    enum rc rc;

    *whole = false;
    json_array_foreach(json_object_get(p, key), i, e)
    {
        const json_t *text = json_object_get(e, "Sequence");
        if (text) {
            const char *id = json_string_value(json_object_get(text, "id"));
            /* of one text the name does not matter */
            if (seen == n || (n > 1 && (!id || id[0] != want[seen] || id[1])))
                return RC_OK;
            seen++;
            continue;
        }
        const char *name =
            json_string_value(json_object_get(json_object_get(e, "SpecialToken"), "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_array_size(ids))
            return rc_fail(err, RC_FORMAT, "tokenizer.json: post_processor: part %zu has no ids",
                           i);
        json_array_foreach(ids, k,
                           x) if ((rc = part_add(t, &parts[seen], x, err)) != RC_OK) return rc;
    }
    *whole = seen == n;
    return RC_OK;
}

static enum rc from_template(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    bool whole;
    enum rc rc = load_list(t, p, "single", "A", t->single, &whole, err);

    if (rc != RC_OK)
        return rc;
    if (!whole)
        return rc_fail(
            err, RC_FORMAT,
            "tokenizer.json: post_processor: the text does not stand in 'single' exactly "
            "once");
    return load_list(t, p, "pair", "AB", t->pair, &t->has_pair, err);
}

/* [CLS] A [SEP] B [SEP], or with two separators between the texts. */
static enum rc cls_sep(struct mdl_tok *t, const json_t *p, unsigned n_between, struct rc_err *err)
{
    const json_t *cls = json_array_get(json_object_get(p, "cls"), 1);
    const json_t *sep = json_array_get(json_object_get(p, "sep"), 1);
    enum rc rc;

    if ((rc = part_add(t, &t->single[0], cls, err)) != RC_OK ||
        (rc = part_add(t, &t->single[1], sep, err)) != RC_OK ||
        (rc = part_add(t, &t->pair[0], cls, err)) != RC_OK ||
        (rc = part_add(t, &t->pair[2], sep, err)) != RC_OK)
        return rc;
    for (; n_between && rc == RC_OK; n_between--)
        rc = part_add(t, &t->pair[1], sep, err);
    t->has_pair = rc == RC_OK;
    return rc;
}

static enum rc bert(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    return cls_sep(t, p, 1, err);
}

static enum rc byte_level(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    if (!tok_json_flag(p, "trim_offsets", true))
        return RC_OK;
    if (t->trim)
        return tok_json_refuse(err, "post_processor", "Sequence", "offsets trimmed twice");
    t->trim = true;
    t->trim_prefix = tok_json_flag(p, "add_prefix_space", true);
    return RC_OK;
}

static enum rc roberta(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    enum rc rc = byte_level(t, p, err);

    return rc == RC_OK ? cls_sep(t, p, 2, err) : rc;
}

static const struct tok_comp posts[] = {
    {"TemplateProcessing", from_template},
    {"BertProcessing", bert},
    {"RobertaProcessing", roberta},
    {"ByteLevel", byte_level},
    {0},
};

/* Steps one after the other: trimming, and one template. */
static enum rc sequence(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    const json_t *list = json_object_get(p, "processors"), *e;
    enum rc rc = RC_OK;
    size_t i;

    if (!json_is_array(list))
        return rc_fail(err, RC_FORMAT,
                       "tokenizer.json: post_processor: a Sequence without 'processors'");
    json_array_foreach(list, i, e)
    {
        bool framed = t->single[0].n || t->single[1].n;
        if (framed && strcmp(tok_json_type(e), "ByteLevel") != 0)
            return tok_json_refuse(err, "post_processor", tok_json_type(e), "behind a template");
        if (strcmp(tok_json_type(e), "Sequence") == 0)
            return tok_json_refuse(err, "post_processor", "Sequence", "inside another");
        if ((rc = tok_json_post(t, e, err)) != RC_OK)
            break;
    }
    return rc;
}

enum rc tok_json_post(struct mdl_tok *t, const json_t *p, struct rc_err *err)
{
    if (!p || json_is_null(p))
        return RC_OK;
    if (strcmp(tok_json_type(p), "Sequence") == 0)
        return sequence(t, p, err);
    for (const struct tok_comp *c = posts; c->type; c++)
        if (strcmp(c->type, tok_json_type(p)) == 0)
            return c->load(t, p, err);
    return tok_json_refuse(err, "post_processor", tok_json_type(p), "");
}
