/* test_sup_api_extract.c - extraction: schema to frame, refusals in words, findings to answer. */
#define TEST_MODELS 6
#include "sup_api_test.h"

#define PATH "/ai/v1/extract"
#define ONE "\"inputs\":[{\"content\":\"Ada works at Acme\"}]"
#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void post(const char *rest)
{
    static char body[65536];

    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"gliner\",%s}", rest);
    fake_post(PATH, body);
}

static const Ipc__Extract *asked(const char *rest)
{
    unsigned n = T.fleet.n_tickets;

    post(rest);
    if (T.fleet.n_tickets <= n)
        fail_msg("%s: %.300s", fake_answer(), rest);
    return fake_ticket(n)->frame->extract;
}

/* --------------------------------------------------------------------- schema */

static void test_labels_and_relations_become_a_frame(void **state)
{
    const Ipc__Extract *q = asked(
        "\"inputs\":[{\"id\":\"a\",\"content\":\"x\",\"metadata\":{\"k\":1}},{\"content\":[{"
        "\"type\":"
        "\"text\",\"text\":\"y\"},{\"type\":\"text\",\"text\":\"z\"}]}],\"schema\":{\"entities\":["
        "\"person\",{\"name\":\"organization\",\"description\":\"a "
        "firm\",\"threshold\":0.25,\"dtype\":"
        "\"str\"}],\"relations\":[{\"type\":\"works_for\",\"source\":\"person\",\"target\":"
        "\"organization\"},\"person::founded\",\"organization::works_for::person\",{\"type\":"
        "\"near\","
        "\"threshold\":0.5}]},\"model_identity\":\"" HEX "\",\"timeout_ms\":1000");
    const Ipc__ExtractSchema *s = q->schemas[0];

    assert_int_equal(q->n_schemas, 1);
    assert_int_equal(q->n_inputs, 2);
    assert_true(is(q->inputs[0], "x") && is(q->inputs[1], "y\nz"));
    assert_int_equal(q->n_schema_of, 2);
    assert_true(q->n_item_of == 2 && q->item_of[0] == 0 && q->item_of[1] == 1);
    assert_true(q->threshold == 0.3f && q->flat && !q->byte_offsets && !q->per_item);
    assert_string_equal(q->model_identity, HEX);
    assert_int_equal(q->deadline_us, 5000000 + 1000 * 1000);
    assert_int_equal(s->n_entities, 2);
    assert_true(is(s->entities[0]->name, "person") && !s->entities[0]->has_threshold);
    assert_true(is(s->entities[1]->description, "a firm") && s->entities[1]->single &&
                s->entities[1]->has_threshold && s->entities[1]->threshold == 0.25f);
    assert_int_equal(s->n_relations, 3); /* works_for once */
    assert_true(is(s->relations[0]->name, "works_for") && is(s->relations[1]->name, "founded"));
    assert_true(is(s->relations[2]->name, "near") && s->relations[2]->threshold == 0.5f);
    fake_fail(0, RC_CONFLICT, "another model", 0);
    q = asked(ONE ",\"schema\":{\"entities\":[\"a\"]},\"options\":{\"threshold\":0.5,\"flat_ner\":"
                  "false,\"offsets\":\"bytes\"},\"error_policy\":\"per_item\"");
    assert_true(q->threshold == 0.5f && !q->flat && q->byte_offsets && q->per_item);
}

