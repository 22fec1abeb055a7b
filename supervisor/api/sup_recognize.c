/* sup_recognize.c - POST /ai/v1/recognize and /ai/v1/classify: the older words for extraction.
 *
 * Each request becomes a schema of /ai/v1/extract; what is wrong with it is said in the words of
 * the request. A classification gives the probability of
 * every label, the best first. Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_endpoints.h"
#include "sup_extract.h"

#define THRESHOLD 0.3
#define TEXTS_WANT "a non-empty array of strings"

#define RECOGNIZE_FIELDS(X)                                                         \
    X(R_TEXTS, "texts", ANY, true, 0, 0, 0, TEXTS_WANT)                             \
    X(R_LABELS, "labels", ANY, false, 0, 0, 0, "an array of labels")                \
    X(R_RELATIONS, "relation_labels", ANY, false, 0, 0, 0, "an array of relations") \
    X(R_THRESHOLD, "threshold", NUM, false, 0, 1, THRESHOLD, NULL)                  \
    X(R_FLAT, "flat_ner", BOOL, false, 0, 1, 1, NULL)                               \
    X(R_RESOLVER, "resolver", OBJECT, false, 0, 0, 0, NULL)

#define CLASSIFY_FIELDS(X)                                          \
    X(C_TEXTS, "texts", ANY, true, 0, 0, 0, TEXTS_WANT)             \
    X(C_LABELS, "labels", ANY, true, 0, 0, 0, "an array of labels") \
    X(C_MULTI, "multi_label", BOOL, false, 0, 1, 0, NULL)           \
    X(C_TEMPLATE, "hypothesis_template", STR, false, 0, 1024, 0, NULL)

enum { RECOGNIZE_FIELDS(SUP_FIELD_ID) R_N };
enum { CLASSIFY_FIELDS(SUP_FIELD_ID) C_N };
static const struct sup_field recognize_fields[R_N] = {RECOGNIZE_FIELDS(SUP_FIELD_ROW)},
                              classify_fields[C_N] = {CLASSIFY_FIELDS(SUP_FIELD_ROW)};

static const struct sup_extract_words recognize_words = {"labels", "labels", "relation_labels", ""},
                                      classify_words = {"labels", "", "", ""};

static bool submit(struct sup_call *c, enum sup_extract_form form,
                   const struct sup_extract_words *words, json_t *texts, json_t *schema,
                   const struct sup_extract_opts *opts, struct sup_fail *f)
{
    struct sup_extract *e = (struct sup_extract *)c;
    bool ok;

    if (!schema)
        return sup_fail_no_memory(f);
    e->form = form;
    ok = sup_extract_texts(e, texts, schema, words, opts, f);
    json_decref(schema); /* what is packed holds its own copy */
    return ok;
}

static bool recognize_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    const struct sup_extract_opts opts = {.threshold = (float)v[R_THRESHOLD].f,
                                          .flat = v[R_FLAT].b};

    return submit(
        c, SUP_EXTRACT_RECOGNIZE, &recognize_words, v[R_TEXTS].j,
        json_pack("{s:O?, s:O?}", "entities", v[R_LABELS].j, "relations", v[R_RELATIONS].j), &opts,
        f);
}

/* Of all labels the probability: nothing is below a threshold of 0. */
static bool classify_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    const struct sup_extract_opts opts = {.threshold = (float)THRESHOLD};

    return submit(c, SUP_EXTRACT_CLASSIFY, &classify_words, v[C_TEXTS].j,
                  json_pack("{s:[{s:s, s:O, s:b, s:f, s:s}]}", "classifications", "name", "label",
                            "labels", v[C_LABELS].j, "multi_label", 1, "threshold", 0.0,
                            "activation", v[C_MULTI].b ? "sigmoid" : "softmax"),
                  &opts, f);
}

#define OPS(fields_, n_fields_, start_)                                                    \
    {                                                                                      \
        .size = sizeof(struct sup_extract), .need = SUP_NEED_EXTRACT, .fields = (fields_), \
        .n_fields = (n_fields_), .start = (start_), .frame = sup_extract_frame,            \
        .finish = sup_extract_finish, .deinit = sup_extract_deinit,                        \
    }

const struct sup_call_ops sup_recognize_ops = OPS(recognize_fields, R_N, recognize_start),
                          sup_classify_ops = OPS(classify_fields, C_N, classify_start);
