/* be_cuda_drv.h - the CUDA driver and NVRTC, opened at run time.
 *
 * Nothing of CUDA is needed to build; types and numbers below are the driver's ABI.
 * A missing required symbol names itself in the error; a missing optional one is
 * NULL and its feature is off. INFERD_CUDA_LIBRARY (tests: the emulated driver) and
 * INFERD_NVRTC_LIBRARY name other files than libcuda.so.1 and libnvrtc.so.*. Tests:
 * tests/backends/test_be_cuda_drv.c
 */
#ifndef INFERD_BE_CUDA_DRV_H
#define INFERD_BE_CUDA_DRV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

typedef uint64_t cu_ptr;         /* CUdeviceptr */
typedef struct cu_ctx_s *cu_ctx; /* the driver's opaque handles */
typedef struct cu_mod_s *cu_mod;
typedef struct cu_fn_s *cu_fn;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_exec_s *cu_exec;

/* CUlaunchConfig with one CUlaunchAttribute */
struct be_cuda_launch_attr {
    int id, pad;
    union {
        char bytes[64];
        int programmatic; /* BE_CUDA_ATTR_PROGRAMMATIC */
    } value;
};
struct be_cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    cu_stream stream;
    struct be_cuda_launch_attr *attrs;
    unsigned n_attrs;
};
#define BE_CUDA_ATTR_PROGRAMMATIC 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

/* X(required, return-as-int name, symbol, arguments) */
#define BE_CUDA_DRV_MAP(X)                                                                        \
    X(1, init, "cuInit", (unsigned))                                                              \
    X(1, driver_version, "cuDriverGetVersion", (int *))                                           \
    X(1, device_count, "cuDeviceGetCount", (int *))                                               \
    X(1, device_get, "cuDeviceGet", (int *, int))                                                 \
    X(1, device_name, "cuDeviceGetName", (char *, int, int))                                      \
    X(1, device_attr, "cuDeviceGetAttribute", (int *, int, int))                                  \
    X(1, device_mem, "cuDeviceTotalMem_v2", (size_t *, int))                                      \
    X(1, primary_retain, "cuDevicePrimaryCtxRetain", (cu_ctx *, int))                             \
    X(1, primary_release, "cuDevicePrimaryCtxRelease_v2", (int))                                  \
    X(0, primary_flags, "cuDevicePrimaryCtxSetFlags_v2", (int, unsigned))                         \
    X(1, ctx_set, "cuCtxSetCurrent", (cu_ctx))                                                    \
    X(1, ctx_sync, "cuCtxSynchronize", (void))                                                    \
    X(1, mem_info, "cuMemGetInfo_v2", (size_t *, size_t *))                                       \
    X(1, mem_alloc, "cuMemAlloc_v2", (cu_ptr *, size_t))                                          \
    X(1, mem_free, "cuMemFree_v2", (cu_ptr))                                                      \
    X(1, host_alloc, "cuMemHostAlloc", (void **, size_t, unsigned))                               \
    X(1, host_free, "cuMemFreeHost", (void *))                                                    \
    X(1, h2d, "cuMemcpyHtoDAsync_v2", (cu_ptr, const void *, size_t, cu_stream))                  \
    X(1, d2h, "cuMemcpyDtoHAsync_v2", (void *, cu_ptr, size_t, cu_stream))                        \
    X(1, d2d, "cuMemcpyDtoDAsync_v2", (cu_ptr, cu_ptr, size_t, cu_stream))                        \
    X(1, memset8, "cuMemsetD8Async", (cu_ptr, unsigned char, size_t, cu_stream))                  \
    X(1, stream_new, "cuStreamCreate", (cu_stream *, unsigned))                                   \
    X(1, stream_free, "cuStreamDestroy_v2", (cu_stream))                                          \
    X(1, stream_sync, "cuStreamSynchronize", (cu_stream))                                         \
    X(1, stream_begin, "cuStreamBeginCapture_v2", (cu_stream, int))                               \
    X(1, stream_end, "cuStreamEndCapture", (cu_stream, cu_graph *))                               \
    X(1, graph_inst, "cuGraphInstantiateWithFlags", (cu_exec *, cu_graph, unsigned long long))    \
    X(1, graph_launch, "cuGraphLaunch", (cu_exec, cu_stream))                                     \
    X(1, graph_free, "cuGraphDestroy", (cu_graph))                                                \
    X(1, exec_free, "cuGraphExecDestroy", (cu_exec))                                              \
    X(1, event_new, "cuEventCreate", (cu_event *, unsigned))                                      \
    X(1, event_free, "cuEventDestroy_v2", (cu_event))                                             \
    X(1, event_record, "cuEventRecord", (cu_event, cu_stream))                                    \
    X(1, event_sync, "cuEventSynchronize", (cu_event))                                            \
    X(1, event_ms, "cuEventElapsedTime", (float *, cu_event, cu_event))                           \
    X(1, mod_load, "cuModuleLoadDataEx", (cu_mod *, const void *, unsigned, int *, void **))      \
    X(1, mod_unload, "cuModuleUnload", (cu_mod))                                                  \
    X(1, mod_fn, "cuModuleGetFunction", (cu_fn *, cu_mod, const char *))                          \
    X(1, fn_set, "cuFuncSetAttribute", (cu_fn, int, int))                                         \
    X(1, launch, "cuLaunchKernel",                                                                \
      (cu_fn, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream,    \
       void **, void **))                                                                         \
    X(1, tensor_map, "cuTensorMapEncodeTiled",                                                    \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,       \
       const uint32_t *, int, int, int, int))                                                     \
    X(0, launch_ex, "cuLaunchKernelEx", (const struct be_cuda_launch *, cu_fn, void **, void **)) \
    X(1, error_name, "cuGetErrorName", (int, const char **))                                      \
    X(1, error_text, "cuGetErrorString", (int, const char **))

