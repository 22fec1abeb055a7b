/* wrk_embed_impl.h - private to the Embed tasks: their items, from request to vector.
 *
 * wrk_embed.c reads texts, wrk_embed_media.c makes items with files ready, wrk_embed_pass.c runs
 * micro-batches, wrk_embed_send.c writes the answer.
 */
#ifndef INFERD_WRK_EMBED_IMPL_H
#define INFERD_WRK_EMBED_IMPL_H

#include "wrk_engine_impl.h"

#define WRK_EMBED_ITEMS_MAX 4096u
#define WRK_EMBED_PARTS_MAX 64u
#define WRK_EMBED_TOKENS_MAX (16u << 20) /* of one task */
/* Prepared media wait in memory: with so many bytes of them no further item is begun, and one
 * item's own have at most so many. The engine never holds more than the sum of both. */
#define WRK_MEDIA_READY_BYTES (32ull << 20)
#define WRK_MEDIA_ITEM_BYTES (256ull << 20)

/* Items with files of one pass, and their rows: a cohort (http-api 2.2). Sequences are packed, so
 * none of those rows is padding. */
#define WRK_MEDIA_COHORT 4u
#define WRK_MEDIA_COHORT_ROWS 2048u

/* Stages of an item, as ItemError.stage says them. */
#define WRK_STAGE_TEXT ""
#define WRK_STAGE_IMAGE "image_decode"
#define WRK_STAGE_SOUND "audio_decode"
#define WRK_STAGE_IMAGE_RUN "image_inference"
#define WRK_STAGE_SOUND_RUN "audio_inference"

struct wrk_item {
    uint64_t from; /* in ids */
    uint32_t n;
    uint32_t idx; /* in the request */
    uint32_t at;  /* in order[] or media_order[] */
    uint32_t n_media_rows;
    bool truncated, done;
    bool alone; /* a pass with it failed: it is run by itself, to see whether it was this one */
    /* of an item with files, from the time it is ready until it is encoded */
    struct mdl_media **media;
    uint32_t *media_row; /* from the item's first row */
    uint32_t n_media;
    bool ready;
    const char *run_stage; /* "" for a text */
};

struct wrk_bad {
    struct rc_err err; /* err.item = index */
    const char *stage;
};

struct wrk_embed {
    uint32_t n, dim;
    uint32_t n_read; /* items looked at: texts are tokens then */
    uint32_t n_done; /* vectors and failures */
    bool per_item, truncate;
    bool again; /* its last pass was ended by another task's end: it goes first */
    struct mdl_ids ids;
    struct wrk_item *item;                          /* by index */
    struct wrk_item **order;                        /* texts to encode, shortest first */
    uint32_t n_order, next;                         /* next: first not yet encoded */
    struct wrk_item **media_order;                  /* items with files, as they came */
    uint32_t n_media_order, media_read, media_next; /* media_read: first not yet made ready */
    char *task_type;
    float *out;          /* [n, dim] */
    struct wrk_bad *bad; /* item errors */
    uint32_t n_bad, cap_bad;
};

struct wrk_embed_pick {
    struct wrk_task *task;
    struct wrk_item *item;
};

/* --- wrk_embed.c */
/* A failure of one item: the task's, unless it asked for item errors. stage: a constant. */
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

/* --- wrk_embed_send.c */
enum rc wrk_embed_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err);

#endif
