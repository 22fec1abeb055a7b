/* sup_http_listen.c - sockets that listen: TCP and Unix.
 *
 * Plain system calls instead of libuv's, so that every failure is known at once
 * and named. A host that is not loopback is refused where no key is asked for, unless
 * the operator said so (there is no TLS here). A Unix socket file left by a dead server is removed
 * only after a connect to it was refused; anything that is no socket is never removed. Tests:
 * tests/supervisor/test_sup_http_listen.c
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "sup_http_priv.h"

#define BACKLOG 1024

static bool is_loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)sa;

        return ntohl(a->sin_addr.s_addr) >> 24 == 127;
    }
    if (sa->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
    return false;
}

/* Numeric first: names need files that a sandboxed process may not read. */
static enum rc resolve(const char *host, unsigned port, struct sockaddr_storage *out,
                       socklen_t *out_n, struct rc_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char bare[256], service[8];
    size_t n = strlen(host);
    int e;

    if (n >= sizeof(bare))
        return rc_fail_what(err, RC_INVALID, "host", "host: %zu bytes long, expected below %zu", n,
                            sizeof(bare));
    snprintf(bare, sizeof(bare), "%s", host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']')
        snprintf(bare, sizeof(bare), "%.*s", (int)(n - 2), host + 1);
    if (strcmp(bare, "localhost") == 0)
        snprintf(bare, sizeof(bare), "127.0.0.1");
    snprintf(service, sizeof(service), "%u", port);
    hints.ai_flags |= AI_NUMERICHOST;
    e = getaddrinfo(bare, service, &hints, &list);
    if (e == EAI_NONAME) {
        hints.ai_flags &= ~AI_NUMERICHOST;
        e = getaddrinfo(bare, service, &hints, &list);
    }
    if (e)
        return rc_fail_what(err, RC_INVALID, "host",
                            "host '%s': %s; expected an address of this machine", host,
                            gai_strerror(e));
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *out_n = list->ai_addrlen;
    freeaddrinfo(list);
    return RC_OK;
}

static unsigned bound_port(int fd)
{
    struct sockaddr_storage ss;
    socklen_t n = sizeof(ss);

    if (getsockname(fd, (struct sockaddr *)&ss, &n) != 0)
        return 0;
    if (ss.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)&ss)->sin_port);
    return ntohs(((struct sockaddr_in6 *)&ss)->sin6_port);
}

enum rc sup_listen_tcp(const struct sup_conf *conf, int *out_fd, unsigned *out_port,
                       struct rc_err *err)
{
    struct sockaddr_storage ss = {0};
    socklen_t n_ss = 0;
    int fd = -1, on = 1;
    enum rc rc;

    if ((rc = resolve(conf->host, (unsigned)conf->port, &ss, &n_ss, err)) != RC_OK)
        return rc;
    if (!conf->allow_insecure_public_bind && !sup_conf_auth_required(conf) &&
        !is_loopback((struct sockaddr *)&ss))
        return rc_fail_what(err, RC_INVALID, "host",
                            "host '%s' is not a loopback address and no API key is asked for, so "
                            "that needs vault_dir or allow_insecure_public_bind",
                            conf->host);
    fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rc_fail(err, RC_IO, "socket for '%s': %s", conf->host, strerror(errno));
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, (struct sockaddr *)&ss, n_ss) != 0 || listen(fd, BACKLOG) != 0) {
        rc = rc_fail_what(err, errno == EADDRINUSE ? RC_CONFLICT : RC_IO, "port",
                          "listening on %s port %llu: %s", conf->host,
                          (unsigned long long)conf->port, strerror(errno));
        close(fd);
        return rc;
    }
    *out_port = bound_port(fd);
    *out_fd = fd;
    return RC_OK;
}

static bool unix_addr(const char *path, struct sockaddr_un *un)
{
    size_t n = strlen(path);

    memset(un, 0, sizeof(*un));
    un->sun_family = AF_UNIX;
    if (n >= sizeof(un->sun_path))
        return false;
    memcpy(un->sun_path, path, n + 1);
    return true;
}

/* Makes way for bind: nothing there, or a socket nobody answers on. */
static enum rc clear_stale(const char *path, const struct sockaddr_un *un, struct rc_err *err)
{
    struct stat st;
    int fd, e;

    if (lstat(path, &st) != 0) {
        if (errno == ENOENT)
            return RC_OK;
        return rc_fail_what(err, RC_IO, "unix_socket", "'%s': %s", path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode))
        return rc_fail_what(err, RC_CONFLICT, "unix_socket",
                            "'%s' exists and is no socket; it is left alone", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rc_fail(err, RC_IO, "socket: %s", strerror(errno));
    e = connect(fd, (const struct sockaddr *)un, sizeof(*un)) == 0 ? 0 : errno;
    close(fd);
    if (e == 0 || e == EAGAIN || e == EINPROGRESS)
        return rc_fail_what(err, RC_CONFLICT, "unix_socket", "another process listens on '%s'",
                            path);
    if (e != ECONNREFUSED)
        return rc_fail_what(err, RC_IO, "unix_socket", "trying '%s': %s", path, strerror(e));
    if (unlink(path) != 0 && errno != ENOENT)
        return rc_fail_what(err, RC_IO, "unix_socket", "removing the stale socket '%s': %s", path,
                            strerror(errno));
    return RC_OK;
}

enum rc sup_listen_unix(const char *path, int *out_fd, struct rc_err *err)
{
    struct sockaddr_un un;
    enum rc rc;
    int fd;

    if (!unix_addr(path, &un))
        return rc_fail_what(err, RC_INVALID, "unix_socket",
                            "unix_socket: path of %zu bytes, expected below %zu", strlen(path),
                            sizeof(un.sun_path));
    if ((rc = clear_stale(path, &un, err)) != RC_OK)
        return rc;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rc_fail(err, RC_IO, "socket: %s", strerror(errno));
    /* Nobody can connect before listen, so the mode is set in time. */
    if (bind(fd, (struct sockaddr *)&un, sizeof(un)) != 0 || chmod(path, 0660) != 0 ||
        listen(fd, BACKLOG) != 0) {
        rc = rc_fail_what(err, errno == EADDRINUSE ? RC_CONFLICT : RC_IO, "unix_socket",
                          "listening on '%s': %s", path, strerror(errno));
        close(fd);
        return rc;
    }
    *out_fd = fd;
    return RC_OK;
}

void sup_listen_unlink(const char *path)
{
    struct stat st;

    /* A sandboxed front may not; then the next start finds it stale. */
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path);
}
