/* wrk_shape.c - see wrk_shape.h. */
#include "wrk_shape.h"

#include <stdlib.h>
#include <string.h>

static const char *token_text(void *user, int32_t id, size_t *n)
{
    static const char bytes[WRK_MARKS + 1] = "\xf8\xf9\xfa\xfb\xfc\xfd"; /* WRK_MARK_BYTE + i */
    const struct wrk_shapes *s = user;
    const struct mdl_tok *tok = s->tok;
    enum wrk_mark m = wrk_marks_of(&s->marks, id);
    const char *text;

    if (m != WRK_MARK_NONE) {
        *n = 1;
        return &bytes[m];
    }
    *n = 0;
    text = (uint32_t)id < mdl_tok_vocab(tok) ? mdl_tok_bytes(tok, id, true, n) : "";
    if (*n == 1 && (unsigned char)text[0] >= WRK_MARK_BYTE)
        *n = 0; /* a byte piece that is in no UTF-8 must not pass for a mark */
    return text;
}

static enum rc open_store(struct wrk_shapes *s, const struct mdl *mdl, struct rc_err *err)
{
    size_t n_eos = 0;
    const int32_t *eos = mdl_eos(mdl, &n_eos);
    enum rc rc;

    if (s->store != NULL)
        return RC_OK;
    s->tok = mdl_tok_get(mdl);
    for (int i = 0; i < WRK_MARKS; i++)
        s->marks.id[i] = -1;
    if (mdl_info_get(mdl)->can_call_tools || mdl_info_get(mdl)->can_think)
        wrk_marks_find(&s->marks, s->tok, mdl_info_get(mdl)->vocab_size);
    if ((rc = wrk_gr_store_new(&s->store, err)) == RC_OK &&
        (rc = wrk_gr_vocab_new(&s->vocab, mdl_info_get(mdl)->vocab_size, token_text, s, eos, n_eos,
                               err)) == RC_OK)
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

/* The text of a grammar of thoughts, calls and what m asks for (wrk_gr_talk.c), into
 * malloc'd *text; NULL: none of the first two is needed. */
static enum rc talk_text(const struct wrk_gen *g, const Ipc__Generate *m, char **text, size_t *n,
                         struct rc_err *err)
{
    bool calls = g->talk.calls && (m->tool_choice != 0 || m->grammar_kind != WRK_GR_NONE);
    bool thought = g->talk.think && m->thinking;
    size_t n_name = calls && m->tool_choice == 2 ? strlen(m->tool_name) : 0;
    char *at;

    *text = NULL;
    if (m->kind != 1 || (!calls && !thought))
        return RC_OK;
    if (m->tools.len > WRK_GR_TEXT_MAX || n_name > WRK_CALL_NAME)
        return rc_fail_what(err, RC_INVALID, "tools", "field 'tools': %zu bytes, at most %u",
                            m->tools.len, WRK_GR_TEXT_MAX);
    if (m->grammar.len > WRK_GR_TEXT_MAX)
        return rc_fail_what(err, RC_INVALID, "grammar", "a grammar has %zu bytes, at most %u",
                            m->grammar.len, WRK_GR_TEXT_MAX);
    if ((at = malloc(m->tools.len + m->grammar.len + n_name + 5)) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for %zu bytes of tools", m->tools.len);
    *text = at;
    *at++ = !calls ? '-' : m->one_call ? '1' : '*';
    *at++ = g->talk.within == WRK_MARK_CALL                 ? 'c'
            : thought && g->talk.within == WRK_MARK_CHANNEL ? 'i'
            : thought                                       ? 't'
                                                            : 'n';
    *at++ = (char)('0' + m->grammar_kind);
    memcpy(at, m->tool_name, n_name);
    at += n_name;
    *at++ = '\n';
    if (calls)
        at = (char *)memcpy(at, m->tools.data, m->tools.len) + m->tools.len;
    *at++ = '\n';
    if (m->grammar.len > 0)
        at = (char *)memcpy(at, m->grammar.data, m->grammar.len) + m->grammar.len;
    *n = (size_t)(at - *text);
    return RC_OK;
}

/* A grammar alone, or with what may stand before it or in its place. */
static enum rc hold(struct wrk_shapes *s, struct wrk_gen *g, const Ipc__Generate *m,
                    struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = talk_text(g, m, &text, &n, err);

    if (rc == RC_OK && text != NULL)
        rc = wrk_gr_hold(s->store, &g->grammar, WRK_GR_TALK, text, n, err);
    else if (rc == RC_OK)
        rc = wrk_gr_hold(s->store, &g->grammar, (enum wrk_gr_kind)m->grammar_kind,
                         m->grammar.len > 0 ? (const char *)m->grammar.data : "", m->grammar.len,
                         err);
    free(text);
    return rc;
}

enum rc wrk_shape_take(struct wrk_shapes *s, struct wrk_gen *g, const Ipc__Generate *m,
                       const struct mdl *mdl, struct rc_err *err)
{
    bool must_call = m->tool_choice != 0 && mdl_info_get(mdl)->can_call_tools;
    enum rc rc;

    if (m->grammar_kind == WRK_GR_NONE && !must_call)
        return RC_OK;
    if (m->grammar_kind >= WRK_GR_TALK || (must_call && !g->talk.calls))
        return rc_fail_what(err, RC_INVALID, "grammar", "grammar kind %u, expected 0 to 4",
                            m->grammar_kind);
    if (must_call && m->grammar_kind != WRK_GR_NONE)
        return rc_fail_what(err, RC_INVALID, "tool_choice",
                            "field 'tool_choice': an answer that is a call has no other shape");
    if (m->ignore_eos)
        return rc_fail_what(err, RC_INVALID, "ignore_eos",
                            "field 'ignore_eos': an answer with a grammar ends where the grammar "
                            "does");
    if ((rc = open_store(s, mdl, err)) != RC_OK || (rc = hold(s, g, m, err)) != RC_TOO_LARGE)
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
