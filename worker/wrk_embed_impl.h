/* wrk_embed_impl.h - private to the Embed tasks: their items, from request to vector.
 *
 * wrk_embed.c reads texts, wrk_embed_media.c makes items with files ready, wrk_embed_pass.c runs
 * micro-batches, wrk_embed_tokens.c keeps what they give of every token, wrk_embed_send.c writes
 * the answer.
 */
#ifndef INFERD_WRK_EMBED_IMPL_H
#define INFERD_WRK_EMBED_IMPL_H

#include "wrk_engine_impl.h"

#define WRK_EMBED_ITEMS_MAX 4096u
#define WRK_EMBED_PARTS_MAX 64u
#define WRK_EMBED_TOKENS_MAX (16u << 20) /* of one task */
#define WRK_NO_ITEM UINT32_MAX
/* Token vectors of one task's answer, and of all tasks that have begun: a task begins when what it
 * will hold fits beside the others', or when there are none. */
#define WRK_TOKEN_VECTORS_BYTES (64ull << 20)
#define WRK_TOKEN_HELD_BYTES (128ull << 20)

/* Prepared media wait in memory: with so many bytes of them no further item is begun, and one
 * item's own have at most so many. The engine never holds more than the sum of both. */
#define WRK_MEDIA_READY_BYTES (32ull << 20)
#define WRK_MEDIA_ITEM_BYTES (256ull << 20)

/* Items with files of one pass, and their rows: a cohort (http-api 2.2). Sequences are packed, so
 * none of those rows is padding. */
#define WRK_MEDIA_COHORT 4u
#define WRK_MEDIA_COHORT_ROWS 2048u

/* Lexical weights: token ids ascending, each once, weights > 0. */
struct wrk_sparse {
    uint32_t n;
    uint32_t *ids;
    float *weights;
};

/* Vectors of length 1 of a text's tokens, [n, token_dim]. */
struct wrk_rows {
    uint32_t n;
    float *v;
};

struct wrk_item {
    uint64_t from; /* in ids */
    uint32_t n;
    uint32_t idx; /* in the request */
    uint32_t at;  /* in order[] or media_order[] */
    uint32_t n_media_rows;
    bool truncated, done, goes_first;
    bool alone; /* a pass with it failed: it is run by itself, to see whether it was this one */
    /* with those outputs, once it is encoded */
    struct wrk_sparse sparse;
    struct wrk_rows rows;
    float late; /* of a document: late interaction with its query */
    /* of an item with files, from the time it is ready until it is encoded */
    struct mdl_media **media;
    uint32_t *media_row; /* from the item's first row */
    uint32_t n_media;
    bool ready;
    const char *run_stage; /* of a failing pass: IPC_STAGE_ */
};

/* What a task asks of the encoder, whatever its message. */
struct wrk_embed_ask {
    uint32_t n, dim;  /* items; values kept of each vector */
    unsigned outputs; /* IPC_OUT_ */
    uint32_t first;   /* the item encoded before all others, whose failure is the task's, or
                         WRK_NO_ITEM */
    bool per_item, truncate;
    const char *task_type; /* copied */
};

struct wrk_embed {
    uint32_t n, dim, first;
    unsigned outputs;
    uint64_t token_bytes; /* of the token vectors that it will hold */
    bool begun;           /* those are counted in the engine's token_bytes */
    uint32_t n_read;      /* items looked at: texts are tokens then */
    uint32_t n_done;      /* vectors and failures */
    bool per_item, truncate;
    struct mdl_ids ids;
    struct wrk_item *item;                          /* by index */
    struct wrk_item **order;                        /* texts to encode, shortest first */
    uint32_t n_order, next;                         /* next: first not yet encoded */
    struct wrk_item **media_order;                  /* items with files, as they came */
    uint32_t n_media_order, media_read, media_next; /* media_read: first not yet made ready */
    char *task_type;
    float *out;         /* [n, dim]; NULL when no dense vectors were asked for */
    struct rc_err *bad; /* item errors: item = index */
    uint32_t n_bad, cap_bad;
};

