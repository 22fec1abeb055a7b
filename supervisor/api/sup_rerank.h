/* sup_rerank.h - between the files of reranking.
 *
 * sup_rerank.c has the fields of four APIs and makes one message of them, sup_rerank_out.c
 * writes a worker's scores as each of them wants them. Page: docs/rerank.md.
 * Tests: tests/supervisor/test_sup_api_rerank.c
 */
#ifndef INFERD_SUP_RERANK_H
#define INFERD_SUP_RERANK_H

#include "sup_call.h"
#include "sup_items.h"

enum sup_rerank_form {
    SUP_RERANK_OURS,    /* /ai/v1/rerank: in the order of the request */
    SUP_RERANK_RESULTS, /* /v1/rerank, /v2/rerank: results, best first (Cohere, Jina) */
    SUP_RERANK_TEI,     /* /rerank: a bare array, best first */
};

struct sup_rerank {
    struct sup_call call;
    enum sup_rerank_form form;
    bool per_item, raw, logits, with_texts, numeric;
    uint32_t top_n; /* 0 = all */
    char identity[64 + 1];
    uint32_t n_docs, n_sent;
    uint32_t *at; /* [n_sent] index in the request */
    json_t *docs; /* where texts are given back, or items have ids: the request's own; else NULL */
    const char *doc_key; /* member of a document that is its text; NULL = the document itself */
    struct sup_item_errors errors;
    struct sup_json out;
};

/* The answer into r->out. w NULL: no document was sent. false: *f. */
bool sup_rerank_answer(struct sup_rerank *r, const Ipc__Scores *w, struct sup_fail *f);

#endif
