/* emu_drv.c - the driver's functions that be_cuda_drv.h names, over host memory.
 *
 * One device, one context, work done when somebody waits (emu_queue.c), graphs kept as
 * lists of work. Wrong use that a real driver answers with an error is answered with the same
 * code here; what it would let pass silently (a copy beyond an allocation, a graph that reads
 * pageable memory, a launch of fewer threads than a warp) is an error, explained on stderr.
 * Faults on demand: emu_fault.c. Tests: tests/backends/test_be_emu_drv.c
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_drv.h"

#define API __attribute__((visibility("default")))

struct cu_ctx_s {
    int refs;
};
struct cu_graph_s {
    struct emu_queue work;
};
struct cu_exec_s {
    struct emu_queue work;
};
struct cu_stream_s {
    struct emu_queue work;
    struct cu_graph_s *capture; /* not NULL: recording */
    struct cu_stream_s *next;
};
struct pinned {
    unsigned char *p;
    size_t n;
    struct pinned *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static struct cu_ctx_s primary;
static _Thread_local struct cu_ctx_s *current;
static struct cu_stream_s *streams;
static struct pinned *pinned;

/* Objects of a context that was lost are never destroyed: they stay reachable here, as they
 * would stay the driver's, so that a leak checker tells of our users' leaks only. */
struct object {
    void *p;
    struct object *next;
};
static struct object *objects;

static int keep(void *p)
{
    struct object *o = malloc(sizeof(*o));

    if (!o)
        return CU_OUT_OF_MEMORY;
    *o = (struct object){p, objects};
    objects = o;
    return CU_OK;
}

static void let_go(const void *p)
{
    struct object **at = &objects, *o;

    while (*at && (*at)->p != p)
        at = &(*at)->next;
    if ((o = *at)) {
        *at = o->next;
        free(o);
    }
}

static int say(int code, const char *fmt, ...)
{
    va_list ap;

    if (!emu_env("INFERD_EMU_LOG", 1))
        return code;
    fputs("cuda_emu: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return code;
}

/* Asked first by every function. */
static int enter(const char *symbol, bool needs_ctx)
{
    int code = emu_fault(symbol);

    if (code != CU_OK)
        return code;
    if (!initialized && strcmp(symbol, "cuInit") != 0 && strcmp(symbol, "cuDriverGetVersion") != 0)
        return CU_NOT_INITIALIZED;
    if (needs_ctx && (!current || current->refs == 0))
        return CU_INVALID_CONTEXT;
    return CU_OK;
}
/* Runs body (which sets code) under the lock, unless something is wrong already. */
#define CALL(needs_ctx, ...)                                \
    do {                                                    \
        int code;                                           \
        pthread_mutex_lock(&lock);                          \
        if ((code = enter(__func__, needs_ctx)) == CU_OK) { \
            __VA_ARGS__                                     \
        }                                                   \
        pthread_mutex_unlock(&lock);                        \
        return code;                                        \
    } while (0)

static int drain_all(void)
{
    int code = CU_OK;

    for (struct cu_stream_s *s = streams; s; s = s->next) {
        int c = emu_queue_run(&s->work);

        code = code ? code : c;
    }
    return code;
}

static void graph_drop(struct cu_graph_s *g)
{
    if (g) {
        let_go(g);
        emu_queue_clear(&g->work);
        free(g);
    }
}

static void stream_drop(struct cu_stream_s **at)
{
    struct cu_stream_s *s = *at;

    *at = s->next;
    emu_queue_clear(&s->work);
    graph_drop(s->capture);
    free(s);
}

void emu_drv_reset(void)
{
    while (streams)
        stream_drop(&streams);
    emu_mem_end();
    primary.refs = 0;
    current = NULL;
}

/* ------------------------------------------------------- driver and devices */

static int n_devices(void)
{
    return (int)emu_env("INFERD_EMU_DEVICES", 1);
}

API int cuInit(unsigned flags)
{
    CALL(false, {
        code = flags ? CU_INVALID_VALUE : n_devices() == 0 ? CU_NO_DEVICE : CU_OK;
        initialized = initialized || code == CU_OK;
    });
}

API int cuDriverGetVersion(int *out)
{
    CALL(false, *out = (int)emu_env("INFERD_EMU_DRIVER", 12040););
}

API int cuDeviceGetCount(int *out)
{
    CALL(false, *out = n_devices(););
}

API int cuDeviceGet(int *out, int i)
{
    CALL(false, {
        if (i < 0 || i >= n_devices())
            code = CU_INVALID_DEVICE;
        else
            *out = i;
    });
}

API int cuDeviceGetName(char *buf, int n, int dev)
{
    CALL(false, {
        if (n <= 0 || dev < 0 || dev >= n_devices())
            code = CU_INVALID_VALUE;
        else
            snprintf(buf, (size_t)n, "Emulated sm_%u", emu_arch());
    });
}

API int cuDeviceGetAttribute(int *out, int attr, int dev)
{
    static const struct {
        int attr, value;
    } rows[] = {
        {1, 1024},     {2, 1024},  {3, 1024},  {4, 64},         {5, 0x7FFFFFFF}, {6, 65535},
        {7, 65535},    {8, 49152}, {9, 65536}, {10, 32},        {12, 65536},     {13, 1000000},
        {14, 512},     {16, 4},    {18, 0},    {31, 0},         {36, 1000000},   {37, 256},
        {38, 4 << 20}, {39, 1536}, {41, 1},    {81, 100 << 10}, {82, 65536},     {83, 0},
        {95, 0},       {106, 16},
    };

    CALL(false, {
        if (dev < 0 || dev >= n_devices())
            return pthread_mutex_unlock(&lock), CU_INVALID_DEVICE;
        code = CU_INVALID_VALUE;
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            if (rows[i].attr == attr) {
                *out = rows[i].value;
                code = CU_OK;
            }
        if (attr == 75 || attr == 76 || attr == 97) {
            *out = attr == 75   ? (int)emu_arch() / 10
                   : attr == 76 ? (int)emu_arch() % 10
                                : (int)emu_shared_optin();
            code = CU_OK;
        }
        if (code != CU_OK)
            say(code, "cuDeviceGetAttribute: attribute %d is not emulated", attr);
    });
}

static size_t total_mem(void)
{
    return emu_env("INFERD_EMU_MEM", 1ul << 30);
}

API int cuDeviceTotalMem_v2(size_t *out, int dev)
{
    CALL(false, {
        if (dev < 0 || dev >= n_devices())
            code = CU_INVALID_DEVICE;
        else
            *out = total_mem();
    });
}

API int cuDevicePrimaryCtxRetain(struct cu_ctx_s **out, int dev)
{
    CALL(false, {
        if (dev < 0 || dev >= n_devices()) {
            code = CU_INVALID_DEVICE;
        } else {
            primary.refs++;
            *out = &primary;
        }
    });
}

API int cuDevicePrimaryCtxRelease_v2(int dev)
{
    CALL(false, {
        if (primary.refs == 0)
            code = CU_INVALID_CONTEXT;
        else if (--primary.refs == 0) { /* what was not freed goes with it, and is said */
            if (emu_mem_used() || streams)
                say(CU_OK, "context gone with %zu bytes of device memory%s left", emu_mem_used(),
                    streams ? " and a stream" : "");
            emu_drv_reset();
        }
    });
}

API int cuDevicePrimaryCtxSetFlags_v2(int dev, unsigned flags)
{
    CALL(false, );
}

API int cuCtxSetCurrent(struct cu_ctx_s *ctx)
{
    CALL(false, {
        if (ctx && ctx->refs == 0)
            code = CU_INVALID_CONTEXT;
        else
            current = ctx;
    });
}

static bool capturing(void)
{
    for (const struct cu_stream_s *s = streams; s; s = s->next)
        if (s->capture)
            return true;
    return false;
}

API int cuCtxSynchronize(void)
{
    CALL(true, code = capturing() ? CU_CAPTURE_UNSUPPORTED : drain_all(););
}

/* ------------------------------------------------------------------- memory */

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CALL(true, {
        *total = total_mem();
        *free_bytes = emu_mem_used() < *total ? *total - emu_mem_used() : 0;
    });
}

API int cuMemAlloc_v2(uint64_t *out, size_t n)
{
    CALL(true, {
        void *p = NULL;

        if (n == 0)
            code = CU_INVALID_VALUE;
        else if (n > total_mem() || emu_mem_used() > total_mem() - n || !(p = emu_mem_alloc(n)))
            code = CU_OUT_OF_MEMORY;
        else
            *out = (uint64_t)(uintptr_t)p;
    });
}

API int cuMemFree_v2(uint64_t at)
{
    CALL(true, {
        char err[256];

        code = drain_all(); /* as the real one: waits for the device */
        if (code == CU_OK && emu_mem_check(err, sizeof(err)))
            emu_lose(code = say(CU_ILLEGAL_ADDRESS, "%s", err));
        if (at && code == CU_OK && emu_mem_free((void *)(uintptr_t)at) != 0)
            code =
                say(CU_INVALID_VALUE, "cuMemFree: 0x%llx is no allocation", (unsigned long long)at);
    });
}

API int cuMemHostAlloc(void **out, size_t n, unsigned flags)
{
    CALL(true, {
        struct pinned *h = calloc(1, sizeof(*h));

        if (!h || n == 0 || !(h->p = aligned_alloc(4096, (n + 4095) / 4096 * 4096))) {
            free(h);
            code = n == 0 ? CU_INVALID_VALUE : CU_OUT_OF_MEMORY;
        } else {
            memset(h->p, 0xFF, n);
            h->n = n;
            h->next = pinned;
            pinned = h;
            *out = h->p;
        }
    });
}

API int cuMemFreeHost(void *p)
{
    CALL(true, {
        struct pinned **at = &pinned, *h;

        code = drain_all();
        while (*at && (*at)->p != p)
            at = &(*at)->next;
        if ((h = *at)) {
            *at = h->next;
            free(h->p);
            free(h);
        } else {
            code = CU_INVALID_VALUE;
        }
    });
}

static bool is_pinned(const void *p, size_t n)
{
    for (const struct pinned *h = pinned; h; h = h->next) {
        uintptr_t off = (uintptr_t)p - (uintptr_t)h->p;

        if ((uintptr_t)p >= (uintptr_t)h->p && off <= h->n && n <= h->n - off)
            return true;
    }
    return false;
}

static int needs(const char *what, uint64_t at, size_t n)
{
    if (emu_mem_holds(at, n))
        return CU_OK;
    return say(CU_INVALID_VALUE, "%s: %zu bytes at 0x%llx are not in one allocation", what, n,
               (unsigned long long)at);
}

/* ------------------------------------------------------------------- streams */

/* Adds work to the stream or to the graph it records. */
static int push(struct cu_stream_s *s, const struct emu_item *it)
{
    int code;

    if (!s)
        return say(CU_INVALID_HANDLE, "work on the default stream");
    if (s->capture)
        return emu_queue_add(&s->capture->work, it);
    if ((code = emu_queue_add(&s->work, it)) == CU_OK && emu_env("INFERD_EMU_SYNC", 0))
        code = emu_queue_run(&s->work);
    return code;
}

API int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t n, struct cu_stream_s *s)
{
    CALL(true, {
        bool held = is_pinned(src, n);
        /* pageable memory is read before the call returns */
        struct emu_item it = {.kind = EMU_W_H2D,
                              .dst = (void *)(uintptr_t)dst,
                              .src = held ? src : NULL,
                              .n = n,
                              .bytes = held ? NULL : (void *)src,
                              .n_bytes = held ? 0 : n};

        if (s && s->capture && !held)
            code = say(CU_CAPTURE_INVALIDATED, "a graph that reads pageable memory");
        else if (n > 0 && (code = needs("cuMemcpyHtoDAsync", dst, n)) == CU_OK)
            code = push(s, &it);
    });
}

