/* fake_mdl.h - a scripted model behind mdl.h and mdl_tok.h, for the engine's tests.
 *
 * Its "KV cache" is real: tokens are stored through the page tables, and every
 * wanted row's logits are a function of what is read back through them (the
 * windowed class for the last tokens, the other for all). A wrong page, a page given
 * to two sequences or one released too early changes the answer.
 * Vocabulary: 1 <eos>, 2 <bos>, 3 .. 8 the marks of thoughts and calls, 9 the end of a turn, 16 + b
 * the byte b, 272.. pieces of several bytes. Defining the whole of both headers here keeps the real
 * ones out of the link.
 */
#ifndef TEST_WORKER_FAKE_MDL_H
#define TEST_WORKER_FAKE_MDL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mdl.h"

#define FAKE_VOCAB 300
#define FAKE_EOS 1
#define FAKE_EOT 9 /* ends an answer too */
#define FAKE_BOS 2
#define FAKE_BYTE(b) (16 + (int32_t)(unsigned char)(b))
#define FAKE_PIECE0 272
#define FAKE_MARK0 3 /* <|channel> <channel|> <|tool_call> <tool_call|> <|tool_response> <|"|> */
#define FAKE_PAGES 1024
#define FAKE_PAGE 16

struct mdl_tok {
    const char *piece[FAKE_VOCAB - FAKE_PIECE0];
};

struct mdl {
    struct mdl_info info;
    struct mdl_kv_geometry geo;
    struct mdl_tok tok;
    int32_t cache[BE_KV_CLASSES][FAKE_PAGES][FAKE_PAGE];
    float logits[64 * FAKE_VOCAB];
    uint32_t max_seqs, batch_tokens, max_out;
    uint32_t encode_rows; /* 0 = batch_tokens */
    struct mdl *target;   /* of a drafter */
    uint32_t wrong_of_8;  /* a drafter: guesses that are wrong, of eight */
    uint32_t n_draft_calls, n_row_wrong;
    const int32_t *script; /* by position: the next token; NULL = by hash */
    int32_t bad_after;     /* token after which logits are NaN; -1 = never */
    bool fail_pass, fail_guard, fail_fill;
    bool can_sample; /* a device that draws; gives back rows whose best id is give_back, -2: all */
    int32_t give_back; /* -1 = none */
    uint32_t n_out, n_draws, n_host_rows;
    struct be_sample_row drawn; /* the last row drawn on the device */
    const struct mdl_tok_stop *stop;
    uint32_t n_passes, n_rows, n_filled, most_rows, most_prompt_rows_while_decoding;
    uint32_t n_encodes, most_encode_rows, n_token_passes;
    /* media: n_live is theirs; a pass has so many layers of so many microseconds */
    uint32_t n_live_media, most_live_media, n_layers, layer_us, n_stopped;
    uint64_t media_bytes;
    bool fail_media_pass, guard_after_pass; /* the files change while a pass runs */
    bool (*encode_stop)(void *);
    void *encode_stop_user;
};

struct mdl_media {
    struct mdl *owner;
    uint32_t n_tokens;
    uint64_t hash;
};

static inline uint64_t fake_mix(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdull;
}

/* Logits after a sequence whose tokens are read by get(user, class, position). */
static inline void fake_row(const struct mdl *m, int32_t (*get)(const void *, uint32_t, uint32_t),
                            const void *user, uint32_t n, float *out)
{
    uint64_t h = 1;
    uint32_t w = m->geo.cls[0].window, from = n > w ? n - w : 0;
    int32_t last = get(user, 1, n - 1);

    for (uint32_t p = from; p < n; p++)
        h = fake_mix(h, (uint64_t)get(user, 0, p) * 3 + 1);
    for (uint32_t p = 0; p < n; p++)
        h = fake_mix(h, (uint64_t)get(user, 1, p));
    for (int v = 0; v < FAKE_VOCAB; v++) {
        uint64_t z = fake_mix(h, (uint64_t)v);
        out[v] = (float)(z >> 40) / 1048576.0f - 8.0f; /* [-8, 8) */
        if (v < 16 || v >= 16 + 128)
            out[v] -= 20; /* ASCII alone, unless scripted */
    }
    if (m->script != NULL)
        out[m->script[n - 1]] = 50;
    if (last == m->bad_after)
        out[7] = NAN;
}

