/* extract_ask.h - what the tests of extraction share: schemas from the golden files' JSON, and what
 * was found as the reference prints it. Included once per test program, after cmocka and
 * mdl_test.h.
 */
#ifndef INFERD_EXTRACT_ASK_H
#define INFERD_EXTRACT_ASK_H

#include <jansson.h>

#include "wrk_extract.h"

static inline ProtobufCBinaryData ask_bytes(const char *s)
{
    ProtobufCBinaryData b = {strlen(s), malloc(strlen(s) + 1)};

    assert_non_null(b.data);
    memcpy(b.data, s, b.len + 1);
    return b;
}

static inline void *ask_list(size_t n)
{
    void *p = calloc(n + 1, sizeof(void *));

    assert_non_null(p);
    return p;
}

#define ASK_NEW(type, init)              \
    static inline type *ask_##init(void) \
    {                                    \
        type *x = calloc(1, sizeof(*x)); \
                                         \
        assert_non_null(x);              \
        ipc__extract_##init##__init(x);  \
        return x;                        \
    }
ASK_NEW(Ipc__ExtractSchema, schema)
ASK_NEW(Ipc__ExtractField, field)
ASK_NEW(Ipc__ExtractRelation, relation)
ASK_NEW(Ipc__ExtractRecord, record)
ASK_NEW(Ipc__ExtractClasses, classes)
ASK_NEW(Ipc__ExtractExample, example)
ASK_NEW(Ipc__ExtractPattern, pattern)
#undef ASK_NEW

static inline Ipc__ExtractField *ask_label(const char *name, const json_t *spec)
{
    Ipc__ExtractField *f = ask_field();
    const json_t *d = json_is_string(spec) ? spec : json_object_get(spec, "description");
    const char *type = json_string_value(json_object_get(spec, "dtype"));
    const json_t *choices = json_object_get(spec, "choices"),
                 *rules = json_object_get(spec, "validators");

    f->name = ask_bytes(name);
    if (json_is_string(d))
        f->description = ask_bytes(json_string_value(d));
    f->single = type && strcmp(type, "str") == 0;
    f->n_choices = json_array_size(choices);
    f->choices = calloc(f->n_choices + 1, sizeof(*f->choices));
    for (size_t i = 0; i < f->n_choices; i++)
        f->choices[i] = ask_bytes(json_string_value(json_array_get(choices, i)));
    f->n_patterns = json_array_size(rules);
    f->patterns = ask_list(f->n_patterns);
    for (size_t i = 0; i < f->n_patterns; i++) {
        const json_t *r = json_array_get(rules, i);

        f->patterns[i] = ask_pattern();
        f->patterns[i]->regex = ask_bytes(json_string_value(json_object_get(r, "pattern")));
        f->patterns[i]->search = strcmp(json_string_value(json_object_get(r, "mode")), "full") != 0;
        f->patterns[i]->exclude = json_is_true(json_object_get(r, "exclude"));
    }
    return f;
}

static inline void ask_entities(Ipc__ExtractSchema *s, const json_t *e)
{
    const char *key;
    json_t *v;
    size_t n = json_is_array(e) ? json_array_size(e) : json_object_size(e), i;

    s->entities = ask_list(n);
    if (json_is_array(e))
        json_array_foreach(e, i, v) s->entities[s->n_entities++] =
            ask_label(json_string_value(v), NULL);
    else
        json_object_foreach((json_t *)(uintptr_t)e, key, v) s->entities[s->n_entities++] =
            ask_label(key, v);
}

