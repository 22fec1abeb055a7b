/* sup_progress.c - asks the server four times a second how far a load has come.
 * Only ever reads; a failed question is no failure of the load. Tests: e2e. */
#include "sup_progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define EVERY_MS 250

static uint64_t now_ms(void)
{
    struct timespec ts = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void tick(void *user)
{
    struct sup_progress *p = user;
    struct sup_listing l = {0};
    const struct sup_model *m = NULL;
    uint64_t now = now_ms();

    if (now < p->next_ms)
        return;
    p->next_ms = now + EVERY_MS;
    if (sup_listing_get(p->asker, &l, NULL) != RC_OK)
        return;
    if (sup_listing_pick(&l, p->model, SUP_KIND_GENERATE, &m, NULL) == RC_OK) {
        if (strcmp(m->state, "loading") == 0 || strcmp(m->state, "starting") == 0)
            sup_bar_set(&p->bar, m->load_done, m->load_total, m->load_total ? "" : m->state);
        else
            sup_bar_end(&p->bar);
    }
    sup_listing_deinit(&l);
    p->next_ms = now_ms() + EVERY_MS;
}

void sup_progress_start(struct sup_progress *p, struct sup_client *c, const char *model)
{
    memset(p, 0, sizeof(*p));
    snprintf(p->label, sizeof(p->label), "loading %.100s", model);
    sup_bar_start(&p->bar, p->label);
    p->model = model;
    p->next_ms = now_ms() + EVERY_MS;
    if (p->bar.on && sup_client_new(&p->asker, sup_client_server(c), NULL) == RC_OK)
        sup_client_on_tick(c, tick, p);
}

void sup_progress_end(struct sup_progress *p, struct sup_client *c)
{
    sup_client_on_tick(c, NULL, NULL);
    sup_bar_end(&p->bar);
    sup_client_free(&p->asker);
}

enum rc sup_progress_call(struct sup_client *c, const struct sup_model *m, const char *path,
                          const json_t *body, json_t **out, struct rc_err *err)
{
    struct sup_progress p = {0};
    enum rc rc;

    if (!body)
        return rc_fail(err, RC_NOMEM, "out of memory");
    if (m && strcmp(m->state, "ready") != 0 && strcmp(m->state, "busy") != 0)
        sup_progress_start(&p, c, m->id);
    rc = sup_client_call(c, path, body, 0, out, err);
    sup_progress_end(&p, c);
    return rc;
}
