/* wrk_log.c - one line, one write. Bytes that are not printable ASCII or UTF-8
 * lead nowhere: control characters become '?', so that a model's file name cannot
 * write to a terminal. Tests: tests/worker/test_wrk_serve.c
 */
#include "wrk_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void wrk_log(const char *fmt, ...)
{
    char line[1024] = "inferd-worker: ";
    size_t at = strlen(line);
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line + at, sizeof(line) - at - 1, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    n = (int)at + n;
    if (n > (int)sizeof(line) - 2)
        n = (int)sizeof(line) - 2;
    for (int i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0) {
        /* nowhere left to say it */
    }
}
