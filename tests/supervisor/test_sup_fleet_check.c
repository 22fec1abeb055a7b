/* test_sup_fleet_check.c - every frame in every state, and every limit inside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <math.h>

#include "sup_fleet_check.h"

static Ipc__Ready ready;
static Ipc__Progress progress;
static Ipc__Loaded loaded;
static Ipc__Error error;
static Ipc__Log logged;
static Ipc__Stats stats;
static Ipc__Beat beat;
static Ipc__Delta delta;
static Ipc__Done done;
static Ipc__Vectors vectors;
static Ipc__Decided decided;
static Ipc__Scores scores;
static Ipc__Extracted extracted;
static Ipc__Chunks chunks;
static Ipc__Tokens tokens;
static Ipc__Text text;
static Ipc__Echo echoed;

static int setup(void **s)
{
    (void)s;
    ipc__ready__init(&ready);
    ipc__progress__init(&progress);
    ipc__loaded__init(&loaded);
    ipc__error__init(&error);
    ipc__log__init(&logged);
    ipc__stats__init(&stats);
    ipc__beat__init(&beat);
    ipc__delta__init(&delta);
    ipc__done__init(&done);
    ipc__vectors__init(&vectors);
    ipc__tokens__init(&tokens);
    ipc__decided__init(&decided);
    ipc__scores__init(&scores);
    ipc__extracted__init(&extracted);
    ipc__chunks__init(&chunks);
    ipc__text__init(&text);
    ipc__echo__init(&echoed);
    loaded.vocab_size = 100;
    loaded.ctx_tokens = 8;
    return 0;
}

static Ipc__Frame frame(Ipc__Frame__BodyCase body, uint64_t task)
{
    Ipc__Frame f = IPC__FRAME__INIT;

    f.task = task;
    f.body_case = body;
    switch (body) {
#define C(CASE, field, ptr)       \
    case IPC__FRAME__BODY_##CASE: \
        f.field = ptr;            \
        break
        C(READY, ready, &ready);
        C(PROGRESS, progress, &progress);
        C(LOADED, loaded, &loaded);
        C(ERROR, error, &error);
        C(LOG, log, &logged);
        C(STATS, stats, &stats);
        C(BEAT, beat, &beat);
        C(DELTA, delta, &delta);
        C(DONE, done, &done);
        C(VECTORS, vectors, &vectors);
        C(DECIDED, decided, &decided);
        C(SCORES, scores, &scores);
        C(EXTRACTED, extracted, &extracted);
        C(CHUNKS, chunks, &chunks);
        C(TOKENS, tokens, &tokens);
        C(TEXT, text, &text);
        C(ECHOED, echoed, &echoed);
#undef C
    default:
        break;
    }
    return f;
}

static void each_message_in_each_state(void **s)
{
    enum { ST = SUP_W_STARTING, LO = SUP_W_LOADING, RU = SUP_W_RUNNING, DR = SUP_W_DRAINING };
    static const struct {
        Ipc__Frame__BodyCase body;
        unsigned worker, task;
    } legal[] = {
        {IPC__FRAME__BODY_READY, ST, 0},
        {IPC__FRAME__BODY_PROGRESS, LO, 0},
        {IPC__FRAME__BODY_LOADED, LO, 0},
        {IPC__FRAME__BODY_ERROR, ST | LO | RU | DR, RU | DR},
        {IPC__FRAME__BODY_LOG, ST | LO | RU | DR, RU | DR},
        {IPC__FRAME__BODY_STATS, LO | RU | DR, 0},
        {IPC__FRAME__BODY_BEAT, LO | RU | DR, 0},
        {IPC__FRAME__BODY_DELTA, 0, RU | DR},
        {IPC__FRAME__BODY_DONE, 0, RU | DR},
        {IPC__FRAME__BODY_VECTORS, 0, RU | DR},
        {IPC__FRAME__BODY_DECIDED, 0, RU | DR},
        {IPC__FRAME__BODY_SCORES, 0, RU | DR},
        {IPC__FRAME__BODY_EXTRACTED, 0, RU | DR},
        {IPC__FRAME__BODY_CHUNKS, 0, RU | DR},
        {IPC__FRAME__BODY_TOKENS, 0, RU | DR},
        {IPC__FRAME__BODY_TEXT, 0, RU | DR},
        {IPC__FRAME__BODY_ECHOED, 0, RU | DR},
    };

    (void)s;
    for (int body = 0; body < 60; body++)
        for (unsigned state = 1; state <= SUP_W_DYING; state <<= 1)
            for (uint64_t task = 0; task < 2; task++) {
                Ipc__Frame f = frame((Ipc__Frame__BodyCase)body, task);
                bool want = false;

                for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++)
                    if ((int)legal[i].body == body)
                        want = ((task ? legal[i].task : legal[i].worker) & state) != 0;
                if ((sup_check_frame(&f, (enum sup_worker_state)state, NULL) == RC_OK) != want)
                    fail_msg("body %d task %d state %u", body, (int)task, state);
            }
}

static void facts_of_a_model_have_limits(void **s)
{
    Ipc__Frame f = frame(IPC__FRAME__BODY_LOADED, 0);
    char big[5000];

    (void)s;
#define LOADED(want) assert_int_equal(sup_check_frame(&f, SUP_W_LOADING, NULL), want)
    LOADED(RC_OK);
    memset(big, 'a', sizeof(big));
    big[129] = '\0';
    loaded.family = big;
    LOADED(RC_FORMAT);
    loaded.family = (char *)"\xff";
    LOADED(RC_FORMAT);
    loaded.family = (char *)"";
    loaded.vocab_size = 0;
    LOADED(RC_FORMAT);
    loaded.vocab_size = UINT32_MAX;
    LOADED(RC_FORMAT);
    loaded.vocab_size = 100;
    loaded.can_embed = true;
    LOADED(RC_FORMAT);
    loaded.embed_dim = 70000;
    LOADED(RC_FORMAT);
    loaded.embed_dim = 4;
    loaded.token_dim = 65537;
    LOADED(RC_FORMAT);
    loaded.token_dim = 65536;
    LOADED(RC_OK);
    loaded.ctx_tokens = 0;
    LOADED(RC_FORMAT);
    loaded.probe_only = true;
    LOADED(RC_OK);
    f = frame(IPC__FRAME__BODY_PROGRESS, 0);
    progress.stage = (char *)"\xc3";
    LOADED(RC_FORMAT);
}

static struct sup_asked asked;
static uint64_t fin[4];

static void ask_generate(uint32_t n, uint32_t max_tokens, uint32_t top)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;

    g.n = n;
    g.max_tokens = max_tokens;
    g.top_logprobs = top;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    sup_asked_from(&asked, &f);
    memset(fin, 0, sizeof(fin));
    asked.finished = fin;
}

#define ANSWER(CASE, want)                                                            \
    do {                                                                              \
        Ipc__Frame f_ = frame(IPC__FRAME__BODY_##CASE, 1);                            \
        bool last_ = false;                                                           \
        assert_int_equal(sup_check_answer(&asked, &f_, &loaded, &last_, NULL), want); \
    } while (0)

static void deltas_stay_within_what_was_asked(void **s)
{
    uint32_t tok[3] = {1, 99, 100};
    Ipc__TokenProb p = IPC__TOKEN_PROB__INIT, *pl[1] = {&p};
    Ipc__TopProb t = IPC__TOP_PROB__INIT, *tl[2] = {&t, &t};

    (void)s;
    ask_generate(70, 5, 1);
    ANSWER(DELTA, RC_OK);
    delta.index = 69;
    ANSWER(DELTA, RC_OK);
    delta.index = 70;
    ANSWER(DELTA, RC_FORMAT);
    delta.index = 0;
    delta.finish = 3;
    ANSWER(DELTA, RC_FORMAT);
    delta.finish = 0;
    delta.text.data = (uint8_t *)"\xe2\x82";
    delta.text.len = 2;
    ANSWER(DELTA, RC_FORMAT);
    delta.text.len = 0;
    delta.tokens = tok;
    delta.n_tokens = 2;
    ANSWER(DELTA, RC_OK);
    delta.n_tokens = 3;
    ANSWER(DELTA, RC_FORMAT);
    delta.n_tokens = 0;
    delta.probs = pl;
    delta.n_probs = 1;
    ANSWER(DELTA, RC_OK);
    p.logprob = NAN;
    ANSWER(DELTA, RC_FORMAT);
    p.logprob = -INFINITY;
    ANSWER(DELTA, RC_FORMAT);
    p.logprob = -1;
    p.token = 100;
    ANSWER(DELTA, RC_FORMAT);
    p.token = 0;
    p.top = tl;
    p.n_top = 1;
    ANSWER(DELTA, RC_OK);
    p.n_top = 2; /* one was asked for */
    ANSWER(DELTA, RC_FORMAT);
    p.n_top = 1;
    t.logprob = INFINITY;
    ANSWER(DELTA, RC_FORMAT);
    delta.n_probs = 0;
    delta.index = 65;
    delta.finish = 1;
    ANSWER(DELTA, RC_OK);
    ANSWER(DELTA, RC_FORMAT); /* it had finished */
    ANSWER(DONE, RC_FORMAT);  /* the others have not */
}

