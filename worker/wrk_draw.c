/* wrk_draw.c - see wrk_draw.h. Never allocates after wrk_draws_init. */
#include "wrk_draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum rc wrk_draws_init(struct wrk_draws *d, const struct mdl *mdl, uint32_t cap, struct rc_err *err)
{
    memset(d, 0, sizeof(*d));
    if (!(d->can = mdl_can_sample(mdl)))
        return RC_OK;
    d->row = calloc(cap, sizeof(*d->row));
    d->on = calloc(cap, sizeof(*d->on));
    d->id = calloc(cap, sizeof(*d->id));
    d->before = calloc(cap, sizeof(*d->before));
    d->after = calloc(cap, sizeof(*d->after));
    if (d->row == NULL || d->on == NULL || d->id == NULL || d->before == NULL || d->after == NULL)
        return rc_fail(err, RC_NOMEM, "draws of %u rows", cap);
    return RC_OK;
}

void wrk_draws_deinit(struct wrk_draws *d)
{
    free(d->row);
    free(d->on);
    free(d->id);
    free(d->before);
    free(d->after);
    memset(d, 0, sizeof(*d));
}

void wrk_draws_begin(struct wrk_draws *d)
{
    d->any = false;
}

void wrk_draws_skip(struct wrk_draws *d, uint32_t k)
{
    if (!d->can)
        return;
    d->on[k] = false;
    d->row[k] = (struct be_sample_row){.top_p = 1}; /* greedy: what costs least */
}

/* Colder than this, 1 / temperature times a difference of logits leaves f32: a device
 * multiplies by it, the host divides. */
#define COLDEST 1e-5f

static bool fits(const struct wrk_gen *g)
{
    const struct wrk_sampling *s = &g->sampling;
    bool greedy = s->temperature == 0 || s->top_k == 1;

    return (g->grammar == NULL || greedy) && !g->logprobs && s->n_bias == 0 &&
           !wrk_sampling_has_penalty(s) && (s->typical_p >= 1 || greedy) &&
           (s->temperature >= COLDEST || greedy);
}

void wrk_draws_add(struct wrk_draws *d, uint32_t k, const struct wrk_gen *g, struct wrk_rng *rng)
{
    const struct wrk_sampling *s = &g->sampling;

    wrk_draws_skip(d, k);
    if (!d->can || !fits(g))
        return;
    d->on[k] = d->any = true;
    d->before[k] = d->after[k] = *rng;
    if (s->temperature == 0 || s->top_k == 1)
        return;
    d->row[k] = (struct be_sample_row){
        .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k};
    /* 24 bits, rounded down: a float of all 53 might be 1 */
    d->row[k].u = (float)(floor(wrk_rng_unit(rng) * 0x1p24) * 0x1p-24);
    d->after[k] = *rng;
}

enum rc wrk_draws_run(struct wrk_draws *d, struct mdl *mdl, uint32_t n, struct rc_err *err)
{
    return mdl_sample(mdl, d->row, n, d->id, err);
}

static bool allowed(const struct wrk_gr_mask *m, uint32_t token)
{
    if (m->bits != NULL)
        return (m->bits[token / 64] >> (token % 64) & 1) != 0;
    for (uint32_t lo = 0, hi = m->n; lo < hi;) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (m->ids[mid] == token)
            return true;
        if (m->ids[mid] < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

bool wrk_draws_take(struct wrk_draws *d, uint32_t k, const struct wrk_gr_mask *mask,
                    struct wrk_rng *rng, int32_t *out)
{
    if (!d->any || !d->on[k])
        return false;
    if (d->id[k] < 0 || (mask != NULL && !allowed(mask, (uint32_t)d->id[k]))) {
        *rng = d->before[k];
        return false;
    }
    *rng = d->after[k];
    *out = d->id[k];
    d->n_drawn++;
    return true;
}
