/* mdl_file.c - opening, mapping and looking up; what both formats share.
 *
 * Owns maps and the tensor table. The formats' own rules are in mdl_gguf.c and
 * mdl_safetensors.c; files are opened by mdl_side.c only. A tensor is in the
 * table only after its parser has shown that it lies inside its map.
 *
 * Always true: names are unique over tensors and skipped tensors; maps are never
 * written and live until mdl_file_close.
 * SIGBUS: a file truncated while mapped can still fault between two guards. The
 * worker then dies alone and is started again; the guard before each batch turns
 * the usual case into RC_WEIGHT_IO. Tests: tests/models/test_mdl_file.c
 */
#include "mdl_file_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define TORCH_NAME "pytorch_model.bin"
#define TORCH_INDEX_NAME "pytorch_model.bin.index.json"
#define INDEX_MAX_BYTES (64u << 20)
#define DIR_MAX_ENTRIES 4096

/* ------------------------------------------------------------------- tables */

static const struct mdl_dtype_row dtype_rows[] = {
#define X(name, id, n, b) {id, n, b, #name},
    BE_DTYPE_MAP(X)
#undef X
};

const struct mdl_dtype_row *mdl_dtype_row(uint32_t id)
{
    for (size_t i = 0; i < sizeof(dtype_rows) / sizeof(dtype_rows[0]); i++)
        if (dtype_rows[i].id == id)
            return &dtype_rows[i];
    return NULL;
}

const char *mdl_show(char *buf, size_t cap, const char *s, size_t n)
{
    size_t i;

    for (i = 0; i < n && i + 1 < cap; i++)
        buf[i] = s[i] >= 0x20 && s[i] < 0x7F ? s[i] : '?';
    buf[i] = '\0';
    return buf;
}

struct mdl_seed mdl_hash_seed(void)
{
    struct mdl_seed seed;

    /* 16 random bytes the kernel gave this process: no system call, no state */
    memcpy(&seed, (const void *)getauxval(AT_RANDOM), sizeof(seed));
    seed.b |= 1;
    return seed;
}

enum rc mdl_hash_init(struct mdl_hash *h, size_t n, struct rc_err *err)
{
    size_t cap = 16;

    while (cap < 2 * n)
        cap *= 2;
    h->slots = calloc(cap, sizeof(*h->slots));
    if (!h->slots)
        return rc_fail(err, RC_NOMEM, "no memory for a table of %zu names", n);
    h->mask = (uint32_t)(cap - 1);
    h->seed = mdl_hash_seed();
    return RC_OK;
}

void mdl_hash_deinit(struct mdl_hash *h)
{
    free(h->slots);
    *h = (struct mdl_hash){0};
}

/* -------------------------------------------------------------------- build */

struct mdl_file *mdl_file_alloc(enum mdl_format format)
{
    struct mdl_file *f = calloc(1, sizeof(*f));

    if (f)
        f->format = format;
    return f;
}

void mdl_file_close(struct mdl_file **fp)
{
    struct mdl_file *f = *fp;

    *fp = NULL;
    if (!f)
        return;
    for (size_t i = 0; i < f->n_tensors; i++)
        free((char *)f->tensors[i].name);
    for (size_t i = 0; i < f->n_skipped; i++)
        free((char *)f->skipped[i].name);
    for (size_t i = 0; i < f->n_kvs; i++)
        free(f->kvs[i].marks);
    for (size_t i = 0; i < f->n_maps; i++)
        if (f->maps[i].fd >= 0) {
            if (f->maps[i].n_bytes)
                munmap((void *)f->maps[i].p, f->maps[i].n_bytes);
            close(f->maps[i].fd);
        }
    free(f->tensors);
    free(f->map_of);
    free(f->skipped);
    free(f->kvs);
    free(f->maps);
    mdl_hash_deinit(&f->by_name);
    mdl_hash_deinit(&f->by_key);
    free(f);
}

static enum rc name_dup(char **out, const char *name, size_t n, struct rc_err *err)
{
    char show[64];

