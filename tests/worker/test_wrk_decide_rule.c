/* test_wrk_decide_rule.c - decisions by similarity without a model: rules, vectors, rendering,
 * hashes, artifacts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/decide_ask.h"

/* ---------------------------------------------------------------------- rules */

static void a_choice_is_selected_or_says_why_not(void **state)
{
    static const struct {
        const char *name;
        double s[3];
        bool has_sim, has_margin;
        double sim, margin;
        enum wrk_decide_status status;
        enum wrk_decide_reason reason;
        uint32_t chosen;
        double want_margin;
    } rows[] = {
        {"the best", {0.1, 0.7, 0.3}, false, false, 0, 0, WRK_SELECTED, 0, 1, 0.4},
        {"negative similarities", {-0.9, -0.5, -0.7}, false, false, 0, 0, WRK_SELECTED, 0, 1, 0.2},
        {"equal ones tie", {0.5, 0.2, 0.5}, false, false, 0, 0, WRK_ABSTAINED, WRK_TIE, 0, 0},
        {"a tie is at most 1e-6",
         {0.5, 0.5 - 1e-6, 0},
         false,
         false,
         0,
         0,
         WRK_ABSTAINED,
         WRK_TIE,
         0,
         1e-6},
        {"above it is none", {0.5, 0.5 - 2e-6, 0}, false, false, 0, 0, WRK_SELECTED, 0, 0, 2e-6},
        {"a tie comes before low similarity",
         {0.5, 0.5, 0},
         true,
         true,
         0.9,
         2,
         WRK_ABSTAINED,
         WRK_TIE,
         0,
         0},
        {"similarity below",
         {0.5, 0.25, 0},
         true,
         false,
         0.5000001,
         0,
         WRK_ABSTAINED,
         WRK_LOW_SIMILARITY,
         0,
         0.25},
        {"similarity equal", {0.5, 0.25, 0}, true, false, 0.5, 0, WRK_SELECTED, 0, 0, 0.25},
        {"similarity comes before margin",
         {0.5, 0.25, 0},
         true,
         true,
         0.6,
         1,
         WRK_ABSTAINED,
         WRK_LOW_SIMILARITY,
         0,
         0.25},
        {"margin below",
         {0.5, 0.25, 0},
         true,
         true,
         0.5,
         0.26,
         WRK_ABSTAINED,
         WRK_LOW_MARGIN,
         0,
         0.25},
        {"margin equal", {0.5, 0.25, 0}, true, true, 0.5, 0.25, WRK_SELECTED, 0, 0, 0.25},
        {"the widest margin", {1, -1, -1}, false, true, 0, 2, WRK_SELECTED, 0, 0, 2},
        {"a bound that is not given is none",
         {-0.5, -0.75, -1},
         false,
         false,
         1,
         2,
         WRK_SELECTED,
         0,
         0,
         0.25},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct wrk_accept a = {.has_min_similarity = rows[i].has_sim,
                               .min_similarity = rows[i].sim,
                               .has_min_margin = rows[i].has_margin,
                               .min_margin = rows[i].margin};
        struct wrk_verdict v;

        wrk_decide_choice(rows[i].s, 3, &a, &v);
        if (v.status != rows[i].status || v.reason != rows[i].reason ||
            fabs(v.margin - rows[i].want_margin) > 1e-9 ||
            v.n_chosen != (rows[i].status == WRK_SELECTED) ||
            (v.n_chosen && v.chosen[0] != rows[i].chosen))
            fail_msg("%s: status %d reason %d margin %g", rows[i].name, v.status, v.reason,
                     v.margin);
    }
}

