/* sup_pull_source.c - models that come from no hub: a single file's URL, a file or folder here.
 *
 * A file here is copied, never linked: what is below the models folder must not change under a
 * worker. Tests: tests/e2e/pull.py
 */
#include "sup_pull_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --------------------------------------------------------------------- URL */

static bool no_body(struct sup_req *r, const char *b, size_t n)
{
    return false; /* its head is all that is asked for */
}

/* Size and ETag: of a server that gives parts from Content-Range, of another from its head. */
static enum rc head(struct sup_pull_job *j, struct sup_req *r, struct rc_err *err)
{
    enum sup_req_end end = SUP_REQ_REDIRECT;
    enum rc rc = RC_OK;

    r->from = 0;
    r->to = 1;
    r->sink = no_body;
    while (rc == RC_OK && end == SUP_REQ_REDIRECT) {
        if ((rc = sup_req_start(r, j->multi, err)) != RC_OK)
            return rc;
        end = sup_req_finish(r, j->multi, sup_req_drive(j->multi), err);
    }
    if (end == SUP_REQ_DONE || (r->status >= 200 && r->status < 300 && r->sink_said_no))
        return RC_OK;
    return err->code;
}

static void identity(const struct sup_pull_job *j, const struct sup_req *r, uint64_t size,
                     char out[65])
{
    unsigned char h[crypto_hash_sha256_BYTES];
    char text[SUP_REF_MAX + SUP_ETAG_MAX + 32];

    snprintf(text, sizeof(text), "%s\n%s\n%" PRIu64, j->p->ref.target, r->etag, size);
    crypto_hash_sha256(h, (const unsigned char *)text, strlen(text));
    sodium_bin2hex(out, 65, h, sizeof(h));
}

/* The last part of a URL, which sup_ref_parse has found to be a plain name. */
static void last_part(const char *s, char out[SUP_REF_PART + 8])
{
    size_t n = strcspn(s, "?#"), at = n;

    while (at > 0 && s[at - 1] != '/')
        at--;
    snprintf(out, SUP_REF_PART + 8, "%.*s", (int)(n - at), s + at);
}

enum rc sup_pull_from_url(struct sup_pull_job *j, bool *unchanged, struct rc_err *err)
{
    char name[SUP_REF_PART + 8], id[65];
    struct sup_req *r = calloc(1, sizeof(*r));
    uint64_t size;
    enum rc rc;

    if (!r)
        return rc_fail(err, RC_NOMEM, "out of memory");
    j->rules.secret = NULL; /* the token is the hub's */
    if ((rc = sup_req_init(r, &j->rules, j->p->ref.target, err)) == RC_OK)
        rc = head(j, r, err);
    size = r->status == 206 && r->has_range ? r->range_total : r->length;
    if (rc == RC_OK && !(r->status == 206 ? r->has_range : r->has_length))
        rc = rc_fail(err, RC_FORMAT, "%s does not tell how large the file is", r->origin);
    if (rc == RC_OK)
        identity(j, r, size, id);
    sup_req_deinit(r, j->multi);
    free(r);
    if (rc != RC_OK)
        return rc;
    if (strcmp(id, j->p->have_commit) == 0) {
        *unchanged = true;
        return RC_OK;
    }
    last_part(j->p->ref.target, name);
    snprintf(j->list.commit, sizeof(j->list.commit), "%s", id);
    snprintf(j->format, sizeof(j->format), "gguf");
    if ((rc = sup_hub_add(&j->list, name, size, NULL, NULL, err)) == RC_OK)
        j->list.file[0].taken = true;
    return rc;
}

/* -------------------------------------------------------------------- file */

static enum rc list_folder(struct sup_hub_list *l, int dir_fd, const char *prefix, int depth,
                           struct rc_err *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    enum rc rc = RC_OK;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return rc_fail(err, RC_IO, "folder '%s': %s", prefix, strerror(errno));
    }
    while (rc == RC_OK && (e = readdir(d))) {
        char path[SUP_FETCH_PATH_MAX + 300];
        struct stat st;
        int sub;

        snprintf(path, sizeof(path), "%s%s", prefix, e->d_name);
        if (e->d_name[0] == '.' || !sup_fetch_path_ok(path) ||
            fstatat(dir_fd, e->d_name, &st, 0) != 0) /* links are followed: copies are made */
            continue;
        if (S_ISREG(st.st_mode)) {
            rc = sup_hub_add(l, path, (uint64_t)st.st_size, NULL, NULL, err);
        } else if (S_ISDIR(st.st_mode) && depth > 1 &&
                   (sub = openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
            snprintf(path, sizeof(path), "%s%s/", prefix, e->d_name);
            rc = list_folder(l, sub, path, depth - 1, err);
            close(sub);
        }
    }
    closedir(d);
    return rc;
}