    if (n == 0 || n > MDL_MAX_NAME || memchr(name, '\0', n))
        return rc_fail(err, RC_FORMAT,
                       "tensor name '%s': %zu bytes, expected 1 to %d without a NUL",
                       mdl_show(show, sizeof(show), name, n), n, MDL_MAX_NAME);
    *out = strndup(name, n);
    return *out ? RC_OK : rc_fail(err, RC_NOMEM, "no memory for a tensor name");
}

enum rc mdl_file_add(struct mdl_file *f, const struct mdl_tensor *t, const char *name,
                     size_t n_name, uint32_t map, struct rc_err *err)
{
    char *copy = NULL;
    enum rc rc;

    if (f->n_tensors + f->n_skipped >= MDL_MAX_TENSORS)
        return rc_fail(err, RC_FORMAT, "more than %d tensors", MDL_MAX_TENSORS);
    if (f->n_tensors == f->cap_tensors) {
        size_t cap = f->cap_tensors ? 2 * f->cap_tensors : 256;
        void *a = realloc(f->tensors, cap * sizeof(*f->tensors));
        if (a)
            f->tensors = a;
        void *b = realloc(f->map_of, cap * sizeof(*f->map_of));
        if (b)
            f->map_of = b;
        if (!a || !b)
            return rc_fail(err, RC_NOMEM, "no memory for the tensor table");
        f->cap_tensors = cap;
    }
    if ((rc = name_dup(&copy, name, n_name, err)) != RC_OK)
        return rc;
    f->tensors[f->n_tensors] = *t;
    f->tensors[f->n_tensors].name = copy;
    f->map_of[f->n_tensors] = map;
    f->n_tensors++;
    f->data_bytes += t->n_bytes;
    return RC_OK;
}

enum rc mdl_file_skip(struct mdl_file *f, const char *name, size_t n_name, const char *dtype,
                      const void *data, uint64_t n_values, struct rc_err *err)
{
    char *copy = NULL;
    enum rc rc;

    if (f->n_tensors + f->n_skipped >= MDL_MAX_TENSORS)
        return rc_fail(err, RC_FORMAT, "more than %d tensors", MDL_MAX_TENSORS);
    if (f->n_skipped == f->cap_skipped) {
        size_t cap = f->cap_skipped ? 2 * f->cap_skipped : 16;
        void *a = realloc(f->skipped, cap * sizeof(*f->skipped));
        if (!a)
            return rc_fail(err, RC_NOMEM, "no memory for the tensor table");
        f->skipped = a;
        f->cap_skipped = cap;
    }
    if ((rc = name_dup(&copy, name, n_name, err)) != RC_OK)
        return rc;
    f->skipped[f->n_skipped].name = copy;
    f->skipped[f->n_skipped].data = data;
    f->skipped[f->n_skipped].n_values = n_values;
    mdl_show(f->skipped[f->n_skipped].dtype, sizeof(f->skipped[0].dtype), dtype, strlen(dtype));
    f->n_skipped++;
    return RC_OK;
}

/* Slots hold tensors first, then skipped ones. */
static const char *name_at(const struct mdl_file *f, uint32_t i)
{
    return i < f->n_tensors ? f->tensors[i].name : f->skipped[i - f->n_tensors].name;
}

static uint32_t *name_slot(const struct mdl_file *f, const char *name)
{
    uint32_t i = (uint32_t)mdl_hash_bytes(f->by_name.seed, name, strlen(name)) & f->by_name.mask;

    while (f->by_name.slots[i] && strcmp(name_at(f, f->by_name.slots[i] - 1), name) != 0)
        i = (i + 1) & f->by_name.mask;
    return &f->by_name.slots[i];
}

enum rc mdl_file_index(struct mdl_file *f, struct rc_err *err)
{
    uint32_t n = (uint32_t)(f->n_tensors + f->n_skipped);
    char show[80];
    enum rc rc;