static void test_classes_and_structures_become_a_frame(void **state)
{
    const Ipc__Extract *q = asked(
        ONE ",\"schema\":{\"classifications\":[{\"name\":\"mood\",\"labels\":[\"good\",{\"name\":"
            "\"bad\","
            "\"description\":\"not "
            "good\"}]},{\"name\":\"topics\",\"labels\":[\"a\"],\"multi_label\":true,"
            "\"threshold\":0.25,\"activation\":\"softmax\",\"prompt\":\"p\",\"examples\":[{"
            "\"input\":\"i\","
            "\"output\":\"a\"}]}],\"structures\":{\"job\":{\"fields\":{\"who\":\"str\",\"tags\":"
            "\"list\","
            "\"note\":\"a hint\",\"kind\":\"[x| y ]::of "
            "job\",\"pay\":{\"type\":\"list\",\"description\":"
            "\"money\",\"threshold\":0.75,\"choices\":[\"1\",\"2\"],\"patterns\":[\"\\\\d+\",{"
            "\"pattern\":"
            "\"z\",\"mode\":\"partial\",\"exclude\":true,\"case_sensitive\":true}]}}},\"thing\":["
            "\"name::str::what it is\",\"parts\",\"size::[S|M]\",\"many::list::[S|M]\"]}}");
    const Ipc__ExtractSchema *s = q->schemas[0];
    Ipc__ExtractField **f = s->records[0]->fields;

    assert_int_equal(s->n_classes, 2);
    assert_true(is(s->classes[0]->name, "mood") && !s->classes[0]->multi_label);
    assert_int_equal(s->classes[0]->n_labels, 2);
    assert_true(is(s->classes[0]->labels[1]->description, "not good"));
    assert_true(s->classes[0]->threshold == 0.5f && s->classes[0]->activation == 0);
    assert_true(s->classes[1]->multi_label && s->classes[1]->threshold == 0.25f &&
                s->classes[1]->activation == 2 && is(s->classes[1]->prompt, "p"));
    assert_true(is(s->classes[1]->examples[0]->output, "a"));
    assert_int_equal(s->n_records, 2);
    assert_int_equal(s->records[0]->n_fields, 5);
    assert_true(is(f[0]->name, "who") && f[0]->single);
    assert_true(is(f[1]->name, "tags") && !f[1]->single);
    assert_true(f[2]->single && is(f[2]->description, "a hint"));
    assert_true(f[3]->single && f[3]->n_choices == 2 && is(f[3]->choices[1], "y") &&
                is(f[3]->description, "of job"));
    assert_true(!f[4]->single && f[4]->has_threshold && f[4]->threshold == 0.75f);
    assert_int_equal(f[4]->n_patterns, 2);
    assert_true(is(f[4]->patterns[0]->regex, "\\d+") && !f[4]->patterns[0]->search);
    assert_true(f[4]->patterns[1]->search && f[4]->patterns[1]->exclude &&
                f[4]->patterns[1]->case_sensitive);
    f = s->records[1]->fields;
    assert_int_equal(s->records[1]->n_fields, 4);
    assert_true(is(f[0]->name, "name") && f[0]->single && is(f[0]->description, "what it is"));
    assert_true(is(f[1]->name, "parts") && !f[1]->single);
    assert_true(is(f[2]->name, "size") && f[2]->single && f[2]->n_choices == 2);
    assert_true(is(f[3]->name, "many") && !f[3]->single && is(f[3]->choices[0], "S"));
}

static void test_version_2_has_rules_of_inputs(void **state)
{
    const Ipc__Extract *q =
        asked("\"schema_version\":2,\"inputs\":[{\"content\":\"a\"},{\"content\":\"b\",\"schema\":{"
              "\"classifications\":[{\"name\":\"n\",\"labels\":[\"l\"]}]}},{\"content\":\"c\","
              "\"options\":"
              "{\"threshold\":0.75}},{\"content\":\"d\",\"options\":{\"include_spans\":true}}],"
              "\"schema\":{\"entities\":[\"x\"]}");

    assert_int_equal(T.fleet.n_tickets, 2); /* one for each set of options that the worker sees */
    assert_true(q->byte_offsets);
    assert_int_equal(q->n_schemas, 2);
    assert_int_equal(q->n_inputs, 3);
    assert_true(is(q->inputs[0], "a") && is(q->inputs[1], "b") && is(q->inputs[2], "d"));
    assert_true(q->schema_of[0] == 0 && q->schema_of[1] == 1 && q->schema_of[2] == 0);
    assert_true(q->item_of[0] == 0 && q->item_of[1] == 1 && q->item_of[2] == 3);
    q = fake_ticket(1)->frame->extract;
    assert_int_equal(q->n_inputs, 1);
    assert_true(is(q->inputs[0], "c") && q->threshold == 0.75f && q->item_of[0] == 2);
}

static void test_a_thousand_labels(void **state)
{
    static char rest[65536];
    size_t n = (size_t)sprintf(rest, ONE ",\"schema\":{\"entities\":[");
    const Ipc__Extract *q;

    for (int i = 0; i < 1000; i++)
        n += (size_t)sprintf(rest + n, "%s\"label %d\"", i ? "," : "", i);
    strcpy(rest + n, "]}");
    q = asked(rest);
    assert_int_equal(q->schemas[0]->n_entities, 1000);
    assert_true(is(q->schemas[0]->entities[999]->name, "label 999"));
}

#define SCHEMA(s) ONE ",\"schema\":{" s "}"

