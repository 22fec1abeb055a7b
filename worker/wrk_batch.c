/* wrk_batch.c - sequences, and the pass that moves all of them one step or more.
 *
 * A pass holds, in this order: one row of every decoding sequence and those of its
 * drafts (wrk_ahead.c), then chunks of
 * prompts in what is left of batch_tokens - shared evenly, so that a short prompt
 * does not wait behind a long one, and bounded while others decode, so that their
 * gaps stay small (wrk_pace.h). Sequences are admitted fairly between tasks; which
 * pages they begin with, and how they get more, is wrk_seq.c's.
 *
 * Always true: a row's result depends on its own sequence alone (be.h), so what is
 * batched with what is free to change. wrk_batch_step allocates nothing.
 * Tests: tests/worker/test_wrk_engine.c, tests/worker/test_wrk_cache.c
 */
#include "wrk_engine_impl.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_MIN 32u

/* ------------------------------------------------------------------ lifetime */

enum rc wrk_batch_init(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t seqs = e->o.max_seqs, rows = e->o.batch_tokens, wants;
    enum rc rc;

    if (!e->info->can_generate)
        return RC_OK;
    wants = e->max_wants = e->o.spec_most > 0 ? wrk_spec_rows(seqs) : seqs;
    e->seq = calloc(seqs, sizeof(*e->seq));
    e->ids = calloc(rows, sizeof(*e->ids));
    e->pos = calloc(rows, sizeof(*e->pos));
    e->out_rows = calloc(wants, sizeof(*e->out_rows));
    e->part = calloc(seqs, sizeof(*e->part));
    e->part_seq = calloc(seqs, sizeof(*e->part_seq));
    e->want = calloc(wants, sizeof(*e->want));
    if (e->seq == NULL || e->ids == NULL || e->pos == NULL || e->out_rows == NULL ||
        e->part == NULL || e->part_seq == NULL || e->want == NULL)
        return rc_fail(err, RC_NOMEM, "batch of %u rows, %u sequences", rows, seqs);
    if ((rc = wrk_sampler_init(&e->sampler, e->info->vocab_size, err)) != RC_OK ||
        (rc = wrk_draws_init(&e->draws, e->o.mdl, wants, err)) != RC_OK ||
        (rc = wrk_ahead_init(e, err)) != RC_OK)
        return rc;
    if ((rc = wrk_pages_init(&e->pages, mdl_kv(e->o.mdl), e->info->ctx_tokens, rows, err)) != RC_OK)
        return rc;
    return wrk_radix_init(&e->radix, &e->pages, e->info->ctx_tokens, e->o.cache_bytes, err);
}

void wrk_batch_drop(struct wrk_engine *e, const struct wrk_task *t)
{
    for (uint32_t i = 0; e->seq != NULL && i < e->o.max_seqs; i++)
        if (e->seq[i].task == t)
            wrk_seq_close(e, &e->seq[i]);
}

void wrk_batch_deinit(struct wrk_engine *e)
{
    free(e->seq);
    free(e->ids);
    free(e->pos);
    free(e->out_rows);
    free(e->part);
    free(e->part_seq);
    free(e->want);
    wrk_sampler_deinit(&e->sampler);
    wrk_draws_deinit(&e->draws);
    wrk_ahead_deinit(e);
    wrk_radix_deinit(&e->radix);
    wrk_pages_deinit(&e->pages);
}

bool wrk_batch_decoding(const struct wrk_engine *e)
{
    for (uint32_t i = 0; e->seq != NULL && i < e->o.max_seqs; i++)
        if (e->seq[i].task != NULL && e->seq[i].decoding)
            return true;
    return false;
}

/* ----------------------------------------------------------------- admission */

static enum rc admit_choice(struct wrk_engine *e, struct wrk_task *t, bool *wait,
                            struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    uint32_t i = 0;
    enum rc rc;

    *wait = true;
    while (i < e->o.max_seqs && e->seq[i].task != NULL)
        i++;
    if (i == e->o.max_seqs)
        return RC_OK;
    rc = wrk_seq_open(e, &e->seq[i], t, &why);
    if (rc == RC_BUSY)
        return RC_OK;
    *wait = false;
    if (rc != RC_OK)
        return wrk_task_end(e, t, &why, err);
    if (!t->gen.echo)
        return RC_OK;
    if (t->gen.logprobs) /* nothing precedes the first token, so nothing predicts it */
        wrk_out_push_prompt(&e->seq[i].out, t->gen.prompt.ids[0], false, 0, NULL, 0);
    e->seq[i].out.detok = t->gen.echo_detok; /* a character may go on in the answer */
    return wrk_out_echo(&e->seq[i].out, &e->delta, e->o.chan, t->gen.echo_text, t->gen.n_echo, err);
}

