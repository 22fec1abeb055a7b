/* test_sup_cli_calibrate.c - labelled scores: what is read, what is fitted, what qualifies.
 *
 * Scores are made up by a seeded generator; near misses of each criterion differ from what
 * qualifies by one sample.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "sup_calibrate.h"
#include "sup_cli.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define BINDING(mode, labels)                                                     \
    "{\"binding\":{\"model_identity\":\"" HEX                                     \
    "\",\"renderer_version\":\"instruction-category-v1\","                        \
    "\"task_type\":\"CLUSTERING\",\"dimensions\":8,\"prototype_set_hash\":\"" HEX \
    "\",\"labels\":" labels ",\"mode\":\"" mode "\"}"

static uint32_t seed;
static double rnd(void) /* [0, 1) */
{
    return (double)((seed = seed * 1664525u + 1013904223u) >> 8) / 16777216.0;
}

/* ------------------------------------------------------------------- formulas */

static void the_bound_is_wilsons(void **state)
{
    (void)state;
    /* by hand: p = 0.95, z^2 = 3.841459; (0.95 + 0.01920729 - 1.959964 * sqrt(0.000475 +
     * 0.0000960365)) / 1.03841459 */
    assert_true(fabs(sup_wilson_lower(95, 100) - 0.88825) < 1e-5);
    /* 100 of 100: 100 / (100 + z^2) */
    assert_true(fabs(sup_wilson_lower(100, 100) - 100 / 103.841459) < 1e-8);
    assert_true(fabs(sup_wilson_lower(30, 30) - 30 / 33.841459) < 1e-8);
    assert_true(fabs(sup_wilson_lower(1, 2) - 0.0945312) < 1e-6);
    assert_true(sup_wilson_lower(0, 10) < 1e-12);
    assert_true(sup_wilson_lower(0, 0) == 0);
}

/* -------------------------------------------------------------------- reading */

static void files_are_understood_or_refused_in_words(void **state)
{
#define S(split, hash, scores, labels)                                          \
    "{\"state_sha256\":\"" hash "\",\"split\":\"" split "\",\"scores\":" scores \
    ",\"labels\":" labels "}"
#define H2 "11112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define ONE S("fit", HEX, "[0.5,-1]", "[\"a\"]")
#define AB "[\"a\",\"b\"]"
    static const struct {
        const char *text, *says; /* NULL: accepted */
    } rows[] = {
        {BINDING("single", AB) ",\"samples\":[" ONE "," S("holdout", H2, "[1,0]", "[]") "]}", NULL},
        {BINDING("single", AB) "}\n" ONE "\n\n  \n" S("holdout", H2, "[1,0]", "[]"), NULL},
        {"\n" BINDING("multi", AB) ",\n\"samples\":[" S("validation", H2, "[1,0]", AB) "]}\n",
         NULL},
        {"", "no JSON"},
        {"[]", "'binding': expected"},
        {"{\"samples\":[]}", "'binding': expected"},
        {BINDING("single", AB) "}", "'samples': expected"},
        {BINDING("single", AB) "}\nx", "line 2: no JSON"},
        {BINDING("other", AB) ",\"samples\":[]}", "binding.mode"},
        {BINDING("single", "[\"a\"]") ",\"samples\":[]}", "2 to 64"},
        {BINDING("single", "[\"a\",\"a\"]") ",\"samples\":[]}", "each label once"},
        {BINDING("single", "[\"a\",3]") ",\"samples\":[]}", "non-empty strings"},
        {BINDING("single", AB) ",\"samples\":[3]}", "sample 0: 'sample'"},
        {BINDING("single", AB) ",\"samples\":[" ONE "," ONE "]}", "in the file twice"},
        {BINDING("single", AB) "}\n" ONE "\n" S("holdout", HEX, "[1,0]", "[]"),
         "in the file twice"},
        {BINDING("single", AB) ",\"samples\":[" S("test", HEX, "[1,0]", "[]") "]}", "'split'"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", "00", "[1,0]", "[]") "]}",
         "'state_sha256'"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", HEX, "[1]", "[]") "]}",
         "one number for each"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", HEX, "[1,1.5]", "[]") "]}",
         "from -1 to 1"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", HEX, "[1,\"0\"]", "[]") "]}",
         "from -1 to 1"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", HEX, "[1,0]", "[\"c\"]") "]}",
         "labels of the binding"},
        {BINDING("single", AB) ",\"samples\":[" S("fit", HEX, "[1,0]", AB) "]}",
         "at most one label"},
        {BINDING("multi", AB) ",\"samples\":[" S("fit", HEX, "[1,0]", "[\"a\",\"a\"]") "]}",
         "each label once"},
        {BINDING("multi", AB) ",\"samples\":[" S("fit", HEX, "[1,0]", "\"a\"") "]}",
         "an array of the right"},
        {BINDING("multi", AB) ",\"samples\":[" S("fit", HEX, "[1,0]", "[]") "],\"samples\":[]}",
         "no JSON"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct sup_scores s = {0};
        struct rc_err err = RC_ERR_INIT;
        enum rc rc = sup_scores_read(&s, rows[i].text, strlen(rows[i].text), &err);

        if ((rc == RC_OK) != (rows[i].says == NULL) ||
            (rows[i].says && !strstr(err.msg, rows[i].says)))
            fail_msg("row %zu: %s", i, err.msg);
        if (i == 0 || i == 1) {
            assert_int_equal(s.n, 2);
            assert_int_equal(s.sample[0].labels, 1);
            assert_int_equal(s.sample[1].split, SUP_HOLDOUT);
            assert_true(s.score[1] == -1 && s.score[2] == 1);
        }
        sup_scores_deinit(&s);
    }
}

