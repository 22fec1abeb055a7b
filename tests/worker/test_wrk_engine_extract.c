/* test_wrk_engine_extract.c - tasks that extract, over a scripted model (fake_mdl.h): batches,
 * item errors, windows, cancels, deadlines, what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/fake_mdl.h"

#include "worker/engine_rig.h"
#include "wrk_extract.h"

#define TASKS 16

struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan chan;
    int fd;
    Ipc__Extracted *got[TASKS]; /* copies */
    struct rc_err err[TASKS];
    uint32_t n_ended;
    uint64_t cancel; /* at the next look */
};

static enum rc listen_cancel(void *user, struct rc_err *err)
{
    struct rig *r = user;
    uint64_t task = r->cancel;

    r->cancel = 0;
    return task ? wrk_engine_cancel(r->e, task, err) : RC_OK;
}

static struct rig *rig_new(uint32_t batch_tokens)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct wrk_engine_opts o = {.max_seqs = 2, .max_queue = 8, .listen = listen_cancel};

    assert_non_null(r);
    r->m = fake_new(batch_tokens, 2, batch_tokens);
    r->m->info.can_generate = r->m->info.can_embed = false;
    r->m->info.can_extract = true;
    r->m->info.span_words = 2;
    r->m->info.max_input_tokens = batch_tokens;
    r->fd = engine_channel(&r->chan);
    o.mdl = r->m;
    o.chan = &r->chan;
    o.batch_tokens = batch_tokens;
    o.listen_user = r;
    assert_int_equal(wrk_engine_new(&r->e, &o, NULL), RC_OK);
    return r;
}

static void rig_free(struct rig *r)
{
    wrk_engine_free(&r->e);
    wrk_chan_deinit(&r->chan);
    close(r->chan.fd);
    close(r->fd);
    for (int i = 0; i < TASKS; i++)
        if (r->got[i] != NULL)
            ipc__extracted__free_unpacked(r->got[i], NULL);
    free(r->m);
    free(r);
}

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;
    size_t n;
    uint8_t *buf;

    assert_true(f->task < TASKS);
    r->n_ended++;
    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        ipc_error_to(&r->err[f->task], f->error);
        return;
    }
    assert_int_equal(f->body_case, IPC__FRAME__BODY_EXTRACTED);
    n = ipc__extracted__get_packed_size(f->extracted);
    assert_non_null(buf = malloc(n + 1));
    ipc__extracted__pack(f->extracted, buf);
    assert_non_null(r->got[f->task] = ipc__extracted__unpack(NULL, n, buf));
    free(buf);
}

static void run(struct rig *r)
{
    for (int i = 0; i < 10000 && wrk_engine_busy(r->e); i++)
        engine_step(r->e, &r->chan, r->fd, on_frame, r);
    assert_false(wrk_engine_busy(r->e));
}

static ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* A request for person and city, the relation of pupils, and a mood. */
struct ask {
    const char *text[4];
    float threshold;
    bool per_item, byte_offsets, flat, record;
    uint64_t deadline_us;
    const char *identity;
    const uint32_t *item_of;
    const char *pattern; /* of a record's first field, 16 times */
};

static void extract(struct rig *r, uint64_t task, const struct ask *a)
{
    static const char *const names[] = {"person", "city"}, *const moods[] = {"good", "bad"};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Extract m = IPC__EXTRACT__INIT;
    Ipc__ExtractSchema s = IPC__EXTRACT_SCHEMA__INIT, *schemas = &s;
    Ipc__ExtractField label[2], mood[2], *labels[2], *list[2];
    Ipc__ExtractClasses k = IPC__EXTRACT_CLASSES__INIT, *classes = &k;
    Ipc__ExtractRecord rec = IPC__EXTRACT_RECORD__INIT, *recs = &rec;
    Ipc__ExtractPattern pattern = IPC__EXTRACT_PATTERN__INIT, *patterns[16];
    ProtobufCBinaryData in[4], choices[2];

    for (int i = 0; i < 2; i++) {
        ipc__extract_field__init(&label[i]);
        ipc__extract_field__init(&mood[i]);
        label[i].name = bytes(names[i]);
        mood[i].name = bytes(moods[i]);
        labels[i] = &label[i];
        list[i] = &mood[i];
        choices[i] = bytes(i ? "cold" : "hot");
    }
    k.name = bytes("mood");
    k.labels = list;
    k.n_labels = 2;
    if (a->record) {
        rec.name = bytes("trip");
        rec.fields = labels;
        rec.n_fields = 2;
        label[1].choices = choices;
        label[1].n_choices = 2;
        if (a->pattern != NULL) {
            pattern.regex = bytes(a->pattern);
            for (int i = 0; i < 16; i++)
                patterns[i] = &pattern;
            label[0].patterns = patterns;
            label[0].n_patterns = 16;
        }
        s.records = &recs;
        s.n_records = 1;
    } else {
        s.entities = labels;
        s.n_entities = 2;
    }
    s.classes = &classes;
    s.n_classes = 1;
    m.schemas = &schemas;
    m.n_schemas = 1;
    m.inputs = in;
    for (; m.n_inputs < 4 && a->text[m.n_inputs] != NULL; m.n_inputs++)
        in[m.n_inputs] = bytes(a->text[m.n_inputs]);
    m.threshold = a->threshold > 0 ? a->threshold : 0.5f;
    m.per_item = a->per_item;
    m.byte_offsets = a->byte_offsets;
    m.flat = a->flat;
    m.deadline_us = a->deadline_us;
    if (a->item_of != NULL) {
        m.item_of = (uint32_t *)(uintptr_t)a->item_of;
        m.n_item_of = m.n_inputs;
    }
    if (a->identity != NULL)
        m.model_identity = (char *)(uintptr_t)a->identity;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_EXTRACT;
    f.extract = &m;
    assert_int_equal(engine_submit(r->e, &f), RC_OK);
}

