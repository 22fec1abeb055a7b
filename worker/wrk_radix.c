/* wrk_radix.c - matching, inserting, evicting.
 *
 * Nodes lie in one array; a hash over (parent, tokens) finds a child, and tokens are
 * always compared, so a collision costs time and never an answer. One list orders
 * all nodes by use: a use moves the path to its new end from the deepest node up, so
 * a parent is always newer than its children and the oldest node is a leaf. A
 * second list per windowed class orders the pages of checkpoints. Each owner (group) has
 * a list of its own nodes in the same order.
 *
 * Always true: used_bytes is the sum over the pages in nodes, and at most the larger
 * of the budget and what was held when the budget fell, and so for each group; a node has a child
 * or a page or is the guard; wrk_radix_fault says the rest. Never allocates after init. Tests:
 * tests/worker/test_wrk_radix.c (against a naive model)
 */
#include "wrk_radix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONE (-1)
#define STRIDE_MIN 1024u /* tokens between checkpoints; a longer window: that */

struct wrk_radix_node {
    int32_t parent; /* NONE: a root */
    int32_t next;   /* of the bucket, or of the free chain */
    int32_t newer, older;
    int32_t group, group_newer, group_older; /* group NONE: of no owner */
    uint32_t n_children;
    uint32_t hash;
    uint32_t sweep; /* the last in which it was found in use */
    bool used;
    int32_t page[BE_KV_CLASSES]; /* NONE where it holds none */
    int32_t win_newer[BE_KV_CLASSES], win_older[BE_KV_CLASSES];
};

/* ------------------------------------------------------------------ lifetime */

static bool windowed(const struct wrk_radix *r, uint32_t c)
{
    return r->pages->cls[c].window > 0;
}

/* As many nodes as can hold a page each, and as many roots as could matter. */
static uint64_t nodes_wanted(const struct wrk_pages *p)
{
    uint64_t least = UINT64_MAX, sum = 0, n;

    for (uint32_t c = 0; c < p->n_classes; c++) {
        sum += p->cls[c].n_pages;
        if (p->cls[c].window == 0 && p->cls[c].n_pages < least)
            least = p->cls[c].n_pages;
    }
    n = least < UINT64_MAX ? least : sum;
    return n + (n < 1024 ? n : 1024) + 1;
}

static bool reclaim(void *user, uint32_t c);

enum rc wrk_radix_init(struct wrk_radix *r, struct wrk_pages *pages, uint32_t ctx_tokens,
                       uint64_t budget_bytes, struct rc_err *err)
{
    uint64_t n = nodes_wanted(pages);
    uint32_t pt = pages->page_tokens;

    memset(r, 0, sizeof(*r));
    if (pt * sizeof(int32_t) < WRK_NS_BYTES || n > INT32_MAX / 2)
        return rc_fail(err, RC_INTERNAL, "prompt cache: pages of %u tokens, %llu nodes", pt,
                       (unsigned long long)n);
    r->pages = pages;
    r->n_nodes = (uint32_t)n;
    r->max_path = ctx_tokens / pt + 1;
    for (r->n_buckets = 16; r->n_buckets < r->n_nodes; r->n_buckets *= 2)
        ;
    r->node = calloc(r->n_nodes, sizeof(*r->node));
    r->tokens = malloc((size_t)r->n_nodes * pt * sizeof(int32_t));
    r->bucket = malloc((size_t)r->n_buckets * sizeof(int32_t));
    r->digit = malloc((size_t)pt * sizeof(int32_t));
    r->path = malloc((size_t)r->max_path * sizeof(int32_t));
    for (uint32_t c = 0; c < BE_KV_CLASSES; c++) {
        r->found[c] = malloc((size_t)r->max_path * sizeof(int32_t));
        r->win[c].newest = r->win[c].oldest = NONE;
        if (r->found[c] == NULL)
            goto nomem;
    }
    if (r->node == NULL || r->tokens == NULL || r->bucket == NULL || r->digit == NULL ||
        r->path == NULL)
        goto nomem;
    if (getrandom(&r->seed, sizeof(r->seed), 0) != sizeof(r->seed)) {
        wrk_radix_deinit(r);
        return rc_fail(err, RC_INTERNAL, "no random seed: getrandom failed");
    }
    memset(r->bucket, 0xff, (size_t)r->n_buckets * sizeof(int32_t)); /* NONE */
    r->free = r->newest = r->oldest = r->guard = NONE;
    for (uint32_t i = r->n_nodes; i-- > 0;) {
        r->node[i].next = r->free;
        r->free = (int32_t)i;
    }
    for (uint32_t c = 0; c < pages->n_classes; c++)
        r->pool_bytes += pages->cls[c].n_pages * pages->cls[c].page_bytes;
    r->budget_bytes = budget_bytes;
    pages->reclaim = reclaim;
    pages->reclaim_user = r;
    return RC_OK;
nomem:
    wrk_radix_deinit(r);
    return rc_fail(err, RC_NOMEM, "prompt cache of %llu nodes", (unsigned long long)n);
}

