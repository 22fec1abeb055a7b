/* sup_vault_sandbox.h - what the vault may still do once its state is read. */
#ifndef INFERD_SUP_VAULT_SANDBOX_H
#define INFERD_SUP_VAULT_SANDBOX_H

#include "rc.h"
#include "sup_walls.h"

#define SUP_VAULT_LAYERS 7

/* Before any secret is read: no core, not dumpable, few descriptors, no capabilities, no new
 * privileges, a network of its own with nothing in it (where a namespace can be had), files only
 * below dir_fd (Landlock), and the seccomp allowlist. mode: conf->sandbox. Errors (strict only):
 * RC_UNSUPPORTED, naming the layer; permissive logs and goes on, off applies nothing. */
enum rc sup_vault_sandbox(const char *mode, int dir_fd,
                          struct sup_walls_layer out[SUP_VAULT_LAYERS], struct rc_err *err);

#endif
