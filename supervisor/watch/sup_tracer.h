/* sup_tracer.h - the process that sends spans to a collector (option otlp_endpoint).
 *
 * A role of the supervisor. It knows one address, asked for before its sandbox closes; from then
 * on it can talk over its channels, connect, and nothing else: no files, no processes. From
 * the front it takes datagrams, one span's JSON each (sup_spans.h), and gives back its counts.
 * It never makes the front wait: while a collector is slow the channel fills, then spans are
 * dropped. Tests: tests/e2e/traces.py, tests/supervisor/test_sup_otlp.c
 */
#ifndef INFERD_SUP_TRACER_H
#define INFERD_SUP_TRACER_H

#include <stdbool.h>

#include "rc.h"
#include "sup_role.h"
#include "sup_walls.h"

struct sup_conf;

bool sup_tracer_wanted(const struct sup_conf *conf);
int sup_tracer_main(const struct sup_conf *conf, const struct sup_role_fds *fds);

/* sup_tracer_sandbox.c. mode: conf->sandbox. */
#define SUP_TRACER_LAYERS 4
extern const char *const sup_tracer_layers[SUP_TRACER_LAYERS]; /* their names, in their order */
enum rc sup_tracer_sandbox(const char *mode, struct sup_walls_layer out[SUP_TRACER_LAYERS],
                           struct rc_err *err);

#endif
