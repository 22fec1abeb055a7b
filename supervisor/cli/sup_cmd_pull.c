/* sup_cmd_pull.c - `inferd pull`: models into the models folder, with a bar or plain lines.
 *
 * Knows options and what a person sees; sup_puller.c does the work. The token comes from a file
 * a vault or the environment, never from the command line, which every process of the machine
 * reads. Tests: tests/e2e/pull.py
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_common.h"
#include "sup_conf.h"
#include "sup_file.h"
#include "sup_master.h"
#include "sup_pull_cli.h"
#include "sup_puller.h"
#include "sup_term.h"
#include "sup_vault_cli.h"

enum {
    O_MODELS,
    O_VARIANT,
    O_REVISION,
    O_HUB,
    O_TOKEN,
    O_VAULT,
    O_KEY_FILE,
    O_CONFIG,
    O_OFFLINE,
    O_AGAIN,
    O_ARTIFACT,
    O_MODEL,
    O_RETRIES,
    O_SANDBOX,
    O_JSON,
    O_QUIET
};

#define BYTES_MAX 1099511627776.0

const struct sup_opt sup_opts_pull[] = {
    {"models-dir", SUP_O_TEXT, "DIR", "where to (default INFERD_MODELS_DIR, else ./models)", 0, 0},
    {"variant", SUP_O_TEXT, "V", "gguf, gguf:Q8_0, Q8_0, safetensors, torch or a file's name", 0,
     0},
    {"revision", SUP_O_TEXT, "R", "branch, tag or commit (default main)", 0, 0},
    {"hub", SUP_O_TEXT, "URL",
     "the hub (default INFERD_HUB_ENDPOINT, HF_ENDPOINT, else " SUP_HUB_DEFAULT ")", 0, 0},
    {"token-file", SUP_O_TEXT, "FILE", "file with the hub's token (default: HF_TOKEN)", 0, 0},
    {"vault-dir", SUP_O_TEXT, "DIR",
     "take the hub's credential of this vault (default INFERD_VAULT_DIR, or vault_dir of --config, "
     "where HF_TOKEN is not set)",
     0, 0},
    {"key-file", SUP_O_TEXT, "FILE",
     "the vault's master key (default INFERD_VAULT_KEY_FILE, vault_key_file of --config, or "
     "$CREDENTIALS_DIRECTORY/" SUP_MASTER_CREDENTIAL ")",
     0, 0},
    {"config", SUP_O_TEXT, "FILE", "a server's configuration (default INFERD_CONFIG)", 0, 0},
    {"offline", SUP_O_FLAG, NULL, "only check that the model is here as a whole", 0, 0},
    {"again", SUP_O_FLAG, NULL, "fetch it even when it is here", 0, 0},
    {"max-artifact-bytes", SUP_O_NUM, "N", "largest file (default 64 GiB)", 1, BYTES_MAX},
    {"max-model-bytes", SUP_O_NUM, "N", "largest model (default 128 GiB)", 1, BYTES_MAX},
    {"retries", SUP_O_NUM, "N", "attempts after the first, without progress (default 5)", 0, 20},
    {"sandbox", SUP_O_TEXT, "MODE", "strict (default), permissive or off", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print one JSON object per model", 0, 0},
    {"quiet", SUP_O_FLAG, NULL, "no progress", 0, 0},
    {0},
};

/* ---------------------------------------------------------------- progress */

struct view {
    const struct sup_args *a;
    struct sup_bar bar;
    char label[160];
    bool quiet;
    unsigned told_tenth; /* plain lines: one for each tenth */
    char told_stage[16];
};

static void eta(const struct sup_xfer_now *now, char *out, size_t cap)
{
    uint64_t left = now->total_bytes > now->done_bytes ? now->total_bytes - now->done_bytes : 0;
    uint64_t s = now->bytes_per_s ? left / now->bytes_per_s : 0;
    char b[16];

    out[0] = '\0';
    if (!now->bytes_per_s)
        return;
    if (s >= 3600)
        snprintf(out, cap, "%s/s, %" PRIu64 ":%02u:%02u left", sup_bytes(now->bytes_per_s, b),
                 s / 3600, (unsigned)(s / 60 % 60), (unsigned)(s % 60));
    else
        snprintf(out, cap, "%s/s, %u:%02u left", sup_bytes(now->bytes_per_s, b), (unsigned)(s / 60),
                 (unsigned)(s % 60));
}