/* -------------------------------------------------------------------- fitting */

/* A growing file in memory. */
struct file {
    char text[1 << 20];
    size_t n;
    unsigned id;
};
static void begin(struct file *f, const char *head)
{
    f->n = (size_t)snprintf(f->text, sizeof(f->text), "%s}\n", head);
    f->id = 0;
}
static void sample(struct file *f, const char *split, double a, double b, const char *labels)
{
    f->n += (size_t)snprintf(
        f->text + f->n, sizeof(f->text) - f->n,
        "{\"state_sha256\":\"%064x\",\"split\":\"%s\",\"scores\":[%.17g,%.17g],\"labels\":%s}\n",
        f->id++, split, a, b, labels);
    assert_true(f->n < sizeof(f->text));
}

static const char single[] = BINDING("single", AB), multi[] = BINDING("multi", AB);
static const struct sup_targets usual = {.precision = 0.9, .minimum = 0.2};
static struct file f; /* large */
static struct sup_calibration c;

static const char *judge(const struct sup_targets *t)
{
    static struct rc_err err;
    struct sup_scores s = {0};

    err = RC_ERR_INIT;
    if (sup_scores_read(&s, f.text, f.n, &err) != RC_OK)
        return err.msg;
    sup_calibrate(&s, t, &c);
    sup_scores_deinit(&s);
    assert_true(c.qualified == (c.why.code == RC_OK));
    return c.qualified ? "" : c.why.msg;
}

/* n of a split, of which `right` are right; the best score is 0.8, its margin 0.3. */
static void sure(const char *split, unsigned n, unsigned right)
{
    for (unsigned i = 0; i < n; i++)
        sample(&f, split, 0.8, 0.5, i < right ? "[\"a\"]" : i % 2 ? "[\"b\"]" : "[]");
}
/* n more, low and near, whose best is wrong. */
static void unsure(const char *split, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        sample(&f, split, 0.3 + rnd() / 10, 0.3, i % 2 ? "[]" : "[\"b\"]");
}

