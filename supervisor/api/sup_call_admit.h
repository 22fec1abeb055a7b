/* sup_call_admit.h - may this request begin, and what did it use? For sup_call.c.
 *
 * Between a request and the quotas of its tenant (sup_quota.h): refusals in words and
 * headers, the charge of each task and its putting right, metrics by tenant; and how long it
 * may take. The order of all checks is in docs/admission.md; those of _begin need the head
 * alone.
 * Tests: tests/supervisor/test_sup_api_admit.c
 */
#ifndef INFERD_SUP_CALL_ADMIT_H
#define INFERD_SUP_CALL_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "inferd.pb-c.h"
#include "sup_status.h"

struct sup_call;
struct sup_front;
struct sup_grant;
struct sup_part;
struct sup_req;
struct sup_tenant;

/* The server's own limit; false: *f. */
bool sup_admit_server(struct sup_front *front, const struct sup_grant *g, struct sup_fail *f);
/* By the head alone, before a large body is received; false: req was answered. For
 * sup_http_early; user: the front. */
bool sup_admit_early(struct sup_req *req, void *user);
/* Counts the request, or says in *f why not. *out until sup_admit_over. */
bool sup_admit_begin(struct sup_front *front, const struct sup_grant *g, struct sup_tenant **out,
                     struct sup_fail *f);
void sup_admit_over(struct sup_front *front, struct sup_tenant **t);
/* Answers req with a refusal. */
void sup_admit_refuse(struct sup_front *front, struct sup_req *req, const struct sup_fail *f);
/* x-ratelimit-* as OpenAI's clients read them, where the tenant has such limits. */
void sup_admit_headers(struct sup_front *front, const struct sup_grant *g, struct sup_req *req);

/* Takes the price of a part's task from its tenant; false: *f. */
bool sup_admit_charge(struct sup_part *p, const Ipc__Frame *task, struct sup_fail *f);
/* A frame of the answer: its last one may say what was used. */
void sup_admit_frame(struct sup_part *p, const Ipc__Frame *answer);
/* It is over; ok: with an answer. started: a worker had it. Again: no matter. */
void sup_admit_end(struct sup_part *p, bool ok, bool started);
/* One log line of what the request used, once all its parts have ended (option usage_log). */
void sup_admit_record(const struct sup_call *c);
/* The model's queue refused it. */
void sup_admit_refused(struct sup_call *c, const char *reason);

#define SUP_TIMEOUT_MAX_MS 86400000
/* c->deadline_us from the headers X-Request-Timeout (seconds) and X-Request-Timeout-Ms and the
 * field (0 = none), which may only lower the server's own limit; false: *f. */
bool sup_admit_deadline(struct sup_call *c, uint64_t asked_ms, struct sup_fail *f);

#endif
