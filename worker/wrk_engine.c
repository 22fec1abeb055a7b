/* wrk_engine.c - tasks from arrival to their one last frame.
 *
 * Queue, deadlines, cancels, the order of work inside a step. Knows no logits and
 * no pages. Tokenizing a long text takes seconds: every SLICE_US of it the others
 * get a pass, and its own cancel or deadline ends it. Always true: a task is in the list until its
 * last frame was sent or queued; n_tasks <= max_queue; a failed task never touches another. Change
 * freely: the per-step budgets of tokenizing. Tests: tests/worker/test_wrk_engine.c (with a
 * scripted model)
 */
#include "wrk_engine_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wrk_kstats.h"

#define TEXT_BUDGET_IDLE (1u << 20)  /* bytes tokenized in a step */
#define SLICE_US 20000               /* of one text, until others have their turn */
#define TEXT_BUDGET_BUSY (16u << 10) /* while sequences decode */

uint64_t wrk_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static bool look_around(void *user);

/* ------------------------------------------------------------------ lifetime */

enum rc wrk_engine_new(struct wrk_engine **out, const struct wrk_engine_opts *o, struct rc_err *err)
{
    struct wrk_engine *e = calloc(1, sizeof(*e));
    enum rc rc;

    if (e == NULL)
        return rc_fail(err, RC_NOMEM, "engine");
    e->o = *o;
    e->info = mdl_info_get(o->mdl);
    e->tail = &e->tasks;
    e->growths_at_start = o->chan->growths;
    e->stop = (struct mdl_tok_stop){.ask = look_around, .user = e};
    mdl_set_stop(o->mdl, &e->stop);
    if ((rc = wrk_batch_init(e, err)) != RC_OK || (rc = wrk_embed_init(e, err)) != RC_OK ||
        (rc = wrk_extract_init(e, err)) != RC_OK) {
        wrk_engine_free(&e);
        return rc;
    }
    *out = e;
    return RC_OK;
}

static void task_free(struct wrk_engine *e, struct wrk_task *t)
{
    wrk_batch_drop(e, t);
    wrk_extract_free(e, t); /* reads its frame to the end */
    wrk_task_drop_frame(e, t);
    wrk_shape_drop(&e->shapes, &t->gen);
    wrk_gen_deinit(&t->gen);
    wrk_embed_free(e, &t->embed);
    wrk_decide_free(e, t);
    wrk_rerank_free(t);
    free(t);
}

void wrk_engine_free(struct wrk_engine **pe)
{
    struct wrk_engine *e = *pe;

    if (e == NULL)
        return;
    while (e->tasks != NULL) {
        struct wrk_task *t = e->tasks;

        e->tasks = t->next;
        task_free(e, t);
    }
    wrk_batch_deinit(e);
    wrk_embed_deinit(e);
    wrk_extract_deinit(e);
    wrk_pass_deinit(e);
    wrk_protos_deinit(&e->protos);
    wrk_shapes_deinit(&e->shapes);
    mdl_set_stop(e->o.mdl, NULL);
    free(e);
    *pe = NULL;
}

void wrk_task_drop_frame(struct wrk_engine *e, struct wrk_task *t)
{
    if (t->frame == NULL)
        return;
    ipc__frame__free_unpacked(t->frame, NULL);
    t->frame = NULL;
    e->queued_bytes -= t->frame_bytes;
}

enum rc wrk_task_end(struct wrk_engine *e, struct wrk_task *t, const struct rc_err *why,
                     struct rc_err *err)
{
    struct wrk_task **at = &e->tasks;
    enum rc rc = RC_OK;

    if (why != NULL)
        rc = wrk_chan_error(e->o.chan, t->id, why, err);
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (e->tail == &t->next)
        e->tail = at;
    e->n_tasks--;
    task_free(e, t);
    return rc;
}

enum rc wrk_task_sent(struct wrk_engine *e, struct wrk_task *t, enum rc sent,
                      const struct rc_err *why, struct rc_err *err)
{
    if (sent == RC_CLOSED || sent == RC_IO)
        return rc_fail(err, sent, "%s", why->msg);
    return wrk_task_end(e, t, sent == RC_OK ? NULL : why, err);
}

