/* sup_fleet_room.c - memory and places for workers: what a load needs, and who goes for it.
 *
 * Counts what stands, asks sup_fleet_policy.c whom to evict, and drains those. Knows the
 * ledger and slots, no tasks. Always true: the ledger's sum is the sum of the workers' claims
 * and within its limits, checked after every change (fleet_ledger_show); nobody is evicted
 * unless that makes the room. Tests: tests/supervisor/test_sup_fleet_room.c,
 * test_sup_fleet_policy.c, test_sup_fleet_random.c */
#include "sup_fleet_impl.h"

/* Of the host, for a worker whose model lies on a device: buffers of requests. */
#define HOST_BESIDE_DEVICE (64ull << 20)

bool fleet_on_device(const struct sup_fleet *f)
{
    return strcmp(f->conf->backend, "cpu") != 0;
}

uint64_t fleet_limit(const struct sup_fleet *f)
{
    return f->ledger.limit[fleet_on_device(f) ? SUP_TIER_DEVICE : SUP_TIER_HOST];
}

/* What a loaded model says it took. Of a device it may hold more than it can name: that is
 * workspace. */
struct sup_claim fleet_measured(const struct sup_fleet *f, const Ipc__Loaded *l)
{
    struct sup_claim c = {0};
    uint64_t named, rest;

    if (!fleet_on_device(f)) {
        c.tier[SUP_TIER_HOST] =
            (struct sup_bytes){l->weight_bytes, l->kv_bytes, l->workspace_bytes};
        return c;
    }
    c.tier[SUP_TIER_HOST].workspace = l->host_bytes;
    rest = l->workspace_bytes > l->host_bytes ? l->workspace_bytes - l->host_bytes : 0;
    c.tier[SUP_TIER_DEVICE] = (struct sup_bytes){l->weight_bytes, l->kv_bytes, rest};
    named = sup_claim_bytes(&c, SUP_TIER_DEVICE);
    if (l->device_bytes > named)
        c.tier[SUP_TIER_DEVICE].workspace += l->device_bytes - named;
    return c;
}

/* Before a load: the files' bytes, or what a look at them found; what the options allow for
 * the rest. Once measured, what was measured. */
struct sup_claim fleet_estimate(const struct sup_fleet *f, const struct slot *s)
{
    struct sup_bytes b = {s->bytes, f->conf->kv_mb << 20, f->conf->workspace_mb << 20};
    struct sup_claim c = {0};

    if (s->info && memcmp(s->info_identity, s->identity, SUP_IDENTITY_BYTES) == 0) {
        if (s->info->workspace_bytes) /* measured by a load; a look does not know */
            return fleet_measured(f, s->info);
        if (s->info->weight_bytes)
            b.weights = s->info->weight_bytes;
        if (!s->info->can_generate)
            b.kv = 0;
    }
    c.tier[fleet_on_device(f) ? SUP_TIER_DEVICE : SUP_TIER_HOST] = b;
    if (fleet_on_device(f))
        c.tier[SUP_TIER_HOST].workspace = HOST_BESIDE_DEVICE;
    return c;
}

static bool leaves(const struct worker *w)
{
    return w->state == SUP_W_DRAINING || w->state == SUP_W_DYING || w->killed;
}

/* What is missing for `need` once those on their way out have gone, or (pinned_only) if
 * nobody but the pinned stood. *now: it could start at once. */
static struct sup_shortage shortage(const struct sup_fleet *f, const struct sup_claim *need,
                                    bool pinned_only, bool *now)
{
    uint64_t used[SUP_TIERS] = {0};
    struct sup_shortage s = {0};
    size_t n = 0, n_stay = 0;

    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        const struct worker *w = LNK_OF(l, struct worker, all);

        if (w == f->probe)
            continue;
        n++;
        if (pinned_only ? !(w->slot && w->slot->pinned) : leaves(w))
            continue;
        n_stay++;
        for (int t = 0; t < SUP_TIERS; t++)
            used[t] += sup_claim_bytes(&w->claim, (enum sup_tier)t);
    }
    for (int t = 0; t < SUP_TIERS; t++) {
        uint64_t want = sup_claim_bytes(need, (enum sup_tier)t),
                 left = f->ledger.limit[t] - used[t];

        s.bytes[t] = want > left ? want - left : 0;
    }
    if (n_stay >= f->conf->max_loaded_models)
        s.workers = n_stay - f->conf->max_loaded_models + 1;
    *now = n < f->conf->max_loaded_models && sup_ledger_ask(&f->ledger, need, NULL) == RC_OK;
    return s;
}

