/* wrk_decide_calib.c - calibration artifacts: calibrations/ID.json in the model's folder.
 *
 * Read anew for every question that names one (it is small), so a file that was replaced counts
 * at once. An artifact is believed only if it is qualified and was made for exactly this: model,
 * renderer, task, dimensions, prototypes, labels in order, kind of question. Anything else is the
 * request's fault and is said in words. Landlock lets the worker read below its model alone;
 * O_NOFOLLOW keeps links out of it too. Tests: tests/worker/test_wrk_decide_rule.c,
 * tests/fuzz/fuzz_calibration.c
 */
#include "wrk_decide.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#define WHAT "calibration_id"
#define QUOTED 64u
#define METHOD "heldout-abstention-v1"

static bool id_ok(const char *id)
{
    size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");

    return n >= 1 && n <= IPC_CALIBRATION_ID_MAX && id[n] == '\0';
}

static enum rc bad(struct rc_err *err, const char *id, const char *what)
{
    return rc_fail_what(err, RC_INVALID, WHAT, "calibration '%.64s': %s", id, what);
}

/* Bytes of a text that a message quotes: at most QUOTED, whole characters. */
static int quoted(const char *s)
{
    size_t n = strnlen(s, QUOTED + 1);

    if (n > QUOTED)
        for (n = QUOTED; n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80; n--)
            ;
    return (int)n;
}

static enum rc stale(struct rc_err *err, const char *id, const char *what, const char *got,
                     const char *want)
{
    return rc_fail_what(err, RC_INVALID, WHAT,
                        "calibration '%.64s' was made for another %s: \"%.*s\", this question has "
                        "\"%.*s\"",
                        id, what, quoted(got), got, quoted(want), want);
}

static enum rc same_text(const json_t *binding, const char *key, const char *what, const char *want,
                         const char *id, struct rc_err *err)
{
    const char *got = json_string_value(json_object_get(binding, key));

    if (got == NULL)
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s': 'binding.%s' is missing or no text", id, key);
    return strcmp(got, want) == 0 ? RC_OK : stale(err, id, what, got, want);
}

static bool same_bytes(const json_t *j, ProtobufCBinaryData want)
{
    return json_is_string(j) && json_string_length(j) == want.len &&
           memcmp(json_string_value(j), want.data, want.len) == 0;
}

static enum rc same_labels(const json_t *list, const Ipc__DecideQuestion *q, const char *id,
                           struct rc_err *err)
{
    if (!json_is_array(list))
        return bad(err, id, "'binding.labels' is missing or no list");
    if (json_array_size(list) != q->n_choices)
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s' was made for %zu labels, this question has %zu "
                            "choices",
                            id, json_array_size(list), q->n_choices);
    for (size_t i = 0; i < q->n_choices; i++)
        if (!same_bytes(json_array_get(list, i), q->choices[i]->value))
            return rc_fail_what(err, RC_INVALID, WHAT,
                                "calibration '%.64s': label %zu is another than the question's "
                                "choice at that place",
                                id, i);
    return RC_OK;
}

static enum rc check_binding(const json_t *j, const char *id, const struct wrk_binding *b,
                             struct rc_err *err)
{
    char hash[2 * WRK_SET_HASH_BYTES + 1];
    const json_t *dims = json_object_get(j, "dimensions");
    enum rc rc;

    if (!json_is_object(j))
        return bad(err, id, "'binding' is missing or no object");
    sodium_bin2hex(hash, sizeof(hash), b->set_hash, WRK_SET_HASH_BYTES);
    if ((rc = same_text(j, "model_identity", "model identity", b->model_identity, id, err)) ||
        (rc = same_text(j, "renderer_version", "renderer", IPC_DECIDE_RENDERER, id, err)) ||
        (rc = same_text(j, "task_type", "task type", b->task_type, id, err)) ||
        (rc = same_text(j, "mode", "kind of question",
                        b->question->kind == WRK_MULTI ? "multi" : "single", id, err)))
        return rc;
    if (!json_is_integer(dims) || json_integer_value(dims) != b->dimensions)
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s' was made for %lld dimensions, this request has %u",
                            id, (long long)json_integer_value(dims), b->dimensions);
    if ((rc = same_labels(json_object_get(j, "labels"), b->question, id, err)) != RC_OK)
        return rc;
    return same_text(j, "prototype_set_hash", "set of prototypes (its hash)", hash, id, err);
}

static enum rc bound(const json_t *o, const char *key, double least, double most, const char *id,
                     double *out, struct rc_err *err)
{
    const json_t *j = json_object_get(o, key);
    double v = json_number_value(j);

    if (!json_is_number(j) || !(v >= least && v <= most))
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s': threshold '%.*s' is missing or outside %g to %g",
                            id, quoted(key), key, least, most);
    *out = v;
    return RC_OK;
}

static enum rc read_thresholds(const json_t *t, const char *id, const Ipc__DecideQuestion *q,
                               struct wrk_accept *a, struct rc_err *err)
{
    const json_t *map = json_object_get(t, "similarity_thresholds");
    enum rc rc = RC_OK;

