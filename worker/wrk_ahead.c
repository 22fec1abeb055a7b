/* wrk_ahead.c - drafts for the next pass: from the drafter or the text so far.
 *
 * Guesses are made right after a pass, while the rows they start from are the model's
 * last, and used in the next one as far as it has room. Always true: a sequence's
 * position covers only rows whose token was chosen; a wrong draft's row is written over by
 * the next pass; a drafter that fails is given up, never a request.
 * Tests: tests/worker/test_wrk_spec.c
 */
#include <stdlib.h>

#include "ipc.h"
#include "wrk_engine_impl.h"
#include "wrk_log.h"

enum rc wrk_ahead_init(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t most = e->o.spec_most < WRK_SPEC_MOST ? e->o.spec_most : WRK_SPEC_MOST;

    e->spec.most = most;
    e->spec.mode = most == 0 ? WRK_SPEC_OFF : e->o.drafter != NULL ? WRK_SPEC_MTP : WRK_SPEC_LOOKUP;
    if (e->spec.mode != WRK_SPEC_MTP)
        return RC_OK;
    e->draft_seq = calloc(e->o.max_seqs, sizeof(*e->draft_seq));
    e->draft_ids = calloc((size_t)e->o.max_seqs * WRK_SPEC_MOST, sizeof(*e->draft_ids));
    if (e->draft_seq == NULL || e->draft_ids == NULL)
        return rc_fail(err, RC_NOMEM, "drafts of %u sequences", e->o.max_seqs);
    return RC_OK;
}

void wrk_ahead_deinit(struct wrk_engine *e)
{
    free(e->draft_seq);
    free(e->draft_ids);
}

enum rc wrk_ahead_take(const struct wrk_engine *e, struct wrk_gen *g, const Ipc__Generate *m,
                       struct rc_err *err)
{
    static const char field[] = "speculation_policy";

    if (m->speculation > WRK_SPEC_MTP)
        return rc_fail_what(err, RC_INVALID, field, "%s is %u, expected 0 to %d", field,
                            m->speculation, WRK_SPEC_MTP);
    if (m->speculation_tokens > WRK_SPEC_MOST)
        return rc_fail_what(err, RC_INVALID, "speculative_k",
                            "speculative_k is %u, expected at most %u", m->speculation_tokens,
                            WRK_SPEC_MOST);
    if (m->speculation > WRK_SPEC_OFF && e->o.spec_most == 0)
        return rc_fail_what(err, RC_INVALID, field,
                            "%s is %s, expected auto or off: this server does not guess tokens "
                            "ahead (its option speculation is off)",
                            field, m->speculation == WRK_SPEC_MTP ? "mtp" : "lookup");
    /* one that failed while serving is still there: a request is not refused for that */
    if (m->speculation == WRK_SPEC_MTP && e->o.drafter == NULL)
        return rc_fail_what(err, RC_INVALID, field,
                            "%s is mtp, expected auto, off or lookup: this model has no drafter "
                            "(a folder '%s' in its own, and the server's option speculation)",
                            field, IPC_DRAFTER_DIR);
    g->spec = (enum wrk_spec_mode)m->speculation;
    g->spec_most = m->speculation_tokens;
    return RC_OK;
}

uint32_t wrk_ahead_fit(const struct wrk_engine *e, const struct wrk_seq *s, uint32_t n_rows)
{
    uint32_t k = s->n_draft;

    if (k == 0)
        return 0;
    /* a pass of k drafts may give k + 1 tokens; pages within the reservation only: nobody is
     * parked for a guess */
    k = wrk_least(k, s->task->gen.max_new - s->n_new - 1);
    k = wrk_least(k, s->table.n_tokens - s->pos - 1);
    k = wrk_least(k, e->pages.chunk - 1);
    return wrk_least(k, e->o.batch_tokens > n_rows ? e->o.batch_tokens - n_rows : 0);
}

bool wrk_ahead_right(const struct wrk_engine *e, const struct wrk_seq *s, uint32_t k)
{
    return e->want[k].ahead == s->n_taken && s->answer[s->n_new - 1] == e->ids[e->out_rows[k]];
}

/* ----------------------------------------------------------- what drafts were worth */

