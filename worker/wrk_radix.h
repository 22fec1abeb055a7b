/* wrk_radix.h - the prompt cache of one worker: a radix tree whose digit is a page.
 *
 * A node stands for one whole page of tokens after its parent's; the path from a
 * root spells a prefix, and each node holds the KV pages of its own tokens. A root
 * stands for a namespace: what differs in it shares nothing. Global classes have
 * their page in every node; windowed classes only where a checkpoint was kept, so
 * that a prefix can be restored where all pages of the window before it are there.
 *
 * Pages in the tree are read only, and in the pool like any other (wrk_pages.h): a
 * sequence that begins with a prefix shares them. What a sequence holds is never
 * freed by the tree, and the tree never keeps a page from a sequence that was
 * admitted: pages that only the tree holds are reclaimed on demand, the longest
 * unused leaf first. An owner's namespaces together may be bound to a part of the
 * budget: what it keeps beyond that takes the place of its own longest unused. Everything is
 * allocated at init. Single-threaded. Page: docs/prompt-cache.md. Tests:
 * tests/worker/test_wrk_radix.c
 */
#ifndef INFERD_WRK_RADIX_H
#define INFERD_WRK_RADIX_H

#include "wrk_pages.h"

#define WRK_NS_BYTES 32      /* of a namespace: a digest the front made */
#define WRK_RADIX_OWNERS 256 /* that have something in the tree */

/* Of whom a namespace is. */
struct wrk_radix_owner {
    uint8_t id[WRK_NS_BYTES];
    bool known;       /* false: the namespace stands for itself, without a bound */
    uint32_t percent; /* of the budget; 0 = no bound of its own */
};

/* Tokens in two pieces: a prompt, and an answer to it. */
struct wrk_text {
    const int32_t *a, *b;
    uint32_t n_a;
};
static inline int32_t wrk_text_at(const struct wrk_text *t, uint32_t i)
{
    return i < t->n_a ? t->a[i] : t->b[i - t->n_a];
}

enum wrk_evict { WRK_EVICT_SPACE, WRK_EVICT_BUDGET, WRK_EVICT_COUNT };

struct wrk_radix_stats {
    uint64_t lookups, hits;            /* hits: at least a page */
    uint64_t hit_tokens;               /* not computed thanks to the tree */
    uint64_t miss_tokens;              /* computed */
    uint64_t window_tokens;            /* of the misses: known, but their window was not kept */
    uint64_t inserted_pages;           /* nodes made */
    uint64_t denied_pages;             /* not made: no room in the budget */
    uint64_t evicted[WRK_EVICT_COUNT]; /* nodes, by reason: a sequence needed the pages; budget */
    uint64_t evicted_windows;          /* pages of windowed classes taken out of living nodes */
};

struct wrk_radix_node;

struct wrk_radix {
    struct wrk_pages *pages; /* borrowed */
    uint32_t n_nodes;        /* that exist: free ones too */
    uint32_t n_used, n_roots;
    struct wrk_radix_node *node;
    int32_t *tokens; /* [n_nodes, page_tokens]; of a root: its namespace */
    int32_t *bucket;
    uint32_t n_buckets;     /* a power of 2 */
    int32_t free;           /* chain through `next` */
    int32_t newest, oldest; /* of all nodes: a parent is always newer than its children */
    struct {
        int32_t newest, oldest; /* nodes with a page of this windowed class */
    } win[BE_KV_CLASSES];
    struct wrk_radix_group {
        struct wrk_radix_owner owner;
        uint32_t n_nodes; /* 0: free */
        uint64_t bytes;
        int32_t newest, oldest; /* of its nodes */
    } group[WRK_RADIX_OWNERS];
    uint64_t pool_bytes;
    uint64_t budget_bytes, used_bytes;
    uint64_t seed;
    uint32_t sweep; /* looks for something to evict */
    int32_t guard;  /* not evicted: a node is being made below it */
    int32_t *digit; /* one page of tokens */
    int32_t *path;  /* [ctx / page_tokens] */
    int32_t *found[BE_KV_CLASSES];
    uint32_t max_path;
    struct wrk_radix_stats stats;
};

/* budget_bytes: most bytes of pages in the tree; they are part of the pool. Takes
 * pages->reclaim. Errors: RC_NOMEM, RC_INTERNAL. */
enum rc wrk_radix_init(struct wrk_radix *r, struct wrk_pages *pages, uint32_t ctx_tokens,
                       uint64_t budget_bytes, struct rc_err *err);
/* After all tables were closed. Accepts a zeroed object. */
void wrk_radix_deinit(struct wrk_radix *r);

/* The longest restorable prefix of the text's first n tokens in a namespace. *out
 * is good until the next call of this header or of hold. *window_tokens (may be NULL): further
 * tokens that the tree knows but cannot restore. Counts nothing. */
void wrk_radix_match(struct wrk_radix *r, const uint8_t *ns, const struct wrk_text *t, uint32_t n,
                     struct wrk_prefix *out, uint32_t *window_tokens);
/* Counts a lookup: of n tokens, `hit` came from the tree. */
void wrk_radix_count(struct wrk_radix *r, uint32_t n, uint32_t hit, uint32_t window_tokens);
/* Keeps what the table holds of the text's first n tokens, whole pages only; with
 * their windows (a checkpoint) when asked. What has no room is left out. owner: of the
 * namespace; its newest percent counts. */
void wrk_radix_insert(struct wrk_radix *r, const uint8_t *ns, const struct wrk_radix_owner *owner,
                      const struct wrk_text *t, uint32_t n, const struct wrk_table *table,
                      bool checkpoint);
/* Evicts down to the new budget as far as nobody uses the pages. */
void wrk_radix_set_budget(struct wrk_radix *r, uint64_t bytes);
/* Again, after a sequence let go. */
void wrk_radix_trim(struct wrk_radix *r);
/* Tokens between two checkpoints of a long prompt. */
uint32_t wrk_radix_stride(const struct wrk_radix *r);

/* For tests: checks every link, count and byte against the pages. NULL or what is wrong. */
const char *wrk_radix_fault(const struct wrk_radix *r);

#endif
