/* sup_audit.h - who did what to keys, credentials and models: audit.jsonl.
 *
 * One JSON line per act, appended and synced; a command does so before it changes anything:
 *   {"time":"2026-11-30T20:15:00Z","act":"key.create","who":"user:1000","key":..,"tenant":..}
 * At SUP_AUDIT_BYTES the file becomes audit.jsonl.1 (the one before that goes). When a line
 * cannot be written (disk full), the act of a command is refused; the server goes on
 * serving and says so in its log. Tests: tests/supervisor/test_sup_vault_dir.c
 */
#ifndef INFERD_SUP_AUDIT_H
#define INFERD_SUP_AUDIT_H

#include <stddef.h>
#include <time.h>

#include "rc.h"

#define SUP_AUDIT_BYTES (16u << 20)
#define SUP_AUDIT_LINE 8192u /* longest line; longer fields are left out, and said so */

/* fields: members of a JSON object with a leading comma, or "". The writers share the file:
 * O_APPEND and one write(2) a line. Errors: RC_IO. */
enum rc sup_audit_write(int dir_fd, time_t now, const char *act, const char *who,
                        const char *fields, size_t max_bytes, struct rc_err *err);

#endif
