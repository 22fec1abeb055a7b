/* be_cuda_jit.c - run-time compilation as this device does it (be_kjit.h decides).
 *
 * While a model loads, each product of one matrix (or a gated pair) is remembered with its exact
 * columns and outputs; the next flush compiles, checks against the executor and times them. What
 * won is found again by class, without a look at any descriptor, when commands are made. Nothing of
 * it happens after the seal. Tests: tests/backends/test_be_cuda_jit.c
 */
#include "be_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_kconf.h"
#include "be_kjit.h"

#define LAUNCHES 16 /* of one timing */

/* A compiled kernel: be_kjit holds it as its function. */
struct compiled {
    cu_mod mod;
    struct be_kentry entry; /* exact */
    struct be_cuda_fn fn;
};

struct be_cuda_jit {
    struct be_cuda_ctx *c;
    struct be_kjit *j;
    struct be_cuda_nvrtc *nvrtc;
    char compiler_id[32], device_id[128];
    bool pending;           /* wanted, not yet run */
    uint32_t gen;           /* counts runs: what matrices remember is of one */
    struct be_kentry shape; /* the exact entry checked last: what is timed */
    /* arguments of the timing, made for shape */
    struct kx_linear args;
    cu_ptr mem;
    cu_event t0, t1;
};

/* ---------------------------------------------------------------- device calls */

/* A device image, or PTX from a compiler that makes none. */
static enum rc compile(void *user, const char *src, size_t n, const char *const *opts,
                       uint32_t n_opts, uint8_t **out, size_t *out_n, char *log, size_t log_cap,
                       struct rc_err *err)
{
    static const char real[] = "--gpu-architecture=sm_";
    struct be_cuda_jit *t = user;
    const char *use[8];
    char arch[64];
    bool cubin = t->nvrtc->cubin && t->nvrtc->cubin_size;

    if (n_opts < 1 || n_opts > 8)
        return rc_fail(err, RC_INTERNAL, "NVRTC: %u options", n_opts);
    memcpy(use, opts, n_opts * sizeof(use[0]));
    if (strncmp(opts[0], real, sizeof(real) - 1) != 0)
        cubin = false;
    else if (!cubin) {
        snprintf(arch, sizeof(arch), "--gpu-architecture=compute_%s", opts[0] + sizeof(real) - 1);
        use[0] = arch;
    }
    return be_cuda_nvrtc_build(t->nvrtc, src, use, n_opts, cubin, out, out_n, log, log_cap, err);
}

static enum rc load(void *user, const uint8_t *image, size_t n, const char *entry, void **out,
                    struct rc_err *err)
{
    struct be_cuda_jit *t = user;
    struct be_cuda_ctx *c = t->c;
    struct compiled *k;
    const struct be_kentry *base = be_kcat_find(entry);
    uint8_t *copy;
    enum rc rc;

    if (!base)
        return rc_fail(err, RC_NOT_FOUND, "kernel '%s' is not in the catalog", entry);
    k = calloc(1, sizeof(*k));
    copy = malloc(n + 1); /* PTX ends with a NUL */
    if (!k || !copy) {
        rc = rc_fail(err, RC_NOMEM, "no memory for an image of %zu bytes", n);
        goto out;
    }
    memcpy(copy, image, n);
    copy[n] = 0;
    k->entry = *base;
    k->fn = (struct be_cuda_fn){.dyn_bytes = BE_CUDA_DYN, .route = BE_KROUTE_JIT};
    if ((rc = be_cuda_enter(c, err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->mod_load(&k->mod, copy, 0, NULL, NULL),
                         "loading a compiled kernel", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->mod_fn(&k->fn.fn, k->mod, entry), "finding a compiled kernel",
                         err)) != RC_OK)
        goto out;
    k->fn.e = &k->entry;
    *out = k;
    k = NULL;
out:
    if (k && k->mod)
        (void)c->d->mod_unload(k->mod);
    free(k);
    free(copy);
    return rc;
}

static void unload(void *user, void *fn)
{
    struct be_cuda_jit *t = user;
    struct compiled *k = fn;

    if (be_cuda_enter(t->c, NULL) == RC_OK)
        (void)t->c->d->mod_unload(k->mod);
    free(k);
}