static void multi_choice_accepts_what_reaches_its_threshold(void **state)
{
    static const struct {
        const char *name;
        double s[3], t[3];
        bool has_margin;
        double margin;
        enum wrk_decide_status status;
        uint32_t n, chosen[3];
        double want_margin;
    } rows[] = {
        {"all at -1", {-1, 0, 0.5}, {-1, -1, -1}, false, 0, WRK_SELECTED, 3, {0, 1, 2}, 0},
        {"none at 1", {0.9, 0, 0.5}, {1, 1, 1}, false, 0, WRK_EMPTY, 0, {0}, 0.1},
        {"each by its own", {0.5, 0.5, 0.5}, {0.6, 0.4, 0.5}, false, 0, WRK_SELECTED, 2, {1, 2}, 0},
        {"a margin that is too small withholds the set",
         {0.5, 0.75, 0},
         {0.25, 0.25, 0.25},
         true,
         0.26,
         WRK_ABSTAINED,
         0,
         {0},
         0.25},
        {"a margin that is met",
         {0.5, 0.75, 0},
         {0.25, 0.25, 0.25},
         true,
         0.25,
         WRK_SELECTED,
         2,
         {0, 1},
         0.25},
        {"nothing accepted, margin met",
         {0, 0, 0},
         {0.5, 0.5, 0.5},
         true,
         0.5,
         WRK_EMPTY,
         0,
         {0},
         0.5},
        {"nothing accepted, margin not met",
         {0, 0, 0},
         {0.5, 0.5, 0.5},
         true,
         0.6,
         WRK_ABSTAINED,
         0,
         {0},
         0.5},
        {"the widest margin", {-1, -1, -1}, {1, 1, 1}, true, 2, WRK_EMPTY, 0, {0}, 2},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct wrk_accept a = {.has_min_margin = rows[i].has_margin, .min_margin = rows[i].margin};
        struct wrk_verdict v;

        memcpy(a.threshold, rows[i].t, sizeof(rows[i].t));
        wrk_decide_multi(rows[i].s, 3, &a, &v);
        if (v.status != rows[i].status || v.n_chosen != rows[i].n ||
            memcmp(v.chosen, rows[i].chosen, rows[i].n * sizeof(uint32_t)) != 0 ||
            fabs(v.margin - rows[i].want_margin) > 1e-9 ||
            v.reason != (v.status == WRK_ABSTAINED ? WRK_LOW_MARGIN : WRK_NO_REASON))
            fail_msg("%s: status %d, %u chosen, margin %g", rows[i].name, v.status, v.n_chosen,
                     v.margin);
    }
}

