/* sup_decisions_ask.c - the questions of a decision request, checked, into a frame.
 *
 * Texts are borrowed from the tree: the frame is packed before it goes.
 * Tests: tests/supervisor/test_sup_api_decisions.c
 */
#include <stdio.h>
#include <string.h>

#include "ipc.h"
#include "sup_decisions.h"

#define THRESHOLDS_WANT "a number from -1 to 1, or an object with one for every value"

#define QUESTION_FIELDS(X)                                                         \
    X(Q_TYPE, "type", ENUM, true, 0, 0, 0, "choice|multi_choice|score|predicate")  \
    X(Q_NAME, "name", STR, true, 1, 65536, 0, NULL)                                \
    X(Q_INSTRUCTIONS, "instructions", STR, true, 1, 1048576, 0, NULL)              \
    X(Q_CHOICES, "choices", ANY, false, 0, 0, 0, "an array of 2 to 64 choices")    \
    X(Q_OPTIONS, "embedding_options", OBJECT, false, 0, 0, 0, NULL)                \
    X(Q_THRESHOLDS, "similarity_thresholds", ANY, false, 0, 0, 0, THRESHOLDS_WANT) \
    X(Q_LEVELS, "levels", ANY, false, 0, 0, 0, NULL)

#define ACCEPT_FIELDS(X)                                          \
    X(A_SIMILARITY, "min_similarity", NUM, false, -1, 1, 0, NULL) \
    X(A_MARGIN, "min_margin", NUM, false, 0, 2, 0, NULL)          \
    X(A_CALIBRATION, "calibration_id", STR, false, 1, 64, 0, NULL)

#define CHOICE_FIELDS(X)                                             \
    X(C_VALUE, "value", STR, true, 1, 65536, 0, NULL)                \
    X(C_DESCRIPTION, "description", STR, false, 0, 1048576, 0, NULL) \
    X(C_EXAMPLES, "examples", ANY, false, 0, 0, 0, "an array of 1 to 32 non-empty strings")

enum { QUESTION_FIELDS(SUP_FIELD_ID) Q_N };
enum { ACCEPT_FIELDS(SUP_FIELD_ID) A_N };
enum { CHOICE_FIELDS(SUP_FIELD_ID) C_N };
static const struct sup_field of_question[Q_N] = {QUESTION_FIELDS(SUP_FIELD_ROW)},
                              of_accept[A_N] = {ACCEPT_FIELDS(SUP_FIELD_ROW)},
                              of_choice[C_N] = {CHOICE_FIELDS(SUP_FIELD_ROW)};

static ProtobufCBinaryData borrowed(const char *s, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)s};
}

/* prefix ends with the dot for the names inside. */
static bool no_object(struct sup_fail *f, const char *prefix, const json_t *got, const char *want)
{
    char name[96];

    snprintf(name, sizeof(name), "%.*s", (int)strlen(prefix) - 1, prefix);
    sup_field_bad(f, name, got, want);
    return false;
}

static bool refuse(struct sup_fail *f, const char *field, const char *why)
{
    sup_fail_set(f, SUP_E_INVALID_REQUEST, field, "field '%s': %s", field, why);
    return false;
}

/* -------------------------------------------------------------------- choices */

static bool read_examples(struct sup_call *c, json_t *list, const char *prefix,
                          Ipc__DecideChoice *out, struct sup_fail *f)
{
    size_t n = json_array_size(list);
    char name[128];

    snprintf(name, sizeof(name), "%sexamples", prefix);
    if (n < 1 || n > IPC_DECIDE_EXAMPLES) {
        sup_field_bad(f, name, list, of_choice[C_EXAMPLES].words);
        return false;
    }
    if (!(out->examples = sup_call_alloc(c, n * sizeof(*out->examples))))
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_array_get(list, i);

        if (!json_is_string(j) || json_string_length(j) == 0) {
            snprintf(name, sizeof(name), "%sexamples[%zu]", prefix, i);
            sup_field_bad(f, name, j, "a non-empty string");
            return false;
        }
        out->examples[out->n_examples++] = borrowed(json_string_value(j), json_string_length(j));
    }
    return true;
}

static bool read_choice(struct sup_call *c, json_t *j, const char *prefix, Ipc__DecideChoice *out,
                        struct sup_fail *f)
{
    struct sup_val v[C_N];

