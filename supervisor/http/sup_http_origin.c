/* sup_http_origin.c - may a page that a browser shows talk to this server?
 *
 * There is no password here, so any web page could post to a server on the visitor's
 * own machine (a cross-site request), or rebind its own name to 127.0.0.1 and look
 * like the same site (DNS rebinding). A browser gives both away: it sends Origin with
 * every POST and every cross-site request, and puts the page's name into Host.
 * Requests without Origin never come here. Pure; tests:
 * tests/supervisor/test_sup_http_origin.c, test_sup_http.c
 */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "sup_http_priv.h"

/* "127.0.0.1:8090", "[::1]:8090", "localhost": nothing that a name server could be
 * made to point elsewhere. */
static bool host_is_literal(const char *host)
{
    bool v6 = host[0] == '[';
    const char *from = v6 ? host + 1 : host;
    size_t n = strcspn(from, v6 ? "]" : ":");
    struct in6_addr a;
    char bare[64];

    if (n >= sizeof(bare) || (v6 && from[n] != ']'))
        return false;
    memcpy(bare, from, n);
    bare[n] = '\0';
    if (v6)
        return inet_pton(AF_INET6, bare, &a) == 1;
    return inet_pton(AF_INET, bare, &a) == 1 || strcasecmp(bare, "localhost") == 0;
}

static bool same_site(const char *origin, const char *host)
{
    const char *at = strstr(origin, "://");

    return at && host && strcasecmp(at + 3, host) == 0 && host_is_literal(host);
}

bool sup_origin_ok(const char *origin, const char *host, char *const *allowed)
{
    for (; allowed && *allowed; allowed++)
        if (strcmp(*allowed, "*") == 0 || strcasecmp(*allowed, origin) == 0)
            return true;
    return same_site(origin, host);
}
