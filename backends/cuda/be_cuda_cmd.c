/* be_cuda_cmd.c - the list of commands an operation becomes, and its launch.
 *
 * A command is a loaded function, its grid and a copy of its argument struct. The list grows until
 * a result is asked for, it is full, or it holds the first EARLY_CMDS commands behind a result
 * (once models are loaded: the device begins while the host writes the rest). Then staging goes up
 * in one copy and the list is launched, as a graph when it is known. Walking the list allocates
 * nothing. Tests: tests/backends/test_be_cuda_cmd.c
 */
#include "be_cuda.h"

#include <stdlib.h>
#include <string.h>

/* A list this long is launched while the host writes the rest of the pass. */
#define EARLY_CMDS 48u

#define FN_MAX_DYN_SHARED 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */

enum rc be_cuda_list_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    c->list.cmd = calloc(BE_CUDA_CMDS, sizeof(*c->list.cmd));
    c->list.args = calloc(1, BE_CUDA_ARGS);
    c->list.gen = 1;
    if (!c->list.cmd || !c->list.args)
        return rc_fail(err, RC_NOMEM, "cuda: no memory for a list of commands");
    return RC_OK;
}

void be_cuda_list_end(struct be_cuda_ctx *c)
{
    free(c->list.cmd);
    free(c->list.args);
    c->list.cmd = NULL;
    c->list.args = NULL;
}

/* The grid for these arguments; the kernel is allowed the shared memory it asks for. */
static enum rc shape(struct be_cuda_ctx *c, struct be_cuda_fn *f, const void *args,
                     struct be_kgrid *g, struct rc_err *err)
{
    enum rc rc;

    f->e->grid(f->e, args, g);
    if (g->shared_bytes <= f->dyn_bytes)
        return RC_OK;
    if ((rc = be_cuda_enter(c, err)) != RC_OK)
        return rc;
    rc = be_cuda_do(c, c->d->fn_set(f->fn, FN_MAX_DYN_SHARED, (int)g->shared_bytes),
                    "raising a kernel's shared memory", err);
    if (rc != RC_OK) {
        c->ks.wiring_failures++;
        rc_wrap(err, "kernel '%s', %u bytes", f->e->name, g->shared_bytes);
        return rc;
    }
    f->dyn_bytes = g->shared_bytes;
    return RC_OK;
}

/* early: it may begin while the kernel before it runs. */
static enum rc launch_one(struct be_cuda_ctx *c, const struct be_cuda_fn *f,
                          const struct be_kgrid *g, void *args, bool early, struct rc_err *err)
{
    void *params[] = {args};
    struct be_cuda_launch_attr attr = {.id = BE_CUDA_ATTR_PROGRAMMATIC, .value.programmatic = 1};
    struct be_cuda_launch l = {.grid = {g->x, g->y, g->z},
                               .block = {g->threads, 1, 1},
                               .shared_bytes = g->shared_bytes,
                               .stream = c->stream,
                               .attrs = &attr,
                               .n_attrs = 1};
    int code = early ? c->d->launch_ex(&l, f->fn, params, NULL)
                     : c->d->launch(f->fn, g->x, g->y, g->z, g->threads, 1, 1, g->shared_bytes,
                                    c->stream, params, NULL);
    enum rc rc;

    if (code == 0)
        return RC_OK;
    c->ks.wiring_failures++;
    rc = be_cuda_do(c, code, "launching a kernel", err);
    rc_wrap(err, "'%s' with %u x %u x %u blocks of %u", f->e->name, g->x, g->y, g->z, g->threads);
    return rc;
}

enum rc be_cuda_run(struct be_cuda_ctx *c, struct be_cuda_fn *f, const void *args,
                    struct rc_err *err)
{
    uint64_t copy[sizeof(struct kx_linear_wg) / 8];
    struct be_kgrid g = {0};
    enum rc rc;

    if (f->e->args_bytes > sizeof(copy))
        return rc_fail(err, RC_INTERNAL, "kernel '%s': %u bytes of arguments", f->e->name,
                       f->e->args_bytes);
    memcpy(copy, args, f->e->args_bytes);
    if ((rc = be_cuda_enter(c, err)) != RC_OK || (rc = shape(c, f, args, &g, err)) != RC_OK ||
        g.x == 0 || g.y == 0 || g.z == 0)
        return rc;
    return launch_one(c, f, &g, copy, false, err);
}

enum rc be_cuda_push(struct be_cuda_ctx *c, struct be_cuda_fn *f, const void *args,
                     struct rc_err *err)
{
    struct be_cuda_list *l = &c->list;
    struct be_cuda_cmd m = {.fn = f, .args_bytes = f->e->args_bytes, .args_at = l->args_used};
    uint32_t bytes = (m.args_bytes + 15) & ~15u;
    enum rc rc;