    if (!json_is_object(j))
        return no_object(f, prefix, j, "an object {\"value\", \"description\"?, \"examples\"?}");
    if (!sup_fields_known(of_choice, C_N, NULL, j, prefix, f) ||
        !sup_fields_read(of_choice, C_N, j, prefix, v, f))
        return false;
    ipc__decide_choice__init(out);
    out->value = borrowed(v[C_VALUE].s, v[C_VALUE].n_bytes);
    if (v[C_DESCRIPTION].set)
        out->description = borrowed(v[C_DESCRIPTION].s, v[C_DESCRIPTION].n_bytes);
    return !v[C_EXAMPLES].set || read_examples(c, v[C_EXAMPLES].j, prefix, out, f);
}

static bool read_choices(struct sup_call *c, json_t *list, const char *prefix,
                         Ipc__DecideQuestion *q, struct sup_fail *f)
{
    size_t n = json_array_size(list);
    Ipc__DecideChoice *rows;
    char name[96];

    snprintf(name, sizeof(name), "%schoices", prefix);
    if (n < 2 || n > IPC_DECIDE_CHOICES) {
        sup_field_bad(f, name, list, of_question[Q_CHOICES].words);
        return false;
    }
    rows = sup_call_alloc(c, n * sizeof(*rows));
    q->choices = sup_call_alloc(c, n * sizeof(*q->choices));
    if (!rows || !q->choices)
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%schoices[%zu].", prefix, i);
        if (!read_choice(c, json_array_get(list, i), name, &rows[i], f))
            return false;
        for (size_t k = 0; k < i; k++)
            if (rows[k].value.len == rows[i].value.len &&
                memcmp(rows[k].value.data, rows[i].value.data, rows[i].value.len) == 0) {
                snprintf(name, sizeof(name), "%schoices[%zu].value", prefix, i);
                return refuse(f, name, "another choice has the same value, expected a new one");
            }
        q->choices[q->n_choices++] = &rows[i];
    }
    return true;
}

/* ----------------------------------------------------------------- acceptance */

static bool read_thresholds(struct sup_call *c, json_t *j, const char *prefix,
                            Ipc__DecideQuestion *q, struct sup_fail *f)
{
    char name[96];

    snprintf(name, sizeof(name), "%ssimilarity_thresholds", prefix);
    if (!(q->thresholds = sup_call_alloc(c, q->n_choices * sizeof(*q->thresholds))))
        return sup_fail_no_memory(f);
    if (!json_is_number(j) && !json_is_object(j)) {
        sup_field_bad(f, name, j, THRESHOLDS_WANT);
        return false;
    }
    for (size_t i = 0; i < q->n_choices; i++) {
        /* values are NUL-ended: they are strings of the tree */
        json_t *one =
            json_is_object(j) ? json_object_get(j, (const char *)q->choices[i]->value.data) : j;
        double v = json_number_value(one);

        if (!json_is_number(one) || !(v >= -1 && v <= 1)) {
            char key[160];

            snprintf(key, sizeof(key), "%s%s%.40s", name, json_is_object(j) ? "." : "",
                     json_is_object(j) ? (const char *)q->choices[i]->value.data : "");
            sup_field_bad(f, key, one, "a number from -1 to 1");
            return false;
        }
        q->thresholds[q->n_thresholds++] = v;
    }
    if (json_is_object(j) && json_object_size(j) != q->n_choices)
        return refuse(f, name, "it has keys that are no values of this question");
    return true;
}

static bool id_ok(const char *id)
{
    size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");

    return n >= 1 && n <= IPC_CALIBRATION_ID_MAX && !id[n];
}

static bool read_accept(const struct sup_val *v, const char *prefix, Ipc__DecideQuestion *q,
                        struct sup_fail *f)
{
    struct sup_val a[A_N];
    char inner[96], name[128];

    snprintf(inner, sizeof(inner), "%sembedding_options.", prefix);
    if (!sup_fields_known(of_accept, A_N, NULL, v[Q_OPTIONS].j, inner, f) ||
        !sup_fields_read(of_accept, A_N, v[Q_OPTIONS].j, inner, a, f))
        return false;
    snprintf(name, sizeof(name), "%scalibration_id", inner);
    if (a[A_CALIBRATION].set && !id_ok(a[A_CALIBRATION].s)) {
        sup_field_bad(f, name, a[A_CALIBRATION].j, "1 to 64 letters, digits, '_' and '-'");
        return false;
    }
    if (a[A_CALIBRATION].set && (a[A_SIMILARITY].set || a[A_MARGIN].set || v[Q_THRESHOLDS].set))
        return refuse(f, name, "the calibration says the thresholds, expected no other beside it");
    if (a[A_SIMILARITY].set && q->kind == SUP_DECIDE_MULTI) {
        snprintf(name, sizeof(name), "%smin_similarity", inner);
        return refuse(f, name, "it belongs to type choice; multi_choice has similarity_thresholds");
    }
    q->has_min_similarity = a[A_SIMILARITY].set;
    q->min_similarity = a[A_SIMILARITY].f;
    q->has_min_margin = a[A_MARGIN].set;
    q->min_margin = a[A_MARGIN].f;
    if (a[A_CALIBRATION].set)
        q->calibration_id = (char *)(uintptr_t)a[A_CALIBRATION].s;
    return true;
}