void wrk_radix_deinit(struct wrk_radix *r)
{
    free(r->node);
    free(r->tokens);
    free(r->bucket);
    free(r->digit);
    free(r->path);
    for (uint32_t c = 0; c < BE_KV_CLASSES; c++)
        free(r->found[c]);
    if (r->pages != NULL)
        r->pages->reclaim = NULL;
    memset(r, 0, sizeof(*r));
}

uint32_t wrk_radix_stride(const struct wrk_radix *r)
{
    uint32_t n = STRIDE_MIN;

    for (uint32_t c = 0; c < r->pages->n_classes; c++)
        if (r->pages->cls[c].window > n)
            n = r->pages->cls[c].window;
    return n;
}

/* --------------------------------------------------------------------- lists */

static void group_unlink(struct wrk_radix *r, int32_t i)
{
    struct wrk_radix_node *n = &r->node[i];
    struct wrk_radix_group *g;

    if (n->group == NONE)
        return;
    g = &r->group[n->group];
    *(n->group_newer != NONE ? &r->node[n->group_newer].group_older : &g->newest) = n->group_older;
    *(n->group_older != NONE ? &r->node[n->group_older].group_newer : &g->oldest) = n->group_newer;
}

/* Behind `newer`, or as the newest. */
static void group_link(struct wrk_radix *r, int32_t i, int32_t newer)
{
    struct wrk_radix_node *n = &r->node[i];
    struct wrk_radix_group *g;

    if (n->group == NONE)
        return;
    g = &r->group[n->group];
    n->group_newer = newer;
    n->group_older = newer != NONE ? r->node[newer].group_older : g->newest;
    *(n->group_older != NONE ? &r->node[n->group_older].group_newer : &g->oldest) = i;
    *(newer != NONE ? &r->node[newer].group_older : &g->newest) = i;
}

static void lru_unlink(struct wrk_radix *r, int32_t i)
{
    struct wrk_radix_node *n = &r->node[i];

    group_unlink(r, i);

    *(n->newer != NONE ? &r->node[n->newer].older : &r->newest) = n->older;
    *(n->older != NONE ? &r->node[n->older].newer : &r->oldest) = n->newer;
}

static void lru_push(struct wrk_radix *r, int32_t i)
{
    struct wrk_radix_node *n = &r->node[i];

    n->newer = NONE;
    n->older = r->newest;
    *(r->newest != NONE ? &r->node[r->newest].newer : &r->oldest) = i;
    r->newest = i;
    group_link(r, i, NONE);
}

/* Behind its parent, so that the order holds until the path is touched. */
static void lru_insert(struct wrk_radix *r, int32_t i, int32_t parent)
{
    struct wrk_radix_node *n = &r->node[i];

    n->newer = parent;
    n->older = r->node[parent].older;
    *(n->older != NONE ? &r->node[n->older].newer : &r->oldest) = i;
    r->node[parent].older = i;
    group_link(r, i, parent);
}

/* The node and its ancestors were used just now. */
static void touch(struct wrk_radix *r, int32_t i)
{
    for (; i != NONE; i = r->node[i].parent) {
        lru_unlink(r, i);
        lru_push(r, i);
    }
}

