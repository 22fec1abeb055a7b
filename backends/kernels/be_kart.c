/* be_kart.c - finding and verifying the embedded artifacts.
 *
 * The set is whole or it is refused: a build whose files and manifest disagree says which
 * file, before any of it reaches a device. The manifest is our own file, embedded beside
 * the rest, yet read as if it were foreign: a wrong type is an error, never a crash.
 * Tests: tests/backends/test_be_kgen.c
 */
#include "be_kart_impl.h"

#include <jansson.h>
#include <string.h>

const struct be_kart_file *be_kart_file_find(const struct be_kart_file *files, const char *name)
{
    for (const struct be_kart_file *f = files; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static bool is_artifact(const struct be_kart_file *f)
{
    return (unsigned)f->art.kind != BE_KART_OTHER;
}

const struct be_kart *be_kart_at(uint32_t i)
{
    for (const struct be_kart_file *f = be_kart_files; f->name; f++)
        if (is_artifact(f) && i-- == 0)
            return &f->art;
    return NULL;
}

const struct be_kart *be_kart_find(const char *lib, enum be_kart_kind kind, uint32_t arch)
{
    const struct be_kart *best = NULL;

    for (const struct be_kart_file *f = be_kart_files; f->name; f++) {
        const struct be_kart *a = &f->art;

        if (!is_artifact(f) || a->kind != kind || strcmp(a->lib, lib) != 0)
            continue;
        if (kind != BE_KART_PTX)
            return a;
        if (a->arch == BE_KART_ONLY_ARCH && arch != BE_KART_ONLY_ARCH)
            continue;
        if (a->arch <= arch && (!best || a->arch > best->arch))
            best = a;
    }
    return best;
}

bool be_kart_has_entry(const struct be_kart *ptx, const char *name)
{
    static const char word[] = ".entry ";
    size_t n = strlen(name);
    const char *p = ptx->data;

    while ((p = strstr(p, word))) {
        p += sizeof(word) - 1;
        if (strncmp(p, name, n) == 0 && (p[n] == '(' || p[n] == ' ' || p[n] == '\n'))
            return true;
    }
    return false;
}

const struct be_kart *be_kart_entry(const char *lib, const char *name, uint32_t arch)
{
    const struct be_kart *a = be_kart_find(lib, BE_KART_PTX, arch);

    while (a && !be_kart_has_entry(a, name))
        a = a->arch ? be_kart_find(lib, BE_KART_PTX, a->arch - 1) : NULL;
    return a;
}

/* ------------------------------------------------------------- verification */

/* One file record of the manifest against the embedded bytes. */
static enum rc check_file(const struct be_kart_file *files, json_t *rec, uint32_t *n_files,
                          struct rc_err *err)
{
    const char *name = json_string_value(json_object_get(rec, "file"));
    const char *want = json_string_value(json_object_get(rec, "sha256"));
    const struct be_kart_file *f;
    char hash[65];

    if (!name || !want)
        return rc_fail(err, RC_FORMAT, "manifest.json: a file without name or sha256");
    if (!(f = be_kart_file_find(files, name)))
        return rc_fail_what(err, RC_NOT_FOUND, name, "artifact '%s' is missing from this build",
                            name);
    be_khash_hex(f->art.data, f->art.n_bytes, hash);
    if (strcmp(hash, want) != 0)
        return rc_fail_what(err, RC_FORMAT, name,
                            "artifact '%s': sha256 %.16s, manifest says %.16s", name, hash, want);
    ++*n_files;
    return RC_OK;
}

static enum rc check_ptx(const struct be_kart_file *files, json_t *rec, const char *cu_hash,
                         uint32_t *n_files, struct rc_err *err)
{
    const char *source = json_string_value(json_object_get(rec, "source_sha256"));
    const char *name = json_string_value(json_object_get(rec, "file"));
    enum rc rc;

    if ((rc = check_file(files, rec, n_files, err)) != RC_OK)
        return rc;
    if (!source || strcmp(source, cu_hash) != 0)
        return rc_fail_what(err, RC_FORMAT, name,
                            "artifact '%s' was made from source %.16s, its library is %.16s", name,
                            source ? source : "unknown", cu_hash);
    return RC_OK;
}

static enum rc check_libs(const struct be_kart_file *files, json_t *libs, uint32_t *n_files,
                          struct rc_err *err)
{
    json_t *lib, *ptx;
    size_t i, j;
    enum rc rc;

    json_array_foreach(libs, i, lib)
    {
        json_t *cu = json_object_get(lib, "cuda"), *list = json_object_get(lib, "ptx");
        const char *hash = json_string_value(json_object_get(cu, "sha256"));

        if ((rc = check_file(files, cu, n_files, err)) != RC_OK ||
            (rc = check_file(files, json_object_get(lib, "metal"), n_files, err)) != RC_OK)
            return rc;
        json_array_foreach(list, j, ptx)
        {
            if ((rc = check_ptx(files, ptx, hash, n_files, err)) != RC_OK)
                return rc;
        }
    }
    return RC_OK;
}

static json_t *find_named(json_t *list, const char *name)
{
    json_t *e;
    size_t i;

    json_array_foreach(list, i, e)
    {
        const char *s = json_string_value(json_object_get(e, "name"));

        if (s && strcmp(s, name) == 0)
            return e;
    }
    return NULL;
}

static enum rc check_entry(const struct be_kentry *e, json_t *kernels, json_t *libs,
                           struct rc_err *err)
{
    json_t *rec = find_named(kernels, e->name);
    const char *s;
    char id[65];

    be_kdesc_id(&e->desc, id);
    if (!rec)
        return rc_fail_what(err, RC_NOT_FOUND, e->name, "kernel '%s' is not in manifest.json",
                            e->name);
    s = json_string_value(json_object_get(rec, "id"));
    if (!s || strcmp(s, id) != 0)
        return rc_fail_what(err, RC_FORMAT, e->name, "kernel '%s': id %.16s, manifest says %.16s",
                            e->name, id, s ? s : "nothing");
    s = json_string_value(json_object_get(rec, "library"));
    if (!s || strcmp(s, e->lib) != 0 || !find_named(libs, e->lib))
        return rc_fail_what(err, RC_FORMAT, e->name,
                            "kernel '%s': library '%s', manifest says '%s'", e->name, e->lib,
                            s ? s : "nothing");
    return RC_OK;
}

static enum rc check_count(json_t *root, const char *key, uint64_t n, struct rc_err *err)
{
    json_t *v = json_object_get(root, key);

    if (!json_is_integer(v) || (uint64_t)json_integer_value(v) != n)
        return rc_fail_what(err, RC_FORMAT, key, "manifest.json: %s is %lld, this build has %llu",
                            key, (long long)json_integer_value(v), (unsigned long long)n);
    return RC_OK;
}

static enum rc check_all(const struct be_kart_file *files, const struct be_kfamily *const *families,
                         json_t *root, struct rc_err *err)
{
    json_t *libs = json_object_get(root, "libraries"), *kernels = json_object_get(root, "kernels");
    uint32_t n_files = 0, n_embedded = 0, n_kernels = 0;
    enum rc rc;

    if (!json_is_array(libs) || !json_is_array(kernels))
        return rc_fail(err, RC_FORMAT, "manifest.json: no list of libraries or kernels");
    if ((rc = check_libs(files, libs, &n_files, err)) != RC_OK)
        return rc;
    for (const struct be_kart_file *f = files; f->name; f++)
        n_embedded += is_artifact(f);
    if ((rc = check_count(root, "n_files", n_embedded, err)) != RC_OK)
        return rc;
    if (n_files != n_embedded)
        return rc_fail(err, RC_FORMAT, "manifest.json lists %u files, this build has %u", n_files,
                       n_embedded);
    for (size_t f = 0; families[f]; f++)
        for (uint32_t i = 0; i < families[f]->count(); i++, n_kernels++)
            if ((rc = check_entry(families[f]->at(i), kernels, libs, err)) != RC_OK)
                return rc;
    if (json_array_size(kernels) != n_kernels)
        return rc_fail(err, RC_FORMAT, "manifest.json lists %zu kernels, the catalog has %u",
                       json_array_size(kernels), n_kernels);
    return check_count(root, "n_kernels", n_kernels, err);
}

enum rc be_kart_verify_set(const struct be_kart_file *files,
                           const struct be_kfamily *const *families, struct rc_err *err)
{
    const struct be_kart_file *m = be_kart_file_find(files, BE_KMANIFEST_NAME);
    json_error_t je;
    json_t *root;
    enum rc rc;

    if (!m)
        return rc_fail_what(err, RC_NOT_FOUND, BE_KMANIFEST_NAME,
                            "manifest.json is missing from this build");
    root = json_loadb(m->art.data, m->art.n_bytes, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return rc_fail_what(err, RC_FORMAT, BE_KMANIFEST_NAME, "manifest.json line %d: %s", je.line,
                            je.text);
    rc = check_all(files, families, root, err);
    json_decref(root);
    return rc;
}

enum rc be_kart_verify(struct rc_err *err)
{
    enum rc rc = be_kart_verify_set(be_kart_files, be_kfamilies, err);

    if (rc != RC_OK)
        rc_wrap(err, "the bundled kernels do not verify");
    return rc;
}