struct fake_view {
    const struct mdl *m;
    const struct be_seq *s;
};
static inline int32_t fake_cached(const void *user, uint32_t c, uint32_t p)
{
    const struct fake_view *v = user;
    int32_t page = v->s->pages[c][p / FAKE_PAGE];

    if (page < 0 || page >= (int32_t)v->m->geo.cls[c].n_pages)
        return -12345; /* read of a page that is not held: a wrong answer */
    return v->m->cache[c][page][p % FAKE_PAGE];
}

enum rc mdl_decode(struct mdl *m, const struct mdl_batch *b, const float **logits,
                   struct rc_err *err)
{
    uint32_t prompt_rows = 0;
    bool decoding = false;

    m->n_passes++;
    m->n_rows += b->n_rows;
    if (b->n_rows > m->most_rows)
        m->most_rows = b->n_rows;
    if (m->fail_pass || b->n_rows > m->batch_tokens || b->n_seqs > m->max_seqs ||
        b->n_out > (m->max_out > 0 ? m->max_out : m->max_seqs))
        return rc_fail(err, RC_INTERNAL, "pass of %u rows, %u sequences, %u out", b->n_rows,
                       b->n_seqs, b->n_out);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct be_seq *s = &b->seqs[i];
        if (s->n_rows > 1 || s->pos0 == 0)
            prompt_rows += s->n_rows;
        else
            decoding = true;
        for (uint32_t r = 0; r < s->n_rows; r++)
            for (uint32_t c = 0; c < m->geo.n_classes; c++) {
                uint32_t p = s->pos0 + r;
                if (b->pos[s->row0 + r] != (int32_t)p)
                    return rc_fail(err, RC_INTERNAL, "positions differ");
                m->cache[c][s->pages[c][p / FAKE_PAGE]][p % FAKE_PAGE] = b->ids[s->row0 + r];
            }
    }
    if (decoding && prompt_rows > m->most_prompt_rows_while_decoding)
        m->most_prompt_rows_while_decoding = prompt_rows;
    for (uint32_t k = 0; k < b->n_out; k++)
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const struct be_seq *s = &b->seqs[i];
            uint32_t row = (uint32_t)b->out_rows[k];
            struct fake_view v = {m, s};
            if (row >= s->row0 && row < s->row0 + s->n_rows)
                fake_row(m, fake_cached, &v, s->pos0 + (row - s->row0) + 1,
                         m->logits + (size_t)k * FAKE_VOCAB);
        }
    if (logits != NULL)
        *logits = m->logits;
    m->n_out = b->n_out;
    return RC_OK;
}

/* Rows of nobody's text: whoever reads them says something else. */
enum rc mdl_kv_fill(struct mdl *m, const struct be_seq *seqs, uint32_t n_seqs, uint32_t n_rows,
                    struct rc_err *err)
{
    if (m->fail_fill || n_seqs != 1 || seqs->n_rows != n_rows || n_rows > m->batch_tokens)
        return rc_fail(err, RC_INTERNAL, "%u rows to fill, %u sequences", n_rows, n_seqs);
    m->n_filled += n_rows;
    for (uint32_t p = seqs->pos0; p < seqs->pos0 + n_rows; p++)
        for (uint32_t c = 0; c < m->geo.n_classes; c++)
            m->cache[c][seqs->pages[c][p / FAKE_PAGE]][p % FAKE_PAGE] = -7;
    return RC_OK;
}
uint64_t mdl_kv_read_bytes(const struct mdl *m, uint32_t pos)
{
    return 4ull * m->geo.n_classes * (pos + 1);
}

bool mdl_can_sample(const struct mdl *m)
{
    return m->can_sample;
}

/* Greedy, or the id of the u-th part of the best top_k: enough to see which settings
 * and which draw came to which row. */
