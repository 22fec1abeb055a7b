/* sup_grant.c - grants: made, counted, asked.
 *
 * What comes from the vault is checked like any peer's word. Tests:
 * tests/supervisor/test_sup_grant.c */
#include "sup_grant.h"

#include <stdlib.h>
#include <string.h>

bool sup_grant_word(const char *s, unsigned max)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

    return n > 0 && n <= max && s[n] == '\0';
}

static bool model_pattern(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n <= 255 && (!strchr(s, '*') || strchr(s, '*') == s + n - 1);
}

static enum rc copy_models(struct sup_grant *g, const Ipc__Grant *from, struct rc_err *err)
{
    if (from->n_models == 0)
        return RC_OK;
    if (from->n_models > SUP_GRANT_MODELS)
        return rc_fail(err, RC_FORMAT, "a grant names %zu models, at most %d are read",
                       from->n_models, SUP_GRANT_MODELS);
    if (!(g->models = calloc(from->n_models + 1, sizeof(*g->models))))
        return rc_fail(err, RC_NOMEM, "no memory for a grant");
    for (size_t i = 0; i < from->n_models; i++) {
        if (!model_pattern(from->models[i]))
            return rc_fail(err, RC_FORMAT,
                           "a grant's model pattern is empty, longer than 255 "
                           "bytes, or has a star that is not its end");
        if (!(g->models[i] = strdup(from->models[i])))
            return rc_fail(err, RC_NOMEM, "no memory for a grant");
    }
    return RC_OK;
}

enum rc sup_grant_new(struct sup_grant **out, const Ipc__Grant *from, struct rc_err *err)
{
    struct sup_grant *g = NULL;
    enum rc rc;

    if (!sup_grant_word(from->tenant, SUP_TENANT_MAX) ||
        (from->key_id[0] && !sup_grant_word(from->key_id, SUP_KEY_ID_MAX)) || from->weight < 1 ||
        from->weight > 1000 || from->cache_percent > 100)
        return rc_fail(err, RC_FORMAT, "a grant's tenant, key id, weight or share is malformed");
    if (!(g = calloc(1, sizeof(*g))))
        return rc_fail(err, RC_NOMEM, "no memory for a grant");
    g->refs = 1;
    memcpy(g->tenant, from->tenant, strlen(from->tenant) + 1);
    memcpy(g->key_id, from->key_id, strlen(from->key_id) + 1);
    g->weight = from->weight;
    g->admin = from->admin;
    g->endpoints = from->endpoints;
    g->expires_unix_s = from->expires_unix_s;
    g->requests_per_minute = from->requests_per_minute;
    g->tokens_per_minute = from->tokens_per_minute;
    g->concurrency = from->concurrency;
    g->tokens_per_day = from->tokens_per_day;
    g->cache_percent = from->cache_percent;
    if ((rc = copy_models(g, from, err)) != RC_OK)
        goto out;
    *out = g;
    g = NULL;
out:
    sup_grant_unref(&g);
    return rc;
}

enum rc sup_grant_anonymous(struct sup_grant **out, struct rc_err *err)
{
    Ipc__Grant g = IPC__GRANT__INIT;

    g.tenant = SUP_TENANT_ANONYMOUS;
    g.weight = 1;
    g.admin = true;
    return sup_grant_new(out, &g, err);
}

struct sup_grant *sup_grant_ref(struct sup_grant *g)
{
    g->refs++;
    return g;
}

void sup_grant_unref(struct sup_grant **gp)
{
    struct sup_grant *g = *gp;

    *gp = NULL;
    if (!g || --g->refs > 0)
        return;
    for (char **m = g->models; m && *m; m++)
        free(*m);
    free(g->models);
    free(g);
}

bool sup_grant_model(const struct sup_grant *g, const char *model_id)
{
    if (!g->models)
        return true;
    for (char **m = g->models; *m; m++) {
        size_t n = strlen(*m);

        if ((*m)[n - 1] == '*' ? strncmp(*m, model_id, n - 1) == 0 : strcmp(*m, model_id) == 0)
            return true;
    }
    return false;
}

bool sup_grant_scope(const struct sup_grant *g, enum sup_scope s)
{
    return g->endpoints == 0 || (g->endpoints & (uint32_t)s) != 0;
}