API int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t n, struct cu_stream_s *s)
{
    CALL(true, {
        bool held = is_pinned(dst, n);
        struct emu_item it = {
            .kind = EMU_W_D2H, .dst = dst, .src = (const void *)(uintptr_t)src, .n = n};

        if (s && s->capture && !held)
            code = say(CU_CAPTURE_INVALIDATED, "a graph that writes pageable memory");
        else if (n > 0 && (code = needs("cuMemcpyDtoHAsync", src, n)) == CU_OK)
            code = push(s, &it);
        if (code == CU_OK && !held && s && !s->capture)
            code = emu_queue_run(&s->work);
    });
}

API int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t n, struct cu_stream_s *s)
{
    CALL(true, {
        struct emu_item it = {.kind = EMU_W_D2D,
                              .dst = (void *)(uintptr_t)dst,
                              .src = (const void *)(uintptr_t)src,
                              .n = n};

        if (n > 0 && (code = needs("cuMemcpyDtoDAsync", dst, n)) == CU_OK &&
            (code = needs("cuMemcpyDtoDAsync", src, n)) == CU_OK)
            code = push(s, &it);
    });
}

API int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, struct cu_stream_s *s)
{
    CALL(true, {
        struct emu_item it = {
            .kind = EMU_W_SET, .dst = (void *)(uintptr_t)dst, .n = n, .value = value};

        if (n > 0 && (code = needs("cuMemsetD8Async", dst, n)) == CU_OK)
            code = push(s, &it);
    });
}