enum rc mdl_sample(struct mdl *m, const struct be_sample_row *rows, uint32_t n, int32_t *out,
                   struct rc_err *err)
{
    if (n != m->n_out)
        return rc_fail(err, RC_INVALID, "%u rows, the pass had %u", n, m->n_out);
    m->n_draws += n;
    for (uint32_t i = 0; i < n; i++) {
        const float *x = m->logits + (size_t)i * FAKE_VOCAB;
        uint32_t rank = rows[i].temperature > 0 ? (uint32_t)(rows[i].u * (float)rows[i].top_k) : 0;
        bool bad = false;

        m->drawn = rows[i];
        for (int v = 0; v < FAKE_VOCAB; v++)
            bad = bad || !isfinite(x[v]);
        for (int v = 0; v < FAKE_VOCAB; v++) {
            uint32_t above = 0;

            for (int k = 0; k < FAKE_VOCAB; k++)
                above += x[k] > x[v] || (x[k] == x[v] && k < v);
            if (above == rank)
                out[i] = v;
        }
        if (bad || m->give_back == -2 || (out[i] == m->give_back && m->give_back >= 0))
            out[i] = -1;
    }
    return RC_OK;
}

enum rc mdl_logits(struct mdl *m, uint32_t row, const float **out, struct rc_err *err)
{
    if (row >= m->n_out)
        return rc_fail(err, RC_INVALID, "row %u, the pass had %u", row, m->n_out);
    m->n_host_rows++;
    *out = m->logits + (size_t)row * FAKE_VOCAB;
    return RC_OK;
}

struct fake_ahead {
    struct fake_view view;
    struct be_seq seq;
    uint32_t n_cached;
    int32_t tail[1 + MDL_DRAFT_MAX];
};
static inline int32_t fake_guessed(const void *user, uint32_t c, uint32_t p)
{
    const struct fake_ahead *a = user;

    return p < a->n_cached ? fake_cached(&a->view, c, p)
                           : a->tail[(p - a->n_cached) % (1 + MDL_DRAFT_MAX)];
}

/* What the target would say greedily, now and then something else. */
enum rc mdl_draft(struct mdl *d, const struct mdl_draft_seq *seqs, uint32_t n, uint32_t k,
                  int32_t *out, struct rc_err *err)
{
    struct mdl *m = d->target;
    float x[FAKE_VOCAB];

    d->n_draft_calls++;
    if (d->fail_pass || k < 1 || k > MDL_DRAFT_MAX || n > m->max_seqs)
        return rc_fail(err, RC_INTERNAL, "a draft of %u for %u sequences", k, n);
    for (uint32_t i = 0; i < n; i++) {
        struct fake_ahead a = {.n_cached = seqs[i].n_cached, .tail = {seqs[i].token}};

        memcpy(a.seq.pages, seqs[i].pages, sizeof(a.seq.pages));
        a.view = (struct fake_view){m, &a.seq};
        if (seqs[i].out_row >= m->n_out)
            return rc_fail(err, RC_INVALID, "row %u of %u", seqs[i].out_row, m->n_out);
        /* that row is the one of this sequence: it says what the cache says */
        fake_row(m, fake_guessed, &a, seqs[i].n_cached, x);
        d->n_row_wrong +=
            memcmp(x, m->logits + (size_t)seqs[i].out_row * FAKE_VOCAB, sizeof(x)) != 0;
        for (uint32_t j = 0; j < k; j++) {
            int best = 0;

            fake_row(m, fake_guessed, &a, seqs[i].n_cached + 1 + j, x);
            for (int v = 0; v < FAKE_VOCAB; v++)
                best = x[v] > x[best] ? v : best;
            if (fake_mix(seqs[i].n_cached + j, 77) % 8 < d->wrong_of_8)
                best = 3; /* which it never says */
            out[(size_t)i * k + j] = a.tail[1 + j] = best;
        }
    }
    return RC_OK;
}

static inline struct mdl *fake_new(uint32_t ctx, uint32_t max_seqs, uint32_t batch_tokens)
{
    struct mdl *m = calloc(1, sizeof(*m));

    m->info.can_generate = m->info.can_embed = m->info.has_chat_template = true;
    m->info.ctx_tokens = m->info.max_input_tokens = ctx;
    m->info.vocab_size = FAKE_VOCAB;
    m->info.embed_dim = 8;
    m->geo.page_tokens = FAKE_PAGE;
    m->geo.n_classes = 2;
    m->geo.cls[0].window = 24;
    m->geo.cls[0].n_pages = m->geo.cls[1].n_pages = FAKE_PAGES;
    m->geo.cls[0].page_bytes = m->geo.cls[1].page_bytes = 64;
    m->max_seqs = max_seqs;
    m->batch_tokens = batch_tokens;
    m->bad_after = m->give_back = -1;
    return m;
}

