/* mdl_sbert.c - what sentence-transformers writes beside an encoder.
 *
 * modules.json says which steps follow the encoder (pooling, normalising), their
 * folders say how; other files give the length limit and prompts. A step this
 * build does not do is refused by name: leaving it out would give wrong vectors.
 * No side files at all: mean over tokens, not normalised, as that library does.
 * Source: encoders.md 3. Tests: tests/models/test_mdl_bert.c, test_mdl_embed.c
 */
#include "mdl_bert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which the vectors of several true flags are joined. */
static const struct {
    const char *flag, *mode;
    enum be_pool kind;
} pool_flags[] = {
    {"pooling_mode_cls_token", "cls", BE_POOL_CLS},
    {"pooling_mode_max_tokens", "max", BE_POOL_MAX},
    {"pooling_mode_mean_tokens", "mean", BE_POOL_MEAN},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", BE_POOL_MEAN_SQRT},
    {"pooling_mode_weightedmean_tokens", "weightedmean", BE_POOL_WEIGHTED},
    {"pooling_mode_lasttoken", "lasttoken", BE_POOL_LAST},
};

/* Words of the API against names that models give their prompts, best first. */
static const struct {
    const char *task, *names[5];
} task_names[] = {
    {"RETRIEVAL_QUERY", {"Retrieval-query", "query", "SearchQuery", "Retrieval", "search_query"}},
    {"RETRIEVAL_DOCUMENT",
     {"Retrieval-document", "Document", "document", "passage", "search_document"}},
    {"QUESTION_ANSWERING", {"QuestionAnswering"}},
    {"FACT_VERIFICATION", {"FactChecking"}},
    {"CODE_RETRIEVAL_QUERY", {"CodeRetrieval", "InstructionRetrieval"}},
    {"SEMANTIC_SIMILARITY", {"SentenceSimilarity", "STS"}},
    {"CLASSIFICATION", {"Classification"}},
    {"CLUSTERING", {"Clustering"}},
};

static int find_prompt(const struct bert_sbert *st, const char *name)
{
    size_t i;

    for (i = 0; i < st->n_prompts; i++)
        if (strcmp(st->prompts[i].name, name) == 0)
            return (int)i;
    return -1;
}

enum rc mdl_sbert_prompt(const struct bert_sbert *st, const char *task_type, const char **out,
                         struct rc_err *err)
{
    int p = st->default_prompt;
    size_t i, k;

    if (task_type && *task_type) {
        p = find_prompt(st, task_type);
        for (i = 0; p < 0 && i < sizeof(task_names) / sizeof(*task_names); i++)
            if (strcmp(task_type, task_names[i].task) == 0)
                for (k = 0; p < 0 && k < 5 && task_names[i].names[k]; k++)
                    p = find_prompt(st, task_names[i].names[k]);
        if (p < 0)
            return rc_fail_what(
                err, RC_INVALID, "task_type", "task_type '%.48s': this model has %s", task_type,
                st->n_prompts ? "no prompt of that name" : "no task prompts; leave task_type out");
    }
    *out = p >= 0 ? st->prompts[p].text : NULL;
    return RC_OK;
}

/* ------------------------------------------------------------------ reading */

static enum rc read_pooling(struct bert_sbert *st, int root_fd, const char *path,
                            bool *include_prompt, struct rc_err *err)
{
    char name[192];
    const char *mode = NULL;
    json_t *j = NULL;
    bool on;
    size_t i;
    enum rc rc;

    snprintf(name, sizeof(name), "%s%sconfig.json", path, *path ? "/" : "");
    if ((rc = mdl_cfg_load(root_fd, name, true, &j, err)) != RC_OK)
        return rc;
    if ((rc = mdl_cfg_str(j, name, "pooling_mode", &mode, err)) != RC_OK)
        goto out;
    for (i = 0; i < sizeof(pool_flags) / sizeof(*pool_flags); i++) {
        if ((rc = mdl_cfg_bool(j, name, pool_flags[i].flag, false, &on, err)) != RC_OK)
            goto out;
        /* as in that library, one word overrides the flags */
        if (mode ? strcmp(mode, pool_flags[i].mode) == 0 : on)
            st->pools[st->n_pools++] = pool_flags[i].kind;
    }
    if ((rc = mdl_cfg_bool(j, name, "include_prompt", true, include_prompt, err)) == RC_OK &&
        st->n_pools == 0)
        rc = mode ? rc_fail_what(err, RC_UNSUPPORTED, name,
                                 "%s: pooling_mode '%.40s' is not supported (cls, max, mean, "
                                 "mean_sqrt_len_tokens, weightedmean, lasttoken)",
                                 name, mode)
                  : rc_fail_what(err, RC_FORMAT, name, "%s: no pooling mode is switched on", name);
out:
    json_decref(j);
    return rc;
}

