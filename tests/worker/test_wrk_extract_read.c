/* test_wrk_extract_read.c - what windows found, as one answer: entities that overlap, things found
 * twice, and that many of them take no square of time. (Against the reference: *_golden.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "wrk_extract.h"

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

static struct wrk_span span(uint32_t start, uint32_t end, float score)
{
    return (struct wrk_span){.score = score, .placed = true, .start = start, .end = end};
}

/* Is b before a in the order in which entities are kept? (ties: as they stood) */
static bool surer(const struct wrk_span *a, const struct wrk_span *b)
{
    if (a->score != b->score)
        return a->score > b->score;
    return a->start != b->start ? a->start < b->start : a->end < b->end;
}

/* The rule word for word: n times the best of what is left, if it overlaps none that was kept. */
static size_t thin_slowly(struct wrk_entity *e, size_t n)
{
    bool kept[64] = {false}, seen[64] = {false};
    size_t left = 0;

    for (size_t k = 0; k < n; k++) {
        size_t best = n;

        for (size_t i = 0; i < n; i++)
            if (!seen[i] && (best == n || surer(&e[i].span, &e[best].span)))
                best = i;
        seen[best] = kept[best] = true;
        for (size_t i = 0; i < n; i++)
            if (i != best && kept[i] && e[i].span.start < e[best].span.end &&
                e[best].span.start < e[i].span.end)
                kept[best] = false;
    }
    for (size_t i = 0; i < n; i++)
        if (kept[i])
            e[left++] = e[i];
    return left;
}

static void entities_that_overlap_a_better_one_go(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct wrk_entity e[64], want[64];
        size_t n = draw(64), n_want, left = 77;
        uint32_t size = 1 + draw(400), longest = 1 + draw(200);

        memset(e, 0, sizeof(e));
        for (size_t i = 0; i < n; i++) {
            uint32_t start = draw(size);

            e[i].label = draw(3);
            e[i].span = span(start, start + 1 + draw(longest), (float)draw(5) / 5);
        }
        memcpy(want, e, sizeof(e));
        n_want = thin_slowly(want, n);
        assert_int_equal(wrk_entities_thin(e, n, &left, NULL), RC_OK);
        assert_int_equal(left, n_want);
        for (size_t i = 0; i < left; i++)
            assert_true(e[i].label == want[i].label && e[i].span.start == want[i].span.start &&
                        e[i].span.end == want[i].span.end &&
                        e[i].span.score == want[i].span.score);
    }
}

/* ------------------------------------------------------------------- merging */

struct schema {
    struct wrk_schema s;
    Ipc__ExtractSchema q;
    Ipc__ExtractField label, *labels[2];
    Ipc__ExtractRelation relation, *relations[2];
    Ipc__ExtractRecord record, *records[2];
};

static struct schema *schema_new(void)
{
    struct schema *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    ipc__extract_schema__init(&s->q);
    ipc__extract_field__init(&s->label);
    ipc__extract_relation__init(&s->relation);
    ipc__extract_record__init(&s->record);
    for (int i = 0; i < 2; i++) {
        s->labels[i] = &s->label;
        s->relations[i] = &s->relation;
        s->records[i] = &s->record;
    }
    s->q.entities = s->labels;
    s->q.relations = s->relations;
    s->q.records = s->records;
    s->q.n_entities = s->q.n_relations = s->q.n_records = 2;
    s->s.s = &s->q;
    return s;
}

static void relation(struct wrk_finds *f, uint32_t id, uint32_t head, uint32_t tail, float score)
{
    const struct wrk_relation x = {id, span(head, head + 2, score), span(tail, tail + 2, score)};

    assert_int_equal(wrk_finds_relation(f, &x, NULL), RC_OK);
}

/* A record of one value in the text and, with a choice, one that is spelled nowhere. */
static void record(struct wrk_finds *f, uint32_t id, uint32_t at, int choice, float score)
{
    struct wrk_record x = {id, (uint32_t)f->n_values, choice < 0 ? 1 : 2};
    struct wrk_value v = {0, span(at, at + 2, score)};

    assert_int_equal(wrk_finds_value(f, &v, NULL), RC_OK);
    v = (struct wrk_value){1, {.score = score / 2, .choice = (uint32_t)choice}};
    if (choice >= 0)
        assert_int_equal(wrk_finds_value(f, &v, NULL), RC_OK);
    assert_int_equal(wrk_finds_record(f, &x, NULL), RC_OK);
}