    if (f->by_name.slots) /* shards were indexed to check their index file */
        return RC_OK;
    if ((rc = mdl_hash_init(&f->by_name, n, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        const char *name = name_at(f, i);
        uint32_t *slot = name_slot(f, name);
        if (*slot)
            return rc_fail_what(err, RC_FORMAT, name, "tensor '%s' appears twice",
                                mdl_show(show, sizeof(show), name, strlen(name)));
        *slot = i + 1;
    }
    return RC_OK;
}

/* ------------------------------------------------------------------- opening */

enum rc mdl_map_add(struct mdl_file *f, int fd, uint64_t size, const char *name, struct rc_err *err)
{
    struct mdl_map *m;
    struct stat st;
    void *p = NULL;

    if (fstat(fd, &st) < 0)
        return rc_fail_what(err, RC_IO, name, "file '%s': %s", name, strerror(errno));
    if (size == 0)
        return rc_fail_what(err, RC_FORMAT, name, "file '%s' is empty", name);
    if (size > SIZE_MAX / 2)
        return rc_fail_what(err, RC_FORMAT, name, "file '%s' is too large to map", name);
    m = realloc(f->maps, (f->n_maps + 1) * sizeof(*m));
    if (!m)
        return rc_fail(err, RC_NOMEM, "no memory for a file table");
    f->maps = m;
    p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return rc_fail_what(err, errno == ENOMEM ? RC_NOMEM : RC_IO, name, "mapping '%s': %s", name,
                            strerror(errno));
    m = &f->maps[f->n_maps++];
    *m = (struct mdl_map){.p = p,
                          .n_bytes = (size_t)size,
                          .fd = fd,
                          .mtime_s = st.st_mtim.tv_sec,
                          .mtime_ns = st.st_mtim.tv_nsec};
    snprintf(m->name, sizeof(m->name), "%s", name);
    return RC_OK;
}

/* The one *.gguf of a directory. RC_NOT_FOUND with *n_found 0: there is none. */
static enum rc find_gguf(int root_fd, char *name, size_t cap, int *n_found, struct rc_err *err)
{
    enum rc rc = RC_OK;
    struct dirent *e;
    DIR *dir = NULL;
    int fd, n_seen = 0;

    fd = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !(dir = fdopendir(fd))) {
        rc = rc_fail(err, RC_IO, "listing the model directory: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while ((e = readdir(dir)) && ++n_seen <= DIR_MAX_ENTRIES) {
        size_t n = strlen(e->d_name);
        if (n < 6 || strcmp(e->d_name + n - 5, ".gguf") != 0 || n >= cap)
            continue;
        ++*n_found;
        memcpy(name, e->d_name, n + 1);
    }
    if (*n_found == 0)
        rc = rc_fail(err, RC_NOT_FOUND,
                     "no weights: the directory has no " SINGLE_NAME ", no " INDEX_NAME
                     ", no *.gguf file and no " TORCH_NAME);
    else if (*n_found > 1)
        rc = rc_fail(err, RC_NOT_FOUND, "%d *.gguf files in the directory, expected exactly one",
                     *n_found);
    closedir(dir);
    return rc;
}

/* The next of f's maps. */
static enum rc map_side(struct mdl_file *f, int root_fd, const char *name, struct rc_err *err)
{
    uint64_t size = 0;
    int fd = -1;
    enum rc rc;

    if ((rc = mdl_side_open(root_fd, name, &fd, &size, err)) != RC_OK)
        return rc;
    if ((rc = mdl_map_add(f, fd, size, name, err)) != RC_OK)
        close(fd);
    return rc;
}

static enum rc open_gguf(struct mdl_file *f, int root_fd, const char *name, struct rc_err *err)
{
    enum rc rc = map_side(f, root_fd, name, err);

    if (rc != RC_OK)
        return rc;
    f->format = MDL_GGUF;
    return mdl_gguf_read(f, 0, err);
}

/* Where there are no other weights; err says so already. A file that is there but cannot be read
 * must not be called absent. */
static enum rc open_torch(struct mdl_file *f, int root_fd, struct rc_err *err)
{
    struct rc_err e = RC_ERR_INIT;
    uint64_t size = 0;
    int fd = -1;
    enum rc rc = map_side(f, root_fd, TORCH_NAME, &e);

    if (rc == RC_OK)
        return mdl_torch_read(f, 0, err);
    if (rc == RC_NOT_FOUND && mdl_side_open(root_fd, TORCH_INDEX_NAME, &fd, &size, NULL) == RC_OK) {
        close(fd);
        rc = rc_fail_what(&e, RC_UNSUPPORTED, TORCH_INDEX_NAME,
                          "the weights are a state dict in several files (" TORCH_INDEX_NAME
                          "), which is not read: save the model as safetensors");
    }
    if (rc != RC_NOT_FOUND && err)
        *err = e;
    return rc;
}

static enum rc open_dir(struct mdl_file *f, int root_fd, struct rc_err *err)
{
    char name[256], *json = NULL;
    int n_found = 0;
    size_t n = 0;
    enum rc rc;

    rc = map_side(f, root_fd, SINGLE_NAME, err);
    if (rc == RC_OK)
        return mdl_safetensors_read(f, 0, err);
    if (rc != RC_NOT_FOUND)
        return rc;
    rc = mdl_side_read(root_fd, INDEX_NAME, INDEX_MAX_BYTES, &json, &n, err);
    if (rc == RC_OK) {
        rc = mdl_shards_open(f, root_fd, json, n, err);
        free(json);
        return rc;
    }
    if (rc != RC_NOT_FOUND)
        return rc;
    if ((rc = find_gguf(root_fd, name, sizeof(name), &n_found, err)) == RC_OK)
        return open_gguf(f, root_fd, name, err);
    return rc == RC_NOT_FOUND && n_found == 0 ? open_torch(f, root_fd, err) : rc;
}

enum rc mdl_file_open(struct mdl_file **out, int root_fd, struct rc_err *err)
{
    struct mdl_file *f = NULL;
    struct stat st;
    enum rc rc;
    int fd;

    if (fstat(root_fd, &st) < 0)
        return rc_fail(err, RC_IO, "the model's root: %s", strerror(errno));
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return rc_fail(err, RC_IO, "the model's root is neither a file nor a directory");
    if (!(f = mdl_file_alloc(MDL_SAFETENSORS)))
        return rc_fail(err, RC_NOMEM, "no memory for a file table");
    if (S_ISDIR(st.st_mode)) {
        rc = open_dir(f, root_fd, err);
    } else {
        f->format = MDL_GGUF;
        if ((fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3)) < 0)
            rc = rc_fail(err, RC_IO, "the model's root: %s", strerror(errno));
        else if ((rc = mdl_map_add(f, fd, (uint64_t)st.st_size, "model.gguf", err)) != RC_OK)
            close(fd);
        else
            rc = mdl_gguf_read(f, 0, err);
    }
    if (rc == RC_OK)
        rc = mdl_file_index(f, err);
    if (rc != RC_OK)
        mdl_file_close(&f);
    else
        *out = f;
    return rc;
}

static enum rc rename_from(struct mdl_file *f, size_t tensor, size_t skipped, const char *prefix,
                           struct rc_err *err)
{
    size_t n = f->n_tensors - tensor, i, len;
    const char **name;
    char *longer;

