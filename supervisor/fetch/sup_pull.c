/* sup_pull.c - the steps of a pull, in order.
 *
 * Always true: every URL of a pull names the commit that the revision meant at its beginning;
 * nothing is fetched before its size is known, within bounds and on a disk that has room.
 * Tests: tests/e2e/pull.py
 */
#include "sup_pull.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "sup_hub.h"
#include "sup_pull_impl.h"

#define MARGIN_BYTES (64ull << 20) /* left free on the disk */

enum rc sup_pull_hub(char out[SUP_REF_MAX], const char *hub, struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];
    size_t n = strlen(hub);

    if (n >= SUP_REF_MAX - 1024)
        return rc_fail_what(err, RC_TOO_LARGE, "hub", "the hub's URL has at most %d bytes",
                            SUP_REF_MAX - 1025);
    while (n && hub[n - 1] == '/')
        n--;
    memcpy(out, hub, n);
    out[n] = '\0';
    if (!sup_ref_origin(out, origin) || !sup_ref_origin_safe(origin) || strpbrk(out, "?#"))
        return rc_fail_what(err, RC_INVALID, "hub",
                            "hub '%.200s': expected https://HOST[:PORT][/PATH], or http to this "
                            "machine itself",
                            hub);
    return RC_OK;
}

/* Everything but letters, digits and "-._~" as %XX; slashes stay when they are kept. */
static void quote(char *out, size_t cap, const char *s, bool keep_slash)
{
    size_t n = 0;

    for (; *s && n + 4 < cap; s++) {
        unsigned char c = (unsigned char)*s;

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            strchr("-._~", c) || (c == '/' && keep_slash))
            out[n++] = (char)c;
        else
            n += (size_t)snprintf(out + n, cap - n, "%%%02X", c);
    }
    out[n] = '\0';
}

/* -------------------------------------------------------------------- room */

static uint64_t arrived(const struct sup_pull_job *j, const struct sup_hub_file *f)
{
    char part[SUP_FETCH_PATH_MAX + 8];
    struct stat st;

    snprintf(part, sizeof(part), "%s.part", f->path);
    if (fstatat(j->p->files_fd, part, &st, AT_SYMLINK_NOFOLLOW) != 0 &&
        fstatat(j->p->files_fd, f->path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    return (uint64_t)st.st_blocks * 512 < f->size ? (uint64_t)st.st_blocks * 512 : f->size;
}

static enum rc bounds(struct sup_pull_job *j, struct rc_err *err)
{
    const struct sup_pull *p = j->p;
    uint64_t total = 0, need = 0, have;
    struct statvfs fs;

    for (size_t i = 0; i < j->list.n; i++) {
        const struct sup_hub_file *f = &j->list.file[i];

        if (!f->taken)
            continue;
        if (f->size == SUP_SIZE_UNKNOWN)
            return rc_fail_what(err, RC_FORMAT, f->path, "the hub tells no size of '%.200s'",
                                f->path);
        if (!f->sha256[0] && !f->blob[0] && p->ref.kind == SUP_REF_HUB)
            return rc_fail_what(err, RC_FORMAT, f->path, "the hub tells no hash of '%.200s'",
                                f->path);
        if (f->size > p->max_artifact_bytes)
            return rc_fail_what(err, RC_TOO_LARGE, "max-artifact-bytes",
                                "'%.200s' has %" PRIu64 " bytes, at most %" PRIu64
                                " (--max-artifact-bytes)",
                                f->path, f->size, p->max_artifact_bytes);
        if (f->size > p->max_model_bytes - total)
            return rc_fail_what(err, RC_TOO_LARGE, "max-model-bytes",
                                "the model has more than %" PRIu64 " bytes (--max-model-bytes)",
                                p->max_model_bytes);
        total += f->size;
        need += f->size - arrived(j, f);
    }
    if (fstatvfs(p->files_fd, &fs) != 0)
        return rc_fail(err, RC_IO, "free space of the models folder: %s", strerror(errno));
    have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need > have || have - need < MARGIN_BYTES)
        return rc_fail(err, RC_LIMIT,
                       "%" PRIu64 " MiB are yet to come and the disk of the models folder has "
                       "%" PRIu64 " MiB free, of which %llu stay free",
                       need >> 20, have >> 20, MARGIN_BYTES >> 20);
    return RC_OK;
}

/* ------------------------------------------------------------------- sweep */

/* Is this name, or what a part of it is called, one of those to be fetched? */
static bool wanted(struct sup_hub_list *l, const char *path)
{
    static const char *const tails[] = {"", ".part", ".part.map"};
    char base[SUP_FETCH_PATH_MAX + 32];
    size_t n = strlen(path);

    for (size_t i = 0; i < 3; i++) {
        size_t m = strlen(tails[i]);
        struct sup_hub_file *f;

        if (n <= m || n >= sizeof(base) || strcmp(path + n - m, tails[i]) != 0)
            continue;
        memcpy(base, path, n - m);
        base[n - m] = '\0';
        f = sup_hub_find(l, base);
        if (f && f->taken)
            return true;
    }
    return strcmp(path, SUP_UNFINISHED_NAME) == 0;
}

/* What an earlier pull of another choice left must not be published with this one. */
static bool sweep(struct sup_hub_list *l, int dir_fd, const char *prefix, int depth)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;
    bool ok = d != NULL;

    if (!d && fd >= 0)
        close(fd);
    while (ok && (e = readdir(d))) {
        char path[SUP_FETCH_PATH_MAX + 300];
        int sub;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof(path), "%s%s", prefix, e->d_name);
        sub = openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (sub < 0) {
            ok = wanted(l, path) || unlinkat(dir_fd, e->d_name, 0) == 0;
            continue;
        }
        snprintf(path, sizeof(path), "%s%s/", prefix, e->d_name);
        ok = depth > 0 && strlen(path) <= SUP_FETCH_PATH_MAX && sweep(l, sub, path, depth - 1);
        close(sub);
    }
    if (d)
        closedir(d);
    return ok;
}

