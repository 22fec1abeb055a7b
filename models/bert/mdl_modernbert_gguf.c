/* mdl_modernbert_gguf.c - the numbers of a ModernBERT encoder from GGUF metadata.
 *
 * The format has no key for the activation (gelu), nor for a cross-encoder's pooling (what reads
 * such files takes the mean). Keys appear here only; names of tensors in mdl_modernbert_cfg.c.
 * Source: gguf 0.19 (constants.py, MODERN_BERT); docs/models/modernbert.md.
 * Tests: tests/models/test_mdl_modernbert_gguf_golden.c
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mdl_modernbert.h"

#define KEY(x) "modern-bert." x
#define MAX_WIDTH (1u << 16)

static enum rc no_scaling(const struct mdl *m, struct rc_err *err)
{
    const char *type;
    size_t n;

    if (!mdl_gguf_str(m->file, KEY("rope.scaling.type"), &type, &n) ||
        (n == 4 && memcmp(type, "none", 4) == 0))
        return RC_OK;
    return rc_fail_what(err, RC_UNSUPPORTED, KEY("rope.scaling.type"),
                        "GGUF metadata: rope scaling '%.*s' is not supported for ModernBERT (none)",
                        (int)(n > 40 ? 40 : n), type);
}

enum rc mdl_modernbert_from_gguf(struct mdl *m, struct modernbert *b, struct rc_err *err)
{
    uint32_t window = 0, every = 0, l;
    const struct {
        const char *key;
        uint32_t *at, min, max;
        int64_t dflt;
    } numbers[] = {
        {KEY("block_count"), &b->n_layers, 1, MODERNBERT_MAX_LAYERS, MDL_REQUIRED},
        {KEY("embedding_length"), &b->d_model, 1, MAX_WIDTH, MDL_REQUIRED},
        {KEY("feed_forward_length"), &b->d_ff, 1, 1u << 20, MDL_REQUIRED},
        {KEY("attention.head_count"), &b->n_heads, 1, 1024, MDL_REQUIRED},
        {KEY("context_length"), &b->n_pos, 2, 1u << 20, MDL_REQUIRED},
        {KEY("attention.sliding_window"), &window, 2, 1u << 24, MDL_REQUIRED},
        {KEY("attention.sliding_window_pattern"), &every, 1, 1024, 3},
    };
    size_t i;
    enum rc rc;

    b->gguf = true;
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if ((rc = mdl_gguf_cfg_u32(m->file, numbers[i].key, numbers[i].min, numbers[i].max,
                                   numbers[i].dflt, numbers[i].at, err)) != RC_OK)
            return rc;
    b->radius = window / 2;
    for (l = 0; l < b->n_layers; l++)
        b->layer[l].slides = l % every != 0;
    if ((rc = mdl_gguf_cfg_pos(m->file, KEY("attention.layer_norm_epsilon"), 1, NAN, &b->norm_eps,
                               err)) != RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, KEY("rope.freq_base"), 1e12, NAN, &b->theta_full, err)) !=
            RC_OK ||
        (rc = mdl_gguf_cfg_pos(m->file, KEY("rope.freq_base_swa"), 1e12, 10000, &b->theta_slides,
                               err)) != RC_OK ||
        (rc = no_scaling(m, err)) != RC_OK || (rc = mdl_sbert_gguf_refuse_causal(m, err)) != RC_OK)
        return rc;
    return mdl_sbert_gguf_rows(m, "token_embd.weight", 1u << 22, &m->info.vocab_size, err);
}
