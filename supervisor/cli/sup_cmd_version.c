/* sup_cmd_version.c - `inferd version`: what exactly runs here.
 * Tests: tests/e2e/cli_models.py */
#include <curl/curl.h>
#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <seccomp.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <uv.h>
#include <llhttp.h>

#include "sup_cli.h"
#include "sup_cpu.h"
#include "sup_local.h"

#ifndef INFERD_GIT
#define INFERD_GIT "" /* a build from a tarball */
#endif

enum { O_JSON };

const struct sup_opt sup_opts_version[] = {
    {"json", SUP_O_FLAG, NULL, "print one JSON object", 0, 0},
    {0},
};

/* First line of `inferd-worker --version`, or why there is none. */
static void worker_version(char *out, size_t cap)
{
    char path[4096], *text = NULL;
    char *const argv[] = {"inferd-worker", "--version", NULL};
    struct rc_err err = RC_ERR_INIT;
    int status = 0;

    if (sup_worker_path(path, sizeof(path), NULL, &err) != RC_OK ||
        sup_worker_run(path, argv, 10, &text, &status, &err) != RC_OK)
        snprintf(out, cap, "not found: %.200s", err.msg);
    else
        snprintf(out, cap, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

int sup_cmd_version(const struct sup_args *a)
{
    char worker[256], llhttp[32], seccomp[32], kernel[160] = "unknown", cpu[256];
    const struct scmp_version *sc = seccomp_version();
    struct utsname u;

    worker_version(worker, sizeof(worker));
    snprintf(llhttp, sizeof(llhttp), "%d.%d.%d", LLHTTP_VERSION_MAJOR, LLHTTP_VERSION_MINOR,
             LLHTTP_VERSION_PATCH);
    snprintf(seccomp, sizeof(seccomp), "%u.%u.%u", sc ? sc->major : 0, sc ? sc->minor : 0,
             sc ? sc->micro : 0);
    if (uname(&u) == 0)
        snprintf(kernel, sizeof(kernel), "%.60s %.60s", u.sysname, u.release);
    sup_cpu_features(cpu, sizeof(cpu));
    const char *const rows[][2] = {
        {"inferd", INFERD_VERSION},
        {"git", INFERD_GIT[0] ? INFERD_GIT : "unknown"},
        {"worker", worker},
        {"libuv", uv_version_string()},
        {"llhttp", llhttp},
        {"jansson", jansson_version_str()},
        {"libcurl", curl_version_info(CURLVERSION_NOW)->version},
        {"libsodium", sodium_version_string()},
        {"protobuf-c", protobuf_c_version()},
        {"libseccomp", seccomp},
        {"kernel", kernel},
        {"processor", cpu},
    };
    json_t *o = a->v[O_JSON].set ? json_object() : NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (o)
            json_object_set_new(o, rows[i][0], json_string(rows[i][1]));
        else
            printf("%-12s%s\n", rows[i][0], rows[i][1]);
    }
    if (o) {
        (void)json_dumpf(o, stdout, JSON_INDENT(2));
        puts("");
        json_decref(o);
    }
    return SUP_EXIT_OK;
}