/* What a worker would refuse is refused before it has to look. */
static void test_bounds_are_the_worker_s(void **state)
{
    static char rest[60000], name[IPC_EXTRACT_NAME_BYTES + 2];
    size_t n = 0;

    T.conf.max_embed_inputs = 65536;
    memset(name, 'x', IPC_EXTRACT_NAME_BYTES);
    snprintf(rest, sizeof(rest), SCHEMA("\"entities\":[\"%s\"]"), name);
    asked(rest);
    fake_fail(T.fleet.n_tickets - 1, RC_BUSY, "enough", 0);
    name[IPC_EXTRACT_NAME_BYTES] = 'x';
    snprintf(rest, sizeof(rest), SCHEMA("\"entities\":[\"%s\"]"), name);
    post(rest);
    assert_has("a label of 1 to 512 bytes");
    for (unsigned most = IPC_EXTRACT_SCHEMAS; most <= IPC_EXTRACT_SCHEMAS + 1; most++) {
        n = (size_t)snprintf(rest, sizeof(rest), "\"schema_version\":2,\"inputs\":[");
        for (unsigned i = 0; i < most; i++)
            n += (size_t)snprintf(rest + n, sizeof(rest) - n,
                                  "%s{\"content\":\"a\",\"schema\":{\"entities\":[\"l%u\"]}}",
                                  i ? "," : "", i);
        snprintf(rest + n, sizeof(rest) - n, "]");
        if (most > IPC_EXTRACT_SCHEMAS) {
            post(rest);
            assert_has("CONTENT_TOO_LARGE");
            assert_has("'inputs[64].schema': more than 64 schemas");
        } else {
            asked(rest);
            fake_fail(T.fleet.n_tickets - 1, RC_BUSY, "enough", 0);
        }
    }
    n = (size_t)snprintf(rest, sizeof(rest), "\"schema\":{\"entities\":[\"l\"]},\"inputs\":[");
    for (unsigned i = 0; i < IPC_EXTRACT_INPUTS; i++)
        n += (size_t)snprintf(rest + n, sizeof(rest) - n, "%s{\"content\":\"a\"}", i ? "," : "");
    snprintf(rest + n, sizeof(rest) - n, "]");
    asked(rest);
    fake_fail(T.fleet.n_tickets - 1, RC_BUSY, "enough", 0);
    snprintf(rest + n, sizeof(rest) - n, ",{\"content\":\"a\"}]");
    post(rest);
    assert_has("got 1025 inputs, expected at most 1024");
}

