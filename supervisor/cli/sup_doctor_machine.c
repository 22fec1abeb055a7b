/* sup_doctor_machine.c - processor, memory, limits, folders, ports. Reads /proc, /sys
 * and names in the models folder; never a model's bytes. Tests: tests/e2e/cli_doctor.py */
#include "sup_doctor.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "sup_cpu.h"
#include "sup_client.h"
#include "sup_term.h"

/* As sup_front.c counts: channels and pipes of a worker, listeners and the like. */
#define FDS_PER_WORKER 4
#define FDS_SPARE 64

static void limits(struct sup_doctor *d, const struct sup_conf *c)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        uint64_t need = c->max_connections + FDS_PER_WORKER * c->max_loaded_models + FDS_SPARE;

        if (r.rlim_max >= need) /* the server raises its soft limit itself */
            sup_doctor_say(d, SUP_FOUND_OK, "open files", "hard limit %" PRIu64 ", needed %" PRIu64,
                           (uint64_t)r.rlim_max, need);
        else
            sup_doctor_say(d, SUP_FOUND_WARN, "open files",
                           "hard limit %" PRIu64 " is less than the %" PRIu64
                           " that max_connections = %" PRIu64
                           " needs: raise it (ulimit -Hn, LimitNOFILE=) or lower max_connections",
                           (uint64_t)r.rlim_max, need, c->max_connections);
    }
    if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY)
        sup_doctor_say(d, SUP_FOUND_WARN, "address space",
                       "limited to %" PRIu64 " bytes (ulimit -v): models are mapped whole and may "
                       "not fit",
                       (uint64_t)r.rlim_cur);
}

static void memory(struct sup_doctor *d, const struct sup_conf *c)
{
    uint64_t total = sup_memory_total(), group = UINT64_MAX, least = total;
    bool limited = sup_cgroup_memory(&group);
    char a[16], b[16];

    if (limited && group < least)
        least = group;
    sup_doctor_say(d, total ? SUP_FOUND_OK : SUP_FOUND_NOTE, "memory",
                   "machine %s, cgroup limit %s", total ? sup_bytes(total, a) : "unknown",
                   limited ? sup_bytes(group, b) : "none");
    if (c->memory_mb && least && c->memory_mb > (least >> 20))
        sup_doctor_say(d, SUP_FOUND_WARN, "memory_mb",
                       "%" PRIu64 " MiB is more than there is (%s): workers may be killed by the "
                       "kernel",
                       c->memory_mb, sup_bytes(least, a));
}

void sup_doctor_machine(struct sup_doctor *d, const struct sup_conf *c)
{
    unsigned cpus = sup_cpu_affinity();
    char text[256];
    struct utsname u;
    double quota;

    sup_doctor_group(d, "Machine");
    if (uname(&u) == 0)
        sup_doctor_say(d, SUP_FOUND_NOTE, "kernel", "%.60s %.100s", u.sysname, u.release);
    sup_cpu_features(text, sizeof(text));
    sup_doctor_say(d, SUP_FOUND_NOTE, "processor", "%s", text);
    if (sup_cgroup_cpu(&quota))
        sup_doctor_say(d, quota < 1 ? SUP_FOUND_WARN : SUP_FOUND_OK, "processors",
                       "%u usable, cgroup quota %.2f%s", cpus, quota,
                       quota < 1 ? ": less than one processor, answers will be slow" : "");
    else
        sup_doctor_say(d, SUP_FOUND_OK, "processors", "%u usable, no cgroup quota", cpus);
    if (c->threads > cpus)
        sup_doctor_say(d, SUP_FOUND_WARN, "threads",
                       "%" PRIu64 " threads on %u processors: they will wait for each other",
                       c->threads, cpus);
    memory(d, c);
    limits(d, c);
}

/* ------------------------------------------------------------------- models */

struct found {
    unsigned n, n_dirs;
    size_t at;
    char names[400];
};

static void name(struct found *f, const char *rel)
{
    int w;

    f->n++;
    if (f->at >= sizeof(f->names) - 1)
        return;
    w = snprintf(f->names + f->at, sizeof(f->names) - f->at, "%s%s", f->at ? ", " : "", rel);
    f->at = w < 0 || f->at + (size_t)w >= sizeof(f->names) ? sizeof(f->names) : f->at + (size_t)w;
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n > m && strcmp(s + n - m, end) == 0;
}

