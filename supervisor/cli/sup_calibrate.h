/* sup_calibrate.h - thresholds of decisions, fitted to labelled scores and qualified on others.
 *
 * Scores are raw cosines and stay so: what is fitted are bounds on them. Pure: reads text, gives
 * numbers and text. Samples are in three parts: thresholds are fitted on `fit`, checked on
 * `validation`, and qualified on `holdout`, which nothing before has looked at.
 * Page: docs/decisions.md. Tests: tests/supervisor/test_sup_cli_calibrate.c,
 * tests/fuzz/fuzz_scores.c
 */
#ifndef INFERD_SUP_CALIBRATE_H
#define INFERD_SUP_CALIBRATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_SCORES_BYTES (64u << 20)
#define SUP_SCORES_LINE (64u << 10) /* of the form with one sample a line */
#define SUP_SAMPLES_MAX 100000u
#define SUP_LABELS_MAX 64u
#define SUP_FIT_LEAST 30u
#define SUP_VALIDATION_LEAST 30u
#define SUP_HOLDOUT_LEAST 100u
#define SUP_LABEL_LEAST 30u /* multi: positive and negative holdout samples of every label */

enum sup_split { SUP_FIT, SUP_VALIDATION, SUP_HOLDOUT, SUP_SPLITS };
extern const char *const sup_split_names[SUP_SPLITS];

struct sup_sample {
    char hash[65];
    enum sup_split split;
    uint64_t labels; /* bit i: label i is right; single: one bit or none (nothing fits) */
};

struct sup_scores {
    json_t *binding; /* as it was given, checked */
    bool multi;
    uint32_t n_labels;
    const char *label[SUP_LABELS_MAX]; /* borrowed from binding */
    struct sup_sample *sample;
    double *score; /* [n, n_labels] */
    size_t n, cap;
};

/* {"binding": {...}, "samples": [...]}, or the same in lines: {"binding": {...}} first, then one
 * sample a line. Errors: RC_INVALID names the sample and what was expected; RC_TOO_LARGE,
 * RC_NOMEM. */
enum rc sup_scores_read(struct sup_scores *out, const char *text, size_t n_bytes,
                        struct rc_err *err);
void sup_scores_deinit(struct sup_scores *s);

struct sup_targets {
    double precision; /* the least lower bound of accuracy (single) or of each label's precision */
    double minimum;   /* the least coverage (single) or F1 of each label (multi) */
};

/* Of one split, and of one label when multi (else all of them). */
struct sup_measure {
    uint32_t n;        /* samples */
    uint32_t positive; /* single: samples with a right label; multi: with this label */
    uint32_t accepted, correct;
    double lower_95; /* Wilson, of correct / accepted; 0 when nothing is accepted */
};
double sup_measure_precision(const struct sup_measure *m); /* 0 when nothing is accepted */
double sup_measure_f1(const struct sup_measure *m);
double sup_measure_coverage(const struct sup_measure *m);

struct sup_calibration {
    double min_similarity, min_margin;                /* single */
    double threshold[SUP_LABELS_MAX];                 /* multi */
    struct sup_measure m[SUP_SPLITS][SUP_LABELS_MAX]; /* [.][0] when single */
    bool qualified;
    struct rc_err why; /* not qualified: the first thing that was not met */
};

/* Lower end of the Wilson score interval at 95 %: of n, k succeeded. 0 for n = 0.
 * Source: Wilson 1927; z = 1.959963984540054. */
double sup_wilson_lower(uint32_t k, uint32_t n);
/* Fits and judges; *out is filled in any case. */
void sup_calibrate(const struct sup_scores *s, const struct sup_targets *t,
                   struct sup_calibration *out);
/* The artifact's JSON; caller frees; NULL = no memory. source_sha256: of the scores' text. */
char *sup_calibration_text(const struct sup_scores *s, const struct sup_targets *t,
                           const struct sup_calibration *c, const char *source_sha256);

#endif
