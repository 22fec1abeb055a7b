/* be_kgen.c - the artifact set on disk against the catalog.
 *
 * Both jobs walk the same list of expected files. Text is remade from the catalog and
 * compared byte for byte. PTX is remade only where a compiler is given and the line at its
 * head names another source, option or compiler. Files are written beside their place and
 * renamed. Tests: tests/backends/test_be_kgen.c
 */
#include "be_kgen.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "be_kart_impl.h"

/* No artifact is near this. */
#define FILE_MAX ((size_t)64 << 20)

struct file {
    char *name; /* "cuda/rows.cu" */
    char *data; /* as on disk, NULL: absent */
    size_t n;
    bool wanted;
};
struct set {
    struct file *list;
    size_t n, cap;
};

static struct file *set_find(struct set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->list[i].name, name) == 0)
            return &s->list[i];
    return NULL;
}

static enum rc set_add(struct set *s, const char *name, struct rc_err *err)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct file *p = realloc(s->list, cap * sizeof(*p));

        if (!p)
            return rc_fail(err, RC_NOMEM, "out of memory for %zu files", cap);
        s->list = p;
        s->cap = cap;
    }
    s->list[s->n] = (struct file){.name = strdup(name)};
    if (!s->list[s->n].name)
        return rc_fail(err, RC_NOMEM, "out of memory");
    s->n++;
    return RC_OK;
}

static void set_deinit(struct set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->list[i].name);
        free(s->list[i].data);
    }
    free(s->list);
}

static enum rc path_of(const struct be_kgen *g, const char *name, char out[4096],
                       struct rc_err *err)
{
    int n = snprintf(out, 4096, "%s/%s", g->root, name);

    return n > 0 && n < 4096 ? RC_OK : rc_fail(err, RC_TOO_LARGE, "path of '%s' is too long", name);
}

static enum rc file_read(const struct be_kgen *g, struct file *f, struct rc_err *err)
{
    char path[4096];
    struct stat st;
    FILE *in = NULL;
    enum rc rc;

