/* engine_ask.h - requests to an engine over the scripted model, and its answers put together:
 * for the tests of the engine. Include once per program.
 */
#ifndef TEST_WORKER_ENGINE_ASK_H
#define TEST_WORKER_ENGINE_ASK_H

#include "worker/fake_mdl.h"
#include "worker/engine_rig.h"
#include "wrk_gr.h"

#define TASKS 64
#define CHOICES 4
struct choice {
    char text[8192];
    size_t n_text;
    int32_t probs[2048], ids[2048];
    float lp[2048];
    uint32_t offset[2048], n_probs, n_ids, finish, n_deltas, n_top;
    bool has_lp[2048];
    char echo[512];
    size_t n_echo;
    uint32_t n_echo_probs;
};
struct answer {
    struct choice c[CHOICES];
    uint32_t ended; /* last frames seen */
    enum rc rc;
    struct rc_err err;
    uint32_t prompt_tokens, completion_tokens, order;
    float vec[256];
    uint32_t n_vec, dim, n_bad, bad[16];
    bool truncated[64];
    uint32_t n_tokens[32], n_media[32], n_media_lists;
    char identity[65], stage[16][24];
};
struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan *chan; /* the engine keeps its address */
    int fd;
    struct answer *a;
    uint32_t n_ended;
};

static inline struct rig rig_new_full(struct mdl *m, struct be_ctx *be, uint32_t max_queue,
                                      enum rc (*listen)(void *, struct rc_err *), void *user)
{
    struct rig r = {.m = m};
    struct wrk_engine_opts o = {
        .mdl = m,
        .be = be,
        .max_seqs = m->max_seqs,
        .batch_tokens = m->batch_tokens,
        .max_queue = max_queue,
        .listen = listen,
        .listen_user = user,
    };

    r.chan = calloc(1, sizeof(*r.chan));
    r.fd = engine_channel(r.chan);
    o.chan = r.chan;
    assert_int_equal(wrk_engine_new(&r.e, &o, NULL), RC_OK);
    r.a = calloc(TASKS, sizeof(*r.a));
    return r;
}
static inline struct rig rig_new_heard(struct mdl *m, uint32_t max_queue,
                                       enum rc (*listen)(void *, struct rc_err *), void *user)
{
    return rig_new_full(m, NULL, max_queue, listen, user);
}
static inline struct rig rig_new_on(struct mdl *m, struct be_ctx *be, uint32_t max_queue)
{
    return rig_new_full(m, be, max_queue, NULL, NULL);
}
static inline struct rig rig_new(struct mdl *m, uint32_t max_queue)
{
    return rig_new_heard(m, max_queue, NULL, NULL);
}
static inline void rig_free(struct rig *r)
{
    wrk_engine_free(&r->e);
    close(r->chan->fd);
    wrk_chan_deinit(r->chan);
    free(r->chan);
    close(r->fd);
    free(r->m);
    free(r->a);
}

static inline void on_delta(struct answer *a, const Ipc__Delta *d)
{
    struct choice *c = &a->c[d->index];

    c->n_deltas++;
    if (d->is_prompt) {
        if (d->text.len > 0)
            memcpy(c->echo + c->n_echo, d->text.data, d->text.len);
        c->n_echo += d->text.len;
        c->n_echo_probs += (uint32_t)d->n_probs;
    } else if (d->text.len > 0) {
        assert_true(ipc_utf8_valid(d->text.data, d->text.len));
        memcpy(c->text + c->n_text, d->text.data, d->text.len);
        c->n_text += d->text.len;
    }
    for (size_t i = 0; i < d->n_probs; i++) {
        c->probs[c->n_probs] = (int32_t)d->probs[i]->token;
        c->lp[c->n_probs] = d->probs[i]->logprob;
        c->has_lp[c->n_probs] = d->probs[i]->has_logprob;
        c->n_top = (uint32_t)d->probs[i]->n_top;
        c->offset[c->n_probs++] = d->probs[i]->text_offset;
    }
    for (size_t i = 0; i < d->n_tokens; i++)
        c->ids[c->n_ids++] = (int32_t)d->tokens[i];
    assert_int_equal(c->finish, 0); /* nothing after the end */
    c->finish = d->finish;
}

static inline void on_vectors(struct answer *a, const Ipc__Vectors *v)
{
    a->n_vec = v->n;
    a->dim = v->dim;
    assert_int_equal(v->data.len, v->n * v->dim * sizeof(float));
    memcpy(a->vec, v->data.data, v->data.len);
    for (size_t i = 0; i < v->n_errors; i++) {
        snprintf(a->stage[a->n_bad], sizeof(a->stage[0]), "%s", v->errors[i]->error->stage);
        a->bad[a->n_bad++] = v->errors[i]->index;
    }
    snprintf(a->identity, sizeof(a->identity), "%s", v->model_identity);
    a->n_media_lists = (uint32_t)v->n_n_media_tokens;
    for (size_t i = 0; i < v->n_n_media_tokens; i++)
        a->n_media[i] = v->n_media_tokens[i];
    for (size_t i = 0; i < v->n_n_tokens; i++)
        a->n_tokens[i] = v->n_tokens[i];
    for (size_t i = 0; i < v->n_truncated; i++)
        a->truncated[i] = v->truncated[i];
}

