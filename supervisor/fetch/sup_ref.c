/* sup_ref.c - reads references; knows nothing of the network or of files.
 *
 * Always true: nothing is guessed. A word that is no short name and has no owner is refused with
 * the short names there are. Tests: tests/supervisor/test_sup_ref.c, tests/fuzz/fuzz_ref.c
 */
#include "sup_ref.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sup_conf.h"

const struct sup_ref_alias sup_ref_aliases[] = {
    {"gemma4-e2b", "google/gemma-4-E2B-it-qat-q4_0-gguf"},
    {"gemma4-e2b-it", "google/gemma-4-E2B-it-qat-q4_0-gguf"},
    {"gemma-4-e2b", "google/gemma-4-E2B-it-qat-q4_0-gguf"},
    {"gemma-4-e2b-it", "google/gemma-4-E2B-it-qat-q4_0-gguf"},
    {"gemma4-e4b", "google/gemma-4-E4B-it-qat-q4_0-gguf"},
    {"gemma4-e4b-it", "google/gemma-4-E4B-it-qat-q4_0-gguf"},
    {"gemma-4-e4b", "google/gemma-4-E4B-it-qat-q4_0-gguf"},
    {"gemma-4-e4b-it", "google/gemma-4-E4B-it-qat-q4_0-gguf"},
    {"bge-m3", "BAAI/bge-m3"},
    {"all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"},
    {0},
};

/* One part of a hub's name: what the hub itself allows. */
static bool part_ok(const char *s, size_t n)
{
    if (n == 0 || n >= SUP_REF_PART || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isascii((unsigned char)s[i]) ||
            (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])))
            return false;
    return true;
}

static enum rc part(char *out, const char *what, const char *s, size_t n, struct rc_err *err)
{
    if (!part_ok(s, n))
        return rc_fail_what(err, RC_INVALID, what,
                            "the %s of a reference has 1 to %d letters, digits, '.', '_' and '-', "
                            "and begins with a letter, a digit or '_'",
                            what, SUP_REF_PART - 1);
    memcpy(out, s, n);
    out[n] = '\0';
    return RC_OK;
}

/* auto, a format, a format and a quantization, or a file's name. */
static enum rc set_variant(struct sup_ref *r, const char *s, size_t n, struct rc_err *err)
{
    bool ok = n > 0 && n < sizeof(r->variant) && s[0] != '.' && s[0] != '-';

    for (size_t i = 0; ok && i < n; i++)
        ok =
            isascii((unsigned char)s[i]) && (isalnum((unsigned char)s[i]) || strchr("._-+:", s[i]));
    if (!ok)
        return rc_fail_what(err, RC_INVALID, "variant",
                            "a variant is like gguf, gguf:Q8_0, Q8_0, safetensors or a file's "
                            "name: 1 to %d letters, digits, '.', '_', '-', '+' and ':'",
                            SUP_REF_PART - 1);
    memcpy(r->variant, s, n);
    r->variant[n] = '\0';
    return RC_OK;
}

/* A branch, tag or commit: a path of plain parts. */
static enum rc set_revision(struct sup_ref *r, const char *s, size_t n, struct rc_err *err)
{
    bool ok = n > 0 && n < sizeof(r->revision) && s[n - 1] != '/';

    for (size_t i = 0; ok && i < n; i++) {
        bool begins = i == 0 || s[i - 1] == '/';

        ok = isascii((unsigned char)s[i]) &&
             (isalnum((unsigned char)s[i]) || strchr("._-+/", s[i])) &&
             (!begins || !strchr("./-", s[i]));
    }
    if (!ok)
        return rc_fail_what(err, RC_INVALID, "revision",
                            "a revision is a branch, a tag or a commit: at most %zu letters, "
                            "digits, '.', '_', '-', '+' and single '/'",
                            sizeof(r->revision) - 1);
    memcpy(r->revision, s, n);
    r->revision[n] = '\0';
    return RC_OK;
}

static enum rc known_names(const char *text, struct rc_err *err)
{
    char names[300] = "";
    size_t n = 0;

    for (const struct sup_ref_alias *a = sup_ref_aliases; a->name; a++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", a->name);
    return rc_fail_what(err, RC_INVALID, "reference",
                        "'%.100s' is no model: a reference is owner/name, https://..., file:... "
                        "or one of %s",
                        text, names);
}

static enum rc hub(struct sup_ref *r, const char *s, struct rc_err *err)
{
    const char *slash = strchr(s, '/'), *at = strchr(s, '@'), *end = at ? at : s + strlen(s);
    const char *colon = memchr(s, ':', (size_t)(end - s));
    const char *name_end = colon ? colon : end;
    enum rc rc;

