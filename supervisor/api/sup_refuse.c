/* sup_refuse.c - what is told to who may not ask.
 *
 * Never says more about a key than its sender knows: unknown and revoked are one answer.
 * Tests: tests/supervisor/test_sup_api_call.c, tests/e2e/keys.py */
#include "sup_api.h"

#include "sup_call.h"
#include "sup_front.h"
#include "sup_grant.h"
#include "sup_metrics.h"

static const struct {
    enum sup_auth_is is;
    enum sup_code code;
    const char *msg;
} rows[] = {
    {SUP_AUTH_NO_KEY, SUP_E_UNAUTHENTICATED,
     "this server asks for an API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"},
    {SUP_AUTH_BAD_KEY, SUP_E_UNAUTHENTICATED, "the API key is not known here, or was revoked"},
    {SUP_AUTH_EXPIRED, SUP_E_UNAUTHENTICATED, "the API key has expired; ask for a new one"},
    {SUP_AUTH_SCOPE, SUP_E_FORBIDDEN, "the API key may not use this endpoint"},
    {SUP_AUTH_BUSY, SUP_E_OVERLOADED, "API keys cannot be checked right now, try again later"},
};

static const char *const labels[SUP_AUTH_COUNT] = {
#define X(id, label) [SUP_AUTH_##id] = label,
    SUP_AUTHS(X)
#undef X
};

void sup_api_refuse(struct sup_req *req, void *user, enum sup_auth_is why)
{
    struct sup_front *front = user;
    struct sup_fail f;

    sup_series_add(sup_series(front->metrics, SUP_M_AUTH_RESULTS, labels[why], NULL), 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].is == why)
            sup_fail_set(&f, rows[i].code, "", "%s", rows[i].msg);
    sup_reply_fail(req, sup_req_shape(req), &f);
}

bool sup_model_allowed(const struct sup_grant *g, const char *model_id, struct sup_fail *f)
{
    if (sup_grant_model(g, model_id))
        return true;
    sup_fail_set(f, SUP_E_FORBIDDEN, "model", "the API key may not use model '%.100s'", model_id);
    return false;
}