API int cuStreamCreate(struct cu_stream_s **out, unsigned flags)
{
    CALL(true, {
        struct cu_stream_s *s = calloc(1, sizeof(*s));

        if (!s) {
            code = CU_OUT_OF_MEMORY;
        } else {
            s->next = streams;
            streams = s;
            *out = s;
        }
    });
}

API int cuStreamDestroy_v2(struct cu_stream_s *s)
{
    CALL(true, {
        struct cu_stream_s **at = &streams;

        while (*at && *at != s)
            at = &(*at)->next;
        if (*at) {
            code = emu_queue_run(&s->work);
            stream_drop(at);
        } else {
            code = CU_INVALID_HANDLE;
        }
    });
}

API int cuStreamSynchronize(struct cu_stream_s *s)
{
    CALL(true, {
        if (!s)
            code = drain_all();
        else
            code = s->capture ? CU_CAPTURE_UNSUPPORTED : emu_queue_run(&s->work);
    });
}

API int cuStreamBeginCapture_v2(struct cu_stream_s *s, int mode)
{
    CALL(true, {
        if (!s || s->capture || mode < 0 || mode > 2)
            code = CU_INVALID_VALUE;
        else if (!(s->capture = calloc(1, sizeof(*s->capture))))
            code = CU_OUT_OF_MEMORY;
    });
}

