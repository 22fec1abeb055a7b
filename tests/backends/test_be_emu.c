/* test_be_emu.c - the emulated device itself: does it compute what the device computes, and does
 * it find the mistakes it promises to find?
 *
 * Fragment layouts are written out here as loops after the PTX ISA manual (section on
 * mma.sync and ldmatrix), independently of emu_warp.c.
 */
#include "be_test.h"
#include "emu.h"

struct args {
    uint64_t in, out;
    uint32_t n, mode;
};

static enum emu_error try(const char *name, unsigned arch, const void *in, void *out, uint32_t n,
                          uint32_t mode, unsigned blocks, unsigned threads, unsigned shared,
                          char *err)
{
    struct args a = {(uint64_t)(uintptr_t)in, (uint64_t)(uintptr_t)out, n, mode};
    struct be_kgrid g = {blocks, 1, 1, threads, shared};

    return emu_try(name, arch, &a, sizeof(a), &g, err, 512);
}

static void good(const char *name, const void *in, void *out, uint32_t n, uint32_t mode,
                 unsigned blocks, unsigned threads, unsigned shared)
{
    char err[512] = "";

    if (try(name, 80, in, out, n, mode, blocks, threads, shared, err) != EMU_OK)
        fail_msg("%s", err);
}

static void bad(const char *name, const void *in, void *out, uint32_t n, uint32_t mode,
                unsigned threads, unsigned shared, enum emu_error want, const char *text)
{
    char err[512] = "";
    enum emu_error e = try(name, 80, in, out, n, mode, 1, threads, shared, err);

    if (e != want || !strstr(err, text))
        fail_msg("mode %u: error %d '%s', expected %d '%s'", mode, e, err, want, text);
}

static void sums(void **state)
{
    float in[4 * 128], out[4], want, first[4];

    for (int i = 0; i < 4 * 128; i++)
        in[i] = (float)(int)(rnd() % 2001 - 1000); /* exact in any order */
    for (int o = EMU_FORWARD; o <= EMU_SHUFFLED; o++) {
        emu_order(o, 7);
        memset(out, 0, sizeof(out));
        good("kx_emu_sum", in, out, 0, 0, 4, 128, 0);
        for (int b = 0; b < 4; b++) {
            want = 0;
            for (int i = 0; i < 128; i++)
                want += in[b * 128 + i];
            assert_float_equal(out[b], want, 0);
        }
        memcpy(first, out, sizeof(out));
    }
    /* without its barrier thread 0 reads what is not written yet: poison */
    emu_order(EMU_FORWARD, 0);
    good("kx_emu_sum", in, out, 0, 1, 4, 128, 0);
    assert_true(isnan(out[0]));
}

static void divergence(void **state)
{
    int out[128] = {0};

    bad("kx_emu_diverge", out, out, 0, 0, 128, 0, EMU_E_SYNC, "thread 77 has ended");
    bad("kx_emu_diverge", out, out, 0, 1, 128, 0, EMU_E_SYNC, "waits at that of line");
    bad("kx_emu_diverge", out, out, 0, 2, 128, 0, EMU_E_SYNC,
        "kx_shfl_xor, but thread 40 has ended");
    bad("kx_emu_diverge", out, out, 0, 3, 128, 0, EMU_E_SYNC, "waits in line");
    bad("kx_emu_diverge", out, out, 0, 4, 128, 0, EMU_E_SYNC, "at kx_sync");
    /* and the next launch works */
    bad("kx_emu_diverge", out, out, 0, 0, 128, 0, EMU_E_SYNC, "kx_emu_diverge: block 0,0,0: ");
    sums(state);
}

static void async_copies(void **state)
{
    _Alignas(16) uint32_t in[512], out[512];

    for (int i = 0; i < 512; i++)
        in[i] = rnd();
    good("kx_emu_copy", in, out, 0, 0, 1, 64, 2048);
    assert_memory_equal(in, out, sizeof(in));
    good("kx_emu_copy", in, out, 13, 3, 1, 64, 2048);
    for (int i = 0; i < 512; i++)
        assert_int_equal(out[i], i >= 13 * 4 && i < 256 ? 0 : in[i]);
    good("kx_emu_copy", in, out, 0, 1, 1, 64, 2048);
    assert_memory_equal(in, out, 1024);
    for (int i = 256; i < 512; i++) /* never waited for */
        assert_int_equal(out[i], 0xFFFFFFFF);
    good("kx_emu_copy", in, out, 0, 2, 1, 64, 2048);
    assert_int_equal(out[0], 0xFFFFFFFF); /* wait(1) may leave the one committed group in flight */
    assert_int_equal(out[255], 0xFFFFFFFF);
    for (int i = 256; i < 512; i++)
        assert_int_equal(out[i], 0xFFFFFFFF);
    bad("kx_emu_copy", in + 1, out, 0, 0, 64, 2048, EMU_E_ALIGN, "kx_cp16");
    bad("kx_emu_copy", in, out, 0, 0, 64, 1024, EMU_E_MEMORY, "not shared memory");
}