static enum rc source_open(const struct sup_pull_job *j, int *fd, bool *dir, struct rc_err *err)
{
    struct stat st;

    *fd = open(j->p->ref.target, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 || fstat(*fd, &st) != 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "path", "'%.300s': %s",
                            j->p->ref.target, strerror(errno));
    *dir = S_ISDIR(st.st_mode);
    if (!*dir && !S_ISREG(st.st_mode))
        return rc_fail_what(err, RC_INVALID, "path", "'%.300s' is no file and no folder",
                            j->p->ref.target);
    return RC_OK;
}

enum rc sup_pull_from_file(struct sup_pull_job *j, bool *unchanged, struct rc_err *err)
{
    char name[SUP_REF_PART + 8];
    bool dir = false, index = false;
    enum rc rc;
    int fd = -1;

    *unchanged = false;
    if ((rc = source_open(j, &fd, &dir, err)) != RC_OK)
        goto out;
    if (dir) {
        if ((rc = list_folder(&j->list, fd, "", SUP_FETCH_DEPTH, err)) == RC_OK &&
            (rc = sup_hub_sort(&j->list, err)) == RC_OK)
            rc = sup_pick(&j->list, j->p->ref.variant, j->format, &index, err);
        for (size_t i = 0; rc == RC_OK && index && i < j->list.n; i++) {
            size_t n = strlen(j->list.file[i].path); /* a folder here has the shards it has */

            if (n > 12 && strcmp(j->list.file[i].path + n - 12, ".safetensors") == 0)
                j->list.file[i].taken = true;
        }
    } else {
        const off_t size = lseek(fd, 0, SEEK_END);

        last_part(j->p->ref.target, name);
        if (fnmatch("*.gguf", name, FNM_CASEFOLD) == 0 && size >= 0) {
            snprintf(j->format, sizeof(j->format), "gguf");
            if ((rc = sup_hub_add(&j->list, name, (uint64_t)size, NULL, NULL, err)) == RC_OK)
                j->list.file[0].taken = true;
        } else {
            rc = rc_fail_what(err, RC_INVALID, "path", "a single file has to be a .gguf");
        }
    }
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

/* One file, hashed on its way. */
static enum rc copy_one(struct sup_pull_job *j, int from, struct sup_hub_file *f,
                        struct sup_xfer_now *now, struct rc_err *err)
{
    char blob[SUP_SHA1_HEX], *b = malloc(1 << 20);
    struct sup_part p = {.part_fd = -1, .map_fd = -1};
    bool all = f->size == 0;
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "out of memory");
    rc = sup_part_open(&p, j->p->files_fd, f->path, f->size, "", err);
    if (rc == RC_OK)
        rc = sup_part_restart(&p, true, err); /* a source here is as fast as a part here */
    while (rc == RC_OK && !all) {
        ssize_t got = read(from, b, 1 << 20);

        if (got <= 0)
            rc = rc_fail_what(err, RC_CONFLICT, f->path, "'%.200s' %s", f->path,
                              got < 0 ? "cannot be read" : "became shorter while it was copied");
        else
            rc = sup_part_write(&p, 0, b, (size_t)got, err);
        if (rc == RC_OK)
            rc = sup_part_hash(&p, UINT64_MAX, &all, err);
        if (rc == RC_OK) {
            now->done_bytes += (uint64_t)got;
            now->file = f->path;
            if (j->p->on_now && !j->p->on_now(j->p->user, "fetching", now))
                rc = rc_fail(err, RC_CANCELLED, "interrupted");
        }
    }
    if (rc == RC_OK) {
        sup_part_sums(&p, f->sha256, blob);
        rc = sup_part_finish(&p, err);
    }
    sup_part_close(&p);
    free(b);
    return rc;
}

enum rc sup_pull_copy(struct sup_pull_job *j, struct rc_err *err)
{
    struct sup_xfer_now now = {0};
    enum rc rc;
    bool dir;
    int top = -1;

    if ((rc = source_open(j, &top, &dir, err)) != RC_OK)
        goto out;
    for (size_t i = 0; i < j->list.n; i++)
        if (j->list.file[i].taken) {
            now.of++;
            now.total_bytes += j->list.file[i].size;
        }
    for (size_t i = 0; rc == RC_OK && i < j->list.n; i++) {
        struct sup_hub_file *f = &j->list.file[i];
        int fd;

        if (!f->taken)
            continue;
        fd = dir ? openat(top, f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : dup(top);
        if (fd < 0) {
            rc = rc_fail_what(err, RC_IO, f->path, "'%.200s': %s", f->path, strerror(errno));
            break;
        }
        (void)lseek(fd, 0, SEEK_SET);
        rc = copy_one(j, fd, f, &now, err);
        close(fd);
        now.n++;
    }
out:
    if (top >= 0)
        close(top);
    return rc;
}
