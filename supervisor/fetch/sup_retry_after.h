/* sup_retry_after.h - the value of a Retry-After header: seconds, or a date.
 *
 * Pure; reads no zone files, so it may be called behind a sandbox.
 * Source: RFC 9110, 5.6.7 and 10.2.3. Tests: tests/supervisor/test_sup_retry_after.c
 */
#ifndef INFERD_SUP_RETRY_AFTER_H
#define INFERD_SUP_RETRY_AFTER_H

#include <stdbool.h>
#include <stdint.h>

/* value: without white space around it. now_s: unix time. *out: seconds to wait, 0 for a date
 * that has passed, UINT32_MAX for all that is longer. false: neither form; *out is untouched. */
bool sup_retry_after(const char *value, int64_t now_s, uint32_t *out);

#endif