    if ((rc = path_of(g, f->name, path, err)) != RC_OK)
        return rc;
    if (!(in = fopen(path, "rb")))
        return errno == ENOENT ? RC_OK
                               : rc_fail(err, RC_IO, "cannot open '%s': %s", path, strerror(errno));
    if (fstat(fileno(in), &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_MAX)
        rc = rc_fail(err, RC_IO, "'%s' is not a file of at most %zu bytes", path, FILE_MAX);
    else if (!(f->data = malloc((size_t)st.st_size + 1)))
        rc = rc_fail(err, RC_NOMEM, "out of memory for '%s'", path);
    else if ((f->n = fread(f->data, 1, (size_t)st.st_size, in)) != (size_t)st.st_size)
        rc = rc_fail(err, RC_IO, "cannot read '%s'", path);
    else
        f->data[f->n] = '\0';
    fclose(in);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

/* Every file below cuda/ and metal/, and the manifest, with bytes. */
static enum rc scan_dir(const struct be_kgen *g, const char *dir, struct set *s, struct rc_err *err)
{
    char path[4096], name[512];
    const struct dirent *e;
    enum rc rc;
    DIR *d;

    if ((rc = path_of(g, dir, path, err)) != RC_OK)
        return rc;
    if (!(d = opendir(path)))
        return errno == ENOENT ? RC_OK
                               : rc_fail(err, RC_IO, "cannot open '%s': %s", path, strerror(errno));
    while (rc == RC_OK && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", dir, e->d_name);
        rc = set_add(s, name, err);
    }
    closedir(d);
    return rc;
}

static enum rc scan(const struct be_kgen *g, struct set *s, struct rc_err *err)
{
    enum rc rc;

    if ((rc = scan_dir(g, "cuda", s, err)) != RC_OK ||
        (rc = scan_dir(g, "metal", s, err)) != RC_OK ||
        (rc = set_add(s, BE_KMANIFEST_NAME, err)) != RC_OK)
        return rc;
    qsort(s->list, s->n, sizeof(*s->list), by_name);
    for (size_t i = 0; i < s->n; i++)
        if ((rc = file_read(g, &s->list[i], err)) != RC_OK)
            return rc;
    return RC_OK;
}

/* ------------------------------------------------------------- the walk */

struct walk {
    const struct be_kgen *g;
    struct set set;
    bool write;
    uint32_t n_bad;
    struct be_knvrtc *nvrtc; /* opened when first needed */
};

static void say(struct walk *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct walk *w, const char *fmt, ...)
{
    char line[700];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    w->g->say(w->g->user, line);
}

static enum rc file_write(struct walk *w, const char *name, const char *data, size_t n,
                          struct rc_err *err)
{
    char path[4096], tmp[4110];
    struct file *f;
    FILE *out;
    enum rc rc;

    if ((rc = path_of(w->g, name, path, err)) != RC_OK)
        return rc;
    if (strchr(name, '/')) {
        char *slash = strrchr(path, '/');

        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return rc_fail(err, RC_IO, "cannot make '%s': %s", path, strerror(errno));
        *slash = '/';
    }
    snprintf(tmp, sizeof(tmp), "%s.tmp", path);
    if (!(out = fopen(tmp, "wb")))
        return rc_fail(err, RC_IO, "cannot write '%s': %s", tmp, strerror(errno));
    if (fwrite(data, 1, n, out) != n || fflush(out) != 0)
        rc = rc_fail(err, RC_IO, "cannot write '%s': %s", tmp, strerror(errno));
    if (fclose(out) != 0 && rc == RC_OK)
        rc = rc_fail(err, RC_IO, "cannot write '%s': %s", tmp, strerror(errno));
    if (rc == RC_OK && rename(tmp, path) != 0)
        rc = rc_fail(err, RC_IO, "cannot rename '%s': %s", tmp, strerror(errno));
    if (rc != RC_OK) {
        unlink(tmp);
        return rc;
    }
    say(w, "wrote %s (%zu bytes)", name, n);
    if (!(f = set_find(&w->set, name))) {
        if ((rc = set_add(&w->set, name, err)) != RC_OK)
            return rc;
        f = &w->set.list[w->set.n - 1];
    }
    free(f->data);
    f->wanted = true;
    f->n = n;
    if (!(f->data = malloc(n + 1)))
        return rc_fail(err, RC_NOMEM, "out of memory for '%s'", name);
    memcpy(f->data, data, n);
    f->data[n] = '\0';
    return RC_OK;
}

static unsigned line_of_difference(const struct file *f, const char *data, size_t n)
{
    unsigned line = 1;

    for (size_t i = 0; i < f->n && i < n && f->data[i] == data[i]; i++)
        line += f->data[i] == '\n';
    return line;
}

/* A file whose bytes are known: same, or said (check), or written. */
static enum rc expect(struct walk *w, const char *name, const char *data, size_t n,
                      struct rc_err *err)
{
    struct file *f = set_find(&w->set, name);

    if (f)
        f->wanted = true;
    if (f && f->data && f->n == n && memcmp(f->data, data, n) == 0)
        return RC_OK;
    if (w->write)
        return file_write(w, name, data, n, err);
    w->n_bad++;
    if (!f || !f->data)
        say(w, "missing: %s", name);
    else
        say(w, "stale: %s (differs from line %u on)", name, line_of_difference(f, data, n));
    return RC_OK;
}

static enum rc open_compiler(struct walk *w, const char *for_name, struct rc_err *err)
{
    enum rc rc;

    if (w->nvrtc)
        return RC_OK;
    if (!w->g->nvrtc)
        return rc_fail_what(err, RC_NOT_FOUND, for_name,
                            "'%s' must be compiled: give NVRTC (--nvrtc PATH, or "
                            "INFERD_NVRTC_LIBRARY)",
                            for_name);
    if ((rc = be_knvrtc_open(&w->nvrtc, w->g->nvrtc, err)) != RC_OK)
        return rc;
    if (!w->g->any_compiler && strcmp(be_knvrtc_version(w->nvrtc), BE_KGEN_COMPILER) != 0)
        return rc_fail(err, RC_UNSUPPORTED, "'%s' is %s, expected %s (or --any-compiler)",
                       w->g->nvrtc, be_knvrtc_version(w->nvrtc), BE_KGEN_COMPILER);
    return RC_OK;
}

/* The options of an artifact as its first line has them. */
static void options_of(unsigned arch, char out[96])
{
    snprintf(out, 96, "--gpu-architecture=compute_%u%s --fmad=false%s", arch,
             arch == BE_KART_ONLY_ARCH ? "a" : "",
             arch > 75 ? " --define-macro=" BE_KLIB_SM80_ONLY : "");
}

static enum rc compile(struct walk *w, const char *name, const struct be_ktext *cu,
                       struct be_kptx_head *h, unsigned arch, struct rc_err *err)
{
    char target[40], *ptx = NULL, first[256];
    const char *opts[] = {target, "--fmad=false", "--define-macro=" BE_KLIB_SM80_ONLY};
    struct be_ktext out = {0};
    size_t n;
    enum rc rc;

    snprintf(target, sizeof(target), "--gpu-architecture=compute_%u%s", arch,
             arch == BE_KART_ONLY_ARCH ? "a" : "");
    if ((rc = open_compiler(w, name, err)) != RC_OK ||
        (rc = be_knvrtc_compile(w->nvrtc, name, cu->p, opts, arch > 75 ? 3 : 2, &ptx, &n, err)) !=
            RC_OK)
        return rc;
    snprintf(h->compiler, sizeof(h->compiler), "%s", be_knvrtc_version(w->nvrtc));
    be_kptx_head_text(h, first);
    be_ktext_add(&out, "%s", first);
    be_kptx_add(&out, ptx);
    free(ptx);
    rc = out.failed ? rc_fail(err, RC_NOMEM, "out of memory for '%s'", name)
                    : file_write(w, name, out.p, out.n, err);
    be_ktext_deinit(&out);
    return rc;
}

static enum rc do_ptx(struct walk *w, const char *lib, unsigned arch, const struct be_ktext *cu,
                      struct rc_err *err)
{
    struct be_kptx_head want = {0}, have = {0};
    const char *why = NULL;
    struct file *f;
    char name[128];

    be_klib_ptx_name(lib, arch, name, sizeof(name));
    options_of(arch, want.options);
    be_khash_hex(cu->p, cu->n, want.source);
    f = set_find(&w->set, name);
    if (f)
        f->wanted = true;
    if (!f || !f->data)
        why = "missing";
    else if (!be_kptx_head_parse(f->data, f->n, &have))
        why = "no line of kgen at its head";
    else if (strcmp(have.source, want.source) != 0)
        why = "made from another source";
    else if (strcmp(have.options, want.options) != 0)
        why = "made with other options";
    else if (!w->g->any_compiler && strcmp(have.compiler, BE_KGEN_COMPILER) != 0)
        why = "made by another compiler";
    if (!why)
        return RC_OK;
    if (w->write)
        return compile(w, name, cu, &want, arch, err);
    w->n_bad++;
    if (!f || !f->data)
        say(w, "missing: %s", name);
    else
        say(w, "stale: %s (%s)", name, why);
    return RC_OK;
}

static enum rc do_cuda(struct walk *w, const struct be_klib *l, struct rc_err *err)
{
    struct be_ktext cu = {0};
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "cuda/%s.cu", l->name);
    if ((rc = be_klib_text(w->g->families, l->name, NULL, false, &cu, err)) != RC_OK ||
        (rc = expect(w, name, cu.p, cu.n, err)) != RC_OK ||
        (l->sm75 && (rc = do_ptx(w, l->name, 75, &cu, err)) != RC_OK))
        goto out;
    if (l->sm80 && (rc = do_ptx(w, l->name, 80, &cu, err)) != RC_OK)
        goto out;
    if (l->sm90)
        rc = do_ptx(w, l->name, 90, &cu, err);
out:
    be_ktext_deinit(&cu);
    return rc;
}

static enum rc do_metal(struct walk *w, const struct be_klib *l, struct rc_err *err)
{
    struct be_ktext t = {0};
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "metal/%s.metal", l->name);
    if ((rc = be_klib_text(w->g->families, l->name, NULL, true, &t, err)) == RC_OK)
        rc = expect(w, name, t.p, t.n, err);
    be_ktext_deinit(&t);
    return rc;
}

