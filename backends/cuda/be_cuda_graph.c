/* be_cuda_graph.c - lists that come again are launched as one captured graph.
 *
 * A list is known by a 64-bit hash of its commands and arguments and, on a hit,
 * compared in full, so a collision costs time and nothing else. The second time a list is
 * seen it is captured; BE_CUDA_GRAPHS are kept, the one unused longest goes first. A list holds
 * nothing but addresses and shapes (ids, positions and pages lie in staging), which is
 * why a decode step repeats from token to token. Tests: tests/backends/test_be_cuda_cmd.c
 */
#include "be_cuda.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_CMDS 2048u
#define SLOT_ARGS (512u << 10)
#define MIN_CMDS 4u /* a shorter list gains nothing */
#define SEEN 64u    /* hashes of lists seen once */
#define CAPTURE_RELAXED 2

struct slot {
    cu_exec exec; /* NULL = empty */
    uint64_t hash, used;
    uint32_t n, args_used;
    struct be_cuda_cmd *cmd; /* [SLOT_CMDS] */
    uint8_t *args;           /* [SLOT_ARGS] */
};

struct be_cuda_graphs {
    struct slot slot[BE_CUDA_GRAPHS];
    uint64_t seen[SEEN];
    uint32_t next_seen;
    uint64_t clock;
    struct be_cuda_cmd *cmds;
    uint8_t *args;
};

enum rc be_cuda_graphs_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    struct be_cuda_graphs *g = calloc(1, sizeof(*g));

    c->graphs = g;
    if (g) { /* untouched pages cost nothing until a list is kept there */
        g->cmds = calloc((size_t)BE_CUDA_GRAPHS * SLOT_CMDS, sizeof(*g->cmds));
        g->args = calloc(BE_CUDA_GRAPHS, SLOT_ARGS);
    }
    if (!g || !g->cmds || !g->args)
        return rc_fail(err, RC_NOMEM, "cuda: no memory for captured lists");
    for (uint32_t i = 0; i < BE_CUDA_GRAPHS; i++) {
        g->slot[i].cmd = g->cmds + (size_t)i * SLOT_CMDS;
        g->slot[i].args = g->args + (size_t)i * SLOT_ARGS;
    }
    return RC_OK;
}

static void slot_clear(struct be_cuda_ctx *c, struct slot *s)
{
    if (s->exec)
        (void)c->d->exec_free(s->exec); /* an error here says no more than a lost context does */
    s->exec = NULL;
}

void be_cuda_graphs_end(struct be_cuda_ctx *c)
{
    struct be_cuda_graphs *g = c->graphs;

    if (!g)
        return;
    for (uint32_t i = 0; i < BE_CUDA_GRAPHS; i++)
        slot_clear(c, &g->slot[i]);
    free(g->cmds);
    free(g->args);
    free(g);
    c->graphs = NULL;
}

/* n is a multiple of 8. */
static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const uint8_t *b = p;
    uint64_t a[4] = {h, h ^ 0x9e3779b97f4a7c15ull, h ^ 0xbf58476d1ce4e5b9ull,
                     h ^ 0x94d049bb133111ebull};
    size_t i = 0;
    uint64_t w;

    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            memcpy(&w, b + i + 8 * (size_t)k, 8);
            a[k] = (a[k] ^ w) * 0xff51afd7ed558ccdull;
            a[k] ^= a[k] >> 29;
        }
    for (; i < n; i += 8) {
        memcpy(&w, b + i, 8);
        a[0] = (a[0] ^ w) * 0xff51afd7ed558ccdull;
        a[0] ^= a[0] >> 29;
    }
    h = a[0];
    for (int k = 1; k < 4; k++) {
        h = (h ^ a[k]) * 0xc4ceb9fe1a85ec53ull;
        h ^= h >> 32;
    }
    return h;
}

