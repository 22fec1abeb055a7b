/* be_cuda_mem.c - the only place of this backend that asks for device or pinned memory.
 *
 * Large objects have a cuMemAlloc of their own; small ones share chunks, given out
 * by bumping a mark that goes back when the newest object is freed, and to zero
 * when the last one is. Bytes are counted by purpose; workspace_bytes bounds
 * activations and scratch; a request after be_ctx_seal is a hot-path fault. Nothing is ever moved:
 * addresses stand in captured graphs. Tests: tests/backends/test_be_cuda_mem.c
 */
#include "be_cuda.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK ((uint64_t)16 << 20)
#define OWN_FROM ((uint64_t)4 << 20)
#define GRAIN ((uint64_t)2 << 20) /* the driver's page: a block is rounded up to it */

struct be_cuda_block {
    cu_ptr base;
    uint64_t size, used;
    uint32_t live; /* objects in it */
    struct be_cuda_block *next;
};

static enum rc no_memory(struct be_cuda_ctx *c, const char *what, uint64_t n, struct rc_err *err)
{
    size_t free_bytes = 0, total = 0;

    (void)c->d->mem_info(&free_bytes, &total); /* only for the message */
    return rc_bound(rc_fail_what(err, RC_NOMEM, "device memory",
                                 "%s needs %llu bytes on the device: %llu of %llu are free", what,
                                 (unsigned long long)n, (unsigned long long)free_bytes,
                                 (unsigned long long)total),
                    n, free_bytes, err);
}

static enum rc block_new(struct be_cuda_ctx *c, enum be_cuda_kind kind, uint64_t size,
                         struct be_cuda_block **out, const char *what, struct rc_err *err)
{
    struct be_cuda_block *b = calloc(1, sizeof(*b));
    int code;
    enum rc rc;

    if (!b)
        return rc_fail(err, RC_NOMEM, "%s: no memory", what);
    if (c->base.sealed)
        c->hot_allocs++;
    code = c->d->mem_alloc(&b->base, size);
    if (code != 0) {
        free(b);
        if (code == 2)
            return no_memory(c, what, size, err);
        rc = be_cuda_do(c, code, "allocating device memory", err);
        return rc;
    }
    b->size = size;
    b->next = c->blocks[kind];
    c->blocks[kind] = b;
    c->device_bytes += size;
    *out = b;
    return RC_OK;
}

static void block_free(struct be_cuda_ctx *c, enum be_cuda_kind kind, struct be_cuda_block *b)
{
    struct be_cuda_block **at = &c->blocks[kind];

    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    c->device_bytes -= b->size;
    (void)c->d->mem_free(b->base); /* fails only when the context is lost: the end frees all */
    free(b);
}

static enum rc over_workspace(struct be_cuda_ctx *c, const char *what, uint64_t n_bytes,
                              struct rc_err *err)
{
    uint64_t used = c->mem[BE_CUDA_WORK];

    return rc_bound(rc_fail_what(err, RC_NOMEM, "workspace",
                                 "%s needs %llu bytes of workspace: %llu of %llu are in use", what,
                                 (unsigned long long)n_bytes, (unsigned long long)used,
                                 (unsigned long long)c->workspace_limit),
                    used + n_bytes, c->workspace_limit, err);
}

enum rc be_cuda_alloc(struct be_cuda_ctx *c, enum be_cuda_kind kind, uint64_t n_bytes,
                      struct be_cuda_mem *out, const char *what, struct rc_err *err)
{
    struct be_cuda_block *b;
    enum rc rc;

    if (n_bytes > (uint64_t)1 << 46)
        return rc_fail(err, RC_NOMEM, "%s: %llu bytes is more than any memory", what,
                       (unsigned long long)n_bytes);
    n_bytes = be_cuda_up(n_bytes ? n_bytes : 1);
    if (kind == BE_CUDA_WORK && c->workspace_limit > 0 &&
        (n_bytes > c->workspace_limit || c->mem[kind] > c->workspace_limit - n_bytes))
        return over_workspace(c, what, n_bytes, err);
    if ((rc = be_cuda_enter(c, err)) != RC_OK)
        return rc;
    for (b = c->blocks[kind]; b; b = b->next)
        if (n_bytes < OWN_FROM && b->size == CHUNK && b->size - b->used >= n_bytes)
            break;
    if (!b &&
        (rc = block_new(c, kind, n_bytes < OWN_FROM ? CHUNK : (n_bytes + GRAIN - 1) & ~(GRAIN - 1),
                        &b, what, err)) != RC_OK)
        return rc;
    out->p = b->base + b->used;
    out->n = n_bytes;
    out->block = b;
    b->used += n_bytes;
    b->live++;
    c->mem[kind] += n_bytes;
    return RC_OK;
}

void be_cuda_free(struct be_cuda_ctx *c, enum be_cuda_kind kind, struct be_cuda_mem *m)
{
    struct be_cuda_block *b = m->block;

    if (!b)
        return;
    c->mem[kind] -= m->n;
    if (m->p + m->n == b->base + b->used)
        b->used -= m->n;
    if (--b->live == 0)
        block_free(c, kind, b);
    memset(m, 0, sizeof(*m));
}

enum rc be_cuda_host_alloc(struct be_cuda_ctx *c, uint64_t n_bytes, void *out, const char *what,
                           struct rc_err *err)
{
    void *p = NULL;
    int code;
    enum rc rc;

    if ((rc = be_cuda_enter(c, err)) != RC_OK)
        return rc;
    if (c->base.sealed)
        c->hot_allocs++;
    code = c->d->host_alloc(&p, n_bytes, 0);
    if (code == 2)
        return rc_fail_what(err, RC_NOMEM, "pinned memory",
                            "%s: no memory for %llu pinned bytes on the host", what,
                            (unsigned long long)n_bytes);
    if ((rc = be_cuda_do(c, code, "allocating pinned host memory", err)) != RC_OK)
        return rc;
    memcpy(out, &p, sizeof(p));
    return RC_OK;
}

void be_cuda_host_free(struct be_cuda_ctx *c, void *p)
{
    if (p)
        (void)c->d->host_free(p);
}

void be_cuda_mem_end(struct be_cuda_ctx *c)
{
    for (int k = 0; k < BE_CUDA_KINDS; k++)
        while (c->blocks[k])
            block_free(c, (enum be_cuda_kind)k, c->blocks[k]);
}
