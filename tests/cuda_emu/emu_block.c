/* emu_block.c - launches: blocks one after the other, a fiber per thread.
 *
 * A fiber runs until a barrier, a warp function or its end. At a warp function it hands over to the
 * next lane of its warp; the 32nd computes the function for all and goes on. At a
 * barrier it hands over likewise; when no lane of the warp can go on, the next warp runs.
 * Whoever waits while the rest cannot come (ended, or waiting elsewhere) ends the launch.
 *
 * Always true: while a fiber runs, cur is it and cur's lane is in its warp's ready set;
 * a failed launch abandons the fibers' stacks (kernel text owns nothing).
 * Faults (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP) inside a kernel end the launch too.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "emu_dev.h"

#define MAX_THREADS 1024u
#define STACK_BYTES (128u << 10)
#define POISON 0xFF /* NaN as f32 and f16, -1 as an integer */
#define TAIL_BYTES 4096u

struct copy { /* one cp.async */
    void *dst;
    const void *src; /* NULL: zeros */
    unsigned group, n;
};
struct fiber {
    struct emu_thread t; /* first: kx_emu_cur points here */
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t uc;
#endif
    unsigned char *stack;
    int wait_line, wait_op; /* where it waits; op -1: barrier */
    struct emu_call call;
    struct copy *copies;
    unsigned n_copies, cap_copies, group; /* group being filled */
};
struct warp {
    uint32_t ready, arrived, done;
    unsigned last;
};

struct emu_thread *kx_emu_cur;
struct emu_grid kx_emu_blk;
/* the tail beyond a launch's own bytes is a canary */
unsigned char kx_emu_dyn[EMU_DYN_MAX + TAIL_BYTES] __attribute__((aligned(128)));

static struct fiber *fibers;
static struct fiber main_fiber, *running = &main_fiber; /* whose stack this is */
static struct warp warps[MAX_THREADS / 32];
static struct emu_call lanes[32];
static struct emu_kernel *kernels;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const struct emu_kernel *k;
    const void *args;
    struct emu_geometry g;
    unsigned at_barrier;
    enum emu_error e;
    char msg[400];
    volatile sig_atomic_t running;
    pthread_t thread;
    sigjmp_buf jump;
} run;
static enum emu_order order;
static uint64_t rng = 1;

void emu_register(struct emu_kernel *k)
{
    k->next = kernels;
    kernels = k;
}

const struct emu_kernel *emu_kernels(void)
{
    return kernels;
}

const struct emu_kernel *emu_find(const char *name, unsigned arch)
{
    const struct emu_kernel *best = NULL;

    for (const struct emu_kernel *k = kernels; k; k = k->next)
        if (!strcmp(k->name, name) && k->arch <= arch && (!best || k->arch > best->arch))
            best = k;
    return best;
}

const struct emu_kernel *emu_find_in(const char *lib, const char *name, unsigned arch)
{
    const struct emu_kernel *best = NULL;

    for (const struct emu_kernel *k = kernels; k; k = k->next)
        if (!strcmp(k->name, name) && k->arch <= arch && (!best || k->arch > best->arch) &&
            (lib ? !strcmp(k->lib, lib) : strncmp(k->lib, "text", 4) != 0))
            best = k;
    return best;
}

void emu_order_set(enum emu_order o, unsigned seed)
{
    order = o;
    rng = seed * 2654435761u + 1u;
}

static unsigned draw(unsigned n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((rng >> 33) % n);
}

/* ---- contexts */
#if defined(__x86_64__)
void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\n"
        "emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emu_switch,.-emu_switch\n");

static void ctx_make(struct fiber *f, void (*entry)(void))
{
    void **top = (void **)(f->stack + STACK_BYTES);

    *--top = NULL; /* entry's return address: never used, and aligns as a call would */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
}

static void ctx_switch(struct fiber *from, struct fiber *to)
{
    kx_emu_cur = &to->t;
    running = to;
    emu_switch(&from->sp, to->sp);
}
#else
static void ctx_make(struct fiber *f, void (*entry)(void))
{
    getcontext(&f->uc);
    f->uc.uc_stack.ss_sp = f->stack;
    f->uc.uc_stack.ss_size = STACK_BYTES;
    f->uc.uc_link = NULL;
    makecontext(&f->uc, entry, 0);
}

