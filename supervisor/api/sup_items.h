/* sup_items.h - requests of many inputs: errors of single ones, files pinned, numbers as bytes.
 *
 * What embed, rerank and extract have in common. With error_policy per_item a bad input is
 * an entry of errors[] and its neighbours are answered; row k of a worker's answer is then
 * input at[k] of the request. Tests: tests/supervisor/test_sup_api_embed.c,
 * test_sup_api_rerank.c
 */
#ifndef INFERD_SUP_ITEMS_H
#define INFERD_SUP_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inferd.pb-c.h"
#include "ipc.h"
#include "sup_json.h"
#include "sup_status.h"

#define SUP_NUMERIC_TYPE "application/vnd.antfly.numeric.v1"
#define SUP_NUMERIC_MAX (4u << 20) /* bytes of such an answer; larger ones are JSON */
#define SUP_NUMERIC_HEAD 24u

struct sup_item_errors {
    struct sup_json out; /* entries of errors[], without brackets */
    uint32_t n;
};

/* One entry. */
void sup_item_error(struct sup_item_errors *e, uint32_t idx, const struct sup_fail *f,
                    const char *stage);
/* An input of the request that cannot be worked on, stage: IPC_STAGE_. true: it is an entry now;
 * false: it fails the request, and *f says which input and where. */
bool sup_item_bad(struct sup_item_errors *e, bool per_item, uint32_t idx, const char *stage,
                  struct sup_fail *f);
/* Those of a worker: of its n_rows rows, each at most once; failed [n_rows] is set. false: it
 * named others, or any where per_item was not asked. */
bool sup_item_rows(Ipc__ItemError *const *list, size_t n, uint32_t n_rows, bool per_item,
                   bool *failed);
void sup_item_notes(struct sup_item_errors *e, Ipc__ItemError *const *list, size_t n,
                    const uint32_t *at);
/* What stands behind the entries of an answer of many inputs. */
struct sup_items_end {
    const char *model, *identity; /* identity "" = not told */
    uint64_t n_tokens;
    bool completion;         /* say that none were written */
    const uint64_t *n_media; /* rows of pictures and sounds; NULL: not told */
    const char *meta;        /* of "meta", JSON; NULL = none */
    /* per_item: errors and summary; NULL = fail_fast */
    const struct sup_item_errors *errors;
    uint32_t n_inputs;
};
/* ],"model":...,"usage":{...} and all that is to be told, and the answer's closing brace. */
void sup_items_end(struct sup_json *o, const struct sup_items_end *e);

/* A pinned request is checked before it is worked on; this is whether the worker kept to it.
 * asked "": any. */
bool sup_pin_kept(const char *asked, const char *have, struct sup_fail *f);

/* Does the header Accept (or NULL) name the numeric frame, and not with q=0? */
bool sup_numeric_wanted(const char *accept);
/* "AFN1", u32 kind (1 = embeddings, 2 = scores), u64 rows, u64 columns; then come the numbers. */
void sup_numeric_head(struct sup_json *o, uint8_t kind, uint64_t rows, uint64_t columns);

#endif