static void thoughts_and_calls_are_of_those_who_can(void **s)
{
    Ipc__CallPart call = IPC__CALL_PART__INIT;

    (void)s;
    ask_generate(1, 5, 0);
    delta.reasoning.data = (uint8_t *)"hm";
    delta.reasoning.len = 2;
    ANSWER(DELTA, RC_FORMAT);
    loaded.can_think = true;
    ANSWER(DELTA, RC_OK);
    delta.reasoning_tokens = 6;
    ANSWER(DELTA, RC_FORMAT);
    delta.reasoning_tokens = 5;
    delta.reasoning.data = (uint8_t *)"\xe2\x82";
    ANSWER(DELTA, RC_FORMAT);
    delta.reasoning_tokens = 0;
    delta.reasoning.len = 0;
    delta.call = &call;
    ANSWER(DELTA, RC_FORMAT); /* no tools were given */
    asked.tools = true;
    ANSWER(DELTA, RC_OK);
    call.index = 64;
    ANSWER(DELTA, RC_FORMAT);
    call.index = 0;
    call.name.data = (uint8_t *)"\xff";
    call.name.len = 1;
    ANSWER(DELTA, RC_FORMAT);
    call.name.len = 0;
    call.arguments.data = (uint8_t *)"\xff";
    call.arguments.len = 1;
    ANSWER(DELTA, RC_FORMAT);
    call.arguments.len = 0;
    call.ended = call.broken = true; /* void calls are of streams alone */
    ANSWER(DELTA, RC_FORMAT);
    asked.stream = true;
    ANSWER(DELTA, RC_OK);
    call.ended = false;
    ANSWER(DELTA, RC_FORMAT);
    delta.call = NULL;
    delta.finish = 4;
    ANSWER(DELTA, RC_FORMAT);
    delta.finish = 3;
    ANSWER(DELTA, RC_OK);
}