static inline void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;
    struct answer *a;

    assert_true(f->task < TASKS);
    a = &r->a[f->task];
    assert_int_equal(a->ended, 0);
    if (f->body_case == IPC__FRAME__BODY_DELTA) {
        on_delta(a, f->delta);
    } else if (f->body_case != IPC__FRAME__BODY_STATS) {
        a->ended++;
        a->order = r->n_ended++;
        if (f->body_case == IPC__FRAME__BODY_ERROR) {
            ipc_error_to(&a->err, f->error);
            a->rc = a->err.code;
        } else if (f->body_case == IPC__FRAME__BODY_DONE) {
            a->prompt_tokens = f->done->prompt_tokens;
            a->completion_tokens = f->done->completion_tokens;
        } else if (f->body_case == IPC__FRAME__BODY_VECTORS) {
            on_vectors(a, f->vectors);
        } else if (f->body_case == IPC__FRAME__BODY_TOKENS) {
            a->completion_tokens = (uint32_t)f->tokens->n_ids;
        } else if (f->body_case == IPC__FRAME__BODY_CHUNKS) {
            a->prompt_tokens = (uint32_t)f->chunks->n_tokens;
            for (size_t i = 0; i < f->chunks->n_pieces && i < 32; i++) {
                a->n_tokens[i] = f->chunks->pieces[i]->n_tokens;
                a->n_media[i] = f->chunks->pieces[i]->start;
            }
            a->completion_tokens = (uint32_t)f->chunks->n_pieces;
            a->truncated[0] = f->chunks->cut;
        } else if (f->body_case == IPC__FRAME__BODY_TEXT) {
            memcpy(a->c[0].text, f->text->text.data, f->text->text.len);
            a->c[0].n_text = f->text->text.len;
        }
    }
}

static inline void read_all(struct rig *r)
{
    engine_read(r->fd, on_frame, r);
}

static inline void step(struct rig *r)
{
    engine_step(r->e, r->chan, r->fd, on_frame, r);
}
static inline void run(struct rig *r)
{
    int guard = 20000;

    while (wrk_engine_busy(r->e) && guard-- > 0)
        step(r);
    assert_true(guard > 0);
}

static inline enum rc submit(struct rig *r, const Ipc__Frame *f)
{
    return engine_submit(r->e, f);
}

struct gen {
    const char *prompt;
    uint32_t max_tokens, n, top, top_k;
    float temperature;
    uint64_t seed, deadline_us;
    const char *stop[4];
    bool logprobs, echo, ignore_eos, ids, stream;
    float repetition;
    enum wrk_gr_kind grammar_kind;
    const char *grammar;
};
static inline enum rc generate(struct rig *r, uint64_t task, const struct gen *g)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate m = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    ProtobufCBinaryData stops[4];

    s.temperature = g->temperature;
    s.top_k = g->top_k;
    s.seed = g->seed;
    s.has_seed = true;
    s.repetition_penalty = g->repetition;
    m.sampling = &s;
    m.kind = 2;
    m.prompt.data = (uint8_t *)g->prompt;
    m.prompt.len = strlen(g->prompt);
    m.max_tokens = g->max_tokens;
    m.n = g->n;
    m.logprobs = g->logprobs;
    m.top_logprobs = g->top;
    m.echo = g->echo;
    m.ignore_eos = g->ignore_eos;
    m.return_token_ids = g->ids;
    m.stream = g->stream;
    m.deadline_us = g->deadline_us;
    m.grammar_kind = g->grammar_kind;
    m.grammar.data = (uint8_t *)g->grammar;
    m.grammar.len = g->grammar != NULL ? strlen(g->grammar) : 0;
    m.stop = stops;
    for (; m.n_stop < 4 && g->stop[m.n_stop] != NULL; m.n_stop++) {
        stops[m.n_stop].data = (uint8_t *)g->stop[m.n_stop];
        stops[m.n_stop].len = strlen(g->stop[m.n_stop]);
    }
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &m;
    return submit(r, &f);
}

/* ---------------------------------------------------------------- reference */

static inline int32_t listed(const void *user, uint32_t c, uint32_t p)
{
    (void)c;
    return ((const int32_t *)user)[p];
}
/* Greedy tokens and their log-probabilities, straight from the function. */
static inline void alone(const struct mdl *m, const char *prompt, uint32_t n, int32_t *out,
                         double *lp)
{
    static int32_t seq[4096];
    static float x[FAKE_VOCAB];
    uint32_t len = 0;

    seq[len++] = FAKE_BOS;
    for (const char *p = prompt; *p != 0; p++)
        seq[len++] = FAKE_BYTE(*p);
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        int best = 0;

        fake_row(m, listed, seq, len, x);
        for (int v = 0; v < FAKE_VOCAB; v++) {
            best = x[v] > x[best] ? v : best;
            sum += exp((double)x[v]);
        }
        out[i] = seq[len++] = best;
        lp[i] = (double)x[best] - log(sum);
    }
}
static inline void equals_alone(const struct rig *r, uint32_t task, const char *prompt, uint32_t n)
{
    int32_t want[512];
    double lp[512];
    const struct choice *c = &r->a[task].c[0];

    alone(r->m, prompt, n, want, lp);
    assert_int_equal(r->a[task].rc, RC_OK);
    assert_int_equal(r->a[task].completion_tokens, n);
    assert_int_equal(c->n_probs, n);
    for (uint32_t i = 0; i < n; i++) {
        if (c->probs[i] != want[i])
            fail_msg("task %u token %u: %d, alone %d", task, i, c->probs[i], want[i]);
        assert_true(fabs(c->lp[i] - lp[i]) < 1e-4);
    }
}

static inline const char *long_text(uint32_t n, uint32_t seed)
{
    static char bank[64][2048];
    static int next;
    char *s = bank[next++ % 64];

    for (uint32_t i = 0; i < n; i++)
        s[i] = (char)('a' + (seed = seed * 1664525u + 1013904223u) % 26);
    s[n] = 0;
    return s;
}

#endif
