/* wrk_engine_impl.h - private to the engine: tasks, sequences, the batch.
 *
 * wrk_engine.c owns tasks; wrk_seq.c owns sequences and their pages, wrk_batch.c the
 * passes; wrk_embed.c and wrk_small.c own their kinds of task.
 */
#ifndef INFERD_WRK_ENGINE_IMPL_H
#define INFERD_WRK_ENGINE_IMPL_H

#include "wrk_draw.h"
#include "wrk_engine.h"
#include "wrk_gen.h"
#include "wrk_out.h"
#include "wrk_pace.h"
#include "wrk_pages.h"
#include "wrk_pass.h"
#include "wrk_protos.h"
#include "wrk_radix.h"
#include "wrk_sample.h"
#include "wrk_shape.h"
#include "wrk_spec.h"

struct wrk_embed;
struct wrk_decide;
struct wrk_extract;
struct wrk_ext_room;
struct wrk_rerank;

struct wrk_task {
    struct wrk_task *next;
    uint64_t id, deadline_us, arrive_us;
    Ipc__Frame__BodyCase kind;
    Ipc__Frame *frame; /* owned; NULL once nothing of it is needed */
    size_t frame_bytes;
    bool prepared;  /* checked and tokenized; files of an Embed task may still be undecoded */
    bool in_pass;   /* of an encoder, which runs now: nobody but that pass ends it */
    bool again;     /* its last pass was ended by another task's end: it goes first */
    bool cancelled; /* meanwhile */
    struct wrk_gen gen;
    struct wrk_embed *embed; /* of a Decide task too: the texts of this round; of a Rerank task */
    struct wrk_decide *decide;
    struct wrk_rerank *rerank;
    struct wrk_extract *extract;
};

/* One choice of a Generate task, from its admission to its end. */
struct wrk_seq {
    struct wrk_task *task; /* NULL = free slot */
    uint64_t serial;       /* order of admission, from 1 */
    bool decoding;
    bool begun;       /* its pages are decided: it is in passes */
    bool counted;     /* as a lookup of the prompt cache */
    bool parked;      /* has no pages for now */
    uint8_t n_vain;   /* waits that brought nothing */
    uint8_t n_parked; /* times */
    uint32_t pos;     /* rows in the cache */
    uint32_t n_fill;  /* rows to compute before it decodes: its prompt; after parking, all it had */
    uint32_t n_kept;  /* rows when the prompt cache last took them */
    uint32_t n_told;  /* prompt tokens whose log-probability was told */
    uint32_t n_new;   /* tokens sampled */
    int32_t *answer;  /* [max_new], n_new of them sampled; the last is not yet in the cache */
    int32_t draft[WRK_SPEC_MOST];
    uint8_t n_draft;            /* for the next pass */
    uint8_t want_draft;         /* as many next time; 0 = not yet known */
    uint8_t n_drafted, n_taken; /* of this pass: drafts in it, tokens taken from it */
    uint32_t last_row;          /* wanted row of this pass that told its last token */
    uint64_t awaits;            /* serial of who computes its prefix; 0 = nobody */
    uint32_t await_rows;
    struct wrk_table table;
    struct wrk_rng rng;
    struct wrk_counts counts; /* slot NULL without penalties */
    struct wrk_out out;
    struct wrk_gr_run run; /* held NULL without a grammar */
};

/* What a wanted row of logits is for. */
struct wrk_want {
    uint32_t seq;
    int32_t prompt_idx; /* >= 0: echo: tells of prompt token prompt_idx; -1: sample */
    uint32_t ahead;     /* drafts fed before it: it counts if all of them were right */
};

struct wrk_engine {
    struct wrk_engine_opts o;
    const struct mdl_info *info;
    struct wrk_task *tasks, **tail; /* in order of arrival */
    uint32_t n_tasks;
    uint64_t queued_bytes;

    struct wrk_seq *seq;   /* o.max_seqs slots */
    uint32_t n_seqs, turn; /* turn: from whom on a prompt goes first */
    uint64_t serial, n_parked;
    struct wrk_pages pages;
    struct wrk_radix radix;
    struct wrk_sampler sampler;
    struct wrk_delta delta;
    struct wrk_shapes shapes;

    /* one pass */
    struct wrk_pace pace;
    struct wrk_spec spec;
    struct mdl_draft_seq *draft_seq; /* o.max_seqs, with a drafter */
    int32_t *draft_ids;              /* [o.max_seqs, WRK_SPEC_MOST] */
    uint64_t draft_us;               /* spent on drafts for the coming pass */
    uint32_t max_wants;
    uint32_t n_decoding, n_decode_rows; /* of its parts and rows */
    uint32_t n_rows, n_parts, n_wants;
    int32_t *ids, *pos, *out_rows;
    struct be_seq *part; /* o.max_seqs */
    uint32_t *part_seq;  /* slot of each part */
    struct wrk_want *want;
    struct wrk_draws draws;