static void done_comes_when_all_have_finished(void **s)
{
    uint32_t tok[1] = {100};

    (void)s;
    ask_generate(2, 5, 0);
    delta.finish = 2;
    ANSWER(DELTA, RC_OK);
    ANSWER(DONE, RC_FORMAT);
    delta.index = 1;
    ANSWER(DELTA, RC_OK);
    ANSWER(DONE, RC_OK);
    done.prompt_token_ids = tok;
    done.n_prompt_token_ids = 1;
    ANSWER(DONE, RC_FORMAT);
}

static void no_more_tokens_than_asked(void **s)
{
    uint32_t tok[4] = {1, 1, 1, 1};
    int n = 0;

    (void)s;
    ask_generate(1, 3, 0);
    delta.tokens = tok;
    delta.n_tokens = 4;
    delta.is_prompt = true; /* an echo of the prompt does not count, */
    asked.echo = true;
    ANSWER(DELTA, RC_OK);
    asked.echo = false; /* and must have been asked for */
    ANSWER(DELTA, RC_FORMAT);
    delta.is_prompt = false;
    ANSWER(DELTA, RC_FORMAT);
    ask_generate(1, 3, 0);
    delta.n_tokens = 0; /* not told: then the frames are counted */
    for (Ipc__Frame f = frame(IPC__FRAME__BODY_DELTA, 1); n < 1000; n++) {
        bool last;

        if (sup_check_answer(&asked, &f, &loaded, &last, NULL) != RC_OK)
            break;
    }
    assert_in_range(n, 3, 20);
}

/* What is kept for a paused reader is bounded, whatever it is made of. */
static void no_more_bytes_than_an_answer_can_have(void **s)
{
    Ipc__TokenProb p = IPC__TOKEN_PROB__INIT, *pl[1] = {&p};
    uint8_t *big = calloc(1, 1 << 20);
    ProtobufCMessageUnknownField u = {100, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, 1 << 20, big};
    uint32_t ids[9] = {0};
    int n = 0;

    (void)s;
    memset(big, 'a', 1 << 20);
    ask_generate(1, 3, 0);
    delta.probs = pl;
    delta.n_probs = 1;
    p.piece.data = big;
    p.piece.len = 1024; /* an honest token */
    ANSWER(DELTA, RC_OK);
    p.piece.len = 1 << 20;
    ANSWER(DELTA, RC_FORMAT);
    ask_generate(1, 3, 0);
    delta.n_probs = 0;
    delta.base.n_unknown_fields = 1;
    delta.base.unknown_fields = &u;
    ANSWER(DELTA, RC_FORMAT);
    delta.base.n_unknown_fields = 0;
    ask_generate(1, 3, 0);
    asked.echo = true;
    asked.n_prompt = 100000; /* the model takes 8 tokens */
    delta.is_prompt = true;
    delta.text.data = big;
    delta.text.len = 10000;
    for (Ipc__Frame f = frame(IPC__FRAME__BODY_DELTA, 1); n < 1000; n++) {
        bool last;

        if (sup_check_answer(&asked, &f, &loaded, &last, NULL) != RC_OK)
            break;
    }
    assert_in_range(n, 10, 20);
    ask_generate(1, 3, 0);
    fin[0] = 1;
    done.prompt_token_ids = ids;
    done.n_prompt_token_ids = 8;
    ANSWER(DONE, RC_OK);
    done.n_prompt_token_ids = 9;
    ANSWER(DONE, RC_FORMAT);
    free(big);
}

