/* sup_main.c - entry of `inferd`; hands argv to the command table. */
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("inferd " INFERD_VERSION);
    return 0;
}