static uint64_t hash_list(const struct be_cuda_list *l)
{
    uint64_t h = mix(l->n, l->cmd, l->n * sizeof(*l->cmd));

    _Static_assert(sizeof(struct be_cuda_cmd) % 8 == 0, "mix takes whole words");
    h = mix(h, l->args, l->args_used);
    return h ? h : 1; /* 0 marks an empty place in seen */
}

static struct slot *find(struct be_cuda_graphs *g, const struct be_cuda_list *l, uint64_t hash)
{
    for (uint32_t i = 0; i < BE_CUDA_GRAPHS; i++) {
        struct slot *s = &g->slot[i];

        if (s->exec && s->hash == hash && s->n == l->n && s->args_used == l->args_used &&
            memcmp(s->cmd, l->cmd, l->n * sizeof(*l->cmd)) == 0 &&
            memcmp(s->args, l->args, l->args_used) == 0)
            return s;
    }
    return NULL;
}

/* True the second time. */
static bool seen(struct be_cuda_graphs *g, uint64_t hash)
{
    for (uint32_t i = 0; i < SEEN; i++)
        if (g->seen[i] == hash) {
            g->seen[i] = 0;
            return true;
        }
    g->seen[g->next_seen++ % SEEN] = hash;
    return false;
}

static struct slot *free_slot(struct be_cuda_ctx *c, struct be_cuda_graphs *g)
{
    struct slot *best = &g->slot[0];

    for (uint32_t i = 0; i < BE_CUDA_GRAPHS; i++) {
        if (!g->slot[i].exec)
            return &g->slot[i];
        if (g->slot[i].used < best->used)
            best = &g->slot[i];
    }
    c->ks.graph_evictions++;
    slot_clear(c, best);
    return best;
}

/* *out stays NULL when this driver cannot capture: graphs are off from then on. */
static enum rc capture(struct be_cuda_ctx *c, cu_exec *out, struct rc_err *err)
{
    const struct be_cuda_drv *d = c->d;
    cu_graph graph = NULL;
    int code = d->stream_begin(c->stream, CAPTURE_RELAXED);
    enum rc rc = RC_OK;

    if (code == 0) {
        rc = be_cuda_list_launch(c, err);
        code = d->stream_end(c->stream, &graph);
    }
    if (rc == RC_OK && code == 0)
        code = d->graph_inst(out, graph, 0);
    if (graph)
        (void)d->graph_free(graph);
    if (rc == RC_OK && code != 0) {
        c->no_graphs = true;
        *out = NULL;
        if (be_cuda_sticky(code))
            rc = be_cuda_do(c, code, "capturing a graph", err);
    }
    return rc;
}

enum rc be_cuda_graph_run(struct be_cuda_ctx *c, bool *done, struct rc_err *err)
{
    struct be_cuda_graphs *g = c->graphs;
    const struct be_cuda_list *l = &c->list;
    struct slot *s;
    cu_exec exec = NULL;
    uint64_t hash;
    enum rc rc;

    *done = false;
    if (c->no_graphs || l->n < MIN_CMDS || l->n > SLOT_CMDS || l->args_used > SLOT_ARGS)
        return RC_OK;
    hash = hash_list(l);
    s = find(g, l, hash);
    if (s) {
        c->ks.graph_replays++;
    } else {
        if (!seen(g, hash))
            return RC_OK;
        if ((rc = capture(c, &exec, err)) != RC_OK || !exec)
            return rc;
        s = free_slot(c, g);
        s->exec = exec;
        s->hash = hash;
        s->n = l->n;
        s->args_used = l->args_used;
        memcpy(s->cmd, l->cmd, l->n * sizeof(*l->cmd));
        memcpy(s->args, l->args, l->args_used);
        c->ks.graph_captures++;
    }
    s->used = ++g->clock;
    *done = true;
    return be_cuda_do(c, c->d->graph_launch(s->exec, c->stream), "launching a graph", err);
}