/* Row and column of element i of a lane's fragment: PTX ISA, m16n8k16 and m16n8k32 for .s8,
 * m16n8k16 for .f16, m16n8k8 for .tf32. */
static void a_s8(int k, int lane, int i, int *row, int *col)
{
    int g = lane >> 2, t = lane % 4;

    if (k == 16) {
        *row = i < 4 ? g : g + 8;
        *col = t * 4 + (i & 3);
    } else {
        *row = (i < 4 || (i >= 8 && i < 12)) ? g : g + 8;
        *col = i < 8 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16;
    }
}
static void b_s8(int lane, int i, int *row, int *col)
{
    *row = i < 4 ? lane % 4 * 4 + (i & 3) : lane % 4 * 4 + (i & 3) + 16;
    *col = lane >> 2;
}
static void a_f16(int lane, int i, int *row, int *col)
{
    int g = lane >> 2, t = lane % 4;

    *row = (i < 2 || (i >= 4 && i < 6)) ? g : g + 8;
    *col = i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8;
}
static void b_f16(int lane, int i, int *row, int *col)
{
    *row = i < 2 ? lane % 4 * 2 + (i & 1) : lane % 4 * 2 + (i & 1) + 8;
    *col = lane >> 2;
}
static void a_tf32(int lane, int i, int *row, int *col)
{
    *row = i == 0 || i == 2 ? lane >> 2 : (lane >> 2) + 8;
    *col = i < 2 ? lane % 4 : lane % 4 + 4;
}
static void b_tf32(int lane, int i, int *row, int *col)
{
    *row = i == 0 ? lane % 4 : lane % 4 + 4;
    *col = lane >> 2;
}
static void c_any(int lane, int i, int *row, int *col)
{
    *row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
    *col = lane % 4 * 2 + (i & 1);
}

static void mma_int(void **state)
{
    uint32_t in[32][10], out[32][4];
    int8_t a[16][32], b[32][8];
    int c[16][8], row, col;

    for (int k = 32; k >= 16; k -= 16) {
        for (int i = 0; i < 16 * 32; i++)
            a[i / 32][i % 32] = (int8_t)rnd();
        for (int i = 0; i < 32 * 8; i++)
            b[i / 8][i % 8] = (int8_t)rnd();
        for (int i = 0; i < 16 * 8; i++)
            c[i / 8][i % 8] = (int)(rnd() % 100000);
        memset(in, 0, sizeof(in));
        for (int l = 0; l < 32; l++) {
            for (int i = 0; i < k / 2; i++) {
                a_s8(k, l, i, &row, &col);
                ((int8_t *)in[l])[i] = a[row][col];
            }
            for (int i = 0; i < k / 4; i++) {
                b_s8(l, i, &row, &col);
                ((int8_t *)&in[l][4])[i] = b[row][col];
            }
            for (int i = 0; i < 4; i++) {
                c_any(l, i, &row, &col);
                in[l][6 + i] = (uint32_t)c[row][col];
            }
        }
        good("kx_emu_mma", in, out, 0, k == 32 ? 0 : 1, 1, 32, 0);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                int want;

                c_any(l, i, &row, &col);
                want = c[row][col];
                for (int j = 0; j < k; j++)
                    want += a[row][j] * b[j][col];
                assert_int_equal((int)out[l][i], want);
            }
    }
}

static void mma_half(void **state)
{
    uint32_t in[32][10], out[32][4];
    uint16_t a[16][16], b[16][8];
    float c[16][8], got;
    int row, col;

    for (int i = 0; i < 16 * 16; i++)
        a[i / 16][i % 16] = be_f32_to_half(rndf() * 3);
    for (int i = 0; i < 16 * 8; i++) {
        b[i / 8][i % 8] = be_f32_to_half(rndf());
        c[i / 8][i % 8] = rndf();
    }
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 8; i++) {
            a_f16(l, i, &row, &col);
            ((uint16_t *)in[l])[i] = a[row][col];
        }
        for (int i = 0; i < 4; i++) {
            b_f16(l, i, &row, &col);
            ((uint16_t *)&in[l][4])[i] = b[row][col];
            c_any(l, i, &row, &col);
            in[l][6 + i] = be_f32_to_bits(c[row][col]);
        }
    }
    good("kx_emu_mma", in, out, 0, 2, 1, 32, 0);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float want;

            c_any(l, i, &row, &col);
            want = c[row][col];
            for (int j = 0; j < 16; j++)
                want += be_half_to_f32(a[row][j]) * be_half_to_f32(b[j][col]);
            got = be_bits_to_f32(out[l][i]);
            assert_memory_equal(&got, &want, 4);
        }
}

