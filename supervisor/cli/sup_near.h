/* sup_near.h - how many edits lie between a mistyped name and a known one. */
#ifndef INFERD_SUP_NEAR_H
#define INFERD_SUP_NEAR_H

#include <stddef.h>

/* Insertions, deletions and changes from a (na bytes) to b. '-' equals '_' and the
 * case of letters in a does not count. SIZE_MAX for names of 64 bytes or more.
 * A hint is worth giving up to 1 + na / 4. */
size_t sup_near(const char *a, size_t na, const char *b);

#endif
