/* sup_calibrate.c - fitting thresholds, and whether what came of it may be used.
 *
 * Candidates of a threshold lie half way between two neighbouring scores of `fit`, at most
 * CANDIDATES of them, evenly by rank, and the threshold that accepts all. Of those that keep the
 * wanted coverage or F1 on `fit`, the one with the highest Wilson bound is taken: one that just
 * reached the target would be chosen for its luck and fail on new samples half of the time.
 * `validation` must then reach the targets as it stands, and `holdout` with its bound.
 * Change freely: how candidates are chosen. Never: what holdout may influence (nothing here but
 * `qualified`). Tests: tests/supervisor/test_sup_cli_calibrate.c
 */
#include "sup_calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES 48
#define TIE 1e-6 /* as the worker's: a margin not above it abstains */

double sup_wilson_lower(uint32_t k, uint32_t n)
{
    const double z = 1.959963984540054;
    double p, nn = n, low;

    if (n == 0)
        return 0;
    p = k / nn;
    low = (p + z * z / (2 * nn) - z * sqrt(p * (1 - p) / nn + z * z / (4 * nn * nn))) /
          (1 + z * z / nn);
    return low > 0 ? low : 0;
}

double sup_measure_precision(const struct sup_measure *m)
{
    return m->accepted ? (double)m->correct / m->accepted : 0;
}

double sup_measure_f1(const struct sup_measure *m)
{
    uint32_t all = m->accepted + m->positive;

    return all ? 2.0 * m->correct / all : 0;
}

double sup_measure_coverage(const struct sup_measure *m)
{
    return m->n ? (double)m->accepted / m->n : 0;
}

/* ------------------------------------------------------------------- measuring */

/* What a sample of mode single is about: its best score, and whether it is right. */
struct best {
    enum sup_split split;
    double similarity, margin;
    bool right, has_label;
};

static struct best best_of(const struct sup_scores *s, size_t i)
{
    const double *v = s->score + i * s->n_labels;
    struct best b = {.split = s->sample[i].split, .has_label = s->sample[i].labels != 0};
    uint32_t at = 0;
    double second = -1;

    for (uint32_t k = 1; k < s->n_labels; k++)
        at = v[k] > v[at] ? k : at;
    for (uint32_t k = 0; k < s->n_labels; k++)
        if (k != at && v[k] > second)
            second = v[k];
    b.similarity = v[at];
    b.margin = v[at] - second;
    b.right = s->sample[i].labels >> at & 1;
    return b;
}

static struct sup_measure measure_single(const struct best *b, size_t n, enum sup_split split,
                                         double similarity, double margin)
{
    struct sup_measure m = {0};

    for (size_t i = 0; i < n; i++) {
        if (b[i].split != split)
            continue;
        m.n++;
        m.positive += b[i].has_label;
        if (b[i].margin <= TIE || b[i].similarity < similarity || b[i].margin < margin)
            continue;
        m.accepted++;
        m.correct += b[i].right;
    }
    m.lower_95 = sup_wilson_lower(m.correct, m.accepted);
    return m;
}

static struct sup_measure measure_label(const struct sup_scores *s, uint32_t label,
                                        enum sup_split split, double threshold)
{
    struct sup_measure m = {0};

    for (size_t i = 0; i < s->n; i++) {
        bool right = s->sample[i].labels >> label & 1;

        if (s->sample[i].split != split)
            continue;
        m.n++;
        m.positive += right;
        if (s->score[i * s->n_labels + label] < threshold)
            continue;
        m.accepted++;
        m.correct += right;
    }
    m.lower_95 = sup_wilson_lower(m.correct, m.accepted);
    return m;
}

/* --------------------------------------------------------------------- fitting */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Thresholds to try for n values (sorted here): `all` accepts everything. */
static size_t candidates(double *v, size_t n, double all, double out[CANDIDATES])
{
    size_t distinct = 0, k = 1;

    qsort(v, n, sizeof(*v), ascending);
    for (size_t i = 0; i < n; i++)
        if (distinct == 0 || v[i] > v[distinct - 1])
            v[distinct++] = v[i];
    out[0] = all;
    for (size_t i = 1; i < CANDIDATES && distinct > 1; i++) {
        /* the gap above rank at */
        size_t at =
            distinct - 1 < CANDIDATES - 1 ? i - 1 : (i - 1) * (distinct - 1) / (CANDIDATES - 1);

        if (at + 1 >= distinct)
            break;
        out[k++] = v[at] + (v[at + 1] - v[at]) / 2;
    }
    return k;
}

/* Is x a better fit than the best so far? The bound first, then how much is accepted. */
static bool better(const struct sup_measure *x, const struct sup_measure *best)
{
    if (x->lower_95 != best->lower_95)
        return x->lower_95 > best->lower_95;
    return x->accepted > best->accepted;
}

