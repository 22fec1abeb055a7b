/* be_kargs.h - the words host code and device kernels share.
 *
 * Every kernel takes exactly one of these structs by value; the same text is put in
 * front of each generated library, so this file includes nothing, is plain C, CUDA C
 * and (through be_kmetal) Metal, and holds only fixed-width unsigned, int and float
 * fields and kx_p, a device address. Scalars a kernel needs are here; arrays that change with
 * each step (ids, positions, sequences, page tables) lie in device memory and are
 * pointed to. All matrices are row-major and dense: the row stride is the number of
 * columns. Activation tensors are f32, or f16 when the context computes in f16 (a
 * field *_t says which).
 */
#ifndef INFERD_BE_KARGS_H
#define INFERD_BE_KARGS_H

#ifndef kx_p /* Metal has other words */
#define kx_p unsigned long long
#define kx_u unsigned int
#endif

/* element type of an activation tensor */
#define KX_F32 0u
#define KX_F16 1u

/* Longest sums are taken in KX_SLICES interleaved parts, whatever the kernel:
 * block b of a row (a quantization block, or KX_CHUNK float columns) belongs to
 * slice b % KX_SLICES; a slice adds its blocks in ascending order; the slices are
 * folded as a butterfly: s[i] += s[i ^ 4], then ^ 2, then ^ 1. That order is the equality
 * contract: mat-vec, small batch and mat-mat give the same bits. */
#define KX_SLICES 8u
#define KX_CHUNK 8u
/* Attention takes its keys in splits of KX_SPLIT positions, aligned at position 0
 * (at the sequence's first row where there is no cache), each from a fresh (m, l, a);
 * splits are folded in ascending order. A split goes through its keys in
 * tiles whose size depends on head_dim and arithmetic only. A masked tile or split is an exact
 * no-op. */
#define KX_SPLIT 256u

/* epilogues of a linear (values of enum be_epi) */
#define KX_EPI_NONE 0u
#define KX_EPI_GELU_ERF 1u
#define KX_EPI_GELU_TANH 2u
#define KX_EPI_ADD 3u
#define KX_EPI_GEGLU 4u

/* Activation rows as int8: enc Q8_0 one scale per 32, enc Q8_K one per 256.
 *   xq int8 [n, k]; xd f32 [n, k / 32 or k / 256]; xs int32 [n, k / 32], the sum of
 *   the codes of each 32 columns (both encodings). */
#define KX_ENC_Q8_0 0u
#define KX_ENC_Q8_K 1u
struct kx_quant {
    kx_p x, xq, xd, xs;
    kx_u x_t, enc, n, k;
};

/* out_i = epilogue(x W_i^T + b_i). w[i][*]: planes of part i (be_klayout). Float
 * formats read x, quantized ones xq xd xs. b[i] f32 or 0. Mat-vec kernels (n 1) know two things
 * more: without xq, quantized ones make the int8 form of x themselves; mul not 0, of one part:
 * out_0 times (mul_scale * mul[column]), after it was rounded to out_t. */
struct kx_linear {
    kx_p x, xq, xd, xs;
    kx_p w[3][4];
    kx_p b[3];
    kx_p out[3];
    kx_u n_out[3];
    kx_u n, k, n_parts, epi, x_t, out_t;
    kx_p mul;
    kx_u mul_t;
    float mul_scale;
};

#ifndef __METAL_VERSION__
#ifdef __CUDACC__
#define KX_ALIGN64 __align__(64)
#else
#define KX_ALIGN64 __attribute__((aligned(64)))
#endif
/* A matrix of halves [rows, k] for copies by the device's own engine (the driver's CUtensorMap):
 * boxes of 64 columns in the 128-byte swizzle; what lies outside reads as zero. */
struct KX_ALIGN64 kx_tmap {
    kx_p v[16];
};
/* kx_linear with maps of x (boxes of 128 rows) and of each part's weight (256 rows). */
struct kx_linear_wg {
    struct kx_linear a;
    struct kx_tmap x, w[3];
};
#endif

/* The file's blocks [n_rows, k] to planes; src raw bytes of whole rows, row0 the
 * first row's index in the matrix, dst[*] the planes of the whole matrix. */
struct kx_repack {
    kx_p src, dst[4];
    kx_u row0, n_rows, k, pad;
};

/* out[r] = scale * table[ids[r]] (+ out[r]); table as the file has it (raw blocks or
 * floats; embedding tables keep their own raw copy unless planes[] serve: see
 * be_klayout); planes of the weight. */
