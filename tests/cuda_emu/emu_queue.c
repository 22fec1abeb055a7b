/* emu_queue.c - what a stream has to do, done in order when somebody waits.
 *
 * Late on purpose: a host that reuses a staging buffer, or reads a result, before it
 * has waited gets wrong bytes here as it would on a device. A kernel's fault is said on stderr and
 * loses the context.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_drv.h"

static double clock_ms; /* made up: work, not time */

int emu_queue_add(struct emu_queue *q, const struct emu_item *it)
{
    struct emu_item *p, copy = *it;
    size_t cap = q->cap ? q->cap * 2 : 64;

    if (q->n == q->cap) {
        if (!(p = realloc(q->item, cap * sizeof(*p))))
            return CU_OUT_OF_MEMORY;
        q->item = p;
        q->cap = cap;
    }
    if (it->n_bytes) {
        if (!(copy.bytes = malloc(it->n_bytes)))
            return CU_OUT_OF_MEMORY;
        memcpy(copy.bytes, it->bytes, it->n_bytes);
    }
    q->item[q->n++] = copy;
    return CU_OK;
}

int emu_queue_append(struct emu_queue *q, const struct emu_queue *more)
{
    int code = CU_OK;

    for (size_t i = 0; i < more->n && code == CU_OK; i++)
        code = emu_queue_add(q, &more->item[i]);
    return code;
}

void emu_queue_clear(struct emu_queue *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->item[i].n_bytes)
            free(q->item[i].bytes);
    free(q->item);
    memset(q, 0, sizeof(*q));
}

static int kernel(const struct emu_item *it)
{
    static const int codes[] = {
        [EMU_OK] = CU_OK,
        [EMU_E_ARG] = CU_LAUNCH_FAILED,
        [EMU_E_SYNC] = CU_LAUNCH_FAILED,
        [EMU_E_ALIGN] = CU_MISALIGNED,
        [EMU_E_MEMORY] = CU_ILLEGAL_ADDRESS,
        [EMU_E_ASSERT] = CU_LAUNCH_FAILED,
    };
    char err[512] = "";
    enum emu_error e;

    kx_emu_waited = 0;
    e = emu_launch_kernel(it->k, it->bytes, it->n_bytes, &it->g, err, sizeof(err));

    if (e == EMU_OK && it->early && !kx_emu_waited) {
        e = EMU_E_ASSERT;
        snprintf(err, sizeof(err), "%s: may overlap the kernel before it and never called kx_wait",
                 it->k->name);
    }
    /* a kernel compiled at run time wins, so that its use is tested too */
    clock_ms += (strncmp(it->k->lib, "text", 4) == 0 ? 0.5 : 1.0) *
                (1e-3 + 1e-6 * it->g.x * it->g.y * it->g.z * it->g.threads);
    if (e == EMU_OK && emu_mem_check(err, sizeof(err))) {
        e = EMU_E_MEMORY;
        fprintf(stderr, "cuda_emu: after %s: %s\n", it->k->name, err);
    } else if (e != EMU_OK) {
        fprintf(stderr, "cuda_emu: %s\n", err);
    }
    return codes[e];
}

static int one(const struct emu_item *it)
{
    const void *src = it->src ? it->src : it->bytes;

    if (it->kind == EMU_W_KERNEL)
        return kernel(it);
    if (it->kind == EMU_W_EVENT) {
        it->event->done = true;
        it->event->at_ms = clock_ms;
        return CU_OK;
    }
    clock_ms += 1e-3 + 1e-7 * (double)it->n;
    emu_mem_open();
    if (it->kind == EMU_W_SET)
        memset(it->dst, it->value, it->n);
    else
        memmove(it->dst, src, it->n);
    emu_mem_close();
    return CU_OK;
}

int emu_queue_run(struct emu_queue *q)
{
    int code = emu_lost();

    for (size_t i = 0; i < q->n && code == CU_OK; i++)
        if ((code = one(&q->item[i])) != CU_OK)
            emu_lose(code);
    emu_queue_clear(q);
    return code;
}
