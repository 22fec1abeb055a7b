/* sup_cmd_calibrate.c - `inferd calibrate`: labelled scores to a calibration artifact, or why not.
 *
 * Always true: an artifact that stands at its place is whole and qualified; what does not qualify
 * leaves nothing behind and ends with status 1. Tests: tests/supervisor/test_sup_cli_calibrate.c,
 * tests/e2e/decisions.py
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <sodium.h>

#include "sup_calibrate.h"
#include "sup_cli.h"
#include "sup_file.h"
#include "sup_term.h"

enum { O_PRECISION, O_COVERAGE, O_F1 };

const struct sup_opt sup_opts_calibrate[] = {
    {"precision", SUP_O_REAL, "X", "least Wilson 95 % lower bound on holdout (default 0.9)", 0, 1},
    {"minimum-coverage", SUP_O_REAL, "X", "least share of inputs decided, one label (default 0.2)",
     0, 1},
    {"minimum-f1", SUP_O_REAL, "X", "least F1 of every label, several labels (default 0.5)", 0, 1},
    {0},
};

/* ---------------------------------------------------------------------- showing */

static void show_row(FILE *to, const char *split, const char *label, const struct sup_measure *m,
                     bool multi)
{
    fprintf(to, "  %-11s", split);
    if (label)
        sup_print_clean(to, label, false);
    if (multi)
        fprintf(to, ": %u of %u accepted, %u right, %u should be; lower bound %.4f, F1 %.4f\n",
                m->accepted, m->n, m->correct, m->positive, m->lower_95, sup_measure_f1(m));
    else
        fprintf(to, "%u of %u decided (%.4f), %u right (%.4f); lower bound %.4f\n", m->accepted,
                m->n, sup_measure_coverage(m), m->correct, sup_measure_precision(m), m->lower_95);
}

static void show(FILE *to, const struct sup_scores *s, const struct sup_calibration *c)
{
    if (!s->multi)
        fprintf(to, "min_similarity %.6f, min_margin %.6f\n", c->min_similarity, c->min_margin);
    for (uint32_t i = 0; s->multi && i < s->n_labels; i++) {
        fprintf(to, "%s", i ? ", " : "thresholds: ");
        sup_print_clean(to, s->label[i], false);
        fprintf(to, " %.6f%s", c->threshold[i], i + 1 == s->n_labels ? "\n" : "");
    }
    for (int k = 0; k < SUP_SPLITS; k++)
        for (uint32_t i = 0; i < (s->multi ? s->n_labels : 1); i++)
            show_row(to, sup_split_names[k], s->multi ? s->label[i] : NULL, &c->m[k][i], s->multi);
}

/* ---------------------------------------------------------------------- writing */

/* The folder of path, when only it is missing: calibrations/ of a model that had none. */
static enum rc make_folder(const char *path, struct rc_err *err)
{
    const char *slash = strrchr(path, '/');
    char dir[4096];

    if (!slash || slash == path)
        return RC_OK;
    snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
    if (mkdir(dir, 0755) == 0 || errno == EEXIST)
        return RC_OK;
    return rc_fail(err, RC_IO, "folder '%.300s': %s", dir, strerror(errno));
}

/* ---------------------------------------------------------------------- running */

static enum rc run(const struct sup_args *a, const struct sup_scores *s,
                   const struct sup_targets *t, const char *source, struct rc_err *err)
{
    struct sup_calibration *c = malloc(sizeof(*c));
    char *text = NULL;
    enum rc rc;

    if (!c)
        return rc_fail(err, RC_NOMEM, "out of memory");
    sup_calibrate(s, t, c);
    if (c->why.code != RC_NOMEM)
        show(stderr, s, c);
    if (!c->qualified) {
        rc = rc_fail(err, c->why.code, "not qualified, nothing is written: %s", c->why.msg);
    } else if (!(text = sup_calibration_text(s, t, c, source))) {
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    } else if ((rc = make_folder(a->pos[1], err)) == RC_OK &&
               (rc = sup_file_write(a->pos[1], text, strlen(text), 0644, err)) == RC_OK) {
        fprintf(stderr, "qualified: ");
        sup_print_clean(stderr, a->pos[1], false);
        putc('\n', stderr);
    }
    free(text);
    free(c);
    return rc;
}

int sup_cmd_calibrate(const struct sup_args *a)
{
    struct sup_targets t = {.precision = a->v[O_PRECISION].set ? a->v[O_PRECISION].num : 0.9};
    struct rc_err err = RC_ERR_INIT;
    struct sup_scores s = {0};
    unsigned char sum[crypto_hash_sha256_BYTES];
    char *text = NULL, hex[2 * sizeof(sum) + 1];
    size_t n = 0;
    enum rc rc;

    rc = sup_file_read(a->pos[0], SUP_SCORES_BYTES, true, &text, &n, &err);
    if (rc == RC_OK && (rc = sup_scores_read(&s, text, n, &err)) != RC_OK)
        rc_wrap(&err, "'%.200s'", a->pos[0]);
    if (rc == RC_OK && a->v[s.multi ? O_COVERAGE : O_F1].set) {
        bool multi = s.multi;

        sup_scores_deinit(&s);
        free(text);
        return sup_usage_error(a->cmd, multi ? "--minimum-coverage is for mode single"
                                             : "--minimum-f1 is for mode multi");
    }
    if (rc == RC_OK) {
        t.minimum = a->v[O_COVERAGE].set ? a->v[O_COVERAGE].num
                    : a->v[O_F1].set     ? a->v[O_F1].num
                    : s.multi            ? 0.5
                                         : 0.2;
        crypto_hash_sha256(sum, (const unsigned char *)text, n);
        sodium_bin2hex(hex, sizeof(hex), sum, sizeof(sum));
        rc = run(a, &s, &t, hex, &err);
    }
    sup_scores_deinit(&s);
    free(text);
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}
