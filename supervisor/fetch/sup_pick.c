/* sup_pick.c - which files of a repository make one model we can run.
 *
 * Policy only: tables of preferences and of small files. Always true: one set of weights is
 * taken, never two; what a person named is taken or refused with what there is.
 * Change freely: the tables. Tests: tests/supervisor/test_sup_hub.c
 */
#include "sup_hub.h"

#include <ctype.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* First what answers well for its size, then what is larger, then what is smaller. */
static const char *const gguf_order[] = {
    "Q4_K_S", "UD-Q4_K_S", "Q4_K", "Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_XL",
    "Q5_K_S", "Q5_K_M",    "Q6_K", "Q8_0",   "Q3_K_M",    "Q2_K",
};

/* Patterns of fnmatch with FNM_PATHNAME | FNM_PERIOD: '*' crosses no '/', hidden names match
 * nothing. */
static const char *const sidecars[] = {
    "config.json",
    "clip_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "spiece.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "[0-9]_*/config.json",
    "encoder_config/config.json",
    "model_manifest.json",
    "adapters/*/adapter_config.json",
    "calibrations/*.json",
    "LICENSE*",
};

/* Weights beside the model's own, with any format but GGUF. */
static const char *const side_weights[] = {
    "[0-9]_*/model.safetensors",  "sparse_linear.pt",
    "colbert_linear.pt",          "sparse_linear.safetensors",
    "colbert_linear.safetensors", "assistant/*.json",
    "assistant/*.safetensors",    "adapters/*/adapter_model.safetensors",
};

static bool like(const char *pattern, const char *path)
{
    return fnmatch(pattern, path, FNM_PATHNAME | FNM_PERIOD) == 0;
}

static void take(struct sup_hub_list *l, const char *const *patterns, size_t n)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < n && !l->file[i].taken; k++)
            l->file[i].taken = like(patterns[k], l->file[i].path);
}

/* A model of one file at the top: no projector, no part of several. */
static bool is_gguf(const char *path)
{
    return fnmatch("*.gguf", path, FNM_PATHNAME | FNM_PERIOD | FNM_CASEFOLD) == 0 &&
           strncasecmp(path, "mmproj", 6) != 0 &&
           fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", path, 0) != 0;
}

/* Is the quantization a word of the file's name, whatever its case? "Q4_K" is no word of
 * "Q4_K_M", and "Q4_K_M" none of "UD-Q4_K_M". */
static bool has_quant(const char *path, const char *quant)
{
    size_t n = strlen(quant);

    for (const char *p = path; (p = strcasestr(p, quant)); p++) {
        char after = p[n];
        bool ud = p - path >= 3 && strncasecmp(p - 3, "UD-", 3) == 0;

        if ((p == path || strchr("-._", p[-1])) && !ud && !isalnum((unsigned char)after) &&
            after != '_')
            return true;
    }
    return false;
}

static struct sup_hub_file *gguf_of(struct sup_hub_list *l, const char *quant)
{
    for (size_t i = 0; i < l->n; i++)
        if (is_gguf(l->file[i].path) && (!quant || has_quant(l->file[i].path, quant)))
            return &l->file[i];
    return NULL;
}

static bool pick_gguf(struct sup_hub_list *l, char format[64])
{
    struct sup_hub_file *f = NULL;
    const char *quant = "";

    for (size_t i = 0; !f && i < COUNT(gguf_order); i++)
        if ((f = gguf_of(l, gguf_order[i])))
            quant = gguf_order[i];
    if (!f && !(f = gguf_of(l, NULL)))
        return false;
    f->taken = true;
    snprintf(format, 64, "gguf%s%s", *quant ? ":" : "", quant);
    return true;
}

static bool pick_quant(struct sup_hub_list *l, const char *quant, char format[64])
{
    struct sup_hub_file *f = *quant ? gguf_of(l, quant) : NULL;

    if (!f)
        return false;
    f->taken = true;
    snprintf(format, 64, "gguf:%.48s", quant);
    return true;
}

static bool pick_safetensors(struct sup_hub_list *l, bool *index)
{
    struct sup_hub_file *f = sup_hub_find(l, "model.safetensors");
    struct sup_hub_file *ix = sup_hub_find(l, SUP_HUB_INDEX);
    size_t n = 0;

    if (!f && ix) {
        ix->taken = *index = true;
    } else if (f) {
        f->taken = true;
    } else { /* a single one under a name of its own */
        for (size_t i = 0; i < l->n; i++)
            if (like("*.safetensors", l->file[i].path) && !like("*_linear.*", l->file[i].path)) {
                f = &l->file[i];
                n++;
            }
        if (n != 1)
            return false;
        f->taken = true;
    }
    take(l, side_weights, COUNT(side_weights));
    return true;
}

