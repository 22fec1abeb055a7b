/* wrk_ext_prompt.c - a schema as token ids: its prompts, their marks, its choice words.
 *
 * A prompt is a list of items, each tokenized by itself, as the model was trained:
 *   ( [P] wording ( [E] label [E] label ... ) )      prompts apart by [SEP_STRUCT]
 * and behind the last of them [SEP_TEXT] and, when fields have choices, words that spell them:
 *   ( record: field ( choice | choice ) , field ( ... ) )
 * Where a mark stands is noted as it is written, so a label that spells a mark moves nothing.
 * Tests: tests/worker/test_wrk_extract_golden.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <string.h>

/* Bytes in the making. */
struct text {
    char *s;
    size_t n, cap;
};

struct make {
    struct wrk_schema *out;
    const struct mdl_tok *tok;
    struct mdl_tok_flags flags;
    size_t max_ids;
    struct text t;
    ProtobufCBinaryData *word; /* choice words, borrowed */
    char **head;               /* those that are "record:", owned */
    uint32_t n_heads;
    struct rc_err *err;
};

static enum rc add(struct make *m, const void *s, size_t n)
{
    struct text *t = &m->t;

    if (n > t->cap - t->n) {
        size_t cap = 2 * (t->n + n) + 64;
        char *p = realloc(t->s, cap);

        if (p == NULL)
            return rc_fail(m->err, RC_NOMEM, "no memory for a prompt of %zu bytes", cap);
        t->s = p;
        t->cap = cap;
    }
    if (n > 0)
        memcpy(t->s + t->n, s, n);
    t->n += n;
    return RC_OK;
}

static enum rc adds(struct make *m, const char *s)
{
    return add(m, s, strlen(s));
}

static enum rc addb(struct make *m, ProtobufCBinaryData b)
{
    return add(m, b.data, b.len);
}

static enum rc over(struct make *m, size_t n)
{
    return rc_bound(rc_fail_what(m->err, RC_TOO_LARGE, "schema",
                                 "the schema takes %zu tokens and more, the model %zu", n,
                                 m->max_ids),
                    n, m->max_ids, m->err);
}

/* One item: a mark, a bracket, a name. */
static enum rc item(struct make *m, const char *s, size_t n)
{
    struct mdl_ids *ids = &m->out->ids;
    size_t before = ids->n;
    enum rc rc = mdl_tok_encode(m->tok, s, n, &m->flags, ids, m->err);

    if (rc == RC_TOO_LARGE)
        return over(m, before + (m->err ? m->err->n : 0));
    if (rc == RC_OK && ids->n > m->max_ids)
        return over(m, ids->n);
    return rc;
}

static enum rc items(struct make *m, const char *s)
{
    return item(m, s, strlen(s));
}

static enum rc mark(struct make *m, const char *s)
{
    m->out->marks[m->out->n_marks++] = (uint32_t)m->out->ids.n;
    return items(m, s);
}

/* The head of a prompt, with the wording that t holds. */
static enum rc prompt(struct make *m, enum wrk_prompt_kind kind, uint32_t of, uint32_t n_fields)
{
    struct wrk_schema *o = m->out;
    enum rc rc = o->n_prompts > 0 ? items(m, "[SEP_STRUCT]") : RC_OK;

    o->prompt[o->n_prompts] = (struct wrk_prompt){kind, of};
    o->ask[o->n_prompts] = (struct mdl_extract_prompt){
        .mark = o->n_marks,
        .n_fields = n_fields,
        .is_classes = kind == WRK_CLASSES,
        .n_most = kind == WRK_ENTITIES ? 1 : MDL_EXTRACT_COUNTS,
    };
    o->n_prompts++;
    if (rc != RC_OK || (rc = items(m, "(")) != RC_OK || (rc = mark(m, "[P]")) != RC_OK ||
        (rc = item(m, m->t.s, m->t.n)) != RC_OK)
        return rc;
    return items(m, "(");
}

static enum rc describe(struct make *m, Ipc__ExtractField *const *f, size_t n)
{
    enum rc rc = RC_OK;

