/* be_kgen_main.c - kgen: writes, checks and prints the generated kernels.
 *
 * A tool of the build, not installed: `kgen --check` is part of ./tests/run, `kgen --write` is what
 * a kernel author runs (docs/kernels.md). Exit 0 good, 1 something is wrong (said), 2 usage.
 */
#include "be_kgen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_kart.h"

struct opts {
    struct be_kgen g;
    const char *print;
    bool metal, list, check, write;
};

static void say(void *user, const char *line)
{
    printf("%s\n", line);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: kgen --check [--root DIR]            compare the checked-in artifacts with the "
            "catalog\n"
            "       kgen --write [--nvrtc LIB] [--any-compiler] [--root DIR]\n"
            "                                            write what differs; compile stale PTX\n"
            "       kgen --list                          every kernel\n"
            "       kgen --print LIBRARY [cuda|metal]    text of one library\n"
            "DIR is a backends/kernels folder. LIB: libnvrtc.so.12, else INFERD_NVRTC_LIBRARY.\n");
    return 2;
}

static bool parse(struct opts *o, int argc, char **argv)
{
    int jobs = 0;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;

        if (strcmp(argv[i], "--check") == 0) {
            o->check = true;
            jobs++;
        } else if (strcmp(argv[i], "--write") == 0) {
            o->write = true;
            jobs++;
        } else if (strcmp(argv[i], "--list") == 0) {
            o->list = true;
            jobs++;
        } else if (strcmp(argv[i], "--print") == 0 && more) {
            o->print = argv[++i];
            jobs++;
        } else if (o->print && strcmp(argv[i], "metal") == 0) {
            o->metal = true;
        } else if (o->print && strcmp(argv[i], "cuda") == 0) {
            o->metal = false;
        } else if (strcmp(argv[i], "--root") == 0 && more) {
            o->g.root = argv[++i];
        } else if (strcmp(argv[i], "--nvrtc") == 0 && more) {
            o->g.nvrtc = argv[++i];
        } else if (strcmp(argv[i], "--any-compiler") == 0) {
            o->g.any_compiler = true;
        } else {
            return false;
        }
    }
    return jobs == 1;
}

static enum rc list(struct rc_err *err)
{
    char id[65];
    enum rc rc = be_kcat_check(be_kfamilies, err);

    for (size_t f = 0; rc == RC_OK && be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);

            be_kdesc_id(&e->desc, id);
            printf("%-7s %-20s %-36s sm_%u %s %.16s\n", be_kfamilies[f]->name, e->lib, e->name,
                   e->min_arch, e->production ? "production" : "candidate ", id);
        }
    }
    return rc;
}

static enum rc print(const struct opts *o, struct rc_err *err)
{
    struct be_ktext t = {0};
    enum rc rc =
        o->metal ? be_kmetal_text(o->print, &t, err) : be_kcuda_text(o->print, NULL, &t, err);

    if (rc == RC_OK && fwrite(t.p, 1, t.n, stdout) != t.n)
        rc = rc_fail(err, RC_IO, "cannot write the text");
    be_ktext_deinit(&t);
    return rc;
}

int main(int argc, char **argv)
{
    struct opts o = {.g = {.root = BE_KGEN_ROOT, .families = be_kfamilies, .say = say}};
    struct rc_err err = RC_ERR_INIT;
    uint32_t bad = 0;
    enum rc rc;

    o.g.nvrtc = getenv("INFERD_NVRTC_LIBRARY");
    if (!parse(&o, argc, argv))
        return usage();
    if (o.check)
        rc = be_kgen_check(&o.g, &bad, &err);
    else if (o.write)
        rc = be_kgen_write(&o.g, &err);
    else
        rc = o.list ? list(&err) : print(&o, &err);
    if (rc == RC_OK)
        return 0;
    fprintf(stderr, "kgen: %s\n", err.msg);
    if (bad)
        fprintf(stderr, "kgen: run `kgen --write` and commit what it writes\n");
    return 1;
}
