/* sup_probes.c - /healthz, /livez, /readyz, /startupz and /metrics.
 *
 * Health means only "the loop turns": it allocates nothing and asks nobody, so
 * that it answers while every model is busy; /livez is the same under the name that
 * Kubernetes uses. Readiness of the server is the fleet's word, of one model
 * (/readyz?model=ID) that of a forward pass (sup_pass.h). No probe ever waits.
 * Tests: tests/supervisor/test_sup_api_models.c, test_sup_pass.c, tests/e2e/probes.py
 */
#include "sup_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_auth.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_metrics.h"
#include "sup_pass.h"
#include "sup_pressure.h"

void sup_probe_health(struct sup_req *req, void *user)
{
    static const char ok[] = "{\"status\":\"ok\"}";

    sup_reply(req, 200, "application/json", ok, sizeof(ok) - 1);
}

void sup_probe_live(struct sup_req *req, void *user)
{
    sup_probe_health(req, user);
}

struct counts {
    unsigned embedders, generators, rerankers, extractors;
};

static void count(void *user, const struct sup_model_view *v)
{
    struct counts *n = user;

    if (!v->info)
        return;
    n->embedders += v->info->can_embed ? 1 : 0;
    n->generators += v->info->can_generate ? 1 : 0;
    n->rerankers += v->info->can_rerank || v->info->token_dim > 0 ? 1 : 0;
    n->extractors += v->info->can_extract ? 1 : 0;
}

/* One model: loads nothing, waits for nothing. why: of a server that is not ready, or NULL. */
static void ready_model(struct sup_req *req, struct sup_front *front, const char *id,
                        const char *why)
{
    struct sup_model_view v;
    struct sup_json o = {0};
    struct sup_fail f;
    bool ready;

    if (!sup_fleet_find(front->fleet, id, &v)) {
        sup_fail_set(&f, SUP_E_MODEL_NOT_FOUND, "model", "model '%.100s' not found", id);
        sup_reply_fail(req, SUP_SHAPE_FLAT, &f);
        return;
    }
    ready = !why && sup_pass_ready(front, &v, &why);
    sup_json_fmt(&o, "{\"status\":\"%s\",\"model\":", ready ? "ready" : "not_ready");
    sup_json_quoted(&o, v.id);
    sup_json_str(&o, ",\"state\":");
    sup_json_quoted(&o, v.state);
    if (!ready) {
        sup_json_str(&o, ",\"reason\":");
        sup_json_quoted(&o, why);
    }
    sup_json_str(&o, "}");
    sup_reply_json(req, ready ? 200 : 503, &o);
}

void sup_probe_ready(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    const char *why = "the server is shutting down", *model = sup_req_query(req, "model");
    bool ready = !front->draining && sup_fleet_ready(front->fleet, &why);
    struct counts n = {0};
    struct sup_json o = {0};

    if (ready && !sup_auth_ready(front->auth)) {
        ready = false;
        why = "the keys are not read yet";
    }
    if (model) {
        ready_model(req, front, model, ready ? NULL : why);
        return;
    }
    sup_fleet_each(front->fleet, count, &n);
    sup_json_fmt(&o, "{\"status\":\"%s\"", ready ? "ready" : "not_ready");
    if (!ready) {
        sup_json_str(&o, ",\"reason\":");
        sup_json_quoted(&o, why);
    }
    sup_json_str(&o, ",\"backends\":");
    sup_backends_json(&o);
    sup_json_fmt(&o,
                 ",\"models\":{\"embedders\":%u,\"rerankers\":%u,\"chunkers\":3,\"generators\":%u,"
                 "\"recognizers\":0,\"classifiers\":0,\"rewriters\":0,\"readers\":0,"
                 "\"transcribers\":0,\"extractors\":%u}}",
                 n.embedders, n.rerankers, n.generators, n.extractors);
    sup_reply_json(req, ready ? 200 : 503, &o);
}

void sup_probe_startup(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    bool started = sup_fleet_started(front->fleet);
    struct sup_json o = {0};

    sup_json_fmt(&o, "{\"status\":\"%s\"}", started ? "started" : "starting");
    sup_reply_json(req, started ? 200 : 503, &o);
}

void sup_probe_metrics(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    struct sup_fail f;
    size_t n = 0;
    char *text;

    sup_pressure_show(front);
    text = sup_metrics_text(front->metrics, &n);
    if (!text) {
        sup_fail_set(&f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the metrics");
        sup_reply_fail(req, SUP_SHAPE_FLAT, &f);
        return;
    }
    sup_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
    free(text);
}