static enum rc do_extra(struct walk *w, struct rc_err *err)
{
    char path[4096];
    enum rc rc;

    for (size_t i = 0; i < w->set.n; i++) {
        struct file *f = &w->set.list[i];

        if (f->wanted || !f->data || strcmp(f->name, BE_KMANIFEST_NAME) == 0)
            continue;
        if (!w->write) {
            w->n_bad++;
            say(w, "extra: %s", f->name);
            continue;
        }
        if ((rc = path_of(w->g, f->name, path, err)) != RC_OK)
            return rc;
        if (unlink(path) != 0)
            return rc_fail(err, RC_IO, "cannot delete '%s': %s", path, strerror(errno));
        say(w, "deleted %s", f->name);
    }
    return RC_OK;
}

static const char *get(void *user, const char *name, size_t *n)
{
    struct file *f = set_find(user, name);

    if (!f || !f->data)
        return NULL;
    *n = f->n;
    return f->data;
}

static enum rc do_manifest(struct walk *w, struct rc_err *err)
{
    struct be_ktext t = {0};
    enum rc rc = be_kmanifest_text(w->g->families, get, &w->set, &t, err);

    /* missing or headless artifacts were said already; without them there is no manifest */
    if (!w->write && w->n_bad && (rc == RC_NOT_FOUND || rc == RC_FORMAT)) {
        say(w, "stale: %s (cannot be remade: %s)", BE_KMANIFEST_NAME, err ? err->msg : "");
        w->n_bad++;
        rc = RC_OK;
    } else if (rc == RC_OK) {
        rc = expect(w, BE_KMANIFEST_NAME, t.p, t.n, err);
    }
    be_ktext_deinit(&t);
    return rc;
}