    /* one embedding micro-batch */
    int32_t *embed_ids;
    uint32_t *embed_offsets;
    float *embed_out;
    float *embed_weights, *embed_vectors; /* of each row, where the model gives them */
    uint32_t max_embed_seqs, embed_rows;
    uint32_t encode_dim; /* values of a sequence; 0: the model encodes nothing */
    /* A pass may wait for the texts of clients that the last one answered: when that one ended, how
     * long it took, how many tasks it ended or left. wait_from: since when it waits, 0 = it does
     * not */
    uint64_t pass_end_us, pass_us, wait_from_us, wait_until_us;
    uint32_t n_expected, n_answered;
    uint64_t n_embed_passes, n_embed_waits, embed_wait_us;
    uint64_t token_bytes; /* of token vectors, held by tasks that have begun */
    struct wrk_pass pass; /* of an encoder */
    struct wrk_media_count {
        uint32_t turn;
        uint64_t bytes;               /* of prepared media, now */
        uint32_t n_ready, ready_rows; /* items that wait for a pass, now */
        uint64_t n_decoded, n_refused, us;
    } media;

    struct wrk_protos protos; /* of decisions */

    struct wrk_ext_room *extract; /* NULL: the model does not extract */
    struct {
        uint64_t n_tokens, n_windows, n_passes, n_spans;
    } extracted;

    /* while a text is tokenized or a file decoded: whose, when to look around next, how long the
     * others had their turn (in all), what came of it */
    struct mdl_tok_stop stop;
    struct wrk_task *preparing;
    uint64_t look_us, others_us;
    bool preparing_cancelled;
    enum rc fatal;
    struct rc_err fatal_err;

    uint64_t n_steps, n_prefill, n_decode, n_cancelled, n_embed_tokens;
    uint64_t stats_us, growths_at_start;
};

static inline uint32_t wrk_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- wrk_engine.c */
/* Ends a task: why NULL = its last frame was sent already. Frees it. */
enum rc wrk_task_end(struct wrk_engine *e, struct wrk_task *t, const struct rc_err *why,
                     struct rc_err *err);
/* Ends a task whose last frame was sent or, as why says, could not be made. Errors: the channel's.
 */
enum rc wrk_task_sent(struct wrk_engine *e, struct wrk_task *t, enum rc sent,
                      const struct rc_err *why, struct rc_err *err);
/* The frame is no longer needed. */
void wrk_task_drop_frame(struct wrk_engine *e, struct wrk_task *t);

/* What a failed pass means: RC_OK = its tasks fail; else the device is lost, and the worker
 * ends without a word to them: the front tries them again where it may. */
enum rc wrk_engine_lost(struct wrk_engine *e, const struct rc_err *why, struct rc_err *err);

/* --- wrk_seq.c */
/* Admits the next choice of a task into a free slot. RC_BUSY: no pages now. Others: the
 * task's failure; nothing is left behind. */
enum rc wrk_seq_open(struct wrk_engine *e, struct wrk_seq *s, struct wrk_task *t,
                     struct rc_err *why);
/* Frees the slot; finish: after an answer that ended, which the prompt cache may keep. */
void wrk_seq_close(struct wrk_engine *e, struct wrk_seq *s);
void wrk_seq_finish(struct wrk_engine *e, struct wrk_seq *s);
/* May it be in this pass? Settles, the first time, with which prefix it begins. */
bool wrk_seq_ready(struct wrk_engine *e, struct wrk_seq *s);
/* Reserves for n more rows, as far as it may come to have them; s itself, or younger
 * ones, may be parked for it. */
void wrk_seq_grow(struct wrk_engine *e, struct wrk_seq *s, uint32_t n);
/* Continues parked sequences, oldest first. False: some must go on waiting, and who is
 * new with them; *failed: one that cannot go on, why says why. */
bool wrk_seq_unpark(struct wrk_engine *e, struct wrk_seq **failed, struct rc_err *why);
/* After a pass with rows of its prompt (or of what it had when it was parked). */
void wrk_seq_filled(struct wrk_engine *e, struct wrk_seq *s);
/* What it has: its prompt and its answer so far; and the token of a row. */
struct wrk_text wrk_seq_text(const struct wrk_seq *s);
int32_t wrk_seq_token(const struct wrk_seq *s, uint32_t row);

/* --- wrk_batch.c */
enum rc wrk_batch_init(struct wrk_engine *e, struct rc_err *err);
void wrk_batch_deinit(struct wrk_engine *e);
/* Gives waiting choices a slot and pages, in order of arrival. */
enum rc wrk_batch_admit(struct wrk_engine *e, struct rc_err *err);
/* One pass over all running sequences. */
enum rc wrk_batch_step(struct wrk_engine *e, struct rc_err *err);
/* Frees the sequences of a task. */
void wrk_batch_drop(struct wrk_engine *e, const struct wrk_task *t);
bool wrk_batch_decoding(const struct wrk_engine *e);

