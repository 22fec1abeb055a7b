/* wrk_ext_send.c - the last frame of an Extract task: what was found, and what failed.
 *
 * A span's text is the document's, with the dot behind it that was put there for the model when a
 * span ends with it: such a span ends one beyond the text.
 * Tests: tests/worker/test_wrk_engine_extract.c
 */
#include "wrk_ext_impl.h"

#include <stdlib.h>
#include <string.h>

/* All lists of an answer, each message made by us; freed as if it had been received. */
struct answer {
    const struct wrk_extract *x;
    Ipc__Extracted *m;
    bool failed; /* no memory */
};

static void *grab(struct answer *a, size_t n)
{
    void *p = calloc(1, n ? n : 1);

    a->failed = a->failed || p == NULL;
    return p;
}

static Ipc__ExtractSpan *span(struct answer *a, uint32_t item, const struct wrk_span *s,
                              const Ipc__ExtractField *f)
{
    const ProtobufCBinaryData *in = &a->x->q->inputs[item];
    Ipc__ExtractSpan *m = grab(a, sizeof(*m));
    size_t n = s->placed ? s->to - s->at : f->choices[s->choice].len;

    if (m == NULL)
        return NULL;
    ipc__extract_span__init(m);
    m->score = s->score > 1 ? 1 : s->score;
    m->text.len = n;
    if ((m->text.data = grab(a, n)) == NULL) {
        m->text.len = 0;
        return m;
    }
    if (!s->placed) {
        memcpy(m->text.data, f->choices[s->choice].data, n);
        return m;
    }
    m->has_place = true;
    m->start = a->x->q->byte_offsets ? s->at : s->start;
    m->end = a->x->q->byte_offsets ? s->to : s->end;
    if (s->to > in->len)
        m->text.data[--n] = '.';
    if (n > 0)
        memcpy(m->text.data, in->data + s->at, n);
    return m;
}

static void entities(struct answer *a, Ipc__ExtractedItem *m, uint32_t item,
                     const struct wrk_finds *f)
{
    m->entities = grab(a, f->n_entities * sizeof(Ipc__ExtractedEntity *));
    for (size_t i = 0; !a->failed && i < f->n_entities; i++) {
        Ipc__ExtractedEntity *e = grab(a, sizeof(*e));

        if (e == NULL)
            return;
        ipc__extracted_entity__init(e);
        m->entities[m->n_entities++] = e;
        e->label = f->entity[i].label;
        e->span = span(a, item, &f->entity[i].span, NULL);
    }
}

static void relations(struct answer *a, Ipc__ExtractedItem *m, uint32_t item,
                      const struct wrk_finds *f)
{
    m->relations = grab(a, f->n_relations * sizeof(Ipc__ExtractedRelation *));
    for (size_t i = 0; !a->failed && i < f->n_relations; i++) {
        Ipc__ExtractedRelation *r = grab(a, sizeof(*r));

        if (r == NULL)
            return;
        ipc__extracted_relation__init(r);
        m->relations[m->n_relations++] = r;
        r->relation = f->relation[i].relation;
        r->head = span(a, item, &f->relation[i].head, NULL);
        r->tail = span(a, item, &f->relation[i].tail, NULL);
    }
}

static void classes(struct answer *a, Ipc__ExtractedItem *m, const struct wrk_finds *f)
{
    m->classes = grab(a, f->n_classes * sizeof(Ipc__ExtractedClass *));
    for (size_t i = 0; !a->failed && i < f->n_classes; i++) {
        Ipc__ExtractedClass *c = grab(a, sizeof(*c));

        if (c == NULL)
            return;
        ipc__extracted_class__init(c);
        m->classes[m->n_classes++] = c;
        c->task = f->cls[i].task;
        c->label = f->cls[i].label;
        c->score = f->cls[i].score > 1 ? 1 : f->cls[i].score;
    }
}

/* Marks the values of a field whose text, but for case, one before it has (encoders.md 6.7): who
 * asked for no offsets is told each text once. A list is of one window: a few hundred at most. */
static void mark_again(struct answer *a, Ipc__ExtractedValue *v)
{
    struct lowered {
        char *s;
        size_t n, cap;
    } *low = grab(a, v->n_spans * sizeof(*low));
    struct rc_err err;

    for (size_t i = 0; !a->failed && i < v->n_spans; i++) {
        Ipc__ExtractSpan *x = v->spans[i];

        if (wrk_lower((const char *)x->text.data, x->text.len, &low[i].s, &low[i].cap, &low[i].n,
                      &err) != RC_OK)
            a->failed = true;
        for (size_t k = 0; !a->failed && k < i && !x->again; k++)
            x->again = low[k].n == low[i].n && memcmp(low[k].s, low[i].s, low[i].n) == 0;
    }
    for (size_t i = 0; low != NULL && i < v->n_spans; i++)
        free(low[i].s);
    free(low);
}