static inline Ipc__ExtractClasses *ask_task(const json_t *t)
{
    Ipc__ExtractClasses *k = ask_classes();
    const json_t *labels = json_object_get(t, "labels"), *ex = json_object_get(t, "examples"),
                 *words = json_object_get(t, "label_descriptions");
    const char *prompt = json_string_value(json_object_get(t, "prompt"));

    k->name = ask_bytes(json_string_value(json_object_get(t, "task")));
    if (prompt)
        k->prompt = ask_bytes(prompt);
    k->multi_label = json_is_true(json_object_get(t, "multi_label"));
    k->threshold = (float)json_number_value(json_object_get(t, "cls_threshold"));
    k->n_labels = json_array_size(labels);
    k->labels = ask_list(k->n_labels);
    for (size_t i = 0; i < k->n_labels; i++) {
        const char *name = json_string_value(json_array_get(labels, i));

        k->labels[i] = ask_label(name, json_object_get(words, name));
    }
    k->n_examples = json_array_size(ex);
    k->examples = ask_list(k->n_examples);
    for (size_t i = 0; i < k->n_examples; i++) {
        const json_t *pair = json_array_get(ex, i);

        k->examples[i] = ask_example();
        k->examples[i]->input = ask_bytes(json_string_value(json_array_get(pair, 0)));
        k->examples[i]->output = ask_bytes(json_string_value(json_array_get(pair, 1)));
    }
    return k;
}

/* A schema as cases.json describes one; ipc__extract_schema__free_unpacked frees it. */
static inline Ipc__ExtractSchema *ask_schema_of(const json_t *j)
{
    Ipc__ExtractSchema *s = ask_schema();
    const json_t *rel = json_object_get(j, "relations"),
                 *cls = json_object_get(j, "classifications");
    json_t *rec = json_object_get(j, "structures"), *v;
    const char *key;

    if (json_object_get(j, "entities"))
        ask_entities(s, json_object_get(j, "entities"));
    s->relations = ask_list(json_array_size(rel));
    for (size_t i = 0; i < json_array_size(rel); i++) {
        s->relations[s->n_relations] = ask_relation();
        s->relations[s->n_relations++]->name = ask_bytes(json_string_value(json_array_get(rel, i)));
    }
    s->classes = ask_list(json_array_size(cls));
    for (size_t i = 0; i < json_array_size(cls); i++)
        s->classes[s->n_classes++] = ask_task(json_array_get(cls, i));
    s->records = ask_list(json_object_size(rec));
    json_object_foreach(rec, key, v)
    {
        const json_t *fields = json_object_get(v, "fields");
        Ipc__ExtractRecord *r = ask_record();

        r->name = ask_bytes(key);
        r->n_fields = json_array_size(fields);
        r->fields = ask_list(r->n_fields);
        for (size_t i = 0; i < r->n_fields; i++) {
            const json_t *f = json_array_get(fields, i);

            r->fields[i] = ask_label(json_string_value(json_object_get(f, "name")), f);
        }
        s->records[s->n_records++] = r;
    }
    return s;
}

/* ------------------------------------------------------- as the reference prints it */

static inline json_t *say_text(ProtobufCBinaryData b)
{
    return json_stringn((const char *)b.data, b.len);
}

/* text: the document's, a dot behind it. */
static inline json_t *say_span(const struct wrk_span *s, const char *text)
{
    return json_pack("{s:o, s:f, s:i, s:i}", "text", json_stringn(text + s->at, s->to - s->at),
                     "confidence", (double)s->score, "start", (int)s->start, "end", (int)s->end);
}

static inline json_t *say_entities(const struct wrk_finds *f, const Ipc__ExtractSchema *s,
                                   const char *text)
{
    json_t *out = json_object();

    for (size_t l = 0; l < s->n_entities; l++) {
        json_t *list = json_array(), *one = NULL;

        for (size_t i = 0; i < f->n_entities; i++)
            if (f->entity[i].label == l)
                json_array_append_new(list, say_span(&f->entity[i].span, text));
        if (s->entities[l]->single)
            one = json_array_size(list) ? json_incref(json_array_get(list, 0)) : json_null();
        json_object_setn_new(out, (const char *)s->entities[l]->name.data, s->entities[l]->name.len,
                             one ? one : json_incref(list));
        json_decref(list);
    }
    return out;
}