static void test_refusals_say_what_was_expected(void **state)
{
    static const struct {
        const char *rest, *code, *says;
    } rows[] = {
        {ONE, "INVALID_REQUEST", "'schema': missing"},
        {ONE ",\"schema\":[]", "INVALID_REQUEST", "'schema': got an empty array"},
        {"\"schema\":{\"entities\":[\"a\"]}", "INVALID_REQUEST", "'inputs': missing"},
        {"\"inputs\":[],\"schema\":{\"entities\":[\"a\"]}", "INVALID_REQUEST",
         "'inputs': got an empty"},
        {"\"inputs\":[\"a\"],\"schema\":{\"entities\":[\"a\"]}", "INVALID_REQUEST",
         "'inputs[0]': got"},
        {"\"inputs\":[{\"content\":\"a\"},{\"content\":7}],\"schema\":{\"entities\":[\"a\"]}",
         "INVALID_REQUEST", "\"input_index\":1,\"stage\":\"parse\""},
        {"\"inputs\":[{\"content\":[{\"type\":\"image_url\",\"image_url\":\"data:\"}]}],\"schema\":"
         "{"
         "\"entities\":[\"a\"]}",
         "INVALID_REQUEST", "pictures and sounds are not taken here"},
        {"\"inputs\":[{\"content\":\"a\",\"tokens\":[{\"text\":\"a\",\"box\":[0,0,1,1]}]}],"
         "\"schema\":{"
         "\"entities\":[\"a\"]}",
         "UNSUPPORTED_FEATURE", "'inputs[0].tokens'"},
        {"\"inputs\":[{\"content\":\"a\",\"schema\":{}}],\"schema\":{\"entities\":[\"a\"]}",
         "INVALID_REQUEST", "with schema_version 2"},
        {"\"schema_version\":2,\"inputs\":[{\"content\":\"a\"}]", "INVALID_REQUEST",
         "'inputs[0].schema': missing"},
        {"\"schema_version\":3," SCHEMA("\"entities\":[\"a\"]"), "INVALID_REQUEST", "from 1 to 2"},
        {"\"schema_version\":2," SCHEMA("\"entites\":[\"a\"]"), "INVALID_REQUEST",
         "'schema.entites': not a field"},
        {SCHEMA(""), "INVALID_REQUEST", "nothing to find"},
        {SCHEMA("\"entities\":[],\"relations\":null"), "INVALID_REQUEST", "nothing to find"},
        {SCHEMA("\"entities\":\"a\""), "INVALID_REQUEST", "'schema.entities': got"},
        {SCHEMA("\"entities\":[\"a\",\"\"]"), "INVALID_REQUEST",
         "'schema.entities[1]': got an empty"},
        {SCHEMA("\"entities\":[\"a\",\" \"]"), "INVALID_REQUEST", "an empty name"},
        {SCHEMA("\"entities\":[\"a\\u0000b\"]"), "INVALID_REQUEST", "without NUL"},
        {SCHEMA("\"entities\":[\"a\",\"b\",{\"name\":\"a\"}]"), "INVALID_REQUEST",
         "'schema.entities[2]': \\\"a\\\" stands there twice"},
        {SCHEMA("\"entities\":[{\"name\":\"a\",\"threshold\":2}]"), "INVALID_REQUEST",
         "'schema.entities[0].threshold': got 2"},
        {SCHEMA("\"entities\":[{\"name\":\"a\",\"dtype\":\"int\"}]"), "INVALID_REQUEST",
         "str|list"},
        {SCHEMA("\"entities\":[7]"), "INVALID_REQUEST", "a label or an object"},
        {SCHEMA("\"entities\":[\"a\"],\"relations\":[{\"type\":\"r\",\"source\":\"b\"}]"),
         "INVALID_REQUEST", "source \\\"b\\\" is no label of 'entities'"},
        {SCHEMA("\"relations\":[{\"source\":\"b\"}]"), "INVALID_REQUEST", "type': missing"},
        {SCHEMA("\"relations\":[7]"), "INVALID_REQUEST", "SOURCE::TYPE::TARGET"},
        {SCHEMA("\"relations\":[\"a::b::c::d\"]"), "INVALID_REQUEST", "more than two"},
        {SCHEMA("\"relations\":[\"a::\"]"), "INVALID_REQUEST", "an empty type"},
        {SCHEMA("\"relations\":[\"::a\"]"), "INVALID_REQUEST", "an empty label"},
        {SCHEMA("\"relations\":[\"a\",\"a\"]"), "INVALID_REQUEST", "stands there twice"},
        {SCHEMA("\"relations\":[{\"type\":\"x::a\",\"source\":\"y\"}]"), "INVALID_REQUEST",
         "contradicts the label"},
        {SCHEMA("\"relations\":[{\"type\":\"a\",\"threshold\":0.5},\"x::a\"]"), "INVALID_REQUEST",
         "another threshold"},
        {SCHEMA("\"classifications\":[{\"name\":\"n\",\"labels\":[]}]"), "INVALID_REQUEST",
         "'schema.classifications[0].labels'"},
        {SCHEMA("\"classifications\":[{\"labels\":[\"a\"]}]"), "INVALID_REQUEST", "name': missing"},
        {SCHEMA("\"classifications\":[{\"name\":\"n\",\"labels\":[\"a\",\"a\"]}]"),
         "INVALID_REQUEST", "labels[1]': \\\"a\\\" stands there twice"},
        {SCHEMA(
             "\"classifications\":[{\"name\":\"n\",\"labels\":[\"a\"]},{\"name\":\"n\",\"labels\":"
             "[\"a\"]}]"),
         "INVALID_REQUEST", "classifications[1].name': \\\"n\\\" stands"},
        {SCHEMA("\"structures\":{\"s\":{}}"), "INVALID_REQUEST", "an object of fields"},
        {SCHEMA("\"structures\":{\"s\":{\"fields\":{\"f\":7}}}"), "INVALID_REQUEST",
         "'schema.structures.s.f': got 7"},
        {SCHEMA("\"structures\":{\"s\":{\"fields\":{\"f\":{\"patterns\":[\"\"]}}}}"),
         "INVALID_REQUEST", "patterns[0]"},
        {SCHEMA("\"structures\":{\"s\":{\"fields\":{\"f\":{\"choices\":[\"a\",\"a\"]}}}}"),
         "INVALID_REQUEST", "choices': \\\"a\\\" stands there twice"},
        {SCHEMA("\"structures\":{\"s\":[\"f\",\"f::str\"]}"), "INVALID_REQUEST",
         "stands there twice"},
        {SCHEMA("\"structures\":{\"s\":[\"f::[a]::[b]\"]}"), "INVALID_REQUEST", "choices twice"},
        {SCHEMA("\"entities\":[\"a\"]") ",\"options\":{\"threshold\":1.5}", "INVALID_REQUEST",
         "'options.threshold': got 1.5"},
        {SCHEMA("\"entities\":[\"a\"]") ",\"options\":{\"offsets\":\"words\"}", "INVALID_REQUEST",
         "codepoints|bytes"},
        {SCHEMA("\"entities\":[\"a\"]") ",\"options\":{\"reader\":{\"model\":\"m\"}}",
         "UNSUPPORTED_FEATURE", "pictures are not read"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char code[64];

        post(rows[i].rest);
        snprintf(code, sizeof(code), "{\"error\":\"%s\"", rows[i].code);
        assert_int_equal(T.req.status, 400);
        assert_has(code);
        assert_has(rows[i].says);
    }
    fake_req_reset();
    fake_post(PATH, "{\"model\":\"eg2\"," SCHEMA("\"entities\":[\"a\"]") "}");
    assert_int_equal(T.req.status, 400);
    assert_has("{\"error\":\"INVALID_MODEL\",\"message\":\"model 'eg2' does not extract\"");
    assert_int_equal(T.fleet.n_tickets, 0);
}

/* --------------------------------------------------------------------- answers */

static Ipc__ExtractSpan span(const char *text, float score, uint32_t start, uint32_t end)
{
    Ipc__ExtractSpan s = IPC__EXTRACT_SPAN__INIT;

    s.text.data = (uint8_t *)(uintptr_t)text;
    s.text.len = strlen(text);
    s.score = score;
    s.has_place = end > 0;
    s.start = start;
    s.end = end;
    return s;
}

static void play(unsigned ticket, Ipc__ExtractedItem **items, size_t n, Ipc__ItemError **errors,
                 size_t n_errors)
{
    Ipc__Extracted w = IPC__EXTRACTED__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    w.items = items;
    w.n_items = n;
    w.errors = errors;
    w.n_errors = n_errors;
    fr.body_case = IPC__FRAME__BODY_EXTRACTED;
    fr.extracted = &w;
    fake_play(ticket, &fr);
    fake_end(ticket, NULL, 0);
}

/* "Ada works at Acme": entities Ada (label 0) and Acme (label 1), and relations between spans. */
static void play_relations(unsigned ticket, size_t n_entities, const Ipc__ExtractSpan (*ends)[2],
                           size_t n)
{
    Ipc__ExtractSpan spans[2] = {span("Ada", 0.75f, 0, 3), span("Acme", 0.5f, 13, 17)}, at[8][2];
    Ipc__ExtractedEntity e[2], *pe[2] = {&e[0], &e[1]};
    Ipc__ExtractedRelation r[8], *pr[8];
    Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items = &item;

    for (uint32_t i = 0; i < 2; i++) {
        ipc__extracted_entity__init(&e[i]);
        e[i].label = i;
        e[i].span = &spans[i];
    }
    for (size_t i = 0; i < n; i++) {
        ipc__extracted_relation__init(&r[i]);
        at[i][0] = ends[i][0];
        at[i][1] = ends[i][1];
        r[i].head = &at[i][0];
        r[i].tail = &at[i][1];
        pr[i] = &r[i];
    }
    item.entities = pe;
    item.n_entities = n_entities;
    item.relations = pr;
    item.n_relations = n;
    item.n_tokens = 20;
    play(ticket, &items, 1, NULL, 0);
}

#define ADA                                                                                 \
    "{\"id\":\"e0\",\"local_id\":\"e0\",\"label\":\"person\",\"text\":\"Ada\",\"start\":0," \
    "\"end\":3,"                                                                            \
    "\"score\":0.75}"
#define ACME                                                                                     \
    "{\"id\":\"e1\",\"local_id\":\"e1\",\"label\":\"organization\",\"text\":\"Acme\",\"start\":" \
    "13,"                                                                                        \
    "\"end\":17,\"score\":0.5}"
#define ADA_ACME(score)                                                                  \
    "{\"type\":\"works_for\",\"source\":{\"entity_index\":0,\"id\":\"e0\"},\"target\":{" \
    "\"entity_index\":1,\"id\":\"e1\"},\"score\":" score "}"

static void test_ends_of_relations_are_entities(void **state)
{
    const Ipc__ExtractSpan ends[][2] = {
        {span("Ada", 0.5f, 0, 3), span("Acme", 0.25f, 13, 17)},
        {span("Ada works", 0.5f, 0, 9), span("Acme", 0.75f, 13, 17)}, /* shares most with Ada */
        {span("Acme", 0.5f, 13, 17), span("Ada", 0.5f, 0, 3)},        /* ends of other labels */
        {span("works", 0.5f, 4, 9), span("Acme", 0.5f, 13, 17)},      /* no entity yet */
    };

    asked(
        SCHEMA("\"entities\":[\"person\",\"organization\"],\"relations\":[{\"type\":\"works_for\","
               "\"source\":\"person\",\"target\":\"organization\"}]"));
    play_relations(0, 2, ends, 4);
    assert_string_equal(fake_answer(),
                        "{\"object\":\"extraction\",\"data\":[{\"index\":0,\"entities\":[" ADA
                        "," ACME ",{\"id\":\"e2\",\"local_id\":\"e2\",\"label\":\"person\","
                        "\"text\":\"works\",\"start\":4,\"end\":"
                        "9,\"score\":0.5}],\"relations\":[" ADA_ACME(
                            "0.5") ",{\"type\":\"works_for\",\"source\":{"
                                   "\"entity_index\":2,\"id\":\"e2\"},\"target\":{\"entity_index\":"
                                   "1,\"id\":\"e1\"},\"score\":0.5}],"
                                   "\"classifications\":[],\"structures\":{}}],\"model\":"
                                   "\"gliner\",\"usage\":{\"prompt_tokens\":20,"
                                   "\"completion_tokens\":0,\"total_tokens\":20}}");
    /* any entity will do where the relation names none */
    asked(SCHEMA("\"entities\":[\"person\",\"organization\"],\"relations\":[\"works_for\"]"));
    play_relations(1, 2, ends, 1);
    assert_has("\"entities\":[" ADA "," ACME "],\"relations\":[" ADA_ACME("0.25") "]");
}

static void test_relations_without_entities_make_them(void **state)
{
    const Ipc__ExtractSpan ends[][2] = {
        {span("Ada", 0.5f, 0, 3), span("Acme", 0.25f, 13, 17)},
        {span("Ada", 0.5f, 0, 3), span("Acme", 0.125f, 13, 17)},
    };

    asked(SCHEMA("\"relations\":[\"person::works_for::organization\"]"));
    play_relations(0, 0, ends, 2);
    assert_has("\"label\":\"person\",\"text\":\"Ada\"");
    assert_has("\"label\":\"organization\",\"text\":\"Acme\"");
    assert_has("\"relations\":[" ADA_ACME("0.25") "]");
    asked(SCHEMA("\"relations\":[\"works_for\"]"));
    play_relations(1, 0, ends, 1);
    assert_has("\"label\":\"entity\",\"text\":\"Ada\"");
    /* rows of one type: the first that fits */
    asked(SCHEMA(
        "\"entities\":[\"person\",\"organization\"],\"relations\":[\"organization::works_for\","
        "\"person::works_for\"]"));
    play_relations(2, 2, ends, 1);
    assert_has("\"relations\":[" ADA_ACME("0.25") "]");
}

static void test_classes_and_structures(void **state)
{
    static const char rest[] = SCHEMA(
        "\"classifications\":[{\"name\":\"mood\",\"labels\":[\"good\",\"bad\"]}],\"structures\":{"
        "\"job\":{\"fields\":{\"who\":\"str\",\"tags\":\"list\",\"none\":\"str\"}},\"empty\":["
        "\"x\"]}");
    Ipc__ExtractSpan spans[3] = {span("Ada", 0.5f, 0, 3), span("a", 0.25f, 4, 5),
                                 span("b", 0.75f, 0, 0)},
                     *who = &spans[0], *tags[2] = {&spans[1], &spans[2]};
    Ipc__ExtractedValue v[2] = {IPC__EXTRACTED_VALUE__INIT, IPC__EXTRACTED_VALUE__INIT},
                        *pv[2] = {&v[0], &v[1]};
    Ipc__ExtractedRecord r = IPC__EXTRACTED_RECORD__INIT, *pr[2] = {&r, &r};
    Ipc__ExtractedClass c = IPC__EXTRACTED_CLASS__INIT, *pc = &c;
    Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items = &item;
    char with[1024];

    c.label = 1;
    c.score = 0.75f;
    v[0].field = 1;
    v[0].spans = tags;
    v[0].n_spans = 2;
    v[1].spans = &who;
    v[1].n_spans = 1;
    r.values = pv;
    r.n_values = 2;
    item.classes = &pc;
    item.n_classes = 1;
    item.records = pr;
    item.n_records = 2;
    asked(rest);
    play(0, &items, 1, NULL, 0);
    assert_has("\"classifications\":[{\"name\":\"mood\",\"label\":\"bad\",\"score\":0.75}],"
               "\"structures\":{\"job\":[{\"who\":{\"value\":\"Ada\"},\"tags\":[{\"value\":\"a\"},{"
               "\"value\":\"b\"}],\"none\":null},{\"who\":");
    assert_has("],\"empty\":[]}}");
    snprintf(with, sizeof(with),
             "%s,\"options\":{\"include_confidence\":true,\"include_spans\":true}", rest);
    asked(with);
    play(1, &items, 1, NULL, 0);
    assert_has("{\"who\":{\"value\":\"Ada\",\"score\":0.5,\"start\":0,\"end\":3},\"tags\":[{"
               "\"value\":\"a\","
               "\"score\":0.25,\"start\":4,\"end\":5},{\"value\":\"b\",\"score\":0.75}]");
    spans[2].again = true; /* a text is told once, and every place of it */
    asked(rest);
    play(2, &items, 1, NULL, 0);
    assert_has("\"tags\":[{\"value\":\"a\"}],\"none\"");
    asked(with);
    play(3, &items, 1, NULL, 0);
    assert_has("\"end\":5},{\"value\":\"b\",\"score\":0.75}]");
}

static void test_inputs_of_several_tasks_come_in_order(void **state)
{
    Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items[2] = {&item, &item};
    Ipc__ItemError ie = IPC__ITEM_ERROR__INIT, *pie = &ie;
    Ipc__Error e = IPC__ERROR__INIT;

    item.n_tokens = 7;
    asked("\"schema_version\":2,\"error_policy\":\"per_item\",\"inputs\":[{\"content\":\"a\","
          "\"id\":\"A\"},"
          "{\"content\":7},{\"content\":\"c\",\"options\":{\"flat_ner\":false}},{\"content\":"
          "\"d\"},{"
          "\"content\":7,\"options\":{\"threshold\":0.9}}],\"schema\":{\"entities\":[\"x\"]}");
    assert_int_equal(T.fleet.n_tickets, 2);
    play(1, items, 1, NULL, 0);
    e.code = RC_TOO_LARGE;
    e.message.data = (uint8_t *)(uintptr_t) "too long";
    e.message.len = 8;
    ie.index = 1;
    ie.error = &e;
    play(0, items, 2, &pie, 1);
    assert_has("\"data\":[{\"index\":0,\"id\":\"A\",\"entities\":[]");
    assert_has("{\"index\":2,\"entities\":[],\"relations\":[],\"classifications\":[],"
               "\"structures\":{}}],");
    assert_has("\"prompt_tokens\":14,");
    assert_has("\"errors\":[{\"index\":1,\"code\":\"INVALID_REQUEST\"");
    assert_has("{\"index\":4,\"code\":\"INVALID_REQUEST\"");
    assert_has("{\"index\":3,\"code\":\"CONTENT_TOO_LARGE\",\"message\":\"too long\"");
    assert_has("\"summary\":{\"total\":5,\"succeeded\":2,\"failed\":3}}");
    post("\"error_policy\":\"per_item\",\"inputs\":[{\"content\":7}],\"schema\":{\"entities\":["
         "\"x\"]}");
    assert_has("\"data\":[],\"model\":\"gliner\"");
}

static const Ipc__Extract *older(const char *path, const char *rest)
{
    unsigned n = T.fleet.n_tickets;
    char body[1024];

    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"gliner\",%s}", rest);
    fake_post(path, body);
    return T.fleet.n_tickets > n ? fake_ticket(n)->frame->extract : NULL;
}

