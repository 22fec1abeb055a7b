/* wrk_gr_run.c - where one answer stands in its grammar.
 *
 * A run keeps its set of stacks as flat words and nothing else; each question loads them
 * into the store's machine and, when the run moves, saves them again. So runs cost their
 * stacks' bytes, know nothing of each other, and a copy is a memcpy.
 * Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_store.h"

#include <stdlib.h>
#include <string.h>

static enum rc put_at(struct wrk_gr_run *r, const uint32_t *words, uint32_t n, struct rc_err *err)
{
    if (n > r->cap_at) {
        uint32_t *p = realloc(r->at, (size_t)n * 2 * sizeof(*p));

        if (p == NULL)
            return rc_fail(err, RC_NOMEM, "place in a grammar");
        r->at = p;
        r->cap_at = n * 2;
    }
    memcpy(r->at, words, n * sizeof(*words));
    r->n_at = n;
    return RC_OK;
}

static void drop_mask(struct wrk_gr_run *r)
{
    if (r->mask == NULL)
        return;
    r->mask->refs--;
    r->mask = NULL;
    gr_masks_trim(r->store);
}

enum rc wrk_gr_run_init(struct wrk_gr_run *r, struct wrk_gr_store *s, struct wrk_gr_held *h,
                        struct rc_err *err)
{
    enum rc rc;

    memset(r, 0, sizeof(*r));
    if ((rc = put_at(r, h->start, h->n_start, err)) != RC_OK)
        return rc;
    r->store = s;
    r->held = h;
    return RC_OK;
}

enum rc wrk_gr_run_copy(struct wrk_gr_run *to, const struct wrk_gr_run *from, struct rc_err *err)
{
    enum rc rc;

    if (to->store != NULL)
        drop_mask(to);
    if ((rc = put_at(to, from->at, from->n_at, err)) != RC_OK)
        return rc;
    to->store = from->store;
    to->held = from->held;
    if ((to->mask = from->mask) != NULL)
        to->mask->refs++;
    return RC_OK;
}

void wrk_gr_run_deinit(struct wrk_gr_run *r)
{
    if (r->store != NULL)
        drop_mask(r);
    free(r->at);
    memset(r, 0, sizeof(*r));
}

enum rc wrk_gr_run_prepare(struct wrk_gr_run *r, struct rc_err *err)
{
    struct wrk_gr_store *s = r->store;
    struct wrk_gr_entry *e = NULL;
    uint32_t n, set, reach;
    enum rc rc;

    if (r->mask != NULL)
        return RC_OK;
    gr_mach_reset(&s->mach, r->held->prog);
    set = gr_mach_load(&s->mach, r->at);
    /* Stacks written alike merge. Where so many stand that some may have to be left out,
     * merged ones would leave out fewer than the run itself: there the place is exact. */
    reach = s->mach.set[set].n > GR_CONFIGS / 8 ? GR_INF : s->vocab->longest;
    n = gr_mach_save(&s->mach, set, reach, s->vocab->most_chars, s->words);
    if ((rc = gr_mask_get(s, r->held, n, &e, err)) != RC_OK)
        return rc;
    e->refs++;
    r->mask = e;
    gr_masks_trim(s);
    return RC_OK;
}

enum rc wrk_gr_run_mask(struct wrk_gr_run *r, struct wrk_gr_mask *out, struct rc_err *err)
{
    enum rc rc = wrk_gr_run_prepare(r, err);

    if (rc != RC_OK)
        return rc;
    if (r->mask->n == 0)
        return rc_fail(err, RC_UNSUPPORTED,
                       "no token of this model can go on (or end) where the grammar stands");
    out->n = r->mask->n;
    out->cut = r->mask->cut;
    out->ids = r->mask->list ? (const uint32_t *)r->mask->data : NULL;
    out->bits = r->mask->list ? NULL : r->mask->data;
    return RC_OK;
}

enum rc wrk_gr_run_accept_bytes(struct wrk_gr_run *r, const void *bytes, size_t n,
                                struct rc_err *err)
{
    struct wrk_gr_store *s = r->store;
    uint32_t set;

    gr_mach_reset(&s->mach, r->held->prog);
    set = gr_mach_load(&s->mach, r->at);
    for (size_t i = 0; i < n; i++)
        if ((set = gr_mach_move(&s->mach, set, ((const uint8_t *)bytes)[i])) == GR_DEAD)
            return rc_fail(err, RC_INVALID, "the grammar does not allow byte %zu (0x%02x)", i,
                           ((const uint8_t *)bytes)[i]);
    drop_mask(r);
    return put_at(r, s->words, gr_mach_save(&s->mach, set, GR_INF, GR_INF, s->words), err);
}

enum rc wrk_gr_run_accept(struct wrk_gr_run *r, int32_t token, struct rc_err *err)
{
    const struct wrk_gr_vocab *v = r->store->vocab;
    uint32_t at, n;

    if (token < 0 || (uint32_t)token >= v->n_vocab)
        return rc_fail(err, RC_INVALID, "token %d, the vocabulary has %u", token, v->n_vocab);
    at = v->text_at[token];
    n = v->text_at[token + 1] - at;
    if (n == 0)
        return rc_fail(err, RC_INVALID, "token %d adds no text", token);
    return wrk_gr_run_accept_bytes(r, v->text + at, n, err);
}

bool wrk_gr_run_may_end(const struct wrk_gr_run *r)
{
    return gr_saved_may_end(r->at);
}

bool wrk_gr_run_must_end(const struct wrk_gr_run *r)
{
    return gr_saved_must_end(r->at);
}
