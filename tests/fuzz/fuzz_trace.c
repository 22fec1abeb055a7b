/* fuzz_trace.c - traceparent and tracestate from a client.
 * room: sup
 *
 * What is read is written and read again to the same ids; nothing is read behind the
 * text's NUL (AddressSanitizer watches a block of just that size).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1), again[SUP_TRACE_BYTES];
    struct sup_trace t = {0}, u = {0};

    if (!text)
        return 0;
    if (n)
        memcpy(text, data, n);
    text[n] = '\0';
    (void)sup_trace_state_ok(text);
    if (sup_trace_parse(text, &t)) {
        memcpy(t.span_id, t.parent_id, sizeof(t.span_id));
        sup_trace_print(&t, again);
        if (!sup_trace_is(&t) || !sup_trace_parse(again, &u) ||
            memcmp(t.trace_id, u.trace_id, sizeof(t.trace_id)) != 0 ||
            memcmp(t.parent_id, u.parent_id, sizeof(t.parent_id)) != 0 || t.flags != u.flags) {
            fprintf(stderr, "'%s' became '%s'\n", text, again);
            abort();
        }
    }
    free(text);
    return 0;
}