static void ctx_switch(struct fiber *from, struct fiber *to)
{
    kx_emu_cur = &to->t;
    running = to;
    swapcontext(&from->uc, &to->uc);
}
#endif

int kx_emu_waited;

static struct fiber *cur(void)
{
    return (struct fiber *)kx_emu_cur;
}

/* ---- failure */
static void note(enum emu_error e, const char *fmt, va_list ap)
{
    size_t n = 0;

    run.e = e;
    n = (size_t)snprintf(run.msg, sizeof(run.msg), "%s: block %u,%u,%u: ", run.k->name,
                         kx_emu_blk.bx, kx_emu_blk.by, kx_emu_blk.bz);
    if (kx_emu_cur != &main_fiber.t && n < sizeof(run.msg))
        n += (size_t)snprintf(run.msg + n, sizeof(run.msg) - n, "thread %u: ", kx_emu_cur->tid);
    if (n < sizeof(run.msg))
        vsnprintf(run.msg + n, sizeof(run.msg) - n, fmt, ap);
}

void kx_emu_fail(enum emu_error e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    note(e, fmt, ap);
    va_end(ap);
    if (running != &main_fiber) /* sanitizers understand a jump within the main stack only */
        ctx_switch(running, &main_fiber);
    siglongjmp(run.jump, 1);
}

static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
#define N_FAULTS (sizeof(faults) / sizeof(faults[0]))
static struct sigaction former[N_FAULTS];

static void on_fault(int sig, siginfo_t *si, void *uc)
{
    Dl_info where = {0};
    const void *pc = NULL;

    if (!run.running || !pthread_equal(run.thread, pthread_self())) {
        for (size_t i = 0; i < N_FAULTS; i++)
            if (faults[i] == sig)
                sigaction(sig, &former[i], NULL);
        return; /* happens again, now for the former handler */
    }
#if defined(__x86_64__)
    pc = (const void *)((const ucontext_t *)uc)->uc_mcontext.gregs[REG_RIP];
#endif
    if (pc && dladdr(pc, &where) && where.dli_fname)
        pc = (const void *)((const char *)pc - (const char *)where.dli_fbase);
    if (sig == SIGSEGV || sig == SIGBUS)
        kx_emu_fail(EMU_E_MEMORY, "illegal address %p (addr2line -e %s %p)", si->si_addr,
                    where.dli_fname ? where.dli_fname : "?", pc);
    kx_emu_fail(sig == SIGILL || sig == SIGTRAP ? EMU_E_ALIGN : EMU_E_ASSERT,
                "%s: misaligned access, index out of range or bad shift (addr2line -e %s %p)",
                sig == SIGFPE ? "SIGFPE" : "trap", where.dli_fname ? where.dli_fname : "?", pc);
}

/* For the length of a launch only: the program and its tests have handlers of their own. */
static void faults_catch(void)
{
    static _Thread_local unsigned char alt[64 << 10];
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof(alt)}, old;
    struct sigaction sa = {.sa_sigaction = on_fault,
                           .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

    if (sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE))
        sigaltstack(&ss, NULL);
    for (size_t i = 0; i < N_FAULTS; i++)
        sigaction(faults[i], &sa, &former[i]);
}

static void faults_leave(void)
{
    for (size_t i = 0; i < N_FAULTS; i++)
        sigaction(faults[i], &former[i], NULL);
}

/* ---- inside a block */
static unsigned pick(uint32_t ready, unsigned last)
{
    uint32_t up;

    if (order == EMU_REVERSE) {
        up = ready & ((1u << last) - 1u);
        return 31u - (unsigned)__builtin_clz(up ? up : ready);
    }
    if (order == EMU_SHUFFLED)
        up = ready & ~((1u << draw(32)) - 1u);
    else
        up = last == 31 ? 0 : ready & (~1u << last);
    return (unsigned)__builtin_ctz(up ? up : ready);
}

