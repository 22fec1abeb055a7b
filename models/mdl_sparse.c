/* mdl_sparse.c - from a sequence's rows to what an answer holds: the map of lexical weights, and
 * which rows are vectors of their own.
 *
 * Source: FlagEmbedding's BGEM3FlagModel, encoders.md 4.3. Tests: tests/models/test_mdl_xlmr.c
 */
#include <stdlib.h>
#include <string.h>

#include "mdl_impl.h"

/* First token, last token, padding, unknown: of XLM-R's and of BERT's vocabularies. */
static bool left_out(const struct mdl_tok *t, int32_t id)
{
    static const char *const pieces[] = {"<s>",   "</s>",  "<pad>", "<unk>",
                                         "[CLS]", "[SEP]", "[PAD]", "[UNK]"};
    size_t n = 0, i;
    const char *p = mdl_tok_piece(t, id, &n);

    for (i = 0; p && i < sizeof(pieces) / sizeof(*pieces); i++)
        if (strlen(pieces[i]) == n && memcmp(pieces[i], p, n) == 0)
            return true;
    return false;
}

/* By id, of one id the largest weight first. */
static int by_id(const void *a, const void *b)
{
    const struct mdl_lexical *x = a, *y = b;

    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->weight < y->weight) - (x->weight > y->weight);
}

size_t mdl_sparse_map(const struct mdl *m, const int32_t *ids, const float *weights, size_t n,
                      struct mdl_lexical *out)
{
    size_t i, k = 0, kept = 0;

    for (i = 0; i < n; i++)
        if (weights[i] > 0 && !left_out(m->tok, ids[i]))
            out[k++] = (struct mdl_lexical){.id = ids[i], .weight = weights[i]};
    if (k > 1)
        qsort(out, k, sizeof(*out), by_id);
    for (i = 0; i < k; i++)
        if (kept == 0 || out[kept - 1].id != out[i].id)
            out[kept++] = out[i];
    return kept;
}

uint32_t mdl_vector_rows(uint32_t n_rows, uint32_t *first)
{
    *first = n_rows > 0 ? 1 : 0;
    return n_rows > 0 ? n_rows - 1 : 0;
}