const struct mdl_info *mdl_info_get(const struct mdl *m)
{
    return &m->info;
}
const struct mdl_tok *mdl_tok_get(const struct mdl *m)
{
    return &m->tok;
}
const struct mdl_kv_geometry *mdl_kv(const struct mdl *m)
{
    return &m->geo;
}
void mdl_set_stop(struct mdl *m, const struct mdl_tok_stop *stop)
{
    m->stop = stop;
}
const struct mdl_tok_stop *mdl_stop(const struct mdl *m)
{
    return m->stop;
}
/* \x02 in a text: 25 ms of work, longer than the engine lets one text have. */
static inline bool fake_slow(const struct mdl_tok_stop *stop, char c)
{
    if (c != 2)
        return false;
    usleep(25000);
    return stop != NULL && stop->ask(stop->user);
}
enum rc mdl_guard(const struct mdl *m, struct rc_err *err)
{
    return m->fail_guard ? rc_fail(err, RC_WEIGHT_IO, "the weights shrank") : RC_OK;
}
const int32_t *mdl_eos(const struct mdl *m, size_t *n)
{
    static const int32_t eos[] = {FAKE_EOS, FAKE_EOT};
    (void)m;
    *n = 2;
    return eos;
}
enum rc mdl_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                 const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err)
{
    (void)m;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < msgs[i].n_bytes; k++) {
            if (out->n >= opts->max_tokens)
                return rc_fail(err, RC_TOO_LARGE, "too many tokens");
            mdl_ids_push(out, FAKE_BYTE(msgs[i].content[k]), NULL);
        }
    return RC_OK;
}

/* ---------------------------------------------------------------- embedding */

enum rc mdl_embed_tokens(const struct mdl *m, const char *text, size_t n, const char *task_type,
                         bool truncate, bool *truncated, struct mdl_ids *out, struct rc_err *err)
{
    (void)task_type;
    if (n > 0 && text[0] == '!')
        return rc_fail(err, RC_INVALID, "bad text");
    if (n > m->info.max_input_tokens && !truncate) {
        rc_fail(err, RC_TOO_LARGE, "%zu tokens", n);
        err->n = n;
        err->limit = m->info.max_input_tokens;
        return RC_TOO_LARGE;
    }
    if (n > m->info.max_input_tokens) {
        n = m->info.max_input_tokens;
        *truncated = true;
    }
    for (size_t i = 0; i < n; i++) {
        if (fake_slow(m->stop, text[i]))
            return rc_fail(err, RC_CANCELLED, "stopped");
        mdl_ids_push(out, FAKE_BYTE(text[i]), NULL);
    }
    return RC_OK;
}
/* A token's lexical weight and vector: of the id alone; some weigh nothing. */
#define FAKE_TOKEN_DIM 6
static inline float fake_weight(int32_t id)
{
    return id % 5 == 0 ? 0 : (float)(fake_mix(11, (uint64_t)id) >> 40) / 16777216.0f;
}
static inline void fake_token_vector(int32_t id, float *out)
{
    double sum = 0;

    for (int d = 0; d < FAKE_TOKEN_DIM; d++) {
        out[d] = (float)(fake_mix((uint64_t)id + 7, (uint64_t)d) >> 40) / 8388608.0f - 1;
        sum += (double)out[d] * (double)out[d];
    }
    for (int d = 0; d < FAKE_TOKEN_DIM; d++)
        out[d] = (float)((double)out[d] / sqrt(sum));
}
/* The logit of a cross-encoder: -8 to 8. */
static inline float fake_logit(const int32_t *ids, uint32_t n)
{
    uint64_t h = 9;

    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint64_t)ids[i]);
    return n > 0 && ids[n - 1] == FAKE_BYTE('?') ? NAN : (float)(h >> 40) / 1048576.0f - 8.0f;
}
uint32_t mdl_encode_dim(const struct mdl *m)
{
    return m->info.can_rerank ? 1 : m->info.embed_dim;
}
/* Longest first, as the real one. */
enum rc mdl_pair_tokens(const struct mdl *m, const char *q, size_t n_q, const char *d, size_t n_d,
                        bool truncate, bool *truncated, struct mdl_ids *out, struct rc_err *err)
{
    size_t limit = m->info.max_input_tokens - 1;

    if (n_d > 0 && d[0] == '!')
        return rc_fail_what(err, RC_INVALID, "input", "bad text");
    if (n_q + n_d > limit && !truncate) {
        rc_fail_what(err, RC_TOO_LARGE, "input", "%zu tokens", n_q + n_d + 1);
        return rc_bound(RC_TOO_LARGE, n_q + n_d + 1, limit + 1, err);
    }
    for (*truncated = n_q + n_d > limit; n_q + n_d > limit;)
        *(n_q > n_d ? &n_q : &n_d) -= 1;
    for (size_t i = 0; i < n_q; i++)
        mdl_ids_push(out, FAKE_BYTE(q[i]), NULL);
    mdl_ids_push(out, FAKE_EOT, NULL);
    for (size_t i = 0; i < n_d; i++)
        mdl_ids_push(out, FAKE_BYTE(d[i]), NULL);
    return RC_OK;
}
static inline void fake_vector(const int32_t *ids, uint32_t n, float *out)
{
    double sum = 0;
    uint64_t h = 5;

    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint64_t)ids[i]);
    for (int d = 0; d < 8; d++) {
        out[d] = (float)(fake_mix(h, (uint64_t)d) >> 40) / 16777216.0f + 0.01f;
        sum += (double)out[d] * out[d];
    }
    for (int d = 0; d < 8; d++)
        out[d] = (float)(out[d] / sqrt(sum));
    if (n > 0 && ids[0] == FAKE_BYTE('?'))
        out[3] = NAN;
}
enum rc mdl_encode(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *off,
                   float *out, struct rc_err *err)
{
    m->n_encodes++;
    if (off[n_seqs] > m->most_encode_rows)
        m->most_encode_rows = off[n_seqs];
    if (m->fail_pass || off[n_seqs] > mdl_encode_rows(m) || n_seqs > 16)
        return rc_fail(err, RC_INTERNAL, "encode of %u rows", off[n_seqs]);
    for (uint32_t s = 0; s < n_seqs; s++)
        if (m->info.can_rerank)
            out[s] = fake_logit(ids + off[s], off[s + 1] - off[s]);
        else
            fake_vector(ids + off[s], off[s + 1] - off[s], out + (size_t)s * 8);
    return RC_OK;
}