/* Whose choice is next: of the task with the fewest running, the first to arrive. So a
 * request for many choices does not hold up those behind it, and none starves: the oldest
 * without a running choice always comes first. NULL: nobody waits. */
static struct wrk_task *next_task(const struct wrk_engine *e)
{
    struct wrk_task *best = NULL;
    uint32_t least = UINT32_MAX;

    for (struct wrk_task *t = e->tasks; t != NULL && least > 0; t = t->next) {
        uint32_t running = t->gen.n_started - t->gen.n_done;

        if (t->kind != IPC__FRAME__BODY_GENERATE)
            continue;
        if (!t->prepared)
            break;
        if (t->gen.n_started < t->gen.n && running < least) {
            best = t;
            least = running;
        }
    }
    return best;
}

enum rc wrk_batch_admit(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *t;
    struct wrk_seq *failed;
    struct rc_err why = RC_ERR_INIT;
    bool wait = !wrk_seq_unpark(e, &failed, &why);

    if (failed != NULL)
        return wrk_task_end(e, failed->task, &why, err);
    /* who does not fit is waited for: a large request must not starve */
    while (!wait && e->n_seqs < e->o.max_seqs && (t = next_task(e)) != NULL) {
        enum rc rc = admit_choice(e, t, &wait, err);

        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* ------------------------------------------------------------------ one pass */

/* Row k of the wanted ones, for the host; logits NULL: it lies on the device. */
static enum rc host_row(struct wrk_engine *e, const float *logits, uint32_t k, const float **out,
                        struct rc_err *err)
{
    if (logits == NULL)
        return mdl_logits(e->o.mdl, k, out, err);
    *out = logits + (size_t)k * e->info->vocab_size;
    return RC_OK;
}

static enum rc add_part(struct wrk_engine *e, uint32_t i, uint32_t n, struct rc_err *err)
{
    struct wrk_seq *s = &e->seq[i];
    struct be_seq *p = &e->part[e->n_parts];
    enum rc rc;

    e->part_seq[e->n_parts++] = i; /* first: fail_pass ends those that are in the pass */
    if ((rc = wrk_table_hold(&s->table, &e->pages, s->pos, n, err)) != RC_OK)
        return rc;
    p->row0 = e->n_rows;
    p->n_rows = n;
    p->pos0 = s->pos;
    for (uint32_t c = 0; c < e->pages.n_classes; c++)
        p->pages[c] = s->table.entry[c];
    for (uint32_t r = 0; r < n; r++) {
        e->ids[e->n_rows] = s->decoding && r > 0 ? s->draft[r - 1] : wrk_seq_token(s, s->pos + r);
        e->pos[e->n_rows++] = (int32_t)(s->pos + r);
    }
    return RC_OK;
}

static void add_want(struct wrk_engine *e, uint32_t seq, uint32_t row, int32_t prompt_idx,
                     uint32_t ahead)
{
    e->want[e->n_wants] = (struct wrk_want){seq, prompt_idx, ahead};
    e->out_rows[e->n_wants++] = (int32_t)row;
}

/* The last token of an answer, and what may follow it. */
static enum rc add_decoding(struct wrk_engine *e, uint32_t i, uint32_t n_draft, struct rc_err *err)
{
    struct wrk_seq *s = &e->seq[i];

    s->n_drafted = (uint8_t)n_draft;
    s->n_draft = 0;
    s->task->gen.n_wrong += n_draft; /* until they prove right */
    for (uint32_t r = 0; r <= n_draft; r++)
        add_want(e, i, e->n_rows + r, -1, r);
    return add_part(e, i, 1 + n_draft, err);
}

static enum rc add_prompt(struct wrk_engine *e, uint32_t i, uint32_t n, uint32_t room_wants,
                          struct rc_err *err)
{
    struct wrk_seq *s = &e->seq[i];
    const struct wrk_gen *g = &s->task->gen;
    uint32_t row0 = e->n_rows, left = s->n_fill - s->pos;
    bool tell = g->echo && g->logprobs && s->n_told + 1 < g->n_prompt; /* every row's logits */
    enum rc rc;

    if (n > left)
        n = left;
    if (n > e->pages.chunk)
        n = e->pages.chunk;
    if (tell && n > room_wants)
        n = room_wants;
    if (tell && n > WRK_DELTA_PROBS - 1)
        n = WRK_DELTA_PROBS - 1;
    if (n == 0)
        return RC_OK;
    if ((rc = add_part(e, i, n, err)) != RC_OK)
        return rc;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t next = s->pos + r + 1;

        if (tell && next < g->n_prompt && next > s->n_told)
            add_want(e, i, row0 + r, (int32_t)next, 0);
        else if (next == g->n_prompt && s->n_new == 0)
            add_want(e, i, row0 + r, -1, 0);
    }
    return RC_OK;
}

static enum rc build(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t n_decode = 0, n_prompt = 0, n_least = 0, room, most, share;
    enum rc rc;

    e->n_rows = e->n_parts = e->n_wants = 0;
    for (uint32_t i = 0; i < e->o.max_seqs; i++) /* before rows are counted: it may park some */
        if (e->seq[i].task != NULL && e->seq[i].decoding)
            wrk_seq_grow(e, &e->seq[i], 1);
    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        n_least += e->seq[i].task != NULL && e->seq[i].decoding;
        e->seq[i].n_taken = 0;
    }
    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        if (!wrk_seq_ready(e, &e->seq[i]))
            continue;
        if (!e->seq[i].decoding) {
            n_prompt++;
            continue;
        }
        n_decode++;
        if ((rc = add_decoding(e, i, wrk_ahead_fit(e, &e->seq[i], e->n_rows + n_least), err)) !=
            RC_OK)
            return rc;
        n_least--; /* rows that those behind it need */
    }
    e->n_decoding = n_decode;
    e->n_decode_rows = e->n_rows;
    if (n_prompt == 0)
        return RC_OK;
    room = e->o.batch_tokens - e->n_rows;
    most = n_decode > 0 ? wrk_pace_rows(&e->pace) : wrk_pace_rows_alone(&e->pace);
    room = room < most ? room : most;
    share = room / n_prompt > CHUNK_MIN ? room / n_prompt : CHUNK_MIN;
    for (uint32_t k = 0, from = e->turn, of = n_prompt;
         k < e->o.max_seqs && n_prompt > 0 && room > 0; k++) {
        uint32_t i = (from + k) % e->o.max_seqs, before = e->n_rows, free_wants;

        if (!wrk_seq_ready(e, &e->seq[i]) || e->seq[i].decoding)
            continue;
        if (n_prompt-- == of) /* the next pass begins with the prompt after this one */
            e->turn = i + 1;
        /* each later prompt may end in this pass and then wants a row too */
        free_wants = e->max_wants - e->n_wants - n_prompt;
        if (n_prompt == 0)
            share = room;
        if ((rc = add_prompt(e, i, share < room ? share : room, free_wants, err)) != RC_OK)
            return rc;
        room -= e->n_rows - before;
    }
    return RC_OK;
}

