/* mdl_identity.c - what an embedder's vectors are made of, as one number.
 *
 * SHA-256 over every file that has a say in them and the name of the recipe that computes them.
 * Two models with the same identity give the same vectors, on whatever backend; a client may pin
 * it. Each part is framed by its length, and a file that is not there says so, so that no two
 * folders hash the same bytes. Order, names and framing are a contract: docs/models/bert.md.
 * A load waits for it, so nettle computes it, with the processor's own instructions: libsodium
 * takes seven times as long.
 * Never here: what is done about a mismatch. Tests: tests/models/test_mdl_identity.c
 */
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_impl.h"

#define STEP ((size_t)16 << 20) /* bytes between two signs of life */

/* Beside the weights. Every one is optional here; who needs it has read it by now. */
static const char *const side_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "processor_config.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
};

struct hash {
    struct sha256_ctx s;
    const struct mdl_opts *opts;
    uint64_t done, total; /* bytes of weights */
};

static void add_length(struct hash *h, uint64_t n)
{
    uint8_t b[8];
    int i;

    for (i = 0; i < 8; i++)
        b[i] = (uint8_t)(n >> (8 * i));
    sha256_update(&h->s, sizeof(b), b);
}

static void add_name(struct hash *h, const char *name)
{
    add_length(h, strlen(name));
    sha256_update(&h->s, strlen(name), (const uint8_t *)name);
}

static void add_bytes(struct hash *h, const void *p, size_t n)
{
    add_length(h, n);
    sha256_update(&h->s, n, p);
}

/* Absent: no file has this length. */
static void add_absent(struct hash *h)
{
    add_length(h, UINT64_MAX);
}

static enum rc add_side_file(struct hash *h, int root_fd, const char *name, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = mdl_side_read(root_fd, name, MDL_MAX_TOKENIZER_BYTES, &text, &n, err);

    add_name(h, name);
    if (rc == RC_NOT_FOUND) {
        add_absent(h);
        return RC_OK;
    }
    if (rc == RC_OK)
        add_bytes(h, text, n);
    free(text);
    return rc;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = s ? strlen(s) : 0, k = strlen(end);

    return n >= k && strcmp(s + n - k, end) == 0;
}

/* modules.json, and behind it the config.json of each Pooling and Dense that it lists. */
static enum rc add_modules(struct hash *h, int root_fd, struct rc_err *err)
{
    char *text = NULL, name[192];
    json_t *list = NULL;
    size_t n = 0, i;
    enum rc rc = mdl_side_read(root_fd, "modules.json", MDL_MAX_CONFIG_BYTES, &text, &n, err);

    add_name(h, "modules.json");
    if (rc == RC_NOT_FOUND) {
        add_absent(h);
        return RC_OK;
    }
    if (rc != RC_OK)
        return rc;
    add_bytes(h, text, n);
    list = json_loadb(text, n, 0, NULL);
    for (i = 0; rc == RC_OK && i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(m, "type"));
        const char *path = json_string_value(json_object_get(m, "path"));

        if (!ends_with(type, "Pooling") && !ends_with(type, "Dense"))
            continue;
        snprintf(name, sizeof(name), "%s%sconfig.json", path ? path : "", path && *path ? "/" : "");
        rc = add_side_file(h, root_fd, name, err);
    }
    json_decref(list);
    free(text);
    return rc;
}

static void add_weights(struct hash *h, const struct mdl_file *f)
{
    const uint8_t *p;
    const char *name;
    size_t i, at, k, n;

    for (i = 0; mdl_file_map(f, i, &name, &p, &n); i++) {
        add_name(h, name);
        add_length(h, n);
        for (at = 0; at < n; at += k) {
            k = n - at < STEP ? n - at : STEP;
            sha256_update(&h->s, k, p + at);
            h->done += k;
            if (h->opts->progress)
                h->opts->progress(h->opts->progress_user, "identity", h->done, h->total);
        }
    }
}

enum rc mdl_identity(const struct mdl *m, int root_fd, const char *recipe, char out[65],
                     struct rc_err *err)
{
    struct hash h = {.opts = &m->opts};
    uint8_t digest[SHA256_DIGEST_SIZE];
    const uint8_t *p;
    const char *name;
    size_t i, n;
    enum rc rc;

    for (i = 0; mdl_file_map(m->file, i, &name, &p, &n); i++)
        h.total += n;
    sha256_init(&h.s);
    add_name(&h, recipe);
    if ((rc = add_side_file(&h, root_fd, "config.json", err)) != RC_OK ||
        (rc = add_side_file(&h, root_fd, "model.safetensors.index.json", err)) != RC_OK)
        return rc;
    add_weights(&h, m->file);
    for (i = 0; i < sizeof(side_files) / sizeof(*side_files); i++)
        if ((rc = add_side_file(&h, root_fd, side_files[i], err)) != RC_OK)
            return rc;
    if ((rc = add_modules(&h, root_fd, err)) != RC_OK)
        return rc;
    sha256_digest(&h.s, sizeof(digest), digest);
    base16_encode_update(out, sizeof(digest), digest);
    out[64] = '\0';
    return RC_OK;
}
