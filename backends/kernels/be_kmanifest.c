/* be_kmanifest.c - the text of manifest.json, and the first line of a PTX file.
 *
 * The manifest is a function of the catalog and of the artifact files, nothing else: no
 * time, path or host. It lists libraries (with hash, compiler and options of each file) and
 * kernels (each names its library), both sorted; a kernel and its library together say
 * everything be_kart.h promises. Read by be_kart_verify_set and kgen --check.
 * Tests: tests/backends/test_be_kgen.c
 */
#include "be_kart_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "// inferd kgen: source "

void be_kptx_head_text(const struct be_kptx_head *h, char out[256])
{
    snprintf(out, 256, HEAD "%s; %s; %s\n", h->source, h->compiler, h->options);
}

static bool take(const char **p, const char *end, char stop, char *out, size_t cap)
{
    const char *q = memchr(*p, stop, (size_t)(end - *p));
    size_t n = q ? (size_t)(q - *p) : 0;

    if (!q || n == 0 || n >= cap)
        return false;
    memcpy(out, *p, n);
    out[n] = '\0';
    *p = q + 1;
    return true;
}

bool be_kptx_head_parse(const char *ptx, size_t n, struct be_kptx_head *out)
{
    const char *p = ptx + strlen(HEAD), *end = ptx + n;
    struct be_kptx_head h = {0};

    if (n < strlen(HEAD) || memcmp(ptx, HEAD, strlen(HEAD)) != 0)
        return false;
    if (!take(&p, end, ';', h.source, sizeof(h.source)) || strlen(h.source) != 64 || p == end ||
        *p++ != ' ' || !take(&p, end, ';', h.compiler, sizeof(h.compiler)) || p == end ||
        *p++ != ' ' || !take(&p, end, '\n', h.options, sizeof(h.options)))
        return false;
    *out = h;
    return true;
}

struct writer {
    be_kfile_get *get;
    void *user;
    struct be_ktext *out;
    uint32_t n_files;
};

static enum rc add_text(struct writer *w, const char *key, const char *dir, const char *lib,
                        const char *ext, struct rc_err *err)
{
    char name[128], hash[65];
    const char *p;
    size_t n;

    snprintf(name, sizeof(name), "%s/%s.%s", dir, lib, ext);
    if (!(p = w->get(w->user, name, &n)))
        return rc_fail_what(err, RC_NOT_FOUND, name, "artifact '%s' is missing", name);
    be_khash_hex(p, n, hash);
    be_ktext_add(w->out, "     \"%s\": {\"file\": \"%s\", \"sha256\": \"%s\"},\n", key, name, hash);
    w->n_files++;
    return RC_OK;
}

static enum rc add_ptx(struct writer *w, const char *lib, unsigned arch, bool first,
                       struct rc_err *err)
{
    struct be_kptx_head h;
    char name[128], hash[65];
    const char *p;
    size_t n;

    be_klib_ptx_name(lib, arch, name, sizeof(name));
    if (!(p = w->get(w->user, name, &n)))
        return rc_fail_what(err, RC_NOT_FOUND, name, "artifact '%s' is missing", name);
    if (!be_kptx_head_parse(p, n, &h))
        return rc_fail_what(err, RC_FORMAT, name,
                            "artifact '%s' does not begin with kgen's line about its source", name);
    be_khash_hex(p, n, hash);
    be_ktext_add(w->out,
                 "%s\n      {\"file\": \"%s\", \"arch\": %u, \"sha256\": \"%s\",\n"
                 "       \"source_sha256\": \"%s\", \"compiler\": \"%s\", \"options\": \"%s\"}",
                 first ? "" : ",", name, arch, hash, h.source, h.compiler, h.options);
    w->n_files++;
    return RC_OK;
}

static enum rc add_lib(struct writer *w, const struct be_klib *l, struct rc_err *err)
{
    enum rc rc;

