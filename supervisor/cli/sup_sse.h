/* sup_sse.h - parser of server-sent events, fed in pieces of any size.
 *
 * Follows the event stream format of the HTML standard (9.2.6): LF, CR or CRLF
 * ends a line; "data" lines join with LF; lines that begin with ':' are comments.
 * One event is at most SUP_SSE_MAX bytes; past that, feeding fails.
 * Tests: tests/supervisor/test_sup_cli_sse.c
 */
#ifndef INFERD_SUP_SSE_H
#define INFERD_SUP_SSE_H

#include <stdbool.h>
#include <stddef.h>

#define SUP_SSE_MAX (4u << 20)

struct sup_sse {
    /* event: "message" unless named; data: NUL-ended, n bytes. Return false to
     * stop feeding. */
    bool (*on_event)(void *user, const char *event, const char *data, size_t n);
    void *user;
    char *line, *data;
    size_t n_line, cap_line, n_data, cap_data;
    char event[32];
    bool has_data, after_cr, stopped;
};

void sup_sse_init(struct sup_sse *s,
                  bool (*on_event)(void *user, const char *event, const char *data, size_t n),
                  void *user);
void sup_sse_deinit(struct sup_sse *s);
/* False when an event is too large, memory is out, or on_event said stop. */
bool sup_sse_feed(struct sup_sse *s, const char *bytes, size_t n);

#endif
