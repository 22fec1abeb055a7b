/* sup_cmd_keys.c - `inferd keys`: makes, lists, replaces and revokes API keys, offline.
 *
 * Works on the folder under its lock; a running server reads it again at SIGHUP. A key is
 * printed once, on stdout, and its memory is wiped; nothing else here ever holds one.
 * Tests: tests/supervisor/test_sup_cli_keys.c, tests/e2e/keys.py
 */
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_common.h"
#include "sup_grant.h"
#include "sup_keys.h"
#include "sup_near.h"
#include "sup_term.h"
#include "sup_vault_cli.h"
#include "sup_vault_dir.h"

enum {
    O_DIR,
    O_CONFIG,
    O_TENANT,
    O_NAME,
    O_WEIGHT,
    O_ADMIN,
    O_MODEL,
    O_ENDPOINTS,
    O_EXPIRES,
    O_RPM,
    O_TPM,
    O_CONCURRENCY,
    O_TPD,
    O_CACHE,
    O_GRACE,
    O_FORGET,
    O_PID_FILE,
    O_JSON
};

#define LIMIT 1e12
const struct sup_opt sup_opts_keys[] = {
    {"vault-dir", SUP_O_TEXT, "DIR",
     "folder of the keys (default INFERD_VAULT_DIR, or vault_dir of "
     "--config)",
     0, 0},
    {"config", SUP_O_TEXT, "FILE", "the server's configuration (default INFERD_CONFIG)", 0, 0},
    {"tenant", SUP_O_TEXT, "NAME", "create: whose key it is (default 'default'); list: only those",
     0, 0},
    {"name", SUP_O_TEXT, "TEXT", "create: a word for people, shown by list", 0, 0},
    {"weight", SUP_O_NUM, "N", "create: the tenant's share when the server is busy (default 1)", 1,
     1000},
    {"admin", SUP_O_FLAG, NULL, "create: may load and unload models, and see all tenants' figures",
     0, 0},
    {"model", SUP_O_TEXT, "ID",
     "create: may use this model; may be repeated; 'bert*' = all that "
     "begin so (default all)",
     0, 0},
    {"endpoints", SUP_O_TEXT, "LIST",
     "create: generate,embed,rerank,extract,decide,tokens,watch "
     "(default all)",
     0, 0},
    {"expires", SUP_O_TEXT, "WHEN", "create: 30d, 12h, 2027-01-31 or never (default never)", 0, 0},
    {"requests-per-minute", SUP_O_NUM, "N", "create: 0 = no limit (default)", 0, LIMIT},
    {"tokens-per-minute", SUP_O_NUM, "N", "create: of prompts and answers together", 0, LIMIT},
    {"concurrency", SUP_O_NUM, "N", "create: requests in work or waiting", 0, LIMIT},
    {"tokens-per-day", SUP_O_NUM, "N", "create: by UTC", 0, LIMIT},
    {"cache-percent", SUP_O_NUM, "N", "create: of each prompt cache, at most; 0 = what it uses", 0,
     100},
    {"grace", SUP_O_TEXT, "TIME",
     "rotate: how long the old key still works (default 1h; 0 = no "
     "longer)",
     0, 0},
    {"forget", SUP_O_FLAG, NULL, "revoke: also remove what is known of the key", 0, 0},
    {"pid-file", SUP_O_TEXT, "FILE", "tell the server whose process number it holds", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print JSON", 0, 0},
    {0},
};

struct keys_cmd {
    const struct sup_args *a;
    struct sup_vault_stay stay;
    struct sup_keys keys;
    uint64_t now_s;
};

/* --------------------------------------------------------------------- files */

/* Notes the act, then makes it so. */
static enum rc write_keys(struct keys_cmd *c, const char *act, const struct sup_key *k,
                          struct rc_err *err)
{
    struct sup_json o = {.limit = SUP_KEYS_FILE_BYTES};
    char fields[200];
    enum rc rc;

    snprintf(fields, sizeof(fields), ",\"key\":\"%s\",\"tenant\":\"%s\"", k->id, k->tenant);
    sup_keys_print(&c->keys, &o);
    if (o.failed)
        rc = rc_fail(err, RC_TOO_LARGE, "the file of keys would be over %u bytes",
                     SUP_KEYS_FILE_BYTES);
    else if ((rc = sup_vault_note(&c->stay, act, fields, err)) == RC_OK)
        rc = sup_vault_dir_replace(c->stay.dir_fd, SUP_VAULT_KEYS, o.p, o.n, err);
    sup_json_deinit(&o);
    return rc;
}

static enum rc find(struct keys_cmd *c, struct sup_key **out, struct rc_err *err)
{
    const char *id = c->a->n_pos > 1 ? c->a->pos[1] : NULL;

    if (!id)
        return rc_fail(err, RC_INVALID,
                       "which key? expected its id, as 'inferd keys list' shows it");
    if (strncmp(id, SUP_KEY_PREFIX, strlen(SUP_KEY_PREFIX)) == 0)
        return rc_fail(err, RC_INVALID,
                       "expected the id of a key (its %u letters behind '" SUP_KEY_PREFIX "'), not "
                       "the key: keys do not belong on command lines, where others can see them",
                       SUP_KEY_ID_CHARS);
    if (!(*out = sup_keys_find(&c->keys, id)))
        return rc_fail(err, RC_NOT_FOUND, "no key '%.40s' in %s", id, c->stay.path);
    return RC_OK;
}

/* -------------------------------------------------------------------- output */

static void print_json(struct keys_cmd *c, const struct sup_key *k, const char *text)
{
    struct sup_json o = {0};

    sup_key_json(k, c->now_s, &o);
    if (!o.failed && text)
        printf("%.*s,\"key\":\"%s\"}\n", (int)o.n - 1, o.p, text);
    else if (!o.failed)
        printf("%.*s\n", (int)o.n, o.p);
    sup_json_deinit(&o);
}

static void when(uint64_t s, char out[24])
{
    time_t t = (time_t)s;
    struct tm tm;

    if (s)
        strftime(out, 24, "%Y-%m-%d %H:%M", gmtime_r(&t, &tm));
    else
        snprintf(out, 24, "-");
}

static void print_row(struct keys_cmd *c, const struct sup_key *k)
{
    char made[24], ends[24];

    when(k->created_s, made);
    when(k->expires_s, ends);
    printf("%-13s %-8s %-20s %-5s %-16s %-16s ", k->id, sup_key_state(k, c->now_s), k->tenant,
           k->admin ? "admin" : "", made, ends);
    sup_print_clean(stdout, k->name, false);
    putchar('\n');
}

/* Once, and alone on stdout: what a script captures is the key. */
static void hand_out(struct keys_cmd *c, const struct sup_key *k, char text[SUP_KEY_TEXT])
{
    if (c->a->v[O_JSON].set)
        print_json(c, k, text);
    else
        printf("%s\n", text);
    fprintf(stderr, "Key %s of tenant '%s'. It is shown only now: only a hash of it is kept.\n",
            k->id, k->tenant);
}

/* ------------------------------------------------------------------- actions */

static bool scope_of(const char *word, size_t n, uint32_t *bits)
{
#define X(id, bit, w, what)                          \
    if (strlen(w) == n && memcmp(word, w, n) == 0) { \
        *bits |= SUP_SCOPE_##id;                     \
        return true;                                 \
    }
    SUP_SCOPES(X)
#undef X
    return false;
}

static enum rc read_scopes(const char *list, uint32_t *bits, struct rc_err *err)
{
    while (list && *list) {
        size_t n = strcspn(list, ",");

        if (!scope_of(list, n, bits))
            return rc_fail_what(err, RC_INVALID, "endpoints",
                                "option '--endpoints': '%.*s': expected words of generate, embed, "
                                "rerank, extract, decide, tokens, watch",
                                (int)n, list);
        list += n + (list[n] == ',');
    }
    return RC_OK;
}

static enum rc read_models(const struct sup_args *a, struct sup_key *k, struct rc_err *err)
{
    for (int i = 0; i < a->n_given; i++) {
        if (a->given[i].opt != O_MODEL)
            continue;
        if (k->n_models == SUP_GRANT_MODELS)
            return rc_fail_what(err, RC_INVALID, "model", "at most %d models", SUP_GRANT_MODELS);
        if (!k->models && !(k->models = calloc(SUP_GRANT_MODELS, sizeof(*k->models))))
            return rc_fail(err, RC_NOMEM, "out of memory");
        if (!(k->models[k->n_models] = strdup(a->given[i].text)))
            return rc_fail(err, RC_NOMEM, "out of memory");
        k->n_models++;
    }
    return RC_OK;
}

static uint64_t num(const struct sup_args *a, int opt, uint64_t otherwise)
{
    return a->v[opt].set ? (uint64_t)a->v[opt].num : otherwise;
}

static enum rc new_key(struct keys_cmd *c, struct sup_key *k, struct rc_err *err)
{
    const struct sup_args *a = c->a;
    enum rc rc;

    *k = (struct sup_key){.weight = (uint32_t)num(a, O_WEIGHT, 1),
                          .admin = a->v[O_ADMIN].set,
                          .created_s = c->now_s,
                          .requests_per_minute = num(a, O_RPM, 0),
                          .tokens_per_minute = num(a, O_TPM, 0),
                          .concurrency = num(a, O_CONCURRENCY, 0),
                          .tokens_per_day = num(a, O_TPD, 0),
                          .cache_percent = (uint32_t)num(a, O_CACHE, 0)};
    k->tenant = strdup(a->v[O_TENANT].set ? a->v[O_TENANT].text : SUP_TENANT_ANONYMOUS);
    k->name = strdup(a->v[O_NAME].set ? a->v[O_NAME].text : "");
    if (!k->tenant || !k->name)
        return rc_fail(err, RC_NOMEM, "out of memory");
    if (a->v[O_EXPIRES].set && !sup_moment_parse(a->v[O_EXPIRES].text, c->now_s, &k->expires_s))
        return rc_fail_what(err, RC_INVALID, "expires",
                            "option '--expires': '%.40s': expected 30d, 12h, 2027-01-31, "
                            "2027-01-31T12:00:00Z or never",
                            a->v[O_EXPIRES].text);
    if (k->expires_s && k->expires_s <= c->now_s)
        return rc_fail_what(err, RC_INVALID, "expires", "option '--expires': '%.40s' is over",
                            a->v[O_EXPIRES].text);
    if ((rc = read_scopes(a->v[O_ENDPOINTS].text, &k->endpoints, err)) != RC_OK)
        return rc;
    return read_models(a, k, err);
}

static enum rc do_create(struct keys_cmd *c, struct rc_err *err)
{
    char text[SUP_KEY_TEXT] = "", id[SUP_KEY_ID_CHARS + 1];
    struct sup_key k;
    enum rc rc = new_key(c, &k, err);

    if (rc == RC_OK && (rc = sup_keys_add(&c->keys, &k, text, err)) == RC_OK) {
        const struct sup_key *made;

        memcpy(id, text + strlen(SUP_KEY_PREFIX), SUP_KEY_ID_CHARS);
        id[SUP_KEY_ID_CHARS] = '\0';
        made = sup_keys_find(&c->keys, id);
        if ((rc = write_keys(c, "key.create", made, err)) == RC_OK)
            hand_out(c, made, text);
    }
    sup_key_deinit(&k);
    sodium_memzero(text, sizeof(text));
    return rc;
}

static enum rc do_rotate(struct keys_cmd *c, struct rc_err *err)
{
    const struct sup_args *a = c->a;
    char text[SUP_KEY_TEXT] = "";
    struct sup_key *k = NULL;
    uint64_t grace = 3600;
    enum rc rc;

    if (a->v[O_GRACE].set && !sup_duration_parse(a->v[O_GRACE].text, &grace))
        return rc_fail_what(err, RC_INVALID, "grace",
                            "option '--grace': '%.40s': expected a time like 0, 15m, 24h or 7d",
                            a->v[O_GRACE].text);
    if ((rc = find(c, &k, err)) != RC_OK)
        return rc;
    if (k->revoked_s)
        return rc_fail(err, RC_CONFLICT, "key '%s' is revoked: create a new one", k->id);
    sup_key_rotate(k, c->now_s, grace, text);
    if ((rc = write_keys(c, "key.rotate", k, err)) == RC_OK)
        hand_out(c, k, text);
    sodium_memzero(text, sizeof(text));
    return rc;
}

static enum rc do_revoke(struct keys_cmd *c, struct rc_err *err)
{
    struct sup_key *k = NULL, gone = {0};
    enum rc rc = find(c, &k, err);

    if (rc != RC_OK)
        return rc;
    if (!k->revoked_s)
        k->revoked_s = c->now_s;
    gone = *k;
    if (c->a->v[O_FORGET].set) {
        c->keys.n--;
        memmove(k, k + 1, (size_t)(c->keys.key + c->keys.n - k) * sizeof(*k));
    }
    rc = write_keys(c, c->a->v[O_FORGET].set ? "key.forget" : "key.revoke", &gone, err);
    if (rc == RC_OK && c->a->v[O_JSON].set)
        print_json(c, &gone, NULL);
    else if (rc == RC_OK)
        printf("key %s of tenant '%s' is revoked%s\n", gone.id, gone.tenant,
               c->a->v[O_FORGET].set ? " and forgotten" : "");
    if (c->a->v[O_FORGET].set)
        sup_key_deinit(&gone);
    return rc;
}

static enum rc do_list(struct keys_cmd *c, struct rc_err *err)
{
    const char *tenant = c->a->v[O_TENANT].text;

    (void)err;
    if (!c->a->v[O_JSON].set)
        printf("%-13s %-8s %-20s %-5s %-16s %-16s %s\n", "ID", "STATE", "TENANT", "", "CREATED",
               "EXPIRES", "NAME");
    for (size_t i = 0; i < c->keys.n; i++) {
        if (tenant && strcmp(tenant, c->keys.key[i].tenant) != 0)
            continue;
        if (c->a->v[O_JSON].set)
            print_json(c, &c->keys.key[i], NULL);
        else
            print_row(c, &c->keys.key[i]);
    }
    return RC_OK;
}

static enum rc do_show(struct keys_cmd *c, struct rc_err *err)
{
    struct sup_key *k = NULL;
    struct sup_json o = {0};
    json_t *j;
    enum rc rc = find(c, &k, err);

    if (rc != RC_OK || c->a->v[O_JSON].set) {
        if (rc == RC_OK)
            print_json(c, k, NULL);
        return rc;
    }
    sup_key_json(k, c->now_s, &o);
    if ((j = json_loadb(o.p, o.n, 0, NULL))) {
        (void)json_dumpf(j, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    }
    json_decref(j);
    sup_json_deinit(&o);
    return RC_OK;
}

static const struct action {
    const char *word;
    enum rc (*run)(struct keys_cmd *c, struct rc_err *err);
    bool changes, makes_dir;
    int n_pos; /* with the word */
} actions[] = {
    {"create", do_create, true, true, 1},  {"list", do_list, false, false, 1},
    {"rotate", do_rotate, true, false, 2}, {"revoke", do_revoke, true, false, 2},
    {"show", do_show, false, false, 2},
};

int sup_cmd_keys(const struct sup_args *a)
{
    struct keys_cmd c = {.a = a, .now_s = (uint64_t)time(NULL)};
    const struct action *act = NULL;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(a->pos[0], actions[i].word) == 0)
            act = &actions[i];
    if (!act || a->n_pos > act->n_pos)
        return sup_usage_error(a->cmd,
                               act ? "'%.40s': too many arguments"
                                   : "'%.40s': expected create, list, rotate, revoke or show",
                               a->pos[0]);
    if (sodium_init() < 0)
        return sup_usage_error(a->cmd, "libsodium cannot start");
    rc = sup_vault_enter(&c.stay, a, a->v[O_DIR].text, a->v[O_CONFIG].text, act->changes,
                         act->makes_dir, &err);
    if (rc == RC_OK && (rc = sup_keys_load(&c.keys, c.stay.dir_fd, c.stay.path, &err)) == RC_OK &&
        (rc = act->run(&c, &err)) == RC_OK && act->changes)
        rc = sup_vault_hup(a->v[O_PID_FILE].text, &err);
    sup_keys_deinit(&c.keys);
    sup_vault_leave(&c.stay);
    if (rc == RC_OK)
        return SUP_EXIT_OK;
    return rc == RC_INVALID ? sup_usage_error(a->cmd, "%s", err.msg) : sup_fail(a->cmd, &err);
}
