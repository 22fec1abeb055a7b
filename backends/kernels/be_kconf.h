/* be_kconf.h - the conformance runner: is a kernel right on this device?
 *
 * For every catalog entry it makes inputs at the edges of its descriptor (smallest,
 * tails, one less and one more than a tile, several sequences and pages) in several kinds
 * (random, zero, one-hot, -0, denormal, huge, NaN and infinity, extreme block scales, saturated
 * codes), runs the CPU executor of the IR as oracle and the kernel on the device,
 * and compares. Asked of every launch: the outputs within the kernel's tolerance (0 = the
 * same bits, see be_kconf_tol), every element of an output written, no byte beside an output and no
 * input changed, two launches equal. A changed input element changes its own row only.
 *
 * The device is a table of callbacks (struct be_kconf_dev): be_kconf_cuda.c gives one
 * for the CUDA driver (or the tests' emulated one), the JIT gives one around the function
 * it has just compiled. Nothing here is used while a model runs.
 * Tests: tests/backends/test_be_kconf*.c
 */
#ifndef INFERD_BE_KCONF_H
#define INFERD_BE_KCONF_H

#include "be_kir.h"

struct be_kconf_dev {
    void *user;
    const char *name; /* "NVIDIA H200 (sm_90)" */
    uint32_t arch;    /* entries that need more are skipped, and counted as skipped */
    /* Memory of the device, 256-byte aligned; addresses as they stand in kernel arguments. */
    enum rc (*alloc)(void *user, size_t n, uint64_t *out, struct rc_err *err);
    void (*free)(void *user, uint64_t at);
    enum rc (*upload)(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err);
    enum rc (*download)(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err);
    /* Runs the entry's kernel and waits for its end. args: the entry's struct with addresses of
     * the device. RC_UNSUPPORTED: this device has no such kernel (skipped, err says why); other
     * errors fail the case, RC_INTERNAL ends the run (the device is lost). */
    enum rc (*launch)(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                      const void *args, size_t n_bytes, struct rc_err *err);
};

enum be_kconf_level {
    BE_KCONF_QUICK, /* few small cases: unit tests, the check of a run-time compiled kernel */
    BE_KCONF_FULL
};
struct be_kconf_opts {
    const struct be_kconf_dev *dev;
    enum be_kconf_level level;
    const char *only;                         /* part of a kernel's or library's name; NULL = all */
    const struct be_kfamily *const *families; /* NULL = be_kfamilies */
    uint64_t seed;                            /* 0 = 1 */
    void (*line)(void *user, const char *text); /* a line per kernel as it ends; NULL = none */
    void *user;
};

/* How far a kernel may be from the oracle: |x - ref| <= abs + rel * (largest |ref| of the output).
 * 0 and 0: the same bits (any NaN equals any NaN). why: one sentence. */
struct be_kconf_tol {
    double abs, rel;
    const char *why;
};
struct be_kconf_tol be_kconf_tol_get(const struct be_kdesc *d);

struct be_kconf_row {
    const struct be_kentry *entry;
    uint32_t n_cases, n_failed;
    double max_abs, max_rel; /* over all finite elements; rel to the largest |ref| of the output */
    bool skipped;
    char why[512]; /* first failure, or why skipped */
};
struct be_kconf_report {
    char device[128];
    uint32_t n_kernels, n_passed, n_failed, n_skipped;
    uint64_t n_cases, n_cases_passed;
    struct be_kconf_row *rows; /* [n_kernels] */
};

/* RC_OK also when kernels failed (the report says); other codes: no memory, lost device. */
enum rc be_kconf_run(const struct be_kconf_opts *o, struct be_kconf_report *out,
                     struct rc_err *err);
void be_kconf_report_deinit(struct be_kconf_report *r);
/* "122/122 kernels, 5043/5043 cases" with ", 3 skipped" when some were; n of the whole
 * catalog, so a skipped kernel keeps the two numbers apart. */
void be_kconf_summary(const struct be_kconf_report *r, char *buf, size_t cap);
/* The report as a page: docs/kernel-conformance.md. Caller frees; NULL = no memory. */
char *be_kconf_markdown(const struct be_kconf_report *r);

/* One entry, whose dimensions may be fixed, on a few cases (the JIT's check). RC_OK: it is
 * right, with the largest differences seen. RC_FORMAT: it is wrong, err says where. */
enum rc be_kconf_check(const struct be_kentry *e, const struct be_kconf_dev *dev, double *out_abs,
                       double *out_rel, struct rc_err *err);

/* The CUDA driver as a device, with the embedded artifacts (PTX) as kernels; dev's callbacks
 * stand on *out. arch: artifacts for at most this one, 0 = the device's own (75 on a newer
 * device checks the text for older ones). Errors: those of be_cuda_drv_open, be_kart_verify. */
struct be_kconf_cuda;
enum rc be_kconf_cuda_open(struct be_kconf_cuda **out, int device, uint32_t arch,
                           struct be_kconf_dev *dev, struct rc_err *err);
void be_kconf_cuda_close(struct be_kconf_cuda **c);

#endif
