/* sup_scan.c - walks the models directory and fingerprints what it finds.
 *
 * Looks at names, sizes, times and inodes only; never reads a byte of a model.
 * Every step down goes through openat2 below the models directory's descriptor, so
 * neither "..", an absolute link nor a /proc link leads out. The directory is
 * opened by path each time: it may be unmounted and mounted again.
 * Always true: a model that sup_scan_run lists is one that sup_scan_open opens, by
 * the same rules. Tests: tests/supervisor/test_sup_launcher.c
 */
#include "sup_scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_receipt.h"

#define FACTS_FILES 4096 /* files of one model folder that count for its identity */

bool sup_id_valid(const char *id)
{
    size_t n = strlen(id);

    if (n == 0 || n > SUP_ID_MAX || id[0] == '/' || id[n - 1] == '/' || !ipc_utf8_valid(id, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)id[i] < 0x20 || id[i] == 0x7F)
            return false;
    for (const char *p = id; p;) {
        const char *end = strchr(p, '/');
        size_t len = end ? (size_t)(end - p) : strlen(p);

        if (len == 0 || p[0] == '.') /* "." and ".." and hidden names alike */
            return false;
        p = end ? end + 1 : NULL;
    }
    return true;
}

static int open_beneath(int dir_fd, const char *path, uint64_t flags, uint64_t more)
{
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | more};
    int fd;

    do
        fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    return fd;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n > m && strcmp(s + n - m, tail) == 0;
}

static bool name_ok(const char *name)
{
    return name[0] != '.' && sup_id_valid(name);
}

static bool name_is_gguf(const char *name)
{
    const char *base = strrchr(name, '/');

    base = base ? base + 1 : name;
    return ends_with(base, ".gguf") && strncmp(base, "mmproj", 6) != 0;
}

/* ---------------------------------------------------------------- identity */

#define TORCH_WEIGHTS "pytorch_model.bin" /* read where there are no others */

struct fact {
    char *name;
    struct stat st;
};

struct facts {
    struct fact *f;
    size_t n, cap;
    bool config, weights;
    uint64_t bytes, torch_bytes;
};

static void facts_deinit(struct facts *fs)
{
    for (size_t i = 0; i < fs->n; i++)
        free(fs->f[i].name);
    free(fs->f);
    memset(fs, 0, sizeof(*fs));
}

static int fact_cmp(const void *a, const void *b)
{
    return strcmp(((const struct fact *)a)->name, ((const struct fact *)b)->name);
}

static bool file_matters(const char *name)
{
    static const char *const tails[] = {".json", ".safetensors", ".model", ".txt", ".jinja", ".pt"};

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (ends_with(name, tails[i]))
            return true;
    return strcmp(name, TORCH_WEIGHTS) == 0;
}

static enum rc facts_add(struct facts *fs, const char *name, const struct stat *st,
                         struct rc_err *err)
{
    if (fs->n == fs->cap) {
        size_t cap = fs->cap ? fs->cap * 2 : 16;
        struct fact *f = realloc(fs->f, cap * sizeof(*f));

        if (!f)
            return rc_fail(err, RC_NOMEM, "no memory to list a model");
        fs->f = f;
        fs->cap = cap;
    }
    if (!(fs->f[fs->n].name = strdup(name)))
        return rc_fail(err, RC_NOMEM, "no memory to list a model");
    fs->f[fs->n++].st = *st;
    return RC_OK;
}

/* Stat of a regular file below dir_fd, following links that stay inside root. The
 * link is resolved from root_fd (a link may point to a sibling folder). */
static bool stat_file(int root_fd, const char *root_rel, int dir_fd, const char *name,
                      struct stat *st)
{
    char path[SUP_ID_MAX * 2 + 2];
    int fd;
    bool ok;