static enum rc k_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    struct be_cuda_jit *t = user;

    return be_cuda_do(t->c, t->c->d->mem_alloc(out, n ? n : 1), "allocating for a check", err);
}

static void k_free(void *user, uint64_t at)
{
    struct be_cuda_jit *t = user;

    (void)t->c->d->mem_free(at);
}

static enum rc k_upload(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err)
{
    struct be_cuda_jit *t = user;
    enum rc rc = be_cuda_upload(t->c, dst, src, n, err);

    return rc == RC_OK ? be_cuda_wait(t->c, err) : rc;
}

static enum rc k_download(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err)
{
    struct be_cuda_jit *t = user;
    struct be_cuda_ctx *c = t->c;
    enum rc rc = RC_OK;

    for (size_t at = 0; rc == RC_OK && at < n; at += BE_CUDA_READ) {
        size_t m = n - at < BE_CUDA_READ ? n - at : BE_CUDA_READ;

        rc = be_cuda_do(c, c->d->d2h(c->read, src + at, m, c->stream), "reading a check", err);
        if (rc == RC_OK && (rc = be_cuda_wait(c, err)) == RC_OK)
            memcpy((char *)dst + at, c->read, m);
    }
    return rc;
}

struct trial {
    struct be_cuda_jit t; /* first: the callbacks above see it */
    struct be_cuda_fn *fn;
};

static enum rc k_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                        const void *args, size_t n_bytes, struct rc_err *err)
{
    struct trial *t = user;
    enum rc rc = be_cuda_run(t->t.c, t->fn, args, err);

    return rc == RC_OK ? be_cuda_wait(t->t.c, err) : rc;
}

static enum rc check(void *user, const struct be_kentry *e, void *fn, double *out_abs,
                     double *out_rel, struct rc_err *err)
{
    struct be_cuda_jit *t = user;
    struct compiled *k = fn;
    struct trial trial = {.t = *t, .fn = &k->fn};
    const struct be_kconf_dev dev = {.user = &trial,
                                     .name = t->device_id,
                                     .arch = t->c->arch,
                                     .alloc = k_alloc,
                                     .free = k_free,
                                     .upload = k_upload,
                                     .download = k_download,
                                     .launch = k_launch};

    k->entry = *e;
    return be_kconf_check(e, &dev, out_abs, out_rel, err);
}

/* --------------------------------------------------------------------- timing */

static uint32_t rows_of(const struct be_kentry *e)
{
    switch (e->desc.rows_class) {
    case BE_KROWS_1:
        return 1;
    case BE_KROWS_2_8:
        return 8;
    case BE_KROWS_9_64:
        return 64;
    default:
        return 512;
    }
}

static void timing_end(struct be_cuda_jit *t)
{
    if (t->mem)
        (void)t->c->d->mem_free(t->mem);
    t->mem = 0;
}

/* One allocation holds x, its int8 form, the planes and the output; zeros are as fast as
 * any other values. */
static enum rc timing_begin(struct be_cuda_jit *t, const struct be_kentry *e, struct rc_err *err)
{
    struct be_cuda_ctx *c = t->c;
    const struct be_kdesc *d = &e->desc;
    uint64_t k = d->k.max, n = d->n.max, rows = rows_of(e), size = 0, at[12];
    uint32_t parts = d->epi == BE_EPI_GEGLU ? 2 : 1, used = 0;
    struct be_klayout l;
    enum rc rc;