    if ((rc = shape(c, f, args, &m.grid, err)) != RC_OK || m.grid.x == 0 || m.grid.y == 0 ||
        m.grid.z == 0)
        return rc;
    if (l->n == BE_CUDA_CMDS || l->args_used + bytes > BE_CUDA_ARGS)
        return rc_fail(err, RC_INTERNAL, "cuda: '%s' has no place in the list of commands",
                       f->e->name);
    memset(l->args + l->args_used + bytes - 16, 0, 16);
    memcpy(l->args + l->args_used, args, m.args_bytes);
    l->cmd[l->n++] = m;
    l->args_used += bytes;
    c->ks.dispatch[f->route]++;
    return RC_OK;
}

void be_cuda_pop(struct be_cuda_ctx *c, uint32_t n)
{
    struct be_cuda_list *l = &c->list;

    for (; n > 0; n--) {
        l->n--;
        l->args_used = l->cmd[l->n].args_at;
        c->ks.dispatch[l->cmd[l->n].fn->route]--;
    }
}

void be_cuda_wrote(struct be_cuda_ctx *c, struct be_tensor *t, uint32_t type)
{
    t->type = type;
    t->version++;
    t->gen = c->list.gen;
    t->cmd = c->list.n - 1;
}

enum rc be_cuda_room(struct be_cuda_ctx *c, uint32_t n_cmds, uint64_t stage_bytes, const char *op,
                     struct rc_err *err)
{
    struct be_cuda_list *l = &c->list;
    uint64_t args = (uint64_t)n_cmds * 512; /* no struct of be_kargs.h is larger */

    if (c->lost)
        return be_cuda_enter(c, err);
    /* the first 256 bytes of staging are never given out, arrays start at 256 each */
    if (n_cmds > BE_CUDA_CMDS || args > BE_CUDA_ARGS || stage_bytes > BE_CUDA_STAGE / 2)
        return rc_fail(err, RC_INVALID, "%s: %llu bytes of sequences and indices, at most %u", op,
                       (unsigned long long)stage_bytes, BE_CUDA_STAGE / 2);
    if (l->n + n_cmds > BE_CUDA_CMDS || l->args_used + args > BE_CUDA_ARGS ||
        c->stage.used + stage_bytes > BE_CUDA_STAGE)
        return be_cuda_flush(c, err);
    if (!l->early && c->base.sealed && l->n >= EARLY_CMDS) {
        l->early = true;
        return be_cuda_flush(c, err);
    }
    return RC_OK;
}

enum rc be_cuda_list_launch(struct be_cuda_ctx *c, struct rc_err *err)
{
    const struct be_cuda_list *l = &c->list;

    enum rc rc = RC_OK;

    for (uint32_t i = 0; rc == RC_OK && i < l->n; i++) {
        const struct be_cuda_cmd *m = &l->cmd[i];

        /* the first one's forerunner is a copy of staging, or the last kernel of another list */
        rc = launch_one(c, m->fn, &m->grid, l->args + m->args_at, i > 0 && m->fn->waits, err);
    }
    return rc;
}

static enum rc launch(struct be_cuda_ctx *c, struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;
    bool done = false;
    enum rc rc;

    if ((rc = be_cuda_enter(c, err)) != RC_OK)
        return rc;
    if (s->used > 0) {
        rc = be_cuda_do(c, c->d->h2d(s->dev.p, s->host[s->cur], s->used, c->stream),
                        "uploading indices", err);
        if (rc == RC_OK)
            rc = be_cuda_do(c, c->d->event_record(s->done[s->cur], c->stream), "marking an upload",
                            err);
        if (rc != RC_OK)
            return rc;
        s->pending[s->cur] = true;
        c->ks.h2d_bytes += s->used;
    }
    if ((rc = be_cuda_graph_run(c, &done, err)) != RC_OK || done)
        return rc;
    c->ks.stream_steps++;
    return be_cuda_list_launch(c, err);
}

enum rc be_cuda_flush(struct be_cuda_ctx *c, struct rc_err *err)
{
    enum rc rc = RC_OK;

    if (c->list.n > 0 && (rc = be_cuda_jit_run(c, err)) == RC_OK)
        rc = launch(c, err);
    /* a list that failed is gone too: its tensors hold nothing to go on with */
    if (c->list.n > 0)
        be_cuda_stage_reset(c);
    c->list.n = 0;
    c->list.args_used = 0;
    c->list.gen++;
    return rc;
}

enum rc be_cuda_wait(struct be_cuda_ctx *c, struct rc_err *err)
{
    enum rc rc = be_cuda_enter(c, err);

    if (rc != RC_OK)
        return rc;
    c->ks.syncs++;
    c->list.early = false;
    return be_cuda_do(c, c->d->stream_sync(c->stream), "running kernels", err);
}

void be_cuda_settle(struct be_cuda_ctx *c)
{
    if (c->list.n > 0 && be_cuda_flush(c, NULL) == RC_OK)
        (void)be_cuda_wait(c, NULL);
}
