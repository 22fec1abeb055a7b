/* sup_keep.h - how long a request wants its model to stay loaded.
 *
 * The field "keep_alive" as clients of Ollama send it, or the header X-Keep-Alive: seconds
 * (300, "300", 1.5), a duration ("5m", "1h30m", "500ms"), 0 = unload when idle, negative = as
 * long as may be asked for (keep_alive_max_s). Pure. Tests: tests/supervisor/test_sup_keep.c
 */
#ifndef INFERD_SUP_KEEP_H
#define INFERD_SUP_KEEP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct sup_fail;

#define SUP_KEEP_TEXT_MAX 64

/* j or header may be NULL; the field goes before the header. *set: one of them was there, then
 * *ms is what it says, at most max_s. false: *f. */
bool sup_keep_read(const json_t *j, const char *header, uint64_t max_s, bool *set, uint64_t *ms,
                   struct sup_fail *f);

#endif
