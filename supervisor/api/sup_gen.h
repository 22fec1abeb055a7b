/* sup_gen.h - text generation: what chat and completions share.
 *
 * sup_gen_req.c turns the common fields (sampling, stop, n, stream) into an
 * Ipc__Generate, sup_format.c the shape of the answer; sup_gen.c turns Delta and Done frames into
 * one JSON answer or into SSE chunks; sup_logprobs.c writes the two forms of log probabilities.
 * Tests: tests/supervisor/test_sup_api_gen.c
 */
#ifndef INFERD_SUP_GEN_H
#define INFERD_SUP_GEN_H

#include "sup_call.h"
#include "sup_endpoints.h"

/* Rows both endpoints have, first in each one's table.
 * X(id, name, type, required, min, max, default, words) */
#define SUP_GEN_FIELDS(X)                                                              \
    X(MAX_TOKENS, "max_tokens", INT, false, 1, 2147483647, 0, NULL)                    \
    X(TEMPERATURE, "temperature", NUM, false, 0, 2, 0, NULL)                           \
    X(TOP_P, "top_p", NUM, false, 0, 1, 0, NULL)                                       \
    X(TOP_K, "top_k", INT, false, 0, 1000000, 0, NULL)                                 \
    X(MIN_P, "min_p", NUM, false, 0, 1, 0, NULL)                                       \
    X(TYPICAL_P, "typical_p", NUM, false, 0, 1, 0, NULL)                               \
    X(REPETITION_PENALTY, "repetition_penalty", NUM, false, 0.01, 100, 1, NULL)        \
    X(FREQUENCY_PENALTY, "frequency_penalty", NUM, false, -2, 2, 0, NULL)              \
    X(PRESENCE_PENALTY, "presence_penalty", NUM, false, -2, 2, 0, NULL)                \
    X(SEED, "seed", INT, false, -9.3e18, 9.3e18, 0, NULL)                              \
    X(STOP, "stop", ANY, false, 0, 0, 0, "a string or an array of at most 16 strings") \
    X(CHOICES, "n", INT, false, 1, 128, 1, NULL)                                       \
    X(LOGIT_BIAS, "logit_bias", OBJECT, false, 0, 0, 0, NULL)                          \
    X(STREAM, "stream", BOOL, false, 0, 1, 0, NULL)                                    \
    X(STREAM_OPTIONS, "stream_options", OBJECT, false, 0, 0, 0, NULL)                  \
    X(IGNORE_EOS, "ignore_eos", BOOL, false, 0, 1, 0, NULL)                            \
    X(RETURN_TOKEN_IDS, "return_token_ids", BOOL, false, 0, 1, 0, NULL)                \
    X(PROMPT_CACHE, "prompt_cache", BOOL, false, 0, 1, 1, NULL)                        \
    X(PROMPT_CACHE_KEY, "prompt_cache_key", STR, false, 0, 1024, 0, NULL)              \
    X(BACKEND, "backend", ENUM, false, 0, 0, 0, "auto|native|cpu")                     \
    X(RESPONSE_FORMAT, "response_format", OBJECT, false, 0, 0, 0, NULL)                \
    X(GRAMMAR, "grammar", STR, false, 1, SUP_FORMAT_BYTES, 0, NULL)                    \
    X(REGEX, "regex", STR, false, 1, SUP_FORMAT_BYTES, 0, NULL)                        \
    X(DRAFT_MODEL, "draft_model", STR, false, 1, 1024, 0, NULL)                        \
    X(SPECULATIVE_K, "speculative_k", INT, false, 1, 8, 0, NULL)                       \
    X(SPECULATION, "speculation_policy", ENUM, false, 0, 0, 0, "auto|off|lookup|mtp")  \
    X(CACHE_COMPACTION, "cache_compaction_ratio", REFUSE, false, 0, 0, 0, NULL)        \
    X(MODEL_IDENTITY, "model_identity", REFUSE, false, 0, 0, 0,                        \
      "only embeddings and decisions check it")