struct wrk_rerank {
    uint32_t n_docs;
    bool pairs;       /* a cross-encoder's: an item is a pair. Else the items are the documents and,
                         behind them, the query */
    double weight[3]; /* of dense, sparse, late; 0 = not computed */
    const char *query_type; /* task types, constants */
    const char *doc_type;
};

/* --- wrk_embed.c */
/* Makes t->embed. */
enum rc wrk_embed_open(struct wrk_task *t, const struct wrk_embed_ask *q, struct rc_err *why);
/* model_identity of a request against the model's; "" = any. */
enum rc wrk_identity_check(const struct wrk_engine *e, const char *asked, struct rc_err *why);
/* A failure of one item: the task's, unless it asked for item errors. stage: IPC_STAGE_. */
enum rc wrk_embed_item_failed(struct wrk_embed *m, uint32_t idx, const char *stage,
                              struct rc_err *why);
/* Checks the tokens that ids has from `from` on, and makes them the item's. */
enum rc wrk_embed_item_take(struct wrk_engine *e, struct wrk_embed *m, uint32_t idx, size_t from,
                            struct rc_err *why);

/* --- wrk_embed_media.c */
/* RC_INVALID parts that no request may have; *has_media: some of them are files. */
enum rc wrk_embed_parts_check(const struct wrk_engine *e, const Ipc__EmbedInput *in,
                              bool *has_media, struct rc_err *why);
/* Tokens of an ordered input. media NULL: it has no files; else one of each file, in order. */
enum rc wrk_embed_parts_tokens(struct wrk_engine *e, struct wrk_embed *m, const Ipc__EmbedInput *in,
                               struct mdl_media *const *media, uint32_t *rows, struct rc_err *why);
/* Frees what an item made ready. */
void wrk_embed_media_drop(struct wrk_engine *e, struct wrk_item *it);

/* --- wrk_embed_tokens.c */
/* Outputs the model lacks are refused by name. */
enum rc wrk_outputs_check(const struct wrk_engine *e, unsigned outputs, const char *field,
                          struct rc_err *why);
/* After the item's tokens are known: counts the vectors that the task will hold of it.
 * RC_LIMIT more than one answer may have. */
enum rc wrk_tokens_count(const struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                         struct rc_err *why);
/* May the task have its first item encoded now? What it will hold is counted from then on. */
bool wrk_tokens_begin(struct wrk_engine *e, struct wrk_embed *m);
/* Of an item in the pass that has just run, whose first row was row0. stop is asked between rows
 * of a late interaction. RC_CANCELLED it said yes; RC_INTERNAL numbers that are not finite. */
enum rc wrk_tokens_take(struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                        uint32_t row0, bool (*stop)(void *user), struct rc_err *why);
void wrk_item_drop_tokens(struct wrk_item *it);

/* --- wrk_embed_send.c */
enum rc wrk_embed_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err);
/* What an answer says of each of the first n items, and the failures of items. */
struct wrk_item_lists {
    uint32_t *n_tokens, *n_media;
    protobuf_c_boolean *cut;
    size_t n_errors;
    Ipc__ItemError *errs, **errors;
    Ipc__Error *why;
};
enum rc wrk_item_lists_init(struct wrk_item_lists *l, const struct wrk_embed *m, uint32_t n,
                            struct rc_err *err);
void wrk_item_lists_deinit(struct wrk_item_lists *l);

/* --- wrk_rerank.c: a Rerank task is an embedding task of pairs, or of documents and a query */
enum rc wrk_rerank_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why);
/* Bytes of the texts that item idx reads. */
size_t wrk_rerank_item_bytes(const struct wrk_task *t, uint32_t idx);
/* Tokens of item idx, appended to its task's. */
enum rc wrk_rerank_tokens(struct wrk_engine *e, struct wrk_task *t, uint32_t idx, bool *truncated,
                          struct rc_err *why);
/* Late interaction: (1/nq) sum over q's rows of the largest dot product with a row of d
 * (encoders.md 4.3). RC_CANCELLED: stop said so. */
enum rc wrk_late(const struct wrk_rows *q, const struct wrk_rows *d, uint32_t dim,
                 bool (*stop)(void *user), void *user, float *out, struct rc_err *why);
enum rc wrk_rerank_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err);

#endif
