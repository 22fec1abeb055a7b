/* sup_conf.c - the engine over the option table SUP_OPTIONS.
 *
 * Reads a JSON file, the environment and flags into one struct (help, the page and JSON of it:
 * sup_conf_print.c; rules between options: sup_conf_check.c; what may change while the server
 * runs: sup_conf_live.c). Knows option names and ranges; knows nothing of what an option does.
 *
 * Always true: a failed load changes nothing in *out; every message names source,
 * key, value and expectation; each string of struct sup_conf is heap memory and
 * never NULL (lists may be NULL). Tests: tests/supervisor/test_sup_conf.c,
 * tests/fuzz/fuzz_conf.c
 */
#include "sup_conf_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_near.h"

#define FILE_MAX_BYTES (1u << 20)
#define LIST_MAX 1000
#define STR_MAX_BYTES 4096
#define SHOWN_MAX 80 /* bytes of a bad value quoted in a message */

#define ROW_STR(d, mn, mx) .def_s = d
#define ROW_ENUM(d, mn, mx) .def_s = d, .words = mn
#define ROW_U64(d, mn, mx) .def_u = d, .min = mn, .max = mx
#define ROW_BOOL(d, mn, mx) .def_b = d
#define ROW_LIST(d, mn, mx) .def_s = d
const struct sup_conf_opt sup_conf_opts[SUP_OPT_COUNT] = {
#define X(f, k, d, mn, mx, g, h)          \
    {.name = #f,                          \
     .kind = k,                           \
     .off = offsetof(struct sup_conf, f), \
     .group = g,                          \
     .help = h,                           \
     ROW_##k(d, mn, mx)},
    SUP_OPTIONS(X)
#undef X
};

const char *const sup_conf_env_exempt[] = {"INFERD_SERVER", "INFERD_CONFIG", "INFERD_API_KEY",
                                           "INFERD_BIN",    "INFERD_PRESET", NULL};
#define ENV_PREFIX "INFERD_"
static const char *const env_exempt_prefixes[] = {"INFERD_TEST_", "INFERD_BENCH_"};

/* A message is about one word of one source. */
struct place {
    enum sup_conf_from from;
    const char *file;  /* SUP_FROM_FILE */
    const char *spelt; /* key, variable or flag as the person wrote it */
};

/* ------------------------------------------------------------------- values */

void *sup_conf_field(struct sup_conf *c, const struct sup_conf_opt *o)
{
    return (char *)c + o->off;
}

const void *sup_conf_view(const struct sup_conf *c, const struct sup_conf_opt *o)
{
    return (const char *)c + o->off;
}

static void list_free(char **l)
{
    for (size_t i = 0; l && l[i]; i++)
        free(l[i]);
    free(l);
}

void sup_conf_value_free(struct sup_conf *c, const struct sup_conf_opt *o)
{
    if (o->kind == STR || o->kind == ENUM) {
        char **s = sup_conf_field(c, o);

        free(*s);
        *s = NULL;
    } else if (o->kind == LIST) {
        char ***l = sup_conf_field(c, o);

        list_free(*l);
        *l = NULL;
    }
}

static bool word_listed(const char *words, const char *s, size_t n)
{
    while (words) {
        size_t len = strcspn(words, "|");

        if (len == n && memcmp(words, s, n) == 0)
            return true;
        words = words[len] ? words + len + 1 : NULL;
    }
    return false;
}

static void expectation(const struct sup_conf_opt *o, char *out, size_t cap)
{
    switch (o->kind) {
    case STR:
        snprintf(out, cap, "a text of at most %d bytes without control characters", STR_MAX_BYTES);
        break;
    case U64:
        snprintf(out, cap, "a whole number from %" PRIu64 " to %" PRIu64, o->min, o->max);
        break;
    case BOOL:
        snprintf(out, cap, "true or false");
        break;
    case ENUM:
        snprintf(out, cap, "one of %s", o->words);
        break;
    case LIST:
        snprintf(out, cap, "a list of at most %d non-empty texts", LIST_MAX);
        break;
    }
}

/* "config file 'x.json', key 'port'" / "environment INFERD_PORT" / "flag --port" */
static void describe(const struct place *p, char *out, size_t cap)
{
    if (p->from == SUP_FROM_FILE)
        snprintf(out, cap, "config file '%s', key '%s'", p->file, p->spelt);
    else if (p->from == SUP_FROM_ENV)
        snprintf(out, cap, "environment variable %s", p->spelt);
    else if (p->from == SUP_FROM_FLAG)
        snprintf(out, cap, "flag %s", p->spelt);
    else
        snprintf(out, cap, "default of '%s'", p->spelt);
}

static enum rc bad_value(const struct place *p, const struct sup_conf_opt *o, const char *value,
                         struct rc_err *err)
{
    char where[320], want[128];
    size_t n = strlen(value);

    describe(p, where, sizeof(where));
    expectation(o, want, sizeof(want));
    return rc_fail_what(err, RC_INVALID, o->name, "%s: value '%.*s'%s: expected %s", where,
                        SHOWN_MAX, value, n > SHOWN_MAX ? "..." : "", want);
}

static bool text_ok(const char *s)
{
    size_t n = strnlen(s, STR_MAX_BYTES + 1);

    if (n > STR_MAX_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F)
            return false;
    return true;
}

static enum rc set_string(struct sup_conf *c, const struct sup_conf_opt *o, const char *s,
                          struct rc_err *err)
{
    char *copy = strdup(s);

    if (!copy)
        return rc_fail(err, RC_NOMEM, "out of memory reading the configuration");
    sup_conf_value_free(c, o);
    *(char **)sup_conf_field(c, o) = copy;
    return RC_OK;
}

static enum rc list_add(struct sup_conf *c, const struct sup_conf_opt *o, const struct place *p,
                        const char *s, size_t n, struct rc_err *err)
{
    char ***l = sup_conf_field(c, o), **grown, *copy;
    size_t have = 0;

    while (*l && (*l)[have])
        have++;
    copy = strndup(s, n);
    grown = copy ? realloc(*l, (have + 2) * sizeof(*grown)) : NULL;
    if (!grown) {
        free(copy);
        return rc_fail(err, RC_NOMEM, "out of memory reading the configuration");
    }
    *l = grown;
    grown[have] = copy;
    grown[have + 1] = NULL;
    return n == 0 || have + 1 > LIST_MAX || !text_ok(copy) ? bad_value(p, o, s, err) : RC_OK;
}

static bool parse_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;

    if (!*s)
        return false;
    for (; *s; s++) {
        unsigned d = (unsigned)(*s - '0');

        if (*s < '0' || *s > '9' || v > (UINT64_MAX - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

static int parse_bool(const char *s)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};

    for (int i = 0; i < 4; i++) {
        if (strcmp(s, yes[i]) == 0)
            return 1;
        if (strcmp(s, no[i]) == 0)
            return 0;
    }
    return -1;
}

/* A value written as text: environment and flags. */
static enum rc set_text(struct sup_conf *c, const struct sup_conf_opt *o, const struct place *p,
                        const char *s, struct rc_err *err)
{
    enum rc rc = RC_OK;
    uint64_t u;
    int b;

    switch (o->kind) {
    case STR:
        if (!text_ok(s))
            return bad_value(p, o, s, err);
        rc = set_string(c, o, s, err);
        break;
    case ENUM:
        if (!word_listed(o->words, s, strlen(s)))
            return bad_value(p, o, s, err);
        rc = set_string(c, o, s, err);
        break;
    case U64:
        if (!parse_u64(s, &u) || u < o->min || u > o->max)
            return bad_value(p, o, s, err);
        *(uint64_t *)sup_conf_field(c, o) = u;
        break;
    case BOOL:
        if ((b = parse_bool(s)) < 0)
            return bad_value(p, o, s, err);
        *(bool *)sup_conf_field(c, o) = b;
        break;
    case LIST:
        /* a stronger source replaces the list; a repeated flag adds to it */
        if (p->from != SUP_FROM_FLAG || c->from[o - sup_conf_opts] != SUP_FROM_FLAG)
            sup_conf_value_free(c, o);
        if (p->from == SUP_FROM_FLAG) {
            rc = list_add(c, o, p, s, strlen(s), err);
            break;
        }
        while (*s && rc == RC_OK) {
            size_t n = strcspn(s, ",");

            rc = list_add(c, o, p, s, n, err);
            if (rc == RC_OK && s[n] == ',' && !s[n + 1])
                rc = bad_value(p, o, s, err); /* "a," names an empty model */
            s += n + (s[n] == ',');
        }
        break;
    }
    if (rc == RC_OK)
        c->from[o - sup_conf_opts] = (unsigned char)p->from;
    return rc;
}

/* ------------------------------------------------------------------ near names */

/* The option a person most likely meant, or NULL. */
static const struct sup_conf_opt *nearest(const char *s, size_t n)
{
    const struct sup_conf_opt *best = NULL;
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        size_t d = sup_near(s, n, sup_conf_opts[i].name);

        if (d < least) {
            least = d;
            best = &sup_conf_opts[i];
        }
    }
    return n > 0 && least <= 1 + n / 4 ? best : NULL;
}

static const struct sup_conf_opt *find(const char *s, size_t n)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        const char *name = sup_conf_opts[i].name;
        size_t j = 0;

        while (j < n && name[j] && (s[j] == name[j] || (s[j] == '-' && name[j] == '_')))
            j++;
        if (j == n && !name[j])
            return &sup_conf_opts[i];
    }
    return NULL;
}