static void plain(struct view *v, const char *stage, const struct sup_xfer_now *now)
{
    unsigned tenth = now->total_bytes
                         ? (unsigned)(10.0 * (double)now->done_bytes / (double)now->total_bytes)
                         : 0;
    char b1[16], b2[16], note[64];

    if (strcmp(stage, v->told_stage) == 0 && tenth <= v->told_tenth)
        return;
    snprintf(v->told_stage, sizeof(v->told_stage), "%.15s", stage);
    v->told_tenth = tenth;
    eta(now, note, sizeof(note));
    sup_print_clean(stderr, v->label, false);
    fputs(": ", stderr);
    sup_print_clean(stderr, stage, false);
    if (now->total_bytes)
        fprintf(stderr, ", file %u of %u, %s of %s, %.0f %%%s%s", now->n + (now->n < now->of),
                now->of, sup_bytes(now->done_bytes, b1), sup_bytes(now->total_bytes, b2),
                100.0 * (double)now->done_bytes / (double)now->total_bytes, note[0] ? ", " : "",
                note);
    putc('\n', stderr);
}

static bool on_now(void *user, const char *stage, const struct sup_xfer_now *now)
{
    struct view *v = user;
    char note[96], rate[64];

    if (sup_cli_interrupted(false))
        return false;
    if (!stage || v->quiet)
        return true;
    if (!v->bar.on) {
        plain(v, stage, now);
        return true;
    }
    eta(now, rate, sizeof(rate));
    if (strcmp(stage, "fetching") == 0)
        snprintf(note, sizeof(note), "%u/%u %s", now->n, now->of, rate);
    else
        snprintf(note, sizeof(note), "%.40s", stage);
    sup_bar_set(&v->bar, now->done_bytes, now->total_bytes, note);
    return true;
}

/* ----------------------------------------------------------------- options */

const char *sup_pull_models_dir(const struct sup_args *a, const char *given)
{
    const char *env = sup_env(a->envp, "INFERD_MODELS_DIR");

    return given ? given : env && *env ? env : "models";
}

#define BEARER "Bearer "
#define TOKEN_MAX (SUP_SECRET_BYTES - (sizeof(BEARER) - 1))

/* Of --token-file's file, path, or of HF_TOKEN. */
static enum rc token(const struct sup_args *a, const char *path, char out[SUP_SECRET_BYTES + 1],
                     struct rc_err *err)
{
    const char *env = sup_env(a->envp, "HF_TOKEN");
    char *text = NULL;
    const char *s = env ? env : "";
    size_t n = 0, n_text = 0;
    enum rc rc = RC_OK;

    out[0] = '\0';
    if (path) {
        if ((rc = sup_file_read(path, SUP_SECRET_BYTES, true, &text, &n_text, err)) != RC_OK)
            return rc;
        s = text;
    }
    n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1]))
        n--;
    for (size_t i = 0; rc == RC_OK && i < n; i++)
        if (s[i] <= 0x20 || s[i] > 0x7E)
            rc = rc_fail_what(err, RC_INVALID, "token",
                              "the token of %s has to be one word of printable ASCII",
                              path ? path : "HF_TOKEN");
    if (rc == RC_OK && path && n == 0)
        rc = rc_fail_what(err, RC_INVALID, "token", "the token of %s is empty", path);
    if (rc == RC_OK && n > TOKEN_MAX)
        rc = rc_fail_what(err, RC_INVALID, "token", "the token of %s has %zu bytes, at most %zu",
                          path ? path : "HF_TOKEN", n, TOKEN_MAX);
    if (rc == RC_OK && n)
        snprintf(out, SUP_SECRET_BYTES + 1, BEARER "%.*s", (int)n, s);
    if (text)
        explicit_bzero(text, n_text);
    free(text);
    return rc;
}

/* What the command line names goes before the environment: --token-file, a vault, HF_TOKEN, a vault
 * that the environment or a configuration names. */
static enum rc secret(const struct sup_args *a, const char *hub, char out[SUP_SECRET_BYTES + 1],
                      struct rc_err *err)
{
    const struct sup_vault_names names = {a->v[O_VAULT].text, a->v[O_KEY_FILE].text,
                                          a->v[O_CONFIG].text};
    bool said = names.dir || names.key_file || names.config;
    char origin[SUP_ORIGIN_MAX];
    enum rc rc;

    if (a->v[O_TOKEN].set)
        return token(a, a->v[O_TOKEN].text, out, err);
    if (!sup_ref_origin(hub, origin))
        return rc_fail_what(err, RC_INVALID, "hub", "'%.200s' has no origin", hub);
    if (said && ((rc = sup_vault_credential(out, a, &names, origin, true, err)) != RC_OK || *out))
        return rc;
    if ((rc = token(a, NULL, out, err)) != RC_OK || *out || said)
        return rc;
    if ((rc = sup_vault_credential(out, a, &names, origin, false, err)) != RC_OK)
        fprintf(stderr, "inferd pull: goes on without a credential of the vault: %s\n",
                err->msg); /* most models ask for none */
    return RC_OK;
}