/* Half of the last of 10 bits goes away from zero; an overflow is infinite. */
static float tf32(float f)
{
    int e;
    float m = frexpf(f, &e);

    return ldexpf(roundf(ldexpf(m, 11)), e - 11);
}

static void mma_tf32(void **state)
{
    static const float odd[] = {1 + 0x1p-11f, -1 - 0x1p-11f, 1 + 0x1.ffcp-12f, 1 + 0x1p-12f,
                                0x1.fff8p9f};
    uint32_t in[32][10], out[32][4];
    float a[16][8], b[8][8], c[16][8], got;
    int row, col;

    for (int i = 0; i < 16 * 8; i++) {
        a[i / 8][i % 8] = i < 5 ? odd[i] : rndf() * 3;
        c[i / 8][i % 8] = rndf();
    }
    for (int i = 0; i < 8 * 8; i++)
        b[i / 8][i % 8] = rndf();
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) {
            a_tf32(l, i, &row, &col);
            in[l][i] = be_f32_to_bits(a[row][col]);
            c_any(l, i, &row, &col);
            in[l][6 + i] = be_f32_to_bits(c[row][col]);
        }
        for (int i = 0; i < 2; i++) {
            b_tf32(l, i, &row, &col);
            in[l][4 + i] = be_f32_to_bits(b[row][col]);
        }
    }
    good("kx_emu_mma", in, out, 0, 3, 1, 32, 0);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float want;

            c_any(l, i, &row, &col);
            want = c[row][col];
            for (int j = 0; j < 8; j++)
                want += tf32(a[row][j]) * tf32(b[j][col]);
            got = be_bits_to_f32(out[l][i]);
            assert_memory_equal(&got, &want, 4);
        }
    bad("kx_emu_mma", in, out, 0, 4, 32, 0, EMU_E_ASSERT, "is not tf32");
}

static void ldmatrix(void **state)
{
    _Alignas(16) uint16_t m[4][8][8];
    uint32_t out[32][4];

    for (int i = 0; i < 256; i++)
        m[i / 64][i / 8 % 8][i % 8] = (uint16_t)i;
    for (uint32_t mode = 0; mode <= 2; mode++) {
        good("kx_emu_ldm", m, out, 0, mode, 1, 32, 0);
        for (int l = 0; l < 32; l++)
            for (int r = 0; r < 4; r++)
                for (int h = 0; h < 2; h++) {
                    int i = l / 4, j = 2 * (l % 4) + h;
                    int want = mode == 1 ? m[r][j][i] : m[r][i][j];

                    assert_int_equal(out[l][r] >> 16 * h & 0xFFFF, mode == 2 && r > 1 ? 0 : want);
                }
    }
    bad("kx_emu_ldm", m, out, 0, 3, 32, 0, EMU_E_ALIGN, "row address");
    bad("kx_emu_ldm", m, out, 0, 4, 32, 0, EMU_E_MEMORY, "not shared memory");
}

