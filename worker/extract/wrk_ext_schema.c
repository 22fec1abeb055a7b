/* wrk_ext_schema.c - is a schema in shape, and is its work bounded?
 *
 * The front has checked all of this; a worker believes nobody. What is refused is refused by name:
 * of two equal labels nobody could say which one an answer means.
 * Tests: tests/worker/test_wrk_extract.c, fuzz: tests/fuzz/fuzz_extract.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <string.h>

struct named {
    const uint8_t *s;
    size_t n;
};

static int by_bytes(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n > 0 ? memcmp(x->s, y->s, n) : 0;

    return c != 0 ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* At most as many bytes of a name as a message shows, cut where a character begins. */
static int shown(ProtobufCBinaryData b)
{
    size_t n = b.len < 60 ? b.len : 60;

    while (n > 0 && n < b.len && (b.data[n] & 0xC0) == 0x80)
        n--;
    return (int)n;
}

static enum rc check_text(ProtobufCBinaryData b, const char *what, const char *of, size_t most,
                          struct rc_err *err)
{
    if (b.len > most)
        return rc_bound(
            rc_fail_what(err, RC_TOO_LARGE, what, "%s of %zu bytes, at most %zu", of, b.len, most),
            b.len, most, err);
    if (!ipc_utf8_valid(b.data, b.len))
        return rc_fail_what(err, RC_INVALID, what, "%s is not UTF-8", of);
    return RC_OK;
}

static enum rc check_name(ProtobufCBinaryData b, const char *what, const char *of,
                          struct rc_err *err)
{
    const char *s = (const char *)b.data;
    size_t n = b.len;
    enum rc rc = check_text(b, what, of, IPC_EXTRACT_NAME_BYTES, err);

    if (rc != RC_OK)
        return rc;
    if (n > 0)
        wrk_strip(&s, &n);
    if (n == 0)
        return rc_fail_what(err, RC_INVALID, what, "%s is empty", of);
    return RC_OK;
}

/* No name twice. list is sorted. */
static enum rc check_once(struct named *list, size_t n, const char *what, const char *of,
                          struct rc_err *err)
{
    if (n > 1)
        qsort(list, n, sizeof(*list), by_bytes);
    for (size_t i = 1; i < n; i++)
        if (by_bytes(&list[i - 1], &list[i]) == 0) {
            const ProtobufCBinaryData b = {list[i].n, (uint8_t *)(uintptr_t)list[i].s};

            return rc_fail_what(err, RC_INVALID, what, "%s '%.*s' is given twice", of, shown(b),
                                (const char *)b.data);
        }
    return RC_OK;
}

static enum rc check_threshold(bool has, float t, const char *what, struct rc_err *err)
{
    if (has && !(t >= 0 && t <= 1))
        return rc_fail_what(err, RC_INVALID, what, "threshold %g is outside 0 to 1", (double)t);
    return RC_OK;
}

struct check {
    struct named *room; /* for the longest list */
    uint64_t n_labels;
    struct rc_err *err;
};

static enum rc count(struct check *c, uint64_t n, const char *what)
{
    c->n_labels += n;
    if (c->n_labels > IPC_EXTRACT_LABELS)
        return rc_bound(rc_fail_what(c->err, RC_TOO_LARGE, what,
                                     "%llu labels, fields and choices in a schema, at most %u",
                                     (unsigned long long)c->n_labels, IPC_EXTRACT_LABELS),
                        c->n_labels, IPC_EXTRACT_LABELS, c->err);
    return RC_OK;
}

static enum rc check_field(struct check *c, const Ipc__ExtractField *f, bool of_record,
                           const char *what, struct rc_err *err)
{
    enum rc rc;

    if ((rc = check_name(f->name, what, "a name", err)) != RC_OK ||
        (rc = check_text(f->description, what, "a description", IPC_EXTRACT_WORDING_BYTES, err)) !=
            RC_OK ||
        (rc = check_threshold(f->has_threshold, f->threshold, what, err)) != RC_OK ||
        (rc = count(c, f->n_choices, what)) != RC_OK)
        return rc;
    if (!of_record && (f->n_choices > 0 || f->n_patterns > 0))
        return rc_fail_what(err, RC_INVALID, what, "'%.*s': only fields of structures have %s",
                            shown(f->name), (const char *)f->name.data,
                            f->n_choices > 0 ? "choices" : "validators");
    for (size_t i = 0; i < f->n_choices; i++)
        if ((rc = check_name(f->choices[i], what, "a choice", err)) != RC_OK)
            return rc;
    if (f->n_patterns > IPC_EXTRACT_PATTERNS)
        return rc_bound(rc_fail_what(err, RC_TOO_LARGE, what, "%zu validators, at most %u",
                                     f->n_patterns, IPC_EXTRACT_PATTERNS),
                        f->n_patterns, IPC_EXTRACT_PATTERNS, err);
    for (size_t i = 0; i < f->n_patterns; i++)
        if ((rc = check_text(f->patterns[i]->regex, what, "a pattern", IPC_EXTRACT_PATTERN_BYTES,
                             err)) != RC_OK)
            return rc;
    return RC_OK;
}