static void words_about_a_worker_are_short(void **s)
{
    uint8_t *big = calloc(1, 70000);
    ProtobufCMessageUnknownField u = {100, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, 70000, big};
    Ipc__Frame f = frame(IPC__FRAME__BODY_LOG, 0);

    (void)s;
    logged.message.data = big;
    logged.message.len = 60000;
    assert_int_equal(sup_check_frame(&f, SUP_W_RUNNING, NULL), RC_OK);
    logged.message.len = 70000;
    assert_int_equal(sup_check_frame(&f, SUP_W_RUNNING, NULL), RC_FORMAT);
    f = frame(IPC__FRAME__BODY_STATS, 0);
    assert_int_equal(sup_check_frame(&f, SUP_W_RUNNING, NULL), RC_OK);
    stats.base.n_unknown_fields = 1;
    stats.base.unknown_fields = &u;
    assert_int_equal(sup_check_frame(&f, SUP_W_RUNNING, NULL), RC_FORMAT);
    free(big);
}

static void vectors_have_the_shape_they_say(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Embed e = IPC__EMBED__INIT;
    Ipc__EmbedInput in = IPC__EMBED_INPUT__INIT, *il[2] = {&in, &in};
    Ipc__ItemError ie = IPC__ITEM_ERROR__INIT, *el[3] = {&ie, &ie, &ie};
    float data[8] = {0};
    uint32_t counts[2] = {0};

    (void)s;
    e.inputs = il;
    e.n_inputs = 2;
    q.body_case = IPC__FRAME__BODY_EMBED;
    q.embed = &e;
    sup_asked_from(&asked, &q);
    vectors.n = 2;
    vectors.dim = 4;
    vectors.data.data = (uint8_t *)data;
    vectors.data.len = 32;
    ANSWER(VECTORS, RC_OK);
    vectors.data.len = 31;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.data.len = 32;
    data[7] = NAN;
    ANSWER(VECTORS, RC_FORMAT);
    data[7] = -INFINITY;
    ANSWER(VECTORS, RC_FORMAT);
    data[7] = 3e38f;
    ANSWER(VECTORS, RC_OK);
    vectors.n = 1;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.n = 2;
    vectors.dim = 0x40000004; /* 2 * dim * 4 wraps in 32 bits */
    ANSWER(VECTORS, RC_FORMAT);
    vectors.dim = 0;
    vectors.data.len = 0;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.dim = 4;
    vectors.data.len = 32;
    vectors.n_tokens = counts;
    vectors.n_n_tokens = 1;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.n_n_tokens = 2;
    ANSWER(VECTORS, RC_OK);
    vectors.n_media_tokens = counts;
    vectors.n_n_media_tokens = 3;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.n_n_media_tokens = 2;
    ANSWER(VECTORS, RC_OK);
    vectors.model_identity =
        (char *)"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    ANSWER(VECTORS, RC_OK);
    vectors.model_identity =
        (char *)"0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef";
    ANSWER(VECTORS, RC_FORMAT);
    vectors.model_identity = (char *)"0123456789abcdef";
    ANSWER(VECTORS, RC_FORMAT);
    vectors.model_identity = (char *)"";
    vectors.errors = el;
    vectors.n_errors = 1;
    ANSWER(VECTORS, RC_FORMAT); /* an error without one */
    ie.error = &error;
    ANSWER(VECTORS, RC_OK);
    error.stage = (char *)"image_decode";
    ANSWER(VECTORS, RC_OK);
    error.stage = (char *)"image_decode\"";
    ANSWER(VECTORS, RC_FORMAT);
    error.stage = (char *)"";
    ie.index = 2;
    ANSWER(VECTORS, RC_FORMAT);
    ie.index = 0;
    vectors.n_errors = 3;
    ANSWER(VECTORS, RC_FORMAT);
}

