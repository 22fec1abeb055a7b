/* sup_near.c - edit distance for "did you mean". Pure; bounded work (64 x 64).
 * Source: Wagner and Fischer 1974, one row kept. Tests: test_sup_cli_args.c */
#include "sup_near.h"

#include <stdint.h>
#include <string.h>

static char fold(char c)
{
    if (c == '-')
        return '_';
    return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

size_t sup_near(const char *a, size_t na, const char *b)
{
    size_t nb = strlen(b), row[64];

    if (na >= 64 || nb >= 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diag = row[0];

        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j], best = diag + (fold(a[i - 1]) != fold(b[j - 1]));

            best = up + 1 < best ? up + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diag = up;
        }
    }
    return row[nb];
}
