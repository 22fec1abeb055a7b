/* sup_cmd_credentials.c - `inferd credentials`: secrets for other machines, sealed, offline.
 *
 * A secret comes from stdin or a file, never from the command line, and lies in locked memory
 * while it is sealed. Nothing prints one. Tests: tests/e2e/keys.py
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_file.h"
#include "sup_secrets.h"
#include "sup_vault_cli.h"
#include "sup_vault_dir.h"

enum { O_DIR, O_CONFIG, O_KEY_FILE, O_NEW_KEY, O_FILE, O_AS, O_PID_FILE, O_JSON };

const struct sup_opt sup_opts_credentials[] = {
    {"vault-dir", SUP_O_TEXT, "DIR",
     "folder of the vault (default INFERD_VAULT_DIR, or vault_dir of "
     "--config)",
     0, 0},
    {"config", SUP_O_TEXT, "FILE", "the server's configuration (default INFERD_CONFIG)", 0, 0},
    {"key-file", SUP_O_TEXT, "FILE",
     "the master key (default INFERD_VAULT_KEY_FILE, vault_key_file "
     "of --config, or $CREDENTIALS_DIRECTORY/" SUP_MASTER_CREDENTIAL ")",
     0, 0},
    {"new-key-file", SUP_O_TEXT, "FILE", "rotate-master: the next master key", 0, 0},
    {"file", SUP_O_TEXT, "FILE", "set, rotate: holds the secret (default stdin)", 0, 0},
    {"as", SUP_O_TEXT, "KIND",
     "set, rotate: bearer (a token; default), basic (USER:PASSWORD) or raw "
     "(a whole Authorization value)",
     0, 0},
    {"pid-file", SUP_O_TEXT, "FILE", "tell the server whose process number it holds", 0, 0},
    {"json", SUP_O_FLAG, NULL, "list: print JSON", 0, 0},
    {0},
};

struct cred_cmd {
    const struct sup_args *a;
    struct sup_vault_stay stay;
    struct sup_secrets secrets;
    uint8_t *master;
    uint64_t now_s;
};

/* --------------------------------------------------------------------- files */

static enum rc read_master(struct cred_cmd *c, struct rc_err *err)
{
    enum rc rc =
        sup_vault_master(&c->master, c->a, c->a->v[O_KEY_FILE].text, c->a->v[O_CONFIG].text, err);

    if (rc == RC_OK && !c->master)
        rc = rc_fail_what(err, RC_INVALID, "key-file",
                          "no master key is named: say --key-file FILE ('inferd credentials "
                          "make-key FILE' makes one)");
    return rc;
}

/* Notes the act, then makes it so. origin: "" = all. */
static enum rc write_secrets(struct cred_cmd *c, const char *act, const char *origin,
                             struct rc_err *err)
{
    struct sup_json o = {.limit = SUP_SECRETS_FILE_BYTES};
    char fields[SUP_ORIGIN_MAX + 40];
    enum rc rc;

    snprintf(fields, sizeof(fields), ",\"origin\":\"%s\"", origin);
    sup_secrets_print(&c->secrets, &o);
    if (o.failed)
        rc = rc_fail(err, RC_TOO_LARGE, "the file of credentials would be over %u bytes",
                     SUP_SECRETS_FILE_BYTES);
    else if ((rc = sup_vault_note(&c->stay, act, *origin ? fields : "", err)) == RC_OK)
        rc = sup_vault_dir_replace(c->stay.dir_fd, SUP_VAULT_SECRETS, o.p, o.n, err);
    sup_json_deinit(&o);
    return rc;
}

/* ------------------------------------------------------------------- secrets */

static enum rc read_secret(const struct cred_cmd *c, char **out, size_t *n, struct rc_err *err)
{
    const char *file = c->a->v[O_FILE].text;
    enum rc rc;

    if (!file && isatty(STDIN_FILENO) == 1)
        fputs("The secret, then Ctrl-D (better: --file FILE, or a pipe):\n", stderr);
    rc = sup_file_input(file ? file : "-", SUP_SECRET_BYTES, out, n, err);
    while (rc == RC_OK && *n && ((*out)[*n - 1] == '\n' || (*out)[*n - 1] == '\r'))
        (*n)--;
    return rc;
}