    for (size_t i = 0; rc == RC_OK && i < n; i++)
        if (f[i]->description.len > 0 && (rc = adds(m, " [DESCRIPTION] ")) == RC_OK &&
            (rc = addb(m, f[i]->name)) == RC_OK && (rc = adds(m, ": ")) == RC_OK)
            rc = addb(m, f[i]->description);
    return rc;
}

static enum rc fields(struct make *m, const char *name, Ipc__ExtractField *const *f, size_t n)
{
    enum rc rc = RC_OK;

    for (size_t i = 0; rc == RC_OK && i < n; i++)
        if ((rc = mark(m, name)) == RC_OK)
            rc = item(m, (const char *)f[i]->name.data, f[i]->name.len);
    return rc == RC_OK && (rc = items(m, ")")) == RC_OK ? items(m, ")") : rc;
}

static enum rc record(struct make *m, uint32_t i)
{
    const Ipc__ExtractRecord *r = m->out->s->records[i];
    enum rc rc;

    m->t.n = 0;
    if ((rc = addb(m, r->name)) != RC_OK || (rc = describe(m, r->fields, r->n_fields)) != RC_OK ||
        (rc = prompt(m, WRK_RECORDS, i, (uint32_t)r->n_fields)) != RC_OK)
        return rc;
    return fields(m, "[C]", r->fields, r->n_fields);
}

static enum rc entities(struct make *m)
{
    const Ipc__ExtractSchema *s = m->out->s;
    enum rc rc;

    m->t.n = 0;
    if ((rc = adds(m, "entities")) != RC_OK ||
        (rc = describe(m, s->entities, s->n_entities)) != RC_OK ||
        (rc = prompt(m, WRK_ENTITIES, 0, (uint32_t)s->n_entities)) != RC_OK)
        return rc;
    return fields(m, "[E]", s->entities, s->n_entities);
}

static enum rc relation(struct make *m, uint32_t i)
{
    enum rc rc;

    m->t.n = 0;
    if ((rc = addb(m, m->out->s->relations[i]->name)) != RC_OK ||
        (rc = prompt(m, WRK_RELATIONS, i, 2)) != RC_OK || (rc = mark(m, "[R]")) != RC_OK ||
        (rc = items(m, "head")) != RC_OK || (rc = mark(m, "[R]")) != RC_OK ||
        (rc = items(m, "tail")) != RC_OK || (rc = items(m, ")")) != RC_OK)
        return rc;
    return items(m, ")");
}

static bool has_label(const Ipc__ExtractClasses *k, ProtobufCBinaryData name)
{
    for (size_t i = 0; i < k->n_labels; i++)
        if (k->labels[i]->name.len == name.len &&
            memcmp(k->labels[i]->name.data, name.data, name.len) == 0)
            return true;
    return false;
}

static enum rc classes(struct make *m, uint32_t i)
{
    const Ipc__ExtractClasses *k = m->out->s->classes[i];
    enum rc rc;

    m->t.n = 0;
    if ((rc = addb(m, k->name)) != RC_OK)
        return rc;
    if (k->prompt.len > 0 && ((rc = adds(m, ": ")) != RC_OK || (rc = addb(m, k->prompt)) != RC_OK))
        return rc;
    if ((rc = describe(m, k->labels, k->n_labels)) != RC_OK)
        return rc;
    for (size_t e = 0; e < k->n_examples; e++)
        if (k->examples[e]->output.len > 0 && has_label(k, k->examples[e]->output) &&
            ((rc = adds(m, " [EXAMPLE] ")) != RC_OK || (rc = addb(m, k->examples[e]->input)) ||
             (rc = adds(m, " [OUTPUT] ")) != RC_OK || (rc = addb(m, k->examples[e]->output))))
            return rc;
    if ((rc = prompt(m, WRK_CLASSES, i, (uint32_t)k->n_labels)) != RC_OK)
        return rc;
    return fields(m, "[L]", k->labels, k->n_labels);
}

/* ------------------------------------------------------------------ choice words */

static enum rc word(struct make *m, const void *s, size_t n)
{
    struct wrk_schema *o = m->out;

    m->word[o->n_prefix] = (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)s};
    o->prefix[o->n_prefix++] = (uint32_t)o->ids.n;
    return item(m, s, n);
}

