/* be_kgen.h - writing and checking the artifact set on disk.
 *
 * The program kgen is a thin main around these; tests call them on a copy of the set.
 * Neither prints: lines go to `say`. Tests: tests/backends/test_be_kgen.c
 */
#ifndef INFERD_BE_KGEN_H
#define INFERD_BE_KGEN_H

#include "be_kir.h"

/* The compiler all checked-in PTX comes from. */
#define BE_KGEN_COMPILER "NVRTC 12.4.127"

struct be_kgen {
    const char *root; /* a backends/kernels folder */
    const struct be_kfamily *const *families;
    const char *nvrtc; /* libnvrtc.so.12 to load, or NULL: none (write fails when PTX is stale) */
    bool any_compiler; /* accept a version other than BE_KGEN_COMPILER */
    void (*say)(void *user, const char *line); /* without newline */
    void *user;
};
/* Remakes all texts and the manifest in memory and compares bytes. One line per stale, missing
 * or extra file. RC_OK: nothing to say; RC_CONFLICT: *out_bad lines were said. No compiler needed:
 * PTX is checked by the hash of the source it was made from and, in the manifest, of itself. */
enum rc be_kgen_check(const struct be_kgen *g, uint32_t *out_bad, struct rc_err *err);
/* Writes what differs, compiles PTX whose source, options or compiler changed, deletes artifacts
 * of libraries that are gone, then the manifest. A library that cannot be made is said; the others
 * are still written, but then nothing is deleted and the manifest stays. */
enum rc be_kgen_write(const struct be_kgen *g, struct rc_err *err);

/* What NVRTC wrote, appended without what only readers need and with short names (be_kptx.c). */
void be_kptx_add(struct be_ktext *out, const char *ptx);

/* ---- NVRTC, opened at run time */
struct be_knvrtc;
enum rc be_knvrtc_open(struct be_knvrtc **out, const char *path, struct rc_err *err);
void be_knvrtc_close(struct be_knvrtc **n);
const char *be_knvrtc_version(const struct be_knvrtc *n); /* "NVRTC 12.4.127" */
/* *out malloc'ed, NUL-terminated. The compiler's log is in the error. */
enum rc be_knvrtc_compile(struct be_knvrtc *n, const char *name, const char *src,
                          const char *const *opts, int n_opts, char **out, size_t *out_n,
                          struct rc_err *err);

#endif