/* ---------------------------------------------------------------- after pass */

static enum rc send_done(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    const struct wrk_gen *g = &t->gen;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Done d = IPC__DONE__INIT;
    uint64_t now = wrk_now_us();

    d.prompt_tokens = g->n_prompt;
    d.completion_tokens = g->n_tokens;
    d.cached_tokens = g->n_cached;
    d.accepted_drafts = g->n_right;
    d.rejected_drafts = g->n_wrong;
    d.queue_us = g->start_us - t->arrive_us;
    d.prefill_us = g->first_us - g->start_us;
    d.decode_us = now - g->first_us;
    if (g->ids_wanted) {
        d.n_prompt_token_ids = g->n_prompt;
        d.prompt_token_ids = (uint32_t *)g->prompt.ids;
    }
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_DONE;
    f.done = &d;
    return wrk_chan_send(e->o.chan, &f, err);
}

static bool ends_answer(const struct wrk_engine *e, int32_t token)
{
    size_t n = 0;
    const int32_t *eos = mdl_eos(e->o.mdl, &n);

    for (size_t i = 0; i < n; i++)
        if (eos[i] == token)
            return true;
    return false;
}

/* The host's choice from row k. */
static enum rc host_token(struct wrk_engine *e, struct wrk_seq *s, const float *logits, uint32_t k,
                          const struct wrk_gr_mask *mask, int32_t *token, float *logprob,
                          struct wrk_top *top, struct rc_err *why)
{
    const struct wrk_gen *g = &s->task->gen;
    const float *row = NULL;
    enum rc rc;

