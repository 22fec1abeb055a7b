/* mdl_sbert_alike.c - what all encoders with sentence-transformers' side files do alike: what info
 * says, pairs and their types and the width of vectors.
 * Source: encoders.md 2.6, 3. Tests: tests/models/test_mdl_bert*.c, test_mdl_deberta*.c
 */
#include <stdio.h>
#include <stdlib.h>

#include "mdl_sbert.h"

void mdl_sbert_inform(const struct bert_sbert *st, struct mdl *m)
{
    m->sbert = st;
    m->info.can_embed = true;
    if (st->max_seq && st->max_seq < m->info.max_input_tokens)
        m->info.max_input_tokens = st->max_seq;
    if (st->default_prompt >= 0)
        snprintf(m->info.default_prompt, sizeof(m->info.default_prompt), "%s",
                 st->prompts[st->default_prompt].name);
}

enum rc mdl_sbert_config(struct bert_sbert *st, struct mdl *m, int root_fd, struct rc_err *err)
{
    enum rc rc = mdl_sbert_load(st, root_fd, err);

    if (rc != RC_OK || (rc = mdl_sbert_join(st, m, root_fd, err)) != RC_OK)
        return rc;
    mdl_sbert_inform(st, m);
    return RC_OK;
}

enum rc mdl_sbert_sep(const struct mdl *m, int32_t *out, struct rc_err *err)
{
    const struct mdl_tok_flags flags = {.add_special = true};
    struct mdl_ids ids = {0};
    enum rc rc = mdl_tok_encode(m->tok, "", 0, &flags, &ids, err);

    if (rc == RC_OK && ids.n < 2)
        rc = rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                          "tokenizer.json: an empty text has %zu tokens, expected [CLS] and [SEP]",
                          ids.n);
    if (rc == RC_OK)
        *out = ids.ids[ids.n - 1];
    mdl_ids_deinit(&ids);
    return rc;
}

void mdl_sbert_types(const struct mdl_pass *p, int32_t sep, int32_t *types)
{
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        int32_t type = 0;

        for (uint32_t r = p->offsets[s]; r < p->offsets[s + 1]; r++) {
            types[r] = type;
            if (p->ids[r] == sep)
                type = 1;
        }
    }
}

enum rc mdl_sbert_pair_tokens(const struct mdl *m, const char *query, size_t n_query,
                              const char *doc, size_t n_doc, bool truncate, bool *truncated,
                              struct mdl_ids *out, struct rc_err *err)
{
    const struct mdl_tok_flags flags = {
        .add_special = true, .max_tokens = m->info.max_input_tokens, .stop = m->stop};

    return mdl_tok_encode_pair(m->tok, query, n_query, doc, n_doc, &flags, truncate, truncated, out,
                               err);
}

enum rc mdl_sbert_dims(const struct mdl *m, uint32_t dims, struct rc_err *err)
{
    if (dims == m->info.embed_dim)
        return RC_OK;
    return rc_fail_what(err, RC_INVALID, "dimensions",
                        "dimensions %u: this model was not trained for shorter vectors, it only "
                        "gives %u",
                        dims, m->info.embed_dim);
}