static void win_unlink(struct wrk_radix *r, uint32_t c, int32_t i)
{
    int32_t newer = r->node[i].win_newer[c], older = r->node[i].win_older[c];

    *(newer != NONE ? &r->node[newer].win_older[c] : &r->win[c].newest) = older;
    *(older != NONE ? &r->node[older].win_newer[c] : &r->win[c].oldest) = newer;
}

static void win_push(struct wrk_radix *r, uint32_t c, int32_t i)
{
    r->node[i].win_newer[c] = NONE;
    r->node[i].win_older[c] = r->win[c].newest;
    *(r->win[c].newest != NONE ? &r->node[r->win[c].newest].win_newer[c] : &r->win[c].oldest) = i;
    r->win[c].newest = i;
}

/* --------------------------------------------------------------------- nodes */

static uint32_t hash_of(const struct wrk_radix *r, int32_t parent, const int32_t *digit)
{
    uint64_t h = r->seed ^ ((uint64_t)(uint32_t)parent * 0x9e3779b97f4a7c15ull);

    for (uint32_t i = 0; i < r->pages->page_tokens; i++) {
        h = (h ^ (uint32_t)digit[i]) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static int32_t *tokens_of(const struct wrk_radix *r, int32_t i)
{
    return r->tokens + (size_t)i * r->pages->page_tokens;
}

static int32_t find(const struct wrk_radix *r, int32_t parent, const int32_t *digit, uint32_t hash)
{
    size_t bytes = (size_t)r->pages->page_tokens * sizeof(int32_t);
    int32_t i = r->bucket[hash & (r->n_buckets - 1)];

    while (i != NONE && (r->node[i].hash != hash || r->node[i].parent != parent ||
                         memcmp(tokens_of(r, i), digit, bytes) != 0))
        i = r->node[i].next;
    return i;
}

static void page_out(struct wrk_radix *r, int32_t i, uint32_t c)
{
    struct wrk_radix_node *n = &r->node[i];

    if (n->page[c] == NONE)
        return;
    wrk_page_uncache(r->pages, c, n->page[c]);
    n->page[c] = NONE;
    r->used_bytes -= r->pages->cls[c].page_bytes;
    if (n->group != NONE)
        r->group[n->group].bytes -= r->pages->cls[c].page_bytes;
    if (windowed(r, c))
        win_unlink(r, c, i);
}

static void page_in(struct wrk_radix *r, int32_t i, uint32_t c, int32_t page)
{
    r->node[i].page[c] = page;
    wrk_page_cache(r->pages, c, page, i);
    r->used_bytes += r->pages->cls[c].page_bytes;
    if (r->node[i].group != NONE)
        r->group[r->node[i].group].bytes += r->pages->cls[c].page_bytes;
    if (windowed(r, c))
        win_push(r, c, i);
}

static void node_free(struct wrk_radix *r, int32_t i)
{
    struct wrk_radix_node *n = &r->node[i];
    int32_t *at = &r->bucket[n->hash & (r->n_buckets - 1)];

    for (uint32_t c = 0; c < r->pages->n_classes; c++)
        page_out(r, i, c);
    while (*at != i)
        at = &r->node[*at].next;
    *at = n->next;
    lru_unlink(r, i);
    if (n->group != NONE)
        r->group[n->group].n_nodes--;
    if (n->parent != NONE)
        r->node[n->parent].n_children--;
    else
        r->n_roots--;
    n->used = false;
    n->next = r->free;
    r->free = i;
    r->n_used--;
}

static bool node_held(const struct wrk_radix *r, int32_t i)
{
    const struct wrk_radix_node *n = &r->node[i];

    for (uint32_t c = 0; c < r->pages->n_classes; c++)
        if (n->page[c] != NONE && r->pages->cls[c].page[n->page[c]].holders > 0)
            return true;
    return false;
}

/* A node that is left with neither child nor page goes, and so may its parent. */
static void prune(struct wrk_radix *r, int32_t i)
{
    while (i != NONE && i != r->guard && r->node[i].n_children == 0) {
        int32_t up = r->node[i].parent;

        for (uint32_t c = 0; c < r->pages->n_classes; c++)
            if (r->node[i].page[c] != NONE)
                return;
        node_free(r, i);
        i = up;
    }
}

/* Takes out the longest unused leaf, of a group or (NONE) of all; by preference, or else only,
 * one that no sequence holds a page of: what is held would not become free. */
static bool evict_leaf(struct wrk_radix *r, int32_t group, enum wrk_evict why, bool held_too)
{
    const int32_t *oldest = group != NONE ? &r->group[group].oldest : &r->oldest;
    int32_t i, up;

    r->sweep++;
    while ((i = *oldest) != NONE && (i == r->guard || node_held(r, i))) {
        if (r->node[i].sweep == r->sweep) { /* seen before: so all leaves are in use */
            if (!held_too || i == r->guard)
                return false;
            break;
        }
        r->node[i].sweep = r->sweep;
        touch(r, i);
    }
    if (i == NONE)
        return false;
    up = r->node[i].parent;
    node_free(r, i);
    r->stats.evicted[why]++;
    prune(r, up);
    return true;
}

/* Takes the longest unused page of a windowed class out of its node. */
static bool evict_window(struct wrk_radix *r, uint32_t c)
{
    for (uint32_t tries = r->pages->cls[c].n_cached; tries > 0; tries--) {
        int32_t i = r->win[c].oldest;

        if (r->pages->cls[c].page[r->node[i].page[c]].holders > 0) {
            win_unlink(r, c, i);
            win_push(r, c, i);
            continue;
        }
        page_out(r, i, c);
        r->stats.evicted_windows++;
        prune(r, i);
        return true;
    }
    return false;
}

/* wrk_pages asks: a sequence that was admitted needs a page of class c. */
static bool reclaim(void *user, uint32_t c)
{
    struct wrk_radix *r = user;

    if (windowed(r, c))
        return evict_window(r, c);
    /* a free page may lie above one that is held: then both leave the tree */
    while (r->pages->cls[c].n_free == 0)
        if (!evict_leaf(r, NONE, WRK_EVICT_SPACE, true))
            return false;
    return true;
}

/* What a group may keep. */
static uint64_t most_of(const struct wrk_radix *r, int32_t group)
{
    uint64_t all = r->budget_bytes < r->pool_bytes ? r->budget_bytes : r->pool_bytes;
    uint32_t percent = r->group[group].owner.percent;

    return percent == 0 ? UINT64_MAX : all / 100 * percent + all % 100 * percent / 100;
}

void wrk_radix_set_budget(struct wrk_radix *r, uint64_t bytes)
{
    r->budget_bytes = bytes;
    wrk_radix_trim(r);
}

void wrk_radix_trim(struct wrk_radix *r)
{
    while (r->used_bytes > r->budget_bytes && evict_leaf(r, NONE, WRK_EVICT_BUDGET, false))
        ;
    for (int32_t g = 0; g < (int32_t)WRK_RADIX_OWNERS; g++)
        while (r->group[g].bytes > most_of(r, g) && evict_leaf(r, g, WRK_EVICT_BUDGET, false))
            ;
}

/* For so many bytes more, of a group or of no owner. */
static bool make_room(struct wrk_radix *r, int32_t group, uint64_t bytes)
{
    uint64_t most = group != NONE ? most_of(r, group) : UINT64_MAX;

    if (bytes > r->budget_bytes || bytes > most)
        return false;
    while (group != NONE && r->group[group].bytes > most - bytes)
        if (!evict_leaf(r, group, WRK_EVICT_BUDGET, false))
            return false;
    while (r->used_bytes > r->budget_bytes - bytes)
        if (!evict_leaf(r, NONE, WRK_EVICT_BUDGET, false))
            return false;
    return true;
}

/* A child without pages; NONE when every node is in use. group: of a root. */
static int32_t node_new(struct wrk_radix *r, int32_t parent, int32_t group, const int32_t *digit,
                        uint32_t hash)
{
    struct wrk_radix_node *n;
    int32_t i;

    if (r->free == NONE && !evict_leaf(r, NONE, WRK_EVICT_SPACE, false))
        return NONE;
    i = r->free;
    n = &r->node[i];
    r->free = n->next;
    *n = (struct wrk_radix_node){.parent = parent,
                                 .group = parent != NONE ? r->node[parent].group : group,
                                 .hash = hash,
                                 .used = true,
                                 .next = r->bucket[hash & (r->n_buckets - 1)]};
    if (n->group != NONE)
        r->group[n->group].n_nodes++;
    memset(n->page, 0xff, sizeof(n->page)); /* NONE */
    r->bucket[hash & (r->n_buckets - 1)] = i;
    memcpy(tokens_of(r, i), digit, (size_t)r->pages->page_tokens * sizeof(int32_t));
    if (parent != NONE) {
        lru_insert(r, i, parent);
        r->node[parent].n_children++;
    } else {
        lru_push(r, i);
        r->n_roots++;
    }
    r->n_used++;
    return i;
}

/* ------------------------------------------------------------------- matching */

static const int32_t *digit_of(struct wrk_radix *r, const struct wrk_text *t, uint32_t i)
{
    uint32_t pt = r->pages->page_tokens, at = i * pt;

    if (at + pt <= t->n_a)
        return t->a + at;
    if (at >= t->n_a)
        return t->b + (at - t->n_a);
    memcpy(r->digit, t->a + at, (size_t)(t->n_a - at) * sizeof(int32_t));
    memcpy(r->digit + (t->n_a - at), t->b, (size_t)(at + pt - t->n_a) * sizeof(int32_t));
    return r->digit;
}

static int32_t root_find(struct wrk_radix *r, const uint8_t *ns, uint32_t *hash)
{
    memset(r->digit, 0, (size_t)r->pages->page_tokens * sizeof(int32_t));
    memcpy(r->digit, ns, WRK_NS_BYTES);
    *hash = hash_of(r, NONE, r->digit);
    return find(r, NONE, r->digit, *hash);
}

/* An owner's group, a free one if it has none, or NONE. */
static int32_t group_of(struct wrk_radix *r, const struct wrk_radix_owner *owner)
{
    int32_t free = NONE;

    for (int32_t g = 0; g < (int32_t)WRK_RADIX_OWNERS; g++) {
        if (r->group[g].n_nodes == 0)
            free = free == NONE ? g : free;
        else if (memcmp(r->group[g].owner.id, owner->id, WRK_NS_BYTES) == 0)
            return g;
    }
    if (free != NONE)
        r->group[free] = (struct wrk_radix_group){.newest = NONE, .oldest = NONE};
    return free;
}

/* The namespace's root, made where there is none. NONE: no node is free, or no group for an
 * owner that has a bound. */
static int32_t root_of(struct wrk_radix *r, const uint8_t *ns, const struct wrk_radix_owner *owner)
{
    uint32_t hash;
    int32_t i = root_find(r, ns, &hash), group = NONE;

    if (i != NONE)
        group = r->node[i].group;
    else if (owner->known && (group = group_of(r, owner)) == NONE && owner->percent > 0)
        return NONE;
    if (i == NONE)
        i = node_new(r, NONE, group, r->digit, hash);
    if (i != NONE && group != NONE)
        r->group[group].owner = *owner;
    return i;
}

/* First page that a prefix of n pages needs in a class. */
static uint32_t first_needed(const struct wrk_radix *r, uint32_t c, uint32_t n)
{
    uint32_t w = r->pages->cls[c].window, tokens = n * r->pages->page_tokens;

    return w == 0 || tokens + 1 <= w ? 0 : (tokens + 1 - w) / r->pages->page_tokens;
}

void wrk_radix_match(struct wrk_radix *r, const uint8_t *ns, const struct wrk_text *t, uint32_t n,
                     struct wrk_prefix *out, uint32_t *window_tokens)
{
    uint32_t known = 0, whole = n / r->pages->page_tokens, best = 0;
    uint32_t since[BE_KV_CLASSES] = {0}; /* first of the run of pages that ends here */
    uint32_t root_hash;
    int32_t at = root_find(r, ns, &root_hash);

    for (; at != NONE && known < whole && known < r->max_path; known++) {
        const int32_t *d = digit_of(r, t, known);
        bool can = true;

        if ((at = find(r, at, d, hash_of(r, at, d))) == NONE)
            break;
        r->path[known] = at;
        for (uint32_t c = 0; c < r->pages->n_classes; c++) {
            r->found[c][known] = r->node[at].page[c];
            if (r->node[at].page[c] == NONE)
                since[c] = known + 1;
            can = can && since[c] <= first_needed(r, c, known + 1);
        }
        if (can)
            best = known + 1;
    }
    *out = (struct wrk_prefix){.n = best};
    if (window_tokens != NULL)
        *window_tokens = (known - best) * r->pages->page_tokens;
    for (uint32_t c = 0; c < r->pages->n_classes; c++) {
        for (uint32_t i = 0, first = first_needed(r, c, best); i < best && i < first; i++)
            r->found[c][i] = NONE;
        out->page[c] = r->found[c];
        /* what is restored is as new as it gets */
        for (uint32_t i = first_needed(r, c, best); windowed(r, c) && i < best; i++) {
            win_unlink(r, c, r->path[i]);
            win_push(r, c, r->path[i]);
        }
    }
    if (known > 0)
        touch(r, r->path[(best > 0 ? best : known) - 1]);
}

void wrk_radix_count(struct wrk_radix *r, uint32_t n, uint32_t hit, uint32_t window_tokens)
{
    r->stats.lookups++;
    r->stats.hits += hit > 0;
    r->stats.hit_tokens += hit;
    r->stats.miss_tokens += n - hit;
    r->stats.window_tokens += window_tokens;
}

/* ------------------------------------------------------------------ inserting */

/* Gives node i the pages it lacks and the table has at entry k. */
static void give_pages(struct wrk_radix *r, int32_t i, const struct wrk_table *t, uint32_t k,
                       bool checkpoint)
{
    for (uint32_t c = 0; c < r->pages->n_classes; c++) {
        int32_t page = k >= t->from[c] && k < t->to[c] ? t->entry[c][k] : NONE;

        if (windowed(r, c) && !checkpoint)
            continue;
        if (r->node[i].page[c] != NONE) {
            if (windowed(r, c)) { /* part of a newer checkpoint */
                win_unlink(r, c, i);
                win_push(r, c, i);
            }
            continue;
        }
        if (page != NONE && make_room(r, r->node[i].group, r->pages->cls[c].page_bytes))
            page_in(r, i, c, page);
    }
}

static bool lacks_global(const struct wrk_radix *r, int32_t i)
{
    for (uint32_t c = 0; c < r->pages->n_classes; c++)
        if (!windowed(r, c) && r->node[i].page[c] == NONE)
            return true;
    return false;
}

void wrk_radix_insert(struct wrk_radix *r, const uint8_t *ns, const struct wrk_radix_owner *owner,
                      const struct wrk_text *t, uint32_t n, const struct wrk_table *table,
                      bool checkpoint)
{
    uint32_t whole = n / r->pages->page_tokens, k = 0;
    int32_t at, child;

    if (whole == 0 || whole > r->max_path || r->budget_bytes == 0)
        return;
    for (at = root_of(r, ns, owner); at != NONE && k < whole; k++, at = child) {
        const int32_t *d = digit_of(r, t, k);
        uint32_t hash = hash_of(r, at, d);
        bool fresh;

        r->guard = at;
        child = find(r, at, d, hash);
        fresh = child == NONE;
        if (fresh && (child = node_new(r, at, NONE, d, hash)) == NONE)
            break;
        r->guard = child;
        give_pages(r, child, table, k, checkpoint);
        if (fresh && lacks_global(r, child)) {
            node_free(r, child);
            break;
        }
        r->stats.inserted_pages += fresh;
    }
    r->stats.denied_pages += whole - k;
    r->guard = NONE;
    if (at != NONE)
        touch(r, at);
    prune(r, at);
}

/* ------------------------------------------------------------------- checking */

static const char *fault_of_node(const struct wrk_radix *r, int32_t i, uint64_t *bytes)
{
    const struct wrk_radix_node *n = &r->node[i];
    uint32_t hash = hash_of(r, n->parent, tokens_of(r, i));
    bool any = n->n_children > 0;

    if (n->hash != hash || find(r, n->parent, tokens_of(r, i), hash) != i)
        return "a node is not found by its own tokens";
    for (uint32_t c = 0; c < r->pages->n_classes; c++) {
        if (n->page[c] == NONE) {
            if (!windowed(r, c) && n->parent != NONE)
                return "a node without a page of a global class";
            continue;
        }
        any = true;
        *bytes += r->pages->cls[c].page_bytes;
        if (r->pages->cls[c].page[n->page[c]].node != i)
            return "a page that does not know its node";
    }
    return any ? NULL : "a node with neither page nor child";
}

/* Order of use, and who has how many children. */
static const char *fault_of_order(const struct wrk_radix *r, uint32_t *seen)
{
    uint32_t n = 0, children = 0, roots = 0;

    for (int32_t i = r->newest, before = NONE; i != NONE; before = i, i = r->node[i].older) {
        if (!r->node[i].used || r->node[i].newer != before || n++ > r->n_nodes)
            return "the order of use is broken";
        if (r->node[i].parent != NONE && seen[r->node[i].parent] == 0)
            return "a child newer than its parent";
        seen[i] = 1;
        roots += r->node[i].parent == NONE;
        children += r->node[i].n_children;
    }
    return n != r->n_used || roots != r->n_roots || children + roots != n ? "a miscount of nodes"
                                                                          : NULL;
}

/* Every node of a group in its list, in the order of use, and its bytes. */
static const char *fault_of_groups(const struct wrk_radix *r)
{
    for (int32_t g = 0; g < (int32_t)WRK_RADIX_OWNERS; g++) {
        int32_t at = r->group[g].newest, before = NONE;
        uint64_t bytes = 0;
        uint32_t n = 0;

        for (int32_t i = r->newest; i != NONE && r->group[g].n_nodes > 0; i = r->node[i].older) {
            const struct wrk_radix_node *w = &r->node[i];

            if (w->group != g)
                continue;
            if (at != i || w->group_newer != before ||
                (w->parent != NONE && r->node[w->parent].group != g))
                return "the order of a group is broken";
            before = i;
            at = w->group_older;
            n++;
            for (uint32_t c = 0; c < r->pages->n_classes; c++)
                bytes += w->page[c] != NONE ? r->pages->cls[c].page_bytes : 0;
        }
        if (n != r->group[g].n_nodes || bytes != r->group[g].bytes ||
            (n > 0 && (at != NONE || r->group[g].oldest != before)))
            return "a miscount of a group";
    }
    return NULL;
}

const char *wrk_radix_fault(const struct wrk_radix *r)
{
    uint32_t *seen = calloc((size_t)r->n_nodes + 1, sizeof(*seen)), n_cached[BE_KV_CLASSES] = {0};
    const char *why = seen != NULL ? fault_of_order(r, seen) : "no memory to check";
    uint64_t bytes = 0;

    for (int32_t i = r->newest; i != NONE && why == NULL; i = r->node[i].older) {
        why = fault_of_node(r, i, &bytes);
        for (uint32_t c = 0; c < r->pages->n_classes; c++)
            n_cached[c] += r->node[i].page[c] != NONE;
    }
    for (uint32_t c = 0; c < r->pages->n_classes && why == NULL; c++) {
        uint32_t n = 0;

        for (int32_t i = r->win[c].newest; i != NONE; i = r->node[i].win_older[c])
            n++;
        if (n_cached[c] != r->pages->cls[c].n_cached || (windowed(r, c) && n != n_cached[c]))
            why = "a miscount of cached pages";
    }
    free(seen);
    if (why == NULL)
        why = fault_of_groups(r);
    return why != NULL ? why : bytes != r->used_bytes ? "a miscount of bytes" : NULL;
}