static inline enum rc fake_media(const struct mdl *m, uint32_t n_tokens, const void *data, size_t n,
                                 struct mdl_media **out)
{
    struct mdl *own = (struct mdl *)m;
    struct mdl_media *x = calloc(1, sizeof(*x));

    *x = (struct mdl_media){own, n_tokens, n_tokens};
    for (size_t i = 0; i < n; i++)
        x->hash = fake_mix(x->hash, ((const uint8_t *)data)[i]);
    if (++own->n_live_media > own->most_live_media)
        own->most_live_media = own->n_live_media;
    *out = x;
    return RC_OK;
}
enum rc mdl_media_image(const struct mdl *m, const struct mdl_image *i, struct mdl_media **out,
                        struct rc_err *err)
{
    if (i->width == 1)
        return rc_fail(err, RC_INVALID, "too narrow");
    return fake_media(m, 3, i->pixels, (size_t)i->height * i->stride, out);
}
enum rc mdl_media_sound(const struct mdl *m, const struct mdl_sound *s, struct mdl_media **out,
                        struct rc_err *err)
{
    if (s->rate != m->info.sound_rate)
        return rc_fail(err, RC_INVALID, "rate %u", s->rate);
    return fake_media(m, 2, s->pcm, s->n * sizeof(float), out);
}
void mdl_media_free(struct mdl_media **x)
{
    if (*x != NULL)
        (*x)->owner->n_live_media--;
    free(*x);
    *x = NULL;
}
uint32_t mdl_media_tokens(const struct mdl_media *x)
{
    return x->n_tokens;
}
uint64_t mdl_media_bytes(const struct mdl_media *x)
{
    return x->owner->media_bytes;
}
void mdl_set_encode_stop(struct mdl *m, bool (*stop)(void *), void *user)
{
    m->encode_stop = stop;
    m->encode_stop_user = user;
}

/* Parts of a group joined by newlines, a title and a 'T' before them; a file is '<', its rows, '>'.
 */
enum rc mdl_embed_ordered(const struct mdl *m, const struct mdl_embed_input *in,
                          struct mdl_ids *out, uint32_t *rows, struct rc_err *err)
{
    size_t from = out->n;
    uint32_t k = 0;

