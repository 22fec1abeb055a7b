/* be_kir.h - the intermediate representation of a kernel, its schedule, the text
 * buffer that renderers write, and the table that makes a kernel family.
 *
 * A kernel is a short tree of nodes in pre-order. It says what is computed for one
 * unit of output (GRID names the unit: an output element, a row, a query row of a
 * head) and in which order sums are taken; the schedule says how a device shares the
 * units among blocks and threads. The same IR is run on the CPU (the oracle,
 * family->run), and rendered as CUDA C and Metal text (family->cuda, ->metal). A node
 * a renderer does not know is an error, never skipped.
 * Source: engine.md 1.7. Tests: tests/backends/test_be_kir*.c
 */
#ifndef INFERD_BE_KIR_H
#define INFERD_BE_KIR_H

#include "be_kdesc.h"

enum be_knode_kind {
    BE_KN_GRID = 1,   /* imm: enum be_kunit */
    BE_KN_LOOP,       /* children run per step; imm: enum be_kaxis; imm2: step */
    BE_KN_LOAD_ACT,   /* dst <- activation block or row; imm: enum be_kact */
    BE_KN_LOAD_BLOCK, /* dst <- weight block of part imm2; imm: enum be_dtype */
    BE_KN_DEQUANT,    /* dst <- floats of block a; imm: enum be_dtype */
    BE_KN_QUANT_ACT,  /* dst <- int8 block(s) of row a; imm: KX_ENC_* */
    BE_KN_FMA,        /* dst += a . b, ascending columns, one fma each */
    BE_KN_DP4A,       /* dst += scale * (integer dot of blocks a, b); see be_cpu_refq.c */
    BE_KN_MMA,        /* as DP4A or FMA, on tensor cores; imm: enum be_kmma */
    BE_KN_REDUCE,     /* dst <- a folded; imm: enum be_kred; imm2: enum be_kaxis */
    BE_KN_BIAS,
    BE_KN_ACT, /* ACT imm: enum be_epi, 0xff = run time */
    BE_KN_MUL,
    BE_KN_ADD_RES,
    BE_KN_SCALE,
    BE_KN_RMS_SCALE,
    BE_KN_LAYER_SCALE,
    BE_KN_ROPE,
    BE_KN_STAGE_KV, /* keys and values of the tile through the page table, or packed rows */
    BE_KN_QK,
    BE_KN_MASK,
    BE_KN_ONLINE_SOFTMAX,
    BE_KN_PV,
    BE_KN_SPLIT_STORE,
    BE_KN_SPLIT_MERGE,
    BE_KN_BARRIER, /* between a shared write and its read */
    BE_KN_GATHER,
    BE_KN_SOFTCAP,
    BE_KN_POOL,
    BE_KN_ARGMAX,
    BE_KN_SAMPLE,
    BE_KN_STORE, /* a -> output plane imm2; imm: enum be_kact */
    BE_KN_REL,   /* dst: scores; adds the position terms of queries a and keys b */
    BE_KN_UNARY, /* imm: enum be_act_kind, 0xff = run time */
    BE_KN_GATE,  /* dst <- a / (1 + e^-b) */
    BE_KN_COUNT
};
enum be_kunit { BE_KU_ELEM = 1, BE_KU_ROW, BE_KU_HEAD_ROW, BE_KU_BLOCK };
enum be_kaxis { BE_KA_K = 1, BE_KA_SPLIT, BE_KA_TILE, BE_KA_PART, BE_KA_ROWS };
enum be_kred { BE_KR_SLICES = 1, BE_KR_SUM, BE_KR_SUM_SQ, BE_KR_MAX, BE_KR_ARGMAX };
enum be_kmma {
    BE_KM_S8_16832 = 1,
    BE_KM_F16_16816,
    BE_KM_S8_8816,
    BE_KM_F16_1688,
    BE_KM_TF32_1688
};

/* The value dst lies in shared memory: threads other than the writer read it. */
#define BE_KF_SHARED 1

/* dst, a, b: numbers of values, 0 = none. An accumulator (dst of FMA, DP4A, MMA, PV) is
 * zero when the innermost loop around it begins; other nodes overwrite dst. REDUCE: imm2 is the
 * enum be_kaxis folded over, STORE: imm the enum be_kact written, imm2 the output plane (0
 * upwards). Only GRID and LOOP have children. */
struct be_knode {
    uint8_t kind, depth; /* depth: children of a node follow it with depth + 1 */
    uint8_t dst, a, b, flags;
    uint32_t imm, imm2;
};