    if (fstatat(dir_fd, name, st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (S_ISREG(st->st_mode))
        return true;
    if (!S_ISLNK(st->st_mode))
        return false;
    if (snprintf(path, sizeof(path), "%s%s%s", root_rel, root_rel[0] ? "/" : "", name) >=
        (int)sizeof(path))
        return false;
    if ((fd = open_beneath(root_fd, path, O_PATH, 0)) < 0)
        return false;
    ok = fstat(fd, st) == 0 && S_ISREG(st->st_mode);
    close(fd);
    return ok;
}

/* Files of one folder, and of its direct subfolders (sentence-transformers keeps
 * 1_Pooling/config.json there). prefix: "" or "1_Pooling/". */
static enum rc facts_of_dir(struct facts *fs, int root_fd, const char *rel, int dir_fd,
                            const char *prefix, size_t *budget, struct rc_err *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    enum rc rc = RC_OK;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return rc_fail(err, RC_IO, "model folder '%s': %s", rel, strerror(errno));
    }
    while (rc == RC_OK && (e = readdir(d)) && *budget > 0) {
        char sub_rel[SUP_ID_MAX * 2], name[600];
        struct stat st;
        int sub;

        (*budget)--;
        if (!name_ok(e->d_name))
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, e->d_name);
        if (file_matters(e->d_name) && stat_file(root_fd, rel, dir_fd, e->d_name, &st)) {
            if (fs->n >= FACTS_FILES)
                break;
            rc = facts_add(fs, name, &st, err);
            if (ends_with(e->d_name, ".safetensors") &&
                (!prefix[0] || strcmp(prefix, IPC_DRAFTER_DIR "/") == 0))
                fs->bytes += (uint64_t)st.st_size;
            if (prefix[0])
                continue;
            if (ends_with(e->d_name, ".safetensors")) {
                fs->weights = true;
            } else if (strcmp(e->d_name, "model.safetensors.index.json") == 0) {
                fs->weights = true;
            } else if (strcmp(e->d_name, TORCH_WEIGHTS) == 0) {
                fs->torch_bytes = (uint64_t)st.st_size;
            } else if (strcmp(e->d_name, "config.json") == 0) {
                fs->config = true;
            }
        } else if (!prefix[0] && (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN) &&
                   (sub = open_beneath(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY,
                                       RESOLVE_NO_SYMLINKS)) >= 0) {
            snprintf(name, sizeof(name), "%s/", e->d_name);
            if (snprintf(sub_rel, sizeof(sub_rel), "%s/%s", rel, e->d_name) < (int)sizeof(sub_rel))
                rc = facts_of_dir(fs, root_fd, sub_rel, sub, name, budget, err);
            close(sub);
        }
    }
    closedir(d);
    return rc;
}

static void hash_u64(crypto_hash_sha256_state *h, uint64_t v)
{
    crypto_hash_sha256_update(h, (const unsigned char *)&v, sizeof(v));
}

static void facts_hash(struct facts *fs, uint8_t out[SUP_IDENTITY_BYTES])
{
    crypto_hash_sha256_state h;

    if (fs->n > 1)
        qsort(fs->f, fs->n, sizeof(*fs->f), fact_cmp);
    crypto_hash_sha256_init(&h);
    for (size_t i = 0; i < fs->n; i++) {
        const struct stat *st = &fs->f[i].st;

        /* the NUL ends the name, so no two lists hash alike by shifting bytes */
        crypto_hash_sha256_update(&h, (const unsigned char *)fs->f[i].name,
                                  strlen(fs->f[i].name) + 1);
        hash_u64(&h, (uint64_t)st->st_size);
        hash_u64(&h, (uint64_t)st->st_mtim.tv_sec);
        hash_u64(&h, (uint64_t)st->st_mtim.tv_nsec);
        hash_u64(&h, (uint64_t)st->st_dev);
        hash_u64(&h, (uint64_t)st->st_ino);
    }
    crypto_hash_sha256_final(&h, out);
}

/* Fills facts of an open model; RC_NOT_FOUND when it is none. id may name a file
 * (is a model if *.gguf) or a folder. */