/* Models at most three folders down, by names alone. */
static void look(struct found *f, const char *path, const char *rel, int depth)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    bool config = false, weights = false;

    if (!dir)
        return;
    while ((e = readdir(dir)) && ++f->n_dirs < 10000) {
        char below[4096], id[1024];
        struct stat st;

        if (e->d_name[0] == '.' ||
            snprintf(below, sizeof(below), "%s/%s", path, e->d_name) >= (int)sizeof(below) ||
            snprintf(id, sizeof(id), "%s%s%s", rel, *rel ? "/" : "", e->d_name) >=
                (int)sizeof(id) ||
            stat(below, &st) != 0)
            continue;
        config = config || strcmp(e->d_name, "config.json") == 0;
        weights = weights || ends_in(e->d_name, ".safetensors");
        if (S_ISREG(st.st_mode) && ends_in(e->d_name, ".gguf"))
            name(f, id);
        else if (S_ISDIR(st.st_mode) && depth < 3)
            look(f, below, id, depth + 1);
    }
    closedir(dir);
    if (*rel && config && weights)
        name(f, rel);
}

void sup_doctor_models(struct sup_doctor *d, const struct sup_conf *c)
{
    struct found f = {0};
    struct stat st;

    sup_doctor_group(d, "Models");
    if (stat(c->models_dir, &st) != 0 || access(c->models_dir, R_OK | X_OK) != 0) {
        sup_doctor_say(d, SUP_FOUND_FAIL, "models_dir",
                       "'%s': %s; name another folder with --models-dir", c->models_dir,
                       strerror(errno));
        return;
    }
    if (!S_ISDIR(st.st_mode)) {
        sup_doctor_say(d, SUP_FOUND_FAIL, "models_dir", "'%s' is no folder", c->models_dir);
        return;
    }
    look(&f, c->models_dir, "", 0);
    if (f.n == 0)
        sup_doctor_say(d, SUP_FOUND_WARN, "models_dir",
                       "'%s' holds no model (a .gguf file, or a folder with config.json and "
                       ".safetensors)",
                       c->models_dir);
    else
        sup_doctor_say(d, SUP_FOUND_OK, "models_dir", "'%s' holds %u: %s%s", c->models_dir, f.n,
                       f.names, f.at >= sizeof(f.names) ? "..." : "");
}

/* ------------------------------------------------------------------ network */

static int try_bind(const struct sup_conf *c)
{
    const char *host = strcmp(c->host, "localhost") == 0 ? "127.0.0.1" : c->host;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->port)};
    struct sockaddr_in6 b = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)c->port)};
    bool v4 = inet_pton(AF_INET, host, &a.sin_addr) == 1;
    int one = 1, fd, bad = 0;

    if (!v4 && inet_pton(AF_INET6, host, &b.sin6_addr) != 1)
        return EINVAL;
    fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, v4 ? (struct sockaddr *)&a : (struct sockaddr *)&b, v4 ? sizeof(a) : sizeof(b)) !=
        0)
        bad = errno;
    close(fd);
    return bad;
}

static void port(struct sup_doctor *d, const struct sup_conf *c, bool answers)
{
    int bad = try_bind(c);

    if (bad == 0)
        sup_doctor_say(d, SUP_FOUND_OK, "port", "%s port %" PRIu64 " is free", c->host, c->port);
    else if (bad == EADDRINUSE && answers)
        sup_doctor_say(d, SUP_FOUND_NOTE, "port",
                       "%s port %" PRIu64 " is in use by a running server", c->host, c->port);
    else
        sup_doctor_say(d, SUP_FOUND_FAIL, "port",
                       "%s port %" PRIu64 ": %s; choose another with --port (0 = any)", c->host,
                       c->port, strerror(bad));
    if (!sup_conf_is_loopback(c->host))
        sup_doctor_say(d, SUP_FOUND_WARN, "host",
                       "%s can be reached from other machines, without TLS%s", c->host,
                       sup_conf_auth_required(c) ? "" : " and without API keys");
}

void sup_doctor_network(struct sup_doctor *d, const struct sup_conf *c, const char *server)
{
    bool named = server && *server;
    struct sup_client *client = NULL;
    struct rc_err err = RC_ERR_INIT;
    unsigned health = 0, ready = 0;
    char url[160];

    sup_doctor_group(d, "Network");
    if (*c->host)
        snprintf(url, sizeof(url), strchr(c->host, ':') ? "http://[%s]:%u" : "http://%s:%u",
                 c->host, (unsigned)c->port);
    else
        snprintf(url, sizeof(url), "unix:%s", c->unix_socket);
    if (sup_client_new(&client, named ? server : url, &err) != RC_OK) {
        sup_doctor_say(d, SUP_FOUND_WARN, "server", "%s", err.msg);
    } else {
        (void)sup_client_probe(client, "/healthz", &health);
        (void)sup_client_probe(client, "/readyz", &ready);
    }
    if (*c->host)
        port(d, c, health == 200 && !named);
    if (client && health == 0)
        sup_doctor_say(d, SUP_FOUND_NOTE, "server", "none answers at %s",
                       sup_client_server(client));
    else if (client)
        sup_doctor_say(d, health == 200 && ready == 200 ? SUP_FOUND_OK : SUP_FOUND_WARN, "server",
                       "%s: /healthz %u, /readyz %u", sup_client_server(client), health, ready);
    sup_client_free(&client);
}