    if ((rc = host_row(e, logits, k, &row, why)) != RC_OK ||
        (rc = wrk_sample_allowed(&e->sampler, row, &g->sampling,
                                 s->counts.slot != NULL ? &s->counts : NULL, mask, &s->rng, token,
                                 why)) != RC_OK)
        return rc;
    return g->logprobs ? wrk_logprobs(&e->sampler, row, *token, g->n_top, logprob, top, why)
                       : RC_OK;
}

/* The token of row k. *end: it ends the answer; *last: it is the last one that a grammar
 * has. why: the task's failure. */
static enum rc take_token(struct wrk_engine *e, struct wrk_seq *s, const float *logits, uint32_t k,
                          bool *end, bool *last, struct rc_err *why)
{
    const struct wrk_gen *g = &s->task->gen;
    struct wrk_top top[WRK_TOP_MAX];
    struct wrk_gr_mask mask;
    bool bound = s->run.held != NULL;
    float logprob = 0;
    int32_t token = -1;
    enum rc rc = bound ? wrk_gr_run_mask(&s->run, &mask, why) : RC_OK;

    if (rc == RC_OK && !wrk_draws_take(&e->draws, k, bound ? &mask : NULL, &s->rng, &token))
        rc = host_token(e, s, logits, k, bound ? &mask : NULL, &token, &logprob, top, why);
    *end = rc == RC_OK && !g->ignore_eos && ends_answer(e, token);
    if (rc == RC_OK && bound && !*end) {
        rc = wrk_gr_run_accept(&s->run, token, why);
        *last = rc == RC_OK && wrk_gr_run_must_end(&s->run);
    }
    if (rc != RC_OK) {
        rc_wrap(why, "token %u of choice %u", s->n_new + 1, s->out.index);
        return rc;
    }
    if (s->counts.slot != NULL)
        wrk_counts_add(&s->counts, token, true);
    s->answer[s->n_new++] = token;
    s->n_taken++;
    s->last_row = k;
    wrk_out_push(&s->out, token, *end, logprob, top);
    return RC_OK;
}

/* One choice after its row: text out, and the end of choice and task. */
static enum rc finish_row(struct wrk_engine *e, struct wrk_seq *s, const float *logits, uint32_t k,
                          struct rc_err *err)
{
    struct wrk_task *t = s->task;
    struct wrk_gen *g = &t->gen;
    struct rc_err why = RC_ERR_INIT;
    uint32_t finish;
    bool end = false, last = false;
    enum rc rc;

    if (take_token(e, s, logits, k, &end, &last, &why) != RC_OK) {
        if ((rc = wrk_engine_lost(e, &why, err)) != RC_OK)
            return rc;
        return wrk_task_end(e, t, &why, err);
    }
    g->n_tokens++;
    e->n_decode++;
    if (g->first_us == 0)
        g->first_us = wrk_now_us();
    s->decoding = true;
    finish = s->out.stopped || end || last ? 1 : s->n_new == g->max_new ? 2 : 0;
    if ((rc = wrk_out_send(&s->out, &e->delta, e->o.chan, finish, err)) != RC_OK)
        return rc;
    /* the next mask, while the text is on its way: the next pass finds it ready */
    if (finish == 0)
        return s->run.held == NULL || wrk_gr_run_prepare(&s->run, &why) == RC_OK
                   ? RC_OK
                   : wrk_task_end(e, t, &why, err);
    wrk_seq_finish(e, s);
    if (++g->n_done < g->n)
        return RC_OK;
    if ((rc = send_done(e, t, err)) != RC_OK)
        return rc;
    return wrk_task_end(e, t, NULL, err);
}

/* Echo: row k tells of the next prompt token. */
static enum rc tell_prompt(struct wrk_engine *e, struct wrk_seq *s, uint32_t idx,
                           const float *logits, uint32_t k, struct rc_err *err)
{
    const struct wrk_gen *g = &s->task->gen;
    struct wrk_top top[WRK_TOP_MAX];
    struct rc_err why = RC_ERR_INIT;
    const float *row = NULL;
    float logprob = 0;

    if (host_row(e, logits, k, &row, &why) != RC_OK ||
        wrk_logprobs(&e->sampler, row, g->prompt.ids[idx], g->n_top, &logprob, top, &why) !=
            RC_OK) {
        rc_wrap(&why, "prompt token %u", idx);
        return wrk_task_end(e, s->task, &why, err);
    }
    wrk_out_push_prompt(&s->out, g->prompt.ids[idx], true, logprob, top, g->echo_offset[idx]);
    s->n_told = idx;
    return RC_OK;
}

