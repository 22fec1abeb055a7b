/* sup_cmd_models.c - `inferd rm`, `inferd verify`, and `inferd list` of a folder: models on this
 * disk and their receipts. Asks no server and no hub. Tests: tests/e2e/pull.py */
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_puller.h"
#include "sup_pull_cli.h"
#include "sup_scan.h"
#include "sup_stage.h"
#include "sup_term.h"

enum { O_MODELS, O_JSON };

const struct sup_opt sup_opts_rm[] = {
    {"models-dir", SUP_O_TEXT, "DIR", "the folder (default INFERD_MODELS_DIR, else ./models)", 0,
     0},
    {0},
};
const struct sup_opt sup_opts_check[] = {
    {"models-dir", SUP_O_TEXT, "DIR", "the folder (default INFERD_MODELS_DIR, else ./models)", 0,
     0},
    {"json", SUP_O_FLAG, NULL, "print one JSON object per model", 0, 0},
    {0},
};

/* A model as a person names it: its folder, a file in it, or the reference it came from. */
static enum rc folder_of(const char *models_dir, const char *name, char dest[512],
                         struct rc_err *err)
{
    int models = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
    struct sup_ref *ref;
    char *slash;

    if (models < 0)
        return rc_fail_what(err, RC_NOT_FOUND, "models_dir", "models folder '%.300s': %s",
                            models_dir, strerror(errno));
    snprintf(dest, 512, "%.511s", name);
    fd = sup_id_valid(dest) ? sup_stage_folder(models, dest) : -1;
    if (fd < 0 && errno == ENOTDIR && (slash = strrchr(dest, '/'))) {
        *slash = '\0';
        fd = sup_stage_folder(models, dest);
    }
    if (fd < 0 && (ref = calloc(1, sizeof(*ref)))) {
        if (sup_ref_parse(ref, name, NULL, NULL, NULL) == RC_OK &&
            (fd = sup_stage_folder(models, ref->dest)) >= 0)
            snprintf(dest, 512, "%s", ref->dest);
        free(ref);
    }
    close(models);
    if (fd < 0)
        return rc_fail_what(err, RC_NOT_FOUND, "model", "there is no model '%.200s' below '%.200s'",
                            name, models_dir);
    close(fd);
    return RC_OK;
}

int sup_cmd_rm(const struct sup_args *a)
{
    const char *models_dir = sup_pull_models_dir(a, a->v[O_MODELS].text);
    struct rc_err err = RC_ERR_INIT;
    char dest[512];
    enum rc rc = RC_OK;

    for (int i = 0; rc == RC_OK && i < a->n_pos; i++) {
        if ((rc = folder_of(models_dir, a->pos[i], dest, &err)) == RC_OK &&
            (rc = sup_stage_remove(models_dir, dest, &err)) == RC_OK) {
            sup_print_clean(stdout, dest, false);
            puts(": removed");
        }
    }
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}

/* ------------------------------------------------------------------ verify */

static enum rc hash(int fd, const struct sup_artifact *f, struct rc_err *err)
{
    uint8_t sum[SHA256_DIGEST_SIZE], *b = malloc(1 << 20);
    char hex[SUP_SHA256_HEX];
    struct sha256_ctx h;
    ssize_t got = 0;

    if (!b)
        return rc_fail(err, RC_NOMEM, "out of memory");
    sha256_init(&h);
    while ((got = read(fd, b, 1 << 20)) > 0 || (got < 0 && errno == EINTR)) {
        if (got > 0)
            sha256_update(&h, (size_t)got, b);
        if (sup_cli_interrupted(false)) {
            free(b);
            return rc_fail(err, RC_CANCELLED, "interrupted");
        }
    }
    free(b);
    if (got < 0)
        return rc_fail_what(err, RC_IO, f->path, "'%.200s' cannot be read: %s", f->path,
                            strerror(errno));
    sha256_digest(&h, sizeof(sum), sum);
    for (size_t i = 0; i < sizeof(sum); i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    if (strcmp(hex, f->sha256) != 0)
        return rc_fail_what(err, RC_CONFLICT, f->path,
                            "'%.200s' has the hash %s, its receipt says %s", f->path, hex,
                            f->sha256);
    return RC_OK;
}

static enum rc verify(int fd, const struct sup_receipt *r, size_t *n_hashed, struct rc_err *err)
{
    enum rc rc = RC_OK;
    int file;

    for (size_t i = 0; rc == RC_OK && i < r->n_files; i++) {
        if ((rc = sup_receipt_open(&r->file[i], fd, false, &file, err)) != RC_OK)
            break;
        if (r->file[i].sha256[0]) {
            rc = hash(file, &r->file[i], err);
            ++*n_hashed;
        }
        close(file);
    }
    return rc;
}

static enum rc verify_one(const struct sup_args *a, const char *models_dir, const char *name,
                          struct rc_err *err)
{
    struct sup_receipt r = {0};
    size_t n_hashed = 0;
    char dest[512];
    int models, fd = -1;
    enum rc rc = folder_of(models_dir, name, dest, err);