static void expect_entity(const Ipc__ExtractedItem *it, size_t i, uint32_t label, const char *text,
                          uint32_t start, uint32_t end)
{
    const Ipc__ExtractSpan *s;

    assert_true(i < it->n_entities);
    s = it->entities[i]->span;
    assert_int_equal(it->entities[i]->label, label);
    assert_int_equal(s->text.len, strlen(text));
    assert_memory_equal(s->text.data, text, s->text.len);
    assert_int_equal(s->start, start);
    assert_int_equal(s->end, end);
    assert_true(s->has_place && fabsf(s->score - 0.982f) < 1e-3f);
}

static void texts_of_many_tasks_share_passes(void **state)
{
    struct rig *r = rig_new(512);
    const struct ask a = {.text = {"Paul saw Cairo", "nothing.", "caf\xC3\xA9 Peter."}};

    (void)state;
    for (uint64_t t = 1; t <= 5; t++)
        extract(r, t, &a);
    run(r);
    for (uint64_t t = 1; t <= 5; t++) {
        const Ipc__Extracted *x = r->got[t];

        assert_non_null(x);
        assert_int_equal(x->n_items, 3);
        assert_int_equal(x->items[0]->n_entities, 2);
        expect_entity(x->items[0], 0, 0, "Paul", 0, 4);
        expect_entity(x->items[0], 1, 1, "Cairo", 9, 14);
        assert_int_equal(x->items[1]->n_entities, 0);
        expect_entity(x->items[2], 0, 0, "Peter", 5, 10); /* code points */
        expect_entity(x->items[2], 1, 1, "caf\xC3\xA9", 0, 4);
        assert_int_equal(x->items[0]->n_classes, 1);
        assert_int_equal(x->items[0]->classes[0]->label, 1);
        assert_int_equal(x->items[0]->n_windows, 1);
        assert_true(x->items[0]->n_tokens > 0);
    }
    assert_true(r->m->n_encodes < 10);
    assert_true(r->m->most_encode_rows <= 512);
    rig_free(r);
}

static void offsets_are_bytes_on_request(void **state)
{
    struct rig *r = rig_new(512);
    const struct ask a = {.text = {"caf\xC3\xA9 Peter"}, .byte_offsets = true};

    (void)state;
    extract(r, 1, &a);
    run(r);
    expect_entity(r->got[1]->items[0], 0, 0, "Peter", 6, 11);
    expect_entity(r->got[1]->items[0], 1, 1, "caf\xC3\xA9", 0, 5);
    rig_free(r);
}

static void choices_and_lists_make_records(void **state)
{
    struct rig *r = rig_new(512);
    const struct ask a = {.text = {"Paul and Peter"}, .record = true};
    const Ipc__ExtractedRecord *x;

    (void)state;
    extract(r, 1, &a);
    run(r);
    assert_int_equal(r->got[1]->items[0]->n_records, 1);
    x = r->got[1]->items[0]->records[0];
    assert_int_equal(x->n_values, 2);
    assert_int_equal(x->values[0]->n_spans, 2);
    assert_int_equal(x->values[0]->spans[1]->start, 9);
    assert_int_equal(x->values[1]->n_spans, 1); /* "cold" begins as "city" does */
    assert_false(x->values[1]->spans[0]->has_place);
    assert_memory_equal(x->values[1]->spans[0]->text.data, "cold", 4);
    rig_free(r);
}

