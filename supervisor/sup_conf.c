/* sup_conf.c - the engine over the option table SUP_OPTIONS.
 *
 * Reads a JSON file, the environment and flags into one struct; prints help and
 * the documentation page from the same rows. Knows option names and ranges; knows
 * nothing of what an option does, except the few rules between options in check().
 *
 * Always true: a failed load changes nothing in *out; every message names source,
 * key, value and expectation; each string of struct sup_conf is heap memory and
 * never NULL (lists may be NULL). Tests: tests/supervisor/test_sup_conf.c,
 * tests/fuzz/fuzz_conf.c
 */
#include "sup_conf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "sup_near.h"
#include "sup_pull.h"
#include "sup_otlp.h"

#define FILE_MAX_BYTES (1u << 20)
#define LIST_MAX 1000
#define STR_MAX_BYTES 4096
#define SHOWN_MAX 80 /* bytes of a bad value quoted in a message */

enum kind { STR, U64, BOOL, ENUM, LIST };

struct opt {
    const char *name;
    enum kind kind;
    size_t off;
    const char *def_s; /* STR, ENUM */
    const char *words; /* ENUM: allowed words separated by '|' */
    uint64_t def_u, min, max;
    bool def_b;
    const char *group, *help;
};

#define ROW_STR(d, mn, mx) .def_s = d
#define ROW_ENUM(d, mn, mx) .def_s = d, .words = mn
#define ROW_U64(d, mn, mx) .def_u = d, .min = mn, .max = mx
#define ROW_BOOL(d, mn, mx) .def_b = d
#define ROW_LIST(d, mn, mx) .def_s = d
static const struct opt opts[SUP_OPT_COUNT] = {
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

static const struct {
    const char *key, *title;
} groups[] = {
    {"listen", "Listening"},    {"models", "Models"}, {"device", "Device"},
    {"admission", "Admission"}, {"fetch", "Fetching"}, {"safety", "Safety"}, {"watch", "Watching"},
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

static void *field(struct sup_conf *c, const struct opt *o)
{
    return (char *)c + o->off;
}

static const void *field_view(const struct sup_conf *c, const struct opt *o)
{
    return (const char *)c + o->off;
}

static void list_free(char **l)
{
    for (size_t i = 0; l && l[i]; i++)
        free(l[i]);
    free(l);
}

static void value_free(struct sup_conf *c, const struct opt *o)
{
    if (o->kind == STR || o->kind == ENUM) {
        char **s = field(c, o);

        free(*s);
        *s = NULL;
    } else if (o->kind == LIST) {
        char ***l = field(c, o);

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

static void expectation(const struct opt *o, char *out, size_t cap)
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

static enum rc bad_value(const struct place *p, const struct opt *o, const char *value,
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

static enum rc set_string(struct sup_conf *c, const struct opt *o, const char *s,
                          struct rc_err *err)
{
    char *copy = strdup(s);

    if (!copy)
        return rc_fail(err, RC_NOMEM, "out of memory reading the configuration");
    value_free(c, o);
    *(char **)field(c, o) = copy;
    return RC_OK;
}

static enum rc list_add(struct sup_conf *c, const struct opt *o, const struct place *p,
                        const char *s, size_t n, struct rc_err *err)
{
    char ***l = field(c, o), **grown, *copy;
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
static enum rc set_text(struct sup_conf *c, const struct opt *o, const struct place *p,
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
        *(uint64_t *)field(c, o) = u;
        break;
    case BOOL:
        if ((b = parse_bool(s)) < 0)
            return bad_value(p, o, s, err);
        *(bool *)field(c, o) = b;
        break;
    case LIST:
        /* a stronger source replaces the list; a repeated flag adds to it */
        if (p->from != SUP_FROM_FLAG || c->from[o - opts] != SUP_FROM_FLAG)
            value_free(c, o);
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
        c->from[o - opts] = (unsigned char)p->from;
    return rc;
}

/* ------------------------------------------------------------------ near names */

/* The option a person most likely meant, or NULL. */
static const struct opt *nearest(const char *s, size_t n)
{
    const struct opt *best = NULL;
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        size_t d = sup_near(s, n, opts[i].name);

        if (d < least) {
            least = d;
            best = &opts[i];
        }
    }
    return n > 0 && least <= 1 + n / 4 ? best : NULL;
}

static const struct opt *find(const char *s, size_t n)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        const char *name = opts[i].name;
        size_t j = 0;

        while (j < n && name[j] && (s[j] == name[j] || (s[j] == '-' && name[j] == '_')))
            j++;
        if (j == n && !name[j])
            return &opts[i];
    }
    return NULL;
}

/* Spelling of an option in a source: key, INFERD_KEY, --key. */
static void spell(const struct opt *o, enum sup_conf_from from, char *out, size_t cap)
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
    const struct opt *o = nearest(name, n);
    char where[320], hint[96] = "";

    describe(p, where, sizeof(where));
    if (o) {
        char spelt[64];

        spell(o, p->from, spelt, sizeof(spelt));
        snprintf(hint, sizeof(hint), "; did you mean '%s'?", spelt);
    }
    return rc_fail_what(err, RC_INVALID, p->spelt, "%s: no such option%s%s", where, hint,
                        o ? "" : " ('inferd help config' lists them all)");
}

/* ------------------------------------------------------------------ sources */

static enum rc set_defaults(struct sup_conf *c, struct rc_err *err)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        const struct opt *o = &opts[i];

        if (o->kind == U64)
            *(uint64_t *)field(c, o) = o->def_u;
        else if (o->kind == BOOL)
            *(bool *)field(c, o) = o->def_b;
        else if (o->kind != LIST && set_string(c, o, o->def_s, err) != RC_OK)
            return RC_NOMEM;
    }
    return RC_OK;
}