    for (size_t i = 0; in->title != NULL && i < in->n_title; i++)
        mdl_ids_push(out, FAKE_BYTE(in->title[i]), NULL);
    if (in->title != NULL)
        mdl_ids_push(out, FAKE_BYTE('T'), NULL);
    for (size_t p = 0; p < in->n_parts; p++) {
        const struct mdl_embed_part *x = &in->parts[p];

        if (p > 0 && in->group)
            mdl_ids_push(out, FAKE_BYTE('\n'), NULL);
        if (x->media == NULL && x->n_bytes > 0 && x->text[0] == '!')
            return rc_fail_what(err, RC_INVALID, "input", "bad text");
        for (size_t i = 0; x->media == NULL && i < x->n_bytes; i++)
            mdl_ids_push(out, FAKE_BYTE(x->text[i]), NULL);
        if (x->media == NULL)
            continue;
        mdl_ids_push(out, FAKE_BYTE('<'), NULL);
        rows[k++] = (uint32_t)out->n;
        for (uint32_t i = 0; i < x->media->n_tokens; i++)
            mdl_ids_push(out, FAKE_BYTE(0xff), NULL);
        mdl_ids_push(out, FAKE_BYTE('>'), NULL);
    }
    if (out->n - from > m->info.max_input_tokens) {
        rc_fail_what(err, RC_TOO_LARGE, "input", "%zu tokens", out->n - from);
        err->n = out->n - from;
        err->limit = m->info.max_input_tokens;
        return RC_TOO_LARGE;
    }
    return RC_OK;
}
/* What a file's rows are replaced by. */
static inline int32_t fake_soft(uint64_t hash, uint32_t i)
{
    return (int32_t)(fake_mix(hash, i) >> 33) + FAKE_VOCAB;
}
enum rc mdl_encode_with(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *off,
                        const struct mdl_encode_media *media, uint32_t n_media, float *out,
                        struct rc_err *err)
{
    uint32_t n = off[n_seqs], at = 0;
    int32_t *soft = malloc((n + 1) * sizeof(*soft));
    enum rc rc = RC_OK;

    memcpy(soft, ids, n * sizeof(*soft));
    for (uint32_t k = 0; k < n_media; k++) {
        if (media[k].row < at || media[k].row + media[k].media->n_tokens > n)
            rc = rc_fail(err, RC_INTERNAL, "media out of order");
        for (uint32_t i = 0; rc == RC_OK && i < media[k].media->n_tokens; i++) {
            if (ids[media[k].row + i] != FAKE_BYTE(0xff))
                rc = rc_fail(err, RC_INTERNAL, "no place for media");
            soft[media[k].row + i] = fake_soft(media[k].media->hash, i);
        }
        at = media[k].row + media[k].media->n_tokens;
    }
    if (rc == RC_OK && n_media > 0 && m->fail_media_pass)
        rc = rc_fail(err, RC_INTERNAL, "the tower fell");
    for (uint32_t l = 0; l < m->n_layers && rc == RC_OK; l++) {
        usleep(m->layer_us);
        if (m->encode_stop != NULL && m->encode_stop(m->encode_stop_user)) {
            m->n_stopped++;
            rc = rc_fail(err, RC_CANCELLED, "stopped at layer %u", l);
        }
    }
    if (rc == RC_OK)
        rc = mdl_encode(m, n_seqs, soft, off, out, err);
    if (m->guard_after_pass)
        m->fail_guard = true;
    free(soft);
    return rc;
}
enum rc mdl_encode_tokens(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *off,
                          float *out, float *weights, float *vectors, struct rc_err *err)
{
    enum rc rc = mdl_encode_with(m, n_seqs, ids, off, NULL, 0, out, err);

    m->n_token_passes++;
    for (uint32_t i = 0; rc == RC_OK && i < off[n_seqs]; i++) {
        if (weights != NULL)
            weights[i] = ids[i] == FAKE_BYTE('~') ? NAN : fake_weight(ids[i]);
        if (vectors != NULL)
            fake_token_vector(ids[i], vectors + (size_t)i * FAKE_TOKEN_DIM);
    }
    return rc;
}
size_t mdl_sparse_map(const struct mdl *m, const int32_t *ids, const float *weights, size_t n,
                      struct mdl_lexical *out)
{
    size_t k = 0;

