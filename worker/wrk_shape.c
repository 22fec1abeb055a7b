/* wrk_shape.c - see wrk_shape.h. */
#include "wrk_shape.h"

#include <string.h>

static const char *token_text(void *user, int32_t id, size_t *n)
{
    const struct mdl_tok *tok = user;

    *n = 0;
    return (uint32_t)id < mdl_tok_vocab(tok) ? mdl_tok_bytes(tok, id, true, n) : "";
}

static enum rc open_store(struct wrk_shapes *s, const struct mdl *mdl, struct rc_err *err)
{
    size_t n_eos = 0;
    const int32_t *eos = mdl_eos(mdl, &n_eos);
    enum rc rc;

    if (s->store != NULL)
        return RC_OK;
    if ((rc = wrk_gr_store_new(&s->store, err)) == RC_OK &&
        (rc = wrk_gr_vocab_new(&s->vocab, mdl_info_get(mdl)->vocab_size, token_text,
                               (void *)(uintptr_t)mdl_tok_get(mdl), eos, n_eos, err)) == RC_OK)
        rc = wrk_gr_store_vocab(s->store, s->vocab, err);
    if (rc != RC_OK)
        wrk_shapes_deinit(s);
    return rc;
}

void wrk_shapes_deinit(struct wrk_shapes *s)
{
    wrk_gr_store_free(&s->store);
    wrk_gr_vocab_free(&s->vocab);
}

enum rc wrk_shape_take(struct wrk_shapes *s, struct wrk_gen *g, const Ipc__Generate *m,
                       const struct mdl *mdl, struct rc_err *err)
{
    enum rc rc;

    if (m->grammar_kind == WRK_GR_NONE || !mdl_info_get(mdl)->can_generate)
        return RC_OK;
    if (m->ignore_eos)
        return rc_fail_what(err, RC_INVALID, "ignore_eos",
                            "field 'ignore_eos': an answer with a grammar ends where the grammar "
                            "does");
    if ((rc = open_store(s, mdl, err)) != RC_OK)
        return rc;
    rc = wrk_gr_hold(s->store, &g->grammar, (enum wrk_gr_kind)m->grammar_kind,
                     m->grammar.len > 0 ? (const char *)m->grammar.data : "", m->grammar.len, err);
    if (rc != RC_TOO_LARGE)
        return rc;
    /* too much for a grammar is a bad grammar, not a request that is too long */
    if (err != NULL)
        err->code = RC_INVALID;
    return RC_INVALID;
}

void wrk_shape_drop(struct wrk_shapes *s, struct wrk_gen *g)
{
    if (g->grammar != NULL)
        wrk_gr_release(s->store, &g->grammar);
}

uint64_t wrk_shapes_compiled(const struct wrk_shapes *s)
{
    struct wrk_gr_stats st;

    if (s->store == NULL)
        return 0;
    st = wrk_gr_stats_get(s->store);
    return st.compiled + st.refused;
}

Ipc__GrammarStats *wrk_shapes_stats(const struct wrk_shapes *s, Ipc__GrammarStats *out)
{
    struct wrk_gr_stats st;

    if (s->store == NULL)
        return NULL;
    st = wrk_gr_stats_get(s->store);
    ipc__grammar_stats__init(out);
    out->compiled = st.compiled;
    out->compile_us = st.compile_us;
    out->refused = st.refused;
    out->cached = st.prog_hits;
    out->mask_hits = st.mask_hits;
    out->mask_misses = st.mask_misses;
    out->mask_us = st.mask_us;
    out->masks_cut = st.masks_cut;
    out->bytes = st.bytes;
    return out;
}
