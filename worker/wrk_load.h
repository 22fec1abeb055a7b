/* wrk_load.h - from a root descriptor to a model on a backend.
 *
 * Shared by serving and benchmarking. Page: docs/worker.md.
 * Tests: tests/worker/test_wrk_model_golden.c
 */
#ifndef INFERD_WRK_LOAD_H
#define INFERD_WRK_LOAD_H

#include "be.h"
#include "mdl.h"
#include "wrk_spec.h"

/* Words and budgets as the front or the command line gave them; 0, NULL or "" is
 * "not told" and takes a default. */
struct wrk_load_opts {
    const char *kv_dtype, *cpu_level, *f32_gemm;
    struct be_ctx *be; /* of a device, made before the sandbox stood; taken. NULL: the processor */
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    uint32_t n_threads, max_seqs, ctx_tokens, batch_tokens;
    enum wrk_spec_mode spec; /* 0 = auto: the model's drafter where it has one, else lookups */
    uint32_t spec_most;      /* drafts of a sequence in a pass; 0 = WRK_SPEC_DEFAULT */
    bool no_spin;            /* as in struct be_opts */
    bool seal; /* forbid new threads once the pool stands; with a device once the model does */
    void (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *user;
};
struct wrk_loaded {
    struct be_ctx *be;
    struct mdl *mdl;
    struct mdl *drafter;             /* or NULL */
    uint32_t max_seqs, batch_tokens; /* in force */
    uint32_t spec_most;              /* in force; 0 = no speculation */
};

#define WRK_SEQS_DEFAULT 8u
#define WRK_SEQS_MAX 256u
#define WRK_BATCH_DEFAULT 512u
#define WRK_BATCH_MAX 8192u
#define WRK_ENCODE_ROWS 8192u /* of a pass of an encoder on a device, if there is room */
#define WRK_SPEC_DEFAULT 4u
#define WRK_KV_DEFAULT (512ull << 20)

/* Errors: RC_INVALID a word of the options, those of be_ctx_new and mdl_open,
 * RC_UNSUPPORTED the threads could not be sealed;
 * RC_NOT_FOUND the drafter that was asked for is not there. o->be is freed then. */
enum rc wrk_load(struct wrk_loaded *out, int root_fd, const struct wrk_load_opts *o,
                 struct rc_err *err);
void wrk_unload(struct wrk_loaded *l);

#endif