static enum rc model_facts(struct sup_scan_model *m, int root_fd, const char *id, int fd,
                           size_t *budget, struct rc_err *err)
{
    struct facts fs = {0};
    struct stat st;
    enum rc rc;

    if (fstat(fd, &st) != 0)
        return rc_fail(err, RC_IO, "model '%s': %s", id, strerror(errno));
    if (S_ISREG(st.st_mode) && name_is_gguf(id)) {
        m->is_dir = false;
        m->bytes = (uint64_t)st.st_size;
        rc = facts_add(&fs, id, &st, err);
    } else if (S_ISDIR(st.st_mode)) {
        m->is_dir = true;
        rc = facts_of_dir(&fs, root_fd, id, fd, "", budget, err);
        m->bytes = fs.weights ? fs.bytes : fs.torch_bytes;
        if (rc == RC_OK && !(fs.config && (fs.weights || fs.torch_bytes > 0)))
            rc = rc_fail(err, RC_NOT_FOUND, "there is no model '%s'", id);
    } else {
        rc = rc_fail(err, RC_NOT_FOUND, "there is no model '%s'", id);
    }
    if (rc == RC_OK)
        facts_hash(&fs, m->identity);
    facts_deinit(&fs);
    return rc;
}

/* -------------------------------------------------------------------- walk */

struct walk {
    struct sup_scan *s;
    int root_fd;
    size_t budget; /* directory entries left to look at */
};

static enum rc list_add(struct walk *w, const char *id, int fd, struct rc_err *err)
{
    struct sup_scan_model m = {0};
    struct rc_err why = RC_ERR_INIT;
    enum rc rc = model_facts(&m, w->root_fd, id, fd, &w->budget, &why);

    if (rc == RC_NOMEM)
        return rc_fail(err, rc, "%s", why.msg);
    if (rc != RC_OK)
        return RC_OK; /* not a model, or gone again */
    if (w->s->n >= SUP_SCAN_MODELS) {
        w->s->truncated = true;
        return RC_OK;
    }
    if (w->s->n == w->s->cap) {
        size_t cap = w->s->cap ? w->s->cap * 2 : 32;
        struct sup_scan_model *p = realloc(w->s->model, cap * sizeof(*p));

        if (!p)
            return rc_fail(err, RC_NOMEM, "no memory to list models");
        w->s->model = p;
        w->s->cap = cap;
    }
    if (!(m.id = strdup(id)))
        return rc_fail(err, RC_NOMEM, "no memory to list models");
    w->s->model[w->s->n++] = m;
    return RC_OK;
}

static enum rc walk_dir(struct walk *w, const char *rel, int dir_fd, int depth, bool in_model,
                        struct rc_err *err);

/* A link to a folder that stays beneath the models directory may be a model, as sup_scan_open would
 * open it. Nothing is looked for in it: what lies there is found where it is, and a link to a
 * folder above itself would have no end. */
static enum rc walk_link(struct walk *w, const char *id, struct rc_err *err)
{
    int fd = open_beneath(w->root_fd, id, O_RDONLY | O_DIRECTORY, 0);
    enum rc rc;

    if (fd < 0) /* leads out, or to no folder */
        return RC_OK;
    rc = list_add(w, id, fd, err);
    close(fd);
    return rc;
}