/* The folder of a step: a name, as sentence-transformers writes it. */
static enum rc read_dense(struct bert_sbert *st, int root_fd, const char *path, struct rc_err *err)
{
    struct bert_dense *d = &st->dense[st->n_dense];
    const char *act = NULL, *dot;
    char name[192];
    json_t *j = NULL;
    enum rc rc;

    if (!path || !*path || strlen(path) >= sizeof(d->path) || st->n_dense == BERT_MAX_DENSE)
        return rc_fail_what(err, RC_UNSUPPORTED, "modules.json",
                            "modules.json: at most %d Dense steps are supported, each in a folder "
                            "of its own with a name of at most %zu bytes",
                            BERT_MAX_DENSE, sizeof(d->path) - 1);
    snprintf(d->path, sizeof(d->path), "%s", path);
    snprintf(name, sizeof(name), "%s/config.json", path);
    if ((rc = mdl_cfg_load(root_fd, name, true, &j, err)) != RC_OK)
        return rc;
    if ((rc = mdl_cfg_u32(j, name, "in_features", 1, 1u << 20, MDL_REQUIRED, &d->n_in, err)) !=
            RC_OK ||
        (rc = mdl_cfg_u32(j, name, "out_features", 1, 1u << 16, MDL_REQUIRED, &d->n_out, err)) !=
            RC_OK ||
        (rc = mdl_cfg_bool(j, name, "bias", true, &d->bias, err)) != RC_OK ||
        (rc = mdl_cfg_str(j, name, "activation_function", &act, err)) != RC_OK)
        goto out;
    dot = act ? strrchr(act, '.') : NULL;
    act = dot ? dot + 1 : act ? act : "Tanh"; /* that library's default */
    d->tanh = strcmp(act, "Tanh") == 0;
    if (!d->tanh && strcmp(act, "Identity") != 0)
        rc = rc_fail_what(err, RC_UNSUPPORTED, "activation_function",
                          "%s: activation '%.40s' is not supported (Tanh, Identity)", name, act);
    else
        st->n_dense++;
out:
    json_decref(j);
    return rc;
}

/* "sentence_transformers.models.Pooling" and later spellings: the last word. */
static const char *class_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type")), *dot;

    if (!type)
        return "";
    dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static enum rc read_modules(struct bert_sbert *st, int root_fd, bool *include_prompt,
                            struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0, i;
    json_error_t je;
    json_t *list;
    enum rc rc = mdl_side_read(root_fd, "modules.json", MDL_MAX_CONFIG_BYTES, &text, &n, err);

    if (rc == RC_NOT_FOUND) {
        st->pools[st->n_pools++] = BE_POOL_MEAN;
        return RC_OK;
    }
    if (rc != RC_OK)
        return rc;
    st->listed = true;
    list = json_loadb(text, n, 0, &je);
    free(text);
    if (!json_is_array(list)) {
        json_decref(list);
        return rc_fail_what(err, RC_FORMAT, "modules.json", "modules.json: expected a list");
    }
    for (i = 0, rc = RC_OK; rc == RC_OK && i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        const char *cls = class_of(m), *path = json_string_value(json_object_get(m, "path"));

        if (strcmp(cls, "Transformer") == 0) {
            if (path && *path)
                rc = rc_fail_what(err, RC_UNSUPPORTED, "modules.json",
                                  "modules.json: an encoder in a sub-folder ('%.60s') is not "
                                  "supported",
                                  path);
        } else if (strcmp(cls, "Dense") == 0 && st->n_pools > 0 && !st->normalize) {
            rc = read_dense(st, root_fd, path, err);
        } else if (strcmp(cls, "Pooling") == 0 && st->n_pools == 0 && !st->normalize) {
            rc = read_pooling(st, root_fd, path ? path : "", include_prompt, err);
        } else if (strcmp(cls, "Normalize") == 0 && st->n_pools > 0) {
            st->normalize = true;
        } else {
            rc = rc_fail_what(err, RC_UNSUPPORTED, "modules.json",
                              "modules.json: step %zu '%.60s' is not supported here (Transformer, "
                              "Pooling, Dense, Normalize, in this order)",
                              i, cls);
        }
    }
    json_decref(list);
    if (rc == RC_OK && st->n_pools == 0)
        rc = rc_fail_what(err, RC_UNSUPPORTED, "modules.json",
                          "modules.json: a model without a Pooling step is not supported");
    return rc;
}