    for (int32_t id = 0; id < FAKE_VOCAB; id++)
        for (size_t i = 0; i < n; i++)
            if (ids[i] == id && weights[i] > 0) { /* the same for each of them */
                out[k++] = (struct mdl_lexical){id, weights[i]};
                break;
            }
    return k;
}
uint32_t mdl_vector_rows(uint32_t n_rows, uint32_t *first)
{
    *first = n_rows > 0;
    return n_rows - *first;
}
/* Extraction: a word is what a field names by its first letter (score 0.98), every prompt has one
 * instance, the last class is the best. A word of ! fails the pass, one of ? has no numbers. */
enum rc mdl_extract(struct mdl *m, uint32_t n, const struct mdl_extract_in *in,
                    const struct mdl_extract_out *out, struct rc_err *err)
{
    float x[4096], count[MDL_EXTRACT_COUNTS] = {-4, 4};
    enum rc rc = RC_OK;

    m->n_encodes++;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        usleep(m->layer_us);
        if (m->encode_stop != NULL && m->encode_stop(m->encode_stop_user)) {
            m->n_stopped++;
            return rc_fail(err, RC_CANCELLED, "stopped at layer %u", l);
        }
    }
    for (uint32_t s = 0, rows = 0; s < n; s++) {
        rows += in[s].n_ids;
        if (rows > m->most_encode_rows)
            m->most_encode_rows = rows;
        for (uint32_t w = 0; w < in[s].n_words; w++)
            if (in[s].ids[in[s].words[w]] == FAKE_BYTE('!'))
                return rc_fail(err, RC_INTERNAL, "the model fell");
    }
    for (uint32_t s = 0; s < n && rc == RC_OK; s++)
        for (uint32_t p = 0; p < in[s].n_prompts && rc == RC_OK; p++) {
            const struct mdl_extract_prompt *q = &in[s].prompts[p];

            if (!q->is_classes)
                rc = out->count(out->user, s, p, count, 1, err);
            for (uint32_t f = 0; f < q->n_fields && q->is_classes; f++)
                x[f] = (float)f;
            if (q->is_classes)
                rc = out->classes(out->user, s, p, x, err);
            for (uint32_t f = 0; f < q->n_fields && !q->is_classes && rc == RC_OK; f++) {
                const int32_t *label = in[s].ids + in[s].marks[q->mark + 1 + f];

                for (uint32_t w = 0; w < in[s].n_words; w++) {
                    int32_t first = in[s].ids[in[s].words[w]];

                    x[2 * w] = first == FAKE_BYTE('?') ? NAN : first == label[3] ? 4 : -4;
                    x[2 * w + 1] = w + 1 < in[s].n_words ? -4 : -INFINITY;
                }
                rc = out->spans(out->user, s, p, 0, f, x, err);
            }
        }
    if (m->guard_after_pass)
        m->fail_guard = true;
    return rc;
}

uint32_t mdl_encode_rows(const struct mdl *m)
{
    uint32_t rows = m->encode_rows > m->batch_tokens ? m->encode_rows : m->batch_tokens;

    return rows > m->info.max_input_tokens ? rows : m->info.max_input_tokens;
}

uint32_t mdl_encode_max_seqs(const struct mdl *m)
{
    (void)m;
    return 16;
}
bool mdl_is_placeholder(const struct mdl *m, int32_t id)
{
    return false; /* its ids are all words */
}

enum rc mdl_dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err)
{
    (void)m;
    return dims <= 8 ? RC_OK : rc_fail_what(err, RC_INVALID, "dimensions", "at most 8");
}

/* ---------------------------------------------------------------- tokenizer */

