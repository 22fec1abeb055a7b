/* be_fail.h - a backend for tests: the CPU backend with faults put in.
 *
 * Made by be_ctx_new with backend "fail"; be_names does not list it. It passes
 * every call to a "cpu" context of its own, and fails the ones it was told to, so
 * tests can walk each error path of a model or worker. Test only; nothing that
 * ships makes one.
 */
#ifndef INFERD_BE_FAIL_H
#define INFERD_BE_FAIL_H

#include "be_impl.h"

struct be_fail_plan {
    /* Fail the k-th operation (be_embed .. be_sample, be_tensor_read/_write,
     * be_sync), counted from 1; 0 = none. n_op_fails operations in a row fail. */
    uint64_t op_at;
    uint32_t n_op_fails; /* 0 counts as 1 */
    enum rc op_rc;
    /* Fail the k-th allocation (weight, tensor, KV cache), from 1; RC_NOMEM. */
    uint64_t alloc_at;
    /* Refuse this (type, use) in be_supports and be_weight_new. */
    bool refuse;
    enum be_dtype refuse_dtype;
    unsigned refuse_use; /* any of these bits */
    /* What be_ctx_kstats tells. */
    struct be_kstats kstats;
};
/* More candidates than this are left to the host, as a device would. */
#define BE_FAIL_SAMPLE_TOP 1024u

/* Sets the plan and starts counting at 0 again. ctx must be a "fail" context. */
void be_fail_set(struct be_ctx *ctx, const struct be_fail_plan *plan);
/* Operations and allocations seen since be_fail_set, failed ones included. */
void be_fail_counts(const struct be_ctx *ctx, uint64_t *out_ops, uint64_t *out_allocs);

/* Private: be_fail_sample.c. x lies in the host's memory. */
enum rc be_fail_sample(const struct be_sample_args *a, struct rc_err *err);

extern const struct be_ops be_fail_ops;

#endif