static void a_text_that_stands_there_again_is_marked(void **state)
{
    static const bool again[] = {false, false, true, true, false};
    struct rig *r = rig_new(512);
    const struct ask a = {.text = {"Paul, P\xC3\x89r and PAUL, p\xC3\xA9r Pa"}, .record = true};
    const Ipc__ExtractedValue *v;

    (void)state;
    extract(r, 1, &a);
    run(r);
    v = r->got[1]->items[0]->records[0]->values[0];
    assert_int_equal(v->n_spans, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(v->spans[i]->again, again[i]);
    rig_free(r);
}

static void a_long_text_is_read_in_windows(void **state)
{
    struct rig *r = rig_new(4096);
    struct ask a = {.text = {NULL}};
    char text[6000] = "";

    (void)state;
    /* 401 words, two of them in the part that both windows see, one in the second only */
    for (int i = 0; i < 401; i++)
        strcat(text, i == 330 ? "Paul " : i == 340 ? "Cairo " : i == 390 ? "Peter " : "x\xC3\xA9 ");
    a.text[0] = text;
    extract(r, 1, &a);
    run(r);
    assert_int_equal(r->got[1]->items[0]->n_windows, 2);
    assert_int_equal(r->got[1]->items[0]->n_entities, 3);
    expect_entity(r->got[1]->items[0], 0, 0, "Paul", 990, 994);
    expect_entity(r->got[1]->items[0], 1, 0, "Peter", 990 + 5 + 27 + 6 + 147,
                  990 + 5 + 27 + 6 + 152);
    expect_entity(r->got[1]->items[0], 2, 1, "Cairo", 990 + 5 + 27, 990 + 5 + 27 + 5);
    assert_int_equal(r->got[1]->items[0]->n_classes, 1);
    rig_free(r);
}

static void item_errors_stay_with_their_item(void **state)
{
    struct rig *r = rig_new(256);
    static char over[400];
    struct ask a = {.text = {"Paul", "! falls", "? lost", "\xFF"}, .per_item = true};
    const Ipc__Extracted *x;

    (void)state;
    memset(over, 'o', sizeof(over) - 1);
    extract(r, 1, &a);
    a.text[1] = over;
    extract(r, 2, &a);
    a.per_item = false;
    a.text[1] = "! falls";
    a.text[3] = NULL;
    extract(r, 3, &a);
    run(r);
    x = r->got[1];
    assert_non_null(x);
    assert_int_equal(x->n_items, 4);
    assert_int_equal(x->n_errors, 3);
    for (size_t i = 0; i < 3; i++) {
        uint32_t at = x->errors[i]->index;

        assert_int_equal(x->items[at]->n_entities + x->items[at]->n_classes, 0);
        assert_int_equal(x->errors[i]->error->code, at == 3 ? RC_INVALID : RC_INTERNAL);
    }
    expect_entity(x->items[0], 0, 0, "Paul", 0, 4);
    x = r->got[2];
    assert_int_equal(x->errors[0]->index, 1);
    assert_int_equal(x->errors[0]->error->code, RC_TOO_LARGE);
    assert_int_equal(r->err[3].code, RC_INTERNAL);
    assert_true(r->err[3].item == 1 || r->err[3].item == 2);
    assert_string_equal(r->err[3].stage, "text_inference");
    a = (struct ask){.text = {"Paul", over}, .item_of = (const uint32_t[]){7, 9}};
    extract(r, 4, &a);
    a.per_item = true; /* items of an answer are its own */
    extract(r, 5, &a);
    run(r);
    assert_int_equal(r->err[4].code, RC_TOO_LARGE);
    assert_int_equal(r->err[4].item, 9);
    assert_int_equal(r->got[5]->errors[0]->index, 1);
    assert_string_equal(r->got[5]->errors[0]->error->stage, "text_inference");
    rig_free(r);
}

static void a_cancelled_task_ends_its_pass_and_no_other(void **state)
{
    struct rig *r = rig_new(512);
    struct ask a = {.text = {"Paul saw Cairo"}};

    (void)state;
    r->m->n_layers = 4;
    r->m->layer_us = 12000;
    extract(r, 1, &a);
    extract(r, 2, &a);
    r->cancel = 1;
    run(r);
    assert_int_equal(r->err[1].code, RC_CANCELLED);
    assert_int_equal(r->m->n_stopped, 1);
    expect_entity(r->got[2]->items[0], 0, 0, "Paul", 0, 4);
    a.deadline_us = wrk_now_us() + 30000;
    extract(r, 3, &a);
    run(r);
    assert_int_equal(r->err[3].code, RC_DEADLINE);
    rig_free(r);
}

/* The model has long ended when validators still look at what it found. */
static void a_cancel_is_heard_between_validators(void **state)
{
    struct rig *r = rig_new(8192);
    /* fails after some thousand steps on each word, which no pattern refuses */
    struct ask slow = {.text = {NULL}, .record = true, .pattern = "(?!(?:p|pp)+x)p+"},
               other = {.text = {"Paul saw Cairo"}};
    char text[8000] = "";
    uint64_t begin;

    (void)state;
    for (int i = 0; i < 300; i++)
        strcat(text, "pppppppppppppppp ");
    slow.text[0] = text;
    extract(r, 1, &slow);
    begin = wrk_now_us();
    run(r);
    assert_int_equal(r->got[1]->items[0]->records[0]->values[0]->n_spans, 300);
    if (wrk_now_us() - begin < 60000) { /* between two looks are 20 ms */
        print_message("the patterns took no 60 ms here\n");
        rig_free(r);
        skip();
    }
    extract(r, 2, &slow);
    extract(r, 3, &other);
    r->cancel = 2;
    run(r);
    assert_int_equal(r->err[2].code, RC_CANCELLED);
    expect_entity(r->got[3]->items[0], 0, 0, "Paul", 0, 4);
    rig_free(r);
}

/* Every word is a person and a city: windows that wait for the last one of their text hold it all.
 */
static void what_windows_hold_is_bounded(void **state)
{
    enum { WORDS = 560000 };
    struct rig *r = rig_new(8192);
    struct ask a = {.text = {NULL, "Paul saw Cairo."}, .threshold = 0.01f, .per_item = true};
    char *text = malloc(2 * WORDS + 1);
    const Ipc__Extracted *x;

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < WORDS; i++)
        memcpy(text + 2 * i, "x ", 3);
    a.text[0] = text;
    extract(r, 1, &a);
    run(r);
    x = r->got[1];
    assert_non_null(x);
    assert_int_equal(x->n_errors, 1); /* what the text held is given back: the other is answered */
    assert_int_equal(x->errors[0]->index, 0);
    assert_int_equal(x->errors[0]->error->code, RC_TOO_LARGE);
    assert_string_equal(x->errors[0]->error->what, "threshold");
    assert_int_equal(x->errors[0]->error->limit, IPC_EXTRACT_SPANS);
    assert_int_equal(x->items[1]->n_entities, 8);
    a.per_item = false;
    extract(r, 2, &a);
    run(r);
    assert_int_equal(r->err[2].code, RC_TOO_LARGE);
    assert_int_equal(r->err[2].item, 0);
    free(text);
    rig_free(r);
}