API int cuStreamEndCapture(struct cu_stream_s *s, struct cu_graph_s **out)
{
    int code;

    pthread_mutex_lock(&lock);
    code = enter(__func__, true);
    if (code == CU_OK && (!s || !s->capture))
        code = CU_INVALID_VALUE;
    if (code == CU_OK)
        code = keep(*out = s->capture);
    else if (s) /* also a failed end is the end of recording */
        graph_drop(s->capture);
    if (s)
        s->capture = NULL;
    pthread_mutex_unlock(&lock);
    return code;
}

API int cuGraphInstantiateWithFlags(struct cu_exec_s **out, struct cu_graph_s *g,
                                    unsigned long long flags)
{
    CALL(true, {
        struct cu_exec_s *e = calloc(1, sizeof(*e));

        if (!e || !g)
            code = g ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
        else
            code = emu_queue_append(&e->work, &g->work);
        if (code == CU_OK)
            code = keep(*out = e);
        else if (e) {
            emu_queue_clear(&e->work);
            free(e);
        }
    });
}

API int cuGraphLaunch(struct cu_exec_s *e, struct cu_stream_s *s)
{
    CALL(true, {
        if (!e || !s || s->capture)
            code = say(CU_INVALID_VALUE, "cuGraphLaunch: no graph, no stream, or a stream that "
                                         "records");
        else if ((code = emu_queue_append(&s->work, &e->work)) == CU_OK &&
                 emu_env("INFERD_EMU_SYNC", 0))
            code = emu_queue_run(&s->work);
    });
}