/* ------------------------------------------------------------------- arrival */

static uint64_t deadline_of(const Ipc__Frame *f)
{
    return f->body_case == IPC__FRAME__BODY_GENERATE  ? f->generate->deadline_us
           : f->body_case == IPC__FRAME__BODY_EMBED   ? f->embed->deadline_us
           : f->body_case == IPC__FRAME__BODY_DECIDE  ? f->decide->deadline_us
           : f->body_case == IPC__FRAME__BODY_RERANK  ? f->rerank->deadline_us
           : f->body_case == IPC__FRAME__BODY_EXTRACT ? f->extract->deadline_us
           : f->body_case == IPC__FRAME__BODY_CHUNK   ? f->chunk->deadline_us
                                                      : 0;
}

static enum rc refuse(struct wrk_engine *e, Ipc__Frame *f, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    enum rc rc;

    rc_fail(&why, RC_BUSY, "the model's queue is full (%u tasks)", e->n_tasks);
    why.n = e->n_tasks + 1;
    why.limit = e->o.max_queue;
    rc = wrk_chan_error(e->o.chan, f->task, &why, err);
    ipc__frame__free_unpacked(f, NULL);
    return rc;
}

enum rc wrk_engine_submit(struct wrk_engine *e, Ipc__Frame *f, struct rc_err *err)
{
    size_t bytes = ipc__frame__get_packed_size(f);
    struct wrk_task *t;
    uint64_t id = f->task;

    for (t = e->tasks; t != NULL && t->id != id; t = t->next)
        ;
    if (id == 0 || t != NULL) {
        ipc__frame__free_unpacked(f, NULL);
        return rc_fail(err, RC_STATE, "task number %llu is %s", (unsigned long long)id,
                       id == 0 ? "not for tasks" : "in use");
    }
    if (e->n_tasks >= e->o.max_queue ||
        (e->queued_bytes > 0 && e->queued_bytes + bytes > WRK_QUEUE_BYTES) ||
        (t = calloc(1, sizeof(*t))) == NULL)
        return refuse(e, f, err);
    t->id = id;
    t->kind = f->body_case;
    t->frame = f;
    t->frame_bytes = bytes;
    t->deadline_us = deadline_of(f);
    t->arrive_us = wrk_now_us();
    e->queued_bytes += bytes;
    *e->tail = t;
    e->tail = &t->next;
    e->n_tasks++;
    return RC_OK;
}