static enum rc set_json(struct sup_conf *c, const struct opt *o, const struct place *p,
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
        value_free(c, o);
        c->from[o - opts] = (unsigned char)p->from;
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

static enum rc read_file(struct sup_conf *c, const char *path, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    json_t *root = NULL;
    json_error_t je;
    enum rc rc = slurp(path, &text, &n, err);
    const char *key;
    json_t *v;

    if (rc != RC_OK)
        return rc;
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root) {
        rc = rc_fail_what(err, RC_INVALID, path, "config file '%s', line %d, column %d: %s", path,
                          je.line, je.column, je.text);
        goto out;
    }
    if (!json_is_object(root)) {
        rc = rc_fail_what(err, RC_INVALID, path,
                          "config file '%s': expected one JSON object of options, like "
                          "{\"port\": 8090}",
                          path);
        goto out;
    }
    json_object_foreach(root, key, v)
    {
        struct place p = {SUP_FROM_FILE, path, key};
        const struct opt *o = strchr(key, '-') ? NULL : find(key, strlen(key));

        rc = o ? set_json(c, o, &p, v, err) : unknown(&p, key, strlen(key), err);
        if (rc != RC_OK)
            goto out;
    }
out:
    json_decref(root);
    free(text);
    return rc;
}

static const struct opt *find_env(const char *name, size_t n)
{
    char spelt[64];

    for (size_t i = 0; i < SUP_OPT_COUNT; i++) {
        spell(&opts[i], SUP_FROM_ENV, spelt, sizeof(spelt));
        if (strlen(spelt) == n && memcmp(spelt, name, n) == 0)
            return &opts[i];
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
        const struct opt *o;
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
    const struct opt *o = find(name, n);
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

/* -------------------------------------------------------- rules between options */

bool sup_conf_is_loopback(const char *host)
{
    struct in_addr a;
    struct in6_addr b;

    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &a) == 1)
        return (ntohl(a.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &b) == 1)
        return IN6_IS_ADDR_LOOPBACK(&b) || (IN6_IS_ADDR_V4MAPPED(&b) && b.s6_addr[12] == 127);
    return false;
}

/* What the processor cannot do is refused here, not when a model is asked for. */
static enum rc check_device(const struct sup_conf *c, struct rc_err *err)
{
    const struct {
        const char *name, *value, *only_default;
    } table[] = {
        {"compute", c->compute, "exact_f32"},
        {"jit", c->jit, "off"},
    };

    if (strcmp(c->backend, "cpu") != 0)
        return RC_OK;
    if (strcmp(c->kv_dtype, "q8_0") == 0)
        return rc_fail_what(err, RC_INVALID, "kv_dtype",
                            "option 'kv_dtype': value 'q8_0' is for backend cuda: expected auto, "
                            "f16 or f32 with backend cpu");
    if (c->device != 0)
        return rc_fail_what(err, RC_INVALID, "device",
                            "option 'device': value '%" PRIu64 "' is for backend cuda: expected 0 "
                            "with backend cpu",
                            c->device);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].value, table[i].only_default) != 0)
            return rc_fail_what(err, RC_INVALID, table[i].name,
                                "option '%s': value '%s' is for backend cuda: expected %s with "
                                "backend cpu",
                                table[i].name, table[i].value, table[i].only_default);
    return RC_OK;
}

