/* sup_front_sandbox.h - what the front may still do once it listens. */
#ifndef INFERD_SUP_FRONT_SANDBOX_H
#define INFERD_SUP_FRONT_SANDBOX_H

#include "rc.h"
#include "sup_walls.h"

/* mode: "strict", "permissive" or "off" (conf->sandbox). Call with every listener
 * open and before the first accept; nothing after it may open a file. Errors (strict
 * only): RC_UNSUPPORTED, naming the layer. Permissive logs and goes on. */
enum rc sup_front_sandbox(const char *mode, struct rc_err *err);

#define SUP_FRONT_LAYERS 3
/* What the kernel says of this process now. Before sup_front_limits: of the launcher, whose fork
 * this is; none of it can be taken back there. */
void sup_front_layers(struct sup_walls_layer out[SUP_FRONT_LAYERS]);

/* Before anything else: no core, not dumpable, no new privileges, no SIGPIPE, room
 * for `want` descriptors (logs when the hard limit is lower). Errors: as above. */
enum rc sup_front_limits(const char *mode, unsigned long long want, struct rc_err *err);

#endif
