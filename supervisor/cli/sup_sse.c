/* sup_sse.c - see sup_sse.h. Holds one line and one event, both bounded.
 * Knows nothing of JSON. Tests: tests/supervisor/test_sup_cli_sse.c */
#include "sup_sse.h"

#include <stdlib.h>
#include <string.h>

void sup_sse_init(struct sup_sse *s,
                  bool (*on_event)(void *user, const char *event, const char *data, size_t n),
                  void *user)
{
    memset(s, 0, sizeof(*s));
    s->on_event = on_event;
    s->user = user;
}

void sup_sse_deinit(struct sup_sse *s)
{
    free(s->line);
    free(s->data);
    memset(s, 0, sizeof(*s));
}

/* Appends and keeps the buffer NUL-ended. */
static bool append(char **b, size_t *n, size_t *cap, const char *s, size_t len)
{
    if (len > SUP_SSE_MAX - *n)
        return false;
    if (*n + len + 1 > *cap) {
        size_t want = *cap ? *cap * 2 : 256;
        char *grown;

        while (want < *n + len + 1)
            want *= 2;
        grown = realloc(*b, want);
        if (!grown)
            return false;
        *b = grown;
        *cap = want;
    }
    memcpy(*b + *n, s, len);
    *n += len;
    (*b)[*n] = '\0';
    return true;
}

static bool dispatch(struct sup_sse *s)
{
    bool go = true;

    if (s->has_data) {
        /* the last line's LF is not part of the data */
        if (s->n_data > 0)
            s->data[--s->n_data] = '\0';
        go = s->on_event(s->user, s->event[0] ? s->event : "message", s->data ? s->data : "",
                         s->n_data);
    }
    s->n_data = 0;
    s->has_data = false;
    s->event[0] = '\0';
    return go;
}

static bool end_line(struct sup_sse *s)
{
    const char *l = s->line ? s->line : "", *value;
    size_t n = s->n_line, name;

    s->n_line = 0;
    if (n == 0)
        return dispatch(s);
    value = memchr(l, ':', n);
    name = value ? (size_t)(value - l) : n;
    value = value ? value + 1 : l + n;
    if (value < l + n && *value == ' ')
        value++;
    size_t len = (size_t)(l + n - value);
    if (name == 4 && memcmp(l, "data", 4) == 0) {
        s->has_data = true;
        return append(&s->data, &s->n_data, &s->cap_data, value, len) &&
               append(&s->data, &s->n_data, &s->cap_data, "\n", 1);
    }
    if (name == 5 && memcmp(l, "event", 5) == 0 && len < sizeof(s->event)) {
        memcpy(s->event, value, len);
        s->event[len] = '\0';
    }
    return true; /* comments, id, retry and unknown fields */
}

bool sup_sse_feed(struct sup_sse *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && !s->stopped; i++) {
        bool cr = s->after_cr;
        size_t run = 0;

        s->after_cr = bytes[i] == '\r';
        if (bytes[i] == '\n' && cr)
            continue;
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            s->stopped = !end_line(s);
            continue;
        }
        while (i + run < n && bytes[i + run] != '\n' && bytes[i + run] != '\r')
            run++;
        s->stopped = !append(&s->line, &s->n_line, &s->cap_line, bytes + i, run);
        i += run - 1;
    }
    return !s->stopped;
}
