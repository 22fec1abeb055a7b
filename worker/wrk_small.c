/* wrk_small.c - Tokenize, Detokenize and Chunk: one question, one answer.
 *
 * Run in the tokenizing part of a step, in order of arrival. Text is bounded by
 * the frame, ids by the vocabulary. Tests: tests/worker/test_wrk_engine_texts.c
 */
#include "wrk_engine_impl.h"

#include <stdlib.h>

#include "wrk_chunk.h"

#define TOKENS_MAX (4u << 20) /* an answer is some 20 bytes a token */

static enum rc tokenize(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *why,
                        struct rc_err *err)
{
    const Ipc__Tokenize *m = t->frame->tokenize;
    const struct mdl_tok *tok = mdl_tok_get(e->o.mdl);
    const struct mdl_tok_flags flags = {.add_special = m->add_special,
                                        .parse_special = m->parse_special,
                                        .offsets = true,
                                        .max_tokens = TOKENS_MAX,
                                        .stop = mdl_stop(e->o.mdl)};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Tokens out = IPC__TOKENS__INIT;
    struct mdl_ids ids = {0};
    ProtobufCBinaryData *pieces = NULL;
    enum rc rc;

    rc = mdl_tok_encode(tok, m->text.len > 0 ? (const char *)m->text.data : "", m->text.len, &flags,
                        &ids, why);
    if (rc != RC_OK)
        goto out;
    if ((pieces = calloc(ids.n + 1, sizeof(*pieces))) == NULL) {
        rc = rc_fail(why, RC_NOMEM, "pieces of %zu tokens", ids.n);
        goto out;
    }
    for (size_t i = 0; i < ids.n; i++) {
        size_t n = 0;

        pieces[i].data = (uint8_t *)mdl_tok_piece(tok, ids.ids[i], &n);
        pieces[i].len = pieces[i].data != NULL ? n : 0;
    }
    out.n_ids = ids.n;
    out.ids = (uint32_t *)ids.ids;
    out.n_pieces = ids.n;
    out.pieces = pieces;
    out.n_offsets = ids.offsets != NULL ? 2 * ids.n : 0;
    out.offsets = ids.offsets;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_TOKENS;
    f.tokens = &out;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    free(pieces);
    mdl_ids_deinit(&ids);
    return rc;
}

static enum rc detokenize(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *why,
                          struct rc_err *err)
{
    const Ipc__Detokenize *m = t->frame->detokenize;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Text out = IPC__TEXT__INIT;
    char *text = NULL;
    size_t n = 0;
    enum rc rc;

    for (size_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i] >= e->info->vocab_size)
            return rc_fail_what(why, RC_INVALID, "tokens", "token %zu is %u, the vocabulary has %u",
                                i, m->tokens[i], e->info->vocab_size);
    rc = mdl_tok_decode(mdl_tok_get(e->o.mdl), (const int32_t *)m->tokens, m->n_tokens,
                        m->skip_special, &text, &n, why);
    if (rc != RC_OK)
        return rc;
    out.text.data = (uint8_t *)text;
    out.text.len = n;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_TEXT;
    f.text = &out;
    rc = wrk_chan_send(e->o.chan, &f, err);
    free(text);
    return rc;
}

static enum rc send_pieces(struct wrk_engine *e, const struct wrk_task *t,
                           const struct wrk_chunks *c, size_t n_tokens, struct rc_err *why)
{
    Ipc__ChunkPiece *piece = calloc(c->n + 1, sizeof(*piece));
    Ipc__ChunkPiece **ptr = calloc(c->n + 1, sizeof(Ipc__ChunkPiece *));
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Chunks out = IPC__CHUNKS__INIT;
    enum rc rc = RC_NOMEM;

    if (piece == NULL || ptr == NULL) {
        rc_fail(why, RC_NOMEM, "%u pieces", c->n);
        goto out;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        ptr[i] = &piece[i];
        ipc__chunk_piece__init(&piece[i]);
        piece[i].start = c->piece[i].start;
        piece[i].end = c->piece[i].end;
        piece[i].n_tokens = c->piece[i].n_tokens;
    }
    out.n_pieces = c->n;
    out.pieces = ptr;
    out.cut = c->cut;
    out.n_tokens = n_tokens;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_CHUNKS;
    f.chunks = &out;
    rc = wrk_chan_send(e->o.chan, &f, why);
out:
    free(piece);
    free(ptr);
    return rc;
}

static enum rc chunk(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Chunk *m = t->frame->chunk;
    const struct mdl_tok_flags flags = {
        .offsets = true, .max_tokens = TOKENS_MAX, .stop = mdl_stop(e->o.mdl)};
    const struct wrk_chunk_ask ask = {.target = m->target_tokens,
                                      .overlap = m->overlap_tokens,
                                      .most = m->max_chunks,
                                      .sep = (const char *)m->separator.data,
                                      .n_sep = m->separator.len,
                                      .sentences = m->sentences,
                                      .stop = mdl_stop(e->o.mdl)};
    const char *text = m->text.len > 0 ? (const char *)m->text.data : "";
    struct wrk_chunks pieces = {0};
    struct mdl_ids ids = {0};
    enum rc rc;

    rc = mdl_tok_encode(mdl_tok_get(e->o.mdl), text, m->text.len, &flags, &ids, why);
    if (rc == RC_OK)
        rc = wrk_chunk(&pieces, text, m->text.len, ids.offsets, ids.n, &ask, why);
    if (rc == RC_OK)
        rc = send_pieces(e, t, &pieces, ids.n, why);
    free(pieces.piece);
    mdl_ids_deinit(&ids);
    return rc;
}

enum rc wrk_small_run(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why,
                      struct rc_err *err)
{
    return t->kind == IPC__FRAME__BODY_TOKENIZE ? tokenize(e, t, why, err)
           : t->kind == IPC__FRAME__BODY_CHUNK  ? chunk(e, t, why)
                                                : detokenize(e, t, why, err);
}