static enum rc words(struct make *m, const char *s)
{
    return word(m, s, strlen(s));
}

static enum rc field_words(struct make *m, uint32_t prompt_idx, uint32_t field, bool first)
{
    struct wrk_schema *o = m->out;
    const Ipc__ExtractField *f = o->s->records[o->prompt[prompt_idx].of]->fields[field];
    enum rc rc = first ? RC_OK : words(m, ",");

    if (rc != RC_OK || (rc = word(m, f->name.data, f->name.len)) != RC_OK ||
        (rc = words(m, "(")) != RC_OK)
        return rc;
    for (size_t i = 0; rc == RC_OK && i < f->n_choices; i++) {
        if (i > 0 && (rc = words(m, "|")) != RC_OK)
            return rc;
        o->choice[o->n_choices++] =
            (struct wrk_choice){prompt_idx, field, (uint32_t)i, o->n_prefix};
        rc = word(m, f->choices[i].data, f->choices[i].len);
    }
    return rc != RC_OK ? rc : words(m, ")");
}

/* "record:" */
static enum rc head_word(struct make *m, const Ipc__ExtractRecord *r)
{
    char *s = malloc(r->name.len + 1);

    if (s == NULL)
        return rc_fail(m->err, RC_NOMEM, "no memory for a word");
    m->head[m->n_heads++] = s;
    memcpy(s, r->name.data, r->name.len);
    s[r->name.len] = ':';
    return word(m, s, r->name.len + 1);
}

static enum rc record_words(struct make *m, uint32_t prompt_idx)
{
    const Ipc__ExtractRecord *r = m->out->s->records[m->out->prompt[prompt_idx].of];
    bool first = true;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; rc == RC_OK && i < r->n_fields; i++) {
        if (r->fields[i]->n_choices == 0)
            continue;
        if (first && ((rc = words(m, "(")) != RC_OK || (rc = head_word(m, r)) != RC_OK))
            return rc;
        rc = field_words(m, prompt_idx, i, first);
        first = false;
    }
    return rc != RC_OK || first ? rc : words(m, ")");
}

/* Whose score is a choice's: the first choice word equal to it, whatever their case. */
struct low {
    char *s;
    size_t n;
};

static enum rc find_words(struct make *m)
{
    struct wrk_schema *o = m->out;
    struct low *low = calloc(o->n_prefix + 1, sizeof(*low));
    size_t cap = 0;
    enum rc rc = RC_OK;

    if (low == NULL)
        return rc_fail(m->err, RC_NOMEM, "no memory for %u words", o->n_prefix);
    for (uint32_t i = 0; i < o->n_prefix && rc == RC_OK; i++, cap = 0)
        rc = wrk_lower((const char *)m->word[i].data, m->word[i].len, &low[i].s, &cap, &low[i].n,
                       m->err);
    for (uint32_t i = 0; i < o->n_choices && rc == RC_OK; i++) {
        uint32_t own = o->choice[i].word, w = 0;

        while (w < own && (low[w].n != low[own].n || memcmp(low[w].s, low[own].s, low[w].n) != 0))
            w++;
        o->choice[i].word = w;
    }
    for (uint32_t i = 0; i < o->n_prefix; i++)
        free(low[i].s);
    free(low);
    return rc;
}

/* ---------------------------------------------------------------------- the whole */

static enum rc patterns(struct make *m)
{
    struct wrk_schema *o = m->out;
    size_t k = 0;
    enum rc rc = RC_OK;

    for (size_t i = 0; i < o->s->n_records; i++)
        for (size_t f = 0; f < o->s->records[i]->n_fields && rc == RC_OK; f++, k++) {
            const Ipc__ExtractField *q = o->s->records[i]->fields[f];

            if (q->n_patterns > 0 && (rc = wrk_patterns_new(&o->patterns[k], q->patterns,
                                                            q->n_patterns, m->err)) != RC_OK)
                rc_wrap(m->err, "field %zu of structure %zu", f, i);
        }
    return rc;
}