    if (d->op != BE_KOP_LINEAR || !be_klayout_get((enum be_dtype)d->wfmt, (uint32_t)k, &l))
        return rc_fail(err, RC_UNSUPPORTED, "'%s': only products are timed", e->name);
#define PUT(bytes) (at[used++] = size, size += be_cuda_up(bytes))
    PUT(rows * k * 4);
    PUT(rows * k);
    PUT(rows * k / 32 * 4 + 4);
    PUT(rows * k / 32 * 4 + 4);
    for (uint32_t i = 0; i < l.n_planes; i++)
        PUT(parts * n * l.row_bytes[i]);
    PUT(rows * n * 4);
#undef PUT
    rc = be_cuda_do(c, c->d->mem_alloc(&t->mem, size), "allocating for a timing", err);
    if (rc != RC_OK)
        return rc;
    t->args = (struct kx_linear){.x = t->mem + at[0],
                                 .xq = t->mem + at[1],
                                 .xd = t->mem + at[2],
                                 .xs = t->mem + at[3],
                                 .out = {t->mem + at[used - 1], t->mem + at[used - 1]},
                                 .n_out = {(kx_u)n, (kx_u)n},
                                 .n = (kx_u)rows,
                                 .k = (kx_u)k,
                                 .n_parts = parts,
                                 .epi = parts == 2 ? KX_EPI_GEGLU : KX_EPI_NONE,
                                 .x_t = c->f16 ? KX_F16 : KX_F32,
                                 .out_t = c->f16 ? KX_F16 : KX_F32};
    for (uint32_t p = 0; p < parts; p++)
        for (uint32_t i = 0; i < l.n_planes; i++)
            t->args.w[p][i] = t->mem + at[4 + i] + p * n * l.row_bytes[i];
    return be_cuda_do(c, c->d->memset8(t->mem, 0, size, c->stream), "clearing for a timing", err);
}

/* fn NULL: the bundled kernel of e, on the shape of the trial. */
static enum rc timing(void *user, const struct be_kentry *e, void *fn, double *out,
                      struct rc_err *err)
{
    struct be_cuda_jit *t = user;
    struct be_cuda_ctx *c = t->c;
    struct be_cuda_fn *f = fn ? &((struct compiled *)fn)->fn : be_cuda_fn_of(c, e);
    float ms = 0;
    enum rc rc;

    if (!f) /* what is wanted was planned, so it is loaded */
        return rc_fail(err, RC_INTERNAL, "kernel '%s' is not loaded", e->name);
    if ((!t->mem && (rc = timing_begin(t, &t->shape, err)) != RC_OK) ||
        (rc = be_cuda_do(c, c->d->event_record(t->t0, c->stream), "timing", err)) != RC_OK)
        return rc;
    for (int i = 0; i < LAUNCHES; i++)
        if ((rc = be_cuda_run(c, f, &t->args, err)) != RC_OK)
            return rc;
    if ((rc = be_cuda_do(c, c->d->event_record(t->t1, c->stream), "timing", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->event_sync(t->t1), "timing", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->event_ms(&ms, t->t0, t->t1), "timing", err)) != RC_OK)
        return rc;
    *out = ms / 1e3 / LAUNCHES;
    return RC_OK;
}

/* check comes before any timing of a kernel: it says which shape is on trial. */
static enum rc check_shape(void *user, const struct be_kentry *e, void *fn, double *out_abs,
                           double *out_rel, struct rc_err *err)
{
    struct be_cuda_jit *t = user;

    timing_end(t);
    t->shape = *e;
    return check(user, e, fn, out_abs, out_rel, err);
}

/* ------------------------------------------------------------------ lifetime */

enum rc be_cuda_jit_new(struct be_cuda_ctx *c, const struct be_opts *o, struct rc_err *err)
{
    struct be_kjit_opts jo = {.cache_dir = o->jit_cache_dir, .cache_bytes = o->jit_cache_bytes};
    struct be_kjit_dev dev = {
        .compile = compile, .load = load, .unload = unload, .check = check_shape, .time = timing};
    struct be_cuda_jit *t;
    struct rc_err none = RC_ERR_INIT;
    enum rc rc;

    if (!be_kjit_mode_parse(o->jit, &jo.mode))
        return rc_fail_what(err, RC_INVALID, "jit",
                            "jit '%s': expected off, guarded, exact or profile", o->jit);
    if (jo.mode == BE_KJIT_OFF)
        return RC_OK;
    if (!(t = calloc(1, sizeof(*t))))
        return rc_fail(err, RC_NOMEM, "run-time compilation: no memory");
    c->jit = t;
    t->c = c;
    snprintf(t->device_id, sizeof(t->device_id), "%s", c->device_name);
    if (be_cuda_nvrtc_open(&t->nvrtc, &none) == RC_OK) {
        snprintf(t->compiler_id, sizeof(t->compiler_id), "nvrtc %d.%d", t->nvrtc->major,
                 t->nvrtc->minor);
        dev.compiler_id = t->compiler_id;
    }
    dev.user = t;
    dev.device_id = t->device_id;
    dev.arch = c->arch;
    if ((rc = be_cuda_do(c, c->d->event_new(&t->t0, 0), "making an event", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->event_new(&t->t1, 0), "making an event", err)) != RC_OK)
        return rc;
    return be_kjit_new(&t->j, &jo, &dev, err);
}