/* A header value out of what was given; *value is sodium_malloc'd. */
static enum rc header_value(const struct cred_cmd *c, const char *secret, size_t n, char **value,
                            size_t *n_value, struct rc_err *err)
{
    const char *as = c->a->v[O_AS].set ? c->a->v[O_AS].text : "bearer";
    bool basic = strcmp(as, "basic") == 0;
    const char *prefix = basic ? "Basic " : strcmp(as, "bearer") == 0 ? "Bearer " : "";
    size_t n_prefix = strlen(prefix), cap = n_prefix + n * 2 + 8;

    if (!*prefix && strcmp(as, "raw") != 0)
        return rc_fail_what(err, RC_INVALID, "as",
                            "option '--as': '%.40s': expected bearer, basic "
                            "or raw",
                            as);
    if (basic && !memchr(secret, ':', n))
        return rc_fail_what(err, RC_INVALID, "secret", "expected USER:PASSWORD for --as basic");
    if (!(*value = sodium_malloc(cap)))
        return rc_fail(err, RC_NOMEM, "no locked memory for the secret");
    memcpy(*value, prefix, n_prefix);
    if (basic) {
        sodium_bin2base64(*value + n_prefix, cap - n_prefix, (const uint8_t *)secret, n,
                          sodium_base64_VARIANT_ORIGINAL);
        *n_value = strlen(*value);
    } else {
        memcpy(*value + n_prefix, secret, n);
        *n_value = n_prefix + n;
    }
    return RC_OK;
}

static enum rc seal_one(struct cred_cmd *c, const char *origin, struct rc_err *err)
{
    char *secret = NULL, *value = NULL;
    size_t n = 0, n_value = 0;
    enum rc rc = read_secret(c, &secret, &n, err);

    if (rc == RC_OK && n == 0)
        rc = rc_fail_what(err, RC_INVALID, "secret", "the secret is empty");
    if (rc == RC_OK)
        rc = header_value(c, secret, n, &value, &n_value, err);
    if (rc == RC_OK)
        rc = sup_secrets_set(&c->secrets, origin, value, n_value, c->now_s, c->master, err);
    if (secret)
        sodium_memzero(secret, n);
    free(secret);
    sodium_free(value);
    return rc;
}

/* ------------------------------------------------------------------- actions */

static enum rc origin_of(const struct cred_cmd *c, char out[SUP_ORIGIN_MAX], struct rc_err *err)
{
    if (c->a->n_pos < 2)
        return rc_fail_what(err, RC_INVALID, "origin", "for which machine? expected https://HOST");
    return sup_origin_parse(out, c->a->pos[1], err);
}

static bool is_kept(const struct cred_cmd *c, const char *origin)
{
    for (size_t i = 0; i < c->secrets.n; i++)
        if (strcmp(c->secrets.row[i].origin, origin) == 0)
            return true;
    return false;
}

/* A wrong master key would make a file that opens with neither. */
static enum rc check_master(struct cred_cmd *c, struct rc_err *err)
{
    struct rc_err note = RC_ERR_INIT;
    enum rc rc = sup_secrets_open(&c->secrets, c->master, err);

    if (rc == RC_CONFLICT)
        (void)sup_vault_note(&c->stay, "master_key.refused", "", &note);
    return rc;
}

static enum rc put(struct cred_cmd *c, bool must_be_there, struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];
    enum rc rc = origin_of(c, origin, err);

    if (rc != RC_OK || (rc = check_master(c, err)) != RC_OK)
        return rc;
    if (must_be_there && !is_kept(c, origin))
        return rc_fail(err, RC_NOT_FOUND, "no credential is kept for %s: 'inferd credentials set'",
                       origin);
    if ((rc = seal_one(c, origin, err)) != RC_OK)
        return rc;
    rc = write_secrets(c, must_be_there ? "credential.rotate" : "credential.set", origin, err);
    if (rc == RC_OK)
        printf("sealed for %s\n", origin);
    return rc;
}

static enum rc do_set(struct cred_cmd *c, struct rc_err *err)
{
    return put(c, false, err);
}

static enum rc do_rotate(struct cred_cmd *c, struct rc_err *err)
{
    return put(c, true, err);
}

static enum rc do_remove(struct cred_cmd *c, struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];
    enum rc rc = origin_of(c, origin, err);

    if (rc != RC_OK)
        return rc;
    if (!sup_secrets_remove(&c->secrets, origin))
        return rc_fail(err, RC_NOT_FOUND, "no credential is kept for %s", origin);
    rc = write_secrets(c, "credential.remove", origin, err);
    if (rc == RC_OK)
        printf("removed for %s\n", origin);
    return rc;
}

static enum rc do_list(struct cred_cmd *c, struct rc_err *err)
{
    (void)err;
    for (size_t i = 0; i < c->secrets.n; i++) {
        const struct sup_sealed *r = &c->secrets.row[i];
        time_t at = (time_t)(r->rotated_s ? r->rotated_s : r->created_s);
        char when[24];
        struct tm tm;

        strftime(when, sizeof(when), "%Y-%m-%d %H:%M", gmtime_r(&at, &tm));
        if (c->a->v[O_JSON].set)
            printf("{\"origin\":\"%s\",\"created\":%llu,\"rotated\":%llu}\n", r->origin,
                   (unsigned long long)r->created_s, (unsigned long long)r->rotated_s);
        else
            printf("%-50s %s\n", r->origin, when);
    }
    return RC_OK;
}

static enum rc do_rotate_master(struct cred_cmd *c, struct rc_err *err)
{
    uint8_t *next = NULL;
    enum rc rc;