    if (rc != RC_OK)
        return rc;
    if ((models = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
        fd = sup_stage_folder(models, dest);
        close(models);
    }
    rc = fd < 0 ? rc_fail(err, RC_IO, "'%s': %s", dest, strerror(errno))
                : sup_receipt_load(&r, fd, err);
    if (rc == RC_OK && sup_receipt_unfinished(fd))
        rc = rc_fail(err, RC_CONFLICT, "a pull into this folder has not ended");
    if (rc == RC_OK)
        rc = verify(fd, &r, &n_hashed, err);
    if (fd >= 0)
        close(fd);
    if (rc != RC_OK && rc != RC_CANCELLED)
        rc_wrap(err, "%s", dest);
    if (a->v[O_JSON].set) {
        json_t *o = json_pack("{s:s, s:b, s:I, s:I, s:s}", "model", dest, "ok", rc == RC_OK,
                              "files", (json_int_t)r.n_files, "hashed", (json_int_t)n_hashed,
                              "error", rc == RC_OK ? "" : err->msg);

        sup_print_json(o);
        json_decref(o);
    } else if (rc == RC_OK) {
        sup_print_clean(stdout, dest, false);
        printf(": ok, %zu files, %zu of them hashed\n", r.n_files, n_hashed);
    }
    sup_receipt_deinit(&r);
    return rc;
}

int sup_cmd_check(const struct sup_args *a)
{
    const char *models_dir = sup_pull_models_dir(a, a->v[O_MODELS].text);
    struct rc_err err = RC_ERR_INIT;
    int status = SUP_EXIT_OK;

    sup_cli_catch_int();
    for (int i = 0; i < a->n_pos && status != SUP_EXIT_INT; i++)
        if (verify_one(a, models_dir, a->pos[i], &err) != RC_OK)
            status = sup_fail(a->cmd, &err);
    return status;
}

/* -------------------------------------------------------------------- list */

struct row {
    char *id;
    uint64_t bytes;
    struct sup_receipt r;
    char source[700];
    const char *state;
    char size[16];
};

/* The receipt beside a model: of its folder, of a .gguf that of the folder it lies in. */
static void look(struct row *x, int models, bool is_dir)
{
    struct rc_err err = RC_ERR_INIT;
    char dir[SUP_ID_MAX + 1];
    char *slash;
    int fd;
    enum rc rc;

    x->state = "own";
    snprintf(x->source, sizeof(x->source), "-");
    snprintf(dir, sizeof(dir), "%s", x->id);
    if (!is_dir) {
        if (!(slash = strrchr(dir, '/')))
            return;
        *slash = '\0';
    }
    if ((fd = sup_stage_folder(models, dir)) < 0)
        return;
    rc = sup_receipt_load(&x->r, fd, &err);
    if (rc == RC_OK) {
        x->state = sup_receipt_check(&x->r, fd, false, &err) == RC_OK ? "whole" : "differs";
        if (x->r.version == 2)
            snprintf(x->source, sizeof(x->source), "%.200s/%.200s%s%.100s%s%.12s", x->r.owner,
                     x->r.name, strcmp(x->r.variant, "auto") ? ":" : "",
                     strcmp(x->r.variant, "auto") ? x->r.variant : "", *x->r.commit ? "@" : "",
                     x->r.commit);
    } else if (rc != RC_NOT_FOUND) {
        x->state = "bad receipt";
    }
    close(fd);
}

static void print_rows(const struct row *x, size_t n)
{
    static const char *const columns[] = {"MODEL", ">SIZE", "STATE", "SOURCE"};
    const char **cells = calloc(n * 4 + 1, sizeof(*cells));

    for (size_t i = 0; cells && i < n; i++) {
        cells[i * 4] = x[i].id;
        cells[i * 4 + 1] = x[i].size;
        cells[i * 4 + 2] = x[i].state;
        cells[i * 4 + 3] = x[i].source;
    }
    if (cells)
        sup_table(stdout, columns, 4, cells, n);
    free(cells);
}

static void print_rows_json(const struct row *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct sup_receipt *r = &x[i].r;
        json_t *o = json_pack("{s:s, s:I, s:s, s:s*, s:s*, s:s*, s:s*}", "model", x[i].id, "bytes",
                              (json_int_t)x[i].bytes, "state", x[i].state, "source",
                              r->version == 2 ? x[i].source : NULL, "from", r->from, "revision",
                              r->revision, "commit", r->commit);

        sup_print_json(o);
        json_decref(o);
    }
}

int sup_local_list(const struct sup_args *a, const char *models_dir, bool json)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_scan s = {0};
    struct row *rows;
    int models;

    if (sup_scan_run(&s, models_dir, &err) != RC_OK)
        return sup_fail(a->cmd, &err);
    models = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!(rows = calloc(s.n + 1, sizeof(*rows)))) {
        rc_fail(&err, RC_NOMEM, "out of memory");
        if (models >= 0)
            close(models);
        sup_scan_deinit(&s);
        return sup_fail(a->cmd, &err);
    }
    for (size_t i = 0; i < s.n; i++) {
        rows[i].id = s.model[i].id;
        rows[i].bytes = s.model[i].bytes;
        (void)sup_bytes(rows[i].bytes, rows[i].size);
        look(&rows[i], models, s.model[i].is_dir);
    }
    if (json)
        print_rows_json(rows, s.n);
    else if (s.n)
        print_rows(rows, s.n);
    else
        fputs("the models folder is empty\n", stderr);
    for (size_t i = 0; i < s.n; i++)
        sup_receipt_deinit(&rows[i].r);
    free(rows);
    if (models >= 0)
        close(models);
    sup_scan_deinit(&s);
    return SUP_EXIT_OK;
}