static void changed_files_spoil_the_pass(void **state)
{
    struct rig *r = rig_new(512);
    const struct ask a = {.text = {"Paul"}};

    (void)state;
    r->m->guard_after_pass = true;
    extract(r, 1, &a);
    for (int i = 0; i < 10 && wrk_engine_busy(r->e); i++)
        engine_step(r->e, &r->chan, r->fd, on_frame, r);
    assert_int_equal(r->err[1].code, RC_WEIGHT_IO);
    rig_free(r);
}

static void what_cannot_be_is_refused(void **state)
{
    struct rig *r = rig_new(512);
    struct ask a = {.text = {NULL}};

    (void)state;
    extract(r, 1, &a);
    a.text[0] = "Paul";
    a.threshold = 2;
    extract(r, 2, &a);
    a.threshold = 0;
    a.identity = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    extract(r, 3, &a);
    run(r);
    assert_int_equal(r->err[1].code, RC_INVALID);
    assert_string_equal(r->err[1].what, "inputs");
    assert_int_equal(r->err[2].code, RC_INVALID);
    assert_string_equal(r->err[2].what, "threshold");
    assert_int_equal(r->err[3].code, RC_CONFLICT);
    rig_free(r);
    r = rig_new(40); /* the schema alone is longer */
    a.identity = NULL;
    extract(r, 4, &a);
    run(r);
    assert_int_equal(r->err[4].code, RC_TOO_LARGE);
    assert_string_equal(r->err[4].what, "schema");
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_many_tasks_share_passes),
        cmocka_unit_test(offsets_are_bytes_on_request),
        cmocka_unit_test(choices_and_lists_make_records),
        cmocka_unit_test(a_text_that_stands_there_again_is_marked),
        cmocka_unit_test(a_long_text_is_read_in_windows),
        cmocka_unit_test(item_errors_stay_with_their_item),
        cmocka_unit_test(a_cancelled_task_ends_its_pass_and_no_other),
        cmocka_unit_test(a_cancel_is_heard_between_validators),
        cmocka_unit_test(what_windows_hold_is_bounded),
        cmocka_unit_test(changed_files_spoil_the_pass),
        cmocka_unit_test(what_cannot_be_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