    for (i = 0; i < n + (f->n_skipped - skipped); i++) {
        name = i < n ? &f->tensors[tensor + i].name : &f->skipped[skipped + i - n].name;
        len = strlen(prefix) + strlen(*name) + 1;
        if (!(longer = malloc(len)))
            return rc_fail(err, RC_NOMEM, "no memory for a tensor name");
        snprintf(longer, len, "%s%s", prefix, *name);
        free((char *)*name);
        *name = longer;
    }
    return RC_OK;
}

enum rc mdl_file_beside(struct mdl_file *f, int root_fd, const char *name, const char *prefix,
                        struct rc_err *err)
{
    static const char safetensors[] = ".safetensors";
    size_t tensor = f->n_tensors, skipped = f->n_skipped, n = strlen(name),
           n_end = sizeof(safetensors) - 1;
    enum rc rc = map_side(f, root_fd, name, err);
    uint32_t map = (uint32_t)f->n_maps - 1;

    if (rc != RC_OK)
        return rc;
    rc = n > n_end && strcmp(name + n - n_end, safetensors) == 0 ? mdl_safetensors_read(f, map, err)
                                                                 : mdl_torch_read(f, map, err);
    if (rc == RC_OK)
        rc = rename_from(f, tensor, skipped, prefix, err);
    if (rc == RC_OK) {
        mdl_hash_deinit(&f->by_name);
        rc = mdl_file_index(f, err);
    }
    if (rc != RC_OK)
        rc_wrap(err, "weight file '%s'", name);
    return rc;
}

static enum rc read_map(struct mdl_file *f, enum mdl_format format, bool torch, struct rc_err *err)
{
    return torch                ? mdl_torch_read(f, 0, err)
           : format == MDL_GGUF ? mdl_gguf_read(f, 0, err)
                                : mdl_safetensors_read(f, 0, err);
}

static enum rc parse(struct mdl_file **out, enum mdl_format format, bool torch, const void *data,
                     size_t n_bytes, struct rc_err *err)
{
    struct mdl_file *f = mdl_file_alloc(format);
    enum rc rc;

    if (!f || !(f->maps = calloc(1, sizeof(*f->maps)))) {
        mdl_file_close(&f);
        return rc_fail(err, RC_NOMEM, "no memory for a file table");
    }
    f->n_maps = 1;
    f->maps[0] = (struct mdl_map){.p = data, .n_bytes = n_bytes, .fd = -1, .name = "memory"};
    rc = read_map(f, format, torch, err);
    if (rc == RC_OK)
        rc = mdl_file_index(f, err);
    if (rc != RC_OK)
        mdl_file_close(&f);
    else
        *out = f;
    return rc;
}

enum rc mdl_gguf_parse(struct mdl_file **out, const void *data, size_t n_bytes, struct rc_err *err)
{
    return parse(out, MDL_GGUF, false, data, n_bytes, err);
}

enum rc mdl_safetensors_parse(struct mdl_file **out, const void *data, size_t n_bytes,
                              struct rc_err *err)
{
    return parse(out, MDL_SAFETENSORS, false, data, n_bytes, err);
}

enum rc mdl_torch_parse(struct mdl_file **out, const void *data, size_t n_bytes, struct rc_err *err)
{
    return parse(out, MDL_SAFETENSORS, true, data, n_bytes, err);
}

/* -------------------------------------------------------------------- using */

enum mdl_format mdl_file_format(const struct mdl_file *f)
{
    return f->format;
}

size_t mdl_file_n_tensors(const struct mdl_file *f)
{
    return f->n_tensors;
}

const struct mdl_tensor *mdl_file_tensor(const struct mdl_file *f, size_t i)
{
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}

const struct mdl_tensor *mdl_file_find(const struct mdl_file *f, const char *name)
{
    uint32_t slot = *name_slot(f, name);

    return slot && slot - 1 < f->n_tensors ? &f->tensors[slot - 1] : NULL;
}

bool mdl_file_has_skipped(const struct mdl_file *f, const char *name)
{
    return *name_slot(f, name) > f->n_tensors;
}

enum rc mdl_file_ints(const struct mdl_file *f, const char *name, uint64_t n, int64_t limit,
                      int32_t *out, struct rc_err *err)
{
    uint32_t slot = *name_slot(f, name);
    const struct mdl_skipped *s;

    if (slot <= f->n_tensors || !f->skipped[slot - 1 - f->n_tensors].data)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name,
                            "tensor '%s' is missing or holds no integers", name);
    s = &f->skipped[slot - 1 - f->n_tensors];
    if (s->n_values != n)
        return rc_fail_what(err, RC_FORMAT, name, "tensor '%s': %llu integers, expected %llu", name,
                            (unsigned long long)s->n_values, (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *p = s->data;
        bool wide = strcmp(s->dtype, "I64") == 0;
        int64_t v = wide ? (int64_t)mdl_le(p + 8 * i, 8) : (int32_t)(uint32_t)mdl_le(p + 4 * i, 4);

        if (v < 0 || v >= limit)
            return rc_fail_what(err, RC_FORMAT, name,
                                "tensor '%s': integer %llu is %lld, expected 0 to %lld", name,
                                (unsigned long long)i, (long long)v, (long long)limit - 1);
        out[i] = (int32_t)v;
    }
    return RC_OK;
}

static const char *show_dims(char *buf, size_t cap, uint32_t n, const uint64_t *dims)
{
    size_t at = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < n && at < cap; i++)
        at +=
            (size_t)snprintf(buf + at, cap - at, i ? ",%llu" : "%llu", (unsigned long long)dims[i]);
    return buf;
}

