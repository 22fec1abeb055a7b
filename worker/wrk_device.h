/* wrk_device.h - the device a worker was started for: its words, and entering the sandbox
 * with it.
 *
 * The words come from the command line alone: nothing on the channel can name a device or
 * a library. With the processor nothing here does anything: the sandbox is the plain one.
 * With a GPU the backend's context is made after Landlock and before the system call
 * filter, because a driver maps executable memory and starts threads when it is opened.
 * Page: docs/sandbox.md. Tests: tests/worker/test_wrk_device.c
 */
#ifndef INFERD_WRK_DEVICE_H
#define INFERD_WRK_DEVICE_H

#include "be.h"
#include "wrk_sandbox.h"

/* Borrowed texts; NULL or 0 = the backend's default. */
struct wrk_device {
    const char *backend; /* NULL = "cpu" */
    const char *compute, *jit, *jit_cache_dir, *cuda_library, *nvrtc_library;
    uint64_t device, workspace_bytes, jit_cache_bytes;
};

/* Reads "--backend=cuda" and its kin. False: no word of these, or a value out of range. */
bool wrk_device_word(struct wrk_device *d, const char *arg);
/* The same from a name without "--" and a value. *known: the name is one of these. */
bool wrk_device_set(struct wrk_device *d, const char *name, const char *value, bool *known);
/* One line per word for a usage text. */
const char *wrk_device_usage(void);
/* Libraries that a person named in the environment (INFERD_CUDA_LIBRARY,
 * INFERD_NVRTC_LIBRARY), where no word did. Never for a serving worker. */
void wrk_device_env(struct wrk_device *d);
/* Libraries a word named, into the environment, where the backend looks. One thread. */
void wrk_device_export(const struct wrk_device *d);

bool wrk_device_is_cpu(const struct wrk_device *d);
const char *wrk_device_backend(const struct wrk_device *d);
/* Fills what the words say into o. */
void wrk_device_opts(const struct wrk_device *d, struct be_opts *o);

/* Applies the sandbox. *out_be: the context of a device, made on the way; NULL for the
 * processor, or when it could not be made: then *why says it, and the sandbox stands all
 * the same. Errors as wrk_sandbox_apply. */
struct wrk_enter {
    enum wrk_sandbox_mode mode;
    int channel_fd, root_fd;
    unsigned n_threads;
    bool no_spin;
};
enum rc wrk_device_enter(const struct wrk_device *d, const struct wrk_enter *in,
                         struct wrk_sandbox_report *report, struct be_ctx **out_be,
                         struct rc_err *why, struct rc_err *err);

#endif
