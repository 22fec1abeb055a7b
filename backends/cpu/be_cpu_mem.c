/* be_cpu_mem.c - the only place of this backend that asks for memory.
 *
 * Counts bytes by purpose, holds activations and scratch to workspace_bytes, and
 * counts every request made after be_ctx_seal as a hot-path fault. Blocks are
 * zeroed and aligned for the widest vectors; large ones are mapped, with huge
 * pages where the kernel offers them (a weight matrix is read end to end every
 * token, and 4 KiB pages would miss the TLB each time).
 * Tests: tests/backends/test_be_cpu_mem.c
 */
#include "be_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAP_FROM ((uint64_t)1 << 20)
#define HUGE_PAGE ((uint64_t)2 << 20)

static uint64_t mapped_bytes(uint64_t n)
{
    return (n + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

/* A mapping that starts on a huge page: map one page more, give back the ends. */
static void *map_huge(uint64_t n_bytes)
{
    uint64_t want = mapped_bytes(n_bytes), head;
    uint8_t *p =
        mmap(NULL, want + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    head = (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    if (head > 0)
        munmap(p, head);
    if (head < HUGE_PAGE)
        munmap(p + head + want, HUGE_PAGE - head);
    (void)madvise(p + head, want, MADV_HUGEPAGE); /* a hint: refusal costs only speed */
    return p + head;
}

enum rc be_cpu_alloc(struct be_cpu_ctx *c, enum be_cpu_mem kind, uint64_t n_bytes, void *out,
                     const char *what, struct rc_err *err)
{
    void *p = NULL;

    if (n_bytes == 0)
        n_bytes = 1;
    if (n_bytes > ((uint64_t)1 << 46))
        return rc_fail(err, RC_NOMEM, "%s: %llu bytes is more than any memory", what,
                       (unsigned long long)n_bytes);
    if (kind == BE_CPU_MEM_WORK && c->workspace_limit > 0 &&
        (n_bytes > c->workspace_limit || c->mem[kind] > c->workspace_limit - n_bytes))
        return rc_bound(rc_fail_what(err, RC_NOMEM, "workspace",
                                     "%s needs %llu bytes of workspace: %llu of %llu are in use",
                                     what, (unsigned long long)n_bytes,
                                     (unsigned long long)c->mem[kind],
                                     (unsigned long long)c->workspace_limit),
                        c->mem[kind] + n_bytes, c->workspace_limit, err);
    if (c->base.sealed)
        c->hot_allocs++;
    if (n_bytes >= MAP_FROM) {
        p = map_huge(n_bytes);
    } else {
        size_t size = (n_bytes + BE_CPU_ALIGN - 1) / BE_CPU_ALIGN * BE_CPU_ALIGN;

        p = aligned_alloc(BE_CPU_ALIGN, size);
        if (p)
            memset(p, 0, size);
    }
    if (!p)
        return rc_fail(err, RC_NOMEM, "%s: no memory for %llu bytes", what,
                       (unsigned long long)n_bytes);
    c->mem[kind] += n_bytes;
    memcpy(out, &p, sizeof(p));
    return RC_OK;
}

void be_cpu_free(struct be_cpu_ctx *c, enum be_cpu_mem kind, void *p, size_t n_bytes)
{
    if (!p)
        return;
    if (n_bytes == 0)
        n_bytes = 1;
    c->mem[kind] -= n_bytes;
    if (n_bytes >= MAP_FROM)
        munmap(p, mapped_bytes(n_bytes));
    else
        free(p);
}
