/* sup_api.h - the endpoints: JSON to task and back.
 *
 * One file per endpoint; each validates its body against one table of fields
 * (name, type, range), builds an Ipc frame and turns frames back into JSON or
 * SSE. The mapping of enum rc to HTTP status and error code is one table
 * (sup_status.c). Knows nothing of sockets or processes.
 * Tests: tests/supervisor/test_sup_api*.c, tests/e2e/.
 */
#ifndef INFERD_SUP_API_H
#define INFERD_SUP_API_H

#include "sup_http.h"

/* Once per process, before the sandbox closes: what the JSON library wants to open. */
void sup_api_init(void);

/* Member refuse of struct sup_http_keys; user: struct sup_front. */
void sup_api_refuse(struct sup_req *req, void *user, enum sup_auth_is why);

/* The route table ended by {0}; handlers expect a struct sup_front * as user. */
extern const struct sup_route sup_api_routes[];

#endif
