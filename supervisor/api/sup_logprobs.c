/* sup_logprobs.c - log probabilities in the two spellings of the OpenAI API.
 *
 * Chat: a list of {token, logprob, bytes, top_logprobs}. Completions: four
 * parallel lists. A token's bytes may be a part of a character: chat shows U+FFFD
 * and the true bytes beside it; completions, which has no such field, spells them
 * "bytes:\xe2\x9c" as that API does. Tests: tests/supervisor/test_sup_api_gen.c
 */
#include "sup_gen.h"

#include <string.h>

#include "ipc.h"

/* JSON has no infinity; the published API says -9999 for "never". */
static void number(struct sup_json *o, float lp)
{
    if (lp > -9999.0f)
        sup_json_f32(o, lp);
    else
        sup_json_str(o, "-9999.0");
}

static void chat_token(struct sup_json *o, bool ids, uint32_t id, ProtobufCBinaryData piece,
                       float lp)
{
    sup_json_str(o, "{");
    if (ids)
        sup_json_fmt(o, "\"id\":%u,", id);
    sup_json_str(o, "\"token\":\"");
    sup_json_text(o, piece.data, piece.len);
    sup_json_str(o, "\",\"logprob\":");
    number(o, lp);
    sup_json_str(o, ",\"bytes\":[");
    for (size_t i = 0; i < piece.len; i++) {
        if (i)
            sup_json_put(o, ",", 1);
        sup_json_u64(o, piece.data[i]);
    }
    sup_json_put(o, "]", 1);
}

static void add_chat(struct sup_json *o, bool ids, const Ipc__TokenProb *p)
{
    if (o->n)
        sup_json_put(o, ",", 1);
    chat_token(o, ids, p->token, p->piece, p->has_logprob ? p->logprob : -9999.0f);
    sup_json_str(o, ",\"top_logprobs\":[");
    for (size_t i = 0; i < p->n_top; i++) {
        if (i)
            sup_json_put(o, ",", 1);
        chat_token(o, ids, p->top[i]->token, p->top[i]->piece, p->top[i]->logprob);
        sup_json_put(o, "}", 1);
    }
    sup_json_str(o, "]}");
}

static void name(struct sup_json *o, ProtobufCBinaryData piece)
{
    static const char hex[] = "0123456789abcdef";

    sup_json_put(o, "\"", 1);
    if (ipc_utf8_valid(piece.data, piece.len)) {
        sup_json_text(o, piece.data, piece.len);
    } else {
        sup_json_str(o, "bytes:");
        for (size_t i = 0; i < piece.len; i++) {
            char x[5] = {'\\', '\\', 'x', hex[piece.data[i] >> 4], hex[piece.data[i] & 15]};

            sup_json_put(o, x, sizeof(x));
        }
    }
    sup_json_put(o, "\"", 1);
}

/* Two ids may share their bytes (a special and a plain token); a JSON object may
 * not have a name twice, so the first, the likelier, stands. */
static bool seen(const Ipc__TokenProb *p, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (p->top[k]->piece.len == p->top[i]->piece.len &&
            (p->top[k]->piece.len == 0 ||
             memcmp(p->top[k]->piece.data, p->top[i]->piece.data, p->top[i]->piece.len) == 0))
            return true;
    return false;
}

/* [[id, log probability], ...] of one position: complete where names collide. */
static void add_top_ids(struct sup_json *o, const Ipc__TokenProb *p)
{
    if (o->n)
        sup_json_put(o, ",", 1);
    if (!p->has_logprob) {
        sup_json_str(o, "null");
        return;
    }
    sup_json_put(o, "[", 1);
    for (size_t i = 0; i < p->n_top; i++) {
        sup_json_fmt(o, i ? ",[%u," : "[%u,", p->top[i]->token);
        number(o, p->top[i]->logprob);
        sup_json_put(o, "]", 1);
    }
    sup_json_put(o, "]", 1);
}

static void add_legacy(struct sup_probs *l, const Ipc__TokenProb *p)
{
    if (l->tokens.n) {
        sup_json_put(&l->tokens, ",", 1);
        sup_json_put(&l->values, ",", 1);
        sup_json_put(&l->top, ",", 1);
        sup_json_put(&l->offsets, ",", 1);
    }
    name(&l->tokens, p->piece);
    sup_json_u64(&l->offsets, p->text_offset);
    if (!p->has_logprob) {
        sup_json_str(&l->values, "null");
        sup_json_str(&l->top, "null");
        return;
    }
    number(&l->values, p->logprob);
    sup_json_put(&l->top, "{", 1);
    for (size_t i = 0; i < p->n_top; i++) {
        if (seen(p, i))
            continue;
        if (i)
            sup_json_put(&l->top, ",", 1);
        name(&l->top, p->top[i]->piece);
        sup_json_put(&l->top, ":", 1);
        number(&l->top, p->top[i]->logprob);
    }
    sup_json_put(&l->top, "}", 1);
}

void sup_probs_add(struct sup_probs *l, bool chat, bool ids, Ipc__TokenProb *const *probs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (chat) {
            add_chat(&l->tokens, ids, probs[i]);
            continue;
        }
        add_legacy(l, probs[i]);
        if (ids)
            add_top_ids(&l->top_ids, probs[i]);
    }
}

static void list(struct sup_json *o, const char *before, const struct sup_json *l)
{
    sup_json_str(o, before);
    if (l->failed)
        o->failed = true;
    sup_json_put(o, l->p, l->n);
    sup_json_put(o, "]", 1);
}

void sup_probs_write(const struct sup_probs *l, bool chat, bool ids, bool asked, uint32_t top,
                     struct sup_json *o)
{
    if (!asked) {
        sup_json_str(o, "null");
        return;
    }
    if (chat) {
        list(o, "{\"content\":[", &l->tokens);
        sup_json_str(o, ",\"refusal\":null}");
        return;
    }
    list(o, "{\"tokens\":[", &l->tokens);
    list(o, ",\"token_logprobs\":[", &l->values);
    if (top)
        list(o, ",\"top_logprobs\":[", &l->top);
    else
        sup_json_str(o, ",\"top_logprobs\":null");
    if (top && ids)
        list(o, ",\"top_token_ids\":[", &l->top_ids);
    list(o, ",\"text_offset\":[", &l->offsets);
    sup_json_put(o, "}", 1);
}

void sup_probs_reset(struct sup_probs *l)
{
    sup_json_reset(&l->tokens);
    sup_json_reset(&l->values);
    sup_json_reset(&l->top);
    sup_json_reset(&l->offsets);
    sup_json_reset(&l->top_ids);
}

void sup_probs_deinit(struct sup_probs *l)
{
    sup_json_deinit(&l->tokens);
    sup_json_deinit(&l->values);
    sup_json_deinit(&l->top);
    sup_json_deinit(&l->offsets);
    sup_json_deinit(&l->top_ids);
}