static enum rc read_limit(struct bert_sbert *st, int root_fd, struct rc_err *err)
{
    json_t *j = NULL, *t = NULL;
    bool lower;
    enum rc rc = mdl_cfg_load(root_fd, "sentence_bert_config.json", false, &j, err);

    if (rc != RC_OK || !j)
        return rc;
    if ((rc = mdl_cfg_u32(j, "sentence_bert_config.json", "max_seq_length", 2, 1u << 20, 0,
                          &st->max_seq, err)) != RC_OK ||
        (rc = mdl_cfg_bool(j, "sentence_bert_config.json", "do_lower_case", false, &lower, err)) !=
            RC_OK)
        goto out;
    if (lower) { /* the same as the tokenizer's own lower-casing, if it has that */
        if ((rc = mdl_cfg_load(root_fd, "tokenizer.json", true, &t, err)) != RC_OK)
            goto out;
        if (!json_is_true(json_object_get(json_object_get(t, "normalizer"), "lowercase")))
            rc = rc_fail_what(err, RC_UNSUPPORTED, "do_lower_case",
                              "sentence_bert_config.json: 'do_lower_case' with a tokenizer that "
                              "keeps case is not supported");
    }
out:
    json_decref(t);
    json_decref(j);
    return rc;
}

static enum rc add_prompt(struct bert_sbert *st, const char *name, const char *text,
                          struct rc_err *err)
{
    char *n, *t;

    if (st->n_prompts == BERT_MAX_PROMPTS)
        return rc_fail_what(err, RC_TOO_LARGE, "prompts",
                            "config_sentence_transformers.json: more than %d prompts",
                            BERT_MAX_PROMPTS);
    n = strdup(name);
    t = strdup(text);
    if (!n || !t) {
        free(n);
        free(t);
        return rc_fail(err, RC_NOMEM, "no memory for a prompt");
    }
    st->prompts[st->n_prompts].name = n;
    st->prompts[st->n_prompts++].text = t;
    return RC_OK;
}

static enum rc read_prompts(struct bert_sbert *st, int root_fd, struct rc_err *err)
{
    const char *file = "config_sentence_transformers.json", *dflt = NULL, *key;
    json_t *j = NULL, *prompts, *v;
    enum rc rc = mdl_cfg_load(root_fd, file, false, &j, err);

    if (rc != RC_OK || !j)
        return rc;
    prompts = json_object_get(j, "prompts");
    json_object_foreach(prompts, key, v)
    {
        if (!json_is_string(v)) {
            rc = rc_fail_what(err, RC_FORMAT, "prompts", "%s: prompt '%.48s' is not a string", file,
                              key);
            goto out;
        }
        if ((rc = add_prompt(st, key, json_string_value(v), err)) != RC_OK)
            goto out;
    }
    if ((rc = mdl_cfg_str(j, file, "default_prompt_name", &dflt, err)) != RC_OK || !dflt)
        goto out;
    if ((st->default_prompt = find_prompt(st, dflt)) < 0)
        rc = rc_fail_what(err, RC_FORMAT, "default_prompt_name",
                          "%s: default prompt '%.48s' is not among its prompts", file, dflt);
out:
    json_decref(j);
    return rc;
}

enum rc mdl_sbert_load(struct bert_sbert *st, int root_fd, struct rc_err *err)
{
    bool include_prompt = true, any = false;
    size_t i;
    enum rc rc;

    st->default_prompt = -1;
    if ((rc = read_modules(st, root_fd, &include_prompt, err)) != RC_OK ||
        (rc = read_limit(st, root_fd, err)) != RC_OK ||
        (rc = read_prompts(st, root_fd, err)) != RC_OK)
        return rc;
    for (i = 0; i < st->n_prompts; i++)
        any |= st->prompts[i].text[0] != '\0';
    if (any && !include_prompt)
        return rc_fail_what(err, RC_UNSUPPORTED, "include_prompt",
                            "pooling that leaves the prompt's tokens out is not supported");
    return RC_OK;
}

void mdl_sbert_deinit(struct bert_sbert *st)
{
    size_t i;

    for (i = 0; i < st->n_prompts; i++) {
        free(st->prompts[i].name);
        free(st->prompts[i].text);
    }
    free(st->host);
    memset(st, 0, sizeof(*st));
}
