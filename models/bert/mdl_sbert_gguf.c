/* mdl_sbert_gguf.c - what a GGUF file says of the steps behind an encoder, where no side files do.
 *
 * Source: encoders.md 11.1; gguf 0.19 (PoolingType). Tests: tests/models/test_mdl_*gguf_golden.c
 */
#include <stdio.h>

#include "mdl_sbert.h"

enum rc mdl_sbert_gguf_pooling(const struct mdl *m, enum sbert_gguf_pool *out, struct rc_err *err)
{
    char key[96];
    uint32_t kind = 0;
    enum rc rc;

    snprintf(key, sizeof(key), "%s.pooling_type", m->info.arch);
    rc = mdl_gguf_cfg_u32(m->file, key, SBERT_POOL_NONE, SBERT_POOL_RANK, SBERT_POOL_MEAN, &kind,
                          err);
    if (rc == RC_OK)
        *out = (enum sbert_gguf_pool)kind;
    return rc;
}

enum rc mdl_sbert_gguf_steps(struct bert_sbert *st, const struct mdl *m, struct rc_err *err)
{
    static const enum be_pool kinds[] = {[SBERT_POOL_NONE] = BE_POOL_MEAN,
                                         [SBERT_POOL_MEAN] = BE_POOL_MEAN,
                                         [SBERT_POOL_CLS] = BE_POOL_CLS,
                                         [SBERT_POOL_LAST] = BE_POOL_LAST,
                                         [SBERT_POOL_RANK] = BE_POOL_CLS};
    enum sbert_gguf_pool kind = SBERT_POOL_MEAN;
    enum rc rc = mdl_sbert_gguf_pooling(m, &kind, err);

    if (rc != RC_OK || st->listed)
        return rc;
    st->pools[0] = kinds[kind];
    st->normalize = true;
    return RC_OK;
}

enum rc mdl_sbert_gguf_dense(struct bert_sbert *st, const struct mdl *m, struct rc_err *err)
{
    for (unsigned i = 2; i <= 3; i++) {
        struct bert_dense *d = &st->dense[st->n_dense];
        const struct mdl_tensor *t;
        char name[64];

        snprintf(d->path, sizeof(d->path), "dense_%u", i);
        snprintf(name, sizeof(name), "%s.weight", d->path);
        if (!(t = mdl_file_find(m->file, name)))
            return rc_fail_what(err, RC_WEIGHT_ABSENT, name, "tensor '%s' is missing", name);
        if (t->n_dims != 2 || t->dims[0] < 1 || t->dims[0] > 1u << 16 || t->dims[1] < 1 ||
            t->dims[1] > 1u << 20)
            return rc_fail_what(err, RC_FORMAT, name,
                                "tensor '%s': expected a matrix of 1 to 65536 rows", name);
        d->inside = true;
        d->n_out = (uint32_t)t->dims[0];
        d->n_in = (uint32_t)t->dims[1];
        st->n_dense++;
    }
    return RC_OK;
}

enum rc mdl_sbert_gguf_refuse_causal(const struct mdl *m, struct rc_err *err)
{
    bool causal = false;
    char key[96];

    snprintf(key, sizeof(key), "%s.attention.causal", m->info.arch);
    mdl_gguf_bool(m->file, key, &causal);
    if (!causal)
        return RC_OK;
    return rc_fail_what(err, RC_UNSUPPORTED, key,
                        "GGUF metadata: an encoder that sees the past only (%s) is not supported",
                        key);
}

/* The format may drop a last dimension of 1. */
enum rc mdl_sbert_gguf_rows(const struct mdl *m, const char *name, uint32_t max, uint32_t *out,
                            struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(m->file, name);

    if (!t)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name, "tensor '%s' is missing", name);
    if (t->n_dims < 1 || t->n_dims > 2 || (t->n_dims == 2 && (t->dims[0] < 1 || t->dims[0] > max)))
        return rc_fail_what(err, RC_FORMAT, name, "tensor '%s': expected a matrix of 1 to %u rows",
                            name, max);
    *out = t->n_dims == 2 ? (uint32_t)t->dims[0] : 1;
    return RC_OK;
}