/* A pass that failed ends the tasks in it, and nothing else, unless the device is lost. */
static enum rc fail_pass(struct wrk_engine *e, const struct rc_err *why, struct rc_err *err)
{
    enum rc lost = wrk_engine_lost(e, why, err);

    if (lost != RC_OK)
        return lost;
    for (uint32_t k = 0; k < e->n_parts; k++) {
        struct wrk_task *t = e->seq[e->part_seq[k]].task;
        enum rc rc;

        if (t != NULL && (rc = wrk_task_end(e, t, why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc consume(struct wrk_engine *e, const float *logits, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t k = 0; k < e->n_parts; k++) {
        struct wrk_seq *s = &e->seq[e->part_seq[k]];

        if (s->decoding) {
            s->pos++; /* and one for each draft that proves right */
            continue;
        }
        s->pos += e->part[k].n_rows;
        e->n_prefill += e->part[k].n_rows;
        wrk_seq_filled(e, s);
    }
    for (uint32_t k = 0; k < e->n_wants && rc == RC_OK; k++) {
        const struct wrk_want *w = &e->want[k], *next = k + 1 < e->n_wants ? w + 1 : NULL;
        struct wrk_seq *s = &e->seq[w->seq];
        bool more = next != NULL && next->seq == w->seq && next->prompt_idx >= 0;

        if (s->task == NULL)
            continue; /* ended by an earlier row of this pass */
        if (w->ahead > 0 && !wrk_ahead_right(e, s, k))
            continue;
        if (w->ahead > 0) {
            s->pos++;
            s->task->gen.n_right++;
            s->task->gen.n_wrong--;
            e->spec.n_accepted++;
        }
        if (w->prompt_idx < 0)
            rc = finish_row(e, s, logits, k, err);
        else if ((rc = tell_prompt(e, s, (uint32_t)w->prompt_idx, logits, k, err)) == RC_OK &&
                 !more && s->task != NULL)
            rc = wrk_out_send_prompt(&s->out, &e->delta, e->o.chan, err);
    }
    return rc;
}

/* Draws nothing yet: says which rows the device will. */
static void plan_draws(struct wrk_engine *e)
{
    wrk_draws_begin(&e->draws);
    for (uint32_t k = 0; k < e->n_wants; k++) {
        struct wrk_seq *s = &e->seq[e->want[k].seq];

        if (e->want[k].prompt_idx >= 0)
            wrk_draws_skip(&e->draws, k);
        else
            wrk_draws_add(&e->draws, k, &s->task->gen, &s->rng);
    }
}

enum rc wrk_batch_step(struct wrk_engine *e, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    const float *logits = NULL;
    struct mdl_batch b;
    uint64_t begun, had = e->n_decode;
    enum rc rc;

    if (e->n_seqs == 0)
        return RC_OK;
    if (e->o.fill_prompts && wrk_fill_prompts(e, &why) != RC_OK)
        return fail_pass(e, &why, err);
    if (build(e, &why) != RC_OK)
        return fail_pass(e, &why, err);
    if (e->n_rows == 0)
        return RC_OK;
    b = (struct mdl_batch){
        .n_rows = e->n_rows,
        .n_seqs = e->n_parts,
        .n_out = e->n_wants,
        .ids = e->ids,
        .pos = e->pos,
        .seqs = e->part,
        .out_rows = e->out_rows,
    };
    plan_draws(e);
    begun = wrk_now_us();
    if (mdl_decode(e->o.mdl, &b, e->draws.any ? NULL : &logits, &why) != RC_OK ||
        (e->draws.any && wrk_draws_run(&e->draws, e->o.mdl, e->n_wants, &why) != RC_OK))
        return fail_pass(e, &why, err);
    begun = wrk_now_us() - begun;
    wrk_pace_pass(&e->pace, begun, e->n_decoding, e->n_rows - e->n_decode_rows);
    rc = consume(e, logits, err);
    return rc == RC_OK ? wrk_ahead_next(e, begun, (uint32_t)(e->n_decode - had), err) : rc;
}