static void other_outputs_are_those_asked_for(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Embed e = IPC__EMBED__INIT;
    Ipc__EmbedInput in = IPC__EMBED_INPUT__INIT, *il[1] = {&in};
    Ipc__SparseVector sv = IPC__SPARSE_VECTOR__INIT, *svl[1] = {&sv};
    Ipc__TokenVectors tv = IPC__TOKEN_VECTORS__INIT, *tvl[1] = {&tv};
    float data[8] = {0}, w[3] = {1, 0.5f, 2};
    uint32_t ids[3] = {3, 7, 99};

    (void)s;
    loaded.token_dim = 2;
    e.inputs = il;
    e.n_inputs = 1;
    e.outputs = 2 | 4;
    q.body_case = IPC__FRAME__BODY_EMBED;
    q.embed = &e;
    assert_true(sup_asked_from(&asked, &q));
    vectors.n = 1;
    sv.ids = ids;
    sv.n_ids = sv.n_weights = 3;
    sv.weights = w;
    tv.n = 4;
    tv.data.data = (uint8_t *)data;
    tv.data.len = 32;
    vectors.sparse = svl;
    vectors.token_vectors = tvl;
    vectors.n_sparse = 1;
    ANSWER(VECTORS, RC_FORMAT); /* one of the two is missing */
    vectors.n_token_vectors = 1;
    ANSWER(VECTORS, RC_OK);
    vectors.data.data = (uint8_t *)data; /* dense ones were not asked for */
    vectors.data.len = 32;
    vectors.dim = 8;
    ANSWER(VECTORS, RC_FORMAT);
    vectors.data.len = 0;
    ANSWER(VECTORS, RC_OK);
    ids[1] = 3;
    ANSWER(VECTORS, RC_FORMAT);
    ids[1] = 7;
    ids[2] = 100;
    ANSWER(VECTORS, RC_FORMAT);
    ids[2] = 99;
    w[0] = 0;
    ANSWER(VECTORS, RC_FORMAT);
    w[0] = NAN;
    ANSWER(VECTORS, RC_FORMAT);
    w[0] = 1;
    sv.n_weights = 2;
    ANSWER(VECTORS, RC_FORMAT);
    sv.n_weights = 3;
    tv.n = 5;
    ANSWER(VECTORS, RC_FORMAT);
    tv.n = 0x20000004; /* * 2 * 4 wraps in 32 bits */
    ANSWER(VECTORS, RC_FORMAT);
    tv.n = 4;
    data[5] = INFINITY;
    ANSWER(VECTORS, RC_FORMAT);
    data[5] = 0;
    ANSWER(VECTORS, RC_OK);
}

static void scores_are_one_for_each_document(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Rerank r = IPC__RERANK__INIT;
    ProtobufCBinaryData docs[3] = {{0}};
    Ipc__ItemError ie = IPC__ITEM_ERROR__INIT, *el[1] = {&ie};
    float v[4] = {0.5f, 0, 1, 0}, l[4] = {3, -9, 40, 0};
    uint32_t counts[3] = {1, 2, 3};

    (void)s;
    r.documents = docs;
    r.n_documents = 3;
    q.body_case = IPC__FRAME__BODY_RERANK;
    q.rerank = &r;
    assert_true(sup_asked_from(&asked, &q));
    loaded.can_rerank = true;
    scores.scores = v;
    scores.n_scores = 3;
    ANSWER(SCORES, RC_FORMAT); /* no logits */
    scores.logits = l;
    scores.n_logits = 3;
    ANSWER(SCORES, RC_OK);
    scores.n_logits = 2;
    ANSWER(SCORES, RC_FORMAT);
    scores.n_logits = 3;
    v[0] = 1.5f;
    ANSWER(SCORES, RC_FORMAT);
    v[0] = NAN;
    ANSWER(SCORES, RC_FORMAT);
    v[0] = 1;
    l[1] = -INFINITY;
    ANSWER(SCORES, RC_FORMAT);
    l[1] = 0;
    scores.dense = l;
    scores.n_dense = 3;
    ANSWER(SCORES, RC_FORMAT); /* pairs have none */
    loaded.can_rerank = false;
    ANSWER(SCORES, RC_FORMAT); /* and embedders no logits */
    scores.n_logits = 0;
    ANSWER(SCORES, RC_OK);
    v[0] = -7;
    ANSWER(SCORES, RC_OK);
    scores.n_scores = 4;
    ANSWER(SCORES, RC_FORMAT);
    scores.n_scores = 3;
    scores.n_tokens = counts;
    scores.n_n_tokens = 2;
    ANSWER(SCORES, RC_FORMAT);
    scores.n_n_tokens = 3;
    scores.errors = el;
    scores.n_errors = 1;
    ANSWER(SCORES, RC_FORMAT);
    ie.error = &error;
    ANSWER(SCORES, RC_OK);
    ie.index = 3;
    ANSWER(SCORES, RC_FORMAT);
    ie.index = 0;
    scores.model_identity = (char *)"xyz";
    ANSWER(SCORES, RC_FORMAT);
}