/* ------------------------------------------------------------------- fetch */

static bool on_now(void *user, const struct sup_xfer_now *now)
{
    const struct sup_pull *p = ((const struct sup_pull_job *)user)->p;

    return !p->on_now || p->on_now(p->user, now->hashing ? "hashing" : "fetching", now);
}

static char *url_of(const struct sup_pull_job *j, const char *path)
{
    char quoted[3 * SUP_FETCH_PATH_MAX + 1], *out = NULL;

    if (j->p->ref.kind == SUP_REF_URL)
        return strdup(j->p->ref.target);
    quote(quoted, sizeof(quoted), path, true);
    if (asprintf(&out, "%s/%s/%s/resolve/%s/%s", j->p->hub, j->p->ref.owner, j->p->ref.name,
                 j->list.commit, quoted) < 0)
        return NULL;
    return out;
}

/* Fetches all files that are taken, or the one that is named. */
static enum rc fetch(struct sup_pull_job *j, const char *only, struct rc_err *err)
{
    struct sup_xfer x = {.rules = &j->rules,
                         .dir_fd = j->p->files_fd,
                         .retries = j->p->retries,
                         .on_now = on_now,
                         .user = j};
    struct sup_xfer_file *file = calloc(j->list.n + 1, sizeof(*file));
    enum rc rc = RC_OK;
    size_t n = 0;

