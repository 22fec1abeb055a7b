/* be_kdesc.h - what a kernel computes, in canonical form.
 *
 * A descriptor says which operation, formats, shape ranges and numerics a kernel
 * serves - never how (that is the schedule, be_kir.h). It is plain data, zero-filled,
 * without pointers and floats. be_kdesc_bytes writes it field by field as
 * tag u8, length u8, value little endian, tags ascending; its SHA-256 is the id that
 * artifacts, manifests and caches use. Source: engine.md 1.5, 1.7.
 * Tests: tests/backends/test_be_kdesc.c
 */
#ifndef INFERD_BE_KDESC_H
#define INFERD_BE_KDESC_H

#include "be.h"

enum be_kop {
    BE_KOP_QUANT = 1,
    BE_KOP_REPACK,
    BE_KOP_LINEAR,
    BE_KOP_EMBED,
    BE_KOP_RMS_NORM,
    BE_KOP_LAYER_NORM,
    BE_KOP_ROPE,
    BE_KOP_KV_WRITE,
    BE_KOP_ATTN,
    BE_KOP_ATTN_MERGE,
    BE_KOP_ATTN_PACKED,
    BE_KOP_GATHER,
    BE_KOP_SOFTCAP,
    BE_KOP_POOL,
    BE_KOP_ARGMAX,
    BE_KOP_SAMPLE,
    BE_KOP_CONVERT,
    BE_KOP_ARGMAX_PART, /* first launch of ARGMAX */
    BE_KOP_SAMPLE_PART, /* first launch of SAMPLE */
    BE_KOP_MUL,         /* of two tensors, element by element */
    BE_KOP_SCALE,
    BE_KOP_ATTN_REL, /* packed, with relative positions */
    /* of eyes and ears */
    BE_KOP_ACT,
    BE_KOP_GLU,
    BE_KOP_AFFINE,
    BE_KOP_ROPE2D,
    BE_KOP_UNFOLD,
    BE_KOP_CONV1D,
    BE_KOP_ATTN_LOCAL, /* over the last rows */
};
enum be_krows { BE_KROWS_ANY, BE_KROWS_1, BE_KROWS_2_8, BE_KROWS_9_64, BE_KROWS_65 };
enum be_kact { BE_KACT_F32, BE_KACT_F16, BE_KACT_Q8_0, BE_KACT_Q8_K, BE_KACT_ANY };
enum be_kmask {
    BE_KMASK_NONE,
    BE_KMASK_CAUSAL,
    BE_KMASK_CAUSAL_WINDOW,
    BE_KMASK_BIDI,
    BE_KMASK_BIDI_WINDOW
};
/* FAST: f16 products, f32 sums; TF32: products of f32 rounded to tf32, f32 sums */
enum be_knum { BE_KNUM_EXACT, BE_KNUM_FAST, BE_KNUM_TF32, BE_KNUM_COUNT };
enum be_kphase { BE_KPHASE_NONE, BE_KPHASE_ONE_PASS, BE_KPHASE_SPLIT };

/* Values a dimension may take; fixed 1: min = max is compiled in as a constant. max 0 = no such
 * dimension. */
struct be_kdim {
    uint32_t min, max, mult;
    uint32_t fixed;
};

#define BE_KDESC_SCHEMA 1
struct be_kdesc {
    uint8_t op, wfmt, act, epi, out, rows_class, mask, kv_paged, kv_dtype, softcap, numerics, phase;
    /* wfmt, kv_dtype: enum be_dtype; epi: 0xff any of NONE GELU_ERF GELU_TANH ADD at run time,
     * else one enum be_epi; out: enum be_kact */
    struct be_kdim rows, k, n, head_dim, q_heads, kv_heads, seq;
};

#define BE_KDESC_MAX_BYTES 512
/* Canonical bytes into buf; returns their number. */
size_t be_kdesc_bytes(const struct be_kdesc *d, uint8_t buf[BE_KDESC_MAX_BYTES]);
/* 64 lower-case hex digits and NUL. */
void be_kdesc_id(const struct be_kdesc *d, char out[65]);
/* Two catalog entries may not both serve a shape: do the ranges of a and b meet,
 * with all other fields equal? */
bool be_kdesc_overlaps(const struct be_kdesc *a, const struct be_kdesc *b);

/* SHA-256 (libsodium's) of bytes as hex, for the manifest. */
void be_khash_hex(const void *p, size_t n, char out[65]);

#endif