enum rc mdl_file_take(const struct mdl_file *f, const char *name, uint32_t n_dims,
                      const uint64_t *dims, const struct mdl_tensor **out, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(f, name);
    uint32_t slot = *name_slot(f, name);
    char have[96], want[96];
    uint64_t bad = 0;

    if (!t && slot)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "tensor '%s' has dtype %s, not supported",
                            name, f->skipped[slot - 1 - f->n_tensors].dtype);
    if (!t)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name, "tensor '%s' is not in the checkpoint",
                            name);
    if (t->n_dims != n_dims || (n_dims && memcmp(t->dims, dims, n_dims * sizeof(*dims)) != 0))
        return rc_fail_what(err, RC_FORMAT, name, "tensor '%s': shape [%s], expected [%s]", name,
                            show_dims(have, sizeof(have), t->n_dims, t->dims),
                            show_dims(want, sizeof(want), n_dims, dims));
    const struct mdl_dtype_row *row = mdl_dtype_row(t->dtype);
    uint32_t align = row->block > 1 ? 2 : row->bytes;
    if ((uintptr_t)t->data % align != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, name,
                            "tensor '%s': its %s data does not start at a multiple of %u bytes",
                            name, row->name, align);
    if (!mdl_finite(t->dtype, t->data, t->n_bytes, &bad))
        return rc_fail_what(err, RC_FORMAT, name, "tensor '%s': %s %llu is not a finite number",
                            name, row->block > 1 ? "the scale of block" : "value",
                            (unsigned long long)bad);
    *out = t;
    return RC_OK;
}

