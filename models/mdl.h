/* mdl.h - one loaded model, whatever its family.
 *
 * A family is one const table (mdl_impl.h) found by the architecture name in
 * config.json or GGUF metadata. This room opens the files below a root
 * descriptor, checks every tensor before memory is committed (two-phase: a
 * half-built model is never visible), builds weights on a backend and runs
 * passes. It knows nothing of requests, sockets or sampling; the worker owns
 * page tables and decides what to batch. Neither logs nor exits.
 * Thread rule: one thread per model. Tests: tests/models/.
 */
#ifndef INFERD_MDL_H
#define INFERD_MDL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "be.h"
#include "mdl_tok.h"
#include "rc.h"

struct mdl;

struct mdl_opts {
    uint32_t ctx_tokens;   /* wanted context: RC_LIMIT when kv_bytes cannot hold it.
                              0 = the model's own, lowered to fit */
    uint32_t batch_tokens; /* most rows of one mdl_decode / mdl_encode pass */
    uint32_t encode_rows;  /* encoders: rows of a pass where half of workspace_bytes holds them (or
                              none is told and the backend has them), else fewer, down to
                              batch_tokens. 0 = batch_tokens */
    uint32_t max_seqs;     /* most sequences of one pass */
    uint32_t max_out;      /* most logits rows of one pass, at least max_seqs; 0 = max_seqs. A
                              verification of k drafts wants k + 1 for each sequence */
    uint64_t kv_bytes;     /* budget of the KV cache; pages are counted from it */
    enum be_dtype
        kv_dtype; /* BE_F16, BE_F32, or BE_Q8_0 where the backend has it; not read when kv_auto */
    bool kv_auto; /* f16 when any matrix of the checkpoint is quantized, else f32:
                     a float checkpoint keeps the reference's precision */
    bool drafted; /* a drafter will read this model's cache (mdl_open_drafter): windows keep the
                     two positions more that it looks at */
    uint64_t weight_bytes;    /* budget of weights, 0 = none told */
    uint64_t workspace_bytes; /* budget of activations, 0 = none told (the backend's
                                 scratch comes on top: be_opts.workspace_bytes) */
    void (*progress)(void *user, const char *stage, uint64_t done, uint64_t total); /* or NULL */
    void *progress_user;
};

struct mdl_info {
    char family[32], arch[64], quant[16];
    bool can_generate, can_embed, has_chat_template;
    bool can_call_tools, can_think; /* in chat: mdl_chat_opts */
    bool can_draft;                 /* a drafter: only opens beside its target */
    uint32_t ctx_tokens;            /* in force */
    uint32_t train_ctx_tokens;      /* claimed by the file */
    uint32_t embed_dim, vocab_size, n_layers, d_model;
    uint32_t max_input_tokens; /* encoders: specials included; else ctx_tokens */
    /* encoders: max_input_tokens where the workspace is large enough; what a token takes of the
     * workspace, and what is allowed (0 = no bound) */
    uint32_t full_input_tokens;
    uint64_t token_work_bytes, work_bytes_allowed;
    uint64_t n_params, weight_bytes, kv_bytes, workspace_bytes;
    uint64_t kv_ctx_bytes; /* of kv_bytes, what one sequence of ctx_tokens holds at its peak */
    char default_prompt[64];
    bool can_embed_image, can_embed_sound, can_embed_groups;
    bool can_rerank;     /* a cross-encoder: mdl_encode gives one logit a pair (mdl_pair_tokens) */
    bool can_extract;    /* GLiNER2: mdl_extract */
    uint32_t span_words; /* of such: most words of a span */
    bool can_sparse;     /* mdl_encode_tokens: weights */
    uint32_t token_dim;  /* mdl_encode_tokens: width of vectors, 0 = gives none */
    bool never_cuts;     /* an input that is too long is refused even where cutting was allowed */
    uint32_t sound_rate; /* samples a second that its ears want, 0 = hears nothing */
    uint32_t sound_ms;   /* longest sound of one part */
    uint32_t image_pixels; /* most pixels of a picture as given; 0 = sees nothing */
    char identity[65];     /* of an embedder: 64 hex digits of SHA-256 over the files that make its
                              vectors and the recipe; "" while probing and of other models */
    char note[128];        /* what of the files is left aside, for people; "" = nothing */
};

/* Everything about a model that its headers tell, without loading weights and
 * without a backend. Fields that depend on budgets are 0. Errors as mdl_open. */