    if (!json_is_object(t))
        return bad(err, id, "'thresholds' is missing or no object");
    if (q->kind == WRK_CHOICE) {
        if ((rc = bound(t, "min_similarity", -1, 1, id, &a->min_similarity, err)) != RC_OK ||
            (rc = bound(t, "min_margin", 0, 2, id, &a->min_margin, err)) != RC_OK)
            return rc;
        a->has_min_similarity = a->has_min_margin = true;
        return RC_OK;
    }
    if (!json_is_object(map) || json_object_size(map) != q->n_choices)
        return bad(err, id, "'thresholds.similarity_thresholds' has not one for each label");
    for (size_t i = 0; i < q->n_choices && rc == RC_OK; i++) {
        ProtobufCBinaryData v = q->choices[i]->value;
        char *key = strndup((const char *)v.data, v.len);

        if (key == NULL)
            return rc_fail(err, RC_NOMEM, "a label");
        rc = bound(map, key, -1, 1, id, &a->threshold[i], err);
        free(key);
    }
    return rc;
}

static enum rc check(const json_t *j, const char *id, const struct wrk_binding *b,
                     struct wrk_accept *out, struct rc_err *err)
{
    const char *method = json_string_value(json_object_get(j, "method"));
    const json_t *version = json_object_get(j, "version");
    struct wrk_accept a;
    enum rc rc;

    memset(&a, 0, sizeof(a));
    if (!json_is_object(j) || !json_is_integer(version) || json_integer_value(version) != 1 ||
        method == NULL || strcmp(method, METHOD) != 0)
        return bad(err, id, "not an artifact of version 1, method \"" METHOD "\"");
    if (!json_is_true(json_object_get(j, "qualified")))
        return bad(err, id, "it is not qualified (see inferd calibrate)");
    if (b->model_identity[0] == '\0')
        return bad(err, id, "the model's identity is not known, so nothing can be bound to it");
    if ((rc = check_binding(json_object_get(j, "binding"), id, b, err)) != RC_OK ||
        (rc = read_thresholds(json_object_get(j, "thresholds"), id, b->question, &a, err)) != RC_OK)
        return rc;
    *out = a;
    return RC_OK;
}

enum rc wrk_calibration_parse(const char *text, size_t n, const char *id,
                              const struct wrk_binding *b, struct wrk_accept *out,
                              struct rc_err *err)
{
    json_error_t why;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    enum rc rc;

    if (j == NULL)
        /* not the parser's words: they quote bytes of the file */
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s': no JSON object: line %d, column %d", id, why.line,
                            why.column);
    rc = check(j, id, b, out, err);
    json_decref(j);
    return rc;
}

/* All of fd, at most WRK_CALIBRATION_BYTES. */
static enum rc slurp(int fd, const char *id, char **out, size_t *n, struct rc_err *err)
{
    struct stat st;
    char *p;
    size_t at = 0;
    ssize_t got = 1;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return bad(err, id, "not a file");
    if (st.st_size > (off_t)WRK_CALIBRATION_BYTES)
        return rc_fail_what(err, RC_INVALID, WHAT, "calibration '%.64s': %lld bytes, at most %u",
                            id, (long long)st.st_size, WRK_CALIBRATION_BYTES);
    if ((p = malloc((size_t)st.st_size + 1)) == NULL)
        return rc_fail(err, RC_NOMEM, "an artifact of %lld bytes", (long long)st.st_size);
    while (at < (size_t)st.st_size && (got = read(fd, p + at, (size_t)st.st_size - at)) > 0)
        at += (size_t)got;
    if (got < 0) {
        free(p);
        return bad(err, id, "it cannot be read");
    }
    *out = p;
    *n = at;
    return RC_OK;
}

enum rc wrk_calibration_read(int root_fd, const char *id, const struct wrk_binding *b,
                             struct wrk_accept *out, struct rc_err *err)
{
    char path[sizeof(IPC_CALIBRATIONS_DIR) + IPC_CALIBRATION_ID_MAX + 8], *text = NULL;
    struct stat st;
    size_t n = 0;
    enum rc rc;
    int fd;

    if (!id_ok(id))
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration_id: expected 1 to %u letters, digits, '_' and '-'",
                            IPC_CALIBRATION_ID_MAX);
    /* a sandboxed worker whose model is one file has no openat to ask with */
    if (root_fd < 0 || fstat(root_fd, &st) != 0 || !S_ISDIR(st.st_mode))
        return bad(err, id, "this model is a single file and has no folder for calibrations");
    snprintf(path, sizeof(path), "%s/%s.json", IPC_CALIBRATIONS_DIR, id);
    if ((fd = openat(root_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0)
        return rc_fail_what(err, RC_INVALID, WHAT,
                            "calibration '%.64s': '%s' in the model's folder cannot be opened (%s)",
                            id, path, strerror(errno));
    rc = slurp(fd, id, &text, &n, err);
    close(fd);
    if (rc == RC_OK)
        rc = wrk_calibration_parse(text, n, id, b, out, err);
    free(text);
    return rc;
}