struct be_cuda_drv {
    void *lib;
    int version; /* 13000 = 13.0 */
#define X(req, name, sym, args) int(*name) args;
    BE_CUDA_DRV_MAP(X)
#undef X
};

/* Opens the driver once per process (NULL path: the default). Errors: RC_NOT_FOUND no library (says
 * which package gives it), RC_UNSUPPORTED a symbol is missing (driver too old) or no device. */
enum rc be_cuda_drv_open(struct be_cuda_drv **out, struct rc_err *err);

/* NVRTC, optional. */
struct be_cuda_nvrtc {
    void *lib;
    int major, minor;
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*destroy)(void **);
    int (*compile)(void *, int, const char *const *);
    int (*ptx_size)(void *, size_t *);
    int (*ptx)(void *, char *);
    int (*cubin_size)(void *, size_t *); /* NULL before 11.1 */
    int (*cubin)(void *, char *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
};
enum rc be_cuda_nvrtc_open(struct be_cuda_nvrtc **out, struct rc_err *err);
/* Source (NUL-terminated) to PTX (arch "compute_75") or cubin ("sm_90"). log: the compiler's words.
 */
enum rc be_cuda_nvrtc_compile(const struct be_cuda_nvrtc *n, const char *src, const char *arch,
                              uint8_t **out, size_t *out_n, char *log, size_t log_cap,
                              struct rc_err *err);

/* The same with complete options, "--gpu-architecture=..." first; cubin: the device image. */
enum rc be_cuda_nvrtc_build(const struct be_cuda_nvrtc *n, const char *src, const char *const *opts,
                            uint32_t n_opts, bool cubin, uint8_t **out, size_t *out_n, char *log,
                            size_t log_cap, struct rc_err *err);

struct kx_linear_wg;
/* Fills the maps of a product's arguments (a->a whole, k a multiple of 8) for kernels that copy by
 * the device's own engine. Errors: RC_INTERNAL the driver refuses a matrix. */
enum rc be_cuda_maps(const struct be_cuda_drv *d, struct kx_linear_wg *a, struct rc_err *err);

/* RC_OK, or the error by name and text with what was being done: 2 out of memory is RC_NOMEM,
 * 700.. (illegal address, launch failure: sticky) RC_INTERNAL. */
enum rc be_cuda_check(const struct be_cuda_drv *d, int code, const char *doing, struct rc_err *err);
/* After such an error the context is lost: only a new process helps. */
bool be_cuda_sticky(int code);

#endif
