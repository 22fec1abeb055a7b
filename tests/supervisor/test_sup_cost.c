/* test_sup_cost.c - prices of tasks, and what answers say they cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "sup_cost.h"

#define BYTES(field, s) ((field).data = (uint8_t *)(uintptr_t)(s), (field).len = strlen(s))

static Ipc__Frame frame(Ipc__Frame__BodyCase kind, void *body)
{
    Ipc__Frame f = IPC__FRAME__INIT;

    f.body_case = kind;
    f.generate = body; /* one union */
    return f;
}

static void test_generate(void **state)
{
    Ipc__Generate q = IPC__GENERATE__INIT;
    Ipc__ChatMessage m = IPC__CHAT_MESSAGE__INIT, *list[2] = {&m, &m};
    Ipc__Frame f = frame(IPC__FRAME__BODY_GENERATE, &q);
    struct sup_cost c;

    q.n = 3;
    q.max_tokens = 100;
    c = sup_cost_asked(&f); /* nothing is free */
    assert_int_equal(c.prompt, 1);
    assert_int_equal(c.answer, 300);
    assert_int_equal(sup_cost_all(&c), 301);
    BYTES(q.prompt, "123456789"); /* 9 bytes: 3 tokens */
    assert_int_equal(sup_cost_asked(&f).prompt, 3);
    q.prompt.len = 0;
    q.n_prompt_tokens = 7;
    assert_int_equal(sup_cost_asked(&f).prompt, 7);
    q.n_prompt_tokens = 0;
    BYTES(m.content, "12345678");
    BYTES(m.reasoning, "1234");
    BYTES(m.tool_calls, "1");
    q.messages = list;
    q.n_messages = 2;
    BYTES(q.tools, "12345");
    assert_int_equal(sup_cost_asked(&f).prompt, 2 * (2 + 1 + 1) + 2);
}

static void test_sums_do_not_wrap(void **state)
{
    Ipc__Generate q = IPC__GENERATE__INIT;
    Ipc__Frame f = frame(IPC__FRAME__BODY_GENERATE, &q);
    Ipc__Rerank r = IPC__RERANK__INIT;
    ProtobufCBinaryData docs[2] = {{0}};
    struct sup_cost c;

    q.n = q.max_tokens = UINT32_MAX;
    q.prompt.len = SIZE_MAX;
    q.n_prompt_tokens = SIZE_MAX;
    c = sup_cost_asked(&f);
    assert_true(c.prompt == UINT64_MAX && c.answer == (uint64_t)UINT32_MAX * UINT32_MAX);
    assert_true(sup_cost_all(&c) == UINT64_MAX);
    f = frame(IPC__FRAME__BODY_RERANK, &r);
    r.query.len = SIZE_MAX;
    r.documents = docs;
    r.n_documents = 2;
    docs[0].len = SIZE_MAX;
    assert_true(sup_cost_asked(&f).prompt > SIZE_MAX / 2);
}

static void test_inputs(void **state)
{
    Ipc__EmbedPart text = IPC__EMBED_PART__INIT, picture = text, sound = text;
    Ipc__EmbedPart *parts[3] = {&text, &picture, &sound};
    Ipc__EmbedInput a = IPC__EMBED_INPUT__INIT, b = a, *inputs[2] = {&a, &b};
    Ipc__Embed e = IPC__EMBED__INIT;
    Ipc__Rerank r = IPC__RERANK__INIT;
    ProtobufCBinaryData docs[2];
    Ipc__Frame f = frame(IPC__FRAME__BODY_EMBED, &e);

    e.inputs = inputs;
    e.n_inputs = 2;
    BYTES(a.text, "1234");
    a.n_tokens = 0;
    b.n_tokens = 5;
    assert_int_equal(sup_cost_asked(&f).prompt, 6);
    assert_int_equal(sup_cost_asked(&f).answer, 0);
    BYTES(text.text, "12345678");
    picture.is_media = sound.is_media = true;
    picture.mime = (char *)(uintptr_t) "image/png";
    sound.mime = (char *)(uintptr_t) "audio/wav";
    b.parts = parts;
    b.n_parts = 3;
    assert_int_equal(sup_cost_asked(&f).prompt, 6 + 2 + SUP_COST_PICTURE + SUP_COST_SOUND);
    f = frame(IPC__FRAME__BODY_RERANK, &r);
    BYTES(r.query, "12345678");
    BYTES(docs[0], "1234");
    BYTES(docs[1], "");
    r.documents = docs;
    r.n_documents = 2;
    assert_int_equal(sup_cost_asked(&f).prompt, 2 * 2 + 1); /* the query with each */
}