enum rc mdl_probe(struct mdl_info *out, int root_fd, struct rc_err *err);

/* Errors: RC_UNSUPPORTED (architecture, tensor type - named), RC_WEIGHT_ABSENT
 * (err->what = tensor), RC_FORMAT, RC_LIMIT (budgets; says bytes needed and
 * allowed), RC_NOMEM, RC_IO. root_fd is borrowed. */
enum rc mdl_open(struct mdl **out, int root_fd, struct be_ctx *be, const struct mdl_opts *o,
                 struct rc_err *err);
void mdl_close(struct mdl **m);
const struct mdl_info *mdl_info_get(const struct mdl *m);
const struct mdl_tok *mdl_tok_get(const struct mdl *m);
/* What tokenizing asks now and then (mdl_tok.h); borrowed. mdl_stop gives it to
 * those who call the tokenizer themselves; NULL when none was set. */
void mdl_set_stop(struct mdl *m, const struct mdl_tok_stop *stop);
const struct mdl_tok_stop *mdl_stop(const struct mdl *m);
/* Mapped files still whole, and not written to? Call before a batch. RC_WEIGHT_IO otherwise. */
enum rc mdl_guard(const struct mdl *m, struct rc_err *err);

/* ---------------------------------------------------------------- generation */

struct mdl_kv_geometry {
    uint32_t page_tokens, n_classes;
    uint32_t chunk; /* most new rows of one sequence in one pass, as pages were counted */
    struct {
        uint32_t n_pages; /* pages that exist */
        uint32_t window;  /* 0 = all positions are kept */
        uint64_t page_bytes;
    } cls[BE_KV_CLASSES];
};
const struct mdl_kv_geometry *mdl_kv(const struct mdl *m);
/* Bytes of the pages that one sequence of n tokens holds at its peak, exactly: whole pages,
 * a windowed class never more than its window and one chunk. UINT64_MAX on overflow.
 * Source: engine.md 3.4. */
uint64_t mdl_kv_need_bytes(const struct mdl_kv_geometry *g, uint64_t n);

/* For measurements. Bytes of the cache that the token at pos reads: every layer's keys and values
 * that it may see, its own included. 0 for a model that does not generate. */
uint64_t mdl_kv_read_bytes(const struct mdl *m, uint32_t pos);
/* For measurements: made-up keys and values for n_rows rows of n_seqs sequences (pages
 * assigned, as for mdl_decode), so that a cache of any depth costs no prefill. Allocates. */
enum rc mdl_kv_fill(struct mdl *m, const struct be_seq *seqs, uint32_t n_seqs, uint32_t n_rows,
                    struct rc_err *err);

/* A vector in a token's place (media), unscaled, as the layers see it; at most one a row. */
struct mdl_soft {
    uint32_t row;   /* of the pass; an id must stand there all the same, any of the vocabulary */
    const float *x; /* [d_model], finite */
};

/* One pass over n_rows new tokens of n_seqs sequences (struct be_seq as in be.h;
 * pages must already be assigned). out_rows[n_out] are the rows whose logits are
 * wanted, n_out <= max_out (prompt logprobs: several passes of max_out rows, the
 * numbers are the same). An id outside the vocabulary fails the whole pass with
 * RC_INVALID: callers check ids < vocab_size before they batch.
 * *logits: [n_out, vocab_size] f32, borrowed until the next pass. n_out may be 0.
 * logits NULL: they stay where they were computed, for mdl_sample and mdl_logits.
 * Allocates nothing. */
struct mdl_batch {
    uint32_t n_rows, n_seqs, n_out;
    const int32_t *ids;
    const int32_t *pos;
    const struct be_seq *seqs;
    const int32_t *out_rows;
    uint32_t n_soft; /* RC_UNSUPPORTED where the family or the model takes none */
    const struct mdl_soft *soft;
};
enum rc mdl_decode(struct mdl *m, const struct mdl_batch *b, const float **logits,
                   struct rc_err *err);
/* After a pass with logits NULL: draws from each of its n_out rows as be_sample does
 * (out_ids[i] -1: that row needs the host), and gives one row to the host, borrowed until
 * the next call of these three. Errors: those of the backend, RC_UNSUPPORTED when
 * mdl_can_sample is false, RC_INVALID a row the pass did not have. */