static void fit_single(const struct best *b, size_t n, double *tmp, const struct sup_targets *t,
                       struct sup_calibration *c)
{
    double sims[CANDIDATES], margins[CANDIDATES];
    size_t n_fit = 0, n_sims, n_margins;
    struct sup_measure best = measure_single(b, n, SUP_FIT, -1, 0);

    for (size_t i = 0; i < n; i++)
        if (b[i].split == SUP_FIT)
            tmp[n_fit++] = b[i].similarity;
    n_sims = candidates(tmp, n_fit, -1, sims);
    n_fit = 0;
    for (size_t i = 0; i < n; i++)
        if (b[i].split == SUP_FIT)
            tmp[n_fit++] = b[i].margin;
    n_margins = candidates(tmp, n_fit, 0, margins);
    c->min_similarity = -1;
    c->min_margin = 0;
    for (size_t i = 0; i < n_sims; i++)
        for (size_t k = 0; k < n_margins; k++) {
            struct sup_measure m = measure_single(b, n, SUP_FIT, sims[i], margins[k]);

            if (sup_measure_coverage(&m) < t->minimum || !better(&m, &best))
                continue;
            best = m;
            c->min_similarity = sims[i];
            c->min_margin = margins[k];
        }
}

static double fit_label(const struct sup_scores *s, uint32_t label, double *tmp,
                        const struct sup_targets *t)
{
    struct sup_measure best = measure_label(s, label, SUP_FIT, -1);
    double tries[CANDIDATES], found = -1;
    size_t n_fit = 0, n;

    for (size_t i = 0; i < s->n; i++)
        if (s->sample[i].split == SUP_FIT)
            tmp[n_fit++] = s->score[i * s->n_labels + label];
    n = candidates(tmp, n_fit, -1, tries);
    for (size_t i = 0; i < n; i++) {
        struct sup_measure m = measure_label(s, label, SUP_FIT, tries[i]);

        if (sup_measure_f1(&m) < t->minimum || !better(&m, &best))
            continue;
        best = m;
        found = tries[i];
    }
    return found;
}

/* --------------------------------------------------------------------- judging */

static bool enough(const struct sup_measure *m, enum sup_split split, struct rc_err *why)
{
    static const uint32_t least[SUP_SPLITS] = {SUP_FIT_LEAST, SUP_VALIDATION_LEAST,
                                               SUP_HOLDOUT_LEAST};

    if (m->n >= least[split])
        return true;
    rc_fail(why, RC_INVALID, "%u %s samples, expected at least %u", m->n, sup_split_names[split],
            least[split]);
    return false;
}

/* of: "" or " of label 'x'". */
static bool reaches(double got, double want, const char *what, enum sup_split split, const char *of,
                    struct rc_err *why)
{
    if (got >= want)
        return true;
    rc_fail(why, RC_INVALID, "%s%s on %s is %.4f, expected at least %.4f", what, of,
            sup_split_names[split], got, want);
    return false;
}

static bool judge_single(const struct sup_targets *t, struct sup_calibration *c)
{
    for (int i = 0; i < SUP_SPLITS; i++)
        if (!enough(&c->m[i][0], (enum sup_split)i, &c->why))
            return false;
    return reaches(sup_measure_coverage(&c->m[SUP_FIT][0]), t->minimum, "coverage", SUP_FIT, "",
                   &c->why) &&
           reaches(sup_measure_precision(&c->m[SUP_VALIDATION][0]), t->precision,
                   "accuracy of what is selected", SUP_VALIDATION, "", &c->why) &&
           reaches(sup_measure_coverage(&c->m[SUP_VALIDATION][0]), t->minimum, "coverage",
                   SUP_VALIDATION, "", &c->why) &&
           reaches(c->m[SUP_HOLDOUT][0].lower_95, t->precision,
                   "the Wilson 95 % lower bound of accuracy", SUP_HOLDOUT, "", &c->why) &&
           reaches(sup_measure_coverage(&c->m[SUP_HOLDOUT][0]), t->minimum, "coverage", SUP_HOLDOUT,
                   "", &c->why);
}

static bool judge_label(const struct sup_targets *t, const char *label, uint32_t i,
                        struct sup_calibration *c)
{
    const struct sup_measure *v = &c->m[SUP_VALIDATION][i], *h = &c->m[SUP_HOLDOUT][i];
    char of[128];

    snprintf(of, sizeof(of), " of label '%.80s'", label);
    if (h->positive < SUP_LABEL_LEAST || h->n - h->positive < SUP_LABEL_LEAST) {
        rc_fail(&c->why, RC_INVALID,
                "holdout has %u positive and %u negative samples%s, expected at least %u of each",
                h->positive, h->n - h->positive, of, SUP_LABEL_LEAST);
        return false;
    }
    return reaches(sup_measure_precision(v), t->precision, "precision", SUP_VALIDATION, of,
                   &c->why) &&
           reaches(sup_measure_f1(v), t->minimum, "F1", SUP_VALIDATION, of, &c->why) &&
           reaches(h->lower_95, t->precision, "the Wilson 95 % lower bound of precision",
                   SUP_HOLDOUT, of, &c->why) &&
           reaches(sup_measure_f1(h), t->minimum, "F1", SUP_HOLDOUT, of, &c->why);
}

