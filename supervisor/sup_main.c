/* sup_main.c - entry of `inferd`; hands argv to the command table (cli/sup_cli.c). */
#ifdef INFERD_FRONT
#include "sup_cli.h"

extern char **environ;

int main(int argc, char **argv)
{
    return sup_cli_main(argc, argv, environ);
}
#else /* a tree in which the front has not landed: nothing to serve with */
#include <stdio.h>

int main(void)
{
    fputs("inferd " INFERD_VERSION ": built without the front\n", stderr);
    return 1;
}
#endif
