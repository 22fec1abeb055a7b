/* be_cuda_lt.c - cuBLASLt through dlopen: pinned plans, one call per product.
 *
 * Numbers are cuBLASLt's ABI (cublasLt.h of 12.4; the same since 11). Row-major
 * out = x W^T is column-major D = A^T B with A = W (k x n_out, ld k), B = x (k x n, ld k) and
 * D (n_out x n, ld n_out), so the bias lies along D's rows as the epilogue wants.
 *
 * Always true: a plan's algorithm has split-K 1 and no reduction scheme, and was
 * checked for the row counts in check_rows. Tests: tests/backends/test_be_cuda_lt.c
 */
#include "be_cuda_lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define R_16F 2
#define R_32F 0
#define COMPUTE_32F 68
#define OP_T 1
#define DESC_TRANSA 3
#define DESC_EPILOGUE 7
#define DESC_BIAS_POINTER 8
#define EPILOGUE_DEFAULT 1u
#define EPILOGUE_BIAS 4u
#define LAYOUT_COLS 3
#define PREF_WORKSPACE 1
#define PREF_REDUCTION_MASK 3
#define ALGO_SPLITK 2
#define ALGO_REDUCTION 3
#define STATUS_NO_ALGORITHM 15
#define MAX_PLANS 64
#define MAX_CANDIDATES 8

struct lt_algo {
    uint64_t data[8];
};
struct lt_result {
    struct lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

#define LT_MAP(X)                                                                               \
    X(create, "cublasLtCreate", (void **))                                                      \
    X(destroy, "cublasLtDestroy", (void *))                                                     \
    X(desc_new, "cublasLtMatmulDescCreate", (void **, int, int))                                \
    X(desc_free, "cublasLtMatmulDescDestroy", (void *))                                         \
    X(desc_set, "cublasLtMatmulDescSetAttribute", (void *, int, const void *, size_t))          \
    X(layout_new, "cublasLtMatrixLayoutCreate", (void **, int, uint64_t, uint64_t, int64_t))    \
    X(layout_free, "cublasLtMatrixLayoutDestroy", (void *))                                     \
    X(layout_set, "cublasLtMatrixLayoutSetAttribute", (void *, int, const void *, size_t))      \
    X(pref_new, "cublasLtMatmulPreferenceCreate", (void **))                                    \
    X(pref_free, "cublasLtMatmulPreferenceDestroy", (void *))                                   \
    X(pref_set, "cublasLtMatmulPreferenceSetAttribute", (void *, int, const void *, size_t))    \
    X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                              \
      (void *, void *, void *, void *, void *, void *, void *, int, struct lt_result *, int *)) \
    X(algo_get, "cublasLtMatmulAlgoConfigGetAttribute",                                         \
      (const struct lt_algo *, int, void *, size_t, size_t *))                                  \
    X(algo_check, "cublasLtMatmulAlgoCheck",                                                    \
      (void *, void *, void *, void *, void *, void *, const struct lt_algo *,                  \
       struct lt_result *))                                                                     \
    X(matmul, "cublasLtMatmul",                                                                 \
      (void *, void *, const void *, const void *, void *, const void *, void *, const void *,  \
       const void *, void *, void *, void *, const struct lt_algo *, void *, size_t, cu_stream))

struct be_cuda_lt_plan {
    uint32_t k, n_out, max_rows;
    bool bias, add;
    void *desc, *w, *x, *d; /* x and d are set to the row count of each call */
    struct lt_algo algo;
};

struct be_cuda_lt {
    void *lib, *handle;
    char name[96];
#define X(n, sym, args) int(*n) args;
    LT_MAP(X)
#undef X
    struct be_cuda_lt_plan plan[MAX_PLANS];
    uint32_t n_plans;
};