/* A record's values, those of a field together: fields are read in order. */
static void values(struct answer *a, Ipc__ExtractedRecord *m, uint32_t item,
                   const struct wrk_finds *f, const struct wrk_record *r,
                   const Ipc__ExtractRecord *asked)
{
    uint32_t i = r->from, to;

    m->values = grab(a, r->n * sizeof(Ipc__ExtractedValue *));
    for (; !a->failed && i < r->from + r->n; i = to) {
        Ipc__ExtractedValue *v = grab(a, sizeof(*v));
        uint32_t field = f->value[i].field;

        if (v == NULL)
            return;
        ipc__extracted_value__init(v);
        m->values[m->n_values++] = v;
        v->field = field;
        for (to = i; to < r->from + r->n && f->value[to].field == field; to++)
            ;
        v->spans = grab(a, (to - i) * sizeof(Ipc__ExtractSpan *));
        for (uint32_t k = i; !a->failed && k < to; k++)
            v->spans[v->n_spans++] = span(a, item, &f->value[k].span, asked->fields[field]);
        if (!a->failed && v->n_spans > 1)
            mark_again(a, v);
    }
}

static void records(struct answer *a, Ipc__ExtractedItem *m, uint32_t item,
                    const struct wrk_finds *f)
{
    const Ipc__ExtractSchema *s = wrk_ext_schema(a->x, item)->s;

    m->records = grab(a, f->n_records * sizeof(Ipc__ExtractedRecord *));
    for (size_t i = 0; !a->failed && i < f->n_records; i++) {
        Ipc__ExtractedRecord *r = grab(a, sizeof(*r));

        if (r == NULL)
            return;
        ipc__extracted_record__init(r);
        m->records[m->n_records++] = r;
        r->record = f->record[i].record;
        values(a, r, item, f, &f->record[i], s->records[r->record]);
    }
}

static void items(struct answer *a)
{
    a->m->items = grab(a, a->x->n * sizeof(Ipc__ExtractedItem *));
    for (uint32_t i = 0; !a->failed && i < a->x->n; i++) {
        const struct wrk_ext_item *it = &a->x->item[i];
        Ipc__ExtractedItem *m = grab(a, sizeof(*m));

        if (m == NULL)
            return;
        ipc__extracted_item__init(m);
        a->m->items[a->m->n_items++] = m;
        if (it->failed)
            continue;
        m->n_tokens = it->n_tokens;
        m->n_windows = it->n_windows;
        entities(a, m, i, &it->finds);
        relations(a, m, i, &it->finds);
        classes(a, m, &it->finds);
        records(a, m, i, &it->finds);
    }
}

static void errors(struct answer *a)
{
    a->m->errors = grab(a, a->x->n_bad * sizeof(Ipc__ItemError *));
    for (uint32_t i = 0; !a->failed && i < a->x->n_bad; i++) {
        Ipc__ItemError *m = grab(a, sizeof(*m));
        Ipc__Error *why = grab(a, sizeof(*why)), from = IPC__ERROR__INIT;

        if (m == NULL || why == NULL) {
            free(m);
            free(why);
            return;
        }
        ipc__item_error__init(m);
        a->m->errors[a->m->n_errors++] = m;
        ipc_error_from(&from, &a->x->bad[i]);
        *why = from;
        m->error = why;
        m->index = (uint32_t)a->x->bad[i].item;
        why->what = strdup(from.what);
        why->stage = strdup(from.stage);
        why->message.data = grab(a, from.message.len);
        if (why->message.data != NULL && from.message.len > 0)
            memcpy(why->message.data, from.message.data, from.message.len);
        a->failed =
            a->failed || why->what == NULL || why->stage == NULL || why->message.data == NULL;
    }
}

enum rc wrk_ext_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    struct answer a = {.x = t->extract};
    Ipc__Frame f = IPC__FRAME__INIT;
    enum rc rc;

    if ((a.m = grab(&a, sizeof(*a.m))) == NULL)
        return rc_fail(err, RC_NOMEM, "what was extracted");
    ipc__extracted__init(a.m);
    items(&a);
    errors(&a);
    if ((a.m->model_identity = strdup(e->info->identity)) == NULL || a.failed) {
        rc = rc_fail(err, RC_NOMEM, "what was extracted");
    } else {
        f.task = t->id;
        f.body_case = IPC__FRAME__BODY_EXTRACTED;
        f.extracted = a.m;
        rc = wrk_chan_send(e->o.chan, &f, err);
    }
    ipc__extracted__free_unpacked(a.m, NULL);
    return rc;
}