static void things_found_twice_are_one_with_the_better_score(void **state)
{
    struct schema *s = schema_new();
    struct wrk_finds in[2] = {0}, out = {0};
    struct wrk_view v[2] = {{.at0 = 0, .point0 = 0}, {.at0 = 100, .point0 = 100}};

    (void)state;
    relation(&in[0], 1, 110, 120, 0.5f);
    relation(&in[0], 0, 110, 120, 0.5f);
    relation(&in[0], 0, 110, 130, 0.5f);
    relation(&in[1], 0, 10, 20, 0.75f); /* the second of the first window */
    relation(&in[1], 1, 10, 20, 0.25f); /* and the first, but worse */
    relation(&in[1], 1, 20, 10, 0.5f);
    record(&in[0], 0, 110, 1, 0.5f);
    record(&in[0], 0, 110, 2, 0.5f);
    record(&in[0], 1, 110, 1, 0.5f);
    record(&in[1], 0, 10, 1, 0.75f);
    record(&in[1], 0, 10, -1, 0.5f);
    record(&in[1], 1, 10, 1, 0.25f);
    assert_int_equal(wrk_finds_merge(&out, in, v, 2, &s->s, "", 0, false, NULL), RC_OK);
    assert_int_equal(out.n_relations, 4);
    assert_int_equal(out.relation[0].relation, 0);
    assert_int_equal(out.relation[0].tail.start, 120);
    assert_true(out.relation[0].head.score == 0.75f);
    assert_int_equal(out.relation[1].tail.start, 130);
    assert_int_equal(out.relation[2].relation, 1);
    assert_true(out.relation[2].head.score == 0.5f);
    assert_int_equal(out.relation[3].head.start, 120);
    assert_int_equal(out.n_records, 4);
    assert_int_equal(out.n_values, 7);
    assert_true(out.value[out.record[0].from].span.score == 0.75f);
    assert_int_equal(out.value[out.record[1].from + 1].span.choice, 2);
    assert_int_equal(out.record[2].n, 1);
    assert_int_equal(out.record[3].record, 1);
    assert_true(out.value[out.record[3].from].span.score == 0.5f);
    for (int i = 0; i < 2; i++)
        wrk_finds_deinit(&in[i]);
    wrk_finds_deinit(&out);
    free(s);
}

/* As many things as may be, none like another: looking through all for each would take minutes. */
static void many_things_take_no_square_of_time(void **state)
{
    enum { WINDOWS = 64, EACH = WRK_FINDS_MAX / WINDOWS };
    struct schema *s = schema_new();
    struct wrk_finds *in = calloc(WINDOWS, sizeof(*in)), out = {0};
    struct wrk_view *v = calloc(WINDOWS, sizeof(*v));
    clock_t begin = clock();

    (void)state;
    assert_true(in != NULL && v != NULL);
    for (uint32_t w = 0; w < WINDOWS; w++) {
        v[w].at0 = v[w].point0 = w * EACH * 4;
        for (uint32_t i = 0; i < EACH; i++) {
            const struct wrk_entity e = {0, span(4 * i, 4 * i + 2, (float)draw(1000) / 1000)};

            assert_int_equal(wrk_finds_entity(&in[w], &e, NULL), RC_OK);
            relation(&in[w], 0, 4 * i, 4 * i + 2, 0.5f);
            record(&in[w], 0, 4 * i, -1, 0.5f);
        }
    }
    assert_int_equal(wrk_finds_merge(&out, in, v, WINDOWS, &s->s, "", 0, true, NULL), RC_OK);
    assert_int_equal(out.n_entities, WRK_FINDS_MAX);
    assert_int_equal(out.n_relations, WRK_FINDS_MAX);
    assert_int_equal(out.n_records, WRK_FINDS_MAX);
    assert_true((clock() - begin) / CLOCKS_PER_SEC < 15); /* 1 s, also with sanitizers */
    for (int w = 0; w < WINDOWS; w++)
        wrk_finds_deinit(&in[w]);
    wrk_finds_deinit(&out);
    free(in);
    free(v);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entities_that_overlap_a_better_one_go),
        cmocka_unit_test(things_found_twice_are_one_with_the_better_score),
        cmocka_unit_test(many_things_take_no_square_of_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