static void vectors_are_normalized_one_by_one(void **state)
{
    /* the long one counts no more than the short one */
    static const float two[4] = {100, 0, 0, 0.01f}, away[4] = {1, 0, -1, 0};
    static const float nan[2] = {NAN, 1}, zero[2] = {0, 0}, inf[2] = {INFINITY, 0};
    static const float big[2] = {3e38f, 3e38f};
    float out[2];

    (void)state;
    assert_int_equal(wrk_centroid(two, 2, 2, out, NULL), RC_OK);
    assert_true(fabs((double)out[0] - sqrt(0.5)) < 1e-7 && fabs((double)out[1] - sqrt(0.5)) < 1e-7);
    assert_int_equal(wrk_centroid(away, 2, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(nan, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(zero, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(inf, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_centroid(zero, 1, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(big, 2, out, NULL), RC_OK);
    assert_true(wrk_cosine(out, out, 2) <= 1 && wrk_cosine(out, out, 2) > 1 - 1e-6);
    out[0] = out[1] = 0.8f; /* longer than 1 */
    assert_true(wrk_cosine(out, out, 2) == 1);
    assert_true(wrk_cosine(out, (const float[]){-0.8f, -0.8f}, 2) == -1);
}

/* ------------------------------------------------------------------ rendering */
static void texts_are_rendered_as_the_renderer_says(void **state)
{
    Ipc__DecideQuestion *q = question(&(struct spec){
        .kind = WRK_CHOICE,
        .instructions = "Do it.",
        .c = {{"v", NULL, {"e1", "e2"}}, {"w", "a d", {NULL}}, {"x", NULL, {NULL}}}});
    static const char *const want[] = {
        "Instruction: Do it.\nInput: e1", "Instruction: Do it.\nInput: e2",
        "Instruction: Do it.\nCategory: a d", "Instruction: Do it.\nCategory: x"};
    size_t at = 0;

    (void)state;
    for (size_t c = 0; c < q->n_choices; c++)
        for (uint32_t i = 0; i < wrk_choice_texts(q->choices[c]); i++, at++) {
            enum wrk_render how;
            ProtobufCBinaryData text = wrk_choice_text(q->choices[c], i, &how);
            uint8_t out[64];

            assert_int_equal(wrk_render_bytes(q, how, text.len), strlen(want[at]));
            wrk_render(q, how, text, out);
            assert_memory_equal(out, want[at], strlen(want[at]));
        }
    assert_int_equal(at, 4);
}

static void a_set_hash_is_of_what_makes_the_vectors(void **state)
{
    const struct spec base = {.kind = WRK_CHOICE,
                              .instructions = "I",
                              .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}};
    const struct spec same[] = {
        {.kind = WRK_MULTI,
         .instructions = "I",
         .threshold = 0.5,
         .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"z", "unread", {"12", "3"}}, {"y", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12", "3"}}, {"d", NULL, {NULL}}}},
    };
    const struct spec other[] = {
        {.kind = WRK_CHOICE,
         .instructions = "J",
         .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"1", "23"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"3", "12"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12", "3"}}, {"b", NULL, {"d"}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12"}}, {"b", NULL, {"3"}}, {"c", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"b", "d", {NULL}}, {"a", NULL, {"12", "3"}}}},
    };
    uint8_t h[32], k[32];
    char hex[65];

    (void)state;
    wrk_set_hash(question(&base), "CLUSTERING", 256, h);
    sodium_bin2hex(hex, sizeof(hex), h, sizeof(h));
    /* computed by hand with Python's hashlib from the description in wrk_decide.h */
    assert_string_equal(hex, "08c5248b44ee05269bea8799679761ec6406268a87dbd07c6ae49d902c299eaf");
    for (size_t i = 0; i < N_OF(same); i++) {
        wrk_set_hash(question(&same[i]), "CLUSTERING", 256, k);
        assert_memory_equal(h, k, 32);
    }
    for (size_t i = 0; i < N_OF(other); i++) {
        wrk_set_hash(question(&other[i]), "CLUSTERING", 256, k);
        assert_memory_not_equal(h, k, 32);
    }
    wrk_set_hash(question(&base), "CLASSIFICATION", 256, k);
    assert_memory_not_equal(h, k, 32);
    wrk_set_hash(question(&base), "CLUSTERING", 128, k);
    assert_memory_not_equal(h, k, 32);
}

/* ------------------------------------------------------------------ artifacts */
static enum rc parse(const struct spec *q, const char *text, struct wrk_accept *a,
                     struct rc_err *err)
{
    struct wrk_binding b = {.model_identity = IDENTITY, .task_type = "CLUSTERING", .dimensions = 8};
    uint8_t h[32];

    b.question = question(q);
    wrk_set_hash(b.question, "CLUSTERING", 8, h);
    b.set_hash = h;
    return wrk_calibration_parse(text, strlen(text), "ok", &b, a, err);
}

static void an_artifact_is_believed_only_for_what_it_was_made(void **state)
{
    struct spec multi = calibrated;
    static const struct {
        const char *what, *by, *says;
        bool multi;
    } rows[] = {
        {"{", "", "no JSON", false},
        {"{", "[{", "no JSON", false},
        {"\"version\":1", "\"version\":2", "version 1", false},
        {"\"version\":1", "\"version\":true", "version 1", false},
        {"heldout-abstention-v1", "other", "heldout-abstention-v1", false},
        {"\"qualified\":true", "\"qualified\":false", "not qualified", false},
        {"\"qualified\":true", "\"x\":true", "not qualified", false},
        {"\"qualified\":true", "\"qualified\":1", "not qualified", false},
        {"0011", "0012", "model identity", false},
        {"instruction-category-v1", "instruction-category-v2", "renderer", false},
        {"CLUSTERING", "CLASSIFICATION", "task type", false},
        {"\"dimensions\":8", "\"dimensions\":4", "4 dimensions", false},
        {"\"dimensions\":8", "\"dimensions\":8.0", "dimensions", false},
        {"_hash\":\"", "_hash\":\"0", "prototypes", false},
        {"[\"a\",\"b\"]", "[\"b\",\"a\"]", "label 0", false},
        {"[\"a\",\"b\"]", "[\"a\"]", "1 labels", false},
        {"[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]", "3 labels", false},
        {"[\"a\",\"b\"]", "\"a\"", "labels", false},
        {"[\"a\",\"b\"]", "[\"a\",2]", "label 1", false},
        {"single", "multi", "kind of question", false},
        {"\"mode\"", "\"m\"", "binding.mode", false},
        {"\"binding\"", "\"b\"", "'binding' is missing", false},
        {"\"thresholds\"", "\"t\"", "'thresholds' is missing", false},
        {"0.125", "2.5", "min_margin", false},
        {"0.125", "-0.5", "min_margin", false},
        {"0.125", "\"0.1\"", "min_margin", false},
        {"\"min_similarity\":0.5", "\"min_similarity\":1.5", "min_similarity", false},
        {"\"min_similarity\":0.5,", "", "min_similarity", false},
        {"multi", "single", "kind of question", true},
        {"\"b\":-1", "\"c\":-1", "threshold 'b'", true},
        {",\"b\":-1", "", "one for each label", true},
        {"-1}", "-1.25}", "threshold 'b'", true},
        {"-1}", "-1,\"c\":0}", "one for each label", true},
    };
    struct wrk_accept a;
    struct rc_err err;

    (void)state;
    multi.kind = WRK_MULTI;
    assert_int_equal(parse(&calibrated, artifact(&calibrated, "{", "{"), &a, NULL), RC_OK);
    assert_true(a.has_min_similarity && a.min_similarity == 0.5 && a.has_min_margin &&
                a.min_margin == 0.125);
    assert_int_equal(parse(&multi, artifact(&multi, "{", "{"), &a, NULL), RC_OK);
    assert_true(a.threshold[0] == 0.25 && a.threshold[1] == -1 && !a.has_min_margin);
    for (size_t i = 0; i < N_OF(rows); i++) {
        const struct spec *q = rows[i].multi ? &multi : &calibrated;

        err = RC_ERR_INIT;
        if (parse(q, artifact(q, rows[i].what, rows[i].by), &a, &err) != RC_INVALID ||
            !strstr(err.msg, rows[i].says) || strcmp(err.what, "calibration_id") != 0)
            fail_msg("'%s' by '%s': %s", rows[i].what, rows[i].by, err.msg);
    }
}

static void a_single_file_has_no_calibrations(void **state)
{
    char path[] = TEST_BUILD "/single-XXXXXX";
    const struct wrk_binding b = {.model_identity = IDENTITY, .task_type = "CLUSTERING"};
    struct wrk_accept a;
    struct rc_err err = RC_ERR_INIT;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(wrk_calibration_read(fd, "ok", &b, &a, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "single file"));
    assert_int_equal(wrk_calibration_read(-1, "ok", &b, &a, &err), RC_INVALID);
    assert_int_equal(wrk_calibration_read(fd, "a/b", &b, &a, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "letters, digits"));
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_is_selected_or_says_why_not),
        cmocka_unit_test(multi_choice_accepts_what_reaches_its_threshold),
        cmocka_unit_test(vectors_are_normalized_one_by_one),
        cmocka_unit_test(texts_are_rendered_as_the_renderer_says),
        cmocka_unit_test(a_set_hash_is_of_what_makes_the_vectors),
        cmocka_unit_test(an_artifact_is_believed_only_for_what_it_was_made),
        cmocka_unit_test(a_single_file_has_no_calibrations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
