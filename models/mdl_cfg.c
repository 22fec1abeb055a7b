/* mdl_cfg.c - numbers that a model's files claim, checked.
 *
 * Every number of a config ends up in a shape, a loop bound or a divisor; here it
 * gets a kind and a range before anyone computes with it. Knows no family.
 * Always true: an output is written on success only; null and absent are the same.
 * Tests: tests/models/test_mdl_open.c (bad models)
 */
#include "mdl_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    default:
        return "a number";
    }
}

static const json_t *field(const json_t *obj, const char *key)
{
    const json_t *v = obj ? json_object_get(obj, key) : NULL;

    return v && !json_is_null(v) ? v : NULL;
}

static enum rc absent(const char *what, const char *key, struct rc_err *err)
{
    return rc_fail_what(err, RC_FORMAT, key, "%s: '%s' is missing", what, key);
}

static enum rc wrong_kind(const char *what, const char *key, const json_t *v, const char *want,
                          struct rc_err *err)
{
    return rc_fail_what(err, RC_FORMAT, key, "%s: '%s' is %s, expected %s", what, key, kind_name(v),
                        want);
}

static enum rc range_u32(const char *what, const char *key, double v, uint32_t min, uint32_t max,
                         struct rc_err *err)
{
    return rc_fail_what(err, RC_FORMAT, key, "%s: '%s' is %.0f, expected %u to %u", what, key, v,
                        min, max);
}

enum rc mdl_cfg_u32(const json_t *obj, const char *what, const char *key, uint32_t min,
                    uint32_t max, int64_t dflt, uint32_t *out, struct rc_err *err)
{
    const json_t *v = field(obj, key);
    json_int_t i;

    if (!v) {
        if (dflt == MDL_REQUIRED)
            return absent(what, key, err);
        *out = (uint32_t)dflt;
        return RC_OK;
    }
    if (!json_is_integer(v))
        return wrong_kind(what, key, v, "an integer", err);
    i = json_integer_value(v);
    if (i < (json_int_t)min || i > (json_int_t)max)
        return range_u32(what, key, (double)i, min, max, err);
    *out = (uint32_t)i;
    return RC_OK;
}

static enum rc check_pos(const char *what, const char *key, double d, double max, float *out,
                         struct rc_err *err)
{
    float f = (float)d;

    /* also catches NaN, and what f32 rounds to 0 or infinity */
    if (!(d > 0) || !(d <= max) || !(f > 0) || !isfinite(f))
        return rc_fail_what(err, RC_FORMAT, key, "%s: '%s' is %g, expected above 0 and at most %g",
                            what, key, d, max);
    *out = f;
    return RC_OK;
}

enum rc mdl_cfg_pos(const json_t *obj, const char *what, const char *key, double max, double dflt,
                    float *out, struct rc_err *err)
{
    const json_t *v = field(obj, key);

    if (!v) {
        if (isnan(dflt))
            return absent(what, key, err);
        *out = (float)dflt;
        return RC_OK;
    }
    if (!json_is_number(v))
        return wrong_kind(what, key, v, "a number", err);
    return check_pos(what, key, json_number_value(v), max, out, err);
}

enum rc mdl_cfg_bool(const json_t *obj, const char *what, const char *key, bool dflt, bool *out,
                     struct rc_err *err)
{
    const json_t *v = field(obj, key);

    if (v && !json_is_boolean(v))
        return wrong_kind(what, key, v, "true or false", err);
    *out = v ? json_is_true(v) : dflt;
    return RC_OK;
}

enum rc mdl_cfg_str(const json_t *obj, const char *what, const char *key, const char **out,
                    struct rc_err *err)
{
    const json_t *v = field(obj, key);

    if (v && !json_is_string(v))
        return wrong_kind(what, key, v, "a string", err);
    *out = v ? json_string_value(v) : NULL;
    return RC_OK;
}

static const struct {
    const char *name;
    enum be_epi epi;
} gelus[] = {
    {"gelu", BE_EPI_GELU_ERF},
    {"gelu_python", BE_EPI_GELU_ERF},
    {"gelu_new", BE_EPI_GELU_TANH},
    {"gelu_fast", BE_EPI_GELU_TANH},
    {"gelu_pytorch_tanh", BE_EPI_GELU_TANH},
};

enum rc mdl_cfg_gelu(const json_t *obj, const char *what, const char *key, enum be_epi *out,
                     struct rc_err *err)
{
    const char *act = NULL;
    enum rc rc = mdl_cfg_str(obj, what, key, &act, err);

    if (rc != RC_OK)
        return rc;
    for (size_t i = 0; i < sizeof(gelus) / sizeof(*gelus); i++)
        if (strcmp(act ? act : "gelu", gelus[i].name) == 0) {
            *out = gelus[i].epi;
            return RC_OK;
        }
    return rc_fail_what(err, RC_UNSUPPORTED, key,
                        "%s: %s '%.40s' is not supported (gelu, gelu_new, gelu_pytorch_tanh)", what,
                        key, act);
}

enum rc mdl_cfg_vocab(const struct mdl *m, uint32_t vocab_size, struct rc_err *err)
{
    uint32_t n = mdl_tok_vocab(m->tok);

    return n <= vocab_size ? RC_OK
                           : rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                                          "the tokenizer has %u pieces, the model only %u token "
                                          "vectors",
                                          n, vocab_size);
}

enum rc mdl_cfg_load(int root_fd, const char *name, bool required, json_t **out, struct rc_err *err)
{
    json_error_t je;
    char *text = NULL;
    size_t n = 0;
    json_t *j;
    enum rc rc = mdl_side_read(root_fd, name, MDL_MAX_CONFIG_BYTES, &text, &n, err);

    if (rc == RC_NOT_FOUND && !required) {
        *out = NULL;
        return RC_OK;
    }
    if (rc == RC_NOT_FOUND)
        return rc_fail_what(err, RC_FORMAT, name, "%s is missing from the model's folder", name);
    if (rc != RC_OK)
        return rc;
    j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (!j)
        return rc_fail_what(err, RC_FORMAT, name, "%s: line %d: %s", name, je.line, je.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return rc_fail_what(err, RC_FORMAT, name, "%s: expected a JSON object", name);
    }
    *out = j;
    return RC_OK;
}

enum rc mdl_gguf_cfg_u32(const struct mdl_file *f, const char *key, uint32_t min, uint32_t max,
                         int64_t dflt, uint32_t *out, struct rc_err *err)
{
    uint64_t v;

    if (!mdl_gguf_u64(f, key, &v)) {
        if (dflt == MDL_REQUIRED)
            return rc_fail_what(err, RC_FORMAT, key,
                                "GGUF metadata: '%s' is missing or not an unsigned integer", key);
        *out = (uint32_t)dflt;
        return RC_OK;
    }
    if (v < min || v > max)
        return range_u32("GGUF metadata", key, (double)v, min, max, err);
    *out = (uint32_t)v;
    return RC_OK;
}

enum rc mdl_gguf_cfg_pos(const struct mdl_file *f, const char *key, double max, double dflt,
                         float *out, struct rc_err *err)
{
    double d;

    if (!mdl_gguf_f64(f, key, &d)) {
        if (isnan(dflt))
            return rc_fail_what(err, RC_FORMAT, key,
                                "GGUF metadata: '%s' is missing or not a number", key);
        *out = (float)dflt;
        return RC_OK;
    }
    return check_pos("GGUF metadata", key, d, max, out, err);
}
