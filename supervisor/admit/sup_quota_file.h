/* sup_quota_file.h - what tenants used of today, kept across a restart.
 *
 * A file "usage" in the folder of keys, opened before the sandbox and held: two places that are
 * written by turns, each with a number that grows and a sum over all of it, so that a write that
 * was cut off costs the seconds since the one before. Written when something changed, at most
 * every SUP_QUOTA_SAVE_MS, and at the end. At most SUP_TENANTS_MAX tenants, so its size is bounded.
 * Tests: tests/supervisor/test_sup_quota_file.c, tests/e2e/tenants.py
 */
#ifndef INFERD_SUP_QUOTA_FILE_H
#define INFERD_SUP_QUOTA_FILE_H

#include <stdint.h>

#include "rc.h"
#include "sup_quota.h"

#define SUP_QUOTA_FILE "usage"
#define SUP_QUOTA_SAVE_MS 5000

struct sup_quota_file;

/* Opens or makes it in dir and puts what it says of today into q. What cannot be read as a whole
 * counts as nothing and is logged (quota_days_lost). Errors (q as it was): RC_IO, RC_NOT_FOUND,
 * RC_CONFLICT (another owner, open to others), RC_BUSY (another server holds it), RC_NOMEM. */
enum rc sup_quota_file_open(struct sup_quota_file **out, const char *dir, struct sup_quota *q,
                            uint64_t unix_s, struct rc_err *err);
/* Accepts NULL. A failure is logged once until a write works again; what is kept then is older. */
void sup_quota_file_save(struct sup_quota_file *f, const struct sup_quota *q, uint64_t unix_s);
void sup_quota_file_close(struct sup_quota_file **f);

#endif
