/* sup_api.c - the route table: which file answers which path.
 *
 * Must stay the same list as docs/openapi.yaml
 * (tests/supervisor/test_sup_api_routes.c compares them both ways).
 */
#include "sup_api.h"

#include <jansson.h>

#include "sup_endpoints.h"
#include "sup_front.h"
#include "sup_grant.h"

void sup_api_init(void)
{
    /* jansson would open /dev/urandom at its first object, behind the sandbox */
    json_object_seed(0);
}

#define CALL(name, ops)                               \
    static void name(struct sup_req *req, void *user) \
    {                                                 \
        sup_call_run(req, user, &(ops));              \
    }

CALL(chat, sup_chat_ops)
CALL(responses, sup_responses_ops)
CALL(completions, sup_completions_ops)
CALL(embed, sup_embed_ops)
CALL(decisions, sup_decisions_ops)
CALL(rerank, sup_rerank_ops)
CALL(rerank_multimodal, sup_rerank_multimodal_ops)
CALL(rerank_results, sup_rerank_results_ops)
CALL(rerank_tei, sup_rerank_tei_ops)
CALL(extract, sup_extract_ops)
CALL(recognize, sup_recognize_ops)
CALL(classify, sup_classify_ops)
CALL(chunk, sup_chunk_ops)
CALL(tokenize, sup_tokenize_ops)
CALL(detokenize, sup_detokenize_ops)
CALL(echo, sup_echo_ops)
CALL(load, sup_load_ops)
CALL(unload, sup_unload_ops)
CALL(pull, sup_pull_ops)

const struct sup_route sup_api_routes[] = {
    {"GET", "/healthz", sup_probe_health, "healthz", .open = true},
    {"GET", "/livez", sup_probe_live, "livez", .open = true},
    {"GET", "/readyz", sup_probe_ready, "readyz", .open = true},
    {"GET", "/startupz", sup_probe_startup, "startupz", .open = true},
    {"GET", "/metrics", sup_probe_metrics, "metrics", .scope = SUP_SCOPE_WATCH},
    {"GET", "/ai/v1/metrics", sup_probe_metrics, "metrics", .scope = SUP_SCOPE_WATCH},

    {"GET", "/v1/models", sup_models_list, "models"},
    {"GET", "/v1/models/*", sup_models_get, "models"},
    {"POST", "/v1/chat/completions", chat, "chat", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/v1/responses", responses, "responses", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/v1/completions", completions, "completions", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/v1/embeddings", embed, "embed", .files = true, .scope = SUP_SCOPE_EMBED},
    {"POST", "/v1/rerank", rerank_results, "rerank", .scope = SUP_SCOPE_RERANK},
    {"POST", "/v2/rerank", rerank_results, "rerank", .scope = SUP_SCOPE_RERANK},
    {"POST", "/rerank", rerank_tei, "rerank", .scope = SUP_SCOPE_RERANK},

    {"GET", "/ai/v1/security", sup_security, "security", .scope = SUP_SCOPE_WATCH},
    {"GET", "/ai/v1/models", sup_models_full, "models"},
    {"GET", "/ai/v1/models/*", sup_models_get, "models"},
    {"POST", "/ai/v1/models/load", load, "load", .admin = true},
    {"POST", "/ai/v1/models/unload", unload, "unload", .admin = true},
    {"POST", "/ai/v1/models/pull", pull, "pull", .admin = true},
    {"POST", "/ai/v1/chat/completions", chat, "chat", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/ai/v1/generate", chat, "chat", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/ai/v1/responses", responses, "responses", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/ai/v1/completions", completions, "completions", .scope = SUP_SCOPE_GENERATE},
    {"POST", "/ai/v1/embed", embed, "embed", .files = true, .scope = SUP_SCOPE_EMBED},
    {"POST", "/ai/v1/embeddings", embed, "embed", .files = true, .scope = SUP_SCOPE_EMBED},
    {"POST", "/ai/v1/decisions", decisions, "decisions", .scope = SUP_SCOPE_DECIDE},
    {"POST", "/ai/v1/rerank", rerank, "rerank", .scope = SUP_SCOPE_RERANK},
    {"POST", "/ai/v1/rerank_multimodal", rerank_multimodal, "rerank", .scope = SUP_SCOPE_RERANK},
    {"POST", "/ai/v1/extract", extract, "extract", .scope = SUP_SCOPE_EXTRACT},
    {"POST", "/ai/v1/recognize", recognize, "extract", .scope = SUP_SCOPE_EXTRACT},
    {"POST", "/ai/v1/classify", classify, "extract", .scope = SUP_SCOPE_EXTRACT},
    {"POST", "/ai/v1/chunk", chunk, "chunk", .scope = SUP_SCOPE_TOKENS},
    {"POST", "/ai/v1/tokenize", tokenize, "tokenize", .scope = SUP_SCOPE_TOKENS},
    {"POST", "/ai/v1/detokenize", detokenize, "detokenize", .scope = SUP_SCOPE_TOKENS},
    {"POST", "/ai/v1/echo", echo, "echo"},
    {0},
};
