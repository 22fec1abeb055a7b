/* wrk_bench_opts.c - the words of `inferd-worker --bench`.
 *
 * Options are a table, and so are sections. Numbers that nobody gave stay 0:
 * wrk_bench_fit knows the model and decides. Tests: tests/worker/test_wrk_bench.c
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_bench_impl.h"

static const struct option {
    const char *name;
    size_t at;         /* of a const char * or a uint64_t */
    uint64_t min, max; /* 0, 0: a word */
} options[] = {
#define AT(f) offsetof(struct wrk_bench_opts, f)
    {"--prompt", AT(prompt), 1, 1u << 20},
    {"--gen", AT(gen), 1, 1u << 20},
    {"--context", AT(context), WRK_BENCH_CONTEXT, 1u << 20},
    {"--prefix", AT(prefix), WRK_BENCH_CACHE_TOKENS, 1u << 20},
    {"--seqs", AT(seqs), 1, WRK_SEQS_MAX},
    {"--threads", AT(threads), 1, 1024},
    {"--runs", AT(runs), 1, WRK_BENCH_RUNS},
    {"--batch-tokens", AT(batch_tokens), 1, WRK_BATCH_MAX},
    {"--kv-mb", AT(kv_mb), 1, 1u << 20},
    {"--speculation-tokens", AT(spec_tokens), 1, WRK_SPEC_MOST},
    {"--embed-batch", AT(embed_batch), 1, 4096},
    {"--embed-tokens", AT(embed_tokens), 1, 1u << 16},
    {"--progress", AT(progress), 1, 1},
    {"--only", AT(only), 0, 0},
    {"--cpu-level", AT(cpu_level), 0, 0},
    {"--f32-gemm", AT(f32_gemm), 0, 0},
    {"--kv-dtype", AT(kv_dtype), 0, 0},
    {"--sandbox", AT(sandbox), 0, 0},
#undef AT
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static const struct {
    const char *name;
    unsigned section;
} sections[] = {
    {"prompt", WRK_BENCH_PROMPT}, {"decode", WRK_BENCH_DECODE},    {"batch", WRK_BENCH_BATCH},
    {"prefix", WRK_BENCH_PREFIX}, {"spec", WRK_BENCH_SPECULATION}, {"embed", WRK_BENCH_EMBED},
};
#define N_SECTIONS (sizeof(sections) / sizeof(sections[0]))

const char *wrk_bench_section_name(unsigned section)
{
    for (size_t i = 0; i < N_SECTIONS; i++)
        if (sections[i].section == section)
            return sections[i].name;
    return "";
}

enum rc wrk_bench_only(const char *list, unsigned *out, struct rc_err *err)
{
    unsigned got = 0;

    for (const char *s = list;; s++) {
        size_t n = strcspn(s, ","), k = 0;

        while (k < N_SECTIONS &&
               (strlen(sections[k].name) != n || strncmp(sections[k].name, s, n) != 0))
            k++;
        if (k == N_SECTIONS)
            return rc_fail(err, RC_INVALID,
                           "--only '%.100s': '%.*s' is no section, expected prompt, decode, batch, "
                           "prefix, spec or embed, with commas between",
                           list, (int)(n < 40 ? n : 40), s);
        got |= sections[k].section;
        s += n;
        if (*s == '\0')
            break;
    }
    *out = got;
    return RC_OK;
}

static enum rc set_option(struct wrk_bench_opts *o, const struct option *p, const char *v,
                          struct rc_err *err)
{
    char *end = NULL;
    unsigned long long n;

    if (v == NULL || *v == '\0')
        return rc_fail(err, RC_INVALID, "%s needs a value", p->name);
    if (p->max == 0) {
        memcpy((char *)o + p->at, &v, sizeof(v));
        return RC_OK;
    }
    n = strtoull(v, &end, 10);
    if (v[0] < '0' || v[0] > '9' || *end != '\0' || n < p->min || n > p->max)
        return rc_fail(err, RC_INVALID, "%s '%.100s', expected %llu to %llu", p->name, v,
                       (unsigned long long)p->min, (unsigned long long)p->max);
    memcpy((char *)o + p->at, &(uint64_t){n}, sizeof(uint64_t));
    return RC_OK;
}

/* A word of the device's, or unknown. */
static enum rc set_device(struct wrk_bench_opts *o, const char *arg, size_t len, const char *v,
                          struct rc_err *err)
{
    char name[32];
    bool known = false;

    if (len > 2 && len - 2 < sizeof(name)) {
        snprintf(name, sizeof(name), "%.*s", (int)len - 2, arg + 2);
        if (wrk_device_set(&o->device, name, v, &known))
            return RC_OK;
    }
    if (known)
        return rc_fail(err, RC_INVALID, "--%s: value '%.100s' is none of it; %s", name, v ? v : "",
                       wrk_device_usage());
    return rc_fail(err, RC_INVALID, "unknown argument '%.100s'", arg);
}

enum rc wrk_bench_parse(struct wrk_bench_opts *o, int argc, char **argv, struct rc_err *err)
{
    enum rc rc;

    for (int i = 2; i < argc; i++) {
        const char *arg = argv[i];
        size_t len = strcspn(arg, "="), k = 0;
        const char *v = arg[len] == '=' ? arg + len + 1 : NULL;

        if (arg[0] != '-' && o->path == NULL) {
            o->path = arg;
            continue;
        }
        while (k < N_OPTIONS &&
               (strlen(options[k].name) != len || strncmp(options[k].name, arg, len) != 0))
            k++;
        if (v == NULL && i + 1 < argc)
            v = argv[++i];
        rc = k == N_OPTIONS ? set_device(o, arg, len, v, err) : set_option(o, &options[k], v, err);
        if (rc != RC_OK)
            return rc;
    }
    o->sections = WRK_BENCH_ALL;
    if (o->only != NULL && (rc = wrk_bench_only(o->only, &o->sections, err)) != RC_OK)
        return rc;
    return o->path != NULL ? RC_OK : rc_fail(err, RC_INVALID, "--bench needs the path of a model");
}