static void test_schemas_and_questions(void **state)
{
    Ipc__ExtractSchema schema = IPC__EXTRACT_SCHEMA__INIT, *schemas[1] = {&schema};
    Ipc__ExtractField label = IPC__EXTRACT_FIELD__INIT, *labels[1] = {&label};
    Ipc__Extract x = IPC__EXTRACT__INIT;
    Ipc__DecideQuestion question = IPC__DECIDE_QUESTION__INIT, *questions[1] = {&question};
    Ipc__Decide d = IPC__DECIDE__INIT;
    ProtobufCBinaryData inputs[3] = {{0}};
    Ipc__Frame f = frame(IPC__FRAME__BODY_EXTRACT, &x);
    uint64_t one, three;

    BYTES(label.name, "a label of thirty-two bytes, say");
    schema.entities = labels;
    schema.n_entities = 1;
    x.schemas = schemas;
    x.n_schemas = 1;
    BYTES(inputs[0], "1234");
    x.inputs = inputs;
    x.n_inputs = 1;
    one = sup_cost_asked(&f).prompt;
    assert_true(one >= 1 + 32 / 4);
    x.n_inputs = 3; /* two more without a byte: the schema is read again */
    three = sup_cost_asked(&f).prompt;
    assert_int_equal(three - 1, 3 * (one - 1));
    f = frame(IPC__FRAME__BODY_DECIDE, &d);
    BYTES(question.instructions, "1234567890123456");
    d.questions = questions;
    d.n_questions = 1;
    d.inputs = inputs;
    d.n_inputs = 1;
    assert_true(sup_cost_asked(&f).prompt >= 1 + 4);
}

static void test_work_on_texts_is_cheap(void **state)
{
    Ipc__Tokenize t = IPC__TOKENIZE__INIT;
    Ipc__Detokenize d = IPC__DETOKENIZE__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;
    Ipc__Frame f = frame(IPC__FRAME__BODY_TOKENIZE, &t);

    t.text.len = 64 * SUP_COST_TEXT_WORK;
    assert_int_equal(sup_cost_asked(&f).prompt, 16);
    f = frame(IPC__FRAME__BODY_DETOKENIZE, &d);
    d.n_tokens = 32;
    assert_int_equal(sup_cost_asked(&f).prompt, 2);
    f = frame(IPC__FRAME__BODY_ECHO, &e);
    e.data.len = 1 << 20;
    assert_int_equal(sup_cost_asked(&f).prompt, 1);
}

static void test_answers(void **state)
{
    uint32_t n[3] = {5, 6, 7}, media[3] = {0, 0, 280};
    Ipc__Done done = IPC__DONE__INIT;
    Ipc__Vectors v = IPC__VECTORS__INIT;
    Ipc__Scores s = IPC__SCORES__INIT;
    Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items[2] = {&item, &item};
    Ipc__Extracted x = IPC__EXTRACTED__INIT;
    Ipc__Delta delta = IPC__DELTA__INIT;
    struct sup_cost c = {0};
    Ipc__Frame f = frame(IPC__FRAME__BODY_DONE, &done);

    done.prompt_tokens = 10;
    done.completion_tokens = 4;
    done.cached_tokens = 8;
    assert_true(sup_cost_told(&f, &c));
    assert_true(c.prompt == 10 && c.answer == 4 && c.cached == 8);
    done.cached_tokens = 11; /* a worker's word is bounded by its other word */
    assert_true(sup_cost_told(&f, &c) && c.cached == 10);
    f = frame(IPC__FRAME__BODY_VECTORS, &v);
    assert_true(sup_cost_told(&f, &c) && c.prompt == 1 && c.answer == 0 && c.cached == 0);
    v.n_tokens = n;
    v.n_n_tokens = 3;
    v.n_media_tokens = media;
    v.n_n_media_tokens = 3;
    assert_true(sup_cost_told(&f, &c) && c.prompt == 298);
    f = frame(IPC__FRAME__BODY_SCORES, &s);
    s.n_tokens = n;
    s.n_n_tokens = 3;
    s.query_tokens = 2;
    assert_true(sup_cost_told(&f, &c) && c.prompt == 20);
    f = frame(IPC__FRAME__BODY_EXTRACTED, &x);
    item.n_tokens = 9;
    x.items = items;
    x.n_items = 2;
    assert_true(sup_cost_told(&f, &c) && c.prompt == 18);
    f = frame(IPC__FRAME__BODY_DELTA, &delta);
    c.prompt = 77;
    assert_false(sup_cost_told(&f, &c));
    assert_int_equal(c.prompt, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_sums_do_not_wrap),
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_schemas_and_questions),
        cmocka_unit_test(test_work_on_texts_is_cheap),
        cmocka_unit_test(test_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
