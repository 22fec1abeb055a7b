/* sup_scores.c - labelled scores: a binding and samples, from JSON, checked (sup_calibrate.h).
 *
 * Nothing is guessed: a sample that is not understood refuses the file and is named. A state
 * counts once, in one split: the same one on both sides would qualify what it fitted.
 * Tests: tests/supervisor/test_sup_cli_calibrate.c, tests/fuzz/fuzz_scores.c
 */
#include "sup_calibrate.h"

#include <stdlib.h>
#include <string.h>

const char *const sup_split_names[SUP_SPLITS] = {"fit", "validation", "holdout"};

static bool hex64(const json_t *j)
{
    const char *s = json_string_value(j);

    return s && strspn(s, "0123456789abcdef") == 64 && s[64] == '\0';
}

static enum rc bad(struct rc_err *err, const char *what, const char *expected)
{
    return rc_fail_what(err, RC_INVALID, what, "'%s': expected %s", what, expected);
}

static enum rc read_binding(struct sup_scores *s, json_t *b, struct rc_err *err)
{
    json_t *labels = json_object_get(b, "labels"), *dims = json_object_get(b, "dimensions");
    const char *mode = json_string_value(json_object_get(b, "mode"));

    if (!json_is_object(b))
        return bad(err, "binding", "an object, before the samples");
    if (!hex64(json_object_get(b, "model_identity")))
        return bad(err, "binding.model_identity", "64 lowercase hexadecimal digits");
    if (!hex64(json_object_get(b, "prototype_set_hash")))
        return bad(err, "binding.prototype_set_hash", "64 lowercase hexadecimal digits");
    if (json_string_length(json_object_get(b, "renderer_version")) == 0)
        return bad(err, "binding.renderer_version", "the renderer's name");
    if (json_string_length(json_object_get(b, "task_type")) == 0)
        return bad(err, "binding.task_type", "the task type's name");
    if (!json_is_integer(dims) || json_integer_value(dims) < 1 || json_integer_value(dims) > 65536)
        return bad(err, "binding.dimensions", "an integer from 1 to 65536");
    if (!mode || (strcmp(mode, "single") != 0 && strcmp(mode, "multi") != 0))
        return bad(err, "binding.mode", "\"single\" or \"multi\"");
    s->multi = strcmp(mode, "multi") == 0;
    if (json_array_size(labels) < 2 || json_array_size(labels) > SUP_LABELS_MAX)
        return bad(err, "binding.labels", "an array of 2 to 64 labels");
    s->n_labels = (uint32_t)json_array_size(labels);
    for (uint32_t i = 0; i < s->n_labels; i++) {
        json_t *j = json_array_get(labels, i);

        if (json_string_length(j) == 0)
            return bad(err, "binding.labels", "non-empty strings");
        s->label[i] = json_string_value(j);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(s->label[k], s->label[i]) == 0)
                return bad(err, "binding.labels", "each label once");
    }
    s->binding = json_incref(b);
    return RC_OK;
}

static enum rc read_labels(const struct sup_scores *s, json_t *list, struct sup_sample *out,
                           struct rc_err *err)
{
    json_t *j;
    size_t i;

    if (!json_is_array(list))
        return bad(err, "labels", "an array of the right labels (empty: none fits)");
    json_array_foreach(list, i, j)
    {
        uint32_t k = 0;

        while (json_is_string(j) && k < s->n_labels && strcmp(s->label[k], json_string_value(j)))
            k++;
        if (!json_is_string(j) || k == s->n_labels)
            return bad(err, "labels", "labels of the binding only");
        if (out->labels >> k & 1)
            return bad(err, "labels", "each label once");
        out->labels |= 1ull << k;
    }
    if (!s->multi && json_array_size(list) > 1)
        return bad(err, "labels", "at most one label in mode single");
    return RC_OK;
}

static enum rc grow(struct sup_scores *s, struct rc_err *err)
{
    size_t cap = s->cap ? s->cap * 2 : 256;
    struct sup_sample *sample;
    double *score;

    if (s->n == SUP_SAMPLES_MAX)
        return rc_fail(err, RC_TOO_LARGE, "more than %u samples", SUP_SAMPLES_MAX);
    if (s->n < s->cap)
        return RC_OK;
    if ((sample = realloc(s->sample, cap * sizeof(*sample))))
        s->sample = sample;
    if ((score = realloc(s->score, cap * s->n_labels * sizeof(*score))))
        s->score = score;
    if (!sample || !score)
        return rc_fail(err, RC_NOMEM, "out of memory for %zu samples", cap);
    s->cap = cap;
    return RC_OK;
}

static enum rc read_sample(struct sup_scores *s, json_t *o, struct rc_err *err)
{
    json_t *scores = json_object_get(o, "scores");
    const char *split = json_string_value(json_object_get(o, "split"));
    struct sup_sample *x;
    int k = 0;
    enum rc rc = grow(s, err);

