/* mdl_bert_heads.c - what else is read from an encoder's last rows: the lexical weight and the
 * vector that BGE-M3 gives every token.
 *
 *   weight = relu(w_s . h + b_s);  vector = c / |c|, c = W_c h + b_c
 *
 * Always true: a row's numbers depend on that row alone. Never here: which rows and ids count
 * (mdl_sparse.c). Source: encoders.md 4.3. Tests: tests/models/test_mdl_xlmr*.c
 */
#include "mdl_bert.h"

static enum rc lexical(struct mdl *m, struct bert *b, const struct mdl_pass *p, struct rc_err *err)
{
    enum rc rc;
    uint32_t r;

    if ((rc = mdl_dense(m->be, b->x, b->lex_w, b->lex_b, b->lex, p->n_rows, BE_EPI_NONE, err)) !=
            RC_OK ||
        (rc = be_tensor_read(m->be, b->lex, 0, p->n_rows, p->weights, err)) != RC_OK)
        return rc;
    for (r = 0; r < p->n_rows; r++)
        if (p->weights[r] < 0)
            p->weights[r] = 0;
    return RC_OK;
}

static enum rc vectors(struct mdl *m, struct bert *b, const struct mdl_pass *p, struct rc_err *err)
{
    struct be_tensor *v = b->own_vec ? b->own_vec : b->q;
    enum rc rc;
    uint32_t r;

    if ((rc = mdl_dense(m->be, b->x, b->vec_w, b->vec_b, v, p->n_rows, BE_EPI_NONE, err)) !=
            RC_OK ||
        (rc = be_tensor_read(m->be, v, 0, p->n_rows, p->vectors, err)) != RC_OK)
        return rc;
    for (r = 0; r < p->n_rows; r++)
        mdl_normalize(p->vectors + (size_t)r * m->info.token_dim, m->info.token_dim);
    return RC_OK;
}

enum rc mdl_bert_tokens(struct mdl *m, struct bert *b, const struct mdl_pass *p, struct rc_err *err)
{
    enum rc rc = p->weights ? lexical(m, b, p, err) : RC_OK;

    return rc == RC_OK && p->vectors ? vectors(m, b, p, err) : rc;
}
