/* sup_conf_check.c - rules between options: what each may be by itself, but not beside the others.
 * Tests: tests/supervisor/test_sup_conf.c */
#include "sup_conf_impl.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>
#include <sys/un.h>

#include "sup_otlp.h"
#include "sup_pull.h"

bool sup_conf_is_loopback(const char *host)
{
    struct in_addr a;
    struct in6_addr b;

    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &a) == 1)
        return (ntohl(a.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &b) == 1)
        return IN6_IS_ADDR_LOOPBACK(&b) || (IN6_IS_ADDR_V4MAPPED(&b) && b.s6_addr[12] == 127);
    return false;
}

/* What the processor cannot do is refused here, not when a model is asked for. */
static enum rc check_device(const struct sup_conf *c, struct rc_err *err)
{
    const struct {
        const char *name, *value, *only_default;
    } table[] = {
        {"compute", c->compute, "exact_f32"},
        {"jit", c->jit, "off"},
    };

    if (strcmp(c->backend, "cpu") != 0)
        return RC_OK;
    if (strcmp(c->kv_dtype, "q8_0") == 0)
        return rc_fail_what(err, RC_INVALID, "kv_dtype",
                            "option 'kv_dtype': value 'q8_0' is for backend cuda: expected auto, "
                            "f16 or f32 with backend cpu");
    if (c->device != 0)
        return rc_fail_what(err, RC_INVALID, "device",
                            "option 'device': value '%" PRIu64 "' is for backend cuda: expected 0 "
                            "with backend cpu",
                            c->device);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].value, table[i].only_default) != 0)
            return rc_fail_what(err, RC_INVALID, table[i].name,
                                "option '%s': value '%s' is for backend cuda: expected %s with "
                                "backend cpu",
                                table[i].name, table[i].value, table[i].only_default);
    return RC_OK;
}

enum rc sup_conf_check(const struct sup_conf *c, struct rc_err *err)
{
    char hub[SUP_REF_MAX];
    struct sup_otlp_url otlp;
    struct in6_addr a;
    bool literal = inet_pton(AF_INET, c->host, &a) == 1 || inet_pton(AF_INET6, c->host, &a) == 1;

    if (!*c->host && !*c->unix_socket)
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '': expected an address, unless unix_socket is "
                            "set");
    if (*c->host && !literal && strcmp(c->host, "localhost") != 0)
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '%.80s': expected an IPv4 or IPv6 address, or "
                            "localhost (names are not looked up)",
                            c->host);
    if (sup_pull_hub(hub, c->hub_endpoint, err) != RC_OK) {
        rc_wrap(err, "option 'hub_endpoint'");
        return RC_INVALID;
    }
    if (strcmp(c->require_auth, "on") == 0 && !*c->vault_dir)
        return rc_fail_what(err, RC_INVALID, "require_auth",
                            "option 'require_auth': value 'on', but vault_dir is empty: no key "
                            "would be known; make keys with 'inferd keys create' and name their "
                            "folder in vault_dir");
    if (*c->host && !sup_conf_is_loopback(c->host) && !c->allow_insecure_public_bind &&
        !sup_conf_auth_required(c))
        return rc_fail_what(err, RC_INVALID, "host",
                            "option 'host': value '%.80s' can be reached from other machines and "
                            "no API key is asked for: set vault_dir (see 'inferd keys --help'), or "
                            "listen on 127.0.0.1 and put a proxy in front, or say "
                            "--allow-insecure-public-bind; there is no TLS here in any case",
                            c->host);
    if (strlen(c->unix_socket) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return rc_fail_what(err, RC_INVALID, "unix_socket",
                            "option 'unix_socket': value '%.80s...' has %zu bytes: expected a path "
                            "of at most %zu",
                            c->unix_socket, strlen(c->unix_socket),
                            sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
    if (!*c->models_dir)
        return rc_fail_what(err, RC_INVALID, "models_dir",
                            "option 'models_dir': value '': expected the path of a folder");
    if (*c->otlp_endpoint && sup_otlp_url_parse(c->otlp_endpoint, &otlp, err) != RC_OK)
        return RC_INVALID;
    return check_device(c, err);
}

bool sup_conf_auth_required(const struct sup_conf *c)
{
    if (strcmp(c->require_auth, "auto") == 0)
        return *c->vault_dir != '\0';
    return strcmp(c->require_auth, "on") == 0;
}