static void pieces_lie_in_their_text(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Chunk c = IPC__CHUNK__INIT;
    Ipc__ChunkPiece p[3], *pl[3] = {&p[0], &p[1], &p[2]};

    (void)s;
    c.text.data = (uint8_t *)"d\xc3\xa9j\xc3\xa0 vu"; /* 7 code points */
    c.text.len = 9;
    c.target_tokens = 5;
    c.max_chunks = 2;
    q.body_case = IPC__FRAME__BODY_CHUNK;
    q.chunk = &c;
    assert_true(sup_asked_from(&asked, &q));
    for (int i = 0; i < 3; i++) {
        ipc__chunk_piece__init(&p[i]);
        p[i].start = (uint32_t)i * 2;
        p[i].end = p[i].start + 3;
        p[i].n_tokens = 5;
    }
    chunks.pieces = pl;
    chunks.n_pieces = 2;
    ANSWER(CHUNKS, RC_OK);
    chunks.n_pieces = 3;
    ANSWER(CHUNKS, RC_FORMAT);
    chunks.n_pieces = 2;
    p[1].end = 8;
    ANSWER(CHUNKS, RC_FORMAT);
    p[1].end = 7;
    ANSWER(CHUNKS, RC_OK);
    p[1].n_tokens = 6;
    ANSWER(CHUNKS, RC_FORMAT);
    p[1].n_tokens = 0;
    p[1].start = 0;
    ANSWER(CHUNKS, RC_FORMAT);
    p[1].start = 7;
    ANSWER(CHUNKS, RC_FORMAT);
    chunks.n_pieces = 0;
    ANSWER(CHUNKS, RC_OK);
}

static void what_is_extracted_was_asked_for(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Extract x = IPC__EXTRACT__INIT;
    Ipc__ExtractSchema one = IPC__EXTRACT_SCHEMA__INIT, two = IPC__EXTRACT_SCHEMA__INIT,
                       *sl[2] = {&one, &two};
    Ipc__ExtractField f = IPC__EXTRACT_FIELD__INIT, *fl[2] = {&f, &f};
    Ipc__ExtractRelation rel = IPC__EXTRACT_RELATION__INIT, *rl[1] = {&rel};
    Ipc__ExtractClasses cls = IPC__EXTRACT_CLASSES__INIT, *cl[1] = {&cls};
    Ipc__ExtractRecord rec = IPC__EXTRACT_RECORD__INIT, *recl[1] = {&rec};
    ProtobufCBinaryData in[2] = {{9, (uint8_t *)"d\xc3\xa9j\xc3\xa0 vu"}, {2, (uint8_t *)"ok"}};
    uint32_t schema_of[2] = {0, 1};
    Ipc__ExtractedItem item[2], *il[2] = {&item[0], &item[1]};
    Ipc__ExtractSpan span = IPC__EXTRACT_SPAN__INIT, *spl[2] = {&span, &span};
    Ipc__ExtractedEntity ent = IPC__EXTRACTED_ENTITY__INIT, *entl[1] = {&ent};
    Ipc__ExtractedRelation er = IPC__EXTRACTED_RELATION__INIT, *erl[1] = {&er};
    Ipc__ExtractedClass ec = IPC__EXTRACTED_CLASS__INIT, *ecl[1] = {&ec};
    Ipc__ExtractedValue val = IPC__EXTRACTED_VALUE__INIT, *vl[1] = {&val};
    Ipc__ExtractedRecord erec = IPC__EXTRACTED_RECORD__INIT, *erecl[1] = {&erec};

    (void)s;
    one.entities = fl; /* the first asks for two labels and relations, the other for the rest */
    one.n_entities = 2;
    one.relations = rl;
    one.n_relations = 1;
    cls.labels = fl;
    cls.n_labels = 2;
    two.classes = cl;
    two.n_classes = 1;
    f.single = true;
    rec.fields = fl;
    rec.n_fields = 1;
    two.records = recl;
    two.n_records = 1;
    x.schemas = sl;
    x.n_schemas = 2;
    x.inputs = in;
    x.n_inputs = 2;
    x.schema_of = schema_of;
    x.n_schema_of = 2;
    q.body_case = IPC__FRAME__BODY_EXTRACT;
    q.extract = &x;
    assert_true(sup_asked_from(&asked, &q));
    for (int i = 0; i < 2; i++)
        ipc__extracted_item__init(&item[i]);
    extracted.items = il;
    extracted.n_items = 1;
    ANSWER(EXTRACTED, RC_FORMAT);
    extracted.n_items = 2;
    ANSWER(EXTRACTED, RC_OK);

    span.text.data = (uint8_t *)"vu";
    span.text.len = 2;
    span.has_place = true;
    span.start = 5;
    span.end = 7; /* of 7 code points, 9 bytes */
    span.score = 1;
    ent.span = &span;
    item[0].entities = entl;
    item[0].n_entities = 1;
    ANSWER(EXTRACTED, RC_OK);
    span.end = 9; /* 8: the dot that was put behind it */
    ANSWER(EXTRACTED, RC_FORMAT);
    span.end = 5;
    ANSWER(EXTRACTED, RC_FORMAT);
    span.end = 7;
    span.score = 1.01f;
    ANSWER(EXTRACTED, RC_FORMAT);
    span.score = NAN;
    ANSWER(EXTRACTED, RC_FORMAT);
    span.score = 0.5f;
    span.text.data = (uint8_t *)"\xff\xff";
    ANSWER(EXTRACTED, RC_FORMAT);
    span.text.data = (uint8_t *)"vu";
    ent.label = 2;
    ANSWER(EXTRACTED, RC_FORMAT);
    ent.label = 1;
    ent.span = NULL;
    ANSWER(EXTRACTED, RC_FORMAT);
    item[0].n_entities = 0;
    er.head = &span;
    item[0].relations = erl;
    item[0].n_relations = 1;
    ANSWER(EXTRACTED, RC_FORMAT); /* it has no tail */
    er.tail = &span;
    ANSWER(EXTRACTED, RC_OK);
    er.relation = 1;
    ANSWER(EXTRACTED, RC_FORMAT);
    item[0].n_relations = 0;

    item[0].classes = item[1].classes = ecl;
    item[0].n_classes = 1;
    ANSWER(EXTRACTED, RC_FORMAT); /* the other input's schema */
    item[0].n_classes = 0;
    item[1].n_classes = 1;
    ANSWER(EXTRACTED, RC_OK);
    ec.label = 2;
    ANSWER(EXTRACTED, RC_FORMAT);
    ec.label = 1;
    ec.task = 1;
    ANSWER(EXTRACTED, RC_FORMAT);
    item[1].n_classes = 0;

    span.start = span.end = 0;
    span.has_place = false; /* a choice */
    val.spans = spl;
    val.n_spans = 1;
    erec.values = vl;
    erec.n_values = 1;
    item[1].records = erecl;
    item[1].n_records = 1;
    ANSWER(EXTRACTED, RC_OK);
    val.n_spans = 2; /* of a single one */
    ANSWER(EXTRACTED, RC_FORMAT);
    val.n_spans = 0;
    val.field = 1;
    ANSWER(EXTRACTED, RC_FORMAT);
    val.field = 0;
    erec.record = 1;
    ANSWER(EXTRACTED, RC_FORMAT);
    sup_asked_deinit(&asked);

    x.byte_offsets = true;
    item[1].n_records = 0;
    item[0].n_entities = 1;
    ent.span = &span;
    span.has_place = true;
    span.start = 7;
    span.end = 9;
    assert_true(sup_asked_from(&asked, &q));
    ANSWER(EXTRACTED, RC_OK);
    span.end = 11; /* 10: the dot */
    ANSWER(EXTRACTED, RC_FORMAT);
    sup_asked_deinit(&asked);
}

