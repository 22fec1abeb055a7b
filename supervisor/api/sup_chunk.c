/* sup_chunk.c - POST /ai/v1/chunk: a text cut into pieces of so many tokens.
 *
 * The built-in chunkers (fixed, fixed_bert, fixed_bpe) count words and need no model; any other
 * name is a model's, whose tokenizer counts in its worker. Sounds and pictures are refused by name.
 * The text is kept until its places are known. Page: docs/chunk.md.
 * Tests: tests/supervisor/test_sup_api_chunk.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_content.h"
#include "sup_endpoints.h"
#include "sup_pieces.h"

#define NAMELESS "fixed-bert-tokenizer"
#define TARGET 500
#define OVERLAP 50
#define SEPARATOR_MAX 64

#define FIELDS(X)                                                                 \
    X(F_INPUT, "input", ANY, false, 0, 0, 0, "a non-empty string or a text part") \
    X(F_TEXT, "text", ANY, false, 0, 0, 0, "a non-empty string")                  \
    X(F_CONFIG, "config", OBJECT, false, 0, 0, 0, NULL)

#define CONFIG_FIELDS(X)                                                   \
    X(C_MODEL, "model", STR, false, 0, SUP_NAME_MAX, 0, NULL)              \
    X(C_MAX_CHUNKS, "max_chunks", INT, false, 1, SUP_PIECES_MAX, 50, NULL) \
    X(C_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                 \
    X(C_TEXT, "text", OBJECT, false, 0, 0, 0, NULL)                        \
    X(C_AUDIO, "audio", OBJECT, false, 0, 0, 0, NULL)

#define TEXT_FIELDS(X)                                                              \
    X(T_TARGET, "target_tokens", INT, false, 1, SUP_PIECE_TOKENS_MAX, TARGET, NULL) \
    X(T_OVERLAP, "overlap_tokens", INT, false, 0, SUP_PIECE_TOKENS_MAX, 0, NULL)    \
    X(T_SEPARATOR, "separator", STR, false, 0, SEPARATOR_MAX, 0, NULL)              \
    X(T_SENTENCES, "sentences", BOOL, false, 0, 1, 0, NULL)

enum { FIELDS(SUP_FIELD_ID) F_N };
enum { CONFIG_FIELDS(SUP_FIELD_ID) C_N };
enum { TEXT_FIELDS(SUP_FIELD_ID) T_N };
static const struct sup_field fields[F_N] = {FIELDS(SUP_FIELD_ROW)},
                              of_config[C_N] = {CONFIG_FIELDS(SUP_FIELD_ROW)},
                              of_text[T_N] = {TEXT_FIELDS(SUP_FIELD_ROW)};

struct chunk {
    struct sup_call call;
    const char *text; /* [n_bytes]: of the tree, or own */
    char *own;        /* a copy, where a worker cuts it */
    size_t n_bytes;
    uint32_t max;
    struct sup_json out;
};