bool mdl_can_sample(const struct mdl *m);
enum rc mdl_sample(struct mdl *m, const struct be_sample_row *rows, uint32_t n, int32_t *out_ids,
                   struct rc_err *err);
enum rc mdl_logits(struct mdl *m, uint32_t row, const float **out, struct rc_err *err);

/* The hidden rows (after the final norm) behind the last pass's logits: what a drafter
 * starts from. Copies row `row` of its n_out to out [d_model]. RC_UNSUPPORTED where the
 * family keeps none. */
enum rc mdl_hidden(struct mdl *m, uint32_t row, float *out, struct rc_err *err);

/* ------------------------------------------------------------------ drafting
 * A drafter is a small model that guesses the target's next tokens from its hidden state,
 * its token table and its cache; it has no cache of its own and keeps nothing between
 * calls. The target verifies: a pass over the token and the k drafts, all k + 1 rows as
 * out_rows. Rows that are not believed are simply written again by the next pass. */

#define MDL_DRAFT_MAX 16

/* Opens the drafter below root_fd beside its target: on the target's backend context,
 * reading the target's cache; closed before the target. The target was opened with
 * opts.drafted. o: max_seqs (of one mdl_draft), weight_bytes, workspace_bytes, progress.
 * Errors: as mdl_open; RC_UNSUPPORTED no drafter, or not for this family; RC_FORMAT its
 * heads, width or vocabulary do not fit the target (says which, with both numbers). */
enum rc mdl_open_drafter(struct mdl **out, int root_fd, struct mdl *target,
                         const struct mdl_opts *o, struct rc_err *err);

struct mdl_draft_seq {
    int32_t token;     /* chosen, and not yet fed to the target */
    uint32_t n_cached; /* positions below it are in the target's cache: its own position, >= 1 */
    uint32_t out_row;  /* the row of the target's last pass, counted in its out_rows, whose
                          logits gave the token (after a verification: the last one believed) */
    const int32_t *pages[BE_KV_CLASSES]; /* as in that pass */
};
/* k greedy guesses for each of n sequences, out_ids [n, k]; between the target's pass and
 * its next one. What is guessed for a sequence depends on that sequence alone.
 * Errors: RC_INVALID for k outside 1..MDL_DRAFT_MAX, more than max_seqs sequences, a row
 * the last pass did not have. Allocates nothing. */
enum rc mdl_draft(struct mdl *drafter, const struct mdl_draft_seq *seqs, uint32_t n, uint32_t k,
                  int32_t *out_ids, struct rc_err *err);

/* Token ids that end an answer (from generation_config / GGUF). */
const int32_t *mdl_eos(const struct mdl *m, size_t *n);

/* A message. Texts are borrowed; those with a length need no NUL. Only role and content
 * are read by families that call no tools. */
struct mdl_chat_msg {
    const char *role; /* "system" "user" "assistant" (developer = system) "tool" */
    const char *content;
    size_t n_bytes;
    const char *reasoning; /* assistant: what it thought, or NULL */
    size_t n_reasoning;
    /* assistant: its calls, as the JSON text of [{"id", "function": {"name", "arguments"}}];
     * arguments is an object or the JSON text of one. NULL = none. */
    const char *tool_calls;
    size_t n_tool_calls;
    const char *tool_call_id; /* tool: the call it answers, and what to call it otherwise */
    const char *name;
};
struct mdl_chat_opts {
    bool add_generation_prompt; /* opens the model's turn at the end */
    bool thinking;              /* needs info.can_think */
    bool preserve_thinking;     /* keeps old reasoning beside tool calls */
    /* JSON text of [{"type": "function", "function": {"name", "description", "parameters"}}],
     * NULL = none; needs info.can_call_tools */
    const char *tools;
    size_t n_tools;
    size_t max_tokens; /* 0 = no bound */
};
/* Renders the family's template straight to ids: control tokens are inserted by
 * us, contents are encoded with parse_special off, so a user cannot forge them.
 * Errors: RC_INVALID (roles out of order: err->item says which message; broken JSON of
 * tools or calls), RC_UNSUPPORTED (thinking or tools where the model has none), RC_TOO_LARGE. */
enum rc mdl_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                 const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err);

/* ---------------------------------------------------------------- embedding */

/* Tokens of one input for embedding: prompt (task type), template, truncation.
 * *truncated is set when truncate allowed a cut. Over the limit without
 * truncate: RC_TOO_LARGE, err->n tokens, err->limit. */
