/* emu_dev.h - the emulated device: what kernels, driver and tests call.
 *
 * One launch runs at a time in a process (emu_launch holds a lock); blocks run one after
 * the other, the threads of a block are fibers that change only at barriers and warp functions.
 * emu_block.c runs blocks, emu_warp.c computes warp functions, emu_mem.c is device memory,
 * emu_drv*.c the cu* functions. Nothing here is part of inferd's programs.
 */
#ifndef INFERD_EMU_DEV_H
#define INFERD_EMU_DEV_H

#include <stddef.h>
#include <stdint.h>

/* why a launch ended */
enum emu_error {
    EMU_OK,
    EMU_E_ARG,    /* unknown kernel, wrong size of arguments, geometry */
    EMU_E_SYNC,   /* a barrier or warp function not reached by all */
    EMU_E_ALIGN,  /* misaligned access */
    EMU_E_MEMORY, /* illegal address */
    EMU_E_ASSERT  /* another rule of the prelude broken, or a trap */
};

/* ---- for tests and the driver */
struct emu_kernel {
    const char *name, *lib;
    void (*run)(const void *args);
    size_t args_bytes;
    unsigned threads, arch; /* most threads per block; 75, 80 or 90 */
    unsigned char *shared_lo, *shared_hi;
    struct emu_kernel *next;
};
void emu_register(struct emu_kernel *k);
/* arch 80 falls back to the text compiled for 75. */
const struct emu_kernel *emu_find(const char *name, unsigned arch);
const struct emu_kernel *emu_kernels(void); /* list */

struct emu_geometry {
    unsigned x, y, z, threads, shared_bytes;
};
/* Order in which blocks, warps and lanes run; results may not depend on it. */
enum emu_order { EMU_FORWARD, EMU_REVERSE, EMU_SHUFFLED };
void emu_order_set(enum emu_order o, unsigned seed);
/* Runs a kernel on memory of this process. On failure err gets kernel, block, thread and
 * reason. */
enum emu_error emu_launch(const char *name, unsigned arch, const void *args, size_t args_bytes,
                          const struct emu_geometry *g, char *err, size_t err_cap);
enum emu_error emu_launch_kernel(const struct emu_kernel *k, const void *args, size_t args_bytes,
                                 const struct emu_geometry *g, char *err, size_t err_cap);
enum emu_error emu_geometry_check(const struct emu_kernel *k, size_t args_bytes,
                                  const struct emu_geometry *g, char *err, size_t err_cap);

/* Compiles a library's text with the host compiler and adds its kernels (found before older ones
 * of the same name). The compiler's words on failure. */
enum emu_error emu_text_load(const char *text, size_t n, unsigned arch, char *err, size_t err_cap);
/* The same; lib gets the name its kernels carry. */
enum emu_error emu_text_load_as(const char *text, size_t n, unsigned arch, char lib[32], char *err,
                                size_t err_cap);
/* The kernel of that library (NULL: of one compiled in with the build, the newest arch allowed). */
const struct emu_kernel *emu_find_in(const char *lib, const char *name, unsigned arch);

/* ---- device memory (emu_mem.c) */
void *emu_mem_alloc(size_t n); /* NULL: none left */
int emu_mem_free(void *p);     /* -1: not the start of an allocation */
size_t emu_mem_used(void);
void emu_mem_end(void);                       /* frees all: the context is gone */
int emu_mem_holds(uint64_t at, size_t n);     /* do n bytes lie in one allocation? */
int emu_mem_check(char *err, size_t cap);     /* 1: a byte beside an allocation was written */
void emu_mem_open(void), emu_mem_close(void); /* around the host's own access */

/* ---- for kernel text, through kx_emu.h */
enum emu_op {
    EMU_SYNCWARP,
    EMU_SHFL_XOR,
    EMU_SHFL,
    EMU_BALLOT,
    EMU_MMA_S8_16832,
    EMU_MMA_S8_16816,
    EMU_MMA_F16_16816,
    EMU_MMA_TF32_1688,
    EMU_LDM4,
    EMU_LDM4T,
    EMU_LDM2,
    EMU_N_OPS
};
extern const char *const emu_op_names[EMU_N_OPS];
struct emu_call { /* one lane's part of a warp function */
    void *out;
    const void *a, *b;
    int arg;
};
struct emu_thread {
    unsigned tid;
};
extern struct emu_thread *kx_emu_cur;
extern struct emu_grid {
    unsigned bx, by, bz, gx;
} kx_emu_blk;
#define EMU_DYN_MAX (232u << 10)
extern unsigned char kx_emu_dyn[];
extern int kx_emu_waited; /* kx_wait was called since the driver cleared it */

void kx_emu_sync(int line);
void kx_emu_warp(int op, int line, void *out, const void *a, const void *b, int arg);
void kx_emu_cp(void *dst, const void *src, unsigned n, int p, int async, int line);
void kx_emu_cp_commit(void);
void kx_emu_cp_wait(unsigned n);
void kx_emu_wgmma_f16_n256(float *d, unsigned long long a, unsigned long long b, int line);
unsigned kx_emu_wg_pair(unsigned long long b, unsigned n, unsigned k, int by_k, int line);
void kx_emu_mbar_init(void *bar, int line);
void kx_emu_mbar_expect(void *bar, unsigned bytes, int line);
void kx_emu_mbar_wait(void *bar, unsigned parity, int line);
void kx_emu_tma_2d(void *dst, const void *map, void *bar, unsigned x, unsigned y, unsigned rows,
                   int line);
_Noreturn void kx_emu_fail(enum emu_error e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- inside */
int emu_in_shared(const void *p, size_t n); /* of the running block */
void emu_warp_compute(int op, int line, struct emu_call *lane /* [32] */);

#endif
