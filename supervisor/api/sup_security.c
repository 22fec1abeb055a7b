/* sup_security.c - GET /ai/v1/security: which walls stand around which process, now.
 *
 * Nothing here is what was configured: the front asks the kernel about itself and about the
 * launcher it was forked from; the others have said what they have, the fetcher's children each for
 * itself before they read a byte. The policy of the fetcher's errands is the table its children
 * are narrowed by. Models outside the asker's grant are left out.
 * Tests: tests/supervisor/test_sup_api_models.c, tests/e2e/keys.py */
#include "sup_api.h"

#include <unistd.h>

#include "sup_auth.h"
#include "sup_call.h"
#include "sup_conf.h"
#include "sup_endpoints.h"
#include "sup_fetch_sandbox.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_front_sandbox.h"
#include "sup_grant.h"
#include "sup_json.h"
#include "sup_link.h"
#include "sup_spans.h"
#include "sup_tracer.h"

struct page {
    struct sup_json out;
    const struct sup_grant *grant;
    const struct sup_conf *conf;
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

/* {"role":..,"pid":.. */
static void begin(struct sup_json *o, const char *role, uint32_t pid)
{
    if (!o->failed && o->n && o->p[o->n - 1] == '}')
        sup_json_put(o, ",", 1);
    sup_json_str(o, "{\"role\":");
    sup_json_quoted(o, role);
    if (pid)
        sup_json_fmt(o, ",\"pid\":%u", pid);
}

static void put_layers(struct sup_json *o, const struct sup_walls_layer *l, size_t n)
{
    sup_json_str(o, ",\"layers\":[");
    for (size_t i = 0; i < n; i++)
        layer(o, i == 0, l[i].name, l[i].holds, NULL);
    sup_json_put(o, "]", 1);
}

static void put_told(struct sup_json *o, const struct sup_walls_told *t)
{
    sup_json_str(o, ",\"layers\":[");
    for (size_t i = 0; i < t->n_held; i++)
        layer(o, i == 0, t->held[i], true, NULL);
    for (size_t i = 0; i < t->n_missing; i++)
        layer(o, i + t->n_held == 0, t->missing[i], false, NULL);
    sup_json_put(o, "]", 1);
}

static void add_front(struct sup_json *o)
{
    struct sup_walls_layer l[SUP_FRONT_LAYERS];

    sup_front_layers(l);
    begin(o, "front", (uint32_t)getpid());
    put_layers(o, l, SUP_FRONT_LAYERS);
    sup_json_put(o, "}", 1);
}

static void add_vault(struct sup_json *o, const struct sup_auth *auth)
{
    struct sup_walls_told t;

    if (!sup_auth_vault_walls(auth, &t))
        return;
    begin(o, "vault", t.pid);
    put_told(o, &t);
    sup_json_put(o, "}", 1);
}

/* What each errand's child may, whether one is alive or not. */
static void put_policy(struct sup_json *o, const struct sup_conf *conf)
{
    const bool allowed[SUP_FETCH_ERRANDS] = {
        [SUP_FETCH_MEDIA] = conf->media_hosts && conf->media_hosts[0],
        [SUP_FETCH_PULL] = conf->allow_pull,
    };
    bool first = true;

    sup_json_str(o, ",\"errands\":[");
    for (size_t i = 0; i < SUP_FETCH_ERRANDS; i++) {
        const struct sup_fetch_policy *p = &sup_fetch_policies[i];

        if (i == SUP_FETCH_COPY) /* of the command line alone */
            continue;
        sup_json_str(o, first ? "{\"errand\":" : ",{\"errand\":");
        sup_json_quoted(o, p->errand);
        sup_json_fmt(o, ",\"allowed\":%s,\"network\":%s,\"writes\":%s,\"layers\":[",
                     allowed[i] ? "true" : "false", p->network ? "true" : "false",
                     p->writes ? "true" : "false");
        for (size_t k = 0; k < SUP_FETCH_LAYERS; k++) {
            sup_json_str(o, k ? "," : "");
            sup_json_quoted(o, sup_fetch_layers[k]);
        }
        sup_json_str(o, "]}");
        first = false;
    }
    sup_json_put(o, "]", 1);
}

static void add_fetcher(void *user, const char *errand, const struct sup_walls_told *t)
{
    struct page *p = user;

    begin(&p->out, errand ? "fetcher_child" : "fetcher", t->pid);
    if (errand) {
        sup_json_str(&p->out, ",\"errand\":");
        sup_json_quoted(&p->out, errand);
    } else {
        put_policy(&p->out, p->conf);
    }
    put_told(&p->out, t);
    sup_json_put(&p->out, "}", 1);
}

static void add_tracer(struct sup_json *o, const struct sup_spans *spans)
{
    struct sup_walls_layer l[SUP_TRACER_LAYERS];
    struct sup_spans_told t;

    if (!sup_spans_told(spans, &t))
        return;
    for (unsigned i = 0; i < SUP_TRACER_LAYERS; i++)
        l[i] = (struct sup_walls_layer){sup_tracer_layers[i], (t.held & 1u << i) != 0};
    begin(o, "tracer", t.pid);
    put_layers(o, l, t.pid ? SUP_TRACER_LAYERS : 0);
    sup_json_put(o, "}", 1);
}

/* It starts programs, so no filter is meant to be there. */
static void add_launcher(struct sup_json *o, const struct sup_walls_layer *l)
{
    begin(o, "launcher", (uint32_t)getppid());
    put_layers(o, l, SUP_FRONT_LAYERS - 1);
    sup_json_put(o, "}", 1);
}

static void add_worker(void *user, const struct sup_worker_view *v)
{
    struct page *p = user;

    if (!sup_grant_model(p->grant, v->model))
        return;
    begin(&p->out, "worker", v->pid);
    sup_json_str(&p->out, ",\"model\":");
    sup_json_quoted(&p->out, v->model);
    sup_json_str(&p->out, ",\"layers\":[");
    for (size_t i = 0; i < v->n; i++)
        layer(&p->out, i == 0, v->layers[i].name, v->layers[i].holds, v->layers[i].detail);
    sup_json_str(&p->out, "]}");
}

void sup_security(struct sup_req *req, void *user)
{
    struct sup_front *front = user;
    struct page p = {.grant = sup_req_grant(req), .conf = front->conf};

    sup_json_str(&p.out, "{\"object\":\"security\",\"sandbox\":");
    sup_json_quoted(&p.out, front->conf->sandbox);
    sup_json_fmt(&p.out, ",\"keys_required\":%s,\"keys\":%zu,\"tls\":false,\"processes\":[",
                 sup_conf_auth_required(front->conf) ? "true" : "false",
                 sup_auth_keys_loaded(front->auth));
    add_front(&p.out);
    add_vault(&p.out, front->auth);
    sup_link_each_process(front->link, add_fetcher, &p);
    add_tracer(&p.out, front->spans);
    add_launcher(&p.out, front->launcher);
    sup_fleet_each_worker(front->fleet, add_worker, &p);
    sup_json_str(&p.out, "]}");
    sup_reply_json(req, 200, &p.out);
}
