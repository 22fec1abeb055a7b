/* sup_http_auth.c - the key of a request: out of its head, judged, forgotten.
 *
 * Knows where a key stands (Authorization: Bearer, x-api-key) and what a route asks of its
 * sender; who knows the keys is behind struct sup_http_keys. Always true: when sup_auth_ask
 * returns, no byte of a key is left in the head, whatever the route; a request that is
 * refused has no byte of its body read.
 * Tests: tests/supervisor/test_sup_http_auth.c, tests/e2e/keys.py
 */
#include <sodium.h>
#include <string.h>
#include <strings.h>

#include "sup_http_priv.h"

struct key {
    char *at;
    size_t n;
};

/* "Bearer KEY", in any case, with any number of spaces between. */
static struct key bearer(char *value)
{
    static const char scheme[] = "Bearer";
    const size_t n = sizeof(scheme) - 1;

    if (strcasecmp(value, scheme) == 0) /* of a client whose key is an empty text */
        return (struct key){value + n, 0};
    if (strncasecmp(value, scheme, n) != 0 || value[n] != ' ')
        return (struct key){value, strlen(value)}; /* no scheme of ours: no key of ours */
    value += n;
    value += strspn(value, " ");
    return (struct key){value, strlen(value)};
}

/* The first one that is not empty; clients that send both mean the same. */
static struct key find(const struct sup_head *h)
{
    struct key none = {NULL, 0};

    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const char *name = h->buf + h->pairs[i].name;
        char *value = h->buf + h->pairs[i].value;
        struct key k = none;

        if (strcmp(name, "authorization") == 0)
            k = bearer(value);
        else if (strcmp(name, "x-api-key") == 0)
            k = (struct key){value, strlen(value)};
        if (k.n)
            return k;
    }
    return none;
}

static void wipe(struct sup_head *h)
{
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const char *name = h->buf + h->pairs[i].name;

        if (strcmp(name, "authorization") == 0 || strcmp(name, "x-api-key") == 0) {
            sodium_memzero(h->buf + h->pairs[i].value, h->pairs[i].n_value);
            h->pairs[i].n_value = 0;
        }
    }
}

bool sup_auth_ask(struct sup_conn *c)
{
    struct sup_http *h = c->h;
    struct sup_req *r = c->req;
    enum sup_auth_is is = SUP_AUTH_OK;

    if (h->keys.ask && !h->routes[r->route].open) {
        struct key k = find(&r->head);

        /* before: a verdict may come while others are asked */
        r->verdict = SUP_AUTH_ASKED;
        is = h->keys.ask(h->keys.user, r, k.at, k.n, &r->grant);
    }
    wipe(&r->head);
    r->verdict = (uint8_t)is;
    if (is == SUP_AUTH_OK && !r->grant)
        r->grant = sup_grant_ref(h->anonymous);
    return is != SUP_AUTH_ASKED;
}

static bool allowed(const struct sup_route *route, const struct sup_grant *g)
{
    if (route->admin && !g->admin)
        return false;
    return !route->scope || sup_grant_scope(g, (enum sup_scope)route->scope);
}

/* Is it worth to receive its body? */
static bool early(struct sup_conn *c)
{
    struct sup_http *h = c->h;
    const struct sup_head *head = &c->req->head;
    bool close_after = c->close_after, linger = c->linger;

    if (!h->early || h->routes[c->req->route].open ||
        !(head->chunked || head->expect || head->content_length > SUP_DRAIN_BODY_BYTES))
        return true;
    c->close_after = c->linger = true; /* its body stays unread */
    sup_conn_enter(c, SUP_P_WORK);
    if (!h->early(c->req, h->user))
        return false;
    c->close_after = close_after;
    c->linger = linger;
    sup_conn_enter(c, SUP_P_BODY);
    return true;
}

bool sup_auth_judge(struct sup_conn *c)
{
    struct sup_http *h = c->h;
    struct sup_req *r = c->req;
    enum sup_auth_is is = (enum sup_auth_is)r->verdict;

    if (is == SUP_AUTH_OK && !allowed(&h->routes[r->route], r->grant))
        is = SUP_AUTH_SCOPE;
    if (is == SUP_AUTH_OK)
        return early(c);
    if (r->head.chunked || r->head.content_length)
        c->close_after = c->linger = true; /* its body stays unread */
    else
        sup_hp_reset(&c->hp);
    if (is == SUP_AUTH_NO_KEY || is == SUP_AUTH_BAD_KEY || is == SUP_AUTH_EXPIRED)
        sup_req_set_header(r, "WWW-Authenticate",
                           is == SUP_AUTH_NO_KEY
                               ? "Bearer realm=\"inferd\""
                               : "Bearer realm=\"inferd\", error=\"invalid_token\"");
    sup_conn_enter(c, SUP_P_WORK);
    h->keys.refuse(r, h->user, is);
    return false;
}

void sup_req_known(struct sup_req *r, enum sup_auth_is verdict, struct sup_grant *grant)
{
    r->verdict = (uint8_t)verdict;
    r->grant = grant;
    sup_conn_dirty(r->conn); /* goes on at the turn's end: no handler runs inside */
}