enum rc mdl_embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                         const char *task_type, bool truncate, bool *truncated, struct mdl_ids *out,
                         struct rc_err *err);
/* n_seqs sequences packed: sequence s is ids[offsets[s] .. offsets[s+1]), each of
 * 1 to max_input_tokens rows. Any number: what exceeds one pass (mdl_encode_rows rows,
 * mdl_encode_max_seqs sequences) is run in several, with the same numbers.
 * out [n_seqs, mdl_encode_dim], pooled and normalized as the model's sidecars say. */
enum rc mdl_encode(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                   float *out, struct rc_err *err);
uint32_t mdl_encode_dim(const struct mdl *m); /* embed_dim; 1 of a cross-encoder: its logit */
/* The same, and of the same pass, for every row of the call: its lexical weight (>= 0) to weights
 * [n_rows] and its vector of length 1 to vectors [n_rows, token_dim]; either may be NULL.
 * RC_UNSUPPORTED what the model has no head for. */
enum rc mdl_encode_tokens(struct mdl *m, uint32_t n_seqs, const int32_t *ids,
                          const uint32_t *offsets, float *out, float *weights, float *vectors,
                          struct rc_err *err);
/* Of one sequence's rows, ids and weights of mdl_encode_tokens: the largest weight > 0 of every id,
 * ascending by id; the first and the last token, padding and the unknown one are left out. Writes
 * at most n entries to out and says how many. */
struct mdl_lexical {
    int32_t id;
    float weight;
};
size_t mdl_sparse_map(const struct mdl *m, const int32_t *ids, const float *weights, size_t n,
                      struct mdl_lexical *out);
/* Which of a sequence's rows have a vector that counts: *first and how many (all but the first
 * token; the closing one stays). */
uint32_t mdl_vector_rows(uint32_t n_rows, uint32_t *first);
/* A cross-encoder's input: the template for pairs, specials written in the texts are text. Over
 * max_input_tokens: cut longest first when truncate allows (*truncated), else RC_TOO_LARGE with
 * err->n and err->limit. RC_UNSUPPORTED of other models. */
enum rc mdl_pair_tokens(const struct mdl *m, const char *query, size_t n_query, const char *doc,
                        size_t n_doc, bool truncate, bool *truncated, struct mdl_ids *out,
                        struct rc_err *err);
uint32_t mdl_encode_max_seqs(const struct mdl *m);
uint32_t mdl_encode_rows(const struct mdl *m); /* of one pass; at least max_input_tokens */
/* Pixels as they were decoded: [height, stride] bytes of RGB or RGBA (alpha is dropped). */
struct mdl_image {
    uint32_t width, height; /* >= 1 */
    size_t stride;          /* bytes from row to row, >= width * n_channels */
    uint32_t n_channels;    /* 3 or 4 */
    const uint8_t *pixels;  /* borrowed for the call */
};
struct mdl_sound {
    uint32_t rate;    /* must be mdl_info.sound_rate: RC_INVALID otherwise */
    size_t n;         /* samples of one channel, finite, full scale 1 */
    const float *pcm; /* borrowed for the call */
};
/* A picture or a sound ready for the model's tower (resized and cut into patches, or its
 * mel features): plain memory, of no device. Freed with mdl_media_free. */
struct mdl_media;
/* Errors: RC_UNSUPPORTED the model has no such tower, RC_INVALID sides that cannot be brought
 * to patches, RC_TOO_LARGE longer than the model hears (err->n, err->limit in ms), RC_NOMEM. */
enum rc mdl_media_image(const struct mdl *m, const struct mdl_image *img, struct mdl_media **out,
                        struct rc_err *err);
enum rc mdl_media_sound(const struct mdl *m, const struct mdl_sound *snd, struct mdl_media **out,
                        struct rc_err *err);
void mdl_media_free(struct mdl_media **media);
uint32_t mdl_media_tokens(const struct mdl_media *media); /* rows it takes, its marks aside */
uint64_t mdl_media_bytes(const struct mdl_media *media);  /* of memory it holds */

/* An ordered input: texts and media as one sequence, by the family's rules (separators,
 * one prompt, marks around media). A part is a text (media NULL) or media (text unread). */