/* How a device shares the work. shared_bytes: static and dynamic together. */
struct be_ksched {
    uint32_t threads, rows_tile, cols_tile, key_tile, stages, slices, regs, shared_bytes;
};
#define BE_KIR_MAX_NODES 48
struct be_kir {
    char name[64]; /* entry point */
    struct be_kdesc desc;
    struct be_ksched sched;
    uint32_t n_nodes;
    struct be_knode node[BE_KIR_MAX_NODES];
};
const char *be_knode_name(unsigned kind);             /* "LOAD_BLOCK"; "unknown" */
void be_kir_add(struct be_kir *k, struct be_knode n); /* overflow is found by the verifier */
/* Trees well formed, every value written before read, exactly one STORE per output,
 * a BARRIER between a shared write and its read, threads a multiple of 32 and <= 1024, shared bytes
 * within the target's, reductions over declared axes. Says which node and why. */
struct be_ktarget {
    const char *name; /* "sm_75" "sm_80" "metal3" */
    uint32_t max_threads, shared_bytes, regs_per_thread, regs_per_block;
};
extern const struct be_ktarget be_ktarget_sm75, be_ktarget_sm80, be_ktarget_sm90, be_ktarget_metal3;
enum rc be_kir_verify(const struct be_kir *k, const struct be_ktarget *t, struct rc_err *err);

/* Growing text; an allocation failure makes it fail for good (checked once at the end). */
struct be_ktext {
    char *p;
    size_t n, cap;
    bool failed;
};
void be_ktext_add(struct be_ktext *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void be_ktext_deinit(struct be_ktext *t);

struct be_kgrid {
    uint32_t x, y, z, threads, shared_bytes; /* shared_bytes: dynamic */
};
struct be_kentry {
    const char *name; /* entry point, unique over all libraries: "kx_linear_q4_0_mv" */
    const char *lib;  /* library (one .cu, one .metal): "linear_q4_0" */
    struct be_kdesc desc;
    struct be_ksched sched;
    uint32_t args_bytes; /* sizeof of its be_kargs.h struct */
    uint32_t min_arch; /* 75; 80 = needs instructions of sm_80, so lives in the sm80 artifact of its
                          library; 90 = needs those of sm_90 alone (sm90a), see be_kplan_runs_on */
    bool production;   /* false: never picked, only verified */
    /* Launch geometry for these arguments (a host copy of the struct). */
    void (*grid)(const struct be_kentry *, const void *args, struct be_kgrid *out);
};
struct be_kfamily {
    const char *name; /* "linear" "attn" "rows" "tower" */
    uint32_t (*count)(void);
    const struct be_kentry *(*at)(uint32_t i);
    enum rc (*build)(const struct be_kentry *, struct be_kir *out, struct rc_err *err);
    /* Runs the IR; args is the entry's struct with host addresses. Deterministic; the order of sums
     * as in be_kargs.h. */
    enum rc (*run)(const struct be_kir *, const void *args, struct rc_err *err);
    /* Functions all kernels of a library share, once in front of them. */
    enum rc (*cuda_lib)(const char *lib, struct be_ktext *out, struct rc_err *err);
    enum rc (*cuda)(const struct be_kir *, struct be_ktext *out, struct rc_err *err);
    enum rc (*metal_lib)(const char *lib, struct be_ktext *out, struct rc_err *err);
    enum rc (*metal)(const struct be_kir *, struct be_ktext *out, struct rc_err *err);
};
extern const struct be_kfamily be_kfam_linear, be_kfam_attn, be_kfam_rows, be_kfam_tower;
/* NULL-ended. */
extern const struct be_kfamily *const be_kfamilies[];

/* The whole catalog. family: by name, so a copy of an entry with fixed dimensions finds it too. */
const struct be_kentry *be_kcat_find(const char *name);
const struct be_kfamily *be_kcat_family(const struct be_kentry *e);
/* Names, libraries and argument sizes sound; names unique; no two production entries with the same
 * fixed dimensions serve one shape. RC_INTERNAL names the kernel. */
enum rc be_kcat_check(const struct be_kfamily *const *families, struct rc_err *err);

/* Device layout of a weight: up to 4 planes, each [n_rows, plane_row_bytes], each plane 256-byte
 * aligned. Owned by the linear family (be_klayout.c), used by repack, linear and embed kernels. */
struct be_klayout {
    uint32_t n_planes;
    uint32_t row_bytes[4]; /* bytes per matrix row of each plane, a multiple of 16 where the kernels
                              load vectors */
};
/* false: this (type, k) has no device layout. */
bool be_klayout_get(enum be_dtype t, uint32_t k, struct be_klayout *out);

#endif