static enum rc options(const struct sup_args *a, struct sup_pull *p, struct sup_puller *u,
                       struct rc_err *err)
{
    const char *hub = a->v[O_HUB].text, *mode = a->v[O_SANDBOX].text;
    enum rc rc;

    if (!hub)
        hub = sup_env(a->envp, "INFERD_HUB_ENDPOINT");
    if (!hub || !*hub)
        hub = sup_env(a->envp, "HF_ENDPOINT");
    if ((rc = sup_pull_hub(p->hub, hub && *hub ? hub : SUP_HUB_DEFAULT, err)) != RC_OK ||
        (!a->v[O_OFFLINE].set && (rc = secret(a, p->hub, p->secret, err)) != RC_OK))
        return rc;
    u->sandbox = mode ? mode : "strict";
    if (strcmp(u->sandbox, "strict") != 0 && strcmp(u->sandbox, "permissive") != 0 &&
        strcmp(u->sandbox, "off") != 0)
        return rc_fail_what(err, RC_INVALID, "sandbox",
                            "--sandbox '%.40s': expected strict, permissive or off", mode);
    p->max_artifact_bytes = a->v[O_ARTIFACT].set ? (uint64_t)a->v[O_ARTIFACT].num : 64ull << 30;
    p->max_model_bytes = a->v[O_MODEL].set ? (uint64_t)a->v[O_MODEL].num : 128ull << 30;
    p->retries = a->v[O_RETRIES].set ? (unsigned)a->v[O_RETRIES].num : 5;
    u->models_dir = sup_pull_models_dir(a, a->v[O_MODELS].text);
    u->offline = a->v[O_OFFLINE].set;
    u->again = a->v[O_AGAIN].set;
    return RC_OK;
}

/* ------------------------------------------------------------------ result */

static uint64_t bytes_of(const struct sup_receipt *r)
{
    uint64_t n = 0;

    for (size_t i = 0; i < r->n_files; i++)
        n += r->file[i].size;
    return n;
}

static void show(const struct sup_args *a, const struct sup_pull *p, const struct sup_pulled *got)
{
    const struct sup_receipt *r = &got->receipt;
    char b[16];
    json_t *o;

    if (a->v[O_JSON].set) {
        o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "model", p->ref.dest, "source",
                      p->ref.text, "from", r->from, "commit", r->commit, "format", r->format,
                      "files", (json_int_t)r->n_files, "bytes", (json_int_t)bytes_of(r),
                      "unchanged", got->unchanged);
        sup_print_json(o);
        json_decref(o);
        return;
    }
    sup_print_clean(stdout, p->ref.dest, false);
    printf(": %s, %zu %s, %s", got->unchanged ? "is here already" : "pulled", r->n_files,
           r->n_files == 1 ? "file" : "files", sup_bytes(bytes_of(r), b));
    if (p->ref.kind == SUP_REF_HUB) {
        fputs(", commit ", stdout);
        sup_print_clean(stdout, r->commit, false);
    }
    fputs(", ", stdout);
    sup_print_clean(stdout, r->format, false);
    putchar('\n');
    fflush(stdout);
}

static enum rc pull_one(const struct sup_args *a, const char *text, struct sup_pull *p,
                        struct sup_puller *u, struct rc_err *err)
{
    struct view v = {.a = a, .quiet = a->v[O_QUIET].set};
    struct sup_pulled got = {0};
    enum rc rc = sup_ref_parse(&p->ref, text, a->v[O_VARIANT].text, a->v[O_REVISION].text, err);

    if (rc != RC_OK)
        return rc;
    snprintf(v.label, sizeof(v.label), "%.150s", p->ref.dest);
    u->on_now = on_now;
    u->user = &v;
    if (!v.quiet)
        sup_bar_start(&v.bar, v.label);
    rc = sup_puller_run(u, p, &got, err);
    sup_bar_end(&v.bar);
    if (rc == RC_OK)
        show(a, p, &got);
    sup_receipt_deinit(&got.receipt);
    return rc;
}

int sup_cmd_pull(const struct sup_args *a)
{
    struct sup_pull *p = calloc(1, sizeof(*p));
    struct sup_puller u = {0};
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    sup_cli_catch_int();
    if (!p)
        rc = rc_fail(&err, RC_NOMEM, "out of memory");
    else
        rc = options(a, p, &u, &err);
    for (int i = 0; rc == RC_OK && i < a->n_pos; i++)
        rc = pull_one(a, a->pos[i], p, &u, &err);
    if (p)
        explicit_bzero(p->secret, sizeof(p->secret));
    free(p);
    if (rc == RC_CANCELLED)
        fputs("what has arrived is kept: the same command goes on\n", stderr);
    if (rc == RC_INVALID)
        return sup_usage_error(a->cmd, "%s", err.msg);
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}
