/* fuzz_api.c - any bytes as the body of any endpoint. room: sup
 *
 * Input: one byte that picks the route, then the body. What is accepted is answered
 * by a fake worker with bytes taken from the body, whole or as a stream. Always:
 * exactly one answer, valid JSON (or SSE of valid JSON), no task left behind.
 */
#include "../supervisor/sup_api_fake.h"
#include "ipc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const routes[] = {"/v1/chat/completions",
                                     "/v1/completions",
                                     "/v1/embeddings",
                                     "/ai/v1/embed",
                                     "/ai/v1/tokenize",
                                     "/ai/v1/detokenize",
                                     "/ai/v1/models/load",
                                     "/ai/v1/generate",
                                     "/ai/v1/echo",
                                     "/ai/v1/embeddings",
                                     "/ai/v1/models/unload",
                                     "/ai/v1/completions",
                                     "/v1/responses",
                                     "/ai/v1/decisions",
                                     "/ai/v1/rerank",
                                     "/v2/rerank",
                                     "/rerank",
                                     "/ai/v1/extract",
                                     "/ai/v1/chunk",
                                     "/ai/v1/rerank_multimodal"};

static void check_json(const char *p, size_t n)
{
    json_error_t e;
    json_t *j = json_loadb(p, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);

    if (!j) {
        fprintf(stderr, "answer is no JSON: %s at %d\n%.*s\n", e.text, e.position, (int)n, p);
        abort();
    }
    json_decref(j);
}

static void check_sse(const char *p, size_t n)
{
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t len = end ? (size_t)(end - p) : n;

        if (len > 6 && memcmp(p, "data: ", 6) == 0 && memcmp(p + 6, "[DONE]", 6) != 0)
            check_json(p + 6, len - 6);
        p += len + (end != NULL);
        n -= len + (end != NULL);
    }
}

static void play_generate(unsigned i, const uint8_t *data, size_t n)
{
    const Ipc__Generate *q = fake_ticket(i)->frame->generate;
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;
    Ipc__CallPart part = IPC__CALL_PART__INIT;
    Ipc__TokenProb p = IPC__TOKEN_PROB__INIT, *pp = &p;
    Ipc__TopProb top = IPC__TOP_PROB__INIT, *ptop = &top;
    uint32_t id = 3;

    d.text.data = (uint8_t *)(uintptr_t)data;
    d.text.len = n < 64 ? n : 64;
    p.piece = d.text;
    top.piece = d.text;
    p.top = &ptop;
    p.n_top = 1;
    p.has_logprob = n & 1;
    d.tokens = &id;
    d.n_tokens = 1;
    d.probs = &pp;
    d.n_probs = 1;
    part.name = part.arguments = d.text;
    part.ended = n & 2;
    if (q->kind == 1 && (n & 4)) {
        d.reasoning = d.text;
        d.call = &part;
    }
    fr.body_case = IPC__FRAME__BODY_DELTA;
    fr.delta = &d;
    for (uint32_t k = 0, choices = q->n; k < choices && k < 4; k++) {
        d.index = k;
        d.finish = k % 3;
        fake_play(i, &fr);
    }
    fake_done(i, 1, 1, 0);
}