static enum rc walk_entry(struct walk *w, const char *rel, int dir_fd, const char *name, int depth,
                          bool in_model, struct rc_err *err)
{
    char id[SUP_ID_MAX + 2];
    size_t n = w->s->n;
    enum rc rc = RC_OK;
    struct stat st;
    int fd;

    if (!name_ok(name) || (in_model && strcmp(name, IPC_DRAFTER_DIR) == 0) ||
        snprintf(id, sizeof(id), "%s%s%s", rel, rel[0] ? "/" : "", name) > SUP_ID_MAX)
        return RC_OK;
    if (name_is_gguf(name)) {
        if ((fd = open_beneath(w->root_fd, id, O_PATH, 0)) < 0)
            return RC_OK;
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
            rc = list_add(w, id, fd, err);
            close(fd);
            return rc;
        }
        close(fd);
    }
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return RC_OK;
    if (S_ISLNK(st.st_mode))
        return walk_link(w, id, err);
    if (!S_ISDIR(st.st_mode))
        return RC_OK;
    if (depth >= SUP_SCAN_DEPTH) {
        w->s->truncated = true;
        return RC_OK;
    }
    if ((fd = open_beneath(dir_fd, name, O_RDONLY | O_DIRECTORY, RESOLVE_NO_SYMLINKS)) < 0)
        return RC_OK;
    if (sup_receipt_unfinished(fd)) { /* a download into it has not ended */
        close(fd);
        return RC_OK;
    }
    if ((rc = list_add(w, id, fd, err)) == RC_OK)
        rc = walk_dir(w, id, fd, depth + 1, w->s->n > n, err);
    close(fd);
    return rc;
}

/* in_model: the folder is one. */
static enum rc walk_dir(struct walk *w, const char *rel, int dir_fd, int depth, bool in_model,
                        struct rc_err *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    enum rc rc = RC_OK;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return RC_OK; /* unreadable folders are no models */
    }
    while (rc == RC_OK && (e = readdir(d))) {
        if (w->budget == 0) {
            w->s->truncated = true;
            break;
        }
        w->budget--;
        rc = walk_entry(w, rel, dir_fd, e->d_name, depth, in_model, err);
    }
    closedir(d);
    return rc;
}

static int root_open(const char *models_dir, struct rc_err *err)
{
    int fd = open(models_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "models_dir",
                     "models_dir '%s' cannot be opened: %s", models_dir, strerror(errno));
    return fd;
}

static int model_cmp(const void *a, const void *b)
{
    return strcmp(((const struct sup_scan_model *)a)->id, ((const struct sup_scan_model *)b)->id);
}

enum rc sup_scan_run(struct sup_scan *out, const char *models_dir, struct rc_err *err)
{
    struct sup_scan s = {0};
    struct walk w = {.s = &s, .budget = SUP_SCAN_ENTRIES};
    enum rc rc;

    if ((w.root_fd = root_open(models_dir, err)) < 0)
        return errno == ENOENT ? RC_NOT_FOUND : RC_IO;
    rc = walk_dir(&w, "", w.root_fd, 0, false, err);
    close(w.root_fd);
    if (rc != RC_OK) {
        sup_scan_deinit(&s);
        return rc;
    }
    if (s.n > 1)
        qsort(s.model, s.n, sizeof(*s.model), model_cmp);
    *out = s;
    return RC_OK;
}

void sup_scan_deinit(struct sup_scan *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->model[i].id);
    free(s->model);
    memset(s, 0, sizeof(*s));
}

enum rc sup_scan_open(int *out_fd, struct sup_scan_model *out_facts, const char *models_dir,
                      const char *id, struct rc_err *err)
{
    size_t budget = SUP_SCAN_ENTRIES;
    struct sup_scan_model m = {0};
    enum rc rc;
    int root, fd;

    if (!sup_id_valid(id))
        return rc_fail_what(err, RC_INVALID, "model", "not a model name");
    if ((root = root_open(models_dir, err)) < 0)
        return errno == ENOENT ? RC_NOT_FOUND : RC_IO;
    /* O_NONBLOCK: a FIFO with a model's name must not hang the launcher */
    fd = open_beneath(root, id, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        rc = rc_fail(err,
                     errno == ENOENT || errno == ENOTDIR || errno == EXDEV || errno == ELOOP
                         ? RC_NOT_FOUND
                         : RC_IO,
                     "there is no model '%s' (%s)", id, strerror(errno));
    else
        rc = model_facts(&m, root, id, fd, &budget, err);
    if (rc == RC_OK && fcntl(fd, F_SETFL, 0) != 0)
        rc = rc_fail(err, RC_IO, "model '%s': %s", id, strerror(errno));
    close(root);
    if (rc != RC_OK) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *out_fd = fd;
    *out_facts = m;
    return RC_OK;
}