static bool judge_multi(const struct sup_scores *s, const struct sup_targets *t,
                        struct sup_calibration *c)
{
    for (int i = 0; i < SUP_SPLITS; i++)
        if (!enough(&c->m[i][0], (enum sup_split)i, &c->why))
            return false;
    for (uint32_t i = 0; i < s->n_labels; i++)
        if (!judge_label(t, s->label[i], i, c))
            return false;
    return true;
}

void sup_calibrate(const struct sup_scores *s, const struct sup_targets *t,
                   struct sup_calibration *c)
{
    struct best *b = malloc((s->n + 1) * sizeof(*b));
    double *tmp = malloc((s->n + 1) * sizeof(*tmp));

    memset(c, 0, sizeof(*c));
    c->why = RC_ERR_INIT;
    if (!b || !tmp) {
        rc_fail(&c->why, RC_NOMEM, "out of memory for %zu samples", s->n);
    } else if (s->multi) {
        for (uint32_t i = 0; i < s->n_labels; i++) {
            c->threshold[i] = fit_label(s, i, tmp, t);
            for (int k = 0; k < SUP_SPLITS; k++)
                c->m[k][i] = measure_label(s, i, (enum sup_split)k, c->threshold[i]);
        }
        c->qualified = judge_multi(s, t, c);
    } else {
        for (size_t i = 0; i < s->n; i++)
            b[i] = best_of(s, i);
        fit_single(b, s->n, tmp, t, c);
        for (int k = 0; k < SUP_SPLITS; k++)
            c->m[k][0] =
                measure_single(b, s->n, (enum sup_split)k, c->min_similarity, c->min_margin);
        c->qualified = judge_single(t, c);
    }
    free(b);
    free(tmp);
}

/* --------------------------------------------------------------------- writing */

static json_t *measure_json(const struct sup_measure *m, bool multi)
{
    if (multi)
        return json_pack("{s:i,s:i,s:i,s:i,s:f,s:f,s:f}", "n", (int)m->n, "positive",
                         (int)m->positive, "accepted", (int)m->accepted, "correct", (int)m->correct,
                         "precision", sup_measure_precision(m), "precision_lower_95", m->lower_95,
                         "f1", sup_measure_f1(m));
    return json_pack("{s:i,s:i,s:i,s:f,s:f,s:f}", "n", (int)m->n, "selected", (int)m->accepted,
                     "correct", (int)m->correct, "coverage", sup_measure_coverage(m), "accuracy",
                     sup_measure_precision(m), "accuracy_lower_95", m->lower_95);
}

static json_t *split_json(const struct sup_scores *s, const struct sup_measure *m)
{
    json_t *o;

    if (!s->multi)
        return measure_json(m, false);
    o = json_object();
    for (uint32_t i = 0; i < s->n_labels; i++)
        json_object_set_new(o, s->label[i], measure_json(&m[i], true));
    return o;
}

static json_t *thresholds_json(const struct sup_scores *s, const struct sup_calibration *c)
{
    json_t *map;

    if (!s->multi)
        return json_pack("{s:f,s:f}", "min_similarity", c->min_similarity, "min_margin",
                         c->min_margin);
    map = json_object();
    for (uint32_t i = 0; i < s->n_labels; i++)
        json_object_set_new(map, s->label[i], json_real(c->threshold[i]));
    return json_pack("{s:o}", "similarity_thresholds", map);
}

char *sup_calibration_text(const struct sup_scores *s, const struct sup_targets *t,
                           const struct sup_calibration *c, const char *source_sha256)
{
    json_t *o = json_pack(
        "{s:i,s:s,s:O,s:b,s:o,s:{s:o,s:o,s:o},s:{s:f,s:f},s:s}", "version", 1, "method",
        "heldout-abstention-v1", "binding", s->binding, "qualified", (int)c->qualified,
        "thresholds", thresholds_json(s, c), "metrics", "fit", split_json(s, c->m[SUP_FIT]),
        "validation", split_json(s, c->m[SUP_VALIDATION]), "holdout",
        split_json(s, c->m[SUP_HOLDOUT]), "targets", "precision_lower_95", t->precision,
        "minimum_coverage_or_f1", t->minimum, "source_sha256", source_sha256);
    char *json = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL, *text = NULL;

    if (json && asprintf(&text, "%s\n", json) < 0)
        text = NULL;
    free(json);
    json_decref(o);
    return text;
}