/* An answer of the shape that was asked for: others end at sup_fleet_check.c. */
static void play_decide(unsigned i, const uint8_t *data, size_t n)
{
    static const double zeros[IPC_DECIDE_CHOICES];
    static uint32_t all[IPC_DECIDE_CHOICES];
    const Ipc__Decide *q = fake_ticket(i)->frame->decide;
    size_t n_answers = q->n_inputs * q->n_questions;
    Ipc__DecidedAnswer *a = calloc(n_answers, sizeof(*a)), **pa = calloc(n_answers, sizeof(*pa));
    Ipc__DecidedQuestion *k = calloc(q->n_questions, sizeof(*k)),
                         **pk = calloc(q->n_questions, sizeof(*pk));
    Ipc__Decided w = IPC__DECIDED__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    for (uint32_t c = 0; c < IPC_DECIDE_CHOICES; c++)
        all[c] = c;
    for (size_t j = 0; j < q->n_questions; j++) {
        pk[j] = &k[j];
        ipc__decided_question__init(&k[j]);
        k[j].n_thresholds = q->questions[j]->kind == 2 ? q->questions[j]->n_choices : 0;
        k[j].thresholds = (double *)(uintptr_t)zeros;
    }
    for (size_t j = 0; j < n_answers; j++) {
        const Ipc__DecideQuestion *of = q->questions[j % q->n_questions];

        pa[j] = &a[j];
        ipc__decided_answer__init(&a[j]);
        a[j].similarities = (double *)(uintptr_t)zeros;
        a[j].n_similarities = of->n_choices;
        a[j].status = n & 1 ? 1 : 3;
        a[j].reason = n & 1 ? 0 : 3;
        a[j].chosen = all;
        a[j].n_chosen = n & 1 ? (of->kind == 2 ? of->n_choices : 1) : 0;
    }
    w.answers = pa;
    w.n_answers = n_answers;
    w.questions = pk;
    w.n_questions = q->n_questions;
    fr.body_case = IPC__FRAME__BODY_DECIDED;
    fr.decided = &w;
    fake_play(i, &fr);
    free(a);
    free(pa);
    free(k);
    free(pk);
    fake_end(i, NULL, 0);
}

static void play_scores(unsigned i)
{
    static float scores[64];
    Ipc__Scores w = IPC__SCORES__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    w.scores = w.dense = scores;
    w.n_scores = w.n_dense = fake_ticket(i)->frame->rerank->n_documents;
    fr.body_case = IPC__FRAME__BODY_SCORES;
    fr.scores = &w;
    fake_play(i, &fr);
    fake_end(i, NULL, 0);
}

/* Of everything that was asked for, the first, at places that the data says. */
static void play_extract(unsigned i, const uint8_t *data, size_t n)
{
    const Ipc__Extract *q = fake_ticket(i)->frame->extract;
    Ipc__ExtractSpan span[2] = {IPC__EXTRACT_SPAN__INIT, IPC__EXTRACT_SPAN__INIT}, *ps = span;
    Ipc__ExtractedEntity e = IPC__EXTRACTED_ENTITY__INIT, *pe = &e;
    Ipc__ExtractedRelation r = IPC__EXTRACTED_RELATION__INIT, *pr = &r;
    Ipc__ExtractedClass c = IPC__EXTRACTED_CLASS__INIT, *pc = &c;
    Ipc__ExtractedValue v = IPC__EXTRACTED_VALUE__INIT, *pv = &v;
    Ipc__ExtractedRecord d = IPC__EXTRACTED_RECORD__INIT, *pd = &d;
    Ipc__ExtractedItem item[64], *items[64];
    Ipc__Extracted w = IPC__EXTRACTED__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    for (int k = 0; k < 2; k++) {
        span[k].has_place = n & 1;
        span[k].end = data[k % n];
        span[k].text.data = (uint8_t *)(uintptr_t)data;
        span[k].text.len = n < 9 ? n : 9;
    }
    e.span = r.head = &span[0];
    r.tail = &span[1];
    v.spans = &ps;
    v.n_spans = 1;
    d.values = &pv;
    d.n_values = 1;
    for (size_t k = 0; k < q->n_inputs; k++) {
        const Ipc__ExtractSchema *s = q->schemas[q->schema_of[k]];

        ipc__extracted_item__init(&item[k]);
        items[k] = &item[k];
        item[k].entities = &pe;
        item[k].relations = &pr;
        item[k].classes = &pc;
        item[k].records = &pd;
        item[k].n_entities = s->n_entities > 0;
        item[k].n_relations = s->n_relations > 0;
        item[k].n_classes = s->n_classes > 0;
        item[k].n_records = s->n_records > 0;
    }
    w.items = items;
    w.n_items = q->n_inputs;
    fr.body_case = IPC__FRAME__BODY_EXTRACTED;
    fr.extracted = &w;
    fake_play(i, &fr);
    fake_end(i, NULL, 0);
}