static void single_thresholds_and_near_misses(void **state)
{
    /* sure samples (n and right) and unsure ones, of fit, validation, holdout */
    static const struct {
        const char *name;
        unsigned fit, fit_right, fit_low, val, val_right, val_low, hold, hold_right, hold_low;
        double minimum;
        const char *says; /* "" = qualified */
    } rows[] = {
        {"all are right", 40, 40, 0, 30, 30, 0, 100, 100, 0, 0.2, ""},
        {"low ones are left out", 40, 40, 40, 30, 30, 30, 60, 60, 60, 0.2, ""},
        {"29 of fit", 29, 29, 0, 30, 30, 0, 100, 100, 0, 0.2, "29 fit samples"},
        {"30 of fit", 30, 30, 0, 30, 30, 0, 100, 100, 0, 0.2, ""},
        {"29 of validation", 40, 40, 0, 29, 29, 0, 100, 100, 0, 0.2, "29 validation samples"},
        {"99 of holdout", 40, 40, 0, 30, 30, 0, 99, 99, 0, 0.2, "99 holdout samples"},
        /* 96 of 100: 0.9016; 95: 0.8882 */
        {"four wrong of a hundred", 40, 40, 0, 30, 30, 0, 100, 96, 0, 0.2, ""},
        {"five wrong of a hundred", 40, 40, 0, 30, 30, 0, 100, 95, 0, 0.2,
         "lower bound of accuracy on holdout is 0.8882"},
        {"validation at the target", 40, 40, 0, 30, 27, 0, 100, 100, 0, 0.2, ""},
        {"validation below it", 40, 40, 0, 30, 26, 0, 100, 100, 0, 0.2,
         "selected on validation is 0.8667"},
        {"coverage of holdout just met", 40, 40, 40, 30, 30, 30, 50, 50, 50, 0.5, ""},
        {"coverage of holdout missed by one", 40, 40, 40, 30, 30, 30, 50, 50, 51, 0.5,
         "coverage on holdout is 0.4950"},
        {"coverage of validation missed by one", 40, 40, 40, 30, 30, 31, 60, 60, 50, 0.5,
         "coverage on validation is 0.4918"},
        {"nothing is sure", 0, 0, 60, 0, 0, 60, 0, 0, 120, 0.2, "accuracy"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        const struct sup_targets t = {.precision = 0.9, .minimum = rows[i].minimum};
        const char *got;

        seed = 7;
        begin(&f, single);
        sure("fit", rows[i].fit, rows[i].fit_right);
        unsure("fit", rows[i].fit_low);
        sure("validation", rows[i].val, rows[i].val_right);
        unsure("validation", rows[i].val_low);
        sure("holdout", rows[i].hold, rows[i].hold_right);
        unsure("holdout", rows[i].hold_low);
        got = judge(&t);
        if (rows[i].says[0] ? !strstr(got, rows[i].says) : got[0] != '\0')
            fail_msg("%s: '%s' (min_similarity %g, min_margin %g)", rows[i].name, got,
                     c.min_similarity, c.min_margin);
    }
    /* where low ones were left out, a threshold lies between the two kinds */
    seed = 7;
    begin(&f, single);
    sure("fit", 40, 40);
    unsure("fit", 40);
    judge(&usual);
    assert_true(c.min_similarity > 0.3 || c.min_margin > 0.05);
    assert_true(c.min_similarity <= 0.8 && c.min_margin <= 0.3);
    assert_int_equal(c.m[SUP_FIT][0].accepted, 40);
    assert_int_equal(c.m[SUP_FIT][0].correct, 40);
}

static void holdout_does_not_move_thresholds(void **state)
{
    struct sup_calibration first;

    (void)state;
    for (int round = 0; round < 2; round++) {
        seed = 11;
        begin(&f, single);
        for (int i = 0; i < 200; i++) {
            double x = rnd(), y = rnd();

            sample(&f, i % 2 ? "fit" : "validation", x, y,
                   x > y         ? "[\"a\"]"
                   : rnd() < 0.5 ? "[\"b\"]"
                                 : "[]");
        }
        for (int i = 0; i < 100; i++) /* all right, then all wrong */
            sample(&f, "holdout", 0.1 + rnd() / 2, 0, round ? "[\"b\"]" : "[\"a\"]");
        judge(&usual);
        if (round == 0)
            first = c;
    }
    assert_true(c.min_similarity == first.min_similarity && c.min_margin == first.min_margin);
    assert_memory_equal(&c.m[SUP_FIT], &first.m[SUP_FIT], sizeof(c.m[SUP_FIT]));
    assert_int_equal(first.m[SUP_HOLDOUT][0].correct, first.m[SUP_HOLDOUT][0].accepted);
    assert_int_equal(c.m[SUP_HOLDOUT][0].correct, 0);
}

static void ties_are_never_selected(void **state)
{
    (void)state;
    begin(&f, single);
    for (int i = 0; i < 40; i++)
        sample(&f, "fit", 0.5, 0.5, "[\"a\"]");
    judge(&usual);
    assert_int_equal(c.m[SUP_FIT][0].accepted, 0);
}

/* n samples of label a alone or b alone, `wrong` of those accepted for a are b's. */
static void tagged(const char *split, unsigned a, unsigned b, unsigned wrong, unsigned missed)
{
    for (unsigned i = 0; i < a; i++)
        sample(&f, split, i < missed ? 0.1 : 0.7, 0.1, "[\"a\"]");
    for (unsigned i = 0; i < b; i++)
        sample(&f, split, i < wrong ? 0.7 : 0.1, 0.7, "[\"b\"]");
}

static void multi_thresholds_and_near_misses(void **state)
{
    static const struct {
        const char *name;
        unsigned fit, val_wrong, a, b, wrong, missed;
        double minimum;
        const char *says;
    } rows[] = {
        {"all are right", 20, 0, 60, 60, 0, 0, 0.5, ""},
        {"30 positive, 70 negative", 20, 0, 40, 70, 0, 0, 0.5, ""},
        {"29 positive", 20, 0, 29, 80, 0, 0, 0.5,
         "29 positive and 80 negative samples of label 'a'"},
        {"29 negative", 20, 0, 80, 29, 0, 0, 0.5,
         "80 positive and 29 negative samples of label 'a'"},
        /* 60 right of 61: 0.9128; of 62: 0.8898 */
        {"one wrong", 20, 0, 60, 60, 1, 0, 0.5, ""},
        {"two wrong", 20, 0, 60, 60, 2, 0, 0.5,
         "lower bound of precision of label 'a' on holdout is 0.8898"},
        /* F1 of a: 40 of 60 found: 2 * 40 / 100 = 0.8 */
        {"F1 just met", 20, 0, 60, 60, 0, 20, 0.8, ""},
        {"F1 missed by one", 20, 0, 60, 60, 0, 21, 0.8, "F1 of label 'a' on holdout is 0.7879"},
        {"validation wrong", 20, 3, 60, 60, 0, 0, 0.5,
         "precision of label 'a' on validation is 0.8696"},
        {"too few of fit", 14, 0, 60, 60, 0, 0, 0.5, "28 fit samples"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        const struct sup_targets t = {.precision = 0.9, .minimum = rows[i].minimum};
        const char *got;

        begin(&f, multi);
        tagged("fit", rows[i].fit, rows[i].fit, 0, 0);
        tagged("validation", 20, 20, rows[i].val_wrong, 0);
        tagged("holdout", rows[i].a, rows[i].b, rows[i].wrong, rows[i].missed);
        got = judge(&t);
        if (rows[i].says[0] ? !strstr(got, rows[i].says) : got[0] != '\0')
            fail_msg("%s: '%s' (thresholds %g %g)", rows[i].name, got, c.threshold[0],
                     c.threshold[1]);
        assert_true(c.threshold[0] > 0.1 && c.threshold[0] <= 0.7);
    }
}

/* Noisy scores: what qualifies keeps its promise on samples nobody has seen. */
static void what_qualifies_holds_on_new_samples(void **state)
{
    struct sup_scores s = {0};
    unsigned qualified = 0;

    (void)state;
    for (uint32_t round = 1; round <= 20; round++) {
        unsigned selected = 0, right = 0;

        seed = round;
        begin(&f, single);
        for (int i = 0; i < 800; i++) {
            bool is_a = rnd() < 0.5;
            double hard = rnd() < 0.4 ? 0 : 0.3, x = rnd() * 0.4 + (is_a ? hard : 0),
                   y = rnd() * 0.4 + (is_a ? 0 : hard);

            sample(&f,
                   i < 300   ? "fit"
                   : i < 450 ? "validation"
                             : "holdout",
                   x, y, is_a ? "[\"a\"]" : "[\"b\"]");
        }
        if (judge(&usual)[0] != '\0')
            continue;
        qualified++;
        for (int i = 0; i < 4000; i++) {
            bool is_a = rnd() < 0.5;
            double hard = rnd() < 0.4 ? 0 : 0.3, x = rnd() * 0.4 + (is_a ? hard : 0),
                   y = rnd() * 0.4 + (is_a ? 0 : hard);

            if (fmax(x, y) < c.min_similarity || fabs(x - y) < c.min_margin)
                continue;
            selected++;
            right += is_a == (x > y);
        }
        if (right < 0.88 * selected)
            fail_msg("round %u: %u of %u right", round, right, selected);
    }
    assert_true(qualified >= 5);
    sup_scores_deinit(&s);
}

/* -------------------------------------------------------------------- artifact */

static int calibrate(const char *scores, const char *out, const char *opt, const char *value)
{
    char *argv[] = {(char *)(uintptr_t) "inferd",
                    (char *)(uintptr_t) "calibrate",
                    (char *)(uintptr_t)scores,
                    (char *)(uintptr_t)out,
                    (char *)(uintptr_t)opt,
                    (char *)(uintptr_t)value,
                    NULL};
    char *envp[] = {NULL};

    return sup_cli_main(opt ? 6 : 4, argv, envp);
}

static void the_command_writes_what_qualifies_and_nothing_else(void **state)
{
    char dir[] = TEST_BUILD "/calib-XXXXXX", in[128], sub[128], out[192], part[256];
    json_t *j, *t;
    FILE *fp;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(in, sizeof(in), "%s/scores", dir);
    snprintf(sub, sizeof(sub), "%s/calibrations", dir);
    snprintf(out, sizeof(out), "%s/ok.json", sub);
    snprintf(part, sizeof(part), "%s.partial", out);
    begin(&f, single);
    sure("fit", 40, 40);
    sure("validation", 30, 30);
    sure("holdout", 100, 95);
    fp = fopen(in, "w");
    assert_non_null(fp);
    fwrite(f.text, 1, f.n, fp);
    fclose(fp);
    assert_int_equal(calibrate(in, out, NULL, NULL), SUP_EXIT_FAIL); /* 0.8882 */
    assert_int_equal(access(out, F_OK), -1);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(calibrate(in, out, "--precision", "0.85"), SUP_EXIT_OK);
    assert_int_equal(access(part, F_OK), -1);
    j = json_load_file(out, 0, NULL);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "version")), 1);
    assert_string_equal(json_string_value(json_object_get(j, "method")), "heldout-abstention-v1");
    assert_true(json_is_true(json_object_get(j, "qualified")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "binding"), "mode")),
                        "single");
    assert_int_equal(json_string_length(json_object_get(j, "source_sha256")), 64);
    t = json_object_get(j, "targets");
    assert_true(json_real_value(json_object_get(t, "precision_lower_95")) == 0.85);
    assert_true(json_real_value(json_object_get(t, "minimum_coverage_or_f1")) == 0.2);
    t = json_object_get(json_object_get(j, "metrics"), "holdout");
    assert_int_equal(json_integer_value(json_object_get(t, "n")), 100);
    assert_int_equal(json_integer_value(json_object_get(t, "correct")), 95);
    t = json_object_get(j, "thresholds");
    assert_true(json_is_real(json_object_get(t, "min_similarity")) &&
                json_is_real(json_object_get(t, "min_margin")));
    json_decref(j);
    assert_int_equal(calibrate(in, out, "--minimum-f1", "0.5"), SUP_EXIT_USAGE); /* of mode multi */
    assert_int_equal(calibrate(dir, out, NULL, NULL), SUP_EXIT_FAIL);
    assert_int_equal(calibrate(in, dir, "--precision", "0.85"),
                     SUP_EXIT_FAIL); /* a folder stands there */
    snprintf(part, sizeof(part), "%s.partial", dir);
    assert_int_equal(access(part, F_OK), -1);
    unlink(out);
    unlink(in);
    rmdir(sub);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_is_wilsons),
        cmocka_unit_test(files_are_understood_or_refused_in_words),
        cmocka_unit_test(single_thresholds_and_near_misses),
        cmocka_unit_test(holdout_does_not_move_thresholds),
        cmocka_unit_test(ties_are_never_selected),
        cmocka_unit_test(multi_thresholds_and_near_misses),
        cmocka_unit_test(what_qualifies_holds_on_new_samples),
        cmocka_unit_test(the_command_writes_what_qualifies_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
