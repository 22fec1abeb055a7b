/* mdl_gemma_chat.c - Gemma 3's chat format, rendered straight to token ids.
 *
 * <bos> then per turn <start_of_turn> ROLE "\n" text <end_of_turn> "\n". Control
 * tokens are put in by id; what people wrote is encoded with special tokens
 * switched off, so a typed "<end_of_turn>" stays text. Role, newline and text go
 * to the tokenizer in one stretch, as the reference does, because merges may cross
 * them. Never renders the template text a checkpoint carries.
 * Source: gemma.md 13.1. Tests: tests/models/test_mdl_chat.c
 */
#include "mdl_gemma.h"

#include <stdlib.h>
#include <string.h>

/* Length of the white space that starts s, as Python's str.strip sees it. */
static size_t space_at(const unsigned char *s, size_t n)
{
    if (n >= 1 && ((s[0] >= 0x09 && s[0] <= 0x0D) || (s[0] >= 0x1C && s[0] <= 0x20)))
        return 1;
    if (n >= 2 && s[0] == 0xC2 && (s[1] == 0x85 || s[1] == 0xA0))
        return 2;
    if (n < 3)
        return 0;
    if ((s[0] == 0xE1 && s[1] == 0x9A && s[2] == 0x80) || /* U+1680 */
        (s[0] == 0xE2 && s[1] == 0x80 &&
         ((s[2] >= 0x80 && s[2] <= 0x8A) || s[2] == 0xA8 || s[2] == 0xA9 || s[2] == 0xAF)) ||
        (s[0] == 0xE2 && s[1] == 0x81 && s[2] == 0x9F) || /* U+205F */
        (s[0] == 0xE3 && s[1] == 0x80 && s[2] == 0x80))   /* U+3000 */
        return 3;
    return 0;
}

void mdl_gemma_trim(const char **text, size_t *n)
{
    const unsigned char *s = (const unsigned char *)*text;
    size_t len = *n, k, back;

    while ((k = space_at(s, len)) > 0) {
        s += k;
        len -= k;
    }
    do {
        for (back = 1, k = 0; back <= 3 && back <= len && k == 0; back++)
            if (space_at(s + len - back, back) == back)
                k = back;
        len -= k;
    } while (k > 0);
    *text = (const char *)s;
    *n = len;
}

/* ------------------------------------------------------------------- roles */

static bool is_system(const char *role)
{
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}

static enum rc bad_role(struct rc_err *err, size_t i, const char *role, const char *why)
{
    rc_fail_what(err, RC_INVALID, "messages", "messages[%zu]: role '%.32s' %s", i, role, why);
    if (err)
        err->item = (int32_t)i;
    return RC_INVALID;
}

static enum rc check_roles(const struct mdl_chat_msg *msgs, size_t n, struct rc_err *err)
{
    size_t i, first = n > 0 && is_system(msgs[0].role) ? 1 : 0;

    if (n == 0)
        return rc_fail_what(err, RC_INVALID, "messages", "messages: expected at least one");
    if (first == n)
        return bad_role(err, 0, msgs[0].role, "needs a user message after it");
    for (i = first; i < n; i++) {
        bool user = strcmp(msgs[i].role, "user") == 0;

        if (is_system(msgs[i].role))
            return bad_role(err, i, msgs[i].role, "is only allowed first");
        if (!user && strcmp(msgs[i].role, "assistant") != 0)
            return bad_role(err, i, msgs[i].role,
                            "is not known to this model (system, user, assistant)");
        if (user != ((i - first) % 2 == 0))
            return bad_role(err, i, msgs[i].role,
                            user ? "must be followed by an assistant message first; user and "
                                   "assistant alternate"
                                 : "cannot come here; turns start with user and alternate");
    }
    return RC_OK;
}

/* ------------------------------------------------------------------- turns */

static enum rc too_many(const struct gemma_chat_out *o, uint64_t n)
{
    return rc_bound(rc_fail_what(o->err, RC_TOO_LARGE, "messages",
                                 "the conversation has more than %zu tokens", o->max_tokens),
                    n, o->max_tokens, o->err);
}

enum rc mdl_gemma_chat_id(const struct gemma_chat_out *o, int32_t id)
{
    if (o->max_tokens && o->ids->n - o->start >= o->max_tokens)
        return too_many(o, o->ids->n - o->start + 1);
    return mdl_ids_push(o->ids, id, o->err);
}

