/* be_kgen_main.c - kgen: prints the generated kernels. */
#include "be_kart.h"

#include <stdio.h>
#include <string.h>

static int list(void)
{
    char id[65];

    for (size_t f = 0; be_kfamilies[f]; f++) {
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const struct be_kentry *e = be_kfamilies[f]->at(i);

            be_kdesc_id(&e->desc, id);
            printf("%-8s %-20s %-40s sm_%u %s %.16s\n", be_kfamilies[f]->name, e->lib, e->name,
                   e->min_arch, e->production ? "production" : "candidate ", id);
        }
    }
    return 0;
}

static int print(const char *lib, bool metal, struct rc_err *err)
{
    struct be_ktext t = {0};
    enum rc rc = metal ? be_kmetal_text(lib, &t, err) : be_kcuda_text(lib, NULL, &t, err);

    if (rc == RC_OK)
        fwrite(t.p, 1, t.n, stdout);
    be_ktext_deinit(&t);
    return rc == RC_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct rc_err err = RC_ERR_INIT;
    int status = 2;

    if (be_kcat_check(be_kfamilies, &err) != RC_OK)
        status = 1;
    else if (argc == 2 && strcmp(argv[1], "--list") == 0)
        status = list();
    else if (argc >= 3 && argc <= 4 && strcmp(argv[1], "--print") == 0)
        status = print(argv[2], argc == 4 && strcmp(argv[3], "metal") == 0, &err);
    if (status == 1)
        fprintf(stderr, "kgen: %s\n", err.msg);
    if (status == 2)
        fprintf(stderr, "usage: kgen --list | --print LIB [cuda|metal]\n");
    return status;
}
