/* sup_pass.c - which models have shown a forward pass (see sup_pass.h).
 *
 * Always true: a row's pass counts only for the worker (pid) that made it; at most one
 * pass of ours runs for a model; nothing here waits.
 * Tests: tests/supervisor/test_sup_pass.c
 */
#include "sup_pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_metrics.h"

#define NOTE_EVERY_MS 1000 /* a stream's tokens need not be looked up one by one */

struct sup_pass {
    struct sup_pass *next; /* the latest used first */
    struct sup_front *front;
    char *id;
    uint32_t pid;              /* whose pass it was */
    bool good, tried;          /* the last pass; a failed one was ours or a client's */
    uint64_t noted_ms;         /* of good; of the last attempt that failed */
    struct sup_ticket *ticket; /* of the pass we started */
    char why[256];
};

static uint64_t now_ms(struct sup_front *front)
{
    return uv_now(&front->loop);
}

/* ----------------------------------------------------------------------- rows */

static void row_free(struct sup_pass *r)
{
    sup_ticket_cancel(&r->ticket);
    free(r->id);
    free(r);
}

static void forget_last(struct sup_passes *p)
{
    struct sup_pass **at = &p->first, *last;

    while ((*at)->next)
        at = &(*at)->next;
    last = *at;
    *at = NULL;
    p->n--;
    row_free(last);
}

/* The model's row, moved to the front; made when asked to. NULL: none, or no memory. */
static struct sup_pass *row_get(struct sup_front *front, const char *id, bool make)
{
    struct sup_passes *p = &front->passes;
    struct sup_pass **at = &p->first, *r;

    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    r = *at;
    if (r) {
        *at = r->next;
    } else {
        if (!make || !(r = calloc(1, sizeof(*r))))
            return NULL;
        if (!(r->id = strdup(id))) {
            free(r);
            return NULL;
        }
        if (p->n == SUP_PASS_MODELS)
            forget_last(p);
        r->front = front;
        p->n++;
    }
    r->next = p->first;
    p->first = r;
    return r;
}

void sup_passes_deinit(struct sup_passes *p)
{
    while (p->first) {
        struct sup_pass *next = p->first->next;

        row_free(p->first);
        p->first = next;
    }
    p->n = 0;
}

/* ----------------------------------------------------------------- what is seen */

/* Answers that came out of the model's arithmetic; a tokenizer answers without it. */
static bool is_pass(const Ipc__Frame *fr)
{
    switch (fr->body_case) {
    case IPC__FRAME__BODY_DELTA:
    case IPC__FRAME__BODY_DONE:
    case IPC__FRAME__BODY_VECTORS:
    case IPC__FRAME__BODY_DECIDED:
    case IPC__FRAME__BODY_SCORES:
    case IPC__FRAME__BODY_EXTRACTED:
        return true;
    default:
        return false;
    }
}

/* Failures that say something about the model and not about the request. */
static bool is_models_fault(enum rc code)
{
    switch (code) {
    case RC_INTERNAL:
    case RC_CRASHED:
    case RC_FORMAT:
    case RC_WEIGHT_ABSENT:
    case RC_WEIGHT_IO:
    case RC_NOMEM:
        return true;
    default:
        return false;
    }
}

static void set_good(struct sup_pass *r)
{
    struct sup_model_view v;

    if (!sup_fleet_find(r->front->fleet, r->id, &v) || v.pid == 0)
        return;
    r->pid = v.pid;
    r->good = true;
    r->noted_ms = now_ms(r->front);
}

static void set_bad(struct sup_pass *r, const char *why)
{
    struct sup_model_view v;

    r->pid = sup_fleet_find(r->front->fleet, r->id, &v) ? v.pid : 0;
    r->good = false;
    r->tried = true;
    r->noted_ms = now_ms(r->front);
    snprintf(r->why, sizeof(r->why), "its last forward pass failed: %.200s", why);
}

void sup_pass_note(struct sup_front *front, const char *model_id, const Ipc__Frame *fr)
{
    struct sup_pass *r = is_pass(fr) ? row_get(front, model_id, true) : NULL;

    if (r && !(r->good && now_ms(front) - r->noted_ms < NOTE_EVERY_MS))
        set_good(r);
}

void sup_pass_failed(struct sup_front *front, const char *model_id, const struct rc_err *err)
{
    struct sup_pass *r = is_models_fault(err->code) ? row_get(front, model_id, true) : NULL;

    if (r)
        set_bad(r, err->msg);
}

/* ------------------------------------------------------------ a pass of our own */

static void count(struct sup_pass *r, const char *result)
{
    sup_series_add(sup_series(r->front->metrics, SUP_M_PROBE_PASSES, r->id, result), 1);
}

static void on_frame(void *user, const Ipc__Frame *fr)
{
    if (is_pass(fr))
        set_good(user);
}

static void on_end(void *user, const struct rc_err *err, uint32_t retry_after_ms)
{
    struct sup_pass *r = user;

    (void)retry_after_ms;
    r->ticket = NULL;
    count(r, err ? "failed" : "ok");
    if (err)
        set_bad(r, err->msg);
}