    r->kind = SUP_REF_HUB;
    if (!slash || slash > name_end)
        return known_names(s, err);
    if ((rc = part(r->owner, "owner", s, (size_t)(slash - s), err)) != RC_OK ||
        (rc = part(r->name, "name", slash + 1, (size_t)(name_end - slash - 1), err)) != RC_OK)
        return rc;
    if (colon && (rc = set_variant(r, colon + 1, (size_t)(end - colon - 1), err)) != RC_OK)
        return rc;
    return at ? set_revision(r, at + 1, strlen(at + 1), err) : RC_OK;
}

static bool ends_in(const char *s, size_t n, const char *tail)
{
    size_t m = strlen(tail);

    return n > m && strncasecmp(s + n - m, tail, m) == 0;
}

/* The folder of a single file: its name without ".gguf", as far as it is a plain one. */
static enum rc file_name(struct sup_ref *r, const char *base, size_t n, const char *what,
                         struct rc_err *err)
{
    snprintf(r->owner, sizeof(r->owner), "local");
    if (ends_in(base, n, ".gguf"))
        n -= 5;
    if (!part_ok(base, n))
        return rc_fail_what(err, RC_INVALID, what,
                            "the last part of the %s has to be a plain name of 1 to %d letters, "
                            "digits, '.', '_' and '-', which becomes the model's",
                            what, SUP_REF_PART - 1);
    memcpy(r->name, base, n);
    r->name[n] = '\0';
    return RC_OK;
}

static enum rc url(struct sup_ref *r, const char *s, struct rc_err *err)
{
    char origin[SUP_ORIGIN_MAX];
    size_t n = strcspn(s, "?#");
    const char *base = s + n;

    r->kind = SUP_REF_URL;
    if (!sup_ref_origin(s, origin))
        return rc_fail_what(err, RC_INVALID, "url",
                            "'%.200s' is no URL of the form https://host/path, without a user "
                            "name",
                            s);
    if (!sup_ref_origin_safe(origin))
        return rc_fail_what(err, RC_INVALID, "url",
                            "'%.200s': http is taken from this machine alone; use https", s);
    if (!ends_in(s, n, ".gguf"))
        return rc_fail_what(err, RC_INVALID, "url",
                            "a single file has to be a .gguf; models of several files come from "
                            "a hub (owner/name) or a folder (file:/path)");
    while (base > s && base[-1] != '/')
        base--;
    snprintf(r->target, sizeof(r->target), "%s", s);
    return file_name(r, base, (size_t)(s + n - base), "url", err);
}

static enum rc file(struct sup_ref *r, const char *s, struct rc_err *err)
{
    size_t n = strlen(s);
    const char *base;

    r->kind = SUP_REF_FILE;
    if (strncmp(s, "//", 2) == 0 && s[2] == '/') { /* file:///path */
        s += 2;
        n -= 2;
    }
    while (n > 1 && s[n - 1] == '/')
        n--;
    if (s[0] != '/' || n < 2)
        return rc_fail_what(err, RC_INVALID, "path",
                            "'file:%.200s': a whole path is needed, like file:/models/a.gguf", s);
    base = s + n;
    while (base[-1] != '/')
        base--;
    memcpy(r->target, s, n);
    r->target[n] = '\0';
    return file_name(r, base, (size_t)(s + n - base), "path", err);
}

/* Two ways to say the same: both may be there, both must agree. */
static enum rc option(char *have, const char *none, const char *what, const char *given,
                      struct sup_ref *r, struct rc_err *err)
{
    char before[256];
    enum rc rc;