enum rc wrk_engine_cancel(struct wrk_engine *e, uint64_t task, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;

    for (struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        if (t->id == task) {
            if (t == e->preparing) { /* its text is being read: ended by prepare */
                e->n_cancelled += !e->preparing_cancelled;
                e->preparing_cancelled = true;
                return RC_OK;
            }
            if (t->in_pass) { /* ended by the pass, between two layers */
                e->n_cancelled += !t->cancelled;
                t->cancelled = true;
                return RC_OK;
            }
            e->n_cancelled++;
            rc_fail(&why, RC_CANCELLED, "cancelled");
            return wrk_task_end(e, t, &why, err);
        }
    return RC_OK;
}

void wrk_engine_cache_budget(struct wrk_engine *e, uint64_t bytes)
{
    if (e->info->can_generate)
        wrk_radix_set_budget(&e->radix, bytes);
}

uint64_t wrk_engine_bytes(const struct wrk_engine *e)
{
    uint64_t row = (e->info->can_sparse ? 1 : 0) + (uint64_t)e->info->token_dim;

    return (e->info->can_embed ? WRK_PROTOS_BYTES : 0) + e->embed_rows * row * sizeof(float);
}

uint32_t wrk_engine_rest_ms(const struct wrk_engine *e)
{
    return e->wait_from_us != 0 ? 1 : 0;
}

bool wrk_engine_busy(const struct wrk_engine *e)
{
    return e->tasks != NULL;
}

/* --------------------------------------------------------------------- steps */

static const char *phase_of(const struct wrk_task *t)
{
    if (t->kind != IPC__FRAME__BODY_GENERATE)
        return !t->prepared                          ? "while it was queued"
               : t->kind == IPC__FRAME__BODY_RERANK  ? "while it was running: scoring"
               : t->kind == IPC__FRAME__BODY_EXTRACT ? "while it was running: extracting"
                                                     : "while it was running: embedding";
    return t->gen.start_us == 0   ? "while it was queued"
           : t->gen.first_us == 0 ? "while it was running: reading the prompt"
                                  : "while it was running: generating";
}

static enum rc expire(struct wrk_engine *e, struct rc_err *err)
{
    uint64_t now = wrk_now_us();
    struct wrk_task *next;

    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;
        enum rc rc;

        next = t->next;
        if (t->deadline_us == 0 || t->deadline_us > now || t == e->preparing)
            continue;
        rc_fail(&why, RC_DEADLINE, "the request's time was over %s", phase_of(t));
        if ((rc = wrk_task_end(e, t, &why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* Are the mapped files as they were? */
static enum rc whole(const struct wrk_engine *e, struct rc_err *err)
{
    enum rc rc = mdl_guard(e->o.mdl, err);

    return rc == RC_OK && e->o.drafter != NULL ? mdl_guard(e->o.drafter, err) : rc;
}

/* What the others get between two slices of a text. */
static enum rc serve_others(struct wrk_engine *e, struct rc_err *err)
{
    enum rc rc;

    if (e->o.listen != NULL && (rc = e->o.listen(e->o.listen_user, err)) != RC_OK && rc != RC_AGAIN)
        return rc;
    if (wrk_chan_waiting(e->o.chan)) { /* no pass whose answers nobody takes */
        rc = wrk_chan_flush(e->o.chan, err);
        return rc == RC_AGAIN ? RC_OK : rc;
    }
    if (whole(e, NULL) != RC_OK) /* told by the next step */
        return RC_OK;
    if ((rc = expire(e, err)) != RC_OK || (rc = wrk_batch_admit(e, err)) != RC_OK ||
        (rc = wrk_batch_step(e, err)) != RC_OK || (rc = wrk_embed_step(e, err)) != RC_OK ||
        (rc = wrk_extract_step(e, err)) != RC_OK)
        return rc;
    return wrk_decide_step(e, err);
}

/* Asked by the tokenizer and the decoders: shall they stop? */
static bool look_around(void *user)
{
    struct wrk_engine *e = user;
    uint64_t now = wrk_now_us();

    if (e->preparing == NULL || now < e->look_us)
        return false;
    e->fatal = serve_others(e, &e->fatal_err);
    e->others_us += wrk_now_us() - now;
    now = wrk_now_us();
    e->look_us = now + SLICE_US;
    return e->fatal != RC_OK || e->preparing_cancelled ||
           (e->preparing->deadline_us != 0 && e->preparing->deadline_us <= now);
}

/* One task's check and tokens; *answered: it was a question and has its answer. */
static enum rc prepare_one(struct wrk_engine *e, struct wrk_task *t, size_t *budget, bool *answered,
                           struct rc_err *why)
{
    uint64_t compiled = wrk_shapes_compiled(&e->shapes);
    enum rc rc;

    if (t->kind == IPC__FRAME__BODY_EMBED)
        return t->prepared ? wrk_embed_media_prepare(e, t, why)
                           : wrk_embed_prepare(e, t, budget, why);
    if (t->kind == IPC__FRAME__BODY_RERANK)
        return wrk_embed_prepare(e, t, budget, why);
    if (t->kind == IPC__FRAME__BODY_DECIDE)
        return wrk_decide_prepare(e, t, budget, why);
    if (t->kind == IPC__FRAME__BODY_EXTRACT)
        return wrk_extract_prepare(e, t, budget, why);
    *budget -= t->frame_bytes < *budget ? t->frame_bytes : *budget;
    if (t->kind != IPC__FRAME__BODY_GENERATE) {
        rc = wrk_small_run(e, t, why, why);
        *answered = rc == RC_OK;
        return rc;
    }
    rc = wrk_gen_init(&t->gen, t->frame->generate, e->o.mdl, why);
    if (rc == RC_OK)
        rc = wrk_shape_take(&e->shapes, &t->gen, t->frame->generate, e->o.mdl, why);
    if (wrk_shapes_compiled(&e->shapes) != compiled) /* tens of milliseconds: one a step */
        *budget = 0;
    if (rc == RC_OK)
        rc = wrk_ahead_take(e, &t->gen, t->frame->generate, why);
    if (rc == RC_OK)
        rc = wrk_pages_check(&e->pages, t->gen.n_prompt + t->gen.max_new - 1, why);
    wrk_task_drop_frame(e, t);
    t->prepared = true;
    return rc;
}

/* The next of one task, as far as the budget goes; it may have ended after that. */
static enum rc prepare_task(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                            struct wrk_task **next, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    bool answered = false;
    enum rc rc;

    e->preparing = t;
    e->preparing_cancelled = false;
    e->look_us = wrk_now_us() + SLICE_US;
    rc = prepare_one(e, t, budget, &answered, &why);
    e->preparing = NULL;
    *next = t->next; /* others may have come and gone meanwhile, t has not */
    if (e->fatal != RC_OK) {
        if (err != NULL)
            *err = e->fatal_err;
        return e->fatal;
    }
    if (rc == RC_CLOSED)
        return rc_fail(err, rc, "%s", why.msg);
    if (e->preparing_cancelled && !answered) {
        rc = rc_fail(&why, RC_CANCELLED, "cancelled");
    } else if (rc == RC_CANCELLED) {
        rc = rc_fail(&why, RC_DEADLINE,
                     "the request's time was over while it was running: reading the %s",
                     t->prepared ? "files" : "text");
    }
    if (rc != RC_OK || answered)
        return wrk_task_end(e, t, rc != RC_OK ? &why : NULL, err);
    return RC_OK;
}

/* Checks and tokenizes, in order of arrival, at least one task's worth; then files: of one item at
 * least, of a cohort as long as that is quick. */
static enum rc prepare(struct wrk_engine *e, struct rc_err *err)
{
    size_t budget = wrk_batch_decoding(e) ? TEXT_BUDGET_BUSY : TEXT_BUDGET_IDLE;
    struct wrk_task *next;
    enum rc rc = RC_OK;
    uint64_t until;

    for (struct wrk_task *t = e->tasks; t != NULL && budget > 0 && rc == RC_OK; t = next) {
        next = t->next;
        if (!t->prepared)
            rc = prepare_task(e, t, &budget, &next, err);
    }
    until = wrk_now_us() + (wrk_batch_decoding(e) ? 0 : SLICE_US);
    while (rc == RC_OK && (next = wrk_embed_media_next(e)) != NULL) {
        rc = prepare_task(e, next, &budget, &next, err);
        if (wrk_now_us() >= until)
            break;
    }
    return rc;
}

/* Weights that vanished under us: every task hears it, the worker ends. */
static enum rc guard(struct wrk_engine *e, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;

    if (whole(e, &why) == RC_OK)
        return RC_OK;
    while (e->tasks != NULL) {
        enum rc rc = wrk_task_end(e, e->tasks, &why, err);

        if (rc != RC_OK)
            return rc;
    }
    return rc_fail(err, RC_WEIGHT_IO, "%s", why.msg);
}

enum rc wrk_engine_step(struct wrk_engine *e, struct rc_err *err)
{
    enum rc rc;

    if ((rc = expire(e, err)) != RC_OK || (rc = guard(e, err)) != RC_OK ||
        (rc = prepare(e, err)) != RC_OK || (rc = wrk_batch_admit(e, err)) != RC_OK ||
        (rc = wrk_batch_step(e, err)) != RC_OK || (rc = wrk_embed_step(e, err)) != RC_OK ||
        (rc = wrk_extract_step(e, err)) != RC_OK || (rc = wrk_decide_step(e, err)) != RC_OK)
        return rc;
    e->n_steps++;
    return RC_OK;
}

enum rc wrk_engine_lost(struct wrk_engine *e, const struct rc_err *why, struct rc_err *err)
{
    struct rc_err again = RC_ERR_INIT;

    /* the processor's be_sync always succeeds; a device that lost its context says so again */
    if (why->code != RC_INTERNAL || e->o.be == NULL || be_sync(e->o.be, &again) != RC_INTERNAL)
        return RC_OK;
    return rc_fail(err, RC_INTERNAL, "the device is lost: %s", why->msg);
}

static void tell_cache(const struct wrk_engine *e, Ipc__Stats *s)
{
    const struct wrk_radix *r = &e->radix;

    if (!e->info->can_generate)
        return;
    s->cache_lookups = r->stats.lookups;
    s->cache_hits = r->stats.hits;
    s->cache_hit_tokens = r->stats.hit_tokens;
    s->cache_miss_tokens = r->stats.miss_tokens;
    s->cache_window_tokens = r->stats.window_tokens;
    s->cache_inserted_pages = r->stats.inserted_pages;
    s->cache_denied_pages = r->stats.denied_pages;
    s->cache_evicted_space = r->stats.evicted[WRK_EVICT_SPACE];
    s->cache_evicted_budget = r->stats.evicted[WRK_EVICT_BUDGET];
    s->cache_evicted_windows = r->stats.evicted_windows;
    s->cache_bytes = r->used_bytes;
    s->cache_held_bytes = wrk_pages_cached_held_bytes(&e->pages);
    s->cache_budget_bytes = r->budget_bytes;
}

enum rc wrk_engine_stats(struct wrk_engine *e, uint64_t min_us, struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Stats s = IPC__STATS__INIT;
    Ipc__GrammarStats grammar;
    struct be_stats be = {0};
    struct wrk_kstats_msg k;
    uint64_t now = wrk_now_us();

    if (now - e->stats_us < min_us)
        return RC_OK;
    e->stats_us = now;
    if (e->o.be != NULL) {
        be_ctx_stats(e->o.be, &be);
        if (be.device[0] != '\0') { /* the processor has nothing to tell of kernels */
            wrk_kstats_msg(&k, e->o.be);
            s.kernels = &k.m;
        }
    }
    s.running = e->n_seqs;
    for (uint32_t i = 0; e->seq != NULL && i < e->o.max_seqs; i++) {
        s.running -= e->seq[i].parked;
        s.waiting += e->seq[i].parked;
    }
    s.parked = e->n_parked;
    tell_cache(e, &s);
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        s.waiting += t->kind == IPC__FRAME__BODY_GENERATE && t->gen.n_started == 0;
    s.steps = e->n_steps;
    s.prefill_tokens = e->n_prefill;
    s.decode_tokens = e->n_decode;
    s.embed_tokens = e->n_embed_tokens;
    s.embed_passes = e->n_embed_passes;
    s.embed_waits = e->n_embed_waits;
    s.embed_wait_us = e->embed_wait_us;
    s.media_bytes = e->media.bytes;
    s.media_decoded = e->media.n_decoded;
    s.media_refused = e->media.n_refused;
    s.media_decode_us = e->media.us;
    s.extract_tokens = e->extracted.n_tokens;
    s.extract_windows = e->extracted.n_windows;
    s.extract_passes = e->extracted.n_passes;
    s.extract_spans = e->extracted.n_spans;
    s.cancelled = e->n_cancelled;
    s.grammar = wrk_shapes_stats(&e->shapes, &grammar);
    s.device_sampled = e->draws.n_drawn;
    s.spec_mode = e->spec.mode;
    s.spec_passes = e->spec.n_passes;
    s.spec_rejected = e->spec.n_drafted - e->spec.n_accepted;
    s.spec_accepted = e->spec.n_accepted;
    s.spec_rests = wrk_spec_rests(&e->spec);
    s.spec_gain = (float)wrk_spec_gain(&e->spec);
    s.kv_used_bytes = wrk_pages_used_bytes(&e->pages);
    s.kv_bytes = e->info->kv_bytes;
    s.workspace_bytes = be.workspace_bytes + e->protos.bytes;
    s.proto_sets = e->protos.n;
    s.proto_bytes = e->protos.bytes;
    s.proto_hits = e->protos.n_hits;
    s.proto_fills = e->protos.n_fills;
    s.proto_waits = e->protos.n_waits;
    s.weight_bytes = e->info->weight_bytes;
    s.hot_allocs = be.hot_allocs + (e->o.chan->growths - e->growths_at_start);
    f.body_case = IPC__FRAME__BODY_STATS;
    f.stats = &s;
    return wrk_chan_send(e->o.chan, &f, err);
}