static ProtobufCBinaryData bytes_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

static enum rc submit(struct sup_pass *r, Ipc__Frame *fr, uint64_t deadline_us, struct rc_err *err)
{
    const struct sup_task task = {.model = r->id,
                                  .req_id = "readyz",
                                  .frame = fr,
                                  .deadline_us = deadline_us,
                                  .probe = true,
                                  .on_frame = on_frame,
                                  .on_end = on_end,
                                  .user = r};

    return sup_fleet_submit(r->front->fleet, &task, &r->ticket, err);
}

static enum rc start_generate(struct sup_pass *r, uint64_t deadline_us, struct rc_err *err)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Generate q = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;

    s.repetition_penalty = 1;
    q.prompt = bytes_of("a");
    q.kind = 2;
    q.max_tokens = 1;
    q.n = 1;
    q.sampling = &s;
    q.deadline_us = deadline_us;
    fr.body_case = IPC__FRAME__BODY_GENERATE;
    fr.generate = &q;
    return submit(r, &fr, deadline_us, err);
}

static enum rc start_embed(struct sup_pass *r, uint64_t deadline_us, struct rc_err *err)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Embed q = IPC__EMBED__INIT;
    Ipc__EmbedInput in = IPC__EMBED_INPUT__INIT, *ins[] = {&in};

    in.text = bytes_of("a");
    q.inputs = ins;
    q.n_inputs = 1;
    q.deadline_us = deadline_us;
    fr.body_case = IPC__FRAME__BODY_EMBED;
    fr.embed = &q;
    return submit(r, &fr, deadline_us, err);
}

static enum rc start_rerank(struct sup_pass *r, uint64_t deadline_us, struct rc_err *err)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Rerank q = IPC__RERANK__INIT;
    ProtobufCBinaryData doc = bytes_of("a");

    q.query = bytes_of("a");
    q.documents = &doc;
    q.n_documents = 1;
    q.deadline_us = deadline_us;
    fr.body_case = IPC__FRAME__BODY_RERANK;
    fr.rerank = &q;
    return submit(r, &fr, deadline_us, err);
}

static enum rc start_extract(struct sup_pass *r, uint64_t deadline_us, struct rc_err *err)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Extract q = IPC__EXTRACT__INIT;
    Ipc__ExtractSchema schema = IPC__EXTRACT_SCHEMA__INIT, *schemas[] = {&schema};
    Ipc__ExtractField label = IPC__EXTRACT_FIELD__INIT, *labels[] = {&label};
    ProtobufCBinaryData text = bytes_of("a");

    label.name = bytes_of("name");
    schema.entities = labels;
    schema.n_entities = 1;
    q.schemas = schemas;
    q.n_schemas = 1;
    q.inputs = &text;
    q.n_inputs = 1;
    q.threshold = 0.5f;
    q.deadline_us = deadline_us;
    fr.body_case = IPC__FRAME__BODY_EXTRACT;
    fr.extract = &q;
    return submit(r, &fr, deadline_us, err);
}

static enum rc start(struct sup_pass *r, const Ipc__Loaded *m, struct rc_err *err)
{
    const struct {
        bool can;
        enum rc (*fn)(struct sup_pass *r, uint64_t deadline_us, struct rc_err *err);
    } kinds[] = {
        {m->can_generate, start_generate},
        {m->can_embed, start_embed},
        {m->can_rerank, start_rerank},
        {m->can_extract, start_extract},
    };
    uint64_t deadline_us = uv_hrtime() / 1000 + SUP_PASS_LIMIT_MS * 1000ull;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].can)
            return kinds[i].fn(r, deadline_us, err);
    return rc_fail(err, RC_UNSUPPORTED, "it has no task that could be tried");
}

bool sup_pass_ready(struct sup_front *front, const struct sup_model_view *v, const char **why)
{
    bool loaded = strcmp(v->state, "ready") == 0 || strcmp(v->state, "busy") == 0;
    struct sup_pass *r = loaded && v->info && v->pid ? row_get(front, v->id, true) : NULL;
    struct rc_err err = RC_ERR_INIT;
    bool same;

    if (!r) {
        *why = loaded ? "no memory to try it" : "it is not loaded";
        return false;
    }
    same = r->pid == v->pid;
    if (same && r->good)
        return true;
    *why = "its first forward pass has not ended: ask again";
    if (r->ticket)
        return false;
    if (same && r->tried && now_ms(front) - r->noted_ms < SUP_PASS_RETRY_MS) {
        *why = r->why;
        return false;
    }
    if (start(r, v->info, &err) != RC_OK) {
        count(r, "refused"); /* and not again with each probe of whoever asks */
        r->pid = v->pid;
        r->good = false;
        r->tried = true;
        r->noted_ms = now_ms(front);
        snprintf(r->why, sizeof(r->why), "its first forward pass could not begin: %.180s", err.msg);
        *why = r->why;
    }
    return false;
}