/* ------------------------------------------------------------------ questions */

static bool read_kind(const struct sup_val *v, const char *prefix, Ipc__DecideQuestion *q,
                      struct sup_fail *f)
{
    char name[96];

    snprintf(name, sizeof(name), "%stype", prefix);
    if (strcmp(v[Q_TYPE].s, "score") == 0 || strcmp(v[Q_TYPE].s, "predicate") == 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': \"%s\" is for trained deciders only; a model of embeddings takes "
                     "choice and multi_choice",
                     name, v[Q_TYPE].s);
        return false;
    }
    q->kind = strcmp(v[Q_TYPE].s, "choice") == 0 ? SUP_DECIDE_CHOICE : SUP_DECIDE_MULTI;
    snprintf(name, sizeof(name), "%slevels", prefix);
    if (v[Q_LEVELS].set)
        return refuse(f, name, "it belongs to type score, which is for trained deciders only");
    snprintf(name, sizeof(name), "%schoices", prefix);
    if (!v[Q_CHOICES].set)
        return refuse(f, name, "missing, expected an array of 2 to 64 choices");
    snprintf(name, sizeof(name), "%ssimilarity_thresholds", prefix);
    if (v[Q_THRESHOLDS].set && q->kind == SUP_DECIDE_CHOICE)
        return refuse(
            f, name,
            "it belongs to type multi_choice; choice has embedding_options.min_similarity");
    return true;
}

static bool read_question(struct sup_call *c, json_t *j, const char *prefix, Ipc__DecideQuestion *q,
                          struct sup_fail *f)
{
    struct sup_val v[Q_N];
    char name[96];

    if (!json_is_object(j))
        return no_object(f, prefix, j, "an object {\"type\", \"name\", \"instructions\", ...}");
    if (!sup_fields_known(of_question, Q_N, NULL, j, prefix, f) ||
        !sup_fields_read(of_question, Q_N, j, prefix, v, f))
        return false;
    ipc__decide_question__init(q);
    q->instructions = borrowed(v[Q_INSTRUCTIONS].s, v[Q_INSTRUCTIONS].n_bytes);
    if (!read_kind(v, prefix, q, f) || !read_choices(c, v[Q_CHOICES].j, prefix, q, f) ||
        (v[Q_OPTIONS].set && !read_accept(v, prefix, q, f)))
        return false;
    if (v[Q_THRESHOLDS].set)
        return read_thresholds(c, v[Q_THRESHOLDS].j, prefix, q, f);
    if (q->kind == SUP_DECIDE_CHOICE || q->calibration_id[0])
        return true;
    snprintf(name, sizeof(name), "%ssimilarity_thresholds", prefix);
    return refuse(f, name,
                  "missing, expected " THRESHOLDS_WANT ", or embedding_options.calibration_id");
}

static bool same_name(json_t *a, json_t *b)
{
    return json_equal(json_object_get(a, "name"), json_object_get(b, "name"));
}

bool sup_decisions_questions(struct sup_call *c, json_t *list, Ipc__Decide *q, struct sup_fail *f)
{
    size_t n = json_array_size(list);
    Ipc__DecideQuestion *rows;
    char prefix[48];

    if (n < 1 || n > IPC_DECIDE_QUESTIONS) {
        sup_field_bad(f, "questions", list, "an array of 1 to 64 questions");
        return false;
    }
    rows = sup_call_alloc(c, n * sizeof(*rows));
    q->questions = sup_call_alloc(c, n * sizeof(*q->questions));
    if (!rows || !q->questions)
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        snprintf(prefix, sizeof(prefix), "questions[%zu].", i);
        if (!read_question(c, json_array_get(list, i), prefix, &rows[i], f))
            return false;
        for (size_t k = 0; k < i; k++)
            if (same_name(json_array_get(list, k), json_array_get(list, i))) {
                snprintf(prefix, sizeof(prefix), "questions[%zu].name", i);
                return refuse(f, prefix, "another question has the same name, expected a new one");
            }
        q->questions[q->n_questions++] = &rows[i];
    }
    return true;
}