/* Built in: what is counted, and in which way. NULL: a model's name. */
static const struct fixed {
    const char *name;
    bool runs;
} * fixed_of(const char *name)
{
    static const struct fixed list[] = {{"", false},
                                        {NAMELESS, false},
                                        {"fixed", false},
                                        {"fixed_bert", false},
                                        {"fixed_bpe", true}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

static const char *name_of(json_t *body)
{
    const char *name = json_string_value(json_object_get(json_object_get(body, "config"), "model"));

    return name ? name : "";
}

/* A name of another type is found with the other fields. */
static const char *chunk_model(struct sup_call *c, json_t *body, struct sup_fail *f)
{
    const char *name = name_of(body);

    return fixed_of(name) ? "" : name;
}

/* ------------------------------------------------------------------ writing */

static void put_piece(struct chunk *k, uint32_t i, const struct sup_piece *p)
{
    struct sup_json *o = &k->out;

    sup_json_fmt(o,
                 "%s{\"object\":\"chunk\",\"index\":%u,\"id\":\"chunk-%u\",\"mime_type\":"
                 "\"text/plain\",\"text\":\"",
                 i ? "," : "", i, i);
    sup_json_text(o, k->text + p->from, p->to - p->from);
    sup_json_fmt(o, "\",\"start_char\":%u,\"end_char\":%u,\"n_tokens\":%u}", p->start, p->end,
                 p->n_tokens);
}

static void put_head(struct chunk *k)
{
    sup_json_str(&k->out, "{\"object\":\"list\",\"data\":[");
}

static void put_tail(struct chunk *k, const char *model, bool cut, uint64_t n_tokens)
{
    unsigned long long n = n_tokens;

    sup_json_str(&k->out, "],\"model\":");
    sup_json_quoted(&k->out, model);
    sup_json_fmt(&k->out,
                 ",\"truncated\":%s,\"cache_hit\":false,\"usage\":{\"prompt_tokens\":%llu,"
                 "\"completion_tokens\":0,\"total_tokens\":%llu}}",
                 cut ? "true" : "false", n, n);
}

/* ------------------------------------------------------------------ built in */

static bool cut_here(struct chunk *k, const char *name, struct sup_cutting *how, struct sup_fail *f)
{
    struct sup_piece *pieces = sup_call_alloc(&k->call, how->max * sizeof(*pieces));
    uint64_t n_tokens;
    uint32_t n;
    bool cut;

    how->runs = fixed_of(name)->runs;
    if (!pieces || !sup_pieces(k->text, k->n_bytes, how, pieces, &n, &cut, &n_tokens))
        return sup_fail_no_memory(f);
    put_head(k);
    for (uint32_t i = 0; i < n; i++)
        put_piece(k, i, &pieces[i]);
    put_tail(k, *name ? name : NAMELESS, cut, n_tokens);
    sup_call_reply(&k->call, &k->out);
    return true;
}

/* ------------------------------------------------------------------ a worker */

static bool ask_worker(struct chunk *k, const struct sup_cutting *how, struct sup_fail *f)
{
    Ipc__Frame frame = IPC__FRAME__INIT;
    Ipc__Chunk q = IPC__CHUNK__INIT;

    if (!(k->own = malloc(k->n_bytes)))
        return sup_fail_no_memory(f);
    memcpy(k->own, k->text, k->n_bytes);
    k->text = k->own;
    q.text.data = (uint8_t *)k->own;
    q.text.len = k->n_bytes;
    q.target_tokens = how->target;
    q.overlap_tokens = how->overlap;
    q.max_chunks = how->max;
    q.separator.data = (uint8_t *)(uintptr_t)how->separator;
    q.separator.len = strlen(how->separator);
    q.sentences = how->sentences;
    q.deadline_us = k->call.deadline_us;
    frame.body_case = IPC__FRAME__BODY_CHUNK;
    frame.chunk = &q;
    return sup_call_hold(&k->call, k->n_bytes, f) && sup_call_parts(&k->call, 1, f) &&
           sup_call_submit(&k->call, 0, &frame, f);
}

/* A place in the text, in both counts. Pieces come in order, so each end only moves on. */
struct place {
    size_t byte;
    uint32_t chars;
};

static bool move_to(const struct chunk *k, struct place *p, uint32_t chars)
{
    while (p->chars < chars && p->byte < k->n_bytes) {
        p->byte += sup_utf8_len((const unsigned char *)k->text + p->byte, k->n_bytes - p->byte);
        p->chars++;
    }
    return p->chars == chars;
}

static bool put_pieces(struct chunk *k, const Ipc__Chunks *w)
{
    struct place from = {0, 0}, to = {0, 0};

    for (size_t i = 0; i < w->n_pieces; i++) {
        const Ipc__ChunkPiece *x = w->pieces[i];
        struct sup_piece p = {.start = x->start, .end = x->end, .n_tokens = x->n_tokens};

        if (x->end < x->start || !move_to(k, &from, x->start) || !move_to(k, &to, x->end))
            return false;
        p.from = from.byte;
        p.to = to.byte;
        put_piece(k, (uint32_t)i, &p);
    }
    return true;
}

static void frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct chunk *k = (struct chunk *)c;
    struct sup_fail f;

    if (fr->body_case != IPC__FRAME__BODY_CHUNKS)
        return;
    put_head(k);
    if (fr->chunks->n_pieces > k->max || !put_pieces(k, fr->chunks)) {
        sup_fail_set(&f, SUP_E_INFERENCE_FAILED, "",
                     "the worker gave pieces that are not of the text, or too many");
        sup_call_fail(c, &f);
        return;
    }
    put_tail(k, c->model, fr->chunks->cut, fr->chunks->n_tokens);
}

/* ------------------------------------------------------------------- request */

static bool read_text_config(const struct sup_val *v, struct sup_cutting *how, struct sup_fail *f)
{
    char want[80];

    how->target = (uint32_t)v[T_TARGET].i;
    how->overlap = v[T_OVERLAP].set             ? (uint32_t)v[T_OVERLAP].i
                   : how->target / 10 < OVERLAP ? how->target / 10
                                                : OVERLAP;
    how->separator = v[T_SEPARATOR].set ? v[T_SEPARATOR].s : "\n\n";
    how->sentences = v[T_SENTENCES].b;
    if (how->overlap < how->target)
        return true;
    snprintf(want, sizeof(want), "less than target_tokens (%u)", how->target);
    sup_field_bad(f, "config.text.overlap_tokens", v[T_OVERLAP].j, want);
    return false;
}

static bool read_config(const struct sup_val *v, struct sup_cutting *how, struct sup_fail *f)
{
    struct sup_val c[C_N], t[T_N];

    if (!sup_fields_read(of_config, C_N, v[F_CONFIG].j, "config.", c, f) ||
        !sup_fields_read(of_text, T_N, c[C_TEXT].j, "config.text.", t, f))
        return false;
    how->max = (uint32_t)c[C_MAX_CHUNKS].i;
    return read_text_config(t, how, f);
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct chunk *k = (struct chunk *)c;
    bool old = v[F_TEXT].set;
    struct sup_cutting how = {0};
    ProtobufCBinaryData text;

    if (v[F_INPUT].set == old) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "input",
                     old ? "fields 'input' and 'text': got both, expected exactly one"
                         : "field 'input': missing, expected a non-empty string or a text part");
        return false;
    }
    if (!sup_content_text(c, v[old ? F_TEXT : F_INPUT].j, old ? "text" : "input",
                          SUP_E_UNSUPPORTED_FEATURE, &text, f) ||
        !read_config(v, &how, f))
        return false;
    k->text = (const char *)text.data;
    k->n_bytes = text.len;
    k->max = how.max;
    return *c->model ? ask_worker(k, &how, f) : cut_here(k, name_of(c->body), &how, f);
}

static void finish(struct sup_call *c)
{
    sup_call_reply(c, &((struct chunk *)c)->out);
}

static void deinit(struct sup_call *c)
{
    struct chunk *k = (struct chunk *)c;

    free(k->own);
    sup_json_deinit(&k->out);
}

const struct sup_call_ops sup_chunk_ops = {
    .size = sizeof(struct chunk),
    .model_of = chunk_model,
    .fields = fields,
    .n_fields = F_N,
    .start = start,
    .frame = frame,
    .finish = finish,
    .deinit = deinit,
};