static void test_older_words(void **state)
{
    const Ipc__ExtractSpan ends[][2] = {{span("Ada", 0.5f, 0, 3), span("Acme", 0.25f, 13, 17)}};
    Ipc__ExtractedClass c[2] = {IPC__EXTRACTED_CLASS__INIT, IPC__EXTRACTED_CLASS__INIT},
                        *pc[2] = {&c[0], &c[1]};
    Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items = &item;
    const Ipc__Extract *q =
        older("/ai/v1/recognize", "\"texts\":[\"Ada works at Acme\"],\"labels\":[\"person\","
                                  "\"organization\"],\"relation_labels\":[\"works_for\"]");

    assert_true(is(q->inputs[0], "Ada works at Acme") && q->threshold == 0.3f && q->flat);
    assert_int_equal(q->schemas[0]->n_relations, 1);
    play_relations(0, 2, ends, 1);
    assert_has(
        "{\"object\":\"list\",\"data\":[{\"index\":0,\"object\":\"recognition\",\"entities\":[" ADA
        "," ACME "],\"relations\":[{\"label\":\"works_for\",\"head\":" ADA ",\"tail\":" ACME
        ",\"score\":0.25}]}],\"model\":\"gliner\"");
    q = older("/ai/v1/classify", "\"texts\":[\"t\"],\"labels\":[\"a\",\"b\"]");
    assert_true(q->schemas[0]->classes[0]->multi_label &&
                q->schemas[0]->classes[0]->activation == 2 &&
                q->schemas[0]->classes[0]->threshold == 0);
    c[0].score = 0.25f;
    c[1].score = 0.75f;
    c[1].label = 1;
    item.classes = pc;
    item.n_classes = 2;
    play(1, &items, 1, NULL, 0);
    assert_has(
        "\"object\":\"classification\",\"classifications\":[{\"name\":\"label\",\"label\":\"b\","
        "\"score\":0.75},{\"name\":\"label\",\"label\":\"a\",\"score\":0.25}]}]");
    q = older("/ai/v1/classify", "\"texts\":[\"t\"],\"labels\":[\"a\"],\"multi_label\":true");
    assert_int_equal(q->schemas[0]->classes[0]->activation, 1);
    fake_fail(2, RC_BUSY, "full", 0);
    assert_null(older("/ai/v1/classify", "\"texts\":[],\"labels\":[\"a\"]"));
    assert_has("'texts': got an empty array");
    assert_null(older("/ai/v1/recognize", "\"texts\":[\"a\",7],\"labels\":[\"a\"]"));
    assert_has("\"input_index\":1,\"stage\":\"parse\"");
    assert_null(older("/ai/v1/recognize", "\"texts\":[\"a\"]"));
    assert_has("field 'labels': nothing to find");
    /* in the words of the request */
    assert_null(older("/ai/v1/recognize", "\"texts\":[\"a\"],\"labels\":[\"a\",7]"));
    assert_has("\"field 'labels[1]': got 7");
    assert_null(older("/ai/v1/recognize", "\"texts\":[\"a\"],\"labels\":{\"a\":1}"));
    assert_has("\"field 'labels': got an object");
    assert_null(older("/ai/v1/recognize", "\"texts\":[\"a\"],\"relation_labels\":[\"\"]"));
    assert_has("\"field 'relation_labels[0]': got");
    assert_null(older("/ai/v1/recognize",
                      "\"texts\":[\"a\"],\"labels\":[\"p\"],\"relation_labels\":[\"q::r\"]"));
    assert_has("is no label of 'labels'");
    assert_null(older("/ai/v1/classify", "\"texts\":[\"a\"],\"labels\":[]"));
    assert_has("\"field 'labels': got an empty array");
    assert_null(older("/ai/v1/classify", "\"texts\":[\"a\"],\"labels\":[\"x\",\"x\"]"));
    assert_has("\"field 'labels[1]': \\\"x\\\" stands there twice");
}