    if (!c->a->v[O_NEW_KEY].text)
        return rc_fail_what(err, RC_INVALID, "new-key-file", "expected --new-key-file FILE");
    if ((rc = sup_master_read(&next, c->a->v[O_NEW_KEY].text, NULL, err)) != RC_OK)
        return rc;
    if ((rc = check_master(c, err)) == RC_OK &&
        (rc = sup_secrets_reseal(&c->secrets, next, err)) == RC_OK &&
        (rc = write_secrets(c, "master_key.rotate", "", err)) == RC_OK)
        fprintf(stderr,
                "%zu credentials are sealed under the new key. Put it in the place of the old "
                "one, then tell the server (kill -HUP, systemctl reload): until then it goes on "
                "with what it has.\n",
                c->secrets.n);
    sup_master_free(&next);
    return rc;
}

static enum rc do_make_key(struct cred_cmd *c, struct rc_err *err)
{
    const char *path = c->a->n_pos > 1 ? c->a->pos[1] : NULL;
    uint8_t key[SUP_MASTER_BYTES];
    char text[64];
    enum rc rc = RC_OK;
    int fd;

    if (!path)
        return rc_fail_what(err, RC_INVALID, "file", "expected the name of a file to make");
    if ((fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400)) < 0)
        return rc_fail_what(err, RC_IO, "file", "making '%.200s': %s", path, strerror(errno));
    randombytes_buf(key, sizeof(key));
    sodium_bin2base64(text, sizeof(text), key, sizeof(key), sodium_base64_VARIANT_ORIGINAL);
    if (!sup_file_put(fd, text, strlen(text)) || !sup_file_put(fd, "\n", 1) || fsync(fd) != 0) {
        rc = rc_fail_what(err, RC_IO, "file", "writing '%.200s': %s", path, strerror(errno));
        (void)unlink(path);
    }
    sodium_memzero(key, sizeof(key));
    sodium_memzero(text, sizeof(text));
    close(fd);
    return rc;
}

enum { ENTERS = 1, CHANGES = 2, NEEDS_KEY = 4 };
static const struct action {
    const char *word;
    enum rc (*run)(struct cred_cmd *c, struct rc_err *err);
    unsigned bits;
    int n_pos; /* with the word */
} actions[] = {
    {"set", do_set, ENTERS | CHANGES | NEEDS_KEY, 2},
    {"list", do_list, ENTERS, 1},
    {"rotate", do_rotate, ENTERS | CHANGES | NEEDS_KEY, 2},
    {"remove", do_remove, ENTERS | CHANGES, 2},
    {"rotate-master", do_rotate_master, ENTERS | CHANGES | NEEDS_KEY, 1},
    {"make-key", do_make_key, 0, 2},
};

static enum rc run(struct cred_cmd *c, const struct action *act, struct rc_err *err)
{
    enum rc rc = RC_OK;

    if ((act->bits & NEEDS_KEY) && (rc = read_master(c, err)) != RC_OK)
        return rc;
    if (act->bits & ENTERS) {
        if ((rc = sup_vault_enter(&c->stay, c->a, c->a->v[O_DIR].text, c->a->v[O_CONFIG].text,
                                  (act->bits & CHANGES) != 0, act->run == do_set, err)) != RC_OK ||
            (rc = sup_secrets_load(&c->secrets, c->stay.dir_fd, c->stay.path, err)) != RC_OK)
            return rc;
    }
    if ((rc = act->run(c, err)) == RC_OK && (act->bits & CHANGES) && act->run != do_rotate_master)
        rc = sup_vault_hup(c->a->v[O_PID_FILE].text, err);
    return rc;
}

int sup_cmd_credentials(const struct sup_args *a)
{
    struct cred_cmd c = {.a = a, .now_s = (uint64_t)time(NULL), .stay = {-1, -1, NULL, ""}};
    const struct action *act = NULL;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(a->pos[0], actions[i].word) == 0)
            act = &actions[i];
    if (!act)
        return sup_usage_error(a->cmd,
                               "'%.40s': expected set, list, rotate, remove, rotate-master or "
                               "make-key",
                               a->pos[0]);
    if (a->n_pos > act->n_pos)
        return sup_usage_error(a->cmd, "'%.40s': too many arguments%s", a->pos[0],
                               act->run == do_set || act->run == do_rotate
                                   ? " (the secret comes from stdin or --file, never from the "
                                     "command line)"
                                   : "");
    if (sodium_init() < 0)
        return sup_usage_error(a->cmd, "libsodium cannot start");
    rc = run(&c, act, &err);
    sup_secrets_deinit(&c.secrets);
    sup_master_free(&c.master);
    sup_vault_leave(&c.stay);
    if (rc == RC_OK)
        return SUP_EXIT_OK;
    return rc == RC_INVALID ? sup_usage_error(a->cmd, "%s", err.msg) : sup_fail(a->cmd, &err);
}