static void *open_lib(char *name, size_t cap)
{
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so.11"};
    const char *given = getenv("INFERD_CUBLASLT_LIBRARY");
    void *lib;

    if (given) {
        snprintf(name, cap, "%s", given);
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
        if ((lib = dlopen(files[i], RTLD_NOW | RTLD_LOCAL))) {
            snprintf(name, cap, "%s", files[i]);
            return lib;
        }
    snprintf(name, cap, "libcublasLt.so.13, .12, .11");
    return NULL;
}

static enum rc status(int code, const char *doing, struct rc_err *err)
{
    if (code == 0)
        return RC_OK;
    return rc_fail(err, code == 3 ? RC_NOMEM : RC_INTERNAL, "cuBLASLt: %s: status %d", doing, code);
}

enum rc be_cuda_lt_open(struct be_cuda_lt **out, struct rc_err *err)
{
    struct be_cuda_lt *lt = calloc(1, sizeof(*lt));
    size_t (*version)(void);
    char file[64];
    enum rc rc;

    if (!lt)
        return rc_fail(err, RC_NOMEM, "cuBLASLt: out of memory");
    if (!(lt->lib = open_lib(file, sizeof(file)))) {
        be_cuda_lt_close(&lt);
        return rc_fail(err, RC_NOT_FOUND,
                       "cuBLASLt not found (%s): dense f16 products use our own kernels", file);
    }
#define X(n, sym, args)                                                                \
    if (!(*(void **)&lt->n = dlsym(lt->lib, sym))) {                                   \
        be_cuda_lt_close(&lt);                                                         \
        return rc_fail(err, RC_UNSUPPORTED, "cuBLASLt (%s): no symbol %s", file, sym); \
    }
    LT_MAP(X)
#undef X
    if ((rc = status(lt->create(&lt->handle), "making a handle", err)) != RC_OK) {
        be_cuda_lt_close(&lt);
        return rc;
    }
    *(void **)&version = dlsym(lt->lib, "cublasLtGetVersion");
    snprintf(lt->name, sizeof(lt->name), "cuBLASLt %zu (%s)", version ? version() : 0, file);
    *out = lt;
    return RC_OK;
}

static void plan_deinit(struct be_cuda_lt *lt, struct be_cuda_lt_plan *p)
{
    if (p->desc)
        lt->desc_free(p->desc);
    if (p->w)
        lt->layout_free(p->w);
    if (p->x)
        lt->layout_free(p->x);
    if (p->d)
        lt->layout_free(p->d);
    memset(p, 0, sizeof(*p));
}

void be_cuda_lt_close(struct be_cuda_lt **ltp)
{
    struct be_cuda_lt *lt = *ltp;

    if (!lt)
        return;
    while (lt->n_plans > 0)
        plan_deinit(lt, &lt->plan[--lt->n_plans]);
    if (lt->handle)
        lt->destroy(lt->handle);
    if (lt->lib)
        dlclose(lt->lib);
    free(lt);
    *ltp = NULL;
}

const char *be_cuda_lt_name(const struct be_cuda_lt *lt)
{
    return lt->name;
}

static enum rc set_rows(struct be_cuda_lt *lt, const struct be_cuda_lt_plan *p, uint32_t n,
                        struct rc_err *err)
{
    uint64_t cols = n;
    enum rc rc;

    if ((rc = status(lt->layout_set(p->x, LAYOUT_COLS, &cols, sizeof(cols)), "setting rows",
                     err)) != RC_OK)
        return rc;
    return status(lt->layout_set(p->d, LAYOUT_COLS, &cols, sizeof(cols)), "setting rows", err);
}

static enum rc describe(struct be_cuda_lt *lt, struct be_cuda_lt_plan *p, struct rc_err *err)
{
    int32_t op = OP_T;
    uint32_t epi = p->bias ? EPILOGUE_BIAS : EPILOGUE_DEFAULT;
    enum rc rc;

    if ((rc = status(lt->desc_new(&p->desc, COMPUTE_32F, R_32F), "a description", err)) != RC_OK ||
        (rc = status(lt->desc_set(p->desc, DESC_TRANSA, &op, sizeof(op)), "transposing", err)) !=
            RC_OK ||
        (rc = status(lt->desc_set(p->desc, DESC_EPILOGUE, &epi, sizeof(epi)), "the epilogue",
                     err)) != RC_OK ||
        (rc = status(lt->layout_new(&p->w, R_16F, p->k, p->n_out, p->k), "a layout", err)) !=
            RC_OK ||
        (rc = status(lt->layout_new(&p->x, R_16F, p->k, p->max_rows, p->k), "a layout", err)) !=
            RC_OK)
        return rc;
    return status(lt->layout_new(&p->d, R_16F, p->n_out, p->max_rows, p->n_out), "a layout", err);
}

/* One sum per element, in the order of k: nothing split, nothing reduced afterwards. */
static bool keeps_contract(struct be_cuda_lt *lt, const struct lt_algo *a)
{
    int32_t split = 0;
    uint32_t scheme = 0;
    size_t n;

    return lt->algo_get(a, ALGO_SPLITK, &split, sizeof(split), &n) == 0 && split <= 1 &&
           lt->algo_get(a, ALGO_REDUCTION, &scheme, sizeof(scheme), &n) == 0 && scheme == 0;
}

static bool serves_all_rows(struct be_cuda_lt *lt, const struct be_cuda_lt_plan *p,
                            const struct lt_algo *a)
{
    static const uint32_t check_rows[] = {1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 100, 127, 129, 1000};
    struct lt_result r;

    for (size_t i = 0; i <= sizeof(check_rows) / sizeof(*check_rows); i++) {
        uint32_t n = i == sizeof(check_rows) / sizeof(*check_rows) ? p->max_rows : check_rows[i];

        if (n > p->max_rows)
            continue;
        memset(&r, 0, sizeof(r));
        if (set_rows(lt, p, n, NULL) != RC_OK ||
            lt->algo_check(lt->handle, p->desc, p->w, p->x, p->d, p->d, a, &r) != 0 ||
            r.workspace > BE_CUDA_LT_WORKSPACE)
            return false;
    }
    return true;
}

static enum rc pin(struct be_cuda_lt *lt, struct be_cuda_lt_plan *p, struct rc_err *err)
{
    struct lt_result found[MAX_CANDIDATES];
    uint64_t ws = BE_CUDA_LT_WORKSPACE;
    uint32_t none = 0;
    void *pref = NULL;
    int n = 0, code;
    enum rc rc;

    if ((rc = status(lt->pref_new(&pref), "a preference", err)) != RC_OK)
        return rc;
    memset(found, 0, sizeof(found));
    if ((code = lt->pref_set(pref, PREF_WORKSPACE, &ws, sizeof(ws))) == 0 &&
        (code = lt->pref_set(pref, PREF_REDUCTION_MASK, &none, sizeof(none))) == 0)
        code = lt->heuristic(lt->handle, p->desc, p->w, p->x, p->d, p->d, pref, MAX_CANDIDATES,
                             found, &n);
    lt->pref_free(pref);
    if (code != 0 && code != STATUS_NO_ALGORITHM)
        return status(code, "asking for algorithms", err);
    for (int i = 0; i < n; i++)
        if (found[i].state == 0 && keeps_contract(lt, &found[i].algo) &&
            serves_all_rows(lt, p, &found[i].algo)) {
            p->algo = found[i].algo;
            return RC_OK;
        }
    return rc_fail(err, RC_UNSUPPORTED,
                   "cuBLASLt: none of %d algorithms for [%u,%u] serves all row counts in one order",
                   n, p->n_out, p->k);
}

enum rc be_cuda_lt_plan_get(struct be_cuda_lt *lt, uint32_t k, uint32_t n_out, uint32_t max_rows,
                            bool bias, bool add, const struct be_cuda_lt_plan **out,
                            struct rc_err *err)
{
    struct be_cuda_lt_plan *p;
    enum rc rc;

    for (uint32_t i = 0; i < lt->n_plans; i++) {
        p = &lt->plan[i];
        if (p->k == k && p->n_out == n_out && p->max_rows == max_rows && p->bias == bias &&
            p->add == add) {
            *out = p;
            return RC_OK;
        }
    }
    /* 16-byte rows: what the fast algorithms ask of every pointer */
    if (k == 0 || n_out == 0 || max_rows == 0 || k % 8 || n_out % 8)
        return rc_fail(err, RC_UNSUPPORTED,
                       "cuBLASLt: [%u,%u] x %u rows: columns must be multiples of 8", n_out, k,
                       max_rows);
    if (lt->n_plans == MAX_PLANS)
        return rc_fail(err, RC_LIMIT, "cuBLASLt: more than %d shapes", MAX_PLANS);
    p = &lt->plan[lt->n_plans];
    *p = (struct be_cuda_lt_plan){
        .k = k, .n_out = n_out, .max_rows = max_rows, .bias = bias, .add = add};
    if ((rc = describe(lt, p, err)) != RC_OK || (rc = pin(lt, p, err)) != RC_OK) {
        plan_deinit(lt, p);
        return rc;
    }
    lt->n_plans++;
    *out = p;
    return RC_OK;
}

enum rc be_cuda_lt_run(struct be_cuda_lt *lt, const struct be_cuda_lt_plan *p, uint32_t n, cu_ptr x,
                       cu_ptr w, cu_ptr bias, cu_ptr out, cu_ptr workspace, cu_stream stream,
                       struct rc_err *err)
{
    const float one = 1, zero = 0;
    enum rc rc;

    if (n == 0 || n > p->max_rows || (bias != 0) != p->bias)
        return rc_fail(err, RC_INVALID, "cuBLASLt: %u rows, plan for 1 to %u; bias %d, plan %d", n,
                       p->max_rows, bias != 0, p->bias);
    if ((rc = set_rows(lt, p, n, err)) != RC_OK)
        return rc;
    if (bias && (rc = status(lt->desc_set(p->desc, DESC_BIAS_POINTER, &bias, sizeof(bias)),
                             "setting the bias", err)) != RC_OK)
        return rc;
    return status(lt->matmul(lt->handle, p->desc, &one, (const void *)(uintptr_t)w, p->w,
                             (const void *)(uintptr_t)x, p->x, p->add ? &one : &zero,
                             (const void *)(uintptr_t)out, p->d, (void *)(uintptr_t)out, p->d,
                             &p->algo, (void *)(uintptr_t)workspace, BE_CUDA_LT_WORKSPACE, stream),
                  "multiplying", err);
}