struct kx_embed {
    kx_p w[4];
    kx_p ids; /* int32 [n] */
    kx_p out;
    kx_u n, k, out_t, accumulate;
    float scale;
};

struct kx_norm {            /* rms (b = 0, add after) and layer norm (add before): see be.h */
    kx_p x, add, w, b, out; /* add 0 = none; out may be x or add, and 0 when xq is set */
    kx_u n, k, x_t, add_t, out_t;
    float eps;
    /* not 0 (rms only): also the row as int8, with enc: what kx_quant makes of a row of type out_t
     */
    kx_p xq, xd, xs;
    kx_u enc;
    float scale; /* not 0 (rms only): out times this, after it was rounded to out_t */
    /* w2 not 0 (rms, k at most KX_NORM_TWICE): out2 is the norm of out with weights w2, and the
     * row whose int8 form is wanted */
    kx_p w2, out2;
    kx_u out2_t;
    float eps2;
};
#define KX_NORM_TWICE 8192u

struct kx_rope {
    kx_p x;    /* [n, n_heads, head_dim], in place */
    kx_p pos;  /* int32 [n] */
    kx_p w;    /* f32 [head_dim] or 0 */
    kx_p freq; /* f64 [head_dim / 2]: theta^(-2i/head_dim) / factor, made by the host in f32
                  as be_cpu makes it, then widened; 0 = norm only. The angle pos * freq is rounded
                  to f32, as references have it */
    kx_u n, n_heads, head_dim, x_t; /* head_dim <= KX_ROPE_HEAD */
    float eps;
    kx_u pad;
};
#define KX_ROPE_HEAD 512u

/* Key/value cache of one layer. Address of (page, head, slot): base + page *
 * page_stride + (head * page_tokens + slot) * row bytes; row = head_dim values of f32
 * or f16, or for q8_0 head_dim codes, with the scales (half, one per 32) at base +
 * page * page_stride + scales_at + ((head * page_tokens + slot) * head_dim / 32) * 2. */
struct kx_kv {
    kx_p k, v;
    kx_p page_stride;
    kx_u scales_at, dtype; /* enum be_dtype: F32 0, F16 1, Q8_0 8 */
    kx_u page_tokens, n_kv_heads, head_dim, pad;
};
/* A sequence's rows of this pass, in device memory. The page of position p is
 * pages[page0 + p / page_tokens], or -1 = let go (never read). */
struct kx_seq {
    kx_u row0, n_rows, pos0, page0;
};
struct kx_kv_write {
    struct kx_kv kv;
    kx_p k, v; /* [n, n_kv_heads * head_dim] */
    kx_p seqs, pages;
    kx_p row_seq; /* uint32 [n]: the sequence of each row */
    kx_u n, x_t;
};
/* Rope of q and of k, then kv_write of k and v, in one launch. q and k share n, pos, freq (both or
 * neither 0) and head_dim; w.k is k.x, w.n is n. v.x not 0: also the norm of v's heads (freq 0, as
 * many and as long as k's), w.v is v.x. */
struct kx_rope_kv {
    struct kx_rope q, k, v;
    struct kx_kv_write w;
};

/* A query tile: rows r0 .. r0 + n - 1 (of the batch) of sequence seq, n <= the kernel's rows. */
struct kx_qtile {
    kx_u seq, r0, n, pad;
};
/* Paged causal attention. Split kernels write m, l f32 [n_rows, n_heads, n_splits] and a f32
 * [n_rows, n_heads, n_splits, head_dim]; the merge kernel folds splits 0..n_splits-1 (those a
 * row cannot see hold m = -inf, l = 0 and are exact no-ops; the merge never reads their a).
 * n_splits 1: split kernels write out themselves, part_* is not touched and nothing is merged.
 * One-pass kernels fold inside and write out, with the same bits; between two splits of a
 * row its sums lie in out (x_t f32) or in part_a, then f32 [n_rows, n_heads, head_dim] (x_t f16,
 * any content). n_rows counts the tiles' rows, tiles at most n_rows. */
struct kx_attn {
    struct kx_kv kv;
    kx_p q, out;
    kx_p seqs, pages, tiles;
    kx_p part_m, part_l, part_a;
    kx_u n_tiles, n_rows, n_heads, n_splits;
    kx_u window, x_t;
    float scale;
    kx_u pad;
};
/* Packed attention (no cache). off uint32 [n_seqs + 1]; tiles as above. radius -1 = all. Keys are
 * taken in tiles from the sequence's first row, without splits. Kernels for one head_dim want q, k,
 * v at multiples of 16 bytes, row by row. */