uint64_t mdl_file_bytes(const struct mdl_file *f)
{
    return f->data_bytes;
}

void mdl_file_drop(const struct mdl_file *f, const struct mdl_tensor *t)
{
    const struct mdl_map *m = &f->maps[f->map_of[t - f->tensors]];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)t->data + t->n_bytes) & ~(page - 1);

    if (m->fd >= 0 && from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

bool mdl_file_map(const struct mdl_file *f, size_t i, const char **name, const uint8_t **data,
                  size_t *n_bytes)
{
    if (i >= f->n_maps)
        return false;
    *name = f->maps[i].name;
    *data = f->maps[i].p;
    *n_bytes = f->maps[i].n_bytes;
    return true;
}

enum rc mdl_file_guard(const struct mdl_file *f, struct rc_err *err)
{
    struct stat st;

    for (size_t i = 0; i < f->n_maps; i++) {
        const struct mdl_map *m = &f->maps[i];
        if (m->fd < 0)
            continue;
        if (fstat(m->fd, &st) < 0)
            return rc_fail_what(err, RC_WEIGHT_IO, m->name, "weights file '%s': %s", m->name,
                                strerror(errno));
        if ((uint64_t)st.st_size < m->n_bytes)
            return rc_fail_what(err, RC_WEIGHT_IO, m->name,
                                "weights file '%s' has shrunk: %llu bytes, expected %zu", m->name,
                                (unsigned long long)st.st_size, m->n_bytes);
        if (st.st_mtim.tv_sec != m->mtime_s || st.st_mtim.tv_nsec != m->mtime_ns)
            return rc_fail_what(err, RC_WEIGHT_IO, m->name,
                                "weights file '%s' was written to since it was loaded", m->name);
    }
    return RC_OK;
}