API int cuGraphDestroy(struct cu_graph_s *g)
{
    CALL(true, graph_drop(g););
}

API int cuGraphExecDestroy(struct cu_exec_s *e)
{
    CALL(true, {
        let_go(e);
        emu_queue_clear(&e->work);
        free(e);
    });
}

API int cuEventCreate(struct cu_event_s **out, unsigned flags)
{
    CALL(true, {
        struct cu_event_s *e = calloc(1, sizeof(*e));

        code = e ? keep(*out = e) : CU_OUT_OF_MEMORY;
    });
}

API int cuEventDestroy_v2(struct cu_event_s *e)
{
    CALL(true, {
        code = drain_all();
        let_go(e);
        free(e);
    });
}

API int cuEventRecord(struct cu_event_s *e, struct cu_stream_s *s)
{
    CALL(true, {
        struct emu_item it = {.kind = EMU_W_EVENT, .event = e};

        e->recorded = true;
        e->done = false;
        code = push(s, &it);
    });
}

API int cuEventSynchronize(struct cu_event_s *e)
{
    CALL(true, {
        if (capturing())
            code = CU_CAPTURE_UNSUPPORTED;
        else if (e->recorded && !e->done)
            code = drain_all();
    });
}

API int cuEventElapsedTime(float *out, struct cu_event_s *a, struct cu_event_s *b)
{
    CALL(true, {
        if (!a->recorded || !b->recorded)
            code = CU_INVALID_HANDLE;
        else if (!a->done || !b->done)
            code = CU_NOT_READY;
        else
            *out = (float)(b->at_ms - a->at_ms);
    });
}

/* --------------------------------------------------------- modules, launches */

/* CUjit_option: where the error log goes, and how long it is (in: room, out: used) */
#define JIT_ERROR_LOG 5
#define JIT_ERROR_LOG_BYTES 6

API int cuModuleLoadDataEx(struct cu_mod_s **out, const void *image, unsigned n, int *opts,
                           void **vals)
{
    CALL(true, {
        char log[512] = "";
        char *to = NULL;
        size_t room = 0;

        for (unsigned i = 0; i < n; i++) {
            if (opts[i] == JIT_ERROR_LOG)
                to = vals[i];
            else if (opts[i] == JIT_ERROR_LOG_BYTES)
                room = (unsigned)(uintptr_t)vals[i];
        }
        code = capturing() ? CU_CAPTURE_UNSUPPORTED : emu_module_load(out, image, log, sizeof(log));
        if (code == CU_OK)
            code = keep(*out);
        else
            say(code, "cuModuleLoadDataEx: %s", log);
        if (to && room)
            snprintf(to, room, "%s", log);
    });
}

API int cuModuleUnload(struct cu_mod_s *m)
{
    CALL(true, {
        code = drain_all();
        let_go(m);
        emu_module_free(m);
    });
}