static void decisions_are_of_what_was_asked(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Decide d = IPC__DECIDE__INIT;
    Ipc__DecideQuestion one = IPC__DECIDE_QUESTION__INIT, many = IPC__DECIDE_QUESTION__INIT,
                        *ql[2] = {&one, &many};
    Ipc__DecideChoice c = IPC__DECIDE_CHOICE__INIT, *cl[3] = {&c, &c, &c};
    ProtobufCBinaryData in[2] = {{0}};
    Ipc__DecidedAnswer a = IPC__DECIDED_ANSWER__INIT, b = IPC__DECIDED_ANSWER__INIT,
                       *al[4] = {&a, &b, &a, &b};
    Ipc__DecidedQuestion qa = IPC__DECIDED_QUESTION__INIT, qb = IPC__DECIDED_QUESTION__INIT,
                         *qal[2] = {&qa, &qb};
    char hash[66];
    double sim[3] = {0.5, -1, 1}, thr[3] = {-1, 0, 1};
    uint32_t chosen[3] = {0, 2, 2};

    (void)s;
    memset(hash, 'a', 64);
    hash[64] = hash[65] = '\0';
    one.kind = 1;
    one.choices = many.choices = cl;
    one.n_choices = 2;
    many.kind = 2;
    many.n_choices = 3;
    d.questions = ql;
    d.inputs = in;
    d.n_questions = d.n_inputs = 2;
    d.dimensions = 8;
    q.body_case = IPC__FRAME__BODY_DECIDE;
    q.decide = &d;
    sup_asked_from(&asked, &q);
    a.similarities = b.similarities = sim;
    a.n_similarities = 2;
    b.n_similarities = 3;
    a.status = b.status = 1;
    a.chosen = b.chosen = chosen;
    a.n_chosen = 1;
    b.n_chosen = 2;
    qa.prototype_set_hash = qb.prototype_set_hash = hash;
    qb.thresholds = thr;
    qb.n_thresholds = 3;
    decided.answers = al;
    decided.n_answers = 4;
    decided.questions = qal;
    decided.n_questions = 2;
    decided.dimensions = 8;
    decided.task_type = (char *)(uintptr_t) "CLUSTERING";
    ANSWER(DECIDED, RC_OK);
    decided.model_identity = hash;
    ANSWER(DECIDED, RC_FORMAT); /* another than it was loaded with */
    loaded.model_identity = hash;
    ANSWER(DECIDED, RC_OK);
#define WRONG(what, bad, good)      \
    do {                            \
        what = bad;                 \
        ANSWER(DECIDED, RC_FORMAT); \
        what = good;                \
        ANSWER(DECIDED, RC_OK);     \
    } while (0)
    WRONG(decided.n_answers, 3, 4);
    WRONG(decided.n_questions, 1, 2);
    WRONG(decided.dimensions, 4, 8);
    WRONG(decided.task_type, (char *)(uintptr_t) "RETRIEVAL", (char *)(uintptr_t) "CLASSIFICATION");
    WRONG(hash[3], 'A', 'a');
    WRONG(hash[63], '\0', 'a');
    WRONG(hash[64], 'a', '\0');
    WRONG(a.n_similarities, 3, 2);
    WRONG(sim[1], -1.01, -1);
    WRONG(sim[2], NAN, 1);
    WRONG(a.margin, 2.01, 2);
    WRONG(a.margin, -0.01, 0);
    WRONG(a.margin, NAN, 0);
    WRONG(a.status, 0, 1);
    WRONG(a.status, 4, 1);
    WRONG(a.status, 3, 1); /* an abstention without a reason, with a choice */
    WRONG(a.reason, 1, 0); /* a reason of a selection */
    WRONG(a.n_chosen, 0, 1);
    WRONG(a.n_chosen, 2, 1); /* two of a choice */
    WRONG(chosen[0], 2, 0);  /* of two choices */
    WRONG(b.n_chosen, 3, 2); /* not ascending */
    WRONG(qb.n_thresholds, 2, 3);
    WRONG(qa.n_thresholds, 1, 0);
    WRONG(thr[2], 1.5, 1);
    a.n_chosen = b.n_chosen = 0;
    a.status = 2; /* a choice is never empty */
    ANSWER(DECIDED, RC_FORMAT);
    a.status = 3;
    a.reason = 1;
    b.status = 2;
    ANSWER(DECIDED, RC_OK);
    b.status = 3;
    WRONG(b.reason, 1, 3); /* several choices never tie */
#undef WRONG
}

