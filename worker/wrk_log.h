/* wrk_log.h - the worker's own words, on stderr (the launcher's pipe).
 *
 * For what must be said when no frame can carry it: why the worker ends, which
 * layer of the sandbox is missing. Never a prompt, an answer or a token.
 */
#ifndef INFERD_WRK_LOG_H
#define INFERD_WRK_LOG_H

/* One line "inferd-worker: ...", written with one write(2). */
void wrk_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
