/* mdl_file.h - checked views of weight files.
 *
 * Maps safetensors (one file, or shards named by model.safetensors.index.json),
 * GGUF (v2, v3) and state dicts of torch.save read-only and hands out tensors that
 * are known to lie inside the mapping. Nothing in a file is trusted: counts, lengths, offsets,
 * shapes, overlaps, block types are checked before use, without overflow; quantized scales are
 * checked to be finite when a tensor is taken for use. Never writes, never follows a path out of
 * its root descriptor (openat2 RESOLVE_BENEATH: links inside the directory only). Neither logs nor
 * exits. Files that shrink while mapped: mdl_file_guard notices before a batch (RC_WEIGHT_IO); a
 * SIGBUS in the middle of one kills the worker alone. Tests: tests/models/test_mdl_*.c, fuzz:
 * tests/fuzz/fuzz_{gguf,safetensors,torch}.c
 */
#ifndef INFERD_MDL_FILE_H
#define INFERD_MDL_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "be.h"
#include "rc.h"

#define MDL_MAX_TENSORS 65536
#define MDL_MAX_DIMS 4

/* SAFETENSORS: any whose numbers stand in a config.json beside; pytorch_model.bin too. */
enum mdl_format { MDL_GGUF, MDL_SAFETENSORS };

/* dims are in row-major order, outermost first, for both formats (GGUF's are
 * reversed on reading): a linear weight is {n_out, n_in}. */
struct mdl_tensor {
    const char *name;
    enum be_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[MDL_MAX_DIMS];
    const void *data; /* inside the mapping, dtype-aligned as the file has it */
    uint64_t n_bytes;
};

struct mdl_file;

/* Opens the model at root_fd: a GGUF file, or a directory holding
 * model.safetensors | model.safetensors.index.json | exactly one *.gguf |
 * pytorch_model.bin.
 * root_fd is borrowed. Errors: RC_FORMAT, RC_UNSUPPORTED (version, type: named),
 * RC_NOT_FOUND (no weights there; says what was looked for), RC_IO, RC_NOMEM. */
enum rc mdl_file_open(struct mdl_file **out, int root_fd, struct rc_err *err);
void mdl_file_close(struct mdl_file **f);
/* Another file of weights below root_fd joins f: its tensors are called prefix + their own name.
 * By the name's end safetensors (".safetensors") or a state dict of torch.save. Pointers to
 * tensors of f got before are good no longer. Errors: those of opening; RC_NOT_FOUND when it is
 * not there, f is as it was then and only then. */
enum rc mdl_file_beside(struct mdl_file *f, int root_fd, const char *name, const char *prefix,
                        struct rc_err *err);

/* The same from memory, for fuzzers and tests; data stays borrowed. */
enum rc mdl_gguf_parse(struct mdl_file **out, const void *data, size_t n_bytes, struct rc_err *err);
enum rc mdl_safetensors_parse(struct mdl_file **out, const void *data, size_t n_bytes,
                              struct rc_err *err);

enum rc mdl_torch_parse(struct mdl_file **out, const void *data, size_t n_bytes,
                        struct rc_err *err);

enum mdl_format mdl_file_format(const struct mdl_file *f);
size_t mdl_file_n_tensors(const struct mdl_file *f);
const struct mdl_tensor *mdl_file_tensor(const struct mdl_file *f, size_t i);
/* NULL when absent. O(1). */
const struct mdl_tensor *mdl_file_find(const struct mdl_file *f, const char *name);
/* A tensor that must be there with this shape (dims[n_dims], outermost first).
 * Also checks the block scales are finite (quantized) or the values finite
 * (F32/F16/BF16). Errors: RC_WEIGHT_ABSENT (err->what = name), RC_FORMAT with
 * "tensor 'x': shape [a,b], expected [c,d]", RC_UNSUPPORTED for a dtype no kernel
 * reads (such tensors are not found by mdl_file_find) or misaligned data. */
enum rc mdl_file_take(const struct mdl_file *f, const char *name, uint32_t n_dims,
                      const uint64_t *dims, const struct mdl_tensor **out, struct rc_err *err);
/* n integers of a tensor of I64 or I32 (which mdl_file_find does not find), each in
 * 0..limit-1; out [n]. Safetensors only. Errors: RC_WEIGHT_ABSENT, RC_FORMAT (count, range). */
enum rc mdl_file_ints(const struct mdl_file *f, const char *name, uint64_t n, int64_t limit,
                      int32_t *out, struct rc_err *err);
/* Total bytes of tensor data. */
uint64_t mdl_file_bytes(const struct mdl_file *f);
/* The i-th file behind the model, whole, in the order they were opened; false when there are not
 * that many. name is what it is called below the root. */
bool mdl_file_map(const struct mdl_file *f, size_t i, const char **name, const uint8_t **data,
                  size_t *n_bytes);
/* Tells the kernel the bytes of this tensor will not be read again (its weight
 * was repacked). */
void mdl_file_drop(const struct mdl_file *f, const struct mdl_tensor *t);

/* Re-checks that every mapped file is as it was. Called before a batch, and where vectors carry an
 * identity behind it; RC_WEIGHT_IO when one has shrunk or was written to. */
enum rc mdl_file_guard(const struct mdl_file *f, struct rc_err *err);

/* ------------------------------------------------------------ GGUF metadata
 * false / NULL when the key is absent or of another kind. Integers of any GGUF
 * width convert when the value fits. Strings are not NUL-terminated. */
bool mdl_gguf_u64(const struct mdl_file *f, const char *key, uint64_t *out);
bool mdl_gguf_f64(const struct mdl_file *f, const char *key, double *out);
bool mdl_gguf_bool(const struct mdl_file *f, const char *key, bool *out);
bool mdl_gguf_str(const struct mdl_file *f, const char *key, const char **s, size_t *n_bytes);
/* Arrays: element count, then elements. */
bool mdl_gguf_arr(const struct mdl_file *f, const char *key, size_t *n);
bool mdl_gguf_arr_str(const struct mdl_file *f, const char *key, size_t i, const char **s,
                      size_t *n_bytes); /* O(1) amortised in order */
bool mdl_gguf_arr_f64(const struct mdl_file *f, const char *key, size_t i, double *out);
bool mdl_gguf_arr_u64(const struct mdl_file *f, const char *key, size_t i, uint64_t *out);

/* ------------------------------------------------------------- side files
 * Reads name below the root directory whole (NUL added behind). RC_NOT_FOUND
 * when absent or the root is a single file; RC_TOO_LARGE over max_bytes.
 * Caller frees *out. */
enum rc mdl_side_read(int root_fd, const char *name, size_t max_bytes, char **out, size_t *n_bytes,
                      struct rc_err *err);

#endif
