/* be_ktext.c - the growing text that renderers write.
 *
 * A failure is remembered, so a renderer writes on and its caller looks once.
 * Tests: tests/backends/test_be_kir.c
 */
#include "be_kir.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* No library is near this; a renderer that loops for ever fails instead. */
#define TEXT_MAX ((size_t)64 << 20)

static bool grow(struct be_ktext *t, size_t more)
{
    size_t cap = t->cap ? t->cap : 4096;
    char *p;

    if (more > TEXT_MAX || t->n > TEXT_MAX - more)
        return false;
    while (cap < t->n + more + 1)
        cap *= 2;
    if (cap == t->cap)
        return true;
    p = realloc(t->p, cap);
    if (!p)
        return false;
    t->p = p;
    t->cap = cap;
    return true;
}

void be_ktext_add(struct be_ktext *t, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    if (t->failed)
        return;
    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0 || !grow(t, (size_t)n)) {
        t->failed = true;
    } else {
        vsnprintf(t->p + t->n, (size_t)n + 1, fmt, again);
        t->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

void be_ktext_deinit(struct be_ktext *t)
{
    free(t->p);
    *t = (struct be_ktext){0};
}