    if (!file)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; rc == RC_OK && i < j->list.n; i++) {
        struct sup_hub_file *f = &j->list.file[i];

        if (!f->taken || (only && strcmp(f->path, only) != 0))
            continue;
        file[n] = (struct sup_xfer_file){.path = f->path,
                                         .url = url_of(j, f->path),
                                         .size = f->size,
                                         .sha256 = f->sha256,
                                         .blob = f->blob,
                                         .ident = f->sha256[0] ? f->sha256
                                                  : f->blob[0] ? f->blob
                                                               : j->list.commit};
        rc = file[n++].url ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");
    }
    if (rc == RC_OK)
        rc = sup_xfer_run(&x, j->multi, file, n, err);
    for (size_t i = 0, k = 0; k < n; i++) { /* the hashes of what came, into the list */
        struct sup_hub_file *f = &j->list.file[i];

        if (!f->taken || (only && strcmp(f->path, only) != 0))
            continue;
        if (rc == RC_OK)
            memcpy(f->sha256, file[k].got, sizeof(f->sha256));
        free((char *)(uintptr_t)file[k++].url);
    }
    free(file);
    return rc;
}

/* --------------------------------------------------------------------- hub */

static enum rc refused(const struct sup_pull *p, enum rc rc, struct rc_err *err)
{
    if (rc == RC_STATE && p->secret[0])
        rc_wrap(err, "%s/%s: the hub does not let this token in (is its licence accepted?)",
                p->ref.owner, p->ref.name);
    else if (rc == RC_STATE && p->served)
        rc_wrap(err,
                "%s/%s: the hub asks who we are: keep its token in the server's vault, 'inferd "
                "credentials set %.200s' (and accept the model's licence at the hub)",
                p->ref.owner, p->ref.name, p->hub);
    else if (rc == RC_STATE)
        rc_wrap(
            err,
            "%s/%s: the hub asks who we are: give --token-file FILE or set HF_TOKEN, or keep it "
            "in a vault, 'inferd credentials set %.200s' (and accept the model's licence at the "
            "hub)",
            p->ref.owner, p->ref.name, p->hub);
    else if (rc == RC_NOT_FOUND)
        rc_wrap(err, "%s/%s@%s is not at this hub", p->ref.owner, p->ref.name, p->ref.revision);
    return rc;
}

static enum rc list_hub(struct sup_pull_job *j, struct rc_err *err)
{
    const struct sup_ref *r = &j->p->ref;
    char url[SUP_REF_MAX + 1024], revision[sizeof(r->revision) * 3];
    char *json = NULL;
    size_t n = 0;
    enum rc rc;

    quote(revision, sizeof(revision), r->revision, false);
    snprintf(url, sizeof(url), "%s/api/models/%s/%s/revision/%s?blobs=true", j->p->hub, r->owner,
             r->name, revision);
    rc = sup_req_text(&j->rules, j->multi, url, "application/json", SUP_HUB_JSON_BYTES,
                      j->p->retries, &json, &n, err);
    if (rc != RC_OK)
        return refused(j->p, rc, err);
    rc = sup_hub_parse(&j->list, json, n, err);
    free(json);
    return rc;
}

/* The index is fetched first: it says which shards there are. */
static enum rc shards(struct sup_pull_job *j, struct rc_err *err)
{
    struct sup_hub_file *f = sup_hub_find(&j->list, SUP_HUB_INDEX);
    char *text = NULL;
    ssize_t got = -1;
    enum rc rc;
    int fd;

    if (f->size > SUP_HUB_JSON_BYTES)
        return rc_fail_what(err, RC_TOO_LARGE, f->path, "'%s' has more than %u bytes", f->path,
                            SUP_HUB_JSON_BYTES);
    if ((rc = bounds(j, err)) != RC_OK || (rc = fetch(j, SUP_HUB_INDEX, err)) != RC_OK)
        return rc;
    fd = openat(j->p->files_fd, SUP_HUB_INDEX, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (text = malloc((size_t)f->size + 1)))
        got = pread(fd, text, (size_t)f->size, 0);
    rc = got == (ssize_t)f->size ? sup_pick_shards(&j->list, text, (size_t)got, err)
                                 : rc_fail(err, RC_IO, "'" SUP_HUB_INDEX "' cannot be read");
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

/* ----------------------------------------------------------------- receipt */

static enum rc receipt(struct sup_pull_job *j, struct rc_err *err)
{
    const struct sup_ref *r = &j->p->ref;
    struct sup_receipt out = {.owner = strdup(r->owner),
                              .name = strdup(r->name),
                              .variant = strdup(r->variant),
                              .from = strdup(r->kind == SUP_REF_HUB ? j->p->hub : r->text),
                              .revision = strdup(r->kind == SUP_REF_HUB ? r->revision : ""),
                              .commit = strdup(j->list.commit),
                              .format = strdup(j->format)};
    enum rc rc = RC_OK;