static void small_functions(void **state)
{
    _Alignas(16) uint32_t in[40], out[32], sum = 0, ballot = 0;
    static const float reals[] = {0.5f, 1.5f, -2.5f, 3e9f, -3e9f, NAN, 0.49999997f, -0.0f};
    static const int ints[] = {0, 2, -2, INT32_MAX, INT32_MIN, 0, 0, 0};
    char err[512];

    for (int i = 0; i < 40; i++)
        in[i] = rnd() * 3u;
    for (int i = 0; i < 32; i++) {
        sum += in[i];
        ballot |= (in[i] & 1) << i;
    }
    good("kx_emu_misc", in, out, 0, 0, 1, 32, 0);
    for (int i = 0; i < 32; i++)
        assert_int_equal(out[i], in[5]);
    good("kx_emu_misc", in, out, 0, 1, 1, 32, 0);
    assert_int_equal(out[9], ballot);
    good("kx_emu_misc", in, out, 0, 2, 1, 32, 0);
    for (int i = 0; i < 32; i++) {
        const int8_t *x = (const int8_t *)&in[i], *y = (const int8_t *)&in[(i + 1) % 32];

        assert_int_equal((int)out[i], x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3] - 7);
    }
    good("kx_emu_misc", in, out, 0, 3, 1, 32, 0);
    assert_int_equal(out[3], (in[3] & 0xFFFF) | (in[4] & 0xFF) << 16 | (in[4] & 0xFF000000u));
    bad("kx_emu_misc", in, out, 0, 4, 32, 0, EMU_E_ASSERT, "bit 3");
    good("kx_emu_misc", in, out, 0, 5, 1, 32, 0);
    assert_int_equal(out[31], sum);
    bad("kx_emu_misc", in, out, 0, 6, 32, 0, EMU_E_ALIGN, "kx_ldg16");
    bad("kx_emu_misc", in, out, 0, 7, 32, 0, EMU_E_ALIGN, "misaligned");
    bad("kx_emu_misc", in, out, 64, 8, 32, 0, EMU_E_MEMORY, "illegal address 0x40");
    bad("kx_emu_misc", in, out, 32, 9, 32, 0, EMU_E_ALIGN, "bad shift");
    for (int i = 0; i < 8; i++)
        in[i] = be_f32_to_bits(reals[i]);
    good("kx_emu_misc", in, out, 0, 10, 1, 32, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal((int)out[i], ints[i]);
    for (unsigned arch = 75; arch <= 90; arch += 5) {
        if (try("kx_emu_misc", arch, in, out, 0, 11, 1, 32, 0, err) != EMU_OK)
            fail_msg("%s", err);
        assert_int_equal(out[0], arch < 80 ? 750 : 800);
    }
}

static void shared_memory(void **state)
{
    uint32_t out[32] = {0};

    bad("kx_emu_dynamic", out, out, 10, 0, 32, 128, EMU_E_MEMORY, "written at byte 128");
    good("kx_emu_dynamic", out, out, 0, 0, 1, 32, 128);
    good("kx_emu_dynamic", out, out, 0, 1, 1, 32, 128); /* poisoned, not what the last left */
    assert_int_equal(out[7], 0xFFFFFFFF);
}

static void bad_launches(void **state)
{
    static const struct {
        const char *name, *text;
        unsigned x, threads, shared;
        size_t bytes;
    } rows[] = {
        {"kx_emu_nothing", "'kx_emu_nothing' for sm_80 is not compiled in", 1, 32, 0, 24},
        {"kx_emu_misc", "arguments of 32 bytes, the text's struct has 24", 1, 32, 0, 32},
        {"kx_emu_misc", "64 threads, expected a multiple of 32 up to 32", 1, 64, 0, 24},
        {"kx_emu_copy", "33 threads", 1, 33, 0, 24},
        {"kx_emu_misc", "grid 0 x 1 x 1", 0, 32, 0, 24},
        {"kx_emu_copy", "bytes of shared memory", 1, 32, 300000, 24},
    };
    struct args a[2] = {{0}};
    char err[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_kgrid g = {rows[i].x, 1, 1, rows[i].threads, rows[i].shared};

        assert_int_equal(emu_try(rows[i].name, 80, a, rows[i].bytes, &g, err, sizeof(err)),
                         EMU_E_ARG);
        if (!strstr(err, rows[i].text))
            fail_msg("'%s', expected '%s'", err, rows[i].text);
    }
}

static void text_at_run_time(void **state)
{
    static const char text[] = "struct later { kx_p out; kx_u n, pad; };\n"
                               "KX_KERNEL(kx_emu_later, 32, 1, struct later, a)\n"
                               "{\n"
                               "    ((kx_u *)a.out)[kx_tid()] = a.n + kx_tid();\n"
                               "}\n";
    uint32_t out[32] = {0};
    struct {
        uint64_t out;
        uint32_t n, pad;
    } a = {(uint64_t)(uintptr_t)out, 5, 0};
    struct be_kgrid g = {1, 1, 1, 32, 0};

    emu_load_text(text, 80);
    emu_run("kx_emu_later", &a, sizeof(a), &g);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(out[i], 5 + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(divergence),
        cmocka_unit_test(async_copies),
        cmocka_unit_test(mma_int),
        cmocka_unit_test(mma_half),
        cmocka_unit_test(mma_tf32),
        cmocka_unit_test(ldmatrix),
        cmocka_unit_test(small_functions),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(bad_launches),
        cmocka_unit_test(text_at_run_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