    be_ktext_add(w->out, "    {\"name\": \"%s\", \"family\": \"%s\",\n", l->name, l->family->name);
    if ((rc = add_text(w, "cuda", "cuda", l->name, "cu", err)) != RC_OK ||
        (rc = add_text(w, "metal", "metal", l->name, "metal", err)) != RC_OK)
        return rc;
    be_ktext_add(w->out, "     \"ptx\": [");
    if ((l->sm75 && (rc = add_ptx(w, l->name, 75, true, err)) != RC_OK) ||
        (l->sm80 && (rc = add_ptx(w, l->name, 80, !l->sm75, err)) != RC_OK) ||
        (l->sm90 && (rc = add_ptx(w, l->name, 90, !l->sm75 && !l->sm80, err)) != RC_OK))
        return rc;
    be_ktext_add(w->out, "]}");
    return RC_OK;
}

static int entry_by_name(const void *a, const void *b)
{
    const struct be_kentry *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static void add_entry(struct be_ktext *out, const struct be_kentry *e)
{
    const struct be_ksched *s = &e->sched;
    uint8_t bytes[BE_KDESC_MAX_BYTES];
    size_t n = be_kdesc_bytes(&e->desc, bytes);
    char id[65];

    be_kdesc_id(&e->desc, id);
    be_ktext_add(
        out, "    {\"name\": \"%s\", \"library\": \"%s\", \"id\": \"%s\",\n     \"descriptor\": \"",
        e->name, e->lib, id);
    for (size_t i = 0; i < n; i++)
        be_ktext_add(out, "%02x", bytes[i]);
    be_ktext_add(out,
                 "\",\n     \"schedule\": {\"threads\": %u, \"rows_tile\": %u, \"cols_tile\": %u, "
                 "\"key_tile\": %u, \"stages\": %u, \"slices\": %u, \"regs\": %u, "
                 "\"shared_bytes\": %u},\n",
                 s->threads, s->rows_tile, s->cols_tile, s->key_tile, s->stages, s->slices, s->regs,
                 s->shared_bytes);
    be_ktext_add(out, "     \"target\": \"sm_%u\", \"args_bytes\": %u, \"production\": %s}",
                 e->min_arch, e->args_bytes, e->production ? "true" : "false");
}

static enum rc add_entries(struct be_ktext *out, const struct be_kfamily *const *families,
                           struct rc_err *err)
{
    const struct be_kentry **list;
    size_t n = 0, cap = 1;

    for (size_t f = 0; families[f]; f++)
        cap += families[f]->count();
    if (!(list = calloc(cap, sizeof(*list))))
        return rc_fail(err, RC_NOMEM, "out of memory for %zu kernels", cap);
    for (size_t f = 0; families[f]; f++)
        for (uint32_t i = 0; i < families[f]->count(); i++)
            list[n++] = families[f]->at(i);
    qsort(list, n, sizeof(*list), entry_by_name);
    be_ktext_add(out, "  \"n_kernels\": %zu,\n  \"kernels\": [", n);
    for (size_t i = 0; i < n; i++) {
        be_ktext_add(out, i ? ",\n" : "\n");
        add_entry(out, list[i]);
    }
    be_ktext_add(out, "]\n}\n");
    free(list);
    return RC_OK;
}

enum rc be_kmanifest_text(const struct be_kfamily *const *families, be_kfile_get *get, void *user,
                          struct be_ktext *out, struct rc_err *err)
{
    struct writer w = {.get = get, .user = user, .out = out};
    struct be_klib *libs = NULL;
    size_t n = 0;
    enum rc rc;

    if ((rc = be_klib_list(families, &libs, &n, err)) != RC_OK)
        return rc;
    be_ktext_add(out,
                 "{\n  \"kgen\": %d, \"descriptor_schema\": %d, \"cuda_renderer\": %d, "
                 "\"metal_renderer\": %d,\n  \"libraries\": [",
                 BE_KGEN_VERSION, BE_KDESC_SCHEMA, BE_KCUDA_VERSION, BE_KMETAL_VERSION);
    for (size_t i = 0; i < n && rc == RC_OK; i++) {
        be_ktext_add(out, i ? ",\n" : "\n");
        rc = add_lib(&w, &libs[i], err);
    }
    free(libs);
    if (rc != RC_OK)
        return rc;
    be_ktext_add(out, "],\n  \"n_files\": %u,\n", w.n_files);
    if ((rc = add_entries(out, families, err)) != RC_OK)
        return rc;
    return out->failed ? rc_fail(err, RC_NOMEM, "out of memory for the manifest") : RC_OK;
}