    if (!out.owner || !out.name || !out.variant || !out.from || !out.revision || !out.commit ||
        !out.format)
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; rc == RC_OK && i < j->list.n; i++)
        if (j->list.file[i].taken)
            rc = sup_receipt_add(&out, j->list.file[i].path, j->list.file[i].size,
                                 j->list.file[i].sha256, err);
    if (rc == RC_OK)
        rc = sup_receipt_save(&out, j->p->files_fd, err);
    sup_receipt_deinit(&out);
    return rc;
}

static enum rc from_hub(struct sup_pull_job *j, bool *unchanged, struct rc_err *err)
{
    bool index = false;
    enum rc rc = list_hub(j, err);

    if (rc != RC_OK)
        return rc;
    if (strcmp(j->list.commit, j->p->have_commit) == 0) {
        *unchanged = true;
        return RC_OK;
    }
    if ((rc = sup_pick(&j->list, j->p->ref.variant, j->format, &index, err)) != RC_OK ||
        (index && (rc = shards(j, err)) != RC_OK))
        return rc;
    return RC_OK;
}

static enum rc run(struct sup_pull_job *j, bool *unchanged, struct rc_err *err)
{
    enum rc (*const list[])(struct sup_pull_job *, bool *, struct rc_err *) = {
        [SUP_REF_HUB] = from_hub,
        [SUP_REF_URL] = sup_pull_from_url,
        [SUP_REF_FILE] = sup_pull_from_file,
    };
    const struct sup_xfer_now nothing = {.file = ""};
    enum rc rc;

    if (j->p->on_now && !j->p->on_now(j->p->user, "asking", &nothing))
        return rc_fail(err, RC_CANCELLED, "interrupted");
    rc = list[j->p->ref.kind](j, unchanged, err);
    if (rc != RC_OK || *unchanged)
        return rc;
    if (!sweep(&j->list, j->p->files_fd, "", SUP_FETCH_DEPTH))
        return rc_fail(err, RC_IO, "the staging folder cannot be cleaned: %s", strerror(errno));
    if ((rc = bounds(j, err)) == RC_OK)
        rc = j->p->ref.kind == SUP_REF_FILE ? sup_pull_copy(j, err) : fetch(j, NULL, err);
    return rc == RC_OK ? receipt(j, err) : rc == RC_STATE ? refused(j->p, rc, err) : rc;
}

/* Who connects is then the proxy, which is often in the own network; it decides where to. */
static bool through_proxy(void)
{
    static const char *const names[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *v = getenv(names[i]);

        if (v && *v)
            return true;
    }
    return false;
}

enum rc sup_pull_run(struct sup_pull *p, bool *unchanged, struct rc_err *err)
{
    struct sup_pull_job j = {.p = p};
    enum rc rc;

    *unchanged = false;
    j.rules.secret = p->secret[0] ? p->secret : NULL;
    j.rules.hops = SUP_REQ_HOPS;
    j.rules.private_first = !p->public_only;
    j.rules.private_ok =
        !p->public_only && (strcmp(p->hub, SUP_HUB_DEFAULT) != 0 || through_proxy());
    (void)sup_ref_origin(p->hub, j.rules.secret_origin);
    if (p->ref.kind != SUP_REF_FILE && !(j.multi = curl_multi_init()))
        return rc_fail(err, RC_NOMEM, "out of memory");
    rc = run(&j, unchanged, err);
    sup_hub_deinit(&j.list);
    if (j.multi)
        curl_multi_cleanup(j.multi);
    return rc;
}
