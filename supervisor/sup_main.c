/* sup_main.c - entry of `inferd`; hands argv to the command table (cli/sup_cli.c). */
#include "sup_cli.h"

extern char **environ;

int main(int argc, char **argv)
{
    return sup_cli_main(argc, argv, environ);
}
