/* wrk_main.c - entry of `inferd-worker`. */
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("inferd-worker " INFERD_VERSION);
    return 0;
}
