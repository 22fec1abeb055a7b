/* mdl_tok_vocab.c - spellings of a vocabulary and the way back.
 *
 * One arena, one offset per id, one open-addressing table hashed with the
 * process's secret (a file cannot choose colliding pieces). Where two ids share
 * a spelling the later one is found. Tests: tests/models/test_mdl_tok.c
 */
#include "mdl_tok_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* The slot of a spelling, or the empty one where it would go. */
static struct tok_slot *slot_of(const struct tok_vocab *v, const char *s, size_t n)
{
    uint64_t h = mdl_hash_bytes(v->seed, s, n);
    uint32_t i = (uint32_t)h & v->mask, tag = (uint32_t)(h >> 32), len;

    for (; v->slots[i].id; i = (i + 1) & v->mask) {
        if (v->slots[i].tag != tag)
            continue;
        const char *p = tok_vocab_at(v, v->slots[i].id - 1, &len);
        if (len == n && memcmp(p, s, n) == 0)
            break;
    }
    return &v->slots[i];
}

int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t n)
{
    return n > v->longest ? -1 : (int32_t)slot_of(v, s, n)->id - 1;
}

bool tok_vocab_bytes(const struct tok_vocab *v, uint32_t n_ids, int32_t byte_id[256])
{
    bool all = true;
    char name[8];

    for (unsigned k = 0; k < 256; k++) {
        int32_t id;

        snprintf(name, sizeof(name), "<0x%02X>", k);
        id = tok_vocab_find(v, name, 6);
        byte_id[k] = id >= 0 && (uint32_t)id < n_ids ? id : -1;
        all &= byte_id[k] >= 0;
    }
    return all;
}

static void insert(struct tok_vocab *v, uint32_t id)
{
    uint32_t n;
    const char *s = tok_vocab_at(v, id, &n);
    struct tok_slot *slot = slot_of(v, s, n);

    slot->id = id + 1;
    slot->tag = (uint32_t)(mdl_hash_bytes(v->seed, s, n) >> 32);
}

enum rc tok_vocab_build(struct tok_vocab *v, const struct tok_piece *p, uint32_t n_ids,
                        struct rc_err *err)
{
    uint64_t total = 0;
    uint32_t cap = 16;

    for (uint32_t i = 0; i < n_ids; i++) {
        if (p[i].s && p[i].n > TOK_PIECE_LIMIT)
            return rc_fail(err, RC_UNSUPPORTED,
                           "tokenizer: piece %u has %u bytes, at most %d are supported", i, p[i].n,
                           TOK_PIECE_LIMIT);
        total += p[i].s ? p[i].n : 0;
    }
    while (cap < 2 * n_ids)
        cap *= 2;
    v->arena = malloc(total + 1);
    v->at = malloc((n_ids + 1) * sizeof(*v->at));
    v->flags = calloc(n_ids + 1, 1);
    v->slots = calloc(cap, sizeof(*v->slots));
    if (total > UINT32_MAX || !v->arena || !v->at || !v->flags || !v->slots)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %u pieces", n_ids);
    v->mask = cap - 1;
    v->seed = mdl_hash_seed();
    v->n_ids = n_ids;
    v->at[0] = 0;
    for (uint32_t i = 0; i < n_ids; i++) {
        v->at[i + 1] = v->at[i];
        if (!p[i].s)
            continue;
        if (p[i].n)
            memcpy(v->arena + v->at[i], p[i].s, p[i].n);
        v->at[i + 1] += p[i].n;
        v->flags[i] = (uint8_t)(p[i].flags | TOK_USED);
        if (p[i].n > v->longest)
            v->longest = p[i].n;
        insert(v, i);
    }
    return RC_OK;
}

void tok_vocab_deinit(struct tok_vocab *v)
{
    free(v->arena);
    free(v->at);
    free(v->flags);
    free(v->slots);
    *v = (struct tok_vocab){0};
}