static enum rc write_all(struct make *m)
{
    const Ipc__ExtractSchema *s = m->out->s;
    struct wrk_schema *o = m->out;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; rc == RC_OK && i < s->n_records; i++)
        rc = record(m, i);
    if (rc == RC_OK && s->n_entities > 0)
        rc = entities(m);
    for (uint32_t i = 0; rc == RC_OK && i < s->n_relations; i++)
        rc = relation(m, i);
    for (uint32_t i = 0; rc == RC_OK && i < s->n_classes; i++)
        rc = classes(m, i);
    if (rc == RC_OK)
        rc = items(m, "[SEP_TEXT]");
    for (uint32_t i = 0; rc == RC_OK && i < s->n_records; i++)
        rc = record_words(m, i); /* records are the first prompts */
    o->prefix[o->n_prefix] = (uint32_t)o->ids.n;
    if (rc == RC_OK && (rc = find_words(m)) == RC_OK)
        rc = patterns(m);
    return rc;
}

/* How many of everything a checked schema has. */
struct sizes {
    size_t prompts, marks, fields, choices, words;
};

static struct sizes sizes_of(const Ipc__ExtractSchema *s)
{
    struct sizes z = {0};

    for (size_t i = 0; i < s->n_records; i++) {
        z.fields += s->records[i]->n_fields;
        z.words += 4; /* ( record: ) and a comma too many */
        for (size_t f = 0; f < s->records[i]->n_fields; f++) {
            z.choices += s->records[i]->fields[f]->n_choices;
            z.words += 4 + 2 * s->records[i]->fields[f]->n_choices;
        }
    }
    z.prompts = s->n_records + (s->n_entities > 0) + s->n_relations + s->n_classes;
    z.marks = z.prompts + z.fields + s->n_entities + 2 * s->n_relations;
    for (size_t i = 0; i < s->n_classes; i++)
        z.marks += s->classes[i]->n_labels;
    return z;
}

enum rc wrk_schema_new(struct wrk_schema **out, const Ipc__ExtractSchema *s,
                       const struct mdl_tok *tok, const struct mdl_tok_stop *stop, size_t max_ids,
                       struct rc_err *err)
{
    struct sizes z = sizes_of(s);
    struct wrk_schema *o = calloc(1, sizeof(*o));
    struct make m = {.out = o,
                     .tok = tok,
                     .flags = {.parse_special = true, .max_tokens = max_ids, .stop = stop},
                     .max_ids = max_ids,
                     .err = err};
    enum rc rc;

    if (o == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for a schema");
    o->s = s;
    o->prompt = calloc(z.prompts, sizeof(*o->prompt));
    o->ask = calloc(z.prompts, sizeof(*o->ask));
    o->marks = calloc(z.marks, sizeof(*o->marks));
    o->prefix = calloc(z.words + 1, sizeof(*o->prefix));
    o->choice = calloc(z.choices + 1, sizeof(*o->choice));
    o->patterns = calloc(z.fields + 1, sizeof(*o->patterns));
    m.word = calloc(z.words + 1, sizeof(*m.word));
    m.head = calloc(s->n_records + 1, sizeof(*m.head));
    if (o->prompt == NULL || o->ask == NULL || o->marks == NULL || o->prefix == NULL ||
        o->choice == NULL || o->patterns == NULL || m.word == NULL || m.head == NULL)
        rc = rc_fail(err, RC_NOMEM, "no memory for a schema of %zu marks", z.marks);
    else
        rc = write_all(&m);
    for (uint32_t i = 0; i < m.n_heads; i++)
        free(m.head[i]);
    free(m.head);
    free(m.t.s);
    free(m.word);
    if (rc == RC_OK)
        *out = o;
    else
        wrk_schema_free(&o);
    return rc;
}

void wrk_schema_free(struct wrk_schema **ps)
{
    struct wrk_schema *s = *ps;
    size_t k = 0;

    if (s == NULL)
        return;
    for (size_t i = 0; s->patterns != NULL && i < s->s->n_records; i++)
        for (size_t f = 0; f < s->s->records[i]->n_fields; f++)
            wrk_patterns_free(&s->patterns[k++]);
    free(s->patterns);
    free(s->prompt);
    free(s->ask);
    free(s->marks);
    free(s->prefix);
    free(s->choice);
    mdl_ids_deinit(&s->ids);
    free(s);
    *ps = NULL;
}