enum {
#define X(id, name, type, req, min, max, def, words) SUP_G_##id,
    SUP_GEN_FIELDS(X)
#undef X
        SUP_G_N
};

#define SUP_FORMAT_BYTES (1 << 20) /* of a schema, grammar or expression */
#define SUP_STOP_MAX 16
#define SUP_STOP_BYTES 4096
#define SUP_BIAS_MAX 1024
#define SUP_CHOICES_MAX 128

/* Log probabilities of one choice, as lists without their brackets. */
struct sup_probs {
    struct sup_json tokens, values, top, offsets; /* chat uses tokens only */
    struct sup_json top_ids;                      /* completions with return_token_ids */
};

struct sup_choice {
    struct sup_json text, ids;
    struct sup_json reasoning, calls; /* calls: rows of "tool_calls" */
    uint32_t n_calls;
    bool in_call;   /* the last one's arguments go on */
    size_t call_at; /* where its row begins in calls */
    struct sup_probs probs;
    uint32_t finish; /* as in Delta */
    bool role_sent;
};

struct sup_gen {
    struct sup_call call;
    /* set by the endpoint before it submits */
    bool chat, stream, include_usage, logprobs, return_ids;
    uint32_t n, n_prompts, top_logprobs;
    /* private to sup_gen.c */
    struct sup_choice *choices; /* n_prompts * n; choice = prompt * n + index */
    uint64_t answer;            /* in the ids of the answer and of its calls */
    struct sup_json head;       /* every chunk up to the choice's index */
    struct sup_json buf;
    struct sup_choice news;      /* the lists of the chunk being written */
    struct sup_json *prompt_ids; /* per prompt */
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t right_drafts, wrong_drafts; /* tokens guessed ahead */
    uint64_t queue_us, prefill_us, decode_us;
};

/* A validated Generate and its sampling, in the call's memory, without a prompt;
 * fills g's common members. chat decides how max_tokens and log probabilities are
 * spelled. v: values of a table that begins with SUP_GEN_FIELDS. */
Ipc__Generate *sup_gen_request(struct sup_gen *g, const struct sup_val *v, int64_t max_tokens,
                               struct sup_fail *f);
/* The grammar the answer must obey (sup_format.c), into q. */
bool sup_format_read(struct sup_gen *g, const struct sup_val *v, Ipc__Generate *q,
                     struct sup_fail *f);
/* Ready to receive frames: choices, id, envelope. After n and n_prompts are known. */
bool sup_gen_open(struct sup_gen *g, struct sup_fail *f);

/* messages: chat's; borrowed until the frame is submitted. */
bool sup_chat_messages(struct sup_gen *g, json_t *list, Ipc__Generate *q, struct sup_fail *f);
/* The line of the log for an answer that went well. */
void sup_gen_log(const struct sup_gen *g);
/* The same for its span. */
void sup_gen_facts(struct sup_gen *g);
/* "call_..." of a choice's call. */
void sup_gen_call_id(const struct sup_gen *g, uint32_t choice, uint32_t call, char out[32]);

/* struct sup_call_ops members for both endpoints. */
void sup_gen_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr);
void sup_gen_finish(struct sup_call *c);
void sup_gen_deinit(struct sup_call *c);

/* Appends what one Delta brought. ids: name the tokens' ids as well, since two tokens
 * may be spelled alike. */
void sup_probs_add(struct sup_probs *p, bool chat, bool ids, Ipc__TokenProb *const *probs,
                   size_t n);
/* The value of "logprobs"; null when not asked for. top: how many were asked. */
void sup_probs_write(const struct sup_probs *p, bool chat, bool ids, bool asked, uint32_t top,
                     struct sup_json *o);
void sup_probs_reset(struct sup_probs *p);
void sup_probs_deinit(struct sup_probs *p);

#endif