static void play_chunks(unsigned i, size_t n)
{
    Ipc__ChunkPiece p = IPC__CHUNK_PIECE__INIT, *pp = &p;
    Ipc__Chunks w = IPC__CHUNKS__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    p.end = 1 + n % 4; /* beyond some texts */
    w.pieces = &pp;
    w.n_pieces = 1;
    fr.body_case = IPC__FRAME__BODY_CHUNKS;
    fr.chunks = &w;
    fake_play(i, &fr);
    fake_end(i, NULL, 0);
}

static void play(unsigned i, const uint8_t *data, size_t n)
{
    const Ipc__Frame *task = fake_ticket(i)->frame;
    static const float zeros[64 * 4];
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Vectors w = IPC__VECTORS__INIT;
    Ipc__Text t = IPC__TEXT__INIT;
    Ipc__Tokens tok = IPC__TOKENS__INIT;
    uint32_t ids[1] = {7}, offsets[2] = {0, 1};
    ProtobufCBinaryData piece = {n, (uint8_t *)(uintptr_t)data};

    switch (task->body_case) {
    case IPC__FRAME__BODY_GENERATE:
        play_generate(i, data, n);
        return;
    case IPC__FRAME__BODY_EMBED:
        w.n = (uint32_t)task->embed->n_inputs;
        w.dim = 4;
        w.data.data = (uint8_t *)(uintptr_t)zeros;
        w.data.len = (size_t)w.n * 16;
        fr.body_case = IPC__FRAME__BODY_VECTORS;
        fr.vectors = &w;
        break;
    case IPC__FRAME__BODY_DECIDE:
        play_decide(i, data, n);
        return;
    case IPC__FRAME__BODY_RERANK:
        play_scores(i);
        return;
    case IPC__FRAME__BODY_EXTRACT:
        play_extract(i, data, n);
        return;
    case IPC__FRAME__BODY_CHUNK:
        play_chunks(i, n);
        return;
    case IPC__FRAME__BODY_TOKENIZE:
        tok.ids = ids;
        tok.pieces = &piece;
        tok.offsets = offsets;
        tok.n_ids = tok.n_pieces = 1;
        tok.n_offsets = 2;
        fr.body_case = IPC__FRAME__BODY_TOKENS;
        fr.tokens = &tok;
        break;
    case IPC__FRAME__BODY_DETOKENIZE:
        t.text = piece;
        fr.body_case = IPC__FRAME__BODY_TEXT;
        fr.text = &t;
        break;
    default:
        fr.body_case = IPC__FRAME__BODY_ECHOED;
        fr.echoed = task->echo;
        break;
    }
    fake_play(i, &fr);
    fake_end(i, NULL, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool ready;
    const char *path;

    if (n < 1)
        return -1;
    if (!ready) {
        fake_setup();
        T.conf.max_embed_inputs = 64;
        T.conf.max_queue = 64;
        T.gemma.can_embed = T.gemma.can_generate = T.gemma.can_extract = true;
        T.gemma.can_call_tools = T.gemma.can_think = true;
        T.gemma.can_embed_image = T.gemma.can_embed_sound = T.gemma.can_embed_groups = true;
        ready = true;
    }
    path = routes[data[0] % (sizeof(routes) / sizeof(routes[0]))];
    fake_req_reset();
    T.fleet.n_tickets = 0;
    T.fleet.load_done = NULL;
    T.req.query_model = "gemma";
    fake_send_bytes("POST", path, (const char *)data + 1, n - 1);
    if (T.fleet.load_done)
        T.fleet.load_done(T.fleet.load_user, NULL);
    for (unsigned i = 0; i < T.fleet.n_tickets; i++)
        if (!T.fleet.tickets[i].dead)
            play(i, data + 1, n - 1);
    uv_run(&T.front.loop, UV_RUN_NOWAIT);
    FAKE_CHECK(T.req.done && T.front.active == 0);
    for (unsigned i = 0; i < T.fleet.n_tickets; i++)
        FAKE_CHECK(T.fleet.tickets[i].dead);
    if (T.req.streaming)
        check_sse(T.req.answer.p, T.req.answer.n);
    else if (strcmp(T.req.type, "application/json") == 0)
        check_json(T.req.answer.p, T.req.answer.n);
    return 0;
}