void be_cuda_jit_free(struct be_cuda_ctx *c)
{
    struct be_cuda_jit *t = c->jit;

    if (!t)
        return;
    be_kjit_free(&t->j);
    timing_end(t);
    if (t->t0)
        (void)c->d->event_free(t->t0);
    if (t->t1)
        (void)c->d->event_free(t->t1);
    free(t);
    c->jit = NULL;
}

void be_cuda_jit_seal(struct be_cuda_ctx *c)
{
    if (c->jit)
        be_kjit_seal(c->jit->j);
}

void be_cuda_jit_stats(const struct be_cuda_ctx *c, struct be_kstats *io)
{
    uint64_t hot = io->hot_compiles;

    if (!c->jit)
        return;
    be_kjit_stats(c->jit->j, io);
    io->hot_compiles += hot;
}

char *be_cuda_jit_report(const struct be_cuda_ctx *c)
{
    return c->jit ? be_kjit_report(c->jit->j) : NULL;
}

/* --------------------------------------------------------------------- wishes */

static struct be_kplan_req request(const struct be_cuda_ctx *c, const struct be_weight *w,
                                   const struct be_kentry *base, bool glu)
{
    return (struct be_kplan_req){.op = BE_KOP_LINEAR,
                                 .wfmt = w->stored,
                                 .epi = glu ? BE_EPI_GEGLU : BE_EPI_NONE,
                                 .numerics = base->desc.numerics,
                                 .rows = rows_of(base),
                                 .k = (uint32_t)w->n_cols,
                                 .n = (uint32_t)w->n_rows,
                                 .arch = c->arch};
}

enum rc be_cuda_jit_want(struct be_cuda_ctx *c, struct be_weight *w, bool glu, struct rc_err *err)
{
    struct be_cuda_jit *t = c->jit;
    struct be_cuda_fn *last = NULL;
    enum rc rc;

    if (!t || c->base.sealed || w->jit_wanted[glu])
        return RC_OK;
    w->jit_wanted[glu] = true;
    for (int k = 0; k < BE_KCLASS_COUNT; k++) {
        struct be_cuda_fn *f = w->lin[BE_KNUM_EXACT][k][glu];
        struct be_kplan_req r;
        struct be_kentry exact;

        if (f == last) /* one kernel serves two classes */
            continue;
        last = f;
        r = request(c, w, f->e, glu);
        if (!be_kplan_exact(f->e, &r, &exact))
            continue;
        if ((rc = be_kjit_want(t->j, f->e, &exact, err)) != RC_OK)
            return rc;
        t->pending = true;
    }
    return RC_OK;
}

enum rc be_cuda_jit_run(struct be_cuda_ctx *c, struct rc_err *err)
{
    struct be_cuda_jit *t = c->jit;
    enum rc rc;

    if (!t || !t->pending || c->base.sealed)
        return RC_OK;
    t->pending = false;
    rc = be_kjit_run(t->j, err);
    timing_end(t);
    t->gen++;
    return rc;
}

struct be_cuda_fn *be_cuda_jit_fn(struct be_cuda_ctx *c, struct be_weight *w, enum be_kclass cls,
                                  bool glu)
{
    struct be_cuda_jit *t = c->jit;

    if (!t || !w->jit_wanted[glu])
        return NULL;
    if (w->jit_gen != t->gen) { /* once per matrix and run */
        memset(w->jit, 0, sizeof(w->jit));
        for (int g = 0; g < 2; g++)
            for (int k = 0; w->jit_wanted[g] && k < BE_KCLASS_COUNT; k++) {
                const struct be_kentry *base = w->lin[BE_KNUM_EXACT][k][g]->e;
                struct be_kplan_req r = request(c, w, base, g);
                struct be_kentry exact;
                struct compiled *fn = NULL;

                if (be_kplan_exact(base, &r, &exact))
                    fn = be_kjit_get(t->j, &exact.desc);
                if (fn) {
                    fn->entry = exact;
                    w->jit[k][g] = &fn->fn;
                }
            }
        w->jit_gen = t->gen;
    }
    return w->jit[cls][glu];
}