API int cuModuleGetFunction(struct cu_fn_s **out, struct cu_mod_s *m, const char *name)
{
    CALL(true, {
        code = CU_NOT_FOUND;
        for (int i = 0; i < m->n; i++)
            if (strcmp(m->fn[i].name, name) == 0) {
                *out = &m->fn[i];
                code = CU_OK;
            }
    });
}

API int cuFuncSetAttribute(struct cu_fn_s *f, int attr, int value)
{
    CALL(true, {
        if (attr == 8) {
            if (value < 0 || (unsigned)value + f->static_bytes > emu_shared_optin())
                code =
                    say(CU_INVALID_VALUE, "%s: %d bytes of dynamic shared memory", f->name, value);
            else
                f->dyn_max = (unsigned)value;
        } else if (attr != 9) { /* the preferred carve-out changes nothing here */
            code = CU_INVALID_VALUE;
        }
    });
}

static int launch(struct cu_fn_s *f, const unsigned grid[3], const unsigned block[3],
                  unsigned shared, struct cu_stream_s *s, void **params, int early)
{
    struct emu_item it = {.kind = EMU_W_KERNEL,
                          .k = f ? f->k : NULL,
                          .g = {grid[0], grid[1], grid[2], block[0], shared},
                          .early = early};
    char err[256] = "";

    if (!f || !params || !params[0])
        return CU_INVALID_VALUE;
    if (block[1] != 1 || block[2] != 1)
        return say(CU_INVALID_VALUE,
                   "%s: a block of %u x %u x %u threads: kernels here know x only", f->name,
                   block[0], block[1], block[2]);
    if (block[0] > f->threads)
        return say(CU_OUT_OF_RESOURCES, "%s: %u threads, its launch bound is %u", f->name, block[0],
                   f->threads);
    if (shared > f->dyn_max || shared + f->static_bytes > emu_shared_optin())
        return say(CU_INVALID_VALUE,
                   "%s: %u bytes of dynamic shared memory (and %u static), %u were asked for",
                   f->name, shared, f->static_bytes, f->dyn_max);
    if (emu_geometry_check(f->k, f->k->args_bytes, &it.g, err, sizeof(err)) != EMU_OK)
        return say(CU_INVALID_VALUE, "%s", err);
    it.bytes = params[0];
    it.n_bytes = f->k->args_bytes;
    return push(s, &it);
}

API int cuLaunchKernel(struct cu_fn_s *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, struct cu_stream_s *s,
                       void **params, void **extra)
{
    CALL(true, {
        const unsigned g[3] = {gx, gy, gz};
        const unsigned b[3] = {bx, by, bz};

        code = launch(f, g, b, shared, s, params, 0);
    });
}

struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    struct cu_stream_s *stream;
    const struct launch_attr {
        int id, pad;
        union {
            char bytes[64];
            int programmatic;
        } value;
    } * attrs;
    unsigned n_attrs;
};

#define ATTR_PROGRAMMATIC 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

API int cuLaunchKernelEx(const struct launch_config *c, struct cu_fn_s *f, void **params,
                         void **extra)
{
    int early = 0;

    for (unsigned i = 0; i < c->n_attrs; i++) {
        if (c->attrs[i].id != ATTR_PROGRAMMATIC || emu_arch() < 90)
            return say(CU_INVALID_VALUE, "launch attribute %d", c->attrs[i].id);
        early = c->attrs[i].value.programmatic;
    }
    CALL(true, code = launch(f, c->grid, c->block, c->shared, c->stream, params, early););
}

/* -------------------------------------------------------------------- errors */

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

API int cuGetErrorName(int code, const char **out)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == code) {
            *out = errors[i].name;
            return CU_OK;
        }
    *out = NULL;
    return CU_INVALID_VALUE;
}

API int cuGetErrorString(int code, const char **out)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == code) {
            *out = errors[i].text;
            return CU_OK;
        }
    *out = NULL;
    return CU_INVALID_VALUE;
}
