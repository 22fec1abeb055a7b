/* wrk_verify.c - see wrk_verify.h.
 *
 * A person's command: no model, no request, no sandbox; it opens the driver, runs what is
 * built into this program, and writes nothing but the page it is told to write.
 */
#include "wrk_verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_kconf.h"
#include "wrk_device.h"

const char wrk_verify_usage[] =
    "       inferd-worker verify-kernels [--backend=cuda] [--device=N] [--arch=N] [--only=TEXT]\n"
    "           [--quick] [--seed=N] [--markdown=PATH] [--cuda-library=PATH]\n"
    "           checks every generated kernel on a device against the processor\n";

struct args {
    struct wrk_device device;
    const char *only, *markdown;
    uint64_t arch, seed;
    bool quick;
};

static bool number(const char *v, uint64_t max, uint64_t *out)
{
    char *end = NULL;
    unsigned long long n = v ? strtoull(v, &end, 10) : 0;

    if (!v || *v < '0' || *v > '9' || *end != '\0' || n > max)
        return false;
    *out = n;
    return true;
}

/* One word with its value, or a plain flag. *used: the value was taken. */
static bool set(struct args *a, const char *name, const char *v, bool *used)
{
    bool known;

    *used = true;
    if (strcmp(name, "quick") == 0) {
        *used = false;
        return a->quick = true;
    }
    if (strcmp(name, "only") == 0)
        return (a->only = v) != NULL;
    if (strcmp(name, "markdown") == 0)
        return (a->markdown = v) != NULL;
    if (strcmp(name, "arch") == 0)
        return number(v, 999, &a->arch);
    if (strcmp(name, "seed") == 0)
        return number(v, UINT64_MAX, &a->seed);
    return wrk_device_set(&a->device, name, v, &known);
}

/* Index of the first bad word; 0 = none. */
static int parse(struct args *a, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *eq = strchr(argv[i], '=');
        int at = i;
        char name[32];
        bool used;

        if (strncmp(argv[i], "--", 2) != 0 ||
            (size_t)snprintf(name, sizeof(name), "%.*s",
                             eq ? (int)(eq - argv[i]) - 2 : (int)strlen(argv[i]) - 2,
                             argv[i] + 2) >= sizeof(name))
            return i;
        if (!set(a, name, eq ? eq + 1 : i + 1 < argc ? argv[i + 1] : NULL, &used) || (eq && !used))
            return at;
        if (!eq && used)
            i++;
    }
    return 0;
}

static void line(void *user, const char *text)
{
    (void)user;
    printf("%s\n", text);
    fflush(stdout);
}

static bool write_page(const char *path, const struct be_kconf_report *r)
{
    char *text = be_kconf_markdown(r);
    FILE *f = text ? fopen(path, "we") : NULL;
    bool ok = f && fputs(text, f) >= 0;

    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        fprintf(stderr, "inferd-worker: verify-kernels: '%s': %s\n", path,
                text ? strerror(errno) : "out of memory");
    free(text);
    return ok;
}

static enum rc verify(const struct args *a, struct be_kconf_report *r, struct rc_err *err)
{
    struct be_kconf_dev dev = {0};
    struct be_kconf_cuda *cuda = NULL;
    struct be_kconf_opts o = {.dev = &dev,
                              .level = a->quick ? BE_KCONF_QUICK : BE_KCONF_FULL,
                              .only = a->only,
                              .seed = a->seed,
                              .line = line};
    enum rc rc = be_kconf_cuda_open(&cuda, (int)a->device.device, (uint32_t)a->arch, &dev, err);

    if (rc == RC_OK)
        rc = be_kconf_run(&o, r, err);
    be_kconf_cuda_close(&cuda);
    return rc;
}

int wrk_verify(int argc, char **argv)
{
    struct args a = {.device = {.backend = "cuda"}};
    struct be_kconf_report r;
    struct rc_err err = RC_ERR_INIT;
    char sum[160];
    bool ok;
    int bad = parse(&a, argc, argv);

    memset(&r, 0, sizeof(r));
    if (bad != 0) {
        fprintf(stderr, "inferd-worker: unknown or malformed argument '%s'\nusage:\n%s", argv[bad],
                wrk_verify_usage);
        return 2;
    }
    if (wrk_device_is_cpu(&a.device)) {
        fputs("inferd-worker: verify-kernels: backend cpu has no generated kernels\n", stderr);
        return 2;
    }
    wrk_device_export(&a.device);
    if (verify(&a, &r, &err) != RC_OK) {
        fprintf(stderr, "inferd-worker: verify-kernels: %s\n", err.msg);
        be_kconf_report_deinit(&r);
        return 1;
    }
    be_kconf_summary(&r, sum, sizeof(sum));
    printf("%s: %s\n", r.device, sum);
    ok = r.n_failed == 0 && r.n_passed > 0;
    if (a.markdown)
        ok = write_page(a.markdown, &r) && ok;
    be_kconf_report_deinit(&r);
    return ok ? 0 : 1;
}