/* n_tokens came from the pass, those of answers that ended in it too. */
static void count(struct wrk_engine *e, uint64_t us, uint32_t n_tokens)
{
    uint32_t n_drafted = e->n_decode_rows - e->n_decoding;

    for (uint32_t k = 0; n_drafted > 0 && k < e->n_parts; k++) {
        struct wrk_seq *s = &e->seq[e->part_seq[k]];

        if (s->task != NULL && s->n_drafted > 0)
            s->want_draft = (uint8_t)wrk_spec_next(s->n_drafted, s->n_taken - 1u);
    }
    e->spec.n_drafted += n_drafted;
    e->spec.n_passes += n_drafted > 0;
    if (e->n_rows == e->n_decode_rows)
        wrk_spec_pass(&e->spec, us + e->draft_us, e->n_decoding, n_drafted, n_tokens);
    e->draft_us = 0;
}

/* --------------------------------------------------------------------- guesses */

/* Where a sequence's guesses come from: as its request says, as far as the engine can. */
static enum wrk_spec_mode mode_of(const struct wrk_engine *e, const struct wrk_seq *s)
{
    enum wrk_spec_mode asked = s->task->gen.spec;

    return asked == WRK_SPEC_OFF || asked == WRK_SPEC_LOOKUP ? asked : e->spec.mode;
}

static uint32_t wanted(const struct wrk_seq *s, uint32_t most)
{
    uint32_t k = s->want_draft > 0 ? wrk_least(s->want_draft, most) : most;

    if (s->task->gen.spec_most > 0)
        k = wrk_least(k, s->task->gen.spec_most);
    return wrk_least(k, s->task->gen.max_new - s->n_new - 1);
}

/* Are its guesses of this kind, did its last token come from this pass, and is there more
 * to come? */
static bool goes_on(const struct wrk_engine *e, const struct wrk_seq *s, enum wrk_spec_mode mode,
                    uint32_t most)
{
    return s->task != NULL && s->decoding && s->n_taken > 0 && mode_of(e, s) == mode &&
           wanted(s, most) > 0;
}

static void look_up(struct wrk_seq *s, uint32_t most)
{
    struct wrk_text t = wrk_seq_text(s);

    s->n_draft = (uint8_t)wrk_spec_lookup(&t, t.n_a + s->n_new, wanted(s, most), s->draft);
}

static enum rc ask_drafter(struct wrk_engine *e, uint32_t most, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    uint32_t n = 0, k = 0;

    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        const struct wrk_seq *s = &e->seq[i];
        struct mdl_draft_seq *d = &e->draft_seq[n];

        if (!goes_on(e, s, WRK_SPEC_MTP, most))
            continue;
        n++;
        k = wanted(s, most) > k ? wanted(s, most) : k;
        *d = (struct mdl_draft_seq){s->answer[s->n_new - 1], s->pos, s->last_row, {NULL}};
        for (uint32_t c = 0; c < e->pages.n_classes; c++)
            d->pages[c] = s->table.entry[c];
    }
    if (n == 0)
        return RC_OK;
    if (mdl_draft(e->o.drafter, e->draft_seq, n, k, e->draft_ids, &why) != RC_OK) {
        enum rc lost = wrk_engine_lost(e, &why, err);

        if (lost == RC_OK) {
            e->spec.mode = WRK_SPEC_LOOKUP;
            wrk_log("speculation: the drafter failed and is given up, drafts are looked up: %s",
                    why.msg);
        }
        return lost;
    }
    for (uint32_t i = 0, at = 0; i < e->o.max_seqs; i++) {
        struct wrk_seq *s = &e->seq[i];

        if (!goes_on(e, s, WRK_SPEC_MTP, most))
            continue;
        s->n_draft = (uint8_t)wanted(s, most);
        for (uint32_t j = 0; j < s->n_draft; j++)
            s->draft[j] = e->draft_ids[(size_t)at * k + j];
        at++;
    }
    return RC_OK;
}

enum rc wrk_ahead_next(struct wrk_engine *e, uint64_t us, uint32_t n_tokens, struct rc_err *err)
{
    uint32_t n = 0, most;
    uint64_t begun;
    enum rc rc = RC_OK;

    if (e->spec.mode == WRK_SPEC_OFF)
        return RC_OK;
    count(e, us, n_tokens);
    for (uint32_t i = 0; i < e->o.max_seqs; i++)
        n += e->seq[i].task != NULL && e->seq[i].decoding;
    if ((most = wrk_spec_want(&e->spec, n)) == 0)
        return RC_OK;
    begun = wrk_now_us();
    for (uint32_t i = 0; i < e->o.max_seqs; i++)
        if (goes_on(e, &e->seq[i], WRK_SPEC_LOOKUP, most))
            look_up(&e->seq[i], most);
    if (e->spec.mode == WRK_SPEC_MTP)
        rc = ask_drafter(e, most, err);
    e->draft_us = wrk_now_us() - begun;
    return rc;
}
