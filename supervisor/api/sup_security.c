/* sup_security.c - GET /ai/v1/security: which walls stand around which process, now.
 *
 * Nothing here is what was configured: the front asks the kernel about itself, the vault and
 * each worker have said what they have. Models outside the asker's grant are left out.
 * Tests: tests/supervisor/test_sup_api_models.c, tests/e2e/keys.py */
#include "sup_api.h"

#include "sup_auth.h"
#include "sup_call.h"
#include "sup_conf.h"
#include "sup_endpoints.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_front_sandbox.h"
#include "sup_grant.h"
#include "sup_json.h"

struct page {
    struct sup_json out;
    const struct sup_grant *grant;
};

static void layer(struct sup_json *o, bool first, const char *name, bool holds, const char *detail)
{
    sup_json_str(o, first ? "{\"name\":" : ",{\"name\":");
    sup_json_quoted(o, name);
    sup_json_fmt(o, ",\"holds\":%s", holds ? "true" : "false");
    if (detail && *detail) {
        sup_json_str(o, ",\"detail\":");
        sup_json_quoted(o, detail);
    }
    sup_json_put(o, "}", 1);
}

static void add_front(struct sup_json *o)
{
    struct sup_walls_layer l[SUP_FRONT_LAYERS];

    sup_front_layers(l);
    sup_json_str(o, "{\"role\":\"front\",\"layers\":[");
    for (size_t i = 0; i < SUP_FRONT_LAYERS; i++)
        layer(o, i == 0, l[i].name, l[i].holds, NULL);
    sup_json_str(o, "]}");
}

static void add_vault(struct sup_json *o, const struct sup_auth *auth)
{
    char *const *words = NULL;
    size_t n = 0;

    if (!sup_auth_vault_layers(auth, &words, &n))
        return;
    sup_json_str(o, ",{\"role\":\"vault\",\"layers\":[");
    for (size_t i = 0; i < n; i++)
        layer(o, i == 0, words[i], true, NULL);
    sup_json_str(o, "]}");
}

static void add_worker(void *user, const struct sup_worker_view *v)
{
    struct page *p = user;

    if (!sup_grant_model(p->grant, v->model))
        return;
    sup_json_str(&p->out, ",{\"role\":\"worker\",\"model\":");
    sup_json_quoted(&p->out, v->model);
    sup_json_fmt(&p->out, ",\"pid\":%u,\"layers\":[", v->pid);
    for (size_t i = 0; i < v->n; i++)
        layer(&p->out, i == 0, v->layers[i].name, v->layers[i].holds, v->layers[i].detail);
    sup_json_str(&p->out, "]}");
}

void sup_security(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    struct page p = {.grant = sup_req_grant(req)};

    sup_json_str(&p.out, "{\"object\":\"security\",\"sandbox\":");
    sup_json_quoted(&p.out, front->conf->sandbox);
    sup_json_fmt(&p.out, ",\"keys_required\":%s,\"keys\":%zu,\"tls\":false,\"processes\":[",
                 sup_conf_auth_required(front->conf) ? "true" : "false",
                 sup_auth_keys_loaded(front->auth));
    add_front(&p.out);
    add_vault(&p.out, front->auth);
    sup_fleet_each_worker(front->fleet, add_worker, &p);
    sup_json_str(&p.out, "]}");
    sup_reply_json(req, 200, &p.out);
}