static enum rc check_fields(struct check *c, Ipc__ExtractField *const *f, size_t n, bool of_record,
                            const char *what, const char *of)
{
    enum rc rc = count(c, n, what);

    for (size_t i = 0; rc == RC_OK && i < n; i++) {
        rc = check_field(c, f[i], of_record, what, c->err);
        c->room[i] = (struct named){f[i]->name.data, f[i]->name.len};
    }
    return rc != RC_OK ? rc : check_once(c->room, n, what, of, c->err);
}

static enum rc check_records(struct check *c, const Ipc__ExtractSchema *s)
{
    enum rc rc = count(c, s->n_records, "structures");

    for (size_t i = 0; rc == RC_OK && i < s->n_records; i++) {
        const Ipc__ExtractRecord *r = s->records[i];

        if ((rc = check_name(r->name, "structures", "a structure's name", c->err)) != RC_OK)
            return rc;
        if (r->n_fields == 0)
            return rc_fail_what(c->err, RC_INVALID, "structures", "structure '%.*s' has no fields",
                                shown(r->name), (const char *)r->name.data);
        rc = check_fields(c, r->fields, r->n_fields, true, "structures", "field");
    }
    for (size_t i = 0; rc == RC_OK && i < s->n_records; i++)
        c->room[i] = (struct named){s->records[i]->name.data, s->records[i]->name.len};
    return rc != RC_OK ? rc : check_once(c->room, s->n_records, "structures", "structure", c->err);
}

static enum rc check_relations(struct check *c, const Ipc__ExtractSchema *s)
{
    enum rc rc = count(c, s->n_relations, "relations");

    for (size_t i = 0; rc == RC_OK && i < s->n_relations; i++) {
        const Ipc__ExtractRelation *r = s->relations[i];

        if ((rc = check_name(r->name, "relations", "a relation's name", c->err)) == RC_OK)
            rc = check_threshold(r->has_threshold, r->threshold, "relations", c->err);
        c->room[i] = (struct named){r->name.data, r->name.len};
    }
    return rc != RC_OK ? rc : check_once(c->room, s->n_relations, "relations", "relation", c->err);
}

static enum rc check_task(struct check *c, const Ipc__ExtractClasses *k)
{
    const char *what = "classifications";
    enum rc rc;

    if ((rc = check_name(k->name, what, "a task's name", c->err)) != RC_OK ||
        (rc = check_text(k->prompt, what, "a prompt", IPC_EXTRACT_WORDING_BYTES, c->err)) !=
            RC_OK ||
        (rc = check_threshold(k->multi_label, k->threshold, what, c->err)) != RC_OK)
        return rc;
    if (k->n_labels == 0)
        return rc_fail_what(c->err, RC_INVALID, what, "task '%.*s' has no labels", shown(k->name),
                            (const char *)k->name.data);
    if (k->activation > 2)
        return rc_fail_what(c->err, RC_INVALID, what, "activation %u, expected 0 to 2",
                            k->activation);
    if (k->n_examples > IPC_EXTRACT_EXAMPLES)
        return rc_bound(rc_fail_what(c->err, RC_TOO_LARGE, what, "%zu examples, at most %u",
                                     k->n_examples, IPC_EXTRACT_EXAMPLES),
                        k->n_examples, IPC_EXTRACT_EXAMPLES, c->err);
    for (size_t i = 0; i < k->n_examples; i++)
        if ((rc = check_text(k->examples[i]->input, what, "an example", IPC_EXTRACT_WORDING_BYTES,
                             c->err)) != RC_OK ||
            (rc = check_text(k->examples[i]->output, what, "an example", IPC_EXTRACT_WORDING_BYTES,
                             c->err)) != RC_OK)
            return rc;
    return check_fields(c, k->labels, k->n_labels, false, what, "label");
}

static enum rc check_classes(struct check *c, const Ipc__ExtractSchema *s)
{
    enum rc rc = count(c, s->n_classes, "classifications");

    for (size_t i = 0; rc == RC_OK && i < s->n_classes; i++)
        rc = check_task(c, s->classes[i]);
    for (size_t i = 0; rc == RC_OK && i < s->n_classes; i++)
        c->room[i] = (struct named){s->classes[i]->name.data, s->classes[i]->name.len};
    return rc != RC_OK ? rc : check_once(c->room, s->n_classes, "classifications", "task", c->err);
}

enum rc wrk_schema_check(const Ipc__ExtractSchema *s, struct rc_err *err)
{
    struct check c = {.err = err};
    enum rc rc;

    if (s->n_records + s->n_entities + s->n_relations + s->n_classes == 0)
        return rc_fail_what(err, RC_INVALID, "schema", "the schema asks for nothing");
    /* every list is counted before it is named */
    if ((c.room = malloc(IPC_EXTRACT_LABELS * sizeof(*c.room))) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for a schema");
    if ((rc = check_records(&c, s)) == RC_OK &&
        (rc = check_fields(&c, s->entities, s->n_entities, false, "entities", "label")) == RC_OK &&
        (rc = check_relations(&c, s)) == RC_OK)
        rc = check_classes(&c, s);
    free(c.room);
    return rc;
}