static void test_an_answer_of_another_shape_is_an_error(void **state)
{
    Ipc__ExtractSpan s = span("Ada", 0.5f, 0, 3), high = span("Ada", 1.5f, 0, 3),
                     turned = span("Ada", 0.5f, 3, 2), *ps[] = {&s, &s};
    Ipc__ExtractedEntity e = IPC__EXTRACTED_ENTITY__INIT, *pe = &e;
    Ipc__ExtractedRelation r = IPC__EXTRACTED_RELATION__INIT, *pr = &r;
    Ipc__ExtractedClass c = IPC__EXTRACTED_CLASS__INIT, *pc = &c;
    Ipc__ExtractedValue v = IPC__EXTRACTED_VALUE__INIT, *pv = &v;
    Ipc__ExtractedRecord d = IPC__EXTRACTED_RECORD__INIT, *pd = &d;

    for (int wrong = 0; wrong < 9; wrong++) {
        Ipc__ExtractedItem item = IPC__EXTRACTED_ITEM__INIT, *items[2] = {&item, &item};

        e.label = wrong == 0;
        e.span = wrong == 1 ? &high : wrong == 2 ? &turned : &s;
        r.relation = wrong == 3;
        r.head = r.tail = &s;
        c.task = wrong == 4;
        c.label = wrong == 5;
        d.record = wrong == 6;
        v.field = wrong == 7;
        v.spans = ps;
        v.n_spans = 1;
        d.values = &pv;
        d.n_values = 1;
        item.entities = &pe;
        item.relations = &pr;
        item.classes = &pc;
        item.records = &pd;
        item.n_entities = item.n_relations = item.n_classes = item.n_records = 1;
        asked(SCHEMA(
            "\"entities\":[\"a\"],\"relations\":[\"b\"],\"classifications\":[{\"name\":\"c\","
            "\"labels\":[\"l\"]}],\"structures\":{\"d\":[\"f\"]}"));
        play((unsigned)wrong, items, wrong == 8 ? 2 : 1, NULL, 0);
        assert_int_equal(T.req.status, 500);
        assert_has("INFERENCE_FAILED");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_labels_and_relations_become_a_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_classes_and_structures_become_a_frame, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_version_2_has_rules_of_inputs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_thousand_labels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bounds_are_the_worker_s, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals_say_what_was_expected, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ends_of_relations_are_entities, setup, teardown),
        cmocka_unit_test_setup_teardown(test_relations_without_entities_make_them, setup, teardown),
        cmocka_unit_test_setup_teardown(test_classes_and_structures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inputs_of_several_tasks_come_in_order, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_older_words, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_answer_of_another_shape_is_an_error, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
