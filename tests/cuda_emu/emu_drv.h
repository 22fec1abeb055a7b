/* emu_drv.h - inside the emulated driver: work queues, modules, faults. */
#ifndef INFERD_EMU_DRV_H
#define INFERD_EMU_DRV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emu_dev.h"

enum { CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NOT_INITIALIZED = 3 };
enum {
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_CONTEXT = 201,
    CU_NO_BINARY = 209,
    CU_INVALID_PTX = 218,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_OUT_OF_RESOURCES = 701,
    CU_MISALIGNED = 716,
    CU_LAUNCH_FAILED = 719,
    CU_CAPTURE_UNSUPPORTED = 900,
    CU_CAPTURE_INVALIDATED = 901
};

/* ---- emu_fault.c */
unsigned long emu_env(const char *name, unsigned long standard);
int emu_fault(const char *symbol); /* the code that call shall return, 0 = none */
void emu_lose(int code);           /* every later call returns code */
int emu_lost(void);

/* ---- emu_drv.c */
void emu_drv_reset(void); /* as in a new process: no stream, no memory, no context */

/* ---- emu_module.c */
struct cu_fn_s {
    const struct emu_kernel *k;
    char name[128];
    unsigned threads, dyn_max, static_bytes;
};
struct cu_mod_s {
    unsigned arch;
    char lib[32]; /* of an image of the emulated NVRTC; empty: the kernels compiled in */
    int n;
    struct cu_fn_s *fn;
};
int emu_module_load(struct cu_mod_s **out, const void *image, char *log, size_t log_cap);
void emu_module_free(struct cu_mod_s *m);
unsigned emu_arch(void);
unsigned emu_shared_optin(void);

/* what stands between the entries and the source in an image of the emulated NVRTC */
#define EMU_SOURCE_MARK "// cuda_emu: source\n"

/* ---- emu_queue.c: a stream's work, also a graph's */
struct cu_event_s {
    bool recorded, done;
    double at_ms;
};
enum emu_work { EMU_W_KERNEL, EMU_W_H2D, EMU_W_D2H, EMU_W_D2D, EMU_W_SET, EMU_W_EVENT };
struct emu_item {
    enum emu_work kind;
    const struct emu_kernel *k;
    struct emu_geometry g;
    int early; /* may begin before the kernel ahead of it has ended: has to wait for it */
    void *bytes; /* arguments, or the staged source of a copy; owned */
    size_t n_bytes;
    void *dst;
    const void *src; /* NULL: bytes */
    size_t n;
    unsigned char value;
    struct cu_event_s *event;
};
struct emu_queue {
    struct emu_item *item;
    size_t n, cap;
};
int emu_queue_add(struct emu_queue *q, const struct emu_item *it); /* copies bytes */
int emu_queue_append(struct emu_queue *q, const struct emu_queue *more);
void emu_queue_clear(struct emu_queue *q);
int emu_queue_run(struct emu_queue *q); /* and clears it; an error loses the context */

#endif