static enum rc check(const struct sup_conf *c, struct rc_err *err)
{
    char hub[SUP_REF_MAX];
    struct sup_otlp_url otlp;
    struct in6_addr a;
    bool literal = inet_pton(AF_INET, c->host, &a) == 1 || inet_pton(AF_INET6, c->host, &a) == 1;

    if (!*c->host && !*c->unix_socket)
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '': expected an address, unless unix_socket is "
                            "set");
    if (*c->host && !literal && strcmp(c->host, "localhost") != 0)
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '%.80s': expected an IPv4 or IPv6 address, or "
                            "localhost (names are not looked up)",
                            c->host);
    if (sup_pull_hub(hub, c->hub_endpoint, err) != RC_OK) {
        rc_wrap(err, "option 'hub_endpoint'");
        return RC_INVALID;
    }
    if (strcmp(c->require_auth, "on") == 0 && !*c->vault_dir)
        return rc_fail_what(err, RC_INVALID, "require_auth",
                            "option 'require_auth': value 'on', but vault_dir is empty: no key "
                            "would be known; make keys with 'inferd keys create' and name their "
                            "folder in vault_dir");
    if (*c->host && !sup_conf_is_loopback(c->host) && !c->allow_insecure_public_bind &&
        !sup_conf_auth_required(c))
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '%.80s' can be reached from other machines and "
                            "no API key is asked for: set vault_dir (see 'inferd keys --help'), or "
                            "listen on 127.0.0.1 and put a proxy in front, or say "
                            "--allow-insecure-public-bind; there is no TLS here in any case",
                            c->host);
    if (strlen(c->unix_socket) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return rc_fail_what(err, RC_INVALID, "unix_socket",
                            "option 'unix_socket': value '%.80s...' has %zu bytes: expected a path "
                            "of at most %zu",
                            c->unix_socket, strlen(c->unix_socket),
                            sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
    if (!*c->models_dir)
        return rc_fail_what(err, RC_INVALID, "models_dir",
                            "option 'models_dir': value '': expected the path of a folder");
    if (*c->otlp_endpoint && sup_otlp_url_parse(c->otlp_endpoint, &otlp, err) != RC_OK)
        return RC_INVALID;
    return check_device(c, err);
}

bool sup_conf_auth_required(const struct sup_conf *c)
{
    if (strcmp(c->require_auth, "auto") == 0)
        return *c->vault_dir != '\0';
    return strcmp(c->require_auth, "on") == 0;
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
    if ((rc = check(&c, err)) != RC_OK)
        goto out;
    *out = c;
    memset(&c, 0, sizeof(c));
    if (n_used)
        *n_used = used;
out:
    sup_conf_deinit(&c);
    return rc;
}

void sup_conf_deinit(struct sup_conf *c)
{
    for (size_t i = 0; i < SUP_OPT_COUNT; i++)
        value_free(c, &opts[i]);
}

/* ------------------------------------------------------------------ printing */

const char *sup_conf_name(enum sup_option o)
{
    return opts[o].name;
}

const char *sup_conf_origin(const struct sup_conf *c, enum sup_option o)
{
    static const char *const words[] = {"default", "file", "environment", "flag"};

    return words[c->from[o]];
}

char *sup_conf_json(const struct sup_conf *c)
{
    json_t *root = json_object();
    char *text;

    for (size_t i = 0; root && i < SUP_OPT_COUNT; i++) {
        const void *f = field_view(c, &opts[i]);
        json_t *v = NULL;

        switch (opts[i].kind) {
        case STR:
        case ENUM:
            v = json_string(*(char *const *)f);
            break;
        case U64:
            v = json_integer((json_int_t) * (const uint64_t *)f);
            break;
        case BOOL:
            v = json_boolean(*(const bool *)f);
            break;
        case LIST:
            v = json_array();
            for (char **l = *(char **const *)f; l && *l; l++)
                json_array_append_new(v, json_string(*l));
            break;
        }
        /* a path that is no UTF-8 cannot be a JSON string */
        json_object_set_new(root, opts[i].name, v ? v : json_string("(not UTF-8)"));
    }
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

static void default_text(const struct opt *o, char *out, size_t cap)
{
    if (o->kind == U64)
        snprintf(out, cap, "%" PRIu64, o->def_u);
    else if (o->kind == BOOL)
        snprintf(out, cap, "%s", o->def_b ? "true" : "false");
    else
        snprintf(out, cap, "%s", o->def_s && *o->def_s ? o->def_s : "none");
}

/* Words of text in lines of at most width, each new line indented. */
static void wrap(FILE *to, const char *text, size_t indent, size_t width)
{
    size_t col = indent;

    while (*text) {
        size_t n = strcspn(text, " ");

        if (col > indent && col + 1 + n > width) {
            fprintf(to, "\n%*s", (int)indent, "");
            col = indent;
        } else if (col > indent) {
            putc(' ', to);
            col++;
        }
        fprintf(to, "%.*s", (int)n, text);
        col += n;
        text += n + (text[n] == ' ');
    }
    putc('\n', to);
}

static void help_row(FILE *to, const struct opt *o)
{
    static const char *const arg[] = {" TEXT", " N", "", " WORD", " TEXT (may repeat)"};
    char spelt[64], def[64], line[512];

    spell(o, SUP_FROM_FLAG, spelt, sizeof(spelt));
    default_text(o, def, sizeof(def));
    fprintf(to, "  %s%s\n      ", spelt, arg[o->kind]);
    if (o->kind == U64)
        snprintf(line, sizeof(line), "%s [%" PRIu64 "..%" PRIu64 ", default %s]", o->help, o->min,
                 o->max, def);
    else if (o->kind == ENUM)
        snprintf(line, sizeof(line), "%s [%s, default %s]", o->help, o->words, def);
    else
        snprintf(line, sizeof(line), "%s [default %s]", o->help, def);
    wrap(to, line, 6, 78);
}

void sup_conf_help(FILE *to)
{
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        fprintf(to, "%s%s:\n", g ? "\n" : "", groups[g].title);
        for (size_t i = 0; i < SUP_OPT_COUNT; i++)
            if (strcmp(opts[i].group, groups[g].key) == 0)
                help_row(to, &opts[i]);
    }
}

/* '|' would end a cell. */
static void cell(FILE *to, const char *s)
{
    for (; *s; s++) {
        if (*s == '|')
            putc('\\', to);
        putc(*s, to);
    }
}

static void markdown_row(FILE *to, const struct opt *o)
{
    static const char *const kinds[] = {"text", "number", "true or false", "word", "list"};
    char def[64], range[128];

    default_text(o, def, sizeof(def));
    if (o->kind == U64)
        snprintf(range, sizeof(range), "number, %" PRIu64 " to %" PRIu64, o->min, o->max);
    else if (o->kind == ENUM)
        snprintf(range, sizeof(range), "%s", o->words);
    else
        snprintf(range, sizeof(range), "%s", kinds[o->kind]);
    fprintf(to, "| `%s` | ", o->name);
    cell(to, range);
    fprintf(to, " | %s%s%s | ", strcmp(def, "none") ? "`" : "", def,
            strcmp(def, "none") ? "`" : "");
    cell(to, o->help);
    fputs(" |\n", to);
}

void sup_conf_markdown(FILE *to)
{
    fputs(
        "# Configuration\n\n"
        "Made by `inferd help config --markdown` from the table in `supervisor/sup_conf.h`; a "
        "test fails when\nthis page is old. Do not edit it by hand.\n\n"
        "One option has one name, spelt three ways. For `max_body_bytes`:\n\n"
        "| where | spelling |\n|---|---|\n"
        "| flag of `inferd serve` | `--max-body-bytes=N` or `--max-body-bytes N` |\n"
        "| environment | `INFERD_MAX_BODY_BYTES=N` |\n"
        "| JSON file (`--config FILE` or `INFERD_CONFIG`) | `{\"max_body_bytes\": N}` |\n\n"
        "A flag beats the environment, the environment beats the file, the file beats the "
        "default. An option that is\ntrue or false is turned on by `--name` and off by "
        "`--no-name`. A list is a JSON array in the file, is split at\ncommas in the "
        "environment, and its flag may be repeated. An unknown name, a wrong type, a value out "
        "of range and\na key given twice in the file are errors, and nothing is started.\n\n"
        "Other names in the environment: `INFERD_SERVER` (server the client commands talk to) and "
        "`INFERD_CONFIG` (the\nfile); `INFERD_BIN`, `INFERD_PRESET` and all that begin with "
        "`INFERD_TEST_` or `INFERD_BENCH_` belong to the tests.\nAny other name that begins with "
        "`INFERD_` is an error too: it is most likely a misspelt option.\n",
        to);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        fprintf(to, "\n## %s\n\n| option | values | default | meaning |\n|---|---|---|---|\n",
                groups[g].title);
        for (size_t i = 0; i < SUP_OPT_COUNT; i++)
            if (strcmp(opts[i].group, groups[g].key) == 0)
                markdown_row(to, &opts[i]);
    }
}