static void the_rest_of_the_answers(void **s)
{
    Ipc__Frame q = IPC__FRAME__INIT;
    Ipc__Tokenize tz = IPC__TOKENIZE__INIT;
    Ipc__Detokenize dz = IPC__DETOKENIZE__INIT;
    Ipc__Echo ez = IPC__ECHO__INIT;
    uint32_t ids[2] = {1, 2}, offsets[4] = {0, 1, 1, 2};
    ProtobufCBinaryData pieces[2] = {{0, NULL}, {0, NULL}};

    (void)s;
    q.body_case = IPC__FRAME__BODY_TOKENIZE;
    q.tokenize = &tz;
    sup_asked_from(&asked, &q);
    tokens.ids = ids;
    tokens.n_ids = 2;
    tokens.pieces = pieces;
    tokens.n_pieces = 2;
    tokens.offsets = offsets;
    tokens.n_offsets = 4;
    ANSWER(TOKENS, RC_OK);
    tokens.n_pieces = 1;
    ANSWER(TOKENS, RC_FORMAT);
    tokens.n_pieces = 2;
    tokens.n_offsets = 3;
    ANSWER(TOKENS, RC_FORMAT);
    tokens.n_offsets = 4;
    offsets[3] = 0;
    ANSWER(TOKENS, RC_FORMAT);
    offsets[3] = 2;
    ids[1] = 100;
    ANSWER(TOKENS, RC_FORMAT);
    ANSWER(TEXT, RC_STATE);
    ANSWER(ERROR, RC_OK);

    q.body_case = IPC__FRAME__BODY_DETOKENIZE;
    q.detokenize = &dz;
    sup_asked_from(&asked, &q);
    ANSWER(TEXT, RC_OK);
    text.text.data = (uint8_t *)"\x80";
    text.text.len = 1;
    ANSWER(TEXT, RC_FORMAT);

    ez.data.len = 3;
    q.body_case = IPC__FRAME__BODY_ECHO;
    q.echo = &ez;
    sup_asked_from(&asked, &q);
    ANSWER(ECHOED, RC_FORMAT);
    echoed.data.len = 3;
    ANSWER(ECHOED, RC_OK);
    ANSWER(DELTA, RC_STATE);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, setup)
    const struct CMUnitTest tests[] = {
        T(each_message_in_each_state),        T(facts_of_a_model_have_limits),
        T(deltas_stay_within_what_was_asked), T(thoughts_and_calls_are_of_those_who_can),
        T(done_comes_when_all_have_finished), T(no_more_tokens_than_asked),
        T(vectors_have_the_shape_they_say),   T(no_more_bytes_than_an_answer_can_have),
        T(words_about_a_worker_are_short),    T(other_outputs_are_those_asked_for),
        T(scores_are_one_for_each_document),  T(pieces_lie_in_their_text),
        T(what_is_extracted_was_asked_for),   T(decisions_are_of_what_was_asked),
        T(words_about_a_worker_are_short),    T(the_rest_of_the_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