struct mdl_embed_part {
    const char *text;
    size_t n_bytes;
    const struct mdl_media *media;
};
struct mdl_embed_input {
    const struct mdl_embed_part *parts;
    size_t n_parts;
    bool group;        /* parts of a group are joined by newlines; false: a flat input, one part */
    const char *title; /* or NULL; RC_INVALID where the task type takes none */
    size_t n_title;
    const char *task_type; /* "" or NULL = the model's default */
};
/* Tokens of one ordered input, appended to out; rows[i] is the place in out of the first row of
 * the i-th media part (rows has room for all of them). Never truncates: RC_TOO_LARGE as above.
 * RC_UNSUPPORTED where the family takes single texts only. */
enum rc mdl_embed_ordered(const struct mdl *m, const struct mdl_embed_input *in,
                          struct mdl_ids *out, uint32_t *rows, struct rc_err *err);
/* Does the id stand for a row of a picture, a sound or a video? A client's list of ids may hold
 * none: mdl_encode refuses a call with one that has no medium. */
bool mdl_is_placeholder(const struct mdl *m, int32_t id);
/* Media of a call of mdl_encode: where its first row stands in ids, ascending. */
struct mdl_encode_media {
    uint32_t row;
    const struct mdl_media *media;
};
enum rc mdl_encode_with(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                        const struct mdl_encode_media *media, uint32_t n_media, float *out,
                        struct rc_err *err);
/* Called between the layers of an encoding or extracting pass; true: the pass ends with
 * RC_CANCELLED and the model stays usable. NULL user hook = never. */
void mdl_set_encode_stop(struct mdl *m, bool (*stop)(void *user), void *user);
/* dims <= embed_dim the model may be cut to; RC_INVALID otherwise, saying why. */
enum rc mdl_dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err);

/* --------------------------------------------------------------- extraction
 * A sequence holds prompts (what to look for) and words (where). A prompt is one mark that counts
 * its instances and a mark for each of its fields, or of its classes; the words follow all prompts.
 * Every span of 1 to span_words words is scored for every field of every instance.
 * Source: encoders.md 6; docs/models/gliner2.md. */
#define MDL_EXTRACT_COUNTS 20   /* a prompt has 0 to 19 instances */
#define MDL_EXTRACT_WORDS 2048u /* of a sequence; and fields of a prompt with instances */

struct mdl_extract_prompt {
    uint32_t mark;     /* its first in marks[]: [P]; those of its fields follow */
    uint32_t n_fields; /* >= 1 */
    bool is_classes;   /* fields are classes: a logit each, no instances, no spans */
    uint32_t n_most;   /* instances looked at, however many there are; >= 1 unless is_classes */
};
struct mdl_extract_in {
    const int32_t *ids; /* 1 to max_input_tokens */
    uint32_t n_ids;
    const uint32_t *marks; /* rows of ids */
    uint32_t n_marks;
    const struct mdl_extract_prompt *prompts;
    uint32_t n_prompts;
    const uint32_t
        *words; /* [n_words + 1]: word w is rows words[w] .. words[w + 1] - 1; none of a
                   word that left no token, which has the state of the row that follows */
    uint32_t n_words;
};
/* Who hears the numbers, while a pass runs; what is pointed to is borrowed for the call. The fields
 * of an instance come one after the other, instances of a prompt in order, but those of several
 * prompts and sequences in turn. An error ends mdl_extract with it. */
struct mdl_extract_out {
    void *user;
    /* logits [n_fields] */
    enum rc (*classes)(void *user, uint32_t seq, uint32_t prompt, const float *logits,
                       struct rc_err *err);
    /* logits [MDL_EXTRACT_COUNTS]: count is the greatest's index. Optional. */
    enum rc (*count)(void *user, uint32_t seq, uint32_t prompt, const float *logits, uint32_t count,
                     struct rc_err *err);
    /* logits [n_words, span_words] of spans by first word and length - 1; -INFINITY where words do
     * not reach that far. Of the min(count, n_most) instances. */
    enum rc (*spans)(void *user, uint32_t seq, uint32_t prompt, uint32_t instance, uint32_t field,
                     const float *logits, struct rc_err *err);
};
/* n sequences, any number: what exceeds one pass (mdl_encode_rows in all) is run in several, with
 * the same numbers. Errors: RC_UNSUPPORTED of other models, RC_INVALID what is out of range
 * (err->item says of which sequence; nothing is computed then), RC_CANCELLED. */
enum rc mdl_extract(struct mdl *m, uint32_t n, const struct mdl_extract_in *in,
                    const struct mdl_extract_out *out, struct rc_err *err);

#endif