static enum rc walk(struct walk *w, struct rc_err *err)
{
    struct be_klib *libs = NULL;
    size_t n = 0;
    enum rc rc;

    if ((rc = be_kcat_check(w->g->families, err)) != RC_OK ||
        (rc = scan(w->g, &w->set, err)) != RC_OK ||
        (rc = be_klib_list(w->g->families, &libs, &n, err)) != RC_OK)
        goto out;
    /* a library that fails says so and does not keep the others from being done */
    for (size_t i = 0; i < 2 * n; i++) {
        struct rc_err one = RC_ERR_INIT;
        enum rc lrc = i % 2 ? do_metal(w, &libs[i / 2], &one) : do_cuda(w, &libs[i / 2], &one);

        if (lrc == RC_OK)
            continue;
        say(w, "failed: %s", one.msg);
        if (rc == RC_OK && err)
            *err = one;
        rc = rc == RC_OK ? lrc : rc;
    }
    if (rc != RC_OK || (rc = do_extra(w, err)) != RC_OK)
        goto out;
    rc = do_manifest(w, err);
out:
    free(libs);
    be_knvrtc_close(&w->nvrtc);
    set_deinit(&w->set);
    return rc;
}

enum rc be_kgen_check(const struct be_kgen *g, uint32_t *out_bad, struct rc_err *err)
{
    struct walk w = {.g = g};
    enum rc rc = walk(&w, err);

    if (rc != RC_OK)
        return rc;
    *out_bad = w.n_bad;
    return w.n_bad ? rc_fail(err, RC_CONFLICT, "%u artifacts are stale, missing or extra", w.n_bad)
                   : RC_OK;
}

enum rc be_kgen_write(const struct be_kgen *g, struct rc_err *err)
{
    struct walk w = {.g = g, .write = true};

    return walk(&w, err);
}