/* Spelling of an option in a source: key, INFERD_KEY, --key. */
void sup_conf_spell(const struct sup_conf_opt *o, enum sup_conf_from from, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s",
             from == SUP_FROM_ENV    ? ENV_PREFIX
             : from == SUP_FROM_FLAG ? "--"
                                     : "",
             o->name);
    for (char *p = out; *p && from != SUP_FROM_FILE; p++) {
        if (from == SUP_FROM_FLAG && *p == '_')
            *p = '-';
        else if (from == SUP_FROM_ENV && *p >= 'a' && *p <= 'z')
            *p = (char)(*p - 32);
    }
}

static enum rc unknown(const struct place *p, const char *name, size_t n, struct rc_err *err)
{
    const struct sup_conf_opt *o = nearest(name, n);
    char where[320], hint[96] = "";

    describe(p, where, sizeof(where));
    if (o) {
        char spelt[64];

        sup_conf_spell(o, p->from, spelt, sizeof(spelt));
        snprintf(hint, sizeof(hint), "; did you mean '%s'?", spelt);
    }
    return rc_fail_what(err, RC_INVALID, p->spelt, "%s: no such option%s%s", where, hint,
                        o ? "" : " ('inferd help config' lists them all)");
}

/* ------------------------------------------------------------------ sources */

