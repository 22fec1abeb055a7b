/* sup_listing.c - the server's list of models, and which one a person means.
 * Reads GET /ai/v1/models; what is missing or of another type there is taken as
 * unknown, never trusted to be there. Tests: tests/supervisor/test_sup_cli_client.c */
#include "sup_client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_cli.h"

#define MODELS_MAX 100000
/* a fresh server looks at its models one after the other */
#define PROBE_TRIES 50
#define PROBE_WAIT_MS 100

static char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return strdup(s ? s : "");
}

static uint64_t num_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    json_int_t i = json_is_integer(v) ? json_integer_value(v) : 0;

    return i > 0 ? (uint64_t)i : 0;
}

static uint32_t num32_of(const json_t *o, const char *key)
{
    uint64_t v = num_of(o, key);

    return v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static bool parse_one(struct sup_model *m, const json_t *o)
{
    const json_t *caps = json_object_get(o, "capabilities"), *cap;
    size_t i;

    m->id = text_of(o, "id");
    m->state = text_of(o, "state");
    m->family = text_of(o, "family");
    m->quant = text_of(o, "quant");
    m->error = text_of(o, "last_error");
    m->bytes = num_of(o, "bytes");
    m->load_done = num_of(o, "load_done");
    m->load_total = num_of(o, "load_total");
    m->ctx_tokens = num32_of(o, "ctx_tokens");
    m->embed_dim = num32_of(o, "embed_dim");
    m->known = m->family && m->family[0];
    json_array_foreach(caps, i, cap)
    {
        const char *s = json_string_value(cap);

        if (s && (strcmp(s, "chat") == 0 || strcmp(s, "completions") == 0))
            m->can_generate = true;
        else if (s && strcmp(s, "embeddings") == 0)
            m->can_embed = true;
        else if (s && strcmp(s, "rerank") == 0)
            m->can_rerank = true;
        else if (s && strcmp(s, "extraction") == 0)
            m->can_extract = true;
    }
    return m->id && m->state && m->family && m->quant && m->error;
}

enum rc sup_listing_parse(struct sup_listing *out, const json_t *body, struct rc_err *err)
{
    const json_t *list = json_object_get(body, "data");
    struct sup_listing l = {0};
    size_t n = json_array_size(list);

    if (!json_is_array(list) || n > MODELS_MAX)
        return rc_fail(err, RC_FORMAT, "the server's list of models has an unknown form");
    if (!(l.m = calloc(n + 1, sizeof(*l.m))))
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        l.n = i + 1;
        if (!parse_one(&l.m[i], json_array_get(list, i))) {
            sup_listing_deinit(&l);
            return rc_fail(err, RC_NOMEM, "out of memory");
        }
    }
    *out = l;
    return RC_OK;
}

enum rc sup_listing_get(struct sup_client *c, struct sup_listing *out, struct rc_err *err)
{
    json_t *body = NULL;
    enum rc rc = sup_client_call(c, "/ai/v1/models", NULL, 60000, &body, err);

    if (rc == RC_OK)
        rc = sup_listing_parse(out, body, err);
    json_decref(body);
    return rc;
}

void sup_listing_deinit(struct sup_listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->m[i].id);
        free(l->m[i].state);
        free(l->m[i].family);
        free(l->m[i].quant);
        free(l->m[i].error);
    }
    free(l->m);
    memset(l, 0, sizeof(*l));
}

static bool same(const char *id, const char *name)
{
    size_t n = strlen(name);

    return strcmp(id, name) == 0 || (strncmp(id, name, n) == 0 && strcmp(id + n, ".gguf") == 0);
}

/* A model that could not even be probed is of no kind; one that has not been yet may
 * be of any. */
static bool fits_kind(const struct sup_model *m, enum sup_kind kind)
{
    const bool can[] = {[SUP_KIND_GENERATE] = m->can_generate,
                        [SUP_KIND_EMBED] = m->can_embed,
                        [SUP_KIND_RERANK] = m->can_rerank || m->can_embed,
                        [SUP_KIND_EXTRACT] = m->can_extract};

    return m->known ? can[kind] : !m->error[0];
}

/* Appends ids to a message while they fit. */
static void candidates(const struct sup_listing *l, bool (*take)(const struct sup_model *, void *),
                       void *user, char *out, size_t cap)
{
    size_t n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < l->n; i++) {
        if (!take(&l->m[i], user))
            continue;
        int w = snprintf(out + n, cap - n, "%s%s", n ? ", " : "", l->m[i].id);
        if (w < 0 || (size_t)w >= cap - n) {
            snprintf(out + n, cap - n, "%s", cap - n > 5 ? ", ..." : "");
            return;
        }
        n += (size_t)w;
    }
}

struct wish {
    const char *name; /* part of an id; NULL = any */
    enum sup_kind kind;
};

static bool wished(const struct sup_model *m, void *user)
{
    const struct wish *w = user;

    return fits_kind(m, w->kind) && (!w->name || strstr(m->id, w->name));
}

/* Would the answer be another one if the server had looked at every model? */
static bool undecided(const struct sup_listing *l, const struct wish *w)
{
    for (size_t i = 0; i < l->n; i++)
        if (!l->m[i].known && wished(&l->m[i], (void *)(uintptr_t)w))
            return true;
    return false;
}

static bool any(const struct sup_model *m, void *user)
{
    return true;
}

enum rc sup_listing_pick(const struct sup_listing *l, const char *name, enum sup_kind kind,
                         const struct sup_model **out, struct rc_err *err)
{
    struct wish w = {name, kind};
    static const char *const does[] = {"generates text", "gives embeddings", "scores documents",
                                       "extracts"};
    const struct sup_model *found = NULL;
    char ids[300];
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (name && same(l->m[i].id, name)) {
            *out = &l->m[i];
            return RC_OK;
        }
    for (size_t i = 0; i < l->n; i++)
        if (wished(&l->m[i], &w)) {
            found = &l->m[i];
            n++;
        }
    if (n == 1) {
        *out = found;
        return RC_OK;
    }
    if (n > 1) {
        candidates(l, wished, &w, ids, sizeof(ids));
        return rc_fail(err, RC_CONFLICT, "name a model; there are several: %s", ids);
    }
    candidates(l, any, NULL, ids, sizeof(ids));
    if (l->n == 0)
        return rc_fail(err, RC_NOT_FOUND, "the server has no models: its models folder is empty");
    if (!name)
        return rc_fail(err, RC_NOT_FOUND, "no model here %s; there are: %s", does[kind], ids);
    return rc_fail(err, RC_NOT_FOUND, "no model '%.80s'; there are: %s", name, ids);
}

enum rc sup_listing_choose(struct sup_client *c, struct sup_listing *l, const char *name,
                           enum sup_kind kind, const struct sup_model **out, struct rc_err *err)
{
    struct wish w = {name, kind};
    enum rc rc = RC_OK;

    for (int tries = 0; rc == RC_OK; tries++) {
        sup_listing_deinit(l);
        if ((rc = sup_listing_get(c, l, err)) != RC_OK)
            break;
        rc = sup_listing_pick(l, name, kind, out, err);
        if (rc != RC_CONFLICT || !undecided(l, &w) || tries >= PROBE_TRIES)
            break;
        if (sup_cli_interrupted(false))
            return rc_fail(err, RC_CANCELLED, "interrupted");
        (void)poll(NULL, 0, PROBE_WAIT_MS);
        rc = RC_OK;
    }
    return rc;
}
