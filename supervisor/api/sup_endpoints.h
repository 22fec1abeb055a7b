/* sup_endpoints.h - what each endpoint's file gives to the route table. */
#ifndef INFERD_SUP_ENDPOINTS_H
#define INFERD_SUP_ENDPOINTS_H

#include "sup_call.h"
#include "sup_http.h"

extern const struct sup_call_ops sup_chat_ops, sup_responses_ops, sup_completions_ops,
    sup_embed_ops, sup_decisions_ops, sup_tokenize_ops, sup_detokenize_ops, sup_echo_ops,
    sup_load_ops, sup_unload_ops, sup_pull_ops, sup_rerank_ops, sup_rerank_multimodal_ops, sup_rerank_results_ops,
    sup_rerank_tei_ops, sup_extract_ops, sup_chunk_ops, sup_recognize_ops, sup_classify_ops;

/* Handlers that need no model. user: struct sup_front. */
void sup_probe_health(struct sup_req *req, void *user);
void sup_probe_live(struct sup_req *req, void *user);
void sup_probe_ready(struct sup_req *req, void *user);
void sup_probe_startup(struct sup_req *req, void *user);
void sup_probe_metrics(struct sup_req *req, void *user);
void sup_security(struct sup_req *req, void *user);
void sup_models_list(struct sup_req *req, void *user);
void sup_models_full(struct sup_req *req, void *user);
void sup_models_get(struct sup_req *req, void *user);

/* {"native":true,...}: the backends of this build. */
void sup_backends_json(struct sup_json *o);

#endif
