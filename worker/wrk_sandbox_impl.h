/* wrk_sandbox_impl.h - private to the sandbox: its layers, one function each.
 *
 * Only wrk_sandbox*.c and the tests that prove each layer include this. `skip`
 * exists for those tests alone: nothing the programs can be told reaches it.
 */
#ifndef INFERD_WRK_SANDBOX_IMPL_H
#define INFERD_WRK_SANDBOX_IMPL_H

#include <stdint.h>

#include "wrk_sandbox.h"

/* In the order they are applied. */
enum wrk_sbx_layer {
    WRK_SBX_THREAD,   /* one thread: nobody escapes the per-thread layers */
    WRK_SBX_FDS,      /* only listed descriptors */
    WRK_SBX_ENV,      /* empty environment */
    WRK_SBX_NETNS,    /* own network, IPC, UTS namespaces: where allowed */
    WRK_SBX_CAPS,     /* no capabilities */
    WRK_SBX_LIMITS,   /* rlimits */
    WRK_SBX_DUMP,     /* not dumpable */
    WRK_SBX_PARENT,   /* dies with its parent */
    WRK_SBX_NNP,      /* no new privileges */
    WRK_SBX_LANDLOCK, /* read-only on the model root, nothing else */
    WRK_SBX_DEVICE,   /* no layer: here a driver is opened, if there is one */
    WRK_SBX_SECCOMP,  /* system call allowlist */
    WRK_SBX_N,
};

struct wrk_sbx {
    int channel_fd, root_fd; /* -1 = none */
    bool root_is_dir;
    unsigned n_threads;
    const struct wrk_sandbox_device *device; /* NULL: the processor */
};

#define WRK_DETAIL_MAX sizeof(((struct wrk_layer *)0)->detail)

/* Each applies one layer; true = it holds. detail (WRK_DETAIL_MAX bytes) says
 * why, in either case. */
bool wrk_sbx_thread(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_fds(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_env(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_netns(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_caps(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_limits(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_dump(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_parent(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_nnp(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_landlock(const struct wrk_sbx *s, char *detail);
bool wrk_sbx_seccomp(const struct wrk_sbx *s, char *detail);

/* wrk_sandbox_apply without the layers whose bit (1 << enum) is set in skip. */
enum rc wrk_sandbox_apply_but(uint32_t skip, enum wrk_sandbox_mode mode, int channel_fd,
                              int root_fd, unsigned n_threads,
                              const struct wrk_sandbox_device *device,
                              struct wrk_sandbox_report *report, struct rc_err *err);

#endif