static enum rc set_defaults(struct sup_conf *c, struct rc_err *err)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        const struct sup_conf_opt *o = &sup_conf_opts[i];

        if (o->kind == U64)
            *(uint64_t *)sup_conf_field(c, o) = o->def_u;
        else if (o->kind == BOOL)
            *(bool *)sup_conf_field(c, o) = o->def_b;
        else if (o->kind != LIST && set_string(c, o, o->def_s, err) != RC_OK)
            return RC_NOMEM;
    }
    return RC_OK;
}

static enum rc set_json(struct sup_conf *c, const struct sup_conf_opt *o, const struct place *p,
                        const json_t *v, struct rc_err *err)
{
    char *shown = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    enum rc rc = RC_INVALID;
    bool right = false;

    if (!shown)
        return rc_fail(err, RC_NOMEM, "out of memory reading the configuration");
    switch (o->kind) {
    case STR:
    case ENUM:
        right = json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
        if (right)
            rc = set_text(c, o, p, json_string_value(v), err);
        break;
    case U64:
        right = json_is_integer(v) && json_integer_value(v) >= 0;
        if (right) {
            char b[24];

            snprintf(b, sizeof(b), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
            rc = set_text(c, o, p, b, err);
        }
        break;
    case BOOL:
        right = json_is_boolean(v);
        if (right)
            rc = set_text(c, o, p, json_is_true(v) ? "true" : "false", err);
        break;
    case LIST:
        right = json_is_array(v);
        sup_conf_value_free(c, o);
        c->from[o - sup_conf_opts] = (unsigned char)p->from;
        rc = RC_OK;
        for (size_t i = 0; right && rc == RC_OK && i < json_array_size(v); i++) {
            const json_t *s = json_array_get(v, i);

            right = json_is_string(s) && strlen(json_string_value(s)) == json_string_length(s);
            if (right)
                rc = list_add(c, o, p, json_string_value(s), json_string_length(s), err);
        }
        break;
    }
    if (!right)
        rc = bad_value(p, o, shown, err);
    free(shown);
    return rc;
}

static enum rc slurp(const char *path, char **out, size_t *out_n, struct rc_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *b = NULL, *grown;
    size_t n = 0, cap = 4096;
    ssize_t r = 1;
    enum rc rc = RC_OK;

    if (fd < 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, path,
                            "config file '%s': %s", path, strerror(errno));
    while (r != 0) {
        if (!(grown = realloc(b, cap))) {
            rc = rc_fail(err, RC_NOMEM, "out of memory reading the configuration");
            goto out;
        }
        b = grown;
        r = read(fd, b + n, cap - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            rc = rc_fail_what(err, RC_IO, path, "config file '%s': %s", path, strerror(errno));
            goto out;
        }
        n += (size_t)r;
        cap = n == cap ? cap * 2 : cap;
        if (n > FILE_MAX_BYTES) {
            rc = rc_fail_what(err, RC_TOO_LARGE, path, "config file '%s' is larger than %u bytes",
                              path, FILE_MAX_BYTES);
            goto out;
        }
    }
    *out = b;
    *out_n = n;
    b = NULL;
out:
    free(b);
    close(fd);
    return rc;
}

/* name: of the file, for messages. */
static enum rc read_text(struct sup_conf *c, const char *name, const char *text, size_t n,
                         struct rc_err *err)
{
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je), *v;
    enum rc rc = RC_OK;
    const char *key;

    if (!root) {
        rc = rc_fail_what(err, RC_INVALID, name, "config file '%s', line %d, column %d: %s", name,
                          je.line, je.column, je.text);
        goto out;
    }
    if (!json_is_object(root)) {
        rc = rc_fail_what(err, RC_INVALID, name,
                          "config file '%s': expected one JSON object of options, like "
                          "{\"port\": 8090}",
                          name);
        goto out;
    }
    json_object_foreach(root, key, v)
    {
        struct place p = {SUP_FROM_FILE, name, key};
        const struct sup_conf_opt *o = strchr(key, '-') ? NULL : find(key, strlen(key));

        rc = o ? set_json(c, o, &p, v, err) : unknown(&p, key, strlen(key), err);
        if (rc != RC_OK)
            goto out;
    }
out:
    json_decref(root);
    return rc;
}