struct kx_attn_packed {
    kx_p q, k, v, out, off, tiles;
    kx_u n_tiles, n_seqs, n_heads, n_kv_heads, head_dim, x_t;
    /* columns between two rows of q, k, v: lets them lie in one packed tensor */
    kx_u q_stride, kv_stride;
    float scale;
    int radius;
};

/* The same with relative positions (be.h, be_attention_rel). rk, rq [n_rel, rel_stride], of the type
 * of q, each 0 or not; rel uint32 [2 * reach + 1]. n_kv_heads is n_heads, radius -1. */
struct kx_attn_rel {
    struct kx_attn_packed p;
    kx_p rk, rq, rel;
    kx_u reach, rel_stride;
};

struct kx_gather {
    kx_p x, rows, out; /* rows int32 [n] */
    kx_u n, k, t, pad;
};
struct kx_softcap {
    kx_p x;
    kx_u n, k, t;
    float cap;
};
/* x[r][c] *= scale * y[r][y_col + c], y of y_k columns; y 0: x *= scale */
struct kx_scale {
    kx_p x, y;
    kx_u n, k, x_t, y_t, y_k, y_col;
    float scale;
    kx_u pad;
};
struct kx_pool {
    kx_p x, off, out; /* off uint32 [n_seqs + 1]; kind: enum be_pool */
    kx_u n_seqs, k, x_t, kind, out_t, pad;
};
/* Two launches with the same arguments: kx_argmax_part cuts each row into parts equal pieces
 * and writes part, kx_argmax reads it and writes out. */
struct kx_best {
    float v;
    int i; /* 0x7fffffff: none, all are NaN */
};
struct kx_argmax {
    kx_p x, out; /* int32 [n] */
    kx_u n, k, x_t, pad;
    kx_p part;        /* scratch: kx_best [n, parts] */
    kx_u parts, pad2; /* at least 1; KX_ARGMAX_PARTS(k) is a good number */
};
#define KX_ARGMAX_PARTS(k) (((k) + 2047u) / 2048u)
/* One row's sampling, made by the host (meaning of the fields: be.h, be_sample). */
struct kx_sample_row {
    float inv_temperature;        /* 0: the largest wins (temperature 0) */
    float top_p, min_p, u;        /* u in [0, 1): the row's one draw */
    kx_u top_k, pad0, pad1, pad2; /* 0 = all; above KX_SAMPLE_TOP the host is asked */
};
#define KX_SAMPLE_TOP 1024u
/* Two launches with the same arguments: kx_sample_part takes each row in pieces of KX_SAMPLE_SPAN
 * columns and writes scratch (kx_piece [pieces], then kx_best [pieces, KX_SAMPLE_LIST]: the best
 * of each piece, best first), kx_sample draws. */
struct kx_piece {
    float max;
    int arg;   /* where, lowest index */
    float sum; /* of e^((x - max) / temperature); only where no top_k is asked for */
    kx_u bad;  /* not all values are finite */
};
struct kx_sample {
    kx_p x, rows, out, scratch; /* rows: kx_sample_row [n]; out int32 [n], -1 = ask the host */
    kx_u n, k, x_t, pad;
    kx_p
        scratch_row; /* bytes of scratch per row, a multiple of 16: at least KX_SAMPLE_SCRATCH(k) */
};
#define KX_SAMPLE_SPAN(k) ((k) <= 262144u ? 1024u : (k) <= 524288u ? 2048u : 4096u)
#define KX_SAMPLE_PIECES(k) (((k) + KX_SAMPLE_SPAN(k) - 1u) / KX_SAMPLE_SPAN(k))
#define KX_SAMPLE_LIST(k) \
    (KX_SAMPLE_PIECES(k) <= 64u ? 1024u : KX_SAMPLE_PIECES(k) <= 128u ? 512u : 256u)
#define KX_SAMPLE_SCRATCH(k) (KX_SAMPLE_PIECES(k) * (16u + KX_SAMPLE_LIST(k) * 8u))
#define KX_SAMPLE_COLS 1048576u /* of longer rows every answer is -1 */
struct kx_convert {             /* f32 <-> f16, n elements */
    kx_p src, dst;
    kx_p n;
    kx_u from_t, to_t;
};
struct kx_mul { /* out[i] = x[i] * y[i], n elements; out may be an input of its type */
    kx_p x, y, out;
    kx_p n;
    kx_u x_t, y_t, out_t, pad;
};

#endif