static const char *waits_at(const struct fiber *f)
{
    return f->wait_op < 0 ? "kx_sync" : emu_op_names[f->wait_op];
}

/* Hands over to a lane of w that can go on, or to the scheduler. from waits or has ended. */
static void hand_over(struct fiber *from, struct warp *w)
{
    unsigned base = (unsigned)(w - warps) * 32, lane;
    struct fiber *waiting;

    if (w->ready) {
        w->last = pick(w->ready, w->last);
        ctx_switch(from, &fibers[base + w->last]);
        return;
    }
    if (w->arrived) {
        lane = (unsigned)__builtin_ctz(w->arrived);
        waiting = &fibers[base + lane];
        lane = (unsigned)__builtin_ctz(~w->arrived);
        kx_emu_cur = &waiting->t;
        if (w->done >> lane & 1)
            kx_emu_fail(EMU_E_SYNC, "line %d: %s, but thread %u has ended", waiting->wait_line,
                        waits_at(waiting), base + lane);
        kx_emu_fail(EMU_E_SYNC, "line %d: %s, but thread %u waits in line %d at %s",
                    waiting->wait_line, waits_at(waiting), base + lane,
                    fibers[base + lane].wait_line, waits_at(&fibers[base + lane]));
    }
    ctx_switch(from, &main_fiber);
}

void kx_emu_sync(int line)
{
    struct fiber *f = cur();
    struct warp *w = &warps[f->t.tid / 32];

    f->wait_op = -1;
    f->wait_line = line;
    if (++run.at_barrier < run.g.threads) {
        w->ready &= ~(1u << f->t.tid % 32);
        hand_over(f, w);
        return;
    }
    run.at_barrier = 0;
    for (unsigned i = 0; i < run.g.threads; i++)
        if (fibers[i].wait_line != line)
            kx_emu_fail(EMU_E_SYNC, "kx_sync of line %d, but thread %u waits at that of line %d",
                        line, i, fibers[i].wait_line);
    for (unsigned i = 0; i < run.g.threads / 32; i++)
        warps[i].ready = ~0u;
}

void kx_emu_warp(int op, int line, void *out, const void *a, const void *b, int arg)
{
    struct fiber *f = cur();
    struct warp *w = &warps[f->t.tid / 32];
    unsigned lane = f->t.tid % 32, base = f->t.tid - lane;

    f->call = (struct emu_call){out, a, b, arg};
    f->wait_op = op;
    f->wait_line = line;
    w->arrived |= 1u << lane;
    if (w->arrived != ~0u) {
        w->ready &= ~(1u << lane);
        hand_over(f, w);
        return;
    }
    w->arrived = 0;
    w->ready = ~0u;
    for (unsigned i = 0; i < 32; i++) {
        const struct fiber *o = &fibers[base + i];

        if (o->wait_op != op || o->wait_line != line)
            kx_emu_fail(EMU_E_SYNC, "line %d: %s, but thread %u waits in line %d at %s", line,
                        emu_op_names[op], base + i, o->wait_line, waits_at(o));
        lanes[i] = o->call;
    }
    emu_warp_compute(op, line, lanes);
}

static void fiber_main(void)
{
    struct fiber *f = cur();
    struct warp *w = &warps[f->t.tid / 32];

    run.k->run(run.args);
    w->done |= 1u << f->t.tid % 32;
    w->ready &= ~(1u << f->t.tid % 32);
    f->wait_op = EMU_N_OPS;
    hand_over(f, w);
    abort(); /* nobody hands over to one that has ended */
}

/* ---- shared memory and cp.async */
int emu_in_shared(const void *p, size_t n)
{
    const unsigned char *q = p;

    return (q >= run.k->shared_lo && n <= (size_t)(run.k->shared_hi - q) && q < run.k->shared_hi) ||
           (q >= kx_emu_dyn && q < kx_emu_dyn + run.g.shared_bytes &&
            n <= (size_t)(kx_emu_dyn + run.g.shared_bytes - q));
}