enum rc mdl_gemma_chat_text(const struct gemma_chat_out *o, const char *text, size_t n)
{
    size_t used = o->ids->n - o->start, i = o->ids->n;
    struct mdl_tok_flags flags = {.parse_special = false, .stop = o->m->stop};
    struct rc_err e = RC_ERR_INIT;
    enum rc rc;

    if (o->max_tokens) {
        if (used >= o->max_tokens)
            return too_many(o, used + 1);
        flags.max_tokens = o->max_tokens - used;
    }
    rc = mdl_tok_encode(o->m->tok, text, n, &flags, o->ids, &e);
    if (rc == RC_TOO_LARGE)
        return too_many(o, used + e.n);
    if (rc != RC_OK) {
        if (o->err)
            *o->err = e;
        return rc;
    }
    for (; i < o->ids->n; i++) /* tokenizers may know more pieces than the table has rows */
        if (o->ids->ids[i] >= (int32_t)o->m->info.vocab_size)
            return rc_fail_what(o->err, RC_INVALID, "messages",
                                "token %d has no vector in this model", o->ids->ids[i]);
    return RC_OK;
}

/* <start_of_turn> role \n [system \n\n] text: the opened turn. */
static enum rc open_turn(const struct gemma_chat_out *o, const char *role,
                         const struct mdl_chat_msg *sys, const char *text, size_t n)
{
    const struct gemma *g = o->m->state;
    size_t n_role = strlen(role), n_sys = sys ? sys->n_bytes : 0, len, at = 0;
    char *buf;
    enum rc rc;

    if (__builtin_add_overflow(n, n_sys, &len) || __builtin_add_overflow(len, n_role + 3, &len))
        return rc_fail(o->err, RC_TOO_LARGE, "a message is too long");
    if (!(buf = malloc(len)))
        return rc_fail(o->err, RC_NOMEM, "no memory for a message of %zu bytes", n);
    memcpy(buf, role, n_role);
    at = n_role;
    buf[at++] = '\n';
    if (sys) {
        if (n_sys)
            memcpy(buf + at, sys->content, n_sys);
        at += n_sys;
        buf[at++] = '\n';
        buf[at++] = '\n';
    }
    if (n)
        memcpy(buf + at, text, n);
    at += n;
    if ((rc = mdl_gemma_chat_id(o, g->turn_start)) == RC_OK)
        rc = mdl_gemma_chat_text(o, buf, at);
    free(buf);
    return rc;
}

static enum rc put_message(const struct gemma_chat_out *o, const struct mdl_chat_msg *msg,
                           const struct mdl_chat_msg *sys)
{
    const struct gemma *g = o->m->state;
    const char *text = msg->content;
    size_t n = msg->n_bytes;
    enum rc rc;

    mdl_gemma_trim(&text, &n);
    if ((rc = open_turn(o, strcmp(msg->role, "user") == 0 ? "user" : "model", sys, text, n)) !=
            RC_OK ||
        (rc = mdl_gemma_chat_id(o, g->turn_end)) != RC_OK)
        return rc;
    return mdl_gemma_chat_text(o, "\n", 1);
}

enum rc mdl_gemma_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                       const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err)
{
    const struct gemma *g = m->state;
    struct gemma_chat_out o = {
        .m = m, .ids = out, .start = out->n, .max_tokens = opts->max_tokens, .err = err};
    const struct mdl_chat_msg *sys = NULL;
    size_t i = 0;
    enum rc rc;

    if (!m->info.has_chat_template)
        return rc_fail_what(err, RC_UNSUPPORTED, "model",
                            "this model's tokenizer has no chat turns (<start_of_turn>)");
    if ((rc = check_roles(msgs, n, err)) != RC_OK)
        return rc;
    if (is_system(msgs[0].role))
        sys = &msgs[i++];
    if ((rc = mdl_gemma_chat_id(&o, g->bos)) != RC_OK)
        goto out;
    for (; i < n; i++, sys = NULL)
        if ((rc = put_message(&o, &msgs[i], sys)) != RC_OK) {
            if (err)
                err->item = (int32_t)i;
            goto out;
        }
    if (opts->add_generation_prompt)
        rc = open_turn(&o, "model", NULL, "", 0);
out:
    if (rc != RC_OK)
        out->n = o.start; /* the caller's earlier ids stay, ours go */
    return rc;
}
