/* sup_client.h - HTTP to a running server, for the commands.
 *
 * Only the address that was given: no redirects, no proxies from the environment,
 * no credentials, a limit on every answer and on every wait. Ctrl-C (see
 * sup_cli_catch_int) ends a running call with RC_CANCELLED. Blocking; one thread.
 * Tests: tests/supervisor/test_sup_cli_client.c
 */
#ifndef INFERD_SUP_CLIENT_H
#define INFERD_SUP_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_KEY_ENV "INFERD_API_KEY" /* the key that a server asks for */
#define SUP_SERVER_DEFAULT "http://127.0.0.1:8090"

struct sup_client;

/* server: http://HOST[:PORT], https://HOST[:PORT] or unix:PATH; a path behind the
 * host is refused. Errors: RC_INVALID, RC_NOMEM. */
enum rc sup_client_new(struct sup_client **out, const char *server, struct rc_err *err);
void sup_client_free(struct sup_client **c);
const char *sup_client_server(const struct sup_client *c);

/* Sends body (NULL = GET, else POST) and parses the JSON answer.
 * timeout_ms 0 = no limit on the whole call (the connection has one).
 * Errors: RC_CLOSED nobody answers there (the message says what to run),
 * RC_CANCELLED, RC_DEADLINE, RC_FORMAT no JSON, RC_TOO_LARGE; for an HTTP error the
 * server's own message, err->what = its code, n and limit if it names them, and a
 * code: RC_NOT_FOUND for 404, RC_BUSY for 503 and 429, RC_INVALID for other 4xx,
 * else RC_INTERNAL. */
enum rc sup_client_call(struct sup_client *c, const char *path, const json_t *body,
                        uint32_t timeout_ms, json_t **out, struct rc_err *err);
/* The same, and the answer's bytes go to on_bytes as they come (false = stop).
 * An HTTP error never reaches on_bytes. */
enum rc sup_client_stream(struct sup_client *c, const char *path, const json_t *body,
                          bool (*on_bytes)(void *user, const char *s, size_t n), void *user,
                          struct rc_err *err);
/* Called about ten times a second during calls; may be NULL. */
void sup_client_on_tick(struct sup_client *c, void (*fn)(void *user), void *user);
/* GET path: true when the status is 200. Never prints, never waits over 2 s. */
bool sup_client_probe(struct sup_client *c, const char *path, unsigned *status);

/* Fills err from an error body, either form of http-api.md; true if it was one. */
bool sup_client_error_body(const json_t *body, struct rc_err *err);

/* ------------------------------------------------------------------- models */

struct sup_model {
    char *id, *state, *family, *quant, *error;
    bool can_generate, can_embed, can_rerank, can_extract;
    bool known; /* the server has probed it */
    uint32_t ctx_tokens, embed_dim;
    uint64_t bytes, load_done, load_total;
};
/* What a command wants of a model. */
enum sup_kind { SUP_KIND_GENERATE, SUP_KIND_EMBED, SUP_KIND_RERANK, SUP_KIND_EXTRACT };

struct sup_listing {
    struct sup_model *m;
    size_t n;
};

enum rc sup_listing_get(struct sup_client *c, struct sup_listing *out, struct rc_err *err);
/* From the body of GET /ai/v1/models. */
enum rc sup_listing_parse(struct sup_listing *out, const json_t *body, struct rc_err *err);
void sup_listing_deinit(struct sup_listing *l);
/* The model a person means: an exact id, an id without .gguf, or the only one whose
 * id contains the word. NULL name: the only one of that kind.
 * Errors: RC_NOT_FOUND, RC_CONFLICT (several), with the candidates in the message. */
enum rc sup_listing_pick(const struct sup_listing *l, const char *name, enum sup_kind kind,
                         const struct sup_model **out, struct rc_err *err);
/* Gets the list and picks; asks again for up to five seconds while the choice hangs
 * on models that a fresh server has not looked at yet. *l is filled in any case but
 * a failed call; *out lives as long as it. */
enum rc sup_listing_choose(struct sup_client *c, struct sup_listing *l, const char *name,
                           enum sup_kind kind, const struct sup_model **out, struct rc_err *err);

#endif
