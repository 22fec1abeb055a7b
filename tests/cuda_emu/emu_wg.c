/* emu_wg.c - what only sm_90a has: products of a warpgroup, copies by maps of a matrix, and the
 * barriers that count them.
 *
 * A product is computed when it is asked for, by each thread its own elements: nothing another
 * thread holds is needed. A copy lands when somebody waits for its barrier; until then its place
 * holds NaN. Stricter than the device: to wait for a phase whose copies were not all asked for
 * before ends the launch, as does a map that is not what kx_linear_wg.cu takes. Tests:
 * tests/backends/test_be_emu.c
 */
#include <stdint.h>
#include <string.h>

#include "be_half.h"
#include "emu_dev.h"

#define POISON 0xff
#define BOX_BYTES 128u /* of a row of a box */
#define MAX_COPIES 32

/* cuTensorMapEncodeTiled's 128 bytes, here */
struct map {
    uint64_t magic, at, n_cols, n_rows, pitch, box_rows, spare[10];
};
#define MAGIC 0x696e6665726d6170ull

struct bar { /* 8 bytes of shared memory */
    uint32_t phase;
    int32_t want; /* bytes of this phase that no copy has been asked for; -1: no phase is open */
};

static struct copy {
    unsigned char *dst;
    struct bar *bar;
    struct map map;
    unsigned x, y;
} copies[MAX_COPIES];
static unsigned n_copies;

__attribute__((visibility("default"))) int
cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *at, const uint64_t *dim,
                       const uint64_t *stride, const uint32_t *box, const uint32_t *step,
                       int interleave, int swizzle, int l2, int outside)
{
    struct map m = {.magic = MAGIC, .at = (uint64_t)(uintptr_t)at};

    (void)l2;
    /* what the driver refuses, and what the emulated copy does not know */
    if (!out || !at || type != 6 || rank != 2 || interleave != 0 || swizzle != 3 || outside != 0 ||
        (m.at & 15) || stride[0] % 16 || stride[0] < dim[0] * 2 || dim[0] == 0 || dim[1] == 0 ||
        dim[0] > UINT32_MAX || dim[1] > UINT32_MAX || box[0] != 64 || box[1] == 0 || box[1] > 256 ||
        step[0] != 1 || step[1] != 1)
        return 1; /* CUDA_ERROR_INVALID_VALUE */
    m.n_cols = dim[0];
    m.n_rows = dim[1];
    m.pitch = stride[0];
    m.box_rows = box[1];
    memcpy(out, &m, sizeof(m));
    return 0;
}

static struct bar *bar_at(void *p, int line)
{
    if ((uintptr_t)p & 7)
        kx_emu_fail(EMU_E_ALIGN, "line %d: a barrier at %p, not a multiple of 8", line, p);
    if (!emu_in_shared(p, 8))
        kx_emu_fail(EMU_E_MEMORY, "line %d: a barrier at %p, not shared memory", line, p);
    return p;
}

void kx_emu_mbar_init(void *p, int line)
{
    struct bar *b = bar_at(p, line);

    b->phase = 0;
    b->want = -1;
    n_copies = 0; /* of a block that ended early */
}

void kx_emu_mbar_expect(void *p, unsigned bytes, int line)
{
    struct bar *b = bar_at(p, line);

    if (b->want >= 0)
        kx_emu_fail(EMU_E_ASSERT, "line %d: kx_mbar_expect twice in one phase", line);
    b->want = (int32_t)bytes;
}

void kx_emu_tma_2d(void *dst, const void *map, void *p, unsigned x, unsigned y, unsigned rows,
                   int line)
{
    struct bar *b = bar_at(p, line);
    struct map m;

    memcpy(&m, map, sizeof(m));
    if (m.magic != MAGIC || m.box_rows != rows)
        kx_emu_fail(EMU_E_ASSERT, "line %d: kx_tma_2d of %u rows with a map of %llu", line, rows,
                    m.magic == MAGIC ? (unsigned long long)m.box_rows : 0ull);
    if ((uintptr_t)dst & 1023)
        kx_emu_fail(EMU_E_ALIGN, "line %d: kx_tma_2d to %p, not a multiple of 1024", line, dst);
    if (!emu_in_shared(dst, rows * BOX_BYTES))
        kx_emu_fail(EMU_E_MEMORY, "line %d: kx_tma_2d to %p, not shared memory", line, dst);
    if (b->want < (int32_t)(rows * BOX_BYTES))
        kx_emu_fail(EMU_E_ASSERT, "line %d: kx_tma_2d of more bytes than are expected", line);
    if (n_copies == MAX_COPIES)
        kx_emu_fail(EMU_E_ASSERT, "line %d: more than %d copies under way", line, MAX_COPIES);
    b->want -= (int32_t)(rows * BOX_BYTES);
    copies[n_copies++] = (struct copy){dst, b, m, x, y};
    memset(dst, POISON, rows * BOX_BYTES);
}