static inline json_t *say_record(const struct wrk_finds *f, const struct wrk_record *x,
                                 const Ipc__ExtractRecord *r, const char *text)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < r->n_fields; i++) {
        json_t *list = json_array();

        for (uint32_t v = x->from; v < x->from + x->n; v++) {
            const struct wrk_span *sp = &f->value[v].span;

            if (f->value[v].field == i)
                json_array_append_new(
                    list, sp->placed ? say_span(sp, text)
                                     : json_pack("{s:o, s:f}", "text",
                                                 say_text(r->fields[i]->choices[sp->choice]),
                                                 "confidence", (double)sp->score));
        }
        json_object_setn_new(out, (const char *)r->fields[i]->name.data, r->fields[i]->name.len,
                             !r->fields[i]->single        ? json_incref(list)
                             : json_array_size(list) == 0 ? json_null()
                                                          : json_incref(json_array_get(list, 0)));
        json_decref(list);
    }
    return out;
}

static inline json_t *say_classes(const struct wrk_finds *f, const Ipc__ExtractSchema *s,
                                  uint32_t task)
{
    const Ipc__ExtractClasses *k = s->classes[task];
    json_t *list = json_array(), *one;

    for (size_t i = 0; i < f->n_classes; i++)
        if (f->cls[i].task == task)
            json_array_append_new(list, json_pack("{s:o, s:f}", "label",
                                                  say_text(k->labels[f->cls[i].label]->name),
                                                  "confidence", (double)f->cls[i].score));
    if (k->multi_label)
        return list;
    one = json_incref(json_array_get(list, 0));
    json_decref(list);
    return one;
}

/* ran: of each prompt, whether it had an instance. */
static inline json_t *say_all(const struct wrk_finds *f, const struct wrk_schema *ws,
                              const bool *ran, const char *text)
{
    const Ipc__ExtractSchema *s = ws->s;
    json_t *out = json_object(), *rel = json_object();

    for (uint32_t p = 0; p < ws->n_prompts; p++) {
        uint32_t of = ws->prompt[p].of;
        json_t *list = json_array();

        switch (ws->prompt[p].kind) {
        case WRK_ENTITIES:
            json_object_set_new(out, "entities", ran[p] ? say_entities(f, s, text) : json_object());
            break;
        case WRK_RELATIONS:
            for (size_t i = 0; i < f->n_relations; i++)
                if (f->relation[i].relation == of)
                    json_array_append_new(
                        list, json_pack("{s:o, s:o}", "head", say_span(&f->relation[i].head, text),
                                        "tail", say_span(&f->relation[i].tail, text)));
            json_object_setn(rel, (const char *)s->relations[of]->name.data,
                             s->relations[of]->name.len, list);
            break;
        case WRK_RECORDS:
            for (size_t i = 0; i < f->n_records; i++)
                if (f->record[i].record == of)
                    json_array_append_new(list, say_record(f, &f->record[i], s->records[of], text));
            json_object_setn_new(out, (const char *)s->records[of]->name.data,
                                 s->records[of]->name.len,
                                 ran[p] ? json_incref(list) : json_object());
            break;
        case WRK_CLASSES:
            json_object_setn_new(out, (const char *)s->classes[of]->name.data,
                                 s->classes[of]->name.len, say_classes(f, s, of));
            break;
        }
        json_decref(list);
    }
    if (s->n_relations > 0)
        json_object_set(out, "relation_extraction", rel);
    json_decref(rel);
    return out;
}

/* Equal, numbers that are no integers within tol. */
static inline bool say_same(const json_t *a, const json_t *b, double tol)
{
    const char *key;
    json_t *v;
    size_t i;

    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b)
                   ? json_integer_value(a) == json_integer_value(b)
                   : fabs(json_number_value(a) - json_number_value(b)) <= tol;
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, v) if (!say_same(v, json_array_get(b, i), tol)) return false;
        return true;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach((json_t *)(uintptr_t)a, key,
                            v) if (!json_object_get(b, key) ||
                                   !say_same(v, json_object_get(b, key), tol)) return false;
        return true;
    }
    return json_equal(a, b);
}

#endif