static bool pick_torch(struct sup_hub_list *l)
{
    struct sup_hub_file *f = sup_hub_find(l, "pytorch_model.bin");

    if (!f)
        return false;
    f->taken = true;
    take(l, side_weights, COUNT(side_weights));
    return true;
}

static void name_one(char *out, size_t cap, const char *s)
{
    size_t n = strlen(out);

    if (n + strlen(s) + 8 < cap)
        snprintf(out + n, cap - n, "%s%s", n ? ", " : "", s);
    else if (n + 6 < cap && n >= 3 && strcmp(out + n - 3, "...") != 0)
        snprintf(out + n, cap - n, ", ...");
}

static enum rc none_such(struct sup_hub_list *l, const char *variant, struct rc_err *err)
{
    char have[300] = "";

    if (sup_hub_find(l, "model.safetensors") || sup_hub_find(l, SUP_HUB_INDEX))
        name_one(have, sizeof(have), "safetensors");
    if (sup_hub_find(l, "pytorch_model.bin"))
        name_one(have, sizeof(have), "torch");
    for (size_t i = 0; i < l->n; i++)
        if (is_gguf(l->file[i].path))
            name_one(have, sizeof(have), l->file[i].path);
    if (strcmp(variant, "auto") == 0)
        return rc_fail_what(err, RC_NOT_FOUND, "variant",
                            "the repository has no weights that are run here: no .gguf of one "
                            "file, no model.safetensors, no pytorch_model.bin");
    return rc_fail_what(err, RC_NOT_FOUND, "variant", "there is no variant '%.90s'; there %s%s",
                        variant, *have ? "is: " : "is nothing that is run here", have);
}

/* Formats people ask for and no worker reads. */
static const char *const not_run[] = {"onnx", "hybrid", "native", "i8", "mmproj", "projector"};

enum rc sup_pick(struct sup_hub_list *l, const char *variant, char format[64], bool *index,
                 struct rc_err *err)
{
    struct sup_hub_file *named = sup_hub_find(l, variant);
    bool found, any = strcmp(variant, "auto") == 0, gguf;

    *index = false;
    for (size_t i = 0; i < COUNT(not_run); i++)
        if (strcasecmp(variant, not_run[i]) == 0)
            return rc_fail_what(err, RC_INVALID, "variant",
                                "variant '%s' is not run here; gguf, gguf:QUANTIZATION, "
                                "safetensors and torch are",
                                variant);
    snprintf(format, 64, "%s", strcasecmp(variant, "f32") == 0 ? "safetensors" : variant);
    if (any || strcasecmp(variant, "gguf") == 0)
        found = pick_gguf(l, format);
    else if (strncasecmp(variant, "gguf:", 5) == 0)
        found = pick_quant(l, variant + 5, format);
    else
        found =
            (named && is_gguf(variant)) ? (named->taken = true) : pick_quant(l, variant, format);
    gguf = found;
    if (!found && (any || strcmp(format, "safetensors") == 0) &&
        (found = pick_safetensors(l, index)))
        snprintf(format, 64, "safetensors");
    if (!found && (any || strcmp(format, "torch") == 0) && (found = pick_torch(l)))
        snprintf(format, 64, "torch");
    if (!found)
        return none_such(l, variant, err);
    if (!gguf && !sup_hub_find(l, "config.json"))
        return rc_fail_what(err, RC_NOT_FOUND, "config.json",
                            "the repository has weights and no config.json: it is no model that "
                            "can be run");
    take(l, sidecars, COUNT(sidecars));
    return RC_OK;
}

enum rc sup_pick_shards(struct sup_hub_list *l, const char *json, size_t n, struct rc_err *err)
{
    json_error_t why;
    json_t *o = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    json_t *map = json_object_get(o, "weight_map"), *v;
    enum rc rc = RC_OK;
    const char *key;
    size_t shards = 0;

    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = rc_fail_what(err, RC_FORMAT, SUP_HUB_INDEX,
                          "'weight_map' of " SUP_HUB_INDEX " has to be an object");
    else
        json_object_foreach(map, key, v)
        {
            const char *path = json_string_value(v);
            struct sup_hub_file *f = path ? sup_hub_find(l, path) : NULL;

            if (!f || !like("*.safetensors", path)) {
                rc = rc_fail_what(err, RC_NOT_FOUND, SUP_HUB_INDEX,
                                  SUP_HUB_INDEX " puts '%.100s' into '%.150s', which is no "
                                                ".safetensors of the repository",
                                  key, path ? path : "(no text)");
                break;
            }
            shards += !f->taken;
            f->taken = true;
        }
    if (rc == RC_OK && shards > SUP_RECEIPT_FILES / 2)
        rc = rc_fail_what(err, RC_TOO_LARGE, SUP_HUB_INDEX, SUP_HUB_INDEX " names %zu shards",
                          shards);
    json_decref(o);
    return rc;
}