    if (!given)
        return RC_OK;
    snprintf(before, sizeof(before), "%s", have);
    rc = have == r->variant ? set_variant(r, given, strlen(given), err)
                            : set_revision(r, given, strlen(given), err);
    if (rc == RC_OK && strcmp(before, none) != 0 && strcmp(before, have) != 0)
        rc = rc_fail_what(err, RC_INVALID, what, "--%s says '%s', the reference '%s'", what, given,
                          before);
    return rc;
}

/* Where it goes: an explicit variant has a folder of its own, so that two do not replace each
 * other. ':' and '+' are no part of a folder's name here. */
static void place(struct sup_ref *r)
{
    size_t n = (size_t)snprintf(r->dest, sizeof(r->dest), "%s/%s", r->owner, r->name);

    if (strcmp(r->variant, "auto") != 0)
        n += (size_t)snprintf(r->dest + n, sizeof(r->dest) - n, "--%s", r->variant);
    for (char *p = r->dest; *p; p++)
        if (*p == ':' || *p == '+')
            *p = '-';
    if (r->kind == SUP_REF_HUB)
        snprintf(r->text, sizeof(r->text), "%s/%s%s%s@%s", r->owner, r->name,
                 strcmp(r->variant, "auto") == 0 ? "" : ":",
                 strcmp(r->variant, "auto") == 0 ? "" : r->variant, r->revision);
    else
        snprintf(r->text, sizeof(r->text), "%s%s", r->kind == SUP_REF_FILE ? "file:" : "",
                 r->target);
}

static const char *alias(const char *text)
{
    for (const struct sup_ref_alias *a = sup_ref_aliases; a->name; a++)
        if (strcasecmp(text, a->name) == 0)
            return a->means;
    return text;
}

enum rc sup_ref_parse(struct sup_ref *out, const char *text, const char *variant,
                      const char *revision, struct rc_err *err)
{
    struct sup_ref r = {.variant = "auto", .revision = "main"};
    size_t n = strnlen(text, SUP_REF_MAX);
    enum rc rc;

    if (n > SUP_REF_MAX - 16)
        return rc_fail_what(err, RC_TOO_LARGE, "reference", "a reference has at most %d bytes",
                            SUP_REF_MAX - 16);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= 0x20 || text[i] > 0x7E)
            return rc_fail_what(err, RC_INVALID, "reference",
                                "byte %zu of the reference is no printable ASCII character", i);
    text = alias(text);
    if (strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0)
        rc = url(&r, text, err);
    else if (strncmp(text, "file:", 5) == 0)
        rc = file(&r, text + 5, err);
    else
        rc = hub(&r, strncmp(text, "hf:", 3) == 0 ? text + 3 : text, err);
    if (rc == RC_OK)
        rc = option(r.variant, "auto", "variant", variant, &r, err);
    if (rc == RC_OK)
        rc = option(r.revision, "main", "revision", revision, &r, err);
    if (rc == RC_OK && r.kind != SUP_REF_HUB && revision)
        rc = rc_fail_what(err, RC_INVALID, "revision", "only a hub has revisions");
    if (rc == RC_OK && r.kind == SUP_REF_URL && variant)
        rc = rc_fail_what(err, RC_INVALID, "variant", "a single file has no variants");
    if (rc != RC_OK)
        return rc;
    place(&r);
    *out = r;
    return RC_OK;
}

/* ---------------------------------------------------------------- origins */

/* host[:port] of n bytes; "[v6]" keeps its brackets. */
static bool host_port(const char *s, size_t n, const char *scheme, char *out)
{
    size_t host = n, i;
    unsigned port = strcmp(scheme, "https") == 0 ? 443 : 80;
    const char *colon;

    if (n == 0 || n > 255 || memchr(s, '@', n))
        return false;
    if (s[0] == '[') {
        const char *close = memchr(s, ']', n);

        if (!close)
            return false;
        host = (size_t)(close - s) + 1;
        colon = host < n ? close + 1 : NULL;
    } else {
        colon = memchr(s, ':', n);
        host = colon ? (size_t)(colon - s) : n;
    }
    if (colon) {
        if (*colon != ':' || n - host < 2 || n - host > 6)
            return false;
        for (port = 0, i = host + 1; i < n; i++) {
            if (s[i] < '0' || s[i] > '9')
                return false;
            port = port * 10 + (unsigned)(s[i] - '0');
        }
        if (port == 0 || port > 65535)
            return false;
    }
    for (i = 0; i < host; i++)
        if (!isascii((unsigned char)s[i]) ||
            (s[0] == '[' ? !isxdigit((unsigned char)s[i]) && !strchr("[]:.", s[i])
                         : !isalnum((unsigned char)s[i]) && !strchr("._-", s[i])))
            return false;
    if (host == 0 || s[0] == '.')
        return false;
    snprintf(out, SUP_ORIGIN_MAX, "%s://%.*s:%u", scheme, (int)host, s, port);
    for (char *p = out; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return true;
}

bool sup_ref_origin(const char *u, char out[SUP_ORIGIN_MAX])
{
    static const char *const schemes[] = {"https", "http"};

    for (const char *p = u; *p; p++)
        if (*p <= 0x20 || *p > 0x7E || *p == '\\') /* read in several ways by several readers */
            return false;
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);

        if (strncasecmp(u, schemes[i], n) == 0 && strncmp(u + n, "://", 3) == 0)
            return host_port(u + n + 3, strcspn(u + n + 3, "/?#"), schemes[i], out);
    }
    return false;
}

bool sup_ref_origin_safe(const char *origin)
{
    char host[SUP_ORIGIN_MAX];
    char *colon;
    size_t n;

    if (strncmp(origin, "https://", 8) == 0)
        return true;
    if (strncmp(origin, "http://", 7) != 0)
        return false;
    snprintf(host, sizeof(host), "%s", origin + 7);
    if ((colon = strrchr(host, ':')))
        *colon = '\0';
    n = strlen(host);
    if (n > 2 && host[0] == '[') {
        host[n - 1] = '\0';
        return sup_conf_is_loopback(host + 1);
    }
    return sup_conf_is_loopback(host);
}