/* --- wrk_fill.c: makes up all of the prompts of this pass that o.fill_prompts says. Errors: the
 * pass's, of the one part that it then has. */
enum rc wrk_fill_prompts(struct wrk_engine *e, struct rc_err *err);

/* --- wrk_ahead.c: drafts for the next pass, and what they were worth */
enum rc wrk_ahead_init(struct wrk_engine *e, struct rc_err *err);
void wrk_ahead_deinit(struct wrk_engine *e);
/* What a request wants of it, into g. Errors: RC_INVALID names the field. */
enum rc wrk_ahead_take(const struct wrk_engine *e, struct wrk_gen *g, const Ipc__Generate *m,
                       struct rc_err *err);
/* Drafts that fit into the coming pass beside n_rows rows. */
uint32_t wrk_ahead_fit(const struct wrk_engine *e, const struct wrk_seq *s, uint32_t n_rows);
/* Is the row of a draft right: were all before it, and is its input the token chosen? */
bool wrk_ahead_right(const struct wrk_engine *e, const struct wrk_seq *s, uint32_t k);
/* After a pass that took us and gave n_tokens: counts, and guesses for the next one. */
enum rc wrk_ahead_next(struct wrk_engine *e, uint64_t us, uint32_t n_tokens, struct rc_err *err);

/* --- wrk_embed_pass.c */
enum rc wrk_embed_init(struct wrk_engine *e, struct rc_err *err);
void wrk_embed_deinit(struct wrk_engine *e);
/* One micro-batch of all prepared tasks with items; ends those that are complete. */
enum rc wrk_embed_step(struct wrk_engine *e, struct rc_err *err);

/* --- wrk_embed.c */
/* What a request says of the model, against the model: vectors at all, identity ("" = any),
 * dimensions (0 = its own). */
enum rc wrk_embed_asked(const struct wrk_engine *e, const char *identity, uint32_t dim,
                        struct rc_err *why);
/* Continues preparing an Embed, Rerank or Decide task for at most about `budget` bytes of text (0 =
 * done for this step). Sets t->prepared. Errors: the task's. */
enum rc wrk_embed_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                          struct rc_err *why);
void wrk_embed_free(struct wrk_engine *e, struct wrk_embed **m);
/* Of a complete task: vectors [n inputs, dimensions], and the tokens of an input. */
const float *wrk_embed_vectors(const struct wrk_embed *m);
uint32_t wrk_embed_tokens(const struct wrk_embed *m, uint32_t idx);

/* --- wrk_embed_media.c */
/* Whose next item with files is to be made ready; NULL: nobody's before the next pass. */
struct wrk_task *wrk_embed_media_next(struct wrk_engine *e);
/* Makes the next item with files of a prepared task ready. Errors: the task's. */
enum rc wrk_embed_media_prepare(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why);

/* --- wrk_rerank.c */
/* A failure of item why->item in words of a Rerank request; any other task: nothing. */
void wrk_rerank_explain(const struct wrk_task *t, struct rc_err *why);
void wrk_rerank_free(struct wrk_task *t);

/* --- decide/wrk_decide.c: a Decide task is one or more rounds of an embedding task */
/* Continues preparing, as wrk_embed_prepare. Errors: the task's. */
enum rc wrk_decide_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                           struct rc_err *why);
/* The vectors of its round are complete. */
void wrk_decide_embedded(struct wrk_engine *e, struct wrk_task *t);
/* Ends the Decide tasks that have all they wait for; the others take over what an owner left. */
enum rc wrk_decide_step(struct wrk_engine *e, struct rc_err *err);
/* A failure of the round's item why->item in words of the request; any other task: nothing. */
void wrk_decide_explain(const struct wrk_task *t, struct rc_err *why);
void wrk_decide_free(struct wrk_engine *e, struct wrk_task *t);

/* --- extract/wrk_ext_pass.c, wrk_ext_task.c */
enum rc wrk_extract_init(struct wrk_engine *e, struct rc_err *err);
void wrk_extract_deinit(struct wrk_engine *e);
/* Continues preparing, as wrk_embed_prepare. Errors: the task's. */
enum rc wrk_extract_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                            struct rc_err *why);
/* One micro-batch of all prepared Extract tasks; ends those that are complete. */
enum rc wrk_extract_step(struct wrk_engine *e, struct rc_err *err);
void wrk_extract_free(struct wrk_engine *e, struct wrk_task *t);

/* --- wrk_small.c: Tokenize, Detokenize, Chunk: answered whole. Errors: the task's in why;
 * the channel's as the result. */
enum rc wrk_small_run(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why,
                      struct rc_err *err);

#endif