static void land(const struct copy *c)
{
    for (unsigned r = 0; r < c->map.box_rows; r++)
        for (unsigned i = 0; i < BOX_BYTES / 16; i++) {
            unsigned char *to = c->dst + r * BOX_BYTES + (i ^ (r & 7)) * 16;
            uint16_t v[8] = {0};

            for (unsigned j = 0; j < 8; j++)
                if (c->y + r < c->map.n_rows && c->x + i * 8 + j < c->map.n_cols)
                    memcpy(&v[j],
                           (const char *)(uintptr_t)c->map.at + (c->y + r) * c->map.pitch +
                               (c->x + i * 8 + j) * 2,
                           2);
            memcpy(to, v, 16);
        }
}

void kx_emu_mbar_wait(void *p, unsigned parity, int line)
{
    struct bar *b = bar_at(p, line);
    unsigned kept = 0;

    if ((b->phase & 1) != parity)
        return; /* that phase is over */
    if (b->want != 0)
        kx_emu_fail(EMU_E_ASSERT, "line %d: kx_mbar_wait for copies that nobody asked for", line);
    for (unsigned i = 0; i < n_copies; i++) {
        if (copies[i].bar == b)
            land(&copies[i]);
        else
            copies[kept++] = copies[i];
    }
    n_copies = kept;
    b->phase++;
    b->want = -1;
}

/* Column k of row r of a matrix that begins at m: the swizzle is of address bits. */
static uint16_t half_at(unsigned long long m, unsigned r, unsigned k, int line)
{
    uintptr_t p = (uintptr_t)m + r * 128 + k * 2;
    uint16_t h;

    p ^= (p >> 7 & 7) << 4;
    if (!emu_in_shared((const void *)p, 2))
        kx_emu_fail(EMU_E_MEMORY, "line %d: wgmma reads %p, not shared memory", line, (void *)p);
    memcpy(&h, (const void *)p, 2);
    return h;
}

static float element(unsigned long long m, unsigned r, unsigned k, int line)
{
    return be_half_to_f32(half_at(m, r, k, line));
}

/* Elements (n, k) and (n, k + 1) of b, whose rows are its n or (by_k) its k. */
unsigned kx_emu_wg_pair(unsigned long long b, unsigned n, unsigned k, int by_k, int line)
{
    unsigned lo, hi;

    if (by_k ? b & 1023 : (b & 1023) & ~0x60ull)
        kx_emu_fail(EMU_E_ALIGN, "line %d: wgmma of a matrix at %#llx", line, b);
    lo = by_k ? half_at(b, k, n, line) : half_at(b, n, k, line);
    hi = by_k ? half_at(b, k + 1, n, line) : half_at(b, n, k + 1, line);
    return lo | hi << 16;
}

void kx_emu_wgmma_f16_n256(float *d, unsigned long long a, unsigned long long b, int line)
{
    unsigned tid = kx_emu_cur->tid, g = (tid & 31) / 4, t = tid & 3, r0 = 16 * (tid / 32 & 3);

    if (((a | b) & 1023) & ~0x60ull)
        kx_emu_fail(EMU_E_ALIGN, "line %d: wgmma of matrices at %#llx and %#llx", line, a, b);
    for (unsigned h = 0; h < 2; h++) {
        float x[16];

        for (unsigned k = 0; k < 16; k++)
            x[k] = element(a, r0 + g + 8 * h, k, line);
        for (unsigned j = 0; j < 32; j++)
            for (unsigned e = 0; e < 2; e++)
                for (unsigned k = 0; k < 16; k++)
                    d[4 * j + 2 * h + e] += x[k] * element(b, 8 * j + 2 * t + e, k, line);
    }
}
