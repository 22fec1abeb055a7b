/* fleet_util.h - a models folder on disk and a configuration for tests of the
 * launcher and the fleet. Included by the tests, not a test. */
#ifndef FLEET_UTIL_H
#define FLEET_UTIL_H

#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sup_conf.h"

/* Fails the process that runs it, also a forked one, where cmocka's asserts mean
 * nothing. */
#define MUST(x)                                                     \
    do {                                                            \
        if (!(x)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
            _exit(99);                                              \
        }                                                           \
    } while (0)

static char tmp_dir[256];

static inline int rm_one(const char *p, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(p);
}

static inline void tmp_make(void)
{
    snprintf(tmp_dir, sizeof(tmp_dir), "/tmp/inferd-test-XXXXXX");
    MUST(mkdtemp(tmp_dir));
}

static inline void tmp_remove(void)
{
    nftw(tmp_dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

__attribute__((format(printf, 1, 2))) static inline const char *tmp_path(const char *fmt, ...)
{
    static char ring[4][512];
    static int at;
    char *p = ring[at++ & 3];
    int n = snprintf(p, 512, "%s/", tmp_dir);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(p + n, 512 - (size_t)n, fmt, ap);
    va_end(ap);
    return p;
}

static inline void tmp_mkdir(const char *rel)
{
    MUST(mkdir(tmp_path("%s", rel), 0700) == 0);
}

/* Writes a file with a modification time that no earlier write had. */
static inline void tmp_write(const char *rel, const char *text)
{
    static int64_t tick;
    struct timespec t[2];
    FILE *f = fopen(tmp_path("%s", rel), "w");

    MUST(f);
    fputs(text, f);
    MUST(fclose(f) == 0);
    clock_gettime(CLOCK_REALTIME, &t[1]);
    t[1].tv_sec += ++tick;
    t[0] = t[1];
    MUST(utimensat(AT_FDCWD, tmp_path("%s", rel), t, 0) == 0);
}

static inline struct sup_conf test_conf(void)
{
    struct sup_conf c = {
        .models_dir = tmp_dir,
        .worker = (char *)TEST_BUILD "/tests/fake-worker",
        .sandbox = (char *)"off",
        .vault_dir = (char *)"",
        .vault_key_file = (char *)"",
        .require_auth = (char *)"auto",
        .otlp_endpoint = (char *)"",
        .trace_percent = 100,
        .log_level = (char *)"info",
        .backend = (char *)"cpu",
        .kv_dtype = (char *)"f16",
        .speculation = (char *)"auto",
        .cpu_level = (char *)"auto",
        .f32_gemm = (char *)"auto",
        .media_fetch_bytes = 1 << 20,
        .media_fetch_timeout_ms = 5000,
        .hub_endpoint = (char *)"https://huggingface.co",
        .pull_file_bytes = 1 << 30,
        .pull_model_bytes = 1 << 30,
        .max_loaded_models = 10,
        .keep_alive_s = 0,
        .load_timeout_s = 60,
        .max_seqs = 4,
        .batch_tokens = 128,
        .kv_mb = 1,
        .workspace_mb = 16,
        .memory_mb = 1024,
        .max_queue = 1024,
        .hang_timeout_s = 60,
        .silence_timeout_ms = 30000,
        .keep_alive_max_s = 3600,
        .drain_grace_ms = 1000,
    };
    return c;
}

#endif
