/* emu_warp.c - warp functions, computed for all 32 lanes at once.
 *
 * The lanes' operands lie on their fibers' stacks; whoever arrives last calls
 * emu_warp_compute. Fragment layouts as in the PTX ISA manual (mma.sync m16n8k8, k16 and
 * k32, ldmatrix): g = lane / 4, t = lane % 4.
 */
#include <string.h>

#include "be_half.h"
#include "emu_dev.h"

const char *const emu_op_names[EMU_N_OPS] = {
    "kx_syncwarp",     "kx_shfl_xor",     "kx_shfl",          "kx_ballot",
    "kx_mma_s8_16832", "kx_mma_s8_16816", "kx_mma_f16_16816", "kx_mma_tf32_1688",
    "kx_ldm4",         "kx_ldm4t",        "kx_ldm2",
};

static void shuffle(struct emu_call *c, int xor)
{
    uint32_t v[32];

    for (int l = 0; l < 32; l++)
        memcpy(&v[l], c[l].a, 4);
    for (int l = 0; l < 32; l++)
        memcpy(c[l].out, &v[(xor? l ^ c[l].arg : c[l].arg) & 31], 4);
}

static void ballot(struct emu_call *c)
{
    uint32_t r = 0;

    for (int l = 0; l < 32; l++)
        r |= (uint32_t)(*(const int *)c[l].a != 0) << l;
    for (int l = 0; l < 32; l++)
        memcpy(c[l].out, &r, 4);
}

/* d[16][8] += a[16][k] b[k][8], k = 16 or 32 */
static void mma_s8(struct emu_call *c, int k)
{
    int8_t a[16][32], b[8][32];

    for (int l = 0; l < 32; l++) {
        const uint32_t *ra = c[l].a, *rb = c[l].b;
        int g = l / 4, t = l % 4;

        /* register r of a: rows g, g + 8 alternately, columns 16 * (r / 2) + 4 t .. + 3 */
        for (int r = 0; r < k / 8; r++)
            memcpy(&a[g + 8 * (r & 1)][16 * (r / 2) + 4 * t], &ra[r], 4);
        for (int r = 0; r < k / 16; r++)
            memcpy(&b[g][16 * r + 4 * t], &rb[r], 4);
    }
    for (int l = 0; l < 32; l++) {
        int *d = c[l].out;

        for (int i = 0; i < 4; i++) {
            const int8_t *x = a[l / 4 + 8 * (i / 2)], *y = b[2 * (l % 4) + (i & 1)];
            int sum = 0;

            for (int j = 0; j < k; j++)
                sum += x[j] * y[j];
            d[i] = (int)((unsigned)d[i] + (unsigned)sum);
        }
    }
}

/* d[16][8] += a[16][16] b[16][8]: exact products, f32 sums in ascending k */
static void mma_f16(struct emu_call *c)
{
    float a[16][16], b[8][16];

    for (int l = 0; l < 32; l++) {
        const uint32_t *ra = c[l].a, *rb = c[l].b;
        int g = l / 4, t = l % 4;

        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++)
                a[g + 8 * (r & 1)][8 * (r / 2) + 2 * t + h] =
                    be_half_to_f32((uint16_t)(ra[r] >> 16 * h));
        for (int r = 0; r < 2; r++)
            for (int h = 0; h < 2; h++)
                b[g][8 * r + 2 * t + h] = be_half_to_f32((uint16_t)(rb[r] >> 16 * h));
    }
    for (int l = 0; l < 32; l++) {
        float *d = c[l].out;

        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 16; j++)
                d[i] += a[l / 4 + 8 * (i / 2)][j] * b[2 * (l % 4) + (i & 1)][j];
    }
}

/* d[16][8] += a[16][8] b[8][8]: words rounded to tf32 (what lies below is a mistake of the text;
 * the device ignores it), exact products, f32 sums in ascending k */
static void mma_tf32(int line, struct emu_call *c)
{
    float a[16][8], b[8][8];

    for (int l = 0; l < 32; l++) {
        const uint32_t *ra = c[l].a, *rb = c[l].b;
        int g = l / 4, t = l % 4;

        for (int r = 0; r < 6; r++) {
            uint32_t v = r < 4 ? ra[r] : rb[r - 4];
            float f = be_bits_to_f32(v);

            if (f == f && (v & 0x1fff))
                kx_emu_fail(EMU_E_ASSERT, "line %d: kx_mma_tf32_1688: word %08x is not tf32", line,
                            v);
            if (r < 4)
                a[g + 8 * (r & 1)][4 * (r / 2) + t] = f;
            else
                b[g][4 * (r - 4) + t] = f;
        }
    }
    for (int l = 0; l < 32; l++) {
        float *d = c[l].out;

        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 8; j++)
                d[i] += a[l / 4 + 8 * (i / 2)][j] * b[2 * (l % 4) + (i & 1)][j];
    }
}

/* n 8x8 matrices of 16-bit elements; matrix m's row r is at lane 8 m + r's address */
static void ldmatrix(int op, int line, struct emu_call *c, int n, int trans)
{
    uint16_t m[4][8][8];

    for (int l = 0; l < 8 * n; l++) {
        if ((uintptr_t)c[l].a & 15)
            kx_emu_fail(EMU_E_ALIGN, "line %d: %s: row address %p of lane %d, not a multiple of 16",
                        line, emu_op_names[op], c[l].a, l);
        if (!emu_in_shared(c[l].a, 16))
            kx_emu_fail(EMU_E_MEMORY, "line %d: %s: row address %p of lane %d, not shared memory",
                        line, emu_op_names[op], c[l].a, l);
        memcpy(m[l / 8][l % 8], c[l].a, 16);
    }
    for (int l = 0; l < 32; l++) {
        uint32_t *r = c[l].out;
        int g = l / 4, t = 2 * (l % 4);

        for (int i = 0; i < n; i++)
            r[i] = trans ? m[i][t][g] | (uint32_t)m[i][t + 1][g] << 16
                         : m[i][g][t] | (uint32_t)m[i][g][t + 1] << 16;
    }
}

void emu_warp_compute(int op, int line, struct emu_call *lane)
{
    switch (op) {
    case EMU_SYNCWARP:
        break;
    case EMU_SHFL_XOR:
    case EMU_SHFL:
        shuffle(lane, op == EMU_SHFL_XOR);
        break;
    case EMU_BALLOT:
        ballot(lane);
        break;
    case EMU_MMA_S8_16832:
        mma_s8(lane, 32);
        break;
    case EMU_MMA_S8_16816:
        mma_s8(lane, 16);
        break;
    case EMU_MMA_F16_16816:
        mma_f16(lane);
        break;
    case EMU_MMA_TF32_1688:
        mma_tf32(line, lane);
        break;
    case EMU_LDM4:
    case EMU_LDM4T:
        ldmatrix(op, line, lane, 4, op == EMU_LDM4T);
        break;
    case EMU_LDM2:
        ldmatrix(op, line, lane, 2, 0);
        break;
    default:
        kx_emu_fail(EMU_E_ASSERT, "line %d: unknown warp function %d", line, op);
    }
}