void kx_emu_cp(void *dst, const void *src, unsigned n, int p, int async, int line)
{
    struct fiber *f = cur();

    if ((uintptr_t)dst & (n - 1) || ((uintptr_t)src & (n - 1)))
        kx_emu_fail(EMU_E_ALIGN, "line %d: kx_cp%u from %p to %p, not multiples of %u", line, n,
                    src, dst, n);
    if (!emu_in_shared(dst, n))
        kx_emu_fail(EMU_E_MEMORY, "line %d: kx_cp%u to %p, not shared memory of this launch", line,
                    n, dst);
    if (p && emu_in_shared(src, n))
        kx_emu_fail(EMU_E_MEMORY, "line %d: kx_cp%u from %p, which is shared memory", line, n, src);
    if (!async) {
        if (p)
            memcpy(dst, src, n);
        else
            memset(dst, 0, n);
        return;
    }
    if (f->n_copies == f->cap_copies) {
        unsigned cap = f->cap_copies ? f->cap_copies * 2 : 32;
        struct copy *c = realloc(f->copies, cap * sizeof(*c));

        if (!c)
            kx_emu_fail(EMU_E_ASSERT, "out of memory");
        f->copies = c;
        f->cap_copies = cap;
    }
    f->copies[f->n_copies++] = (struct copy){dst, p ? src : NULL, f->group, n};
    memset(dst, POISON, n);
}

void kx_emu_cp_commit(void)
{
    cur()->group++;
}

/* Lands all but the newest n committed groups. */
void kx_emu_cp_wait(unsigned n)
{
    struct fiber *f = cur();
    unsigned kept = 0, first = f->group >= n ? f->group - n : 0;

    for (unsigned i = 0; i < f->n_copies; i++) {
        struct copy c = f->copies[i];

        if (c.group >= first)
            f->copies[kept++] = c;
        else if (c.src)
            memcpy(c.dst, c.src, c.n);
        else
            memset(c.dst, 0, c.n);
    }
    f->n_copies = kept;
}

/* ---- blocks and launches */
static void stuck(void)
{
    const struct fiber *waiting = NULL, *other = NULL;

    for (unsigned i = 0; i < run.g.threads; i++) {
        if (!waiting && fibers[i].wait_op == -1)
            waiting = &fibers[i];
        if (!other && fibers[i].wait_op == EMU_N_OPS)
            other = &fibers[i];
    }
    kx_emu_cur = (struct emu_thread *)&waiting->t;
    kx_emu_fail(EMU_E_SYNC, "line %d: kx_sync, but thread %u has ended", waiting->wait_line,
                other->t.tid);
}

static void block_run(void)
{
    unsigned n_warps = run.g.threads / 32, n_done = 0;
    size_t tail = sizeof(kx_emu_dyn) - run.g.shared_bytes;

    if (run.k->shared_hi > run.k->shared_lo)
        memset(run.k->shared_lo, POISON, (size_t)(run.k->shared_hi - run.k->shared_lo));
    tail = tail > TAIL_BYTES ? TAIL_BYTES : tail;
    memset(kx_emu_dyn, POISON, run.g.shared_bytes + tail);
    run.at_barrier = 0;
    for (unsigned i = 0; i < run.g.threads; i++) {
        fibers[i].t.tid = i;
        fibers[i].n_copies = fibers[i].group = 0;
        ctx_make(&fibers[i], fiber_main);
    }
    for (unsigned i = 0; i < n_warps; i++)
        warps[i] = (struct warp){.ready = ~0u, .last = order == EMU_REVERSE ? 0 : 31};
    while (n_done < n_warps) {
        bool moved = false;

        n_done = 0;
        for (unsigned i = 0, at = order == EMU_SHUFFLED ? draw(n_warps) : 0; i < n_warps; i++) {
            unsigned wi = order == EMU_REVERSE ? n_warps - 1 - i : (at + i) % n_warps;

            if (warps[wi].ready) {
                moved = true;
                hand_over(&main_fiber, &warps[wi]);
                if (run.e != EMU_OK)
                    siglongjmp(run.jump, 1);
            }
            n_done += warps[wi].done == ~0u;
        }
        if (!moved)
            stuck();
    }
    kx_emu_cur = &main_fiber.t;
    for (size_t i = 0; i < tail; i++)
        if (kx_emu_dyn[run.g.shared_bytes + i] != POISON)
            kx_emu_fail(EMU_E_MEMORY, "dynamic shared memory of %u bytes written at byte %zu",
                        run.g.shared_bytes, run.g.shared_bytes + i);
}

