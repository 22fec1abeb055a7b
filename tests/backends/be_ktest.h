/* be_ktest.h - two small kernel families for tests of the catalog, texts and artifacts.
 *
 * "alpha" is real enough to be compiled and run; "beta" lives in a library of its own and needs
 * sm_80. Tests change the copies in `struct kt`, never a file-scope variable.
 */
#ifndef BE_KTEST_H
#define BE_KTEST_H

#include "be_test.h"

#include "be_kargs.h"
#include "be_kart_impl.h"

static inline void kt_grid(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_softcap *a = args;

    *out = (struct be_kgrid){(a->n * a->k + 31) / 32, 1, 1, e->sched.threads, 0};
}

#define KT_ENTRY(name_, lib_, fmt, arch)                                               \
    {                                                                                  \
        .name = name_, .lib = lib_,                                                    \
        .desc = {.op = BE_KOP_SOFTCAP,                                                 \
                 .wfmt = fmt,                                                          \
                 .rows = {1, 1 << 20, 1, 0},                                           \
                 .k = {1, 1 << 20, 1, 0}},                                             \
        .sched = {.threads = 32, .rows_tile = 1, .cols_tile = 32, .stages = 1},        \
        .args_bytes = sizeof(struct kx_softcap), .min_arch = arch, .production = true, \
        .grid = kt_grid                                                                \
    }

static const struct be_kentry kt_alpha_entries[] = {
    KT_ENTRY("kx_alpha_one", "alpha", BE_F32, 75),
    KT_ENTRY("kx_alpha_two", "alpha", BE_F16, 80),
    KT_ENTRY("kx_alpha_three", "alpha2", BE_BF16, 75),
};
static const struct be_kentry kt_beta_entries[] = {
    KT_ENTRY("kx_beta_one", "beta", BE_Q8_0, 80),
};

static inline uint32_t kt_alpha_count(void)
{
    return 3;
}
static inline const struct be_kentry *kt_alpha_at(uint32_t i)
{
    return &kt_alpha_entries[i];
}
static inline uint32_t kt_beta_count(void)
{
    return 1;
}
static inline const struct be_kentry *kt_beta_at(uint32_t i)
{
    return &kt_beta_entries[i];
}

static inline enum rc kt_build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    *out = (struct be_kir){.desc = e->desc, .sched = e->sched};
    snprintf(out->name, sizeof(out->name), "%s", e->name);
    be_kir_add(out, (struct be_knode){.kind = BE_KN_GRID, .imm = BE_KU_ELEM});
    be_kir_add(out, (struct be_knode){.kind = BE_KN_LOAD_ACT, .depth = 1, .dst = 1});
    be_kir_add(out, (struct be_knode){.kind = BE_KN_SOFTCAP, .depth = 1, .dst = 2, .a = 1});
    be_kir_add(out, (struct be_knode){.kind = BE_KN_STORE, .depth = 1, .a = 2});
    return RC_OK;
}

static inline enum rc kt_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    be_ktext_add(out, "\nKX_DEV float kt_cap(float x, float c) { return c * kx_exp(x / c); }\n");
    return RC_OK;
}
static inline enum rc kt_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    be_ktext_add(out,
                 "KX_KERNEL(%s, %u, 1, struct kx_softcap, a)\n{\n"
                 "    kx_u i = kx_bx() * 32u + kx_tid();\n\n"
                 "    if (i < a.n * a.k)\n"
                 "        ((float *)a.x)[i] = kt_cap(((float *)a.x)[i], a.cap);\n}\n",
                 k->name, k->sched.threads);
    return RC_OK;
}
static inline enum rc kt_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    be_ktext_add(out,
                 "kernel void %s(constant kx_softcap &a [[buffer(0)]], "
                 "uint i [[thread_position_in_grid]])\n{\n    if (i < a.n * a.k)\n"
                 "        KX_AT(float, a.x)[i] = kt_cap(KX_AT(float, a.x)[i], a.cap);\n}\n",
                 k->name);
    return RC_OK;
}

static const struct be_kfamily kt_alpha = {
    .name = "alpha",
    .count = kt_alpha_count,
    .at = kt_alpha_at,
    .build = kt_build,
    .cuda_lib = kt_cuda_lib,
    .cuda = kt_cuda,
    .metal_lib = kt_cuda_lib,
    .metal = kt_metal,
};
static const struct be_kfamily kt_beta = {
    .name = "beta",
    .count = kt_beta_count,
    .at = kt_beta_at,
    .build = kt_build,
    .cuda_lib = kt_cuda_lib,
    .cuda = kt_cuda,
    .metal_lib = kt_cuda_lib,
    .metal = kt_metal,
};
static const struct be_kfamily *const kt_families[] = {&kt_alpha, &kt_beta, NULL};

#endif
