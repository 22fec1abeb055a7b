/* sup_http_route.c - from a request target to a handler.
 *
 * Percent-decoding is done once, here, before a path is compared. %2F becomes a
 * slash only inside the tail of a star route (model ids hold slashes); anywhere
 * else such a path has no route. Dot segments are left alone: they are no files.
 * Tests: tests/supervisor/test_sup_http.c, test_sup_http_parse.c
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ipc.h"
#include "sup_http_priv.h"

/* Stands for a decoded %2F until the route is known; cannot come from a client,
 * because control bytes are refused. */
#define SLASH_MARK '\x01'

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Decodes s[0..n) in place; returns the new length, or -1. */
static long decode(char *s, size_t n, bool is_path)
{
    size_t o = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c == '%') {
            int a, b;

            if (n - i < 3)
                return -1;
            a = hex(s[i + 1]);
            b = hex(s[i + 2]);
            if (a < 0 || b < 0)
                return -1;
            c = (unsigned char)(a << 4 | b);
            i += 2;
            if (is_path ? (c < 0x20 || c == 0x7f) : c == 0)
                return -1;
            s[o++] = is_path && c == '/' ? SLASH_MARK : (char)c;
            continue;
        }
        if (c == '#')
            return -1;
        s[o++] = !is_path && c == '+' ? ' ' : (char)c;
    }
    return ipc_utf8_valid(s, (size_t)o) ? (long)o : -1;
}

/* "http://host/path" is legal in any request (RFC 9112 3.2.2). */
static char *skip_authority(char *t)
{
    static const char *const schemes[] = {"http://", "https://"};

    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);

        if (strncasecmp(t, schemes[i], n) == 0)
            return strchr(t + n, '/');
    }
    return *t == '/' ? t : NULL;
}

/* key=value&... decoded in place to key NUL value NUL. Shrinks or stays equal,
 * except that a key without '=' needs its own empty value: the '&' or end NUL
 * gives one byte, so such a key is dropped. */
static bool query_parse(struct sup_req *r, char *q)
{
    char *out = q, *at = q;

    r->query = q;
    while (*at) {
        size_t n = strcspn(at, "&");
        bool last = at[n] == '\0';
        char *eq = memchr(at, '=', n);
        long n_key, n_value;

        if (eq) {
            char *value = eq + 1;

            n_key = decode(at, (size_t)(eq - at), false);
            n_value = decode(value, n - (size_t)(value - at), false);
            if (n_key < 0 || n_value < 0)
                return false;
            memmove(out, at, (size_t)n_key);
            out[n_key] = '\0';
            out += n_key + 1;
            memmove(out, value, (size_t)n_value);
            out[n_value] = '\0';
            out += n_value + 1;
            r->n_query++;
        } else if (decode(at, n, false) < 0) {
            return false;
        }
        if (last)
            break;
        at += n + 1;
    }
    return true;
}

bool sup_target_parse(struct sup_req *r)
{
    char *t = r->head.buf + r->head.target, *q, *path;
    long n;

    r->query = r->tail = "";
    if (strcmp(t, "*") == 0 && r->head.method == HTTP_OPTIONS) {
        r->path = t;
        return true;
    }
    path = skip_authority(t);
    if (!path)
        return false;
    q = strchr(path, '?');
    if (q)
        *q++ = '\0';
    if (q && !query_parse(r, q))
        return false;
    n = decode(path, strlen(path), true);
    if (n < 0)
        return false;
    path[n] = '\0';
    r->path = path;
    return true;
}

/* Does the route's path match? *tail: where the star begins. */
static bool path_match(const char *route, const char *path, const char **tail)
{
    size_t n = strlen(route);

    if (n >= 2 && route[n - 1] == '*') {
        if (strncmp(route, path, n - 1) != 0 || path[n - 1] == '\0')
            return false;
        *tail = path + n - 1;
        return true;
    }
    *tail = NULL;
    return strcmp(route, path) == 0;
}

static bool method_match(const char *route, const char *method)
{
    return strcmp(route, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(route, "GET") == 0);
}

static void unmark(char *s)
{
    for (; *s; s++) {
        if (*s == SLASH_MARK)
            *s = '/';
    }
}

void sup_route_find(const struct sup_http *h, struct sup_req *r)
{
    const char *method = sup_req_method(r), *tail;
    const char *best_tail = NULL;
    size_t best = h->n_routes;
    bool known = false;

    for (size_t i = 0; i < h->n_routes; i++) {
        if (!path_match(h->routes[i].path, r->path, &tail))
            continue;
        known = true;
        if (method_match(h->routes[i].method, method) && (best == h->n_routes || !tail)) {
            best = i;
            best_tail = tail;
            if (!tail)
                break;
        }
    }
    r->route = best;
    r->is_head = r->head.method == HTTP_HEAD;
    r->is_options =
        r->head.method == HTTP_OPTIONS && best == h->n_routes && (known || r->path[0] == '*');
    if (best != h->n_routes)
        r->tail = best_tail ? best_tail : "";
    else if (!r->is_options)
        r->fault = known ? SUP_F_NO_METHOD : SUP_F_NO_ROUTE;
    unmark((char *)r->path);
}

void sup_route_allow(const struct sup_http *h, const struct sup_req *r, char *out, size_t cap)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"};
    bool all = r->path[0] == '*';
    size_t n = 0;
    const char *tail;

    out[0] = '\0';
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        for (size_t i = 0; i < h->n_routes; i++) {
            if ((all || path_match(h->routes[i].path, r->path, &tail)) &&
                method_match(h->routes[i].method, methods[m])) {
                n += (size_t)snprintf(out + n, cap - n, "%s, ", methods[m]);
                break;
            }
        }
    }
    if (n || all)
        snprintf(out + n, cap - n, "OPTIONS");
}