    if (rc != RC_OK)
        return rc;
    x = &s->sample[s->n];
    memset(x, 0, sizeof(*x));
    if (!json_is_object(o))
        return bad(err, "sample", "an object");
    if (!hex64(json_object_get(o, "state_sha256")))
        return bad(err, "state_sha256", "64 lowercase hexadecimal digits");
    memcpy(x->hash, json_string_value(json_object_get(o, "state_sha256")), sizeof(x->hash));
    while (split && k < SUP_SPLITS && strcmp(sup_split_names[k], split) != 0)
        k++;
    if (!split || k == SUP_SPLITS)
        return bad(err, "split", "\"fit\", \"validation\" or \"holdout\"");
    x->split = (enum sup_split)k;
    if (json_array_size(scores) != s->n_labels)
        return bad(err, "scores", "an array of one number for each label");
    for (uint32_t i = 0; i < s->n_labels; i++) {
        json_t *j = json_array_get(scores, i);
        double v = json_number_value(j);

        if (!json_is_number(j) || !(v >= -1 && v <= 1))
            return bad(err, "scores", "numbers from -1 to 1");
        s->score[s->n * s->n_labels + i] = v;
    }
    if ((rc = read_labels(s, json_object_get(o, "labels"), x, err)) == RC_OK)
        s->n++;
    return rc;
}

static int by_hash(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum rc check_once(const struct sup_scores *s, struct rc_err *err)
{
    const char **h = malloc((s->n + 1) * sizeof(*h));
    enum rc rc = RC_OK;

    if (!h)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; i < s->n; i++)
        h[i] = s->sample[i].hash;
    qsort(h, s->n, sizeof(*h), by_hash);
    for (size_t i = 1; i < s->n && rc == RC_OK; i++)
        if (strcmp(h[i], h[i - 1]) == 0)
            rc = rc_fail_what(err, RC_INVALID, "state_sha256",
                              "state %.16s...: in the file twice, expected each state once, in one "
                              "split",
                              h[i]);
    free(h);
    return rc;
}

static json_t *parse(const char *text, size_t n, struct rc_err *err)
{
    json_error_t why;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);

    if (!j)
        rc_fail(err, RC_INVALID, "no JSON: line %d, column %d: %.120s", why.line, why.column,
                why.text);
    return j;
}

static enum rc read_object(struct sup_scores *s, json_t *o, struct rc_err *err)
{
    json_t *list = json_object_get(o, "samples"), *j;
    enum rc rc = read_binding(s, json_object_get(o, "binding"), err);
    size_t i;

    if (rc == RC_OK && !json_is_array(list))
        rc = bad(err, "samples", "an array of samples");
    if (rc != RC_OK)
        return rc;
    json_array_foreach(list, i, j)
    {
        if ((rc = read_sample(s, j, err)) != RC_OK) {
            rc_wrap(err, "sample %zu", i);
            return rc;
        }
    }
    return RC_OK;
}

static bool blank(const char *s, size_t n)
{
    while (n > 0 && (*s == ' ' || *s == '\t' || *s == '\r')) {
        s++;
        n--;
    }
    return n == 0;
}

/* One JSON value a line; empty lines count for nothing. */
static enum rc read_lines(struct sup_scores *s, const char *text, size_t n, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (size_t at = 0, line = 1; at < n && rc == RC_OK; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        json_t *j = NULL;

        if (len > SUP_SCORES_LINE)
            rc = rc_fail(err, RC_TOO_LARGE, "%zu bytes, at most %u", len, SUP_SCORES_LINE);
        else if (!blank(text + at, len) && !(j = parse(text + at, len, err)))
            rc = RC_INVALID;
        if (j && !s->binding)
            rc = read_binding(s, json_object_get(j, "binding"), err);
        else if (j)
            rc = read_sample(s, j, err);
        if (rc != RC_OK)
            rc_wrap(err, "line %zu", line);
        json_decref(j);
        at += len + 1;
    }
    return rc;
}

/* Is the first line a JSON value of its own? Then it is the form of lines. */
static bool has_lines(const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    json_t *j = end ? parse(text, (size_t)(end - text), NULL) : NULL;
    bool lines = j && json_object_get(j, "binding") && !json_object_get(j, "samples");

    json_decref(j);
    return lines;
}

enum rc sup_scores_read(struct sup_scores *out, const char *text, size_t n, struct rc_err *err)
{
    struct sup_scores s = {0};
    json_t *o = NULL;
    enum rc rc;

    if (n > SUP_SCORES_BYTES)
        return rc_fail(err, RC_TOO_LARGE, "%zu bytes, at most %u", n, SUP_SCORES_BYTES);
    if (has_lines(text, n))
        rc = read_lines(&s, text, n, err);
    else
        rc = (o = parse(text, n, err)) ? read_object(&s, o, err) : RC_INVALID;
    if (rc == RC_OK)
        rc = check_once(&s, err);
    json_decref(o);
    if (rc == RC_OK)
        *out = s;
    else
        sup_scores_deinit(&s);
    return rc;
}

void sup_scores_deinit(struct sup_scores *s)
{
    json_decref(s->binding);
    free(s->sample);
    free(s->score);
    memset(s, 0, sizeof(*s));
}
