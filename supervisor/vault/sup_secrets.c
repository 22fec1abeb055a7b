/* sup_secrets.c - sealing and opening; sup_secrets.h. The file's text is sup_secrets_file.c.
 * Tests: tests/supervisor/test_sup_secrets.c */
#include "sup_secrets.h"

#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SUP_SECRET_NONCE == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES, "nonce");
_Static_assert(SUP_SECRET_TAG == crypto_aead_xchacha20poly1305_ietf_ABYTES, "tag");
_Static_assert(SUP_MASTER_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "key");

static void row_deinit(struct sup_sealed *r)
{
    free(r->origin);
    free(r->box);
    memset(r, 0, sizeof(*r));
}

static void plain_free(struct sup_secrets *s)
{
    sodium_free(s->plain);
    free(s->at);
    s->plain = NULL;
    s->at = NULL;
}

void sup_secrets_deinit(struct sup_secrets *s)
{
    plain_free(s);
    for (size_t i = 0; i < s->n; i++)
        row_deinit(&s->row[i]);
    free(s->row);
    *s = (struct sup_secrets){0};
}

/* ------------------------------------------------------------------ origins */

#define HOST_MAX 253 /* as of a name in DNS */
_Static_assert(SUP_ORIGIN_MAX > sizeof("https://") + HOST_MAX + sizeof(":65535"), "an origin fits");

static bool host_ok(const char *s, size_t n)
{
    if (n >= 4 && s[0] == '[' && s[n - 1] == ']') /* at most 45 characters between them */
        return n <= INET6_ADDRSTRLEN + 1 && strspn(s + 1, "0123456789abcdefABCDEF:.") == n - 2;
    return n > 0 && n <= HOST_MAX && s[0] != '.' && s[0] != '-' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") >= n;
}

static bool port_ok(const char *s, unsigned *port)
{
    size_t n = strlen(s);

    if (n == 0 || n > 5 || strspn(s, "0123456789") != n)
        return false;
    *port = (unsigned)strtoul(s, NULL, 10);
    return *port >= 1 && *port <= 65535;
}

enum rc sup_origin_parse(char out[SUP_ORIGIN_MAX], const char *text, struct rc_err *err)
{
    static const struct {
        const char *scheme;
        unsigned port;
    } rows[] = {{"https://", 443}, {"http://", 80}};

    for (size_t i = 0; i < 2; i++) {
        size_t n_scheme = strlen(rows[i].scheme), n_host;
        const char *host = text + n_scheme, *colon;
        unsigned port = rows[i].port;

        if (strncmp(text, rows[i].scheme, n_scheme) != 0)
            continue;
        n_host =
            host[0] == '[' ? strcspn(host, "]") + (strchr(host, ']') != NULL) : strcspn(host, ":/");
        colon = host + n_host;
        if (!host_ok(host, n_host) || (*colon == ':' && !port_ok(colon + 1, &port)) ||
            (*colon && *colon != ':' && strcmp(colon, "/") != 0))
            break;
        snprintf(out, SUP_ORIGIN_MAX, "%s%.*s:%u", rows[i].scheme, (int)n_host, host, port);
        for (char *p = out + n_scheme; *p; p++)
            if (*p >= 'A' && *p <= 'Z')
                *p = (char)(*p + 32);
        return RC_OK;
    }
    return rc_fail_what(err, RC_INVALID, "origin",
                        "'%.100s': expected https://HOST or https://HOST:PORT, nothing behind it",
                        text);
}

/* ---------------------------------------------------------- seal and unseal */

/* What is authenticated with a value: where it may be sent. */
static size_t bound_to(char out[SUP_ORIGIN_MAX + 40], const char *origin)
{
    return (size_t)snprintf(out, SUP_ORIGIN_MAX + 40, "inferd credential 1\n%s", origin);
}

static enum rc seal(struct sup_sealed *r, const void *value, size_t n,
                    const uint8_t master[SUP_MASTER_BYTES], struct rc_err *err)
{
    char ad[SUP_ORIGIN_MAX + 40];
    size_t n_ad = bound_to(ad, r->origin);
    uint8_t *box = malloc(n + SUP_SECRET_TAG);
    unsigned long long n_box = 0;

    if (!box)
        return rc_fail(err, RC_NOMEM, "no memory for a credential");
    randombytes_buf(r->nonce, sizeof(r->nonce));
    crypto_aead_xchacha20poly1305_ietf_encrypt(box, &n_box, value, n, (const uint8_t *)ad, n_ad,
                                               NULL, r->nonce, master);
    free(r->box);
    r->box = box;
    r->n_box = (size_t)n_box;
    return RC_OK;
}

enum rc sup_secrets_open(struct sup_secrets *s, const uint8_t master[SUP_MASTER_BYTES],
                         struct rc_err *err)
{
    size_t total = 0;