static enum rc read_file(struct sup_conf *c, const char *path, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = slurp(path, &text, &n, err);

    if (rc == RC_OK)
        rc = read_text(c, path, text, n, err);
    free(text);
    return rc;
}

static const struct sup_conf_opt *find_env(const char *name, size_t n)
{
    char spelt[64];

    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        sup_conf_spell(&sup_conf_opts[i], SUP_FROM_ENV, spelt, sizeof(spelt));
        if (strlen(spelt) == n && memcmp(spelt, name, n) == 0)
            return &sup_conf_opts[i];
    }
    return NULL;
}

static bool env_exempt(const char *name)
{
    for (size_t i = 0; sup_conf_env_exempt[i]; i++)
        if (strcmp(sup_conf_env_exempt[i], name) == 0)
            return true;
    for (size_t i = 0; i < sizeof(env_exempt_prefixes) / sizeof(env_exempt_prefixes[0]); i++)
        if (strncmp(name, env_exempt_prefixes[i], strlen(env_exempt_prefixes[i])) == 0)
            return true;
    return false;
}

static enum rc read_env(struct sup_conf *c, char *const *envp, struct rc_err *err)
{
    for (; envp && *envp; envp++) {
        const char *eq = strchr(*envp, '=');
        const struct sup_conf_opt *o;
        char name[128];
        size_t n;
        enum rc rc;

        if (strncmp(*envp, ENV_PREFIX, strlen(ENV_PREFIX)) != 0 || !eq)
            continue;
        n = (size_t)(eq - *envp);
        snprintf(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : sizeof(name) - 1), *envp);
        struct place p = {SUP_FROM_ENV, NULL, name};
        o = find_env(*envp, n);
        if (o)
            rc = set_text(c, o, &p, eq + 1, err);
        else if (env_exempt(name))
            continue;
        else
            rc = unknown(&p, name + strlen(ENV_PREFIX), strlen(name) - strlen(ENV_PREFIX), err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* One flag at argv[0]; *n_words is 1 or 2 on success. */
static enum rc read_flag(struct sup_conf *c, int argc, char *const *argv, int *n_words,
                         struct rc_err *err)
{
    const char *name = argv[0] + 2, *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    const struct sup_conf_opt *o = find(name, n);
    char spelt[160], want[128];
    struct place p = {SUP_FROM_FLAG, NULL, spelt};

    *n_words = 1;
    snprintf(spelt, sizeof(spelt), "--%.*s", (int)(n < 128 ? n : 128), name);
    if (o && eq)
        return set_text(c, o, &p, eq + 1, err);
    if (o && o->kind == BOOL)
        return set_text(c, o, &p, "true", err);
    if (o && argc > 1) {
        *n_words = 2;
        return set_text(c, o, &p, argv[1], err);
    }
    if (o) {
        expectation(o, want, sizeof(want));
        return rc_fail_what(err, RC_INVALID, o->name, "flag %s needs a value: expected %s", spelt,
                            want);
    }
    if (n > 3 && strncmp(name, "no-", 3) == 0 && (o = find(name + 3, n - 3)) != NULL) {
        if (o->kind == BOOL && !eq)
            return set_text(c, o, &p, "false", err);
        return rc_fail_what(err, RC_INVALID, o->name,
                            eq ? "flag %s takes no value"
                               : "flag %s: only options that are true "
                                 "or false can be turned off with --no-",
                            spelt);
    }
    return unknown(&p, name, n, err);
}

static enum rc read_flags(struct sup_conf *c, int argc, char *const *argv, int *n_used,
                          struct rc_err *err)
{
    int i = 0, n;

    while (i < argc && argv[i][0] == '-' && argv[i][1] == '-') {
        enum rc rc;

        if (!argv[i][2]) { /* "--" ends the options */
            i++;
            break;
        }
        rc = read_flag(c, argc - i, argv + i, &n, err);
        if (rc != RC_OK)
            return rc;
        i += n;
    }
    if (n_used)
        *n_used = i;
    return RC_OK;
}

enum rc sup_conf_load(struct sup_conf *out, const char *config_path, char *const *envp, int argc,
                      char *const *argv, int *n_used, struct rc_err *err)
{
    struct sup_conf c = {0};
    int used = 0;
    enum rc rc;

    if ((rc = set_defaults(&c, err)) != RC_OK)
        goto out;
    if (config_path && (rc = read_file(&c, config_path, err)) != RC_OK)
        goto out;
    if ((rc = read_env(&c, envp, err)) != RC_OK)
        goto out;
    if ((rc = read_flags(&c, argc, argv, &used, err)) != RC_OK)
        goto out;
    if ((rc = sup_conf_check(&c, err)) != RC_OK)
        goto out;
    *out = c;
    memset(&c, 0, sizeof(c));
    if (n_used)
        *n_used = used;
out:
    sup_conf_deinit(&c);
    return rc;
}

enum rc sup_conf_parse(struct sup_conf *out, const char *json, size_t n, struct rc_err *err)
{
    struct sup_conf c = {0};
    enum rc rc = set_defaults(&c, err);

    if (rc == RC_OK)
        rc = read_text(&c, "(told)", json, n, err);
    if (rc != RC_OK) {
        sup_conf_deinit(&c);
        return rc;
    }
    *out = c;
    return RC_OK;
}

void sup_conf_deinit(struct sup_conf *c)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++)
        sup_conf_value_free(c, &sup_conf_opts[i]);
}