static void grid_run(void)
{
    uint64_t n = (uint64_t)run.g.x * run.g.y * run.g.z;

    kx_emu_blk.gx = run.g.x;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = order == EMU_REVERSE ? n - 1 - i : i;

        kx_emu_blk.bx = (unsigned)(b % run.g.x);
        kx_emu_blk.by = (unsigned)(b / run.g.x % run.g.y);
        kx_emu_blk.bz = (unsigned)(b / run.g.x / run.g.y);
        block_run();
    }
}

static bool stacks_new(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), each = STACK_BYTES + page;
    unsigned char *p;

    if (fibers)
        return true;
    p = mmap(NULL, each * MAX_THREADS, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || !(fibers = calloc(MAX_THREADS, sizeof(*fibers))))
        return false;
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        mprotect(p + each * i, page, PROT_NONE);
        fibers[i].stack = p + each * i + page;
    }
    return true;
}

enum emu_error emu_geometry_check(const struct emu_kernel *k, size_t args_bytes,
                                  const struct emu_geometry *g, char *err, size_t cap)
{
    if (args_bytes != k->args_bytes)
        snprintf(err, cap, "%s: arguments of %zu bytes, the text's struct has %zu", k->name,
                 args_bytes, k->args_bytes);
    else if (!g->x || !g->y || !g->z || g->x > 0x7FFFFFFFu || g->y > 65535 || g->z > 65535)
        snprintf(err, cap, "%s: grid %u x %u x %u, expected 1 .. 2^31-1 x 65535 x 65535", k->name,
                 g->x, g->y, g->z);
    else if (!g->threads || g->threads % 32 || g->threads > k->threads || g->threads > MAX_THREADS)
        snprintf(err, cap, "%s: %u threads, expected a multiple of 32 up to %u", k->name,
                 g->threads, k->threads);
    else if (g->shared_bytes > EMU_DYN_MAX)
        snprintf(err, cap, "%s: %u bytes of shared memory, at most %u", k->name, g->shared_bytes,
                 EMU_DYN_MAX);
    else
        return EMU_OK;
    return EMU_E_ARG;
}

enum emu_error emu_launch_kernel(const struct emu_kernel *k, const void *args, size_t args_bytes,
                                 const struct emu_geometry *g, char *err, size_t cap)
{
    enum emu_error e = emu_geometry_check(k, args_bytes, g, err, cap);

    if (e != EMU_OK)
        return e;
    pthread_mutex_lock(&lock);
    if (!stacks_new()) {
        pthread_mutex_unlock(&lock);
        snprintf(err, cap, "no memory for the stacks of %u threads", MAX_THREADS);
        return EMU_E_ARG;
    }
    emu_mem_open();
    faults_catch();
    run.k = k;
    run.args = args;
    run.g = *g;
    run.e = EMU_OK;
    run.thread = pthread_self();
    kx_emu_cur = &main_fiber.t;
    if (sigsetjmp(run.jump, 1) == 0) {
        run.running = 1;
        grid_run();
    }
    run.running = 0;
    faults_leave();
    emu_mem_close();
    if ((e = run.e) != EMU_OK)
        snprintf(err, cap, "%s", run.msg);
    pthread_mutex_unlock(&lock);
    return e;
}

enum emu_error emu_launch(const char *name, unsigned arch, const void *args, size_t args_bytes,
                          const struct emu_geometry *g, char *err, size_t cap)
{
    const struct emu_kernel *k = emu_find(name, arch);

    if (k)
        return emu_launch_kernel(k, args, args_bytes, g, err, cap);
    snprintf(err, cap, "kernel '%s' for sm_%u is not compiled in", name, arch);
    return EMU_E_ARG;
}