enum rc mdl_ids_push(struct mdl_ids *v, int32_t id, struct rc_err *err)
{
    (void)err;
    if (v->n == v->cap)
        v->ids = realloc(v->ids, (v->cap = v->cap == 0 ? 64 : v->cap * 2) * sizeof(int32_t));
    v->ids[v->n++] = id;
    return RC_OK;
}
void mdl_ids_deinit(struct mdl_ids *v)
{
    free(v->ids);
    free(v->offsets);
    memset(v, 0, sizeof(*v));
}
enum rc mdl_tok_encode(const struct mdl_tok *t, const char *text, size_t n,
                       const struct mdl_tok_flags *f, struct mdl_ids *out, struct rc_err *err)
{
    size_t start = out->n;
    uint32_t at = 0;

    (void)t;
    if (f->max_tokens != 0 && n + f->add_special > f->max_tokens) {
        rc_fail_what(err, RC_TOO_LARGE, "prompt", "the prompt has %zu tokens", n);
        if (err != NULL) {
            err->n = n + f->add_special;
            err->limit = f->max_tokens;
        }
        return RC_TOO_LARGE;
    }
    if (f->add_special)
        mdl_ids_push(out, FAKE_BOS, err);
    for (size_t i = 0; i < n; i++) {
        if (fake_slow(f->stop, text[i])) {
            out->n = start;
            return rc_fail(err, RC_CANCELLED, "stopped");
        }
        /* \x01: a piece that the model has no vector for */
        mdl_ids_push(out, text[i] == 1 ? FAKE_VOCAB : FAKE_BYTE(text[i]), err);
        if (!f->offsets)
            continue;
        out->offsets = realloc(out->offsets, 2 * out->cap * sizeof(uint32_t));
        at += ((unsigned char)text[i] & 0xc0) != 0x80; /* bytes of a character share it */
        out->offsets[2 * out->n - 2] = at - 1;
        out->offsets[2 * out->n - 1] = at;
    }
    return RC_OK;
}
const char *mdl_tok_bytes(const struct mdl_tok *t, int32_t id, bool skip, size_t *n)
{
    static char bytes[256];
    const char *s = id == FAKE_EOS ? "<eos>" : id == FAKE_BOS ? "<bos>" : "";

    if (id >= FAKE_BYTE(0) && id <= FAKE_BYTE(255)) {
        bytes[id - 16] = (char)(id - 16);
        *n = 1;
        return &bytes[id - 16];
    }
    if (id >= FAKE_PIECE0 && t->piece[id - FAKE_PIECE0] != NULL)
        s = t->piece[id - FAKE_PIECE0];
    else if (skip)
        s = "";
    *n = strlen(s);
    return s;
}
int32_t mdl_tok_find(const struct mdl_tok *t, const char *piece, size_t n)
{
    static const char *const marks[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                        "<tool_call|>", "<|tool_response>", "<|\"|>"};

    (void)t;
    for (int32_t i = 0; i < 6; i++)
        if (strlen(marks[i]) == n && memcmp(marks[i], piece, n) == 0)
            return FAKE_MARK0 + i;
    return -1;
}
uint32_t mdl_tok_vocab(const struct mdl_tok *t)
{
    (void)t;
    return FAKE_VOCAB;
}
const char *mdl_tok_piece(const struct mdl_tok *t, int32_t id, size_t *n)
{
    return mdl_tok_bytes(t, id, false, n);
}
enum rc mdl_tok_decode(const struct mdl_tok *t, const int32_t *ids, size_t n, bool skip, char **out,
                       size_t *n_bytes, struct rc_err *err)
{
    char *s = calloc(1, n * 64 + 1);
    size_t at = 0, k;

    (void)err;
    for (size_t i = 0; i < n; i++) {
        const char *p = mdl_tok_bytes(t, ids[i], skip, &k);
        memcpy(s + at, p, k);
        at += k;
    }
    *out = s;
    *n_bytes = at;
    return RC_OK;
}
void mdl_detok_init(struct mdl_detok *d, const struct mdl_tok *t, bool skip)
{
    memset(d, 0, sizeof(*d));
    d->tok = t;
    d->skip_special = skip;
}
size_t mdl_detok_push(struct mdl_detok *d, int32_t id, char *out, size_t cap)
{
    size_t n, at = 0;
    const char *s = mdl_tok_bytes(d->tok, id, d->skip_special, &n);

    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)s[i];
        uint32_t want;

        if (d->n_held == 0 && b < 0x80) {
            if (at < cap)
                out[at++] = (char)b;
            continue;
        }
        d->held[d->n_held++] = b;
        want = d->held[0] >= 0xf0 ? 4 : d->held[0] >= 0xe0 ? 3 : 2;
        if (d->n_held == want && at + want <= cap) {
            memcpy(out + at, d->held, want);
            at += want;
            d->n_held = 0;
        }
    }
    return at;
}
size_t mdl_detok_flush(struct mdl_detok *d, char *out, size_t cap)
{
    size_t at = 0;

    for (uint32_t i = 0; i < d->n_held && at + 3 <= cap; i++, at += 3)
        memcpy(out + at, "\xef\xbf\xbd", 3);
    d->n_held = 0;
    return at;
}

#endif