    plain_free(s);
    for (size_t i = 0; i < s->n; i++)
        total += s->row[i].n_box - SUP_SECRET_TAG;
    s->plain = sodium_malloc(total ? total : 1);
    s->at = calloc(s->n + 1, sizeof(*s->at));
    if (!s->plain || !s->at) {
        plain_free(s);
        return rc_fail(err, RC_NOMEM, "no locked memory for %zu bytes of credentials", total);
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct sup_sealed *r = &s->row[i];
        char ad[SUP_ORIGIN_MAX + 40];
        size_t n_ad = bound_to(ad, r->origin);

        s->at[i + 1] = s->at[i] + r->n_box - SUP_SECRET_TAG;
        if (crypto_aead_xchacha20poly1305_ietf_decrypt(s->plain + s->at[i], NULL, NULL, r->box,
                                                       r->n_box, (const uint8_t *)ad, n_ad,
                                                       r->nonce, master) != 0) {
            plain_free(s);
            return rc_fail_what(err, RC_CONFLICT, r->origin,
                                "the credential for %s does not open: it was sealed under another "
                                "master key, or changed on disk",
                                r->origin);
        }
    }
    return RC_OK;
}

static size_t place(const struct sup_secrets *s, const char *origin, bool *there)
{
    size_t i = 0;

    while (i < s->n && strcmp(s->row[i].origin, origin) < 0)
        i++;
    *there = i < s->n && strcmp(s->row[i].origin, origin) == 0;
    return i;
}

const uint8_t *sup_secrets_get(const struct sup_secrets *s, const char *origin, size_t *n)
{
    bool there;
    size_t i = place(s, origin, &there);

    if (!there || !s->plain)
        return NULL;
    *n = s->at[i + 1] - s->at[i];
    return s->plain + s->at[i];
}

static enum rc value_check(const char *p, size_t n, struct rc_err *err)
{
    if (n == 0 || n > SUP_SECRET_BYTES)
        return rc_fail_what(err, RC_INVALID, "secret", "%zu bytes: expected 1 to %u", n,
                            SUP_SECRET_BYTES);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
            return rc_fail_what(err, RC_INVALID, "secret",
                                "byte %zu is a control character: it could not be sent as a header",
                                i + 1);
    return RC_OK;
}

static enum rc row_new(struct sup_secrets *s, size_t at, const char *origin, uint64_t now_s,
                       struct rc_err *err)
{
    struct sup_sealed *q;
    char *copy;

    if (s->n >= SUP_SECRETS_MAX)
        return rc_fail(err, RC_LIMIT, "there are %zu credentials, at most %u are kept", s->n,
                       SUP_SECRETS_MAX);
    if (!(q = realloc(s->row, (s->n + 1) * sizeof(*q))))
        return rc_fail(err, RC_NOMEM, "no memory for a credential");
    s->row = q;
    if (!(copy = strdup(origin)))
        return rc_fail(err, RC_NOMEM, "no memory for a credential");
    memmove(q + at + 1, q + at, (s->n - at) * sizeof(*q));
    q[at] = (struct sup_sealed){.origin = copy, .created_s = now_s};
    s->n++;
    return RC_OK;
}

enum rc sup_secrets_set(struct sup_secrets *s, const char *origin, const void *value, size_t n,
                        uint64_t now_s, const uint8_t master[SUP_MASTER_BYTES], struct rc_err *err)
{
    enum rc rc = value_check(value, n, err);
    bool there;
    size_t at;

    if (rc != RC_OK)
        return rc;
    plain_free(s); /* its places are no longer true */
    at = place(s, origin, &there);
    if (!there && (rc = row_new(s, at, origin, now_s, err)) != RC_OK)
        return rc;
    if ((rc = seal(&s->row[at], value, n, master, err)) != RC_OK) {
        if (!there)
            sup_secrets_remove(s, origin);
        return rc;
    }
    if (there)
        s->row[at].rotated_s = now_s;
    return RC_OK;
}

bool sup_secrets_remove(struct sup_secrets *s, const char *origin)
{
    bool there;
    size_t at = place(s, origin, &there);

    if (!there)
        return false;
    plain_free(s);
    row_deinit(&s->row[at]);
    s->n--;
    memmove(s->row + at, s->row + at + 1, (s->n - at) * sizeof(*s->row));
    return true;
}

enum rc sup_secrets_reseal(struct sup_secrets *s, const uint8_t master[SUP_MASTER_BYTES],
                           struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (size_t i = 0; rc == RC_OK && i < s->n; i++)
        rc = seal(&s->row[i], s->plain + s->at[i], s->at[i + 1] - s->at[i], master, err);
    return rc;
}
