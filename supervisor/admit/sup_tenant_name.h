/* sup_tenant_name.h - a tenant's name as the key of a table: its hash and its copy.
 *
 * For the tables of sup_quota.c and sup_fair.c, which both look before they keep.
 * Tests: tests/supervisor/test_sup_quota.c, test_sup_fair.c
 */
#ifndef INFERD_SUP_TENANT_NAME_H
#define INFERD_SUP_TENANT_NAME_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "sup_grant.h"

/* FNV-1a. */
static inline uint32_t sup_tenant_hash(const char *s)
{
    uint32_t h = 2166136261u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

/* False: it is longer than a tenant's name can be, and nothing was written. */
static inline bool sup_tenant_copy(char out[SUP_TENANT_MAX + 1], const char *name)
{
    size_t n = strnlen(name, SUP_TENANT_MAX + 1);

    if (n > SUP_TENANT_MAX)
        return false;
    memcpy(out, name, n);
    out[n] = '\0';
    return true;
}

#endif