static struct sup_resident resident(const struct sup_fleet *f, const struct slot *s)
{
    uint64_t now = fleet_now_ms(f);
    struct sup_resident r = {0};

    if (s->state != SUP_SLOT_READY || s->w->state != SUP_W_RUNNING)
        return r;
    r.idle = s->n_tasks == 0 && lnk_empty(&s->loaders);
    r.pinned = s->pinned;
    r.idle_ms = now - s->used_ms;
    r.age_ms = now - s->w->ready_ms;
    r.load_ms = s->w->ready_ms - s->w->load_ms;
    for (int t = 0; t < SUP_TIERS; t++)
        r.bytes[t] = sup_claim_bytes(&s->w->claim, (enum sup_tier)t);
    return r;
}

static bool evict(struct sup_fleet *f, const struct sup_shortage *lack)
{
    struct sup_resident *r = calloc(f->n_slots, sizeof(*r));
    bool *out = calloc(f->n_slots, sizeof(*out));
    size_t n = 0;

    if (r && out) {
        for (size_t i = 0; i < f->n_slots; i++)
            r[i] = resident(f, f->slot[i]);
        n = sup_evict_plan(r, f->n_slots, lack, out);
        for (size_t i = 0; i < f->n_slots; i++)
            if (out[i])
                slot_drain(f, f->slot[i], "evicted");
    }
    free(r);
    free(out);
    return n > 0;
}

enum room fleet_make_room(struct sup_fleet *f, const struct sup_claim *need)
{
    bool now, any;
    struct sup_shortage s = shortage(f, need, true, &any);

    if (!sup_shortage_none(&s))
        return ROOM_PINNED;
    s = shortage(f, need, false, &now);
    if (now)
        return ROOM_NOW;
    return sup_shortage_none(&s) || evict(f, &s) ? ROOM_SOON : ROOM_NONE;
}

/* ------------------------------------------------------------------- ledger */

/* A device's memory is known when a worker has told it; a configured limit stays. */
void fleet_device_told(struct sup_fleet *f, uint64_t total_bytes)
{
    if (f->ledger.limit[SUP_TIER_DEVICE] == UINT64_MAX && total_bytes && fleet_on_device(f))
        sup_ledger_limit(&f->ledger, SUP_TIER_DEVICE, total_bytes / 10 * 9);
}

static void show_tier(struct sup_fleet *f, enum sup_tier t)
{
    static const char *const kinds[] = {"weights", "kv", "workspace", "limit"};
    const struct sup_bytes *b = &f->ledger.used.tier[t];
    const uint64_t v[] = {b->weights, b->kv, b->workspace, f->ledger.limit[t]};

    for (int i = 0; i < 4; i++)
        if (v[i] != UINT64_MAX)
            sup_series_set(sup_series(f->metrics, SUP_M_LEDGER_BYTES, kinds[i], sup_tier_name(t)),
                           (double)v[i]);
}

void fleet_ledger_show(struct sup_fleet *f)
{
    uint64_t sum[SUP_TIERS] = {0};
    size_t n = 0;

    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        const struct worker *w = LNK_OF(l, struct worker, all);

        n += w != f->probe;
        for (int t = 0; t < SUP_TIERS; t++)
            sum[t] += sup_claim_bytes(&w->claim, (enum sup_tier)t);
    }
    for (int t = 0; t < SUP_TIERS; t++) {
        FLEET_MUST(sup_ledger_used(&f->ledger, (enum sup_tier)t) == sum[t]);
        FLEET_MUST(sum[t] <= f->ledger.limit[t]);
        if (t == SUP_TIER_HOST || fleet_on_device(f))
            show_tier(f, (enum sup_tier)t);
    }
    sup_series_set(sup_series(f->metrics, SUP_M_PROCESSES, NULL, NULL), (double)n);
}
