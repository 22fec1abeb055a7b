/* sup_cmd_chat_attach.c - a text file in front of the next question.
 *
 * The server counts its tokens, so that a text that can never fit is refused here,
 * with numbers. Several files add up. Tests: tests/e2e/cli_chat.py
 */
#include <stdlib.h>
#include <string.h>

#include "sup_cmd_chat.h"
#include "sup_file.h"
#include "sup_term.h"

#define FILE_MAX_BYTES (1u << 20) /* what the server's tokenize takes */

/* Tokens of s; 0 when the server does not say, which refuses nothing: it will itself. */
static uint64_t count(struct sup_chat *c, const char *s)
{
    json_t *body = json_pack("{s:s, s:s}", "model", c->model, "text", s), *o = NULL;
    json_int_t n = 0;

    if (body && sup_client_call(c->client, "/ai/v1/tokenize", body, 0, &o, NULL) == RC_OK)
        n = json_integer_value(json_object_get(o, "count"));
    json_decref(o);
    json_decref(body);
    return n > 0 ? (uint64_t)n : 0;
}

static enum rc attach(struct sup_chat *c, const char *path, struct rc_err *err)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t n = 0, had = c->files.text ? strlen(c->files.text) : 0, cap;
    const uint64_t answer = sup_chat_max_tokens(c);
    char *text = NULL, *grown;
    uint64_t n_tok;
    enum rc rc = sup_file_read(path, FILE_MAX_BYTES, true, &text, &n, err);

    if (rc != RC_OK)
        return rc;
    n_tok = count(c, text);
    cap = had + n + 2 * strlen(name) + 64;
    if (c->ctx_tokens && n_tok + c->files.n_tok + c->talk.system_tok + answer >= c->ctx_tokens)
        rc = rc_fail(err, RC_TOO_LARGE,
                     "'%.200s' has %llu tokens; with %llu of files before it, %llu of the system "
                     "text and %llu for the answer (max_tokens) that is %llu, the model's context "
                     "only %llu",
                     path, (unsigned long long)n_tok, (unsigned long long)c->files.n_tok,
                     (unsigned long long)c->talk.system_tok, (unsigned long long)answer,
                     (unsigned long long)(n_tok + c->files.n_tok + c->talk.system_tok + answer),
                     (unsigned long long)c->ctx_tokens);
    else if (cap > SUP_TALK_MAX_BYTES / 2)
        rc = rc_fail(err, RC_TOO_LARGE, "the files of one question have at most %u bytes",
                     SUP_TALK_MAX_BYTES / 2);
    else if (!(grown = realloc(c->files.text, cap)))
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    else {
        c->files.text = grown;
        c->files.n_tok += n_tok;
        snprintf(grown + had, cap - had, "--- %s ---\n%s\n--- end of %s ---\n\n", name, text, name);
        if (!c->quiet) {
            fputs("[", stderr);
            sup_print_clean(stderr, name, false);
            fprintf(stderr, ": %zu bytes", n);
            if (n_tok)
                fprintf(stderr, ", %llu tokens", (unsigned long long)n_tok);
            fputs(", goes with the next question]\n", stderr);
        }
    }
    free(text);
    return rc;
}

bool sup_chat_attach(struct sup_chat *c, const char *path)
{
    struct rc_err err = RC_ERR_INIT;

    if (attach(c, path, &err) == RC_OK)
        return true;
    fputs("inferd chat: ", stderr);
    sup_print_clean(stderr, err.msg, false);
    putc('\n', stderr);
    return false;
}
